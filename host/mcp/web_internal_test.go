package mcp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// pipes is a listener whose connections are in memory, so that their time is the
// test's.
type pipes struct {
	conns chan net.Conn
	over  chan struct{}
	addr  net.Addr
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.over:
	default:
		close(p.over)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return p.addr }

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours
}

// serveWeb serves a front end whose pipeline is answer over HTTP, in a bubble. A
// token is good and names its identity.
func serveWeb(t *testing.T, answer func(context.Context, call.Request) call.Outcome) (*Web, *pipes) {
	t.Helper()
	f := New(Config{Version: "1", Call: answer, Logger: slog.New(slog.DiscardHandler)})
	w, err := f.ListenWeb(WebConfig{Addr: "127.0.0.1:0", MaxConns: 1024, Identify: func(_ context.Context, token string) (string, time.Time, error) {
		if token == "bad" {
			return "", time.Time{}, errors.New("no")
		}
		return token, time.Now().Add(time.Hour), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.listener.Close()
	p := &pipes{conns: make(chan net.Conn), over: make(chan struct{}), addr: w.listener.Addr()}
	w.listener = p
	served := make(chan error, 1)
	go func() { served <- w.Serve() }()
	t.Cleanup(func() {
		if err := w.Shutdown(t.Context()); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return w, p
}

func request(token, body string, header ...string) string {
	return "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n" +
		strings.Join(header, "") + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`
	modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	modernCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"big","arguments":{},` + modernMeta + `}}`
)

var modernHeaders = []string{"Mcp-Protocol-Version: 2026-07-28\r\n", "Mcp-Method: tools/call\r\n", "Mcp-Name: big\r\n"}

func big(context.Context, call.Request) call.Outcome {
	return call.Outcome{Result: &wire.Result{Ran: true, Stdout: []byte(strings.Repeat("x", 1<<20))}}
}

func brief(context.Context, call.Request) call.Outcome {
	return call.Outcome{Result: &wire.Result{Ran: true, Stdout: []byte("x")}}
}

// Who reads no answer loses the connection, over HTTP and on a socket.
func TestSlowReader(t *testing.T) {
	t.Run("http", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, p := serveWeb(t, big)
			nc := p.dial()
			defer nc.Close()
			io.WriteString(nc, request("alice", modernCall, modernHeaders...))
			synctest.Wait()
			began := time.Now()
			for w.Conns() > 0 {
				time.Sleep(time.Second)
				synctest.Wait()
				if time.Since(began) > 2*writePatience {
					t.Fatal("the connection is still served")
				}
			}
		})
	})
	t.Run("socket", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			served := make(chan struct{})
			f := New(Config{Version: "1", Call: big, Logger: slog.New(slog.DiscardHandler)})
			go func() {
				defer close(served)
				f.Serve(t.Context(), make(chan struct{}), theirs, Peer{})
			}()
			defer ours.Close()
			io.WriteString(ours, `{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n")
			select {
			case <-served:
			case <-time.After(2 * writePatience):
				t.Error("the connection is still served")
				ours.Close()
				<-served
			}
		})
	})
}

// Who sends no more of what it began, or nothing at all, loses the connection.
func TestSlowWriter(t *testing.T) {
	for name, sent := range map[string]string{
		"nothing":       "",
		"half a header": "POST /mcp HTTP/1.1\r\nHost: local",
		"half a body":   strings.TrimSuffix(request("alice", initialize), "}}"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, p := serveWeb(t, big)
				nc := p.dial()
				defer nc.Close()
				go io.Copy(io.Discard, nc)
				io.WriteString(nc, sent)
				time.Sleep(bodyPatience + 10*time.Second)
				synctest.Wait()
				if n := w.Conns(); n != 0 {
					t.Errorf("%d connections are still served", n)
				}
			})
		})
	}
}

// A client that floods a socket and reads nothing is not read any further.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		served := make(chan struct{})
		f := New(Config{Version: "1", Call: big, Logger: slog.New(slog.DiscardHandler)})
		go func() {
			defer close(served)
			f.Serve(t.Context(), make(chan struct{}), theirs, Peer{})
		}()
		var sent atomic.Int64
		go func() {
			io.WriteString(ours, `{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n")
			more := []byte(`{"jsonrpc":"2.0","method":"nothing","params":{"x":"` + strings.Repeat("y", 60_000) + "\"}}\n")
			for {
				n, err := ours.Write(more)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
		synctest.Wait()
		if n := sent.Load(); n > 2*maxBacklog {
			t.Errorf("%d bytes were read of a client that reads nothing", n)
		}
		ours.Close()
		<-served
	})
}

// A request is answered by the server of its own identity only, whatever hands it over.
func TestMiddlewareChecksIdentity(t *testing.T) {
	called := 0
	f := New(Config{Version: "1", Logger: slog.New(slog.DiscardHandler), Call: func(context.Context, call.Request) call.Outcome {
		called++
		return call.Outcome{Result: &wire.Result{Ran: true}}
	}})
	r := newRequester(f.config, f.waits, Peer{UID: NoUID}, 1, 1)
	r.identity = "alice"
	receive := r.receive(func(context.Context, string, sdk.Request) (sdk.Result, error) { called++; return nil, nil })
	token := func(of string, extra map[string]any) *sdk.RequestExtra {
		return &sdk.RequestExtra{TokenInfo: &auth.TokenInfo{UserID: of, Extra: extra}}
	}
	good := map[string]any{extraToken: "t"}
	for name, extra := range map[string]*sdk.RequestExtra{
		"nobody's": nil, "without a token": {}, "another's": token("bob", good), "of nobody": token("", good), "with an empty token": token("alice", nil),
	} {
		for _, method := range []string{"tools/call", "tasks/get", "subscriptions/listen", "ping"} {
			var q sdk.Request = &sdk.CallToolRequest{Extra: extra, Params: &sdk.CallToolParamsRaw{Name: "a"}}
			if method != "tools/call" {
				q = &sdk.ServerRequest[*sdk.PingParams]{Extra: extra}
			}
			if _, err := receive(t.Context(), method, q); err == nil || !strings.Contains(err.Error(), "UNAUTHENTICATED") || called > 0 {
				t.Errorf("%s that is %s: %v, %d calls", method, name, err, called)
			}
		}
	}
	if _, err := receive(t.Context(), "ping", &sdk.ServerRequest[*sdk.PingParams]{Extra: token("alice", good)}); err != nil || called != 1 {
		t.Errorf("its own: %v", err)
	}
}

// A panic over HTTP is that request's, and leaves its place.
func TestWebPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := serveWeb(t, func(context.Context, call.Request) call.Outcome { panic("as the test wants it") })
		nc := p.dial()
		defer nc.Close()
		in := bufio.NewReader(nc)
		for range maxWebCalls + 1 {
			go io.WriteString(nc, request("alice", modernCall, modernHeaders...))
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			if err != nil || !strings.Contains(string(b), "INTERNAL") {
				t.Fatalf("%s, %v", b, err)
			}
		}
	})
}

// Sessions and identities are bounded, and those that are idle make room.
func TestWebSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := serveWeb(t, brief)
		nc := p.dial()
		defer nc.Close()
		in := bufio.NewReader(nc)
		open := func(token string) string {
			go io.WriteString(nc, request(token, initialize))
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			if res.StatusCode != 200 {
				t.Fatalf("%d for a session", res.StatusCode)
			}
			return res.Header.Get("Mcp-Session-Id")
		}
		first := open("alice")
		for range 2 * maxSessions {
			time.Sleep(time.Second)
			open("alice")
		}
		synctest.Wait()
		live, seen := 0, false
		for s := range w.identities["alice"].server.Sessions() {
			live++
			seen = seen || s.ID() == first
		}
		if live > maxSessions || seen {
			t.Errorf("%d sessions, of at most %d; the oldest is there: %v", live, maxSessions, seen)
		}
		if n := len(w.identities["alice"].sessions); n > 2*maxSessions {
			t.Errorf("%d sessions are remembered", n)
		}
		time.Sleep(2 * sessionIdle)
		synctest.Wait()
		for range w.identities["alice"].server.Sessions() {
			t.Error("a session that nobody used is still there")
		}
		again := p.dial() // the first one was idle for too long
		defer again.Close()
		nc, in = again, bufio.NewReader(again)
		open("alice")
		if n := len(w.identities["alice"].sessions); n != 1 {
			t.Errorf("%d sessions are remembered, and one is there", n)
		}
		for i := range maxIdentities + 50 {
			go io.WriteString(nc, request(fmt.Sprint("user", i), modernCall, modernHeaders...))
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
		}
		if n := len(w.identities); n > maxIdentities {
			t.Errorf("%d identities are remembered", n)
		}
	})
}

