package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	extism "github.com/extism/go-sdk"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
)

// The benchmarks here are ratios: both sides run in turns in one process, and
// what is printed is the quotient of their medians. The absolute figures of
// one machine say little about another.

// cGuest is the guest in C, or skips.
func cGuest(t testing.TB, flags ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("clang"); err != nil {
		t.Skip("clang is not installed: the guest in C is not built")
	}
	out := filepath.Join(t.TempDir(), "guest.wasm")
	args := append([]string{"--target=wasm32", "-O2", "-nostdlib", "-msimd128", "-mbulk-memory",
		"-Wl,--no-entry", "-o", out, "testdata/guests/c/guest.c"}, flags...)
	msg, err := exec.Command("clang", args...).CombinedOutput()
	if err != nil {
		t.Skipf("clang cannot build for wasm32: %v: %s", err, msg)
	}
	p, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// turn is how long a side is called again and again before the other's turn
// comes: in between, each has the processor's caches as it would have alone.
const turn = 5 * time.Millisecond

// medians runs fs in turns for about d and answers the median time of each.
func medians(d time.Duration, fs ...func()) []time.Duration {
	times := make([][]time.Duration, len(fs))
	for _, f := range fs {
		f()
	}
	for end := time.Now().Add(d); time.Now().Before(end) || len(times[0]) < 5; {
		for i, f := range fs {
			for over := time.Now().Add(turn); ; {
				began := time.Now()
				f()
				took := time.Since(began)
				times[i] = append(times[i], took)
				if began.Add(took).After(over) {
					break
				}
			}
		}
	}
	out := make([]time.Duration, len(fs))
	for i, ts := range times {
		slices.Sort(ts)
		out[i] = ts[len(ts)/2]
	}
	return out
}

// report prints the quotient of two medians. b.N does not matter.
func report(b *testing.B, a, z time.Duration, name string) float64 {
	r := float64(a) / float64(z)
	b.ReportMetric(r, name)
	b.ReportMetric(float64(a.Nanoseconds())/1000, "us/this")
	b.ReportMetric(float64(z.Nanoseconds())/1000, "us/that")
	b.ReportMetric(0, "ns/op")
	return r
}

var policyInput = []byte(`{"tool":"git","args":["push","origin","main"],"cwd":"/workspace/project"}`)

func caller(b testing.TB, m *Module, export string, in []byte) func() {
	return func() {
		if _, err := m.Call(context.Background(), Invocation{Export: export, Input: in}); err != nil {
			b.Fatal(err)
		}
	}
}

// warm calls one instance again and again and restores nothing.
func warm(b testing.TB, m *Module, export string, in []byte) func() {
	i, err := m.take(context.Background(), "")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(i.close)
	inv := &Invocation{Export: export, Input: in}
	return func() {
		if _, err := i.call(context.Background(), inv); err != nil {
			b.Fatal(err)
		}
	}
}

// sdkPlugin is go-sdk's. timeout is the manifest's, the only bound on CPU that
// it has; 0 is none.
func sdkPlugin(b testing.TB, timeout time.Duration, code []byte, fns ...extism.HostFunction) *extism.CompiledPlugin {
	p, err := extism.NewCompiledPlugin(context.Background(), extism.Manifest{Wasm: []extism.Wasm{extism.WasmData{Data: code}}, Timeout: uint64(timeout.Milliseconds())},
		extism.PluginConfig{EnableWasi: true}, fns)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close(context.Background()) })
	return p
}

func sdkInstance(b testing.TB, p *extism.CompiledPlugin) *extism.Plugin {
	i, err := p.Instance(context.Background(), extism.PluginInstanceConfig{ModuleConfig: wazero.NewModuleConfig().WithSysWalltime().WithSysNanotime()})
	if err != nil {
		b.Fatal(err)
	}
	return i
}

// bulkFunctions give go-sdk what the kitchen guest imports; it calls them
// nowhere that go-sdk is measured.
func bulkFunctions() []extism.HostFunction {
	read := extism.NewHostFunctionWithStack("tool_read", func(_ context.Context, _ *extism.CurrentPlugin, s []uint64) {}, types{i32, i64, i32}, types{i32})
	write := extism.NewHostFunctionWithStack("tool_write", func(_ context.Context, _ *extism.CurrentPlugin, s []uint64) {}, types{i32, i32}, nil)
	return []extism.HostFunction{read, write}
}

