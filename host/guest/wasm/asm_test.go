package wasm

import "slices"

// A small assembler: what is not bytes yet is made bytes by b.

// b joins bytes, numbers below 256 and parts of modules.
func b(parts ...any) []byte {
	var out []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			out = append(out, byte(p))
		case byte:
			out = append(out, p)
		case ValueType:
			out = append(out, byte(p))
		case External:
			out = append(out, byte(p))
		case []byte:
			out = append(out, p...)
		case string:
			out = append(out, p...)
		default:
			panic("no bytes")
		}
	}
	return out
}

func u(v uint32) []byte { return appendU32(nil, v) }

func s(v int64) []byte { return appendSigned(nil, v) }

func name(n string) []byte { return appendName(nil, n) }

// vec is a vector of entries.
func vec(entries ...[]byte) []byte { return b(u(uint32(len(entries))), slices.Concat(entries...)) }

// sized is content with its length before it.
func sized(parts ...any) []byte {
	content := b(parts...)
	return b(u(uint32(len(content))), content)
}

// module has sections in the order that they are given.
func module(sections ...[]byte) []byte {
	return b("\x00asm", 1, 0, 0, 0, slices.Concat(sections...))
}

func section(id int, parts ...any) []byte { return b(id, sized(parts...)) }

func functype(params, results []ValueType) []byte {
	out := b(0x60, u(uint32(len(params))))
	for _, p := range params {
		out = append(out, byte(p))
	}
	out = append(out, u(uint32(len(results)))...)
	for _, r := range results {
		out = append(out, byte(r))
	}
	return out
}

func types(t ...[]byte) []byte   { return section(secType, vec(t...)) }
func imports(i ...[]byte) []byte { return section(secImport, vec(i...)) }
func tables(t ...[]byte) []byte  { return section(secTable, vec(t...)) }
func mem(limits ...any) []byte   { return section(secMemory, vec(b(limits...))) }
func globals(g ...[]byte) []byte { return section(secGlobal, vec(g...)) }
func exports(e ...[]byte) []byte { return section(secExport, vec(e...)) }
func elems(e ...[]byte) []byte   { return section(secElement, vec(e...)) }
func code(c ...[]byte) []byte    { return section(secCode, vec(c...)) }
func datas(d ...[]byte) []byte   { return section(secData, vec(d...)) }

// funcs gives the types of functions.
func funcs(types ...int) []byte {
	var f [][]byte
	for _, t := range types {
		f = append(f, u(uint32(t)))
	}
	return section(secFunction, vec(f...))
}

func exported(n string, kind External, index int) []byte { return b(name(n), kind, u(uint32(index))) }

// body is a function without locals.
func body(parts ...any) []byte { return sized(0, b(parts...), opEnd) }

// bodyWith is a function with groups of locals.
func bodyWith(locals []byte, parts ...any) []byte { return sized(locals, b(parts...), opEnd) }

func i32c(v int64) []byte { return b(opI32Const, s(v)) }
func i64c(v int64) []byte { return b(opI64Const, s(v)) }

var void = functype(nil, nil)

// one is a module of one exported function "f" () -> () with a memory.
func one(parts ...any) []byte {
	return module(types(void), funcs(0), mem(0, 1), exports(exported("f", Func, 0)), code(body(parts...)))
}

// exceptional is a module of one exported function "f" () -> () and a tag of a type.
func exceptional(tag []byte, parts ...any) []byte {
	return module(types(void, tag), funcs(0), section(secTag, 1, 0, 1), exports(exported("f", Func, 0)), code(body(parts...)))
}
