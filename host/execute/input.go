package execute

import (
	"bytes"
	"context"
	"io"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
)

// openInput returns the standard input of a, or nil: what a policy set or the request
// brought, else what the caller streams, if the call wants any.
//
// Steering text is read there too. It is all that a turn reads, and is interleaved
// with what a caller streams. A guest without other input gets it from receiver.
func openInput(a *call.Attempt) io.ReadCloser {
	guest := a.Tool.Kind == tools.Handler
	switch {
	case a.Input.Fixed || len(a.Input.Bytes) > 0:
		if !guest {
			a.Execution.RejectSteering("the input of the call came with it")
		}
		return io.NopCloser(bytes.NewReader(a.Input.Bytes))
	case a.Execution.Kind == session.KindTurn && (a.Input.Wanted || guest):
		return a.Execution.Input(true)
	case a.Input.Wanted && a.Streams.Stdin != nil:
		in := a.Streams.Stdin()
		a.Execution.ForwardSteering(a.Streams.Steer)
		return countedInput{in, a.Execution}
	case !guest:
		a.Execution.RejectSteering("the tool takes no input in this call")
	}
	return nil
}

// countedInput is what a caller streams, counted for its session.
type countedInput struct {
	io.ReadCloser
	x *session.Execution
}

func (c countedInput) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.x.AddInput(n)
	return n, err
}

// receiver reads the caller's input in pieces of at most 64 KiB; the end of the
// input is io.EOF. A read ends with the call.
func receiver(ctx context.Context, r io.ReadCloser) func(context.Context) ([]byte, error) {
	var buf []byte
	return func(context.Context) ([]byte, error) {
		if r == nil {
			return nil, io.EOF
		}
		if buf == nil {
			buf = make([]byte, 64<<10)
		}
		stop := context.AfterFunc(ctx, func() { r.Close() })
		defer stop()
		n, err := r.Read(buf)
		if n > 0 {
			return buf[:n], nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
}
