package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/idempotency"
)

// open opens Records that are closed with the test.
func open(t testing.TB, c idempotency.Config) *idempotency.Records {
	t.Helper()
	k, err := idempotency.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func completed(text string) func(context.Context) idempotency.Outcome {
	return func(context.Context) idempotency.Outcome {
		return idempotency.Outcome{Kind: idempotency.OutcomeCompleted, Result: json.RawMessage(text)}
	}
}

func outcome(o idempotency.Outcome) func(context.Context) idempotency.Outcome {
	return func(context.Context) idempotency.Outcome { return o }
}

// never is for calls that must not run.
func never(t *testing.T) func(context.Context) idempotency.Outcome {
	return func(context.Context) idempotency.Outcome {
		t.Error("the call ran")
		return idempotency.Outcome{}
	}
}

func request(key string) idempotency.Request {
	return idempotency.Request{Scope: "tool", Key: key, Payload: "p"}
}

// An operator finds a record by the key that its caller sent, whatever its length,
// and no other record by it.
func TestLongLabels(t *testing.T) {
	for _, c := range []idempotency.Config{{}, {Store: "file", Dir: t.TempDir()}} {
		k := open(t, c)
		long := strings.Repeat("é", 500) // cut anywhere, it could be cut within a character
		for i, label := range []string{long + "1", long + "2", "x" + long} {
			r := request(fmt.Sprint("key ", i))
			r.Label = label
			if _, err := k.Do(t.Context(), r, completed("1")); err != nil {
				t.Fatal(err)
			}
		}
		for i, label := range []string{long + "1", long + "2", "x" + long} {
			found, err := k.Show(t.Context(), "tool", label)
			if err != nil || len(found) != 1 || found[0].Key != fmt.Sprint("key ", i) || len(found[0].Label) > 128 {
				t.Errorf("%q store: label %d finds %+v, %v", c.Store, i, found, err)
			}
		}
		if f, err := k.Flush(t.Context(), "tool", long+"1"); err != nil || f.Flushed != 1 {
			t.Errorf("%q store: flush: %+v, %v", c.Store, f, err)
		}
	}
}

func wantCount(t *testing.T, k *idempotency.Records, e idempotency.Event, want uint64) {
	t.Helper()
	if got := k.Stats()[e]; got != want {
		t.Errorf("%s was counted %d times, want %d", e, got, want)
	}
}

func TestDuplicateAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		first, err := k.Do(t.Context(), request("k"), completed(`{"n": 1, "s": "<a>"}`))
		if err != nil || first.FromCache || string(first.Value) != `{"n":1,"s":"<a>"}` {
			t.Fatalf("first: %+v, %v", first, err)
		}
		time.Sleep(24*time.Hour - time.Second)
		again, err := k.Do(t.Context(), request("k"), never(t))
		if err != nil || !again.FromCache || string(again.Value) != string(first.Value) || again.Status != idempotency.Completed {
			t.Fatalf("again: %+v, %v", again, err)
		}
		time.Sleep(time.Second) // 24 hours from the claim, whatever was asked since
		if third, err := k.Do(t.Context(), request("k"), completed(`2`)); err != nil || third.FromCache {
			t.Fatalf("after its time: %+v, %v", third, err)
		}
	})
}

// Fifty callers at once: one runs, fifty get its answer.
func TestFiftyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		var ran atomic.Int32
		var wg sync.WaitGroup
		var cached atomic.Int32
		start := time.Now()
		for range 50 {
			wg.Go(func() {
				r, err := k.Do(t.Context(), request("k"), func(context.Context) idempotency.Outcome {
					time.Sleep(time.Minute) // beyond the lease: it is renewed
					return idempotency.Outcome{Kind: idempotency.OutcomeCompleted, Result: fmt.Append(nil, ran.Add(1))}
				})
				if err != nil || string(r.Value) != "1" {
					t.Errorf("%+v, %v", r, err)
				}
				if took := time.Since(start); took != time.Minute {
					t.Errorf("answered after %v", took)
				}
				if r.FromCache {
					cached.Add(1)
				}
			})
		}
		wg.Wait()
		if ran.Load() != 1 || cached.Load() != 49 {
			t.Errorf("ran %d times, %d answered from the record", ran.Load(), cached.Load())
		}
		wantCount(t, k, idempotency.EventWaited, 49)
	})
}

