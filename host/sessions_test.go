package host_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

var ids atomic.Int64

// newExecution makes an execution id.
func newExecution() string { return fmt.Sprintf("7d444840-9dc0-41d1-b245-%012d", ids.Add(1)) }

// session makes one of the five calls on a connection of its own.
func session(t testing.TB, socket, call string, payload M) *answer {
	t.Helper()
	return ask(t, socket, M{"toolId": "session." + call, "executionId": newExecution(), "payload": payload})
}

// value is what a selector answers.
func value[T any](t testing.TB, socket, id, selector string) T {
	t.Helper()
	a := session(t, socket, "query", M{"id": id, "selector": selector})
	var data struct{ Value T }
	if err := json.Unmarshal(a.Data, &data); err != nil || a.Status != "success" {
		t.Fatalf("query %s: %v: %s", selector, err, a.raw)
	}
	return data.Value
}

// newSession makes an explicit session.
func newSession(t testing.TB, socket string) string {
	t.Helper()
	a := session(t, socket, "mutate", M{"op": "create"})
	var data struct{ ID string }
	if err := json.Unmarshal(a.Data, &data); err != nil || data.ID == "" {
		t.Fatalf("create: %v: %s", err, a.raw)
	}
	return data.ID
}

func TestACallBelongsToASession(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "echo", M{}, nil)

	ask(t, d.Socket, M{"tool": "echo", "args": []string{"a"}, "cwd": d.Root})
	id := newSession(t, d.Socket)
	for range 2 {
		a := ask(t, d.Socket, M{"tool": "echo", "args": []string{"b"}, "cwd": d.Root, "session": id})
		if a.Stdout != "b\n" {
			t.Fatalf("in a session: %s", a.raw)
		}
	}
	if n := value[int](t, d.Socket, "", "session.telemetry.calls"); n != 1 {
		t.Errorf("the default session has %d calls, must be 1", n)
	}
	if n := value[int](t, d.Socket, id, "session.telemetry.calls"); n != 2 {
		t.Errorf("the explicit session has %d calls, must be 2", n)
	}
	if n := value[int](t, d.Socket, "", "sessions.size()"); n != 2 {
		t.Errorf("%d sessions, must be 2", n)
	}
	m, err := scrapeAdmin(t, d.Admin)
	for _, line := range []string{`toold_sessions{state="active"} 2`, `toold_session_calls_total 3`} {
		if err != nil || !strings.Contains(m, line) {
			t.Errorf("the metrics have no %s: %v", line, err)
		}
	}
	a := ask(t, d.Socket, M{"tool": "echo", "cwd": d.Root, "session": "nosuch"})
	if a.Code != "SESSION_NOT_FOUND" || a.ExitCode != 70 {
		t.Errorf("a session that is not there: %s", a.raw)
	}
}

// dialogue is a connection whose requests and answers a test sends and reads one
// by one.
type dialogue struct {
	t testing.TB
	c net.Conn
}

func talk(t testing.TB, socket string) *dialogue {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &dialogue{t, c}
}

func (d *dialogue) send(req M) {
	d.t.Helper()
	b, err := json.Marshal(req)
	if err == nil {
		err = wire.WriteFrame(d.c, b)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *dialogue) answer() *answer {
	d.t.Helper()
	raw, err := wire.ReadFrame(d.c)
	if err != nil {
		d.t.Fatal(err)
	}
	a := &answer{raw: raw}
	if err := json.Unmarshal(raw, a); err != nil {
		d.t.Fatalf("%v: %s", err, raw)
	}
	return a
}

func (d *dialogue) ask(req M) *answer {
	d.t.Helper()
	d.send(req)
	return d.answer()
}

// until asks again and again until ok, which is soon.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not so after 30 s: %s", what)
		}
		runtime.Gosched()
	}
}

// isRunning reports whether an execution runs, and has written text.
func isRunning(t testing.TB, socket, id, execution, text string) bool {
	return value[bool](t, socket, id, fmt.Sprintf("session.running.exists(x, x.execution == %q && x.last_line.contains(%q))", execution, text))
}