func sdkCaller(b testing.TB, i *extism.Plugin, export string, in []byte) func() {
	return func() {
		if _, _, err := i.Call(export, in); err != nil {
			b.Fatal(err)
		}
	}
}

const measured = 700 * time.Millisecond

// BenchmarkFreshGo: "policy" is made with our SDK, which does at start what a
// first call would; "plain" is not, and does some 14 % more in a first call
// than in those after it, whoever restores it.
func BenchmarkFreshGo(b *testing.B) {
	plain := kitchen(b)
	out := filepath.Join(b.TempDir(), "policy.wasm")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-ldflags=-s", "-o", out, "../../sdk-examples/go/policy")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, msg)
	}
	code, err := os.ReadFile(out)
	if err != nil {
		b.Fatal(err)
	}
	policy := load(b, newEngine(b), Spec{Wasm: code})
	b.Run("policy-against-warm", func(b *testing.B) {
		t := medians(measured, caller(b, policy, "restrict", policyInput), warm(b, policy, "restrict", policyInput))
		report(b, t[0], t[1], "x-warm(aim<1.3)")
	})
	b.Run("plain-against-warm", func(b *testing.B) {
		t := medians(measured, caller(b, plain, "check", policyInput), warm(b, plain, "check", policyInput))
		report(b, t[0], t[1], "x-warm(aim<1.3)")
	})
	b.Run("with-a-folder-against-without", func(b *testing.B) {
		files := load(b, newEngine(b), Spec{Wasm: code, Files: []Mount{{Guest: "/data", Host: b.TempDir()}}})
		t := medians(measured, caller(b, files, "restrict", policyInput), caller(b, policy, "restrict", policyInput))
		report(b, t[0], t[1], "x-without(aim<2)")
	})
	b.Run("against-sdk-new-instance", func(b *testing.B) {
		p := sdkPlugin(b, 0, built["kitchen"], bulkFunctions()...)
		sdk := func() {
			i := sdkInstance(b, p)
			sdkCaller(b, i, "check", policyInput)()
			i.Close(context.Background())
		}
		t := medians(measured, caller(b, plain, "check", policyInput), sdk)
		report(b, t[1], t[0], "times-faster(aim>100)")
	})
}

func BenchmarkWays(b *testing.B) {
	for w := strategyFresh; w <= strategyCount; w++ {
		b.Run(w.String(), func(b *testing.B) {
			b.Setenv(restoreVariable, w.String())
			m := kitchen(b)
			call := caller(b, m, "check", policyInput)
			for b.Loop() {
				call()
			}
		})
	}
}

func BenchmarkC(b *testing.B) {
	code := cGuest(b)
	m := load(b, newEngine(b), Spec{Wasm: code})
	b.Run("fresh-against-warm", func(b *testing.B) {
		t := medians(measured, caller(b, m, "check", policyInput), warm(b, m, "check", policyInput))
		report(b, t[0], t[1], "x-warm")
	})
	// A call of ours is bounded in CPU. One of go-sdk's is when its manifest
	// has a timeout, which makes it several times slower.
	for name, timeout := range map[string]time.Duration{"against-sdk-reused-bounded": 10 * time.Second, "against-sdk-reused-unbounded": 0} {
		b.Run(name, func(b *testing.B) {
			i := sdkInstance(b, sdkPlugin(b, timeout, code))
			t := medians(measured, warm(b, m, "check", policyInput), sdkCaller(b, i, "check", policyInput))
			report(b, t[1], t[0], "times-faster(aim>50)")
			i.Close(context.Background())
		})
	}
}

