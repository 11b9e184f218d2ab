package idempotency

import (
	"sync/atomic"
	"time"
)

// Event is a counted event.
type Event string

const (
	EventClaimed     Event = "claimed"      // the first call of a key runs
	EventTakenOver   Event = "taken_over"   // a call runs after an expired owner, as declared safe
	EventRetried     Event = "retried"      // a call runs after a stored failure, as requested
	EventReplayed    Event = "replayed"     // a call got the stored result
	EventWaited      Event = "waited"       // a duplicate began to wait
	EventPending     Event = "pending"      // a duplicate got ErrPending
	EventReused      Event = "key_reused"   // a call got ErrKeyReused
	EventUnknown     Event = "unknown"      // a call got ErrOutcomeUnknown
	EventReleased    Event = "released"     // a call did not begin; its key is free
	EventAbandoned   Event = "abandoned"    // a call ended with an unknown outcome
	EventTooLarge    Event = "too_large"    // only the digest of a result was stored
	EventLate        Event = "late"         // a result was dropped: its key has another owner
	EventGone        Event = "gone"         // the record of a running call disappeared: an alarm
	EventNotRecorded Event = "not_recorded" // an outcome could not be stored: an alarm
	EventUnavailable Event = "unavailable"  // a call got ErrStoreUnavailable
	EventOverloaded  Event = "overloaded"   // a call got ErrOverloaded
	EventEvicted     Event = "evicted"      // a result was dropped early to make room
	EventFlushed     Event = "flushed"      // an operator removed a record
	EventUnrecorded  Event = "unrecorded"   // a Shadow call ran without a record

	EventFoundDone    Event = "found_done"     // an unknown outcome turned out to be a success
	EventFoundNotDone Event = "found_not_done" // a call with an unknown outcome changed nothing; its key is free
	EventFoundNothing Event = "found_nothing"  // an outcome was looked into and stays unknown
)

// events is the order of recorder.counts; it is never written to.
var events = [...]Event{
	EventClaimed, EventTakenOver, EventRetried, EventReplayed, EventWaited, EventPending, EventReused,
	EventUnknown, EventReleased, EventAbandoned, EventTooLarge, EventLate, EventGone, EventNotRecorded,
	EventUnavailable, EventOverloaded, EventEvicted, EventFlushed, EventUnrecorded,
	EventFoundDone, EventFoundNotDone, EventFoundNothing,
}

// recorder counts events and reports them, and the operations of the store, to the
// functions of the Config.
type recorder struct {
	counts  [len(events)]atomic.Uint64
	onEvent func(scope string, e Event)
	onStore func(op string, took time.Duration, err error)
}

func (r *recorder) count(scope string, e Event) {
	for i := range events {
		if events[i] == e {
			r.counts[i].Add(1)
		}
	}
	if r.onEvent != nil {
		r.onEvent(scope, e)
	}
}

// observe reports an operation of the store that began at start.
func (r *recorder) observe(op string, start time.Time, err error) {
	if r.onStore != nil {
		r.onStore(op, time.Since(start), err)
	}
}
