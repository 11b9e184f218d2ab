package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/host/wire/callbacks"
)

const (
	// maxQueued and maxQueuedBytes bound what a connection may have asked
	// before it was answered. Past them nothing more is read from it.
	maxQueued      = 16
	maxQueuedBytes = 2 << 20
	// keptBuffer is how much of its frame buffer an idle connection keeps.
	keptBuffer = 8 << 10
)

// conn is one connection. Two goroutines share it: read takes frames from it as
// they come, serve runs the calls, one after the other. read never waits for a
// call, or the signal that should end the call would wait as well; it waits
// only when a client asks far ahead.
type conn struct {
	server *Server
	nc     *net.UnixConn
	raw    syscall.RawConn
	peer   Peer
	ctx    context.Context // the values for the contexts of calls
	out    frameWriter

	// Of the reading goroutine.
	in *bufio.Reader
	// partial is a request whose args frames are still to come.
	partial *call
	// skipArgs drops the args frames of a request that was refused.
	skipArgs bool

	mu     sync.Mutex // guards what follows
	change *sync.Cond // queue, reading
	// queue holds the calls that were not answered, oldest first. The first
	// one is running, or about to.
	queue       []*call
	queuedBytes int
	reading     bool // more requests may come
	assembling  bool // partial is not nil
	waiting     bool // read waits for room in queue
	stopping    bool
	ending      bool      // the last answer was given
	paused      bool      // no request is to begin
	interrupted bool      // the read deadline is there to bring the reader back for that
	inFrame     bool      // a frame has begun
	parked      bool      // the reader waits until the connection is not paused
	handed      bool      // another daemon has the connection now
	idle        time.Time // since when queue is empty, while it is
	evicted     bool
	lingers     bool // of an evicted one: it holds a token of Server.turnedAway
}

// call is one request and what belongs to it while it runs.
type call struct {
	*wire.Call
	ctx    context.Context
	cancel context.CancelCauseFunc
	size   int
	// refused, when it is not nil, is the answer: the request was malformed.
	refused *fault.Error
	// last says that the connection ends after the answer.
	last    bool
	input   *input // nil on a call that takes no stdin frames
	signals chan os.Signal
	sizes   chan wire.Size // nil on a call that offers no terminal
	// callbacks is nil on a call that offers none.
	callbacks *callbacks.Daemon
	// takeBy says that the connection has a write deadline for this call.
	takeBy atomic.Bool
	// answered is guarded by conn.mu: the result is there, and about to be
	// written. Frames that come now are not meant for this call, or too late.
	answered bool
	// These are guarded by frameWriter.mu: the last frame was written; so was
	// standard output.
	over, wroteStdout bool
}

func newConn(s *Server, ctx context.Context, nc *net.UnixConn) (*conn, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	peer, err := peerOf(raw)
	if err != nil {
		return nil, err
	}
	peer.Focus = new(atomic.Pointer[string])
	peer.Container = sync.OnceValue(func() string { return containerOf(peer) })
	c := &conn{server: s, nc: nc, raw: raw, peer: peer, ctx: ctx, in: bufio.NewReader(nc), reading: true, idle: time.Now()}
	c.out.nc = nc
	c.change = sync.NewCond(&c.mu)
	return c, nil
}

// serve answers the requests of a connection until it ends, and closes it.
func (c *conn) serve() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.read()
		c.endReading()
	}()
	for {
		cl := c.next()
		if cl == nil {
			break
		}
		c.answer(cl)
		c.pop()
		if c.out.broken() {
			break
		}
		if cl.last {
			// Bring the reader back from where it waits for the client to
			// leave, and listen in its place.
			c.mu.Lock()
			c.ending = true
			c.change.Broadcast()
			c.mu.Unlock()
			c.nc.SetReadDeadline(time.Unix(1, 0))
			<-done
			if !c.evicted || c.lingers {
				linger(c.nc)
			}
			break
		}
	}
	c.nc.Close()
	<-done
	if c.lingers {
		<-c.server.turnedAway
	}
}

// next waits for a call to run. It is nil when none will come.
func (c *conn) next() *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) == 0 && c.reading {
		c.change.Wait()
	}
	if len(c.queue) == 0 {
		return nil
	}
	return c.queue[0]
}

