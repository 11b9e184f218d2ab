package wire

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"
)

// writeGrace is how long a caller has to take the last output of a call whose
// time is over.
const writeGrace = time.Second

// Within returns s with outputs that do not outlast ctx: once it has ended, a
// Write may take a second more in all, and fails then. So a call ends at its
// time limit although its caller does not read, and gives back what it holds.
// The connection is kept whole: a caller that reads later gets all that was
// written before, and the result.
func (s Streams) Within(ctx context.Context) Streams {
	if s.Stdout != nil {
		out := &within{ctx: ctx}
		s.Stdout, s.Stderr = withinWriter{out, s.Stdout}, withinWriter{out, s.Stderr}
	}
	return s
}

// within is what the outputs of one call share.
type within struct {
	ctx context.Context

	mu  sync.Mutex    // guards what follows
	end chan struct{} // nil until a Write met the end of ctx, closed after the grace
}

type withinWriter struct {
	*within
	w io.Writer
}

func (o withinWriter) Write(p []byte) (int, error) {
	type outcome struct {
		n   int
		err error
	}
	if o.isOver() {
		return 0, context.Cause(o.ctx)
	}
	// The write may go on when we do not, and p is not ours then.
	q := slices.Clone(p)
	written := make(chan outcome, 1)
	go func() {
		n, err := o.w.Write(q)
		written <- outcome{n, err}
	}()
	select {
	case r := <-written:
		return r.n, r.err
	case <-o.ctx.Done():
	}
	select {
	case r := <-written:
		return r.n, r.err
	case <-o.lastCall():
		return 0, context.Cause(o.ctx)
	}
}

// isOver reports whether no further Write may begin.
func (o *within) isOver() bool {
	if o.ctx.Err() == nil {
		return false
	}
	select {
	case <-o.lastCall():
		return true
	default:
		return false
	}
}

// lastCall begins the grace, the first time, and is closed at its end.
func (o *within) lastCall() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end == nil {
		o.end = make(chan struct{})
		time.AfterFunc(writeGrace, func() { close(o.end) })
	}
	return o.end
}
