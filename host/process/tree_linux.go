package process

import (
	"os"
	"strconv"
	"strings"
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

// killOrphans kills and reaps the processes of runs whose supervisor is gone,
// which are children of this process now and have one filter more than its
// filters, and reports whether some are alive at deadline.
func killOrphans(filters int, deadline time.Time) (left bool) {
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
			if s, err := procfs.RestrictionsOf(pid); err != nil || s.NoNewPrivs == 0 || s.Filters != filters+1 {
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
