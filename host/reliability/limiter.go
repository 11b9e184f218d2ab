package reliability

import (
	"context"
	"slices"
	"sync"

	"github.com/toold/toold/host/fault"
)

// Limiter bounds how many executions of each tool run at a time. Calls that wait are
// admitted in order of arrival.
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
	asking  int          // how many of them wait for a program of their caller
	waiting []chan error // closed to admit the call, or receives the error
}

// admit gives free places to waiting calls.
func (t *places) admit() {
	for len(t.waiting) > 0 && t.in < t.limit {
		t.in++
		close(t.waiting[0])
		t.waiting = t.waiting[1:]
	}
}

// refuse refuses the waiting calls if no place becomes free before a program of a
// caller ends, since a waiting call may be made by that program.
func (t *places) refuse(tool string) {
	if t.in < t.limit || t.asking < t.in {
		return
	}
	for _, turn := range t.waiting {
		turn <- t.allAsk(tool)
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

// Enter waits for one of limit places of tool, which leave gives back. If queue calls
// wait already, the error is OVERLOADED.
//
// holds are the tools whose places are held by calls that wait for this one. If a
// call with a place of tool may itself wait for one of holds, the error is OVERLOADED
// at once: waiting could be a deadlock.
func (l *Limiter) Enter(ctx context.Context, tool string, holds []string, limit, queue int) (leave func(), err error) {
	l.mu.Lock()
	if l.byTool == nil {
		l.byTool = map[string]*places{}
	}
	t := l.byTool[tool]
	if t == nil {
		t = &places{}
		l.byTool[tool] = t
	}
	t.limit = limit // a new version of the tool may have another
	t.admit()
	leave = func() { l.leave(tool) }
	if t.in < limit {
		t.in++
		l.mu.Unlock()
		return leave, nil
	}
	if len(t.waiting) >= queue {
		l.mu.Unlock()
		return nil, fault.Errorf(fault.Overloaded, "%s has %d calls running and %d waiting; try again later", tool, t.in, queue)
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
	turn := make(chan error, 1)
	t.waiting = append(t.waiting, turn)
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
	if i := slices.Index(t.waiting, turn); i >= 0 {
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

func (l *Limiter) leave(tool string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.byTool[tool]
	t.in--
	t.admit()
	t.refuse(tool)
	if t.in == 0 && len(t.waiting) == 0 {
		delete(l.byTool, tool)
	}
}
