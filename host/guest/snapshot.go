package guest

import (
	"context"
	"errors"
	mrand "math/rand/v2"
	"os"
	"time"

	"github.com/toold/toold/host/guest/wasm"
)

// strategy is a way of restoring fresh state for a call. All strategies give the same
// results at different costs.
type strategy int

const (
	// strategyFresh creates and initializes an instance for every call. It works
	// everywhere.
	strategyFresh strategy = iota
	// strategyImage creates an instance from the image of an initialized one.
	strategyImage
	// strategyPagemap restores the pages that the last call wrote, found in
	// /proc/self/pagemap.
	strategyPagemap
	// strategyScan finds the written pages with PAGEMAP_SCAN, since Linux 6.7.
	strategyScan
	// strategyCount scans only after a call during which the kernel counted a page
	// fault: the first write to a page causes a fault, and the page then remains the
	// instance's own. Without a fault, the written pages are those of the call before.
	strategyCount
)

func (w strategy) String() string {
	return [...]string{"fresh", "image", "pagemap", "scan", "count"}[w]
}

// restoreVariable forces a strategy, for tests and debugging.
const restoreVariable = "TOOLD_GUEST_RESTORE"

func chooseStrategy() (strategy, error) {
	v := os.Getenv(restoreVariable)
	if v == "" {
		return probe(), nil
	}
	for w := strategyFresh; w <= strategyCount; w++ {
		if w.String() != v {
			continue
		}
		if err := works(w); err != nil {
			return 0, errors.New(restoreVariable + " is " + v + ", which this system does not have: " + err.Error())
		}
		return w, nil
	}
	return 0, errors.New(restoreVariable + " is " + v + `; it may be "count", "scan", "pagemap", "image" or "fresh"`)
}

// snapshot is the state of an initialized instance from which others start: one state
// per part, in order.
type snapshot struct{ states []state }

// state is the snapshot of one part.
type state struct {
	mem     *image // nil for a module without memory
	globals [][2]uint64
}

func (s *snapshot) close() {
	for _, st := range s.states {
		if st.mem != nil {
			st.mem.close()
		}
	}
}

// initTime limits the initialization of a module.
const initTime = 10 * time.Second

// prepare initializes one instance and, if possible, takes the snapshot that calls
// start from.
func (m *Module) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, initTime)
	defer cancel()
	in, err := m.initialized(ctx, nil)
	if err != nil {
		return err
	}
	defer in.close()
	// An image of memory does not include changes to tables, dropped segments,
	// reference globals or descriptors. If there are any, every call gets an instance
	// that ran the same initialization.
	switch {
	case m.e.strategy == strategyFresh:
		m.unshared = "this system cannot share an image"
	case in.changedTables():
		m.unshared = "its initialisation changes a table, drops a segment or sets a reference global"
	case in.wasi.changed || in.wasi.touched:
		m.unshared = "its initialisation uses files, or closes a descriptor"
	}
	if in.comp != nil {
		if m.comp.image = in.comp.initial; in.comp.mixed {
			m.unshared = "its initialisation opens files or begins to wait"
		}
	}
	for _, p := range m.programs() {
		for _, g := range p.rewritten.Globals {
			if g.Imported {
				m.unshared = "it imports a global"
			}
		}
	}
	if m.unshared != "" {
		return nil
	}
	snap := &snapshot{}
	for _, p := range in.parts() {
		var st state
		if p.mem != nil {
			if st.mem, err = newImage(p.mem.buf[:p.mem.size]); err != nil {
				snap.close()
				m.unshared = "no image could be made: " + err.Error()
				m.e.cfg.Logger.Warn("no image of the module; calls will be slower", "module", m.spec.Name, "error", err)
				return nil
			}
		}
		st.globals, err = in.globals(p)
		snap.states = append(snap.states, st)
		if err != nil {
			snap.close()
			return m.errorf(BadModule, "", "read globals: %s", firstLine(err))
		}
	}
	m.snap = snap
	return nil
}

// globals reads the mutable globals.
func (in *instance) globals(p *part) (all [][2]uint64, err error) {
	n := len(p.program.rewritten.Globals)
	if n == 0 {
		return nil, nil
	}
	get := p.mod.ExportedFunction(wasm.ExportGlobalGet)
	for i := range n {
		stack := []uint64{uint64(i), 0}
		if err := in.run(get, stack); err != nil {
			return nil, err
		}
		all = append(all, [2]uint64{stack[0], stack[1]})
	}
	return all, nil
}

// initialized creates an instance that has just run its initialization.
func (m *Module) initialized(ctx context.Context, cmd *Command) (*instance, error) {
	in, err := m.instantiate(nil, cmd)
	if err != nil {
		return nil, err
	}
	if err := in.beginRun(ctx, &Invocation{}, m.spec.Config); err != nil {
		in.close()
		return nil, err
	}
	in.c.drawn = mrand.NewChaCha8(m.seed)
	err = in.initialize()
	in.c.drawn = nil
	in.c.Context = context.Background()
	if err != nil {
		in.close()
		return nil, err
	}
	in.keepHandles()
	return in, nil
}

// changed returns what a call changed that prevents restoring the instance.
func (in *instance) changed() string {
	switch {
	case in.m.snap == nil:
		return in.m.unshared
	case in.changedTables():
		return "the call changed a table, dropped a segment or set a reference global"
	case in.wasi.exited:
		return "the call left by proc_exit"
	}
	return "its memory or its descriptors could not be brought back"
}

// restoreState restores an instance to the snapshot. It reports false if the instance
// cannot be used again.
func (in *instance) restoreState() (pages int, ok bool) {
	m := in.m
	if m.snap == nil || m.e.strategy < strategyPagemap || in.changedTables() || in.wasi.exited || in.mod.IsClosed() {
		return 0, false
	}
	for i, p := range in.parts() {
		if len(m.snap.states[i].globals) == 0 {
			continue
		}
		if p.restore == nil {
			p.restore = p.mod.ExportedFunction(wasm.ExportRestore)
		}
		if err := in.run(p.restore, nil); err != nil {
			return 0, false
		}
	}
	faulted := in.c.faulted()
	if err := in.stack.shrink(stackBase, faulted); err != nil {
		return 0, false
	}
	for i, p := range in.parts() {
		if p.mem == nil {
			continue
		}
		n, err := p.restoreMemory(m.snap.states[i].mem, m.e.strategy, faulted)
		if err != nil {
			m.e.cfg.Logger.Error("restore memory", "module", m.spec.Name, "error", err)
			return 0, false
		}
		pages += n
	}
	return pages, true
}

// restoreMemory restores a part's memory to the image and returns how many pages had
// changed.
func (p *part) restoreMemory(img *image, how strategy, faulted bool) (pages int, err error) {
	if p.mem.size > img.size && !p.shrink(img) {
		return 0, errors.New("it does not shrink")
	}
	if p.scanner == nil {
		if p.scanner, err = newScanner(how >= strategyScan); err != nil {
			return 0, err
		}
	}
	pages, own, err := img.restore(p.mem.buf[:p.mem.usable], p.scanner, faulted)
	p.mem.peak = img.size
	p.own = int64(own) * osPage
	return pages, err
}

// shrink undoes growth of the memory; restore clears it. wazero has no function for
// this, but uses whatever the allocator returns on growth as the memory. The rewritten
// module's maximum is one page above the guest's so that wazero always calls the
// allocator.
func (p *part) shrink(img *image) bool {
	p.mem.back = true
	_, ok := p.mod.Memory().Grow(1)
	p.mem.back = false
	return ok && uint64(p.mod.Memory().Size()) == img.size
}
