package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// drain is how long what a run has written may take to be delivered when the
// run is over.
const drain = 2 * time.Second

const (
	// tcpClose is the state of a connection that the other side has broken.
	tcpClose = 7
	// deliverEvery is how often a connection is checked for whether all has arrived:
	// the kernel does not report it.
	deliverEvery = 5 * time.Millisecond
	// maxDropped bounds what is dropped of a connection between two looks at it, in
	// pieces.
	maxDropped = 64
)

// control calls f with the descriptor of c unless c is closed.
func control(c *net.TCPConn, f func(fd int)) {
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

// deliver waits until the peer of c has received what was written to it, until it cannot, or
// until ctx ends or drain is over. With drop, what arrives from there meanwhile is discarded:
// if something is unread when c is closed, the kernel discards what was written. Without drop,
// another goroutine reads c.
func deliver(ctx context.Context, c *net.TCPConn, drop bool) {
	ctx, cancel := context.WithTimeout(ctx, drain)
	defer cancel()
	again := time.NewTicker(deliverEvery)
	defer again.Stop()
	for {
		left := 0
		control(c, func(fd int) {
			if drop {
				discard(fd)
			}
			var err error
			if left, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ); err != nil {
				left = 0
			}
			if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil || info.State == tcpClose {
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

// discard drops what has arrived on the TCP socket fd.
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

// isBroken reports whether the peer of c has reset the connection.
func isBroken(c *net.TCPConn) bool {
	broken := true
	control(c, func(fd int) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		broken = err != nil || info.State == tcpClose
	})
	return broken
}

// hasSent reports whether there is something to read from c.
func hasSent(c *net.TCPConn) bool {
	n := 0
	control(c, func(fd int) {
		var one [1]byte
		n, _, _ = unix.Recvfrom(fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return n > 0
}

// success returns what connect returns for a socket with flags.
func success(flags int) unix.Errno {
	if flags&unix.O_NONBLOCK != 0 {
		return unix.EINPROGRESS
	}
	return 0
}

// checkSocket reads a sockaddr for the TCP socket fd, which must not be connected.
func checkSocket(fd int, raw []byte) (netip.AddrPort, unix.Errno) {
	domain, err1 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	kind, err2 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	protocol, err3 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if errors.Join(err1, err2, err3) != nil {
		return netip.AddrPort{}, unix.ENOTSOCK
	}
	if domain != unix.AF_INET && domain != unix.AF_INET6 || kind != unix.SOCK_STREAM || protocol != unix.IPPROTO_TCP {
		return netip.AddrPort{}, unix.EACCES
	}
	to, errno := parseAddress(raw, domain)
	if errno != 0 {
		return to, errno
	}
	if _, err := unix.Getpeername(fd); err == nil {
		return to, unix.EISCONN
	}
	return to, 0
}

// parseAddress reads a sockaddr for a socket of the family domain.
func parseAddress(raw []byte, domain int) (netip.AddrPort, unix.Errno) {
	if len(raw) < 2 {
		return netip.AddrPort{}, unix.EINVAL
	}
	family := int(binary.NativeEndian.Uint16(raw))
	size := map[int]int{unix.AF_INET: 16, unix.AF_INET6: 24}[family]
	switch {
	case size == 0 || family == unix.AF_INET6 && domain == unix.AF_INET:
		// AF_UNSPEC, which would disconnect, is among them.
		return netip.AddrPort{}, unix.EAFNOSUPPORT
	case len(raw) < size:
		return netip.AddrPort{}, unix.EINVAL
	case family != domain:
		return netip.AddrPort{}, unix.EINVAL
	}
	port := binary.BigEndian.Uint16(raw[2:])
	if family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), 0
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])).Unmap(), port), 0
}

// splice connects the run's socket fd to this process, and returns this process's
// end.
func splice(ctx context.Context, fd int) (*net.TCPConn, unix.Errno) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, unix.ENOBUFS
	}
	defer l.Close()
	var at unix.Sockaddr
	port := l.Addr().(*net.TCPAddr).Port
	if domain, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); domain == unix.AF_INET6 {
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
		at = &unix.SockaddrInet6{Port: port, Addr: netip.MustParseAddr("::ffff:127.0.0.1").As16()}
	} else {
		at = &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	}
	if errno := join(ctx, fd, at); errno != 0 {
		return nil, errno
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return nil, unix.ENOTCONN
	}
	return acceptFrom(l, addrOf(name))
}

// join connects the run's socket fd to at, which is on this host. That takes no
// time, unless options that the run has set on its socket make it take forever: a
// filter that drops packets, for example, and more attempts.
func join(ctx context.Context, fd int, at unix.Sockaddr) unix.Errno {
	joined := make(chan error, 1)
	go func() {
		err := unix.Connect(fd, at)
		for err == unix.EINTR {
			err = unix.Connect(fd, at)
		}
		joined <- err
	}()
	over := time.NewTimer(drain)
	defer over.Stop()
	var err error
	select {
	case err = <-joined:
	case <-over.C:
		return interrupt(fd, joined)
	case <-ctx.Done():
		return interrupt(fd, joined)
	}
	if errno, ok := err.(unix.Errno); ok && errno != unix.EINPROGRESS {
		return errno
	}
	return 0
}

// interrupt makes the connect on fd return, after which joined gets its error.
func interrupt(fd int, joined <-chan error) unix.Errno {
	again := time.NewTicker(10 * time.Millisecond) // it may have been about to begin
	defer again.Stop()
	for {
		unix.Shutdown(fd, unix.SHUT_RDWR)
		select {
		case <-joined:
			return unix.ETIMEDOUT
		case <-again.C:
		}
	}
}

// acceptFrom waits for the connection from the address from. Anybody on this host
// may connect to l before it, also from the same port of another of its addresses.
func acceptFrom(l *net.TCPListener, from netip.AddrPort) (*net.TCPConn, unix.Errno) {
	l.SetDeadline(time.Now().Add(drain))
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			return nil, unix.ECONNABORTED
		}
		got := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
		if netip.AddrPortFrom(got.Addr().Unmap(), got.Port()) == from {
			return conn, 0
		}
		conn.Close()
	}
}

// addrOf returns the address a; of an IPv4 address that is written as an IPv6 one, the
// IPv4 address.
func addrOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// reset breaks the connection for the other side.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// traffic counts the bytes of connections.
type traffic struct{ sent, received atomic.Int64 }

// counted is a connection that counts.
type counted struct {
	net.Conn
	*traffic
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}
