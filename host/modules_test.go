package host_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

const callerPkg = "host/testdata/guests/caller"

// callerTool adds a module of that name to d which makes the calls of its arguments,
// as far as allowed lets it.
func callerTool(t testing.TB, d *hosttest.Daemon, name string, allowed any, more M) {
	t.Helper()
	def := M{"capabilities": M{"tool_call": allowed}}
	for k, v := range more {
		def[k] = v
	}
	d.Tool(t, name, def, map[string]string{"handler.wasm": hosttest.Guest(t, callerPkg)})
}

// envelope is a call of tool with args, as a module makes it.
func envelope(t testing.TB, tool string, args ...string) M {
	return M{"toolId": tool, "executionId": newExecution(), "payload": M{"args": append([]string{}, args...)}}
}

func text(t testing.TB, req M) string {
	t.Helper()
	b, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// inner is what a module was answered.
type inner struct {
	Status string
	Error  struct {
		Code, Message string
		Retriable     bool
	}
	Data json.RawMessage
	raw  string
}

func (i *inner) is(code string) bool {
	return i.Error.Code == code && (code == "") == (i.Status == "success")
}

// answers are what the module was answered of which a is the answer.
func answers(t testing.TB, a *answer) (list []inner) {
	t.Helper()
	for line := range strings.Lines(a.Stdout) {
		i := inner{raw: line}
		if err := json.Unmarshal([]byte(line), &i); err != nil {
			t.Fatalf("%v: %s", err, a.raw)
		}
		list = append(list, i)
	}
	if len(list) == 0 {
		t.Fatalf("%s", a.raw)
	}
	return list
}

// through has the module make one call.
func through(t testing.TB, d *hosttest.Daemon, module string, req M) inner {
	t.Helper()
	return answers(t, ask(t, d.Socket, M{"tool": module, "args": []string{text(t, req)}, "cwd": d.Root}))[0]
}

// moduleDaemon has tools to be called by modules.
func moduleDaemon(t testing.TB, c config.Config) *hosttest.Daemon {
	t.Helper()
	d := sessionDaemon(t, c)
	d.Tool(t, "guarded", M{"binary": "/usr/bin/printf"}, map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	return d
}

// A module calls the tools that its list has, as its caller would: in its folder,
// behind their policies. The list is held to also in a turn.
func TestModulesCallTools(t *testing.T) {
	d := moduleDaemon(t, config.Config{})
	callerTool(t, d, "some", []string{"sh", "guarded", "session.prompt", "session.query"}, nil)
	callerTool(t, d, "all", []string{"*"}, nil)
	callerTool(t, d, "sessions", true, nil)
	if i := through(t, d, "some", envelope(t, "sh", "-c", "pwd; id -u >/dev/null")); !i.is("") || !strings.Contains(string(i.Data), d.Root) {
		t.Errorf("a call: %s", i.raw)
	}
	prompt := func(text string) M {
		return M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"text": text}}
	}
	for _, tt := range []struct {
		what, module string
		req          M
		code, says   string
	}{
		{"what its policy refuses", "some", envelope(t, "guarded", "deny"), "DENIED", "rule test.deny"},
		{"a tool that is not in the list", "some", envelope(t, "cat"), "DENIED", "rule tool_call"},
		{"a tool that is not there", "some", envelope(t, "nosuch"), "DENIED", "rule tool_call"},
		{"a tool that is not there, of any", "all", envelope(t, "nosuch"), "UNKNOWN_TOOL", ""},
		{"a turn of the list", "some", prompt("sh -c 'echo a turn'"), "", ""},
		{"a turn of another tool", "some", prompt("cat /dev/null"), "DENIED", "rule tool_call"},
		{"a session call of the list", "some", M{"toolId": "session.query", "executionId": newExecution(), "payload": M{"selector": "1"}}, "", ""},
		{"a session call that is not in it", "some", M{"toolId": "session.mutate", "executionId": newExecution(), "payload": M{"op": "set-tools"}}, "DENIED", "session.mutate"},
		{"every tool is no session call", "all", prompt("cat /dev/null"), "DENIED", "session.prompt"},
		{"true is no tool", "sessions", envelope(t, "sh"), "INVALID_PAYLOAD", "capabilities.tool_call"},
		{"true is every turn", "sessions", prompt("cat /dev/null"), "", ""},
		{"its own token", "all", M{"toolId": "cat", "executionId": newExecution(), "payload": M{}, "token": "x"}, "INVALID_PAYLOAD", "token"},
		{"the plain form", "all", M{"tool": "cat"}, "INVALID_PAYLOAD", "envelope"},
		{"true is not session.watch", "sessions", M{"toolId": "session.watch", "payload": M{}}, "DENIED", "session.watch"},
		{"what changes something", "all", envelope(t, "change", "-c", "touch changed"), "DENIED", "rule tool_call"},
	} {
		if i := through(t, d, tt.module, tt.req); !i.is(tt.code) || !strings.Contains(i.Error.Message, tt.says) {
			t.Errorf("%s: %s", tt.what, i.raw)
		}
	}
	callerTool(t, d, "changes", []string{"*"}, M{"mutating": true})
	if i := through(t, d, "changes", envelope(t, "change", "-c", "echo changed")); !i.is("") || !strings.Contains(string(i.Data), "changed") {
		t.Errorf("a call that changes something, of one that does: %s", i.raw)
	}
}

