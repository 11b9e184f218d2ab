// Package fault defines the error codes of calls. One table maps each code to the
// exit code of a wrapper and to whether the call may be retried.
package fault

import "fmt"

// Code identifies an error for programs. The list is append-only: a code never
// changes its meaning, its exit code or whether it may be retried.
type Code string

const (
	InvalidEnvelope      Code = "INVALID_ENVELOPE"       // the request itself is malformed
	InvalidPayload       Code = "INVALID_PAYLOAD"        // the request is well formed, its arguments are not
	MessageTooLarge      Code = "MESSAGE_TOO_LARGE"      // a frame over MaxFrame bytes
	UnknownTool          Code = "UNKNOWN_TOOL"           // no such tool for this caller
	Denied               Code = "DENIED"                 // a policy refused
	ApprovalRequired     Code = "APPROVAL_REQUIRED"      // somebody has to approve the call first
	Unauthenticated      Code = "UNAUTHENTICATED"        // no identity, or one that this host does not admit
	SessionNotFound      Code = "SESSION_NOT_FOUND"      // no such session for this caller
	SessionLimit         Code = "SESSION_LIMIT"          // too many explicit sessions
	SessionBusy          Code = "SESSION_BUSY"           // a turn is running
	NotRunning           Code = "NOT_RUNNING"            // no such running execution
	Aborted              Code = "ABORTED"                // ended on request, or because the caller left
	Timeout              Code = "TIMEOUT"                // ended at its deadline
	CircuitOpen          Code = "CIRCUIT_OPEN"           // the breaker refuses for now
	IdempotencyPending   Code = "IDEMPOTENCY_PENDING"    // the same key is still running
	IdempotencyKeyReused Code = "IDEMPOTENCY_KEY_REUSED" // the same key with another payload
	OutcomeUnknown       Code = "OUTCOME_UNKNOWN"        // the call began, and its outcome is unknown
	StoreUnavailable     Code = "STORE_UNAVAILABLE"      // the store of records does not answer
	ToolFailed           Code = "TOOL_FAILED"            // the tool ran and failed
	ToolNotInstalled     Code = "TOOL_NOT_INSTALLED"     // defined, but its binary is not on this host
	ToolBroken           Code = "TOOL_BROKEN"            // defined, but some part of it does not load
	GuestTrap            Code = "GUEST_TRAP"             // a module ended by a trap
	LimitExceeded        Code = "LIMIT_EXCEEDED"         // fuel, memory, output or another bound
	Overloaded           Code = "OVERLOADED"             // no capacity now
	Internal             Code = "INTERNAL"               // an error of this host
)

type codeInfo struct {
	retriable bool
	exit      int
}

// codes has every Code; it is never modified.
var codes = map[Code]codeInfo{
	InvalidEnvelope:      {false, 64},
	InvalidPayload:       {false, 64},
	MessageTooLarge:      {false, 64},
	UnknownTool:          {false, 127},
	Denied:               {false, 126},
	ApprovalRequired:     {true, 75},
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

// Retriable reports whether the same call may succeed if retried.
func (c Code) Retriable() bool { return codes[c].retriable }

// ExitCode returns the exit code of a wrapper whose call ended with c and without
// the tool's own exit code. It is 70 for an unknown code.
func (c Code) ExitCode() int {
	if i, ok := codes[c]; ok {
		return i.exit
	}
	return 70
}

// Error is the error of a call. It crosses the wire.
type Error struct {
	Code Code
	// Message is for people: what failed, where, and what to do next. It never
	// contains a secret.
	Message string
	// MayRetry makes an error retriable whose code is not: a tool may set it
	// (TOOL_FAILED with retriable).
	MayRetry bool
	// ToolCode is the tool's own code for what went wrong, where it gave one:
	// at most 64 bytes, without control characters, never a secret.
	ToolCode string
	// Cause is logged and unwrapped, never sent.
	Cause error
}

// Errorf returns an Error. A %w in format becomes its Cause.
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

// Retriable reports whether the same call may succeed if retried.
func (e *Error) Retriable() bool { return e.MayRetry || e.Code.Retriable() }
