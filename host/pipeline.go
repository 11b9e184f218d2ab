package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/breaker"
	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/retry"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// call is one call on its way. It belongs to the goroutine that runs it.
type call struct {
	*wire.Call
	kind    string    // of its execution: session.KindCall, KindTurn or KindJob
	isJob   bool      // it goes on as a job, which is a call of its own
	on      *listener // which socket it came over
	caller  identity.Caller
	counted bool               // its id is the caller's now; see results
	running *session.Execution // from when its session is known
	tool    *tools.Tool        // pinned: policy, schema and handler are of one version
	roots   []string           // beneath which this call may work
	streams wire.Streams

	// What the caller is to the tool.
	effective *identity.Effective
	key       discovery.Key // of a tool that brings further ones
	readOnly  bool
	offered   *offered   // when such a tool brought what is called
	said      abi.Result // by the handler of it

	// sent is what the caller sent, from when a policy wrote over it: a record
	// is of the request.
	sent *sent

	// What the policies decided; what runs is exactly this.
	rule         string
	command      bool            // the payload is {args, cwd, stdin?}, or follows from these
	rewritten    json.RawMessage // such a payload, when a policy changed what is in it
	rewroteStdin bool            // Stdin is the policy's, even when empty
	wantStdin    bool
	shell        bool
	shellLines   []string // the only ones for the shell; nil: any
	mutating     bool
	idempotent   bool

	usage *wire.Usage // of the modules that ran until now

	// stance is the reliability layer's, taken once: a reload while the call
	// runs changes nothing for it.
	stance stance
	passed passed
	life   life
	teed   *[2]capture // what was streamed, as far as a record may hold it
	// What follows is of the attempt that runs, or ran last; attempts count
	// from 1.
	attempt    int
	began      bool          // the tool itself was started
	killed     bool          // a signal ended it
	exitFailed bool          // its exit is a failure, and not only its answer
	answered   bool          // its last HTTP request had an answer that is final
	retryAfter time.Duration // which that answer asked for
}

// sent are parts of a request that a policy may replace.
type sent struct {
	env   map[string]string
	stdin []byte
}

// call takes one call all the way:
//
//	identity -> session -> tool generation -> working directory, environment
//	-> schema -> policy -> idempotency -> breaker -> retry -> execution -> result
//
// The context is the caller's: it is done when the caller has gone. Every
// error on the way ends the call before anything has run, except one of the
// execution itself.
func (h *Host) call(ctx context.Context, on *listener, wc *wire.Call, from server.Peer, streams wire.Streams) *wire.Result {
	return h.way(ctx, on, &call{Call: wc, kind: session.KindCall, streams: streams}, from)
}

func (h *Host) way(ctx context.Context, on *listener, k *call, from server.Peer) *wire.Result {
	start := time.Now()
	k.on = on
	defer func() {
		if k.counted {
			h.results.end(k.ExecutionID)
		}
	}()
	defer func() { // a panic goes on to who called, and leaves nothing running
		if p := recover(); p != nil {
			if k.running != nil {
				k.running.End(&wire.Result{Err: fault.Errorf(fault.Internal, "the daemon failed in this call")})
			}
			panic(p)
		}
	}()
	res, err := h.take(ctx, on, k, from)
	if res == nil {
		res = &wire.Result{}
	}
	if k.running != nil {
		ctx = k.running.Context() // which knows of an abort
	}
	if err != nil {
		res.Err = asError(ctx, err)
	}
	if !res.Ran && res.Err != nil {
		res.ExitCode = res.Err.Code.ExitCode()
	}
	res.ExecutionID = k.ExecutionID
	res.Duration = time.Since(start)
	res.Usage = k.usage
	if k.running != nil {
		k.running.End(res)
	}
	if k.isJob {
		return res
	}
	h.observe(ctx, k, res)
	wrote := k.streams.Stdout == nil && (res.Ran || size(res) > 0) // also before its time was over
	if k.counted && (wrote || len(res.Data) > 0) && !session.IsCall(k.Tool) {
		h.results.put(k.caller.ID, k.Tool, start, res)
	}
	return res
}

