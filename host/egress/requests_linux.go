package egress

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/form"
	"github.com/toold/toold/host/hello"
	"github.com/toold/toold/host/hostrule"
	"github.com/toold/toold/host/sigv4"
	"github.com/toold/toold/pdk/abi"
)

const (
	// maxHead bounds the head of a request, and maxAnswerHead that of an answer, in
	// bytes.
	maxHead       = 64 << 10
	maxAnswerHead = 256 << 10
	// headTime is how long a process may take over the head of a request, or over a
	// handshake, handshakeTime a host over a handshake.
	headTime      = 30 * time.Second
	handshakeTime = 30 * time.Second
	// copySize is how much of a body is in memory.
	copySize = 64 << 10
)

var bodies = sync.Pool{New: func() any { return new([copySize]byte) }}

// requests is the reading of the requests on one connection of a run. Each is
// parsed, judged and written anew, to the one host that the connection was made
// to. So what the process sent is never what the host reads, and there is one way
// to read it.
type requests struct {
	*pair
	secure      bool
	config      *tls.Config // of the host
	credentials []Credential
	transport   *http.Transport

	ctx    context.Context
	cancel context.CancelCauseFunc
	// first is the connection that there is already; taken says that it is used.
	first chan opened
	taken atomic.Bool

	current        atomic.Pointer[net.TCPConn] // to the host
	above          atomic.Pointer[bulk]        // as current, beneath TLS
	below          *bulk                       // to the process, beneath TLS; nil without
	asked          atomic.Bool                 // something was sent
	sent, received atomic.Int64
	handlers       sync.WaitGroup
}

// opened is a connection that requests are written to, or why there is none.
type opened struct {
	conn net.Conn
	err  error
}

// read reads the requests of p, which begins with begin: of TLS, where names is not
// nil.
func (p *pair) read(begin []byte, names *hello.Names) {
	if len(begin) == 0 { // it ended before it wanted anything, as a spare one does
		p.upstream.Close()
		p.local.Close()
		return
	}
	h, c := p.session.rules.HTTP, p.connection
	x := &requests{pair: p, secure: names != nil, credentials: h.credentials(c.Host, c.Port), first: make(chan opened, 1)}
	x.ctx, x.cancel = context.WithCancelCause(p.session.rest)
	defer x.cancel(nil)
	p.holdsRequests()
	// The run is over and what it sent delivered, or this is over: whatever waits here
	// ends.
	defer context.AfterFunc(x.ctx, func() { p.local.Close() })()
	defer p.local.Close()
	if !x.secure {
		// It is not said what the process wanted, so that it is not answered.
		for _, credential := range x.credentials {
			if !credential.Plain {
				p.upstream.Close()
				p.session.refuse(c, fmt.Sprintf("it is not encrypted, and requests to %s get a credential; use https", c.Host))
				reset(p.local)
				return
			}
		}
	}
	x.transport = &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return x.next(ctx) },
		DialTLSContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return x.next(ctx) },
		DisableCompression:     true,
		MaxConnsPerHost:        1,
		MaxResponseHeaderBytes: maxAnswerHead,
		WriteBufferSize:        copySize, // and none to read: a body goes into its own as it comes
		ExpectContinueTimeout:  time.Second,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	defer x.transport.CloseIdleConnections()
	if x.secure {
		config, err := h.TLS(c.Host, c.Port)
		if err != nil {
			p.upstream.Close()
			p.session.refuse(c, err.Error())
			reset(p.local)
			return
		}
		x.config = config
	}
	// The host is spoken to while the process is.
	p.session.work.Go(func() {
		conn, err := x.open(x.ctx, p.upstream)
		x.first <- opened{conn, err}
	})
	var local net.Conn = &begun{Conn: p.local, begin: begin}
	if x.secure {
		if local = x.greet(local); local == nil {
			x.close()
			return
		}
	}
	serve(local, x)
	x.handlers.Wait()
	// Some look at a certificate when the handshake is over.
	if x.secure && !x.asked.Load() && x.session.ctx.Err() == nil {
		x.untrusted(errors.New("it ended the connection without a request"))
	}
	x.close()
}

// close ends the connection to the host where nothing has used it.
func (x *requests) close() {
	x.cancel(nil)
	if !x.taken.Swap(true) {
		if d := <-x.first; d.conn != nil {
			d.conn.Close()
		}
	}
	x.session.mu.Lock()
	x.connection.Sent, x.connection.Received = x.sent.Load(), x.received.Load()
	x.session.mu.Unlock()
}

