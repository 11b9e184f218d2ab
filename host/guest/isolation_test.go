package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"testing"
	"time"
)

// eachWay runs a test once for every way of coming to fresh state.
func eachWay(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	for w := strategyFresh; w <= strategyCount; w++ {
		t.Run(w.String(), func(t *testing.T) {
			needs(t, w)
			t.Setenv(restoreVariable, w.String())
			f(t)
		})
	}
}

// needs skips where a system does not have a way, and fails where it has one
// that does not restore: the engine would quietly take another.
func needs(t *testing.T, w strategy) {
	t.Helper()
	switch err := works(w); {
	case errors.Is(err, errWrong):
		t.Fatal(err)
	case err != nil:
		t.Skipf("not on this system: %v", err)
	}
}

// deed is something that a guest may leave behind.
type deed struct {
	name string
	do   []byte
}

const (
	manyPages = 1300      // more than one scan answers
	manyBytes = 160 << 16 // memory that holds them, every second one
)

// hoarder is a module that leaves behind whatever it can, and one export,
// "look", that tells all that it finds. An export "memory/trap" leaves
// something in memory and then traps.
func hoarder() (wasm []byte, exports []string) {
	var a asm
	d := op(0x7e)
	w := op(0x7f)
	alloc := a.env("alloc", d, d)
	kload := a.env("load_u8", d, w)
	kstore := a.env("store_u8", op(0x7e, 0x7f), nil)
	output := a.env("output_set", op(0x7e, 0x7e), nil)
	errset := a.env("error_set", d, nil)
	errget := a.env("error_get", nil, d)
	outlen := a.env("output_length", nil, d)
	write := a.imp(userModule, "tool_write", op(0x7f, 0x7f), nil)
	fdclose := a.imp(wasiModule, "fd_close", w, w)
	fdstat := a.imp(wasiModule, "fd_fdstat_get", op(0x7f, 0x7f), w)
	exit := a.imp(wasiModule, "proc_exit", w, nil)

	a.memory(160, 200)
	a.tables = append(a.tables, cat(op(0x70, 0), u(4)))
	g32 := a.global(0x7f, true, i32c(7))
	g64 := a.global(0x7e, true, i64c(7))
	gf32 := a.global(0x7d, true, op(0x43, 0, 0, 0, 0x40))
	gf64 := a.global(0x7c, true, op(0x44, 0, 0, 0, 0, 0, 0, 0, 0x40))
	gv := a.global(0x7b, true, op(0xfd, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16))
	gref := a.global(0x70, true, op(0xd0, 0x70))
	seg := a.passive([]byte("abcd"))
	some := a.fn(nil, nil, nil)
	a.elems = append(a.elems, cat(op(1, 0), u(1), u(some)))                 // passive
	a.elems = append(a.elems, cat(op(0), i32c(3), op(0x0b), u(1), u(some))) // active: declares some
	// The module's own initialisation moves everything, so that a snapshot
	// that forgets something is seen.
	init := a.fn(nil, nil, nil,
		i32c(11), gset(g32), i64c(11), gset(g64), op(0x43, 0, 0, 0x80, 0x40), gset(gf32),
		op(0x44, 0, 0, 0, 0, 0, 0, 0x10, 0x40), gset(gf64),
		op(0xfd, 12, 9, 9, 9, 9, 8, 8, 8, 8, 7, 7, 7, 7, 6, 6, 6, 6), gset(gv),
		i32c(6000), i32c(99), store32(0),
		i32c(5), grow, drop)
	a.export("_initialize", 0, init)

	const scratch = 1024
	n := int32(0)
	observe := func(value ...[]byte) []byte {
		b := cat(i32c(scratch+4*n), cat(value...), store32(0))
		n++
		return b
	}
	look := cat(
		observe(gget(g32)), observe(gget(g64), op(0xa7)), observe(gget(gf32), op(0xbc)), observe(gget(gf64), op(0xbd), i64c(32), op(0x88), op(0xa7)),
		observe(gget(gv), op(0xfd, 0x1b, 0)), observe(gget(gv), op(0xfd, 0x1b, 3)),
		observe(gget(gref), op(0xd1)),
		observe(i32c(5000), load32(0)), observe(i32c(6000), load32(0)), observe(i32c(100<<16), load32(0)),
		observe(memsize),
		// What a page holds that is grown again.
		observe(i32c(2), grow), observe(memsize, i32c(1), sub32, i32c(16), op(0x74), load32(0)),
		observe(i32c(0), op(0x25, 0), op(0xd1)), observe(op(0xfc, 16, 0)), // table.get, table.size
		i32c(1200), i32c(0), i32c(4), op(0xfc, 8), u(seg), op(0), observe(i32c(1200), load32(0)), // memory.init
		i32c(1), i32c(0), i32c(1), op(0xfc, 12, 0, 0), // table.init of the passive element
		observe(i32c(1), i32c(1300), callf(fdstat)),
		observe(i64c(77), callf(kload)), observe(i64c(300), callf(kload)), observe(callf(errget), op(0xa7)), observe(callf(outlen), op(0xa7)),
		// What a block holds that nobody wrote to.
		i64c(400), callf(alloc), drop, observe(i64c(77), callf(kload)), observe(i64c(300), callf(kload)),
		// The sum of the first bytes of every second page.
		i32c(0), set(0), i32c(0), set(1),
		loop(get(1), get(0), load8(4096), add32, set(1), get(0), i32c(8192), add32, op(0x22, 0), i32c(manyPages*8192), lt32u, brif(0)),
		observe(get(1)),
		i32c(scratch), i32c(4*n), callf(write), i32c(0))
	a.exported("look", w2(0x7f, 0x7f), look)

	deeds := []deed{
		{"memory", cat(i32c(5000), i32c(1), store32(0), i32c(6000), i32c(1), store32(0), i32c(100<<16), i32c(1), store32(0))},
		{"pages", cat(i32c(0), set(0), loop(get(0), i32c(1), store8(4096), get(0), i32c(8192), add32, op(0x22, 0), i32c(manyPages*8192), lt32u, brif(0)))},
		{"globals", cat(i32c(1), gset(g32), i64c(1), gset(g64), op(0x43, 1, 0, 0, 0), gset(gf32), op(0x44, 1, 2, 3, 4, 5, 6, 7, 8), gset(gf64),
			op(0xfd, 12, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), gset(gv))},
		{"reference", cat(op(0xd2), u(some), gset(gref))},
		{"table", cat(i32c(0), op(0xd2), u(some), op(0x26, 0))},
		{"tablegrow", cat(op(0xd0, 0x70), i32c(3), op(0xfc, 15, 0), drop)},
		{"datadrop", cat(op(0xfc, 9), u(seg))},
		{"elemdrop", cat(op(0xfc, 13), u(0))},
		{"grow", cat(i32c(7), grow, drop, memsize, i32c(1), sub32, i32c(16), op(0x74), i32c(0x5a5a), store32(0),
			i32c(167<<16), i32c(0x5a5a), store32(0), i32c(166<<16), i32c(0x5a5a), store32(0))},
		{"growall", cat(loop(i32c(1), grow, i32c(-1), op(0x47), brif(0)))},
		{"descriptor", cat(i32c(1), callf(fdclose), drop)},
		{"kernel", cat(i64c(5000), callf(alloc), drop, i64c(77), i32c(65), callf(kstore), i64c(300), i32c(66), callf(kstore), i64c(77), i64c(3), callf(output))},
		{"written", cat(i32c(0), i32c(100), callf(write))},
		{"nothing", nil},
	}
	for _, x := range deeds {
		for _, end := range []deed{
			{"return", i32c(0)},
			{"code", i32c(9)},
			{"error", cat(i64c(4), callf(alloc), callf(errset), i32c(1))},
			{"trap", unreachable},
			{"exit", cat(i32c(3), callf(exit), i32c(0))},
			{"exit0", cat(i32c(0), callf(exit), i32c(0))},
			{"loop", cat(loop(br(0)), i32c(0))},
		} {
			name := x.name + "/" + end.name
			a.exported(name, w2(0x7f, 0x7f), x.do, end.do)
			exports = append(exports, name)
		}
	}
	return a.bytes(), exports
}

