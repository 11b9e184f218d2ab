package wasm

import (
	"context"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/tetratelabs/wazero/api"
)

// buildC compiles testdata/work.c, or skips the test where there is no clang with a linker for WebAssembly.
func buildC(t testing.TB) []byte {
	t.Helper()
	for _, tool := range []string{"clang", "wasm-ld"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the C guest was not built: %v", err)
		}
	}
	out := filepath.Join(t.TempDir(), "work.wasm")
	cmd := exec.Command("clang", "--target=wasm32", "-O2", "-msimd128", "-nostdlib", "-Wl,--no-entry", "-o", out,
		"testdata/work.c")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("the C guest was not built: %v\n%s", err, text)
	}
	module, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return module
}

// work is what an export does that takes a number of rounds.
type work struct {
	export string
	rounds uint64 // about 4 ms
}

var (
	goWork = []work{{"sha", 2}, {"rx", 400}, {"js", 50}, {"srt", 2}}
	cWork  = []work{{"sha", 5}, {"qsort", 1}, {"matrix", 3}, {"simd", 25}}
)

// sides instantiates a module as it is and rewritten.
func sides(t testing.TB, h *host, module []byte) (plain, metered api.Module) {
	t.Helper()
	plain, err := h.plain(module, "")
	if err != nil {
		t.Fatal(err)
	}
	metered, err = h.rewritten(mustRewrite(t, module), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []api.Module{plain, metered} {
		if m.ExportedFunction("_initialize") != nil {
			call(t, m, "_initialize")
		}
	}
	return plain, metered
}

func TestCGuest(t *testing.T) {
	h := newHost(t)
	plain, metered := sides(t, h, buildC(t))
	for _, w := range cWork {
		before := h.refills
		if p, m := call(t, plain, w.export, 1), call(t, metered, w.export, 1); !slices.Equal(p, m) {
			t.Errorf("%s gives %v plain and %v metered", w.export, p, m)
		}
		if h.refills == before {
			t.Errorf("%s used no fuel", w.export)
		}
	}
}

// BenchmarkMetering gives the time of metered work over that of the same work as it was, each the median of calls that
// take turns, and the nanoseconds that a unit of fuel took.
func BenchmarkMetering(b *testing.B) {
	for _, guest := range []struct {
		name   string
		module func(testing.TB) []byte
		work   []work
	}{{"go", goGuestModule, goWork}, {"c", buildC, cWork}} {
		b.Run(guest.name, func(b *testing.B) {
			h := newHost(b).withWASI()
			plain, metered := sides(b, h, guest.module(b))
			product, n := 1.0, 0
			for _, w := range guest.work {
				b.Run(w.export, func(b *testing.B) {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					run := func(m api.Module) float64 {
						f := m.ExportedFunction(w.export)
						start := cpuTime()
						if _, err := f.Call(context.Background(), w.rounds); err != nil {
							b.Fatal(err)
						}
						return float64(cpuTime() - start)
					}
					run(plain)
					run(metered)
					before := h.given
					var p, m, ratios []float64
					for range 60 * b.N {
						p, m = append(p, run(plain)), append(m, run(metered))
						ratios = append(ratios, m[len(m)-1]/p[len(p)-1])
					}
					used := float64(h.given-before) / float64(len(m))
					slices.Sort(p)
					slices.Sort(m)
					slices.Sort(ratios)
					least := m[0] / p[0]
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(ratios[len(ratios)/2], "median-ratio")
					b.ReportMetric(least, "least-ratio")
					b.ReportMetric(m[0]/used, "ns/unit")
					b.ReportMetric(p[0]/1e6, "plain-ms")
					product, n = product*least, n+1
				})
			}
			if n > 0 {
				b.Logf("geometric mean of the ratios of the least times: %.3f", math.Pow(product, 1/float64(n)))
			}
		})
	}
}
