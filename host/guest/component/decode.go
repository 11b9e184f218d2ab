package component

import (
	"fmt"
	"slices"
	"strings"
)

// Limits on what is read. They are far above what compilers produce.
const (
	mostDefinitions = 200_000 // evaluated, counted once for each evaluation
	mostDepth       = 16      // nested components and instance types
	mostName        = 2000    // bytes
	mostNodes       = 10_000  // types that make up one type
	mostTypeDepth   = 64
	mostCases       = 1000    // fields, cases, flags, parameters
	mostExported    = 200_000 // types that make up all exported functions
)

// Error is the reason why a component was rejected.
type Error struct {
	Offset int // in the file
	Reason string
	// Unsupported means that the component may be valid but this host cannot run it.
	Unsupported bool
}

func (e *Error) Error() string {
	if e.Unsupported {
		return e.Reason
	}
	return fmt.Sprintf("%s (at byte %d)", e.Reason, e.Offset)
}

// Magic is the prefix of every component: its layer field distinguishes it from a
// module.
const Magic = "\x00asm\x0d\x00\x01\x00"

// Is reports whether b starts like a component.
func Is(b []byte) bool { return len(b) >= len(Magic) && string(b[:len(Magic)]) == Magic }

// Func is a function passed between components and their host.
type Func struct {
	// Interface is "wasi:io/streams@0.2.0", or empty for a function of the world
	// itself.
	Interface string
	Name      string
	Type      *FuncType

	lift *lift // nil for a function imported by the root
}

type lift struct {
	core coreItem
	opts options
}

// options are the options of canon lift and lower.
type options struct {
	encoding   Encoding
	memory     *coreItem
	realloc    *coreItem
	postReturn *coreItem
}

// Encoding is a string encoding.
type Encoding uint8

const (
	UTF8 Encoding = iota
	UTF16
	Latin1OrUTF16
)

// coreItem is a core function, memory, table or global, either exported by an instance
// or made by the component.
type coreItem struct {
	kind byte // sort
	inst *coreInstance
	name string

	// An item made by the component has one of these set.
	lower  *Func     // canon lower
	opts   options   // of lower
	drop   *Resource // canon resource.drop
	create *Resource // canon resource.new
	rep    *Resource // canon resource.rep
}

// made reports whether the item is made by the component rather than exported by an
// instance.
func (it *coreItem) made() bool {
	return it.lower != nil || it.drop != nil || it.create != nil || it.rep != nil
}

type coreInstance struct {
	module *coreModule              // nil for an instance of inline exports
	args   map[string]*coreInstance // of a module's instantiation
	items  map[string]coreItem      // inline
}

func (i *coreInstance) export(r *reader, name string, kind byte) coreItem {
	if r.err != nil {
		return coreItem{}
	}
	if i.module == nil {
		it, ok := i.items[name]
		if !ok || it.kind != kind {
			r.fail("aliases export %q, which the core instance does not have", name)
		}
		return it
	}
	x, ok := i.module.exports[name]
	if !ok || x.kind != kind {
		r.fail("aliases export %q, which the core module does not have", name)
	}
	return coreItem{kind: kind, inst: i, name: name}
}

// instance is a component instance. Its items are *Func, *Type, *Resource,
// *FuncType, *shape, *componentDef, *coreModule or *instance.
type instance struct {
	name  string // under which it was imported or exported, if any
	items map[string]any
	order []string
}

func newInstance() *instance { return &instance{items: map[string]any{}} }

func (i *instance) add(r *reader, name string, item any) {
	if _, ok := i.items[name]; ok {
		r.fail("has two exports %q", name)
		return
	}
	i.items[name] = item
	i.order = append(i.order, name)
}

// componentDef is a nested component. It is evaluated when it is instantiated.
type componentDef struct {
	p, end int
	env    *scope
}

// shape is the type of an instance or a component. It is evaluated at each use, since
// each use creates its own resources.
type shape struct {
	p, end    int
	env       *scope
	component bool
}

// scope holds the index spaces of one component or one shape.
type scope struct {
	parent *scope
	depth  int
	root   bool
	iface  string // of a shape: the name under which it is imported

	args map[string]any // of an instantiation; nil for the root and for shapes

	coreFuncs, coreTables, coreMemories, coreGlobals []coreItem

	coreTypes     int
	coreModules   []*coreModule
	coreInstances []*coreInstance

	funcs      []*Func
	types      []any // *Type, *Resource, *FuncType, *shape
	components []*componentDef
	instances  []*instance
	exports    *instance

	counts *tally
}

