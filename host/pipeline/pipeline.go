// Package pipeline runs calls from request to result. Pipeline.Call is the one entry point for every front end, and
// this file reads in the order of the stages:
//
//	identity -> session -> tool generation -> working directory, environment
//	-> schema -> policy -> idempotency -> breaker -> retry -> execution -> result
//
// Each stage derives a value of package call from the previous one. Any error before the execution itself ends the
// call before anything has run.
package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/arguments"
	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/execute"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/finder"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/record"
	"github.com/toold/toold/host/reliability"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// Pipeline runs calls. It is safe for concurrent use.
type Pipeline struct {
	Parts
	// Results keeps the most recent results.
	Results Results

	execute   *execute.Executor
	finder    *finder.Finder
	inner     sessionCalls
	approvals approvalCalls
	approver  *approver
	records   *recorder
	limiter   reliability.Limiter
	calls     atomic.Int64
	running   atomic.Int64
}

// Calls returns how many calls have ended; Running how many executions are running.
func (p *Pipeline) Calls() int64   { return p.calls.Load() }
func (p *Pipeline) Running() int64 { return p.running.Load() }

// MissingSecret returns why every call of t is refused because the operator has not provided a secret, or nil.
func (p *Pipeline) MissingSecret(t *tools.Tool) error { return p.execute.MissingSecret(t) }

// Call runs one call through all stages and returns its outcome. ctx is the caller's: its end ends the call, with its
// cause, except for a mutating call with a key that has begun and whose caller has left (wire.ErrLeft).
func (p *Pipeline) Call(ctx context.Context, q call.Request) call.Outcome {
	start := time.Now()
	acc := &account{}
	defer func() {
		if acc.counted {
			p.Results.end(q.ExecutionID)
		}
	}()
	defer func() { // a panic propagates to the caller, and leaves nothing running
		if v := recover(); v != nil {
			res := &wire.Result{Err: fault.Errorf(fault.Internal, "the daemon failed in this call")}
			acc.endGrant(res)
			if acc.execution != nil {
				acc.execution.End(res)
			}
			p.records.end(&q, acc, res)
			panic(v)
		}
	}()
	o := p.dispatch(ctx, q, acc)
	res := o.Result
	res.ExitCode = res.Exit()
	res.ExecutionID = q.ExecutionID
	res.Duration = time.Since(start)
	res.Usage = acc.meter.Usage()
	acc.endGrant(res)
	if r := acc.asked; r != nil && q.Form == wire.Envelope && res.Err != nil && res.Err.Code == fault.ApprovalRequired {
		res.Data = askedData(r)
	}
	if acc.execution != nil {
		acc.execution.End(res)
	}
	if acc.job {
		return o
	}
	p.observe(ctx, &q, acc, res)
	p.records.end(&q, acc, res)
	wrote := q.Streams.Stdout == nil && (res.Ran || size(res) > 0) // also before its time was up
	if acc.counted && (wrote || len(res.Data) > 0) && !session.IsCall(q.Tool) {
		p.Results.put(acc.caller.ID, q.Tool, start, res)
	}
	return o
}