// greet makes TLS of conn, on which the process has begun it; nil where it does not
// trust this host.
func (x *requests) greet(conn net.Conn) net.Conn {
	c := x.connection
	x.below = &bulk{Conn: conn}
	local := tls.Server(x.below, &tls.Config{
		MinVersion:                  tls.VersionTLS12,
		NextProtos:                  []string{"http/1.1"},
		DynamicRecordSizingDisabled: true,
		SessionTicketsDisabled:      true,
		GetCertificate:              func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return x.session.leaf(c.Host) },
	})
	ctx, cancel := context.WithTimeout(x.ctx, headTime)
	defer cancel()
	if err := local.HandshakeContext(ctx); err != nil {
		if x.session.ctx.Err() == nil {
			x.untrusted(err)
		}
		return nil
	}
	return &bulkTLS{local, x.below}
}

// leaf is a certificate for host. Those of other runs are not used, which could be
// told by the time that it takes.
func (s *Session) leaf(host string) (*tls.Certificate, error) {
	s.mu.Lock()
	c := s.leaves[host]
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := s.rules.HTTP.Authority.Leaf(host)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaves == nil {
		s.leaves = map[string]*tls.Certificate{}
	}
	s.leaves[host] = c
	return c, nil
}

// untrusted says that the process did not take the certificate of this host.
func (x *requests) untrusted(err error) {
	x.session.failed(x.connection, fmt.Errorf("the program did not take the certificate that toold has for %s, whose requests are read: %w; "+
		"have it trust the file that SSL_CERT_FILE names, or, where it trusts one certificate only, let no secret name the host and hand the credential over in env or file", x.connection.Host, err))
}

