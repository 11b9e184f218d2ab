package main

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const getTermios, setTermios = unix.TCGETS, unix.TCSETS

// stopJob stops this program and the others in its process group, as Ctrl-Z does, and returns when it is continued. If
// no shell could continue it, nothing is stopped.
func stopJob() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// When a signal is no longer wanted, the runtime leaves its handler installed, as a no-op. These are struct
	// sigaction.
	var before [4]uint64
	byDefault, ignored := [4]uint64{}, [4]uint64{1}
	setAction := func(to, from *[4]uint64) {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGTSTP), uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(from)), 8, 0, 0)
	}
	setAction(&ignored, &before)
	syscall.Kill(0, syscall.SIGTSTP) // the others
	setAction(&byDefault, nil)
	// Sent to the process, any thread could take it, and stop this one some time later.
	unix.Tgkill(syscall.Getpid(), unix.Gettid(), syscall.SIGTSTP)
	setAction(&before, nil)
}

// endBy ends this program by a signal, and first, where it was typed at the terminal, the
// others of its group, which it would have reached.
func endBy(s syscall.Signal, typed bool) {
	runtime.LockOSThread()
	byDefault, ignored := [4]uint64{}, [4]uint64{1} // of struct sigaction, as in stopJob
	setAction := func(to *[4]uint64) {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(to)), 0, 8, 0, 0)
	}
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) // it is the tool that failed
	if typed {
		setAction(&ignored)
		syscall.Kill(0, s)
	}
	setAction(&byDefault)
	unix.Tgkill(syscall.Getpid(), unix.Gettid(), s)
}

// endWith has a child end with this program, also where that is killed.
func endWith(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