// push queues a call.
func (c *conn) push(cl *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping && cl.refused == nil {
		cl.refused = fault.Errorf(fault.Overloaded, "the daemon is stopping; try again when it is back")
	}
	c.queue = append(c.queue, cl)
	c.queuedBytes += cl.size
	c.change.Broadcast()
}

// pop takes the answered call off the queue.
func (c *conn) pop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queuedBytes -= c.queue[0].size
	c.queue[0] = nil
	c.queue = c.queue[1:]
	c.idle = time.Now()
	if c.waiting {
		c.nc.SetReadDeadline(time.Unix(1, 0))
	} else if c.idleLocked() && c.stopping {
		c.nc.SetReadDeadline(time.Now().Add(drainGrace))
	}
	c.interruptLocked()
}

func (c *conn) idleLocked() bool { return len(c.queue) == 0 && !c.assembling }

// idleSince reports whether nothing is asked, and since when.
func (c *conn) idleSince() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle, len(c.queue) == 0 && c.reading && !c.stopping
}

// evict ends an idle connection whose place is needed. What the client asked at
// this moment, or asks next, has its answer: it was not run. It is false when
// the connection is idle no more.
func (c *conn) evict() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) > 0 || !c.reading || c.stopping {
		return false
	}
	c.stopping, c.evicted = true, true
	c.queue = append(c.queue, c.refusal(&wire.Call{}, fault.Errorf(fault.Overloaded, "the daemon gave this connection's place to another, since it was idle; connect again"), true))
	c.change.Broadcast()
	patience := drainGrace
	select {
	case c.server.turnedAway <- struct{}{}:
		c.lingers, patience = true, lingerTime
	default:
	}
	c.nc.SetWriteDeadline(time.Now().Add(patience)) // also of a client that reads nothing
	return true
}

// stop lets the calls that were asked for finish, and then ends the connection.
func (c *conn) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	defer c.change.Broadcast()
	if c.idleLocked() {
		c.nc.SetReadDeadline(time.Now().Add(drainGrace))
	}
}

// end ends all calls of the connection, for a reason that their callers are
// told, and reads nothing more from it.
func (c *conn) end(reason *fault.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	for _, cl := range c.queue {
		cl.cancel(reason)
	}
	c.change.Broadcast()
	c.nc.SetReadDeadline(time.Unix(1, 0))
}

// left ends all calls: the client is gone.
func (c *conn) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leftLocked()
}

func (c *conn) leftLocked() {
	for _, cl := range c.queue {
		cl.cancel(wire.ErrLeft)
	}
}

// read takes frames from the connection until no more can come.
func (c *conn) read() {
	for {
		if !c.awaitRoom() {
			return
		}
		var frame []byte
		err := c.awaitFrame()
		if err == nil {
			frame, err = wire.ReadFrame(c.in)
		}
		switch tooLarge := (*fault.Error)(nil); {
		case err == nil:
			c.take(frame)
			continue
		case errors.As(err, &tooLarge):
			c.abandonPartial(fault.Errorf(fault.InvalidEnvelope, "the last args frame did not come: %s", tooLarge.Message))
			c.push(c.refusal(&wire.Call{}, tooLarge, true))
		case errors.Is(err, io.EOF):
			c.abandonPartial(fault.Errorf(fault.InvalidEnvelope, "the connection ended before the last args frame; the one with \"more\": false is the last"))
		case errors.Is(err, io.ErrUnexpectedEOF):
			c.abandonPartial(fault.Errorf(fault.InvalidEnvelope, "the connection ended within an args frame"))
			c.push(c.refusal(&wire.Call{}, fault.Errorf(fault.InvalidEnvelope, "the request: the connection ended within the frame"), true))
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
			return // the server stops
		default:
			c.left()
			return
		}
		break
	}
	// Nothing more will be read. A client that half closed the connection
	// still waits for its answers; one that closed it does not.
	c.endReading()
	if c.awaitHangup() == nil {
		c.left()
	}
}

