package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// Approvals are the requests for approval that a caller can see. With Operator they are all requests, and decisions
// are the operator's; otherwise they are those of a caller of the tool socket.
type Approvals struct {
	Operator      *Admin
	Socket, Token string
}

// List returns the requests, oldest first, without what they would run.
func (a *Approvals) List(ctx context.Context) ([]adminapi.Approval, error) {
	if a.Operator != nil {
		var out []adminapi.Approval
		return out, a.Operator.get(ctx, "/approvals", &out)
	}
	var out struct {
		Approvals []adminapi.Approval `json:"approvals"`
	}
	return out.Approvals, a.call(ctx, "list", struct{}{}, &out)
}

// Show returns one request with what it would run.
func (a *Approvals) Show(ctx context.Context, id string) (*adminapi.Approval, error) {
	out := new(adminapi.Approval)
	if a.Operator != nil {
		return out, a.Operator.get(ctx, "/approvals/"+url.PathEscape(id), out)
	}
	return out, a.call(ctx, "show", map[string]string{"id": id}, out)
}

// Decide approves a request, or denies it.
func (a *Approvals) Decide(ctx context.Context, id string, approve bool, reason string) (*adminapi.Approval, error) {
	verb := "deny"
	if approve {
		verb = "approve"
	}
	out := new(adminapi.Approval)
	if a.Operator == nil {
		return out, a.call(ctx, verb, map[string]string{"id": id, "reason": reason}, out)
	}
	body, err := json.Marshal(adminapi.ApprovalReason{Reason: reason})
	if err != nil {
		return nil, err
	}
	return out, a.Operator.do(ctx, http.MethodPost, "/approvals/"+url.PathEscape(id)+"/"+verb, bytes.NewReader(body), out)
}

// Planned is what a list of calls would run, and the request for all of them if at least one needs approval.
type Planned struct {
	Approval *adminapi.Approval `json:"approval,omitempty"`
	Calls    []struct {
		Tool   string `json:"tool"`
		Digest string `json:"digest"`
		Asks   bool   `json:"asks"`
	} `json:"calls"`
}

// Ran holds the results of a list of calls: of those that were started, in order.
type Ran struct {
	Results []struct {
		Execution string     `json:"executionId"`
		Status    string     `json:"status"`
		ExitCode  int        `json:"exit_code"`
		Stdout    string     `json:"stdout"`
		Stderr    string     `json:"stderr"`
		Truncated bool       `json:"truncated"`
		Code      fault.Code `json:"code"`
		Message   string     `json:"message"`
	} `json:"results"`
	// Done reports that all of them succeeded.
	Done bool `json:"done"`
}

// Plan has the daemon decide on calls, which are envelopes, without running any. It is for callers, not for the
// operator.
func (a *Approvals) Plan(ctx context.Context, calls []json.RawMessage) (*Planned, error) {
	out := new(Planned)
	return out, a.call(ctx, "plan", map[string]any{"calls": calls}, out)
}

// Run runs calls under the request for all of them, up to the first that fails or differs from the plan.
func (a *Approvals) Run(ctx context.Context, id string, calls []json.RawMessage) (*Ran, error) {
	out := new(Ran)
	return out, a.call(ctx, "run", map[string]any{"id": id, "calls": calls}, out)
}

func (a *Approvals) call(ctx context.Context, verb string, payload, into any) error {
	b, err := json.Marshal(payload)
	if err != nil {
		return err
	}
	r, err := Call(ctx, a.Socket, &wire.Call{Form: wire.Envelope, Tool: "approval." + verb, ExecutionID: wire.NewExecutionID(), Payload: b, Token: a.Token})
	if err != nil {
		return err
	}
	if r.Err != nil {
		return r.Err
	}
	return json.Unmarshal(r.Data, into)
}
