package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/execute"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/record"
	"github.com/toold/toold/host/reliability"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// Limits on one attempt to find out how a call ended.
const (
	maxLookRounds   = 4        // calls of the export
	maxLookCommands = 8        // commands in each response
	maxLookOutput   = 64 << 10 // bytes of each output passed to the export
	maxLookFacts    = 16 << 10
	maxEvidence     = 2 << 10
	// factsPatience is how long a call waits for the facts about it: as long as a look may take. Those of npm publish
	// are two runs of npm, which took over ten seconds on a loaded machine; without them the outcome of such a call
	// could not be determined.
	factsPatience = 30 * time.Second
)

// reconcilerOf returns the module that determines how calls of t ended: its handler, or the policy that is nearest to
// it; nil if none does.
func reconcilerOf(t *tools.Tool) *guest.Module {
	if t.Kind == tools.Handler && t.Handler.Has("reconcile") {
		return t.Handler
	}
	for i := len(t.Policies) - 1; i >= 0; i-- {
		if t.Policies[i].Has("reconcile") {
			return t.Policies[i]
		}
	}
	return nil
}

func canReconcile(d *call.Decided) bool {
	return reconcilerOf(d.Tool) != nil || d.Tool.Def.Reconcile != nil
}

// facts asks the reconciler of a call that is about to run for what it will need to determine later how the call
// ended. If that fails, the call runs nevertheless.
func (p *Pipeline) facts(ctx context.Context, r *call.Run) json.RawMessage {
	// A call whose own time runs out meanwhile has not begun, and that is known.
	ctx, cancel := context.WithTimeout(ctx, factsPatience)
	defer cancel()
	l := &looking{Pipeline: p, pinned: r.Pinned}
	l.pinned.Execution = nil
	defer l.end(&wire.Result{Ran: true})
	asked := call.Undecided(r.Pinned) // as its caller made it
	said, err := l.ask(ctx, abi.Reconcile{Call: *execute.ABICall(ctx, &asked, 1), Key: r.IdempotencyKey, Before: true})
	if err == nil && len(said.Facts) > maxLookFacts {
		err = fmt.Errorf("the facts have %d bytes, which is over %d", len(said.Facts), maxLookFacts)
	}
	if err != nil {
		p.Log.Warn("no facts about a call that begins: if it is cut off, how it ended may not be found out", "tool", r.Tool.Name, "execution_id", r.ExecutionID, "error", call.AsError(ctx, err).Message)
		return nil
	}
	return said.Facts
}

// look finds out how the call of c ended, as its caller and in its folder. It is an execution of its own, of
// session.KindReconcile, in the same session.
func (p *Pipeline) look(ctx context.Context, c reliability.Case) (a reliability.Answer) {
	q := call.Request{
		Call: &wire.Call{Form: c.Form, Tool: c.Tool, Args: c.Args, Cwd: c.Cwd, Payload: c.Payload, Session: c.Session},
		UID:  c.UID, Peer: call.Peer{Socket: c.Socket}, As: &c.Caller, Inner: call.Inner{Kind: session.KindReconcile, PartOf: c.Execution},
	}
	acc, res, start := &account{caller: c.Caller}, &wire.Result{Ran: true}, time.Now()
	l := &looking{Pipeline: p}
	defer func() {
		if v := recover(); v != nil {
			p.Log.Error("a look into how a call ended panicked", "tool", c.Tool, "execution_id", c.Execution, "panic", fmt.Sprint(v))
			a, res.Err = reliability.Answer{Evidence: "the daemon failed"}, fault.Errorf(fault.Internal, "the daemon failed while it reconciled")
		}
		a.Evidence = record.HideShapes(l.mask(a.Evidence))
		a.Evidence = record.Brief(a.Evidence, maxEvidence)
		found := session.Found{Of: c.Execution, Verdict: reliability.VerdictName(a.Verdict), Evidence: a.Evidence}
		res.ExitCode, res.Duration = res.Exit(), time.Since(start)
		if l.execution != nil {
			l.execution.Conclude(found)
		}
		l.end(res)
		acc.execution, acc.found = l.execution, (*audit.Found)(&found)
		p.records.end(&q, acc, res)
	}()
	a, err := p.lookInto(ctx, &q, acc, c, l)
	if err != nil {
		e := call.AsError(ctx, err)
		res.Ran, res.Err = false, e
		a = reliability.Answer{Evidence: "it could not be looked into: " + e.Message}
	}
	if a.Verdict == idempotency.NotDone && !c.Gone {
		// Whatever it looks like now, the call may still take effect.
		a = reliability.Answer{Evidence: "not done so far, and nobody knows whether the call still runs: " + a.Evidence}
	}
	return a
}