// BenchmarkLines compares a module that has lines with the same without: when
// it is called, when it computes, and when it is loaded from the cache. The
// last is done with a guest in Rust too, which brings the lines of its library.
func BenchmarkLines(b *testing.B) {
	with, without := cGuest(b, "-gdwarf-4"), cGuest(b)
	e := newEngine(b)
	m, z := load(b, e, Spec{Wasm: with, Fuel: 1 << 50}), load(b, e, Spec{Wasm: without, Fuel: 1 << 50})
	if m.lines == "" || z.lines != "" {
		b.Fatalf("lines are in %q, and in %q", m.lines, z.lines)
	}
	b.Run("call", func(b *testing.B) {
		t := medians(measured, caller(b, m, "check", policyInput), caller(b, z, "check", policyInput))
		report(b, t[0], t[1], "x-without(aim<1.02)")
	})
	for export, n := range map[string]uint32{"sha": 5, "qsort": 4} {
		b.Run(export, func(b *testing.B) {
			in := binary.LittleEndian.AppendUint32(nil, n)
			t := medians(measured, warm(b, m, export, in), warm(b, z, export, in))
			report(b, t[0], t[1], "x-without(aim<1.02)")
		})
	}
	loading := func(name string, with, without []byte) {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			one := func(code []byte) func() {
				return func() {
					// Each time by an engine of its own: one keeps what it has
					// loaded.
					e, err := New(Config{CacheDir: dir, Compiler: compiler})
					if err != nil {
						b.Fatal(err)
					}
					m, err := e.Load(context.Background(), Spec{Name: "m.wasm", Wasm: code})
					if err != nil {
						b.Fatal(err)
					}
					m.Close()
					e.Close()
				}
			}
			t := medians(4*measured, one(with), one(without))
			report(b, t[0], t[1], "x-without")
		})
	}
	loading("load-c", with, without)
	loading("load-rust", linesOfRust(b, "-O", "-C", "debuginfo=1"), linesOfRust(b, "-O", "-C", "debuginfo=0", "-C", "strip=debuginfo"))
}

func BenchmarkBulk(b *testing.B) {
	m := kitchen(b)
	in := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	i := sdkInstance(b, sdkPlugin(b, 0, built["kitchen"], bulkFunctions()...))
	defer i.Close(context.Background())
	t := medians(measured, caller(b, m, "bulk", in), sdkCaller(b, i, "echo", in))
	report(b, t[1], t[0], "times-faster(aim>20)")
}

// BenchmarkMetering compares a rewritten module with the same module as it
// was compiled.
func BenchmarkMetering(b *testing.B) {
	var all []float64
	run := func(name string, m *Module, code []byte, export string, in []byte) {
		b.Run(name, func(b *testing.B) {
			ctx := context.Background()
			r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().WithCoreFeatures(features))
			defer r.Close(ctx)
			// The same host functions, the same call, and no metering.
			for _, mod := range []string{envModule, userModule} {
				host := r.NewHostModuleBuilder(mod)
				exportFuncs(host, mod, m.e.funcs, 0)
				if _, err := host.Instantiate(ctx); err != nil {
					b.Fatal(err)
				}
			}
			wasi_snapshot_preview1.MustInstantiate(ctx, r)
			plain, err := r.InstantiateWithConfig(ctx, code, wazero.NewModuleConfig().WithStartFunctions())
			if err != nil {
				b.Fatal(err)
			}
			in2, err := m.take(ctx, "")
			if err != nil {
				b.Fatal(err)
			}
			defer in2.close()
			c := &call{Context: ctx, inst: in2, inv: &Invocation{}}
			if f := plain.ExportedFunction("_initialize"); f != nil {
				c.k.reset(nil, 1<<26)
				if _, err := f.Call(c); err != nil {
					b.Fatal(err)
				}
			}
			f := plain.ExportedFunction(export)
			stack := make([]uint64, 2)
			t := medians(measured, warm(b, m, export, in), func() {
				c.k.reset(in, 1<<26)
				if err := f.CallWithStack(c, stack); err != nil {
					b.Fatal(err)
				}
			})
			all = append(all, report(b, t[0], t[1], "x-plain(aim<1.15)"))
		})
	}
	m := kitchen(b)
	for name, in := range map[string]string{"go-sha256": "sha 5", "go-regexp": "rx 500", "go-json": "js 500", "go-sort": "srt 2"} {
		run(name, m, built["kitchen"], "run", []byte(in))
	}
	code := cGuest(b)
	mc := load(b, newEngine(b), Spec{Wasm: code, Fuel: 100_000_000_000})
	for export, n := range map[string]uint32{"sha": 5, "qsort": 4, "simd": 3000} {
		run("c-"+export, mc, code, export, binary.LittleEndian.AppendUint32(nil, n))
	}
	if len(all) > 0 {
		sum := 0.0
		for _, r := range all {
			sum += math.Log(r)
		}
		b.Logf("geometric mean of %d: %.3f (aim 1.06)", len(all), math.Exp(sum/float64(len(all))))
	}
}