// sessionDaemon has tools to run in sessions: sh, and one that says of itself
// that it changes something.
func sessionDaemon(t testing.TB, c config.Config) *hosttest.Daemon {
	t.Helper()
	d := hosttest.Start(t, c)
	caps := M{"exec": []string{"/usr/bin", "/bin"}}
	d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": caps}, nil)
	d.Tool(t, "change", M{"binary": "/bin/sh", "capabilities": caps, "mutating": true}, nil)
	d.Tool(t, "cat", M{"binary": "/bin/cat"}, nil)
	d.Tool(t, "handler", M{"limits": M{"fuel": 1e13}, "capabilities": M{"state": 1000, "http": M{"hosts": []string{"127.0.0.1"}}, "exec": []string{"/usr/bin/sleep"}}}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	return d
}

func TestFocusIsTheConnections(t *testing.T) {
	d := sessionDaemon(t, config.Config{})
	id := newSession(t, d.Socket)
	c := talk(t, d.Socket)
	count := M{"tool": "handler", "args": []string{"count"}, "cwd": d.Root}
	if a := c.ask(count); a.Stdout != "1" {
		t.Fatalf("%s", a.raw)
	}
	c.ask(M{"toolId": "session.mutate", "executionId": newExecution(), "payload": M{"id": id, "op": "focus"}})
	// The variables of a guest are the session's.
	for i, c := range []*dialogue{c, c, talk(t, d.Socket)} {
		if a, want := c.ask(count), []string{"1", "2", "2"}[i]; a.Stdout != want {
			t.Errorf("call %d: %s, must say %s", i, a.raw, want)
		}
	}
	c.ask(M{"toolId": "session.mutate", "executionId": newExecution(), "payload": M{"id": "default", "op": "focus"}})
	if a := c.ask(count); a.Stdout != "3" {
		t.Errorf("back in the default session: %s", a.raw)
	}
}

func TestATurnRunsAndIsSteered(t *testing.T) {
	d := sessionDaemon(t, config.Config{})
	id := newSession(t, d.Socket)

	a := session(t, d.Socket, "prompt", M{"id": id, "text": `sh -c 'echo "$1"; pwd; exit 3' x "a  b"`})
	if a.Code != "" && a.Status != "error" || !strings.Contains(string(a.Data), `"stdout":"a  b\n`+d.Root) || !strings.Contains(string(a.Data), `"exit_code":3`) {
		t.Fatalf("a turn: %s", a.raw)
	}
	a = session(t, d.Socket, "prompt", M{"id": id, "envelope": M{"toolId": "handler", "payload": M{"x": 1}}})
	if a.Status != "success" || !strings.Contains(string(a.Data), `"x":1`) {
		t.Fatalf("a turn from an envelope: %s", a.raw)
	}

	turn := talk(t, d.Socket)
	execution := newExecution()
	turn.send(M{"toolId": "session.prompt", "executionId": execution, "payload": M{"id": id, "text": "cat"}})
	until(t, "the turn runs", func() bool { return isRunning(t, d.Socket, id, execution, "") })
	if a := session(t, d.Socket, "prompt", M{"id": id, "text": "cat"}); !strings.Contains(string(a.raw), "SESSION_BUSY") {
		t.Errorf("a second turn: %s", a.raw)
	}
	// Ordinary calls are no turns.
	if a := ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", "echo beside"}, "cwd": d.Root, "session": id}); a.Stdout != "beside\n" {
		t.Errorf("a call beside a turn: %s", a.raw)
	}
	for _, text := range []string{"one\n", "two\n"} {
		if a := session(t, d.Socket, "steer", M{"id": id, "text": text}); !strings.Contains(string(a.raw), `"delivered":true`) {
			t.Errorf("steer: %s", a.raw)
		}
	}
	waiting := talk(t, d.Socket)
	waiting.send(M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"id": id, "text": "sh -c 'echo mine'", "queue": true}})
	until(t, "a turn waits", func() bool { return value[int](t, d.Socket, id, "session.queued") == 1 })
	if a := session(t, d.Socket, "steer", M{"id": id, "text": "three", "eof": true}); a.Status != "success" {
		t.Errorf("the last: %s", a.raw)
	}
	if a := turn.answer(); !strings.Contains(string(a.Data), `"stdout":"one\ntwo\nthree"`) {
		t.Errorf("what was steered: %s", a.raw)
	}
	if a := waiting.answer(); !strings.Contains(string(a.Data), "mine") {
		t.Errorf("the turn that waited: %s", a.raw)
	}
	a = session(t, d.Socket, "steer", M{"id": id, "text": "late"})
	if !strings.Contains(string(a.raw), "NOT_RUNNING") || !strings.Contains(string(a.raw), "4 bytes were not delivered") {
		t.Errorf("steer without a turn: %s", a.raw)
	}
}

