package main

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/events"
)

// aMoment is what a busy daemon says. Everything in it is as old as it says.
func aMoment(t *testing.T) seen {
	t.Helper()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	v := seen{at: at, status: &adminapi.HostStatus{Instance: "0", Started: at.Add(-3*time.Hour - 5*time.Minute), Connections: 4}}
	err := json.Unmarshal([]byte(`[
		{"id": "aaaaaaaaaaaaaaaaaaaaaaaa", "default": true, "state": "active", "used": "2026-11-21T11:59:58Z",
		 "telemetry": {"calls": 1204}, "recent": [{"tool": "git", "status": "success"}]},
		{"id": "bbbbbbbbbbbbbbbbbbbbbbbb", "name": "release", "state": "active", "used": "2026-11-21T11:55:00Z", "telemetry": {"calls": 7},
		 "running": [
			{"execution": "e1", "tool": "make", "kind": "call", "attempts": 1, "started": "2026-11-21T11:58:59Z", "last_line": "cc -c main.c\u001b[31m red"},
			{"execution": "e2", "tool": "fetch", "kind": "turn", "attempts": 3, "started": "2026-11-21T11:59:59.1Z", "last_line": "進捗 40%"}]},
		{"id": "cccccccccccccccccccccccc", "state": "suspended", "used": "2026-11-20T11:00:00Z", "telemetry": {"calls": 1},
		 "recent": [{"tool": "grep", "status": "error", "exit_code": 1}]}]`), &v.sessions)
	if err != nil {
		t.Fatal(err)
	}
	v.breakers = []adminapi.BreakerStatus{{Tool: "fetch", State: "open"}, {Tool: "git", State: "closed"}}
	v.tools = []adminapi.ToolStatus{{Name: "git", State: adminapi.ToolOK}, {Name: "npm", State: adminapi.ToolAbsent, Reason: "its binary /usr/bin/npm is not on this host; install it"}}
	return v
}

// press sends keys to a model, each as a terminal does, and runs what they begin.
func press(m tea.Model, keys ...string) tea.Model {
	codes := map[string]rune{"up": tea.KeyUp, "down": tea.KeyDown, "enter": tea.KeyEnter, "esc": tea.KeyEscape, "backspace": tea.KeyBackspace, "end": tea.KeyEnd}
	for _, k := range keys {
		msg := tea.KeyPressMsg{Text: k, Code: []rune(k)[0]}
		if code, ok := codes[k]; ok {
			msg = tea.KeyPressMsg{Code: code}
		}
		var cmd tea.Cmd
		if m, cmd = m.Update(msg); cmd != nil {
			m, _ = m.Update(cmd())
		}
	}
	return m
}

// golden compares a screen with the one that is kept, and keeps it with
// TOOLD_GOLDEN=1. The chosen line stands between > and <.
func golden(t *testing.T, name string, m tea.Model) {
	t.Helper()
	top := m.(topModel)
	screen := strings.NewReplacer(reversed, ">", plain, "<", bold, "").Replace(top.screen())
	lines := strings.Split(top.screen(), "\n")
	if len(lines) != top.height {
		t.Errorf("%s: %d lines on a screen of %d", name, len(lines), top.height)
	}
	for _, l := range lines {
		if n := ansi.StringWidth(l); n > top.width {
			t.Errorf("%s: %d cells on a screen of %d: %q", name, n, top.width, l)
		}
	}
	path := filepath.Join("testdata", "top", name+".txt")
	if os.Getenv("TOOLD_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(screen+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != screen+"\n" {
		t.Errorf("%s (TOOLD_GOLDEN=1 keeps it, after you looked): %v\n%s", name, err, screen)
	}
}

func TestTopScreens(t *testing.T) {
	t.Setenv("TZ", "UTC")
	made := topModel{ctx: t.Context(), width: 90, height: 16}
	golden(t, "empty", made)
	made.take(aMoment(t))
	golden(t, "busy", made)
	golden(t, "chosen", press(made, "down", "down"))
	golden(t, "last", press(made, "end"))
	golden(t, "steering", press(made, "down", "down", "down", "s", "y", "e", "x", "backspace", "s"))
	golden(t, "closing", press(made, "down", "c"))
	golden(t, "not-closed", press(made, "down", "c", "n"))
	small, _ := made.Update(tea.WindowSizeMsg{Width: 40, Height: 8})
	golden(t, "small", press(small, "end"))
	tiny, _ := made.Update(tea.WindowSizeMsg{Width: 5, Height: 2})
	golden(t, "tiny", tiny)
	gone, _ := made.Update(seen{err: errors.New("connect: no such file")})
	golden(t, "gone", gone)

	// What is chosen stays chosen when rows above it come and go.
	m := press(made, "down", "down", "down").(topModel)
	next := aMoment(t)
	next.sessions[1].Running = next.sessions[1].Running[1:]
	m.take(next)
	if r := m.rows[m.at]; r.execution == nil || r.execution.Execution != "e2" {
		t.Errorf("after a call ended %+v is chosen", r)
	}
}

