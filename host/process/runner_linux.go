package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/procfs"
)

const (
	// handshake is how long a new supervisor may take to say it is ready.
	handshake = 10 * time.Second
	// runsEach is after how many runs a supervisor is replaced, so that
	// whatever may pile up in one process does not.
	runsEach = 1000
	// linger is how long more than Ready are kept after a busy time. One
	// costs a few megabytes, starting one some milliseconds.
	linger = 30 * time.Second
)

// starter keeps supervisors. They are shared by all tools and callers, since
// nothing of a run survives in one: every process of the run is dead and
// reaped before it is reported, the thread that was confined and stood in the
// run's folder has ended, its descriptors are closed, and the supervisor's
// memory, where an environment may still lie, can be read by no child
// (PR_SET_DUMPABLE, and Landlock's own rule on tracing).
type starter struct {
	// mu guards what follows.
	mu sync.Mutex
	// runs are under way, up to Config.Max.
	runs int
	// idle hold no run and wait for one; the last is taken first. unused is
	// how few there were since trimming began, trimming the timer for it, nil
	// when no more than Ready are idle.
	idle     []*supervisor
	unused   int
	trimming *time.Timer
	// waiting are runs that found none idle, the longest first. Each channel
	// takes one grant without blocking.
	waiting []chan grant
	// all are those that live or are being started, which is how many.
	all      map[*supervisor]struct{}
	starting int
	closed   bool
	// filters is how many system call filters this process is under, namespace
	// its process namespace.
	filters   int
	namespace procfs.Namespace
	// gone counts the goroutines that start and bury supervisors.
	gone sync.WaitGroup
}

// grant is a supervisor for a run, or why there is none.
type grant struct {
	s   *supervisor
	err error
}

// supervisor is the daemon's end of one.
type supervisor struct {
	cmd *exec.Cmd
	// conn is for runs and reports, orders for what becomes of a run.
	conn, orders *os.File
	// reports are what it sends; closed when it is gone.
	reports chan reportFrame
	// runs is owned by the run that holds the supervisor.
	runs int
	// busy says that it may hold a run, asked that it was told to go. Both
	// are guarded by starter.mu.
	busy, asked bool
	// send guards writes to orders.
	send sync.Mutex
	// namespaces says that it is started in namespaces of its own. Fixed.
	namespaces bool
}

// child is one run under way: the nth of s.
type child struct {
	done chan outcome
	s    *supervisor
	n    int
}

type outcome struct {
	exit Exit
	err  error
}

func (r *Runner) open() {
	r.all = map[*supervisor]struct{}{}
	if self, err := procfs.RestrictionsOf(os.Getpid()); err == nil {
		r.filters = self.Filters
	}
	r.namespace, _ = procfs.NamespaceOf("self") // zero: it is not known
	r.status = confine.Confinement()
	r.status.Limit(r.config.Most)
	r.tryNamespaces()
	if err := r.mayChangeUser(); err != nil {
		r.status.UsersReason = "a tool cannot have a user of its own: " + err.Error()
	} else {
		r.status.Users = true
	}
	if !r.status.Namespaces {
		// Orphans of a supervisor that was killed come to this process, which
		// kills them, and not to init. In a process namespace there are none:
		// the kernel ends all that is in it with its first process.
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fillLocked()
}

func (r *Runner) close() {
	r.mu.Lock()
	r.closed = true
	r.idle = nil
	if r.trimming != nil {
		r.trimming.Stop()
	}
	for s := range r.all {
		s.goLocked()
	}
	for _, w := range r.waiting {
		w <- grant{err: errStopping()}
	}
	r.waiting = nil
	r.mu.Unlock()
	r.gone.Wait()
}

func errStopping() error {
	return fault.Errorf(fault.Aborted, "toold is stopping: try again when it runs")
}

// goLocked makes s go. One that holds a run kills it first.
func (s *supervisor) goLocked() {
	s.asked = true
	if s.conn == nil {
		return // startSupervisor calls again when it has come that far
	}
	if !s.busy {
		s.cmd.Process.Kill()
	}
	s.hangUp()
}

// hangUp has s end, after the run that it holds, which it kills.
func (s *supervisor) hangUp() {
	s.conn.Close()
	s.orders.Close()
}

// tryNamespaces starts the first supervisor in namespaces of its own, which not
// every system lets a user make, and every sandbox in its own way.
func (r *Runner) tryNamespaces() {
	if !r.status.Filter {
		r.status.NamespacesReason = "without judged system calls a tool would leave its namespaces"
		return
	}
	err := mayNamespace()
	if most := r.config.Most; most != 0 && most < confine.Namespaces {
		err = fmt.Errorf("no more than %q is wanted", most)
	}
	if err == nil {
		r.status.Namespaces = true
		s := r.newSupervisorLocked()
		if err = r.startSupervisor(s); err == nil {
			r.mu.Lock()
			r.keepLocked(s)
			r.mu.Unlock()
			r.status.NamespacesReason = ""
			return
		}
	}
	r.status.Namespaces = false
	r.status.NamespacesReason = "namespaces cannot be made here: " + err.Error()
}

// mayChangeUser says why runs cannot have users of their own. The folders that
// lead to a tool's HOME are closed to them but in a view of files.
func (r *Runner) mayChangeUser() error {
	if !r.status.Namespaces {
		return errors.New("that takes namespaces, and " + r.status.NamespacesReason)
	}
	for _, c := range []uint{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL, unix.CAP_CHOWN, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE} {
		if !hasCapability(c) {
			return errors.New("toold lacks the capabilities for it (CAP_SETUID, CAP_SETGID, CAP_KILL, CAP_CHOWN, CAP_SYS_ADMIN, CAP_SYS_PTRACE): run it as root")
		}
	}
	return nil
}

// newSupervisorLocked adds a supervisor that is to be started.
func (r *Runner) newSupervisorLocked() *supervisor {
	s := &supervisor{reports: make(chan reportFrame, 1), namespaces: r.status.Namespaces}
	r.all[s] = struct{}{}
	r.gone.Add(1) // until it is buried, or was not started
	return s
}

// startPlain starts a supervisor outside of namespaces, for one unconfined run.
func (r *Runner) startPlain() (*supervisor, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, errStopping()
	}
	s := r.newSupervisorLocked()
	s.namespaces, s.busy, s.runs = false, true, runsEach-1
	r.mu.Unlock()
	return s, r.startSupervisor(s)
}

