//go:build linux

package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestNoMomentWithOtherPermissions asks the kernel what happened to the path: the
// socket must come there by a rename, and its mode must not change afterwards.
func TestNoMomentWithOtherPermissions(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	for _, mode := range []os.FileMode{0o660, 0o600, 0o666} {
		dir := t.TempDir()
		path := filepath.Join(dir, "tool.sock")
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_ALL_EVENTS); err != nil {
			t.Fatal(err)
		}
		// The second time in the place of what a dead daemon left.
		for range 2 {
			s, err := bind(path, filepath.Join(dir, "lock"), mode, -1)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|mode {
				t.Errorf("%v, %v", info, err)
			}
			// As a daemon does that dies.
			s.UnixListener.Close()
			s.lock.Close()
		}
		came := 0
		for _, e := range inotifyEvents(t, fd) {
			if e.name != "tool.sock" {
				continue
			}
			switch {
			case e.mask&unix.IN_MOVED_TO != 0:
				came++
			case e.mask&unix.IN_CREATE != 0:
				t.Errorf("the socket was made in place")
			case e.mask&unix.IN_ATTRIB != 0:
				t.Errorf("the socket's mode was changed in place")
			}
		}
		if came != 2 {
			t.Errorf("the socket was renamed into place %d times", came)
		}
	}
}

type inotifyEvent struct {
	mask uint32
	name string
}

func inotifyEvents(t *testing.T, fd int) (events []inotifyEvent) {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	for buf = buf[:n]; len(buf) > 0; {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[0]))
		name := buf[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+e.Len]
		events = append(events, inotifyEvent{e.Mask, strings.TrimRight(string(name), "\x00")})
		buf = buf[unix.SizeofInotifyEvent+e.Len:]
	}
	return events
}

