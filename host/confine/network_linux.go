package confine

import (
	"encoding/binary"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/seccomp"
)

// maxSockaddr is the longest address of a socket that the kernel takes.
const maxSockaddr = 128

// network answers connect, listen and bind of the run r. A call never goes on:
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
	if n.NR == unix.SYS_BIND {
		return r.bind(n, sock, domain, address)
	}
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

// bind gives sock the name of a file, as the caller would: on a thread that stands
// where the caller does and is confined as it is. An abstract name would be taken from who
// else on this host looks for it or has it, also without listening; an address without one
// has the kernel choose such a name. TCP is not for servers.
func (r *run) bind(n *seccomp.Call, sock, domain int, address []byte) seccomp.Answer {
	if domain != unix.AF_UNIX {
		return seccomp.Fail(unix.EACCES)
	}
	if len(address) < 2 || binary.NativeEndian.Uint16(address) != unix.AF_UNIX {
		return seccomp.Fail(unix.EINVAL)
	}
	if len(address) == 2 || address[2] == 0 {
		return seccomp.Fail(unix.EACCES)
	}
	tid := int(n.TID)
	// The thread below finds the same where /proc is not on the way: there it would learn
	// for the caller what is in folders of this process.
	name, _, _ := strings.Cut(string(address[2:]), "\x00")
	in, err := r.grants.Load().lookup(tid, unix.AT_FDCWD, name[:strings.LastIndexByte(name, '/')+1])
	if err != nil {
		return seccomp.Fail(err)
	}
	in.close()
	if in.proc {
		return seccomp.Fail(unix.EACCES)
	}
	dir, err := unix.Open(folderOf(tid, unix.AT_FDCWD), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return seccomp.Fail(unix.EACCES)
	}
	defer unix.Close(dir)
	status, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	_, rest, _ := strings.Cut(string(status), "\nUmask:")
	text, _, _ := strings.Cut(rest, "\n")
	umask, bad := strconv.ParseUint(strings.TrimSpace(text), 8, 16)
	if err != nil || bad != nil || !r.listener.Valid(n) {
		return seccomp.Fail(unix.EINTR)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			unix.Umask(int(umask))
			err = unix.Fchdir(dir)
		}
		if err == nil {
			err = r.restrictSelf()
		}
		if err == nil {
			if _, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(sock), uintptr(unsafe.Pointer(&address[0])), uintptr(len(address))); errno != 0 {
				err = errno
			}
		}
		done <- err
	}()
	return seccomp.Fail(<-done)
}

// restrictSelf permanently limits the calling thread's access to files to that of the run.
func (r *run) restrictSelf() error {
	if err := r.become(); err != nil {
		return err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return err
	}
	if sets[1].Effective = 0; unix.Geteuid() == 0 {
		sets[0].Effective &= kept
	} else {
		sets[0].Effective = 0
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, err := restrictThread(r.abi, r.ruleset); err != nil {
		return err
	}
	return unix.Capset(&head, &sets[0])
}
