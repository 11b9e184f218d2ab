package host_test

import (
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// Modules that mean harm are dropped in and called, all at once, while others
// call a tool that means none: each gets its code, no call of the others fails,
// and the daemon is as large afterwards as before.
func TestHostileModules(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(hosttest.ModuleRoot(), "host/guest/testdata/hostile/*/*.wasm"))
	if err != nil || len(files) < 40 {
		t.Fatalf("%d hostile modules: %v", len(files), err)
	}
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "good", granted, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	good := func() {
		if a := ask(t, d.Socket, M{"tool": "good", "args": []string{"calls"}, "cwd": d.Root}); a.Stdout != "1" {
			t.Errorf("a call of another tool: %s", a.raw)
		}
	}
	for range 200 { // loads it, and warms what is kept for it
		good()
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()

	var stop atomic.Bool
	beside := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; !stop.Load(); beside++ {
			good()
		}
	})
	var harm sync.WaitGroup
	for _, file := range files {
		harm.Go(func() {
			code, name := filepath.Base(filepath.Dir(file)), strings.TrimSuffix(filepath.Base(file), ".wasm")
			name = "x-" + strings.ToLower(strings.ReplaceAll(name, "_", "-"))
			hosttest.WriteTool(t, d.Tools, name, M{"limits": M{"fuel": 20_000_000, "memory": "80MiB"}, "entry": M{"export": "run", "input": "stdin", "output": "stdout"}},
				map[string]string{"handler.wasm": file})
			if strings.HasPrefix(name, "x-a-start-") || strings.HasPrefix(name, "x-an--initialize-") {
				code = "TOOL_BROKEN" // it does not load, whatever kept it from that
			}
			var a *answer
			for range 3 { // a moment when all of them hold all the memory there is
				a = ask(t, d.Socket, M{"tool": name, "cwd": d.Root, "stdin": "aGVsbG8="})
				if a.Code != "OVERLOADED" {
					break
				}
			}
			if a.Code != code || a.message() == "" {
				t.Errorf("%s: %s, want %s", file, a.raw, code)
			}
		})
	}
	harm.Wait()
	stop.Store(true)
	wg.Wait()
	if grown := heap() - before; grown > 32<<20 {
		t.Errorf("the daemon holds %d bytes more than before", grown)
	}
	if beside == 0 {
		t.Error("no call of another tool was made meanwhile")
	}
	t.Logf("%d calls of another tool meanwhile", beside)
}
