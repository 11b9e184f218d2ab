package confine

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/procfs"
	"github.com/toold/toold/host/seccomp"
)

// Monitor answers those system calls of one run that its filter does not decide.
//
// A call that continues is made by the kernel with what is in the caller's memory then. That is
// safe for execve as long as the run has no code that is not the operator's: nobody can change
// the memory in between, and paths through folders that others can write to are refused. Other
// code cannot get further than Landlock allows. Where the answer must hold against any code,
// the supervisor acts in the caller's place (attributes).
type Monitor struct {
	run
	// owner is the thread that the filter was installed on. It is not the
	// tool's, and calls only to say that the run is over.
	owner int
	// launched is set when the run's own program was started. The first execve
	// is the supervisor's child asking for it, whose path is in the memory of
	// this process, which the child shares until then.
	launched atomic.Bool
	started  bool // owned by serve
	// begins is called then with the process of the run. It is set before the child is
	// started.
	begins atomic.Pointer[func(pid int) error]
	// asking are the calls whose answer takes time, waiting how many there are.
	asking  sync.WaitGroup
	waiting atomic.Int64
	done    chan struct{}
	// answered is called behind each answer.
	answered func()
}

// maxAsking bounds how many connections of a run are being made at a time: each
// takes a few descriptors of the supervisor, and perhaps a thread.
const maxAsking = 512

// Watch installs the filter for g on the calling thread, for good, and begins to judge the
// system calls of what the thread will start. It calls answered after each answer, on any
// thread.
func Watch(g seccomp.Guards, answered func()) (*Monitor, error) {
	asUser := !g.Attributes // see Bounds.Guards
	if _, err := renounce(asUser); err != nil {
		return nil, err
	}
	listener, err := seccomp.Install(g)
	if err != nil {
		return nil, err
	}
	m := &Monitor{run: run{listener: listener, wire: -1, over: make(chan struct{})}, owner: unix.Gettid(), done: make(chan struct{}), answered: answered}
	go m.serve()
	return m, nil
}

// OnBegin registers f, to be called with the process of the run when that is about to execute
// its program; an error of f prevents it. It must be called before the run is started.
func (m *Monitor) OnBegin(f func(pid int) error) { m.begins.Store(&f) }

// Launched records that the run's own program was started.
func (m *Monitor) Launched() { m.launched.Store(true) }

// Close stops the Monitor when no process of the run is left. It is called on the thread of
// Watch, and makes a system call that the filter asks about: a Monitor that waits for one wakes
// up on every kernel, and needs nothing else to wait for.
func (m *Monitor) Close() {
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
	m.listener.Close()
}

// Programs returns the programs that the run has executed besides its own, or was refused, and
// how often.
func (m *Monitor) Programs() (list []Program, executed, refused int) {
	l := &m.log
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list, l.count - l.denied, l.denied
}

func (m *Monitor) serve() {
	defer close(m.done)
	for {
		var n seccomp.Call
		if m.listener.Next(&n) != nil {
			return
		}
		// The owner signals the run, and ends it with Close.
		a, over := seccomp.GoOn(), false
		if int(n.TID) == m.owner {
			over = n.NR == unix.SYS_SETPRIORITY
		} else if n.NR == unix.SYS_CONNECT || n.NR == unix.SYS_LISTEN || n.NR == unix.SYS_BIND {
			// Others are not to wait for a host far away.
			if m.waiting.Add(1) <= maxAsking {
				m.asking.Go(func() {
					defer m.waiting.Add(-1)
					m.listener.Answer(&n, m.network(&n))
					m.answered()
				})
				continue
			}
			m.waiting.Add(-1)
			a = seccomp.Fail(unix.EAGAIN)
		} else {
			a = m.judge(&n)
		}
		m.listener.Answer(&n, a)
		if over {
			return
		}
		m.answered()
	}
}

