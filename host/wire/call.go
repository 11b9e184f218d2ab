package wire

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/toold/toold/host/fault"
)

// Form is the shape of a request, and so of its answer.
type Form int

const (
	Plain    Form = iota // {tool, args, cwd}: what wrappers send
	Envelope             // {toolId, executionId, payload}: what programs send
)

// Call is one request, whichever form it came in.
type Call struct {
	Form Form
	// Tool is the name as it was sent: not checked, not safe for a path.
	Tool string
	// ExecutionID is a version-4 UUID; the host makes one for a plain call.
	ExecutionID string
	// Args, Cwd and Stdin are those of a plain call, or of an envelope
	// payload that has the shape {args, cwd, stdin?} and nothing else.
	Args  []string
	Cwd   string
	Stdin []byte
	// Payload is the object of an envelope call; for a plain call it is
	// {args, cwd, stdin?}. Never empty.
	Payload json.RawMessage
	// Env holds variables that the caller asks for; the tool admits them.
	Env            map[string]string
	Session        string
	Token          string
	IdempotencyKey string
	// Retry runs a stored failure again.
	Retry bool
	// Timeout narrows the tool's own; 0 leaves it.
	Timeout    time.Duration
	Background bool
	Detach     bool
	Stream     bool
	// More says that args frames follow, with the rest of Args. Whoever is
	// handed a Call by host/server has all of them: More is false there.
	More bool
	// Trace is a W3C traceparent, or empty.
	Trace string
	// TraceID and Timestamp are the metadata of an envelope. They are logged,
	// never trusted. Timestamp is zero where none came.
	TraceID   string
	Timestamp time.Time
	// CallerInfo is what the caller says of itself. It is logged, never
	// trusted.
	CallerInfo json.RawMessage

	// argBytes counts the arguments; joined is the last of them while further
	// args frames lengthen it.
	argBytes int
	joined   []byte
}

// Result is what came of a Call. Err is nil when the tool ran and said yes,
// or, for a binary, when it ran at all: its exit code is its answer.
type Result struct {
	ExecutionID string
	// ExitCode is the tool's own when Ran, else it follows from Err.
	ExitCode int
	// Ran reports that the tool itself answered.
	Ran    bool
	Stdout []byte
	Stderr []byte
	Data   json.RawMessage
	Err    *fault.Error
	// MayRetry says of a tool's own exit code that the same call may succeed
	// when made again. Where there is an Err, that says so itself.
	MayRetry bool
	// Truncated says that Stdout or Stderr is not the whole.
	Truncated bool
	FromCache bool
	Duration  time.Duration
	// Usage is nil where no module ran for the call.
	Usage *Usage
}

// Usage is what the modules of a call took, its policies' with the tool's own.
type Usage struct {
	// Fuel is in metered instructions, of all modules and attempts together.
	Fuel int64 `json:"fuel"`
	// Memory is the most that one of them held, in bytes.
	Memory int64 `json:"memory"`
	// Pages of 4 KiB were written, and put back for the next call.
	Pages int64 `json:"pages"`
}

// Status is what an envelope answer says of r in one word: success, error,
// timeout or circuit_open. A tool that ran and left with a code other than 0
// is an error there.
func (r *Result) Status() string {
	switch {
	case r.Err != nil && r.Err.Code == fault.Timeout:
		return "timeout"
	case r.Err != nil && r.Err.Code == fault.CircuitOpen:
		return "circuit_open"
	case r.Err != nil, r.ExitCode != 0:
		return "error"
	}
	return "success"
}

// Exit is the exit code of a wrapper that is answered with r: the tool's own when
// it ran, else what the error's code says. A call that failed never looks like one
// that did not.
func (r *Result) Exit() int {
	if r.Err != nil && (!r.Ran || r.ExitCode == 0) {
		return r.Err.Code.ExitCode()
	}
	return r.ExitCode
}

// NewExecutionID makes the id of a call that has none: a random UUID.
func NewExecutionID() string {
	var b [16]byte
	rand.Read(b[:])         // never fails
	b[6] = b[6]&0x0f | 0x40 // version 4
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Streams are the daemon's ends of a call's streams, whichever way the call came
// in; Local has the caller's.
type Streams struct {
	// Stdout and Stderr send output while the call runs. They are nil on a
	// call that is not streamed. Write blocks while the caller is slow, which
	// no end of the context changes; it fails when the caller has left and
	// after the call has been answered.
	Stdout, Stderr io.Writer
	// Stdin asks the caller for its input, the first time, and returns it;
	// reading acknowledges. It is nil on a call that is not streamed or that
	// brought its input with it. Read fails when the call's context ends.
	// Closing it drops what still comes.
	Stdin func() io.ReadCloser
	// Steer puts a text in between what Stdin reads; it is nil where Stdin is.
	// taken is called once all of it was read. It is false when the input has
	// ended.
	Steer func(text []byte, taken func()) bool
	// Signals are those that the caller sends. It is never nil; what nobody
	// takes from it is dropped.
	Signals <-chan os.Signal
	// Progress sends one JSON value. It is nil on a call that is not
	// streamed.
	Progress func(json.RawMessage) error
}

// ErrLeft is the cause of the end of a call whose caller left. It is never
// written to.
var ErrLeft = fault.Errorf(fault.Aborted, "the caller left")
