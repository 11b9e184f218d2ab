package process

import (
	"errors"
	"io"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
)

// pumpBuffer is what one read takes from a pipe: all that a pipe holds on
// Linux.
const pumpBuffer = 64 << 10

// buffers lends buffers of pumpBuffer bytes to goroutines that copy streams.
type buffers struct{ free sync.Pool }

// lend calls f with a buffer.
func (b *buffers) lend(f func(buf []byte)) {
	buf, ok := b.free.Get().(*[]byte)
	if !ok {
		made := make([]byte, pumpBuffer)
		buf = &made
	}
	defer b.free.Put(buf)
	f(*buf)
}

// stdio is the three standard streams of one run.
type stdio struct {
	buffers *buffers
	// theirs are the child's ends, in the order 0, 1, 2.
	theirs [3]*os.File
	// own are the same, each once.
	own   []*os.File
	pumps []*pump
	feed  *feed
	// terminal is the one of which theirs are ends; nil: there is none.
	terminal *terminal
}

// pump copies what processes write from a pipe to a writer.
type pump struct {
	from *os.File
	to   io.Writer
	done chan struct{}
	// last says that no more will come; set by finish before it wakes the pump.
	last atomic.Bool
	// stops is how often the child was stopped and stopped was not called for it.
	stops   atomic.Int32
	stopped func()
}

// feed copies a reader to a pipe.
type feed struct {
	from io.Reader
	to   *os.File
	done chan struct{}
}

// plumb makes the pipes of c. Pumps, which use b, start in started.
func plumb(c *Command, b *buffers) (*stdio, error) {
	s := &stdio{buffers: b}
	fail := func(err error) (*stdio, error) {
		s.closeTheirs()
		for _, p := range s.pumps {
			p.from.Close()
		}
		if s.feed != nil {
			s.feed.to.Close()
		}
		if s.terminal != nil {
			s.terminal.slave.Close()
		}
		return nil, fault.Errorf(fault.Overloaded, "open the tool's streams: %w: this host has no room now; try again", err)
	}
	if t := c.Terminal; t != nil {
		master, slave, err := openTerminal(t.Size.Rows, t.Size.Cols)
		if err != nil {
			return fail(err)
		}
		s.terminal = &terminal{master: master, input: t.Input, sizes: t.Sizes, gone: t.Gone, begun: make(chan struct{}), over: make(chan struct{}), typed: make(chan struct{}), followed: make(chan struct{})}
		s.terminal.slave = slave
		begun := s.terminal.begun
		p := &pump{from: master, to: c.Stdout, done: make(chan struct{}), stopped: t.Stopped}
		s.pumps = append(s.pumps, p)
		t.stopped, t.begun = p.stop, sync.OnceFunc(func() { close(begun) })
		s.theirs[1] = slave
		if t.Stdin {
			s.theirs[0] = slave
		}
		if t.Stderr {
			s.theirs[2] = slave
		}
	}
	if c.Stdin != nil && s.theirs[0] == nil {
		theirs, ours, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		s.theirs[0], s.own = theirs, append(s.own, theirs)
		s.feed = &feed{from: c.Stdin, to: ours, done: make(chan struct{})}
	}
	for i, w := range []io.Writer{c.Stdout, c.Stderr} {
		if w == nil || s.theirs[1+i] != nil {
			continue
		}
		if i == 1 && c.Terminal == nil && same(c.Stdout, w) {
			// One pipe keeps the order in which the child wrote to both.
			s.theirs[2] = s.theirs[1]
			continue
		}
		ours, theirs, err := os.Pipe()
		if err != nil {
			return fail(err)
		}
		s.theirs[1+i], s.own = theirs, append(s.own, theirs)
		s.pumps = append(s.pumps, &pump{from: ours, to: w, done: make(chan struct{})})
	}
	if slices.Contains(s.theirs[:], nil) {
		// Opened for this run alone: flags and locks belong to what one open
		// made, and would last from run to run.
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return fail(err)
		}
		s.own = append(s.own, null)
		for i, f := range s.theirs {
			if f == nil {
				s.theirs[i] = null
			}
		}
	}
	return s, nil
}

