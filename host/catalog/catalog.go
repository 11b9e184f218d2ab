package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/tools"
)

// Config configures a Catalog. It does not change after Open.
type Config struct {
	// Dir is tools.d. It must exist.
	Dir string
	// Restricted is the folder of fallback and global policies. It must exist
	// if it is set.
	Restricted string
	// StateDir holds state that survives restarts. It is created if it does not
	// exist, and must not be shared with another catalog.
	StateDir string
	// Roots are the folders that calls may work in, clean and absolute. A tool
	// whose own roots lie outside of them is broken. If it is empty, roots are
	// only checked when a tool is called. SetRoots replaces them.
	Roots []string
	// Engine loads modules, Runner runs setup.sh. The caller closes both, after
	// the catalog.
	Engine *guest.Engine
	Runner *process.Runner
	// AllowWritable accepts files and folders that users other than their owner
	// can write.
	AllowWritable bool
	Logger        *slog.Logger
	// OnChange, if set, is called with every change of a tool, while no lock is
	// held. Changes of one tool are reported one at a time, except Closed, which
	// is reported when the last call ends. It must not block.
	OnChange func(Event)
}

// Event is one change of a tool.
type Event struct {
	Tool   string
	Change Change
	// Version is the generation that serves from now on, or empty if none does.
	Version string
	// Err is why a version does not serve. Set for Failed and Broken.
	Err error
	// Took is the time spent reading and compiling. Set for Loaded, Swapped,
	// Failed and Broken.
	Took time.Duration
}

// Change is the kind of an Event.
type Change string

const (
	Loaded  Change = "loaded"  // a first generation serves
	Swapped Change = "swapped" // a new generation serves in place of another
	Failed  Change = "failed"  // a new version does not load; the old generation serves
	Broken  Change = "broken"  // nothing serves: TOOL_BROKEN
	Removed Change = "removed" // the folder is gone: UNKNOWN_TOOL
	Closed  Change = "closed"  // a generation ended with its last call
)

// maxLoads is how many tools are read and compiled at the same time. Compiling
// needs CPU time that running calls need as well.
const maxLoads = 4

// Rate limit for looking up unknown names on disk: a burst, then a number per
// second. Without it, a caller could make the daemon read folders for names that
// it makes up; beyond it, such a name costs one stat.
const (
	looksBurst  = 64
	looksSecond = 32
)

// looks is the rate limit.
type looks struct {
	left    float64
	counted time.Time
}

// take reports whether a name may be looked up now.
func (l *looks) take(now time.Time) bool {
	l.left = min(looksBurst, l.left+now.Sub(l.counted).Seconds()*looksSecond)
	l.counted = now
	if l.left < 1 {
		return false
	}
	l.left--
	return true
}

// Catalog holds the tools of one tools.d. Its methods may be called from any
// goroutine.
type Catalog struct {
	cfg    Config
	loader loader
	// ctx ends with Close; work counts the goroutines that it ends.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	// changed holds a token when the files of some tool may have moved to folders
	// that Watch does not watch yet.
	changed chan struct{}

	mu     sync.Mutex
	roots  []string          // Config.Roots as it is now; guarded by mu, replaced and never changed
	tools  map[string]*entry // guarded by mu
	looks  looks             // guarded by mu
	closed bool              // guarded by mu
}

