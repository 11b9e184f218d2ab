package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

func TestStreamedCall(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		fmt.Fprint(s.Stdout, "out\xff")
		fmt.Fprint(s.Stderr, "err")
		if err := s.Progress(json.RawMessage(`{"done":1}`)); err != nil {
			t.Error(err)
		}
		if err := s.Progress(json.RawMessage(`{`)); err == nil {
			t.Error("progress that is not JSON was sent")
		}
		return &wire.Result{Ran: true, ExitCode: 3, Stdout: []byte(" rest"), Stderr: []byte(" too")}
	}})
	for _, call := range []*wire.Call{
		{Tool: "x"},
		{Tool: "x", Form: wire.Envelope, ExecutionID: "7d444840-9dc0-41d1-b245-5ffdce74fad2"},
	} {
		var out, errOut bytes.Buffer
		var progress []string
		r, err := client.Stream(t.Context(), s.config.Path, call, wire.Local{
			Stdout: &out, Stderr: &errOut, Progress: func(data json.RawMessage) { progress = append(progress, string(data)) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != "out\xff rest" || errOut.String() != "err too" || r.ExitCode != 3 || !reflect.DeepEqual(progress, []string{`{"done":1}`}) {
			t.Errorf("got %q, %q, %+v, %q", &out, &errOut, r, progress)
		}
	}
}

func TestDataIsThePlainCallersOutput(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		if c.Tool == "text" {
			io.WriteString(s.Stdout, "text")
		}
		return &wire.Result{Ran: true, Data: json.RawMessage(`{"a":1}`)}
	}})
	for tool, want := range map[string]string{"data": "{\"a\":1}\n", "text": "text"} {
		var out bytes.Buffer
		if _, err := client.Stream(t.Context(), s.config.Path, &wire.Call{Tool: tool}, wire.Local{Stdout: &out}); err != nil || out.String() != want {
			t.Errorf("got %q, %v; want %q", &out, err, want)
		}
	}
}

// hashed reads random bytes, and knows the hash of those that were read.
type hashed struct {
	r   io.Reader
	sum hash.Hash
}

func newHashed(n int64) *hashed {
	return &hashed{io.LimitReader(rand.NewChaCha8([32]byte{}), n), sha256.New()}
}

func (h *hashed) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.sum.Write(p[:n])
	return n, err
}

// TestEchoIsIdenticalAndFlat: what goes in comes out, and none of it stays.
func TestEchoIsIdenticalAndFlat(t *testing.T) {
	size := int64(100 << 20)
	if testing.Short() || raceEnabled {
		size = 4 << 20
	}
	s := start(t, Config{Handler: echo})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	in, out := newHashed(size), sha256.New()
	r, err := client.Stream(t.Context(), s.config.Path, &wire.Call{Tool: "cat"}, wire.Local{Stdin: in, Stdout: out, Stderr: io.Discard})
	if err != nil || r.Err != nil {
		t.Fatal(r, err)
	}
	runtime.ReadMemStats(&after)
	if !bytes.Equal(in.sum.Sum(nil), out.Sum(nil)) {
		t.Error("what came back is not what was sent")
	}
	grown := int64(after.HeapSys) - int64(before.HeapSys)
	t.Logf("%d MiB each way, heap grown by %d KiB", size>>20, grown>>10)
	if grown > 16<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func TestInputInSmallPieces(t *testing.T) {
	s := start(t, Config{Handler: echo})
	var out bytes.Buffer
	want := strings.Repeat("0123456789", 2000)
	_, err := client.Stream(t.Context(), s.config.Path, &wire.Call{Tool: "cat"}, wire.Local{
		Stdin: iotest.OneByteReader(strings.NewReader(want)), Stdout: &out,
	})
	if err != nil || out.String() != want {
		t.Errorf("%d bytes came back, %v", out.Len(), err)
	}
}

// TestSlowReader: one that does not read holds up its own tool, and nobody's
// else.
func TestSlowReader(t *testing.T) {
	failed := make(chan error, 1)
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		if c.Tool == "quick" {
			return &wire.Result{Ran: true, Stdout: []byte("done")}
		}
		p := make([]byte, 64<<10)
		for {
			if _, err := s.Stdout.Write(p); err != nil {
				failed <- err
				return &wire.Result{Ran: true}
			}
		}
	}})
	slow := dial(t, s)
	slow.send(`{"tool":"yes","stream":true}`)
	slow.receive()
	other := dial(t, s)
	for range 100 {
		other.send(`{"tool":"quick"}`)
		if r, _ := other.result(); string(r.Stdout) != "done" {
			t.Fatalf("got %+v", r)
		}
	}
	select {
	case err := <-failed:
		t.Errorf("writing to a slow reader failed: %v", err)
	default:
	}
	slow.Close()
	if err := <-failed; !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("writing to a reader that left: %v", err)
	}
}

