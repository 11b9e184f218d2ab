package process

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the kernel's headers have and package unix has not.
const (
	notifIDValid  = 0x40082102 // SECCOMP_IOCTL_NOTIF_ID_VALID
	notifSetFlags = 0x40082104 // SECCOMP_IOCTL_NOTIF_SET_FLAGS
)

// notification is struct seccomp_notif: a system call that waits for an answer.
type notification struct {
	id    uint64
	tid   uint32 // of the thread that calls, as this process sees it
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// reply is struct seccomp_notif_resp.
type reply struct {
	id    uint64
	value int64
	errno int32 // negative
	flags uint32
}

// answer is what becomes of a system call: it goes on as if there were no
// filter, or it returns errno, which is 0 where the supervisor has done what was
// asked.
type answer struct {
	goOn  bool
	errno unix.Errno
}

var goOn = answer{goOn: true}

// fails answers err; nil is that it was done.
func fails(err error) answer {
	if err == nil {
		return answer{}
	}
	if errno, ok := err.(unix.Errno); ok {
		return answer{errno: errno}
	}
	return answer{errno: unix.EPERM}
}

// monitor answers the system calls of one run that its filter does not decide.
//
// A call that goes on is made by the kernel with what is in the caller's memory
// then. That is safe for execve as long as the run has no code that is not the
// operator's: nobody is there to change the memory in between, and paths that
// lead through folders that others can write are refused. Code of somebody
// else's cannot get further than Landlock lets it. Where the answer must hold
// against any code, the supervisor acts in the caller's place (attributes).
type monitor struct {
	listener int
	// owner is the thread that the filter was installed on. It is not the
	// tool's, and calls only to say that the run is over.
	owner  int
	grants atomic.Pointer[grants] // set before the child is started
	// launched is set when the run's own program was started. The first execve
	// is the supervisor's child asking for it, whose path is in the memory of
	// this process, which the child shares until then.
	launched atomic.Bool
	started  bool // owned by serve
	// wire leads to who connects the run's sockets; -1: nobody. user is who the
	// run is; nil: this process's user. Both are set before the child is started.
	wire int
	user *UserID
	// asking are the calls whose answer takes time, waiting how many there are. over
	// is closed when no process of the run is left to wait for one.
	asking  sync.WaitGroup
	waiting atomic.Int64
	over    chan struct{}
	// log is what was executed and refused. A program is in it before it
	// is told, and so before it runs.
	log   programLog
	done  chan struct{}
	waste *waste
}

// newMonitor takes over listener, the descriptor of installFilter on the calling
// thread, and begins to answer.
func newMonitor(listener int, w *waste) *monitor {
	m := &monitor{listener: listener, owner: unix.Gettid(), wire: -1, over: make(chan struct{}), done: make(chan struct{}), waste: w}
	go m.serve()
	return m
}

// close ends answering when no process of the run is left. It is called on the
// thread of newMonitor, and makes a call that the filter asks about: a monitor
// that waits for one wakes up in every kernel, and needs nothing else to wait
// for.
func (m *monitor) close() {
	unix.Syscall(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, uintptr(m.owner), 0)
	<-m.done
	close(m.over)
	if m.wire >= 0 {
		unix.Shutdown(m.wire, unix.SHUT_RDWR) // nobody is left to connect for
	}
	m.asking.Wait()
	if m.wire >= 0 {
		unix.Close(m.wire)
	}
	unix.Close(m.listener)
}

func (m *monitor) serve() {
	defer close(m.done)
	for {
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m.listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			if errno == unix.EINTR || errno == unix.ENOENT { // or who called was killed
				continue
			}
			return
		}
		// The owner signals the run, and ends it with close.
		a, over := goOn, false
		if int(n.tid) == m.owner {
			over = n.nr == unix.SYS_SETPRIORITY
		} else if n.nr == unix.SYS_CONNECT || n.nr == unix.SYS_LISTEN {
			// Others are not to wait for a host far away.
			if m.waiting.Add(1) <= maxAsking {
				m.asking.Go(func() {
					defer m.waiting.Add(-1)
					m.answer(&n, m.network(&n))
					m.waste.leave(wasteOfAnswer)
				})
				continue
			}
			m.waiting.Add(-1)
			a = fails(unix.EAGAIN)
		} else {
			a = m.judge(&n)
		}
		m.answer(&n, a)
		if over {
			return
		}
		m.waste.leave(wasteOfAnswer)
	}
}

