package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

// counter is a module that counts its calls in a global and in its memory:
// count(n) adds n to both and answers their sum. spin never ends, grow(n)
// answers what memory.grow does.
func counter() []byte {
	a := &asm{}
	a.memory(1)
	a.data(8, []byte{7})
	a.global(0x7f, true, i32c(0))
	count := a.fn(op(0x7f), op(0x7f), nil,
		gget(0), get(0), add32, gset(0),
		i32c(8), i32c(8), load8(0), get(0), add32, store8(0),
		gget(0), i32c(8), load8(0), add32)
	a.export("count", 0, count)
	a.export("spin", 0, a.fn(nil, nil, nil, loop(br(0))))
	a.export("grow", 0, a.fn(op(0x7f), op(0x7f), nil, get(0), grow))
	a.export("refs", 0, a.fn(nil, op(0x70), nil, op(0xd0, 0x70)))
	a.global(0x7f, false, i32c(0))
	a.export("level", 3, 1)
	return a.bytes()
}

// mainModule calls a counter: "run" counts by 2 and 3, in a loop with its own work.
func mainModule() []byte {
	a := &asm{}
	count := a.imp("lib", "count", op(0x7f), op(0x7f))
	spin := a.imp("lib", "spin", nil, nil)
	growLib := a.imp("lib", "grow", op(0x7f), op(0x7f))
	answer := a.answerer()
	a.memory(1)
	a.exported("run", nil, answer(cat(i32c(2), callf(count), drop, i32c(3), callf(count))), i32c(0))
	a.exported("often", op(0x7f), loop(
		i32c(1), callf(count), drop, get(0), i32c(1), add32, op(0x22, 0), i32c(10_000), lt32u, brif(0)),
		answer(get(0)), i32c(0))
	a.exported("spin", nil, callf(spin), i32c(0))
	// Each of the two alone would be within the limit of 16 pages.
	a.exported("fill", nil, i32c(9), grow, drop, answer(cat(i32c(9), callf(growLib))), i32c(0))
	return a.bytes()
}

func linked(t testing.TB, spec Spec) *Module {
	t.Helper()
	spec.Name, spec.Wasm = "both", mainModule()
	spec.Linked = []Linked{{"lib", counter()}}
	return load(t, newEngine(t), spec)
}

func number(t testing.TB, m *Module, export string) (uint32, Stats) {
	t.Helper()
	reply, err := m.Call(context.Background(), Invocation{Export: export})
	if err != nil {
		t.Fatalf("%s: %v", export, err)
	}
	return binary.LittleEndian.Uint32(reply.Output), reply.Stats
}

// Every call finds both modules as they were initialised, and takes the same fuel,
// however it is brought back.
func TestLinkedModulesAreFresh(t *testing.T) {
	for _, how := range []string{"", "image", "fresh"} {
		t.Run("restoring "+how, func(t *testing.T) {
			if how != "" {
				t.Setenv(restoreVariable, how)
			}
			m := linked(t, Spec{})
			_, first := number(t, m, "run")
			for range 20 {
				got, stats := number(t, m, "run")
				if got != 2+3+7+2+3 {
					t.Fatalf("it counts to %d: another call's state is left", got)
				}
				if stats.Fuel != first.Fuel {
					t.Fatalf("it takes %d units, and took %d", stats.Fuel, first.Fuel)
				}
				if how == "" && m.e.strategy >= strategyPagemap && stats.NotRestored != "" {
					t.Fatalf("it is not brought back: %s", stats.NotRestored)
				}
			}
		})
	}
}

