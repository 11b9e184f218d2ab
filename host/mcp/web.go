package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/replay"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/webserver"
	"github.com/toold/toold/host/wire"
)

const (
	// Path is where MCP is served over HTTP.
	Path         = "/mcp"
	metadataPath = "/.well-known/oauth-protected-resource"

	// maxWebCalls is how many requests of one identity are in the pipeline at a
	// time.
	maxWebCalls = 64
	// maxSessions is how many sessions of older versions of the protocol one
	// identity has. A further one ends the one that has been idle longest.
	maxSessions = 64
	// maxIdentities is how many identities are remembered. Those that have nothing
	// open are forgotten first.
	maxIdentities = 1024
	// sessionIdle is how long a session of an older version lives without a request.
	sessionIdle = 30 * time.Minute
	// bodyPatience is how long a client may take to send the body of a request.
	bodyPatience = 30 * time.Second
	// openingPatience is how long a session that was just named may take to be there.
	openingPatience = 10 * time.Second
	// lastPatience is how long calls may take to be answered that were ended.
	lastPatience = 5 * time.Second
	// maxReplay is how many bytes of events are kept for streams that broke, of all
	// sessions of older versions together.
	maxReplay = 16 << 20

	headerVersion = "Mcp-Protocol-Version"
	headerSession = "Mcp-Session-Id"
)

// NoUID is the kernel's id of an unknown user: over TCP it never reports one. No such caller is admitted without a token.
const NoUID = 65534

// WebConfig is fixed once the listener serves.
type WebConfig struct {
	// Addr is the TCP address to listen on.
	Addr string
	// MaxConns is how many connections are open at a time. A further one takes the
	// place of one on which no request with a valid token is being served, or waits.
	MaxConns int
	// Audience is that of tokens, where they have one. Where it is a URL, it is the
	// one that clients reach MCP by, and its host is admitted in Host and Origin.
	Audience string
	// Issuer is the authorization server that clients are sent to; empty where
	// there is none.
	Issuer string
	// Identify is who a token is of, and until when it is good. It is required.
	Identify func(ctx context.Context, token string) (id string, until time.Time, err error)
}

// Web serves MCP over HTTP. The bearer token of each request identifies the caller.
type Web struct {
	front    *Front
	config   WebConfig
	listener net.Listener
	server   *webserver.Server
	hosts    []string // that are admitted in Host and Origin
	// resource is the URL of the metadata, in the answer to one without a token.
	resource  string
	old, now  http.Handler // for versions with sessions, and without
	stopping  context.Context
	stop      context.CancelFunc
	admission http.Handler

	mu         sync.Mutex // guards what follows
	identities map[string]*tenant
}

// tenant is one identity's requests over HTTP.
type tenant struct {
	*requester
	server  *sdk.Server
	unwatch func()

	// Guarded by Web.mu.
	open     int // requests
	used     time.Time
	sessions map[string]*webSession
}

// webSession is a session of an older version.
type webSession struct {
	open int // requests
	used time.Time
}

