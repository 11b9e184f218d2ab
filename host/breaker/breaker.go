// Package breaker implements a circuit breaker: it refuses calls to a failing
// tool, and probes with one trial at a time whether the tool has recovered.
//
// A Breaker is CLOSED at first. It opens after Config.Failures failures in a
// row, or when at least Config.Ratio of the last Config.Window outcomes are
// failures, never before that many were counted. It stays OPEN for
// Config.Reset and is then HALF_OPEN: one call runs as a trial, all others are
// still refused. A trial that succeeds closes the breaker, one that fails opens
// it again, one whose outcome is Neutral is released, and one that never reports
// expires after Config.Trial.
//
// A call holds a Ticket of the state that admitted it. An outcome that arrives
// after the breaker has left that state is ignored: a success from before the
// opening does not close it.
//
// The caller classifies failures. The package is independent of tools; it uses
// package time, so that it is deterministic under testing/synctest.
package breaker

import (
	"fmt"
	"sync"
	"time"
)

// Config is fixed when a Breaker is made. Zero values are the defaults.
type Config struct {
	// Failures in a row that open. Default 5.
	Failures int
	// Window is how many outcomes the ratio is taken over. Default 100.
	Window int
	// Ratio of failures in a full window that opens, above 0 and at most 1.
	// Default 0.5.
	Ratio float64
	// Reset is how long the breaker stays open. Default 30 s.
	Reset time.Duration
	// Trial is how long a trial may take before it expires and another one is
	// admitted. It should be at least the duration of the longest call, or a
	// breaker of slow calls never closes. Default and minimum: Reset.
	Trial time.Duration
	// OnChange, if set, is called for each change of state, after the lock is
	// released, so that changes of one breaker may be reported out of order.
	OnChange func(from, to State)
}

func (c Config) withDefaults() Config {
	if c.Failures == 0 {
		c.Failures = 5
	}
	if c.Window == 0 {
		c.Window = 100
	}
	if c.Ratio == 0 {
		c.Ratio = 0.5
	}
	if c.Reset == 0 {
		c.Reset = 30 * time.Second
	}
	c.Trial = max(c.Trial, c.Reset)
	return c
}

// Outcome is the outcome of a call, for the breaker.
type Outcome int

const (
	// Neutral is not counted: the caller left, the input was bad, or the tool
	// refused.
	Neutral Outcome = iota
	Success
	Failure
)

// State is the state of a breaker.
type State string

const (
	Closed   State = "closed"
	Open     State = "open"
	HalfOpen State = "half_open"
)

// OpenError is the error for a refused call.
type OpenError struct {
	// RetryAfter is how long until a call may be admitted; 0 if that depends
	// on a running trial.
	RetryAfter time.Duration
}

func (e *OpenError) Error() string {
	if e.RetryAfter == 0 {
		return "circuit breaker is open and a trial is running"
	}
	return fmt.Sprintf("circuit breaker is open for another %v", e.RetryAfter.Round(time.Millisecond))
}

// Breaker is a circuit breaker. It is safe for concurrent use.
type Breaker struct {
	config Config

	mu    sync.Mutex
	state state  // guarded by mu
	gen   uint64 // number of state changes; guarded by mu
}

// state is one of *closed, *open and *halfOpen. They are pure: they neither lock
// nor read the clock.
type state interface {
	name() State
	// admit admits a call, or returns how long it must wait.
	admit(now time.Time) (ok bool, trial uint64, wait time.Duration)
	// record counts an outcome and returns the next state.
	record(trial uint64, o Outcome, now time.Time) state
	// isCurrent reports whether an outcome of that trial would be counted.
	isCurrent(trial uint64, now time.Time) bool
	// tick returns the state at now if nothing else happened.
	tick(now time.Time) state
}

// New returns a closed breaker.
func New(c Config) *Breaker {
	c = c.withDefaults()
	return &Breaker{config: c, state: newClosed(c)}
}

// Ticket is an admitted call. Done must be called with its outcome; further calls
// of Done do nothing.
type Ticket struct {
	b     *Breaker
	gen   uint64
	trial uint64
	once  sync.Once
}

// Enter admits a call or returns an *OpenError.
func (b *Breaker) Enter() (*Ticket, error) {
	now := time.Now()
	b.mu.Lock()
	from := b.state.name()
	b.setStateLocked(b.state.tick(now))
	ok, trial, wait := b.state.admit(now)
	t := &Ticket{b: b, gen: b.gen, trial: trial}
	to := b.state.name()
	b.mu.Unlock()
	b.notify(from, to)
	if !ok {
		return nil, &OpenError{RetryAfter: wait}
	}
	return t, nil
}

// Done reports the outcome of the call.
func (t *Ticket) Done(o Outcome) {
	t.once.Do(func() {
		b, now := t.b, time.Now()
		b.mu.Lock()
		from := b.state.name()
		b.setStateLocked(b.state.tick(now))
		if t.gen == b.gen {
			b.setStateLocked(b.state.record(t.trial, o, now))
		}
		to := b.state.name()
		b.mu.Unlock()
		b.notify(from, to)
	})
}

