package seccomp

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// newNamespaces are the flags of clone and unshare that make a namespace.
	// CLONE_NEWTIME is among the bits that clone reads as a signal.
	newNamespaces = unix.CLONE_NEWCGROUP | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWNS |
		unix.CLONE_NEWPID | unix.CLONE_NEWUSER | unix.CLONE_NEWUTS

	ioprioWhoProcess = 1

	fioSetOwn    = 0x8901 // FIOSETOWN
	siocSetGroup = 0x8902 // SIOCSPGRP

	setDelegation = 1024 + 16 // F_SETDELEG, of Linux 6.19
)

// ioctlTypes are the types of ioctls that programs use: of requests and of any
// descriptor, of sockets, of epoll, of randomness. What file systems have beside
// these changes files that are only open to be read, where they are the user's,
// and each has more of them than anybody has listed; ioctls are those of theirs
// that only look, or want a file that can be written.
var (
	ioctlTypes = []uint32{'T', 0x89, 0x8a, 'R'}
	ioctls     = []uint32{
		2,                      // FIGETBSZ
		0x80086601, 0x80046601, // FS_IOC_GETFLAGS
		0x80087601, 0x80047601, // FS_IOC_GETVERSION
		0x801c581f, // FS_IOC_FSGETXATTR
		0xc020660b, // FS_IOC_FIEMAP
		0x40049409, // FICLONE
		0x4020940d, // FICLONERANGE
		0xc0189436, // FIDEDUPERANGE
	}
)

// Guards are the parts of the filter that can be left out.
type Guards struct {
	// Mappings has the supervisor judge files that are mapped to be executed,
	// where nothing that the tool may write is on a mount without execution.
	Mappings bool
	// Attributes has the supervisor change modes, owners, times and extended
	// attributes. A tool that runs as a user of its own does without, but for modes with
	// which a program runs as who owns it: then the kernel compares owners.
	Attributes bool
	// Signals has the supervisor judge signals, where Landlock does not.
	Signals bool
}