// ListenWeb binds the address. Nobody is served before Serve.
func (f *Front) ListenWeb(config WebConfig) (*Web, error) {
	l, err := net.Listen("tcp", config.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen for MCP: %w; choose another address with --mcp", err)
	}
	w := &Web{front: f, config: config, listener: l, identities: map[string]*tenant{}}
	w.config.MaxConns = max(config.MaxConns, 1)
	w.stopping, w.stop = context.WithCancel(context.Background())
	at := l.Addr().(*net.TCPAddr)
	base := "http://" + at.String()
	if at.IP.IsLoopback() {
		w.hosts = []string{"localhost", "127.0.0.1", "::1"}
	} else if !at.IP.IsUnspecified() {
		w.hosts = []string{at.IP.String()}
	}
	resource := base + Path
	if u, err := url.Parse(config.Audience); err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") {
		w.hosts = append(w.hosts, u.Hostname())
		base, resource = u.Scheme+"://"+u.Host, config.Audience
	}
	w.resource = base + metadataPath + Path
	metadata := &oauthex.ProtectedResourceMetadata{Resource: resource, ResourceName: "toold", BearerMethodsSupported: []string{"header"}}
	if config.Issuer != "" {
		metadata.AuthorizationServers = []string{config.Issuer}
	}
	serverOf := func(r *http.Request) *sdk.Server {
		a, _ := r.Context().Value(tenantKey{}).(*tenant)
		if a == nil {
			return nil
		}
		return a.server
	}
	options := sdk.StreamableHTTPOptions{Logger: slog.New(slog.DiscardHandler), MaxRequestBodyBytes: MaxMessage,
		// ServeHTTP checks it, by the names that this server has.
		DisableLocalhostProtection: true}
	stateless, stateful := options, options
	stateless.Stateless, stateless.PropagateRequestCancellation = true, true
	stateful.EventStore, stateful.SessionTimeout = replay.New(maxReplay, identityOf), sessionIdle
	w.now = sdk.NewStreamableHTTPHandler(serverOf, &stateless)
	w.old = sdk.NewStreamableHTTPHandler(serverOf, &stateful)

	mux := http.NewServeMux()
	describe := auth.ProtectedResourceMetadataHandler(metadata)
	mux.Handle(metadataPath, describe)
	mux.Handle(metadataPath+Path, describe)
	mux.Handle(Path, auth.RequireBearerToken(w.verify, &auth.RequireBearerTokenOptions{ResourceMetadataURL: w.resource})(http.HandlerFunc(w.serve)))
	w.admission = mux
	w.server = webserver.New(webserver.Config{Handler: w, MaxConns: w.config.MaxConns, MaxHeader: 64 << 10, Patience: writePatience})
	return w, nil
}

// Addr returns the address that w listens on.
func (w *Web) Addr() string { return w.listener.Addr().String() }

// Conns returns the number of open connections.
func (w *Web) Conns() int { return w.server.Conns() }

// Serve serves until Shutdown, and then returns nil.
func (w *Web) Serve() error {
	if err := w.server.Serve(w.listener); err != nil {
		return fmt.Errorf("serve MCP over HTTP: %w", err)
	}
	return nil
}

// Shutdown accepts no further calls and lets running ones finish until ctx ends, which ends
// them.
func (w *Web) Shutdown(ctx context.Context) error {
	w.mu.Lock()
	w.stop() // streams of notifications, which have no end of their own
	for _, a := range w.identities {
		a.drain()
	}
	w.mu.Unlock()
	err := w.server.Shutdown(ctx)
	if err != nil {
		// What ran was ended just now; it is answered, unless it is stuck or nobody
		// reads.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastPatience)
		defer cancel()
		if err = w.server.Shutdown(last); err != nil {
			err = fmt.Errorf("stop MCP over HTTP: %w", err)
			w.server.Close()
		}
	}
	w.listener.Close() // where nothing was served
	w.mu.Lock()
	all := w.identities
	w.identities = nil
	w.mu.Unlock()
	var closing sync.WaitGroup
	for _, a := range all {
		closing.Go(a.close)
	}
	closing.Wait()
	return err
}

// close ends what is left of a tenant.
func (a *tenant) close() {
	a.leave(wire.ErrLeft)
	a.dialogs.talking.Wait()
	for s := range a.server.Sessions() {
		s.Close()
	}
	a.unwatch()
}

// ServeHTTP admits a request if its client intends to reach this server: a web page in a
// browser on this machine can reach it too, under any host name.
func (w *Web) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if !slices.Contains(w.hosts, strings.ToLower(hostname(r.Host))) {
		refuse(out, http.StatusForbidden, nil, fault.Errorf(fault.Denied, "denied by rule host: this server is not %q; use the address that it listens on, or name the host in identity.audience", r.Host))
		return
	}
	if !ofOwnPage(r) {
		refuse(out, http.StatusForbidden, nil, fault.Errorf(fault.Denied, "denied by rule origin: a page of another site may not call tools; call from a program"))
		return
	}
	w.admission.ServeHTTP(out, r)
}

