package host_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// swaps is how many versions TestSwapUnderLoad drops in: enough to meet every
// moment of a call. The soak target runs more of them.
func swaps(t *testing.T) int {
	if s := os.Getenv("TOOLD_SWAPS"); s != "" {
		var n int
		if _, err := fmt.Sscan(s, &n); err != nil {
			t.Fatalf("TOOLD_SWAPS=%q: %v", s, err)
		}
		return n
	}
	return 20
}

// versions makes modules that differ only in the version that they answer.
func stamp(t *testing.T, module []byte, n int) []byte {
	t.Helper()
	mark := []byte("version-000000")
	if bytes.Count(module, mark) != 1 {
		t.Fatalf("the module holds its version %d times", bytes.Count(module, mark))
	}
	return bytes.Replace(module, mark, fmt.Appendf(nil, "version-%06d", n), 1)
}

// Versions are swapped under clients that call all the time: no call fails,
// and each is answered by a policy and a handler of one version.
func TestSwapUnderLoad(t *testing.T) {
	n := swaps(t)
	policy, err := os.ReadFile(hosttest.Guest(t, policyPkg))
	if err != nil {
		t.Fatal(err)
	}
	handler, err := os.ReadFile(hosttest.Guest(t, handlerPkg))
	if err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, config.Config{})
	dir := t.TempDir()
	drop := func(v int) {
		mods := map[string]string{}
		for name, m := range map[string][]byte{"restricted.wasm": policy, "handler.wasm": handler} {
			mods[name] = filepath.Join(dir, name)
			if err := os.WriteFile(mods[name], stamp(t, m, v), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		d.Tool(t, "swapped", granted, mods)
	}
	drop(1)

	var calls, newest atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	client := func() {
		defer wg.Done()
		c, err := net.Dial("unix", d.Socket)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		req, _ := json.Marshal(M{"tool": "swapped", "args": []string{"policy-version"}, "cwd": d.Root})
		for !stop.Load() {
			if err := wire.WriteFrame(c, req); err != nil {
				t.Error(err)
				return
			}
			raw, err := wire.ReadFrame(c)
			if err != nil {
				t.Error(err)
				return
			}
			var a answer
			if err := json.Unmarshal(raw, &a); err != nil || a.ExitCode != 0 {
				t.Errorf("a call failed during a swap: %s", raw)
				return
			}
			p, h, _ := strings.Cut(a.Stdout, " ")
			if p != h || !strings.HasPrefix(p, "version-") {
				t.Errorf("policy and handler are of two versions: %q", a.Stdout)
				return
			}
			var v int64
			fmt.Sscanf(p, "version-%d", &v)
			for {
				was := newest.Load()
				if v <= was || newest.CompareAndSwap(was, v) {
					break
				}
			}
			calls.Add(1)
		}
	}
	for range 8 {
		wg.Add(1)
		go client()
	}
	var before runtime.MemStats
	for v := 2; v <= n+1; v++ {
		drop(v)
		deadline := time.Now().Add(60 * time.Second)
		for newest.Load() < int64(v) && !t.Failed() {
			if time.Now().After(deadline) {
				t.Errorf("version %d does not serve after a minute; %d does", v, newest.Load())
				break
			}
			runtime.Gosched()
		}
		if t.Failed() {
			break
		}
		if v == n/2+1 {
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
	}
	stop.Store(true)
	wg.Wait()
	runtime.GC()
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	t.Logf("%d swaps under 8 clients, %d calls; heap %d KiB halfway, %d KiB at the end", n, calls.Load(), before.HeapAlloc>>10, after.HeapAlloc>>10)
	if after.HeapAlloc > before.HeapAlloc+64<<20 {
		t.Errorf("the heap grew from %d to %d bytes over the second half", before.HeapAlloc, after.HeapAlloc)
	}
}

// A version that does not load leaves the one that serves in its place.
func TestBrokenVersionNeverServes(t *testing.T) {
	d := testDaemon(t)
	run := func() *answer { return ask(t, d.Socket, M{"tool": "guarded", "args": []string{"x"}, "cwd": d.Root}) }
	if a := run(); a.ExitCode != 0 {
		t.Fatalf("%s", a.raw)
	}
	good, err := os.ReadFile(filepath.Join(d.Config.Tools, "guarded", "restricted.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"empty": {}, "truncated": good[:len(good)/2], "text": []byte("not wasm"), "only the magic": good[:8]} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(d.Config.Tools, "guarded", "restricted.wasm")
			if err := os.WriteFile(path, bad, 0o644); err != nil {
				t.Fatal(err)
			}
			waitState(t, d, "guarded", "stale")
			if a := run(); a.ExitCode != 0 {
				t.Errorf("the old version does not serve: %s", a.raw)
			}
			if a := ask(t, d.Socket, M{"tool": "guarded", "args": []string{"deny"}, "cwd": d.Root}); a.Code != "DENIED" {
				t.Errorf("the old policy does not decide: %s", a.raw)
			}
			if err := os.WriteFile(path, good, 0o644); err != nil {
				t.Fatal(err)
			}
			waitState(t, d, "guarded", "ok")
		})
	}
	// Where there is no old version the tool is refused, never unrestricted.
	bad := filepath.Join(t.TempDir(), "bad.wasm")
	if err := os.WriteFile(bad, []byte("not wasm"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.Tool(t, "new", M{"binary": "/bin/echo"}, map[string]string{"restricted.wasm": bad})
	if a := ask(t, d.Socket, M{"tool": "new", "args": []string{"ran"}, "cwd": d.Root}); a.Code != "TOOL_BROKEN" || a.Stdout != "" {
		t.Errorf("a tool whose policy does not load: %s", a.raw)
	}
	// A policy that goes away does not leave the tool without one.
	if err := os.Remove(filepath.Join(d.Config.Tools, "printf", "restricted.wasm")); err != nil {
		t.Fatal(err)
	}
	waitState(t, d, "printf", "stale", "broken")
	if a := ask(t, d.Socket, M{"tool": "printf", "args": []string{"deny"}, "cwd": d.Root}); a.ExitCode == 0 {
		t.Errorf("without its policy: %s", a.raw)
	}
}
