// Package reliability makes calls safe to repeat: records by which calls with a key
// run once, breakers that refuse calls to what keeps failing, retries of calls that
// may be repeated, and the limit on concurrent executions of one tool.
//
// Layer.Do applies all of it: idempotency -> breaker -> retry -> attempt. Outcomes
// are judged by pure functions. The package runs no tool itself: the attempt is a
// function that it is given.
package reliability

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/toold/toold/host/breaker"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/retry"
)

// Config is fixed when a Layer is made.
type Config struct {
	// Store and Dir locate the records: see config.Config.Store and State.
	Store, Dir string
	// Ending is canceled when the daemon ends. That ends every call, even one that
	// outlives its caller.
	Ending  context.Context
	Metrics *observe.Metrics
	Log     *slog.Logger
}

// Layer is the reliability layer of one daemon. It is safe for concurrent use.
type Layer struct {
	// Records are those of calls with a key.
	Records *idempotency.Records
	// Breakers are those of all upstreams.
	Breakers *Breakers
	// shadowed are the records that shadow mode decides by.
	shadowed       *idempotency.Records
	reconciliation reconciliation
	ending         context.Context
	metrics        *observe.Metrics
	log            *slog.Logger
}

// Open opens the store of records and makes a Layer, which the caller closes.
func Open(ctx context.Context, c Config) (*Layer, error) {
	place, err := openPlace(c.Dir)
	if err != nil {
		return nil, err
	}
	l := &Layer{ending: c.Ending, metrics: c.Metrics, log: c.Log}
	l.reconciliation = reconciliation{place: place, daemon: rand.Text(), ending: c.Ending, log: c.Log}
	l.Breakers = &Breakers{onChange: l.breakerChanged}
	if err := l.openRecords(ctx, c.Store, c.Dir); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// UseReconciler sets the Reconciler. It is called before the first call.
func (l *Layer) UseReconciler(r Reconciler) { l.reconciliation.Reconciler = r }

// maxShadowed is how many records shadow mode keeps, in memory only.
const maxShadowed = 100_000

// openRecords opens the store and a separate one for shadow mode, so that no call is
// answered from a record of shadow mode.
func (l *Layer) openRecords(ctx context.Context, store, dir string) (err error) {
	l.Records, err = idempotency.Open(ctx, idempotency.Config{
		Store: store,
		Dir:   dir,
		Log:   l.log,
		OnEvent: func(scope string, e idempotency.Event) {
			l.metrics.Keyed(ScopeTool(scope), string(e))
			switch e {
			case idempotency.EventReplayed:
				l.metrics.CacheHit(ScopeTool(scope))
			case idempotency.EventAbandoned, idempotency.EventUnknown, idempotency.EventTakenOver, idempotency.EventReused, idempotency.EventEvicted, idempotency.EventFlushed,
				idempotency.EventFoundDone, idempotency.EventFoundNotDone, idempotency.EventFoundNothing:
				l.log.Info("idempotency record", "tool", scope, "event", e)
			}
		},
		OnStore: l.metrics.Stored,
	})
	if err != nil {
		return fmt.Errorf("%w; choose another with --store", err)
	}
	l.shadowed, err = idempotency.Open(ctx, idempotency.Config{Store: "memory", MemoryRecords: maxShadowed, MemoryBytes: 64 << 20, Log: l.log})
	return err
}

// Close closes the stores of records, after the last call has ended.
func (l *Layer) Close() error {
	var errs []error
	for _, records := range []*idempotency.Records{l.Records, l.shadowed} {
		if records != nil {
			errs = append(errs, records.Close())
		}
	}
	return errors.Join(errs...)
}

// Do runs r through the layer, according to its Mode: of calls with the same key one
// runs, calls to what keeps failing are refused, and failures that may be repeated
// are retried. attempt executes r once, under the context that it is given.
func (l *Layer) Do(ctx context.Context, r *call.Run, attempt func(ctx context.Context, number int) call.Outcome) call.Outcome {
	if r.Mode == call.Off {
		return attempt(ctx, 1)
	}
	return l.withIdempotency(ctx, r, func(ctx context.Context) call.Outcome {
		return l.withBreaker(ctx, r, attempt)
	})
}

// withIdempotency runs one of the calls with the same key, and answers all of them
// with its outcome. A call without a key always runs.
func (l *Layer) withIdempotency(ctx context.Context, r *call.Run, next func(context.Context) call.Outcome) call.Outcome {
	request, err := recordRequest(&r.Decided)
	if err != nil && r.Mode == call.Enforce {
		return call.Failed(ctx, err)
	}
	if err != nil || request == nil {
		return next(ctx)
	}
	records := l.Records
	if request.Shadow {
		records = l.shadowed
	}
	l.reconciliation.attach(r, request)
	ran, o := false, call.Outcome{}
	kept, err := records.Do(ctx, *request, func(ctx context.Context) idempotency.Outcome {
		ran = true
		if r.Class.Mutating && r.Mode == call.Enforce && !r.By.Waits() {
			// The call outlives its caller, since its result is stored for the key;
			// an abort or the end of the daemon still ends it. A call that a module
			// waits for ends with the module's.
			alive, cancel, end := r.Progress.Outlive(ctx)
			defer end()
			defer context.AfterFunc(l.ending, func() { cancel(context.Cause(l.ending)) })()
			r.Execution.OnAbort(cancel)
			ctx = alive
		}
		o = next(ctx)
		ended := conclude(r, &o)
		if request.Settle != nil && o.Unanswered && ended.Kind == idempotency.OutcomeFailed {
			return idempotency.Outcome{Kind: idempotency.OutcomeUnknown} // its reconciler decides
		}
		return ended
	})
	switch {
	case request.Shadow:
		if decision := shadowDecision(kept.Event); decision != "" {
			l.shadow(r, decision)
		}
		if !ran {
			return next(ctx)
		}
		return o
	case ran:
		return o // even if it could not be recorded
	case err == nil:
		return unkeep(ctx, kept)
	case errors.Is(err, idempotency.ErrStoreUnavailable) && !r.Class.Mutating:
		return next(ctx) // nothing is lost by running it twice
	}
	return call.Failed(ctx, refusedByRecord(ctx, &r.Decided, err))
}

// Recorded reports whether there is a record of the key of d, so that d would not run
// now.
func (l *Layer) Recorded(ctx context.Context, d *call.Decided) bool {
	if d.Mode != call.Enforce {
		return false
	}
	request, err := recordRequest(d)
	if err != nil || request == nil {
		return false
	}
	held, err := l.Records.Held(ctx, request)
	return err == nil && held
}

// Found is the result for one record.
type Found struct {
	Key, Execution string
	Answer
}

// Resolve settles the records of key now, for an operator, and returns how many have
// an unknown outcome and what was found. resolve identifies a caller without a token
// by its user.
func (l *Layer) Resolve(ctx context.Context, scope, key string, resolve func(uid uint32) (identity.Caller, error)) (n int, found []Found, err error) {
	var mu sync.Mutex
	n, err = l.Records.Settle(ctx, scope, key, func(ctx context.Context, u idempotency.Unknown) (f idempotency.Finding) {
		var n Intent
		var a Answer
		if err := json.Unmarshal(u.Note, &n); err != nil {
			a.Evidence = "what the call was about to do cannot be read"
		} else if caller, err := callerOf(&n, resolve); err != nil {
			a.Evidence = err.Error()
		} else {
			f, a = l.reconciliation.settle(ctx, caller, u)
		}
		mu.Lock()
		defer mu.Unlock()
		found = append(found, Found{u.Key, n.Execution, a})
		return f
	})
	mu.Lock()
	defer mu.Unlock()
	return n, slices.Clone(found), err
}

// withBreaker refuses a call if the breaker of its upstream is open, and records the
// outcome of others. It counts calls, not attempts.
func (l *Layer) withBreaker(ctx context.Context, r *call.Run, attempt func(context.Context, int) call.Outcome) call.Outcome {
	b := l.Breakers.of(upstreamOf(r), r.Tool)
	ticket, err := b.breaker.Enter()
	if err != nil {
		if r.Mode == call.Enforce {
			return call.Failed(ctx, circuitOpen(r.Tool.Name, err))
		}
		l.shadow(r, "circuit_open")
		return attempt(ctx, 1)
	}
	defer ticket.Done(breaker.Neutral) // in case of a panic
	o := l.withRetry(ctx, r, b, ticket, attempt)
	ticket.Done(breakerOutcome(&o))
	return o
}

// withRetry retries a call that failed with a retriable failure and may safely be
// repeated, while the caller has not left, the breaker has not opened and the budget
// lasts.
func (l *Layer) withRetry(ctx context.Context, r *call.Run, b *toolBreaker, ticket *breaker.Ticket, attempt func(context.Context, int) call.Outcome) call.Outcome {
	limits := r.Tool.Def.Reliability.Retry
	config := retry.Config{
		Max:     limits.Max,
		Initial: time.Duration(limits.InitialMS) * time.Millisecond,
		Cap:     time.Duration(limits.CapMS) * time.Millisecond,
		Stop:    func() bool { return !ticket.Current() || r.Progress.Abandoned() },
		Share:   limits.Budget.Share,
		Burst:   limits.Budget.Burst,
	}
	made, cut := 0, 0
	config.OnCut = func() { cut = limits.Max - (made - 1) }
	if limits.Max == 0 || r.Mode == call.Shadow {
		config.Max = -1
	}
	var o call.Outcome
	attempts := retry.Do(ctx, config, &b.budget, func(ctx context.Context, number int) retry.Verdict {
		o, made = attempt(ctx, number), number
		again := Judge(&o).Again && maySafelyRepeat(r)
		if again && r.Mode == call.Shadow && limits.Max > 0 {
			l.shadow(r, "retry")
		}
		return retry.Verdict{Again: again, After: o.RetryAfter}
	})
	if attempts > 1 || cut > 0 {
		r.Meter.Retried(attempts, cut)
		l.metrics.RetriesCut(r.Tool.Name, cut)
	}
	switch {
	case attempts == 0:
		return call.Failed(ctx, context.Cause(ctx))
	case attempts > 1:
		l.metrics.Retried(r.Tool.Name, attempts-1)
	}
	return o
}

// shadow counts and logs what the layer would have decided in enforce mode.
func (l *Layer) shadow(r *call.Run, decision string) {
	l.metrics.Shadow(r.Tool.Name, decision)
	l.log.Info("reliability would have decided", "tool", r.Tool.Name, "decision", decision, "execution_id", r.ExecutionID, "mutating", r.Class.Mutating)
}

// breakerChanged logs every change of state, and counts those outside of shadow mode.
func (l *Layer) breakerChanged(u upstream, from, to breaker.State) {
	if !u.shadow {
		l.metrics.BreakerChanged(u.tool, string(to))
	}
	l.log.Warn("circuit breaker changed", "tool", u.tool, "identity", u.identity, "from", from, "to", to, "shadow", u.shadow)
}

// circuitOpen returns the error of a call that an open breaker refused.
func circuitOpen(tool string, err error) *fault.Error {
	e := &fault.Error{Code: fault.CircuitOpen, Cause: err}
	var open *breaker.OpenError
	if errors.As(err, &open) && open.RetryAfter > 0 {
		e.Message = fmt.Sprintf("%s has failed too often and is not called now; try again in %v", tool, max(open.RetryAfter.Round(time.Second), time.Second))
	} else {
		e.Message = fmt.Sprintf("%s has failed too often, and one call is finding out whether it works again; try again later", tool)
	}
	return e
}

// Failure classifies the end of an attempt. It depends on codes and facts, never on
// texts.
type Failure struct {
	Counts bool // for the breaker
	Again  bool // the same call may succeed when made again
}

// Judge classifies the outcome of an attempt.
func Judge(o *call.Outcome) Failure {
	e := o.Err()
	switch {
	case !o.Began:
		// It failed in the queue, at its folder or its secrets, not at the upstream.
		return Failure{}
	case e == nil:
		return Failure{Counts: o.ExitFailed, Again: o.ExitFailed && o.Result.MayRetry}
	case e.Code == fault.ToolFailed && e.MayRetry:
		return Failure{Counts: true, Again: true}
	case e.Code == fault.Timeout:
		return Failure{Counts: true, Again: true}
	case e.Code == fault.GuestTrap:
		return Failure{Counts: true}
	}
	return Failure{}
}

// breakerOutcome returns what the breaker counts. A tool that ran and returned an
// error, a caller that left, and a call that never reached the tool are neutral.
func breakerOutcome(o *call.Outcome) breaker.Outcome {
	switch {
	case Judge(o).Counts:
		return breaker.Failure
	case o.Err() == nil && o.Result.ExitCode == 0:
		return breaker.Success
	}
	return breaker.Neutral
}

// maySafelyRepeat reports whether the attempt that just failed may be followed by
// another: it changes nothing or is declared idempotent, and no input of the caller
// would be lost nor output repeated.
func maySafelyRepeat(r *call.Run) bool {
	return r.Class.Repeatable() && !r.Progress.OutputSent() && !r.Progress.InputSpent() && !r.Execution.Steered()
}

// conclude returns what to record of a call that has ended.
func conclude(r *call.Run, o *call.Outcome) idempotency.Outcome {
	e := o.Err()
	code := fault.ToolFailed
	if e != nil {
		code = e.Code
	}
	switch {
	case !r.Progress.Begun():
		return idempotency.Outcome{Kind: idempotency.OutcomeNotBegun}
	case e == nil && o.Result.ExitCode == 0:
		return idempotency.Outcome{Kind: idempotency.OutcomeCompleted, Result: keep(o)}
	case code == fault.ToolFailed && !o.Killed:
		// The tool ended by itself, with a failure.
	case !r.Class.Repeatable():
		return idempotency.Outcome{Kind: idempotency.OutcomeUnknown, Lingers: lingers(o)}
	case code == fault.Aborted:
		// It may run again: no caller has an answer yet.
		return idempotency.Outcome{Kind: idempotency.OutcomeNotBegun}
	}
	kept := idempotency.Outcome{Kind: idempotency.OutcomeFailed, Result: keep(o), Failure: &idempotency.Failure{Code: string(code)}}
	if e != nil {
		kept.Failure.Message = e.Message
	}
	return kept
}

// lingers reports whether processes of a call that was ended may still run, since the
// daemon lost track of them.
func lingers(o *call.Outcome) bool { return o.Err() != nil && o.Err().Code == fault.Internal }
