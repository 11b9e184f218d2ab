package host_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
)

// party is somebody who calls over a socket, with a token or without.
type party struct {
	t             testing.TB
	socket, token string
}

func (p party) ask(req M) *answer {
	p.t.Helper()
	if p.token != "" {
		req["token"] = p.token
	}
	return ask(p.t, p.socket, req)
}

func (p party) session(call string, payload M) *answer {
	p.t.Helper()
	return p.ask(M{"toolId": "session." + call, "executionId": newExecution(), "payload": payload})
}

// data is the member of what a session call answered.
func (p party) data(member, call string, payload M) string {
	p.t.Helper()
	a := p.session(call, payload)
	var data map[string]any
	if err := json.Unmarshal(a.Data, &data); err != nil || a.Status != "success" {
		p.t.Fatalf("session.%s %v: %v: %s", call, payload, err, a.raw)
	}
	return fmt.Sprint(data[member])
}

func (p party) tool(tool, session string, args ...string) *answer {
	p.t.Helper()
	req := M{"tool": tool, "args": args}
	if session != "" {
		req["session"] = session
	}
	return p.ask(req)
}

func hasCode(a *answer, code string) bool { return strings.Contains(string(a.raw), `"`+code+`"`) }

// boundDaemon has a further socket, and the tools echo, cat and caller, which makes
// session calls. Tokens are alice's, or as changed.
func boundDaemon(t *testing.T) (d *hosttest.Daemon, further string, token func(claims M) string) {
	t.Helper()
	issuer, yes := hosttest.NewIssuer(t), true
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	further = filepath.Join(dir, "s")
	d = hosttest.Start(t, config.Config{
		Identity: config.IdentityConfig{JWKS: issuer.JWKS, AllowUID: &yes}, Sockets: []config.Socket{{Path: further}}, Reliability: "all",
	})
	d.Tool(t, "echo", M{}, nil)
	d.Tool(t, "cat", M{"binary": "/bin/cat"}, nil)
	d.Tool(t, "home", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/bin", "/usr/bin"}}}, nil)
	d.Tool(t, "caller", M{"capabilities": M{"tool_call": true}}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/caller")})
	return d, further, func(claims M) string {
		all := M{"sub": "alice"}
		for k, v := range claims {
			all[k] = v
		}
		return issuer.Token(t, all)
	}
}

// bind makes the further socket that of a session.
func bind(t *testing.T, d *hosttest.Daemon, session string) {
	t.Helper()
	next := d.Config
	next.Sockets = slices.Clone(next.Sockets)
	next.Sockets[0].Session = session
	if err := d.Reload(next, nil); err != nil {
		t.Fatal(err)
	}
}

// Who is bound to a session, by the socket or by the token, uses that one and nothing
// else of its identity.
func TestBoundToASession(t *testing.T) {
	d, further, token := boundDaemon(t)
	for _, by := range []string{"socket", "token"} {
		t.Run(by, func(t *testing.T) {
			owner, guest := party{t, d.Socket, ""}, party{t, further, ""}
			if by == "token" {
				owner.token, guest.socket = token(nil), d.Socket
			}
			id := owner.data("id", "mutate", M{"op": "create", "params": M{"tools": []string{"echo", "cat", "caller"}}})
			other := owner.data("id", "mutate", M{"op": "create"})
			if by == "token" {
				guest.token = token(M{"toold_session": id})
			} else {
				bind(t, d, id)
			}
			const elsewhere, refused = "SESSION_NOT_FOUND", "DENIED"

			// Its calls are in its session, whatever the connection had in focus.
			if a := guest.tool("echo", "", "a"); a.Stdout != "a\n" {
				t.Fatalf("a call: %s", a.raw)
			}
			if a := guest.tool("echo", id, "a"); a.Stdout != "a\n" {
				t.Errorf("a call that names the session: %s", a.raw)
			}
			if n := owner.data("value", "query", M{"id": id, "selector": "session.telemetry.calls"}); n != "2" {
				t.Errorf("its session has %s calls", n)
			}
			for _, tool := range []string{"home", "nosuch"} {
				if a := guest.tool(tool, ""); a.Code != refused {
					t.Errorf("%s, which its session has not: %s", tool, a.raw)
				}
			}
			for _, named := range []string{other, "default", "nosuch"} {
				if a := guest.tool("echo", named, "a"); a.Code != elsewhere {
					t.Errorf("a call in %s: %s", named, a.raw)
				}
				for call, payload := range map[string]M{
					"query": {"selector": "1"}, "prompt": {"text": "echo a"}, "abort": {}, "steer": {"text": "a"}, "mutate": {"op": "focus"},
				} {
					payload["id"] = named
					if a := guest.session(call, payload); !hasCode(a, elsewhere) {
						t.Errorf("session.%s of %s: %s", call, named, a.raw)
					}
				}
			}

			// It sees its own session, and changes nothing about that.
			if got := guest.data("value", "query", M{"selector": "sessions.map(s, s.id) + [session.id]"}); got != fmt.Sprint([]string{id, id}) {
				t.Errorf("it sees the sessions %s", got)
			}
			for _, payload := range []M{
				{"op": "create"}, {"op": "create", "params": M{"parent": id}}, {"op": "create", "params": M{"parent": other}},
				{"op": "rename", "params": M{"name": "x"}}, {"op": "label", "params": M{"labels": M{"a": "b"}}},
				{"op": "set-tools"}, {"op": "set-tools", "params": M{"tools": []string{"home"}}}, {"op": "close"}, {"op": "close", "id": id},
			} {
				for _, key := range []string{"", "k1"} {
					req := M{"toolId": "session.mutate", "executionId": newExecution(), "payload": payload}
					if key != "" {
						req["idempotencyKey"] = key
					}
					if a := guest.ask(req); !hasCode(a, refused) {
						t.Errorf("%v: %s", payload, a.raw)
					}
				}
			}
			if a := guest.session("mutate", M{"op": "close", "id": other}); !hasCode(a, elsewhere) {
				t.Errorf("closing another: %s", a.raw)
			}

			// Neither does a module that it calls, nor a job.
			through := func(call string, payload M, named string) *answer {
				b, err := json.Marshal(M{"toolId": "session." + call, "executionId": newExecution(), "payload": payload, "session": named})
				if err != nil {
					t.Fatal(err)
				}
				a := guest.tool("caller", "", string(b))
				inner := &answer{raw: []byte(a.Stdout)}
				if err := json.Unmarshal(inner.raw, inner); err != nil {
					t.Fatalf("%v: %s", err, a.raw)
				}
				return inner
			}
			if a := through("prompt", M{"text": "echo from a guest"}, id); !strings.Contains(string(a.raw), "from a guest") {
				t.Errorf("a turn of a module: %s", a.raw)
			}
			if a := through("prompt", M{"text": "home -c :"}, id); !hasCode(a, refused) {
				t.Errorf("a turn of a module with another tool: %s", a.raw)
			}
			if a := through("prompt", M{"text": "echo a"}, "default"); !hasCode(a, elsewhere) {
				t.Errorf("a turn of a module elsewhere: %s", a.raw)
			}
			if a := through("mutate", M{"op": "create"}, id); !hasCode(a, refused) {
				t.Errorf("a session of a module: %s", a.raw)
			}
			if a := guest.ask(M{"tool": "home", "args": []string{"-c", ":"}, "background": true}); !hasCode(a, refused) {
				t.Errorf("a job with another tool: %s", a.raw)
			}
			if a := guest.ask(M{"tool": "echo", "args": []string{"a"}, "background": true, "session": other}); !hasCode(a, elsewhere) {
				t.Errorf("a job elsewhere: %s", a.raw)
			}

			// Jobs of other sessions are not there either; those of its own are.
			job := owner.ask(M{"tool": "cat", "args": []string{"/dev/zero"}, "background": true, "session": other})
			theirs := strings.TrimSpace(job.Stdout)
			mine := strings.TrimSpace(guest.ask(M{"tool": "cat", "args": []string{"/dev/zero"}, "background": true}).Stdout)
			if got := guest.data("value", "query", M{"selector": "jobs.map(j, j.id)"}); got != fmt.Sprint([]string{mine}) {
				t.Errorf("it sees the jobs %s, must see %s", got, mine)
			}
			if got := owner.data("value", "query", M{"selector": "jobs.filter(j, j.state == 'running').size()"}); got != "2" {
				t.Errorf("the owner sees %s running jobs", got)
			}
			if a := guest.session("mutate", M{"op": "cancel-job", "params": M{"job": theirs}}); !hasCode(a, "NOT_RUNNING") {
				t.Errorf("ending another's job: %s", a.raw)
			}
			if a := guest.session("mutate", M{"op": "cancel-job", "params": M{"job": mine}}); a.Status != "success" {
				t.Errorf("ending its job: %s", a.raw)
			}
			owner.session("mutate", M{"op": "cancel-job", "params": M{"job": theirs}})

			// Keys, and what is kept by identity, are its own.
			keyed := M{"tool": "echo", "args": []string{"a"}, "idempotencyKey": "one-" + by, "session": other}
			owner.ask(keyed)
			delete(keyed, "session")
			if a := guest.ask(keyed); strings.Contains(string(a.raw), `"from_cache":true`) {
				t.Errorf("the answer to its owner's call: %s", a.raw)
			}
			owner.session("mutate", M{"id": id, "op": "set-tools"})
			homes := []string{owner.tool("home", id, "-c", "echo $HOME").Stdout, guest.tool("home", "", "-c", "echo $HOME").Stdout}
			if homes[0] == homes[1] || homes[0] == "" || homes[1] == "" {
				t.Errorf("the homes %q", homes)
			}

			// Its session is closed: nothing takes its place.
			owner.session("mutate", M{"id": id, "op": "close"})
			if a := guest.tool("echo", "", "a"); a.Code != elsewhere {
				t.Errorf("after its session was closed: %s", a.raw)
			}
		})
	}
}

// A token and a socket that bind to different sessions bind to none; nor does one
// bind to a session of somebody else.
func TestBoundTwice(t *testing.T) {
	d, further, token := boundDaemon(t)
	alice := party{t, d.Socket, token(nil)}
	one, two := alice.data("id", "mutate", M{"op": "create"}), alice.data("id", "mutate", M{"op": "create"})
	bind(t, d, one)
	for _, tt := range []struct {
		claims M
		code   string
	}{
		{M{}, ""},
		{M{"toold_session": one}, ""},
		{M{"toold_session": two}, "SESSION_NOT_FOUND"},
		{M{"sub": "bob"}, "SESSION_NOT_FOUND"},
		{M{"sub": "bob", "toold_session": one}, "SESSION_NOT_FOUND"},
		{M{"toold_session": "default"}, "UNAUTHENTICATED"},
		{M{"toold_session": ""}, "UNAUTHENTICATED"},
		{M{"toold_session": nil}, "UNAUTHENTICATED"},
		{M{"toold_session": 7}, "UNAUTHENTICATED"},
		{M{"toold_session": []string{one}}, "UNAUTHENTICATED"},
	} {
		p := party{t, further, token(tt.claims)}
		if a := p.tool("echo", "", "a"); a.Code != tt.code {
			t.Errorf("%v: %s", tt.claims, a.raw)
		}
	}
	if a := (party{t, further, ""}).tool("echo", "", "a"); a.Code != "SESSION_NOT_FOUND" {
		t.Errorf("another uid: %s", a.raw)
	}
}

// What a connection had in focus before is no way out.
func TestBoundIgnoresFocus(t *testing.T) {
	d, _, token := boundDaemon(t)
	alice := party{t, d.Socket, token(nil)}
	one := alice.data("id", "mutate", M{"op": "create", "params": M{"tools": []string{"echo"}}})
	two := alice.data("id", "mutate", M{"op": "create"})
	c := talk(t, d.Socket)
	if a := c.ask(M{"toolId": "session.mutate", "executionId": newExecution(), "token": alice.token, "payload": M{"op": "focus", "id": two}}); a.Status != "success" {
		t.Fatalf("%s", a.raw)
	}
	if a := c.ask(M{"tool": "home", "args": []string{"-c", ":"}, "token": token(M{"toold_session": one})}); a.Code != "DENIED" {
		t.Errorf("%s", a.raw)
	}
}

// A child has what both it and its parent have, now and after a restart, whatever is
// set on either of them.
func TestAChildHasNoMoreThanItsParent(t *testing.T) {
	c := config.Config{State: filepath.Join(t.TempDir(), "state"), Tools: filepath.Join(t.TempDir(), "tools.d")}
	if err := os.Mkdir(c.Tools, 0o755); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, c)
	for _, name := range []string{"a", "b", "c"} {
		d.Tool(t, name, M{"binary": "/bin/true"}, nil)
	}
	create := func(params M) string {
		return party{t, d.Socket, ""}.data("id", "mutate", M{"op": "create", "params": params})
	}
	set := func(id string, params M) {
		t.Helper()
		party{t, d.Socket, ""}.data("id", "mutate", M{"op": "set-tools", "id": id, "params": params})
	}
	check := func(what, id, want string) {
		t.Helper()
		got := ""
		for _, name := range []string{"a", "b", "c"} {
			if a := ask(t, d.Socket, M{"tool": name, "session": id}); a.Status == "success" {
				got += name
			} else if a.Code != "DENIED" {
				t.Fatalf("%s: %s", what, a.raw)
			}
		}
		listed := strings.TrimSuffix(strings.ReplaceAll(ask(t, d.Socket, M{"tool": "tools.list", "session": id}).Stdout, "\n", ""), `{"tools":[]}`)
		shown := value[string](t, d.Socket, id, "session.tools == null ? 'abc' : session.tools.join('')")
		if got != want || listed != want || shown != want {
			t.Errorf("%s: calls %q, lists %q, shows %q, must be %q", what, got, listed, shown, want)
		}
	}
	parent := create(M{"tools": []string{"a", "b"}})
	same := create(M{"parent": parent})
	wider := create(M{"parent": parent, "tools": []string{"b", "c"}})
	below := create(M{"parent": wider, "tools": []string{"a", "b", "c"}})
	check("a child that names none", same, "ab")
	check("a child that names more", wider, "b")
	check("a child of a child", below, "b")
	set(wider, M{})
	check("without a limit of its own", wider, "ab")
	set(wider, M{"tools": []string{"a", "b", "c"}})
	check("with a wider limit", wider, "ab")
	set(parent, M{"tools": []string{"a"}})
	check("once the parent has less", wider, "a")
	check("and the child of the child", below, "")
	d.Stop(t)
	d = hosttest.Start(t, c)
	check("after a restart", wider, "a")
	check("after a restart, the child of the child", below, "")
	set(parent, M{})
	check("once the parent has all", wider, "ab")
	d.Stop(t)

	// Nobody knows what a parent may call whose journal is not there.
	if err := os.Remove(filepath.Join(c.State, "sessions", parent+".jsonl")); err != nil {
		t.Fatal(err)
	}
	d = hosttest.Start(t, c)
	check("without a parent", wider, "")
	set(wider, M{})
	check("without a parent, and a limit", wider, "")
}

// A socket that wants sessions named refuses what names none, and says what to do.
func TestExplicitSessions(t *testing.T) {
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	further := filepath.Join(dir, "s")
	d := hosttest.Start(t, config.Config{Sockets: []config.Socket{{Path: further, ExplicitSessions: true}}})
	d.Tool(t, "echo", M{}, nil)
	if a := ask(t, d.Socket, M{"tool": "echo"}); a.Status != "success" {
		t.Errorf("over the other socket: %s", a.raw)
	}
	refuses := func(socket string) {
		t.Helper()
		for _, req := range []M{
			{"tool": "echo"}, {"tool": "echo", "session": "default"}, {"tool": "echo", "background": true}, {"tool": "tools.list"},
			{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"text": "echo"}},
			{"toolId": "session.query", "executionId": newExecution(), "payload": M{}},
			{"toolId": "session.query", "executionId": newExecution(), "payload": M{"id": "default", "selector": "1"}},
			{"toolId": "session.mutate", "executionId": newExecution(), "payload": M{"id": "default", "op": "focus"}},
			{"toolId": "session.mutate", "executionId": newExecution(), "payload": M{"op": "close"}},
		} {
			if a := ask(t, socket, req); !hasCode(a, "DENIED") || !strings.Contains(string(a.raw), "toolctl session new") {
				t.Errorf("%v: %s", req, a.raw)
			}
		}
	}
	refuses(further)
	id := newSession(t, further)
	if a := ask(t, further, M{"tool": "echo", "session": id}); a.Status != "success" {
		t.Errorf("in a session: %s", a.raw)
	}
	c := talk(t, further)
	c.ask(M{"toolId": "session.mutate", "executionId": newExecution(), "payload": M{"id": id, "op": "focus"}})
	if a := c.ask(M{"tool": "echo"}); a.Status != "success" {
		t.Errorf("with a session in focus: %s", a.raw)
	}
	if n := value[int](t, further, "", "sessions.size()"); n != 2 {
		t.Errorf("%d sessions", n)
	}
	next := d.Config
	next.ExplicitSessions = true
	if err := d.Reload(next, nil); err != nil {
		t.Fatal(err)
	}
	refuses(d.Socket)
}

