package idempotency

import (
	"context"
	"sync"
	"time"
)

// flight is a key that callers of this process wait for. They share one
// goroutine that polls the record.
type flight struct {
	waiters int           // guarded by flights.mu
	wake    chan struct{} // holds a token when the record must be read
	empty   chan struct{} // closed when the last waiter has left
	done    chan struct{} // closed when rec is set
	rec     *record       // nil: no record. Written before done is closed
}

// flights are the keys that callers of this process wait for.
type flights struct {
	store      store
	recorder   *recorder
	background *background
	poll       time.Duration // Config.Poll

	mu     sync.Mutex
	waited map[id]*flight // guarded by mu
}

// wait returns the record of i once its lease is no longer held: nil if there is
// none, PENDING if it may be taken over. The error is the cause of ctx.
func (w *flights) wait(ctx context.Context, i id) (*record, error) {
	w.mu.Lock()
	f := w.waited[i]
	if f == nil {
		f = &flight{wake: make(chan struct{}, 1), empty: make(chan struct{}), done: make(chan struct{})}
		if !w.background.start(func() { w.watch(i, f) }) {
			w.mu.Unlock()
			return nil, context.Canceled
		}
		w.waited[i] = f
	}
	f.waiters++
	w.mu.Unlock()

	select {
	case <-f.done:
		return f.rec, nil
	case <-ctx.Done():
	case <-w.background.ctx.Done():
		return nil, context.Canceled
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.waiters--; f.waiters == 0 && w.waited[i] == f {
		delete(w.waited, i)
		close(f.empty)
	}
	return nil, context.Cause(ctx)
}

// watch waits for the completion of a record for all waiters of a flight.
func (w *flights) watch(i id, f *flight) {
	ctx, cancel := context.WithTimeout(w.background.ctx, w.poll)
	_ = w.store.subscribe(ctx) // on an error, polling is enough
	cancel()
	for {
		// After subscribing, so that no completion falls between the two.
		start := time.Now()
		rec, left, err := w.store.get(w.background.ctx, i)
		w.recorder.observe("get", start, err)
		if err == nil && (rec == nil || rec.Status != Pending || left <= 0) {
			w.mu.Lock()
			if w.waited[i] == f {
				delete(w.waited, i)
			}
			w.mu.Unlock()
			f.rec = rec
			close(f.done)
			return
		}
		again := w.poll
		if err == nil {
			// A millisecond more, since the store counts whole ones.
			again = min(again, left+time.Millisecond)
		}
		t := time.NewTimer(again)
		select {
		case <-f.wake:
		case <-t.C:
		case <-f.empty:
			t.Stop()
			return
		case <-w.background.ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// notify wakes the flight of i, if there is one, or all flights for the zero id.
func (w *flights) notify(i id) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wake := func(f *flight) {
		select {
		case f.wake <- struct{}{}:
		default: // a read is already due
		}
	}
	if f := w.waited[i]; f != nil {
		wake(f)
	} else if i == (id{}) {
		for _, f := range w.waited {
			wake(f)
		}
	}
}
