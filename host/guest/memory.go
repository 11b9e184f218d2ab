package guest

import (
	"sync"
	"unsafe"

	"github.com/tetratelabs/wazero/experimental"
)

// account limits the total bytes held by all instances.
type account struct {
	mu    sync.Mutex
	limit int64
	used  int64 // guarded by mu
}

// take reserves n more bytes. It reports false if there are not enough.
func (a *account) take(n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used+n > a.limit {
		return false
	}
	a.used += n
	return true
}

// takeSpare reserves n bytes that are useful but not required. It fails once half of
// the limit is in use.
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

// holding counts Go memory held on behalf of one instance. It is charged to the account
// and changes in several steps. A holding without a module is not charged.
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

// enlarge makes room for n more elements in s, with a capacity of at least least in
// total, charged to h. It reports false if there is no memory; s is then unchanged.
func enlarge[T any](h *holding, s []T, n, least int) ([]T, bool) {
	if n <= cap(s)-len(s) {
		return s, true
	}
	size := int64(unsafe.Sizeof(*new(T)))
	c := max(len(s)+n, least)
	if cap(s) > 0 {
		c += c / 4
	}
	if !h.take(int64(c) * size) { // the old slice still exists while it is copied
		return s, false
	}
	b := append(make([]T, 0, c), s...)
	h.give(int64(cap(s)) * size)
	return b, true
}

// discard releases a slice made by enlarge.
func discard[T any](h *holding, s []T) []T {
	h.give(int64(cap(s)) * int64(unsafe.Sizeof(*new(T))))
	return nil
}

// linear is the memory of one instance, an experimental.LinearMemory for wazero.
//
// Where the system supports it, linear is a reservation of address space as large as
// the limit, whose first bytes map the instance's image copy-on-write. Otherwise it is
// Go memory.
type linear struct {
	acct  *account
	limit uint64 // bytes
	img   *image // nil: memory is initially empty

	buf    []byte // the whole reservation, or all of the Go memory
	mapped bool   // buf is not Go memory
	usable uint64 // writable bytes of buf, if mapped
	size   uint64 // current size of the guest's memory in bytes
	peak   uint64 // maximum size since the last restore
	held   int64  // bytes taken from acct

	stack *stack // of the instance; counts against limit
	// beside returns the size of the instance's other memories, which count against
	// limit too; nil if there is only one.
	beside func() uint64

	back       bool // Reallocate must return the image's length: see restore
	refused    bool // growth was refused because of the limit
	overloaded bool // growth was refused because the account is exhausted
}

// newLinear returns a memory that starts as img, or empty.
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

// Allocate implements experimental.MemoryAllocator: a module has at most one memory.
func (l *linear) Allocate(_, _ uint64) experimental.LinearMemory { return l }

// Reallocate resizes the memory to n bytes, or returns nil if that is not allowed. New
// bytes are zero.
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
	// Shrink the stack to what it needs before memory and stack exceed the limit
	// together.
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

// Free is called by wazero, possibly while code still runs: unmap does the work later.
func (l *linear) Free() {}

// unmap releases everything. No code may use the memory any more.
func (l *linear) unmap() {
	if l.mapped {
		release(l.buf)
	}
	l.buf, l.mapped, l.size = nil, false, 0
	l.acct.give(l.held)
	l.held = 0
}

// hold sets the number of bytes charged for the memory.
func (l *linear) hold(n int64) {
	l.acct.give(l.held - n)
	l.held = n
}
