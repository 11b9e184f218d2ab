package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Given is a listening socket that this process did not bind: systemd did, or the
// daemon before this one.
type Given struct {
	// FD is the descriptor. It belongs to whoever listens with it.
	FD int
	// Own says that a daemon bound it; who serves it last removes its file. The
	// files of others, such as systemd's, stay.
	Own bool
}

// Connection is one that is between two requests, on its way from a daemon to the
// next. The kernel says of it who connected, as it did before.
type Connection struct {
	FD int
	// Focus is what Peer.Focus points to, or empty.
	Focus string
}

// BoundTo is the path to which the listening Unix socket fd was bound. It is an
// error where fd is something else.
func BoundTo(fd int) (string, error) {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err == nil && kind == unix.SOCK_STREAM {
		listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if name, failed := unix.Getsockname(fd); err == nil && failed == nil && listens != 0 {
			if at, ok := name.(*unix.SockaddrUnix); ok {
				return at.Name, nil
			}
		}
	}
	return "", errors.New("it is not a listening stream socket of Unix; its unit has to have ListenStream= with a path")
}

// adopt is bind for a socket that is given: the same lock, and the same rules for
// who may connect, but they are the binder's to set: a file with a mode or a group
// that lets in more than wanted is an error.
func adopt(g *Given, path, lockFile string, mode os.FileMode, group int) (_ *socket, err error) {
	f := os.NewFile(uintptr(g.FD), path)
	defer f.Close()
	defer func() {
		if err != nil {
			err = fmt.Errorf("listen on %s with the socket that was passed: %w", path, err)
		}
	}()
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, errors.New("there is a file that is not a socket; move it away or choose another path")
	case info.Mode().Perm()&^mode.Perm() != 0:
		return nil, fmt.Errorf("its mode is %04o and lets in more than %04o; set SocketMode=%04o in its unit, or the mode in toold.json", info.Mode().Perm(), mode.Perm(), mode.Perm())
	case group >= 0 && !inGroup(info, group):
		return nil, fmt.Errorf("its group is not %d; set SocketGroup= in its unit", group)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, errors.New("it is not a Unix socket")
	}
	ul.SetUnlinkOnClose(false)
	s := &socket{UnixListener: ul, path: path, info: info}
	s.hold.kept, s.hold.own = true, g.Own
	if lockFile != "" {
		if s.lock, err = acquire(lockFile); err != nil {
			l.Close()
			return nil, err
		}
	}
	return s, nil
}

// openSocket adopts the socket that is given, or binds one.
func openSocket(g *Given, path, lockFile string, mode os.FileMode, group int) (*socket, error) {
	if g != nil {
		return adopt(g, path, lockFile, mode, group)
	}
	return bind(path, lockFile, mode, group)
}

// hold is what pauses a socket.
type hold struct {
	mu      sync.Mutex
	resumed chan struct{} // not nil while it is paused
	held    bool          // accept waits for it
	kept    bool          // the file stays when the socket is closed
	own     bool          // of one that was adopted: it is ours to remove once it is claimed
}

// keep leaves the socket's file where it is when the socket is closed.
func (s *socket) keep() {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	s.hold.kept = true
}

// claim has the file of an adopted socket go with it, where a daemon bound it. Before,
// the daemon that passed it on may yet take it back.
func (s *socket) claim() {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	if s.hold.own {
		s.hold.kept = false
	}
}

// pause leaves connections in the kernel's queue until resume, or close.
func (s *socket) pause() {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	if s.hold.resumed == nil {
		s.hold.resumed = make(chan struct{})
		s.SetDeadline(time.Unix(1, 0))
	}
}

func (s *socket) resume() {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	if s.hold.resumed != nil {
		s.SetDeadline(time.Time{})
		close(s.hold.resumed)
		s.hold.resumed = nil
	}
}

// endHold has accept notice that the socket is closed, without having accepted what
// is for another daemon.
func (s *socket) endHold() {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	if s.hold.resumed != nil {
		close(s.hold.resumed)
		s.hold.resumed = nil
	}
}

func (s *socket) isKept() bool {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	return s.hold.kept
}

// await waits in accept until the socket is no longer paused.
func (s *socket) await(done <-chan struct{}) {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	resumed := s.hold.resumed
	if resumed == nil {
		return
	}
	s.hold.held = true
	s.hold.mu.Unlock()
	select {
	case <-resumed:
	case <-done:
	}
	s.hold.mu.Lock()
	s.hold.held = false
}

// heldListener is a socket that can be paused, for who accepts by itself.
type heldListener struct{ *socket }

