package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/toold/toold/host/regular"
)

// Options are the operator's settings.
type Options struct {
	// On: if false, nothing is written and no record is requested.
	On bool
	// MaxBytes bounds all segments together, MaxAge each: segments beyond them are removed, oldest first, but never
	// the one being written.
	MaxBytes int64
	MaxAge   time.Duration
}

const (
	// maxSegment and minSegment bound the size in bytes at which a new segment is begun: an eighth of the limit for
	// the whole log.
	maxSegment = 64 << 20
	minSegment = 64 << 10
	// segmentAge is the age at which a new segment is begun whatever the size, so that old records can be removed.
	segmentAge = 24 * time.Hour
	// maxBatch is how many bytes of records go into one write, and one sync.
	maxBatch = 1 << 20
)

// pendingRecord is a record waiting to be written.
type pendingRecord struct {
	make func() *Record
	size int
	sync bool
	done chan error // has a capacity of one; nil if nobody waits
	set  *Options   // instead of a record

	// Results of the writer; others read them after done has delivered.
	n   uint64
	err error
}

// record creates the record of e. A panic in it affects only that record.
func (e *pendingRecord) record() (r *Record, err error) {
	defer func() {
		if v := recover(); v != nil {
			r, err = nil, fmt.Errorf("describe the call: %v", v)
		}
	}()
	return e.make(), nil
}

// writer is the state of writing a log. One goroutine at a time owns it.
type writer struct {
	dir  string
	opts Options
	log  *slog.Logger

	newest newestSegment
	head   *os.File
	older  []segmentFile // the earlier segments, oldest first

	n, synced uint64      // the last record, and the last that is on disk
	last      hash        // of the last record
	lost      uint64      // records since then that could not be written
	failing   atomic.Bool // the last write failed; may be read by anyone
	buf       bytes.Buffer
}

// newestSegment is the segment that records are appended to.
type newestSegment struct {
	file   *os.File // nil if the log must be opened first
	number uint64
	size   int64
	began  time.Time
}

// commit writes as many records of batch as fit in one write, and notifies those who wait. It returns their number.
func (w *writer) commit(batch []*pendingRecord) (taken int) {
	if e := batch[0]; e.set != nil {
		e.done <- w.set(*e.set)
		return 1
	}
	var err error
	if w.opts.On {
		err = w.prepare()
	}
	n, last := w.n, w.last
	w.buf.Reset()
	sync, written := false, 0
	for taken < len(batch) && batch[taken].set == nil && w.buf.Len() < maxBatch {
		e := batch[taken]
		taken++
		if err != nil || !w.opts.On {
			continue
		}
		var r *Record
		if r, e.err = e.record(); e.err == nil {
			e.err = w.add(r)
		}
		if e.err != nil {
			w.lost++
			continue
		}
		e.n = r.N
		written++
		sync = sync || e.sync
	}
	there := false
	if err == nil && written > 0 {
		if there, err = w.flush(sync); !there {
			w.n, w.last = n, last
		}
	}
	switch {
	case there:
		w.lost = 0
	case err != nil:
		w.lost += uint64(taken)
	}
	w.reportState(err)
	for _, e := range batch[:taken] {
		if e.done != nil {
			e.done <- errors.Join(e.err, err)
		}
	}
	return taken
}

// reportState logs when writing starts and stops failing.
func (w *writer) reportState(err error) {
	switch {
	case err != nil && !w.failing.Load():
		w.log.Error("the audit log cannot be written; mutating calls are refused", "error", err.Error(), "folder", w.dir)
	case err == nil && w.failing.Load():
		w.log.Warn("the audit log is written again", "folder", w.dir)
	}
	w.failing.Store(err != nil)
}

// add appends r to the buffer and to the chain.
func (w *writer) add(r *Record) error {
	from := w.buf.Len()
	r.N, r.Prev = w.n+1, w.last.String()
	r.At = r.At.UTC()
	if from == 0 {
		r.Lost = w.lost
	}
	if err := r.fit(&w.buf); err != nil {
		return err
	}
	w.n, w.last = r.N, hashOf(w.buf.Bytes()[from:])
	return nil
}

// flush writes the buffer, and then the head. there reports whether its records are in the log: all, or none. A later
// error is for those who wait for the disk.
func (w *writer) flush(sync bool) (there bool, err error) {
	k, err := w.newest.file.Write(w.buf.Bytes())
	if err != nil {
		if k > 0 && w.newest.file.Truncate(w.newest.size) != nil {
			w.close() // reopening cuts that off
		}
		return false, err
	}
	w.newest.size += int64(k)
	if sync {
		if err = fdatasync(w.newest.file); err == nil {
			w.synced = w.n
		}
	}
	return true, errors.Join(err, w.writeHead())
}

