package idempotency

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/toold/toold/host/regular"
)

// file holds records in a bbolt file that only this process has open.
type file struct {
	*batches
	quit chan struct{} // closed by close
}

const (
	// Every sweepEvery, sweepRecords records are checked for expiry.
	sweepEvery   = 30 * time.Second
	sweepRecords = 20_000
)

// A value is a binary header, so that expired records are found without parsing
// JSON, followed by the record as JSON.
const (
	headerFormat  = 1
	headerPending = 1 // flag
	headerLen     = 2 + 8
)

func encodeRecord(r *record) ([]byte, error) {
	var b bytes.Buffer
	head := make([]byte, headerLen)
	head[0] = headerFormat
	if r.Status == Pending {
		head[1] = headerPending
	}
	binary.BigEndian.PutUint64(head[2:], uint64(r.ExpiresAt))
	b.Write(head)
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // results are replayed unchanged
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

var errUnreadable = errors.New("record is unreadable; flush its key")

func decodeRecord(b []byte) (*record, error) {
	if len(b) < headerLen || b[0] != headerFormat {
		return nil, fmt.Errorf("%w: no header of format %d", errUnreadable, headerFormat)
	}
	var r record
	if err := json.Unmarshal(b[headerLen:], &r); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if h := int64(binary.BigEndian.Uint64(b[2:])); h != r.ExpiresAt || (b[1] == headerPending) != (r.Status == Pending) {
		return nil, fmt.Errorf("%w: header and record differ", errUnreadable)
	}
	return &r, nil
}

// validate rejects records that the state machine cannot produce.
func (r *record) validate() error {
	const longest = int64(1) << 53
	ok := func(ms int64) bool { return ms >= 0 && ms < longest }
	switch {
	case r.Status != Pending && r.Status != Completed && r.Status != Failed:
		return fmt.Errorf("status %.32q", r.Status)
	case r.Owner == "" || r.Payload == "" || r.Fence < 1:
		return errors.New("owner, payload or fence is missing")
	case !ok(r.ExpiresAt), !ok(r.ClaimedAt), !ok(r.EndedAt), !ok(r.LeaseUntil), !ok(r.TTL):
		return errors.New("a time is out of range")
	}
	return nil
}

// openFile opens or creates a file and settles its PENDING records: their
// owners ended with the previous process.
func openFile(path string) (f *file, err error) {
	defer func() {
		if p := recover(); p != nil { // bbolt panics on some damaged files
			f, err = nil, fmt.Errorf("%s is damaged: %v; check which calls were running, then move it away", path, p)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a part of the file that is not there
	if err = makeFile(path); err == nil {
		err = checkFile(path)
	}
	if err != nil {
		return nil, err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		Timeout: lockTime,
		// The freelist is rebuilt on open instead of written with each sync.
		NoFreelistSync: true,
		FreelistType:   bolt.FreelistMapType,
	})
	if err != nil {
		return nil, openError(path, err)
	}
	f = &file{&batches{db: db, path: path, leases: map[string]lease{}}, make(chan struct{})}
	if err = settlePending(db); err == nil { // the file is synced, but not its directory entry
		err = regular.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("settle %s: %w", path, err), db.Close())
	}
	f.wg.Go(f.sweep)
	return f, nil
}

const lockTime = time.Second // how long another process may take to release a file

func openError(path string, err error) error {
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%s is in use by another process; give each its own folder, or share a Redis", path)
	}
	return fmt.Errorf("open %s: %w; if it is damaged, check which calls were running, then move it away", path, err)
}

// makeFile makes the file where there is none. It is made aside: an empty one is then
// one that was emptied, and not one of a daemon that was killed while it made it.
func makeFile(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, filepath.Base(path))
	db, err := bolt.Open(made, 0o600, nil)
	if err == nil {
		err = db.Close()
	}
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		err = fmt.Errorf("make %s: %w", path, err)
	}
	return err
}

// checkFile reads the whole file: bbolt takes an empty one for a new one, and may panic on
// damaged pages later. Keys of records that were lost unnoticed would run again.
func checkFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return openError(path, errors.New("it is not a regular file"))
	case info.Size() == 0:
		return openError(path, errors.New("it is empty: what it recorded is lost"))
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockTime})
	if err != nil {
		return openError(path, err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("it is cut off: it has %d bytes of %d", info.Size(), tx.Size())
		}
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
	if err != nil {
		err = openError(path, err)
	}
	return err
}

