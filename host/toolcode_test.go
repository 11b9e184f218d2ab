package host_test

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// codes are an answer's, in either form.
type codes struct {
	Code     string `json:"code"`
	ToolCode string `json:"tool_code"`
	Error    json.RawMessage
	Cached   bool `json:"from_cache"`
}

func codesOf(t *testing.T, a *answer) codes {
	t.Helper()
	var c codes
	if err := json.Unmarshal(a.raw, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Error) > 0 && c.Error[0] == '{' {
		json.Unmarshal(c.Error, &c)
	}
	return c
}

// A module's own error code is in both forms, in a stream, in what is kept and in
// what is answered again; the daemon's code stays of its list.
func TestToolCode(t *testing.T) {
	held := filepath.Join(t.TempDir(), "held")
	if err := os.WriteFile(held, []byte("sixteen-bytes-of-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, config.Config{Reliability: "all"})
	def := M{"mutating": true, "reliability": M{"failed_ttl": 60}, "secrets": M{"held": M{"from": "file:" + held, "header": "X-Held", "host": "nowhere.example"}}}
	for k, v := range granted {
		def[k] = v
	}
	d.Tool(t, "api", def, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	plain := func(code string, more M) M {
		q := M{"tool": "api", "args": []string{"fail-with", code}}
		for k, v := range more {
			q[k] = v
		}
		return q
	}
	want := codes{Code: "TOOL_FAILED", ToolCode: "QUOTA_EXCEEDED"}
	check := func(what string, a *answer) {
		t.Helper()
		if c := codesOf(t, a); c.Code != want.Code || c.ToolCode != want.ToolCode {
			t.Errorf("%s: %s", what, a.raw)
		}
	}
	first := ask(t, d.Socket, plain(want.ToolCode, M{"idempotency_key": "k"}))
	check("plain", first)
	again := ask(t, d.Socket, plain(want.ToolCode, M{"idempotency_key": "k"}))
	check("from its record", again)
	if !codesOf(t, again).Cached {
		t.Errorf("it ran again: %s", again.raw)
	}
	check("envelope", ask(t, d.Socket, M{"toolId": "api", "executionId": newExecution(), "payload": M{"args": []string{"fail-with", want.ToolCode}}}))

	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b, _ := json.Marshal(plain(want.ToolCode, M{"stream": true}))
	if err := wire.WriteFrame(conn, b); err != nil {
		t.Fatal(err)
	}
	for last := false; !last; {
		raw, err := wire.ReadFrame(conn)
		if err != nil {
			t.Fatal(err)
		}
		if last = strings.Contains(string(raw), `"type":"result"`); last {
			check("streamed", &answer{raw: raw})
		}
	}
	r, err := client.NewAdmin(d.Admin).Result(t.Context(), first.ID)
	if err != nil || r.Code != want.Code || r.ToolCode != want.ToolCode {
		t.Errorf("kept: %+v, %v", r, err)
	}
	if !strings.Contains(d.Logs(), `"tool_code":"QUOTA_EXCEEDED"`) {
		t.Error("the log does not have it")
	}
	// It is bounded, masked and without control characters.
	for code, want := range map[string]string{
		strings.Repeat("X", 63) + "éY":          strings.Repeat("X", 63),
		"RED\x1b[31m":                           "RED[31m",
		"IS_sixteen-bytes-of-secret":            "IS_[secret]",
		"IS_sixteen-\u0001bytes-of-secret":      "IS_[secret]",
		"IS_sixteen-\u200bbytes-of-secret":      "IS_[secret]",
		"IS_" + "\u202esixteen-bytes-of-secret": "IS_[secret]",
	} {
		if c := codesOf(t, ask(t, d.Socket, plain(code, nil))); c.ToolCode != want {
			t.Errorf("%q became %q, want %q", code, c.ToolCode, want)
		}
	}
	n := 0
	for _, e := range auditLog(t, d) {
		if e.End != nil && e.End.ToolCode == want.ToolCode {
			n++
		}
	}
	if n != 4 {
		t.Errorf("the audit log has the code %d times, must have it 4 times", n)
	}
}

// toolctl shows it.
func TestToolctlShowsToolCode(t *testing.T) {
	toolctl := filepath.Join(hosttest.Programs(t), "toolctl")
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "api", granted, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	cmd := exec.Command(toolctl, "call", "api", "--json", "--", "fail-with", "QUOTA_EXCEEDED")
	cmd.Env, cmd.Dir = []string{"TOOL_SOCKET=" + d.Socket}, d.Root
	out, _ := cmd.Output() // its exit code is the call's
	var a answer
	if err := json.Unmarshal(out, &a); err != nil || !strings.Contains(string(out), `"tool_code": "QUOTA_EXCEEDED"`) {
		t.Fatalf("toolctl call: %v: %s", err, out)
	}
	cmd = exec.Command(toolctl, "result", "--json", a.ID)
	cmd.Env = []string{"TOOLD_ADMIN=" + d.Admin}
	if out, _ := cmd.Output(); !strings.Contains(string(out), `"tool_code": "QUOTA_EXCEEDED"`) {
		t.Errorf("toolctl result: %s", out)
	}
}

// ERROR is for what an operator has to look at; a caller that is late, or makes a
// module trap, is none of it.
func TestLevelsOfTheLog(t *testing.T) {
	d := testDaemon(t)
	d.Tool(t, "wrong", M{"capabilities": M{}}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)}) // lacks what it imports
	for _, q := range []M{
		{"tool": "sleep", "args": []string{"60"}, "timeout_ms": 50},
		{"tool": "open", "args": []string{"trap"}},
		{"tool": "printf", "args": []string{"deny"}},
		{"tool": "wrong", "args": []string{"x"}},
	} {
		ask(t, d.Socket, q)
	}
	levels := map[string]string{}
	for line := range strings.Lines(d.Logs()) {
		var l struct{ Level, Msg, Code string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "call" && l.Code != "" {
			levels[l.Code] = l.Level
		}
	}
	for code, want := range map[string]string{"TIMEOUT": "WARN", "GUEST_TRAP": "WARN", "DENIED": "INFO", "TOOL_BROKEN": "ERROR"} {
		if levels[code] != want {
			t.Errorf("%s is logged at %q, want %s", code, levels[code], want)
		}
	}
}
