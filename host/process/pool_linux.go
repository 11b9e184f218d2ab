package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
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

// pool keeps supervisors. They are shared by all tools and callers, since
// nothing of a run survives in one: every process of the run is dead and
// reaped before it is reported, the thread that was confined and stood in the
// run's folder has ended, its descriptors are closed, and the supervisor's
// memory, where an environment may still lie, can be read by no child
// (PR_SET_DUMPABLE, and Landlock's own rule on tracing).
type pool struct {
	// Fixed by starter.open. filters is how many system call filters this process is under.
	config  Config
	status  confine.Status
	filters int

	// mu guards what follows.
	mu sync.Mutex
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
	// gone counts the goroutines that start and bury supervisors.
	gone sync.WaitGroup
}

// grant is a supervisor for a run, or why there is none.
type grant struct {
	s   *supervisor
	err error
}

// supervisor is the daemon's side of a supervisor.
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

// close ends all supervisors, with their runs, and waits until they are gone.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.idle = nil
	if p.trimming != nil {
		p.trimming.Stop()
	}
	for s := range p.all {
		s.goLocked()
	}
	for _, w := range p.waiting {
		w <- grant{err: errStopping()}
	}
	p.waiting = nil
	p.mu.Unlock()
	p.gone.Wait()
}

func errStopping() error {
	return fault.Errorf(fault.Aborted, "toold is stopping: try again when it runs")
}

// goLocked makes s exit. If it has a run, it kills that first.
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

// hangUp makes s exit, after it has killed its run, if any.
func (s *supervisor) hangUp() {
	s.conn.Close()
	s.orders.Close()
}

// newSupervisorLocked adds a supervisor that is to be started.
func (p *pool) newSupervisorLocked() *supervisor {
	s := &supervisor{reports: make(chan reportFrame, 1), namespaces: p.status.Namespaces}
	p.all[s] = struct{}{}
	p.gone.Add(1) // until it is buried, or was not started
	return s
}

// startPlain starts a supervisor outside of namespaces, for one unconfined run.
func (p *pool) startPlain() (*supervisor, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errStopping()
	}
	s := p.newSupervisorLocked()
	s.namespaces, s.busy, s.runs = false, true, runsEach-1
	p.mu.Unlock()
	return s, p.startSupervisor(s)
}

// fillLocked starts a supervisor for each run that waits, and one after the
// other until Ready are there.
func (p *pool) fillLocked() {
	for !p.closed && (p.starting < len(p.waiting) || p.starting == 0 && len(p.all) < p.config.Ready) {
		s := p.newSupervisorLocked()
		p.starting++
		go func() {
			err := p.startSupervisor(s)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.starting--
			if err == nil {
				p.keepLocked(s)
				p.fillLocked()
				return
			}
			if !p.closed { // Close ends those that are still starting
				p.config.Logger.Error("start a supervisor", "error", err)
			}
			if len(p.waiting) > 0 {
				p.waiting[0] <- grant{err: err}
				p.waiting = p.waiting[1:]
			}
			if len(p.waiting) > 0 {
				p.fillLocked()
			}
		}()
	}
}

// keepLocked gives a supervisor without a run to a run that waits, or keeps it.
func (p *pool) keepLocked(s *supervisor) {
	s.busy = false
	if _, alive := p.all[s]; !alive {
		return
	}
	switch {
	case p.closed || s.runs >= runsEach:
		s.goLocked()
	case len(p.waiting) > 0:
		s.busy = true
		p.waiting[0] <- grant{s: s}
		p.waiting = p.waiting[1:]
	default:
		p.idle = append(p.idle, s)
		if len(p.idle) > p.config.Ready && p.trimming == nil {
			p.unused = len(p.idle)
			p.trimming = time.AfterFunc(linger, p.trim)
		}
	}
}

// trim ends supervisors beyond Ready that were not taken since the last time.
func (p *pool) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	n := max(min(p.unused, len(p.idle)-p.config.Ready), 0)
	for _, s := range p.idle[:n] {
		s.goLocked()
	}
	p.idle = slices.Delete(p.idle, 0, n)
	p.unused, p.trimming = len(p.idle), nil
	if len(p.idle) > p.config.Ready {
		p.trimming = time.AfterFunc(linger, p.trim)
	}
}

// take returns a supervisor without a run.
func (p *pool) take(ctx context.Context) (*supervisor, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errStopping()
	}
	if n := len(p.idle); n > 0 {
		s := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.unused = min(p.unused, n-1)
		s.busy = true
		p.mu.Unlock()
		return s, nil
	}
	w := make(chan grant, 1)
	p.waiting = append(p.waiting, w)
	p.fillLocked()
	p.mu.Unlock()
	select {
	case g := <-w:
		return g.s, g.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting, w); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	} else if g := <-w; g.s != nil {
		p.keepLocked(g.s)
	}
	return nil, ctx.Err()
}

// startSupervisor starts s and waits until it is ready.
func (p *pool) startSupervisor(s *supervisor) error {
	drop := func(err error) error {
		p.mu.Lock()
		delete(p.all, s)
		p.mu.Unlock()
		p.gone.Done()
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
	if p.config.Held != nil {
		s.cmd.ExtraFiles = append(s.cmd.ExtraFiles, p.config.Held)
	}
	if s.namespaces {
		namespaceAttr(s.cmd.SysProcAttr)
		s.cmd.Env = append(s.cmd.Env, namespacesEnv+"=1")
	}
	if p.status.Filter {
		s.cmd.Env = append(s.cmd.Env, filterEnv+"=1")
	}
	if err := s.cmd.Start(); err != nil {
		conn.Close()
		orders.Close()
		return drop(err)
	}
	// From here on read and bury own its end.
	p.mu.Lock()
	s.conn, s.orders = conn, orders
	if p.closed {
		s.goLocked()
	}
	p.mu.Unlock()
	conn.SetReadDeadline(time.Now().Add(handshake))
	go p.read(s)
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
func (p *pool) read(s *supervisor) {
	defer p.gone.Done()
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

	p.mu.Lock()
	asked := s.asked || failed
	p.idle = slices.DeleteFunc(p.idle, func(other *supervisor) bool { return other == s })
	p.mu.Unlock()

	p.bury(s, asked)
	p.mu.Lock()
	delete(p.all, s)
	p.fillLocked()
	p.mu.Unlock()
	close(s.reports)
}

// bury waits for the end of s, whose socket is closed. One that was asked to
// go kills its run first. One that was not has been killed itself: its child
// dies by its parent death signal, and the rest of that run's session here.
func (p *pool) bury(s *supervisor, asked bool) {
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
		left = killOrphans(p.filters, time.Now().Add(patience)) || left
	}
	err := s.cmd.Wait()
	if forced.Load() {
		p.config.Logger.Error("a supervisor ended that should not have", "pid", pid, "end", fmt.Sprint(err), "processes_left", left)
	}
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
