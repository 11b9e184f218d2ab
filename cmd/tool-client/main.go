// Command tool-client stands in for the tools in a container. It is a wrapper that has the daemon at
// TOOL_SOCKET run the tool, in the same folder and with the wrapper's standard streams, and exits
// with the tool's exit code.
//
// A symlink to it with the name of a tool runs that tool; tool-client TOOL ARGS… does the same
// without a symlink. It starts once for every git in a shell loop, so it links only the standard
// library, package wire and the system calls of x/sys, dials with plain system calls, and keeps no
// state.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/places"
	"github.com/toold/toold/host/wire"
)

const usage = `usage: tool-client TOOL [ARGS...]
   or: TOOL [ARGS...]   where TOOL is a symlink to tool-client

Has the daemon at TOOL_SOCKET run TOOL in this folder, and ends with its exit code.

  TOOL_SOCKET           the daemon's socket; without it, where a daemon of this user listens
  TOOL_SESSION          the session that the call belongs to
  TOOL_TOKEN            who calls; TOOL_TOKEN_FILE names a file that holds it
  TOOL_IDEMPOTENCY_KEY  a name for this very call: made again, it is not run again
  TOOL_TIMEOUT          at most so long: seconds, or with a unit, as 1m30s
  TOOL_ENV              variables that tools are to get, each those that it admits: A,B,C
`

const (
	// exitNoDaemon is the exit code if no daemon listens on TOOL_SOCKET: to a script, the tool does not exist.
	exitNoDaemon = 127
	// exitPipe is the exit code of a tool that writes to a closed pipe, for when the kernel may not kill us with the
	// signal.
	exitPipe = 128 + int(syscall.SIGPIPE)
)

// This many interrupts in this time are meant for us, not for a tool that ignores them: exiting ends its call.
const (
	insistTimes = 3
	insistTime  = 2 * time.Second
)

func main() {
	// This program only waits and copies. Waking a second processor for that takes longer than it saves in a program
	// that runs for a few milliseconds.
	runtime.GOMAXPROCS(1)
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// run runs the program and returns its exit code.
func run(argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(argv) == 3 && filepath.Base(argv[0]) == "tool-client" && argv[1] == "--completion" {
		return completion(argv[2], stdout, stderr)
	}
	call, err := newCall(argv)
	if errors.Is(err, errUsage) {
		io.WriteString(stderr, usage)
		return fault.InvalidEnvelope.ExitCode()
	}
	if err != nil {
		return report(stderr, err)
	}
	path := places.Look(places.Places{}, os.Getenv).Socket
	tty := newTerminal(stdin, stdout, stderr)
	defer tty.restore() // also in a panic
	caught := &interruption{came: make(chan struct{})}
	local := wire.Local{Stdin: caught.input(stdin), Stdout: stdout, Stderr: stderr}
	if tty != nil {
		call.TTY = &tty.offer
		local.Terminal, local.Sizes, local.Stdin, local.Stopped = tty.raw, tty.sizes, &tty.keys, tty.suspend
	}
	call.Callbacks = offered(tty)
	local.Callback = (&programs{tool: call.Tool, tty: tty, caught: caught, folders: foldersAbove(call.Cwd)}).run
	// Signals are taken over while the daemon is at work already: see exchange.
	signals := sync.OnceValue(func() <-chan os.Signal { return forwarded(tty, caught) })
	result, code := exchange(path, call, local, tty, stderr, signals)
	// An older daemon refuses fields that it does not know and names the first one; it has run nothing.
	for result != nil && without(call, result.Err) {
		result, code = exchange(path, call, local, tty, stderr, signals)
	}
	if result == nil {
		return code
	}
	if result.Err != nil {
		fmt.Fprintf(stderr, "tool-client: %s\n", result.Err.Message)
	}
	for _, s := range passed {
		// A shell ends its loop or script if a signal ended the program that it waits for, and not if that exits with
		// the signal's code.
		if result.ExitCode == 128+int(s.(syscall.Signal)) && (caught.by(s) || tty.typed(s)) {
			endBy(s.(syscall.Signal), tty.typed(s))
		}
	}
	return result.ExitCode
}

// passed are the signals that the tool is to get: those that would end us.
var passed = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// interruption is the signal that was sent to end this program.
type interruption struct {
	came chan struct{} // closed with the first
	last atomic.Int32
}

func (i *interruption) note(s os.Signal) {
	if i.last.Swap(int32(s.(syscall.Signal))) == 0 {
		close(i.came)
	}
}

func (i *interruption) by(s os.Signal) bool { return i.last.Load() == int32(s.(syscall.Signal)) }

const (
	// together is how long a signal may take that was sent to us and to what we read from. The kernel sends it
	// before the other program ends; every call that reads a pipe to its end waits this long.
	together = time.Millisecond
	// keptOpen is how long the tool may take to end by it.
	keptOpen = time.Second
)

// input returns stdin. If that is a pipe, its end is kept from a tool that is being interrupted: Ctrl-C also ends the
// program that writes to it, and the tool would take what was written until then for all of its input.
func (i *interruption) input(stdin io.Reader) io.Reader {
	f, ok := stdin.(*os.File)
	if !ok {
		return stdin
	}
	if fi, err := f.Stat(); err != nil || fi.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return stdin
	}
	return pipe{f, i}
}

