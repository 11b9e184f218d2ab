package guest

import (
	"context"
	"runtime"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/toold/toold/host/guest/wasm"
)

// A rewritten guest decrements its own fuel and calls refill when none is left. It gets
// a slice of the call's fuel. The size of a slice depends on how long the last one
// took, since no number of instructions corresponds to a time: 100,000 are 24 us of
// arithmetic or 139 ms of touching new pages. Between two slices the goroutine can be
// stopped, by the garbage collector or for others to run, and the call's deadline is
// checked.
const (
	firstSlice = 5000
	leastSlice = 250
	mostSlice  = 10_000_000
	tooLong    = 200 * time.Microsecond
	tooShort   = 50 * time.Microsecond
)

// meter tracks the fuel of one call.
type meter struct {
	fuel    api.MutableGlobal // of the running part: what is left of granted
	idle    []*part           // all parts, if there are several: their fuel counts as granted too
	limit   int64
	granted int64 // to the guest so far
	host    int64 // used by host functions
	called  int64 // part of host: used by calls that the guest made
	unseen  int64 // part of host: used since the last check
	slice   int64
	last    time.Time // of the last refill
	yielded time.Time // when others could last run on this thread
}

// begin gives a call its first slice, of at most most. It discards what was left of the
// previous call's.
func (m *meter) begin(limit, most int64) {
	m.limit, m.host, m.called, m.unseen = limit, 0, 0, 0
	m.slice = firstSlice
	m.granted = min(firstSlice, most, limit)
	m.last = time.Now()
	m.yielded = m.last
	for _, p := range m.idle {
		p.fuel.Set(0)
	}
	m.fuel.Set(uint64(m.granted))
}

// gather gives the part that requests fuel what the others did not use. They request it
// again when they continue: no more is granted at a time than to a single module.
func (m *meter) gather(mod api.Module) {
	var to api.MutableGlobal
	var sum uint64
	for _, p := range m.idle {
		if p.mod == mod {
			to = p.fuel
		}
		sum += p.fuel.Get()
		p.fuel.Set(0)
	}
	m.fuel = to
	m.fuel.Set(sum)
}

// used returns the fuel that the call has used so far.
func (m *meter) used() int64 {
	if m.fuel == nil {
		return m.host
	}
	if m.idle == nil {
		return m.granted - int64(m.fuel.Get()) + m.host
	}
	used := m.granted + m.host
	for _, p := range m.idle {
		used -= int64(p.fuel.Get())
	}
	return used
}

// refill continues a call, in one of its modules, or ends it.
func (c *call) refill(mod api.Module) {
	m := &c.meter
	if m.idle != nil {
		if m.gather(mod); int64(m.fuel.Get()) >= 0 {
			return
		}
	}
	left := m.limit - m.used()
	if left <= 0 {
		panic(c.outOfFuel())
	}
	c.checkCanceled()
	// A timer may be late when the scheduler is busy.
	now := time.Now()
	if c.hasDeadline && !now.Before(c.deadline) {
		panic(ended(context.DeadlineExceeded))
	}
	switch took := now.Sub(m.last); {
	case took > tooLong:
		m.slice = max(m.slice/4, leastSlice)
	case took < tooShort:
		m.slice = min(m.slice*2, mostSlice)
	}
	n := c.deepen(min(m.slice, left))
	m.granted += n
	m.fuel.Set(uint64(int64(m.fuel.Get()) + n))
	m.last = now
	c.compete(now)
	c.yield(now)
}

// yield lets others run that have waited as long as a slice takes; otherwise they would
// wait until the scheduler preempts the thread, after 10 ms. It does nothing if guests
// leave processors to others: yielding would wake a thread only to move this guest to
// it. Garbage collection needs no yield; it stops the goroutine when it enters Go.
func (c *call) yield(now time.Time) {
	m := &c.meter
	if now.Sub(m.yielded) < tooShort || c.inst.m.e.turns.spares {
		return
	}
	c.unpin()
	runtime.Gosched()
	m.last = time.Now()
	m.yielded = m.last
}

// charge charges for moving n bytes on the guest's behalf. A guest that does little
// itself may not refill for a long time, so work that the host does for it is checked
// here.
func (c *call) charge(n uint64) {
	m := &c.meter
	cost := int64(min(n, 1<<40) / 16)
	m.host += cost
	if m.unseen += cost; m.unseen < firstSlice {
		return
	}
	m.unseen = 0
	if m.used() > m.limit {
		panic(c.outOfFuel())
	}
	c.checkCanceled()
	now := time.Now()
	if c.hasDeadline && !now.Before(c.deadline) {
		panic(ended(context.DeadlineExceeded))
	}
	c.compete(now)
	c.yield(now)
}

// lent charges n units used by a call that the guest made.
func (c *call) lent(n int64) {
	c.meter.host += n
	c.meter.called += n
	if c.meter.used() > c.meter.limit {
		panic(c.outOfFuel())
	}
}

func (c *call) outOfFuel() *Error {
	return c.inst.m.errorf(FuelUsed, "give it less input", "the call used its %d units of fuel", c.meter.limit)
}

// exportMeter adds the functions that rewritten modules import.
func exportMeter(b wazero.HostModuleBuilder) {
	b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, _ []uint64) {
		ctx.(*call).refill(mod)
	}), types{}, types{}).Export(wasm.ImportRefill)
	for _, f := range exceptionFuncs() {
		fn := f.fn
		b.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(ctx context.Context, s []uint64) { fn(ctx.(*call), s) }), f.params, f.results).Export(f.name)
	}
}
