package wire

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire/callbacks"
)

// Form is the format of a request and of its response.
type Form int

const (
	Plain    Form = iota // {tool, args, cwd}: what wrappers send
	Envelope             // {toolId, executionId, payload}: what programs send
)

// Call is one request, in either form.
type Call struct {
	Form Form
	// Tool is the name as sent: not validated, not safe for a path.
	Tool string
	// ExecutionID is a version-4 UUID; the host generates one for a plain call.
	ExecutionID string
	// Args, Cwd and Stdin are those of a plain call, or of an envelope payload
	// that is exactly {args, cwd, stdin?}.
	Args  []string
	Cwd   string
	Stdin []byte
	// Payload is the object of an envelope call; for a plain call it is
	// {args, cwd, stdin?}. Never empty.
	Payload json.RawMessage
	// Env holds the caller's variables; the tool admits them by name.
	Env map[string]string
	// EnvSeen are the names of further variables of the caller, which a tool run directly by the caller would have
	// found. Their values are not sent. Names of Env are those that the caller passes to all tools.
	EnvSeen        []string
	Session        string
	Token          string
	IdempotencyKey string
	// Retry reruns a stored failure.
	Retry bool
	// Timeout shortens the tool's own; 0 leaves it unchanged.
	Timeout    time.Duration
	Background bool
	Detach     bool
	Stream     bool
	// TTY is the terminal that the caller offers to the tool, or nil. With Stream
	// only.
	TTY *TTY
	// Callbacks are the kinds of programs that the caller can run for its tool on request. With Stream only.
	Callbacks []string
	// More means that args frames follow, with the rest of Args. host/server passes on only complete calls, with More
	// false.
	More bool
	// Trace is a W3C traceparent, or empty.
	Trace string
	// TraceID and Timestamp are the metadata of an envelope. They are logged,
	// never trusted; TraceID is passed on as Traced and PassedTraceID say.
	// Timestamp is zero if absent.
	TraceID   string
	Timestamp time.Time
	// CallerInfo is the caller's description of itself. It is logged, never
	// trusted.
	CallerInfo json.RawMessage

	// argBytes is the size of the arguments; joined is the last one while args
	// frames extend it.
	argBytes int
	joined   []byte
}

// MaxEnvSeen is the maximum number of names in EnvSeen.
const MaxEnvSeen = 64

