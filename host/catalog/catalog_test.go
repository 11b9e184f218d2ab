package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

// fixture is a tools.d with a catalog on it.
type fixture struct {
	t   testing.TB
	dir string // tools.d
	cfg Config
	c   *Catalog

	// notifier is the watcher's, once Watch runs.
	notifier *fsnotify.Watcher

	mu     sync.Mutex
	events []Event
	wake   chan struct{} // hears of each event; nil when nobody waits
}

// newFixture makes the folders; open starts the catalog. Nothing is watched: tests say
// when a folder is looked at.
func newFixture(t testing.TB) *fixture {
	t.Helper()
	top := t.TempDir()
	b := &fixture{t: t, dir: filepath.Join(top, "tools.d")}
	b.cfg = Config{
		Dir: b.dir, Restricted: filepath.Join(top, "restricted"), StateDir: filepath.Join(top, "state"),
		Roots: []string{"/workspace"}, Logger: slog.New(slog.DiscardHandler),
		OnChange: func(e Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, e)
			select {
			case b.wake <- struct{}{}:
			default:
			}
		},
	}
	for _, dir := range []string{b.cfg.Dir, b.cfg.Restricted} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func testEngine(t testing.TB) *guest.Engine {
	t.Helper()
	return engineIn(t, "")
}

// checkoutEngine has the checkout's cache of compiled modules, where those are that
// the checkout's tools have: other packages load them too.
func checkoutEngine(t testing.TB) *guest.Engine {
	t.Helper()
	return engineIn(t, "../../.cache/compiled")
}

