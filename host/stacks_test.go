package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// diver is a module whose run calls itself through a table, without an end.
// Each of these lines is a section.
var diver = slices.Concat([]byte("\x00asm\x01\x00\x00\x00"),
	[]byte{1, 8, 2, 0x60, 0, 1, 0x7f, 0x60, 0, 0}, // types: () -> i32 and () -> ()
	[]byte{3, 3, 2, 0, 1},                         // functions: run, and what goes down
	[]byte{4, 4, 1, 0x70, 0, 1},                   // a table of one function
	[]byte{5, 3, 1, 0, 1},                         // a memory of one page
	append([]byte{7, 16, 2, 3}, "run\x00\x00\x06memory\x02\x00"...),
	[]byte{9, 7, 1, 0, 0x41, 0, 0x0b, 1, 1}, // the table's function is what goes down
	[]byte{10, 16, 2,
		6, 0, 0x10, 1, 0x41, 0, 0x0b, // run: call 1, i32.const 0
		7, 0, 0x41, 0, 0x11, 1, 0, 0x0b}, // i32.const 0, call_indirect
)

// peakDuring is by how many bytes the resident memory of this process, which is
// the daemon's, was higher while f ran, at most, than before.
func peakDuring(t *testing.T, f func()) int64 {
	t.Helper()
	status := func(field string) (kb int64) {
		p, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Skip(err)
		}
		_, rest, _ := strings.Cut(string(p), field+":")
		if n, err := fmt.Sscan(rest, &kb); n != 1 {
			t.Fatalf("%s of this process: %v", field, err)
		}
		return kb << 10
	}
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		t.Skip("the peak of this process cannot be set back: ", err)
	}
	before := status("VmRSS")
	f()
	return status("VmHWM") - before
}

// 32 guests at once that recurse without an end end with an error each, and the
// daemon takes no more memory than guest_memory allows, and what 32 calls take
// beside. With stacks that nobody accounts for it took gigabytes.
func TestStacksOfManyGuests(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector takes memory of its own")
	}
	const (
		all    = 64 << 20
		guests = 32
		rounds = 3
		// Connections, goroutines, threads and garbage of 32 calls.
		beside = 64 << 20
	)
	module := filepath.Join(t.TempDir(), "diver.wasm")
	if err := os.WriteFile(module, diver, 0o644); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, config.Config{GuestMemory: all})
	for _, tt := range []struct {
		memory string
		codes  []string
	}{
		// One whose own stack is at its end is trapped. One that finds all
		// memory taken is refused, also in the middle.
		{"1MiB", []string{"GUEST_TRAP", "OVERLOADED"}},
		{"64MiB", []string{"GUEST_TRAP", "OVERLOADED"}},
	} {
		t.Run(tt.memory, func(t *testing.T) {
			name := "diver-" + strings.ToLower(tt.memory)
			d.Tool(t, name, M{"limits": M{"memory": tt.memory, "concurrency": guests}, "entry": M{"export": "run", "input": "stdin", "output": "stdout"}},
				map[string]string{"handler.wasm": module})
			call := M{"tool": name, "cwd": d.Root}
			if a := ask(t, d.Socket, call); !slices.Contains(tt.codes, a.Code) || a.message() == "" {
				t.Fatalf("one alone: %s", a.raw)
			}
			var (
				mu   sync.Mutex
				ends = map[string]int{}
			)
			peak := peakDuring(t, func() {
				for range rounds {
					var calls sync.WaitGroup
					start := make(chan struct{})
					for range guests {
						c := talk(t, d.Socket)
						calls.Go(func() {
							<-start
							a := c.ask(call)
							mu.Lock()
							defer mu.Unlock()
							ends[a.Code]++
						})
					}
					close(start)
					calls.Wait()
				}
			})
			n := 0
			for code, count := range ends {
				if n += count; !slices.Contains(tt.codes, code) {
					t.Errorf("%d calls ended with %q", count, code)
				}
			}
			if n != rounds*guests {
				t.Errorf("%d calls ended, want %d", n, rounds*guests)
			}
			if peak > all+beside {
				t.Errorf("%d calls at once took %d MiB, want %d at most", guests, peak>>20, (all+beside)>>20)
			}
			t.Logf("%v, %d MiB", ends, peak>>20)
		})
	}
}