// rules is the table in docs/security.md.
func (g Guards) rules() []rule {
	requests := []test{
		// Typing into somebody's terminal.
		{arg: 1, op: equal, with: unix.TIOCSTI, then: refuse}, {arg: 1, op: equal, with: unix.TIOCLINUX, then: refuse},
		// Has the kernel load a module.
		{arg: 1, op: equal, with: unix.TIOCSETD, then: refuse},
		// Signals to whom a file is said to belong.
		{arg: 1, op: equal, with: fioSetOwn, then: refuse}, {arg: 1, op: equal, with: siocSetGroup, then: refuse},
	}
	for _, kind := range ioctlTypes {
		requests = append(requests, test{arg: 1, op: ioctlOf, with: kind, then: allow})
	}
	for _, nr := range ioctls {
		requests = append(requests, test{arg: 1, op: equal, with: nr, then: allow})
	}
	// Whoever opens a file with a lease waits for who has it, and a lease takes no
	// more than to own the file and to read it.
	files := []test{{arg: 1, op: equal, with: unix.F_SETLEASE, then: refuse}, {arg: 1, op: equal, with: setDelegation, then: refuse}}
	if g.Signals {
		// A file's owner is sent whatever signal F_SETSIG names.
		files = append(files, test{arg: 1, op: equal, with: unix.F_SETOWN, then: refuse}, test{arg: 1, op: equal, with: unix.F_SETOWN_EX, then: refuse})
	}
	list := slices.Concat(
		// What one process can do to another of the same user.
		self(unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETAFFINITY),
		[]rule{
			// 0 is the caller only where a process is meant: as a user it is
			// all that the user runs.
			{nr: unix.SYS_SETPRIORITY, tests: []test{{arg: 0, op: unequal, with: unix.PRIO_PROCESS, then: refuse}, {arg: 1, op: equal, with: 0, then: allow}}, otherwise: notify},
			{nr: unix.SYS_IOPRIO_SET, tests: []test{{arg: 0, op: unequal, with: ioprioWhoProcess, then: refuse}, {arg: 1, op: equal, with: 0, then: allow}}, otherwise: notify},
		},
		always(refuse,
			unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE,
			unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL,
			unix.SYS_KCMP, unix.SYS_MOVE_PAGES, unix.SYS_MIGRATE_PAGES),

		// Ways around a filter, or into the kernel's less travelled parts.
		always(absent, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_USERFAULTFD,
			// Its flags are in memory, which a filter cannot read. Every libc
			// falls back to clone.
			unix.SYS_CLONE3),
		always(refuse,
			unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
			unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK, unix.SYS_OPEN_BY_HANDLE_AT),
		[]rule{{nr: unix.SYS_PERSONALITY, tests: []test{{arg: 0, op: equal, with: 0, then: allow}, {arg: 0, op: equal, with: 0xffffffff, then: allow}}, otherwise: refuse}},

		// Namespaces and mounts.
		[]rule{
			{nr: unix.SYS_CLONE, tests: []test{{arg: 0, op: anyBit, with: newNamespaces, then: refuse}}, otherwise: allow},
			{nr: unix.SYS_UNSHARE, tests: []test{{arg: 0, op: anyBit, with: newNamespaces | unix.CLONE_NEWTIME, then: refuse}}, otherwise: allow},
		},
		always(refuse,
			unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
			unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOVE_MOUNT,
			unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOUNT_SETATTR),

		// The host as a whole. The kernel asks for capabilities that a tool
		// does not have; a tool of root's is stopped here as well.
		always(refuse,
			unix.SYS_REBOOT, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
			unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
			unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
			unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME),
		[]rule{
			{nr: unix.SYS_IOCTL, tests: requests, otherwise: refuse},
			{nr: unix.SYS_FCNTL, tests: files, otherwise: allow},
		},

		// What outlives a run, or is another process's: shared memory is so for
		// whoever finds its number.
		always(absent,
			unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL,
			unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK),

		// Its mode is in memory. Programs open in another way then.
		always(absent, unix.SYS_OPENAT2),
		[]rule{
			{nr: unix.SYS_OPENAT, tests: creates(2, 3), otherwise: allow},
			{nr: unix.SYS_MKNODAT, tests: creates(-1, 2), otherwise: allow},
		},
		filterArch.creating,

		// Landlock keeps nobody from hearing of what happens in a folder.
		always(notify, unix.SYS_INOTIFY_ADD_WATCH),

		always(notify, unix.SYS_EXECVE, unix.SYS_EXECVEAT),
		network(),
		always(refuse, filterArch.refused...),
	)
	if g.Mappings {
		list = append(list, rule{nr: unix.SYS_MMAP, tests: []test{{arg: 3, op: anyBit, with: unix.MAP_ANONYMOUS, then: allow}, {arg: 2, op: anyBit, with: unix.PROT_EXEC, then: notify}}, otherwise: allow})
	}
	if g.Attributes {
		list = slices.Concat(list, always(notify, filterArch.attributes...), always(notify,
			unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
			unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR),
			always(absent, unix.SYS_SETXATTRAT, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR))
	} else {
		list = slices.Concat(list, []rule{
			{nr: unix.SYS_FCHMOD, tests: modes(1), otherwise: allow},
			{nr: unix.SYS_FCHMODAT, tests: modes(2), otherwise: allow},
			{nr: unix.SYS_FCHMODAT2, tests: modes(2), otherwise: allow},
		}, filterArch.modes)
	}
	if g.Signals {
		list = slices.Concat(list, always(notify, unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO))
	}
	return list
}

// filters are the programs of all guards, made once.
var filters = sync.OnceValue(func() map[Guards][]unix.SockFilter {
	m := map[Guards][]unix.SockFilter{}
	for i := range 8 {
		g := Guards{Mappings: i&1 != 0, Attributes: i&2 != 0, Signals: i&4 != 0}
		m[g] = program(filterArch.audit, g.rules())
	}
	return m
})

// Install applies the filter with g to the calling thread, and all that it starts, for good. It
// returns the listener on which the kernel reports calls that wait for a verdict. The thread
// must have no_new_privs already.
func Install(g Guards) (Listener, error) {
	fd, err := install(filters()[g])
	return Listener(fd), err
}

// Available returns why this kernel, or a sandbox around this process, accepts no filter that
// asks a supervisor; nil if it does. It tries on a thread that ends afterwards: another filter
// with a listener may already be in force.
func Available() (err error) {
	done := make(chan struct{})
	OnThread(func() {
		defer close(done)
		if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return
		}
		var fd int
		if fd, err = install([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(allow)}}); err == nil {
			unix.Close(fd)
			return
		}
		switch err {
		case unix.EBUSY:
			err = fmt.Errorf("a filter around toold has a supervisor of its own already (%w)", err)
		case unix.EINVAL:
			err = fmt.Errorf("this kernel does not know SECCOMP_RET_USER_NOTIF, which came with Linux 5.0 (%w)", err)
		default:
			err = fmt.Errorf("a container's seccomp profile may forbid it (%w)", err)
		}
	})
	<-done
	return err
}
