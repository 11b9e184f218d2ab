package call

import (
	"context"
	"sync"
	"time"
)

// maxPause is how long the clock of a call stands still at most, in all.
const maxPause = 8 * time.Hour

// Clock is the time limit of a call that may wait for its caller: for an editor
// that somebody types into. It is a context that ends with context.DeadlineExceeded
// when the time is over that it did not stand still, and with its parent. It is safe
// for concurrent use.
type Clock struct {
	context.Context // the parent
	done            chan struct{}
	detach          func() bool // from the parent

	mu    sync.Mutex // guards what follows
	err   error
	timer *time.Timer
	// since is when left and standLeft, the time until the end and the time that the
	// clock may stand still, were true.
	since           time.Time
	left, standLeft time.Duration
	paused          int
	after           map[*func()]bool // what is run at the end
}

// NewClock begins to measure d. Stop has to be called.
func NewClock(parent context.Context, d time.Duration) *Clock {
	c := &Clock{Context: parent, done: make(chan struct{}), since: time.Now(), left: d, standLeft: maxPause, after: map[*func()]bool{}}
	c.timer = time.AfterFunc(d, func() { c.end(context.DeadlineExceeded) })
	c.detach = context.AfterFunc(parent, func() { c.end(parent.Err()) })
	return c
}

// Stop ends the context, if it has not ended.
func (c *Clock) Stop() {
	c.detach()
	c.end(context.Canceled)
}

func (c *Clock) end(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	c.timer.Stop()
	close(c.done)
	after := c.after
	c.after = nil
	c.mu.Unlock()
	for f := range after {
		go (*f)()
	}
}

// Pause has the clock stand still until resume has been called for each Pause, but
// no longer than maxPause in all. It does nothing on nil.
func (c *Clock) Pause() (resume func()) {
	if c == nil {
		return func() {}
	}
	c.step(1)
	return sync.OnceFunc(func() { c.step(-1) })
}

func (c *Clock) step(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked()
	c.paused += by
	if c.err != nil {
		return
	}
	wait := c.left
	if c.paused > 0 {
		wait += c.standLeft
	}
	c.timer.Reset(wait)
}

// settleLocked takes off what has passed.
func (c *Clock) settleLocked() {
	now := time.Now()
	passed := now.Sub(c.since)
	c.since = now
	if c.paused > 0 {
		stood := min(passed, c.standLeft)
		c.standLeft -= stood
		passed -= stood
	}
	c.left -= passed
}

// Deadline is when the context ends if the clock does not stand still from now on.
func (c *Clock) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked()
	d := c.since.Add(c.left)
	if p, ok := c.Context.Deadline(); ok && p.Before(d) {
		return p, true
	}
	return d, true
}

// Done is that of a context.
func (c *Clock) Done() <-chan struct{} { return c.done }

// Err is that of a context.
func (c *Clock) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// AfterFunc runs f in its own goroutine when the context has ended. Package context
// takes it for contexts that are made of this one, in place of a goroutine for each.
func (c *Clock) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	c.after[&f] = true
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		was := c.after[&f]
		delete(c.after, &f)
		return was
	}
}
