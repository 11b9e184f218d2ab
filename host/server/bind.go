package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openSocket adopts the socket that is given, or binds one.
func openSocket(g *Given, path, lockFile string, mode os.FileMode, group int) (*socket, error) {
	if g != nil {
		return adopt(g, path, lockFile, mode, group)
	}
	return bind(path, lockFile, mode, group)
}

// bind listens at path, which never has another mode than mode, nor another group
// than group, -1 for our own: the socket is bound inside a folder that only we can
// enter, given both, and renamed into place. A socket that a dead daemon left is
// replaced; a living daemon's, and a file that is not a socket, are left alone and are
// an error.
//
// lockFile is the path of a lock file, which a daemon of the same state folder holds
// even while it no longer has a socket. It must be where nobody else has access: whoever
// can open it can hold it. Other daemons are recognized by the socket itself: a dead
// one's takes no connection. Empty takes no lock.
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
	// Where it was in former versions. Nobody holds it: the daemon that made it is dead.
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
	// Left by a daemon that was killed between here and the end.
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

// oneAtATime makes daemons bind in a folder one after the other, until its result is
// called. Whoever can only read the folder can hold its lock as well: then binding goes
// ahead without it, and two daemons that start in the same moment may both serve.
func oneAtATime(folder string) (done func()) {
	f, err := os.Open(folder)
	if err != nil {
		return func() {} // binding fails with the same error
	}
	for end := time.Now().Add(folderPatience); ; time.Sleep(folderPatience / 200) {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil || time.Now().After(end) {
			return func() { f.Close() }
		}
	}
}

// isStale reports whether a dead daemon's socket is at path; false means that nothing
// is there. Anything else there is an error.
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
	case errors.Is(err, fs.ErrNotExist): // it was removed meanwhile
		return false, nil
	case errors.Is(err, unix.EAGAIN): // its backlog is full
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
		// What was moved away may be one that another daemon put there since.
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
		return fmt.Errorf("give it to group %d: %w; make the daemon's user a member of the group: usermod -aG, and restart the daemon", group, err)
	}
	return err
}

func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

// adopt is bind for a socket that is given: the same lock, and the same rules for
// who may connect, but whoever bound it has to set them: a file with a mode or a group
// that lets in more than asked for is an error.
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

func inGroup(info os.FileInfo, group int) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Gid) == group
}

// BoundTo returns the path to which the listening Unix socket fd was bound. It is an
// error if fd is anything else.
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
