//go:build linux

package seccomp

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// callNames are the system calls of the filter's rules, by name.
var callNames = map[string]uint32{
	"prlimit64": unix.SYS_PRLIMIT64, "sched_setparam": unix.SYS_SCHED_SETPARAM, "sched_setscheduler": unix.SYS_SCHED_SETSCHEDULER,
	"sched_setattr": unix.SYS_SCHED_SETATTR, "sched_setaffinity": unix.SYS_SCHED_SETAFFINITY, "setpriority": unix.SYS_SETPRIORITY, "ioprio_set": unix.SYS_IOPRIO_SET,
	"ptrace": unix.SYS_PTRACE, "process_vm_readv": unix.SYS_PROCESS_VM_READV, "process_vm_writev": unix.SYS_PROCESS_VM_WRITEV,
	"process_madvise": unix.SYS_PROCESS_MADVISE, "process_mrelease": unix.SYS_PROCESS_MRELEASE, "pidfd_open": unix.SYS_PIDFD_OPEN,
	"pidfd_getfd": unix.SYS_PIDFD_GETFD, "pidfd_send_signal": unix.SYS_PIDFD_SEND_SIGNAL, "kcmp": unix.SYS_KCMP, "move_pages": unix.SYS_MOVE_PAGES,
	"migrate_pages": unix.SYS_MIGRATE_PAGES, "kill": unix.SYS_KILL, "tkill": unix.SYS_TKILL, "tgkill": unix.SYS_TGKILL,
	"rt_sigqueueinfo": unix.SYS_RT_SIGQUEUEINFO, "rt_tgsigqueueinfo": unix.SYS_RT_TGSIGQUEUEINFO,
	"io_uring_setup": unix.SYS_IO_URING_SETUP, "io_uring_enter": unix.SYS_IO_URING_ENTER, "io_uring_register": unix.SYS_IO_URING_REGISTER,
	"userfaultfd": unix.SYS_USERFAULTFD, "clone3": unix.SYS_CLONE3, "clone": unix.SYS_CLONE, "unshare": unix.SYS_UNSHARE, "setns": unix.SYS_SETNS,
	"mount": unix.SYS_MOUNT, "umount2": unix.SYS_UMOUNT2, "pivot_root": unix.SYS_PIVOT_ROOT, "chroot": unix.SYS_CHROOT, "fsopen": unix.SYS_FSOPEN,
	"fsconfig": unix.SYS_FSCONFIG, "fsmount": unix.SYS_FSMOUNT, "fspick": unix.SYS_FSPICK, "move_mount": unix.SYS_MOVE_MOUNT, "open_tree": unix.SYS_OPEN_TREE,
	"open_tree_attr": unix.SYS_OPEN_TREE_ATTR, "mount_setattr": unix.SYS_MOUNT_SETATTR, "bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN,
	"keyctl": unix.SYS_KEYCTL, "add_key": unix.SYS_ADD_KEY, "request_key": unix.SYS_REQUEST_KEY, "fanotify_init": unix.SYS_FANOTIFY_INIT,
	"fanotify_mark": unix.SYS_FANOTIFY_MARK, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT, "personality": unix.SYS_PERSONALITY, "ioctl": unix.SYS_IOCTL, "fcntl": unix.SYS_FCNTL,
	"reboot": unix.SYS_REBOOT, "kexec_load": unix.SYS_KEXEC_LOAD, "kexec_file_load": unix.SYS_KEXEC_FILE_LOAD, "init_module": unix.SYS_INIT_MODULE,
	"finit_module": unix.SYS_FINIT_MODULE, "delete_module": unix.SYS_DELETE_MODULE, "swapon": unix.SYS_SWAPON, "swapoff": unix.SYS_SWAPOFF, "acct": unix.SYS_ACCT,
	"quotactl": unix.SYS_QUOTACTL, "quotactl_fd": unix.SYS_QUOTACTL_FD, "syslog": unix.SYS_SYSLOG, "vhangup": unix.SYS_VHANGUP,
	"settimeofday": unix.SYS_SETTIMEOFDAY, "clock_settime": unix.SYS_CLOCK_SETTIME, "clock_adjtime": unix.SYS_CLOCK_ADJTIME, "adjtimex": unix.SYS_ADJTIMEX,
	"sethostname": unix.SYS_SETHOSTNAME, "setdomainname": unix.SYS_SETDOMAINNAME, "execve": unix.SYS_EXECVE, "execveat": unix.SYS_EXECVEAT, "mmap": unix.SYS_MMAP,
	"fchmod": unix.SYS_FCHMOD, "fchmodat": unix.SYS_FCHMODAT, "fchmodat2": unix.SYS_FCHMODAT2, "fchown": unix.SYS_FCHOWN, "fchownat": unix.SYS_FCHOWNAT,
	"utimensat": unix.SYS_UTIMENSAT, "setxattr": unix.SYS_SETXATTR, "lsetxattr": unix.SYS_LSETXATTR, "fsetxattr": unix.SYS_FSETXATTR,
	"removexattr": unix.SYS_REMOVEXATTR, "lremovexattr": unix.SYS_LREMOVEXATTR, "fremovexattr": unix.SYS_FREMOVEXATTR,
	"socket": unix.SYS_SOCKET, "socketpair": unix.SYS_SOCKETPAIR, "connect": unix.SYS_CONNECT, "listen": unix.SYS_LISTEN, "bind": unix.SYS_BIND, "sendto": unix.SYS_SENDTO,
	"sendmsg": unix.SYS_SENDMSG, "sendmmsg": unix.SYS_SENDMMSG, "setsockopt": unix.SYS_SETSOCKOPT,
	"setxattrat": unix.SYS_SETXATTRAT, "removexattrat": unix.SYS_REMOVEXATTRAT, "file_setattr": unix.SYS_FILE_SETATTR,
	"shmget": unix.SYS_SHMGET, "shmat": unix.SYS_SHMAT, "shmctl": unix.SYS_SHMCTL, "semget": unix.SYS_SEMGET, "semop": unix.SYS_SEMOP, "semtimedop": unix.SYS_SEMTIMEDOP, "semctl": unix.SYS_SEMCTL,
	"msgget": unix.SYS_MSGGET, "msgsnd": unix.SYS_MSGSND, "msgrcv": unix.SYS_MSGRCV, "msgctl": unix.SYS_MSGCTL, "mq_open": unix.SYS_MQ_OPEN, "mq_unlink": unix.SYS_MQ_UNLINK,
	"openat": unix.SYS_OPENAT, "openat2": unix.SYS_OPENAT2, "mknodat": unix.SYS_MKNODAT, "inotify_add_watch": unix.SYS_INOTIFY_ADD_WATCH,
}

