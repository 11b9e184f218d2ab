// Package process runs real binaries for callers who are not trusted, and
// promises for each run:
//
//   - The arguments and the environment are exactly those of the Command.
//     Nothing of this process's own environment and none of its descriptors
//     reach the child; it has 0, 1 and 2 and no others.
//   - The working folder is one beneath the Command's roots, opened before it
//     is judged and entered by its descriptor, so that no symbolic link and
//     no folder swapped in between leads out.
//   - When Run returns, no process of the run is alive: not a grandchild, not
//     one that made a session of its own. What they wrote before is kept.
//   - A timeout is kept: SIGTERM to all of them, SIGKILL a Grace later.
//   - When this process is killed, even by SIGKILL, so is all it started.
//   - On Linux the child is confined as far as the system gives it, which
//     Runner.Confinement says: it writes only beneath Confine.Write, executes
//     only what Confine.Exec names, reads nothing of Confine.Hide (Landlock),
//     does nothing to other processes and changes no attributes of others'
//     files (a seccomp filter), and sees nothing of other processes
//     (namespaces). How is package confine.
//   - Its connections are made by whom Confine.Network leads to (package egress),
//     and it has no other network.
//
// On Linux each run belongs to a supervisor: this same program started again
// with a hidden verb, which is the subreaper of one run at a time. A program
// that uses the package therefore begins its main, and the TestMain of its
// tests, with
//
//	if process.IsSupervisor() {
//		os.Exit(process.Supervise())
//	}
//
// On other systems the child is a direct one with a process group of its own:
// a grandchild that leaves the group outlives its run, and nothing is
// confined.
//
// What confinement does not stop, so that nobody leans on it: reading what is
// not hidden, listing names by trying them, and, without the filter, the network
// and connecting to a Unix socket by its path. A program that Exec
// grants beneath a folder of Write is whatever somebody puts there. umask,
// resource limits (but for core files: none), user and groups are those of
// this process, unless Confine.User names another user.
package process

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"syscall"
	"time"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
)

// abandonAfter is how long a run that was killed may take to be gone.
const abandonAfter = 3 * time.Second

// Runner runs commands. It is safe for concurrent use.
type Runner struct {
	starter // how children start on this system
	buffers buffers
}

// New makes a Runner and begins to start its supervisors. It fails if this process is itself a
// supervisor: then main did not call Supervise first, and continuing would start processes
// without end.
func New(config Config) (*Runner, error) {
	if IsSupervisor() {
		return nil, errors.New("make a process runner: this process is a supervisor; main (or TestMain) must begin with process.IsSupervisor and process.Supervise")
	}
	if config.Ready <= 0 {
		config.Ready = 4
	}
	if config.Max <= 0 {
		config.Max = 256
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Runner{}
	r.open(config)
	return r, nil
}

// Confinement returns the confinement of r's runs on this system.
func (r *Runner) Confinement() confine.Status { return r.status }

// Close ends all runs at once and waits until they have ended. Runs that it ends return
// ABORTED, and so do later ones.
func (r *Runner) Close() error {
	r.close()
	return nil
}

// Run runs c until it ends by itself or ctx ends. It returns when none of its processes is
// alive and everything they wrote has been passed on.
//
// Its errors are *Error if c names a binary or a user that is not possible, and *fault.Error:
// TIMEOUT when the deadline of ctx passed and ABORTED when ctx was cancelled (output written
// before was delivered), TOOL_NOT_INSTALLED if its interpreter is missing, TOOL_BROKEN if it
// cannot be confined as c says, INVALID_PAYLOAD for an impossible working folder or arguments,
// OVERLOADED, INTERNAL. A command that ran and failed is not an error: see Exit.
func (r *Runner) Run(ctx context.Context, c Command) (Exit, error) {
	if err := c.check(); err != nil {
		return Exit{}, err
	}
	if err := c.checkTerminal(r.status); err != nil {
		return Exit{}, err
	}
	if ctx.Err() != nil {
		return Exit{}, c.ended(ctx)
	}
	dir, path, err := beneath.Open(c.Roots, c.Dir)
	if err != nil {
		return Exit{}, err
	}
	defer dir.Close()
	if err := c.sameFolder(dir); err != nil {
		return Exit{}, err
	}
	c.Dir = path
	streams, err := plumb(&c, &r.buffers)
	if err != nil {
		return Exit{}, err
	}
	child, err := r.start(ctx, &c, dir, streams.theirs)
	streams.started(child)
	if err != nil {
		streams.finish()
		return Exit{}, err
	}
	exit, err := c.follow(ctx, child)
	streams.finish()
	return exit, err
}

// follow waits for child, passing on signals and the end of ctx.
func (c *Command) follow(ctx context.Context, child *child) (Exit, error) {
	var (
		cancelled = ctx.Done()
		signals   = c.Signals
		grace     <-chan time.Time
		late      <-chan time.Time
		gone      <-chan struct{}
		abandoned bool
		ended     error
	)
	if c.Terminal != nil {
		gone = c.Terminal.Gone
	}
	for {
		select {
		case <-gone:
			gone = nil
			child.signal(syscall.SIGHUP)
		case o := <-child.done:
			if ended != nil {
				return o.exit, ended
			}
			return o.exit, o.err
		case <-cancelled:
			cancelled, signals = nil, nil
			ended = c.ended(ctx)
			child.terminate()
			t := time.NewTimer(c.Grace)
			defer t.Stop()
			grace = t.C
		case <-grace:
			grace = nil
			child.kill()
			t := time.NewTimer(abandonAfter)
			defer t.Stop()
			late = t.C
		case <-late:
			if abandoned {
				// Waits in the kernel for something that never comes. The
				// caller need not.
				return Exit{}, ended
			}
			abandoned = true
			child.abandon()
			t := time.NewTimer(abandonAfter)
			defer t.Stop()
			late = t.C
		case s, ok := <-signals:
			if !ok {
				signals = nil
			} else if n, ok := s.(syscall.Signal); ok {
				child.signal(n)
			}
		}
	}
}

// sameFolder returns an error if dir is not the folder that c is to run in.
func (c *Command) sameFolder(dir *os.File) error {
	if c.Folder == "" {
		return nil
	}
	is, err := confine.ObjectOf(dir)
	if err == nil && is == c.Folder {
		return nil
	}
	return fault.Errorf(fault.InvalidPayload, "cwd %q is another folder than the one that the call was approved for; make the call again", c.Dir)
}
