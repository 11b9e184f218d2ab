package host_test

import (
	"bytes"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// screen is a terminal that a wrapper stands at, as a person would.
type screen struct {
	t             testing.TB
	master, slave *os.File
	cmd           *exec.Cmd
	stderr        *os.File // of the wrapper, unless it is the terminal
	env           []string // of the wrapper, beside what all have
	before        unix.Termios

	mu   sync.Mutex // guards what follows
	got  []byte
	more *sync.Cond
	over bool
}

// openScreen makes a terminal of 24 rows and 80 columns.
func openScreen(t testing.TB) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("this system has no terminals: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Fatal(errno)
	}
	s := &screen{t: t, master: master, slave: os.NewFile(fd, "slave")}
	s.more = sync.NewCond(&s.mu)
	t.Cleanup(func() { s.slave.Close() })
	s.resize(24, 80)
	s.before = s.mode()
	go func() {
		b := make([]byte, 32<<10)
		for {
			n, err := master.Read(b)
			s.mu.Lock()
			s.got = append(s.got, b[:n]...)
			s.over = s.over || err != nil
			s.more.Broadcast()
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

// shown returns all that was written to the screen so far.
func (s *screen) shown() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

func (s *screen) mode() unix.Termios {
	s.t.Helper()
	m, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil {
		s.t.Fatal(err)
	}
	return *m
}

func (s *screen) resize(rows, cols uint16) {
	s.t.Helper()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		s.t.Fatal(err)
	}
}

// start starts a wrapper there, in a session whose terminal it is.
func (s *screen) start(socket, dir, program, tool string, args ...string) {
	s.t.Helper()
	s.cmd = exec.Command(program)
	s.cmd.Args = append([]string{tool}, args...)
	s.cmd.Dir = dir
	s.cmd.Env = []string{"TOOL_SOCKET=" + socket, "TERM=xterm-256color", "COLORTERM=truecolor"}
	s.cmd.Env = append(s.cmd.Env, s.env...)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = s.slave, s.slave, s.slave
	if s.stderr != nil {
		s.cmd.Stderr = s.stderr
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.cmd.Process.Kill() })
}

// expect waits until the screen has shown what matches, and returns it all.
func (s *screen) expect(pattern string) string {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	late := time.AfterFunc(20*time.Second, func() { s.mu.Lock(); s.over = true; s.more.Broadcast(); s.mu.Unlock() })
	defer late.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !re.Match(s.got) {
		if s.over {
			s.t.Fatalf("nothing like %q was shown, but %q", pattern, s.got)
		}
		s.more.Wait()
	}
	return string(s.got)
}

func (s *screen) typed(text string) {
	s.t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// ended waits for the wrapper, and for its terminal to be as it was. It returns the exit
// code as a shell has it.
func (s *screen) ended() int {
	s.t.Helper()
	err := s.cmd.Wait()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		s.t.Fatal(err)
	}
	if m := s.mode(); m != s.before {
		s.t.Errorf("the terminal is %+v, and was %+v", m, s.before)
	}
	// What the wrapper wrote last may not have been read yet; this comes behind it.
	const mark = "\x00end of the wrapper\x00"
	if _, err := s.slave.WriteString(mark); err == nil {
		s.mu.Lock()
		for !s.over && !bytes.HasSuffix(s.got, []byte(mark)) {
			s.more.Wait()
		}
		s.got = bytes.TrimSuffix(s.got, []byte(mark))
		s.mu.Unlock()
	}
	if status := s.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return s.cmd.ProcessState.ExitCode()
}

func needsTerminals(t *testing.T) {
	t.Helper()
	if !hosttest.Judged() || os.Geteuid() == 0 && !hosttest.Wanted(confine.Namespaces) {
		t.Skip("no tool gets a terminal here: system calls are not judged, or root could open that of another")
	}
}

var shell = M{"binary": "/bin/sh", "terminal": true, "capabilities": M{"exec": []string{"/usr/bin/stty", "/usr/bin/tty", "/usr/bin/cat", "/usr/bin/ls", "/usr/bin/sleep"}}}

func TestTerminal(t *testing.T) {
	needsTerminals(t)
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "sh", shell, nil)
	program := wrapperProgram(t)

	t.Run("resize", func(t *testing.T) {
		s := openScreen(t)
		s.start(d.Socket, d.Root, program, "sh", "-c", `test -t 0 && test -t 1 && test -t 2 && echo "all $TERM $COLORTERM"; stty size; trap 'stty size' WINCH; echo ready; while :; do read line && exit 3; done`)
		s.expect(`all xterm-256color truecolor\r\n24 80\r\nready`)
		s.resize(50, 132)
		s.expect(`50 132`)
		s.typed("end\r")
		if code := s.ended(); code != 3 {
			t.Errorf("exit code %d", code)
		}
	})
	// Ctrl-C is a signal of the tool's terminal, and one of all that the tool started.
	t.Run("interrupt", func(t *testing.T) {
		s := openScreen(t)
		s.start(d.Socket, d.Root, program, "sh", "-c", `echo ready; exec cat`)
		s.expect(`ready`)
		s.typed("\x03")
		if code := s.ended(); code != 130 {
			t.Errorf("exit code %d: %s", code, s.shown())
		}
	})
	// It ends the script that the wrapper is part of, as natively.
	t.Run("interrupted script", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "sh")
		if err := os.Symlink(program, link); err != nil {
			t.Fatal(err)
		}
		s := openScreen(t)
		s.start(d.Socket, d.Root, "/bin/sh", "sh", "-c", `for i in 1 2; do `+link+` -c 'echo ready; exec cat'; echo next; done`)
		s.expect(`ready`)
		s.typed("\x03")
		if code := s.ended(); code != 130 || bytes.Contains(s.shown(), []byte("next")) {
			t.Errorf("exit code %d: %s", code, s.shown())
		}
	})
	t.Run("quit", func(t *testing.T) {
		s := openScreen(t)
		s.start(d.Socket, d.Root, program, "sh", "-c", `echo ready; exec cat`)
		s.expect(`ready`)
		s.typed("\x1c")
		if code := s.ended(); code != 128+int(syscall.SIGQUIT) {
			t.Errorf("exit code %d: %s", code, s.shown())
		}
	})
	t.Run("end of input", func(t *testing.T) {
		s := openScreen(t)
		s.start(d.Socket, d.Root, program, "sh", "-c", `echo ready; cat; echo after`)
		s.expect(`ready`)
		s.typed("a line\r\x04")
		s.expect(`ready\r\na line\r\na line\r\nafter`)
		if code := s.ended(); code != 0 {
			t.Errorf("exit code %d: %s", code, s.shown())
		}
	})
	t.Run("errors elsewhere", func(t *testing.T) {
		s := openScreen(t)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s.stderr = w
		s.start(d.Socket, d.Root, program, "sh", "-c", `test -t 2 || echo pipe; echo error >&2; read line`)
		w.Close()
		s.expect(`pipe`)
		s.typed("\r")
		if b, err := io.ReadAll(r); err != nil || string(b) != "error\n" {
			t.Errorf("%q, %v", b, err)
		}
		s.ended()
	})
	// Whoever insists leaves, though the tool ignores it.
	t.Run("insist", func(t *testing.T) {
		s := openScreen(t)
		s.start(d.Socket, d.Root, program, "sh", "-c", `trap '' INT QUIT; echo ready; while :; do sleep 1; done`)
		s.expect(`ready`)
		s.typed("\x03\x03\x03")
		if code := s.ended(); code != 130 {
			t.Errorf("exit code %d: %s", code, s.shown())
		}
	})
	// A signal that ends the wrapper gives its terminal back first.
	t.Run("killed wrapper", func(t *testing.T) {
		s := openScreen(t)
		s.start(d.Socket, d.Root, program, "sh", "-c", `echo ready; exec cat`)
		s.expect(`ready`)
		s.cmd.Process.Signal(syscall.SIGABRT)
		if code := s.ended(); code != 2 {
			t.Errorf("%v", s.cmd.ProcessState)
		}
	})
	// One that was stopped by what it cannot catch goes on with the size of now.
	t.Run("stopped wrapper", func(t *testing.T) {
		s := openScreen(t)
		s.start(d.Socket, d.Root, program, "sh", "-c", `trap 'stty size' WINCH; echo ready; while :; do read line && exit 3; done`)
		s.expect(`ready`)
		pid := s.cmd.Process.Pid
		s.cmd.Process.Signal(syscall.SIGSTOP)
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil); err != nil || !ws.Stopped() {
			t.Fatalf("%v, %v", ws, err)
		}
		s.resize(40, 90)
		s.cmd.Process.Signal(syscall.SIGCONT)
		s.expect(`40 90`)
		s.typed("end\r")
		if code := s.ended(); code != 3 {
			t.Errorf("exit code %d: %s", code, s.shown())
		}
	})
	// A caller that leaves hangs the tool's terminal up, and ends the tool.
	t.Run("hang-up", func(t *testing.T) {
		s := openScreen(t)
		file := filepath.Join(d.Root, "hung-up")
		s.start(d.Socket, d.Root, program, "sh", "-c", `trap 'echo HUP > hung-up; exit' HUP; trap '' TERM; echo ready; while :; do read line; done`)
		s.expect(`ready`)
		s.cmd.Process.Kill()
		s.cmd.Wait()
		d.Stop(t) // waits for what runs
		if b, err := os.ReadFile(file); string(b) != "HUP\n" {
			t.Errorf("%q, %v", b, err)
		}
	})
}

