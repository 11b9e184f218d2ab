package process

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/seccomp"
)

// job is a run that the daemon ordered.
type job struct {
	sp  *spec
	fds [5]int // the last may be -1
	// terminal is the one that this process's session has for it, or -1.
	terminal int
	// idle is closed when it has been reported.
	idle chan struct{}
}

// close closes the descriptors that came with r.
func (r *job) close() {
	for _, fd := range r.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// takeTerminal makes 1 of the run the terminal of this process's session, which is
// the run's: as a shell, this process is who a group of the run's can be stopped for.
// The terminal's signals to a session's leader are none to this process, which catches
// them all.
func (r *job) takeTerminal() (err error) {
	if r.terminal, err = unix.FcntlInt(uintptr(r.fds[1]), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		r.terminal = -1
		return err
	}
	return unix.IoctlSetInt(r.terminal, unix.TIOCSCTTY, 0)
}

// leaveTerminal undoes takeTerminal, when nothing of the run is left, so that no other
// run has its terminal.
func (r *job) leaveTerminal() {
	if r.terminal >= 0 {
		unix.IoctlSetInt(r.terminal, unix.TIOCNOTTY, 0)
		unix.Close(r.terminal)
		r.terminal = -1
	}
}

// launchpad holds what the launchers of a supervisor use, one after the other.
type launchpad struct {
	rulesets *confine.Rulesets
	view     *confine.View // nil outside of namespaces
	waste    waste
}

// launcher is an OS thread that starts the child of one run, with a working folder of its own,
// and with the privileges and the filter for its guards, if any. All that takes some tenths of
// a millisecond, for which no run should wait: it is made beforehand, and reads the run itself.
type launcher struct {
	guards  *seccomp.Guards  // nil: no filter
	monitor *confine.Monitor // of the filter
}

// guardsOf returns the guards that the run sp needs.
func (p *launchpad) guardsOf(sp *spec) *seccomp.Guards {
	if !sp.Confine || !sp.Filter {
		return nil
	}
	g := p.bounds(sp).Guards()
	return &g
}

// bounds returns the bounds of the run sp.
func (p *launchpad) bounds(sp *spec) *confine.Bounds {
	return &confine.Bounds{
		Path: sp.Path, Dir: sp.Dir, Write: sp.Write, Exec: sp.Exec, Read: sp.Read, Hide: sp.Hide, Show: sp.Show, Sockets: sp.Sockets, Interpreters: sp.Interpreters,
		Lines: sp.Lines, AnyLine: sp.AnyLine, User: sp.User, ABI: sp.ABI, Offline: sp.Offline, InView: p.view != nil,
	}
}

// suits reports whether l is for runs with g; a nil l is for none.
func (l *launcher) suits(g *seccomp.Guards) bool {
	return l != nil && (l.guards == nil) == (g == nil) && (g == nil || *l.guards == *g)
}

// onLauncher runs f on a launcher with g, or with the reason why there is none.
func (p *launchpad) onLauncher(g *seccomp.Guards, f func(*launcher, error)) {
	seccomp.OnThread(func() {
		l := &launcher{guards: g}
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil && g != nil {
			l.monitor, err = confine.Watch(*g, p.waste.leave)
		}
		if err != nil {
			l = nil
		}
		f(l, err)
	})
}

// tell adds to e what the run has executed so far.
func (l *launcher) tell(e *exitReport) {
	if l.monitor != nil {
		e.Programs, e.Executed, e.Refused = l.monitor.Programs()
	}
}

// close ends the monitor, on the launcher's thread.
func (l *launcher) close() {
	if l != nil && l.monitor != nil {
		l.monitor.Close()
	}
}

func failed(step string, err error) *failReport {
	var errno syscall.Errno
	errors.As(err, &errno)
	return &failReport{Step: step, Errno: int(errno), Text: err.Error()}
}

// launch makes the calling thread, which is l's, what the child is to be, and
// starts the child from it. It closes r. scoped reports that this thread can
// signal the run's processes and no others.
//
// Under a filter nothing may wait for all threads to stop, as the garbage
// collector does: this one waits, while it starts the child, for the monitor's
// answer to the child's execve.
func (p *launchpad) launch(l *launcher, r *job) (pid int, scoped bool, fail *failReport) {
	defer r.close()
	sp, fds := r.sp, &r.fds
	dir := fds[3]
	if p.view != nil {
		// The descriptor is of the daemon's mounts. The folder has to be
		// entered through those of the view, and must be the same.
		var err error
		if dir, err = p.view.Open(sp.Dir, dir); err != nil {
			return 0, false, failed("enter the working folder", err)
		}
		defer unix.Close(dir)
	}
	if err := unix.Fchdir(dir); err != nil {
		return 0, false, failed("enter the working folder", err)
	}
	if sp.Confine {
		var step string
		var err error
		if scoped, step, err = p.rulesets.Restrict(p.bounds(sp), l.monitor, fds[4]); err != nil {
			return 0, false, failed(step, err)
		}
		if l.monitor != nil {
			fds[4] = -1 // the monitor's now
		}
	}
	if sp.Terminal {
		if err := r.takeTerminal(); err != nil {
			return 0, false, failed("take the terminal", err)
		}
	}
	if l.monitor != nil {
		l.monitor.OnBegin(func(pid int) error {
			if sp.Terminal {
				// Before it executes anything, and not after: programs look whether they
				// are in the foreground.
				unix.IoctlSetPointerInt(r.terminal, unix.TIOCSPGRP, pid)
			}
			if sp.User != nil {
				return nil // its descriptors are not counted with this process's
			}
			return limitFiles(pid)
		})
	}
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if sp.User != nil {
		attr.Credential = &syscall.Credential{Uid: sp.User.UID, Gid: sp.User.GID}
		// Programs open their streams by name as well.
		for _, fd := range fds[:3] {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
				unix.Fchown(fd, int(sp.User.UID), int(sp.User.GID))
			}
		}
	}
	p.waste.starting.Lock()
	pid, err := syscall.ForkExec(sp.Path, append([]string{sp.Path}, confine.Split(sp.Args)...), &syscall.ProcAttr{
		Env:   confine.Split(sp.Env),
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
		Sys:   attr,
	})
	p.waste.starting.Unlock()
	if err != nil {
		return 0, false, failed(confine.StepExec, err)
	}
	if l.monitor != nil {
		l.monitor.Launched()
	}
	return pid, scoped, nil
}

// limitFiles permanently reduces the open files of process pid by a quarter. For each user, the
// kernel counts the descriptors that wait in sockets, and lets a process send no more while
// there are more of them than it may have open: so whoever fills sockets reaches that limit
// before the daemon and the supervisors, which have the same user and send descriptors for
// every run.
func limitFiles(pid int) error {
	var limit unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return err
	}
	limit.Max -= limit.Max / 4
	limit.Cur = min(limit.Cur, limit.Max)
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil)
}
