package egress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/form"
	"github.com/toold/toold/host/hello"
	"github.com/toold/toold/pdk/abi"
)

const (
	// maxHead bounds the head of a request, and maxAnswerHead that of an answer, in
	// bytes.
	maxHead       = 64 << 10
	maxAnswerHead = 256 << 10
)

// requests is the reading of the requests on one connection of a run. Each is
// parsed, judged and written anew, to the one host that the connection was made
// to. So what the process sent is never what the host reads, and there is one way
// to read it.
type requests struct {
	*hostSide
	secure      bool
	credentials []Credential
	transport   *http.Transport

	below    *bulk       // to the process, beneath TLS; nil without
	asked    atomic.Bool // something was sent
	handlers sync.WaitGroup
}

// carry connects the process and the host until both have ended: it passes on the
// requests, if those to the host are read, and otherwise copies.
func carry(p *pair) {
	received := int64(0) // other than requests
	if p.run.rules.HTTP.reads(p.connection.Host, p.connection.Port) {
		begin, names, err := p.begins()
		switch {
		case err != nil:
			reset(p.local)
			reset(p.upstream)
			return
		case names != nil || !isSSH(begin):
			readRequests(p, begin, names)
			return
		}
		p.begin = begin
		if received = p.banner(); received == 0 {
			p.run.ledger.refuse(p.connection, "it begins as SSH does, and the host does not")
			reset(p.local)
			reset(p.upstream)
			return
		}
	}
	p.copy(received)
}

