package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/toold/toold/host/fault"
)

const (
	tI32, tI64, tV128 = 0x7f, 0x7e, 0x7b
)

// repeated is n times t.
func repeated(t byte, n int) []byte { return bytes.Repeat([]byte{t}, n) }

// divers are modules "run" that recurse: a counter in memory at 0 is set to
// depth first, each level takes one off, and the last one logs. With a depth of
// 0 there is no last one.
func divers(depth int32) map[string][]byte {
	out := map[string][]byte{}
	// shape adds a module. f makes the recursion: it gets what is done at each
	// level, which leaves nothing, and returns from the function at the bottom
	// with the values that results makes, and answers the code that starts it,
	// which leaves nothing either.
	shape := func(name string, f func(a *asm, level func(results []byte) []byte) []byte) {
		var a asm
		off := a.env("input_offset", nil, op(tI64))
		log := a.env("log_info", op(tI64), nil)
		a.memory(1)
		level := func(results []byte) []byte {
			return cat(
				i32c(0), i32c(0), load32(0), i32c(1), sub32, store32(0),
				i32c(0), load32(0), op(0x45, 0x04, 0x40), // i32.eqz, if
				callf(off), callf(log), results, op(0x0f), op(0x0b))
		}
		start := f(&a, level)
		a.exported("run", nil, i32c(0), i32c(depth), store32(0), start, i32c(0))
		out[name] = a.bytes()
	}
	next := func(a *asm) uint32 { return a.nimp + uint32(len(a.funcs)) }
	table := func(a *asm, fs ...uint32) {
		a.tables = append(a.tables, cat(op(0x70, 0), u(uint32(len(fs)))))
		e := cat(op(0), i32c(0), op(0x0b), u(uint32(len(fs))))
		for _, f := range fs {
			e = cat(e, u(f))
		}
		a.elems = append(a.elems, e)
	}
	indirect := func(a *asm, p, r []byte, at int32) []byte {
		return cat(i32c(at), op(0x11), u(a.typ(p, r)), op(0))
	}

	shape("direct", func(a *asm, level func([]byte) []byte) []byte {
		f := next(a)
		a.fn(nil, nil, nil, level(nil), callf(f))
		return callf(f)
	})
	shape("indirect", func(a *asm, level func([]byte) []byte) []byte {
		f := next(a)
		a.fn(nil, nil, nil, level(nil), indirect(a, nil, nil, 0))
		table(a, f)
		return callf(f)
	})
	shape("mutual", func(a *asm, level func([]byte) []byte) []byte {
		f := next(a)
		a.fn(nil, nil, nil, level(nil), callf(f+1), drop)
		a.fn(nil, op(tI32), nil, indirect(a, nil, nil, 0), i32c(1))
		a.fn(nil, nil, nil, level(nil), callf(f+1), drop)
		table(a, f+2)
		return callf(f)
	})
	shape("many parameters and results", func(a *asm, level func([]byte) []byte) []byte {
		const n = 100
		types := slices.Concat(repeated(tI64, n/2), repeated(tV128, n/2))
		var all []byte
		for i := range uint32(n) {
			all = cat(all, get(i))
		}
		f := next(a)
		a.fn(types, types, nil, level(all), all, callf(f))
		var zeros, drops []byte
		for range n / 2 {
			zeros = cat(zeros, i64c(1))
		}
		for range n / 2 {
			zeros = cat(zeros, op(0xfd, 0x0c), make([]byte, 16))
		}
		for range n {
			drops = cat(drops, drop)
		}
		return cat(zeros, callf(f), drops)
	})
	shape("many locals", func(a *asm, level func([]byte) []byte) []byte {
		const n = 300
		f := next(a)
		var fill, sum []byte
		for i := range uint32(n) {
			fill = cat(fill, i32c(0), op(0x29, 3), u(8*i), set(i)) // i64.load
			sum = cat(sum, i32c(0), get(i), op(0x37, 3), u(8*i))   // i64.store
		}
		a.fn(nil, nil, repeated(tI64, n), level(nil), fill, callf(f), sum)
		return callf(f)
	})
	shape("a deep operand stack", func(a *asm, level func([]byte) []byte) []byte {
		const n = 300
		f := next(a)
		var push, pop []byte
		for i := range uint32(n) {
			push = cat(push, i32c(0), op(0x29, 3), u(8*i))
			pop = cat(pop, add64)
		}
		a.fn(nil, op(tI64), nil, level(i64c(1)), push, callf(f), pop)
		return cat(callf(f), drop)
	})
	return out
}