// dispatch runs the stages in order.
func (p *Pipeline) dispatch(ctx context.Context, q call.Request, acc *account) call.Outcome {
	caller, err := p.identify(ctx, &q)
	if bound := p.Config().Entrance(q.Socket).Session; err == nil && bound != "" {
		caller, err = caller.Bind(bound)
	}
	if err != nil {
		return call.Failed(ctx, err)
	}
	q.Call = withoutToken(q.Call).Traced() // nothing after this may hold the token
	again, err := p.Results.begin(&q, caller.ID)
	if err != nil {
		return call.Failed(ctx, err)
	}
	if again {
		p.Log.Info("an execution id was used again, and its result is replaced", "execution_id", q.ExecutionID, "caller", caller.ID, "tool", q.Tool)
	}
	acc.caller, acc.counted = caller, true
	if err := q.CheckParent(q.Tool == finder.ListID); err != nil {
		return call.Failed(ctx, err)
	}
	if isApprovalCall(q.Tool) {
		return p.approvals.serve(ctx, &q, caller)
	}
	if q.Background || q.Detach || q.JobAfter > 0 {
		o, accepted := p.inner.background(ctx, q, caller)
		acc.job = accepted
		return o
	}
	if session.IsCall(q.Tool) {
		return p.inner.serve(ctx, q, caller)
	}
	a, err := p.admit(ctx, q, caller, acc)
	if err != nil {
		return call.Failed(ctx, err)
	}
	ctx = a.Execution.Context() // which also ends on an abort
	if a.Tool == finder.ListID {
		return p.finder.List(ctx, a)
	}
	if a.Tool == finder.CompleteID {
		return p.finder.Complete(ctx, a)
	}

	return p.pinned(ctx, a, acc)
}

// pinned runs the rest of an admitted call: from finding its tool, which it holds until the end, to running what was
// decided.
func (p *Pipeline) pinned(ctx context.Context, a call.Admitted, acc *account) call.Outcome {
	q := &a.Request
	pinned, release, err := p.finder.Pin(ctx, a)
	if err != nil {
		return call.Failed(ctx, err)
	}
	defer release()
	acc.pinned = &pinned
	// One time limit for the whole call: policy, waiting and execution together. Only the wait for an approval has its
	// own.
	life := ctx
	ctx, cancel := p.timed(life, &pinned)
	defer cancel()

	if pinned, err = place(pinned, p.Config().Entrance(q.Socket).Roots); err != nil {
		return call.Failed(ctx, err)
	}
	if pinned, err = p.admitEnv(pinned); err != nil {
		return call.Failed(ctx, err)
	}
	if pinned.TakesText() {
		if pinned, err = readText(ctx, pinned); err != nil {
			return call.Failed(ctx, err)
		}
		if help := pinned.Text.Help; help != "" {
			return call.Text(ctx, q, help)
		}
	}
	if err := pinned.Validate(); err != nil {
		return call.Failed(ctx, err)
	}
	d, err := p.decide(ctx, pinned)
	acc.decided = &d
	if err != nil {
		return call.Failed(ctx, err)
	}
	if q.Plan != nil {
		acc.planned = true
		return call.Outcome{Result: &wire.Result{Err: call.AsError(ctx, q.Plan(&d))}}
	}
	if d.Ask != nil && q.Take == nil && waits(&d) {
		if d, err = p.await(life, d, pinned); err != nil {
			return call.Failed(life, err)
		}
		acc.decided = &d
		var end context.CancelFunc
		ctx, end = p.timed(life, &d.Pinned)
		defer end()
	}
	acc.allowed = d.Ask == nil
	if d.Timeout > 0 {
		var sooner context.CancelFunc
		ctx, sooner = context.WithTimeout(ctx, d.Timeout)
		defer sooner()
	}
	d.Execution.Job.Admit()
	r := call.NewRun(d, d.Streams.Within(ctx))
	return withNotice(q, d.Unhonoured(), func() call.Outcome {
		return p.Layer.Do(ctx, r, func(ctx context.Context, number int) call.Outcome { return p.attempt(ctx, acc, r, number) })
	})
}

// await makes d wait until it is approved, and then decides it anew from pinned, which is d before any policy was
// called. If a policy decides differently by then, that decision applies.
func (p *Pipeline) await(ctx context.Context, d call.Decided, pinned call.Pinned) (call.Decided, error) {
	if p.Layer.Recorded(ctx, &d) {
		return d, nil // the record of its key is the response
	}
	if pinned.Timeout > 0 { // only the caller's own limit bounds the wait
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, pinned.Timeout)
		defer cancel()
	}
	step, r, err := p.approver.wait(ctx, &d)
	if err != nil {
		return d, err
	}
	if pinned, err = place(pinned, p.Config().Entrance(d.Socket).Roots); err != nil {
		return d, err
	}
	again, err := p.decide(ctx, pinned)
	if err != nil || again.Ask == nil {
		return again, err
	}
	return again, p.approver.compare(&again, step, r.ID)
}

