package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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
		b.c.slots <- struct{}{}
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
		<-b.c.slots
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
