package host_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// Growth that a soak admits between its second quarter and its last.
const (
	soakClients    = 6
	soakMemory     = 1.25 // times
	soakMemoryMore = 16 << 20
	soakFiles      = 12
	soakGoroutines = 24
	soakLatency    = 3 // times, at the 95th percentile; the machine is shared
	// soakPace is between two calls of a client. What is looked for grows with calls,
	// not with the load of the machine, which would hide it.
	soakPace = 50 * time.Millisecond
)

// sample is what a daemon used at one moment, and the calls that ended since the one
// before.
type sample struct {
	at              time.Duration
	memory          int64
	files, routines int
	calls           int
	latency         []time.Duration // of echo, sorted
}

// TestSoak runs mixed traffic with faults against one daemon for TOOLD_SOAK, and fails
// if memory, descriptors, goroutines or latency grow. make soak runs it.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("TOOLD_SOAK"))
	if err != nil {
		t.Skip("TOOLD_SOAK is not a duration; make soak")
	}
	p := hosttest.StartProcess(t, config.Config{Reliability: "all"})
	write := func(name string, n int) {
		hosttest.WriteTool(t, p.Tools, name, soakTools[name](n), nil)
	}
	for name := range soakTools {
		write(name, 0)
	}
	hosttest.WriteTool(t, p.Tools, "handler", M{"capabilities": M{"exec": []string{"/bin/true"}, "state": 1, "http": M{"hosts": []string{"nowhere.example"}}}}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	admin := client.NewAdmin(p.Admin)
	status, err := admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"echo", "wait", "dies", "handler"} {
		// A call waits for its tool.
		res, err := client.Call(t.Context(), p.Socket, &wire.Call{Tool: name, Args: []string{"0"}, Cwd: p.Root})
		if err != nil || res.Err != nil {
			t.Fatalf("tool %s does not serve: %v, %v", name, err, res)
		}
	}

	// Cancelled, and not with a deadline: a dial would fail by it just before ctx ends.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer time.AfterFunc(length, cancel).Stop()
	var mu sync.Mutex
	var latency []time.Duration
	calls := 0
	var wrong []string
	var work sync.WaitGroup
	for c := range soakClients {
		work.Go(func() {
			pace := time.NewTicker(soakPace)
			defer pace.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				select {
				case <-ctx.Done():
					return
				case <-pace.C:
				}
				began := time.Now()
				what, err := soakCall(ctx, p, c, i)
				mu.Lock()
				calls++
				if what == "echo" && err == nil {
					latency = append(latency, time.Since(began))
				}
				if err != nil && ctx.Err() == nil && len(wrong) < 10 {
					wrong = append(wrong, what+": "+err.Error())
				}
				mu.Unlock()
			}
		})
	}
	var samples []sample
	every := max(length/60, time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	begin := time.Now()
	for n := 1; ctx.Err() == nil; n++ {
		select {
		case <-ctx.Done():
			continue
		case <-tick.C:
		}
		// The faults of the operator: a new version, and one that does not load.
		write("echo", n)
		if n%3 == 0 {
			broken := filepath.Join(p.Tools, "broken")
			os.Mkdir(broken, 0o755)
			os.WriteFile(filepath.Join(broken, "tool.json"), []byte(strings.Repeat("{", n%5+1)), 0o644)
		}
		s := usage(t, p.Admin, status.PID)
		s.at = time.Since(begin).Round(time.Second)
		mu.Lock()
		s.calls, s.latency = calls, latency
		calls, latency = 0, nil
		mu.Unlock()
		slices.Sort(s.latency)
		samples = append(samples, s)
	}
	work.Wait()
	for _, w := range wrong {
		t.Errorf("a call went wrong: %s", w)
	}
	var table strings.Builder
	table.WriteString("\n| after | calls/s | memory MiB | descriptors | goroutines | p50 | p95 |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for i, s := range samples {
		if i%max(len(samples)/15, 1) == 0 || i == len(samples)-1 {
			fmt.Fprintf(&table, "| %v | %.0f | %.1f | %d | %d | %v | %v |\n", s.at, float64(s.calls)/every.Seconds(), float64(s.memory)/(1<<20), s.files, s.routines,
				s.percentile(50).Round(100*time.Microsecond), s.percentile(95).Round(100*time.Microsecond))
		}
	}
	t.Log(table.String())
	if plot := os.Getenv("TOOLD_SOAK_PLOT"); plot != "" {
		if err := os.WriteFile(plot, soakPlot(samples, every), 0o644); err != nil {
			t.Error(err)
		}
	}
	if q := len(samples) / 4; q > 0 {
		for _, fault := range grown(samples[q:2*q], samples[3*q:]) {
			t.Error(fault)
		}
	} else {
		t.Errorf("%d samples say nothing; let it run for longer", len(samples))
	}
}

