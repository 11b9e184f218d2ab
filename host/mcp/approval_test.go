package mcp_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/mcp"
)

// A call that its caller may approve itself is shown to the user of a client that can
// ask; what the user says is what happens. Any other is the error of who asks later.
func TestApprovalByTheUser(t *testing.T) {
	def := object{"binary": "/bin/sh", "mutating": true, "capabilities": object{"exec": []string{"/usr/bin", "/bin"}}}
	d, path := daemon(t, config.Config{}, nil, func(dir string) {
		hosttest.WriteTool(t, dir, "ledger", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/policy")})
	})
	args := func(how, line string) object {
		return object{"args": []string{"ask", how, "-c", `echo "$1" >> ledger`, "sh", line}, "cwd": d.Root}
	}
	ledger := func() string {
		b, _ := os.ReadFile(filepath.Join(d.Root, "ledger"))
		return string(b)
	}
	var shown []string
	says := "accept"
	client := connect(t, path, mcp.Caller{}, &sdk.ClientOptions{
		ElicitationHandler: func(_ context.Context, q *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			shown = append(shown, q.Params.Message)
			return &sdk.ElicitResult{Action: says}, nil
		},
	})
	const self = `{"self":true,"text":"a line\u001b[2J"}`
	if r := invoke(t, client, "ledger", args(self, "one\u202e")); r.IsError {
		t.Fatalf("%s", text(r))
	}
	if len(shown) != 1 || !strings.Contains(shown[0], `echo`) || !strings.Contains(shown[0], `one\u202e`) || !strings.Contains(shown[0], `The policy says: "a line\x1b[2J"`) {
		t.Errorf("shown: %q", shown)
	}
	says = "decline"
	if r := invoke(t, client, "ledger", args(self, "two")); !r.IsError || !strings.Contains(text(r), "DENIED") {
		t.Errorf("declined: %s", text(r))
	}
	says = "cancel"
	if r := invoke(t, client, "ledger", args(self, "three")); !r.IsError || !strings.Contains(text(r), "APPROVAL_REQUIRED") {
		t.Errorf("cancelled: %s", text(r))
	}
	says, shown = "accept", nil
	if r := invoke(t, client, "ledger", args(`{}`, "four")); !r.IsError || !strings.Contains(text(r), "toolctl approvals approve") || len(shown) > 0 {
		t.Errorf("the operator's to approve: %s, shown %q", text(r), shown)
	}
	if r := invoke(t, connect(t, path, mcp.Caller{}, nil), "ledger", args(self, "five")); !r.IsError || !strings.Contains(text(r), "APPROVAL_REQUIRED") {
		t.Errorf("of a client that cannot ask: %s", text(r))
	}
	if got := ledger(); got != "one\u202e\n" {
		t.Errorf("the ledger has %q", got)
	}
}