func (h *Host) take(ctx context.Context, on *listener, k *call, from server.Peer) (*wire.Result, error) {
	var err error
	if k.caller.ID == "" { // a turn and a job have that of who asked for them
		if k.caller, err = h.who(ctx, k.Token, from.UID); err != nil {
			return nil, err
		}
	} else if err = k.caller.Current(); err != nil {
		return nil, err
	}
	k.Token = "" // nothing after this may hold it
	if err := h.results.begin(k.ExecutionID, k.caller.ID); err != nil {
		return nil, err
	}
	k.counted = true
	if k.Background || k.Detach {
		return h.background(ctx, on, k, from)
	}
	if session.IsCall(k.Tool) {
		return h.serveSessions(ctx, on, k, from)
	}
	if ctx, err = h.enter(ctx, k, from); err != nil {
		return nil, err
	}
	if k.Tool == listToolsID {
		return h.listTools(ctx, k, on)
	}

	release, err := h.acquire(ctx, k, on)
	if err != nil {
		return nil, err
	}
	defer release()
	tool := k.tool
	k.mutating, k.idempotent, k.wantStdin = tool.Def.Mutating, tool.Def.Idempotent, tool.Def.Stdin
	k.command = k.offered == nil && (k.Form == wire.Plain || k.Args != nil)

	// One clock for the whole call: policy, waiting and execution together.
	ctx, cancel := context.WithTimeout(ctx, narrow(tool.Def.Timeout.Duration(), k.Timeout))
	defer cancel()

	if err := h.place(k, on); err != nil {
		return nil, err
	}
	if err := admitEnv(k); err != nil {
		return nil, err
	}
	if err := k.validate(); err != nil {
		return nil, err
	}
	timeout, err := h.decide(ctx, k)
	if err != nil {
		return nil, err
	}
	if err := k.permit(); err != nil {
		return nil, err
	}
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	k.running.Job.Admit()
	k.stance = stanceTo(h.config().ModeOf(tool.Def.Reliability.Mode), k.mutating)
	k.streams = k.streams.Within(ctx)
	return h.keyed(ctx, k)
}

// keyed is the idempotency stage: of calls with one key, one runs, and all are
// answered with what came of it.
func (h *Host) keyed(ctx context.Context, k *call) (res *wire.Result, err error) {
	if k.stance == absent {
		return h.once(ctx, k, 1)
	}
	request, err := recordRequest(k)
	if err != nil && k.stance == acts {
		return nil, err
	}
	if err != nil || request == nil {
		return h.guarded(ctx, k)
	}
	records := h.records
	if request.Shadow {
		records = h.watched
	}
	ran := false
	kept, err2 := records.Do(ctx, *request, func(ctx context.Context) idempotency.Outcome {
		ran = true
		if k.mutating && k.stance == acts {
			var end func()
			ctx, end = h.outlive(ctx, k)
			defer end()
		}
		res, err = h.guarded(ctx, k)
		if err != nil {
			err = asError(ctx, err) // while ctx can tell why
		}
		return k.conclude(res, asErrorOrNil(ctx, err))
	})
	switch {
	case request.Shadow:
		if decision := wouldHave(kept.Event); decision != "" {
			h.would(k, decision)
		}
		if !ran {
			return h.guarded(ctx, k)
		}
		return res, err
	case ran:
		return res, err // also where it could not be recorded: it is the truth
	case err2 == nil:
		return unkeep(kept)
	case errors.Is(err2, idempotency.ErrStoreUnavailable) && !k.mutating:
		return h.guarded(ctx, k) // nothing is lost by running it twice
	}
	return nil, k.refusedByRecord(ctx, err2)
}

// guarded is the breaker's stage: it refuses a call of what keeps failing, and
// learns from one that it lets pass. It counts calls, not attempts.
func (h *Host) guarded(ctx context.Context, k *call) (*wire.Result, error) {
	k.watch()
	g := h.guards.of(upstreamOf(k), k.tool)
	ticket, err := g.breaker.Enter()
	if err != nil {
		if k.stance == acts {
			return nil, refusedBy(k, err)
		}
		h.would(k, "circuit_open")
		return h.once(ctx, k, 1)
	}
	defer ticket.Done(breaker.Neutral) // where a panic comes past
	res, err := h.retried(ctx, k, g, ticket)
	e := asErrorOrNil(ctx, err)
	ticket.Done(outcome(k.judge(res, e), res, e))
	return res, err
}

