package guest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/toold/toold/host/fault"
)

// Kind says what went wrong with a module or with a call of it.
type Kind uint8

const (
	Internal         Kind = iota // a fault of this host
	BadModule                    // nobody can run it as it is: it must be built differently
	NoExport                     // it has other exports than the one that was called
	IsCommand                    // it is a WASI command, and an export was called
	NotCommand                   // it is no WASI command, and was run as one
	NotGranted                   // it imports a function that Spec.Grants does not give
	BadMount                     // a folder that it is to see cannot be opened
	TooLarge                     // it has more code and data than Spec.Compile.Module
	TooMuchToCompile             // compiling it takes more than Spec.Compile
	BadLimit                     // Spec.Memory is more or less than any module can have
	NoRoom                       // it begins with more than Spec.Memory
	Failed                       // the guest said so
	Trapped                      // the guest trapped, or left with an exit code
	FuelUsed                     // it used up Spec.Fuel
	MemoryUsed                   // it needs more than Spec.Memory, for itself
	BlocksUsed                   // it needs more than Spec.Memory, for what it exchanges with the host
	OutputUsed                   // it answered more than Spec.Output
	DeadlineMet                  // the deadline of the call's context passed
	Aborted                      // the call's context ended otherwise
	Overloaded                   // all guests together have no memory left now
)

var kindNames = [...]string{
	"internal", "bad module", "no export", "is command", "not command", "not granted", "bad mount", "too large", "too much to compile", "bad limit", "no room",
	"failed", "trapped", "fuel used", "memory used", "blocks used", "output used", "deadline met", "aborted", "overloaded",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", k)
}

// Error is why a module was not loaded, or why a call of it ended. It names what
// happened in terms of modules; where a module's limits and grants come from,
// and so how they are changed, its caller knows.
type Error struct {
	Kind Kind
	// Module is the Spec.Name; empty where what happened has nothing to do with
	// the module, and in Failed, where the words are the guest's.
	Module string
	// Detail is what happened.
	Detail string
	// Remedy is what the module's author can do about it, in the imperative. It
	// may be empty.
	Remedy string
	// Lacks is the grant that a NotGranted module needs.
	Lacks Grants
	// Cause is nil or what Detail tells of.
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

// errorf makes an Error. A %w in format becomes its Cause.
func errorf(kind Kind, module, remedy, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Module: module, Detail: err.Error(), Remedy: remedy, Cause: errors.Unwrap(err)}
}

// errorf makes an Error about m.
func (m *Module) errorf(kind Kind, remedy, format string, args ...any) *Error {
	return errorf(kind, m.spec.Name, remedy, format, args...)
}

func (m *Module) tooMuchOutput() *Error {
	return m.errorf(OutputUsed, "answer less", "the output is over %d bytes", m.spec.Output)
}

func (m *Module) overloaded() *Error {
	return m.errorf(Overloaded, "try again, or raise the host's memory", "the guests that run now hold the %d bytes that all may have", m.e.memory.limit)
}

// ended turns the error of a context into one of ours.
func ended(err error) *Error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errorf(DeadlineMet, "", "wait for less", "the call reached its deadline")
	}
	return errorf(Aborted, "", "", "the call was aborted")
}

// own is err where it is one that a call may end with as it is: one of ours, or
// one with a code, from a Service.
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
