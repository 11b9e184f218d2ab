package guest

import (
	"context"
	"sync"
	"time"
)

// pool keeps instances in the state of the snapshot for the next calls.
//
// An instance that served one identity serves no other. One whose call ended with an
// error, a trap or an abort is never returned to the pool.
type pool struct {
	mu     sync.Mutex
	idle   []*instance   // most recently used last; guarded by mu
	making chan struct{} // closed when the instance being created ahead is done; nil: none; guarded by mu
	closed bool          // guarded by mu
	sweep  *time.Timer   // closes instances idle for too long; guarded by mu
}

// idleTime is how long an unused instance is kept.
const idleTime = 30 * time.Second

// ahead is the number of instances created before they are needed.
const ahead = 1

// take returns an instance in the state of the snapshot.
func (m *Module) take(ctx context.Context, identity string) (*instance, error) {
	if m.snap == nil {
		in, err := m.initialized(ctx, nil)
		if err != nil {
			return nil, err
		}
		return in, nil
	}
	if in := m.pool.get(identity); in != nil {
		m.prewarm()
		for i, p := range in.parts() {
			// It may write all of its memory while it runs.
			if p.mem == nil || p.mem.held >= int64(m.snap.states[i].mem.size) {
				continue
			}
			more := int64(m.snap.states[i].mem.size) - p.mem.held
			if !m.e.makeRoom(more, m) {
				in.close()
				return nil, m.overloaded()
			}
			p.mem.held += more
		}
		return in, nil
	}
	m.prewarm()
	in, err := m.instantiate(m.snap, nil)
	if err != nil {
		return nil, err
	}
	in.identity, in.served = identity, true
	return in, nil
}

// get takes out an idle instance for an identity. It prefers one that already served
// this identity over one that served nobody.
func (p *pool) get(identity string) *instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := -1
	for i := len(p.idle) - 1; i >= 0; i-- {
		in := p.idle[i]
		if in.served && in.identity == identity {
			at = i
			break
		}
		if !in.served && at < 0 {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	in := p.idle[at]
	p.idle = append(p.idle[:at], p.idle[at+1:]...)
	in.identity, in.served = identity, true
	return in
}

// put returns an instance after a call. It closes the instance if the pool already has
// as many as the expected number of concurrent calls.
func (m *Module) put(in *instance) {
	for _, p := range in.parts() {
		if p.mem != nil {
			p.mem.hold(p.own)
		}
	}
	p := &m.pool
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		in.close()
		return
	}
	in.idle = time.Now()
	p.idle = append(p.idle, in)
	var out *instance
	if len(p.idle) > m.spec.Concurrency {
		out = p.idle[0] // the one idle for longest
		p.idle = append(p.idle[:0], p.idle[1:]...)
	}
	if p.sweep == nil {
		p.sweep = time.AfterFunc(idleTime, m.shrinkPool)
	}
	p.mu.Unlock()
	if out != nil {
		out.close()
	}
}

// prewarm creates a pristine instance in the background if there is none.
func (m *Module) prewarm() {
	p := &m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.snap == nil || p.closed || p.making != nil || len(p.idle) >= m.spec.Concurrency {
		return
	}
	n := 0
	for _, in := range p.idle {
		if !in.served {
			n++
		}
	}
	if n >= ahead {
		return
	}
	done := make(chan struct{})
	p.making = done
	go func() {
		defer close(done)
		in, err := m.instantiate(m.snap, nil)
		if err == nil {
			m.put(in)
		}
		p.mu.Lock()
		p.making = nil
		p.mu.Unlock()
	}()
}

// shrinkPool closes instances that have not been used for a while, except the one that
// is kept ahead.
func (m *Module) shrinkPool() {
	p := &m.pool
	p.mu.Lock()
	var out []*instance
	keep := p.idle[:0]
	pristine := 0
	for _, in := range p.idle {
		if !in.served && pristine < ahead {
			pristine++
			keep = append(keep, in)
		} else if time.Since(in.idle) >= idleTime {
			out = append(out, in)
		} else {
			keep = append(keep, in)
		}
	}
	clear(p.idle[len(keep):])
	p.idle = keep
	p.sweep = nil
	if len(keep) > pristine && !p.closed {
		p.sweep = time.AfterFunc(idleTime, m.shrinkPool)
	}
	p.mu.Unlock()
	for _, in := range out {
		in.close()
	}
}

// drop closes idle instances to free memory for others. It reports whether there were
// any.
func (p *pool) drop() bool {
	p.mu.Lock()
	out := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, in := range out {
		in.close()
	}
	return len(out) > 0
}

// shut closes the pool and waits for the instance being created.
func (p *pool) shut() {
	p.mu.Lock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
	p.mu.Unlock()
	p.settle()
	p.drop()
}

// open undoes shut.
func (p *pool) open() {
	p.mu.Lock()
	p.closed = false
	p.mu.Unlock()
}

// settle waits for the instance being created.
func (p *pool) settle() {
	p.mu.Lock()
	making := p.making
	p.mu.Unlock()
	if making != nil {
		<-making
	}
}

// makeRoom takes n bytes from the account. If there are too few, it closes idle
// instances, those of other modules first.
func (e *Engine) makeRoom(n int64, own *Module) bool {
	if e.memory.take(n) {
		return true
	}
	e.mu.Lock()
	mods := make([]*Module, 0, len(e.modules)+1)
	for m := range e.modules {
		if m != own {
			mods = append(mods, m)
		}
	}
	e.mu.Unlock()
	for _, m := range append(mods, own) {
		if m.pool.drop() && e.memory.take(n) {
			return true
		}
	}
	return e.memory.take(n)
}
