// Package host is the daemon: it wires its parts by hand in New, serves sockets in
// Serve, and takes a call from any other front end in Call. Package pipeline has
// the order in which a call is handled.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/catalog"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/mcp"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/pipeline"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/reliability"
	"github.com/toold/toold/host/session"
)

// Host is one daemon. It is safe for concurrent use.
type Host struct {
	parts    pipeline.Parts
	pipeline *pipeline.Pipeline
	started  time.Time
	engine   *guest.Engine
	lock     *os.File // the state folder's, held for life

	settings
	// end ends the calls that run, with the daemon.
	end   context.CancelCauseFunc
	ready atomic.Bool // calls are accepted

	extensions *extensions
	mcp        *mcp.Front

	upgrades upgrades
}

// settings are those in force.
type settings struct {
	// current and identity are swapped whole by a reload; nobody else writes.
	current  atomic.Pointer[config.Config]
	identity atomic.Pointer[identity.Resolver]
	level    *slog.LevelVar
	// refused is why the last reload was, or nil.
	refused atomic.Pointer[string]
}

func (s *settings) config() *config.Config { return s.current.Load() }

// New makes a daemon from a complete configuration: its state folder, engine, supervisors and
// tools. It serves nothing yet. Close releases everything.
func New(ctx context.Context, c config.Config, logs io.Writer) (*Host, error) {
	return newHost(ctx, c, logs, "")
}

// newHost is New with a cache of compiled modules elsewhere, where one is named.
func newHost(ctx context.Context, c config.Config, logs io.Writer, cache string) (_ *Host, err error) {
	h := &Host{started: time.Now(), settings: settings{level: new(slog.LevelVar)}}
	h.extensions = newExtensions(&h.parts, h.Call)
	h.upgrades.handing, h.upgrades.over = make(chan *successor), make(chan struct{})
	ending, end := context.WithCancelCause(context.WithoutCancel(ctx))
	h.end = end
	p := &h.parts
	p.Config, p.Identity, p.Metrics = h.current.Load, h.identity.Load, observe.New()
	p.Log = slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: h.level}))
	h.mcp = mcp.New(mcp.Config{Version: Version(), Call: h.callMCP, Logger: p.Log})
	level, err := c.Level()
	if err != nil {
		return nil, err
	}
	h.level.Set(level)
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	h.lock, err = takeState(&c, p.Log)
	if err != nil {
		return nil, err
	}
	resolveRoots(p.Log, &c)
	h.current.Store(&c)
	who, err := identity.New(c.State, identityConfig(p, &c))
	if err != nil {
		return nil, err
	}
	h.identity.Store(who)
	p.Discovered = discovery.NewCache(discoverySettings(&c), p.Metrics.Surface, p.Log)
	if err = h.startEngines(&c, cmp.Or(cache, filepath.Join(c.State, "cache"))); err != nil {
		return nil, err
	}
	if err = h.openStores(ctx, ending, &c); err != nil {
		return nil, err
	}
	if p.Tools, err = catalog.Open(ctx, catalog.Config{
		Dir:           c.Tools,
		Restricted:    c.Restricted,
		StateDir:      filepath.Join(c.State, "tools"),
		Roots:         c.AllRoots(),
		Engine:        h.engine,
		Runner:        p.Runner,
		AllowWritable: c.AllowWritableTools,
		Logger:        p.Log,
		OnChange:      h.toolChanged,
	}); err != nil {
		return nil, err
	}
	h.pipeline = pipeline.New(h.parts)
	h.extensions.start(ending)
	h.warnOfNames()
	return h, nil
}

// openStores opens what is kept over a restart, and starts what reports on it. It is all
// closed by Close, also after an error.
func (h *Host) openStores(ctx, ending context.Context, c *config.Config) (err error) {
	p := &h.parts
	if p.Layer, err = reliability.Open(ctx, reliability.Config{Store: c.Store, Dir: c.State, Ending: ending, Metrics: p.Metrics, Log: p.Log}); err != nil {
		return err
	}
	if p.Audit, err = audit.Open(filepath.Join(c.State, "audit"), auditOptions(c), p.Log); err != nil {
		return err
	}
	if p.Tracer, err = observe.NewTracer(ctx, observe.TracerConfig{Endpoint: c.Traces, Instance: c.Instance, Log: p.Log}); err != nil {
		return err
	}
	observeNow(p, h.engine)
	s := &c.Sessions
	p.Events = events.NewHub(events.Limits{
		Watchers: s.Watchers, AllWatchers: s.WatchersAll, Events: s.WatchEvents, Output: s.WatchOutput,
		Keep: time.Duration(s.WatchKeep) * time.Second,
	})
	if p.Sessions, err = session.Open(session.Config{
		Dir:       filepath.Join(c.State, "sessions"),
		InMemory:  !c.Sessions.Persists(),
		Limit:     c.Sessions.Limit,
		Idle:      time.Duration(c.Sessions.Idle) * time.Second,
		Keep:      time.Duration(c.Sessions.Keep) * time.Second,
		JobOutput: c.Sessions.JobOutputBytes(),
		Logger:    p.Log,
		Events:    p.Events,
	}); err != nil {
		return err
	}
	p.Metrics.Sessions([]string{session.Active, session.Suspended, session.Closing}, func() (map[string]int, int64) {
		sum, states := p.Sessions.Totals()
		return states, sum.Calls
	})
	if p.Approvals, err = approval.Open(approval.Config{Dir: filepath.Join(c.State, "approvals"), OnChange: func(r approval.Request) { noteApproval(p, r) }, Logger: p.Log}); err != nil {
		return err
	}
	return nil
}

