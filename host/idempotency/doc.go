// Package idempotency runs a call with a key at most once, or reports that its
// outcome is unknown.
//
// Records hold one record per key. The first call with a key claims it and
// runs; its record is PENDING while the call runs, then COMPLETED or FAILED. A
// duplicate waits for the first call, is refused, or gets the stored result;
// it never runs concurrently with it.
//
//	           claim                complete(owner, fence)
//	(none) ------------> PENDING ---------------------------> COMPLETED | FAILED
//	   ^                   |  lease expired, rerun declared safe: taken over with a higher fence
//	   | release: the call |  lease expired, otherwise:           FAILED (OUTCOME_UNKNOWN)
//	   +-- did not begin --+
//
// # What is promised
//
// At most once, or ErrOutcomeUnknown, for as long as the store keeps the
// record: when an owner crashes, times out or is aborted after its call began,
// the key returns ErrOutcomeUnknown until its TTL ends, unless the call was
// declared safe to rerun. What each store survives differs; Records.Survives
// describes the one in use. A record that disappears while its call runs is an
// alarm (EventGone) and is not created again.
//
// # What is not promised
//
// Exactly once. A call whose outcome is unknown may have done all of its work,
// some, or none; a person has to check. Nor is a result always replayed: of one
// over MaxResult bytes only a digest is kept, and duplicates get that instead of
// being run.
//
// Three stores hold records: memory, a file (bbolt) that one process owns, and
// Redis for several hosts. They pass one conformance suite. Leases are measured
// by the store's clock: by Redis for a Redis store.
//
// The package is independent of tools, sockets and Wasm. A scope is any name
// without ':', '{', '}' or control characters; toold uses the name of the tool.
// Keys come from CallerKey and AutoKey, so that no caller can get the result of
// another.
package idempotency
