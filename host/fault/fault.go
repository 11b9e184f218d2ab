// Package fault has the codes and the errors that a call can end with. The
// table of codes decides, once for every layer, the exit code of a wrapper and
// whether the call may be made again.
package fault

import "fmt"

// Code names what went wrong, for programs. The list is append-only: a code
// never changes its meaning, its exit code or whether it may be retried.
type Code string

const (
	InvalidEnvelope      Code = "INVALID_ENVELOPE"       // the request itself is malformed
	InvalidPayload       Code = "INVALID_PAYLOAD"        // the request is well formed, its arguments are not
	MessageTooLarge      Code = "MESSAGE_TOO_LARGE"      // a frame over MaxFrame bytes
	UnknownTool          Code = "UNKNOWN_TOOL"           // no such tool for this caller
	Denied               Code = "DENIED"                 // a policy refused
	Unauthenticated      Code = "UNAUTHENTICATED"        // nobody, or nobody this host admits
	SessionNotFound      Code = "SESSION_NOT_FOUND"      // none of that name for this caller
	SessionLimit         Code = "SESSION_LIMIT"          // too many explicit sessions
	SessionBusy          Code = "SESSION_BUSY"           // a turn is running
	NotRunning           Code = "NOT_RUNNING"            // nothing there to steer
	Aborted              Code = "ABORTED"                // ended on request, or because the caller left
	Timeout              Code = "TIMEOUT"                // ended at its deadline
	CircuitOpen          Code = "CIRCUIT_OPEN"           // the breaker refuses for now
	IdempotencyPending   Code = "IDEMPOTENCY_PENDING"    // the same key is still running
	IdempotencyKeyReused Code = "IDEMPOTENCY_KEY_REUSED" // the same key with another payload
	OutcomeUnknown       Code = "OUTCOME_UNKNOWN"        // it began, and nobody knows how it ended
	StoreUnavailable     Code = "STORE_UNAVAILABLE"      // the record's store does not answer
	ToolFailed           Code = "TOOL_FAILED"            // the tool ran and said no
	ToolNotInstalled     Code = "TOOL_NOT_INSTALLED"     // defined, but its binary is not on this host
	ToolBroken           Code = "TOOL_BROKEN"            // defined, but some part of it does not load
	GuestTrap            Code = "GUEST_TRAP"             // a module ended by a trap
	LimitExceeded        Code = "LIMIT_EXCEEDED"         // fuel, memory, output or another bound
	Overloaded           Code = "OVERLOADED"             // no room now
	Internal             Code = "INTERNAL"               // a fault of this host
)

type codeInfo struct {
	retriable bool
	exit      int
}

// codes is the whole table; it is never written to.
var codes = map[Code]codeInfo{
	InvalidEnvelope:      {false, 64},
	InvalidPayload:       {false, 64},
	MessageTooLarge:      {false, 64},
	UnknownTool:          {false, 127},
	Denied:               {false, 126},
	Unauthenticated:      {false, 77},
	SessionNotFound:      {false, 70},
	SessionLimit:         {false, 70},
	SessionBusy:          {true, 75},
	NotRunning:           {false, 70},
	Aborted:              {false, 130},
	Timeout:              {true, 124},
	CircuitOpen:          {true, 75},
	IdempotencyPending:   {true, 75},
	IdempotencyKeyReused: {false, 70},
	OutcomeUnknown:       {false, 70},
	StoreUnavailable:     {true, 75},
	ToolFailed:           {false, 70},
	ToolNotInstalled:     {false, 127},
	ToolBroken:           {false, 70},
	GuestTrap:            {false, 70},
	LimitExceeded:        {false, 70},
	Overloaded:           {true, 75},
	Internal:             {false, 70},
}

// Retriable reports whether the same call may succeed when made again.
func (c Code) Retriable() bool { return codes[c].retriable }

// ExitCode is the exit code of a wrapper whose call ended with c and without
// an exit code of the tool's own. A code this version does not know is 70.
func (c Code) ExitCode() int {
	if i, ok := codes[c]; ok {
		return i.exit
	}
	return 70
}

// Error is what a call answers instead of a result. It crosses the wire.
type Error struct {
	Code Code
	// Message is for a person. It says what was wrong, where, and ends with
	// what to do next. It never holds a secret.
	Message string
	// MayRetry makes a failure retriable whose code alone is not: a tool that
	// said so itself (TOOL_FAILED with retriable).
	MayRetry bool
	// Cause is logged and unwrapped, never sent.
	Cause error
}

// Errorf makes an Error. A %w in format becomes its Cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Code: code, Message: err.Error()}
	if u, ok := err.(interface{ Unwrap() error }); ok {
		e.Cause = u.Unwrap()
	}
	return e
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

func (e *Error) Unwrap() error { return e.Cause }

// Retriable reports whether the same call may succeed when made again.
func (e *Error) Retriable() bool { return e.MayRetry || e.Code.Retriable() }
