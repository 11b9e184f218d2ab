package call

import (
	"context"
	"sync"
	"time"
)

// maxPause is the longest total time that the clock of a call can be paused.
const maxPause = 8 * time.Hour

// Clock is the time limit of a call that may wait for its caller, such as for an editor that somebody types into. It
// is a context that ends with context.DeadlineExceeded when the time that it was not paused exceeds the limit, and
// with its parent. It is safe for concurrent use.
type Clock struct {
	context.Context // the parent
	done            chan struct{}
	detach          func() bool // from the parent

	mu    sync.Mutex // guards the fields below
	err   error
	timer *time.Timer
	// since is when left and standLeft were computed: the time until the end, and the remaining time that the clock
	// may be paused.
	since           time.Time
	left, standLeft time.Duration
	paused          int
	after           map[*func()]bool // functions to run at the end
}

// NewClock starts a clock with the limit d. Stop must be called.
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

// Pause pauses the clock until resume has been called for each Pause, but for no longer than maxPause in total. It
// does nothing on nil.
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

// settleLocked subtracts the elapsed time.
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

// Deadline returns when the context ends if the clock is not paused from now on.
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

// Done implements context.Context.
func (c *Clock) Done() <-chan struct{} { return c.done }

// Err implements context.Context.
func (c *Clock) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// AfterFunc runs f in its own goroutine when the context has ended. Package context calls it for derived contexts
// instead of starting a goroutine for each.
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
