package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
)

func TestSchedule(t *testing.T) {
	start := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	const ms = time.Millisecond
	s := newSchedule(100*ms, 5*time.Second, start)
	at := func(after time.Duration) time.Time { return start.Add(after) }
	expect := func(after time.Duration, names string, all bool) {
		t.Helper()
		got, gotAll := s.take(at(after))
		if strings.Join(got, " ") != names || gotAll != all {
			t.Errorf("at %v: got %v, %v, want %q, %v", after, got, gotAll, names, all)
		}
	}
	next := func(after time.Duration) {
		t.Helper()
		if got := s.next(); !got.Equal(at(after)) {
			t.Errorf("next is %v after the start, want %v", got.Sub(start), after)
		}
	}
	next(5 * time.Second)
	s.touch("git", at(0))
	next(100 * ms)
	s.touch("git", at(60*ms))
	s.touch("gh", at(70*ms))
	next(160 * ms)
	expect(159*ms, "", false)
	expect(160*ms, "git", false)
	expect(160*ms, "", false)
	expect(170*ms, "gh", false)
	next(5 * time.Second)
	// One that never rests is looked at all the same.
	for n := range 50 {
		s.touch("busy", at(time.Second+time.Duration(n)*50*ms))
		if names, _ := s.take(at(time.Second + time.Duration(n)*50*ms)); names != nil {
			if n != 20 {
				t.Errorf("taken at the %dth touch", n)
			}
			break
		}
	}
	s.touch(everything, at(3*time.Second))
	s.touch("git", at(3*time.Second))
	expect(3100*ms, "git", true)
	expect(4999*ms, "", false)
	expect(5000*ms, "", true)
	next(10 * time.Second)
}

// watch runs Watch until the end of the test, with no help from the slow look.
func (b *fixture) watch() *fixture {
	b.t.Helper()
	b.open()
	notifier, err := fsnotify.NewWatcher()
	if err != nil {
		b.t.Fatal(err)
	}
	b.notifier = notifier
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error)
	go func() { done <- b.c.watch(ctx, notifier, time.Hour) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
	return b
}

// await waits for the next event of a tool, other than that a generation was
// closed, and forgets it. Those in passing may come before it: on a busy
// machine a file that is written in place stays half written for longer than
// it takes to be looked at.
func (b *fixture) await(tool string, want Change, passing ...Change) Event {
	b.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		b.mu.Lock()
		if b.wake == nil {
			b.wake = make(chan struct{}, 1)
		}
		for i, e := range b.events {
			if e.Tool != tool || e.Change == Closed || slices.Contains(passing, e.Change) {
				continue
			}
			b.events = append(b.events[:i], b.events[i+1:]...)
			b.mu.Unlock()
			if e.Change != want {
				b.t.Errorf("%s: %s (%v), want %s", tool, e.Change, e.Err, want)
			}
			return e
		}
		b.mu.Unlock()
		select {
		case <-b.wake:
		case <-timeout:
			buf := make([]byte, 1<<20)
			b.t.Fatalf("%s: not %s in 20 s\n%s", tool, want, buf[:runtime.Stack(buf, true)])
		}
	}
}

