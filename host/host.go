// Package host is the daemon: it wires its parts by hand in New, serves in
// Serve, and holds the order of a call in pipeline.go.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// Host is one daemon. It is safe for concurrent use.
type Host struct {
	log     *slog.Logger
	level   *slog.LevelVar
	started time.Time

	// current and identity are swapped whole by a reload; nobody else writes.
	current  atomic.Pointer[config.Config]
	identity atomic.Pointer[identity.Resolver]
	// refused is why the last reload was, or nil.
	refused atomic.Pointer[string]

	lock     *os.File // the state folder's, held for life
	engine   *guest.Engine
	runner   *process.Runner
	tools    *tools.Catalog
	metrics  *observe.Metrics
	sessions *session.Table
	// surfaces are the tools that modules bring for identities.
	surfaces *discovery.Cache

	// run executes what was decided: execute, but for tests of the stages
	// before it.
	run    func(context.Context, *call) (*wire.Result, error)
	gates  gates
	guards guards
	// records are of calls with a key, watched those of shadow.
	records, watched *idempotency.Keeper
	tracer           *observe.Tracer // nil: no traces
	// ending ends the calls that outlive their callers, by end.
	ending  context.Context
	end     context.CancelCauseFunc
	vars    vars
	schemas schemas
	results results
	fetch   fetcher
	calls   atomic.Int64
	running atomic.Int64
	ready   atomic.Bool // calls are accepted
}

func (h *Host) config() *config.Config { return h.current.Load() }

// New makes a daemon from a complete configuration: its state folder, engine,
// supervisors and tools. It serves nothing yet. Close gives everything back.
func New(ctx context.Context, c config.Config, logs io.Writer) (_ *Host, err error) {
	h := &Host{started: time.Now(), metrics: observe.New(), level: new(slog.LevelVar)}
	h.run, h.guards.onChange = h.execute, h.breakerChanged
	h.ending, h.end = context.WithCancelCause(context.WithoutCancel(ctx))
	h.log = slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: h.level}))
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
	if err := os.MkdirAll(c.State, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w; choose another with --state", err)
	}
	// Binaries reach their HOME without following links, so its folder is
	// named by what it is.
	if c.State, err = filepath.EvalSymlinks(c.State); err != nil {
		return nil, fmt.Errorf("resolve the state folder: %w; choose another with --state", err)
	}
	h.resolveRoots(&c)
	if h.lock, err = lockState(c.State); err != nil {
		return nil, err
	}
	// Those of calls that a daemon before this one could not clean up after.
	if err := os.RemoveAll(filepath.Join(c.State, secretsFolder)); err != nil {
		return nil, fmt.Errorf("remove the secrets of calls that are over: %w; remove the folder", err)
	}
	who, err := identity.New(c.State, h.identityConfig(&c))
	if err != nil {
		return nil, err
	}
	h.identity.Store(who)
	h.surfaces = discovery.NewCache(discovery.MaxEntries, h.metrics.Surface, h.log)
	most, _ := process.ParseLevel(c.ConfineMost)
	if h.runner, err = process.New(process.Config{Most: most, Logger: h.log}); err != nil {
		return nil, err
	}
	if status := h.runner.Confinement(); len(status.Lost) > 0 {
		if c.Confine == "required" {
			return nil, fmt.Errorf(`confine is "required" and this system cannot: %s; see toolctl doctor`, strings.Join(status.Lost, "; "))
		}
		h.log.Warn("confinement is not whole", "lost", status.Lost)
	}
	// This program, also after it was replaced on disk, where that can be said.
	self := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		if self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	if h.engine, err = guest.New(guest.Config{CacheDir: filepath.Join(c.State, "cache"), Compiler: self, Memory: c.GuestMemory, Logger: h.log}); err != nil {
		return nil, err
	}
	h.current.Store(&c)
	if err = h.openRecords(ctx, &c); err != nil {
		return nil, err
	}
	if h.tracer, err = observe.NewTracer(ctx, observe.TracerConfig{Endpoint: c.Traces, Instance: c.Instance, Log: h.log}); err != nil {
		return nil, err
	}
	h.watchNow()
	if h.sessions, err = session.Open(session.Config{
		Dir:    filepath.Join(c.State, "sessions"),
		Limit:  c.Sessions.Limit,
		Idle:   time.Duration(c.Sessions.Idle) * time.Second,
		Keep:   time.Duration(c.Sessions.Keep) * time.Second,
		Logger: h.log,
	}); err != nil {
		return nil, err
	}
	h.metrics.Sessions([]string{session.Active, session.Suspended, session.Closing}, func() (map[string]int, int64) {
		sum, states := h.sessions.Totals()
		return states, sum.Calls
	})
	if h.tools, err = tools.Open(ctx, tools.Config{
		Dir:           c.Tools,
		Restricted:    c.Restricted,
		StateDir:      filepath.Join(c.State, "tools"),
		Roots:         c.AllRoots(),
		Engine:        h.engine,
		Runner:        h.runner,
		AllowWritable: c.AllowWritableTools,
		Logger:        h.log,
		OnChange:      h.toolChanged,
	}); err != nil {
		return nil, err
	}
	h.warnOfNames()
	return h, nil
}

