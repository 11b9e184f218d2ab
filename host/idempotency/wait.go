package idempotency

import (
	"context"
	"time"
)

// flight is a key that callers of this process wait for. They share one
// goroutine that polls the record.
type flight struct {
	waiters int           // guarded by Records.mu
	wake    chan struct{} // holds a token when the record must be read
	empty   chan struct{} // closed when the last waiter has left
	done    chan struct{} // closed when rec is set
	rec     *record       // nil: no record. Written before done is closed
}

// wait returns the record of i once its lease is no longer held: nil if there is
// none, PENDING if it may be taken over. The error is the cause of ctx.
func (k *Records) wait(ctx context.Context, i id) (*record, error) {
	k.mu.Lock()
	f := k.flights[i]
	if f == nil {
		if k.closed {
			k.mu.Unlock()
			return nil, context.Canceled
		}
		f = &flight{wake: make(chan struct{}, 1), empty: make(chan struct{}), done: make(chan struct{})}
		k.flights[i] = f
		k.wg.Add(1)
		go k.poll(i, f)
	}
	f.waiters++
	k.mu.Unlock()

	select {
	case <-f.done:
		return f.rec, nil
	case <-ctx.Done():
	case <-k.ctx.Done():
		return nil, context.Canceled
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if f.waiters--; f.waiters == 0 && k.flights[i] == f {
		delete(k.flights, i)
		close(f.empty)
	}
	return nil, context.Cause(ctx)
}

// poll waits for the completion of a record for all waiters of a flight.
func (k *Records) poll(i id, f *flight) {
	defer k.wg.Done()
	ctx, cancel := context.WithTimeout(k.ctx, k.config.Poll)
	_ = k.store.subscribe(ctx) // on an error, polling is enough
	cancel()
	for {
		// After subscribing, so that no completion falls between the two.
		start := time.Now()
		rec, left, err := k.store.get(k.ctx, i)
		k.observeStore("get", start, err)
		if err == nil && (rec == nil || rec.Status != Pending || left <= 0) {
			k.mu.Lock()
			if k.flights[i] == f {
				delete(k.flights, i)
			}
			k.mu.Unlock()
			f.rec = rec
			close(f.done)
			return
		}
		again := k.config.Poll
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
		case <-k.ctx.Done():
			t.Stop()
			return
		}
		t.Stop()
	}
}

// notify wakes the flight of i, if there is one, or all flights for the zero id.
func (k *Records) notify(i id) {
	k.mu.Lock()
	defer k.mu.Unlock()
	wake := func(f *flight) {
		select {
		case f.wake <- struct{}{}:
		default: // a read is already due
		}
	}
	if f := k.flights[i]; f != nil {
		wake(f)
	} else if i == (id{}) {
		for _, f := range k.flights {
			wake(f)
		}
	}
}