func engineIn(t testing.TB, cache string) *guest.Engine {
	t.Helper()
	e, err := guest.New(guest.Config{CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (b *fixture) open() *fixture {
	b.t.Helper()
	if b.cfg.Engine == nil {
		b.cfg.Engine = testEngine(b.t)
	}
	c, err := Open(b.t.Context(), b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.c = c
	b.t.Cleanup(func() { c.Close() })
	if err := c.Ready(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return b
}

// restart closes the catalog and opens another one on the same folders.
func (b *fixture) restart() {
	b.t.Helper()
	if err := b.c.Close(); err != nil {
		b.t.Fatal(err)
	}
	b.open()
}

// write puts files, by their path beneath tools.d (or "restricted/…"), each
// renamed into place. A nil content removes.
func (b *fixture) write(files map[string]string) {
	b.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := b.path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			b.t.Fatal(err)
		}
		tmp := filepath.Join(filepath.Dir(path), ".new")
		if err := os.WriteFile(tmp, []byte(files[name]), 0o644); err != nil {
			b.t.Fatal(err)
		}
		if err := os.Rename(tmp, path); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *fixture) remove(names ...string) {
	b.t.Helper()
	for _, name := range names {
		if err := os.RemoveAll(b.path(name)); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *fixture) path(name string) string {
	if rest, ok := strings.CutPrefix(name, "restricted/"); ok {
		return filepath.Join(b.cfg.Restricted, rest)
	}
	return filepath.Join(b.dir, name)
}

// look loads tools, all at once, and waits until that is done.
func (b *fixture) look(names ...string) {
	var done []<-chan struct{}
	for _, name := range names {
		done = append(done, b.c.reconcile(name))
	}
	for _, d := range done {
		<-d
	}
}

// marks calls every policy and the handler of a tool and returns what they
// answer, in order: "global own | handler".
func marks(ctx context.Context, t *tools.Tool) (string, error) {
	var out []string
	for _, p := range t.Policies {
		r, err := p.Call(ctx, guest.Invocation{Export: "restrict"})
		if err != nil {
			return "", err
		}
		var d abi.Decision
		if err := json.Unmarshal(r.Output, &d); err != nil {
			return "", err
		}
		out = append(out, d.Rule)
	}
	if t.Handler != nil && t.Kind == tools.Handler {
		r, err := t.Handler.Call(ctx, guest.Invocation{Export: t.Entry.Export})
		if err != nil {
			return "", err
		}
		var res abi.Result
		if err := json.Unmarshal(r.Output, &res); err != nil {
			return "", err
		}
		out = append(out, "|", res.Stdout)
	}
	return strings.Join(out, " "), nil
}

// is acquires a tool and holds what it answers against want.
func (b *fixture) is(name, want string) {
	b.t.Helper()
	tool, release, err := b.c.Acquire(b.t.Context(), name)
	if err != nil {
		b.t.Errorf("%s: %v, want %q", name, err, want)
		return
	}
	defer release()
	got, err := marks(b.t.Context(), tool)
	if err != nil || got != want {
		b.t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
	}
}

// refused acquires a tool and wants an error of that code with every text.
func (b *fixture) refused(name string, code fault.Code, texts ...string) {
	b.t.Helper()
	_, release, err := b.c.Acquire(b.t.Context(), name)
	if err == nil {
		release()
		b.t.Errorf("%s: acquired, want %s", name, code)
		return
	}
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != code {
		b.t.Errorf("%s: got %v, want %s", name, err, code)
		return
	}
	for _, text := range texts {
		if !strings.Contains(e.Message, text) {
			b.t.Errorf("%s: got %q, want %q in it", name, e.Message, text)
		}
	}
	if strings.ContainsRune(e.Message, '\n') {
		b.t.Errorf("%s: more than a line: %q", name, e.Message)
	}
}

func (b *fixture) status(name string) Status {
	for _, s := range b.c.List() {
		if s.Name == name {
			return s
		}
	}
	return Status{}
}

// happened returns the events of one tool since the last call, as "change
// change", without those of closed generations.
func (b *fixture) happened(tool string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	b.events = slices.DeleteFunc(b.events, func(e Event) bool {
		if e.Tool != tool {
			return false
		}
		if e.Change != Closed {
			out = append(out, string(e.Change))
		}
		return true
	})
	return strings.Join(out, " ")
}

func TestDiscovery(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{
		"one/handler.wasm":            string(handler("1")),
		"two/tool.json":               `{"handler": "lib/m.wasm", "category": "net"}`,
		"two/lib/m.wasm":              string(handler("2")),
		"UPPER/handler.wasm":          string(handler("3")),
		".hidden/handler.wasm":        string(handler("4")),
		"empty/notes.txt":             "no tool",
		"a-file":                      "no folder",
		"policy-only/restricted.wasm": string(policy("p")),
	})
	b.open()
	b.is("one", "| 1")
	b.is("two", "| 2")
	var names []string
	for _, s := range b.c.List() {
		names = append(names, s.Name+" "+s.State)
	}
	if want := []string{"one ok", "policy-only absent", "two ok"}; !slices.Equal(names, want) {
		t.Errorf("listed %v, want %v", names, want)
	}
	for _, name := range []string{"", ".", "..", "UPPER", ".hidden", "one/", "../tools.d/one", "one/../one", "empty", "a-file", "nothing", "one\x00", strings.Repeat("x", 5000)} {
		b.refused(name, fault.UnknownTool)
	}
	// One that is dropped in is there for its first request.
	b.write(map[string]string{"three/handler.wasm": string(handler("3"))})
	b.is("three", "| 3")
	if got := b.happened("three"); got != "loaded" {
		t.Errorf("three: %s", got)
	}
	// A removed one is gone at once.
	b.remove("one")
	b.refused("one", fault.UnknownTool)
	b.look("one")
	if got := b.happened("one"); got != "loaded removed" {
		t.Errorf("one: %s", got)
	}
	if s := b.status("one"); s.Name != "" {
		t.Errorf("one is still listed: %+v", s)
	}
	b.write(map[string]string{"one/handler.wasm": string(handler("1b"))})
	b.is("one", "| 1b")
}

func TestToolsFolderGone(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"one/handler.wasm": string(handler("1"))})
	b.open()
	if err := os.Rename(b.dir, b.dir+".old"); err != nil {
		t.Fatal(err)
	}
	b.refused("one", fault.UnknownTool)
	b.look("one")
	if len(b.c.List()) != 0 {
		t.Errorf("listed: %+v", b.c.List())
	}
	if err := os.Rename(b.dir+".old", b.dir); err != nil {
		t.Fatal(err)
	}
	b.is("one", "| 1")
}

func TestSymlinks(t *testing.T) {
	b := newFixture(t)
	outside := t.TempDir()
	link := func(target, name string) {
		t.Helper()
		path := b.path(name)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.Symlink(target, path+".tmp"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".tmp", path); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"handler.wasm", "restricted.wasm"} {
		if err := os.WriteFile(filepath.Join(outside, f), handler("out"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link(outside, "absolute-out")
	link("../"+filepath.Base(outside), "relative-out")
	link("loop", "loop")
	link("nowhere", "dangling")
	link("real", "alias")
	link(filepath.Join(b.dir, "real"), "absolute-in")
	link(filepath.Join(outside, "restricted.wasm"), "file-out/restricted.wasm")
	link("gone.wasm", "file-dangling/restricted.wasm")
	link("../shared.wasm", "file-in/restricted.wasm")
	link(filepath.Join(outside, "handler.wasm"), "handler-out/handler.wasm")
	b.write(map[string]string{
		"real/handler.wasm":          string(handler("real")),
		"shared.wasm":                string(policy("shared")),
		"file-in/handler.wasm":       string(handler("h")),
		"file-out/handler.wasm":      string(handler("h")),
		"file-dangling/handler.wasm": string(handler("h")),
	})
	b.open()
	for _, name := range []string{"absolute-out", "relative-out", "loop", "dangling", "absolute-in"} {
		b.refused(name, fault.UnknownTool)
		if got := b.happened(name); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
	b.is("alias", "| real")
	b.is("file-in", "shared | h")
	b.refused("file-out", fault.ToolBroken, "restricted.wasm is a link that cannot be followed")
	b.refused("file-dangling", fault.ToolBroken, "restricted.wasm is a link that cannot be followed")
	b.refused("handler-out", fault.ToolBroken, "handler.wasm is a link that cannot be followed")

	// A tool whose folder is replaced by a link out of tools.d is gone.
	b.remove("real")
	link(outside, "real")
	b.look("real")
	b.refused("real", fault.UnknownTool)
}

// TestKubernetes swaps what a ConfigMap shows the way the kubelet does: a new
// folder, and one rename of the link that all names go through.
func TestKubernetes(t *testing.T) {
	b := newFixture(t)
	put := func(base, version string, files map[string][]byte) {
		t.Helper()
		dir := filepath.Join(base, ".."+version)
		for name, data := range files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(".."+version, filepath.Join(base, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(base, "..data_tmp"), filepath.Join(base, "..data")); err != nil {
			t.Fatal(err)
		}
		for name := range files {
			top, _, _ := strings.Cut(name, "/")
			os.Symlink("..data/"+top, filepath.Join(base, top))
		}
		old, _ := filepath.Glob(filepath.Join(base, "..v*"))
		for _, o := range old {
			if o != dir {
				os.RemoveAll(o)
			}
		}
	}
	flat := filepath.Join(b.dir, "flat")
	os.MkdirAll(flat, 0o755)
	put(flat, "v1", map[string][]byte{"handler.wasm": handler("h1"), "restricted.wasm": policy("p1")})
	put(b.dir, "v1", map[string][]byte{"nested/handler.wasm": handler("n1"), "nested/restricted.wasm": policy("q1")})
	put(b.cfg.Restricted, "v1", map[string][]byte{"_all.wasm": policy("a1")})
	b.open()
	b.is("flat", "a1 p1 | h1")
	b.is("nested", "a1 q1 | n1")
	put(flat, "v2", map[string][]byte{"handler.wasm": handler("h2"), "restricted.wasm": policy("p2")})
	put(b.dir, "v2", map[string][]byte{"nested/handler.wasm": handler("n2"), "nested/restricted.wasm": policy("q2")})
	b.look("flat", "nested")
	b.is("flat", "a1 p2 | h2")
	b.is("nested", "a1 q2 | n2")
	put(b.cfg.Restricted, "v2", map[string][]byte{"_all.wasm": policy("a2")})
	b.look("flat", "nested")
	b.is("flat", "a2 p2 | h2")
	b.is("nested", "a2 q2 | n2")
	// The same content under new inodes is no new version.
	b.happened("flat")
	put(flat, "v3", map[string][]byte{"handler.wasm": handler("h2"), "restricted.wasm": policy("p2")})
	b.look("flat")
	b.is("flat", "a2 p2 | h2")
	if got := b.happened("flat"); got != "" {
		t.Errorf("flat: %s", got)
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	const h = "t/handler.wasm"
	corrupt := string(policy("x")[:40])
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string   // what the tool answers
		err   []string // or what its error says
	}{
		{"none", nil, "| h", nil},
		{"own", map[string]string{"t/restricted.wasm": string(policy("own"))}, "own | h", nil},
		{"fallback", map[string]string{"restricted/t.wasm": string(policy("fallback"))}, "fallback | h", nil},
		{"own before fallback", map[string]string{"t/restricted.wasm": string(policy("own")), "restricted/t.wasm": string(policy("fallback"))}, "own | h", nil},
		{"of another tool", map[string]string{"restricted/u.wasm": string(policy("u"))}, "| h", nil},
		{"global", map[string]string{"restricted/_all.wasm": string(policy("all"))}, "all | h", nil},
		{"global first", map[string]string{"restricted/_all.wasm": string(policy("all")), "t/restricted.wasm": string(policy("own"))}, "all own | h", nil},
		{"corrupt", map[string]string{"t/restricted.wasm": corrupt}, "", []string{"tools.d/t/restricted.wasm"}},
		{"corrupt fallback", map[string]string{"restricted/t.wasm": corrupt}, "", []string{"restricted/t.wasm"}},
		{"corrupt global", map[string]string{"restricted/_all.wasm": corrupt, "t/restricted.wasm": string(policy("own"))}, "", []string{"restricted/_all.wasm"}},
		{"empty", map[string]string{"t/restricted.wasm": ""}, "", []string{"restricted.wasm is empty", "every call is refused"}},
		{"a folder", map[string]string{"t/restricted.wasm/x": ""}, "", []string{"restricted.wasm is not a regular file but a folder"}},
		{"a folder as global", map[string]string{"restricted/_all.wasm/x": ""}, "", []string{"_all.wasm is not a regular file but a folder"}},
		{"text", map[string]string{"t/restricted.wasm": "not a module at all, but long enough to be one"}, "", []string{"restricted.wasm"}},
		{"no restrict", map[string]string{"t/restricted.wasm": string(handler("x"))}, "", []string{"exports no restrict"}},
		{"wants exec", map[string]string{"t/restricted.wasm": string(wasm{answers: map[string]string{"restrict": "{}"}, imports: []string{"tool_exec"}}.bytes()), "t/tool.json": `{"capabilities": {"exec": ["/bin/sh"]}}`}, "", []string{"tool_exec"}},
		{"shell script", map[string]string{"t/restricted.sh": "exit 0"}, "", []string{"restricted.sh", "docs/migrating-policies.md"}},
		{"python script", map[string]string{"t/restricted.py": "pass"}, "", []string{"restricted.py", "docs/migrating-policies.md"}},
		{"script beside a module", map[string]string{"t/restricted.sh": "exit 0", "t/restricted.wasm": string(policy("own"))}, "", []string{"restricted.sh", "docs/migrating-policies.md"}},
		{"script as fallback", map[string]string{"restricted/t.sh": "exit 0", "t/restricted.wasm": string(policy("own"))}, "", []string{"t.sh", "docs/migrating-policies.md"}},
		{"script for all", map[string]string{"restricted/_all.py": ""}, "", []string{"_all.py", "docs/migrating-policies.md"}},
		{"none is said", map[string]string{"t/tool.json": `{"policy": "none"}`}, "| h", nil},
		{"none is said, and one is there", map[string]string{"t/tool.json": `{"policy": "none"}`, "t/restricted.wasm": string(policy("own"))}, "", []string{`says "policy": "none" and has`}},
		{"none is said, and a fallback is there", map[string]string{"t/tool.json": `{"policy": "none"}`, "restricted/t.wasm": string(policy("fallback"))}, "fallback | h", nil},
		{"required and missing", map[string]string{"t/tool.json": `{"policy": "required"}`}, "", []string{`says "policy": "required" and has none`}},
		{"required, with a policy for all only", map[string]string{"t/tool.json": `{"policy": "required"}`, "restricted/_all.wasm": string(policy("all"))}, "", []string{"required"}},
		{"required and there", map[string]string{"t/tool.json": `{"policy": "required"}`, "t/restricted.wasm": string(policy("own"))}, "own | h", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFixture(t)
			b.write(map[string]string{h: string(handler("h"))})
			b.write(tt.files)
			b.open()
			if tt.err == nil {
				b.is("t", tt.want)
				return
			}
			b.refused("t", fault.ToolBroken, tt.err...)
			// And where an older version without that policy serves: it is
			// not to serve on.
			b = newFixture(t)
			b.write(map[string]string{h: string(handler("h"))})
			b.open()
			b.is("t", "| h")
			b.write(tt.files)
			b.look("t")
			if strings.HasPrefix(tt.name, "none is said") {
				b.refused("t", fault.ToolBroken)
			} else {
				b.refused("t", fault.ToolBroken, tt.err...)
			}
			if s := b.status("t"); s.State != StateBroken || s.Reason == "" || s.Failing.IsZero() {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestScriptBesidePolicy: a policy of an older kind that comes in beside a
// module is not ignored either.
func TestScriptBesidePolicy(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("h")), "t/restricted.wasm": string(policy("p"))})
	b.open()
	b.is("t", "p | h")
	b.write(map[string]string{"t/restricted.py": ""})
	b.look("t")
	b.refused("t", fault.ToolBroken, migrationPage)
	b.remove("t/restricted.py")
	b.look("t")
	b.is("t", "p | h")
}

func TestLostPolicy(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, files map[string]string) *fixture {
		b := newFixture(t)
		b.write(map[string]string{"t/handler.wasm": string(handler("h")), "u/handler.wasm": string(handler("u"))})
		b.write(files)
		return b.open()
	}
	own := map[string]string{"t/restricted.wasm": string(policy("own"))}
	t.Run("own", func(t *testing.T) {
		b := start(t, own)
		b.is("t", "own | h")
		b.remove("t/restricted.wasm")
		b.look("t")
		b.refused("t", fault.ToolBroken, "had a policy", `"policy": "none"`)
		b.is("u", "| u")
		b.restart()
		b.refused("t", fault.ToolBroken, "had a policy")
		b.restart()
		b.write(map[string]string{"t/handler.wasm": string(handler("h2"))})
		b.look("t")
		b.refused("t", fault.ToolBroken, "had a policy")
		b.write(map[string]string{"t/restricted.wasm": string(policy("new"))})
		b.look("t")
		b.is("t", "new | h2")
	})
	t.Run("removed while the daemon was down", func(t *testing.T) {
		b := start(t, own)
		b.c.Close()
		b.remove("t/restricted.wasm")
		b.open()
		b.refused("t", fault.ToolBroken, "had a policy")
	})
	t.Run("whole folder replaced", func(t *testing.T) {
		b := start(t, own)
		b.remove("t")
		b.refused("t", fault.UnknownTool)
		b.look("t")
		b.write(map[string]string{"t/handler.wasm": string(handler("h"))})
		b.refused("t", fault.ToolBroken, "had a policy")
	})
	t.Run("never loaded", func(t *testing.T) {
		b := start(t, map[string]string{"t/restricted.wasm": "corrupt"})
		b.refused("t", fault.ToolBroken)
		b.remove("t/restricted.wasm")
		b.look("t")
		b.refused("t", fault.ToolBroken, "had a policy")
	})
	t.Run("a script", func(t *testing.T) {
		b := start(t, map[string]string{"t/restricted.sh": ""})
		b.remove("t/restricted.sh")
		b.look("t")
		b.refused("t", fault.ToolBroken, "had a policy")
	})
	t.Run("with a broken definition", func(t *testing.T) {
		b := start(t, own)
		b.remove("t/restricted.wasm")
		b.write(map[string]string{"t/tool.json": `{"policy":`})
		b.look("t")
		b.refused("t", fault.ToolBroken)
	})
	t.Run("none is said", func(t *testing.T) {
		b := start(t, own)
		b.remove("t/restricted.wasm")
		b.write(map[string]string{"t/tool.json": `{"policy": "none"}`})
		b.look("t")
		b.is("t", "| h")
		// Confirmed once, it is forgotten.
		b.remove("t/tool.json")
		b.look("t")
		b.is("t", "| h")
		b.restart()
		b.is("t", "| h")
	})
	t.Run("fallback takes over", func(t *testing.T) {
		b := start(t, own)
		b.remove("t/restricted.wasm")
		b.write(map[string]string{"restricted/t.wasm": string(policy("fallback"))})
		b.look("t")
		b.is("t", "fallback | h")
		b.remove("restricted/t.wasm")
		b.look("t")
		b.refused("t", fault.ToolBroken, "had a policy")
	})
	t.Run("own with one for all left", func(t *testing.T) {
		b := start(t, map[string]string{"t/restricted.wasm": string(policy("own")), "restricted/_all.wasm": string(policy("all"))})
		b.is("t", "all own | h")
		b.remove("t/restricted.wasm")
		b.look("t")
		b.refused("t", fault.ToolBroken, "had a policy")
	})
	t.Run("restricted folder not given", func(t *testing.T) {
		b := start(t, map[string]string{"restricted/t.wasm": string(policy("fallback"))})
		b.is("t", "fallback | h")
		b.cfg.Restricted = ""
		b.restart()
		b.refused("t", fault.ToolBroken, "had a policy")
	})
	t.Run("restricted folder removed", func(t *testing.T) {
		b := start(t, map[string]string{"restricted/t.wasm": string(policy("fallback"))})
		if err := os.RemoveAll(b.cfg.Restricted); err != nil {
			t.Fatal(err)
		}
		b.look("t", "u")
		// Nobody knows what it would say: what serves goes on as it is, and
		// nothing new begins.
		b.is("t", "fallback | h")
		if s := b.status("t"); s.State != StateStale || !strings.Contains(s.Reason, "restricted folder") {
			t.Errorf("status %+v", s)
		}
		b.write(map[string]string{"v/handler.wasm": string(handler("v"))})
		b.refused("v", fault.ToolBroken, "restricted folder")
	})
	t.Run("for all", func(t *testing.T) {
		b := start(t, map[string]string{"restricted/_all.wasm": string(policy("all")), "t/restricted.wasm": string(policy("own"))})
		b.is("t", "all own | h")
		b.is("u", "all | u")
		b.remove("restricted/_all.wasm")
		b.look("t", "u")
		b.refused("t", fault.ToolBroken, "_all.wasm", "_all.none")
		b.refused("u", fault.ToolBroken, "_all.wasm", "_all.none")
		b.restart()
		b.refused("t", fault.ToolBroken, "_all.wasm")
		b.write(map[string]string{"new/handler.wasm": string(handler("n"))})
		b.refused("new", fault.ToolBroken, "_all.wasm")
		b.write(map[string]string{"u/tool.json": `{"policy": "none"}`})
		b.look("u")
		b.is("u", "| u")
		b.write(map[string]string{"restricted/_all.none": ""})
		b.look("t", "u", "new")
		b.is("t", "own | h")
		b.is("u", "| u")
		b.is("new", "| n")
		b.remove("restricted/_all.none")
		b.restart()
		b.is("t", "own | h")
	})
}

func TestBrokenVersion(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	good := map[string]string{"t/tool.json": `{"timeout": 5}`, "t/handler.wasm": string(handler("h")), "t/restricted.wasm": string(policy("p"))}
	b.write(good)
	b.open()
	b.is("t", "p | h")
	before := b.status("t")
	b.happened("t")
	whole := handler("half")
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"tool.json", map[string]string{"t/tool.json": "{\n  \"timeout\": -1\n}"}, "tools.d/t/tool.json:2:14: /timeout is -1"},
		{"tool.json empty", map[string]string{"t/tool.json": ""}, "tool.json"},
		{"tool.json a folder", map[string]string{"t/tool.json/x": ""}, "tool.json is not a regular file but a folder"},
		{"handler truncated", map[string]string{"t/handler.wasm": string(whole[:len(whole)-9])}, "handler.wasm"},
		{"handler empty", map[string]string{"t/handler.wasm": ""}, "handler.wasm is empty"},
		{"handler without export", map[string]string{"t/handler.wasm": string(policy("p"))}, "exports neither handle nor _start"},
		{"handler missing", map[string]string{"t/tool.json": `{"handler": "no.wasm"}`}, "no.wasm does not exist"},
		{"policy corrupt", map[string]string{"t/restricted.wasm": "x"}, "restricted.wasm"},
		{"policy without restrict", map[string]string{"t/restricted.wasm": string(handler("p"))}, "exports no restrict"},
		{"not granted", map[string]string{"t/handler.wasm": string(wasm{answers: map[string]string{"handle": "{}"}, imports: []string{"tool_exec"}}.bytes())}, `"exec"`},
		{"roots", map[string]string{"t/tool.json": `{"roots": ["/etc"]}`}, "/etc, which is beneath none of this host's"},
		{"hash", map[string]string{"t/tool.json": fmt.Sprintf(`{"hash": {"handler.wasm": "%064d"}}`, 0)}, "pins 0000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.t = t
			for name := range tt.files {
				top, _, _ := strings.Cut(strings.TrimPrefix(name, "t/"), "/")
				b.remove("t/" + top)
			}
			b.write(tt.files)
			b.look("t")
			b.is("t", "p | h")
			s := b.status("t")
			if s.State != StateStale || !strings.Contains(s.Reason, tt.want) || s.Version != before.Version || s.Failing.IsZero() {
				t.Errorf("status %s, reason %q, want %q", s.State, s.Reason, tt.want)
			}
			if got := b.happened("t"); got != "failed" {
				t.Errorf("events: %s", got)
			}
			// Looked at again, it says nothing new.
			b.look("t")
			if got := b.happened("t"); got != "" {
				t.Errorf("events of a second look: %s", got)
			}
			for name := range good {
				b.remove(name)
			}
			b.write(good)
			b.look("t")
			if s := b.status("t"); s.State != StateOK || s.Reason != "" || !s.Failing.IsZero() || !s.Loaded.Equal(before.Loaded) {
				t.Errorf("put right: %+v", s)
			}
			b.happened("t")
			// The same from the start is a broken tool.
			fresh := newFixture(t)
			fresh.write(good)
			for name := range tt.files {
				top, _, _ := strings.Cut(strings.TrimPrefix(name, "t/"), "/")
				fresh.remove("t/" + top)
			}
			fresh.write(tt.files)
			fresh.open()
			fresh.refused("t", fault.ToolBroken, tt.want)
			if got := fresh.happened("t"); got != "broken" {
				t.Errorf("events from the start: %s", got)
			}
		})
	}
}

func TestKinds(t *testing.T) {
	b := newFixture(t)
	bin := t.TempDir()
	tool := filepath.Join(bin, "prog")
	sum := fmt.Sprintf("%x", sha256.Sum256(handler("m")))
	b.write(map[string]string{
		"true/restricted.wasm":   string(policy("p")),
		"named/tool.json":        `{"binary": "sh"}`,
		"prog/tool.json":         `{"binary": "` + tool + `"}`,
		"nowhere/tool.json":      `{"binary": "no-such-program"}`,
		"stock/handler.wasm":     string(wasm{answers: map[string]string{"count": `{"exit_code":0,"stdout":"3"}`}}.bytes()),
		"stock/tool.json":        `{"entry": {"export": "count", "input": "stdin"}}`,
		"no-export/handler.wasm": string(handler("x")),
		"no-export/tool.json":    `{"entry": {"export": "count"}}`,
		"command/handler.wasm":   string(wasm{start: true}.bytes()),
		"wasi/tool.json":         `{"wasi": "main.wasm"}`,
		"wasi/main.wasm":         string(wasm{start: true}.bytes()),
		"no-start/tool.json":     `{"wasi": "main.wasm"}`,
		"no-start/main.wasm":     string(handler("x")),
		"no-handler/tool.json":   `{"entry": {"export": "count"}}`,
		"manifest/tool.json":     `{"handler": "plugin.json", "config": {"b": "tool"}, "limits": {"output": "1KiB"}}`,
		"manifest/plugin.json":   `{"wasm": [{"path": "m.wasm", "hash": "` + sum + `"}], "memory": {"max_pages": 4}, "config": {"a": "manifest", "b": "manifest"}, "allowed_hosts": ["*.example.com"], "allowed_paths": {"ro:/srv": "/data"}, "timeout_ms": 1500}`,
		"manifest/m.wasm":        string(handler("m")),
		"remote/tool.json":       `{"handler": "plugin.json"}`,
		"remote/plugin.json":     `{"wasm": [{"url": "https://example.com/plugin.wasm"}]}`,
		"several/tool.json":      `{"handler": "plugin.json"}`,
		"several/plugin.json":    `{"wasm": [{"path": "a.wasm"}, {"path": "b.wasm"}]}`,
		"linked/tool.json":       `{"handler": "plugin.json"}`,
		"linked/plugin.json":     `{"wasm": [{"path": "lib.wasm", "name": "lib"}, {"path": "m.wasm"}]}`,
		"linked/lib.wasm":        string(handler("m")),
		"linked/m.wasm":          string(handler("m")),
		"unpinned/tool.json":     `{"handler": "plugin.json", "hash": {"lib.wasm": "` + sum + `"}}`,
		"unpinned/plugin.json":   `{"wasm": [{"path": "lib.wasm", "name": "lib"}, {"path": "m.wasm"}]}`,
		"unpinned/lib.wasm":      string(handler("other")),
		"unpinned/m.wasm":        string(handler("m")),
		"unlinked/tool.json":     `{"handler": "plugin.json"}`,
		"unlinked/plugin.json":   `{"wasm": [{"path": "lib.wasm", "name": "lib", "hash": "` + sum + `"}, {"path": "m.wasm"}]}`,
		"unlinked/lib.wasm":      string(handler("other")),
		"unlinked/m.wasm":        string(handler("m")),
		"climbing/tool.json":     `{"handler": "plugin.json"}`,
		"climbing/plugin.json":   `{"wasm": [{"path": "../manifest/m.wasm"}]}`,
		"tampered/tool.json":     `{"handler": "plugin.json"}`,
		"tampered/plugin.json":   `{"wasm": [{"path": "m.wasm", "hash": "` + sum + `"}]}`,
		"tampered/m.wasm":        string(handler("other")),
		"no-plugin/tool.json":    `{"handler": "plugin.json"}`,
		"no-plugin/plugin.json":  `{"wasm": []}`,
	})
	b.open()
	get := func(name string) *tools.Tool {
		t.Helper()
		tool, release, err := b.c.Acquire(t.Context(), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		release()
		return tool
	}
	if got := get("true"); got.Kind != tools.Binary || got.Binary != "/usr/bin/true" && got.Binary != "/bin/true" {
		t.Errorf("true: %s %s", got.Kind, got.Binary)
	}
	if got := get("named"); got.Kind != tools.Binary || filepath.Base(got.Binary) != "sh" {
		t.Errorf("named: %s %s", got.Kind, got.Binary)
	}
	if got := get("stock"); got.Kind != tools.Handler || *got.Entry != (tools.Entry{Export: "count", Input: "stdin", Output: "result"}) {
		t.Errorf("stock: %+v", got.Entry)
	}
	if got := get("command"); got.Kind != tools.WASI || got.Handler == nil {
		t.Errorf("command: %s", got.Kind)
	}
	if got := get("wasi"); got.Kind != tools.WASI {
		t.Errorf("wasi: %s", got.Kind)
	}
	m := get("manifest")
	if c := m.Config; c["a"] != "manifest" || c["b"] != "tool" {
		t.Errorf("manifest: config %v", c)
	}
	if d := m.Def; d.Limits.Memory != 4<<16 || d.Limits.Output != 1<<10 || d.Timeout != 1.5 || !slices.Equal(d.Capabilities.HTTP.Hosts, []string{"*.example.com"}) ||
		d.Capabilities.Files["/data"] != (tools.File{Path: "/srv", Mode: "ro"}) || d.Capabilities.State != 1<<20 {
		t.Errorf("manifest: %+v", d)
	}
	if m.HandlerDigest != sum || m.HandlerFile != b.path("manifest/m.wasm") {
		t.Errorf("manifest: %s %s", m.HandlerDigest, m.HandlerFile)
	}
	b.refused("remote", fault.ToolBroken, "plugin.json names the remote module \"https://example.com/plugin.wasm\"")
	b.refused("several", fault.ToolBroken, `plugin.json names two modules ""`)
	before := get("linked").Version
	b.write(map[string]string{"linked/lib.wasm": string(handler("other"))})
	b.look("linked")
	if get("linked").Version == before {
		t.Error("linked: a module that it is linked with is another, and its version the same")
	}
	b.refused("unpinned", fault.ToolBroken, "tool.json pins")
	b.refused("unlinked", fault.ToolBroken, "lib.wasm has the sha256")
	b.refused("climbing", fault.ToolBroken, "beneath the tool's folder")
	b.refused("tampered", fault.ToolBroken, "m.wasm has the sha256", sum)
	b.refused("no-plugin", fault.ToolBroken, "names no module")
	b.refused("no-export", fault.ToolBroken, `no export "count"`)
	b.refused("no-start", fault.ToolBroken, "exports no _start")
	b.refused("no-handler", fault.ToolBroken, "has an entry in", "but no handler")

	// A binary is looked for on every call.
	b.refused("prog", fault.ToolNotInstalled, tool)
	b.refused("nowhere", fault.ToolNotInstalled, "no-such-program", tools.BinaryPath)
	if s := b.status("prog"); s.State != StateAbsent || !strings.Contains(s.Reason, "install it") {
		t.Errorf("prog: %+v", s)
	}
	if err := os.WriteFile(tool, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.refused("prog", fault.ToolNotInstalled)
	if err := os.Chmod(tool, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := get("prog"); got.Binary != tool {
		t.Errorf("prog: %s", got.Binary)
	}
	if s := b.status("prog"); s.State != StateOK {
		t.Errorf("prog: %+v", s)
	}
	if err := os.Remove(tool); err != nil {
		t.Fatal(err)
	}
	b.refused("prog", fault.ToolNotInstalled)
	for _, s := range b.c.List() {
		if s.Calls != 0 {
			t.Errorf("%s is held by %d calls", s.Name, s.Calls)
		}
	}
}

func TestDescribe(t *testing.T) {
	module := func(export, description string) string {
		return string(wasm{answers: map[string]string{export: `{"effect":"allow","rule":"p"}`, "describe": description}}.bytes())
	}
	b := newFixture(t)
	b.write(map[string]string{
		"full/handler.wasm":      module("handle", `{"abi": 1, "name": "x", "description": "from the module", "schema": {"properties": {"a": {}}}, "annotations": {"read_only": true}, "wants": ["repo_config"]}`),
		"said/handler.wasm":      module("handle", `{"abi": 1, "description": "from the module", "schema": {"properties": {"a": {}}}}`),
		"said/tool.json":         `{"description": "from tool.json", "schema": {"properties": {"b": {}}}}`,
		"wants/restricted.wasm":  module("restrict", `{"abi": 1, "wants": ["repo_config"]}`),
		"wants/tool.json":        `{"binary": "sh"}`,
		"newer/restricted.wasm":  module("restrict", `{"abi": 2}`),
		"newer/tool.json":        `{"binary": "sh"}`,
		"newer-h/handler.wasm":   module("handle", `{"abi": 7}`),
		"none/handler.wasm":      module("handle", `{"name": "x"}`),
		"future/restricted.wasm": module("restrict", `{"abi": 1, "wants": ["weather"]}`),
		"future/tool.json":       `{"binary": "sh"}`,
		"extra/handler.wasm":     module("handle", `{"abi": 1, "grants": ["everything"]}`),
		"traps/handler.wasm":     module("handle", ""),
		"schema/handler.wasm":    module("handle", `{"abi": 1, "schema": {"type": "objekt"}}`),
	})
	b.open()
	get := func(name string) *tools.Tool {
		t.Helper()
		tool, release, err := b.c.Acquire(t.Context(), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		release()
		return tool
	}
	full := get("full")
	if full.Description != "from the module" || full.Schema == nil || full.Annotations == nil || !*full.Annotations.ReadOnly || !slices.Equal(full.Wants, []string{"repo_config"}) {
		t.Errorf("full: %+v", full)
	}
	if err := full.Schema.Validate(map[string]any{"b": 1}); err == nil {
		t.Error("full: the schema admits an unknown property")
	}
	said := get("said")
	if said.Description != "from tool.json" || said.Schema.Validate(map[string]any{"b": 1}) != nil || said.Wants != nil {
		t.Errorf("said: %+v", said)
	}
	if w := get("wants").Wants; !slices.Equal(w, []string{abi.WantRepoConfig}) {
		t.Errorf("wants: %v", w)
	}
	b.refused("newer", fault.ToolBroken, "restricted.wasm is written for version 2", "supports 1")
	b.refused("newer-h", fault.ToolBroken, "handler.wasm is written for version 7")
	b.refused("none", fault.ToolBroken, "abi 0")
	b.refused("future", fault.ToolBroken, `wants "weather"`)
	b.refused("extra", fault.ToolBroken, "grants")
	b.refused("traps", fault.ToolBroken, "describe fails")
	b.refused("schema", fault.ToolBroken, "schema of tool schema is not a valid JSON Schema")
}

func TestHash(t *testing.T) {
	sum := func(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
	pin := func(name string, data []byte) string {
		return fmt.Sprintf(`{"hash": {%q: %q}}`, name, sum(data))
	}
	b := newFixture(t)
	b.write(map[string]string{
		"right/handler.wasm":  string(handler("h")),
		"right/tool.json":     pin("handler.wasm", handler("h")),
		"wrong/handler.wasm":  string(handler("h")),
		"wrong/tool.json":     pin("handler.wasm", handler("g")),
		"gone/handler.wasm":   string(handler("h")),
		"gone/tool.json":      pin("restricted.wasm", policy("p")),
		"none/handler.wasm":   string(handler("h")),
		"none/tool.json":      pin("README", nil),
		"own/handler.wasm":    string(handler("h")),
		"own/restricted.wasm": string(policy("p")),
		"own/tool.json":       pin("restricted.wasm", policy("p")),
	})
	b.open()
	b.is("right", "| h")
	b.is("own", "p | h")
	b.refused("wrong", fault.ToolBroken, "handler.wasm has the sha256 "+sum(handler("h")), "pins "+sum(handler("g")))
	b.refused("gone", fault.ToolBroken, "restricted.wasm, which does not exist")
	b.refused("none", fault.ToolBroken, "README, which is not one of its files")
	// A swapped policy does not get past the pin.
	b.write(map[string]string{"own/restricted.wasm": string(policy("evil"))})
	b.look("own")
	b.is("own", "p | h")
}

func TestWritable(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("h")), "u/handler.wasm": string(handler("u")), "v/handler.wasm": string(handler("v"))})
	chmod := func(name string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	b.cfg.Engine = testEngine(t)
	for _, dir := range []string{b.cfg.Dir, b.cfg.Restricted} {
		for _, mode := range []os.FileMode{0o777, 0o775, 0o757, 0o777 | os.ModeSticky} {
			chmod(dir, mode)
			if c, err := Open(t.Context(), b.cfg); err == nil || !strings.Contains(err.Error(), "can be written by others") || !strings.Contains(err.Error(), "chmod go-w") {
				t.Errorf("%s with %04o: %v", dir, mode, err)
				if c != nil {
					c.Close()
				}
			}
			chmod(dir, 0o755)
		}
	}
	chmod(b.path("t"), 0o777)
	chmod(b.path("u/handler.wasm"), 0o666)
	b.open()
	b.refused("t", fault.ToolBroken, "tools.d/t can be written by others")
	b.refused("u", fault.ToolBroken, "handler.wasm can be written by others")
	b.is("v", "| v")
	chmod(b.path("t"), 0o755)
	b.look("t")
	b.is("t", "| h")
	b.c.Close()
	b.cfg.AllowWritable = true
	chmod(b.cfg.Dir, 0o777)
	b.open()
	b.is("t", "| h")
	b.is("u", "| u")
}

func TestOpenRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		with func(*fixture)
		want string
	}{
		{"no tools folder", func(b *fixture) { os.Remove(b.cfg.Dir) }, "does not exist; make it, or name another with --tools"},
		{"no restricted folder", func(b *fixture) { os.Remove(b.cfg.Restricted) }, "does not exist; make it, or name another with --restricted"},
		{"a file", func(b *fixture) { os.Remove(b.cfg.Dir); os.WriteFile(b.cfg.Dir, nil, 0o644) }, "is not a folder"},
		{"state is a file", func(b *fixture) { os.WriteFile(b.cfg.StateDir, nil, 0o644) }, "state folder"},
		{"state damaged", func(b *fixture) {
			os.Mkdir(b.cfg.StateDir, 0o700)
			os.WriteFile(filepath.Join(b.cfg.StateDir, "tools.json"), []byte(`{"version":1,"tools":{"t":`), 0o600)
		}, "which says which tools have had a policy"},
		{"state of another version", func(b *fixture) {
			os.Mkdir(b.cfg.StateDir, 0o700)
			os.WriteFile(filepath.Join(b.cfg.StateDir, "tools.json"), []byte(`{"version":2}`), 0o600)
		}, "version 2"},
		{"state unreadable", func(b *fixture) { os.MkdirAll(filepath.Join(b.cfg.StateDir, "tools.json"), 0o700) }, "which says which tools have had a policy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFixture(t)
			b.cfg.Engine = testEngine(t)
			tt.with(b)
			c, err := Open(t.Context(), b.cfg)
			if err == nil {
				c.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, want %q", err, tt.want)
			}
		})
	}
}

// TestStateNotKept: a policy that could not be remembered is not one that a
// tool may start with, since the next start would not miss it.
func TestStateNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFixture(t)
		b.open()
		if err := os.RemoveAll(b.cfg.StateDir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.cfg.StateDir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		b.write(map[string]string{"t/handler.wasm": string(handler("h")), "t/restricted.wasm": string(policy("p")), "u/handler.wasm": string(handler("u"))})
		b.refused("t", fault.ToolBroken, "make the state folder writable")
		b.is("u", "| u")
		b.look("t")
		b.look("t")
		if got := b.happened("t"); got != "broken" {
			t.Errorf("three looks said %s", got)
		}
		// It is no fault of the files: it is tried again without a change.
		if err := os.Remove(b.cfg.StateDir); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(b.cfg.StateDir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * restat)
		b.look("t")
		b.is("t", "p | h")
		b.c.Close()
	})
}

// TestPinned: a generation that a call holds works until its release, and is
// closed right after.
func TestPinned(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("1")), "t/restricted.wasm": string(policy("1"))})
	b.open()
	old, release, err := b.c.Acquire(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if s := b.status("t"); s.Calls != 1 {
		t.Errorf("%d calls", s.Calls)
	}
	b.write(map[string]string{"t/handler.wasm": string(handler("2")), "t/restricted.wasm": string(policy("2"))})
	b.look("t")
	b.is("t", "2 | 2")
	if got, err := marks(t.Context(), old); got != "1 | 1" {
		t.Errorf("the pinned generation: %q, %v", got, err)
	}
	b.remove("t")
	b.look("t")
	if got, err := marks(t.Context(), old); got != "1 | 1" {
		t.Errorf("the pinned generation of a removed tool: %q, %v", got, err)
	}
	b.c.Close()
	if got, err := marks(t.Context(), old); got != "1 | 1" {
		t.Errorf("the pinned generation of a closed catalog: %q, %v", got, err)
	}
	closed := func() (n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, e := range b.events {
			if e.Change == Closed && e.Version == old.Version {
				n++
			}
		}
		return n
	}
	if closed() != 0 {
		t.Error("closed while it was held")
	}
	release()
	release()
	if closed() != 1 {
		t.Errorf("closed %d times", closed())
	}
	if got, err := marks(t.Context(), old); err == nil {
		t.Errorf("after its release it still answers %q", got)
	}
	b.write(map[string]string{"t/handler.wasm": string(handler("3"))})
	b.refused("t", fault.Overloaded, "shutting down")
}

