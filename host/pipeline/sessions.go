package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

// find returns the session that a call belongs to.
func (p *Parts) find(q *call.Request, caller identity.Caller) (*session.Session, error) {
	// A tool that is run with events has nobody who could name a session for it, and shares its default one with
	// nobody.
	explicit := p.Config().Entrance(q.Socket).ExplicitSessions && !call.IsExtension(caller.ID)
	id, err := session.Choose(q.Session, q.Focus, caller.Session(), explicit)
	if err != nil {
		return nil, err
	}
	return p.Sessions.Find(caller.Owner(), id)
}

// sessionCalls makes calls out of calls: turns, jobs, and those that guests make.
type sessionCalls struct {
	Parts
	call func(context.Context, call.Request) call.Outcome // Pipeline.Call
}

// serve handles one of the six session calls.
func (s *sessionCalls) serve(ctx context.Context, q call.Request, caller identity.Caller) call.Outcome {
	r := &session.Request{
		Call: q.Call, Caller: caller.Owner(), Bound: caller.Session(), Focus: q.Focus, NoWait: q.By.Waits(),
		Run: func(ctx context.Context, turn *wire.Call) *wire.Result {
			of := q
			of.Call, of.Kind, of.As, of.PartOf = turn, session.KindTurn, &caller, q.ExecutionID
			return s.call(ctx, of).Result
		},
		Tell: q.Streams.Tell, TakeBy: q.Streams.TakeBy,
		Sees: func(tool string) bool { return s.sees(q.Socket, tool) },
	}
	at := s.Config().Entrance(q.Socket)
	if r.Explicit = at.ExplicitSessions; len(at.Roots) > 0 {
		r.Cwd = at.Roots[0]
	}
	if q.By != nil && q.Tool == session.Watch {
		return answerWatch(ctx, s.Sessions, r)
	}
	res, err := s.Sessions.Serve(ctx, r)
	if err == nil && q.Tool == session.Query && q.Streams.Stdout != nil {
		// A stream carries a value of any size.
		_, err = q.Streams.Stdout.Write(session.Value(res.Data))
		res.Data = nil
	}
	if res == nil {
		res = &wire.Result{}
	}
	if err != nil {
		res.Err = call.AsError(ctx, err)
	}
	return call.Outcome{Result: res}
}

// sees reports whether callers of a socket may learn that a tool changed. The category of a removed tool is no longer
// known.
func (s *sessionCalls) sees(socket, tool string) bool {
	entrance := s.Config().Entrance(socket)
	for _, t := range s.Tools.List() {
		if t.Name == tool {
			return entrance.Serves(t.Category)
		}
	}
	return entrance.Serves("")
}

// background runs q as a job and returns its id as soon as nothing can refuse it any more. If it is refused before
// that, the refusal is the result and no job is left. begun reports that the call continues as the job, which is a
// call of its own.
//
// With q.JobAfter it returns the call's own outcome if that comes first, and no job is left.
func (s *sessionCalls) background(ctx context.Context, q call.Request, caller identity.Caller) (o call.Outcome, begun bool) {
	if err := checkBackground(&q, caller); err != nil {
		return call.Failed(ctx, err), false
	}
	in, err := s.find(&q, caller)
	if err != nil {
		return call.Failed(ctx, err), false
	}
	// The job must outlive its caller.
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	j, err := s.Sessions.NewJob(caller.Owner(), in.ID(), caller.Session() != "", q.Call, cancel)
	if err != nil {
		cancel(nil)
		return call.Failed(ctx, err), false
	}
	if q.By != nil {
		// If the module's call ends through no action of its own, its jobs end too.
		context.AfterFunc(ctx, func() {
			if cause := context.Cause(ctx); cause != context.Canceled {
				j.Stop(fault.Errorf(fault.Aborted, "the call that started this job, %s, was ended: %w", q.By.Execution, cause))
			}
		})
	}
	of := jobRequest(q, caller, in.ID())
	of.Streams = wire.Streams{Stdout: j.Stdout(), Stderr: j.Stderr(), Progress: j.Progress, Signals: make(chan os.Signal)}
	later := q.JobAfter > 0 && !q.Background
	if later { // the result is returned whole if it is in time
		j.Later()
		of.Streams = wire.Streams{Signals: make(chan os.Signal), Receive: q.Streams.Receive, Progress: func(data json.RawMessage) error {
			if q.Streams.Progress != nil {
				if err := q.Streams.Progress(data); err != nil {
					return err
				}
			}
			return j.Progress(data)
		}}
	}
	done := make(chan call.Outcome, 1)
	go func() {
		defer cancel(nil)
		done <- s.runJob(run, j, of)
	}()
	if later {
		return answerLater(ctx, &q, j, cancel, done), true
	}
	return answerAdmitted(ctx, &q, j, cancel, done), true
}

// checkBackground refuses what cannot be a job.
func checkBackground(q *call.Request, caller identity.Caller) error {
	switch {
	case q.JobAfter > 0 && !q.Background:
	case !q.Background:
		return fault.Errorf(fault.InvalidEnvelope, "/detach: is for background calls; set background too")
	case session.IsCall(q.Tool) && q.Tool != session.Prompt:
		return fault.Errorf(fault.InvalidEnvelope, "/background: %s is answered at once as it is", q.Tool)
	}
	if q.Detach && caller.Session() != "" {
		// Closing the session is how its owner revokes what it granted.
		return fault.Errorf(fault.Denied, "denied by rule session.bound: this caller is bound to its session, and its jobs end with that; leave out detach")
	}
	return nil
}

