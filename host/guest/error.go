package guest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/toold/toold/host/fault"
)

// Kind classifies an error of a module or of a call.
type Kind uint8

const (
	Internal         Kind = iota // an error of this host
	BadModule                    // no host can run it as it is: it must be built differently
	NoExport                     // the called export does not exist; it has others
	IsCommand                    // it is a WASI command, but an export was called
	NotCommand                   // it is not a WASI command, but was run as one
	NotGranted                   // it imports a function that needs a missing grant
	BadMount                     // a folder for it cannot be opened
	TooLarge                     // its code and data exceed Spec.Compile.Module
	TooMuchToCompile             // compiling it exceeds Spec.Compile
	Starved                      // the machine had no time to compile it
	BadLimit                     // Spec.Memory is outside the possible range
	NoRoom                       // its initial size exceeds Spec.Memory
	Failed                       // the guest reported an error
	Trapped                      // the guest trapped, or exited with a code
	FuelUsed                     // it used up Spec.Fuel
	MemoryUsed                   // the guest itself needs more than Spec.Memory
	BlocksUsed                   // what it exchanges with the host needs more than Spec.Memory
	OutputUsed                   // its result exceeds Spec.Output
	DeadlineMet                  // the deadline of the call's context passed
	Aborted                      // the call's context ended for another reason
	Overloaded                   // no memory is left for all guests together
)

var kindNames = [...]string{
	"internal", "bad module", "no export", "is command", "not command", "not granted", "bad mount", "too large", "too much to compile", "starved", "bad limit", "no room",
	"failed", "trapped", "fuel used", "memory used", "blocks used", "output used", "deadline met", "aborted", "overloaded",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", k)
}

// Error is why a module was not loaded or a call ended. It describes the event in terms
// of modules; its caller knows where limits and grants are configured and how to change
// them.
type Error struct {
	Kind Kind
	// Module is the Spec.Name. It is empty if the error has nothing to do with the
	// module, and for Failed, whose text is the guest's.
	Module string
	// Detail describes what happened.
	Detail string
	// Remedy is what the module's author can do about it, in the imperative, or empty.
	Remedy string
	// Lacks is the grant that a module needs, for NotGranted.
	Lacks Grants
	// Cause is the error that Detail describes, or nil.
	Cause error
}

func (e *Error) Error() string {
	text := e.Detail
	if e.Module != "" {
		text = e.Module + ": " + text
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

func (e *Error) Unwrap() error { return e.Cause }

// errorf returns an Error. A %w in format becomes its Cause.
func errorf(kind Kind, module, remedy, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Module: module, Detail: err.Error(), Remedy: remedy, Cause: errors.Unwrap(err)}
}

// errorf returns an Error about m.
func (m *Module) errorf(kind Kind, remedy, format string, args ...any) *Error {
	return errorf(kind, m.spec.Name, remedy, format, args...)
}

func (m *Module) tooMuchOutput() *Error {
	return m.errorf(OutputUsed, "answer less", "the output is over %d bytes", m.spec.Output)
}

func (m *Module) overloaded() *Error {
	return m.errorf(Overloaded, "try again, or raise the host's memory", "the guests that run now hold the %d bytes that all may have", m.e.memory.limit)
}

// ended converts the error of a context to an *Error.
func ended(err error) *Error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errorf(DeadlineMet, "", "wait for less", "the call reached its deadline")
	}
	return errorf(Aborted, "", "", "the call was aborted")
}

// own returns err if a call may end with it as it is: an *Error, or a fault with a code
// from a Service. Otherwise it returns nil.
func own(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e
	}
	return nil
}

func firstLine(err error) string {
	s, _, _ := strings.Cut(err.Error(), "\n")
	return s
}
