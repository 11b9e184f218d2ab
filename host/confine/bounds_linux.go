package confine

import (
	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/seccomp"
)

// Bounds are what one run may use. Lists are made by Join.
type Bounds struct {
	// Path is its own program, Dir its working folder.
	Path, Dir string
	// Write, Exec, Read, Hide, Show and Sockets are those of process.Confine.
	Write, Exec, Read, Hide, Show, Sockets []byte
	// Interpreters is JSON, or empty.
	Interpreters []byte
	// Lines are the only command lines for a shell, unless AnyLine.
	Lines   []byte
	AnyLine bool
	// User is who it runs as; nil: this process's user.
	User *UserID
	// ABI is the version of Landlock that is used.
	ABI int
	// Offline leaves it without a network, where it has no filter.
	Offline bool
	// InView says that it is started in a View.
	InView bool
}

// Guards returns the guards that a run within b needs.
func (b *Bounds) Guards() seccomp.Guards {
	// Whom a thread can signal: restrictThread says the same.
	scoped := b.InView || b.ABI >= abiScope
	return seccomp.Guards{Mappings: !b.InView, Attributes: b.User == nil, Signals: !scoped}
}

// Restrict confines the calling thread, and everything it starts, within b for good. m is what
// Watch returned on this thread; nil means that there is no filter. Unless Restrict fails, m
// owns wire from then on, a descriptor of egress.Gate.Start or -1, and closes it. scoped
// reports that this thread can signal the processes of the run and no others. An error names
// the step that failed.
func (s *Rulesets) Restrict(b *Bounds, m *Monitor, wire int) (scoped bool, step string, err error) {
	ruleset, step, err := s.get(confinement{b.Path, string(b.Write), string(b.Exec), string(b.Read), string(b.Hide), string(b.Interpreters), m != nil, b.ABI})
	if err == nil && m == nil {
		step, err = renounce(b.User != nil)
	}
	if err == nil && b.Offline {
		step, err = "refuse the network", seccomp.GoOffline()
	}
	if err == nil {
		scoped, step, err = restrictThread(b.ABI, ruleset.fd)
	}
	if err != nil {
		return false, step, err
	}
	if m != nil {
		g := ruleset.grants
		if !b.AnyLine {
			g.lines = append([]string{}, Split(b.Lines)...)
		}
		m.user, m.wire, m.abi, m.ruleset = b.User, wire, b.ABI, ruleset.fd
		m.grants.Store(&g) // last: who answers the run reads it first
	}
	// Asked, not only concluded: who ends the run relies on it with a kill(-1). In
	// a process namespace there is nobody else to reach.
	return b.InView || scoped && unix.Kill(unix.Getppid(), 0) == unix.EPERM, "", nil
}
