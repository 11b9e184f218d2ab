package events

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/toold/toold/host/fault"
)

// maxBatch is how many events a watcher takes at a time, and keptBatch the largest batch whose
// memory it keeps.
const (
	maxBatch  = 64
	keptBatch = 16
)

// Watcher is one reader of a stream. Next and Cursor are for one goroutine; Close
// and Over for any.
type Watcher struct {
	hub *Hub
	reader
	filter Filter

	// Owned by the goroutine of Next.
	batch  []Event // taken from the stream, and not yet returned
	taken  []Event // the memory of batch
	cursor string  // of the event that was returned last
}

// Watch starts watching what f selects, from now on, or after a cursor. The first event is Ready. Errors are
// INVALID_PAYLOAD for an invalid cursor, and LIMIT_EXCEEDED if there are too many watchers.
func (h *Hub) Watch(f Filter, after string) (*Watcher, error) {
	from, err := parseCursor(after)
	if err != nil {
		return nil, err
	}
	key, who := scope{f.Owner, f.Session}, f.Owner
	switch {
	case f.Operator:
		who = ""
	case f.Owner == "":
		return nil, fault.Errorf(fault.Internal, "a watcher has no owner")
	case f.Bound:
		who += "/" + f.Session
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, errStopping
	case h.held[who] >= h.limits.Watchers:
		return nil, fault.Errorf(fault.LimitExceeded, "there are %d watchers, which is the limit; end one, or raise sessions.watchers in toold.json", h.held[who])
	case who != "" && h.watched >= h.limits.AllWatchers:
		return nil, fault.Errorf(fault.LimitExceeded, "all callers together have %d watchers, which is the limit; try again later, or raise sessions.watchers_all in toold.json", h.watched)
	}
	s := h.streams[key]
	if s == nil {
		s = newStream(&h.limits, key)
		s.ended = f.Ended
		h.streams[key] = s
		h.some.Add(1)
	}
	s.expiry.stop()
	w := &Watcher{hub: h, reader: reader{stream: s, who: who, at: s.end, over: make(chan struct{})}, filter: f}
	ready := Event{Kind: Ready, At: time.Now().UTC(), Session: f.Session}
	if after != "" && (from.stream != s.id || from.n > s.end.n || from.m > s.end.m || from.bytes > s.end.bytes) {
		ready.Cursor = s.cursor(s.end)
		w.batch = []Event{ready, {Kind: Lost, At: ready.At, Cursor: ready.Cursor, Lost: &Loss{Reset: true},
			Reason: "the cursor belongs to a stream that is no longer kept, or to another run of the daemon; query the session for its current state"}}
	} else {
		if after != "" {
			w.at = from.place
		}
		ready.Cursor = s.cursor(w.at)
		w.batch = []Event{ready}
		if first := s.firstLocked(); w.at.n < first.n {
			lost := first.since(w.at)
			w.at = first
			w.batch = append(w.batch, Event{Kind: Lost, At: ready.At, Cursor: s.cursor(first), Lost: &lost})
		}
	}
	s.readers[&w.reader] = struct{}{}
	h.held[who]++
	if who != "" {
		h.watched++
	}
	return w, nil
}

// Over returns a channel that is closed when the watcher is cut or the Hub is closed, so that a
// caller that is blocked on sending an event can give up.
func (w *Watcher) Over() <-chan struct{} { return w.over }

// Cursor returns that of the last event of Next.
func (w *Watcher) Cursor() string { return w.cursor }

// Close ends the watcher. What it watched is kept for a while.
func (w *Watcher) Close() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.endLocked()
	w.hub.leaveLocked(&w.reader)
}

// errCut is why a watcher was cut. It is never written to.
var errCut = fault.Errorf(fault.LimitExceeded, "this watcher is too slow: more events wait for it than sessions.watch_events in toold.json; watch again after the last cursor, which says what was lost")

// Next waits for the next event. Errors are io.EOF when the session was closed,
// LIMIT_EXCEEDED for a watcher that is too slow, OVERLOADED when the daemon
// stops, and that of ctx. Events must not be changed.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for {
		e, changed, err := w.next()
		if err != nil || changed == nil {
			return e, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// More is Next without waiting. It returns false if there is no event yet, and for an
// error, which Next then returns.
func (w *Watcher) More() (Event, bool) {
	e, changed, err := w.next()
	return e, err == nil && changed == nil
}

// next returns the next event, or an error, or a channel that is closed when there is one.
func (w *Watcher) next() (Event, <-chan struct{}, error) {
	for {
		for len(w.batch) > 0 {
			e := w.batch[0]
			w.batch[0] = Event{} // taken lives on, and would keep its data alive
			w.batch = w.batch[1:]
			w.cursor = e.Cursor
			if w.selects(&e) {
				return e, nil, nil
			}
		}
		changed, err := w.take()
		if err != nil || changed != nil {
			return Event{}, changed, err
		}
	}
}

// pace is how long each of many watchers gathers events, for every one of them, and
// maxPace the longest: so all of them together do not write more than 1,000 times a
// second, and slow down little the calls that they watch.
const (
	pace    = time.Millisecond
	maxPace = 250 * time.Millisecond
)

// Gather waits a moment for more events, longer the more watchers there are, and shorter
// when many events arrive. It is for callers that forward events. It ends with ctx.
func (w *Watcher) Gather(ctx context.Context) {
	w.hub.mu.Lock()
	s := w.stream
	if s.fresh.pressing == nil {
		s.fresh = fresh{pressing: make(chan struct{})}
	}
	pressing, n := s.fresh.pressing, w.hub.watched+w.hub.held[""]
	w.hub.mu.Unlock()
	timer := time.NewTimer(min(time.Duration(n)*pace, maxPace))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-pressing:
	case <-w.over:
	case <-ctx.Done():
	}
}

// selects reports whether the filter lets e through.
func (w *Watcher) selects(e *Event) bool {
	switch e.Kind {
	case Ready, Lost, Cut:
		return true
	case Tool:
		if w.filter.Sees != nil && !w.filter.Sees(e.Tool) {
			return false
		}
	}
	return w.filter.Kinds == nil || slices.Contains(w.filter.Kinds, e.Kind)
}

// take fills the batch. If there is nothing yet, it returns a channel that is closed
// when there is.
func (w *Watcher) take() (changed <-chan struct{}, err error) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	s := w.stream
	if w.cut {
		return nil, errCut
	}
	output := w.filter.Kinds == nil || slices.Contains(w.filter.Kinds, Output)
	batch := w.taken[:0]
	for len(batch) < maxBatch {
		next, lost := s.nextLocked(w.at)
		if !output {
			lost.Output, lost.Bytes = 0, 0
		}
		before := s.end
		if next != nil {
			before = next.before()
		}
		if lost != (Loss{}) {
			missed := lost // a copy, or each event would be an allocation
			batch = append(batch, Event{Kind: Lost, Cursor: s.cursor(before), Lost: &missed})
		}
		if next == nil {
			w.at = before
			break
		}
		w.at = next.place
		if next.event.Cursor == "" {
			next.event.Cursor = s.cursor(next.place)
		}
		e := *next.event
		if w.filter.Operator && e.Data != nil {
			e.Data, e.text = nil, nil
		}
		batch = append(batch, e)
	}
	w.batch = batch
	if w.taken = batch; cap(batch) > keptBatch {
		w.taken = nil
	}
	switch {
	case len(batch) > 0:
		return nil, nil
	case s.ended:
		return nil, io.EOF
	case w.hub.closed:
		return nil, errStopping
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed, nil
}
