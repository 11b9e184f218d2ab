// Package dashboard serves a page to look at a daemon with: what is wrong, what runs,
// sessions, tools, identities, and the last hour. The page is in the program and asks
// for nothing from elsewhere.
//
// It only shows. What it shows comes from the operator's handler, of which a fixed
// list of questions is passed on and nothing that changes anything, and from the
// stream of events, which the daemon sends for as long as the page is open.
//
// Over TCP the page itself is anybody's, since nothing of this daemon is in it. What
// it shows needs the token, in a header: cookies are shared by all ports of a host. A
// token is of one daemon, in memory only, so that whoever listens on the port after
// that daemon learns nothing of use from a page that is still open. The page has it from the
// fragment of its address, which browsers send nowhere. On the operator's socket there
// is no token: who may connect is decided by that socket.
//
// Requests of pages of other sites are refused, by Host and by what browsers say of
// where a request comes from. What the page shows was written by callers, tools and
// policies, and any of it may be hostile: it is put into the page as text only, and
// the policy of the page has the browser refuse anything else.
//
// Package host makes a Dashboard and says whose connections it takes.
package dashboard

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/webserver"
)

// Path is where the page is.
const Path = "/dashboard/"

const (
	// maxConns is how many connections are open over TCP at a time. A further one takes
	// the place of one that no page with the token waits on. A page holds one for its
	// stream.
	maxConns = 128
	// patience is how long a browser may take to send a request, and to take each part
	// of an answer.
	patience = 10 * time.Second
	// tick is how often a page is told how the daemon is, also where nothing happens:
	// one that hears nothing for longer knows that it is cut off.
	tick = 10 * time.Second
)

//go:embed page
var files embed.FS

// Config is what a Dashboard shows, and to whom.
type Config struct {
	// Operator answers what an operator asks, as on the operator's socket.
	Operator http.Handler
	Events   *events.Hub
	// Admits has an error for a connection over TCP that is not served, which is told
	// it. It is asked once a connection.
	Admits func(net.Conn) error
	Log    *slog.Logger
}

// Dashboard serves the page of one daemon.
type Dashboard struct {
	config  Config
	token   string
	page    http.Handler // without a look at who asks
	history *history

	listener net.Listener // nil on the operator's socket alone
	server   *webserver.Server
	over     chan struct{} // closed by Close
	stop     sync.Once
}

// New makes the page. With addr, HOST:PORT, it listens there; without, it is served by Beside
// alone. Nobody is served before Serve.
func New(addr string, c Config) (*Dashboard, error) {
	d := &Dashboard{config: c, token: rand.Text() + rand.Text(), history: newHistory(), over: make(chan struct{})}
	d.page = d.routes()
	if addr == "" {
		return d, nil
	}
	var err error
	if d.listener, err = net.Listen("tcp", addr); err != nil {
		return nil, fmt.Errorf("listen for the dashboard: %w; choose another address with --dashboard", err)
	}
	if at, ok := d.listener.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		d.listener.Close()
		return nil, fmt.Errorf("listen for the dashboard: %s is not an address of this machine alone; use 127.0.0.1:PORT, and ssh -L PORT:127.0.0.1:PORT from elsewhere", addr)
	}
	type admission struct{}
	d.server = webserver.New(webserver.Config{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			admits, _ := r.Context().Value(admission{}).(func() error)
			if err := admits(); err != nil {
				w.Header().Set("Connection", "close")
				refuse(w, http.StatusForbidden, err.Error())
				return
			}
			if r.ContentLength != 0 {
				refuse(w, http.StatusBadRequest, "the page is only asked, with GET and without a body")
				return
			}
			d.overTCP(w, r)
		}),
		MaxConns: maxConns, MaxHeader: 16 << 10, Patience: patience,
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			return context.WithValue(ctx, admission{}, sync.OnceValue(func() error { return c.Admits(nc) }))
		},
	})
	return d, nil
}

// Addr returns the TCP address, or "" if there is none.
func (d *Dashboard) Addr() string {
	if d.listener == nil {
		return ""
	}
	return d.listener.Addr().String()
}

// Token returns the token that the page must present over TCP.
func (d *Dashboard) Token() string { return d.token }

