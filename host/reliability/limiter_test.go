package reliability

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/toold/toold/host/fault"
)

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Limiter
		first, err := g.Enter(t.Context(), "t", "", nil, 1, 256)
		if err != nil {
			t.Fatal(err)
		}
		other, err := g.Enter(t.Context(), "u", "", nil, 1, 256)
		if err != nil {
			t.Fatalf("another tool waits for it: %v", err)
		}
		other()
		var order []int
		for i := range 3 {
			go func() {
				leave, err := g.Enter(t.Context(), "t", "", nil, 1, 256)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				leave()
			}()
			synctest.Wait()
		}
		if len(order) != 0 {
			t.Fatalf("%d ran beside a limit of 1", len(order))
		}
		first()
		synctest.Wait()
		for i, n := range order {
			if i != n {
				t.Errorf("order of entry %v", order)
			}
		}
		if len(order) != 3 || len(g.byTool) != 0 {
			t.Errorf("%d of 3 ran, %d stay", len(order), len(g.byTool))
		}
	})
}

// A tool whose limit changes while calls wait lets as many in as it says now.
func TestLimiterFollowsItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Limiter
		var in atomic.Int64
		leave := make(chan struct{})
		enter := func(limit int) {
			go func() {
				done, err := g.Enter(t.Context(), "t", "", nil, limit, 256)
				if err != nil {
					t.Error(err)
					return
				}
				in.Add(1)
				<-leave
				in.Add(-1)
				done()
			}()
			synctest.Wait()
		}
		for range 8 {
			enter(2)
		}
		if enter(4); in.Load() != 4 {
			t.Errorf("raised to 4 with a queue: %d are in", in.Load())
		}
		enter(1)
		for range 3 {
			leave <- struct{}{}
			synctest.Wait()
		}
		if in.Load() != 1 {
			t.Errorf("lowered to 1 with a queue: %d are in", in.Load())
		}
		close(leave)
		synctest.Wait()
		if in.Load() != 0 || len(g.byTool) != 0 {
			t.Errorf("%d are in, %d stay", in.Load(), len(g.byTool))
		}
	})
}

func TestLimiterQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Limiter
		leave, err := g.Enter(t.Context(), "t", "", nil, 1, 256)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var gone atomic.Int64
		for range 256 {
			go func() {
				if _, err := g.Enter(ctx, "t", "", nil, 1, 256); errors.Is(err, context.Canceled) {
					gone.Add(1)
				}
			}()
		}
		synctest.Wait()
		_, err = g.Enter(ctx, "t", "", nil, 1, 256)
		var e *fault.Error
		if !errors.As(err, &e) || e.Code != fault.Overloaded {
			t.Errorf("the one past the queue: %v", err)
		}
		cancel()
		synctest.Wait()
		if gone.Load() != 256 {
			t.Errorf("%d of 256 that wait saw their context end", gone.Load())
		}
		leave()
		if len(g.byTool) != 0 {
			t.Error("a gate stays behind")
		}
	})
}

// What holds places waits for no place whose holder may wait for one of these; it
// does for any other, and once that wait is over.
func TestLimiterWaitsInNoCircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Limiter
		enter := func(tool string, holds ...string) func() {
			t.Helper()
			leave, err := g.Enter(t.Context(), tool, "", holds, 1, 256)
			if err != nil {
				t.Fatal(err)
			}
			return leave
		}
		a, b, c := enter("a"), enter("b"), enter("c")
		wait := func(tool string, holds ...string) (end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				if _, err := g.Enter(ctx, tool, "", holds, 1, 256); !errors.Is(err, context.Canceled) {
					t.Errorf("%s, holding %q: %v", tool, holds, err)
				}
			}()
			synctest.Wait()
			return func() { cancel(); <-done }
		}
		refused := func(tool string, holds ...string) {
			t.Helper()
			if _, err := g.Enter(t.Context(), tool, "", holds, 1, 256); err == nil || !isOverloaded(err) {
				t.Errorf("%s, holding %q: %v", tool, holds, err)
			}
		}
		refused("a", "a")
		ab, bc := wait("b", "a"), wait("c", "b")
		refused("a", "c") // whose holders wait for b, whose holders wait for c
		refused("a", "x", "c")
		wait("a", "x")()
		bc()
		wait("a", "c")()
		ab()
		if a(); len(g.waits) > 0 {
			t.Errorf("%v", g.waits)
		}
		b()
		c()
	})
}

func isOverloaded(err error) bool {
	e, ok := errors.AsType[*fault.Error](err)
	return ok && e.Code == fault.Overloaded
}

