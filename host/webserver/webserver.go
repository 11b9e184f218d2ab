// Package webserver serves HTTP to peers that are not known before they have asked.
//
// It bounds the connections of a server, and promises that a peer that has not
// authenticated keeps no one out. Where all places are taken, a connection that no
// authenticated request is served on gives its place to a further one: first those that
// never had such a request, the oldest first, then those that are idle between two. A
// further connection waits only where every place has a request that is being served.
// What a peer may take is bounded also in time: to send the header of a request, its
// body, and to take each part of an answer. The body of a request that is not
// authenticated is not waited for.
//
// Who is authenticated, and how many requests one identity may have at a time, is for
// the handler to say, by Hold. Packages host/mcp, host/dashboard, host/server and host
// serve their HTTP with it.
package webserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// headerPatience is how long a peer may take to send the header of a request.
	headerPatience = 10 * time.Second
	// idlePatience is how long a connection stays open between two requests.
	idlePatience = 2 * time.Minute
	// minFresh is how long a connection keeps its place before it has an authenticated
	// request: its peer sends one at once.
	minFresh = 100 * time.Millisecond
	// minIdle is how long a connection is idle before it gives up its place: a peer that
	// just had an answer is about to ask again.
	minIdle = time.Second
)

// Config is fixed once the server is made.
type Config struct {
	// Handler answers requests. It is required.
	Handler http.Handler
	// MaxConns is how many connections are open at a time.
	MaxConns int
	// MaxHeader is how many bytes the header of a request may have, about.
	MaxHeader int
	// Patience is how long a peer may take to send the body of a request that is not
	// held, and to take each part of an answer.
	Patience time.Duration
	// ConnContext is that of http.Server; it may be nil.
	ConnContext func(context.Context, net.Conn) context.Context
}

// Server serves HTTP. Make one with New.
type Server struct {
	config Config
	http   http.Server
	freed  chan struct{} // has a value once there may be room
	over   chan struct{} // closed by Shutdown and Close
	end    func()

	mu    sync.Mutex // guards what follows
	conns map[net.Conn]*place
}

// place is the state of a connection. Server.mu guards all of it.
type place struct {
	server *Server
	conn   net.Conn
	held   bool      // an authenticated request is being served
	known  bool      // there was one
	since  time.Time // when it was accepted, or was held last
	gone   bool      // the place was given to another connection
}

type placeKey struct{}

// New makes a server. Nobody is served before Serve.
func New(c Config) *Server {
	c.MaxConns = max(c.MaxConns, 1)
	s := &Server{config: c, freed: make(chan struct{}, 1), over: make(chan struct{}), conns: map[net.Conn]*place{}}
	s.end = sync.OnceFunc(func() { close(s.over) })
	s.http = http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: headerPatience,
		IdleTimeout:       idlePatience,
		MaxHeaderBytes:    c.MaxHeader,
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			if c.ConnContext != nil {
				ctx = c.ConnContext(ctx, nc)
			}
			return context.WithValue(ctx, placeKey{}, s.placeOf(nc))
		},
		ConnState: func(nc net.Conn, state http.ConnState) {
			if state == http.StateClosed || state == http.StateHijacked {
				s.forget(nc)
			}
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	return s
}

// Serve serves the connections of l until Shutdown or Close, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(&listener{l, s}); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Shutdown accepts no more connections and waits for the requests that are being served
// until ctx ends, whose error it then returns.
func (s *Server) Shutdown(ctx context.Context) error {
	s.end()
	return s.http.Shutdown(ctx)
}

// Close closes all connections at once.
func (s *Server) Close() error {
	s.end()
	return s.http.Close()
}

