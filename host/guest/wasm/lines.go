package wasm

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Debug holds a module's source lines, in DWARF, and how Rewrite moved its code. It aliases the input of Rewrite.
//
// The module's own DWARF describes the original code, and reading it takes longer than the rest of loading. So it is
// not kept. The rewritten module instead has a hundred bytes of DWARF, the same for every module, which assign all
// code to one line: that makes wazero report the offset of each function in a trap (as "0x1b2: "). Lines maps offsets
// to source lines once, when the module is compiled, in a table for FindLine.
type Debug struct {
	sections map[string][]byte
	code     int // bytes of the original's code section
	moves    []move
}

// move records that code at from, in the original's code section, is at to in the result's; so is the code that
// follows, up to the next move.
type move struct{ from, to uint32 }

// debugNames are the sections from which lines are read.
var debugNames = []string{
	".debug_abbrev", ".debug_addr", ".debug_info", ".debug_line", ".debug_line_str", ".debug_ranges", ".debug_rnglists",
	".debug_str", ".debug_str_offsets",
}

// debugSection records a DWARF custom section. Of two with the same name the first counts.
func (s *source) debugSection(name string, content []byte) {
	if _, ok := s.debug[name]; ok || !slices.Contains(debugNames, name) {
		return
	}
	if s.debug == nil {
		s.debug = map[string][]byte{}
	}
	s.debug[name] = content
}

func (s *source) saysLines() bool { return len(s.debug[".debug_line"]) > 0 }

// debugSections writes the DWARF of the result and a checksum that distinguishes modules that differ only in their
// lines: code is compiled and cached under the digest of the result. The checksum includes the version of the table's
// format.
func (w *writer) debugSections() *Debug {
	src := w.src
	custom := func(name string, content []byte) {
		w.section(secCustom, func() {
			w.name(name)
			w.u8(content...)
		})
	}
	custom(".debug_abbrev", []byte{
		1, 0x11, 0, // a compilation unit, without children
		atStmtList, 0x17, atLowPC, 0x01, atHighPC, 0x06, 0, 0,
		0,
	})
	custom(".debug_info", []byte{
		20, 0, 0, 0, 4, 0, 0, 0, 0, 0, 4, // version 4, addresses of 4 bytes
		1, 0, 0, 0, 0, 1, 0, 0, 0, 0xfe, 0xff, 0xff, 0x7f, // from 1 on
	})
	custom(".debug_line", []byte{
		49, 0, 0, 0, 4, 0, 25, 0, 0, 0,
		1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, // operand counts of the standard operations
		0, 'm', 0, 0, 0, 0, 0, // one file
		0, 5, 2, 1, 0, 0, 0, 1, // line 1
		0, 5, 2, 0xff, 0xff, 0xff, 0x7f, 0, 1, 1,
	})
	sums := []byte(tableMagic)
	for _, name := range debugNames {
		sums = binary.LittleEndian.AppendUint32(sums, uint32(len(src.debug[name])))
		// Whoever builds two modules of the same code with the same checksums only gets wrong lines for his own code.
		sums = binary.LittleEndian.AppendUint32(sums, crc32.Checksum(src.debug[name], crc32.MakeTable(crc32.Castagnoli)))
	}
	custom("toold:lines", sums)
	return &Debug{sections: src.debug, code: src.codeEnd - src.codeStart, moves: w.moves}
}

// A table consists of a header, an array of offsets and the texts. The offsets, in the new code and ascending, mark
// where the source changes, each with the position of its text in the table (0: unknown). A text is its length in two
// bytes and a line for each function, "name\tfile:line\n", innermost first.
const (
	tableMagic  = "toold:lines 1\n\x00\x00" // 16 bytes; other numbers are other formats
	tableHeader = len(tableMagic) + 4       // followed by the number of offsets
	tableEntry  = 8
	// tableMost is the maximum size of a table in bytes.
	tableMost = 64 << 20
)

