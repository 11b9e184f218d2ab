package host

import (
	"strings"
	"testing"

	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// A discovery is made for all that have one fingerprint: there is no session that
// it could call as.
func TestADiscoveryHasNoSession(t *testing.T) {
	b := stages(t, succeed)
	b.tool.Def.Capabilities.ToolCall = true
	k := &call{Call: &wire.Call{Tool: "tool"}, caller: identity.Caller{ID: "a fingerprint"}, effective: &identity.Effective{}, tool: &tools.Tool{Name: "tool", Def: b.tool.Def}}
	out, err := b.invocation(k, "discover", nil).ToolCall(t.Context(), []byte(`{"toolId":"session.query","executionId":"7d444840-9dc0-41d1-b245-5ffdce74fad2","payload":{}}`))
	if err != nil || !strings.Contains(string(out), `"DENIED"`) {
		t.Errorf("%s, %v", out, err)
	}
}