// TestLimiterAsking: where all who are in wait for programs of their callers, nobody
// waits for a place: the program may be who asks for one.
func TestLimiterAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Limiter
		enter := func() (func(), error) { return g.Enter(t.Context(), "t", "", nil, 2, 256) }
		first, err := enter()
		second, err2 := enter()
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		asksFirst, asksSecond := g.Asking("t"), g.Asking("t")
		one := asksFirst()
		two := asksFirst() // of the same call
		waited := make(chan error, 3)
		wait := func() {
			go func() {
				leave, err := enter()
				if err == nil {
					leave()
				}
				waited <- err
			}()
			synctest.Wait()
		}
		wait()
		wait()
		if len(waited) > 0 {
			t.Fatalf("with one of two in that can go on: %v", <-waited)
		}
		three := asksSecond()
		synctest.Wait()
		for range 2 {
			if err := <-waited; !isOverloaded(err) {
				t.Errorf("who waits when nobody can go on: %v", err)
			}
		}
		wait()
		if err := <-waited; !isOverloaded(err) {
			t.Errorf("who comes when nobody can go on: %v", err)
		}
		one()
		one()  // is nothing more
		wait() // for the program that is left
		if err := <-waited; !isOverloaded(err) {
			t.Errorf("while a program of each runs: %v", err)
		}
		two()
		wait()
		if len(waited) > 0 {
			t.Fatalf("after the programs of one ended: %v", <-waited)
		}
		first()
		if err := <-waited; err != nil {
			t.Error(err)
		}
		three()
		second()
		if len(g.byTool) != 0 {
			t.Errorf("%d stay", len(g.byTool))
		}
	})
}

// TestLimiterIsFair: a caller that fills a tool's places and its queue keeps neither
// from others: of its own calls some are sent away, and one of a caller that has no
// place is the next to run.
func TestLimiterIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Limiter
		const limit, queue = 2, 3
		leave := make(chan struct{})
		var ran []string
		var sent atomic.Int64
		enter := func(caller string) {
			go func() {
				done, err := g.Enter(t.Context(), "t", caller, nil, limit, queue)
				if err != nil {
					if !isOverloaded(err) {
						t.Error(err)
					}
					sent.Add(1)
					return
				}
				ran = append(ran, caller)
				<-leave
				done()
			}()
			synctest.Wait()
		}
		for range limit + queue + 4 {
			enter("flood")
		}
		if sent.Load() != 4 {
			t.Fatalf("%d of its own were sent away", sent.Load())
		}
		enter("quiet")
		enter("other")
		if sent.Load() != 6 {
			t.Errorf("%d were sent away", sent.Load())
		}
		for range 3 { // they find no place again, and take none of those who came
			enter("flood")
		}
		for range 3 {
			leave <- struct{}{}
			synctest.Wait()
		}
		if got := strings.Join(ran, " "); got != "flood flood quiet flood other" {
			t.Errorf("the order was %s", got)
		}
		close(leave)
		synctest.Wait()
		if len(g.byTool) != 0 || sent.Load() != 9 {
			t.Errorf("%d stay, %d were sent away", len(g.byTool), sent.Load())
		}
	})
}

// TestLimiterYieldsOnce: with one place to wait in, neither of two callers takes it from
// the other again and again; with none, nobody waits.
func TestLimiterYieldsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Limiter
		leave, err := g.Enter(t.Context(), "t", "flood", nil, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Enter(t.Context(), "t", "quiet", nil, 1, 0); !isOverloaded(err) {
			t.Errorf("without a queue: %v", err)
		}
		ends := make(chan string, 2)
		wait := func(caller string) {
			go func() {
				leave, err := g.Enter(t.Context(), "t", caller, nil, 1, 1)
				if err != nil {
					caller += " sent away"
				} else {
					leave()
				}
				ends <- caller
			}()
			synctest.Wait()
		}
		wait("flood")
		wait("quiet")
		if who := <-ends; who != "flood sent away" {
			t.Errorf("%s", who)
		}
		if _, err := g.Enter(t.Context(), "t", "flood", nil, 1, 1); !isOverloaded(err) {
			t.Errorf("it took the place back: %v", err)
		}
		leave()
		if who := <-ends; who != "quiet" {
			t.Errorf("%s", who)
		}
		if leave, err = g.Enter(t.Context(), "t", "third", nil, 1, 1); err != nil {
			t.Fatal(err)
		}
		wait("quiet")
		if _, err := g.Enter(t.Context(), "t", "flood", nil, 1, 1); !isOverloaded(err) {
			t.Errorf("the only call of another gave its place up: %v", err)
		}
		leave()
		if who := <-ends; who != "quiet" {
			t.Errorf("%s", who)
		}
	})
}
