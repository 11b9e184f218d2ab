// Package discovery caches the tools that modules list for each identity. A module is
// asked once for an identity, and again when its answer has expired, was invalidated,
// or belongs to a configuration or a module that has been replaced. Concurrent
// callers wait for the same answer. The package checks what a module lists and asks
// no module itself: Cache.Get is given the function that does.
package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/pdk/abi"
)

const (
	// MaxTools is how many tools a module may list for one identity, MaxText the
	// bytes of a title or a description, MaxSchema those of a schema or a binding,
	// and MaxSize those of the whole answer.
	MaxTools  = 4096
	MaxText   = 4096
	MaxSchema = 64 << 10
	MaxSize   = 4 << 20
	// MaxTime is how long one discovery may take.
	MaxTime = 3 * time.Second
	// discoveries is how many run at a time.
	discoveries = 16
	// queueTime is how long a discovery waits for a slot.
	queueTime = 30 * time.Second

	// defaultTTL is how long a surface is fresh; minTTL and maxTTL bound the time
	// that a module sets.
	defaultTTL = 15 * time.Minute
	minTTL     = time.Second
	maxTTL     = 24 * time.Hour
)

// Settings are set by the operator. All are positive.
type Settings struct {
	// MaxIdentities is how many entries are kept.
	MaxIdentities int
	// RetryAfter is how long a surface serves after its refresh failed before the
	// next use tries again: so that a server that hangs does not delay every call by
	// MaxTime.
	RetryAfter time.Duration
	// RefusedFor is how long an identity that a server refused is not asked for
	// again.
	RefusedFor time.Duration
	// RefreshEvery is how long callers that asked for a refresh wait before they
	// may ask again.
	RefreshEvery time.Duration
}

// ErrSuperseded reports that the configuration or the module was replaced during the
// discovery. The caller resolves the identity again.
var ErrSuperseded = errors.New("the configuration or the module changed during the discovery")

// Tool is one tool of a Surface. All its fields are text, so that equal tools
// of many identities are one in memory.
type Tool struct {
	Name, Title, Description string
	// Schema, Output (the schema of the answer), Icons, Annotations and Binding are
	// JSON, or empty.
	Schema, Output, Icons, Annotations, Binding string
	Mutating                                    bool
}

// Surface holds the tools that a module lists for one identity. It is immutable.
type Surface struct {
	Safety abi.Safety
	// Stale is why the last refresh failed, or empty: the surface is older than its
	// TTL.
	Stale string

	tools   []unique.Handle[Tool] // by name
	ttl     time.Duration
	created time.Time
	// generation is the generation of the configuration under which it was
	// discovered.
	generation uint64
	// retryAt is when a stale surface may be refreshed.
	retryAt time.Time
}

// fresh reports whether the surface serves without a discovery. expired reports that
// a caller asked for a refresh.
func (s *Surface) fresh(now time.Time, expired bool) bool {
	return !expired && now.Before(s.created.Add(s.ttl)) || now.Before(s.retryAt) && now.Before(s.created.Add(2*s.ttl))
}

