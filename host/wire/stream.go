package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/toold/toold/host/wire/callbacks"
)

// Credit is how many bytes of a call's input may be in flight: sent by the client
// and not yet acknowledged by the server.
const Credit = 256 << 10

// Local is the caller's end of a streamed call.
type Local struct {
	// Stdin is read only when the server requests input. nil is an empty input.
	Stdin io.Reader
	// Stdout and Stderr get the output of the tool unchanged. An error of
	// either ends the call.
	Stdout, Stderr io.Writer
	// Signals are sent to the tool; those that the protocol lacks are ignored.
	Signals <-chan os.Signal
	// Terminal is called when the caller's terminal becomes the tool's, before any output of it. It may be nil if the
	// call offers none.
	Terminal func()
	// Sizes are those of the terminal from then on.
	Sizes <-chan Size
	// Stopped is called when the tool was stopped, after its output so far was written.
	// It calls goOn to continue the tool, and must do so before Stdin returns more: what
	// is typed to a stopped tool, such as Ctrl-Z, is lost when it is continued. It may be
	// nil if the call offers no jobs.
	Stopped func(goOn func())
	// Progress is called with the data of progress frames. It may be nil.
	Progress func(json.RawMessage)
	// Callback runs one of the caller's programs for the tool, and returns its exit code, or why it did not run. Each
	// call has its own goroutine. It may be nil if the call offers none.
	Callback func(*callbacks.Program) (exit int, err error)
}

// Stream makes a streamed call over conn, with Start and Wait, and returns its
// result without the text that was written to l.
func Stream(conn io.ReadWriter, c *Call, l Local) (*Result, error) {
	s, err := Start(conn, c)
	if err != nil {
		return nil, err
	}
	return s.Wait(l)
}

// Streaming is a streamed call that was sent and not yet answered.
type Streaming struct {
	conn io.ReadWriter
	// sendErr is the error of sending the request.
	sendErr error
	// open records that input was requested. Owned by Wait.
	open bool

	mu sync.Mutex // guards the fields below, and writes to conn
	// room is signalled when sent decreases or ended is set.
	room  *sync.Cond
	sent  int // bytes of input in flight
	ended bool
}

// Start sends a streamed call over conn, and sets c.Stream. The error is a
// *fault.Error of EncodeRequest.
func Start(conn io.ReadWriter, c *Call) (*Streaming, error) {
	c.Stream = true
	frames, err := EncodeRequest(c)
	if err != nil {
		return nil, err
	}
	s := &Streaming{conn: conn}
	s.room = sync.NewCond(&s.mu)
	for _, f := range frames {
		// A refusing server sends its reason before it closes: let Wait read it.
		if s.sendErr = WriteFrame(conn, f); s.sendErr != nil {
			break
		}
	}
	return s, nil
}

// Wait serves the streams of the call until its result arrives.
//
// The error is an *OutputError if writing to l.Stdout or l.Stderr failed, else a
// connection or protocol error. The connection is then unusable; closing it ends
// the call at the server. One goroutine may remain blocked in l.Stdin.Read, as
// with os/exec; what it reads is lost.
func (s *Streaming) Wait(l Local) (*Result, error) {
	defer s.end()
	if l.Signals != nil || l.Sizes != nil {
		over := make(chan struct{})
		forwarded := make(chan struct{})
		go func() {
			defer close(forwarded)
			s.forward(l.Signals, l.Sizes, over)
		}()
		defer func() { close(over); <-forwarded }()
	}
	programs := callbacks.NewLocal(s.send, l.Callback)
	defer programs.Close()
	for {
		frame, err := ReadFrame(s.conn)
		if err != nil {
			if s.sendErr != nil {
				err = s.sendErr
			}
			return nil, fmt.Errorf("the server ended the connection before the call: %w", err)
		}
		p, err := ParseResponse(frame)
		if err != nil {
			return nil, err
		}
		switch p.Type {
		case TypeStdout:
			if _, err := l.Stdout.Write(p.Data); err != nil {
				return nil, &OutputError{Name: TypeStdout, Err: err}
			}
		case TypeStderr:
			if _, err := l.Stderr.Write(p.Data); err != nil {
				return nil, &OutputError{Name: TypeStderr, Err: err}
			}
		case TypeProgress:
			if l.Progress != nil {
				l.Progress(p.Progress)
			}
		case TypeStdin:
			s.acknowledged(p.Ack)
			if p.Open && !s.open {
				s.open = true
				if p.TTY && l.Terminal != nil {
					l.Terminal()
				}
				go s.feed(l.Stdin)
			}
		case TypeStopped:
			goOn := func() { s.send(EncodeSignal(syscall.SIGCONT)) } // an error also reaches the reader
			if l.Stopped != nil {
				l.Stopped(goOn)
			} else {
				goOn()
			}
		case TypeCallback:
			if err := programs.Handle(p.callback); err != nil {
				return nil, err
			}
		case TypeResult:
			return p.Result, nil
		}
	}
}

// OutputError is an error of writing to Local.Stdout or Local.Stderr.
type OutputError struct {
	Name string // TypeStdout or TypeStderr
	Err  error
}

func (e *OutputError) Error() string { return "write " + e.Name + ": " + e.Err.Error() }

func (e *OutputError) Unwrap() error { return e.Err }

func (s *Streaming) send(json []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	return WriteFrame(s.conn, json)
}

// errEnded is returned by send after the call has ended.
var errEnded = errors.New("the call has ended")

func (s *Streaming) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.room.Broadcast()
}

func (s *Streaming) acknowledged(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent -= n
	s.room.Broadcast()
}

// reserve waits until more input may be in flight and returns how much.
func (s *Streaming) reserve() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sent >= Credit && !s.ended {
		s.room.Wait()
	}
	return min(Credit-s.sent, MaxChunk), !s.ended
}

// feed sends the caller's input until the input or the call ends.
func (s *Streaming) feed(stdin io.Reader) {
	if stdin == nil {
		s.send(EncodeEOF())
		return
	}
	p := make([]byte, 32<<10)
	frame := make([]byte, 0, MaxFrame)
	for {
		n, ok := s.reserve()
		if !ok {
			return
		}
		n, err := stdin.Read(p[:min(n, len(p))])
		if n > 0 {
			frame = AppendChunk(frame[:0], TypeStdin, p[:n])
			s.mu.Lock()
			if s.ended {
				s.mu.Unlock()
				return
			}
			s.sent += n
			_, sendErr := s.conn.Write(frame)
			s.mu.Unlock()
			if sendErr != nil {
				return
			}
		}
		if err != nil {
			// A read error ends the input, as for a process that reads it
			// directly.
			s.send(EncodeEOF())
			return
		}
	}
}

// forward sends signals and sizes until the call ends.
func (s *Streaming) forward(signals <-chan os.Signal, sizes <-chan Size, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case sig, ok := <-signals:
			if !ok {
				signals = nil
			}
			if sig, ok := sig.(syscall.Signal); ok {
				if frame := EncodeSignal(sig); frame != nil {
					s.send(frame)
				}
			}
		case size := <-sizes:
			s.send(EncodeResize(size))
		}
	}
}