func w2(a, b byte) []byte { return []byte{a, b} }

// TestIsolation is the promise itself: whatever a call leaves behind, and
// however it ends, the next one sees what the first one saw.
func TestIsolation(t *testing.T) {
	code, exports := hoarder()
	eachWay(t, func(t *testing.T) {
		m := load(t, newEngine(t), Spec{Wasm: code, Memory: 200 << 16})
		ctx := context.Background()
		first, err := m.Call(ctx, Invocation{Export: "look"})
		if err != nil {
			t.Fatal(err)
		}
		var fuel int64
		for _, x := range exports {
			// The instance has served before, and wrote other pages then:
			// what it wrote is known from there, where nothing is new.
			if _, err := m.Call(ctx, Invocation{Export: "memory/return"}); err != nil {
				t.Fatal(err)
			}
			var cancel context.CancelFunc
			c := ctx
			if x[len(x)-4:] == "loop" {
				if len(x)%2 == 0 {
					c, cancel = context.WithTimeout(ctx, 3*time.Millisecond)
				} else {
					c, cancel = context.WithCancel(ctx)
					time.AfterFunc(3*time.Millisecond, cancel)
				}
			}
			_, err := m.Call(c, Invocation{Export: x})
			if cancel != nil {
				cancel()
				if e, ok := err.(*Error); !ok || e.Kind != DeadlineMet && e.Kind != Aborted {
					t.Errorf("%s: %v", x, err)
				}
			}
			again, err := m.Call(ctx, Invocation{Export: "look"})
			if err != nil {
				t.Errorf("look after %s: %v", x, err)
				continue
			}
			if !bytes.Equal(again.Output, first.Output) {
				t.Errorf("look after %s differs:\n%s", x, differ(first.Output, again.Output))
			}
			if fuel == 0 {
				fuel = again.Stats.Fuel
			}
			if again.Stats.Fuel != fuel || first.Stats.Fuel != fuel {
				t.Errorf("look after %s took %d units of fuel, not %d", x, again.Stats.Fuel, fuel)
			}
		}
	})
}

