package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
)

// TestPolicyWaitsForNoModule: a new policy is in force while as many tools are
// compiled as there may be; a new module waits, and its tool says so.
func TestPolicyWaitsForNoModule(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("1")), "t/restricted.wasm": string(policy("old"))})
	b.open()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range maxLoads {
		b.c.loader.modules <- struct{}{}
	}
	since := b.status("t").PolicySince[0]
	b.write(map[string]string{"t/restricted.wasm": string(policy("new"))})
	sum := sha256.Sum256(policy("new"))
	if err := b.c.Await(ctx, "t", hex.EncodeToString(sum[:])); err != nil {
		t.Fatal(err)
	}
	b.is("t", "new | 1")
	s := b.status("t")
	if !s.PolicySince[0].After(since) {
		t.Errorf("in force since %v, and the one before it since %v", s.PolicySince[0], since)
	}

	b.write(map[string]string{"t/handler.wasm": string(handler("2"))})
	done := b.c.reconcile("t")
	for b.status("t").State != StateUpdating {
		if ctx.Err() != nil {
			t.Fatalf("it is %+v", b.status("t"))
		}
		runtime.Gosched()
	}
	b.is("t", "new | 1")
	for range maxLoads {
		<-b.c.loader.modules
	}
	<-done
	b.is("t", "new | 2")
	if now := b.status("t"); now.State != StateOK || !now.PolicySince[0].Equal(s.PolicySince[0]) {
		t.Errorf("a new module: %+v; its policy is the same since %v", now, s.PolicySince[0])
	}
}

func TestAwait(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("1"))})
	b.open()
	code := func(name, digest string, patience time.Duration) fault.Code {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var e *fault.Error
		if err := b.c.Await(ctx, name, digest); errors.As(err, &e) {
			return e.Code
		} else if err != nil {
			t.Error(err)
		}
		return ""
	}
	sum := sha256.Sum256(handler("1"))
	digest := hex.EncodeToString(sum[:])
	for _, tt := range []struct {
		name, digest string
		want         fault.Code
	}{
		{"t", digest, ""}, {"t", digest[:8], ""}, {"t", b.status("t").Version, ""},
		{"t", digest[:7], fault.Timeout}, {"t", "00000000", fault.Timeout}, {"nosuch", digest, fault.UnknownTool},
	} {
		patience := time.Minute
		if tt.want == fault.Timeout {
			patience = 50 * time.Millisecond
		}
		if got := code(tt.name, tt.digest, patience); got != tt.want {
			t.Errorf("%s %s: %q, not %q", tt.name, tt.digest, got, tt.want)
		}
	}
	b.write(map[string]string{"t/handler.wasm": "no module"})
	sum = sha256.Sum256([]byte("no module"))
	if got := code("t", hex.EncodeToString(sum[:]), time.Minute); got != fault.ToolBroken {
		t.Errorf("what does not load: %q", got)
	}
	// What serves is in force all the same.
	if got := code("t", digest, time.Minute); got != "" {
		t.Errorf("what serves: %q", got)
	}
}

// TestWaitingLoads: a load that waits for its turn holds no module, and compiles what
// is on disk when it has come, as one version.
func TestWaitingLoads(t *testing.T) {
	b := newFixture(t)
	const tools = 16
	name := func(i int) string { return fmt.Sprintf("t%d", i) }
	write := func(text func(i int) []byte) {
		files := map[string]string{}
		for i := range tools {
			files[name(i)+"/handler.wasm"] = string(text(i))
		}
		b.write(files)
	}
	write(func(i int) []byte { return handler("old " + name(i)) })
	b.open()
	for range maxLoads {
		b.c.loader.modules <- struct{}{}
	}
	heap := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	before := heap()
	// A custom section of a mebibyte, which nobody needs.
	padding := append([]byte{0, 0x81, 0x80, 0x40, 0}, make([]byte, 1<<20)...)
	write(func(i int) []byte { return append(handler("between "+name(i)), padding...) })
	var done []<-chan struct{}
	for i := range tools {
		done = append(done, b.c.reconcile(name(i)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range tools {
		for b.status(name(i)).State != StateUpdating {
			if ctx.Err() != nil {
				t.Fatalf("it is %+v", b.status(name(i)))
			}
			runtime.Gosched()
		}
	}
	for more := heap() - before; more > tools<<20/2; more = heap() - before {
		if ctx.Err() != nil {
			t.Fatalf("%d loads that wait hold %d bytes", tools, more)
		}
	}
	write(func(i int) []byte { return handler("new " + name(i)) })
	for range maxLoads {
		<-b.c.loader.modules
	}
	for i := range tools {
		<-done[i]
		b.is(name(i), "| new "+name(i))
		s := b.status(name(i))
		if <-b.c.reconcile(name(i)); s.State != StateOK || b.status(name(i)).Version != s.Version {
			t.Errorf("%s: %+v, and read again version %s", name(i), s, b.status(name(i)).Version)
		}
	}
}