// What is in use makes no room: an identity whose sessions are all busy gets no further
// one, until one of them is idle.
func TestBusySessionsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := serveWeb(t, brief)
		send := func(text string) (net.Conn, *http.Response) {
			nc := p.dial()
			go io.WriteString(nc, text)
			res, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err != nil {
				t.Fatal(err)
			}
			return nc, res
		}
		open := func() (status int, session string, retry string) {
			nc, res := send(request("alice", initialize))
			defer nc.Close()
			io.Copy(io.Discard, res.Body)
			return res.StatusCode, res.Header.Get(headerSession), res.Header.Get("Retry-After")
		}
		streams := map[string]net.Conn{}
		var last string
		for range maxSessions {
			_, session, _ := open()
			nc, res := send("GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nAccept: text/event-stream\r\nMcp-Protocol-Version: 2025-06-18\r\nMcp-Session-Id: " + session + "\r\n\r\n")
			if res.StatusCode != 200 {
				t.Fatal(res.Status)
			}
			defer nc.Close()
			streams[session], last = nc, session
		}
		if status, _, retry := open(); status != 503 || retry == "" {
			t.Errorf("a session too many: %d, Retry-After %q", status, retry)
		}
		streams[last].Close()
		synctest.Wait()
		time.Sleep(time.Second)
		if status, _, _ := open(); status != 200 {
			t.Errorf("a session in the place of one that is idle: %d", status)
		}
		synctest.Wait()
		live := w.identities["alice"].sweep()
		if live[last] != nil || len(live) != maxSessions {
			t.Errorf("of %d sessions the idle one is there: %v", len(live), live[last] != nil)
		}
	})
}

