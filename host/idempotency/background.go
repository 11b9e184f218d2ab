package idempotency

import (
	"context"
	"sync"
)

// background is the work that goes on without a caller. Its close waits for all of
// it.
type background struct {
	ctx    context.Context // done when it is closed
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool // guarded by mu
}

func newBackground() *background {
	b := &background{}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// begin reports whether work may begin: not once it is closed. If so, wg.Done must
// be called at its end.
func (b *background) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.wg.Add(1)
	return true
}

// start runs f in a goroutine of its own, and reports whether it may.
func (b *background) start(f func()) bool {
	if !b.begin() {
		return false
	}
	go func() {
		defer b.wg.Done()
		f()
	}()
	return true
}

// close ends all work and waits for it. It reports false if it was closed before.
func (b *background) close() bool {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if closed {
		return false
	}
	b.cancel()
	b.wg.Wait()
	return true
}
