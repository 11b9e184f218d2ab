//go:build linux

package process_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/process"
)

// screen takes what is written to a terminal, and lets nothing be taken until it is
// read where gate is not nil.
type screen struct {
	gate chan struct{}
	mu   sync.Mutex
	got  bytes.Buffer
	more chan struct{} // has one after each write
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	s.got.Write(p)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	if s.gate != nil {
		<-s.gate
	}
	return len(p), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

// await waits until text was written.
func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	late := time.After(20 * time.Second)
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-late:
			t.Fatalf("%q was not written, but %q", text, s)
		}
	}
}

// onScreen gives c a terminal, and returns its keys.
func onScreen(c *process.Command, s *screen) io.Writer {
	keys, typed := io.Pipe()
	c.Terminal = &process.Terminal{Size: process.Size{Rows: 24, Cols: 80}, Input: keys, Stdin: true, Stderr: true}
	c.Stdout = s
	return typed
}

func needTerminals(t *testing.T, r *process.Runner) {
	t.Helper()
	if s := r.Confinement(); !s.Terminals() {
		t.Skip("no tool gets a terminal here")
	}
}

// A run is in the foreground of its terminal from its first instruction on.
func TestTerminalForeground(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needTerminals(t, r)
	for range 20 {
		c, s := shell(t.TempDir(), ""), newScreen()
		c.Path, c.Args = "/usr/bin/perl", []string{"-e", `my $g = pack "i", 0; ioctl(STDIN, 0x540f, $g); print unpack("i", $g) == getpgrp() ? "foreground\n" : "behind\n"`}
		onScreen(&c, s)
		if exit, err := r.Run(patient(t), c); err != nil || exit.Code != 0 || s.String() != "foreground\r\n" {
			t.Fatalf("%+v, %v, %q", exit, err, s)
		}
	}
}

// The terminal of one run is not that of the next one of the same supervisor, also
// while the first one's output waits for its reader.
func TestTerminalIsLeft(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needTerminals(t, r)
	say(t, r, shell(t.TempDir(), ""))
	first, s := shell(t.TempDir(), "echo first"), newScreen()
	s.gate = make(chan struct{})
	onScreen(&first, s)
	over := make(chan error, 1)
	go func() {
		_, err := r.Run(patient(t), first)
		over <- err
	}()
	s.await(t, "first")
	for range 3 { // whenever the first one's supervisor is free
		if got := say(t, r, shell(t.TempDir(), `(echo stolen > /dev/tty) 2>/dev/null && echo shared || echo none`)); got != "none" {
			t.Errorf("the terminal of another run: %q", got)
		}
		second, s2 := shell(t.TempDir(), `echo second > /dev/tty`), newScreen()
		onScreen(&second, s2)
		if exit, err := r.Run(patient(t), second); err != nil || exit.Code != 0 || s2.String() != "second\r\n" {
			t.Errorf("%+v, %v, %q", exit, err, s2)
		}
	}
	close(s.gate)
	if err := <-over; err != nil || s.String() != "first\r\n" {
		t.Errorf("%v, %q", err, s)
	}
}

// A run that puts its supervisor in the foreground of its terminal, and sends it all
// signals that can be typed, reaches neither the supervisor nor the next run.
func TestTerminalOfItsSupervisor(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needTerminals(t, r)
	c, s := shell(t.TempDir(), ""), newScreen()
	c.Path, c.Args = "/usr/bin/perl", []string{"-e", `$SIG{TTOU} = 'IGNORE'; $| = 1; ioctl(STDIN, 0x5410, pack("i", getpgrp(getppid()))) or print "refused $!\n"; print "ready\n"; sleep 1000`}
	typed := onScreen(&c, s)
	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	gone := make(chan struct{})
	c.Terminal.Gone = gone
	over := make(chan error, 1)
	go func() {
		_, err := r.Run(ctx, c)
		over <- err
	}()
	s.await(t, "ready")
	io.WriteString(typed, "\x03\x1c\x1a")
	s.await(t, "^Z")
	close(gone)
	cancel()
	if err := <-over; codeOf(err) != "ABORTED" {
		t.Error(err)
	}
	for range 3 {
		next, s := shell(t.TempDir(), `trap 'echo signalled' HUP INT QUIT TSTP CONT; for i in $(seq 300); do :; done; echo next`), newScreen()
		onScreen(&next, s)
		if exit, err := r.Run(patient(t), next); err != nil || exit.Code != 0 || s.String() != "next\r\n" {
			t.Errorf("%+v, %v, %q", exit, err, s)
		}
	}
}