// timed returns life with the time limit of the call c, which is paused while its caller runs a program for it, or is
// asked a question by its module. The caller's own limit is not paused.
func (p *Pipeline) timed(life context.Context, c *call.Pinned) (context.Context, context.CancelFunc) {
	if !p.execute.MayCallBack(c) && c.Streams.Receive == nil {
		return context.WithTimeout(life, call.Shorter(c.Tool.Def.Timeout.Duration(), c.Timeout))
	}
	clock := call.NewClock(life, c.Tool.Def.Timeout.Duration())
	c.Clock = clock
	if c.Timeout == 0 {
		return clock, clock.Stop
	}
	ctx, cancel := context.WithTimeout(clock, c.Timeout)
	return ctx, func() { cancel(); clock.Stop() }
}

// withNotice calls run and writes a notice to standard error before its output.
func withNotice(q *call.Request, notice string, run func() call.Outcome) call.Outcome {
	if notice != "" && q.Streams.Stderr != nil {
		io.WriteString(q.Streams.Stderr, notice) // a caller that has left reads nothing
		notice = ""
	}
	o := run()
	if notice != "" {
		res := *o.Result // it may be a stored one
		res.Stderr = append([]byte(notice), res.Stderr...)
		o.Result = &res
	}
	return o
}

// identify resolves the caller. A turn and a job have the identity of whoever asked for them, as long as it is valid.
func (p *Pipeline) identify(ctx context.Context, q *call.Request) (identity.Caller, error) {
	if q.As != nil {
		return *q.As, q.As.Current()
	}
	c, err := p.Identity().Resolve(q.Token, q.UID)
	if err != nil && q.Token != "" && p.Tools.Ready(ctx) == nil {
		// A tool that is still being loaded may declare the claim that no tool seemed to declare.
		c, err = p.Identity().Resolve(q.Token, q.UID)
	}
	return c, err
}

func withoutToken(c *wire.Call) *wire.Call {
	if c.Token == "" {
		return c
	}
	without := *c
	without.Token = ""
	return &without
}

// admit begins the execution in the session of q: the one that the call names, else the one that its connection has in
// focus, else the caller's default one.
func (p *Pipeline) admit(ctx context.Context, q call.Request, caller identity.Caller, acc *account) (call.Admitted, error) {
	s, err := p.find(&q, caller)
	if err != nil {
		return call.Admitted{}, err
	}
	kind := q.Kind
	if kind == "" {
		kind = session.KindCall
	}
	x, err := s.Begin(ctx, session.Spec{ID: q.ExecutionID, Tool: q.Tool, Kind: kind, Parent: q.By.ID(), Job: job.FromContext(ctx), Listing: q.Tool == finder.ListID || q.Tool == finder.CompleteID,
		From: q.Peer})
	if err != nil {
		return call.Admitted{}, err
	}
	acc.execution = x
	x.AddInput(len(q.Payload))
	if q.Form == wire.Envelope { // in the plain form it is in the payload
		x.AddInput(len(q.Stdin))
	}
	return call.Admitted{Request: q, Caller: caller, Session: x.Session, Execution: x, Meter: &acc.meter}, nil
}