// ofOwnPage reports whether a request is of a program, or of a page of this server
// itself, as far as a browser reports it.
func ofOwnPage(r *http.Request) bool {
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" {
			return false
		}
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || !strings.EqualFold(u.Host, r.Host) {
			return false
		}
	}
	return true
}

// hostname returns the host of a Host header, without its port.
func hostname(host string) string {
	u := url.URL{Host: host}
	return u.Hostname()
}

// verify resolves a bearer token to its identity.
func (w *Web) verify(ctx context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	id, until, err := w.config.Identify(ctx, token)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", auth.ErrInvalidToken, err)
	}
	return &auth.TokenInfo{UserID: id, Expiration: until, Extra: map[string]any{extraToken: token}}, nil
}

type tenantKey struct{}

// identityOf returns who makes the request of a context, or "".
func identityOf(ctx context.Context) string {
	if a, ok := ctx.Value(tenantKey{}).(*tenant); ok {
		return a.identity
	}
	return ""
}

// serve serves a request whose token was verified.
func (w *Web) serve(out http.ResponseWriter, r *http.Request) {
	info := auth.TokenInfoFromContext(r.Context())
	old := r.Header.Get(headerVersion) < sessionless
	session := ""
	if old {
		session = r.Header.Get(headerSession)
	}
	a, refused := w.enter(info.UserID, session, old && r.Method == http.MethodPost)
	if refused != nil {
		refuse(out, http.StatusServiceUnavailable, nil, refused)
		return
	}
	defer w.leave(a, session)
	defer webserver.Hold(out, r)()
	body, ok := readBody(out, r)
	if !ok {
		return
	}

	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), tenantKey{}, a))
	defer cancel()
	if r.Method == http.MethodGet || isListen(body) {
		// What streams for as long as it may, may not longer than its token is good
		// and the daemon serves.
		defer context.AfterFunc(w.stopping, cancel)()
		var expire context.CancelFunc
		ctx, expire = context.WithDeadline(ctx, info.Expiration)
		defer expire()
	}
	r = r.WithContext(ctx)
	if old {
		w.old.ServeHTTP(out, r)
	} else {
		w.now.ServeHTTP(out, r)
	}
}

