package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/pdk/toolchain"
)

const linesGuests = "testdata/guests/lines"

// expand puts the number of the line that is marked "// NAME" in the place of
// each FILE:NAME.
func expand(t *testing.T, text string) string {
	return regexp.MustCompile(`\w+\.\w+:[a-z_]+`).ReplaceAllStringFunc(text, func(s string) string {
		file, mark, _ := strings.Cut(s, ":")
		b, err := os.ReadFile(filepath.Join(linesGuests, file))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			if n++; strings.HasSuffix(line, "// "+mark+"\n") {
				return file + ":" + strconv.Itoa(n)
			}
		}
		t.Fatalf("%s has no line %q", file, mark)
		return ""
	})
}

// linesOfC builds the guest in C from a folder that is not this one, or skips.
func linesOfC(t testing.TB, flags ...string) []byte {
	t.Helper()
	clang, err := toolchain.Find(context.Background(), toolchain.C, ".")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(linesGuests)); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"guest", "other"} {
		compile(t, dir, clang, append([]string{"--target=wasm32", "-c", "-o", source + ".o", source + ".c"}, flags...)...)
	}
	compile(t, dir, clang, "--target=wasm32", "-nostdlib", "-Wl,--no-entry", "-o", "guest.wasm", "guest.o", "other.o")
	return readFile(t, filepath.Join(dir, "guest.wasm"))
}

// linesOfRust builds the guest in Rust, or skips.
func linesOfRust(t testing.TB, flags ...string) []byte {
	t.Helper()
	cargo, err := toolchain.Find(context.Background(), toolchain.Rust, ".")
	if err != nil {
		t.Skip(err)
	}
	out := filepath.Join(t.TempDir(), "guest.wasm")
	compile(t, linesGuests, filepath.Join(filepath.Dir(cargo), "rustc"), append([]string{
		"--target", "wasm32-unknown-unknown", "--crate-type", "cdylib", "--crate-name", "guest", "--edition", "2021",
		"-C", "panic=abort", "-o", out, "guest.rs"}, flags...)...)
	return readFile(t, out)
}

func compile(t testing.TB, dir, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, msg)
	}
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// trapped is what a call that traps says, less what is around it.
func trapped(t *testing.T, m *Module, export string) string {
	t.Helper()
	_, err := m.Call(context.Background(), Invocation{Export: export})
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != Trapped {
		t.Fatalf("%s: %v, must be a trap", export, err)
	}
	_, said, _ := strings.Cut(err.Error(), "trapped: ")
	said, _, _ = strings.Cut(said, ";")
	return said
}

