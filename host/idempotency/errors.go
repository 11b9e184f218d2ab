package idempotency

import "errors"

var (
	// ErrPending: a call with this key is still running. If the caller's
	// context ended during the wait, its cause is wrapped too.
	ErrPending = errors.New("a call with this idempotency key is still running")
	// ErrKeyReused: the key was claimed for another payload.
	ErrKeyReused = errors.New("the idempotency key was used with another payload")
	// ErrOutcomeUnknown: the call of this key began, and its outcome is
	// unknown. Check what it did, then flush the key or use another.
	ErrOutcomeUnknown = errors.New("a call with this idempotency key began, and its outcome is unknown")
	// ErrStoreUnavailable: nothing ran, since no record could be written.
	ErrStoreUnavailable = errors.New("the idempotency store is not available")
	// ErrOverloaded: nothing ran, since the store is full of running calls.
	ErrOverloaded = errors.New("the idempotency store is full of running calls")
	// ErrNotRecorded comes with a valid Result: the call ran, but its record
	// could not be completed. The next use of its key returns
	// ErrOutcomeUnknown, or runs again if the record had disappeared
	// (EventGone) or the call was declared safe to rerun.
	ErrNotRecorded = errors.New("the call ran, and its outcome could not be recorded")
	// ErrRequest: the Request itself is wrong.
	ErrRequest = errors.New("not an idempotency request")
)

// ErrNoSuchRecord: there is no record of that key with an unknown outcome.
var ErrNoSuchRecord = errors.New("no record of this key has an unknown outcome")

// errNotSent marks the error of a claim that was not sent to the store.
var errNotSent = errors.New("not sent")
