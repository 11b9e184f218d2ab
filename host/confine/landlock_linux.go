package confine

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
)

const (
	accessReadFile = unix.LANDLOCK_ACCESS_FS_READ_FILE
	accessRead     = accessReadFile | unix.LANDLOCK_ACCESS_FS_READ_DIR

	// accessExec is with reading, for interpreters read what they run.
	accessExec = unix.LANDLOCK_ACCESS_FS_EXECUTE | accessReadFile

	accessFile = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | accessReadFile

	// accessWrite is what a tool may do beneath a folder of its own. Device
	// nodes it may make nowhere: one of a disk would be a way around every
	// file's mode.
	accessWrite = accessFile | accessRead |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER

	accessDevice = accessFile | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

	// accessHandled is all that is refused unless a rule allows it. Reading
	// is among it only where something is hidden.
	accessHandled = accessExec | accessWrite | accessDevice |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK
)

// openDevices opens, as paths only, the devices that every tool may write:
// what is written to them goes nowhere. /dev/tty is nobody's, since a run has
// no controlling terminal; programs that try it are told so by the open.
func openDevices() (fds []int) {
	for _, device := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"} {
		if fd, err := openPath(device, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

// openPath opens path, whatever it is, as a reference only. Links are followed without
// O_NOFOLLOW.
func openPath(path string, flags int) (int, error) {
	return beneath.RetryEINTR(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|flags, 0) })
}

// renounce permanently removes from the calling thread, and what it starts, what no confined
// run has: what a setuid program gains, and capabilities. An error names the step that failed.
func renounce(asUser bool) (step string, err error) {
	// Landlock and the filter ask for it, and it holds without them as well: a
	// setuid program that the tool executes gains nothing.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "set no_new_privs", err
	}
	if err := dropCapabilities(asUser); err != nil {
		return "drop capabilities", err
	}
	return "", nil
}

// restrictThread confines the calling thread, which has renounced, and what it
// starts, for good. ruleset is a descriptor of Rulesets.get for version abi of
// Landlock. With abi 0 or 1 there is none, and the run was refused before where
// that is not enough. scoped reports that the thread can signal its own
// processes only. An error comes with the step that failed.
func restrictThread(abi, ruleset int) (scoped bool, step string, err error) {
	if abi < abiRefer {
		return false, "", nil
	}
	flags := uintptr(0)
	if abi >= abiLog {
		// killTree tries to signal everybody and is refused by design; that
		// is not worth a line in the audit log. What the tool does is.
		flags = unix.LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), flags, 0); errno != 0 {
		return false, "enforce the Landlock ruleset", errno
	}
	return abi >= abiScope, "", nil
}

// kept are the capabilities with which root works on files, and takes on
// another user.
const kept = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_NET_BIND_SERVICE

// dropCapabilities sees to it that a child of root's has those of kept, as far
// as this process has them, and no others: the rest (tracing, raw devices,
// modules, reading other processes' environment) would be ways around what is
// confined. A child of any other user, or as one, has none, also where a service manager
// gave this process some. The thread keeps its own, to kill the child with.
func dropCapabilities(asUser bool) error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	if asUser || unix.Geteuid() != 0 {
		return dropInheritable()
	}
	// User 0 is then nobody to exec, and what passes through it is what is
	// ambient. Inheritable must hold that first.
	const noRoot = 1<<0 | 1<<1 // SECBIT_NOROOT and its lock
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRoot, 0, 0, 0); err == unix.EPERM {
		return nil // no CAP_SETPCAP: a container that gave root few
	} else if err != nil {
		return err
	}
	var (
		head = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		sets [2]unix.CapUserData
	)
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return err
	}
	sets[0].Inheritable, sets[1].Inheritable = sets[0].Permitted&kept, 0
	if err := unix.Capset(&head, &sets[0]); err != nil {
		return err
	}
	for c := range 32 {
		if sets[0].Inheritable&(1<<c) != 0 {
			if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropInheritable removes all capabilities from what the thread starts. A supervisor in a user
// namespace could pass some on.
func dropInheritable() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return err
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	return unix.Capset(&head, &sets[0])
}

func missing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
}
