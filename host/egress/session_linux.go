package egress

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	// maxKept bounds how many connections of a run are kept by name, of those that
	// were allowed and of those that were refused.
	maxKept = 64
	// dialTime is how long a host may take to answer, prompt how long a socket that
	// does not block is kept waiting for it. Beyond that it is told that it is
	// connected, and reset where the host turns out not to answer.
	dialTime = 30 * time.Second
	prompt   = 300 * time.Millisecond
	// drain is how long what a run has written may take to be delivered when the
	// run is over.
	drain = 2 * time.Second
)

// Gate is what all runs share.
type Gate struct {
	open  atomic.Int64
	large atomic.Int64 // buffers of pair.pass
	held  atomic.Int64 // bytes that are in memory before they are sent on
}

// Session makes the connections of one run.
type Session struct {
	gate    *Gate
	rules   Rules
	refused func(Connection)
	wire    *os.File

	signatures atomic.Int32 // how many were asked for

	ctx  context.Context // until the run is over
	end  context.CancelFunc
	work sync.WaitGroup
	// rest ends drain after ctx, or with Close: what the run has sent is delivered
	// until then.
	rest context.Context
	stop context.CancelFunc

	names names.Server
	held  atomic.Int64 // as in Gate

	// mu guards what follows.
	mu             sync.Mutex
	kept           []*Connection
	others         Connection // the allowed ones that are not kept
	allowed, stops int
	ending         bool
	told           map[string]bool // targets
	leaves         map[string]*tls.Certificate
	pairs          map[*pair]struct{}
}

// Start begins to serve a run that is confined by rules. theirs is for the run's
// supervisor (Ask), and is the caller's to close. refused, which may be nil, is
// told of refused connections as they are refused, of each target once, by several
// goroutines.
func (g *Gate) Start(rules Rules, refused func(Connection)) (s *Session, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open the network of a run: %w", err)
	}
	unix.SetNonblock(fds[0], true)
	s = &Session{gate: g, rules: rules, refused: refused, others: Connection{Host: Others}, wire: os.NewFile(uintptr(fds[0]), "network"), pairs: map[*pair]struct{}{}}
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

// Close ends what the run has left open, after what it wrote is delivered, and
// returns its connections: the first of each kind and, as Others, the rest, and how
// many there were.
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
	for _, c := range s.kept {
		list = append(list, *c)
		n := &allowed
		if c.Refused != "" {
			n = &refused
		}
		*n++
	}
	if s.others.Times = s.allowed - allowed; s.others.Times > 0 {
		list = append(list, s.others)
	}
	if n := s.stops - refused; n > 0 {
		list = append(list, Connection{Host: Others, Refused: "there are more than are kept by name", Times: n})
	}
	return list, s.allowed, s.stops
}

// What a supervisor asks: the kind, then an address. Descriptors come with it: one
// for the answer, which is four bytes, and the socket.
const (
	askInet = 'i' // a sockaddr as the process had it
	askUnix = 'u' // a path without symbolic links
)

// maxAsk bounds a question: a path and its kind.
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

// descriptors are those that came with a message.
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

// Ask has the daemon connect the TCP socket fd to the address, a sockaddr, and
// returns what connect is to return. wire is of Gate.Start.
func Ask(wire, fd int, address []byte) unix.Errno { return ask(wire, askInet, address, fd) }

// AskUnix asks whether the run may connect to the Unix socket at path, which is
// free of symbolic links. 0 is that it may.
func AskUnix(wire int, path string) unix.Errno { return ask(wire, askUnix, []byte(path)) }

