package guest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
)

// hostile are modules that mean harm, and the codes that answer them. Those
// that load are called: "run".
func hostile() []struct {
	name string
	wasm []byte
	code fault.Code
} {
	type row = struct {
		name string
		wasm []byte
		code fault.Code
	}
	var rows []row
	add := func(name string, code fault.Code, wasm []byte) { rows = append(rows, row{name, wasm, code}) }
	raw := func(p ...byte) []byte { return cat(wasmMagic, p) }
	one := func(f func(a *asm)) []byte {
		var a asm
		f(&a)
		return a.bytes()
	}

	huge := []byte{0xff, 0xff, 0xff, 0xff, 0x0f}
	add("2^32-1 types", fault.ToolBroken, raw(cat(op(1, 5), huge)...))
	add("2^32-1 imports", fault.ToolBroken, raw(cat(op(2, 5), huge)...))
	add("2^32-1 functions", fault.ToolBroken, raw(cat(op(3, 5), huge)...))
	add("2^32-1 locals", fault.ToolBroken, raw(cat(op(1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0, 10, 10, 1, 8, 1), huge, op(0x7f, 0x0b))...))
	add("2^32-1 names", fault.ToolBroken, raw(cat(op(0, 12, 4), []byte("name"), op(1, 5), huge)...))
	add("a section of 4 GiB", fault.ToolBroken, raw(cat(op(1), huge)...))
	add("only the magic", fault.ToolBroken, raw())
	add("text", fault.ToolBroken, []byte("(module)"))
	add("shared memory", fault.ToolBroken, raw(5, 3, 1, 2, 1))
	add("memory64", fault.ToolBroken, raw(5, 3, 1, 4, 1))
	add("two memories", fault.ToolBroken, raw(5, 5, 2, 0, 1, 0, 1))
	add("4 GiB of memory", fault.ToolBroken, one(func(a *asm) { a.memory(65536); a.exported("run", nil, i32c(0)) }))
	add("a table of 2^32-1", fault.ToolBroken, one(func(a *asm) {
		a.tables = append(a.tables, cat(op(0x70, 0), huge))
		a.exported("run", nil, i32c(0))
	}))
	add("50,001 locals", fault.ToolBroken, one(func(a *asm) { a.exported("run", make([]byte, 50_001), i32c(0)) }))
	add("nesting", fault.ToolBroken, one(func(a *asm) {
		var open, end []byte
		for range 20_000 {
			open, end = append(open, 0x02, 0x40), append(end, 0x0b)
		}
		a.exported("run", nil, open, end, i32c(0))
	}))
	add("legacy exceptions", fault.ToolBroken, one(func(a *asm) { a.exported("run", nil, op(0x06, 0x40, 0x0b), i32c(0)) }))
	// throws is a module that throws and catches for ever.
	throws := func(body ...[]byte) []byte {
		return one(func(a *asm) {
			a.tags = append(a.tags, cat(op(0), u(a.typ(nil, nil))))
			a.exported("run", nil, loop(body...), i32c(0))
		})
	}
	add("exceptions without an end", fault.LimitExceeded, throws(op(0x1f, 0x40, 1, 2, 0, 0x08, 0, 0x0b)))
	add("exceptions that are all kept", fault.LimitExceeded, throws(op(0x02, 0x69, 0x1f, 0x40, 1, 3, 0, 0x08, 0, 0x0b, 0xd0, 0x69, 0x0b), drop, br(0)))
	add("an exception that nobody catches", fault.GuestTrap, one(func(a *asm) {
		a.tags = append(a.tags, cat(op(0), u(a.typ(nil, nil))))
		a.exported("run", nil, op(0x08, 0))
	}))
	add("no exception thrown again", fault.GuestTrap, one(func(a *asm) {
		a.tags = append(a.tags, cat(op(0), u(a.typ(nil, nil))))
		a.exported("run", nil, op(0xd0, 0x69, 0x0a))
	}))
	add("a function taken for one of another type", fault.GuestTrap, one(func(a *asm) {
		of := a.typ(op(0x7e), nil) // a number, where the function takes a reference
		a.export("victim", 0, a.fn(op(0x6f), nil, nil, op(0x01)))
		a.exported("run", nil, i64c(1<<40), op(0xd2, 0), op(0x14), u(of), i32c(0))
	}))
	add("no function that is called", fault.GuestTrap, one(func(a *asm) {
		of := u(a.typ(nil, nil))
		a.exported("run", nil, op(0xd0), of, op(0x14), of, i32c(0))
	}))
	add("recursion by reference", fault.GuestTrap, one(func(a *asm) {
		a.exported("run", nil, op(0xd2, 0), op(0x14), u(a.typ(nil, op(0x7f))))
	}))
	add("branches on null without an end", fault.LimitExceeded, one(func(a *asm) {
		a.exported("run", nil, loop(op(0xd0, 0x70, 0xd5, 0), drop), i32c(0))
	}))
	add("waiting for another thread", fault.GuestTrap, one(func(a *asm) {
		a.memory(1)
		a.exported("run", nil, i32c(0), i32c(0), i64c(-1), op(0xfe, 0x01, 2, 0))
	}))
	add("our own imports", fault.ToolBroken, one(func(a *asm) { a.imp("toold", "refill", nil, nil); a.exported("run", nil, i32c(0)) }))
	add("our own exports", fault.ToolBroken, one(func(a *asm) { a.exported("toold:fuel", nil, i32c(0)) }))
	add("our own globals", fault.ToolBroken, one(func(a *asm) {
		a.global(0x7e, true, i64c(0))
		a.exported("run", nil, i64c(1<<40), gset(1), i32c(0)) // the fuel, were it let through
	}))
	add("not granted", fault.ToolBroken, one(func(a *asm) {
		a.env("http_request", op(0x7e, 0x7e), op(0x7e))
		a.exported("run", nil, i32c(0))
		a.exported("handle", nil, i32c(0)) // or it were a stock plugin
	}))
	add("wrong type of an export", fault.ToolBroken, one(func(a *asm) { a.export("run", 0, a.fn(op(0x7f), op(0x7f), nil, get(0))) }))
	add("an export that is a memory", fault.ToolBroken, one(func(a *asm) { a.memory(1); a.export("run", 2, 0) }))
	add("data outside of memory", fault.ToolBroken, one(func(a *asm) { a.memory(1); a.data(65530, []byte("0123456789")); a.exported("run", nil, i32c(0)) }))
	add("types that do not fit", fault.ToolBroken, one(func(a *asm) { a.exported("run", nil, i64c(0)) }))
	add("a start that loops", fault.LimitExceeded, one(func(a *asm) { a.start = u(a.fn(nil, nil, nil, loop(br(0)))); a.exported("run", nil, i32c(0)) }))
	add("a start that traps", fault.ToolBroken, one(func(a *asm) { a.start = u(a.fn(nil, nil, nil, unreachable)); a.exported("run", nil, i32c(0)) }))
	add("an _initialize that loops", fault.LimitExceeded, one(func(a *asm) {
		a.export("_initialize", 0, a.fn(nil, nil, nil, loop(br(0))))
		a.exported("run", nil, i32c(0))
	}))

	for name, code := range enders() {
		add(name, fault.LimitExceeded, code)
	}
	add("recursion without end", fault.GuestTrap, one(func(a *asm) { a.exported("run", nil, callf(0)) }))
	add("growth without end", fault.LimitExceeded, one(func(a *asm) {
		a.memory(1)
		a.exported("run", nil, loop(i32c(1), grow, i32c(-1), op(0x47), brif(0)), unreachable)
	}))
	add("output without end", fault.LimitExceeded, one(func(a *asm) {
		write := a.imp(userModule, "tool_write", op(0x7f, 0x7f), nil)
		a.memory(16)
		a.exported("run", nil, loop(i32c(0), i32c(16<<16), callf(write), br(0)), i32c(0))
	}))
	add("an output of 2^63", fault.LimitExceeded, one(func(a *asm) {
		out := a.env("output_set", op(0x7e, 0x7e), nil)
		a.exported("run", nil, i64c(77), i64c(-5), callf(out), i32c(0))
	}))
	add("allocation without end", fault.LimitExceeded, one(func(a *asm) {
		alloc := a.env("alloc", op(0x7e), op(0x7e))
		a.exported("run", nil, loop(i64c(1<<20), callf(alloc), drop, br(0)), i32c(0))
	}))
	add("small allocations without end", fault.LimitExceeded, one(func(a *asm) {
		alloc := a.env("alloc", op(0x7e), op(0x7e))
		a.exported("run", nil, loop(i64c(1), callf(alloc), drop, br(0)), i32c(0))
	}))
	add("an allocation of 2^64-1", fault.LimitExceeded, one(func(a *asm) {
		alloc := a.env("alloc", op(0x7e), op(0x7e))
		a.exported("run", nil, i64c(-1), callf(alloc), drop, i32c(0))
	}))
	add("a destination outside of memory", fault.GuestTrap, one(func(a *asm) {
		read := a.imp(userModule, "tool_read", op(0x7f, 0x7e, 0x7f), op(0x7f))
		a.memory(1)
		a.exported("run", nil, i32c(65536-3), i64c(0), i32c(100), callf(read), drop, i32c(0))
	}))
	add("bulk without memory", fault.GuestTrap, one(func(a *asm) {
		write := a.imp(userModule, "tool_write", op(0x7f, 0x7f), nil)
		a.exported("run", nil, i32c(0), i32c(100), callf(write), i32c(0))
	}))
	add("randomness without end", fault.LimitExceeded, one(func(a *asm) {
		random := a.imp(wasiModule, "random_get", op(0x7f, 0x7f), op(0x7f))
		a.memory(256)
		a.exported("run", nil, loop(i32c(0), i32c(256<<16), callf(random), drop, br(0)), i32c(0))
	}))
	add("log without end", fault.LimitExceeded, one(func(a *asm) {
		off := a.env("input_offset", nil, op(0x7e))
		log := a.env("log_info", op(0x7e), nil)
		a.exported("run", nil, loop(callf(off), callf(log), br(0)), i32c(0))
	}))
	return rows
}

