// Package callbacks runs programs of a caller for its tool, over the connection of their call: the messages, and the
// daemon's and the caller's end of the exchange. host/wire describes the protocol and passes the messages on; the
// daemon decides which programs a tool may request, and the caller decides what it runs.
//
//   - Neither end keeps more than Credit bytes of a stream of the other; one that
//     sends more is refused.
//   - Max programs of a call run at a time.
//   - Receive and Handle never wait: who reads the connection is not held up.
package callbacks

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/toold/toold/host/fault"
)

// The kinds of programs that a caller can offer to run for its tool.
const (
	Editor         = "editor"
	SequenceEditor = "sequence-editor"
	Pager          = "pager"
	Hooks          = "hooks"
	Scripts        = "scripts"
)

// Kinds are all of them.
func Kinds() []string {
	return []string{Editor, SequenceEditor, Pager, Hooks, Scripts}
}

const (
	// Max is how many callbacks of a call run at a time.
	Max = 8
	// Credit is how many bytes of one stream may be in flight: sent by one end and not yet acknowledged by the other.
	Credit = 256 << 10
	// maxPiece is how many bytes of a stream one message holds; in base64 they fit in a frame.
	maxPiece = 48000
)

// Request asks a caller to run a program of its own.
type Request struct {
	// Kind is one of those that the caller offered.
	Kind string `json:"kind"`
	// Path is the program, absolute; empty if the kind determines it.
	Path string `json:"path,omitempty"`
	// Args are its arguments; for Scripts only the text of the script.
	Args []string `json:"args,omitempty"`
	// Cwd is the folder that it runs in, absolute.
	Cwd string `json:"cwd"`
	// Env are variables that it gets in addition to the caller's own.
	Env map[string]string `json:"env,omitempty"`
}

// Program is a Request that the caller runs.
type Program struct {
	Request
	// Stdin is what the program reads. Stdout and Stderr get what it writes.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Done is closed when nobody waits for the program any more: it should be terminated.
	Done <-chan struct{}
}

// Frame is a callback frame, in either direction. The fields of the other
// direction are empty.
type Frame struct {
	Type string `json:"type"`
	ID   int    `json:"id"`
	// From the server.
	Run   *Request `json:"run,omitempty"`
	Stdin []byte   `json:"stdin,omitempty"`
	EOF   bool     `json:"eof,omitempty"`
	End   bool     `json:"end,omitempty"`
	// From the client.
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	Exit   *int   `json:"exit,omitempty"`
	Error  string `json:"error,omitempty"`
	// Ack is how many bytes of the other side's data were consumed.
	Ack int `json:"ack,omitempty"`
}

// Reply is a callback frame from a client.
type Reply struct {
	ID             int
	Stdout, Stderr []byte
	Ack            int
	// Exit is the program's exit code; nil while it runs. Error is why it did not run.
	Exit  *int
	Error string
}

// channel is the state that both ends of one callback keep: bytes sent that the other end has not consumed, and bytes
// received that were not consumed here.
type channel struct {
	send func(json []byte) error

	mu     sync.Mutex // guards the fields below
	change *sync.Cond
	sent   int
	queued int
	queue  []piece
	over   bool
}

// piece is a part of a stream, or its end.
type piece struct {
	stderr bool
	data   []byte
	exit   *int
	err    string
}

func newChannel(send func([]byte) error) *channel {
	c := &channel{send: send}
	c.change = sync.NewCond(&c.mu)
	return c
}

func (c *channel) frame(f Frame) error {
	f.Type = "callback"
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return c.send(b)
}

// push queues a received piece. It returns false if the other side sent more than it may.
func (c *channel) push(p piece) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queued+len(p.data) > Credit {
		return false
	}
	c.queued += len(p.data)
	// However small the received pieces are, few are kept.
	switch last := len(c.queue) - 1; {
	case last >= 0 && len(p.data) > 0 && len(c.queue[last].data) > 0 && c.queue[last].stderr == p.stderr:
		c.queue[last].data = append(c.queue[last].data, p.data...)
	case last >= 0 && len(c.queue[last].data) == 0: // the end was already received
		c.queued -= len(p.data)
	default:
		c.queue = append(c.queue, p)
	}
	c.change.Broadcast()
	return true
}

// next waits for the next piece; it returns false when the channel is closed.
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

// took acknowledges n consumed bytes to the other side.
func (c *channel) took(id, n int) error {
	c.mu.Lock()
	c.queued -= n
	c.mu.Unlock()
	return c.frame(Frame{ID: id, Ack: n})
}

// acked records that the other side consumed n bytes; it returns false if fewer were sent.
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

// reserve waits until up to most bytes may be sent, and returns how many; 0 when the channel is closed.
func (c *channel) reserve(most int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.sent >= Credit && !c.over {
		c.change.Wait()
	}
	if c.over {
		return 0
	}
	n := min(most, Credit-c.sent, maxPiece)
	c.sent += n
	return n
}

func (c *channel) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.change.Broadcast()
}