// tally holds totals for the whole component.
type tally struct {
	modules   int
	instances []*coreInstance // of modules
	imports   []string        // of the root
	resources []*Resource     // made by the component
}

// preamble reads the component's preamble.
func (r *reader) preamble() {
	if r.end-r.p < 8 || string(r.b[r.p:r.p+8]) != Magic {
		r.fail("does not begin as a component of this version does")
		return
	}
	r.p += 8
}

// component evaluates the component in r.
func (s *scope) component(r *reader) {
	if s.depth > mostDepth {
		r.refuse("has components more than %d deep in one another", mostDepth)
		return
	}
	r.preamble()
	for r.more() && r.err == nil {
		id := r.u8("section")
		size := r.count("length of a section")
		if r.err != nil {
			return
		}
		part := r.section(size)
		s.section(id, part)
		r.done(part, fmt.Sprintf("section %d", id))
	}
}

func (s *scope) section(id byte, r *reader) {
	each := func(what string, do func(*reader)) {
		for n := r.count(what); n > 0 && r.err == nil; n-- {
			r.spend()
			do(r)
		}
	}
	switch id {
	case 0:
		r.name("name of a section")
		r.p = r.end
	case 1:
		r.spend()
		s.counts.modules++
		s.coreModules = append(s.coreModules, r.module())
	case 2:
		each("core instances", s.coreInstance)
	case 3:
		each("core types", s.coreType)
	case 4:
		r.spend()
		def := &componentDef{r.p, r.end, s}
		r.nested(s.depth + 1)
		s.components = append(s.components, def)
	case 5:
		each("instances", s.instance)
	case 6:
		each("aliases", s.alias)
	case 7:
		each("types", func(r *reader) { s.types = append(s.types, s.typeDef(r, true)) })
	case 8:
		each("canonical functions", s.canon)
	case 9:
		r.refuse("has a start function of its own, which no toolchain makes; not yet")
	case 10:
		each("imports", s.importDef)
	case 11:
		each("exports", s.exportDef)
	case 12:
		r.refuse("defines values, which no toolchain makes; not yet")
	default:
		r.fail("has a section of the unknown kind %d", id)
	}
}

// nested skips a component that may never be instantiated, checking only its section
// structure.
func (r *reader) nested(depth int) {
	if depth > mostDepth {
		r.refuse("has components more than %d deep in one another", mostDepth)
		return
	}
	r.preamble()
	for r.more() && r.err == nil {
		r.spend()
		id := r.u8("section")
		part := r.section(r.count("length of a section"))
		if id > 12 {
			part.fail("has a section of the unknown kind %d", id)
		}
		if id == 4 {
			part.nested(depth + 1)
		} else {
			part.p = part.end
		}
		r.done(part, "a nested component")
	}
}

func (s *scope) coreInstance(r *reader) {
	in := &coreInstance{}
	switch r.u8("core instance") {
	case 0:
		in.module = at(r, s.coreModules, r.u32("core module"), "core module")
		in.args = map[string]*coreInstance{}
		for n := r.count("arguments"); n > 0 && r.err == nil; n-- {
			r.spend()
			name := r.name("argument")
			if r.u8("argument") != 0x12 {
				r.fail("has an argument that is not a core instance")
			}
			if _, ok := in.args[name]; ok {
				r.fail("gives argument %q twice", name)
			}
			in.args[name] = at(r, s.coreInstances, r.u32("core instance"), "core instance")
		}
		if r.err == nil {
			in.check(r)
			s.counts.instances = append(s.counts.instances, in)
		}
	case 1:
		in.items = map[string]coreItem{}
		for n := r.count("exports"); n > 0 && r.err == nil; n-- {
			r.spend()
			name := r.name("export")
			it := s.coreItem(r, r.u8("sort"))
			if _, ok := in.items[name]; ok {
				r.fail("has two exports %q", name)
			}
			in.items[name] = it
		}
	default:
		r.fail("has a core instance of an unknown kind")
	}
	s.coreInstances = append(s.coreInstances, in)
}