func TestWatch(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("1")), "u/handler.wasm": string(handler("u"))})
	b.watch()
	b.await("t", Loaded)
	b.await("u", Loaded)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Run("rename into place", func(t *testing.T) {
		b.write(map[string]string{"t/handler.wasm": string(handler("2"))})
		b.await("t", Swapped)
		b.is("t", "| 2")
	})
	t.Run("write in place", func(t *testing.T) {
		must(os.WriteFile(b.path("t/handler.wasm"), handler("3"), 0o644))
		b.await("t", Swapped, Failed)
		b.happened("t")
		b.is("t", "| 3")
	})
	t.Run("half-written", func(t *testing.T) {
		data := handler("4")
		f, err := os.OpenFile(b.path("t/handler.wasm"), os.O_WRONLY|os.O_TRUNC, 0)
		must(err)
		_, err = f.Write(data[:len(data)/2])
		must(err)
		b.await("t", Failed)
		b.is("t", "| 3")
		_, err = f.Write(data[len(data)/2:])
		must(err)
		must(f.Close())
		b.await("t", Swapped)
		b.is("t", "| 4")
	})
	t.Run("an editor", func(t *testing.T) {
		b.write(map[string]string{"t/tool.json": `{"description": "before"}`})
		b.await("t", Swapped)
		must(os.WriteFile(b.path("t/.tool.json.swp"), []byte("x"), 0o600))
		must(os.WriteFile(b.path("t/4913"), nil, 0o600))
		must(os.Remove(b.path("t/4913")))
		must(os.Rename(b.path("t/tool.json"), b.path("t/tool.json~")))
		must(os.WriteFile(b.path("t/tool.json"), []byte(`{"description": "after"}`), 0o644))
		must(os.Chmod(b.path("t/tool.json"), 0o600))
		must(os.Remove(b.path("t/tool.json~")))
		must(os.Remove(b.path("t/.tool.json.swp")))
		b.await("t", Swapped)
		if s := b.status("t"); s.Description != "after" {
			t.Errorf("description %q", s.Description)
		}
	})
	t.Run("a handler in a folder of its own", func(t *testing.T) {
		b.write(map[string]string{"t/lib/m.wasm": string(handler("5")), "t/tool.json": `{"handler": "lib/m.wasm"}`})
		b.await("t", Swapped)
		b.write(map[string]string{"t/lib/m.wasm": string(handler("6"))})
		b.await("t", Swapped)
		b.is("t", "| 6")
	})
	t.Run("folder replaced by another", func(t *testing.T) {
		b.write(map[string]string{".new/handler.wasm": string(handler("7"))})
		must(os.Rename(b.path("t"), b.path(".old")))
		must(os.Rename(b.path(".new"), b.path("t")))
		must(os.RemoveAll(b.path(".old")))
		b.await("t", Swapped)
		b.is("t", "| 7")
		b.write(map[string]string{"t/handler.wasm": string(handler("8"))})
		b.await("t", Swapped)
		b.is("t", "| 8")
	})
	t.Run("folder removed and made again", func(t *testing.T) {
		b.remove("t")
		b.await("t", Removed)
		b.refused("t", fault.UnknownTool)
		b.write(map[string]string{"t/handler.wasm": string(handler("9"))})
		b.await("t", Loaded)
		b.is("t", "| 9")
		must(os.WriteFile(b.path("t/handler.wasm"), handler("10"), 0o644))
		b.await("t", Swapped, Failed)
		b.happened("t")
		b.is("t", "| 10")
	})
	t.Run("folder moved away and back", func(t *testing.T) {
		must(os.Rename(b.path("t"), b.path(".away")))
		must(os.Rename(b.path(".away"), b.path("t")))
		b.look("t")
		b.happened("t")
		b.watched("t")
		b.write(map[string]string{"t/handler.wasm": string(handler("10b"))})
		b.await("t", Swapped)
		b.is("t", "| 10b")
	})
	t.Run("mode", func(t *testing.T) {
		must(os.Chmod(b.path("t/handler.wasm"), 0o666))
		b.await("t", Failed)
		must(os.Chmod(b.path("t/handler.wasm"), 0o644))
		b.write(map[string]string{"t/handler.wasm": string(handler("11"))})
		b.await("t", Swapped)
	})
	t.Run("fallback", func(t *testing.T) {
		b.write(map[string]string{"restricted/t.wasm": string(policy("f"))})
		b.await("t", Swapped)
		b.is("t", "f | 11")
		b.is("u", "| u")
	})
	t.Run("for all", func(t *testing.T) {
		b.write(map[string]string{"restricted/_all.wasm": string(policy("a"))})
		b.await("t", Swapped)
		b.await("u", Swapped)
		b.is("t", "a f | 11")
		b.is("u", "a | u")
		b.remove("restricted/_all.wasm")
		b.await("t", Broken)
		b.await("u", Broken)
		b.write(map[string]string{"restricted/_all.none": ""})
		b.await("t", Loaded)
		b.await("u", Loaded)
		b.is("t", "f | 11")
	})
	t.Run("policy removed", func(t *testing.T) {
		b.remove("restricted/t.wasm")
		b.await("t", Broken)
		b.refused("t", fault.ToolBroken, "had a policy")
		b.write(map[string]string{"t/tool.json": `{"policy": "none"}`})
		b.await("t", Loaded)
	})
	t.Run("a new tool, written slowly", func(t *testing.T) {
		must(os.Mkdir(b.path("v"), 0o755))
		must(os.WriteFile(b.path("v/handler.wasm"), handler("v"), 0o644))
		b.await("v", Loaded, Broken)
		b.happened("v")
		b.is("v", "| v")
	})
	t.Run("tools.d moved away and back", func(t *testing.T) {
		must(os.Rename(b.dir, b.dir+".away"))
		b.await("u", Removed)
		b.await("v", Removed)
		must(os.Rename(b.dir+".away", b.dir))
		b.await("v", Loaded)
		b.await("u", Loaded)
		b.write(map[string]string{"u/handler.wasm": string(handler("u2"))})
		b.await("u", Swapped)
	})
}

