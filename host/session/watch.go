package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// watchPayload is that of session.watch. ID, or Session, is one session; without
// it, and without one that the request belongs to, all of the caller's are watched,
// or, by an operator, everybody's. A bound caller watches its session.
type watchPayload struct {
	ID      string `json:"id"`
	Session string `json:"session"`
	After   string `json:"after"`
}

// takeTime is how long a watcher that was cut may take to read what was sent to
// it before its connection is closed.
const takeTime = 2 * time.Second

// watch tells the caller what happens until it leaves, the session is closed or
// its time is over, and answers with the last cursor.
func (a *asked) watch(ctx context.Context, p *watchPayload) (json.RawMessage, error) {
	if a.Tell == nil {
		return nil, fault.Errorf(fault.InvalidEnvelope, `/stream: session.watch answers with a stream; say "stream": true`)
	}
	if a.config.Events == nil {
		return nil, fault.Errorf(fault.Internal, "this daemon tells no events")
	}
	if p.ID != "" && p.Session != "" && p.ID != p.Session {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/session: is another one than /payload/id; name one of them")
	}
	id := cmp.Or(p.Session, p.ID, a.Session)
	if id == "" && a.Focus != nil && a.Focus.Load() != nil {
		id = *a.Focus.Load()
	}
	if id == "" {
		id = a.Bound
	}
	w, err := a.openWatch(id, p.After)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	// Who does not read blocks Tell. Its connection has to be given up then.
	told := make(chan struct{})
	defer close(told)
	go func() {
		select {
		case <-w.Over():
			if a.TakeBy != nil {
				a.TakeBy(time.Now().Add(takeTime))
			}
		case <-told:
		}
	}()
	if a.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, a.Timeout, io.EOF)
		defer cancel()
	}
	var list []json.RawMessage
	more := false // there was more than fitted
	for {
		e, err := w.Next(ctx)
		switch cut := (*fault.Error)(nil); {
		case errors.Is(err, io.EOF), errors.Is(err, wire.ErrLeft): // which is how most of them end
			return object("cursor", w.Cursor()), nil
		case err != nil && ctx.Err() != nil:
			return nil, err
		case errors.As(err, &cut):
			a.Tell([]json.RawMessage{marshal(events.Event{Kind: events.Cut, Cursor: w.Cursor(), At: time.Now().UTC(), Code: cut.Code, Reason: cut.Message})})
			return nil, err
		case err != nil:
			return nil, err
		}
		if e.Kind != events.Ready && !more {
			w.Gather(ctx) // most often, the rest of what a call does
		}
		size := 0
		clear(list)
		list = list[:0]
		for more = true; more && size < maxTell; {
			event := e.JSON()
			list, size = append(list, event), size+len(event)
			if size < maxTell {
				e, more = w.More()
			}
		}
		if err := a.Tell(list); err != nil {
			return nil, err
		}
	}
}

// maxTell is about how many bytes of events are sent at a time.
const maxTell = 32 << 10

func (a *asked) openWatch(id, after string) (*events.Watcher, error) {
	f := events.Filter{Operator: a.Operator, Owner: a.Caller, Sees: a.Sees}
	if id == "" {
		return a.config.Events.Watch(f, after)
	}
	s, err := a.watched(id)
	if err != nil {
		return nil, err
	}
	if sees := f.Sees; a.Bound != "" {
		f.Sees = func(tool string) bool { return s.allows(tool) && (sees == nil || sees(tool)) }
	}
	// Under its lock, so that a session which is closed now either was, or will be
	// said to be.
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Owner, f.Session, f.Bound, f.Ended = s.owner, s.id, a.Bound != "", s.state == Closed
	return a.config.Events.Watch(f, after)
}

// watched is the session of that id, or one that was closed and is still known:
// who was cut off before its end can learn of that.
func (a *asked) watched(id string) (*Session, error) {
	s, err := a.session(id)
	if err == nil || a.Bound != "" && a.Bound != id {
		return s, err
	}
	a.closed.Range(func(k, v any) bool {
		if k.(key).id == id && (a.Operator || k.(key).owner == a.Caller) {
			s, err = v.(*Session), nil
		}
		return err != nil
	})
	return s, err
}

// publish tells watchers of something in s.
func (s *Session) publish(e events.Event) {
	if h := s.t.config.Events; h.Watched() {
		e.Owner, e.Session = s.owner, s.id
		h.Publish(e)
	}
}

// inState is for watchers of a session that is in state now.
func inState(state string) events.Event { return events.Event{Kind: events.State, State: state} }

// queued is for watchers of a session whose waiting turns have changed, under its lock.
func (t *turns) queued() events.Event {
	return events.Event{Kind: events.Queue, Queued: len(t.waiting)}
}

// publishOutput tells watchers what x wrote to one of its streams.
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

// Discovered tells watchers that a module was asked for the tools of the caller of
// x, and what came of it. x may be nil.
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