// check verifies that a module receives everything that it imports.
func (i *coreInstance) check(r *reader) {
	for _, im := range i.module.imports {
		arg := i.args[im.module]
		if arg == nil {
			r.fail("instantiates a module without its import %q", im.module)
			return
		}
		if _, ok := arg.lookup(im.name, im.kind); !ok {
			r.fail("instantiates a module without its import %q of %q", im.name, im.module)
			return
		}
	}
}

func (i *coreInstance) lookup(name string, kind byte) (coreItem, bool) {
	if i.module == nil {
		it, ok := i.items[name]
		return it, ok && it.kind == kind
	}
	x, ok := i.module.exports[name]
	return coreItem{kind: kind, inst: i, name: name}, ok && x.kind == kind
}

func (s *scope) coreSpace(r *reader, sort byte) *[]coreItem {
	switch sort {
	case sortFunc:
		return &s.coreFuncs
	case sortTable:
		return &s.coreTables
	case sortMemory:
		return &s.coreMemories
	case sortGlobal:
		return &s.coreGlobals
	case 4:
		r.refuse("uses exception tags between its modules; not yet")
	default:
		r.fail("names a core item of the unknown sort %d", sort)
	}
	return new([]coreItem)
}

func (s *scope) coreItem(r *reader, sort byte) coreItem {
	space := s.coreSpace(r, sort)
	return at(r, *space, r.u32("index"), "core item")
}

func (s *scope) coreType(r *reader) {
	s.coreTypes++
	switch c := r.u8("core type"); c {
	case 0x60:
		for range 2 {
			for n := r.count("types"); n > 0 && r.err == nil; n-- {
				r.u8("type")
			}
		}
	default:
		r.refuse("has core types of kind 0x%x, for modules that are arguments; not yet", c)
	}
}

// sortedItem reads an item of any sort.
func (s *scope) sortedItem(r *reader) any {
	switch sort := r.u8("sort"); sort {
	case 0:
		if c := r.u8("sort"); c != 0x11 {
			r.fail("names a core item of sort 0x%x where components have none", c)
			return nil
		}
		return at(r, s.coreModules, r.u32("index"), "core module")
	case 1:
		return at(r, s.funcs, r.u32("index"), "function")
	case 2:
		r.refuse("hands on values, which no toolchain makes; not yet")
	case 3:
		return at(r, s.types, r.u32("index"), "type")
	case 4:
		return at(r, s.components, r.u32("index"), "component")
	case 5:
		return at(r, s.instances, r.u32("index"), "instance")
	default:
		r.fail("names an item of the unknown sort %d", sort)
	}
	return nil
}

// define adds an item to the index space of its sort.
func (s *scope) define(r *reader, item any) {
	if r.err != nil {
		return
	}
	switch v := item.(type) {
	case *coreModule:
		s.coreModules = append(s.coreModules, v)
	case *Func:
		s.funcs = append(s.funcs, v)
	case *Type, *Resource, *FuncType, *shape:
		s.types = append(s.types, v)
	case *componentDef:
		s.components = append(s.components, v)
	case *instance:
		s.instances = append(s.instances, v)
	default:
		r.fail("defines nothing")
	}
}

func (s *scope) instance(r *reader) {
	switch r.u8("instance") {
	case 0:
		def := at(r, s.components, r.u32("component"), "component")
		args := map[string]any{}
		for n := r.count("arguments"); n > 0 && r.err == nil; n-- {
			r.spend()
			name := r.name("argument")
			if _, ok := args[name]; ok {
				r.fail("gives argument %q twice", name)
			}
			args[name] = s.sortedItem(r)
		}
		if r.err != nil {
			return
		}
		inner := &scope{parent: def.env, depth: s.depth + 1, args: args, exports: newInstance(), counts: s.counts}
		part := &reader{b: r.b, p: def.p, end: def.end, work: r.work}
		inner.component(part)
		r.done(part, "a nested component")
		s.instances = append(s.instances, inner.exports)
	case 1:
		in := newInstance()
		for n := r.count("exports"); n > 0 && r.err == nil; n-- {
			r.spend()
			name := r.externName()
			item := s.sortedItem(r)
			if r.err == nil {
				in.add(r, name, item)
			}
		}
		s.instances = append(s.instances, in)
	default:
		r.fail("has an instance of an unknown kind")
	}
}

