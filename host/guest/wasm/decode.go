package wasm

import (
	"bytes"
	"slices"
	"strings"
)

const maxPages = 65536

// Section numbers of the binary format.
const (
	secCustom    = 0
	secType      = 1
	secImport    = 2
	secFunction  = 3
	secTable     = 4
	secMemory    = 5
	secGlobal    = 6
	secExport    = 7
	secStart     = 8
	secElement   = 9
	secCode      = 10
	secData      = 11
	secDataCount = 12
	secTag       = 13
)

// source is a module as read. Offsets are those in the input; lists of functions, tables and globals start with the
// imported ones.
type source struct {
	in  []byte
	lim Limits

	types   []FuncType
	known   int // types that may be referred to so far
	imports []importEntry
	funcs   []uint32 // type index of each function
	tables  []table
	globals []global
	exports []export
	tags    []uint32 // type index of each tag

	importedFuncs, importedTables, importedGlobals int

	memory         *memory
	memoryImported bool

	start     int // function index, or -1
	elements  []element
	elemCount int
	dataCount int // -1: no such section
	data      []segment
	code      []span

	mayThrow  []bool            // functions that an exception may leave, followed by whether a function behind a reference is one; nil: none
	declared  []bool            // functions that occur outside of code, so that ref.func may name them
	debug     map[string][]byte // DWARF sections needed for lines; each once
	debugSize int               // bytes of DWARF that is not kept
	codeStart int               // start of the code section's content: the origin of DWARF addresses
	codeEnd   int
	nameSeen  bool
	funcNames []span // vectors of function names
}

// span is a range of the input.
type span struct{ start, end int }

type importEntry struct {
	module, name []byte
	kind         External
	desc         span   // description of the import
	typ          uint32 // of a function
}

type table struct {
	typ    ValueType
	init   span // expression for the initial content; empty: null
	min    uint32
	max    uint32
	hasMax bool
}

type memory struct {
	min, max uint32
	hasMax   bool
}

type global struct {
	typ     ValueType
	mutable bool
	init    span
}

type export struct {
	name  []byte
	kind  External
	index uint32
}

// tagExternal is the kind of a tag among imports and exports.
const tagExternal External = 4

type element struct {
	prefix  uint32
	table   uint32
	offset  span // of an active segment
	typ     ValueType
	count   int
	entries span
}

func (e *element) active() bool { return e.prefix&1 == 0 }
func (e *element) exprs() bool  { return e.prefix&4 != 0 }

type segment struct {
	passive bool
	offset  constant
	expr    span
	bytes   span
}

// order returns the position of a section in the required order: the data count comes before the code.
func order(id byte) int {
	switch id {
	case secDataCount:
		return 2*secElement + 1
	case secTag:
		return 2*secMemory + 1
	default:
		return 2 * int(id)
	}
}

// decode reads everything except the code of the functions.
func decode(in []byte, lim Limits) (*source, *Error) {
	s := &source{in: in, lim: lim, start: -1, dataCount: -1}
	if len(in) > lim.Size {
		return nil, &Error{0, TooLarge, "have a module over the limit of size"}
	}
	if !bytes.HasPrefix(in, []byte("\x00asm")) {
		return nil, &Error{0, Malformed, "read header: not a WebAssembly module"}
	}
	if len(in) < 8 || !bytes.Equal(in[4:8], []byte{1, 0, 0, 0}) {
		return nil, &Error{4, Malformed, "read header: the version is not 1 of core modules"}
	}
	r := &reader{b: in, p: 8, end: len(in)}
	last := 0
	for r.more() {
		at := r.p
		id := r.u8("section number")
		size := r.u32("section size")
		if r.err != nil {
			if r.err.Offset == r.end {
				r.err.Kind = Short
			}
			break
		}
		if int64(size) > int64(r.end-r.p) {
			r.fail(at, Short, "read section %d: it is longer than the module", id)
			break
		}
		if id != secCustom {
			switch {
			case id > secTag:
				r.fail(at, Unsupported, "use unknown section %d", id)
			case order(id) <= last:
				r.fail(at, Malformed, "read section %d: it is out of order", id)
			}
			if r.err != nil {
				break
			}
			last = order(id)
		}
		sub := r.part(int(size))
		s.section(id, &sub)
		if sub.err == nil && sub.more() {
			sub.fail(sub.p, Malformed, "read section %d: bytes are left over", id)
		}
		if sub.err != nil {
			return nil, sub.err
		}
	}
	if r.err == nil {
		s.finish(r)
	}
	if r.err != nil {
		return nil, r.err
	}
	return s, nil
}

