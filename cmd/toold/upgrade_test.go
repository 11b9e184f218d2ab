package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/wire"
)

// upgrades is how often TestUpgrades upgrades; TOOLD_UPGRADES=100 is the whole.
func upgrades(t *testing.T) int {
	n := 20
	if s := os.Getenv("TOOLD_UPGRADES"); s != "" {
		if _, err := fmt.Sscan(s, &n); err != nil {
			t.Fatalf("TOOLD_UPGRADES=%q: %v", s, err)
		}
	}
	return n
}

// admin is the operator's side of the daemon of l.
func (l *ledger) admin() *client.Admin {
	return client.NewAdmin(filepath.Join(l.daemon.flag("--state"), "admin.sock"))
}

// stopLast has whichever daemon serves l last be gone when the test ends.
func (l *ledger) stopLast() {
	l.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		st, err := l.admin().Status(ctx)
		if err != nil {
			return
		}
		syscall.Kill(st.PID, syscall.SIGTERM)
		l.awaitEnd(st.PID)
	})
}

// awaitEnd waits until a process has ended.
func (l *ledger) awaitEnd(pid int) {
	l.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(text), ") Z ") {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("process %d does not end", pid)
		}
	}
}

func (l *ledger) status() (pid int) {
	l.t.Helper()
	st, err := l.admin().Status(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return st.PID
}

func (l *ledger) upgrade(binary string) (pid int, err error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Minute)
	defer cancel()
	st, err := l.admin().Upgrade(ctx, binary, time.Minute)
	if err != nil {
		return 0, err
	}
	return st.PID, nil
}

// once has a client make one call of a new key, which must succeed.
func (l *ledger) once(key, sleep string) {
	res, err := l.ask(context.WithoutCancel(l.t.Context()), &ledgerCall{key: key, args: []string{"-c", script, "sh", key, sleep}})
	if err != nil || res.Err != nil || res.ExitCode != 0 || res.FromCache {
		l.t.Errorf("%s: %+v, %v", key, res, err)
	}
}

// TestUpgrades replaces the daemon again and again while 16 clients call, half of them
// over a connection that they keep, and reloads it in between: no call fails, and none
// runs twice.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	program := buildDaemon(t)
	l := newLedger(t, program, "file")
	l.stopLast()
	var stop atomic.Bool
	var made atomic.Int64
	var slowest atomic.Int64
	var wg sync.WaitGroup
	for id := range 16 {
		wg.Go(func() {
			kept := l.dial()
			defer kept.Close()
			for n := 0; !stop.Load() && !t.Failed(); n++ {
				key := fmt.Sprintf("key-%d-%d", id, n)
				begun := time.Now()
				if id%2 == 0 {
					l.once(key, "0.005")
				} else {
					kept.once(key)
				}
				made.Add(1)
				for took := int64(time.Since(begun)); ; {
					if was := slowest.Load(); took <= was || slowest.CompareAndSwap(was, took) {
						break
					}
				}
			}
		})
	}
	before := l.status()
	for n := range upgrades(t) {
		pid, err := l.upgrade(program)
		if err != nil || pid == before {
			t.Errorf("upgrade %d: process %d, %v", n, pid, err)
			break
		}
		l.awaitEnd(before)
		if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
			t.Error(err)
		}
		before = pid
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d calls; the slowest took %v", made.Load(), time.Duration(slowest.Load()).Round(time.Millisecond))
	ran := 0
	for key, n := range l.lines() {
		if ran++; n != 1 {
			t.Errorf("%s ran %d times", key, n)
		}
	}
	if int64(ran) != made.Load() {
		t.Errorf("%d calls were answered, %d ran", made.Load(), ran)
	}
}

// kept is a connection on which one call follows the other.
type kept struct {
	*net.UnixConn
	in *bufio.Reader
	l  *ledger
}

func (l *ledger) dial() *kept {
	l.t.Helper()
	nc, err := net.Dial("unix", l.socket)
	if err != nil {
		l.t.Fatal(err)
	}
	return &kept{nc.(*net.UnixConn), bufio.NewReader(nc), l}
}

// ask sends one request and returns its answer.
func (k *kept) ask(request map[string]any) (answer struct {
	ExitCode int    `json:"exit_code"`
	Stdout   string `json:"stdout"`
	Error    string `json:"error"`
}, err error) {
	text, err := json.Marshal(request)
	if err != nil {
		return answer, err
	}
	if err := wire.WriteFrame(k, text); err != nil {
		return answer, err
	}
	frame, err := wire.ReadFrame(k.in)
	if err != nil {
		return answer, err
	}
	return answer, json.Unmarshal(frame, &answer)
}

func (k *kept) once(key string) {
	answer, err := k.ask(map[string]any{"tool": "append", "args": []string{"-c", script, "sh", key, "0.005"}, "cwd": k.l.root, "idempotency_key": key})
	if err != nil || answer.Error != "" || answer.ExitCode != 0 || answer.Stdout == "" {
		k.l.t.Errorf("%s: %+v, %v", key, answer, err)
	}
}

// TestUpgradeToBroken: what does not become ready, whatever it is, changes nothing and
// is told.
func TestUpgradeToBroken(t *testing.T) {
	t.Parallel()
	l := newLedger(t, buildDaemon(t), "file")
	before := l.status()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	k := l.dial()
	defer k.Close()
	for _, c := range []struct{ binary, says string }{
		{filepath.Join(dir, "none"), "no such file"},
		{write("text", "no program"), "exec format error"},
		{write("ends", "#!/bin/sh\nexit 3\n"), "exit status 3"},
		{"relative", "absolute path"},
	} {
		_, err := l.upgrade(c.binary)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.binary, err)
		}
		if pid := l.status(); pid != before {
			t.Fatalf("%s: process %d serves, not %d", c.binary, pid, before)
		}
		l.once("after-"+filepath.Base(c.binary), "0")
		k.once("kept-after-" + filepath.Base(c.binary))
	}
	// A tool that serves and would not any longer.
	l.refuseIn(dir, "not served", func(binary string) {
		_, err := l.upgrade(binary)
		if err == nil || !strings.Contains(err.Error(), "does not serve the tool append") {
			t.Errorf("a daemon without a tool: %v", err)
		}
	})
	if pid := l.status(); pid != before {
		t.Fatalf("process %d serves, not %d", pid, before)
	}
	if left, err := filepath.Glob(filepath.Join(l.daemon.flag("--state"), "upgrade-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// refuseIn makes a program in dir that is the daemon, with a folder of tools in which
// the tool of l is broken.
func (l *ledger) refuseIn(dir, name string, f func(binary string)) {
	l.t.Helper()
	tools := filepath.Join(dir, "tools.d")
	if err := os.MkdirAll(filepath.Join(tools, "append"), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tools, "append", "tool.json"), []byte("{"), 0o644); err != nil {
		l.t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	text := fmt.Sprintf("#!/bin/sh\nexec '%s' \"$@\" --tools '%s'\n", l.daemon.name, tools)
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		l.t.Fatal(err)
	}
	f(file)
}
