// Package lfsshim is how git starts git-lfs in a run: a program of one word for git's
// filter, which would otherwise take a shell, and one with the name of a hook.
//
// A folder of the daemon's has both, and a link to the operator's git-lfs. The program
// executes what that link leads to, with arguments of its own, and nothing else. What
// the run may execute is for others to judge.
package lfsshim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// What a folder has.
const (
	Name    = "toold-lfs" // the program that filters
	Hook    = "pre-push"  // a link to it: the hook of a push
	Program = "git-lfs"   // a link to the operator's
)

// failed is the exit code of a program that could not be run, as a shell's.
const failed = 127

// Is reports whether this process is such a program.
func Is() bool { return filepath.Base(own()) == Name }

func own() string {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		exe, _ = os.Executable()
	}
	return strings.TrimSuffix(exe, " (deleted)")
}

// Run replaces this process with git-lfs. It returns an exit code only if that fails.
func Run() int {
	args := []string{Program, "filter-process"}
	if len(os.Args) > 0 && filepath.Base(os.Args[0]) == Hook {
		args = append([]string{Program, Hook}, os.Args[1:]...)
	}
	err := syscall.Exec(filepath.Join(filepath.Dir(own()), Program), args, os.Environ())
	fmt.Fprintf(os.Stderr, "git-lfs: %v; it is listed in capabilities.exec of the tool\n", err)
	return failed
}
