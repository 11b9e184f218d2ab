package execute

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// load builds the guest in the folder of that name, for tests.
func load(t *testing.T, name string) *guest.Module {
	t.Helper()
	out := filepath.Join(t.TempDir(), name+".wasm")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", out, "../testdata/guests/"+name)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	wasm, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return module(t, name, wasm)
}

// module loads a guest, for tests.
func module(t *testing.T, name string, wasm []byte) *guest.Module {
	t.Helper()
	engine, err := guest.New(guest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.Load(t.Context(), guest.Spec{Name: name, Wasm: wasm, Fuel: 1e8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(); engine.Close() })
	return m
}

// restrictOnly is a module whose one export, restrict, returns 0.
const restrictOnly = "\x00asm\x01\x00\x00\x00\x01\x05\x01\x60\x00\x01\x7f\x03\x02\x01\x00\x07\x0c\x01\x08restrict\x00\x00\x0a\x06\x01\x04\x00\x41\x00\x0b"

// What a policy says on the wire counts only where it says yes or no, and every other
// end of its export refuses.
func TestAsker(t *testing.T) {
	wirer, other := load(t, "wirer"), module(t, "other", []byte(restrictOnly))
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	e := New(Config{Metrics: observe.New(), Log: log})
	decided := func(policies ...*guest.Module) *call.Decided {
		tool := &tools.Tool{Name: "git", Def: &tools.Definition{}, Policies: policies}
		for range policies {
			tool.PolicyFiles = append(tool.PolicyFiles, "/tools.d/git/restricted.wasm")
		}
		return &call.Decided{
			Pinned: call.Pinned{
				Admitted:  call.Admitted{Request: call.Request{Call: &wire.Call{Tool: "git", Args: []string{"asked"}, ExecutionID: "x1"}}, Caller: identity.Caller{ID: "me"}, Execution: &session.Execution{}},
				Tool:      tool,
				Effective: &identity.Effective{},
			},
			Command: call.Command{Args: []string{"push", "decided"}, Input: call.Input{Bytes: []byte("secret input")}},
		}
	}
	if e.asker(t.Context(), decided(), 1, "", &said) != nil || e.asker(t.Context(), decided(other), 1, "", &said) != nil {
		t.Error("a tool whose policies have no such export is asked")
	}
	yes := true
	facts := func(path string) *abi.Wire {
		return &abi.Wire{On: abi.WirePush, Host: "git.example", Port: 22, Path: path, Remote: "ssh://git.example/" + path, Refs: []abi.WireRef{{Name: "refs/heads/main", Old: "1", New: "2"}, {Name: "refs/heads/x", Force: &yes}}}
	}
	d := decided(other, wirer)
	ask := e.asker(t.Context(), d, 2, "", &said)
	for _, tt := range []struct {
		path string
		code fault.Code
		want []string
	}{
		{"/allow", "", nil},
		{"/deny", fault.Denied, []string{
			"denied by rule wirer.denied: the push to git.example:22/deny of refs/heads/main, refs/heads/x: ", "; instead: do something else",
			`"on":"git-push","host":"git.example","port":22,"path":"/deny","remote":"ssh://git.example//deny","refs":[{"name":"refs/heads/main","old":"1","new":"2","force":null},{"name":"refs/heads/x","old":"","new":"","force":true}]`,
			`"call":{"tool":"git","args":["push","decided"],"execution_id":"x1","attempt":2,"caller":"me"}`,
		}},
		{"/trap", fault.ToolBroken, []string{"did not decide about the push to git.example:22/trap", "a policy that panics"}},
		{"/loop", fault.ToolBroken, []string{"did not decide"}},
		{"/mute", fault.ToolBroken, []string{"did not decide", "no decision"}},
		{"/changes", fault.ToolBroken, []string{"answered args about"}},
		{"/effect", fault.Denied, []string{`effect "perhaps" is neither allow nor deny`}},
	} {
		err := ask(t.Context(), facts(tt.path))
		if tt.code == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.path, err)
			}
			continue
		}
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Code != tt.code {
			t.Errorf("%s: %v", tt.path, err)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(f.Message, want) {
				t.Errorf("%s: %s\nlacks %s", tt.path, f.Message, want)
			}
		}
		if !strings.Contains(said.String(), "toold: "+f.Message+"\n") {
			t.Errorf("standard error has not %s: %s", f.Message, said.String())
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := ask(ended, facts("/allow")); err == nil {
		t.Error("it is allowed when the connection is gone")
	}
	if err := e.asker(ended, d, 1, "", &said)(t.Context(), facts("/allow")); err == nil {
		t.Error("it is allowed when the run is over")
	}
	connections := d.Execution.Connections()
	if c := connections[0]; len(connections) < 8 || c.Host != "git.example:22" || c.On != "the push to git.example:22/allow of refs/heads/main, refs/heads/x" || c.Rule != "wirer" || c.Refused != "" {
		t.Errorf("%+v", connections)
	}
	if c := connections[1]; c.Rule != "wirer.denied" || !strings.HasPrefix(c.Refused, "denied by rule wirer.denied: ") {
		t.Errorf("%+v", c)
	}
	// The second of two policies is asked as well, and one refusal is enough. Each is
	// said once.
	said.Reset()
	ask = e.asker(t.Context(), decided(wirer, wirer), 1, "", &said)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if ask(t.Context(), &abi.Wire{On: abi.WireHTTP, Host: "h", Port: 443, Method: "GET", Path: "/\x1b[2J?key=hidden"}) == nil {
				t.Error("it is allowed")
			}
		})
	}
	all.Wait()
	if n := strings.Count(said.String(), "the request GET h:443/[2J: "); n != 1 || strings.Contains(said.String(), "\x1b") {
		t.Errorf("it is said %d times: %q", n, said.String())
	}
}
