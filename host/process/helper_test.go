//go:build linux

package process_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/process"
)

// daemon is this test binary as a daemon, not yet started.
func daemon(t *testing.T, mark, script, dir string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, daemonArg, script, dir)
	cmd.Env = []string{"MARK=" + mark, "PATH=/usr/bin:/bin", "GORACE=atexit_sleep_ms=0"}
	cmd.Stderr = os.Stderr
	return cmd
}

// newMark is a variable's value that only the processes of one test have.
func newMark() string { return rand.Text() }

// alive are the processes that have MARK=mark in their environment, but for
// zombies, which nobody can kill and somebody else has to reap.
func alive(t testing.TB, mark string) []string {
	t.Helper()
	var list []string
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !strings.Contains(string(env), "MARK="+mark) {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		list = append(list, e.Name()+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
	}
	return list
}

// waitGone waits until the processes with these numbers have ended.
func waitGone(t testing.TB, pids ...int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == unix.ESRCH {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := 0, error(unix.EINTR)
		for err == unix.EINTR {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds()))
		}
		unix.Close(fd)
		if n == 0 {
			t.Fatalf("process %d is still alive", pid)
		}
	}
}

// patient is the context of a run that should end by itself, and would
// otherwise hang the tests.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// underway is a run that a test talks with.
type underway struct {
	t      testing.TB
	out    *bufio.Scanner
	cancel context.CancelFunc
	ended  chan struct{}
	exit   process.Exit
	err    error
}

// begin begins c, whose standard output the test reads.
func begin(t testing.TB, r *process.Runner, c process.Command) *underway {
	pr, pw := io.Pipe()
	u := &underway{t: t, out: bufio.NewScanner(pr), ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(patient(t))
	u.cancel = cancel
	c.Stdout = pw
	go func() {
		defer close(u.ended)
		u.exit, u.err = r.Run(ctx, c)
		pw.Close()
	}()
	t.Cleanup(func() {
		cancel()
		pr.Close()
		<-u.ended
	})
	return u
}

// next is the next line of output.
func (u *underway) next() string {
	u.t.Helper()
	if !u.out.Scan() {
		<-u.ended
		u.t.Fatalf("the run ended: %+v, %v", u.exit, u.err)
	}
	return u.out.Text()
}

// wait waits for the end.
func (u *underway) wait() (process.Exit, error) {
	<-u.ended
	return u.exit, u.err
}

// numbers are the numbers in line.
func numbers(t testing.TB, line string) []int {
	t.Helper()
	var list []int
	for f := range strings.FieldsSeq(line) {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatalf("%q is no number", f)
		}
		list = append(list, n)
	}
	return list
}

// holdings are what a leak would add to, of this process and its children.
type holdings struct {
	fds, goroutines, children, childFDs, childThreads int
	heap                                              uint64
	childKiB                                          int // resident, of the largest
}

func count(t testing.TB) holdings {
	t.Helper()
	entriesOf := func(dir string) int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	h := holdings{fds: entriesOf("/proc/self/fd"), goroutines: runtime.NumGoroutine()}
	for _, pid := range childrenOf(t, os.Getpid()) {
		h.children++
		h.childFDs += entriesOf(fmt.Sprintf("/proc/%d/fd", pid))
		h.childThreads += entriesOf(fmt.Sprintf("/proc/%d/task", pid))
		statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			t.Fatal(err)
		}
		pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
		if err != nil {
			t.Fatal(err)
		}
		h.childKiB = max(h.childKiB, pages*os.Getpagesize()>>10)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h.heap = m.HeapAlloc
	return h
}

func childrenOf(t testing.TB, pid int) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var list []int
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for s := range strings.FieldsSeq(string(b)) {
			n, err := strconv.Atoi(s)
			if err != nil {
				t.Fatal(err)
			}
			// This process may be a subreaper, and reaps no daemon's children.
			if stat, err := os.ReadFile("/proc/" + s + "/stat"); err != nil || strings.Contains(string(stat), ") Z ") {
				continue
			}
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}