// An identity that has requests or calls is not forgotten for a further one.
func TestBusyIdentitiesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := serveWeb(t, brief)
		enter := func(id string) *tenant {
			a, refused := w.enter(id, "", false)
			if refused != nil {
				t.Fatal(refused)
			}
			return a
		}
		asks := enter("asks") // and waits for an answer, with no request open
		asks.dialogs.states["state"] = &dialog{}
		w.leave(asks, "")
		idle := enter("idle")
		all := []*tenant{idle}
		for i := range maxIdentities - 2 {
			all = append(all, enter(fmt.Sprint("user", i)))
		}
		if _, refused := w.enter("one more", "", false); refused == nil || refused.Code != fault.Overloaded {
			t.Errorf("an identity too many: %v", refused)
		}
		time.Sleep(time.Second)
		w.leave(idle, "")
		all[0] = enter("one more")
		synctest.Wait()
		if w.identities["idle"] != nil || idle.left.Err() == nil {
			t.Errorf("an identity in the place of another: that one has left: %v", idle.left.Err())
		}
		if w.identities["asks"] != asks || asks.left.Err() != nil || w.identities["user0"] != all[1] {
			t.Error("an identity with a call was forgotten")
		}
		for _, a := range all {
			w.leave(a, "")
		}
	})
}

// deadlines is an answer that notes until when the request is read.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error { d.last = t; return nil }

// The time that a body may take does not end the call that it makes.
func TestDeadlineOfABodyIsItsOwn(t *testing.T) {
	out := &deadlines{httptest.NewRecorder(), time.Unix(1, 0)}
	r := httptest.NewRequest(http.MethodPost, Path, strings.NewReader(initialize))
	r.Body = io.NopCloser(io.TeeReader(r.Body, writerFunc(func() {
		if out.last.Before(time.Now()) {
			t.Error("the body is read without a limit")
		}
	})))
	if _, ok := readBody(out, r); !ok || !out.last.IsZero() {
		t.Errorf("a body that was read: %v, and reading ends %v", ok, out.last)
	}
}

type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) { f(); return len(p), nil }

// repeated reads as so many bytes.
type repeated int

func (r *repeated) Read(p []byte) (int, error) {
	if *r == 0 {
		return 0, io.EOF
	}
	n := min(len(p), int(*r))
	for i := range p[:n] {
		p[i] = 'x'
	}
	*r -= repeated(n)
	return n, nil
}

// An argument of 100 MB is refused, and is never in memory.
func TestHugeArgument(t *testing.T) {
	before := allocated()
	t.Run("http", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, p := serveWeb(t, big)
			nc := p.dial()
			defer nc.Close()
			x := repeated(100 << 20)
			go func() {
				fmt.Fprintf(nc, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", int(x))
				io.Copy(nc, &x)
			}()
			res, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err != nil || res.StatusCode != http.StatusRequestEntityTooLarge {
				t.Fatalf("%v, %v", res, err)
			}
		})
	})
	t.Run("socket", func(t *testing.T) {
		nc, _, _, _ := serve(t, big)
		x := repeated(100 << 20)
		go func() {
			io.WriteString(nc, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"`)
			io.Copy(nc, &x)
			io.WriteString(nc, "\"}}\n")
		}()
		line, err := bufio.NewReader(nc).ReadString('\n')
		if err != nil || !strings.Contains(line, `"id":7`) || !strings.Contains(line, "MESSAGE_TOO_LARGE") {
			t.Fatalf("%q, %v", line, err)
		}
	})
	if took := allocated() - before; took > 32<<20 {
		t.Errorf("%d MiB were allocated", took>>20)
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// A stream of notifications ends with the token that it was opened by.
func TestStreamsEndWithTheirToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := serveWeb(t, brief)
		open := func(request string) (net.Conn, *http.Response) {
			nc := p.dial()
			go io.WriteString(nc, request)
			res, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != 200 {
				t.Fatalf("%.40q: %s", request, res.Status)
			}
			return nc, res
		}
		listen := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + modernMeta + `}}`
		nc, res := open(request("alice", initialize))
		io.Copy(io.Discard, res.Body)
		nc.Close()
		session := res.Header.Get(headerSession)
		for _, stream := range [][2]string{
			{"GET", "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nAccept: text/event-stream\r\nMcp-Protocol-Version: 2025-06-18\r\nMcp-Session-Id: " + session + "\r\n\r\n"}, // first: the session is idle meanwhile
			{"listen", request("alice", listen, "Mcp-Protocol-Version: 2026-07-28\r\n", "Mcp-Method: subscriptions/listen\r\n")},
		} {
			name, start := stream[0], time.Now()
			nc, res := open(stream[1])
			over := make(chan struct{})
			go func() { defer close(over); io.Copy(io.Discard, res.Body) }()
			select {
			case <-over:
			case <-time.After(time.Hour + time.Minute):
				t.Errorf("%s goes on after its token expired", name)
			}
			if took := time.Since(start); name == "listen" && took != time.Hour {
				t.Errorf("%s ends after %v", name, took)
			}
			nc.Close()
			<-over
		}
	})
}