// residentOf is how many bytes of b, which are whole pages, the kernel holds
// pages for.
func residentOf(t testing.TB, b []byte) int64 {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	entries := make([]byte, len(b)/osPage*8)
	if _, err := f.ReadAt(entries, int64(uintptr(unsafe.Pointer(&b[0]))/osPage*8)); err != nil {
		t.Fatal(err)
	}
	var sum int64
	for i := 7; i < len(entries); i += 8 {
		if entries[i]&0xc0 != 0 { // present, or swapped
			sum += osPage
		}
	}
	return sum
}

// TestStackIsAccountedFor: whatever the frames of a recursion are made of, what
// is used of the stack is in the account while the guest is down there, what
// the kernel holds for it as well, and the account is afterwards as it was.
func TestStackIsAccountedFor(t *testing.T) {
	for name, code := range divers(4000) {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t)
			m := load(t, e, Spec{Name: "dive.wasm", Wasm: code, Memory: 48 << 20})
			m.pool.settle()
			var in *instance
			var deepest int64
			bottom := func(ctx context.Context, _ slog.Level, _ string) {
				in = ctx.(*call).inst
				used, size := in.stack.used(), in.stack.size
				deepest = used
				if used > size-stackSlack {
					t.Errorf("%d bytes are used of %d", used, size)
				}
				if held := residentOf(t, in.stack.buf); held > size {
					t.Errorf("%d bytes are resident, %d in the account", held, size)
				}
				if held := e.memory.held(); held < size {
					t.Errorf("the account holds %d bytes, the stack alone has %d", held, size)
				}
			}
			inv := Invocation{Export: "run", Services: Services{Log: bottom}}
			if _, err := m.Call(context.Background(), inv); err != nil {
				t.Fatal(err)
			}
			m.pool.settle()
			before := e.memory.held()
			if deepest < stackBase/2 {
				t.Fatalf("it used %d bytes only", deepest)
			}
			for range 3 {
				if _, err := m.Call(context.Background(), inv); err != nil {
					t.Fatal(err)
				}
			}
			m.pool.settle()
			if held := e.memory.held(); held != before {
				t.Errorf("the account holds %d bytes after a call and %d after four", before, held)
			}
			if in.stack.buf != nil && (in.stack.size != stackBase || residentOf(t, in.stack.buf) > stackBase) {
				t.Errorf("an idle instance keeps %d bytes of stack, %d resident", in.stack.size, residentOf(t, in.stack.buf))
			}
			t.Logf("%d bytes a level", deepest/4000)
		})
	}
}

// TestRecursionEnds: a recursion without an end is the same trap in all shapes,
// at the same depth each time, and leaves nothing in the account.
func TestRecursionEnds(t *testing.T) {
	for name, code := range divers(0) {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t)
			var fuel []int64
			for range 3 {
				m, err := e.Load(context.Background(), Spec{Name: "dive.wasm", Wasm: code, Memory: 1 << 20})
				if err != nil {
					t.Fatal(err)
				}
				reply, err := m.Call(context.Background(), Invocation{Export: "run"})
				wantCode(t, err, fault.GuestTrap, "stack overflow")
				fuel = append(fuel, reply.Stats.Fuel)
				m.Close()
				if held := e.memory.held(); held != 0 {
					t.Errorf("%d bytes are still accounted for", held)
				}
			}
			if fuel[0] != fuel[1] || fuel[1] != fuel[2] {
				t.Errorf("it ended after %d units of fuel", fuel)
			}
		})
	}
}

// TestTailCallsTakeNoStack: a function that calls itself instead of returning
// goes on until its fuel is used up.
func TestTailCallsTakeNoStack(t *testing.T) {
	var a asm
	a.exported("run", nil, op(0x12, 0))
	m := load(t, newEngine(t), Spec{Name: "tail.wasm", Wasm: a.bytes(), Memory: 1 << 20, Fuel: 10_000_000})
	_, err := m.Call(context.Background(), Invocation{Export: "run"})
	wantCode(t, err, fault.LimitExceeded, "10000000")
}

