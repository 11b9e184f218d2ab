package host_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == callAsTool {
		if err := runCallAsTool(os.Args[2], os.Args[3], os.Args[4]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(hosttest.Main(m))
}

const (
	policyPkg  = "host/testdata/guests/policy"
	handlerPkg = "host/testdata/guests/handler"
)

type M = map[string]any

// answer is either form's.
type answer struct {
	ExitCode   int             `json:"exit_code"`
	Stdout     string          `json:"stdout"`
	Stderr     string          `json:"stderr"`
	Error      json.RawMessage `json:"error"`
	Status     string          `json:"status"`
	Code       string          `json:"code"`
	Retriable  bool            `json:"retriable"`
	Truncated  bool            `json:"truncated"`
	ID         string          `json:"execution_id"`
	EnvelopeID string          `json:"executionId"`
	Data       json.RawMessage `json:"data"`
	raw        []byte
}

func (a *answer) message() string {
	var s string
	json.Unmarshal(a.Error, &s)
	return s
}

// ask sends one request on a connection of its own and reads one answer.
func ask(t testing.TB, socket string, req any) *answer {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := wire.WriteFrame(c, b); err != nil {
		t.Fatal(err)
	}
	raw, err := wire.ReadFrame(c)
	if err != nil {
		t.Fatal(err)
	}
	a := &answer{raw: raw}
	if err := json.Unmarshal(raw, a); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return a
}

// granted is the least definition of the test handler: it imports all that
// there is, so all of it must be granted.
var granted = M{"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{"nowhere.example"}}}}

// testDaemon has a binary behind the test policy, a module behind it, and a
// module without a policy.
func testDaemon(t *testing.T) *hosttest.Daemon {
	d := hosttest.Start(t, config.Config{LogLevel: "debug"})
	policy, handler := hosttest.Guest(t, policyPkg), hosttest.Guest(t, handlerPkg)
	d.Tool(t, "printf", M{"binary": "/usr/bin/printf"}, map[string]string{"restricted.wasm": policy})
	d.Tool(t, "cat", M{"binary": "/bin/cat"}, map[string]string{"restricted.wasm": policy})
	d.Tool(t, "sleep", M{"binary": "/bin/sleep"}, map[string]string{"restricted.wasm": policy})
	d.Tool(t, "guarded", granted, map[string]string{"restricted.wasm": policy, "handler.wasm": handler})
	d.Tool(t, "open", granted, map[string]string{"handler.wasm": handler})
	return d
}

func TestBothForms(t *testing.T) {
	d := testDaemon(t)
	a := ask(t, d.Socket, M{"tool": "printf", "args": []string{"out %s", "put"}, "cwd": d.Root})
	if a.ExitCode != 0 || a.Stdout != "out put" || a.message() != "" || a.Status != "success" || a.ID == "" {
		t.Errorf("plain: %s", a.raw)
	}
	const id = "6fa459ea-ee8a-4ca4-894e-db77e160355e"
	a = ask(t, d.Socket, M{"toolId": "printf", "executionId": id, "payload": M{"args": []string{"out"}, "cwd": d.Root}})
	if a.Status != "success" || a.EnvelopeID != id || !strings.Contains(string(a.Data), `"out"`) {
		t.Errorf("envelope: %s", a.raw)
	}
	// A binary's own exit code is its answer in the plain form and TOOL_FAILED
	// with everything in the envelope form.
	a = ask(t, d.Socket, M{"tool": "cat", "args": []string{"missing-file"}, "cwd": d.Root})
	if a.ExitCode != 1 || !strings.Contains(a.Stderr, "missing-file") || a.message() != "" {
		t.Errorf("plain, exit 1: %s", a.raw)
	}
	a = ask(t, d.Socket, M{"toolId": "cat", "executionId": id, "payload": M{"args": []string{"missing-file"}, "cwd": d.Root}})
	if a.Status != "error" || !strings.Contains(string(a.Error), "TOOL_FAILED") || !strings.Contains(string(a.Data), "missing-file") {
		t.Errorf("envelope, exit 1: %s", a.raw)
	}
}

// What a caller says of a call beside its payload is in the log, as its word.
func TestMetadataIsLogged(t *testing.T) {
	d := testDaemon(t)
	ask(t, d.Socket, M{"toolId": "printf", "executionId": newExecution(), "payload": M{"args": []string{"x"}, "cwd": d.Root}, "metadata": M{
		"callerInfo": M{"name": "indexer\nline", "of": strings.Repeat("y", 5000)}, "traceId": "trace-71", "timestamp": "2026-01-02T15:04:05Z",
	}})
	for line := range strings.Lines(d.Logs()) {
		if strings.Contains(line, `"trace-71"`) {
			if !strings.Contains(line, "indexer") || !strings.Contains(line, "2026-01-02T15:04:05Z") || len(line) > 2500 {
				t.Errorf("%s", line)
			}
			return
		}
	}
	t.Error("the log does not tell")
}

func TestPolicyDecides(t *testing.T) {
	d := testDaemon(t)
	for _, tt := range []struct {
		tool  string
		args  []string
		code  string
		exit  int
		out   string // in stdout
		error string // in error
	}{
		{"printf", []string{"deny"}, "DENIED", 126, "", "test.deny: the test says so; instead: do not ask"},
		{"guarded", []string{"deny"}, "DENIED", 126, "", "test.deny"},
		{"printf", []string{"rewrite"}, "", 0, "rewritten|", ""},
		{"printf", []string{"trap"}, "TOOL_BROKEN", 70, "", "did not decide, so the call is refused"},
		{"printf", []string{"odd-effect"}, "DENIED", 126, "", "perhaps"},
		{"printf", []string{"no-effect"}, "DENIED", 126, "", ""},
		{"printf", []string{"nil"}, "TOOL_BROKEN", 70, "", "no decision"},
		{"cat", []string{"stdin"}, "", 0, "from policy", ""},
		{"sleep", []string{"brief"}, "TIMEOUT", 124, "", ""},
	} {
		a := ask(t, d.Socket, M{"tool": tt.tool, "args": tt.args, "cwd": d.Root, "timeout_ms": 20000})
		if a.Code != tt.code || a.ExitCode != tt.exit || !strings.Contains(a.Stdout, tt.out) || !strings.Contains(a.message(), tt.error) {
			t.Errorf("%s %v: %s", tt.tool, tt.args, a.raw)
		}
	}
	// A policy that never answers is ended at the call's deadline.
	start := time.Now()
	a := ask(t, d.Socket, M{"tool": "printf", "args": []string{"loop"}, "cwd": d.Root, "timeout_ms": 500})
	if (a.Code != "TIMEOUT" && a.Code != "LIMIT_EXCEEDED") || time.Since(start) > 10*time.Second {
		t.Errorf("a looping policy, after %v: %s", time.Since(start), a.raw)
	}
}

// What a policy makes of the arguments is what a module finds in the payload,
// however it takes that.
func TestRewrittenPayload(t *testing.T) {
	d := testDaemon(t)
	modules := map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg), "handler.wasm": hosttest.Guest(t, handlerPkg)}
	d.Tool(t, "by-payload", M{"capabilities": granted["capabilities"], "entry": M{"export": "handle", "input": "payload"}}, modules)
	a := ask(t, d.Socket, M{"tool": "by-payload", "args": []string{"rewrite", "--force"}, "cwd": d.Root})
	if a.ExitCode != 0 || !strings.Contains(a.Stdout, "rewritten") || strings.Contains(string(a.raw), "--force") {
		t.Errorf("the payload as input: %s", a.raw)
	}
	for tool, args := range map[string][]string{"by-payload": {"rewrite", "--force"}, "guarded": {"rewrite", "--force"}} {
		a := ask(t, d.Socket, M{"toolId": tool, "executionId": newExecution(), "payload": M{"args": args, "cwd": d.Root}})
		if a.Status != "success" || !strings.Contains(string(a.Data), "rewritten") || strings.Contains(string(a.Data), "--force") {
			t.Errorf("%s as an envelope: %s", tool, a.raw)
		}
	}
	// The input of a call is in its payload, too.
	a = ask(t, d.Socket, M{"toolId": "guarded", "executionId": newExecution(), "payload": M{"args": []string{"stdin"}, "cwd": d.Root, "stdin": "c2VjcmV0"}})
	if a.Status != "success" || strings.Contains(string(a.Data), "c2VjcmV0") || strings.Count(string(a.Data), "ZnJvbSBwb2xpY3k=") != 2 {
		t.Errorf("input: %s", a.raw)
	}
}

