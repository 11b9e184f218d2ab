package process

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
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
			for _, pid := range descendants() {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		time.Sleep(wait) // dying takes a moment
	}
}

// descendants are the processes beneath this one, parents first.
func descendants() []int {
	var list []int
	seen := map[int]bool{}
	add := func(pids []int) {
		for _, pid := range pids {
			if !seen[pid] {
				seen[pid] = true
				list = append(list, pid)
			}
		}
	}
	add(children("self"))
	for i := 0; i < len(list); i++ {
		add(children(strconv.Itoa(list[i])))
	}
	return list
}

// children are the processes that the threads of process started or adopted.
func children(process string) []int {
	var pids []int
	tasks := "/proc/" + process + "/task"
	dir, err := os.Open(tasks)
	if err != nil {
		return nil
	}
	threads, _ := dir.Readdirnames(-1)
	dir.Close()
	for _, thread := range threads {
		b, err := os.ReadFile(tasks + "/" + thread + "/children")
		if err != nil {
			continue
		}
		for field := range bytes.FieldsSeq(b) {
			if pid, err := strconv.Atoi(string(field)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Runs reports whether the process pid belongs to a run of r, and true where
// that cannot be told, since it has gone.
func (r *Runner) Runs(pid int) bool {
	supervisors := map[int]bool{}
	r.mu.Lock()
	for s := range r.all {
		if s.conn != nil {
			supervisors[s.cmd.Process.Pid] = true
		}
	}
	r.mu.Unlock()
	for pid > 1 && pid != os.Getpid() {
		if supervisors[pid] {
			return true
		}
		var err error
		if pid, err = parent(pid); err != nil {
			return true
		}
	}
	return false
}

// parent is the process that started pid, or adopted it.
func parent(pid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, which may hold any.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0, io.ErrUnexpectedEOF
	}
	return strconv.Atoi(string(fields[1]))
}