// watched waits until the folder of a tool is.
func (b *fixture) watched(name string) {
	b.t.Helper()
	want, err := filepath.EvalSymlinks(b.path(name))
	if err != nil {
		b.t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !slices.Contains(b.notifier.WatchList(), want); runtime.Gosched() {
		if time.Now().After(end) {
			b.t.Fatalf("%s is not watched", name)
		}
	}
}

func TestWatchKubernetes(t *testing.T) {
	b := newFixture(t)
	top := filepath.Dir(b.dir)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// The whole of tools.d is one ConfigMap with nested paths, and is itself
	// a link through ..data.
	put := func(n int) {
		t.Helper()
		v := fmt.Sprintf("..v%d", n)
		dir := filepath.Join(top, v, "tools.d", "t")
		must(os.MkdirAll(dir, 0o755))
		must(os.WriteFile(filepath.Join(dir, "handler.wasm"), handler(fmt.Sprint(n)), 0o644))
		must(os.WriteFile(filepath.Join(dir, "restricted.wasm"), policy(fmt.Sprint(n)), 0o644))
		must(os.Symlink(v, filepath.Join(top, "..tmp")))
		must(os.Rename(filepath.Join(top, "..tmp"), filepath.Join(top, "..data")))
		os.RemoveAll(filepath.Join(top, fmt.Sprintf("..v%d", n-1)))
	}
	must(os.Remove(b.dir))
	put(1)
	must(os.Symlink("..data/tools.d", b.dir))
	b.watch()
	b.await("t", Loaded)
	for n := 2; n < 6; n++ {
		put(n)
		b.await("t", Swapped)
		b.is("t", fmt.Sprintf("%d | %d", n, n))
	}
}

// TestRestat: without notice of changes, the slow look sees them.
func TestRestat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		b.write(map[string]string{"t/handler.wasm": string(handler("1"))})
		b.open()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.c.watch(ctx, nil, restat) }()
		b.await("t", Loaded)
		b.write(map[string]string{"t/handler.wasm": string(handler("2")), "u/handler.wasm": string(handler("u"))})
		b.await("t", Swapped)
		b.await("u", Loaded)
		b.remove("u")
		b.await("u", Removed)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.c.Close()
	})
}

// TestNoticeLost: when events are lost, everything is looked at.
func TestNoticeLost(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("1"))})
	b.watch()
	b.await("t", Loaded)
	// After this one, what was to be looked at at the start has been.
	b.write(map[string]string{"t/handler.wasm": string(handler("1b"))})
	b.await("t", Swapped)
	for _, dir := range b.notifier.WatchList() {
		if err := b.notifier.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	b.write(map[string]string{"t/handler.wasm": string(handler("2"))})
	b.notifier.Errors <- fsnotify.ErrEventOverflow
	b.await("t", Swapped)
}

