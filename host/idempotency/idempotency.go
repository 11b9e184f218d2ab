package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultTTL is how long a key is held, from its first claim.
	DefaultTTL = 24 * time.Hour
	// AutoTTL is for keys made by AutoKey.
	AutoTTL = time.Hour
)

// Config is fixed when Records are opened. Zero values are the defaults.
type Config struct {
	// Store is memory, file, file:PATH or the URL of a Redis; see Open.
	// Default memory.
	Store string
	// Dir is the folder of the file store, idempotency.db. Default ".".
	Dir string
	// Lease is how long a claim lasts without a renewal; it is renewed after
	// a third of it. Default 15 s.
	Lease time.Duration
	// Poll is how often a waiter reads the record, in case a notification was
	// lost. Default 2 s.
	Poll time.Duration
	// MemoryRecords and MemoryBytes bound the memory store, which evicts the
	// least recently used results. Defaults 1,000,000 and 512 MiB.
	MemoryRecords int
	MemoryBytes   int64
	// OnEvent, if set, is called for each event, without any lock held. scope
	// is "" if it is not known.
	OnEvent func(scope string, e Event)
	// OnStore, if set, is called with the duration of each store operation:
	// claim, end, renew, get.
	OnStore func(op string, took time.Duration, err error)
	// Log gets alarms. Default slog.Default().
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Store = cmp.Or(c.Store, "memory")
	c.Dir = cmp.Or(c.Dir, ".")
	c.Lease = cmp.Or(c.Lease, 15*time.Second)
	c.Poll = cmp.Or(c.Poll, 2*time.Second)
	c.MemoryRecords = cmp.Or(c.MemoryRecords, 1_000_000)
	c.MemoryBytes = cmp.Or(c.MemoryBytes, 512<<20)
	c.Log = cmp.Or(c.Log, slog.Default())
	return c
}

// OnDuplicate is what a call does while another one with its key runs.
type OnDuplicate string

const (
	Wait OnDuplicate = "wait" // until its context ends, then ErrPending
	Fail OnDuplicate = "fail" // ErrPending at once
)

// Request is a call with a key.
type Request struct {
	// Scope is the namespace of the key: the name of the tool.
	Scope string
	// Key is made by CallerKey or AutoKey. At most 512 bytes, without ':',
	// braces and control characters.
	Key string
	// Label is the key as the caller sent it, for operators. It has no effect
	// on the decision. Over 128 bytes its end is replaced by a digest.
	Label string
	// Payload is the Digest of the request. The same key with another one is
	// ErrKeyReused.
	Payload string
	// TTL is how long the key is held, from its first claim. Default
	// DefaultTTL. Parts of a millisecond are dropped.
	TTL time.Duration
	// FailedTTL is how long a failure is replayed, at most TTL. Default 30 s;
	// below 0, a failure is not kept.
	FailedTTL time.Duration
	// OnDuplicate is Wait when empty.
	OnDuplicate OnDuplicate
	// Rerun declares the call safe to rerun after its owner's lease expired: it
	// only reads, or is idempotent. Both the earlier call and this one must
	// declare it.
	Rerun bool
	// Retry reruns a stored failure. It does not override an unknown outcome,
	// nor a failure that this request has waited for.
	Retry bool
	// Shadow decides and counts as usual, then runs the call regardless of the
	// decision and of the store's state. It never waits. Result.Event is what
	// would have been decided.
	Shadow bool
	// Note, if set, is called when the key is claimed and before the call runs.
	// What it returns, a JSON value of at most 64 KiB, is stored with the record
	// for as long as it is not known how the call ended; {} of anything else. The
	// call runs only when it is stored: until then the record has Claimed.
	Note    func(context.Context) json.RawMessage
	Claimed json.RawMessage
	// Settle, if set, finds out how a call of this key with a Note and an unknown
	// outcome ended. It is called right after the call, and when the key is used
	// again; for one record once at a time, less and less often while it decides
	// nothing, in a goroutine and under a context of its own. It must change
	// nothing.
	Settle func(context.Context, Unknown) Finding
}

// Kind is how a call ended.
type Kind int