// finish makes the checks that span sections.
func (s *source) finish(r *reader) {
	at := len(s.in)
	if n := len(s.funcs) - s.importedFuncs; n != len(s.code) {
		r.fail(at, Malformed, "read module: %d functions are declared and %d defined", n, len(s.code))
	}
	if s.dataCount >= 0 && s.dataCount != len(s.data) {
		r.fail(at, Malformed, "read module: %d data segments are announced and %d defined", s.dataCount, len(s.data))
	}
}

func (s *source) section(id byte, r *reader) {
	switch id {
	case secCustom:
		s.custom(r)
	case secType:
		s.typeSection(r)
	case secImport:
		s.importSection(r)
	case secFunction:
		n := r.count(s.lim.Functions-len(s.funcs), "functions")
		s.funcs = slices.Grow(s.funcs, n)
		for range n {
			s.funcs = append(s.funcs, s.typeIndex(r))
		}
	case secTable:
		n := r.count(s.lim.Tables-len(s.tables), "tables")
		for range n {
			s.tables = append(s.tables, s.tableType(r))
		}
		s.checkTables(r)
	case secMemory:
		start := r.p
		n := r.count(len(s.in), "memories")
		if n > 1 || n == 1 && s.memory != nil {
			r.fail(start, Unsupported, "use multi-memory (several memories)")
		}
		if n == 1 && r.err == nil {
			s.memory = s.memoryType(r, ownMemory)
			if at := start; s.memory.min > uint32(s.lim.MemoryPages) {
				r.fail(at, TooLarge, "need %d pages of memory, over the limit of %d,", s.memory.min, s.lim.MemoryPages)
			}
		}
	case secTag:
		s.tagSection(r)
	case secGlobal:
		s.globalSection(r)
	case secExport:
		s.exportSection(r)
	case secStart:
		at := r.p
		f := r.u32("start function")
		if r.err != nil {
			return
		}
		if int64(f) >= int64(len(s.funcs)) {
			r.fail(at, Malformed, "start with unknown function %d", f)
		} else if t := s.typeOf(f); len(t.Params)+len(t.Results) != 0 {
			r.fail(at, Malformed, "start with function %d that has parameters or results", f)
		}
		s.start = int(f)
	case secElement:
		s.elementSection(r)
	case secDataCount:
		s.dataCount = int(r.u32("number of data segments"))
	case secCode:
		s.codeSection(r)
	case secData:
		s.dataSection(r)
	}
}

func (s *source) typeOf(f uint32) FuncType { return s.types[s.funcs[f]] }

func (s *source) typeIndex(r *reader) uint32 {
	at := r.p
	t := r.u32("type index")
	if int64(t) >= int64(len(s.types)) {
		r.fail(at, Malformed, "use unknown type %d", t)
		return 0
	}
	return t
}

func (s *source) typeSection(r *reader) {
	n := r.count(s.lim.Types, "types")
	s.types = make([]FuncType, 0, n)
	for range n {
		group := 1
		if r.more() && r.b[r.p] == recursive {
			r.p++
			group = r.count(s.lim.Types-len(s.types), "types")
		}
		s.known = len(s.types) + group // types may refer to themselves, and to others of their group
		s.typeGroup(r, group)
	}
}

