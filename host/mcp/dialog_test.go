package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/mcp"
)

// showing has the tools of the module show, with this definition.
func showing(t *testing.T, def object) func(dir string) {
	return func(dir string) {
		hosttest.WriteTool(t, dir, "show", def, map[string]string{"handler.wasm": hosttest.Guest(t, "host/mcp/testdata/guests/show")})
	}
}

// user answers what a tool asks, and keeps what was shown.
type user struct {
	action string
	says   map[string]any
	before func()
	shown  []string
}

func (u *user) options() *sdk.ClientOptions {
	return &sdk.ClientOptions{ElicitationHandler: func(_ context.Context, q *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		u.shown = append(u.shown, q.Params.Message)
		if u.before != nil {
			u.before()
		}
		if u.action != "accept" {
			return &sdk.ElicitResult{Action: u.action}, nil
		}
		return &sdk.ElicitResult{Action: u.action, Content: u.says}, nil
	}}
}

// A module asks the user of its client, in both kinds of versions, and reads the answer
// by tool_recv; who is asked sees which tool it is.
func TestToolAsksTheUser(t *testing.T) {
	s := web(t, config.Config{}, nil, showing(t, object{"timeout": 1}))
	token := s.Token(t, object{"sub": "alice"})
	ways := map[string]func(*sdk.ClientOptions) *sdk.ClientSession{
		"socket": func(o *sdk.ClientOptions) *sdk.ClientSession {
			return connect(t, s.Config.Sockets[0].Path, mcp.Caller{Token: token}, o)
		},
	}
	for _, version := range []string{oldest, newest} {
		ways[version] = func(o *sdk.ClientOptions) *sdk.ClientSession { return s.connect(t, token, version, o) }
	}
	for way, connect := range ways {
		t.Run(way, func(t *testing.T) {
			u := &user{action: "accept", says: map[string]any{"input": "yes"}}
			c := connect(u.options())
			if r := invoke(t, c, "ask_line", object{}); r.IsError || !strings.Contains(text(r), "said yes\n") {
				t.Errorf("a line: %q", text(r))
			}
			if len(u.shown) != 1 || u.shown[0] != "The tool \"ask_line\" asks:\nrelease 1.2? [yes/no] " {
				t.Errorf("shown: %q", u.shown)
			}
			u.action = "decline"
			if r := invoke(t, c, "ask_line", object{}); !r.IsError || !strings.Contains(text(r), "nobody answers") {
				t.Errorf("declined: %q", text(r))
			}
			u.action, u.says = "accept", map[string]any{"name": "Alice"}
			if r := invoke(t, c, "test_input_required_result_elicitation", object{}); r.IsError || !strings.Contains(text(r), `"name":"Alice"`) {
				t.Errorf("a form: %q", text(r))
			}
			// What the user thinks about is not the tool's time.
			other := connect(nil)
			u.before = func() {
				if r := invoke(t, other, "slow_compute", object{"seconds": 60}); !strings.Contains(text(r), "TIMEOUT") {
					t.Errorf("a slow call: %q", text(r))
				}
			}
			if r := invoke(t, c, "test_input_required_result_elicitation", object{}); r.IsError {
				t.Errorf("answered after longer than the tool's time: %q", text(r))
			}
			u.before, u.shown = nil, nil
			for _, tool := range []string{"ask_as_the_daemon", "ask_for_a_page"} {
				if r := invoke(t, c, tool, object{}); !r.IsError || len(u.shown) > 0 {
					t.Errorf("%s: %q, shown %q", tool, text(r), u.shown)
				}
			}
			u.says = map[string]any{}
			if r := invoke(t, c, "ask_in_disguise", object{}); r.IsError || len(u.shown) != 1 || u.shown[0] != "The tool \"ask_in_disguise\" asks:\nRun \"git\"?\uFFFD\uFFFD[2J" {
				t.Errorf("shown: %q", u.shown)
			}
			if r, err := other.CallTool(bound(t), &sdk.CallToolParams{Name: "ask_line"}); err != nil || !strings.Contains(text(r), "nobody answers") {
				t.Errorf("of a client that cannot ask: %v, %v", r, err)
			}
		})
	}
}

// turn is what is answered to a call that may ask.
type turn struct {
	Kind  string                     `json:"resultType"`
	Asks  map[string]json.RawMessage `json:"inputRequests"`
	State string                     `json:"requestState"`
	ID    string                     `json:"-"`
	Code  int                        `json:"-"`
	Text  string                     `json:"-"`
	Meta  map[string]any             `json:"_meta"`
}

// call makes one call of the version without sessions, as a client that can ask its user.
func (s *site) call(t testing.TB, token, tool, more string) turn {
	t.Helper()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `",` + more +
		`"_meta":{"io.toold/idempotencyKey":"k-` + tool + `","io.modelcontextprotocol/protocolVersion":"` + newest + `","io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`
	_, _, said := s.ask(t, "POST", "/mcp", token, body, map[string]string{"Mcp-Protocol-Version": newest, "Mcp-Method": "tools/call", "Mcp-Name": tool})
	for line := range strings.Lines(said) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			said = data
		}
	}
	var got struct {
		Result turn
		Error  struct{ Code int }
	}
	if err := json.Unmarshal([]byte(said), &got); err != nil {
		t.Fatalf("%s: %v", said, err)
	}
	got.Result.Code, got.Result.Text = got.Error.Code, said
	got.Result.ID, _ = got.Result.Meta["io.toold/executionId"].(string)
	return got.Result
}