// BenchmarkStop measures how long a goroutine that wants to run has to wait
// while guests compute and the collector works.
func BenchmarkStop(b *testing.B) {
	code := cGuest(b)
	for _, export := range []string{"", "spin", "chase", "touch"} {
		name := export
		if name == "" {
			name = "idle"
		}
		b.Run(name, func(b *testing.B) {
			m := load(b, newEngine(b), Spec{Wasm: code, Fuel: 1 << 60})
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			var wg sync.WaitGroup
			if export != "" {
				for range 4 {
					wg.Go(func() { m.Call(ctx, Invocation{Export: export}) })
				}
			}
			var stop atomic.Bool
			wg.Go(func() {
				for !stop.Load() {
					runtime.GC()
					time.Sleep(5 * time.Millisecond)
				}
			})
			var waits []time.Duration
			for ctx.Err() == nil {
				began := time.Now()
				time.Sleep(100 * time.Microsecond)
				waits = append(waits, time.Since(began)-100*time.Microsecond)
			}
			stop.Store(true)
			wg.Wait()
			slices.Sort(waits)
			at := func(q float64) float64 { return float64(waits[int(q*float64(len(waits)-1))].Nanoseconds()) / 1e6 }
			b.ReportMetric(at(0.5), "ms-p50")
			b.ReportMetric(at(0.999), "ms-p99.9(aim<2)")
			b.ReportMetric(at(1), "ms-most")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// enders are guests that only an abort ends.
func enders() map[string][]byte {
	out := map[string][]byte{}
	var empty, recursion, deep, tree, fills asm
	empty.exported("run", nil, loop(br(0)), i32c(0))
	out["empty loop"] = empty.bytes()

	// Down a thousand frames and up again, for ever.
	f := recursion.fn(op(0x7f), op(0x7f), nil, get(0), op(0x45, 0x04, 0x7f), i32c(0), op(0x05), get(0), i32c(1), sub32, callf(0), i32c(1), add32, op(0x0b))
	recursion.exported("run", nil, loop(i32c(1000), callf(f), drop, br(0)), i32c(0))
	out["recursion"] = recursion.bytes()
	f = deep.fn(op(0x7f), op(0x7f), nil, get(0), op(0x45, 0x04, 0x7f), i32c(0), op(0x05), get(0), i32c(1), sub32, callf(0), i32c(1), add32, op(0x0b))
	deep.exported("run", nil, loop(i32c(500_000), callf(f), drop, br(0)), i32c(0))
	out["deep recursion"] = deep.bytes()

	// Forty functions without a loop, each of which calls the next twice.
	last := tree.fn(nil, nil, nil)
	for range 39 {
		last = tree.fn(nil, nil, nil, callf(last), callf(last))
	}
	tree.exported("run", nil, callf(last), i32c(0))
	out["call tree"] = tree.bytes()

	fills.memory(1000)
	var body []byte
	for range 1000 {
		body = cat(body, i32c(0), i32c(1), i32c(1000<<16), op(0xfc, 11, 0))
	}
	fills.exported("run", nil, body, i32c(0))
	out["1000 fills"] = fills.bytes()
	return out
}

func BenchmarkAbort(b *testing.B) {
	for name, code := range enders() {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			m := load(b, newEngine(b), Spec{Wasm: code, Fuel: 1 << 60})
			var late []time.Duration
			for range 10 {
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				end, _ := ctx.Deadline()
				_, err := m.Call(ctx, Invocation{Export: "run"})
				late = append(late, time.Since(end))
				cancel()
				if err == nil {
					b.Fatal("it ended by itself")
				}
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)/2].Microseconds())/1000, "ms-late-p50")
			b.ReportMetric(float64(late[len(late)-1].Microseconds())/1000, "ms-late-most(aim<10)")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// resident is what of this process is in memory, and its own.
func resident(b *testing.B) int64 {
	runtime.GC()
	p, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		b.Skip(err)
	}
	var own int64
	for _, l := range strings.Split(string(p), "\n") {
		var n int64
		if f := strings.Fields(l); len(f) == 3 && strings.HasPrefix(f[0], "Private_") {
			fmt.Sscan(f[1], &n)
			own += n << 10
		}
	}
	return own
}

// BenchmarkResident compares what the 2nd to the 100th instance cost.
func BenchmarkResident(b *testing.B) {
	const n = 99
	m := kitchen(b)
	var ours []*instance
	run := func(i *instance) {
		if _, err := i.call(context.Background(), &Invocation{Export: "check", Input: policyInput}); err != nil {
			b.Fatal(err)
		}
		i.restoreState()
		i.end()
	}
	one := func() *instance {
		i, err := m.take(context.Background(), "")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(i.close)
		run(i)
		return i
	}
	one()
	before := resident(b)
	for range n {
		ours = append(ours, one())
	}
	mine := resident(b) - before
	runtime.KeepAlive(ours)

	p := sdkPlugin(b, 0, built["kitchen"], bulkFunctions()...)
	sdk := func() *extism.Plugin {
		i := sdkInstance(b, p)
		sdkCaller(b, i, "check", policyInput)()
		return i
	}
	theirs := []*extism.Plugin{sdk()}
	before = resident(b)
	for range n {
		theirs = append(theirs, sdk())
	}
	other := resident(b) - before
	runtime.KeepAlive(theirs)
	b.ReportMetric(float64(mine)/n/1024, "KiB/this")
	b.ReportMetric(float64(other)/n/1024, "KiB/that")
	b.ReportMetric(float64(other)/float64(mine), "times-smaller(aim>20)")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkResidentC reports what a further live instance of a module in C takes: of the
// process, of Go's heap, of its stack and of its memory.
func BenchmarkResidentC(b *testing.B) {
	const n = 999
	m := load(b, newEngine(b), Spec{Wasm: cGuest(b)})
	one := func() *instance {
		i, err := m.take(context.Background(), "")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := i.call(context.Background(), &Invocation{Export: "check", Input: policyInput}); err != nil {
			b.Fatal(err)
		}
		i.restoreState()
		i.end()
		return i
	}
	all := []*instance{one()}
	var was, is runtime.MemStats
	debug.FreeOSMemory()
	before := resident(b)
	runtime.ReadMemStats(&was)
	for range n {
		all = append(all, one())
	}
	debug.FreeOSMemory()
	after := resident(b)
	runtime.ReadMemStats(&is)
	var stacks, memories int64
	for _, i := range all {
		stacks += residentOf(b, i.stack.buf)
		for _, p := range i.parts() {
			memories += residentOf(b, p.mem.buf)
		}
		i.close()
	}
	for unit, bytes := range map[string]int64{"KiB": after - before, "KiB-heap": int64(is.HeapAlloc - was.HeapAlloc), "KiB-stack": stacks, "KiB-memory": memories} {
		b.ReportMetric(float64(bytes)/n/1024, unit)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStart is what a start costs whose cache is warm: 50 modules of 3 MB,
// in Go, each different from the others.
func BenchmarkStart(b *testing.B) {
	const n = 50
	modules := make([][]byte, n)
	for i := range modules {
		name := fmt.Sprintf("number %2d", i)
		modules[i] = cat(built["kitchen"], []byte{0, byte(1 + len(name)), byte(len(name))}, []byte(name)) // a custom section
	}
	dir := b.TempDir()
	start := func() (cpu, wall time.Duration) {
		e, err := New(Config{CacheDir: dir, Compiler: compiler})
		if err != nil {
			b.Fatal(err)
		}
		defer e.Close()
		began, before := time.Now(), cpuTime(b)
		var loaded []*Module
		for _, code := range modules {
			m, err := e.Load(context.Background(), Spec{Wasm: code})
			if err != nil {
				b.Fatal(err)
			}
			loaded = append(loaded, m)
		}
		cpu, wall = cpuTime(b)-before, time.Since(began)
		for _, m := range loaded {
			m.Close()
		}
		return cpu, wall
	}
	start() // compiles
	var cpus, walls []time.Duration
	for range 5 {
		cpu, wall := start()
		cpus, walls = append(cpus, cpu), append(walls, wall)
	}
	slices.Sort(cpus)
	slices.Sort(walls)
	b.ReportMetric(cpus[2].Seconds(), "cpu-s(aim<3)")
	b.ReportMetric(walls[2].Seconds(), "s")
	b.ReportMetric(0, "ns/op")
}

// cpuTime is what this process and its children have used of all processors.
func cpuTime(b *testing.B) time.Duration {
	var sum int64
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += u.Utime.Nano() + u.Stime.Nano()
	}
	return time.Duration(sum)
}