// NewSurface returns the surface of a module's tools, whose names must differ. A ttl of 0 means
// the default.
func NewSurface(tools []Tool, safety abi.Safety, ttl time.Duration) *Surface {
	if ttl == 0 {
		ttl = defaultTTL
	}
	s := &Surface{Safety: safety, ttl: min(max(ttl, minTTL), maxTTL), tools: make([]unique.Handle[Tool], len(tools))}
	slices.SortFunc(tools, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	for i, t := range tools {
		s.tools[i] = unique.Make(t)
	}
	return s
}

// Visible returns the tools that an identity can see, sorted by name: all, or if it
// may only read, those that change nothing.
func (s *Surface) Visible(readOnly bool) []Tool {
	readOnly = readOnly || s.Safety.ReadOnly
	list := make([]Tool, 0, len(s.tools))
	for _, h := range s.tools {
		if t := h.Value(); !readOnly || !t.Mutating {
			list = append(list, t)
		}
	}
	return list
}

// Find returns the tool with that name, if the identity can see it.
func (s *Surface) Find(name string, readOnly bool) (Tool, bool) {
	i, ok := slices.BinarySearchFunc(s.tools, name, func(h unique.Handle[Tool], name string) int { return cmp.Compare(h.Value().Name, name) })
	if !ok {
		return Tool{}, false
	}
	t := s.tools[i].Value()
	return t, !t.Mutating || !readOnly && !s.Safety.ReadOnly
}

// Events of surfaces, for Config.Observe and logs.
const (
	Hit         = "hit"
	Miss        = "miss"        // a new entry
	Refreshed   = "refresh"     // an old entry was discovered again
	Stale       = "stale"       // a refresh failed and the old surface still serves
	Failed      = "failed"      // a discovery failed and nothing serves
	Refused     = "refused"     // the server refused the identity, or had done so within a minute
	Invalidated = "invalidated" // the next use discovers it again
	Asked       = "asked"       // a caller asked for a refresh
	Superseded  = "superseded"  // what was discovered was not kept
	Evicted     = "evicted"     // the cache was full
)

// Cache keeps the surfaces of identities. It is safe for concurrent use. Its only
// goroutines are discoveries, which Close ends.
type Cache struct {
	// observe is called for every event; it must not block.
	observe func(tool, event string)
	log     *slog.Logger

	settings atomic.Pointer[Settings]

	entries *otter.Cache[string, *entry]
	flights singleflight.Group
	slots   *semaphore.Weighted
	// generation counts reloads of the configuration.
	generation atomic.Uint64

	ctx    context.Context
	cancel context.CancelFunc
	// mu guards closed, so that no discovery begins after Close has begun to
	// wait for those that run.
	mu     sync.Mutex
	closed bool // guarded by mu
	work   sync.WaitGroup
}

// NewCache returns an empty cache.
func NewCache(settings Settings, observe func(tool, event string), log *slog.Logger) *Cache {
	s := &Cache{observe: observe, log: log, slots: semaphore.NewWeighted(discoveries)}
	s.settings.Store(&settings)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.entries = otter.Must(&otter.Options[string, *entry]{
		MaximumSize: settings.MaxIdentities,
		Executor:    func(fn func()) { fn() }, // no goroutines of its own
		OnDeletion: func(d otter.DeletionEvent[string, *entry]) { // under the cache's lock
			if d.WasEvicted() {
				s.event(d.Value, Evicted)
			}
		},
	})
	return s
}

// Configure replaces the settings. Entries beyond the new MaxIdentities are dropped.
func (s *Cache) Configure(settings Settings) {
	s.settings.Store(&settings)
	s.entries.SetMaximum(uint64(settings.MaxIdentities))
}

// Close ends the running discoveries and waits for them.
func (s *Cache) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
}

// Generation returns the generation of the configuration, for a Key.
func (s *Cache) Generation() uint64 { return s.generation.Load() }

// entry is the state of one fingerprint. The fields above mu do not change.
type entry struct {
	key Key

	mu sync.Mutex
	// epoch counts invalidations: a discovery that began in an earlier epoch is not
	// kept.
	epoch   uint64
	surface *Surface // nil before the first discovery and after an invalidation
	// expired reports that a caller asked for a refresh. The surface still serves if
	// that fails.
	expired      bool
	refreshAsked time.Time // when a caller asked for a refresh
	discovered   bool      // some surface was discovered before
	refused      *fault.Error
	until        time.Time // until when refused applies
	used         time.Time
}

// Key identifies a surface.
type Key struct {
	Fingerprint string
	Tool        string
	Version     string
	// Generation is what Cache.Generation was when the fingerprint was made.
	Generation uint64
	// Settings is a digest of the parts of the daemon's configuration that affect
	// discoveries. It is part of the fingerprint too.
	Settings string
	// Shown is for operators: the claims that distinguish this identity and are not
	// secret.
	Shown    map[string]string
	ReadOnly bool
}

func (s *Cache) event(e *entry, event string, more ...any) {
	s.observe(e.key.Tool, event)
	level := slog.LevelInfo
	switch event {
	case Hit:
		level = slog.LevelDebug
	case Failed, Stale:
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, "surface "+event, append([]any{"tool", e.key.Tool, "identity", e.key.Fingerprint}, more...)...)
}

