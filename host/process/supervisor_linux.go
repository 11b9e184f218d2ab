package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// verb is the hidden argument that makes this program a supervisor.
const verb = "supervise-processes"

// controlFD is the supervisor's end of the control socket.
const controlFD = 3

// patience is how long a supervisor tries to kill a tree before it reports
// that it could not. SIGKILL takes at once but for a process that waits in
// the kernel, for a file server that is away for example.
const patience = 2 * time.Second

// IsSupervisor reports whether this process was started as a supervisor.
func IsSupervisor() bool { return len(os.Args) == 2 && os.Args[1] == verb }

// Supervise is a supervisor's whole life. It serves one run after the other,
// until its daemon is gone or closes the socket; then it kills what runs and
// returns the exit code of the process.
func Supervise() int {
	s := &service{over: make(chan int, 1)}
	if os.Getenv(namespacesEnv) != "" {
		var err error
		if s.view, err = newView(); err != nil {
			report(&reportFrame{Fail: &failReport{Text: err.Error()}})
			return 1
		}
	}
	if err := s.setUp(); err != nil {
		fmt.Fprintf(os.Stderr, "toold: %s is internal, toold starts it by itself: %v\n", verb, err)
		return 64
	}
	return s.serve()
}

// service is the state of a supervisor.
type service struct {
	// orders, rulesets and view are of the goroutine in attend; there is one at
	// a time. view is nil outside of namespaces.
	orders   orders
	rulesets rulesets
	view     *view
	// over gets the exit code of the process when there are no more orders.
	over  chan int
	waste waste

	// mu guards what follows: the run under way.
	mu sync.Mutex
	// pid is the child's, and its process group's. 0: none runs, or it was
	// reaped, and the number may be another's.
	pid int
	// idle is closed when the run has been reported; nil before the first.
	idle chan struct{}
}

func (s *service) setUp() error {
	// What the daemon inherited itself without close-on-exec, from a shell
	// or from systemd, must not reach a child. So must the control socket.
	if err := unix.CloseRange(controlFD, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		for _, e := range entries {
			if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= controlFD {
				unix.CloseOnExec(fd)
			}
		}
	}
	if kind, err := unix.GetsockoptInt(controlFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return errors.New("no control socket")
	}
	// Orphans of a run come to this process, not to init.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	// A child of the same user may not trace this process nor read its
	// memory, where the environment of an earlier run may still lie.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("refuse tracing: %w", err)
	}
	// A core file would be written where the tool may not write.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("refuse core files: %w", err)
	}
	s.rulesets.devices = openDevices()
	// The runtime opens its poller with the first file: now, and not in some
	// run, so that descriptors can be counted.
	if f, err := os.Open("/proc/self/stat"); err == nil {
		f.Close()
	}
	// Signals that a shell or service manager sends to all it started are
	// the daemon's business: it lets calls finish. Catching them also gives
	// children the default action where this process inherited an ignored
	// one (`toold &` in a script ignores INT, and a child would as well).
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM,
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCONT)
	return nil
}

func (s *service) serve() int {
	defer s.end()
	var g *guards
	if os.Getenv(filterEnv) != "" {
		g = &guards{mappings: s.view == nil, attributes: true}
	}
	if report(&reportFrame{Ready: true}) != nil {
		return 0
	}
	s.await(g)
	return <-s.over
}

// await has the next orders read by a launcher with g.
func (s *service) await(g *guards) {
	s.onLauncher(g, func(l *launcher, err error) {
		if err != nil {
			go s.attend(nil) // each run tries again, and says why it fails
			return
		}
		s.attend(l)
	})
}

// attend reads orders and carries them out, until one is a run that suits l:
// then that is l's, and another launcher attends. l is nil, or of the calling
// thread.
func (s *service) attend(l *launcher) {
	// Beside the child of the run before, which is no time that anybody waits.
	s.waste.leave(s.orders.read)
	s.orders.read = 0
	for {
		o, err := s.orders.next()
		if err == io.EOF {
			s.over <- 0
			return
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "toold: supervisor: read an order: %v\n", err)
			s.over <- 1
			return
		}
		switch {
		case o.Run != nil:
			r := &job{sp: o.Run, idle: make(chan struct{})}
			if r.fds, err = s.orders.descriptors(); err != nil {
				fmt.Fprintf(os.Stderr, "toold: supervisor: %v\n", err)
				s.over <- 1
				return
			}
			s.mu.Lock()
			s.idle = r.idle
			s.mu.Unlock()
			g := s.guardsOf(r.sp)
			if l.suits(g) {
				s.run(l, r, func() { s.await(g) })
				return
			}
			started := make(chan struct{})
			s.onLauncher(g, func(l *launcher, err error) {
				if err != nil {
					r.fail("install the system call filter", err)
					close(started)
					return
				}
				s.run(l, r, func() { close(started) })
			})
			<-started
			if g != nil { // the next one may be of the same kind
				s.await(g)
				return
			}
		case o.Kill:
			s.killChild()
		case o.Terminate:
			s.terminate()
		case o.Signal > 0:
			s.mu.Lock()
			if s.pid != 0 {
				unix.Kill(-s.pid, unix.Signal(o.Signal))
			}
			s.mu.Unlock()
		}
	}
}