// Daemon are the daemon's ends of the callbacks of one call.
type Daemon struct {
	send func(json []byte) error

	mu      sync.Mutex // guards the fields below
	last    int        // the id of the last one
	running map[int]*channel
}

// New returns the daemon's ends of the callbacks of a call whose frames are sent with send.
func New(send func(json []byte) error) *Daemon {
	return &Daemon{send: send, running: map[int]*channel{}}
}

// Error is the error of a callback that the caller could not run.
type Error struct{ Text string }

func (e *Error) Error() string { return e.Text }

// Run has the caller run a program, and returns its exit code. Stdin, unless nil, is read while it runs; one Read of
// it may outlast Run. When ctx ends, Run asks the caller to terminate the program and does not wait for it.
func (c *Daemon) Run(ctx context.Context, q Request, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	ch := newChannel(c.send)
	c.mu.Lock()
	if len(c.running) >= Max {
		c.mu.Unlock()
		return 0, fault.Errorf(fault.LimitExceeded, "%d programs run for the call already; let one end first", Max)
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
	if err := ch.frame(Frame{ID: id, Run: &q}); err != nil {
		return 0, err
	}
	go ch.feed(id, stdin)
	for {
		p, ok := ch.next()
		switch {
		case !ok:
			ch.frame(Frame{ID: id, End: true})
			return 0, context.Cause(ctx)
		case p.err != "":
			return 0, &Error{p.err}
		case p.exit != nil:
			return *p.exit, nil
		}
		w := stdout
		if p.stderr {
			w = stderr
		}
		if _, err := w.Write(p.data); err != nil {
			ch.frame(Frame{ID: id, End: true})
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
				if k == 0 || c.frame(Frame{ID: id, Stdin: b[sent : sent+k]}) != nil {
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
		c.frame(Frame{ID: id, EOF: true})
	}
}

// Receive handles a frame from the caller. It never blocks. The error describes the caller's violation; a frame for a
// callback that has ended is ignored.
func (c *Daemon) Receive(r *Reply) *fault.Error {
	c.mu.Lock()
	ch, last := c.running[r.ID], c.last
	c.mu.Unlock()
	switch {
	case r.ID > last:
		return fault.Errorf(fault.InvalidEnvelope, "/id: is that of no callback")
	case ch == nil:
		return nil
	case !ch.acked(r.Ack):
		return fault.Errorf(fault.InvalidEnvelope, "/ack: is more than was sent")
	}
	for _, p := range []piece{{data: r.Stdout}, {stderr: true, data: r.Stderr}, {exit: r.Exit, err: r.Error}} {
		if len(p.data) == 0 && p.exit == nil && p.err == "" {
			continue
		}
		if !ch.push(p) {
			return fault.Errorf(fault.InvalidEnvelope, "over %d bytes of output of a callback are on their way; wait for acks", Credit)
		}
	}
	return nil
}

// Local are the caller's ends of the callbacks of one call.
type Local struct {
	send func(json []byte) error
	run  func(*Program) (int, error)

	all     sync.WaitGroup
	mu      sync.Mutex // guards running
	running map[int]*program
}

// NewLocal returns the caller's ends of the callbacks of a call whose frames are sent with send. run runs a program,
// and returns its exit code, or why it did not run; each call has its own goroutine. If run is nil, no program runs.
func NewLocal(send func(json []byte) error, run func(*Program) (exit int, err error)) *Local {
	return &Local{send: send, run: run}
}

type program struct {
	*channel
	id   int
	done chan struct{}
	end  func() // closes done, once
	// rest is the unread part of a piece.
	rest []byte
}

// Handle handles a frame from the daemon.
func (l *Local) Handle(f *Frame) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Run != nil {
		c := &program{channel: newChannel(l.send), id: f.ID, done: make(chan struct{})}
		c.end = sync.OnceFunc(func() { close(c.done); c.channel.end() })
		if l.running == nil {
			l.running = map[int]*program{}
		}
		if l.run == nil || len(l.running) >= Max || l.running[f.ID] != nil {
			c.frame(Frame{ID: f.ID, Error: "the caller runs no such program now"})
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
func (l *Local) serve(c *program, q Request) {
	exit, err := l.run(&Program{Request: q, Stdin: c, Stdout: output{c, false}, Stderr: output{c, true}, Done: c.done})
	l.mu.Lock()
	delete(l.running, c.id)
	l.mu.Unlock()
	c.end()
	f := Frame{ID: c.id, Exit: &exit}
	if err != nil {
		f.Exit, f.Error = nil, err.Error()
	}
	c.frame(f) // if it fails, so does the call
}

// Close terminates all of them and waits for their end.
func (l *Local) Close() {
	l.mu.Lock()
	for _, c := range l.running {
		c.end()
	}
	l.mu.Unlock()
	l.all.Wait()
}

// Read reads the input of the program.
func (c *program) Read(p []byte) (int, error) {
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

// output is one of the outputs of the program.
type output struct {
	c      *program
	stderr bool
}

func (o output) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		k := o.c.reserve(len(p) - sent)
		if k == 0 {
			return sent, io.ErrClosedPipe
		}
		f := Frame{ID: o.c.id}
		if o.stderr {
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
