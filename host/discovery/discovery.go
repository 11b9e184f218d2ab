// Package discovery caches the tools that modules list for identities. A module is
// queried once per identity, and again if its answer expired, was invalidated, or
// belongs to an older configuration or module. Concurrent callers share one query.
// The package does not call modules itself: the caller of Cache.Get supplies how.
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
	// MaxEntries is how many identities are cached.
	MaxEntries = 10_000
	// MaxTools is how many tools a module may bring for one identity, MaxText the
	// bytes of a title or a description, MaxSchema those of a schema or a
	// binding, and MaxSize those of the whole answer.
	MaxTools  = 4096
	MaxText   = 4096
	MaxSchema = 64 << 10
	MaxSize   = 4 << 20
	// MaxTime is how long one discovery may take.
	MaxTime = 3 * time.Second
	// maxConcurrent is how many discoveries run at a time.
	maxConcurrent = 16
	// queueTime is how long a discovery waits for a slot.
	queueTime = 30 * time.Second

	// defaultTTL is how long a surface is fresh; minTTL and maxTTL bound a
	// module's own TTL.
	defaultTTL = 15 * time.Minute
	minTTL     = time.Second
	maxTTL     = 24 * time.Hour
	// refusedFor is how long a server's refusal of an identity is cached.
	refusedFor = time.Minute
	// staleFor is the delay between a failed refresh and the next try: a
	// hanging server delays a few callers by 3 seconds, not all of them.
	staleFor = 10 * time.Second
)

// ErrSuperseded is the error of a discovery whose configuration or module was
// replaced while it ran. The caller must resolve the identity again.
var ErrSuperseded = errors.New("the configuration or the module changed during the discovery")

// Tool is one tool of a Surface. Its fields are comparable, so that equal tools of
// many identities share memory.
type Tool struct {
	Name, Title, Description string
	// Schema, Annotations and Binding are JSON, or empty.
	Schema, Annotations, Binding string
	Mutating                     bool
}

// Surface holds the tools that a module lists for one identity. It is immutable.
type Surface struct {
	Safety abi.Safety
	// Stale is why the last refresh failed, empty if it did not.
	Stale string

	tools   []unique.Handle[Tool] // by name
	ttl     time.Duration
	created time.Time
	// retryAfter is when a stale surface may be refreshed.
	retryAfter time.Time
}

// fresh reports whether the surface may be used without a discovery.
func (f *Surface) fresh(now time.Time) bool {
	return now.Before(f.created.Add(f.ttl)) || now.Before(f.retryAfter) && now.Before(f.created.Add(2*f.ttl))
}

