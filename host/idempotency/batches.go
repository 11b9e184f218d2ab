package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
)

// batches is a database whose writes return after they are synced; those that arrive during
// a sync are committed together by the next one.
type batches struct {
	db   *bolt.DB
	path string
	wg   sync.WaitGroup

	mu         sync.Mutex
	queue      []*write         // waiting for the next sync; guarded by mu
	committing bool             // a goroutine syncs and will start the next batch; guarded by mu
	leases     map[string]lease // of this process's calls, by record name; guarded by mu
	closed     bool             // guarded by mu
}

// tx is a transaction, whose records all have one time.
type tx struct {
	*batches
	bucket *bolt.Bucket
	now    int64 // milliseconds of Unix
	// ended are the leases to drop once the batch is on disk; until then readers see the old record.
	ended []endedLease
}

var bucketName = []byte("records")

// maxBatch is how many writes one sync commits.
const maxBatch = 512

func (b *batches) begin(t *bolt.Tx) *tx {
	return &tx{batches: b, bucket: t.Bucket(bucketName), now: time.Now().UnixMilli()}
}

// lease is how long an owner's claim lasts without a renewal. It is kept in
// memory only, since it needs no sync, and uses the monotonic clock.
type lease struct {
	owner string
	fence int64
	until time.Time
}

type endedLease struct {
	name string
	lease
}

// write is a queued change.
type write struct {
	do    func(*tx) error
	fault error      // do's own
	done  chan error // has room for the answer, errCommitNext included
}

// errCommitNext makes the receiving write commit the next batch.
var errCommitNext = errors.New("commit the next batch")

// commitNext commits the queued writes in order, and makes the first write that
// arrived meanwhile commit the next batch. A dedicated goroutine would cost a
// single write two context switches.
func (b *batches) commitNext() {
	b.mu.Lock()
	batch := b.queue
	b.queue = nil
	if len(batch) > maxBatch {
		batch, b.queue = batch[:maxBatch:maxBatch], batch[maxBatch:]
	}
	b.mu.Unlock()
	err := b.apply(batch)
	b.mu.Lock()
	if len(b.queue) > 0 {
		b.queue[0].done <- errCommitNext
	} else {
		b.committing = false
	}
	b.mu.Unlock()
	for _, w := range batch {
		w.done <- err
	}
}

func (b *batches) apply(batch []*write) (err error) {
	defer func() {
		if p := recover(); p != nil { // bbolt panics on a damaged page
			err = fmt.Errorf("write %s: %v", b.path, p)
		}
	}()
	var t *tx
	err = b.db.Update(func(bt *bolt.Tx) error {
		t = b.begin(bt)
		for _, w := range batch {
			w.fault = w.do(t)
		}
		return nil
	})
	if err == nil {
		b.mu.Lock()
		for _, e := range t.ended {
			// The key may have been claimed again in the same batch.
			if l := b.leases[e.name]; l.owner == e.owner && l.fence == e.fence {
				delete(b.leases, e.name)
			}
		}
		b.mu.Unlock()
	}
	return err
}

// update runs do in a batch and returns when the batch is on disk. An error of do does not
// fail the others of its batch.
func (b *batches) update(ctx context.Context, do func(*tx) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w: %w", ErrStoreUnavailable, errNotSent, err)
	}
	w := &write{do: do, done: make(chan error, 2)}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return fmt.Errorf("%w: %w: %w", ErrStoreUnavailable, errNotSent, errors.New("store is closed"))
	}
	b.wg.Add(1)
	defer b.wg.Done()
	b.queue = append(b.queue, w)
	first := !b.committing
	b.committing = true
	b.mu.Unlock()
	if first {
		b.commitNext()
	}
	// Wait for the disk even if ctx ends: the result is known then.
	err := <-w.done
	if err == errCommitNext {
		b.commitNext()
		err = <-w.done
	}
	if err = cmp.Or(err, w.fault); err != nil {
		err = fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	}
	return err
}

// view runs do in a read transaction.
func (b *batches) view(do func(*tx) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: read %s: %v", ErrStoreUnavailable, b.path, p)
		}
	}()
	if err = b.db.View(func(bt *bolt.Tx) error { return do(b.begin(bt)) }); err != nil {
		err = fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	}
	return err
}

// read returns the record of a name, with its lease in this process.
func (t *tx) read(name string) (*record, error) {
	v := t.bucket.Get([]byte(name))
	if v == nil {
		return nil, nil
	}
	return t.decode(name, v)
}

func (t *tx) decode(name string, v []byte) (*record, error) {
	r, err := decodeRecord(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if r.Status == Pending {
		t.mu.Lock()
		l, ok := t.leases[name]
		t.mu.Unlock()
		// Setting the wall clock forward must not end the lease of a running
		// call: the rest of it is measured by the monotonic clock.
		if ok && l.owner == r.Owner && l.fence == r.Fence {
			r.LeaseUntil = t.now + time.Until(l.until).Milliseconds()
			r.ExpiresAt = r.LeaseUntil + r.TTL
		}
	}
	return r, nil
}

// write stores a record and, while it is PENDING, its lease.
func (t *tx) write(name string, r *record) error {
	l := lease{r.Owner, r.Fence, time.Now().Add(time.Duration(r.LeaseUntil-t.now) * time.Millisecond)}
	if r.Status != Pending {
		t.ended = append(t.ended, endedLease{name, l})
	} else {
		t.mu.Lock()
		t.leases[name] = l
		t.mu.Unlock()
	}
	return put(t.bucket, []byte(name), r)
}

// drop removes a record; r is nil if it could not be read.
func (t *tx) drop(name string, r *record) error {
	if r != nil {
		t.ended = append(t.ended, endedLease{name, lease{owner: r.Owner, fence: r.Fence}})
	}
	return t.bucket.Delete([]byte(name))
}
