package host_test

import (
	"bufio"
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

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

func (s *busy) at(part float64) float64 {
	slices.Sort(s.took)
	return float64(s.took[int(part*float64(len(s.took)-1))].Nanoseconds()) / 1e3
}

// BenchmarkWatched compares the latency of calls in 50 busy sessions that 200
// watchers watch, 20 of which never read, with that of a daemon without watchers,
// in turn.
func BenchmarkWatched(b *testing.B) {
	watched, alone := newBusy(b), newBusy(b)
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
	for _, s := range []*busy{watched, alone} { // warm
		s.run(b, 2)
		s.took = nil
	}
	for b.Loop() {
		watched.run(b, 2)
		alone.run(b, 2)
	}
	for _, part := range []float64{0.5, 0.95} {
		w, a := watched.at(part), alone.at(part)
		name := "p" + strconv.Itoa(int(part*100))
		b.ReportMetric(w, name+"-watched-µs")
		b.ReportMetric(a, name+"-alone-µs")
		b.ReportMetric(w/a, name+"-ratio")
	}
	b.ReportMetric(0, "ns/op") // of both together: says nothing
}