// TestHiddenFolderIsOurs: while the socket has no mode yet, nobody else can
// reach it.
func TestHiddenFolderIsOurs(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := t.TempDir()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	made, err := os.MkdirTemp(dir, "probe") // the way that bind makes its folder
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	inotifyEvents(t, fd)
	s, err := bind(filepath.Join(dir, "tool.sock"), "", 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.release()
	defer s.close()
	hidden := 0
	for _, e := range inotifyEvents(t, fd) {
		if strings.HasPrefix(e.name, ".tool.sock.") {
			hidden++
			if e.mask&unix.IN_ATTRIB != 0 {
				t.Error("the folder was made with another mode than it was to have")
			}
		}
	}
	if hidden == 0 {
		t.Error("the socket was not bound in a folder of its own")
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	s := start(t, Config{Handler: echo, Lock: filepath.Join(t.TempDir(), "lock")})
	config := s.config
	for range 3 {
		if _, err := Listen(config); !errors.Is(err, errInUse) || !strings.Contains(err.Error(), config.Path) {
			t.Errorf("a second daemon: %v", err)
		}
	}
	// Not even where someone tidied up the lock file.
	lock := config.Lock
	if err := os.Rename(lock, lock+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(config); !errors.Is(err, errInUse) {
		t.Errorf("a second daemon without the lock file: %v", err)
	}
	if err := os.Rename(lock+".away", lock); err != nil {
		t.Fatal(err)
	}
	// Nor one of another state folder, which has a lock of its own.
	elsewhere := config
	elsewhere.Lock = filepath.Join(t.TempDir(), "lock")
	if _, err := Listen(elsewhere); !errors.Is(err, errInUse) {
		t.Errorf("a second daemon with another lock: %v", err)
	}
	if _, err := os.Lstat(elsewhere.Lock); err == nil {
		t.Error("the lock of a daemon that was refused is left")
	}
	c := dial(t, s)
	c.send(`{"tool":"x","args":["the first still serves"]}`)
	if r, _ := c.result(); string(r.Stdout) != "the first still serves" {
		t.Errorf("got %+v", r)
	}
}

// TestStaleSocketIsReplaced starts a daemon, kills it, and starts another.
func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tool.sock")
	cmd := exec.Command(os.Args[0], "-test.run=^TestDaemonProcess$")
	cmd.Env = append(os.Environ(), "TOOLD_TEST_DAEMON="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the daemon says %q, %v", line, err)
	}
	if _, err := Listen(Config{Path: path, Handler: echo}); !errors.Is(err, errInUse) {
		t.Errorf("while it lives: %v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("it left no socket: %v", err)
	}
	// What a daemon leaves that is killed while it binds.
	half := filepath.Join(filepath.Dir(path), ".tool.sock.123")
	if err := os.Mkdir(half, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, "s"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{Path: path, Handler: echo})
	c := dial(t, s)
	c.send(`{"tool":"x","args":["a new one"]}`)
	if r, _ := c.result(); string(r.Stdout) != "a new one" {
		t.Errorf("got %+v", r)
	}
}

// TestDaemonProcess is the daemon of TestStaleSocketIsReplaced.
func TestDaemonProcess(t *testing.T) {
	path := os.Getenv("TOOLD_TEST_DAEMON")
	if path == "" {
		t.Skip("it is run by another test")
	}
	s, err := Listen(Config{Path: path, Handler: echo})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	s.Serve(context.Background())
}

func TestListenLeavesOtherFilesAlone(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, dir} {
		if s, err := Listen(Config{Path: path, Handler: echo}); err == nil {
			t.Errorf("listening in the place of %s", path)
			s.Shutdown(t.Context())
		}
	}
	if b, err := os.ReadFile(link); string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := Listen(Config{Path: filepath.Join(dir, "missing", "tool.sock"), Handler: echo}); err == nil {
		t.Error("listening in a folder that is not there")
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("files are left: %v", entries)
	}
}

// TestLongPaths: a path that just fits works although the folder's beside it
// does not fit.
func TestLongPaths(t *testing.T) {
	parent, err := os.MkdirTemp("/tmp", "t")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(parent)
	for n := 60; n <= maxPath; n++ {
		path := filepath.Join(parent, strings.Repeat("x", n-len(parent)-1))
		s := start(t, Config{Path: path, Handler: echo})
		c := dial(t, s)
		c.send(`{"tool":"x","args":["found"]}`)
		if r, _ := c.result(); string(r.Stdout) != "found" {
			t.Errorf("%d bytes: %+v", n, r)
		}
		c.Close()
		s.Shutdown(t.Context())
	}
	path := filepath.Join(parent, strings.Repeat("x", maxPath-len(parent)))
	if _, err := Listen(Config{Path: path, Handler: echo}); err == nil || !strings.Contains(err.Error(), "at most 107") {
		t.Errorf("%d bytes: %v", len(path), err)
	}
}

// TestOnlyOurSocketIsRemoved: a daemon that ends leaves what someone else has
// put in the place of its socket.
func TestOnlyOurSocketIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tool.sock")
	s, err := Listen(Config{Path: path, Handler: echo})
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// TestClosingRemovesNothingElse: a socket that was bound under the number of a
// descriptor must not, when it is closed, remove what has that name by then.
func TestClosingRemovesNothingElse(t *testing.T) {
	parent, err := os.MkdirTemp("/tmp", "t")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(parent)
	s, err := bind(filepath.Join(parent, strings.Repeat("x", maxPath-len(parent)-1)), "", 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.release()
	innocent := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(innocent, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// Some of these take the numbers that were free while it was bound.
	for range 32 {
		f, err := os.Open(filepath.Dir(innocent))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	s.close()
	if _, err := os.Lstat(innocent); err != nil {
		t.Error(err)
	}
}

// TestLockIsHeldByOne, although each who lets go of it removes its file, which
// others may have opened by then.
func TestLockIsHeldByOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var holders, held atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5000 {
				f, err := acquire(path)
				if err != nil {
					if !errors.Is(err, errInUse) {
						t.Error(err)
					}
					continue
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the lock", n)
				}
				held.Add(1)
				runtime.Gosched()
				holders.Add(-1)
				release(f)
			}
		})
	}
	all.Wait()
	if held.Load() == 0 {
		t.Error("nobody got the lock")
	}
}

// TestLockIsNotBesideTheSocket: who has the folder of the socket, as containers have
// it, cannot keep the next daemon from it; what former versions left there goes.
func TestLockIsNotBesideTheSocket(t *testing.T) {
	dir, lock := t.TempDir(), filepath.Join(t.TempDir(), "lock")
	path := filepath.Join(dir, "tool.sock")
	former, err := os.Create(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer former.Close()
	if err := unix.Flock(int(former.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	s := start(t, Config{Path: path, Lock: lock, Handler: echo})
	left := func() (names []string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if got := left(); len(got) != 1 || got[0] != "tool.sock" {
		t.Errorf("beside the socket: %q", got)
	}
	if _, err := os.Lstat(lock); err != nil {
		t.Error(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if got := left(); len(got) != 0 {
		t.Errorf("what is left: %q", got)
	}
	// What is no lock file of ours is not ours to remove.
	if err := os.WriteFile(path+".lock", []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err = Listen(Config{Path: path, Lock: lock, Handler: echo})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(t.Context())
	defer os.Remove(path + ".lock")
	if got := left(); len(got) != 2 {
		t.Errorf("beside the socket: %q", got)
	}
}

// TestLockIsNoLink: a link in the place of the lock is not followed: what it leads to
// would be made, and held.
func TestLockIsNoLink(t *testing.T) {
	dir := t.TempDir()
	lock, other := filepath.Join(dir, "lock"), filepath.Join(dir, "other")
	if err := os.Symlink(other, lock); err != nil {
		t.Fatal(err)
	}
	if s, err := Listen(Config{Path: filepath.Join(dir, "tool.sock"), Lock: lock, Handler: echo}); err == nil {
		s.Shutdown(t.Context())
		t.Error("it serves with a link for a lock")
	}
	if _, err := os.Lstat(other); err == nil {
		t.Error("what the link leads to was made")
	}
}

// TestSecondDaemonWhileBusy: a daemon that does not come to accept connections is no
// dead one.
func TestSecondDaemonWhileBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tool.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(c)
		if err := unix.Connect(c, &unix.SockaddrUnix{Name: path}); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Listen(Config{Path: path, Handler: echo}); !errors.Is(err, errInUse) {
		t.Errorf("a second daemon: %v", err)
	}
}

// TestDaemonsThatStartAtOnce: of many daemons with state folders of their own that find
// a dead one's socket, no two serve: what one of them put there is not taken away.
func TestDaemonsThatStartAtOnce(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "tool.sock")
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		dead.Close()
		var mu sync.Mutex
		var served []*Server
		var wait sync.WaitGroup
		for range 8 {
			lock := filepath.Join(t.TempDir(), "lock")
			wait.Go(func() {
				s, err := Listen(Config{Path: path, Lock: lock, Handler: echo})
				if err != nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				served = append(served, s)
			})
		}
		wait.Wait()
		if len(served) > 1 {
			t.Errorf("%d daemons serve one socket", len(served))
		}
		for _, s := range served {
			if info, err := os.Lstat(path); err != nil || !os.SameFile(info, s.socket.info) {
				t.Errorf("the socket is not the one of who serves it: %v", err)
			}
			s.Shutdown(t.Context())
		}
	}
}
