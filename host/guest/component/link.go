package component

import (
	"fmt"
	"slices"
	"strings"
)

// Program is a component reduced to one module: the glue around its main module is
// replaced by its effect.
type Program struct {
	// Module is the main module, unchanged.
	Module []byte
	// Imports describes each function that Module imports.
	Imports []Import
	// Exports are the functions that the component exports, in order.
	Exports []Export
	// Initialize is the export of Module that runs before all others, or empty.
	Initialize string
	// Adapted reports that the component was built from a preview 1 module. Its adapter
	// is left out: Module imports preview 1 itself.
	Adapted bool
	// World lists the interfaces and functions that the component imports, named as in
	// the component, with versions.
	World []string
	// Modules is the number of modules in the component.
	Modules int
}

// Import is a function that the main module imports. Exactly one of Preview1, Func,
// Drop, New and Rep is set.
type Import struct {
	Module, Name string // as named by the main module

	Preview1 bool // implemented by the adapter
	Func     *Func
	Drop     *Resource // drops a handle
	New      *Resource // makes a handle to a resource of the component itself
	Rep      *Resource // returns the representation of such a handle

	Realloc  string // an export of the main module, or empty
	Encoding Encoding
}

// Export is a function that the component exports.
type Export struct {
	// Interface is "local:time/time@1.0.0"; empty for a function of the world.
	Interface string
	Name      string
	Type      *FuncType

	Core       string // export of the main module
	PostReturn string // export that frees a result, or empty
	Realloc    string
	Encoding   Encoding
}

// FullName returns the name that tools use for the function: "local:time/time#now", or
// "now".
func (x *Export) FullName() string {
	if x.Interface == "" {
		return x.Name
	}
	return x.Interface + "#" + x.Name
}

// IsRun reports whether the function is wasi:cli/run, the entry point of a command.
func (x *Export) IsRun() bool {
	iface, _, _ := strings.Cut(x.Interface, "@")
	return iface == "wasi:cli/run" && x.Name == "run"
}

const preview1 = "wasi_snapshot_preview1"

// Read reads a component and reduces it to a Program. The error is an *Error.
func Read(b []byte) (*Program, error) {
	r := &reader{b: b, end: len(b), work: &budget{left: mostDefinitions, modules: map[int]*coreModule{}}}
	s := &scope{root: true, exports: newInstance(), counts: &tally{}}
	s.component(r)
	if r.err != nil {
		return nil, r.err
	}
	l := &linker{b: b, r: r, fills: map[*coreInstance]map[uint32]coreItem{}}
	p := l.link(s)
	if r.err != nil {
		return nil, r.err
	}
	return p, nil
}

// linker follows the items that instances pass to one another.
type linker struct {
	b     []byte
	r     *reader // records the error
	main  *coreInstance
	glue  *coreInstance                         // the adapter
	fills map[*coreInstance]map[uint32]coreItem // contents of the tables of shims
	shims map[*coreModule]bool
}