const (
	// OutcomeUnknown: the call began and was ended by its deadline or an abort,
	// or its outcome cannot be determined. It is the zero value, which is the
	// safe one.
	OutcomeUnknown Kind = iota
	OutcomeCompleted
	// OutcomeFailed: the call ran and failed; Result, if set, is kept for
	// Request.FailedTTL together with Failure.
	OutcomeFailed
	// OutcomeNotBegun: the call had no effect. The key is free again, and one
	// of the waiting callers runs.
	OutcomeNotBegun
)

// Outcome is what run reports about a call.
type Outcome struct {
	Kind Kind
	// Lingers reports, for an unknown outcome, that a part of the call may still run.
	Lingers bool
	// Result is a JSON value, or nil. Anything else is treated like a result
	// that is too large: it cannot be replayed.
	Result json.RawMessage
	// Failure is why the call failed; nil otherwise.
	Failure *Failure
}

// Result is how the call of a key ended, now or earlier.
type Result struct {
	// Status is Completed or Failed; "" if the call has not begun, its outcome
	// is unknown, or there is no record.
	Status Status
	// Value is the result's JSON, nil if there is none.
	Value   json.RawMessage
	Failure *Failure
	// FromCache reports that the call was not run for this request.
	FromCache bool
	// TooLarge reports that the Value was not stored: it had Size bytes and the
	// SHA-256 Digest (hexadecimal). The call is not rerun to get it. Only with
	// FromCache.
	TooLarge bool
	Digest   string
	Size     int
	// ExpiresAt is until when the key is held. Only with FromCache.
	ExpiresAt time.Time
	// Event is the decision on the request: EventClaimed, EventTakenOver,
	// EventRetried, EventReplayed, or, with an error or Shadow, the event of a
	// refusal.
	Event Event
	// Waited reports that the request waited for another call.
	Waited bool
	// Fence counts the claims of this key that ran, including this one; 0
	// without a record.
	Fence int64
}

// Records runs calls under idempotency keys. It is safe for concurrent use.
type Records struct {
	config     Config
	store      store
	recorder   *recorder
	background *background
	undoSlots  chan struct{} // holds a token for each running undo
	flights    *flights
	settler    *settler
}

// maxUndos is how many claims without a reply are released concurrently; others
// expire with their lease.
const maxUndos = 256

// Open opens Records on the store that c names:
//
//	memory          in this process only
//	file            c.Dir/idempotency.db, owned by this process
//	file:PATH       the same elsewhere
//	redis://…       a Redis for several hosts; see redisdb.Open for its parameters
//
// An unreachable Redis is not an error: calls return ErrStoreUnavailable until it
// is reachable.
func Open(ctx context.Context, c Config) (*Records, error) {
	c = c.withDefaults()
	k := &Records{config: c, recorder: &recorder{onEvent: c.OnEvent, onStore: c.OnStore}, background: newBackground(), undoSlots: make(chan struct{}, maxUndos)}
	k.flights = &flights{recorder: k.recorder, background: k.background, poll: c.Poll, waited: map[id]*flight{}}
	var err error
	switch c.Store {
	case "memory":
		k.store = newMemory(c.MemoryRecords, c.MemoryBytes, func(scope string) { k.recorder.count(scope, EventEvicted) })
	case "file":
		k.store, err = openFile(filepath.Join(c.Dir, "idempotency.db"))
	default:
		if path, ok := strings.CutPrefix(c.Store, "file:"); ok {
			k.store, err = openFile(path)
			break
		}
		switch scheme, rest, _ := strings.Cut(c.Store, "://"); scheme {
		case "redis", "rediss", "unix":
			k.store, err = openRedis(ctx, c.Store, k.flights.notify)
		default:
			if rest != "" {
				scheme += "://…" // the rest may hold a password
			}
			err = fmt.Errorf("unknown store %.32q; use memory, file, file:PATH or redis://HOST:PORT/DB", scheme)
		}
	}
	if err != nil {
		k.background.close()
		return nil, fmt.Errorf("open the idempotency store: %w", err)
	}
	k.flights.store = k.store
	k.settler = &settler{store: k.store, recorder: k.recorder, background: k.background, flights: k.flights, log: c.Log, looks: map[id]*look{}, rests: map[id]rest{}}
	return k, nil
}

// Close stops background work and closes the store. It does not wait for running
// calls: they end with ErrNotRecorded.
func (k *Records) Close() error {
	if !k.background.close() {
		return nil
	}
	return k.store.close()
}

// Survives describes, for operators, which records the store keeps through a
// kill, a reboot and a failover. A Redis is queried each time.
func (k *Records) Survives(ctx context.Context) string { return k.store.survives(ctx) }

