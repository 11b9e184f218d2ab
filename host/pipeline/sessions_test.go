package pipeline

import (
	"strings"
	"testing"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// A discovery is made for all that have one fingerprint: there is no session that
// it could call as.
func TestADiscoveryHasNoSession(t *testing.T) {
	by := &call.Pinned{
		Admitted: call.Admitted{Request: call.Request{Call: &wire.Call{Tool: "tool"}}, Caller: identity.Caller{ID: "a fingerprint"}},
		Tool:     &tools.Tool{Name: "tool", Def: tools.DefaultDefinition()},
	}
	out := (&sessionCalls{}).toolCall(t.Context(), by, []byte(`{"toolId":"session.query","executionId":"7d444840-9dc0-41d1-b245-5ffdce74fad2","payload":{}}`))
	if !strings.Contains(string(out), `"DENIED"`) {
		t.Errorf("%s", out)
	}
}
