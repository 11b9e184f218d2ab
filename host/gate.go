package host

import (
	"context"
	"sync"

	"github.com/toold/toold/host/wire"
)

// gates bound how many executions of each tool run at a time. Who waits is let
// in by order of arrival.
type gates struct {
	mu     sync.Mutex
	byTool map[string]*gate // guarded by mu; an entry only while somebody is in or waits
}

type gate struct {
	in      int
	waiting []chan struct{} // closed by the one who gives up the place
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
	leave = func() { g.leave(tool) }
	if t.in < limit && len(t.waiting) == 0 {
		t.in++
		g.mu.Unlock()
		return leave, nil
	}
	if len(t.waiting) >= queue {
		g.mu.Unlock()
		return nil, wire.Errorf(wire.Overloaded, "%s has %d calls running and %d waiting; try again later", tool, limit, queue)
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
	for i, w := range t.waiting {
		if w == turn {
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			g.mu.Unlock()
			return nil, ctx.Err()
		}
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
	if len(t.waiting) > 0 {
		close(t.waiting[0])
		t.waiting = t.waiting[1:]
		return
	}
	if t.in--; t.in == 0 {
		delete(g.byTool, tool)
	}
}
