package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/trust"
	"github.com/toold/toold/pdk/abi"
)

const token = "Bearer sesame-0123456789"

// upstream is a server that remembers what it was asked: method, target, Host,
// credential and body.
type upstream struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func (u *upstream) all() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.asked)
}

func newUpstream(t testing.TB, secure bool, h http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{}
	u.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		line := fmt.Sprintf("%s %s %s %q %q", r.Method, r.RequestURI, r.Host, strings.Join(r.Header.Values("Authorization"), "|"), b)
		if err != nil {
			line += " " + err.Error()
		}
		for _, h := range []http.Header{r.Header, r.Trailer} {
			for name, list := range h {
				if slices.Contains(list, "mine") { // what the process says in the place of a credential
					line += " " + name
				}
			}
		}
		u.mu.Lock()
		u.asked = append(u.asked, line)
		u.mu.Unlock()
		if h != nil {
			h(w, r)
		}
	}))
	if secure {
		u.StartTLS()
	} else {
		u.Start()
	}
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) address() netip.AddrPort {
	return u.Listener.Addr().(*net.TCPAddr).AddrPort()
}

// reading is a session that reads the requests to u, by the name localhost, and
// adds a credential to them.
func reading(t testing.TB, u *upstream, change func(*Rules)) (s *Session, said *lines, connect func(netip.AddrPort) (net.Conn, unix.Errno), roots *x509.CertPool) {
	t.Helper()
	host := "localhost:" + strconv.Itoa(int(u.address().Port()))
	a, err := trust.NewAuthority([]string{host})
	if err != nil {
		t.Fatal(err)
	}
	rules := ParseRules([]string{host})
	rules.HTTP = &HTTP{
		Authority:   a,
		Hosts:       []string{host},
		Credentials: []Credential{{Host: host, Header: "Authorization", Value: token}, {Host: host, Header: "x-token", Value: "another"}},
		TLS: func(string, uint16) (*tls.Config, error) {
			pool := x509.NewCertPool()
			if c := u.Certificate(); c != nil {
				pool.AddCert(c)
			}
			return &tls.Config{RootCAs: pool, ServerName: "example.com"}, nil
		},
	}
	if change != nil {
		change(&rules)
	}
	said = &lines{more: make(chan struct{})}
	s, connect = startRules(t, rules, said.add)
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(a.PEM())
	return s, said, connect, roots
}

// lines are what a caller was told.
type lines struct {
	mu   sync.Mutex
	said []string
	more chan struct{}
}

func (l *lines) add(c Connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, c.Advice())
	close(l.more)
	l.more = make(chan struct{})
}

// await waits for a line with word.
func (l *lines) await(t testing.TB, word string) {
	t.Helper()
	for {
		l.mu.Lock()
		more := l.more
		l.mu.Unlock()
		if strings.Contains(l.String(), word) {
			return
		}
		select {
		case <-more:
		case <-time.After(20 * time.Second):
			t.Fatalf("nobody was told %q: %s", word, l)
		}
	}
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.said, "\n")
}

// dial connects a process of the run to u with TLS.
func dial(t testing.TB, u *upstream, connect func(netip.AddrPort) (net.Conn, unix.Errno), roots *x509.CertPool) *tls.Conn {
	t.Helper()
	c, errno := connect(u.address())
	if errno != 0 {
		t.Fatal(errno)
	}
	local := tls.Client(c, &tls.Config{ServerName: "localhost", RootCAs: roots})
	t.Cleanup(func() { local.Close() })
	local.SetDeadline(time.Now().Add(time.Minute))
	if err := local.Handshake(); err != nil {
		t.Fatal(err)
	}
	return local
}

