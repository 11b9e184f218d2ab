package host

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/breaker"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/retry"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// stance is what the layer does with one call.
type stance int

const (
	absent  stance = iota // nothing
	shadows               // decides, logs and counts
	acts                  // does what it decides
)

// stanceTo is the stance to a call of a tool with that mode.
func stanceTo(mode string, mutating bool) stance {
	switch {
	case mode == config.ReliabilityAll, mode == config.ReliabilityReadOnly && !mutating:
		return acts
	case mode == config.ReliabilityShadow, mode == config.ReliabilityReadOnly:
		return shadows
	}
	return absent
}

// would counts and logs what the layer would have done to a call, had it been
// its turn to decide.
func (h *Host) would(k *call, decision string) {
	h.metrics.Shadow(k.tool.Name, decision)
	h.log.Info("reliability would have decided", "tool", k.tool.Name, "decision", decision, "execution_id", k.ExecutionID, "mutating", k.mutating)
}

// upstream is what one breaker and one retry budget stand for: a tool, and
// for a tool with claims the identity that it works for, so that one
// identity's dead host refuses nobody else's calls.
type upstream struct {
	tool, identity string
	// shadow tells what only watches from what decides.
	shadow bool
}

// maxGuards is how many upstreams are remembered; the one that was used the
// longest ago goes first.
const maxGuards = 10_000

// guards hold the breaker and the retry budget of each upstream.
type guards struct {
	onChange func(u upstream, from, to breaker.State)

	mu     sync.Mutex
	byKey  map[upstream]*list.Element // guarded by mu
	recent list.List                  // of *guard, most recent first; guarded by mu
}

// guard does not change once it is made.
type guard struct {
	upstream
	limits  tools.Breaker
	trial   time.Duration
	breaker *breaker.Breaker
	budget  retry.Budget
}

// of is the guard of an upstream of t. One whose settings tool.json has
// changed is made anew.
func (g *guards) of(u upstream, t *tools.Tool) *guard {
	limits, trial := t.Def.Reliability.Breaker, t.Def.Timeout.Duration()
	g.mu.Lock()
	defer g.mu.Unlock()
	if e, ok := g.byKey[u]; ok {
		if old := e.Value.(*guard); old.limits == limits && old.trial == trial {
			g.recent.MoveToFront(e)
			return old
		}
		g.dropLocked(e)
	}
	n := &guard{upstream: u, limits: limits, trial: trial}
	n.breaker = breaker.New(breaker.Config{
		Failures: limits.Failures, Window: limits.Window, Ratio: limits.Ratio,
		Reset: time.Duration(limits.ResetMS) * time.Millisecond, Trial: trial,
		OnChange: func(from, to breaker.State) { g.onChange(u, from, to) },
	})
	if g.byKey == nil {
		g.byKey = map[upstream]*list.Element{}
	}
	g.byKey[u] = g.recent.PushFront(n)
	if g.recent.Len() > maxGuards {
		g.dropLocked(g.recent.Back())
	}
	return n
}

func (g *guards) dropLocked(e *list.Element) {
	delete(g.byKey, g.recent.Remove(e).(*guard).upstream)
}

// list is every guard, by tool and identity.
func (g *guards) list() []*guard {
	g.mu.Lock()
	var out []*guard
	for e := g.recent.Front(); e != nil; e = e.Next() {
		out = append(out, e.Value.(*guard))
	}
	g.mu.Unlock()
	slices.SortFunc(out, func(a, b *guard) int {
		if c := strings.Compare(a.tool, b.tool); c != 0 {
			return c
		}
		if a.shadow != b.shadow {
			return map[bool]int{false: -1, true: 1}[a.shadow]
		}
		return strings.Compare(a.identity, b.identity)
	})
	return out
}

// forget drops the guards of a tool that is gone.
func (g *guards) forget(tool string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for u, e := range g.byKey {
		if u.tool == tool {
			g.dropLocked(e)
		}
	}
}

// upstreamOf is the upstream of a call.
func upstreamOf(k *call) upstream {
	u := upstream{tool: k.tool.Name, shadow: k.stance == shadows}
	if id := k.tool.Def.Identity; len(id.Claims)+len(id.Secret) > 0 {
		if u.identity = k.caller.ID; k.effective != nil {
			u.identity = k.effective.Fingerprint()
		}
	}
	return u
}