// What a run types into its own terminal would be read by nobody of its own, but it is
// refused all the same, as is taking a terminal from others.
func TestTerminalRequests(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needTerminals(t, r)
	c, s := shell(t.TempDir(), ""), newScreen()
	c.Path, c.Args = "/usr/bin/perl", []string{"-e", `for (0x5412, 0x541c) { my $c = "x"; print ioctl(STDIN, $_, $c) ? "TYPED\n" : "refused\n" }`}
	onScreen(&c, s)
	if exit, err := r.Run(patient(t), c); err != nil || exit.Code != 0 || s.String() != "refused\r\nrefused\r\n" {
		t.Errorf("%+v, %v, %q", exit, err, s)
	}
}

// What outlives the run's own program is ended, and holds nobody up: not in the
// background, in a session of its own, or stopped.
func TestTerminalOutlived(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needTerminals(t, r)
	for _, script := range []string{
		`trap '' HUP TERM; sleep 1000 & echo $!; exit 4`,
		`setsid sh -c 'trap "" HUP TERM; echo up; while :; do sleep 1; done' & read up; exit 4`,
		`sleep 1000 & kill -STOP $!; exit 4`,
	} {
		c, s := shell(t.TempDir(), script), newScreen()
		typed := onScreen(&c, s)
		if strings.Contains(script, "read up") {
			go func() { s.await(t, "up"); io.WriteString(typed, "\r") }()
		}
		start := time.Now()
		if exit, err := r.Run(patient(t), c); err != nil || exit.Code != 4 {
			t.Errorf("%s: %+v, %v, %q", script, exit, err, s)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s: %v", script, took)
		}
	}
}

// A run that is stopped is continued by a signal, is told of its end all the same, and
// is continued at once where nobody is told that it was stopped.
func TestTerminalStopped(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needTerminals(t, r)
	start := func(script string, told bool) (s *screen, signals chan os.Signal, stops chan string, cancel func(), over chan process.Exit) {
		c := shell(t.TempDir(), script)
		s = newScreen()
		onScreen(&c, s)
		signals, stops, over = make(chan os.Signal), make(chan string, 8), make(chan process.Exit, 1)
		c.Signals = signals
		if told {
			c.Terminal.Stopped = func() { stops <- s.String() }
		}
		ctx, cancel := context.WithCancel(patient(t))
		t.Cleanup(cancel)
		go func() {
			exit, _ := r.Run(ctx, c)
			over <- exit
		}()
		return s, signals, stops, cancel, over
	}
	// All that was written before is delivered before.
	_, signals, stops, _, over := start(`for i in 1 2 3; do seq 2000; echo last-$i; kill -STOP $$; done; exit 3`, true)
	for _, last := range []string{"last-1\r\n", "last-2\r\n", "last-3\r\n"} {
		if got := <-stops; !strings.HasSuffix(got, last) {
			t.Errorf("stopped behind %q", got[max(0, len(got)-20):])
		}
		signals <- syscall.SIGCONT
	}
	if exit := <-over; exit.Code != 3 {
		t.Errorf("%+v", exit)
	}
	_, _, _, _, over = start(`kill -STOP $$; kill -TSTP $$; exit 5`, false)
	if exit := <-over; exit.Code != 5 {
		t.Errorf("%+v", exit)
	}
	s, _, stops, cancel, over := start(`trap 'echo ended; exit 6' TERM; kill -STOP $$; while :; do sleep 0.01; done`, true)
	<-stops
	cancel()
	<-over
	if got := s.String(); got != "ended\r\n" {
		t.Errorf("a stopped run that was told to end wrote %q", got)
	}
}

// A reader that does not read holds up the run, and nothing else: no more than a
// terminal holds is taken from the run, and its end ends it.
func TestTerminalSlowReader(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needTerminals(t, r)
	c, s, mark := shell(t.TempDir(), "exec yes"), newScreen(), newMark()
	c.Env = append(c.Env, "MARK="+mark)
	s.gate = make(chan struct{})
	onScreen(&c, s)
	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	over := make(chan error, 1)
	go func() {
		_, err := r.Run(ctx, c)
		over <- err
	}()
	s.await(t, "y")
	if got := say(t, r, shell(t.TempDir(), "echo other")); got != "other" {
		t.Error(got)
	}
	var pids []int
	for _, process := range alive(t, mark) {
		var pid int
		fmt.Sscan(process, &pid)
		pids = append(pids, pid)
	}
	cancel()
	waitGone(t, pids...) // nothing is written any more
	close(s.gate)        // a write under way is waited for
	if err := <-over; codeOf(err) != "ABORTED" {
		t.Error(err)
	}
	if n := len(s.String()); n > 256<<10 {
		t.Errorf("%d bytes were taken", n)
	}
}

