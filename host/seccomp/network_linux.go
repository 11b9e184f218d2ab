package seccomp

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// noFamily is for families of sockets, which programs do without.
const noFamily verdict = unix.SECCOMP_RET_ERRNO | verdict(unix.EAFNOSUPPORT)

// network leaves a run with Unix sockets and TCP, and has the supervisor make
// their connections.
func network() []rule {
	// Datagrams have an address each, in memory, which no filter reads. That of a
	// Unix socket counts even where it is one of a pair.
	streams := []test{{arg: 1, op: sockType, with: unix.SOCK_STREAM, then: allow}, {arg: 1, op: sockType, with: unix.SOCK_SEQPACKET, then: allow}}
	// 0 is TCP, too. MPTCP and SMC are stream sockets with other protocols, which
	// connect in ways of their own.
	tcp := []test{{arg: 1, op: sockType, with: unix.SOCK_STREAM, then: refuse, but: []test{
		{arg: 2, op: equal, with: 0, then: allow}, {arg: 2, op: equal, with: unix.IPPROTO_TCP, then: allow},
	}}}
	return []rule{
		{nr: unix.SYS_SOCKET, otherwise: noFamily, tests: []test{
			{arg: 0, op: equal, with: unix.AF_UNIX, then: refuse, but: streams},
			{arg: 0, op: equal, with: unix.AF_INET, then: refuse, but: tcp},
			{arg: 0, op: equal, with: unix.AF_INET6, then: refuse, but: tcp},
		}},
		{nr: unix.SYS_SOCKETPAIR, otherwise: noFamily, tests: []test{{arg: 0, op: equal, with: unix.AF_UNIX, then: refuse, but: streams}}},
		{nr: unix.SYS_CONNECT, otherwise: notify},
		{nr: unix.SYS_LISTEN, otherwise: notify},
		{nr: unix.SYS_BIND, otherwise: notify},
		// Connecting by sending.
		{nr: unix.SYS_SENDTO, tests: []test{{arg: 3, op: anyBit, with: unix.MSG_FASTOPEN, then: refuse}}, otherwise: allow},
		{nr: unix.SYS_SENDMSG, tests: []test{{arg: 2, op: anyBit, with: unix.MSG_FASTOPEN, then: refuse}}, otherwise: allow},
		{nr: unix.SYS_SENDMMSG, tests: []test{{arg: 3, op: anyBit, with: unix.MSG_FASTOPEN, then: refuse}}, otherwise: allow},
		{nr: unix.SYS_SETSOCKOPT, otherwise: allow, tests: []test{{arg: 1, op: equal, with: unix.SOL_TCP, then: allow, but: []test{
			{arg: 2, op: equal, with: unix.TCP_FASTOPEN_CONNECT, then: refuse},
			// Makes a socket that was never connected one that is.
			{arg: 2, op: equal, with: unix.TCP_REPAIR, then: refuse},
		}}, {arg: 1, op: equal, with: unix.SOL_IP, then: allow, but: []test{
			// A route of its own, which newer kernels refuse who has no capability: the
			// first packet would go to any host on the way to where it is connected.
			{arg: 2, op: equal, with: unix.IP_OPTIONS, then: refuse},
		}}, {arg: 1, op: equal, with: unix.SOL_IPV6, then: allow, but: []test{
			// The same of IPv6, which takes no capability.
			{arg: 2, op: equal, with: unix.IPV6_RTHDR, then: refuse},
			{arg: 2, op: equal, with: unix.IPV6_2292PKTOPTIONS, then: refuse},
		}}}},
	}
}

// offline is a filter that asks nobody, for where there can be no supervisor: it
// leaves a run with Unix sockets.
var offline = sync.OnceValue(func() []unix.SockFilter {
	return program(filterArch.audit, append([]rule{
		{nr: unix.SYS_SOCKET, otherwise: noFamily, tests: []test{
			{arg: 0, op: equal, with: unix.AF_UNIX, then: allow},
			{arg: 0, op: equal, with: unix.AF_INET, then: refuse},
			{arg: 0, op: equal, with: unix.AF_INET6, then: refuse},
		}},
		{nr: unix.SYS_SOCKETPAIR, otherwise: noFamily, tests: []test{{arg: 0, op: equal, with: unix.AF_UNIX, then: allow}}},
	}, always(absent, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER)...))
})

// GoOffline takes the network from the calling thread, and all that it starts, for good. The
// thread must have no_new_privs already.
func GoOffline() error {
	prog := sockProgram(offline())
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return errno
	}
	return nil
}

// CanGoOffline reports whether the kernel accepts such a filter.
func CanGoOffline() (can bool) {
	done := make(chan struct{})
	OnThread(func() {
		defer close(done)
		can = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == nil && GoOffline() == nil
	})
	<-done
	return can
}