// place resolves the working directory, in or below the roots of the socket as narrowed by the tool. A command whose
// caller names none works in the first root. A tool that touches no files needs none, and gets none if the caller's is
// outside the roots.
func place(p call.Pinned, roots []string) (call.Pinned, error) {
	p.Roots = roots
	if narrower := p.Tool.Def.Roots; len(narrower) > 0 {
		real, err := beneath.Resolve(narrower)
		if err != nil {
			return p, fault.Errorf(fault.ToolBroken, "roots of tool %s: %w", p.Call.Tool, err)
		}
		if p.Roots = intersect(roots, real); len(p.Roots) == 0 {
			return p, fault.Errorf(fault.Denied, "denied by rule roots: %s works beneath %s, and this socket serves nothing there", p.Call.Tool, strings.Join(narrower, ", "))
		}
	}
	cwd := p.Call.Cwd
	needs := p.Tool.Kind == tools.Binary || len(p.Tool.Def.Capabilities.Exec) > 0
	if cwd == "" && (needs || p.IsCommand()) && len(p.Roots) > 0 {
		cwd = p.Roots[0]
	}
	if cwd == "" && !needs {
		return p, nil
	}
	dir, path, err := beneath.Open(p.Roots, cwd)
	if err != nil {
		if needs {
			return p, err
		}
		return p, nil
	}
	p.Cwd = path
	p.Folder, err = confine.ObjectOf(dir)
	return p, errors.Join(err, dir.Close())
}

// intersect returns what is under both a folder of a and a folder of b.
func intersect(a, b []string) []string {
	out := []string{}
	add := func(p string) {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, x := range a {
		for _, y := range b {
			switch {
			case beneath.Has(x, y):
				add(y)
			case beneath.Has(y, x):
				add(x)
			}
		}
	}
	return out
}

// admitEnv refuses every variable that the tool does not admit. It leaves out those that its caller passes to all tools
// (TOOL_ENV) and that another one admits, so that a variable of one tool does not keep its caller from the others. One
// that the tool would have honoured is not left out, nor one that no tool admits: nobody may take a call for one that had
// the variable.
func (p *Pipeline) admitEnv(pinned call.Pinned) (call.Pinned, error) {
	var omitted []string
	for _, name := range slices.Sorted(maps.Keys(pinned.Env)) {
		if slices.Contains(pinned.Tool.Def.Capabilities.Env, name) {
			continue
		}
		_, matters := pinned.Tool.Def.Seen(name)
		if matters || !slices.Contains(pinned.EnvSeen, name) || !p.admittedElsewhere(&pinned, name) {
			return pinned, fault.Errorf(fault.Denied, "denied by rule env: %s does not admit the variable %s; unset it, or leave it out of TOOL_ENV; the operator may add it to capabilities.env in tool.json", pinned.Call.Tool, name)
		}
		omitted = append(omitted, name)
	}
	return pinned.WithoutEnv(omitted), nil
}

// admittedElsewhere reports whether a tool that the caller of c can call admits the variable.
func (p *Pipeline) admittedElsewhere(c *call.Pinned, name string) bool {
	entrance := p.Config().Entrance(c.Socket)
	return slices.ContainsFunc(p.Tools.Serving(), func(t *tools.Tool) bool {
		return slices.Contains(t.Def.Capabilities.Env, name) && entrance.Serves(t.Def.Category) && c.Execution.Admits(t.Name)
	})
}

// maxTextInput bounds, in bytes, a value that a command line reads from standard input.
const maxTextInput = 4 << 20

// readText builds the payload of a call from its arguments, by the schema.
func readText(ctx context.Context, p call.Pinned) (call.Pinned, error) {
	in := &lazyInput{open: func() io.ReadCloser {
		if len(p.Stdin) > 0 || p.Streams.Stdin == nil {
			return io.NopCloser(bytes.NewReader(p.Stdin))
		}
		return p.Streams.Stdin()
	}}
	stop := context.AfterFunc(ctx, in.end)
	defer func() { stop(); in.end() }()
	about := arguments.Tool{Name: p.Call.Tool, Schema: json.RawMessage(p.Schema()), Description: p.Tool.Description}
	if p.Discovered != nil {
		about.Description = p.Discovered.Description
	}
	t, err := arguments.Parse(about, p.Args, in, maxTextInput)
	if ctx.Err() != nil {
		return p, context.Cause(ctx)
	}
	if err != nil {
		return p, err
	}
	return p.ByText(t), nil
}

// lazyInput is opened by the first Read.
type lazyInput struct {
	open func() io.ReadCloser

	mu    sync.Mutex
	r     io.ReadCloser // nil before the first Read; guarded by mu
	ended bool          // guarded by mu
}

func (l *lazyInput) Read(b []byte) (int, error) {
	l.mu.Lock()
	if l.r == nil && !l.ended {
		l.r = l.open()
	}
	r, ended := l.r, l.ended
	l.mu.Unlock()
	if ended {
		return 0, io.ErrClosedPipe
	}
	return r.Read(b)
}

// end ends a Read, and discards what still arrives.
func (l *lazyInput) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	if l.r != nil {
		l.r.Close()
	}
}