// next is a connection to the host: the one that there is, or, where that has been
// used and ended, another one.
func (x *requests) next(ctx context.Context) (net.Conn, error) {
	if !x.taken.Swap(true) {
		select {
		case d := <-x.first:
			return d.conn, d.err
		case <-x.ctx.Done():
			x.taken.Store(false)
			return nil, context.Cause(x.ctx)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := x.dial(ctx)
	if err != nil {
		return nil, err
	}
	return x.open(ctx, conn)
}

// open makes of conn what requests are written to.
func (x *requests) open(ctx context.Context, conn *net.TCPConn) (net.Conn, error) {
	x.current.Store(conn)
	counted := &counted{TCPConn: conn, sent: &x.sent, received: &x.received}
	if !x.secure {
		return counted, nil
	}
	config := x.config.Clone()
	if config.ServerName == "" {
		config.ServerName = x.connection.Host
	}
	config.NextProtos = []string{"http/1.1"}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	config.DynamicRecordSizingDisabled = true
	raw := &bulk{Conn: counted}
	upstream := tls.Client(raw, config)
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := upstream.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	x.above.Store(raw)
	return &bulkTLS{upstream, raw}, nil
}

// ServeHTTP passes one request on, or refuses it.
func (x *requests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.handlers.Add(1)
	defer x.handlers.Done()
	path := r.URL.EscapedPath()
	seen := Request{Method: clip(r.Method, maxPath), Path: clip(path, maxPath)}
	defer func() { x.keep(seen) }()
	refuse := func(status int, why string) {
		seen.Status, seen.Refused = status, why
		refused := *x.connection
		refused.Requests = []Request{seen}
		x.session.tellOnce(refused.Target()+" "+seen.Method+" "+seen.Path, refused)
		answerText(w, status, refused.Advice())
	}
	ctx, wrote, end := x.asking()
	defer end()
	out, status, why := x.rewrite(r.WithContext(ctx))
	if why != "" {
		refuse(status, why)
		return
	}
	sign, payload := x.signer(), ""
	if sign != nil {
		if payload, why = sign.Prepare(out); why != "" {
			refuse(http.StatusBadRequest, why)
			return
		}
	}
	if x.session.rules.Ask != nil {
		held := &holding{session: x.session}
		defer held.end()
		refused, malformed := x.judge(out.Context(), out, held)
		if malformed != nil {
			refuse(cmp.Or(heldStatus(malformed), http.StatusBadRequest), malformed.Error())
			return
		}
		if refused != nil { // of which the caller has been told
			seen.Status, seen.Refused = http.StatusForbidden, refused.Error()
			answerText(w, seen.Status, refused.Error())
			return
		}
	}
	for _, c := range x.credentials {
		if c.Sign == nil {
			out.Header[textproto.CanonicalMIMEHeaderKey(c.Header)] = []string{c.Value}
		}
	}
	hide, status, why := x.signed(sign, out, payload)
	if why != "" {
		refuse(status, why)
		return
	}
	if out.ContentLength < 0 {
		out.Body = &gathered{out.Body, x.below}
	}
	http.NewResponseController(w).EnableFullDuplex()
	resp, err := x.transport.RoundTrip(out)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		panic(http.ErrAbortHandler) // the run is over
	case errors.Is(err, form.ErrOverridden):
		refuse(http.StatusBadRequest, err.Error())
		return
	default:
		seen.Status = http.StatusBadGateway
		x.session.failed(x.connection, err)
		answerText(w, seen.Status, fmt.Sprintf("%s could not be asked: %s", x.connection.Target(), hide.mask(err.Error())))
		return
	}
	defer resp.Body.Close()
	seen.Status = resp.StatusCode
	if !x.answer(w, resp, hide, refuse) {
		// The process has gone, or the host has. What the first sent is delivered,
		// which a host that nobody reads from would not wait for.
		read := make(chan struct{})
		go func() { defer close(read); io.Copy(io.Discard, resp.Body) }()
		x.delivered(ctx, wrote)
		resp.Body.Close()
		<-read
		panic(http.ErrAbortHandler) // so that it is not taken for the whole
	}
}

// signed signs the request, where there is a signer, and returns what is masked in its
// answer.
func (x *requests) signed(by *sigv4.Signer, out *http.Request, payload string) (hide masks, status int, why string) {
	h := x.session.rules.HTTP
	hide = masks{h.MaskText, h.MaskBody}
	if by == nil {
		return hide, 0, ""
	}
	signature, status, why := x.sign(by, out, payload)
	if why == "" && h.Masks != nil { // whoever is shown it could send the request again
		hide.text, hide.body = h.Masks(signature)
	}
	return hide, status, why
}

// asking returns the context of one request to the host, which ends with the run and at
// end, and a channel that is closed when the request was written. It is not the context
// of the process's request, which ends where the process sends no more: it may have
// ended its side only, or have gone, and what it sent before that counts.
func (x *requests) asking() (ctx context.Context, wrote chan struct{}, end func()) {
	ctx, cancel := context.WithCancel(x.ctx)
	wrote = make(chan struct{})
	var once sync.Once
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { once.Do(func() { close(wrote) }) }})
	// When the run is over, nobody waits for an answer.
	stop := context.AfterFunc(x.session.ctx, func() {
		x.delivered(ctx, wrote)
		cancel()
	})
	return ctx, wrote, func() { stop(); cancel() }
}

// delivered waits until the host has a request, which wrote tells is written, or for
// drain at most.
func (x *requests) delivered(ctx context.Context, wrote chan struct{}) {
	over := time.NewTimer(drain)
	defer over.Stop()
	select {
	case <-wrote:
		if conn := x.current.Load(); conn != nil {
			deliver(ctx, conn, false)
		}
	case <-over.C:
	case <-ctx.Done():
	}
}

// judge asks whether out may be sent. What it has read of it is held.
func (x *requests) judge(ctx context.Context, out *http.Request, held *holding) (refused, malformed error) {
	for name := range out.Header {
		if slices.ContainsFunc(otherRequest, func(other string) bool { return sameHeader(name, other) }) {
			return nil, fmt.Errorf("its header %s has some servers do another request than the one that is judged", clip(name, maxPath))
		}
	}
	err := x.session.rules.Ask(ctx, &abi.Wire{On: abi.WireHTTP, Host: x.connection.Host, Port: int(x.connection.Port), Method: out.Method, Path: out.URL.RequestURI()})
	if err != nil {
		return err, nil
	}
	if repository, ok := isPush(out); ok {
		return x.judgePush(ctx, repository, out, held)
	}
	if mayBePush(out) {
		return nil, errors.New("it may be a push to some server, and is not written as git writes one")
	}
	if out.Method == http.MethodPost && out.Body != http.NoBody && form.Is(out.Header["Content-Type"]) {
		if why := form.Unreadable(out.Header); why != "" {
			return nil, errors.New(why)
		}
		out.Body = form.NewReader(out.Body)
	}
	return nil, nil
}

// otherRequest are headers by which servers take a request for one with another method
// or path.
var otherRequest = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Method", "X-Original-Url", "X-Rewrite-Url", "X-Amz-Copy-Source", "X-Amz-Rename-Source"}

