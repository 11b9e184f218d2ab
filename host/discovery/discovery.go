// Package discovery keeps the tools that modules bring for identities. A module
// is asked once for an identity, and again when its answer is old, was
// invalidated, or belongs to a configuration or a module that counts no more;
// who asks at the same time waits for the same answer. The package checks what
// a module lists and asks no module itself: Cache.Get is given how.
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
	// MaxTools is how many tools a module may bring for one identity, MaxText the
	// bytes of a title or a description, MaxSchema those of a schema or a
	// binding, and MaxSize those of the whole answer.
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

	// defaultTTL is how long a surface is fresh; minTTL and maxTTL bound what
	// a module says instead.
	defaultTTL = 15 * time.Minute
	minTTL     = time.Second
	maxTTL     = 24 * time.Hour
)

// Settings are the operator's. All are positive.
type Settings struct {
	// MaxIdentities is how many entries are kept.
	MaxIdentities int
	// RetryAfter is how long a surface serves after its refresh failed before
	// the next use tries again: a server that hangs costs a caller 3 seconds now
	// and then, and not each of them.
	RetryAfter time.Duration
	// RefusedFor is how long it is remembered that a server refused an identity.
	RefusedFor time.Duration
	// RefreshEvery is how long callers that asked for a refresh wait before they
	// may ask again.
	RefreshEvery time.Duration
}

// ErrSuperseded says that what was discovered was of a configuration or of a
// module that counts no more. Whoever gets it resolves anew.
var ErrSuperseded = errors.New("the configuration or the module changed during the discovery")

// Tool is one tool of a Surface. All its fields are text, so that equal tools
// of many identities are one in memory.
type Tool struct {
	Name, Title, Description string
	// Schema, Output, which is that of what it answers, Icons, Annotations and Binding
	// are JSON, or empty.
	Schema, Output, Icons, Annotations, Binding string
	Mutating                                    bool
}

// Surface is the tools that a module brings for one identity. It is immutable.
type Surface struct {
	Safety abi.Safety
	// Stale says why the last refresh failed, where it did: the surface is
	// older than it should be.
	Stale string

	tools   []unique.Handle[Tool] // by name
	ttl     time.Duration
	created time.Time
	// generation is that of the configuration under which it was discovered.
	generation uint64
	// retryAt is when a surface that is stale may be refreshed.
	retryAt time.Time
}

// fresh reports whether the surface serves without a discovery. expired says that
// a caller asked for another one.
func (s *Surface) fresh(now time.Time, expired bool) bool {
	return !expired && now.Before(s.created.Add(s.ttl)) || now.Before(s.retryAt) && now.Before(s.created.Add(2*s.ttl))
}

// NewSurface returns the surface of a module's tools, which have different names.
// ttl 0 is the default.
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

// Visible returns the tools that an identity sees, by name: all, or, when it may
// only read, those that change nothing.
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

// Find returns the tool of that name, if the identity sees it.
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
	Refreshed   = "refresh"     // an old entry was made anew
	Stale       = "stale"       // a refresh failed and the old one serves on
	Failed      = "failed"      // a discovery failed and nothing serves
	Refused     = "refused"     // the server refused the identity, or had done so within a minute
	Invalidated = "invalidated" // the next use makes it anew
	Asked       = "asked"       // a caller asked for another one
	Superseded  = "superseded"  // what was discovered was not kept
	Evicted     = "evicted"     // the cache was full
)

// Cache keeps what modules make for identities. It is safe for concurrent
// use. Its goroutines are discoveries, which Close ends.
type Cache struct {
	// observe hears of every event; it must not block.
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

// Configure puts other settings in force. Where fewer entries are to be kept, those
// that are too many go.
func (s *Cache) Configure(settings Settings) {
	s.settings.Store(&settings)
	s.entries.SetMaximum(uint64(settings.MaxIdentities))
}

// Close ends the discoveries that run and waits for them.
func (s *Cache) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.work.Wait()
}

// Generation returns the generation of the configuration, for a Key.
func (s *Cache) Generation() uint64 { return s.generation.Load() }

// entry is what is kept for one fingerprint. The fields above mu do not change.
type entry struct {
	key Key

	mu sync.Mutex
	// epoch counts invalidations: what was discovered in an earlier one is not
	// kept.
	epoch   uint64
	surface *Surface // nil before the first discovery and after an invalidation
	// expired: a caller asked for another surface. This one serves on only where
	// that cannot be had.
	expired      bool
	refreshAsked time.Time // when a caller asked for a refresh
	discovered   bool      // some surface was discovered before
	refused      *fault.Error
	until        time.Time // how long refused counts
	used         time.Time
}

