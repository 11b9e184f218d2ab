package guest

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A guest that computes keeps one of the runtime's processors (a P) for itself.
// When guests keep all of them, nothing asks the kernel which sockets are ready
// but a thread that does so every 10 ms, and each call waits for that. So guests
// compute in places, of which there are fewer than processors; and those that
// compute for long have only some of the places, so that a call which is soon
// done never waits for one that is not.

const (
	// spare is how many processors guests leave to the rest of the program.
	spare = 1
	// shortPlaces is how many places there are, at least, for which calls do
	// not compete that compute for long.
	shortPlaces = 2
	// short is how long a call computes before it competes with those that
	// compute for long.
	short = time.Millisecond
	// quantum is how long a call computes before others that wait come first.
	quantum = 2 * time.Millisecond
	// rest is how long a call waits, for input or an answer, for each unit of
	// time of short that it gets back.
	rest = 16
)

// Processors is how many of the runtime's processors a program needs in which
// guests may use all of cores, and still hinder nothing: for runtime.GOMAXPROCS.
func Processors(cores int) int { return cores + max(shortPlaces, cores/4) + spare }

// turns says which calls compute.
type turns struct {
	spares bool // there are processors that guests do not use
	places int  // for all calls
	longs  int  // for those that compute for long; less than places where there are enough processors

	queued atomic.Int32 // calls that wait

	mu     sync.Mutex
	taken  int     // places; guarded by mu
	long   int     // of taken; guarded by mu
	wait   [2]line // calls that were not computing yet, and those that were for long; guarded by mu
	second bool    // the last that came from the lines was of the second; guarded by mu
}

// newTurns makes the places for so many processors of the runtime: as Processors
// counts them, where there are enough.
func newTurns(processors int) *turns {
	t := &turns{places: max(1, processors-spare), spares: processors > spare}
	for t.longs = t.places; t.longs > 1 && Processors(t.longs) > processors; {
		t.longs--
	}
	return t
}

// line is the calls that wait for the same. The next is of the identity whose
// turn was longest ago, and of its modules of the one whose turn was: so what
// one of them gets does not depend on how many calls another makes.
type line struct{ identities []*waiting[*waiting[*waiter]] }

// waiting is what waits under one name, the next first.
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

// pop takes out the next call. Who it is of goes to the end.
func (l *line) pop() *waiter {
	identity := l.identities[0]
	module := identity.list[0]
	t := module.list[0]
	module.list = slices.Delete(module.list, 0, 1)
	identity.list = behind(identity.list, len(module.list) > 0)
	l.identities = behind(l.identities, len(identity.list) > 0)
	return t
}

// behind puts the first of list at its end, or, unless more of it wait, away.
func behind[T any](list []T, more bool) []T {
	first := list[0]
	list = slices.Delete(list, 0, 1)
	if more {
		list = append(list, first)
	}
	return list
}

// remove takes a call out that does not wait any longer. It reports false when
// its turn has come.
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

// take gives a call a place at once, or says how it waits for one.
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

// free reports whether there is a place for a call. Call it with mu held.
func (t *turns) free(long bool) bool {
	return t.taken < t.places && (!long || t.long < t.longs)
}

// seat takes a place. Call it with mu held.
func (t *turns) seat(long bool) {
	t.taken++
	t.long += index(long)
}

// leave gives a place to the next. The two lines come in turns, so that neither
// many short calls keep a long one from going on nor long ones a short one.
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

// forget is for a call that ended while it waited.
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

// place is that of one call.
type place struct {
	has   bool
	long  bool
	since time.Time     // it has it, or came back from the end of a quantum
	spent time.Duration // computing in places, less what it got back
	left  time.Time     // when it last gave one back
}

// compete takes care that a call which goes on computing may: it gets a place
// when it has none, and gives its own to another whose turn it is.
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
		// It waits behind those that wait already.
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

// pause gives the place of a call back that does not compute for now, or ends.
func (c *call) pause() {
	p := &c.place
	if !p.has {
		return
	}
	p.has, p.left = false, time.Now()
	p.spent += p.left.Sub(p.since)
	c.inst.m.e.turns.leave(p.long)
}
