package host_test

import (
	"encoding/json"
	"testing"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/hosttest"
)

const anID = "7d444840-9dc0-41d1-b245-5ffdce74fad2"

// session makes one of the five calls on a connection of its own.
func session(t testing.TB, socket, call string, payload M) *answer {
	t.Helper()
	return ask(t, socket, M{"toolId": "session." + call, "executionId": anID, "payload": payload})
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
	d := hosttest.Start(t, host.Config{})
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
	a := ask(t, d.Socket, M{"tool": "echo", "cwd": d.Root, "session": "nosuch"})
	if a.Code != "SESSION_NOT_FOUND" || a.ExitCode != 70 {
		t.Errorf("a session that is not there: %s", a.raw)
	}
}
