package compat

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/hosttest"
)

// guestComponents is where components are that the tests of host/guest have.
const guestComponents = "../guest/testdata/components/"

// A component's requests are bound by what binds a module's: hosts, methods and
// private addresses, secrets that the host adds, and answers in which they are
// masked. What is not granted is an error of its own type.
func TestComponentRequests(t *testing.T) {
	const token = "s3cret-t0ken-of-the-test"
	site := hosttest.NewSite(t, "127.0.0.1:0", nil, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Got", r.Header.Get("X-Token"))
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://example.com/", http.StatusFound)
			return
		}
		w.WriteHeader(http.StatusTeapot)
		io.WriteString(w, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("X-Own")+" "+r.Header.Get("X-Token")+" "+string(b))
	})
	here := "127.0.0.1:" + site.Port()
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	module := map[string]string{"handler.wasm": guestComponents + "http.wasm"}
	entry := M{"export": "fetch"}
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "granted", M{"entry": entry, "capabilities": M{"http": M{"hosts": []string{here}, "methods": []string{"GET", "POST"}}},
		"secrets": M{"token": M{"from": "file:" + secret, "header": "X-Token", "host": here}}}, module)
	d.Tool(t, "reading", M{"entry": entry, "capabilities": M{"http": M{"hosts": []string{here}}}}, module)
	d.Tool(t, "public", M{"entry": entry, "capabilities": M{"http": M{"hosts": []string{"*"}, "methods": []string{"*"}}}}, module)
	d.Tool(t, "none", M{"entry": entry}, module)
	payload := func(method, authority, path string, body any) M {
		return M{"method": method, "scheme": "http", "authority": authority, "path": path, "headers": [][]string{{"x-own", "mine"}, {"X-Token", "forged"}}, "body": body}
	}
	res := do(t, d, "granted", payload("POST", here, "/a?b", "text"))
	var data struct {
		OK struct {
			Status  int
			Headers [][2]string
			Body    string
		}
	}
	if res.Err != nil || json.Unmarshal(res.Data, &data) != nil || data.OK.Status != http.StatusTeapot || !strings.HasPrefix(data.OK.Body, "POST /a?b mine ") || !strings.HasSuffix(data.OK.Body, " text") {
		t.Errorf("granted: %s %v", res.Data, res.Err)
	}
	if strings.Contains(string(res.Data), token) || strings.Contains(data.OK.Body, "forged") {
		t.Errorf("the guest sees the secret, or sends its own: %s", res.Data)
	}
	asked := len(site.Asked())
	const denied = "ErrorCode::HttpRequestDenied"
	for name, tt := range map[string]struct {
		tool    string
		payload M
	}{
		"another host":             {"granted", payload("GET", "localhost:"+site.Port(), "/", nil)},
		"another port":             {"granted", payload("GET", "127.0.0.1:1", "/", nil)},
		"another method":           {"granted", payload("DELETE", here, "/", nil)},
		"no method but to read":    {"reading", payload("POST", here, "/", "text")},
		"an address of this host":  {"public", payload("GET", here, "/", nil)},
		"a name of this host":      {"public", payload("GET", "localhost:"+site.Port(), "/", nil)},
		"a tool without a network": {"none", payload("GET", here, "/", nil)},
	} {
		if res := do(t, d, tt.tool, tt.payload); res.Err == nil || res.Err.Code != fault.ToolFailed || res.Err.Message != denied {
			t.Errorf("%s: %s %v", name, res.Data, res.Err)
		}
	}
	if n := len(site.Asked()); n != asked {
		t.Errorf("the server was asked %d times for what is denied", n-asked)
	}
	if res := do(t, d, "granted", payload("GET", here, "/away", nil)); res.Err == nil || res.Err.Message != denied {
		t.Errorf("a redirect to what is not granted: %s %v", res.Data, res.Err)
	}
	site.Close()
	if res := do(t, d, "granted", payload("GET", here, "/", nil)); res.Err == nil || res.Err.Message != "ErrorCode::ConnectionRefused" {
		t.Errorf("nobody there: %s %v", res.Data, res.Err)
	}
}

// foreign is a component that others made, and calls of it.
type foreign struct {
	file, origin string
	made         string // how, for the table
	calls        []typed
}

