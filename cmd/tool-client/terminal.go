package main

import (
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/wire"
)

// terminal is the one that this program stands at, for a tool that gets it: then
// what is typed goes to the tool's own terminal as it is, whose line discipline
// makes signals of Ctrl-C and the like.
type terminal struct {
	fd    int
	offer wire.TTY
	// sizes are those since raw.
	sizes chan wire.Size
	// keys are what is typed. It looks for who insists on leaving.
	keys insisting
	// signals are passed on to the tool. Set before raw.
	signals chan<- os.Signal
	// caught are those of watch. Set by raw.
	caught chan os.Signal

	mu    sync.Mutex // guards what follows
	saved *unix.Termios
	// behind says that a goroutine waits to be in the foreground.
	behind bool
	// stop ends watch; nil while the terminal is as it was.
	stop chan struct{}
	// lent says that another program has it.
	lent bool
	// suspended says that the tool is stopped, and what is typed is not for it.
	suspended bool
}

// newTerminal is nil where the tool is to have pipes: input and output are not both
// a terminal, or it is another job's at the moment.
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
	t.keys.leave = func() { t.restore(); os.Exit(128 + int(syscall.SIGINT)) }
	return t
}

// sameDevice reports whether a and b are one terminal.
func sameDevice(a, b *os.File) bool {
	var x, y unix.Stat_t
	if unix.Fstat(int(a.Fd()), &x) != nil || unix.Fstat(int(b.Fd()), &y) != nil {
		return false
	}
	return x.Mode&unix.S_IFMT == unix.S_IFCHR && x.Mode&unix.S_IFMT == y.Mode&unix.S_IFMT && x.Rdev == y.Rdev
}

// termName is a variable that a daemon admits as the kind of a terminal, or "".
func termName(name string) string {
	if v := os.Getenv(name); wire.TermName(v) {
		return v
	}
	return ""
}

// deadly are the signals that end a Go program that does not catch them, beside those
// that the tool gets.
var deadly = []os.Signal{syscall.SIGABRT, syscall.SIGSYS, syscall.SIGTRAP}

// raw passes on what is typed as it is, until restore, and follows the size.
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
	t.resized() // it may have changed since it was offered
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

// restore makes the terminal what it was. It may be called at any time, often, and
// on nil.
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

// watch follows the size, and gives the terminal back while this program is
// stopped, and when it is ended.
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
				// Not by Ctrl-Z, which is a byte. The tool stops, and then this program.
				t.mu.Lock()
				lent := t.lent
				t.mu.Unlock()
				if lent {
					syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
					continue
				}
				select {
				case t.signals <- s:
				default: // the daemon does not listen
				}
			case syscall.SIGCONT: // also of one that was stopped by SIGSTOP
				t.resume()
			default:
				t.restore()
				signal.Reset(s)
				syscall.Kill(syscall.Getpid(), s.(syscall.Signal))
			}
		}
	}
}

// suspend stops this program with its job, as its tool was, and calls goOn when it is
// continued, or at once if no process could continue it.
func (t *terminal) suspend(goOn func()) {
	t.mu.Lock()
	if t.lent || t.stop == nil {
		t.mu.Unlock()
		goOn()
		return // another program has the terminal, and the tool is not in its way
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

// resume passes on again what is typed, as soon as this program is in the foreground.
// Until then the terminal is not touched, since that would stop it.
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
	// A shell says nothing to a job that it takes from the background while it runs.
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

// foregroundCheck is how often a program in the background looks whether it still is.
const foregroundCheck = 100 * time.Millisecond

func (t *terminal) inForeground() bool {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// resized tells the size.
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

// lend leaves the terminal to another program: as it was, and with what is typed.
// It may be called on nil.
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
type insisting struct {
	r     *os.File
	leave func()
	last  insistence

	// wake ends the waiting of Read.
	wakes, wake *os.File

	mu     sync.Mutex // held while something is read; guards paused
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
			break // reading says what is wrong
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
		const ctrlC = 3
		if c == ctrlC && i.last.again() {
			i.leave()
		}
	}
	return n, err
}