// retried is the stage that runs a call again while that may help: a failure
// that says it may, of a call that may safely be repeated, for as long as the
// caller is there, the breaker has not opened and the budget lasts.
func (h *Host) retried(ctx context.Context, k *call, g *guard, ticket *breaker.Ticket) (res *wire.Result, err error) {
	limits := k.tool.Def.Reliability.Retry
	config := retry.Config{
		Max:     limits.Max,
		Initial: time.Duration(limits.InitialMS) * time.Millisecond,
		Cap:     time.Duration(limits.CapMS) * time.Millisecond,
		Stop:    func() bool { return !ticket.Current() || k.alone() },
	}
	if limits.Max == 0 || k.stance == shadows {
		config.Max = -1
	}
	attempts := retry.Do(ctx, config, &g.budget, func(ctx context.Context, attempt int) retry.Verdict {
		res, err = h.once(ctx, k, attempt)
		again := k.judge(res, asErrorOrNil(ctx, err)).again && k.maySafelyRepeat()
		if again && k.stance == shadows && limits.Max > 0 {
			h.would(k, "retry")
		}
		return retry.Verdict{Again: again, After: k.retryAfter}
	})
	switch {
	case attempts == 0:
		return nil, context.Cause(ctx)
	case attempts > 1:
		h.metrics.Retried(k.tool.Name, attempts-1)
	}
	return res, err
}

// once is one attempt: a place among the tool's executions, and the execution.
func (h *Host) once(ctx context.Context, k *call, attempt int) (*wire.Result, error) {
	k.attempt, k.began, k.killed, k.exitFailed, k.retryAfter = attempt, false, false, false, 0
	leave, err := h.gates.enter(ctx, k.tool.Name, k.tool.Def.Limits.Concurrency, k.tool.Def.Limits.Queue)
	if err != nil {
		return nil, err
	}
	defer leave()
	defer h.metrics.Running(k.tool.Name)()
	h.running.Add(1)
	defer h.running.Add(-1)
	parent := k.Trace
	trace, end := h.tracer.Execution(parent, observe.Execution{Tool: k.tool.Name, ExecutionID: k.ExecutionID, Attempt: attempt, Mutating: k.mutating})
	k.Trace = trace // for what the tool asks and starts
	res, err := h.run(ctx, k)
	k.Trace = parent
	end(spanEnd(res, asErrorOrNil(ctx, err)))
	return res, err
}

// place finds the working directory beneath the roots of the socket, as far
// as the tool narrows them. A tool that touches no files needs none, and gets
// none where the caller's is outside.
func (h *Host) place(k *call, on *listener) error {
	k.roots = on.roots()
	if len(k.tool.Def.Roots) > 0 {
		narrower, err := process.ResolveRoots(k.tool.Def.Roots)
		if err != nil {
			return fault.Errorf(fault.ToolBroken, "roots of tool %s: %w", k.Tool, err)
		}
		if k.roots = intersect(k.roots, narrower); len(k.roots) == 0 {
			return fault.Errorf(fault.Denied, "denied by rule roots: %s works beneath %s, and this socket serves nothing there", k.Tool, strings.Join(k.tool.Def.Roots, ", "))
		}
	}
	needs := touchesFiles(k.tool)
	if k.Cwd == "" && !needs {
		return nil
	}
	dir, path, err := process.OpenBeneath(k.roots, k.Cwd)
	if err != nil {
		if needs {
			return err
		}
		k.Cwd = ""
		return nil
	}
	k.Cwd = path
	return dir.Close()
}

// touchesFiles reports whether t can reach the folder that it is called in.
func touchesFiles(t *tools.Tool) bool {
	return t.Kind == tools.Binary || len(t.Def.Capabilities.Exec) > 0
}

