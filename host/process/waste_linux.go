package process

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
)

const (
	// collectAt is how many bytes are allocated before garbage is collected.
	collectAt = 2 << 20
	// lookEach is how often it is asked how many they are, which takes a microsecond.
	lookEach = 8
)

// waste collects garbage now and then. The supervisor has no collector that runs by itself: it
// would wait forever for a thread that starts a child, since that thread waits for the monitor,
// which the collector would have stopped.
type waste struct {
	// starting is held while a child is started, and while garbage is
	// collected.
	starting sync.Mutex
	left     atomic.Uint32 // how often there was some
	before   atomic.Uint64 // what had been allocated at the last collection, in bytes
}

// leave records that garbage was left, and collects it if there is enough and no child is being
// started. How much an answer leaves depends on the run, so the runtime is asked.
func (w *waste) leave() {
	if w.left.Add(1)%lookEach != 0 {
		return
	}
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(allocated)
	if now := allocated[0].Value.Uint64(); now-w.before.Load() > collectAt && w.starting.TryLock() {
		w.before.Store(now)
		runtime.GC()
		w.starting.Unlock()
	}
}