// NewSurface returns a Surface of tools with distinct names. ttl 0 is the default.
func NewSurface(offers []Tool, safety abi.Safety, ttl time.Duration) *Surface {
	if ttl == 0 {
		ttl = defaultTTL
	}
	s := &Surface{Safety: safety, ttl: min(max(ttl, minTTL), maxTTL), tools: make([]unique.Handle[Tool], len(offers))}
	slices.SortFunc(offers, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	for i, o := range offers {
		s.tools[i] = unique.Make(o)
	}
	return s
}

// Visible returns the tools that an identity sees, by name: all, or only those that
// are not mutating if the identity is read-only.
func (s *Surface) Visible(reads bool) []Tool {
	reads = reads || s.Safety.ReadOnly
	list := make([]Tool, 0, len(s.tools))
	for _, h := range s.tools {
		if o := h.Value(); !reads || !o.Mutating {
			list = append(list, o)
		}
	}
	return list
}

// Find returns the tool of that name, if the identity sees it.
func (s *Surface) Find(name string, reads bool) (Tool, bool) {
	i, ok := slices.BinarySearchFunc(s.tools, name, func(h unique.Handle[Tool], name string) int { return cmp.Compare(h.Value().Name, name) })
	if !ok {
		return Tool{}, false
	}
	o := s.tools[i].Value()
	return o, !o.Mutating || !reads && !s.Safety.ReadOnly
}

// Events of surfaces, for Config.Observe and logs.
const (
	Hit         = "hit"
	Miss        = "miss"        // a new entry was discovered
	Refreshed   = "refresh"     // an expired entry was discovered again
	Stale       = "stale"       // a refresh failed and the old surface stays in use
	Failed      = "failed"      // a discovery failed and there is no surface
	Refused     = "refused"     // the server refused the identity, now or within the last minute
	Invalidated = "invalidated" // the next use discovers again
	Superseded  = "superseded"  // the result of a discovery was dropped
	Evicted     = "evicted"     // the cache was full
)

// Cache holds a Surface per fingerprint. It is safe for concurrent use. Its only
// goroutines are discoveries, which Close ends.
type Cache struct {
	// observe is called for every event; it must not block.
	observe func(tool, event string)
	log     *slog.Logger

	entries *otter.Cache[string, *entry]
	flights singleflight.Group
	slots   *semaphore.Weighted
	// generation counts reloads of the configuration.
	generation atomic.Uint64

	ctx    context.Context
	cancel context.CancelFunc
	// mu guards closed, so that no discovery begins after Close has begun to
	// wait for running ones.
	mu     sync.Mutex
	closed bool // guarded by mu
	work   sync.WaitGroup
}

// NewCache returns a Cache of at most size entries.
func NewCache(size int, observe func(tool, event string), log *slog.Logger) *Cache {
	s := &Cache{observe: observe, log: log, slots: semaphore.NewWeighted(maxConcurrent)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.entries = otter.Must(&otter.Options[string, *entry]{
		MaximumSize: size,
		Executor:    func(fn func()) { fn() }, // no goroutines of its own
		OnDeletion: func(d otter.DeletionEvent[string, *entry]) { // under the cache's lock
			if d.WasEvicted() {
				s.report(d.Value, Evicted)
			}
		},
	})
	return s
}

// Close cancels running discoveries and waits for them.
func (s *Cache) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
}

// Generation returns the configuration's generation, for a Key.
func (s *Cache) Generation() uint64 { return s.generation.Load() }

// entry is the cached state of one fingerprint. key is immutable.
type entry struct {
	key Key

	mu sync.Mutex
	// epoch counts invalidations: results of discoveries that began in an
	// earlier epoch are dropped.
	epoch        uint64
	surface      *Surface // nil before the first discovery and after an invalidation
	discovered   bool     // some surface was made before
	refused      *fault.Error
	refusedUntil time.Time // how long refused counts
	used         time.Time
}

// Key identifies a surface.
type Key struct {
	Fingerprint string
	Tool        string
	Version     string
	// Generation is that of Cache.Generation when the fingerprint was made.
	Generation uint64
	// Shown are the identity's claims that are not secret, for operators.
	Shown    map[string]string
	ReadOnly bool
}

func (s *Cache) report(e *entry, event string, more ...any) {
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

// Get returns the surface of key, and calls discover if there is no fresh one. At
// most one discovery per identity runs at a time, and 16 in all; it continues if
// the caller that began it leaves. Errors are ErrSuperseded, those of discover and
// ctx, or a *fault.Error OVERLOADED.
func (s *Cache) Get(ctx context.Context, key Key, discover func(context.Context) (*Surface, error)) (*Surface, error) {
	if key.Generation != s.generation.Load() {
		return nil, ErrSuperseded
	}
	e, _ := s.entries.ComputeIfAbsent(key.Fingerprint, func() (*entry, bool) { return &entry{key: key}, false })
	now := time.Now()
	e.mu.Lock()
	e.used = now
	epoch := e.epoch
	surface, refused := e.surface, e.refused
	if refused != nil && !now.Before(e.refusedUntil) {
		refused = nil
	}
	e.mu.Unlock()
	switch {
	case surface != nil && surface.fresh(now):
		s.report(e, Hit)
		return surface, nil
	case refused != nil:
		s.report(e, Refused, "remembered", true)
		return nil, refused
	}
	// A flight belongs to one epoch of an entry: callers after an invalidation
	// do not wait for a discovery that began before it.
	result := s.flights.DoChan(fmt.Sprintf("%p %d", e, epoch), func() (any, error) {
		return s.runDiscovery(e, epoch, discover)
	})
	select {
	case r := <-result:
		surface, _ := r.Val.(*Surface)
		return surface, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// runDiscovery runs one discovery and caches its result.
func (s *Cache) runDiscovery(e *entry, epoch uint64, discover func(context.Context) (*Surface, error)) (*Surface, error) {
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
		return nil, fault.Errorf(fault.Overloaded, "%d tool discoveries are running and others are waiting; try again", maxConcurrent)
	}
	defer s.slots.Release(1)
	start := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, MaxTime)
	surface, err := s.discoverSafely(ctx, e, discover)
	cancel()

	now := time.Now()
	took := now.Sub(start)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epoch != epoch || e.key.Generation != s.generation.Load() || errors.Is(err, ErrSuperseded) {
		s.report(e, Superseded, "took", took)
		return nil, ErrSuperseded
	}
	if err == nil {
		surface.created = now
		event := Miss
		if e.discovered {
			event = Refreshed
		}
		e.surface, e.refused, e.discovered = surface, nil, true
		s.report(e, event, "tools", len(surface.tools), "read_only", surface.Safety.ReadOnly, "took", took)
		return surface, nil
	}
	var we *fault.Error
	if errors.As(err, &we) && we.Code == fault.Unauthenticated {
		e.surface, e.refused, e.refusedUntil = nil, we, now.Add(refusedFor)
		s.report(e, Refused, "error", we.Message, "took", took)
		return nil, we
	}
	if old := e.surface; old != nil && now.Before(old.created.Add(2*old.ttl)) {
		kept := *old
		kept.Stale, kept.retryAfter = err.Error(), now.Add(staleFor)
		e.surface = &kept
		s.report(e, Stale, "error", err, "took", took)
		return &kept, nil
	}
	e.surface = nil
	s.report(e, Failed, "error", err, "took", took)
	return nil, err
}

// discoverSafely calls discover and returns a panic as an error: no caller of this
// goroutine recovers, so that a panic would end the daemon.
func (s *Cache) discoverSafely(ctx context.Context, e *entry, discover func(context.Context) (*Surface, error)) (_ *Surface, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a discovery panicked", "tool", e.key.Tool, "identity", e.key.Fingerprint, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.Errorf(fault.Internal, "listing the tools of %s failed in the daemon; see its log", e.key.Tool)
		}
	}()
	return discover(ctx)
}

