// Package hosttest runs a whole daemon on a temporary socket, for tests: the
// real host, socket, engine and supervisors, and guests built by the go
// command. A Place is where the program of a tool is tried with its policy and
// without, and a Site a server that records its requests.
//
// A test binary that uses it has a TestMain that calls Main.
package hosttest

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/tools"
)

// Main runs the tests of m, or, in a process that the daemon started from this
// test binary, what that process is for. It returns the exit code.
func Main(m *testing.M) int {
	if raceEnabled && guest.IsCompiler() {
		err := execPlain()
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if code, ok := host.Child(); ok {
		return code
	}
	if len(os.Args) == 3 && os.Args[1] == processVerb {
		return serveProcess(os.Args[2])
	}
	code := m.Run()
	removePlain()
	guests.Lock()
	defer guests.Unlock()
	if guests.dir != "" {
		os.RemoveAll(guests.dir)
	}
	return code
}

// MainWaiting is Main for tests that mostly wait for processes that they started. More of
// them run in parallel than there are processors, unless -parallel is given.
func MainWaiting(m *testing.M) int {
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	return Main(m)
}

// Daemon is a daemon that serves until the test ends.
type Daemon struct {
	*host.Host
	config.Config
	// Root is the one root, a fresh folder unless the configuration names
	// roots.
	Root string

	stop context.CancelFunc
	done chan error
	logs *logBuffer
}

// Wanted reports whether the tests run at this level of confinement or above: all there is,
// or what TOOLD_TEST_CONFINE names.
func Wanted(level confine.Level) bool {
	most, ok := confine.ParseLevel(os.Getenv("TOOLD_TEST_CONFINE"))
	return !ok || most >= level
}

// Judged reports whether system calls of tools are judged: on this system, at the level of
// confinement at which the tests run.
func Judged() bool { return confine.Confinement().Filter && Wanted(confine.Seccomp) }

// Start starts a daemon. What c leaves empty is put into fresh folders of the
// test; with no Tools, tools is an empty folder.
func Start(t testing.TB, c config.Config) *Daemon {
	t.Helper()
	complete(t, &c)
	d := &Daemon{Config: c, Root: c.Roots[0], done: make(chan error, 1), logs: newLogBuffer()}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	var err error
	if d.Host, err = host.New(ctx, c, d.logs); err != nil {
		stop()
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		d.done <- d.Serve(ctx, func() error { close(ready); return nil })
	}()
	t.Cleanup(func() {
		d.Stop(t)
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", d.Logs())
		}
	})
	select {
	case <-ready:
	case err := <-d.done:
		d.done <- err
		t.Fatalf("the daemon did not start: %v", err)
	}
	return d
}

