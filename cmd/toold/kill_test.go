package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// kills is how often TestKill kills, on each store. The default is enough to
// meet most moments of a call; TOOLD_KILLS=100 is the whole.
func kills(t *testing.T) int { return hosttest.Kills(t, 5) }

// victim is a process that is killed and started again.
type victim struct {
	t     *testing.T
	name  string
	args  []string
	until string // what it says when it serves
	cmd   *exec.Cmd
	ended chan struct{}
	log   *os.File
}

func (v *victim) start() {
	v.t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		v.t.Fatal(err)
	}
	v.cmd = exec.Command(v.name, v.args...)
	v.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + v.t.TempDir(), "TZ=UTC"}
	v.cmd.Stdout, v.cmd.Stderr = w, v.log
	if err := v.cmd.Start(); err != nil {
		v.t.Fatal(err)
	}
	w.Close()
	said := make(chan bool, 1)
	v.ended = make(chan struct{})
	go func() {
		defer close(v.ended)
		defer out.Close()
		told := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !told && strings.Contains(lines.Text(), v.until) {
				told = true
				said <- true
			}
		}
		v.cmd.Wait()
		if !told {
			said <- false
		}
	}()
	if !<-said {
		text, _ := os.ReadFile(v.log.Name())
		v.t.Fatalf("%s ended before it served:\n%s", filepath.Base(v.name), text)
	}
}

// flag is the value of one of its flags.
func (v *victim) flag(name string) string { return v.args[slices.Index(v.args, name)+1] }

// kill is kill -9.
func (v *victim) kill() {
	v.cmd.Process.Kill()
	<-v.ended
}

// TestKill kills the daemon, Redis or both at random moments while callers
// append to a ledger that is synced, and holds the layer to what it promises:
// no key runs twice, no result that a caller was given is lost, and a call
// that was cut off has run to its end, or not at all, or is OUTCOME_UNKNOWN.
func TestKill(t *testing.T) {
	t.Parallel()
	program := daemonProgram(t)
	for _, store := range []string{"file", "redis"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			newLedger(t, program, store).run(kills(t))
		})
	}
}

// daemonProgram is the program that is killed and upgraded: the one of make build, which
// all tests share. Linking one takes longer than most of them.
func daemonProgram(t *testing.T) string {
	t.Helper()
	return filepath.Join(hosttest.Programs(t), "toold")
}