// TestLines: a trap says in which line it was, in which ones the functions
// were that called, and names those that were inlined. A stack that overflows
// has no lines, since wazero looks at the stack then no more.
func TestLines(t *testing.T) {
	wantC := map[string]string{
		"bad_address": "out of bounds memory access in get (inlined.h:get) < look (inlined.h:look) < reads (guest.c:reads) < bad_address (guest.c:bad_address)",
		"division":    "integer divide by zero in divide (other.c:divide) < division (guest.c:division)",
		"stop":        "unreachable in stop (guest.c:stop)",
	}
	check := func(t *testing.T, m *Module, want map[string]string) {
		t.Helper()
		for export, want := range want {
			if got := trapped(t, m, export); got != expand(t, want) {
				t.Errorf("%s: %s\nmust be %s", export, got, expand(t, want))
			}
		}
	}
	for name, flags := range map[string][]string{
		"as it is written":          {"-O0", "-gdwarf-4"},
		"as it is written, DWARF 5": {"-O0", "-gdwarf-5"},
		"optimized":                 {"-O2", "-gdwarf-4"},
		"optimized, DWARF 5":        {"-O2", "-gdwarf-5"},
		"lines only":                {"-O2", "-gline-tables-only"},
	} {
		t.Run("C, "+name, func(t *testing.T) {
			code := linesOfC(t, flags...)
			m := load(t, newEngine(t), Spec{Wasm: code})
			check(t, m, wantC)
			check(t, m, wantC) // another instance
			if m.rewritten.Debug != nil {
				t.Error("the module as it was is kept")
			}
			// What is compiled already has its lines too.
			check(t, load(t, newEngine(t), Spec{Wasm: code}), wantC)
			// A module can be compiled in this process, too.
			e, err := New(Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			m, err = e.Load(context.Background(), Spec{Wasm: code})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			check(t, m, wantC)
		})
	}
	t.Run("C, without DWARF", func(t *testing.T) {
		m := load(t, newEngine(t), Spec{Wasm: linesOfC(t, "-O2", "-g0")})
		check(t, m, map[string]string{
			"bad_address": "out of bounds memory access in reads < bad_address",
			"division":    "integer divide by zero in divide < division",
			"stop":        "unreachable in stop",
		})
		if m.lines != "" {
			t.Errorf("a module without DWARF has lines in %s", m.lines)
		}
	})
	for name, flags := range map[string][]string{
		"as it is written": {"-C", "debuginfo=2"},
		"optimized":        {"-O", "-C", "debuginfo=2"},
		"lines only":       {"-O", "-C", "debuginfo=line-tables-only"},
		"DWARF 5":          {"-O", "-C", "debuginfo=2", "-C", "llvm-args=--dwarf-version=5"},
	} {
		t.Run("Rust, "+name, func(t *testing.T) {
			m := load(t, newEngine(t), Spec{Wasm: linesOfRust(t, flags...)})
			for export, want := range map[string]string{
				"bad_address": "read (guest.rs:read) < check (guest.rs:check) < bad_address (guest.rs:bad_address)",
				"stop":        "stop (guest.rs:stop)",
				"index":       "index (guest.rs:index)",
			} {
				// With or without its module, as the compiler has it; how the
				// library aborts is its own matter.
				got := strings.ReplaceAll(trapped(t, m, export), "guest::rules::", "")
				if !strings.HasSuffix(got, expand(t, want)) {
					t.Errorf("%s: %s\nmust be %s", export, got, expand(t, want))
				}
			}
		})
	}
}

// TestLinesOfOtherSources: two modules that differ in nothing but lines do not
// tell each other's.
func TestLinesOfOtherSources(t *testing.T) {
	one := linesOfC(t, "-O2", "-gline-tables-only")
	other := linesOfC(t, "-O2", "-gline-tables-only", "-fdebug-prefix-map=guest.c=later.c")
	if string(one) == string(other) {
		t.Fatal("they are the same")
	}
	e := newEngine(t)
	a, b := load(t, e, Spec{Wasm: one}), load(t, e, Spec{Wasm: other})
	if got := trapped(t, a, "stop"); !strings.Contains(got, "(guest.c:") {
		t.Error(got)
	}
	if got := trapped(t, b, "stop"); !strings.Contains(got, "(later.c:") {
		t.Error(got)
	}
}

// TestLinesLost: without its table, or with one that is damaged or of another
// version, a module runs, and a trap names functions.
func TestLinesLost(t *testing.T) {
	m := load(t, newEngine(t), Spec{Wasm: linesOfC(t, "-O2", "-gdwarf-4")})
	const names = "integer divide by zero in divide < division"
	table := readFile(t, m.lines)
	for name, damage := range map[string]func() error{
		"cut off":         func() error { return os.Truncate(m.lines, 40) },
		"empty":           func() error { return os.Truncate(m.lines, 0) },
		"another version": func() error { return os.WriteFile(m.lines, append([]byte("toold:lines 0\n"), table[14:]...), 0o600) },
		"not there":       func() error { return os.Remove(m.lines) },
	} {
		if err := os.WriteFile(m.lines, table, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := trapped(t, m, "division"); !strings.Contains(got, "(other.c:") {
			t.Fatalf("%s, before it: %s", name, got)
		}
		if err := damage(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if got := trapped(t, m, "division"); got != names {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// replaceCustom is a module whose custom section of that name has another
// content.
func replaceCustom(t *testing.T, module []byte, name string, change func([]byte) []byte) []byte {
	t.Helper()
	out, rest, found := module[:8:8], module[8:], false
	for len(rest) > 0 {
		size, n := binary.Uvarint(rest[1:])
		section := rest[:1+n+int(size)]
		rest = rest[len(section):]
		if content := section[1+n:]; section[0] == 0 && content[0] == byte(len(name)) && string(content[1:1+len(name)]) == name {
			head := content[:1+len(name)]
			changed := change(bytes.Clone(content[1+len(name):]))
			out = append(binary.AppendUvarint(append(out, 0), uint64(len(head)+len(changed))), head...)
			section, found = changed, true
		}
		out = append(out, section...)
	}
	if !found {
		t.Fatalf("there is no section %s", name)
	}
	return out
}

// TestLinesGarbage: DWARF that is wrong costs a module its lines, or the names
// of inlined functions, and nothing else.
func TestLinesGarbage(t *testing.T) {
	code := linesOfC(t, "-O2", "-gdwarf-4")
	e := newEngine(t)
	garbage := func(b []byte) []byte { return bytes.Repeat([]byte{0xa5}, len(b)) }
	half := func(b []byte) []byte { return b[:len(b)/2] }
	const names = "out of bounds memory access in reads < bad_address"
	const lines = "out of bounds memory access in reads (inlined.h:get) < bad_address (guest.c:bad_address)"
	for _, tt := range []struct {
		name, section string
		change        func([]byte) []byte
		want          string
	}{
		{"garbage for lines", ".debug_line", garbage, names},
		{"lines cut short", ".debug_line", half, names},
		{"garbage for what is inlined", ".debug_info", garbage, lines},
		{"garbage for how that is coded", ".debug_abbrev", garbage, lines},
		{"nothing of that", ".debug_info", func([]byte) []byte { return nil }, lines},
		// Two empty lists are no lines either; whoever counts on them has none.
		{"no line programs", ".debug_line", func([]byte) []byte { return nil }, names},
		{"garbage for names", ".debug_str", garbage, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changed := replaceCustom(t, code, tt.section, tt.change)
			if _, err := Inspect("x", changed); err != nil {
				t.Fatal(err)
			}
			got := trapped(t, load(t, e, Spec{Wasm: changed}), "bad_address")
			if want := expand(t, tt.want); want != "" && got != want {
				t.Errorf("%s\nmust be %s", got, want)
			}
		})
	}
}

// TestCompilerEndsLate: a process that compiles and then ends before it has
// read the lines leaves a module without; one that ends before it has compiled
// leaves none.
func TestCompilerEndsLate(t *testing.T) {
	code := linesOfC(t, "-O2", "-gdwarf-4")
	self := compiler
	if self == "/proc/self/exe" {
		var err error
		if self, err = os.Executable(); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		script, want string
	}{
		"late":  {"'" + self + "' \"$@\" && rm \"$2/lines\" && kill -9 $$", ""},
		"early": {"'" + self + "' \"$@\" > /dev/null && kill -9 $$", "compiling it takes more than"},
		"liar":  {"echo compiled", "it left 0 files"},
	} {
		t.Run(name, func(t *testing.T) {
			script := filepath.Join(t.TempDir(), "compiler")
			if err := os.WriteFile(script, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			e, err := New(Config{Compiler: script})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			m, err := e.Load(context.Background(), Spec{Name: "x", Wasm: code})
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("%v, must say %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if got := trapped(t, m, "stop"); got != "unreachable in stop" {
				t.Error(got)
			}
		})
	}
}

// TestInspectLines: lines are said to be there when a trap will tell them.
func TestInspectLines(t *testing.T) {
	code := linesOfC(t, "-O2", "-gdwarf-4")
	for _, tt := range []struct {
		code []byte
		want bool
	}{
		{code, true},
		{replaceCustom(t, code, ".debug_line", func(b []byte) []byte { return b[:10] }), false},
		{linesOfC(t, "-O2", "-g0"), false},
	} {
		info, err := Inspect("x", tt.code)
		if err != nil {
			t.Fatal(err)
		}
		if info.Lines != tt.want {
			t.Errorf("lines: %v, must be %v", info.Lines, tt.want)
		}
	}
}

// TestLinesPruned: the lines of a module that nobody loads any more go with its
// code.
func TestLinesPruned(t *testing.T) {
	dir := t.TempDir()
	engine := func() *Engine {
		e, err := New(Config{CacheDir: dir, Compiler: compiler})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	m := load(t, engine(), Spec{Wasm: readFile(t, "wasm/testdata/lines5.wasm")})
	if got := trapped(t, m, "stop"); !strings.Contains(got, "guest.c:") {
		t.Error(got)
	}
	notes, err := filepath.Glob(filepath.Join(dir, "notes", "*"))
	if err != nil || len(notes) != 1 {
		t.Fatal(notes, err)
	}
	old := time.Now().Add(-unused - time.Hour)
	if err := os.Chtimes(notes[0], old, old); err != nil {
		t.Fatal(err)
	}
	engine()
	if _, err := os.Stat(m.lines); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its lines are there: %v", err)
	}
}