// startEngines starts what runs binaries and what runs modules.
func (h *Host) startEngines(c *config.Config, cache string) (err error) {
	p := &h.parts
	most, _ := confine.ParseLevel(c.ConfineMost)
	if p.Runner, err = process.New(process.Config{Most: most, Held: h.lock, Logger: p.Log}); err != nil {
		return err
	}
	if status := p.Runner.Confinement(); len(status.Lost) > 0 {
		if c.Confine == "required" {
			return fmt.Errorf(`confine is "required" and this system cannot: %s; see toolctl doctor`, strings.Join(status.Lost, "; "))
		}
		p.Log.Warn("confinement is not whole", "lost", status.Lost)
	}
	// This program, also after it was replaced on disk, where that can be said.
	self := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		if self, err = os.Executable(); err != nil {
			return err
		}
	}
	if h.engine, err = guest.New(guest.Config{CacheDir: cache, Compiler: self, Memory: c.GuestMemory, Logger: p.Log}); err != nil {
		return err
	}
	return nil
}

// Call runs one call through the whole pipeline, as a call on a socket does, and returns its
// outcome. It is for front ends that are not sockets, and for programs that embed the daemon.
// It may be called by any number of goroutines, from New until Close.
//
// The Request is trusted: UID and As say who calls. Call changes nothing in it; it generates a
// missing ExecutionID, and builds a missing Payload of a plain call from its Args, Cwd and
// Stdin. A Token is read once and not kept. The Streams remain the caller's: Call writes to
// them until it returns, reads Stdin when the tool asks for it, and closes neither Stdout nor
// Stderr. Without Streams the output is in the Result, up to the tool's limits.output.
//
// The end of ctx ends the call with ABORTED or TIMEOUT, or with the *fault.Error that is its
// cause. The cause wire.ErrLeft means that the caller has left: a mutating call with an
// idempotency key that has begun then continues, and its result is kept for whoever asks again.
// Outcome.Result is never nil; its Err has one of the codes of package fault, and its Exit is
// the exit code of a wrapper.
func (h *Host) Call(ctx context.Context, q call.Request) call.Outcome {
	c, err := q.Call.Complete()
	if err != nil {
		return call.Failed(ctx, err)
	}
	q.Call = c
	return h.pipeline.Call(ctx, q)
}

// callMCP is Call for connections that are not passed on; see upgrades.enter.
func (h *Host) callMCP(ctx context.Context, q call.Request) call.Outcome {
	leave, err := h.upgrades.enter(ctx)
	if err != nil {
		return call.Failed(ctx, err)
	}
	defer leave()
	return h.Call(ctx, q)
}

// Close releases what New made, in reverse order.
func (h *Host) Close() error {
	p := &h.parts
	var errs []error
	h.extensions.close()
	p.Events.Close()
	if p.Discovered != nil {
		p.Discovered.Close()
	}
	if p.Sessions != nil {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		errs = append(errs, p.Sessions.Close(over))
	}
	h.end(fault.Errorf(fault.Aborted, "the daemon was stopped while the call ran"))
	if p.Tools != nil {
		errs = append(errs, p.Tools.Close())
	}
	if h.engine != nil {
		errs = append(errs, h.engine.Close())
	}
	if p.Runner != nil {
		errs = append(errs, p.Runner.Close())
	}
	// After all that runs calls.
	errs = append(errs, p.Approvals.Close())
	if p.Layer != nil {
		errs = append(errs, p.Layer.Close())
	}
	errs = append(errs, p.Audit.Close(), p.Tracer.Close())
	if h.lock != nil {
		errs = append(errs, h.lock.Close())
	}
	h.upgrades.inherited.close()
	return errors.Join(errs...)
}