// admitEnv refuses every variable that the tool does not admit.
func admitEnv(k *call) error {
	for name := range k.Env {
		if !slices.Contains(k.tool.Def.Capabilities.Env, name) {
			return fault.Errorf(fault.Denied, "denied by rule env: %s does not admit the variable %s; unset it, or ask the operator to add it to capabilities.env in tool.json", k.Tool, name)
		}
	}
	return nil
}

// decide asks every policy of the tool in turn; the second is asked about what
// the first made of the call. It narrows k to what was decided and returns the
// shortest timeout that a policy set, or 0.
func (h *Host) decide(ctx context.Context, k *call) (timeout time.Duration, err error) {
	for i := range k.tool.Policies {
		policy, name := k.tool.Policies[i], shortName(k.tool.PolicyFiles[i])
		in, err := json.Marshal(h.abiCall(ctx, k))
		if err != nil {
			return 0, fault.Errorf(fault.Internal, "ask the policy: %w", err)
		}
		reply, err := policy.Call(ctx, h.invocation(k, "restrict", in))
		h.spent(k, reply.Stats)
		if err != nil {
			h.metrics.Decision(k.Tool, observe.PolicyError)
			e := asError(ctx, err)
			code := e.Code
			if code == fault.ToolFailed { // that is for tools that ran
				code = fault.ToolBroken
			}
			return 0, &fault.Error{Code: code, Message: fmt.Sprintf("policy %s did not decide, so the call is refused: %s", name, e.Message), Cause: err}
		}
		var d abi.Decision
		if err := strictjson.Unmarshal(reply.Output, &d); err != nil {
			h.metrics.Decision(k.Tool, observe.PolicyError)
			return 0, fault.Errorf(fault.ToolBroken, "policy %s answered no decision, so the call is refused: %w", name, err)
		}
		if d.Effect != abi.Allow {
			h.metrics.Decision(k.Tool, observe.PolicyDeny)
			return 0, denied(name, &d)
		}
		h.metrics.Decision(k.Tool, observe.PolicyAllow)
		if err := k.apply(&d); err != nil {
			return 0, fault.Errorf(fault.ToolBroken, "policy %s answered a decision that cannot be followed, so the call is refused: %w", name, err)
		}
		if t := time.Duration(d.TimeoutMS) * time.Millisecond; t > 0 {
			timeout = narrow(t, timeout)
		}
	}
	return timeout, nil
}

// shortName is how a caller hears of a policy: without the host's folders.
func shortName(file string) string {
	return filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file))
}

// denied says the rule, the reason and what to do instead, in one line each
// as far as the policy gave them.
func denied(policy string, d *abi.Decision) *fault.Error {
	msg := "denied by " + policy
	if d.Rule != "" {
		msg = "denied by rule " + d.Rule
	}
	if d.Effect != abi.Deny {
		msg += fmt.Sprintf(": effect %q is neither allow nor deny", d.Effect)
	}
	if d.Reason != "" {
		msg += ": " + d.Reason
	}
	if d.Instead != "" {
		msg += "; instead: " + d.Instead
	}
	return &fault.Error{Code: fault.Denied, Message: msg}
}

// asError gives every error of the way its code. One that comes from the end
// of the call's context is TIMEOUT or ABORTED, whatever it was wrapped in.
func asError(ctx context.Context, err error) *fault.Error {
	var e *fault.Error
	if errors.As(err, &e) {
		return e
	}
	// The end of a call's context may have a reason of its own: a caller that
	// broke the protocol, a daemon that stops.
	if errors.As(context.Cause(ctx), &e) {
		return e
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &fault.Error{Code: fault.Timeout, Message: "the call took longer than it may", Cause: err}
	case errors.Is(err, context.Canceled):
		return &fault.Error{Code: fault.Aborted, Message: "the call was ended", Cause: err}
	}
	return fault.Errorf(fault.Internal, "%w; see the daemon's log", err)
}

// asErrorOrNil is asError for what may have gone well.
func asErrorOrNil(ctx context.Context, err error) *fault.Error {
	if err == nil {
		return nil
	}
	return asError(ctx, err)
}

// narrow is the shorter of two durations, 0 standing for none.
func narrow(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
