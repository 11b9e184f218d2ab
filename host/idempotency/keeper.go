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
	"sync/atomic"
	"time"
)

var (
	// ErrPending: a call with this key is still running. When the caller's
	// context ended while it waited, its cause is wrapped too.
	ErrPending = errors.New("a call with this idempotency key is still running")
	// ErrKeyReused: the key was claimed for another payload.
	ErrKeyReused = errors.New("the idempotency key was used with another payload")
	// ErrOutcomeUnknown: the call of this key began, and nobody knows how it
	// ended. Look, and flush the key or use another.
	ErrOutcomeUnknown = errors.New("a call with this idempotency key began, and its outcome is unknown")
	// ErrStoreUnavailable: nothing ran, since no record could be made.
	ErrStoreUnavailable = errors.New("the idempotency store is not available")
	// ErrOverloaded: nothing ran, since the store is full of running calls.
	ErrOverloaded = errors.New("the idempotency store is full of running calls")
	// ErrNotRecorded comes with a true Result: the call ran and ended so, but
	// its record could not be completed. A later use of its key is answered
	// ErrOutcomeUnknown; where the record itself had vanished (EventGone),
	// or the call was declared safe to run again, it runs again.
	ErrNotRecorded = errors.New("the call ran, and its outcome could not be recorded")
	// ErrRequest: the Request itself is wrong.
	ErrRequest = errors.New("not an idempotency request")
)

const (
	// DefaultTTL is how long a key is held, from its first claim.
	DefaultTTL = 24 * time.Hour
	// AutoTTL is for keys made by AutoKey.
	AutoTTL = time.Hour
	// MaxResult is the size of a result that is kept, in bytes of JSON
	// without white space between its tokens.
	MaxResult = 64 << 10
	// maxLabel is how much of a Label is kept, in bytes.
	maxLabel = 128
)