func (l *linker) link(s *scope) *Program {
	var fixups, withMemory, others []*coreInstance
	l.shims = map[*coreModule]bool{}
	sharing := 0
	for _, in := range s.counts.instances {
		m := in.module
		if _, ok := l.shims[m]; !ok {
			l.shims[m] = m.isShim(l.b)
		}
		switch {
		case l.shims[m]:
		case m.hasMemory():
			withMemory = append(withMemory, in)
		case m.isFixup():
			fixups = append(fixups, in)
		default:
			if m.imported[sortMemory] > 0 {
				sharing++
			}
			others = append(others, in)
		}
	}
	switch {
	case len(withMemory) == 1:
		l.main = withMemory[0]
	case len(withMemory) > 1:
		l.r.refuse("is composed of several components: %d of its modules have a memory of their own; not yet", len(withMemory))
		return nil
	case len(others) == 1:
		l.main, others = others[0], nil
	case len(others) == 0:
		l.r.refuse("has no module to run; build it with a world that exports something")
		return nil
	default:
		l.r.refuse("has %d modules and none of them has the memory; not yet", len(others))
		return nil
	}
	switch {
	case len(others) == 1:
		l.glue = others[0]
	case len(others) > 1:
		// Shared libraries: componentize-py uses Python's, libc's and its own.
		l.r.refuse("has %d modules that share one memory (componentize-py and shared libraries are linked so); not yet", max(sharing, len(others))+1)
		return nil
	}
	p := &Program{World: s.counts.imports, Modules: s.counts.modules}
	for _, in := range fixups {
		if !l.fill(in) {
			return nil
		}
	}
	for _, in := range fixups {
		l.start(in, p)
	}
	m := l.main.module
	p.Module = l.b[m.p:m.end]
	seen := map[[2]string]bool{}
	for _, im := range m.imports {
		if im.kind != sortFunc {
			l.r.refuse("has a main module that imports a table, memory or global of another module; not yet")
			return nil
		}
		if key := [2]string{im.module, im.name}; !seen[key] {
			seen[key] = true
			p.Imports = append(p.Imports, l.imported(im, p))
		}
		if l.r.err != nil {
			return nil
		}
	}
	for _, name := range s.exports.order {
		switch v := s.exports.items[name].(type) {
		case *Func:
			p.Exports = append(p.Exports, l.exported("", name, v))
		case *instance:
			for _, inner := range v.order {
				switch f := v.items[inner].(type) {
				case *Func:
					p.Exports = append(p.Exports, l.exported(name, inner, f))
				case *instance, *componentDef, *coreModule:
					l.r.refuse("exports more than functions and types in %q; not yet", name)
				}
			}
		case *componentDef, *coreModule:
			l.r.refuse("exports a module or component, %q; not yet", name)
		}
		if l.r.err != nil {
			return nil
		}
	}
	l.resources(s.counts.resources, p)
	if len(p.Exports) == 0 {
		l.r.refuse("exports no function; build it with a world that exports something")
	}
	return p
}

// resources finds the constructors and destructors of the component's resources. It
// limits the types that make up all exported functions, since each of them is
// described.
func (l *linker) resources(rs []*Resource, p *Program) {
	for _, res := range rs {
		res.Destructor = l.ofMain(res.dtor, []Core{I32}, nil, "a destructor")
		res.maker, res.dtor = nil, nil // they keep everything read in memory
	}
	made := 0
	for i := range p.Exports {
		// A resource whose constructor takes resources cannot be made from plain
		// values.
		x := &p.Exports[i]
		if t := x.Type.Result; t != nil && t.Kind == Own && t.Resource.Local && t.Resource.Constructor == nil &&
			x.Name == "[constructor]"+t.Resource.Name && !x.Type.TakesLocal() {
			t.Resource.Constructor = x
			made = max(made, x.Type.nodes)
		}
	}
	total := 0
	for i := range p.Exports {
		t := p.Exports[i].Type
		if total += 1 + t.nodes + t.local*made; total > mostExported {
			l.r.refuse("exports functions of more than %d types in all", mostExported)
			return
		}
	}
}

// fill records what a fixup puts into a shim's table.
func (l *linker) fill(in *coreInstance) bool {
	m := in.module
	if len(m.segments) == 0 {
		return true
	}
	var table coreItem
	for _, im := range m.imports {
		if im.kind == sortTable {
			table, _ = in.args[im.module].lookup(im.name, sortTable)
		}
	}
	if table.inst == nil || table.inst.module == nil || !l.shims[table.inst.module] {
		l.r.refuse("fills a table that is not a shim's; not yet")
		return false
	}
	slots := l.fills[table.inst]
	if slots == nil {
		slots = map[uint32]coreItem{}
		l.fills[table.inst] = slots
	}
	seg := m.segments[0]
	for i, f := range seg.funcs {
		im, ok := m.importedFunc(f)
		if !ok {
			l.r.fail("a segment names function %d, which there is not", f)
			return false
		}
		slot := seg.offset + uint32(i)
		if _, ok := slots[slot]; ok {
			l.r.refuse("fills a shim's table twice; not yet")
			return false
		}
		slots[slot], _ = in.args[im.module].lookup(im.name, sortFunc)
	}
	return true
}

