package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/hostrule"
	"github.com/toold/toold/host/names"
	"github.com/toold/toold/host/sshshim"
)

const (
	// maxOpen bounds the connections of one run at a time, maxOpenAll those of all
	// runs: each takes two descriptors of the daemon.
	maxOpen    = 512
	maxOpenAll = 8192
	// prompt is how long a socket that does not block is kept waiting for the host to
	// answer. Beyond that its connect returns success, and it is reset if the host turns
	// out not to answer.
	prompt = 300 * time.Millisecond
)

// Session makes the connections of one run.
type Session struct {
	run
	wire  *os.File
	names names.Server
	end   context.CancelFunc // of ctx
	stop  context.CancelFunc // of rest

	mu     sync.Mutex // guards what follows
	ending bool
	pairs  map[*pair]struct{}
}

// Start begins to serve a run that is confined by rules. theirs is for the run's supervisor
// (Ask); the caller closes it. refused, which may be nil, is called for refused connections as
// they occur, once for each target, by several goroutines.
func (g *Gate) Start(rules Rules, refused func(Connection)) (s *Session, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open the network of a run: %w", err)
	}
	unix.SetNonblock(fds[0], true)
	s = &Session{wire: os.NewFile(uintptr(fds[0]), "network"), pairs: map[*pair]struct{}{}}
	s.gate, s.rules = g, rules
	s.ledger.refused, s.ledger.others, s.ledger.told = refused, Connection{Host: Others}, map[string]bool{}
	s.names.Hosts = rules.Hosts
	for i, path := range rules.Sockets {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			s.rules.Sockets[i] = real
		}
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.rest, s.stop = context.WithCancel(context.Background())
	context.AfterFunc(s.ctx, func() { time.AfterFunc(drain, s.stop) })
	s.work.Go(s.serve)
	return s, os.NewFile(uintptr(fds[1]), "network"), nil
}

// Close closes the connections that the run left open, once what it wrote is delivered. It
// returns the connections: the first of each kind and, as Others, the rest, with their numbers.
func (s *Session) Close() (list []Connection, allowed, refused int) {
	s.wire.Close()
	s.end()
	s.mu.Lock()
	s.ending = true
	for p := range s.pairs {
		p.drain()
	}
	s.mu.Unlock()
	s.work.Wait()
	s.stop()
	return s.ledger.list()
}

// The requests of a supervisor: the kind, then an address. Descriptors come with it: one
// for the answer, which is four bytes, and the socket.
const (
	askInet = 'i' // a sockaddr as the process had it
	askUnix = 'u' // a path without symbolic links
)

// maxAsk bounds a request: a path and its kind.
const maxAsk = unix.PathMax + 1

func (s *Session) serve() {
	raw, err := s.wire.SyscallConn()
	if err != nil {
		return
	}
	buf, oob := make([]byte, maxAsk), make([]byte, unix.CmsgSpace(4*4))
	for {
		var n, oobn int
		var got error
		err := raw.Read(func(fd uintptr) bool {
			n, oobn, _, _, got = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC)
			return got != unix.EAGAIN
		})
		if got == unix.EINTR {
			continue
		}
		if err != nil || got != nil || n == 0 {
			s.end() // nobody waits for an answer
			return
		}
		fds := descriptors(oob[:oobn])
		if len(fds) == 0 {
			continue
		}
		ask, address := buf[0], append([]byte(nil), buf[1:n]...)
		s.work.Go(func() {
			reply := os.NewFile(uintptr(fds[0]), "reply")
			defer reply.Close()
			errno := unix.EACCES
			switch {
			case ask == askUnix && len(fds) == 1:
				errno = s.connectUnix(string(address))
			case ask == askInet && len(fds) == 2:
				s.connect(fds[1], address, func(errno unix.Errno) { answer(reply, errno) })
				return
			}
			for _, fd := range fds[1:] {
				unix.Close(fd)
			}
			answer(reply, errno)
		})
	}
}

func answer(reply *os.File, errno unix.Errno) {
	unix.Write(int(reply.Fd()), binary.NativeEndian.AppendUint32(nil, uint32(errno)))
}

