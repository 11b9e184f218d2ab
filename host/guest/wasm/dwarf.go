package wasm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path"
	"slices"
	"strings"
)

// This file reads a module's DWARF, versions 2 to 5, as far as needed for lines and inlined functions. debug/dwarf is
// not made for untrusted input: a number in a header makes it allocate more memory than there is, which is not
// recoverable, and other input keeps it busy for hours. Here every step is counted, and none reads more than a name.

// Limits on what is read. The largest accepted module, if all of it is DWARF, has about 30 million attributes.
const (
	dwarfSteps     = 32_000_000
	dwarfRows      = 2_000_000
	dwarfIntervals = 1_000_000
	dwarfDepth     = 512 // nested entries
	inlineDepth    = 32  // nested inlined functions that are reported
	dwarfName      = 1024
)

var (
	errDWARF     = errors.New("read DWARF: it is malformed")
	errDWARFSize = errors.New("read DWARF: it is too large")
)

// cursor reads little-endian numbers. After the first error all further reads return zero, and bad stays set.
type cursor struct {
	b   []byte
	p   int
	bad bool
}

func (c *cursor) take(n uint64) []byte {
	if c.bad || n > uint64(len(c.b)-c.p) {
		c.bad = true
		return nil
	}
	c.p += int(n)
	return c.b[c.p-int(n) : c.p]
}

func (c *cursor) u8() uint64 {
	if b := c.take(1); b != nil {
		return uint64(b[0])
	}
	return 0
}

func (c *cursor) u16() uint64 {
	if b := c.take(2); b != nil {
		return uint64(binary.LittleEndian.Uint16(b))
	}
	return 0
}

