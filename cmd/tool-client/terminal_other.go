//go:build unix && !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const getTermios, setTermios = unix.TIOCGETA, unix.TIOCSETA

// stopJob stops this program and the others of its group, as Ctrl-Z does, and returns
// when it is continued.
func stopJob() { syscall.Kill(0, syscall.SIGSTOP) }

// endWith has a child end with this program, where the system knows of that.
func endWith(*syscall.SysProcAttr) {}
