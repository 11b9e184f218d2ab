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
	// queueTime is how long a discovery waits for its turn.
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
	// Schema, Annotations and Binding are JSON, or empty.
	Schema, Annotations, Binding string
	Mutating                     bool
}

// Surface is the tools that a module brings for one identity. It is immutable.
type Surface struct {
	Safety abi.Safety
	// Stale says why the last refresh failed, where it did: the surface is
	// older than it should be.
	Stale string

	offers []unique.Handle[Tool] // by name
	ttl    time.Duration
	made   time.Time
	// generation is that of the configuration under which it was discovered.
	generation uint64
	// again is when a surface that is stale may be refreshed.
	again time.Time
}

// fresh reports whether the surface serves without a discovery. expired says that
// a caller asked for another one.
func (f *Surface) fresh(now time.Time, expired bool) bool {
	return !expired && now.Before(f.made.Add(f.ttl)) || now.Before(f.again) && now.Before(f.made.Add(2*f.ttl))
}

// NewSurface takes a module's offers; their names are different. ttl 0 stands
// for the default.
func NewSurface(offers []Tool, safety abi.Safety, ttl time.Duration) *Surface {
	if ttl == 0 {
		ttl = defaultTTL
	}
	s := &Surface{Safety: safety, ttl: min(max(ttl, minTTL), maxTTL), offers: make([]unique.Handle[Tool], len(offers))}
	slices.SortFunc(offers, func(a, b Tool) int { return cmp.Compare(a.Name, b.Name) })
	for i, o := range offers {
		s.offers[i] = unique.Make(o)
	}
	return s
}

// Visible are the tools that an identity sees, by name: all, or, when it may
// only read, those that change nothing.
func (s *Surface) Visible(reads bool) []Tool {
	reads = reads || s.Safety.ReadOnly
	list := make([]Tool, 0, len(s.offers))
	for _, h := range s.offers {
		if o := h.Value(); !reads || !o.Mutating {
			list = append(list, o)
		}
	}
	return list
}

// Find is the tool of that name, if the identity sees it.
func (s *Surface) Find(name string, reads bool) (Tool, bool) {
	i, ok := slices.BinarySearchFunc(s.offers, name, func(h unique.Handle[Tool], name string) int { return cmp.Compare(h.Value().Name, name) })
	if !ok {
		return Tool{}, false
	}
	o := s.offers[i].Value()
	return o, !o.Mutating || !reads && !s.Safety.ReadOnly
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
	turns   *semaphore.Weighted
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

// NewCache makes an empty one.
func NewCache(settings Settings, observe func(tool, event string), log *slog.Logger) *Cache {
	s := &Cache{observe: observe, log: log, turns: semaphore.NewWeighted(discoveries)}
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

// Generation is that of the configuration; a Key is made with it.
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
	expired bool
	asked   time.Time // when a caller asked for a refresh
	wasMade bool      // some surface was made before
	refused *fault.Error
	until   time.Time // how long refused counts
	used    time.Time
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

// Get is the surface of key, made by discover where there is none that is
// fresh. One discovery runs for an identity at a time, and 16 in all; it does
// not end with the caller that began it. Errors are ErrSuperseded, what discover
// answered, or a wire error OVERLOADED, TIMEOUT or ABORTED.
func (s *Cache) Get(ctx context.Context, key Key, discover func(context.Context) (*Surface, error)) (*Surface, error) {
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
		return s.make(e, epoch, key.Generation, discover)
	})
	select {
	case r := <-result:
		surface, _ := r.Val.(*Surface)
		return surface, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// entry is that of key, which is made where there is none.
func (s *Cache) entry(key Key) *entry {
	e, _ := s.entries.ComputeIfAbsent(key.Fingerprint, func() (*entry, bool) { return &entry{key: key}, false })
	return e
}

// make runs one discovery and keeps what came of it.
func (s *Cache) make(e *entry, epoch, generation uint64, discover func(context.Context) (*Surface, error)) (*Surface, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fault.Errorf(fault.Overloaded, "this daemon is shutting down; try again")
	}
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()

	queue, cancel := context.WithTimeout(s.ctx, queueTime)
	err := s.turns.Acquire(queue, 1)
	cancel()
	if err != nil {
		return nil, fault.Errorf(fault.Overloaded, "%d discoveries of tools are running, and many are waiting; try again", discoveries)
	}
	defer s.turns.Release(1)
	start := time.Now()
	ctx, cancel := context.WithTimeout(s.ctx, MaxTime)
	surface, err := s.safely(ctx, e, discover)
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
		surface.made, surface.generation = now, generation
		event := Miss
		if e.wasMade {
			event = Refreshed
		}
		e.surface, e.refused, e.wasMade, e.expired = surface, nil, true, false
		s.event(e, event, "tools", len(surface.offers), "read_only", surface.Safety.ReadOnly, "took", took)
		return surface, nil
	}
	var we *fault.Error
	if errors.As(err, &we) && we.Code == fault.Unauthenticated {
		e.surface, e.refused, e.until = nil, we, now.Add(s.settings.Load().RefusedFor)
		s.event(e, Refused, "error", we.Message, "took", took)
		return nil, we
	}
	if old := e.surface; old != nil && now.Before(old.made.Add(2*old.ttl)) {
		kept := *old
		kept.Stale, kept.again = err.Error(), now.Add(s.settings.Load().RetryAfter)
		e.surface = &kept
		s.event(e, Stale, "error", err, "took", took)
		return &kept, nil
	}
	e.surface = nil
	s.event(e, Failed, "error", err, "took", took)
	return nil, err
}

