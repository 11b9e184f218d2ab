package pipeline

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

// approvalCalls serves the calls about approvals.
type approvalCalls struct {
	*approver
	batches batches
}

// serve handles one of the calls about approvals. They are for people: a module, a job, a turn, and a caller that its
// owner has bound to a session may not decide as the identity that they work for.
func (s *approvalCalls) serve(ctx context.Context, q *call.Request, caller identity.Caller) call.Outcome {
	data, err := s.answer(ctx, q, caller)
	if err != nil {
		return call.Failed(ctx, err)
	}
	return call.Outcome{Result: &wire.Result{Ran: true, Data: data}}
}

func (s *approvalCalls) answer(ctx context.Context, q *call.Request, caller identity.Caller) (json.RawMessage, error) {
	switch {
	case q.Form != wire.Envelope:
		return nil, fault.Errorf(fault.InvalidEnvelope, "%s is called with an envelope: {toolId, executionId, payload}", q.Tool)
	case q.By != nil || q.Kind != "" || q.Background || q.Detach:
		return nil, fault.Errorf(fault.Denied, "denied by rule approval.direct: %s is not for modules, jobs and turns; whoever may decide calls it", q.Tool)
	case q.Tool == approvalPlan:
		return s.batches.plan(ctx, q, caller)
	case q.Tool == approvalRun:
		return s.batches.run(ctx, q, caller)
	case caller.Session() != "":
		return nil, fault.Errorf(fault.Denied, "denied by rule approval.bound: this caller is bound to a session of another, and decides nothing for that; have the session's owner do it")
	}
	var asked struct {
		ID     string `json:"id"`
		Reason string `json:"reason"`
	}
	if err := strictjson.Unmarshal(q.Payload, &asked); err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload%w", err)
	}
	who := approval.Person{ID: caller.ID, Names: namesOf(caller)}
	if q.Tool == approvalList {
		return json.Marshal(struct {
			Approvals []adminapi.Approval `json:"approvals"`
		}{ListApprovals(s.store, who)})
	}
	r, err := s.store.Get(asked.ID, who)
	if q.Tool != approvalShow && err == nil {
		if caller.ReadOnly {
			return nil, fault.Errorf(fault.Denied, "denied by rule read-only: this identity may only read, and %s decides", q.Tool)
		}
		r, err = s.store.Decide(asked.ID, who, q.Tool == approvalApprove, asked.Reason)
	}
	if err != nil {
		return nil, decideError(err, &r)
	}
	return json.Marshal(approvalStatus(&r, who))
}

// decideError converts an error for the caller that decides.
func decideError(err error, r *approval.Request) error {
	switch {
	case errors.Is(err, approval.ErrNotFound):
		return fault.Errorf(fault.InvalidPayload, "/payload/id: there is no such request for this caller; approval.list shows those that there are")
	case errors.Is(err, approval.ErrNotAllowed):
		return fault.Errorf(fault.Denied, "denied by rule approval.by: request %s is not this caller's to decide; its policy names who may", r.ID)
	case errors.Is(err, approval.ErrState):
		return fault.Errorf(fault.InvalidPayload, "/payload/id: request %s is %s, and is not decided any more", r.ID, r.State)
	}
	return storeError(err)
}

// ListApprovals returns the requests that a person may see, oldest first, without the plans.
func ListApprovals(store *approval.Store, who approval.Person) []adminapi.Approval {
	out := []adminapi.Approval{}
	for _, r := range store.List(who) {
		a := approvalStatus(&r, who)
		for i := range a.Steps {
			a.Steps[i].Plan = nil
		}
		out = append(out, a)
	}
	return out
}

// ShowApproval returns one request with its plans. Errors are those of approval.Store.
func ShowApproval(store *approval.Store, id string, who approval.Person) (adminapi.Approval, error) {
	r, err := store.Get(id, who)
	if err != nil {
		return adminapi.Approval{}, err
	}
	return approvalStatus(&r, who), nil
}

// DecideApproval approves or denies a request. Errors are those of approval.Store; with ErrState it also returns the
// current request.
func DecideApproval(store *approval.Store, id string, who approval.Person, approve bool, reason string) (adminapi.Approval, error) {
	r, err := store.Decide(id, who, approve, reason)
	if errors.Is(err, approval.ErrNotFound) {
		return adminapi.Approval{}, err
	}
	return approvalStatus(&r, who), err
}