// Config is fixed when a Keeper is made. Zero values are the defaults.
type Config struct {
	// Store is memory, file, file:PATH or the URL of a Redis; see Open.
	// Default memory.
	Store string
	// Dir is where the file store lies, as idempotency.db. Default ".".
	Dir string
	// Lease is how long an owner may be silent. It is renewed after a third
	// of it. Default 15 s.
	Lease time.Duration
	// Poll is how often a record is looked at that somebody waits for, in
	// case that its end was not told. Default 2 s.
	Poll time.Duration
	// MemoryRecords and MemoryBytes bound the memory store: the results that
	// were asked for least recently go first. Defaults 1,000,000 and 512 MiB.
	MemoryRecords int
	MemoryBytes   int64
	// OnEvent, when set, is told what happens, without any lock held. scope
	// may be "" where it is not known.
	OnEvent func(scope string, e Event)
	// OnStore, when set, is told how long the store took for an operation:
	// claim, end, renew, get.
	OnStore func(op string, took time.Duration, err error)
	// Log is told of alarms. Default slog.Default().
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

// Event is something that is counted.
type Event string

const (
	EventClaimed     Event = "claimed"      // the first call of a key: it runs
	EventTakenOver   Event = "taken_over"   // it runs after an owner that vanished, as declared safe
	EventRetried     Event = "retried"      // it runs after a failure, as asked for
	EventReplayed    Event = "replayed"     // answered from the record
	EventWaited      Event = "waited"       // a duplicate began to wait
	EventPending     Event = "pending"      // a duplicate was answered ErrPending
	EventReused      Event = "key_reused"   // answered ErrKeyReused
	EventUnknown     Event = "unknown"      // answered ErrOutcomeUnknown
	EventReleased    Event = "released"     // it never began, and its key is free
	EventAbandoned   Event = "abandoned"    // it ended with its outcome unknown
	EventTooLarge    Event = "too_large"    // its result is kept as a digest only
	EventLate        Event = "late"         // its key has another owner: the result is dropped
	EventGone        Event = "gone"         // its record has vanished: an alarm
	EventNotRecorded Event = "not_recorded" // its outcome could not be stored: an alarm
	EventUnavailable Event = "unavailable"  // answered ErrStoreUnavailable
	EventOverloaded  Event = "overloaded"   // answered ErrOverloaded
	EventEvicted     Event = "evicted"      // a result was dropped before its time, for room
	EventFlushed     Event = "flushed"      // a record was removed by an operator
	EventUnrecorded  Event = "unrecorded"   // a Shadow call ran without a record
)

// events is the order of Keeper.counts; it is never written to.
var events = [...]Event{
	EventClaimed, EventTakenOver, EventRetried, EventReplayed, EventWaited, EventPending, EventReused,
	EventUnknown, EventReleased, EventAbandoned, EventTooLarge, EventLate, EventGone, EventNotRecorded,
	EventUnavailable, EventOverloaded, EventEvicted, EventFlushed, EventUnrecorded,
}

// OnDuplicate is what a call does while another with its key runs.
type OnDuplicate string

const (
	Wait OnDuplicate = "wait" // until its context ends, then ErrPending
	Fail OnDuplicate = "fail" // ErrPending at once
)

// Request is a call with a key.
type Request struct {
	// Scope is what the key is a key of: the name of the tool.
	Scope string
	// Key is made by CallerKey or AutoKey. At most 512 bytes, without ':',
	// braces and control characters.
	Key string
	// Label is what an operator may know the key by: the one that the caller
	// gave. It decides nothing. Of one over 128 bytes the beginning is kept, and
	// enough to tell it from others.
	Label string
	// Payload is the Digest of what is asked for. The same key with another
	// one is ErrKeyReused.
	Payload string
	// TTL is how long the key is held, from its first claim. Default
	// DefaultTTL. Parts of a millisecond are dropped.
	TTL time.Duration
	// FailedTTL is how long a failure is answered from its record, at most
	// TTL. Default 30 s; below 0, a failure is not kept.
	FailedTTL time.Duration
	// OnDuplicate is Wait when empty.
	OnDuplicate OnDuplicate
	// Rerun says that the call may run again after an owner that vanished: it
	// changes nothing, or was declared idempotent. Both the vanished call and
	// this one must have said so.
	Rerun bool
	// Retry runs a failure again that is still kept. It does not override an
	// unknown outcome, nor a failure that the request itself has waited for.
	Retry bool
	// Shadow decides and counts as ever, and then runs the call whatever was
	// decided and whatever the store's state. It never waits. Result.Event
	// says what would have been.
	Shadow bool
}

// Kind is how a call ended.
type Kind int

const (
	// OutcomeUnknown: it began and was ended by its deadline or an abort, or
	// its end cannot be told. It is the zero value: what says nothing has
	// promised nothing.
	OutcomeUnknown Kind = iota
	OutcomeCompleted
	// OutcomeFailed: it ran and failed; Result, when set, is kept for
	// Request.FailedTTL beside Failure.
	OutcomeFailed
	// OutcomeNotBegun: nothing happened. The key is free again, and one of
	// the callers that wait runs.
	OutcomeNotBegun
)

// Outcome is what a call tells about itself.
type Outcome struct {
	Kind Kind
	// Result is a JSON value, or nil. What is no JSON makes the record
	// EventTooLarge: it cannot be replayed.
	Result json.RawMessage
	// Failure is why it failed; nil otherwise.
	Failure *Failure
}

// Result is how the call of a key ended, now or before.
type Result struct {
	// Status is Completed or Failed; "" when the call has not begun, when its
	// outcome is unknown and for one without a record.
	Status Status
	// Value is the JSON that was kept, nil when there is none.
	Value   json.RawMessage
	Failure *Failure
	// FromCache says that it was not run for this request.
	FromCache bool
	// TooLarge says that there was a Value of Size bytes whose SHA-256 is
	// Digest (hexadecimal) and that it was not kept: the call is not run
	// again for it. Only with FromCache.
	TooLarge bool
	Digest   string
	Size     int
	// ExpiresAt is until when the key is held. Only with FromCache.
	ExpiresAt time.Time
	// Event is what was decided about the request: EventClaimed,
	// EventTakenOver, EventRetried, EventReplayed, and with an error or
	// Shadow those of the refusals.
	Event Event
	// Waited says that it waited for another call.
	Waited bool
	// Fence counts the claims of this key that ran, this one included; 0
	// without a record.
	Fence int64
}

// Keeper is safe for concurrent use.
type Keeper struct {
	config Config
	store  store
	counts [len(events)]atomic.Uint64

	ctx    context.Context // done when the Keeper is closed
	cancel context.CancelFunc
	wg     sync.WaitGroup // of everything that runs beside a Do
	undoes chan struct{}  // holds a token for each undo that runs

	mu      sync.Mutex
	flights map[id]*flight // of the keys that somebody here waits for; guarded by mu
	closed  bool           // guarded by mu
}

// maxUndo is how many claims of unknown fate are taken back at a time; beyond
// it they lapse.
const maxUndo = 256

// Open makes a Keeper on the store that c names:
//
//	memory          this process, while it lives
//	file            c.Dir/idempotency.db, owned by this process
//	file:PATH       the same elsewhere
//	redis://…       a Redis for several hosts; see openRedis for its parameters
//
// A Redis that does not answer is no error: calls are then answered
// ErrStoreUnavailable until it does.
func Open(ctx context.Context, c Config) (*Keeper, error) {
	c = c.withDefaults()
	k := &Keeper{config: c, flights: map[id]*flight{}, undoes: make(chan struct{}, maxUndo)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	var err error
	switch c.Store {
	case "memory":
		k.store = newMemory(c.MemoryRecords, c.MemoryBytes, func(scope string) { k.count(scope, EventEvicted) })
	case "file":
		k.store, err = openFile(filepath.Join(c.Dir, "idempotency.db"))
	default:
		if path, ok := strings.CutPrefix(c.Store, "file:"); ok {
			k.store, err = openFile(path)
			break
		}
		switch scheme, rest, _ := strings.Cut(c.Store, "://"); scheme {
		case "redis", "rediss", "unix":
			k.store, err = openRedis(ctx, c.Store, k.tell)
		default:
			if rest != "" {
				scheme += "://…" // there may be a password
			}
			err = fmt.Errorf("%.32q names no store; use memory, file, file:PATH or redis://HOST:PORT/DB", scheme)
		}
	}
	if err != nil {
		k.cancel()
		return nil, fmt.Errorf("open the idempotency store: %w", err)
	}
	return k, nil
}

// Close ends what runs beside calls, and closes the store. Calls that are
// running are not waited for: they end with ErrNotRecorded.
func (k *Keeper) Close() error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil
	}
	k.closed = true
	k.mu.Unlock()
	k.cancel()
	k.wg.Wait()
	return k.store.close()
}

