package host

import (
	"context"
	"slices"
	"sync"

	"github.com/toold/toold/host/fault"
)

// gates bound how many executions of each tool run at a time. Who waits is let
// in by order of arrival.
type gates struct {
	mu     sync.Mutex
	byTool map[string]*gate // guarded by mu; an entry only while somebody is in or waits
}

type gate struct {
	limit   int // as the last who came had it
	in      int
	waiting []chan struct{} // closed by who lets them in
}

// letIn gives the places that are free to those who wait.
func (t *gate) letIn() {
	for len(t.waiting) > 0 && t.in < t.limit {
		t.in++
		close(t.waiting[0])
		t.waiting = t.waiting[1:]
	}
}

// enter waits for one of limit places of tool. The place is given up by
// calling leave. With queue waiting already it is OVERLOADED.
func (g *gates) enter(ctx context.Context, tool string, limit, queue int) (leave func(), err error) {
	g.mu.Lock()
	if g.byTool == nil {
		g.byTool = map[string]*gate{}
	}
	t := g.byTool[tool]
	if t == nil {
		t = &gate{}
		g.byTool[tool] = t
	}
	t.limit = limit // a new version of the tool may have another
	t.letIn()
	leave = func() { g.leave(tool) }
	if t.in < limit {
		t.in++
		g.mu.Unlock()
		return leave, nil
	}
	if len(t.waiting) >= queue {
		g.mu.Unlock()
		return nil, fault.Errorf(fault.Overloaded, "%s has %d calls running and %d waiting; try again later", tool, t.in, queue)
	}
	turn := make(chan struct{})
	t.waiting = append(t.waiting, turn)
	g.mu.Unlock()
	select {
	case <-turn:
		return leave, nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	if i := slices.Index(t.waiting, turn); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		g.mu.Unlock()
		return nil, ctx.Err()
	}
	g.mu.Unlock()
	// The place came at the same moment: pass it on.
	leave()
	return nil, ctx.Err()
}

func (g *gates) leave(tool string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.byTool[tool]
	t.in--
	t.letIn()
	if t.in == 0 && len(t.waiting) == 0 {
		delete(g.byTool, tool)
	}
}
