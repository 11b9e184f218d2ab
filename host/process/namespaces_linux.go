package process

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespacesEnv tells a supervisor that it was started in namespaces of its own
// and makes a view of files for its runs.
const namespacesEnv = "NAMESPACES"

// filterEnv tells a supervisor that its runs are under a filter.
const filterEnv = "FILTER"

// namespaceAttr adds the namespaces of a supervisor to attr. Only root may create them without
// a user namespace, in which this user is itself and no other user exists.
func namespaceAttr(attr *syscall.SysProcAttr) {
	attr.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP
	if hasCapability(unix.CAP_SYS_ADMIN) {
		return
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	// What only that namespace's owner may, and exec would take away.
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
}

// mayNamespace returns why supervisors are not even tried in namespaces.
func mayNamespace() error {
	if os.Geteuid() == 0 && !hasCapability(unix.CAP_SYS_ADMIN) {
		return errors.New("toold runs as root without CAP_SYS_ADMIN, and in a user namespace would lose root's rights over files: run it as another user")
	}
	return nil
}

func hasCapability(c uint) bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&head, &sets[0]) == nil && sets[c/32].Effective&(1<<(c%32)) != 0
}
