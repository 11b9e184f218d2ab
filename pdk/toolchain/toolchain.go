// Package toolchain builds guests: it finds the compiler of a language, says
// which command installs one that is missing, and makes one WebAssembly module
// of one source.
//
// It runs the compilers that are there and downloads nothing. toolctl plugin
// and the tests that build guests use it.
package toolchain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Language is one that guests are written in.
type Language string

// The languages that have an SDK here.
const (
	Go             Language = "go"
	Rust           Language = "rust"
	C              Language = "c"
	AssemblyScript Language = "assemblyscript"
)

// Languages returns all of them.
func Languages() []Language { return []Language{Go, Rust, C, AssemblyScript} }

// MissingError is a program that is not there, with how to install it.
type MissingError struct {
	Language Language
	Program  string // what was looked for
	Install  string // a command that brings it
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("find %s, which builds %s: it is not installed; run: %s", e.Program, e.Language, e.Install)
}

// FailedError is a compiler that ran and failed.
type FailedError struct {
	Command []string
	Output  string // its output
}

func (e *FailedError) Error() string {
	text := fmt.Sprintf("build: %s failed:\n%s", filepath.Base(e.Command[0]), strings.TrimRight(e.Output, "\n"))
	for _, h := range hints {
		if strings.Contains(e.Output, h.said) {
			return text + "\n" + h.next
		}
	}
	return text + "\nmend what it names"
}

// hints are for what compilers say to whom this is new.
var hints = []struct{ said, next string }{
	// C
	{"undefined symbol:", "there is no C library: use what toold.h has"},
	{"'toold.h' file not found", "toold.h belongs beside the source: toolctl plugin new writes it there"},
	{".h' file not found", "there is no C library, and no header of one: use what toold.h has"},
	// Go
	{"build cache is required", "set HOME, or GOCACHE, to a folder that is yours"},
	{"updates to go.mod needed", "the SDK is in ./toold: keep the replace line in go.mod"},
	{"no required module provides package github.com/toold/toold", "the SDK is in ./toold: keep the replace line in go.mod, or run go get github.com/toold/toold/pdk"},
	{"provides package ", "run go get with its name where there is a network, or do without it"},
	{"providing package ", "run go get with its name where there is a network, or do without it"},
	{"build constraints exclude all Go files", "no file is left for wasip1: cgo (import \"C\") cannot be built for wasm; fix that, the build tags, or the files' names"},
	// Rust
	{"no library targets found", "a tool is a library: put it into src/lib.rs, with toold::handle!(f), and leave out src/main.rs"},
	{"no matching package named", "cargo does not know that crate here: run cargo fetch where there is a network, or do without it; toold has JSON, base64 and http"},
	{"failed to get `", "cargo does not know that crate here: run cargo fetch where there is a network, or do without it; toold has JSON, base64 and http"},
	{"in `toold`", "toold has handle!, restrict!, describe!, discover! and classify!"},
	// AssemblyScript
	{"Element 'assembly/toold/host/abort' not found", "nothing of the SDK is imported: import it from ./toold"},
	{"File '~lib/", "packages of node and npm are not there: use AssemblyScript's own library and what ./toold has"},
	{"Cannot find name 'JSON'", "read JSON with Reader, member and textOf of ./toold, write it with Writer"},
	{"'~lib/process/process'", "a guest has no process: answer stdout and exit_code as an Outcome, log with log of ./toold"},
	{"Not implemented: Closures", "a function sees its parameters and globals only: pass it what it needs, or make that global"},
	{"Not implemented: Exceptions", "what is thrown ends the call and cannot be caught: ask first, and answer Outcome.fails"},
}

// Options are what is built.
type Options struct {
	Language Language
	// Dir is the folder that the compiler is run in.
	Dir string
	// Source is relative to Dir: a package for Go, a file for C and
	// AssemblyScript, the name of a package of the workspace for Rust ("" for
	// the only one).
	Source string
	// Out is the file that is written; it is replaced in one step.
	Out string
	// Strip leaves out the names of functions and, in C and Rust, the lines
	// (DWARF), which a trap shows.
	Strip bool
	// Flags are further ones for the compiler.
	Flags []string
	// Component makes a component of WASI 0.2 of what is in Rust.
	Component bool
}

