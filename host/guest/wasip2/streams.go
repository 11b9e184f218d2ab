package wasip2

import (
	"errors"
	"io"
	"time"

	"github.com/toold/toold/host/guest/component"
)

// mostPiece limits the bytes moved at a time, whatever a guest asks for, and the bytes
// that an output stream accepts at once.
const (
	mostPiece    = 1 << 20
	mostWrite    = 64 << 10
	mostBlocking = 4096 // for blocking-write-and-flush, as specified by its interface
)

var closed = component.Bad(component.Case{Index: 1})

// broke returns a stream's error result.
func (s *State) broke(err error) component.Case {
	if err == io.EOF {
		return closed
	}
	return component.Bad(component.Case{Index: 0, Value: s.add(handle{kind: failed, text: err.Error()})})
}

// read reads at most n bytes from a stream.
func (s *State) read(h *handle, n uint64) ([]byte, error) {
	p := make([]byte, min(n, mostPiece))
	s.Host.Charge(uint64(len(p)))
	if len(p) == 0 {
		return p, nil
	}
	var got int
	var err error
	switch h.kind {
	case bodyInput:
		b := h.web.(*incomingBody)
		if got = copy(p, b.bytes[h.at:]); got == 0 {
			return nil, io.EOF
		}
		h.at += int64(got)
	case stdin:
		if s.Host.Stdin == nil {
			return nil, io.EOF
		}
		got, err = s.Host.Stdin(p)
	default:
		s.step()
		got, err = h.file.ReadAt(p, h.at)
		h.at += int64(got)
	}
	if got > 0 {
		err = nil
	}
	return p[:got], err
}

// write writes all of p.
func (s *State) write(h *handle, p []byte) error {
	s.Host.Charge(uint64(len(p)))
	switch h.kind {
	case stdout:
		return s.Host.Stdout(p)
	case stderr:
		return s.Host.Stderr(p)
	case bodyOutput:
		b := h.web.(*outgoingBody)
		if b.finished || b.request.attempted {
			return errFinished
		}
		s.Host.Hold(2 * uint64(len(p))) // it grows by copying
		b.bytes = append(b.bytes, p...)
		return nil
	}
	s.step()
	if h.at < 0 {
		_, _, err := h.file.Append(p)
		return err
	}
	n, err := h.file.WriteAt(p, h.at)
	h.at += int64(n)
	return err
}

// arrives reports whether the event that a pollable waits for will occur eventually.
func (h *handle) arrives() bool {
	o, ok := h.web.(*outgoing)
	return !ok || o.answer.ready
}

// poll waits until at least one of the pollables is ready and returns the indexes of
// those that are.
func (s *State) poll(ps []*handle) []any {
	for {
		now := s.Host.Monotonic()
		next := ^uint64(0)
		ready := []any{}
		coming := false
		for i, p := range ps {
			if !p.arrives() {
				continue
			}
			coming = true
			if p.when <= now {
				ready = append(ready, uint64(i))
			}
			next = min(next, p.when)
		}
		if len(ready) > 0 {
			return ready
		}
		if !coming {
			trap("waits for the answer to a request whose body it has not finished")
		}
		s.Host.Sleep(time.Duration(min(next-now, 1<<62)))
	}
}

