package host_test

import (
	"bufio"
	"encoding/json"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// busy is a daemon with 50 sessions, each with a connection of its own.
type busy struct {
	d     *hosttest.Daemon
	calls []*dialogue
	ids   []string
	took  []time.Duration
	cpu   time.Duration // of this process while run ran
}

func newBusy(b *testing.B) *busy {
	b.Helper()
	d := hosttest.Start(b, config.Config{})
	d.Tool(b, "echo", M{}, nil)
	s := &busy{d: d}
	for range 50 {
		s.ids, s.calls = append(s.ids, newSession(b, d.Socket)), append(s.calls, talk(b, d.Socket))
	}
	return s
}

// run has every session make calls, at the same time.
func (s *busy) run(b *testing.B, each int) {
	before := cpuTime(b)
	defer func() { s.cpu += cpuTime(b) - before }()
	var wait sync.WaitGroup
	var mu sync.Mutex
	for i, c := range s.calls {
		wait.Go(func() {
			for range each {
				begin := time.Now()
				raw, err := json.Marshal(M{"tool": "echo", "args": []string{"busy"}, "cwd": s.d.Root, "session": s.ids[i]})
				if err == nil {
					err = wire.WriteFrame(c.c, raw)
				}
				if err == nil {
					_, err = wire.ReadFrame(c.c)
				}
				took := time.Since(begin)
				if err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				s.took = append(s.took, took)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
}

// cpuTime is what this process, with its daemons and without what they run, has taken.
func cpuTime(b *testing.B) time.Duration {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

func (s *busy) at(part float64) float64 {
	slices.Sort(s.took)
	return float64(s.took[int(part*float64(len(s.took)-1))].Nanoseconds()) / 1e3
}

// rounds is what one kind of daemon took in each round, by part: 0.5 is the median.
type rounds map[float64][]float64

func (r rounds) add(s *busy) {
	for _, part := range []float64{0.5, 0.95} {
		r[part] = append(r[part], s.at(part))
	}
	s.took = nil
}

// median is the median of a/b over the rounds, of which both had the same machine.
func median(a, b rounds, part float64) float64 {
	var ratios []float64
	for i := range a[part] {
		ratios = append(ratios, a[part][i]/b[part][i])
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// BenchmarkWatched compares the latency of calls in 50 busy sessions that 200
// watchers watch, 20 of which never read, with that of a daemon without watchers, and
// that with another one without watchers: how far the last is from 1 is noise. Every
// round has all three, each time in another order.
func BenchmarkWatched(b *testing.B) {
	watched, alone, control := newBusy(b), newBusy(b), newBusy(b)
	var readers sync.WaitGroup
	defer readers.Wait()
	for i := range 200 {
		nc, err := net.Dial("unix", watched.d.Socket)
		if err != nil {
			b.Fatal(err)
		}
		defer nc.Close()
		raw, err := json.Marshal(M{"toolId": "session.watch", "executionId": newExecution(), "payload": M{"id": watched.ids[i%50]}, "stream": true})
		if err == nil {
			err = wire.WriteFrame(nc, raw)
		}
		if err == nil {
			_, err = wire.ReadFrame(nc)
		}
		if err != nil {
			b.Fatal(err)
		}
		if i%10 == 0 {
			continue // it never reads
		}
		readers.Go(func() {
			in := bufio.NewReader(nc)
			for {
				if _, err := wire.ReadFrame(in); err != nil {
					return
				}
			}
		})
	}
	const each = 4 // calls of a session in a round
	all := []*busy{watched, alone, control}
	for _, s := range all { // warm
		s.run(b, 2)
		s.took, s.cpu = nil, 0
	}
	took := map[*busy]rounds{watched: {}, alone: {}, control: {}}
	for b.Loop() {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, s := range all {
			s.run(b, each)
			took[s].add(s)
		}
	}
	for _, part := range []float64{0.5, 0.95} {
		name := "p" + strconv.Itoa(int(part*100))
		b.ReportMetric(median(took[watched], took[alone], part), name+"-watched/alone")
		b.ReportMetric(median(took[control], took[alone], part), name+"-control/alone")
	}
	calls := float64(len(watched.calls) * each * b.N)
	for name, s := range map[string]*busy{"watched": watched, "alone": alone, "control": control} {
		b.ReportMetric(float64(s.cpu.Microseconds())/calls, "cpu-µs/call-"+name)
	}
	b.ReportMetric(0, "ns/op") // of all together: says nothing
}