// Lines reads the DWARF and returns the table for FindLine. Time and memory are proportional to the DWARF, within
// limits: some seconds for the largest module. It returns an error for DWARF that is malformed or exceeds a limit.
func (d *Debug) Lines() ([]byte, error) {
	r := &reading{
		d: d, steps: dwarfSteps,
		tables: map[uint64]map[uint64]*abbrev{}, dirs: map[int64][]byte{}, fileID: map[string]int32{},
		program: map[int64][]int32{}, names: map[uint32]string{},
	}
	// If its entries are unusable, a module still has the lines of its line programs.
	infoErr := r.unitsOf()
	if infoErr != nil {
		r.inlines = nil
	}
	if err := r.programs(); err != nil {
		return nil, err
	}
	if len(r.rows) == 0 {
		return nil, cmp.Or(infoErr, errors.New("read DWARF: it says no lines"))
	}
	return r.table()
}

// table merges the boundaries of rows and inlined functions.
func (r *reading) table() ([]byte, error) {
	// Where one sequence ends another may start: the end comes first. Of several rows for one address the last counts.
	slices.SortStableFunc(r.rows, func(a, b row) int {
		if a.addr != b.addr {
			return cmp.Compare(a.addr, b.addr)
		}
		return boolInt(a.file != nowhere) - boolInt(b.file != nowhere)
	})
	slices.SortFunc(r.inlines, func(a, b inlined) int {
		switch {
		case a.lo != b.lo:
			return cmp.Compare(a.lo, b.lo)
		case a.depth != b.depth:
			return cmp.Compare(a.depth, b.depth)
		}
		return cmp.Compare(a.origin, b.origin)
	})
	ends := make([]uint32, 0, len(r.inlines))
	for _, in := range r.inlines {
		ends = append(ends, in.hi)
	}
	slices.Sort(ends)

	t := lineTable{texts: map[string]uint32{}, moves: r.d.moves}
	rows, inlines := r.rows, r.inlines
	current := row{file: nowhere}
	var active []inlined
	var text []byte
	for len(rows) > 0 || len(inlines) > 0 || len(ends) > 0 {
		at := ^uint32(0)
		if len(rows) > 0 {
			at = min(at, rows[0].addr)
		}
		if len(inlines) > 0 {
			at = min(at, inlines[0].lo)
		}
		if len(ends) > 0 {
			at = min(at, ends[0])
		}
		for len(rows) > 0 && rows[0].addr == at {
			current, rows = rows[0], rows[1:]
		}
		changed := false
		for len(ends) > 0 && ends[0] == at {
			ends, changed = ends[1:], true
		}
		if changed {
			active = slices.DeleteFunc(active, func(in inlined) bool { return in.hi <= at })
		}
		for len(inlines) > 0 && inlines[0].lo == at {
			if len(active) < inlineDepth {
				i, _ := slices.BinarySearchFunc(active, inlines[0].depth, func(in inlined, depth int32) int { return cmp.Compare(in.depth, depth) })
				active = slices.Insert(active, i, inlines[0])
			}
			inlines = inlines[1:]
		}
		if !r.step(4 + len(active)) {
			return nil, errDWARFSize
		}
		text = r.text(text[:0], current, active)
		if err := t.add(at, text); err != nil {
			return nil, err
		}
	}
	return t.bytes(), nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// text appends the source of code: the innermost function first; the module's own function last, without its name.
// Code may have no line, if compilers made it for several lines at once; its functions may still be known. Rust's
// standard library is left out: it adds nothing to the line of the call into it.
func (r *reading) text(b []byte, at row, active []inlined) []byte {
	if at.file == nowhere || at.file < 0 && len(active) == 0 {
		return b
	}
	file, line := at.file, at.line
	library := func() bool { return file >= 0 && strings.HasPrefix(r.files[file], rustLibrary) }
	if len(active) == 0 && library() {
		return b
	}
	place := func(name string) {
		b = append(append(b, name...), '\t')
		if file >= 0 && line > 0 && !library() {
			b = append(append(b, r.files[file]...), ':')
			b = strconv.AppendUint(b, uint64(line), 10)
		}
		b = append(b, '\n')
	}
	for i := len(active) - 1; i >= 0; i-- {
		in := active[i]
		if !library() {
			place(r.nameOf(in.origin))
		}
		file, line = noFile, in.line
		if files := r.program[r.units[in.unit].lines]; uint64(in.file) < uint64(len(files)) {
			file = files[in.file]
		}
	}
	if place(""); len(b) == len("\t\n") {
		return b[:0]
	}
	return b
}

// lineTable is a table under construction.
type lineTable struct {
	entries []byte
	pool    []byte
	texts   map[string]uint32
	last    uint32 // text of the last entry
	moves   []move
}

// add records the source of the code from an original offset on.
func (t *lineTable) add(from uint32, text []byte) error {
	// Offsets ascend, as do moves.
	for len(t.moves) > 1 && t.moves[1].from <= from {
		t.moves = t.moves[1:]
	}
	if len(t.moves) == 0 {
		return nil
	}
	m := t.moves[0]
	to := m.to
	if from > m.from {
		to += from - m.from
	}
	if len(t.moves) > 1 {
		to = min(to, t.moves[1].to)
	}
	at := uint32(0)
	if len(text) > 0 {
		var ok bool
		if at, ok = t.texts[string(text)]; !ok {
			at = uint32(len(t.pool)) + 1
			t.texts[string(text)] = at
			t.pool = binary.LittleEndian.AppendUint16(t.pool, uint16(len(text)))
			t.pool = append(t.pool, text...)
		}
	}
	if n := len(t.entries); n > 0 && binary.LittleEndian.Uint32(t.entries[n-tableEntry:]) == to {
		t.entries = t.entries[:n-tableEntry]
	} else if n > 0 && t.last == at {
		return nil
	}
	t.last = at
	t.entries = binary.LittleEndian.AppendUint32(t.entries, to)
	t.entries = binary.LittleEndian.AppendUint32(t.entries, at)
	if tableHeader+len(t.entries)+len(t.pool) > tableMost {
		return errDWARFSize
	}
	return nil
}

func (t *lineTable) bytes() []byte {
	b := append([]byte(nil), tableMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.entries)/tableEntry))
	start := uint32(len(b) + len(t.entries))
	for i := 0; i < len(t.entries); i += tableEntry {
		b = append(b, t.entries[i:i+4]...)
		at := binary.LittleEndian.Uint32(t.entries[i+4:])
		if at > 0 {
			at += start - 1
		}
		b = binary.LittleEndian.AppendUint32(b, at)
	}
	return append(b, t.pool...)
}