func (s *scope) alias(r *reader) {
	sort := r.u8("sort")
	coreSort := byte(0)
	if sort == 0 {
		coreSort = r.u8("sort")
	}
	switch r.u8("alias") {
	case 0:
		in := at(r, s.instances, r.u32("instance"), "instance")
		name := r.name("name")
		if r.err != nil {
			return
		}
		item, ok := in.items[name]
		if !ok || sortOf(item) != sort || sort == 0 && coreSort != 0x11 {
			r.fail("aliases export %q, which the instance does not have", name)
			return
		}
		s.define(r, item)
	case 1:
		in := at(r, s.coreInstances, r.u32("core instance"), "core instance")
		name := r.name("name")
		space := s.coreSpace(r, coreSort)
		if sort != 0 {
			r.fail("aliases something other than a core item of a core instance")
		}
		if r.err == nil {
			*space = append(*space, in.export(r, name, coreSort))
		}
	case 2:
		count, index := r.u32("scope"), r.u32("index")
		from := s
		for ; count > 0 && from != nil; count-- {
			from = from.parent
		}
		if r.err != nil {
			return
		}
		if from == nil {
			r.fail("aliases something outside of the component")
			return
		}
		switch {
		case sort == 3:
			s.define(r, at(r, from.types, index, "type"))
		case sort == 4:
			s.define(r, at(r, from.components, index, "component"))
		case sort == 0 && coreSort == 0x11:
			s.define(r, at(r, from.coreModules, index, "core module"))
		case sort == 0 && coreSort == 0x10 && int64(index) < int64(from.coreTypes):
			s.coreTypes++
		default:
			r.fail("aliases something of another component that cannot be")
		}
	default:
		r.fail("has an alias of an unknown kind")
	}
}

func sortOf(item any) byte {
	switch item.(type) {
	case *coreModule:
		return 0
	case *Func:
		return 1
	case *Type, *Resource, *FuncType, *shape:
		return 3
	case *componentDef:
		return 4
	}
	return 5
}

// externName reads the name of an import or an export.
func (r *reader) externName() string {
	switch r.u8("name") {
	case 0, 1:
		name := r.name("name")
		if name == "" {
			r.fail("has an import or export without a name")
		}
		return name
	case 2:
		r.refuse("has names with suffixes of versions; not yet")
	default:
		r.fail("has a name of an unknown kind")
	}
	return ""
}

func (s *scope) canon(r *reader) {
	switch op := r.u8("canonical function"); op {
	case 0:
		if r.u8("canonical function") != 0 {
			r.fail("has an unknown canonical function")
		}
		core := at(r, s.coreFuncs, r.u32("core function"), "core function")
		opts := s.options(r)
		ft, _ := at(r, s.types, r.u32("type"), "type").(*FuncType)
		if ft == nil {
			r.fail("lifts a function whose type is not a function type")
			return
		}
		s.funcs = append(s.funcs, &Func{Type: ft, lift: &lift{core, opts}})
	case 1:
		if r.u8("canonical function") != 0 {
			r.fail("has an unknown canonical function")
		}
		f := at(r, s.funcs, r.u32("function"), "function")
		opts := s.options(r)
		if r.err != nil {
			return
		}
		if f.lift != nil {
			r.refuse("links components to one another: %s is lowered where it is lifted; not yet", f.Name)
			return
		}
		s.coreFuncs = append(s.coreFuncs, coreItem{kind: sortFunc, lower: f, opts: opts})
	case 3:
		res, ok := at(r, s.types, r.u32("type"), "type").(*Resource)
		if !ok {
			r.fail("drops something that is not a resource")
			return
		}
		s.coreFuncs = append(s.coreFuncs, coreItem{kind: sortFunc, drop: res})
	case 2, 4:
		res, ok := at(r, s.types, r.u32("type"), "type").(*Resource)
		if !ok || res.maker != s {
			r.fail("makes a resource, or looks into one, that it does not define")
			return
		}
		it := coreItem{kind: sortFunc, create: res}
		if op == 4 {
			it = coreItem{kind: sortFunc, rep: res}
		}
		s.coreFuncs = append(s.coreFuncs, it)
	default:
		r.refuse("uses what WASI 0.3 adds (async functions, tasks, streams or threads: canonical function 0x%x); build it for WASI 0.2", op)
	}
}

