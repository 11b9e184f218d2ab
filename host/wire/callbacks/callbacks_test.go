package callbacks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/host/wire/callbacks"
)

// callbackPair is a call that runs: the daemon's callbacks, and a caller with run.
func callbackPair(t *testing.T, run func(*callbacks.Program) (int, error)) (*callbacks.Daemon, func()) {
	t.Helper()
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	c := callbacks.New(func(frame []byte) error { return wire.WriteFrame(ours, frame) })
	go func() {
		_, err := wire.Stream(theirs, &wire.Call{Tool: "x", Callbacks: []string{"hooks"}}, wire.Local{Callback: run})
		served <- err
	}()
	if frame, err := wire.ReadFrame(ours); err != nil || !strings.Contains(string(frame), `"callbacks":["hooks"]`) {
		t.Fatalf("%s, %v", frame, err)
	}
	read := make(chan error, 1)
	go func() {
		for {
			frame, err := wire.ReadFrame(ours)
			if err != nil {
				read <- nil
				return
			}
			m, err := wire.Parse(frame)
			if err != nil {
				read <- err
				return
			}
			if err := c.Receive(m.(*wire.Typed).Callback); err != nil {
				read <- err
				return
			}
		}
	}()
	return c, func() {
		wire.WriteFrame(ours, wire.EncodeStreamResult(wire.Plain, &wire.Result{Ran: true}))
		if err := <-served; err != nil {
			t.Error(err)
		}
		ours.Close()
		theirs.Close()
		if err := <-read; err != nil {
			t.Error(err)
		}
	}
}

// TestCallback: streams of any size pass both ways at once, and the exit code.
func TestCallback(t *testing.T) {
	c, end := callbackPair(t, func(cb *callbacks.Program) (int, error) {
		if cb.Kind == "pager" {
			return 0, errors.New("there is none")
		}
		if _, err := io.Copy(cb.Stdout, cb.Stdin); err != nil {
			return 0, err
		}
		io.WriteString(cb.Stderr, strings.Join(cb.Args, ",")+cb.Path+cb.Cwd+cb.Env["A"])
		return 9, nil
	})
	defer end()
	input := bytes.Repeat([]byte("0123456789abcdef"), 4*callbacks.Credit/16)
	for range 3 {
		var stdout, stderr bytes.Buffer
		exit, err := c.Run(t.Context(), callbacks.Request{Kind: "hooks", Path: "/p", Args: []string{"a", "b"}, Cwd: "/w", Env: map[string]string{"A": "e"}}, bytes.NewReader(input), &stdout, &stderr)
		if err != nil || exit != 9 || !bytes.Equal(stdout.Bytes(), input) || stderr.String() != "a,b/p/we" {
			t.Errorf("%d, %v, %d bytes, %s", exit, err, stdout.Len(), &stderr)
		}
	}
	var failed *callbacks.Error
	if _, err := c.Run(t.Context(), callbacks.Request{Kind: "pager", Cwd: "/"}, nil, io.Discard, io.Discard); !errors.As(err, &failed) || failed.Text != "there is none" {
		t.Error(err)
	}
	if _, err := c.Run(t.Context(), callbacks.Request{Kind: "hooks", Cwd: "/", Args: []string{strings.Repeat("x", wire.MaxFrame)}}, nil, io.Discard, io.Discard); err == nil {
		t.Error("a request that fits in no frame was sent")
	}
}

// TestCallbackEnds: the program is told when nobody waits for it any more, and when
// the call has ended.
func TestCallbackEnds(t *testing.T) {
	began, ended := make(chan bool), make(chan bool, 2)
	c, end := callbackPair(t, func(cb *callbacks.Program) (int, error) {
		began <- true
		<-cb.Done
		_, err := cb.Stdin.Read(make([]byte, 1))
		_, werr := io.WriteString(cb.Stdout, "x")
		ended <- err == io.EOF && werr != nil
		return 0, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, callbacks.Request{Kind: "hooks", Cwd: "/"}, nil, io.Discard, io.Discard)
		got <- err
	}()
	<-began
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) || !<-ended {
		t.Error(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := c.Run(ctx, callbacks.Request{Kind: "hooks", Cwd: "/"}, nil, io.Discard, io.Discard)
		got <- err
	}()
	<-began
	end() // with the program, which has to have ended
	if !<-ended {
		t.Error("its streams were still there")
	}
	cancel()
	<-got
}

// TestCallbackOffender: a caller that does not keep to the protocol is found out, and
// what it sends is bounded.
func TestCallbackOffender(t *testing.T) {
	frames := make(chan []byte, 16)
	c := callbacks.New(func(frame []byte) error { frames <- frame; return nil })
	if err := c.Receive(&callbacks.Reply{ID: 1}); err == nil {
		t.Error("a reply to nothing was taken")
	}
	release := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(t.Context(), callbacks.Request{Kind: "hooks", Cwd: "/"}, nil, blocked{release}, io.Discard)
		done <- err
	}()
	<-frames
	<-frames // the end of its input
	if err := c.Receive(&callbacks.Reply{ID: 1, Ack: 1}); err == nil {
		t.Error("an ack of what was not sent was taken")
	}
	piece := bytes.Repeat([]byte("x"), wire.MaxChunk)
	var err *fault.Error
	sent := 0
	for err == nil && sent < 10*callbacks.Credit {
		err = c.Receive(&callbacks.Reply{ID: 1, Stdout: piece})
		sent += len(piece)
	}
	if err == nil || sent > callbacks.Credit+len(piece) {
		t.Errorf("%d bytes were taken: %v", sent, err)
	}
	exit := 0
	for range 1000 { // the first one counts
		if err := c.Receive(&callbacks.Reply{ID: 1, Exit: &exit}); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := c.Receive(&callbacks.Reply{ID: 1, Exit: &exit}); err != nil {
		t.Errorf("what came late: %v", err)
	}
}

type blocked struct{ until chan struct{} }

func (b blocked) Write(p []byte) (int, error) {
	<-b.until
	return len(p), nil
}

// FuzzCallbackReply: whatever a caller sends of callbacks, it is read or refused, and
// bounded.
func FuzzCallbackReply(f *testing.F) {
	for _, s := range []string{
		`{"type":"callback","id":1,"stdout":"aGk="}`, `{"type":"callback","id":1,"stderr":"aGk=","ack":0}`, `{"type":"callback","id":1,"exit":256}`, `{"type":"callback","id":1,"exit":0}`,
		`{"type":"callback","id":1,"error":"no"}`, `{"type":"callback","id":2}`, `{"type":"callback","id":1,"run":{}}`, `{"type":"callback"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, err := wire.Parse(frame)
		typed, ok := m.(*wire.Typed)
		if err != nil || !ok || typed.Type != wire.TypeCallback {
			return
		}
		begun := make(chan struct{}, 4)
		c := callbacks.New(func([]byte) error { begun <- struct{}{}; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			exit, _ := c.Run(ctx, callbacks.Request{Kind: "hooks", Cwd: "/"}, nil, io.Discard, io.Discard)
			if exit < 0 || exit > 255 {
				panic(exit)
			}
		}()
		<-begun
		if b, err := json.Marshal(typed.Callback); err != nil || len(b) > 2*wire.MaxFrame {
			t.Errorf("%d, %v", len(b), err)
		}
		c.Receive(typed.Callback)
		cancel()
		<-done
	})
}
