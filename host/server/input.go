package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// ackAfter is how many bytes a tool takes before they are acknowledged, unless it
// took all there was.
const ackAfter = wire.Credit / 4

// input is the caller's input of one call. The connection's reader adds what
// arrives and never waits: a client that sends more than its credit is in error.
// The tool reads it, which returns the credit.
type input struct {
	ctx  context.Context // the call's
	send func(json []byte) error

	mu    sync.Mutex // guards what follows
	more  *sync.Cond // of anything below
	asked bool
	buf   bytes.Buffer
	taken int   // bytes that the tool took and that were not acknowledged
	ended bool  // no more will come
	err   error // why reading fails; before what buf has
	// extra did not come from the client: it is read before buf, and is not part of
	// the credit.
	extra []steering
	over  bool // the tool has read the end of the input
}

// steering is one text that was inserted.
type steering struct {
	text  []byte
	taken func()
}

func newInput(ctx context.Context, send func([]byte) error) *input {
	in := &input{ctx: ctx, send: send}
	in.more = sync.NewCond(&in.mu)
	return in
}

// open asks the client for its input, once.
func (in *input) open() io.ReadCloser {
	in.ask(wire.EncodeOpen())
	return in
}

// openTerminal asks the client for its input, with its terminal as the tool's.
func (in *input) openTerminal() { in.ask(wire.EncodeTerminal()) }

func (in *input) ask(frame []byte) {
	in.mu.Lock()
	ask := !in.asked && !in.ended && in.err == nil
	in.asked = true
	in.mu.Unlock()
	if ask {
		in.send(frame) // when it fails, the call is about to end
	}
}

// receive adds what came from the client.
func (in *input) receive(data []byte, eof bool) *fault.Error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.err != nil:
		return nil // nobody reads any more
	case in.ended && len(data) > 0:
		return fault.Errorf(fault.InvalidEnvelope, "a stdin frame came after the one with \"eof\": true")
	case in.buf.Len()+in.taken+len(data) > wire.Credit:
		return fault.Errorf(fault.InvalidEnvelope, "over %d bytes of input are on their way; wait for acks", wire.Credit)
	}
	in.buf.Write(data)
	in.ended = in.ended || eof
	in.more.Broadcast()
	return nil
}

// steer inserts a text; it returns false if the tool reads no more.
func (in *input) steer(text []byte, taken func()) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err != nil || in.over {
		return false
	}
	in.extra = append(in.extra, steering{text, taken})
	in.more.Broadcast()
	return true
}

// end records that no more will come.
func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	in.more.Broadcast()
}

// fail makes reading fail.
func (in *input) fail(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		in.err = err
		in.buf = bytes.Buffer{}
	}
	in.more.Broadcast()
}

func (in *input) Read(p []byte) (int, error) {
	if in.ctx.Err() != nil {
		return 0, context.Cause(in.ctx) // also where something came before that
	}
	in.mu.Lock()
	for in.buf.Len() == 0 && len(in.extra) == 0 && !in.ended && in.err == nil && len(p) > 0 {
		in.more.Wait()
	}
	if in.err == nil && len(in.extra) > 0 {
		s := &in.extra[0]
		n := copy(p, s.text)
		if s.text = s.text[n:]; len(s.text) == 0 {
			s.taken()
			in.extra = in.extra[1:]
		}
		in.mu.Unlock()
		return n, nil
	}
	if in.err != nil || in.buf.Len() == 0 {
		defer in.mu.Unlock()
		if in.err == nil && len(p) > 0 {
			in.over = true
			return 0, io.EOF
		}
		return 0, in.err
	}
	n, _ := in.buf.Read(p)
	in.taken += n
	ack := 0
	if in.taken >= ackAfter || in.buf.Len() == 0 && !in.ended {
		ack, in.taken = in.taken, 0
	}
	in.mu.Unlock()
	if ack > 0 {
		in.send(wire.EncodeAck(ack)) // when it fails, the call is about to end
	}
	return n, nil
}

// Close drops what still arrives.
func (in *input) Close() error {
	in.fail(errClosed)
	return nil
}

var errClosed = errors.New("read from a closed input")