// breakerChanged tells of every change of state, of those that only watch
// too.
func (h *Host) breakerChanged(u upstream, from, to breaker.State) {
	if !u.shadow {
		h.metrics.BreakerChanged(u.tool, string(to))
	}
	h.log.Warn("circuit breaker changed", "tool", u.tool, "identity", u.identity, "from", from, "to", to, "shadow", u.shadow)
}

// toolChanged follows a tool as it changes.
func (h *Host) toolChanged(e tools.Event) {
	h.metrics.Changed(e.Tool, string(e.Change))
	if e.Change == tools.Removed {
		h.guards.forget(e.Tool)
	}
	if e.Change != tools.Closed {
		h.surfaces.InvalidateTool(e.Tool, "the tool is "+string(e.Change))
	}
}

// upstreamAnswered notes what the answer to a guest's HTTP request says of
// trying again. A guest that fails without a word of its own is judged by its
// last request: one that had no answer, or one of these, may have another.
func (k *call) upstreamAnswered(status int, retryAfter string) {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		k.answered = true
		return
	}
	if s, err := strconv.Atoi(retryAfter); err == nil && s >= 0 {
		k.retryAfter = time.Duration(min(s, 24*3600)) * time.Second
	} else if at, err := http.ParseTime(retryAfter); err == nil {
		k.retryAfter = max(time.Until(at), 0)
	}
}

// unanswered reports whether a request got no answer from the network, rather
// than a refusal of ours.
func unanswered(err error) bool {
	if errors.Is(err, errRefused) {
		return false
	}
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// blameUpstream makes the failure of a guest that said no more than that
// retriable where its last HTTP request was not answered for good.
func (k *call) blameUpstream(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Code == fault.ToolFailed && !k.answered {
		again := *e
		again.MayRetry = true
		return &again
	}
	return err
}

// failure says what the end of an attempt means. It goes by codes and facts,
// never by text.
type failure struct {
	// counts: for the breaker.
	counts bool
	// again: the same call may succeed when made again.
	again bool
}

// judge says what came of an attempt, from its result and its error.
func (k *call) judge(res *wire.Result, e *fault.Error) failure {
	switch {
	case !k.began:
		// The place in the queue, the folder, the secret: not the upstream.
		return failure{}
	case e == nil:
		return failure{counts: k.exitFailed, again: k.exitFailed && res.MayRetry}
	case e.Code == fault.ToolFailed && e.MayRetry:
		return failure{counts: true, again: true}
	case e.Code == fault.Timeout:
		return failure{counts: true, again: true}
	case e.Code == fault.GuestTrap:
		return failure{counts: true}
	}
	return failure{}
}

// outcome is what the breaker is told. A tool that ran and answered no, a
// caller that left, and what never reached the tool say nothing about the
// upstream.
func outcome(f failure, res *wire.Result, e *fault.Error) breaker.Outcome {
	switch {
	case f.counts:
		return breaker.Failure
	case e == nil && res != nil && res.ExitCode == 0:
		return breaker.Success
	}
	return breaker.Neutral
}

// maySafelyRepeat reports whether the attempt that just failed may be
// followed by another: it changes nothing or is declared idempotent, and
// nothing that it took from the caller or gave is lost or doubled by that.
func (k *call) maySafelyRepeat() bool {
	return (!k.mutating || k.idempotent) && !k.passed.output.Load() && !k.passed.input.Load().spent() && !k.running.Steered()
}

// passed is what went between the caller's streams and the attempts of a
// call.
type passed struct {
	output atomic.Bool // bytes of standard output
	input  atomic.Pointer[watchedInput]
}

// open reports whether more of the input may come.
func (w *watchedInput) open() bool { return w != nil && !w.ended.Load() }

// watch makes the streams of k tell what passed through them.
func (k *call) watch() {
	if k.streams.Stdout != nil {
		k.streams.Stdout = noticing{k.streams.Stdout, &k.passed.output}
	}
	if open := k.streams.Stdin; open != nil {
		k.streams.Stdin = func() io.ReadCloser {
			in := k.passed.input.Load()
			switch {
			case in == nil:
				in = &watchedInput{ReadCloser: open()}
				k.passed.input.Store(in)
			case in.ended.Load() && !in.read.Load():
				return io.NopCloser(strings.NewReader("")) // it was empty, and is for this attempt
			}
			return in
		}
	}
}

type noticing struct {
	io.Writer
	some *atomic.Bool
}

func (n noticing) Write(p []byte) (int, error) {
	if len(p) > 0 {
		n.some.Store(true)
	}
	return n.Writer.Write(p)
}

// watchedInput is the caller's input, which comes only once.
type watchedInput struct {
	io.ReadCloser
	read, ended atomic.Bool
}

func (w *watchedInput) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.read.Store(true)
	}
	if err == io.EOF {
		w.ended.Store(true)
	}
	return n, err
}

