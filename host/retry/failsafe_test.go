package retry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
)

// These are the promises of this package that failsafe-go does not make. A
// test that fails here after the library was updated says that a part of Do or
// Budget can go.

// failed handles the answer false.
func failed(ok bool, _ error) bool { return !ok }

// Its budget bounds the retries that run at the same moment. Failures one after
// the other are all retried, which is the load that Budget keeps away from an
// upstream that is down.
func TestFailsafeBudgetLetsAStormThrough(t *testing.T) {
	tenth := budget.NewBuilder().WithMaxRate(.1).WithMinConcurrency(10).Build()
	policy := retrypolicy.NewBuilder[bool]().HandleIf(failed).WithMaxRetries(3).WithBudget(tenth).Build()
	got := 0
	for range 200 {
		failsafe.With(policy).Get(func() (bool, error) { got++; return false, nil })
	}
	if got != 800 {
		t.Errorf("200 calls became %d, not 800: does its budget bound them now?", got)
	}
}

// It waits although the deadline comes first, and holds the last answer back
// until then.
func TestFailsafeWaitsForADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		policy := retrypolicy.NewBuilder[bool]().HandleIf(failed).WithDelay(time.Hour).Build()
		start := time.Now()
		_, err := failsafe.With(policy).WithContext(ctx).Get(func() (bool, error) { return false, nil })
		if d := time.Since(start); d != time.Minute || err == nil {
			t.Errorf("it answered after %v with %v, not after a minute with the context's error", d, err)
		}
	})
}

func TestFailsafeRunsAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ran := 0
	failsafe.With(retrypolicy.NewWithDefaults[bool]()).WithContext(ctx).Get(func() (bool, error) { ran++; return true, nil })
	if ran != 1 {
		t.Errorf("ran %d times under a context that had ended, not once", ran)
	}
}

// It can be stopped when a wait begins, and not when it is over: what OnRetry
// learns comes too late, although the context has ended.
func TestFailsafeDoesNotStopAfterAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		policy := retrypolicy.NewBuilder[bool]().HandleIf(failed).WithDelay(time.Second).
			OnRetry(func(failsafe.ExecutionEvent[bool]) { stop() }).Build()
		ran := 0
		failsafe.With(policy).WithContext(ctx).Get(func() (bool, error) { ran++; return false, nil })
		if ran != 2 {
			t.Errorf("ran %d times, not once more after OnRetry ended it", ran)
		}
	})
}

// What takes from a budget must not be asked when no retry is left.
func TestFailsafeAsksAbortIfInVain(t *testing.T) {
	asked := 0
	policy := retrypolicy.NewBuilder[bool]().HandleIf(failed).WithMaxRetries(0).
		AbortIf(func(bool, error) bool { asked++; return false }).Build()
	failsafe.With(policy).Get(func() (bool, error) { return false, nil })
	if asked != 1 {
		t.Errorf("AbortIf was asked %d times, not once, with no retry left", asked)
	}
}

// Its backoff adds jitter to what the cap has bounded already, so waits leave
// the cap; and jitter is evenly around a wait, not from zero to it.
func TestFailsafeBackoffLeavesTheCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 5 * time.Second
		var longest time.Duration
		policy := retrypolicy.NewBuilder[bool]().HandleIf(failed).WithMaxRetries(200).
			WithBackoff(500*time.Millisecond, most).WithJitterFactor(1).
			OnRetryScheduled(func(e failsafe.ExecutionScheduledEvent[bool]) { longest = max(longest, e.Delay) }).Build()
		failsafe.With(policy).Get(func() (bool, error) { return false, nil })
		if longest <= most {
			t.Errorf("the longest of 200 waits is %v, inside the cap of %v", longest, most)
		}
	})
}
