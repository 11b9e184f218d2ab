package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/strictjson"
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

// FuzzToolCall holds the envelopes of modules to what they say: the id that the host adds
// changes no other member, and what is no envelope, or asks for what a module may not
// choose, is an answer and no call.
func FuzzToolCall(f *testing.F) {
	for _, s := range []string{
		`{"toolId":"a","payload":{}}`, ` { "toolId" : "a" } `, `{}`, `[]`, `{"toolId":"a"`, `{"toolId":"a","executionId":null}`, `{"tool":"a","args":["b"]}`,
		`{"\u0065xecutionId":"x","toolId":"a"}`, `{"toolId":"a","token":"t"}`, `{"toolId":"a","stream":true}`, `{"toolId":"a","session":"other"}`, `{"t\u006folId":"a"}`,
		`{"toolId":"a","background":true,"detach":true}`, `{"toolId":"session.mutate","payload":{"op":"create"}}`, "{\"toolId\":\"a\"}\x00", "\ufeff{\"toolId\":\"a\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, envelope []byte) {
		was := bytes.Clone(envelope)
		given := withID(envelope)
		if !bytes.Equal(envelope, was) {
			t.Fatal("it writes into memory of the module")
		}
		var members, now map[string]json.RawMessage
		if strictjson.Unmarshal(envelope, &members) == nil && strictjson.Unmarshal(given, &now) == nil {
			if _, has := members["executionId"]; !has {
				delete(now, "executionId")
			}
			if !maps.EqualFunc(members, now, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
				t.Errorf("%q became %q", envelope, given)
			}
		}
		var called *call.Request
		calls := &sessionCalls{call: func(_ context.Context, q call.Request) call.Outcome {
			called = &q
			return call.Outcome{Result: &wire.Result{Ran: true}}
		}}
		by := &call.Pinned{
			Admitted: call.Admitted{Request: call.Request{Call: &wire.Call{Tool: "some", ExecutionID: "x"}}, Caller: identity.Caller{ID: "c"}, Session: "its", Execution: &session.Execution{}},
			Tool:     &tools.Tool{Name: "some", Def: tools.DefaultDefinition()}, Effective: &identity.Effective{}, Cwd: "/cwd",
		}
		parent := by.AsParent(false, 1)
		out := calls.toolCall(t.Context(), by, parent, envelope)
		if !json.Valid(out) {
			t.Errorf("%q is answered %q", envelope, out)
		}
		if called == nil {
			return
		}
		if called.Form != wire.Envelope || called.Token != "" || called.Stream || called.Detach || called.As == nil || called.As.ID != "c" || called.By != parent || called.ExecutionID == "" || called.Call.Session == "" {
			t.Errorf("%q makes the call %+v", envelope, called.Call)
		}
	})
}
