package egress

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// start is a session with a way to ask it.
func start(t testing.TB, refused func(Connection), grants ...string) (*Session, func(address netip.AddrPort) (net.Conn, unix.Errno)) {
	t.Helper()
	return startRules(t, ParseRules(grants), refused)
}

func startRules(t testing.TB, rules Rules, refused func(Connection)) (*Session, func(address netip.AddrPort) (net.Conn, unix.Errno)) {
	t.Helper()
	return startAt(t, &Gate{}, rules, refused)
}

func startAt(t testing.TB, gate *Gate, rules Rules, refused func(Connection)) (*Session, func(address netip.AddrPort) (net.Conn, unix.Errno)) {
	t.Helper()
	s, theirs, err := gate.Start(rules, refused)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		theirs.Close()
		s.Close()
		if s.held.Load() != 0 || len(s.pairs) != 0 {
			t.Errorf("%d connections and %d bytes are left", len(s.pairs), s.held.Load())
		}
	})
	return s, func(to netip.AddrPort) (net.Conn, unix.Errno) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		if errno := Ask(int(theirs.Fd()), fd, sockaddr(to)); errno != 0 {
			return nil, errno
		}
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return c, 0
	}
}

func sockaddr(a netip.AddrPort) []byte {
	b := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
	b = binary.BigEndian.AppendUint16(b, a.Port())
	ip := a.Addr().As4()
	return append(append(b, ip[:]...), make([]byte, 8)...)
}

// listen serves one connection with f.
func listen(t testing.TB, f func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			f(c.(*net.TCPConn))
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Each side may end what it sends and go on reading, and bytes pass as they are.
func TestHalfClose(t *testing.T) {
	to := listen(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		c.Write(bytes.ToUpper(b))
	})
	s, connect := start(t, nil, to.String())
	c, errno := connect(to)
	if errno != 0 {
		t.Fatal(errno)
	}
	defer c.Close()
	big := strings.Repeat("all that is sent, ", 100_000)
	go func() {
		io.WriteString(c, big)
		c.(*net.TCPConn).CloseWrite()
	}()
	if b, err := io.ReadAll(c); err != nil || string(b) != strings.ToUpper(big) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	c.Close()
	list, allowed, refused := s.Close()
	if allowed != 1 || refused != 0 || list[0].Sent != int64(len(big)) || list[0].Received != int64(len(big)) {
		t.Errorf("%+v", list)
	}
}

// What a run wrote just before its end arrives, although the other side never ends.
func TestDrain(t *testing.T) {
	got, closing := make(chan int, 1), make(chan struct{})
	to := listen(t, func(c *net.TCPConn) {
		<-closing // until then it is on the way
		b, _ := io.ReadAll(c)
		got <- len(b)
	})
	s, connect := start(t, nil, to.String())
	c, errno := connect(to)
	if errno != 0 {
		t.Fatal(errno)
	}
	const size = 300 << 10
	c.Write(make([]byte, size))
	c.Close()
	close(closing)
	s.Close()
	if n := <-got; n != size {
		t.Errorf("%d bytes arrived of %d", n, size)
	}
}

// The server name of TLS must be what was connected to, in however many pieces
// it comes.
func TestServerName(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, tt := range []struct {
		sni, refused string
		small        bool
	}{
		{"localhost", "", false},
		{"LOCALHOST", "", true},
		{"elsewhere.example", `TLS with "elsewhere.example", and was made to localhost`, false},
		{"elsewhere.example", `TLS with "elsewhere.example", and was made to localhost`, true},
		{"", "without a server name", false},
	} {
		s, connect := start(t, nil, "localhost:"+port)
		c, errno := connect(netip.MustParseAddrPort("127.0.0.1:" + port))
		if errno != 0 {
			t.Fatal(errno)
		}
		conn := c
		if tt.small {
			conn = pieces{c}
		}
		err := tls.Client(conn, &tls.Config{ServerName: tt.sni, InsecureSkipVerify: true}).Handshake()
		c.Close()
		if tt.refused == "" {
			if err != nil {
				t.Errorf("%q: %v", tt.sni, err)
			}
			continue
		}
		if list, allowed, refused := s.Close(); err == nil || allowed != 0 || refused != 1 || !strings.Contains(list[0].Refused, tt.refused) {
			t.Errorf("%q: %v, %+v", tt.sni, err, list)
		}
	}
}

// pieces writes byte by byte.
type pieces struct{ net.Conn }

func (p pieces) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := p.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

