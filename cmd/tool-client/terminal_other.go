//go:build unix && !linux

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const getTermios, setTermios = unix.TIOCGETA, unix.TIOCSETA

// stopJob stops this program and the others in its process group, as Ctrl-Z does, and returns when it is continued.
func stopJob() { syscall.Kill(0, syscall.SIGSTOP) }

// endWith makes the child die with this program, on systems that support that.
func endWith(*syscall.SysProcAttr) {}