type pipe struct {
	*os.File
	*interruption
}

func (p pipe) Read(b []byte) (int, error) {
	n, err := p.File.Read(b)
	if err == nil {
		return n, nil
	}
	p.hold(nil)
	return n, err
}

// hold waits, where this program is being ended, for the call to be over, which closes
// done, and not for ever.
func (i *interruption) hold(done <-chan struct{}) {
	select {
	case <-i.came:
	case <-time.After(together):
	}
	if i.last.Load() == 0 {
		return
	}
	select {
	case <-done:
	case <-time.After(keptOpen):
	}
}

// without removes from the call the field that the daemon's err rejects as unknown. It returns false if there is no
// such field.
func without(c *wire.Call, err *fault.Error) bool {
	if err == nil || err.Code != fault.InvalidEnvelope {
		return false
	}
	switch {
	case c.TTY != nil && wire.UnknownTTY(err):
		c.TTY = nil
	case c.EnvSeen != nil && strings.HasPrefix(err.Message, "/env_seen"):
		c.EnvSeen = nil
	case c.Callbacks != nil && strings.HasPrefix(err.Message, "/callbacks"):
		c.Callbacks = nil
	default:
		return false
	}
	return true
}

// exchange makes one call. Without a result, it reports why and returns the exit code.
func exchange(path string, call *wire.Call, local wire.Local, tty *terminal, stderr io.Writer, signals func() <-chan os.Signal) (*wire.Result, int) {
	conn, err := dial(path)
	if err != nil && os.Getenv("TOOL_SOCKET") == "" {
		return nil, report(stderr, fault.Errorf(fault.InvalidEnvelope, "TOOL_SOCKET is not set, and no daemon of this user listens at %s; set it to the path of the daemon's socket", path))
	}
	if err != nil {
		why := "is toold running there?"
		if errors.Is(err, syscall.EACCES) {
			why = places.Denied(path)
		}
		fmt.Fprintf(stderr, "tool-client: connect to the daemon at %s: %v; %s\n", path, err, why)
		return nil, exitNoDaemon
	}
	defer conn.Close()
	streaming, err := wire.Start(conn, call)
	if err != nil {
		return nil, report(stderr, err)
	}
	// Signal handling is set up while the daemon is already at work. An earlier signal terminates this program, and
	// the call with it.
	local.Signals = signals()
	result, err := streaming.Wait(local)
	if isPipe(err) {
		awaitEnd(conn)
	}
	tty.restore() // before any output
	if err != nil {
		return nil, report(stderr, err)
	}
	return result, 0
}

// isPipe reports whether err means that the reader of the output has closed it.
func isPipe(err error) bool {
	var e *wire.OutputError
	return errors.Is(err, syscall.EPIPE) && errors.As(err, &e)
}

