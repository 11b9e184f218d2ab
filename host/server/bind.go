package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/regular"
)

// socket is a bound Unix socket and, where there is one, the lock that says that its
// daemon lives.
type socket struct {
	*net.UnixListener
	path string
	// info is the socket's file, so that only our own is ever removed.
	info os.FileInfo
	lock *os.File
	hold hold
	// Both happen once: what has our names afterwards may be another daemon's.
	unlinked, released sync.Once
}

// bind listens at path, which is never there with another mode than mode, nor with
// another group than group, -1 for our own: the socket is bound inside a folder that
// only we can enter, given both, and renamed into place. A socket that a dead daemon left is replaced; a living
// daemon's, and a file that is no socket, are left alone and are an error.
//
// lock is the path of a lock file, which a daemon of the same state folder holds also
// while it has no socket any more. It must be where nobody else comes: who can open
// it can hold it. Of others the socket itself tells: a dead daemon's takes no
// connection. Empty takes no lock.
func bind(path, lockFile string, mode os.FileMode, group int) (*socket, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("listen on %s: the path has %d bytes, a socket's has at most %d; choose a shorter one", path, len(path), maxPath)
	}
	var lock *os.File
	if lockFile != "" {
		var err error
		if lock, err = acquire(lockFile); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", path, err)
		}
	}
	s, err := bindLocked(path, mode, group)
	if err != nil {
		release(lock)
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// Where it was in former versions. It is nobody's now: who made it is dead.
	if info, err := os.Lstat(path + ".lock"); lockFile != path+".lock" && err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		os.Remove(path + ".lock")
	}
	s.lock = lock
	return s, nil
}

// bindLocked is bind, for the holder of the lock.
func bindLocked(path string, mode os.FileMode, group int) (*socket, error) {
	defer oneAtATime(filepath.Dir(path))()
	stale, err := isStale(path)
	if err != nil {
		return nil, err
	}
	parent, base := filepath.Dir(path), filepath.Base(path)
	// What a daemon left that was killed between here and the end.
	if old, err := filepath.Glob(filepath.Join(parent, escapeGlob("."+base)+".*")); err == nil {
		for _, dir := range old {
			os.Remove(filepath.Join(dir, "s"))
			os.Remove(filepath.Join(dir, "o"))
			os.Remove(dir)
		}
	}
	dir, err := os.MkdirTemp(parent, "."+base+".*") // 0700
	if err != nil {
		return nil, err
	}
	defer os.Remove(dir)
	inside, err := shortPath(dir)
	if err != nil {
		return nil, err
	}
	defer inside.close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: inside.name + "/s"})
	if err != nil {
		return nil, err
	}
	// It would remove what it was bound to; the file has another name soon.
	l.SetUnlinkOnClose(false)
	hidden := filepath.Join(dir, "s")
	s := &socket{UnixListener: l, path: path}
	if err = giveTo(hidden, group); err == nil {
		err = os.Chmod(hidden, mode)
	}
	if err == nil {
		if s.info, err = os.Lstat(hidden); err == nil {
			err = replace(path, dir, inside.name, stale)
		}
	}
	if err != nil {
		l.Close()
		os.Remove(hidden)
		return nil, err
	}
	return s, nil
}

// folderPatience is how long a daemon waits for another one that binds in its folder.
const folderPatience = 2 * time.Second

// oneAtATime has daemons bind in a folder one after the other, until its result is
// called. Who only reads the folder can hold its lock as well: then it is done
// without, and of daemons that start in the same moment two may believe to serve.
func oneAtATime(folder string) (done func()) {
	f, err := os.Open(folder)
	if err != nil {
		return func() {} // binding says so
	}
	for end := time.Now().Add(folderPatience); ; time.Sleep(folderPatience / 200) {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil || time.Now().After(end) {
			return func() { f.Close() }
		}
	}
}

// isStale reports whether a dead daemon's socket is at path; without one nothing is
// there. The error says what else is.
func isStale(path string) (bool, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode().Type() != fs.ModeSocket:
		return false, errors.New("there is a file that is not a socket; move it away or choose another path")
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		conn.Close()
		return false, errInUse
	case errors.Is(err, unix.ECONNREFUSED):
		return true, nil
	case errors.Is(err, fs.ErrNotExist): // it went meanwhile
		return false, nil
	case errors.Is(err, unix.EAGAIN): // it has more to accept than it may
		return false, errInUse
	}
	return false, fmt.Errorf("find out whether a daemon serves it: %w; stop that daemon, or give this one another path", err)
}

// replace puts the socket in dir, a folder of ours, at path. Another daemon may do the
// same at this moment: nothing is replaced that is not known to be dead.
func replace(path, dir, inside string, stale bool) error {
	if stale {
		old := filepath.Join(dir, "o")
		if err := os.Rename(path, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// What was taken away may be the one that a daemon put there since.
		if _, err := isStale(inside + "/o"); err != nil {
			return errors.Join(err, place(old, path))
		}
		defer os.Remove(old)
	}
	err := place(filepath.Join(dir, "s"), path)
	if errors.Is(err, fs.ErrExist) {
		return errInUse
	}
	return err
}

// giveTo gives the file at path to group, -1 for none.
func giveTo(path string, group int) error {
	if group < 0 {
		return nil
	}
	err := os.Lchown(path, -1, group)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("give it to group %d: %w; make the daemon's user a member of the group: usermod -aG, and start the daemon anew", group, err)
	}
	return err
}

// errInUse is what a second daemon is told.
var errInUse = errors.New("another daemon serves this socket; stop it, or give this one another path")

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

// release ends the claim to the path; the last thing that a daemon does.
func (s *socket) release() { s.released.Do(func() { release(s.lock) }) }

// acquire takes the lock that a living daemon holds. The kernel lets go of it
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

// release removes the lock file while it is held, and lets go of it.
func release(f *os.File) {
	if f == nil {
		return
	}
	os.Remove(f.Name())
	f.Close()
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
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
		// Out of descriptors, most likely: those who are served will give
		// some back.
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