// Open lists tools.d and begins to load every tool in it; calls of a tool that is
// still loading wait for it. A tool that does not load is TOOL_BROKEN and not an
// error of Open. Open fails if a folder is missing or can be written by others, or
// if the state cannot be read.
func Open(ctx context.Context, cfg Config) (*Catalog, error) {
	var err error
	if cfg.Dir, err = checkFolder(cfg.Dir, "--tools", cfg.AllowWritable); err != nil {
		return nil, fmt.Errorf("open the tools folder: %w", err)
	}
	if cfg.Restricted != "" {
		if cfg.Restricted, err = checkFolder(cfg.Restricted, "--restricted", cfg.AllowWritable); err != nil {
			return nil, fmt.Errorf("open the restricted folder: %w", err)
		}
	}
	memory, err := openMemory(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	names, _, err := toolNames(cfg.Dir) // Watch logs what is misnamed
	if err != nil {
		return nil, fmt.Errorf("list the tools folder: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if cfg.OnChange == nil {
		cfg.OnChange = func(Event) {}
	}
	c := &Catalog{
		cfg: cfg, changed: make(chan struct{}, 1),
		roots: cfg.Roots, tools: map[string]*entry{}, looks: looks{left: looksBurst, counted: time.Now()},
		loader: loader{
			reader: reader{dir: cfg.Dir, restricted: cfg.Restricted, reads: make(places, maxLoads)},
			compiler: compiler{engine: cfg.Engine, runner: cfg.Runner, setups: &setups{
				runner: cfg.Runner, memory: memory, homes: filepath.Join(cfg.StateDir, "setup"),
				log: cfg.Logger, runs: map[string]setupRun{},
			}},
			memory: memory, modules: make(places, maxLoads), policies: make(places, maxLoads),
		},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for _, name := range names {
		c.reconcile(name)
	}
	return c, nil
}

// SetRoots replaces Config.Roots and reloads the tools that depend on them: those
// that did not load, and scripts, which must not lie in a root.
func (c *Catalog) SetRoots(roots []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(c.roots, roots) {
		return
	}
	c.roots = slices.Clone(roots)
	for name, e := range c.tools {
		script := slices.ContainsFunc(e.seen.programs, (*disk.Program).Script)
		if e.current == nil || e.stale != nil || script {
			e.reread = true
			c.reconcileLocked(name)
		}
	}
}

// checkFolder returns dir as an absolute path. It is an error if dir is not a folder
// or can be written by others than its owner.
func checkFolder(dir, flag string, allowWritable bool) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	fi, err := os.Stat(abs)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s does not exist; make it, or name another with %s", abs, flag)
	}
	if err != nil {
		return "", err
	}
	if !fi.IsDir() {
		return "", fmt.Errorf("%s is not a folder; name one with %s", abs, flag)
	}
	if !allowWritable && disk.WritableByOthers(abs, fi.Mode()) {
		return "", fmt.Errorf(`%s can be written by others than its owner (mode %04o), who could then run any tool and lift any policy; run chmod go-w %s, or say "allow_writable_tools": true in toold.json`, abs, fi.Mode().Perm(), abs)
	}
	return abs, nil
}

// Acquire returns the current generation of a tool and pins it until release is
// called; further calls of release do nothing. Errors are *fault.Error:
// UNKNOWN_TOOL, TOOL_BROKEN, TOOL_NOT_INSTALLED, ABORTED or TIMEOUT when ctx
// ends while the tool is loading, OVERLOADED after Close.
func (c *Catalog) Acquire(ctx context.Context, name string) (t *tools.Tool, release func(), err error) {
	if !tools.ValidName(name) {
		return nil, nil, tools.Unknown(name)
	}
	// Checked on every call, so that a removed folder is unknown at once, whether
	// or not the watcher has noticed.
	if !exists(filepath.Join(c.cfg.Dir, name)) {
		c.mu.Lock()
		known := c.tools[name] != nil
		c.mu.Unlock()
		if known {
			c.reconcile(name)
		}
		return nil, nil, tools.Unknown(name)
	}
	if c.moved(name) {
		// The current generation refers to a program that was replaced.
		select {
		case <-c.reconcile(name):
		case <-ctx.Done():
		}
	}
	looked := false
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, nil, fault.Errorf(fault.Overloaded, "this daemon is shutting down; try again")
		}
		e := c.tools[name]
		switch {
		case e != nil && e.current != nil:
			g := e.current
			g.refs++
			c.mu.Unlock()
			release = sync.OnceFunc(func() {
				c.mu.Lock()
				last := g.release()
				c.mu.Unlock()
				if last {
					c.end(g)
				}
			})
			t, missing := g.installed()
			if missing != nil {
				release()
				return nil, nil, missing
			}
			return t, release, nil
		case e != nil && e.err != nil:
			err := *e.err
			c.mu.Unlock()
			return nil, nil, &err
		case e == nil && (looked || !c.looks.take(time.Now())):
			c.mu.Unlock()
			return nil, nil, tools.Unknown(name)
		}
		done := (<-chan struct{})(nil)
		if e != nil && e.done != nil {
			done = e.done
		} else {
			done = c.reconcileLocked(name)
		}
		c.mu.Unlock()
		looked = true
		select {
		case <-done:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, nil, fault.Errorf(fault.Timeout, "tool %s was still loading; try again", name)
			}
			return nil, nil, fault.Errorf(fault.Aborted, "the call ended while tool %s was loading", name)
		}
	}
}

