package mcp_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// taskAnswer is what is answered to a call that may be a task, and to tasks/get.
type taskAnswer struct {
	ResultType string `json:"resultType"`
	ID         string `json:"taskId"`
	Status     string `json:"status"`
	IsError    bool   `json:"isError"`
	Result     *struct {
		IsError bool `json:"isError"`
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
		Structured map[string]any `json:"structuredContent"`
		Meta       map[string]any `json:"_meta"`
	} `json:"result"`
	Error *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// modern makes one request of the version without sessions, as a client that knows
// tasks, unless extensions says otherwise.
func (s *site) modern(t testing.TB, token, method, params, extensions string) (answer taskAnswer, code int) {
	t.Helper()
	if extensions == "" {
		extensions = `{"io.modelcontextprotocol/tasks":{}}`
	}
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + newest + `","io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"extensions":` + extensions + `}}`
	header := map[string]string{"Mcp-Protocol-Version": newest, "Mcp-Method": method}
	var named struct{ Name, TaskID string }
	json.Unmarshal([]byte("{"+params+"}"), &named)
	header["Mcp-Name"] = named.Name + named.TaskID
	_, _, body := s.ask(t, "POST", "/mcp", token, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+`,`+meta+`}}`, header)
	for line := range strings.Lines(body) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			body = data // the last one is the answer
		}
	}
	var got struct {
		Result *taskAnswer `json:"result"`
		Error  *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%s answered %q: %v", method, body, err)
	}
	if got.Error != nil {
		return taskAnswer{}, got.Error.Code
	}
	return *got.Result, 0
}

// settled waits for the end of a task.
func (s *site) settled(t testing.TB, token, id string) taskAnswer {
	t.Helper()
	var got taskAnswer
	until(t, "the task has ended", func() bool {
		var code int
		if got, code = s.modern(t, token, "tasks/get", `"taskId":"`+id+`"`, ""); code != 0 {
			t.Fatalf("tasks/get: error %d", code)
		}
		return got.Status != "working"
	})
	return got
}

// A call that takes its time is a task of its identity, over restarts of the daemon.
func TestTasks(t *testing.T) {
	state, err := os.MkdirTemp("", "state")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	s := web(t, config.Config{State: state, Reliability: "off"}, map[string]object{"dd": {"binary": "dd"}, "echo": {"binary": "echo"}})
	alice, bob := s.Token(t, object{"sub": "alice"}), s.Token(t, object{"sub": "bob"})

	if got, _ := s.modern(t, alice, "tools/call", `"name":"echo","arguments":{"args":["quick"]}`, ""); got.ResultType != "complete" || got.ID != "" {
		t.Errorf("a quick call: %+v", got)
	}
	fifo := gate(t, s.Daemon)
	call := `"name":"dd","arguments":{"args":["if=` + fifo + `","status=none"]}`
	got, _ := s.modern(t, alice, "tools/call", call, "")
	if got.ResultType != "task" || got.Status != "working" || got.ID == "" {
		t.Fatalf("a long call: %+v", got)
	}
	id := `"taskId":"` + got.ID + `"`
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		if _, code := s.modern(t, bob, method, id, ""); code != -32602 {
			t.Errorf("%s of another's task: %d", method, code)
		}
		if _, code := s.modern(t, alice, method, id, "{}"); code != -32021 {
			t.Errorf("%s of a client that does not know tasks: %d", method, code)
		}
		if _, code := s.modern(t, alice, method, `"taskId":"\") || true || (\""`, ""); code != -32602 {
			t.Errorf("%s of what is no id: %d", method, code)
		}
	}
	if got, _ := s.modern(t, alice, "tasks/get", id, ""); got.Status != "working" {
		t.Errorf("while it runs: %+v", got)
	}
	open := awaitReader(t, fifo)
	open.WriteString("in the end")
	open.Close()
	got = s.settled(t, alice, got.ID)
	if got.Status != "completed" || got.Result == nil || got.Result.IsError || got.Result.Content[0].Text != "in the end" {
		t.Errorf("at its end: %+v", got)
	}

	running, _ := s.modern(t, alice, "tools/call", call, "")
	open = awaitReader(t, fifo)
	if _, code := s.modern(t, alice, "tasks/cancel", `"taskId":"`+running.ID+`"`, ""); code != 0 {
		t.Errorf("tasks/cancel: %d", code)
	}
	awaitEnd(t, open)
	open.Close()
	if got := s.settled(t, alice, running.ID); got.Status != "cancelled" {
		t.Errorf("after tasks/cancel: %+v", got)
	}

	s.Stop(t)
	c := s.Config
	c.Socket = ""
	again := &site{Issuer: s.Issuer, Daemon: hosttest.Start(t, c)}
	again.AwaitLog(t, 0, `"msg":"ready"`)
	again.url = "http://" + atAddress.FindStringSubmatch(again.Logs())[1] + "/mcp"
	if got := again.settled(t, alice, got.ID); got.Status != "completed" || got.Result == nil || got.Result.Content[0].Text != "in the end" {
		t.Errorf("after a restart: %+v", got)
	}
}