// Two daemons that share a Redis, and the key by which they name callers, run
// a key once between them. When the one that runs it is killed, those who wait
// at the other are told when its lease has passed, and not at their timeouts.
func TestTwoDaemonsOneRedis(t *testing.T) {
	t.Parallel()
	l := newLedger(t, daemonProgram(t), "redis")
	dir := t.TempDir()
	key, err := os.ReadFile(filepath.Join(l.daemon.flag("--state"), "host.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "host.key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	other := &ledger{t: t, root: l.root, socket: l.socket + "2"}
	second := *l.daemon
	second.args = append(slices.Clone(l.daemon.args), "--state", dir, "--socket", other.socket) // the last counts
	second.start()
	defer second.kill()
	ask := func(l *ledger, c *ledgerCall) *wire.Result {
		res, err := l.ask(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	done := &ledgerCall{key: "done", args: []string{"-c", script, "sh", "done", "0"}}
	if res := ask(l, done); res.Err != nil || res.FromCache {
		t.Fatalf("%+v", res)
	}
	if res := ask(other, done); res.Err != nil || !res.FromCache {
		t.Errorf("the other daemon: %+v", res)
	}
	cut := &ledgerCall{key: "cut", args: []string{"-c", script, "sh", "cut", "250"}}
	go l.ask(t.Context(), cut)
	for deadline := time.Now().Add(30 * time.Second); l.lines()["cut"] == 0; {
		if time.Now().After(deadline) {
			t.Fatal("it does not begin")
		}
		runtime.Gosched()
	}
	var wg sync.WaitGroup
	for range 49 {
		wg.Go(func() {
			res, err := other.ask(t.Context(), cut)
			if err != nil || res.Err == nil || res.Err.Code != fault.OutcomeUnknown {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
	start := time.Now()
	l.daemon.kill()
	wg.Wait()
	took := time.Since(start)
	t.Logf("49 that waited at the other daemon were told %v after the kill", took.Round(time.Millisecond))
	if n := l.lines()["cut"]; n != 1 || took > 25*time.Second {
		t.Errorf("it ran %d times; they were told after %v", n, took)
	}
}

// ledger is a daemon with a mutating tool, what the tool did, and what callers
// were told.
type ledger struct {
	t             *testing.T
	daemon, redis *victim
	socket, root  string

	mu    sync.Mutex
	calls []*ledgerCall // guarded by mu, as is what they hold until the callers have ended
}

// ledgerCall is one key.
type ledgerCall struct {
	key   string
	args  []string
	acked bool // a caller was told that it succeeded
	cut   int  // how often its connection was cut off
	codes []fault.Code
}

func newLedger(t *testing.T, program, store string) *ledger {
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := &ledger{t: t, socket: filepath.Join(dir, "tool.sock"), root: filepath.Join(dir, "work")}
	for _, d := range []string{l.root, filepath.Join(dir, "redis")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	def := map[string]any{
		"binary": "/bin/sh", "mutating": true, "stdin": false,
		"capabilities": map[string]any{"exec": []string{"/usr/bin", "/bin"}},
		"limits":       map[string]any{"concurrency": 64},
	}
	tools := filepath.Join(dir, "tools.d")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	hosttest.WriteTool(t, tools, "append", def, nil)
	logOf := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	where := store
	if store == "redis" {
		redis, err := exec.LookPath("redis-server")
		if err != nil {
			t.Skip("redis-server is not installed; make test fetches it")
		}
		port := freePort(t)
		where = fmt.Sprintf("redis://127.0.0.1:%d/0", port)
		l.redis = &victim{t: t, name: redis, until: "Ready to accept connections", log: logOf("redis.log"), args: []string{
			"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", filepath.Join(dir, "redis"),
			"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", "--save", "",
		}}
		l.redis.start()
		t.Cleanup(func() { l.redis.kill() })
	}
	l.daemon = &victim{t: t, name: program, until: "ready", log: logOf("toold.log"), args: []string{
		"--tools", tools, "--root", l.root, "--socket", l.socket, "--state", filepath.Join(dir, "state"),
		"--store", where, "--reliability", "all", "--log-level", "warn",
	}}
	l.daemon.start()
	t.Cleanup(func() { l.daemon.kill() })
	return l
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// script appends a line, syncs it, and takes a while.
const script = `echo "$1" >> ledger && sync ledger && sleep "$2" && echo "did $1"`

// ask makes the call of one key once.
func (l *ledger) ask(ctx context.Context, c *ledgerCall) (*wire.Result, error) {
	var out strings.Builder
	res, err := client.Stream(ctx, l.socket, &wire.Call{
		Tool: "append", Args: c.args, Cwd: l.root, IdempotencyKey: c.key,
	}, wire.Local{Stdout: &out, Stderr: io.Discard})
	if err != nil {
		return nil, err
	}
	if res.Err == nil && res.ExitCode == 0 && out.String() != "did "+c.key+"\n" {
		l.t.Errorf("%s answers %q", c.key, out.String())
	}
	return res, nil
}

// caller makes one call after the other, each with a new key, and comes again
// with the same key where it was cut off or told to.
func (l *ledger) caller(ctx context.Context, id int) {
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("key-%d-%d", id, n)
		c := &ledgerCall{key: key, args: []string{"-c", script, "sh", key, fmt.Sprintf("0.%03d", rand.IntN(40))}}
		l.mu.Lock()
		l.calls = append(l.calls, c)
		l.mu.Unlock()
		for again := true; again && ctx.Err() == nil; {
			// On Redis a call that was cut off is PENDING until its lease has
			// passed: nobody waits for that before the end.
			brief, cancel := context.WithTimeout(ctx, 3*time.Second)
			res, err := l.ask(brief, c)
			cancel()
			again = l.note(c, res, err)
		}
	}
}

// note writes down an answer and reports whether the caller comes again.
func (l *ledger) note(c *ledgerCall, res *wire.Result, err error) (again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, client.ErrNoDaemon):
		return true
	case err != nil:
		c.cut++
		return c.cut < 3 && rand.IntN(2) == 0
	case res.Err == nil && res.ExitCode == 0:
		c.acked = true
		return false
	case res.Err == nil:
		l.t.Errorf("%s exited with %d", c.key, res.ExitCode)
		return false
	}
	c.codes = append(c.codes, res.Err.Code)
	switch res.Err.Code {
	case fault.StoreUnavailable, fault.Overloaded:
		return true
	case fault.OutcomeUnknown, fault.IdempotencyPending:
		return false
	}
	l.t.Errorf("%s: %v", c.key, res.Err)
	return false
}

func (l *ledger) run(kills int) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() { l.caller(ctx, i) })
	}
	killed := map[string]int{}
	for range kills {
		// A random moment under load: nothing that happens is waited for.
		<-time.After(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		daemon, redis := true, false
		if l.redis != nil {
			which := rand.IntN(3)
			daemon, redis = which != 1, which != 0
		}
		switch {
		case daemon && redis:
			killed["both"]++
		case daemon:
			killed["daemon"]++
		default:
			killed["redis"]++
		}
		if redis {
			l.redis.kill()
		}
		if daemon {
			l.daemon.kill()
		}
		if redis {
			l.redis.start()
		}
		if daemon {
			l.daemon.start()
		}
	}
	stop()
	callers.Wait()
	l.check(killed)
}

// check asks for every key once more, when nothing is killed any longer.
func (l *ledger) check(killed map[string]int) {
	t := l.t
	before := l.lines()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var acked, cut, unknown, replayed, ran int
	var completed []string
	work := make(chan *ledgerCall)
	for range 32 {
		wg.Go(func() {
			for c := range work {
				// Longer than a lease, which a dead owner may still hold.
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				res, err := l.ask(ctx, c)
				cancel()
				if err != nil {
					t.Errorf("%s: %v", c.key, err)
					continue
				}
				mu.Lock()
				was := before[c.key]
				switch {
				case res.Err == nil && res.FromCache:
					replayed++
					completed = append(completed, c.key)
				case res.Err == nil:
					ran++
					if was != 0 || c.acked {
						t.Errorf("%s ran again: %+v", c.key, c)
					}
				case res.Err.Code == fault.OutcomeUnknown:
					unknown++
					if c.acked {
						t.Errorf("%s: a caller was told that it succeeded, and now %v", c.key, res.Err)
					}
				default:
					t.Errorf("%s: %v", c.key, res.Err)
				}
				if c.acked {
					acked++
				}
				if c.cut > 0 {
					cut++
				}
				mu.Unlock()
			}
		})
	}
	for _, c := range l.calls {
		work <- c
	}
	close(work)
	wg.Wait()
	doubles := 0
	after := l.lines()
	for _, key := range completed {
		if after[key] != 1 {
			t.Errorf("%s is answered from its record and ran %d times", key, after[key])
		}
	}
	for key, n := range after {
		if n > 1 {
			doubles++
			t.Errorf("%s ran %d times", key, n)
		}
	}
	t.Logf("kills %v: %d keys, %d acknowledged, %d cut off; afterwards %d from the record, %d OUTCOME_UNKNOWN, %d had never begun; %d ran twice",
		killed, len(l.calls), acked, cut, replayed, unknown, ran, doubles)
	if acked == 0 || unknown == 0 && len(l.calls) > 100 {
		t.Error("the kills met no call: nothing was tested")
	}
}

// lines counts the lines of the ledger by key.
func (l *ledger) lines() map[string]int {
	n := map[string]int{}
	b, err := os.ReadFile(filepath.Join(l.root, "ledger"))
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		n[strings.TrimSuffix(line, "\n")]++
	}
	return n
}