// endless never ends, and says when so many bytes of it were read.
type endless struct {
	n, until int
	reached  chan<- struct{}
}

func (e *endless) Read(p []byte) (int, error) {
	if e.n < e.until && e.n+len(p) >= e.until {
		close(e.reached)
	}
	e.n += len(p)
	return len(p), nil
}

// TestSignalPassesInput: a signal does not wait behind input that the tool does
// not take.
func TestSignalPassesInput(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		s.Stdin()
		return &wire.Result{Ran: true, ExitCode: 128 + int((<-s.Signals).(syscall.Signal))}
	}})
	reached := make(chan struct{})
	in := &endless{until: wire.Credit, reached: reached}
	signals := make(chan os.Signal)
	go func() {
		<-reached
		signals <- os.Interrupt
	}()
	r, err := client.Stream(t.Context(), s.config.Path, &wire.Call{Tool: "x"}, wire.Local{Stdin: in, Signals: signals})
	if err != nil || r.ExitCode != 130 {
		t.Errorf("got %+v, %v", r, err)
	}
	if in.n != wire.Credit {
		t.Errorf("%d bytes of input were read, want %d", in.n, wire.Credit)
	}
}

// TestInputIsAskedFor: nobody reads the caller's input unless the tool wants it.
func TestInputIsAskedFor(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		return &wire.Result{Ran: true}
	}})
	in := strings.NewReader("the caller's own")
	if _, err := client.Stream(t.Context(), s.config.Path, &wire.Call{Tool: "x"}, wire.Local{Stdin: in}); err != nil {
		t.Fatal(err)
	}
	if in.Len() != len("the caller's own") {
		t.Error("the input was read")
	}
}

func TestOpenIsSentOnce(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		s.Stdin()
		io.Copy(io.Discard, s.Stdin())
		return &wire.Result{Ran: true}
	}})
	c := dial(t, s)
	c.send(`{"tool":"x","stream":true}`)
	if p := c.receive(); !p.Open {
		t.Errorf("got %+v", p)
	}
	c.send(`{"type":"stdin","eof":true}`)
	if p := c.receive(); p.Type != wire.TypeResult {
		t.Errorf("got %+v", p)
	}
	// A client that has said already that there is none is not asked.
	c.send(`{"tool":"x","stream":true}`, `{"type":"stdin","eof":true}`)
	for {
		p := c.receive()
		if p.Type == wire.TypeResult {
			break
		}
		if !p.Open {
			t.Errorf("got %+v", p)
		}
	}
}