// A session says who called in it, the last one first, and where each came in.
func TestSessionSaysWhoCalls(t *testing.T) {
	d, further, _ := boundDaemon(t)
	for _, socket := range []string{d.Socket, further, d.Socket, d.Socket} {
		if a := ask(t, socket, M{"tool": "echo"}); a.Status != "success" {
			t.Fatalf("%s", a.raw)
		}
	}
	got := value[[]struct {
		PID    int
		Socket string
	}](t, d.Socket, "", "session.peers")
	if len(got) != 2 || got[0].Socket != d.Socket || got[1].Socket != further || got[0].PID != os.Getpid() {
		t.Errorf("%+v", got)
	}
}

// Who is bound to a session watches that one only, also when another was closed.
func TestBoundWatches(t *testing.T) {
	d, further, _ := boundDaemon(t)
	owner, bound := party{t, d.Socket, ""}, client.Sessions{Socket: further}
	id := owner.data("id", "mutate", M{"op": "create", "params": M{"tools": []string{"echo"}}})
	other := owner.data("id", "mutate", M{"op": "create"})
	gone := owner.data("id", "mutate", M{"op": "create"})
	bind(t, d, id)
	w := watch(t, bound, "", "")
	owner.session("mutate", M{"op": "close", "id": gone})
	d.Tool(t, "further", M{"binary": "/bin/echo"}, nil)
	owner.tool("further", other, "a")
	for _, session := range []string{other, "default", id} {
		owner.tool("echo", session, "a")
	}
	for _, e := range w.until(events.End) {
		if e.Session != id && e.Kind != events.Ready && (e.Kind != events.Tool || e.Tool != "echo") {
			t.Errorf("it is told %s of %q %s", e.Kind, e.Session, e.Tool)
		}
	}
	for _, named := range []string{other, gone, "default", "nosuch"} {
		err := bound.Watch(t.Context(), named, "", func(e events.Event) error {
			return fmt.Errorf("it is told %s", e.Kind)
		})
		if e, ok := errors.AsType[*fault.Error](err); !ok || e.Code != fault.SessionNotFound {
			t.Errorf("watching %s: %v", named, err)
		}
	}
}

