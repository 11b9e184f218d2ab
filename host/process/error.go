package process

import "fmt"

// Kind says which part of a Command is impossible.
type Kind uint8

const (
	NotAbsolute   Kind = iota // Path is not absolute
	NotThere                  // there is no file at Path
	NotExecutable             // the file at Path may not be executed, or its interpreter may not
	NotProgram                // the file at Path is none that this host runs
	NoUser                    // nothing runs as Confine.User here
)

var kindNames = [...]string{"not absolute", "not there", "not executable", "not program", "no user"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", k)
}

// Error is why a Command cannot be run as written. Its caller knows where that is written, and
// how to change it.
type Error struct {
	Kind   Kind
	Detail string // what cannot be
	Remedy string // what else can be done about it; may be empty
	Cause  error
}

func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Detail
	}
	return e.Detail + "; " + e.Remedy
}

func (e *Error) Unwrap() error { return e.Cause }
