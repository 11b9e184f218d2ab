package wasm

import (
	"bytes"
	"debug/dwarf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"testing"
)

// withLines are modules of the C in ../testdata/guests/lines, by clang -O2 -gdwarf-4 and -gdwarf-5.
func withLines(t testing.TB, version int) []byte {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("testdata/lines%d.wasm", version))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// unmoved is the DWARF of a module as if nothing had moved.
func unmoved(t testing.TB, module []byte) *Debug {
	t.Helper()
	d := mustRewrite(t, module).Debug
	if d == nil {
		t.Fatal("it says no lines")
	}
	return &Debug{sections: d.sections, code: d.code, moves: []move{{}}}
}

// TestLinesAsTheLibrary compares each byte's line, and the functions that are inlined there, with what debug/dwarf says,
// which may be trusted with modules that are ours.
func TestLinesAsTheLibrary(t *testing.T) {
	modules := map[string][]byte{"DWARF 4": withLines(t, 4), "DWARF 5": withLines(t, 5)}
	if more := os.Getenv("TOOLD_LINES"); more != "" { // a module of one's own
		b, err := os.ReadFile(more)
		if err != nil {
			t.Fatal(err)
		}
		modules = map[string][]byte{more: b}
	}
	for name, module := range modules {
		t.Run(name, func(t *testing.T) {
			d := unmoved(t, module)
			table, err := d.Lines()
			if err != nil {
				t.Fatal(err)
			}
			want := library(t, d)
			lines, inlined := 0, 0
			for at := range d.code {
				places, err := FindLine(bytes.NewReader(table), uint32(at))
				if err != nil {
					t.Fatal(err)
				}
				got := ""
				if len(places) > 0 {
					got = path.Base(places[0].Source) // the line is part of it
				}
				w := want[at]
				if w.line == 0 {
					if len(places) > 0 && places[0].Source != "" {
						t.Fatalf("0x%x is in %v, must be nowhere", at, places)
					}
					continue
				}
				if strings.Contains(w.file, "/library/") {
					continue // told as where it is called, if at all
				}
				if line := fmt.Sprintf("%s:%d", path.Base(w.file), w.line); got != line {
					t.Fatalf("0x%x is in %v, must be in %s", at, places, line)
				}
				if !strings.HasSuffix(w.file, ".rs") && len(places) != w.inlined+1 {
					t.Fatalf("0x%x is in %v, must be %d functions inlined", at, places, w.inlined)
				}
				lines++
				inlined += w.inlined
			}
			if lines == 0 || inlined == 0 {
				t.Errorf("%d bytes have lines, %d are inlined", lines, inlined)
			}
			t.Logf("%d of %d bytes have lines, %d KiB of DWARF, %d KiB of table", lines, d.code, size(d)>>10, len(table)>>10)
		})
	}
}

func size(d *Debug) (n int) {
	for _, s := range d.sections {
		n += len(s)
	}
	return n
}

type librarian struct {
	file    string
	line    int
	inlined int
}

// library is what debug/dwarf says of each byte of code.
func library(t *testing.T, d *Debug) []librarian {
	data, err := dwarf.New(d.sections[".debug_abbrev"], nil, nil, d.sections[".debug_info"], d.sections[".debug_line"], nil, d.sections[".debug_ranges"], d.sections[".debug_str"])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".debug_addr", ".debug_line_str", ".debug_rnglists", ".debug_str_offsets"} {
		if err := data.AddSection(name, d.sections[name]); err != nil {
			t.Fatal(err)
		}
	}
	out := make([]librarian, d.code)
	r := data.Reader()
	for {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return out
		}
		switch e.Tag {
		case dwarf.TagInlinedSubroutine:
			ranges, err := data.Ranges(e)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range ranges {
				for at := r[0]; r[0] > 0 && at < r[1] && at < uint64(d.code); at++ {
					out[at].inlined++
				}
			}
		case dwarf.TagCompileUnit:
			lines, err := data.LineReader(e)
			if err != nil || lines == nil {
				t.Fatal(lines, err)
			}
			var sequence []dwarf.LineEntry
			for {
				var le dwarf.LineEntry
				if err := lines.Next(&le); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				sequence = append(sequence, le)
				if !le.EndSequence {
					continue
				}
				for i, from := range sequence[:len(sequence)-1] {
					for at := from.Address; sequence[0].Address > 0 && at < sequence[i+1].Address && at < uint64(d.code); at++ {
						out[at].line, out[at].file = from.Line, ""
						if from.File != nil {
							out[at].file = from.File.Name
						}
					}
				}
				sequence = nil
			}
		}
	}
}

