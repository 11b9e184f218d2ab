// Package fetch makes the HTTP requests of guests. What a guest may reach is decided
// here, on every hop: the host name before anything is sent, and the address that it
// resolved to before the connection is made.
package fetch

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/hostrule"
)

// Bounds of one http_request of a guest.
const (
	maxBody      = 16 << 20
	maxRedirects = 10
	maxTime      = 60 * time.Second
)

// Grant is what one tool may request.
type Grant struct {
	// Hosts are the names that may be asked: "api.example.com",
	// "*.example.com" (any name below it, not itself), either with ":port",
	// and "*" for every host. A loopback, link-local or private address is reached only where its
	// host stands here without a wildcard.
	Hosts []string
	// Methods are those allowed, "*" for all; empty: GET and HEAD.
	Methods []string
	// Secrets are headers that the host adds, each for one host name.
	Secrets []Secret
	// Handles stand in headers of the guest for values that it does not know.
	// They are filled in for the host that the guest asked, and nowhere else.
	Handles []Handle
	// TraceID is sent as X-Trace-Id, where not empty. It is the caller's: a
	// handle in it stands for nothing.
	TraceID string
	// TLS is by host; no connection has what is another host's.
	TLS []*TLS
}

const traceIDHeader = "X-Trace-Id"

// Secret is a header that the host adds to requests to Host.
type Secret struct{ Host, Header, Value string }

// Handle is a handle and the value that it stands for.
type Handle struct {
	Handle, Value string
	// NamedOnly: it is filled in only where Hosts names the host without a
	// wildcard. What is the operator's own does not go where a caller's claim
	// leads.
	NamedOnly bool
}

// TLSFor returns the TLS settings for connections to u, nil if there are none. The error is a
// refusal: if the settings in tool.json cannot be applied, no request is made.
func (g *Grant) TLSFor(u *url.URL) (*tls.Config, error) {
	for _, t := range g.TLS {
		if !t.covers(u) {
			continue
		}
		if u.Scheme != "https" {
			return nil, fmt.Errorf("%s to %s, for which tool.json has certificates: %w; use https", u.Scheme, t.Host, ErrRefused)
		}
		return t.config()
	}
	return nil, nil
}

// hostMatch reports whether one of the hosts in grant matches u, and whether it names it
// without a wildcard.
func (g *Grant) hostMatch(u *url.URL) (ok, named bool) {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	rule, named := hostrule.Match(g.Hosts, u.Hostname(), port)
	return rule != "", named
}

// Do makes one request. Every failure is an error that names what was refused or what went
// wrong; it may contain text from the server, and so a secret. sent, returned with errors too,
// are the credentials that the host derived from secrets, as it sent them: the base64 of user
// and password. They are secrets, too. trace is sent as traceparent unless it is empty.
func Do(ctx context.Context, g *Grant, r *guest.HTTPRequest, trace string) (_ *guest.HTTPResponse, sent [][]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	req, err := request(ctx, g, r, trace)
	if err != nil {
		return nil, nil, err
	}
	// The secrets of a hop are set on that hop's own request by the transport
	// below: net/http would carry headers of the first request along.
	tr := &http.Transport{
		Proxy:                  nil,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
		TLSHandshakeTimeout:    10 * time.Second,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			_, named := g.hostMatch(&url.URL{Host: net.JoinHostPort(host, port)})
			d := net.Dialer{Timeout: 10 * time.Second}
			d.Control = func(_, address string, _ syscall.RawConn) error {
				ap, err := netip.ParseAddrPort(address)
				if err != nil {
					return err
				}
				if !named && !hostrule.Public(ap.Addr()) {
					return fmt.Errorf("%s leads to %s, which is not a public address: %w; name the host itself in capabilities.http.hosts", host, ap.Addr(), ErrRefused)
				}
				return nil
			}
			return d.DialContext(ctx, network, addr)
		},
	}
	defer tr.CloseIdleConnections()
	secrets := &secretTransport{next: tr, grant: g, first: req.URL}
	cl := &http.Client{
		Transport: secrets,
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			if via[len(via)-1].URL.Scheme == "https" && next.URL.Scheme != "https" {
				return fmt.Errorf("redirect from https to %s: %w", next.URL.Scheme, ErrRefused)
			}
			if !g.allows(next.Method) {
				return fmt.Errorf("redirect as %s: %w", next.Method, ErrRefused)
			}
			_, err := check(g, next.URL)
			return err
		},
	}
	resp, err := cl.Do(req)
	if err != nil {
		// url.Error quotes the whole URL, which may hold a token.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, secrets.sent, fmt.Errorf("http request to %s: %w", req.URL.Hostname(), err)
	}
	defer resp.Body.Close()
	out, err := answer(resp, secrets.carried)
	if err != nil {
		return nil, secrets.sent, fmt.Errorf("http request to %s: %w", req.URL.Hostname(), err)
	}
	return out, secrets.sent, nil
}