func ask(wire int, kind byte, address []byte, fds ...int) unix.Errno {
	if len(address) >= maxAsk {
		return unix.EINVAL
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return unix.ENOBUFS
	}
	// The poller waits, and not a thread for each connection.
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

// note keeps c, and tells of it where it was refused.
func (s *Session) note(c *Connection) {
	s.mu.Lock()
	n := &s.allowed
	if c.Refused != "" {
		n = &s.stops
	}
	// Whatever else there was, what was signed is told; maxSignatures bounds that.
	if *n++; *n <= maxKept || c.Rule == signRule && c.Refused == "" {
		s.kept = append(s.kept, c)
	} else {
		c.notKept = true
	}
	told := *c
	s.mu.Unlock()
	s.tell(told)
}

// tell tells of c where it was refused, and of each target once: programs try
// again.
func (s *Session) tell(c Connection) {
	if c.Refused != "" {
		s.tellOnce(c.Target(), c)
	}
}

// tellOnce tells of c, once for each subject.
func (s *Session) tellOnce(subject string, c Connection) {
	if s.refused == nil {
		return
	}
	s.mu.Lock()
	again := s.told[subject] || len(s.told) >= maxKept
	if s.told == nil {
		s.told = map[string]bool{}
	}
	if !again {
		s.told[subject] = true
	}
	s.mu.Unlock()
	if !again {
		s.refused(c)
	}
}

func (s *Session) connectUnix(path string) unix.Errno {
	c := &Connection{Host: unixPrefix + path}
	defer s.note(c)
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
// raw stands for. It calls reply once with what connect returns, and goes on
// copying.
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
	// Counted before it is judged, which takes time where names are looked up.
	p := s.openPair(to)
	if p == nil {
		done(unix.EAGAIN)
		return
	}
	defer s.closePair(p)
	c, dial := s.judge(to)
	p.connection = c
	if c != nil {
		s.note(c)
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
// block is told of success as soon as the dialling takes long, and is reset if it fails.
func (s *Session) connectTo(p *pair, fd, flags int, done func(unix.Errno)) {
	type dialed struct {
		conn *net.TCPConn
		err  error
	}
	ctx, cancel := context.WithTimeout(s.rest, dialTime)
	defer cancel()
	// Nobody waits for it once the run is over.
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
			s.fail(p.connection, upstream.err)
			done(errnoOf(upstream.err))
			return
		}
		local, errno = s.splice(fd)
	case <-late:
		if local, errno = s.splice(fd); errno != 0 {
			cancel()
			if upstream = <-result; upstream.conn != nil {
				upstream.conn.Close()
			}
			done(errno)
			return
		}
		done(success(flags))
		// It may have sent something, and gone: that is delivered.
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
		s.fail(p.connection, upstream.err)
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
	p.copy()
}

// openPair counts a connection to to, until closePair. It is nil where too many are
// open, which it notes.
func (s *Session) openPair(to netip.AddrPort) *pair {
	s.mu.Lock()
	full := len(s.pairs) >= maxOpen || s.gate.open.Load() >= maxOpenAll || s.ending
	p := &pair{session: s}
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
	s.note(&Connection{Host: host, Port: to.Port(), Failed: "too many connections are open"})
	return nil
}

func (s *Session) closePair(p *pair) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pairs, p)
	s.gate.open.Add(-1)
	if c := p.connection; c != nil && c.notKept {
		s.others.Sent += c.Sent
		s.others.Received += c.Received
		s.others.MoreRequests += len(c.Requests) + c.MoreRequests
	}
}

// serveItself connects fd to what the daemon answers itself: names, and the ssh of a
// run. done is given what connect returns.
func (s *Session) serveItself(p *pair, fd int, to netip.AddrPort, flags int, done func(unix.Errno)) {
	local, errno := s.splice(fd)
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
		s.serveSSH(p)
	} else {
		s.names.Serve(s.ctx, local)
	}
	local.Close()
}

// success is what connect returns for a socket with flags.
func success(flags int) unix.Errno {
	if flags&unix.O_NONBLOCK != 0 {
		return unix.EINPROGRESS
	}
	return 0
}

