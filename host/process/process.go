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
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
)

// abandonAfter is how long a run that was killed may take to be gone.
const abandonAfter = 3 * time.Second

const (
	// DefaultGrace is the time from SIGTERM to SIGKILL.
	DefaultGrace = 250 * time.Millisecond
	// MaxArgs bounds the bytes of arguments and environment together, under
	// what the kernel takes (a quarter of the stack limit, 2 MiB by default,
	// pointers included).
	MaxArgs = 4 << 20
)

// Config is fixed when the Runner is made.
type Config struct {
	// Ready is how many supervisors are kept started and idle; after a time
	// in which more were busy, more for half a minute. 0: 4.
	Ready int
	// Max bounds the runs at one time; one more is OVERLOADED. 0: 256.
	Max int
	// Most is the most that runs get, where this system would give more. 0:
	// all there is.
	Most confine.Level
	// Held is kept open by every supervisor until nothing of its runs is left, so
	// that a lock on it tells whether anything is. It never reaches what runs.
	// nil: none. Only on Linux.
	Held *os.File
	// Logger hears what no caller can act on: a supervisor that broke,
	// processes that could not be killed. nil: nothing is logged.
	Logger *slog.Logger
}

// Command is one run.
type Command struct {
	// Path is the binary, absolute. It is also argv[0].
	Path string
	// Args are the arguments after argv[0], passed unchanged.
	Args []string
	// Dir is the working folder, absolute. It must lie beneath one of Roots.
	Dir string
	// Roots are the folders that Dir may lie in, absolute and free of
	// symbolic links (beneath.Resolve): a link could be swapped by whoever may
	// write above it.
	Roots []string
	// Folder, unless empty, is what confine.ObjectOf said of Dir: another folder in its
	// place is INVALID_PAYLOAD.
	Folder string
	// Env is the whole environment, NAME=value.
	Env []string
	// Stdin is read by a goroutine of its own while the child runs; nil is
	// an empty input. When the child ended, Stdin is closed if it is an
	// io.Closer, and Close must make a Read that blocks return. A reader
	// that cannot be closed should end with ctx: until its Read returns, a
	// goroutine waits there. What it then read is lost.
	Stdin io.Reader
	// Stdout and Stderr get what the child and its descendants write; nil
	// discards. Each is written by one goroutine; when both are the same,
	// by one for both. A slow Write slows the child, and an error from it
	// closes the pipe, so that the child ends by SIGPIPE at its next write.
	// Run waits for a Write that is under way.
	Stdout, Stderr io.Writer
	// Terminal, unless nil, is the child's. Stdin and Stderr are ignored as far as
	// it is these.
	Terminal *Terminal
	// Signals are passed on to the child's process group until it ended.
	Signals <-chan os.Signal
	// Grace is the time from SIGTERM to SIGKILL when ctx ends. 0:
	// DefaultGrace.
	Grace time.Duration
	// Confine says what the child may do.
	Confine Confine
}

// Confine is what a child may write, execute and read. The zero value lets it
// write to harmless devices (/dev/null), execute itself, and read everything.
type Confine struct {
	// Write are the folders beneath which it may write, create, rename and
	// remove, absolute and free of symbolic links. One that is missing
	// allows nothing.
	Write []string
	// Exec are the executables, or folders of them, that it may execute
	// beside Command.Path. The ELF interpreters of Command.Path and of the
	// files named here are added. One that is missing allows nothing.
	Exec []string
	// Interpreters are what Command.Path needs where it is a script, in the order
	// in which they are started. Each is granted for that script and nothing
	// else, and only where the child can replace neither it nor the script. With
	// Landlock alone the child can start one with other arguments as well.
	Interpreters []confine.Interpreter
	// Read are files that it may read though Hide has them, absolute.
	Read []string
	// Hide are the files and folders that it may not read, absolute; links are
	// followed. What lies beneath Write is read all the same, and so is what
	// Exec and Read name. The folders that lead there can be passed through and not be
	// listed, and what is put directly into one of them while the child runs
	// cannot be read.
	Hide []string
	// Off runs the child unconfined, privileges of setuid programs included.
	Off bool
	// Show are files and folders that it uses beside these, absolute. In
	// namespaces of its own a run finds /tmp, /var/tmp, /dev/shm and its user's
	// runtime folder empty but for what Write, Exec, Read and Show name.
	Show []string
	// Sockets are Unix sockets that it may not connect to. Only namespaces
	// keep it from that.
	Sockets []string
	// Network makes the run's connections: it is of egress.Gate.Start. nil: it can
	// connect to nothing. Without Status.Filter nothing keeps it from connecting by
	// itself.
	Network *os.File
	// ShellLines, unless nil, are the only command lines that a shell among
	// Exec is given with -c: one of these, or one with words in single quotes
	// behind it.
	ShellLines []string
	// User, unless nil, is who the child runs as, so that ownership keeps it
	// from what is this process's. It may use Write only as far as it owns it,
	// or its owner lets it.
	User *confine.UserID
	// Least refuses to run where this system gives less. Otherwise what it can
	// is enforced.
	Least confine.Level
}

// Exit is how a child ended.
type Exit struct {
	// Code is its exit code, or 128+N when signal N ended it.
	Code int
	// Signal is what ended it; 0: it exited.
	Signal syscall.Signal
	// Programs are those that the run executed, or was refused, beside its own:
	// the first 64 of each. Executed and Refused are how many there were. All
	// are empty where Status.Filter is false.
	Programs          []confine.Program
	Executed, Refused int
}