// TestMoves: each instruction that the rewriter copied has the line that it had, whatever was inserted before it.
func TestMoves(t *testing.T) {
	for _, version := range []int{4, 5} {
		module := withLines(t, version)
		m := mustRewrite(t, module)
		if len(m.Debug.moves) < 20 {
			t.Fatalf("only %d pieces of code were moved", len(m.Debug.moves))
		}
		before, err := unmoved(t, module).Lines()
		if err != nil {
			t.Fatal(err)
		}
		after, err := m.Debug.Lines()
		if err != nil {
			t.Fatal(err)
		}
		src, out := codeOf(t, module), codeOf(t, m.Bytes)
		shifted := 0
		for i, mv := range m.Debug.moves {
			end := uint32(m.Debug.code)
			if i+1 < len(m.Debug.moves) {
				end = m.Debug.moves[i+1].from
			}
			for n := uint32(0); mv.from+n < end; n++ {
				if src[mv.from+n] != out[mv.to+n] {
					break // something else was written, or the body ended
				}
				was, err := FindLine(bytes.NewReader(before), mv.from+n)
				if err != nil {
					t.Fatal(err)
				}
				is, err := FindLine(bytes.NewReader(after), mv.to+n)
				if err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(was) != fmt.Sprint(is) {
					t.Fatalf("0x%x was in %v; it is at 0x%x, in %v", mv.from+n, was, mv.to+n, is)
				}
				if mv.from != mv.to && len(was) > 0 {
					shifted++
				}
			}
		}
		if shifted < 100 {
			t.Errorf("only %d bytes were compared", shifted)
		}
	}
}

// codeOf is the content of the code section.
func codeOf(t *testing.T, module []byte) []byte {
	r := &reader{b: module, p: 8, end: len(module)}
	for r.more() {
		id, n := r.u8(""), r.u32("")
		if id == secCode {
			return module[r.p : r.p+int(n)]
		}
		r.skip(int(n), "")
	}
	t.Fatal("no code section")
	return nil
}

// TestLinesGarbage: DWARF that is cut short, or in which bytes are others, is an error or has other lines. It is not
// read for longer, and no table comes of it that cannot be read.
func TestLinesGarbage(t *testing.T) {
	for _, version := range []int{4, 5} {
		d := unmoved(t, withLines(t, version))
		for _, name := range debugNames {
			whole := d.sections[name]
			for n := range whole {
				d.sections[name] = whole[:n]
				tryLines(t, d)
				for _, x := range []byte{0x00, 0x01, 0x7f, 0x80, 0xff} {
					other := bytes.Clone(whole)
					other[n] = x
					d.sections[name] = other
					tryLines(t, d)
				}
			}
			d.sections[name] = whole
		}
	}
}

// tryLines reads DWARF that may be anything.
func tryLines(t *testing.T, d *Debug) {
	t.Helper()
	table, err := d.Lines()
	if err != nil {
		if table != nil {
			t.Fatal("an error, and a table")
		}
		return
	}
	last := -1
	for i := tableHeader; i < tableHeader+tableEntry*int(binary.LittleEndian.Uint32(table[len(tableMagic):])); i += tableEntry {
		at := int(binary.LittleEndian.Uint32(table[i:]))
		if at <= last {
			t.Fatalf("offset 0x%x follows 0x%x", at, last)
		}
		last = at
		places, err := FindLine(bytes.NewReader(table), uint32(at))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range places {
			if strings.ContainsAny(p.Function+p.Source, "\n\r\t\x00\x1b") || strings.HasPrefix(p.Source, "/") {
				t.Fatalf("in %q", p)
			}
		}
	}
}

func FuzzLines(f *testing.F) {
	for _, version := range []int{4, 5} {
		s := unmoved(f, withLines(f, version)).sections
		f.Add(s[".debug_abbrev"], s[".debug_addr"], s[".debug_info"], s[".debug_line"], s[".debug_line_str"], s[".debug_ranges"], s[".debug_rnglists"], s[".debug_str"], s[".debug_str_offsets"])
	}
	f.Fuzz(func(t *testing.T, abbrev, addr, info, line, lineStr, ranges, rnglists, str, strOffsets []byte) {
		tryLines(t, &Debug{code: 2000, moves: []move{{0, 0}, {100, 130}, {500, 700}}, sections: map[string][]byte{
			".debug_abbrev": abbrev, ".debug_addr": addr, ".debug_info": info, ".debug_line": line, ".debug_line_str": lineStr,
			".debug_ranges": ranges, ".debug_rnglists": rnglists, ".debug_str": str, ".debug_str_offsets": strOffsets,
		}})
	})
}

// FuzzFindLine reads any table.
func FuzzFindLine(f *testing.F) {
	table, err := unmoved(f, withLines(f, 4)).Lines()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(table, uint32(0x20))
	f.Add(table[:40], uint32(0x120))
	f.Fuzz(func(t *testing.T, table []byte, offset uint32) {
		if places, err := FindLine(bytes.NewReader(table), offset); err != nil && places != nil {
			t.Fatal("an error, and places")
		}
	})
}