// What a list cannot be is an error of tool.json.
func TestToolCallLists(t *testing.T) {
	for _, bad := range []any{[]string{"Git"}, []string{"session.*"}, []string{"tools.list"}, "git", 1, []int{1}, []string{""}} {
		dir := t.TempDir()
		hosttest.WriteTool(t, dir, "bad", M{"capabilities": M{"tool_call": bad}}, map[string]string{"handler.wasm": hosttest.Guest(t, callerPkg)})
		d := hosttest.Start(t, config.Config{Tools: dir})
		a := ask(t, d.Socket, M{"tool": "bad"})
		if a.Code != "TOOL_BROKEN" || !strings.Contains(a.message(), "tool_call") {
			t.Errorf("%v: %s", bad, a.raw)
		}
		d.Stop(t)
	}
}

// A module calls in the session of its own call, within the tools of that, and
// lists what it may call there.
func TestModulesKeepToTheirSession(t *testing.T) {
	d := moduleDaemon(t, config.Config{})
	callerTool(t, d, "some", []string{"sh", "cat"}, nil)
	id, other := newSession(t, d.Socket), newSession(t, d.Socket)
	if a := session(t, d.Socket, "mutate", M{"op": "set-tools", "id": id, "params": M{"tools": []string{"some", "cat", "change"}}}); a.Status != "success" {
		t.Fatalf("%s", a.raw)
	}
	list := M{"toolId": "tools.list", "executionId": newExecution(), "payload": M{}}
	elsewhere := envelope(t, "sh", "-c", "echo no")
	elsewhere["session"] = other
	a := ask(t, d.Socket, M{"tool": "some", "cwd": d.Root, "session": id, "args": []string{
		text(t, list), text(t, envelope(t, "sh", "-c", "echo no")), text(t, elsewhere), text(t, envelope(t, "cat", "/dev/null"))}})
	got := answers(t, a)
	var l struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(got[0].Data, &l); err != nil || len(l.Tools) != 1 || l.Tools[0].Name != "cat" {
		t.Errorf("the list: %v: %s", err, got[0].raw)
	}
	if !got[1].is("DENIED") || !strings.Contains(got[1].Error.Message, "session.tools") {
		t.Errorf("a tool that the session has not: %s", got[1].raw)
	}
	if !got[2].is("DENIED") || !strings.Contains(got[2].Error.Message, "leave out session") {
		t.Errorf("another session: %s", got[2].raw)
	}
	if !got[3].is("") {
		t.Errorf("a tool of the session: %s", got[3].raw)
	}
}

