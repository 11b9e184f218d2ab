// Package breaker refuses calls to what keeps failing, and finds out with one
// trial at a time whether it works again.
//
// A Breaker is CLOSED at first. It opens after Config.Failures failures in a
// row, or when at least Config.Ratio of the last Config.Window outcomes are
// failures, never before that many were counted. It stays OPEN for
// Config.Reset and is then HALF_OPEN: one call runs as a trial, all others are
// refused as before. A trial that succeeds closes the breaker, one that fails
// opens it anew, one whose outcome is Neutral gives the trial back, and one
// that never answers expires after Config.Trial.
//
// A call holds a Ticket of the state that let it in. An outcome that comes
// when the breaker has left that state says nothing about the new one and is
// ignored: a success from before the opening closes nothing.
//
// What counts as a failure is the caller's to say. The package knows nothing
// of tools and can be used alone; time is the standard library's, so that it
// is deterministic under testing/synctest.
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
	// Trial is how long a trial may take before it is given up and another
	// one is let in. It should be no shorter than the longest call, or a
	// breaker of slow calls never closes. Default and least: Reset.
	Trial time.Duration
	// OnChange, when set, is told each change of state, after the lock is
	// let go; changes of one breaker may then be told out of order.
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

// Outcome is what a call tells the breaker about itself.
type Outcome int

const (
	// Neutral says nothing about the upstream: the caller left, the input
	// was bad, the tool answered no.
	Neutral Outcome = iota
	Success
	Failure
)

// State is what a breaker is in.
type State string

const (
	Closed   State = "closed"
	Open     State = "open"
	HalfOpen State = "half_open"
)

// OpenError is why a call was refused.
type OpenError struct {
	// RetryAfter is how long until a call may be let in; 0 when that hangs
	// on a trial that is running.
	RetryAfter time.Duration
}

func (e *OpenError) Error() string {
	if e.RetryAfter == 0 {
		return "circuit breaker is open and a trial is running"
	}
	return fmt.Sprintf("circuit breaker is open for another %v", e.RetryAfter.Round(time.Millisecond))
}

// Breaker is safe for concurrent use.
type Breaker struct {
	config Config

	mu    sync.Mutex
	state state  // guarded by mu
	gen   uint64 // counts the states there have been; guarded by mu
}

// state is one of closed, *open and *halfOpen. None of them knows of locks or
// of the clock.
type state interface {
	name() State
	// enter lets a call in, or says how long it has to wait.
	enter(now time.Time) (ok bool, trial uint64, wait time.Duration)
	// leave counts an outcome and is the state that follows from it.
	leave(trial uint64, o Outcome, now time.Time) state
	// holds reports whether an outcome of that trial would count.
	holds(trial uint64, now time.Time) bool
	// tick is the state that the mere passing of time leads to.
	tick(now time.Time) state
}

// New makes a closed breaker.
func New(c Config) *Breaker {
	c = c.withDefaults()
	return &Breaker{config: c, state: newClosed(c)}
}

// Ticket is a call that was let in. Its Done is called once, with any outcome;
// further calls do nothing.
type Ticket struct {
	b     *Breaker
	gen   uint64
	trial uint64
	once  sync.Once
}

// Enter lets a call in or answers an *OpenError.
func (b *Breaker) Enter() (*Ticket, error) {
	now := time.Now()
	b.mu.Lock()
	from := b.state.name()
	b.moveLocked(b.state.tick(now))
	ok, trial, wait := b.state.enter(now)
	t := &Ticket{b: b, gen: b.gen, trial: trial}
	to := b.state.name()
	b.mu.Unlock()
	b.tell(from, to)
	if !ok {
		return nil, &OpenError{RetryAfter: wait}
	}
	return t, nil
}

// Done gives the ticket back with what came of the call.
func (t *Ticket) Done(o Outcome) {
	t.once.Do(func() {
		b, now := t.b, time.Now()
		b.mu.Lock()
		from := b.state.name()
		b.moveLocked(b.state.tick(now))
		if t.gen == b.gen {
			b.moveLocked(b.state.leave(t.trial, o, now))
		}
		to := b.state.name()
		b.mu.Unlock()
		b.tell(from, to)
	})
}

// Current reports whether the breaker is still in the state that let the call
// in, so that an outcome would count. A call whose breaker has opened meanwhile,
// or whose trial was given up, has no right to try again.
func (t *Ticket) Current() bool {
	b, now := t.b, time.Now()
	b.mu.Lock()
	from := b.state.name()
	b.moveLocked(b.state.tick(now))
	ok := t.gen == b.gen && b.state.holds(t.trial, now)
	to := b.state.name()
	b.mu.Unlock()
	b.tell(from, to)
	return ok
}