// recursive starts a group of types that refer to each other.
const recursive = 0x4e

func (s *source) typeGroup(r *reader, n int) {
	for range n {
		at := r.p
		switch form := r.u8("type"); {
		case r.err != nil:
			return
		case form == 0x60:
			t := FuncType{Params: s.valueTypes(r, "parameters")}
			t.Results = s.valueTypes(r, "results")
			s.types = append(s.types, t)
		case form == recursive || form == 0x4f || form == 0x50 || form == 0x5e || form == 0x5f:
			r.fail(at, Unsupported, "use GC (garbage collected types, 0x%02x)", form)
		default:
			r.fail(at, Malformed, "read type: unknown form 0x%02x", form)
		}
	}
}

func (s *source) valueTypes(r *reader, what string) []ValueType {
	n := r.count(s.lim.Params, what)
	if n == 0 {
		return nil
	}
	types := make([]ValueType, n)
	for i := range types {
		types[i] = s.valueType(r)
	}
	return types
}

// valueType reads a value type and returns it as it is written: references to functions of a type become references to
// any function, and non-nullable references become nullable.
func (s *source) valueType(r *reader) ValueType {
	at := r.p
	switch t := ValueType(r.u8("value type")); {
	case t.valid() || r.err != nil:
		return t
	case t == exnRef:
		return ExternRef
	case t == refNullable || t == refNonNull:
		return s.heapType(r)
	default:
		unknownType(r, at, byte(t))
		return 0
	}
}

func (s *source) refType(r *reader) ValueType {
	at := r.p
	t := s.valueType(r)
	if r.err == nil && !t.isRef() {
		unknownType(r, at, byte(t))
	}
	return t
}

// heapType reads the type of a reference's target.
func (s *source) heapType(r *reader) ValueType {
	at := r.p
	switch t := r.signed(33, "heap type"); {
	case r.err != nil:
	case t >= int64(s.known):
		r.fail(at, Malformed, "refer to unknown type %d", t)
	case t >= 0 || t == int64(FuncRef)-0x80:
		return FuncRef
	case t == int64(ExternRef)-0x80 || t == exnRef-0x80:
		return ExternRef
	default:
		unknownType(r, at, byte(t)&0x7f)
	}
	return 0
}

func unknownType(r *reader, at int, t byte) {
	switch t {
	case 0x74:
		r.fail(at, Unsupported, "use bottom types (0x%02x)", t)
	case 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x71, 0x72, 0x73:
		r.fail(at, Unsupported, "use GC (garbage collected types, 0x%02x)", t)
	default:
		r.fail(at, Malformed, "read type: unknown type 0x%02x", t)
	}
}

func (s *source) importSection(r *reader) {
	n := r.count(s.lim.Imports, "imports")
	s.imports = make([]importEntry, 0, n)
	for range n {
		at := r.p
		e := importEntry{module: r.name("module of import"), name: r.name("name of import")}
		s.checkName(r, at, e.module)
		s.checkName(r, at, e.name)
		if string(e.module) == ImportModule {
			r.fail(at, Unsupported, "import from %q, which is the host's own,", ImportModule)
		}
		if len(e.module) == 0 && r.err == nil {
			r.fail(at, Unsupported, "import from a module without a name")
		}
		kindAt := r.p
		e.kind = External(r.u8("kind of import"))
		e.desc.start = r.p
		if r.err != nil {
			return
		}
		switch e.kind {
		case Func:
			e.typ = s.typeIndex(r)
			s.funcs = append(s.funcs, e.typ)
			s.importedFuncs++
		case Table:
			s.foreign(r, r.p)
			s.tables = append(s.tables, s.tableType(r))
			s.importedTables++
		case Memory:
			if s.memory != nil {
				r.fail(kindAt, Unsupported, "use multi-memory (several memories)")
			}
			s.memory, s.memoryImported = s.memoryType(r, "memory"), true
		case Global:
			s.foreign(r, r.p)
			g := global{typ: s.valueType(r)}
			g.mutable = mutability(r)
			s.globals = append(s.globals, g)
			s.importedGlobals++
		case 4:
			r.fail(kindAt, Unsupported, "import the tag of another module's exceptions")
		default:
			r.fail(kindAt, Malformed, "read import: unknown kind 0x%02x", byte(e.kind))
		}
		e.desc.end = r.p
		s.imports = append(s.imports, e)
	}
	for _, c := range []struct {
		n, limit int
		what     string
	}{
		{s.importedFuncs, s.lim.Functions, "functions"}, {s.importedTables, s.lim.Tables, "tables"},
		{s.importedGlobals, s.lim.Globals, "globals"},
	} {
		if c.n > c.limit {
			r.fail(r.end, TooLarge, "have %d %s, over the limit of %d,", c.n, c.what, c.limit)
		}
	}
	s.checkTables(r)
}