// Find returns the program that builds a language, or a *MissingError. dir is
// where a program of the project's own (node_modules) is looked for, and in
// all folders above it.
func Find(ctx context.Context, l Language, dir string) (string, error) {
	c, err := find(ctx, l, dir)
	return c.program, err
}

// compiler is what builds a language.
type compiler struct {
	program string
	linker  string // of C
	node    string // which runs that of AssemblyScript
	asc     *asc   // it, where it is kept running
	// quick: build what runs the same, sooner and less well.
	quick bool
}

func find(ctx context.Context, l Language, dir string) (c compiler, err error) {
	switch l {
	case Go:
		c.program, err = look(l, "go", "install Go 1.24 or later from https://go.dev/dl")
	case C:
		c.program, c.linker, err = findClang(ctx)
	case Rust:
		c.program, err = findCargo(ctx)
	case AssemblyScript:
		if c.program, err = findASC(dir); err == nil {
			c.node, err = look(l, "node", packages("nodejs npm", "node"))
		}
	default:
		err = fmt.Errorf("find a compiler for %q: there is an SDK for %v", l, Languages())
	}
	return c, err
}

func look(l Language, program, install string) (string, error) {
	p, err := exec.LookPath(program)
	if err != nil {
		return "", &MissingError{l, program, install}
	}
	return p, nil
}

// packages is how packages are installed here, which have the names apt on Debian
// and brew on macOS.
func packages(apt, brew string) string {
	if runtime.GOOS == "darwin" {
		return "brew install " + brew
	}
	return debian(apt)
}

// debian is how Debian's packages are installed by whoever runs this.
func debian(packages string) string {
	if os.Geteuid() == 0 {
		return "apt-get install " + packages
	}
	return "sudo apt-get install " + packages
}

// findClang takes the first clang that has a linker for wasm beside it.
func findClang(ctx context.Context) (clang, linker string, err error) {
	install := packages("clang lld", "llvm lld")
	missing := &MissingError{C, "clang", install}
	names := []string{"clang"}
	for v := 30; v >= 11; v-- {
		names = append(names, fmt.Sprintf("clang-%d", v))
	}
	for _, dir := range []string{"", "/opt/homebrew/opt/llvm/bin", "/usr/local/opt/llvm/bin"} {
		for _, name := range names {
			p, err := exec.LookPath(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			missing.Program = "wasm-ld, the linker of " + name
			out, err := exec.CommandContext(ctx, p, "-print-prog-name=wasm-ld").Output()
			if err != nil {
				continue
			}
			if linker, err := exec.LookPath(strings.TrimSpace(string(out))); err == nil {
				return p, linker, nil
			}
		}
	}
	return "", "", missing
}

const (
	rustTarget = "wasm32-unknown-unknown"
	// componentTarget has a linker that makes components.
	componentTarget = "wasm32-wasip2"
)

// componentMakers are programs that make a component of a module, with the
// arguments before its name and the one before that of the component.
var componentMakers = [][]string{{"wasm-tools", "component", "new"}, {"jco", "new"}}

// findComponent returns the target that components are built for and, where that
// makes modules, what makes a component of one.
func findComponent(ctx context.Context, cargo string) (target string, maker []string, err error) {
	if hasTarget(ctx, cargo, componentTarget) {
		return componentTarget, nil, nil
	}
	for _, m := range componentMakers {
		if p, err := exec.LookPath(m[0]); err == nil {
			return rustTarget, append([]string{p}, m[1:]...), nil
		}
	}
	return "", nil, &MissingError{Rust, "the target " + componentTarget + " of " + cargo, "rustup target add " + componentTarget + " (or cargo install wasm-tools)"}
}

// hasTarget reports whether the compiler beside cargo has a target's library.
func hasTarget(ctx context.Context, cargo, target string) bool {
	out, err := exec.CommandContext(ctx, filepath.Join(filepath.Dir(cargo), "rustc"), "--print", "target-libdir", "--target", target).Output()
	if err != nil {
		return false
	}
	_, err = os.Stat(strings.TrimSpace(string(out)))
	return err == nil
}

func findCargo(ctx context.Context) (string, error) {
	install := "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --target " + rustTarget +
		" (Debian: " + debian("cargo libstd-rust-dev-wasm32 lld") + ")"
	p, err := exec.LookPath("cargo")
	if err != nil {
		home, herr := os.UserHomeDir()
		if herr != nil {
			return "", &MissingError{Rust, "cargo", install}
		}
		if p, err = exec.LookPath(filepath.Join(home, ".cargo", "bin", "cargo")); err != nil {
			return "", &MissingError{Rust, "cargo", install}
		}
	}
	// The target is a folder of the compiler's.
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(p), "rustc"), "--print", "target-libdir", "--target", rustTarget)
	out, err := cmd.Output()
	if err != nil {
		return "", &MissingError{Rust, "rustc beside " + p, install}
	}
	if _, err := os.Stat(strings.TrimSpace(string(out))); err != nil {
		return "", &MissingError{Rust, "the target " + rustTarget + " of " + p, "rustup target add " + rustTarget + " (Debian: " + debian("libstd-rust-dev-wasm32 lld") + ")"}
	}
	return p, nil
}

