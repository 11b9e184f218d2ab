package mcp

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// A call that its caller may approve itself is approved by whoever is at the client:
// the result asks for that (input_required), and the client makes the call again with
// the answer. The answer is that of the caller, who has to be one that may decide.

const (
	// inputApproval names the one input that is asked for.
	inputApproval = "io.toold/approval"
	// maxShownCall bounds what is shown of a call, in bytes. What is longer is not
	// asked for here: people would not see all of it.
	maxShownCall = 8 << 10
)

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

// askUser is the result that has the user approve the call of res, or nil where that is
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
	message := messageOf(shown)
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

// messageOf says exactly what would run, a word a line, with all that is not plain
// escaped; empty where that is too much.
func messageOf(shown json.RawMessage) string {
	var a struct {
		Text  string `json:"text"`
		Steps []struct {
			Tool string          `json:"tool"`
			Plan json.RawMessage `json:"plan"`
		} `json:"steps"`
	}
	if json.Unmarshal(shown, &a) != nil || len(a.Steps) == 0 {
		return ""
	}
	var b strings.Builder
	for _, s := range a.Steps {
		var plan map[string]json.RawMessage
		if json.Unmarshal(s.Plan, &plan) != nil {
			return ""
		}
		b.WriteString("Run " + strconv.QuoteToASCII(s.Tool) + "?\n")
		for _, name := range []string{"args", "payload", "cwd", "env", "stdin", "stdin_base64", "shell", "shell_lines", "callbacks"} {
			if value, ok := plan[name]; ok {
				quoted := strconv.QuoteToASCII(string(value))
				b.WriteString(name + ": " + strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`) + "\n")
			}
		}
	}
	if a.Text != "" {
		b.WriteString("The policy says: " + strconv.QuoteToASCII(a.Text) + "\n")
	}
	if b.Len() > maxShownCall {
		return ""
	}
	return b.String()
}