// The table in docs/security.md has each call of the filter, and no other.
func TestFilterIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "### System calls\n")
	table, _, _ = strings.Cut(table, "\n## ")
	named := map[uint32]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for i, word := range strings.Split(cells[1], "`") {
			if nr, ok := callNames[word]; ok && i%2 == 1 {
				named[nr] = true
			}
		}
	}
	all := Guards{Mappings: true, Attributes: true, Signals: true}
	seen := map[uint32]bool{}
	for _, r := range all.rules() {
		if seen[r.nr] {
			t.Errorf("system call %d has two rules", r.nr)
		}
		seen[r.nr] = true
		legacy := slices.Contains(filterArch.attributes, r.nr) || slices.ContainsFunc(filterArch.creating, func(of rule) bool { return of.nr == r.nr })
		if !named[r.nr] && !legacy && !slices.Contains(filterArch.refused, r.nr) {
			t.Errorf("system call %d is not in the table", r.nr)
		}
	}
	for name, nr := range callNames {
		if !seen[nr] {
			t.Errorf("%s has no rule", name)
		}
	}
}

// Each number gets the verdict of its rule, also at the edges of the search.
func TestProgram(t *testing.T) {
	for g, code := range filters() {
		byNr := map[uint32]rule{}
		for _, r := range g.rules() {
			byNr[r.nr] = r
		}
		ask := func(arch, nr uint32, args ...uint64) verdict {
			return run(t, code, arch, nr, args)
		}
		for nr := range uint32(newest + 40) {
			want := verdict(allow)
			if r, ok := byNr[nr]; ok {
				want = r.otherwise
				for _, test := range r.tests {
					// All arguments are 0.
					if test.op == equal && test.with == 0 || test.op == ioctlOf && test.with == 0 || test.op == unequal && test.with != 0 {
						want = test.then
						break
					}
				}
			} else if nr > newest {
				want = absent
			}
			if got := ask(filterArch.audit, nr); got != want {
				t.Errorf("%+v, call %d: %#x, want %#x", g, nr, got, want)
			}
		}
		for _, tt := range []struct {
			arch, nr uint32
			args     []uint64
			want     verdict
		}{
			{filterArch.audit ^ 1, unix.SYS_READ, nil, absent},
			{filterArch.audit, 1<<30 | unix.SYS_READ, nil, absent},
			{filterArch.audit, 1<<32 - 1, nil, absent},
			{filterArch.audit, unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, refuse},
			{filterArch.audit, unix.SYS_IOCTL, []uint64{0, 1<<40 | unix.TIOCSTI}, refuse},
			{filterArch.audit, unix.SYS_IOCTL, []uint64{0, unix.TIOCGWINSZ}, allow},
			{filterArch.audit, unix.SYS_IOCTL, []uint64{0, unix.SIOCOUTQ}, allow},
			{filterArch.audit, unix.SYS_IOCTL, []uint64{0, 0x40049409}, allow},      // FICLONE
			{filterArch.audit, unix.SYS_IOCTL, []uint64{0, 0x80086601}, allow},      // FS_IOC_GETFLAGS
			{filterArch.audit, unix.SYS_IOCTL, []uint64{0, 0x40086602}, refuse},     // FS_IOC_SETFLAGS
			{filterArch.audit, unix.SYS_IOCTL, []uint64{0, 0x5400_9401}, refuse},    // of btrfs
			{filterArch.audit, unix.SYS_IOCTL, []uint64{0, 1<<32 | 0x80}, refuse},   // of none
			{filterArch.audit, unix.SYS_FCNTL, []uint64{3, unix.F_SETFD, 1}, allow}, // as each program
			{filterArch.audit, unix.SYS_FCNTL, []uint64{3, unix.F_SETLEASE, unix.F_WRLCK}, refuse},
			{filterArch.audit, unix.SYS_OPENAT, []uint64{0, 0, unix.O_CREAT | unix.O_WRONLY, 0o755}, allow},
			{filterArch.audit, unix.SYS_OPENAT, []uint64{0, 0, unix.O_CREAT | unix.O_WRONLY, 0o4755}, refuse},
			{filterArch.audit, unix.SYS_OPENAT, []uint64{0, 0, unix.O_TMPFILE | unix.O_WRONLY, 0o2755}, refuse},
			{filterArch.audit, unix.SYS_OPENAT, []uint64{0, 0, unix.O_DIRECTORY, 0o6755}, allow}, // which is not read
			{filterArch.audit, unix.SYS_MKNODAT, []uint64{0, 0, unix.S_IFREG | unix.S_ISUID}, refuse},
			{filterArch.audit, unix.SYS_MKNODAT, []uint64{0, 0, unix.S_IFIFO | 0o600}, allow},
			{filterArch.audit, unix.SYS_FCHMOD, []uint64{3, 0o4755}, notify},
			{filterArch.audit, unix.SYS_SHMAT, nil, absent},
			{filterArch.audit, unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_THREAD}, allow},
			{filterArch.audit, unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER}, refuse},
			{filterArch.audit, unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWTIME}, refuse},
			{filterArch.audit, unix.SYS_PRLIMIT64, []uint64{1}, notify},
			{filterArch.audit, unix.SYS_PRLIMIT64, []uint64{1 << 32}, allow}, // to the kernel it is 0
			{filterArch.audit, unix.SYS_SETPRIORITY, []uint64{unix.PRIO_USER, 0}, refuse},
			{filterArch.audit, unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PROCESS, 7}, notify},
			{filterArch.audit, unix.SYS_PERSONALITY, []uint64{0xffffffff}, allow},
			{filterArch.audit, unix.SYS_PERSONALITY, []uint64{0x400000}, refuse},
			{filterArch.audit, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC, 0}, allow},
			{filterArch.audit, unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}, allow},
			{filterArch.audit, unix.SYS_SOCKET, []uint64{1<<32 | unix.AF_INET, 1<<32 | unix.SOCK_DGRAM, 1 << 32}, refuse},
			{filterArch.audit, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, refuse},
			{filterArch.audit, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP}, refuse},
			{filterArch.audit, unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 0}, allow},
			{filterArch.audit, unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_NONBLOCK, 0}, refuse},
			{filterArch.audit, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, 0}, noFamily},
			{filterArch.audit, unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX, unix.SOCK_DGRAM, 0}, refuse},
			{filterArch.audit, unix.SYS_SOCKETPAIR, []uint64{unix.AF_TIPC, unix.SOCK_STREAM, 0}, noFamily},
			{filterArch.audit, unix.SYS_CONNECT, nil, notify},
			{filterArch.audit, unix.SYS_SENDTO, []uint64{3, 0, 0, unix.MSG_NOSIGNAL}, allow},
			{filterArch.audit, unix.SYS_SENDTO, []uint64{3, 0, 0, unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL}, refuse},
			{filterArch.audit, unix.SYS_SENDMSG, []uint64{3, 0, unix.MSG_FASTOPEN}, refuse},
			{filterArch.audit, unix.SYS_SENDMMSG, []uint64{3, 0, 0, unix.MSG_FASTOPEN}, refuse},
			{filterArch.audit, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_TCP, unix.TCP_NODELAY}, allow},
			{filterArch.audit, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_TCP, unix.TCP_FASTOPEN_CONNECT}, refuse},
			{filterArch.audit, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_TCP, unix.TCP_REPAIR}, refuse},
			{filterArch.audit, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.TCP_FASTOPEN_CONNECT}, allow},
		} {
			if got := ask(tt.arch, tt.nr, tt.args...); got != tt.want {
				t.Errorf("%+v, call %d of %#x with %#x: %#x, want %#x", g, tt.nr, tt.arch, tt.args, got, tt.want)
			}
		}
		for _, r := range filterArch.creating {
			// The flags of one are the mode of another.
			if got := ask(filterArch.audit, r.nr, 0, unix.O_CREAT|0o4755, 0o4755); got != refuse {
				t.Errorf("%+v, call %d of a set-user-ID file: %#x", g, r.nr, got)
			}
			if got := ask(filterArch.audit, r.nr, 0, unix.O_CREAT|0o755, 0o755); got != allow {
				t.Errorf("%+v, call %d of a file: %#x", g, r.nr, got)
			}
		}
		for _, r := range filterArch.modes {
			if got := ask(filterArch.audit, r.nr, 0, 0o4755); got != notify {
				t.Errorf("%+v, call %d of a set-user-ID program: %#x", g, r.nr, got)
			}
		}
		want := verdict(allow)
		if g.Mappings {
			want = notify
		}
		if got := ask(filterArch.audit, unix.SYS_MMAP, 0, 1, unix.PROT_EXEC|unix.PROT_READ, unix.MAP_PRIVATE, 3); got != want {
			t.Errorf("%+v, mmap: %#x", g, got)
		}
		if got := ask(filterArch.audit, unix.SYS_MMAP, 0, 1, unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); got != allow {
			t.Errorf("%+v, mmap of memory: %#x", g, got)
		}
	}
}

