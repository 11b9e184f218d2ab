package wire

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"
)

// writeGrace is how long a caller has to read the last output of a call whose time is over.
const writeGrace = time.Second

// Within returns s with outputs that do not outlast ctx: once it has ended, Writes may take one more second in total,
// and then fail. So a call ends at its time limit even if its caller does not read, and releases what it holds. The
// connection stays intact: a caller that reads later gets everything that was written before, and the result.
func (s Streams) Within(ctx context.Context) Streams {
	if s.Stdout != nil {
		out := &within{ctx: ctx}
		s.Stdout, s.Stderr = withinWriter{out, s.Stdout}, withinWriter{out, s.Stderr}
	}
	return s
}

// within is the state shared by the outputs of one call.
type within struct {
	ctx context.Context

	mu  sync.Mutex    // guards the fields below
	end chan struct{} // nil until a Write finds that ctx has ended; closed after the grace
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
	// The write may continue after we return, when p is no longer ours.
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

// lastCall starts the grace on its first call. The channel is closed when the grace ends.
func (o *within) lastCall() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.end == nil {
		o.end = make(chan struct{})
		time.AfterFunc(writeGrace, func() { close(o.end) })
	}
	return o.end
}
