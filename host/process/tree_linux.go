package process

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/procfs"
)

// killTree kills every process beneath this one and reaps it, until the
// kernel says that no child is left. It reports false when some are alive at
// deadline.
//
// With scoped the calling thread is in a Landlock domain that may signal only
// its own processes. Then one kill(-1) reaches the whole run in one step that
// no fork can slip through (the kernel holds the lock that fork needs), and
// reaches nothing else. Otherwise processes are looked up and killed one by
// one, again and again: a racer that forks as fast as it can is caught since
// each of its forks takes longer than a look at the list.
func killTree(scoped bool, deadline time.Time) bool {
	const first = 50 * time.Microsecond
	for wait := first; ; wait = min(2*wait, 5*time.Millisecond) {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if err == unix.ECHILD {
				return true
			}
			if err == nil && pid == 0 {
				break
			}
			if err == nil {
				wait = first
			}
		}
		if time.Now().After(deadline) {
			return false
		}
		if scoped {
			unix.Kill(-1, unix.SIGKILL)
		} else {
			for _, pid := range procfs.Descendants() {
				// The filter may ask the monitor about it. Unlike unix.Kill
				// this lets other threads be stopped in the meantime, for the
				// monitor may be collecting garbage.
				unix.Syscall(unix.SYS_KILL, uintptr(pid), uintptr(unix.SIGKILL), 0)
			}
		}
		time.Sleep(wait) // dying takes a moment
	}
}

// Runs reports whether the process pid is, or may be, one that a run of r
// started, or cannot be looked at.
//
// A confined process has one filter more than this one, and no_new_privs,
// neither of which a process gets rid of. Others have the like, in containers
// above all; they are told apart by their ancestors, or by a process namespace
// that is not this one's. Ancestors alone prove nothing: outside of namespaces a
// process whose supervisor was killed has this process as its parent until it is
// killed as well, and one whose daemon was killed too has init, like any daemon.
func (r *Runner) Runs(pid int) bool {
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

// supervisors are the processes of those that live.
func (r *Runner) supervisors() map[int]bool {
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

// killOrphans kills and reaps the processes of runs whose supervisor is gone,
// which are children of this process now, and reports whether some are alive at
// deadline.
func (r *Runner) killOrphans(deadline time.Time) (left bool) {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		left = false
		entries, err := os.ReadDir("/proc") // unlike a list of children it is whole
		if err != nil {
			return true
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			if up, err := procfs.Parent(pid); err != nil || up != os.Getpid() {
				continue
			}
			// No supervisor has a filter of its own.
			if s, err := procfs.RestrictionsOf(pid); err != nil || s.NoNewPrivs == 0 || s.Filters != r.filters+1 {
				continue
			}
			unix.Kill(pid, unix.SIGKILL)
			if got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err == nil && got != pid {
				left = true
			}
		}
		if !left || time.Now().After(deadline) {
			return left
		}
		time.Sleep(wait)
	}
}