// SeenName reports whether name is valid in EnvSeen: letters, digits and _, at most 128 bytes.
func SeenName(name string) bool {
	if name == "" || len(name) > 128 {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// maxTraceID is the longest TraceID that is passed on, in bytes.
const maxTraceID = 128

// Traced returns c with its TraceID as its Trace, if c has no Trace and TraceID is valid for W3C: 32 hexadecimal
// digits. The parent id in it is random, since the caller named none. c itself is not changed.
func (c *Call) Traced() *Call {
	id := strings.ToLower(c.TraceID)
	b, err := hex.DecodeString(id)
	if c.Trace != "" || err != nil || len(b) != 16 || id == strings.Repeat("0", 32) {
		return c
	}
	var parent [8]byte
	rand.Read(parent[:]) // never fails
	parent[0] |= 1       // all zeros is invalid
	traced := *c
	traced.Trace, traced.TraceID = fmt.Sprintf("00-%s-%x-01", id, parent), ""
	return &traced
}

// PassedTraceID returns the TraceID as it may be used in a header and a variable: up to 128 visible ASCII characters.
// Any other is for the log only, and "" here.
func (c *Call) PassedTraceID() string {
	if len(c.TraceID) > maxTraceID || strings.ContainsFunc(c.TraceID, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ""
	}
	return c.TraceID
}

// Result is the result of a Call. Err is nil if the tool succeeded, or, for a
// binary, if it ran at all: then ExitCode tells success from failure.
type Result struct {
	ExecutionID string
	// ExitCode is the tool's own if Ran, else that of Err.
	ExitCode int
	// Ran reports that the tool itself ran to its end.
	Ran    bool
	Stdout []byte
	Stderr []byte
	Data   json.RawMessage
	Err    *fault.Error
	// MayRetry marks a failed exit code as retriable. An Err has its own
	// MayRetry.
	MayRetry bool
	// Truncated reports that Stdout or Stderr is incomplete.
	Truncated bool
	FromCache bool
	Duration  time.Duration
	// Usage is nil if no module ran for the call and it was not retried.
	Usage *Usage
}

// Usage is the resource usage of a call's modules, policies included, and how often
// the call was attempted.
type Usage struct {
	// Fuel is in metered instructions, of all modules and attempts together.
	Fuel int64 `json:"fuel"`
	// Memory is the peak of one of them, in bytes.
	Memory int64 `json:"memory"`
	// Pages counts 4 KiB pages that were written, and restored for the next
	// call.
	Pages int64 `json:"pages"`
	// Attempts is how often the call was executed, if that was or could have been more than once. RetriesCut is how
	// many retries its tool still allowed but the retry budget shared by all calls of the tool did not.
	Attempts   int `json:"attempts,omitempty"`
	RetriesCut int `json:"retries_cut,omitempty"`
}

// Status returns the status of an envelope response: success, error, timeout or circuit_open. A tool that ran and
// exited with a code other than 0 is an error.
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

// Exit returns the exit code of a wrapper for the result r: the tool's own if it ran, else that of the error's code. A
// failed call never looks like a successful one.
func (r *Result) Exit() int {
	if r.Err != nil && (!r.Ran || r.ExitCode == 0) {
		return r.Err.Code.ExitCode()
	}
	return r.ExitCode
}

// NewExecutionID returns a random version-4 UUID.
func NewExecutionID() string {
	var b [16]byte
	rand.Read(b[:])         // never fails
	b[6] = b[6]&0x0f | 0x40 // version 4
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Streams are the daemon's ends of a call's streams, for every front end; Local has the caller's.
type Streams struct {
	// Stdout and Stderr send output while the call runs. They are nil on a call that is not streamed. Write blocks
	// while the caller is slow, even when the context ends; it fails when the caller has left and after the call's
	// result was sent.
	Stdout, Stderr io.Writer
	// Stdin requests the caller's input on the first call, and returns it; reading acknowledges. It is nil on a call
	// that is not streamed or that brought its input with it. Read fails when the call's context ends. Close discards
	// input that still arrives.
	Stdin func() io.ReadCloser
	// Receive waits for and returns the next piece of the caller's answer to a module that has no other input, until
	// ctx ends. io.EOF is the regular end of the answer; input that was cut off is another error. It is nil if nobody
	// can be asked.
	Receive func(ctx context.Context) ([]byte, error)
	// Terminal is the terminal that the caller offers, or nil.
	Terminal *Terminal
	// Callback has the caller run one of its own programs: see callbacks.Daemon.Run. It is nil if the caller offers
	// none.
	Callback func(ctx context.Context, q callbacks.Request, stdin io.Reader, stdout, stderr io.Writer) (exit int, err error)
	// Steer inserts a text into what Stdin reads; it is nil if Stdin is. taken is called once all of it was read.
	// Steer returns false if the input has ended.
	Steer func(text []byte, taken func()) bool
	// Signals are the signals from the caller. It is never nil; signals that nobody receives are dropped.
	Signals <-chan os.Signal
	// Progress sends one JSON value. It is nil on a call that is not
	// streamed.
	Progress func(json.RawMessage) error
	// Tell is Progress for several values at once; it does not retain the slice. It may be nil.
	Tell func([]json.RawMessage) error
	// TakeBy closes the connection of a caller that has not read by then what was sent to it. It may be nil.
	TakeBy func(time.Time)
}

// ErrLeft is the cause of a call's end when its caller has left. It is never written to.
var ErrLeft = fault.Errorf(fault.Aborted, "the caller left")