// decide calls every policy of the tool in turn; the second one sees the call as changed by the first. On an error it
// also returns what was decided before.
func (p *Pipeline) decide(ctx context.Context, pinned call.Pinned) (call.Decided, error) {
	d := call.Undecided(pinned)
	var err error
	d.Callbacks.Offered = p.execute.OfferedCallbacks(&pinned)
	for i, policy := range pinned.Tool.Policies {
		name := execute.ShortName(pinned.Tool.PolicyFiles[i])
		asked := call.Asked{File: pinned.Tool.PolicyFiles[i], Digest: pinned.Tool.PolicyDigests[i], At: time.Now()}
		in, err := json.Marshal(execute.ABICall(ctx, &d, 1))
		if err != nil {
			return d, fault.Errorf(fault.Internal, "ask the policy: %w", err)
		}
		asked.Input = in
		reply, err := p.execute.Ask(ctx, execute.Question{Call: &pinned, Module: policy, Export: "restrict", Input: in, Trace: pinned.Trace,
			Vars: func(name string, value []byte) { asked.Vars = record.AppendVar(asked.Vars, name, value) }})
		asked.Answer, asked.Err = reply.Output, err
		d.Asked = append(d.Asked[:i:i], asked)
		if err != nil {
			p.Metrics.Decision(pinned.Call.Tool, observe.PolicyError)
			e := call.AsError(ctx, err)
			code := e.Code
			if code == fault.ToolFailed { // that code is for tools that ran
				code = fault.ToolBroken
			}
			return d, &fault.Error{Code: code, Message: fmt.Sprintf("policy %s did not decide, so the call is refused: %s", name, e.Message), Cause: err}
		}
		var said abi.Decision
		if err := strictjson.Unmarshal(reply.Output, &said); err != nil {
			p.Metrics.Decision(pinned.Call.Tool, observe.PolicyError)
			return d, fault.Errorf(fault.ToolBroken, "policy %s answered no decision, so the call is refused: %w", name, err)
		}
		switch said.Effect {
		case abi.Allow:
			p.Metrics.Decision(pinned.Call.Tool, observe.PolicyAllow)
		case abi.Ask:
			p.Metrics.Decision(pinned.Call.Tool, observe.PolicyAsk)
		default:
			p.Metrics.Decision(pinned.Call.Tool, observe.PolicyDeny)
			return d, denied(name, &said)
		}
		if d, err = d.Apply(&said); err != nil {
			return d, fault.Errorf(fault.ToolBroken, "policy %s answered a decision that cannot be followed, so the call is refused: %w", name, err)
		}
	}
	if d, err = d.Settle(p.Config().ModeOf(pinned.Tool.Def.Reliability.Mode)); err == nil && (d.Ask != nil || d.Plan != nil || d.Take != nil) {
		d, err = whole(d)
	}
	return d, err
}

