package server

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel who connected.
func peerOf(raw syscall.RawConn) (p Peer, err error) {
	if ctl := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = Peer{UID: cred.Uid, GID: cred.Gid, PID: int(cred.Pid), Ended: func() bool { return ended(raw) }}
		}
	}); ctl != nil {
		err = ctl
	}
	return p, err
}

// ended reports whether the process that connected has ended. The kernel keeps
// it with the connection since Linux 6.5.
func ended(raw syscall.RawConn) (over bool) {
	err := raw.Control(func(fd uintptr) {
		pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err != nil {
			over = err != unix.ENOPROTOOPT && err != unix.EOPNOTSUPP
			return
		}
		defer unix.Close(pidfd)
		// A pending signal, as of the preemption of a goroutine, interrupts even a look
		// that does not wait.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		for err == unix.EINTR {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		}
		over = err != nil || n > 0
	})
	return over || err != nil
}
