package idempotency

import (
	"context"
	"encoding/json"
	"time"
)

// id names a record.
type id struct{ scope, key string }

// String returns the record's name in every store. It has no braces: they would
// pin a whole scope to one slot of a Redis Cluster.
func (i id) String() string { return "idemp:" + i.scope + ":" + i.key }

// Bounds of what a store holds of a call, in bytes.
const (
	// MaxResult is the largest result that is stored, as compact JSON.
	MaxResult = 64 << 10
	// maxNote is the longest note.
	maxNote = 64 << 10
	// maxLabel is the longest label.
	maxLabel = 128
)

// store holds records and applies the functions of machine.go to one at a time,
// atomically and by its own clock. Errors wrap ErrStoreUnavailable,
// ErrOverloaded or the context's error.
type store interface {
	// claim returns the record after the claim. left is the rest of a PENDING
	// record's lease.
	claim(ctx context.Context, i id, c claimRequest) (r *record, left time.Duration, v verdict, err error)
	// complete and renew return verdictDone, verdictLate or verdictGone.
	complete(ctx context.Context, i id, e completion) (verdict, error)
	renew(ctx context.Context, i id, owner string, fence, lease int64) (verdict, error)
	// annotate and resolve return the same verdicts; resolve verdictDone to one
	// of several.
	annotate(ctx context.Context, i id, owner string, fence int64, note json.RawMessage) (verdict, error)
	resolve(ctx context.Context, i id, x resolution) (verdict, error)
	// get returns the settled record, nil if there is none.
	get(ctx context.Context, i id) (r *record, left time.Duration, err error)
	// list calls f with every settled record of a scope, in no order, until f
	// returns false. Records created or removed meanwhile may be missed.
	list(ctx context.Context, scope string, f func(key string, r *record) bool) error
	// flush removes one record if it is flushable.
	flush(ctx context.Context, i id) (found, flushed bool, err error)
	// subscribe delivers completions of other processes, from when it returns
	// until the store is closed. A store that only this process writes to does
	// nothing.
	subscribe(ctx context.Context) error
	// ping reports whether the store answers.
	ping(ctx context.Context) error
	// survives describes which failures the store's records survive.
	survives(ctx context.Context) string
	close() error
}