// Current reports whether the breaker is still in the state that admitted the
// call, so that its outcome would be counted. Otherwise, after an opening or an
// expired trial, the call must not be retried.
func (t *Ticket) Current() bool {
	b, now := t.b, time.Now()
	b.mu.Lock()
	from := b.state.name()
	b.setStateLocked(b.state.tick(now))
	ok := t.gen == b.gen && b.state.isCurrent(t.trial, now)
	to := b.state.name()
	b.mu.Unlock()
	b.notify(from, to)
	return ok
}

// State returns the current state.
func (b *Breaker) State() State {
	b.mu.Lock()
	from := b.state.name()
	b.setStateLocked(b.state.tick(time.Now()))
	to := b.state.name()
	b.mu.Unlock()
	b.notify(from, to)
	return to
}

// Snapshot is the state of a breaker at one moment, for operators.
type Snapshot struct {
	State State
	// Row is the number of consecutive failures; Failed of the last Counted
	// outcomes are failures. All are 0 unless the breaker is closed.
	Row, Failed, Counted int
	// RetryAfter is how long an open breaker still refuses calls.
	RetryAfter time.Duration
}

// Snapshot returns the present state with its counters.
func (b *Breaker) Snapshot() Snapshot {
	now := time.Now()
	b.mu.Lock()
	from := b.state.name()
	b.setStateLocked(b.state.tick(now))
	s := Snapshot{State: b.state.name()}
	switch state := b.state.(type) {
	case *closed:
		s.Row, s.Failed, s.Counted = state.consecutive, state.failed, state.next
		if state.full {
			s.Counted = len(state.ring)
		}
	case *open:
		s.RetryAfter = state.until.Sub(now)
	}
	b.mu.Unlock()
	b.notify(from, s.State)
	return s
}

// Reset closes the breaker and clears its counters. Outcomes of running calls are
// ignored.
func (b *Breaker) Reset() {
	b.mu.Lock()
	from := b.state.name()
	b.setStateLocked(newClosed(b.config))
	b.mu.Unlock()
	b.notify(from, Closed)
}

func (b *Breaker) setStateLocked(s state) {
	if s != b.state {
		b.state = s
		b.gen++
	}
}

func (b *Breaker) notify(from, to State) {
	if from != to && b.config.OnChange != nil {
		b.config.OnChange(from, to)
	}
}

// closed counts outcomes.
type closed struct {
	config      Config
	consecutive int    // failures in a row
	ring        []bool // the last outcomes, true for a failure
	next        int    // index in ring of the next outcome
	full        bool
	failed      int // number of failures in ring
}

func newClosed(c Config) *closed { return &closed{config: c, ring: make([]bool, c.Window)} }

func (s *closed) name() State                                   { return Closed }
func (s *closed) admit(time.Time) (bool, uint64, time.Duration) { return true, 0, 0 }
func (s *closed) isCurrent(uint64, time.Time) bool              { return true }
func (s *closed) tick(time.Time) state                          { return s }

func (s *closed) record(_ uint64, o Outcome, now time.Time) state {
	if o == Neutral {
		return s
	}
	fail := o == Failure
	if s.ring[s.next] {
		s.failed--
	}
	s.ring[s.next] = fail
	if fail {
		s.failed++
		s.consecutive++
	} else {
		s.consecutive = 0
	}
	if s.next++; s.next == len(s.ring) {
		s.next, s.full = 0, true
	}
	if s.consecutive >= s.config.Failures || s.full && float64(s.failed) >= s.config.Ratio*float64(len(s.ring)) {
		return &open{config: s.config, until: now.Add(s.config.Reset)}
	}
	return s
}

// open refuses calls until a point in time.
type open struct {
	config Config
	until  time.Time
}

func (s *open) name() State { return Open }
func (s *open) admit(now time.Time) (bool, uint64, time.Duration) {
	return false, 0, s.until.Sub(now)
}
func (s *open) isCurrent(uint64, time.Time) bool        { return false }
func (s *open) record(uint64, Outcome, time.Time) state { return s }
func (s *open) tick(now time.Time) state {
	if now.Before(s.until) {
		return s
	}
	return &halfOpen{config: s.config}
}

// halfOpen admits one trial at a time.
type halfOpen struct {
	config  Config
	trial   uint64    // the number of the newest trial
	running bool      // whether that one may still report
	expires time.Time // when it expires
}

func (s *halfOpen) name() State          { return HalfOpen }
func (s *halfOpen) tick(time.Time) state { return s }

func (s *halfOpen) admit(now time.Time) (bool, uint64, time.Duration) {
	if s.running && now.Before(s.expires) {
		return false, 0, 0
	}
	s.trial++
	s.running, s.expires = true, now.Add(s.config.Trial)
	return true, s.trial, 0
}

func (s *halfOpen) isCurrent(trial uint64, now time.Time) bool {
	return trial == s.trial && s.running && now.Before(s.expires)
}

func (s *halfOpen) record(trial uint64, o Outcome, now time.Time) state {
	if !s.isCurrent(trial, now) {
		return s // the trial has expired
	}
	switch o {
	case Success:
		return newClosed(s.config)
	case Failure:
		return &open{config: s.config, until: now.Add(s.config.Reset)}
	}
	s.running = false
	return s
}
