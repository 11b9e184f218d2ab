package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/procfs"
)

// starter runs children in supervisors.
type starter struct {
	pool
	// runs are under way, up to Config.Max; guarded by pool.mu.
	runs int
	// namespace is this process's. Fixed by open.
	namespace procfs.Namespace
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

// open finds out what this system gives runs, and begins to start supervisors.
func (r *starter) open(config Config) {
	r.config, r.all = config, map[*supervisor]struct{}{}
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

// tryNamespaces starts the first supervisor in namespaces of its own, which not
// every system lets a user make, and every sandbox in its own way.
func (r *starter) tryNamespaces() {
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

// mayChangeUser returns why runs cannot have users of their own. Without a view of the file
// system, the folders that lead to a tool's HOME are closed to them.
func (r *starter) mayChangeUser() error {
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

// start begins c in dir with the standard streams files. The child's done
// gets its outcome when no process of it is alive.
func (r *starter) start(ctx context.Context, c *Command, dir *os.File, files [3]*os.File) (*child, error) {
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

// admits refuses c if it demands more than s provides.
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
func (r *starter) await(c *Command, s *supervisor) outcome {
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
		r.config.Logger.Error("processes of a run could not be killed", "binary", c.Path, "supervisor", s.cmd.Process.Pid)
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

// abandon kills the supervisor, which failed to end the run.
func (c *child) abandon() { c.s.cmd.Process.Kill() }

// wake continues the supervisor if an unconfined child has stopped it.
func (c *child) wake() { c.s.cmd.Process.Signal(syscall.SIGCONT) }

// Runs reports whether the process pid was, or may have been, started by a run of r, or cannot
// be inspected.
//
// A confined process has one filter more than this one, and no_new_privs; a process cannot get
// rid of either. Others may have them too, above all in containers; they are told apart by
// their ancestors, or by a process namespace other than this one's. Ancestors alone prove
// nothing: outside of namespaces, a process whose supervisor was killed has this process as its
// parent until it is killed as well, and one whose daemon was killed too has init, like any
// daemon.
func (r *starter) Runs(pid int) bool {
	self := os.Getpid()
	if pid == self {
		return false
	}
	// The shortest look first, since every call waits for it: in namespaces no
	// confined process is in this one's.
	if r.status.Namespaces {
		theirs, err := procfs.NamespaceOf(strconv.Itoa(pid)) // another user's is not told
		if err == nil && theirs == r.namespace {
			return false
		}
	}
	if r.status.Filter {
		if r.supervisors()[pid] {
			return true // which connects Unix sockets in a run's place
		}
		s, err := procfs.RestrictionsOf(pid)
		if err != nil {
			return true
		}
		if s.NoNewPrivs == 0 || s.Filters <= r.filters && s.Filters >= 0 {
			return false
		}
	}
	supervisors := r.supervisors()
	for up := pid; up > 1 && up != self; {
		if supervisors[up] {
			return true
		}
		var err error
		if up, err = procfs.Parent(up); err != nil {
			return true
		}
	}
	if !r.status.Filter {
		return false
	}
	theirs, err := procfs.NamespaceOf(strconv.Itoa(pid))
	return err != nil || theirs == r.namespace || r.namespace == (procfs.Namespace{})
}

// supervisors returns the processes of the living supervisors.
func (r *starter) supervisors() map[int]bool {
	pids := map[int]bool{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.all {
		if s.conn != nil {
			pids[s.cmd.Process.Pid] = true
		}
	}
	return pids
}
