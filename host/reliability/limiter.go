package reliability

import (
	"context"
	"slices"
	"sync"

	"github.com/toold/toold/host/fault"
)

// Limiter bounds how many executions of each tool run at a time. Who waits is let
// in by order of arrival.
type Limiter struct {
	mu     sync.Mutex
	byTool map[string]*places // guarded by mu; an entry only while somebody is in or waits
	// waits counts the calls that hold a place of one tool and wait for one of
	// another. Guarded by mu; an entry only while there are any.
	waits map[hold]int
}

// hold is a call in a place of holds, or one that it waits for, which waits for a
// place of waits.
type hold struct{ holds, waits string }

type places struct {
	limit   int // as the last who came had it
	in      int
	waiting []chan struct{} // closed by who lets them in
}

// admit gives the places that are free to those who wait.
func (t *places) admit() {
	for len(t.waiting) > 0 && t.in < t.limit {
		t.in++
		close(t.waiting[0])
		t.waiting = t.waiting[1:]
	}
}

// Enter waits for one of limit places of tool. The place is given up by
// calling leave. With queue waiting already it is OVERLOADED.
//
// holds are the tools of which calls have a place that wait for this one. Where
// those who have the places of tool may themselves wait for one of holds, it is
// OVERLOADED at once: waiting could have no end.
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
		return nil, fault.Errorf(fault.Overloaded, "%s has %d calls running, and one of them may wait for the call that asks for this one; try again later, or raise limits.concurrency in tool.json", tool, t.in)
	}
	turn := make(chan struct{})
	t.waiting = append(t.waiting, turn)
	l.waitFor(tool, holds, 1)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waitFor(tool, holds, -1)
	}()
	select {
	case <-turn:
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
	// The place came at the same moment: pass it on.
	leave()
	return nil, ctx.Err()
}

// mayWaitFor reports whether a call in a place of tool may wait, itself or through
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

// waitFor adds n calls that hold places of holds and wait for one of tool.
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
	if t.in == 0 && len(t.waiting) == 0 {
		delete(l.byTool, tool)
	}
}
