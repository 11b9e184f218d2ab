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

// takeTime is how long a watcher that was cut off may take to read what was sent
// before its connection is closed.
const takeTime = 2 * time.Second

// watch sends events to the caller until it leaves, the session is closed or the
// timeout ends, and answers with the last cursor.
func (h *handler) watch(ctx context.Context, p *watchPayload) (json.RawMessage, error) {
	if h.Tell == nil {
		return nil, fault.Errorf(fault.InvalidEnvelope, `/stream: session.watch answers with a stream; set "stream": true`)
	}
	if h.config.Events == nil {
		return nil, fault.Errorf(fault.Internal, "this daemon publishes no events")
	}
	if p.ID != "" && p.Session != "" && p.ID != p.Session {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/session: differs from /payload/id; name one of them")
	}
	id := cmp.Or(p.Session, p.ID, h.Session)
	if id == "" && h.Focus != nil && h.Focus.Load() != nil {
		id = *h.Focus.Load()
	}
	if id == "" {
		id = h.Bound
	}
	w, err := h.openWatch(id, p.After)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	// A caller that does not read blocks Tell until its connection is closed.
	told := make(chan struct{})
	defer close(told)
	go func() {
		select {
		case <-w.Over():
			if h.TakeBy != nil {
				h.TakeBy(time.Now().Add(takeTime))
			}
		case <-told:
		}
	}()
	if h.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, h.Timeout, io.EOF)
		defer cancel()
	}
	var list []json.RawMessage
	more := false // there was more than fits
	for {
		e, err := w.Next(ctx)
		switch cut := (*fault.Error)(nil); {
		case errors.Is(err, io.EOF), errors.Is(err, wire.ErrLeft): // the usual ends
			return object("cursor", w.Cursor()), nil
		case err != nil && ctx.Err() != nil:
			return nil, err
		case errors.As(err, &cut):
			h.Tell([]json.RawMessage{marshal(events.Event{Kind: events.Cut, Cursor: w.Cursor(), At: time.Now().UTC(), Code: cut.Code, Reason: cut.Message})})
			return nil, err
		case err != nil:
			return nil, err
		}
		if e.Kind != events.Ready && !more {
			w.Gather(ctx) // usually the rest of one call
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
		if err := h.Tell(list); err != nil {
			return nil, err
		}
	}
}

// maxTell is about how many bytes of events are sent at a time.
const maxTell = 32 << 10

func (h *handler) openWatch(id, after string) (*events.Watcher, error) {
	f := events.Filter{Operator: h.Operator, Owner: h.Caller, Sees: h.Sees}
	if id == "" {
		return h.config.Events.Watch(f, after)
	}
	s, err := h.watched(id)
	if err != nil {
		return nil, err
	}
	if sees := f.Sees; h.Bound != "" {
		f.Sees = func(tool string) bool { return s.allows(tool) && (sees == nil || sees(tool)) }
	}
	// Under the lock, so that a concurrent close is seen either here or as an event.
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Owner, f.Session, f.Bound, f.Ended = s.owner, s.id, h.Bound != "", s.state == Closed
	return h.config.Events.Watch(f, after)
}

// watched returns the session with that id, or a closed one that is still known, so
// that a watcher that was cut off can learn of its end.
func (h *handler) watched(id string) (*Session, error) {
	s, err := h.session(id)
	if err == nil || h.Bound != "" && h.Bound != id {
		return s, err
	}
	h.closed.Range(func(k, v any) bool {
		if k.(key).id == id && (h.Operator || k.(key).owner == h.Caller) {
			s, err = v.(*Session), nil
		}
		return err != nil
	})
	return s, err
}
