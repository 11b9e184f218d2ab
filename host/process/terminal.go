package process

import (
	"bytes"
	"io"
	"os"
)

// Terminal gives a child a terminal of its own, as its controlling one: input passes through
// the kernel's line discipline, which echoes it, assembles lines and turns Ctrl-C and Ctrl-\
// into signals. It requires confine.Status.Terminals.
//
// The child can open it as /dev/tty, and no terminal by another name; nobody else can open it.
type Terminal struct {
	// Size is what it has at first.
	Size Size
	// Sizes are what it gets later. It may be nil.
	Sizes <-chan Size
	// Input is what is typed: read as Command.Stdin is. Its end is typed as
	// Ctrl-D.
	Input io.Reader
	// Gone hangs the terminal up when it is closed: nobody is there any more. It may
	// be nil.
	Gone <-chan struct{}
	// Stopped is called when the child was stopped, by Ctrl-Z or another signal, and
	// what it wrote before has been delivered. SIGCONT among Command.Signals continues
	// it. Where Stopped is nil it is continued at once. It is called by the goroutine
	// that delivers output.
	Stopped func()
	// stopped is told that the child was stopped, begun that it executes its program.
	stopped, begun func()
	// Stdin says that the child's standard input is the terminal, not what
	// Command.Stdin has; Stderr that its standard error is, and not
	// Command.Stderr. Its standard output always is.
	Stdin, Stderr bool
}

// Size is the number of rows and columns of a terminal.
type Size = struct{ Rows, Cols uint16 }

// terminal is the daemon's side of a terminal.
type terminal struct {
	master *os.File
	// slave is the child's end, kept until the end of the run: a child that has given
	// its streams to a pager would be hung up on when that ends.
	slave *os.File
	input io.Reader
	sizes <-chan Size
	gone  <-chan struct{}
	begun chan struct{} // closed when the child executes its program
	over  chan struct{} // closed when the child has ended
	// stopping is called when a key was typed that stops the child.
	stopping func()
	// typed and followed are closed by run and by follow.
	typed, followed chan struct{}
}

const endOfInput = "\x04" // Ctrl-D, of a terminal that nobody changed

// run passes input to the terminal once the child executes its program.
func (t *terminal) run(buf []byte) {
	defer close(t.typed)
	select {
	case <-t.begun:
	case <-t.over:
		return
	}
	for {
		n, err := t.input.Read(buf)
		if n > 0 {
			if _, err := t.master.Write(buf[:n]); err != nil {
				return
			}
			if key, ok := suspendKey(t.master); ok && bytes.IndexByte(buf[:n], key) >= 0 {
				t.stopping()
			}
		}
		if err == io.EOF {
			io.WriteString(t.master, endOfInput)
		}
		if err != nil {
			return
		}
	}
}

// follow follows the sizes, until nobody is there any more: SIGHUP.
func (t *terminal) follow() {
	defer close(t.followed)
	for {
		select {
		case <-t.over:
			return
		case <-t.gone:
			t.master.Close() // what it holds cannot be delivered
			return           // the child itself is told by whoever follows it
		case s := <-t.sizes:
			setSize(t.master, s.Rows, s.Cols) // an error: it was hung up
		}
	}
}