// soakTools are definitions that the soak replaces while they are called.
var soakTools = map[string]func(version int) M{
	"echo": func(n int) M { return M{"binary": "/bin/echo", "description": fmt.Sprint("version ", n)} },
	"wait": func(int) M { return M{"binary": "/bin/sleep"} },
	"dies": func(int) M { return M{"binary": "/bin/sh", "limits": M{"concurrency": 4}} },
}

// soakCall makes one call, chosen by chance, and checks its answer.
func soakCall(ctx context.Context, p *hosttest.Process, c, i int) (what string, err error) {
	call := &wire.Call{Cwd: p.Root}
	text := fmt.Sprintf("%d-%d", c, i)
	switch n := rand.IntN(20); {
	case n < 12:
		call.Tool, call.Args = "echo", []string{text}
		res, err := client.Call(ctx, p.Socket, call)
		if err == nil && string(res.Stdout) != text+"\n" {
			err = fmt.Errorf("answered %q, %v", res.Stdout, res.Err)
		}
		return "echo", err
	case n < 16:
		call.Tool, call.Args = "handler", []string{text}
		res, err := client.Call(ctx, p.Socket, call)
		if err == nil && string(res.Stdout) != text {
			err = fmt.Errorf("answered %q, %v", res.Stdout, res.Err)
		}
		return "handler", err
	case n < 18: // its caller leaves
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		call.Tool, call.Args = "wait", []string{"60"}
		if _, err := client.Call(ctx, p.Socket, call); err == nil {
			return "wait", errors.New("a call of a minute ended at once")
		}
		return "wait", nil
	default: // its process is killed
		call.Tool, call.Args = "dies", []string{"-c", "kill -9 $$"}
		res, err := client.Call(ctx, p.Socket, call)
		if err == nil && res.ExitCode == 0 {
			err = errors.New("a killed process succeeded")
		}
		return "dies", err
	}
}

// usage is what the daemon uses now.
func usage(t *testing.T, admin string, pid int) (s sample) {
	t.Helper()
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	text, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			s.memory = kib << 10
		}
	}
	files, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	s.files = len(files)
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", admin)
	}}
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://toold/debug/pprof/goroutine?debug=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Sscanf(string(text), "goroutine profile: total %d", &s.routines)
	if s.memory == 0 || s.routines == 0 {
		t.Fatalf("no usage is read of the daemon: %+v", s)
	}
	return s
}

func (s *sample) percentile(n int) time.Duration {
	if len(s.latency) == 0 {
		return 0
	}
	return s.latency[(len(s.latency)-1)*n/100]
}

// grown says what is more in late than in early. Medians, as a sample may fall into a
// garbage collection or a burst of calls.
func grown(early, late []sample) (faults []string) {
	check := func(what string, limit func(float64) float64, of func(*sample) float64) {
		median := func(list []sample) float64 {
			var v []float64
			for i := range list {
				v = append(v, of(&list[i]))
			}
			slices.Sort(v)
			return v[len(v)/2]
		}
		if a, b := median(early), median(late); b > limit(a) {
			faults = append(faults, fmt.Sprintf("%s grew from %.1f to %.1f", what, a, b))
		}
	}
	check("memory", func(v float64) float64 { return v*soakMemory + soakMemoryMore }, func(s *sample) float64 { return float64(s.memory) })
	check("descriptors", func(v float64) float64 { return v + soakFiles }, func(s *sample) float64 { return float64(s.files) })
	check("goroutines", func(v float64) float64 { return v + soakGoroutines }, func(s *sample) float64 { return float64(s.routines) })
	check("latency (ms)", func(v float64) float64 { return v * soakLatency }, func(s *sample) float64 { return float64(s.percentile(95)) / 1e6 })
	return faults
}

// TestSoakSeesGrowth: what the soak is for would be noticed.
func TestSoakSeesGrowth(t *testing.T) {
	flat := sample{memory: 100 << 20, files: 30, routines: 60, latency: []time.Duration{10 * time.Millisecond}}
	if faults := grown([]sample{flat, flat}, []sample{flat, flat}); faults != nil {
		t.Errorf("nothing grew: %v", faults)
	}
	for what, grow := range map[string]func(*sample){
		"memory":      func(s *sample) { s.memory *= 2 },
		"descriptors": func(s *sample) { s.files += 20 },
		"goroutines":  func(s *sample) { s.routines += 40 },
		"latency":     func(s *sample) { s.latency = []time.Duration{50 * time.Millisecond} },
	} {
		late := flat
		grow(&late)
		if faults := grown([]sample{flat}, []sample{late, late}); len(faults) != 1 || !strings.HasPrefix(faults[0], what) {
			t.Errorf("%s: %v", what, faults)
		}
	}
}
