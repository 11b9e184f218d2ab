package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/procfs"
	"github.com/toold/toold/host/seccomp"
)

// verb is the hidden argument that makes this program a supervisor.
const verb = "supervise-processes"

// The supervisor's ends of its sockets.
const (
	controlFD = 3 // runs and reports
	orderFD   = 4 // what becomes of a run
)

// patience is how long a supervisor tries to kill a tree before it reports
// that it could not. SIGKILL takes at once but for a process that waits in
// the kernel, for a file server that is away for example.
const patience = 2 * time.Second

// IsSupervisor reports whether this process was started as a supervisor.
func IsSupervisor() bool { return len(os.Args) == 2 && os.Args[1] == verb }

// Supervise runs a supervisor. It serves one run after the other until its daemon is gone or
// closes the socket; then it kills what runs and returns the exit code of the process.
func Supervise() int {
	s := &service{over: make(chan int, 2)}
	s.begun.L = &s.mu
	if os.Getenv(namespacesEnv) != "" {
		var err error
		if s.view, err = confine.NewView(); err != nil {
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
	// control and launchpad are of the launcher that is to run the next run or
	// runs one; there is one at a time.
	control control
	launchpad
	// orders is of listen.
	orders *os.File
	// over gets the exit code of the process when no more is ordered.
	over chan int

	// mu guards what follows: the run under way.
	mu sync.Mutex
	// n is which run it is, and changes when its child exists or could not be
	// made, of which begun tells.
	n     int
	begun sync.Cond
	// pid is the child's, and its process group's. 0: none runs, or it was
	// reaped, and the number may be another's.
	pid int
	// stopping is until when freeStopping looks at the run; zero: it does not.
	stopping time.Time
	// freed says that it let a process of the run go on that was to be stopped.
	freed bool
	// idle is closed when the run has been reported; nil before the first.
	idle chan struct{}
	// ending has runs killed as they begin.
	ending bool
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
	for _, fd := range []int{controlFD, orderFD} {
		if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
			return errors.New("no control socket")
		}
	}
	// Waiting in the poller takes no thread: see startSupervisor.
	if err := unix.SetNonblock(orderFD, true); err != nil {
		return err
	}
	s.orders = os.NewFile(orderFD, "orders")
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
	s.rulesets = confine.NewRulesets()
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
	var g *seccomp.Guards
	if os.Getenv(filterEnv) != "" {
		g = &seccomp.Guards{Mappings: s.view == nil, Attributes: true}
	}
	if report(&reportFrame{Ready: true}) != nil {
		return 0
	}
	s.await(g)
	go s.listen()
	return <-s.over
}

// await lets a launcher with g read the next run.
func (s *service) await(g *seccomp.Guards) {
	s.onLauncher(g, func(l *launcher, err error) {
		if err != nil {
			l = nil // the run itself tries again, and says why it fails
		}
		s.attend(l)
	})
}

// attend reads the next run and runs it: on l, of the calling thread, if it suits, otherwise on
// a launcher that is made for it. Then another one attends.
func (s *service) attend(l *launcher) {
	// Nobody waits now.
	s.waste.leave()
	sp, fds, err := s.control.next()
	if err != nil {
		code := 0
		if err != io.EOF {
			fmt.Fprintf(os.Stderr, "toold: supervisor: read a run: %v\n", err)
			code = 1
		}
		s.over <- code
		return
	}
	r := &job{sp: sp, fds: fds, terminal: -1, idle: make(chan struct{})}
	s.mu.Lock()
	ending := s.ending
	s.idle = r.idle
	s.mu.Unlock()
	if ending {
		return
	}
	g := s.guardsOf(sp)
	if l.suits(g) {
		s.run(l, r)
		s.await(g)
	} else {
		s.onLauncher(g, func(l *launcher, err error) {
			if err != nil {
				s.fail(r, failed("install the system call filter", err))
			} else {
				s.run(l, r)
				defer l.close()
			}
			s.await(g)
		})
	}
	l.close()
}

// listen reads orders and carries them out.
func (s *service) listen() {
	from := bufio.NewReaderSize(s.orders, 1<<10)
	for {
		var o order
		err := decodeFrame(from, &o)
		if err != nil {
			code := 0
			if err != io.EOF {
				fmt.Fprintf(os.Stderr, "toold: supervisor: read an order: %v\n", err)
				code = 1
			}
			s.over <- code
			return
		}
		s.mu.Lock()
		for s.n < o.N {
			s.begun.Wait()
		}
		now := s.n == o.N
		s.mu.Unlock()
		switch {
		case !now: // it is over
		case o.Kill:
			s.killChild()
		case o.Terminate:
			s.terminate()
		case o.Stopping:
			s.lookStopping(o.N)
		case o.Signal > 0:
			if n := unix.Signal(o.Signal); n == unix.SIGTSTP || n == unix.SIGTTIN || n == unix.SIGTTOU {
				s.lookStopping(o.N)
			}
			s.mu.Lock()
			if s.pid != 0 {
				unix.Kill(-s.pid, unix.Signal(o.Signal))
			}
			s.mu.Unlock()
		}
	}
}

// end kills what runs and waits until it was killed.
func (s *service) end() {
	s.mu.Lock()
	s.ending = true
	idle := s.idle
	s.mu.Unlock()
	s.killChild()
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

// stopPatience is how long freeStopping looks at a run that was told to stop.
const stopPatience = 10 * time.Second

// lookStopping starts freeStopping for the run n.
func (s *service) lookStopping(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n != n || s.pid == 0 {
		return
	}
	if s.stopping.IsZero() {
		go s.freeStopping(n)
	}
	s.stopping = time.Now().Add(stopPatience)
}

// freeStopping lets the run n be stopped. A process in vfork waits in the kernel for
// its child's execve and is stopped only after it. Where the child was stopped first, neither
// gets anywhere, and nobody is told. So the child is continued; reap stops it again as soon as
// its parent is stopped. This ends then, or after stopPatience: a run may catch the signal.
func (s *service) freeStopping(n int) {
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		time.Sleep(wait)
		s.mu.Lock()
		if s.n != n || s.pid == 0 || s.stopping.IsZero() {
			s.mu.Unlock()
			return
		}
		if time.Now().After(s.stopping) {
			s.stopping = time.Time{}
			s.mu.Unlock()
			return
		}
		for _, pid := range procfs.StoppedInVfork(s.pid) {
			// Held by its descriptor, it is still the child that was found, or none.
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				if parent, err := procfs.Parent(pid); err == nil && parent == s.pid {
					s.freed = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0) == nil || s.freed
				}
				unix.Close(fd)
			}
		}
		s.mu.Unlock()
		s.waste.leave()
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
	for _, pid := range procfs.Descendants() {
		unix.Kill(pid, unix.SIGTERM)
		unix.Kill(pid, unix.SIGCONT) // so that one that is stopped hears of it
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
		n, err := unix.SendmsgN(controlFD, frame, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		frame = frame[n:]
	}
	return nil
}

// begin records that the child of r is pid, or, with 0, that there will be none.
func (s *service) begin(r *job, pid int) {
	s.mu.Lock()
	s.n, s.pid, s.stopping, s.freed = r.sp.N, pid, time.Time{}, false
	ending := s.ending
	s.begun.Broadcast()
	s.mu.Unlock()
	if ending {
		s.killChild()
	}
}

// fail reports that r did not begin.
func (s *service) fail(r *job, why *failReport) {
	s.begin(r, 0)
	report(&reportFrame{Fail: why})
	close(r.idle)
}

// run runs r on l's thread, which is the calling one and is of no use for
// another run.
func (s *service) run(l *launcher, r *job) {
	if s.view != nil && r.sp.Confine {
		if err := s.view.Prepare(s.bounds(r.sp)); err != nil {
			r.close()
			s.fail(r, failed("set up the view of files", err))
			return
		}
	}
	pid, scoped, fail := s.launch(l, r)
	if fail != nil {
		r.leaveTerminal()
		s.fail(r, fail)
		return
	}
	if r.sp.Terminal {
		report(&reportFrame{Begun: true})
	}
	s.begin(r, pid)
	e := s.reap(r.sp, pid, scoped)
	r.leaveTerminal()
	l.tell(e)
	report(&reportFrame{Exit: e})
	close(r.idle)
}

// reap waits for the child pid of sp, then kills all that is left of its tree, and
// returns how the child ended. It runs on the thread that started the child.
func (s *service) reap(sp *spec, pid int, scoped bool) *exitReport {
	var status unix.WaitStatus
	for {
		// Looked at without reaping first: once it is reaped its number may
		// be another's, and no signal may be sent to it.
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil); err == unix.EINTR {
			continue
		}
		s.mu.Lock()
		got, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED, nil)
		stopped := err == nil && got == pid && status.Stopped()
		if err == unix.ECHILD || got == pid && !stopped {
			s.pid = 0
			s.mu.Unlock()
			break
		}
		if stopped {
			if s.stopping = (time.Time{}); s.freed && sp.Jobs {
				// One that is stopped already forgets it when it is continued.
				unix.Kill(-pid, status.StopSignal())
			}
			s.freed = false
		}
		s.mu.Unlock()
		switch {
		case !stopped || !sp.Terminal:
		case sp.Jobs:
			report(&reportFrame{Stopped: true})
		default: // nobody would continue it
			unix.Kill(-pid, unix.SIGCONT)
		}
	}
	e := &exitReport{Code: status.ExitStatus()}
	if status.Signaled() {
		e.Signal, e.Code = int(status.Signal()), 128+int(status.Signal())
	}
	e.Left = !killTree(scoped, time.Now().Add(patience))
	return e
}