// typed is a call of a function by its WIT types.
type typed struct {
	Interface string `json:"interface,omitempty"`
	Export    string `json:"export"`
	In        M      `json:"in"`
}

var foreigns = []foreign{
	{"filesystem.wasm", "github.com/microsoft/wassette, crates/component2json/testdata", "Rust, `wasm32-wasip2`", []typed{
		{Export: "list-directory", In: M{"path": "/data/d"}},
		{Export: "list-directory", In: M{"path": "/none"}},
		{Export: "read-file", In: M{"path": "/data/a.txt"}},
		{Export: "read-file", In: M{"path": "/data/none"}},
		{Export: "read-file", In: M{"path": "/etc/passwd"}},
		{Export: "read-file", In: M{"path": "/data/../../etc/passwd"}},
		{Export: "search-file", In: M{"path": "/data", "pattern": "two"}},
		{Export: "search-file", In: M{"path": "/data/a.txt", "pattern": "two"}},
		{Export: "get-file-info", In: M{"path": "/data/none"}},
	}},
	{"time-js.wasm", "pkg:npm/@bytecodealliance/componentize-js@0.23.0", "JavaScript", []typed{
		{"local:time-server/time", "get-current-time", M{}},
		{"local:time-server/time", "format", M{"ms": 86400000, "names": []string{"ü", "b"}}},
		{"local:time-server/time", "format", M{"ms": 0, "names": []string{}}},
		{"local:time-server/time", "fail", M{"text": "no"}},
	}},
	{"../../host/guest/testdata/components/native.wasm", "host/guest/testdata/components", "Rust with wit-bindgen", []typed{
		{Export: "read", In: M{"path": "/data/a.txt"}},
		{Export: "read", In: M{"path": "/etc/passwd"}},
		{Export: "list-dir", In: M{"path": "/data/d"}},
		{Export: "sleep", In: M{"ms": 1}},
	}},
}

const componentAnswers = "testdata/components.json"

// askWasmtime calls the functions of a component on wasmtime.
func askWasmtime(t *testing.T, path, data string, calls []typed) []any {
	t.Helper()
	b, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	cases := filepath.Join(t.TempDir(), "cases.json")
	if err := os.WriteFile(cases, b, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(corpus(t), "wasmtime/bin/python"), guestComponents+"answers.py", path, cases, data)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("ask wasmtime: %v; WASMTIME=1 scripts/corpus .cache/corpus fetches it", err)
	}
	var answers []any
	if err := json.Unmarshal(out, &answers); err != nil {
		t.Fatal(err)
	}
	return answers
}