func (c *cursor) u32() uint64 {
	if b := c.take(4); b != nil {
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) number(n int) (v uint64) {
	for i, b := range c.take(uint64(n)) {
		v |= uint64(b) << (8 * i)
	}
	return v
}

func (c *cursor) uleb() (v uint64) {
	for shift := 0; shift < 70; shift += 7 {
		b := c.u8()
		v |= b & 0x7f << shift
		if b < 0x80 {
			return v
		}
	}
	c.bad = true
	return 0
}

func (c *cursor) sleb() (v int64) {
	for shift := 0; shift < 70; shift += 7 {
		b := c.u8()
		v |= int64(b&0x7f) << shift
		if b < 0x80 {
			if b&0x40 != 0 && shift < 57 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
	c.bad = true
	return 0
}

// text reads up to and including a zero byte, and returns the bytes before it.
func (c *cursor) text() []byte {
	if c.bad {
		return nil
	}
	n := bytes.IndexByte(c.b[c.p:], 0)
	if n < 0 {
		c.bad = true
		return nil
	}
	c.p += n + 1
	return c.b[c.p-n-1 : c.p-1]
}

// textAt returns the text at an offset in a section, truncated if it is longer than any name.
func textAt(section []byte, at uint64) []byte {
	if at >= uint64(len(section)) {
		return nil
	}
	b := section[at:min(uint64(len(section)), at+dwarfName)]
	if n := bytes.IndexByte(b, 0); n >= 0 {
		b = b[:n]
	}
	return b
}

// The DWARF attributes, tags and forms that are used here.
const (
	atName           = 0x03
	atStmtList       = 0x10
	atLowPC          = 0x11
	atHighPC         = 0x12
	atCompDir        = 0x1b
	atAbstractOrigin = 0x31
	atSpecification  = 0x47
	atRanges         = 0x55
	atCallFile       = 0x58
	atCallLine       = 0x59
	atLinkageName    = 0x6e
	atStrOffsetsBase = 0x72
	atAddrBase       = 0x73
	atRnglistsBase   = 0x74
	atMIPSLinkage    = 0x2007

	tagInlined = 0x1d

	formImplicit = 0x21
	formIndirect = 0x16
)

// value is the value of an attribute.
type value struct {
	kind uint8
	n    uint64
}

const (
	valNone     = iota
	valNumber   // or an offset in another section
	valAddr     //
	valAddrX    // index in .debug_addr
	valText     // offset in .debug_info; similarly below
	valStrp     // .debug_str
	valLineStrp // .debug_line_str
	valStrX     // index in .debug_str_offsets
	valRef      // offset in .debug_info
	valRnglistX // index in .debug_rnglists
)

type attr struct {
	name, form uint32
	implicit   int64
}

type abbrev struct {
	tag      uint32
	children bool
	attrs    []attr
}

// unit is a compilation unit.
type unit struct {
	start, end   int // in .debug_info
	version      int
	abbrevs      map[uint64]*abbrev
	lines        int64 // line program in .debug_line, or -1
	low          uint64
	strOffsets   uint64
	addrBase     uint64
	rnglistsBase uint64
}

// inlined is a range of code that comes from an inlined function.
type inlined struct {
	lo, hi     uint32
	depth      int32
	unit       int32
	origin     uint32 // the function, in .debug_info
	file, line uint32 // of the call, in the unit's line program
}

// row gives the source of the code from an address on.
type row struct {
	addr uint32
	line uint32
	file int32 // in reading.files, or one of the constants below
}

const (
	noFile  = -1 // it belongs to no line
	nowhere = -2 // no code of a known function follows
)

// reading is the state of reading DWARF.
type reading struct {
	d       *Debug
	steps   int
	units   []unit
	tables  map[uint64]map[uint64]*abbrev
	dirs    map[int64][]byte // compilation directories, by line program
	inlines []inlined
	rows    []row
	files   []string
	fileID  map[string]int32
	program map[int64][]int32 // files of each line program
	names   map[uint32]string
}

func (r *reading) section(name string) []byte { return r.d.sections[name] }

// step counts n units of work and reports whether more is allowed.
func (r *reading) step(n int) bool {
	r.steps -= n
	return r.steps > 0
}

// unitsOf reads all compilation units.
func (r *reading) unitsOf() error {
	c := cursor{b: r.section(".debug_info")}
	for len(c.b)-c.p >= 4 {
		u := unit{start: c.p, lines: -1}
		n := c.u32()
		if n > uint64(len(c.b)-c.p) { // or the length announces the 64-bit format
			return errDWARF
		}
		u.end = c.p + int(n)
		u.version = int(c.u16())
		kind, size, table := uint64(1), uint64(0), uint64(0)
		if u.version >= 5 {
			kind, size, table = c.u8(), c.u8(), c.u32()
		} else {
			table, size = c.u32(), c.u8()
		}
		if c.bad || u.version < 2 || u.version > 5 {
			return errDWARF
		}
		if size == 4 && kind == 1 { // not type units, not units in another file
			var err error
			if u.abbrevs, err = r.abbrevsAt(table); err != nil {
				return err
			}
			r.units = append(r.units, u)
			if err := r.entries(len(r.units)-1, c.p); err != nil {
				return err
			}
		}
		c.p = u.end
		if !r.step(1) {
			return errDWARFSize
		}
	}
	return nil
}

func (r *reading) abbrevsAt(at uint64) (map[uint64]*abbrev, error) {
	if t, ok := r.tables[at]; ok {
		return t, nil
	}
	c := cursor{b: r.section(".debug_abbrev")}
	c.take(at)
	t := map[uint64]*abbrev{}
	for {
		code := c.uleb()
		if c.bad {
			return nil, errDWARF
		}
		if code == 0 {
			break
		}
		a := &abbrev{tag: uint32(c.uleb()), children: c.u8() != 0}
		for {
			at := attr{name: uint32(c.uleb()), form: uint32(c.uleb())}
			if at.form == formImplicit {
				at.implicit = c.sleb()
			}
			if c.bad {
				return nil, errDWARF
			}
			if at.name == 0 && at.form == 0 {
				break
			}
			a.attrs = append(a.attrs, at)
			if !r.step(8) {
				return nil, errDWARFSize
			}
		}
		if !r.step(16) {
			return nil, errDWARFSize
		}
		t[code] = a
	}
	r.tables[at] = t
	return t, nil
}

// entry holds the relevant attributes of an entry of .debug_info.
type entry struct {
	tag                        uint32
	name, linkage, dir, ranges value
	low, high                  value
	origin                     value
	file, line                 uint64
	lines                      value
	children                   bool
}

// entryAt reads the entry at the cursor. It returns nil at the end of a list of entries.
func (r *reading) entryAt(c *cursor, u *unit) (*entry, error) {
	code := c.uleb()
	if c.bad {
		return nil, errDWARF
	}
	if code == 0 {
		return nil, nil
	}
	a := u.abbrevs[code]
	if a == nil {
		return nil, errDWARF
	}
	if !r.step(1 + len(a.attrs)) {
		return nil, errDWARFSize
	}
	e := &entry{tag: a.tag, children: a.children}
	for i := range a.attrs {
		at := &a.attrs[i]
		v := c.form(at.form, at.implicit, u)
		switch at.name {
		case atName:
			e.name = v
		case atLinkageName, atMIPSLinkage:
			e.linkage = v
		case atCompDir:
			e.dir = v
		case atRanges:
			e.ranges = v
		case atLowPC:
			e.low = v
		case atHighPC:
			e.high = v
		case atAbstractOrigin, atSpecification:
			e.origin = v
		case atCallFile:
			e.file = v.n
		case atCallLine:
			e.line = v.n
		case atStmtList:
			e.lines = v
		case atStrOffsetsBase:
			u.strOffsets = v.n
		case atAddrBase:
			u.addrBase = v.n
		case atRnglistsBase:
			u.rnglistsBase = v.n
		}
	}
	if c.bad {
		return nil, errDWARF
	}
	return e, nil
}

// form reads a value in the given form.
func (c *cursor) form(form uint32, implicit int64, u *unit) value {
	if form == formIndirect {
		form = uint32(c.uleb())
	}
	num := func(n uint64) value { return value{valNumber, n} }
	switch form {
	case 0x01: // addr
		return value{valAddr, c.u32()}
	case 0x03: // blocks
		c.take(c.u16())
	case 0x04:
		c.take(c.u32())
	case 0x09, 0x18:
		c.take(c.uleb())
	case 0x0a:
		c.take(c.u8())
	case 0x05: // numbers
		return num(c.u16())
	case 0x06, 0x17:
		return num(c.u32())
	case 0x07:
		return num(c.u64())
	case 0x0b, 0x0c:
		return num(c.u8())
	case 0x0d:
		return num(uint64(c.sleb()))
	case 0x0f, 0x22:
		return num(c.uleb())
	case 0x1e:
		c.take(16)
	case 0x19:
		return num(1)
	case formImplicit:
		return num(uint64(implicit))
	case 0x08: // texts
		at := c.p
		c.text()
		return value{valText, uint64(at)}
	case 0x0e:
		return value{valStrp, c.u32()}
	case 0x1f:
		return value{valLineStrp, c.u32()}
	case 0x1a, 0x1f02:
		return value{valStrX, c.uleb()}
	case 0x25, 0x26, 0x27, 0x28:
		return value{valStrX, c.number(int(form - 0x24))}
	case 0x10: // references
		return value{valRef, c.u32()}
	case 0x11:
		return value{valRef, uint64(u.start) + c.u8()}
	case 0x12:
		return value{valRef, uint64(u.start) + c.u16()}
	case 0x13:
		return value{valRef, uint64(u.start) + c.u32()}
	case 0x14:
		return value{valRef, uint64(u.start) + c.u64()}
	case 0x15:
		return value{valRef, uint64(u.start) + c.uleb()}
	case 0x1c, 0x1d, 0x1f20, 0x1f21: // in other files
		c.u32()
	case 0x20, 0x24:
		c.u64()
	case 0x1b, 0x1f01: // addresses by index
		return value{valAddrX, c.uleb()}
	case 0x29, 0x2a, 0x2b, 0x2c:
		return value{valAddrX, c.number(int(form - 0x28))}
	case 0x23:
		return value{valRnglistX, c.uleb()}
	default:
		c.bad = true
	}
	return value{}
}

// textOf returns the text of a value, or nil.
func (r *reading) textOf(v value, u *unit) []byte {
	switch v.kind {
	case valText:
		return textAt(r.section(".debug_info"), v.n)
	case valStrp:
		return textAt(r.section(".debug_str"), v.n)
	case valLineStrp:
		return textAt(r.section(".debug_line_str"), v.n)
	case valStrX:
		c := cursor{b: r.section(".debug_str_offsets")}
		c.take(u.strOffsets)
		c.take(4 * min(v.n, 1<<32))
		if at := c.u32(); !c.bad {
			return textAt(r.section(".debug_str"), at)
		}
	}
	return nil
}

func (r *reading) addrOf(v value, u *unit) (addr uint64, ok bool) {
	switch v.kind {
	case valAddr:
		return v.n, true
	case valAddrX:
		c := cursor{b: r.section(".debug_addr")}
		c.take(u.addrBase)
		c.take(4 * min(v.n, 1<<32))
		addr = c.u32()
		return addr, !c.bad
	}
	return 0, false
}

// entries reads the entries of a unit, starting with its first.
func (r *reading) entries(n, at int) error {
	u := &r.units[n]
	c := cursor{b: r.section(".debug_info")[:u.end], p: at}
	depth := 0
	// The number of nested inlined functions, by depth of entries.
	var inner [dwarfDepth]int32
	for c.p < u.end {
		at := c.p
		e, err := r.entryAt(&c, u)
		if err != nil {
			return err
		}
		if e == nil {
			if depth--; depth <= 0 {
				break
			}
			continue
		}
		now := int32(0)
		if depth > 0 {
			now = inner[depth-1]
		}
		if depth == 0 {
			u.low, _ = r.addrOf(e.low, u)
			if e.lines.kind == valNumber {
				u.lines = int64(e.lines.n)
				r.dirs[u.lines] = r.textOf(e.dir, u)
			}
		} else if e.tag == tagInlined {
			now++
			in := inlined{depth: now, unit: int32(n), origin: uint32(at), file: uint32(e.file), line: uint32(e.line)}
			if e.origin.kind == valRef && e.origin.n < 1<<32 {
				in.origin = uint32(e.origin.n)
			}
			if err := r.ranges(e, u, func(lo, hi uint64) {
				if lo > 0 && lo < hi && lo < uint64(r.d.code) && now <= inlineDepth {
					in.lo, in.hi = uint32(lo), r.within(hi)
					r.inlines = append(r.inlines, in)
				}
			}); err != nil {
				return err
			}
			if len(r.inlines) > dwarfIntervals {
				return errDWARFSize
			}
		}
		if e.children {
			if depth == dwarfDepth {
				return errDWARFSize
			}
			inner[depth] = now
			depth++
		} else if depth == 0 {
			break
		}
	}
	return nil
}

// ranges calls each for the ranges of addresses that an entry covers. An error in a list ends only that list.
func (r *reading) ranges(e *entry, u *unit, each func(lo, hi uint64)) error {
	if low, ok := r.addrOf(e.low, u); ok && e.ranges.kind == valNone {
		if high, ok := r.addrOf(e.high, u); ok {
			each(low, high)
		} else if e.high.kind == valNumber {
			each(low, low+min(e.high.n, 1<<32))
		}
		return nil
	}
	base := u.low
	if u.version < 5 {
		if e.ranges.kind != valNumber {
			return nil
		}
		c := cursor{b: r.section(".debug_ranges")}
		c.take(e.ranges.n)
		for r.step(1) {
			lo, hi := c.u32(), c.u32()
			switch {
			case c.bad || lo == 0 && hi == 0:
				return nil
			case lo == 1<<32-1:
				base = hi
			default:
				each(base+lo, base+hi)
			}
		}
		return errDWARFSize
	}
	c := cursor{b: r.section(".debug_rnglists")}
	switch e.ranges.kind {
	case valNumber:
		c.take(e.ranges.n)
	case valRnglistX:
		c.take(u.rnglistsBase)
		c.take(4 * min(e.ranges.n, 1<<32))
		at := c.u32()
		if c.bad {
			return nil
		}
		c.p = 0
		c.take(u.rnglistsBase + at)
	default:
		return nil
	}
	addrX := func() uint64 {
		a, _ := r.addrOf(value{valAddrX, c.uleb()}, u)
		return a
	}
	for r.step(1) {
		switch kind := c.u8(); {
		case c.bad || kind == 0 || kind > 7:
			return nil
		case kind == 1:
			base = addrX()
		case kind == 2:
			lo := addrX()
			each(lo, addrX())
		case kind == 3:
			lo := addrX()
			each(lo, lo+min(c.uleb(), 1<<32))
		case kind == 4:
			lo := base + min(c.uleb(), 1<<32)
			each(lo, base+min(c.uleb(), 1<<32))
		case kind == 5:
			base = c.u32()
		case kind == 6:
			lo := c.u32()
			each(lo, c.u32())
		case kind == 7:
			lo := c.u32()
			each(lo, lo+min(c.uleb(), 1<<32))
		}
	}
	return errDWARFSize
}

// nameOf returns the name of the function at an offset in .debug_info, or "".
func (r *reading) nameOf(at uint32) string {
	if name, ok := r.names[at]; ok {
		return name
	}
	name := ""
	for next, tries := uint64(at), 0; tries < 4; tries++ {
		i, found := slices.BinarySearchFunc(r.units, next, func(u unit, at uint64) int {
			switch {
			case uint64(u.end) <= at:
				return -1
			case uint64(u.start) > at:
				return 1
			}
			return 0
		})
		if !found {
			break
		}
		u := r.units[i] // a copy: an entry read out of place may contain anything
		c := cursor{b: r.section(".debug_info")[:u.end], p: int(next)}
		e, err := r.entryAt(&c, &u)
		if err != nil || e == nil {
			break
		}
		// In Rust, only mangled names include a function's module.
		if linkage := string(r.textOf(e.linkage, &u)); isRust(linkage) {
			name = linkage[:min(len(linkage), 200)] // the rest is type arguments
			break
		}
		if n := r.textOf(e.name, &u); len(n) > 0 {
			name = string(n)
			break
		}
		if e.origin.kind != valRef {
			break
		}
		next = e.origin.n
	}
	name = printable(name)
	r.names[at] = name
	return name
}

// isRust reports whether a name was mangled by rustc.
func isRust(name string) bool {
	return strings.HasPrefix(name, "_R") || strings.HasPrefix(name, "_ZN") && len(name) > 20 && name[len(name)-20:len(name)-17] == "17h"
}

// printable returns the text without characters that move a cursor or end a line.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
}

// programs reads all line programs.
func (r *reading) programs() error {
	c := cursor{b: r.section(".debug_line")}
	for len(c.b)-c.p >= 4 {
		at := c.p
		n := c.u32()
		if n > uint64(len(c.b)-c.p) {
			return errDWARF
		}
		end := c.p + int(n)
		if err := r.lineProgram(int64(at), cursor{b: c.b[:end], p: c.p}); err != nil {
			return err
		}
		c.p = end
		if !r.step(1) {
			return errDWARFSize
		}
	}
	return nil
}

func (r *reading) lineProgram(at int64, c cursor) error {
	version := c.u16()
	if version < 2 || version > 5 {
		return nil
	}
	if version >= 5 {
		if size := c.u8(); size != 4 {
			return nil
		}
		c.u8() // segments
	}
	length := c.u32()
	start := uint64(c.p) + length
	least := c.u8()
	if version >= 4 {
		c.u8() // operations per instruction: 1 unless they are bundled
	}
	c.u8() // whether rows are initially statements
	base, width, first := int64(int8(c.u8())), c.u8(), c.u8()
	lengths := c.take(max(first, 1) - 1)
	if c.bad || width == 0 || first == 0 || start > uint64(len(c.b)) {
		return errDWARF
	}
	var files []int32
	var err error
	if version < 5 {
		files, err = r.filesOld(&c, r.dirs[at])
	} else {
		files, err = r.filesNew(&c, r.dirs[at])
	}
	if err != nil {
		return err
	}
	r.program[at] = files

	c.p = int(start)
	var addr, file, line uint64
	begin := len(r.rows)
	reset := func() { addr, file, line = 0, 1, 1 }
	reset()
	emit := func() {
		id := int32(noFile)
		if file < uint64(len(files)) && line > 0 && line < 1<<31 {
			id = files[file]
		}
		r.rows = append(r.rows, row{r.within(addr), uint32(line), id})
	}
	for c.p < len(c.b) && !c.bad {
		if !r.step(1) || len(r.rows) > dwarfRows {
			return errDWARFSize
		}
		op := c.u8()
		if op >= first {
			op -= first
			addr += least * (op / width)
			line += uint64(base + int64(op%width))
			emit()
			continue
		}
		switch op {
		case 0:
			n := c.uleb()
			next := uint64(c.p) + min(n, 1<<32)
			switch c.u8() {
			case 1: // end of a sequence
				// Functions that the linker removed are at addresses where no function can be.
				if begin < len(r.rows) && r.rows[begin].addr > 0 && r.rows[begin].addr < uint32(r.d.code) {
					r.rows = append(r.rows, row{r.within(addr), 0, nowhere})
				} else {
					r.rows = r.rows[:begin]
				}
				begin = len(r.rows)
				reset()
			case 2:
				addr = c.u32()
			}
			if next > uint64(len(c.b)) {
				return errDWARF
			}
			c.p = int(next)
		case 1:
			emit()
		case 2:
			addr += least * c.uleb()
		case 3:
			line += uint64(c.sleb())
		case 4:
			file = c.uleb()
		case 5, 12:
			c.uleb()
		case 6, 7, 10, 11:
		case 8:
			addr += least * ((255 - first) / width)
		case 9:
			addr += c.u16()
		default:
			for range lengths[op-1] {
				c.uleb()
			}
			if !r.step(int(lengths[op-1])) {
				return errDWARFSize
			}
		}
	}
	r.rows = r.rows[:begin] // a sequence without an end
	if c.bad {
		return errDWARF
	}
	return nil
}

// within limits an address to the end of the code.
func (r *reading) within(addr uint64) uint32 { return uint32(min(addr, uint64(r.d.code))) }

// filesOld reads the files of a line program up to version 4, which are numbered from 1.
func (r *reading) filesOld(c *cursor, comp []byte) ([]int32, error) {
	dirs := []string{""}
	for {
		d := c.text()
		if c.bad || !r.step(1) {
			return nil, errDWARF
		}
		if len(d) == 0 {
			break
		}
		dirs = append(dirs, string(d[:min(len(d), dwarfName)]))
	}
	files := []int32{noFile}
	for {
		name := c.text()
		if len(name) == 0 {
			break
		}
		dir := c.uleb()
		c.uleb()
		c.uleb()
		if !r.step(1) {
			return nil, errDWARFSize
		}
		in := ""
		if dir < uint64(len(dirs)) {
			in = dirs[dir]
		}
		files = append(files, r.file(string(comp), in, string(name[:min(len(name), dwarfName)])))
	}
	if c.bad {
		return nil, errDWARF
	}
	return files, nil
}

// filesNew reads the files of a version 5 line program. Files and folders are numbered from 0; the first folder is the
// compilation directory.
func (r *reading) filesNew(c *cursor, comp []byte) ([]int32, error) {
	type pair struct{ what, form uint64 }
	list := func(each func(path []byte, dir uint64)) error {
		pairs := make([]pair, c.u8())
		for i := range pairs {
			pairs[i] = pair{c.uleb(), c.uleb()}
		}
		for n := c.uleb(); n > 0; n-- {
			var name []byte
			dir := uint64(0)
			before := c.p
			for _, p := range pairs {
				v := c.form(uint32(p.form), 0, &unit{})
				switch p.what {
				case 1:
					switch v.kind {
					case valText:
						name = textAt(c.b, v.n)
					case valStrp, valLineStrp:
						name = r.textOf(v, nil)
					}
				case 2:
					dir = v.n
				}
			}
			// Entries that take no space could be repeated any number of times.
			if c.bad || c.p == before || !r.step(1+len(pairs)) {
				return errDWARF
			}
			each(name, dir)
		}
		return nil
	}
	var dirs []string
	if err := list(func(name []byte, _ uint64) { dirs = append(dirs, string(name)) }); err != nil {
		return nil, err
	}
	root := string(comp)
	if len(dirs) > 0 && root == "" {
		root = dirs[0]
	}
	var files []int32
	if err := list(func(name []byte, dir uint64) {
		in := ""
		if dir > 0 && dir < uint64(len(dirs)) {
			in = dirs[dir]
		}
		files = append(files, r.file(root, in, string(name)))
	}); err != nil {
		return nil, err
	}
	return files, nil
}

// file returns the number of a file, by the name shown to users.
func (r *reading) file(root, dir, name string) int32 {
	if !strings.HasPrefix(name, "/") && dir != "" {
		name = dir + "/" + name
	}
	name = short(root, name)
	if id, ok := r.fileID[name]; ok {
		return id
	}
	id := int32(len(r.files))
	r.files = append(r.files, name)
	r.fileID[name] = id
	return id
}

// short returns a file's name as its author knows it: relative to the project or, for a library, starting with the
// library's name. Otherwise it returns the base name, since the folders of the build machine are private.
func short(root, name string) string {
	name = strings.ReplaceAll(name, `\`, "/")
	root = strings.ReplaceAll(root, `\`, "/")
	whole := name
	if !strings.HasPrefix(name, "/") {
		whole = root + "/" + name
	}
	if rest, ok := strings.CutPrefix(name, root+"/"); ok && root != "" {
		name = rest
	}
	name = path.Clean(name)
	local := name != ".." && !strings.HasPrefix(name, "../") && !strings.HasPrefix(name, "/") && !(len(name) > 1 && name[1] == ':')
	if i := strings.LastIndex(whole, "/library/"); i >= 0 && strings.Contains(whole[:i], "/rust") {
		name = rustLibrary + path.Clean(whole[i+len("/library/"):])
	} else if _, rest, ok := strings.Cut(whole, "/registry/src/"); ok {
		_, name, _ = strings.Cut(rest, "/") // of a package: name-version/src/lib.rs
	} else if !local {
		name = path.Base(name)
	}
	if len(name) > 100 {
		name = path.Base(name)
		name = name[max(0, len(name)-100):]
	}
	if name == "/" { // only a folder
		name = "?"
	}
	return printable(name)
}

// rustLibrary is the prefix for file names of Rust's standard library.
const rustLibrary = "rust:"
