package webserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are in memory, so that their time is the
// test's.
type pipes struct{ conns chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// client is one end of a connection.
type client struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

// say sends text without waiting for who reads it.
func (c *client) say(text string) { go io.WriteString(c, text) }

// answer reads an answer.
func (c *client) answer() (status int, body string) {
	c.t.Helper()
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// ask makes a request that is authenticated, or one that is not.
func (c *client) ask(good bool) {
	c.t.Helper()
	c.say("GET / HTTP/1.1\r\nHost: h\r\nGood: " + fmt.Sprint(good) + "\r\n\r\n")
	want := http.StatusUnauthorized
	if good {
		want = http.StatusOK
	}
	if status, body := c.answer(); status != want {
		c.t.Fatalf("%d %s, want %d", status, body, want)
	}
}

// isClosed reports whether the server has closed a connection on which nothing is
// asked.
func (c *client) isClosed() bool {
	c.SetReadDeadline(time.Now().Add(time.Nanosecond))
	defer c.SetReadDeadline(time.Time{})
	_, err := c.in.Peek(1)
	var late net.Error
	return !(errors.As(err, &late) && late.Timeout())
}

const (
	limit    = 4
	patience = 30 * time.Second
)

// start serves in a bubble: who says that it is good is authenticated, and may ask to
// wait.
func start(t *testing.T) (s *Server, dial func() *client, let chan struct{}) {
	let = make(chan struct{})
	s = New(Config{MaxConns: limit, MaxHeader: 4 << 10, Patience: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Good") != "true" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		defer Hold(w, r)()
		if r.URL.Path == "/wait" {
			<-let
		}
		if r.URL.Path == "/big" {
			io.WriteString(w, strings.Repeat("x", 1<<20))
		}
		if b, err := io.ReadAll(r.Body); err == nil {
			w.Write(b)
		}
	})})
	l := pipes{make(chan net.Conn)}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	var clients []*client
	t.Cleanup(func() {
		for _, c := range clients {
			c.Close()
		}
		close(l.conns)
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, func() *client {
		ours, theirs := net.Pipe()
		l.conns <- theirs
		c := &client{t, ours, bufio.NewReader(ours)}
		clients = append(clients, c)
		synctest.Wait()
		return c
	}, let
}

// Whoever fills all places without being authenticated, whatever was sent, keeps nobody
// out.
func TestStrangersGiveWay(t *testing.T) {
	for name, sent := range map[string]string{
		"nothing":          "",
		"half a header":    "GET / HTTP/1.1\r\nHost",
		"no body":          "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n",
		"an endless body":  "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nxxxxx\r\n",
		"a refused one":    "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"refused, in turn": strings.Repeat("GET / HTTP/1.1\r\nHost: h\r\n\r\n", 20),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, dial, _ := start(t)
				good := dial()
				good.ask(true)
				for range 5 * limit {
					c := dial()
					c.say(sent)
					if !strings.HasPrefix(sent, "POST") {
						go io.Copy(io.Discard, c)
					}
				}
				began := time.Now()
				for range limit {
					dial().ask(true)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("a request was kept out for %v", took)
				}
				if n := s.Conns(); n > limit {
					t.Errorf("%d connections", n)
				}
			})
		})
	}
}

// A connection with an authenticated request that is being served keeps its place, as one
// does that was idle for less than a moment; a further one waits.
func TestCallersKeepTheirPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial, let := start(t)
		var held []*client
		for range limit - 1 {
			c := dial()
			c.say("GET /wait HTTP/1.1\r\nHost: h\r\nGood: true\r\n\r\n")
			held = append(held, c)
		}
		last := dial()
		time.Sleep(headerPatience / 2)
		last.ask(true)
		further := dial()
		began := time.Now()
		further.ask(true)
		if took := time.Since(began); took < minIdle || took > 2*minIdle || !last.isClosed() {
			t.Errorf("a further one waited for %v, and the one that was idle is closed: %v", took, last.isClosed())
		}
		// All of them are busy now, for however long: who comes waits for the first that ends.
		further.say("GET /wait HTTP/1.1\r\nHost: h\r\nGood: true\r\n\r\n")
		time.Sleep(time.Minute)
		waits := dial()
		time.Sleep(time.Hour)
		for _, c := range append(held, further) {
			if c.isClosed() {
				t.Error("one whose request is being served lost its place")
			}
		}
		waits.say("GET / HTTP/1.1\r\nHost: h\r\nGood: true\r\n\r\n")
		close(let)
		for _, c := range append(held, further) {
			if status, _ := c.answer(); status != http.StatusOK {
				t.Errorf("the answer is %d", status)
			}
		}
		if status, _ := waits.answer(); status != http.StatusOK {
			t.Errorf("the one that waited is answered %d", status)
		}
	})
}

