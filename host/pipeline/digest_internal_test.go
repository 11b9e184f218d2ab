package pipeline

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// Whatever of a call is another makes another digest, by itself: an approval is for
// nothing else.
func TestDigestHasEach(t *testing.T) {
	made := func(change func(*call.Decided)) string {
		t.Helper()
		d := call.Decided{
			Pinned: call.Pinned{
				Admitted: call.Admitted{
					Request: call.Request{Call: &wire.Call{Tool: "release"}, Peer: call.Peer{Socket: "/run/a.sock"}},
					Caller:  identity.Caller{ID: "alice"}, Session: "one",
				},
				Tool:      &tools.Tool{Name: "release", Version: "1", Kind: tools.Handler, HandlerDigest: "h", PolicyFiles: []string{"p"}, PolicyDigests: []string{"q"}},
				Effective: &identity.Effective{}, Roots: []string{"/r"}, Cwd: "/r/c", Folder: "1:2",
			},
			Command: call.Command{Args: []string{"a", "b"}, Env: map[string]string{"K": "v"}, Input: call.Input{Bytes: []byte("in")}},
			Payload: json.RawMessage(`{}`),
			Ask:     &call.Ask{By: []string{"sub:bob"}, TTL: time.Minute, Text: "text", Rule: "rule"},
		}
		change(&d)
		sum, err := digest(&d)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	seen := map[string]string{made(func(*call.Decided) {}): "nothing"}
	for what, change := range map[string]func(*call.Decided){
		"the tool":           func(d *call.Decided) { d.Call = &wire.Call{Tool: "other"} },
		"its version":        func(d *call.Decided) { d.Tool.Version = "2" },
		"its handler":        func(d *call.Decided) { d.Tool.HandlerDigest = "i" },
		"a policy":           func(d *call.Decided) { d.Tool.PolicyDigests = []string{"r"} },
		"the caller":         func(d *call.Decided) { d.Caller.ID = "bob" },
		"the user":           func(d *call.Decided) { d.UID = 7 },
		"the session":        func(d *call.Decided) { d.Session = "two" },
		"the socket":         func(d *call.Decided) { d.Socket = "/run/b.sock" },
		"the arguments":      func(d *call.Decided) { d.Args = []string{"a", "c"} },
		"where words end":    func(d *call.Decided) { d.Args = []string{"ab"} },
		"that there are any": func(d *call.Decided) { d.Args = nil },
		"none":               func(d *call.Decided) { d.Args = []string{} },
		"a variable":         func(d *call.Decided) { d.Env = map[string]string{"K": "w"} },
		"its name":           func(d *call.Decided) { d.Env = map[string]string{"L": "v"} },
		"the input":          func(d *call.Decided) { d.Input.Bytes = []byte("In") },
		"the payload":        func(d *call.Decided) { d.Payload = json.RawMessage(`{"a":1}`) },
		"the folder":         func(d *call.Decided) { d.Cwd = "/r/d" },
		"its object":         func(d *call.Decided) { d.Folder = "1:3" },
		"the roots":          func(d *call.Decided) { d.Roots = []string{"/r", "/s"} },
		"the shell":          func(d *call.Decided) { d.Shell.Allowed = true },
		"its lines":          func(d *call.Decided) { d.Shell.Lines = []string{"ls"} },
		"that it has none":   func(d *call.Decided) { d.Shell.Lines = []string{} },
		"that it changes":    func(d *call.Decided) { d.Class.Mutating = true },
		"that it may twice":  func(d *call.Decided) { d.Class.Idempotent = true },
		"its time":           func(d *call.Decided) { d.Timeout = time.Second },
		"a program":          func(d *call.Decided) { d.Callbacks.Allowed = []abi.Callback{{Kind: "editor", Name: "vi"}} },
		"the rule":           func(d *call.Decided) { d.Ask.Rule = "other" },
		"the text":           func(d *call.Decided) { d.Ask.Text = "other" },
		"who may":            func(d *call.Decided) { d.Ask.By = []string{"sub:eve"} },
		"the asker":          func(d *call.Decided) { d.Ask.Self = true },
		"how long":           func(d *call.Decided) { d.Ask.TTL = time.Hour },
	} {
		sum := made(change)
		if other, same := seen[sum]; same {
			t.Errorf("%s: the digest is that of a call with another of %s", what, other)
		}
		seen[sum] = what
	}
}
