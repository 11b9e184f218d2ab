package call

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/toold/toold/host/wire"
)

// Progress is the state of a running call: whether the tool was started, what passed between it and the caller, and
// whether the call continues without its caller. It is safe for concurrent use.
type Progress struct {
	output  atomic.Bool // bytes of standard output were passed on
	input   atomic.Pointer[watchedInput]
	answers atomic.Bool // the caller answered a question of the module

	mu    sync.Mutex
	begun bool // guarded by mu
	// caller is the caller's own context, for a call that may outlive it. It is set before the call begins.
	caller context.Context
}

// Begin records that the tool itself is being started, unless ctx, or the caller's context before anything was
// started, has ended; the error is then the reason.
func (p *Progress) Begin(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c := p.caller; c != nil && !p.begun && c.Err() != nil {
		return context.Cause(c)
	}
	p.begun = true
	return nil
}

// TakeBack reverts Begin for the attempt of that number: the tool was not started after all. If an earlier attempt
// began, the call stays begun.
func (p *Progress) TakeBack(attempt int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = attempt > 1 && p.begun
}

// Begun reports whether an attempt has started the tool.
func (p *Progress) Begun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.begun
}

// OutputSent reports whether bytes of standard output were passed on.
func (p *Progress) OutputSent() bool { return p.output.Load() }

// InputSpent reports whether an attempt has consumed input: any that was opened and was not empty, and any answer of
// the caller.
func (p *Progress) InputSpent() bool {
	w := p.input.Load()
	return p.answers.Load() || w != nil && !(w.ended.Load() && !w.read.Load())
}

// Outlive returns a context for work that must continue after the caller has left, once it has begun. Everything else
// that ends ctx ends it: its deadline, and every other cause. cancel must be called.
func (p *Progress) Outlive(ctx context.Context) (_ context.Context, cancel context.CancelCauseFunc, end func()) {
	p.caller = ctx
	alive, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stopTimer := func() {}
	if d, ok := ctx.Deadline(); ok {
		alive, stopTimer = context.WithDeadline(alive, d)
	}
	stop := context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		if errors.Is(cause, context.DeadlineExceeded) || cause == wire.ErrLeft && p.GoesOn() {
			return // alive has the same deadline
		}
		cancel(cause)
	})
	return alive, cancel, func() {
		stop()
		stopTimer()
		cancel(nil)
	}
}

// GoesOn reports whether the call can continue without its caller: it may outlive it, has begun, and has all of its
// input. Input that is cut off must never look like input that ended.
func (p *Progress) GoesOn() bool {
	w := p.input.Load()
	open := w != nil && !w.ended.Load() // more of it may come
	return p.caller != nil && p.Begun() && !open
}

// Abandoned reports whether the caller of a call that may outlive it has left. What has begun then continues, and
// nothing else is started.
func (p *Progress) Abandoned() bool { return p.caller != nil && p.caller.Err() != nil }

// watch wraps streams to record what passes through them.
func (p *Progress) watch(s wire.Streams) wire.Streams {
	if s.Stdout != nil {
		s.Stdout = noticing{s.Stdout, &p.output}
	}
	if receive := s.Receive; receive != nil {
		s.Receive = func(ctx context.Context) ([]byte, error) {
			b, err := receive(ctx)
			if err == nil {
				p.answers.Store(true)
			}
			return b, err
		}
	}
	if open := s.Stdin; open != nil {
		s.Stdin = func() io.ReadCloser {
			in := p.input.Load()
			switch {
			case in == nil:
				in = &watchedInput{ReadCloser: open()}
				p.input.Store(in)
			case in.ended.Load() && !in.read.Load():
				return io.NopCloser(strings.NewReader("")) // it was empty, and is for this attempt
			}
			return in
		}
	}
	return s
}

type noticing struct {
	io.Writer
	some *atomic.Bool
}

func (n noticing) Write(p []byte) (int, error) {
	if len(p) > 0 {
		n.some.Store(true)
	}
	return n.Writer.Write(p)
}

// watchedInput is the caller's input, which can be read only once.
type watchedInput struct {
	io.ReadCloser
	read, ended atomic.Bool
}

func (w *watchedInput) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.read.Store(true)
	}
	if err == io.EOF {
		w.ended.Store(true)
	}
	return n, err
}
