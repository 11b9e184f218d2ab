package idempotency

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// file holds records in a bbolt file, which this process alone has open. What
// is written is synced before it is answered for; all that is asked for while
// a sync runs is written by the next one together.
type file struct {
	db   *bolt.DB
	path string

	quit chan struct{} // closed by close
	wg   sync.WaitGroup

	mu      sync.Mutex
	queue   []*write         // those that the next sync takes along; guarded by mu
	leading bool             // somebody syncs, and will call the next to; guarded by mu
	leases  map[string]lease // of the calls of this process, by name; guarded by mu
	closed  bool             // guarded by mu

	// ended are the leases that the batch has no more use for once it is on
	// disk; until then others read the record as it was. Owned by whoever leads.
	ended []endedLease
}

// lease is how long an owner may be silent yet: only in memory, since it needs
// no sync, and by the monotonic clock.
type lease struct {
	owner string
	fence int64
	until time.Time
}

type endedLease struct {
	name string
	lease
}

// write is a change that waits for its turn.
type write struct {
	do   func(b *bolt.Bucket, now int64) error
	done chan error // has room for the answer, errLead included
}

// errLead tells a write that it is its turn to sync, for all that wait.
var errLead = errors.New("lead")

const (
	// maxBatch is how many writes one sync takes along.
	maxBatch = 512
	// sweepEvery and sweepRecords are how the file is cleared of what has
	// expired: so many records are looked at each time.
	sweepEvery   = 30 * time.Second
	sweepRecords = 20_000
)

var bucketName = []byte("records")

// A value is a header, so that what has expired is found without reading all,
// and the record in JSON.
const (
	headFormat  = 1
	headPending = 1 // flag
	headLen     = 2 + 8
)

func encodeRecord(r *record) ([]byte, error) {
	var b bytes.Buffer
	head := make([]byte, headLen)
	head[0] = headFormat
	if r.Status == Pending {
		head[1] = headPending
	}
	binary.BigEndian.PutUint64(head[2:], uint64(r.ExpiresAt))
	b.Write(head)
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // a result is given back as it came
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

var errUnreadable = errors.New("the record cannot be read; flush its key")

func decodeRecord(b []byte) (*record, error) {
	if len(b) < headLen || b[0] != headFormat {
		return nil, fmt.Errorf("%w: no header of format %d", errUnreadable, headFormat)
	}
	var r record
	if err := json.Unmarshal(b[headLen:], &r); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if h := int64(binary.BigEndian.Uint64(b[2:])); h != r.ExpiresAt || (b[1] == headPending) != (r.Status == Pending) {
		return nil, fmt.Errorf("%w: its header is another's", errUnreadable)
	}
	return &r, nil
}

// check refuses what no machine has made.
func (r *record) check() error {
	const longest = int64(1) << 53
	ok := func(ms int64) bool { return ms >= 0 && ms < longest }
	switch {
	case r.Status != Pending && r.Status != Completed && r.Status != Failed:
		return fmt.Errorf("status %.32q", r.Status)
	case r.Owner == "" || r.Payload == "" || r.Fence < 1:
		return errors.New("it lacks its owner, payload or fence")
	case !ok(r.ExpiresAt), !ok(r.ClaimedAt), !ok(r.EndedAt), !ok(r.LeaseUntil), !ok(r.TTL):
		return errors.New("a time is out of range")
	}
	return nil
}

// openFile opens or makes a file and settles what it finds PENDING there:
// nobody else can be its owner.
func openFile(path string) (f *file, err error) {
	defer func() {
		if p := recover(); p != nil { // bbolt's way with some damaged files
			f, err = nil, fmt.Errorf("%s is damaged: %v; move it away to begin anew, after a look at what was running", path, p)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout: time.Second,
		// The list of free pages is found again on opening, and not written
		// with each sync.
		NoFreelistSync: true,
		FreelistType:   bolt.FreelistMapType,
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("%s is in use by another process; give each its own folder, or let them share a Redis", path)
	case err != nil:
		return nil, fmt.Errorf("open %s: %w; if it is damaged, move it away to begin anew, after a look at what was running", path, err)
	}
	f = &file{db: db, path: path, quit: make(chan struct{}), leases: map[string]lease{}}
	if err := f.settle(); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("settle %s: %w", path, err)
	}
	// The file itself is on disk; that it has a name is its folder's to say.
	if err := syncDir(filepath.Dir(path)); err != nil {
		_ = db.Close()
		return nil, err
	}
	f.wg.Go(f.sweep)
	return f, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// settle ends every PENDING record: its owner died with the process before.
func (f *file) settle() error {
	return f.db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucketName)
		if err != nil {
			return err
		}
		now := time.Now().UnixMilli()
		var names [][]byte
		err = b.ForEach(func(name, v []byte) error {
			if len(v) >= headLen && v[1] == headPending {
				names = append(names, bytes.Clone(name))
			}
			return nil
		})
		for _, name := range names {
			r, e := decodeRecord(b.Get(name))
			if e != nil {
				continue // shown and refused as such
			}
			r.LeaseUntil, r.ExpiresAt = now, now+r.TTL
			if e := put(b, name, r.settled(now)); e != nil {
				return e
			}
		}
		return err
	})
}