// Close ends what New made, in the opposite order.
func (h *Host) Close() error {
	var errs []error
	if h.surfaces != nil {
		h.surfaces.Close()
	}
	if h.sessions != nil {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		errs = append(errs, h.sessions.Close(over))
	}
	h.end(fault.Errorf(fault.Aborted, "the daemon was stopped while the call ran"))
	if h.tools != nil {
		errs = append(errs, h.tools.Close())
	}
	if h.engine != nil {
		errs = append(errs, h.engine.Close())
	}
	if h.runner != nil {
		errs = append(errs, h.runner.Close())
	}
	// After all that runs calls.
	for _, records := range []*idempotency.Keeper{h.records, h.watched} {
		if records != nil {
			errs = append(errs, records.Close())
		}
	}
	errs = append(errs, h.tracer.Close())
	if h.lock != nil {
		errs = append(errs, h.lock.Close())
	}
	return errors.Join(errs...)
}

// listener is one of the sockets and what it serves.
type listener struct {
	h *Host
	// extra is the index in Config.Sockets, -1 for the first socket.
	extra int
}

func (l *listener) roots() []string {
	c := l.h.config()
	if l.extra >= 0 && len(c.Sockets[l.extra].Roots) > 0 {
		return c.Sockets[l.extra].Roots
	}
	return c.Roots
}

func (l *listener) serves(category string) bool {
	if l.extra < 0 {
		return true
	}
	cats := l.h.config().Sockets[l.extra].Categories
	return len(cats) == 0 || slices.Contains(cats, category)
}

// Serve listens on every socket, calls ready once all of them accept calls,
// and serves until ctx is done. Then it takes no more calls, lets those that
// run finish for the configured grace, and ends the rest.
func (h *Host) Serve(ctx context.Context, ready func() error) error {
	c := h.config()
	paths := []string{c.Socket}
	for _, s := range c.Sockets {
		paths = append(paths, s.Path)
	}
	var servers []*server.Server
	var admin *server.Admin
	var metrics net.Listener
	// shutdown lets what runs finish until ctx ends.
	shutdown := func(ctx context.Context) error {
		down := new(errgroup.Group)
		for _, s := range servers {
			down.Go(func() error { return s.Shutdown(ctx) })
		}
		down.Go(func() error { return h.sessions.Close(ctx) })
		err := down.Wait()
		if metrics != nil {
			metrics.Close()
		}
		if admin != nil {
			err = errors.Join(err, admin.Shutdown(ctx))
		}
		return err
	}
	started := false
	defer func() {
		if !started {
			shutdown(ctx)
		}
	}()
	for i, path := range paths {
		on := &listener{h: h, extra: i - 1}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make the folder of the socket: %w; choose another with --socket", err)
		}
		s, err := server.Listen(server.Config{
			Path:     path,
			Mode:     0o660,
			MaxConns: c.MaxConnections,
			Admits:   h.admitsCaller,
			Logger:   h.log,
			Handler: func(ctx context.Context, wc *wire.Call, from server.Peer, st wire.Streams) *wire.Result {
				return h.call(ctx, on, wc, from, st)
			},
		})
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	var err error
	if admin, err = server.ListenAdmin(c.Admin, h.admitsOperator, h.adminHandler(servers)); err != nil {
		return err
	}
	if c.Metrics != "" {
		if metrics, err = net.Listen("tcp", c.Metrics); err != nil {
			return fmt.Errorf("listen for metrics: %w; choose another address with --metrics", err)
		}
	}

	started = true
	// The end of ctx, which comes with that of any part too, stops the listening.
	// It ends no call: a call belongs to its caller, and Shutdown gives it time.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, failed := errgroup.WithContext(context.WithoutCancel(ctx))
	for _, s := range servers {
		g.Go(func() error { return s.Serve(ctx) })
	}
	g.Go(admin.Serve)
	if metrics != nil {
		g.Go(func() error { return serveMetrics(metrics, h.metrics.Handler()) })
	}
	g.Go(func() error { return h.tools.Watch(ctx) })

	h.ready.Store(true)
	if err := ready(); err != nil {
		h.log.Warn("say that calls are accepted", "error", err)
	}
	g.Go(func() error { h.sayStore(ctx); return nil })
	h.log.Info("ready", "socket", c.Socket, "admin", c.Admin, "tools", c.Tools)
	select {
	case <-ctx.Done():
	case <-failed.Done(): // one of them cannot go on
	}
	stop()
	h.ready.Store(false)
	notify("STOPPING=1")
	grace := h.config().Grace() // a reload may have changed it
	h.log.Info("shutting down", "running", h.running.Load(), "grace", grace.String())
	graceful, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	defer context.AfterFunc(graceful, func() {
		h.end(fault.Errorf(fault.Aborted, "the daemon was stopped while the call ran"))
	})()
	if err := errors.Join(shutdown(graceful), g.Wait()); err != nil {
		return err
	}
	h.log.Info("stopped", "calls", h.calls.Load())
	return nil
}

