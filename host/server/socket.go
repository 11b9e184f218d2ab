package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/regular"
)

// Given is a listening socket that this process did not bind: systemd did, or an
// earlier daemon.
type Given struct {
	// FD is the descriptor. Listening takes ownership of it.
	FD int
	// Own means that a daemon bound it; the last one to serve it removes its file. The
	// files of others, such as systemd's, stay.
	Own bool
}

// hold is the state of pausing a socket, and of its file.
type hold struct {
	mu      sync.Mutex    // guards what follows
	resumed chan struct{} // not nil while it is paused
	held    bool          // accept waits for it
	kept    bool          // the file stays when the socket is closed
	own     bool          // of one that was adopted: it is ours to remove once it is claimed
}

// socket is a bound Unix socket and, if there is one, the lock that a living daemon
// holds.
type socket struct {
	*net.UnixListener
	path string
	// info is the socket's file, so that only our own is ever removed.
	info os.FileInfo
	lock *os.File
	hold hold
	// Both happen once: files with our names may be another daemon's afterwards.
	unlinked, released sync.Once
}

// accept gives admit each new connection until s is closed, by ctx at the latest.
func (s *socket) accept(ctx context.Context, log *slog.Logger, admit func(*net.UnixConn)) {
	defer context.AfterFunc(ctx, s.close)()
	var delay time.Duration
	for {
		nc, err := s.AcceptUnix()
		if err == nil {
			delay = 0
			admit(nc)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.await(ctx.Done())
			continue
		}
		// Out of descriptors, most likely: connections that end will release
		// some.
		delay = min(max(2*delay, 5*time.Millisecond), time.Second)
		log.Error("accept a connection", "error", err, "again_in", delay)
		timer := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// close removes the socket's file, where it is still ours, and stops listening,
// in this order: the kernel gives the file's number to no other file while we
// listen.
func (s *socket) close() {
	s.unlinked.Do(func() {
		defer s.endHold()
		if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.info) && !s.isKept() {
			os.Remove(s.path)
		}
		s.UnixListener.Close()
	})
}

// release gives up the lock; the last thing that a daemon does.
func (s *socket) release() { s.released.Do(func() { release(s.lock) }) }

// keep leaves the socket's file where it is when the socket is closed.
func (s *socket) keep() {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	s.hold.kept = true
}

// claim makes the file of an adopted socket go with it, if a daemon bound it. Before,
// the daemon that passed it on may still take it back.
func (s *socket) claim() {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	if s.hold.own {
		s.hold.kept = false
	}
}

func (s *socket) isKept() bool {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	return s.hold.kept
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

// endHold makes accept notice that the socket is closed, without accepting connections
// that are for another daemon.
func (s *socket) endHold() {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	if s.hold.resumed != nil {
		close(s.hold.resumed)
		s.hold.resumed = nil
	}
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

// isHeld reports whether nothing is being accepted.
func (s *socket) isHeld() bool {
	s.hold.mu.Lock()
	defer s.hold.mu.Unlock()
	return s.hold.held
}

// heldListener is a socket that can be paused, for a server that accepts by itself.
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

// copy returns the listening socket for another process, or for this one when it has
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

// duplicate returns another descriptor of c. Unlike File it leaves the socket as it is:
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

// errInUse is the error of a second daemon.
var errInUse = errors.New("another daemon serves this socket; stop it, or give this one another path")

// acquire takes the lock that a living daemon holds. The kernel releases it
// when the daemon dies, however it dies.
func acquire(path string) (*os.File, error) {
	for {
		f, err := regular.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, errInUse
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// Whoever held it before may have removed the file that we opened.
		held, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		if now, err := os.Lstat(path); err == nil && os.SameFile(held, now) {
			return f, nil
		}
		f.Close()
	}
}

// release removes the lock file while it is held, and then the lock.
func release(f *os.File) {
	if f == nil {
		return
	}
	os.Remove(f.Name())
	f.Close()
}