// TestWatchEnds: Close ends Watch, and nothing of it stays.
func TestWatchEnds(t *testing.T) {
	engine := testEngine(t)
	goroutines, fds := runtime.NumGoroutine(), openFiles(t)
	for range 10 {
		b := newFixture(t)
		b.cfg.Engine = engine
		b.write(map[string]string{"t/handler.wasm": string(handler("h"))})
		b.open()
		done := make(chan error)
		go func() { done <- b.c.Watch(context.Background()) }()
		b.await("t", Loaded)
		b.write(map[string]string{"t/handler.wasm": string(handler("i"))})
		b.await("t", Swapped)
		if err := b.c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := b.c.Watch(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	noMore(t, goroutines, fds)
}

// TestStillWritten: a folder that has only just been written is left to rest
// before it is read, so that a tool is not loaded before its policy is there.
func TestStillWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		b.open()
		b.write(map[string]string{"t/handler.wasm": string(handler("h"))})
		type answer struct {
			marks string
			err   error
		}
		got := make(chan answer, 1)
		go func() {
			tool, release, err := b.c.Acquire(t.Context(), "t")
			if err != nil {
				got <- answer{"", err}
				return
			}
			defer release()
			m, err := marks(t.Context(), tool)
			got <- answer{m, err}
		}()
		for range 5 {
			synctest.Wait()
			select {
			case a := <-got:
				t.Fatalf("answered %+v while the folder was being written", a)
			default:
			}
			time.Sleep(60 * time.Millisecond)
			b.write(map[string]string{"t/tool.json": fmt.Sprintf(`{"timeout": %d}`, time.Now().UnixNano()%1000+1)})
		}
		b.write(map[string]string{"t/restricted.wasm": string(policy("p"))})
		if a := <-got; a.marks != "p | h" || a.err != nil {
			t.Errorf("got %+v", a)
		}
		b.c.Close()
	})
}

// TestNeverStill: one that is rewritten all the time does not keep a caller
// waiting for ever, and what served goes on.
func TestNeverStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		b.write(map[string]string{"old/handler.wasm": string(handler("1"))})
		b.open()
		stop := make(chan struct{})
		go func() {
			for n := 0; ; n++ {
				b.write(map[string]string{"new/handler.wasm": string(handler(fmt.Sprint(n))), "old/handler.wasm": string(handler(fmt.Sprint(n)))})
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
		time.Sleep(10 * time.Millisecond)
		b.c.reconcile("old")
		start := time.Now()
		b.refused("new", fault.ToolBroken, "keep changing", "rename them into place")
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("refused after %v", took)
		}
		b.look("old")
		b.is("old", "| 1")
		if s := b.status("old"); s.State != StateStale || !strings.Contains(s.Reason, "keep changing") {
			t.Errorf("status %+v", s)
		}
		close(stop)
		time.Sleep(time.Second)
		// It is tried again without a change, since it is no fault of the files.
		b.look("new")
		tool, release, err := b.c.Acquire(t.Context(), "new")
		if err != nil {
			t.Fatal(err)
		}
		if m, err := marks(t.Context(), tool); err != nil || !strings.HasPrefix(m, "| ") {
			t.Errorf("got %q, %v", m, err)
		}
		release()
		b.c.Close()
	})
}

// TestRetries: what fails without a fault of the files is tried again, less and
// less often.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		b.open()
		if err := os.RemoveAll(b.cfg.StateDir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.cfg.StateDir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		b.write(map[string]string{"t/handler.wasm": string(handler("h")), "t/restricted.wasm": string(policy("p"))})
		b.refused("t", fault.ToolBroken)
		tries := func() int {
			b.c.mu.Lock()
			defer b.c.mu.Unlock()
			return b.c.tools["t"].failure.tries
		}
		start := time.Now()
		var at []time.Duration
		for last := tries(); time.Since(start) < 20*time.Minute; time.Sleep(5 * time.Second) {
			b.look("t")
			if n := tries(); n != last {
				at, last = append(at, time.Since(start).Round(time.Second)), n
			}
		}
		// Looking takes as long as settling, since these files are from the future.
		if len(at) < 6 || len(at) > 12 || at[0] != 0 || at[1] > 10*time.Second || at[len(at)-1]-at[len(at)-2] < 5*time.Minute {
			t.Errorf("tried at %v", at)
		}
		// A change of the files is a reason to try at once.
		n := tries()
		b.write(map[string]string{"t/handler.wasm": string(handler("i"))})
		b.look("t")
		if tries() != n+1 {
			t.Error("a change was no reason to try again")
		}
		b.c.Close()
	})
}