// Get returns the surface of key. If there is no fresh one, ask discovers it. One
// discovery runs for an identity at a time, and 16 in all; it does not end with the
// caller that began it. Errors are ErrSuperseded, those of ask, or one with the code
// OVERLOADED, TIMEOUT or ABORTED.
func (s *Cache) Get(ctx context.Context, key Key, ask func(context.Context) (*Surface, error)) (*Surface, error) {
	if key.Generation != s.generation.Load() {
		return nil, ErrSuperseded
	}
	e := s.entry(key)
	now := time.Now()
	e.mu.Lock()
	e.used = now
	epoch, expired := e.epoch, e.expired
	surface, refused := e.surface, e.refused
	if refused != nil && !now.Before(e.until) {
		refused = nil
	}
	e.mu.Unlock()
	switch {
	case surface != nil && surface.fresh(now, expired):
		s.event(e, Hit)
		return surface, nil
	case refused != nil:
		s.event(e, Refused, "remembered", true)
		return nil, refused
	}
	// A flight is for one entry in one epoch under one configuration: a caller after
	// an invalidation does not wait for a discovery that began before it.
	result := s.flights.DoChan(fmt.Sprintf("%p %d %d", e, epoch, key.Generation), func() (any, error) {
		return s.discover(e, epoch, key.Generation, ask)
	})
	select {
	case r := <-result:
		surface, _ := r.Val.(*Surface)
		return surface, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// entry returns the entry of key, which it makes if there is none.
func (s *Cache) entry(key Key) *entry {
	e, _ := s.entries.ComputeIfAbsent(key.Fingerprint, func() (*entry, bool) { return &entry{key: key}, false })
	return e
}

// discover runs one discovery and stores its result.
func (s *Cache) discover(e *entry, epoch, generation uint64, ask func(context.Context) (*Surface, error)) (*Surface, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fault.Errorf(fault.Overloaded, "this daemon is shutting down; try again")
	}
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()

	queue, cancel := context.WithTimeout(s.ctx, queueTime)
	err := s.slots.Acquire(queue, 1)
	cancel()
	if err != nil {
		return nil, fault.Errorf(fault.Overloaded, "%d discoveries of tools are running, and many are waiting; try again", discoveries)
	}
	defer s.slots.Release(1)
	start := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, MaxTime)
	surface, err := s.recovering(ctx, e, ask)
	cancel()

	now := time.Now()
	took := now.Sub(start)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epoch != epoch || generation != s.generation.Load() || errors.Is(err, ErrSuperseded) {
		s.event(e, Superseded, "took", took)
		return nil, ErrSuperseded
	}
	if err == nil {
		surface.created, surface.generation = now, generation
		event := Miss
		if e.discovered {
			event = Refreshed
		}
		e.surface, e.refused, e.discovered, e.expired = surface, nil, true, false
		s.event(e, event, "tools", len(surface.tools), "read_only", surface.Safety.ReadOnly, "took", took)
		return surface, nil
	}
	var we *fault.Error
	if errors.As(err, &we) && we.Code == fault.Unauthenticated {
		e.surface, e.refused, e.until = nil, we, now.Add(s.settings.Load().RefusedFor)
		s.event(e, Refused, "error", we.Message, "took", took)
		return nil, we
	}
	if old := e.surface; old != nil && now.Before(old.created.Add(2*old.ttl)) {
		kept := *old
		kept.Stale, kept.retryAt = err.Error(), now.Add(s.settings.Load().RetryAfter)
		e.surface = &kept
		s.event(e, Stale, "error", err, "took", took)
		return &kept, nil
	}
	e.surface = nil
	s.event(e, Failed, "error", err, "took", took)
	return nil, err
}

// recovering calls ask and returns a panic as an error: this goroutine belongs to no
// call, so a panic would end the daemon.
func (s *Cache) recovering(ctx context.Context, e *entry, ask func(context.Context) (*Surface, error)) (_ *Surface, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a discovery panicked", "tool", e.key.Tool, "identity", e.key.Fingerprint, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.Errorf(fault.Internal, "the daemon failed when it listed the tools of %s; its log has the reason", e.key.Tool)
		}
	}()
	return ask(ctx)
}

// invalidate makes the next use of an entry discover again. The result of a running
// discovery is not kept.
func (s *Cache) invalidate(e *entry, why string) {
	e.mu.Lock()
	e.epoch++
	e.surface, e.refused, e.expired = nil, nil, false
	e.mu.Unlock()
	s.event(e, Invalidated, "reason", why)
}

// Invalidate invalidates the entry of one fingerprint, and reports whether there is
// one.
func (s *Cache) Invalidate(fingerprint, why string) bool {
	e, ok := s.entries.GetIfPresent(fingerprint)
	if ok {
		s.invalidate(e, why)
	}
	return ok
}

// InvalidateTool invalidates all entries of a tool, and returns their number.
func (s *Cache) InvalidateTool(tool, why string) (n int) {
	for name, e := range s.entries.All() {
		if e.key.Tool == tool {
			s.entries.Invalidate(name)
			s.invalidate(e, why)
			n++
		}
	}
	return n
}

// InvalidateAll begins a new generation: no result of an earlier generation is used
// again, or kept when its discovery ends.
func (s *Cache) InvalidateAll(why string) (n int) {
	s.generation.Add(1)
	for name, e := range s.entries.All() {
		s.entries.Invalidate(name)
		s.invalidate(e, why)
		n++
	}
	return n
}

