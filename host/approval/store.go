package approval

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Config is fixed when a store is opened.
type Config struct {
	// Dir is the folder of the store's file; it is made if missing. One process
	// has it at a time, which the caller sees to.
	Dir string
	// OnChange is told each request that was made or has changed, in order. It must
	// not call the store. Nil tells nobody.
	OnChange func(Request)
	// Logger gets what no caller sees. Nil: slog.Default.
	Logger *slog.Logger
}

// Store holds requests for approval. It is safe for concurrent use.
type Store struct {
	config Config
	log    *slog.Logger
	ending chan struct{} // closed by EndWaits

	mu   sync.Mutex
	file *file    // nil once the store is closed; guarded by mu
	all  []*entry // in the order in which they were made; guarded by mu
}

// entry is a request with who waits for it. Its fields are guarded by the store's mu.
type entry struct {
	Request
	changed chan struct{} // closed with the next change, and made anew
	granted bool          // something runs by it now
}

// Open opens the store in a folder, or makes one.
func Open(c Config) (*Store, error) {
	s := &Store{config: c, log: c.Logger, ending: make(chan struct{})}
	if s.log == nil {
		s.log = slog.Default()
	}
	f, list, aside, err := openFile(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the store of approvals in %s: %w; check the folder, or move it away: what was asked is asked again then", c.Dir, err)
	}
	if aside != "" {
		s.log.Error("the store of approvals was damaged and is set aside: what was approved is asked for again", "file", aside)
	}
	s.file = f
	now := time.Now()
	for _, r := range list {
		e := &entry{Request: *r, changed: make(chan struct{})}
		// What is left of its time is measured as for one that is asked from now on: a
		// clock that is set back while the daemon runs adds nothing to it.
		e.Expires = now.Add(e.Expires.Sub(now))
		s.all = append(s.all, e)
		if r.Made.After(now) && (e.Open() || e.State == Denied) {
			// The clock was set back: nobody knows how old it is.
			s.expireLocked(e, now)
		}
	}
	s.pruneLocked()
	return s, nil
}

// EndWaits makes all waits, present and future, fail with ErrEnding: the daemon stops, and the
// requests are still there when it starts again.
func (s *Store) EndWaits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ending:
	default:
		close(s.ending)
	}
}

// Close closes the store. It does not end waits: their contexts do.
func (s *Store) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return f.f.Close()
}

// Ask submits r for a decision; of r it uses what a request begins with. It returns the request
// for the same calls that is already open, or was denied, if there is one. Errors are
// ErrInvalid, ErrFull and ErrUnavailable.
func (s *Store) Ask(r Request, ttl time.Duration) (Request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r.ID, r.Made, r.Expires, r.State = newID(), now, now.Add(ttl), Pending
	if err := r.check(); err != nil {
		return Request{}, err
	}
	key := r.key()
	open, own := 0, 0
	for _, e := range s.all {
		s.settleLocked(e, now)
		if (e.Open() || e.State == Denied) && e.key() == key {
			return e.Request, nil
		}
		if e.Open() {
			open++
			if e.Owner == r.Owner {
				own++
			}
		}
	}
	switch {
	case own >= MaxOpenOf:
		return Request{}, fmt.Errorf("%w: %d of this identity, and that is the limit; have them decided, or wait until they expire", ErrFull, own)
	case open >= MaxOpen:
		return Request{}, fmt.Errorf("%w: %d, and that is the limit; have them decided, or wait until they expire", ErrFull, open)
	}
	e := &entry{Request: r, changed: make(chan struct{})}
	if err := s.writeLocked(line{Ask: &e.Request}, true); err != nil {
		return Request{}, err
	}
	s.all = append(s.all, e)
	s.tell(r)
	s.pruneLocked()
	return r, nil
}

// Decide approves or denies the request id. Of concurrent decisions one counts, and the others
// fail with ErrState. Errors are ErrNotFound, ErrNotAllowed, ErrState and ErrUnavailable.
func (s *Store) Decide(id string, by Person, approve bool, reason string) (Request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.findLocked(id, &by)
	if e == nil {
		return Request{}, ErrNotFound
	}
	if !by.mayDecide(&e.Request) {
		return e.Request, ErrNotAllowed
	}
	if len(reason) > MaxText {
		return e.Request, fmt.Errorf("%w: the reason has more than %d bytes", ErrInvalid, MaxText)
	}
	c := &change{ID: id, At: time.Now(), State: Denied, Decider: by.ID, DeciderName: by.name(), Reason: reason}
	if by.Operator {
		c.Decider = Operator
	}
	if approve {
		c.State = Approved
	}
	err := s.changeLocked(e, c, true)
	return e.Request, err
}

// Grant is an approval that was used, for as many calls as its request has.
type Grant struct {
	s *Store
	e *entry
	// ID is the request's, Execution that which runs by it.
	ID, Execution string
	// Decider is who approved.
	Decider string
}

// Use consumes the approval of the one call with that digest, for an execution. It returns once
// that is on disk, and returns nil without an error if there is no such approval. On any error,
// nothing may run.
func (s *Store) Use(digest, execution string) (*Grant, error) {
	return s.use(execution, digest, func(e *entry) bool { return !e.Batch })
}

// UseBatch is Use for a list of calls, of which digest is that of the first.
func (s *Store) UseBatch(id, asker, digest, execution string) (*Grant, error) {
	return s.use(execution, digest, func(e *entry) bool { return e.Batch && e.ID == id && e.Asker == asker })
}

