package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/breaker"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/reliability"
)

// adminReliability serves what an operator asks of breakers and records.
func (d *Daemon) adminReliability(mux *http.ServeMux) {
	mux.HandleFunc("GET /circuit-breakers", func(w http.ResponseWriter, r *http.Request) { answer(w, http.StatusOK, d.breakerStatus()) })
	mux.HandleFunc("POST /circuit-breakers/{tool}/reset", d.resetBreakers)
	mux.HandleFunc("GET /idempotency", d.listRecords)
	mux.HandleFunc("DELETE /idempotency", d.flushRecords)
	mux.HandleFunc("POST /idempotency/reconcile", d.reconcileRecords)
	mux.HandleFunc("GET /reliability", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, d.reliabilityStatus(r.Context()))
	})
}

func (d *Daemon) resetBreakers(w http.ResponseWriter, r *http.Request) {
	tool := r.PathValue("tool")
	if !d.knows(tool) {
		fail(w, http.StatusNotFound, errors.New("there is no such tool; toolctl circuit-breaker list shows the breakers that there are"))
		return
	}
	out := adminapi.ResetBreakers{Reset: d.Layer.Breakers.Reset(tool)}
	d.Log.Warn("circuit breakers reset by the operator", "tool", tool, "reset", out.Reset)
	answer(w, http.StatusOK, out)
}

func (d *Daemon) listRecords(w http.ResponseWriter, r *http.Request) {
	tool, key, ok := d.recordsAsked(w, r)
	if !ok {
		return
	}
	limit, _ := strconv.Atoi(r.FormValue("limit"))
	ctx, cancel := context.WithTimeout(r.Context(), adminStoreTime)
	defer cancel()
	var found []idempotency.Record
	var err error
	if key != "" {
		found, err = d.Layer.Records.Show(ctx, tool, key)
	} else {
		found, err = d.Layer.Records.List(ctx, tool, limit)
	}
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err)
		return
	}
	out := []adminapi.IdempotencyRecord{}
	for _, f := range found {
		out = append(out, recordStatus(&f))
	}
	answer(w, http.StatusOK, out)
}

func (d *Daemon) flushRecords(w http.ResponseWriter, r *http.Request) {
	tool, key, ok := d.recordsAsked(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), adminStoreTime)
	defer cancel()
	f, err := d.Layer.Records.Flush(ctx, tool, key)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err)
		return
	}
	d.Log.Warn("idempotency records flushed by the operator", "tool", tool, "flushed", f.Flushed, "running", f.Running)
	answer(w, http.StatusOK, adminapi.FlushedRecords{Flushed: f.Flushed, Running: f.Running})
}

func (d *Daemon) reconcileRecords(w http.ResponseWriter, r *http.Request) {
	tool, key, ok := d.recordsAsked(w, r)
	if !ok {
		return
	}
	n, found, err := d.Layer.Resolve(r.Context(), tool, key, func(uid uint32) (identity.Caller, error) { return d.Identity().Resolve("", uid) })
	switch {
	case errors.Is(err, idempotency.ErrNoSuchRecord):
		fail(w, http.StatusNotFound, err)
		return
	case err != nil:
		fail(w, http.StatusServiceUnavailable, err)
		return
	}
	out := adminapi.ReconciledRecords{Unknown: n, Found: []adminapi.ReconciledCall{}, Now: []adminapi.IdempotencyRecord{}}
	for _, f := range found {
		out.Found = append(out.Found, adminapi.ReconciledCall{Key: f.Key, Execution: f.Execution, Verdict: reliability.VerdictName(f.Verdict), Evidence: f.Evidence})
	}
	ctx, cancel := context.WithTimeout(r.Context(), adminStoreTime)
	defer cancel()
	now, err := d.Layer.Records.Show(ctx, tool, key)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err)
		return
	}
	for _, f := range now {
		out.Now = append(out.Now, recordStatus(&f))
	}
	d.Log.Warn("idempotency records looked into for the operator", "tool", tool, "unknown", n)
	answer(w, http.StatusOK, out)
}

// adminStoreTime is how long an operator waits for a store that does not
// answer.
const adminStoreTime = 10 * time.Second

// recordsAsked is the scope and the key that an operator names.
func (d *Daemon) recordsAsked(w http.ResponseWriter, r *http.Request) (tool, key string, ok bool) {
	tool, key = r.FormValue("tool"), r.FormValue("key")
	if !d.knows(reliability.ScopeTool(tool)) {
		// Records of a tool that was removed are still there to be flushed.
		if found, err := d.Layer.Records.List(r.Context(), tool, 1); err != nil || len(found) == 0 {
			fail(w, http.StatusNotFound, errors.New("there is no such tool, and no record of one; toolctl tools lists those that there are"))
			return "", "", false
		}
	}
	return tool, key, true
}

// knows reports whether there is a tool of that name.
func (d *Daemon) knows(name string) bool {
	for _, s := range d.Tools.List() {
		if s.Name == name {
			return true
		}
	}
	return false
}

func (d *Daemon) breakerStatus() []adminapi.BreakerStatus {
	out := []adminapi.BreakerStatus{}
	for _, s := range d.Layer.Breakers.List() {
		out = append(out, adminapi.BreakerStatus{
			Tool: s.Tool, Identity: s.Identity, Shadow: s.Shadow, State: string(s.State),
			Row: s.Row, Failed: s.Failed, Counted: s.Counted, RetryAfterMS: s.RetryAfter.Milliseconds(),
		})
	}
	return out
}

func recordStatus(r *idempotency.Record) adminapi.IdempotencyRecord {
	out := adminapi.IdempotencyRecord{
		Tool: r.Scope, Key: r.Key, Label: r.Label, Status: string(r.Status), Result: r.Result,
		ExpiresAt: r.ExpiresAt, ClaimedAt: r.ClaimedAt, EndedAt: r.EndedAt, Fence: r.Fence, Digest: r.Digest, Size: r.Size,
	}
	if r.Error != nil {
		out.Error, _ = json.Marshal(r.Error) // two strings
	}
	return out
}

func (d *Daemon) reliabilityStatus(ctx context.Context) *adminapi.ReliabilityStatus {
	ctx, cancel := context.WithTimeout(ctx, adminStoreTime)
	defer cancel()
	c := d.Config()
	s := &adminapi.ReliabilityStatus{
		Mode: cmp.Or(c.Reliability, config.ReliabilityOff), Store: c.StoreKind(), Survives: d.Layer.Records.Survives(ctx),
		Tools: []adminapi.ToolReliability{}, Events: map[string]uint64{},
	}
	if err := d.Layer.Records.Ping(ctx); err != nil {
		s.StoreError = err.Error()
	}
	for e, n := range d.Layer.Records.Stats() {
		s.Events[string(e)] = n
	}
	open := map[string]int{}
	for _, s := range d.Layer.Breakers.List() {
		if !s.Shadow && s.State == breaker.Open {
			open[s.Tool]++
		}
	}
	for _, t := range d.Tools.List() {
		s.Tools = append(s.Tools, adminapi.ToolReliability{
			Tool: t.Name, Mode: c.ModeOf(t.Mode), Own: t.Mode != "" && c.Reliability != config.ReliabilityOff, Mutating: t.Mutating, Open: open[t.Name],
		})
	}
	return s
}