// due makes it time to look at a tool that does not load, and looks.
func (b *fixture) due(name string) {
	b.t.Helper()
	b.c.mu.Lock()
	b.c.tools[name].failure.retryAt = time.Time{}
	b.c.mu.Unlock()
	b.look(name)
}

// TestWrittenUnseen: a module that was read half written is loaded once it is whole,
// though neither a notice nor its times say that it changed. A mapping does that.
func TestWrittenUnseen(t *testing.T) {
	b := newFixture(t).open()
	module := handler("whole")
	b.write(map[string]string{"t/handler.wasm": strings.Repeat("\x00", len(module))})
	f, err := os.OpenFile(b.path("t/handler.wasm"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, len(module), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	mapped[0] = 1 // the times are those of the first write to a page
	b.refused("t", fault.ToolBroken, "not a WebAssembly module")
	copy(mapped, module[:len(module)/2])
	b.due("t")
	b.refused("t", fault.ToolBroken, "t/handler.wasm")
	copy(mapped, module)
	b.due("t")
	b.is("t", "| whole")
}

// TestLoadedWithoutChange: a tool that lacked something of the host is loaded once that
// is there.
func TestLoadedWithoutChange(t *testing.T) {
	b := newFixture(t).open()
	folder := filepath.Join(t.TempDir(), "data")
	b.write(map[string]string{"t/handler.wasm": string(handler("h")), "t/tool.json": fmt.Sprintf(`{"capabilities": {"files": {"/data": {"path": %q}}}}`, folder)})
	b.refused("t", fault.ToolBroken, "correct capabilities.files")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	b.look("t")
	b.refused("t", fault.ToolBroken, "correct capabilities.files")
	b.due("t")
	b.is("t", "| h")
}

// TestLooksAtBroken: looking again at files that are the same becomes rare, and does not
// run setup.sh.
func TestLooksAtBroken(t *testing.T) {
	b := newFixture(t).withRunner().open()
	b.write(map[string]string{"t/handler.wasm": string(handler("h")), "t/setup.sh": "echo run >> runs; exit 1"})
	b.refused("t", fault.ToolBroken, "exit code 1")
	for range 12 {
		b.due("t")
	}
	if runs, err := os.ReadFile(b.path("t/runs")); string(runs) != "run\n" {
		t.Errorf("setup.sh ran: %q, %v", runs, err)
	}
	b.c.mu.Lock()
	later := time.Until(b.c.tools["t"].failure.retryAt)
	b.c.mu.Unlock()
	if later < 4*time.Minute || later > 6*time.Minute {
		t.Errorf("the next look is in %v", later)
	}
	// A change is a reason to look at once, and to look often for what follows it.
	b.write(map[string]string{"t/setup.sh": "echo again >> runs; exit 2"})
	b.look("t")
	b.refused("t", fault.ToolBroken, "exit code 2")
	b.c.mu.Lock()
	soon := time.Until(b.c.tools["t"].failure.retryAt)
	b.c.mu.Unlock()
	if soon > restat {
		t.Errorf("the next look after a change is in %v", soon)
	}
}

// TestMisnamed: what is a tool but for its name or place is not ignored without a word.
func TestMisnamed(t *testing.T) {
	b := newFixture(t)
	var log bytes.Buffer
	b.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	b.open()
	long := strings.Repeat("n", 65)
	b.write(map[string]string{
		"fine/handler.wasm": string(handler("f")), long[1:] + "/handler.wasm": string(handler("64")),
		"My Tool/handler.wasm": string(handler("m")), long + "/tool.json": "{}", "greet.wasm": string(handler("g")),
		".hidden/tool.json": "{}", "NOTES/README": "none", "README.md": "none", "lost+found/x": "",
	})
	want := map[string]string{
		"My Tool":    "such as my-tool",
		long:         "has 65 characters, and a tool's at most 64, as clients of MCP take no more; choose a shorter one",
		"greet.wasm": filepath.Join(b.dir, "greet", "handler.wasm"),
	}
	for _, s := range b.c.Misnamed() {
		if text, ok := want[s.Name]; !ok || s.State != StateBroken || !strings.Contains(s.Reason, text) {
			t.Errorf("%s: %s: %s", s.Name, s.State, s.Reason)
		}
		delete(want, s.Name)
	}
	if len(want) > 0 {
		t.Errorf("nothing is said of %v", want)
	}
	b.look("fine", long[1:])
	b.is(long[1:], "| 64")
	w := &watcher{c: b.c}
	for range 2 {
		w.reconcileAll()
	}
	if n := strings.Count(log.String(), "no tool, though"); n != 3 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
	b.refused("My Tool", fault.UnknownTool)
}

// TestLeaving: a caller whose context ends while a tool loads leaves.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		b.open()
		b.write(map[string]string{"t/handler.wasm": string(handler("h"))})
		for _, tt := range []struct {
			with func(context.Context) (context.Context, context.CancelFunc)
			code fault.Code
		}{
			{func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, settle/10)
			}, fault.Timeout},
			{func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(settle/10, cancel)
				return ctx, cancel
			}, fault.Aborted},
		} {
			ctx, cancel := tt.with(t.Context())
			_, _, err := b.c.Acquire(ctx, "t")
			cancel()
			var e *fault.Error
			if !errors.As(err, &e) || e.Code != tt.code {
				t.Errorf("got %v, want %s", err, tt.code)
			}
		}
		if s := b.status("t"); s.State != StateLoading {
			t.Errorf("status %+v", s)
		}
		// Close does not wait for the folder to rest.
		start := time.Now()
		b.c.Close()
		if took := time.Since(start); took > settle/10 {
			t.Errorf("closed after %v", took)
		}
	})
}

