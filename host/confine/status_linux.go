package confine

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/seccomp"
)

// What the Landlock ABI versions brought that is used here.
const (
	abiRefer   = 2 // before it every rename between folders is refused
	abiNetwork = 4
	abiIoctl   = 5
	abiScope   = 6 // signals and abstract sockets
	abiLog     = 7
)

// landlockABI is the version that the kernel offers.
func landlockABI() (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// Confinement returns what the running kernel offers. It asks the kernel once. Whether
// namespaces are available is determined by a Runner, since it takes a supervisor to try.
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
	if err := seccomp.Available(); err != nil {
		s.FilterReason = "system calls cannot be judged here: " + err.Error()
		s.Offline = seccomp.CanGoOffline()
	} else {
		s.Filter = true
	}
	s.NamespacesReason = "no supervisor was started in namespaces of its own"
	s.lose()
	return s
})

// Limit returns s without the levels above most.
func (s *Status) Limit(most Level) {
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

// lose fills in what is missing.
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
