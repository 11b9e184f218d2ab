package guest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"runtime"
	"slices"
	"weak"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/toold/toold/host/guest/wasm"
)

// A Module may consist of several WebAssembly modules: the one that is called, and
// those of an Extism manifest from which it imports functions. Each has its own memory,
// globals and tables. An instance of the Module has a part for each; its parts are
// created, accounted, restored and closed together, and share one call, stack and fuel.

// Linked is a module from which others of a Spec import functions.
type Linked struct {
	Name string // under which they import
	Wasm []byte
}

// program is one of the WebAssembly modules of a Module.
type program struct {
	name      string // under which others import from it; empty for the main one
	wasm      []byte // as loaded; nil once it is no longer needed
	rewritten *wasm.Module
	compiled  wazero.CompiledModule
	exports   *exportTable
}

// exportTable lists the functions that a program exports. It is immutable and shared by
// programs with the same exports, since sleeping modules hold little else.
type exportTable struct{ funcs map[string]wasm.FuncType }

// read rewrites the program and records its exports.
func (e *Engine) read(p *program, name string) error {
	var err error
	if p.rewritten, err = rewrite(p.wasm); err != nil {
		return refused(name, err)
	}
	exports := exportTable{map[string]wasm.FuncType{}}
	for _, x := range p.rewritten.Exports {
		if x.Kind == wasm.Func {
			exports.funcs[x.Name] = x.Type
		}
	}
	p.exports = e.share(exports)
	return nil
}

// share returns a table equal to t, shared by all existing programs with the same
// exports.
func (e *Engine) share(t exportTable) *exportTable {
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(t.funcs)) {
		for _, part := range []string{name, string(t.funcs[name].Params), string(t.funcs[name].Results)} {
			text = append(binary.AppendUvarint(text, uint64(len(part))), part...)
		}
	}
	key := sha256.Sum256(text)
	e.mu.Lock()
	defer e.mu.Unlock()
	if there := e.exports[key].Value(); there != nil {
		return there
	}
	e.exports[key] = weak.Make(&t)
	runtime.AddCleanup(&t, func(key [32]byte) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.exports[key].Value() == nil { // not replaced in the meantime
			delete(e.exports, key)
		}
	}, key)
	return &t
}

// forget releases what is only needed for compiling and initializing.
func (p *program) forget() {
	p.wasm, p.rewritten.Bytes, p.rewritten.Data = nil, nil, nil
}

// programs returns all programs of the Module, each after those it imports from: the
// main one is last.
func (m *Module) programs() []*program { return append(slices.Clip(m.linked), &m.program) }

// file returns a program's name for messages.
func (m *Module) file(p *program) string {
	if p.name == "" {
		return m.spec.Name
	}
	return m.spec.Name + " (module " + p.name + ")"
}

// ofLinked returns the type of an imported function that a linked module exports.
// linked is false if the import does not name a linked module.
func (m *Module) ofLinked(im wasm.Import) (t wasm.FuncType, linked bool, err error) {
	i := slices.IndexFunc(m.linked, func(p *program) bool { return p.name == im.Module })
	if i < 0 {
		return t, false, nil
	}
	if im.Kind != wasm.Func {
		return t, true, m.errorf(BadModule, "link the modules into one", "imports %s %q from the module %q; modules of a manifest share functions only", im.Kind, im.Name, im.Module)
	}
	t, ok := m.linked[i].exports.funcs[im.Name]
	switch {
	case !ok:
		return t, true, m.errorf(BadModule, "build both again", "imports %q from the module %q, which does not export it", im.Name, im.Module)
	case !slices.Equal(t.Params, im.Type.Params) || !slices.Equal(t.Results, im.Type.Results):
		return t, true, m.errorf(BadModule, "build both again", "imports %q from the module %q as %s, but it is %s", im.Name, im.Module, signature(im.Type.Params, im.Type.Results), signature(t.Params, t.Results))
	case slices.ContainsFunc(slices.Concat(t.Params, t.Results), func(t wasm.ValueType) bool { return t == wasm.FuncRef || t == wasm.ExternRef }):
		// A reference to one module's table would have to be restored in the other.
		return t, true, m.errorf(BadModule, "pass numbers", "imports %q from the module %q, which passes references", im.Name, im.Module)
	}
	return t, true, nil
}

// order sorts the linked modules so that each follows those it imports from. It refuses
// names reserved for the host, duplicate names, and cycles.
func (m *Module) order() error {
	reserved := []string{"", "main", envModule, wasiModule, wasm.ImportModule}
	left := m.linked
	for i, p := range left {
		if slices.Contains(reserved, p.name) || slices.ContainsFunc(left[:i], func(o *program) bool { return o.name == p.name }) {
			return m.errorf(BadModule, "give it another", "a module is linked as %q, which is the name of another", p.name)
		}
	}
	var sorted []*program
	for len(left) > 0 {
		ready := slices.IndexFunc(left, func(p *program) bool {
			return !slices.ContainsFunc(p.rewritten.Imports, func(im wasm.Import) bool {
				return slices.ContainsFunc(left, func(o *program) bool { return o.name == im.Module })
			})
		})
		if ready < 0 {
			return m.errorf(BadModule, "link the modules into one", "the module %q is linked with one that needs it in turn", left[0].name)
		}
		sorted = append(sorted, left[ready])
		left = slices.Delete(slices.Clone(left), ready, ready+1)
	}
	m.linked = sorted
	return nil
}