// foreign refuses types that another module would have to rewrite in the same way.
func (s *source) foreign(r *reader, at int) {
	if !r.more() {
		return
	}
	switch ValueType(r.b[r.p]) {
	case exnRef:
		r.fail(at, Unsupported, "import the exceptions of another module")
	case refNullable, refNonNull:
		r.fail(at, Unsupported, "import the typed references of another module")
	}
}

func (s *source) checkName(r *reader, at int, name []byte) {
	if len(name) > s.lim.NameSize {
		r.fail(at, TooLarge, "have a name of %d bytes, over the limit of %d,", len(name), s.lim.NameSize)
	}
}

func mutability(r *reader) bool {
	at := r.p
	m := r.u8("mutability")
	if m > 1 {
		r.fail(at, Malformed, "read mutability: unknown value 0x%02x", m)
	}
	return m == 1
}

// limits reads the limits of a table or memory.
func limits(r *reader, what string) (lo, hi uint32, hasMax bool) {
	at := r.p
	flags := r.u8("limits of " + what)
	if what == ownMemory {
		what = "memory"
		if flags == 3 { // see scan.atomic
			flags = 1
		}
	}
	if flags > 1 && r.err == nil {
		switch flags {
		case 2, 3:
			r.fail(at, Unsupported, "use threads (a shared %s of others, or without a maximum)", what)
		case 4, 5, 6, 7:
			r.fail(at, Unsupported, "use memory64 (64-bit %s)", what)
		default:
			r.fail(at, Malformed, "read limits: unknown flags 0x%02x", flags)
		}
		return
	}
	lo = r.u32("minimum of " + what)
	if hasMax = flags == 1; hasMax {
		hi = r.u32("maximum of " + what)
		if hi < lo {
			r.fail(at, Malformed, "read limits: the minimum %d is over the maximum %d", lo, hi)
		}
	}
	return
}

func (s *source) tableType(r *reader) (t table) {
	at := r.p
	initialized := r.more() && r.b[r.p] == 0x40
	if initialized {
		r.p++
		if r.u8("table") != 0 {
			r.fail(at, Malformed, "read table: unknown kind")
		}
	}
	nonNull := r.more() && ValueType(r.b[r.p]) == refNonNull
	t.typ = s.refType(r)
	t.min, t.max, t.hasMax = limits(r, "table")
	if !initialized {
		if nonNull {
			r.fail(at, Malformed, "have a table without null that says not what is in it")
		}
		return
	}
	start := r.p
	c := s.constExpr(r, s.importedGlobals)
	t.init = span{start, r.p}
	if r.err == nil && c.typ != t.typ {
		r.fail(start, Malformed, "fill a table of type %v with %v", t.typ, c.typ)
	}
	return
}

