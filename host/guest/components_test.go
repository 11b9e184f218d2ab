package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/pdk/abi"
)

// loadComponent loads a component of testdata. They are made from the sources
// beside them: see testdata/components/README.md.
func loadComponent(t testing.TB, name string, spec Spec) *Module {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/components", name+".wasm"))
	if err != nil {
		t.Fatal(err)
	}
	spec.Name, spec.Wasm = name+".wasm", b
	m, err := newEngine(t).Load(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// ask calls a typed function and answers its data, or the text of its error.
func ask(t testing.TB, m *Module, export, in string) (data string, failed string) {
	t.Helper()
	reply, err := m.Call(context.Background(), Invocation{Export: export, Input: []byte(in)})
	if err != nil {
		t.Fatalf("%s(%s): %v", export, in, err)
	}
	var r abi.Result
	if err := json.Unmarshal(reply.Output, &r); err != nil {
		t.Fatal(err)
	}
	if (r.Error != nil) != (r.ExitCode != 0) {
		t.Errorf("%s: exit code %d beside error %v", export, r.ExitCode, r.Error)
	}
	if r.Error != nil {
		failed = r.Error.Message
	}
	return string(r.Data), failed
}

// Values of every type come back as wasmtime answers them.
func TestComponentValues(t *testing.T) {
	m := loadComponent(t, "types", Spec{})
	if m.Unshared() != "" {
		t.Errorf("it has no image: %s", m.Unshared())
	}
	var cases []struct {
		Interface, Export string
		In                json.RawMessage
	}
	var answers []any
	read := func(name string, v any) {
		b, err := os.ReadFile(filepath.Join("testdata/components", name))
		if err != nil {
			t.Fatal(err)
		}
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.UseNumber()
		if err := dec.Decode(v); err != nil {
			t.Fatal(err)
		}
	}
	read("types.json", &cases)
	read("types.answers.json", &answers)
	if len(cases) != len(answers) {
		t.Fatalf("%d cases, %d answers", len(cases), len(answers))
	}
	for i, c := range cases {
		data, _ := ask(t, m, c.Interface+"#"+c.Export, string(c.In))
		var got any
		dec := json.NewDecoder(strings.NewReader(data))
		dec.UseNumber()
		if err := dec.Decode(&got); err != nil {
			t.Fatal(err)
		}
		// 2.0 and 2 are one number.
		if !reflect.DeepEqual(plainNumbers(got), plainNumbers(answers[i])) {
			t.Errorf("%s(%s) = %s, in wasmtime %v", c.Export, c.In, data, answers[i])
		}
	}
	const deep = `[[null,{"ok":["red","blue"]}],[{"tag":"named","val":"n"},{"err":["write"]}],[{"tag":"circle","val":2},{"ok":[]}]]`
	if got, _ := ask(t, m, "test:types/echo#nested", `{"v": `+deep+`}`); got != deep {
		t.Errorf("nested = %s", got)
	}
	if data, failed := ask(t, m, "test:types/echo#fail", `{"why": "because"}`); data != `{"err":"because"}` || failed != "because" {
		t.Errorf("fail = %s, %q", data, failed)
	}
}

func plainNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		return strings.TrimSuffix(string(v), ".0")
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plainNumbers(v[k])
		}
	}
	return v
}

