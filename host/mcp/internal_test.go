package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/wire"
)

// serve serves one connection of a front end whose pipeline is answer, and returns
// the client's end of it.
func serve(t *testing.T, answer func(context.Context, call.Request) call.Outcome) (nc net.Conn, stop func(), end context.CancelCauseFunc, served chan struct{}) {
	t.Helper()
	ours, theirs := net.Pipe()
	ctx, end := context.WithCancelCause(t.Context())
	stopping := make(chan struct{})
	served = make(chan struct{})
	f := New(Config{Version: "1", Call: answer, Logger: slog.New(slog.DiscardHandler)})
	go func() {
		defer close(served)
		f.Serve(ctx, stopping, ours, Peer{})
	}()
	t.Cleanup(func() { theirs.Close(); <-served; end(nil) })
	return theirs, func() { close(stopping) }, end, served
}

func connect(t *testing.T, nc net.Conn) *sdk.ClientSession {
	t.Helper()
	s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &sdk.IOTransport{Reader: nc, Writer: nc}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPanic(t *testing.T) {
	nc, _, _, _ := serve(t, func(_ context.Context, q call.Request) call.Outcome {
		if q.Call.Tool == "bad" {
			panic("as the test wants it")
		}
		return call.Outcome{Result: &wire.Result{Ran: true, Stdout: []byte("fine")}}
	})
	s := connect(t, nc)
	r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "bad"})
	if said, _ := json.Marshal(r); err != nil || !r.IsError || !strings.Contains(string(said), "INTERNAL") {
		t.Errorf("a panic: %s, %v", said, err)
	}
	for range maxCalls + 1 { // the place of the call was given back
		if r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "good"}); err != nil || r.IsError {
			t.Fatalf("after a panic: %v, %v", r, err)
		}
	}
}

// A connection runs so many calls and no more, however many are asked for, and each
// is answered.
func TestManyCalls(t *testing.T) {
	began, release := make(chan struct{}, 100), make(chan struct{})
	nc, _, _, _ := serve(t, func(context.Context, call.Request) call.Outcome {
		began <- struct{}{}
		<-release
		return call.Outcome{Result: &wire.Result{Ran: true}}
	})
	s := connect(t, nc)
	answers := make(chan *sdk.CallToolResult, maxCalls+8)
	for range maxCalls + 8 {
		go func() {
			r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "slow"})
			if err != nil {
				t.Error(err)
			}
			answers <- r
		}()
	}
	for range 8 {
		if r := <-answers; r == nil || !r.IsError || r.Meta[translate.MetaError].(map[string]any)["code"] != "OVERLOADED" {
			t.Errorf("a call too many: %v", r)
		}
	}
	close(release)
	for range maxCalls {
		if r := <-answers; r == nil || r.IsError {
			t.Errorf("a call: %v", r)
		}
	}
	if len(began) != maxCalls {
		t.Errorf("%d calls ran at a time, want %d", len(began), maxCalls)
	}
}

// A call knows why it ends: that the client cancelled it, or that it left.
func TestCauses(t *testing.T) {
	causes := make(chan error, 1)
	began := make(chan struct{}, 1)
	answer := func(ctx context.Context, _ call.Request) call.Outcome {
		began <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return call.Failed(ctx, context.Cause(ctx))
	}
	t.Run("cancelled", func(t *testing.T) {
		nc, _, _, _ := serve(t, answer)
		s := connect(t, nc)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-began; cancel() }()
		s.CallTool(ctx, &sdk.CallToolParams{Name: "slow"})
		var e *fault.Error
		if err := <-causes; !errors.As(err, &e) || e.Code != fault.Aborted || err == error(wire.ErrLeft) {
			t.Errorf("the cause is %v", err)
		}
	})
	t.Run("left", func(t *testing.T) {
		nc, _, _, _ := serve(t, answer)
		s := connect(t, nc)
		go func() { <-began; nc.Close() }()
		s.CallTool(t.Context(), &sdk.CallToolParams{Name: "slow"})
		if err := <-causes; err != error(wire.ErrLeft) {
			t.Errorf("the cause is %v", err)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		nc, stop, end, served := serve(t, answer)
		s := connect(t, nc)
		stopped := fault.Errorf(fault.Aborted, "the daemon was stopped")
		go func() { <-began; stop(); end(stopped) }()
		r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "slow"})
		if err != nil || !r.IsError || r.Meta[translate.MetaError].(map[string]any)["code"] != "ABORTED" {
			t.Errorf("a call that is ended with the daemon: %v, %v", r, err)
		}
		if err := <-causes; err != error(stopped) {
			t.Errorf("the cause is %v", err)
		}
		<-served
	})
}