// checkTables limits the total initial size of all tables.
func (s *source) checkTables(r *reader) {
	var sum int64
	for _, t := range s.tables {
		sum += int64(t.min)
	}
	if sum > int64(s.lim.TableEntries) {
		r.fail(r.end, TooLarge, "need %d table entries, over the limit of %d,", sum, s.lim.TableEntries)
	}
}

// ownMemory is the name in limits for a memory that the module does not share.
const ownMemory = "own memory"

func (s *source) memoryType(r *reader, what string) *memory {
	at := r.p
	m := &memory{}
	m.min, m.max, m.hasMax = limits(r, what)
	if m.min > maxPages || m.max > maxPages {
		r.fail(at, Malformed, "read limits of memory: they are over %d pages", maxPages)
	}
	return m
}

func (s *source) globalSection(r *reader) {
	n := r.count(s.lim.Globals-len(s.globals), "globals")
	s.globals = slices.Grow(s.globals, n)
	for range n {
		g := global{typ: s.valueType(r)}
		g.mutable = mutability(r)
		at := r.p
		c := s.constExpr(r, s.importedGlobals)
		g.init = span{at, r.p}
		if r.err == nil && c.typ != g.typ {
			r.fail(at, Malformed, "initialize a global of type %v with %v", g.typ, c.typ)
		}
		s.globals = append(s.globals, g)
	}
}

func (s *source) exportSection(r *reader) {
	n := r.count(s.lim.Exports, "exports")
	s.exports = make([]export, 0, n)
	seen := make(map[string]bool, n)
	for range n {
		at := r.p
		e := export{name: r.name("name of export")}
		s.checkName(r, at, e.name)
		if seen[string(e.name)] {
			r.fail(at, Malformed, "export %q twice", e.name)
		}
		seen[string(e.name)] = true
		if strings.HasPrefix(string(e.name), ExportPrefix) {
			r.fail(at, Unsupported, "export %q, a name of the host's own,", e.name)
		}
		kindAt := r.p
		e.kind = External(r.u8("kind of export"))
		e.index = r.u32("index of export")
		if r.err != nil {
			return
		}
		var known int
		switch e.kind {
		case Func:
			known = len(s.funcs)
		case Table:
			known = len(s.tables)
		case Memory:
			if s.memory != nil {
				known = 1
			}
		case Global:
			known = len(s.globals)
		case tagExternal:
			known = len(s.tags)
		default:
			r.fail(kindAt, Malformed, "read export: unknown kind 0x%02x", byte(e.kind))
		}
		if int64(e.index) >= int64(known) {
			r.fail(at, Malformed, "export unknown %v %d", e.kind, e.index)
		} else if e.kind == Func {
			s.declare(e.index)
		}
		if e.kind != tagExternal { // no other module throws or catches
			s.exports = append(s.exports, e)
		}
	}
}

// declare records that code may take a reference to a function.
func (s *source) declare(f uint32) {
	if s.declared == nil {
		s.declared = make([]bool, len(s.funcs))
	}
	s.declared[f] = true
}

func (s *source) funcIndex(r *reader) uint32 {
	at := r.p
	f := r.u32("function index")
	if r.err == nil && int64(f) >= int64(len(s.funcs)) {
		r.fail(at, Malformed, "use unknown function %d", f)
		return 0
	}
	return f
}

