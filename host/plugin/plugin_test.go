package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/toolchain"
)

// project creates a project of a language, or skips the test if its compiler is
// missing.
func project(t *testing.T, l toolchain.Language, policy bool) *Project {
	t.Helper()
	if _, err := toolchain.Find(t.Context(), l, "."); err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(t.TempDir(), "greet")
	if err := New(dir, l, policy); err != nil {
		t.Fatal(err)
	}
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if p.Language != l {
		t.Fatalf("a folder of %s is taken for one of %s", l, p.Language)
	}
	return p
}

// outcomes builds a project and runs its cases.
func outcomes(t *testing.T, p *Project) []Outcome {
	t.Helper()
	if _, err := p.Build(t.Context(), false, nil); err != nil {
		t.Fatal(err)
	}
	cases, err := LoadCases(filepath.Join(p.Dir, CasesFile))
	if err != nil {
		t.Fatal(err)
	}
	w, err := OpenRunner(p.Dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var list []Outcome
	for i := range cases {
		list = append(list, w.Run(t.Context(), &cases[i]))
	}
	return list
}

// TestMain gives each project its own cargo target folder: in a shared one,
// projects of the same name that are built in parallel would mix their output.
func TestMain(m *testing.M) {
	os.Unsetenv("CARGO_TARGET_DIR")
	os.Exit(m.Run())
}

// TestNew: a new project builds and passes its cases, outside this repository, and
// fails them when its source is changed.
func TestNew(t *testing.T) {
	for _, l := range toolchain.Languages() {
		for _, kind := range []string{"handler", "policy"} {
			t.Run(string(l)+" "+kind, func(t *testing.T) {
				t.Parallel()
				p := project(t, l, kind == "policy")
				for _, o := range outcomes(t, p) {
					if !o.OK {
						t.Errorf("%s: %s", o.Name, strings.Join(o.Differences, "; "))
					}
					if o.Cost.Fuel == 0 || o.Cost.PeakMemory == 0 || o.Cost.NotRestored != "" {
						t.Errorf("%s cost %+v", o.Name, o.Cost)
					}
				}
				if kind == "policy" {
					return
				}
				edit(t, p, "nobody to greet", "nobody here")
				if got := outcomes(t, p); got[3].OK {
					t.Error("another text passes the cases")
				}
			})
		}
	}
}

// edit replaces text in the project's own source.
func edit(t *testing.T, p *Project, old, new string) {
	t.Helper()
	file := filepath.Join(p.Dir, map[toolchain.Language]string{toolchain.Go: "main.go", toolchain.Rust: "src/lib.rs"}[p.Language])
	if p.Language == toolchain.C || p.Language == toolchain.AssemblyScript {
		file = filepath.Join(p.Dir, p.Sources[0])
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(b), old, new)
	if text == string(b) {
		t.Fatalf("%s does not have %q", file, old)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestNewComponent: a component is scaffolded, built and passes its cases, where
// cargo can make components.
func TestNewComponent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "greet")
	if err := NewComponent(dir); err != nil {
		t.Fatal(err)
	}
	p, err := Open(dir)
	if err != nil || !p.component {
		t.Fatalf("%+v, %v", p, err)
	}
	if testing.Short() {
		t.Skip("cargo builds wit-bindgen first")
	}
	built, err := p.Build(t.Context(), true, nil)
	if missing, ok := errors.AsType[*toolchain.MissingError](err); ok {
		if !strings.Contains(missing.Error(), "wasm32-") {
			t.Errorf("%v does not say what to install", missing)
		}
		t.Skip(missing)
	}
	if err != nil && strings.Contains(err.Error(), "cargo fetch") {
		t.Skipf("there is no network: %v", err)
	}
	if err != nil || len(built) != 1 || built[0].File != handlerFile {
		t.Fatalf("%+v, %v", built, err)
	}
	for _, o := range outcomes(t, p) {
		if !o.OK {
			t.Errorf("%s: %s", o.Name, strings.Join(o.Differences, "; "))
		}
	}
}

func TestNewRefuses(t *testing.T) {
	full := filepath.Join(t.TempDir(), "full")
	if err := os.MkdirAll(filepath.Join(full, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		dir  string
		lang toolchain.Language
		want string
	}{
		{"Greet", toolchain.Go, "such as greet"},
		{filepath.Join(t.TempDir(), "a b"), toolchain.Go, `the name "a b" is not a tool's`},
		{filepath.Join(t.TempDir(), strings.Repeat("a", 65)), toolchain.Go, "has 65 characters, and a tool's at most 64"},
		{filepath.Join(t.TempDir(), "greet"), "cobol", "no SDK"},
		{full, toolchain.C, "not empty"},
	} {
		if err := New(tt.dir, tt.lang, false); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s in %s: %v, must say %q", tt.dir, tt.lang, err, tt.want)
		}
	}
	if _, err := os.Stat("Greet"); err == nil {
		t.Error("a folder is left of what was refused")
	}
}

// TestDev: each saved version is installed, and a build failure is reported.
func TestDev(t *testing.T) {
	p := project(t, toolchain.C, false)
	tools := filepath.Join(t.TempDir(), "tools.d")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	rounds, done := make(chan BuildResult), make(chan error, 1)
	go func() {
		done <- p.Dev(ctx, tools, "greet", func(b BuildResult) { rounds <- b })
		close(rounds)
	}()
	module := func() string {
		b, err := os.ReadFile(filepath.Join(tools, "greet", "handler.wasm"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if b := <-rounds; b.Err != nil || !b.Changed {
		t.Fatalf("the first round: %+v", b)
	}
	was := module()

	edit(t, p, "nobody to greet", "nobody here")
	if b := <-rounds; b.Err != nil || !b.Changed {
		t.Fatalf("after a change: %+v", b)
	}
	now := module()
	if now == was {
		t.Error("the tool's folder has the old module")
	}

	edit(t, p, "toold_done(&text)", "toold_dine(&text)")
	b := <-rounds
	if failed := new(toolchain.FailedError); !errors.As(b.Err, &failed) || !strings.Contains(failed.Output, "handler.c:") {
		t.Errorf("what does not compile: %v, must name the line", b.Err)
	}
	if module() != now {
		t.Error("what does not compile took the place of what does")
	}

	edit(t, p, "toold_dine(&text)", "toold_done(&text)")
	if b := <-rounds; b.Err != nil || b.Changed {
		t.Errorf("the same again: %+v", b)
	}
	cancel()
	for range rounds {
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	// Nothing but the tool is in the tools folder.
	entries, err := os.ReadDir(tools)
	if err != nil || len(entries) != 1 {
		t.Errorf("%d entries in the tools folder, %v", len(entries), err)
	}
}

// TestInstallInto: an existing folder keeps files that are not the project's.
func TestInstallInto(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "greet")
	write := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(from, "handler.wasm"), "one")
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(to, "restricted.wasm"), "mine")
	for _, want := range []bool{true, false} {
		changed, _, err := (&Project{Dir: from}).install(to, []Module{{File: "handler.wasm"}})
		if err != nil || changed != want {
			t.Errorf("changed %v, %v; must be %v", changed, err, want)
		}
	}
	for file, want := range map[string]string{"handler.wasm": "one", "restricted.wasm": "mine"} {
		if b, err := os.ReadFile(filepath.Join(to, file)); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", file, b, err)
		}
	}
}