// Strangers give way before callers that are idle, and the oldest of them first.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial, _ := start(t)
		caller := dial()
		caller.ask(true)
		time.Sleep(time.Minute)
		var strangers []*client
		for range limit - 1 {
			time.Sleep(minFresh)
			strangers = append(strangers, dial())
		}
		dial()
		if !strangers[0].isClosed() || strangers[1].isClosed() || caller.isClosed() {
			t.Errorf("closed: the oldest %v, the next %v, the caller %v", strangers[0].isClosed(), strangers[1].isClosed(), caller.isClosed())
		}
		caller.ask(true)
	})
}

// A connection that is closed leaves its place to one that waits, at once.
func TestClosedConnectionLeavesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial, _ := start(t)
		var callers []*client
		for range limit {
			callers = append(callers, dial())
			callers[len(callers)-1].ask(true)
		}
		waits := dial()
		began := time.Now()
		callers[0].Close()
		waits.ask(true)
		if took := time.Since(began); took > 0 {
			t.Errorf("it waited for %v", took)
		}
	})
}

// A header that is too long is refused with that.
func TestLongHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial, _ := start(t)
		c := dial()
		c.say("GET / HTTP/1.1\r\nHost: h\r\nA: " + strings.Repeat("x", 64<<10) + "\r\n\r\n")
		if status, _ := c.answer(); status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("the answer is %d", status)
		}
	})
}

// Who sends no header, no body, or takes no answer, loses the connection, and a body
// without authentication is refused before it is there.
func TestTime(t *testing.T) {
	for name, of := range map[string]struct {
		sent  string
		most  time.Duration
		reads bool
	}{
		"no header":   {"", headerPatience, true},
		"no end":      {"GET / HTTP/1.1\r\nA: ", headerPatience, true},
		"no request":  {"GET / HTTP/1.1\r\nHost: h\r\nGood: true\r\n\r\n", idlePatience, true},
		"no body":     {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n", time.Second, true},
		"chunks":      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nxxxxx\r\n", time.Second, true},
		"no reader":   {"GET /big HTTP/1.1\r\nHost: h\r\nGood: true\r\n\r\n", patience, false},
		"long header": {"GET / HTTP/1.1\r\nA: " + strings.Repeat("x", 1<<20), headerPatience, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, dial, _ := start(t)
				c := dial()
				c.say(of.sent)
				if of.reads {
					go io.Copy(io.Discard, c)
				}
				time.Sleep(of.most + time.Second)
				synctest.Wait()
				if n := s.Conns(); n != 0 {
					t.Errorf("%d connections after %v", n, of.most+time.Second)
				}
			})
		})
	}
}

// The body of an authenticated request is waited for as long as the handler waits, and
// the connection goes on; one of a stranger's, whose handler reads it, is not.
func TestBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial, _ := start(t)
		c := dial()
		for range 2 {
			c.say("POST / HTTP/1.1\r\nHost: h\r\nGood: true\r\nContent-Length: 4\r\n\r\nab")
			time.Sleep(2 * patience)
			c.say("cd")
			if status, body := c.answer(); status != http.StatusOK || body != "abcd" {
				t.Errorf("%d %q", status, body)
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		read := make(chan error, 1)
		s := New(Config{MaxConns: 1, MaxHeader: 4 << 10, Patience: patience, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.ReadAll(r.Body)
			read <- err
		})})
		ours, theirs := net.Pipe()
		l := pipes{make(chan net.Conn, 1)}
		l.conns <- theirs
		go s.Serve(l)
		go io.Copy(io.Discard, ours)
		go io.WriteString(ours, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab")
		began := time.Now()
		if err := <-read; err == nil || time.Since(began) > patience {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ours.Close()
		close(l.conns)
		s.Close()
	})
}

// A request whose connection gave its place away, when it was about to be found good, is
// not served.
func TestHoldOfNoPlace(t *testing.T) {
	s := New(Config{Handler: http.NotFoundHandler()})
	p := &place{server: s, gone: true}
	r, err := http.NewRequestWithContext(context.WithValue(t.Context(), placeKey{}, p), "GET", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if got := recover(); got != http.ErrAbortHandler {
			t.Errorf("it ends with %v", got)
		}
	}()
	Hold(nil, r)
	t.Error("the request is served")
}

// Shutdown and Close end a Serve in which a connection waits for a place.
func TestEndWhileOneWaits(t *testing.T) {
	for name, end := range map[string]func(*Server) error{
		"shutdown": func(s *Server) error { return s.Shutdown(context.Background()) }, "close": (*Server).Close,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, dial, let := start(t)
				var held []*client
				for range limit {
					held = append(held, dial())
					held[len(held)-1].say("GET /wait HTTP/1.1\r\nHost: h\r\nGood: true\r\n\r\n")
				}
				waits := dial()
				ended := make(chan error, 1)
				go func() { ended <- end(s) }()
				synctest.Wait()
				if !waits.isClosed() {
					t.Error("the one that waits is kept waiting")
				}
				close(let)
				for _, c := range held {
					go io.Copy(io.Discard, c)
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
