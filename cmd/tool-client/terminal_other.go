//go:build unix && !linux

package main

import (
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const getTermios, setTermios = unix.TIOCGETA, unix.TIOCSETA

// stopJob stops this program and the others in its process group, as Ctrl-Z does, and returns when it is continued.
func stopJob() { syscall.Kill(0, syscall.SIGSTOP) }

// endBy ends this program by a signal, but for one by which the runtime does not end it.
func endBy(s syscall.Signal, _ bool) {
	if s == syscall.SIGQUIT {
		return
	}
	signal.Reset(s)
	syscall.Kill(syscall.Getpid(), s)
	time.Sleep(time.Second) // for the thread that takes it
}

// endWith has a child end with this program, where the system knows of that.
func endWith(*syscall.SysProcAttr) {}
