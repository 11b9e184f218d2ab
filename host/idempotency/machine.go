package idempotency

import (
	"cmp"
	"encoding/json"
	"time"
)

// Status is what a record says of its call.
type Status string

const (
	Pending   Status = "PENDING"   // it runs, or its owner has vanished and nobody asked since
	Completed Status = "COMPLETED" // it ended well
	Failed    Status = "FAILED"    // it failed, or its outcome is unknown
)

// Failure is why a record is FAILED.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
}

// CodeOutcomeUnknown is the code of a record whose call began and never told
// how it ended.
const CodeOutcomeUnknown = "OUTCOME_UNKNOWN"

// CodeUnreadable is the code that List shows for a record that is damaged. Its
// key is refused until it is flushed.
const CodeUnreadable = "UNREADABLE"

// keepFailed is how long a failure is answered from its record: long enough to
// break a tight loop, short enough not to be in the way.
const keepFailed = 30 * time.Second

// record is what the stores hold. Times are milliseconds since 1970 by the
// clock of the store. The machine never writes to a record that it was given.
type record struct {
	Status    Status          `json:"status"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *Failure        `json:"error,omitempty"`
	ExpiresAt int64           `json:"expiresAt"`

	Owner      string `json:"owner"` // nonce of the claim that made it what it is
	Fence      int64  `json:"fence"` // counts the claims that ran
	Payload    string `json:"payload"`
	ClaimedAt  int64  `json:"claimedAt"` // by the first owner, whoever took over
	EndedAt    int64  `json:"endedAt,omitempty"`
	LeaseUntil int64  `json:"leaseUntil,omitempty"`
	TTL        int64  `json:"ttl"` // milliseconds
	Rerun      bool   `json:"rerun,omitempty"`
	Digest     string `json:"digest,omitempty"` // of a result that is too large to keep
	Size       int    `json:"size,omitempty"`   // of that result, in bytes
	Label      string `json:"label,omitempty"`
}

func (r *record) unknown() bool {
	return r.Status == Failed && r.Error != nil && r.Error.Code == CodeOutcomeUnknown
}

// lapsed reports whether the owner has not been heard of in time.
func (r *record) lapsed(now int64) bool { return r.Status == Pending && r.LeaseUntil <= now }

// live is r, or nil when it has expired.
func (r *record) live(now int64) *record {
	if r == nil || r.ExpiresAt <= now {
		return nil
	}
	return r
}

// settled is r as whoever looks has to take it: an owner that has lapsed and
// may not be followed by another leaves an unknown outcome.
func (r *record) settled(now int64) *record {
	if !r.lapsed(now) || r.Rerun {
		return r
	}
	next := *r
	next.Status = Failed
	next.Error = lapsedFailure()
	next.EndedAt = now
	// A PENDING record already expires its time to live after its lease.
	return &next
}

func lapsedFailure() *Failure {
	return &Failure{Code: CodeOutcomeUnknown, Message: "the owner was not heard of again"}
}

// verdict is what the store makes of a claim or of an ending.
type verdict int

const (
	verdictRun      verdict = iota + 1 // the claimer owns the key now
	verdictTakeOver                    // so it does, after an owner that has lapsed
	verdictRetry                       // so it does, after a failure
	verdictHeld                        // somebody else runs
	verdictReplay                      // it has ended: the record is the answer
	verdictUnknown                     // it has ended, nobody knows how
	verdictReused                      // the key was claimed for another payload

	verdictDone // the ending is stored, or was already
	verdictLate // somebody else owns the key: the ending is dropped
	verdictGone // there is no record
)

// claiming is what a claim says of itself.
type claiming struct {
	owner     string
	payload   string
	label     string
	ttl       int64 // milliseconds, as is lease
	lease     int64
	rerun     bool          // another run after an owner that vanished is safe
	retry     bool          // a failure is to be run again
	failedTTL time.Duration // for the ending: see ending.keep
}

// claim decides on a claim of old, which is nil when there is no record. It
// returns the record to be stored, nil when nothing changes, and the verdict.
//
// scripts/claim.lua is the same in Lua; TestScriptsAgree compares the two.
func claim(old *record, c claiming, now int64) (*record, verdict) {
	fresh := &record{
		Status: Pending, Owner: c.owner, Fence: 1, Payload: c.payload, ClaimedAt: now,
		LeaseUntil: now + c.lease, TTL: c.ttl, Rerun: c.rerun, Label: c.label,
		ExpiresAt: now + c.lease + c.ttl,
	}
	old = old.live(now)
	switch {
	case old == nil:
		return fresh, verdictRun
	case old.Payload != c.payload:
		return nil, verdictReused
	case old.Status == Pending && old.Owner == c.owner:
		return nil, verdictRun // the reply was lost, and the claim came again
	case old.Status == Pending && !old.lapsed(now):
		return nil, verdictHeld
	case old.Status == Pending && old.Rerun && c.rerun:
		fresh.Fence = old.Fence + 1
		fresh.ClaimedAt = old.ClaimedAt
		return fresh, verdictTakeOver
	case old.Status == Pending:
		must := *old
		must.Rerun = false // both have to say that it is safe
		return must.settled(now), verdictUnknown
	case old.unknown():
		return nil, verdictUnknown
	case old.Status == Failed && c.retry && old.Owner != c.owner:
		fresh.Fence = old.Fence + 1
		return fresh, verdictRetry
	default:
		return nil, verdictReplay
	}
}

// ending is how an owner's call ended.
type ending struct {
	owner    string
	fence    int64 // 0 in a release: whichever fence the owner has
	released bool  // nothing happened: the record goes
	status   Status
	result   json.RawMessage
	err      *Failure
	digest   string
	size     int
	keep     time.Duration // how long a failure is kept; 0: keepFailed, below 0: not at all
}

// short is how long a failure is kept, in milliseconds.
func (e ending) short() int64 { return max(cmp.Or(e.keep, keepFailed), 0).Milliseconds() }

// end decides on an ending of old. It returns the record to be stored, nil when
// nothing changes or, with drop, the record is to be removed.
//
// scripts/end.lua is the same in Lua.
func end(old *record, e ending, now int64) (next *record, drop bool, v verdict) {
	old = old.live(now)
	switch {
	case old == nil && e.released:
		return nil, false, verdictDone
	case old == nil:
		return nil, false, verdictGone
	case old.Owner != e.owner, old.Fence != e.fence && !(e.released && e.fence == 0):
		return nil, false, verdictLate
	case old.Status != Pending && (old.unknown() || e.released):
		// Settled by somebody while the owner was away, who may have told
		// others so. The owner's own report of an unknown outcome is no news.
		if e.err != nil && e.err.Code == CodeOutcomeUnknown {
			return nil, false, verdictDone
		}
		return nil, false, verdictLate
	case old.Status != Pending:
		return nil, false, verdictDone // the reply was lost, and the ending came again
	case e.released:
		return nil, true, verdictDone
	}
	r := *old
	r.Status, r.Result, r.Error, r.Digest, r.Size = e.status, e.result, e.err, e.digest, e.size
	r.EndedAt, r.LeaseUntil = now, 0
	short := min(e.short(), r.TTL)
	switch {
	case r.unknown():
		r.ExpiresAt = now + r.TTL
	case r.Status == Failed:
		r.ExpiresAt = now + short
	default:
		// From the first claim, but never so soon that those who waited for
		// a long call find nothing.
		r.ExpiresAt = max(r.ClaimedAt+r.TTL, now+short)
	}
	return &r, false, verdictDone
}

// renew decides on a renewal of the lease of old.
//
// scripts/renew.lua is the same in Lua.
func renew(old *record, owner string, fence, lease, now int64) (*record, verdict) {
	old = old.live(now)
	switch {
	case old == nil:
		return nil, verdictGone
	case old.Owner != owner || old.Fence != fence || old.Status != Pending:
		return nil, verdictLate
	}
	r := *old
	r.LeaseUntil = now + lease
	r.ExpiresAt = r.LeaseUntil + r.TTL
	return &r, verdictDone
}

// A running call is never flushed, since its key would be run beside it; one
// whose owner has lapsed is.
func flushable(r *record, now int64) bool { return r.Status != Pending || r.lapsed(now) }