// State is the state now.
func (b *Breaker) State() State {
	b.mu.Lock()
	from := b.state.name()
	b.moveLocked(b.state.tick(time.Now()))
	to := b.state.name()
	b.mu.Unlock()
	b.tell(from, to)
	return to
}

// Snapshot is a breaker at one moment, for people.
type Snapshot struct {
	State State
	// Row counts the failures in a row; Failed of the last Counted outcomes
	// are failures. All are 0 unless the breaker is closed.
	Row, Failed, Counted int
	// RetryAfter is how long an open breaker refuses yet.
	RetryAfter time.Duration
}

// Snapshot describes the breaker as it is now.
func (b *Breaker) Snapshot() Snapshot {
	now := time.Now()
	b.mu.Lock()
	from := b.state.name()
	b.moveLocked(b.state.tick(now))
	s := Snapshot{State: b.state.name()}
	switch state := b.state.(type) {
	case *closed:
		s.Row, s.Failed, s.Counted = state.row, state.failed, state.next
		if state.full {
			s.Counted = len(state.ring)
		}
	case *open:
		s.RetryAfter = state.until.Sub(now)
	}
	b.mu.Unlock()
	b.tell(from, s.State)
	return s
}

// Reset closes the breaker and forgets what it counted. Outcomes of calls that
// run now are ignored.
func (b *Breaker) Reset() {
	b.mu.Lock()
	from := b.state.name()
	b.moveLocked(newClosed(b.config))
	b.mu.Unlock()
	b.tell(from, Closed)
}

func (b *Breaker) moveLocked(s state) {
	if s != b.state {
		b.state = s
		b.gen++
	}
}

func (b *Breaker) tell(from, to State) {
	if from != to && b.config.OnChange != nil {
		b.config.OnChange(from, to)
	}
}

// closed counts outcomes.
type closed struct {
	config Config
	row    int    // failures in a row
	ring   []bool // the last outcomes, true for a failure
	next   int    // where in ring the next one goes
	full   bool
	failed int // how many in ring are failures
}

func newClosed(c Config) *closed { return &closed{config: c, ring: make([]bool, c.Window)} }

func (s *closed) name() State                                   { return Closed }
func (s *closed) enter(time.Time) (bool, uint64, time.Duration) { return true, 0, 0 }
func (s *closed) holds(uint64, time.Time) bool                  { return true }
func (s *closed) tick(time.Time) state                          { return s }

func (s *closed) leave(_ uint64, o Outcome, now time.Time) state {
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
		s.row++
	} else {
		s.row = 0
	}
	if s.next++; s.next == len(s.ring) {
		s.next, s.full = 0, true
	}
	if s.row >= s.config.Failures || s.full && float64(s.failed) >= s.config.Ratio*float64(len(s.ring)) {
		return &open{config: s.config, until: now.Add(s.config.Reset)}
	}
	return s
}

// open refuses until its time has passed.
type open struct {
	config Config
	until  time.Time
}

func (s *open) name() State { return Open }
func (s *open) enter(now time.Time) (bool, uint64, time.Duration) {
	return false, 0, s.until.Sub(now)
}
func (s *open) holds(uint64, time.Time) bool           { return false }
func (s *open) leave(uint64, Outcome, time.Time) state { return s }
func (s *open) tick(now time.Time) state {
	if now.Before(s.until) {
		return s
	}
	return &halfOpen{config: s.config}
}

// halfOpen lets one trial in at a time.
type halfOpen struct {
	config  Config
	trial   uint64    // the number of the newest trial
	running bool      // whether that one may still answer
	expires time.Time // when it is given up
}

func (s *halfOpen) name() State          { return HalfOpen }
func (s *halfOpen) tick(time.Time) state { return s }

func (s *halfOpen) enter(now time.Time) (bool, uint64, time.Duration) {
	if s.running && now.Before(s.expires) {
		return false, 0, 0
	}
	s.trial++
	s.running, s.expires = true, now.Add(s.config.Trial)
	return true, s.trial, 0
}

func (s *halfOpen) holds(trial uint64, now time.Time) bool {
	return trial == s.trial && s.running && now.Before(s.expires)
}

func (s *halfOpen) leave(trial uint64, o Outcome, now time.Time) state {
	if !s.holds(trial, now) {
		return s // a trial that expired says nothing any more
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
