package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/wire/callbacks"
)

// programs runs the programs that the tool would have started if the caller had run it directly: the caller's own
// editor and pager, the hooks of its repository, and the scripts of its packages. They run here, as this user and with
// this environment. This side chooses the program, except for the path of a hook and the text of a script: those come
// from the daemon, which this program trusts in everything else too.
type programs struct {
	tool   string
	tty    *terminal // nil if there is no terminal
	caught *interruption
	// console is held while a program uses the terminal.
	console sync.Mutex
	folders folders
}

// folders maps the folders above the working folder, and the working folder itself, to the paths they resolve to. It
// is recorded before the call, so that nothing the call runs can have changed it.
type folders map[string]string

func foldersAbove(dir string) folders {
	p := folders{"/": "/"}
	for ; filepath.IsAbs(dir) && dir != "/"; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			p[dir] = real
		}
	}
	return p
}

// straight reports whether dir is reached without a link that the call may have created: such a link could lead to any
// of the caller's folders.
func (p folders) straight(dir string) bool {
	dir = filepath.Clean(dir)
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	at := dir
	for p[at] == "" && at != filepath.Dir(at) {
		at = filepath.Dir(at)
	}
	rest, err := filepath.Rel(at, dir)
	return err == nil && p[at] != "" && real == filepath.Join(p[at], rest)
}

// offered returns the kinds of programs that are available here.
func offered(tty *terminal) []string {
	kinds := []string{callbacks.Hooks}
	if editor(sequenceEditors, tty != nil) != "" {
		kinds = append(kinds, callbacks.SequenceEditor)
	}
	if editor(messageEditors, tty != nil) != "" {
		kinds = append(kinds, callbacks.Editor)
	}
	if tty != nil && pager() != "" {
		kinds = append(kinds, callbacks.Pager)
	}
	if look("node") != "" && look("sh") != "" { // otherwise its packages are of no use here
		kinds = append(kinds, callbacks.Scripts)
	}
	return kinds
}

var (
	messageEditors  = []string{"GIT_EDITOR", "VISUAL", "EDITOR"}
	sequenceEditors = []string{"GIT_SEQUENCE_EDITOR", "GIT_EDITOR", "VISUAL", "EDITOR"}
)

// editor returns the command line that git would take from the environment, or "" where git would report that there is
// none. Configuration is not read: anyone with write access to a repository can change its configuration.
func editor(names []string, atTerminal bool) string {
	dumb := os.Getenv("TERM") == "" || os.Getenv("TERM") == "dumb"
	for _, name := range names {
		if v := os.Getenv(name); v != "" && (name != "VISUAL" || !dumb) {
			return v
		}
	}
	if atTerminal && !dumb && look("vi") != "" {
		return "vi"
	}
	return ""
}

// pager returns the command line of the pager, or "" if output is not to be paged.
func pager() string {
	command := "less"
	for _, name := range []string{"GIT_PAGER", "PAGER"} {
		if v, ok := os.LookupEnv(name); ok {
			command = v
			break
		}
	}
	if command == "cat" || command == "less" && look(command) == "" {
		return ""
	}
	return command
}

// shellNeeded is the set of characters that make git run a command line in a shell.
const shellNeeded = "|&;<>()$`\\\"' \t\n*?[#~=%"

// words splits a command line as git does to start it, and appends args.
func words(command string, args []string) []string {
	if strings.ContainsAny(command, shellNeeded) {
		return append([]string{"sh", "-c", command + ` "$@"`, command}, args...)
	}
	return append([]string{command}, args...)
}

