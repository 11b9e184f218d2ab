package examples_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/plugin"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/toolchain"
)

// BenchmarkGreet measures greet in each language whose compiler is here: the
// size of the module, what loading it takes, a call that is brought back in
// place, one in an instance of its own, and the fuel. With TOOLD_COSTS set (make
// bench) the table of the manual is written anew, when all languages are here.
func BenchmarkGreet(b *testing.B) {
	handle := &plugin.Case{Call: []byte(`{"tool":"greet","args":["Ada"],"cwd":"/workspace","attempt":1,"caller":"c"}`),
		Result: &abi.Result{Stdout: "Hello, Ada!\n", Data: []byte(`{"greeting":"Hello, Ada!"}`)}}
	restrict := &plugin.Case{Call: handle.Call, Decision: &abi.Decision{Effect: "allow", Args: []string{"Ada"}}}
	var rows []string
	for _, l := range toolchain.Languages() {
		compiler, err := toolchain.Find(b.Context(), l, ".")
		if err != nil {
			b.Log(err)
			continue
		}
		b.Setenv("PATH", filepath.Dir(compiler)+string(filepath.ListSeparator)+os.Getenv("PATH"))
		dir := filepath.Join(b.TempDir(), "greet")
		install(b, string(l), dir)
		for _, c := range []*plugin.Case{handle, restrict} {
			measure := func(way string) *plugin.Measurement {
				b.Setenv("TOOLD_GUEST_RESTORE", way)
				m, err := plugin.Bench(b.Context(), dir, "", c, 3000)
				if err != nil {
					b.Fatal(err)
				}
				return m
			}
			fresh, m := measure("image"), measure("")
			name := string(l) + "/" + strings.TrimSuffix(filepath.Base(m.File), ".wasm")
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(m.Size), "bytes")
				b.ReportMetric(m.LoadMS, "load-ms")
				b.ReportMetric(m.P50US, "restored-us")
				b.ReportMetric(fresh.P50US, "instance-us")
				b.ReportMetric(float64(m.Fuel), "fuel")
			})
			kind := map[bool]string{true: "handler", false: "policy"}[c == handle]
			rows = append(rows, fmt.Sprintf("| %s, %s | %s | %.0f ms | %.1f µs | %.1f µs | %.0f µs | %d | %d |",
				l, kind, bytesOf(m.Size), m.LoadMS, m.P50US, m.P99US, fresh.P50US, m.Fuel, m.Pages))
		}
	}
	if os.Getenv("TOOLD_COSTS") == "" || len(rows) < 2*len(toolchain.Languages()) {
		return
	}
	const file = "../docs/plugins.md"
	text, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	before, rest, ok := bytes.Cut(text, []byte("<!-- costs -->\n"))
	_, after, ok2 := bytes.Cut(rest, []byte("<!-- end of costs -->\n"))
	if !ok || !ok2 {
		b.Fatal("docs/plugins.md has no place for the table")
	}
	table := fmt.Sprintf("| greet in | size | load | call p50 | call p99 | p50 in a new instance | fuel | pages |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n%s\n\n%s, %s/%s, %d processors.\n",
		strings.Join(rows, "\n"), time.Now().Format("January 2006"), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if err := os.WriteFile(file, []byte(string(before)+"<!-- costs -->\n"+table+"<!-- end of costs -->\n"+string(after)), 0o644); err != nil {
		b.Fatal(err)
	}
}

func bytesOf(n int) string {
	if n < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