func (s *scope) options(r *reader) (o options) {
	seen := [8]bool{}
	for n := r.count("options"); n > 0 && r.err == nil; n-- {
		c := r.u8("option")
		if c > 7 {
			r.refuse("uses what WASI 0.3 adds (option 0x%x of a canonical function); build it for WASI 0.2", c)
			return o
		}
		if seen[c] {
			r.fail("gives an option of a canonical function twice")
		}
		seen[c] = true
		take := func(space []coreItem, what string) *coreItem {
			it := at(r, space, r.u32(what), what)
			return &it
		}
		switch c {
		case 0, 1, 2:
			o.encoding = Encoding(c)
			if seen[(c+1)%3] || seen[(c+2)%3] {
				r.fail("gives two encodings of strings")
			}
		case 3:
			o.memory = take(s.coreMemories, "memory")
		case 4:
			o.realloc = take(s.coreFuncs, "function")
		case 5:
			o.postReturn = take(s.coreFuncs, "function")
		default:
			r.refuse("has async functions, of WASI 0.3; build it for WASI 0.2")
		}
	}
	return o
}

func (s *scope) importDef(r *reader) {
	name := r.externName()
	item := s.externDesc(r, name)
	if r.err != nil {
		return
	}
	if s.args != nil {
		arg, ok := s.args[name]
		if !ok || sortOf(arg) != sortOf(item) {
			r.fail("instantiates a component without its import %q", name)
			return
		}
		item = arg
	} else if s.root {
		s.counts.imports = append(s.counts.imports, name)
		switch v := item.(type) {
		case *coreModule, *componentDef:
			r.refuse("imports a module or component, %q; not yet", name)
			return
		case *Func:
			v.Name = name
		}
	}
	s.define(r, item)
}

// externDesc reads the description of an import or export and creates the item.
func (s *scope) externDesc(r *reader, name string) any {
	switch c := r.u8("kind of an import"); c {
	case 0:
		r.refuse("imports or exports a module, %q; not yet", name)
	case 1:
		ft, ok := at(r, s.types, r.u32("type"), "type").(*FuncType)
		if !ok {
			r.fail("gives function %q a type that is not a function type", name)
			return nil
		}
		return &Func{Interface: s.iface, Name: name, Type: ft}
	case 2:
		r.refuse("imports or exports a value, %q; not yet", name)
	case 3:
		switch r.u8("bound of a type") {
		case 0:
			return at(r, s.types, r.u32("type"), "type")
		case 1:
			iface, _, _ := strings.Cut(s.iface, "@")
			return &Resource{Interface: iface, Name: r.label(name)}
		}
		r.fail("bounds type %q in an unknown way", name)
	case 4:
		if sh, ok := at(r, s.types, r.u32("type"), "type").(*shape); !ok || !sh.component {
			r.fail("gives component %q a type that is not a component type", name)
		}
		r.refuse("imports or exports a component, %q; not yet", name)
	case 5:
		sh, ok := at(r, s.types, r.u32("type"), "type").(*shape)
		if !ok || sh.component {
			r.fail("gives instance %q a type that is not an instance type", name)
			return nil
		}
		return sh.make(r, name)
	default:
		r.fail("has an import or export of the unknown kind %d", c)
	}
	return nil
}

// make evaluates the type of an instance with the given name.
func (sh *shape) make(r *reader, name string) *instance {
	inner := &scope{parent: sh.env, depth: sh.env.depth + 1, iface: name, exports: newInstance(), counts: sh.env.counts}
	part := &reader{b: r.b, p: sh.p, end: sh.end, work: r.work}
	inner.declarations(part, sh.component)
	if part.err != nil && r.err == nil {
		r.err, r.p = part.err, r.end
	}
	inner.exports.name = name
	return inner.exports
}

// declarations evaluates the declarations of a shape and leaves r after them.
func (s *scope) declarations(r *reader, component bool) {
	if s.depth > mostDepth {
		r.refuse("has types of instances more than %d deep in one another", mostDepth)
		return
	}
	for n := r.count("declarations"); n > 0 && r.err == nil; n-- {
		r.spend()
		switch c := r.u8("declaration"); {
		case c == 0:
			s.coreType(r)
		case c == 1:
			s.types = append(s.types, s.typeDef(r, false))
		case c == 2:
			s.alias(r)
		case c == 3 && component:
			name := r.externName()
			s.define(r, s.externDesc(r, name))
		case c == 4:
			name := r.externName()
			item := s.externDesc(r, name)
			s.define(r, item)
			if r.err == nil {
				s.exports.add(r, name, item)
			}
		default:
			r.fail("has a declaration of the unknown kind %d", c)
		}
	}
}