// TestForeignComponents calls components that others made as tools: the same
// results as wasmtime's, of which the error of a result fails the call.
func TestForeignComponents(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling SpiderMonkey takes a minute")
	}
	recorded := map[string][]any{}
	if b, err := os.ReadFile(componentAnswers); err == nil {
		if err := json.Unmarshal(b, &recorded); err != nil {
			t.Fatal(err)
		}
	}
	data := t.TempDir()
	fill(t, data, map[string]string{"a.txt": "one\ntwo\nthree two\n"})
	if err := os.Mkdir(filepath.Join(data, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "d/b.txt"), []byte("two\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, config.Config{})
	var rows []row
	for _, f := range foreigns {
		name := strings.TrimSuffix(filepath.Base(f.file), ".wasm")
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(corpus(t), f.file)
			if _, err := os.Stat(path); err != nil {
				t.Skipf("%s is not there; the head of scripts/corpus says how it comes", f.file)
			}
			if *update {
				recorded[name] = askWasmtime(t, path, data, f.calls)
			}
			if len(recorded[name]) != len(f.calls) {
				t.Fatalf("%d answers of wasmtime are recorded for %d calls; go test ./host/compat -update", len(recorded[name]), len(f.calls))
			}
			for i, c := range f.calls {
				export := c.Export
				if c.Interface != "" {
					export = c.Interface + "#" + export
				}
				tool := name + "-" + c.Export
				d.Tool(t, tool, M{"handler": "x.wasm", "entry": M{"export": export},
					"limits": M{"memory": "256MiB"}, "capabilities": M{"files": M{"/data": M{"path": data}}}}, map[string]string{"x.wasm": path})
				res := do(t, d, tool, c.In)
				want := recorded[name][i]
				object, _ := want.(map[string]any)
				_, fails := object["err"]
				var got any
				if err := json.Unmarshal(res.Data, &got); err != nil || !reflect.DeepEqual(got, want) || fails != (res.Err != nil) {
					t.Errorf("%s(%v) is %s %v; on wasmtime %v", export, c.In, res.Data, res.Err, want)
				}
			}
			rows = append(rows, row{filepath.Base(f.file), f.origin, fmt.Sprintf("%s; runs: %d of %d calls as on wasmtime", f.made, len(f.calls), len(f.calls))})
		})
	}
	if *update && !t.Failed() {
		b, err := json.MarshalIndent(recorded, "", "\t")
		if err == nil {
			err = os.WriteFile(componentAnswers, append(b, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	checkTable(t, "components", rows, len(rows) == len(foreigns))
}

// Its functions are the tools that wassette makes of them, with the schemas that its
// own tests want.
func TestForeignSchemas(t *testing.T) {
	code, err := os.ReadFile(filepath.Join(corpus(t), "filesystem.wasm"))
	if err != nil {
		t.Skipf("wassette's filesystem is not there; the head of scripts/corpus says how it comes: %v", err)
	}
	info, err := guest.Inspect("filesystem.wasm", code)
	if err != nil {
		t.Fatal(err)
	}
	text, list := `{"type":"string"}`, `{"items":{"type":"string"},"type":"array"}`
	result := func(ok string) string {
		return `{"oneOf":[{"properties":{"ok":` + ok + `},"required":["ok"],"type":"object"},{"properties":{"err":` + text + `},"required":["err"],"type":"object"}]}`
	}
	path := `{"properties":{"path":` + text + `},"required":["path"],"type":"object"}`
	want := [][3]string{
		{"list-directory", path, result(list)},
		{"read-file", path, result(text)},
		{"search-file", `{"properties":{"path":` + text + `,"pattern":` + text + `},"required":["path","pattern"],"type":"object"}`, result(text)},
		{"get-file-info", path, result(text)},
	}
	var got [][3]string
	for _, f := range info.Component.Functions {
		got = append(got, [3]string{f.Tool, sorted(t, f.Input), sorted(t, f.Output)})
	}
	if !slices.Equal(got, want) {
		t.Errorf("its tools are\n%v, want\n%v", got, want)
	}
}

// sorted writes JSON with the members of objects in order.
func sorted(t *testing.T, b []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A component in JavaScript that asks a server over fetch gets what is granted; what
// is not is the error of its own type.
func TestWeather(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling SpiderMonkey takes a minute")
	}
	path := filepath.Join(corpus(t), "weather-js.wasm")
	if _, err := os.Stat(path); err != nil {
		t.Skip("weather-js.wasm is not there; the head of scripts/corpus says how it comes")
	}
	site := hosttest.NewSite(t, "127.0.0.1:0", nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/weather" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"main": {"temp": -3.5}, "weather": [{"description": "snow in %s"}, {"description": %q}]}`, r.URL.Query().Get("city"), r.Header.Get("Accept"))
	})
	here := "127.0.0.1:" + site.Port()
	d := hosttest.Start(t, config.Config{})
	limits := M{"memory": "256MiB"}
	d.Tool(t, "weather", M{"handler": "x.wasm", "limits": limits, "capabilities": M{"http": M{"hosts": []string{here}}}}, map[string]string{"x.wasm": path})
	d.Tool(t, "denied", M{"handler": "x.wasm", "limits": limits}, map[string]string{"x.wasm": path})
	const report = `{"ok":{"city":"Reykjavík","degrees":-3.5,"sky":["snow in Reykjavík","application/json"]}}`
	for _, tt := range []struct{ tool, path, want, fails string }{
		{"weather", "/weather", report, ""},
		{"weather", "/none", `{"err":"status 404"}`, "status 404"},
		{"denied", "/weather", `{"err":"no answer"}`, "no answer"},
	} {
		res := do(t, d, tt.tool, M{"url": "http://" + here + tt.path})
		failed := ""
		if res.Err != nil {
			failed = res.Err.Message
		}
		if string(res.Data) != tt.want || failed != tt.fails {
			t.Errorf("%s %s: %s %v", tt.tool, tt.path, res.Data, res.Err)
		}
	}
	if n := len(site.Asked()); n != 2 {
		t.Errorf("the server was asked %d times", n)
	}
}
