package server

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel who connected.
func peerOf(raw syscall.RawConn) (p Peer, err error) {
	if ctl := raw.Control(func(fd uintptr) {
		var cred *unix.Xucred
		if cred, err = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED); err != nil {
			return
		}
		p = Peer{UID: cred.Uid, GID: cred.Groups[0], Ended: func() bool { return false }}
		p.PID, err = unix.GetsockoptInt(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	}); ctl != nil {
		err = ctl
	}
	return p, err
}