// descriptors returns those that came with a message.
func descriptors(oob []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// Ask asks the daemon to connect the TCP socket fd to address, a sockaddr, and returns what
// connect is to return. wire is from Gate.Start.
func Ask(wire, fd int, address []byte) unix.Errno { return ask(wire, askInet, address, fd) }

// AskUnix asks whether the run may connect to the Unix socket at path, which is free of
// symbolic links, and returns what connect is to return: 0 if it may.
func AskUnix(wire int, path string) unix.Errno { return ask(wire, askUnix, []byte(path)) }

func ask(wire int, kind byte, address []byte, fds ...int) unix.Errno {
	if len(address) >= maxAsk {
		return unix.EINVAL
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return unix.ENOBUFS
	}
	// The poller waits, instead of a thread for each connection.
	unix.SetNonblock(pair[0], true)
	ours := os.NewFile(uintptr(pair[0]), "reply")
	defer ours.Close()
	rights := unix.UnixRights(append([]int{pair[1]}, fds...)...)
	for {
		err = unix.Sendmsg(wire, append([]byte{kind}, address...), rights, nil, unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			break
		}
	}
	unix.Close(pair[1])
	var b [4]byte
	if err == nil {
		_, err = io.ReadFull(ours, b[:])
	}
	if err != nil {
		return unix.ENETDOWN
	}
	return unix.Errno(binary.NativeEndian.Uint32(b[:]))
}

func (s *Session) connectUnix(path string) unix.Errno {
	c := &Connection{Host: unixPrefix + path}
	defer s.ledger.note(c)
	for _, allowed := range s.rules.Sockets {
		if allowed == path {
			c.Rule = unixPrefix + path
			return 0
		}
	}
	c.Refused = "tool.json names no such socket"
	return unix.EACCES
}

// connect connects the run's socket fd, which it closes, to what the sockaddr
// raw stands for. It calls reply once with what connect returns, and then carries
// the connection.
func (s *Session) connect(fd int, raw []byte, reply func(unix.Errno)) {
	closed := false
	done := func(errno unix.Errno) {
		if !closed {
			closed = true
			unix.Close(fd)
			reply(errno)
		}
	}
	to, errno := checkSocket(fd, raw)
	if errno != 0 {
		done(errno)
		return
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		done(unix.EBADF)
		return
	}
	// Counted before it is judged, which takes time if names are looked up.
	p := s.openPair(to)
	if p == nil {
		done(unix.EAGAIN)
		return
	}
	defer s.closePair(p)
	c, dial := s.judge(to)
	p.connection = c
	if c != nil {
		s.ledger.note(c)
		if c.Refused != "" {
			done(unix.EACCES)
			return
		}
	}
	if dial == nil {
		s.serveItself(p, fd, to, flags, done)
		return
	}
	p.dial = dial
	s.connectTo(p, fd, flags, done)
}

// connectTo dials for the pair and copies until one end is done. A socket that does not
// block gets success as soon as dialling takes long, and is reset if it fails.
func (s *Session) connectTo(p *pair, fd, flags int, done func(unix.Errno)) {
	type dialed struct {
		conn *net.TCPConn
		err  error
	}
	ctx, cancel := context.WithTimeout(s.rest, dialTime)
	defer cancel()
	// It is not needed once the run is over.
	unasked := context.AfterFunc(s.ctx, cancel)
	defer unasked()
	result := make(chan dialed, 1)
	s.work.Go(func() {
		conn, err := p.dial(ctx)
		result <- dialed{conn, err}
	})
	var late <-chan time.Time
	if flags&unix.O_NONBLOCK != 0 {
		t := time.NewTimer(prompt)
		defer t.Stop()
		late = t.C
	}
	var upstream dialed
	var local *net.TCPConn
	var errno unix.Errno
	select {
	case upstream = <-result:
		if upstream.err != nil {
			s.ledger.fail(p.connection, upstream.err)
			done(errnoOf(upstream.err))
			return
		}
		local, errno = splice(s.ctx, fd)
	case <-late:
		if local, errno = splice(s.ctx, fd); errno != 0 {
			cancel()
			if upstream = <-result; upstream.conn != nil {
				upstream.conn.Close()
			}
			done(errno)
			return
		}
		done(success(flags))
		// It may have sent something and ended: that is delivered.
		unasked()
		defer context.AfterFunc(s.ctx, func() {
			if !hasSent(local) {
				cancel()
			}
		})()
		upstream = <-result
	}
	switch {
	case errno != 0:
		upstream.conn.Close()
		done(errno)
		return
	case upstream.err != nil:
		s.ledger.fail(p.connection, upstream.err)
		reset(local)
		return
	}
	if !p.holds(local, upstream.conn) {
		reset(local)
		upstream.conn.Close()
		done(unix.ENETDOWN)
		return
	}
	done(success(flags))
	carry(p)
}

// openPair counts a connection to to, until closePair. It returns nil, and records it,
// if too many are open.
func (s *Session) openPair(to netip.AddrPort) *pair {
	s.mu.Lock()
	full := len(s.pairs) >= maxOpen || s.gate.open.Load() >= maxOpenAll || s.ending
	p := &pair{run: &s.run}
	if !full {
		s.pairs[p] = struct{}{}
		s.gate.open.Add(1)
	}
	s.mu.Unlock()
	if !full {
		return p
	}
	host := to.Addr().WithZone("").String()
	if name, ok := s.names.Of(to.Addr()); ok {
		host = name
	}
	s.ledger.note(&Connection{Host: host, Port: to.Port(), Failed: "too many connections are open"})
	return nil
}

func (s *Session) closePair(p *pair) {
	s.ledger.forget(p.connection)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pairs, p)
	s.gate.open.Add(-1)
}