// prepare ensures that the newest segment is open, is still the file of its name, and has room.
func (w *writer) prepare() error {
	if w.newest.file == nil {
		return w.open()
	}
	there, err := os.Lstat(w.newest.file.Name())
	if err == nil {
		var fi os.FileInfo
		if fi, err = w.newest.file.Stat(); err == nil && !os.SameFile(there, fi) {
			err = errors.New("it was replaced by another file")
		}
	}
	if err != nil {
		w.log.Error("a segment of the audit log was removed or replaced; continuing in a new one", "segment", w.newest.file.Name(), "error", err.Error())
		w.close()
		return w.open()
	}
	if w.newest.size < w.limit() && time.Since(w.newest.began) < segmentAge {
		return nil
	}
	if err := w.roll(); err != nil {
		return err
	}
	w.prune()
	return nil
}

// limit returns the size at which the next segment is begun.
func (w *writer) limit() int64 { return min(max(w.opts.MaxBytes/8, minSegment), maxSegment) }

// roll begins the next segment.
func (w *writer) roll() error {
	if w.newest.file != nil {
		// The next segment implies that this one is complete.
		if err := fdatasync(w.newest.file); err != nil {
			return err
		}
		w.synced = w.n
	}
	next := w.newest.number + 1
	f, err := regular.OpenFile(segmentPath(w.dir, next), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if w.newest.file != nil {
		w.older = append(w.older, segmentFile{w.newest.number, w.newest.size})
		w.newest.file.Close()
	}
	w.newest.file, w.newest.number, w.newest.size = f, next, 0
	return w.beginSegment()
}

// beginSegment writes the first record of an empty segment.
func (w *writer) beginSegment() error {
	w.newest.began = time.Now()
	n, last := w.n, w.last
	w.buf.Reset()
	r := &Record{At: w.newest.began, Type: TypeSegment, Segment: &Segment{Version, w.newest.number}}
	err := w.add(r)
	if err == nil {
		if _, err = w.flush(true); err == nil {
			err = errors.Join(w.head.Sync(), regular.SyncDir(w.dir))
		}
	}
	if err != nil {
		w.n, w.last = n, last
		w.close() // whatever was written is found, or cut off, when it is opened
	}
	return err
}

// note writes an event in the log itself, and syncs it.
func (w *writer) note(n *Note) error {
	e := &pendingRecord{sync: true, done: make(chan error, 1), make: func() *Record { return &Record{At: time.Now(), Type: TypeNote, Note: n} }}
	w.commit([]*pendingRecord{e})
	return <-e.done
}

// set applies an operator's settings.
func (w *writer) set(o Options) error {
	was := w.opts
	switch {
	case was.On && !o.On:
		// A log that can no longer be written can be turned off nevertheless.
		w.note(&Note{Kind: NoteOff})
		w.close()
		w.failing.Store(false)
	case !was.On && o.On:
		w.opts = o
		err := w.open()
		if err == nil {
			err = w.note(&Note{Kind: NoteOn})
		}
		if err != nil {
			w.opts = was
			w.close()
			return err
		}
	}
	w.opts = o
	w.tidy()
	return nil
}

// tidy begins a new segment if the current one is old, and removes what exceeds the limits.
func (w *writer) tidy() {
	if !w.opts.On || w.newest.file == nil {
		return
	}
	if time.Since(w.newest.began) >= segmentAge {
		if err := w.roll(); err != nil {
			w.reportState(err)
			return
		}
	}
	w.prune()
}

// prune removes the oldest segments. The log records it before it happens.
func (w *writer) prune() {
	total := int64(0)
	for _, s := range w.older {
		total += s.size
	}
	gone := 0
	for gone < len(w.older) {
		s := w.older[gone]
		if total+w.limit() > w.opts.MaxBytes {
			total -= s.size
			gone++
			continue
		}
		// Its last record is as old as the first of the next segment, or older.
		next := w.newest.number
		if gone+1 < len(w.older) {
			next = w.older[gone+1].number
		}
		r, _, err := firstRecord(segmentPath(w.dir, next))
		if err != nil || time.Since(r.At) < w.opts.MaxAge {
			break
		}
		total -= s.size
		gone++
	}
	if gone == 0 {
		return
	}
	first := w.newest.number
	if gone < len(w.older) {
		first = w.older[gone].number
	}
	stays, _, err := firstRecord(segmentPath(w.dir, first))
	if err == nil {
		err = w.note(&Note{Kind: NotePruned, First: first, Hash: stays.Prev,
			Text: fmt.Sprintf("segments %d to %d were removed: they are over max_bytes or max_age_days", w.older[0].number, w.older[gone-1].number)})
	}
	if err != nil {
		w.log.Error("cannot remove old segments of the audit log", "error", err.Error(), "folder", w.dir)
		return
	}
	for _, s := range w.older[:gone] {
		if err := os.Remove(segmentPath(w.dir, s.number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.log.Error("cannot remove an old segment of the audit log", "error", err.Error())
		}
	}
	w.older = append([]segmentFile(nil), w.older[gone:]...)
}

// open finds the end of the log, or creates a log, cuts off an incomplete last record, and records the state that it
// found. The writer's own state of the chain takes precedence over the files: a log that was changed under a daemon
// must not continue as if it had always been so.
func (w *writer) open() error {
	w.close()
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(w.dir, 0o700); err != nil {
		return err
	}
	list, err := segments(w.dir)
	if err != nil {
		return err
	}
	h, headErr := readHead(w.dir)
	known := w.n > 0
	was := head{N: w.n, Synced: w.synced, Hash: w.last.String(), Segment: w.newest.number, Boot: bootID()}
	if !known && headErr == nil {
		was = *h
	}
	found := &Note{Kind: NoteOpened}
	n, last, err := w.findEnd(list, found)
	if err != nil {
		return err
	}
	missing := was.missing(n, last)
	if !known && headErr != nil && (len(list) > 0 || !errors.Is(headErr, fs.ErrNotExist)) {
		missing = fmt.Sprintf("the head cannot be read: %v", headErr)
	}
	if missing != "" {
		found.Kind, found.Text = NoteMissing, missing
		found.HeadN, found.Synced, found.Restarted = was.N, was.Synced, was.Boot != bootID()
	}
	w.n, w.last = n, last
	if len(list) == 0 && was.N > 0 { // all of it is gone: the numbering continues
		w.n, w.newest.number = was.N, was.Segment
		if b, err := hex.DecodeString(was.Hash); err == nil && len(b) == len(w.last) {
			w.last = hash(b)
		}
	}
	w.older = list
	if w.newest.file != nil {
		w.older = list[: len(list)-1 : len(list)-1]
	}
	if w.head, err = regular.OpenFile(headPath(w.dir), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600); err != nil {
		return err
	}
	switch {
	case w.newest.file == nil:
		err = w.roll()
	case w.newest.size == 0:
		err = w.beginSegment()
	}
	if err != nil {
		return err
	}
	w.buf.Reset()
	// Not by commit, which calls prepare: prepare calls open.
	n, last = w.n, w.last
	if err := w.add(&Record{At: time.Now(), Type: TypeNote, Note: found}); err != nil {
		return err
	}
	there, err := w.flush(true)
	if err == nil {
		err = errors.Join(w.head.Sync(), regular.SyncDir(w.dir))
	}
	if err != nil {
		if !there {
			w.n, w.last = n, last
		}
		w.close()
		return err
	}
	w.lost = 0
	if found.Kind == NoteMissing {
		w.log.Error("records of the audit log are missing", "reason", found.Text, "folder", w.dir)
	}
	return nil
}

// findEnd opens the newest of the segments, cuts off what follows its last record and returns the end of the chain.
// Without a segment, or if the newest cannot be used, it leaves none open, and number is the last one taken.
func (w *writer) findEnd(list []segmentFile, found *Note) (n uint64, last hash, err error) {
	w.newest.number = 0
	for i := len(list) - 1; i >= 0; i-- {
		s := list[i]
		w.newest.number = max(w.newest.number, s.number)
		path := segmentPath(w.dir, s.number)
		if fi, err := os.Lstat(path); err != nil || !fi.Mode().IsRegular() {
			continue // a folder in its place: the next number is free
		}
		f, err := regular.OpenFile(path, os.O_RDWR|os.O_APPEND|syscall.O_NOFOLLOW, 0)
		if err != nil {
			return 0, hash{}, err
		}
		fi, err := f.Stat()
		if err != nil {
			f.Close()
			return 0, hash{}, err
		}
		r, sum, end, err := lastRecord(f, fi.Size())
		if err != nil {
			f.Close()
			return 0, hash{}, err
		}
		if i == len(list)-1 {
			if err := w.cut(f, end, fi.Size(), found); err != nil {
				f.Close()
				return 0, hash{}, err
			}
			w.newest.file, w.newest.size = f, end
			if first, _, err := firstRecord(path); err == nil {
				w.newest.began = first.At
			}
		} else {
			f.Close()
		}
		if r != nil {
			return r.N, sum, nil
		}
	}
	return 0, hash{}, nil
}

// cut cuts off what follows the last record of a segment, and records what it was.
func (w *writer) cut(f *os.File, end, size int64, found *Note) error {
	if end == size {
		return nil
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, end, size-end)); err != nil {
		return err
	}
	found.CutBytes, found.CutSHA256 = size-end, hex.EncodeToString(h.Sum(nil))
	if err := f.Truncate(end); err != nil {
		return err
	}
	return f.Sync()
}

// close closes the files. The state of the chain is kept.
func (w *writer) close() error {
	var errs []error
	for _, f := range []*os.File{w.newest.file, w.head} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	w.newest.file, w.head = nil, nil
	return errors.Join(errs...)
}

func (w *writer) writeHead() error {
	b, err := head{Version: Version, Segment: w.newest.number, N: w.n, Hash: w.last.String(), Synced: w.synced, Boot: bootID()}.encode()
	if err == nil {
		_, err = w.head.WriteAt(b, 0)
	}
	return err
}