// An ordinary call is steered too: in between what its caller streams, or as the
// first thing that a guest without input is given.
func TestOrdinaryCallsAreSteered(t *testing.T) {
	d := sessionDaemon(t, config.Config{})
	c := talk(t, d.Socket)
	execution := newExecution()
	c.send(M{"toolId": "cat", "executionId": execution, "payload": M{"args": []string{}, "cwd": d.Root}, "stream": true})
	var out bytes.Buffer
	read := func() (typ string) {
		raw, err := wire.ReadFrame(c.c)
		if err != nil {
			t.Fatal(err)
		}
		var f struct {
			Type string
			Data []byte
		}
		if err := json.Unmarshal(raw, &f); err != nil && f.Type != "result" {
			t.Fatal(err)
		}
		out.Write(f.Data)
		return f.Type
	}
	for read() != "stdin" {
	}
	c.send(M{"type": "stdin", "data": []byte("typed\n")})
	for !strings.Contains(out.String(), "typed") {
		read()
	}
	if a := session(t, d.Socket, "steer", M{"text": "steered\n", "execution": execution}); !strings.Contains(string(a.raw), `"delivered":true`) {
		t.Errorf("%s", a.raw)
	}
	for !strings.Contains(out.String(), "steered") {
		read()
	}
	c.send(M{"type": "stdin", "data": []byte("more\n"), "eof": true})
	for read() != "result" {
	}
	if out.String() != "typed\nsteered\nmore\n" {
		t.Errorf("the call read %q", out.String())
	}

	// A binary that reads nothing cannot be steered, and that is said.
	execution = newExecution()
	c = talk(t, d.Socket)
	c.send(M{"toolId": "sh", "executionId": execution, "payload": M{"args": []string{"-c", "echo up; sleep 100"}, "cwd": d.Root}})
	until(t, "it runs", func() bool { return isRunning(t, d.Socket, "", execution, "up") })
	a := session(t, d.Socket, "steer", M{"text": "hello", "execution": execution})
	if !strings.Contains(string(a.raw), "NOT_RUNNING") || !strings.Contains(string(a.raw), "takes no input") || !strings.Contains(string(a.raw), "5 bytes were not delivered") {
		t.Errorf("a binary without input: %s", a.raw)
	}
	session(t, d.Socket, "abort", M{})
	c.answer()
}

