package session

import (
	"io"
	"slices"
	"sync"

	"github.com/toold/toold/host/fault"
)

// maxInbox bounds the unread text of one execution, in bytes.
const maxInbox = 64 << 10

// message is the text of one steer.
type message struct {
	text     []byte
	consumed chan struct{} // closed when all of it was read
}

// inbox queues the steering text of one execution. It is shared by all attempts:
// text that arrives between two is read by the next one.
type inbox struct {
	mu           sync.Mutex    // guards what follows
	queue        []*message    // oldest first
	size         int           // bytes in queue
	read         bool          // some text was read
	eof          bool          // no more text follows
	rejectReason string        // why put fails, or empty
	done         chan struct{} // closed when the execution ended
	changed      chan struct{} // closed and replaced on each change while a reader waits
	// forward, set once the caller streams its input, receives the texts instead
	// of queue; forwarded are those that it accepted.
	forward   func(text []byte, taken func()) bool
	forwarded []*message
}

func newInbox() *inbox { return &inbox{done: make(chan struct{})} }

func (b *inbox) changeLocked() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// put queues a text; eof marks the last one. Empty text is not queued.
func (b *inbox) put(text []byte, eof bool) (*message, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &message{text: text, consumed: make(chan struct{})}
	waits := b.size + b.forwardedLocked()
	switch {
	case b.isDoneLocked():
		return nil, fault.Errorf(fault.NotRunning, "the call has ended; %d bytes were not delivered", len(text))
	case b.rejectReason != "":
		return nil, fault.Errorf(fault.NotRunning, "%s; %d bytes were not delivered", b.rejectReason, len(text))
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
		close(m.consumed)
	} else {
		b.queue = append(b.queue, m)
		b.size += len(text)
	}
	b.changeLocked()
	return m, nil
}

func (b *inbox) isDoneLocked() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

func (b *inbox) wasRead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read || slices.ContainsFunc(b.forwarded, (*message).wasConsumed)
}

// reject makes put fail from now on with the reason why.
func (b *inbox) reject(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rejectReason = why
	b.changeLocked()
}

// forwardTo hands all text to f, beginning with what is queued.
func (b *inbox) forwardTo(f func(text []byte, taken func()) bool) {
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
	b.forwarded = slices.DeleteFunc(b.forwarded, (*message).wasConsumed)
	if !b.forward(m.text, func() { close(m.consumed) }) {
		return false
	}
	b.forwarded = append(b.forwarded, m)
	return true
}

// forwardedLocked returns the number of forwarded bytes that are still unread.
func (b *inbox) forwardedLocked() (n int) {
	for _, m := range b.forwarded {
		if !m.wasConsumed() {
			n += len(m.text)
		}
	}
	return n
}

func (m *message) wasConsumed() bool {
	select {
	case <-m.consumed:
		return true
	default:
		return false
	}
}

// close ends the inbox with its execution and returns the number of unread bytes.
func (b *inbox) close() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isDoneLocked() {
		close(b.done)
	}
	n := b.size + b.forwardedLocked()
	b.queue, b.forwarded, b.size, b.forward = nil, nil, 0, nil
	b.changeLocked()
	return n
}

// reader reads an inbox for one attempt. Closing it does not close the inbox.
type reader struct {
	b *inbox
	// wait makes Read block for the next text; without it, an empty queue is
	// EOF.
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
		if r.closed || b.isDoneLocked() {
			return 0, io.EOF
		}
		if len(b.queue) > 0 {
			m := b.queue[0]
			n := copy(p, m.text)
			b.size -= n
			b.read = true
			if m.text = m.text[n:]; len(m.text) == 0 {
				b.queue = b.queue[1:]
				close(m.consumed)
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

// Close ends this reader. Unread text stays for the next one.
func (r *reader) Close() error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	r.closed = true
	r.b.changeLocked()
	return nil
}
