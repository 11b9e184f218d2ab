package main

import (
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/wire"
)

// terminal is this program's terminal, for a tool that gets one of its own: keystrokes go unchanged to the tool's
// terminal, whose line discipline turns Ctrl-C and the like into signals.
type terminal struct {
	fd    int
	offer wire.TTY
	// sizes carries changes of size since raw.
	sizes chan wire.Size
	// keys reads keystrokes. It watches for a user who insists on exiting.
	keys insisting
	// signals passes signals on to the tool. Set before raw.
	signals chan<- os.Signal
	// caught delivers the signals for watch. Set by raw.
	caught chan os.Signal

	mu    sync.Mutex // guards the fields below
	saved *unix.Termios
	// behind is true while a goroutine waits for the foreground.
	behind bool
	// stop ends watch; nil while the terminal is in its original mode.
	stop chan struct{}
	// lent is true while another program uses the terminal.
	lent bool
	// suspended is true while the tool is stopped and keystrokes are not for it.
	suspended bool
}

// newTerminal returns nil if the tool is to get pipes: input and output are not both a terminal, or another job has
// the terminal at the moment.
func newTerminal(stdin io.Reader, stdout, stderr io.Writer) *terminal {
	in, ok1 := stdin.(*os.File)
	out, ok2 := stdout.(*os.File)
	if !ok1 || !ok2 {
		return nil
	}
	fd := int(in.Fd())
	size, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	if err != nil || !sameDevice(in, out) {
		return nil
	}
	if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil || group != unix.Getpgrp() {
		return nil
	}
	t := &terminal{fd: fd, sizes: make(chan wire.Size, 1)}
	if t.keys.open(in) != nil {
		return nil
	}
	t.offer = wire.TTY{Jobs: true, Rows: size.Row, Cols: size.Col, Term: termName("TERM"), ColorTerm: termName("COLORTERM")}
	if e, ok := stderr.(*os.File); ok {
		t.offer.Stderr = sameDevice(e, out)
	}
	t.keys.leave = func() {
		t.restore()
		endBy(syscall.SIGINT, true)
		os.Exit(128 + int(syscall.SIGINT))
	}
	return t
}

// typed reports whether the signal was sent by a key, which the tool's terminal has read.
func (t *terminal) typed(s os.Signal) bool {
	if t == nil {
		return false
	}
	switch t.keys.typed.Load() {
	case ctrlC:
		return s == syscall.SIGINT
	case ctrlBackslash:
		return s == syscall.SIGQUIT
	}
	return false
}

// sameDevice reports whether a and b are one terminal.
func sameDevice(a, b *os.File) bool {
	var x, y unix.Stat_t
	if unix.Fstat(int(a.Fd()), &x) != nil || unix.Fstat(int(b.Fd()), &y) != nil {
		return false
	}
	return x.Mode&unix.S_IFMT == unix.S_IFCHR && x.Mode&unix.S_IFMT == y.Mode&unix.S_IFMT && x.Rdev == y.Rdev
}

// termName returns a terminal type that a daemon accepts, or "".
func termName(name string) string {
	if v := os.Getenv(name); wire.TermName(v) {
		return v
	}
	return ""
}

// deadly are the signals that kill a Go program that does not catch them, other than those passed on to the tool.
var deadly = []os.Signal{syscall.SIGABRT, syscall.SIGSYS, syscall.SIGTRAP}

// raw passes keystrokes on unchanged until restore, and tracks the size.
func (t *terminal) raw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stop != nil || !t.rawLocked() {
		return
	}
	t.stop = make(chan struct{})
	t.caught = make(chan os.Signal, 8)
	signal.Notify(t.caught, append([]os.Signal{syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT}, deadly...)...)
	go t.watch(t.caught, t.stop)
	t.resized() // it may have changed since the terminal was offered
}

func (t *terminal) rawLocked() bool {
	saved, err := unix.IoctlGetTermios(t.fd, getTermios)
	if err != nil {
		return false
	}
	m := *saved
	m.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	m.Oflag &^= unix.OPOST
	m.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	m.Cflag &^= unix.CSIZE | unix.PARENB
	m.Cflag |= unix.CS8
	m.Cc[unix.VMIN], m.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(t.fd, setTermios, &m) != nil {
		return false
	}
	t.saved = saved
	return true
}

// restore returns the terminal to its original mode. It may be called at any time, repeatedly, and on nil.
func (t *terminal) restore() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.restoreLocked()
	if t.stop != nil {
		close(t.stop)
		t.stop = nil
	}
}

func (t *terminal) restoreLocked() {
	if t.saved != nil {
		unix.IoctlSetTermios(t.fd, setTermios, t.saved)
		t.saved = nil
	}
}

