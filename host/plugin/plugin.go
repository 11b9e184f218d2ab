// Package plugin is the workbench of those who write guests: it makes a folder
// that builds at once (New), builds it (Project.Build), runs its cases against
// the real engine (Workbench.Run), measures it (Bench), says what a module needs
// (Inspect) and keeps a daemon supplied with what was just saved (Dev).
//
// It is what toolctl plugin does, less the command line. It knows no sockets
// and no running daemon; what a module reaches during Run and Bench is what
// the case says.
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
	// CasesFile holds the cases that a Workbench runs.
	CasesFile = "cases.json"
)

// Project is a folder with the sources of a tool's modules.
type Project struct {
	Dir      string
	Language toolchain.Language
	// Sources are what is built, each to one module.
	Sources []string
	// workshop builds quickly, and into out, during Dev.
	workshop *toolchain.Workshop
	out      string
}

// Open finds out in which language a folder is written, and what is built of
// it: two modules where there are a handler and a policy, else one.
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
		p.Language = toolchain.Rust
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

// Module is one that was built.
type Module struct {
	File string `json:"file"` // handler.wasm or restricted.wasm
	Size int    `json:"size"`
	// SHA256 is for "hash" in tool.json.
	SHA256 string `json:"sha256"`
	// Needs are the lines of tool.json that grant what it imports.
	Needs []string `json:"needs,omitempty"`
	// Notes are places in its source that do nothing, or fail, in a guest.
	Notes []string `json:"notes,omitempty"`
}

// Build makes every module of the project, each into its place at the top of
// the folder: handler.wasm when it exports handle, restricted.wasm when it only
// exports restrict. Strip leaves out the names that a trap shows.
func (p *Project) Build(ctx context.Context, strip bool, flags []string) ([]Module, error) {
	var built []Module
	for _, source := range p.Sources {
		m, err := p.build(ctx, source, strip, flags)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(built, func(b Module) bool { return b.File == m.File }) {
			return nil, fmt.Errorf("build %s: two modules of the folder want to be it; one exports handle, the other only restrict", m.File)
		}
		built = append(built, *m)
	}
	return built, nil
}

func (p *Project) build(ctx context.Context, source string, strip bool, flags []string) (*Module, error) {
	to := first(p.out, p.Dir)
	tmp, err := os.MkdirTemp(to, ".build-")
	if err != nil {
		return nil, fmt.Errorf("write what is built into %s: %w; build a copy of the folder that is yours", to, errors.Unwrap(err))
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, "module.wasm")
	build := toolchain.Build
	if p.workshop != nil {
		build = p.workshop.Build
	}
	if err := build(ctx, toolchain.Options{Language: p.Language, Dir: p.Dir, Source: source, Out: out, Strip: strip, Flags: flags}); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	info, err := guest.Inspect(first(source, filepath.Base(p.Dir)), b)
	if err != nil {
		return nil, err
	}
	notes := p.notes(source)
	file, err := p.place(info)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", first(source, filepath.Base(p.Dir)), withNotes(err, notes))
	}
	for _, im := range info.Imports {
		if im.Fault != "" {
			err := fmt.Errorf("it imports %q from %q: %s; %s", im.Name, im.Module, im.Fault, undeclared(p.Language, im.Name))
			return nil, fmt.Errorf("build %s: %w", file, withNotes(err, notes))
		}
	}
	m := &Module{File: file, Size: info.Size, SHA256: info.SHA256, Needs: Needs(info), Notes: notes}
	return m, os.Rename(out, filepath.Join(to, file))
}

// withNotes is an error that they may explain.
func withNotes(err error, notes []string) error {
	if len(notes) == 0 {
		return err
	}
	return fmt.Errorf("%w\n%s", err, strings.Join(notes, "\n"))
}

// undeclared is what makes an import that nobody wanted, and what to do.
func undeclared(l toolchain.Language, name string) string {
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

// exporting is how each language exports one of the two.
var exporting = map[toolchain.Language]string{
	toolchain.Go:             "write //go:wasmexport handle above func handle() int32",
	toolchain.Rust:           "write toold::handle!(f)",
	toolchain.C:              "write TOOLD_HANDLE(f)",
	toolchain.AssemblyScript: "write export function handle(): i32 in the file that is built",
}

// place is the file that a module belongs into, by what it exports.
func (p *Project) place(info *guest.Info) (string, error) {
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
		return "", fmt.Errorf(`it exports neither handle nor restrict, but %s; to export one of them, %s (or name your own under "entry" in tool.json)`, strings.Join(have, ", "), exporting[p.Language])
	}
	return "", fmt.Errorf("it exports nothing that can be called; to export handle (or restrict), %s", exporting[p.Language])
}

// Needs are the lines of tool.json that grant what a module imports, each once.
func Needs(info *guest.Info) []string {
	var lines []string
	for _, im := range info.Imports {
		if im.Needs != "" && !slices.Contains(lines, im.Needs) {
			lines = append(lines, im.Needs)
		}
	}
	return lines
}

// definition is the folder's tool.json, or the default where there is none.
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

// spec is how a daemon would load a module of the folder.
func spec(file string, b []byte, d *tools.Definition) guest.Spec {
	c := &d.Capabilities
	s := guest.Spec{
		Name: file, Wasm: b, Memory: int64(d.Limits.Memory), Fuel: d.Limits.Fuel, Output: int64(d.Limits.Output), Config: d.Config,
		Grants: guest.Grants{Exec: len(c.Exec) > 0, HTTP: c.HTTP != nil, State: c.State > 0, ToolCall: c.ToolCall},
	}
	for at, f := range c.Files {
		s.Files = append(s.Files, guest.Mount{Guest: at, Host: f.Path, ReadOnly: f.Mode != "rw"})
	}
	return s
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" && v != "." {
			return v
		}
	}
	return ""
}
