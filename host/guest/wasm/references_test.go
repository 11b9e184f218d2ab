package wasm

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

// refTo is (ref null $t); refOf is (ref $t).
func refTo(t int) []byte { return b(refNullable, t) }
func refOf(t int) []byte { return b(refNonNull, t) }

// fn is a function type of parts.
func fn(params, results [][]byte) []byte { return b(0x60, vec(params...), vec(results...)) }

// A reference to a function of one type that is called as one of another type is a trap, whatever an engine makes of
// types: wazero takes the module as it is, and would have the function take a number for a reference.
func TestCallOfAnotherType(t *testing.T) {
	const numbers, references, start = 0, 1, 2
	for _, c := range []struct {
		name string
		op   int
		code []byte
	}{
		{"call_ref", opCallRef, b(i64c(1<<40), opRefFunc, 0, opCallRef, numbers)},
		{"return_call_ref", opReturnCallRef, b(i64c(1<<40), opRefFunc, 0, opReturnCallRef, numbers)},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := module(types(functype([]ValueType{I64}, nil), functype([]ValueType{ExternRef}, nil), void), funcs(references, start),
				exports(exported("victim", Func, 0), exported("f", Func, 1)), code(body(), body(c.code)))
			h := newHost(t)
			if _, err := h.CompileModule(context.Background(), in); err != nil {
				t.Skipf("wazero refuses what is not valid; call_ref may be left to it: %v", err)
			}
			i, err := h.rewritten(mustRewrite(t, in), "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := i.ExportedFunction("f").Call(context.Background()); err == nil || !strings.Contains(err.Error(), "indirect call type mismatch") {
				t.Errorf("the call ends with %v", err)
			}
		})
	}
}

// What is called through references is paid for, and costs the same however fuel comes.
func TestReferencesFuel(t *testing.T) {
	// count(n) calls itself through a reference, adds up, and goes round a loop that ends when a reference is null.
	self := fn([][]byte{b(I32)}, [][]byte{b(I32)})
	long := bytes.Repeat(b(opLocalGet, 0, i32c(0), 0x6a, opLocalSet, 0), 60) // that where the loop is left has to be paid for
	count := bodyWith(b(1, 1, refTo(0)),
		opLocalGet, 0, 0x45, opIf, 0x40, i32c(0), opReturn, opEnd,
		opRefFunc, 0, opLocalSet, 1,
		opBlock, 0x40, opLoop, 0x40, opLocalGet, 1, opBrOnNull, 1, 0x1a, opRefNull, 0, opLocalSet, 1, opBr, 0, opEnd, opEnd, long,
		opLocalGet, 0, i32c(1), 0x6b, opRefFunc, 0, opRefAsNonNull, opCallRef, 0, i32c(1), 0x6a)
	in := module(types(self), funcs(0), exports(exported("count", Func, 0)), code(count))
	var used []int64
	for _, slice := range []int64{1, 7, 1000, 1 << 40} {
		h := newHost(t)
		h.slice = slice
		i, err := h.rewritten(mustRewrite(t, in), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := call(t, i, "count", 300)[0]; got != 300 {
			t.Fatalf("count gives %d", got)
		}
		used = append(used, h.given-int64(i.ExportedGlobal(ExportFuel).Get()))
	}
	for _, n := range used {
		if n != used[0] {
			t.Fatalf("used %v", used)
		}
	}
	// A call is 12, the long code 120 and twice paid for, and the rest some more.
	if per := used[0] / 300; per < 140 || per > 320 {
		t.Errorf("a call costs %d", per)
	}
}

// What changes a place for a typed reference is noted as for any: it is not restored.
func TestReferencesDirty(t *testing.T) {
	for _, c := range []struct {
		name  string
		code  []byte
		dirty uint64
	}{
		{"a call", b(opRefFunc, 0, opCallRef, 0), 0},
		{"table.set", b(i32c(0), opRefFunc, 0, opTableSet, 0), 1},
		{"global.set", b(opRefFunc, 0, opGlobalSet, 0), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := module(types(void), funcs(0, 0), tables(b(0x40, 0, refOf(0), 0, 2, opRefFunc, 0, opEnd)), globals(b(refTo(0), 1, opRefNull, 0, opEnd)),
				exports(exported("victim", Func, 0), exported("f", Func, 1), exported("t", Table, 0)), code(body(), body(c.code)))
			m := mustRewrite(t, in)
			i, err := newHost(t).rewritten(m, "")
			if err != nil {
				t.Fatal(err)
			}
			call(t, i, "f")
			if got := i.ExportedGlobal(ExportDirty).Get(); got != c.dirty {
				t.Errorf("dirty is %d; want %d", got, c.dirty)
			}
			if len(m.Globals) != 0 {
				t.Errorf("a global of references is restored: %v", m.Globals)
			}
		})
	}
}
