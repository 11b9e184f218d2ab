// Package server answers calls on a Unix socket.
//
// It speaks the protocol of package wire: it promises that requests of one
// connection are answered in order, that every request is answered, whatever
// is wrong with it, and that one connection never waits for another. It knows
// nothing of tools: a Handler makes the Result of each Call. Package host is
// its caller.
//
// A call belongs to the one who made it. When its connection is closed, its
// context is cancelled; a connection that is only half closed (the client has
// nothing more to say, and waits for the answer) is not closed.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// Peer is who is at the other end of a connection, as the kernel says.
type Peer struct {
	UID uint32
	GID uint32
	PID int // 0: in a process namespace that this process cannot see
	// Ended reports whether the process has ended since, so that its number
	// may be another's. It is false where the kernel does not tell.
	Ended func() bool
	// Container returns the id of the container that the process is in, as its
	// control group is named; empty: none that is known, or the process has ended.
	Container func() string
	// Focus is the Handler's to use and is forgotten with the connection: the
	// session that calls belong to which name none. It is never nil.
	Focus *atomic.Pointer[string]
}

// Handler makes the result of a call. ctx ends when the caller leaves, when
// the server is made to stop, and when the caller breaks the protocol; its
// cause is then a *fault.Error that says so. c.ExecutionID is never empty.
//
// Stdout and Stderr of a streamed call's Result are what was not written to s:
// they are sent before the last frame. The Handler must not write to s once it
// has returned. A panic, and nil, are INTERNAL to the caller.
type Handler func(ctx context.Context, c *wire.Call, p Peer, s wire.Streams) *wire.Result

// Config is fixed once the server listens.
type Config struct {
	// Path is that of the socket, 107 bytes at most (103 where it is not
	// Linux).
	Path string
	// Given is the socket at Path where it is bound already; nil: Listen binds it.
	Given *Given
	// Lock is a file that is locked while the server lives, in a folder that only
	// this daemon and others that must not serve Path beside it can reach. Empty:
	// none; then another daemon is known only by its socket.
	Lock string
	// Mode is that of the socket. Default: 0660.
	Mode os.FileMode
	// Group is that of the socket where Grouped is set, else that of this
	// process.
	Group   int
	Grouped bool
	// MaxConns is how many connections are served at once. A further one takes
	// the place of the one that has been idle longest, for a second or more,
	// which is told OVERLOADED; where none is, the further one is. One in 64 places is kept
	// from a uid that holds more than half of all. Default: 1024.
	MaxConns int
	// Admits, where there is one, is asked once a connection. Those for whom it
	// has an error are told it and no more.
	Admits func(Peer) error
	// Handler is required.
	Handler Handler
	// Logger gets what no caller can be told. Default: slog.Default().
	Logger *slog.Logger
}

const (
	defaultMaxConns = 1024
	// lingerTime and lingerBytes bound how long the server listens to a
	// client that it has turned away, so that the client gets to read why.
	lingerTime  = 2 * time.Second
	lingerBytes = 16 << 20
	// maxTurnedAway is how many connections over the limit are listened to at
	// once.
	maxTurnedAway = 64
	// minIdle is how long a connection is idle before its place may be
	// another's: one that has just come is about to ask.
	minIdle = time.Second
	// drainGrace is how long, when the server stops, a request that is already
	// on its way may take to arrive on an idle connection, to be refused in
	// words.
	drainGrace = 100 * time.Millisecond
	// endGrace is how long handlers have to return once their calls were
	// ended.
	endGrace = 5 * time.Second
)

// Server answers calls. Make one with Listen.
type Server struct {
	config Config
	log    *slog.Logger
	socket *socket
	// turnedAway holds a token for each connection over the limit.
	turnedAway chan struct{}
	// running counts connections, those that are turned away included. It only
	// grows under mu, while stopping is false.
	running sync.WaitGroup

	mu       sync.Mutex // guards what follows
	conns    map[*conn]struct{}
	held     map[uint32]int // how many of conns are whose
	stopping bool
	paused   bool
}