// A module sees the tools of its caller and of nobody else.
func TestModulesSeeTheirCallersTools(t *testing.T) {
	c := newCounter(t, nil, nil)
	callerTool(t, c.Daemon, "all", []string{"*"}, nil)
	token := c.token(t, nil)
	list := M{"toolId": "tools.list", "executionId": newExecution(), "payload": M{}}
	bob := M{"toolId": "user_bob", "executionId": newExecution(), "payload": M{}}
	alice := M{"toolId": "user_alice", "executionId": newExecution(), "payload": M{}}
	a := ask(t, c.Socket, M{"tool": "all", "token": token, "args": []string{text(t, list), text(t, alice), text(t, bob)}})
	got := answers(t, a)
	if s := string(got[0].Data); !strings.Contains(s, `"user_alice"`) || strings.Contains(s, "user_bob") {
		t.Errorf("the list: %s", s)
	}
	if !got[1].is("") {
		t.Errorf("a tool of the caller: %s", got[1].raw)
	}
	if !got[2].is("UNKNOWN_TOOL") {
		t.Errorf("a tool of another: %s", got[2].raw)
	}
	if r := c.call(t, c.token(t, M{"sub": "bob", "user": "bob"}), "user_bob", M{}); r.Err != nil {
		t.Errorf("that tool, for whom it is: %v", r.Err)
	}
}

// Modules that call one another come to an end: no tool is called in a call of
// itself, and the chain has a length.
func TestModulesCallNotForEver(t *testing.T) {
	d := moduleDaemon(t, config.Config{})
	callerTool(t, d, "all", []string{"*"}, nil)
	callerTool(t, d, "other", []string{"*"}, nil)
	if i := through(t, d, "all", envelope(t, "all")); !i.is("DENIED") || !strings.Contains(i.Error.Message, "rule cycle") {
		t.Errorf("itself: %s", i.raw)
	}
	last := func(i inner) inner { // what the innermost was answered
		for {
			var data struct{ Stdout string }
			if json.Unmarshal(i.Data, &data) != nil || !strings.HasPrefix(data.Stdout, "{") {
				return i
			}
			i = answers(t, &answer{Stdout: data.Stdout})[0]
		}
	}
	if i := last(through(t, d, "all", envelope(t, "other", text(t, envelope(t, "all"))))); !i.is("DENIED") || !strings.Contains(i.Error.Message, "rule cycle") {
		t.Errorf("through another: %s", i.raw)
	}
	req := envelope(t, "cat", "/dev/null")
	for n := range 10 {
		name := fmt.Sprintf("link%d", n)
		callerTool(t, d, name, []string{"*"}, nil)
		req = envelope(t, name, text(t, req))
	}
	if i := last(through(t, d, "all", req)); !i.is("LIMIT_EXCEEDED") || !strings.Contains(i.Error.Message, "8 deep") {
		t.Errorf("a chain: %s", i.raw)
	}
}

// What a module calls ends with its own call: by its deadline, by an abort, with its
// caller. The session's journal, its snapshot and the audit log say what asked for it.
func TestWhatAModuleCallsEndsWithIt(t *testing.T) {
	d := moduleDaemon(t, config.Config{Reliability: "all"})
	callerTool(t, d, "all", []string{"*"}, M{"mutating": true})
	gone := func(tool string) bool {
		return value[bool](t, d.Socket, "", fmt.Sprintf("!session.running.exists(x, x.tool == %q)", tool))
	}
	wait := func(key string) M {
		req := envelope(t, "change", "-c", "echo waits; exec sleep 1000")
		req["idempotencyKey"] = key // such a call outlives its caller where it has one that could ask for it
		return req
	}
	runs := func() bool {
		return value[bool](t, d.Socket, "", `session.running.exists(x, x.tool == "change" && x.last_line == "waits")`)
	}

	began := time.Now()
	a := ask(t, d.Socket, M{"tool": "all", "cwd": d.Root, "args": []string{text(t, wait("a"))}, "timeout_ms": 1500})
	if a.Code != "TIMEOUT" || time.Since(began) > time.Minute || !gone("change") {
		t.Errorf("the deadline of the module's call: %s", a.raw)
	}
	if code := value[string](t, d.Socket, "", `session.recent.filter(x, x.tool == "change")[0].code`); code != "OUTCOME_UNKNOWN" {
		t.Errorf("what was called at its deadline: %s", code)
	}

	c := talk(t, d.Socket)
	parent := newExecution()
	c.send(M{"toolId": "all", "executionId": parent, "payload": M{"args": []string{text(t, wait("b"))}, "cwd": d.Root}})
	until(t, "it is called", runs)
	if by := value[string](t, d.Socket, "", `session.running.filter(x, x.tool == "change")[0].parent`); by != parent {
		t.Errorf("the parent of a running call is %q", by)
	}
	session(t, d.Socket, "abort", M{"execution": parent})
	if a := c.answer(); !strings.Contains(string(a.raw), "ABORTED") || !gone("change") {
		t.Errorf("an abort: %s", a.raw)
	}
	c = talk(t, d.Socket)
	c.send(M{"tool": "all", "cwd": d.Root, "args": []string{text(t, wait("c"))}})
	until(t, "it is called", runs)
	c.c.Close()
	until(t, "its caller left, and it ended", func() bool { return gone("change") && gone("all") })

	if !value[bool](t, d.Socket, "", fmt.Sprintf(`session.journal.exists(r, r.t == "end" && r.tool == "change" && r.parent == %q)`, parent)) {
		t.Errorf("the journal does not have the parent")
	}
	if log := auditLog(t, d); !slices.ContainsFunc(log, func(e *audit.CallEntry) bool { return e.Call.Tool == "change" && e.Call.Parent == parent }) {
		t.Errorf("the audit log does not have the parent")
	}
}

