package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// upgrades is how often TestUpgrades upgrades; make upgrades is the whole.
func upgrades(t *testing.T) int {
	n := 12
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
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // there is none
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000)
	for err == unix.EINTR {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000)
	}
	if n != 1 {
		l.t.Fatalf("process %d does not end: %v", pid, err)
	}
}

// awaitFile waits until a file in the root is as is says, and fails with what if it
// never is.
func (l *ledger) awaitFile(what string, is func() bool) {
	l.t.Helper()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		l.t.Fatal(err)
	}
	defer w.Close()
	if err := w.Add(l.root); err != nil {
		l.t.Fatal(err)
	}
	late := time.After(30 * time.Second)
	for !is() {
		select {
		case <-w.Events:
		case err := <-w.Errors:
			l.t.Fatal(err)
		case <-late:
			l.t.Fatal(what)
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

// askWhileLeaving has binary take the place of the daemon, which fails, and asks for its
// status on the connection on which that was asked for, so that the daemon answers which
// leaves. It returns when that serves again.
func (l *ledger) askWhileLeaving(binary string) {
	l.t.Helper()
	c, err := net.Dial("unix", l.admin().Path())
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	body, err := json.Marshal(adminapi.Upgrade{Binary: binary, Within: "1m"})
	if err != nil {
		l.t.Fatal(err)
	}
	fmt.Fprintf(c, "POST /upgrade HTTP/1.1\r\nHost: toold\r\nContent-Length: %d\r\n\r\n%sGET /status HTTP/1.1\r\nHost: toold\r\n\r\n", len(body), body)
	r := bufio.NewReader(c)
	begun, err := http.ReadResponse(r, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	text, err := io.ReadAll(begun.Body)
	if err != nil || begun.StatusCode != http.StatusAccepted {
		l.t.Fatalf("upgrade: %s %s, %v", begun.Status, text, err)
	}
	// Without an answer it had left before it read the question.
	if status, err := http.ReadResponse(r, nil); err == nil {
		var st adminapi.HostStatus
		if err := json.NewDecoder(status.Body).Decode(&st); err == nil && st.UpgradeError != "" {
			l.t.Errorf("while it leaves it says of an earlier upgrade: %s", st.UpgradeError)
		}
	}
	for end := time.Now().Add(30 * time.Second); ; {
		st, err := l.admin().Status(l.t.Context())
		if err == nil && st.UpgradeError != "" {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("it does not serve again: %+v, %v", st, err)
		}
	}
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
	program := daemonProgram(t)
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
	l := newLedger(t, daemonProgram(t), "file")
	before := l.status()
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	closed := write("not executable", "#!/bin/sh\n")
	if err := os.Chmod(closed, 0o644); err != nil {
		t.Fatal(err)
	}
	k := l.dial()
	defer k.Close()
	// What is no toold and does not end has the descriptor of one that would be.
	endless := filepath.Join(dir, "endless")
	if err := unix.Mkfifo(endless, 0o600); err != nil {
		t.Fatal(err)
	}
	hangs := fmt.Sprintf("read x < '%s'\n", endless)
	for _, c := range []struct{ binary, says string }{
		{write("hangs up", "#!/bin/sh\nexec 3>&-\n"+hangs), "does not end"},
		{write("babbles", "#!/bin/sh\necho babble >&3\n"+hangs), "does not end"},
		{write("is ready and hangs up", "#!/bin/sh\nprintf '{\"ready\": true}' >&3\nexec 3>&-\n"+hangs), "does not end"},
		{write("is ready and babbles", "#!/bin/sh\nprintf '{\"ready\": true}' >&3\nhead -c 100000 /dev/zero >&3\n"+hangs), "does not end"},
		{write("is ready again", "#!/bin/sh\nprintf '{\"ready\": true}' >&3\nprintf '{\"ready\": true}' >&3\n"+hangs), "unknown to this daemon"},
		{filepath.Join(dir, "none"), "no such file"},
		{closed, "permission denied"},
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
	// A daemon that an earlier upgrade left serving does not say of the next one what
	// came of that, not even to whom it answers while it leaves.
	if _, err := l.upgrade(write("hangs up again", "#!/bin/sh\nprintf '{\"ready\": true}' >&3\nexec 3>&-\n"+hangs)); err == nil {
		t.Error("an upgrade to what hangs up")
	}
	l.askWhileLeaving(filepath.Join(dir, "is ready again"))
	if _, err := l.upgrade(filepath.Join(dir, "is ready again")); err == nil || !strings.Contains(err.Error(), "unknown to this daemon") {
		t.Errorf("after another failure: %v", err)
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
	// One that never says anything, and one that would be ready when nobody waits for
	// it any more: who asked gives up, and both end.
	for _, then := range []string{"", fmt.Sprintf("exec '%s' \"$@\"", l.daemon.name)} {
		gate := filepath.Join(dir, "gate")
		os.Remove(gate)
		if err := unix.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		binary := write("waits", fmt.Sprintf("#!/bin/sh\necho begun > '%s/began'\nread x < '%s'\n%s\n", l.root, gate, then))
		ctx, giveUp := context.WithCancel(t.Context())
		told := make(chan error, 1)
		go func() {
			_, err := l.admin().Upgrade(ctx, binary, time.Minute)
			told <- err
		}()
		began := filepath.Join(l.root, "began")
		l.awaitFile("the new program does not begin", func() bool { _, err := os.Stat(began); return err == nil })
		l.once(fmt.Sprint("meanwhile-", len(then)), "0")
		k.once(fmt.Sprint("kept-meanwhile-", len(then)))
		giveUp()
		if err := <-told; err == nil {
			t.Error("an upgrade that was given up")
		}
		os.Remove(began)
		// The next one begins when the one before is over, and its process with it.
		for end := time.Now().Add(30 * time.Second); ; {
			_, err := l.upgrade(filepath.Join(dir, "none"))
			if err == nil || !strings.Contains(err.Error(), "another upgrade is under way") {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		if fd, err := unix.Open(gate, unix.O_WRONLY|unix.O_NONBLOCK, 0); err != unix.ENXIO {
			unix.Close(fd)
			t.Errorf("somebody still waits to become ready: %v", err)
		}
		if pid := l.status(); pid != before {
			t.Fatalf("process %d serves, not %d", pid, before)
		}
		l.once(fmt.Sprint("given-up-", len(then)), "0")
	}
	if left, err := filepath.Glob(filepath.Join(l.daemon.flag("--state"), "upgrade-*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for key, n := range l.lines() {
		if n != 1 {
			t.Errorf("%s ran %d times", key, n)
		}
	}
}

// TestUpgradeToOtherState upgrades to a program whose formats of records and of journals
// are one version newer, and back: what it cannot read it does not take for nothing, so
// that no key runs again; and the older one reads all that it wrote itself.
func TestUpgradeToOtherState(t *testing.T) {
	t.Parallel()
	program := daemonProgram(t)
	dir := t.TempDir()
	replaced := map[string]string{}
	for file, format := range map[string][2]string{
		"host/idempotency/file.go": {"headerFormat = 1", "headerFormat = 2"},
		"host/journal/journal.go":  {"const Version = 2", "const Version = 3"},
	} {
		name := filepath.Join(hosttest.ModuleRoot(), file)
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		other := regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(format[0]), " ", " +")).ReplaceAll(text, []byte(format[1]))
		if bytes.Equal(other, text) {
			t.Fatalf("%s has no %q", file, format[0])
		}
		replaced[name] = filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(replaced[name], other, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file, newer := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "toold-newer")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	// Built as make build does, so that only what differs is compiled.
	build := exec.Command("go", "build", "-trimpath", "-overlay", file, "-o", newer, "./cmd/toold")
	build.Dir = hosttest.ModuleRoot()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l := newLedger(t, program, "file")
	l.stopLast()
	session := func() map[string]any {
		t.Helper()
		var list []map[string]any
		if err := (&client.Sessions{Operator: l.admin()}).Query(t.Context(), "", "sessions", &list); err != nil || len(list) != 1 {
			t.Fatalf("%d sessions, %v", len(list), err)
		}
		return list[0]
	}
	l.once("first", "0")
	made := session()
	if _, err := l.upgrade(newer); err != nil {
		t.Fatal(err)
	}
	if now := session(); now["id"] != made["id"] || now["created"] != made["created"] {
		t.Errorf("the session is %v, and was %v", now, made)
	}
	again := &ledgerCall{key: "first", args: []string{"-c", script, "sh", "first", "0"}}
	if res, err := l.ask(t.Context(), again); err != nil || res.Err == nil {
		t.Errorf("a record that cannot be read: %+v, %v", res, err)
	}
	l.once("second", "0")
	if _, err := l.upgrade(program); err != nil {
		t.Fatal(err)
	}
	if now := session(); now["id"] != made["id"] || now["created"] != made["created"] {
		t.Errorf("back: the session is %v, and was %v", now, made)
	}
	if res, err := l.ask(t.Context(), again); err != nil || res.Err != nil || !res.FromCache {
		t.Errorf("back, a record of its own: %+v, %v", res, err)
	}
	l.once("third", "0")
	for key, n := range l.lines() {
		if n != 1 {
			t.Errorf("%s ran %d times", key, n)
		}
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

// starting waits for the process that a daemon starts to take its place, and until
// it has loaded its tools where loaded is true.
func (l *ledger) starting(of int, loaded bool) (pid int) {
	l.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		tried, _ := filepath.Glob(filepath.Join(l.daemon.flag("--state"), "upgrade-*"))
		if pid != 0 && len(tried) > 0 {
			if !loaded {
				return pid
			}
			for len(tried) > 0 {
				tried, _ = filepath.Glob(filepath.Join(l.daemon.flag("--state"), "upgrade-*"))
			}
			return pid
		}
		children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", of))
		for _, file := range children {
			text, _ := os.ReadFile(file)
			for _, child := range strings.Fields(string(text)) {
				env, _ := os.ReadFile("/proc/" + child + "/environ")
				if strings.Contains(string(env), "TOOLD_UPGRADE_FD=") {
					fmt.Sscan(child, &pid)
				}
			}
		}
	}
	l.t.Fatal("no daemon is started to take the place")
	return 0
}

// awaitLine waits until a call has written its line.
func (l *ledger) awaitLine(key string) {
	l.t.Helper()
	l.awaitFile(key+" does not begin", func() bool {
		text, err := os.ReadFile(filepath.Join(l.root, "ledger"))
		return err == nil && strings.Contains(string(text), key+"\n")
	})
}

// TestUpgradeThatFails takes upgrades to their end in every way but the good one.
func TestUpgradeThatFails(t *testing.T) {
	t.Parallel()
	program := daemonProgram(t)

	// The new daemon is killed while it loads its tools.
	t.Run("killed while it becomes ready", func(t *testing.T) {
		l := newLedger(t, program, "file")
		before := l.status()
		for n := range 5 {
			told := make(chan error, 1)
			go func() {
				_, err := l.upgrade(program)
				told <- err
			}()
			next := l.starting(before, false)
			syscall.Kill(next, syscall.SIGKILL)
			if err := <-told; err == nil || !strings.Contains(err.Error(), "did not become ready") || !strings.Contains(err.Error(), "killed") {
				t.Errorf("%v", err)
			}
			if pid := l.status(); pid != before {
				t.Fatalf("process %d serves, not %d", pid, before)
			}
			l.once(fmt.Sprint("after-", n), "0")
		}
		if pid, err := l.upgrade(program); err != nil || pid == before {
			t.Errorf("the next upgrade: %d, %v", pid, err)
		}
		l.stopLast()
	})

	// The new daemon finds out too late that it cannot listen: the old one serves
	// again, on the same sockets and connections, and calls have only waited.
	t.Run("fails when it takes over", func(t *testing.T) {
		l := newLedger(t, program, "file")
		before := l.status()
		file := filepath.Join(t.TempDir(), "toold")
		if err := os.WriteFile(file, fmt.Appendf(nil, "#!/bin/sh\nexec '%s' \"$@\" --metrics 256.0.0.1:1\n", program), 0o755); err != nil {
			t.Fatal(err)
		}
		k := l.dial()
		defer k.Close()
		k.once("kept")
		var stop atomic.Bool
		var wg sync.WaitGroup
		for id := range 4 {
			wg.Go(func() {
				for n := 0; !stop.Load() && !t.Failed(); n++ {
					l.once(fmt.Sprintf("key-%d-%d", id, n), "0.005")
				}
			})
		}
		for range 3 {
			_, err := l.upgrade(file)
			for err != nil && strings.Contains(err.Error(), "try again") { // it serves again, and not all of it does
				_, err = l.upgrade(file)
			}
			if err == nil || !strings.Contains(err.Error(), "serves again") || !strings.Contains(err.Error(), "metrics") {
				t.Errorf("%v", err)
			}
		}
		stop.Store(true)
		wg.Wait()
		if pid := l.status(); pid != before {
			t.Errorf("process %d serves, not %d", pid, before)
		}
		k.once("kept-after")
		for key, n := range l.lines() {
			if n != 1 {
				t.Errorf("%s ran %d times", key, n)
			}
		}
	})

	// The port of the dashboard has gone to somebody else meanwhile: calls are served
	// without it.
	t.Run("the port of the dashboard is taken", func(t *testing.T) {
		l := newLedger(t, program, "file")
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		file := filepath.Join(t.TempDir(), "toold")
		if err := os.WriteFile(file, fmt.Appendf(nil, "#!/bin/sh\nexec '%s' \"$@\" --dashboard '%s'\n", program, taken.Addr()), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := l.upgrade(file); err != nil {
			t.Fatal(err)
		}
		l.once("served", "0")
		text, err := os.ReadFile(l.daemon.log.Name())
		if err != nil || !strings.Contains(string(text), "has no dashboard") {
			t.Errorf("%v: the log is\n%s", err, text)
		}
		l.stopLast()
	})

	// The old daemon is killed while calls run in it. The new one takes the place when
	// the last process of theirs has ended; who came meanwhile is served.
	t.Run("the old one is killed while it waits for calls", func(t *testing.T) {
		l := newLedger(t, program, "file")
		before := l.status()
		cut := &ledgerCall{key: "cut", args: []string{"-c", `echo "$1" >> ledger; sleep 20; echo "$1-late" >> ledger`, "sh", "cut"}}
		go l.ask(t.Context(), cut)
		l.awaitLine("cut")
		go l.upgrade(program)
		next := l.starting(before, true)
		var wg sync.WaitGroup
		for id := range 4 {
			wg.Go(func() {
				for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
					c := &ledgerCall{key: fmt.Sprint("waited-", id), args: []string{"-c", script, "sh", fmt.Sprint("waited-", id), "0"}}
					if res, err := l.ask(t.Context(), c); err == nil && res.Err == nil {
						return
					}
				}
				t.Error("a call is not served")
			})
		}
		l.daemon.cmd.Process.Kill()
		wg.Wait()
		if pid := l.status(); pid != next {
			t.Errorf("process %d serves, not %d", pid, next)
		}
		res, err := l.ask(t.Context(), cut)
		if err != nil || res.Err == nil || res.Err.Code != fault.OutcomeUnknown {
			t.Errorf("the call that was cut off: %+v, %v", res, err)
		}
		for key, n := range l.lines() {
			if n != 1 || key == "cut-late" {
				t.Errorf("%s ran %d times", key, n)
			}
		}
		l.stopLast()
	})

	// Calls that take long delay the upgrade and nobody else, and are not ended.
	t.Run("long calls", func(t *testing.T) {
		l := newLedger(t, program, "file")
		before := l.status()
		begun := time.Now()
		var long sync.WaitGroup
		long.Go(func() { l.once("long", "8") })
		l.awaitLine("long")
		if _, err := l.admin().Upgrade(t.Context(), program, 4*time.Second); err == nil || !strings.Contains(err.Error(), "calls still run after 4s") {
			t.Errorf("an upgrade that cannot wait: %v", err)
		}
		l.once("after", "0")
		told := make(chan error, 1)
		go func() {
			_, err := l.upgrade(program)
			told <- err
		}()
		next := l.starting(before, true)
		for n := range 3 {
			asked := time.Now()
			l.once(fmt.Sprint("short-", n), "0")
			if took := time.Since(asked); took > 6*time.Second {
				t.Errorf("a call waited %v for another", took)
			}
		}
		if err := <-told; err != nil {
			t.Error(err)
		}
		long.Wait()
		if pid := l.status(); pid != next || time.Since(begun) < 8*time.Second {
			t.Errorf("process %d serves, not %d", pid, next)
		}
		l.stopLast()
	})
}

// TestSocketActivation starts a daemon with the sockets of its unit: who connected
// before it ran is served, and the sockets outlive it.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	program := daemonProgram(t)
	l := newLedger(t, program, "file")
	l.daemon.kill()
	admin := filepath.Join(l.daemon.flag("--state"), "admin.sock")
	listen := func(path string, mode os.FileMode) *os.File {
		os.Remove(path)
		ul, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		ul.SetUnlinkOnClose(false)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		f, err := ul.File()
		if err != nil {
			t.Fatal(err)
		}
		ul.Close()
		t.Cleanup(func() { f.Close() })
		return f
	}
	start := func(files ...*os.File) (*exec.Cmd, *bufio.Scanner, *strings.Builder) {
		// LISTEN_PID is the daemon's own, which only the shell in its place knows.
		cmd := exec.Command("/bin/sh", append([]string{"-c", fmt.Sprintf(`LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=tool:admin exec "$@"`, len(files)), "sh", program}, l.daemon.args...)...)
		cmd.ExtraFiles = files
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
		said := new(strings.Builder)
		cmd.Stderr = said
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, bufio.NewScanner(out), said
	}
	tool, op := listen(l.socket, 0o660), listen(admin, 0o600)
	early := l.dial() // nobody accepts yet
	defer early.Close()
	cmd, out, _ := start(tool, op)
	early.once("early")
	l.once("after", "0")
	if pid := l.status(); pid != cmd.Process.Pid {
		t.Errorf("process %d serves, not %d", pid, cmd.Process.Pid)
	}
	// An upgrade keeps them what they are.
	pid, err := l.upgrade(program)
	if err != nil {
		t.Fatal(err)
	}
	early.once("upgraded")
	for out.Scan() && pid == cmd.Process.Pid {
	}
	syscall.Kill(pid, syscall.SIGTERM)
	l.awaitEnd(pid)
	cmd.Wait()
	for _, path := range []string{l.socket, admin} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("a socket of systemd went with the daemon: %v", err)
		}
	}
	refused := func(says string, files ...*os.File) {
		t.Helper()
		cmd, out, said := start(files...)
		for out.Scan() {
			t.Errorf("%q", out.Text())
			cmd.Process.Kill()
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), says) {
			t.Errorf("%v: %s", err, said)
		}
	}
	refused("no socket of the configuration has its path", listen(l.socket+"-other", 0o600))
	refused("is not a listening", l.daemon.log)
	refused("lets in more than 0600", tool, listen(admin, 0o666))
	refused("is passed twice", tool, tool)
}

// TestUpgradeLetsNoToolIn: what a tool asks on the socket that its caller uses is
// refused, also where it asked the old daemon and the new one would answer, when the
// tool has ended.
func TestUpgradeLetsNoToolIn(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/usr/bin/perl"); err != nil {
		t.Skip("there is no perl")
	}
	program := daemonProgram(t)
	l := newLedger(t, program, "file")
	// Where a tool can see it, and with what confinement lets it connect.
	l.daemon.kill()
	config := filepath.Join(filepath.Dir(l.root), "toold.json")
	if err := os.WriteFile(config, []byte(`{"confine_most": "landlock"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l.socket = filepath.Join(l.root, "tool.sock")
	l.daemon.args = append(l.daemon.args, "--socket", l.socket, "--config", config) // the last counts
	l.daemon.start()
	l.stopLast()
	dir := filepath.Join(l.daemon.flag("--tools"), "attack")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	def, err := json.Marshal(map[string]any{
		"binary": "/usr/bin/perl", "mutating": true, "stdin": false,
		"capabilities": map[string]any{"exec": []string{"/usr/bin", "/bin"}, "network": []string{"unix:" + l.socket}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tool.json"), def, 0o644); err != nil {
		t.Fatal(err)
	}
	// For two seconds it asks, as often as it can, and leaves without the answers.
	// What it leaves behind holds them open for as long as it may.
	const attack = `use IO::Socket::UNIX; $|=1;
my ($path, $request) = @ARGV; my (@kept, $asked);
for (1..40) {
	my $s = IO::Socket::UNIX->new(Peer => $path) or do { print STDERR "$!\n"; next };
	syswrite $s, pack("N", length $request) . $request; push @kept, $s; $asked++;
	select undef, undef, undef, 0.05;
	if ($_ == 1) { open my $f, ">", "began"; }
}
unless (fork) { open STDOUT, ">/dev/null"; open STDERR, ">/dev/null"; sleep 30; }
print "asked $asked\n";`
	request, err := json.Marshal(map[string]any{"tool": "append", "args": []string{"-c", "echo attacked >> ledger"}, "cwd": l.root, "idempotency_key": "attack"})
	if err != nil {
		t.Fatal(err)
	}
	l.once("before", "0")
	for range 2 {
		os.Remove(filepath.Join(l.root, "began"))
		told := make(chan struct{})
		go func() {
			defer close(told)
			res, err := client.Call(context.WithoutCancel(t.Context()), l.socket, &wire.Call{
				Tool: "attack", Cwd: l.root, Args: []string{"-e", attack, l.socket, string(request)},
			})
			if err != nil || res.Err != nil || string(res.Stdout) != "asked 40\n" {
				t.Errorf("the attack: %+v, %s, %v", res, res.Stderr, err)
			}
		}()
		l.awaitFile("the attack does not begin", func() bool {
			_, err := os.Stat(filepath.Join(l.root, "began"))
			return err == nil
		})
		if _, err := l.upgrade(program); err != nil {
			t.Fatal(err)
		}
		<-told
		l.once("after-"+fmt.Sprint(l.status()), "0") // all that came before is answered
	}
	if n := l.lines()["attacked"]; n != 0 {
		t.Errorf("tools called %d times", n)
	}
}