// fillLocked starts a supervisor for each run that waits, and one after the
// other until Ready are there.
func (r *Runner) fillLocked() {
	for !r.closed && (r.starting < len(r.waiting) || r.starting == 0 && len(r.all) < r.config.Ready) {
		s := r.newSupervisorLocked()
		r.starting++
		go func() {
			err := r.startSupervisor(s)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.starting--
			if err == nil {
				r.keepLocked(s)
				r.fillLocked()
				return
			}
			if !r.closed { // Close ends those that are still starting
				r.log.Error("start a supervisor", "error", err)
			}
			if len(r.waiting) > 0 {
				r.waiting[0] <- grant{err: err}
				r.waiting = r.waiting[1:]
			}
			if len(r.waiting) > 0 {
				r.fillLocked()
			}
		}()
	}
}

// keepLocked gives a supervisor that holds no run to one that waits, or keeps
// it.
func (r *Runner) keepLocked(s *supervisor) {
	s.busy = false
	if _, alive := r.all[s]; !alive {
		return
	}
	switch {
	case r.closed || s.runs >= runsEach:
		s.goLocked()
	case len(r.waiting) > 0:
		s.busy = true
		r.waiting[0] <- grant{s: s}
		r.waiting = r.waiting[1:]
	default:
		r.idle = append(r.idle, s)
		if len(r.idle) > r.config.Ready && r.trimming == nil {
			r.unused = len(r.idle)
			r.trimming = time.AfterFunc(linger, r.trim)
		}
	}
}

// trim ends those beyond Ready that nobody took since the last time.
func (r *Runner) trim() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	n := max(min(r.unused, len(r.idle)-r.config.Ready), 0)
	for _, s := range r.idle[:n] {
		s.goLocked()
	}
	r.idle = slices.Delete(r.idle, 0, n)
	r.unused, r.trimming = len(r.idle), nil
	if len(r.idle) > r.config.Ready {
		r.trimming = time.AfterFunc(linger, r.trim)
	}
}

// take gives a supervisor that holds no run.
func (r *Runner) take(ctx context.Context) (*supervisor, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, errStopping()
	}
	if n := len(r.idle); n > 0 {
		s := r.idle[n-1]
		r.idle = r.idle[:n-1]
		r.unused = min(r.unused, n-1)
		s.busy = true
		r.mu.Unlock()
		return s, nil
	}
	w := make(chan grant, 1)
	r.waiting = append(r.waiting, w)
	r.fillLocked()
	r.mu.Unlock()
	select {
	case g := <-w:
		return g.s, g.err
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.waiting, w); i >= 0 {
		r.waiting = slices.Delete(r.waiting, i, i+1)
	} else if g := <-w; g.s != nil {
		r.keepLocked(g.s)
	}
	return nil, ctx.Err()
}