// BeginReload is called before the configuration changes, and end afterwards.
// Discoveries that run in between are not kept, since it is not known which
// configuration they used. Earlier surfaces stay if valid reports that their settings
// still apply; refusals and failures are forgotten.
func (s *Cache) BeginReload() (end func(valid func(settings string) bool)) {
	during := s.generation.Add(1)
	return func(valid func(settings string) bool) {
		s.generation.Add(1)
		for name, e := range s.entries.All() {
			if !valid(e.key.Settings) || !e.survives(during) {
				s.entries.Invalidate(name)
				s.invalidate(e, "the configuration was reloaded")
			}
		}
	}
}

// survives reports whether the surface of e was made before a reload with that
// generation, and forgets refusals and failures.
func (e *entry) survives(during uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = nil
	if e.surface == nil {
		return true
	}
	if !e.surface.retryAt.IsZero() {
		kept := *e.surface
		kept.retryAt = time.Time{}
		e.surface = &kept
	}
	return e.surface.generation != during
}

// Refresh makes the next use of key discover its tools again; if that fails, the
// present ones still serve. It is granted once every RefreshEvery, and not within
// RetryAfter of a failure or RefusedFor of a refusal; wait is how long the caller
// still has to wait, or 0.
func (s *Cache) Refresh(key Key) (wait time.Duration) {
	e := s.entry(key)
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	var until time.Time
	if !e.refreshAsked.IsZero() {
		until = e.refreshAsked.Add(s.settings.Load().RefreshEvery)
	}
	if e.refused != nil && e.until.After(until) {
		until = e.until
	}
	if e.surface != nil && e.surface.retryAt.After(until) {
		until = e.surface.retryAt
	}
	if until.After(now) {
		return until.Sub(now)
	}
	s.event(e, Asked)
	e.refreshAsked, e.expired = now, true
	e.epoch++ // a running discovery may have begun before the request
	return 0
}

// Refuse records that the server of a tool refused this identity in a call.
func (s *Cache) Refuse(fingerprint string, err *fault.Error) {
	if e, ok := s.entries.GetIfPresent(fingerprint); ok {
		e.mu.Lock()
		e.epoch++
		e.surface, e.refused, e.until = nil, err, time.Now().Add(s.settings.Load().RefusedFor)
		e.mu.Unlock()
		s.event(e, Refused, "error", err.Message)
	}
}

// CheckGrants compares the grants that a call found with those of the surface, and
// invalidates the surface if they differ.
func (s *Cache) CheckGrants(fingerprint string, found abi.Safety) {
	e, ok := s.entries.GetIfPresent(fingerprint)
	if !ok {
		return
	}
	e.mu.Lock()
	differ := e.surface != nil && (e.surface.Safety.ReadOnly != found.ReadOnly || found.Grants != "" && e.surface.Safety.Grants != found.Grants)
	e.mu.Unlock()
	if differ {
		s.invalidate(e, "the grants have changed")
	}
}

// Entry is the state of one identity for operators; host/adminapi has its JSON.
type Entry struct {
	Fingerprint string
	Tool        string
	Version     string
	Claims      map[string]string
	// State is "fresh", "stale" (a refresh failed, the old surface serves), "old"
	// (the next use refreshes), "refused" or "empty".
	State    string
	Reason   string
	ReadOnly bool
	Tools    int
	Names    []string
	Made     time.Time
	Until    time.Time // fresh, or refused
	Used     time.Time
}

// List returns all entries, sorted by tool and fingerprint.
func (s *Cache) List() []Entry {
	var list []Entry
	for _, e := range s.entries.All() {
		list = append(list, e.entry())
	}
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(strings.Compare(a.Tool, b.Tool), strings.Compare(a.Fingerprint, b.Fingerprint))
	})
	return list
}

func (e *entry) entry() Entry {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := Entry{
		Fingerprint: e.key.Fingerprint, Tool: e.key.Tool, Version: e.key.Version, Claims: e.key.Shown,
		ReadOnly: e.key.ReadOnly, Used: e.used, State: "empty",
	}
	switch f := e.surface; {
	case f != nil:
		out.ReadOnly = out.ReadOnly || f.Safety.ReadOnly
		out.Made, out.Until, out.Reason = f.created, f.created.Add(f.ttl), f.Stale
		switch {
		case f.Stale != "":
			out.State = "stale"
		case now.Before(out.Until) && !e.expired:
			out.State = "fresh"
		default:
			out.State = "old"
		}
		for _, o := range f.Visible(out.ReadOnly) {
			out.Names = append(out.Names, o.Name)
		}
		out.Tools = len(out.Names)
	case e.refused != nil && now.Before(e.until):
		out.State, out.Reason, out.Until = "refused", e.refused.Message, e.until
	}
	return out
}
