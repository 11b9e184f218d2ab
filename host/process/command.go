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
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
)

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

// Confine defines what a child may write, execute and read. The zero value lets it write to
// harmless devices (/dev/null), execute itself, and read everything.
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

// check refuses commands that cannot run, and fills in defaults.
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

// checkTerminal refuses a terminal that the system, or c, cannot have.
func (c *Command) checkTerminal(s confine.Status) error {
	switch {
	case c.Terminal == nil:
		return nil
	case !s.Terminals() || c.Confine.Off:
		return fault.Errorf(fault.ToolBroken, "run %s: a terminal is only for what is confined with judged system calls; leave out \"terminal\" in tool.json", c.Path)
	case c.Stdout == nil || c.Terminal.Input == nil:
		return fault.Errorf(fault.Internal, "run %s: its terminal has no other end", c.Path)
	}
	return nil
}

// ended returns the error of a run whose ctx ended.
func (c *Command) ended(ctx context.Context) error {
	name := filepath.Base(c.Path)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.Errorf(fault.Timeout, "%s did not end in its time and was stopped, with all it had started: allow it more, or ask it for less", name)
	}
	return fault.Errorf(fault.Aborted, "%s was stopped on request, with all it had started", name)
}

// cannotRun returns the error for a Path that exec refused with errno.
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
		return &Error{Kind: NotProgram, Detail: fmt.Sprintf("run %s: %v: it is not a program that this host can run", c.Path, errno), Cause: errno}
	case syscall.E2BIG:
		return fault.Errorf(fault.InvalidPayload, "run %s: arguments and environment are more than this host takes: pass fewer at a time", c.Path)
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return fault.Errorf(fault.Overloaded, "run %s: %w: this host has no room for another process now; try again", c.Path, errno)
	}
	return fault.Errorf(fault.Internal, "run %s: %w: see toold's log", c.Path, errno)
}
