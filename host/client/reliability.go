package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// BreakerStatus is one circuit breaker, as GET /circuit-breakers answers it
// (an array, by tool).
type BreakerStatus struct {
	Tool string `json:"tool"`
	// Identity is the opaque name of the identity that the breaker is for;
	// empty for a tool that is the same for all.
	Identity string `json:"identity,omitempty"`
	// State is "closed", "open" or "half_open".
	State string `json:"state"`
	// Shadow says that it only watches: it refuses no call.
	Shadow bool `json:"shadow,omitempty"`
	// Row counts the failures in a row; Failed of the last Counted outcomes
	// are failures. All are 0 unless it is closed.
	Row     int `json:"row"`
	Failed  int `json:"failed"`
	Counted int `json:"counted"`
	// RetryAfterMS is how long an open one refuses yet.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// ResetBreakers is what POST /circuit-breakers/{tool}/reset answers.
type ResetBreakers struct {
	// Reset counts the breakers of the tool that are closed now.
	Reset int `json:"reset"`
}

// IdempotencyRecord is one record, as GET /idempotency?tool=&key=&limit=
// answers it (an array, those claimed last first).
type IdempotencyRecord struct {
	Tool string `json:"tool"`
	// Key is the stored one, into which the caller is folded; Label is what
	// the caller gave, empty for an automatic key.
	Key   string `json:"key"`
	Label string `json:"label,omitempty"`
	// Status is "PENDING", "COMPLETED" or "FAILED"; an unknown outcome is
	// FAILED with the code OUTCOME_UNKNOWN in Error.
	Status    string          `json:"status"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
	ExpiresAt time.Time       `json:"expiresAt"`
	ClaimedAt time.Time       `json:"claimedAt"`
	EndedAt   time.Time       `json:"endedAt,omitzero"`
	Fence     int64           `json:"fence"`
	// Digest and Size are of a result that was too large to keep.
	Digest string `json:"digest,omitempty"`
	Size   int    `json:"size,omitempty"`
}

// FlushedRecords is what DELETE /idempotency?tool=&key= answers.
type FlushedRecords struct {
	// Flushed records are gone: their keys run again. Running ones stay.
	Flushed int `json:"flushed"`
	Running int `json:"running"`
}

// ReliabilityStatus is what GET /reliability answers.
type ReliabilityStatus struct {
	// Mode is the daemon's: "off", "shadow", "read-only" or "all".
	Mode string `json:"mode"`
	// Store is the kind of the store; Survives says what it keeps through
	// which failure; StoreError why it does not answer now.
	Store      string            `json:"store"`
	Survives   string            `json:"survives"`
	StoreError string            `json:"store_error,omitempty"`
	Tools      []ToolReliability `json:"tools"`
	// Events counts what happened to records since the daemon started.
	Events map[string]uint64 `json:"events"`
}

// ToolReliability is the layer as one tool has it.
type ToolReliability struct {
	Tool string `json:"tool"`
	// Mode is in force; Own says that it is the tool's own.
	Mode string `json:"mode"`
	Own  bool   `json:"own,omitempty"`
	// Mutating is the class where the policy does not say.
	Mutating bool `json:"mutating,omitempty"`
	// Open counts the breakers of the tool that refuse calls now.
	Open int `json:"open,omitempty"`
}

// Breakers lists every circuit breaker.
func (a *Admin) Breakers(ctx context.Context) ([]BreakerStatus, error) {
	var out []BreakerStatus
	return out, a.get(ctx, "/circuit-breakers", &out)
}

// ResetBreakers closes the breakers of a tool. Its error is ErrNotFound when
// there is no such tool.
func (a *Admin) ResetBreakers(ctx context.Context, tool string) (*ResetBreakers, error) {
	out := new(ResetBreakers)
	return out, a.do(ctx, http.MethodPost, "/circuit-breakers/"+url.PathEscape(tool)+"/reset", nil, out)
}

// Records lists the idempotency records of a tool, at most limit where that is
// above 0; with a key those of that key, as a caller gave it or as it is
// stored.
func (a *Admin) Records(ctx context.Context, tool, key string, limit int) ([]IdempotencyRecord, error) {
	q := url.Values{"tool": {tool}, "key": {key}, "limit": {strconv.Itoa(limit)}}
	var out []IdempotencyRecord
	return out, a.get(ctx, "/idempotency?"+q.Encode(), &out)
}

// FlushRecords removes the records of a key, or with an empty one all of a
// tool, except those of calls that run.
func (a *Admin) FlushRecords(ctx context.Context, tool, key string) (*FlushedRecords, error) {
	q := url.Values{"tool": {tool}, "key": {key}}
	out := new(FlushedRecords)
	return out, a.do(ctx, http.MethodDelete, "/idempotency?"+q.Encode(), nil, out)
}

// Reliability describes the reliability layer.
func (a *Admin) Reliability(ctx context.Context) (*ReliabilityStatus, error) {
	out := new(ReliabilityStatus)
	return out, a.get(ctx, "/reliability", out)
}