func TestAbort(t *testing.T) {
	d := sessionDaemon(t, config.Config{})
	id, other := newSession(t, d.Socket), newSession(t, d.Socket)
	bystander := talk(t, d.Socket)
	bystander.send(M{"toolId": "sh", "executionId": newExecution(), "session": other, "payload": M{"args": []string{"-c", "echo up; read x; echo done"}, "cwd": d.Root}, "stream": true})

	type running struct {
		tool string
		args []string
	}
	start := func(r running) (*dialogue, string) {
		c, execution := talk(t, d.Socket), newExecution()
		c.send(M{"toolId": r.tool, "executionId": execution, "session": id, "payload": M{"args": r.args, "cwd": d.Root}})
		until(t, "it runs", func() bool { return isRunning(t, d.Socket, id, execution, "up") })
		return c, execution
	}
	tree := []string{"-c", "echo up; sh -c 'sleep 1000' & wait"}
	loop, e1 := start(running{tool: "handler", args: []string{"up-and-loop"}})
	reads, e2 := start(running{tool: "sh", args: tree})
	changes, e3 := start(running{tool: "change", args: tree})

	// One by name; the rest stays.
	a := session(t, d.Socket, "abort", M{"id": id, "execution": e2})
	if !strings.Contains(string(a.Data), `"outcome":"ABORTED"`) || strings.Contains(string(a.Data), e1) {
		t.Errorf("abort of one: %s", a.raw)
	}
	if a := reads.answer(); !strings.Contains(string(a.raw), `"ABORTED"`) {
		t.Errorf("what was aborted: %s", a.raw)
	}
	// And all of them.
	a = session(t, d.Socket, "abort", M{"id": id})
	if !strings.Contains(string(a.Data), e1) || !strings.Contains(string(a.Data), e3) || !strings.Contains(string(a.Data), `"outcome":"OUTCOME_UNKNOWN"`) {
		t.Errorf("abort of all: %s", a.raw)
	}
	for _, c := range []*dialogue{loop, changes} {
		if a := c.answer(); !strings.Contains(string(a.raw), `"ABORTED"`) {
			t.Errorf("what was aborted: %s", a.raw)
		}
	}
	unknown := value[[]string](t, d.Socket, id, "session.recent.filter(o, o.code == 'OUTCOME_UNKNOWN').map(o, o.execution)")
	if !slices.Equal(unknown, []string{e3}) {
		t.Errorf("the outcome is unknown of %v, must be of %s", unknown, e3)
	}
	// Nothing is left to abort, which is no error.
	if a := session(t, d.Socket, "abort", M{"id": id}); a.Status != "success" || string(a.Data) != `{"aborted":[]}` {
		t.Errorf("abort again: %s", a.raw)
	}
	if n := value[int](t, d.Socket, other, "session.running.size()"); n != 1 {
		t.Errorf("in the other session %d calls run, must be 1", n)
	}
}

func TestJobs(t *testing.T) {
	d := sessionDaemon(t, config.Config{})
	id := newSession(t, d.Socket)
	fifo := filepath.Join(d.Root, "go")
	script := "echo out; echo err >&2; until test -e " + fifo + "; do sleep 0.01; done; echo end; exit 4"
	a := ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", script}, "cwd": d.Root, "session": id, "background": true})
	job := a.ID
	if a.ExitCode != 0 || a.Stdout != job+"\n" {
		t.Fatalf("a job: %s", a.raw)
	}
	one := fmt.Sprintf("jobs.filter(j, j.id == %q)[0]", job)
	// Its output can be read while it runs.
	until(t, "it has written", func() bool { return value[string](t, d.Socket, "", one+".stdout") == "out\n" })
	if s := value[string](t, d.Socket, "", one+".state"); s != "running" {
		t.Errorf("it is %s", s)
	}
	if err := os.WriteFile(fifo, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	until(t, "it is done", func() bool { return value[string](t, d.Socket, "", one+".state") == "done" })
	if got := value[[]any](t, d.Socket, "", fmt.Sprintf("%[1]s.exit_code == 4 ? [%[1]s.stdout, %[1]s.stderr] : []", one)); len(got) != 2 || got[0] != "out\nend\n" || got[1] != "err\n" {
		t.Errorf("afterwards: %v", got)
	}
	// What is refused is refused at once and leaves no job.
	a = ask(t, d.Socket, M{"tool": "nosuch", "cwd": d.Root, "background": true})
	if a.Code != "UNKNOWN_TOOL" || value[int](t, d.Socket, "", "jobs.size()") != 1 {
		t.Errorf("a job of no tool: %s", a.raw)
	}
	// A guest says how far it is.
	a = ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", "sleep 1000"}, "cwd": d.Root, "session": id, "background": true})
	if c := session(t, d.Socket, "mutate", M{"op": "cancel-job", "params": M{"job": a.ID}}); c.Status != "success" {
		t.Errorf("cancel: %s", c.raw)
	}
	one = fmt.Sprintf("jobs.filter(j, j.id == %q)[0]", a.ID)
	until(t, "it is cancelled", func() bool { return value[string](t, d.Socket, "", one+".code") == "ABORTED" })
	// Cancelling what is over is no error; what never was, is.
	if c := session(t, d.Socket, "mutate", M{"op": "cancel-job", "params": M{"job": a.ID}}); c.Status != "success" {
		t.Errorf("cancel again: %s", c.raw)
	}
	if c := session(t, d.Socket, "mutate", M{"op": "cancel-job", "params": M{"job": "x"}}); !strings.Contains(string(c.raw), "NOT_RUNNING") {
		t.Errorf("cancel nothing: %s", c.raw)
	}
	// The last 20 are kept.
	for range 25 {
		ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", ":"}, "cwd": d.Root, "background": true})
	}
	until(t, "all are done", func() bool { return value[bool](t, d.Socket, "", "jobs.all(j, j.state == 'done')") })
	if n := value[int](t, d.Socket, "", "jobs.size()"); n != 20 {
		t.Errorf("%d jobs are kept, must be 20", n)
	}
}

// A session that is limited to some tools lists these, and runs no others.
func TestASessionListsItsTools(t *testing.T) {
	d := sessionDaemon(t, config.Config{})
	for _, name := range []string{"sh", "cat", "change", "handler"} {
		waitState(t, d, name, "ok")
	}
	id := newSession(t, d.Socket)
	names := func() (list []string) {
		t.Helper()
		a := ask(t, d.Socket, M{"toolId": "tools.list", "executionId": newExecution(), "payload": M{}, "session": id})
		var l struct{ Tools []struct{ Name string } }
		if err := json.Unmarshal(a.Data, &l); err != nil {
			t.Fatalf("%s: %v", a.raw, err)
		}
		for _, tool := range l.Tools {
			list = append(list, tool.Name)
		}
		return list
	}
	all := names()
	for _, limit := range [][]string{{"sh"}, {}} {
		if a := session(t, d.Socket, "mutate", M{"id": id, "op": "set-tools", "params": M{"tools": limit}}); a.Status != "success" {
			t.Fatalf("%s", a.raw)
		}
		if got := names(); !slices.Equal(got, limit) {
			t.Errorf("limited to %q it lists %q", limit, got)
		}
	}
	if a := ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", ":"}, "cwd": d.Root, "session": id}); a.Code != "DENIED" {
		t.Errorf("%s", a.raw)
	}
	if session(t, d.Socket, "mutate", M{"id": id, "op": "set-tools", "params": M{}}); !slices.Equal(names(), all) || len(all) < 2 {
		t.Errorf("without a limit it lists %q, before %q", names(), all)
	}
}

