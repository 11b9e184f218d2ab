package reliability

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/wire"
)

// recordRequest returns the request of a call to the store of records; nil if it has
// no key and gets none.
func recordRequest(d *call.Decided) (*idempotency.Request, error) {
	limits := &d.Tool.Def.Reliability
	r := &idempotency.Request{
		Scope:       recordScope(d),
		Label:       d.Key,
		TTL:         limits.TTL.Duration(),
		FailedTTL:   limits.FailedTTL.Duration(),
		OnDuplicate: idempotency.OnDuplicate(limits.OnDuplicate),
		Rerun:       d.Class.Repeatable(),
		Retry:       d.Retry,
		Shadow:      d.Mode == call.Shadow,
	}
	if d.By.Waits() {
		// The call that runs with this key may itself wait for the call that waits
		// for this one.
		r.OnDuplicate = idempotency.Fail
	}
	if r.FailedTTL == 0 {
		r.FailedTTL = -1 // as tool.json says; the default differs
	}
	payload, err := asked(&d.Pinned)
	if err != nil {
		return nil, err
	}
	switch {
	case d.Key != "":
		r.Key, err = idempotency.CallerKey(r.Scope, d.Key, d.Caller.ID)
	case getsKey(d):
		r.TTL = idempotency.AutoTTL
		r.Key, err = idempotency.AutoKey(r.Scope, payload, d.Caller.ID)
	default:
		return nil, nil
	}
	if err == nil {
		r.Payload, err = idempotency.Digest(payload)
	}
	var bad *idempotency.PayloadError
	switch {
	case errors.Is(err, idempotency.ErrNoCaller):
		return nil, fault.Errorf(fault.Unauthenticated, "a call with an idempotency key has to come from somebody")
	case errors.As(err, &bad):
		return nil, fault.Errorf(fault.InvalidPayload, "the payload cannot be told from others, which a call with an idempotency key needs: %s", bad.Reason)
	}
	return r, err
}

// asked returns the whole request as JSON: the payload, with everything that was sent
// besides. It uses the call as it was before any policy decided, so that a request is
// the same after a policy was swapped.
func asked(p *call.Pinned) ([]byte, error) {
	beside := struct {
		Payload json.RawMessage   `json:"payload"`
		Env     map[string]string `json:"env,omitempty"`
		Stdin   []byte            `json:"stdin,omitempty"`
		Cwd     string            `json:"cwd,omitempty"`
	}{Payload: p.Payload, Env: p.Env}
	if p.HasPayload() { // the payload of a plain command has both
		beside.Stdin = p.Stdin
		if p.Kind == session.KindTurn { // its folder is the session's
			beside.Cwd = p.Cwd
		}
	}
	if p.Call.Cwd == "" || p.Text != nil { // the folder is its socket's, or in no payload
		beside.Cwd = p.Cwd
	}
	if len(beside.Env) == 0 && len(beside.Stdin) == 0 && beside.Cwd == "" {
		return p.Payload, nil
	}
	return json.Marshal(beside)
}

// recordScope returns the scope of keys: the tool, and for a module with discovered
// tools, which of them.
func recordScope(d *call.Decided) string {
	if d.Discovered != nil {
		return d.Tool.Name + "/" + d.Call.Tool
	}
	return d.Tool.Name
}

// ScopeTool returns the tool in tools.d of a record's scope, for metrics.
func ScopeTool(scope string) string {
	tool, _, _ := strings.Cut(scope, "/")
	return tool
}

// getsKey reports whether a call without a key gets one from its payload. The payload
// must be the whole request for that: the tool has a schema or enables it in its
// definition, and no input is streamed.
func getsKey(d *call.Decided) bool {
	if !d.Class.Mutating || d.Streams.Stdin != nil && d.Input.Wanted && !d.Input.Fixed && len(d.Input.Bytes) == 0 {
		return false
	}
	if auto := d.Tool.Def.Reliability.AutoKey; auto != nil {
		return *auto
	}
	if d.Discovered != nil {
		return d.Discovered.Schema != nil
	}
	return d.Tool.Schema != nil && !d.IsCommand()
}

// keptResult is the stored form of a result.
type keptResult struct {
	ExitCode int  `json:"exit_code"`
	Ran      bool `json:"ran,omitempty"`
	// Outputs are text where they are UTF-8, else base64.
	Stdout       string          `json:"stdout,omitempty"`
	StdoutBase64 []byte          `json:"stdout_base64,omitempty"`
	Stderr       string          `json:"stderr,omitempty"`
	StderrBase64 []byte          `json:"stderr_base64,omitempty"`
	Data         json.RawMessage `json:"data,omitempty"`
	Truncated    bool            `json:"truncated,omitempty"`
	MayRetry     bool            `json:"may_retry,omitempty"`
	Error        *keptError      `json:"error,omitempty"`
}