// Conns returns the number of open connections.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Hold marks r as a request of an authenticated caller: its connection is served until release
// is called, whoever else connects, and its body is waited for as long as the handler waits. It
// must be called before anything is written. If the connection has lost its place meanwhile, it
// ends the handler with http.ErrAbortHandler.
func Hold(w http.ResponseWriter, r *http.Request) (release func()) {
	p, ok := r.Context().Value(placeKey{}).(*place)
	if !ok {
		return func() {} // of a server of another kind, as of a test
	}
	s := p.server
	s.mu.Lock()
	p.held, p.known = true, true
	gone := p.gone
	s.mu.Unlock()
	if gone {
		panic(http.ErrAbortHandler)
	}
	w.Header().Del("Connection")
	if r.ContentLength != 0 {
		http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	return func() {
		s.mu.Lock()
		p.held, p.since = false, time.Now()
		s.mu.Unlock()
		s.free()
	}
}

// serve answers a request, within the time limit of its peer.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	out := &patientWriter{w, s.config.Patience}
	out.extend() // over what an earlier request of the connection left
	if r.ContentLength == 0 {
		s.config.Handler.ServeHTTP(out, r)
		return
	}
	// Without this the answer waits for a body that the handler has not read, and
	// without the second deadline the end of the connection does.
	control := http.NewResponseController(w)
	out.Header().Set("Connection", "close")
	control.SetReadDeadline(time.Now().Add(s.config.Patience))
	s.config.Handler.ServeHTTP(out, r)
	if out.Header().Get("Connection") == "close" {
		control.SetReadDeadline(time.Unix(1, 0))
	}
}

// listener accepts connections as long as there is room.
type listener struct {
	net.Listener
	server *Server
}

// Accept returns the next connection once it has a place.
func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if !l.server.enter(nc) {
		nc.Close()
		return nil, net.ErrClosed
	}
	return nc, nil
}

// enter waits for a place for nc. It is false when the server ended first.
func (s *Server) enter(nc net.Conn) bool {
	for {
		s.mu.Lock()
		room, wait := s.roomLocked(time.Now())
		if room {
			s.conns[nc] = &place{server: s, conn: nc, since: time.Now()}
		}
		s.mu.Unlock()
		if room {
			return true
		}
		again := time.NewTimer(wait)
		select {
		case <-s.freed:
		case <-again.C:
		case <-s.over:
			again.Stop()
			return false
		}
		again.Stop()
	}
}

// roomLocked reports whether there is a place, for which it may close a connection, and
// otherwise after what time to look again.
func (s *Server) roomLocked(now time.Time) (room bool, wait time.Duration) {
	if len(s.conns) < s.config.MaxConns {
		return true, 0
	}
	var first *place
	for _, p := range s.conns {
		if !p.held && (first == nil || p.before(first)) {
			first = p
		}
	}
	if first == nil {
		return false, idlePatience // release says so earlier
	}
	keeps := minFresh
	if first.known {
		keeps = minIdle
	}
	if left := keeps - now.Sub(first.since); left > 0 {
		return false, left
	}
	first.gone = true
	delete(s.conns, first.conn)
	first.conn.Close()
	return true, 0
}

// before reports whether p gives up its place before q does.
func (p *place) before(q *place) bool {
	if p.known != q.known {
		return q.known
	}
	return p.since.Before(q.since)
}

// placeOf returns the place of an accepted connection.
func (s *Server) placeOf(nc net.Conn) *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.conns[nc]; p != nil {
		return p
	}
	return &place{server: s, conn: nc, gone: true}
}

// forget frees the place of a closed connection.
func (s *Server) forget(nc net.Conn) {
	s.mu.Lock()
	delete(s.conns, nc)
	s.mu.Unlock()
	s.free()
}

// free makes enter check again.
func (s *Server) free() {
	select {
	case s.freed <- struct{}{}:
	default:
	}
}

// patientWriter limits the time a peer has for each part of an answer.
type patientWriter struct {
	http.ResponseWriter
	patience time.Duration
}

// Unwrap returns the writer that http.ResponseController looks for.
func (p *patientWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patientWriter) WriteHeader(status int) {
	p.extend()
	p.ResponseWriter.WriteHeader(status)
}

func (p *patientWriter) Write(b []byte) (int, error) {
	p.extend()
	return p.ResponseWriter.Write(b)
}

func (p *patientWriter) Flush() {
	p.extend()
	http.NewResponseController(p.ResponseWriter).Flush()
}

func (p *patientWriter) extend() {
	http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.patience))
}