// Whoever connects without a valid token keeps out nobody who has one, and a call that
// runs keeps its connection.
func TestStrangersKeepNobodyOut(t *testing.T) {
	for name, sent := range map[string]string{
		"nothing":          "",
		"a body's head":    strings.TrimSuffix(request("bad", initialize), initialize),
		"no token":         "GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"another's stream": "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer bad\r\nAccept: text/event-stream\r\n\r\n",
		"of another host":  "POST /mcp HTTP/1.1\r\nHost: elsewhere\r\nContent-Length: 10\r\n\r\n",
		"metadata":         "GET " + metadataPath + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := make(chan struct{})
				runs := 0
				w, p := serveWeb(t, func(ctx context.Context, q call.Request) call.Outcome {
					if runs++; runs == 1 {
						<-end
					}
					return brief(ctx, q)
				})
				ask := func() (answer func()) {
					nc := p.dial()
					go io.WriteString(nc, request("alice", modernCall, modernHeaders...))
					return func() {
						t.Helper()
						defer nc.Close()
						res, err := http.ReadResponse(bufio.NewReader(nc), nil)
						if err != nil {
							t.Fatal(err)
						}
						if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 {
							t.Fatalf("%d %s, %v", res.StatusCode, b, err)
						}
					}
				}
				first := ask()
				synctest.Wait()
				var strangers []net.Conn
				for range w.config.MaxConns + 100 {
					nc := p.dial()
					strangers = append(strangers, nc)
					go io.WriteString(nc, sent)
					go io.Copy(io.Discard, nc)
				}
				began := time.Now()
				ask()()
				if took := time.Since(began); took > time.Second {
					t.Errorf("a call was kept out for %v", took)
				}
				close(end)
				first()
				for _, nc := range strangers {
					nc.Close()
				}
			})
		})
	}
}

// The bodies that one identity sends at a time are bounded before they are waited for.
func TestSlowBodiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := serveWeb(t, brief)
		var slow []net.Conn
		for range w.config.MaxConns/2 + 1 {
			synctest.Wait() // the one before is being served
			nc := p.dial()
			slow = append(slow, nc)
			go io.WriteString(nc, strings.TrimSuffix(request("alice", initialize), "}}"))
		}
		res, err := http.ReadResponse(bufio.NewReader(slow[len(slow)-1]), nil)
		if err != nil || res.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%v, %v", res, err)
		}
		nc := p.dial()
		go io.WriteString(nc, request("bob", modernCall, modernHeaders...))
		if res, err := http.ReadResponse(bufio.NewReader(nc), nil); err != nil || res.StatusCode != 200 {
			t.Errorf("another: %v, %v", res, err)
		}
		for _, nc := range append(slow, nc) {
			nc.Close()
		}
	})
}

// A connection of a socket whose place is another's by the time that it asks something is
// closed, and what it asks does not run.
func TestConnectionWithoutAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		ran := false
		f := New(Config{Version: "1", Logger: slog.New(slog.DiscardHandler), Call: func(ctx context.Context, q call.Request) call.Outcome {
			ran = true
			return brief(ctx, q)
		}})
		served := make(chan struct{})
		go func() {
			defer close(served)
			f.Serve(t.Context(), make(chan struct{}), theirs, Peer{Begin: func() bool { return false }})
		}()
		go io.WriteString(ours, modernCall+"\n")
		if b, err := io.ReadAll(ours); err != nil || len(b) > 0 {
			t.Errorf("it is answered %q, %v", b, err)
		}
		<-served
		ours.Close()
		if ran {
			t.Error("the call ran")
		}
	})
}
