package confine

import (
	"encoding/binary"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/seccomp"
)

// maxSockaddr is the longest address of a socket that the kernel takes.
const maxSockaddr = 128

// network answers connect and listen of the run r. A call never goes on:
// the kernel would read the address again, and look the descriptor up again, when
// another thread may have changed both. The socket is taken out of the caller,
// which may do with its descriptors what it likes from then on, the address is
// read once, and what is done is done to that socket with that address.
func (r *run) network(n *seccomp.Call) seccomp.Answer {
	sock, err := takeDescriptor(int(n.TID), int(int32(n.Args[0])))
	if err != nil {
		return seccomp.Fail(err)
	}
	defer unix.Close(sock)
	domain, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return seccomp.Fail(unix.ENOTSOCK)
	}
	if n.NR == unix.SYS_LISTEN {
		if !r.listener.Valid(n) {
			return seccomp.Fail(unix.EINTR)
		}
		// An abstract name is the whole host's: programs that look for another's server
		// there would find this one. Nobody of the run may connect to it. A socket without
		// a name, which may get one now, does not listen.
		var name unix.RawSockaddrUnix
		size := uint32(unix.SizeofSockaddrUnix)
		if domain != unix.AF_UNIX {
			return seccomp.Fail(unix.EACCES)
		}
		if _, _, errno := unix.Syscall(unix.SYS_GETSOCKNAME, uintptr(sock), uintptr(unsafe.Pointer(&name)), uintptr(unsafe.Pointer(&size))); errno != 0 || size <= 2 {
			return seccomp.Fail(unix.EINVAL)
		}
		if name.Path[0] == 0 {
			return seccomp.Fail(unix.EACCES)
		}
		return seccomp.Fail(r.asCaller(sock, func() error { return unix.Listen(sock, int(int32(n.Args[1]))) }))
	}
	size := int32(n.Args[2])
	if size < 0 || size > maxSockaddr {
		return seccomp.Fail(unix.EINVAL)
	}
	address := make([]byte, size)
	if err := seccomp.Fill(int(n.TID), n.Args[1], address); err != nil {
		return seccomp.Fail(err)
	}
	// From here on nothing is read of the caller: it was this one.
	if domain == unix.AF_UNIX {
		return r.connectUnix(n, sock, address)
	}
	if !r.listener.Valid(n) {
		return seccomp.Fail(unix.EINTR)
	}
	if r.wire < 0 {
		return seccomp.Fail(unix.EACCES)
	}
	if errno := egress.Ask(r.wire, sock, address); errno != 0 {
		return seccomp.Fail(errno)
	}
	return seccomp.Answer{}
}

// connectUnix connects sock to a Unix socket that the run may connect to. The
// socket's file is found as the caller would, and it is that file that is
// connected to, whatever its path leads to by then.
func (r *run) connectUnix(n *seccomp.Call, sock int, address []byte) seccomp.Answer {
	if len(address) < 2 || binary.NativeEndian.Uint16(address) != unix.AF_UNIX {
		return seccomp.Fail(unix.EINVAL)
	}
	name, _, _ := strings.Cut(string(address[2:]), "\x00")
	if name == "" { // abstract; Landlock says the same, where it knows of them
		return seccomp.Fail(unix.EPERM)
	}
	p, err := r.grants.Load().lookup(int(n.TID), unix.AT_FDCWD, name)
	if err != nil {
		return seccomp.Fail(err)
	}
	defer p.close()
	if !r.listener.Valid(n) {
		return seccomp.Fail(unix.EINTR)
	}
	if p.stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return seccomp.Fail(unix.ECONNREFUSED)
	}
	if r.wire < 0 {
		return seccomp.Fail(unix.EACCES)
	}
	if errno := egress.AskUnix(r.wire, p.path); errno != 0 {
		return seccomp.Fail(errno)
	}
	return seccomp.Fail(r.asCaller(sock, func() error {
		return unix.Connect(sock, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(p.fd)})
	}))
}