// invalidate drops the surface of an entry, and the result of a discovery that is
// running for it.
func (s *Cache) invalidate(e *entry, why string) {
	e.mu.Lock()
	e.epoch++
	e.surface, e.refused = nil, nil
	e.mu.Unlock()
	s.report(e, Invalidated, "reason", why)
}

// Invalidate drops the surface of a fingerprint. It reports whether there is one.
func (s *Cache) Invalidate(fingerprint, why string) bool {
	e, ok := s.entries.GetIfPresent(fingerprint)
	if ok {
		s.invalidate(e, why)
	}
	return ok
}

// InvalidateTool removes all entries of a tool and returns their number.
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

// InvalidateAll begins a new generation: it removes all entries and drops the
// results of running discoveries. It returns the number of entries.
func (s *Cache) InvalidateAll(why string) (n int) {
	s.generation.Add(1)
	for name, e := range s.entries.All() {
		s.entries.Invalidate(name)
		s.invalidate(e, why)
		n++
	}
	return n
}

// Refuse records that the server of a tool refused this identity in a call.
func (s *Cache) Refuse(fingerprint string, err *fault.Error) {
	if e, ok := s.entries.GetIfPresent(fingerprint); ok {
		e.mu.Lock()
		e.epoch++
		e.surface, e.refused, e.refusedUntil = nil, err, time.Now().Add(refusedFor)
		e.mu.Unlock()
		s.report(e, Refused, "error", err.Message)
	}
}

// CheckGrants compares the grants that a call reported with those of the surface, and
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

// Entry describes one cached identity for operators; host/adminapi has its JSON.
type Entry struct {
	Fingerprint string
	Tool        string
	Version     string
	Claims      map[string]string
	// State is "fresh", "stale" (a refresh failed, the old surface is in use),
	// "old" (the next use refreshes), "refused" or "empty".
	State    string
	Reason   string
	ReadOnly bool
	Tools    int
	Names    []string
	Made     time.Time
	Until    time.Time // fresh, or refused
	Used     time.Time
}

// List returns all entries, by tool and then by fingerprint.
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
		case now.Before(out.Until):
			out.State = "fresh"
		default:
			out.State = "old"
		}
		for _, o := range f.Visible(out.ReadOnly) {
			out.Names = append(out.Names, o.Name)
		}
		out.Tools = len(out.Names)
	case e.refused != nil && now.Before(e.refusedUntil):
		out.State, out.Reason, out.Until = "refused", e.refused.Message, e.refusedUntil
	}
	return out
}