// Runner runs commands. It is safe for use by many goroutines.
type Runner struct {
	config  Config
	log     *slog.Logger
	buffers sync.Pool // *[]byte of pumpBuffer bytes
	status  confine.Status
	starter // how children start on this system
}

// New makes a Runner and begins to start its supervisors. It fails when this
// process is itself a supervisor: then main did not call Supervise first, and
// going on would start processes without end.
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
	r := &Runner{config: config, log: config.Logger}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.buffers.New = func() any {
		b := make([]byte, pumpBuffer)
		return &b
	}
	r.open()
	return r, nil
}

// Confinement says what r's runs get on this system.
func (r *Runner) Confinement() confine.Status { return r.status }

// Close ends what still runs, at once, and waits until it has ended. Runs
// that it ends answer ABORTED, and so do later ones.
func (r *Runner) Close() error {
	r.close()
	return nil
}

// Run runs c until it ended by itself or ctx ended, and returns when none of
// its processes is alive and all they wrote was written on.
//
// Its errors are *Error, where c names a binary or a user that cannot be, and
// *fault.Error: TIMEOUT when the deadline of ctx passed and
// ABORTED when ctx was cancelled (output written before was delivered),
// TOOL_NOT_INSTALLED when its interpreter is missing, TOOL_BROKEN when it cannot be
// confined as c says, INVALID_PAYLOAD for a working folder or
// arguments that cannot be, OVERLOADED, INTERNAL. A command that ran and
// failed is no error: see Exit.
func (r *Runner) Run(ctx context.Context, c Command) (Exit, error) {
	if err := c.check(); err != nil {
		return Exit{}, err
	}
	if err := c.Terminal.check(&c, r.status); err != nil {
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
	streams, err := r.plumb(&c)
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

// check refuses what cannot run and fills in defaults.
func (c *Command) check() error {
	if !filepath.IsAbs(c.Path) || strings.ContainsRune(c.Path, 0) {
		return &Error{Kind: NotAbsolute, Detail: fmt.Sprintf("the binary %q is not an absolute path", c.Path), Remedy: "name it in full"}
	}
	for _, path := range c.Confine.Hide {
		if !filepath.IsAbs(path) || strings.ContainsRune(path, 0) {
			return fault.Errorf(fault.ToolBroken, "what %s may not read is %q, which is not an absolute path: name it in full", c.Path, path)
		}
	}
	for _, i := range c.Confine.Interpreters {
		if !filepath.IsAbs(i.Path) || !utf8.ValidString(i.Path+strings.Join(i.Args, "")) || strings.ContainsRune(i.Path, 0) {
			return fault.Errorf(fault.ToolBroken, "the interpreter %q of %s is not an absolute path in UTF-8: name another in its first line", i.Path, c.Path)
		}
		c.Confine.Show = append(slices.Clone(c.Confine.Show), i.Path)
	}
	size := 0
	for _, list := range [][]string{c.Args, c.Env} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return fault.Errorf(fault.InvalidPayload, "an argument or variable holds a NUL byte, which no program can be given: remove it")
			}
			size += len(s) + 1
		}
	}
	if size > MaxArgs {
		return fault.Errorf(fault.InvalidPayload, "arguments and environment are %d bytes, the limit is %d: pass fewer at a time", size, MaxArgs)
	}
	if c.Grace <= 0 {
		c.Grace = DefaultGrace
	}
	return nil
}

// ended is the error of a run whose ctx ended.
func (c *Command) ended(ctx context.Context) error {
	name := filepath.Base(c.Path)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.Errorf(fault.Timeout, "%s did not end in its time and was stopped, with all it had started: allow it more, or ask it for less", name)
	}
	return fault.Errorf(fault.Aborted, "%s was stopped on request, with all it had started", name)
}

// cannotRun is the error for a Path that exec refused with errno.
func (c *Command) cannotRun(errno syscall.Errno) error {
	switch errno {
	case syscall.ENOENT, syscall.ENOTDIR:
		if _, err := os.Stat(c.Path); err == nil {
			return fault.Errorf(fault.ToolNotInstalled, "run %s: the interpreter that it names is not on this host: install it", c.Path)
		}
		return &Error{Kind: NotThere, Detail: fmt.Sprintf("run %s: it is not on this host", c.Path), Remedy: "install it"}
	case syscall.EACCES, syscall.EPERM:
		return &Error{Kind: NotExecutable, Detail: fmt.Sprintf("run %s: %v", c.Path, errno), Remedy: "make it executable for toold's user; when it is a script, grant its interpreter too", Cause: errno}
	case syscall.ENOEXEC, syscall.EISDIR, syscall.EINVAL, syscall.ELOOP:
		return &Error{Kind: NotProgram, Detail: fmt.Sprintf("run %s: %v: it is no program that this host can run", c.Path, errno), Cause: errno}
	case syscall.E2BIG:
		return fault.Errorf(fault.InvalidPayload, "run %s: arguments and environment are more than this host takes: pass fewer at a time", c.Path)
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return fault.Errorf(fault.Overloaded, "run %s: %w: this host has no room for another process now; try again", c.Path, errno)
	}
	return fault.Errorf(fault.Internal, "run %s: %w: see toold's log", c.Path, errno)
}