const (
	// collectAt is how much garbage is collected at a time.
	collectAt = 2 << 20
	// wasteOfRun and wasteOfAnswer are about how many bytes a run leaves,
	// without what was ordered, and an answer to a system call.
	wasteOfRun    = 32 << 10
	wasteOfAnswer = 1 << 10
)

// waste has garbage collected, now and then. The supervisor has no collector
// that runs by itself: one that waits for a thread which starts a child would
// wait for ever, as that thread waits for the monitor, which would be stopped.
type waste struct {
	// starting is held while a child is started, and while garbage is
	// collected.
	starting sync.Mutex
	bytes    atomic.Int64 // about how many may be collected
}

// leave notes n bytes of garbage, and collects them if there is enough and no
// child is being started.
func (w *waste) leave(n int) {
	if w.bytes.Add(int64(n)) > collectAt && w.starting.TryLock() {
		w.bytes.Store(0)
		runtime.GC()
		w.starting.Unlock()
	}
}

// end kills what runs and waits until it was killed.
func (s *service) end() {
	s.killChild()
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle != nil {
		<-idle // it gives up by itself after patience
	}
}

// killChild ends the child. The rest of the tree follows in reap.
func (s *service) killChild() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid != 0 {
		unix.Kill(-s.pid, unix.SIGKILL)
		unix.Kill(s.pid, unix.SIGKILL) // where it left its group
	}
}

func (s *service) terminate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid == 0 {
		return
	}
	// Not the group first and then the rest: a shell that was told twice
	// runs its trap twice.
	for _, pid := range descendants() {
		unix.Kill(pid, unix.SIGTERM)
	}
}

// report sends r. There is never more than one to send: the next run is not
// ordered before the last was reported.
func report(r *reportFrame) error {
	frame, err := encodeFrame(r)
	if err != nil {
		return err
	}
	for len(frame) > 0 {
		n, err := ignoringEINTR(func() (int, error) { return unix.SendmsgN(controlFD, frame, nil, nil, unix.MSG_NOSIGNAL) })
		if err != nil {
			return err
		}
		frame = frame[n:]
	}
	return nil
}

// job is a run that was ordered.
type job struct {
	sp  *spec
	fds [4]int
	// idle is closed when it has been reported.
	idle chan struct{}
}

// fail reports that r did not begin.
func (r *job) fail(step string, err error) {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	report(&reportFrame{Fail: failed(step, err)})
	close(r.idle)
}

// run runs r on l's thread, which is the calling one, and is done with that. It
// calls started when the child exists or could not be made: the orders that
// follow are about it.
func (s *service) run(l *launcher, r *job, started func()) {
	defer l.close()
	if s.view != nil && r.sp.Confine {
		if err := s.see(r.sp); err != nil {
			r.fail("set up the view of files", err)
			started()
			return
		}
	}
	defer close(r.idle)
	pid, scoped, fail := s.launch(l, r.sp, r.fds)
	if fail != nil {
		report(&reportFrame{Fail: fail})
		started()
		return
	}
	s.mu.Lock()
	s.pid = pid
	s.mu.Unlock()
	started()
	e := s.reap(pid, scoped)
	l.tell(e)
	report(&reportFrame{Exit: e})
}

// reap waits for the child pid, then kills all that is left of its tree, and
// returns how the child ended. It runs on the thread that started the child.
func (s *service) reap(pid int, scoped bool) *exitReport {
	var status unix.WaitStatus
	for {
		// Looked at without reaping first: once it is reaped its number may
		// be another's, and no signal may be sent to it.
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil); err == unix.EINTR {
			continue
		}
		s.mu.Lock()
		got, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.ECHILD || got == pid {
			s.pid = 0
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
	}
	e := &exitReport{Code: status.ExitStatus()}
	if status.Signaled() {
		e.Signal, e.Code = int(status.Signal()), 128+int(status.Signal())
	}
	e.Left = !killTree(scoped, time.Now().Add(patience))
	return e
}

// orders reads the control socket, and keeps the descriptors that come along.
type orders struct {
	fds []int
	oob [128]byte
	in  *bufio.Reader
	// read is about how many bytes reading left in memory.
	read int
}

func (o *orders) next() (next order, err error) {
	if o.in == nil {
		o.in = bufio.NewReaderSize(o, 32<<10)
	}
	err = decodeFrame(o.in, &next)
	if next.Run != nil {
		o.read += wasteOfRun + 8*(len(next.Run.Args)+len(next.Run.Env))
	}
	return next, err
}

// descriptors are those of the run that was read last.
func (o *orders) descriptors() (fds [4]int, err error) {
	if len(o.fds) != len(fds) {
		return fds, fmt.Errorf("%d descriptors came with a run, not %d", len(o.fds), len(fds))
	}
	copy(fds[:], o.fds)
	o.fds = o.fds[:0]
	return fds, nil
}

func (o *orders) Read(p []byte) (int, error) {
	for {
		n, oobn, _, _, err := unix.Recvmsg(controlFD, p, o.oob[:], unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, io.EOF
		}
		if oobn > 0 {
			messages, err := unix.ParseSocketControlMessage(o.oob[:oobn])
			if err != nil {
				return 0, err
			}
			for i := range messages {
				fds, err := unix.ParseUnixRights(&messages[i])
				if err != nil {
					return 0, err
				}
				o.fds = append(o.fds, fds...)
			}
		}
		return n, nil
	}
}
