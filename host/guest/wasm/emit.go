package wasm

// Rewrite reads a module strictly and writes it in metered, restorable and bounded form. The error is an *Error. Parts
// of the result alias module, which must not change while they are in use.
func Rewrite(module []byte, lim Limits) (*Module, error) {
	src, err := decode(module, lim.withDefaults())
	if err != nil {
		return nil, err
	}
	// First find the leaf functions, since their callers pay for them. The writer reads all code.
	s := &scan{src: src, leaf: make([]uint8, len(src.funcs))}
	if err := s.findThrowers(); err != nil {
		return nil, err
	}
	leaves := make([]uint8, len(src.funcs))
	for n, body := range src.code {
		if body.end-body.start > leafBytes {
			continue
		}
		if err := s.read(n); err != nil {
			return nil, err
		}
		if s.calls {
			continue
		}
		if cost := s.meter(); cost >= 0 {
			f := src.importedFuncs + n
			leaves[f] = uint8(cost + 1)
			if src.declared != nil && src.declared[f] {
				s.indir = max(s.indir, cost)
			}
		}
	}
	s.leaf = leaves
	s.total = 0
	w := &writer{src: src, scan: s}
	w.plan()
	return w.module()
}

// writer writes the new module.
type writer struct {
	src  *source
	scan *scan
	out  []byte

	importType uint32 // of ImportRefill, () -> ()
	refill     uint32 // function
	fuel       uint32 // global, as are the following
	dirty      uint32
	shadows    uint32 // first shadow of kept
	refs       uint32 // first of scan.refs
	kept       []uint32

	exception uint32            // global that holds the pending exception
	values    []uint32          // the first global of each tag
	outer     map[uint32]uint32 // wrappers of exported functions that throw

	helpers []helper
	// Helper functions, created when code first needs them, and 0 before.
	fill, copy, grow, payBytes, payEntries uint32
	capture, rethrow, hold                 uint32
	inits                                  map[uint32]uint32 // by segment

	strip    bool              // active data is removed
	segments []int             // those that remain
	segment  map[uint32]uint32 // new position of a segment

	maxPages uint32
	tables   []table

	moves []move // of code, if the module has line information
}

// helper is an added function.
type helper struct {
	typ    uint32
	export string
	locals []byte // encoded as in a function body
	code   []byte // without the final end
}

// Added types, in this order.
const (
	typeNone    = iota // () -> ()
	typeThree          // (i32, i32, i32) -> ()
	typeSame           // (i32) -> (i32)
	typeGlobal         // (i32) -> (i64, i64)
	typeSet            // (i32, i64, i64) -> ()
	typeCapture        // () -> (externref)
	typeThrow          // (externref) -> ()
	typeCaught         // (i32) -> (externref)
	typeValue          // (i64) -> ()
	typeTag            // (externref) -> (i32)
	typeValueOf        // (externref, i32) -> (i64)
	typeHold           // (funcref) -> ()
	addedTypes
)

var addedTypeBytes = [addedTypes][]byte{
	{0x60, 0, 0},
	{0x60, 3, byte(I32), byte(I32), byte(I32), 0},
	{0x60, 1, byte(I32), 1, byte(I32)},
	{0x60, 1, byte(I32), 2, byte(I64), byte(I64)},
	{0x60, 3, byte(I32), byte(I64), byte(I64), 0},
	{0x60, 0, 1, byte(ExternRef)},
	{0x60, 1, byte(ExternRef), 0},
	{0x60, 1, byte(I32), 1, byte(ExternRef)},
	{0x60, 1, byte(I64), 0},
	{0x60, 1, byte(ExternRef), 1, byte(I32)},
	{0x60, 2, byte(ExternRef), byte(I32), 1, byte(I64)},
	{0x60, 1, byte(FuncRef), 0},
}

// addedImports are the imports from ImportModule, with their types.
var addedImports = [addedWithTags]struct {
	name string
	typ  uint32
}{
	{ImportRefill, typeNone}, {ImportCaught, typeCaught}, {ImportValue, typeValue}, {ImportTag, typeTag},
	{ImportValueOf, typeValueOf}, {ImportUncaught, typeNone},
}