// same reports whether a and b are the same writer.
func same(a, b io.Writer) bool {
	return a != nil && reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.TypeOf(a).Comparable() && a == b
}

func (s *stdio) closeTheirs() {
	for _, f := range s.own {
		f.Close()
	}
	s.own = nil
}

// started closes the child's ends, which the child has by now, and starts to pump. child is nil
// if there is none.
func (s *stdio) started(child *child) {
	s.closeTheirs()
	for _, p := range s.pumps {
		go s.buffers.lend(p.run)
	}
	if s.feed != nil {
		go s.buffers.lend(s.feed.run)
	}
	if s.terminal != nil {
		s.terminal.stopping = func() { child.stopping() }
		go s.buffers.lend(s.terminal.run)
		go s.terminal.follow()
	}
}

// finish is called once no process of the run is alive. It delivers what is left in the pipes,
// waits for the writers, and closes everything.
func (s *stdio) finish() {
	if s.feed != nil {
		s.feed.to.Close()
		closeInput(s.feed.from, s.feed.done)
	}
	if t := s.terminal; t != nil {
		close(t.over)
		// The pump is not done with it, but nobody reads what is typed now.
		t.master.SetWriteDeadline(time.Unix(1, 0))
		closeInput(t.input, t.typed)
		<-t.followed
	}
	for _, p := range s.pumps {
		// Wakes a read that waits. A process outside the run that was handed
		// the pipe may still hold it open, and nobody waits for that one.
		p.last.Store(true)
		p.from.SetReadDeadline(time.Unix(1, 0))
	}
	for _, p := range s.pumps {
		<-p.done
	}
	if s.terminal != nil {
		s.terminal.slave.Close()
	}
}

// closeInput closes what is read by a goroutine that closes done.
func closeInput(from io.Reader, done <-chan struct{}) {
	c, ok := from.(io.Closer)
	if !ok {
		return
	}
	c.Close()
	// A Close that does not end a Read (that of a terminal's file does not)
	// must not hold the result back.
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// run pumps until the pipe ends, the writer fails or finish says that no
// more will come. Closing the pipe is what tells a child that nobody reads.
func (p *pump) run(buf []byte) {
	defer close(p.done)
	defer p.from.Close()
	read := p.from.Read
	for {
		n, err := read(buf)
		if n > 0 {
			if _, err := p.to.Write(buf[:n]); err != nil {
				return
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.from.SetReadDeadline(time.Time{})
			read = p.rest
			continue
		}
		if err == errNoMore && !p.last.Load() {
			for range p.stops.Swap(0) {
				p.stopped()
			}
			read = p.from.Read
			continue
		}
		if err != nil {
			return
		}
	}
}

// stop arranges for stopped to be called once everything in the pipe has been delivered.
func (p *pump) stop() {
	p.stops.Add(1)
	p.from.SetReadDeadline(time.Unix(1, 0))
}

// errNoMore is the error of rest where the pipe is empty.
var errNoMore = errors.New("the pipe is empty")

// rest reads what the pipe holds and never waits: errNoMore when it is empty.
func (p *pump) rest(buf []byte) (n int, err error) {
	raw, err := p.from.SyscallConn()
	if err != nil {
		return 0, err
	}
	rerr := raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), buf)
		for err == unix.EINTR {
			n, err = unix.Read(int(fd), buf)
		}
		return true
	})
	if err == nil {
		err = rerr
	}
	if err == unix.EAGAIN {
		return 0, errNoMore
	}
	if errors.Is(err, os.ErrDeadlineExceeded) { // stop or finish came meanwhile
		return 0, err
	}
	if n <= 0 {
		return 0, io.EOF
	}
	return n, err
}

// run feeds until the input or the child ends.
func (f *feed) run(buf []byte) {
	defer close(f.done)
	defer f.to.Close()
	for {
		n, err := f.from.Read(buf)
		if n > 0 {
			if _, err := f.to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