// Ping reports whether the store answers.
func (k *Records) Ping(ctx context.Context) error { return k.store.ping(ctx) }

// Stats returns the count of each Event since the Records were opened.
func (k *Records) Stats() map[Event]uint64 {
	m := make(map[Event]uint64, len(events))
	for i, e := range events {
		m[e] = k.recorder.counts[i].Load()
	}
	return m
}

// Do runs the call of r in the calling goroutine unless its key forbids it. run
// gets ctx; run decides whether a call continues after its caller has left. The
// outcome that run returns is stored even if ctx has ended, with retries for one
// lease. A run that panics has an unknown outcome, and the panic propagates.
//
// Without an error, Result is how the call ended, now (FromCache is false) or
// earlier. Errors are those of this package, for errors.Is; with all but
// ErrNotRecorded nothing ran. If ctx ends before anything is known, its error is
// wrapped.
func (k *Records) Do(ctx context.Context, r Request, run func(context.Context) Outcome) (Result, error) {
	if err := r.validate(); err != nil {
		return Result{}, err
	}
	i := id{r.Scope, r.Key}
	c := claimRequest{
		owner: rand.Text(), payload: r.Payload, label: truncateLabel(r.Label),
		ttl: cmp.Or(r.TTL, DefaultTTL).Milliseconds(), lease: k.config.Lease.Milliseconds(),
		rerun: r.Rerun, retry: r.Retry, failedTTL: r.FailedTTL, note: r.Claimed,
	}
	waited, settled := false, false
	for {
		rec, v, err := k.claim(ctx, i, c)
		res := Result{Waited: waited}
		switch {
		case err != nil && errors.Is(err, ErrOverloaded):
			res.Event = EventOverloaded
		case err != nil:
			res.Event = EventUnavailable
		case v == verdictRun, v == verdictTakeOver, v == verdictRetry:
			res.Event = map[verdict]Event{verdictRun: EventClaimed, verdictTakeOver: EventTakenOver, verdictRetry: EventRetried}[v]
			k.recorder.count(r.Scope, res.Event)
			res.Fence = rec.Fence
			res, err = k.runOwned(ctx, i, c, res, &r, run)
			if r.Shadow {
				err = nil // counted only
			}
			return res, err
		case v == verdictReplay:
			res = rec.replay(waited)
		case v == verdictUnknown:
			// Once: what has an unknown outcome again is another call's.
			if r.Settle != nil && !r.Shadow && !settled {
				if settled = true; k.settler.settle(ctx, i, r.Settle) {
					continue
				}
			}
			res.Event, err = EventUnknown, ErrOutcomeUnknown
		case v == verdictReused:
			res.Event, err = EventReused, ErrKeyReused
		case v == verdictHeld && (r.OnDuplicate == Fail || r.Shadow):
			res.Event, err = EventPending, ErrPending
		default:
			if !waited {
				waited = true
				k.recorder.count(r.Scope, EventWaited)
			}
			rec, err = k.flights.wait(ctx, i)
			switch {
			case err != nil:
				res.Waited, res.Event = true, EventPending
				err = fmt.Errorf("%w: %w", ErrPending, err)
			case rec == nil || rec.Status == Pending || rec.Payload != r.Payload:
				continue // free, expired, or of another payload: claim again
			case rec.outcomeUnknown() && r.Settle != nil && !settled:
				continue // the claim finds the same, and settles it
			case rec.outcomeUnknown():
				res.Waited, res.Event, err = true, EventUnknown, ErrOutcomeUnknown
			default:
				res = rec.replay(true)
			}
		}
		k.recorder.count(r.Scope, res.Event)
		if r.Shadow {
			k.recorder.count(r.Scope, EventUnrecorded)
			event := res.Event
			res = Result{Event: event}
			res.setOutcome(run(ctx))
			return res, nil
		}
		return res, err
	}
}

