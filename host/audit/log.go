package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tidyEvery is how often an idle log is checked for segments to remove.
	tidyEvery = time.Hour
	// lingerTime is how long a record that needs no sync waits for others.
	lingerTime = 10 * time.Millisecond
	// maxQueue and maxQueueBytes bound the records waiting to be written. Beyond them, records that need no sync are
	// dropped, and counted.
	maxQueue      = 1 << 16
	maxQueueBytes = 64 << 20
)

// Log writes one log. It is safe for concurrent use. A nil Log is turned off.
type Log struct {
	dir string
	log *slog.Logger
	// wake signals that there is something to write, flushNow that it must be written without waiting for more. Both
	// have a capacity of one.
	wake, flushNow chan struct{}
	done           chan struct{} // closed when the writer has returned

	mu     sync.Mutex // guards the fields below
	opts   Options
	queue  []*pendingRecord
	bytes  int // in queue, as given by its entries
	closed bool
	lost   uint64 // records for which the queue had no room

	// The rest belongs to the writer, and to Open and Close.
	w writer
}

// Open opens the log in the folder dir, which is created if it does not exist, and records the state in which it was
// found. Close releases it.
func Open(dir string, o Options, log *slog.Logger) (*Log, error) {
	l := &Log{dir: dir, log: log, opts: o, wake: make(chan struct{}, 1), flushNow: make(chan struct{}, 1), done: make(chan struct{})}
	l.w = writer{dir: dir, opts: o, log: log}
	if o.On {
		if err := l.w.open(); err != nil {
			l.w.close()
			return nil, fmt.Errorf("open the audit log: %w; fix %s, or turn it off with audit.mode in toold.json", err, dir)
		}
		l.w.tidy()
	}
	go l.run()
	return l, nil
}

// Add queues the record that make returns, to be written within about 10 ms, without a sync. make is called once or
// never, later and in another goroutine: what it refers to must not change any more, and is about size bytes. A record
// that cannot be written is counted in the next one that can.
func (l *Log) Add(size int, make func() *Record) { l.enqueue(&pendingRecord{make: make, size: size}) }

// AddSync writes the record that make returns, and returns its number once it is on disk; 0 if the log is off. Records
// that arrive during a sync share the next one. If ctx ends first, the error is its cause, and the record may still be
// written.
func (l *Log) AddSync(ctx context.Context, size int, make func() *Record) (n uint64, err error) {
	e := &pendingRecord{make: make, size: size, sync: true, done: newDone()}
	if !l.enqueue(e) {
		return 0, nil
	}
	select {
	case err := <-e.done:
		return e.n, err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// leastFree is the minimum free disk space at which nothing is considered wrong: a small record may fit where that of
// the next call does not.
const leastFree = 64 << 10

// Check returns why records cannot be written. It retries after a failure, so that freed disk space is detected
// without a call.
func (l *Log) Check(ctx context.Context) error {
	if !l.On() {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(l.dir, &st); err == nil {
		free := st.Bavail
		if os.Geteuid() == 0 {
			free = st.Bfree
		}
		if free *= uint64(st.Bsize); free < leastFree {
			return fmt.Errorf("%w: %d bytes are free", unix.ENOSPC, free)
		}
	}
	if !l.w.failing.Load() {
		return nil
	}
	_, err := l.AddSync(ctx, 0, func() *Record {
		return &Record{At: time.Now(), Type: TypeNote, Note: &Note{Kind: NoteOn, Text: "it can be written again"}}
	})
	return err
}

func newDone() chan error { return make(chan error, 1) }

var errClosed = errors.New("the audit log is closed")

// On reports whether the log is on.
func (l *Log) On() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opts.On
}

// enqueue queues e for the writer. It reports false if the log is off.
func (l *Log) enqueue(e *pendingRecord) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.opts.On:
		return false
	case l.closed && e.sync:
		e.done <- errClosed
		return true
	case l.closed:
		return true
	case !e.sync && (len(l.queue) >= maxQueue || l.bytes+e.size > maxQueueBytes):
		l.lost++
		return true
	}
	l.queue = append(l.queue, e)
	l.bytes += e.size
	switch {
	case e.sync:
		signal(l.flushNow)
	case len(l.queue) == 1:
		signal(l.wake)
	}
	return true
}

// Set applies an operator's settings to the log, and records that it is turned off or on. On error nothing has
// changed.
func (l *Log) Set(o Options) error {
	l.mu.Lock()
	was := l.opts
	l.mu.Unlock()
	if was == o {
		return nil
	}
	// The writer applies it in order: earlier records are written under the earlier settings.
	e := &pendingRecord{set: &o, done: newDone()}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errClosed
	}
	l.queue = append(l.queue, e)
	signal(l.flushNow)
	l.mu.Unlock()
	if err := <-e.done; err != nil {
		return fmt.Errorf("open the audit log: %w; fix %s, or leave it off", err, l.dir)
	}
	l.mu.Lock()
	l.opts = o
	l.mu.Unlock()
	return nil
}

// Close writes what is queued and closes the log. A second call does nothing.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		<-l.done
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	signal(l.flushNow)
	<-l.done
	var err error
	if l.w.opts.On {
		err = l.w.note(&Note{Kind: NoteClosed})
	}
	return errors.Join(err, l.w.close())
}

// signal wakes the receiver of c.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run writes what is queued, until Close.
func (l *Log) run() {
	defer close(l.done)
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	linger := time.NewTimer(lingerTime)
	defer linger.Stop()
	for {
		l.mu.Lock()
		batch, lost, closed := l.queue, l.lost, l.closed
		l.queue, l.bytes, l.lost = nil, 0, 0
		l.mu.Unlock()
		for len(batch) > 0 {
			l.w.lost += lost
			batch, lost = batch[l.w.commit(batch):], 0
		}
		if closed {
			return // it is the last one
		}
		select {
		case <-l.flushNow:
		case <-l.wake:
			// More will come: batch them into one write that does not delay a running call.
			linger.Reset(lingerTime)
			select {
			case <-l.flushNow:
			case <-linger.C:
			}
		case <-tick.C:
			l.w.tidy()
		}
	}
}
