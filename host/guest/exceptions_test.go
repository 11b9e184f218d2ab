package guest

import (
	"context"
	"testing"
)

// What a call caught is nothing to the next one, and what was kept for it is
// given back; where its module keeps an exnref from its initialisation, that
// can be thrown in each call.
func TestExceptionsAreOfTheirCall(t *testing.T) {
	e := newEngine(t)
	const exnref = 0x69
	// caught leaves an exnref with 42 in it.
	caught := cat(op(0x02, 1, 0x1f, 0x40, 1, 1, 0, 0), i32c(42), op(0x08, 0, 0x0b), i32c(0), op(0xd0, exnref, 0x0b))
	build := func(atStart bool) []byte {
		var a asm
		a.typ(nil, nil)
		if pair := a.typ(nil, []byte{0x7f, exnref}); pair != 1 {
			t.Fatal("the type of a block has another number")
		}
		a.tags = append(a.tags, cat(op(0), u(a.typ([]byte{0x7f}, nil))))
		kept := a.global(exnref, true, op(0xd0, exnref))
		keep := cat(caught, gset(kept), drop)
		if atStart {
			a.export("_initialize", 0, a.fn(nil, nil, nil, keep))
		}
		// run throws what is kept, and answers 0 when 42 arrives.
		run := cat(op(0x02, 0x7f, 0x1f, 0x40, 1, 0, 0, 0), gget(kept), op(0x0a, 0x0b), i32c(0), op(0x0b), i32c(42), op(0x6b))
		if !atStart {
			run = cat(keep, run)
		}
		a.exported("run", nil, run)
		a.exported("bare", nil, gget(kept), op(0x0a), i32c(0))
		return a.bytes()
	}
	for _, atStart := range []bool{false, true} {
		m, err := e.Load(context.Background(), Spec{Name: "x.wasm", Wasm: build(atStart)})
		if err != nil {
			t.Fatal(err)
		}
		var fuel int64
		for n := range 100 {
			r, err := m.Call(context.Background(), Invocation{Export: "run"})
			if err != nil {
				t.Fatalf("at start %v, call %d: %v", atStart, n, err)
			}
			if n > 0 && r.Stats.Fuel != fuel {
				t.Fatalf("at start %v, call %d took %d units, the first %d", atStart, n, r.Stats.Fuel, fuel)
			}
			fuel = r.Stats.Fuel
			if _, err := m.Call(context.Background(), Invocation{Export: "bare"}); err == nil {
				t.Fatalf("at start %v: throwing what is kept is answered", atStart)
			}
		}
		m.Close()
	}
	if held := e.memory.held(); held != 0 {
		t.Errorf("%d bytes of memory are still accounted for", held)
	}
}
