package examples_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/toolchain"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

// example is one call of greet and its answer.
type example struct {
	Name    string          `json:"name"`
	Args    []string        `json:"args"`
	Payload json.RawMessage `json:"payload"`
	Stdout  string          `json:"stdout"`
	Data    json.RawMessage `json:"data"`
	Code    fault.Code      `json:"code"`
	Says    string          `json:"says"`
}

// TestExamples builds the example of each language as its README says, and
// makes the same calls of each through a daemon.
func TestExamples(t *testing.T) {
	b, err := os.ReadFile("cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []example
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 10 {
		t.Fatalf("%d cases", len(cases))
	}
	for _, l := range toolchain.Languages() {
		lang := string(l)
		t.Run(lang, func(t *testing.T) {
			d := serve(t, l, lang, "greet")
			for _, c := range cases {
				t.Run(c.Name, func(t *testing.T) { c.check(t, d.Socket) })
			}
		})
	}
}

// need skips a test when a language's compiler is not here, and has scripts find
// it where it is.
func need(t *testing.T, l toolchain.Language) {
	t.Helper()
	compiler, err := toolchain.Find(t.Context(), l, ".")
	if err != nil {
		t.Skip(err)
	}
	t.Setenv("PATH", filepath.Dir(compiler)+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// serve builds an example as its README says and serves it as name. Texts of
// its tool.json are replaced.
func serve(t *testing.T, l toolchain.Language, folder, name string, replace ...string) *hosttest.Daemon {
	t.Helper()
	need(t, l)
	tools := filepath.Join(t.TempDir(), "tools.d")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	install(t, folder, filepath.Join(tools, name))
	file := filepath.Join(tools, name, "tool.json")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.NewReplacer(replace...).Replace(string(b))), 0o644); err != nil {
		t.Fatal(err)
	}
	return hosttest.Start(t, config.Config{Tools: tools})
}

func TestStream(t *testing.T) {
	d := serve(t, toolchain.C, "stream", "countdown")
	var out bytes.Buffer
	var progress []string
	res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "countdown", Args: []string{"2"}}, wire.Local{
		Stdout: &out, Stderr: &out, Progress: func(p json.RawMessage) { progress = append(progress, string(p)+" after "+out.String()) },
	})
	if err != nil || res.Err != nil {
		t.Fatal(err, res)
	}
	if out.String() != "2\n1\nlift-off\n" {
		t.Errorf("said %q", out.String())
	}
	// Each as it came, not all at the end.
	want := []string{`{"done":0,"of":2} after `, `{"done":1,"of":2} after 2` + "\n"}
	if !slices.Equal(progress, want) {
		t.Errorf("progress %q, must be %q", progress, want)
	}
	res, err = client.Call(t.Context(), d.Socket, &wire.Call{Tool: "countdown", Args: []string{"x"}})
	if err != nil || res.Err == nil || !strings.Contains(res.Err.Message, "between 0 and 1000") {
		t.Errorf("of what is no number: %v, %v", res.Err, err)
	}
}

// answers gives an answer only after the question was heard.
type answers struct {
	heard chan struct{}
	text  []string
}

func (a *answers) Write(p []byte) (int, error) {
	for range bytes.Count(p, []byte("?")) {
		a.heard <- struct{}{}
	}
	return len(p), nil
}

func (a *answers) Read(p []byte) (int, error) {
	if len(a.text) == 0 {
		return 0, io.EOF
	}
	<-a.heard
	n := copy(p, a.text[0])
	a.text = a.text[1:]
	return n, nil
}

func TestInterview(t *testing.T) {
	d := serve(t, toolchain.AssemblyScript, "interview", "interview")
	a := &answers{heard: make(chan struct{}, 2), text: []string{"Ada\n", "to count\n"}}
	var out bytes.Buffer
	res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "interview"}, wire.Local{Stdin: a, Stdout: io.MultiWriter(&out, a), Stderr: io.Discard})
	if err != nil || res.Err != nil {
		t.Fatal(err, res)
	}
	if want := "What is your name?\nWhat is your quest?\nGo on, Ada, and to count.\n"; out.String() != want {
		t.Errorf("said %q, must be %q", out.String(), want)
	}
	res, err = client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "interview"}, wire.Local{Stdin: strings.NewReader("Ada"), Stdout: io.Discard, Stderr: io.Discard})
	if err != nil || res.Err == nil || !strings.Contains(res.Err.Message, "What is your quest?") {
		t.Errorf("of who says too little: %v, %v", res, err)
	}
}

func TestHTTPWithASecret(t *testing.T) {
	const secret = "Bearer s3cr3t-0123456789"
	asked := make(chan string, 8)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path + " " + r.Header.Get("Authorization")
		if r.URL.Path != "/now/Oslo" {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, `{"sky":"clear","you":"`+r.Header.Get("Authorization")+`"}`)
	}))
	defer service.Close()
	host := strings.TrimPrefix(service.URL, "http://")
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	d := serve(t, toolchain.Rust, "http", "weather", "https://api.example.com", service.URL, "api.example.com", host, "env:WEATHER_TOKEN", "file:"+file)
	res, err := client.Call(t.Context(), d.Socket, &wire.Call{Tool: "weather", Args: []string{"Oslo"}})
	if err != nil || res.Err != nil {
		t.Fatal(err, res)
	}
	if got := <-asked; got != "/now/Oslo "+secret {
		t.Errorf("the service was asked %q", got)
	}
	if string(res.Stdout) != "Oslo: clear\n" {
		t.Errorf("said %q", res.Stdout)
	}
	if strings.Contains(string(res.Data), "s3cr3t") {
		t.Errorf("the secret came back: %s", res.Data)
	}
	for city, want := range map[string]string{"Atlantis": "does not know Atlantis", "../x": "letters and dashes"} {
		res, err := client.Call(t.Context(), d.Socket, &wire.Call{Tool: "weather", Args: []string{city}})
		if err != nil || res.Err == nil || !strings.Contains(res.Err.Message, want) {
			t.Errorf("%s: %v, %v; must say %q", city, res, err, want)
		}
	}
}

