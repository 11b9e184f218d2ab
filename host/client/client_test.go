package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/wire"
)

const id = "7d444840-9dc0-41d1-b245-5ffdce74fad2"

// serve runs a daemon with the handler until the test ends.
func serve(t testing.TB, config server.Config) string {
	t.Helper()
	config.Path = filepath.Join(t.TempDir(), "tool.sock")
	s, err := server.Listen(config)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := errors.Join(s.Shutdown(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	return config.Path
}

// answer answers a plain call with its arguments, and an envelope with its
// payload.
func answer(_ context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
	if c.Tool == "denied" {
		return &wire.Result{Err: fault.Errorf(fault.Denied, "no")}
	}
	if c.Form == wire.Envelope {
		return &wire.Result{Ran: true, Data: c.Payload}
	}
	return &wire.Result{Ran: true, Stdout: []byte(strings.Join(c.Args, " "))}
}

func TestCall(t *testing.T) {
	path := serve(t, server.Config{Handler: answer})
	c, err := client.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 10 {
		r, err := c.Call(t.Context(), &wire.Call{Tool: "x", Args: []string{"call", fmt.Sprint(i)}, Stream: true})
		if err != nil || string(r.Stdout) != fmt.Sprint("call ", i) || r.ExecutionID == "" {
			t.Fatalf("%+v, %v", r, err)
		}
		r, err = c.Call(t.Context(), &wire.Call{Form: wire.Envelope, ExecutionID: id, Tool: "x", Payload: json.RawMessage(`{"a":1}`)})
		if err != nil || string(r.Data) != `{"a":1}` || r.ExecutionID != id {
			t.Fatalf("%+v, %v", r, err)
		}
		var out bytes.Buffer
		r, err = c.Stream(t.Context(), &wire.Call{Tool: "x", Args: []string{"streamed"}}, wire.Local{Stdout: &out})
		if err != nil || out.String() != "streamed" {
			t.Fatalf("%q, %+v, %v", &out, r, err)
		}
		// A refusal is an answer; the connection lives on.
		r, err = c.Call(t.Context(), &wire.Call{Tool: "denied"})
		if err != nil || r.Err == nil || r.Err.Code != fault.Denied || r.ExitCode != 126 {
			t.Fatalf("%+v, %v", r, err)
		}
		// So is what is wrong with the request, on either side.
		if _, err := c.Call(t.Context(), &wire.Call{Tool: "x", Args: []string{"\xff"}}); !isCode(err, fault.InvalidEnvelope) {
			t.Fatal(err)
		}
		if r, err := c.Call(t.Context(), &wire.Call{Form: wire.Envelope, Tool: "x"}); err != nil || r.Err == nil || r.Err.Code != fault.InvalidEnvelope {
			t.Fatalf("%+v, %v", r, err)
		}
	}
}

func isCode(err error, code fault.Code) bool {
	var e *fault.Error
	return errors.As(err, &e) && e.Code == code
}

func TestCallsWaitForOneAnother(t *testing.T) {
	path := serve(t, server.Config{Handler: answer})
	c, err := client.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			r, err := c.Call(t.Context(), &wire.Call{Tool: "x", Args: []string{fmt.Sprint(i)}})
			if err != nil || string(r.Stdout) != fmt.Sprint(i) {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	all.Wait()
}

func TestNoDaemon(t *testing.T) {
	stale := filepath.Join(t.TempDir(), "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, path := range []string{filepath.Join(t.TempDir(), "none"), stale} {
		if _, err := client.Call(t.Context(), path, &wire.Call{Tool: "x"}); !errors.Is(err, client.ErrNoDaemon) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v", err)
		}
	}
}

// TestLeaving: when the context of a call ends, so does the call.
func TestLeaving(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	path := serve(t, server.Config{Handler: func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		if c.Tool == "x" {
			return answer(ctx, c, server.Peer{}, s)
		}
		began <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return &wire.Result{}
	}})
	for name, call := range map[string]func(context.Context, *client.Conn) error{
		"call": func(ctx context.Context, c *client.Conn) error {
			_, err := c.Call(ctx, &wire.Call{Tool: "wait"})
			return err
		},
		"stream": func(ctx context.Context, c *client.Conn) error {
			_, err := c.Stream(ctx, &wire.Call{Tool: "wait"}, wire.Local{})
			return err
		},
	} {
		c, err := client.Dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-began
			cancel()
		}()
		if err := call(ctx, c); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		<-ended
		if _, err := c.Call(t.Context(), &wire.Call{Tool: "x"}); err == nil {
			t.Errorf("%s: the connection was used again", name)
		}
		if _, err := c.Call(ctx, &wire.Call{Tool: "x"}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: a call whose context had ended: %v", name, err)
		}
		c.Close()
	}
}

