package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// The kinds of programs that a caller can offer to run for its tool.
const (
	CallbackEditor         = "editor"
	CallbackSequenceEditor = "sequence-editor"
	CallbackPager          = "pager"
	CallbackHooks          = "hooks"
	CallbackScripts        = "scripts"
)

// CallbackKinds are all of them.
func CallbackKinds() []string {
	return []string{CallbackEditor, CallbackSequenceEditor, CallbackPager, CallbackHooks, CallbackScripts}
}

const (
	// MaxCallbacks is how many callbacks of a call run at a time.
	MaxCallbacks = 8
	// maxCallbackKinds is how many kinds a request offers at most.
	maxCallbackKinds = 16
)

// CallbackRequest asks a caller to run a program of its own.
type CallbackRequest struct {
	// Kind is one of those that the caller offered.
	Kind string `json:"kind"`
	// Path is the program, absolute; empty where the kind says which it is.
	Path string `json:"path,omitempty"`
	// Args are its arguments; of CallbackScripts the text of the script, alone.
	Args []string `json:"args,omitempty"`
	// Cwd is the folder that it runs in, absolute.
	Cwd string `json:"cwd"`
	// Env are variables that it gets beside the caller's own.
	Env map[string]string `json:"env,omitempty"`
}

// Callback is a CallbackRequest as the caller runs it.
type Callback struct {
	CallbackRequest
	// Stdin is what the program reads. Stdout and Stderr take what it writes.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Done is closed when nobody waits for the program any more: it is to be ended.
	Done <-chan struct{}
}

// callbackFrame is a callback frame, in either direction. The fields of the other
// direction are empty.
type callbackFrame struct {
	Type string `json:"type"`
	ID   int    `json:"id"`
	// From the server.
	Run   *CallbackRequest `json:"run,omitempty"`
	Stdin []byte           `json:"stdin,omitempty"`
	EOF   bool             `json:"eof,omitempty"`
	End   bool             `json:"end,omitempty"`
	// From the client.
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Exit   *int   `json:"exit,omitempty"`
	Error  string `json:"error,omitempty"`
	// Ack are bytes that were taken of what the other side sent.
	Ack int `json:"ack,omitempty"`
}

// CallbackReply is a callback frame from a client.
type CallbackReply struct {
	ID             int
	Stdout, Stderr []byte
	Ack            int
	// Exit is the program's exit code; nil while it runs. Error says why it did not
	// run.
	Exit  *int
	Error string
}

func parseCallbackReply(frame []byte) (*CallbackReply, error) {
	var q struct {
		Type   string     `json:"type"`
		ID     *int       `json:"id"`
		Stdout base64Text `json:"stdout"`
		Stderr base64Text `json:"stderr"`
		Ack    int        `json:"ack"`
		Exit   *int       `json:"exit"`
		Error  string     `json:"error"`
	}
	if err := strictjson.Unmarshal(frame, &q); err != nil {
		return nil, err
	}
	switch {
	case q.ID == nil || *q.ID < 1:
		return nil, refuse("/id", "is missing or not positive; it is that of the callback")
	case q.Ack < 0:
		return nil, refuse("/ack", "is below 0; it is how many further bytes were taken")
	case q.Exit != nil && (*q.Exit < 0 || *q.Exit > 255):
		return nil, refuse("/exit", "is not from 0 to 255")
	}
	return &CallbackReply{ID: *q.ID, Stdout: q.Stdout, Stderr: q.Stderr, Ack: q.Ack, Exit: q.Exit, Error: q.Error}, nil
}

// checkCallbacks checks what a request offers.
func (c *Call) checkCallbacks() error {
	switch {
	case len(c.Callbacks) == 0:
		return nil
	case !c.Stream:
		return refuse("/callbacks", "is there, but /stream is not true: a callback is a part of the stream")
	case len(c.Callbacks) > maxCallbackKinds:
		return refuse("/callbacks", "has more than 16 kinds")
	}
	for i, kind := range c.Callbacks {
		if !callbackName(kind) {
			return refuse("/callbacks/"+strconv.Itoa(i), "is not a name of small letters, digits and -, of at most 64 bytes")
		}
	}
	return nil
}

func callbackName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// channel is what both ends of one callback keep: the bytes that they have sent and
// the other has not taken, and those that came and were not taken here.
type channel struct {
	send func(json []byte) error

	mu     sync.Mutex // guards what follows
	change *sync.Cond
	sent   int
	queued int
	queue  []piece
	over   bool
}

// piece is a part of a stream, or its end.
type piece struct {
	stream string
	data   []byte
	exit   *int
	err    string
}

func newChannel(send func([]byte) error) *channel {
	c := &channel{send: send}
	c.change = sync.NewCond(&c.mu)
	return c
}