// An owner ends with an unknown outcome: waiters are woken immediately, not at
// their deadlines or the next poll.
func TestOwnerEndedTellsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		ctx, kill := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := k.Do(ctx, request("k"), func(ctx context.Context) idempotency.Outcome {
				<-ctx.Done()
				return idempotency.Outcome{}
			})
			if err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		start := time.Now()
		const after = 2*time.Second + 345*time.Millisecond // between two polls
		for range 49 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				_, err := k.Do(ctx, request("k"), never(t))
				if !errors.Is(err, idempotency.ErrOutcomeUnknown) || time.Since(start) != after {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		}
		time.Sleep(after)
		kill()
		wg.Wait()
		// retry does not override it, for the whole time to live.
		time.Sleep(24*time.Hour - time.Second)
		r := request("k")
		r.Retry = true
		if _, err := k.Do(t.Context(), r, never(t)); !errors.Is(err, idempotency.ErrOutcomeUnknown) {
			t.Errorf("with retry: %v", err)
		}
		if f, err := k.Flush(t.Context(), "tool", "k"); err != nil || f.Flushed != 1 {
			t.Errorf("flush: %+v, %v", f, err)
		}
		if r, err := k.Do(t.Context(), request("k"), completed("1")); err != nil || r.FromCache {
			t.Errorf("after a flush: %+v, %v", r, err)
		}
	})
}

func TestDuplicateLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		var wg sync.WaitGroup
		wg.Go(func() {
			r, err := k.Do(t.Context(), request("k"), func(ctx context.Context) idempotency.Outcome {
				time.Sleep(time.Minute)
				return idempotency.Outcome{Kind: idempotency.OutcomeCompleted, Result: json.RawMessage(`1`)}
			})
			if err != nil || r.FromCache {
				t.Errorf("the owner: %+v, %v", r, err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		_, err := k.Do(ctx, request("k"), never(t))
		if !errors.Is(err, idempotency.ErrPending) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Errorf("wait: %v after %v", err, time.Since(start))
		}
		r := request("k")
		r.OnDuplicate = idempotency.Fail
		if _, err := k.Do(t.Context(), r, never(t)); !errors.Is(err, idempotency.ErrPending) || time.Since(start) != 5*time.Second {
			t.Errorf("fail: %v after %v", err, time.Since(start))
		}
		wg.Wait()
	})
}

func TestKeyReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		if _, err := k.Do(t.Context(), request("k"), completed(`1`)); err != nil {
			t.Fatal(err)
		}
		r := request("k")
		r.Payload = "other"
		if _, err := k.Do(t.Context(), r, never(t)); !errors.Is(err, idempotency.ErrKeyReused) {
			t.Error(err)
		}
	})
}

func TestFailureIsKeptForThirtySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		fails := idempotency.Outcome{Kind: idempotency.OutcomeFailed, Result: json.RawMessage(`{"exit":1}`), Failure: &idempotency.Failure{Code: "TOOL_FAILED", Message: "no"}}
		if r, err := k.Do(t.Context(), request("k"), outcome(fails)); err != nil || r.Status != idempotency.Failed || r.FromCache {
			t.Fatalf("%+v, %v", r, err)
		}
		time.Sleep(30*time.Second - time.Millisecond)
		if r, err := k.Do(t.Context(), request("k"), never(t)); err != nil || r.Status != idempotency.Failed || r.Failure.Code != "TOOL_FAILED" || string(r.Value) != `{"exit":1}` {
			t.Fatalf("%+v, %v", r, err)
		}
		retry := request("k")
		retry.Retry = true
		if r, err := k.Do(t.Context(), retry, outcome(fails)); err != nil || r.FromCache || r.Fence != 2 || r.Event != idempotency.EventRetried {
			t.Fatalf("with retry: %+v, %v", r, err)
		}
		time.Sleep(30 * time.Second)
		if r, err := k.Do(t.Context(), request("k"), completed(`1`)); err != nil || r.FromCache {
			t.Fatalf("after 30 s: %+v, %v", r, err)
		}
		if r, err := k.Do(t.Context(), retry, never(t)); err != nil || !r.FromCache {
			t.Fatalf("retry of what was completed: %+v, %v", r, err)
		}
	})
}

// A call that did not begin leaves no record, and one of the waiters runs.
func TestNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		var ran atomic.Int32
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				_, err := k.Do(t.Context(), request("k"), func(context.Context) idempotency.Outcome {
					time.Sleep(time.Second)
					if ran.Add(1) < 3 {
						return idempotency.Outcome{Kind: idempotency.OutcomeNotBegun}
					}
					return idempotency.Outcome{Kind: idempotency.OutcomeCompleted}
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if ran.Load() != 3 {
			t.Errorf("ran %d times", ran.Load())
		}
	})
}

func TestTooLargeIsNotRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		fits, _ := json.Marshal(string(make([]byte, 0)) + fmt.Sprintf("%0*d", idempotency.MaxResult-2, 0))
		if _, err := k.Do(t.Context(), request("fits"), completed(string(fits))); err != nil {
			t.Fatal(err)
		}
		if r, err := k.Do(t.Context(), request("fits"), never(t)); err != nil || r.TooLarge || string(r.Value) != string(fits) {
			t.Fatalf("fits: too large %v, %v", r.TooLarge, err)
		}
		large := `"x` + string(fits[1:])
		if r, err := k.Do(t.Context(), request("large"), completed(large)); err != nil || string(r.Value) != large {
			t.Fatalf("the owner did not get its result: %v", err)
		}
		r, err := k.Do(t.Context(), request("large"), never(t))
		if err != nil || !r.TooLarge || r.Value != nil || r.Size != idempotency.MaxResult+1 || len(r.Digest) != 64 || r.Status != idempotency.Completed {
			t.Fatalf("%+v, %v", r, err)
		}
	})
}

func TestPanicLeavesAnUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic was swallowed")
				}
			}()
			_, _ = k.Do(t.Context(), request("k"), func(context.Context) idempotency.Outcome { panic("boom") })
		}()
		start := time.Now()
		if _, err := k.Do(t.Context(), request("k"), never(t)); !errors.Is(err, idempotency.ErrOutcomeUnknown) || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// Renewing a lease does not make the record of a running call evictable.
func TestMemoryKeepsWhatWasRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{MemoryRecords: 2})
		_, err := k.Do(t.Context(), request("long"), func(ctx context.Context) idempotency.Outcome {
			time.Sleep(time.Minute)
			for n := range 5 {
				if _, err := k.Do(ctx, request(fmt.Sprint(n)), completed("1")); err != nil {
					t.Error(err)
				}
			}
			return idempotency.Outcome{Kind: idempotency.OutcomeCompleted}
		})
		if err != nil {
			t.Error(err)
		}
		wantCount(t, k, idempotency.EventGone, 0)
	})
}

// A running call is not flushed.
func TestFlushLeavesWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		for _, key := range []string{"a", "b"} {
			if _, err := k.Do(t.Context(), request(key), completed("1")); err != nil {
				t.Fatal(err)
			}
		}
		other := request("a")
		other.Scope = "other"
		if _, err := k.Do(t.Context(), other, completed("1")); err != nil {
			t.Fatal(err)
		}
		_, err := k.Do(t.Context(), request("c"), func(context.Context) idempotency.Outcome {
			f, err := k.Flush(t.Context(), "tool", "")
			if err != nil || f.Flushed != 2 || f.Running != 1 {
				t.Errorf("%+v, %v", f, err)
			}
			list, err := k.List(t.Context(), "tool", 0)
			if err != nil || len(list) != 1 || list[0].Key != "c" || list[0].Status != idempotency.Pending {
				t.Errorf("%+v, %v", list, err)
			}
			return idempotency.Outcome{Kind: idempotency.OutcomeCompleted}
		})
		if err != nil {
			t.Error(err)
		}
		if list, err := k.List(t.Context(), "other", 0); err != nil || len(list) != 1 {
			t.Errorf("another scope: %+v, %v", list, err)
		}
	})
}

// Shadow decides and counts, and runs whatever it decided.
func TestShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		r := request("k")
		r.Shadow = true
		for n, want := range []idempotency.Event{idempotency.EventClaimed, idempotency.EventReplayed, idempotency.EventReplayed} {
			res, err := k.Do(t.Context(), r, completed(fmt.Sprint(n)))
			if err != nil || res.FromCache || string(res.Value) != fmt.Sprint(n) || res.Event != want {
				t.Errorf("call %d: %+v, %v", n, res, err)
			}
		}
		r.Payload = "other"
		if res, err := k.Do(t.Context(), r, completed("9")); err != nil || string(res.Value) != "9" || res.Event != idempotency.EventReused {
			t.Errorf("%+v, %v", res, err)
		}
		wantCount(t, k, idempotency.EventUnrecorded, 3)
	})
}

func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{MemoryRecords: 3})
		for _, key := range []string{"a", "b", "c"} {
			if _, err := k.Do(t.Context(), request(key), completed("1")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := k.Do(t.Context(), request("a"), never(t)); err != nil { // now b is the oldest
			t.Fatal(err)
		}
		_, err := k.Do(t.Context(), request("d"), func(context.Context) idempotency.Outcome {
			if _, err := k.Do(t.Context(), request("a"), never(t)); err != nil {
				t.Error(err)
			}
			_, err := k.Do(t.Context(), request("e"), func(context.Context) idempotency.Outcome {
				_, err := k.Do(t.Context(), request("f"), func(context.Context) idempotency.Outcome {
					_, err := k.Do(t.Context(), request("g"), never(t))
					if !errors.Is(err, idempotency.ErrOverloaded) {
						t.Errorf("full of running calls: %v", err)
					}
					return idempotency.Outcome{Kind: idempotency.OutcomeNotBegun}
				})
				if err != nil {
					t.Error(err)
				}
				return idempotency.Outcome{Kind: idempotency.OutcomeCompleted}
			})
			if err != nil {
				t.Error(err)
			}
			return idempotency.Outcome{Kind: idempotency.OutcomeCompleted}
		})
		if err != nil {
			t.Error(err)
		}
		wantCount(t, k, idempotency.EventEvicted, 3) // b, c, a in this order
	})
}
