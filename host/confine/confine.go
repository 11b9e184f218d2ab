// Package confine is what a real binary is confined by: the folders that it may
// begin in, what it may write, execute and read (Landlock), the system calls that
// it may make and how those that wait are answered (package seccomp), and the
// files that it sees (mounts of its own).
//
// It guarantees, for a thread after Watch and Rulesets.Restrict and for all that it
// starts, for good: it writes only beneath Bounds.Write, executes only what
// Bounds.Exec and its own program name, reads nothing of Bounds.Hide, changes no
// attributes of others' files, signals nobody outside of the run, and connects
// only as package egress lets it. What this system cannot enforce, Confinement
// says, and every other thing holds all the same.
//
// It starts and ends no process, and does not see to it that what ran is gone:
// that is package process, whose supervisors call it on the thread that starts a
// child. Nor does it keep anybody from reading what is not hidden. Packages above
// use its words (Level, Status, Interpreter, UserID).
//
// What it does to running programs is tested in package process, which runs some.
package confine

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// Interpreter is a program that interprets a run's own program, a script.
type Interpreter struct {
	// Path is absolute. Links are followed.
	Path string `json:"path"`
	// Args, unless nil, are the arguments after argv[0] with which the child
	// executes Path, as env does; more may follow them. nil: the kernel starts
	// Path, since a first line names it, and the child may not.
	Args []string `json:"args,omitempty"`
}

// UserID is a user and a group, without further groups.
type UserID struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// LookUpUser reads "NAME", "UID" or "UID:GID": a user of this system, or numbers. It refuses
// root and this process's own user, which would isolate nothing.
func LookUpUser(text string) (*UserID, error) {
	uid, gid, numbers := strings.Cut(text, ":")
	if u, err := user.Lookup(text); err == nil {
		uid, gid, numbers = u.Uid, u.Gid, true
	} else if u, err := user.LookupId(uid); err == nil && !numbers {
		gid, numbers = u.Gid, true
	}
	if !numbers {
		return nil, fmt.Errorf("%q is not a user of this system; add it, or write UID:GID", text)
	}
	n, err1 := strconv.ParseUint(uid, 10, 32)
	m, err2 := strconv.ParseUint(gid, 10, 32)
	switch {
	case err1 != nil || err2 != nil || n == 1<<32-1 || m == 1<<32-1:
		return nil, fmt.Errorf("%q is neither the name of a user nor UID:GID", text)
	case n == 0 || m == 0:
		return nil, fmt.Errorf("%q is root, or of root's group; give the tool a user of its own", text)
	case int(n) == os.Geteuid():
		return nil, fmt.Errorf("%q is the user of toold itself; give the tool one of its own", text)
	}
	return &UserID{uint32(n), uint32(m)}, nil
}

// Program is a program that a run executed or tried to execute.
type Program struct {
	// Path is the file that was opened, whatever it was called.
	Path string `json:"path"`
	// Refused says why it was not executed; empty: it was.
	Refused string `json:"refused,omitempty"`
}

// Join makes one list of strings that hold no NUL byte.
func Join(list []string) []byte {
	n := 0
	for _, s := range list {
		n += len(s) + 1
	}
	b := make([]byte, 0, n)
	for _, s := range list {
		b = append(append(b, s...), 0)
	}
	return b
}

// Split undoes Join.
func Split(b []byte) []string {
	var list []string
	for len(b) > 0 {
		for i, c := range b {
			if c == 0 {
				list, b = append(list, string(b[:i])), b[i+1:]
				break
			}
			if i == len(b)-1 {
				return append(list, string(b))
			}
		}
	}
	return list
}

// IsShell reports whether the program at path is a shell, by its name.
func IsShell(path string) bool {
	switch filepath.Base(path) {
	case "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox", "fish":
		return true
	}
	return false
}

// Reasons for which a program was not executed, as Program.Refused has them,
// that are about what the run may execute.
const (
	RefusedShell   = "it is a shell, and it is not granted by its name"
	RefusedProgram = "it is not granted"
)