// startSupervisor starts s and waits until it is ready.
func (r *Runner) startSupervisor(s *supervisor) error {
	drop := func(err error) error {
		r.mu.Lock()
		delete(r.all, s)
		r.mu.Unlock()
		r.gone.Done()
		return fault.Errorf(fault.Overloaded, "start a supervisor for a binary: %w: this host has no room now; try again", err)
	}
	conn, theirs, err := controlPair()
	if err != nil {
		return drop(err)
	}
	defer theirs.Close()
	orders, theirOrders, err := controlPair()
	if err != nil {
		conn.Close()
		return drop(err)
	}
	defer theirOrders.Close()
	s.cmd = &exec.Cmd{
		Path: "/proc/self/exe", // this program, also after it was replaced on disk
		Args: []string{filepath.Base(os.Args[0]), verb},
		// The thread that starts a child holds one processor of the runtime
		// while the monitor, which it waits for, needs another. Two threads
		// wait in the kernel most of the time; as long as none is idle beside
		// theirs, the runtime looks at them every few microseconds, to take
		// one away. For GOGC see waste.
		Env: []string{"GOMAXPROCS=3", "GOGC=off"},
		Dir: "/",
		// What it cannot report: a crash of its own.
		Stderr:     os.Stderr,
		ExtraFiles: []*os.File{theirs, theirOrders},
		// A session of its own: no terminal's signals and none to open, and
		// a name for all that is left when the supervisor itself is killed.
		// Where an unconfined child has stopped it, the end of this process
		// wakes it, so that it finds its socket closed.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGCONT},
	}
	if r.config.Held != nil {
		s.cmd.ExtraFiles = append(s.cmd.ExtraFiles, r.config.Held)
	}
	if s.namespaces {
		namespaceAttr(s.cmd.SysProcAttr)
		s.cmd.Env = append(s.cmd.Env, namespacesEnv+"=1")
	}
	if r.status.Filter {
		s.cmd.Env = append(s.cmd.Env, filterEnv+"=1")
	}
	if err := s.cmd.Start(); err != nil {
		conn.Close()
		orders.Close()
		return drop(err)
	}
	// From here on read and bury own its end.
	r.mu.Lock()
	s.conn, s.orders = conn, orders
	if r.closed {
		s.goLocked()
	}
	r.mu.Unlock()
	conn.SetReadDeadline(time.Now().Add(handshake))
	go r.read(s)
	first, ok := <-s.reports
	if ok && first.Fail != nil {
		s.hangUp()
		return errors.New(first.Fail.Text)
	}
	if !ok || !first.Ready {
		s.hangUp()
		return fault.Errorf(fault.Internal, "start a supervisor for a binary: it ended or did not answer; this program's main must begin with process.Supervise: see toold's log")
	}
	return nil
}

// read passes on what s reports until s is gone, then buries it.
func (r *Runner) read(s *supervisor) {
	defer r.gone.Done()
	from := bufio.NewReaderSize(s.conn, 1<<10)
	failed := false
	for first := true; ; first = false {
		var in reportFrame
		if err := decodeFrame(from, &in); err != nil {
			break
		}
		if first {
			s.conn.SetReadDeadline(time.Time{})
			failed = in.Fail != nil // it says why, runs nothing, and ends by itself
		}
		s.reports <- in
	}
	s.hangUp()

	r.mu.Lock()
	asked := s.asked || failed
	r.idle = slices.DeleteFunc(r.idle, func(other *supervisor) bool { return other == s })
	r.mu.Unlock()

	r.bury(s, asked)
	r.mu.Lock()
	delete(r.all, s)
	r.fillLocked()
	r.mu.Unlock()
	close(s.reports)
}

// bury waits for the end of s, whose socket is closed. One that was asked to
// go kills its run first. One that was not has been killed itself: its child
// dies by its parent death signal, and the rest of that run's session here.
func (r *Runner) bury(s *supervisor, asked bool) {
	var forced atomic.Bool
	if asked {
		late := time.AfterFunc(2*patience, func() {
			forced.Store(true)
			s.cmd.Process.Kill()
		})
		defer late.Stop()
	} else {
		forced.Store(true)
		s.cmd.Process.Kill()
	}
	// Its number is its session's. As long as it is not reaped no other
	// process can have it.
	pid := s.cmd.Process.Pid
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	left := false
	if forced.Load() {
		left = killSession(pid, time.Now().Add(patience))
		left = r.killOrphans(time.Now().Add(patience)) || left
	}
	err := s.cmd.Wait()
	if forced.Load() {
		r.log.Error("a supervisor ended that should not have", "pid", pid, "end", fmt.Sprint(err), "processes_left", left)
	}
}

