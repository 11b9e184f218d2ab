package guest

import (
	"sync"
	"unsafe"

	"github.com/tetratelabs/wazero/experimental"
)

// account bounds the bytes that all instances hold together.
type account struct {
	mu    sync.Mutex
	limit int64
	used  int64 // guarded by mu
}

// take asks for n bytes more.
func (a *account) take(n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used+n > a.limit {
		return false
	}
	a.used += n
	return true
}

// takeSpare asks for n bytes that are of use, but not needed: nobody gets those
// from the second half.
func (a *account) takeSpare(n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used+n > a.limit/2 {
		return false
	}
	a.used += n
	return true
}

func (a *account) give(n int64) {
	a.mu.Lock()
	a.used -= n
	a.mu.Unlock()
}

func (a *account) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// holding is what Go's memory holds on behalf of one instance: it is in the
// account, and goes by more steps than one. One of no module is in no account.
type holding struct {
	m     *Module
	bytes int64
}

func (h *holding) take(n int64) bool {
	if h.m != nil && !h.m.e.makeRoom(n, h.m) {
		return false
	}
	h.bytes += n
	return true
}

func (h *holding) give(n int64) {
	if h.m != nil && n != 0 {
		h.m.e.memory.give(n)
	}
	h.bytes -= n
}

// enlarge makes room for n more elements behind s, and for least in all, which h
// holds. It reports false when there is no memory; s is then as it was.
func enlarge[T any](h *holding, s []T, n, least int) ([]T, bool) {
	if n <= cap(s)-len(s) {
		return s, true
	}
	size := int64(unsafe.Sizeof(*new(T)))
	c := max(len(s)+n, least)
	if cap(s) > 0 {
		c += c / 4
	}
	if !h.take(int64(c) * size) { // the old one is still there while it is copied
		return s, false
	}
	b := append(make([]T, 0, c), s...)
	h.give(int64(cap(s)) * size)
	return b, true
}

// discard is the end of what enlarge made.
func discard[T any](h *holding, s []T) []T {
	h.give(int64(cap(s)) * int64(unsafe.Sizeof(*new(T))))
	return nil
}

// linear is the memory of one instance: experimental.LinearMemory for wazero.
//
// Where the system can, it is a reservation of address space as large as the
// limit, of which the first bytes map the image that the instance began with,
// copy on write. Otherwise it is memory of Go's.
type linear struct {
	acct  *account
	limit uint64 // bytes
	img   *image // nil: memory begins empty

	buf    []byte // all that is reserved, or all that there is
	mapped bool   // buf is not Go's
	usable uint64 // bytes of buf that can be written, when mapped
	size   uint64 // bytes that the guest has now
	peak   uint64 // most that it had since it was last restored
	held   int64  // bytes taken from acct

	stack *stack // of the instance, which counts against limit
	// beside is what its other memories have, which counts as well; nil for one alone.
	beside func() uint64

	back       bool // Reallocate is to answer the image's length: see restore
	refused    bool // growth was refused for the limit
	overloaded bool // growth was refused for want of memory in all
}

// newLinear makes a memory that begins as img, or empty.
func newLinear(acct *account, limit uint64, img *image, mapped bool, s *stack) (*linear, error) {
	l := &linear{acct: acct, limit: limit, img: img, stack: s}
	if !mapped {
		return l, nil
	}
	var err error
	if l.buf, err = reserve(limit); err != nil {
		return nil, err
	}
	l.mapped = true
	if img != nil {
		if err := img.mapOver(l.buf); err != nil {
			l.unmap()
			return nil, err
		}
		l.usable = img.size
	}
	return l, nil
}

// Allocate is experimental.MemoryAllocator: a module has one memory at most.
func (l *linear) Allocate(_, _ uint64) experimental.LinearMemory { return l }

// Reallocate gives the guest n bytes, or nil when it may not have them. The
// bytes that are new are zero.
func (l *linear) Reallocate(n uint64) []byte {
	if l.back {
		n = l.img.size
		l.size = n
		return l.buf[:n:n]
	}
	all := n
	if l.beside != nil {
		all += l.beside()
	}
	if all > l.limit || all+uint64(l.stack.counted()) > l.limit {
		l.refused = true
		return nil
	}
	// What the stack has beyond need goes before memory and stack are over
	// the limit together.
	if err := l.stack.shrink(stackMost(l.limit-all), true); err != nil {
		l.overloaded = true
		return nil
	}
	if n > l.size {
		more := int64(n - l.size)
		if !l.acct.take(more) {
			l.overloaded = true
			return nil
		}
		l.held += more
	}
	if l.mapped {
		if n > l.usable {
			if err := commit(l.buf, l.usable, n); err != nil {
				l.overloaded = true
				return nil
			}
			l.usable = n
		}
	} else if n > uint64(len(l.buf)) {
		b := make([]byte, n)
		copy(b, l.buf)
		l.buf = b
	}
	l.size = n
	l.peak = max(l.peak, n)
	return l.buf[:n:n]
}

// Free is wazero's, and may come while code still runs: unmap does it later.
func (l *linear) Free() {}

// unmap gives everything back. Nothing may run on the memory any more.
func (l *linear) unmap() {
	if l.mapped {
		release(l.buf)
	}
	l.buf, l.mapped, l.size = nil, false, 0
	l.acct.give(l.held)
	l.held = 0
}

// hold sets what the memory is charged for.
func (l *linear) hold(n int64) {
	l.acct.give(l.held - n)
	l.held = n
}