// addedImports returns how many of them a module has.
func (s *source) addedImports() uint32 {
	if len(s.tags) > 0 {
		return addedWithTags
	}
	return 1
}

// plan decides what is added, and where.
func (w *writer) plan() {
	src := w.src
	w.importType = uint32(len(src.types))
	w.refill = uint32(src.importedFuncs)
	w.fuel = uint32(len(src.globals))
	w.dirty = w.fuel + 1
	w.shadows = w.fuel + 2
	for i, g := range src.globals {
		if g.mutable && !g.typ.isRef() {
			w.kept = append(w.kept, uint32(i))
		}
	}
	w.refs = w.planExceptions(w.shadows + uint32(len(w.kept)))

	w.planData()
	w.planLimits()
	w.inits = make(map[uint32]uint32)
}

// once returns a helper, creating it at its first use.
func (w *writer) once(f *uint32, typ uint32, code func() []byte) uint32 {
	if *f == 0 {
		*f = w.help(typ, "", nil, code())
	}
	return *f
}

func (w *writer) helpFill() uint32 {
	return w.once(&w.fill, typeThree, func() []byte { return w.piecewise(miscMemoryFill, 0) })
}

func (w *writer) helpCopy() uint32 {
	return w.once(&w.copy, typeThree, func() []byte { return w.piecewise(miscMemoryCopy, 0) })
}

func (w *writer) helpGrow() uint32 { return w.once(&w.grow, typeSame, w.growCode) }

// helpInit returns the helper for memory.init of a long segment; other segments have none.
func (w *writer) helpInit(seg uint32) (f uint32, ok bool) {
	d := &w.src.data[seg]
	if !d.passive || d.bytes.end-d.bytes.start <= piece {
		return 0, false
	}
	f = w.inits[seg]
	w.once(&f, typeThree, func() []byte { return w.piecewise(miscMemoryInit, w.segmentOf(seg)) })
	w.inits[seg] = f
	return f, true
}

func (w *writer) helpPayBytes() uint32 {
	return w.once(&w.payBytes, typeSame, func() []byte {
		return w.payCode(piece, func(b []byte) []byte { return append(b, 0x42, 1, 0x88) }) // i64.const 1, i64.shr_u
	})
}

func (w *writer) helpPayEntries() uint32 {
	return w.once(&w.payEntries, typeSame, func() []byte {
		return w.payCode(uint32(w.src.lim.TableEntries), func(b []byte) []byte { return append(b, 0x42, 1, 0x86) }) // i64.const 1, i64.shl
	})
}

// helpExports adds the exported helpers.
func (w *writer) helpExports() {
	src := w.src
	for _, e := range src.exports {
		if e.kind == Func {
			w.outermost(e.index)
		}
	}
	w.help(typeNone, ExportSave, nil, w.copyGlobals(false))
	w.help(typeNone, ExportRestore, nil, w.copyGlobals(true))
	w.help(typeGlobal, ExportGlobalGet, nil, w.globalGet())
	w.help(typeSet, ExportGlobalSet, nil, w.globalSet())
	if src.start >= 0 {
		w.help(typeNone, ExportStart, nil, appendU32([]byte{opCall}, w.outermost(uint32(src.start))))
	}
}

// help adds a function and returns its index.
func (w *writer) help(typ uint32, export string, locals, code []byte) uint32 {
	return w.helpOf(uint32(len(w.src.types))+typ, export, locals, code)
}

// helpOf is help for a function of any type.
func (w *writer) helpOf(typ uint32, export string, locals, code []byte) uint32 {
	w.helpers = append(w.helpers, helper{typ, export, locals, code})
	return w.helper(len(w.helpers) - 1)
}

// helper returns the index of an added function.
func (w *writer) helper(n int) uint32 {
	return uint32(len(w.src.funcs)+n) + w.src.addedImports()
}