// A module that takes its input at once waits for it no longer than the call
// lasts, and says why it ended.
func TestInputThatDoesNotEnd(t *testing.T) {
	d := testDaemon(t)
	d.Tool(t, "at-once", M{"capabilities": granted["capabilities"], "entry": M{"export": "handle", "input": "stdin"}},
		map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	in, out := io.Pipe()
	defer out.Close()
	r, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "at-once", Cwd: d.Root, Timeout: 200 * time.Millisecond},
		wire.Local{Stdin: in, Stdout: io.Discard, Stderr: io.Discard})
	if err != nil || resultCode(r) != fault.Timeout || r.ExitCode != 124 {
		t.Errorf("%+v, %v", r, err)
	}
	id := newSession(t, d.Socket)
	ended := make(chan *answer, 1)
	go func() { ended <- session(t, d.Socket, "prompt", M{"id": id, "text": "at-once"}) }()
	until(t, "the turn runs", func() bool { return value[bool](t, d.Socket, id, "size(session.running) == 1") })
	session(t, d.Socket, "abort", M{"id": id})
	if a := <-ended; !strings.Contains(string(a.raw), `"ABORTED"`) {
		t.Errorf("aborted: %s", a.raw)
	}
}

func TestHandler(t *testing.T) {
	d := testDaemon(t)
	call := func(args ...string) *answer { return ask(t, d.Socket, M{"tool": "open", "args": args, "cwd": d.Root}) }
	if a := call("exit"); a.ExitCode != 7 || a.Stdout != "out" || a.Stderr != "err" {
		t.Errorf("exit: %s", a.raw)
	}
	for _, code := range []string{"256", "-1", "65536"} { // a process ends with a byte, and of these the byte says success
		if a := call("exit", code); a.ExitCode != 255 || a.Stdout != "out" {
			t.Errorf("exit %s: %s", code, a.raw)
		}
	}
	if a := call("fail"); a.ExitCode != 1 || a.Code != "TOOL_FAILED" || !a.Retriable || !strings.Contains(a.message(), "UPSTREAM_DOWN: the upstream is down") {
		t.Errorf("fail: %s", a.raw)
	}
	if a := call("error"); a.Code != "TOOL_FAILED" || a.ExitCode == 0 || a.Retriable {
		t.Errorf("error: %s", a.raw)
	}
	if a := call("trap"); a.Code != "GUEST_TRAP" && a.Code != "TOOL_FAILED" {
		t.Errorf("trap: %s", a.raw)
	}
	if a := call("emit"); a.Stdout != "line 0\nline 1\nline 2\nend\n" || a.Stderr != "beside\n" {
		t.Errorf("emit: %s", a.raw)
	}
	for range 3 {
		if a := call("calls"); a.Stdout != "1" {
			t.Errorf("a call sees what the one before left: %s", a.raw)
		}
	}
	a := ask(t, d.Socket, M{"tool": "open", "args": []string{"cat"}, "cwd": d.Root, "stdin": base64.StdEncoding.EncodeToString([]byte("given"))})
	if a.Stdout != "given" {
		t.Errorf("cat: %s", a.raw)
	}
	a = ask(t, d.Socket, M{"tool": "open", "args": []string{"loop"}, "cwd": d.Root, "timeout_ms": 1000})
	if a.Code != "LIMIT_EXCEEDED" && a.Code != "TIMEOUT" {
		t.Errorf("loop: %s", a.raw)
	}
}

