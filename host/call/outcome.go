package call

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// Outcome is what came of a call, or of one attempt at it.
type Outcome struct {
	// Result is never nil. Result.Err is why it failed.
	Result *wire.Result
	// Job says that the call goes on as a job, after Request.JobAfter; Result is that
	// of a call in the background.
	Job bool
	// Began says that the tool itself was started in this attempt.
	Began bool
	// Killed says that a signal ended it.
	Killed bool
	// ExitFailed says that its exit is a failure, and not only its answer.
	ExitFailed bool
	// Unanswered says of a module that failed that it sent a request which may
	// change something, and got no answer: its failure does not say what became
	// of that.
	Unanswered bool
	// RetryAfter is the least wait before another attempt that its upstream
	// asked for.
	RetryAfter time.Duration
	// Streamed is what went to the caller's streams, as far as a record may hold
	// it; nil where nothing was kept.
	Streamed *[2][]byte
	// Answer is what a handler itself answered, where it did.
	Answer *abi.Result
}

// Failed is the outcome of a call that ended with err. ctx is the call's, which
// may tell why.
func Failed(ctx context.Context, err error) Outcome {
	return Outcome{Result: &wire.Result{Err: AsError(ctx, err)}}
}

// Err is why the call failed, or nil.
func (o *Outcome) Err() *fault.Error { return o.Result.Err }

// AsError gives an error of the pipeline its code; nil stays nil. One that comes
// from the end of the call's context is TIMEOUT or ABORTED, whatever it was
// wrapped in.
func AsError(ctx context.Context, err error) *fault.Error {
	if err == nil {
		return nil
	}
	var e *fault.Error
	if errors.As(err, &e) {
		return e
	}
	// The end of a call's context may have a reason of its own: a caller that
	// broke the protocol, a daemon that stops.
	if errors.As(context.Cause(ctx), &e) {
		return e
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &fault.Error{Code: fault.Timeout, Message: "the call took longer than it may", Cause: err}
	case errors.Is(err, context.Canceled):
		return &fault.Error{Code: fault.Aborted, Message: "the call was ended", Cause: err}
	}
	return fault.Errorf(fault.Internal, "%w; see the daemon's log", err)
}

// Text returns the outcome of a call that text answers, and nothing runs for.
func Text(ctx context.Context, q *Request, text string) Outcome {
	res := &wire.Result{Ran: true}
	if q.Streams.Stdout == nil {
		res.Stdout = []byte(text)
	} else if _, err := io.WriteString(q.Streams.Stdout, text); err != nil {
		return Failed(ctx, err)
	}
	return Outcome{Result: res}
}
