package host_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// toldLines are the events that the tool listener was run with.
func toldLines(t testing.TB, d *hosttest.Daemon) (list []M) {
	t.Helper()
	for line := range strings.Lines(d.Logs()) {
		var l struct{ Message string }
		if json.Unmarshal([]byte(line), &l) != nil {
			continue
		}
		said, ok := strings.CutPrefix(l.Message, "told ")
		if !ok {
			continue
		}
		body, as, _ := strings.Cut(said, " as ")
		e := M{"as": as}
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		list = append(list, e)
	}
	return list
}

func listener(t testing.TB, d *hosttest.Daemon, on []string, more M) {
	t.Helper()
	def := M{"on": on, "capabilities": M{"tool_call": []string{"*"}}}
	for k, v := range more {
		def[k] = v
	}
	files := map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/listener")}
	// A call waits for the module to be compiled, and nobody can call the listener.
	d.Tool(t, "compiled", M{"capabilities": M{"tool_call": []string{"*"}}}, files)
	if a := ask(t, d.Socket, M{"toolId": "compiled", "executionId": newExecution(), "payload": M{}}); a.Status != "success" {
		t.Fatalf("%s", a.raw)
	}
	after := len(d.Logs())
	d.Tool(t, "listener", def, files)
	d.AwaitLog(t, after, `"tool loaded"`, `"listener"`)
}

