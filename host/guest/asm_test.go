package guest

import "encoding/binary"

// A small assembler: enough for modules that a compiler would not make.
type asm struct {
	types, imports, funcs, tables, mems, globals, exports, elems, codes, datas, tags [][]byte
	start                                                                            []byte
	nimp                                                                             uint32
	typeIDs                                                                          map[string]uint32
	customs                                                                          [][]byte
}

func u(n uint32) []byte   { return binary.AppendUvarint(nil, uint64(n)) }
func str(s string) []byte { return append(u(uint32(len(s))), s...) }

func sleb(n int64) []byte {
	var b []byte
	for {
		c := byte(n & 0x7f)
		n >>= 7
		if n == 0 && c&0x40 == 0 || n == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func cat(bs ...[]byte) []byte {
	var out []byte
	for _, b := range bs {
		out = append(out, b...)
	}
	return out
}

func op(b ...byte) []byte        { return b }
func i32c(n int32) []byte        { return cat(op(0x41), sleb(int64(n))) }
func i64c(n int64) []byte        { return cat(op(0x42), sleb(n)) }
func callf(f uint32) []byte      { return cat(op(0x10), u(f)) }
func get(n uint32) []byte        { return cat(op(0x20), u(n)) }
func set(n uint32) []byte        { return cat(op(0x21), u(n)) }
func gget(n uint32) []byte       { return cat(op(0x23), u(n)) }
func gset(n uint32) []byte       { return cat(op(0x24), u(n)) }
func load8(off uint32) []byte    { return cat(op(0x2d, 0), u(off)) }
func store8(off uint32) []byte   { return cat(op(0x3a, 0), u(off)) }
func load32(off uint32) []byte   { return cat(op(0x28, 2), u(off)) }
func store32(off uint32) []byte  { return cat(op(0x36, 2), u(off)) }
func loop(body ...[]byte) []byte { return cat(op(0x03, 0x40), cat(body...), op(0x0b)) }
func br(n uint32) []byte         { return cat(op(0x0c), u(n)) }
func brif(n uint32) []byte       { return cat(op(0x0d), u(n)) }

var (
	drop        = op(0x1a)
	unreachable = op(0x00)
	add32       = op(0x6a)
	add64       = op(0x7c)
	sub32       = op(0x6b)
	lt32u       = op(0x49)
	grow        = op(0x40, 0)
	memsize     = op(0x3f, 0)
	extend      = op(0xad) // i64.extend_i32_u
)

func (a *asm) typ(p, r []byte) uint32 {
	key := string(cat(op(0x60), u(uint32(len(p))), p, u(uint32(len(r))), r))
	if id, ok := a.typeIDs[key]; ok {
		return id
	}
	if a.typeIDs == nil {
		a.typeIDs = map[string]uint32{}
	}
	a.typeIDs[key] = uint32(len(a.types))
	a.types = append(a.types, []byte(key))
	return a.typeIDs[key]
}

// imp imports a function. All imports come before the first fn.
func (a *asm) imp(module, name string, p, r []byte) uint32 {
	a.imports = append(a.imports, cat(str(module), str(name), op(0), u(a.typ(p, r))))
	a.nimp++
	return a.nimp - 1
}

func (a *asm) env(name string, p, r []byte) uint32 { return a.imp(envModule, name, p, r) }

// fn adds a function; locals are value types. The end is added.
func (a *asm) fn(p, r, locals []byte, body ...[]byte) uint32 {
	a.funcs = append(a.funcs, u(a.typ(p, r)))
	ls := u(uint32(len(locals)))
	for _, l := range locals {
		ls = cat(ls, u(1), op(l))
	}
	code := cat(ls, cat(body...), op(0x0b))
	a.codes = append(a.codes, cat(u(uint32(len(code))), code))
	return a.nimp + uint32(len(a.funcs)) - 1
}

func (a *asm) export(name string, kind byte, i uint32) {
	a.exports = append(a.exports, cat(str(name), op(kind), u(i)))
}

// exported adds a function () -> i32 under a name.
func (a *asm) exported(name string, locals []byte, body ...[]byte) uint32 {
	f := a.fn(nil, op(0x7f), locals, body...)
	a.export(name, 0, f)
	return f
}

func (a *asm) memory(min uint32, max ...uint32) {
	if len(max) > 0 {
		a.mems = append(a.mems, cat(op(1), u(min), u(max[0])))
	} else {
		a.mems = append(a.mems, cat(op(0), u(min)))
	}
	a.export("memory", 2, 0)
}

func (a *asm) global(t byte, mutable bool, init []byte) uint32 {
	m := byte(0)
	if mutable {
		m = 1
	}
	a.globals = append(a.globals, cat(op(t, m), init, op(0x0b)))
	return uint32(len(a.globals)) - 1
}

func (a *asm) data(off int32, p []byte) {
	a.datas = append(a.datas, cat(op(0), i32c(off), op(0x0b), u(uint32(len(p))), p))
}

func (a *asm) passive(p []byte) uint32 {
	a.datas = append(a.datas, cat(op(1), u(uint32(len(p))), p))
	return uint32(len(a.datas)) - 1
}

func (a *asm) bytes() []byte {
	out := append([]byte{}, wasmMagic...)
	sec := func(id byte, items [][]byte) {
		if len(items) == 0 {
			return
		}
		body := cat(u(uint32(len(items))), cat(items...))
		out = cat(out, op(id), u(uint32(len(body))), body)
	}
	sec(1, a.types)
	sec(2, a.imports)
	sec(3, a.funcs)
	sec(4, a.tables)
	sec(5, a.mems)
	sec(13, a.tags)
	sec(6, a.globals)
	sec(7, a.exports)
	if a.start != nil {
		out = cat(out, op(8), u(uint32(len(a.start))), a.start)
	}
	sec(9, a.elems)
	if len(a.datas) > 0 {
		n := u(uint32(len(a.datas)))
		out = cat(out, op(12), u(uint32(len(n))), n)
	}
	sec(10, a.codes)
	sec(11, a.datas)
	for _, c := range a.customs {
		out = cat(out, op(0), u(uint32(len(c))), c)
	}
	return out
}

// answer32 writes the i32 that value leaves on the stack as the output: four
// bytes. alloc, store and output are env's functions.
func (a *asm) answerer() func(value []byte) []byte {
	alloc := a.env("alloc", op(0x7e), op(0x7e))
	store := a.env("store_u64", op(0x7e, 0x7e), nil)
	out := a.env("output_set", op(0x7e, 0x7e), nil)
	return func(value []byte) []byte {
		// The block at 77 is what the first alloc of a call without input
		// answers; asking again would need a local.
		return cat(i64c(16), callf(alloc), drop,
			i64c(77), value, extend, callf(store),
			i64c(77), i64c(4), callf(out))
	}
}
