package idempotency

import (
	"context"
	"time"
)

// flight is a key that somebody here waits for. All of them share one
// goroutine that looks at the record.
type flight struct {
	waiters int           // guarded by Keeper.mu
	poke    chan struct{} // holds a token when the record is to be looked at
	empty   chan struct{} // closed when the last waiter has left
	done    chan struct{} // closed when rec is set
	rec     *record       // nil: no record. Written before done is closed
}

// wait returns when the record of i is no longer held: the record as it is
// then, nil when there is none, PENDING when it may be taken over. The error
// is the cause of ctx.
func (k *Keeper) wait(ctx context.Context, i id) (*record, error) {
	k.mu.Lock()
	f := k.flights[i]
	if f == nil {
		if k.closed {
			k.mu.Unlock()
			return nil, context.Canceled
		}
		f = &flight{poke: make(chan struct{}, 1), empty: make(chan struct{}), done: make(chan struct{})}
		k.flights[i] = f
		k.wg.Add(1)
		go k.look(i, f)
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

// look waits for the end of a record, on behalf of all waiters of a flight.
func (k *Keeper) look(i id, f *flight) {
	defer k.wg.Done()
	ctx, cancel := context.WithTimeout(k.ctx, k.config.Poll)
	_ = k.store.watch(ctx) // else there is the poll
	cancel()
	for {
		// Only now: what ended before the watch began is seen here.
		start := time.Now()
		rec, left, err := k.store.get(k.ctx, i)
		k.timed("get", start, err)
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
		case <-f.poke:
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

// tell has the record of i looked at, if anybody here waits for it; with the
// zero id those of all that wait.
func (k *Keeper) tell(i id) {
	k.mu.Lock()
	defer k.mu.Unlock()
	poke := func(f *flight) {
		select {
		case f.poke <- struct{}{}:
		default: // it will be looked at anyway
		}
	}
	if f := k.flights[i]; f != nil {
		poke(f)
	} else if i == (id{}) {
		for _, f := range k.flights {
			poke(f)
		}
	}
}