// complete puts what c leaves empty into fresh folders of the test, below the one
// that it returns.
func complete(t testing.TB, c *config.Config) (dir string) {
	t.Helper()
	if raceEnabled {
		if err := buildPlain(); err != nil {
			t.Fatal(err)
		}
	}
	// Unix socket paths are short; t.TempDir is not.
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	mk := func(p *string, name string) {
		if *p == "" {
			*p = filepath.Join(dir, name)
			if err := os.Mkdir(*p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	mk(&c.Tools, "tools.d")
	if c.State == "" {
		c.State = filepath.Join(dir, "state")
		if err := ShareCompiled(ModuleRoot(), c.State); err != nil {
			t.Fatal(err)
		}
	}
	if c.Socket == "" {
		c.Socket = filepath.Join(dir, "tool.sock")
	}
	if c.ConfineMost == "" {
		// The level of confinement at which the tests run.
		c.ConfineMost = os.Getenv("TOOLD_TEST_CONFINE")
	}
	if len(c.Roots) == 0 {
		var root string
		mk(&root, "workspace")
		c.Roots = []string{root}
	}
	if err := c.Complete(func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Stop ends the daemon gracefully and waits for it; a second call does
// nothing.
func (d *Daemon) Stop(t testing.TB) {
	t.Helper()
	if d.stop == nil {
		return
	}
	d.stop()
	d.stop = nil
	if err := <-d.done; err != nil {
		t.Errorf("the daemon ended with: %v", err)
	}
	if err := d.Host.Close(); err != nil {
		t.Errorf("close the daemon: %v", err)
	}
}

// Logs is what the daemon has logged so far, one JSON object a line.
func (d *Daemon) Logs() string { return d.logs.String() }

// HoldLog blocks the goroutine that logs the next line with these words until release
// is called, as a disk that does not respond would. reached is closed when it blocks.
func (d *Daemon) HoldLog(words string) (reached <-chan struct{}, release func()) {
	h := &hold{words, make(chan struct{}), make(chan struct{})}
	d.logs.mu.Lock()
	d.logs.hold = h
	d.logs.mu.Unlock()
	return h.reached, sync.OnceFunc(func() { close(h.release) })
}

// AwaitLog waits for a line of the log that holds all words, after the first
// bytes of it: len(d.Logs()) before what is to be logged.
func (d *Daemon) AwaitLog(t testing.TB, after int, words ...string) {
	t.Helper()
	if err := d.logs.wait(patience, d.logs.hasLine(after, words), d.done); err != nil {
		t.Fatalf("wait for a line of the log with %q: %v", words, err)
	}
}

// Tool writes a tool into the daemon's tools folder: its tool.json, made from
// def unless that is nil, and its modules by file name.
func (d *Daemon) Tool(t testing.TB, name string, def map[string]any, modules map[string]string) {
	t.Helper()
	WriteTool(t, d.Config.Tools, name, def, modules)
}

// Ready copies ready tools of the repository's tools.d, with their plugins
// built.
func (d *Daemon) Ready(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		def := ReadyJSON(t, name)
		module := "restricted.wasm"
		src, err := os.ReadFile(filepath.Join(ModuleRoot(), "plugins", name, "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(src, []byte("\n//go:wasmexport handle\n")) {
			module = "handler.wasm"
		}
		d.Tool(t, name, def, map[string]string{module: Guest(t, "plugins/"+name)})
	}
}

// ReadyJSON is the tool.json of a ready tool, for a test to change.
func ReadyJSON(t testing.TB, name string) map[string]any {
	t.Helper()
	var def map[string]any
	if err := json.Unmarshal(readyFile(t, name), &def); err != nil {
		t.Fatal(err)
	}
	return def
}

// ReadyDefinition is the tool.json of a ready tool as the daemon reads it.
func ReadyDefinition(t testing.TB, name string) *tools.Definition {
	t.Helper()
	def, err := tools.ParseDefinition("tool.json", readyFile(t, name))
	if err != nil {
		t.Fatal(err)
	}
	return def
}

func readyFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(ModuleRoot(), "tools.d", name, "tool.json"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// WriteTool writes a tool into a tools folder as an operator would: next to it
// first, then renamed into place. modules maps a file name such as
// "restricted.wasm" to the path of the module to copy.
func WriteTool(t testing.TB, toolsDir, name string, def map[string]any, modules map[string]string) {
	t.Helper()
	tmp, err := os.MkdirTemp(filepath.Dir(toolsDir), ".new-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	if def != nil {
		b, err := json.Marshal(def)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tmp, "tool.json"), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for file, from := range modules {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tmp, file), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := replace(tmp, filepath.Join(toolsDir, name)); err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(tmp) // what stood there before
}

// guests holds those that this test binary has built, by package.
var guests struct {
	sync.Mutex
	dir  string
	path map[string]func() (string, error)
}

// guestDir is the folder of what this test binary builds.
func guestDir(t testing.TB) string {
	t.Helper()
	guests.Lock()
	defer guests.Unlock()
	if guests.dir == "" {
		dir, err := os.MkdirTemp("", "toold-guests")
		if err != nil {
			t.Fatal(err)
		}
		guests.dir, guests.path = dir, map[string]func() (string, error){}
	}
	return guests.dir
}

// Guest builds the Go package at pkg, a path from the module's root such as
// "plugins/git", as a guest, once a test binary, and returns the module's path.
func Guest(t testing.TB, pkg string) string {
	t.Helper()
	dir := guestDir(t)
	guests.Lock()
	build, ok := guests.path[pkg]
	if !ok {
		out := filepath.Join(dir, guestFile(pkg))
		build = sync.OnceValues(func() (string, error) {
			if built := os.Getenv(guestsVar); built != "" {
				return filepath.Join(built, guestFile(pkg)), nil
			}
			cmd := exec.Command("go", "build", "-trimpath", "-buildmode=c-shared", "-ldflags=-s -w", "-o", out, "./"+pkg)
			cmd.Dir = ModuleRoot()
			cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
			if b, err := cmd.CombinedOutput(); err != nil {
				return "", fmt.Errorf("build guest %s: %w\n%s", pkg, err, b)
			}
			return out, nil
		})
		guests.path[pkg] = build
	}
	guests.Unlock()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// guestFile is the name of the module of the package at pkg.
func guestFile(pkg string) string { return strings.ReplaceAll(pkg, "/", "_") + ".wasm" }

// guestsVar names a folder of guests that a parent process has built.
const guestsVar = "TOOLD_TEST_GUESTS"

// ModuleRoot is the folder of this module's go.mod.
var ModuleRoot = sync.OnceValue(func() string {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		panic(fmt.Sprintf("find the module's root: %v", err))
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
})