func FuzzAddress(f *testing.F) {
	f.Add(sockaddr(netip.MustParseAddrPort("192.0.2.1:80")), true)
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		domain := unix.AF_INET
		if v6 {
			domain = unix.AF_INET6
		}
		if a, errno := parseAddress(b, domain); errno == 0 && (!a.Addr().IsValid() || a.Addr().Is4In6()) {
			t.Errorf("%v", a)
		}
	})
}

func query(t testing.TB, name string, kind dnsmessage.Type) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A name has one address, which stands for it in this run alone.
func TestNames(t *testing.T) {
	s, connect := start(t, nil, "localhost:1")
	ask := func(name string, kind dnsmessage.Type) (dnsmessage.RCode, string) {
		reply, err := s.names.Answer(t.Context(), query(t, name, kind))
		var m dnsmessage.Message
		if err := errors.Join(err, m.Unpack(reply)); err != nil {
			t.Fatal(err)
		}
		if len(m.Answers) == 0 {
			return m.RCode, ""
		}
		return m.RCode, netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A).String()
	}
	for _, tt := range []struct {
		name string
		kind dnsmessage.Type
		code dnsmessage.RCode
		addr string
	}{
		{"localhost.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "198.18.0.1"},
		{"nowhere.example.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "198.18.0.2"},
		{"LocalHost.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, "198.18.0.1"},
		{"localhost.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, ""},
		{"localhost.", dnsmessage.TypeTXT, dnsmessage.RCodeSuccess, ""},
		{"no host at all.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
		{"127.0.0.1.", dnsmessage.TypeA, dnsmessage.RCodeNameError, ""},
	} {
		if code, addr := ask(tt.name, tt.kind); code != tt.code || addr != tt.addr {
			t.Errorf("%s %v: %v %q", tt.name, tt.kind, code, addr)
		}
	}
	for address, want := range map[string]unix.Errno{"198.18.0.2:443": unix.EACCES, "198.18.0.9:443": unix.EACCES, "198.18.0.1:1": unix.ECONNREFUSED, "198.18.0.1:2": unix.EACCES} {
		if _, errno := connect(netip.MustParseAddrPort(address)); errno != want {
			t.Errorf("%s: %v, want %v", address, errno, want)
		}
	}
	// Over a connection, as resolvers ask.
	c, errno := connect(netip.MustParseAddrPort("192.0.2.53:53"))
	if errno != 0 {
		t.Fatal(errno)
	}
	defer c.Close()
	q := query(t, "localhost.", dnsmessage.TypeA)
	c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...))
	head := make([]byte, 2)
	if _, err := io.ReadFull(c, head); err != nil || binary.BigEndian.Uint16(head) == 0 {
		t.Errorf("%q, %v", head, err)
	}
}

func TestRules(t *testing.T) {
	for _, tt := range []struct {
		grants, to string
		allowed    bool
	}{
		{"", "192.0.2.1:80", false},
		{"127.0.0.1", "127.0.0.1:80", true},
		{"127.0.0.1:81", "127.0.0.1:80", false},
		{"*", "127.0.0.1:80", false},
		{"*", "10.0.0.1:80", false},
		{"*", "169.254.169.254:80", false},
		{"*", "1.1.1.1:80", true},
		{"*.1.1.1", "1.1.1.1:80", false},
		{"*:443", "1.1.1.1:80", false},
		{"localhost", "127.0.0.1:80", true},
		{"localhost", "127.0.0.2:80", true},
		{"localhost:81", "127.0.0.1:80", false},
		{"::1", "[::1]:80", true},
		{"0:0::1", "[::1]:80", true},
		{"[::1]:80", "[::1]:80", true},
	} {
		s := &Session{run: run{rules: ParseRules(strings.Fields(tt.grants)), ctx: t.Context()}}
		if c, dial := s.judge(netip.MustParseAddrPort(tt.to)); (dial != nil) != tt.allowed || (c.Refused == "") != tt.allowed {
			t.Errorf("%q, %s: %+v", tt.grants, tt.to, c)
		}
	}
}

// TestReadByName: a connection to an address that is that of a host with a rule of its
// own for requests, as from /etc/hosts, is one to that host, whatever else is read.
func TestReadByName(t *testing.T) {
	for _, tt := range []struct{ read, host string }{
		{"localhost:443", "localhost"},
		{"* localhost:443", "localhost"},
		{"localhost:443 *:443", "localhost"},
		{"* localhost:444", "127.0.0.1"},
		{"* 127.0.0.1:443 localhost:443", "127.0.0.1"},
		{"*", "127.0.0.1"},
	} {
		s := &Session{run: run{rules: ParseRules([]string{"*"}), ctx: t.Context()}}
		s.rules.HTTP = &HTTP{Hosts: strings.Fields(tt.read)}
		if c, _ := s.judge(netip.MustParseAddrPort("127.0.0.1:443")); c.Host != tt.host {
			t.Errorf("where requests to %q are read, the connection is one to %s, and not %s", tt.read, c.Host, tt.host)
		}
	}
}

// Somebody else on this host who connects to a listener first is not taken for
// the run, from whatever port and address.
func TestStranger(t *testing.T) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := func(from *net.TCPAddr) netip.AddrPort {
		d := net.Dialer{LocalAddr: from}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.LocalAddr().(*net.TCPAddr).AddrPort()
	}
	dial(nil)
	// The port is free on one address, and most likely on the other.
	var stranger netip.AddrPort
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	stranger = dial(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: port})
	run := dial(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if stranger.Port() != run.Port() || stranger.Addr() == run.Addr() {
		t.Fatalf("%v and %v", stranger, run)
	}
	c, errno := acceptFrom(l, run)
	if errno != 0 {
		t.Fatal(errno)
	}
	defer c.Close()
	if got := c.RemoteAddr().(*net.TCPAddr).AddrPort(); got != run {
		t.Errorf("from %v, want %v", got, run)
	}
}

// A run cannot hold the daemon up with a socket that never gets connected.
func TestDeafSocket(t *testing.T) {
	for name, end := range map[string]bool{"waits": false, "ends": true} {
		t.Run(name, func(t *testing.T) {
			dialed := make(chan bool, 1)
			to := listen(t, func(c *net.TCPConn) {
				dialed <- true
				io.Copy(io.Discard, c)
			})
			var gate Gate
			s, theirs, err := gate.Start(ParseRules([]string{to.String()}), nil)
			if err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			// A filter that drops all that comes.
			drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
			if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop}); err != nil {
				t.Fatal(err)
			}
			answered := make(chan unix.Errno, 1)
			go func() { answered <- Ask(int(theirs.Fd()), fd, sockaddr(to)) }()
			if end {
				<-dialed
				s.Close()
			}
			select {
			case errno := <-answered:
				if errno == 0 || !end && errno != unix.ETIMEDOUT {
					t.Errorf("%v, want %v", errno, unix.ETIMEDOUT)
				}
			case <-time.After(20 * time.Second): // the kernel would try for two minutes
				unix.Shutdown(fd, unix.SHUT_RDWR)
				t.Error("it is not answered")
			}
			s.Close()
			theirs.Close()
			if gate.open.Load() != 0 {
				t.Errorf("%d are left", gate.open.Load())
			}
		})
	}
}

