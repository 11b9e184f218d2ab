package host

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/wire"
)

// maxWatched is how many records shadow keeps. They say what would have been,
// and are thrown away.
const maxWatched = 100_000

// openRecords opens the store of c, and the one by which shadow decides: two,
// so that nothing that only watched is ever answered from.
func (h *Host) openRecords(ctx context.Context, c *config.Config) (err error) {
	h.records, err = idempotency.Open(ctx, idempotency.Config{
		Store: c.Store,
		Dir:   c.State,
		Log:   h.log,
		OnEvent: func(scope string, e idempotency.Event) {
			h.metrics.Keyed(scopeTool(scope), string(e))
			switch e {
			case idempotency.EventReplayed:
				h.metrics.CacheHit(scopeTool(scope))
			case idempotency.EventAbandoned, idempotency.EventUnknown, idempotency.EventTakenOver, idempotency.EventReused, idempotency.EventEvicted, idempotency.EventFlushed:
				h.log.Info("idempotency record", "tool", scope, "event", e)
			}
		},
		OnStore: h.metrics.Stored,
	})
	if err != nil {
		return fmt.Errorf("%w; choose another with --store", err)
	}
	h.watched, err = idempotency.Open(ctx, idempotency.Config{Store: "memory", MemoryRecords: maxWatched, MemoryBytes: 64 << 20, Log: h.log})
	return err
}