func differ(a, b []byte) string {
	out := ""
	for i := 0; i+4 <= len(a) && i+4 <= len(b); i += 4 {
		x, y := binary.LittleEndian.Uint32(a[i:]), binary.LittleEndian.Uint32(b[i:])
		if x != y {
			out += fmt.Sprintf("  observation %d: %#x, then %#x\n", i/4, x, y)
		}
	}
	return out + fmt.Sprintf("  %d and %d bytes", len(a), len(b))
}

// TestRestoresInPlace sees to it that the suite above tests restoring, and
// not only new instances.
func TestRestoresInPlace(t *testing.T) {
	code, _ := hoarder()
	for _, w := range []strategy{strategyPagemap, strategyScan, strategyCount} {
		t.Run(w.String(), func(t *testing.T) {
			needs(t, w)
			t.Setenv(restoreVariable, w.String())
			m := load(t, newEngine(t), Spec{Wasm: code, Memory: 200 << 16})
			for _, tt := range []struct {
				export string
				least  int
			}{{"memory/return", 2}, {"pages/return", manyPages}, {"globals/return", 0}, {"grow/return", 0}} {
				r, err := m.Call(context.Background(), Invocation{Export: tt.export})
				if err != nil {
					t.Fatal(err)
				}
				if r.Stats.PagesRestored < tt.least {
					t.Errorf("%s: %d pages restored, at least %d were written", tt.export, r.Stats.PagesRestored, tt.least)
				}
				m.pool.settle()
				if n := used(m); n != 1 {
					t.Errorf("after %s the pool holds %d used instances, want 1: it was not restored", tt.export, n)
				}
			}
			for _, x := range []string{"table/return", "datadrop/return", "elemdrop/return", "tablegrow/return", "reference/return", "nothing/exit0", "nothing/trap"} {
				m.Call(context.Background(), Invocation{Export: x})
				m.pool.settle()
				if n := used(m); n != 0 {
					t.Errorf("after %s the pool holds %d used instances, want none", x, n)
				}
				m.Call(context.Background(), Invocation{Export: "look"})
			}
		})
	}
}

