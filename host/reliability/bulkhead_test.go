package reliability_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/bulkhead"
)

// These tests compare failsafe-go's bulkhead with what the host promises for the
// executions of a tool: so many at a time, a queue of bounded length, the order
// of arrival, and a limit that is that of the tool's newest version. The host
// has a limiter of its own because of the first two; one of them that fails
// after the library was updated says that a reason is gone.

// What bounds its queue is how long each may wait, and not how many do: a tool
// that hangs collects callers, with their connections and their input, for as
// long as they have patience.
func TestBulkheadQueueHasNoLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const callers = 1000
		b := bulkhead.New[any](1)
		if !b.TryAcquirePermit() {
			t.Fatal("the first is refused")
		}
		ctx, leave := context.WithCancel(t.Context())
		var refused, left atomic.Int32
		for range callers {
			go func() {
				switch err := b.AcquirePermitWithMaxWait(ctx, time.Hour); {
				case errors.Is(err, bulkhead.ErrFull):
					refused.Add(1)
				case err != nil:
					left.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := refused.Load(); n != 0 {
			t.Errorf("%d of %d that wait were refused: is there a bound now?", n, callers)
		}
		leave()
		synctest.Wait()
		if n := left.Load(); n != callers {
			t.Errorf("%d of %d that waited left", n, callers)
		}
	})
}

// Its limit is that of when it was built. A tool's newer version has another, and
// a second bulkhead knows nothing of those that are in the first or wait for it.
func TestBulkheadLimitDoesNotChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older, newer := bulkhead.New[any](2), bulkhead.New[any](1)
		in := 0
		for _, b := range []bulkhead.Bulkhead[any]{older, older, newer} {
			if b.TryAcquirePermit() {
				in++
			}
		}
		if in != 3 {
			t.Errorf("%d run after the limit went from 2 to 1, not 3", in)
		}

		older, newer = bulkhead.New[any](1), bulkhead.New[any](2)
		older.TryAcquirePermit()
		ctx, leave := context.WithTimeout(t.Context(), time.Hour)
		defer leave()
		start := time.Now()
		waited := make(chan error)
		go func() { waited <- older.AcquirePermit(ctx) }()
		synctest.Wait()
		if !newer.TryAcquirePermit() {
			t.Error("the newer one has no place")
		}
		if err := <-waited; err == nil {
			t.Errorf("it was let in after %v, when the limit went from 1 to 2", time.Since(start))
		}
	})
}

// Its order is the one of a channel's senders: by arrival, although the
// language does not promise it. Nobody overtakes those who wait, and who
// leaves takes no place with them. Waiting is deterministic in a bubble.
func TestBulkheadKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bulkhead.New[any](1)
		b.TryAcquirePermit()
		var order []int
		impatient, leave := context.WithCancel(t.Context())
		for i := range 100 {
			ctx := t.Context()
			if i%2 == 1 {
				ctx = impatient
			}
			go func() {
				if b.AcquirePermit(ctx) == nil {
					order = append(order, i)
				}
			}()
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		for range 50 {
			b.ReleasePermit()
			if b.TryAcquirePermit() {
				t.Error("a newcomer overtakes those who wait")
			}
			synctest.Wait()
		}
		if len(order) != 50 || !slices.IsSorted(order) {
			t.Errorf("let in: %v", order)
		}
		b.ReleasePermit()
		if !b.TryAcquirePermit() {
			t.Error("those who left have taken the place with them")
		}
	})
}