// TestReleaseTwice: a release counts once, or it would let go of what another
// call holds.
func TestReleaseTwice(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("1"))})
	b.open()
	_, first, err := b.c.Acquire(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	held, second, err := b.c.Acquire(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	defer second()
	first()
	first()
	b.write(map[string]string{"t/handler.wasm": string(handler("2"))})
	b.look("t")
	if got, err := marks(t.Context(), held); got != "| 1" {
		t.Errorf("what the other call holds: %q, %v", got, err)
	}
}

// TestSlots: no more tools are loaded at once than there are slots.
func TestSlots(t *testing.T) {
	c := newFixture(t).open().c
	var running, most atomic.Int64
	var wg sync.WaitGroup
	for range 20 * maxLoads {
		wg.Go(func() {
			c.loader.modules.do(c.ctx, func() {
				n := running.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				runtime.Gosched()
				running.Add(-1)
			})
		})
	}
	wg.Wait()
	if most.Load() > maxLoads {
		t.Errorf("%d at once", most.Load())
	}
	c.Close()
	if c.loader.modules.do(c.ctx, func() { t.Error("it ran after Close") }) {
		t.Error("a slot after Close")
	}
}

// TestTornReads reads folders while they are swapped and the old ones are
// removed, as fast as that goes: what was read in two halves is read again.
func TestTornReads(t *testing.T) {
	const puts = 200
	for _, nested := range []bool{false, true} {
		t.Run(fmt.Sprintf("nested=%v", nested), func(t *testing.T) {
			b := newFixture(t)
			// What ..data stands for: the tool's folder, or tools.d itself.
			base, inside := filepath.Join(b.dir, "t"), ""
			if nested {
				base, inside = filepath.Dir(b.dir), "tools.d/t"
				if err := os.Remove(b.dir); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("..data/tools.d", b.dir); err != nil {
					t.Fatal(err)
				}
			} else {
				if err := os.Mkdir(base, 0o755); err != nil {
					t.Fatal(err)
				}
				for _, f := range []string{"handler.wasm", "restricted.wasm"} {
					if err := os.Symlink("..data/"+f, filepath.Join(base, f)); err != nil {
						t.Fatal(err)
					}
				}
			}
			put := func(n int) error {
				v := fmt.Sprintf("..v%d", n)
				dir := filepath.Join(base, v, inside)
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
				for name, data := range map[string][]byte{"handler.wasm": handler(fmt.Sprint(n)), "restricted.wasm": policy(fmt.Sprint(n))} {
					if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
						return err
					}
				}
				tmp := filepath.Join(base, "..tmp")
				if err := os.Symlink(v, tmp); err != nil {
					return err
				}
				if err := os.Rename(tmp, filepath.Join(base, "..data")); err != nil {
					return err
				}
				return os.RemoveAll(filepath.Join(base, fmt.Sprintf("..v%d", n-1)))
			}
			if err := put(0); err != nil {
				t.Fatal(err)
			}
			b.open()
			done := make(chan error, 1)
			go func() {
				for n := 1; n <= puts; n++ {
					if err := put(n); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			var gone atomic.Int64
			ended := make(chan struct{})
			var asking sync.WaitGroup
			asking.Go(func() {
				for {
					select {
					case <-ended:
						return
					default:
					}
					if !exists(filepath.Join(b.dir, "t")) {
						gone.Add(1)
					}
				}
			})
			looks := 0
			for running := true; running; looks++ {
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
					running = false
				default:
				}
				b.look("t")
				tool, release, err := b.c.Acquire(t.Context(), "t")
				if err != nil {
					t.Fatal(err)
				}
				got, err := marks(t.Context(), tool)
				release()
				if p, h, _ := strings.Cut(got, " | "); err != nil || p != h {
					t.Fatalf("got %q, %v", got, err)
				}
			}
			close(ended)
			asking.Wait()
			if n := gone.Load(); n > 0 {
				t.Errorf("the folder seemed gone %d times", n)
			}
			b.is("t", fmt.Sprintf("%d | %d", puts, puts))
			for _, e := range b.events {
				if e.Change == Broken || e.Change == Removed || e.Change == Failed && !strings.Contains(e.Err.Error(), "keep changing") {
					t.Errorf("%+v", e)
				}
			}
			t.Logf("%d looks, %d events", looks, len(b.events))
		})
	}
}

// TestFailedLoadsLeaveNothing: the modules of a version that fails half way
// are given back.
func TestFailedLoadsLeaveNothing(t *testing.T) {
	b := newFixture(t)
	described := func(n int) string {
		return string(wasm{answers: map[string]string{"restrict": fmt.Sprintf(`{"effect":"allow","rule":"%d"}`, n), "describe": `{"abi": 1}`}}.bytes())
	}
	b.write(map[string]string{"t/handler.wasm": string(policy("no handler")), "t/restricted.wasm": described(0)})
	b.open()
	maps := func() int {
		data, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skip("no /proc/self/maps here")
		}
		return strings.Count(string(data), "\n")
	}
	fail := func(from, to int) {
		for n := from; n < to; n++ {
			b.write(map[string]string{"t/restricted.wasm": described(n)})
			b.look("t")
		}
		runtime.GC()
	}
	fail(1, 20)
	before := maps()
	fail(20, 120)
	b.refused("t", fault.ToolBroken, "exports neither handle nor _start")
	if after := maps(); after > before+50 {
		t.Errorf("%d mappings before a hundred failed loads, %d after", before, after)
	}
}