// TestStackOfStart: what a module runs when it is loaded is on the same stack.
func TestStackOfStart(t *testing.T) {
	var start, initialize asm
	start.start = u(start.fn(nil, nil, nil, callf(0)))
	start.exported("run", nil, i32c(0))
	initialize.export("_initialize", 0, initialize.fn(nil, nil, nil, callf(0)))
	initialize.exported("run", nil, i32c(0))
	for _, code := range [][]byte{start.bytes(), initialize.bytes()} {
		e := newEngine(t)
		_, err := e.Load(context.Background(), Spec{Name: "deep.wasm", Wasm: code, Memory: 1 << 20})
		wantCode(t, err, fault.ToolBroken, "stack overflow")
		if held := e.memory.held(); held != 0 {
			t.Errorf("%d bytes are still accounted for", held)
		}
	}
	var command asm
	command.memory(1)
	command.export("_start", 0, command.fn(nil, nil, nil, callf(0)))
	e := newEngine(t)
	m := load(t, e, Spec{Name: "deep.wasm", Wasm: command.bytes(), Memory: 1 << 20})
	_, _, err := m.Run(context.Background(), Command{})
	wantCode(t, err, fault.GuestTrap, "stack overflow")
}

// TestStackCountsAgainstMemory: what is deeper than every stack may be is taken
// from limits.memory, whichever of the two grows first.
func TestStackCountsAgainstMemory(t *testing.T) {
	const limit = 2 << 20
	// run goes down and asks for memory at the bottom; it returns how many
	// levels it went down when it got less than it asked for.
	deep := func(levels, pages int32) []byte {
		var a asm
		a.memory(1)
		f := a.nimp + uint32(len(a.funcs))
		a.fn(op(tI32), op(tI32), nil,
			get(0), op(0x45, 0x04, 0x40), i32c(pages), grow, i32c(-1), op(0x46, 0x0f, 0x0b), // eqz if … eq return end
			get(0), i32c(1), sub32, callf(f), i32c(0), add32)
		a.exported("run", nil, i32c(levels), callf(f))
		return a.bytes()
	}
	const levels = 25_000 // more than 1 MiB of stack, less than 2
	e := newEngine(t)
	call := func(levels, pages int32) error {
		m, err := e.Load(context.Background(), Spec{Name: "both.wasm", Wasm: deep(levels, pages), Memory: limit})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		_, err = m.Call(context.Background(), Invocation{Export: "run"})
		return err
	}
	if err := call(10, limit/wasmPage-1); err != nil {
		t.Errorf("all of its memory, with little stack: %v", err)
	}
	if err := call(levels, 1); err != nil {
		t.Errorf("deep, with little memory: %v", err)
	}
	if err := call(levels, limit/wasmPage-1); err == nil {
		t.Error("a guest that was deep got all of its memory")
	}
	// The other way round: memory first, and then down; also when the guest
	// computed before, for which it got more stack than it needed.
	for _, turns := range []int32{1, 10_000_000} {
		var a asm
		a.memory(1)
		a.fn(op(tI32), nil, nil, get(0), op(0x45, 0x04, 0x40, 0x0f, 0x0b), get(0), i32c(1), sub32, callf(0))
		a.exported("run", repeated(tI32, 1),
			i32c(turns), set(0), loop(get(0), i32c(1), sub32, op(0x22, 0), brif(0)),
			i32c(limit/wasmPage-1), grow, drop, i32c(levels), callf(0), i32c(0))
		m := load(t, e, Spec{Name: "both.wasm", Wasm: a.bytes(), Memory: limit})
		_, err := m.Call(context.Background(), Invocation{Export: "run"})
		wantCode(t, err, fault.GuestTrap, "stack overflow")
	}
}

// peakOf is by how many bytes the resident memory of this process was higher
// while f ran, at most, than before.
func peakOf(t testing.TB, f func()) int64 {
	t.Helper()
	status := func(field string) int64 {
		p, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Skip(err)
		}
		_, rest, _ := strings.Cut(string(p), field+":")
		var kb int64
		fmt.Sscan(rest, &kb)
		return kb << 10
	}
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		t.Skip(err)
	}
	before := status("VmRSS")
	f()
	return status("VmHWM") - before
}