// A connection that is idle when the daemon stops is closed, and one that runs a call
// gets its answer first.
func TestDrain(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	nc, stop, _, served := serve(t, func(context.Context, call.Request) call.Outcome {
		close(began)
		<-release
		return call.Outcome{Result: &wire.Result{Ran: true, Stdout: []byte("done")}}
	})
	s := connect(t, nc)
	go func() { <-began; stop(); close(release) }()
	if r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "slow"}); err != nil || len(r.Content) != 1 {
		t.Errorf("a call that ran when the daemon stopped: %v, %v", r, err)
	}
	<-served
}

func TestReadLine(t *testing.T) {
	long := strings.Repeat("x", MaxMessage)
	for _, tt := range []struct{ in, line, id string }{
		{"{}\r\n", "{}", ""},
		{`{"id":7,"params":{"id":8,"x":"` + long + `"}}` + "\n", "", "7"},
		{`{"params":{"id":8,"x":"` + long + `\""},"id": "a,b" }` + "\n", "", `"a,b"`},
		{`{"params":["id",{"x":"` + long + `"}]}` + "\n", "", ""},
		{`{"x":"id","y":"` + long + `","id":null}` + "\n", "", ""},
		{`{"id":{"id":3},"y":"` + long + `"}` + "\n", "", ""},
		{`{"id":"` + long + `"}` + "\n", "", ""},
	} {
		in := bufio.NewReader(strings.NewReader(tt.in + "next\n"))
		line, err := readLine(in)
		if tt.line != "" {
			if err != nil || string(line) != tt.line {
				t.Errorf("%.40s: %q, %v", tt.in, line, err)
			}
			continue
		}
		e, ok := errors.AsType[*tooLongError](err)
		if !ok || string(e.id) != tt.id || e.size != int64(len(tt.in)) {
			t.Errorf("%.40s: %+v, want the id %q and %d bytes", tt.in, err, tt.id, len(tt.in))
		}
		if line, err := readLine(in); err != nil || string(line) != "next" {
			t.Errorf("%.40s: the line after is %q, %v", tt.in, line, err)
		}
	}
	if _, err := readLine(bufio.NewReader(strings.NewReader("{}"))); err != io.EOF {
		t.Errorf("a message that is cut off: %v", err)
	}
}

// A tool is called by the name that clients have it as.
func TestNames(t *testing.T) {
	mapped := translate.Names([]translate.Tool{{Name: "a.b"}})["a.b"]
	called := ""
	nc, _, _, _ := serve(t, func(_ context.Context, q call.Request) call.Outcome {
		if q.Call.Tool == "tools.list" {
			return call.Outcome{Result: &wire.Result{Ran: true, Data: json.RawMessage(`{"tools":[{"name":"a.b"},{"name":"git"}]}`)}}
		}
		called = q.Call.Tool
		return call.Outcome{Result: &wire.Result{Ran: true}}
	})
	s := connect(t, nc)
	if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: mapped}); err != nil || called != "a.b" {
		t.Errorf("%s calls %q, %v", mapped, called, err)
	}
}

func FuzzReadLine(f *testing.F) {
	f.Add([]byte(`{"id":1}`), uint8(0))
	f.Add([]byte(`{"params":{"a":"b\"}"},"id":"x"}`), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, _ uint8) {
		var id idFinder
		id.read(text)
		if got := id.id(); got != nil && (!json.Valid(got) || len(got) > maxID) {
			t.Errorf("the id of %q is %q", text, got)
		}
		// Of JSON it is what a decoder finds.
		dec := json.NewDecoder(strings.NewReader(string(text)))
		dec.UseNumber()
		if first, err := dec.Token(); err != nil || first != json.Delim('{') || !json.Valid(text) || strings.Contains(string(text), `\u`) {
			return
		}
		var want any
		for dec.More() {
			key, _ := dec.Token()
			var v any
			if dec.Decode(&v) != nil {
				return
			}
			if key == "id" {
				want = v
			}
		}
		switch want.(type) {
		case string, json.Number:
			var got any
			d := json.NewDecoder(strings.NewReader(string(id.id())))
			d.UseNumber()
			if d.Decode(&got) != nil && len(fmt.Sprint(want)) < maxID/6 || got != nil && got != want {
				t.Errorf("the id of %q is %v, want %v", text, got, want)
			}
		}
	})
}