// The host gets each request once, whole and as it was judged, with the credential;
// what could be read in two ways does not reach it, nor what is for another host.
func TestRequestsAreJudged(t *testing.T) {
	u := newUpstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusFound)
		}
	})
	port := strconv.Itoa(int(u.address().Port()))
	host := "localhost:" + port
	want := func(method, target, body string) string {
		return fmt.Sprintf("%s %s %s %q %q", method, target, host, token, body)
	}
	for name, tt := range map[string]struct {
		send  string
		asked []string
		reply string // of the last
	}{
		"a request":          {"GET /a?b=c%2Fd HTTP/1.1\r\nHost: HOST\r\n\r\n", []string{want("GET", "/a?b=c%2Fd", "")}, "200 OK"},
		"escaped":            {"PUT /@scope%2fname HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\n\r\nx", []string{want("PUT", "/@scope%2fname", "x")}, "200 OK"},
		"its own credential": {"GET / HTTP/1.1\r\nHost: HOST\r\nAuthorization: mine\r\nauthorization: mine too\r\n\r\n", []string{want("GET", "/", "")}, "200 OK"},
		"its own by another": {"GET / HTTP/1.1\r\nHost: HOST\r\nX_Token: mine\r\nx-token: mine\r\n\r\n", []string{want("GET", "/", "")}, "200 OK"},
		"its own by a sign":  {"GET / HTTP/1.1\r\nHost: HOST\r\nX.Token: mine\r\nX!TOKEN: mine\r\nx|token: mine\r\n\r\n", []string{want("GET", "/", "")}, "200 OK"},
		"for one hop":        {"GET / HTTP/1.1\r\nHost: HOST\r\nConnection: X-A\r\nX-A: mine\r\nProxy-Authorization: mine\r\nKeep-Alive: mine\r\n\r\n", []string{want("GET", "/", "")}, "200 OK"},
		"credential hop":     {"GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Authorization\r\nAuthorization: mine\r\n\r\n", []string{want("GET", "/", "")}, "200 OK"},
		"credential later":   {"POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n1\r\nx\r\n0\r\nAuthorization: mine\r\n\r\n", []string{want("POST", "/", "x")}, "200 OK"},
		"pipelining":         {"GET /1 HTTP/1.1\r\nHost: HOST\r\n\r\nGET /2 HTTP/1.1\r\nHost: HOST\r\n\r\n", []string{want("GET", "/1", ""), want("GET", "/2", "")}, "200 OK"},
		"second elsewhere":   {"GET /1 HTTP/1.1\r\nHost: HOST\r\n\r\nGET /2 HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n", []string{want("GET", "/1", "")}, "421"},
		"length and chunks":  {"POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG", []string{want("POST", "/", "")}, "200 OK"},
		"two lengths":        {"POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 40\r\n\r\nx", nil, "400"},
		"other coding":       {"POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", nil, "501"},
		"coding by tab":      {"POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\tchunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", []string{want("POST", "/", "")}, "200 OK"},
		"coding with space":  {"POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", nil, "400"},
		"folded":             {"POST / HTTP/1.1\r\nHost: HOST\r\nX: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\nx", []string{want("POST", "/", "x")}, "200 OK"},
		"bare CR":            {"GET / HTTP/1.1\r\nHost: HOST\r\nX: a\rHost: elsewhere.example\r\n\r\n", nil, "400"},
		"NUL":                {"GET / HTTP/1.1\r\nHost: HOST\r\nX: a\x00b\r\n\r\n", nil, "400"},
		"absolute":           {"GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n", nil, "400"},
		"absolute elsewhere": {"GET http://elsewhere.example/ HTTP/1.1\r\nHost: HOST\r\n\r\n", nil, "400"},
		"authority":          {"CONNECT elsewhere.example:443 HTTP/1.1\r\nHost: HOST\r\n\r\n", nil, "405"},
		"asterisk":           {"OPTIONS * HTTP/1.1\r\nHost: HOST\r\n\r\n", nil, "400"},
		"an echo":            {"TRACE / HTTP/1.1\r\nHost: HOST\r\n\r\n", nil, "405"},
		"another host":       {"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n", nil, "421"},
		"another port":       {"GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n", nil, "421"},
		"no port":            {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", nil, "421"},
		"two hosts":          {"GET / HTTP/1.1\r\nHost: HOST\r\nHost: elsewhere.example\r\n\r\n", nil, "400"},
		"no host":            {"GET / HTTP/1.0\r\n\r\n", nil, "421"},
		"host with user":     {"GET / HTTP/1.1\r\nHost: a@HOST\r\n\r\n", nil, "400"},
		"dots":               {"GET /a/../b HTTP/1.1\r\nHost: HOST\r\n\r\n", nil, "400"},
		"escaped dots":       {"GET /a/%2E%2e/b HTTP/1.1\r\nHost: HOST\r\n\r\n", nil, "400"},
		"dots behind slash":  {"GET /a%2f..%2fb HTTP/1.1\r\nHost: HOST\r\n\r\n", nil, "400"},
		"upgrade":            {"GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", nil, "403"},
		"upgrade to h2c":     {"GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n", []string{want("GET", "/", "")}, "200 OK"},
		"preface of h2":      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", nil, "4"},
		"TLS in TLS":         {"\x16\x03\x01\x00\x10\x01\x00\x00\x0c\x03\x03\r\n\r\n", nil, "400"},
		"redirect":           {"GET /redirect HTTP/1.1\r\nHost: HOST\r\n\r\n", []string{want("GET", "/redirect", "")}, "Location: https://elsewhere.example/"},
		"long head":          {"GET / HTTP/1.1\r\nHost: HOST\r\nX: " + strings.Repeat("x", maxHead+8<<10) + "\r\n\r\n", nil, "431"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(u.all())
			s, _, connect, roots := reading(t, u, nil)
			c := dial(t, u, connect, roots)
			go io.WriteString(c, strings.ReplaceAll(tt.send, "HOST", host))
			replies := len(tt.asked)
			if tt.reply[0] == '4' || tt.reply[0] == '5' {
				replies++
			}
			r := bufio.NewReader(c)
			last := ""
			for range replies {
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					t.Error(err)
					break
				}
				var b bytes.Buffer
				resp.Write(&b)
				last = b.String()
			}
			c.Close()
			s.Close()
			if !strings.Contains(last, tt.reply) {
				t.Errorf("answered %q, want %q", last, tt.reply)
			}
			if got := u.all()[before:]; !slices.Equal(got, tt.asked) {
				t.Errorf("the host was asked\n%q, want\n%q", got, tt.asked)
			}
		})
	}
}