// What the watchers of a session that callers are bound to cost is not its owner's.
func TestBoundWatchersAreTheirOwn(t *testing.T) {
	d, further, _ := boundDaemon(t)
	owner := party{t, d.Socket, ""}
	id := owner.data("id", "mutate", M{"op": "create"})
	next := d.Config
	next.Sockets = slices.Clone(next.Sockets)
	next.Sockets[0].Session = id
	d.Stop(t)
	next.Sessions.Watchers = 2
	d = hosttest.Start(t, next)
	bound := client.Sessions{Socket: further}
	watch(t, bound, "", "")
	watch(t, bound, "", "")
	if err := bound.Watch(t.Context(), "", "", func(events.Event) error { return errors.New("it is told") }); !isCode(err, fault.LimitExceeded) {
		t.Errorf("a third watcher: %v", err)
	}
	watch(t, client.Sessions{Socket: d.Socket}, id, "")
	watch(t, client.Sessions{Socket: d.Socket}, id, "")
}

func isCode(err error, code fault.Code) bool {
	e, ok := errors.AsType[*fault.Error](err)
	return ok && e.Code == code
}

// A job of a bound caller does not outlive what its owner gave: it ends with the session.
func TestBoundJobsEndWithTheirSession(t *testing.T) {
	d, further, _ := boundDaemon(t)
	owner, guest := party{t, d.Socket, ""}, party{t, further, ""}
	id := owner.data("id", "mutate", M{"op": "create"})
	bind(t, d, id)
	job := M{"tool": "cat", "args": []string{"/dev/zero"}, "background": true, "detach": true}
	if a := guest.ask(job); a.Code != "DENIED" || !strings.Contains(a.message(), "session.bound") {
		t.Errorf("a job that outlives the session: %s", a.raw)
	}
	if a := guest.ask(M{"toolId": "session.prompt", "executionId": newExecution(), "background": true, "detach": true, "payload": M{"text": "echo a"}}); !hasCode(a, "DENIED") {
		t.Errorf("a turn that outlives the session: %s", a.raw)
	}
	delete(job, "detach")
	if a := guest.ask(job); a.Status != "success" {
		t.Fatalf("%s", a.raw)
	}
	owner.session("mutate", M{"op": "close", "id": id})
	until(t, "the job has ended", func() bool {
		return owner.data("value", "query", M{"selector": "jobs.filter(j, j.state == 'running').size()"}) == "0"
	})
}