// TestSwaps swaps policy and handler of ten tools together a hundred times each while
// eight clients call: no call fails, and none sees the policy of one version with
// the handler of another.
func TestSwaps(t *testing.T) {
	swaps := 50
	if testing.Short() {
		swaps = 10
	}
	b := newFixture(t)
	var names []string
	for n := range 10 {
		names = append(names, fmt.Sprintf("t%d", n))
	}
	put := func(name string, n int) {
		mark := fmt.Sprint(n)
		dir := filepath.Join(b.dir, name, "..v"+mark)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, data := range map[string][]byte{"handler.wasm": handler(mark), "restricted.wasm": policy(mark)} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		tmp := filepath.Join(b.dir, name, "..tmp")
		if err := os.Symlink(filepath.Base(dir), tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(b.dir, name, "..data")); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			os.RemoveAll(filepath.Join(b.dir, name, fmt.Sprintf("..v%d", n-1)))
		}
	}
	for _, name := range names {
		put(name, 0)
		for _, file := range []string{"handler.wasm", "restricted.wasm"} {
			if err := os.Symlink("..data/"+file, filepath.Join(b.dir, name, file)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Each swap lets the clients make some more calls, which run while the swaps of
	// the other tools end.
	const perSwap = 32
	turns := make(chan struct{}, 8*perSwap)
	heard := b.cfg.OnChange
	b.cfg.OnChange = func(e Event) {
		heard(e)
		for range perSwap {
			select {
			case turns <- struct{}{}:
			default:
			}
		}
	}
	b.open()
	var calls, seen atomic.Int64
	done := make(chan struct{})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			last := map[string]string{}
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-turns:
				}
				name := names[n%len(names)]
				tool, release, err := b.c.Acquire(t.Context(), name)
				if err != nil {
					t.Errorf("acquire: %v", err)
					return
				}
				got, err := marks(t.Context(), tool)
				release()
				p, h, _ := strings.Cut(got, " | ")
				if err != nil || p != h || p == "" {
					t.Errorf("got %q, %v", got, err)
					return
				}
				calls.Add(1)
				if got != last[name] {
					seen.Add(1)
				}
				last[name] = got
			}
		})
	}
	var heap []uint64
	start := time.Now()
	for n := 1; n <= swaps; n++ {
		for _, name := range names {
			put(name, n)
		}
		b.look(names...)
		if n == swaps/4 || n == swaps {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			heap = append(heap, m.HeapAlloc)
		}
	}
	took := time.Since(start)
	close(done)
	clients.Wait()
	for _, name := range names {
		b.is(name, fmt.Sprintf("%d | %d", swaps, swaps))
	}
	b.c.Close()
	loaded, closed := 0, 0
	for _, e := range b.events {
		switch e.Change {
		case Loaded, Swapped:
			loaded++
		case Closed:
			closed++
		default:
			t.Errorf("%+v", e)
		}
	}
	if loaded != len(names)*(swaps+1) || closed != loaded {
		t.Errorf("%d generations came, %d went, for %d swaps of each", loaded, closed, swaps)
	}
	t.Logf("%d swaps of each under %d calls in %v, %d versions seen by clients; heap %d KiB after a quarter, %d KiB at the end", swaps, calls.Load(), took, seen.Load(), heap[0]>>10, heap[1]>>10)
	if heap[1] > heap[0]+heap[0]/2+8<<20 {
		t.Errorf("the heap grew from %d to %d bytes", heap[0], heap[1])
	}
}

