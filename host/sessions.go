package host

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/wire"
)

// enter finds the session that k belongs to and begins its execution there: the
// one that the call names, else the one that its connection has in focus, else
// the caller's default one. The context that it returns ends with an abort, too.
func (h *Host) enter(ctx context.Context, k *call, from server.Peer) (context.Context, error) {
	s, err := h.sessions.Find(k.caller.ID, sessionOf(k, from))
	if err != nil {
		return ctx, err
	}
	x, err := s.Begin(ctx, session.Spec{ID: k.ExecutionID, Tool: k.Tool, Kind: k.kind, Job: session.JobOf(ctx), Listing: k.Tool == listToolsID})
	if err != nil {
		return ctx, err
	}
	x.AddInput(len(k.Payload))
	if k.Form == wire.Envelope { // the payload of the plain form has it
		x.AddInput(len(k.Stdin))
	}
	k.running = x
	k.Session = x.Session
	return x.Context(), nil
}

// sessionOf is the id of the session that a call belongs to, empty for the
// default one.
func sessionOf(k *call, from server.Peer) string {
	if k.Session == "" && from.Focus != nil {
		if focus := from.Focus.Load(); focus != nil {
			return *focus
		}
	}
	return k.Session
}

// serveSessions answers the five calls of sessions.
func (h *Host) serveSessions(ctx context.Context, on *listener, k *call, from server.Peer) (*wire.Result, error) {
	r := &session.Request{
		Call: k.Call, Caller: k.caller.ID, Focus: from.Focus,
		Run: func(ctx context.Context, turn *wire.Call) *wire.Result {
			return h.way(ctx, on, &call{Call: turn, kind: session.KindTurn, caller: k.caller, streams: k.streams}, from)
		},
	}
	if roots := on.roots(); len(roots) > 0 {
		r.Cwd = roots[0]
	}
	res, err := h.sessions.Serve(ctx, r)
	if err == nil && k.Tool == session.Query && k.streams.Stdout != nil {
		// A stream carries a value of any size.
		_, err = k.streams.Stdout.Write(session.Value(res.Data))
		res.Data = nil
	}
	return res, err
}

// serveOperator answers one of the five calls on the admin socket: every session
// is the operator's. The body is the call's payload.
func (h *Host) serveOperator(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxFrame))
	if err != nil {
		fail(w, http.StatusRequestEntityTooLarge, err)
		return
	}
	call := &wire.Call{Form: wire.Envelope, Tool: "session." + r.PathValue("call"), Payload: body}
	res, err := h.sessions.Serve(r.Context(), &session.Request{Call: call, Operator: true})
	if err != nil {
		e := asError(r.Context(), err)
		answer(w, http.StatusOK, map[string]any{"code": e.Code, "message": e.Message})
		return
	}
	answer(w, http.StatusOK, map[string]any{"data": res.Data})
}

// background makes k a job and answers with its id as soon as nothing refuses it
// any more. What refuses it before that is the answer, and no job is left.
func (h *Host) background(ctx context.Context, on *listener, k *call, from server.Peer) (*wire.Result, error) {
	switch {
	case !k.Background:
		return nil, fault.Errorf(fault.InvalidEnvelope, "/detach: is of calls in the background; say background, too")
	case session.IsCall(k.Tool) && k.Tool != session.Prompt:
		return nil, fault.Errorf(fault.InvalidEnvelope, "/background: %s is answered at once as it is", k.Tool)
	}
	id := sessionOf(k, from)
	s, err := h.sessions.Find(k.caller.ID, id)
	if err != nil {
		return nil, err
	}
	// The job is nobody's who could leave.
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	job, err := h.sessions.NewJob(k.caller.ID, s.ID(), k.Call, cancel)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	inner := *k.Call
	inner.Background, inner.Detach, inner.Stream, inner.Session = false, false, false, s.ID()
	kind := session.KindJob
	if k.Tool == session.Prompt {
		kind = session.KindCall // the turn is the job
	}
	streams := wire.Streams{Stdout: job.Stdout(), Stderr: job.Stderr(), Progress: job.Progress, Signals: make(chan os.Signal)}
	done := make(chan *wire.Result, 1)
	k.isJob = true
	go func() {
		defer cancel(nil)
		res := &wire.Result{Err: fault.Errorf(fault.Internal, "the daemon failed in this job, %s; its log has the reason", job.ID)}
		defer func() {
			if p := recover(); p != nil {
				h.log.Error("a job panicked", "tool", k.Tool, "execution_id", job.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			}
			job.End(res)
			done <- res
		}()
		res = h.way(session.InJob(run, job), on, &call{Call: &inner, kind: kind, caller: k.caller, streams: streams}, from)
	}()
	accepted := func() *wire.Result {
		res := &wire.Result{Ran: true, Data: session.JobAnswer(job.ID)}
		if k.Form == wire.Plain {
			res.Data, res.Stdout = nil, []byte(job.ID+"\n")
		}
		return res
	}
	select {
	case <-job.Admitted():
		return accepted(), nil
	case res := <-done:
		select {
		case <-job.Admitted():
			return accepted(), nil
		default:
		}
		if res.Err != nil {
			return res, res.Err
		}
		return res, nil
	case <-ctx.Done():
		cancel(context.Cause(ctx))
		<-done
		return nil, context.Cause(ctx)
	}
}

// maxCallDepth bounds how deep guests can prompt one another.
const maxCallDepth = 8

type callDepth struct{}

// guestCall is tool_call: one of the five calls, made by a guest as the session
// and the identity that called it. What it asks to run ends with the guest's own
// call.
func (h *Host) guestCall(ctx context.Context, k *call, envelope []byte) []byte {
	answer := func(id string, res *wire.Result, err error) []byte {
		if res == nil {
			res = &wire.Result{}
		}
		if err != nil {
			res.Err = asError(ctx, err)
		}
		res.ExecutionID = id
		return wire.EncodeResult(wire.Envelope, res)
	}
	m, err := wire.Parse(envelope)
	q, ok := m.(*wire.Call)
	switch depth, _ := ctx.Value(callDepth{}).(int); {
	case err != nil:
		return answer("", nil, err)
	case k.on == nil:
		return answer("", nil, fault.Errorf(fault.Denied, "denied by rule discover: a discovery is nobody's call and has no session; make the call when a tool is called"))
	case !ok || q.Form != wire.Envelope || !session.IsCall(q.Tool):
		return answer("", nil, fault.Errorf(fault.InvalidPayload, "tool_call takes the envelopes of the session calls: session.query, session.mutate, session.prompt, session.abort, session.steer"))
	case q.Token != "" || q.Stream || q.Background || q.Detach:
		return answer(q.ExecutionID, nil, fault.Errorf(fault.InvalidPayload, "tool_call is made as the caller of the tool and is answered whole: leave out token, stream, background and detach"))
	case depth >= maxCallDepth:
		return answer(q.ExecutionID, nil, fault.Errorf(fault.LimitExceeded, "tool_call is %d deep, and that is the limit", depth))
	default:
		ctx = context.WithValue(ctx, callDepth{}, depth+1)
	}
	if q.Session == "" {
		q.Session = k.Session
	}
	res := h.way(session.InJob(ctx, nil), k.on, &call{
		Call: q, kind: session.KindCall, caller: k.caller, streams: wire.Streams{Signals: make(chan os.Signal)},
	}, server.Peer{})
	return answer(q.ExecutionID, res, nil)
}