func put(b *bolt.Bucket, name []byte, r *record) error {
	v, err := encodeRecord(r)
	if err != nil {
		return err
	}
	return b.Put(name, v)
}

// lead writes what has been asked for, in the order in which it was, and calls
// the next to do so for what has come in the meantime. A goroutine of its own
// would have a lone write pay for two switches.
func (f *file) lead() {
	f.mu.Lock()
	batch := f.queue
	f.queue = nil
	if len(batch) > maxBatch {
		batch, f.queue = batch[:maxBatch:maxBatch], batch[maxBatch:]
	}
	f.mu.Unlock()
	err := f.apply(batch)
	f.mu.Lock()
	if len(f.queue) > 0 {
		f.queue[0].done <- errLead
	} else {
		f.leading = false
	}
	f.mu.Unlock()
	for _, w := range batch {
		w.done <- err
	}
}

func (f *file) apply(batch []*write) (err error) {
	defer func() {
		if p := recover(); p != nil { // bbolt's way with a damaged page
			err = fmt.Errorf("write %s: %v", f.path, p)
		}
	}()
	f.ended = f.ended[:0]
	err = f.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketName)
		now := time.Now().UnixMilli()
		for _, w := range batch {
			if err := w.do(b, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		f.mu.Lock()
		for _, e := range f.ended {
			// Another may have claimed the key in the same batch.
			if l := f.leases[e.name]; l.owner == e.owner && l.fence == e.fence {
				delete(f.leases, e.name)
			}
		}
		f.mu.Unlock()
	}
	return err
}

var errClosed = errors.New("it is closed")

// update has do run with all others of its batch, and returns when that is on
// disk. do must leave no error of its own record, which would be everybody's.
func (f *file) update(ctx context.Context, do func(b *bolt.Bucket, now int64) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w: %w", ErrStoreUnavailable, errNotSent, err)
	}
	w := &write{do: do, done: make(chan error, 2)}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return fmt.Errorf("%w: %w: %w", ErrStoreUnavailable, errNotSent, errClosed)
	}
	f.wg.Add(1)
	defer f.wg.Done()
	f.queue = append(f.queue, w)
	leads := !f.leading
	f.leading = true
	f.mu.Unlock()
	if leads {
		f.lead()
	}
	// The disk is waited for even when ctx ends: the answer is true then.
	err := <-w.done
	if err == errLead {
		f.lead()
		err = <-w.done
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	}
	return nil
}

// view has do run on what is on disk.
func (f *file) view(do func(b *bolt.Bucket, now int64) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: read %s: %v", ErrStoreUnavailable, f.path, p)
		}
	}()
	err = f.db.View(func(tx *bolt.Tx) error { return do(tx.Bucket(bucketName), time.Now().UnixMilli()) })
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
	}
	return nil
}

