package idempotency

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Record is an operator's view of a key. Its JSON is {status, result?, error?,
// expiresAt} plus bookkeeping.
type Record struct {
	Scope     string          `json:"scope"`
	Key       string          `json:"key"`
	Label     string          `json:"label,omitempty"`
	Status    Status          `json:"status"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *Failure        `json:"error,omitempty"`
	ExpiresAt time.Time       `json:"expiresAt"`
	ClaimedAt time.Time       `json:"claimedAt"`
	EndedAt   time.Time       `json:"endedAt,omitzero"`
	// Fence counts the claims that ran.
	Fence int64 `json:"fence"`
	// Note is the note of a call that has not ended, or whose outcome is unknown.
	Note json.RawMessage `json:"note,omitempty"`
	// Digest and Size are of a result that was too large to keep.
	Digest string `json:"digest,omitempty"`
	Size   int    `json:"size,omitempty"`
}

func (r *record) public(scope, key string) Record {
	out := Record{
		Scope: scope, Key: key, Label: r.Label, Status: r.Status, Result: r.Result, Error: r.Error,
		ExpiresAt: time.UnixMilli(r.ExpiresAt).UTC(), ClaimedAt: time.UnixMilli(r.ClaimedAt).UTC(),
		Fence: r.Fence, Note: r.Note, Digest: r.Digest, Size: r.Size,
	}
	if r.EndedAt != 0 {
		out.EndedAt = time.UnixMilli(r.EndedAt).UTC()
	}
	return out
}

// List returns the records of a scope, newest claim first, at most limit of them
// if it is above 0. A PENDING record with an expired lease is shown settled.
func (k *Records) List(ctx context.Context, scope string, limit int) ([]Record, error) {
	return k.find(ctx, scope, "", limit)
}

// Show returns the records with a Request.Key or with a Request.Label, which
// several callers may share.
func (k *Records) Show(ctx context.Context, scope, key string) ([]Record, error) {
	return k.find(ctx, scope, key, 0)
}

// Held reports whether there is a record of r's key: r would get its result, wait for it, or be
// refused.
func (k *Records) Held(ctx context.Context, r *Request) (bool, error) {
	found, _, err := k.store.get(ctx, id{r.Scope, r.Key})
	return found != nil, err
}

func (k *Records) find(ctx context.Context, scope, key string, limit int) ([]Record, error) {
	var out []Record
	err := k.store.list(ctx, scope, func(stored string, r *record) bool {
		if key == "" || key == stored || truncateLabel(key) == r.Label {
			out = append(out, r.public(scope, stored))
		}
		return true
	})
	slices.SortFunc(out, func(a, b Record) int {
		if c := b.ClaimedAt.Compare(a.ClaimedAt); c != 0 {
			return c
		}
		return strings.Compare(a.Key, b.Key)
	})
	if limit > 0 && len(out) > limit {
		out = slices.Clip(out[:limit])
	}
	return out, err
}

// Flushed is the result of Flush.
type Flushed struct {
	// Flushed records are gone: their keys run again.
	Flushed int `json:"flushed"`
	// Running counts records of running calls, which are kept: without its
	// record a key could run concurrently.
	Running int `json:"running"`
}

// Flush removes the records that Show returns for key, or all of a scope if key
// is empty. On an error, some may already be removed.
func (k *Records) Flush(ctx context.Context, scope, key string) (Flushed, error) {
	var f Flushed
	found, err := k.find(ctx, scope, key, 0)
	if err != nil {
		return f, err
	}
	for _, r := range found {
		i := id{scope, r.Key}
		found, flushed, err := k.store.flush(ctx, i)
		switch {
		case err != nil:
			return f, err
		case flushed:
			f.Flushed++
			k.recorder.count(scope, EventFlushed)
		case found:
			f.Running++
		}
	}
	return f, nil
}

// Settle determines, now and with f, the outcome of the records that Show returns for key and
// whose outcome is unknown. It returns how many there were; Show returns their new state.
func (k *Records) Settle(ctx context.Context, scope, key string, f func(context.Context, Unknown) Finding) (n int, err error) {
	found, err := k.find(ctx, scope, key, 0)
	if err != nil {
		return 0, err
	}
	for _, r := range found {
		if r.Error == nil || r.Error.Code != CodeOutcomeUnknown {
			continue
		}
		n++
		l := k.settler.start(id{scope, r.Key}, f, true)
		if l == nil {
			return n, ErrOverloaded
		}
		select {
		case <-l.done:
		case <-ctx.Done():
			return n, context.Cause(ctx)
		}
	}
	if n == 0 {
		return 0, ErrNoSuchRecord
	}
	return n, nil
}