// Listen binds the socket. Nobody is answered before Serve. It fails where
// another daemon serves the path, where a file that is no socket stands there,
// and where the folder is missing or not ours to write.
func Listen(config Config) (*Server, error) {
	if config.Handler == nil {
		panic("server: Config.Handler is nil")
	}
	if config.Mode == 0 {
		config.Mode = 0o660
	}
	if config.MaxConns <= 0 {
		config.MaxConns = defaultMaxConns
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if !config.Grouped {
		config.Group = -1
	}
	socket, err := openSocket(config.Given, config.Path, config.Lock, config.Mode, config.Group)
	if err != nil {
		return nil, err
	}
	return &Server{
		config: config, log: config.Logger, socket: socket,
		turnedAway: make(chan struct{}, maxTurnedAway),
		conns:      make(map[*conn]struct{}),
		held:       make(map[uint32]int),
	}, nil
}

// Serve answers calls until Shutdown, or until ctx ends; then it returns nil,
// the socket is gone, and calls still run: Shutdown ends them. Calls get the
// values of ctx, not its end.
func (s *Server) Serve(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	s.socket.accept(ctx, s.log, func(nc *net.UnixConn) { s.admit(base, nc, "") })
	return nil
}

// admit serves a new connection, whose focus is that of a daemon before this one, or
// turns it away.
func (s *Server) admit(ctx context.Context, nc *net.UnixConn, focus string) {
	c, err := newConn(s, ctx, nc)
	if err != nil {
		s.log.Error("ask who connected", "error", err)
		nc.Close()
		return
	}
	if focus != "" {
		c.peer.Focus.Store(&focus)
	}
	s.mu.Lock()
	c.paused = s.paused
	stopping := s.stopping
	admitted := !stopping && s.roomLocked(c.peer.UID)
	if !stopping {
		s.running.Add(1)
	}
	if admitted {
		s.conns[c] = struct{}{}
		s.held[c.peer.UID]++
	}
	s.mu.Unlock()
	switch {
	case stopping:
		tell(nc, fault.Errorf(fault.Overloaded, "the daemon is stopping; try again when it is back"))
		nc.Close()
	case !admitted:
		tell(nc, fault.Errorf(fault.Overloaded, "the daemon already serves %d connections; try again, or raise its limit", s.config.MaxConns))
		s.reject(nc)
	default:
		go func() {
			defer s.running.Done()
			if err := refusal(s.config.Admits, c.peer); err != nil {
				tell(nc, err)
				linger(nc)
				nc.Close()
			} else {
				c.serve()
			}
			s.mu.Lock()
			s.dropLocked(c)
			s.mu.Unlock()
		}()
	}
}

// refusal is why admits does not let p in, or nil.
func refusal(admits func(Peer) error, p Peer) *fault.Error {
	if admits == nil {
		return nil
	}
	err := admits(p)
	if err == nil {
		return nil
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		e = fault.Errorf(fault.Denied, "%w", err)
	}
	return e
}

// share returns how many connections there may be of most for a further one to find a
// place, of a uid that holds so many. Whoever holds more than half is greedy: it leaves
// one place in 64 to others, and has to give up its own.
func share(most, held int) (places int, greedy bool) {
	if held > most/2 {
		return most - most/64, true
	}
	return most, false
}

// roomLocked reports whether there is a place for a further connection of uid,
// and makes one where a connection is idle.
func (s *Server) roomLocked(uid uint32) bool {
	places, greedy := share(s.config.MaxConns, s.held[uid])
	if len(s.conns) < places {
		return true
	}
	var oldest *conn
	var since time.Time
	for c := range s.conns {
		if greedy && c.peer.UID != uid {
			continue
		}
		if t, idle := c.idleSince(); idle && (oldest == nil || t.Before(since)) {
			oldest, since = c, t
		}
	}
	if oldest == nil || time.Since(since) < minIdle || !oldest.evict() {
		return false
	}
	s.dropLocked(oldest)
	return true
}

func (s *Server) dropLocked(c *conn) {
	if _, there := s.conns[c]; !there {
		return
	}
	delete(s.conns, c)
	if s.held[c.peer.UID]--; s.held[c.peer.UID] == 0 {
		delete(s.held, c.peer.UID)
	}
}

// tell writes an error to a new connection. The frame is far smaller than the
// buffer of its socket: this does not block.
func tell(nc *net.UnixConn, err *fault.Error) {
	wire.WriteFrame(nc, wire.EncodeResult(wire.Plain, &wire.Result{Err: err}))
}

// reject closes a connection that was told why.
func (s *Server) reject(nc *net.UnixConn) {
	select {
	case s.turnedAway <- struct{}{}:
		go func() {
			defer s.running.Done()
			defer func() { <-s.turnedAway }()
			linger(nc)
			nc.Close()
		}()
	default:
		nc.Close()
		s.running.Done()
	}
}

// linger ends our half of a connection and lets the client finish what it is
// sending, within bounds. Closing at once would reset the connection, and take
// the answer away from a client that is still writing.
func linger(nc *net.UnixConn) {
	nc.CloseWrite()
	nc.SetReadDeadline(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, nc, lingerBytes)
}

// Shutdown stops the server. Calls that run finish, with their streams, and
// are answered; requests that come after are told OVERLOADED. When ctx ends
// first, the remaining calls are ended, for the reason ABORTED. It returns nil
// when nothing is left, and an error when a call has not ended five seconds
// after it was told to, its handler stuck or its caller not reading; its
// connection is closed anyway. The lock is let go of at the very end, so that
// the next daemon begins when this one is done.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	for c := range s.conns {
		c.stop()
	}
	s.mu.Unlock()
	s.socket.close() // which makes Serve return
	defer s.socket.release()

	return drain(ctx, &s.running,
		func(why *fault.Error) { s.eachConn(func(c *conn) { c.end(why) }) },
		func() (left int) {
			s.eachConn(func(c *conn) {
				left++
				c.nc.Close()
			})
			return left
		})
}

// drain waits for the connections of running. When ctx ends first, it has end end
// their calls, and after endGrace closeLeft close those that are still there, which
// is an error.
func drain(ctx context.Context, running *sync.WaitGroup, end func(why *fault.Error), closeLeft func() int) error {
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	end(fault.Errorf(fault.Aborted, "the daemon was stopped while the call ran; call again when it is back, if that is safe"))
	timer := time.NewTimer(endGrace)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	return fmt.Errorf("stop the server: %d connections had calls that did not end", closeLeft())
}

func (s *Server) eachConn(f func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		f(c)
	}
}

// Conns is how many connections are open now.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}