func (r *Request) validate() error {
	bad := func(c rune) bool { return c < ' ' || c == 0x7f || strings.ContainsRune(":{}", c) }
	switch {
	case r.Scope == "" || len(r.Scope) > 256 || strings.ContainsFunc(r.Scope, bad):
		return fmt.Errorf("%w: scope %.64q is empty, longer than 256 bytes, or has a colon, a brace or a control character", ErrRequest, r.Scope)
	case r.Key == "" || len(r.Key) > 512 || strings.ContainsFunc(r.Key, bad):
		return fmt.Errorf("%w: key %.64q is empty, longer than 512 bytes, or has a colon, a brace or a control character", ErrRequest, r.Key)
	case r.Payload == "" || len(r.Payload) > 512:
		return fmt.Errorf("%w: the payload's digest is empty or longer than 512 bytes", ErrRequest)
	case r.TTL < 0 || r.TTL > 0 && r.TTL < time.Millisecond || r.TTL > 366*24*time.Hour:
		return fmt.Errorf("%w: a time to live of %v is not between 1ms and 366 days", ErrRequest, r.TTL)
	case r.OnDuplicate != "" && r.OnDuplicate != Wait && r.OnDuplicate != Fail:
		return fmt.Errorf("%w: on duplicate %q is neither %q nor %q", ErrRequest, r.OnDuplicate, Wait, Fail)
	}
	return nil
}

func (r *record) replay(waited bool) Result {
	return Result{
		Status: r.Status, Value: r.Result, Failure: r.Error, FromCache: true, Waited: waited, Event: EventReplayed,
		TooLarge: r.Digest != "", Digest: r.Digest, Size: r.Size, ExpiresAt: time.UnixMilli(r.ExpiresAt), Fence: r.Fence,
	}
}

func (res *Result) setOutcome(o Outcome) {
	switch o.Kind {
	case OutcomeCompleted:
		res.Status = Completed
	case OutcomeFailed:
		res.Status = Failed
	}
	res.Value, res.Failure = o.Result, o.Failure
}

// claim calls the store once. A claim whose reply is lost is released, so that it
// does not become an unknown outcome of a call that never ran.
func (k *Records) claim(ctx context.Context, i id, c claimRequest) (*record, verdict, error) {
	start := time.Now()
	rec, _, v, err := k.store.claim(ctx, i, c)
	k.recorder.observe("claim", start, err)
	if err == nil || errors.Is(err, ErrOverloaded) || errors.Is(err, errNotSent) {
		return rec, v, err
	}
	select {
	case k.undoSlots <- struct{}{}:
		if !k.background.start(func() {
			defer func() { <-k.undoSlots }()
			ctx, cancel := context.WithTimeout(k.background.ctx, k.config.Lease)
			defer cancel()
			_, _ = k.complete(ctx, i, completion{owner: c.owner, released: true}) // on an error, it expires
		}) {
			<-k.undoSlots
		}
	default: // it expires with its lease
	}
	if e := ctx.Err(); e != nil && !errors.Is(err, e) {
		err = fmt.Errorf("%w: %w", err, e)
	}
	return nil, 0, err
}

// complete retries until the store answers or ctx ends.
func (k *Records) complete(ctx context.Context, i id, e completion) (verdict, error) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		start := time.Now()
		v, err := k.store.complete(ctx, i, e)
		k.recorder.observe("end", start, err)
		if err == nil {
			return v, nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return 0, err
		}
	}
}

// runOwned runs the call of a key that c has claimed and stores its outcome.
func (k *Records) runOwned(ctx context.Context, i id, c claimRequest, res Result, r *Request, run func(context.Context) Outcome) (Result, error) {
	stop := k.startRenewal(i, c, res.Fence)
	var o Outcome
	panicked := true
	defer func() {
		if panicked {
			stop()
			_ = k.finish(ctx, i, c, res.Fence, Outcome{})
		}
	}()
	if r.Note != nil {
		if err := k.annotate(ctx, i, c, res.Fence, r.Note(ctx)); err != nil && ctx.Err() == nil {
			panicked = false
			stop()
			_ = k.finish(ctx, i, c, res.Fence, Outcome{Kind: OutcomeNotBegun})
			return Result{}, err
		}
	}
	o = run(ctx) // which begins nothing when ctx has ended
	panicked = false
	stop()
	var compact bytes.Buffer
	if json.Compact(&compact, o.Result) == nil {
		o.Result = compact.Bytes() // the form that every store returns
	}
	res.setOutcome(o)
	err := k.finish(ctx, i, c, res.Fence, o)
	if err == nil && o.Kind == OutcomeUnknown && r.Settle != nil && !r.Shadow {
		k.settler.start(i, r.Settle, false) // for the next caller
	}
	return res, err
}