// forked is a program of perl's that waits in vfork, as shells and make do for each
// program that they start, for a child that only executes its own when it was
// continued. The child's is script, and key is what stops both.
func forked(c *process.Command, key, script string) {
	clone := map[string]string{"amd64": "56", "arm64": "220"}[runtime.GOARCH]
	c.Path, c.Args = "/usr/bin/perl", []string{"-e", `use POSIX; $| = 1; my ($clone, $key, $script) = @ARGV;
my $modes = POSIX::Termios->new; $modes->getattr(0); $modes->setcc(VSUSP, ord $key); $modes->setattr(0, TCSANOW);
my $pid = syscall($clone + 0, 0x4011, 0, 0, 0, 0); # CLONE_VFORK | SIGCHLD
if (!$pid) { my $on; $SIG{CONT} = sub { $on = 1 }; print "child\n"; select undef, undef, undef, 0.01 until $on; exec $^X, "-e", $script }
waitpid $pid, 0; exit 7`, clone, key, script}
}

// A program whose child is stopped between vfork and execve is not stopped by the kernel, as it waits
// for that child. Ctrl-Z stops both all the same, behind the child's execve.
func TestTerminalStoppedInVfork(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("the number of clone is not known here")
	}
	r := newRunner(t, process.Config{Ready: 1})
	needTerminals(t, r)
	start := func(key, mark string, told bool) (s *screen, typed io.Writer, signals chan os.Signal, stops chan string, over chan process.Exit) {
		c := shell(t.TempDir(), "")
		c.Env = append(c.Env, "MARK="+mark)
		forked(&c, key, `$| = 1; print "goes on\n"; print "got ", scalar <STDIN>`)
		s = newScreen()
		typed = onScreen(&c, s)
		signals, stops, over = make(chan os.Signal), make(chan string, 8), make(chan process.Exit, 1)
		c.Signals = signals
		if told {
			c.Terminal.Stopped = func() { stops <- s.String() }
		}
		go func() {
			exit, err := r.Run(patient(t), c)
			if err != nil {
				t.Error(err)
			}
			over <- exit
		}()
		return
	}
	for how, key := range map[string]string{"typed": "\x1a", "another key": "%", "a signal": "\x1a"} {
		mark := newMark()
		s, typed, signals, stops, over := start(key, mark, true)
		s.await(t, "child")
		if how == "a signal" {
			signals <- syscall.SIGTSTP
		} else {
			io.WriteString(typed, key)
		}
		select {
		case <-stops:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: nothing was stopped", how)
		}
		// The child is stopped too, as soon as it gets to it.
		for stopped := 0; stopped < 2; runtime.Gosched() {
			stopped = 0
			for _, process := range alive(t, mark) {
				number, _, _ := strings.Cut(process, " ")
				b, err := os.ReadFile("/proc/" + number + "/stat")
				if err == nil && bytes.Contains(b, []byte(") T ")) {
					stopped++
				}
			}
		}
		signals <- syscall.SIGCONT
		io.WriteString(typed, "it\r")
		s.await(t, "got it")
		if exit := <-over; exit.Code != 7 {
			t.Errorf("%s: %+v, %q", how, exit, s)
		}
	}
	// Where nobody is told, both go on.
	s, typed, _, _, over := start("\x1a", "", false)
	s.await(t, "child")
	io.WriteString(typed, "\x1a")
	s.await(t, "goes on")
	io.WriteString(typed, "it\r")
	if exit := <-over; exit.Code != 7 {
		t.Errorf("%+v, %q", exit, s)
	}
}

// What is typed before a run executes its program is typed when it does. Ctrl-Z would be
// nobody's, or stop it before, and its supervisor, which waits for it in vfork, would hear of nothing more.
func TestTerminalStoppedAtItsBeginning(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needTerminals(t, r)
	for range 5 {
		c, s := shell(t.TempDir(), `read line; echo got $line`), newScreen()
		typed := onScreen(&c, s)
		signals, stops, over := make(chan os.Signal), make(chan string, 8), make(chan error, 1)
		c.Signals, c.Terminal.Stopped = signals, func() { stops <- s.String() }
		go io.WriteString(typed, "\x1a")
		go func() {
			_, err := r.Run(patient(t), c)
			over <- err
		}()
		select {
		case <-stops:
		case err := <-over:
			t.Fatalf("it was not stopped: %v, %q", err, s)
		}
		signals <- syscall.SIGCONT
		io.WriteString(typed, "it\r")
		if err := <-over; err != nil || !strings.Contains(s.String(), "got it") {
			t.Errorf("%v, %q", err, s)
		}
	}
}
