package server

import (
	"bufio"
	"context"
	"log/slog"
	"net"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// Connection is a connection between two requests, on its way from a daemon to the next. The
// kernel identifies its peer as before.
type Connection struct {
	FD int
	// Focus is what Peer.Focus points to, or empty.
	Focus string
}

// conn is one connection. Two goroutines share it: its reader takes frames from it as
// they arrive, serve runs the calls, one after the other.
type conn struct {
	nc      *net.UnixConn
	peer    Peer
	handler Handler
	log     *slog.Logger
	// turnedAway is that of the server.
	turnedAway chan struct{}
	queue      queue
	out        frameWriter
	reader     reader
}

// newConn makes a connection of nc, whose calls get the values of ctx.
func newConn(ctx context.Context, nc *net.UnixConn, h Handler, log *slog.Logger, turnedAway chan struct{}) (*conn, error) {
	raw, peer, err := identify(nc)
	if err != nil {
		return nil, err
	}
	c := &conn{nc: nc, peer: peer, handler: h, log: log, turnedAway: turnedAway, out: frameWriter{nc: nc}}
	c.queue.init(nc)
	c.reader = reader{nc: nc, raw: raw, ctx: ctx, q: &c.queue, out: &c.out, in: bufio.NewReader(nc)}
	return c, nil
}

// serve answers the requests of a connection until it ends, and closes it.
func (c *conn) serve() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.reader.read()
		c.queue.endReading()
	}()
	for {
		cl := c.queue.next()
		if cl == nil {
			break
		}
		c.answer(cl)
		c.queue.pop()
		if c.out.broken() {
			break
		}
		if cl.last {
			// Bring the reader back from where it waits for the client to
			// leave, and listen in its place.
			c.queue.finish()
			<-done
			if c.queue.eviction != evictedAtOnce {
				linger(c.nc)
			}
			break
		}
	}
	c.nc.Close()
	<-done
	if c.queue.eviction == evictedListening { // nothing evicts a connection that is no longer read
		<-c.turnedAway
	}
}

// answer runs a call and writes its result.
func (c *conn) answer(cl *call) {
	defer cl.cancel(nil)
	r := &wire.Result{Err: cl.refused}
	if cl.refused == nil {
		r = cl.run(c.handler, c.peer, c.log)
	}
	if r.ExecutionID == "" {
		r.ExecutionID = cl.ExecutionID
	}
	cl.writeText(r)
	c.queue.setAnswered(cl)
	cl.writeResult(r)
}

// evict ends an idle connection whose place is needed. It returns false if the
// connection is no longer idle.
func (c *conn) evict() bool {
	return c.queue.evict(newRefusal(c.reader.ctx, &c.out, &wire.Call{}, fault.Errorf(fault.Overloaded, "the daemon gave this connection's place to another, since it was idle; connect again"), true), c.turnedAway)
}

// leave gives a parked connection to the next daemon, and ends it here. It returns
// false if the connection is not parked, or cannot be given away.
func (c *conn) leave() (Connection, bool) {
	fd, err := c.reader.handOver()
	if err != nil {
		c.log.Error("pass on a connection", "error", err)
	}
	if fd < 0 {
		return Connection{}, false
	}
	left := Connection{FD: fd}
	if p := c.peer.Focus.Load(); p != nil {
		left.Focus = *p
	}
	return left, true
}