// jobRequest returns the request of the job that q asks for, without its streams.
func jobRequest(q call.Request, caller identity.Caller, in string) call.Request {
	inner := *q.Call
	inner.Background, inner.Detach, inner.Stream, inner.Session = false, false, false, in
	of := q
	of.Call, of.Kind, of.As, of.PartOf, of.JobAfter = &inner, session.KindJob, &caller, q.ExecutionID, 0
	if q.Tool == session.Prompt {
		of.Kind = session.KindCall // the turn is the job
	}
	of.By = q.By.ForJob()
	return of
}

// runJob runs the call of a job to its end.
func (s *sessionCalls) runJob(ctx context.Context, j *job.Job, of call.Request) (o call.Outcome) {
	o = call.Outcome{Result: &wire.Result{Err: fault.Errorf(fault.Internal, "the daemon failed in this job, %s; its log has the reason", j.ID)}}
	defer func() {
		if v := recover(); v != nil {
			s.Log.Error("a job panicked", "tool", of.Tool, "execution_id", j.ID, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
		}
		j.End(o.Result)
	}()
	o = s.call(job.NewContext(ctx, j), of)
	return o
}

// accepted returns the response to q, which runs as a job.
func accepted(q *call.Request, j *job.Job) call.Outcome {
	res := &wire.Result{Ran: true, Data: job.Answer(j.ID)}
	if q.Form == wire.Plain {
		res.Data, res.Stdout = nil, []byte(j.ID+"\n")
	}
	return call.Outcome{Result: res}
}

// answerLater returns the outcome of the call or, once it has taken as long as q.JobAfter, that it continues as a job.
// A caller that leaves before that ends it.
func answerLater(ctx context.Context, q *call.Request, j *job.Job, cancel context.CancelCauseFunc, done <-chan call.Outcome) call.Outcome {
	callers := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	timer := time.NewTimer(q.JobAfter)
	defer timer.Stop()
	select {
	case o := <-done:
		callers()
		return o
	case <-timer.C:
	}
	if callers() && j.Keep() {
		o := accepted(q, j)
		o.Job = true
		return o
	}
	return <-done
}

// answerAdmitted returns once nothing can refuse the job any more, or with the refusal. A caller that leaves before
// that ends it.
func answerAdmitted(ctx context.Context, q *call.Request, j *job.Job, cancel context.CancelCauseFunc, done <-chan call.Outcome) call.Outcome {
	select {
	case <-j.Admitted():
		return accepted(q, j)
	case o := <-done:
		select {
		case <-j.Admitted():
			return accepted(q, j)
		default:
		}
		return o
	case <-ctx.Done():
		cancel(context.Cause(ctx))
		<-done
		return call.Failed(ctx, context.Cause(ctx))
	}
}

// toolCall implements tool_call: a call that the module of by requests in a call that is parent, made in the session
// and with the identity that called the module. It ends with the module's own call.
func (s *sessionCalls) toolCall(ctx context.Context, by *call.Pinned, parent *call.Parent, envelope []byte) []byte {
	answer := func(id string, o call.Outcome) []byte {
		o.Result.ExecutionID = id
		return wire.EncodeResult(wire.Envelope, o.Result)
	}
	m, err := wire.Parse(withID(envelope))
	q, ok := m.(*wire.Call)
	switch {
	case err != nil:
		return answer("", call.Failed(ctx, err))
	case by.Execution == nil:
		return answer("", call.Failed(ctx, fault.Errorf(fault.Denied, "denied by rule discover: a discovery is nobody's call and has no session; make the call when a tool is called")))
	case !ok || q.Form != wire.Envelope:
		return answer("", call.Failed(ctx, fault.Errorf(fault.InvalidPayload, "tool_call takes an envelope, with toolId, executionId and payload")))
	case q.Token != "" || q.Stream || q.Detach || q.Background && parent.Allowed.Sessions():
		return answer(q.ExecutionID, call.Failed(ctx, fault.Errorf(fault.InvalidPayload, "tool_call is made as the caller of the tool and is answered whole: leave out token, stream and detach, and background where capabilities.tool_call is not a list")))
	}
	if q.Session == "" {
		q.Session = by.Session
	}
	if q.Cwd == "" {
		q.Cwd = by.Cwd
	}
	caller := by.Caller
	return answer(q.ExecutionID, s.call(job.NewContext(ctx, nil), call.Request{
		Call: q, UID: by.UID, Peer: by.Peer, As: &caller, Inner: call.Inner{PartOf: by.ExecutionID, By: parent}, Streams: wire.Streams{Signals: make(chan os.Signal)},
	}))
}

// withID returns an envelope with an execution id, which a module may omit.
func withID(envelope []byte) []byte {
	is, has := false, false
	err := strictjson.Members(envelope, func(name, _ []byte) {
		is, has = is || string(name) == "toolId", has || string(name) == "executionId"
	})
	if err != nil || !is || has {
		return envelope
	}
	return append([]byte(`{"executionId":"`+wire.NewExecutionID()+`",`), envelope[bytes.IndexByte(envelope, '{')+1:]...)
}