// killSession kills every process of session sid but its leader, and reports
// whether some are alive at deadline.
func killSession(sid int, deadline time.Time) (left bool) {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		left = false
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return false
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || pid == sid {
				continue
			}
			b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
			if err != nil {
				continue
			}
			// pid (name) state ppid pgrp session; a name may hold anything.
			after := string(b[strings.LastIndexByte(string(b), ')')+1:])
			f := strings.Fields(after)
			if len(f) > 3 && f[3] == strconv.Itoa(sid) && f[0] != "Z" && f[0] != "X" {
				left = true
				unix.Kill(pid, unix.SIGKILL)
				unix.Wait4(pid, nil, unix.WNOHANG, nil) // where it is an orphan
			}
		}
		if !left || time.Now().After(deadline) {
			return left
		}
		time.Sleep(wait)
	}
}

// start begins c in dir with the standard streams files. The child's done
// gets its outcome when no process of it is alive.
func (r *Runner) start(ctx context.Context, c *Command, dir *os.File, files [3]*os.File) (*child, error) {
	if err := admits(r.status, c); err != nil {
		return nil, err
	}
	sp := &spec{Path: c.Path, Dir: c.Dir, Terminal: c.Terminal != nil}
	sp.Jobs = sp.Terminal && c.Terminal.Stopped != nil
	sp.Args, sp.Env = confine.Join(c.Args), confine.Join(c.Env)
	if !c.Confine.Off {
		sp.Confine, sp.Write, sp.Exec, sp.Hide = true, confine.Join(c.Confine.Write), confine.Join(c.Confine.Exec), confine.Join(c.Confine.Hide)
		sp.Read = confine.Join(c.Confine.Read)
		sp.ABI, sp.User = r.status.ABI, c.Confine.User
		if len(c.Confine.Interpreters) > 0 {
			var err error
			if sp.Interpreters, err = json.Marshal(c.Confine.Interpreters); err != nil {
				return nil, err
			}
		}
		sp.Show, sp.Sockets = confine.Join(c.Confine.Show), confine.Join(c.Confine.Sockets)
		sp.Offline = r.status.Offline
		sp.Filter, sp.Lines, sp.AnyLine = r.status.Filter, confine.Join(c.Confine.ShellLines), c.Confine.ShellLines == nil
	}
	r.mu.Lock()
	if r.runs >= r.config.Max {
		r.mu.Unlock()
		return nil, fault.Errorf(fault.Overloaded, "%d binaries run already, and that is the limit: try again", r.config.Max)
	}
	r.runs++
	r.mu.Unlock()
	over := func() {
		r.mu.Lock()
		r.runs--
		r.mu.Unlock()
	}
	fds := []int{int(files[0].Fd()), int(files[1].Fd()), int(files[2].Fd()), int(dir.Fd())}
	if sp.Network = sp.Filter && c.Confine.Network != nil; sp.Network {
		fds = append(fds, int(c.Confine.Network.Fd()))
	}
	for try := 0; ; try++ {
		take := r.take
		if c.Confine.Off && r.status.Namespaces {
			take = func(context.Context) (*supervisor, error) { return r.startPlain() }
		}
		s, err := take(ctx)
		if err != nil {
			over()
			if ctx.Err() != nil {
				err = c.ended(ctx)
			}
			return nil, err
		}
		s.runs++
		sp.N = s.runs
		if err := s.begin(sp, fds); err != nil {
			// It was killed while it was idle, and did not get the run
			// whole: nothing ran.
			s.hangUp()
			if try < r.config.Ready {
				continue
			}
			over()
			return nil, fault.Errorf(fault.Internal, "run %s: supervisors end as soon as they are there: %w: see toold's log", c.Path, err)
		}
		ch := &child{s: s, n: s.runs, done: make(chan outcome, 1)}
		go func() {
			o := r.await(c, s)
			over()
			ch.done <- o
		}()
		return ch, nil
	}
}