// part is the state of an instance for one program of its Module.
type part struct {
	program *program
	mod     api.Module
	mem     *linear // nil for a program without memory
	fuel    api.MutableGlobal
	dirty   api.MutableGlobal // wasm.ExportDirty
	// engine is the number of bytes taken from the account for the Go memory that
	// wazero holds for tables and globals.
	engine  int64
	fns     []namedFunction // called so far
	restore api.Function    // wasm.ExportRestore
	scanner *scanner        // created when first needed
	own     int64           // bytes that it keeps while idle
}

type namedFunction struct {
	name string
	api.Function
}

// parts returns all parts of the instance, in the order of Module.programs.
func (in *instance) parts() []*part { return in.all }

// make creates a part without running any of its code. from is the image that it starts
// as, or nil.
func (in *instance) make(p *part, of *program, from *state) error {
	m := in.m
	p.program = of
	var base *image
	if from != nil {
		base = from.mem
	}
	if !m.e.makeRoom(of.rewritten.InstanceBytes, m) {
		return m.overloaded()
	}
	p.engine = of.rewritten.InstanceBytes
	ctx := context.Background()
	if of.rewritten.Memory != nil {
		limit := uint64(m.spec.Memory) / wasmPage * wasmPage
		var err error
		if p.mem, err = newLinear(&m.e.memory, limit, base, m.e.strategy != strategyFresh, &in.stack); err != nil {
			return m.errorf(Overloaded, "try again", "no memory for an instance: %w", err)
		}
		if len(m.linked) > 0 {
			p.mem.beside = func() uint64 { return in.memorySize() - p.mem.size }
		}
		// Charge the image as if all of it were written: some calls do that.
		first := uint64(of.rewritten.Memory.Min) * wasmPage
		if base != nil {
			first = base.size
		}
		if !m.e.makeRoom(int64(first), m) {
			return m.overloaded()
		}
		m.e.memory.give(int64(first)) // Reallocate takes it again
		ctx = experimental.WithMemoryAllocator(ctx, p.mem)
	}
	ctx = experimental.WithImportResolver(ctx, func(name string) api.Module {
		for _, l := range in.linked {
			if l.program.name == name && l.mod != nil {
				return l.mod
			}
		}
		return m.imports[name]
	})
	mod, err := m.instantiateModule(ctx, of.compiled, anonymous)
	if err != nil {
		if p.mem != nil && p.mem.overloaded {
			return m.overloaded()
		}
		return m.errorf(BadModule, "rebuild it", "cannot be instantiated: %s", firstLine(err))
	}
	p.mod = mod
	p.fuel = mod.ExportedGlobal(wasm.ExportFuel).(api.MutableGlobal)
	p.dirty = mod.ExportedGlobal(wasm.ExportDirty).(api.MutableGlobal)
	return nil
}

// anonymous is the configuration of every instance. No guest is given the source of
// randomness, which is one of wazero's own WASI: without one, wazero makes a source for
// each instance, of 5 KiB.
var anonymous = wazero.NewModuleConfig().WithName("").WithStartFunctions().WithRandSource(rand.Reader)

// memorySize returns the total bytes of the memories of all parts.
func (in *instance) memorySize() uint64 {
	var n uint64
	for _, p := range in.parts() {
		if p.mem != nil {
			n += p.mem.size
		}
	}
	return n
}

// memories reports whether is returns true for the memory of some part.
func (in *instance) memories(is func(*linear) bool) bool {
	return slices.ContainsFunc(in.parts(), func(p *part) bool { return p.mem != nil && is(p.mem) })
}

// changedTables reports whether a part has changed state that no image restores.
func (in *instance) changedTables() bool {
	return slices.ContainsFunc(in.parts(), func(p *part) bool { return p.dirty.Get() != 0 })
}

// function returns an export of the part.
func (p *part) function(name string) api.Function {
	return functionOf(p.mod, &p.fns, name)
}

// functionOf returns an export of a module from called, adding it if necessary.
func functionOf(mod api.Module, called *[]namedFunction, name string) api.Function {
	for _, f := range *called {
		if f.name == name {
			return f.Function
		}
	}
	f := mod.ExportedFunction(name)
	*called = append(*called, namedFunction{name, f})
	return f
}

// close releases everything that the part holds. No code may run in it any more.
func (p *part) close(acct *account) {
	acct.give(p.engine)
	p.engine = 0
	if p.mem != nil {
		p.mem.unmap()
	}
	if p.scanner != nil {
		p.scanner.close()
	}
}