// watch tracks the size, and restores the terminal while this program is stopped and when it is killed by a signal.
func (t *terminal) watch(caught chan os.Signal, stop <-chan struct{}) {
	defer signal.Stop(caught)
	for {
		select {
		case <-stop:
			return
		case s := <-caught:
			switch s {
			case syscall.SIGWINCH:
				t.resized()
			case syscall.SIGTSTP:
				// Not from Ctrl-Z, which is passed on as a byte. First the tool stops, then this program.
				t.mu.Lock()
				lent := t.lent
				t.mu.Unlock()
				if lent {
					syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
					continue
				}
				select {
				case t.signals <- s:
				default: // the daemon is not listening
				}
			case syscall.SIGCONT: // also after SIGSTOP
				t.resume()
			default:
				t.restore()
				signal.Reset(s)
				syscall.Kill(syscall.Getpid(), s.(syscall.Signal))
			}
		}
	}
}

// suspend stops this program with its job, as its tool was stopped. It calls goOn when the program is continued, or at
// once if no process could continue it.
func (t *terminal) suspend(goOn func()) {
	t.mu.Lock()
	if t.lent || t.stop == nil {
		t.mu.Unlock()
		goOn()
		return // another program has the terminal, and the tool does not compete for it
	}
	t.suspended = true
	t.keys.pause(true)
	t.restoreLocked()
	t.mu.Unlock()
	stopJob()
	goOn()
	t.mu.Lock()
	t.suspended = false
	t.mu.Unlock()
	t.resume()
}

// resume passes keystrokes on again as soon as this program is in the foreground. Until then it leaves the terminal
// alone, since touching it would stop the program.
func (t *terminal) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stop == nil || t.lent || t.suspended {
		return
	}
	if t.inForeground() {
		if t.saved == nil {
			t.rawLocked()
		}
		t.keys.pause(false)
		t.resized()
		return
	}
	if t.behind {
		return
	}
	t.behind = true
	// A shell sends no signal when it moves a running job to the foreground.
	go func(stop <-chan struct{}) {
		tick := time.NewTicker(foregroundCheck)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			if t.inForeground() {
				t.mu.Lock()
				t.behind = false
				t.mu.Unlock()
				t.resume()
				return
			}
		}
	}(t.stop)
}

// foregroundCheck is how often a program in the background checks whether it still is.
const foregroundCheck = 100 * time.Millisecond

func (t *terminal) inForeground() bool {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// resized sends the current size.
func (t *terminal) resized() {
	size, err := unix.IoctlGetWinsize(t.fd, unix.TIOCGWINSZ)
	if err != nil {
		return
	}
	select {
	case <-t.sizes:
	default:
	}
	select {
	case t.sizes <- wire.Size{Rows: size.Row, Cols: size.Col}:
	default:
	}
}

// lend hands the terminal over to another program, in its original mode and with its keystrokes. It may be called on
// nil.
func (t *terminal) lend() {
	if t == nil {
		return
	}
	t.keys.pause(true)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lent = true
	t.restoreLocked()
}

// takeBack ends lend.
func (t *terminal) takeBack() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.lent = false
	if t.stop != nil && t.saved == nil {
		t.rawLocked()
		t.resized()
	}
	t.mu.Unlock()
	t.keys.pause(false)
}

// insisting reads what is typed, and leaves when Ctrl-C is typed so often in so
// short a time that it is meant for this program: the daemon may not listen. It
// reads nothing while it is paused.
const ctrlC, ctrlBackslash = 3, 28

type insisting struct {
	r     *os.File
	leave func()
	last  insistence
	// typed is the last key by which a terminal sends a signal.
	typed atomic.Int32

	// wake interrupts a Read that waits.
	wakes, wake *os.File

	mu     sync.Mutex // held during a read; guards paused
	more   *sync.Cond
	paused bool
}

func (i *insisting) open(r *os.File) (err error) {
	i.r, i.more = r, sync.NewCond(&i.mu)
	i.wakes, i.wake, err = os.Pipe()
	return err
}

func (i *insisting) pause(on bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.paused = on
	i.more.Broadcast()
	if on {
		i.wake.Write([]byte{0})
	}
}

func (i *insisting) Read(p []byte) (n int, err error) {
	waits := []unix.PollFd{{Fd: int32(i.r.Fd()), Events: unix.POLLIN}, {Fd: int32(i.wakes.Fd()), Events: unix.POLLIN}}
	i.mu.Lock()
	for {
		for i.paused {
			i.more.Wait()
		}
		i.mu.Unlock()
		_, err := unix.Poll(waits, -1)
		i.mu.Lock()
		if err != nil && err != unix.EINTR {
			break // the read reports the error
		}
		if waits[1].Revents != 0 {
			var b [1]byte
			i.wakes.Read(b[:])
			continue
		}
		if waits[0].Revents != 0 && !i.paused {
			break
		}
	}
	n, err = i.r.Read(p)
	i.mu.Unlock()
	for _, c := range p[:max(n, 0)] {
		if c == ctrlC || c == ctrlBackslash {
			i.typed.Store(int32(c))
		}
		if c == ctrlC && i.last.again() {
			i.leave()
		}
	}
	return n, err
}
