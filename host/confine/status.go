package confine

import (
	"os"
	"slices"
)

// Level is how far a tool is isolated from the daemon. Each level includes those before it.
type Level int

const (
	// Unconfined is a child with all rights of this process's user.
	Unconfined Level = iota
	// Landlock enforces Write, Exec and Hide in the kernel (ABI 3, Linux 6.2).
	Landlock
	// Seccomp judges what is executed, and refuses what one process can do to
	// another, and to the kernel.
	Seccomp
	// Namespaces leave nothing of other processes to be seen, and nothing in
	// Write to be executed.
	Namespaces
	// User runs the child as a user of its own.
	User
)

var levelNames = []string{"none", "landlock", "seccomp", "namespaces", "uid"}

func (l Level) String() string { return levelNames[l] }

// ParseLevel reads the name of a level: none, landlock, seccomp, namespaces or
// uid.
func ParseLevel(name string) (Level, bool) {
	i := slices.Index(levelNames, name)
	return Level(max(i, 0)), i >= 0
}

// Status describes the confinement that this system offers.
type Status struct {
	// ABI is the Landlock ABI version; 0: none.
	ABI int
	// Reason says why there is none; empty otherwise.
	Reason string
	// Filter says that system calls are judged, Namespaces that runs have
	// namespaces of their own. The reasons say why not.
	Filter bool
	// Offline says that, where connections cannot be judged, runs have no network.
	Offline          bool
	FilterReason     string
	Namespaces       bool
	NamespacesReason string
	// Users says that a run can have a user of its own.
	Users       bool
	UsersReason string
	// Lost are the things that are not enforced, a sentence each.
	Lost []string
}

// Level returns the level of a run without a user of its own.
func (s Status) Level() Level {
	switch {
	case s.ABI < abiTruncate:
		return Unconfined
	case !s.Filter:
		return Landlock
	case !s.Namespaces:
		return Seccomp
	}
	return Namespaces
}

// abiTruncate is the Landlock ABI that came with truncation: from it on, writing
// is confined whole.
const abiTruncate = 3

// Terminals reports whether runs can have terminals: only if the filter keeps a child from
// typing into its own, and nobody can open another run's terminal by name.
func (s Status) Terminals() bool {
	return s.Filter && (s.Namespaces || os.Geteuid() != 0) // root opens what has no permissions
}