// moved reports whether a program of the tool was replaced since the last load, or
// setup.sh has to restore it.
func (c *Catalog) moved(name string) bool {
	c.mu.Lock()
	var programs []*disk.Program
	setup := false
	if e := c.tools[name]; e != nil {
		programs, setup = e.seen.programs, e.seen.setup
	}
	c.mu.Unlock()
	return slices.ContainsFunc(programs, (*disk.Program).Changed) || setup && c.loader.compiler.setups.due(name, programs)
}

// end closes g, which is retired and has no references left.
func (c *Catalog) end(g *generation) {
	g.close()
	c.cfg.OnChange(Event{Tool: g.tool.Name, Change: Closed, Version: g.tool.Version})
}

// reconcile schedules a load of the folder of name. The channel that it returns is
// closed when a load that began after this call has ended.
func (c *Catalog) reconcile(name string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reconcileLocked(name)
}

func (c *Catalog) reconcileLocked(name string) <-chan struct{} {
	if c.closed {
		done := make(chan struct{})
		close(done)
		return done
	}
	e := c.tools[name]
	if e == nil {
		e = &entry{name: name}
		c.tools[name] = e
	}
	if e.done != nil {
		if e.next == nil {
			e.next = make(chan struct{})
		}
		return e.next
	}
	e.done = make(chan struct{})
	c.work.Add(1)
	go c.run(e)
	return e.done
}

// run loads a tool until no further load is requested. There is one run at a time
// for each entry, which keeps its generations in order.
func (c *Catalog) run(e *entry) {
	defer c.work.Done()
	for {
		c.load(e)
		c.mu.Lock()
		close(e.done)
		e.done, e.next = e.next, nil
		more := e.done != nil
		if !more && e.current == nil && e.err == nil {
			delete(c.tools, e.name)
		}
		c.mu.Unlock()
		if !more {
			return
		}
	}
}

// load reads the folder once and makes the entry match it: the version on disk is
// published, fails, or is removed.
func (c *Catalog) load(e *entry) {
	start := time.Now()
	moved := c.moved(e.name)
	c.mu.Lock()
	last, old := known{stamps: e.seen.stamps}, e.current
	if e.failure.due(start) && e.failure.script {
		last.failed = e.failure.digest
	}
	// What does not load may do so without a sign that a file has changed: a mapping, or
	// a server, changes one before its times, and a folder or a user that it needs may be
	// there now.
	if moved || e.reread || e.failure.due(start) && last.failed == "" {
		last = known{}
	}
	e.reread = false
	c.mu.Unlock()

	for c.loadOnce(e, start, last, old) {
	}
}

// loadOnce is load, once. It reports true if the files changed while it waited for
// its turn: nothing was done then.
func (c *Catalog) loadOnce(e *entry, start time.Time, last known, old *generation) (again bool) {
	c.mu.Lock()
	terms := terms{roots: c.roots, allowWritable: c.cfg.AllowWritable}
	c.mu.Unlock()
	v, seen, err := c.loader.reader.stable(c.ctx, e.name, last, terms)
	if c.ctx.Err() != nil {
		return false
	}
	if v == nil && err == nil {
		if last.failed != "" {
			c.mu.Lock()
			e.failure.postpone(time.Now(), restat)
			c.mu.Unlock()
		}
		return false
	}
	defer func() {
		if v != nil {
			c.mu.Lock()
			e.seen.programs = v.programs
			c.mu.Unlock()
		}
		select {
		case c.changed <- struct{}{}:
		default: // one is enough
		}
	}()
	switch {
	case err != nil:
		c.fail(e, start, nil, fault.Errorf(fault.Internal, "read tool %s: %w", e.name, err), false, nil)
		return false
	case v.gone != "":
		c.remove(e, v.gone)
		return false
	}

	c.mu.Lock()
	e.seen.setup = v.installs()
	if old != nil && v.digest != old.digest {
		e.compiling = start
	}
	c.mu.Unlock()
	o := c.loader.load(c.ctx, v, old)
	c.mu.Lock()
	e.compiling = time.Time{}
	if o.same {
		e.unchanged(seen)
	}
	c.mu.Unlock()
	switch {
	case o.err != nil:
		c.fail(e, start, v, o.err, o.deny, seen)
	case o.generation != nil:
		c.publish(e, start, o.generation, seen)
	}
	return o.moved
}

