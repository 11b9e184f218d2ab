// Package server answers calls on a Unix socket.
//
// It speaks the protocol of package wire: it promises that requests of one
// connection are answered in order, that every request is answered, whatever
// is wrong with it, and that one connection never waits for another. A Handler
// makes the Result of each Call. Package host is its caller.
//
// The context of a call ends when its connection is closed. A connection that is
// only half closed (the client sends nothing more, and waits for the answer) is
// not closed.
//
// The files build on each other in this order: peer.go, admission.go, socket.go,
// bind.go; writer.go, input.go, call.go, queue.go, reader.go, conn.go; and above
// them server.go, door.go and admin.go, which nothing else uses.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// Config is fixed once the server listens.
type Config struct {
	// Path is that of the socket, 107 bytes at most (103 where it is not
	// Linux).
	Path string
	// Given is the socket at Path if it is bound already; nil: Listen binds it.
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
	// which gets OVERLOADED; if there is none, the further one gets it. One in 64 places is kept
	// from a uid that holds more than half of all. Default: 1024.
	MaxConns int
	// Admits, unless it is nil, is called once per connection. A connection for which
	// it returns an error gets that error and nothing more.
	Admits func(Peer) error
	// Handler is required.
	Handler Handler
	// Logger gets the errors that no caller can get. Default: slog.Default().
	Logger *slog.Logger
}

// maxTurnedAway is how many connections over the limit are listened to at
// once.
const maxTurnedAway = 64

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
	held     map[uint32]int // how many of conns a uid has
	stopping bool
	paused   bool
}

// Listen binds the socket. Nothing is answered before Serve. It fails if
// another daemon serves the path, if there is a file that is not a socket,
// and if the folder is missing or not writable.
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
// values of ctx, but do not end with it.
func (s *Server) Serve(ctx context.Context) error {
	base := context.WithoutCancel(ctx)
	s.socket.accept(ctx, s.log, func(nc *net.UnixConn) { s.admit(base, nc, "") })
	return nil
}

// admit serves a new connection, or turns it away. focus is what an earlier daemon
// left in Peer.Focus.
func (s *Server) admit(ctx context.Context, nc *net.UnixConn, focus string) {
	c, err := newConn(ctx, nc, s.config.Handler, s.log, s.turnedAway)
	if err != nil {
		s.log.Error("ask who connected", "error", err)
		nc.Close()
		return
	}
	if focus != "" {
		c.peer.Focus.Store(&focus)
	}
	s.mu.Lock()
	c.queue.pause.wanted = s.paused
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
		if t, idle := c.queue.idleSince(); idle && (oldest == nil || t.Before(since)) {
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

// reject closes a connection that got the reason.
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

// Shutdown stops the server. Running calls finish, with their streams, and are answered; later
// requests get OVERLOADED. When ctx ends first, the remaining calls are ended with ABORTED. It
// returns nil when nothing is left, and an error if a call has not ended five seconds after its
// context did, because its handler is stuck or its caller does not read; its connection is
// closed anyway. The lock is released at the very end, so that the next daemon starts when this
// one is done.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	for c := range s.conns {
		c.queue.stop()
	}
	s.mu.Unlock()
	s.socket.close() // which makes Serve return
	defer s.socket.release()

	return drain(ctx, &s.running,
		func(why *fault.Error) { s.eachConn(func(c *conn) { c.queue.end(why) }) },
		func() (left int) {
			s.eachConn(func(c *conn) {
				left++
				c.nc.Close()
			})
			return left
		})
}

func (s *Server) eachConn(f func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		f(c)
	}
}

// Conns returns how many connections are open now.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Pause stops accepting connections and beginning requests until Resume: they wait, the
// connections in the kernel's queue. Earlier requests are answered.
func (s *Server) Pause() {
	s.socket.pause()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = true
	for c := range s.conns {
		c.queue.setPaused(true)
	}
}

// Resume ends a Pause.
func (s *Server) Resume() {
	s.mu.Lock()
	s.paused = false
	for c := range s.conns {
		c.queue.setPaused(false)
	}
	s.mu.Unlock()
	s.socket.resume()
}

// Busy returns how many connections of a paused server have an unanswered call, and how many
// are sending a request or are not known to be idle yet.
func (s *Server) Busy() (calls, partial int) {
	if !s.socket.isHeld() {
		partial++
	}
	s.eachConn(func(c *conn) {
		called, arriving := c.queue.busy()
		if called {
			calls++
		}
		if arriving {
			partial++
		}
	})
	return calls, partial
}

// Copy returns the listening socket, for the next daemon.
func (s *Server) Copy() (*Given, error) { return s.socket.copy() }

// Leave removes the idle connections from a paused server, for the next daemon, and keeps the
// socket's file.
func (s *Server) Leave() (conns []Connection) {
	s.socket.keep()
	s.eachConn(func(c *conn) {
		if left, ok := c.leave(); ok {
			conns = append(conns, left)
		}
	})
	return conns
}

// Take serves a connection that the previous daemon has left.
func (s *Server) Take(from Connection) error {
	f := os.NewFile(uintptr(from.FD), s.config.Path)
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("take over a connection: %w", err)
	}
	unixConn, ok := nc.(*net.UnixConn)
	if !ok {
		nc.Close()
		return errors.New("take over a connection: it is not one of a Unix socket")
	}
	s.admit(context.Background(), unixConn, from.Focus)
	return nil
}

// Claim makes this daemon the owner of the socket that was passed to it.
func (s *Server) Claim() { s.socket.claim() }

// Path returns the path of the socket.
func (s *Server) Path() string { return s.socket.path }
