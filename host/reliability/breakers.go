package reliability

import (
	"container/list"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toold/toold/host/breaker"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/retry"
	"github.com/toold/toold/host/tools"
)

// upstream identifies one breaker and one retry budget: a tool, and for a tool with
// claims the identity as well, so that calls of other identities are not refused when
// the host of one fails.
type upstream struct {
	tool, identity string
	// shadow separates breakers in shadow mode from those that refuse calls.
	shadow bool
}

// maxBreakers is how many upstreams are kept; the least recently used one is dropped
// first.
const maxBreakers = 10_000

// Breakers hold the breaker and the retry budget of each upstream.
type Breakers struct {
	onChange func(u upstream, from, to breaker.State)

	mu     sync.Mutex
	byKey  map[upstream]*list.Element // guarded by mu
	recent list.List                  // of *toolBreaker, most recent first; guarded by mu
}

// toolBreaker is the breaker and the retry budget of one upstream. Its fields do not
// change.
type toolBreaker struct {
	upstream
	limits  tools.Breaker
	trial   time.Duration
	breaker *breaker.Breaker
	budget  retry.Budget
}

// of returns the breaker of an upstream of t. It is replaced if its settings in
// tool.json have changed.
func (b *Breakers) of(u upstream, t *tools.Tool) *toolBreaker {
	limits, trial := t.Def.Reliability.Breaker, t.Def.Timeout.Duration()
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.byKey[u]; ok {
		if old := e.Value.(*toolBreaker); old.limits == limits && old.trial == trial {
			b.recent.MoveToFront(e)
			return old
		}
		b.dropLocked(e)
	}
	n := &toolBreaker{upstream: u, limits: limits, trial: trial}
	n.breaker = breaker.New(breaker.Config{
		Failures: limits.Failures, Window: limits.Window, Ratio: limits.Ratio,
		Reset: time.Duration(limits.ResetMS) * time.Millisecond, Trial: trial,
		OnChange: func(from, to breaker.State) { b.onChange(u, from, to) },
	})
	if b.byKey == nil {
		b.byKey = map[upstream]*list.Element{}
	}
	b.byKey[u] = b.recent.PushFront(n)
	if b.recent.Len() > maxBreakers {
		b.dropLocked(b.recent.Back())
	}
	return n
}

func (b *Breakers) dropLocked(e *list.Element) {
	delete(b.byKey, b.recent.Remove(e).(*toolBreaker).upstream)
}

// list returns all breakers, sorted by tool and identity.
func (b *Breakers) list() []*toolBreaker {
	b.mu.Lock()
	var out []*toolBreaker
	for e := b.recent.Front(); e != nil; e = e.Next() {
		out = append(out, e.Value.(*toolBreaker))
	}
	b.mu.Unlock()
	slices.SortFunc(out, func(a, b *toolBreaker) int {
		if c := strings.Compare(a.tool, b.tool); c != 0 {
			return c
		}
		if a.shadow != b.shadow {
			return map[bool]int{false: -1, true: 1}[a.shadow]
		}
		return strings.Compare(a.identity, b.identity)
	})
	return out
}

// Status is the state of one breaker.
type Status struct {
	Tool string
	// Identity is empty unless the tool has a breaker for each identity.
	Identity string
	// Shadow reports that it refuses no call.
	Shadow bool
	breaker.Snapshot
}

// List returns the state of all breakers, sorted by tool and identity.
func (b *Breakers) List() []Status {
	var out []Status
	for _, t := range b.list() {
		out = append(out, Status{t.tool, t.identity, t.shadow, t.breaker.Snapshot()})
	}
	return out
}

// Reset closes the breakers of a tool and returns how many there are.
func (b *Breakers) Reset(tool string) (n int) {
	for _, t := range b.list() {
		if t.tool == tool {
			t.breaker.Reset()
			n++
		}
	}
	return n
}

// Forget drops the breakers of a tool that was removed.
func (b *Breakers) Forget(tool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for u, e := range b.byKey {
		if u.tool == tool {
			b.dropLocked(e)
		}
	}
}

// upstreamOf returns the upstream of a call.
func upstreamOf(r *call.Run) upstream {
	u := upstream{tool: r.Tool.Name, shadow: r.Mode == call.Shadow}
	if id := r.Tool.Def.Identity; len(id.Claims)+len(id.Secret) > 0 {
		u.identity = r.Effective.Fingerprint()
	}
	return u
}
