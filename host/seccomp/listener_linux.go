package seccomp

import (
	"bytes"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the kernel's headers have and package unix has not.
const (
	notifIDValid  = 0x40082102 // SECCOMP_IOCTL_NOTIF_ID_VALID
	notifSetFlags = 0x40082104 // SECCOMP_IOCTL_NOTIF_SET_FLAGS
)

// Call is struct seccomp_notif: a system call that waits for an answer.
type Call struct {
	id    uint64
	TID   uint32 // of the thread that calls, as this process sees it
	flags uint32
	NR    int32
	arch  uint32
	ip    uint64
	Args  [6]uint64
}

// reply is struct seccomp_notif_resp.
type reply struct {
	id    uint64
	value int64
	errno int32 // negative
	flags uint32
}

// Answer is the answer to a system call: it continues as if there were no filter, or returns
// errno, or, if the supervisor has done what was requested and errno is 0, value.
type Answer struct {
	goOn  bool
	errno unix.Errno
	value int
}

// Return answers that the supervisor made the call, with the value that it returns.
func Return(value int) Answer { return Answer{value: value} }

// GoOn lets a call continue.
func GoOn() Answer { return Answer{goOn: true} }

// Fail answers err; nil means that the supervisor made the call.
func Fail(err error) Answer {
	if err == nil {
		return Answer{}
	}
	if errno, ok := err.(unix.Errno); ok {
		return Answer{errno: errno}
	}
	return Answer{errno: unix.EPERM}
}

// Listener is the descriptor on which the kernel reports calls that wait.
type Listener int

// Next waits for a call. An error means that there will be no more.
func (l Listener) Next(c *Call) error {
	for {
		*c = Call{} // the kernel takes no other
		errno := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(c))
		if errno == 0 {
			return nil
		}
		if errno != unix.ENOENT { // who called was killed
			return errno
		}
	}
}

// ioctl does request. A signal breaks it off before it has done anything, where it waits
// for the listener's lock, and Go's runtime sends its threads signals at any time: taken for
// a verdict, a call would fail that was allowed, or wait forever for an answer.
func (l Listener) ioctl(request uintptr, arg unsafe.Pointer) unix.Errno {
	for {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), request, uintptr(arg)); errno != unix.EINTR {
			return errno
		}
	}
}

// Answer answers c. It does not fail if the caller is gone.
func (l Listener) Answer(c *Call, a Answer) {
	r := reply{id: c.id, value: int64(a.value), errno: -int32(a.errno)}
	if a.goOn {
		r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	}
	l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
}

// Valid reports whether c still waits. If so, what was read of its process before is of that
// process and not of another with the same number.
func (l Listener) Valid(c *Call) bool {
	return l.ioctl(notifIDValid, unsafe.Pointer(&c.id)) == 0
}

// Close closes the descriptor. Calls that wait then fail with ENOSYS.
func (l Listener) Close() { unix.Close(int(l)) }

// Memory reads the memory of process tid at address, up to the length of p. It returns less if
// the memory ends before.
func Memory(tid int, address uint64, p []byte) (int, error) {
	local := []unix.Iovec{{Base: &p[0]}}
	local[0].SetLen(len(p))
	return unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(p)}}, 0)
}

// Fill fills p from address, across pages if need be.
func Fill(tid int, address uint64, p []byte) error {
	for got := 0; got < len(p); {
		n, err := Memory(tid, address+uint64(got), p[got:])
		if err != nil || n <= 0 {
			return unix.EFAULT
		}
		got += n
	}
	return nil
}

// Text reads the string at address, at most limit bytes of it; cut reports that it is longer.
func Text(tid int, address uint64, limit int) (s string, cut bool, err error) {
	var b []byte
	for {
		// Not past a page, beyond which there may be nothing.
		page := uint64(os.Getpagesize())
		chunk := make([]byte, min(page-address%page, 512))
		n, err := Memory(tid, address, chunk)
		if err != nil || n <= 0 {
			return "", false, unix.EFAULT
		}
		if end := bytes.IndexByte(chunk[:n], 0); end >= 0 {
			b = append(b, chunk[:end]...)
			return string(b[:min(len(b), limit)]), len(b) > limit, nil
		}
		if b = append(b, chunk[:n]...); len(b) > limit {
			return string(b[:limit]), true, nil
		}
		address += uint64(n)
	}
}

// Path reads a path at address.
func Path(tid int, address uint64) (string, error) {
	s, cut, err := Text(tid, address, unix.PathMax-1)
	if err == nil && cut {
		err = unix.ENAMETOOLONG
	}
	return s, err
}

// maxWords bounds how many arguments of a program are read, wordSize how much of
// each.
const (
	maxWords = 16
	wordSize = 256
)

// Words reads the first arguments at address, and one of them as a whole.
func Words(tid int, address uint64, whole, limit int) (list []string, err error) {
	var pointers [maxWords + 1]uint64
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&pointers)), unsafe.Sizeof(pointers))
	n := 0
	for n < len(raw) { // the stack may end behind the last one
		page := os.Getpagesize()
		at := address + uint64(n)
		got, err := Memory(tid, at, raw[n:min(len(raw), n+page-int(at%uint64(page)))])
		if err != nil || got <= 0 {
			break
		}
		n += got
	}
	for i, p := range pointers[:n/8] {
		if p == 0 {
			return list, nil
		}
		size := wordSize
		if i == whole {
			size = limit
		}
		w, _, err := Text(tid, p, size)
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	return list, nil
}

// OnThread runs f on an OS thread of its own, which ends with f. So what f does to its thread
// (Landlock, no_new_privs, its working folder) never affects another run. The thread lives
// until the run is over, as required by the child's parent death signal, which refers to the
// thread and not to the process.
func OnThread(f func()) {
	go func() {
		runtime.LockOSThread() // and never unlocked
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end before the process. Holding it here
			// for good makes the next goroutine get another.
			OnThread(f)
			select {}
		}
		f()
	}()
}