// A turn can be a job, and be steered.
func TestATurnInTheBackground(t *testing.T) {
	d := sessionDaemon(t, config.Config{})
	id := newSession(t, d.Socket)
	execution := newExecution()
	a := ask(t, d.Socket, M{"toolId": "session.prompt", "executionId": execution, "payload": M{"id": id, "text": "cat"}, "background": true})
	if string(a.Data) != `{"job":"`+execution+`"}` {
		t.Fatalf("%s", a.raw)
	}
	until(t, "it runs", func() bool { return isRunning(t, d.Socket, id, execution, "") })
	if a := session(t, d.Socket, "steer", M{"id": id, "text": "hello\n", "eof": true}); a.Status != "success" {
		t.Errorf("%s", a.raw)
	}
	until(t, "it is done", func() bool {
		return value[bool](t, d.Socket, "", "jobs.exists(j, j.state == 'done' && j.stdout == 'hello\\n')")
	})
	// The second of two is told that the first is running.
	defer session(t, d.Socket, "abort", M{"id": id, "execution": "7d444840-9dc0-41d1-b245-00000000cafe"})
	ask(t, d.Socket, M{"toolId": "session.prompt", "executionId": "7d444840-9dc0-41d1-b245-00000000cafe", "payload": M{"id": id, "text": "cat"}, "background": true})
	a = ask(t, d.Socket, M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"id": id, "text": "cat"}, "background": true})
	if !strings.Contains(string(a.raw), "SESSION_BUSY") {
		t.Errorf("%s", a.raw)
	}
}