func (s *source) elementSection(r *reader) {
	n := r.count(s.lim.Elements, "element segments")
	s.elements = make([]element, 0, n)
	for range n {
		at := r.p
		e := element{prefix: r.u32("element segment"), typ: FuncRef}
		if e.prefix > 7 {
			r.fail(at, Malformed, "read element segment: unknown kind %d", e.prefix)
		}
		if e.active() {
			if e.prefix&2 != 0 {
				e.table = r.u32("table index")
			}
			if r.err == nil && int64(e.table) >= int64(len(s.tables)) {
				r.fail(at, Malformed, "use unknown table %d", e.table)
			}
			start := r.p
			c := s.constExpr(r, len(s.globals))
			e.offset = span{start, r.p}
			if r.err == nil && c.typ != I32 {
				r.fail(start, Malformed, "place elements at an offset of type %v", c.typ)
			}
		}
		if e.prefix&3 != 0 {
			if e.exprs() {
				e.typ = s.refType(r)
			} else if kindAt := r.p; r.u8("kind of elements") != 0 {
				r.fail(kindAt, Malformed, "read element segment: unknown kind of elements")
			}
		}
		e.count = r.count(s.lim.Elements-s.elemCount, "elements")
		s.elemCount += e.count
		e.entries.start = r.p
		for range e.count {
			if !e.exprs() {
				if f := s.funcIndex(r); r.err == nil {
					s.declare(f)
				}
				continue
			}
			start := r.p
			if c := s.constExpr(r, len(s.globals)); r.err == nil && c.typ != e.typ {
				r.fail(start, Malformed, "put %v in elements of type %v", c.typ, e.typ)
			}
		}
		e.entries.end = r.p
		s.elements = append(s.elements, e)
	}
}

func (s *source) codeSection(r *reader) {
	s.codeStart, s.codeEnd = r.p, r.end
	n := r.count(s.lim.Functions, "function bodies")
	s.code = make([]span, 0, n)
	for range n {
		at := r.p
		size := r.u32("size of function body")
		switch {
		case int64(size) > int64(r.end-r.p):
			r.fail(at, Malformed, "read function body: it is longer than the section")
		case int64(size) > int64(s.lim.BodySize):
			r.fail(at, TooLarge, "have a function of %d bytes, over the limit of %d,", size, s.lim.BodySize)
		}
		if r.err != nil {
			return
		}
		s.code = append(s.code, span{r.p, r.p + int(size)})
		r.p += int(size)
	}
}

func (s *source) dataSection(r *reader) {
	n := r.count(s.lim.DataSegments, "data segments")
	s.data = make([]segment, 0, n)
	for range n {
		at := r.p
		d := segment{}
		switch prefix := r.u32("data segment"); prefix {
		case 0, 2:
			if memAt := r.p; prefix == 2 && r.u32("memory index") != 0 {
				r.fail(memAt, Unsupported, "use multi-memory (several memories)")
			}
			if s.memory == nil {
				r.fail(at, Malformed, "place data in a memory that is not there")
			}
			start := r.p
			d.offset = s.constExpr(r, s.importedGlobals)
			d.expr = span{start, r.p}
			if r.err == nil && d.offset.typ != I32 {
				r.fail(start, Malformed, "place data at an offset of type %v", d.offset.typ)
			}
		case 1:
			d.passive = true
		default:
			r.fail(at, Malformed, "read data segment: unknown kind %d", prefix)
		}
		size := r.u32("size of data")
		d.bytes.start = r.p
		if int64(size) > int64(r.end-r.p) {
			r.fail(r.p, Malformed, "read data segment: it is longer than the section")
			return
		}
		r.p += int(size)
		d.bytes.end = r.p
		s.data = append(s.data, d)
	}
}

// constant is the result of a constant expression. Its value is known only for integers, and only if it reads no
// global.
type constant struct {
	typ   ValueType
	value int64
	known bool
}

