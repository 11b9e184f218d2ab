package egress

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tcpClose is the state of a connection that the other side has broken.
	tcpClose = 7
	// deliverEvery is how often a connection is asked whether all has arrived: the
	// kernel tells nobody.
	deliverEvery = 5 * time.Millisecond
	// maxDropped bounds what is dropped of a connection between two looks at it, in
	// pieces.
	maxDropped = 64
)

// deliver waits until the other side of c has taken what was written to it, until it
// cannot, or until ctx ends or drain is over. With drop, what comes from there meanwhile is thrown away:
// where something is unread when c is closed, the kernel throws away what was
// written. Without, somebody else reads c.
func deliver(ctx context.Context, c *net.TCPConn, drop bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	again := time.NewTicker(deliverEvery)
	defer again.Stop()
	for {
		left := 0
		raw.Control(func(fd uintptr) {
			if drop {
				discard(int(fd))
			}
			if left, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err != nil {
				left = 0
			}
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil || info.State == tcpClose {
				left = 0
			}
		})
		if left == 0 {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// discard throws away what has come on the TCP socket fd.
func discard(fd int) {
	none := bodies.Get().(*[copySize]byte)
	defer bodies.Put(none)
	for range maxDropped {
		n, _, err := unix.Recvfrom(fd, none[:], unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		if n <= 0 || err != nil {
			return
		}
	}
}

// isBroken reports whether the other side of c has broken the connection.
func isBroken(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	broken := true
	raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		broken = err != nil || info.State == tcpClose
	})
	return broken
}

// hasSent reports whether something can be read of c.
func hasSent(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	raw.Control(func(fd uintptr) {
		var one [1]byte
		n, _, _ = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return n > 0
}