// awaitTold waits until the listener was run with the end of a call of that id.
func awaitTold(t testing.TB, d *hosttest.Daemon, execution string) M {
	t.Helper()
	var found M
	until(t, "it is told of "+execution, func() bool {
		for _, e := range toldLines(t, d) {
			if e["execution"] == execution && e["event"] == "call.end" {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// A tool that declares "on" is run with what happens, as nobody that a caller can be,
// and hears neither arguments nor of itself. Callers do not see it.
func TestToolsAreRunWithEvents(t *testing.T) {
	d := moduleDaemon(t, config.Config{LogLevel: "info"})
	callerTool(t, d, "some", []string{"listener", "cat"}, nil)
	listener(t, d, []string{"call.end", "tool.change"}, M{"config": M{"calls": `{"toolId":"sh","payload":{"args":["-c","echo $((6*7))"]}}`}})
	secret := newExecution()
	until(t, "it listens", func() bool {
		ask(t, d.Socket, M{"tool": "cat", "args": []string{"/dev/null"}, "cwd": d.Root})
		return len(toldLines(t, d)) > 1
	})
	ask(t, d.Socket, M{"toolId": "sh", "executionId": secret, "payload": M{"args": []string{"-c", "echo " + canary + "; exit 3"}, "cwd": d.Root}})
	e := awaitTold(t, d, secret)
	if e["tool"] != "sh" || e["exit_code"] != 3.0 || e["as"] != "extension-listener" || e["owner"] == "" || e["kind"] != "call" || e["at"] == nil {
		t.Errorf("%v", e)
	}
	if strings.Contains(fmt.Sprint(toldLines(t, d)), canary) {
		t.Error("it was told of arguments or output")
	}
	until(t, "it called a tool", func() bool { return strings.Contains(d.Logs(), `answered`) && strings.Contains(d.Logs(), `42`) })
	d.Tool(t, "late", M{"binary": "/bin/cat"}, nil)
	ask(t, d.Socket, M{"tool": "late", "args": []string{"/dev/null"}, "cwd": d.Root})
	until(t, "it is told of a tool", func() bool {
		for _, e := range toldLines(t, d) {
			if e["event"] == "tool.change" && e["tool"] == "late" {
				return true
			}
		}
		return false
	})
	last := newExecution()
	ask(t, d.Socket, M{"toolId": "cat", "executionId": last, "payload": M{"args": []string{"/dev/null"}, "cwd": d.Root}})
	awaitTold(t, d, last)
	for _, e := range toldLines(t, d) {
		if e["tool"] == "listener" && e["event"] != "tool.change" || e["owner"] == "extension-listener" || e["event"] == "call.begin" {
			t.Errorf("it was told of itself, or of what it did not ask for: %v", e)
		}
	}
	// A caller could tell it anything.
	if a := ask(t, d.Socket, M{"toolId": "listener", "executionId": newExecution(), "payload": M{"event": "call.end"}}); !strings.Contains(string(a.raw), "UNKNOWN_TOOL") {
		t.Errorf("a call by a caller: %s", a.raw)
	}
	if i := through(t, d, "some", M{"toolId": "listener", "payload": M{"event": "call.end"}}); !i.is("UNKNOWN_TOOL") {
		t.Errorf("a call by a module: %s", i.raw)
	}
	if a := ask(t, d.Socket, M{"tool": "tools.list"}); strings.Contains(a.Stdout, "listener") || !strings.Contains(a.Stdout, "some") {
		t.Errorf("%s", a.raw)
	}
}

// What waits for a slow tool is bounded, what is dropped is said, and calls do not wait.
func TestASlowToolLosesEvents(t *testing.T) {
	d := moduleDaemon(t, config.Config{LogLevel: "info"})
	ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", "mkfifo go"}})
	go_ := filepath.Join(d.Root, "go")
	d.Tool(t, "hold", M{"binary": "/bin/true"}, nil)
	listener(t, d, []string{"call.end"}, M{"config": M{"holds": text(t, M{"toolId": "sh", "payload": M{"args": []string{"-c", "cat " + go_}}})}})
	until(t, "it listens", func() bool {
		ask(t, d.Socket, M{"tool": "cat", "args": []string{"/dev/null"}, "cwd": d.Root})
		return len(toldLines(t, d)) > 1
	})
	ask(t, d.Socket, M{"tool": "hold", "cwd": d.Root})
	until(t, "it is slow", func() bool {
		for _, e := range toldLines(t, d) {
			if e["tool"] == "hold" {
				return true
			}
		}
		return false
	})
	for range 256 + 40 {
		if a := ask(t, d.Socket, M{"tool": "tools.list"}); a.Status != "success" {
			t.Fatalf("%s", a.raw)
		}
	}
	until(t, "it is said", func() bool { return strings.Contains(d.Logs(), "slower than the events") })
	ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", "echo > go"}})
	last := newExecution()
	until(t, "it goes on", func() bool {
		for _, e := range toldLines(t, d) {
			if e["dropped"] != nil {
				return e["dropped"].(float64) >= 30
			}
		}
		return false
	})
	ask(t, d.Socket, M{"toolId": "cat", "executionId": last, "payload": M{"args": []string{"/dev/null"}, "cwd": d.Root}})
	awaitTold(t, d, last)
	if m, err := scrapeAdmin(t, d.Admin); err != nil || !strings.Contains(m, `toold_events_dropped_total{tool="listener"}`) {
		t.Errorf("the metrics have no dropped events: %v", err)
	}
}

// Where calls must name their session, tools are run with events all the same, and call
// others: nobody could name one for them.
func TestToolsAreRunWithEventsWhereSessionsAreNamed(t *testing.T) {
	d := moduleDaemon(t, config.Config{LogLevel: "info"})
	listener(t, d, []string{"call.end"}, M{"config": M{"calls": `{"toolId":"sh","payload":{"args":["-c","echo $((6*7))"]}}`}})
	next := d.Config
	next.ExplicitSessions = true
	if err := d.Reload(next, nil); err != nil {
		t.Fatal(err)
	}
	id := newSession(t, d.Socket)
	until(t, "it is told, and called a tool", func() bool {
		ask(t, d.Socket, M{"tool": "cat", "args": []string{"/dev/null"}, "cwd": d.Root, "session": id})
		return strings.Contains(d.Logs(), `answered`) && strings.Contains(d.Logs(), `42`)
	})
	if strings.Contains(d.Logs(), "session.explicit") {
		t.Error("it was refused")
	}
}

// What runs a tool with events is nobody who has a token: a secret that a claim gives
// is not there, neither for the tool nor for one that it calls.
func TestToolsAreRunWithEventsWithoutClaims(t *testing.T) {
	issuer := hosttest.NewIssuer(t)
	yes := true
	d := moduleDaemon(t, config.Config{LogLevel: "info", Identity: config.IdentityConfig{JWKS: issuer.JWKS, AllowUID: &yes}})
	d.Tool(t, "claims", M{
		"binary": "/bin/sh", "capabilities": M{"exec": []string{"/bin", "/usr/bin"}},
		"secrets": M{"token": M{"env": "TOKEN", "from": "claim:service_token"}},
	}, nil)
	script := `echo "has=${TOKEN:+some}."`
	token := issuer.Token(t, M{"sub": "alice", "service_token": "hunter2-canary"})
	until(t, "a caller has it", func() bool { // once the tool that declares the claim is there
		a := ask(t, d.Socket, M{"tool": "claims", "args": []string{"-c", script}, "cwd": d.Root, "token": token})
		return a.Stdout == "has=some.\n"
	})
	listener(t, d, []string{"call.end"}, M{"config": M{"calls": text(t, M{"toolId": "claims", "payload": M{"args": []string{"-c", script}}})}})
	until(t, "it called the tool", func() bool {
		ask(t, d.Socket, M{"tool": "claims", "args": []string{"-c", script}, "cwd": d.Root, "token": token})
		return strings.Contains(d.Logs(), `answered`)
	})
	if strings.Contains(d.Logs(), "has=some") || strings.Contains(d.Logs(), "hunter2") {
		t.Error("it has the secret of a caller")
	}
}
