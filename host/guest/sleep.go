package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/regular"
)

// A host with a thousand tools calls only a few at a time. A module that has not been
// called recently is put to sleep: it keeps its description and exports and releases
// everything else (code, image, instances). The next call waits until all of that is
// loaded again from the original bytes, of which the cache folder has a copy: the
// tool's own files may have changed in the meantime.

// sleeper is the sleep state of a Module. All but used and called is guarded by
// Module.mu.
type sleeper struct {
	never  bool         // a component or several modules: more than one file would have to be reloaded; set by Load
	used   atomic.Int64 // time of the last call or load
	called atomic.Bool  // for its work, not only for its description
	digest [32]byte     // of the bytes it was loaded from
	asleep bool
	// changing is closed when the module has fallen asleep or woken; nil while neither
	// is in progress.
	changing chan struct{}
	err      error // of the last failed attempt to wake
}

// copyOf returns the file with the copy of a module's bytes.
func (e *Engine) copyOf(digest [32]byte) string {
	return filepath.Join(e.dir, "modules", hex.EncodeToString(digest[:]))
}

// keepCopy stores the bytes of a module that may have to be loaded again.
func (e *Engine) keepCopy(digest [32]byte, code []byte) error {
	name := e.copyOf(digest)
	if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() && st.Size() == int64(len(code)) {
		now := time.Now()
		return os.Chtimes(name, now, now) // mark as used: see prune
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(e.dir, "build-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(code)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return replace(f.Name(), name)
}

// readCopy reads the stored bytes and verifies their digest.
func (e *Engine) readCopy(digest [32]byte) ([]byte, error) {
	code, err := regular.ReadFile(e.copyOf(digest))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(code); !bytes.Equal(sum[:], digest[:]) {
		return nil, fmt.Errorf("%s is damaged", e.copyOf(digest))
	}
	return code, nil
}

// rest puts modules to sleep, least recently used first, until no more than
// Config.Awake are awake, not counting running ones. If there are more modules than may
// be awake, those that were never called sleep first: which of them is called next
// cannot be predicted.
func (e *Engine) rest() {
	for {
		var oldest *Module
		n, all := 0, 0
		e.mu.Lock()
		for m := range e.modules {
			m.mu.Lock()
			if !m.sleeper.never {
				all++
			}
			if !m.sleeper.asleep && !m.sleeper.never {
				n++
				if m.calls == 0 && !m.closed && (oldest == nil || m.before(oldest)) {
					oldest = m
				}
			}
			m.mu.Unlock()
		}
		e.mu.Unlock()
		uncalled := oldest != nil && !oldest.sleeper.called.Load() && all > e.cfg.Awake
		if oldest == nil || n <= e.cfg.Awake && !uncalled {
			return
		}
		oldest.fallAsleep()
	}
}

// before reports whether m should fall asleep before another module.
func (m *Module) before(other *Module) bool {
	if a, b := m.sleeper.called.Load(), other.sleeper.called.Load(); a != b {
		return b
	}
	return m.sleeper.used.Load() < other.sleeper.used.Load()
}

// fallAsleep releases what the module can do without until it is called, unless it has
// been called in the meantime.
func (m *Module) fallAsleep() {
	s := &m.sleeper
	m.mu.Lock()
	if m.closed || s.asleep || m.calls > 0 {
		m.mu.Unlock()
		return
	}
	m.calls++ // Close waits for this
	s.asleep, s.changing = true, make(chan struct{})
	m.mu.Unlock()
	m.release()
	m.home, m.imports, m.hosts, m.compiled, m.snap, m.rewritten, m.wasm = nil, nil, nil, nil, nil, nil, nil
	m.changed()
	m.e.spared.soon()
}

// spared returns memory to the system some time after modules fell asleep: Go keeps
// twice what is in use, and a host that has loaded a thousand modules may need a tenth
// of what loading them took.
type spared struct {
	mu     sync.Mutex
	timer  *time.Timer // nil: nothing is due; guarded by mu
	last   time.Time   // guarded by mu
	closed bool        // guarded by mu
}

// Memory is returned when no module has fallen asleep for spareAfter, and at most once
// per spareEach: it takes a garbage collection.
const (
	spareAfter = 3 * time.Second
	spareEach  = time.Minute
)

func (s *spared) soon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := max(spareAfter, time.Until(s.last.Add(spareEach)))
	switch {
	case s.closed:
	case s.timer == nil:
		s.timer = time.AfterFunc(after, s.give)
	default:
		s.timer.Reset(after)
	}
}

func (s *spared) give() {
	s.mu.Lock()
	s.timer, s.last = nil, time.Now()
	s.mu.Unlock()
	debug.FreeOSMemory()
}

func (s *spared) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// changed ends a change that was in progress and its entry in calls.
func (m *Module) changed() {
	s := &m.sleeper
	m.mu.Lock()
	close(s.changing)
	s.changing = nil
	m.mu.Unlock()
	m.leave()
}

// awake waits until the module is awake, waking it if necessary. mu must be held; it is
// released while waiting and held again on return.
func (m *Module) awake(ctx context.Context) error {
	s := &m.sleeper
	for s.asleep && !m.closed {
		if s.changing == nil {
			m.calls++
			s.changing, s.err = make(chan struct{}), nil
			go m.wake()
		}
		done := s.changing
		m.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		m.mu.Lock()
		if err := ctx.Err(); err != nil {
			return ended(err)
		}
		if s.err != nil {
			return s.err
		}
	}
	return nil
}

// wake loads the module again.
func (m *Module) wake() {
	s := &m.sleeper
	m2 := &Module{e: m.e, spec: m.spec}
	var err error
	if m2.wasm, err = m.e.readCopy(s.digest); err != nil {
		err = m.errorf(Internal, "restart toold, or install the tool again", "load it again: %w", err)
	} else if err = m2.load(context.Background()); err != nil {
		m2.destroy()
	}
	if err == nil {
		m2.forgetCode()
		m.home, m.imports, m.hosts = m2.home, m2.imports, m2.hosts
		m.compiled, m.snap, m.rewritten, m.wasm = m2.compiled, m2.snap, m2.rewritten, m2.wasm
		m.pool.open()
		m.prewarm()
	}
	m.mu.Lock()
	s.asleep, s.err = err != nil, err
	s.used.Store(time.Now().UnixNano())
	m.mu.Unlock()
	m.changed()
	if err == nil {
		m.e.rest()
	}
}
