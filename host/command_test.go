package host_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// A call that names no folder works in the first root of its socket, in either
// form; a turn works in the folder of its session.
func TestCwdLeftOut(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	other := filepath.Join(dir, "other.sock")
	d := hosttest.Start(t, config.Config{Roots: []string{first, second}, Sockets: []config.Socket{{Path: other, Roots: []string{second}}}})
	d.Tool(t, "pwd", M{"binary": "/bin/pwd"}, nil)
	d.Tool(t, "narrow", M{"binary": "/bin/pwd", "roots": []string{second}}, nil)
	d.Tool(t, "module", granted, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	for _, tt := range []struct{ socket, tool, want string }{
		{d.Socket, "pwd", first}, {other, "pwd", second}, {d.Socket, "narrow", second},
	} {
		if a := ask(t, tt.socket, M{"tool": tt.tool, "args": []string{}}); a.Stdout != tt.want+"\n" {
			t.Errorf("%s, plain: %s, want %s", tt.tool, a.raw, tt.want)
		}
		if a := ask(t, tt.socket, M{"toolId": tt.tool, "executionId": newExecution(), "payload": M{"args": []string{}}}); a.Status != "success" || !strings.Contains(string(a.Data), tt.want) {
			t.Errorf("%s, envelope: %s, want %s", tt.tool, a.raw, tt.want)
		}
	}
	// A module that works in a folder has it too, whatever its payload.
	for _, payload := range []M{{"args": []string{"x"}}, {"width": 1}} {
		if a := ask(t, d.Socket, M{"toolId": "module", "executionId": newExecution(), "payload": payload}); !strings.Contains(string(a.Data), `"cwd":"`+first+`"`) {
			t.Errorf("module, %v: %s, want %s", payload, a.raw, first)
		}
	}
	folder := filepath.Join(first, "of-the-session")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	var made struct{ ID string }
	if a := session(t, d.Socket, "mutate", M{"op": "create", "params": M{"cwd": folder}}); json.Unmarshal(a.Data, &made) != nil || made.ID == "" {
		t.Fatalf("create: %s", a.raw)
	}
	for _, payload := range []M{{"id": made.ID, "text": "pwd"}, {"id": made.ID, "envelope": M{"toolId": "pwd", "payload": M{"args": []string{}}}}} {
		if a := session(t, d.Socket, "prompt", payload); a.Status != "success" || !strings.Contains(string(a.Data), folder) {
			t.Errorf("turn: %s, want %s", a.raw, folder)
		}
	}
}

// One key over two sockets with other first roots is two requests: the second is
// not answered with what the first did elsewhere.
func TestCwdLeftOutWithAKey(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	other := filepath.Join(dir, "other.sock")
	d := hosttest.Start(t, config.Config{Reliability: "all", Roots: []string{first, second}, Sockets: []config.Socket{{Path: other, Roots: []string{second}}}})
	d.Tool(t, "pwd", M{"binary": "/bin/pwd", "mutating": true}, nil)
	call := M{"tool": "pwd", "args": []string{}, "idempotency_key": "k"}
	for range 2 {
		if a := ask(t, d.Socket, call); a.Stdout != first+"\n" {
			t.Errorf("%s", a.raw)
		}
	}
	if a := ask(t, other, call); a.Code != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("over the other socket: %s", a.raw)
	}
}

// A payload with a misspelled field is refused by that field, and never runs as
// a command without arguments or in another folder.
func TestMisspelledFieldOfACommand(t *testing.T) {
	d := testDaemon(t)
	d.Tool(t, "schemed", M{"schema": M{"type": "object", "properties": M{"args": M{"type": "array"}, "width": M{"type": "integer"}}},
		"capabilities": granted["capabilities"]}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	for _, tt := range []struct {
		tool    string
		payload M
		want    string
	}{
		{"printf", M{"args": []string{"x"}, "cdw": d.Root}, `/payload/cdw: is not a known name; did you mean \"cwd\"?`},
		{"printf", M{"args": []string{"x"}, "cwd": d.Root, "stdni": "eA=="}, `/payload/stdni: is not a known name; did you mean \"stdin\"?`},
		{"printf", M{"arg": []string{"x"}}, `/payload/arg: is not a known name; did you mean \"args\"?`},
		{"printf", M{"args": "x"}, "/payload/args: must be"},
		{"printf", M{}, "/payload/args: is missing"},
		{"open", M{"args": []string{"x"}, "cdw": d.Root}, `/payload/cdw: is not a known name; did you mean \"cwd\"?`},
		{"schemed", M{"args": []string{"x"}, "cwd": d.Root, "widht": 1}, `/widht is not a property that the schema has; did you mean \"width\"?`},
	} {
		a := ask(t, d.Socket, M{"toolId": tt.tool, "executionId": newExecution(), "payload": tt.payload})
		if !strings.Contains(string(a.Error), tt.want) || !strings.Contains(string(a.Error), "INVALID_PAYLOAD") || a.Data != nil {
			t.Errorf("%s %v: %s\nwant %s", tt.tool, tt.payload, a.raw, tt.want)
		}
	}
	// What the caller left out is not held against it.
	if a := ask(t, d.Socket, M{"toolId": "schemed", "executionId": newExecution(), "payload": M{"args": []string{"x"}}}); a.Status != "success" {
		t.Errorf("args alone: %s", a.raw)
	}
}
