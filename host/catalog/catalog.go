package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// The states of a tool, in Status.State and on the admin socket.
const (
	StateOK      = "ok"      // the version on disk serves
	StateStale   = "stale"   // the version on disk does not load; an older one serves
	StateBroken  = "broken"  // nothing loads: TOOL_BROKEN
	StateAbsent  = "absent"  // it loads, but its binary is not on this host: TOOL_NOT_INSTALLED
	StateLoading = "loading" // a first version is being loaded; calls wait for it

	// StateUpdating: the version on disk is being compiled; an older one serves
	// until then.
	StateUpdating = "updating"
)

// Status is one tool in List. The fields that describe the tool are those of the
// generation that serves, and empty if none does.
type Status struct {
	Name        string
	State       string
	Description string
	Kind        string
	// Path is the binary or module that runs. Policies are the policy modules,
	// in the order in which they are asked.
	Path     string
	Policies []string
	Category string
	Version  string
	// PolicyDigests are the sha256 of Policies, in hex, and PolicySince is from
	// when on each of them is asked in every call that begins. HandlerDigest is
	// that of the module.
	PolicyDigests []string
	PolicySince   []time.Time
	HandlerDigest string
	Mutating      bool
	// Mode is the tool's own reliability.mode, or empty.
	Mode string
	// Executes reports whether the tool runs binaries, User whether it runs them
	// as a user of its own.
	Executes, User bool
	// Insecure are the hosts, sorted, whose certificates it does not check.
	Insecure []string
	// Missing are the imports that a stock plugin does not get, each with what to
	// do: a call that calls one fails.
	Missing []string
	// Schema is the JSON Schema of the payload, as its author wrote it.
	Schema json.RawMessage
	// Title is its name for people, where it has one.
	Title string
	// Output is the schema of the data that it answers, where it says so.
	Output json.RawMessage
	// Loaded is when the generation began to serve, Calls the number of calls
	// that hold it.
	Loaded time.Time
	Calls  int
	// Reason is what is wrong, in every state but StateOK and StateLoading; it
	// ends with what to do. Failing is when that began.
	Reason  string
	Failing time.Time
}

// Serving reports whether a call would reach the tool.
func (s Status) Serving() bool {
	return s.State == StateOK || s.State == StateStale || s.State == StateUpdating
}

