package session

import (
	"io"
	"slices"
	"sync"

	"github.com/toold/toold/host/fault"
)

// maxInbox bounds, in bytes, the text that waits to be read by one execution.
const maxInbox = 64 << 10

// message is one text that steers.
type message struct {
	text  []byte
	taken chan struct{} // closed when all of it was read
}

// inbox is what steers one execution: texts that wait until it reads. It
// outlasts an attempt: what comes between two is read by the next one.
type inbox struct {
	mu      sync.Mutex    // guards what follows
	queue   []*message    // oldest first
	size    int           // bytes in queue
	read    bool          // some of it was read
	eof     bool          // no more will come
	deaf    string        // why nobody will read, where that is known
	over    chan struct{} // closed when the execution ended
	changed chan struct{} // closed and replaced with each change, while somebody waits
	// forward, once the caller streams its input, takes the texts in place of
	// queue; passed are those that it took.
	forward func(text []byte, taken func()) bool
	passed  []*message
}

func newInbox() *inbox { return &inbox{over: make(chan struct{})} }

func (b *inbox) changeLocked() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// put queues a text; eof says that it is the last. Empty text is none.
func (b *inbox) put(text []byte, eof bool) (*message, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &message{text: text, taken: make(chan struct{})}
	waits := b.size + b.passedLocked()
	switch {
	case b.isOverLocked():
		return nil, fault.Errorf(fault.NotRunning, "the call has ended; %d bytes were not delivered", len(text))
	case b.deaf != "":
		return nil, fault.Errorf(fault.NotRunning, "%s; %d bytes were not delivered", b.deaf, len(text))
	case b.eof:
		return nil, fault.Errorf(fault.NotRunning, "its input was ended with eof before; %d bytes were not delivered", len(text))
	case waits+len(text) > maxInbox:
		return nil, fault.Errorf(fault.LimitExceeded, "%d bytes wait to be read already, and %d are the limit; steer again when the call has read them; %d bytes were not delivered", waits, maxInbox, len(text))
	}
	if b.forward != nil {
		if eof {
			return nil, fault.Errorf(fault.InvalidPayload, "/eof: the caller of this execution streams its input and ends it; steer with text only")
		}
		if !b.forwardLocked(m) {
			return nil, fault.Errorf(fault.NotRunning, "the input of the call has ended; %d bytes were not delivered", len(text))
		}
		return m, nil
	}
	b.eof = eof
	if len(text) == 0 {
		close(m.taken)
	} else {
		b.queue = append(b.queue, m)
		b.size += len(text)
	}
	b.changeLocked()
	return m, nil
}

func (b *inbox) isOverLocked() bool {
	select {
	case <-b.over:
		return true
	default:
		return false
	}
}

func (b *inbox) wasRead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read || slices.ContainsFunc(b.passed, (*message).wasTaken)
}

// refuse says that nobody will read, and why.
func (b *inbox) refuse(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deaf = why
	b.changeLocked()
}

// pass hands everything on to f, what waits already first.
func (b *inbox) pass(f func(text []byte, taken func()) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forward = f
	for _, m := range b.queue {
		if !b.forwardLocked(m) {
			break
		}
		b.size -= len(m.text)
		b.queue = b.queue[1:]
	}
}

func (b *inbox) forwardLocked(m *message) bool {
	b.passed = slices.DeleteFunc(b.passed, (*message).wasTaken)
	if !b.forward(m.text, func() { close(m.taken) }) {
		return false
	}
	b.passed = append(b.passed, m)
	return true
}

// passedLocked is how many bytes were handed on that nobody has read yet.
func (b *inbox) passedLocked() (n int) {
	for _, m := range b.passed {
		if !m.wasTaken() {
			n += len(m.text)
		}
	}
	return n
}

func (m *message) wasTaken() bool {
	select {
	case <-m.taken:
		return true
	default:
		return false
	}
}

// end says that the execution is over and returns how many bytes nobody read.
func (b *inbox) end() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isOverLocked() {
		close(b.over)
	}
	n := b.size + b.passedLocked()
	b.queue, b.passed, b.size, b.forward = nil, nil, 0, nil
	b.changeLocked()
	return n
}

// reader reads an inbox for one attempt. Its end is not the inbox's.
type reader struct {
	b *inbox
	// wait has Read wait for the next text; without it there is nothing more
	// when the queue is empty.
	wait   bool
	closed bool // guarded by b.mu
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if r.closed || b.isOverLocked() {
			return 0, io.EOF
		}
		if len(b.queue) > 0 {
			m := b.queue[0]
			n := copy(p, m.text)
			b.size -= n
			b.read = true
			if m.text = m.text[n:]; len(m.text) == 0 {
				b.queue = b.queue[1:]
				close(m.taken)
			}
			return n, nil
		}
		if b.eof || !r.wait {
			return 0, io.EOF
		}
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		<-changed
		b.mu.Lock()
	}
}

// Close ends this reader. What was not read stays for the next one.
func (r *reader) Close() error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.closed = true
	r.b.changeLocked()
	return nil
}
