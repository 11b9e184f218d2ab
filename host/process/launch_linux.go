package process

import (
	"errors"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// launcher is an OS thread that is to start the child of one run, with the
// working folder of its own, and with the privileges and under the filter that
// guards ask for, if there are any. All that takes some tenths of a
// millisecond, which no run has to wait for: it is made beforehand, and reads by
// itself the run that it is for.
type launcher struct {
	guards  *guards  // nil: no filter
	monitor *monitor // of the filter
}

// guardsOf are those that the run sp needs.
func (s *service) guardsOf(sp *spec) *guards {
	if !sp.Confine || !sp.Filter {
		return nil
	}
	// Whom a thread can signal: restrictThread says the same.
	scoped := s.view != nil || sp.ABI >= abiScope
	return &guards{mappings: s.view == nil, attributes: sp.User == nil, signals: !scoped}
}

// suits reports whether l is for runs with g. nil suits none.
func (l *launcher) suits(g *guards) bool {
	return l != nil && (l.guards == nil) == (g == nil) && (g == nil || *l.guards == *g)
}

// onLauncher runs f on a launcher with g, or with why there is none.
func (s *service) onLauncher(g *guards, f func(*launcher, error)) {
	onThread(func() {
		l := &launcher{guards: g}
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil && g != nil {
			err = l.watch(s)
		}
		if err != nil {
			l = nil
		}
		f(l, err)
	})
}

// watch takes privileges from the calling thread and installs the filter on it,
// for good, and begins to answer what that asks.
func (l *launcher) watch(s *service) error {
	asUser := !l.guards.attributes // see guardsOf
	if _, err := renounce(asUser); err != nil {
		return err
	}
	listener, err := installFilter(*l.guards)
	if err == nil {
		l.monitor = newMonitor(listener, &s.waste)
	}
	return err
}

// tell writes into e what the run executed so far.
func (l *launcher) tell(e *exitReport) {
	if l.monitor != nil {
		l.monitor.log.tell(e)
	}
}

// close ends the monitor, on the launcher's thread.
func (l *launcher) close() {
	if l != nil && l.monitor != nil {
		l.monitor.close()
	}
}

// onThread runs f on an OS thread that is nobody else's and ends with f. What
// f does to its thread (Landlock, no_new_privs, its working folder) can so
// never reach another run. The thread lives until the run is over, which the
// child's parent death signal needs: that signal means the thread, not the
// process.
func onThread(f func()) {
	go func() {
		runtime.LockOSThread() // and never unlocked
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot end before the process. Holding it here
			// for good makes the next goroutine get another.
			onThread(f)
			select {}
		}
		f()
	}()
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
func (s *service) launch(l *launcher, r *job) (pid int, scoped bool, fail *failReport) {
	defer r.close()
	sp, fds := r.sp, &r.fds
	dir := fds[3]
	if s.view != nil {
		// The descriptor is of the daemon's mounts. The folder has to be
		// entered through those of the view, and must be the same.
		var err error
		if dir, err = openSame(sp.Dir, dir); err != nil {
			return 0, false, failed("enter the working folder", err)
		}
		defer unix.Close(dir)
	}
	if err := unix.Fchdir(dir); err != nil {
		return 0, false, failed("enter the working folder", err)
	}
	if sp.Confine {
		s.rulesets.abi = sp.ABI
		ruleset, step, err := s.rulesets.get(confinement{sp.Path, string(sp.Write), string(sp.Exec), string(sp.Hide), string(sp.Interpreters), l.monitor != nil})
		if err == nil && l.guards == nil {
			step, err = renounce(sp.User != nil)
		}
		if err == nil && sp.Offline {
			step, err = "refuse the network", goOffline()
		}
		if err == nil {
			scoped, step, err = restrictThread(sp.ABI, ruleset.fd)
		}
		if err != nil {
			return 0, false, failed(step, err)
		}
		if l.monitor != nil {
			g := ruleset.grants
			if !sp.AnyLine {
				g.lines = append([]string{}, split(sp.Lines)...)
			}
			l.monitor.user = sp.User
			l.monitor.wire, fds[4] = fds[4], -1
			l.monitor.grants.Store(&g) // last: who answers the run reads it first
		}
		// Asked, not only concluded: killTree relies on it with a kill(-1).
		// In a process namespace there is nobody else to reach.
		scoped = s.view != nil || scoped && unix.Kill(unix.Getppid(), 0) == unix.EPERM
	}
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if sp.Terminal {
		// A session of its own, whose terminal is its own 1: a group as well.
		attr.Setpgid, attr.Setsid, attr.Setctty, attr.Ctty = false, true, true, 1
	}
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
	s.waste.starting.Lock()
	pid, err := syscall.ForkExec(sp.Path, append([]string{sp.Path}, split(sp.Args)...), &syscall.ProcAttr{
		Env:   split(sp.Env),
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
		Sys:   attr,
	})
	s.waste.starting.Unlock()
	if err != nil {
		return 0, false, failed(stepExec, err)
	}
	if l.monitor != nil {
		l.monitor.launched.Store(true)
	}
	return pid, scoped, nil
}

// openSame opens the folder path, which must be the one that fd is of.
func openSame(path string, fd int) (int, error) {
	dir, err := openResolved(path)
	if err != nil {
		return -1, err
	}
	var want, got unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &want), unix.Fstat(dir, &got)); err != nil {
		unix.Close(dir)
		return -1, err
	}
	if idOf(&want) != idOf(&got) {
		unix.Close(dir)
		return -1, errors.New("it was replaced meanwhile")
	}
	return dir, nil
}