// Fuel, memory and time bound all of them together.
func TestLinkedModulesShareLimits(t *testing.T) {
	_, all := number(t, linked(t, Spec{}), "often")
	if all.Fuel < 10_000*10 {
		t.Errorf("10,000 calls of another module take %d units", all.Fuel)
	}
	for _, tt := range []struct {
		fuel int64
		fits bool
	}{{all.Fuel, true}, {all.Fuel - 1, false}, {all.Fuel / 2, false}} {
		_, err := linked(t, Spec{Fuel: tt.fuel}).Call(context.Background(), Invocation{Export: "often"})
		if e, ok := errors.AsType[*Error](err); (err == nil) != tt.fits || !tt.fits && (!ok || e.Kind != FuelUsed) {
			t.Errorf("with %d units of %d: %v", tt.fuel, all.Fuel, err)
		}
	}
	_, err := linked(t, Spec{Fuel: 1_000_000}).Call(context.Background(), Invocation{Export: "spin"})
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != FuelUsed {
		t.Errorf("a module that another calls ends by %v", err)
	}
	if got, _ := number(t, linked(t, Spec{Memory: 32 * wasmPage}), "fill"); got != 1 {
		t.Errorf("with room for 32 pages memory.grow of the second answers %d", int32(got))
	}
	if got, _ := number(t, linked(t, Spec{Memory: 16 * wasmPage}), "fill"); int32(got) != -1 {
		t.Errorf("20 pages of 16: memory.grow of the second answers %d", int32(got))
	}
	if _, err := newEngine(t).Load(context.Background(), Spec{Name: "both", Wasm: mainModule(), Linked: []Linked{{"lib", counter()}}, Memory: wasmPage}); err == nil {
		t.Error("two modules of a page each begin with room for one")
	}
}

// What cannot be linked is refused when it is loaded, by name.
func TestLinkedModulesRefused(t *testing.T) {
	importing := func(module, name string, p, r []byte) []byte {
		a := &asm{}
		a.imp(module, name, p, r)
		a.memory(1)
		a.exported("run", nil, i32c(0))
		return a.bytes()
	}
	global := &asm{imports: [][]byte{cat(str("lib"), str("level"), op(3, 0x7f, 0))}}
	for name, tt := range map[string]struct {
		main   []byte
		linked []Linked
		says   string
	}{
		"an import that the module does not export": {importing("lib", "none", nil, nil), []Linked{{"lib", counter()}}, `imports "none" from the module "lib", which does not export it`},
		"an import of another type":                 {importing("lib", "count", nil, nil), []Linked{{"lib", counter()}}, `imports "count" from the module "lib" as () -> (), but it is (i32) -> (i32)`},
		"an import that passes references":          {importing("lib", "refs", nil, op(0x70)), []Linked{{"lib", counter()}}, "passes references"},
		"an import of a global":                     {global.bytes(), []Linked{{"lib", counter()}}, "share functions only"},
		"what was added to a module":                {importing("lib", "toold:restore", nil, nil), []Linked{{"lib", counter()}}, "toold:"},
		"a circle":                                  {mainModule(), []Linked{{"a", importing("lib", "x", nil, nil)}, {"lib", importing("a", "x", nil, nil)}}, "needs it in turn"},
		"itself":                                    {mainModule(), []Linked{{"lib", importing("lib", "x", nil, nil)}}, "needs it in turn"},
		"two of a name":                             {mainModule(), []Linked{{"lib", counter()}, {"lib", counter()}}, `linked as "lib"`},
		"the kernel's name":                         {mainModule(), []Linked{{"lib", counter()}, {envModule, counter()}}, `linked as "extism:host/env"`},
		"the meter's name":                          {mainModule(), []Linked{{"lib", counter()}, {"toold", counter()}}, `linked as "toold"`},
		"no module":                                 {mainModule(), []Linked{{"lib", []byte("text")}}, "this is not a WebAssembly module"},
	} {
		_, err := newEngine(t).Load(context.Background(), Spec{Name: "both", Wasm: tt.main, Linked: tt.linked})
		if e, ok := errors.AsType[*Error](err); !ok || e.Kind != BadModule || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A call that ends in the middle of another module leaves nothing behind.
func TestLinkedModulesAfterErrors(t *testing.T) {
	m := linked(t, Spec{Fuel: 2_000_000})
	for range 3 {
		m.Call(context.Background(), Invocation{Export: "spin"})
		if got, _ := number(t, m, "run"); got != 17 {
			t.Fatalf("after a call that was ended it counts to %d", got)
		}
	}
	m.Close()
	if held, _ := m.e.Memory(); held != 0 {
		t.Errorf("closed, it holds %d bytes", held)
	}
}
