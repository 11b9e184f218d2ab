package session

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/toold/toold/host/arguments"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/wire"
)

// prompt runs one turn.
func (h *handler) prompt(ctx context.Context, p *promptPayload) (*wire.Result, error) {
	if h.Operator {
		return nil, fault.Errorf(fault.InvalidPayload, "a turn runs as the session's own identity; prompt it over the tool socket")
	}
	s, err := h.session(p.ID)
	if err != nil {
		return nil, err
	}
	call, err := turnCall(h.Request, s, p)
	if err != nil {
		return nil, err
	}
	if err := s.takeTurn(ctx, call, p.Queue && !h.NoWait, job.FromContext(ctx).Admit); err != nil {
		return nil, err
	}
	defer s.passTurn()
	return h.Run(ctx, call), nil
}

// turnCall returns the call that a turn makes.
func turnCall(r *Request, s *Session, p *promptPayload) (*wire.Call, error) {
	cwd := s.cwd
	if cwd == "" {
		cwd = r.Cwd
	}
	var request map[string]json.RawMessage // raw, so that numbers keep all digits
	switch {
	case (p.Text == "") == (p.Envelope == nil):
		return nil, fault.Errorf(fault.InvalidPayload, "/payload: a turn is a text or an envelope; give one of them")
	case p.Text != "":
		words, err := arguments.SplitWords(p.Text)
		if err != nil {
			return nil, fault.Errorf(fault.InvalidPayload, "/payload/text: %w", err)
		}
		if len(words) == 0 {
			return nil, fault.Errorf(fault.InvalidPayload, "/payload/text: names no tool")
		}
		request = map[string]json.RawMessage{"tool": marshal(words[0]), "args": marshal(words[1:]), "cwd": marshal(cwd)}
	default:
		if err := json.Unmarshal(p.Envelope, &request); err != nil || request == nil {
			return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope: not an object")
		}
		for _, name := range []string{"token", "session", "stream", "more", "background", "detach", "metadata"} {
			if _, ok := request[name]; ok {
				return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope/%s: belongs to the prompt itself", name)
			}
		}
		if _, ok := request["executionId"]; !ok {
			request["executionId"] = marshal(r.ExecutionID)
		}
	}
	frame, err := json.Marshal(request)
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope: %w", err)
	}
	m, err := wire.Parse(frame)
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope: %w", err)
	}
	call, ok := m.(*wire.Call)
	if !ok {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope: not a tool call")
	}
	if IsCall(call.Tool) {
		return nil, fault.Errorf(fault.InvalidPayload, "a turn cannot be a session call; call %s directly", call.Tool)
	}
	if call.ExecutionID == "" {
		call.ExecutionID = r.ExecutionID
	}
	if call.Cwd == "" {
		call.Cwd = cwd
	}
	call.Session, call.Stream = s.id, r.Stream
	if call.Timeout == 0 {
		call.Timeout = r.Timeout
	}
	if call.IdempotencyKey == "" {
		call.IdempotencyKey, call.Retry = r.IdempotencyKey, call.Retry || r.Retry
	}
	if call.Trace == "" {
		call.Trace = r.Trace
	}
	call.TraceID = r.TraceID
	return call, nil
}

// maxTurns is how many turns may wait in one session.
const maxTurns = 16

// takeTurn takes the turn of s, and waits for it if queue is true. passTurn gives
// it back.
func (s *Session) takeTurn(ctx context.Context, call *wire.Call, queue bool, queued func()) error {
	s.mu.Lock()
	switch {
	case s.state == Closing || s.state == Closed:
		s.mu.Unlock()
		return notFound(s.id)
	case !s.turnTaken:
		s.turnTaken = true
		s.mu.Unlock()
		return nil
	case !queue:
		s.mu.Unlock()
		return fault.Errorf(fault.SessionBusy, `a turn is running in this session; wait for it, steer or abort it, or ask with "queue": true`)
	case len(s.waiting) >= maxTurns:
		s.mu.Unlock()
		return fault.Errorf(fault.SessionBusy, "%d turns wait in this session already; try again later", maxTurns)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &turnWaiter{id: call.ExecutionID, tool: call.Tool, granted: make(chan struct{}), cancel: cancel}
	s.waiting = append(s.waiting, w)
	s.publish(s.queued())
	s.mu.Unlock()
	queued()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, w)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.publish(s.queued())
	}
	s.mu.Unlock()
	select {
	case <-w.granted: // granted concurrently: pass it on
		s.passTurn()
	default:
	}
	return context.Cause(ctx)
}

// passTurn gives the turn to the next waiter, if any.
func (s *Session) passTurn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 {
		close(s.waiting[0].granted)
		s.waiting = s.waiting[1:]
		s.publish(s.queued())
		return
	}
	s.turnTaken = false
}
