package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/host/wire/callbacks"
)

// Handler returns the result of a call. ctx ends when the caller leaves, when the server is
// stopped, and when the caller violates the protocol; its cause is then a *fault.Error with the
// reason. c.ExecutionID is never empty.
//
// Stdout and Stderr of a streamed call's Result are what was not written to s: they are sent
// before the last frame. The Handler must not write to s once it has returned. A panic, and
// nil, are INTERNAL to the caller.
type Handler func(ctx context.Context, c *wire.Call, p Peer, s wire.Streams) *wire.Result

// call is one request and what belongs to it while it runs.
type call struct {
	*wire.Call
	ctx    context.Context
	cancel context.CancelCauseFunc
	size   int // of its frames, in bytes
	// refused, when it is not nil, is the answer: the request was malformed.
	refused *fault.Error
	// last means that the connection ends after the answer.
	last    bool
	out     outlet
	input   *input // nil on a call that takes no stdin frames
	signals chan os.Signal
	sizes   chan wire.Size // nil on a call that offers no terminal
	// callbacks is nil on a call that offers none.
	callbacks *callbacks.Daemon
	// answered is guarded by queue.mu: the result is there, and about to be
	// written. Frames that arrive now belong to another call, or are too late.
	answered bool
}

// newCall returns the call of a request. Its context has the values of ctx.
func newCall(ctx context.Context, w *frameWriter, m *wire.Call, size int) *call {
	cl := &call{Call: m, size: size, signals: make(chan os.Signal, 8)}
	cl.out.w = w
	cl.ctx, cl.cancel = context.WithCancelCause(ctx)
	if m.ExecutionID == "" {
		m.ExecutionID = wire.NewExecutionID()
	}
	if m.Stream && m.Stdin == nil {
		cl.input = newInput(cl.ctx, cl.out.frame)
	}
	if m.TTY != nil && cl.input != nil {
		cl.sizes = make(chan wire.Size, 1)
	}
	if len(m.Callbacks) > 0 && m.Stream {
		cl.callbacks = callbacks.New(cl.out.frame)
	}
	return cl
}

// newRefusal returns a request that is answered with an error in its turn.
func newRefusal(ctx context.Context, w *frameWriter, m *wire.Call, err *fault.Error, last bool) *call {
	cl := &call{Call: m, refused: err, last: last}
	cl.out.w = w
	cl.ctx, cl.cancel = context.WithCancelCause(ctx)
	return cl
}

// take passes on a valid frame that was sent to the call while it runs. A frame that
// the request did not announce ends the call. Only the connection's reader calls it.
func (cl *call) take(t *wire.Typed) {
	switch {
	case t.Type == wire.TypeArgs:
		cl.cancel(fault.Errorf(fault.InvalidEnvelope, "an args frame came, but the request had no \"more\": true"))
	case t.Type == wire.TypeSignal:
		select {
		case cl.signals <- t.Signal:
		default: // more wait than any caller needs
		}
	case t.Type == wire.TypeResize && cl.sizes == nil:
		cl.cancel(fault.Errorf(fault.InvalidEnvelope, "a resize frame came, but the request has no \"tty\""))
	case t.Type == wire.TypeResize:
		select {
		case <-cl.sizes: // which is outdated
		default:
		}
		cl.sizes <- t.Size // this goroutine alone sends
	case t.Type == wire.TypeCallback && cl.callbacks == nil:
		cl.cancel(fault.Errorf(fault.InvalidEnvelope, "a callback frame came, but the request has no \"callbacks\""))
	case t.Type == wire.TypeCallback:
		if err := cl.callbacks.Receive(t.Callback); err != nil {
			cl.cancel(err)
		}
	case cl.input == nil:
		cl.cancel(fault.Errorf(fault.InvalidEnvelope, "a stdin frame came, but the request is not streamed, or brought its input with it"))
	default:
		if err := cl.input.receive(t.Data, t.EOF); err != nil {
			cl.cancel(err)
		}
	}
}

// run calls the handler.
func (cl *call) run(h Handler, p Peer, log *slog.Logger) *wire.Result {
	if cl.ctx.Err() != nil {
		if broken := cl.brokenBy(); broken != nil {
			return &wire.Result{Err: broken}
		}
		// It never began, so trying again is safe.
		return &wire.Result{Err: fault.Errorf(fault.Overloaded, "the daemon stopped before the call began; try again when it is back")}
	}
	if cl.input != nil {
		defer cl.input.Close()
		defer context.AfterFunc(cl.ctx, func() { cl.input.fail(context.Cause(cl.ctx)) })()
	}
	began := time.Now()
	r := cl.handle(h, p, log)
	if r.Duration == 0 {
		r.Duration = time.Since(began)
	}
	// A caller that broke the protocol gets that error, whatever the call returned.
	if broken := cl.brokenBy(); broken != nil {
		r.Err, r.Ran = broken, false
	}
	return r
}

// handle calls the handler and turns a panic into INTERNAL.
func (cl *call) handle(h Handler, p Peer, log *slog.Logger) (r *wire.Result) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a handler panicked", "tool", cl.Tool, "execution_id", cl.ExecutionID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			r = nil
		}
		if r == nil {
			r = &wire.Result{Err: fault.Errorf(fault.Internal, "the daemon failed in this call, %s; its log has the reason", cl.ExecutionID)}
		}
	}()
	return h(cl.ctx, cl.Call, p, cl.streams())
}

// streams returns the handler's ends of the call's streams.
func (cl *call) streams() wire.Streams {
	s := wire.Streams{Signals: cl.signals}
	if cl.Stream {
		s.Stdout, s.Stderr = output{&cl.out, wire.TypeStdout}, output{&cl.out, wire.TypeStderr}
		s.Progress = func(data json.RawMessage) error {
			frame, err := wire.EncodeProgress(data)
			if err != nil {
				return err
			}
			return cl.out.frame(frame)
		}
		s.Tell = cl.out.events
		s.TakeBy = cl.out.takeBy
	}
	if cl.callbacks != nil {
		s.Callback = cl.callbacks.Run
	}
	if cl.input != nil {
		s.Stdin, s.Steer = cl.input.open, cl.input.steer
		if cl.sizes != nil {
			s.Terminal = &wire.Terminal{TTY: *cl.TTY, Open: cl.input.openTerminal, Sizes: cl.sizes}
			if cl.TTY.Jobs {
				s.Terminal.Stopped = func() { cl.out.frame(wire.EncodeStopped()) }
			}
		}
	}
	return s
}

// brokenBy returns the caller's fault for which the call was ended, or nil.
func (cl *call) brokenBy() *fault.Error {
	if broken := (*fault.Error)(nil); errors.As(context.Cause(cl.ctx), &broken) && broken.Code == fault.InvalidEnvelope {
		return broken
	}
	return nil
}

// writeText writes, for a streamed call, the text of its result that the handler did
// not write itself. A failure to write recurs when the result is written.
func (cl *call) writeText(r *wire.Result) {
	if !cl.Stream {
		return
	}
	stdout := output{&cl.out, wire.TypeStdout}
	stdout.Write(r.Stdout)
	output{&cl.out, wire.TypeStderr}.Write(r.Stderr)
	if cl.Form == wire.Plain && r.Data != nil && !cl.out.wrote() {
		stdout.Write(wire.DataText(r.Data))
	}
}

// writeResult writes the last frame of the call.
func (cl *call) writeResult(r *wire.Result) {
	if cl.Stream {
		cl.out.result(wire.EncodeStreamResult(cl.Form, r))
	} else {
		cl.out.result(wire.EncodeResult(cl.Form, r))
	}
}