// spent reports whether an attempt has used up the input: any that was opened
// and was not empty.
func (w *watchedInput) spent() bool { return w != nil && !(w.ended.Load() && !w.read.Load()) }

// classify says what the exit of a binary means, beyond its being an answer:
// by reliability.retriable_exits, else by the classify export of the policy
// that is nearest to the tool.
func (h *Host) classify(ctx context.Context, k *call, res *wire.Result) {
	if k.stance == absent || !res.Ran {
		return
	}
	if slices.Contains(k.tool.Def.Reliability.RetriableExits, res.ExitCode) {
		k.exitFailed, res.MayRetry = true, true
		return
	}
	for i := len(k.tool.Policies) - 1; i >= 0; i-- {
		policy := k.tool.Policies[i]
		if !policy.Has("classify") {
			continue
		}
		c, err := h.askClassify(ctx, k, i, res)
		if err != nil {
			// It ran, and that is its answer: what cannot be classified is
			// not retried and not counted.
			h.log.Error("exit not classified", "tool", k.tool.Name, "execution_id", k.ExecutionID, "error", asError(ctx, err).Message)
			return
		}
		k.exitFailed, res.MayRetry = c.Failure, c.Failure && c.Retriable
		return
	}
}

// maxClassified is how much of each output a classify export is shown, in
// bytes, from the end: where programs say why they failed.
const maxClassified = 16 << 10

func (h *Host) askClassify(ctx context.Context, k *call, policy int, res *wire.Result) (*abi.Classification, error) {
	tail := func(b []byte) string {
		return strings.ToValidUTF8(string(b[max(0, len(b)-maxClassified):]), "\uFFFD")
	}
	stdout, stderr := res.Stdout, res.Stderr
	if k.teed != nil {
		stdout, stderr = k.teed[0].buf.Bytes(), k.teed[1].buf.Bytes()
	}
	in, err := json.Marshal(abi.Classify{
		Call:   *h.abiCall(ctx, k),
		Result: abi.Result{ExitCode: res.ExitCode, Stdout: tail(stdout), Stderr: tail(stderr)},
	})
	if err != nil {
		return nil, err
	}
	reply, err := k.tool.Policies[policy].Call(ctx, h.invocation(k, "classify", in))
	h.spent(k, reply.Stats)
	if err != nil {
		return nil, err
	}
	var c abi.Classification
	if err := strictjson.Unmarshal(reply.Output, &c); err != nil {
		return nil, fmt.Errorf("%s answered no classification: %w", shortName(k.tool.PolicyFiles[policy]), err)
	}
	return &c, nil
}

// spanEnd is what the span of an attempt says of its end.
func spanEnd(res *wire.Result, e *fault.Error) (status, code string) {
	ended := wire.Result{Err: e}
	if res != nil {
		ended.ExitCode = res.ExitCode
	}
	if e != nil {
		code = string(e.Code)
	}
	return ended.Status(), code
}

// watchNow has the metrics tell how things stand.
func (h *Host) watchNow() {
	h.metrics.Watch(observe.Now{
		Breakers: func(tell func(tool, state string)) {
			for _, g := range h.guards.list() {
				if !g.shadow {
					tell(g.tool, string(g.breaker.State()))
				}
			}
		},
		GuestMemory: h.engine.Memory,
	})
}

// refusedBy is the error of a call that an open breaker refused.
func refusedBy(k *call, err error) *fault.Error {
	e := &fault.Error{Code: fault.CircuitOpen, Cause: err}
	var open *breaker.OpenError
	if errors.As(err, &open) && open.RetryAfter > 0 {
		e.Message = fmt.Sprintf("%s has failed too often and is not called now; try again in %v", k.tool.Name, max(open.RetryAfter.Round(time.Second), time.Second))
	} else {
		e.Message = fmt.Sprintf("%s has failed too often, and one call is finding out whether it works again; try again later", k.tool.Name)
	}
	return e
}

// callerLeft reports whether a context ended because the caller went away.
func callerLeft(ctx context.Context) bool { return context.Cause(ctx) == wire.ErrLeft }