// rewrite is the request that the host gets in the place of r, or why it gets none,
// with the status that says so.
func (x *requests) rewrite(r *http.Request) (out *http.Request, status int, why string) {
	c := x.connection
	scheme, usual := "http", uint16(80)
	if x.secure {
		scheme, usual = "https", 443
	}
	name, port := hostrule.Split(r.Host)
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace || strings.EqualFold(r.Method, "TRACK"):
		return nil, http.StatusMethodNotAllowed, "this method is not passed on"
	case r.URL.IsAbs() || r.URL.Host != "" || r.URL.User != nil || !strings.HasPrefix(r.RequestURI, "/"):
		return nil, http.StatusBadRequest, "its target is not a path"
	case name != c.Host || port == "" && c.Port != usual || port != "" && port != strconv.Itoa(int(c.Port)):
		return nil, http.StatusMisdirectedRequest, fmt.Sprintf("its Host is %q, and the connection was made to %s", clip(r.Host, maxPath), c.Target())
	case hasDots(r.URL.Path):
		return nil, http.StatusBadRequest, "its path has . or .. in it, which servers read in more than one way"
	}
	if upgrade := r.Header.Get("Upgrade"); upgrade != "" && !strings.EqualFold(upgrade, "h2c") { // that may be ignored
		return nil, http.StatusForbidden, fmt.Sprintf("it asks for another protocol, %q, in which requests could not be read", clip(upgrade, maxPath))
	}
	host := c.Host
	if port != "" {
		host = net.JoinHostPort(c.Host, port)
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	out = r.WithContext(r.Context())
	target := *r.URL
	target.Scheme, target.Host, target.Fragment = scheme, host, ""
	out.URL, out.Host, out.RequestURI = &target, host, ""
	out.Header, out.Trailer, out.Close = r.Header.Clone(), nil, false
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	forThisHop(out.Header)
	if len(x.credentials) > 0 {
		for name := range out.Header {
			for _, credential := range x.credentials {
				if credential.Header != "" && sameHeader(name, credential.Header) {
					delete(out.Header, name)
				}
			}
		}
		// What is encoded, and answers in parts, could hold a credential that nobody
		// would find.
		out.Header["Accept-Encoding"] = []string{"identity"}
		if s := x.signer(); s == nil || s.SendsToken() { // a signature alone sends no secret
			delete(out.Header, "Range")
			delete(out.Header, "If-Range")
		}
	}
	if _, said := out.Header["User-Agent"]; !said {
		out.Header["User-Agent"] = nil // instead of that of net/http
	}
	return out, 0, ""
}

// signer is what signs the requests; nil: nothing does.
func (x *requests) signer() *sigv4.Signer {
	for _, c := range x.credentials {
		if c.Sign != nil {
			return c.Sign
		}
	}
	return nil
}

// sign signs out, as sigv4.Signer.Prepare left it with payload. A body that is to be hashed
// is in memory until the host has it. status and why say that it is refused.
func (x *requests) sign(s *sigv4.Signer, out *http.Request, payload string) (signature string, status int, why string) {
	if payload == "" {
		h := &holding{session: x.session}
		body, err := h.hold(out.Body, x.readBy)
		if err != nil {
			h.end()
			// The time to read by stays: what follows of the body is not waited for.
			switch status := heldStatus(err); {
			case status != 0:
				return "", status, err.Error()
			case errors.Is(err, form.ErrOverridden):
				return "", http.StatusBadRequest, err.Error()
			}
			return "", http.StatusBadRequest, "its body has no end"
		}
		x.readBy(time.Time{})
		payload = body.hash
		if out.ContentLength, out.Body = body.size, body; body.size == 0 {
			h.end()
			out.Body = http.NoBody
		}
	}
	signature, err := s.Sign(out, payload, time.Now())
	if err != nil {
		out.Body.Close()
		return "", http.StatusBadGateway, "it cannot be signed: " + err.Error()
	}
	return signature, 0, ""
}

