package session

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/journal"
	"github.com/toold/toold/host/wire"
)

// Execution is one running call of a session. The pipeline holds it from Begin
// to End.
type Execution struct {
	runState
	Session string // the session's id
	s       *Session
}

// Begin registers a call that runs in s until End. It resumes a suspended session.
// From then on the call uses x.Context, which an abort cancels.
func (s *Session) Begin(ctx context.Context, spec Spec) (*Execution, error) {
	x := &Execution{runState: runState{Spec: spec, started: time.Now(), inbox: newInbox()}, Session: s.id, s: s}
	if tools := s.allowedTools(); tools != nil && !spec.Listing && !slices.Contains(tools, spec.Tool) {
		return nil, fault.Errorf(fault.Denied, "denied by rule session.tools: this session is limited to other tools than %s; use one of %q, or call in another session", spec.Tool, tools)
	}
	resumed, err := s.admit(ctx, &x.runState)
	if err != nil {
		return nil, err
	}
	if resumed {
		s.append(&journal.Record{Type: journal.TypeState, State: Active})
	}
	return x, nil
}

func (s *Session) admit(ctx context.Context, x *runState) (resumed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Closing || s.state == Closed {
		return false, notFound(s.id)
	}
	var cancel context.CancelCauseFunc
	x.ctx, cancel = context.WithCancelCause(ctx)
	x.aborter.add(cancel)
	if resumed = s.state == Suspended; resumed {
		s.state = Active
		s.count.CountEvent(Active)
	}
	s.used = x.started
	if len(s.peers) == 0 || s.peers[0] != x.From {
		s.usedBy(x.From)
	}
	if x.Job != nil {
		x.Job.Begin(&job.Running{
			Abort:    func(reason *fault.Error) { x.abort(reason) },
			LastLine: x.lastLineText,
			Attempts: func() int { return int(x.attempts.Load()) },
		})
	}
	if x.Kind == KindTurn {
		s.turn = x
	}
	if s.running == nil {
		s.running = map[*runState]struct{}{}
	}
	s.running[x] = struct{}{}
	if resumed {
		s.publish(inState(Active))
	}
	s.publish(events.Event{Kind: events.Begin, Execution: x.ID, Tool: x.Tool, Type: x.Kind, Job: x.Job != nil})
	return resumed, nil
}

// Context returns the call's context: that of Begin, also ended by an abort.
func (x *Execution) Context() context.Context { return x.ctx }

// Admits reports whether the session of x may call tool.
func (x *Execution) Admits(tool string) bool {
	return x.s.allows(tool)
}

// OnAbort registers cancel to be called by an abort of x, for a context that
// outlives the caller's and so is not derived from x.Context. x may be nil.
func (x *Execution) OnAbort(cancel context.CancelCauseFunc) {
	if x == nil {
		return
	}
	x.aborter.add(cancel)
}

// Attempt records that the tool is about to run, and returns the number of the
// attempt, from 1. The first one writes the intent to the journal: if that fails,
// a mutating call is refused with STORE_UNAVAILABLE, and any other runs.
func (x *Execution) Attempt(mutating bool) (int, error) {
	n := int(x.attempts.Add(1))
	x.s.publish(events.Event{Kind: events.Attempt, Execution: x.ID, Tool: x.Tool, Attempt: n, Mutating: mutating})
	if n > 1 {
		return n, nil
	}
	x.mutating.Store(mutating)
	err := x.s.append(x.beginRecord())
	if err != nil && mutating {
		x.attempts.Store(0)
		return n, fault.Errorf(fault.StoreUnavailable, "the journal of the session cannot be written, so a mutating call is not begun: %w; check the sessions folder in the daemon's state", err)
	}
	return n, nil
}

// Spent returns what x has used so far: bytes in and out, attempts, and the programs
// that a binary executed. x may be nil.
func (x *Execution) Spent() (in, out int64, attempts int, programs []Program) {
	if x == nil {
		return 0, 0, 0, nil
	}
	did := x.sum()
	return did.BytesIn, did.BytesOut, int(x.attempts.Load()), did.Programs
}

// AddFuel counts metered instructions of guests. x may be nil.
func (x *Execution) AddFuel(n int64) {
	if x != nil {
		x.fuel.Add(n)
	}
}

// AddHTTP counts HTTP requests of guests and their replies. x may be nil.
func (x *Execution) AddHTTP(h HTTP) {
	if x != nil {
		x.addHTTP(h)
	}
}

// Connections returns those of AddConnection so far. x may be nil.
func (x *Execution) Connections() []Connection {
	if x == nil {
		return nil
	}
	return x.sum().Connections
}

// CountOutput returns a writer to w that counts bytes, keeps the last line for
// snapshots, and publishes the output of stream, which is stdout or stderr. Secrets
// must be masked before.
func (x *Execution) CountOutput(stream string, w io.Writer) io.Writer {
	return countingWriter{x, stream, w}
}

type countingWriter struct {
	x      *Execution
	stream string
	w      io.Writer
}