// The tool reaches its own terminal and no other one, and cannot type into it.
func TestTerminalIsKeptApart(t *testing.T) {
	needsTerminals(t)
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "sh", shell, nil)
	program := wrapperProgram(t)
	other := openScreen(t) // one of the daemon's user
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(other.slave.Fd())))
	if err != nil {
		t.Fatal(err)
	}
	s := openScreen(t)
	s.start(d.Socket, d.Root, program, "sh", "-c", `echo "own $(echo yes > /dev/tty && echo opened)"
		(: < `+name+`) 2> /dev/null && echo OTHER READ
		(: > `+name+`) 2> /dev/null && echo OTHER WRITTEN
		(: > /dev/ptmx) 2> /dev/null && echo NEW TERMINAL
		ls -A /dev/pts; echo end; read line`)
	got := s.expect(`(?s)own opened.*end\r\n`)
	for _, bad := range []string{"OTHER", "NEW TERMINAL", "ptmx\r\n"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q was shown: %q", bad, got)
		}
	}
	s.typed("\r")
	s.ended()
}

// A secret is not shown, nor one of several lines, each of which a terminal ends in
// its own way.
func TestTerminalIsMasked(t *testing.T) {
	needsTerminals(t)
	d := hosttest.Start(t, config.Config{})
	files := t.TempDir()
	for name, text := range map[string]string{"one": "canary-of-the-terminal", "lines": "ab1\ncd2\nef3\ngh4"} {
		if err := os.WriteFile(filepath.Join(files, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	def := maps.Clone(shell)
	def["secrets"] = M{"one": M{"from": "file:" + files + "/one", "env": "ONE"}, "lines": M{"from": "file:" + files + "/lines", "env": "LINES_OF_IT"}}
	d.Tool(t, "sh", def, nil)
	s := openScreen(t)
	s.start(d.Socket, d.Root, wrapperProgram(t), "sh", "-c", `test -t 1 && echo "begin <$ONE> <$LINES_OF_IT> end"; read line`)
	got := s.expect(`(?s)begin.*end\r\n`)
	if strings.Contains(got, "canary") || strings.Contains(got, "cd2") {
		t.Errorf("%q", got)
	}
	s.typed("\r")
	s.ended()
}

// Of what a tool writes only what changes the screen reaches the caller's terminal,
// unless its operator says otherwise; never a part of a sequence that something else
// would complete, and no secret that a sequence stood in the middle of.
func TestTerminalIsFiltered(t *testing.T) {
	needsTerminals(t)
	d := hosttest.Start(t, config.Config{})
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("canary-word"), 0o600); err != nil {
		t.Fatal(err)
	}
	def := maps.Clone(shell)
	def["secrets"] = M{"one": M{"from": "file:" + file, "env": "ONE"}}
	d.Tool(t, "display", def, nil)
	def["terminal_output"] = "all"
	d.Tool(t, "all", def, nil)
	program := wrapperProgram(t)
	const write = `printf 'begin \033[31mred\033[m \033]0;title\007\033]52;c;aGk=\007\033[6n\033[c\005\033P$q m\033\\\\'; printf '<canary\033]0;x\007-word>'
		printf '\033]2;of errors\007' >&2; echo end; read line; printf '\033[21'`
	for tool, answers := range map[string]bool{"display": false, "all": true} {
		s := openScreen(t)
		s.start(d.Socket, d.Root, program, tool, "-c", write)
		got := s.expect(`begin \x1b\[31mred\x1b\[m (?s).*end\r\n`)
		for _, seq := range []string{"title", "\x1b]52", "\x1b[6n", "\x1b[c", "\x05", "\x1bP", "of errors"} {
			if strings.Contains(got, seq) != answers {
				t.Errorf("%s: %q in %q: %v", tool, seq, got, !answers)
			}
		}
		if strings.Contains(got, "canary-word") {
			t.Errorf("%s: the secret is shown: %q", tool, got)
		}
		s.typed("\r")
		s.ended()
		if shown := string(s.shown()); strings.Contains(shown, "\x1b[21") != answers {
			t.Errorf("%s: a part of a sequence is passed on: %q", tool, shown)
		}
	}
	// Where the output is over its limit, a sequence is not cut either.
	def = maps.Clone(shell)
	def["limits"] = M{"stream": 1000}
	d.Tool(t, "limited", def, nil)
	s := openScreen(t)
	s.start(d.Socket, d.Root, program, "limited", "-c", `printf '%0996d' 0; printf '\033[21;1H'`)
	s.expect(`0{996}`)
	s.ended()
	if got := string(s.shown()); strings.Contains(got, "\x1b[21") {
		t.Errorf("%q", got)
	}
}

// A tool whose operator gives it no terminal has pipes, and so has one whose caller
// is not at a terminal.
func TestNoTerminal(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	def := maps.Clone(shell)
	delete(def, "terminal")
	d.Tool(t, "plain", def, nil)
	d.Tool(t, "sh", shell, nil)
	program := wrapperProgram(t)
	const ask = `test -t 0 || test -t 1 || test -t 2 || echo pipes; (: < /dev/tty) 2> /dev/null || echo none; echo "<$TERM>"`
	s := openScreen(t)
	s.start(d.Socket, d.Root, program, "plain", "-c", ask)
	s.expect(`pipes\r\nnone\r\n<>\r\n`)
	if code := s.ended(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	cmd := exec.Command(program)
	cmd.Args, cmd.Dir, cmd.Env = []string{"sh", "-c", ask}, d.Root, []string{"TOOL_SOCKET=" + d.Socket, "TERM=xterm"}
	if out, err := cmd.Output(); err != nil || string(out) != "pipes\nnone\n<>\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// A daemon that has no terminals refuses the offer, and gets the call without it.
func TestTerminalAndAnOlderDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan *wire.Call, 2)
	go func() {
		defer close(asked)
		for range 2 {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			frame, err := wire.ReadFrame(c)
			if err != nil {
				return
			}
			m, _ := wire.Parse(frame)
			call, _ := m.(*wire.Call)
			asked <- call
			if call.TTY != nil {
				wire.WriteFrame(c, []byte(`{"type":"result","exit_code":64,"error":"/tty: is not a known name; valid: tool, args (byte 9)","code":"INVALID_ENVELOPE","status":"error"}`))
				continue
			}
			wire.WriteFrame(c, []byte(`{"type":"stdout","data":"aGkK"}`))
			wire.WriteFrame(c, []byte(`{"type":"result","exit_code":3,"error":"","status":"error"}`))
		}
	}()
	s := openScreen(t)
	s.start(socket, t.TempDir(), wrapperProgram(t), "git", "log")
	s.expect(`hi`)
	if code := s.ended(); code != 3 {
		t.Errorf("exit code %d", code)
	}
	if first, second := <-asked, <-asked; first.TTY == nil || second.TTY != nil || second.Tool != "git" {
		t.Errorf("%+v, %+v", first, second)
	}
}

// The terminal of a wrapper is as it was when its daemon is gone.
func TestTerminalAfterTheDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connected := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wire.ReadFrame(c)
		wire.WriteFrame(c, wire.EncodeTerminal())
		wire.WriteFrame(c, []byte(`{"type":"stdout","data":"aGkNCg=="}`))
		connected <- c
	}()
	s := openScreen(t)
	s.start(socket, t.TempDir(), wrapperProgram(t), "git", "log")
	s.expect(`hi`)
	if s.mode().Lflag&unix.ICANON != 0 {
		t.Error("the terminal is not raw")
	}
	(<-connected).Close()
	if code := s.ended(); code != 70 {
		t.Errorf("exit code %d", code)
	}
}