// What a run asks for at a time is bounded before names are looked up for it.
func TestTooMany(t *testing.T) {
	to := listen(t, func(c *net.TCPConn) {})
	s, connect := start(t, nil, to.String())
	s.gate.open.Add(maxOpenAll)
	_, errno := connect(to)
	s.gate.open.Add(-maxOpenAll)
	if errno != unix.EAGAIN {
		t.Errorf("of all runs: %v", errno)
	}
	var held []net.Conn
	for range maxOpen {
		c, errno := connect(netip.MustParseAddrPort("192.0.2.53:53"))
		if errno != 0 {
			t.Fatal(errno)
		}
		held = append(held, c)
	}
	if _, errno := connect(to); errno != unix.EAGAIN {
		t.Errorf("of one run: %v", errno)
	}
	for _, c := range held {
		c.Close()
	}
	list, allowed, refused := s.Close()
	if len(list) != 2 || allowed != 2 || refused != 0 || list[0].Target() != to.String() || list[0].Failed != "too many connections are open" {
		t.Errorf("%+v, %d, %d", list, allowed, refused)
	}
}

// Connections beyond those that are kept by name are counted, with their bytes and
// requests.
func TestConnectionsBeyondAreCounted(t *testing.T) {
	const more = 3
	to := listenMany(t)
	s, connect := start(t, nil, to.String())
	for range maxKept + more {
		c, errno := connect(to)
		if errno != 0 {
			t.Fatal(errno)
		}
		io.WriteString(c, "four")
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
		c.Close()
		if _, errno := connect(netip.MustParseAddrPort("192.0.2.1:1")); errno != unix.EACCES {
			t.Fatal(errno)
		}
	}
	list, allowed, refused := s.Close()
	others := map[bool]Connection{}
	for _, c := range list {
		if c.Host == Others {
			others[c.Refused != ""] = c
		}
	}
	if allowed != maxKept+more || refused != maxKept+more || len(list) != 2*maxKept+2 ||
		others[false].Times != more || others[false].Sent != 4*more || others[true].Times != more {
		t.Errorf("%d and %d, kept %d, further ones %+v", allowed, refused, len(list), others)
	}
}

// listenMany answers nothing on any number of connections.
func listenMany(t testing.TB) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}
