package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// reader takes frames from a connection as they arrive. It never waits for a call, or
// the signal that should end the call would wait as well; it waits only when a client
// asks far ahead. One goroutine owns it, but handOver.
type reader struct {
	nc  *net.UnixConn
	raw syscall.RawConn
	ctx context.Context // the values for the contexts of calls
	q   *queue
	out *frameWriter
	in  *bufio.Reader
	// partial is a request whose args frames are still to come.
	partial *call
	// skipArgs drops the args frames of a request that was refused.
	skipArgs bool
}

// read takes frames from the connection until no more can come.
func (r *reader) read() {
	for {
		if !r.awaitRoom() {
			return
		}
		var frame []byte
		err := r.awaitFrame()
		if err == nil {
			frame, err = wire.ReadFrame(r.in)
		}
		switch tooLarge := (*fault.Error)(nil); {
		case err == nil:
			r.take(frame)
			continue
		case errors.As(err, &tooLarge):
			r.abandonPartial(fault.Errorf(fault.InvalidEnvelope, "the last args frame did not come: %s", tooLarge.Message))
			r.refuse(&wire.Call{}, tooLarge, true)
		case errors.Is(err, io.EOF):
			r.abandonPartial(fault.Errorf(fault.InvalidEnvelope, "the connection ended before the last args frame; the one with \"more\": false is the last"))
		case errors.Is(err, io.ErrUnexpectedEOF):
			r.abandonPartial(fault.Errorf(fault.InvalidEnvelope, "the connection ended within an args frame"))
			r.refuse(&wire.Call{}, fault.Errorf(fault.InvalidEnvelope, "the request: the connection ended within the frame"), true)
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
			return // the server stops
		default:
			r.q.left()
			return
		}
		break
	}
	// Nothing more will be read. A client that half closed the connection
	// still waits for its answers; one that closed it does not.
	r.q.endReading()
	if r.awaitHangup() == nil {
		r.q.left()
	}
}

// awaitRoom waits until further requests may be queued. It returns false if the
// connection ended.
func (r *reader) awaitRoom() bool {
	q := r.q
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.fullLocked() {
		q.waiting = true
		q.mu.Unlock()
		err := r.awaitHangup()
		if err == nil {
			q.left()
		}
		q.mu.Lock()
		q.waiting = false
		switch {
		case err == nil, errors.Is(err, net.ErrClosed):
			return false
		case q.stopping && q.idleLocked():
			r.nc.SetReadDeadline(time.Now().Add(drainGrace))
		default:
			r.nc.SetReadDeadline(time.Time{})
		}
	}
	return true
}

// awaitHangup returns nil when the client has closed the connection in both directions,
// and otherwise the error of a read deadline or of closing.
//
// Reading cannot tell: it returns EOF both for a client that closed and for one that
// only closed its half. The kernel's poll can: POLLHUP is both directions.
func (r *reader) awaitHangup() error {
	return r.raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		for {
			n, err := unix.Poll(p, 0)
			if err == unix.EINTR {
				continue
			}
			return n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
		}
	})
}

// awaitFrame waits until a frame begins. While the connection is paused and idle it
// reads nothing: what the client sends stays in the socket, for whoever reads next.
func (r *reader) awaitFrame() error {
	q := r.q
	for {
		q.mu.Lock()
		q.pause.inFrame = false
		q.interruptLocked()
		q.mu.Unlock()
		_, err := r.in.Peek(1)
		q.mu.Lock()
		if err != nil && q.pause.interrupted && errors.Is(err, os.ErrDeadlineExceeded) {
			for q.pause.wanted && !q.stopping && !q.ending && q.idleLocked() {
				q.pause.parked = true
				q.change.Wait()
			}
			q.pause.parked = false
		}
		if q.pause.handed {
			q.mu.Unlock()
			return net.ErrClosed
		}
		again := q.pause.interrupted && !q.stopping && !q.ending
		if again {
			q.pause.interrupted = false
			r.nc.SetReadDeadline(time.Time{})
		}
		if err == nil {
			q.pause.inFrame = true
		}
		q.mu.Unlock()
		if err == nil || !again || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// handOver returns a descriptor of the connection for another daemon, and ends it here;
// -1 and no error if the reader is not parked. Any goroutine may call it.
func (r *reader) handOver() (fd int, err error) {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	if !r.q.pause.parked || r.in.Buffered() > 0 {
		return -1, nil
	}
	if fd, err = duplicate(r.nc); err != nil {
		return -1, err
	}
	r.q.pause.handed, r.q.stopping = true, true
	r.q.change.Broadcast()
	return fd, nil
}

// take handles one whole frame.
func (r *reader) take(frame []byte) {
	message, err := wire.Parse(frame)
	var refused *fault.Error
	errors.As(err, &refused)
	switch m := message.(type) {
	case *wire.Call:
		r.abandonPartial(fault.Errorf(fault.InvalidEnvelope, "/more: is true, but another request came in place of the args frames"))
		r.skipArgs = false
		switch {
		case refused != nil:
			r.skipArgs = true
			r.refuse(m, refused, false)
		case m.More:
			r.setPartial(newCall(r.ctx, r.out, m, len(frame)))
		default:
			r.q.push(newCall(r.ctx, r.out, m, len(frame)))
		}
	case *wire.Typed:
		r.takeTyped(m, refused, len(frame))
	}
}

// takeTyped handles a frame that belongs to a call: args to the one that is
// being assembled, others to the oldest that was not answered. refused is what
// is wrong with it, or nil.
func (r *reader) takeTyped(t *wire.Typed, refused *fault.Error, size int) {
	if t.Type == wire.TypeArgs && r.skipArgs {
		return
	}
	if t.Type == wire.TypeArgs && r.partial != nil {
		r.extend(t, refused, size)
		return
	}
	cl := r.q.unanswered()
	if cl == nil {
		cl = r.partial
	}
	switch known := t.Type == wire.TypeStdin || t.Type == wire.TypeSignal || t.Type == wire.TypeResize || t.Type == wire.TypeCallback || t.Type == wire.TypeArgs; {
	case refused != nil && (cl == nil || !known):
		r.refuse(&wire.Call{}, refused, false)
	case cl == nil || cl.refused != nil:
		// Too late: the call has its result.
	case refused != nil:
		// Part of what the client sends to the call is lost; without it, the call
		// could do something else than was asked.
		cl.cancel(refused)
	default:
		cl.take(t)
	}
}

// extend adds an args frame of size bytes to the partial request.
func (r *reader) extend(t *wire.Typed, refused *fault.Error, size int) {
	if refused == nil {
		errors.As(r.partial.Extend(t), &refused)
	}
	if refused != nil {
		r.abandonPartial(refused)
		r.skipArgs = true
		return
	}
	cl := r.partial
	cl.size += size
	if !cl.More {
		r.setPartial(nil)
		r.q.push(cl)
	}
}

func (r *reader) setPartial(cl *call) {
	r.partial = cl
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	r.q.assembling = cl != nil
}

// abandonPartial refuses the request whose args frames will not come.
func (r *reader) abandonPartial(reason *fault.Error) {
	if cl := r.partial; cl != nil {
		cl.refused = reason
		r.q.push(cl)
		r.setPartial(nil)
	}
}

// refuse queues a refusal of m; with last, the connection ends after it.
func (r *reader) refuse(m *wire.Call, err *fault.Error, last bool) {
	r.q.push(newRefusal(r.ctx, r.out, m, err, last))
}
