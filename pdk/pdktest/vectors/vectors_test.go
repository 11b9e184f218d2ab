package vectors

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

func TestCanonical(t *testing.T) {
	for _, tt := range []struct{ a, b string }{
		{`{"exit_code":0,"stdout":""}`, ` { "exit_code" : 0 } `},
		{`{"exit_code":0,"data":{"b":1,"a":[2]}}`, `{"data":{"a":[2],"b":1},"exit_code":0,"gone":false}`},
	} {
		a, err1 := canonical([]byte(tt.a), &abi.Result{})
		b, err2 := canonical([]byte(tt.b), &abi.Result{})
		if err1 != nil || err2 != nil || string(a) != string(b) {
			t.Errorf("%s, %v is not %s, %v", a, err1, b, err2)
		}
	}
	a, _ := canonical([]byte(`{"effect":"allow"}`), &abi.Decision{})
	b, _ := canonical([]byte(`{"effect":"allow","args":[]}`), &abi.Decision{})
	if string(a) == string(b) {
		t.Error("no args and empty args are the same")
	}
	for _, bad := range []string{`{"effect":"allow","extra":1}`, `{"effect":"allow","effect":"deny"}`, `{"Effect":"allow"}`, `{"effect":1}`, `{"effect":"allow"} {}`, ``} {
		if _, err := canonical([]byte(bad), &abi.Decision{}); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no name":       `[{"export":"handle","in":{},"out":{}}]`,
		"a name twice":  `[{"name":"a","export":"handle","in":{},"out":{}},{"name":"a","export":"handle","in":{},"out":{}}]`,
		"no input":      `[{"name":"a","export":"handle","out":{}}]`,
		"both inputs":   `[{"name":"a","export":"handle","in":{},"input":"","out":{}}]`,
		"no answer":     `[{"name":"a","export":"handle","in":{}}]`,
		"both answers":  `[{"name":"a","export":"handle","in":{},"out":{},"fails":["TOOL_FAILED"]}]`,
		"no export":     `[{"name":"a","export":"run","in":{},"out":{}}]`,
		"unknown field": `[{"name":"a","export":"handle","in":{},"out":{},"logs":[]}]`,
		"not JSON":      `[`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "x.json"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(dir); err == nil {
				t.Error("loaded")
			}
		})
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("an empty folder is loaded")
	}
}

// TestHostSeesFaults: what a guest asks and tells otherwise than its vector
// says is told, each thing by itself.
func TestHostSeesFaults(t *testing.T) {
	v := Vector{
		Export: "handle", Vars: map[string]string{"a": "1"}, Recv: []string{"x"}, HTTP: &HTTPAnswer{Status: 200}, Exec: &abi.ExecResult{}, ToolCall: json.RawMessage(`{}`),
		Log: []Line{{"info", "said"}}, Emitted: []Emitted{{"stdout", "out"}}, VarsAfter: map[string]string{"a": "2"},
		AskedHTTP: &HTTPAsked{Method: "GET", URL: "u", Headers: map[string]string{"x": "y"}}, AskedExec: &abi.ExecRequest{Path: "/bin/x"}, AskedForCall: json.RawMessage(`{"a":1,"b":2}`),
	}
	right := map[string]func(*Host){
		"log":       func(h *Host) { h.Log("info", "said") },
		"emit":      func(h *Host) { h.Emit("stdout", []byte("out")) },
		"var":       func(h *Host) { h.VarSet("a", []byte("2")) },
		"http":      func(h *Host) { h.HTTP(HTTPAsked{Method: "GET", URL: "u", Headers: map[string]string{"X": "y"}}) },
		"exec":      func(h *Host) { h.Exec(&abi.ExecRequest{Path: "/bin/x"}) },
		"tool_call": func(h *Host) { h.ToolCall([]byte(`{"b":2, "a":1}`)) },
	}
	wrong := map[string]func(*Host){
		"log":       func(h *Host) { h.Log("warn", "said") },
		"emit":      func(h *Host) { h.Emit("stderr", []byte("out")) },
		"var":       func(h *Host) { h.VarSet("a", nil) },
		"http":      func(h *Host) { h.HTTP(HTTPAsked{Method: "GET", URL: "u"}) },
		"exec":      func(h *Host) { h.Exec(&abi.ExecRequest{Path: "/bin/y"}) },
		"tool_call": func(h *Host) { h.ToolCall([]byte(`{"a":1}`)) },
	}
	call := func(odd string, instead func(*Host)) error {
		h := v.Host()
		for name, does := range right {
			if name == odd {
				does = instead
			}
			does(h)
		}
		return h.Check()
	}
	if err := call("", nil); err != nil {
		t.Fatal(err)
	}
	for name := range right {
		if call(name, wrong[name]) == nil {
			t.Errorf("%s: nothing is told of what is wrong", name)
		}
		if call(name, func(*Host) {}) == nil {
			t.Errorf("%s: nothing is told of what is missing", name)
		}
	}
}