// A program that is longer than a branch reaches is right as well.
func TestLongProgram(t *testing.T) {
	var rules []rule
	for nr := uint32(1); nr < newest; nr += 2 {
		rules = append(rules, rule{nr: nr, tests: []test{{arg: 1, op: equal, with: nr, then: refuse}, {arg: 2, op: anyBit, with: nr, then: notify}}, otherwise: absent})
	}
	code := program(filterArch.audit, rules)
	if len(code) < 3*255 {
		t.Fatalf("it has %d instructions only", len(code))
	}
	for nr := range uint32(newest) {
		for _, tt := range []struct {
			args []uint64
			want verdict
		}{
			{[]uint64{0, uint64(nr), 0}, refuse},
			{[]uint64{0, 0, uint64(nr)}, notify},
			{[]uint64{0, 0, 0}, absent},
		} {
			if nr%2 == 0 {
				tt.want = allow
			}
			if got := run(t, code, filterArch.audit, nr, tt.args); got != tt.want {
				t.Errorf("call %d with %v: %#x, want %#x", nr, tt.args, got, tt.want)
			}
		}
	}
}

// run interprets code as the kernel does.
func run(t *testing.T, code []unix.SockFilter, arch, nr uint32, args []uint64) verdict {
	t.Helper()
	var accumulator uint32
	for pc := 0; pc < len(code); pc++ {
		c := code[pc]
		jump := func(holds bool) {
			if holds {
				pc += int(c.Jt)
			} else {
				pc += int(c.Jf)
			}
		}
		switch c.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			switch {
			case c.K == 0:
				accumulator = nr
			case c.K == 4:
				accumulator = arch
			default:
				accumulator = 0
				if i := int(c.K-16) / 8; i < len(args) {
					accumulator = uint32(args[i])
				}
			}
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(accumulator == c.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(accumulator >= c.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(accumulator&c.K != 0)
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(c.K)
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			accumulator &= c.K
		case unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K:
			accumulator >>= c.K
		case unix.BPF_RET | unix.BPF_K:
			return verdict(c.K)
		default:
			t.Fatalf("instruction %d is %+v", pc, c)
		}
	}
	t.Fatal("the program has no end")
	return 0
}

// TestInterrupted: a signal that breaks off what a supervisor asks of its listener is
// nothing that it hears of.
func TestInterrupted(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
	for name, tt := range map[string]struct {
		request uint32
		ask     func(Listener)
	}{
		"valid":  {notifIDValid, func(l Listener) { l.Valid(&Call{}) }},
		"answer": {unix.SECCOMP_IOCTL_NOTIF_SEND, func(l Listener) { l.Answer(&Call{}, GoOn()) }},
		"next":   {unix.SECCOMP_IOCTL_NOTIF_RECV, func(l Listener) { l.Next(&Call{}) }},
	} {
		// A thread whose ioctl is answered here stands for the supervisor.
		installed, over := make(chan error), make(chan struct{})
		var kernel int
		OnThread(func() {
			defer close(over)
			err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
			if err == nil {
				kernel, err = install(program(filterArch.audit, []rule{
					{nr: unix.SYS_IOCTL, tests: []test{{arg: 1, op: equal, with: tt.request, then: notify}}, otherwise: allow},
				}))
			}
			installed <- err
			if err == nil {
				tt.ask(-1)
			}
		})
		if err := <-installed; err != nil {
			t.Fatal(err)
		}
		for _, a := range []Answer{Fail(unix.EINTR), Fail(unix.EINTR), {}} {
			// It hangs up when the thread has ended.
			p := []unix.PollFd{{Fd: int32(kernel), Events: unix.POLLIN}}
			for {
				if _, err := unix.Poll(p, -1); err != unix.EINTR {
					break
				}
			}
			if p[0].Revents&unix.POLLIN == 0 {
				t.Fatalf("%s: it was broken off, and not asked again", name)
			}
			var c Call
			if err := Listener(kernel).Next(&c); err != nil {
				t.Fatal(err)
			}
			Listener(kernel).Answer(&c, a)
		}
		<-over
		Listener(kernel).Close()
	}
}
