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

// A host of a thousand tools calls few of them at a time. A module that others
// were called after keeps what it says of itself, its exports, and gives back
// all else: code, image, instances. It sleeps then; the next call waits until
// all of that is there again, made from the bytes that it was loaded from, of which
// there is a copy in the cache folder: a tool's own files may change meanwhile.

// sleeper is what a Module knows of that. All but used and called is guarded by Module.mu.
type sleeper struct {
	never  bool         // a component or several modules: more than one file would have to be read again; set by Load
	used   atomic.Int64 // when it was last called or loaded
	called atomic.Bool  // for what it does, not only for what it says of itself
	digest [32]byte     // of the bytes that it was loaded from
	asleep bool
	// changing is closed when the module has fallen asleep or woken; nil
	// while it does neither.
	changing chan struct{}
	err      error // of the last time that it could not wake
}

// copyOf is where the bytes of a module are kept.
func (e *Engine) copyOf(digest [32]byte) string {
	return filepath.Join(e.dir, "modules", hex.EncodeToString(digest[:]))
}

// keepCopy keeps the bytes of a module that may have to be loaded again.
func (e *Engine) keepCopy(digest [32]byte, code []byte) error {
	name := e.copyOf(digest)
	if st, err := os.Stat(name); err == nil && st.Mode().IsRegular() && st.Size() == int64(len(code)) {
		now := time.Now()
		return os.Chtimes(name, now, now) // it is in use: see prune
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

// readCopy reads them again. They are what they were.
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

// rest puts modules to sleep, beginning with the one whose last call was longest
// ago, until there are as few awake as the Config says, but for those that run.
// Where there are more modules than may be awake, those sleep first that nobody has
// called: which of them are the next to be called nobody knows.
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

// before reports whether m falls asleep before another module.
func (m *Module) before(other *Module) bool {
	if a, b := m.sleeper.called.Load(), other.sleeper.called.Load(); a != b {
		return b
	}
	return m.sleeper.used.Load() < other.sleeper.used.Load()
}

// fallAsleep gives back what the module can be without until it is called, unless
// it has been called meanwhile.
func (m *Module) fallAsleep() {
	s := &m.sleeper
	m.mu.Lock()
	if m.closed || s.asleep || m.calls > 0 {
		m.mu.Unlock()
		return
	}
	m.calls++ // a Close waits for this
	s.asleep, s.changing = true, make(chan struct{})
	m.mu.Unlock()
	m.release()
	m.home, m.imports, m.hosts, m.compiled, m.snap, m.rewritten, m.wasm = nil, nil, nil, nil, nil, nil, nil
	m.changed()
	m.e.spared.soon()
}

// spared gives memory back to the system some time after modules fell asleep: Go
// keeps twice what is in use, and a host that has loaded a thousand modules may
// need a tenth of what that took.
type spared struct {
	mu     sync.Mutex
	timer  *time.Timer // nil: nothing is to be given back; guarded by mu
	last   time.Time   // guarded by mu
	closed bool        // guarded by mu
}

// Memory is given back when no module has fallen asleep for spareAfter, and once in
// spareEach at most: it takes a collection.
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

// changed ends a change that was begun, and counts it out.
func (m *Module) changed() {
	s := &m.sleeper
	m.mu.Lock()
	close(s.changing)
	s.changing = nil
	m.mu.Unlock()
	m.leave()
}

// awake waits until the module is awake, waking it. Call it with mu held; it is
// held again afterwards.
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