var errDenied = errors.New("denied by rule test")

// What a policy refuses does not reach the host, and all that reaches it was judged
// in the form in which it was sent.
func TestRequestsAreAsked(t *testing.T) {
	u := newUpstream(t, true, nil)
	var asked []string
	var mu sync.Mutex
	s, _, connect, roots := reading(t, u, func(r *Rules) {
		r.Ask = func(_ context.Context, w *abi.Wire) error {
			mu.Lock()
			defer mu.Unlock()
			line := w.On + " " + w.Method + " " + w.Host + " " + w.Path
			for _, ref := range w.Refs {
				line += fmt.Sprintf(" %s %.2s %.2s", ref.Name, ref.Old, ref.New)
			}
			asked = append(asked, line)
			if strings.HasPrefix(w.Path, "/no") {
				return errDenied
			}
			return nil
		}
	})
	c := dial(t, u, connect, roots)
	r := bufio.NewReader(c)
	send := func(c io.Writer, r *bufio.Reader, text string) int {
		t.Helper()
		io.WriteString(c, strings.ReplaceAll(text, "HOST", "localhost:"+strconv.Itoa(int(u.address().Port()))))
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if got := send(c, r, "GET //yes/%41?a HTTP/1.1\r\nHost: HOST\r\n\r\n"); got != 200 {
		t.Error(got)
	}
	if got := send(c, r, "DELETE /no/way HTTP/1.1\r\nHost: HOST\r\n\r\n"); got != 403 {
		t.Error(got)
	}
	zero, one := strings.Repeat("0", 40), strings.Repeat("1", 40)
	command := func(name string) string {
		line := zero + " " + one + " refs/heads/" + name + "\x00 report-status"
		return fmt.Sprintf("%04x%s0000", len(line)+4, line)
	}
	for path, status := range map[string]int{"/repo/git-receive-pack": 200, "/no/git-receive-pack": 403, "/x/git%2dreceive-pack": 200} {
		c := dial(t, u, connect, roots)
		body := command("main") + "PACK"
		if got := send(c, bufio.NewReader(c), fmt.Sprintf("POST %s HTTP/1.1\r\nHost: HOST\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)); got != status {
			t.Errorf("%s: %d", path, got)
		}
	}
	// What cannot be read is not sent on.
	c = dial(t, u, connect, roots)
	if got := send(c, bufio.NewReader(c), "POST /bad/git-receive-pack HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\n\r\nPACK"); got != 400 {
		t.Error(got)
	}
	// Neither is what some server may take for a push, or for another request.
	for _, head := range []string{
		"POST /bad/git-receive-pack;v=1 HTTP/1.1\r\n", "POST /bad/Git-Receive-Pack HTTP/1.1\r\n", "POST /bad/git%252dreceive-pack HTTP/1.1\r\n",
		"POST /bad/git-receive-pack%20 HTTP/1.1\r\n", "POST /bad%5cgit-receive-pack HTTP/1.1\r\n", "PUT /bad/git-receive-pack;x/y HTTP/1.1\r\n",
		"POST /bad HTTP/1.1\r\nContent-Type: application/x-git-receive-pack-request\r\n",
		"GET /bad HTTP/1.1\r\nX-HTTP-Method-Override: DELETE\r\n", "POST /bad HTTP/1.1\r\nx_http_method: DELETE\r\n", "POST /bad HTTP/1.1\r\nX.HTTP~Method-Override: DELETE\r\n", "GET /bad HTTP/1.1\r\nX-Original-URL: /no/way\r\n",
	} {
		c := dial(t, u, connect, roots)
		if got := send(c, bufio.NewReader(c), head+"Host: HOST\r\nContent-Length: 0\r\n\r\n"); got != 400 {
			t.Errorf("%q: %d", head, got)
		}
	}
	all := strings.Join(u.all(), "\n")
	for _, want := range []string{`GET //yes/%41?a `, "POST /repo/git-receive-pack ", "PACK"} {
		if !strings.Contains(all, want) {
			t.Errorf("the host was not asked %q: %s", want, all)
		}
	}
	if strings.Contains(all, "/no") || strings.Contains(all, "/bad") {
		t.Errorf("the host was asked %s", all)
	}
	for _, want := range []string{"http GET localhost //yes/%41?a", "http DELETE localhost /no/way", "git-push  localhost /repo refs/heads/main 00 11", "git-push  localhost /x refs/heads/main 00 11"} {
		if !slices.Contains(asked, want) {
			t.Errorf("the policy was not asked %q: %q", want, asked)
		}
	}
	list, _, _ := s.Close()
	if len(list) == 0 || len(list[0].Requests) != 2 || list[0].Requests[0].Status != 200 || list[0].Requests[1].Refused != errDenied.Error() || list[0].Sent == 0 {
		t.Errorf("%+v", list)
	}
}

// What a host answers to a request with a credential is masked, head and body, and
// comes as the host was asked for it or not at all.
func TestAnswersAreMasked(t *testing.T) {
	u := newUpstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		if r.URL.Path == "/encoded" {
			w.Header().Set("Content-Encoding", "deflate")
		}
		if r.URL.Path == "/twice" {
			w.Header()["Content-Encoding"] = []string{"identity", "deflate"}
		}
		w.Header().Set("Trailer", "X-Late")
		fmt.Fprint(w, r.Header.Get("Authorization"), r.Header.Get("Accept-Encoding"), r.Header.Get("Range"))
		w.Header().Set("X-Late", r.Header.Get("Authorization"))
	})
	_, _, connect, roots := reading(t, u, func(r *Rules) {
		r.HTTP.MaskText = func(s string) string { return strings.ReplaceAll(s, token, "[secret]") }
		r.HTTP.MaskBody = func(r io.Reader) io.Reader {
			b, _ := io.ReadAll(r)
			return bytes.NewReader(bytes.ReplaceAll(b, []byte(token), []byte("***")))
		}
	})
	get := func(path string) string {
		c := dial(t, u, connect, roots)
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost:%d\r\nAccept-Encoding: gzip\r\nRange: bytes=1-\r\nConnection: close\r\n\r\n", path, u.address().Port())
		b, _ := io.ReadAll(c)
		return string(b)
	}
	if got := get("/"); strings.Contains(got, token) || !strings.Contains(got, "X-Echo: [secret]") || !strings.Contains(got, "***identity\r\n") || !strings.HasPrefix(got, "HTTP/1.1 200 OK") {
		t.Errorf("%q", got)
	}
	for _, path := range []string{"/encoded", "/twice"} {
		if got := get(path); strings.Contains(got, token) || !strings.HasPrefix(got, "HTTP/1.1 502 ") || !strings.Contains(got, "encoded as") {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// A credential goes over TLS to a host that is who it is to be, and is not sent
// otherwise.
func TestCredentialNeedsTLS(t *testing.T) {
	get := func(c net.Conn, u *upstream) string {
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n\r\n", u.address().Port())
		b, _ := io.ReadAll(c)
		return string(b)
	}
	plain := newUpstream(t, false, nil)
	_, said, connect, _ := reading(t, plain, nil)
	c, errno := connect(plain.address())
	if errno != 0 {
		t.Fatal(errno)
	}
	if got := get(c, plain); got != "" || len(plain.all()) > 0 || !strings.Contains(said.String(), "it is not encrypted") {
		t.Errorf("in the clear: %q, %q, %s", got, plain.all(), said)
	}
	c.Close()
	_, _, connect, _ = reading(t, plain, func(r *Rules) { r.HTTP.Credentials[0].Plain, r.HTTP.Credentials[1].Plain = true, true })
	if c, errno = connect(plain.address()); errno != 0 {
		t.Fatal(errno)
	}
	if got := get(c, plain); !strings.Contains(got, "200 OK") || len(plain.all()) != 1 || !strings.Contains(plain.all()[0], token) {
		t.Errorf("in the clear, as the operator wants it: %q, %q", got, plain.all())
	}
	c.Close()

	secure := newUpstream(t, true, nil)
	_, said, connect, roots := reading(t, secure, func(r *Rules) {
		r.HTTP.TLS = func(string, uint16) (*tls.Config, error) { return &tls.Config{}, nil }
	})
	if got := get(dial(t, secure, connect, roots), secure); !strings.Contains(got, "502 Bad Gateway") || len(secure.all()) > 0 || !strings.Contains(said.String(), "certificate") {
		t.Errorf("to anybody: %q, %q, %s", got, secure.all(), said)
	}
	// Who does not trust the call's authority gets nowhere, and is told why.
	_, said, connect, _ = reading(t, secure, nil)
	if c, errno = connect(secure.address()); errno != 0 {
		t.Fatal(errno)
	}
	defer c.Close()
	if err := tls.Client(c, &tls.Config{ServerName: "localhost"}).Handshake(); err == nil {
		t.Error("the system trusts the call's authority")
	}
	c.Close()
	if said.await(t, "did not take the certificate"); len(secure.all()) > 0 {
		t.Errorf("%q", secure.all())
	}
}

// A host is offered HTTP/1.1 and nothing else, on both sides.
func TestOnlyHTTP1(t *testing.T) {
	u := newUpstream(t, true, nil)
	_, _, connect, roots := reading(t, u, nil)
	c, errno := connect(u.address())
	if errno != 0 {
		t.Fatal(errno)
	}
	defer c.Close()
	if err := tls.Client(c, &tls.Config{ServerName: "localhost", RootCAs: roots, NextProtos: []string{"h2"}}).Handshake(); err == nil {
		t.Error("h2 is taken")
	}
	if c, errno = connect(u.address()); errno != 0 {
		t.Fatal(errno)
	}
	defer c.Close()
	local := tls.Client(c, &tls.Config{ServerName: "localhost", RootCAs: roots, NextProtos: []string{"h2", "http/1.1"}})
	if err := local.Handshake(); err != nil || local.ConnectionState().NegotiatedProtocol != "http/1.1" {
		t.Errorf("%v, %q", err, local.ConnectionState().NegotiatedProtocol)
	}
}

// FuzzHead looks for a head that the host reads otherwise than it was judged.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "POST /a?b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n1\r\nx\r\n0\r\n\r\n",
		"GET http://x/ HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", "GET //a/%2e HTTP/1.0\r\nhost: h\r\nConnection: authorization\r\nA_uthorization: x\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	to, credentials := &Connection{Host: "h", Port: 443}, []Credential{{Header: "Authorization", Value: token}}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		out, _, why := rewrite(to, true, credentials, r.WithContext(t.Context()))
		if why != "" {
			return
		}
		if out.Header.Get("Authorization") != "" {
			t.Fatalf("its own credential stays: %q", b)
		}
		var wire bytes.Buffer
		if out.Write(&wire) != nil {
			return
		}
		again, err := http.ReadRequest(bufio.NewReader(&wire))
		if err != nil {
			t.Fatalf("%q is sent on as what cannot be read: %v", b, err)
		}
		if again.Host != "h" && again.Host != "h:443" || again.Method != out.Method || again.RequestURI != out.URL.RequestURI() || len(again.TransferEncoding) > 0 && again.Header.Get("Content-Length") != "" {
			t.Fatalf("%q is read as %s %s of %s", b, again.Method, again.RequestURI, again.Host)
		}
	})
}

