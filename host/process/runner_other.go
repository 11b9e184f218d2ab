//go:build unix && !linux

package process

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
)

// starter runs children directly.
type starter struct {
	config Config
	status confine.Status
	// mu guards what follows.
	mu      sync.Mutex
	running map[*child]struct{}
	closed  bool
	gone    sync.WaitGroup
}

// child is a current run.
type child struct {
	done chan outcome

	// mu guards pid, which is 0 once the child was reaped.
	mu  sync.Mutex
	pid int
}

type outcome struct {
	exit Exit
	err  error
}

// IsSupervisor reports false: there are no supervisors on this system.
func IsSupervisor() bool { return false }

// Supervise is never called on this system.
func Supervise() int { return 64 }

func (r *starter) open(config Config) {
	r.config, r.running, r.status = config, map[*child]struct{}{}, confine.Confinement()
}

func (r *starter) close() {
	r.mu.Lock()
	r.closed = true
	for c := range r.running {
		c.kill()
	}
	r.mu.Unlock()
	r.gone.Wait()
}

// start begins c in dir with the standard streams files.
func (r *starter) start(ctx context.Context, c *Command, dir *os.File, files [3]*os.File) (*child, error) {
	if c.Confine.Least > confine.Unconfined && !c.Confine.Off {
		return nil, fault.Errorf(fault.ToolBroken, "run %s: the confinement %q is demanded, and only Linux gives it: do not demand it here", c.Path, c.Confine.Least)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fault.Errorf(fault.Aborted, "toold is stopping: try again when it runs")
	}
	if len(r.running) >= r.config.Max {
		return nil, fault.Errorf(fault.Overloaded, "%d binaries run already, and that is the limit: try again", r.config.Max)
	}
	path, err := filepath.EvalSymlinks(dir.Name())
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "cwd %q is gone: change to one that is there", c.Dir)
	}
	pid, err := syscall.ForkExec(c.Path, append([]string{c.Path}, c.Args...), &syscall.ProcAttr{
		Dir:   path,
		Env:   c.Env,
		Files: []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		errno, _ := err.(syscall.Errno)
		return nil, c.cannotRun(errno)
	}
	ch := &child{done: make(chan outcome, 1), pid: pid}
	r.running[ch] = struct{}{}
	r.gone.Add(1)
	go func() {
		defer r.gone.Done()
		o := ch.wait(filepath.Base(c.Path))
		r.mu.Lock()
		delete(r.running, ch)
		r.mu.Unlock()
		select {
		case ch.done <- o:
		default: // abandoned
		}
	}()
	return ch, nil
}

// wait waits for the child, then kills what is left of its process group.
func (c *child) wait(name string) outcome {
	var status unix.WaitStatus
	_, err := unix.Wait4(c.pid, &status, 0, nil)
	for err == unix.EINTR {
		_, err = unix.Wait4(c.pid, &status, 0, nil)
	}
	c.mu.Lock()
	unix.Kill(-c.pid, unix.SIGKILL)
	c.pid = 0
	c.mu.Unlock()
	if err != nil {
		return outcome{err: fault.Errorf(fault.Internal, "wait for %s: %w", name, err)}
	}
	e := Exit{Code: status.ExitStatus()}
	if status.Signaled() {
		e.Signal, e.Code = status.Signal(), 128+int(status.Signal())
	}
	return outcome{exit: e}
}

func (c *child) signal(n syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pid != 0 {
		unix.Kill(-c.pid, n)
	}
}

func (c *child) stopping()  {} // there are no terminals
func (c *child) terminate() { c.signal(unix.SIGTERM) }
func (c *child) kill()      { c.signal(unix.SIGKILL) }

// abandon gives up waiting for a child that SIGKILL does not end.
func (c *child) abandon() {
	select {
	case c.done <- outcome{err: fault.Errorf(fault.Internal, "a process cannot be killed: see this host's process list")}:
	default:
	}
}

// Runs reports false: nothing is confined on this system.
func (r *starter) Runs(int) bool { return false }