// sayStore logs what the store survives and what it does not, so that nobody
// learns it from a loss.
func (h *Host) sayStore(ctx context.Context) {
	if h.config().Reliability == config.ReliabilityOff {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	h.log.Info("idempotency store", "store", storeKind(h.config().Store), "survives", h.records.Survives(ctx))
}

// storeKind names a store without the password that its URL may hold.
func storeKind(store string) string {
	kind, _, _ := strings.Cut(store, "://")
	return kind
}

// recordRequest is what a call asks of the store of records; nil where it has
// no key and gets none.
func recordRequest(k *call) (*idempotency.Request, error) {
	limits := &k.tool.Def.Reliability
	r := &idempotency.Request{
		Scope:       recordScope(k),
		Label:       k.IdempotencyKey,
		TTL:         limits.TTL.Duration(),
		FailedTTL:   limits.FailedTTL.Duration(),
		OnDuplicate: idempotency.OnDuplicate(limits.OnDuplicate),
		Rerun:       !k.mutating || k.idempotent,
		Retry:       k.Retry,
		Shadow:      k.stance == shadows,
	}
	if r.FailedTTL == 0 {
		r.FailedTTL = -1 // tool.json says so; its default is another
	}
	payload, err := k.asked()
	if err != nil {
		return nil, err
	}
	switch {
	case k.IdempotencyKey != "":
		r.Key, err = idempotency.CallerKey(r.Scope, k.IdempotencyKey, k.caller.ID)
	case k.getsKey():
		r.TTL = idempotency.AutoTTL
		r.Key, err = idempotency.AutoKey(r.Scope, payload, k.caller.ID)
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

// asked is all that the caller asked for, as JSON: the payload, with what was
// sent beside it. What a policy made of it does not count: the same call is the
// same after a policy was swapped.
func (k *call) asked() ([]byte, error) {
	request := sent{k.Env, k.Stdin}
	if k.sent != nil {
		request = *k.sent
	}
	beside := struct {
		Payload json.RawMessage   `json:"payload"`
		Env     map[string]string `json:"env,omitempty"`
		Stdin   []byte            `json:"stdin,omitempty"`
		Cwd     string            `json:"cwd,omitempty"`
	}{Payload: k.Payload, Env: request.env}
	if k.Form == wire.Envelope || k.offered != nil { // a plain command's payload has both
		beside.Stdin = request.stdin
		if k.kind == session.KindTurn { // whose folder is its session's
			beside.Cwd = k.Cwd
		}
	}
	if len(beside.Env) == 0 && len(beside.Stdin) == 0 && beside.Cwd == "" {
		return k.Payload, nil
	}
	return json.Marshal(beside)
}

// recordScope is what keys are keys of: the tool, and of a module that brings
// tools of its own, which of these.
func recordScope(k *call) string {
	if k.offered != nil {
		return k.tool.Name + "/" + k.Tool
	}
	return k.tool.Name
}

// scopeTool is the tool of a scope: metrics know those of tools.d only.
func scopeTool(scope string) string {
	tool, _, _ := strings.Cut(scope, "/")
	return tool
}

// getsKey reports whether a call without a key gets one of its payload. That
// is right only where the payload says all: for a tool with a schema, or one
// whose definition says so, and never where input may come by a stream.
func (k *call) getsKey() bool {
	if !k.mutating || k.streams.Stdin != nil && k.wantStdin && !k.rewroteStdin && len(k.Stdin) == 0 {
		return false
	}
	if auto := k.tool.Def.Reliability.AutoKey; auto != nil {
		return *auto
	}
	if k.offered != nil {
		return k.offered.schema != nil
	}
	return k.tool.Schema != nil && k.Form == wire.Envelope && k.Args == nil
}

// keptResult is a result as a record holds it.
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
}

// keep is the result of k as its record holds it.
func (k *call) keep(res *wire.Result, e *fault.Error) json.RawMessage {
	var r keptResult
	if res != nil {
		stdout, stderr := res.Stdout, res.Stderr
		if k.teed != nil {
			stdout, stderr = k.teed[0].buf.Bytes(), k.teed[1].buf.Bytes()
		}
		r = keptResult{ExitCode: res.ExitCode, Ran: res.Ran, Data: res.Data, Truncated: res.Truncated, MayRetry: res.MayRetry}
		text := func(b []byte, s *string, raw *[]byte) {
			if utf8.Valid(b) {
				*s = string(b)
			} else {
				*raw = b
			}
		}
		text(stdout, &r.Stdout, &r.StdoutBase64)
		text(stderr, &r.Stderr, &r.StderrBase64)
	}
	if e != nil {
		r.Error = &keptError{e.Code, e.Message, e.MayRetry}
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

// unkeep is the result that a record holds.
func unkeep(kept idempotency.Result) (*wire.Result, error) {
	if kept.TooLarge {
		return &wire.Result{FromCache: true}, fault.Errorf(fault.LimitExceeded,
			"the call of this idempotency key ended (%s), and its result of %d bytes (sha256 %s) is over the %d that are kept: it cannot be given again, and the call is not run again",
			kept.Status, kept.Size, kept.Digest, idempotency.MaxResult)
	}
	var r keptResult
	if err := json.Unmarshal(kept.Value, &r); err != nil {
		return &wire.Result{FromCache: true}, fault.Errorf(fault.Internal, "the record of this idempotency key cannot be read: %w", err)
	}
	res := &wire.Result{
		ExitCode: r.ExitCode, Ran: r.Ran, Stdout: r.StdoutBase64, Stderr: r.StderrBase64, Data: r.Data,
		Truncated: r.Truncated, MayRetry: r.MayRetry, FromCache: true,
	}
	if r.Stdout != "" {
		res.Stdout = []byte(r.Stdout)
	}
	if r.Stderr != "" {
		res.Stderr = []byte(r.Stderr)
	}
	if e := r.Error; e != nil {
		return res, &fault.Error{Code: e.Code, Message: e.Message, MayRetry: e.MayRetry}
	}
	return res, nil
}

// conclude says what a record is to hold of a call that has ended.
func (k *call) conclude(res *wire.Result, e *fault.Error) idempotency.Outcome {
	safe := !k.mutating || k.idempotent
	code := fault.ToolFailed
	if e != nil {
		code = e.Code
	}
	switch {
	case !k.life.begun():
		return idempotency.Outcome{Kind: idempotency.OutcomeNotBegun}
	case e == nil && res.ExitCode == 0:
		return idempotency.Outcome{Kind: idempotency.OutcomeCompleted, Result: k.keep(res, nil)}
	case code == fault.ToolFailed && !k.killed:
		// It ended by its own word, and that word was no.
	case !safe:
		return idempotency.Outcome{Kind: idempotency.OutcomeUnknown}
	case code == fault.Aborted:
		// It may run again, and nobody has an answer yet.
		return idempotency.Outcome{Kind: idempotency.OutcomeNotBegun}
	}
	o := idempotency.Outcome{Kind: idempotency.OutcomeFailed, Result: k.keep(res, e), Failure: &idempotency.Failure{Code: string(code)}}
	if e != nil {
		o.Failure.Message = e.Message
	}
	return o
}

// wouldHave is what shadow counts of a decision about a key.
func wouldHave(e idempotency.Event) string {
	switch e {
	case idempotency.EventClaimed, idempotency.EventTakenOver, idempotency.EventRetried:
		return "" // it would have run
	}
	return string(e)
}

// refusedByRecord is the error of a call that its key kept from running.
func (k *call) refusedByRecord(ctx context.Context, err error) error {
	c := context.Cause(ctx)
	switch ended := c != nil && !errors.Is(c, context.DeadlineExceeded); {
	case ended && (errors.Is(err, idempotency.ErrPending) || errors.Is(err, idempotency.ErrStoreUnavailable)):
		return c // the caller left, or the call was ended
	case errors.Is(err, idempotency.ErrPending):
		return fault.Errorf(fault.IdempotencyPending, "a call with this idempotency key is still running; ask again with the same key for its result")
	case errors.Is(err, idempotency.ErrKeyReused):
		return fault.Errorf(fault.IdempotencyKeyReused, "this idempotency key was used for another payload, so nothing ran; use one key for one request")
	case errors.Is(err, idempotency.ErrOutcomeUnknown):
		return fault.Errorf(fault.OutcomeUnknown, "a call with this idempotency key began, and nobody knows how it ended; look at what it was to change, then use a new key, or have the operator run: toolctl idempotency flush %s KEY", recordScope(k))
	case errors.Is(err, idempotency.ErrStoreUnavailable):
		return &fault.Error{Code: fault.StoreUnavailable, Message: "the store of idempotency records does not answer, so nothing ran; try again later", Cause: err}
	case errors.Is(err, idempotency.ErrOverloaded):
		return &fault.Error{Code: fault.Overloaded, Message: "the store of idempotency records is full of calls that run; try again later", Cause: err}
	}
	return err
}

// life is from when a call has begun and whether its caller's leaving ends
// it.
type life struct {
	mu    sync.Mutex
	began bool // guarded by mu
	// caller is the caller's own context, of a call that may outlive it.
	caller context.Context
	// outlives says that the call, once begun, goes on without its caller.
	outlives bool
}

func (l *life) begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.began
}

// begin notes that the tool itself is started now, unless ctx has ended.
func (k *call) begin(ctx context.Context) error {
	k.life.mu.Lock()
	defer k.life.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c := k.life.caller; c != nil && !k.life.began && c.Err() != nil {
		return context.Cause(c)
	}
	k.began, k.life.began = true, true
	return nil
}

// notStarted takes begin back where err says that the tool was not started
// after all: with one of codes.
func (k *call) notStarted(err error, codes ...fault.Code) {
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || !slices.Contains(codes, e.Code) {
		return
	}
	k.life.mu.Lock()
	defer k.life.mu.Unlock()
	k.began = false
	k.life.began = k.attempt > 1 && k.life.began // an earlier attempt ran
}

// goesOn reports whether the call does without its caller: it outlives it, has
// begun, and has all of its input. Input that is cut off must never look like
// input that ended.
func (k *call) goesOn() bool {
	return k.life.outlives && k.life.begun() && !k.passed.input.Load().open()
}

// alone reports whether the caller of a call that may outlive it has left. Then
// what has begun goes on, and nothing is begun again.
func (k *call) alone() bool { return k.life.outlives && k.life.caller.Err() != nil }

// outlive is the context of a mutating call with a key. Once that has begun,
// its caller's leaving does not end it: to store its result is what its key is
// for. Everything else that ends ctx does, and so does the end of the daemon.
func (h *Host) outlive(ctx context.Context, k *call) (context.Context, func()) {
	k.life.outlives, k.life.caller = true, ctx
	alive, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	end := func() {}
	if d, ok := ctx.Deadline(); ok {
		alive, end = context.WithDeadline(alive, d)
	}
	k.running.OnAbort(cancel) // also when the caller has left
	stop := context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		if errors.Is(cause, context.DeadlineExceeded) || callerLeft(ctx) && k.goesOn() {
			return // alive has the same deadline
		}
		cancel(cause)
	})
	stopped := context.AfterFunc(h.ending, func() { cancel(context.Cause(h.ending)) })
	return alive, func() {
		stop()
		stopped()
		end()
		cancel(nil)
	}
}

// maxTee is how much of each streamed output is kept for a record, in bytes:
// past what a record may hold, so that it is known to be too much.
const maxTee = idempotency.MaxResult + 1

// teeStreams makes what k streams be kept too.
func (k *call) teeStreams() {
	k.teed = &[2]capture{{max: maxTee}, {max: maxTee}}
	gone := new(atomic.Bool)
	k.streams.Stdout = tee{k.untee(k.streams.Stdout), &k.teed[0], k, gone}
	k.streams.Stderr = tee{k.untee(k.streams.Stderr), &k.teed[1], k, gone}
}

func (k *call) untee(w io.Writer) io.Writer {
	if t, ok := w.(tee); ok {
		return t.w // of the attempt before
	}
	return w
}

// tee passes output on and keeps it. A call that outlives its caller writes on
// when nobody reads any more.
type tee struct {
	w    io.Writer
	kept *capture
	k    *call
	gone *atomic.Bool
}

func (t tee) Write(p []byte) (int, error) {
	t.kept.Write(p)
	if t.gone.Load() {
		return len(p), nil
	}
	n, err := t.w.Write(p)
	if err != nil && t.k.goesOn() {
		t.gone.Store(true)
		return len(p), nil
	}
	return n, err
}
