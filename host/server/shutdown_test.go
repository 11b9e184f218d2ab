package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// TestShutdownLetsCallsFinish, with their streams, and refuses further ones in
// words.
func TestShutdownLetsCallsFinish(t *testing.T) {
	s := start(t, Config{Handler: echo})
	busy, idle := dial(t, s), dial(t, s)
	idle.send(`{"tool":"x"}`)
	idle.result()
	busy.send(`{"tool":"cat","stream":true}`)
	if p := busy.receive(); !p.Open {
		t.Fatalf("got %+v", p)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(context.Background()) }()
	idle.ended()
	if _, err := client.Dial(t.Context(), s.config.Path); !errors.Is(err, client.ErrNoDaemon) {
		t.Errorf("a new connection: %v", err)
	}

	busy.send(stdin("still "))
	busy.send(`{"tool":"next"}`)
	busy.send(stdin("here"), `{"type":"stdin","eof":true}`)
	if r, out := busy.result(); out != "still here" || r.Err != nil {
		t.Errorf("the call that ran: %q, %+v", out, r)
	}
	if message := busy.refused(fault.Overloaded); !strings.Contains(message, "stopping") {
		t.Errorf("a further request: %s", message)
	}
	busy.ended()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestShutdownAnswersLastWords: a request that is on its way to an idle
// connection is not met with silence.
func TestShutdownAnswersLastWords(t *testing.T) {
	s := start(t, Config{Handler: echo})
	c := dial(t, s)
	c.send(`{"tool":"x"}`)
	c.result()
	s.eachConn(func(c *conn) { c.queue.stop() })
	c.send(`{"tool":"x"}`)
	c.refused(fault.Overloaded)
	c.ended()
}

func TestShutdownEndsCalls(t *testing.T) {
	began := make(chan struct{}, 2)
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		began <- struct{}{}
		<-ctx.Done()
		var e *fault.Error
		errors.As(context.Cause(ctx), &e)
		return &wire.Result{Err: e, Stdout: []byte("half")}
	}})
	c := dial(t, s)
	c.send(`{"tool":"x"}`, `{"tool":"never begins"}`)
	<-began
	for queued(s) < 2 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	r, _ := c.result()
	if r.Err == nil || r.Err.Code != fault.Aborted || string(r.Stdout) != "half" || r.ExitCode != 130 {
		t.Errorf("the call that ran: %+v", r)
	}
	c.refused(fault.Overloaded)
	c.ended()
}

// TestShutdownWithUnfinishedRequest: a client that stops in the middle of what it
// sends does not keep the server.
func TestShutdownWithUnfinishedRequest(t *testing.T) {
	s := start(t, Config{Handler: echo})
	assembling, half := dial(t, s), dial(t, s)
	assembling.send(`{"tool":"x","stream":true,"more":true}`)
	half.Write([]byte{0, 0})
	for s.Conns() < 2 {
		runtime.Gosched()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	half.ended()
}

// TestShutdownWithStuckCalls: neither a handler that does not return nor a client that
// does not read its answer keeps the server.
func TestShutdownWithStuckCalls(t *testing.T) {
	let := make(chan struct{})
	began, full := make(chan struct{}), make(chan struct{})
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		if c.Tool == "stuck" {
			close(began)
			<-let
			return &wire.Result{}
		}
		p := make([]byte, 48000)
		for n := 0; ; n++ {
			if n == 1 {
				close(full)
			}
			if _, err := s.Stdout.Write(p); err != nil {
				return &wire.Result{}
			}
		}
	}})
	stuck, slow := dial(t, s), dial(t, s)
	stuck.send(`{"tool":"stuck"}`)
	slow.send(`{"tool":"yes","stream":true}`)
	<-began
	<-full
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "2 connections") {
		t.Errorf("got %v", err)
	}
	stuck.ended()
	close(let)
	s.running.Wait()
}

func TestServeEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tool.sock")
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	begin := make(chan struct{})
	s, err := Listen(Config{Path: path, Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		<-begin
		if ctx.Err() != nil || ctx.Value(key{}) != "value" {
			t.Errorf("the call's context: %v, value %v", ctx.Err(), ctx.Value(key{}))
		}
		return &wire.Result{Ran: true}
	}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- s.Serve(ctx) }()
	c := dial(t, s)
	c.send(`{"tool":"x"}`)
	for queued(s) == 0 {
		runtime.Gosched()
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	close(begin)
	if r, _ := c.result(); r.Err != nil {
		t.Error(r.Err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestAdmin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	everybody := func(p Peer) error {
		if p.PID != os.Getpid() || int(p.UID) != os.Getuid() {
			t.Errorf("asked about %+v", p)
		}
		return nil
	}
	lock := filepath.Join(t.TempDir(), "lock")
	a, err := ListenAdmin(nil, path, lock, everybody, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	served := make(chan error)
	go func() { served <- a.Serve() }()
	if _, err := ListenAdmin(nil, path, lock, everybody, nil); !errors.Is(err, errInUse) {
		t.Errorf("a second one: %v", err)
	}
	if _, err := client.NewAdmin(path).Tools(t.Context()); err == nil || !strings.Contains(err.Error(), "answer to /tools") {
		t.Errorf("asked: %v", err)
	}
	if err := a.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	// A second one is not harmed by the first's second end.
	b, err := ListenAdmin(nil, path, lock, everybody, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown(t.Context())
	a.Shutdown(t.Context())
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(lock); err != nil {
		t.Error(err)
	}
}

// TestConnectionWhileStopping: one that was accepted just as the server stopped
// is told so.
func TestConnectionWhileStopping(t *testing.T) {
	s := start(t, Config{Handler: echo})
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	c := dial(t, s)
	if message := c.refused(fault.Overloaded); !strings.Contains(message, "stopping") {
		t.Errorf("told %q", message)
	}
	c.ended()
}