// safely is discover, with a panic as an error: this goroutine is nobody's, and
// would take the daemon along.
func (s *Cache) safely(ctx context.Context, e *entry, discover func(context.Context) (*Surface, error)) (_ *Surface, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("a discovery panicked", "tool", e.key.Tool, "identity", e.key.Fingerprint, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.Errorf(fault.Internal, "the daemon failed when it listed the tools of %s; its log has the reason", e.key.Tool)
		}
	}()
	return discover(ctx)
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

// Invalidate is that of one fingerprint. It reports whether there is one.
func (s *Cache) Invalidate(fingerprint, why string) bool {
	e, ok := s.entries.GetIfPresent(fingerprint)
	if ok {
		s.invalidate(e, why)
	}
	return ok
}

// InvalidateTool is that of all that a tool made.
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
// made of the same settings as counts says; that the server refused an identity, or
// did not answer, is forgotten.
func (s *Cache) BeginReload() (end func(counts func(settings string) bool)) {
	during := s.generation.Add(1)
	return func(counts func(settings string) bool) {
		s.generation.Add(1)
		for name, e := range s.entries.All() {
			if !counts(e.key.Settings) || !e.outlive(during) {
				s.entries.Invalidate(name)
				s.invalidate(e, "the configuration was reloaded")
			}
		}
	}
}

// outlive reports whether what e has was made before a reload, during which the
// generation was that one, and forgets what went wrong.
func (e *entry) outlive(during uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = nil
	if e.surface == nil {
		return true
	}
	if !e.surface.again.IsZero() {
		kept := *e.surface
		kept.again = time.Time{}
		e.surface = &kept
	}
	return e.surface.generation != during
}

// Refresh is a caller's wish: the next use of what it has discovers it anew, and
// what there is serves on where that fails. It has that once every RefreshEvery,
// and not while a server that failed or refused it is given rest; wait is how long
// that is yet.
func (s *Cache) Refresh(key Key) (wait time.Duration) {
	e := s.entry(key)
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	var until time.Time
	if !e.asked.IsZero() {
		until = e.asked.Add(s.settings.Load().RefreshEvery)
	}
	if e.refused != nil && e.until.After(until) {
		until = e.until
	}
	if e.surface != nil && e.surface.again.After(until) {
		until = e.surface.again
	}
	if until.After(now) {
		return until.Sub(now)
	}
	s.event(e, Asked)
	e.asked, e.expired = now, true
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

// List is every entry, by tool and then by fingerprint.
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
		out.Made, out.Until, out.Reason = f.made, f.made.Add(f.ttl), f.Stale
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
