package toolchain

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// machine is a PATH on which there are only these programs, each a shell
// script, and an empty home.
func machine(t *testing.T, programs map[string]string) {
	t.Helper()
	bin := t.TempDir()
	for name, script := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	t.Setenv("HOME", t.TempDir())
}

// TestMissing: what is not there is named, with the line that brings it.
func TestMissing(t *testing.T) {
	for _, tt := range []struct {
		name     string
		language Language
		programs map[string]string
		program  string
		install  string
	}{
		{"no go", Go, nil, "go", "https://go.dev/dl"},
		{"no clang", C, nil, "clang", "clang lld"},
		{"a clang without a linker", C, map[string]string{"clang": "echo wasm-ld"}, "wasm-ld, the linker of clang", "clang lld"},
		{"a clang that does not run", C, map[string]string{"clang": "exit 1"}, "wasm-ld, the linker of clang", "clang lld"},
		{"no cargo", Rust, nil, "cargo", "--target wasm32-unknown-unknown"},
		{"cargo without rustc", Rust, map[string]string{"cargo": ""}, "rustc beside", "--target wasm32-unknown-unknown"},
		{"no target", Rust, map[string]string{"cargo": "", "rustc": "echo /no/such/folder"}, "the target wasm32-unknown-unknown", "rustup target add wasm32-unknown-unknown"},
		{"no asc", AssemblyScript, nil, "asc", "npm install --save-dev assemblyscript"},
		{"asc without node", AssemblyScript, map[string]string{"asc": ""}, "node", "nodejs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			machine(t, tt.programs)
			_, err := Find(t.Context(), tt.language, t.TempDir())
			var missing *MissingError
			if !errors.As(err, &missing) || !strings.HasPrefix(missing.Program, tt.program) || !strings.Contains(missing.Install, tt.install) {
				t.Fatalf("%v, must miss %q and say %q", err, tt.program, tt.install)
			}
			if text := err.Error(); !strings.Contains(text, missing.Program) || !strings.Contains(text, missing.Install) {
				t.Errorf("%q does not say what is missing and how it is installed", text)
			}
		})
	}
	// asc is installed into the project, wherever the caller is.
	machine(t, nil)
	for dir, want := range map[string]string{".": "run: npm install", "./": "run: npm install", "a/it's": `run: cd 'a/it'\''s' && npm install`} {
		if _, err := Find(t.Context(), AssemblyScript, dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", dir, err, want)
		}
	}
	if _, err := Find(t.Context(), "cobol", "."); err == nil || !strings.Contains(err.Error(), "go rust c assemblyscript") {
		t.Errorf("a language that there is not: %v", err)
	}
}

// TestNewestClang: a clang without a linker does not hide one that has it.
func TestNewestClang(t *testing.T) {
	machine(t, map[string]string{"clang": "echo no-such-linker", "clang-19": "echo wasm-ld-19", "wasm-ld-19": ""})
	if p, err := Find(t.Context(), C, "."); err != nil || filepath.Base(p) != "clang-19" {
		t.Errorf("%q, %v; must be clang-19", p, err)
	}
}

// rustProject is a package whose library has a name of its own.
var rustProject = map[string]string{
	"Cargo.toml": "[lib]\nname = \"other\"\ncrate-type = [\"cdylib\"]\n\n[package]\nname = \"my-tool\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\n",
	"src/lib.rs": "#[no_mangle]\npub extern \"C\" fn handle() -> i32 { 0 }\n",
}

// TestCargoNames: what cargo built is found, whatever it is called.
func TestCargoNames(t *testing.T) {
	if _, err := Find(t.Context(), Rust, "."); err != nil {
		t.Skip(err)
	}
	t.Setenv("CARGO_TARGET_DIR", "")
	os.Unsetenv("CARGO_TARGET_DIR")
	dir := t.TempDir()
	for name, text := range rustProject {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	w, err := OpenBuilder(t.Context(), Rust, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for name, build := range map[string]func(Options) error{
		"well":    func(o Options) error { return Build(t.Context(), o) },
		"quickly": func(o Options) error { return w.Build(t.Context(), o) },
	} {
		out := filepath.Join(dir, name+".wasm")
		if err := build(Options{Language: Rust, Dir: dir, Out: out}); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if b, err := os.ReadFile(out); err != nil || !strings.HasPrefix(string(b), "\x00asm") {
			t.Errorf("%s: it is no module, %v", name, err)
		}
	}
}

// TestBuilderRestartsCompiler: a compiler that is kept running and was ended is started
// again.
func TestBuilderRestartsCompiler(t *testing.T) {
	if _, err := Find(t.Context(), AssemblyScript, "."); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "handler.ts")
	if err := os.WriteFile(source, []byte("export function handle(): i32 { return 0; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := OpenBuilder(t.Context(), AssemblyScript, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	o := Options{Language: AssemblyScript, Dir: dir, Source: "handler.ts", Out: filepath.Join(dir, "handler.wasm")}
	for range 2 {
		if err := w.Build(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if err := w.asc.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(source, []byte("export function handle(): i32 { return x; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var failed *FailedError
	if err := w.Build(t.Context(), o); !errors.As(err, &failed) || !strings.Contains(failed.Output, "handler.ts(1,") {
		t.Errorf("%v, must name the line", err)
	}
}

// TestOldCargo: the lock files of this repository can be read by cargo 1.63,
// which Debian 12 has.
func TestOldCargo(t *testing.T) {
	locks, err := filepath.Glob("../../sdk-examples/*/Cargo.lock")
	if err != nil || len(locks) < 2 {
		t.Fatal(locks, err)
	}
	for _, file := range append(locks, "../rust/Cargo.lock") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "\nversion = 3\n") {
			t.Errorf("%s is not of version 3, which old and new cargo read", file)
		}
	}
}

// A build that is called off can remove what it has in the temporary folder.
func TestCalledOff(t *testing.T) {
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, dir, nil, "/bin/sh", "-c", `touch temporary; sleep 1000 & trap 'kill $!; rm temporary; exit 1' INT; echo > ready; wait`)
	}()
	if _, err := os.ReadFile(ready); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "temporary")); err == nil {
		t.Error("its temporary file is left")
	}
}