// readRequests reads the requests of p, which begins with begin: of TLS, if names is not
// nil.
func readRequests(p *pair, begin []byte, names *hello.Names) {
	if len(begin) == 0 { // it ended before any request, as a spare one does
		p.upstream.Close()
		p.local.Close()
		return
	}
	h, c := p.run.rules.HTTP, p.connection
	x := &requests{hostSide: &hostSide{pair: p, first: make(chan opened, 1)}, secure: names != nil, credentials: h.credentials(c.Host, c.Port)}
	x.ctx, x.cancel = context.WithCancelCause(p.run.rest)
	defer x.cancel(nil)
	p.holdsRequests()
	// The run is over and what it sent delivered, or this is over: whatever waits here
	// ends.
	defer context.AfterFunc(x.ctx, func() { p.local.Close() })()
	defer p.local.Close()
	if !x.secure {
		// What the process wanted is unknown, so that it gets no answer.
		for _, credential := range x.credentials {
			if !credential.Plain {
				p.upstream.Close()
				p.run.ledger.refuse(c, fmt.Sprintf("it is not encrypted, and requests to %s get a credential; use https", c.Host))
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
			p.run.ledger.refuse(c, err.Error())
			reset(p.local)
			return
		}
		x.config = config
	}
	// Both handshakes run at the same time.
	p.run.work.Go(func() {
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
	// Some programs check a certificate when the handshake is over.
	if x.secure && !x.asked.Load() && x.run.ctx.Err() == nil {
		x.untrusted(errors.New("it ended the connection without a request"))
	}
	x.close()
}

// greet does the TLS handshake that the process has begun on conn; it returns nil if
// the process does not trust this host.
func (x *requests) greet(conn net.Conn) net.Conn {
	c := x.connection
	x.below = &bulk{Conn: conn}
	local := tls.Server(x.below, &tls.Config{
		MinVersion:                  tls.VersionTLS12,
		NextProtos:                  []string{"http/1.1"},
		DynamicRecordSizingDisabled: true,
		SessionTicketsDisabled:      true,
		GetCertificate:              func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return x.run.leaf(c.Host) },
	})
	ctx, cancel := context.WithTimeout(x.ctx, headTime)
	defer cancel()
	if err := local.HandshakeContext(ctx); err != nil {
		if x.run.ctx.Err() == nil {
			x.untrusted(err)
		}
		return nil
	}
	return &bulkTLS{local, x.below}
}

// leaf returns a certificate for host. Those of other runs are not used, which a run
// could notice by the time that it takes.
func (r *run) leaf(host string) (*tls.Certificate, error) {
	if c, ok := r.leaves.Load(host); ok {
		return c.(*tls.Certificate), nil
	}
	c, err := r.rules.HTTP.Authority.Leaf(host)
	if err == nil {
		r.leaves.Store(host, c)
	}
	return c, err
}

// untrusted reports that the process did not accept the certificate of this host.
func (x *requests) untrusted(err error) {
	x.run.ledger.failed(x.connection, fmt.Errorf("the program did not take the certificate that toold has for %s, whose requests are read: %w; "+
		"have it trust the file that SSL_CERT_FILE names, or, where it trusts one certificate only, let no secret name the host and hand the credential over in env or file", x.connection.Host, err))
}

// ServeHTTP forwards one request, or refuses it.
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
		x.run.ledger.tellOnce(refused.Target()+" "+seen.Method+" "+seen.Path, refused)
		answerText(w, status, refused.Advice())
	}
	ctx, wrote, end := x.asking()
	defer end()
	out, status, why := rewrite(x.connection, x.secure, x.credentials, r.WithContext(ctx))
	if why != "" {
		refuse(status, why)
		return
	}
	sign, payload := signerOf(x.credentials), ""
	if sign != nil {
		if payload, why = sign.Prepare(out); why != "" {
			refuse(http.StatusBadRequest, why)
			return
		}
	}
	if x.run.rules.Ask != nil {
		held := &holding{run: x.run}
		defer held.end()
		refused, malformed := x.judge(out.Context(), out, held)
		if malformed != nil {
			refuse(cmp.Or(heldStatus(malformed), http.StatusBadRequest), malformed.Error())
			return
		}
		if refused != nil { // which the caller was told
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
		x.run.ledger.failed(x.connection, err)
		answerText(w, seen.Status, fmt.Sprintf("%s could not be asked: %s", x.connection.Target(), hide.mask(err.Error())))
		return
	}
	defer resp.Body.Close()
	seen.Status = resp.StatusCode
	if !x.answer(w, resp, hide, refuse) {
		x.abandon(ctx, wrote, resp.Body)
		panic(http.ErrAbortHandler) // so that it is not taken for the whole
	}
}

// abandon ends a request whose answer cannot be passed on, since the process has gone, or
// the host has. What the first sent is delivered, for which a host would not wait if
// nobody read from it.
func (x *requests) abandon(ctx context.Context, wrote chan struct{}, body io.ReadCloser) {
	read := make(chan struct{})
	go func() { defer close(read); io.Copy(io.Discard, body) }()
	x.delivered(ctx, wrote)
	body.Close()
	<-read
}

// judge asks the policy whether out may be sent. What it reads of the body is held.
func (x *requests) judge(ctx context.Context, out *http.Request, held *holding) (refused, malformed error) {
	for name := range out.Header {
		if slices.ContainsFunc(otherRequest, func(other string) bool { return sameHeader(name, other) }) {
			return nil, fmt.Errorf("its header %s has some servers do another request than the one that is judged", clip(name, maxPath))
		}
	}
	err := x.run.rules.Ask(ctx, &abi.Wire{On: abi.WireHTTP, Host: x.connection.Host, Port: int(x.connection.Port), Method: out.Method, Path: out.URL.RequestURI()})
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

// otherRequest are headers that make servers treat a request as one with another method
// or path.
var otherRequest = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Method", "X-Original-Url", "X-Rewrite-Url", "X-Amz-Copy-Source", "X-Amz-Rename-Source"}

// answer passes resp on, and reports whether it did so completely.
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

// keep records a request.
func (x *requests) keep(seen Request) {
	hide := masks{text: x.run.rules.HTTP.MaskText}
	seen.Path, seen.Refused = hide.mask(seen.Path), hide.mask(seen.Refused)
	x.run.ledger.mu.Lock()
	defer x.run.ledger.mu.Unlock()
	if len(x.connection.Requests) < maxKept {
		x.connection.Requests = append(x.connection.Requests, seen)
	} else {
		x.connection.MoreRequests++
	}
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

// serve answers the requests on conn until it ends.
func serve(conn net.Conn, x *requests) {
	l := &oneConnection{conn: conn, done: make(chan struct{})}
	server := &http.Server{
		Handler:                      x,
		ReadHeaderTimeout:            headTime,
		MaxHeaderBytes:               maxHead,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateActive { // a byte of a request arrived
				x.asked.Store(true)
			}
		},
		BaseContext: func(net.Listener) context.Context { return x.ctx },
	}
	server.Serve(l)
}

// oneConnection is a listener for one connection. It ends when that does.
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

// closing is a connection that ends its listener. It also has no type that net/http
// would treat specially.
type closing struct {
	net.Conn
	l *oneConnection
}

func (c *closing) Close() error {
	defer c.l.once.Do(func() { close(c.l.done) })
	return c.Conn.Close()
}

// begun is a connection whose beginning was read already.
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