// look resolves a program's name as a shell does. It returns "" if there is none.
func look(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if !filepath.IsAbs(dir) {
			continue // which belongs to the repository
		}
		path := filepath.Join(dir, name)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// run implements wire.Local.Callback.
func (p *programs) run(cb *callbacks.Program) (int, error) {
	if !filepath.IsAbs(cb.Cwd) {
		return 0, fmt.Errorf("the folder %q is not absolute", cb.Cwd)
	}
	if !p.folders.straight(cb.Cwd) {
		return 0, fmt.Errorf("the folder %s is not here, or a link leads elsewhere; the folder must be the same one here and where toold runs", cb.Cwd)
	}
	switch cb.Kind {
	case callbacks.Editor, callbacks.SequenceEditor:
		names := messageEditors
		if cb.Kind == callbacks.SequenceEditor {
			names = sequenceEditors
		}
		command := editor(names, p.tty != nil)
		switch {
		case command == "":
			return 0, errors.New("no editor is named here; set GIT_EDITOR")
		case len(cb.Args) != 1 || !filepath.IsAbs(cb.Args[0]):
			return 0, errors.New("an editor is given one file, by an absolute path")
		case command == ":":
			return 0, nil
		}
		// A link could lead to any of the caller's files.
		if fi, err := os.Lstat(cb.Args[0]); err != nil {
			return 0, fmt.Errorf("%w; the folder must be the same one here and where toold runs", err)
		} else if !fi.Mode().IsRegular() {
			return 0, fmt.Errorf("%s is not a regular file", cb.Args[0])
		} else if !p.folders.straight(filepath.Dir(cb.Args[0])) {
			return 0, fmt.Errorf("a link leads %s elsewhere", cb.Args[0])
		}
		exit, err := p.start(cb, words(command, cb.Args), os.Environ(), true)
		p.caught.hold(cb.Done) // A tool that is being ended goes on with nothing.
		switch {
		case err != nil:
		case exit != 0:
			// git names the file that it started, which stands for this one.
			p.note(fmt.Sprintf("the editor is %q, and ended with exit code %d", command, exit))
		case cb.Kind == callbacks.SequenceEditor && runsPrograms(cb.Args[0]):
			p.note("git runs no program of the list here: it stops at each exec; run the command then, and git rebase --continue")
		}
		return exit, err
	case callbacks.Pager:
		command := pager()
		if command == "" || len(cb.Args) > 0 {
			return 0, errors.New("no pager is wanted here")
		}
		env := os.Environ()
		for _, v := range []string{"LESS=FRX", "LV=-c"} { // git sets them too
			if name, _, _ := strings.Cut(v, "="); os.Getenv(name) == "" {
				env = append(env, v)
			}
		}
		return p.start(cb, words(command, nil), env, true)
	case callbacks.Hooks:
		if !filepath.IsAbs(cb.Path) {
			return 0, fmt.Errorf("the path of the hook, %q, is not absolute", cb.Path)
		}
		if err := unix.Access(cb.Path, unix.X_OK); err != nil {
			return 0, fmt.Errorf("run %s: %w; the folder must be the same one here and where toold runs", cb.Path, err)
		}
		set := map[string]string{}
		maps.Copy(set, cb.Env)
		set[hookOf] = p.tool
		env := environWith(set)
		exit, err := p.start(cb, append([]string{cb.Path}, cb.Args...), env, false)
		if errors.Is(err, syscall.ENOEXEC) { // a script without a #! line
			exit, err = p.start(cb, append([]string{"sh", cb.Path}, cb.Args...), env, false)
		}
		return exit, err
	case callbacks.Scripts:
		if len(cb.Args) != 1 {
			return 0, errors.New("a script is one text")
		}
		return p.start(cb, []string{"sh", "-c", cb.Args[0]}, scriptEnviron(cb.Env), false)
	}
	return 0, fmt.Errorf("programs of kind %q are not run here", cb.Kind)
}

// note writes a note about the call to standard error.
func (p *programs) note(text string) {
	end := "\n"
	if _, err := unix.IoctlGetTermios(int(os.Stderr.Fd()), getTermios); err == nil && p.tty != nil {
		end = "\r\n" // the terminal is the tool's again
	}
	fmt.Fprint(os.Stderr, p.tool+": note: "+text+end)
}

// runsPrograms reports whether the list of a rebase has lines that name programs.
func runsPrograms(list string) bool {
	b, err := os.ReadFile(list)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		switch word, _, _ := strings.Cut(strings.TrimLeft(line, " \t"), " "); word {
		case "exec", "x":
			return true
		}
	}
	return false
}