// A call that became a task waits for its approval as one: nobody but who may decides it,
// by whatever state they present, it runs once, and its client learns of it by tasks/get.
func TestApprovalOfATask(t *testing.T) {
	s := web(t, config.Config{}, nil, func(dir string) {
		def := object{"binary": "/bin/sh", "mutating": true, "capabilities": object{"exec": []string{"/usr/bin", "/bin"}}}
		hosttest.WriteTool(t, dir, "ledger", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/policy")})
	})
	alice, bob := s.Token(t, object{"sub": "alice"}), s.Token(t, object{"sub": "bob"})
	call := func(how string) string {
		b, err := json.Marshal(object{"args": []string{"ask", how, "-c", `echo one >> ledger`}, "cwd": s.Root})
		if err != nil {
			t.Fatal(err)
		}
		return `"name":"ledger","arguments":` + string(b)
	}
	ledger := func() string {
		b, _ := os.ReadFile(filepath.Join(s.Root, "ledger"))
		return string(b)
	}
	operator := &client.Approvals{Operator: client.NewAdmin(s.Config.Admin)}
	pending := func() (id string) {
		t.Helper()
		until(t, "it is asked for", func() bool {
			list, err := operator.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range list {
				if a.State == "pending" {
					id = a.ID
				}
			}
			return id != ""
		})
		return id
	}
	for _, how := range []string{`{}`, `{"self":true}`} {
		before := ledger()
		got, _ := s.modern(t, alice, "tools/call", call(how), "")
		if got.ResultType != "task" || got.Status != "working" {
			t.Fatalf("%s: %+v", how, got)
		}
		id := pending()
		// Another tenant makes the same call, and answers with the state of this one.
		s.modern(t, bob, "tools/call", call(how)+`,"requestState":"`+id+`","inputResponses":{"io.toold/approval":{"action":"accept"}}`, "{}")
		if _, code := s.modern(t, bob, "tasks/update", `"taskId":"`+got.ID+`","inputResponses":{"io.toold/approval":{"action":"accept"}}`, ""); code != -32602 {
			t.Errorf("%s: another tenant's tasks/update: %d", how, code)
		}
		if how == `{}` { // it is not for the asker either
			s.modern(t, alice, "tools/call", call(how)+`,"requestState":"`+id+`","inputResponses":{"io.toold/approval":{"action":"accept"}}`, "{}")
		}
		s.modern(t, alice, "tasks/update", `"taskId":"`+got.ID+`","inputResponses":{"io.toold/approval":{"action":"accept"}}`, "")
		if a, err := operator.Show(t.Context(), id); err != nil || a.State != "pending" || ledger() != before {
			t.Fatalf("%s: %v, %v, the ledger has %q", how, a.State, err, ledger())
		}
		if _, err := operator.Decide(t.Context(), id, true, ""); err != nil {
			t.Fatal(err)
		}
		if end := s.settled(t, alice, got.ID); end.Status != "completed" || end.Result == nil || end.Result.IsError || ledger() != before+"one\n" {
			t.Errorf("%s: %+v, the ledger has %q", how, end, ledger())
		}
		list, err := operator.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list { // the other tenant's
			if a.State == "pending" {
				if _, err := operator.Decide(t.Context(), a.ID, false, ""); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