// Bodies stream through, both ways at once, in memory that does not grow with them.
func TestBodiesAreStreamed(t *testing.T) {
	const size = 256 << 20
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	u := &upstream{}
	u.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, 64<<10))
		w.Header().Set("X-Got", fmt.Sprint(n, err))
		for sent := 0; sent < size; sent += len(chunk) {
			w.Write(chunk)
		}
	}))
	t.Cleanup(u.Close)
	s, _, connect, roots := reading(t, u, func(r *Rules) {
		r.Ask = func(context.Context, *abi.Wire) error { return nil }
	})
	c := dial(t, u, connect, roots)
	line := strings.Repeat("0", 40) + " " + strings.Repeat("1", 40) + " refs/heads/main\x00 report-status"
	head := fmt.Sprintf("%04x%s0000", len(line)+4, line)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	go func() {
		fmt.Fprintf(c, "POST /r/git-receive-pack HTTP/1.1\r\nHost: localhost:%d\r\nContent-Length: %d\r\n\r\n%s", u.address().Port(), len(head)+size, head)
		for sent := 0; sent < size; sent += len(chunk) {
			c.Write(chunk)
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, 64<<10))
	if err != nil || n != size || resp.Header.Get("X-Got") != fmt.Sprint(len(head)+size, " <nil>") {
		t.Errorf("%d bytes came, and %s went: %v", n, resp.Header.Get("X-Got"), err)
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.Sys) - int64(before.Sys); grown > 32<<20 {
		t.Errorf("%d bytes of memory for %d", grown, size)
	}
	list, _, _ := s.Close()
	if len(list) != 1 || list[0].Sent < size || list[0].Received < size {
		t.Errorf("%+v", list)
	}
}