// scriptEnviron returns the environment of a package's script: this program's own, plus the variables that npm sets
// for the package, with the folders of programs that npm found in the project at the front of PATH. This side
// determines where npm and node are.
func scriptEnviron(said map[string]string) []string {
	set := map[string]string{}
	maps.Copy(set, said)
	if found := said["PATH"]; found != "" {
		set["PATH"] = found + string(filepath.ListSeparator) + os.Getenv("PATH")
	}
	for _, here := range [][]string{{"npm_execpath", "npm"}, {"npm_node_execpath", "node"}, {"NODE", "node"}} {
		if path := look(here[1]); path != "" {
			set[here[0]] = path
		}
	}
	return environWith(set)
}

// environWith returns this program's environment with the variables of set in it. Each name occurs once: given
// duplicates, some programs use the first and some the last.
func environWith(set map[string]string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, ok := set[name]
		return ok
	})
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env
}

// ownInput reports whether npm passes its own input to the program that cb asks for, as it does for a script that it
// was asked to run. The program then gets this one's input, of which npm reads nothing.
func (p *programs) ownInput(cb *callbacks.Program) bool {
	return cb.Kind == callbacks.Scripts && p.tty == nil && slices.Contains([]string{"run", "run-script", "test", "start", "stop", "restart"}, cb.Env["npm_command"])
}

// endGrace is how long a program may take to exit once its result is no longer awaited.
const endGrace = 250 * time.Millisecond