// Place is a line of a function. Function is empty for the function that the module itself names; Source
// ("src/lib.rs:12") is empty if unknown.
type Place struct{ Function, Source string }

// FindLine returns the source of an instruction of rewritten code, by its offset in the code section: the functions
// inlined there, innermost first, then the module's function. It returns none if nothing is known. It reads only the
// necessary part of the table. It returns an error if the table is invalid or cannot be read.
func FindLine(table io.ReaderAt, offset uint32) ([]Place, error) {
	read := func(n int, at int64) ([]byte, error) {
		b := make([]byte, n)
		if _, err := table.ReadAt(b, at); err != nil {
			return nil, fmt.Errorf("read table of lines: %w", err)
		}
		return b, nil
	}
	h, err := read(tableHeader, 0)
	if err != nil {
		return nil, err
	}
	if string(h[:len(tableMagic)]) != tableMagic {
		return nil, errors.New("read table of lines: it is none, or of another version")
	}
	// Find the last entry at or before the offset.
	lo, hi := int64(0), int64(binary.LittleEndian.Uint32(h[len(tableMagic):]))
	text := uint32(0)
	for lo < hi {
		mid := (lo + hi) / 2
		e, err := read(tableEntry, int64(tableHeader)+mid*tableEntry)
		if err != nil {
			return nil, err
		}
		if binary.LittleEndian.Uint32(e) <= offset {
			text = binary.LittleEndian.Uint32(e[4:])
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if text == 0 {
		return nil, nil
	}
	n, err := read(2, int64(text))
	if err != nil {
		return nil, err
	}
	b, err := read(int(binary.LittleEndian.Uint16(n)), int64(text)+2)
	if err != nil {
		return nil, err
	}
	var places []Place
	for line := range strings.Lines(string(b)) {
		function, source, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		places = append(places, Place{function, source})
	}
	return places, nil
}