// awaitRoom waits until further requests may be queued. It is false when the
// connection ended.
func (c *conn) awaitRoom() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) >= maxQueued || c.queuedBytes >= maxQueuedBytes && len(c.queue) > 1 {
		c.waiting = true
		c.mu.Unlock()
		err := c.awaitHangup()
		c.mu.Lock()
		c.waiting = false
		switch {
		case err == nil:
			c.leftLocked()
			return false
		case errors.Is(err, net.ErrClosed):
			return false
		case c.stopping && c.idleLocked():
			c.nc.SetReadDeadline(time.Now().Add(drainGrace))
		default:
			c.nc.SetReadDeadline(time.Time{})
		}
	}
	return true
}

// awaitHangup returns nil when the client has closed the connection, both ways,
// and the error of a read deadline or of closing otherwise.
//
// Reading cannot tell: it says EOF for a client that closed and for one that
// only said its last word. The kernel's poll can: POLLHUP is both ways.
func (c *conn) awaitHangup() error {
	return c.raw.Read(func(fd uintptr) bool {
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

// take handles one whole frame.
func (c *conn) take(frame []byte) {
	message, err := wire.Parse(frame)
	var refused *fault.Error
	errors.As(err, &refused)
	switch m := message.(type) {
	case *wire.Call:
		c.abandonPartial(fault.Errorf(fault.InvalidEnvelope, "/more: is true, but another request came in place of the args frames"))
		c.skipArgs = false
		switch {
		case refused != nil:
			c.skipArgs = true
			c.push(c.refusal(m, refused, false))
		case m.More:
			c.setPartial(c.newCall(m, len(frame)))
		default:
			c.push(c.newCall(m, len(frame)))
		}
	case *wire.Typed:
		c.takeTyped(m, refused, len(frame))
	}
}

// takeTyped handles a frame that belongs to a call: args to the one that is
// being assembled, others to the oldest that was not answered. refused says
// what is wrong with it, if something is.
func (c *conn) takeTyped(t *wire.Typed, refused *fault.Error, size int) {
	if t.Type == wire.TypeArgs && c.skipArgs {
		return
	}
	if t.Type == wire.TypeArgs && c.partial != nil {
		if refused == nil {
			errors.As(c.partial.Extend(t), &refused)
		}
		switch cl := c.partial; {
		case refused != nil:
			c.abandonPartial(refused)
			c.skipArgs = true
		case !cl.More:
			cl.size += size
			c.setPartial(nil)
			c.push(cl)
		default:
			cl.size += size
		}
		return
	}
	cl := c.current()
	switch known := t.Type == wire.TypeStdin || t.Type == wire.TypeSignal || t.Type == wire.TypeResize || t.Type == wire.TypeCallback || t.Type == wire.TypeArgs; {
	case refused != nil && (cl == nil || !known):
		c.push(c.refusal(&wire.Call{}, refused, false))
	case cl == nil || cl.refused != nil:
		// Too late: the call has its result.
	case refused != nil:
		// Part of what the client sends to the call is lost; going on
		// without it could do something else than what was asked.
		cl.cancel(refused)
	case t.Type == wire.TypeArgs:
		cl.cancel(fault.Errorf(fault.InvalidEnvelope, "an args frame came, but the request had no \"more\": true"))
	case t.Type == wire.TypeSignal:
		select {
		case cl.signals <- t.Signal:
		default: // as many wait as anyone could mean
		}
	case t.Type == wire.TypeResize && cl.sizes == nil:
		cl.cancel(fault.Errorf(fault.InvalidEnvelope, "a resize frame came, but the request has no \"tty\""))
	case t.Type == wire.TypeResize:
		select {
		case <-cl.sizes: // which is not its size any more
		default:
		}
		cl.sizes <- t.Size // this goroutine alone sends
	case t.Type == wire.TypeCallback && cl.callbacks == nil:
		cl.cancel(fault.Errorf(fault.InvalidEnvelope, "a callback frame came, but the request has no \"callbacks\""))
	case t.Type == wire.TypeCallback:
		if err := cl.callbacks.Receive(t.Callback); err != nil {
			cl.cancel(err)
		}
	case cl.input == nil:
		cl.cancel(fault.Errorf(fault.InvalidEnvelope, "a stdin frame came, but the request is not streamed, or brought its input with it"))
	default:
		if err := cl.input.receive(t.Data, t.EOF); err != nil {
			cl.cancel(err)
		}
	}
}

// current is the call that typed frames go to.
func (c *conn) current() *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cl := range c.queue {
		if !cl.answered {
			return cl
		}
	}
	return c.partial
}

func (c *conn) setPartial(cl *call) {
	c.partial = cl
	c.mu.Lock()
	defer c.mu.Unlock()
	c.assembling = cl != nil
}

// abandonPartial refuses the request whose args frames will not come.
func (c *conn) abandonPartial(reason *fault.Error) {
	if cl := c.partial; cl != nil {
		cl.refused = reason
		c.push(cl)
		c.setPartial(nil)
	}
}

// endReading says that the client sends no more, neither requests nor input.
func (c *conn) endReading() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = false
	c.change.Broadcast()
	for _, cl := range c.queue {
		if cl.input != nil {
			cl.input.end()
		}
	}
}

func (c *conn) newCall(m *wire.Call, size int) *call {
	cl := &call{Call: m, size: size, signals: make(chan os.Signal, 8)}
	cl.ctx, cl.cancel = context.WithCancelCause(c.ctx)
	if m.ExecutionID == "" {
		m.ExecutionID = wire.NewExecutionID()
	}
	if m.Stream && m.Stdin == nil {
		cl.input = newInput(cl.ctx, func(frame []byte) error { return c.out.frame(cl, frame) })
	}
	if m.TTY != nil && cl.input != nil {
		cl.sizes = make(chan wire.Size, 1)
	}
	if len(m.Callbacks) > 0 && m.Stream {
		cl.callbacks = callbacks.New(func(frame []byte) error { return c.out.frame(cl, frame) })
	}
	return cl
}

// refusal is a request that is answered with an error in its turn.
func (c *conn) refusal(m *wire.Call, err *fault.Error, last bool) *call {
	cl := &call{Call: m, refused: err, last: last}
	cl.ctx, cl.cancel = context.WithCancelCause(c.ctx)
	return cl
}

// answer runs a call and writes its result.
func (c *conn) answer(cl *call) {
	defer cl.cancel(nil)
	r := &wire.Result{Err: cl.refused}
	if cl.refused == nil {
		r = c.run(cl)
	}
	if r.ExecutionID == "" {
		r.ExecutionID = cl.ExecutionID
	}
	if cl.Stream {
		// Text that the handler did not write itself; a failure is that of the
		// result, too.
		stdout := output{c, cl, wire.TypeStdout}
		stdout.Write(r.Stdout)
		output{c, cl, wire.TypeStderr}.Write(r.Stderr)
		if cl.Form == wire.Plain && r.Data != nil && !c.out.wrote(cl) {
			stdout.Write(wire.DataText(r.Data))
		}
	}
	c.mu.Lock()
	cl.answered = true
	c.mu.Unlock()
	if cl.Stream {
		c.out.result(cl, wire.EncodeStreamResult(cl.Form, r))
	} else {
		c.out.result(cl, wire.EncodeResult(cl.Form, r))
	}
	if cl.takeBy.Load() {
		c.nc.SetWriteDeadline(time.Time{})
	}
}

// run calls the handler.
func (c *conn) run(cl *call) *wire.Result {
	if cl.ctx.Err() != nil {
		if broken := brokenBy(cl); broken != nil {
			return &wire.Result{Err: broken}
		}
		// It never began, so nothing speaks against trying again.
		return &wire.Result{Err: fault.Errorf(fault.Overloaded, "the daemon stopped before the call began; try again when it is back")}
	}
	s := wire.Streams{Signals: cl.signals}
	if cl.Stream {
		s.Stdout, s.Stderr = output{c, cl, wire.TypeStdout}, output{c, cl, wire.TypeStderr}
		s.Progress = func(data json.RawMessage) error {
			frame, err := wire.EncodeProgress(data)
			if err != nil {
				return err
			}
			return c.out.frame(cl, frame)
		}
		s.Tell = func(list []json.RawMessage) error { return c.out.events(cl, list) }
		s.TakeBy = func(t time.Time) {
			cl.takeBy.Store(true)
			c.nc.SetWriteDeadline(t)
		}
	}
	if cl.callbacks != nil {
		s.Callback = cl.callbacks.Run
	}
	if cl.input != nil {
		defer cl.input.Close()
		defer context.AfterFunc(cl.ctx, func() { cl.input.fail(context.Cause(cl.ctx)) })()
		s.Stdin, s.Steer = cl.input.open, cl.input.steer
		if cl.sizes != nil {
			s.Terminal = &wire.Terminal{TTY: *cl.TTY, Open: cl.input.openTerminal, Sizes: cl.sizes}
			if cl.TTY.Jobs {
				s.Terminal.Stopped = func() { c.out.frame(cl, wire.EncodeStopped()) }
			}
		}
	}
	began := time.Now()
	r := c.handle(cl, s)
	if r.Duration == 0 {
		r.Duration = time.Since(began)
	}
	// A caller that broke the protocol is told so, whatever came of its call.
	if broken := brokenBy(cl); broken != nil {
		r.Err, r.Ran = broken, false
	}
	return r
}

// brokenBy is what the caller did wrong to a call that was ended for it, else
// nil.
func brokenBy(cl *call) *fault.Error {
	if broken := (*fault.Error)(nil); errors.As(context.Cause(cl.ctx), &broken) && broken.Code == fault.InvalidEnvelope {
		return broken
	}
	return nil
}

// handle calls the handler and turns a panic into INTERNAL.
func (c *conn) handle(cl *call, s wire.Streams) (r *wire.Result) {
	defer func() {
		if p := recover(); p != nil {
			c.server.log.Error("a handler panicked", "tool", cl.Tool, "execution_id", cl.ExecutionID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			r = nil
		}
		if r == nil {
			r = &wire.Result{Err: fault.Errorf(fault.Internal, "the daemon failed in this call, %s; its log has the reason", cl.ExecutionID)}
		}
	}()
	return c.server.config.Handler(cl.ctx, cl.Call, c.peer, s)
}

// output sends what a tool writes to one of its streams.
type output struct {
	conn *conn
	call *call
	typ  string
}

func (o output) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		part := p[n:min(len(p), n+wire.MaxChunk)]
		if err := o.conn.out.chunk(o.call, o.typ, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return len(p), nil
}

// frameWriter writes whole frames to a connection, from many goroutines.
type frameWriter struct {
	nc  *net.UnixConn
	mu  sync.Mutex // guards what follows, writing to nc, and call.over
	buf []byte
	err error // of the first write that failed: no further one makes sense
}

var errOver = errors.New("write to a call that is over")

func (w *frameWriter) chunk(cl *call, typ string, p []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cl.over {
		return errOver
	}
	cl.wroteStdout = cl.wroteStdout || typ == wire.TypeStdout
	w.buf = wire.AppendChunk(w.buf[:0], typ, p)
	return w.flushLocked()
}

// broken reports whether a write has failed, and the rest of a frame with it.
func (w *frameWriter) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// wrote reports whether the call has sent anything to standard output.
func (w *frameWriter) wrote(cl *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cl.wroteStdout
}

func (w *frameWriter) frame(cl *call, json []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cl.over {
		return errOver
	}
	return w.jsonLocked(json)
}

// events writes the frames of several events at once.
func (w *frameWriter) events(cl *call, list []json.RawMessage) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cl.over {
		return errOver
	}
	w.buf = w.buf[:0]
	for _, event := range list {
		var err error
		if w.buf, err = wire.AppendEvent(w.buf, event); err != nil {
			return err
		}
	}
	err := w.flushLocked()
	if cap(w.buf) > keptBuffer {
		w.buf = nil
	}
	return err
}

// result writes the last frame of a call.
func (w *frameWriter) result(cl *call, json []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cl.over = true
	w.jsonLocked(json)
	if cap(w.buf) > keptBuffer {
		w.buf = nil
	}
}

func (w *frameWriter) jsonLocked(json []byte) error {
	frame, err := wire.AppendFrame(w.buf[:0], json)
	if err != nil {
		return err
	}
	w.buf = frame
	return w.flushLocked()
}

func (w *frameWriter) flushLocked() error {
	if w.err == nil {
		_, w.err = w.nc.Write(w.buf)
	}
	return w.err
}
