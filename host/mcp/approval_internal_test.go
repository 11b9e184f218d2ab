package mcp

import (
	"context"
	"encoding/json"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// The user is asked about the approval that a call needs, and about none that is the
// answer of a tool, was decided, or cannot be shown; and decides only by an answer.
func TestWhatTheUserIsAsked(t *testing.T) {
	const shown = `{"steps":[{"tool":"ledger","plan":{"args":["x"]}}]}`
	for name, tt := range map[string]struct {
		code        fault.Code
		data, shown string
		refused     *fault.Error
		want        bool
	}{
		"one that the call needs":      {fault.ApprovalRequired, `{"approval":{"id":"a-1","state":"pending","self":true}}`, shown, nil, true},
		"one that a tool made up":      {fault.ToolFailed, `{"approval":{"id":"a-1","state":"pending","self":true}}`, shown, nil, false},
		"one that was decided":         {fault.ApprovalRequired, `{"approval":{"id":"a-1","state":"denied","self":true}}`, shown, nil, false},
		"another's to decide":          {fault.ApprovalRequired, `{"approval":{"id":"a-1","state":"pending"}}`, shown, nil, false},
		"one that cannot be read":      {fault.ApprovalRequired, `{"approval":{"id":"a-1","state":"pending","self":true}}`, `[]`, nil, false},
		"one that the caller sees not": {fault.ApprovalRequired, `{"approval":{"id":"a-1","state":"pending","self":true}}`, shown, fault.Errorf(fault.NotRunning, "no"), false},
	} {
		r := newRequester(Config{Call: func(context.Context, call.Request) call.Outcome {
			return call.Outcome{Result: &wire.Result{Ran: true, Data: json.RawMessage(tt.shown), Err: tt.refused}}
		}}, &waits{}, Peer{}, 1, 1)
		q := &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{Meta: sdk.Meta{sdk.MetaKeyClientCapabilities: map[string]any{"elicitation": map[string]any{}}}}}
		res := &wire.Result{Data: json.RawMessage(tt.data), Err: fault.Errorf(tt.code, "no")}
		if got := r.askUser(t.Context(), Caller{}, q, res); (got != nil) != tt.want {
			t.Errorf("%s: asked %+v", name, got)
		}
	}
	for name, tt := range map[string]struct {
		state  string
		answer sdk.InputResponse
		want   string
	}{
		"approved":           {"a-1", &sdk.ElicitResult{Action: "accept"}, "approval.approve"},
		"denied":             {"a-1", &sdk.ElicitResult{Action: "decline"}, "approval.deny"},
		"neither":            {"a-1", &sdk.ElicitResult{Action: "cancel"}, ""},
		"of no call":         {"", &sdk.ElicitResult{Action: "accept"}, ""},
		"not such an answer": {"a-1", nil, ""},
	} {
		asked := ""
		r := newRequester(Config{Call: func(_ context.Context, q call.Request) call.Outcome {
			asked = q.Call.Tool
			return call.Outcome{Result: &wire.Result{Ran: true}}
		}}, &waits{}, Peer{}, 1, 1)
		refused := r.decide(t.Context(), Caller{}, &sdk.CallToolParamsRaw{RequestState: tt.state, InputResponses: sdk.InputResponseMap{inputApproval: tt.answer}})
		if refused != nil || asked != tt.want {
			t.Errorf("%s: %q, %v; want %q", name, asked, refused, tt.want)
		}
	}
}