// request returns the request that r describes, if g grants it, without secrets.
func request(ctx context.Context, g *Grant, r *guest.HTTPRequest, trace string) (*http.Request, error) {
	method := strings.ToUpper(r.Method)
	if method == "" {
		method = http.MethodGet
	}
	if !g.allows(method) {
		return nil, fmt.Errorf("%s %w: add it to capabilities.http.methods in tool.json", method, ErrRefused)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, errors.New("http request: the URL or the method is malformed")
	}
	for k, v := range r.Headers {
		// What frames the message is the host's: a guest that could set it
		// could smuggle a second request behind the first.
		switch http.CanonicalHeaderKey(k) {
		case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer":
			continue
		// What encodes the answer is too: secrets are masked in what is plain.
		case "Accept-Encoding":
			continue
		}
		req.Header.Set(k, v)
	}
	if trace != "" {
		req.Header.Set("Traceparent", trace)
	}
	if g.TraceID != "" {
		req.Header.Set(traceIDHeader, g.TraceID)
	}
	if _, err := check(g, req.URL); err != nil {
		return nil, err
	}
	return req, nil
}

// allows reports whether g grants requests with method.
func (g *Grant) allows(method string) bool {
	methods := g.Methods
	if len(methods) == 0 {
		methods = []string{http.MethodGet, http.MethodHead}
	}
	return slices.Contains(methods, method) || slices.Contains(methods, "*")
}

// answer reads resp. carried says whether its request contained secrets, which must be found in
// it. The errors continue "http request to HOST: ".
func answer(resp *http.Response, carried bool) (*guest.HTTPResponse, error) {
	// The transport asked for gzip and has undone it. What is encoded still
	// could hold a secret that nobody would find.
	if e := resp.Header.Get("Content-Encoding"); carried && e != "" && !strings.EqualFold(e, "identity") {
		return nil, fmt.Errorf("the answer is encoded as %.40q, in which its secrets cannot be masked; have the server answer without an encoding, or with gzip when it is asked for", e)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("the answer is over %d bytes", maxBody)
	}
	out := &guest.HTTPResponse{Status: resp.StatusCode, Headers: map[string]string{}, Body: body}
	for k, v := range resp.Header {
		out.Headers[strings.ToLower(k)] = strings.Join(v, ", ")
	}
	return out, nil
}

func check(g *Grant, u *url.URL) (named bool, err error) {
	if u.Scheme != "http" && u.Scheme != "https" {
		return false, fmt.Errorf("scheme %q %w: use http or https", u.Scheme, ErrRefused)
	}
	if u.User != nil {
		return false, fmt.Errorf("a user in the URL %w: declare a secret with header and host in tool.json", ErrRefused)
	}
	ok, named := g.hostMatch(u)
	if !ok {
		return false, fmt.Errorf("host %q %w: add it to capabilities.http.hosts in tool.json", u.Hostname(), ErrRefused)
	}
	return named, nil
}