// The modules of a call, and of all that it calls, have together the fuel that the
// call has.
func TestFuelOfAModuleIsOfWhatItCallsToo(t *testing.T) {
	d := moduleDaemon(t, config.Config{})
	callerTool(t, d, "small", []string{"*"}, M{"limits": M{"fuel": 50_000_000}, "timeout": 20})
	callerTool(t, d, "large", []string{"*"}, M{"limits": M{"fuel": int64(1e15)}})
	spin, after := envelope(t, "large", "spin"), envelope(t, "cat", "/dev/null")
	began := time.Now()
	a := ask(t, d.Socket, M{"tool": "small", "cwd": d.Root, "args": []string{text(t, spin), text(t, after)}})
	if a.Code != "LIMIT_EXCEEDED" || !strings.Contains(a.message(), "fuel") || time.Since(began) > time.Minute {
		t.Errorf("%s", a.raw)
	}
	if used := value[int](t, d.Socket, "", "session.telemetry.fuel"); used > 60_000_000 {
		t.Errorf("%d units were used", used)
	}
}

// A job that a module starts goes on when its call has ended, and does not when it was
// ended. It is refused where its call would be.
func TestModulesStartJobs(t *testing.T) {
	d := moduleDaemon(t, config.Config{})
	callerTool(t, d, "some", []string{"sh", "some"}, nil)
	job := func(tool, script string) M {
		req := envelope(t, tool, "-c", script)
		req["background"] = true
		return req
	}
	req := job("sh", "read x; echo $x")
	parent := newExecution()
	a := ask(t, d.Socket, M{"toolId": "some", "executionId": parent, "payload": M{"cwd": d.Root, "args": []string{text(t, req)}}})
	if a.Status != "success" || !strings.Contains(string(a.raw), "job") {
		t.Fatalf("%s", a.raw)
	}
	until(t, "the job ran", func() bool { return value[bool](t, d.Socket, "", `jobs.exists(j, j.state == "done")`) })
	if !value[bool](t, d.Socket, "", fmt.Sprintf(`session.recent.exists(x, x.kind == "job" && x.parent == %q)`, parent)) {
		t.Errorf("the job has another parent")
	}
	for what, req := range map[string]M{"another tool": job("cat", ""), "itself": job("some", "")} {
		if i := through(t, d, "some", req); !i.is("DENIED") {
			t.Errorf("%s: %s", what, i.raw)
		}
	}
	detached := job("sh", "sleep 1000")
	detached["detach"] = true
	if i := through(t, d, "some", detached); !i.is("INVALID_PAYLOAD") {
		t.Errorf("a job that outlives the session: %s", i.raw)
	}
	// The module starts a job, waits in another call, and is aborted.
	parent = newExecution()
	c := talk(t, d.Socket)
	c.send(M{"toolId": "some", "executionId": parent, "payload": M{"cwd": d.Root, "args": []string{text(t, job("sh", "echo waits; sleep 1000")), text(t, envelope(t, "sh", "-c", "echo waits; sleep 1000"))}}})
	until(t, "both run", func() bool {
		return value[bool](t, d.Socket, "", `session.running.filter(x, x.tool == "sh" && x.last_line == "waits").size() == 2`)
	})
	session(t, d.Socket, "abort", M{"execution": parent})
	c.answer()
	until(t, "the job ended, too", func() bool { return value[bool](t, d.Socket, "", `session.running.size() == 0`) })
}

