package idempotency

import (
	"context"
	"time"
)

// id names a record.
type id struct{ scope, key string }

// String is the name in every store. It has no braces: they would pin a whole
// scope to one slot of a Redis Cluster.
func (i id) String() string { return "idemp:" + i.scope + ":" + i.key }

// store holds records and applies the machine to one at a time, atomically and
// by its own clock. Errors are ErrStoreUnavailable and ErrOverloaded, wrapped,
// and those of the context.
type store interface {
	// claim returns the record after the claim. left is how long the lease of
	// a PENDING one lasts.
	claim(ctx context.Context, i id, c claiming) (r *record, left time.Duration, v verdict, err error)
	// end is verdictDone, verdictLate or verdictGone, as is renew.
	end(ctx context.Context, i id, e ending) (verdict, error)
	renew(ctx context.Context, i id, owner string, fence, lease int64) (verdict, error)
	// get is nil when there is no record. The record is settled.
	get(ctx context.Context, i id) (r *record, left time.Duration, err error)
	// list calls f with every record of a scope, settled, in no order, until
	// it returns false. Records that come or go meanwhile may be missed.
	list(ctx context.Context, scope string, f func(key string, r *record) bool) error
	// flush removes one record if flushable lets it.
	flush(ctx context.Context, i id) (found, flushed bool, err error)
	// watch makes sure that ends outside of this process are told from when it
	// returns until the store is closed. A store that only this process writes
	// to has nothing to tell.
	watch(ctx context.Context) error
	// ping reports whether the store answers.
	ping(ctx context.Context) error
	// survives says what is lost when, and what is not.
	survives(ctx context.Context) string
	close() error
}
