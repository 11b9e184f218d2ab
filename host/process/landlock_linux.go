package process

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
)

// What the Landlock ABI versions brought that is used here.
const (
	abiRefer   = 2 // before it every rename between folders is refused
	abiNetwork = 4
	abiIoctl   = 5
	abiScope   = 6 // signals and abstract sockets
	abiLog     = 7
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

// Confinement says what the running kernel gives. It asks once. Whether there
// are namespaces a Runner finds out, since it takes a supervisor to try.
func Confinement() Status { return confinementOnce() }

var confinementOnce = sync.OnceValue(func() Status {
	s := Status{}
	abi, err := landlockABI()
	switch {
	case err == nil && abi > 1:
		s.ABI = abi
	case err == nil:
		s.Reason = "Landlock ABI 1 (Linux 5.13 to 5.18) refuses every rename between folders, which git and others need: use Linux 5.19 or later"
	case err == unix.ENOSYS:
		s.Reason = "this kernel has no Landlock: use Linux 5.19 or later, built with CONFIG_SECURITY_LANDLOCK"
	case err == unix.EOPNOTSUPP:
		s.Reason = "Landlock is built in but not started: add landlock to the lsm= boot parameter"
	default:
		s.Reason = fmt.Sprintf("Landlock cannot be used here (%v): a container's seccomp profile may forbid it", err)
	}
	if err := canFilter(); err != nil {
		s.FilterReason = "system calls cannot be judged here: " + err.Error()
		s.Offline = canGoOffline()
	} else {
		s.Filter = true
	}
	s.NamespacesReason = "no supervisor was started in namespaces of its own"
	s.lose()
	return s
})

// cut leaves out what is more than most.
func (s *Status) cut(most Level) {
	if most == 0 {
		return
	}
	reason := fmt.Sprintf("no more than %q is wanted", most)
	if most < Landlock {
		s.ABI, s.Reason = 0, reason
	}
	if most < Seccomp {
		s.Filter, s.Offline, s.FilterReason = false, false, reason
	}
	s.lose()
}

// lose fills in what is lost.
func (s *Status) lose() {
	s.Lost = nil
	lost := func(when bool, what string) {
		if when {
			s.Lost = append(s.Lost, what)
		}
	}
	lost(s.ABI < abiRefer, "a tool can write wherever toold's user can")
	lost(s.ABI < abiRefer, "a tool can read what toold's user can: the state folder, secrets, other callers' files")
	lost(s.ABI < abiRefer && !s.Filter, "a tool can execute any program: configuration and hooks of a hostile repository run")
	lost(s.ABI >= abiRefer && !s.Filter, "a tool that can be made to start its own loader executes any file: a hostile repository may find a way")
	lost(!s.Filter, "a tool can change the mode, owner and times of any file that toold's user owns")
	lost(!s.Filter, "a tool can limit, slow down and trace other processes of toold's user, toold itself among them")
	lost(!s.Filter && !s.Offline, "a tool can connect to any host, whatever capabilities.network grants, and be connected to")
	lost(!s.Filter && s.Offline, "a tool has no network, whatever capabilities.network grants: nobody could judge its connections")
	lost(s.ABI < abiTruncate, "a tool can empty any file that toold's user can write")
	lost(s.ABI < abiIoctl, "a tool can send control requests to devices that toold's user can read")
	lost(s.ABI < abiScope && !s.Filter, "a tool can signal any process of toold's user, toold itself among them")
	lost(s.ABI < abiScope, "a tool can connect to any abstract Unix socket")
}

// admits refuses c where it demands more than s gives.
func (s Status) admits(c *Command) error {
	level := s.Level()
	if c.Confine.User != nil {
		if !s.Users {
			return &Error{Kind: NoUser, Detail: fmt.Sprintf("run %s as user %d: %s", c.Path, c.Confine.User.UID, s.UsersReason)}
		}
		level = User
	}
	if c.Confine.Off || level >= c.Confine.Least {
		return nil
	}
	var why []string
	for _, reason := range []string{s.Reason, s.FilterReason, s.NamespacesReason} {
		if reason != "" {
			why = append(why, reason)
		}
	}
	return fault.Errorf(fault.ToolBroken, "run %s: the confinement %q is demanded, and this system gives %q (%s): run toold on Linux 6.2 or later and outside of a sandbox that forbids it, or demand less in toold.json", c.Path, c.Confine.Least, level, strings.Join(append(why, s.Lost...), "; "))
}

// renounce takes from the calling thread, and what it starts, for good what no
// confined run has: what a setuid program gains, and capabilities. An error
// comes with the step that failed.
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
// starts, for good. ruleset is a descriptor of rulesets.get for version abi of
// Landlock. With abi 0 or 1 there is none, and Runner.start refused before where
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

// dropInheritable leaves no capability to what the thread starts. A supervisor
// in a user namespace has some to hand on.
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
