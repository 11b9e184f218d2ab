package guest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest/wasm"
)

// sleepy is an engine that keeps n modules ready.
func sleepy(t *testing.T, n int) *Engine {
	t.Helper()
	e, err := New(Config{CacheDir: t.TempDir(), Compiler: compiler, Awake: n, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// numbered returns what its memory holds, n, and how often it was called; "wait"
// asks for input first, and "grow" leaves more memory and another number.
func numbered(n uint32) []byte {
	var a asm
	answer := a.answerer()
	recv := a.imp(userModule, "tool_recv", op(0x7e), op(0x7e))
	a.memory(1)
	a.data(64, binary.LittleEndian.AppendUint32(nil, n))
	g := a.global(0x7f, true, i32c(0))
	count := cat(gget(g), i32c(1), add32, gset(g), i32c(64), i32c(64), load32(0), gget(g), add32, store32(0))
	a.exported("run", nil, count, answer(cat(i32c(64), load32(0))), i32c(0))
	a.exported("wait", nil, i64c(0), callf(recv), drop, count, answer(cat(i32c(64), load32(0))), i32c(0))
	return a.bytes()
}

func numberOf(t *testing.T, m *Module, inv Invocation) (uint32, int64) {
	t.Helper()
	r, err := m.Call(context.Background(), inv)
	if err != nil || len(r.Output) != 4 {
		t.Errorf("%s: %x, %v", m.spec.Name, r.Output, err)
		return 0, 0
	}
	return binary.LittleEndian.Uint32(r.Output), r.Stats.Fuel
}

// ready are the modules that are awake, and hold code.
func ready(e *Engine) (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for m := range e.modules {
		m.mu.Lock()
		if !m.sleeper.asleep {
			names = append(names, m.spec.Name)
		} else if m.sleeper.changing == nil && (m.home != nil || m.compiled != nil || m.snap != nil || m.rewritten != nil || m.wasm != nil) {
			names = append(names, m.spec.Name+", which sleeps and holds code")
		}
		m.mu.Unlock()
	}
	return names
}

// Of many modules as many are ready as the engine is to keep, of those that were
// called; all are called as if they were, with the same answers for the same fuel.
func TestModulesSleep(t *testing.T) {
	e := sleepy(t, 3)
	var mods []*Module
	for i := range 6 {
		mods = append(mods, load(t, e, Spec{Name: fmt.Sprint("m", i), Wasm: numbered(uint32(100 * i))}))
	}
	if names := ready(e); len(names) != 0 {
		t.Errorf("ready after loading, before any call: %v", names)
	}
	numberOf(t, mods[5], Invocation{Export: "run"})
	load(t, e, Spec{Name: "another", Wasm: numbered(1)})
	if names := ready(e); len(names) != 1 || names[0] != "m5" {
		t.Errorf("ready after a call of m5: %v", names)
	}
	fuel := make([]int64, len(mods))
	for range 2 {
		for i, m := range mods {
			got, took := numberOf(t, m, Invocation{Export: "run"})
			if got != uint32(100*i+1) || fuel[i] != 0 && took != fuel[i] {
				t.Errorf("m%d answers %d for %d units of fuel, before for %d", i, got, took, fuel[i])
			}
			fuel[i] = took
		}
	}
	if !mods[0].Has("run") || mods[0].Has("none") || mods[0].IsCommand() {
		t.Error("a module that sleeps does not know its exports")
	}
	if names := ready(e); len(names) != 3 {
		t.Errorf("ready after calls: %v", names)
	}
}

// A module does not fall asleep while it is called, nor forget what it was called
// with.
func TestCalledModulesDoNotSleep(t *testing.T) {
	e := sleepy(t, 1)
	m := load(t, e, Spec{Name: "called", Wasm: numbered(7)})
	got, _ := numberOf(t, m, Invocation{Export: "wait", Services: Services{Recv: func(context.Context) ([]byte, error) {
		for i := range 3 {
			other := load(t, e, Spec{Name: fmt.Sprint("other", i), Wasm: numbered(uint32(i))})
			numberOf(t, other, Invocation{Export: "run"})
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.sleeper.asleep || m.home == nil {
			t.Error("it fell asleep while it was called")
		}
		return nil, io.EOF
	}}})
	if got != 8 {
		t.Errorf("it answers %d", got)
	}
}

// Modules are called, wake and fall asleep at the same time, and are closed.
func TestSleepRaces(t *testing.T) {
	e := sleepy(t, 1)
	var mods []*Module
	for i := range 4 {
		mods = append(mods, load(t, e, Spec{Name: fmt.Sprint("m", i), Wasm: numbered(uint32(100 * i))}))
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 20 {
				n := (i + k) % len(mods)
				if got, _ := numberOf(t, mods[n], Invocation{Export: "run", Identity: fmt.Sprint(i)}); got != uint32(100*n+1) {
					t.Errorf("m%d answers %d", n, got)
				}
			}
		})
	}
	for i := range 20 {
		all.Go(func() {
			m, err := e.Load(context.Background(), Spec{Name: "closed", Wasm: numbered(uint32(i))})
			if err != nil {
				t.Error(err)
				return
			}
			all.Go(func() { m.Call(context.Background(), Invocation{Export: "run"}) })
			m.Close()
		})
	}
	all.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.modules) != len(mods) {
		t.Errorf("%d modules are left, not %d", len(e.modules), len(mods))
	}
}

// A module runs the bytes that it was loaded from, or not at all.
func TestWakesFromItsOwnBytes(t *testing.T) {
	e := sleepy(t, 1)
	m := load(t, e, Spec{Name: "m", Wasm: numbered(1)})
	load(t, e, Spec{Name: "other", Wasm: numbered(2)})
	name := e.copyOf(m.sleeper.digest)
	if err := os.WriteFile(name, numbered(3), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := m.Call(context.Background(), Invocation{Export: "run"}); codeOf(err) != fault.Internal {
		t.Errorf("with another module in the place of its own it answers %x, %v", r.Output, err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Call(context.Background(), Invocation{Export: "run"}); codeOf(err) != fault.Internal {
		t.Errorf("without a copy of it: %v", err)
	}
	if err := os.WriteFile(name, numbered(1), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := numberOf(t, m, Invocation{Export: "run"}); got != 2 {
		t.Errorf("with its own again it answers %d", got)
	}
}

// A call does not wait for its module longer than it may take.
func TestWakingEndsWithTheCall(t *testing.T) {
	e := sleepy(t, 1)
	m := load(t, e, Spec{Name: "m", Wasm: numbered(1)})
	load(t, e, Spec{Name: "other", Wasm: numbered(2)})
	e.loading.Lock() // nothing is loaded
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error)
	go func() {
		_, err := m.Call(ctx, Invocation{Export: "run"})
		got <- err
	}()
	cancel()
	if err := <-got; codeOf(err) != fault.Aborted {
		t.Errorf("a call that is cancelled while its module wakes: %v", err)
	}
	e.loading.Unlock()
	if got, _ := numberOf(t, m, Invocation{Export: "run"}); got != 2 {
		t.Errorf("the next call answers %d", got)
	}
}

// BenchmarkWake is the first call of a module that slept, against one that did not.
func BenchmarkWake(b *testing.B) {
	for name, code := range map[string][]byte{"c": numbered(1), "go": built["kitchen"]} {
		b.Run(name, func(b *testing.B) {
			e := newEngine(b)
			m := load(b, e, Spec{Name: name, Wasm: code})
			export, in := "run", []byte("calls")
			call := caller(b, m, export, in)
			t := medians(measured, func() { m.fallAsleep(); call() }, call)
			report(b, t[0], t[1], "x-awake")
		})
	}
}

// Modules that export the same keep one table of it, for as long as they are there.
func TestEqualExportsAreOne(t *testing.T) {
	e := sleepy(t, 1)
	a, b := load(t, e, Spec{Name: "a", Wasm: numbered(1)}), load(t, e, Spec{Name: "b", Wasm: numbered(2)})
	var other asm
	other.exported("run", nil, i32c(0))
	c := load(t, e, Spec{Name: "c", Wasm: other.bytes()})
	if a.exports != b.exports || a.exports == c.exports {
		t.Errorf("tables of exports: %p, %p of an equal one, %p of another", a.exports, b.exports, c.exports)
	}
	if n := len(e.exports); n != 2 {
		t.Errorf("%d tables are known", n)
	}
	there := e.share(exportTable{map[string]wasm.FuncType{"x": {Params: []wasm.ValueType{wasm.I32}}, "y": {}}})
	if e.share(exportTable{map[string]wasm.FuncType{"x": {}, "y": {Params: []wasm.ValueType{wasm.I32}}}}) == there {
		t.Error("functions of other types are the same")
	}
	runtime.KeepAlive(there)
}

// Memory goes back to the system some time after the last module fell asleep, and
// not again and again.
func TestMemoryGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s spared
		gave := func() time.Time {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.last
		}
		s.soon()
		time.Sleep(spareAfter - 1)
		s.soon()
		time.Sleep(spareAfter - 1)
		if !gave().IsZero() {
			t.Error("it goes while modules fall asleep")
		}
		time.Sleep(time.Nanosecond)
		first := gave()
		if first.IsZero() {
			t.Error("it does not go")
		}
		s.soon()
		time.Sleep(spareEach - 1)
		if gave() != first {
			t.Error("it goes more often than once a minute")
		}
		time.Sleep(time.Nanosecond)
		if gave() == first {
			t.Error("it does not go again")
		}
		s.soon()
		s.stop()
		s.soon()
		last := gave()
		time.Sleep(time.Hour)
		if gave() != last {
			t.Error("it goes after the engine was closed")
		}
	})
}
