package idempotency

import (
	"cmp"
	"encoding/json"
	"time"
)

// Status is the state of a record's call.
type Status string

const (
	Pending   Status = "PENDING"   // running, or its lease expired and it was not settled yet
	Completed Status = "COMPLETED" // succeeded
	Failed    Status = "FAILED"    // failed, or its outcome is unknown
)

// Failure is why a record is FAILED.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
}

// CodeOutcomeUnknown is the code of a record whose call began and did not report
// its outcome.
const CodeOutcomeUnknown = "OUTCOME_UNKNOWN"

// CodeUnreadable is the code that List shows for a damaged record. Calls with
// its key are refused until it is flushed.
const CodeUnreadable = "UNREADABLE"

// keepFailed is how long a failure is replayed: long enough to break a tight
// loop, short enough not to block a fixed call.
const keepFailed = 30 * time.Second

// record is what the stores hold. Times are milliseconds since 1970 by the
// store's clock. The functions of this file do not modify their arguments.
type record struct {
	Status    Status          `json:"status"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *Failure        `json:"error,omitempty"`
	ExpiresAt int64           `json:"expiresAt"`

	Owner      string `json:"owner"` // nonce of the last claim that ran
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
	// Note is what the owner wrote down before its call ran; see Request.Note.
	Note json.RawMessage `json:"note,omitempty"`
}

func (r *record) outcomeUnknown() bool {
	return r.Status == Failed && r.Error != nil && r.Error.Code == CodeOutcomeUnknown
}

// lapsed reports whether the lease of a PENDING record has expired.
func (r *record) lapsed(now int64) bool { return r.Status == Pending && r.LeaseUntil <= now }

// live returns r, or nil if it has expired.
func (r *record) live(now int64) *record {
	if r == nil || r.ExpiresAt <= now {
		return nil
	}
	return r
}

// settled returns r as readers must see it: with an unknown outcome if its lease
// has expired and it must not be rerun.
func (r *record) settled(now int64) *record {
	if !r.lapsed(now) || r.Rerun {
		return r
	}
	next := *r
	next.Status = Failed
	next.Error = lapsedFailure()
	next.EndedAt = now
	// ExpiresAt stays: that of a PENDING record is its lease plus its TTL.
	return &next
}

func lapsedFailure() *Failure {
	return &Failure{Code: CodeOutcomeUnknown, Message: "the owner was not heard of again"}
}

// Messages of an unknown outcome that the owner reported itself. Only with the
// first one nothing of the call runs on the owner's host any longer.
const (
	messageReported = "the call began and did not report its outcome"
	messageLingers  = "the call began and did not report its outcome, and something of it may still run"
)

// verdict is the store's decision on a claim, completion or renewal.
type verdict int

const (
	verdictRun      verdict = iota + 1 // the claimer owns the key
	verdictTakeOver                    // the claimer owns the key, after an expired owner
	verdictRetry                       // the claimer owns the key, after a failure
	verdictHeld                        // another owner's call is running
	verdictReplay                      // the call has ended: replay the record
	verdictUnknown                     // the call has an unknown outcome
	verdictReused                      // the key was claimed for another payload

	verdictDone // stored, or was already
	verdictLate // another owner has the key: the completion is dropped
	verdictGone // there is no record
)

// claimRequest are the parameters of a claim.
type claimRequest struct {
	owner     string
	payload   string
	label     string
	ttl       int64 // milliseconds, as is lease
	lease     int64
	note      json.RawMessage // of a call that was claimed and has not begun
	rerun     bool            // safe to rerun after an expired owner
	retry     bool            // run a stored failure again
	failedTTL time.Duration   // for the completion: see completion.failedTTL
}

// claim decides on a claim of old, nil for no record. It returns the record to
// store, nil for no change, and the verdict.
//
// scripts/claim.lua is the same in Lua; TestScriptsAgree compares the two.
func claim(old *record, c claimRequest, now int64) (*record, verdict) {
	fresh := &record{
		Status: Pending, Owner: c.owner, Fence: 1, Payload: c.payload, ClaimedAt: now,
		LeaseUntil: now + c.lease, TTL: c.ttl, Rerun: c.rerun, Label: c.label, Note: c.note,
		ExpiresAt: now + c.lease + c.ttl,
	}
	old = old.live(now)
	switch {
	case old == nil:
		return fresh, verdictRun
	case old.Payload != c.payload:
		return nil, verdictReused
	case old.Status == Pending && old.Owner == c.owner:
		return nil, verdictRun // a repeated claim whose reply was lost
	case old.Status == Pending && !old.lapsed(now):
		return nil, verdictHeld
	case old.Status == Pending && old.Rerun && c.rerun:
		fresh.Fence = old.Fence + 1
		fresh.ClaimedAt = old.ClaimedAt
		return fresh, verdictTakeOver
	case old.Status == Pending:
		must := *old
		must.Rerun = false // safe only if both claims declare it
		return must.settled(now), verdictUnknown
	case old.outcomeUnknown():
		return nil, verdictUnknown
	case old.Status == Failed && c.retry && old.Owner != c.owner:
		fresh.Fence = old.Fence + 1
		return fresh, verdictRetry
	default:
		return nil, verdictReplay
	}
}

// completion are the parameters of completing or releasing a claim.
type completion struct {
	owner     string
	fence     int64 // 0 in a release: any fence of the owner
	released  bool  // the call did not begin: remove the record
	status    Status
	result    json.RawMessage
	err       *Failure
	digest    string
	size      int
	failedTTL time.Duration // how long a failure is kept; 0: keepFailed, below 0: not at all
}

// failedTTLMillis returns how long a failure is kept, in milliseconds.
func (e completion) failedTTLMillis() int64 {
	return max(cmp.Or(e.failedTTL, keepFailed), 0).Milliseconds()
}

// complete decides on a completion of old. It returns the record to store, nil
// for no change, or drop to remove the record.
//
// scripts/complete.lua is the same in Lua.
func complete(old *record, e completion, now int64) (next *record, drop bool, v verdict) {
	old = old.live(now)
	switch {
	case old == nil && e.released:
		return nil, false, verdictDone
	case old == nil:
		return nil, false, verdictGone
	case old.Owner != e.owner, old.Fence != e.fence && !(e.released && e.fence == 0):
		return nil, false, verdictLate
	case old.Status != Pending && (old.outcomeUnknown() || e.released):
		// Settled after the lease expired, and perhaps already reported to
		// others. The owner's own report of an unknown outcome agrees with it.
		if e.err != nil && e.err.Code == CodeOutcomeUnknown {
			return nil, false, verdictDone
		}
		return nil, false, verdictLate
	case old.Status != Pending:
		return nil, false, verdictDone // a repeated completion whose reply was lost
	case e.released:
		return nil, true, verdictDone
	}
	r := *old
	r.Status, r.Result, r.Error, r.Digest, r.Size = e.status, e.result, e.err, e.digest, e.size
	r.EndedAt, r.LeaseUntil = now, 0
	short := min(e.failedTTLMillis(), r.TTL)
	if !r.outcomeUnknown() {
		r.Note = nil // it is for finding an outcome out
	}
	switch {
	case r.outcomeUnknown():
		r.ExpiresAt = now + r.TTL
	case r.Status == Failed:
		r.ExpiresAt = now + short
	default:
		// The TTL counts from the first claim, but callers that waited for a
		// long call must still find the record.
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

// annotate decides on the note of a call that its owner is about to run.
//
// scripts/note.lua is the same in Lua.
func annotate(old *record, owner string, fence int64, note json.RawMessage, now int64) (*record, verdict) {
	old = old.live(now)
	switch {
	case old == nil:
		return nil, verdictGone
	case old.Owner != owner || old.Fence != fence || old.Status != Pending:
		return nil, verdictLate
	}
	r := *old
	r.Note = note
	return &r, verdictDone
}

// resolution are the parameters of resolving an unknown outcome.
type resolution struct {
	// owner and fence are those of the record that was looked into: of any other
	// nothing was found out.
	owner string
	fence int64
	// done keeps result, or digest and size where it is too large; otherwise the
	// record is removed, and the next claim runs.
	done   bool
	result json.RawMessage
	digest string
	size   int
}

// resolve decides on what was found out of old, whose outcome is unknown. Of
// several that found something out, one is verdictDone.
//
// scripts/resolve.lua is the same in Lua.
func resolve(old *record, x resolution, now int64) (next *record, drop bool, v verdict) {
	old = old.live(now)
	if old == nil {
		return nil, false, verdictGone
	}
	r := *old.settled(now)
	switch {
	case r.Owner != x.owner || r.Fence != x.fence || !r.outcomeUnknown():
		return nil, false, verdictLate
	case !x.done:
		return nil, true, verdictDone
	}
	r.Status, r.Error, r.Result, r.Digest, r.Size, r.Note = Completed, nil, x.result, x.digest, x.size, nil
	r.EndedAt, r.LeaseUntil = now, 0
	r.ExpiresAt = max(r.ClaimedAt+r.TTL, now+min(keepFailed.Milliseconds(), r.TTL))
	return &r, false, verdictDone
}

// flushable reports whether an operator may remove r: not while its call runs,
// since the key could then run concurrently.
func flushable(r *record, now int64) bool { return r.Status != Pending || r.lapsed(now) }
