package call

import (
	"sync"

	"github.com/toold/toold/host/wire"
)

// Meter adds up what the modules of one call take. It is safe for concurrent use.
type Meter struct {
	mu    sync.Mutex
	usage *wire.Usage // nil until there is something to say; guarded by mu
}

// Add adds what one call of a module took: metered instructions, bytes of memory
// at most, pages of 4 KiB restored. A nil Meter counts nothing.
func (m *Meter) Add(fuel, memory int64, pages int) {
	m.update(func(u *wire.Usage) {
		u.Fuel += fuel
		u.Memory = max(u.Memory, memory)
		u.Pages += int64(pages)
	})
}

// Retried notes that the call was executed so many times, and how many retries
// that its settings still allowed the budget of its upstream did not.
func (m *Meter) Retried(attempts, cut int) {
	m.update(func(u *wire.Usage) { u.Attempts, u.RetriesCut = attempts, cut })
}

func (m *Meter) update(with func(*wire.Usage)) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		m.usage = &wire.Usage{}
	}
	with(m.usage)
}

// Usage is what it came to; nil where no module ran and nothing was retried.
func (m *Meter) Usage() *wire.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		return nil
	}
	u := *m.usage
	return &u
}