// moved returns the new index of an original function.
func (w *writer) moved(f uint32) uint32 {
	if f >= w.refill {
		return f + w.src.addedImports()
	}
	return f
}

// planData decides how data segments are written. Active segments are removed if their offsets are known. Remaining
// references to them in code become references to one empty segment, since an active segment is empty once applied.
func (w *writer) planData() {
	src := w.src
	w.strip = !src.memoryImported
	for i := range src.data {
		if d := &src.data[i]; !d.passive && !d.offset.known {
			w.strip = false
		}
	}
	w.segment = make(map[uint32]uint32)
	for i := range src.data {
		if !src.data[i].passive && !w.strip {
			w.segment[uint32(i)] = uint32(len(w.segments))
			w.segments = append(w.segments, i)
		}
	}
}

// emptySegment stands for all removed segments.
const emptySegment = -1

// segmentOf returns the new position of a segment named in code. Passive segments that no code names are omitted.
func (w *writer) segmentOf(seg uint32) uint32 {
	at, ok := w.segment[seg]
	if ok {
		return at
	}
	stays := int(seg)
	if !w.src.data[seg].passive {
		const all = 1<<32 - 1 // not a segment number
		if at, ok := w.segment[all]; ok {
			return at
		}
		seg, stays = all, emptySegment
	}
	at = uint32(len(w.segments))
	w.segment[seg] = at
	w.segments = append(w.segments, stays)
	return at
}

func (w *writer) planLimits() {
	src := w.src
	if m := src.memory; m != nil && !src.memoryImported {
		w.maxPages = uint32(src.lim.MemoryPages)
		if m.hasMax {
			w.maxPages = min(w.maxPages, m.max)
		}
	}
	own := src.tables[src.importedTables:]
	spare := src.lim.TableEntries
	for _, t := range src.tables {
		spare -= int(t.min)
	}
	for i, t := range own {
		most := t.min + uint32(spare/(len(own)-i))
		if t.hasMax {
			most = min(most, t.max)
		}
		spare -= int(most - t.min)
		w.tables = append(w.tables, table{t.typ, t.init, t.min, most, true})
	}
}

// section writes a section with the given content. The size is encoded in five bytes so that it can be filled in
// later.
func (w *writer) section(id byte, content func()) {
	w.out = append(w.out, id)
	at := len(w.out)
	w.out = append(w.out, 0, 0, 0, 0, 0)
	content()
	putPadded(w.out[at:], uint32(len(w.out)-at-5))
}

// putPadded writes v as unsigned LEB128 in five bytes.
func putPadded(b []byte, v uint32) {
	for i := range 4 {
		b[i] = byte(v) | 0x80
		v >>= 7
	}
	b[4] = byte(v)
}

func (w *writer) u32(v uint32)  { w.out = appendU32(w.out, v) }
func (w *writer) u8(v ...byte)  { w.out = append(w.out, v...) }
func (w *writer) copied(s span) { w.out = append(w.out, w.src.in[s.start:s.end]...) }
func (w *writer) name(s string) { w.out = appendName(w.out, s) }
func (w *writer) types(t []ValueType) {
	w.u32(uint32(len(t)))
	for _, t := range t {
		w.out = append(w.out, byte(t))
	}
}