// readBody reads the message of a request, and answers the request if there is none.
func readBody(out http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	if r.Method != http.MethodPost {
		return nil, true
	}
	control := http.NewResponseController(out)
	control.SetReadDeadline(time.Now().Add(bodyPatience))
	body, err := io.ReadAll(http.MaxBytesReader(out, r.Body, MaxMessage))
	switch {
	case err != nil && errors.As(err, new(*http.MaxBytesError)):
		refuse(out, http.StatusRequestEntityTooLarge, body, fault.Errorf(fault.MessageTooLarge,
			"the message has more than %d bytes; pass large contents in a file beneath a root, and its path as the argument", MaxMessage))
		return nil, false
	case err != nil:
		refuse(out, http.StatusBadRequest, nil, fault.Errorf(fault.InvalidEnvelope, "read the request: %w", err))
		return nil, false
	}
	control.SetReadDeadline(time.Time{})
	if trimmed := bytes.TrimSpace(body); len(trimmed) > 0 && trimmed[0] == '[' {
		refuse(out, http.StatusBadRequest, nil, fault.Errorf(fault.InvalidEnvelope, "batches are not taken; send one JSON-RPC message a request"))
		return nil, false
	}
	// What is no JSON at all is the SDK's to answer.
	if refused := check(body); refused != nil && json.Valid(body) {
		refuse(out, http.StatusBadRequest, body, refused)
		return nil, false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body, true
}

// isListen reports whether a request asks for a stream of notifications.
func isListen(body []byte) bool {
	if !bytes.Contains(body, []byte("subscriptions")) {
		return false
	}
	msg, err := jsonrpc.DecodeMessage(body)
	if err != nil {
		return false
	}
	q, ok := msg.(*jsonrpc.Request)
	return ok && q.Method == "subscriptions/listen"
}

// refuse answers a request that is not served. Body has its id, where it has one.
func refuse(out http.ResponseWriter, status int, body []byte, err *fault.Error) {
	id := idFinder{}
	id.read(body)
	out.Header().Set("Content-Type", "application/json")
	if status == http.StatusServiceUnavailable {
		out.Header().Set("Retry-After", "1")
	}
	out.WriteHeader(status)
	out.Write(translate.ErrorMessage(id.id(), translate.CodeRefused, err))
}

// enter returns the tenant of the identity, and takes a place for one request of the session.
func (w *Web) enter(id, session string, opens bool) (*tenant, *fault.Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopping.Err() != nil {
		return nil, fault.Errorf(fault.Overloaded, "the daemon is stopping; try again when it is back")
	}
	a := w.identities[id]
	if a == nil {
		if len(w.identities) >= maxIdentities && !w.forget() {
			return nil, fault.Errorf(fault.Overloaded, "%d identities have requests or sessions already; try again", maxIdentities)
		}
		a = &tenant{sessions: map[string]*webSession{}}
		a.requester = newRequester(w.front.config, w.front.waits, Peer{UID: NoUID}, maxWebCalls, max(w.config.MaxConns/2, 1))
		a.identity = id
		a.server = w.front.newServer(a.requester, sdk.ServerOptions{GetSessionID: func() string { return w.newSession(a) }})
		a.unwatch = w.front.watch(a.requester)
		w.identities[id] = a
	}
	if a.open >= max(w.config.MaxConns/2, 1) {
		return nil, fault.Errorf(fault.Overloaded, "this identity has %d requests open already; end one first", a.open)
	}
	if session == "" && opens {
		if refused := a.makeRoom(); refused != nil {
			return nil, refused
		}
	}
	a.open++
	if s := a.sessions[session]; s != nil {
		s.open++
	}
	return a, nil
}

// leave gives the place of a request back.
func (w *Web) leave(a *tenant, session string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	a.open--
	a.used = now
	if s := a.sessions[session]; s != nil {
		s.open--
		s.used = now
	}
}

// newSession names a session.
func (w *Web) newSession(a *tenant) string {
	id := rand.Text()
	w.mu.Lock()
	defer w.mu.Unlock()
	a.sessions[id] = &webSession{used: time.Now()}
	return id
}

// makeRoom ends the session that has been idle longest, where there are too many.
func (a *tenant) makeRoom() *fault.Error {
	live := a.sweep()
	if len(live) < maxSessions {
		return nil
	}
	var oldest string
	var since time.Time
	for id := range live {
		if s := a.sessions[id]; s == nil {
			oldest, since = id, time.Time{}
		} else if s.open == 0 && (oldest == "" || s.used.Before(since)) {
			oldest, since = id, s.used
		}
	}
	if oldest == "" {
		return fault.Errorf(fault.Overloaded, "this identity has %d sessions with requests already; end one first", len(live))
	}
	delete(a.sessions, oldest)
	go live[oldest].Close()
	return nil
}

// sweep forgets sessions that are over, and returns the others.
func (a *tenant) sweep() map[string]*sdk.ServerSession {
	live := map[string]*sdk.ServerSession{}
	for s := range a.server.Sessions() {
		if s.ID() != "" {
			live[s.ID()] = s
		}
	}
	for id, s := range a.sessions {
		// One that was just named is not there yet.
		if live[id] == nil && s.open == 0 && time.Since(s.used) > openingPatience {
			delete(a.sessions, id)
		}
	}
	return live
}

// forget forgets the identity that has had nothing open for longest.
func (w *Web) forget() bool {
	var oldest string
	for id, a := range w.identities {
		if a.open > 0 || a.dialogs.talk() {
			continue
		}
		if len(a.sweep()) == 0 && len(a.sessions) == 0 && (oldest == "" || a.used.Before(w.identities[oldest].used)) {
			oldest = id
		}
	}
	if oldest == "" {
		return false
	}
	a := w.identities[oldest]
	delete(w.identities, oldest)
	a.leave(wire.ErrLeft)
	go a.close()
	return true
}
