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
		Tool:     &tools.Tool{Name: "tool", Def: tools.DefaultDefinition()}, Effective: &identity.Effective{},
	}
	out := (&sessionCalls{}).toolCall(t.Context(), by, by.AsParent(false, 1), []byte(`{"toolId":"session.query","executionId":"7d444840-9dc0-41d1-b245-5ffdce74fad2","payload":{}}`))
	if !strings.Contains(string(out), `"DENIED"`) {
		t.Errorf("%s", out)
	}
}

// A module may leave the id of an execution to the host, and nothing else.
func TestEnvelopesGetAnID(t *testing.T) {
	for in, ok := range map[string]bool{
		` { "toolId":"a","payload":{}}`:                 true,
		`{"toolId":"a","payload":{},"executionId":"x"}`: false,
		`{"toolId":"a","payload":{}`:                    false,
		`{}`:                                            false,
		`{"tool":"a"}`:                                  true,
		`[]`:                                            false,
		`{"payload":{"executionId":"x"},"toolId":"a"}`:       true,
		`{"toolId":"a","executionId":null,"payload":{}}`:     false,
		`{"toolId":"a","toolId":"b","payload":{}}`:           false,
		`{"\u0065xecutionId":"x","toolId":"a","payload":{}}`: false,
	} {
		m, err := wire.Parse(withID([]byte(in)))
		if (err == nil) != ok {
			t.Errorf("%s: %v", in, err)
		}
		if q, is := m.(*wire.Call); ok && (!is || q.Form == wire.Envelope && len(q.ExecutionID) != 36 || q.Tool != "a") {
			t.Errorf("%s: %+v", in, m)
		}
	}
}
