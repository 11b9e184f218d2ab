package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/toold/toold/host/guest/component"
	"github.com/toold/toold/host/guest/wasip2"
	"github.com/toold/toold/host/guest/wasm"
)

// Info describes a module without running it.
type Info struct {
	SHA256    string `json:"sha256"`
	Size      int    `json:"size"` // bytes
	Functions int    `json:"functions"`
	// Names and Lines report whether a trap can name functions, and whether it can also
	// name source lines, because the module has DWARF.
	Names bool `json:"names"`
	Lines bool `json:"lines"`
	// Memory and MemoryMax are the initial and the maximum size of the memory, in
	// bytes.
	Memory    int64 `json:"memory"`
	MemoryMax int64 `json:"memory_max"`
	// Command reports that the module is a WASI command, for Module.Run.
	Command bool `json:"command,omitempty"`
	// Component is set if the module is a component. Exports and Imports are then the
	// component's, with WIT types; the other fields describe its main module.
	Component *ComponentInfo `json:"component,omitempty"`
	Exports   []Function     `json:"exports"`
	Imports   []Imported     `json:"imports"`
}

// ComponentInfo describes a component.
type ComponentInfo struct {
	// World lists the interfaces and functions that it imports.
	World []string `json:"world"`
	// Functions are its exports, with their schemas.
	Functions []ComponentFunction `json:"functions"`
	// Modules is the number of modules in it; all but one are glue.
	Modules int `json:"modules"`
	// Adapted reports that it was built from a module of WASI preview 1.
	Adapted bool `json:"adapted,omitempty"`
}

// Function is an exported function.
type Function struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// Callable reports whether a host can call it. The others have parameters, or
	// results other than at most one i32.
	Callable bool `json:"callable"`
}

// Imported is an import of a module.
type Imported struct {
	Module string `json:"module"`
	Name   string `json:"name"`
	Type   string `json:"type"`
	// Needs is the grant that the import requires; 0 if every module may have it.
	Needs Grants `json:"-"`
	// Fault is the reason why no module may import it.
	Fault string `json:"fault,omitempty"`
}

// Inspect reads a module and makes the checks that Load makes first, except for grants.
// It compiles and runs nothing. The error is an *Error of kind BadModule.
func Inspect(name string, b []byte) (*Info, error) {
	if err := checkBytes(name, b); err != nil {
		return nil, err
	}
	file := b
	var comp *composed
	if component.Is(b) {
		p, err := component.Read(b)
		if err != nil {
			return nil, componentError(name, err)
		}
		comp = &composed{program: p}
		b = p.Module
	}
	mod, err := rewrite(b)
	if err != nil {
		return nil, refused(name, err)
	}
	sum := sha256.Sum256(file)
	info := &Info{SHA256: hex.EncodeToString(sum[:]), Size: len(file), Functions: mod.Functions, Names: hasNames(b)}
	if mod.Debug != nil {
		_, err := mod.Debug.Lines()
		info.Lines = err == nil
	}
	if mod.Memory != nil {
		info.Memory, info.MemoryMax = int64(mod.Memory.Min)*wasmPage, int64(mod.Memory.Max)*wasmPage
	}
	if comp != nil {
		comp.inspect(info)
		return info, nil
	}
	known := append(hostFuncs(), wasiFuncs()...)
	kernel := false
	for _, im := range mod.Imports {
		i := Imported{Module: im.Module, Name: im.Name, Type: im.Kind.String()}
		if im.Kind == wasm.Func {
			i.Type = signature(im.Type.Params, im.Type.Results)
		}
		kernel = kernel || im.Module == envModule || im.Module == userModule
		at := slices.IndexFunc(known, func(f hostFunc) bool { return f.module == im.Module && f.name == im.Name })
		switch {
		case im.Kind != wasm.Func:
			i.Fault = "a guest has its own"
		case at < 0:
			i.Fault = "this host does not have it"
		case !same(im.Type.Params, known[at].params) || !same(im.Type.Results, known[at].results):
			i.Fault = "it is " + signature(ours(known[at].params), ours(known[at].results))
		default:
			i.Needs = known[at].needs
		}
		info.Imports = append(info.Imports, i)
	}
	start := false
	for _, x := range mod.Exports {
		if x.Kind == wasm.Func {
			start = start || x.Name == "_start"
			info.Exports = append(info.Exports, Function{x.Name, signature(x.Type.Params, x.Type.Results), callable(x.Type) && !internalExport(x.Name)})
		}
	}
	info.Command = start && !kernel
	return info, nil
}

// inspect fills in the external view of a component.
func (p *composed) inspect(info *Info) {
	c := &ComponentInfo{World: p.program.World, Modules: p.program.Modules, Adapted: p.program.Adapted}
	for _, x := range p.functions() {
		c.Functions = append(c.Functions, describeFunction(x))
	}
	info.Component = c
	info.Command = p.run() != nil && len(c.Functions) == 0
	for i := range p.program.Exports {
		x := &p.program.Exports[i]
		info.Exports = append(info.Exports, Function{x.FullName(), x.Type.String(), !x.IsRun()})
	}
	table := wasip2.Table()
	for _, im := range p.program.Imports {
		i := Imported{Module: im.Module, Name: im.Name, Type: "func"}
		if im.Func != nil {
			i.Module, i.Type = im.Func.Interface, im.Func.Type.String()
			if _, err := wasip2.Link(table, im.Func); err != nil {
				i.Fault = err.Error()
			}
		}
		info.Imports = append(info.Imports, i)
	}
}

// hasNames reports whether a valid module has a name section.
func hasNames(b []byte) bool {
	number := func(b []byte) (n uint64, rest []byte) {
		for i := range min(len(b), 10) {
			n |= uint64(b[i]&0x7f) << (7 * i)
			if b[i] < 0x80 {
				return n, b[i+1:]
			}
		}
		return 0, nil
	}
	for b = b[8:]; len(b) > 1; {
		id := b[0]
		size, rest := number(b[1:])
		if size > uint64(len(rest)) {
			return false
		}
		if n, name := number(rest[:size]); id == 0 && n == 4 && len(name) >= 4 && string(name[:4]) == "name" {
			return true
		}
		b = rest[size:]
	}
	return false
}

// Unshared returns the reason why calls cannot start from a shared image of the module
// and must each initialize an instance, which is slower. It is empty for most modules.
func (m *Module) Unshared() string { return m.unshared }