// Reload puts next, a complete configuration, in the place of the one in
// force. On an error nothing has changed.
func (h *Host) Reload(next config.Config, err error) error {
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
		who, err = h.identity.Load().With(h.identityConfig(&next))
	}
	if err != nil {
		msg := err.Error()
		h.refused.Store(&msg)
		h.log.Error("reload refused; the configuration before it stands", "error", msg)
		return err
	}
	h.level.Set(level)
	if old := h.config().Reliability; old != next.Reliability {
		h.log.Warn("reliability changed", "from", old, "to", next.Reliability)
	}
	h.resolveRoots(&next)
	h.identity.Store(who)
	h.current.Store(&next)
	h.tools.SetRoots(next.AllRoots())
	h.surfaces.InvalidateAll("the configuration was reloaded")
	h.refused.Store(nil)
	h.warnOfNames()
	h.log.Info("reloaded", "config", next.File)
	return nil
}

// resolveRoots names the roots of c by the folders that they are. One that is
// not there is said and kept: calls beneath it are refused until a reload finds
// it.
func (h *Host) resolveRoots(c *config.Config) {
	resolve := func(roots []string) {
		for i, root := range roots {
			if real, err := process.ResolveRoots([]string{root}); err == nil {
				roots[i] = real[0]
			} else {
				h.log.Warn("root cannot be used", "root", root, "error", err)
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

// maxSaid is how much of each thing that a caller says of itself is logged, in
// bytes.
const maxSaid = 1024

// observe counts and logs one call that ended.
func (h *Host) observe(ctx context.Context, k *call, res *wire.Result) {
	h.calls.Add(1)
	tool := observe.Unknown
	switch {
	case k.tool != nil:
		tool = k.tool.Name
	case session.IsCall(k.Tool), k.Tool == listToolsID:
		tool = k.Tool
	}
	h.metrics.Executed(tool, res.Status(), res.Duration)
	level, attrs := slog.LevelDebug, []any{
		"tool", k.Tool, "execution_id", k.ExecutionID, "caller", k.caller.ID,
		"status", res.Status(), "exit_code", res.ExitCode, "duration_ms", res.Duration.Milliseconds(),
	}
	if k.rule != "" {
		attrs = append(attrs, "rule", k.rule)
	}
	if k.Trace != "" {
		attrs = append(attrs, "trace", k.Trace)
	}
	if k.TraceID != "" {
		attrs = append(attrs, "trace_id", brief(k.TraceID, maxSaid))
	}
	if len(k.CallerInfo) > 0 {
		attrs = append(attrs, "caller_info", brief(string(k.CallerInfo), maxSaid))
	}
	if !k.Timestamp.IsZero() {
		attrs = append(attrs, "sent", k.Timestamp)
	}
	if e := res.Err; e != nil {
		level = slog.LevelInfo
		attrs = append(attrs, "code", e.Code, "error", e.Message)
		if e.Code == fault.Internal || e.Code == fault.ToolBroken || e.Code == fault.GuestTrap {
			level = slog.LevelError
		}
		if e.Cause != nil && e.Cause.Error() != e.Message {
			attrs = append(attrs, "cause", e.Cause.Error())
		}
	}
	h.log.Log(ctx, level, "call", attrs...)
}

// listToolsID is the reserved tool id whose call lists the tools of a socket.
const listToolsID = "tools.list"

// intersect is what lies beneath both one of a and one of b.
func intersect(a, b []string) []string {
	out := []string{}
	add := func(p string) {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, x := range a {
		for _, y := range b {
			switch {
			case process.Beneath(x, y):
				add(y)
			case process.Beneath(y, x):
				add(x)
			}
		}
	}
	return out
}
