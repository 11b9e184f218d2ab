package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/idempotency"
)

// noted is a request whose call can be looked into with f.
func noted(key string, f func(context.Context, idempotency.Unknown) idempotency.Finding) idempotency.Request {
	r := request(key)
	r.Note = func(context.Context) json.RawMessage { return json.RawMessage(`{"was":"here"}`) }
	r.Settle = f
	return r
}

// found answers v, and counts how often it is asked.
func found(v idempotency.Verdict, asked *atomic.Int32) func(context.Context, idempotency.Unknown) idempotency.Finding {
	return func(_ context.Context, u idempotency.Unknown) idempotency.Finding {
		asked.Add(1)
		if string(u.Note) != `{"was":"here"}` {
			panic("the note is " + string(u.Note))
		}
		f := idempotency.Finding{Verdict: v}
		if v == idempotency.Done {
			f.Result = json.RawMessage(`"found"`)
		}
		return f
	}
}

func stores(t *testing.T, f func(t *testing.T, c idempotency.Config)) {
	t.Run("memory", func(t *testing.T) { f(t, idempotency.Config{}) })
	t.Run("file", func(t *testing.T) { f(t, idempotency.Config{Store: "file", Dir: t.TempDir()}) })
}

// A call that ended with an unknown outcome is looked into right after, and the record
// then answers what was found.
func TestSettleDone(t *testing.T) {
	stores(t, func(t *testing.T, c idempotency.Config) {
		k := open(t, c)
		var asked atomic.Int32
		r := noted("k", found(idempotency.Done, &asked))
		if res, err := k.Do(t.Context(), r, outcome(idempotency.Outcome{})); err != nil || res.Status != "" {
			t.Fatalf("%+v, %v", res, err)
		}
		for range 2 {
			res, err := k.Do(t.Context(), r, never(t))
			if err != nil || !res.FromCache || string(res.Value) != `"found"` || res.Status != idempotency.Completed {
				t.Fatalf("%+v, %v", res, err)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("it was looked into %d times", asked.Load())
		}
	})
}

// Of many callers that wait for a call that turns out not to have been done, one runs.
func TestSettleNotDone(t *testing.T) {
	stores(t, func(t *testing.T, c idempotency.Config) {
		k := open(t, c)
		var asked, ran atomic.Int32
		gate := make(chan struct{})
		r := noted("k", func(ctx context.Context, u idempotency.Unknown) idempotency.Finding {
			<-gate
			return found(idempotency.NotDone, &asked)(ctx, u)
		})
		if _, err := k.Do(t.Context(), r, outcome(idempotency.Outcome{})); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				res, err := k.Do(t.Context(), r, func(ctx context.Context) idempotency.Outcome {
					ran.Add(1)
					return completed(`"ran"`)(ctx)
				})
				if err != nil || string(res.Value) != `"ran"` {
					t.Errorf("%+v, %v", res, err)
				}
			})
		}
		close(gate)
		wg.Wait()
		if ran.Load() != 1 || asked.Load() != 1 {
			t.Errorf("%d ran, looked into %d times", ran.Load(), asked.Load())
		}
	})
}

