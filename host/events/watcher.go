package events

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/toold/toold/host/fault"
)

// maxBatch is how many events a watcher takes at a time, and keptBatch for how many it
// keeps the room.
const (
	maxBatch  = 64
	keptBatch = 16
)

// Watcher is one reader of a stream. Next and Cursor are for one goroutine; Close
// and Over for any.
type Watcher struct {
	hub    *Hub
	stream *stream
	who    string // whom it counts for; an operator is ""
	filter Filter
	over   chan struct{}

	// Of the goroutine of Next.
	batch  []Event // taken, and not yet told
	taken  []Event // the room of batch
	cursor string  // of what was told last

	// Guarded by Hub.mu.
	at    place // what is in batch included
	cut   bool
	ended bool // over is closed
}

// Over is closed when the watcher is cut or the Hub is closed, so that who is
// blocked on telling an event can give up.
func (w *Watcher) Over() <-chan struct{} { return w.over }

func (w *Watcher) endLocked() {
	if !w.ended {
		w.ended = true
		close(w.over)
	}
}

// Cursor is that of the last event of Next.
func (w *Watcher) Cursor() string { return w.cursor }

// Close ends the watcher. What it watched is kept for a while.
func (w *Watcher) Close() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.endLocked()
	w.hub.leaveLocked(w)
}

// errCut is why a watcher was cut. It is never written to.
var errCut = fault.Errorf(fault.LimitExceeded, "this watcher is too slow: more events wait for it than sessions.watch_events in toold.json; watch again after the last cursor, which says what was lost")

// Next waits for the next event. Errors are io.EOF when the session was closed,
// LIMIT_EXCEEDED for a watcher that is too slow, OVERLOADED when the daemon
// stops, and that of ctx. Events are not to be changed.
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

// More is Next without waiting. It is false where there is nothing yet, and for an
// error, which Next has then.
func (w *Watcher) More() (Event, bool) {
	e, changed, err := w.next()
	return e, err == nil && changed == nil
}

// next is the next event, or an error, or what is closed when there is one.
func (w *Watcher) next() (Event, <-chan struct{}, error) {
	for {
		for len(w.batch) > 0 {
			e := w.batch[0]
			w.batch[0] = Event{} // taken lives on, and would keep its data alive
			w.batch = w.batch[1:]
			w.cursor = e.Cursor
			if w.tells(&e) {
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
// maxPace how long at most: so all of them together do not write more than 1,000
// times a second, and take little from the calls that they watch.
const (
	pace    = time.Millisecond
	maxPace = 250 * time.Millisecond
)

// Gather waits a moment for more events, the longer the more watchers there are,
// and less where much happens: for who sends events on. It ends with ctx.
func (w *Watcher) Gather(ctx context.Context) {
	w.hub.mu.Lock()
	s := w.stream
	if s.pressing == nil {
		s.pressing, s.fresh, s.freshSize = make(chan struct{}), 0, 0
	}
	pressing, n := s.pressing, w.hub.watched+w.hub.held[""]
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

func (w *Watcher) tells(e *Event) bool {
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

// take fills the batch. Where there is nothing yet, it answers what is closed
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
			told := lost // or each event would be an allocation
			batch = append(batch, Event{Kind: Lost, Cursor: s.cursor(before), Lost: &told})
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