// control reads the control socket, and keeps the descriptors that are passed.
type control struct {
	fds []int
	oob [128]byte
	in  *bufio.Reader
}

func (c *control) next() (sp *spec, fds [5]int, err error) {
	if c.in == nil {
		c.in = bufio.NewReaderSize(c, 32<<10)
	}
	if sp, err = decodeSpec(c.in); err != nil {
		return nil, fds, err
	}
	want := 4
	if fds[4] = -1; sp.Network {
		want++
	}
	if len(c.fds) != want {
		return nil, fds, fmt.Errorf("%d descriptors came with it, not %d", len(c.fds), want)
	}
	copy(fds[:], c.fds)
	c.fds = c.fds[:0]
	return sp, fds, nil
}

func (c *control) Read(p []byte) (int, error) {
	for {
		n, oobn, _, _, err := unix.Recvmsg(controlFD, p, c.oob[:], unix.MSG_CMSG_CLOEXEC)
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
			messages, err := unix.ParseSocketControlMessage(c.oob[:oobn])
			if err != nil {
				return 0, err
			}
			for i := range messages {
				fds, err := unix.ParseUnixRights(&messages[i])
				if err != nil {
					return 0, err
				}
				c.fds = append(c.fds, fds...)
			}
		}
		return n, nil
	}
}