// A module holds a place of its tool while what it calls waits for one. Where that
// might be a place that is waited for in turn, the answer is OVERLOADED.
func TestModulesWaitForNoPlaceThatWaitsForThem(t *testing.T) {
	d := moduleDaemon(t, config.Config{})
	one := M{"limits": M{"concurrency": 1}, "timeout": 60}
	callerTool(t, d, "a", []string{"*"}, one)
	callerTool(t, d, "b", []string{"*"}, one)
	d.Tool(t, "one", M{"binary": "/bin/sh", "limits": M{"concurrency": 1}, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, nil)

	// Nobody has it.
	if i := through(t, d, "a", envelope(t, "one", "-c", "echo free")); !i.is("") {
		t.Errorf("a free place: %s", i.raw)
	}
	// Who has it does not wait for a module: what is called has it next.
	fifo := d.Root + "/fifo"
	ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", "mkfifo fifo go-a go-b"}})
	held := talk(t, d.Socket)
	held.send(M{"tool": "one", "cwd": d.Root, "args": []string{"-c", "echo held; cat " + fifo}})
	until(t, "the place is taken", func() bool {
		return value[bool](t, d.Socket, "", `session.running.exists(x, x.tool == "one" && x.last_line == "held")`)
	})
	waits := talk(t, d.Socket)
	waits.send(M{"tool": "a", "cwd": d.Root, "args": []string{text(t, envelope(t, "one", "-c", "echo next"))}})
	until(t, "it waits", func() bool {
		return value[bool](t, d.Socket, "", `session.running.filter(x, x.tool == "one").size() == 2`)
	})
	ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", "echo go > fifo"}})
	held.answer()
	if i := answers(t, waits.answer())[0]; !i.is("") || !strings.Contains(string(i.Data), "next") {
		t.Errorf("a place that became free: %s", i.raw)
	}

	// Two modules hold what the other one needs.
	first, second := talk(t, d.Socket), talk(t, d.Socket)
	meet := func(mine, theirs string) string { // which begins to wait when both run
		return text(t, envelope(t, "sh", "-c", "echo here; cat go-"+mine+" >/dev/null"))
	}
	first.send(M{"tool": "a", "cwd": d.Root, "args": []string{meet("a", "b"), text(t, envelope(t, "b"))}})
	second.send(M{"tool": "b", "cwd": d.Root, "args": []string{meet("b", "a"), text(t, envelope(t, "a"))}})
	until(t, "both hold their place", func() bool {
		return value[bool](t, d.Socket, "", `session.running.filter(x, x.tool == "sh" && x.last_line == "here").size() == 2`)
	})
	ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", "echo >go-a & echo >go-b & wait"}})
	x, y := answers(t, first.answer())[1], answers(t, second.answer())[1]
	if over := []bool{x.is("OVERLOADED"), y.is("OVERLOADED")}; over[0] == over[1] {
		t.Errorf("one of two has to give way:\n%s%s", x.raw, y.raw)
	}
}

// What a module waits for is no turn and no key that another has.
func TestModulesWaitForNoTurnAndNoKey(t *testing.T) {
	d := moduleDaemon(t, config.Config{Reliability: "all"})
	callerTool(t, d, "all", []string{"*", "session.prompt"}, M{"mutating": true})
	held := talk(t, d.Socket)
	keyed := M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"text": "change -c 'echo waits; exec sleep 1000'"}, "idempotencyKey": "k"}
	held.send(keyed)
	until(t, "the turn runs", func() bool {
		return value[bool](t, d.Socket, "", `session.running.exists(x, x.tool == "change" && x.last_line == "waits")`)
	})
	if i := through(t, d, "all", M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"text": "cat /dev/null", "queue": true}, "timeoutMs": 5000}); !i.is("SESSION_BUSY") {
		t.Errorf("a turn: %s", i.raw)
	}
	same := envelope(t, "change", "-c", "echo waits; exec sleep 1000")
	same["idempotencyKey"] = "k"
	same["payload"].(M)["cwd"] = d.Root
	same["timeoutMs"] = 30_000
	began := time.Now()
	if i := through(t, d, "all", same); !i.is("IDEMPOTENCY_PENDING") || time.Since(began) > 25*time.Second {
		t.Errorf("a key, after %v: %s", time.Since(began), i.raw)
	}
	session(t, d.Socket, "abort", M{})
	held.answer()
}