func findASC(dir string) (string, error) {
	install := "npm install --save-dev assemblyscript"
	if clean := filepath.Clean(dir); clean != "." {
		install = "cd '" + strings.ReplaceAll(clean, "'", `'\''`) + "' && " + install
	}
	if dir, err := filepath.Abs(dir); err == nil {
		for {
			p := filepath.Join(dir, "node_modules", ".bin", "asc")
			if _, err := exec.LookPath(p); err == nil {
				return p, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
			dir = filepath.Dir(dir)
		}
	}
	return look(AssemblyScript, "asc", install)
}

// Build makes a module. The error is a *MissingError, a *FailedError with what
// the compiler said, or one of the file system.
func Build(ctx context.Context, o Options) error {
	c, err := find(ctx, o.Language, o.Dir)
	if err != nil {
		return err
	}
	return c.buildInto(ctx, o)
}

// Builder builds one project repeatedly, for an author who waits: it finds the
// compiler once and, where possible, keeps it running, and optimises less. Modules
// give the same results but use more fuel.
type Builder struct{ compiler }

// OpenBuilder opens a Builder for the project in dir.
func OpenBuilder(ctx context.Context, l Language, dir string) (*Builder, error) {
	c, err := find(ctx, l, dir)
	if err != nil {
		return nil, err
	}
	c.quick = true
	if l == AssemblyScript {
		if c.asc, err = startASC(c.program, c.node, dir); err != nil {
			return nil, err
		}
	}
	return &Builder{c}, nil
}

// Build builds a module like the function Build.
func (b *Builder) Build(ctx context.Context, o Options) error { return b.buildInto(ctx, o) }

// Close ends the running compiler, if there is one.
func (b *Builder) Close() error {
	if b.asc == nil {
		return nil
	}
	return b.asc.close()
}

func (c *compiler) buildInto(ctx context.Context, o Options) error {
	out, err := filepath.Abs(o.Out)
	if err != nil {
		return err
	}
	// Next to its destination, so that it can be renamed there, and hidden, so
	// that it is not mistaken for a module.
	tmp, err := os.CreateTemp(filepath.Dir(out), "."+filepath.Base(out)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if err := tmp.Close(); err != nil {
		return err
	}
	if err := c.build(ctx, o, tmp.Name()); err != nil {
		return err
	}
	if err := os.Chmod(tmp.Name(), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), out)
}

func (c *compiler) build(ctx context.Context, o Options, out string) error {
	switch o.Language {
	case Go:
		args := []string{"build", "-trimpath", "-buildvcs=false", "-buildmode=c-shared"}
		if o.Strip {
			args = append(args, "-ldflags=-s")
		} else {
			// The wasm linker writes DWARF that nothing reads but this.
			args = append(args, "-ldflags=-w")
		}
		args = append(append(args, o.Flags...), "-o", out, "./"+filepath.ToSlash(o.Source))
		return run(ctx, o.Dir, []string{"GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0"}, c.program, args...)
	case C:
		// In two steps: given -O, clang has the linked module changed by
		// whichever wasm-opt is on PATH. The linker is run as clang would run
		// it, which takes longer to start than linking takes.
		object := out + ".o"
		defer os.Remove(object)
		level := "-O2"
		if c.quick {
			level = "-O0"
		}
		args := []string{"--target=wasm32", "-std=c11", level, "-Wall", "-I."}
		if !o.Strip {
			// The module is the same wherever it is built.
			args = append(args, "-gline-tables-only", "-fdebug-prefix-map="+folder(o.Dir)+"=.")
		}
		if err := run(ctx, o.Dir, nil, c.program, append(append(args, o.Flags...), "-c", "-o", object, o.Source)...); err != nil {
			return err
		}
		args = []string{"-m", "wasm32", "--no-entry"}
		if o.Strip {
			args = append(args, "-s")
		}
		return run(ctx, o.Dir, nil, c.linker, append(args, "-o", out, object)...)
	case Rust:
		return c.cargo(ctx, o, out)
	case AssemblyScript:
		// The rest is said by the project's asconfig.json.
		args := []string{o.Source, "-o", out}
		if !o.Strip {
			args = append(args, "--debug")
		}
		if c.asc != nil {
			return c.asc.compile(append(args, append(o.Flags, "--optimizeLevel", "0", "--shrinkLevel", "0")...))
		}
		return run(ctx, o.Dir, nil, c.program, append(args, o.Flags...)...)
	}
	return fmt.Errorf("build %q: there is an SDK for %v", o.Language, Languages())
}

// cargo builds a library and copies it to out.
func (c *compiler) cargo(ctx context.Context, o Options, out string) error {
	profile, settings := "release", []string(nil)
	if c.quick {
		// A profile of its own, so that neither build throws away what the
		// other compiled.
		profile = "toold-dev"
		for _, v := range []string{`inherits="release"`, "opt-level=1", "incremental=true"} {
			settings = append(settings, "--config", "profile.toold-dev."+v)
		}
	}
	if !o.Strip {
		// The library's own lines come with it, and make most of the module.
		settings = append(settings, "--config", "profile."+profile+".debug=1", "--config", "profile."+profile+`.strip="none"`)
		// The module is the same wherever it is built, unless flags are set
		// that count instead of these.
		settings = append(settings, "--config", fmt.Sprintf("build.rustflags=[%q]", "--remap-path-prefix="+folder(o.Dir)+"=."))
	}
	target, maker := rustTarget, []string(nil)
	if o.Component {
		var err error
		if target, maker, err = findComponent(ctx, c.program); err != nil {
			return err
		}
	}
	args := append(settings, "rustc", "--quiet", "--profile", profile, "--lib", "--crate-type", "cdylib", "--target", target)
	args = append(args, "--message-format", "json-render-diagnostics")
	if o.Source != "" {
		args = append(args, "--package", o.Source)
	}
	var env []string
	if o.Strip {
		env = append(env, "CARGO_PROFILE_RELEASE_STRIP=true")
	}
	// The compiler is the one beside cargo, whichever is first on PATH.
	env = append(env, "PATH="+filepath.Dir(c.program)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	said, err := output(ctx, o.Dir, env, c.program, append(args, o.Flags...)...)
	if err != nil {
		return err
	}
	// It says where it put what: that depends on the names of the package and
	// of its library, and on whose target folder it is.
	built := ""
	for line := range bytes.Lines(said) {
		var m struct {
			Reason    string   `json:"reason"`
			Filenames []string `json:"filenames"`
		}
		if json.Unmarshal(line, &m) != nil || m.Reason != "compiler-artifact" {
			continue
		}
		for _, f := range m.Filenames {
			if filepath.Ext(f) == ".wasm" {
				built = f // the last one is that of the package itself
			}
		}
	}
	if built == "" {
		return errors.New("find what cargo built: it produced no module; does the package have a library?")
	}
	if maker != nil {
		return run(ctx, o.Dir, nil, maker[0], append(maker[1:], built, "-o", out)...)
	}
	b, err := os.ReadFile(built)
	if err != nil {
		return fmt.Errorf("find what cargo built: %w", err)
	}
	return os.WriteFile(out, b, 0o644)
}

// folder is dir as a compiler that runs there knows it.
func folder(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	return dir
}

// interrupted is how long a program may take to end after it was interrupted, before it
// is killed.
const interrupted = 5 * time.Second

// run runs a program whose output matters only where it fails.
func run(ctx context.Context, dir string, env []string, program string, args ...string) error {
	_, err := output(ctx, dir, env, program, args...)
	return err
}

// output returns what a program writes to its standard output.
func output(ctx context.Context, dir string, env []string, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	// A compiler that is killed leaves its temporary files.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interrupted
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if _, ok := err.(*exec.ExitError); ok {
		// asc and go say some of it there, cargo all of it to stderr.
		text := said.String()
		if !strings.HasPrefix(out.String(), "{") {
			text = out.String() + text
		}
		return nil, &FailedError{cmd.Args, text}
	}
	return out.Bytes(), err
}
