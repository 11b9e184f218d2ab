package idempotency

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"
)

// Unknown is a record whose call has an unknown outcome.
type Unknown struct {
	Scope, Key, Label string
	// Note is what Request.Note answered before the call ran.
	Note json.RawMessage
	// ClaimedAt and EndedAt are by the store's clock. EndedAt is when the outcome
	// became unknown.
	ClaimedAt, EndedAt time.Time
	// Ended reports that the owner itself reported the unknown outcome, and that
	// nothing of the call runs on its host any longer. Otherwise the owner may
	// have been lost, and may still run it.
	Ended bool
}

// Verdict is what was found out about a call with an unknown outcome.
type Verdict int

const (
	Undecided Verdict = iota // nothing is certain; the zero value, which is the safe one
	Done                     // it succeeded
	NotDone                  // it changed nothing, and never will
)

// Finding is the result of Request.Settle.
type Finding struct {
	Verdict Verdict
	// Result is kept and replayed where the verdict is Done.
	Result json.RawMessage
}

const (
	// maxSettling is how many records are looked into at one time.
	maxSettling = 16
	// settleTimeout bounds one look.
	settleTimeout = 30 * time.Second
	// After a look that decided nothing the record is left alone for
	// firstRest, and for twice as long after each further one, up to maxRest.
	firstRest = time.Second
	maxRest   = 5 * time.Minute
	// maxRests is how many records are remembered to be left alone.
	maxRests = 10_000
)

// look is one attempt to find out how the call of a record ended. Those who use
// its key meanwhile share it.
type look struct {
	done    chan struct{} // closed when changed is set
	changed bool
}

// rest is how long a record is left alone after looks that decided nothing.
type rest struct {
	until time.Time
	next  time.Duration
}

// settler finds out how calls with an unknown outcome ended.
type settler struct {
	store      store
	recorder   *recorder
	background *background
	flights    *flights // whose waiters it wakes
	log        *slog.Logger

	mu    sync.Mutex
	looks map[id]*look // under way; guarded by mu
	rests map[id]rest  // guarded by mu
}

// settle finds out with f how the call of i ended, or waits for another that does,
// until ctx ends. It reports whether the record may have changed. A record that was
// looked into without a decision lately is left alone.
func (s *settler) settle(ctx context.Context, i id, f func(context.Context, Unknown) Finding) (changed bool) {
	l := s.start(i, f, false)
	if l == nil {
		return false
	}
	select {
	case <-l.done:
		return l.changed
	case <-ctx.Done():
		return false
	}
}

// start begins a look in a goroutine of its own: it is for all who wait, and none of
// them ends it. It returns nil if none may begin now. force is for an operator, who
// asks again at once.
func (s *settler) start(i id, f func(context.Context, Unknown) Finding, force bool) *look {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.looks[i]; l != nil {
		return l
	}
	if len(s.looks) >= maxSettling || !force && time.Now().Before(s.rests[i].until) {
		return nil
	}
	l := &look{done: make(chan struct{})}
	if !s.background.start(func() {
		changed := false
		defer func() { // also where f panics
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.looks, i)
			s.restLocked(i, changed)
			l.changed = changed
			close(l.done)
		}()
		ctx, cancel := context.WithTimeout(s.background.ctx, settleTimeout)
		defer cancel()
		changed = s.lookInto(ctx, i, f)
	}) {
		return nil
	}
	s.looks[i] = l
	return l
}

// restLocked notes that a look at i has ended.
func (s *settler) restLocked(i id, changed bool) {
	if changed {
		delete(s.rests, i)
		return
	}
	now := time.Now()
	if len(s.rests) >= maxRests {
		for other, r := range s.rests {
			if now.After(r.until) {
				delete(s.rests, other)
			}
		}
	}
	r := s.rests[i]
	r.next = min(max(2*r.next, firstRest), maxRest)
	r.until = now.Add(r.next)
	if len(s.rests) < maxRests {
		s.rests[i] = r
	}
}

// lookInto reports whether the record of i has changed, by this look or before it.
func (s *settler) lookInto(ctx context.Context, i id, f func(context.Context, Unknown) Finding) (changed bool) {
	start := time.Now()
	r, _, err := s.store.get(ctx, i)
	s.recorder.observe("get", start, err)
	switch {
	case err != nil:
		return false
	case r == nil || !r.outcomeUnknown():
		return true
	case len(r.Note) == 0:
		return false // it was claimed without a note
	}
	found := f(ctx, Unknown{
		Scope: i.scope, Key: i.key, Label: r.Label, Note: r.Note,
		ClaimedAt: time.UnixMilli(r.ClaimedAt), EndedAt: time.UnixMilli(r.EndedAt), Ended: r.Error.Message == messageReported,
	})
	x := resolution{owner: r.Owner, fence: r.Fence, done: found.Verdict == Done}
	event := EventFoundNotDone
	switch found.Verdict {
	case Done:
		event = EventFoundDone
		var compact bytes.Buffer
		if json.Compact(&compact, found.Result) == nil {
			x.result = compact.Bytes()
		}
		if len(x.result) > MaxResult || found.Result != nil && x.result == nil {
			x.digest, x.size, x.result = digest(found.Result), len(found.Result), nil
		}
	case NotDone:
	default:
		s.recorder.count(i.scope, EventFoundNothing)
		return false
	}
	start = time.Now()
	v, err := s.store.resolve(ctx, i, x)
	s.recorder.observe("end", start, err)
	if err != nil {
		s.log.Error("what was found out of a call could not be recorded", "scope", i.scope, "key", i.key, "error", err)
		return false
	}
	if v == verdictDone {
		s.recorder.count(i.scope, event)
	}
	s.flights.notify(i)
	return true
}
