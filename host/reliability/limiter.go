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
}

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
func (l *Limiter) Enter(ctx context.Context, tool string, limit, queue int) (leave func(), err error) {
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
	turn := make(chan struct{})
	t.waiting = append(t.waiting, turn)
	l.mu.Unlock()
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
