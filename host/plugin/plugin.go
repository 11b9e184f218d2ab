// Package plugin implements the commands of toolctl plugin for authors of guests: it creates a project (New), builds
// it (Project.Build), runs its cases in the real engine (Runner.Run), measures it (Bench), describes a module
// (Inspect) and rebuilds and installs it on each change (Project.Dev).
//
// It uses no sockets and no running daemon; during Run and Bench, a module's requests are served from the case.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/toolchain"
)

// Files of a tool's folder.
const (
	handlerFile    = "handler.wasm"
	policyFile     = "restricted.wasm"
	definitionFile = "tool.json"
	// CasesFile holds the cases that a Runner runs.
	CasesFile = "cases.json"
)

// Project is a folder with the sources of a tool's modules.
type Project struct {
	Dir      string
	Language toolchain.Language
	// Sources are the build inputs, each of one module.
	Sources []string
	// component: it has a folder wit with the world of a component.
	component bool
	// builder makes fast builds into out during Dev.
	builder *toolchain.Builder
	out     string
}

// Open detects the language of a folder and its modules: two if it has a handler
// and a policy, else one.
func Open(dir string) (*Project, error) {
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	}
	switch st, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("find what to build in %s: there is no such folder; toolctl plugin new makes one", dir)
	case err != nil:
		return nil, err
	case !st.IsDir():
		return nil, fmt.Errorf("find what to build in %s: it is a file; name the folder that it is in", dir)
	}
	p := &Project{Dir: dir}
	pair := func(names ...string) {
		for _, n := range names {
			if has(n) {
				p.Sources = append(p.Sources, n)
			}
		}
	}
	switch {
	case has("Cargo.toml"):
		p.Language, p.component = toolchain.Rust, has("wit")
		pair("handler", "policy")
		if len(p.Sources) == 0 {
			p.Sources = []string{""}
		}
	case has("go.mod"):
		p.Language = toolchain.Go
		pair("handler", "policy")
		if len(p.Sources) == 0 {
			p.Sources = []string{"."}
		}
	case has("asconfig.json"):
		p.Language = toolchain.AssemblyScript
		pair("assembly/handler.ts", "assembly/policy.ts", "handler.ts", "policy.ts")
		if len(p.Sources) == 0 && has("assembly/index.ts") {
			p.Sources = []string{"assembly/index.ts"}
		}
	default:
		p.Language = toolchain.C
		pair("handler.c", "policy.c")
		found, _ := fs.Glob(os.DirFS(dir), "*.c")
		if len(p.Sources) == 0 && len(found) > 1 {
			return nil, fmt.Errorf("find what to build in %s: which of %s is it? call it handler.c (or policy.c), and include the others from it", dir, strings.Join(found, ", "))
		}
		if len(p.Sources) == 0 {
			p.Sources = found
		}
	}
	if len(p.Sources) == 0 {
		return nil, fmt.Errorf("find what to build in %s: there is no go.mod, Cargo.toml, asconfig.json, handler.c or policy.c; change to the tool's folder, or make one with toolctl plugin new", dir)
	}
	return p, nil
}

// Module is a built module.
type Module struct {
	File string `json:"file"` // handler.wasm or restricted.wasm
	Size int    `json:"size"`
	// SHA256 is for "hash" in tool.json.
	SHA256 string `json:"sha256"`
	// Needs are the lines of tool.json that grant its imports.
	Needs []string `json:"needs,omitempty"`
	// Notes are warnings about source lines that do not work in a guest.
	Notes []string `json:"notes,omitempty"`
}

// Build builds every module of the project into the top of the folder:
// handler.wasm if it exports handle, restricted.wasm if it only exports restrict.
// strip removes the function names that a trap shows.
func (p *Project) Build(ctx context.Context, strip bool, flags []string) ([]Module, error) {
	var built []Module
	for _, source := range p.Sources {
		m, err := p.build(ctx, source, strip, flags)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(built, func(b Module) bool { return b.File == m.File }) {
			return nil, fmt.Errorf("build %s: two modules of the folder have this name; let one export handle, the other only restrict", m.File)
		}
		built = append(built, *m)
	}
	return built, nil
}

func (p *Project) build(ctx context.Context, source string, strip bool, flags []string) (*Module, error) {
	to := firstNonEmpty(p.out, p.Dir)
	tmp, err := os.MkdirTemp(to, ".build-")
	if err != nil {
		return nil, fmt.Errorf("write the module to %s: %w; build a copy of the folder that you own", to, errors.Unwrap(err))
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "module.wasm")
	build := toolchain.Build
	if p.builder != nil {
		build = p.builder.Build
	}
	if err := build(ctx, toolchain.Options{Language: p.Language, Dir: p.Dir, Source: source, Out: out, Strip: strip, Flags: flags, Component: p.component}); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	info, err := guest.Inspect(firstNonEmpty(source, filepath.Base(p.Dir)), b)
	if err != nil {
		return nil, tools.Explain(err)
	}
	notes := p.notes(source)
	file, err := p.outputFile(info)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", firstNonEmpty(source, filepath.Base(p.Dir)), withNotes(err, notes))
	}
	for _, im := range info.Imports {
		if im.Fault != "" {
			err := fmt.Errorf("it imports %q from %q: %s; %s", im.Name, im.Module, im.Fault, importHint(p.Language, im.Name))
			return nil, fmt.Errorf("build %s: %w", file, withNotes(err, notes))
		}
	}
	m := &Module{File: file, Size: info.Size, SHA256: info.SHA256, Needs: Needs(info), Notes: notes}
	return m, os.Rename(out, filepath.Join(to, file))
}

