package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/sigv4"
	"github.com/toold/toold/pdk/abi"
)

// A body that does not come in time is not waited for: one that stops, and one that
// comes a byte at a time.
func TestHeldInTime(t *testing.T) {
	for name, tt := range map[string]struct {
		every, took time.Duration
	}{
		"stopped": {time.Hour, heldIdle},
		"slow":    {heldIdle - time.Second, heldTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &holding{run: &run{gate: &Gate{}}}
				r, w := net.Pipe()
				over := make(chan struct{})
				defer close(over)
				go func() {
					defer w.Close()
					for range 20 {
						if _, err := w.Write([]byte("x")); err != nil {
							return
						}
						select {
						case <-time.After(tt.every):
						case <-over:
							return
						}
					}
				}()
				start := time.Now()
				_, err := h.hold(r, func(at time.Time) { r.SetReadDeadline(at) })
				if took := time.Since(start); !errors.Is(err, errHeldSlow) || took != tt.took {
					t.Errorf("%v after %v, want it after %v", err, took, tt.took)
				}
				r.Close()
				h.end()
				if n := h.run.gate.held.Load(); n != 0 {
					t.Errorf("%d bytes are counted", n)
				}
			})
		})
	}
}

// signing starts a run whose requests to u are signed, without TLS, and returns what
// sends the begin of a request with a body of size, of which the rest does not come.
// All answers come from one channel.
func signing(t *testing.T, gate *Gate, u *upstream) (stall func(sent, size int) (answered <-chan *http.Response)) {
	t.Helper()
	host := fmt.Sprintf("localhost:%d", u.address().Port())
	sign, err := sigv4.New("dynamodb", "eu-central-1", "AKIDEXAMPLE:wJalrXUtnFEMI")
	if err != nil {
		t.Fatal(err)
	}
	rules := ParseRules([]string{host})
	rules.HTTP = &HTTP{Hosts: []string{host}, Credentials: []Credential{{Host: host, Sign: sign, Plain: true}}}
	_, connect := startAt(t, gate, rules, nil)
	answered := make(chan *http.Response, maxOpen)
	return func(sent, size int) <-chan *http.Response {
		c, errno := connect(u.address())
		if errno != 0 {
			t.Fatal(errno)
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", host, size)
			piece := strings.Repeat("x", 64<<10)
			for ; sent > 0; sent -= len(piece) {
				if _, err := io.WriteString(c, piece[:min(len(piece), sent)]); err != nil {
					return
				}
			}
		}()
		go func() {
			resp, _ := http.ReadResponse(bufio.NewReader(c), nil)
			answered <- resp
		}()
		return answered
	}
}

// Whatever runs send of bodies that have to be hashed, and then do not go on: memory is
// bounded, and another run has its requests signed.
func TestStalledBodiesLeaveRoom(t *testing.T) {
	const sent, size = 4 << 20, 8 << 20
	u := newUpstream(t, false, nil)
	gate := &Gate{}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	good := signing(t, gate, u)
	refused := 0
	for range 6 {
		stall, others := signing(t, gate, u), gate.held.Load()
		for full := false; !full; {
			had := gate.held.Load()
			answered := stall(sent, size)
			for !full && gate.held.Load() < had+sent {
				select {
				case resp := <-answered:
					if resp == nil || resp.StatusCode != http.StatusServiceUnavailable {
						t.Fatalf("answered %+v", resp)
					}
					full = true
					refused++
				case <-time.After(time.Millisecond):
				}
			}
		}
		if held := gate.held.Load(); held > maxHeldAll || held-others > maxHeldRun {
			t.Fatalf("%d bytes are held, %d of one run", held, held-others)
		}
		// More than what is left to each of the six is in no request.
		if resp := <-good(256<<10, 256<<10); resp == nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("beside %d bytes that are held, a request is answered %+v", gate.held.Load(), resp)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > maxHeldAll+32<<20 || refused != 6 {
		t.Errorf("the process has %d MiB more, %d were refused", grown>>20, refused)
	}
}

// A body that stops is answered, and no longer held, while the run goes on: of a
// request that is signed, and of a push.
func TestStalledBodyIsAnswered(t *testing.T) {
	if os.Getenv("TOOLD_SLOW") == "" {
		t.Skip("takes 10 s; make aws runs it")
	}
	u := newUpstream(t, false, nil)
	gate := &Gate{}
	signed := signing(t, gate, u)(1<<20, 2<<20)
	host := fmt.Sprintf("localhost:%d", u.address().Port())
	rules := ParseRules([]string{host})
	rules.HTTP = &HTTP{Hosts: []string{host}}
	rules.Ask = func(context.Context, *abi.Wire) error { return nil }
	_, connect := startAt(t, gate, rules, nil)
	c, errno := connect(u.address())
	if errno != 0 {
		t.Fatal(errno)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST /r.git/git-receive-pack HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-git-receive-pack-request\r\nContent-Length: 1000\r\n\r\n00", host)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a push is answered %+v, %v", resp, err)
	}
	if resp := <-signed; resp == nil || resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("answered %+v", resp)
	}
	if n := gate.held.Load(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}
