package guest

import (
	"context"
	"runtime"
	"testing"
)

// Modules that differ in nothing but the code of a function are told apart, when they
// were just compiled and when their code comes from the cache, and by a sleeping one too.
func TestSameButForCode(t *testing.T) {
	dir := t.TempDir()
	module := func(n int32) []byte {
		var a asm
		answer := a.answerer()
		a.exported("run", nil, answer(i32c(n)), i32c(0))
		return a.bytes()
	}
	for range 2 {
		e, err := New(Config{CacheDir: dir, Compiler: compiler, Awake: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		var mods []*Module
		for n := range int32(3) {
			m := load(t, e, Spec{Wasm: module(n)})
			defer m.Close()
			mods = append(mods, m)
		}
		for range 2 {
			for n, m := range mods {
				if got, _ := numberOf(t, m, Invocation{Export: "run"}); got != uint32(n) {
					t.Errorf("module %d returned %d", n, got)
				}
			}
		}
	}
}

// A module that is ready to be called does not have its code beside the machine code.
func TestCodeIsNotKept(t *testing.T) {
	e := newEngine(t)
	heap := func() int64 {
		for range 3 {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	module := built["kitchen"]
	load(t, e, Spec{Wasm: numbered(1)}) // what an engine has for all
	before := heap()
	m := load(t, e, Spec{Wasm: module})
	if _, err := m.Call(context.Background(), Invocation{Export: "echo", Input: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	kept := heap() - before
	if kept > int64(len(module))/2 {
		t.Errorf("a module of %d bytes keeps %d", len(module), kept)
	}
	t.Logf("a module of %d bytes keeps %d", len(module), kept)
	runtime.KeepAlive(m)
}