// hostileDir holds the modules of hostile as files, for other tests and for
// whoever wants to try an engine: CODE/what-it-does.wasm.
const hostileDir = "testdata/hostile"

var update = flag.Bool("update", false, "write testdata/hostile anew")

// TestHostileFolder: the folder holds what hostile makes, and nothing else.
func TestHostileFolder(t *testing.T) {
	want := map[string][]byte{}
	for _, h := range hostile() {
		name := strings.Map(func(r rune) rune {
			if strings.ContainsRune(" ,^", r) {
				return '-'
			}
			return r
		}, h.name)
		want[filepath.Join(hostileDir, string(h.code), name+".wasm")] = h.wasm
	}
	if *update {
		if err := os.RemoveAll(hostileDir); err != nil {
			t.Fatal(err)
		}
		for path, wasm := range want {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, wasm, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, _ := filepath.Glob(hostileDir + "/*/*")
	if len(files) != len(want) {
		t.Errorf("%s holds %d files for %d modules; go test ./host/guest -run HostileFolder -update", hostileDir, len(files), len(want))
	}
	for path, wasm := range want {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, wasm) {
			t.Errorf("%s is not what hostile makes (%v); go test ./host/guest -run HostileFolder -update", path, err)
		}
	}
}

// hostileSpec are the limits with which a hostile module is tried.
func hostileSpec(wasm []byte) Spec {
	return Spec{Name: "bad.wasm", Wasm: wasm, Fuel: 20_000_000, Memory: 80 << 20}
}

// tryHostile loads a module and calls it.
func tryHostile(e *Engine, wasm []byte) (Stats, error) {
	m, err := e.Load(context.Background(), hostileSpec(wasm))
	if err != nil {
		return Stats{}, err
	}
	defer m.Close()
	r, err := m.Call(context.Background(), Invocation{Export: "run", Input: make([]byte, 200)})
	return r.Stats, err
}

// TestHostile: each gets its code, from its limits and no deadline, and the
// process is as it was. How long that takes, BenchmarkHostile measures.
func TestHostile(t *testing.T) {
	e := newEngine(t)
	goroutines, fds := runtime.NumGoroutine(), openFiles(t)
	for _, tt := range hostile() {
		t.Run(tt.name, func(t *testing.T) {
			stats, err := tryHostile(e, tt.wasm)
			wantCode(t, err, tt.code, "bad.wasm")
			if limit := hostileSpec(nil).Memory + stackBase; stats.PeakMemory > limit {
				t.Errorf("it took %d bytes, and %d are the limit", stats.PeakMemory, limit)
			}
		})
	}
	if held := e.memory.held(); held != 0 {
		t.Errorf("%d bytes of memory are still accounted for", held)
	}
	settle(t, "goroutines", goroutines, runtime.NumGoroutine)
	settle(t, "descriptors", fds, func() int { return openFiles(t) })
}

// BenchmarkHostile times the longest way from a module to its refusal, when its
// code is compiled already.
func BenchmarkHostile(b *testing.B) {
	e := newEngine(b)
	for _, tt := range hostile() {
		b.Run(tt.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := tryHostile(e, tt.wasm); err == nil {
					b.Fatal("nothing ended it")
				}
			}
		})
	}
}

