package confine

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/seccomp"
)

// run is what is known of the run whose system calls a Monitor answers.
type run struct {
	listener seccomp.Listener
	grants   atomic.Pointer[grants] // set before the child is started
	// wire leads to who connects the run's sockets; -1: nobody. user is who the
	// run is; nil: this process's user. Both are set before the child is started.
	wire int
	user *UserID
	// ruleset is that of the run, for version abi of Landlock. Both are set before grants.
	abi, ruleset int
	// over is closed when no process of the run is left to wait for an answer.
	over chan struct{}
	// log is what was executed and refused. A program is in it before it
	// is told, and so before it runs.
	log programLog
}

// maxPrograms bounds how many programs of a run are kept by name, of those that
// were executed and of those that were refused.
const maxPrograms = 64

// programLog records what a run executed besides its own program.
type programLog struct {
	mu            sync.Mutex
	count, denied int
	list          []Program
}

func (l *programLog) executed(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count++; l.count-l.denied <= maxPrograms {
		l.list = append(l.list, Program{Path: path})
	}
}

func (l *programLog) refused(path, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	if l.denied++; l.denied <= maxPrograms {
		l.list = append(l.list, Program{Path: path, Refused: why})
	}
}

// become gives the calling thread, and no other, the user of the run.
func (r *run) become() error {
	u := r.user
	if u == nil {
		return nil
	}
	// Not of the process, as package syscall does it.
	for _, set := range [][4]uintptr{
		{unix.SYS_SETGROUPS, 0, 0, 0},
		{unix.SYS_SETRESGID, uintptr(u.GID), uintptr(u.GID), uintptr(u.GID)},
		{unix.SYS_SETRESUID, uintptr(u.UID), uintptr(u.UID), uintptr(u.UID)},
	} {
		if _, _, errno := unix.RawSyscall(set[0], set[1], set[2], set[3]); errno != 0 {
			return errno
		}
	}
	return nil
}

// asCaller runs f, which makes one system call on sock, as the run's user: a Unix socket tells
// its peer who connects or listens. f may wait if too many connections already wait at the
// peer, but not beyond the end of the run.
func (r *run) asCaller(sock int, f func() error) error {
	thread, done := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		thread <- unix.Gettid()
		if r.user == nil {
			done <- f()
			runtime.UnlockOSThread()
			return
		}
		// The thread ends with f: it is never unlocked.
		if err := r.become(); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	tid := <-thread
	select {
	case err := <-done:
		return err
	case <-r.over:
	}
	// A signal has the kernel begin the call again, now with a limit. Nobody is left
	// to take that away.
	again := time.NewTicker(5 * time.Millisecond) // it may have been about to begin
	defer again.Stop()
	for {
		unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 1})
		unix.Tgkill(unix.Getpid(), tid, unix.SIGURG) // which Go's runtime uses likewise
		select {
		case err := <-done:
			return err
		case <-again.C:
		}
	}
}

// takeDescriptor returns a descriptor of this process for the file that fd is for the thread
// tid. Listener.Valid tells afterwards whether tid was still the same thread.
func takeDescriptor(tid, fd int) (int, error) {
	pidfd, err := unix.PidfdOpen(tid, unix.PIDFD_THREAD)
	if err == unix.EINVAL { // before Linux 6.9: by the process
		status, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
		if err != nil {
			return -1, unix.ESRCH
		}
		_, rest, _ := strings.Cut(string(status), "\nTgid:")
		tgid, _, _ := strings.Cut(rest, "\n")
		pid, err := strconv.Atoi(strings.TrimSpace(tgid))
		if err != nil {
			return -1, unix.ESRCH
		}
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			return -1, err
		}
	} else if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	return unix.PidfdGetfd(pidfd, fd, 0)
}
