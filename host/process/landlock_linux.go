package process

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/wire"
)

// What the Landlock ABI versions brought that is used here.
const (
	abiRefer    = 2 // before it every rename between folders is refused
	abiTruncate = 3
	abiIoctl    = 5
	abiScope    = 6 // signals and abstract sockets
	abiLog      = 7
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

// openPath opens path, whatever it is, only to name it. Links are followed
// without O_NOFOLLOW.
func openPath(path string, flags int) (int, error) {
	return ignoringEINTR(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|flags, 0) })
}

// landlockABI is the version that the kernel offers.
func landlockABI() (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// Confinement says what the running kernel gives.
func Confinement() Status {
	abi, err := landlockABI()
	switch err {
	case nil:
		return statusOf(abi, "")
	case unix.ENOSYS:
		return statusOf(0, "this kernel has no Landlock: use Linux 5.19 or later, built with CONFIG_SECURITY_LANDLOCK")
	case unix.EOPNOTSUPP:
		return statusOf(0, "Landlock is built in but not started: add landlock to the lsm= boot parameter")
	}
	return statusOf(0, fmt.Sprintf("Landlock cannot be used here (%v): a container's seccomp profile may forbid it", err))
}

func statusOf(abi int, reason string) Status {
	s := Status{ABI: abi, Reason: reason}
	if abi == 1 {
		s.ABI = 0
		s.Reason = "Landlock ABI 1 (Linux 5.13 to 5.18) refuses every rename between folders, which git and others need: use Linux 5.19 or later"
	}
	lost := func(since int, what string) {
		if s.ABI < since {
			s.Lost = append(s.Lost, what)
		}
	}
	lost(abiRefer, "a tool can write wherever toold's user can")
	lost(abiRefer, "a tool can read what toold's user can: the state folder, secrets, other callers' files")
	lost(abiRefer, "a tool can execute any program: configuration and hooks of a hostile repository run")
	lost(abiTruncate, "a tool can empty any file that toold's user can write")
	lost(abiIoctl, "a tool can send control requests to devices that toold's user can read")
	lost(abiScope, "a tool can signal any process of toold's user, toold itself among them")
	lost(abiScope, "a tool can connect to any abstract Unix socket")
	return s
}

// admits refuses c where it requires more than s gives: Write and Exec whole.
func (s Status) admits(c *Command) error {
	if !c.Confine.Required || c.Confine.Off || s.ABI >= abiTruncate {
		return nil
	}
	why := s.Lost
	if s.Reason != "" {
		why = append([]string{s.Reason}, why...)
	}
	return wire.Errorf(wire.ToolBroken, "run %s: its confinement is required, and this kernel does not give it (%s): run toold on Linux 6.2 or later, or do not require it", c.Path, strings.Join(why, "; "))
}

// restrictThread confines the calling thread, and what it starts, for good.
// ruleset is a descriptor of rulesets.get for version abi of Landlock. With
// abi 0 or 1 there is none, and Runner.start refused before where that is not
// enough. scoped reports that the thread can signal its own processes only.
// An error comes with the step that failed.
func restrictThread(abi, ruleset int) (scoped bool, step string, err error) {
	// Landlock asks for it, and it holds without Landlock as well: a setuid
	// program that the tool executes gains nothing.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return false, "set no_new_privs", err
	}
	if err := dropCapabilities(); err != nil {
		return false, "drop capabilities", err
	}
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
// confined. A child of any other user has none, also where a service manager
// gave this process some. The thread keeps its own, to kill the child with.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	if unix.Geteuid() != 0 {
		return nil
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

func missing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
}
