package component

import "slices"

// Sorts of core items.
const (
	sortFunc   = 0
	sortTable  = 1
	sortMemory = 2
	sortGlobal = 3
)

// coreModule is the part of a core module that linking needs. Whoever runs the module
// validates it.
type coreModule struct {
	p, end  int
	imports []coreImport
	exports map[string]coreExport

	types    []coreFuncType
	funcs    []uint32 // types of its own functions
	own      [5]int   // number of tables, memories, globals... it defines, by sort
	imported [5]int
	segments []segment // of elements
	bodies   [][2]int
	start    int64 // -1: none
	bulk     bool  // it has segments that are not in segments
}

type coreFuncType struct{ params, results []Core }

type coreImport struct {
	module, name string
	kind         byte
	typ          uint32 // of a function
}

type coreExport struct {
	kind  byte
	index uint32
}

// segment is an active element segment of table 0 at a constant offset.
type segment struct {
	offset uint32
	funcs  []uint32
}

const (
	mostCore    = 1 << 20 // functions, imports or exports of a module
	mostSegment = 1 << 20 // elements
)

// module reads a core module and skips it. Each module is read only once.
func (r *reader) module() *coreModule {
	if m := r.work.modules[r.p]; m != nil {
		r.p = r.end
		return m
	}
	at := r.p
	m := readModule(r)
	r.work.modules[at] = m
	return m
}

// readModule reads the parts of a core module that linking needs.
func readModule(r *reader) *coreModule {
	m := &coreModule{p: r.p, end: r.end, exports: map[string]coreExport{}, start: -1}
	if r.end-r.p < 8 || string(r.b[r.p:r.p+8]) != "\x00asm\x01\x00\x00\x00" {
		r.fail("has a core module that does not begin as one")
		return m
	}
	r.p += 8
	for r.more() && r.err == nil {
		id := r.u8("section")
		part := r.section(r.count("length of a section"))
		m.section(id, part)
		if part.err == nil && (id == 0 || id > 10 && id != 13) {
			part.p = part.end
		}
		r.done(part, "a core module")
	}
	return m
}

func (m *coreModule) section(id byte, r *reader) {
	each := func(do func()) {
		n := r.count("core definitions")
		if n > mostCore {
			r.refuse("has a core module of more than %d definitions of a kind", mostCore)
			return
		}
		for ; n > 0 && r.err == nil; n-- {
			do()
		}
	}
	switch id {
	case 1:
		each(func() {
			var t coreFuncType
			if r.u8("core type") != 0x60 {
				r.refuse("has a core module with types of the GC proposal")
			}
			for i := range 2 {
				for n := r.count("types"); n > 0 && r.err == nil; n-- {
					c := Core(r.u8("type"))
					if i == 0 {
						t.params = append(t.params, c)
					} else {
						t.results = append(t.results, c)
					}
				}
			}
			m.types = append(m.types, t)
		})
	case 2:
		each(func() {
			im := coreImport{module: r.name("import"), name: r.name("import"), kind: r.u8("import")}
			switch im.kind {
			case sortFunc:
				im.typ = r.u32("type")
			case sortTable:
				r.u8("table")
				r.limits()
			case sortMemory:
				r.limits()
			case sortGlobal:
				r.u8("global")
				r.u8("global")
			case 4:
				r.u8("tag")
				r.u32("tag")
			default:
				r.fail("has a core import of an unknown kind")
				return
			}
			m.imported[im.kind]++
			m.imports = append(m.imports, im)
		})
	case 3:
		each(func() { m.funcs = append(m.funcs, r.u32("type")) })
	case 4:
		m.own[sortTable] = r.count("tables")
		r.p = r.end
	case 5:
		m.own[sortMemory] = r.count("memories")
		r.p = r.end
	case 6:
		m.own[sortGlobal] = r.count("globals")
		r.p = r.end
	case 7:
		each(func() {
			name := r.name("export")
			x := coreExport{kind: r.u8("export"), index: r.u32("export")}
			if _, ok := m.exports[name]; ok {
				r.fail("has a core module with two exports %q", name)
			}
			m.exports[name] = x
		})
	case 8:
		m.start = int64(r.u32("start"))
	case 9:
		m.elements(r)
	case 10:
		each(func() {
			n := r.count("function")
			m.bodies = append(m.bodies, [2]int{r.p, r.p + n})
			r.p += n
		})
	}
}