func TestTurnedAway(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	path := serve(t, server.Config{MaxConns: 1, Handler: func(ctx context.Context, c *wire.Call, p server.Peer, s wire.Streams) *wire.Result {
		if c.Tool == "hold" {
			close(begun)
			<-release
		}
		return answer(ctx, c, p, s)
	}})
	held := make(chan error, 1)
	go func() {
		_, err := client.Call(context.Background(), path, &wire.Call{Tool: "hold"})
		held <- err
	}()
	defer func() {
		close(release)
		if err := <-held; err != nil {
			t.Errorf("the call that held the place: %v", err)
		}
	}()
	<-begun
	for range 100 {
		for _, form := range []wire.Form{wire.Plain, wire.Envelope} {
			r, err := client.Call(t.Context(), path, &wire.Call{Form: form, ExecutionID: id, Tool: "x", Args: []string{strings.Repeat("x", 60000)}})
			if err != nil || r.Err == nil || r.Err.Code != fault.Overloaded {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		r, err := client.Stream(t.Context(), path, &wire.Call{Tool: "x", Args: []string{strings.Repeat("x", 1<<20)}}, wire.Local{Stdout: io.Discard})
		if err != nil || r.Err == nil || r.Err.Code != fault.Overloaded {
			t.Fatalf("streamed: %+v, %v", r, err)
		}
	}
}

// TestOutputRefused: an output that refuses ends the call.
func TestOutputRefused(t *testing.T) {
	ended := make(chan struct{})
	path := serve(t, server.Config{Handler: func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		if c.Tool == "stdout" {
			io.WriteString(s.Stdout, "x")
		} else {
			io.WriteString(s.Stderr, "x")
		}
		<-ctx.Done()
		ended <- struct{}{}
		return &wire.Result{}
	}})
	for _, name := range []string{"stdout", "stderr"} {
		var refused *wire.OutputError
		_, err := client.Stream(t.Context(), path, &wire.Call{Tool: name}, wire.Local{Stdout: full{}, Stderr: full{}})
		if !errors.As(err, &refused) || refused.Name != name || !errors.Is(err, errFull) {
			t.Errorf("%s: %v", name, err)
		}
		<-ended
	}
}

var errFull = errors.New("no room")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// TestServerThatMisbehaves: whatever a server sends, a client ends with an error.
func TestServerThatMisbehaves(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":              "",
		"half a frame":         "\x00\x00\x00\x10{",
		"no JSON":              "\x00\x00\x00\x01{",
		"too much":             "\x7F\x00\x00\x00",
		"a stream's frame":     "\x00\x00\x00\x0E" + `{"type":"ack"}`,
		"an error of no shape": "\x00\x00\x00\x0B" + `{"error":1}`,
	} {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				wire.ReadFrame(c)
				io.WriteString(c, answer)
				c.Close()
			}
		}()
		if r, err := client.Call(t.Context(), l.Addr().String(), &wire.Call{Tool: "x"}); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
		if r, err := client.Stream(t.Context(), l.Addr().String(), &wire.Call{Tool: "x"}, wire.Local{}); err == nil {
			t.Errorf("%s, streamed: %+v", name, r)
		}
		l.Close()
	}
}

// BenchmarkCall is one plain call over a kept connection, and beside it the least
// that any server could do: a line of JSON read, decoded, encoded and sent back
// over the same kind of socket.
func BenchmarkCall(b *testing.B) {
	b.Run("toold", func(b *testing.B) {
		path := serve(b, server.Config{Handler: answer})
		c, err := client.Dial(b.Context(), path)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		call := &wire.Call{Tool: "git", Args: []string{"push", "origin", "main"}, Cwd: "/workspace"}
		b.ReportAllocs()
		for b.Loop() {
			if r, err := c.Call(b.Context(), call); err != nil || r.Err != nil {
				b.Fatal(r, err)
			}
		}
	})
	b.Run("bare-json-echo", func(b *testing.B) {
		l, err := net.Listen("unix", filepath.Join(b.TempDir(), "s"))
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		type message struct {
			Tool string   `json:"tool"`
			Args []string `json:"args"`
			Cwd  string   `json:"cwd"`
		}
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			in, out := json.NewDecoder(c), json.NewEncoder(c)
			for {
				var m message
				if in.Decode(&m) != nil || out.Encode(m) != nil {
					return
				}
			}
		}()
		c, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		in, out := json.NewDecoder(c), json.NewEncoder(c)
		call := message{"git", []string{"push", "origin", "main"}, "/workspace"}
		b.ReportAllocs()
		for b.Loop() {
			var m message
			if err := errors.Join(out.Encode(call), in.Decode(&m)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