func ioFuncs() []Func {
	const streams = "wasi:io/streams"
	in := func(s *State, v any) *handle { return s.get(v, stdin, fileInput, bodyInput) }
	out := func(s *State, v any) *handle { return s.get(v, stdout, stderr, fileOutput, bodyOutput) }
	read := func(s *State, args []any) any {
		p, err := s.read(in(s, args[0]), args[1].(uint64))
		if err != nil {
			return s.broke(err)
		}
		return component.Good(p)
	}
	skip := func(s *State, args []any) any {
		p, err := s.read(in(s, args[0]), args[1].(uint64))
		if err != nil {
			return s.broke(err)
		}
		return component.Good(uint64(len(p)))
	}
	write := func(most int) func(s *State, args []any) any {
		return func(s *State, args []any) any {
			h, p := out(s, args[0]), args[1].([]byte)
			if len(p) > most {
				trap("writes %d bytes at once, where %d may be", len(p), most)
			}
			if err := s.write(h, p); err != nil {
				return s.broke(err)
			}
			return component.OK
		}
	}
	zeroes := func(most int) func(s *State, args []any) any {
		return func(s *State, args []any) any {
			h, n := out(s, args[0]), args[1].(uint64)
			if n > uint64(most) {
				trap("writes %d bytes at once, where %d may be", n, most)
			}
			if err := s.write(h, make([]byte, n)); err != nil {
				return s.broke(err)
			}
			return component.OK
		}
	}
	flush := func(s *State, args []any) any { out(s, args[0]); return component.OK }
	splice := func(s *State, args []any) any {
		to, from := out(s, args[0]), in(s, args[1])
		p, err := s.read(from, min(args[2].(uint64), mostWrite))
		if err == nil {
			err = s.write(to, p)
		}
		if err != nil {
			return s.broke(err)
		}
		return component.Good(uint64(len(p)))
	}
	always := func(of func(*State, any) *handle) func(s *State, args []any) any {
		return func(s *State, args []any) any {
			of(s, args[0])
			return s.add(handle{kind: pollable})
		}
	}
	const unit = "result<_, stream-error>"
	return []Func{
		{"wasi:io/error", "[method]error.to-debug-string", "func(self: borrow<io-error>) -> string", func(s *State, args []any) any {
			return s.get(args[0], failed).text
		}},
		{"wasi:io/poll", "[method]pollable.ready", "func(self: borrow<pollable>) -> bool", func(s *State, args []any) any {
			p := s.get(args[0], pollable)
			return p.arrives() && p.when <= s.Host.Monotonic()
		}},
		{"wasi:io/poll", "[method]pollable.block", "func(self: borrow<pollable>)", func(s *State, args []any) any {
			s.poll([]*handle{s.get(args[0], pollable)})
			return nil
		}},
		{"wasi:io/poll", "poll", "func(in: list<borrow<pollable>>) -> list<u32>", func(s *State, args []any) any {
			list := args[0].([]any)
			if len(list) == 0 {
				trap("polls nothing")
			}
			var ps []*handle
			for _, v := range list {
				ps = append(ps, s.get(v, pollable))
			}
			s.Host.Charge(uint64(len(ps)) * 64)
			return s.poll(ps)
		}},

		{streams, "[method]input-stream.read", "func(self: borrow<input-stream>, len: u64) -> result<list<u8>, stream-error>", read},
		{streams, "[method]input-stream.blocking-read", "func(self: borrow<input-stream>, len: u64) -> result<list<u8>, stream-error>", read},
		{streams, "[method]input-stream.skip", "func(self: borrow<input-stream>, len: u64) -> result<u64, stream-error>", skip},
		{streams, "[method]input-stream.blocking-skip", "func(self: borrow<input-stream>, len: u64) -> result<u64, stream-error>", skip},
		{streams, "[method]input-stream.subscribe", "func(self: borrow<input-stream>) -> own<pollable>", always(in)},

		{streams, "[method]output-stream.check-write", "func(self: borrow<output-stream>) -> result<u64, stream-error>", func(s *State, args []any) any {
			out(s, args[0])
			return component.Good(uint64(mostWrite))
		}},
		{streams, "[method]output-stream.write", "func(self: borrow<output-stream>, contents: list<u8>) -> " + unit, write(mostWrite)},
		{streams, "[method]output-stream.blocking-write-and-flush", "func(self: borrow<output-stream>, contents: list<u8>) -> " + unit, write(mostBlocking)},
		{streams, "[method]output-stream.flush", "func(self: borrow<output-stream>) -> " + unit, flush},
		{streams, "[method]output-stream.blocking-flush", "func(self: borrow<output-stream>) -> " + unit, flush},
		{streams, "[method]output-stream.subscribe", "func(self: borrow<output-stream>) -> own<pollable>", always(out)},
		{streams, "[method]output-stream.write-zeroes", "func(self: borrow<output-stream>, len: u64) -> " + unit, zeroes(mostWrite)},
		{streams, "[method]output-stream.blocking-write-zeroes-and-flush", "func(self: borrow<output-stream>, len: u64) -> " + unit, zeroes(mostBlocking)},
		{streams, "[method]output-stream.splice", "func(self: borrow<output-stream>, src: borrow<input-stream>, len: u64) -> result<u64, stream-error>", splice},
		{streams, "[method]output-stream.blocking-splice", "func(self: borrow<output-stream>, src: borrow<input-stream>, len: u64) -> result<u64, stream-error>", splice},
	}
}

var errFinished = errors.New("the body is finished")
