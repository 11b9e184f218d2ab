package session

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/wire"
)

// The kinds of an execution.
const (
	KindCall = "call" // an ordinary call: many at a time in one session
	KindTurn = "turn" // a prompt: one at a time
	KindJob  = "job"  // a call that was answered before it ran
)

// Spec says what is about to run.
type Spec struct {
	ID   string // the execution id: chosen by a caller, unique to nobody
	Tool string // as the caller wrote it
	Kind string
}

// Outcome is what came of an execution.
type Outcome struct {
	ID       string
	Tool     string
	Kind     string
	Status   string // as wire.Result.Status says it
	Code     wire.Code
	ExitCode int
	Attempts int
	Started  time.Time
	Duration time.Duration
	BytesIn  int64
	BytesOut int64
	Fuel     int64
}

// Counters are what the executions of one session came to.
type Counters struct {
	Calls    int64
	Attempts int64
	Outcomes map[string]int64 // by code; "ok" for none
	BytesIn  int64
	BytesOut int64
	Fuel     int64
	Duration time.Duration
	Events   map[string]int64 // of the session's life: created, resumed, suspended, ...
}

func (c *Counters) add(o *Outcome) {
	c.Calls++
	c.Attempts += int64(o.Attempts)
	if c.Outcomes == nil {
		c.Outcomes = map[string]int64{}
	}
	code := string(o.Code)
	if code == "" {
		code = "ok"
	}
	c.Outcomes[code]++
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.Fuel += o.Fuel
	c.Duration += o.Duration
}

// Execution is one call under way in a session. The pipeline holds it from
// Begin to End.
type Execution struct {
	Spec
	Session string // the session's id
	s       *Session
	ctx     context.Context
	started time.Time

	attempts atomic.Int32
	mutating atomic.Bool
	bytesIn  atomic.Int64
	bytesOut atomic.Int64
	fuel     atomic.Int64

	mu      sync.Mutex                // guards what follows
	cancels []context.CancelCauseFunc // what an abort ends
}

// Begin notes that a call runs in s until End. A suspended session is resumed.
// The context of the call is x.Context from here on: an abort ends it.
func (s *Session) Begin(ctx context.Context, spec Spec) (*Execution, error) {
	x := &Execution{Spec: spec, Session: s.id, s: s, started: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Closing || s.state == Closed {
		return nil, notFound(s.id)
	}
	if s.tools != nil && !slices.Contains(s.tools, spec.Tool) {
		return nil, wire.Errorf(wire.Denied, "denied by rule session.tools: this session is limited to other tools than %s; use one of %q, or call in another session", spec.Tool, s.tools)
	}
	var cancel context.CancelCauseFunc
	x.ctx, cancel = context.WithCancelCause(ctx)
	x.cancels = []context.CancelCauseFunc{cancel}
	s.state = Active
	s.used = x.started
	if s.running == nil {
		s.running = map[*Execution]struct{}{}
	}
	s.running[x] = struct{}{}
	return x, nil
}

// Context is the call's: that of Begin, ended by an abort too.
func (x *Execution) Context() context.Context { return x.ctx }

// End says what came of the execution.
func (x *Execution) End(r *wire.Result) {
	x.mu.Lock()
	cancels := x.cancels
	x.cancels = nil
	x.mu.Unlock()
	for _, cancel := range cancels {
		cancel(nil)
	}
	if r.Usage != nil {
		x.fuel.Store(r.Usage.Fuel)
	}
	o := Outcome{
		ID: x.ID, Tool: x.Tool, Kind: x.Kind, Status: r.Status(), ExitCode: r.ExitCode, Started: x.started,
		Attempts: int(x.attempts.Load()), Duration: time.Since(x.started),
		BytesIn: x.bytesIn.Load(), BytesOut: x.bytesOut.Load(), Fuel: x.fuel.Load(),
	}
	if r.Err != nil {
		o.Code = r.Err.Code
	}
	s := x.s
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, x)
	s.used = time.Now()
	s.count.add(&o)
	if len(s.recent) == maxRecent {
		s.recent = slices.Delete(s.recent, 0, 1)
	}
	s.recent = append(s.recent, o)
}
