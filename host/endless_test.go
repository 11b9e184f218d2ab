package host_test

import (
	"encoding/json"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// BenchmarkBesideEndless is a call of a module over the socket beside eight others
// that compute without end, against the same while none does, in turns: the
// medians, and the slowest hundredth of each.
func BenchmarkBesideEndless(b *testing.B) {
	p := hosttest.StartProcess(b, config.Config{})
	handler := map[string]string{"handler.wasm": hosttest.Guest(b, handlerPkg)}
	hosttest.WriteTool(b, p.Tools, "short", granted, handler)
	endless := maps.Clone(granted)
	endless["limits"], endless["timeout"] = M{"fuel": int64(1e15)}, "1h"
	hosttest.WriteTool(b, p.Tools, "endless", endless, handler)
	call := over(b, p.Socket, M{"tool": "short", "args": []string{"policy-version"}, "cwd": p.Root})
	call(b)
	took := map[string][]time.Duration{}
	measure := func(name string) {
		for range 200 {
			began := time.Now()
			call(b)
			took[name] = append(took[name], time.Since(began))
		}
	}
	for b.Loop() {
		measure("alone")
		var open []net.Conn
		for range 8 {
			open = append(open, begin(b, p, "endless", "up-and-loop"))
		}
		measure("beside")
		for _, c := range open {
			c.Close()
		}
	}
	part := func(name string, of float64) float64 {
		slices.Sort(took[name])
		return float64(took[name][int(of*float64(len(took[name])))].Nanoseconds()) / 1e3
	}
	for _, name := range []string{"alone", "beside"} {
		b.ReportMetric(part(name, 0.5), name+"-µs")
		b.ReportMetric(part(name, 0.99), name+"-p99-µs")
	}
	b.ReportMetric(part("beside", 0.5)/part("alone", 0.5), "ratio")
	b.ReportMetric(0, "ns/op") // of both sides together: says nothing
}

// begin makes a call and returns when its first output is there.
func begin(t testing.TB, p *hosttest.Process, tool string, args ...string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", p.Socket)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := json.Marshal(M{"tool": tool, "args": args, "cwd": p.Root, "stream": true})
	if err == nil {
		err = wire.WriteFrame(c, frame)
	}
	if err == nil {
		_, err = wire.ReadFrame(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}
