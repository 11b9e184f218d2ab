package session

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

// Serve runs one of the six calls. Err of the result is nil if it succeeded.
func (t *Table) Serve(ctx context.Context, r *Request) (*wire.Result, error) {
	if r.Form != wire.Envelope {
		return nil, fault.Errorf(fault.InvalidEnvelope, "%s is called with an envelope: {toolId, executionId, payload}", r.Tool)
	}
	if !slices.Contains(boundCalls, r.Tool) && r.Bound != "" {
		return nil, fault.Errorf(fault.Denied, "denied by rule session.bound: this caller is bound to its session and cannot use %s; have the session's owner do it", r.Tool)
	}
	h := &handler{t, r}
	switch r.Tool {
	case Query:
		return serve(r, func(p *queryPayload) (json.RawMessage, error) { return h.query(ctx, p) })
	case Mutate:
		return serve(r, func(p *mutatePayload) (json.RawMessage, error) { return h.mutate(p) })
	case Abort:
		return serve(r, func(p *abortPayload) (json.RawMessage, error) { return h.abort(p) })
	case Steer:
		return serve(r, func(p *steerPayload) (json.RawMessage, error) { return h.steer(ctx, p) })
	case Prompt:
		var p promptPayload
		if err := strictjson.Unmarshal(r.Payload, &p); err != nil {
			return nil, invalid(err)
		}
		return h.prompt(ctx, &p)
	case Watch:
		return serve(r, func(p *watchPayload) (json.RawMessage, error) { return h.watch(ctx, p) })
	}
	return nil, fault.Errorf(fault.UnknownTool, "unknown session call %q; valid: session.query, session.mutate, session.prompt, session.abort, session.steer, session.watch", r.Tool)
}

func serve[P any](r *Request, f func(*P) (json.RawMessage, error)) (*wire.Result, error) {
	p := new(P)
	if err := strictjson.Unmarshal(r.Payload, p); err != nil {
		return nil, invalid(err)
	}
	data, err := f(p)
	if err != nil {
		return nil, err
	}
	return &wire.Result{Ran: true, Data: data}, nil
}

func invalid(err error) *fault.Error {
	return fault.Errorf(fault.InvalidPayload, "/payload%w", err)
}

func (h *handler) query(ctx context.Context, p *queryPayload) (json.RawMessage, error) {
	o := h.ownerOf(h.Caller)
	select {
	case o.selects <- struct{}{}:
		defer func() { <-o.selects }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	vars := map[string]any{"session": map[string]any{}}
	uses := func(name string) bool { return strings.Contains(p.Selector, name) }
	if !h.Operator || p.ID != "" {
		s, err := h.session(p.ID)
		switch {
		case err == nil:
			one := sessionSnapshot(s)
			if uses("journal") {
				one["journal"], _ = s.journal.AllRecords()
			}
			vars["session"] = one
		case errors.Is(err, errExplicit) && p.ID == "" && p.Selector != "": // the selector may be about sessions and jobs
		default:
			return nil, err
		}
	}
	// Build only what the selector uses.
	sessions, jobs := []any{}, []any{}
	if uses("sessions") {
		for _, s := range h.sessionsOf() {
			sessions = append(sessions, sessionSnapshot(s))
		}
	}
	if uses("jobs") {
		now, output := time.Now(), uses("stdout") || uses("stderr")
		for _, j := range h.jobsOf() {
			jobs = append(jobs, j.Snapshot(now, output))
		}
	}
	vars["sessions"], vars["jobs"] = sessions, jobs
	value, err := h.selectors.Eval(ctx, p.Selector, vars)
	if err != nil {
		return nil, err
	}
	return object("value", value), nil
}

// boundCalls are the calls that a bound caller may make: those that respect
// Request.Bound.
var boundCalls = []string{Query, Mutate, Prompt, Abort, Steer, Watch}

// abort ends the named execution, running or queued, or without a name all turns
// and ordinary calls. Other jobs are ended only by name, here or with cancel-job.
func (h *handler) abort(p *abortPayload) (json.RawMessage, error) {
	s, err := h.session(p.ID)
	if err != nil {
		return nil, err
	}
	reason := fault.Errorf(fault.Aborted, "ended by session.abort")
	named := func(id string) bool { return p.Execution == "" || p.Execution == id }
	var ended []any
	s.mu.Lock()
	var list []*runState
	for x := range s.running {
		if named(x.ID) && (p.Execution != "" || x.Job == nil || x.Kind == KindTurn) {
			list = append(list, x)
		}
	}
	var waiting, others []*turnWaiter
	for _, w := range s.waiting {
		if named(w.id) {
			waiting = append(waiting, w)
		} else {
			others = append(others, w)
		}
	}
	s.waiting = others
	if len(waiting) > 0 {
		s.publish(s.queued())
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b *runState) int { return a.started.Compare(b.started) })
	for _, x := range list {
		outcome := fault.Aborted
		if x.abort(reason) {
			outcome = fault.OutcomeUnknown
		}
		ended = append(ended, map[string]any{"execution": x.ID, "tool": x.Tool, "kind": x.Kind, "outcome": outcome})
	}
	for _, w := range waiting {
		w.cancel(reason)
		ended = append(ended, map[string]any{"execution": w.id, "tool": w.tool, "kind": KindTurn, "outcome": fault.Aborted})
	}
	if ended == nil {
		ended = []any{}
	}
	return marshal(map[string]any{"aborted": ended}), nil
}

