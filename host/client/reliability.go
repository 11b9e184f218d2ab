package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/toold/toold/host/adminapi"
)

// Breakers returns every circuit breaker.
func (a *Admin) Breakers(ctx context.Context) ([]adminapi.BreakerStatus, error) {
	var out []adminapi.BreakerStatus
	return out, a.get(ctx, "/circuit-breakers", &out)
}

// ResetBreakers closes the breakers of a tool. The error is adminapi.ErrNotFound if
// there is no such tool.
func (a *Admin) ResetBreakers(ctx context.Context, tool string) (*adminapi.ResetBreakers, error) {
	out := new(adminapi.ResetBreakers)
	return out, a.do(ctx, http.MethodPost, "/circuit-breakers/"+url.PathEscape(tool)+"/reset", nil, out)
}

// Records returns the idempotency records of a tool, at most limit if it is above
// 0, or, with a key, those of that key, as sent by a caller or as stored.
func (a *Admin) Records(ctx context.Context, tool, key string, limit int) ([]adminapi.IdempotencyRecord, error) {
	q := url.Values{"tool": {tool}, "key": {key}, "limit": {strconv.Itoa(limit)}}
	var out []adminapi.IdempotencyRecord
	return out, a.get(ctx, "/idempotency?"+q.Encode(), &out)
}

// FlushRecords removes the records of a key, or with an empty one all of a tool,
// except those of running calls.
func (a *Admin) FlushRecords(ctx context.Context, tool, key string) (*adminapi.FlushedRecords, error) {
	q := url.Values{"tool": {tool}, "key": {key}}
	out := new(adminapi.FlushedRecords)
	return out, a.do(ctx, http.MethodDelete, "/idempotency?"+q.Encode(), nil, out)
}

// ReconcileRecords has the tool determine how the calls of a key ended whose outcome is unknown.
func (a *Admin) ReconcileRecords(ctx context.Context, tool, key string) (*adminapi.ReconciledRecords, error) {
	q := url.Values{"tool": {tool}, "key": {key}}
	out := new(adminapi.ReconciledRecords)
	return out, a.do(ctx, http.MethodPost, "/idempotency/reconcile?"+q.Encode(), nil, out)
}

// Reliability returns the status of the reliability layer.
func (a *Admin) Reliability(ctx context.Context) (*adminapi.ReliabilityStatus, error) {
	out := new(adminapi.ReliabilityStatus)
	return out, a.get(ctx, "/reliability", out)
}