func (w *writer) module() (*Module, error) {
	src := w.src
	size := len(src.in) - src.debugSize
	w.out = make([]byte, 0, size+size/4+1024)
	// Code comes first, since it determines what else is needed.
	if err := w.bodies(); err != nil {
		return nil, err
	}
	w.helpExports()
	if w.hold != 0 {
		w.tables = append(w.tables, table{typ: FuncRef, min: 1, max: 1, hasMax: true})
	}
	if w.keepsReferences() {
		return nil, &Error{src.codeStart, Unsupported, "keep references in an exnref"}
	}
	bodies := w.out
	w.out = make([]byte, 0, len(bodies)+(size-(src.codeEnd-src.codeStart))+size/16+1024)
	w.out = append(w.out, src.in[:8]...)
	w.section(secType, func() {
		w.u32(uint32(len(src.types) + addedTypes))
		for _, t := range src.types {
			w.u8(0x60)
			w.types(t.Params)
			w.types(t.Results)
		}
		for _, t := range addedTypeBytes {
			w.u8(t...)
		}
	})
	w.section(secImport, func() {
		w.u32(uint32(len(src.imports)) + src.addedImports())
		for _, e := range src.imports {
			w.out = appendName(w.out, e.module)
			w.out = appendName(w.out, e.name)
			w.u8(byte(e.kind))
			w.copied(e.desc)
		}
		for _, add := range addedImports[:src.addedImports()] {
			w.name(ImportModule)
			w.name(add.name)
			w.u8(byte(Func))
			w.u32(w.importType + add.typ)
		}
	})
	w.section(secFunction, func() {
		w.u32(uint32(len(src.code) + len(w.helpers)))
		for _, t := range src.funcs[src.importedFuncs:] {
			w.u32(t)
		}
		for _, h := range w.helpers {
			w.u32(h.typ)
		}
	})
	if len(w.tables) > 0 {
		w.section(secTable, func() {
			w.u32(uint32(len(w.tables)))
			for _, t := range w.tables {
				filled := t.init.end > 0
				if filled {
					w.u8(0x40, 0)
				}
				w.u8(byte(t.typ), 1)
				w.u32(t.min)
				w.u32(t.max)
				if filled {
					w.constExpr(t.init)
				}
			}
		})
	}
	m := &Module{Functions: len(src.code)}
	if src.memory != nil && !src.memoryImported {
		m.Memory = &MemoryLimits{src.memory.min, w.maxPages}
		w.section(secMemory, func() {
			w.u8(1, 1)
			w.u32(src.memory.min)
			w.u32(min(w.maxPages+1, maxPages))
		})
	}
	w.section(secGlobal, w.globalSection)
	w.section(secExport, w.exportSection)
	if len(src.elements) > 0 {
		w.section(secElement, w.elementSection)
	}
	if len(w.segments) > 0 {
		w.section(secDataCount, func() { w.u32(uint32(len(w.segments))) })
	}
	w.section(secCode, func() { w.codeSection(bodies) })
	if len(w.segments) > 0 {
		w.section(secData, w.dataSection)
	}
	w.nameSection()
	if src.saysLines() {
		m.Debug = w.debugSections()
	}

	m.Bytes = w.out
	w.describe(m)
	return m, nil
}

// constExpr copies constant expressions with the indexes of functions adjusted.
func (w *writer) constExpr(s span) {
	r := &reader{b: w.src.in, p: s.start, end: s.end}
	from := r.p
	for r.more() {
		at := r.p
		switch r.u8("") {
		case opI32Const:
			r.signed(32, "")
		case opI64Const:
			r.signed(64, "")
		case 0x43:
			r.skip(4, "")
		case 0x44:
			r.skip(8, "")
		case opGlobalGet:
			r.u32("")
		case opRefNull:
			w.copied(span{from, r.p})
			w.u8(byte(w.src.heapType(r)))
			from = r.p
		case opVector:
			r.skip(17, "")
		case opRefFunc:
			f := r.u32("")
			w.copied(span{from, at})
			w.u8(opRefFunc)
			w.u32(w.moved(f))
			from = r.p
		}
	}
	w.copied(span{from, s.end})
}

// zero returns a constant expression for a type's zero or null.
func zero(t ValueType) []byte {
	switch t {
	case FuncRef, ExternRef:
		return []byte{opRefNull, byte(t), opEnd}
	case I32:
		return []byte{opI32Const, 0, opEnd}
	case I64:
		return []byte{opI64Const, 0, opEnd}
	case F32:
		return []byte{0x43, 0, 0, 0, 0, opEnd}
	case F64:
		return []byte{0x44, 0, 0, 0, 0, 0, 0, 0, 0, opEnd}
	default:
		return append([]byte{opVector, 0x0c, 16: 0, 17: 0}, opEnd)
	}
}