// Reload replaces the configuration in force with next, a complete one. On an error nothing has
// changed.
func (h *Host) Reload(next config.Config, err error) error {
	p := &h.parts
	if real, e := filepath.EvalSymlinks(next.State); e == nil { // as New has it
		next.State = real
	}
	if err == nil {
		err = h.config().Reloadable(&next)
	}
	var level slog.Level
	if err == nil {
		level, err = next.Level()
	}
	var who *identity.Resolver
	if err == nil {
		who, err = h.identity.Load().With(identityConfig(p, &next))
	}
	if err == nil { // the last that can fail, since it is done at once
		err = p.Audit.Set(auditOptions(&next))
	}
	if err != nil {
		msg := err.Error()
		h.refused.Store(&msg)
		p.Log.Error("reload refused; the configuration before it stands", "error", msg)
		return err
	}
	h.level.Set(level)
	if old := h.config().Reliability; old != next.Reliability {
		p.Log.Warn("reliability changed", "from", old, "to", next.Reliability)
	}
	resolveRoots(p.Log, &next)
	reloaded := p.Discovered.BeginReload()
	h.identity.Store(who)
	h.current.Store(&next)
	p.Tools.SetRoots(next.AllRoots())
	p.Discovered.Configure(discoverySettings(&next))
	module, executing := next.DiscoverySettings(false), next.DiscoverySettings(true)
	reloaded(func(settings string) bool { return settings == module || settings == executing })
	h.refused.Store(nil)
	h.mcp.ListChanged()
	h.warnOfNames()
	p.Log.Info("reloaded", "config", next.File)
	return nil
}

// resolveRoots names the roots of c by the folders that they are. One that is
// not there is said and kept: calls beneath it are refused until a reload finds
// it.
func resolveRoots(log *slog.Logger, c *config.Config) {
	resolve := func(roots []string) {
		for i, root := range roots {
			if real, err := beneath.Resolve([]string{root}); err == nil {
				roots[i] = real[0]
			} else {
				log.Warn("root cannot be used", "root", root, "error", err)
			}
		}
	}
	c.Roots = slices.Clone(c.Roots)
	resolve(c.Roots)
	c.Sockets = slices.Clone(c.Sockets)
	for i := range c.Sockets {
		c.Sockets[i].Roots = slices.Clone(c.Sockets[i].Roots)
		resolve(c.Sockets[i].Roots)
	}
}

// toolChanged follows a tool as it changes.
func (h *Host) toolChanged(e catalog.Event) {
	h.parts.Metrics.Changed(e.Tool, string(e.Change))
	h.extensions.change()
	if e.Change != catalog.Closed {
		h.parts.Events.Publish(events.Event{Kind: events.Tool, Tool: e.Tool, Change: string(e.Change)})
	}
	if e.Change == catalog.Removed {
		h.parts.Layer.Breakers.Forget(e.Tool)
	}
	if e.Change != catalog.Closed {
		lapseApprovals(h.parts.Approvals, e.Tool, e.Version)
		h.parts.Discovered.InvalidateTool(e.Tool, "the tool is "+string(e.Change))
	}
	h.mcp.ListChanged()
}

// identityConfig is what c says of who may call.
func identityConfig(p *pipeline.Parts, c *config.Config) identity.Config {
	id := &c.Identity
	return identity.Config{
		JWKS: id.JWKS, Issuer: id.Issuer, Audience: id.Audience, Ignore: id.IgnoreClaims,
		// With tokens there is something better than a uid.
		AllowUID: id.AllowUID == nil && id.JWKS == "" || id.AllowUID != nil && *id.AllowUID,
		Declared: func(claim string) bool { return p.Tools.Serving().DeclaresClaim(claim) },
		Logger:   p.Log,
	}
}

// auditOptions are what c says of the audit log.
func auditOptions(c *config.Config) audit.Options {
	a := &c.Audit
	return audit.Options{On: a.Mode == "on", MaxBytes: a.MaxBytes, MaxAge: time.Duration(a.MaxAgeDays) * 24 * time.Hour}
}

// discoverySettings are what c says of the tools that modules bring.
func discoverySettings(c *config.Config) discovery.Settings {
	seconds := func(n int) time.Duration { return time.Duration(n) * time.Second }
	d := &c.Discovery
	return discovery.Settings{
		MaxIdentities: d.MaxIdentities, RetryAfter: seconds(d.RetryAfter),
		RefusedFor: seconds(d.RefusedFor), RefreshEvery: seconds(d.RefreshEvery),
	}
}

// linked are the daemon's own files that have a further name, by
// whether that is refused.
func (h *Host) linked() map[string]bool {
	c := h.config()
	found := map[string]bool{}
	look := func(file string, refused bool) {
		if config.Names(file) > 1 {
			found[file] = refused
		}
	}
	look(c.File, false)
	look(c.Identity.JWKS, false)
	look(c.DotEnv(), true)
	for _, file := range h.parts.Tools.Serving().SecretFiles() {
		look(file, true)
	}
	return found
}

// warnOfNames says which of the files that are only warned of have a further
// name.
func (h *Host) warnOfNames() {
	for file, refused := range h.linked() {
		if !refused {
			h.parts.Log.Warn("a file of the daemon has more than one name; tools can read it by another one", "file", file)
		}
	}
}

// observeNow has the metrics tell how things stand.
func observeNow(p *pipeline.Parts, engine *guest.Engine) {
	p.Metrics.RegisterGauges(observe.Gauges{
		Breakers: func(tell func(tool, state string)) {
			for _, s := range p.Layer.Breakers.List() {
				if !s.Shadow {
					tell(s.Tool, string(s.State))
				}
			}
		},
		GuestMemory: engine.Memory,
	})
}