// defaultSteerWait is how long a steer waits for its text to be read, unless it
// has a timeout. After that the text stays queued.
const defaultSteerWait = time.Second

// steer sends text to the named execution, or to the running turn.
func (h *handler) steer(ctx context.Context, p *steerPayload) (json.RawMessage, error) {
	s, err := h.session(p.ID)
	if err != nil {
		return nil, err
	}
	if p.Text == "" && !p.EOF {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/text: is missing; it is the input for the call, including its line break")
	}
	s.mu.Lock()
	x := s.turn
	if p.Execution != "" {
		x = nil
		for other := range s.running {
			if other.ID == p.Execution {
				x = other
			}
		}
	}
	s.mu.Unlock()
	if x == nil {
		what := "no turn runs in this session; name a call with execution"
		if p.Execution != "" {
			what = "no execution " + p.Execution + " runs in this session"
		}
		return nil, fault.Errorf(fault.NotRunning, "%s; %d bytes were not delivered", what, len(p.Text))
	}
	m, err := x.inbox.put([]byte(p.Text), p.EOF)
	if err != nil {
		return nil, err
	}
	s.publish(events.Event{Kind: events.Steer, Execution: x.ID, Tool: x.Tool, Bytes: len(p.Text), EOF: p.EOF})
	wait := defaultSteerWait
	if h.Timeout > 0 {
		wait = h.Timeout
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	delivered := true
	select {
	case <-m.consumed:
	case <-x.inbox.done:
		if !m.wasConsumed() {
			return nil, fault.Errorf(fault.NotRunning, "the call ended without reading it; %d bytes were not delivered", len(p.Text))
		}
	case <-timer.C:
		delivered = false
	case <-ctx.Done():
		delivered = false
	}
	return marshal(map[string]any{"execution": x.ID, "delivered": delivered, "queued": !delivered}), nil
}

// NewJob registers a background call of owner in a session, as job.Table.New does.
// bound says that its caller is bound to the session.
func (t *Table) NewJob(owner, session string, bound bool, call *wire.Call, cancel context.CancelCauseFunc) (*job.Job, error) {
	spec := job.Spec{ID: call.ExecutionID, Owner: owner, Session: session, Bound: bound, Tool: call.Tool, Detach: call.Detach}
	if s, ok := t.sessions.Load(key{owner, session}); ok {
		spec.Persist = !s.(*Session).journal.Off
	}
	return t.jobs.New(spec, cancel)
}
