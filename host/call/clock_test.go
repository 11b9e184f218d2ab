package call_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/call"
)

// TestClock: the time in which a clock stands still does not count, but that is
// bounded.
func TestClock(t *testing.T) {
	for name, test := range map[string]struct {
		pauses []time.Duration // one after the other, with a minute before each
		ends   time.Duration
	}{
		"none":              {nil, 10 * time.Minute},
		"an hour":           {[]time.Duration{time.Hour}, 70 * time.Minute},
		"twice":             {[]time.Duration{time.Hour, time.Hour}, 130 * time.Minute},
		"for too long":      {[]time.Duration{100 * time.Hour}, 8*time.Hour + 10*time.Minute},
		"a little too long": {[]time.Duration{8*time.Hour + 5*time.Minute}, 8*time.Hour + 10*time.Minute},
		"too often":         {[]time.Duration{5 * time.Hour, 5 * time.Hour}, 8*time.Hour + 10*time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				c := call.NewClock(t.Context(), 10*time.Minute)
				defer c.Stop()
				child, cancel := context.WithCancel(c)
				defer cancel()
				go func() {
					for _, p := range test.pauses {
						time.Sleep(time.Minute)
						resume := c.Pause()
						time.Sleep(p)
						resume()
						resume()
					}
				}()
				<-child.Done()
				if got := time.Since(began); got != test.ends || !errors.Is(child.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(child), context.DeadlineExceeded) {
					t.Errorf("ended after %v with %v, %v; want %v", got, child.Err(), context.Cause(child), test.ends)
				}
				synctest.Wait()
				time.Sleep(200 * time.Hour)
			})
		})
	}
}

// TestClockEndsWithItsParent: with the parent's cause, also while it stands still.
func TestClockEndsWithItsParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancelCause(t.Context())
		c := call.NewClock(parent, time.Minute)
		defer c.Stop()
		defer c.Pause()()
		why := errors.New("the caller left")
		child, end := context.WithTimeout(c, time.Hour)
		defer end()
		cancel(why)
		<-child.Done()
		if context.Cause(child) != why || !errors.Is(c.Err(), context.Canceled) {
			t.Errorf("%v, %v", context.Cause(child), c.Err())
		}
		stopped := call.NewClock(context.Background(), time.Minute)
		stopped.Stop()
		<-stopped.Done()
	})
}