// settle is how long the files of a tool must have been unchanged before they are
// read, restat the interval at which Watch checks all folders even if no change was
// reported.
const (
	settle = 100 * time.Millisecond
	restat = 5 * time.Second
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

// Catalog holds the tools of one tools.d. Its methods may be called from any
// goroutine.
type Catalog struct {
	cfg    Config
	log    *slog.Logger
	memory *memory
	// ctx ends with Close; work counts the goroutines that it ends.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	slots  chan struct{} // holds one token for each load that compiles
	// first does the same for loads that bring a new policy, which wait for no
	// module, and reads for those that read files.
	first, reads chan struct{}
	// changed holds a token when the files of some tool may have moved to folders
	// that Watch does not watch yet.
	changed chan struct{}

	mu     sync.Mutex
	roots  []string          // Config.Roots as it is now; guarded by mu, replaced and never changed
	tools  map[string]*entry // guarded by mu
	looks  float64           // guarded by mu: looks left
	looked time.Time         // guarded by mu: when looks was counted
	// setups are the runs of setup.sh by the tool's name; guarded by mu.
	setups map[string]setupRun
	closed bool // guarded by mu
}

// entry is the state of one name. Its fields are guarded by Catalog.mu; stamps
// and programs are replaced, never modified.
type entry struct {
	name string
	// current is the generation that serves. It is nil while the first load runs,
	// and when err is set.
	current *generation
	err     *fault.Error
	// stale is why the version on disk has not replaced current.
	stale   *fault.Error
	failing time.Time
	// compiling is since when a version is being compiled that may replace
	// current; zero if there is none.
	compiling time.Time
	// tries counts consecutive failures that may pass without a change on disk;
	// the next attempt is not before retryAt. It is 0 if the last load succeeded
	// or failed because of the files.
	tries   int
	retryAt time.Time
	// anew makes the next load read the files even if they have not changed.
	anew bool
	// stamps are those of the files that the last load read, programs are what it
	// found on the host.
	stamps   *disk.Stamps
	programs []*disk.Program
	// setup reports whether a setup.sh may restore a missing binary.
	setup bool
	// done is closed when the load that is under way ends; nil if there is none.
	// next is the same for the load after it; nil if none was requested.
	done, next chan struct{}
}

// generation is a Tool with its reference count.
type generation struct {
	tool   tools.Tool
	has    layers // the policies that it was loaded with
	digest string
	loaded time.Time
	// program is what was found of tool.Binary, for the kind Binary.
	program *disk.Program
	// since is from when on each of the tool's policies is asked; it is not
	// changed once the generation serves.
	since []time.Time

	refs    int  // guarded by Catalog.mu
	retired bool // guarded by Catalog.mu: it is not handed out any more
}

// begin has g serve from now on, in the place of old, which may be nil.
func (g *generation) begin(old *generation, now time.Time) {
	g.loaded, g.since = now, make([]time.Time, len(g.tool.Policies))
	for i, digest := range g.tool.PolicyDigests {
		g.since[i] = now
		if old == nil {
			continue
		}
		if was := slices.Index(old.tool.PolicyDigests, digest); was >= 0 {
			g.since[i] = old.since[was]
		}
	}
}

func (g *generation) close() {
	for _, m := range g.tool.Policies {
		m.Close()
	}
	if g.tool.Handler != nil {
		g.tool.Handler.Close()
	}
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
	names, err := toolNames(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the tools folder: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := &Catalog{
		cfg: cfg, log: cfg.Logger, memory: memory,
		slots: make(chan struct{}, maxLoads), first: make(chan struct{}, maxLoads), reads: make(chan struct{}, maxLoads), changed: make(chan struct{}, 1),
		roots: cfg.Roots, tools: map[string]*entry{}, setups: map[string]setupRun{}, looks: looksBurst, looked: time.Now(),
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
		script := slices.ContainsFunc(e.programs, (*disk.Program).Script)
		if e.current == nil || e.stale != nil || script {
			e.anew = true
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

// toolNames lists the entries of tools.d whose name may be a tool's, in order.
func toolNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if tools.ValidName(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
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
			release = sync.OnceFunc(func() { c.release(g) })
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
		case e == nil && (looked || !c.mayLookLocked(time.Now())):
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
	if e := c.tools[name]; e != nil {
		programs = e.programs
	}
	c.mu.Unlock()
	return slices.ContainsFunc(programs, (*disk.Program).Changed) || c.setupDue(name, programs)
}

// mayLookLocked takes a token from the rate limit for unknown names.
func (c *Catalog) mayLookLocked(now time.Time) bool {
	c.looks = min(looksBurst, c.looks+now.Sub(c.looked).Seconds()*looksSecond)
	c.looked = now
	if c.looks < 1 {
		return false
	}
	c.looks--
	return true
}

// installed checks that the binary exists now: it may have been installed or
// removed since the tool was loaded.
func (g *generation) installed() (*tools.Tool, *fault.Error) {
	t := &g.tool
	if t.Kind != tools.Binary {
		return t, nil
	}
	if p := g.program; p.Err != nil { // an interpreter is missing
		return nil, fault.Errorf(fault.ToolNotInstalled, "tool %s cannot start: %s %w", t.Name, p.File, p.Err)
	}
	if disk.Executable(t.Binary) {
		return t, nil
	}
	name := t.Def.Binary
	if name == "" {
		name = t.Name
	}
	file, ok := disk.LookBinary(name)
	if !ok {
		where := "in " + tools.BinaryPath
		if filepath.IsAbs(name) {
			where = "there"
		}
		return nil, fault.Errorf(fault.ToolNotInstalled, "tool %s runs %s, and no such program is %s; install it on the host", t.Name, name, where)
	}
	found := *t
	found.Binary = file
	return &found, nil
}

func (c *Catalog) release(g *generation) {
	c.mu.Lock()
	g.refs--
	last := g.retired && g.refs == 0
	c.mu.Unlock()
	if last {
		c.end(g)
	}
}

// end closes a generation that is retired and has no references left.
func (c *Catalog) end(g *generation) {
	g.close()
	c.event(Event{Tool: g.tool.Name, Change: Closed, Version: g.tool.Version})
}

// retireLocked takes g out of service and returns a function to call after mu is
// unlocked.
func (c *Catalog) retireLocked(g *generation) (after func()) {
	if g == nil {
		return func() {}
	}
	g.retired = true
	if g.refs > 0 {
		return func() {}
	}
	return func() { c.end(g) }
}

func (c *Catalog) event(e Event) {
	if c.cfg.OnChange != nil {
		c.cfg.OnChange(e)
	}
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

// slot runs f when there is room for its token in slots. It reports false if the
// catalog is closing.
func (c *Catalog) slot(slots chan struct{}, f func()) bool {
	select {
	case slots <- struct{}{}:
	case <-c.ctx.Done():
		return false
	}
	defer func() { <-slots }()
	if c.ctx.Err() != nil {
		return false
	}
	f()
	return c.ctx.Err() == nil
}

// maxUnstable is how often a folder that keeps changing is read again before the
// load fails.
const maxUnstable = 50

// errUnstable is the error for files that kept changing while they were read.
var errUnstable = errors.New("its files keep changing while they are read; write them elsewhere and rename them into place")

// stable reads a version whose files did not change while they were read, nor for
// settle before. A nil candidate without an error means that nothing has changed
// since stamps.
func (c *Catalog) stable(name string, stamps *disk.Stamps) (v *candidate, seen *disk.Stamps, err error) {
	for range maxUnstable {
		var again bool
		if !c.slot(c.reads, func() { v, seen, again, err = c.readOnce(name, stamps) }) {
			return nil, nil, c.ctx.Err()
		}
		if !again {
			return v, seen, err
		}
		// Some file changed just now, or in the future of this clock (other hosts
		// may write here). The version is stable if a later look finds the same.
		select {
		case <-time.After(settle):
		case <-c.ctx.Done():
			return nil, nil, c.ctx.Err()
		}
		still := false
		if seen == nil {
			continue
		}
		if d, e := disk.Open(c.cfg.Dir, c.cfg.Restricted); e == nil {
			still = d.Same(seen) && d.Current()
			d.Close()
		}
		if still {
			return v, seen, err
		}
	}
	return nil, nil, errUnstable
}

// readOnce reads the folder. again reports whether it may be incomplete.
func (c *Catalog) readOnce(name string, stamps *disk.Stamps) (v *candidate, seen *disk.Stamps, again bool, err error) {
	d, err := disk.Open(c.cfg.Dir, c.cfg.Restricted)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			if !exists(c.cfg.Dir) {
				return &candidate{name: name, gone: true, why: "the tools folder is gone"}, nil, false, nil
			}
			if c.cfg.Restricted == "" || exists(c.cfg.Restricted) {
				// A link in the path was replaced while it was resolved.
				return nil, nil, true, err
			}
		}
		return nil, nil, false, fmt.Errorf("%w; make the folder readable", err)
	}
	defer d.Close()
	if stamps != nil && d.Same(stamps) {
		return nil, stamps, false, nil
	}
	v = c.read(d, name)
	quiet := time.Now().UnixNano() - d.Newest()
	seen = d.Seen()
	return v, seen, quiet < int64(settle) || !d.Same(seen) || !d.Current(), nil
}

// load reads the folder once and makes the entry match it: the version on disk is
// published, fails, or is removed.
func (c *Catalog) load(e *entry) {
	start := time.Now()
	moved := c.moved(e.name)
	c.mu.Lock()
	stamps, old := e.stamps, e.current
	if moved || e.anew || e.tries > 0 && !start.Before(e.retryAt) {
		stamps = nil
	}
	e.anew = false
	c.mu.Unlock()

	for c.loadOnce(e, start, stamps, old) {
	}
}

// loadOnce is load, once. It reports true if the files changed while it waited for
// its turn: nothing was done then.
func (c *Catalog) loadOnce(e *entry, start time.Time, stamps *disk.Stamps, old *generation) (again bool) {
	v, seen, err := c.stable(e.name, stamps)
	if c.ctx.Err() != nil || v == nil && err == nil {
		return false
	}
	defer func() {
		if v != nil {
			c.mu.Lock()
			e.programs = v.programs
			c.mu.Unlock()
		}
		select {
		case c.changed <- struct{}{}:
		default: // one is enough
		}
	}()
	switch {
	case err != nil:
		c.fail(e, start, fault.Errorf(fault.Internal, "read tool %s: %w", e.name, err), false, nil)
		return false
	case v.gone:
		c.remove(e, v.why)
		return false
	}

	c.mu.Lock()
	e.setup = v.setup != nil && v.kind == tools.Binary
	if old != nil && v.digest != old.digest {
		e.compiling = start
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		e.compiling = time.Time{}
		c.mu.Unlock()
	}()

	return c.replace(e, v, old, start, seen)
}

// replace makes v, which is on disk, the version of e that serves in place of old.
// It reports true if it is on disk no longer when its turn has come.
func (c *Catalog) replace(e *entry, v *candidate, old *generation, start time.Time, seen *disk.Stamps) (changed bool) {
	// Recorded first, so that neither a crash nor a failed load forgets that there
	// is a policy.
	err := c.memory.update(e.name, func(p *toolPast, global *bool) {
		p.Policy = p.Policy || v.present.own
		*global = *global || v.present.global
	})
	// The policies on disk are binding even if this version does not load: the
	// generation that serves must not have fewer.
	deny := v.legacy || old != nil && old.has.without(v.present)
	if err != nil {
		err = fault.Errorf(fault.Internal, "load tool %s: %w", e.name, err)
	} else if err = c.lost(v); err != nil {
		deny = true
	} else if old != nil && v.digest == old.digest && !c.setupDue(e.name, v.programs) {
		c.unchanged(e, seen)
		return false
	}
	var g *generation
	compile := func() { g, err = c.compile(c.ctx, v) }
	turn := c.turn(v, old)
	if v.err == nil && turn == c.slots && len(turn) == cap(turn) {
		// A thousand tools that wait would hold a thousand modules: they are read
		// again instead.
		v.forget()
		compile = func() {
			if changed = !c.recall(v); !changed {
				g, err = c.compile(c.ctx, v)
			}
		}
	}
	if err == nil && !c.slot(turn, compile) {
		if g != nil {
			g.close()
		}
		return false
	}
	if changed {
		return true
	}
	if err == nil {
		// Without a policy this is reached only if the operator confirmed that.
		err = c.memory.update(e.name, func(p *toolPast, global *bool) {
			p.Policy = v.present.own
			*global = *global && (v.present.global || !v.globalNone)
		})
		if err != nil {
			g.close()
			err = fault.Errorf(fault.Internal, "load tool %s: %w", e.name, err)
		}
	}
	if err != nil {
		c.fail(e, start, err, deny, seen)
		return false
	}
	c.publish(e, start, g, seen)
	return false
}

// recall reads the modules of v again, which it forgot. It reports false if its
// files are others now.
func (c *Catalog) recall(v *candidate) bool {
	var now *candidate
	c.slot(c.reads, func() {
		read, _, again, err := c.readOnce(v.name, nil)
		if err == nil && !again && read != nil && read.digest == v.digest {
			now = read
		}
	})
	if now == nil {
		return false
	}
	v.handler, v.linked, v.policies = now.handler, now.linked, now.policies
	return true
}

// exists reports whether a folder exists. It tries again before it reports false: a
// link in the path may have been replaced, and its old target removed, during the
// lookup. Kubernetes does that on every change of a volume.
func exists(dir string) bool {
	for range 3 {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// lost returns an error if the tool once had a policy that is gone, or requires one
// that it does not have.
func (c *Catalog) lost(v *candidate) error {
	past, global := c.memory.past(v.name)
	none := v.def != nil && v.def.Policy == tools.PolicyNone
	switch {
	case past.Policy && !v.present.own && !none:
		return broken(`tool %s had a policy and has none any more, which does not make it unrestricted; put %s back, or say "policy": "none" in its tool.json`, v.name, tools.PolicyFile)
	case global && !v.present.global && !v.globalNone && !none:
		where := filepath.Join(c.cfg.Restricted, globalPolicy)
		if c.cfg.Restricted == "" {
			where = globalPolicy + " of the restricted folder, which this daemon was started without,"
		}
		return broken("tool %s had a policy for all tools and has none any more, which does not make it unrestricted; put %s back, or put an empty %s beside it if there is meant to be none", v.name, where, globalNone)
	case v.err == nil && v.def.Policy == tools.PolicyRequired && !v.present.own:
		return broken(`tool %s says "policy": "required" and has none; put %s into its folder (make build compiles those of this repository)`, v.name, tools.PolicyFile)
	}
	return nil
}

// unchanged records that the version on disk is the one that serves.
func (c *Catalog) unchanged(e *entry, seen *disk.Stamps) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.stamps = seen
	e.stale, e.failing, e.tries = nil, time.Time{}, 0
}

// publish makes g the current generation and retires the one before.
func (c *Catalog) publish(e *entry, start time.Time, g *generation, seen *disk.Stamps) {
	c.mu.Lock()
	old := e.current
	g.begin(old, time.Now())
	e.current, e.stamps = g, seen
	e.err, e.stale, e.failing, e.tries, e.compiling = nil, nil, time.Time{}, 0, time.Time{}
	after := c.retireLocked(old)
	c.mu.Unlock()
	change := Loaded
	if old != nil {
		change = Swapped
	}
	took := time.Since(start)
	c.log.Info("tool "+string(change), "tool", e.name, "version", g.tool.Version, "kind", g.tool.Kind, "policies", g.tool.PolicyFiles, "took", took)
	if len(g.tool.Policies) == 0 {
		c.log.Warn("tool has no policy: every call of it is allowed", "tool", e.name)
	}
	c.event(Event{Tool: e.name, Change: change, Version: g.tool.Version, Took: took})
	after()
}

// fail records that a version does not load. The current generation goes on serving,
// unless deny is set because it would skip a policy. seen are the files that were
// read: the version is tried again when one of them changes, and after an error that
// is not caused by the files also without a change.
func (c *Catalog) fail(e *entry, start time.Time, err error, deny bool, seen *disk.Stamps) {
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
	old := e.current
	serves := old != nil && !deny
	repeated := serves && e.stale != nil && e.stale.Message == we.Message || !serves && e.err != nil && e.err.Message == we.Message
	if e.failing.IsZero() {
		e.failing = time.Now()
	}
	e.stamps = seen
	if !transient {
		e.tries = 0
	} else {
		// Immediately, then with increasing delays: a module that takes minutes to
		// fail must not keep the machine busy.
		e.retryAt = time.Now()
		if e.tries > 0 {
			e.retryAt = e.retryAt.Add(restat << min(e.tries-1, 6))
		}
		e.tries++
	}
	after := func() {}
	version := ""
	if serves {
		e.stale = we
		version = old.tool.Version
	} else {
		e.current, e.err, e.stale = nil, we, nil
		after = c.retireLocked(old)
	}
	c.mu.Unlock()
	change := Broken
	if serves {
		change = Failed
	}
	if !repeated {
		c.log.Error("tool "+string(change), "tool", e.name, "error", we.Message, "serving", version)
		c.event(Event{Tool: e.name, Change: change, Version: version, Err: we, Took: time.Since(start)})
	}
	after()
}

// remove removes a tool whose folder is gone.
func (c *Catalog) remove(e *entry, why string) {
	c.mu.Lock()
	old := e.current
	known := old != nil || e.err != nil
	e.current, e.err, e.stale, e.failing, e.tries, e.stamps = nil, nil, nil, time.Time{}, 0, nil
	after := c.retireLocked(old)
	c.mu.Unlock()
	if known {
		c.log.Info("tool removed", "tool", e.name, "reason", why)
		c.event(Event{Tool: e.name, Change: Removed})
	} else {
		c.log.Debug("folder is no tool", "tool", e.name, "reason", why)
	}
	after()
}

// List returns the status of every tool, sorted by name.
func (c *Catalog) List() []Status {
	c.mu.Lock()
	list := make([]Status, 0, len(c.tools))
	serving := make(map[string]*generation, len(c.tools))
	for _, e := range c.tools {
		s := Status{Name: e.name, State: StateLoading, Failing: e.failing}
		switch {
		case e.current != nil:
			s.State, s.Loaded, s.Calls = StateOK, e.current.loaded, e.current.refs
			serving[e.name] = e.current
			s.PolicySince = e.current.since
			switch {
			case !e.compiling.IsZero():
				s.State = StateUpdating
				s.Reason = fmt.Sprintf("a new version is being compiled since %s, and the one before it serves until then; toolctl tools wait %s DIGEST waits for it", e.compiling.Format(time.TimeOnly), e.name)
			case e.stale != nil:
				s.State, s.Reason = StateStale, e.stale.Message
			}
		case e.err != nil:
			s.State, s.Reason = StateBroken, e.err.Message
		}
		list = append(list, s)
	}
	c.mu.Unlock()
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	for i := range list {
		s := &list[i]
		g := serving[s.Name]
		if g == nil {
			continue
		}
		t := &g.tool
		if found, err := g.installed(); err == nil {
			t = found
		} else if s.State == StateOK {
			s.State, s.Reason = StateAbsent, err.Message
		}
		s.Description, s.Kind, s.Path, s.Policies = t.Description, string(t.Kind), t.Binary, t.PolicyFiles
		if t.Kind != tools.Binary {
			s.Path = t.HandlerFile
		}
		s.PolicyDigests, s.HandlerDigest = t.PolicyDigests, t.HandlerDigest
		s.Category, s.Version, s.Mutating, s.Schema, s.Output = t.Def.Category, t.Version, t.Def.Mutating, t.SchemaSource, t.OutputSource
		if t.Annotations != nil {
			s.Title = t.Annotations.Title
		}
		s.Mode, s.Missing = t.Def.Reliability.Mode, t.Missing
		s.Executes, s.User = t.Kind == tools.Binary || len(t.Def.Capabilities.Exec) > 0, t.User != nil
		if h := t.Def.Capabilities.HTTP; h != nil {
			for _, host := range slices.Sorted(maps.Keys(h.TLS)) {
				if h.TLS[host].InsecureSkipVerify {
					s.Insecure = append(s.Insecure, host)
				}
			}
		}
	}
	return list
}

// DeclaresClaim reports whether a tool that serves uses the claim name of a token, in
// identity or as the source of a secret.
func (c *Catalog) DeclaresClaim(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.tools {
		if e.current == nil {
			continue
		}
		d := e.current.tool.Def
		if slices.Contains(d.Identity.Claims, name) || slices.Contains(d.Identity.Secret, name) {
			return true
		}
		for _, s := range d.Secrets {
			if s.From == "claim:"+name {
				return true
			}
		}
	}
	return false
}

// SecretFiles returns the files, sorted, from which the tools that serve read
// secrets.
func (c *Catalog) SecretFiles() []string {
	return c.filesOf(func(s tools.Secret) bool { return !isCertificate(s) })
}

// CertificateFiles returns the files, sorted, with the authorities and certificates
// that modules of the tools that serve are given for TLS.
func (c *Catalog) CertificateFiles() []string { return c.filesOf(isCertificate) }

// isCertificate reports whether s may be read by others.
func isCertificate(s tools.Secret) bool { return s.TLS == tools.TLSCA || s.TLS == tools.TLSCert }

// filesOf returns the files, sorted, of those secrets of the tools that serve which
// match.
func (c *Catalog) filesOf(match func(tools.Secret) bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var files []string
	for _, e := range c.tools {
		if e.current == nil {
			continue
		}
		for _, s := range e.current.tool.Def.Secrets {
			if file, ok := strings.CutPrefix(s.From, "file:"); ok && match(s) {
				files = append(files, file)
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// Discovering returns the names, sorted, of the tools that offer further tools for
// each identity.
func (c *Catalog) Discovering() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, e := range c.tools {
		if e.current != nil && e.current.tool.Discovers {
			names = append(names, e.name)
		}
	}
	slices.Sort(names)
	return names
}

// Listening returns what the tools that are run with events ask for, by name.
func (c *Catalog) Listening() map[string][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	listening := map[string][]string{}
	for _, e := range c.tools {
		if e.current != nil && len(e.current.tool.Def.On) > 0 {
			listening[e.name] = e.current.tool.Def.On
		}
	}
	return listening
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
	var after []func()
	c.mu.Lock()
	for _, e := range c.tools {
		after = append(after, c.retireLocked(e.current))
		e.current = nil
	}
	clear(c.tools)
	c.mu.Unlock()
	for _, f := range after {
		f()
	}
	return nil
}