// Serve serves until Close and then returns nil.
func (d *Dashboard) Serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var recording sync.WaitGroup
	defer recording.Wait()
	recording.Go(func() { d.history.record(ctx, d.config.Events) })
	if d.listener == nil {
		<-d.over
		cancel()
		return nil
	}
	defer cancel()
	if err := d.server.Serve(d.listener); err != nil {
		return fmt.Errorf("serve the dashboard: %w", err)
	}
	return nil
}

// Close ends all requests at once and closes the port: the page only shows things, so nobody
// waits for it. Browsers keep connections open without requests.
func (d *Dashboard) Close() {
	d.stop.Do(func() { close(d.over) })
	if d.listener != nil {
		d.listener.Close()
		d.server.Close()
	}
}

// Beside returns a handler that serves the page under Path and everything else by operator, on
// the operator's socket. It restricts what browsers can request: if the socket is forwarded to
// a port, any web page can reach it.
func (d *Dashboard) Beside(operator http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := hostname(r.Host)
		// Names with a dot are the web's; programs say "toold", or what they like.
		if strings.ContainsAny(name, ".:") && !isLoopback(name) {
			refuse(w, http.StatusForbidden, fmt.Sprintf("this server is not %q; use localhost", r.Host))
			return
		}
		browser := r.Header["Origin"] != nil || r.Header["Sec-Fetch-Site"] != nil
		if browser && (!ofOwnPage(r) || !strings.HasPrefix(r.URL.Path, Path)) {
			refuse(w, http.StatusForbidden, "a page of another site may ask nothing here")
			return
		}
		if strings.HasPrefix(r.URL.Path, Path) {
			d.page.ServeHTTP(w, r)
			return
		}
		operator.ServeHTTP(w, r)
	})
}

// overTCP admits requests of this server's page.
func (d *Dashboard) overTCP(w http.ResponseWriter, r *http.Request) {
	if !isLoopback(hostname(r.Host)) {
		refuse(w, http.StatusForbidden, fmt.Sprintf("this server is not %q; use 127.0.0.1 or localhost", r.Host))
		return
	}
	if !ofOwnPage(r) {
		refuse(w, http.StatusForbidden, "a page of another site may ask nothing here")
		return
	}
	if strings.HasPrefix(r.URL.Path, Path+"api/") {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(token), []byte(d.token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, "the token is missing, or of another daemon; toolctl dashboard prints the address with the one that counts")
			return
		}
		defer webserver.Hold(w, r)()
	}
	d.page.ServeHTTP(w, r)
}

// ofOwnPage reports whether a request is of a program, of this server's page, or of
// whoever typed the address, as far as a browser says.
func ofOwnPage(r *http.Request) bool {
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		mode := r.Header.Get("Sec-Fetch-Mode")
		// A link of another site may lead here, and learns nothing by it.
		link := mode == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" && r.Method == http.MethodGet && !strings.HasPrefix(r.URL.Path, Path+"api/")
		if site != "same-origin" && site != "none" && !link {
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

func isLoopback(name string) bool {
	return strings.EqualFold(name, "localhost") || net.ParseIP(name).IsLoopback()
}

// hostname returns the host in a Host header, without its port.
func hostname(host string) string {
	u := url.URL{Host: host}
	return u.Hostname()
}

// policy has the browser take nothing into the page but these files, and text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func secure(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

func refuse(w http.ResponseWriter, status int, text string) {
	secure(w.Header())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": text})
}

// routes returns a handler of the page and of what it may request.
func (d *Dashboard) routes() http.Handler {
	mux := http.NewServeMux()
	root, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // it is in the program
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, Path, http.StatusSeeOther) // which keeps the fragment
	})
	mux.HandleFunc("GET "+Path+"{file...}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("file")
		if name == "" {
			name = "index.html"
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			refuse(w, http.StatusNotFound, "there is no such page")
			return
		}
		w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
		w.Write(text)
	})
	api := func(pattern string, to func(*http.Request) (method, path, body string)) {
		mux.HandleFunc("GET "+Path+"api/"+pattern, func(w http.ResponseWriter, r *http.Request) {
			d.config.Operator.ServeHTTP(w, d.question(r.Context(), to, r))
		})
	}
	for _, name := range []string{"status", "tools", "circuit-breakers", "approvals", "identities", "reliability"} {
		api(name, func(*http.Request) (string, string, string) { return "GET", "/" + name, "" })
	}
	for _, name := range []string{"tools", "approvals"} {
		api(name+"/{id}", func(r *http.Request) (string, string, string) {
			return "GET", "/" + name + "/" + url.PathEscape(r.PathValue("id")), ""
		})
	}
	api("calls/{id}", func(r *http.Request) (string, string, string) {
		return "GET", "/calls/" + url.PathEscape(r.PathValue("id")) + "?" + url.Values{"at": {r.FormValue("at")}}.Encode(), ""
	})
	api("sessions", func(*http.Request) (string, string, string) {
		return "POST", "/session/query", `{"selector":"sessions"}`
	})
	mux.HandleFunc("GET "+Path+"api/live", d.live)
	mux.HandleFunc("GET "+Path+"api/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "the page may not ask that")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience))
		mux.ServeHTTP(w, r)
	})
}

