package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/wire"
)

// Approvals are the requests for approvals that somebody sees. With Operator, all of
// them are the operator's; else they are those of a caller of the tool socket.
type Approvals struct {
	Operator      *Admin
	Socket, Token string
}

// List returns the requests, the oldest first, without what would run.
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

// Show returns one request with what would run.
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