func (s *scope) exportDef(r *reader) {
	name := r.externName()
	item := s.sortedItem(r)
	switch r.u8("type of an export") {
	case 0:
	case 1:
		s.externDesc(r, name) // it cannot add to what is already known
	default:
		r.fail("has an export that says its type in an unknown way")
	}
	if res, ok := item.(*Resource); ok && res.Local && res.Name == "" {
		res.Name = r.label(name)
	}
	if r.err != nil {
		return
	}
	s.exports.add(r, name, item)
	s.define(r, item)
}

// label checks the name of a type, which must not look like the name of another
// interface's type.
func (r *reader) label(name string) string {
	if strings.ContainsAny(name, "/:@<>") {
		r.fail("gives a type the name %q, which no type can have", name)
	}
	return name
}

// typeDef reads a type definition. Only components themselves, not their types, define
// resources: own reports that s is a component.
func (s *scope) typeDef(r *reader, own bool) any {
	switch c := r.u8("type"); c {
	case 0x40:
		return s.funcType(r)
	case 0x43:
		r.refuse("has async functions, of WASI 0.3; build it for WASI 0.2")
		return nil
	case 0x41, 0x42:
		sh := &shape{p: r.p, env: s, component: c == 0x41}
		// Report errors at the definition, whether or not it is used.
		check := &scope{parent: s, depth: s.depth + 1, exports: newInstance(), counts: s.counts}
		check.declarations(r, sh.component)
		sh.end = r.p
		return sh
	case 0x3f:
		if !own {
			r.fail("defines a resource in the type of an instance or a component")
			return nil
		}
		return s.resource(r)
	case 0x3e:
		r.refuse("has async functions, of WASI 0.3; build it for WASI 0.2")
		return nil
	default:
		return s.valueDef(r, c)
	}
}

// resource reads the definition of a resource of the component itself.
func (s *scope) resource(r *reader) *Resource {
	res := &Resource{Local: true, maker: s}
	if r.u8("representation") != 0x7f {
		r.fail("has a resource that is represented by another type than i32")
	}
	switch r.u8("destructor") {
	case 0:
	case 1:
		it := at(r, s.coreFuncs, r.u32("destructor"), "core function")
		res.dtor = &it
	default:
		r.fail("has a resource whose destructor is there in an unknown way")
	}
	s.counts.resources = append(s.counts.resources, res)
	return res
}

func (s *scope) funcType(r *reader) *FuncType {
	ft := &FuncType{}
	ft.Params = s.fields(r, "parameters", func() *Type { return s.valueType(r) })
	switch r.u8("result") {
	case 0:
		ft.Result = s.valueType(r)
	case 1:
		if r.u8("results") != 0 {
			r.refuse("has functions with named results, which current tools no longer make; rebuild it")
		}
	default:
		r.fail("has a function whose result is of an unknown kind")
	}
	if ft.Result != nil {
		ft.nodes = ft.Result.nodes
		if ft.Result.borrows {
			r.fail("has a function that answers what is only lent to it")
		}
	}
	for _, p := range ft.Params {
		if p.Type != nil {
			ft.nodes += p.Type.nodes
			ft.local += p.Type.local
		}
	}
	if ft.nodes > mostNodes {
		r.refuse("has a function of more than %d types", mostNodes)
	}
	return ft
}

// fields reads labels, each followed by a type that read returns.
func (s *scope) fields(r *reader, what string, read func() *Type) []Field {
	n := r.count(what)
	if n > mostCases {
		r.refuse("has %d %s, more than %d", n, what, mostCases)
		return nil
	}
	fs := make([]Field, 0, n)
	seen := make(map[string]bool, n)
	for ; n > 0 && r.err == nil; n-- {
		r.spend()
		name := r.name(what)
		if name == "" || seen[name] {
			r.fail("has %s without a name, or two of the name %q", what, name)
		}
		seen[name] = true
		fs = append(fs, Field{name, read()})
	}
	return fs
}