// TestShort: a file is told as its author knows it, without the folders of the machine that built it.
func TestShort(t *testing.T) {
	for _, c := range []struct{ root, name, want string }{
		{"/home/you/hello", "/home/you/hello/handler.c", "handler.c"},
		{"/home/you/hello", "/home/you/hello/src/lib.rs", "src/lib.rs"},
		{"/home/you/hello", "/home/you/hello/toold/src/lib.rs", "toold/src/lib.rs"},
		{"/home/you/hello", "handler.c", "handler.c"},
		{".", "./src/handler.c", "src/handler.c"},
		{"", "src/../handler.c", "handler.c"},
		{"/home/you/hello", "/usr/include/stdio.h", "stdio.h"},
		{"/home/you/hello", "/home/you/hello2/a.c", "a.c"},
		{"/home/you/hello", "../shared/a.c", "a.c"},
		{"/home/you/hello", "../../etc/..", ".."},
		{`C:\work\hello`, `C:\work\hello\src\a.c`, "src/a.c"},
		{`C:\work\hello`, `D:\secret\a.c`, "a.c"},
		{"/home/you/hello", "/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/core/src/option.rs", "rust:core/src/option.rs"},
		{"/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860", "library/core/src/option.rs", "rust:core/src/option.rs"},
		{"/home/you/hello", "library/a.c", "library/a.c"},
		{"/home/you/hello", "/root/.rustup/toolchains/stable/lib/rustlib/src/rust/library/std/src/process.rs", "rust:std/src/process.rs"},
		{"/home/you/hello", "/home/you/.cargo/registry/src/index.crates.io-6f17d22bba15001f/serde-1.0.1/src/lib.rs", "serde-1.0.1/src/lib.rs"},
		{"/home/you/hello", "/", "?"},
		{"", "a\nb\x1b[2J.c", "a?b?[2J.c"},
		{"", "a\xff.c", "a?.c"},
		{"", strings.Repeat("long/", 30) + "a.c", "a.c"},
		{"", strings.Repeat("x", 200), strings.Repeat("x", 100)},
	} {
		if got := short(c.root, c.name); got != c.want {
			t.Errorf("%q in %q is %q, must be %q", c.name, c.root, got, c.want)
		}
	}
}

// TestLinesHostile: DWARF that is small and would be read for ever, or into all memory that there is, is refused soon.
func TestLinesHostile(t *testing.T) {
	u32 := func(v int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(v)) }
	unit := func(abbrevs int, entries ...[]byte) []byte {
		in := b(byte(4), byte(0), u32(abbrevs), byte(4), bytes.Join(entries, nil))
		return b(u32(len(in)), in)
	}
	program := func(header ...any) []byte {
		in := b(header...)
		return b(u32(len(in)), in)
	}
	times := func(n int, p ...byte) []byte { return bytes.Repeat(p, n) }
	// A unit, without attributes, whose children are functions that were inlined, where a list says.
	inlined := b(1, 0x11, 1, 0, 0, 2, tagInlined, 0, atRanges, 0x17, 0, 0, 3, tagInlined, 1, 0, 0, 0)
	many := make([][]byte, 1000)
	for i := range many {
		many[i] = unit(2*i + 3)
	}
	for _, c := range []struct {
		name     string
		sections map[string][]byte
		want     error
	}{
		{"one long list of ranges, many times", map[string][]byte{
			".debug_abbrev": inlined, ".debug_info": unit(0, []byte{1}, times(20_000, 2, 0, 0, 0, 0)),
			".debug_ranges": times(20_000, 1, 0, 0, 0, 1, 0, 0, 0),
		}, errDWARFSize},
		{"one range in each of many entries", map[string][]byte{
			".debug_abbrev": inlined, ".debug_info": unit(0, []byte{1}, times(2000, 2, 0, 0, 0, 0)),
			".debug_ranges": times(2000, 1, 0, 0, 0, 9, 0, 0, 0),
		}, errDWARFSize},
		{"tables within each other", map[string][]byte{
			".debug_abbrev": b(1, 0x11, 0, times(500_000, 3, 8), 0, 0, 0, 0), ".debug_info": bytes.Join(many, nil),
		}, errDWARFSize},
		{"entries within each other", map[string][]byte{
			".debug_abbrev": inlined, ".debug_info": unit(0, []byte{1}, times(1000, 3)),
		}, errDWARFSize},
		{"folders that take no room", map[string][]byte{
			".debug_line": program(5, 0, 4, 0, u32(18), 1, 1, 1, 1, 1, 1, 0, times(9, 0xff), 1, 0, 0, 0),
		}, errDWARF},
		{"more files than there are bytes", map[string][]byte{
			".debug_line": program(5, 0, 4, 0, u32(20), 1, 1, 1, 1, 1, 1, 1, 1, 8, times(5, 0xff), 0x7f, 0, 0, 0, 0, 0, 0),
		}, errDWARF},
		{"rows without an end", map[string][]byte{
			".debug_line": program(4, 0, u32(17), 1, 1, 1, 1, 1, 10, times(9, 0), 0, 0, times(dwarfRows+10, 0x20)),
		}, errDWARFSize},
		{"an operation with many operands, many times", map[string][]byte{
			".debug_line": program(4, 0, u32(262), 1, 1, 1, 1, 1, 0xff, times(254, 0xff), 0, 0, times(40_000_000, 0x0d)),
		}, errDWARFSize},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &Debug{code: 1000, moves: []move{{}}, sections: c.sections}
			if table, err := d.Lines(); !errors.Is(err, c.want) {
				t.Errorf("%v and %d bytes, must be %v", err, len(table), c.want)
			}
		})
	}
}