// Key is whose surface is asked for.
type Key struct {
	Fingerprint string
	Tool        string
	Version     string
	// Generation is what Cache.Generation was when the fingerprint was made.
	Generation uint64
	// Settings is a digest of what of the daemon's configuration counts for what
	// is discovered; the fingerprint is made of it, too.
	Settings string
	// Shown is for operators: what sets this identity apart and is no secret.
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

// Get returns the surface of key. If there is none that is fresh, ask discovers it. One
// discovery runs for an identity at a time, and 16 in all; it does not end with the
// caller that began it. Errors are ErrSuperseded, what ask answered, or a wire error
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
	// A flight is of one entry in one epoch under one configuration: whoever comes
	// after an invalidation does not wait for a discovery that began before it.
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

// entry returns the entry of key; a new one if there is none.
func (s *Cache) entry(key Key) *entry {
	e, _ := s.entries.ComputeIfAbsent(key.Fingerprint, func() (*entry, bool) { return &entry{key: key}, false })
	return e
}

// discover runs one discovery and keeps what came of it.
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
// call, and a panic would end the daemon.
func (s *Cache) recovering(ctx context.Context, e *entry, ask func(context.Context) (*Surface, error)) (_ *Surface, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a discovery panicked", "tool", e.key.Tool, "identity", e.key.Fingerprint, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.Errorf(fault.Internal, "the daemon failed when it listed the tools of %s; its log has the reason", e.key.Tool)
		}
	}()
	return ask(ctx)
}

// invalidate makes the next use of an entry discover anew; what is being
// discovered for it now is not kept.
func (s *Cache) invalidate(e *entry, why string) {
	e.mu.Lock()
	e.epoch++
	e.surface, e.refused, e.expired = nil, nil, false
	e.mu.Unlock()
	s.event(e, Invalidated, "reason", why)
}

// Invalidate invalidates the entry of one fingerprint. It reports whether there is one.
func (s *Cache) Invalidate(fingerprint, why string) bool {
	e, ok := s.entries.GetIfPresent(fingerprint)
	if ok {
		s.invalidate(e, why)
	}
	return ok
}

// InvalidateTool invalidates every entry of a tool. It returns their number.
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

// InvalidateAll begins a new generation: nothing that was derived under the
// one before it is used again, or kept when its discovery ends.
func (s *Cache) InvalidateAll(why string) (n int) {
	s.generation.Add(1)
	for name, e := range s.entries.All() {
		s.entries.Invalidate(name)
		s.invalidate(e, why)
		n++
	}
	return n
}

// BeginReload is called before the configuration changes, and end after it has:
// what is discovered in between, or was begun before, is not kept, since nobody can
// tell of which configuration it is. What was kept before stays, as far as it was
// made of the same settings as valid says; that the server refused an identity, or
// did not answer, is forgotten.
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

// survives reports whether what e has was made before a reload, during which the
// generation was that one, and forgets what went wrong.
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
// present ones serve on. It is granted once every RefreshEvery, and not within
// RetryAfter of a failure or RefusedFor of a refusal; wait is how long the caller still
// has to wait, or 0.
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
	e.epoch++ // what is being discovered may have been seen before the wish
	return 0
}

// Refuse notes that the server of a tool refused this identity in a call.
func (s *Cache) Refuse(fingerprint string, err *fault.Error) {
	if e, ok := s.entries.GetIfPresent(fingerprint); ok {
		e.mu.Lock()
		e.epoch++
		e.surface, e.refused, e.until = nil, err, time.Now().Add(s.settings.Load().RefusedFor)
		e.mu.Unlock()
		s.event(e, Refused, "error", err.Message)
	}
}

// CheckGrants compares what a call found out of the grants with what the surface
// says, and has the surface made anew where they differ.
func (s *Cache) CheckGrants(fingerprint string, found abi.Safety) {
	e, ok := s.entries.GetIfPresent(fingerprint)
	if !ok {
		return
	}
	e.mu.Lock()
	differ := e.surface != nil && (e.surface.Safety.ReadOnly != found.ReadOnly || found.Grants != "" && e.surface.Safety.Grants != found.Grants)
	e.mu.Unlock()
	if differ {
		s.invalidate(e, "the grants are others now")
	}
}

// Entry is one identity as operators see it; host/client has its form on the
// wire.
type Entry struct {
	Fingerprint string
	Tool        string
	Version     string
	Claims      map[string]string
	// State is "fresh", "stale" (a refresh failed, the old one serves),
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

// List returns every entry, by tool and then by fingerprint.
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
