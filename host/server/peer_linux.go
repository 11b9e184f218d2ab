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
			p = Peer{UID: cred.Uid, GID: cred.Gid, PID: int(cred.Pid)}
		}
	}); ctl != nil {
		err = ctl
	}
	return p, err
}