// Survives is a plain statement of what the store in use keeps through a kill,
// a reboot and a failover, and what it does not. A Redis is asked each time.
func (k *Keeper) Survives(ctx context.Context) string { return k.store.survives(ctx) }

// Ping reports whether the store answers.
func (k *Keeper) Ping(ctx context.Context) error { return k.store.ping(ctx) }

// Stats is how often each Event has been, since the Keeper was opened.
func (k *Keeper) Stats() map[Event]uint64 {
	m := make(map[Event]uint64, len(events))
	for i, e := range events {
		m[e] = k.counts[i].Load()
	}
	return m
}

func (k *Keeper) count(scope string, e Event) {
	for i := range events {
		if events[i] == e {
			k.counts[i].Add(1)
		}
	}
	if k.config.OnEvent != nil {
		k.config.OnEvent(scope, e)
	}
}

// timed tells OnStore about an operation.
func (k *Keeper) timed(op string, start time.Time, err error) {
	if k.config.OnStore != nil {
		k.config.OnStore(op, time.Since(start), err)
	}
}

// Do runs the call of r unless its key says otherwise, in the goroutine that
// calls it. The context that run gets is ctx; whether a call that has begun
// goes on after its caller has gone is for run to decide. Whatever ctx does,
// the outcome that run returns is stored, for as long as a lease if it must.
// A run that panics has an unknown outcome, and the panic goes on.
//
// Without an error, Result is how the call ended, now (FromCache is false) or
// before. Errors are those of this package, to be told apart with errors.Is;
// with each of them but ErrNotRecorded nothing ran. When ctx ends before
// anything is known, its error is wrapped.
func (k *Keeper) Do(ctx context.Context, r Request, run func(context.Context) Outcome) (Result, error) {
	if err := r.check(); err != nil {
		return Result{}, err
	}
	i := id{r.Scope, r.Key}
	c := claiming{
		owner: rand.Text(), payload: r.Payload, label: kept(r.Label),
		ttl: cmp.Or(r.TTL, DefaultTTL).Milliseconds(), lease: k.config.Lease.Milliseconds(),
		rerun: r.Rerun, retry: r.Retry, failedTTL: r.FailedTTL,
	}
	waited := false
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
			k.count(r.Scope, res.Event)
			res.Fence = rec.Fence
			res, err = k.own(ctx, i, c, res, run)
			if r.Shadow {
				err = nil // counted, and nobody relies on it
			}
			return res, err
		case v == verdictReplay:
			res = rec.replay(waited)
		case v == verdictUnknown:
			res.Event, err = EventUnknown, ErrOutcomeUnknown
		case v == verdictReused:
			res.Event, err = EventReused, ErrKeyReused
		case v == verdictHeld && (r.OnDuplicate == Fail || r.Shadow):
			res.Event, err = EventPending, ErrPending
		default:
			if !waited {
				waited = true
				k.count(r.Scope, EventWaited)
			}
			rec, err = k.wait(ctx, i)
			switch {
			case err != nil:
				res.Waited, res.Event = true, EventPending
				err = fmt.Errorf("%w: %w", ErrPending, err)
			case rec == nil || rec.Status == Pending || rec.Payload != r.Payload:
				continue // free, to be taken over, or another's: claim it again
			case rec.unknown():
				res.Waited, res.Event, err = true, EventUnknown, ErrOutcomeUnknown
			default:
				res = rec.replay(true)
			}
		}
		k.count(r.Scope, res.Event)
		if r.Shadow {
			k.count(r.Scope, EventUnrecorded)
			event := res.Event
			res = Result{Event: event}
			res.fill(run(ctx))
			return res, nil
		}
		return res, err
	}
}