// secretTransport adds the secrets of a host to requests to that host, and removes them from
// requests to any other. first is where the guest sent the request itself: a redirect elsewhere
// carries no header that contained a handle.
type secretTransport struct {
	next  *http.Transport
	grant *Grant
	first *url.URL
	// carried: some request had a secret, whether it was the last one or not:
	// a server may write what it was sent into the address of a redirect.
	carried bool
	sent    [][]byte // see Do
}

func (t *secretTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	// A transport has one client certificate for all hosts: each hop that has one
	// has a transport of its own.
	next := t.next
	if config, err := t.grant.TLSFor(req.URL); err != nil {
		return nil, err
	} else if config != nil {
		next = t.next.Clone()
		next.TLSClientConfig = config
	}
	if len(t.grant.Secrets) > 0 || len(t.grant.Handles) > 0 {
		req = req.Clone(req.Context())
		elsewhere := req.URL.Scheme != t.first.Scheme || req.URL.Host != t.first.Host
		_, named := t.grant.hostMatch(req.URL)
		for name, list := range req.Header {
			if name == traceIDHeader && t.grant.TraceID != "" {
				continue
			}
			for _, v := range list {
				filled, found, err := t.grant.fill(v, named)
				switch {
				case err != nil:
					return nil, err
				case found && elsewhere:
					req.Header.Del(name)
				case found:
					req.Header.Set(name, filled)
					t.carried = true
					if b64, ok := strings.CutPrefix(filled, "Basic "); ok {
						t.sent = append(t.sent, []byte(b64))
					}
				}
			}
		}
		for _, s := range t.grant.Secrets {
			req.Header.Del(s.Header)
		}
		for _, s := range t.grant.Secrets {
			ok, _ := (&Grant{Hosts: []string{s.Host}}).hostMatch(req.URL)
			if _, _, err := net.SplitHostPort(s.Host); ok && err != nil && req.URL.Scheme != "https" {
				return nil, fmt.Errorf("%s would send the secret for %s in the clear: %w; use https, or name the port with the host in secrets", req.URL.Scheme, s.Host, ErrRefused)
			}
			if ok {
				req.Header.Set(s.Header, s.Value)
				t.carried = true
			}
		}
		if t.carried {
			// An answer in parts could have a part of a secret in each.
			req.Header.Del("Range")
			req.Header.Del("If-Range")
		}
	}
	return next.RoundTrip(req)
}

// fill replaces the handles in a header's value, also within the base64 of "Basic
// user:password".
func (g *Grant) fill(v string, named bool) (filled string, found bool, err error) {
	basic := false
	text := v
	if b64, ok := strings.CutPrefix(v, "Basic "); ok {
		if b, err := base64.StdEncoding.DecodeString(b64); err == nil {
			text, basic = string(b), true
		}
	}
	for _, h := range g.Handles {
		if !strings.Contains(text, h.Handle) {
			continue
		}
		if h.NamedOnly && !named {
			return "", true, fmt.Errorf("a secret of the operator for a host that capabilities.http.hosts does not name: %w; name the host itself there", ErrRefused)
		}
		if strings.ContainsFunc(h.Value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return "", true, errors.New("a secret holds control characters, and cannot stand in a header")
		}
		text, found = strings.ReplaceAll(text, h.Handle, h.Value), true
	}
	if !found {
		return v, false, nil
	}
	if basic {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)), true, nil
	}
	return text, true, nil
}

// Refused reports whether it was this host that refused a request, because tool.json
// does not grant it or does not trust who answers.
func Refused(err error) bool {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	return untrusted || errors.Is(err, ErrRefused)
}

// Kind classifies why a request failed, for guests that receive kinds.
func Kind(err error) guest.HTTPKind {
	if Refused(err) {
		return guest.HTTPDenied
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return guest.HTTPUnknownHost
	}
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		return guest.HTTPTimeout
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return guest.HTTPRefused
	}
	return guest.HTTPFailed
}

// Unanswered reports whether a request got no answer from the network, rather
// than a refusal of ours.
func Unanswered(err error) bool {
	if Refused(err) {
		return false
	}
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// NeverSent reports whether a request failed before there was a connection.
func NeverSent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
