package reliability

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/toold/toold/host/fault"
)

// Limiter bounds how many executions of each tool run at a time. Of the calls that wait,
// one of the caller with the fewest places goes first, and of these the one that came
// first. Where as many wait as may, a call of a caller with fewer calls takes the place of
// the last one of the caller with the most: whoever floods a tool keeps out its own
// calls, and another's wait for those that run, not for those that wait.
type Limiter struct {
	mu     sync.Mutex
	byTool map[string]*places // guarded by mu; an entry only while a call is in or waits
	// waits counts the calls that hold a place of one tool and wait for one of
	// another. Guarded by mu; an entry only while there are any.
	waits map[hold]int
}

// hold is a call that has a place of the tool holds, itself or through a call that
// waits for it, and waits for a place of the tool waits.
type hold struct{ holds, waits string }

type places struct {
	limit   int // of the call that came last
	in      int
	by      map[string]int // how many of in are whose
	asking  int            // of those who are in, how many wait for a program of their caller
	waiting []waiter       // by order of arrival
}

// waiter is a call that waits for a place.
type waiter struct {
	caller string
	turn   chan error // closed by who lets it in; or it has the error
}

// take has a call of caller in.
func (t *places) take(caller string) {
	t.in++
	t.by[caller]++
}

// admit gives free places to waiting calls.
func (t *places) admit() {
	for len(t.waiting) > 0 && t.in < t.limit {
		next := 0
		for i, w := range t.waiting {
			if t.by[w.caller] < t.by[t.waiting[next].caller] {
				next = i
			}
		}
		t.take(t.waiting[next].caller)
		close(t.waiting[next].turn)
		t.waiting = slices.Delete(t.waiting, next, next+1)
	}
}

// yield sends away the last waiting call of the caller that has the most calls, running
// and waiting, where that has at least two more than caller. It reports whether it did.
func (t *places) yield(tool, caller string) bool {
	calls, most := maps.Clone(t.by), t.waiting[0].caller
	for _, w := range t.waiting {
		calls[w.caller]++
	}
	for _, w := range t.waiting {
		if calls[w.caller] > calls[most] {
			most = w.caller
		}
	}
	if calls[most] < calls[caller]+2 {
		return false
	}
	for i, w := range slices.Backward(t.waiting) {
		if w.caller == most {
			w.turn <- fault.Errorf(fault.Overloaded, "%s has %d calls running and %d waiting, most of them this caller's, and another caller's came; try again later", tool, t.in, len(t.waiting))
			t.waiting = slices.Delete(t.waiting, i, i+1)
			break
		}
	}
	return true
}

// refuse sends those away who wait, where no place becomes free before a program of a
// caller ends: it may be a call of that program that waits.
func (t *places) refuse(tool string) {
	if t.in < t.limit || t.asking < t.in {
		return
	}
	for _, w := range t.waiting {
		w.turn <- t.allAsk(tool)
	}
	t.waiting = nil
}

func (t *places) allAsk(tool string) error {
	return fault.Errorf(fault.Overloaded, "%s has %d calls running, and all of them wait for programs of their callers, which may wait for this one; try again later, or raise limits.concurrency in tool.json", tool, t.in)
}

// Asking returns the function that a call with a place of tool calls when a program
// of its caller begins, which may make calls itself. That function returns one to
// call when the program has ended. Several programs may run at a time. While all
// calls with a place wait for such programs, no call waits for a place.
func (l *Limiter) Asking(tool string) (begin func() (ended func())) {
	n := 0 // guarded by mu
	step := func(by int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		t, was := l.byTool[tool], n
		if n += by; (was > 0) == (n > 0) {
			return
		}
		t.asking += by
		t.refuse(tool)
	}
	return func() func() {
		step(1)
		return sync.OnceFunc(func() { step(-1) })
	}
}

// Enter waits for one of limit places of tool for a call of caller. The place is given
// up by calling leave. With queue waiting already it is OVERLOADED, as is one of those
// that wait where these are not caller's.
//
// holds are the tools of which calls have a place that wait for this one. Where
// those who have the places of tool may themselves wait for one of holds, it is
// OVERLOADED at once: waiting could have no end.
func (l *Limiter) Enter(ctx context.Context, tool, caller string, holds []string, limit, queue int) (leave func(), err error) {
	l.mu.Lock()
	if l.byTool == nil {
		l.byTool = map[string]*places{}
	}
	t := l.byTool[tool]
	if t == nil {
		t = &places{by: map[string]int{}}
		l.byTool[tool] = t
	}
	t.limit = limit // a new version of the tool may have another
	t.admit()
	leave = func() { l.leave(tool, caller) }
	if t.in < limit {
		t.take(caller)
		l.mu.Unlock()
		return leave, nil
	}
	if l.mayWaitFor(tool, holds) {
		l.mu.Unlock()
		return nil, fault.Errorf(fault.Overloaded, "%s has %d calls running, and one of them may wait for the call that made this one; try again later, or raise limits.concurrency in tool.json", tool, t.in)
	}
	if t.asking >= t.in {
		err := t.allAsk(tool)
		l.mu.Unlock()
		return nil, err
	}
	if n := len(t.waiting); n >= queue && (n == 0 || !t.yield(tool, caller)) {
		err := fault.Errorf(fault.Overloaded, "%s has %d calls running and %d waiting; try again later", tool, t.in, queue)
		l.mu.Unlock()
		return nil, err
	}
	turn := make(chan error, 1)
	t.waiting = append(t.waiting, waiter{caller, turn})
	l.waitFor(tool, holds, 1)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waitFor(tool, holds, -1)
	}()
	select {
	case err := <-turn:
		if err != nil {
			return nil, err
		}
		return leave, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	if i := slices.IndexFunc(t.waiting, func(w waiter) bool { return w.turn == turn }); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		l.mu.Unlock()
		return nil, ctx.Err()
	}
	l.mu.Unlock()
	if err := <-turn; err != nil {
		return nil, err
	}
	// The place was granted concurrently: pass it on.
	leave()
	return nil, ctx.Err()
}

// mayWaitFor reports whether a call with a place of tool may wait, itself or through
// others, for a place of one of holds.
func (l *Limiter) mayWaitFor(tool string, holds []string) bool {
	if len(holds) == 0 {
		return false
	}
	reached := []string{tool}
	for i := 0; i < len(reached); i++ {
		if slices.Contains(holds, reached[i]) {
			return true
		}
		for h := range l.waits {
			if h.holds == reached[i] && !slices.Contains(reached, h.waits) {
				reached = append(reached, h.waits)
			}
		}
	}
	return false
}

// waitFor adds n to the count of calls that hold places of holds and wait for one of
// tool.
func (l *Limiter) waitFor(tool string, holds []string, n int) {
	for _, name := range holds {
		h := hold{name, tool}
		if l.waits == nil {
			l.waits = map[hold]int{}
		}
		if l.waits[h] += n; l.waits[h] == 0 {
			delete(l.waits, h)
		}
	}
}

func (l *Limiter) leave(tool, caller string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.byTool[tool]
	t.in--
	if t.by[caller]--; t.by[caller] == 0 {
		delete(t.by, caller)
	}
	t.admit()
	t.refuse(tool)
	if t.in == 0 && len(t.waiting) == 0 {
		delete(l.byTool, tool)
	}
}