func (m *Monitor) judge(n *seccomp.Call) seccomp.Answer {
	tid := int(n.TID)
	switch nr := uint32(n.NR); nr {
	case unix.SYS_EXECVE:
		if !m.started && !m.launched.Load() {
			m.started = true
			if f := m.begins.Load(); f != nil {
				if err := (*f)(tid); err != nil {
					return seccomp.Fail(unix.EPERM)
				}
			}
			return seccomp.GoOn()
		}
		return m.execute(n, unix.AT_FDCWD, n.Args[0], n.Args[1], 0)
	case unix.SYS_EXECVEAT:
		return m.execute(n, int(int32(n.Args[0])), n.Args[1], n.Args[2], uint32(n.Args[4]))
	case unix.SYS_INOTIFY_ADD_WATCH:
		return m.watch(n)
	case unix.SYS_MMAP:
		return m.mapToExecute(n)
	case unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETAFFINITY:
		return m.ofItself(tid, int(int32(n.Args[0])))
	case unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET:
		return m.ofItself(tid, int(int32(n.Args[1])))
	case unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO:
		return m.signal(nr, int(int32(n.Args[0])))
	}
	return m.attributes(n)
}

// ofItself lets a process act on its own threads only.
func (m *Monitor) ofItself(tid, target int) seccomp.Answer {
	if target > 0 && isThread(tid, strconv.Itoa(target)) {
		return seccomp.GoOn()
	}
	return seccomp.Fail(unix.EPERM)
}

// signal lets processes of the run signal only each other.
func (m *Monitor) signal(nr uint32, target int) seccomp.Answer {
	switch {
	case target == 0:
		return seccomp.GoOn() // the caller's own group, which is of the run
	case target == -1 && nr == unix.SYS_KILL:
		return seccomp.Fail(unix.EPERM)
	case target < 0:
		target = -target // a group is of the run when its leader is
	}
	for pid, self := target, os.Getpid(); pid > 1; {
		up, err := procfs.Parent(pid)
		if err != nil {
			return seccomp.Fail(unix.ESRCH)
		}
		if up == self {
			return seccomp.GoOn()
		}
		pid = up
	}
	return seccomp.Fail(unix.EPERM)
}

// mapToExecute refuses to map a file that the tool can write to as code. So nobody can use a
// loader to load a file of the workspace.
func (m *Monitor) mapToExecute(n *seccomp.Call) seccomp.Answer {
	path, err := os.Readlink("/proc/" + strconv.Itoa(int(n.TID)) + "/fd/" + strconv.Itoa(int(int32(n.Args[4]))))
	if err != nil {
		return seccomp.Fail(unix.EACCES)
	}
	if g := m.grants.Load(); g.canWrite(path) && !g.holdsProgram(path) {
		m.log.refused(path, "it is a file that the tool can write, and was to be loaded as code")
		return seccomp.Fail(unix.EACCES)
	}
	return seccomp.GoOn()
}

// watch adds an inotify watch in the caller's place, unless reading the file or folder is
// refused: Landlock only checks opening, and the events of a folder contain the names in it.
func (m *Monitor) watch(n *seccomp.Call) seccomp.Answer {
	tid := int(n.TID)
	name, err := seccomp.Path(tid, n.Args[1])
	if err != nil {
		return seccomp.Fail(err)
	}
	if name == "" {
		return seccomp.Fail(unix.ENOENT)
	}
	a := attributeCall{tid: tid, dir: unix.AT_FDCWD, follow: n.Args[2]&unix.IN_DONT_FOLLOW == 0}
	fd, err := m.open(&a, name)
	if err != nil {
		return seccomp.Fail(err)
	}
	defer unix.Close(fd)
	self := "/proc/self/fd/" + strconv.Itoa(fd)
	where, err := os.Readlink(self)
	if err != nil {
		return seccomp.Fail(unix.EACCES)
	}
	queue, err := takeDescriptor(tid, int(int32(n.Args[0])))
	if err != nil {
		return seccomp.Fail(err)
	}
	defer unix.Close(queue)
	if !m.listener.Valid(n) {
		return seccomp.Fail(unix.EINTR)
	}
	if g := m.grants.Load(); where[0] == '/' && !g.canWrite(where) && g.hides(where) {
		return seccomp.Fail(unix.EACCES)
	}
	number := 0
	err = m.asCaller(-1, func() (err error) {
		// The link of /proc leads to the file itself, be it a link too.
		number, err = unix.InotifyAddWatch(queue, self, uint32(n.Args[2])&^unix.IN_DONT_FOLLOW)
		return err
	})
	if err != nil {
		return seccomp.Fail(err)
	}
	return seccomp.Return(number)
}
