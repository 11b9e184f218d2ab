// Package retry runs an operation again while that may help.
//
// The wait before attempt n+1 is drawn evenly from zero to
// min(Cap, Initial*2^(n-1)): full jitter, inside the cap. An operation that
// says how long to wait (a Retry-After) is waited for at least that long. A
// wait that would end after the context's deadline is not begun: the last
// error is then the better answer. Nothing is ever run after the context has
// ended.
//
// A Budget, shared by all calls of one upstream, keeps retries from
// multiplying a failure: what may be retried at all is a share of the calls
// that were asked for.
//
// What may be retried is the operation's to say. The package knows nothing of
// tools and can be used alone. failsafe-go counts the retries and waits between
// them; what it does not promise is decided here, and failsafe_test.go shows
// each such case. Time is the standard library's, so that all of it is
// deterministic under testing/synctest.
package retry

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
)

// Config says how often and how soon to retry. Zero values are the defaults.
type Config struct {
	// Max retries after the first attempt. Default 3; negative: none.
	Max int
	// Initial is the longest wait before the first retry. Default 500 ms.
	Initial time.Duration
	// Cap is the longest wait before any retry, unless the operation asks
	// for a longer one. Default 5 s.
	Cap time.Duration
	// Stop, when set, is asked before each wait and again when it is over: true
	// ends the retries. It is where a circuit breaker that opened meanwhile
	// has its say.
	Stop func() bool
	// Share is how many retries each call earns its Budget. Default 0.1.
	Share float64
	// Burst is how many retries a Budget allows that has all been earned back.
	// Default 10.
	Burst int
	// OnCut, when set, is called where the Budget allowed no further retry.
	OnCut func()
	// Float64 draws the jitter from [0, 1). Default math/rand/v2.
	Float64 func() float64
}

func (c Config) withDefaults() Config {
	if c.Max == 0 {
		c.Max = 3
	}
	if c.Initial == 0 {
		c.Initial = 500 * time.Millisecond
	}
	if c.Cap == 0 {
		c.Cap = 5 * time.Second
	}
	if c.Stop == nil {
		c.Stop = func() bool { return false }
	}
	if c.Share == 0 {
		c.Share = budgetShare
	}
	if c.Burst == 0 {
		c.Burst = budgetBurst
	}
	if c.OnCut == nil {
		c.OnCut = func() {}
	}
	if c.Float64 == nil {
		c.Float64 = rand.Float64
	}
	return c
}

// Verdict is what an attempt decides about the next one.
type Verdict struct {
	// Again says that the same operation may succeed when run again.
	Again bool
	// After is the least wait that the upstream asked for.
	After time.Duration
}

// Do runs op with attempts counted from 1 until it does not ask for another,
// the retries or the budget are used up, or ctx ends. It returns how many
// attempts were made: at least one, unless ctx had ended before.
func Do(ctx context.Context, c Config, b *Budget, op func(ctx context.Context, attempt int) Verdict) (attempts int) {
	c = c.withDefaults()
	b.asked(c.Share)
	// AbortIf is asked too when no retry is left, which would take one from the
	// budget for nothing. So a retry that is due is given up by ending the
	// context of the waits, which op does not have.
	waits, giveUp := context.WithCancel(ctx)
	defer giveUp()
	policy := retrypolicy.NewBuilder[Verdict]().
		HandleIf(func(v Verdict, _ error) bool { return v.Again }).
		WithMaxRetries(max(c.Max, 0)). // to the library, negative is without end
		WithDelayFunc(func(e failsafe.ExecutionAttempt[Verdict]) time.Duration {
			return max(c.backoff(e.Attempts()), e.LastResult().After)
		}).
		OnRetryScheduled(func(e failsafe.ExecutionScheduledEvent[Verdict]) {
			deadline, ok := ctx.Deadline()
			if ok && time.Until(deadline) <= e.Delay || c.Stop() {
				giveUp()
			} else if !b.take(c.Burst) {
				c.OnCut()
				giveUp()
			}
		}).
		Build()
	failsafe.With(policy).WithContext(waits).Get(func() (Verdict, error) {
		if attempts > 0 && c.Stop() || ctx.Err() != nil {
			return Verdict{}, nil
		}
		attempts++
		return op(ctx, attempts), nil
	})
	return attempts
}

// backoff is the wait before the n-th retry.
func (c Config) backoff(n int) time.Duration {
	longest := c.Initial
	for i := 1; i < n && longest < c.Cap; i++ {
		longest *= 2
	}
	return time.Duration(c.Float64() * float64(min(longest, c.Cap)))
}

// Defaults of what a Budget allows: each call that is asked for earns a tenth of
// a retry, so that an upstream which is down is asked at most 1.1 times as often
// as if nothing were retried, where three retries of each call would be four
// times; and what is saved up lets a quiet caller retry as often as it may.
const (
	budgetShare = 0.1
	budgetBurst = 10
)

// Budget bounds the retries of all calls of one upstream together, to
// Config.Share of the calls plus Config.Burst: by default a tenth of them plus
// ten. A nil Budget does not bound. It is safe for concurrent use.
type Budget struct {
	mu    sync.Mutex
	spent float64 // retries not yet earned back; guarded by mu
}

func (b *Budget) asked(share float64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.spent = max(0, b.spent-share)
	b.mu.Unlock()
}

func (b *Budget) take(burst int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spent+1 > float64(burst) {
		return false
	}
	b.spent++
	return true
}