// TestLogIsBounded: what a call may make others write is bounded, also where
// each line is empty.
func TestLogIsBounded(t *testing.T) {
	for _, h := range hostile() {
		if h.name != "log without end" {
			continue
		}
		m := load(t, newEngine(t), Spec{Wasm: h.wasm, Fuel: 20_000_000})
		for _, n := range []int{0, 100, 100_000} {
			lines, written := 0, 0
			_, err := m.Call(context.Background(), Invocation{Export: "run", Input: bytes.Repeat([]byte("x"), n), Services: Services{
				Log: func(_ context.Context, _ slog.Level, text string) { lines++; written += len(text) },
			}})
			wantCode(t, err, fault.LimitExceeded, "")
			if lines < 10 || lines > maxLogCall/logAround+1 || written > maxLogCall+2*maxLogLine {
				t.Errorf("lines of %d bytes: %d lines of %d bytes together", n, lines, written)
			}
		}
		return
	}
	t.Error("no such module")
}

func openFiles(t testing.TB) int {
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // not on this system
	}
	return len(es)
}

// settle waits for a count to come back to what it was.
func settle(t testing.TB, what string, before int, count func() int) {
	t.Helper()
	var n int
	for range 200 {
		if n = count(); n <= before {
			return
		}
		runtime.Gosched()
		runtime.GC()
	}
	t.Errorf("%d %s, %d before", n, what, before)
}