func (w *writer) globalSection() {
	src := w.src
	refs := w.scan.refs
	w.u32(w.refs - uint32(src.importedGlobals) + uint32(len(refs)))
	mutable := func(m bool) {
		if m {
			w.u8(1)
		} else {
			w.u8(0)
		}
	}
	for _, g := range src.globals[src.importedGlobals:] {
		w.u8(byte(g.typ))
		mutable(g.mutable)
		w.constExpr(g.init)
	}
	for _, t := range []ValueType{I64, I32} { // fuel, dirty
		w.u8(byte(t), 1)
		w.u8(zero(t)...)
	}
	for _, g := range w.kept {
		w.u8(byte(src.globals[g].typ), 1)
		w.u8(zero(src.globals[g].typ)...)
	}
	w.exceptionGlobals()
	for _, f := range refs {
		w.u8(byte(FuncRef), 0, opRefFunc)
		w.u32(w.moved(f))
		w.u8(opEnd)
	}
}

func (w *writer) exportSection() {
	added := 2
	for _, h := range w.helpers {
		if h.export != "" {
			added++
		}
	}
	w.u32(uint32(len(w.src.exports) + added))
	for _, e := range w.src.exports {
		w.out = appendName(w.out, e.name)
		w.u8(byte(e.kind))
		if e.kind == Func {
			w.u32(w.outermost(e.index))
		} else {
			w.u32(e.index)
		}
	}
	w.name(ExportFuel)
	w.u8(byte(Global))
	w.u32(w.fuel)
	w.name(ExportDirty)
	w.u8(byte(Global))
	w.u32(w.dirty)
	for i, h := range w.helpers {
		if h.export != "" {
			w.name(h.export)
			w.u8(byte(Func))
			w.u32(w.helper(i))
		}
	}
}

func (w *writer) elementSection() {
	w.u32(uint32(len(w.src.elements)))
	for i := range w.src.elements {
		e := &w.src.elements[i]
		w.u32(e.prefix)
		if e.active() {
			if e.prefix&2 != 0 {
				w.u32(e.table)
			}
			w.constExpr(e.offset)
		}
		if e.prefix&3 != 0 {
			if e.exprs() {
				w.u8(byte(e.typ))
			} else {
				w.u8(0)
			}
		}
		w.u32(uint32(e.count))
		if e.exprs() {
			w.constExpr(e.entries) // all at once: they need not be distinguished
			continue
		}
		r := &reader{b: w.src.in, p: e.entries.start, end: e.entries.end}
		for range e.count {
			w.u32(w.moved(r.u32("")))
		}
	}
}

func (w *writer) dataSection() {
	w.u32(uint32(len(w.segments)))
	for _, i := range w.segments {
		if i == emptySegment {
			w.u8(1, 0)
			continue
		}
		d := &w.src.data[i]
		if d.passive {
			w.u8(1)
		} else {
			w.u8(0)
			w.constExpr(d.expr)
		}
		w.u32(uint32(d.bytes.end - d.bytes.start))
		w.copied(d.bytes)
	}
}

// nameSection writes the names of functions.
func (w *writer) nameSection() {
	src := w.src
	if len(src.funcNames) == 0 {
		return
	}
	last := src.funcNames[len(src.funcNames)-1]
	var names []byte
	n := uint32(0)
	nameMap(&reader{b: src.in, p: last.start, end: last.end}, func(i uint32, name []byte) {
		if int64(i) < int64(len(src.funcs)) {
			n++
			names = appendU32(names, w.moved(i))
			names = appendName(names, cut(name, src.lim.NameSize))
		}
	})
	w.section(secCustom, func() {
		w.name("name")
		w.u8(1)
		w.u32(uint32(len(appendU32(nil, n)) + len(names)))
		w.u32(n)
		w.u8(names...)
	})
}

// cut truncates a name to at most n bytes of whole characters.
func cut(name []byte, n int) []byte {
	if len(name) <= n {
		return name
	}
	for n > 0 && name[n]&0xc0 == 0x80 {
		n--
	}
	return name[:n]
}