// read is the record of a name with the lease that it has in this process.
func (f *file) read(b *bolt.Bucket, name string, now int64) (*record, error) {
	v := b.Get([]byte(name))
	if v == nil {
		return nil, nil
	}
	return f.decode(name, v, now)
}

func (f *file) decode(name string, v []byte, now int64) (*record, error) {
	r, err := decodeRecord(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if r.Status == Pending {
		f.mu.Lock()
		l, ok := f.leases[name]
		f.mu.Unlock()
		// A wall clock that is set forward must not end the lease of a call
		// that runs: what is left of it is measured by the monotonic one.
		if ok && l.owner == r.Owner && l.fence == r.Fence {
			r.LeaseUntil = now + time.Until(l.until).Milliseconds()
			r.ExpiresAt = r.LeaseUntil + r.TTL
		}
	}
	return r, nil
}

// write stores a record and, while it is PENDING, its lease.
func (f *file) write(b *bolt.Bucket, name string, r *record, now int64) error {
	l := lease{r.Owner, r.Fence, time.Now().Add(time.Duration(r.LeaseUntil-now) * time.Millisecond)}
	if r.Status != Pending {
		f.ended = append(f.ended, endedLease{name, l})
	} else {
		f.mu.Lock()
		f.leases[name] = l
		f.mu.Unlock()
	}
	return put(b, []byte(name), r)
}

func (f *file) claim(ctx context.Context, i id, c claiming) (r *record, left time.Duration, v verdict, err error) {
	name := i.String()
	step := func(b *bolt.Bucket, now int64, write bool) error {
		r, left, v = nil, 0, 0
		old, err := f.read(b, name, now)
		if err != nil {
			return err
		}
		r, v = claim(old, c, now)
		switch {
		case r == nil:
			r = old
		case write:
			if err := f.write(b, name, r, now); err != nil {
				return err
			}
		default:
			v = 0
		}
		left = time.Duration(r.LeaseUntil-now) * time.Millisecond
		return nil
	}
	// Most duplicates change nothing and need no sync.
	err = f.view(func(b *bolt.Bucket, now int64) error { return step(b, now, false) })
	if err != nil {
		return nil, 0, 0, fmt.Errorf("%w: %w", errNotSent, err)
	}
	if v != 0 {
		return r, left, v, nil
	}
	var fault error
	err = f.update(ctx, func(b *bolt.Bucket, now int64) error {
		fault = step(b, now, true)
		return nil
	})
	if err == nil && fault != nil {
		err = fmt.Errorf("%w: %w: %w", ErrStoreUnavailable, errNotSent, fault)
	}
	return r, left, v, err
}

func (f *file) end(ctx context.Context, i id, e ending) (v verdict, err error) {
	name := i.String()
	var fault error
	err = f.update(ctx, func(b *bolt.Bucket, now int64) error {
		fault = func() error {
			old, err := f.read(b, name, now)
			if err != nil {
				return err
			}
			var next *record
			var drop bool
			next, drop, v = end(old, e, now)
			switch {
			case drop:
				return f.drop(b, name, old)
			case next != nil:
				return f.write(b, name, next, now)
			case old == nil: // the claim did not reach the disk, its lease is here
				f.ended = append(f.ended, endedLease{name, lease{owner: e.owner, fence: max(e.fence, 1)}})
			}
			return nil
		}()
		return nil
	})
	if err == nil && fault != nil {
		err = fmt.Errorf("%w: %w", ErrStoreUnavailable, fault)
	}
	return v, err
}

// drop removes a record, which is nil where it could not be read.
func (f *file) drop(b *bolt.Bucket, name string, r *record) error {
	if r != nil {
		f.ended = append(f.ended, endedLease{name, lease{owner: r.Owner, fence: r.Fence}})
	}
	return b.Delete([]byte(name))
}

// renew keeps the lease in memory, without a sync: when this process is gone,
// so is every owner.
func (f *file) renew(_ context.Context, i id, owner string, fence, ms int64) (v verdict, err error) {
	name := i.String()
	err = f.view(func(b *bolt.Bucket, now int64) error {
		old, err := f.read(b, name, now)
		if err != nil {
			return err
		}
		var next *record
		if next, v = renew(old, owner, fence, ms, now); next != nil {
			f.mu.Lock()
			if l := f.leases[name]; l.owner == owner && l.fence == fence {
				l.until = time.Now().Add(time.Duration(ms) * time.Millisecond)
				f.leases[name] = l
			}
			f.mu.Unlock()
		}
		return nil
	})
	return v, err
}

func (f *file) get(_ context.Context, i id) (r *record, left time.Duration, err error) {
	err = f.view(func(b *bolt.Bucket, now int64) error {
		var err error
		r, err = f.read(b, i.String(), now)
		if err != nil {
			return err
		}
		if r = r.live(now); r != nil {
			r = r.settled(now)
			left = time.Duration(r.LeaseUntil-now) * time.Millisecond
		}
		return nil
	})
	return r, left, err
}

func (f *file) list(ctx context.Context, scope string, each func(string, *record) bool) error {
	prefix := id{scope: scope}.String()
	return f.view(func(b *bolt.Bucket, now int64) error {
		c := b.Cursor()
		for name, v := c.Seek([]byte(prefix)); strings.HasPrefix(string(name), prefix); name, v = c.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			r, err := f.decode(string(name), v, now)
			if err != nil {
				r = &record{Status: Failed, Error: &Failure{Code: CodeUnreadable, Message: err.Error()}, ExpiresAt: now + 1}
			}
			if r = r.live(now); r != nil && !each(string(name[len(prefix):]), r.settled(now)) {
				return nil
			}
		}
		return nil
	})
}