func TestEnvIsAdmittedByName(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "env", M{"binary": "/usr/bin/env", "capabilities": M{"env": []string{"ADMITTED"}}, "environment": M{"FIXED": "by operator"}}, nil)
	t.Setenv("OF_THE_DAEMON", "must not be seen")
	a := ask(t, d.Socket, M{"tool": "env", "cwd": d.Root, "env": M{"ADMITTED": "yes"}})
	got := strings.Split(strings.TrimSpace(a.Stdout), "\n")
	var names []string
	for _, l := range got {
		n, _, _ := strings.Cut(l, "=")
		names = append(names, n)
	}
	want := "ADMITTED FIXED HOME LANG PATH TMPDIR"
	if hosttest.Judged() && !hosttest.Wanted(confine.Namespaces) { // which have a resolv.conf
		want = "ADMITTED FIXED HOME LANG PATH RES_OPTIONS TMPDIR"
	}
	if s := strings.Join(names, " "); s != want {
		t.Errorf("the environment is %q", a.Stdout)
	}
	a = ask(t, d.Socket, M{"tool": "env", "cwd": d.Root, "env": M{"LD_PRELOAD": "x"}})
	if a.Code != "DENIED" || !strings.Contains(a.message(), "LD_PRELOAD") {
		t.Errorf("a variable that is not admitted: %s", a.raw)
	}
}

