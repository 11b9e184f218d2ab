package call

import (
	"sync"

	"github.com/toold/toold/host/wire"
)

// Meter adds up the resources that the modules of one call use. It is safe for concurrent use.
type Meter struct {
	mu    sync.Mutex
	usage *wire.Usage // nil until something was counted; guarded by mu
}

// Add adds the usage of one call of a module: metered instructions, peak memory in bytes, pages of 4 KiB restored. A
// nil Meter counts nothing.
func (m *Meter) Add(fuel, memory int64, pages int) {
	m.update(func(u *wire.Usage) {
		u.Fuel += fuel
		u.Memory = max(u.Memory, memory)
		u.Pages += int64(pages)
	})
}

// Retried records the number of attempts of the call, and how many retries its settings still allowed but the retry
// budget of its upstream did not.
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

// Usage returns the total; nil if no module ran and nothing was retried.
func (m *Meter) Usage() *wire.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		return nil
	}
	u := *m.usage
	return &u
}