// start runs one program until it exits. A program at the console gets this program's own streams, except for a
// pager's input. Other programs get the streams of cb, except for the input of a script that npm was asked to run, and
// no terminal of their own.
func (p *programs) start(cb *callbacks.Program, argv, env []string, console bool) (int, error) {
	path := look(argv[0])
	if path == "" {
		return 0, fmt.Errorf("%s is not in PATH here", argv[0])
	}
	if console {
		p.console.Lock()
		defer p.console.Unlock()
	}
	// The child is killed when the thread that started it exits.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr := &os.ProcAttr{Dir: cb.Cwd, Env: env, Sys: &syscall.SysProcAttr{}}
	endWith(attr.Sys)
	streams, err := p.streams(cb, console)
	defer streams.closeTheirs()
	if err != nil {
		streams.closeOurs()
		return 0, err
	}
	attr.Files = streams.files[:]
	fd := -1
	if console {
		attr.Sys.Setpgid = true
		if fd = foreground(); fd >= 0 {
			attr.Sys.Foreground, attr.Sys.Ctty = true, fd
			// This lets this program take the terminal back.
			signal.Ignore(syscall.SIGTTOU)
			defer signal.Reset(syscall.SIGTTOU)
		}
		p.tty.lend()
		defer p.tty.takeBack()
	} else {
		attr.Sys.Setsid = true
	}
	defer streams.closeOurs()
	child, err := os.StartProcess(path, argv, attr)
	if err != nil {
		return 0, err
	}
	streams.closeTheirs()
	if fd >= 0 {
		defer setForeground(fd, unix.Getpgrp())
	}
	copied := streams.copy(cb)
	stop := endWhenDone(child.Pid, cb.Done)
	status, err := p.await(child.Pid, fd)
	stop()
	left := syscall.Kill(-child.Pid, 0) == nil
	child.Release()
	if err != nil {
		return 0, err
	}
	var late <-chan time.Time
	if left { // what it left behind may keep its outputs open forever
		late = time.After(endGrace)
	}
	select {
	case <-copied:
	case <-late:
	case <-cb.Done:
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// streams holds the standard streams of one program.
type streams struct {
	files [3]*os.File // the program's ends
	// Our ends of the pipes; nil where the program has another file.
	stdin, stdout, stderr *os.File
	ours, theirs          []*os.File // to close
}

// streams opens the streams of cb. The caller closes s even on error.
func (p *programs) streams(cb *callbacks.Program, console bool) (s *streams, err error) {
	s = &streams{files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}
	own := p.ownInput(cb)
	if !own && (!console || cb.Kind == callbacks.Pager) {
		if s.stdin, s.files[0], err = s.pipe(true); err != nil {
			return s, err
		}
	} else if own && isTerminal(os.Stdin) && foreground() < 0 || !own && p.tty == nil && !isTerminal(os.Stdin) {
		// Our own input may be the tool's, which is read elsewhere, or another job's.
		null, err := os.Open(os.DevNull)
		if err != nil {
			return s, err
		}
		s.theirs, s.files[0] = append(s.theirs, null), null
	}
	if !console {
		if s.stdout, s.files[1], err = s.pipe(false); err == nil {
			s.stderr, s.files[2], err = s.pipe(false)
		}
	}
	return s, err
}

// pipe makes a pipe. If reads is true, the program gets the reading end, otherwise the writing end.
func (s *streams) pipe(reads bool) (ours, theirs *os.File, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	ours, theirs = w, r
	if !reads {
		ours, theirs = r, w
	}
	s.ours, s.theirs = append(s.ours, ours), append(s.theirs, theirs)
	return ours, theirs, nil
}

// copy copies between the program's streams and those of cb. The channel is closed at the end of the program's
// outputs.
func (s *streams) copy(cb *callbacks.Program) (copied <-chan struct{}) {
	var copying sync.WaitGroup
	for _, c := range []struct {
		from *os.File
		to   io.Writer
	}{{s.stdout, cb.Stdout}, {s.stderr, cb.Stderr}} {
		if c.from != nil {
			copying.Go(func() { io.Copy(onlyWriter{c.to}, onlyReader{c.from}) })
		}
	}
	if s.stdin != nil {
		go func() {
			io.Copy(onlyWriter{s.stdin}, onlyReader{cb.Stdin})
			s.stdin.Close()
		}()
	}
	finished := make(chan struct{})
	go func() { copying.Wait(); close(finished) }()
	return finished
}

func (s *streams) closeOurs() {
	for _, f := range s.ours {
		f.Close()
	}
}

// closeTheirs closes the program's ends, once.
func (s *streams) closeTheirs() {
	for _, f := range s.theirs {
		f.Close()
	}
	s.theirs = nil
}

// endWhenDone terminates the process group pid when done is closed. It does nothing after stop, which waits for it to
// finish.
func endWhenDone(pid int, done <-chan struct{}) (stop func()) {
	ended := make(chan struct{})
	var ending sync.WaitGroup
	ending.Go(func() {
		select {
		case <-ended:
			return
		case <-done:
		}
		for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
			syscall.Kill(-pid, s) // it is not reaped yet, or its group is empty
		}
		select {
		case <-ended:
		case <-time.After(endGrace):
			syscall.Kill(-pid, syscall.SIGKILL)
		}
	})
	return func() {
		close(ended)
		ending.Wait()
	}
}

// await waits for the child to exit. While the child is stopped, this program stops as well, like the other members of
// its job.
func (p *programs) await(pid, fd int) (status syscall.WaitStatus, err error) {
	for {
		_, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil || !status.Stopped():
			return status, err
		case fd < 0:
			continue
		}
		own := unix.Getpgrp()
		setForeground(fd, own)
		syscall.Kill(0, syscall.SIGSTOP)
		// Continue the child whether or not it is in the foreground: if it is not, the terminal tells it so when it
		// uses the terminal.
		if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && group == own {
			setForeground(fd, pid)
		}
		syscall.Kill(-pid, syscall.SIGCONT)
	}
}

// foreground returns a descriptor of the terminal in whose foreground this program runs, or -1.
func foreground() int {
	for fd := range 3 {
		if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && group == unix.Getpgrp() {
			return fd
		}
	}
	return -1
}

func setForeground(fd, group int) { unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, group) }

func isTerminal(f *os.File) bool {
	fi, err := f.Stat()
	if err != nil || fi.Mode()&fs.ModeCharDevice == 0 {
		return false
	}
	_, err = unix.IoctlGetTermios(int(f.Fd()), getTermios)
	return err == nil
}

// onlyReader and onlyWriter keep io.Copy from its optimised ways of copying, which Close does not interrupt.
type onlyReader struct{ io.Reader }

type onlyWriter struct{ io.Writer }