// settlePending ends every PENDING record: its owner ended with the previous
// process.
func settlePending(db *bolt.DB) error {
	return db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucketName)
		if err != nil {
			return err
		}
		now := time.Now().UnixMilli()
		var names [][]byte
		err = b.ForEach(func(name, v []byte) error {
			if len(v) >= headerLen && v[1] == headerPending {
				names = append(names, bytes.Clone(name))
			}
			return nil
		})
		for _, name := range names {
			r, e := decodeRecord(b.Get(name))
			if e != nil {
				continue // List shows it as unreadable, and claims of it fail
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

func (f *file) claim(ctx context.Context, i id, c claimRequest) (r *record, left time.Duration, v verdict, err error) {
	name := i.String()
	step := func(t *tx, write bool) error {
		r, left, v = nil, 0, 0
		old, err := t.read(name)
		if err != nil {
			return err
		}
		r, v = claim(old, c, t.now)
		switch {
		case r == nil:
			r = old
		case write:
			if err := t.write(name, r); err != nil {
				return err
			}
		default:
			v = 0
		}
		left = time.Duration(r.LeaseUntil-t.now) * time.Millisecond
		return nil
	}
	// Most duplicates do not change the record and need no sync.
	if err = f.view(func(t *tx) error { return step(t, false) }); err != nil {
		return nil, 0, 0, fmt.Errorf("%w: %w", errNotSent, err)
	}
	if v != 0 {
		return r, left, v, nil
	}
	err = f.update(ctx, func(t *tx) error {
		err := step(t, true)
		if err != nil {
			err = fmt.Errorf("%w: %w", errNotSent, err)
		}
		return err
	})
	return r, left, v, err
}

func (f *file) complete(ctx context.Context, i id, e completion) (verdict, error) {
	return f.change(ctx, i, func(t *tx, old *record) (*record, bool, verdict) {
		next, drop, v := complete(old, e, t.now)
		if old == nil && next == nil && !drop { // the claim did not reach the disk, but its lease is in memory
			t.ended = append(t.ended, endedLease{i.String(), lease{owner: e.owner, fence: max(e.fence, 1)}})
		}
		return next, drop, v
	})
}

func (f *file) annotate(ctx context.Context, i id, owner string, fence int64, note json.RawMessage) (verdict, error) {
	return f.change(ctx, i, func(t *tx, old *record) (*record, bool, verdict) {
		next, v := annotate(old, owner, fence, note, t.now)
		return next, false, v
	})
}

func (f *file) resolve(ctx context.Context, i id, x resolution) (verdict, error) {
	return f.change(ctx, i, func(t *tx, old *record) (*record, bool, verdict) { return resolve(old, x, t.now) })
}

// change stores what decide makes of a record.
func (f *file) change(ctx context.Context, i id, decide func(t *tx, old *record) (next *record, drop bool, v verdict)) (v verdict, err error) {
	name := i.String()
	err = f.update(ctx, func(t *tx) error {
		old, err := t.read(name)
		if err != nil {
			return err
		}
		next, drop, verdict := decide(t, old)
		switch v = verdict; {
		case drop:
			err = t.drop(name, old)
		case next != nil:
			err = t.write(name, next)
		}
		return err
	})
	return v, err
}

// renew extends the lease in memory only: every owner ends with this process.
func (f *file) renew(_ context.Context, i id, owner string, fence, ms int64) (v verdict, err error) {
	name := i.String()
	err = f.view(func(t *tx) error {
		old, err := t.read(name)
		if err != nil {
			return err
		}
		var next *record
		if next, v = renew(old, owner, fence, ms, t.now); next != nil {
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
	err = f.view(func(t *tx) error {
		if r, err = t.read(i.String()); err != nil {
			return err
		}
		if r = r.live(t.now); r != nil {
			r = r.settled(t.now)
			left = time.Duration(r.LeaseUntil-t.now) * time.Millisecond
		}
		return nil
	})
	return r, left, err
}

func (f *file) list(ctx context.Context, scope string, each func(string, *record) bool) error {
	prefix := id{scope: scope}.String()
	return f.view(func(t *tx) error {
		c := t.bucket.Cursor()
		for name, v := c.Seek([]byte(prefix)); strings.HasPrefix(string(name), prefix); name, v = c.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			r, err := t.decode(string(name), v)
			if err != nil {
				r = &record{Status: Failed, Error: &Failure{Code: CodeUnreadable, Message: err.Error()}, ExpiresAt: t.now + 1}
			}
			if r = r.live(t.now); r != nil && !each(string(name[len(prefix):]), r.settled(t.now)) {
				return nil
			}
		}
		return nil
	})
}

func (f *file) flush(ctx context.Context, i id) (found, flushed bool, err error) {
	name := i.String()
	err = f.update(ctx, func(t *tx) error {
		found, flushed = false, false
		r, err := t.read(name)
		if err == nil {
			if r = r.live(t.now); r == nil {
				return nil
			}
			if !flushable(r, t.now) {
				found = true
				return nil
			}
		}
		found, flushed = true, true
		return t.drop(name, r)
	})
	return found, flushed, err
}

// sweep removes expired records, part of the file at a time.
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

// sweepFrom checks sweepRecords records and returns the name to continue from.
func (f *file) sweepFrom(from []byte) (next []byte) {
	var expired [][]byte
	err := f.view(func(t *tx) error {
		c := t.bucket.Cursor()
		name, v := c.Seek(from)
		for n := 0; name != nil && n < sweepRecords; n++ {
			if len(v) >= headerLen && int64(binary.BigEndian.Uint64(v[2:])) <= t.now {
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
	_ = f.update(context.Background(), func(t *tx) error {
		for _, name := range expired {
			// Read again: it may have been claimed or renewed since.
			if r, err := t.read(string(name)); err == nil && r != nil && r.live(t.now) == nil {
				if err := t.drop(string(name), r); err != nil {
					return err
				}
			}
		}
		return nil
	}) // on an error, the next round retries
	return next
}

func (f *file) subscribe(context.Context) error { return nil }

func (f *file) ping(context.Context) error {
	return f.view(func(*tx) error { return nil })
}

func (f *file) survives(context.Context) string {
	return fmt.Sprintf("file %s: every record is synced before it is acknowledged and survives kill -9 and a reboot. "+
		"Calls that run when this process ends have an unknown outcome at the next start, unless they were declared safe to rerun. "+
		"Records are lost with the disk, or when an older copy of the file is restored. One process owns the file: several hosts need a Redis.", f.path)
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