// denied states the rule, the reason and what to do instead, one line each, as far as the policy gave them.
func denied(policy string, d *abi.Decision) *fault.Error {
	msg := "denied by " + policy
	if d.Rule != "" {
		msg = "denied by rule " + d.Rule
	}
	if d.Effect != abi.Deny {
		msg += fmt.Sprintf(": effect %q is neither allow nor deny nor ask", d.Effect)
	}
	if d.Reason != "" {
		msg += ": " + d.Reason
	}
	if d.Instead != "" {
		msg += "; instead: " + d.Instead
	}
	return &fault.Error{Code: fault.Denied, Message: msg}
}

// attempt is one attempt: a place among the tool's executions, what has to be on disk before the first one that gets a
// place, and the execution.
func (p *Pipeline) attempt(ctx context.Context, acc *account, r *call.Run, number int) call.Outcome {
	limits := &r.Tool.Def.Limits
	leave, err := p.limiter.Enter(ctx, r.Tool.Name, r.Caller.ID, r.By.Held(), limits.Concurrency, limits.Queue)
	if err != nil {
		return call.Failed(ctx, err)
	}
	defer leave()
	// Only now: an approval may lapse while its call waits for a place. The attempt's number does not matter: an
	// earlier one may not have got a place.
	if !acc.cleared {
		if err := p.approver.spend(ctx, &r.Decided, &acc.consent); err != nil {
			return call.Failed(ctx, err)
		}
		if err := p.records.begin(ctx, &r.Decided, acc); err != nil {
			return call.Failed(ctx, err)
		}
		acc.cleared = true
	}
	defer p.Metrics.Running(r.Tool.Name)()
	p.running.Add(1)
	defer p.running.Add(-1)
	trace, end := p.Tracer.Execution(r.Trace, observe.Execution{Tool: r.Tool.Name, ExecutionID: r.ExecutionID, Attempt: number, Mutating: r.Class.Mutating, TraceID: r.PassedTraceID()})
	a := call.Attempt{Run: r, Number: number, Trace: trace, Asking: p.limiter.Asking(r.Tool.Name)}
	o := p.execute.Run(ctx, a)
	if r.Discovered != nil {
		o = p.followDiscovered(ctx, acc, a, o)
	}
	end(o.Result.Status(), errorCode(o.Err()))
	return o
}

// followDiscovered applies the outcome of an attempt at a discovered tool to what is known of its identity, and
// retries once if the tool had moved meanwhile.
func (p *Pipeline) followDiscovered(ctx context.Context, acc *account, a call.Attempt, o call.Outcome) call.Outcome {
	fingerprint := a.Discovered.Key.Fingerprint
	gone := func() bool { return o.Answer != nil && o.Answer.Gone }
	if gone() {
		p.Discovered.Invalidate(fingerprint, "a call found its tool gone")
		d, err := p.findAgain(ctx, a.Decided)
		if err != nil {
			return call.Failed(ctx, err)
		}
		again := *a.Run
		again.Decided = d
		if err := p.records.begin(ctx, &again.Decided, acc); err != nil {
			return call.Failed(ctx, err)
		}
		o = p.execute.Run(ctx, call.Attempt{Run: &again, Number: a.Number, Trace: a.Trace, Asking: a.Asking})
		if gone() {
			p.Discovered.Invalidate(fingerprint, "a call found its tool gone")
			if e := o.Answer.Error; e != nil {
				// It is listed, but what it depends on is missing.
				return call.Failed(ctx, fault.Errorf(fault.ToolFailed, "%s", e.Message))
			}
			return call.Failed(ctx, tools.Unknown(a.Call.Tool))
		}
	}
	if o.Answer == nil {
		return o
	}
	if s := o.Answer.Safety; s != nil {
		p.Discovered.CheckGrants(fingerprint, *s)
	}
	if e := o.Answer.Error; e != nil && e.Code == abi.Unauthenticated && o.Err() != nil {
		refused := o.Err()
		p.Discovered.Refuse(fingerprint, &fault.Error{Code: fault.Unauthenticated, Message: a.Tool.Name + " refuses this identity: " + refused.Message})
		o.Result.Err = &fault.Error{Code: fault.Unauthenticated, Message: refused.Message, ToolCode: refused.ToolCode, Cause: refused}
	}
	return o
}