// constExpr reads a constant expression up to and including its end. It may read the first globals of the module. It
// checks the types of the operands and declares the functions that the expression names.
func (s *source) constExpr(r *reader, globals int) constant {
	var room [4]constant
	stack := room[:0]
	for r.err == nil {
		at := r.p
		op := r.u8("constant expression")
		if r.err != nil {
			break
		}
		c := constant{known: true}
		switch op {
		case 0x0b:
			if len(stack) != 1 {
				r.fail(at, Malformed, "end a constant expression with %d values", len(stack))
				return constant{}
			}
			return stack[0]
		case 0x41:
			c.typ, c.value = I32, r.signed(32, "constant")
		case 0x42:
			c.typ, c.value = I64, r.signed(64, "constant")
		case 0x43:
			c.typ = F32
			r.skip(4, "constant")
		case 0x44:
			c.typ = F64
			r.skip(8, "constant")
		case 0x23:
			g := r.u32("global index")
			if r.err != nil {
				break
			}
			if int64(g) >= int64(globals) {
				r.fail(at, Malformed, "read unknown global %d in a constant expression", g)
				break
			}
			if s.globals[g].mutable {
				r.fail(at, Malformed, "read mutable global %d in a constant expression", g)
			}
			c.typ, c.known = s.globals[g].typ, false
		case 0xd0:
			c.typ = s.heapType(r)
		case 0xd2:
			c.typ = FuncRef
			if f := s.funcIndex(r); r.err == nil {
				s.declare(f)
			}
		case 0xfd:
			if vec := r.u8("constant expression"); vec != 0x0c {
				r.fail(at, Malformed, "use vector instruction 0x%02x in a constant expression", vec)
			}
			c.typ = V128
			r.skip(16, "constant")
		case 0x6a, 0x6b, 0x6c, 0x7c, 0x7d, 0x7e:
			c.typ = I32
			if op >= 0x7c {
				c.typ = I64
			}
			n := len(stack)
			if n < 2 || stack[n-1].typ != c.typ || stack[n-2].typ != c.typ {
				r.fail(at, Malformed, "calculate with other values than two of type %v in a constant expression", c.typ)
				break
			}
			x, y := stack[n-2], stack[n-1]
			stack = stack[:n-2]
			c.known = x.known && y.known
			switch op {
			case 0x6a, 0x7c:
				c.value = x.value + y.value
			case 0x6b, 0x7d:
				c.value = x.value - y.value
			default:
				c.value = x.value * y.value
			}
		default:
			r.fail(at, Malformed, "use instruction 0x%02x in a constant expression", op)
		}
		if len(stack) == 1000 {
			r.fail(at, TooLarge, "have a constant expression of more than 1000 values")
		}
		stack = append(stack, c)
	}
	return constant{}
}

func (s *source) custom(r *reader) {
	name := r.name("name of custom section")
	if r.err != nil {
		return
	}
	if bytes.HasPrefix(name, []byte(".debug_")) {
		s.debugSection(string(name), r.b[r.p:r.end:r.end])
		s.debugSize += r.end - r.p
	}
	if string(name) == "name" {
		if s.nameSeen {
			r.fail(r.p, Malformed, "read name section: it is there twice")
			return
		}
		s.nameSeen = true
		s.names(r)
	}
	r.p = r.end
}

// names reads the name section. It keeps only the names of functions, which traps show.
func (s *source) names(r *reader) {
	for r.more() {
		id := r.u8("part of name section")
		size := r.u32("size of a part of the name section")
		if r.err != nil {
			return
		}
		if int64(size) > int64(r.end-r.p) {
			r.fail(r.p, Malformed, "read name section: a part is longer than it")
			return
		}
		sub := r.part(int(size))
		switch id {
		case 0:
			sub.name("name of module")
		case 1:
			s.funcNames = append(s.funcNames, span{sub.p, sub.end})
			nameMap(&sub, nil)
		case 2:
			for range sub.count(len(s.in), "functions with named locals") {
				sub.u32("function index")
				nameMap(&sub, nil)
			}
		default:
			sub.p = sub.end
		}
		if sub.err == nil && sub.more() {
			sub.fail(sub.p, Malformed, "read name section: bytes are left over")
		}
		if sub.err != nil {
			r.err = sub.err
			r.p = r.end
			return
		}
	}
}

// nameMap reads a list of indexes and names.
func nameMap(r *reader, each func(index uint32, name []byte)) {
	for range r.count(len(r.b), "names") {
		i := r.u32("index of name")
		name := r.name("name")
		if r.err != nil {
			return
		}
		if each != nil {
			each(i, name)
		}
	}
}