// Who is held to some tools is not told which others could not be listed, and why.
func TestBoundListsNameNoOtherTool(t *testing.T) {
	c := newCounter(t, nil, M{"surface": "error"})
	callerTool(t, c.Daemon, "some", []string{"cat"}, nil)
	alice := party{t, c.Socket, c.token(t, nil)}
	one := alice.data("id", "mutate", M{"op": "create", "params": M{"tools": []string{"some", "cat"}}})
	two := alice.data("id", "mutate", M{"op": "create"})
	list := M{"toolId": "tools.list", "executionId": newExecution(), "payload": M{}}
	if a := alice.ask(list); !strings.Contains(string(a.raw), `"missing":[`) {
		t.Fatalf("nothing is missing: %s", a.raw)
	}
	for session, told := range map[string]bool{one: false, two: true} {
		list["executionId"] = newExecution()
		bound := party{t, c.Socket, c.token(t, M{"toold_session": session})}
		if a := bound.ask(list); a.Status != "success" || strings.Contains(string(a.raw), `"missing"`) != told {
			t.Errorf("bound to a session: %s", a.raw)
		}
	}
	list["executionId"] = newExecution()
	delete(list, "token")
	if a := alice.tool("some", two, text(t, list)); !strings.Contains(string(a.raw), "tools") || strings.Contains(string(a.raw), "missing") {
		t.Errorf("a module with a list: %s", a.raw)
	}
}
