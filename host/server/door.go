package server

import (
	"context"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/toold/toold/host/fault"
)

// DoorConfig is fixed once the door listens.
type DoorConfig struct {
	// Path, Lock, Mode, Admits and Logger are those of Config.
	Path  string
	Given *Given // of Config, too
	Lock  string
	Mode  os.FileMode
	// Group is that of the socket; negative: the daemon's.
	Group  int
	Admits func(Peer) error
	Logger *slog.Logger
	// MaxConns is how many connections are served at once. A further one takes the
	// place of the oldest that has begun nothing for a second or more; if there is none,
	// the further one is refused. One in 64 places is kept from a uid that holds more
	// than half of all. Default: 1024.
	MaxConns int
	// Refusal returns what a connection that is not served is sent, in the protocol of
	// the door. It is required.
	Refusal func(*fault.Error) []byte
	// Handle serves one connection, and returns when it is over; the connection is
	// closed then. stopping is closed when the server stops: what runs may finish
	// until ctx ends, with a *fault.Error as its cause. It calls begin when
	// the client asks something, before it serves that: from then on the connection keeps
	// its place, since clients are idle for days. If begin returns false, the place was
	// given away already, and the client was told so. It is required.
	Handle func(ctx context.Context, stopping <-chan struct{}, nc *net.UnixConn, p Peer, begin func() bool)
}

// Door accepts connections of a protocol that this package does not implement, under the rules
// of a Server: the kernel identifies the peer, the number of connections is bounded, and what
// was begun may finish at a stop.
type Door struct {
	config   DoorConfig
	socket   *socket
	stopping chan struct{}
	end      context.CancelCauseFunc
	ctx      context.Context
	running  sync.WaitGroup // grows under mu only, while stopped is false

	mu      sync.Mutex // guards what follows
	conns   map[*net.UnixConn]*doorConn
	held    map[uint32]int // how many of conns a uid has
	stopped bool
}

// doorConn is the state of a connection. Door.mu guards it.
type doorConn struct {
	uid   uint32
	since time.Time
	begun bool
}

// ListenDoor binds the socket, under the rules of Listen. Nothing is served before
// Serve.
func ListenDoor(config DoorConfig) (*Door, error) {
	if config.Mode == 0 {
		config.Mode = 0o660
	}
	if config.MaxConns <= 0 {
		config.MaxConns = defaultMaxConns
	}
	socket, err := openSocket(config.Given, config.Path, config.Lock, config.Mode, config.Group)
	if err != nil {
		return nil, err
	}
	d := &Door{config: config, socket: socket, stopping: make(chan struct{}), conns: map[*net.UnixConn]*doorConn{}, held: map[uint32]int{}}
	d.ctx, d.end = context.WithCancelCause(context.Background())
	return d, nil
}

// Serve accepts connections until Shutdown, or until ctx ends; then it returns nil,
// and Shutdown ends those that are there.
func (d *Door) Serve(ctx context.Context) error {
	d.socket.accept(ctx, d.config.Logger, d.admit)
	return nil
}

// admit serves a new connection, or refuses it.
func (d *Door) admit(nc *net.UnixConn) {
	_, p, err := identify(nc)
	if err != nil {
		d.config.Logger.Error("ask who connected", "error", err)
		nc.Close()
		return
	}
	if err := d.take(nc, p); err != nil {
		d.refuse(nc, err)
		return
	}
	go func() {
		defer d.running.Done()
		defer d.leave(nc)
		if err := refusal(d.config.Admits, p); err != nil {
			d.refuse(nc, err)
			return
		}
		d.config.Handle(d.ctx, d.stopping, nc, p, func() bool { return d.begin(nc) })
	}()
}

// begin makes a connection keep its place, and reports whether it still has one.
func (d *Door) begin(nc *net.UnixConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.conns[nc]
	if c == nil {
		return false
	}
	c.begun = true
	return true
}

// take takes a place for a connection of p.
func (d *Door) take(nc *net.UnixConn, p Peer) *fault.Error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.stopped:
		return fault.Errorf(fault.Overloaded, "the daemon is stopping; try again when it is back")
	case !d.roomLocked(p.UID):
		return fault.Errorf(fault.Overloaded, "the daemon already serves %d connections; try again, or raise its limit", len(d.conns))
	}
	d.conns[nc] = &doorConn{uid: p.UID, since: time.Now()}
	d.held[p.UID]++
	d.running.Add(1)
	return nil
}

// roomLocked reports whether there is a place for a further connection of uid, and makes
// one of that of a connection that has begun nothing.
func (d *Door) roomLocked(uid uint32) bool {
	places, greedy := share(d.config.MaxConns, d.held[uid])
	if len(d.conns) < places {
		return true
	}
	var oldest *net.UnixConn
	for nc, c := range d.conns {
		if !c.begun && (!greedy || c.uid == uid) && (oldest == nil || c.since.Before(d.conns[oldest].since)) {
			oldest = nc
		}
	}
	if oldest == nil || time.Since(d.conns[oldest].since) < minIdle {
		return false
	}
	d.refuse(oldest, fault.Errorf(fault.Overloaded, "the daemon gave this connection's place to another, since it asked nothing; connect again"))
	d.dropLocked(oldest)
	return true
}

// leave closes a connection and gives its place back.
func (d *Door) leave(nc *net.UnixConn) {
	nc.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropLocked(nc)
}

func (d *Door) dropLocked(nc *net.UnixConn) {
	c := d.conns[nc]
	if c == nil {
		return
	}
	delete(d.conns, nc)
	if d.held[c.uid]--; d.held[c.uid] == 0 {
		delete(d.held, c.uid)
	}
}

// refuse sends a connection, as the first thing, why it is not served, and closes
// it. The text is far smaller than the buffer of its socket: this does not block.
func (d *Door) refuse(nc *net.UnixConn, err *fault.Error) {
	nc.Write(d.config.Refusal(err))
	nc.CloseWrite()
	nc.Close()
}

// Shutdown stops the door: it closes the stopping channel of its connections, and ends
// them with ABORTED when ctx ends, as Server.Shutdown does.
func (d *Door) Shutdown(ctx context.Context) error {
	d.mu.Lock()
	if !d.stopped {
		d.stopped = true
		close(d.stopping)
	}
	d.mu.Unlock()
	d.socket.close() // which makes Serve return
	defer d.socket.release()
	return drain(ctx, &d.running, func(why *fault.Error) { d.end(why) }, func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		for nc := range d.conns {
			nc.Close()
		}
		return len(d.conns)
	})
}

// Conns returns how many connections are open now.
func (d *Door) Conns() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.conns)
}

// Pause, Resume, Copy, Leave and Claim of a Door are those of a Server. Handle must hold back
// what its connections request meanwhile; they are not passed on, since the state of their
// protocol is not known here.
func (d *Door) Pause()                { d.socket.pause() }
func (d *Door) Resume()               { d.socket.resume() }
func (d *Door) Copy() (*Given, error) { return d.socket.copy() }
func (d *Door) Leave()                { d.socket.keep() }
func (d *Door) Claim()                { d.socket.claim() }

// Path returns the path of the socket.
func (d *Door) Path() string { return d.socket.path }