// valueType reads a use of a value type.
func (s *scope) valueType(r *reader) *Type {
	if r.err != nil || r.p >= r.end {
		r.u8("type")
		return nil
	}
	if c := r.b[r.p]; c >= 0x40 && c < 0x80 {
		r.p++
		if c >= 0x73 {
			return primitives[0x7f-c]
		}
		if c == 0x64 {
			r.refuse("has values of error-context, of WASI 0.3; build it for WASI 0.2")
		}
		r.fail("has a value of the unknown type 0x%x", c)
		return nil
	}
	i := r.s33("type")
	if i < 0 || i > 1<<31 {
		r.fail("has a value of the unknown type %d", i)
		return nil
	}
	t, ok := at(r, s.types, uint32(i), "type").(*Type)
	if !ok {
		r.fail("uses type %d for a value, which it is not", i)
	}
	return t
}

func (s *scope) optionalType(r *reader) *Type {
	switch r.u8("type") {
	case 0:
		return nil
	case 1:
		return s.valueType(r)
	}
	r.fail("has a type that is there in an unknown way")
	return nil
}

// valueDef reads the definition of a value type that starts with c.
func (s *scope) valueDef(r *reader, c byte) any {
	t := &Type{}
	some := func(what string) {
		if len(t.Fields) == 0 {
			r.fail("has a type of no %s", what)
		}
	}
	labels := func(what string) {
		t.Fields = s.fields(r, what, func() *Type { return nil })
		some(what)
	}
	switch c {
	case 0x72:
		t.Kind = Record
		t.Fields = s.fields(r, "fields", func() *Type { return s.valueType(r) })
		some("fields")
	case 0x71:
		t.Kind = Variant
		t.Fields = s.fields(r, "cases", func() *Type {
			of := s.optionalType(r)
			if r.u8("case") != 0 {
				r.fail("has a case that refines another, which is no longer made")
			}
			return of
		})
		some("cases")
	case 0x70:
		t.Kind, t.Elem = List, s.valueType(r)
	case 0x6f:
		t.Kind = Tuple
		n := r.count("items")
		if n > mostCases {
			r.refuse("has a tuple of %d items, more than %d", n, mostCases)
			return t
		}
		for ; n > 0 && r.err == nil; n-- {
			r.spend()
			t.Fields = append(t.Fields, Field{"", s.valueType(r)})
		}
		some("items")
	case 0x6e:
		t.Kind = Flags
		labels("flags")
		if len(t.Fields) > 32 {
			r.fail("has %d flags, more than 32", len(t.Fields))
		}
	case 0x6d:
		t.Kind = Enum
		labels("cases")
	case 0x6b:
		t.Kind = Option
		t.Fields = []Field{{"none", nil}, {"some", s.valueType(r)}}
	case 0x6a:
		t.Kind = Result
		ok := s.optionalType(r)
		t.Fields = []Field{{"ok", ok}, {"error", s.optionalType(r)}}
	case 0x69, 0x68:
		t.Kind = Own
		if c == 0x68 {
			t.Kind = Borrow
		}
		res, ok := at(r, s.types, r.u32("resource"), "type").(*Resource)
		if !ok {
			r.fail("has a handle to something that is not a resource")
		}
		t.Resource = res
	case 0x67:
		r.refuse("has lists of a fixed length, which are not in WASI 0.2; not yet")
	case 0x63:
		r.refuse("has maps, which WASI 0.2 does not have; build it without them")
	case 0x66, 0x65:
		r.refuse("has streams or futures, of WASI 0.3; build it for WASI 0.2")
	default:
		if c >= 0x73 && c <= 0x7f {
			return primitives[0x7f-c]
		}
		r.fail("has a type of the unknown kind 0x%x", c)
	}
	if r.err != nil {
		return t
	}
	t.nodes, t.depth = 1, 1
	t.borrows = t.Kind == Borrow
	if t.Resource != nil && t.Resource.Local {
		t.local = 1
	}
	for _, f := range append(slices.Clone(t.Fields), Field{"", t.Elem}) {
		t.nodes++
		if f.Type != nil {
			t.nodes += f.Type.nodes
			t.borrows = t.borrows || f.Type.borrows
			t.local += f.Type.local
			t.depth = max(t.depth, f.Type.depth+1)
		}
	}
	if t.nodes > mostNodes || t.depth > mostTypeDepth {
		r.refuse("has a type of more than %d types, or more than %d deep", mostNodes, mostTypeDepth)
		return t
	}
	t.Layout()
	return t
}