// TestFlood: names that nobody has cost one stat each, and leave nothing.
func TestFlood(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"empty/x": "", "real/handler.wasm": string(handler("h"))})
	b.open()
	for n := range 20_000 {
		b.refused(fmt.Sprintf("no-%d", n), fault.UnknownTool)
	}
	for range 20_000 {
		b.refused("empty", fault.UnknownTool)
	}
	b.is("real", "| h")
	b.c.mu.Lock()
	entries, looks := len(b.c.tools), b.c.looks.left
	b.c.mu.Unlock()
	if entries != 1 {
		t.Errorf("%d entries are left", entries)
	}
	if looks > looksBurst/2 {
		t.Errorf("%v looks are left, so the flood was not held back", looks)
	}
}

// TestManyTools loads more tools at once than there are slots.
func TestManyTools(t *testing.T) {
	b := newFixture(t)
	files := map[string]string{}
	for n := range 40 {
		files[fmt.Sprintf("t%d/handler.wasm", n)] = string(handler(fmt.Sprint(n)))
	}
	b.write(files)
	b.open()
	for n := range 40 {
		b.is(fmt.Sprintf("t%d", n), fmt.Sprintf("| %d", n))
	}
}

func TestLeavesNothing(t *testing.T) {
	engine := testEngine(t)
	goroutines, fds := runtime.NumGoroutine(), openFiles(t)
	for range 20 {
		b := newFixture(t)
		b.cfg.Engine = engine
		b.write(map[string]string{"t/handler.wasm": string(handler("h")), "t/restricted.wasm": string(policy("p")), "u/tool.json": "{"})
		b.open()
		b.is("t", "p | h")
		b.refused("u", fault.ToolBroken)
		b.refused("nothing", fault.UnknownTool)
		if err := b.c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	noMore(t, goroutines, fds)
}

// noMore compares goroutines and open files with what they were.
func noMore(t *testing.T, goroutines, fds int) {
	t.Helper()
	if n := openFiles(t); n > fds {
		t.Errorf("%d open files before, %d after", fds, n)
	}
	// A goroutine that has said that it is done may still be on its way out.
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(end); {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines before, %d after:\n%s", goroutines, n, buf[:runtime.Stack(buf, true)])
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc/self/fd here")
	}
	return len(list)
}
