// Package idempotency runs what has a key at most once, or says that nobody
// knows how it ended.
//
// A Keeper holds one record a key. The first call of a key claims it and runs;
// its record is PENDING until the call has ended, and COMPLETED or FAILED
// then. A duplicate waits for the first, or is refused, or is answered with
// the first one's result; it never runs beside it.
//
//	           claim                complete(owner, fence)
//	(none) ------------> PENDING ---------------------------> COMPLETED | FAILED
//	   ^                   |  lease passed, re-run declared safe: taken over with a higher fence
//	   | release: nothing  |  lease passed, otherwise:            FAILED (OUTCOME_UNKNOWN)
//	   +---- happened -----+
//
// # What is promised
//
// At most once, or ErrOutcomeUnknown, for as long as the store keeps the
// record: an owner that died, timed out or was aborted after it had begun
// leaves a key that answers ErrOutcomeUnknown for its whole time to live,
// unless the call was declared safe to run again. What each store survives
// differs; Keeper.Survives says it of the one in use, in plain words. A record
// that has vanished from under a running call is an alarm (EventGone) and is
// never made again.
//
// # What is not promised
//
// Exactly once. A call whose outcome is unknown may have done all of its work,
// some, or none; somebody has to look. Nor that a result comes back: one over
// MaxResult bytes is kept as a digest only, and its duplicates are told so
// rather than run.
//
// Three stores hold records: memory, a file (bbolt) that one process owns, and
// Redis for several hosts. They pass one conformance suite. Only the store's
// clock counts: leases of a Redis store are measured by Redis.
//
// The package knows nothing of tools, sockets or Wasm and can be used alone. A
// scope is any name without ':', '{', '}' or control characters; toold uses the
// name of the tool. Keys are made by CallerKey and AutoKey, so that no caller
// can be answered with the result of another.
package idempotency