// A record that is not decided on stays as it is, and is left alone longer and longer.
func TestSettleRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		var asked atomic.Int32
		r := noted("k", found(idempotency.Undecided, &asked))
		k.Do(t.Context(), r, outcome(idempotency.Outcome{}))
		for range 600 {
			synctest.Wait()
			if _, err := k.Do(t.Context(), r, never(t)); !errors.Is(err, idempotency.ErrOutcomeUnknown) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := asked.Load(); n < 8 || n > 11 {
			t.Errorf("it was looked into %d times in ten minutes", n)
		}
		// What an operator asks for is looked into at once.
		if n, err := k.Settle(t.Context(), "tool", "k", found(idempotency.NotDone, &asked)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if res, err := k.Do(t.Context(), r, completed(`1`)); err != nil || res.FromCache {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// A look that does not end is ended, and a panic in it is the daemon's, not a verdict.
func TestSettleIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, idempotency.Config{})
		r := noted("k", func(ctx context.Context, _ idempotency.Unknown) idempotency.Finding {
			<-ctx.Done()
			return idempotency.Finding{}
		})
		start := time.Now()
		k.Do(t.Context(), r, outcome(idempotency.Outcome{}))
		if _, err := k.Do(t.Context(), r, never(t)); !errors.Is(err, idempotency.ErrOutcomeUnknown) || time.Since(start) > time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// A call does not run where what it is about to do cannot be written down: its record
// says that it has not begun.
func TestNoteComesFirst(t *testing.T) {
	k := open(t, idempotency.Config{})
	r := noted("k", nil)
	r.Claimed = json.RawMessage(`{"claimed":true}`)
	r.Note = func(context.Context) json.RawMessage {
		if found, err := k.Show(t.Context(), "tool", "k"); err != nil || len(found) != 1 || string(found[0].Note) != `{"claimed":true}` {
			t.Errorf("%+v, %v", found, err)
		}
		return json.RawMessage(`not JSON`)
	}
	k.Do(t.Context(), r, func(context.Context) idempotency.Outcome {
		if found, _ := k.Show(t.Context(), "tool", "k"); len(found) != 1 || string(found[0].Note) != `{}` {
			t.Errorf("%+v", found)
		}
		return idempotency.Outcome{}
	})
	// A record that is gone when the note comes is not the call's any more.
	k2, err := idempotency.Open(t.Context(), idempotency.Config{Store: "file", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r.Note = func(context.Context) json.RawMessage {
		k2.Close()
		return nil
	}
	if _, err := k2.Do(t.Context(), r, never(t)); !errors.Is(err, idempotency.ErrStoreUnavailable) {
		t.Error(err)
	}
}

// What is found out of a call counts for that call only: not for one that runs with its
// key since an operator took the record away.
func TestSettleFindsOutNothingOfTheNextCall(t *testing.T) {
	stores(t, func(t *testing.T, c idempotency.Config) {
		for name, v := range map[string]idempotency.Verdict{"done": idempotency.Done, "not_done": idempotency.NotDone} {
			k := open(t, idempotency.Config{Store: c.Store, Dir: t.TempDir()})
			looks, answer := make(chan struct{}), make(chan struct{})
			var asked atomic.Int32
			first := noted("k", func(ctx context.Context, u idempotency.Unknown) idempotency.Finding {
				if asked.Load() > 0 {
					return idempotency.Finding{}
				}
				close(looks)
				<-answer
				return found(v, &asked)(ctx, u)
			})
			if _, err := k.Do(t.Context(), first, outcome(idempotency.Outcome{})); err != nil {
				t.Fatal(err)
			}
			<-looks
			if f, err := k.Flush(t.Context(), "tool", "k"); err != nil || f.Flushed != 1 {
				t.Fatal(f, err)
			}
			next := request("k")
			if res, err := k.Do(t.Context(), next, outcome(idempotency.Outcome{})); err != nil || res.FromCache {
				t.Fatalf("%+v, %v", res, err)
			}
			waits := make(chan error)
			go func() { // who waits for the look is told what the record has then
				_, err := k.Do(t.Context(), first, never(t))
				waits <- err
			}()
			close(answer)
			if err := <-waits; !errors.Is(err, idempotency.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := k.Do(t.Context(), next, never(t)); !errors.Is(err, idempotency.ErrOutcomeUnknown) {
				t.Errorf("%s of the call before was taken for the next one's: %v", name, err)
			}
		}
	})
}

// Without a note, as of a record that an older daemon wrote, nothing is asked.
func TestSettleNeedsANote(t *testing.T) {
	k := open(t, idempotency.Config{})
	var asked atomic.Int32
	r := request("k")
	k.Do(t.Context(), r, outcome(idempotency.Outcome{}))
	r.Settle = found(idempotency.NotDone, &asked)
	if _, err := k.Do(t.Context(), r, never(t)); !errors.Is(err, idempotency.ErrOutcomeUnknown) || asked.Load() != 0 {
		t.Errorf("%v, looked into %d times", err, asked.Load())
	}
}

// What is known of the owner: a reported unknown outcome has ended, unless something of
// it lingers; that of a daemon that died is not known to have.
func TestSettleKnowsTheOwner(t *testing.T) {
	dir := t.TempDir()
	ended := map[string]bool{}
	look := func(_ context.Context, u idempotency.Unknown) idempotency.Finding {
		ended[u.Label] = u.Ended
		return idempotency.Finding{}
	}
	r := func(key string) idempotency.Request {
		r := noted(key, nil)
		r.Label = key
		return r
	}
	k, err := idempotency.Open(t.Context(), idempotency.Config{Store: "file", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	k.Do(t.Context(), r("reported"), outcome(idempotency.Outcome{}))
	k.Do(t.Context(), r("lingers"), outcome(idempotency.Outcome{Lingers: true}))
	k.Do(t.Context(), r("lost"), func(context.Context) idempotency.Outcome {
		k.Close() // before its outcome is recorded, as a kill is
		return idempotency.Outcome{}
	})
	k = open(t, idempotency.Config{Store: "file", Dir: dir})
	for _, key := range []string{"reported", "lingers", "lost"} {
		if n, err := k.Settle(t.Context(), "tool", key, look); n != 1 || err != nil {
			t.Errorf("%s: %d, %v", key, n, err)
		}
	}
	if !ended["reported"] || ended["lingers"] || ended["lost"] || len(ended) != 3 {
		t.Errorf("%v", ended)
	}
}