// admits refuses c where it demands more than s gives.
func admits(s confine.Status, c *Command) error {
	level := s.Level()
	if c.Confine.User != nil {
		if !s.Users {
			return &Error{Kind: NoUser, Detail: fmt.Sprintf("run %s as user %d: %s", c.Path, c.Confine.User.UID, s.UsersReason)}
		}
		level = confine.User
	}
	if c.Confine.Off || level >= c.Confine.Least {
		return nil
	}
	var why []string
	for _, reason := range []string{s.Reason, s.FilterReason, s.NamespacesReason} {
		if reason != "" {
			why = append(why, reason)
		}
	}
	return fault.Errorf(fault.ToolBroken, "run %s: the confinement %q is demanded, and this system gives %q (%s): run toold on Linux 6.2 or later and outside of a sandbox that forbids it, or demand less in toold.json", c.Path, c.Confine.Least, level, strings.Join(append(why, s.Lost...), "; "))
}

// await waits for the end of the run in s.
func (r *Runner) await(c *Command, s *supervisor) outcome {
	in, ok := <-s.reports
	for ; ok && (in.Stopped || in.Begun); in, ok = <-s.reports {
		switch {
		case c.Terminal == nil:
		case in.Begun:
			c.Terminal.begun()
		case c.Terminal.Stopped != nil:
			c.Terminal.stopped()
		}
	}
	if !ok {
		r.mu.Lock()
		closed := r.closed
		r.mu.Unlock()
		if closed {
			return outcome{err: fault.Errorf(fault.Aborted, "%s was stopped because toold is stopping", filepath.Base(c.Path))}
		}
		return outcome{err: fault.Errorf(fault.Internal, "%s was stopped: the supervisor of its processes was killed: see toold's log", filepath.Base(c.Path))}
	}
	if e := in.Exit; e != nil && e.Left {
		r.log.Error("processes of a run could not be killed", "binary", c.Path, "supervisor", s.cmd.Process.Pid)
		r.mu.Lock()
		s.goLocked()
		r.mu.Unlock()
	} else {
		r.mu.Lock()
		r.keepLocked(s)
		r.mu.Unlock()
	}
	switch {
	case in.Exit != nil:
		e := in.Exit
		return outcome{exit: Exit{Code: e.Code, Signal: syscall.Signal(e.Signal), Programs: e.Programs, Executed: e.Executed, Refused: e.Refused}}
	case in.Fail != nil && in.Fail.Step == confine.StepExec && in.Fail.Errno != 0:
		return outcome{err: c.cannotRun(syscall.Errno(in.Fail.Errno))}
	case in.Fail != nil:
		return outcome{err: fault.Errorf(fault.ToolBroken, "run %s: %s: %s", c.Path, in.Fail.Step, in.Fail.Text)}
	}
	return outcome{err: fault.Errorf(fault.Internal, "run %s: its supervisor answered what it should not", c.Path)}
}

// controlPair is a socket of the daemon's, and a supervisor's end of it.
func controlPair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs = os.NewFile(uintptr(pair[1]), "control")
	if err := unix.SetNonblock(pair[0], true); err != nil {
		unix.Close(pair[0])
		theirs.Close()
		return nil, nil, err
	}
	return os.NewFile(uintptr(pair[0]), "control"), theirs, nil
}

// begin sends the run sp, with its descriptors.
func (s *supervisor) begin(sp *spec, fds []int) error {
	frame, err := encodeSpec(sp)
	if err != nil {
		return err
	}
	rights := unix.UnixRights(fds...)
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		for len(frame) > 0 {
			n, err := unix.SendmsgN(int(fd), frame, rights, nil, unix.MSG_NOSIGNAL)
			if err == unix.EINTR {
				continue
			}
			if err == unix.EAGAIN {
				return false
			}
			if err != nil {
				sent = err
				return true
			}
			frame, rights = frame[n:], nil
		}
		return true
	})
	return errors.Join(err, sent)
}

// order sends o about c. When it cannot be sent there is no supervisor, and so
// no run.
func (c *child) order(o *order) {
	o.N = c.n
	if frame, err := encodeFrame(o); err == nil {
		c.s.send.Lock()
		defer c.s.send.Unlock()
		c.s.orders.Write(frame)
	}
}

func (c *child) signal(n syscall.Signal) { c.order(&order{Signal: int(n)}) }
func (c *child) stopping()               { c.order(&order{Stopping: true}) }
func (c *child) terminate()              { c.wake(); c.order(&order{Terminate: true}) }
func (c *child) kill()                   { c.wake(); c.order(&order{Kill: true}) }

// abandon kills the supervisor, which did not see to it that the run ended.
func (c *child) abandon() { c.s.cmd.Process.Kill() }

// wake lets the supervisor go on where an unconfined child has stopped it.
func (c *child) wake() { c.s.cmd.Process.Signal(syscall.SIGCONT) }
