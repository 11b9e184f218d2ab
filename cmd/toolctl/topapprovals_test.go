package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
)

func typed(m tea.Model, keys ...string) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	for _, k := range keys {
		msg := tea.KeyPressMsg{Code: []rune(k)[0], Text: k}
		if k == "space" {
			msg = tea.KeyPressMsg{Code: tea.KeySpace, Text: " "}
		}
		m, cmd = m.Update(msg)
	}
	return m, cmd
}

// A request is approved in top only once all of it was on the screen, and nothing
// that a caller wrote moves the cursor or hides a part of it.
func TestTopApprovals(t *testing.T) {
	decided := ""
	mux := http.NewServeMux()
	var long []string
	for range 40 {
		long = append(long, "word")
	}
	plan, err := json.Marshal(map[string]any{"args": append(long, "\x1b[2J\u202eevil", strings.Repeat("x", 300)+"END")})
	if err != nil {
		t.Fatal(err)
	}
	a := adminapi.Approval{ID: "abc", State: "pending", Yours: true, Asker: "alice", Text: "pushes\x1b[2J to main", Steps: []adminapi.ApprovalStep{{Tool: "git", Version: "1", Digest: "d", Plan: plan}}}
	reply := func(w http.ResponseWriter, v any) { json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("GET /approvals", func(w http.ResponseWriter, r *http.Request) {
		reply(w, []adminapi.Approval{a, {ID: "used", State: "used"}, {ID: "other", State: "pending"}})
	})
	mux.HandleFunc("GET /approvals/abc", func(w http.ResponseWriter, r *http.Request) { reply(w, a) })
	mux.HandleFunc("POST /approvals/abc/approve", func(w http.ResponseWriter, r *http.Request) {
		decided = "approved"
		reply(w, adminapi.Approval{ID: "abc", State: "approved", Steps: a.Steps})
	})
	dir, err := os.MkdirTemp("", "top")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(mux)
	server.Listener.Close()
	server.Listener = l
	server.Start()
	defer server.Close()

	var m tea.Model = topModel{ctx: t.Context(), width: 60, height: 12, calls: &client.Sessions{Operator: client.NewAdmin(socket)}}
	m, cmd := typed(m, "p")
	m, _ = m.Update(cmd())
	var seen strings.Builder
	screen := func() string {
		s := m.(topModel).screen()
		seen.WriteString(s)
		for line := range strings.Lines(s) {
			if n := utf8.RuneCountInString(strings.NewReplacer(bold, "", plain, "", "\n", "").Replace(line)); n > 60 {
				t.Errorf("a line is %d wide", n)
			}
		}
		return s
	}
	if s := screen(); !strings.Contains(s, "approval 1 of 1") || strings.Count(s, "\n") != 11 {
		t.Fatalf("%s", s)
	}
	if m, cmd = typed(m, "y"); cmd != nil || !strings.Contains(screen(), "there is more below") {
		t.Fatal("approved before its end was seen")
	}
	for i := 0; i < 20 && !m.(topModel).review.whole; i++ {
		m, _ = typed(m, "space")
		screen()
	}
	all := seen.String()
	for _, hidden := range []string{"\x1b[2J", "\u202e"} {
		if strings.Contains(all, hidden) {
			t.Errorf("%q is on the screen", hidden)
		}
	}
	for _, shown := range []string{`\x1b[2J\u202eevil`, "END", `\x1b[2J to main`, "policy says"} {
		if !strings.Contains(all, shown) {
			t.Errorf("%q was not on the screen", shown)
		}
	}
	m, cmd = typed(m, "y")
	if m, _ = m.Update(cmd()); decided != "approved" || m.(topModel).said != "approved git" || m.(topModel).mode != modeList {
		t.Errorf("decided %q, said %q", decided, m.(topModel).said)
	}
}
