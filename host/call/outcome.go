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

// Outcome is the outcome of a call, or of one attempt at it.
type Outcome struct {
	// Result is never nil. Result.Err is why it failed.
	Result *wire.Result
	// Job means that the call continues as a job, after Request.JobAfter; Result is then that of a background call.
	Job bool
	// Began means that the tool itself was started in this attempt.
	Began bool
	// Killed means that a signal ended it.
	Killed bool
	// ExitFailed means that its exit is a failure, and not only its output.
	ExitFailed bool
	// Unanswered means that a module failed after it sent a request that may change something and got no response: its
	// failure does not tell whether the request took effect.
	Unanswered bool
	// RetryAfter is the minimum delay before another attempt, as requested by its upstream.
	RetryAfter time.Duration
	// Streamed is what went to the caller's streams, as far as a record can hold it; nil if nothing was kept.
	Streamed *[2][]byte
	// Answer is the handler's own result, if it returned one.
	Answer *abi.Result
}

// Failed returns the outcome of a call that ended with err. ctx is the call's, whose cause may be the reason.
func Failed(ctx context.Context, err error) Outcome {
	return Outcome{Result: &wire.Result{Err: AsError(ctx, err)}}
}

// Err returns why the call failed, or nil.
func (o *Outcome) Err() *fault.Error { return o.Result.Err }

// AsError gives an error of the pipeline its code; nil stays nil. An error from the end of the call's context is
// TIMEOUT or ABORTED, whatever wraps it.
func AsError(ctx context.Context, err error) *fault.Error {
	if err == nil {
		return nil
	}
	var e *fault.Error
	if errors.As(err, &e) {
		return e
	}
	// The end of a call's context may have its own cause: a caller that violated the protocol, a daemon that is
	// stopping.
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

// Text returns the outcome of a call whose response is text, and for which nothing runs.
func Text(ctx context.Context, q *Request, text string) Outcome {
	res := &wire.Result{Ran: true}
	if q.Streams.Stdout == nil {
		res.Stdout = []byte(text)
	} else if _, err := io.WriteString(q.Streams.Stdout, text); err != nil {
		return Failed(ctx, err)
	}
	return Outcome{Result: res}
}