func (r *reader) limits() {
	flags := r.u8("limits")
	r.u32("limits")
	if flags&1 != 0 {
		r.u32("limits")
	}
}

// elements reads the simplest kind of element segments, which glue uses. It stops at
// any other kind: a module that has one is not glue.
func (m *coreModule) elements(r *reader) {
	for n := r.count("segments"); n > 0 && r.err == nil; n-- {
		if r.u32("segment") != 0 || r.u8("segment") != 0x41 {
			m.bulk = true
			break
		}
		s := segment{offset: uint32(r.s33("offset"))}
		if r.u8("segment") != 0x0b {
			m.bulk = true
			break
		}
		k := r.count("elements")
		if k > mostSegment {
			r.refuse("has a core module with more than %d elements", mostSegment)
			return
		}
		for ; k > 0 && r.err == nil; k-- {
			s.funcs = append(s.funcs, r.u32("element"))
		}
		m.segments = append(m.segments, s)
	}
	r.p = r.end
}

// funcType returns the type of function i, or nil.
func (m *coreModule) funcType(i uint32) *coreFuncType {
	n := uint32(m.imported[sortFunc])
	var t uint32
	if i < n {
		for _, im := range m.imports {
			if im.kind != sortFunc {
				continue
			}
			if i == 0 {
				t = im.typ
				break
			}
			i--
		}
	} else if uint64(i-n) < uint64(len(m.funcs)) {
		t = m.funcs[i-n]
	} else {
		return nil
	}
	if uint64(t) >= uint64(len(m.types)) {
		return nil
	}
	return &m.types[t]
}

// importedFunc returns the import for function i.
func (m *coreModule) importedFunc(i uint32) (coreImport, bool) {
	for _, im := range m.imports {
		if im.kind != sortFunc {
			continue
		}
		if i == 0 {
			return im, true
		}
		i--
	}
	return coreImport{}, false
}

// slot returns the element of table 0 that function i calls, provided that the function
// only passes on its own parameters.
func (m *coreModule) slot(b []byte, i uint32) (uint32, bool) {
	n := uint32(m.imported[sortFunc])
	if i < n || uint64(i-n) >= uint64(min(len(m.bodies), len(m.funcs))) {
		return 0, false
	}
	t := m.funcs[i-n]
	if uint64(t) >= uint64(len(m.types)) {
		return 0, false
	}
	span := m.bodies[i-n]
	r := &reader{b: b, p: span[0], end: span[1], work: &budget{}}
	if r.u32("locals") != 0 {
		return 0, false
	}
	for p := range m.types[t].params {
		if r.u8("code") != 0x20 || r.u32("code") != uint32(p) {
			return 0, false
		}
	}
	if r.u8("code") != 0x41 {
		return 0, false
	}
	slot := r.s33("code")
	if r.u8("code") != 0x11 || r.u32("code") != t || r.u32("code") != 0 {
		return 0, false
	}
	if r.u8("code") != 0x0b || r.err != nil || r.more() || slot < 0 {
		return 0, false
	}
	return uint32(slot), true
}

// hasMemory reports whether the module defines a memory.
func (m *coreModule) hasMemory() bool { return m.own[sortMemory] > 0 }

// isShim reports whether the module only calls through its table.
func (m *coreModule) isShim(b []byte) bool {
	if m.own[sortTable] != 1 || m.imported != [5]int{} || m.hasMemory() || m.own[sortGlobal] > 0 || len(m.funcs) == 0 || m.start >= 0 || len(m.segments) > 0 || m.bulk {
		return false
	}
	for i := range m.funcs {
		if _, ok := m.slot(b, uint32(i)); !ok {
			return false
		}
	}
	return true
}

// isFixup reports whether the module only fills a table that it imports and,
// optionally, calls one function that it imports.
func (m *coreModule) isFixup() bool {
	return !m.bulk && m.own == [5]int{} && len(m.funcs) == 0 && m.imported[sortMemory] == 0 && m.imported[sortTable] <= 1 &&
		len(m.segments) <= 1 && (m.start < 0 || m.start < int64(m.imported[sortFunc]))
}

// same reports whether a core function has these parameters and results.
func (t *coreFuncType) same(params, results []Core) bool {
	return t != nil && slices.Equal(t.params, params) && slices.Equal(t.results, results)
}
