package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/finder"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

// A batch is a list of calls that is planned, approved as a whole, and run one after
// another. Planning takes each call as far as its decision, and runs none. Running
// makes the same calls again: the store holds digests, and nothing that can be run.

// maxBatchOutput is how much of each output of a call is in the answer of its batch,
// in bytes.
const maxBatchOutput = 1 << 10

// batchPayload is that of approval.plan, and, with an ID, of approval.run.
type batchPayload struct {
	ID    string            `json:"id"`
	Calls []json.RawMessage `json:"calls"`
}

// calls returns the calls of a batch, made by caller, in q's session unless they name one.
func (b *batchPayload) calls(q *call.Request, caller *identity.Caller) ([]call.Request, error) {
	if n := len(b.Calls); n == 0 || n > approval.MaxSteps {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/calls: has %d calls, and there are 1 to %d", n, approval.MaxSteps)
	}
	var list []call.Request
	for i, envelope := range b.Calls {
		wrong := func(why string) error { return fault.Errorf(fault.InvalidPayload, "/payload/calls/%d: %s", i, why) }
		m, err := wire.Parse(withID(envelope))
		if err != nil {
			return nil, wrong(err.Error())
		}
		c, ok := m.(*wire.Call)
		switch {
		case !ok || c.Form != wire.Envelope:
			return nil, wrong("is not an envelope, with toolId and payload")
		case session.IsCall(c.Tool) || isApprovalCall(c.Tool) || c.Tool == finder.ListID:
			return nil, wrong("is not a call of a tool")
		case c.Token != "" || c.Stream || c.Background || c.Detach:
			return nil, wrong("is made as the caller of the batch and answered whole: leave out token, stream, background and detach")
		}
		if c.Session == "" {
			c.Session = q.Session
		}
		of := *q
		of.Call, of.Kind, of.As, of.PartOf, of.Streams = c, "", caller, q.ExecutionID, wire.Streams{Signals: make(chan os.Signal)}
		list = append(list, of)
	}
	return list, nil
}

// plannedCall is one call of a plan in the response.
type plannedCall struct {
	Tool   string `json:"tool"`
	Digest string `json:"digest"`
	Asks   bool   `json:"asks"`
}

// batches plans lists of calls, and runs them.
type batches struct {
	*approver
	call func(context.Context, call.Request) call.Outcome // Pipeline.Call
}

// plan plans the calls of q, and requests approval of all of them if one needs it.
func (s *batches) plan(ctx context.Context, q *call.Request, caller identity.Caller) (json.RawMessage, error) {
	var b batchPayload
	if err := strictjson.Unmarshal(q.Payload, &b); err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload%w", err)
	}
	if b.ID != "" {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/id: a planned call has none yet")
	}
	list, err := b.calls(q, &caller)
	if err != nil {
		return nil, err
	}
	var ask *call.Ask
	var last *call.Decided
	var steps []approval.Step
	var planned []plannedCall
	for i := range list {
		list[i].Plan = func(d *call.Decided) error {
			step, err := s.step(d)
			if err == nil {
				last, steps = d, append(steps, step)
				ask = ask.And(d.Ask)
				planned = append(planned, plannedCall{d.Call.Tool, step.Digest, d.Ask != nil})
			}
			return err
		}
		if o := s.call(ctx, list[i]); o.Err() != nil {
			e := *o.Err()
			e.Message = fmt.Sprintf("call %d of %d: %s", i+1, len(list), e.Message)
			return nil, &e
		} else if len(steps) != i+1 {
			return nil, fault.Errorf(fault.InvalidPayload, "/payload/calls/%d: is answered without running anything; leave it out", i)
		}
	}
	out := struct {
		Approval *adminapi.Approval `json:"approval,omitempty"`
		Calls    []plannedCall      `json:"calls"`
	}{Calls: planned}
	if ask == nil {
		return json.Marshal(out)
	}
	of := *last
	of.Ask = ask
	r := s.request(&of, steps...)
	r.Batch, r.Execution = true, q.ExecutionID
	r, err = s.store.Ask(r, ask.TTL)
	if err != nil {
		return nil, storeError(err)
	}
	if r.State == approval.Denied {
		return nil, refused(&r)
	}
	status := approvalStatus(&r, approval.Person{ID: caller.ID, Names: namesOf(caller)})
	out.Approval = &status
	return json.Marshal(out)
}

// batch is an approved list while it runs.
type batch struct {
	store     *approval.Store
	id, asker string
	execution string
	grant     *approval.Grant
	began     int
}

// take lets the next call of the batch begin if it is the planned one.
func (b *batch) take(digest string) (string, error) {
	var err error
	if b.grant == nil {
		b.grant, err = b.store.UseBatch(b.id, b.asker, digest, b.execution)
		if err == nil && b.grant == nil {
			return "", fault.Errorf(fault.ApprovalRequired, "request %s is not approved for this call as its first; approval.list shows how it stands", b.id)
		}
	} else if err = b.grant.Next(digest); errors.Is(err, approval.ErrState) {
		return "", fault.Errorf(fault.ApprovalRequired, "the call is not what request %s has as its next; plan what is left again", b.id)
	}
	if err != nil {
		return "", storeError(err)
	}
	b.began++
	return b.id, nil
}

// batchResult is the result of one call of a batch.
type batchResult struct {
	Execution string     `json:"executionId"`
	Status    string     `json:"status"`
	ExitCode  int        `json:"exit_code"`
	Stdout    string     `json:"stdout,omitempty"`
	Stderr    string     `json:"stderr,omitempty"`
	Truncated bool       `json:"truncated,omitempty"`
	Code      fault.Code `json:"code,omitempty"`
	Message   string     `json:"message,omitempty"`
}

// run runs the calls of q under the approval of all of them, up to the first that fails or differs from the plan.
func (s *batches) run(ctx context.Context, q *call.Request, caller identity.Caller) (json.RawMessage, error) {
	var payload batchPayload
	if err := strictjson.Unmarshal(q.Payload, &payload); err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload%w", err)
	}
	list, err := payload.calls(q, &caller)
	if err != nil {
		return nil, err
	}
	b := &batch{store: s.store, id: payload.ID, asker: caller.ID, execution: q.ExecutionID}
	outcome := "unknown"
	defer func() {
		if b.grant != nil {
			b.grant.End(outcome)
		}
	}()
	out := struct {
		Results []batchResult `json:"results"`
		Done    bool          `json:"done"`
	}{Done: true}
	for i := range list {
		list[i].Take = b.take
		res := s.call(ctx, list[i]).Result
		r := batchResult{Execution: list[i].ExecutionID, Status: res.Status(), ExitCode: res.ExitCode, Truncated: res.Truncated}
		for to, b := range map[*string][]byte{&r.Stdout: res.Stdout, &r.Stderr: res.Stderr} {
			if *to = string(b); len(b) > maxBatchOutput {
				*to, r.Truncated = string(b[:maxBatchOutput]), true
			}
		}
		if e := res.Err; e != nil {
			r.Code, r.Message = e.Code, e.Message
		} else if b.began != i+1 {
			r.Status, r.Code, r.Message = "error", fault.ApprovalRequired, "it was answered without running, and what is left is not run"
		}
		out.Results = append(out.Results, r)
		outcome = fmt.Sprintf("call %d of %d: %s, exit code %d", i+1, len(list), r.Status, r.ExitCode)
		if b.grant == nil && i == 0 && res.Err != nil {
			return nil, res.Err
		}
		if r.Status != "success" {
			out.Done = false
			break
		}
	}
	return json.Marshal(out)
}
