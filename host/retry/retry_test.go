package retry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func most() float64 { return 1 } // the longest wait that jitter gives

func TestFourAttemptsWithGrowingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		n := Do(t.Context(), Config{Float64: most}, nil, func(_ context.Context, attempt int) Verdict {
			at = append(at, time.Since(start))
			return Verdict{Again: true}
		})
		want := []time.Duration{0, 500 * time.Millisecond, 1500 * time.Millisecond, 3500 * time.Millisecond}
		if n != 4 || len(at) != 4 {
			t.Fatalf("%d attempts at %v", n, at)
		}
		for i := range want {
			if at[i] != want[i] {
				t.Errorf("attempt %d at %v, want %v", i+1, at[i], want[i])
			}
		}
	})
}

func TestOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, cancel := context.WithCancel(t.Context())
		defer cancel()
		brief, stop := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer stop()
		for name, tt := range map[string]struct {
			ctx  context.Context
			c    Config
			v    Verdict
			left bool
		}{
			"not retriable":           {ctx: t.Context()},
			"none allowed":            {ctx: t.Context(), c: Config{Max: -1}, v: Verdict{Again: true}},
			"the caller left":         {ctx: ended, v: Verdict{Again: true}, left: true},
			"waits past the deadline": {ctx: brief, v: Verdict{Again: true}},
			"asked to wait past it":   {ctx: brief, c: Config{Initial: 1}, v: Verdict{Again: true, After: time.Second}},
		} {
			start := time.Now()
			tt.c.Float64 = most
			n := Do(tt.ctx, tt.c, nil, func(_ context.Context, attempt int) Verdict {
				if attempt > 1 {
					t.Fatalf("%s: attempt %d", name, attempt)
				}
				if tt.left {
					cancel()
				}
				return tt.v
			})
			if n != 1 || time.Since(start) != 0 {
				t.Errorf("%s: %d attempts in %v", name, n, time.Since(start))
			}
		}
		if n := Do(ended, Config{}, nil, func(context.Context, int) Verdict { t.Error("ran"); return Verdict{} }); n != 0 {
			t.Errorf("%d attempts under a context that had ended", n)
		}
	})
}

func TestLeavingEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		start := time.Now()
		time.AfterFunc(100*time.Millisecond, cancel)
		n := Do(ctx, Config{Float64: most}, nil, func(context.Context, int) Verdict { return Verdict{Again: true} })
		if n != 1 || time.Since(start) != 100*time.Millisecond {
			t.Errorf("%d attempts in %v", n, time.Since(start))
		}
	})
}

// What stops the retries is asked before the wait, for nothing, and after it,
// since it may have happened meanwhile.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			from time.Duration // when it begins to say stop
			want int
			took time.Duration
		}{{0, 1, 0}, {200 * time.Millisecond, 1, 500 * time.Millisecond}, {time.Second, 2, 1500 * time.Millisecond}} {
			start := time.Now()
			n := Do(t.Context(), Config{Float64: most, Stop: func() bool { return time.Since(start) >= tt.from }}, nil,
				func(context.Context, int) Verdict { return Verdict{Again: true} })
			if n != tt.want || time.Since(start) != tt.took {
				t.Errorf("stopped from %v on: %d attempts in %v", tt.from, n, time.Since(start))
			}
		}
	})
}

// The context may end while Stop is asked, when the wait is over already.
func TestNothingRunsAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		start := time.Now()
		n := Do(ctx, Config{Float64: most, Stop: func() bool {
			if time.Since(start) > 0 {
				leave()
			}
			return false
		}}, nil, func(context.Context, int) Verdict { return Verdict{Again: true} })
		if n != 1 {
			t.Errorf("%d attempts, and the context ended before the second", n)
		}
	})
}

// Giving up ends the waits, never what runs.
func TestGivingUpLeavesTheContextOfAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var given []context.Context
		Do(t.Context(), Config{}, nil, func(ctx context.Context, _ int) Verdict {
			given = append(given, ctx)
			return Verdict{Again: true}
		})
		for i, ctx := range given {
			if ctx.Err() != nil {
				t.Errorf("the context of attempt %d: %v", i+1, ctx.Err())
			}
		}
	})
}

// foreign is a context that the standard library can only watch from a
// goroutine of its own.
type foreign struct {
	context.Context
	done chan struct{}
}

func (f foreign) Done() <-chan struct{} { return f.done }

// The bubble does not end while a goroutine is left.
func TestLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := foreign{t.Context(), make(chan struct{})}
		Do(ctx, Config{}, nil, func(context.Context, int) Verdict { return Verdict{} })
		Do(ctx, Config{}, nil, func(context.Context, int) Verdict { return Verdict{Again: true} })
		func() {
			defer func() {
				if recover() == nil {
					t.Error("a panic of the operation did not pass")
				}
			}()
			Do(ctx, Config{}, nil, func(context.Context, int) Verdict { panic("broken") })
		}()
	})
}

func TestWaits(t *testing.T) {
	c := Config{Float64: most}.withDefaults()
	for n, want := range []time.Duration{0, 500e6, 1e9, 2e9, 4e9, 5e9, 5e9, 5e9} {
		if n > 0 && c.backoff(n) != want {
			t.Errorf("wait %d is at most %v, want %v", n, c.backoff(n), want)
		}
	}
	if d := c.backoff(1 << 30); d != c.Cap {
		t.Errorf("wait after very many attempts: %v", d)
	}
	c.Float64 = func() float64 { return 0 }
	if d := c.backoff(3); d != 0 {
		t.Errorf("the least wait is %v", d)
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		Do(t.Context(), Config{Max: 1, Float64: most}, nil, func(context.Context, int) Verdict {
			return Verdict{Again: true, After: 20 * time.Second}
		})
		if d := time.Since(start); d != 20*time.Second {
			t.Errorf("asked to wait 20 s, waited %v", d)
		}
	})
}

// An upstream that fails gets little more than what was asked of it.
func TestBudgetKeepsAStormDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Budget
		asked, got := 0, 0
		for range 200 {
			asked++
			Do(t.Context(), Config{}, &b, func(context.Context, int) Verdict { got++; return Verdict{Again: true} })
		}
		if float64(got) > 1.2*float64(asked) {
			t.Errorf("%d calls became %d", asked, got)
		}
		var quiet Budget
		if n := Do(t.Context(), Config{}, &quiet, func(context.Context, int) Verdict { return Verdict{Again: true} }); n != 4 {
			t.Errorf("a single call is tried %d times", n)
		}
	})
}

// Those who leave take nothing from what is left for others.
func TestLeavingSparesTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Budget
		for range 100 {
			ctx, leave := context.WithCancel(t.Context())
			Do(ctx, Config{}, &b, func(context.Context, int) Verdict { leave(); return Verdict{Again: true} })
		}
		if n := Do(t.Context(), Config{}, &b, func(context.Context, int) Verdict { return Verdict{Again: true} }); n != 4 {
			t.Errorf("after 100 callers that left, a call is tried %d times", n)
		}
	})
}