// TestLooksComeBack: after a flood of unknown names, looks are granted again.
func TestLooksComeBack(t *testing.T) {
	now := time.Unix(0, 0)
	l := looks{left: looksBurst, counted: now}
	granted := 0
	for range 10_000 {
		now = now.Add(time.Millisecond)
		if l.take(now) {
			granted++
		}
	}
	if want := looksBurst + 10*looksSecond; granted < want-2 || granted > want+2 {
		t.Errorf("%d looks in 10 s, want about %d", granted, want)
	}
}

// A look at all tools loads those whose files have changed, appeared or gone, and
// none of the others.
func TestLookAtAllTools(t *testing.T) {
	b := newFixture(t)
	names := []string{"changed", "forbidden", "gone", "guarded", "linked", "same"}
	for _, name := range names {
		b.write(map[string]string{name + "/tool.json": `{"binary": "/bin/true"}`})
	}
	b.write(map[string]string{"elsewhere/tool.json": `{"binary": "/bin/true"}`, "moved/tool.json": `{"binary": "/bin/true"}`})
	b.remove("linked")
	if err := os.Symlink("elsewhere", b.path("linked")); err != nil {
		t.Fatal(err)
	}
	b.open()
	changed := func() (list []string) {
		d, err := disk.Open(b.cfg.Dir, b.cfg.Restricted)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for _, name := range names {
			if !(&watcher{c: b.c}).same(d, name) {
				list = append(list, name)
			}
		}
		return list
	}
	if list := changed(); list != nil {
		t.Errorf("nothing has changed, and these are loaded: %v", list)
	}
	b.write(map[string]string{"changed/tool.json": `{"binary": "/bin/true", "description": "another"}`, "guarded/restricted.sh": "exit 1", "restricted/forbidden.py": "exit()", "new/tool.json": `{"binary": "/bin/true"}`})
	b.remove("gone", "linked")
	if err := os.Symlink("moved", b.path("linked")); err != nil {
		t.Fatal(err)
	}
	if list := changed(); !slices.Equal(list, names[:5]) {
		t.Errorf("changed are %v, want %v", list, names[:5])
	}
	(&watcher{c: b.c}).reconcileAll()
	var loads []<-chan struct{}
	b.c.mu.Lock()
	for _, e := range b.c.tools {
		if e.done != nil {
			loads = append(loads, e.done)
		}
	}
	b.c.mu.Unlock()
	for _, done := range loads {
		<-done
	}
	states := map[string]string{}
	for _, s := range b.c.List() {
		states[s.Name] = s.State
	}
	if states["guarded"] != StateBroken || states["forbidden"] != StateBroken || states["gone"] != "" || states["new"] != StateOK || states["same"] != StateOK {
		t.Errorf("after a look: %v", states)
	}
}