// TestCompileBomb: what takes too long or too much to compile ends another
// process, not this one.
func TestCompileBomb(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("takes the compiler's whole time")
	}
	e := newEngine(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := e.Load(context.Background(), Spec{Name: "bomb.wasm", Wasm: bomb(), Compile: CompileLimits{Time: 2 * time.Second}})
	if err == nil {
		m.Close()
		t.Skip("this machine compiles it within the limits")
	}
	wantCode(t, err, fault.ToolBroken, "compiling", "make its functions smaller")
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 256<<20 {
		t.Errorf("this process grew by %d bytes", grown)
	}
}

// What one module may take to be compiled is no other's: within its own limits a
// module is refused, or not, whoever else waits for the same code.
func TestCompileLimits(t *testing.T) {
	e := newEngine(t)
	code := bomb()
	for _, c := range []CompileLimits{{Time: time.Second}, {Memory: 40 << 20}} {
		_, err := e.Load(context.Background(), Spec{Name: "bomb.wasm", Wasm: code, Compile: c})
		if g, ok := errors.AsType[*Error](err); !ok || g.Kind != TooMuchToCompile {
			t.Errorf("%+v: %v", c, err)
		}
	}
	a := &asm{}
	a.exported("run", nil, i32c(0))
	small := a.bytes()
	a.customs = [][]byte{cat(str(".debug_info"), make([]byte, 2<<20))}
	debug := a.bytes()
	a.customs = nil
	a.memory(40)
	a.data(0, make([]byte, 2<<20))
	large := a.bytes()
	for name, tt := range map[string]struct {
		code []byte
		most int64
		fits bool
	}{
		"small": {small, 1 << 20, true}, "with debug sections": {debug, 1 << 20, true}, "large": {large, 1 << 20, false},
		"large, and it may be": {large, 3 << 20, true}, "large by default": {large, 0, true},
		"with a length that lies": {cat(small, op(0, 0xff, 0xff, 0xff, 0xff, 0x0f), make([]byte, 2<<20)), 1 << 20, false},
	} {
		m, err := e.Load(context.Background(), Spec{Name: "x.wasm", Wasm: tt.code, Compile: CompileLimits{Module: tt.most}})
		if tt.fits && err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !tt.fits {
			if g, ok := errors.AsType[*Error](err); !ok || g.Kind != TooLarge {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err == nil {
			m.Close()
		}
	}
}

// bomb is a module of a few hundred KB that takes a compiler long.
func bomb() []byte {
	var a asm
	// One value that many blocks need at once.
	locals := make([]byte, 2000)
	for i := range locals {
		locals[i] = 0x7f
	}
	var body []byte
	for i := range 60_000 {
		body = append(body, cat(get(uint32(i*7%2000)), get(uint32(i*13%2000)), add32, op(0x04, 0x40), get(uint32(i*3%2000)), set(uint32(i*11%2000)), op(0x0b))...)
	}
	a.exported("run", locals, body, i32c(0))
	return a.bytes()
}

// TestLimitsOfFuel: more fuel than a call needs changes nothing, one unit less
// ends it.
func TestLimitsOfFuel(t *testing.T) {
	e := newEngine(t)
	var a asm
	a.exported("run", op(0x7f), loop(get(0), i32c(1), add32, op(0x22, 0), i32c(1000), lt32u, brif(0)), i32c(0))
	need := func(fuel int64) (int64, error) {
		m := load(t, e, Spec{Wasm: a.bytes(), Fuel: fuel})
		r, err := m.Call(context.Background(), Invocation{Export: "run"})
		return r.Stats.Fuel, err
	}
	n, err := need(0)
	if err != nil || n < 1000 {
		t.Fatalf("%d units, %v", n, err)
	}
	if got, err := need(n); err != nil || got != n {
		t.Errorf("with exactly %d units: %d, %v", n, got, err)
	}
	_, err = need(n - 1)
	wantCode(t, err, fault.LimitExceeded, "fuel")
}

// TestDeterminism: the same input takes the same fuel, in any number of calls
// and whatever ran before; after a restart too, also of a guest that draws
// randomness when it starts, as Go's do.
func TestDeterminism(t *testing.T) {
	calls := 1000
	if testing.Short() || raceEnabled {
		calls = 50
	}
	random := randomModule(rand.New(rand.NewSource(7)))
	for _, tt := range []struct {
		name, export string
		wasm         []byte
	}{{"kitchen", "check", built["kitchen"]}, {"random", "run", random}} {
		var want Stats
		for restart := range 2 {
			m := load(t, newEngine(t), Spec{Name: tt.name, Wasm: tt.wasm, Fuel: 100_000_000_000})
			for i := range calls / 2 {
				r, err := m.Call(context.Background(), Invocation{Export: tt.export, Input: policyInput, Identity: fmt.Sprint(i % 3)})
				if err != nil {
					t.Fatal(err)
				}
				r.Stats.PagesRestored = 0
				if want == (Stats{}) {
					want = r.Stats
				}
				if r.Stats != want {
					t.Fatalf("%s, call %d after %d restarts: %+v, but at first %+v", tt.name, i, restart, r.Stats, want)
				}
			}
		}
	}
}

// TestOverloaded: what all instances hold is bounded, and freed for whoever
// needs it.
func TestOverloaded(t *testing.T) {
	e, err := New(Config{CacheDir: cacheDir, Compiler: compiler, Memory: 24 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	hungry := func(name string) *Module {
		return load(t, e, Spec{Name: name, Wasm: built["kitchen"], Fuel: 100_000_000_000})
	}
	a, b := hungry("a.wasm"), hungry("b.wasm")
	do(t, a, "run", "calls")
	a.pool.settle()
	b.pool.settle()
	// One call that takes nearly all ends others that wait for nothing.
	if got := do(t, b, "run", "keep 10"); got != "10" {
		t.Errorf("kept %s", got)
	}
	_, err = b.Call(context.Background(), Invocation{Export: "run", Input: []byte("keep 60")})
	wantCode(t, err, fault.Overloaded, "24")
	if got := do(t, a, "run", "calls"); got != "1" {
		t.Errorf("after an overload: %s", got)
	}
	a.Close()
	b.Close()
	if held := e.memory.held(); held != 0 {
		t.Errorf("%d bytes of memory are still accounted for", held)
	}
}

// TestMemoryLimit: one module's own limit is another error.
func TestMemoryLimit(t *testing.T) {
	m := load(t, newEngine(t), Spec{Name: "kitchen.wasm", Wasm: built["kitchen"], Memory: 16 << 20, Fuel: 100_000_000_000})
	_, err := m.Call(context.Background(), Invocation{Export: "run", Input: []byte("keep 30")})
	wantCode(t, err, fault.LimitExceeded, "memory", "16777216")
	_, err = newEngine(t).Load(context.Background(), Spec{Name: "kitchen.wasm", Wasm: built["kitchen"], Memory: 1 << 20})
	wantCode(t, err, fault.ToolBroken, "memory")
}

// TestPool: it grows with the calls that run at once, up to Concurrency, and
// shrinks when they are gone.
func TestPool(t *testing.T) {
	t.Setenv(restoreVariable, "")
	m := load(t, newEngine(t), Spec{Name: "kitchen.wasm", Wasm: built["kitchen"], Concurrency: 3})
	if m.snap == nil || m.e.strategy < strategyPagemap {
		t.Skip("instances are not kept on this system")
	}
	idle := func() int {
		m.pool.settle()
		m.pool.mu.Lock()
		defer m.pool.mu.Unlock()
		return len(m.pool.idle)
	}
	if n := idle(); n != ahead {
		t.Errorf("%d instances were made ahead", n)
	}
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for range 6 {
		wg.Go(func() {
			_, err := m.Call(context.Background(), Invocation{Export: "run", Input: []byte("sleep 50")})
			if err != nil {
				t.Error(err)
			}
			<-gate
		})
	}
	close(gate)
	wg.Wait()
	if n := idle(); n < 2 || n > 3 {
		t.Errorf("%d instances after 6 calls at once, want 3 at most", n)
	}
	// An hour later.
	m.pool.mu.Lock()
	for _, in := range m.pool.idle {
		in.idle = in.idle.Add(-time.Hour)
	}
	m.pool.mu.Unlock()
	m.shrinkPool()
	if n := idle(); n > ahead {
		t.Errorf("%d instances are kept that nobody needs", n)
	}
	do(t, m, "run", "calls")
}

// TestCache: code is compiled once, found again after a restart, and made
// again when it was damaged.
func TestCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	var a asm
	a.exported("run", nil, i32c(0))
	engine := func() *Engine {
		e, err := New(Config{CacheDir: dir, Compiler: compiler})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	entries := func() map[string]time.Time {
		out := map[string]time.Time{}
		files, _ := filepath.Glob(filepath.Join(dir, "wazero-*", "*"))
		for _, f := range files {
			st, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			out[f] = st.ModTime()
		}
		return out
	}
	loads := func(e *Engine, n int) {
		t.Helper()
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				m, err := e.Load(context.Background(), Spec{Name: "x.wasm", Wasm: a.bytes()})
				if err != nil {
					t.Error(err)
					return
				}
				do(t, m, "run", "")
				m.Close()
			})
		}
		wg.Wait()
	}
	e := engine()
	loads(e, 8)
	first := entries()
	if len(first) != 1 {
		t.Fatalf("%d entries after 8 loads of one module", len(first))
	}
	e.Close()
	if left, _ := filepath.Glob(filepath.Join(dir, "build-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	st, err := os.Stat(dir)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the cache has mode %v", st.Mode())
	}
	e = engine()
	loads(e, 1)
	e.Close()
	for f, at := range entries() {
		if !first[f].Equal(at) {
			t.Error("a restart compiled it again")
		}
		// One byte of the code is another.
		p, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		p[len(p)/2] ^= 0x40
		if err := os.WriteFile(f, p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e = engine()
	loads(e, 1)
	e.Close()
	for f := range entries() {
		p, _ := os.ReadFile(f)
		for old := range first {
			if q, err := os.ReadFile(old); err != nil || !slices.Equal(p, q) {
				t.Error("the damaged entry is still there")
			}
		}
	}
	for _, f := range []string{"notes"} {
		ns, _ := filepath.Glob(filepath.Join(dir, f, "*"))
		for _, n := range ns {
			if err := os.WriteFile(n, []byte("../../etc/passwd 00"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	e = engine()
	loads(e, 1)
	e.Close()

	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{CacheDir: dir}); err == nil || !strings.Contains(err.Error(), "chmod 0700") {
		t.Errorf("a cache that others may write: %v", err)
	}
}

// TestPrune: code that nobody has loaded for a month goes at the next start, and
// what was loaded since stays.
func TestPrune(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	module := func(n int32) []byte {
		var a asm
		a.exported("run", nil, i32c(n), drop, i32c(0))
		return a.bytes()
	}
	start := func(loads ...int32) {
		t.Helper()
		e, err := New(Config{CacheDir: dir, Compiler: compiler})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for _, n := range loads {
			load(t, e, Spec{Wasm: module(n)}).Close()
		}
	}
	count := func() int {
		notes, _ := filepath.Glob(filepath.Join(dir, "notes", "*"))
		files, _ := filepath.Glob(filepath.Join(dir, "wazero-*", "*"))
		if len(notes) != len(files) {
			t.Errorf("%d notes and %d files", len(notes), len(files))
		}
		return len(files)
	}
	age := func(by time.Duration) {
		notes, _ := filepath.Glob(filepath.Join(dir, "notes", "*"))
		for _, n := range notes {
			st, err := os.Stat(n)
			if err != nil {
				t.Fatal(err)
			}
			at := st.ModTime().Add(-by)
			if err := os.Chtimes(n, at, at); err != nil {
				t.Fatal(err)
			}
		}
	}
	start(1, 2)
	age(unused - time.Hour)
	start(1)
	if n := count(); n != 2 {
		t.Fatalf("%d modules are kept, 2 are young enough", n)
	}
	age(2 * time.Hour)
	start()
	if n := count(); n != 1 {
		t.Errorf("%d modules are kept, 1 was loaded since", n)
	}
	start(1, 2)
	if n := count(); n != 2 {
		t.Errorf("%d modules are kept after they were compiled again", n)
	}
}

// TestLoadEnds: whoever loads may stop waiting.
func TestLoadEnds(t *testing.T) {
	e := newEngine(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := e.Load(ctx, Spec{Wasm: built["kitchen"]})
	wantCode(t, err, fault.Aborted)
	ctx, cancel = context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	fresh, err := New(Config{Compiler: compiler})
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	_, err = fresh.Load(ctx, Spec{Wasm: built["command"]})
	wantCode(t, err, fault.Timeout)
}

// TestNothingLeft: a thousand calls that end in every way leave no goroutine,
// descriptor or memory behind.
func TestNothingLeft(t *testing.T) {
	n := 40
	if testing.Short() || raceEnabled {
		n = 5
	}
	e := newEngine(t)
	goroutines := runtime.NumGoroutine()
	m, err := e.Load(context.Background(), Spec{Name: "kitchen.wasm", Wasm: built["kitchen"]})
	if err != nil {
		t.Fatal(err)
	}
	fds := openFiles(t)
	r := rand.New(rand.NewSource(1))
	for range n {
		var wg sync.WaitGroup
		for range 4 {
			what := []string{"calls", "panic", "exit 1", "error", "loop", "keep 2", "sleep 1000"}[r.Intn(7)]
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				defer cancel()
				_, err := m.Call(ctx, Invocation{Export: "run", Input: []byte(what)})
				if code := codeOf(err); err != nil && (code == "" || code == fault.Internal) {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		wg.Wait()
	}
	m.pool.settle()
	settle(t, "descriptors", fds+8, func() int { return openFiles(t) }) // a scanner for each that is kept
	m.Close()
	if held := e.memory.held(); held != 0 {
		t.Errorf("%d bytes of memory are still accounted for", held)
	}
	settle(t, "goroutines", goroutines, runtime.NumGoroutine)
	settle(t, "descriptors", fds, func() int { return openFiles(t) })
}

// TestCloseEndsCompiling: an engine that is closed waits for nothing that is being
// compiled, nor for what waits to be, and leaves nothing of it.
func TestCloseEndsCompiling(t *testing.T) {
	dir := t.TempDir()
	gate, script := filepath.Join(dir, "gate"), filepath.Join(dir, "compiler")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho begun >'"+gate+"'\nexec sleep 86400\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(dir, "cache")
	e, err := New(Config{CacheDir: cache, Compiler: script, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	const modules = compileAtOnce + 2
	loaded := make(chan error, modules)
	for n := range modules {
		a := &asm{}
		a.exported("run", nil, i32c(int32(n))) // each is another
		module := a.bytes()
		go func() {
			_, err := e.Load(ctx, Spec{Name: "x.wasm", Wasm: module, Compile: CompileLimits{Time: time.Hour}})
			loaded <- err
		}()
	}
	f, err := os.Open(gate) // some compile
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cancel()
	for range modules {
		if err := <-loaded; err == nil {
			t.Error("loaded by a compiler that compiles nothing")
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for the compiler")
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "build-*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