// instanceBytes returns Module.InstanceBytes: 8 bytes for a reference, 16 for a global. A table that grows is copied
// to space for a quarter more than it needs, or for twice as much.
func (w *writer) instanceBytes() int64 {
	entries := int64(w.src.elemCount)
	for _, t := range w.tables {
		if w.scan.grows {
			entries += 3 * int64(t.max)
		} else {
			entries += int64(t.min)
		}
	}
	globals := int64(w.refs) + int64(len(w.scan.refs))
	return 8*entries + 16*globals
}

func (w *writer) describe(m *Module) {
	src := w.src
	m.InstanceBytes = w.instanceBytes()
	m.StackRate = w.scan.rate
	m.Imports = make([]Import, len(src.imports))
	for i, e := range src.imports {
		m.Imports[i] = Import{Module: string(e.module), Name: string(e.name), Kind: e.kind}
		if e.kind == Func {
			m.Imports[i].Type = src.types[e.typ]
		}
	}
	m.Exports = make([]Export, len(src.exports))
	for i, e := range src.exports {
		m.Exports[i] = Export{Name: string(e.name), Kind: e.kind}
		if e.kind == Func {
			m.Exports[i].Type = src.typeOf(e.index)
		}
	}
	if w.strip {
		for i := range src.data {
			if d := &src.data[i]; !d.passive {
				m.Data = append(m.Data, Segment{uint32(d.offset.value), src.in[d.bytes.start:d.bytes.end:d.bytes.end]})
			}
		}
	}
	if src.start >= 0 {
		m.StartExport = ExportStart
	}
	for _, g := range w.kept {
		m.Globals = append(m.Globals, GlobalType{src.globals[g].typ, int(g) < src.importedGlobals})
	}
}

// bodies writes the bodies of the original functions.
func (w *writer) bodies() *Error {
	var body []byte
	for n := range w.src.code {
		if err := w.scan.read(n); err != nil {
			return err
		}
		w.scan.meter()
		first := len(w.moves)
		body = w.body(body[:0])
		w.u32(uint32(len(body)))
		for i := range w.moves[first:] {
			w.moves[first+i].to += uint32(len(w.out))
		}
		w.u8(body...)
		// A four-byte branch may become thirty bytes.
		if grown := w.src.lim.Size + w.src.lim.Size/2 + 1<<20; len(w.out) > grown {
			return &Error{w.src.code[n].start, TooLarge, "have code that is too long when metered"}
		}
	}
	return nil
}

func (w *writer) codeSection(bodies []byte) {
	start := len(w.out)
	w.u32(uint32(len(w.src.code) + len(w.helpers)))
	for i := range w.moves {
		w.moves[i].to += uint32(len(w.out) - start)
	}
	w.u8(bodies...)
	for _, h := range w.helpers {
		locals := h.locals
		if locals == nil {
			locals = []byte{0}
		}
		w.u32(uint32(len(locals) + len(h.code) + 1))
		w.u8(locals...)
		w.u8(h.code...)
		w.u8(opEnd)
	}
}

// body appends the body of the function that was scanned, with its checks and edits.
func (w *writer) body(b []byte) []byte {
	s := w.scan
	from := s.body.start
	checks, edits := s.checks, s.edits
	lines := w.src.saysLines()
	for {
		if lines {
			w.moves = append(w.moves, move{uint32(from - w.src.codeStart), uint32(len(b))})
		}
		if len(checks) == 0 && len(edits) == 0 {
			break
		}
		if len(edits) == 0 || len(checks) > 0 && checks[0].pos <= edits[0].start {
			c := checks[0]
			b = append(b, w.src.in[from:c.pos]...)
			from = int(max(c.pos, c.end))
			b = w.check(b, c)
			checks = checks[1:]
			continue
		}
		e := edits[0]
		b = append(b, w.src.in[from:e.start]...)
		b = w.edit(b, e)
		from = int(e.end)
		edits = edits[1:]
	}
	return append(b, w.src.in[from:s.body.end]...)
}