// Arguments that are not of the types are the caller's mistake, and say where.
func TestComponentArguments(t *testing.T) {
	m := loadComponent(t, "types", Spec{})
	for _, tt := range []struct{ export, in, says string }{
		{"u8s", `{"v": 256}`, "/v"},
		{"u8s", `{"v": -1}`, "/v"},
		{"u8s", `{"v": 1.5}`, "/v"},
		{"u8s", `{}`, "missing"},
		{"u8s", `{"v": 1, "w": 2}`, "/w"},
		{"u8s", `[1]`, "array"},
		{"chars", `{"v": "ab"}`, "2 characters"},
		{"records", `{"v": {"name": "a", "age": "b", "tags": []}}`, "/v/age"},
		{"records", `{"v": {"name": "a", "age": 1, "tags": [1]}}`, "/v/tags/0"},
		{"variants", `{"v": {"tag": "cube"}}`, "cube"},
		{"variants", `{"v": {"tag": "nothing", "val": 1}}`, "/v/val"},
		{"enums", `{"v": "pink"}`, "pink"},
		{"results", `{"v": {"ok": 1, "err": "x"}}`, "neither"},
		{"flagged", `{"v": ["fly"]}`, "fly"},
		{"tuples", `{"v": [1, "a"]}`, "2 items"},
	} {
		_, err := m.Call(context.Background(), Invocation{Export: "test:types/echo#" + tt.export, Input: []byte(tt.in)})
		var e *fault.Error
		if !errors.As(err, &e) || e.Code != fault.InvalidPayload || !strings.Contains(e.Message, tt.says) {
			t.Errorf("%s(%s): %v, want INVALID_PAYLOAD with %q", tt.export, tt.in, err, tt.says)
		}
	}
	if got, _ := ask(t, m, "test:types/echo#records", `{"v": {"name": "a", "age": 1, "tags": []}}`); !strings.Contains(got, `"home":null`) {
		t.Errorf("an option that is missing: %s", got)
	}
	if got, _ := ask(t, m, "test:types/echo#flagged", `{"v": {"write": true, "read": false}}`); got != `["write"]` {
		t.Errorf("flags as an object: %s", got)
	}
}

