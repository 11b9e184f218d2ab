package wasm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// What goes on without end through exceptions ends when the fuel does.
func TestExceptionsEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		module []byte
	}{
		{"caught at the begin of a loop", exceptional(void, opLoop, 0x40, opTryTable, 0x40, 1, 2, 0, opThrow, 0, opEnd, opEnd)},
		{"caught behind a block", exceptional(void, opLoop, 0x40, opBlock, 0x40, opTryTable, 0x40, 1, 0, 0, 0, opThrow, 0, opEnd, opEnd, opBr, 0, opEnd)},
		{"thrown again", exceptional(void, opLoop, 0x40, opBlock, exnRef, opTryTable, 0x40, 1, 3, 0, opThrow, 0, opEnd, opRefNull, exnRef, opEnd,
			opTryTable, b(s(1)), 1, 2, 0, opThrowRef, opEnd, opEnd)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.name, "again") { // a block type with a parameter
				c.module = module(types(void, functype([]ValueType{exnRef}, nil)), funcs(0), section(secTag, 1, 0, 0),
					exports(exported("f", Func, 0)), code(body(opLoop, 0x40, opBlock, exnRef, opTryTable, 0x40, 1, 3, 0, opThrow, 0, opEnd, opRefNull, exnRef, opEnd,
						opTryTable, 1, 1, 2, 0, opThrowRef, opEnd, opEnd)))
			}
			h := newHost(t)
			h.budget = 1_000_000
			m, err := h.rewritten(mustRewrite(t, c.module), "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.ExportedFunction("f").Call(context.Background()); !errors.Is(err, errFuel) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// What comes after an exception is paid for, though the checks between were jumped over.
func TestExceptionsPay(t *testing.T) {
	work := slices.Repeat(b(opGlobalGet, 0, i32c(1), 0x6a, opGlobalSet, 0), 50) // 150 units
	const times = 1000
	in := module(types(void), funcs(0, 0), section(secTag, 1, 0, 0), globals(b(I32, 1, i32c(0), opEnd), b(I32, 1, i32c(0), opEnd)),
		exports(exported("f", Func, 0)), code(
			body(opLoop, 0x40,
				opBlock, 0x40, opTryTable, 0x40, 1, 2, 0, opCall, 1, work, work, work, opEnd, opEnd,
				work,
				opGlobalGet, 1, i32c(1), 0x6a, opGlobalSet, 1, opGlobalGet, 1, i32c(times), 0x49, opBrIf, 0, opEnd),
			body(opThrow, 0)))
	h := newHost(t)
	h.slice = 100
	m, err := h.rewritten(mustRewrite(t, in), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.ExportedFunction("f").Call(context.Background()); err != nil {
		t.Fatal(err)
	}
	if h.given < times*150 {
		t.Errorf("%d turns of 150 units cost %d", times, h.given)
	}
}

// tries makes a module of four functions that throw, catch, and call one another, as its bytes say.
type tries struct {
	choices []byte
	depth   int
	locals  int // of the function, each an exnref
}

// local is one of its own for each statement: wazero, the engine that knows exceptions, puts locals back to what they
// were at the try_table, where the specification (and wasmtime) keep them.
func (g *tries) local() byte {
	g.locals++
	return byte(g.locals - 1)
}

func (g *tries) choose(n int) int {
	if len(g.choices) == 0 {
		return 0
	}
	c := int(g.choices[0]) % n
	g.choices = g.choices[1:]
	return c
}

const tryFuncs = 4

// trace mixes the i32 on the stack into global 0.
var trace = b(opGlobalGet, 0, i32c(31), 0x6c, 0x6a, opGlobalSet, 0)

// some are a few statements of a function.
func (g *tries) some(f int) []byte {
	var out []byte
	for range 1 + g.choose(3) {
		out = append(out, g.one(f)...)
	}
	return out
}

func (g *tries) one(f int) []byte {
	kind := g.choose(12)
	if g.depth > 5 {
		kind = min(kind, 4)
	}
	g.depth++
	defer func() { g.depth-- }()
	switch kind {
	case 1:
		return b(opThrow, 0)
	case 2:
		return b(i32c(int64(g.choose(100))), i64c(int64(g.choose(100))), opThrow, 1)
	case 3:
		if f+1 < tryFuncs {
			return b(opCall, f+1+g.choose(tryFuncs-f-1), trace)
		}
	case 4:
		if f+1 < tryFuncs {
			return b(i32c(int64(f+1+g.choose(tryFuncs-f-1))), opCallIndirect, 0, 0, trace)
		}
	case 5: // a branch out
		return b(opBlock, 0x40, opTryTable, 0x40, 1, 0, 0, 0, g.some(f), opBr, 1, opEnd, i32c(5), trace, opEnd)
	case 6:
		return b(opBlock, 3, opTryTable, 0x40, 1, 0, 1, 0, g.some(f), opEnd, i32c(7), i64c(8), opEnd, 0xa7, trace, trace)
	case 7:
		return b(opBlock, 0x40, opTryTable, 0x40, 1, 2, 0, g.some(f), opEnd, opEnd)
	case 8: // all that comes out is thrown again, if something did
		l := g.local()
		return b(opBlock, exnRef, opTryTable, 0x40, 1, 3, 0, g.some(f), opEnd, opRefNull, exnRef, opEnd, opLocalSet, l,
			g.one(f), opLocalGet, l, 0xd1, opIf, 0x40, opElse, opLocalGet, l, opThrowRef, opEnd)
	case 9: // two clauses
		return b(opBlock, 0x40, opBlock, 4, opTryTable, 0x40, 2, 1, 1, 0, 0, 0, 1, g.some(f), opEnd, opBr, 1, opEnd,
			opLocalSet, g.local(), 0xa7, trace, trace, opEnd)
	case 10:
		return b(opGlobalGet, 0, i32c(1<<g.choose(4)), 0x71, opIf, 0x40, g.some(f), opElse, g.some(f), opEnd)
	case 11: // a loop that exceptions lead back to, a few times
		return b(opLoop, 0x40, opGlobalGet, 1, i32c(1), 0x6a, opGlobalSet, 1, opGlobalGet, 1, i32c(20), 0x49, opIf, 0x40,
			opTryTable, 0x40, 1, 2, 1, g.some(f), opEnd, opEnd, opEnd)
	}
	return b(i32c(int64(g.choose(100))), trace)
}

func (g *tries) module() []byte {
	var bodies, elements [][]byte
	for f := range tryFuncs {
		g.locals = 0
		statements := g.some(f)
		bodies = append(bodies, bodyWith(b(1, g.locals, exnRef), statements, i32c(int64(f))))
		elements = append(elements, u(uint32(f)))
	}
	return module(
		types(functype(nil, []ValueType{I32}), void, functype([]ValueType{I32, I64}, nil),
			functype(nil, []ValueType{I32, I64}), functype(nil, []ValueType{I32, I64, exnRef})),
		funcs(0, 0, 0, 0), tables(b(FuncRef, 0, tryFuncs)), section(secTag, 2, 0, 1, 0, 2),
		globals(b(I32, 1, i32c(1), opEnd), b(I32, 1, i32c(0), opEnd)),
		exports(exported("f", Func, 0), exported("g", Global, 0)),
		elems(b(0, i32c(0), opEnd, vec(elements...))), code(bodies...))
}

// agree runs a program as it is, on an engine that knows exceptions, and rewritten, on one that does not. It returns
// what came of it.
func agree(t *testing.T, choices []byte) string {
	in := (&tries{choices: choices}).module()
	m := mustRewrite(t, in)
	run := func(features api.CoreFeatures, instantiate func(h *host) (api.Module, error)) (what, trace string) {
		h := newHostWith(t, features)
		defer h.Close(context.Background())
		h.slice = 40
		i, err := instantiate(h)
		if err != nil {
			t.Fatal(err)
		}
		res, err := i.ExportedFunction("f").Call(context.Background())
		what = fmt.Sprint(res)
		if err != nil {
			what, _, _ = strings.Cut(err.Error(), "\n")
			what = strings.TrimSuffix(what, " (recovered by wazero)")
		}
		return what, i.ExportedGlobal("g").String()
	}
	want, wantTrace := run(features|experimental.CoreFeaturesExceptionHandling, func(h *host) (api.Module, error) { return h.plain(in, "") })
	got, trace := run(features, func(h *host) (api.Module, error) { return h.rewritten(m, "") })
	if got != want || trace != wantTrace {
		t.Errorf("%v: rewritten: %s, %s; as it is: %s, %s", choices, got, trace, want, wantTrace)
	}
	return got
}

// FuzzExceptions has modules throw and catch: the same result, trap or uncaught exception, and the same trace.
func FuzzExceptions(f *testing.F) {
	f.Add([]byte{2, 7, 2, 8, 1, 11, 3, 0, 1})
	f.Add([]byte{0, 8, 1, 2, 7, 9, 0, 1, 4, 2, 6, 2, 3})
	f.Add([]byte{1, 11, 1, 9, 2, 3, 1, 5, 0, 2, 8, 2, 50, 7, 1})
	f.Fuzz(func(t *testing.T, choices []byte) {
		if len(choices) > 200 {
			t.Skip()
		}
		agree(t, choices)
	})
}

// Many programs of FuzzExceptions, so that each run of the tests sees some that throw far.
func TestExceptionsAgree(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint32(250) {
		var choices []byte
		for x := seed*2654435761 + 1; len(choices) < 120; x = x*1664525 + 1013904223 {
			choices = append(choices, byte(x>>24))
		}
		outcomes[agree(t, choices)]++
	}
	if outcomes["wasm error: uncaught exception"] < 50 || outcomes["[0]"] < 50 {
		t.Errorf("the programs do too little: %v", outcomes)
	}
}
