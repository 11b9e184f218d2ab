package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/wire"
)

// A call that its caller may approve itself is approved by whoever is at the client:
// the result asks for that (input_required), and the client makes the call again with
// the answer. The answer is that of the caller, who has to be one that may decide.

// inputApproval names the one input that is asked for.
const inputApproval = "io.toold/approval"

// decide takes the answer that a call brings which is made again. The error is why the
// call is not made.
func (r *requester) decide(ctx context.Context, as Caller, p *sdk.CallToolParamsRaw) *fault.Error {
	answer, ok := p.InputResponses[inputApproval].(*sdk.ElicitResult)
	if !ok || p.RequestState == "" {
		return nil
	}
	verb := map[string]string{"accept": "approval.approve", "decline": "approval.deny"}[answer.Action]
	if verb == "" { // the user said neither
		return nil
	}
	_, refused := r.ask(ctx, as, verb, map[string]string{"id": p.RequestState})
	return refused
}

// askUser returns the result that asks the user to approve the call of res; nil if that is
// not for the caller, or the client cannot ask.
func (r *requester) askUser(ctx context.Context, as Caller, q *sdk.CallToolRequest, res *wire.Result) *sdk.CallToolResult {
	if res.Err == nil || res.Err.Code != fault.ApprovalRequired || q.Params.InputResponses != nil || !formsOf(q.ClientCapabilities()) {
		return nil
	}
	var asked struct {
		Approval struct {
			ID    string `json:"id"`
			State string `json:"state"`
			Self  bool   `json:"self"`
		} `json:"approval"`
	}
	if json.Unmarshal(res.Data, &asked) != nil || !asked.Approval.Self || asked.Approval.State != "pending" {
		return nil
	}
	shown, refused := r.ask(ctx, as, "approval.show", map[string]string{"id": asked.Approval.ID})
	if refused != nil {
		return nil
	}
	message := translate.Approval(shown)
	if message == "" {
		return nil
	}
	return &sdk.CallToolResult{
		RequestState: asked.Approval.ID,
		InputRequests: sdk.InputRequestMap{inputApproval: &sdk.ElicitParams{
			Mode: "form", Message: message, RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}},
		}},
	}
}
