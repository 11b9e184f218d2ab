package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

func componentFile(name string) string {
	return filepath.Join(hosttest.ModuleRoot(), "host/guest/testdata/components", name+".wasm")
}

// TestComponents: a component is a tool as a module is. Its one function, or the one
// that tool.json names, is called with a payload of its types; several are tools
// that it brings; what it answers as an error is a failure.
func TestComponents(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "note"), []byte("a note"), 0o644); err != nil {
		t.Fatal(err)
	}
	d.Tool(t, "echo", M{"entry": M{"export": "test:types/echo#records"}}, map[string]string{"handler.wasm": componentFile("types")})
	d.Tool(t, "reader", M{"entry": M{"export": "read"}, "capabilities": M{"files": M{"/data": M{"path": dir}}}}, map[string]string{"handler.wasm": componentFile("native")})
	d.Tool(t, "kit", nil, map[string]string{"handler.wasm": componentFile("native")})
	d.Tool(t, "say", nil, map[string]string{"handler.wasm": componentFile("command")})
	d.Tool(t, "which", M{"entry": M{"export": "nothing"}}, map[string]string{"handler.wasm": componentFile("native")})
	d.Tool(t, "ruled", M{"binary": "/bin/echo"}, map[string]string{"restricted.wasm": componentFile("policy")})
	for _, tt := range []struct {
		what string
		call M
		code string
		says []string
	}{
		{"a function of a record", M{"toolId": "echo", "executionId": newExecution(), "payload": M{"v": M{"name": "Ada", "age": 36, "tags": []string{"x"}, "home": nil}}}, "", []string{`"data":{"name":"Ada","age":36,"tags":["x"],"home":null}`}},
		{"what is not of its type", M{"toolId": "echo", "executionId": newExecution(), "payload": M{"v": M{"name": 1}}}, "INVALID_PAYLOAD", []string{"name"}},
		{"a number that is too large", M{"toolId": "echo", "executionId": newExecution(), "payload": M{"v": M{"name": "Ada", "age": 256, "tags": []string{}, "home": nil}}}, "INVALID_PAYLOAD", []string{"/v/age"}},
		{"a file that is granted", M{"toolId": "reader", "executionId": newExecution(), "payload": M{"path": "/data/note"}}, "", []string{`"data":{"ok":"a note"}`}},
		{"a file that is not", M{"toolId": "reader", "executionId": newExecution(), "payload": M{"path": "/etc/passwd"}}, "TOOL_FAILED", []string{"no folder holds /etc/passwd"}},
		{"a tool that it brings", M{"toolId": "random", "executionId": newExecution(), "payload": M{"n": 0}}, "", []string{`"data":[]`}},
		{"a tool that it brings, without what it needs", M{"toolId": "read", "executionId": newExecution(), "payload": M{"path": "/data/note"}}, "TOOL_FAILED", []string{"no folder", `"data":{"err":"no folder`}},
		{"a command", M{"tool": "say", "args": []string{"hello"}}, "", nil},
		{"a function that it does not have", M{"toolId": "which", "executionId": newExecution(), "payload": M{}}, "TOOL_BROKEN", []string{"list-dir", "say in tool.json which is the tool"}},
	} {
		a := ask(t, d.Socket, tt.call)
		if failed := a.Code != "" || strings.Contains(string(a.raw), `"error":{`); failed != (tt.code != "") || tt.code != "" && !strings.Contains(string(a.raw), `"code":"`+tt.code+`"`) {
			t.Errorf("%s: answered %s", tt.what, a.raw)
		}
		for _, s := range tt.says {
			if !strings.Contains(string(a.raw), s) {
				t.Errorf("%s: answered %s, want %s", tt.what, a.raw, s)
			}
		}
	}
	allowed, denied := false, false
	for _, arg := range []string{"x", "xx"} { // a policy of even lengths
		a := ask(t, d.Socket, M{"tool": "ruled", "args": []string{arg}})
		allowed = allowed || a.Code == ""
		denied = denied || a.Code == "DENIED" && strings.Contains(string(a.raw), "this call is odd")
	}
	if !allowed || !denied {
		t.Errorf("the policy allowed: %v, denied: %v", allowed, denied)
	}
	// Another version takes its place.
	logged := len(d.Logs())
	d.Tool(t, "echo", M{"entry": M{"export": "test:types/echo#strings"}}, map[string]string{"handler.wasm": componentFile("types")})
	d.AwaitLog(t, logged, "tool swapped", `"echo"`)
	if a := ask(t, d.Socket, M{"toolId": "echo", "executionId": newExecution(), "payload": M{"v": "swapped"}}); !strings.Contains(string(a.raw), `"data":"swapped"`) {
		t.Errorf("after a swap: %s", a.raw)
	}
}