// serveItself connects fd to a service of the daemon itself: names, and the ssh of a run. done
// gets what connect returns.
func (s *Session) serveItself(p *pair, fd int, to netip.AddrPort, flags int, done func(unix.Errno)) {
	local, errno := splice(s.ctx, fd)
	if errno != 0 {
		done(errno)
		return
	}
	if !p.holds(local, nil) {
		done(unix.ENETDOWN)
		return
	}
	done(success(flags))
	if to == sshshim.Service {
		serveSSH(p)
	} else {
		s.names.Serve(s.ctx, local)
	}
	local.Close()
}

// errnoOf returns what connect returns for an error of dialling.
func errnoOf(err error) unix.Errno {
	if _, ok := errors.AsType[*notPublicError](err); ok {
		return unix.EACCES
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return unix.ETIMEDOUT
	}
	return unix.EHOSTUNREACH
}

// judge determines what a connection to the address to stands for, and whether the
// rules allow it. dial is nil if it is answered here, as a name server or as ssh; c is
// nil then.
func (s *Session) judge(to netip.AddrPort) (c *Connection, dial func(context.Context) (*net.TCPConn, error)) {
	if to == sshshim.Service && (len(s.rules.SSH.Keys) > 0 || s.rules.SSH.Signer != nil) {
		return nil, nil
	}
	port := strconv.Itoa(int(to.Port()))
	ip := to.Addr()
	if name, ok := s.names.Of(ip); ok {
		c = &Connection{Host: name, Port: to.Port()}
		rule, named := hostrule.Match(s.rules.Hosts, name, port)
		if rule == "" {
			c.Refused = s.rules.why()
			return c, nil
		}
		c.Rule = rule
		return c, dialer(name, c, named)
	}
	rule, named := hostrule.Match(s.rules.Hosts, ip.String(), port)
	if to.Port() == 53 && !named {
		return nil, nil
	}
	c = &Connection{Host: ip.WithZone("").String(), Port: to.Port(), Rule: rule}
	if !named {
		if name := s.nameOf(ip, port, s.rules.Hosts); name != "" {
			c.Host = name
			c.Rule, named = hostrule.Match(s.rules.Hosts, name, port)
		}
	}
	// Using the address avoids nothing that applies to the name, also if requests to
	// every address are read: credentials and decisions of a policy are by name.
	if h := s.rules.HTTP; h != nil && c.Rule != "" {
		if _, named := hostrule.Match(h.Hosts, c.Host, port); !named || !h.reads(c.Host, c.Port) {
			if name := s.nameOf(ip, port, h.Hosts); name != "" {
				c.Host = name
			}
		}
	}
	switch {
	case c.Rule == "":
		c.Refused = s.rules.why()
		return c, nil
	case !named && !hostrule.Public(ip):
		c.Refused, c.Rule = (&notPublicError{c.Host, ip}).Error(), ""
		return c, nil
	}
	return c, dialer(ip.WithZone("").String(), c, named)
}

// nameOf returns a name among hosts that leads to ip: a process may have the address
// from /etc/hosts, or use the loopback address for localhost.
func (s *Session) nameOf(ip netip.Addr, port string, hosts []string) string {
	for _, name := range hostrule.Exact(hosts, port) {
		if name == "localhost" && ip.IsLoopback() {
			return name
		}
		ctx, cancel := context.WithTimeout(s.ctx, names.LookupTime)
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		cancel()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if a.Unmap() == ip {
				return name
			}
		}
	}
	return ""
}