func (s *Store) use(execution, digest string, is func(*entry) bool) (*Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, e := range s.all {
		s.settleLocked(e, now)
		if e.State != Approved || !is(e) || e.Steps[0].Digest != digest {
			continue
		}
		err := s.changeLocked(e, &change{ID: e.ID, At: now, State: Used, Execution: execution, Began: 1}, true)
		if err != nil {
			// It may be on the disk or not: it is spent either way.
			e.State, e.Used, e.UsedBy, e.Began = Used, now, execution, 1
			e.wake()
			return nil, err
		}
		e.granted = true
		return &Grant{s, e, e.ID, execution, e.Decider}, nil
	}
	return nil, nil
}

// Next begins the next call of a batch, which has that digest, and returns once that is on
// disk. The error is ErrState if another call is the next one.
func (g *Grant) Next(digest string) error {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	e := g.e
	if e.Began >= len(e.Steps) || e.Steps[e.Began].Digest != digest {
		return fmt.Errorf("%w: this is not what was planned", ErrState)
	}
	return g.s.changeLocked(e, &change{ID: e.ID, At: time.Now(), State: Used, Execution: g.Execution, Began: e.Began + 1}, true)
}

// End records the outcome of the call that ran last, and that no other will run. It is called
// once for each Grant.
func (g *Grant) End(outcome string) {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	g.e.granted = false
	if err := g.s.changeLocked(g.e, &change{ID: g.ID, At: time.Now(), State: Used, Execution: g.Execution, Outcome: outcome}, false); err != nil {
		g.s.log.Warn("the outcome of an approved call cannot be noted", "approval", g.ID, "error", err)
	}
}

// Lapse ends the open requests for which is returns a reason.
func (s *Store) Lapse(is func(*Request) (why string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, e := range s.all {
		s.settleLocked(e, now)
		if !e.Open() {
			continue
		}
		if why := is(&e.Request); why != "" {
			// What lapsed has another digest than what would run now: nothing depends on
			// this being on the disk.
			if err := s.changeLocked(e, &change{ID: e.ID, At: now, State: Lapsed, Reason: why}, false); err != nil {
				s.log.Warn("a request that lapsed cannot be noted", "approval", e.ID, "error", err)
			}
		}
	}
}

// Wait returns the request id once it is no longer pending, ctx ends, or waits do (ErrEnding).
func (s *Store) Wait(ctx context.Context, id string) (Request, error) {
	for {
		s.mu.Lock()
		e := s.findLocked(id, &Person{Operator: true})
		if e == nil {
			s.mu.Unlock()
			return Request{}, ErrNotFound
		}
		r, changed := e.Request, e.changed
		s.mu.Unlock()
		if r.State != Pending {
			return r, nil
		}
		over := time.NewTimer(time.Until(r.Expires))
		select {
		case <-changed:
		case <-over.C:
		case <-s.ending:
			over.Stop()
			return r, ErrEnding
		case <-ctx.Done():
			over.Stop()
			return r, context.Cause(ctx)
		}
		over.Stop()
	}
}

// List returns the requests that p can see, oldest first.
func (s *Store) List(p Person) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var list []Request
	for _, e := range s.all {
		s.settleLocked(e, now)
		if p.sees(&e.Request) {
			list = append(list, e.Request)
		}
	}
	return list
}

// Get returns one request. The error is ErrNotFound, also for one that p cannot see.
func (s *Store) Get(id string, p Person) (Request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.findLocked(id, &p); e != nil {
		return e.Request, nil
	}
	return Request{}, ErrNotFound
}

// MayDecide reports whether p may decide r.
func MayDecide(r *Request, p Person) bool { return p.mayDecide(r) }

func (s *Store) findLocked(id string, p *Person) *entry {
	for _, e := range s.all {
		if e.ID == id && p.sees(&e.Request) {
			s.settleLocked(e, time.Now())
			return e
		}
	}
	return nil
}

// settleLocked ends e where its time is over.
func (s *Store) settleLocked(e *entry, now time.Time) {
	if (e.Open() || e.State == Denied) && !now.Before(e.Expires) {
		s.expireLocked(e, now)
	}
}

func (s *Store) expireLocked(e *entry, now time.Time) {
	if err := s.changeLocked(e, &change{ID: e.ID, At: now, State: Expired}, false); err != nil {
		e.State = Expired // as its time says
		e.wake()
	}
}

// changeLocked is the one way in which a request changes: as far as it may, and
// once that is written.
func (s *Store) changeLocked(e *entry, c *change, sync bool) error {
	next, err := e.after(c)
	if err != nil {
		return err
	}
	if err := s.writeLocked(line{Change: c}, sync); err != nil {
		return err
	}
	e.Request = next
	e.wake()
	s.tell(next)
	return nil
}

func (e *entry) wake() {
	close(e.changed)
	e.changed = make(chan struct{})
}

func (s *Store) writeLocked(l line, sync bool) error {
	if s.file == nil {
		return fmt.Errorf("%w: it is closed", ErrUnavailable)
	}
	return s.file.write(l, sync)
}

func (s *Store) tell(r Request) {
	if s.config.OnChange != nil {
		s.config.OnChange(r)
	}
}

// pruneLocked forgets the oldest requests that nothing can become of, and has the
// file follow. Every request begins with it, so that both are bounded.
func (s *Store) pruneLocked() {
	closed := 0
	for _, e := range s.all {
		if !e.Open() {
			closed++
		}
	}
	s.all = slices.DeleteFunc(s.all, func(e *entry) bool {
		if closed <= maxClosed || e.Open() || e.granted {
			return false
		}
		closed--
		return true
	})
	if !s.file.grown() {
		return
	}
	list := make([]*Request, len(s.all))
	for i, e := range s.all {
		list[i] = &e.Request
	}
	if err := s.file.rewrite(list); err != nil {
		s.log.Warn("the store of approvals cannot be rewritten, and keeps growing", "error", err)
	}
}