// manyAtOnce calls a module's run from 32 goroutines and answers what came of
// it: how many ended with each code.
func manyAtOnce(t testing.TB, m *Module) map[fault.Code]int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	codes := map[fault.Code]int{}
	for range 32 {
		wg.Go(func() {
			_, err := m.Call(context.Background(), Invocation{Export: "run"})
			code := codeOf(err)
			if err != nil && code == "" {
				t.Errorf("%T: %v", err, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			codes[code]++
		})
	}
	wg.Wait()
	return codes
}

// overhead is what 32 calls take beside what is in the account: goroutines,
// threads, garbage.
const overhead = 32 << 20

// TestRecursionAtOnce: 32 guests that recurse through a table, with 1 MiB of
// memory each and 64 MiB for all, once took 3.7 GiB.
func TestRecursionAtOnce(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	const all = 64 << 20
	for _, tt := range []struct {
		name   string
		memory int64
		codes  []fault.Code
	}{
		{"of 1 MiB", 1 << 20, []fault.Code{fault.GuestTrap}},
		{"of 64 MiB", 64 << 20, []fault.Code{fault.Overloaded}},
	} {
		for name, code := range divers(0) {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				e, err := New(Config{CacheDir: cacheDir, Compiler: compiler, Memory: all})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				m, err := e.Load(context.Background(), Spec{Name: "deep.wasm", Wasm: code, Memory: tt.memory})
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				var codes map[fault.Code]int
				peak := peakOf(t, func() {
					for range 4 {
						codes = manyAtOnce(t, m)
					}
				})
				for code, n := range codes {
					if !slices.Contains(tt.codes, code) {
						t.Errorf("%d calls ended with %q", n, code)
					}
				}
				if peak > all+overhead {
					t.Errorf("32 calls took %d MiB", peak>>20)
				}
				t.Logf("%v, %d MiB", codes, peak>>20)
			})
		}
	}
}

