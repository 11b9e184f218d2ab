package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/record"
	"github.com/toold/toold/host/wire"
)

// recorder writes the audit records of calls.
type recorder struct {
	log    *audit.Log // nil: none
	config func() *config.Config
	mask   record.Masker
	// last is the configuration that was last logged.
	last atomic.Pointer[digested]
}

// begin writes and syncs the record that d is about to run, if that may change something. The error is
// STORE_UNAVAILABLE, or why ctx ended.
func (w *recorder) begin(ctx context.Context, d *call.Decided, acc *account) error {
	if !d.Class.Mutating || !w.log.On() {
		return nil
	}
	s := w.draft(&d.Request, &d.Pinned, d, acc.caller)
	s.Verdict = record.Verdict{Effect: audit.EffectAllow, Replaces: acc.begin, Approval: acc.approval}
	size, begin := s.Record(func(c *audit.Call) *audit.Record {
		return &audit.Record{At: s.At, Type: audit.TypeBegin, Call: c}
	})
	n, err := w.log.AddSync(ctx, size, begin)
	if err != nil && ctx.Err() != nil {
		return err
	}
	if err != nil {
		return &fault.Error{Code: fault.StoreUnavailable, Cause: err, Message: "the audit log cannot be written, so a call that changes something is not begun; " +
			"ask the operator to check the disk space and the folder audit in the daemon's state (toold's log says why), or turn it off with audit.mode in toold.json"}
	}
	acc.begin = n
	return nil
}

// end records the outcome of a call.
func (w *recorder) end(q *call.Request, acc *account, res *wire.Result) {
	if !w.log.On() {
		return
	}
	in, out, attempts, programs := acc.execution.Spent()
	end := &audit.End{
		Begin: acc.begin, Status: res.Status(), ExitCode: res.ExitCode, Ran: res.Ran, Attempts: attempts,
		DurationMS: res.Duration.Milliseconds(), BytesIn: in, BytesOut: out + int64(len(res.Data)),
		FromCache: res.FromCache, Truncated: res.Truncated, Found: acc.found,
	}
	if res.FromCache {
		end.BytesOut = int64(size(res))
	}
	for _, x := range programs {
		end.Programs = append(end.Programs, audit.Program{Path: x.Path, Refused: x.Refused, Times: x.Times})
	}
	for _, c := range acc.execution.Connections() {
		end.Connections = append(end.Connections, audit.Connection{Host: c.Host, On: c.On, Rule: c.Rule, Refused: c.Refused, Failed: c.Failed, Sent: c.Sent, Received: c.Received, Times: c.Times})
	}
	s := w.draft(q, acc.pinned, acc.decided, acc.caller)
	message, toolCode := "", ""
	if e := res.Err; e != nil {
		end.Code, message, toolCode = string(e.Code), e.Message, e.ToolCode
	}
	s.Verdict = acc.verdict(res.Err)
	finish := func(r *audit.Record) *audit.Record {
		end.Message, _ = s.Text(message, record.MaxMessage)
		end.ToolCode, _ = s.Text(toolCode, record.MaxSaid)
		for i := range end.Programs {
			end.Programs[i].Path, _ = s.Text(end.Programs[i].Path, record.MaxArg)
		}
		for i := range end.Connections {
			c := &end.Connections[i]
			c.Host, _ = s.Text(c.Host, record.MaxArg)
			c.On, _ = s.Text(c.On, record.MaxArg)
			c.Rule, _ = s.Text(c.Rule, record.MaxSaid)
			c.Refused, _ = s.Text(c.Refused, record.MaxArg)
			c.Failed, _ = s.Text(c.Failed, record.MaxArg)
		}
		r.At, r.Type, r.End = s.At, audit.TypeEnd, end
		return r
	}
	if acc.begin != 0 { // which has the rest
		end.Execution = q.ExecutionID
		w.log.Add(1<<10, func() *audit.Record { return finish(&audit.Record{}) })
		return
	}
	w.log.Add(s.Record(func(c *audit.Call) *audit.Record { return finish(&audit.Record{Call: c}) }))
}

// draft returns the draft of a call's record.
func (w *recorder) draft(q *call.Request, pinned *call.Pinned, d *call.Decided, caller identity.Caller) *record.Draft {
	return record.New(q, pinned, d, caller, w.configDigest(), w.mask)
}

// digested is a configuration and its digest.
type digested struct {
	of  *config.Config
	sum string
}

// configDigest is that of the configuration in force. The log is told of it when it is
// another than before.
func (w *recorder) configDigest() string {
	now := w.config()
	was := w.last.Load()
	if was != nil && was.of == now {
		return was.sum
	}
	text, err := now.Public()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	next := &digested{now, hex.EncodeToString(sum[:])}
	if w.last.CompareAndSwap(was, next) {
		w.log.Add(len(text), func() *audit.Record {
			return &audit.Record{At: time.Now(), Type: audit.TypeConfig, Config: &audit.Config{Digest: next.sum, File: now.File, Values: text}}
		})
	}
	return next.sum
}
