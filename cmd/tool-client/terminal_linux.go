package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const getTermios, setTermios = unix.TCGETS, unix.TCSETS

// endWith has a child end with this program, also where that is killed.
func endWith(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
