package host_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// A hundred megabytes of random bytes go through cat and come back as they
// were, and the daemon holds no more of them than the flow control lets it.
func TestStreamIsBinarySafeAndFlat(t *testing.T) {
	const size = 100 << 20
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "cat", M{"binary": "/bin/cat"}, nil)
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	var most atomic.Uint64
	watch := func(n int64) {
		if n%(4<<20) < 1<<15 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapAlloc))
		}
	}
	in, out := sha256.New(), sha256.New()
	random := rand.NewChaCha8([32]byte{1})
	var got int64
	res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "cat", Cwd: d.Root}, wire.Local{
		Stdin:  io.TeeReader(io.LimitReader(random, size), in),
		Stdout: writer(func(p []byte) { out.Write(p); got += int64(len(p)); watch(got) }),
		Stderr: os.Stderr,
	})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if got != size || !bytes.Equal(in.Sum(nil), out.Sum(nil)) {
		t.Errorf("%d of %d bytes came back, the same: %v", got, size, bytes.Equal(in.Sum(nil), out.Sum(nil)))
	}
	t.Logf("heap of daemon and client together: %d KiB before, %d KiB at the most", before.HeapAlloc>>10, most.Load()>>10)
	if most.Load() > before.HeapAlloc+32<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before.HeapAlloc, most.Load())
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// A caller that stops reading ends its tool, at once.
func TestCallerThatLeavesEndsItsTool(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "yes", M{"binary": "/usr/bin/yes"}, nil)
	mark := "left-" + strconv.Itoa(os.Getpid())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "yes", Args: []string{mark}, Cwd: d.Root}, wire.Local{Stdout: w, Stderr: io.Discard})
		done <- err
	}()
	line := make([]byte, len(mark)+1)
	if _, err := io.ReadFull(r, line); err != nil || strings.TrimSpace(string(line)) != mark {
		t.Fatalf("%q, %v", line, err)
	}
	r.Close() // as head does
	if err := <-done; err == nil {
		t.Error("the end of the caller's output is no error")
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		left := processesWith(t, mark)
		if left == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still running: %v", left)
		}
		runtime.Gosched()
	}
}

// A call that a signal ends says so, and a policy can withhold the input.
func TestSignalsAndInput(t *testing.T) {
	d := testDaemon(t)
	signals := make(chan os.Signal, 1)
	d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, nil)
	interrupt := func(tool string, args ...string) *wire.Result {
		var out bytes.Buffer
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: tool, Args: args, Cwd: d.Root}, wire.Local{
			Stdout: writer(func(p []byte) {
				out.Write(p)
				if out.String() == "up\n" {
					signals <- os.Interrupt
				}
			}),
			Stderr: io.Discard, Signals: signals,
		})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := interrupt("sh", "-c", "echo up; exec sleep 100"); res.ExitCode != 130 {
		t.Errorf("a binary that is interrupted: %+v", res)
	}
	// A module has no signals: the first one ends it. Its fuel is not to run
	// out before the signal comes.
	endless := maps.Clone(granted)
	endless["limits"] = M{"fuel": int64(1e12)}
	d.Tool(t, "endless", endless, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	if res := interrupt("endless", "up-and-loop"); res.ExitCode != 130 || res.Err == nil || res.Err.Code != fault.Aborted {
		t.Errorf("a module that is interrupted: %+v", res)
	}
	asked := false
	res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "cat", Args: []string{"no-stdin"}, Cwd: d.Root}, wire.Local{
		Stdin:  reader(func() { asked = true }),
		Stdout: writer(func(p []byte) { t.Errorf("cat printed %q", p) }),
		Stderr: io.Discard,
	})
	if err != nil || res.ExitCode != 0 || asked {
		t.Errorf("input was asked for: %v; %+v, %v", asked, res, err)
	}
}

type reader func()

func (r reader) Read([]byte) (int, error) { r(); return 0, fmt.Errorf("nothing to read") }