// withNotes appends notes to an error that they may explain.
func withNotes(err error, notes []string) error {
	if len(notes) == 0 {
		return err
	}
	return fmt.Errorf("%w\n%s", err, strings.Join(notes, "\n"))
}

// importHint explains what causes an import that the host lacks, and how to avoid
// it.
func importHint(l toolchain.Language, name string) string {
	switch l {
	case toolchain.C:
		return "a function that is declared and nowhere defined becomes one: define it, or use what toold.h has"
	case toolchain.Rust:
		return `a function in extern "C" that nothing defines becomes one: there is no C library; use Rust's own, or another crate`
	case toolchain.AssemblyScript:
		switch {
		case name == "abort":
			return `say in asconfig.json what it is: "use": ["abort=assembly/toold/host/abort"]`
		case strings.HasPrefix(name, "console.") || name == "trace":
			return "nobody reads a console: log with log(Level.Info, text) of ./toold, or answer it as stdout"
		case name == "seed":
			return `Math.random wants a seed: declare random_get with @external("wasi_snapshot_preview1", "random_get") and draw from it`
		case strings.HasPrefix(name, "Date.") || strings.HasPrefix(name, "performance."):
			return `declare clock_time_get with @external("wasi_snapshot_preview1", "clock_time_get") for the time`
		}
		return "a function that is declared and nowhere defined becomes one: define it, or use what ./toold has"
	}
	return "leave out what uses it"
}

// exportHint is how each language exports handle or restrict.
var exportHint = map[toolchain.Language]string{
	toolchain.Go:             "write //go:wasmexport handle above func handle() int32",
	toolchain.Rust:           "write toold::handle!(f)",
	toolchain.C:              "write TOOLD_HANDLE(f)",
	toolchain.AssemblyScript: "write export function handle(): i32 in the file that is built",
}

// outputFile returns a module's file name, by its exports.
func (p *Project) outputFile(info *guest.Info) (string, error) {
	var have []string
	for _, x := range info.Exports {
		switch {
		case x.Name != "handle" && x.Name != "restrict":
			if x.Callable {
				have = append(have, x.Name)
			}
			continue
		case !x.Callable:
			return "", fmt.Errorf("export %q is %s, but must be () -> (i32); what it is asked comes through the SDK, not as parameters", x.Name, x.Type)
		}
	}
	exports := func(name string) bool {
		return slices.ContainsFunc(info.Exports, func(x guest.Function) bool { return x.Name == name })
	}
	entry := ""
	if d, err := definition(p.Dir); err == nil && d.Entry != nil {
		entry = d.Entry.Export
	}
	switch {
	case exports("handle"), slices.Contains(have, entry):
		return handlerFile, nil
	case exports("restrict"):
		return policyFile, nil
	case info.Command:
		return handlerFile, nil
	case len(have) > 0:
		return "", fmt.Errorf(`it exports neither handle nor restrict, but %s; to export one of them, %s (or name your own under "entry" in tool.json)`, strings.Join(have, ", "), exportHint[p.Language])
	}
	return "", fmt.Errorf("it exports nothing that can be called; to export handle (or restrict), %s", exportHint[p.Language])
}

// Needs returns the lines of tool.json that grant a module's imports, each once.
func Needs(info *guest.Info) []string {
	var lines []string
	for _, im := range info.Imports {
		if line := tools.Granting(im.Needs); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// notes returns the notes on the sources of one module.
func (p *Project) notes(source string) []string {
	d, err := definition(p.Dir)
	return notesOn(p.Language, p.Dir, source, err == nil && len(d.Capabilities.Files) > 0)
}

// definition returns the folder's tool.json, or the default if there is none.
func definition(dir string) (*tools.Definition, error) {
	file := filepath.Join(dir, definitionFile)
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return tools.DefaultDefinition(), nil
	}
	if err != nil {
		return nil, err
	}
	return tools.ParseDefinition(file, b)
}

// spec returns the Spec with which a daemon would load a module of the folder.
func spec(file string, b []byte, d *tools.Definition) guest.Spec {
	c := &d.Capabilities
	s := guest.Spec{
		Name: file, Wasm: b, Memory: int64(d.Limits.Memory), Fuel: d.Limits.Fuel, Output: int64(d.Limits.Output), Config: d.Config,
		Grants: c.Grants(), Compile: d.Limits.Compile.Limits(),
	}
	for at, f := range c.Files {
		s.Files = append(s.Files, guest.Mount{Guest: at, Host: f.Path, ReadOnly: f.Mode != "rw"})
	}
	return s
}

func firstNonEmpty(values ...string) string {
	for _, v := range values {
		if v != "" && v != "." {
			return v
		}
	}
	return ""
}