// question returns a request of the operator's own: it contains nothing of the browser's except
// what to made of it.
func (d *Dashboard) question(ctx context.Context, to func(*http.Request) (method, path, body string), of *http.Request) *http.Request {
	method, path, body := to(of)
	q, err := http.NewRequestWithContext(ctx, method, "http://toold"+path, strings.NewReader(body))
	if err != nil {
		panic(err) // the paths are ours, and what is in them is escaped
	}
	return q
}

// ask returns the operator's answer to a question without a body, as JSON, or nil.
func (d *Dashboard) ask(ctx context.Context, path string) json.RawMessage {
	var w recorder
	d.config.Operator.ServeHTTP(&w, d.question(ctx, func(*http.Request) (string, string, string) { return "GET", path, "" }, nil))
	if w.status != 0 && w.status != http.StatusOK || !json.Valid(w.body) {
		return nil
	}
	return w.body
}

// recorder keeps an answer.
type recorder struct {
	header http.Header
	status int
	body   []byte
}

func (w *recorder) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}
func (w *recorder) WriteHeader(status int)      { w.status = status }
func (w *recorder) Write(b []byte) (int, error) { w.body = append(w.body, b...); return len(b), nil }

// live sends events as lines of JSON: first a summary of the last hour, then events, with the
// state of the daemon in between.
func (d *Dashboard) live(w http.ResponseWriter, r *http.Request) {
	watcher, err := d.config.Events.Watch(events.Filter{Operator: true}, "")
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer watcher.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() { // who does not read blocks the writing, until its deadline
		select {
		case <-d.over:
		case <-watcher.Over():
		case <-ctx.Done():
		}
		cancel()
	}()
	conn := http.NewResponseController(w)
	var out []byte
	send := func() error {
		conn.SetWriteDeadline(time.Now().Add(patience))
		_, err := w.Write(out)
		out = out[:0]
		return errors.Join(err, conn.Flush())
	}
	line := func(v any) {
		text, err := json.Marshal(v)
		if err == nil { // what the operator answers is JSON
			out = append(append(out, text...), '\n')
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	line(d.history.all())
	for {
		line(tickLine{"tick", time.Now().UTC(), d.history.current(), d.ask(ctx, "/status"), d.ask(ctx, "/circuit-breakers")})
		if send() != nil {
			return
		}
		until, done := context.WithTimeout(ctx, tick)
		err := d.tell(until, watcher, func(e *events.Event) error {
			if e != nil {
				out = append(append(out, e.JSON()...), '\n')
				return nil
			}
			return send()
		})
		done()
		if !errors.Is(err, context.DeadlineExceeded) {
			return // the daemon stops, or who watches is gone or too slow
		}
	}
}

// tickLine is the line with the state of the daemon.
type tickLine struct {
	Event    string          `json:"event"`
	At       time.Time       `json:"at"`
	Minute   *minute         `json:"minute"`
	Status   json.RawMessage `json:"status,omitempty"`
	Breakers json.RawMessage `json:"breakers,omitempty"`
}

// maxTold is about how many events are sent at a time.
const maxTold = 256

// tell passes on events until ctx ends, and nil when they should be flushed.
func (d *Dashboard) tell(ctx context.Context, w *events.Watcher, to func(*events.Event) error) error {
	for {
		e, err := w.Next(ctx)
		if err != nil {
			return err
		}
		w.Gather(ctx)
		for n, more := 0, true; more; n++ {
			to(&e)
			if n == maxTold {
				break
			}
			e, more = w.More()
		}
		if err := to(nil); err != nil {
			return err
		}
	}
}
