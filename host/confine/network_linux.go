package confine

import (
	"encoding/binary"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/seccomp"
)

// maxSockaddr is the longest address of a socket that the kernel takes.
const maxSockaddr = 128

// maxAsking bounds how many connections of a run are being made at a time: each
// takes a few descriptors of the supervisor, and perhaps a thread.
const maxAsking = 512

// network answers connect and listen of the run m is for. A call never goes on:
// the kernel would read the address again, and look the descriptor up again, when
// another thread may have changed both. The socket is taken out of the caller,
// which may do with its descriptors what it likes from then on, the address is
// read once, and what is done is done to that socket with that address.
func (m *Monitor) network(n *seccomp.Call) seccomp.Answer {
	sock, err := takeDescriptor(int(n.TID), int(int32(n.Args[0])))
	if err != nil {
		return seccomp.Fail(err)
	}
	defer unix.Close(sock)
	domain, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return seccomp.Fail(unix.ENOTSOCK)
	}
	if n.NR == unix.SYS_LISTEN {
		if !m.listener.Valid(n) {
			return seccomp.Fail(unix.EINTR)
		}
		// An abstract name is the whole host's: programs that look for another's server
		// there would find this one. Nobody of the run may connect to it. A socket without
		// a name, which may get one now, does not listen.
		var name unix.RawSockaddrUnix
		size := uint32(unix.SizeofSockaddrUnix)
		if domain != unix.AF_UNIX {
			return seccomp.Fail(unix.EACCES)
		}
		if _, _, errno := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(sock), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size))); errno != 0 || size <= 2 {
			return seccomp.Fail(unix.EINVAL)
		}
		if name.Path[0] == 0 {
			return seccomp.Fail(unix.EACCES)
		}
		return seccomp.Fail(m.asCaller(sock, func() error { return unix.Listen(sock, int(int32(n.Args[1]))) }))
	}
	size := int32(n.Args[2])
	if size < 0 || size > maxSockaddr {
		return seccomp.Fail(unix.EINVAL)
	}
	address := make([]byte, size)
	if err := seccomp.Fill(int(n.TID), n.Args[1], address); err != nil {
		return seccomp.Fail(err)
	}
	// From here on nothing is read of the caller: it was this one.
	if domain == unix.AF_UNIX {
		return m.connectUnix(n, sock, address)
	}
	if !m.listener.Valid(n) {
		return seccomp.Fail(unix.EINTR)
	}
	if m.wire < 0 {
		return seccomp.Fail(unix.EACCES)
	}
	if errno := egress.Ask(m.wire, sock, address); errno != 0 {
		return seccomp.Fail(errno)
	}
	return seccomp.Answer{}
}

// connectUnix connects sock to a Unix socket that the run may connect to. The
// socket's file is found as the caller would, and it is that file that is
// connected to, whatever its path leads to by then.
func (m *Monitor) connectUnix(n *seccomp.Call, sock int, address []byte) seccomp.Answer {
	if len(address) < 2 || binary.NativeEndian.Uint16(address) != unix.AF_UNIX {
		return seccomp.Fail(unix.EINVAL)
	}
	name, _, _ := strings.Cut(string(address[2:]), "\x00")
	if name == "" { // abstract; Landlock says the same, where it knows of them
		return seccomp.Fail(unix.EPERM)
	}
	p, err := m.grants.Load().lookup(int(n.TID), unix.AT_FDCWD, name)
	if err != nil {
		return seccomp.Fail(err)
	}
	defer p.close()
	if !m.listener.Valid(n) {
		return seccomp.Fail(unix.EINTR)
	}
	if p.stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return seccomp.Fail(unix.ECONNREFUSED)
	}
	if m.wire < 0 {
		return seccomp.Fail(unix.EACCES)
	}
	if errno := egress.AskUnix(m.wire, p.path); errno != 0 {
		return seccomp.Fail(errno)
	}
	return seccomp.Fail(m.asCaller(sock, func() error {
		return unix.Connect(sock, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(p.fd)})
	}))
}

// asCaller does f, which makes one system call on sock, as the user that the run
// is, since what a Unix socket is told of its other side is who connects or
// listens. f may wait, where too many wait for the other side already; it does not
// wait beyond the end of the run.
func (m *Monitor) asCaller(sock int, f func() error) error {
	thread, done := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		thread <- unix.Gettid()
		if m.user == nil {
			done <- f()
			runtime.UnlockOSThread()
			return
		}
		// The thread ends with f: it is never unlocked.
		u := m.user
		// Of this thread alone, and not of the process as package syscall does it.
		for _, set := range [][4]uintptr{
			{unix.SYS_SETGROUPS, 0, 0, 0},
			{unix.SYS_SETRESGID, uintptr(u.GID), uintptr(u.GID), uintptr(u.GID)},
			{unix.SYS_SETRESUID, uintptr(u.UID), uintptr(u.UID), uintptr(u.UID)},
		} {
			if _, _, errno := unix.RawSyscall(set[0], set[1], set[2], set[3]); errno != 0 {
				done <- errno
				return
			}
		}
		done <- f()
	}()
	tid := <-thread
	select {
	case err := <-done:
		return err
	case <-m.over:
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

// takeDescriptor returns a descriptor, of this process, of what fd is to the
// thread tid. Whether tid is still who it was, Listener.Valid says afterwards.
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
