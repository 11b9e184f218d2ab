package host_test

import (
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	good := func() time.Duration {
		began := time.Now()
		if a := ask(t, d.Socket, M{"tool": "good", "args": []string{"calls"}, "cwd": d.Root}); a.Stdout != "1" {
			t.Errorf("a call of another tool: %s", a.raw)
		}
		return time.Since(began)
	}
	good() // loads it
	var alone []time.Duration
	for range 200 {
		alone = append(alone, good())
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()

	var stop atomic.Bool
	var beside []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			beside = append(beside, good())
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
	slices.Sort(alone)
	slices.Sort(beside)
	t.Logf("%d calls of another tool meanwhile: median %v and 99th percentile %v, alone %v and %v", len(beside),
		beside[len(beside)/2], beside[len(beside)*99/100], alone[len(alone)/2], alone[len(alone)*99/100])
}