// TestIdentities: what served one identity serves no other, whether it was
// made ahead or on demand.
func TestIdentities(t *testing.T) {
	t.Setenv(restoreVariable, "")
	m := kitchen(t)
	if m.snap == nil || m.e.strategy < strategyPagemap {
		t.Skip("instances are not kept on this system")
	}
	seen := map[*instance]string{}
	look := func() {
		m.pool.settle()
		m.pool.mu.Lock()
		defer m.pool.mu.Unlock()
		for _, in := range m.pool.idle {
			if who, ok := seen[in]; ok && (!in.served || in.identity != who) {
				t.Errorf("an instance of %s is now %q's (served: %v)", who, in.identity, in.served)
			}
			if in.served {
				seen[in] = in.identity
			}
		}
	}
	for i := range 60 {
		who := fmt.Sprint("caller ", i*7%5)
		if _, err := m.Call(context.Background(), Invocation{Export: "run", Input: []byte("calls"), Identity: who}); err != nil {
			t.Fatal(err)
		}
		look()
	}
	if len(seen) != 5 {
		t.Errorf("%d instances served 5 callers", len(seen))
	}
}

// used counts the idle instances that served a call.
func used(m *Module) int {
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	n := 0
	for _, in := range m.pool.idle {
		if in.served {
			n++
		}
	}
	return n
}

// TestInitialisedTables is for modules whose initialisation leaves what an
// image cannot hold.
func TestInitialisedTables(t *testing.T) {
	var a asm
	answer := a.answerer()
	a.tables = append(a.tables, cat(op(0x70, 0), u(2)))
	one := a.fn(nil, op(0x7f), nil, i32c(1))
	two := a.fn(nil, op(0x7f), nil, i32c(2))
	a.elems = append(a.elems, cat(op(0), i32c(0), op(0x0b), u(2), u(one), u(two)))
	a.export("_initialize", 0, a.fn(nil, nil, nil, i32c(0), op(0xd2), u(two), op(0x26, 0)))
	a.exported("run", nil, answer(cat(i32c(0), op(0x11), u(a.typ(nil, op(0x7f))), op(0))), i32c(0))
	a.exported("undo", nil, i32c(0), op(0xd2), u(one), op(0x26, 0), i32c(0))
	eachWay(t, func(t *testing.T) {
		m := load(t, newEngine(t), Spec{Wasm: a.bytes()})
		for range 3 {
			if got := answered(t, m, "run"); got != 2 {
				t.Errorf("the table's entry answered %d, not what initialisation put there", got)
			}
			do(t, m, "undo", "")
		}
	})
}

// TestGoGuestForgets is the same for a whole language's runtime.
func TestGoGuestForgets(t *testing.T) {
	eachWay(t, func(t *testing.T) {
		m := kitchen(t)
		for _, leave := range []string{"keep 3", "setenv", "gc", "panic", "exit 1", "error", "calls"} {
			m.Call(context.Background(), Invocation{Export: "run", Input: []byte(leave)})
			if got := do(t, m, "run", "calls") + do(t, m, "run", "kept") + do(t, m, "run", "getenv"); got != "10" {
				t.Errorf("after %s a call finds %q", leave, got)
			}
		}
		// Randomness that was drawn at start is frozen, unless the module asks.
		first, second := do(t, m, "run", "once"), do(t, m, "run", "once")
		if m.snap != nil && first != second {
			t.Error("the image is not the same for every call")
		}
		if first, second := do(t, m, "run", "seed"), do(t, m, "run", "seed"); first == second {
			t.Error("resumed was not called")
		}
	})
}