// A guest has the five calls, as the session and the identity that called it.
func TestGuestsCallSessions(t *testing.T) {
	d := sessionDaemon(t, config.Config{})
	d.Tool(t, "caller", M{"capabilities": M{"tool_call": true}}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/caller")})
	id := newSession(t, d.Socket)
	through := func(req M) *answer {
		t.Helper()
		b, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		a := ask(t, d.Socket, M{"tool": "caller", "args": []string{string(b)}, "cwd": d.Root, "session": id})
		inner := &answer{raw: []byte(a.Stdout)}
		if err := json.Unmarshal(inner.raw, inner); err != nil {
			t.Fatalf("%v: %s", err, a.raw)
		}
		return inner
	}
	request := func(call string, payload M) M {
		return M{"toolId": call, "executionId": newExecution(), "payload": payload}
	}
	if a := through(request("session.query", M{"selector": "session.id"})); string(a.Data) != `{"value":"`+id+`"}` {
		t.Errorf("the session of a guest: %s", a.raw)
	}
	if a := through(request("session.prompt", M{"text": "sh -c 'echo from a guest'"})); !strings.Contains(string(a.Data), "from a guest") {
		t.Errorf("a turn of a guest: %s", a.raw)
	}
	if a := through(request("session.mutate", M{"op": "focus"})); !strings.Contains(string(a.raw), "INVALID_PAYLOAD") {
		t.Errorf("the focus of a guest: %s", a.raw)
	}
	if a := through(request("sh", M{"args": []string{"-c", "echo no"}, "cwd": d.Root})); !strings.Contains(string(a.raw), "INVALID_PAYLOAD") {
		t.Errorf("a call around the session: %s", a.raw)
	}
	// A guest that runs as the turn cannot have another one.
	b, err := json.Marshal(request("session.prompt", M{"text": "cat"}))
	if err != nil {
		t.Fatal(err)
	}
	if a := through(request("session.prompt", M{"text": "caller '" + string(b) + "'"})); !strings.Contains(string(a.raw), "SESSION_BUSY") {
		t.Errorf("a turn within a turn: %s", a.raw)
	}
}

// Guests that prompt one another through many sessions come to an end.
func TestGuestsPromptNotForEver(t *testing.T) {
	d := sessionDaemon(t, config.Config{})
	d.Tool(t, "caller", M{"capabilities": M{"tool_call": true}, "limits": M{"concurrency": 100}}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/caller")})
	req := M{"toolId": "session.query", "executionId": newExecution(), "payload": M{"selector": "1"}}
	for range 10 {
		b, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		envelope := M{"toolId": "caller", "payload": M{"args": []string{string(b)}, "cwd": d.Root}}
		req = M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"id": newSession(t, d.Socket), "envelope": envelope}}
	}
	a := ask(t, d.Socket, req)
	if !strings.Contains(string(a.raw), "LIMIT_EXCEEDED") || !strings.Contains(string(a.raw), "8 deep") {
		t.Errorf("%s", a.raw)
	}
}

// A session counts the requests that modules make in it, what was answered, and
// the bytes of both; what the tool may not ask is none. A restart forgets nothing.
func TestTelemetryCountsHTTP(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "twelve bytes") }))
	defer srv.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	state := filepath.Join(t.TempDir(), "state")
	c := config.Config{State: state, Tools: filepath.Join(t.TempDir(), "tools.d")}
	if err := os.Mkdir(c.Tools, 0o755); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, c)
	hosts := []string{strings.TrimPrefix(srv.URL, "http://"), strings.TrimPrefix(gone.URL, "http://")}
	d.Tool(t, "api", M{"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": hosts}}}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	id := newSession(t, d.Socket)
	for _, url := range []string{srv.URL, srv.URL, gone.URL, "http://elsewhere.example"} {
		ask(t, d.Socket, M{"tool": "api", "args": []string{"http", url}, "session": id})
	}
	type count struct {
		Requests      int
		Replies       int
		BytesSent     int `json:"bytes_sent"`
		BytesReceived int `json:"bytes_received"`
	}
	want := count{Requests: 3, Replies: 2, BytesReceived: 24}
	if got := value[count](t, d.Socket, id, "session.telemetry.http"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := value[count](t, d.Socket, "", "session.telemetry.http"); got != (count{}) {
		t.Errorf("another session has %+v", got)
	}
	d.Stop(t)
	d = hosttest.Start(t, c)
	if got := value[count](t, d.Socket, id, "session.telemetry.http"); got != want {
		t.Errorf("after a restart: %+v, want %+v", got, want)
	}
}