// annotate stores the note of a call that is about to run. On an error the call must
// not begin: its record says that it has not.
func (k *Records) annotate(ctx context.Context, i id, c claimRequest, fence int64, note json.RawMessage) error {
	if len(note) == 0 || len(note) > maxNote || !json.Valid(note) {
		note = json.RawMessage("{}")
	}
	start := time.Now()
	v, err := k.store.annotate(ctx, i, c.owner, fence, note)
	k.recorder.observe("note", start, err)
	if err == nil && v != verdictDone {
		err = fmt.Errorf("%w: the key has another owner or was settled before its call began", ErrStoreUnavailable)
	}
	return err
}

// finish stores how a call ended and wakes its waiters.
func (k *Records) finish(ctx context.Context, i id, c claimRequest, fence int64, o Outcome) error {
	e := completion{owner: c.owner, fence: fence, result: o.Result, err: o.Failure}
	event := Event("")
	switch o.Kind {
	case OutcomeCompleted:
		e.status = Completed
	case OutcomeFailed:
		e.status, e.failedTTL = Failed, c.failedTTL
	case OutcomeNotBegun:
		e = completion{owner: c.owner, fence: fence, released: true}
		event = EventReleased
	default:
		e.status, e.result = Failed, nil
		e.err = &Failure{Code: CodeOutcomeUnknown, Message: messageReported}
		if o.Lingers {
			e.err.Message = messageLingers
		}
		event = EventAbandoned
	}
	if len(e.result) > MaxResult || e.result != nil && !json.Valid(e.result) {
		e.digest, e.size, e.result = digest(e.result), len(e.result), nil
		event = EventTooLarge
	}
	if event != "" {
		k.recorder.count(i.scope, event)
	}
	// The outcome is stored even if the caller has left, but not after Close.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.config.Lease)
	defer cancel()
	defer context.AfterFunc(k.background.ctx, cancel)()
	v, err := k.complete(ctx, i, e)
	k.flights.notify(i)
	switch {
	case err != nil:
		k.recorder.count(i.scope, EventNotRecorded)
		k.config.Log.Error("the outcome of a call was not recorded", "scope", i.scope, "key", i.key, "error", err)
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	case v == verdictLate:
		k.recorder.count(i.scope, EventLate)
		k.config.Log.Warn("the outcome of a call came late and was dropped", "scope", i.scope, "key", i.key, "fence", fence)
		return fmt.Errorf("%w: the key has another owner or was settled", ErrNotRecorded)
	case v == verdictGone:
		k.reportVanished(i)
		return fmt.Errorf("%w: the record has vanished", ErrNotRecorded)
	}
	return nil
}

func (k *Records) reportVanished(i id) {
	k.recorder.count(i.scope, EventGone)
	k.config.Log.Error("the record of a running call has vanished; its key may run again", "scope", i.scope, "key", i.key)
}

// startRenewal renews the lease of a call until stop is called. A call shorter
// than a third of the lease costs one timer.
func (k *Records) startRenewal(i id, c claimRequest, fence int64) (stop func()) {
	var (
		mu      sync.Mutex
		stopped bool        // guarded by mu
		t       *time.Timer // guarded by mu
	)
	every := k.config.Lease / 3
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(every, func() {
		if !k.background.begin() {
			return
		}
		defer k.background.wg.Done()
		ctx, cancel := context.WithTimeout(k.background.ctx, every)
		start := time.Now()
		v, err := k.store.renew(ctx, i, c.owner, fence, c.lease)
		cancel()
		k.recorder.observe("renew", start, err)
		mu.Lock()
		if stopped {
			mu.Unlock()
			return
		}
		// Retry after an error: the lease is three times as long, and a late
		// renewal is valid until the record is settled.
		if err != nil || v == verdictDone {
			t.Reset(every)
			mu.Unlock()
			return
		}
		mu.Unlock()
		// finish sees the new owner too, and counts it.
		k.config.Log.Warn("the lease of a running call could not be renewed", "scope", i.scope, "key", i.key, "fence", fence, "gone", v == verdictGone)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		t.Stop()
	}
}

// truncateLabel shortens a label to maxLabel bytes, ending in a digest of it.
func truncateLabel(label string) string {
	if len(label) <= maxLabel {
		return label
	}
	end := "…" + digest([]byte(label))[:16]
	return strings.ToValidUTF8(label[:maxLabel-len(end)], "") + end
}