func TestAcks(t *testing.T) {
	var sent []string
	in := newInput(t.Context(), func(frame []byte) error {
		sent = append(sent, string(frame))
		return nil
	})
	receive := func(n int) *fault.Error { return in.receive(make([]byte, n), false) }
	if err := receive(wire.Credit); err != nil {
		t.Fatal(err)
	}
	in.open()
	for _, step := range []struct {
		take int
		sent string
	}{
		{0, `{"type":"stdin","open":true}`},
		{32768, ""}, {32767, ""}, {1, `{"type":"stdin","ack":65536}`}, // once enough was taken
		{100000, `{"type":"stdin","ack":100000}`},
		{wire.Credit - 165536 - 1, `{"type":"stdin","ack":96607}`},
		{1, `{"type":"stdin","ack":1}`}, // or all that there was
	} {
		if n, err := in.Read(make([]byte, step.take)); n != step.take || err != nil {
			t.Fatalf("took %d of %d, %v", n, step.take, err)
		}
		if got := strings.Join(sent, " "); got != step.sent {
			t.Errorf("after %d bytes: sent %q, want %q", step.take, got, step.sent)
		}
		sent = nil
	}
	// What was taken and not acknowledged still counts.
	if err := receive(wire.Credit); err != nil {
		t.Fatal(err)
	}
	in.Read(make([]byte, 1))
	if err := receive(1); err == nil {
		t.Error("input past the credit was taken")
	}
}

// TestProtocolErrorsOfACall: what a client does wrong to its call ends that call,
// and nothing else.
func TestProtocolErrorsOfACall(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		if c.Tool == "next" {
			return &wire.Result{Ran: true}
		}
		<-ctx.Done()
		if s.Stdin != nil {
			if _, err := s.Stdin().Read(make([]byte, 1)); err == nil {
				t.Error("reading the input of a call that was ended did not fail")
			}
		}
		return &wire.Result{Ran: true, ExitCode: 5}
	}})
	big := make([]string, 9)
	for i := range big {
		big[i] = stdin(strings.Repeat("x", 32000))
	}
	for name, frames := range map[string][]string{
		"past the credit":            append([]string{`{"tool":"x","stream":true}`}, big...),
		"malformed input":            {`{"tool":"x","stream":true}`, `{"type":"stdin","data":"?"}`},
		"unknown signal":             {`{"tool":"x","stream":true}`, `{"type":"signal","name":"STOP"}`},
		"input after its end":        {`{"tool":"x","stream":true}`, `{"type":"stdin","eof":true}`, stdin("more")},
		"input of a plain call":      {`{"tool":"x"}`, stdin("x")},
		"input where it was brought": {`{"tool":"x","stream":true,"stdin":""}`, stdin("x")},
		"args without more":          {`{"tool":"x","stream":true}`, `{"type":"args","args":["a"]}`},
	} {
		c := dial(t, s)
		c.send(frames...)
		r, _ := c.result()
		if r.Err == nil || r.Err.Code != fault.InvalidEnvelope || r.ExitCode != 64 {
			t.Errorf("%s: %+v", name, r)
		}
		c.send(`{"tool":"next"}`)
		if r, _ := c.result(); r.Err != nil {
			t.Errorf("%s, then: %v", name, r.Err)
		}
	}
}

// TestUnknownFrameDuringACall is answered in its turn.
func TestUnknownFrameDuringACall(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		<-s.Signals
		return &wire.Result{Ran: true, Stdout: []byte("first")}
	}})
	c := dial(t, s)
	c.send(`{"tool":"x"}`, `{"type":"weather"}`, `{`, `{"type":"signal","name":"INT"}`)
	if r, _ := c.result(); string(r.Stdout) != "first" {
		t.Errorf("got %+v", r)
	}
	c.refused(fault.InvalidEnvelope)
	c.refused(fault.InvalidEnvelope)
}

func TestInputBeforeItIsAskedFor(t *testing.T) {
	s := start(t, Config{Handler: echo})
	c := dial(t, s)
	c.send(`{"tool":"cat","stream":true}`, stdin("early"), `{"type":"stdin","data":"IQ==","eof":true}`)
	if r, out := c.result(); out != "early!" || r.Err != nil {
		t.Errorf("got %q, %+v", out, r)
	}
}