// A call takes the same fuel each time, on the same instance, on another, and in
// another process's engine.
func TestComponentFuel(t *testing.T) {
	run := func(m *Module, n int) (first int64) {
		for i := range n {
			reply, err := m.Call(context.Background(), Invocation{Export: "test:types/echo#records", Input: []byte(`{"v": {"name": "Ada", "age": 36, "tags": ["a", "b"], "home": {"x": 1, "y": 2}}}`)})
			if err != nil {
				t.Fatal(err)
			}
			if first == 0 {
				first = reply.Stats.Fuel
			}
			if reply.Stats.Fuel != first {
				t.Fatalf("run %d took %d, the first %d", i, reply.Stats.Fuel, first)
			}
		}
		return first
	}
	first := run(loadComponent(t, "types", Spec{}), 1000)
	if first == 0 {
		t.Fatal("it took no fuel")
	}
	e, err := New(Config{CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	b, err := os.ReadFile("testdata/components/types.wasm")
	if err != nil {
		t.Fatal(err)
	}
	m, err := e.Load(context.Background(), Spec{Name: "again", Wasm: b})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if again := run(m, 10); again != first {
		t.Errorf("after a restart it takes %d, before %d", again, first)
	}
}

// Limits are those of modules.
func TestComponentLimits(t *testing.T) {
	call := func(spec Spec, pages string) error {
		_, err := loadComponent(t, "types", spec).Call(context.Background(), Invocation{Export: "test:types/echo#grow", Input: []byte(`{"pages": ` + pages + `}`)})
		return err
	}
	wantCode(t, call(Spec{Fuel: 10_000}, "40"), fault.LimitExceeded, "fuel")
	wantCode(t, call(Spec{Memory: 4 << 20}, "100"), fault.LimitExceeded, "memory")
	// Fuel that ends while the host writes an argument, not while the guest runs.
	long := loadComponent(t, "types", Spec{Fuel: 10_000})
	_, err := long.Call(context.Background(), Invocation{Export: "test:types/echo#strings", Input: []byte(`{"v": "` + strings.Repeat("x", 500_000) + `"}`)})
	wantCode(t, err, fault.LimitExceeded, "fuel")
	m := loadComponent(t, "types", Spec{Output: 100})
	_, err = m.Call(context.Background(), Invocation{Export: "test:types/echo#strings", Input: []byte(`{"v": "` + strings.Repeat("x", 200) + `"}`)})
	wantCode(t, err, fault.LimitExceeded, "output")
}

// A component with several functions brings each as a tool.
func TestComponentSurface(t *testing.T) {
	m := loadComponent(t, "native", Spec{})
	if !m.Has("discover") || !m.Has("handle") {
		t.Fatal("it brings no tools")
	}
	reply, err := m.Call(context.Background(), Invocation{Export: "discover"})
	if err != nil {
		t.Fatal(err)
	}
	var s abi.Surface
	if err := json.Unmarshal(reply.Output, &s); err != nil {
		t.Fatal(err)
	}
	var random abi.SurfaceTool
	for _, tool := range s.Tools {
		if tool.Name == "random" {
			random = tool
		}
	}
	if len(s.Tools) != 10 || string(random.Schema) != `{"properties":{"n":{"type":"number"}},"required":["n"],"type":"object"}` {
		t.Fatalf("%s", reply.Output)
	}
	in, err := json.Marshal(abi.Call{Payload: json.RawMessage(`{"n": 3}`), Binding: random.Binding})
	if err != nil {
		t.Fatal(err)
	}
	if data, _ := ask(t, m, "handle", string(in)); strings.Count(data, ",") != 2 {
		t.Errorf("random = %s", data)
	}
	in, _ = json.Marshal(abi.Call{Payload: json.RawMessage(`{}`), Binding: json.RawMessage(`"_start"`)})
	if _, err := m.Call(context.Background(), Invocation{Export: "handle", Input: in}); err == nil {
		t.Error("a binding that it does not have was called")
	}
}

// A component of WASI 0.2 reaches the folders that it is given, as they are
// given, and nothing else.
func TestComponentFiles(t *testing.T) {
	dir, fixed, outside := t.TempDir(), t.TempDir(), t.TempDir()
	for _, name := range []string{filepath.Join(fixed, "note"), filepath.Join(outside, "secret")} {
		if err := os.WriteFile(name, []byte("text of "+filepath.Base(name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	m := loadComponent(t, "native", Spec{Files: []Mount{{Guest: "/data", Host: dir}, {Guest: "/fixed", Host: fixed, ReadOnly: true}}})
	for _, tt := range []struct{ export, in, data, failed string }{
		{"write", `{"path": "/data/a", "text": "` + strings.Repeat("0123456789", 1000) + `"}`, `{"ok":10000}`, ""},
		{"read", `{"path": "/data/a"}`, `{"ok":"` + strings.Repeat("0123456789", 1000) + `"}`, ""},
		{"list-dir", `{"path": "/data"}`, `{"ok":[{"name":"a","directory":false,"size":10000},{"name":"out","directory":false,"size":` + itoa(uint32(len(outside))) + `}]}`, ""},
		{"read", `{"path": "/fixed/note"}`, `{"ok":"text of note"}`, ""},
		{"write", `{"path": "/fixed/note", "text": "x"}`, "", "read-only"},
		{"write", `{"path": "/fixed/new", "text": "x"}`, "", "read-only"},
		{"remove", `{"path": "/fixed/note"}`, "", "read-only"},
		{"link", `{"path": "/fixed/l", "target": "note"}`, "", "read-only"},
		{"read", `{"path": "/data/out/secret"}`, "", "not-permitted"},
		{"read", `{"path": "/data/../fixed/note"}`, "", "not-permitted"},
		{"read", `{"path": "/data/none"}`, "", "no-entry"},
		{"read", `{"path": "/elsewhere/none"}`, "", "no folder"},
		{"link", `{"path": "/data/l", "target": "/etc/passwd"}`, "", "not-permitted"},
		{"link", `{"path": "/data/l", "target": "../x"}`, "", "not-permitted"},
		{"link", `{"path": "/data/l", "target": "a"}`, `{"ok":null}`, ""},
		{"remove", `{"path": "/data/l"}`, `{"ok":null}`, ""},
	} {
		data, failed := ask(t, m, tt.export, tt.in)
		if tt.failed == "" && (data != tt.data || failed != "") || !strings.Contains(failed, tt.failed) {
			t.Errorf("%s(%.60s) = %.200s, %q, want %.200s, %q", tt.export, tt.in, data, failed, tt.data, tt.failed)
		}
	}
	if p, err := os.ReadFile(filepath.Join(fixed, "note")); err != nil || string(p) != "text of note" {
		t.Errorf("the folder that is only read: %q, %v", p, err)
	}
	if m := loadComponent(t, "native", Spec{}); true {
		if _, failed := ask(t, m, "read", `{"path": "/data/a"}`); !strings.Contains(failed, "no folder") {
			t.Errorf("without folders: %q", failed)
		}
	}
}

// Handles are the instance's: a dropped one is nobody's, and there are only so
// many. None is left for the next call.
func TestComponentHandles(t *testing.T) {
	m := loadComponent(t, "native", Spec{})
	call := func(export, in string) error {
		_, err := m.Call(context.Background(), Invocation{Export: export, Input: []byte(in)})
		return err
	}
	wantCode(t, call("stale", `{}`), fault.GuestTrap, "handle 1 is not of that kind")
	wantCode(t, call("leak", `{"n": 20000}`), fault.GuestTrap, "handles")
	for range 3 {
		if got, _ := ask(t, m, "leak", `{"n": 10}`); got != "11" {
			t.Fatalf("the handle after 10 that leak is %s", got)
		}
	}
	if got, _ := ask(t, m, "sleep", `{"ms": 20}`); got != "true" {
		t.Errorf("sleep = %s", got)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Call(ctx, Invocation{Export: "sleep", Input: []byte(`{"ms": 3600000}`)}); err == nil {
		t.Error("an aborted call slept")
	}
}

// What the canonical ABI forbids is a trap, whatever the guest answers, and a
// guest that never comes back meets its limits.
func TestComponentHostile(t *testing.T) {
	m := loadComponent(t, "hostile", Spec{Fuel: 50_000_000})
	for _, tt := range []struct {
		what, export, in string
		code             fault.Code
		says             string
	}{
		{"room outside of its memory", "take", `{"s": "1"}`, fault.GuestTrap, "realloc answered 1 bytes at 4294967280, outside"},
		{"room that begins inside and ends outside", "take", `{"s": "123456"}`, fault.GuestTrap, "outside of its memory"},
		{"room that is not aligned", "take-wide", `{"s": "1"}`, fault.GuestTrap, "not aligned to 2"},
		{"room that is not aligned", "take-latin", `{"s": "12"}`, fault.GuestTrap, "not aligned to 2"},
		{"a trap while it makes room", "take", `{"s": "123"}`, fault.GuestTrap, "unreachable"},
		{"a call while it makes room", "take", `{"s": "1234"}`, fault.GuestTrap, "while it makes room"},
		{"a call that makes room while it makes room", "take", `{"s": "12345678"}`, fault.GuestTrap, "while it makes room"},
		{"making room without an end", "take", `{"s": "12345"}`, fault.LimitExceeded, "fuel"},
		{"making room ever deeper", "take", `{"s": "1234567"}`, fault.GuestTrap, "stack overflow"},
		{"the same while it is called", "draw", `{"n": 1}`, fault.GuestTrap, "outside of its memory"},
		{"a trap while it is called", "draw", `{"n": 3}`, fault.GuestTrap, "unreachable"},
		{"a call while it is called", "draw", `{"n": 4}`, fault.GuestTrap, "while it makes room"},
		{"no end while it is called", "draw", `{"n": 5}`, fault.LimitExceeded, "fuel"},
		{"ever deeper while it is called", "draw", `{"n": 7}`, fault.GuestTrap, "stack overflow"},
		{"more random bytes than it can hold", "draw", `{"n": 3000000}`, fault.GuestTrap, "outside of its memory"},
		{"a result outside of its memory", "give", `{"n": 1}`, fault.GuestTrap, "outside of its memory"},
		{"a result that is not aligned", "give", `{"n": 2}`, fault.GuestTrap, "not aligned to 4"},
		{"a string outside of its memory", "give", `{"n": 3}`, fault.GuestTrap, "outside of its memory"},
		{"a string that is longer than its memory", "give", `{"n": 4}`, fault.GuestTrap, "outside of its memory"},
		{"a wide string that is longer than its memory", "give-wide", `{"n": 4}`, fault.GuestTrap, "outside of its memory"},
		{"a string of either width that is longer than its memory", "give-latin", `{"n": 4}`, fault.GuestTrap, "outside of its memory"},
		{"a string that is not UTF-8", "give", `{"n": 5}`, fault.GuestTrap, "not UTF-8"},
		{"a result that begins inside and ends outside", "give", `{"n": 6}`, fault.GuestTrap, "outside of its memory"},
		{"a call while it frees its result", "leave", `{"n": 0}`, fault.GuestTrap, "while it makes room"},
		{"a case that there is not", "pick", `{"n": 7}`, fault.GuestTrap, "case 7 of 2"},
		{"a surrogate as a character", "char", `{"n": 55296}`, fault.GuestTrap, "not a character"},
		{"a character over the last", "char", `{"n": 1114112}`, fault.GuestTrap, "not a character"},
		{"an enum's case that there is not", "flag", `{"n": 2}`, fault.GuestTrap, "case 2 of 2"},
		{"lists that are far longer than its memory", "bomb", `{"n": 8000}`, fault.LimitExceeded, "exchanges more than"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			_, err := m.Call(context.Background(), Invocation{Export: tt.export, Input: []byte(tt.in)})
			wantCode(t, err, tt.code, tt.says)
		})
	}
	for _, tt := range []struct{ export, in, want string }{
		{"take", `{"s": "ümlaut123"}`, "10"},
		{"take-wide", `{"s": "ümlaut123"}`, "9"},
		{"take-latin", `{"s": "ümlaut123"}`, "9"},
		{"take-latin", `{"s": "ümlaut12€"}`, "2147483657"}, // the highest bit: UTF-16
		{"give", `{"n": 0}`, `"ok"`},
		{"give-wide", `{"n": 0}`, `"\u6b6f` + "\\u0000\""},
		{"give-latin", `{"n": 0}`, `"ok"`},
		{"pick", `{"n": 0}`, "null"},
		{"draw", `{"n": 0}`, "0"},
		{"draw", `{"n": 100}`, "100"},
	} {
		got, _ := ask(t, m, tt.export, tt.in)
		var a, b any
		if json.Unmarshal([]byte(got), &a); json.Unmarshal([]byte(tt.want), &b) != nil || a != b {
			t.Errorf("%s(%s) = %s, want %s", tt.export, tt.in, got, tt.want)
		}
	}
}

// wasi:cli/run is a command: of WASI 0.2 itself, and of preview 1 beside an
// adapter, which is left out.
func TestComponentCommands(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		code int
		out  string
	}{
		{"command", []string{"command", "hello"}, 0, "hello"},
		{"command", []string{"command"}, 1, ""},
		{"adapted", []string{"adapted"}, 3, "hello\n"},
	} {
		m := loadComponent(t, tt.name, Spec{})
		if !m.IsCommand() || !m.Has("_start") {
			t.Fatalf("%s is no command", tt.name)
		}
		var out bytes.Buffer
		code, stats, err := m.Run(context.Background(), Command{Args: tt.args, Stdout: &out})
		if err != nil || code != tt.code || out.String() != tt.out || stats.Fuel == 0 {
			t.Errorf("%v: code %d, output %q, %v, %+v", tt.args, code, out.String(), err, stats)
		}
		if _, err := m.Call(context.Background(), Invocation{Export: "run"}); err == nil {
			t.Errorf("%s was called as a function", tt.name)
		}
	}
	m := loadComponent(t, "types", Spec{})
	if _, _, err := m.Run(context.Background(), Command{}); err == nil || m.IsCommand() {
		t.Errorf("a component without wasi:cli/run was run: %v", err)
	}
}

// A function of the interface between hosts and guests takes and answers bytes.
func TestComponentPolicy(t *testing.T) {
	m := loadComponent(t, "policy", Spec{})
	if !m.Has("restrict") || m.Has("handle") || m.Has("discover") {
		t.Fatal("it is no policy")
	}
	for in, want := range map[string]string{`{}`: `{"effect":"allow","rule":"even"}`, `{ }`: `{"effect":"deny","rule":"odd","reason":"this call is odd"}`} {
		reply, err := m.Call(context.Background(), Invocation{Export: "restrict", Input: []byte(in)})
		if err != nil || string(reply.Output) != want {
			t.Errorf("restrict(%s) = %s, %v", in, reply.Output, err)
		}
	}
}