func TestCwd(t *testing.T) {
	d := testDaemon(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(d.Root, "out")); err != nil {
		t.Fatal(err)
	}
	for _, cwd := range []string{"relative", outside, d.Root + "/../", d.Root + "/out", d.Root + "/missing", "/"} {
		a := ask(t, d.Socket, M{"tool": "printf", "args": []string{"ran"}, "cwd": cwd})
		if a.Code != "INVALID_PAYLOAD" || a.ExitCode != 64 || a.Stdout != "" {
			t.Errorf("cwd %q: %s", cwd, a.raw)
		}
	}
}

func TestSecretsAreMasked(t *testing.T) {
	const token = "t0p-s3cr3t-token"
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, config.Config{LogLevel: "debug"})
	d.Tool(t, "env", M{"binary": "/usr/bin/env", "secrets": M{"token": M{"from": "file:" + file, "env": "TOKEN"}}}, nil)
	a := ask(t, d.Socket, M{"tool": "env", "cwd": d.Root})
	if !strings.Contains(a.Stdout, "TOKEN=[secret]\n") {
		t.Errorf("output: %s", a.raw)
	}
	var got string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("X-Token")
		io.WriteString(w, "you sent "+got)
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	d.Tool(t, "api", M{
		"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{host}}},
		"secrets":      M{"token": M{"from": "file:" + file, "header": "X-Token", "host": host}},
	}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	a = ask(t, d.Socket, M{"tool": "api", "args": []string{"http", srv.URL}, "cwd": d.Root})
	if got != token {
		t.Errorf("the server saw %q: %s", got, a.raw)
	}
	if a.Stdout != "200 you sent [secret]" {
		t.Errorf("output: %s", a.raw)
	}
	a = ask(t, d.Socket, M{"tool": "api", "args": []string{"http", "http://127.0.0.1:1/"}, "cwd": d.Root})
	if a.ExitCode == 0 || !strings.Contains(a.message(), "capabilities.http.hosts") {
		t.Errorf("a host that is not granted: %s", a.raw)
	}
	d.Stop(t)
	if strings.Contains(d.Logs(), token) {
		t.Errorf("the log holds the secret:\n%s", d.Logs())
	}
}

func TestGuestServices(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	handler := map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)}
	d.Tool(t, "rich", granted, handler)
	for i := 1; i <= 3; i++ {
		a := ask(t, d.Socket, M{"tool": "rich", "args": []string{"count"}, "cwd": d.Root})
		if a.Stdout != fmt.Sprint(i) {
			t.Errorf("call %d: %s", i, a.raw)
		}
	}
	a := ask(t, d.Socket, M{"tool": "rich", "args": []string{"exec", "/bin/echo", "hi"}, "cwd": d.Root})
	if a.Stdout != "hi\n" {
		t.Errorf("exec: %s", a.raw)
	}
	a = ask(t, d.Socket, M{"tool": "rich", "args": []string{"exec", "/bin/cat", "/etc/passwd"}, "cwd": d.Root})
	if a.ExitCode == 0 || !strings.Contains(a.message(), "capabilities.exec") {
		t.Errorf("exec of what is not granted: %s", a.raw)
	}
}