func (m *monitor) answer(n *notification, a answer) {
	r := reply{id: n.id, errno: -int32(a.errno)}
	if a.goOn {
		r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
	}
	unix.Syscall(unix.SYS_IOCTL, uintptr(m.listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
}

// valid reports whether the call still waits. What was read of its process
// before is of that process and of none that got its number.
func (m *monitor) valid(n *notification) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m.listener), notifIDValid, uintptr(unsafe.Pointer(&n.id)))
	return errno == 0
}

func (m *monitor) judge(n *notification) answer {
	tid := int(n.tid)
	switch nr := uint32(n.nr); nr {
	case unix.SYS_EXECVE:
		if !m.started && !m.launched.Load() {
			m.started = true
			return goOn
		}
		return m.execute(n, unix.AT_FDCWD, n.args[0], n.args[1], 0)
	case unix.SYS_EXECVEAT:
		return m.execute(n, int(int32(n.args[0])), n.args[1], n.args[2], uint32(n.args[4]))
	case unix.SYS_MMAP:
		return m.mapToExecute(n)
	case unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETAFFINITY:
		return m.ofItself(tid, int(int32(n.args[0])))
	case unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET:
		return m.ofItself(tid, int(int32(n.args[1])))
	case unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO:
		return m.signal(nr, int(int32(n.args[0])))
	}
	return m.attributes(n)
}

// ofItself lets a process act on its own threads and on nobody else.
func (m *monitor) ofItself(tid, target int) answer {
	if target > 0 {
		if _, err := os.Lstat("/proc/" + strconv.Itoa(tid) + "/task/" + strconv.Itoa(target)); err == nil {
			return goOn
		}
	}
	return fails(unix.EPERM)
}

// signal lets processes of the run signal each other and nobody else.
func (m *monitor) signal(nr uint32, target int) answer {
	switch {
	case target == 0:
		return goOn // the caller's own group, which is of the run
	case target == -1 && nr == unix.SYS_KILL:
		return fails(unix.EPERM)
	case target < 0:
		target = -target // a group is of the run when its leader is
	}
	for pid, self := target, os.Getpid(); pid > 1; {
		up, err := parent(pid)
		if err != nil {
			return fails(unix.ESRCH)
		}
		if up == self {
			return goOn
		}
		pid = up
	}
	return fails(unix.EPERM)
}

// mapToExecute refuses to map a file that the tool can write as code. A loader
// is so of no use to somebody who gets it to load a file of the workspace.
func (m *monitor) mapToExecute(n *notification) answer {
	path, err := os.Readlink("/proc/" + strconv.Itoa(int(n.tid)) + "/fd/" + strconv.Itoa(int(int32(n.args[4]))))
	if err != nil {
		return fails(unix.EACCES)
	}
	if g := m.grants.Load(); g.canWrite(path) && !g.holdsProgram(path) {
		m.log.refused(path, "it is a file that the tool can write, and was to be loaded as code")
		return fails(unix.EACCES)
	}
	return goOn
}

// memory reads what process tid has at address, up to the end of p. It returns
// less where the memory ends.
func memory(tid int, address uint64, p []byte) (int, error) {
	local := []unix.Iovec{{Base: &p[0]}}
	local[0].SetLen(len(p))
	return unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(p)}}, 0)
}

// text reads the string at address, of limit bytes at most; cut reports that it
// is longer.
func text(tid int, address uint64, limit int) (s string, cut bool, err error) {
	var b []byte
	for {
		// Not past a page, beyond which there may be nothing.
		page := uint64(os.Getpagesize())
		chunk := make([]byte, min(page-address%page, 512))
		n, err := memory(tid, address, chunk)
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

// path reads a path at address.
func path(tid int, address uint64) (string, error) {
	s, cut, err := text(tid, address, unix.PathMax-1)
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

// words reads the first arguments at address, and the whole of one of them.
func words(tid int, address uint64, whole, limit int) (list []string, err error) {
	var pointers [maxWords + 1]uint64
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&pointers)), unsafe.Sizeof(pointers))
	n := 0
	for n < len(raw) { // the stack may end behind the last one
		page := os.Getpagesize()
		at := address + uint64(n)
		got, err := memory(tid, at, raw[n:min(len(raw), n+page-int(at%uint64(page)))])
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
		w, _, err := text(tid, p, size)
		if err != nil {
			return nil, err
		}
		list = append(list, w)
	}
	return list, nil
}
