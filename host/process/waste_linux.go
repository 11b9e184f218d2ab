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

// waste has garbage collected, now and then. The supervisor has no collector
// that runs by itself: one that waits for a thread which starts a child would
// wait for ever, as that thread waits for the monitor, which would be stopped.
type waste struct {
	// starting is held while a child is started, and while garbage is
	// collected.
	starting sync.Mutex
	left     atomic.Uint32 // how often there was some
	before   atomic.Uint64 // what had been allocated at the last collection, in bytes
}

// leave says that something was done that leaves garbage, and collects it if there is
// enough and no child is being started. What an answer to the run leaves is up to the
// run, so it is asked for and not estimated.
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