func (p *Pipeline) lookInto(ctx context.Context, q *call.Request, acc *account, c reliability.Case, l *looking) (reliability.Answer, error) {
	whole, err := q.Call.Complete()
	if err != nil {
		return reliability.Answer{}, err
	}
	q.Call = whole
	if err := c.Caller.Current(); err != nil {
		return reliability.Answer{}, err
	}
	if _, err := p.Sessions.Find(c.Caller.Owner(), q.Session); err != nil {
		q.Session = "" // it was closed
	}
	a, err := p.admit(ctx, *q, c.Caller, acc)
	if err != nil {
		return reliability.Answer{}, err
	}
	l.execution = a.Execution
	ctx = a.Execution.Context()
	pinned, release, err := p.finder.Pin(ctx, a)
	if err != nil {
		return reliability.Answer{}, err
	}
	defer release()
	acc.pinned = &pinned
	ctx, cancel := context.WithTimeout(ctx, pinned.Tool.Def.Timeout.Duration())
	defer cancel()
	if pinned, err = place(pinned, p.Config().Entrance(q.Socket).Roots); err != nil {
		return reliability.Answer{}, err
	}
	if pinned.TakesText() {
		if pinned, err = readText(ctx, pinned); err != nil {
			return reliability.Answer{}, err
		}
	}
	l.pinned = pinned
	if _, err := a.Execution.Attempt(false); err != nil {
		return reliability.Answer{}, err
	}
	acc.allowed = true
	d := call.Undecided(pinned)
	asked := *execute.ABICall(ctx, &d, 1)
	asked.ExecutionID = c.Execution
	said, err := l.ask(ctx, abi.Reconcile{
		Call: asked, Env: c.Env, StdinSHA256: c.StdinSHA,
		Key: c.Key, BeganMS: c.Began.UnixMilli(), EndedMS: c.Ended.UnixMilli(), NowMS: time.Now().UnixMilli(), Gone: c.Gone, Facts: c.Facts,
	})
	if err != nil {
		return reliability.Answer{}, err
	}
	return l.answer(said)
}

// looking is one reconciliation. What it runs is an execution that changes nothing.
type looking struct {
	*Pipeline
	pinned    call.Pinned
	execution *session.Execution // nil until something is run
}