func TestWASI(t *testing.T) {
	d := serve(t, toolchain.Go, "wasi", "count")
	for args, want := range map[string]string{"": "2\n", "words": "3\n", "letters": ""} {
		var out, errs bytes.Buffer
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "count", Args: strings.Fields(args)}, wire.Local{Stdin: strings.NewReader("a b\nc\n"), Stdout: &out, Stderr: &errs})
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != want || (want == "") != (res.ExitCode == 2 && strings.Contains(errs.String(), "neither")) {
			t.Errorf("count %s: %q, %q, exit %d, %v", args, out.String(), errs.String(), res.ExitCode, res.Err)
		}
	}
}

// TestStockExtism: a plugin that was made with Extism's own PDK is a tool, and
// its variables last from call to call.
func TestStockExtism(t *testing.T) {
	cmd := exec.Command("go", "mod", "download")
	cmd.Dir = "extism"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("Extism's PDK cannot be fetched: %s", out)
	}
	d := serve(t, toolchain.Go, "extism", "vowels")
	for _, want := range []string{`{"count":3,"vowels":"aeiouAEIOU","total":3}`, `{"count":3,"vowels":"aeiouAEIOU","total":6}`} {
		var out bytes.Buffer
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "vowels"}, wire.Local{Stdin: strings.NewReader("Hello, World!"), Stdout: &out, Stderr: io.Discard})
		if err != nil || res.Err != nil {
			t.Fatal(err, res)
		}
		if out.String() != want {
			t.Errorf("answered %s, must be %s", out.String(), want)
		}
	}
}

// TestClientInTheManual: the client of docs/clients.md lists the tools and calls one.
func TestClientInTheManual(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	manual, err := os.ReadFile("../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(manual), "```python\n")
	script, _, ok := strings.Cut(rest, "```")
	file := filepath.Join(t.TempDir(), "call.py")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil || !ok {
		t.Fatal(err, ok)
	}
	d := serve(t, toolchain.C, "c", "greet")
	run := func(payload string) string {
		cmd := exec.CommandContext(t.Context(), python, file, "greet", payload)
		cmd.Env = append(os.Environ(), "TOOL_SOCKET="+d.Socket)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if got := run(`{"name": "Ada"}`); got != "greet\n{'greeting': 'Hello, Ada!'}\n" {
		t.Errorf("printed %q", got)
	}
	if got := run(`{"args": ["-x"]}`); !strings.Contains(got, "RuntimeError: DENIED: denied by rule greet.flag") {
		t.Errorf("printed %q", got)
	}
}

// TestEmbed: another program serves a folder of tools and calls one.
func TestEmbed(t *testing.T) {
	tools := filepath.Join(t.TempDir(), "tools.d")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	install(t, "go", filepath.Join(tools, "greet"))
	dir := t.TempDir()
	install(t, "embed", dir)
	out, err := exec.Command(filepath.Join(dir, "embed"), tools, "greet", "Ada").Output()
	if err != nil || string(out) != "Hello, Ada!\n" {
		t.Errorf("%q, %v", out, err)
	}
	out, err = exec.Command(filepath.Join(dir, "embed"), tools, "greet", "-x").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "greet.flag") {
		t.Errorf("what is denied: %q, %v", out, err)
	}
}

// install runs the shell block of the language's README and takes away what it
// built.
func install(t testing.TB, lang, to string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(lang, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "```sh\n")
	script, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatalf("the README of %s has no shell block", lang)
	}
	build := filepath.Join(lang, "build")
	if _, err := os.Stat(build); os.IsNotExist(err) {
		t.Cleanup(func() { os.RemoveAll(build) })
	}
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = lang
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build as the README says: %v\n%s", err, out)
	}
	if err := os.CopyFS(to, os.DirFS(build)); err != nil {
		t.Fatal(err)
	}
}

func (c *example) check(t *testing.T, socket string) {
	call := &wire.Call{Form: wire.Plain, Tool: "greet", Args: c.Args}
	if c.Payload != nil {
		call = &wire.Call{Form: wire.Envelope, Tool: "greet", ExecutionID: "5bd3ea0f-1f50-4d5c-9a4f-6f1f6a2f0c11", Payload: c.Payload}
	}
	res, err := client.Call(t.Context(), socket, call)
	if err != nil {
		t.Fatal(err)
	}
	if c.Code != "" {
		if res.Err == nil || res.Err.Code != c.Code || !strings.Contains(res.Err.Message, c.Says) {
			t.Errorf("answered %v, must be %s with %q", res.Err, c.Code, c.Says)
		}
		return
	}
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	if c.Stdout != "" && string(res.Stdout) != c.Stdout {
		t.Errorf("stdout %q, must be %q", res.Stdout, c.Stdout)
	}
	if c.Data != nil {
		var got, want bytes.Buffer
		if json.Compact(&got, res.Data) != nil || json.Compact(&want, c.Data) != nil || got.String() != want.String() {
			t.Errorf("data %s, must be %s", res.Data, c.Data)
		}
	}
}