// start resolves the function that a fixup calls.
func (l *linker) start(in *coreInstance, p *Program) {
	if in.module.start < 0 {
		return
	}
	im, _ := in.module.importedFunc(uint32(in.module.start))
	it, _ := in.args[im.module].lookup(im.name, sortFunc)
	if it = l.resolve(it); l.r.err != nil {
		return
	}
	if it.inst != l.main || p.Initialize != "" {
		l.r.refuse("starts more than its main module; not yet")
		return
	}
	p.Initialize = it.name
	l.check(it.name, nil, nil, "is started")
}

// resolve follows a function to its origin: canon lower or drop, or an export of the
// main module or the adapter.
func (l *linker) resolve(it coreItem) coreItem {
	for range 100 {
		if it.inst == nil || it.inst.module == nil {
			if !it.made() {
				l.r.fail("a function leads nowhere")
			}
			return it
		}
		m := it.inst.module
		x, ok := m.exports[it.name]
		if !ok {
			l.r.fail("names export %q, which there is not", it.name)
			return it
		}
		switch {
		case x.index < uint32(m.imported[sortFunc]):
			im, _ := m.importedFunc(x.index)
			arg := it.inst.args[im.module]
			if it, ok = arg.lookup(im.name, sortFunc); !ok {
				l.r.fail("names export %q, which there is not", im.name)
				return it
			}
		case l.shims[m]:
			slot, ok := m.slot(l.b, x.index)
			next, filled := l.fills[it.inst][slot]
			if !ok || !filled {
				l.r.refuse("leaves slot %d of a shim's table empty; not yet", slot)
				return it
			}
			it = next
		case it.inst == l.main || it.inst == l.glue:
			return it
		default:
			l.r.refuse("calls one of its modules from another; not yet")
			return it
		}
	}
	l.r.fail("its functions lead to one another")
	return it
}

// check requires an export of the main module to have the given type.
func (l *linker) check(name string, params, results []Core, what string) {
	m := l.main.module
	x, ok := m.exports[name]
	if l.r.err == nil && (!ok || x.kind != sortFunc || !m.funcType(x.index).same(params, results)) {
		l.r.fail("export %q of its main module %s, but is not of the type for that", name, what)
	}
}

// ofMain returns the name of a function of the main module, or empty for none.
func (l *linker) ofMain(it *coreItem, params, results []Core, what string) string {
	if it == nil || l.r.err != nil {
		return ""
	}
	f := l.resolve(*it)
	if l.r.err == nil && (f.made() || f.inst != l.main) {
		l.r.refuse("uses %s, which is not a function of its main module; not yet", what)
	}
	if l.r.err != nil {
		return ""
	}
	l.check(f.name, params, results, what)
	return f.name
}

// memory refuses values in a memory other than the main module's.
func (l *linker) memory(o options) {
	if it := o.memory; it != nil && l.r.err == nil && it.inst != l.main {
		l.r.refuse("passes values in a memory that is not its main module's; not yet")
	}
}

var reallocParams, reallocResults = []Core{I32, I32, I32, I32}, []Core{I32}

// options resolves and checks a function's options. It returns the name of its realloc.
func (l *linker) options(o options, needsMemory, needsRealloc bool, name string) string {
	l.memory(o)
	if needsMemory && o.memory == nil && l.r.err == nil {
		l.r.fail("function %q passes values in memory, but names none", name)
	}
	if needsRealloc && o.realloc == nil && l.r.err == nil {
		l.r.fail("function %q is given values in memory, but names nothing that makes room for them", name)
	}
	return l.ofMain(o.realloc, reallocParams, reallocResults, "what makes room for values")
}