// fail notes why c, which was allowed, did not come about.
func (s *Session) fail(c *Connection, err error) {
	if c == nil {
		return
	}
	if refused, ok := errors.AsType[*notPublicError](err); ok {
		s.refuse(c, refused.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Failed = err.Error()
}

// failed is fail for what came about and could not be used, of which the caller is
// told.
func (s *Session) failed(c *Connection, err error) {
	s.fail(c, err)
	s.mu.Lock()
	told := *c
	s.mu.Unlock()
	told.Requests = nil
	if told.Refused == "" {
		s.tellOnce(told.Target()+" failed", told)
	}
}

// refuse turns c, which was allowed so far, into a refused one.
func (s *Session) refuse(c *Connection, why string) {
	s.mu.Lock()
	c.Refused, c.Rule = why, ""
	s.allowed--
	s.stops++
	told := *c
	s.mu.Unlock()
	s.tell(told)
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

// splice connects the run's socket fd to this process, and returns the end of
// it that is here.
func (s *Session) splice(fd int) (*net.TCPConn, unix.Errno) {
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
	if errno := s.join(fd, at); errno != 0 {
		return nil, errno
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return nil, unix.ENOTCONN
	}
	return acceptFrom(l, addrOf(name))
}

// join connects the run's socket fd to at, which is on this host. That takes no
// time, unless options that the run has set on its socket make it take for ever: a
// filter that drops what comes, for example, and more attempts.
func (s *Session) join(fd int, at unix.Sockaddr) unix.Errno {
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
	case <-s.ctx.Done():
		return interrupt(fd, joined)
	}
	if errno, ok := err.(unix.Errno); ok && errno != unix.EINPROGRESS {
		return errno
	}
	return 0
}

// interrupt has the connect on fd that joined tells of return.
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

// addrOf is the address a; of an IPv4 address that is written as an IPv6 one, the
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

// reset has the other side find its connection broken.
func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// errnoOf is what connect returns for an error of dialling.
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

type notPublicError struct {
	host string
	addr netip.Addr
}

func (e *notPublicError) Error() string {
	if e.host == e.addr.String() {
		return "it is not a public address, and capabilities.network does not name it"
	}
	return fmt.Sprintf("%s leads to %s, which is not a public address, and capabilities.network does not name the host itself", e.host, e.addr)
}

// judge finds out what a connection to is one to, and whether the rules allow
// it. dial is nil for one that is answered here, as a name server or as ssh; c is
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
			c.Refused = s.why()
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
	// Going by the address leads around nothing that goes by the name, also where
	// requests to every address are read: credentials, and what a policy says, are of the name.
	if h := s.rules.HTTP; h != nil && c.Rule != "" {
		if _, named := hostrule.Match(h.Hosts, c.Host, port); !named || !h.reads(c.Host, c.Port) {
			if name := s.nameOf(ip, port, h.Hosts); name != "" {
				c.Host = name
			}
		}
	}
	switch {
	case c.Rule == "":
		c.Refused = s.why()
		return c, nil
	case !named && !hostrule.Public(ip):
		c.Refused, c.Rule = (&notPublicError{c.Host, ip}).Error(), ""
		return c, nil
	}
	return c, dialer(ip.WithZone("").String(), c, named)
}

// nameOf is a name among hosts that leads to ip: a process may have it from
// /etc/hosts, or take localhost to be the loopback address.
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

// why says what the rules allow instead.
func (s *Session) why() string {
	if len(s.rules.Hosts) == 0 {
		return "capabilities.network grants no host"
	}
	return "capabilities.network grants only " + strings.Join(s.rules.Hosts, ", ")
}

// dialer dials host, which is c's or its address.
func dialer(host string, c *Connection, named bool) func(context.Context) (*net.TCPConn, error) {
	return func(ctx context.Context) (*net.TCPConn, error) {
		d := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err == nil && !named && !hostrule.Public(ap.Addr()) {
				err = &notPublicError{c.Host, ap.Addr()}
			}
			return err
		}}
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(c.Port))))
		if err != nil {
			return nil, err
		}
		return conn.(*net.TCPConn), nil
	}
}