// endByPipe terminates this program by SIGPIPE, or returns the corresponding exit code if its caller has the signal
// ignored.
func endByPipe(err error) int {
	if !signal.Ignored(syscall.SIGPIPE) {
		signal.Reset(syscall.SIGPIPE)
		out := os.Stdout
		if e := (*wire.OutputError)(nil); errors.As(err, &e) && e.Name == wire.TypeStderr {
			out = os.Stderr
		}
		out.Write([]byte("\n")) // the runtime raises SIGPIPE on this write; it ignores one that is sent
	}
	return exitPipe
}

// endTime is how long awaitEnd waits.
const endTime = 2 * time.Second

// awaitEnd stops reading from the daemon, so that the tool's next write fails as it would have failed in our place,
// and waits until the call is over: the next command of a script then finds no lock of a tool that is still exiting. A
// tool that takes longer is terminated after we exit.
func awaitEnd(conn *os.File) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		if unix.Shutdown(int(fd), unix.SHUT_RD) != nil {
			return
		}
		// A daemon that waits for buffer space is not woken by its poller.
		for rest := make([]byte, 64<<10); ; {
			if n, err := unix.Read(int(fd), rest); n <= 0 && err != unix.EINTR {
				break
			}
		}
		for end := time.Now().Add(endTime); ; {
			left := time.Until(end)
			// Without requested events, Poll returns when the daemon has hung up.
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, int(max(left, 0).Milliseconds())); err != unix.EINTR || left <= 0 {
				return
			}
		}
	})
}

// forwarded returns the signals to pass on to the tool: those of passed, except the ones our parent made us ignore (as
// nohup does with HUP, and a shell with INT in the background), and those of tty. tty may be nil; it is restored before
// this program terminates itself.
func forwarded(tty *terminal, sent *interruption) <-chan os.Signal {
	caught := make(chan os.Signal, 8)
	for _, s := range passed {
		if !signal.Ignored(s) {
			signal.Notify(caught, s)
		}
	}
	if !signal.Ignored(syscall.SIGPIPE) {
		// Otherwise the runtime kills us at once: see endByPipe.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	signals := make(chan os.Signal, 8)
	if tty != nil {
		tty.signals = signals
	}
	go func() {
		var last insistence
		for s := range caught {
			if last.again() {
				tty.restore()
				endBy(s.(syscall.Signal), false)
				os.Exit(128 + int(s.(syscall.Signal)))
			}
			sent.note(s)
			select {
			case signals <- s:
			default: // the daemon is not listening
			}
		}
	}()
	return signals
}

// insistence holds the times of the last interrupts, most recent first.
type insistence [insistTimes]time.Time

// again records an interrupt now, and reports whether it is meant for us.
func (i *insistence) again() bool {
	copy(i[1:], i[:])
	i[0] = time.Now()
	return i[0].Sub(i[insistTimes-1]) < insistTime
}

// report reports what failed on this side of the socket, and returns the exit code.
func report(stderr io.Writer, err error) int {
	if e := (*fault.Error)(nil); errors.As(err, &e) {
		fmt.Fprintf(stderr, "tool-client: %s\n", e.Message)
		return e.Code.ExitCode()
	}
	if isPipe(err) {
		return endByPipe(err)
	}
	fmt.Fprintf(stderr, "tool-client: %v\n", err)
	return fault.Internal.ExitCode()
}

var errUsage = errors.New("usage")

// hookOf is set for the hooks of a tool, and names it. ofHooks are the variables that
// tell the same tool, which a hook calls, where it works and for whom: the tool set them
// itself.
const hookOf = "TOOL_HOOK_OF"

var ofHooks = []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE"}

// newCall builds the call from the command line and the environment.
func newCall(argv []string) (*wire.Call, error) {
	c := &wire.Call{Tool: filepath.Base(argv[0]), Args: argv[1:]}
	if c.Tool == "tool-client" {
		if len(argv) > 3 && argv[1] == "--complete" {
			argv = append([]string{argv[0], completeID}, argv[2:]...)
		}
		if len(argv) < 2 || strings.HasPrefix(argv[1], "-") {
			return nil, errUsage
		}
		c.Tool, c.Args = argv[1], argv[2:]
	}
	var err error
	if c.Cwd, err = os.Getwd(); err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "find the current folder: %w; change to one that exists", err)
	}
	c.Session = os.Getenv("TOOL_SESSION")
	c.IdempotencyKey = os.Getenv("TOOL_IDEMPOTENCY_KEY")
	if c.Token = os.Getenv("TOOL_TOKEN"); c.Token == "" {
		if file := os.Getenv("TOOL_TOKEN_FILE"); file != "" {
			token, err := os.ReadFile(file)
			if err != nil {
				return nil, fault.Errorf(fault.Unauthenticated, "read the token that TOOL_TOKEN_FILE names: %w", err)
			}
			c.Token = strings.TrimSpace(string(token))
		}
	}
	if t := os.Getenv("TOOL_TIMEOUT"); t != "" {
		if c.Timeout, err = parseTimeout(t); err != nil {
			return nil, err
		}
	}
	pass := func(names []string) {
		for _, name := range names {
			if value, ok := os.LookupEnv(name); ok {
				if c.Env == nil {
					c.Env = make(map[string]string)
				}
				c.Env[name] = value
			}
		}
	}
	pass(strings.FieldsFunc(os.Getenv("TOOL_ENV"), func(r rune) bool { return strings.ContainsRune(", :\t\n", r) }))
	c.EnvSeen = listedNames(c.Env)
	if os.Getenv(hookOf) == c.Tool {
		pass(ofHooks)
	}
	c.EnvSeen = append(c.EnvSeen, seenNames(c.Tool, c.Env, os.Environ(), wire.MaxEnvSeen-len(c.EnvSeen))...)
	return c, nil
}

