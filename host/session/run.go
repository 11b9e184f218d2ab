package session

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/journal"
)

// The kinds of an execution.
const (
	KindCall = "call"   // an ordinary call: many at a time in one session
	KindTurn = "turn"   // a prompt: one at a time
	KindJob  = job.Kind // a call that was answered before it ran
	// KindReconcile finds out how another call ended that was cut off.
	KindReconcile = "reconcile"
)

// Spec describes an execution that is about to begin.
type Spec struct {
	ID   string // the execution id: chosen by a caller, not necessarily unique
	Tool string // as the caller wrote it
	Kind string
	// Parent is the id of the execution in which a module asked for this one.
	Parent string
	// Listing marks a listing, not a tool call: the session's tool limit does
	// not apply.
	Listing bool
	Job     *job.Job // of a background call
	From    Peer
}

// Peer is where a call came from. PID is 0 and Container empty if they are not known.
type Peer struct {
	PID       int
	Container string
	Socket    string // the path of the daemon's socket
}

// aborter ends the contexts of an execution.
type aborter struct {
	mu      sync.Mutex                // guards what follows
	reason  *fault.Error              // why it was aborted, or nil
	cancels []context.CancelCauseFunc // called by an abort
}

// add registers cancel to be called by abort. If abort was called before, add calls
// it at once.
func (a *aborter) add(cancel context.CancelCauseFunc) {
	a.mu.Lock()
	reason := a.reason
	a.cancels = append(a.cancels, cancel)
	a.mu.Unlock()
	if reason != nil {
		cancel(reason)
	}
}

func (a *aborter) abort(reason *fault.Error) {
	a.mu.Lock()
	if a.reason == nil {
		a.reason = reason
	}
	cancels := a.cancels
	a.mu.Unlock()
	for _, cancel := range cancels {
		cancel(reason)
	}
}

// end releases the contexts, and reports whether they were ended by an abort.
func (a *aborter) end() (aborted bool) {
	a.mu.Lock()
	cancels := a.cancels
	a.cancels = nil
	aborted = a.reason != nil
	a.mu.Unlock()
	for _, cancel := range cancels {
		cancel(nil)
	}
	return aborted
}

// runState is the state of one execution, as its session keeps it: what it is, what
// it has done, and how it is aborted. It knows nothing of the session.
type runState struct {
	Spec
	ctx     context.Context
	started time.Time
	inbox   *inbox
	aborter aborter

	attempts atomic.Int32
	mutating atomic.Bool
	activity
}

// abort cancels x. It reports whether the outcome is unknown: x had begun and is
// mutating.
func (x *runState) abort(reason *fault.Error) (unknown bool) {
	x.aborter.abort(reason)
	return x.outcomeUnknown()
}

func (x *runState) outcomeUnknown() bool { return x.attempts.Load() > 0 && x.mutating.Load() }

func (x *runState) beginRecord() *journal.Record {
	r := &journal.Record{Type: journal.TypeBegin, Execution: x.ID, Tool: x.Tool, Kind: x.Kind, Parent: x.Parent, Mutating: x.mutating.Load()}
	if x.Job != nil {
		r.Job, r.Detach, r.Bound = true, x.Job.Detach, x.Job.Bound
	}
	return r
}
