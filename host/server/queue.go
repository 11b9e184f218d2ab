package server

import (
	"net"
	"sync"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

const (
	// maxQueued and maxQueuedBytes bound what a connection may have asked
	// before it was answered. Past them nothing more is read from it.
	maxQueued      = 16
	maxQueuedBytes = 2 << 20
	// drainGrace is how long, when the server stops, a request that is already
	// on its way may take to arrive on an idle connection, to be refused with the
	// reason.
	drainGrace = 100 * time.Millisecond
)

// queue holds the calls of a connection that were not answered, and the state that its
// two goroutines share. Its methods bring the reader back from where it waits by a
// read deadline.
type queue struct {
	nc *net.UnixConn

	mu     sync.Mutex // guards what follows
	change *sync.Cond // of calls, reading, pause
	// calls are in the order of their requests. The first one is running, or about to.
	calls      []*call
	reading    bool // more requests may come
	assembling bool // the reader has a request whose args frames are still to come
	waiting    bool // the reader waits for room in calls
	stopping   bool
	ending     bool      // the last answer was given
	idle       time.Time // since when calls is empty, while it is
	eviction   eviction
	pause      pause
}

// eviction is whether the connection has lost its place, and how it ends then.
type eviction int

const (
	notEvicted       eviction = iota
	evictedAtOnce             // closed once the notice is written
	evictedListening          // listened to for lingerTime; it holds a token of Server.turnedAway
)

// pause is the state of a connection for a server that is paused.
type pause struct {
	wanted      bool // no request is to begin
	interrupted bool // the read deadline is there to bring the reader back for that
	inFrame     bool // a frame has begun
	parked      bool // the reader waits until the pause is over
	handed      bool // another daemon has the connection now
}

// init makes the queue of a new connection, of which nothing was read.
func (q *queue) init(nc *net.UnixConn) {
	q.nc, q.reading, q.idle = nc, true, time.Now()
	q.change = sync.NewCond(&q.mu)
}

// next waits for a call to run. It returns nil if none will come.
func (q *queue) next() *call {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.calls) == 0 && q.reading {
		q.change.Wait()
	}
	if len(q.calls) == 0 {
		return nil
	}
	return q.calls[0]
}

// push queues a call.
func (q *queue) push(cl *call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopping && cl.refused == nil {
		cl.refused = fault.Errorf(fault.Overloaded, "the daemon is stopping; try again when it is back")
	}
	q.calls = append(q.calls, cl)
	q.change.Broadcast()
}

// setAnswered has frames that arrive from now on belong to another call than cl.
func (q *queue) setAnswered(cl *call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	cl.answered = true
}

// pop takes the answered call off the queue.
func (q *queue) pop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls[0] = nil
	q.calls = q.calls[1:]
	q.idle = time.Now()
	if q.waiting {
		q.nc.SetReadDeadline(time.Unix(1, 0))
	} else if q.idleLocked() && q.stopping {
		q.nc.SetReadDeadline(time.Now().Add(drainGrace))
	}
	q.interruptLocked()
}

// unanswered returns the oldest call without a result, or nil.
func (q *queue) unanswered() *call {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, cl := range q.calls {
		if !cl.answered {
			return cl
		}
	}
	return nil
}

// fullLocked reports whether no further request may be read.
func (q *queue) fullLocked() bool {
	return len(q.calls) >= maxQueued || len(q.calls) > 1 && q.bytesLocked() >= maxQueuedBytes
}

func (q *queue) bytesLocked() (n int) {
	for _, cl := range q.calls {
		n += cl.size
	}
	return n
}

func (q *queue) idleLocked() bool { return len(q.calls) == 0 && !q.assembling }

// idleSince reports whether nothing is asked, and since when.
func (q *queue) idleSince() (time.Time, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.idle, len(q.calls) == 0 && q.reading && !q.stopping
}

// evict ends an idle connection whose place is needed, with notice as its answer. What
// the client asked at this moment, or asks next, is answered with it and not run. It
// puts a token into turnedAway, if there is room, for listening to the client. It
// returns false if the connection is no longer idle.
func (q *queue) evict(notice *call, turnedAway chan struct{}) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.calls) > 0 || !q.reading || q.stopping {
		return false
	}
	q.stopping, q.eviction = true, evictedAtOnce
	q.calls = append(q.calls, notice)
	q.change.Broadcast()
	patience := drainGrace
	select {
	case turnedAway <- struct{}{}:
		q.eviction, patience = evictedListening, lingerTime
	default:
	}
	q.nc.SetWriteDeadline(time.Now().Add(patience)) // also of a client that reads nothing
	return true
}

// stop ends the connection after the calls that were asked for.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopping = true
	defer q.change.Broadcast()
	if q.idleLocked() {
		q.nc.SetReadDeadline(time.Now().Add(drainGrace))
	}
}

// end ends all calls of the connection for a reason, which their callers get as the
// error, and reads nothing more.
func (q *queue) end(reason *fault.Error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopping = true
	for _, cl := range q.calls {
		cl.cancel(reason)
	}
	q.change.Broadcast()
	q.nc.SetReadDeadline(time.Unix(1, 0))
}

// left ends all calls: the client is gone.
func (q *queue) left() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, cl := range q.calls {
		cl.cancel(wire.ErrLeft)
	}
}

// endReading records that the client sends no more, neither requests nor input.
func (q *queue) endReading() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reading = false
	q.change.Broadcast()
	for _, cl := range q.calls {
		if cl.input != nil {
			cl.input.end()
		}
	}
}

// finish brings the reader back after the last answer.
func (q *queue) finish() {
	q.mu.Lock()
	q.ending = true
	q.change.Broadcast()
	q.mu.Unlock()
	q.nc.SetReadDeadline(time.Unix(1, 0))
}

// setPaused has the reader wait before the next request, or continue.
func (q *queue) setPaused(paused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pause.wanted = paused
	q.interruptLocked()
	q.change.Broadcast()
}

// interruptLocked brings the reader back from where it waits for a request that must
// not begin.
func (q *queue) interruptLocked() {
	if q.pause.wanted && !q.stopping && !q.pause.inFrame && q.idleLocked() {
		q.pause.interrupted = true
		q.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// busy reports, of a paused connection, whether a call was not answered, or else
// whether a request is arriving, or it is not certain yet that none is.
func (q *queue) busy() (called, arriving bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	called = len(q.calls) > 0
	return called, !called && !q.pause.parked && q.reading
}
