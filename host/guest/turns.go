package guest

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A guest that computes occupies one of the runtime's processors (a P). If guests
// occupy all of them, only a thread that polls every 10 ms asks the kernel which
// sockets are ready, and each call waits for that. So guests compute in places, of
// which there are fewer than processors. Long-running calls may use only some of the
// places, so that a short call never waits for a long one.

const (
	// spare is the number of processors that guests leave to the rest of the program.
	spare = 1
	// shortPlaces is the minimum number of places that are closed to long-running
	// calls.
	shortPlaces = 2
	// short is how long a call computes before it counts as long-running.
	short = time.Millisecond
	// quantum is how long a call computes before waiting calls take precedence.
	quantum = 2 * time.Millisecond
	// rest is how long a call waits, for input or a response, to regain one unit of
	// time of short.
	rest = 16
)

// Processors returns the value for runtime.GOMAXPROCS with which guests may use all of
// cores without delaying the rest of the program.
func Processors(cores int) int { return cores + max(shortPlaces, cores/4) + spare }

// turns schedules the calls that compute.
type turns struct {
	spares bool // there are processors that guests do not use
	places int  // total number of places
	longs  int  // for long-running calls; less than places if there are enough processors

	queued atomic.Int32 // waiting calls

	mu     sync.Mutex
	taken  int     // places; guarded by mu
	long   int     // part of taken; guarded by mu
	wait   [2]line // short calls, and long-running ones; guarded by mu
	second bool    // the last call admitted from a line was long-running; guarded by mu
}

// newTurns creates the places for a number of runtime processors: as Processors counts
// them, if there are enough.
func newTurns(processors int) *turns {
	t := &turns{places: max(1, processors-spare), spares: processors > spare}
	for t.longs = t.places; t.longs > 1 && Processors(t.longs) > processors; {
		t.longs--
	}
	return t
}

// line is a queue of calls. The next call belongs to the identity served least
// recently, and to that identity's module served least recently: so the share of each
// does not depend on how many calls another makes.
type line struct{ identities []*waiting[*waiting[*waiter]] }

// waiting is a queue under one name, in order.
type waiting[T any] struct {
	name string
	list []T
}

// waiter is a call that waits for a place.
type waiter struct{ come chan struct{} }

func (l *line) empty() bool { return len(l.identities) == 0 }

func under[T any](list *[]*waiting[T], name string) *waiting[T] {
	i := slices.IndexFunc(*list, func(w *waiting[T]) bool { return w.name == name })
	if i >= 0 {
		return (*list)[i]
	}
	w := &waiting[T]{name: name}
	*list = append(*list, w)
	return w
}

func (l *line) push(identity, module string, t *waiter) {
	w := under(&under(&l.identities, identity).list, module)
	w.list = append(w.list, t)
}

// pop removes the next call. Its identity and module move to the end.
func (l *line) pop() *waiter {
	identity := l.identities[0]
	module := identity.list[0]
	t := module.list[0]
	module.list = slices.Delete(module.list, 0, 1)
	identity.list = behind(identity.list, len(module.list) > 0)
	l.identities = behind(l.identities, len(identity.list) > 0)
	return t
}

// behind moves the first element of list to the end, or removes it unless more.
func behind[T any](list []T, more bool) []T {
	first := list[0]
	list = slices.Delete(list, 0, 1)
	if more {
		list = append(list, first)
	}
	return list
}

// remove removes a call that no longer waits. It reports false if the call was already
// admitted.
func (l *line) remove(identity, module string, t *waiter) bool {
	i := under(&l.identities, identity)
	m := under(&i.list, module)
	at := slices.Index(m.list, t)
	if at >= 0 {
		m.list = slices.Delete(m.list, at, at+1)
	}
	i.list = slices.DeleteFunc(i.list, func(w *waiting[*waiter]) bool { return len(w.list) == 0 })
	l.identities = slices.DeleteFunc(l.identities, func(w *waiting[*waiting[*waiter]]) bool { return len(w.list) == 0 })
	return at >= 0
}

// take gives a call a place, or returns the waiter that waits for one.
func (t *turns) take(long bool, identity, module string) *waiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free(long) && t.wait[index(long)].empty() {
		t.seat(long)
		return nil
	}
	w := &waiter{come: make(chan struct{})}
	t.wait[index(long)].push(identity, module, w)
	t.queued.Add(1)
	return w
}

func index(long bool) int {
	if long {
		return 1
	}
	return 0
}

// free reports whether there is a place for a call. mu must be held.
func (t *turns) free(long bool) bool {
	return t.taken < t.places && (!long || t.long < t.longs)
}

// seat takes a place. mu must be held.
func (t *turns) seat(long bool) {
	t.taken++
	t.long += index(long)
}

// leave passes a place to the next call. It alternates between the two lines, so that
// neither short calls starve long-running ones nor the reverse.
func (t *turns) leave(long bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken--
	t.long -= index(long)
	for {
		switch next := !t.second; {
		case t.free(next) && !t.wait[index(next)].empty():
			t.second = next
		case t.free(!next) && !t.wait[index(!next)].empty():
		default:
			return
		}
		t.seat(t.second)
		t.queued.Add(-1)
		close(t.wait[index(t.second)].pop().come)
	}
}

// forget removes a call that ended while it waited.
func (t *turns) forget(w *waiter, long bool, identity, module string) {
	t.mu.Lock()
	waits := t.wait[index(long)].remove(identity, module, w)
	t.mu.Unlock()
	if waits {
		t.queued.Add(-1)
	} else {
		t.leave(long)
	}
}

// place is the place of one call.
type place struct {
	has   bool
	long  bool
	since time.Time     // when it got the place, or its last quantum ended
	spent time.Duration // time computing in places, less what it regained
	left  time.Time     // when it last left a place
}

// compete is called for a call that continues computing: it gets a place for the call
// if it has none, and passes its place on if it is another's turn.
func (c *call) compete(now time.Time) {
	p, t := &c.place, c.inst.m.e.turns
	switch {
	case !p.has:
		if !p.left.IsZero() {
			p.spent = max(0, p.spent-now.Sub(p.left)/rest)
		}
		p.long = p.spent >= short
	case !p.long:
		if now.Sub(p.since)+p.spent < short {
			return
		}
		c.pause()
		p.long = true
	case now.Sub(p.since) < quantum || t.queued.Load() == 0:
		return
	default:
		// It queues behind the calls that already wait.
		c.pause()
	}
	identity, module := c.inv.Identity, c.inst.m.spec.Name
	if w := t.take(p.long, identity, module); w != nil {
		c.unpin()
		select {
		case <-w.come:
		case <-c.done:
			t.forget(w, p.long, identity, module)
			panic(ended(c.Err()))
		}
		now = time.Now()
	}
	p.has, p.since = true, now
	c.meter.last, c.meter.yielded = now, now
}

// pause leaves the place of a call that stops computing for now, or ends.
func (c *call) pause() {
	p := &c.place
	if !p.has {
		return
	}
	p.has, p.left = false, time.Now()
	p.spent += p.left.Sub(p.since)
	c.inst.m.e.turns.leave(p.long)
}