// listedNames returns the sorted names of the variables that TOOL_ENV passes on. Their presence in env_seen states that
// the list is one for several tools, so that the daemon may leave out what another tool takes and this one does not.
func listedNames(passed map[string]string) []string {
	var names []string
	for name := range passed {
		if wire.SeenName(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(len(names), wire.MaxEnvSeen)]
}

// seenAlways lists variables that many programs honour, whatever the program's name.
const seenAlways = " EDITOR VISUAL PAGER EMAIL HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY SSL_CERT_FILE SSL_CERT_DIR SSH_AUTH_SOCK SSH_ASKPASS GITHUB_TOKEN NODE_ENV NODE_OPTIONS NODE_EXTRA_CA_CERTS TZ "

// plain returns name without the characters that separate words in it.
func plain(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == '.' {
			return -1
		}
		return r
	}, name)
}

// seenNames returns the names of the variables in environ that the named tool may honour: those that begin with its
// name, as GIT_DIR does for git, and those that many programs honour; at most that many. It omits what is passed on.
// Their values never leave this process.
func seenNames(tool string, passed map[string]string, environ []string, most int) []string {
	stem := plain(strings.ToUpper(strings.TrimRight(tool, "0123456789.-_")))
	var names []string
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		upper := strings.ToUpper(name)
		if _, ok := passed[name]; ok || value == "" || strings.HasPrefix(upper, "TOOL_") || strings.HasPrefix(upper, "TOOLD_") || !wire.SeenName(name) {
			continue
		}
		begins := len(stem) > 1 && strings.HasPrefix(plain(upper), stem)
		if (begins || strings.Contains(seenAlways, " "+upper+" ")) && len(names) < most {
			names = append(names, name)
		}
	}
	return names
}

// parseTimeout parses a number of seconds, or a duration with a unit.
func parseTimeout(s string) (time.Duration, error) {
	text := s
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		text += "s"
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fault.Errorf(fault.InvalidEnvelope, "TOOL_TIMEOUT is %q; give seconds, such as 30, or a duration with a unit, such as 1m30s", s)
	}
	return d, nil
}

// dial connects without package net, which would load and initialise its resolver for nothing.
func dial(path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	// No process is started here, so close-on-exec needs no lock.
	syscall.CloseOnExec(fd)
	for {
		if err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err != syscall.EINTR {
			break
		}
	}
	if err == nil {
		// Reads then wait in the runtime's poller instead of blocking a thread.
		err = syscall.SetNonblock(fd, true)
	}
	if err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