// findAgain looks up the tool of d again, on the version of the module that d began with, and has it decided anew if
// it now refers to something else.
func (p *Pipeline) findAgain(ctx context.Context, d call.Decided) (call.Decided, error) {
	was := d.Discovered
	s, err := p.Discovered.Get(ctx, was.Key, p.finder.Discovery(d.Pinned, was.Key))
	if errors.Is(err, discovery.ErrSuperseded) {
		return d, tools.Unknown(d.Call.Tool)
	}
	if err != nil {
		return d, err
	}
	t, ok := s.Find(d.Call.Tool, d.ReadOnly())
	switch {
	case !ok:
		return d, tools.Unknown(d.Call.Tool)
	case t.Schema != was.Tool.Schema:
		return d, fault.Errorf(fault.InvalidPayload, "%s takes other arguments than before; list the tools again, and call it as it is now", d.Call.Tool)
	case t.Mutating != was.Mutating:
		return d, fault.Errorf(fault.InvalidPayload, "%s is of another kind than before; list the tools again", d.Call.Tool)
	}
	now := *was
	now.Tool = t
	if t.Binding == was.Binding {
		d.Discovered = &now
		return d, nil
	}
	// The policy decided about something else.
	pinned := d.Pinned
	pinned.Discovered = &now
	again, err := p.decide(ctx, pinned)
	if err != nil {
		return d, err
	}
	if again.Ask != nil { // and what was approved, if anything, was something else
		return d, fault.Errorf(fault.ApprovalRequired, "%s needs an approval as it is now; call it again", d.Call.Tool)
	}
	if again.Class.Mutating != d.Class.Mutating {
		return d, fault.Errorf(fault.InvalidPayload, "%s is of another kind than before, as its policy says; call it again", d.Call.Tool)
	}
	return again, nil
}

func errorCode(e *fault.Error) string {
	if e == nil {
		return ""
	}
	return string(e.Code)
}

// observe counts and logs one call that has ended.
func (p *Pipeline) observe(ctx context.Context, q *call.Request, acc *account, res *wire.Result) {
	p.calls.Add(1)
	tool := observe.Unknown
	switch {
	case acc.pinned != nil:
		tool = acc.pinned.Tool.Name
	case session.IsCall(q.Tool), q.Tool == finder.ListID, q.Tool == finder.CompleteID:
		tool = q.Tool
	}
	p.Metrics.Executed(tool, res.Status(), res.Duration)
	level, attrs := slog.LevelDebug, []any{
		"tool", q.Tool, "execution_id", q.ExecutionID, "caller", acc.caller.ID,
		"status", res.Status(), "exit_code", res.ExitCode, "duration_ms", res.Duration.Milliseconds(),
	}
	if d := acc.decided; d != nil && d.Rule != "" {
		attrs = append(attrs, "rule", d.Rule)
	}
	if q.Trace != "" {
		attrs = append(attrs, "trace", q.Trace)
	}
	if q.TraceID != "" {
		attrs = append(attrs, "trace_id", record.Brief(q.TraceID, record.MaxSaid))
	}
	if len(q.CallerInfo) > 0 {
		attrs = append(attrs, "caller_info", record.Brief(string(q.CallerInfo), record.MaxSaid))
	}
	if !q.Timestamp.IsZero() {
		attrs = append(attrs, "sent", q.Timestamp)
	}
	if e := res.Err; e != nil {
		level = observe.Level(e.Code)
		attrs = append(attrs, "code", e.Code, "error", e.Message)
		if e.ToolCode != "" {
			attrs = append(attrs, "tool_code", e.ToolCode)
		}
		if e.Cause != nil && e.Cause.Error() != e.Message {
			attrs = append(attrs, "cause", e.Cause.Error())
		}
	}
	p.Log.Log(ctx, level, "call", attrs...)
}