// randomModule does random things and answers a digest of all it can see.
func randomModule(r *rand.Rand) []byte {
	var a asm
	d := op(0x7e)
	inLoad := a.env("input_load_u8", d, op(0x7f))
	write := a.imp(userModule, "tool_write", op(0x7f, 0x7f), nil)
	pages := uint32(1 + r.Intn(4))
	a.memory(pages, pages+8)
	a.tables = append(a.tables, cat(op(0x70, 0), u(4)))
	globals := 1 + r.Intn(4)
	for range globals {
		a.global(0x7f, true, i32c(int32(r.Int31())))
	}
	a.data(int32(r.Intn(60000)), []byte("some data"))
	seg := a.passive([]byte("passive data"))
	nop := a.fn(nil, nil, nil)
	a.elems = append(a.elems, cat(op(3, 0), u(1), u(nop)))
	addr := func() []byte { // somewhere in memory, by what came in
		return cat(i64c(int64(r.Intn(16))), callf(inLoad), i32c(int32(r.Intn(250)*(int(pages)))), op(0x6c), i32c(int32(r.Intn(1000))), add32)
	}
	stmt := func() []byte {
		g := uint32(r.Intn(globals))
		switch r.Intn(8) {
		case 0, 1:
			return cat(addr(), gget(g), store32(0))
		case 2:
			return cat(gget(g), addr(), load32(0), add32, i32c(int32(r.Int31())), op(0x73), gset(g))
		case 3:
			return cat(i32c(int32(r.Intn(3))), grow, gget(g), add32, gset(g))
		case 4:
			if r.Intn(3) > 0 {
				return cat(i32c(int32(r.Intn(4))), op(0xd2), u(nop), op(0x26, 0))
			}
			return cat(op(0xfc, 9), u(seg))
		case 5:
			return cat(i32c(int32(r.Intn(1000))), i32c(int32(r.Intn(256))), i32c(int32(r.Intn(9000))), op(0xfc, 11, 0))
		case 6:
			return cat(i32c(0), set(0), loop(get(0), gget(g), add32, gset(g), get(0), i32c(1), add32, op(0x22, 0), i32c(int32(r.Intn(3000))), lt32u, brif(0)))
		default:
			return cat(gget(g), i32c(int32(r.Int31())), op(0x49, 0x04, 0x40), addr(), i32c(1), store8(0), op(0x0b))
		}
	}
	var body []byte
	for range 3 + r.Intn(20) {
		body = cat(body, stmt())
	}
	// Everything is summed up: memory, globals, the table, the size.
	sum := cat(i32c(0), set(0), memsize, set(1),
		loop(get(1), i32c(31), op(0x6c), get(0), load32(0), add32, set(1), get(0), i32c(60), add32, op(0x22, 0), memsize, i32c(16), op(0x74), i32c(64), sub32, lt32u, brif(0)))
	for g := range globals {
		sum = cat(sum, get(1), i32c(31), op(0x6c), gget(uint32(g)), add32, set(1))
	}
	for i := range 4 {
		sum = cat(sum, get(1), i32c(31), op(0x6c), i32c(int32(i)), op(0x25, 0, 0xd1), add32, set(1))
	}
	a.exported("run", w2(0x7f, 0x7f), body, sum, i32c(16), get(1), store32(0), i32c(16), i32c(4), callf(write), i32c(0))
	a.export("_initialize", 0, a.fn(nil, nil, w2(0x7f, 0x7f), stmt(), stmt()))
	return a.bytes()
}

// TestAnyCallIsTheFirst: random guests, random inputs; call N answers what
// call 1 answered, with the same fuel, in every way.
func TestAnyCallIsTheFirst(t *testing.T) {
	seeds := 12
	if testing.Short() || raceEnabled {
		seeds = 3
	}
	for seed := range seeds {
		r := rand.New(rand.NewSource(int64(seed)))
		code := randomModule(r)
		inputs := make([][]byte, 6)
		for i := range inputs {
			inputs[i] = make([]byte, 16)
			r.Read(inputs[i])
		}
		want := map[string]string{}
		eachWay(t, func(t *testing.T) {
			m := load(t, newEngine(t), Spec{Name: fmt.Sprintf("random-%d.wasm", seed), Wasm: code})
			for round := range 3 {
				for _, in := range inputs {
					reply, err := m.Call(context.Background(), Invocation{Export: "run", Input: in})
					got := fmt.Sprintf("%x %d %v", reply.Output, reply.Stats.Fuel, err)
					if w, ok := want[string(in)]; !ok {
						want[string(in)] = got
					} else if got != w {
						t.Fatalf("seed %d, round %d, input %x: %s, but at first %s", seed, round, in, got, w)
					}
				}
			}
		})
	}
}