func (r *Request) check() error {
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

func (res *Result) fill(o Outcome) {
	switch o.Kind {
	case OutcomeCompleted:
		res.Status = Completed
	case OutcomeFailed:
		res.Status = Failed
	}
	res.Value, res.Failure = o.Result, o.Failure
}

// claim asks the store once. A claim whose fate is unknown is taken back, so
// that it does not become an unknown outcome of a call that never ran.
func (k *Keeper) claim(ctx context.Context, i id, c claiming) (*record, verdict, error) {
	start := time.Now()
	rec, _, v, err := k.store.claim(ctx, i, c)
	k.timed("claim", start, err)
	if err == nil || errors.Is(err, ErrOverloaded) || errors.Is(err, errNotSent) {
		return rec, v, err
	}
	k.mu.Lock()
	undo := !k.closed
	if undo {
		select {
		case k.undoes <- struct{}{}:
			k.wg.Add(1)
		default:
			undo = false
		}
	}
	k.mu.Unlock()
	if undo {
		go func() {
			defer k.wg.Done()
			defer func() { <-k.undoes }()
			ctx, cancel := context.WithTimeout(k.ctx, k.config.Lease)
			defer cancel()
			_, _ = k.end(ctx, i, ending{owner: c.owner, released: true}) // else it lapses
		}()
	}
	if e := ctx.Err(); e != nil && !errors.Is(err, e) {
		err = fmt.Errorf("%w: %w", err, e)
	}
	return nil, 0, err
}

// errNotSent marks an error of a claim that never left this host.
var errNotSent = errors.New("not sent")

// end asks the store until it answers or ctx ends.
func (k *Keeper) end(ctx context.Context, i id, e ending) (verdict, error) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		start := time.Now()
		v, err := k.store.end(ctx, i, e)
		k.timed("end", start, err)
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

// own runs the call of a key that c has claimed.
func (k *Keeper) own(ctx context.Context, i id, c claiming, res Result, run func(context.Context) Outcome) (Result, error) {
	stop := k.renewing(i, c, res.Fence)
	var o Outcome
	panicked := true
	defer func() {
		if panicked {
			stop()
			_ = k.finish(ctx, i, c, res.Fence, Outcome{})
		}
	}()
	o = run(ctx)
	panicked = false
	stop()
	var compact bytes.Buffer
	if json.Compact(&compact, o.Result) == nil {
		o.Result = compact.Bytes() // as every store gives it back
	}
	res.fill(o)
	return res, k.finish(ctx, i, c, res.Fence, o)
}

// finish stores how a call ended, and tells those that wait.
func (k *Keeper) finish(ctx context.Context, i id, c claiming, fence int64, o Outcome) error {
	e := ending{owner: c.owner, fence: fence, result: o.Result, err: o.Failure}
	event := Event("")
	switch o.Kind {
	case OutcomeCompleted:
		e.status = Completed
	case OutcomeFailed:
		e.status, e.keep = Failed, c.failedTTL
	case OutcomeNotBegun:
		e = ending{owner: c.owner, fence: fence, released: true}
		event = EventReleased
	default:
		e.status, e.result = Failed, nil
		e.err = &Failure{Code: CodeOutcomeUnknown, Message: "it began and did not tell how it ended"}
		event = EventAbandoned
	}
	if len(e.result) > MaxResult || e.result != nil && !json.Valid(e.result) {
		e.digest, e.size, e.result = digest(e.result), len(e.result), nil
		event = EventTooLarge
	}
	if event != "" {
		k.count(i.scope, event)
	}
	// The caller may have gone: the key still wants its end. A Keeper that is
	// closed has no store to give it to.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.config.Lease)
	defer cancel()
	defer context.AfterFunc(k.ctx, cancel)()
	v, err := k.end(ctx, i, e)
	k.tell(i)
	switch {
	case err != nil:
		k.count(i.scope, EventNotRecorded)
		k.config.Log.Error("the outcome of a call was not recorded", "scope", i.scope, "key", i.key, "error", err)
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	case v == verdictLate:
		k.count(i.scope, EventLate)
		k.config.Log.Warn("the outcome of a call came late and was dropped", "scope", i.scope, "key", i.key, "fence", fence)
		return fmt.Errorf("%w: its key has another owner or was settled", ErrNotRecorded)
	case v == verdictGone:
		k.gone(i)
		return fmt.Errorf("%w: its record has vanished", ErrNotRecorded)
	}
	return nil
}

func (k *Keeper) gone(i id) {
	k.count(i.scope, EventGone)
	k.config.Log.Error("the record of a running call has vanished; its key may run again", "scope", i.scope, "key", i.key)
}

// renewing keeps the lease of a call until stop is called. It costs a timer;
// only a call that outlives a third of its lease costs more.
func (k *Keeper) renewing(i id, c claiming, fence int64) (stop func()) {
	var (
		mu      sync.Mutex
		stopped bool        // guarded by mu
		t       *time.Timer // guarded by mu
	)
	every := k.config.Lease / 3
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(every, func() {
		k.mu.Lock()
		if k.closed {
			k.mu.Unlock()
			return
		}
		k.wg.Add(1)
		k.mu.Unlock()
		defer k.wg.Done()
		ctx, cancel := context.WithTimeout(k.ctx, every)
		start := time.Now()
		v, err := k.store.renew(ctx, i, c.owner, fence, c.lease)
		cancel()
		k.timed("renew", start, err)
		mu.Lock()
		if stopped {
			mu.Unlock()
			return
		}
		// An error is not the end: the lease is three times as long, and as
		// long as nobody has settled the record a late renewal holds.
		if err != nil || v == verdictDone {
			t.Reset(every)
			mu.Unlock()
			return
		}
		mu.Unlock()
		// Whoever owns it now, finish will see it too and count it there.
		k.config.Log.Warn("the lease of a running call could not be renewed", "scope", i.scope, "key", i.key, "fence", fence, "gone", v == verdictGone)
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		t.Stop()
	}
}