func (c *channel) frame(f callbackFrame) error {
	f.Type = TypeCallback
	b, err := json.Marshal(f)
	if err == nil && len(b) > MaxFrame {
		err = tooLarge(int64(len(b)))
	}
	if err != nil {
		return err
	}
	return c.send(b)
}

// push queues what came. It is false where the other side sent more than it may.
func (c *channel) push(p piece) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queued+len(p.data) > Credit {
		return false
	}
	c.queued += len(p.data)
	// However small the pieces are that come, few are kept.
	switch last := len(c.queue) - 1; {
	case last >= 0 && len(p.data) > 0 && len(c.queue[last].data) > 0 && c.queue[last].stream == p.stream:
		c.queue[last].data = append(c.queue[last].data, p.data...)
	case last >= 0 && len(c.queue[last].data) == 0: // the end came before
		c.queued -= len(p.data)
	default:
		c.queue = append(c.queue, p)
	}
	c.change.Broadcast()
	return true
}

// next waits for what comes next; false when the channel is over.
func (c *channel) next() (piece, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) == 0 && !c.over {
		c.change.Wait()
	}
	if c.over {
		return piece{}, false
	}
	p := c.queue[0]
	c.queue[0] = piece{}
	c.queue = c.queue[1:]
	return p, true
}

// took tells the other side that n bytes were taken.
func (c *channel) took(id, n int) error {
	c.mu.Lock()
	c.queued -= n
	c.mu.Unlock()
	return c.frame(callbackFrame{ID: id, Ack: n})
}

// acked notes that the other side took n bytes; false where it was sent fewer.
func (c *channel) acked(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > c.sent {
		return false
	}
	c.sent -= n
	c.change.Broadcast()
	return true
}

// reserve waits until up to most bytes may be sent, and returns how many; 0 when the
// channel is over.
func (c *channel) reserve(most int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.sent >= Credit && !c.over {
		c.change.Wait()
	}
	if c.over {
		return 0
	}
	n := min(most, Credit-c.sent, MaxChunk)
	c.sent += n
	return n
}

func (c *channel) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.change.Broadcast()
}

// Callbacks are the daemon's ends of the callbacks of one call.
type Callbacks struct {
	send func(json []byte) error

	mu      sync.Mutex // guards what follows
	last    int        // the id of the last one
	running map[int]*channel
}

// NewCallbacks returns those of a call whose frames are sent with send.
func NewCallbacks(send func(json []byte) error) *Callbacks {
	return &Callbacks{send: send, running: map[int]*channel{}}
}

// ErrCallback is the error of a callback that the caller could not run.
type ErrCallback struct{ Text string }

func (e *ErrCallback) Error() string { return e.Text }

// Run has the caller run a program, and returns its exit code. Stdin, unless nil, is
// read while it runs; one Read of it may outlast Run. When ctx ends, the caller is
// told to end the program, and is not waited for.
func (c *Callbacks) Run(ctx context.Context, q CallbackRequest, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	ch := newChannel(c.send)
	c.mu.Lock()
	if len(c.running) >= MaxCallbacks {
		c.mu.Unlock()
		return 0, fault.Errorf(fault.LimitExceeded, "%d programs run for the call already; let one end first", MaxCallbacks)
	}
	c.last++
	id := c.last
	c.running[id] = ch
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.running, id)
		c.mu.Unlock()
		ch.end()
	}()
	defer context.AfterFunc(ctx, ch.end)()
	if err := ch.frame(callbackFrame{ID: id, Run: &q}); err != nil {
		return 0, err
	}
	go ch.feed(id, stdin)
	for {
		p, ok := ch.next()
		switch {
		case !ok:
			ch.frame(callbackFrame{ID: id, End: true})
			return 0, context.Cause(ctx)
		case p.err != "":
			return 0, &ErrCallback{p.err}
		case p.exit != nil:
			return *p.exit, nil
		}
		w := stdout
		if p.stream == TypeStderr {
			w = stderr
		}
		if _, err := w.Write(p.data); err != nil {
			ch.frame(callbackFrame{ID: id, End: true})
			return 0, err
		}
		if err := ch.took(id, len(p.data)); err != nil {
			return 0, err
		}
	}
}

// feed sends the program its input.
func (c *channel) feed(id int, stdin io.Reader) {
	if stdin != nil {
		b := make([]byte, 32<<10)
		for {
			n, err := stdin.Read(b)
			for sent := 0; sent < n; {
				k := c.reserve(n - sent)
				if k == 0 || c.frame(callbackFrame{ID: id, Stdin: b[sent : sent+k]}) != nil {
					return
				}
				sent += k
			}
			if err != nil {
				break
			}
		}
	}
	c.mu.Lock()
	over := c.over
	c.mu.Unlock()
	if !over {
		c.frame(callbackFrame{ID: id, EOF: true})
	}
}