func TestInputThatCameWithTheRequest(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		if s.Stdin != nil {
			t.Error("a call that brought its input can be asked for more")
		}
		return &wire.Result{Ran: true, Stdout: c.Stdin}
	}})
	c := dial(t, s)
	c.send(`{"tool":"x","stream":true,"stdin":"aGk="}`)
	if _, out := c.result(); out != "hi" {
		t.Errorf("got %q", out)
	}
}

func TestLongArguments(t *testing.T) {
	s := start(t, Config{Handler: func(_ context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		return &wire.Result{Ran: true, Stdout: fmt.Append(nil, len(c.Args), len(strings.Join(c.Args, "")), len(c.Payload) > len(c.Args))}
	}})
	args := make([]string, 20001)
	for i := range args {
		args[i] = fmt.Sprintf("some/folder/%05d", i)
	}
	args[20000] = strings.Repeat("x", 1<<20)
	var out bytes.Buffer
	r, err := client.Stream(t.Context(), s.config.Path, &wire.Call{Tool: "x", Args: args}, wire.Local{Stdout: &out})
	if err != nil || r.Err != nil || out.String() != fmt.Sprint(20001, 20000*17+1<<20, true) {
		t.Errorf("got %q, %+v, %v", &out, r, err)
	}
}

func TestLongArgumentsRefused(t *testing.T) {
	signalled := make(chan struct{})
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		if c.Tool == "wait" {
			select {
			case <-s.Signals:
			case <-ctx.Done():
			}
			close(signalled)
		}
		return &wire.Result{Ran: true, Stdout: []byte(c.Tool)}
	}})
	args := `{"type":"args","args":["` + strings.Repeat("x", 60000) + `"],"more":true}`
	tooMany := []string{`{"tool":"x","stream":true,"more":true}`}
	for range wire.MaxArgs/60000 + 2 {
		tooMany = append(tooMany, args)
	}
	c := dial(t, s)
	// While an earlier call runs: args frames that belong to a request that was
	// refused must not be taken for that call's.
	c.send(`{"tool":"wait"}`)
	c.send(tooMany...)
	c.send(`{"tool":"after"}`)
	c.send(`{"tool":"x","stream":true,"more":true}`, `{"type":"args","args":[1]}`, `{"type":"args","args":["late"]}`, `{"tool":"after"}`)
	c.send(`{"tool":"x","stream":true,"more":true}`, `{"tool":"after"}`)
	c.send(`{"tool":"x","more":true}`, `{"type":"args","args":["late"]}`, `{"tool":"after"}`)
	c.send(`{"type":"signal","name":"INT"}`)
	if r, _ := c.result(); string(r.Stdout) != "wait" || r.Err != nil {
		t.Errorf("the earlier call: %+v", r)
	}
	<-signalled
	for i, want := range []fault.Code{fault.MessageTooLarge, fault.InvalidEnvelope, fault.InvalidEnvelope, fault.InvalidEnvelope} {
		if message := c.refused(want); message == "" {
			t.Errorf("refusal %d says nothing", i)
		}
		if r, _ := c.result(); string(r.Stdout) != "after" {
			t.Errorf("after refusal %d: %+v", i, r)
		}
	}
	c.send(`{"tool":"x","stream":true,"more":true}`)
	c.CloseWrite()
	c.refused(fault.InvalidEnvelope)
	c.ended()
}

// TestSignalWhileArgumentsCome reaches the call that they are for.
func TestSignalWhileArgumentsCome(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		return &wire.Result{Ran: true, Stdout: fmt.Append(nil, <-s.Signals)}
	}})
	c := dial(t, s)
	c.send(`{"tool":"x","stream":true,"more":true}`, `{"type":"signal","name":"INT"}`, `{"type":"args","args":[]}`)
	if _, out := c.result(); out != fmt.Sprint(os.Interrupt) {
		t.Errorf("got %q", out)
	}
}