// Nothing of a session that is not persisted is on the disk, nor of its children;
// it works as any other until the daemon ends.
func TestSessionInMemory(t *testing.T) {
	create := func(t *testing.T, d *hosttest.Daemon, params M) (id string, a *answer) {
		t.Helper()
		a = session(t, d.Socket, "mutate", M{"op": "create", "params": params})
		var data struct{ ID string }
		json.Unmarshal(a.Data, &data)
		return data.ID, a
	}
	// onDisk is whether a file below state has text in its name or in it.
	onDisk := func(t *testing.T, state, text string) (found bool) {
		t.Helper()
		err := filepath.WalkDir(filepath.Join(state, "sessions"), func(path string, e os.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			if err != nil || e.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			found = found || strings.Contains(path, text) || bytes.Contains(b, []byte(text))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	// used does all that writes a journal elsewhere.
	used := func(t *testing.T, d *hosttest.Daemon, id string) {
		t.Helper()
		for _, q := range []M{
			{"tool": "echo", "args": []string{"a"}, "session": id},
			{"tool": "echo", "args": []string{"b"}, "session": id, "background": true},
		} {
			if a := ask(t, d.Socket, q); a.Status != "success" {
				t.Errorf("a call: %s", a.raw)
			}
		}
		until(t, "the job ends", func() bool { return value[int](t, d.Socket, id, "session.telemetry.calls") == 2 })
		for _, m := range []M{
			{"op": "label", "params": M{"labels": M{"a": "b"}}}, {"op": "rename", "params": M{"name": "n"}},
			{"op": "flush"}, {"op": "suspend"}, {"op": "resume"},
		} {
			m["id"] = id
			if a := session(t, d.Socket, "mutate", m); a.Status != "success" {
				t.Errorf("%v: %s", m["op"], a.raw)
			}
		}
	}
	t.Run("one", func(t *testing.T) {
		c := config.Config{State: filepath.Join(t.TempDir(), "state")}
		d := hosttest.Start(t, c)
		d.Tool(t, "echo", M{"mutating": true}, nil)
		id, _ := create(t, d, M{"persist": false})
		child, _ := create(t, d, M{"parent": id})
		other, _ := create(t, d, M{})
		used(t, d, id)
		used(t, d, child)
		used(t, d, other)
		if !onDisk(t, c.State, other) {
			t.Error("a session that is persisted is not on the disk")
		}
		if onDisk(t, c.State, id) || onDisk(t, c.State, child) {
			t.Error("a session that is not persisted is on the disk")
		}
		if value[bool](t, d.Socket, id, "session.persist") || !value[bool](t, d.Socket, other, "session.persist") {
			t.Error("a query says otherwise")
		}
		if _, a := create(t, d, M{"parent": id, "persist": true}); !strings.Contains(string(a.Error), "INVALID_PAYLOAD") {
			t.Errorf("a persisted child: %s", a.raw)
		}
		session(t, d.Socket, "mutate", M{"id": id, "op": "close"})
		if onDisk(t, c.State, id) {
			t.Error("it is on the disk once it is closed")
		}
		d.Stop(t)
		d = hosttest.Start(t, c)
		if a := session(t, d.Socket, "query", M{"id": id}); !strings.Contains(string(a.Error), "SESSION_NOT_FOUND") {
			t.Errorf("after a restart: %s", a.raw)
		}
		if n := value[int](t, d.Socket, other, "session.telemetry.calls"); n != 2 {
			t.Errorf("the other one has %d calls after a restart", n)
		}
	})
	t.Run("all", func(t *testing.T) {
		no := false
		c := config.Config{State: filepath.Join(t.TempDir(), "state"), Sessions: config.SessionsConfig{Persist: &no}}
		d := hosttest.Start(t, c)
		d.Tool(t, "echo", M{"mutating": true}, nil)
		id, _ := create(t, d, M{})
		used(t, d, id)
		used(t, d, "")
		if onDisk(t, c.State, "") {
			t.Error("there are journals")
		}
		if _, a := create(t, d, M{"persist": true}); !strings.Contains(string(a.Error), "INVALID_PAYLOAD") {
			t.Errorf("one that is persisted: %s", a.raw)
		}
		same := d.Config
		yes := false
		same.Sessions.Persist = &yes
		if err := d.Reload(same, nil); err != nil {
			t.Errorf("a reload of the same: %v", err)
		}
	})
}