func (f *file) flush(ctx context.Context, i id) (found, flushed bool, err error) {
	name := i.String()
	err = f.update(ctx, func(b *bolt.Bucket, now int64) error {
		found, flushed = false, false
		r, err := f.read(b, name, now)
		if err == nil {
			if r = r.live(now); r == nil {
				return nil
			}
			if !flushable(r, now) {
				found = true
				return nil
			}
		}
		found, flushed = true, true
		return f.drop(b, name, r)
	})
	return found, flushed, err
}

// sweep removes what has expired, a part of the file at a time.
func (f *file) sweep() {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	var from []byte
	for {
		select {
		case <-t.C:
			from = f.sweepFrom(from)
		case <-f.quit:
			return
		}
	}
}

// sweepFrom looks at sweepRecords records and returns where to go on.
func (f *file) sweepFrom(from []byte) (next []byte) {
	var expired [][]byte
	err := f.view(func(b *bolt.Bucket, now int64) error {
		c := b.Cursor()
		name, v := c.Seek(from)
		for n := 0; name != nil && n < sweepRecords; n++ {
			if len(v) >= headLen && int64(binary.BigEndian.Uint64(v[2:])) <= now {
				expired = append(expired, bytes.Clone(name))
			}
			name, v = c.Next()
		}
		next = bytes.Clone(name)
		return nil
	})
	if err != nil || len(expired) == 0 {
		return next
	}
	_ = f.update(context.Background(), func(b *bolt.Bucket, now int64) error {
		for _, name := range expired {
			// Read again: it may be another's now, or its lease renewed.
			if r, err := f.read(b, string(name), now); err == nil && r != nil && r.live(now) == nil {
				if err := f.drop(b, string(name), r); err != nil {
					return err
				}
			}
		}
		return nil
	}) // else the next round finds them
	return next
}

func (f *file) watch(context.Context) error { return nil }

func (f *file) ping(context.Context) error {
	return f.view(func(*bolt.Bucket, int64) error { return nil })
}

func (f *file) survives(context.Context) string {
	return fmt.Sprintf("file %s: every record survives kill -9 and a reboot, synced before it is answered for. "+
		"What runs when this process ends is an unknown outcome at the next start, unless it was declared safe to run again. "+
		"Lost with the disk, or when an older copy of the file is put back. It is this process's alone: several hosts need a Redis.", f.path)
}

func (f *file) close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	f.mu.Unlock()
	close(f.quit)
	f.wg.Wait()
	return f.db.Close()
}