// publish makes g the current generation and retires the one before.
func (c *Catalog) publish(e *entry, start time.Time, g *generation, seen *disk.Stamps) {
	c.mu.Lock()
	old := e.serve(g, seen, time.Now())
	last := old.retire()
	c.mu.Unlock()
	change := Loaded
	if old != nil {
		change = Swapped
	}
	took := time.Since(start)
	c.cfg.Logger.Info("tool "+string(change), "tool", e.name, "version", g.tool.Version, "kind", g.tool.Kind, "policies", g.tool.PolicyFiles, "took", took)
	if len(g.tool.Policies) == 0 {
		c.cfg.Logger.Warn("tool has no policy: every call of it is allowed", "tool", e.name)
	}
	c.cfg.OnChange(Event{Tool: e.name, Change: change, Version: g.tool.Version, Took: took})
	if last {
		c.end(old)
	}
}

// fail records that v, which is nil if it could not be read, does not load. The current
// generation goes on serving, unless deny is set because it would skip a policy. An
// error that is not caused by the files is transient.
func (c *Catalog) fail(e *entry, start time.Time, v *candidate, err error, deny bool, seen *disk.Stamps) {
	var we *fault.Error
	if !errors.As(err, &we) {
		we = fault.Errorf(fault.ToolBroken, "load tool %s: %w", e.name, err)
	}
	transient := we.Code != fault.ToolBroken
	if transient {
		// Callers get one code for all tools that do not load.
		we = &fault.Error{Code: fault.ToolBroken, Message: we.Message, Cause: err}
	}
	c.mu.Lock()
	serving, retired, repeated := e.fail(v, we, transient, deny, seen, time.Now())
	last := retired.retire()
	c.mu.Unlock()
	if !repeated {
		change, version := Broken, ""
		if serving != nil {
			change, version = Failed, serving.tool.Version
		}
		c.cfg.Logger.Error("tool "+string(change), "tool", e.name, "error", we.Message, "serving", version)
		c.cfg.OnChange(Event{Tool: e.name, Change: change, Version: version, Err: we, Took: time.Since(start)})
	}
	if last {
		c.end(retired)
	}
}

// remove removes a tool whose folder is gone.
func (c *Catalog) remove(e *entry, why string) {
	c.mu.Lock()
	old, known := e.remove()
	last := old.retire()
	c.mu.Unlock()
	if known {
		c.cfg.Logger.Info("tool removed", "tool", e.name, "reason", why)
		c.cfg.OnChange(Event{Tool: e.name, Change: Removed})
	} else {
		c.cfg.Logger.Debug("folder is not a tool", "tool", e.name, "reason", why)
	}
	if last {
		c.end(old)
	}
}

// Ready waits until the first load of every tool has ended.
func (c *Catalog) Ready(ctx context.Context) error {
	for {
		var done chan struct{}
		c.mu.Lock()
		for _, e := range c.tools {
			if e.current == nil && e.err == nil && e.done != nil {
				done = e.done
				break
			}
		}
		c.mu.Unlock()
		if done == nil {
			return nil
		}
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close stops loading and watching and takes every tool out of service. Calls that
// hold a generation finish on it; it is closed when the last one releases it.
func (c *Catalog) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.work.Wait()
	var unused []*generation
	c.mu.Lock()
	for _, e := range c.tools {
		if e.current.retire() {
			unused = append(unused, e.current)
		}
		e.current = nil
	}
	clear(c.tools)
	c.mu.Unlock()
	for _, g := range unused {
		c.end(g)
	}
	return nil
}