// A head that does not end holds nothing up, and is bounded in time; what comes of a
// run that ends in the middle is closed.
func TestUnfinishedRequests(t *testing.T) {
	release := make(chan struct{})
	u := newUpstream(t, true, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	s, _, connect, roots := reading(t, u, nil)
	host := fmt.Sprintf("localhost:%d", u.address().Port())
	for _, text := range []string{
		"", "G", "GET / HTTP/1.1\r\nHost: " + host, "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 10\r\n\r\nx",
	} {
		io.WriteString(dial(t, u, connect, roots), text)
	}
	c, errno := connect(u.address()) // says nothing at all
	if errno != 0 {
		t.Fatal(errno)
	}
	defer c.Close()
	done := make(chan struct{})
	go func() { s.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("the session does not end")
	}
}

// What begins as SSH does is passed through to a host that speaks it, and to no other:
// it could be a request with others behind it.
func TestOnlySSHIsPassed(t *testing.T) {
	const sent = "SSH-2.0-x /a HTTP/1.1\r\nHost: h\r\n\r\nDELETE /all HTTP/1.1\r\nHost: h\r\n\r\n"
	for first, passed := range map[string]bool{"SSH-2.0-host\r\n": true, "220 mail\r\n": false, "": false} {
		got := make(chan string, 1)
		host := listen(t, func(c *net.TCPConn) {
			io.WriteString(c, first)
			c.CloseWrite()
			b, _ := io.ReadAll(c) // it may be reset
			got <- string(b)
		})
		rules := ParseRules([]string{host.String()})
		rules.HTTP = &HTTP{Hosts: []string{host.String()}}
		rules.Ask = func(context.Context, *abi.Wire) error { return errDenied }
		s, connect := startRules(t, rules, nil)
		c, errno := connect(host)
		if errno != 0 {
			t.Fatal(errno)
		}
		io.WriteString(c, sent)
		c.(*net.TCPConn).CloseWrite()
		answer, _ := io.ReadAll(c)
		c.Close()
		if read := <-got; passed && (read != sent || string(answer) != first) || !passed && (read != "" || len(answer) > 0) {
			t.Errorf("a host that begins with %q was sent %q, and answered %q", first, read, answer)
		}
		if _, _, refused := s.Close(); (refused == 0) != passed {
			t.Errorf("a host that begins with %q: %d refused", first, refused)
		}
	}
}