func (l heldListener) Accept() (net.Conn, error) {
	for {
		nc, err := l.AcceptUnix()
		if err == nil {
			return nc, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
		l.await(nil)
	}
}

// isHeld reports whether nothing is being accepted.
func (s *socket) isHeld() bool {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	return s.hold.held
}

// copy is the listening socket for another process, or for this one when it has
// closed its own.
func (s *socket) copy() (*Given, error) {
	fd, err := duplicate(s.UnixListener)
	if err != nil {
		return nil, fmt.Errorf("pass on the socket %s: %w", s.path, err)
	}
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	return &Given{FD: fd, Own: !s.hold.kept || s.hold.own}, nil
}

// duplicate is another descriptor of c. Unlike File it leaves the socket as it is:
// one that blocks would block its other owner as well.
func duplicate(c syscall.Conn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var fd int
	var failed error
	if err := raw.Control(func(p uintptr) { fd, failed = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return -1, err
	}
	return fd, failed
}

// Pause accepts no more connections and begins no more requests until Resume: they
// wait, the connections in the kernel's queue. What was asked before is answered.
func (s *Server) Pause() {
	s.socket.pause()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = true
	for c := range s.conns {
		c.setPaused(true)
	}
}

// Resume ends what Pause began.
func (s *Server) Resume() {
	s.mu.Lock()
	s.paused = false
	for c := range s.conns {
		c.setPaused(false)
	}
	s.mu.Unlock()
	s.socket.resume()
}

// Busy says of a paused server how many connections have a call that was not
// answered, and how many are sending a request or are not known to be idle yet.
func (s *Server) Busy() (calls, partial int) {
	if !s.socket.isHeld() {
		partial++
	}
	s.eachConn(func(c *conn) {
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case len(c.queue) > 0:
			calls++
		case !c.parked && c.reading:
			partial++
		}
	})
	return calls, partial
}

// Copy is the listening socket, for the daemon that comes next.
func (s *Server) Copy() (*Given, error) { return s.socket.copy() }

// Leave takes the idle connections from a paused server, for the daemon that comes
// next, and has the socket's file stay.
func (s *Server) Leave() (conns []Connection) {
	s.socket.keep()
	s.eachConn(func(c *conn) {
		if fd, ok := c.leave(); ok {
			focus := ""
			if p := c.peer.Focus.Load(); p != nil {
				focus = *p
			}
			conns = append(conns, Connection{FD: fd, Focus: focus})
		}
	})
	return conns
}

// Take serves a connection that the daemon before this one has left.
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

// setPaused has the reader wait before the next request, or go on.
func (c *conn) setPaused(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = paused
	c.interruptLocked()
	c.change.Broadcast()
}

// interruptLocked brings the reader back from where it waits for a request that it
// is not to begin.
func (c *conn) interruptLocked() {
	if c.paused && !c.stopping && !c.inFrame && c.idleLocked() {
		c.interrupted = true
		c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

// awaitFrame waits until a frame begins. While the connection is paused and idle it
// reads nothing: what the client sends stays in the socket, for whoever reads next.
func (c *conn) awaitFrame() error {
	for {
		c.mu.Lock()
		c.inFrame = false
		c.interruptLocked()
		c.mu.Unlock()
		_, err := c.in.Peek(1)
		c.mu.Lock()
		if err != nil && c.interrupted && errors.Is(err, os.ErrDeadlineExceeded) {
			for c.paused && !c.stopping && !c.ending && c.idleLocked() {
				c.parked = true
				c.change.Wait()
			}
			c.parked = false
		}
		if c.handed {
			c.mu.Unlock()
			return net.ErrClosed
		}
		again := c.interrupted && !c.stopping && !c.ending
		if again {
			c.interrupted = false
			c.nc.SetReadDeadline(time.Time{})
		}
		if err == nil {
			c.inFrame = true
		}
		c.mu.Unlock()
		if err == nil || !again || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// leave gives away a parked connection, and ends it here.
func (c *conn) leave() (fd int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.parked || c.in.Buffered() > 0 {
		return -1, false
	}
	fd, err := duplicate(c.nc)
	if err != nil {
		c.server.log.Error("pass on a connection", "error", err)
		return -1, false
	}
	c.handed, c.stopping = true, true
	c.change.Broadcast()
	return fd, true
}

// Claim says that this daemon serves the socket that it was given.
func (s *Server) Claim() { s.socket.claim() }

// Pause, Resume, Copy, Leave and Claim of an Admin are those of a Server; requests that are
// being answered go on, and its connections are not passed on.
func (a *Admin) Pause()                { a.socket.pause() }
func (a *Admin) Resume()               { a.socket.resume() }
func (a *Admin) Copy() (*Given, error) { return a.socket.copy() }
func (a *Admin) Leave()                { a.socket.keep() }
func (a *Admin) Claim()                { a.socket.claim() }

// Pause, Resume, Copy, Leave and Claim of a Door are those of a Server. What its
// connections ask meanwhile is for Handle to let wait; they are not passed on, for
// what was agreed on them is not known here.
func (d *Door) Pause()                { d.socket.pause() }
func (d *Door) Resume()               { d.socket.resume() }
func (d *Door) Copy() (*Given, error) { return d.socket.copy() }
func (d *Door) Leave()                { d.socket.keep() }
func (d *Door) Claim()                { d.socket.claim() }

func inGroup(info os.FileInfo, group int) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Gid) == group
}

// Path is that of the socket.
func (s *Server) Path() string { return s.socket.path }
func (d *Door) Path() string   { return d.socket.path }
func (a *Admin) Path() string  { return a.socket.path }