func TestListAndResult(t *testing.T) {
	d := testDaemon(t)
	for _, name := range []string{"printf", "guarded", "open"} {
		waitState(t, d, name, "ok")
	}
	const id = "6fa459ea-ee8a-4ca4-894e-db77e160355e"
	a := ask(t, d.Socket, M{"toolId": "tools.list", "executionId": id, "payload": M{}})
	for _, name := range []string{"printf", "guarded", "open"} {
		if !strings.Contains(string(a.Data), `"`+name+`"`) {
			t.Errorf("tools.list lacks %s: %s", name, a.raw)
		}
	}
	big := strings.Repeat("x", 100000)
	a = ask(t, d.Socket, M{"tool": "printf", "args": []string{"%100000s", ""}, "cwd": d.Root})
	if !a.Truncated || len(a.raw) > wire.MaxFrame || len(a.Stdout) < 50000 {
		t.Fatalf("an answer of %d bytes, truncated %v", len(a.raw), a.Truncated)
	}
	res, err := client.NewAdmin(d.Admin).Result(t.Context(), a.ID)
	if err != nil || len(res.Stdout) != len(big) {
		t.Errorf("the whole result has %d bytes: %v", len(res.Stdout), err)
	}
}

// What a call wrote before its time was over is kept whole, too.
func TestResultOfWhatWasCutOff(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, nil)
	a := ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", `head -c 100000 /dev/zero | tr '\0' x; sleep 60`}, "cwd": d.Root, "timeout_ms": 2000})
	if a.Code != "TIMEOUT" || !a.Truncated || len(a.Stdout) == 0 {
		t.Fatalf("%.300s", a.raw)
	}
	r, err := client.NewAdmin(d.Admin).Result(t.Context(), a.ID)
	if err != nil || len(r.Stdout) != 100000 || r.Code != "TIMEOUT" {
		t.Errorf("%+v, %v", r, err)
	}
}

// A call in the background is one execution of its tool, and a list of tools none
// of an unknown one.
func TestWhatIsCounted(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "echo", M{"binary": "/bin/echo"}, nil)
	a := ask(t, d.Socket, M{"tool": "echo", "cwd": d.Root, "background": true})
	if a.ExitCode != 0 {
		t.Fatalf("%s", a.raw)
	}
	until(t, "the job is done", func() bool {
		return value[bool](t, d.Socket, "", "jobs.exists(j, j.state == 'done')")
	})
	ask(t, d.Socket, M{"tool": "tools.list"})
	text := metrics(t, d)
	if !strings.Contains(text, `tool_execution_total{status="success",tool="echo"} 1`) || !strings.Contains(text, `tool_execution_total{status="success",tool="tools.list"} 1`) || strings.Contains(text, `tool="unknown"`) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "tool_execution_total") {
				t.Error(line)
			}
		}
	}
}

// The bytes of a session's telemetry are those that came, by whichever way.
func TestInputIsCounted(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "cat", M{"binary": "/bin/cat"}, nil)
	in := func() int { return value[int](t, d.Socket, "", "session.telemetry.bytes_in") }
	before := in()
	r, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "cat", Cwd: d.Root}, wire.Local{Stdin: strings.NewReader(strings.Repeat("x", 10000)), Stdout: io.Discard, Stderr: io.Discard})
	if err != nil || r.Err != nil {
		t.Fatal(r, err)
	}
	streamed := in() - before
	if streamed < 10000 || streamed > 10500 {
		t.Errorf("10000 bytes of streamed input count as %d", streamed)
	}
	before = in()
	ask(t, d.Socket, M{"tool": "cat", "cwd": d.Root, "stdin": base64.StdEncoding.EncodeToString(make([]byte, 9000))})
	if n := in() - before; n < 12000 || n > 12500 { // as base64, once
		t.Errorf("9000 bytes within the request count as %d", n)
	}
}

func TestUnknown(t *testing.T) {
	d := testDaemon(t)
	for _, name := range []string{"nothing", "../open", "Open", "open/", ".", "tools.list2", strings.Repeat("a", 65)} {
		a := ask(t, d.Socket, M{"tool": name, "cwd": d.Root})
		if a.Code != "UNKNOWN_TOOL" || a.ExitCode != 127 {
			t.Errorf("%q: %s", name, a.raw)
		}
	}
	a := ask(t, d.Socket, M{"tool": "open", "cwd": d.Root, "session": "x"})
	if a.Code != "SESSION_NOT_FOUND" {
		t.Errorf("session: %s", a.raw)
	}
	a = ask(t, d.Socket, M{"tool": "open", "cwd": d.Root, "token": "secret-token"})
	if a.Code != "UNAUTHENTICATED" || bytes.Contains(a.raw, []byte("secret-token")) {
		t.Errorf("token: %s", a.raw)
	}
}