// ask calls the reconciler of the tool until it wants nothing more to be run.
func (l *looking) ask(ctx context.Context, q abi.Reconcile) (*abi.Reconciliation, error) {
	module := reconcilerOf(l.pinned.Tool)
	if module == nil && l.pinned.Tool.Def.Reconcile != nil {
		return l.declared(ctx, l.pinned.Tool.Def.Reconcile, &q), nil
	}
	if module == nil {
		return nil, fault.Errorf(fault.ToolBroken, "%s has nothing any more that says how its calls ended", l.pinned.Tool.Name)
	}
	q.Call.Env, q.Call.StdinBase64, q.Call.ReadOnly = nil, "", true
	for range maxLookRounds {
		in, err := json.Marshal(q)
		if err != nil {
			return nil, err
		}
		reply, err := l.Pipeline.execute.Ask(ctx, execute.Question{Call: &l.pinned, Module: module, Export: "reconcile", Input: in, Trace: l.pinned.Trace, Looks: true})
		if err != nil {
			return nil, err
		}
		var said abi.Reconciliation
		if err := strictjson.Unmarshal(reply.Output, &said); err != nil {
			return nil, fault.Errorf(fault.ToolBroken, "the answer of reconcile of %s cannot be read: %w", l.pinned.Tool.Name, err)
		}
		if len(said.Run) == 0 {
			return &said, nil
		}
		if len(said.Run) > maxLookCommands {
			break
		}
		for _, args := range said.Run {
			q.Ran = append(q.Ran, l.run(ctx, args))
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, fault.Errorf(fault.ToolBroken, "reconcile of %s asks for more commands than one pass may run", l.pinned.Tool.Name)
}

// declared returns the verdict of the command that tool.json declares.
func (l *looking) declared(ctx context.Context, r *tools.Reconcile, q *abi.Reconcile) *abi.Reconciliation {
	if q.Before {
		return &abi.Reconciliation{}
	}
	unknown := func(why string) *abi.Reconciliation {
		return &abi.Reconciliation{Verdict: abi.VerdictUnknown, Evidence: why}
	}
	args := make([]string, len(r.Args))
	for i, a := range r.Args {
		// The key is the caller's text: it must not become a flag, nor be missing.
		if strings.HasPrefix(a, "{key}") && strings.HasPrefix(q.Key, "-") {
			return unknown("the key begins with a dash, as a flag does")
		}
		if strings.Contains(a, "{key}") && q.Key == "" {
			return unknown("the call has no key of its caller's")
		}
		args[i] = strings.NewReplacer("{key}", q.Key, "{execution_id}", q.Call.ExecutionID).Replace(a)
	}
	ran := l.run(ctx, args)
	if ran.Error != nil {
		return unknown("the command did not run to its end: " + ran.Error.Message)
	}
	a := unknown(fmt.Sprintf("the command of tool.json exited with %d: %s%s", ran.ExitCode, ran.Stdout, ran.Stderr))
	switch {
	case slices.Contains(r.Done, ran.ExitCode):
		a.Verdict, a.Result = abi.VerdictDone, &abi.Result{Stdout: ran.Stdout, Stderr: ran.Stderr}
	case slices.Contains(r.NotDone, ran.ExitCode):
		a.Verdict = abi.VerdictNotDone
	}
	return a
}

// run runs the tool's own binary for a reconciliation, as a call of a caller who may only read.
func (l *looking) run(ctx context.Context, args []string) abi.ReconcileRan {
	ran := abi.ReconcileRan{Args: args}
	o, err := l.attempt(ctx, args)
	if err == nil && o.Err() != nil {
		err = o.Err()
	}
	if err != nil {
		e := call.AsError(ctx, err)
		ran.Error = &abi.Error{Code: string(e.Code), Message: e.Message, Retriable: e.Retriable()}
		if o.Result == nil {
			return ran
		}
	}
	text := func(b []byte) string {
		if len(b) > maxLookOutput {
			b, ran.Truncated = b[:maxLookOutput], true
		}
		return strings.ToValidUTF8(string(b), "\uFFFD")
	}
	ran.ExitCode, ran.Truncated = o.Result.ExitCode, o.Result.Truncated
	ran.Stdout, ran.Stderr = text(o.Result.Stdout), text(o.Result.Stderr)
	return ran
}

func (l *looking) attempt(ctx context.Context, args []string) (o call.Outcome, err error) {
	inner := l.pinned
	if inner.Tool.Kind != tools.Binary {
		return o, fault.Errorf(fault.ToolBroken, "%s has no binary that could be run", inner.Tool.Name)
	}
	if inner.Call, err = (&wire.Call{Tool: l.pinned.Call.Tool, Args: args, Cwd: l.pinned.Cwd, Trace: l.pinned.Trace, TraceID: l.pinned.TraceID}).Complete(); err != nil {
		return o, err
	}
	if l.execution == nil {
		s, err := l.Sessions.Find(inner.Caller.Owner(), inner.Session)
		if err != nil {
			return o, err
		}
		if l.execution, err = s.Begin(ctx, session.Spec{ID: inner.ExecutionID, Tool: inner.Call.Tool, Kind: session.KindReconcile}); err != nil {
			return o, err
		}
	}
	reads := *inner.Effective
	reads.ReadOnly = true
	inner.Effective, inner.Execution, inner.Payload, inner.Text, inner.Streams = &reads, l.execution, inner.Call.Payload, nil, wire.Streams{}
	d := call.Undecided(inner)
	if len(inner.Tool.Policies) == 0 {
		d.Class = call.Class{} // what tool.json declares, the operator vouches for
	} else if d, err = l.decide(ctx, inner); err != nil {
		return o, err
	}
	if d.Ask != nil {
		return o, errors.New("its policy has it approved first, and nobody is there to ask")
	}
	if d.Class.Mutating { // Settle has refused it
		return o, errors.New("it may change something")
	}
	d.Mode, d.Input = call.Off, call.Input{Fixed: true}
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	limits := &d.Tool.Def.Limits
	leave, err := l.limiter.Enter(ctx, d.Tool.Name, d.Caller.ID, d.By.Held(), limits.Concurrency, limits.Queue)
	if err != nil {
		return o, err
	}
	defer leave()
	return l.Pipeline.execute.Run(ctx, call.Attempt{Run: call.NewRun(d, wire.Streams{}), Number: 1, Trace: d.Trace}), nil
}

// answer parses a verdict. Anything else is an error.
func (l *looking) answer(said *abi.Reconciliation) (a reliability.Answer, err error) {
	a.Evidence = said.Evidence
	switch said.Verdict {
	case abi.VerdictUnknown, "":
		return a, nil
	case abi.VerdictNotDone:
		if said.Result != nil {
			return a, fault.Errorf(fault.ToolBroken, "reconcile of %s answered a result for a call that was not done", l.pinned.Tool.Name)
		}
		a.Verdict = idempotency.NotDone
		return a, nil
	case abi.VerdictDone:
	default:
		return a, fault.Errorf(fault.ToolBroken, "reconcile of %s answered the verdict %.32q", l.pinned.Tool.Name, said.Verdict)
	}
	r := said.Result
	if r == nil {
		r = &abi.Result{}
	}
	if r.ExitCode != 0 || r.Error != nil || r.Gone || r.StdoutBase64 != "" || r.StderrBase64 != "" {
		return a, fault.Errorf(fault.ToolBroken, "reconcile of %s answered the result of a call that failed, or one that is not text", l.pinned.Tool.Name)
	}
	a.Verdict = idempotency.Done
	a.Outcome.Result = &wire.Result{Ran: true, Stdout: []byte(l.mask(r.Stdout)), Stderr: []byte(l.mask(r.Stderr)), Data: r.Data}
	if len(r.Data) > 0 {
		a.Outcome.Result.Data = json.RawMessage(l.mask(string(r.Data)))
	}
	return a, nil
}

// mask masks the secrets of the tool in a text, or all of the text if the secrets cannot be read.
func (l *looking) mask(text string) string {
	if l.pinned.Tool == nil || text == "" {
		return text
	}
	mask, err := l.Pipeline.execute.Masker(&l.pinned)
	switch {
	case err != nil:
		return ""
	case mask == nil:
		return text
	}
	return mask(text)
}

func (l *looking) end(res *wire.Result) {
	if l.execution != nil {
		l.execution.End(res)
	}
}
