package catalog

import (
	"encoding/binary"
	"maps"
	"slices"
)

// What follows writes the smallest modules that are policies and handlers of
// the guest interface, so that a thousand versions of them cost nothing.

func leb(n int) []byte          { return binary.AppendUvarint(nil, uint64(n)) }
func named(s string) []byte     { return append(leb(len(s)), s...) }
func join(bs ...[]byte) []byte  { return slices.Concat(bs...) }
func vec(items [][]byte) []byte { return join(leb(len(items)), join(items...)) }
func section(id byte, b []byte) []byte {
	return join([]byte{id}, leb(len(b)), b)
}

func sleb(n int) []byte {
	var out []byte
	for {
		b := byte(n & 0x7f)
		n >>= 7
		if n == 0 && b&0x40 == 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

// wasm is a module whose exports answer fixed bytes; an export with an empty
// answer traps. imports are further functions () -> i32 of extism:host/user
// or extism:host/env, as "module.name".
type wasm struct {
	answers map[string]string
	// imports maps names of extism:host/user to be imported to their use:
	// none is called.
	imports []string
	// start is an export without result, "_start", that writes nothing.
	start bool
}

func (w wasm) bytes() []byte {
	i32 := byte(0x7f)
	types := [][]byte{
		{0x60, 2, i32, i32, 0}, // tool_write
		{0x60, 0, 1, i32},      // exports
		{0x60, 0, 0},           // _start
		{0x60, 1, 0x7e, 1, 0x7e},
	}
	var imports [][]byte
	if !w.start || len(w.imports) > 0 { // a WASI command imports nothing of Extism
		imports = append(imports, join(named("extism:host/user"), named("tool_write"), []byte{0, 0}))
	}
	for _, name := range w.imports {
		module := "extism:host/user"
		if name == "var_get" {
			module = "extism:host/env"
		}
		imports = append(imports, join(named(module), named(name), []byte{0, 3}))
	}
	var funcs, exports, codes, data [][]byte
	offset := 16
	for _, name := range slices.Sorted(maps.Keys(w.answers)) {
		answer := w.answers[name]
		body := []byte{0x00} // unreachable
		if answer != "" {
			body = join([]byte{0x41}, sleb(offset), []byte{0x41}, sleb(len(answer)), []byte{0x10, 0, 0x41, 0})
			data = append(data, join([]byte{0, 0x41}, sleb(offset), []byte{0x0b}, named(answer)))
			offset += len(answer)
		}
		code := join([]byte{0}, body, []byte{0x0b})
		exports = append(exports, join(named(name), []byte{0}, leb(len(imports)+len(funcs))))
		funcs = append(funcs, []byte{1})
		codes = append(codes, join(leb(len(code)), code))
	}
	if w.start {
		exports = append(exports, join(named("_start"), []byte{0}, leb(len(imports)+len(funcs))))
		funcs = append(funcs, []byte{2})
		codes = append(codes, []byte{2, 0, 0x0b})
	}
	exports = append(exports, join(named("memory"), []byte{2, 0}))
	return join([]byte("\x00asm\x01\x00\x00\x00"),
		section(1, vec(types)), section(2, vec(imports)), section(3, vec(funcs)),
		section(5, []byte{1, 0, byte(offset>>16) + 1}), section(7, vec(exports)),
		section(10, vec(codes)), section(11, vec(data)))
}

// policy is a module that allows everything by the rule named mark.
func policy(mark string) []byte {
	return wasm{answers: map[string]string{"restrict": `{"effect":"allow","rule":"` + mark + `"}`}}.bytes()
}

// handler is a module that answers mark.
func handler(mark string) []byte {
	return wasm{answers: map[string]string{"handle": `{"exit_code":0,"stdout":"` + mark + `"}`}}.bytes()
}