func (w countingWriter) Write(p []byte) (int, error) {
	w.x.addOutput(p)
	w.x.publishOutput(w.stream, p)
	return w.w.Write(p)
}

// Input returns a turn's standard input: its steering text, until the turn ends
// or a steer has eof. With wait false it ends after the text so far, for a guest
// without other input. Each attempt opens its own; unread text stays for the next
// one.
func (x *Execution) Input(wait bool) io.ReadCloser { return &reader{b: x.inbox, wait: wait} }

// ForwardSteering forwards steering text to f, since x's caller streams the input. f
// returns false if the input has ended, and calls taken once the text was read.
func (x *Execution) ForwardSteering(f func(text []byte, taken func()) bool) { x.inbox.forwardTo(f) }

// Steered reports whether an attempt has read steering text, which a further
// attempt would lack. x may be nil.
func (x *Execution) Steered() bool { return x != nil && x.inbox.wasRead() }

// RejectSteering makes further steers of x fail with the reason why.
func (x *Execution) RejectSteering(why string) { x.inbox.reject(why) }

// End records the outcome of the execution.
func (x *Execution) End(r *wire.Result) {
	undelivered := x.inbox.close()
	aborted := x.aborter.end()
	o := x.sum()
	o.ID, o.Tool, o.Kind, o.Parent, o.Started = x.ID, x.Tool, x.Kind, x.Parent, x.started
	o.Status, o.ExitCode, o.Undelivered = r.Status(), r.ExitCode, undelivered
	o.Attempts, o.Duration = int(x.attempts.Load()), time.Since(x.started)
	if r.Err != nil {
		o.Code = r.Err.Code
		// The caller gets the abort's error; the journal keeps that the
		// outcome is unknown.
		if ended := aborted || o.Code == fault.Aborted || o.Code == fault.Timeout; ended && x.outcomeUnknown() {
			o.Code = fault.OutcomeUnknown
		}
	}
	rec := &journal.Record{
		Type: journal.TypeEnd, Execution: o.ID, Tool: o.Tool, Kind: o.Kind, Parent: o.Parent, Status: o.Status, Code: o.Code, ExitCode: o.ExitCode,
		Attempts: o.Attempts, DurationMS: o.Duration.Milliseconds(), BytesIn: o.BytesIn, BytesOut: o.BytesOut, Fuel: o.Fuel,
		Undelivered: o.Undelivered, Mutating: x.mutating.Load(), Programs: o.Programs, Connections: o.Connections, HTTP: o.HTTP, Found: x.conclusion(),
	}
	if x.Job != nil {
		rec.Job, rec.Detach, rec.Bound = x.Job.Settle(), x.Job.Detach, x.Job.Bound
	}
	if o.Attempts == 0 {
		rec.Type = journal.TypeRefused
	}
	if undelivered > 0 {
		x.s.t.config.Logger.Info("a call ended without reading what steered it", "session", x.Session, "execution_id", x.ID, "bytes", undelivered)
	}
	s := x.s
	idle := false
	s.appendFunc(func() *journal.Record {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, &x.runState)
		if s.turn == &x.runState {
			s.turn = nil
		}
		idle = len(s.running) == 0
		s.used = time.Now()
		s.count.Add(&o)
		if len(s.recent) == maxRecent {
			s.recent = slices.Delete(s.recent, 0, 1)
		}
		s.recent = append(s.recent, o)
		s.publish(events.Event{
			Kind: events.End, Execution: o.ID, Tool: o.Tool, Type: o.Kind, Job: x.Job != nil, Mutating: x.mutating.Load(),
			Status: o.Status, Code: o.Code, ExitCode: o.ExitCode, Attempts: o.Attempts, DurationMS: o.Duration.Milliseconds(),
			BytesIn: o.BytesIn, BytesOut: o.BytesOut, Fuel: o.Fuel, Undelivered: o.Undelivered,
		})
		return rec
	})
	if x.Job != nil {
		x.Job.Finish(&o, r)
	}
	s.mu.Lock()
	if s.drained != nil {
		close(s.drained)
		s.drained = nil
	}
	s.mu.Unlock()
	if idle {
		s.journal.ReleaseIdle()
	}
}

// publishOutput publishes what x wrote to one of its streams.
func (x *Execution) publishOutput(stream string, p []byte) {
	if !x.s.t.config.Events.Watched() {
		return
	}
	line := x.lastLineText()
	for len(p) > 0 {
		part := p[:min(len(p), events.MaxData)]
		p = p[len(part):]
		x.s.publish(events.Event{Kind: events.Output, Execution: x.ID, Tool: x.Tool, Stream: stream, Data: append([]byte(nil), part...), Bytes: len(part), LastLine: line})
	}
}

// Discovered publishes that a module was asked for the tools of the caller of x, and
// the error if that failed. x may be nil.
func (x *Execution) Discovered(tool string, err *fault.Error) {
	if x == nil {
		return
	}
	e := events.Event{Kind: events.Discovery, Execution: x.ID, Tool: tool}
	if err != nil {
		e.Code = err.Code
	}
	x.s.publish(e)
}