func TestSocketsServeCategoriesAndRoots(t *testing.T) {
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	other := t.TempDir()
	second := filepath.Join(dir, "vcs.sock")
	d := hosttest.Start(t, config.Config{Sockets: []config.Socket{{Path: second, Roots: []string{other}, Categories: []string{"vcs"}}}})
	d.Tool(t, "pwd", M{"binary": "/bin/pwd", "category": "vcs"}, nil)
	d.Tool(t, "id", M{"binary": "/usr/bin/id", "category": "net"}, nil)
	for _, tt := range []struct{ socket, tool, cwd, code string }{
		{d.Socket, "pwd", d.Root, ""},
		{d.Socket, "id", d.Root, ""},
		{d.Socket, "pwd", other, "INVALID_PAYLOAD"},
		{second, "pwd", other, ""},
		{second, "pwd", d.Root, "INVALID_PAYLOAD"},
		{second, "id", other, "UNKNOWN_TOOL"},
	} {
		if a := ask(t, tt.socket, M{"tool": tt.tool, "cwd": tt.cwd}); a.Code != tt.code {
			t.Errorf("%s on %s in %s: %s", tt.tool, filepath.Base(tt.socket), tt.cwd, a.raw)
		}
	}
}

// Roots and the state folder may be reached through links, as the operator
// writes them.
func TestLinkedRootAndState(t *testing.T) {
	dir := t.TempDir()
	link := func(name string) string {
		if err := os.Mkdir(filepath.Join(dir, "real-"+name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("real-"+name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	root := link("root")
	d := hosttest.Start(t, config.Config{Roots: []string{root}, State: link("state")})
	d.Tool(t, "pwd", M{"binary": "/bin/pwd"}, nil)
	d.Tool(t, "narrow", M{"binary": "/bin/pwd", "roots": []string{root}}, nil)
	for _, tool := range []string{"pwd", "narrow"} {
		if a := ask(t, d.Socket, M{"tool": tool, "cwd": root}); a.Stdout != filepath.Join(dir, "real-root")+"\n" {
			t.Errorf("%s: %s", tool, a.raw)
		}
	}
	if err := d.Reload(d.Config, nil); err != nil {
		t.Errorf("reload of the same configuration: %v", err)
	}
}

func TestHomeIsOfOneIdentityAndTool(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "one", M{"binary": "/usr/bin/env"}, nil)
	d.Tool(t, "two", M{"binary": "/usr/bin/env"}, nil)
	home := func(tool string) string {
		for _, l := range strings.Split(ask(t, d.Socket, M{"tool": tool, "cwd": d.Root}).Stdout, "\n") {
			if h, ok := strings.CutPrefix(l, "HOME="); ok {
				return h
			}
		}
		return ""
	}
	if home("one") == "" || home("one") == home("two") || !strings.HasPrefix(home("one"), d.State) {
		t.Errorf("homes %q and %q", home("one"), home("two"))
	}
	fi, err := os.Stat(home("one"))
	if err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi, err)
	}
}

func TestReload(t *testing.T) {
	d := testDaemon(t)
	next := d.Config
	next.Roots = []string{t.TempDir()}
	if err := d.Reload(next, nil); err != nil {
		t.Fatal(err)
	}
	if a := ask(t, d.Socket, M{"tool": "printf", "args": []string{"x"}, "cwd": d.Root}); a.Code != "INVALID_PAYLOAD" {
		t.Errorf("the old root still serves: %s", a.raw)
	}
	no := false
	next.Identity.AllowUID = &no
	if err := d.Reload(next, nil); err != nil {
		t.Fatal(err)
	}
	if a := ask(t, d.Socket, M{"tool": "printf", "args": []string{"x"}, "cwd": next.Roots[0]}); a.Code != "UNAUTHENTICATED" {
		t.Errorf("uid is still admitted: %s", a.raw)
	}
	bad := next
	bad.Socket += "2"
	yes := true
	bad.Identity.AllowUID = &yes
	if err := d.Reload(bad, nil); err == nil || !strings.Contains(err.Error(), "socket") {
		t.Errorf("another socket: %v", err)
	}
	writable := next
	writable.AllowWritableTools = true
	if err := d.Reload(writable, nil); err == nil || !strings.Contains(err.Error(), "allow_writable_tools") {
		t.Errorf("what only a restart changes: %v", err)
	}
	st, err := client.NewAdmin(d.Admin).Status(t.Context())
	if err != nil || !strings.Contains(st.ConfigError, "restart") {
		t.Errorf("status %+v, %v", st, err)
	}
	if a := ask(t, d.Socket, M{"tool": "printf", "args": []string{"x"}, "cwd": next.Roots[0]}); a.Code != "UNAUTHENTICATED" {
		t.Errorf("a refused reload changed something: %s", a.raw)
	}
}

// waitState waits until the daemon says that a tool is in one of states.
// A tool that works beneath a root that a reload brings is no longer broken.
func TestReloadedRoots(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	more, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d.Tool(t, "narrow", M{"binary": "/bin/pwd", "roots": []string{more}}, nil)
	if a := ask(t, d.Socket, M{"tool": "narrow", "cwd": more}); a.Code != "TOOL_BROKEN" {
		t.Fatalf("before: %s", a.raw)
	}
	next := d.Config
	next.Roots = []string{d.Root, more}
	if err := d.Reload(next, nil); err != nil {
		t.Fatal(err)
	}
	waitState(t, d, "narrow", "ok")
	if a := ask(t, d.Socket, M{"tool": "narrow", "cwd": more}); a.Stdout != more+"\n" {
		t.Errorf("after: %s", a.raw)
	}
}

func waitState(t testing.TB, d *hosttest.Daemon, name string, states ...string) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		s, err := client.NewAdmin(d.Admin).Tool(t.Context(), name)
		if err == nil {
			for _, want := range states {
				if s.State == want {
					return
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is %+v after a minute, want one of %q: %v", name, s, states, err)
		}
		runtime.Gosched()
	}
}

// TestUsage: an answer, the stored result and the metrics say what modules
// took, and say nothing where none ran.
func TestUsage(t *testing.T) {
	d := testDaemon(t)
	d.Tool(t, "bare", M{"binary": "/bin/echo"}, nil)
	usage := func(a *answer) (u wire.Usage, ok bool) {
		var m struct {
			Usage *wire.Usage `json:"usage"`
		}
		if err := json.Unmarshal(a.raw, &m); err != nil {
			t.Fatal(err)
		}
		if m.Usage == nil {
			return u, false
		}
		return *m.Usage, true
	}
	a := ask(t, d.Socket, M{"tool": "guarded", "args": []string{"calls"}, "cwd": d.Root})
	both, ok := usage(a)
	if !ok || both.Fuel <= 0 || both.Memory < 1<<16 {
		t.Errorf("policy and handler: %s", a.raw)
	}
	a = ask(t, d.Socket, M{"toolId": "open", "executionId": "6fa459ea-ee8a-4ca4-894e-db77e160355e", "payload": M{"args": []string{"calls"}, "cwd": d.Root}})
	if one, ok := usage(a); !ok || one.Fuel <= 0 || one.Fuel >= both.Fuel {
		t.Errorf("a handler alone, after %d with its policy: %s", both.Fuel, a.raw)
	}
	a = ask(t, d.Socket, M{"tool": "bare", "args": []string{"x"}, "cwd": d.Root})
	if _, ok := usage(a); ok || a.ExitCode != 0 {
		t.Errorf("no module: %s", a.raw)
	}
	res, err := client.NewAdmin(d.Admin).Result(t.Context(), "6fa459ea-ee8a-4ca4-894e-db77e160355e")
	if err != nil || res.Usage == nil || res.Usage.Fuel <= 0 {
		t.Errorf("the stored result: %+v, %v", res, err)
	}
	text, err := scrapeAdmin(t, d.Admin)
	for _, name := range []string{`toold_guest_fuel_count{tool="guarded"} 2`, `toold_guest_memory_peak_bytes_count{tool="open"} 1`, `toold_guest_pages_restored_total{tool="guarded"}`} {
		if err != nil || !strings.Contains(text, name) {
			t.Errorf("the metrics lack %s: %v", name, err)
		}
	}
}

func scrapeAdmin(t *testing.T, admin string) (string, error) {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", admin)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://admin/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}