// Receive takes a frame from the caller. It never waits. The error says what the
// caller did wrong; what comes for a callback that is over is ignored.
func (c *Callbacks) Receive(r *CallbackReply) *fault.Error {
	c.mu.Lock()
	ch, last := c.running[r.ID], c.last
	c.mu.Unlock()
	switch {
	case r.ID > last:
		return refuse("/id", "is that of no callback")
	case ch == nil:
		return nil
	case !ch.acked(r.Ack):
		return refuse("/ack", "is more than was sent")
	}
	for _, p := range []piece{{stream: TypeStdout, data: r.Stdout}, {stream: TypeStderr, data: r.Stderr}, {exit: r.Exit, err: r.Error}} {
		if len(p.data) == 0 && p.exit == nil && p.err == "" {
			continue
		}
		if !ch.push(p) {
			return fault.Errorf(fault.InvalidEnvelope, "over %d bytes of output of a callback are on their way; wait for acks", Credit)
		}
	}
	return nil
}

// localCallbacks are the caller's ends of the callbacks of one call.
type localCallbacks struct {
	send func(json []byte) error
	run  func(*Callback) (int, error)

	all     sync.WaitGroup
	mu      sync.Mutex // guards running
	running map[int]*localCallback
}

type localCallback struct {
	*channel
	id   int
	done chan struct{}
	end  func() // closes done, once
	// rest is what was read of a piece in part.
	rest []byte
}

// handle takes a frame from the daemon.
func (l *localCallbacks) handle(f *callbackFrame) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Run != nil {
		c := &localCallback{channel: newChannel(l.send), id: f.ID, done: make(chan struct{})}
		c.end = sync.OnceFunc(func() { close(c.done); c.channel.end() })
		if l.running == nil {
			l.running = map[int]*localCallback{}
		}
		if l.run == nil || len(l.running) >= MaxCallbacks || l.running[f.ID] != nil {
			c.frame(callbackFrame{ID: f.ID, Error: "the caller runs no such program now"})
			return nil
		}
		l.running[f.ID] = c
		request := *f.Run
		l.all.Go(func() { l.serve(c, request) })
	}
	c := l.running[f.ID]
	switch {
	case c == nil:
		return nil
	case !c.acked(f.Ack):
		return errors.New("the server acknowledged more of a callback than it was sent")
	case len(f.Stdin) > 0 && !c.push(piece{data: f.Stdin}):
		return errors.New("the server sent more to a callback than it may")
	}
	if f.EOF {
		c.push(piece{})
	}
	if f.End {
		c.end()
	}
	return nil
}

// serve runs one program.
func (l *localCallbacks) serve(c *localCallback, q CallbackRequest) {
	exit, err := l.run(&Callback{CallbackRequest: q, Stdin: c, Stdout: callbackOutput{c, TypeStdout}, Stderr: callbackOutput{c, TypeStderr}, Done: c.done})
	l.mu.Lock()
	delete(l.running, c.id)
	l.mu.Unlock()
	c.end()
	f := callbackFrame{ID: c.id, Exit: &exit}
	if err != nil {
		f.Exit, f.Error = nil, err.Error()
	}
	c.frame(f) // when it fails, so does the call
}

// close ends all of them and waits until they have ended.
func (l *localCallbacks) close() {
	l.mu.Lock()
	for _, c := range l.running {
		c.end()
	}
	l.mu.Unlock()
	l.all.Wait()
}

// Read reads the input of the program.
func (c *localCallback) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		next, ok := c.next()
		if !ok || next.data == nil {
			return 0, io.EOF
		}
		c.rest = next.data
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, c.took(c.id, n)
}

// callbackOutput is one of the outputs of the program.
type callbackOutput struct {
	c      *localCallback
	stream string
}

func (o callbackOutput) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		k := o.c.reserve(len(p) - sent)
		if k == 0 {
			return sent, io.ErrClosedPipe
		}
		f := callbackFrame{ID: o.c.id}
		if o.stream == TypeStderr {
			f.Stderr = p[sent : sent+k]
		} else {
			f.Stdout = p[sent : sent+k]
		}
		if err := o.c.frame(f); err != nil {
			return sent, err
		}
		sent += k
	}
	return len(p), nil
}

// parseCallback parses a callback frame from a server. Unknown fields are ignored.
func parseCallback(frame []byte) (*callbackFrame, error) {
	var f callbackFrame
	if err := json.Unmarshal(frame, &f); err != nil {
		return nil, fmt.Errorf("read a callback: %w", err)
	}
	if f.ID < 1 || f.Ack < 0 {
		return nil, errors.New("read a callback: /id or /ack is out of bounds")
	}
	return &f, nil
}