// A module is told what happens in its session from its cursor on, as often as it
// asks, and of nothing else.
func TestModulesWatchSessions(t *testing.T) {
	d := moduleDaemon(t, config.Config{})
	callerTool(t, d, "watcher", []string{"session.watch", "sh"}, nil)
	id, other := newSession(t, d.Socket), newSession(t, d.Socket)
	watch := func(payload M, within int) M {
		return M{"toolId": "session.watch", "executionId": newExecution(), "payload": payload, "timeoutMs": within}
	}
	type told struct {
		Events []struct{ Event, Tool, Session, Execution string }
		Cursor string
	}
	in := func(req M) (list []told) {
		t.Helper()
		for _, i := range answers(t, ask(t, d.Socket, req)) {
			var data told
			if err := json.Unmarshal(i.Data, &data); err != nil || !i.is("") {
				t.Fatalf("%v: %s", err, i.raw)
			}
			list = append(list, data)
		}
		return list
	}
	first := in(M{"tool": "watcher", "cwd": d.Root, "session": id, "args": []string{text(t, watch(M{}, 60_000))}})[0]
	if len(first.Events) > 0 || first.Cursor == "" {
		t.Fatalf("a first watch: %+v", first)
	}
	ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "session": id, "args": []string{"-c", "echo here"}})
	ask(t, d.Socket, M{"tool": "cat", "cwd": d.Root, "session": other, "args": []string{"/dev/null"}})
	next := in(M{"tool": "watcher", "cwd": d.Root, "session": id, "args": []string{text(t, watch(M{"after": first.Cursor}, 60_000))}})[0]
	kinds := ""
	for _, e := range next.Events {
		if e.Event != "tool" && (e.Session != id || e.Tool == "cat") { // a tool may still be loading
			t.Errorf("%+v", e)
		}
		if e.Tool == "sh" {
			kinds += e.Event + " "
		}
	}
	if kinds != "begin attempt output end " {
		t.Errorf("told of a call: %q", kinds)
	}
	// One that waits is told as soon as something happens.
	c := talk(t, d.Socket)
	cursor := in(M{"tool": "watcher", "cwd": d.Root, "session": other, "args": []string{text(t, watch(M{"id": other}, 60_000))}})[0].Cursor
	waits := watch(M{"id": other, "after": cursor}, 300_000)
	for { // until only what happens next is left
		now := in(M{"tool": "watcher", "cwd": d.Root, "session": id, "args": []string{text(t, watch(M{"id": other, "after": cursor}, 1))}})[0]
		if cursor = now.Cursor; len(now.Events) == 0 {
			break
		}
	}
	waits["payload"] = M{"id": other, "after": cursor}
	c.send(M{"tool": "watcher", "cwd": d.Root, "session": id, "args": []string{text(t, waits)}})
	until(t, "it waits", func() bool {
		return value[bool](t, d.Socket, id, `session.running.exists(x, x.tool == "watcher" && x.attempts == 1)`)
	})
	ask(t, d.Socket, M{"tool": "cat", "cwd": d.Root, "session": other, "args": []string{"/dev/null"}})
	if i := answers(t, c.answer())[0]; !i.is("") || !strings.Contains(string(i.Data), `"cat"`) {
		t.Errorf("what it waited for: %s", i.raw)
	}
}