type keptError struct {
	Code     fault.Code `json:"code"`
	Message  string     `json:"message"`
	MayRetry bool       `json:"may_retry,omitempty"`
	ToolCode string     `json:"tool_code,omitempty"`
}

// keep is an outcome as a record holds it.
func keep(o *call.Outcome) json.RawMessage {
	res := o.Result
	stdout, stderr := res.Stdout, res.Stderr
	if o.Streamed != nil {
		stdout, stderr = o.Streamed[0], o.Streamed[1]
	}
	r := keptResult{ExitCode: res.ExitCode, Ran: res.Ran, Data: res.Data, Truncated: res.Truncated, MayRetry: res.MayRetry}
	text := func(b []byte, s *string, raw *[]byte) {
		if utf8.Valid(b) {
			*s = string(b)
		} else {
			*raw = b
		}
	}
	text(stdout, &r.Stdout, &r.StdoutBase64)
	text(stderr, &r.Stderr, &r.StderrBase64)
	if e := o.Err(); e != nil {
		r.Error = &keptError{e.Code, e.Message, e.MayRetry, e.ToolCode}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		// Data that is no JSON: the record is then of something that cannot
		// be given again.
		return json.RawMessage(base64.StdEncoding.EncodeToString([]byte(err.Error())))
	}
	return b.Bytes()
}

// unkeep is the outcome that a record holds.
func unkeep(ctx context.Context, kept idempotency.Result) call.Outcome {
	res := &wire.Result{FromCache: true}
	if kept.TooLarge {
		res.Err = fault.Errorf(fault.LimitExceeded,
			"the call of this idempotency key ended (%s), and its result of %d bytes (sha256 %s) is over the %d that are kept: it cannot be given again, and the call is not run again",
			kept.Status, kept.Size, kept.Digest, idempotency.MaxResult)
		return call.Outcome{Result: res}
	}
	var r keptResult
	if err := json.Unmarshal(kept.Value, &r); err != nil {
		res.Err = fault.Errorf(fault.Internal, "the record of this idempotency key cannot be read: %w", err)
		return call.Outcome{Result: res}
	}
	res.ExitCode, res.Ran, res.Data, res.Truncated, res.MayRetry = r.ExitCode, r.Ran, r.Data, r.Truncated, r.MayRetry
	res.Stdout, res.Stderr = r.StdoutBase64, r.StderrBase64
	if r.Stdout != "" {
		res.Stdout = []byte(r.Stdout)
	}
	if r.Stderr != "" {
		res.Stderr = []byte(r.Stderr)
	}
	if e := r.Error; e != nil {
		res.Err = &fault.Error{Code: e.Code, Message: e.Message, MayRetry: e.MayRetry, ToolCode: e.ToolCode}
	}
	return call.Outcome{Result: res}
}

// shadowDecision is what shadow counts of an event of a key.
func shadowDecision(e idempotency.Event) string {
	switch e {
	case idempotency.EventClaimed, idempotency.EventTakenOver, idempotency.EventRetried:
		return "" // it would have run
	}
	return string(e)
}

// refusedByRecord is the error of a call that its key kept from running.
func refusedByRecord(ctx context.Context, d *call.Decided, err error) error {
	c := context.Cause(ctx)
	switch ended := c != nil && !errors.Is(c, context.DeadlineExceeded); {
	case ended && (errors.Is(err, idempotency.ErrPending) || errors.Is(err, idempotency.ErrStoreUnavailable)):
		return c // the caller left, or the call was ended
	case errors.Is(err, idempotency.ErrPending):
		return fault.Errorf(fault.IdempotencyPending, "a call with this idempotency key is still running; ask again with the same key for its result")
	case errors.Is(err, idempotency.ErrKeyReused):
		return fault.Errorf(fault.IdempotencyKeyReused, "this idempotency key was used for another payload, so nothing ran; use one key for one request")
	case errors.Is(err, idempotency.ErrOutcomeUnknown):
		return fault.Errorf(fault.OutcomeUnknown, "a call with this idempotency key began, and nobody knows how it ended; look at what it was to change, then use a new key, or have the operator run: toolctl idempotency flush %s KEY", recordScope(d))
	case errors.Is(err, idempotency.ErrStoreUnavailable):
		return &fault.Error{Code: fault.StoreUnavailable, Message: "the store of idempotency records does not answer, so nothing ran; try again later", Cause: err}
	case errors.Is(err, idempotency.ErrOverloaded):
		return &fault.Error{Code: fault.Overloaded, Message: "the store of idempotency records is full of calls that run; try again later", Cause: err}
	}
	return err
}