func (l *linker) imported(im coreImport, p *Program) Import {
	out := Import{Module: im.module, Name: im.name}
	it, _ := l.main.args[im.module].lookup(im.name, sortFunc)
	if it = l.resolve(it); l.r.err != nil {
		return out
	}
	own := l.main.module
	if uint64(im.typ) >= uint64(len(own.types)) {
		l.r.fail("its main module imports %q of a type that there is not", im.name)
		return out
	}
	have := &own.types[im.typ]
	switch {
	case it.drop != nil:
		out.Drop = it.drop
		if !have.same([]Core{I32}, nil) {
			l.r.fail("its main module imports %q of %q as another type than it is", im.name, im.module)
		}
	case it.create != nil || it.rep != nil:
		out.New, out.Rep = it.create, it.rep
		if !have.same([]Core{I32}, []Core{I32}) {
			l.r.fail("its main module imports %q of %q as another type than it is", im.name, im.module)
		}
	case it.lower != nil:
		f := it.lower
		out.Func, out.Encoding = f, it.opts.encoding
		if f.Type.TakesLocal() || f.Type.Result != nil && f.Type.Result.local > 0 {
			l.r.fail("it imports %s, which has resources that it makes itself", f)
		}
		memory, realloc := f.needs()
		out.Realloc = l.options(it.opts, memory, realloc, f.Name)
		if params, results := f.Type.Lowered(); l.r.err == nil && !have.same(params, results) {
			l.r.fail("its main module imports %q of %q as another type than it is", im.name, im.module)
		}
		if it.opts.postReturn != nil && l.r.err == nil {
			l.r.fail("what is lowered has nothing to free")
		}
	case it.inst == l.glue:
		// The host's preview 1 does what the adapter would do.
		if im.module != preview1 || it.name != im.name {
			l.r.refuse("has modules that share one memory: %q of %q is another module's; not yet", im.name, im.module)
		}
		out.Preview1, p.Adapted = true, true
	default:
		l.r.refuse("has a main module that imports from itself; not yet")
	}
	return out
}

func (l *linker) exported(iface, name string, f *Func) Export {
	x := Export{Interface: iface, Name: name, Type: f.Type}
	if f.lift == nil {
		l.r.refuse("exports what it imports, %q; not yet", name)
		return x
	}
	it := l.resolve(f.lift.core)
	if l.r.err != nil {
		return x
	}
	if it.made() {
		l.r.refuse("exports what it imports, %q; not yet", name)
		return x
	}
	x.Encoding = f.lift.opts.encoding
	x.Core = it.name
	if it.inst == l.glue {
		// The adapter for commands calls _start.
		if !x.IsRun() || !slices.ContainsFunc(l.glue.module.imports, func(im coreImport) bool {
			return im.module == "__main_module__" && im.name == "_start"
		}) {
			l.r.refuse("has modules that share one memory: export %q is another module's; not yet", x.FullName())
			return x
		}
		x.Core = "_start"
		l.check(x.Core, nil, nil, "runs the command")
		return x
	}
	params, results := x.Type.Lifted()
	l.check(x.Core, params, results, "is lifted")
	memory, realloc := x.Type.needs()
	x.Realloc = l.options(f.lift.opts, memory, realloc, x.FullName())
	x.PostReturn = l.ofMain(f.lift.opts.postReturn, results, nil, "what frees a result")
	return x
}

// pointers reports whether a value of the type has parts in memory.
func (t *Type) pointers() bool {
	switch t.Kind {
	case String, List:
		return true
	}
	for _, f := range t.Fields {
		if f.Type != nil && f.Type.pointers() {
			return true
		}
	}
	return false
}

// needs reports what the function needs when the guest lowers it: a memory, if anything
// is passed there, and a realloc, if a result is.
func (f *Func) needs() (memory, realloc bool) {
	_, memory = f.Type.FlatParams()
	_, result := f.Type.FlatResults()
	memory = memory || result
	for _, p := range f.Type.Params {
		memory = memory || p.Type.pointers()
	}
	if f.Type.Result != nil && f.Type.Result.pointers() {
		memory, realloc = true, true
	}
	return memory, realloc
}

// needs reports what the function needs when the guest lifts it.
func (f *FuncType) needs() (memory, realloc bool) {
	_, realloc = f.FlatParams()
	for _, p := range f.Params {
		realloc = realloc || p.Type.pointers()
	}
	_, memory = f.FlatResults()
	memory = memory || realloc || f.Result != nil && f.Result.pointers()
	return memory, realloc
}

// Unversioned returns the interface without its version, "wasi:io/streams", and the
// version.
func (f *Func) Unversioned() (iface, version string) {
	iface, version, _ = strings.Cut(f.Interface, "@")
	return iface, version
}

// String returns the function's name for messages.
func (f *Func) String() string {
	if f.Interface == "" {
		return fmt.Sprintf("%q", f.Name)
	}
	return fmt.Sprintf("%q of %q", f.Name, f.Interface)
}