// TestExchangedIsAccountedFor: what guests exchange with the host, and what
// they write, is in the account while they run.
func TestExchangedIsAccountedFor(t *testing.T) {
	const all = 64 << 20
	wait := func(f func(a *asm) (body [][]byte)) []byte {
		var a asm
		recv := a.imp(userModule, "tool_recv", op(tI64), op(tI64))
		body := f(&a)
		a.memory(16)
		a.exported("run", nil, cat(body...), i64c(0), callf(recv), drop, i32c(0))
		return a.bytes()
	}
	blocks := wait(func(a *asm) [][]byte {
		alloc := a.env("alloc", op(tI64), op(tI64))
		return [][]byte{i64c(8 << 20), callf(alloc), drop}
	})
	output := wait(func(a *asm) [][]byte {
		write := a.imp(userModule, "tool_write", op(tI32, tI32), nil)
		var body [][]byte
		for range 8 {
			body = append(body, i32c(0), i32c(16*wasmPage), callf(write))
		}
		return body
	})
	var growing asm
	growing.tables = append(growing.tables, op(0x70, 0, 1))
	growing.exported("run", nil, op(0xd0, 0x70), i32c(100_000), op(0xfc, 15, 0))
	for name, code := range map[string][]byte{"blocks": blocks, "output": output} {
		t.Run(name, func(t *testing.T) {
			e, err := New(Config{CacheDir: cacheDir, Compiler: compiler, Memory: all})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			m, err := e.Load(context.Background(), Spec{Name: "hold.wasm", Wasm: code})
			if err != nil {
				t.Fatal(err)
			}
			// All calls wait for input, with what they hold, until those that got
			// nothing have ended.
			var mu sync.Mutex
			full := make(chan struct{})
			waiting, refused := 0, 0
			next := make(chan struct{}, 32)
			done := func(n *int) {
				mu.Lock()
				defer mu.Unlock()
				next <- struct{}{}
				if *n++; waiting+refused == 32 {
					if held := e.memory.held(); held < int64(waiting)*8<<20 || held > all {
						t.Errorf("%d calls hold 8 MiB each, and the account says %d", waiting, held)
					}
					close(full)
				}
			}
			var wg sync.WaitGroup
			for range 32 {
				wg.Go(func() {
					_, err := m.Call(context.Background(), Invocation{Export: "run", Services: Services{
						Recv: func(context.Context) ([]byte, error) { done(&waiting); <-full; return nil, errors.New("enough") },
					}})
					if err != nil {
						wantCode(t, err, fault.Overloaded)
						done(&refused)
					}
				})
				<-next // or all of them might hold a part of what they want, and none get it
			}
			wg.Wait()
			if waiting == 0 || waiting > 7 {
				t.Errorf("%d calls with 8 MiB each had room in 64", waiting)
			}
			do(t, m, "run", "")
			m.Close()
			if held := e.memory.held(); held != 0 {
				t.Errorf("%d bytes are still accounted for", held)
			}
		})
	}
	e, err := New(Config{CacheDir: cacheDir, Compiler: compiler, Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	_, err = e.Load(context.Background(), Spec{Name: "table.wasm", Wasm: growing.bytes()})
	wantCode(t, err, fault.Overloaded)
}

// TestRequestsAreAccountedFor: what the host makes of a request, while it works
// on it, is in the account: a request of many small things takes many times its
// own bytes.
func TestRequestsAreAccountedFor(t *testing.T) {
	const elements = 4 << 20
	for name, grants := range map[string]Grants{"tool_exec": GrantExec, "tool_emit": 0, "tool_call": GrantToolCall} {
		t.Run(name, func(t *testing.T) {
			var a asm
			alloc := a.env("alloc", op(tI64), op(tI64))
			store := a.env("store_u64", op(tI64, tI64), nil)
			f := a.imp(userModule, name, op(tI64), op(tI64))
			commas := i64c(0x2c2c2c2c2c2c2c2c)
			a.exported("run", repeated(tI64, 2),
				i64c(elements), callf(alloc), op(0x22, 0), set(1),
				loop(get(1), commas, callf(store), get(1), i64c(8), add64, op(0x22, 1), get(0), i64c(elements), add64, op(0x54), brif(0)),
				get(0), callf(f), drop, i32c(0))
			code := a.bytes()
			run := func(memory int64) error {
				e, err := New(Config{CacheDir: cacheDir, Compiler: compiler, Memory: memory})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				m, err := e.Load(context.Background(), Spec{Name: "ask.wasm", Wasm: code, Grants: grants})
				if err != nil {
					t.Fatal(err)
				}
				_, err = m.Call(context.Background(), Invocation{Export: "run", Services: Services{
					ToolCall: func(context.Context, int64, []byte) ([]byte, int64, error) {
						if held := e.memory.held(); held < 128*elements {
							t.Errorf("%d bytes are in the account", held)
						}
						return nil, 0, nil
					},
				}})
				m.Close()
				if held := e.memory.held(); held != 0 {
					t.Errorf("%d bytes are still accounted for", held)
				}
				return err
			}
			wantCode(t, run(128<<20), fault.Overloaded)
			if err := run(1 << 30); err != nil {
				t.Errorf("with room: %v", err)
			}
		})
	}
}

// TestInputIsAccountedFor: a call with an input that finds no room is refused
// before the guest runs.
func TestInputIsAccountedFor(t *testing.T) {
	var a asm
	a.exported("run", nil, i32c(0))
	e, err := New(Config{CacheDir: cacheDir, Compiler: compiler, Memory: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	m := load(t, e, Spec{Name: "in.wasm", Wasm: a.bytes()})
	_, err = m.Call(context.Background(), Invocation{Export: "run", Input: make([]byte, 16<<20)})
	wantCode(t, err, fault.Overloaded)
	if _, err = m.Call(context.Background(), Invocation{Export: "run", Input: make([]byte, 1<<20)}); err != nil {
		t.Error(err)
	}
}

// TestSpareStack: a guest that computes has more stack than it uses, so that it
// need not be looked at often; not so when it waits, or when others have need of
// the memory. What it costs does not change by that.
func TestSpareStack(t *testing.T) {
	const turns = 3_000_000
	var a asm
	recv := a.imp(userModule, "tool_recv", op(tI64), op(tI64))
	off := a.env("input_offset", nil, op(tI64))
	log := a.env("log_info", op(tI64), nil)
	a.memory(1)
	compute := cat(i32c(turns), set(0), loop(get(0), i32c(1), sub32, op(0x22, 0), brif(0)))
	// It goes deep, too, as soon as it goes on.
	down := a.fn(op(tI32), nil, nil, get(0), op(0x45, 0x04, 0x40, 0x0f, 0x0b), get(0), i32c(1), sub32, callf(a.nimp))
	a.exported("run", repeated(tI32, 1), compute, callf(off), callf(log), i64c(0), callf(recv), drop,
		i32c(100_000), callf(down), compute, i32c(0))
	var fuel []int64
	for _, tt := range []struct {
		memory int64
		spare  bool
	}{{1 << 30, true}, {24 << 20, false}} {
		e, err := New(Config{CacheDir: cacheDir, Compiler: compiler, Memory: tt.memory})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		m := load(t, e, Spec{Name: "spare.wasm", Wasm: a.bytes()})
		m.pool.settle()
		reply, err := m.Call(context.Background(), Invocation{Export: "run", Services: Services{
			Log: func(ctx context.Context, _ slog.Level, _ string) {
				size := ctx.(*call).inst.stack.size
				if tt.spare && size < stackSpare {
					t.Errorf("of %d bytes for all, its stack has %d while it computes", tt.memory, size)
				}
				if held := e.memory.held(); held < size || held > tt.memory/2 {
					t.Errorf("%d bytes of %d are in the account, %d of them for the stack", held, tt.memory, size)
				}
			},
			Recv: func(ctx context.Context) ([]byte, error) {
				if size := ctx.(*call).inst.stack.size; size > 2*stackBase+stackStep {
					t.Errorf("of %d bytes for all, its stack has %d while it waits", tt.memory, size)
				}
				return nil, errors.New("enough")
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		fuel = append(fuel, reply.Stats.Fuel)
	}
	if fuel[0] != fuel[1] {
		t.Errorf("it took %d units of fuel", fuel)
	}
}

// TestDeepAgain: an instance that was deep and is used again is as one that was
// not; it is as deep again.
func TestDeepAgain(t *testing.T) {
	e := newEngine(t)
	m := load(t, e, Spec{Name: "dive.wasm", Wasm: divers(100_000)["indirect"]})
	for range 20 {
		if _, err := m.Call(context.Background(), Invocation{Export: "run"}); err != nil {
			t.Fatal(err)
		}
		m.pool.mu.Lock()
		for _, in := range m.pool.idle {
			if in.stack.buf != nil && (in.stack.size != stackBase || residentOf(t, in.stack.buf) > stackBase) {
				t.Errorf("an idle instance keeps %d bytes of stack, %d resident", in.stack.size, residentOf(t, in.stack.buf))
			}
		}
		m.pool.mu.Unlock()
	}
}

// TestDeepGuestIsStopped: a deadline ends a guest that is deep, and its stack
// goes back.
func TestDeepGuestIsStopped(t *testing.T) {
	var a asm
	a.memory(1)
	a.fn(op(tI32), nil, nil, get(0), op(0x45, 0x04, 0x40), loop(br(0)), op(0x0b), get(0), i32c(1), sub32, callf(0))
	a.exported("run", nil, i32c(100_000), callf(0), i32c(0))
	e := newEngine(t)
	m := load(t, e, Spec{Name: "deep.wasm", Wasm: a.bytes(), Fuel: 1 << 50})
	m.pool.settle()
	before := e.memory.held()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := m.Call(ctx, Invocation{Export: "run"})
	wantCode(t, err, fault.Timeout)
	m.pool.settle()
	if held := e.memory.held(); held > before {
		t.Errorf("the account holds %d bytes, and %d before the call", held, before)
	}
	runtime.GC() // finds what still points to the stack
}

// TestOtherFunctions: a wazero whose functions are others is not used.
func TestOtherFunctions(t *testing.T) {
	type exec struct {
		//lint:ignore U1000 its name and type count
		stackBottomPtr *byte
		//lint:ignore U1000 its name and type count
		stackPointerBeforeGoCall *uint64
	}
	if _, err := findStack(reflect.TypeFor[*struct {
		stack    []byte
		stackTop uintptr
		execCtx  exec
	}]()); err != nil {
		t.Error(err)
	}
	for _, of := range []reflect.Type{
		reflect.TypeFor[int](),
		reflect.TypeFor[*struct{}](),
		reflect.TypeFor[*struct {
			stack    []uint64
			stackTop uintptr
			execCtx  exec
		}](),
		reflect.TypeFor[*struct {
			stack    []byte
			stackTop uintptr
			execCtx  struct{ stackBottomPtr *byte }
		}](),
	} {
		if _, err := findStack(of); err == nil {
			t.Errorf("%v is taken for wazero's", of)
		}
	}
}