// The call that asked is the one that goes on with the answer, once, whatever the client
// repeats; and only its own client answers it, as it was made.
func TestAnswersOfARepeatedCall(t *testing.T) {
	s := web(t, config.Config{Reliability: "all"}, nil, showing(t, object{}))
	alice, bob := s.Token(t, object{"sub": "alice"}), s.Token(t, object{"sub": "bob"})
	const tool = "test_input_required_result_multi_round"
	first := s.call(t, alice, tool, `"arguments":{"a":1,"b":2},`)
	if first.Kind != "input_required" || len(first.Asks) != 1 || first.State == "" {
		t.Fatalf("the first answer: %s", first.Text)
	}
	// The client lost that answer, and asks anew: the module does not run again.
	if again := s.call(t, alice, tool, `"arguments":{"b":2,"a":1},`); again.State != first.State {
		t.Errorf("asked again with the key: %s", again.Text)
	}
	answer := func(key, content string) string {
		return `"inputResponses":{"` + key + `":{"action":"accept","content":` + content + `}},`
	}
	name := answer("user_name", `{"name":"Alice"}`)
	state := func(s string) string { return `"requestState":"` + s + `",` }
	const args = `"arguments":{"a":1,"b":2},`
	for what, got := range map[string]turn{
		"another identity":  s.call(t, bob, tool, args+name+state(first.State)),
		"other arguments":   s.call(t, alice, tool, `"arguments":{"a":2,"b":2},`+name+state(first.State)),
		"an altered state":  s.call(t, alice, tool, args+name+state(first.State+"x")),
		"a state of nobody": s.call(t, alice, tool, args+name+state("x")),
	} {
		if got.Code != -32602 {
			t.Errorf("%s: %s", what, got.Text)
		}
	}
	if got := s.call(t, alice, tool, args+answer("other", `{"name":"Eve"}`)+state(first.State)); got.State != first.State {
		t.Errorf("an answer to something else: %s", got.Text)
	}
	second := s.call(t, alice, tool, args+name+state(first.State))
	if second.Kind != "input_required" || second.State == first.State || second.Asks["confirm"] == nil {
		t.Fatalf("the second answer: %s", second.Text)
	}
	// The client lost that too, and repeats its answer, altered: the first one counts.
	if again := s.call(t, alice, tool, args+answer("user_name", `{"name":"Mallory"}`)+state(first.State)); again.State != second.State {
		t.Errorf("the answer again: %s", again.Text)
	}
	last := s.call(t, alice, tool, args+answer("confirm", `{"ok":true}`)+state(second.State))
	if last.Kind != "complete" || !strings.Contains(last.Text, "Alice") || strings.Contains(last.Text, "Mallory") || last.ID == "" {
		t.Fatalf("the last answer: %s", last.Text)
	}
	for what, got := range map[string]turn{
		"the last answer again": s.call(t, alice, tool, args+answer("confirm", `{"ok":false}`)+state(second.State)),
		"the first one again":   s.call(t, alice, tool, args+name+state(first.State)),
		"the call with its key": s.call(t, alice, tool, args),
	} {
		if got.Kind != "complete" || got.ID != last.ID && got.Meta["io.toold/fromCache"] != true || !strings.Contains(got.Text, "Alice") {
			t.Errorf("%s: %s", what, got.Text)
		}
	}
}

// An answer that comes twice is not that to the next question, also where that is the same.
func TestAnswerThatComesTwice(t *testing.T) {
	s := web(t, config.Config{}, nil, showing(t, object{}))
	token := s.Token(t, object{"sub": "alice"})
	answer := func(state, name string) turn {
		return s.call(t, token, "ask_twice", `"arguments":{},"requestState":"`+state+`","inputResponses":{"user_name":{"action":"accept","content":{"name":"`+name+`"}}},`)
	}
	first := s.call(t, token, "ask_twice", `"arguments":{},`)
	second := answer(first.State, "Alice")
	if second.Kind != "input_required" || second.State == first.State {
		t.Fatalf("the second question: %s", second.Text)
	}
	if again := answer(first.State, "Alice"); again.State != second.State {
		t.Errorf("the first answer again: %s", again.Text)
	}
	if last := answer(second.State, "Bob"); last.Kind != "complete" || !strings.Contains(last.Text, "Alice") || !strings.Contains(last.Text, "Bob") {
		t.Errorf("the second answer: %s", last.Text)
	}
}