// check appends code that takes a fixed amount of fuel, and the backward branch that it replaces.
func (w *writer) check(b []byte, c check) []byte {
	label := c.label
	if c.kind == checkBranch {
		b = append(b, opIf, 0x40)
		label++
	}
	b = appendU32(append(b, opGlobalGet), w.fuel)
	b = appendSigned(append(b, opI64Const), int64(c.cost))
	b = w.takeHalf(b)
	if c.kind == checkHere {
		return w.otherwise(b)
	}
	// The branch that skips the refill must come first: the compiler puts it where it costs least.
	b = appendU32(append(b, opBrIf), label)
	b = appendU32(append(b, opCall), w.refill)
	b = appendU32(append(b, opBr), label)
	if c.kind == checkBranch {
		b = append(b, opEnd)
	}
	return b
}

// take appends code that subtracts the i64 on top of the stack from the fuel below it.
func (w *writer) take(b []byte) []byte { return w.otherwise(w.takeHalf(b)) }

// takeHalf appends the first half of take, which leaves whether there is fuel left.
func (w *writer) takeHalf(b []byte) []byte {
	b = append(b, 0x7d) // i64.sub
	b = appendU32(append(b, opGlobalSet), w.fuel)
	b = appendU32(append(b, opGlobalGet), w.fuel)
	return append(b, opI64Const, 0, 0x59) // i64.ge_s
}

// otherwise appends the refill for when no fuel is left. It has to be the else branch: at the end of both branches
// wazero's compiler keeps values in registers as the first one left them, and a call leaves none.
func (w *writer) otherwise(b []byte) []byte {
	b = append(b, opIf, 0x40, opElse)
	b = appendU32(append(b, opCall), w.refill)
	return append(b, opEnd)
}

func (w *writer) setDirty(b []byte) []byte {
	return appendU32(append(b, opI32Const, 1, opGlobalSet), w.dirty)
}

func (w *writer) edit(b []byte, e edit) []byte {
	call := func(f uint32) []byte { return appendU32(append(b, opCall), f) }
	same := w.src.in[e.start:e.end]
	landings := w.scan.landings[e.landings.start:e.landings.end]
	switch e.kind {
	case editCall:
		return call(e.arg)
	case editCallThrough:
		return w.pending(call(e.arg), landings)
	case editThrough:
		return w.pending(append(b, same...), landings)
	case editThrow:
		return w.throw(b, e.arg, landings)
	case editThrowRef:
		return w.throwRef(b, landings)
	case editTry:
		return w.try(b, same[1:1+e.arg], landings)
	case editType:
		return append(b, byte(e.arg))
	case editCallRef:
		return w.callRef(b, opCallIndirect, e.arg)
	case editCallRefThrough:
		return w.pending(w.callRef(b, opCallIndirect, e.arg), landings)
	case editReturnCallRef:
		return w.callRef(b, opReturnCallIndirect, e.arg)
	case editReturnCall:
		return appendU32(append(b, opReturnCall), e.arg)
	case editRefFunc:
		// wazero keeps the result of each ref.func as long as the module lives; a global is evaluated once.
		return appendU32(append(b, opGlobalGet), w.refs+uint32(w.scan.refAt[e.arg]))
	case editFill:
		return call(w.helpFill())
	case editCopy:
		return call(w.helpCopy())
	case editGrow:
		return call(w.helpGrow())
	case editInit:
		if f, ok := w.helpInit(e.arg); ok {
			return call(f)
		}
		b = call(w.helpPayBytes())
		b = appendU32(append(b, opMisc, miscMemoryInit), w.segmentOf(e.arg))
		return append(b, 0)
	case editDrop:
		b = w.setDirty(b)
		return appendU32(append(b, opMisc, miscDataDrop), w.segmentOf(e.arg))
	case editTable:
		b = w.setDirty(b)
		b = call(w.helpPayEntries())
	case editDirty:
		b = w.setDirty(b)
	}
	return append(b, same...)
}