// TestTopFollows: what the daemon tells is on the screen, and it is asked only where
// that is not enough.
func TestTopFollows(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 1, 0, time.UTC)
	const release = "bbbbbbbbbbbbbbbbbbbbbbbb"
	made := topModel{ctx: t.Context(), width: 90, height: 16}
	made.take(aMoment(t))
	hear := func(list ...events.Event) topModel {
		var batch happened
		for _, e := range list {
			batch = append(batch, told{event: e})
		}
		m, _ := made.Update(batch)
		m, _ = m.Update(tick(at))
		return m.(topModel)
	}
	m := hear(
		events.Event{Kind: events.Begin, Session: release, Execution: "e3", Tool: "git", Type: "call", At: at.Add(-500 * time.Millisecond)},
		events.Event{Kind: events.Begin, Session: release, Execution: "e3", Tool: "git", Type: "call"}, // as one that an answer has, too
		events.Event{Kind: events.Attempt, Session: release, Execution: "e3", Attempt: 2},
		events.Event{Kind: events.Output, Session: release, Execution: "e3", LastLine: "Counting objects"},
		events.Event{Kind: events.Output, Session: release, Execution: "e2", LastLine: "進捗 80%"},
		events.Event{Kind: events.End, Session: release, Execution: "e1", Tool: "make", Type: "call", Status: "success", At: at},
		events.Event{Kind: events.State, Session: "aaaaaaaaaaaaaaaaaaaaaaaa", State: "suspended"},
		events.Event{Kind: events.Settings, Session: release, Name: "released"},
		events.Event{Kind: events.State, Session: "cccccccccccccccccccccccc", State: "closing"},
	)
	golden(t, "followed", m)
	if m.stale || m.asking {
		t.Error("the daemon is asked although it told all there is")
	}
	if made.seen.sessions[1].Name != "release" || len(made.seen.sessions[1].Running) != 2 {
		t.Error("an older model has changed")
	}
	for name, e := range map[string]events.Event{
		"the beginning":      {Kind: events.Ready},
		"a loss":             {Kind: events.Lost, Lost: &events.Loss{State: 1}},
		"a reset":            {Kind: events.Lost, Lost: &events.Loss{Reset: true}},
		"a tool":             {Kind: events.Tool, Tool: "git", Change: "failed"},
		"a failure":          {Kind: events.End, Session: release, Execution: "e1", Tool: "make", Code: "TOOL_FAILED"},
		"an unknown session": {Kind: events.Begin, Session: "dddddddddddddddddddddddd", Execution: "e9"},
	} {
		if m := hear(e); !m.asking || m.stale {
			t.Errorf("after %s the daemon is not asked", name)
		}
	}
	if m := hear(events.Event{Kind: events.Lost, Lost: &events.Loss{Output: 3, Bytes: 9}}); m.asking {
		t.Error("the daemon is asked for output that was lost")
	}
	gone, _ := made.Update(happened{told{err: errors.New("connect: no such file")}})
	golden(t, "gone", gone)
}

// TestTopKeys: each key makes the session call that it is for.
func TestTopKeys(t *testing.T) {
	var asked []string
	answer := `{}`
	socket := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body strings.Builder
		r.Write(&body)
		_, payload, _ := strings.Cut(body.String(), "\r\n\r\n")
		asked = append(asked, r.URL.Path+" "+payload)
		w.Write([]byte(`{"data": ` + answer + `}`))
	})}}
	srv.Start()
	defer srv.Close()
	made := topModel{ctx: t.Context(), width: 90, height: 16, calls: &client.Sessions{Operator: client.NewAdmin(socket)}}
	made.take(aMoment(t))
	for _, tt := range []struct {
		keys   []string
		answer string
		want   string
		says   string
	}{
		{[]string{"down", "down", "a"}, `{"aborted": [{"tool": "make", "outcome": "OUTCOME_UNKNOWN"}]}`, `/session/abort {"execution":"e1","id":"bbbbbbbbbbbbbbbbbbbbbbbb"}`, "aborted make: OUTCOME_UNKNOWN"},
		{[]string{"a"}, `{"aborted": []}`, `/session/abort {"id":"aaaaaaaaaaaaaaaaaaaaaaaa"}`, "nothing was running"},
		{[]string{"down", "down", "down", "s", "n", "o", "enter"}, `{"delivered": true}`, `/session/steer {"execution":"e2","id":"bbbbbbbbbbbbbbbbbbbbbbbb","text":"no\n"}`, "delivered"},
		{[]string{"s", "x", "enter"}, `{"delivered": false}`, `/session/steer {"id":"aaaaaaaaaaaaaaaaaaaaaaaa","text":"x\n"}`, "not read yet: it waits for the call to read it"},
		{[]string{"down", "down", "c", "y"}, `{}`, `/session/mutate {"id":"bbbbbbbbbbbbbbbbbbbbbbbb","op":"close"}`, "closed"},
	} {
		asked, answer = nil, tt.answer
		m := press(made, tt.keys...).(topModel)
		if len(asked) != 1 || asked[0] != tt.want || m.said != tt.says {
			t.Errorf("%v asked %q and said %q", tt.keys, asked, m.said)
		}
	}
	asked = nil
	press(made, "c", "n")
	press(made, "s", "x", "esc")
	if asked != nil {
		t.Errorf("what was left asked %q", asked)
	}
	if _, cmd := made.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); cmd == nil || cmd() != (tea.QuitMsg{}) {
		t.Error("q does not leave")
	}
}