// What nobody answers is bounded, and does not keep a daemon from stopping.
func TestQuestionsThatNobodyAnswers(t *testing.T) {
	s := web(t, config.Config{}, nil, showing(t, object{"limits": object{"concurrency": 80}}))
	token := s.Token(t, object{"sub": "alice"})
	refused := 0
	for i := range 65 {
		tool := "test_input_required_result_elicitation"
		got := s.call(t, token, tool, fmt.Sprintf(`"arguments":{"n":%d},`, i))
		if got.Kind != "input_required" {
			refused++
			if !strings.Contains(got.Text, "wait for its answers") {
				t.Errorf("call %d: %s", i, got.Text)
			}
		}
	}
	if refused != 1 {
		t.Errorf("%d of 65 questions were refused, want 1", refused)
	}
	if got := s.call(t, s.Token(t, object{"sub": "bob"}), "test_input_required_result_elicitation", ``); got.Kind != "input_required" {
		t.Errorf("a question of another identity: %s", got.Text)
	}
	task, _ := s.modern(t, s.Token(t, object{"sub": "carol"}), "tools/call", `"name":"confirm_delete","arguments":{}`, `{"io.modelcontextprotocol/tasks":{}},"elicitation":{}`)
	asked := s.settled(t, s.Token(t, object{"sub": "carol"}), task.ID)
	if asked.Status != "input_required" {
		t.Fatalf("a task that asks: %+v", asked)
	}
	s.Stop(t)
	if logs := s.Logs(); !strings.Contains(logs, "the daemon is stopping, and nobody has answered") {
		t.Error("a task waited for its answer while the daemon stopped")
	}
}

// Nobody answers for another identity on a connection that has several, nor sees what was
// answered.
func TestStateOfAnotherToken(t *testing.T) {
	s := web(t, config.Config{}, nil, showing(t, object{}))
	alice, bob := s.Token(t, object{"sub": "alice"}), s.Token(t, object{"sub": "bob"})
	nc := dial(t, s.Config.Sockets[0].Path, mcp.Caller{Token: alice}).Writer.(net.Conn)
	defer nc.Close()
	in := bufio.NewReader(nc)
	call := func(token, more string) turn {
		t.Helper()
		said := ""
		if token != "" {
			said = `"io.toold/token":"` + token + `",`
		}
		_, err := io.WriteString(nc, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"test_input_required_result_elicitation","arguments":{},`+more+
			`"_meta":{`+said+`"io.modelcontextprotocol/protocolVersion":"`+newest+`","io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`+"\n")
		if err != nil {
			t.Fatal(err)
		}
		line, err := in.ReadBytes('\n')
		var got struct {
			Result turn
			Error  struct{ Code int }
		}
		if err := errors.Join(err, json.Unmarshal(line, &got)); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		got.Result.Code, got.Result.Text = got.Error.Code, string(line)
		return got.Result
	}
	asked := call("", "")
	if asked.State == "" {
		t.Fatal(asked.Text)
	}
	answer := `"requestState":"` + asked.State + `","inputResponses":{"user_name":{"action":"accept","content":{"name":"Eve"}}},`
	if got := call(bob, answer); got.Code != -32602 {
		t.Errorf("another identity answers: %s", got.Text)
	}
	if got := call("", strings.Replace(answer, "Eve", "Alice", 1)); got.Kind != "complete" || !strings.Contains(got.Text, "Alice") {
		t.Errorf("its own: %s", got.Text)
	}
}

// What runs by an approval is what was shown: its module asks nobody for more.
func TestApprovedCallAsksNothing(t *testing.T) {
	d, path := daemon(t, config.Config{}, nil, func(dir string) {
		hosttest.WriteTool(t, dir, "release", object{}, map[string]string{
			"handler.wasm": hosttest.Guest(t, "sdk-examples/go/ask"), "restricted.wasm": hosttest.Guest(t, "host/testdata/guests/policy"),
		})
	})
	u := &user{action: "accept", says: map[string]any{"input": "yes"}}
	c := connect(t, path, mcp.Caller{Cwd: d.Root}, u.options())
	if r := invoke(t, c, "release", object{"args": []string{"1.1"}}); !strings.Contains(text(r), "released 1.1") || len(u.shown) != 1 {
		t.Fatalf("without an approval: %q, shown %q", text(r), u.shown)
	}
	u.shown = nil
	r := invoke(t, c, "release", object{"args": []string{"ask", `{"self":true}`, "1.2"}})
	if !strings.Contains(text(r), "nobody answers") || len(u.shown) != 1 || !strings.HasPrefix(u.shown[0], "Run ") {
		t.Errorf("%q, shown %q", text(r), u.shown)
	}
}

// An answer is part of the input, which a retry would lack: the user is not asked twice.
func TestAnsweredCallIsNotRetried(t *testing.T) {
	s := web(t, config.Config{Reliability: "all"}, nil, showing(t, object{"reliability": object{"retry": object{"max": 3, "initial_ms": 1, "cap_ms": 1}}}))
	u := &user{action: "accept", says: map[string]any{"name": "Alice"}}
	c := s.connect(t, s.Token(t, object{"sub": "alice"}), oldest, u.options())
	if r := invoke(t, c, "ask_and_fail", object{}); !r.IsError || !strings.Contains(text(r), "try again") || len(u.shown) != 1 {
		t.Errorf("%q, shown %q", text(r), u.shown)
	}
}