// answer passes resp on, and reports whether that was done to its end.
func (x *requests) answer(w http.ResponseWriter, resp *http.Response, hide masks, refuse func(int, string)) bool {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		refuse(http.StatusBadGateway, "the host answers in another protocol")
		return true
	}
	forThisHop(resp.Header)
	body := io.Reader(resp.Body)
	if len(x.credentials) > 0 {
		e := strings.Join(resp.Header["Content-Encoding"], ", ")
		if e != "" && !strings.EqualFold(e, "identity") && resp.ContentLength != 0 {
			refuse(http.StatusBadGateway, fmt.Sprintf("the answer is encoded as %q, though it was asked not to be, and a credential could not be hidden in it", clip(e, maxPath)))
			return true
		}
		resp.Header = hide.header(resp.Header)
		if hide.body != nil {
			body = hide.body(body)
		}
	}
	header := w.Header()
	for name, list := range resp.Header {
		header[name] = list
	}
	for _, name := range []string{"Date", "Content-Type"} { // which net/http would add
		if _, said := header[name]; !said {
			header[name] = nil
		}
	}
	w.WriteHeader(resp.StatusCode)
	flush := http.NewResponseController(w)
	buf := bodies.Get().(*[copySize]byte)
	defer bodies.Put(buf)
	for {
		n, err := x.above.Load().readAll(body, buf[:])
		if n > 0 {
			x.below.hold()
			_, lost := w.Write(buf[:n])
			unflushed := flush.Flush()
			if late := x.below.release(); lost != nil || unflushed != nil || late != nil {
				return false
			}
		}
		if err == io.EOF {
			return true
		}
		if err != nil {
			return false
		}
	}
}

// masks hide credentials; either may be nil.
type masks struct {
	text func(string) string
	body func(io.Reader) io.Reader
}

func (m masks) mask(text string) string {
	if m.text != nil {
		return m.text(text)
	}
	return text
}

func (m masks) header(h http.Header) http.Header {
	masked := make(http.Header, len(h))
	for name, list := range h {
		for _, v := range list {
			name := m.mask(name)
			masked[name] = append(masked[name], m.mask(v))
		}
	}
	return masked
}

// keep notes a request.
func (x *requests) keep(seen Request) {
	hide := masks{text: x.session.rules.HTTP.MaskText}
	seen.Path, seen.Refused = hide.mask(seen.Path), hide.mask(seen.Refused)
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	if len(x.connection.Requests) < maxKept {
		x.connection.Requests = append(x.connection.Requests, seen)
	} else {
		x.connection.MoreRequests++
	}
}

// forThisHop takes out of h what is said to the next hop only.
func forThisHop(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings"} {
		delete(h, name)
	}
}

// hasDots reports whether a path, which is decoded, has a segment that stands for
// another one.
func hasDots(path string) bool {
	for segment := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		if segment, _, _ = strings.Cut(segment, ";"); segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

func answerText(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	clear(h)
	text = "toold: " + text + "\n"
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("Connection", "close")
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// serve has h answer the requests on conn until it ends.
func serve(conn net.Conn, x *requests) {
	l := &oneConnection{conn: conn, done: make(chan struct{})}
	server := &http.Server{
		Handler:                      x,
		ReadHeaderTimeout:            headTime,
		MaxHeaderBytes:               maxHead,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateActive { // a byte of a request is there
				x.asked.Store(true)
			}
		},
		BaseContext: func(net.Listener) context.Context { return x.ctx },
	}
	server.Serve(l)
}

// oneConnection is a listener for one connection. It ends with that.
type oneConnection struct {
	conn  net.Conn
	given bool
	done  chan struct{}
	once  sync.Once
}

func (l *oneConnection) Accept() (net.Conn, error) {
	if l.given {
		<-l.done
		return nil, net.ErrClosed
	}
	l.given = true
	return &closing{l.conn, l}, nil
}

func (l *oneConnection) Close() error   { return nil }
func (l *oneConnection) Addr() net.Addr { return l.conn.LocalAddr() }

// closing is a connection that ends its listener. It is also of no type that
// net/http would treat otherwise.
type closing struct {
	net.Conn
	l *oneConnection
}

func (c *closing) Close() error {
	defer c.l.once.Do(func() { close(c.l.done) })
	return c.Conn.Close()
}

// begun is a connection of which begin was read already.
type begun struct {
	net.Conn
	begin []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.begin) > 0 {
		n := copy(p, b.begin)
		b.begin = b.begin[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}

// counted is a connection that counts.
type counted struct {
	*net.TCPConn
	sent, received *atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// sshBegin is what either side of SSH says first.
const sshBegin = "SSH-"

// isSSH reports whether a connection begins as SSH does.
func isSSH(begin []byte) bool { return bytes.HasPrefix(begin, []byte(sshBegin)) }
