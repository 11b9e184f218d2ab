package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
)

// Credit is the most bytes of a call's input that are on their way: sent by the
// client, and not yet acknowledged by the server.
const Credit = 256 << 10

// Local is the caller's end of a streamed call.
type Local struct {
	// Stdin is read from when, and only when, the server asks for input. nil
	// is an empty input.
	Stdin io.Reader
	// Stdout and Stderr get the output of the tool, byte for byte. An error of
	// either ends the call.
	Stdout, Stderr io.Writer
	// Signals are sent to the tool, as far as the protocol has them.
	Signals <-chan os.Signal
	// Progress is called with the data of progress frames. It may be nil.
	Progress func(json.RawMessage)
}

// Stream makes a streamed call over conn and returns its result, without the
// text that went to l: Start, and then Wait.
func Stream(conn io.ReadWriter, c *Call, l Local) (*Result, error) {
	s, err := Start(conn, c)
	if err != nil {
		return nil, err
	}
	return s.Wait(l)
}

// Streaming is a streamed call that was sent, and whose answer was not read.
type Streaming struct {
	conn io.ReadWriter
	// sendErr is why the request was not sent whole.
	sendErr error
	// open is that of the reading goroutine: input was asked for.
	open bool

	mu sync.Mutex // guards what follows, and writing to conn
	// room is signalled when sent falls, or ended is set.
	room  *sync.Cond
	sent  int // bytes of input on their way
	ended bool
}

// Start sends a streamed call over conn, and sets c.Stream. The error is an
// *Error where the request cannot be sent as it is (see EncodeRequest).
func Start(conn io.ReadWriter, c *Call) (*Streaming, error) {
	c.Stream = true
	frames, err := EncodeRequest(c)
	if err != nil {
		return nil, err
	}
	s := &Streaming{conn: conn}
	s.room = sync.NewCond(&s.mu)
	for _, f := range frames {
		// A server that refuses says why before it closes: Wait reads on.
		if s.sendErr = WriteFrame(conn, f); s.sendErr != nil {
			break
		}
	}
	return s, nil
}

// Wait serves the streams of the call until it has its result.
//
// The error is an *OutputError where l.Stdout or l.Stderr refused, else one of
// the connection or of what came over it. The connection is then of no further
// use; closing it ends the call at the server. One goroutine may stay behind in
// l.Stdin.Read, as with os/exec; what it reads is lost.
func (s *Streaming) Wait(l Local) (*Result, error) {
	defer s.end()
	if l.Signals != nil {
		over := make(chan struct{})
		forwarded := make(chan struct{})
		go func() {
			defer close(forwarded)
			s.forward(l.Signals, over)
		}()
		defer func() { close(over); <-forwarded }()
	}
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
				go s.feed(l.Stdin)
			}
		case TypeResult:
			return p.Result, nil
		}
	}
}

// OutputError is the refusal of the caller's own output.
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

// errEnded stops what still wants to send when the call is over.
var errEnded = errors.New("the call is over")

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

// reserve waits until further input may be on its way, and reports how much.
func (s *Streaming) reserve() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sent >= Credit && !s.ended {
		s.room.Wait()
	}
	return min(Credit-s.sent, MaxChunk), !s.ended
}

// feed sends the caller's input until it ends or the call does.
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
			// An input that cannot be read ends there, as it does for a
			// process that has it as its own.
			s.send(EncodeEOF())
			return
		}
	}
}

// forward sends signals until the call is over.
func (s *Streaming) forward(signals <-chan os.Signal, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case sig, ok := <-signals:
			if !ok {
				return
			}
			if sig, ok := sig.(syscall.Signal); ok {
				if frame := EncodeSignal(sig); frame != nil {
					s.send(frame)
				}
			}
		}
	}
}
