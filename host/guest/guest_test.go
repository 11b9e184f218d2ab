package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/pdk/abi"
)

// built are the Go guests, by folder; TestMain makes them.
var built map[string][]byte

// compiler is this program; under the race detector, whose code would take
// minutes, it is the same without. (Not another program: wazero's version, as
// the linker records it, is part of what it compiles.)
var compiler = "/proc/self/exe"

// cacheDir is shared by the tests of one run: compiling a Go guest takes a
// second.
var cacheDir string

func TestMain(m *testing.M) {
	if IsCompiler() {
		os.Exit(Compile())
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "guest-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	cacheDir = filepath.Join(dir, "cache")
	if raceEnabled {
		compiler = filepath.Join(dir, "compiler")
		if msg, err := exec.Command("go", "test", "-c", "-o", compiler, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build compiler: %v\n%s", err, msg)
			return 1
		}
	}
	built = map[string][]byte{}
	for name, mode := range map[string]string{"kitchen": "-buildmode=c-shared", "command": "-buildmode=exe"} {
		out := filepath.Join(dir, name+".wasm")
		cmd := exec.Command("go", "build", mode, "-ldflags=-s", "-o", out, "./testdata/guests/"+name)
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
		if msg, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build guest %s: %v\n%s", name, err, msg)
			return 1
		}
		if built[name], err = os.ReadFile(out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

func newEngine(t testing.TB) *Engine {
	t.Helper()
	return engineIn(t, cacheDir)
}

func engineIn(t testing.TB, cacheDir string) *Engine {
	t.Helper()
	e, err := New(Config{CacheDir: cacheDir, Compiler: compiler, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func load(t testing.TB, e *Engine, spec Spec) *Module {
	t.Helper()
	if spec.Name == "" {
		spec.Name = "test.wasm"
	}
	m, err := e.Load(context.Background(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func kitchen(t testing.TB) *Module {
	t.Helper()
	return load(t, newEngine(t), Spec{Name: "kitchen.wasm", Wasm: built["kitchen"], Fuel: 100_000_000_000})
}

func do(t testing.TB, m *Module, export, input string) string {
	t.Helper()
	r, err := m.Call(context.Background(), Invocation{Export: export, Input: []byte(input)})
	if err != nil {
		t.Fatalf("%s %q: %v", export, input, err)
	}
	return string(r.Output)
}

// codeOf is what a caller answers to whoever called it: package tools gives the
// same codes, with a word on tool.json.
func codeOf(err error) fault.Code {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e, _ := errors.AsType[*fault.Error](err) // of a service
		if e == nil {
			return ""
		}
		return e.Code
	}
	switch e.Kind {
	case Internal:
		return fault.Internal
	case Failed:
		return fault.ToolFailed
	case Trapped:
		return fault.GuestTrap
	case FuelUsed, MemoryUsed, BlocksUsed, OutputUsed:
		return fault.LimitExceeded
	case DeadlineMet:
		return fault.Timeout
	case Aborted:
		return fault.Aborted
	case Overloaded:
		return fault.Overloaded
	}
	return fault.ToolBroken
}

// wantCode fails unless err has that code and says all parts.
func wantCode(t testing.TB, err error, code fault.Code, parts ...string) {
	t.Helper()
	if codeOf(err) != code {
		t.Fatalf("error is %v, want %s", err, code)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("message %q does not say %q", err, p)
		}
	}
}

func TestCall(t *testing.T) {
	m := kitchen(t)
	if got := do(t, m, "check", `{"tool":"git","args":["push","--force"]}`); got != `{"allow":false,"reason":"force push","n":1}` {
		t.Errorf("check answered %s", got)
	}
	for _, n := range []int{0, 1, 7, 8, 9, 4096, 65536, 1 << 20} {
		in := string(bytes.Repeat([]byte("x"), n))
		if got := do(t, m, "echo", in); got != in {
			t.Errorf("echo of %d bytes answered %d", n, len(got))
		}
		if got := do(t, m, "bulk", in); got != in {
			t.Errorf("bulk echo of %d bytes answered %d", n, len(got))
		}
	}
}

func TestFreshState(t *testing.T) {
	m := kitchen(t)
	for range 3 {
		if got := do(t, m, "run", "calls"); got != "1" {
			t.Fatalf("the module remembers %s calls", got)
		}
	}
}

func TestErrors(t *testing.T) {
	m := kitchen(t)
	for _, tt := range []struct {
		export, in string
		code       fault.Code
		says       string
	}{
		{"run", "panic", fault.GuestTrap, "told to"},
		{"run", "exit 3", fault.GuestTrap, "exit code"},
		{"run", "error", fault.ToolFailed, "no such branch"},
		{"run", "code 4", fault.ToolFailed, "returned 4"},
		{"nothing", "", fault.ToolBroken, "it has bulk, check, echo, run"},
	} {
		_, err := m.Call(context.Background(), Invocation{Export: tt.export, Input: []byte(tt.in)})
		wantCode(t, err, tt.code, "", tt.says)
	}
	var deep asm
	deep.exported("run", nil, callf(0))
	_, err := load(t, newEngine(t), Spec{Wasm: deep.bytes()}).Call(context.Background(), Invocation{Export: "run"})
	wantCode(t, err, fault.GuestTrap, "stack overflow")
	if got := do(t, m, "run", "calls"); got != "1" {
		t.Errorf("after errors the module remembers %s calls", got)
	}
}

func TestEnds(t *testing.T) {
	m := kitchen(t)
	// What outlives its context ends by its fuel, with another code, or after
	// eleven days. How soon the end comes, BenchmarkAbort measures.
	for _, in := range []string{"loop", "sleep 1000000000"} {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, err := m.Call(ctx, Invocation{Export: "run", Input: []byte(in)})
		wantCode(t, err, fault.Timeout)
		cancel()
		ctx, cancel = context.WithCancel(context.Background())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err = m.Call(ctx, Invocation{Export: "run", Input: []byte(in)})
		wantCode(t, err, fault.Aborted)
	}
}

func TestImports(t *testing.T) {
	e := newEngine(t)
	one := func(module, name string, p, r []byte) []byte {
		var a asm
		a.imp(module, name, p, r)
		a.exported("run", nil, i32c(0))
		return a.bytes()
	}
	d := op(0x7e)
	for _, tt := range []struct {
		what string
		wasm []byte
		gs   Grants
		says []string
	}{
		{"unknown function", one(envModule, "format_disk", nil, nil), 0, []string{`"format_disk"`, `"extism:host/env"`, "does not have"}},
		{"unknown module", one("env", "abort", nil, nil), 0, []string{`"abort"`, `"env"`}},
		{"http", one(envModule, "http_request", op(0x7e, 0x7e), d), AllGrants &^ GrantHTTP, []string{`"http_request"`, "grant it http"}},
		{"state", one(envModule, "var_get", d, d), AllGrants &^ GrantState, []string{`"var_get"`, "grant it state"}},
		{"exec", one(userModule, "tool_exec", d, d), AllGrants &^ GrantExec, []string{`"tool_exec"`, "grant it exec"}},
		{"tool_call", one(userModule, "tool_call", d, d), AllGrants &^ GrantToolCall, []string{`"tool_call"`, "grant it tool_call"}},
		{"wrong type", one(envModule, "alloc", op(0x7f), d), 0, []string{`"alloc"`, "(i32) -> (i64)", "(i64) -> (i64)"}},
	} {
		_, err := e.Load(context.Background(), Spec{Name: "x/handler.wasm", Wasm: tt.wasm, Grants: tt.gs})
		t.Run(tt.what, func(t *testing.T) {
			wantCode(t, err, fault.ToolBroken, append(tt.says, "x/handler.wasm")...)
			if e, _ := errors.AsType[*Error](err); tt.gs != 0 && (e.Kind != NotGranted || e.Lacks != AllGrants&^tt.gs) {
				t.Errorf("%v lacks %v", e.Kind, e.Lacks)
			}
		})
	}
	m := load(t, e, Spec{Wasm: one(userModule, "tool_exec", d, d), Grants: GrantExec})
	do(t, m, "run", "")
}

func TestBrokenModules(t *testing.T) {
	e := newEngine(t)
	var wrong, command asm
	wrong.export("handle", 0, wrong.fn(op(0x7f), nil, nil))
	command.export("_start", 0, command.fn(nil, nil, nil))
	for _, tt := range []struct {
		what string
		wasm []byte
		says string
	}{
		{"empty", nil, "empty"},
		{"text", []byte("#!/bin/sh\n"), "not a WebAssembly module"},
		{"component of nothing", []byte("\x00asm\x0d\x00\x01\x00"), "no module to run"},
		{"component of another version", []byte("\x00asm\x0e\x00\x01\x00"), "another version"},
		{"truncated", built["kitchen"][:1000], "build"},
		{"wrong export", wrong.bytes(), "must be () -> (i32)"},
		{"command", command.bytes(), "WASI command"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			m, err := e.Load(context.Background(), Spec{Name: "x/handler.wasm", Wasm: tt.wasm})
			if err == nil {
				defer m.Close()
				_, err = m.Call(context.Background(), Invocation{Export: "handle"})
			}
			wantCode(t, err, fault.ToolBroken, tt.says, "x/handler.wasm")
		})
	}
}

func TestServices(t *testing.T) {
	e := newEngine(t)
	var a asm
	d, dd := op(0x7e), op(0x7e, 0x7e)
	inOff := a.env("input_offset", nil, d)
	length := a.env("length", d, d)
	out := a.env("output_set", dd, nil)
	fns := map[string][]byte{}
	for _, n := range []string{"config_get", "var_get"} {
		fns[n] = callf(a.env(n, d, d))
	}
	varSet := a.env("var_set", dd, nil)
	logs := a.env("log_warn", d, nil)
	http := a.env("http_request", dd, d)
	status := a.env("http_status_code", nil, op(0x7f))
	headers := a.env("http_headers", nil, d)
	for _, n := range []string{"tool_exec", "tool_emit", "tool_recv", "tool_call"} {
		fns[n] = callf(a.imp(userModule, n, d, d))
	}
	// Each export hands its input to the function and answers what came.
	finish := cat(set(0), get(0), get(0), callf(length), callf(out), i32c(0))
	for n, f := range fns {
		a.exported(n, d, callf(inOff), f, finish)
	}
	a.exported("var_set", d, callf(inOff), callf(inOff), callf(varSet), i32c(0))
	a.exported("log", d, callf(inOff), callf(logs), i32c(0))
	a.exported("http", d, callf(inOff), i64c(0), callf(http), finish)
	a.exported("headers", d, callf(inOff), i64c(0), callf(http), drop, callf(headers), finish)
	a.exported("status", d, callf(inOff), i64c(0), callf(http), drop, callf(status))
	m := load(t, e, Spec{Wasm: a.bytes(), Grants: AllGrants, Config: map[string]string{"k": "spec"}})

	vars := map[string][]byte{"have": []byte("it")}
	var logged []string
	svc := Services{
		Log:    func(_ context.Context, l slog.Level, s string) { logged = append(logged, l.String()+" "+s) },
		VarGet: func(k string) []byte { return vars[k] },
		VarSet: func(k string, v []byte) error {
			if k == "full" {
				return fault.Errorf(fault.LimitExceeded, "no room")
			}
			vars[k] = v
			return nil
		},
		HTTP: func(_ context.Context, r *HTTPRequest) (*HTTPResponse, error) {
			if r.URL == "http://no.example" {
				return nil, errors.New("host no.example is not listed")
			}
			return &HTTPResponse{Status: 204, Headers: map[string]string{"X-Where": r.URL}, Body: []byte(r.Method)}, nil
		},
		Exec: func(_ context.Context, r *abi.ExecRequest) *abi.ExecResult {
			return &abi.ExecResult{ExitCode: len(r.Args)}
		},
		Emit: func(s string, p []byte) error { logged = append(logged, s+" "+string(p)); return nil },
		Recv: func(context.Context) ([]byte, error) { return nil, io.EOF },
		ToolCall: func(_ context.Context, _ int64, p []byte) ([]byte, int64, error) {
			return append([]byte("re:"), p...), 0, nil
		},
	}
	call := func(export, in string, cfg map[string]string) (string, error) {
		r, err := m.Call(context.Background(), Invocation{Export: export, Input: []byte(in), Config: cfg, Services: svc})
		return string(r.Output), err
	}
	for _, tt := range []struct {
		export, in string
		cfg        map[string]string
		want       string
	}{
		{"config_get", "k", nil, "spec"},
		{"config_get", "k", map[string]string{"k": "own"}, "own"},
		{"config_get", "k", map[string]string{}, ""},
		{"var_get", "have", nil, "it"},
		{"var_get", "not", nil, ""},
		{"var_set", "new", nil, ""},
		{"var_get", "new", nil, "new"},
		{"http", `{"url":"http://a.example"}`, nil, "GET"},
		{"headers", `{"url":"http://a.example","method":"post"}`, nil, `{"x-where":"http://a.example"}`},
		{"http", `{"url":"http://no.example"}`, nil, "host no.example is not listed"},
		{"tool_exec", `{"path":"/bin/x","args":["1","2"]}`, nil, `{"exit_code":2}`},
		{"tool_exec", `{"pathh":1}`, nil, `pathh`},
		{"tool_emit", `{"stream":"stdout","data_base64":"aGk="}`, nil, `{}`},
		{"tool_emit", `{"stream":"nowhere"}`, nil, `stream must be`},
		{"tool_recv", `x`, nil, `{"eof":true}`},
		{"tool_call", `x`, nil, `re:x`},
		{"log", "careful", nil, ""},
	} {
		got, err := call(tt.export, tt.in, tt.cfg)
		if err != nil || (got != tt.want && (tt.want == "" || !strings.Contains(got, tt.want))) {
			t.Errorf("%s(%s) answered %q, %v; want %q", tt.export, tt.in, got, err, tt.want)
		}
	}
	if _, err := call("status", `{"url":"http://a.example"}`, nil); err == nil || !strings.Contains(err.Error(), "204") {
		t.Errorf("status of a good request: %v", err)
	}
	if _, err := call("status", `{"url":"http://no.example"}`, nil); err != nil {
		t.Errorf("status of a refused request: %v", err)
	}
	_, err := call("var_set", "full", nil)
	wantCode(t, err, fault.LimitExceeded, "no room")
	if want := "stdout hi\nWARN careful"; strings.Join(logged, "\n") != want {
		t.Errorf("logged %q", logged)
	}
	// What is kept of the context of a ToolCall, as by a job that was begun in it, is
	// of that call, also when its instance serves another.
	type key struct{}
	var kept []context.Context
	svc = Services{ToolCall: func(ctx context.Context, _ int64, p []byte) ([]byte, int64, error) {
		kept = append(kept, ctx)
		return p, 0, nil
	}}
	for i := range 2 {
		if _, err := m.Call(context.WithValue(t.Context(), key{}, i), Invocation{Export: "tool_call", Input: []byte("x"), Services: svc}); err != nil {
			t.Fatal(err)
		}
	}
	for i, ctx := range kept {
		if ctx.Value(key{}) != i {
			t.Errorf("the context of call %d has the value %v", i, ctx.Value(key{}))
		}
	}
	svc = Services{}
	for _, n := range []string{"tool_exec", "tool_emit", "tool_recv", "tool_call", "http", "var_get", "log"} {
		if _, err := call(n, `{}`, nil); err != nil {
			t.Errorf("%s without a service: %v", n, err)
		}
	}
}

func TestConcurrent(t *testing.T) {
	m := kitchen(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				in := fmt.Sprint(i, j)
				r, err := m.Call(context.Background(), Invocation{Export: "echo", Input: []byte(in)})
				if err != nil || string(r.Output) != in {
					t.Errorf("echo %s answered %q, %v", in, r.Output, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestCloseWaits(t *testing.T) {
	e := newEngine(t)
	m, err := e.Load(context.Background(), Spec{Name: "kitchen.wasm", Wasm: built["kitchen"]})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	m.enter(context.Background())
	go func() {
		_, err := m.Call(ctx, Invocation{Export: "run", Input: []byte("sleep 20")})
		done <- err
	}()
	if err := <-done; err != nil {
		t.Errorf("a call that ran: %v", err)
	}
	m.Close()
	m.leave()
	cancel()
	_, err = m.Call(context.Background(), Invocation{Export: "run", Input: []byte("calls")})
	wantCode(t, err, fault.Internal, "closed")
}

func TestClocksAreReal(t *testing.T) {
	m := kitchen(t)
	var ns int64
	fmt.Sscan(do(t, m, "run", "now"), &ns)
	if d := time.Since(time.Unix(0, ns)); d < 0 || d > time.Minute {
		t.Errorf("the guest's clock is %v off", d)
	}
	if a, b := do(t, m, "run", "seed"), do(t, m, "run", "seed"); a == b {
		t.Errorf("two calls drew the same randomness: %s", a)
	}
}

func TestRun(t *testing.T) {
	m := load(t, newEngine(t), Spec{Name: "cmd.wasm", Wasm: built["command"], Fuel: 100_000_000_000})
	run := func(stdin string, args ...string) (int, string, string, error) {
		var out, errs bytes.Buffer
		code, _, err := m.Run(context.Background(), Command{Args: append([]string{"cmd"}, args...), Env: []string{"COLOUR=red"},
			Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs})
		return code, out.String(), errs.String(), err
	}
	if code, out, _, err := run("", "args", "a b"); code != 0 || out != "cmd|args|a b red\n" || err != nil {
		t.Errorf("args: %d %q %v", code, out, err)
	}
	big := strings.Repeat("0123456789", 30000)
	if _, out, _, err := run(big, "cat"); out != big || err != nil {
		t.Errorf("cat of %d bytes: %d, %v", len(big), len(out), err)
	}
	if code, _, errs, err := run("", "fail"); code != 7 || errs != "no luck\n" || err != nil {
		t.Errorf("fail: %d %q %v", code, errs, err)
	}
	if _, out, _, _ := run("", "read", "/etc/passwd"); !strings.Contains(out, "o such file") && !strings.Contains(out, "Bad file") {
		t.Errorf("a guest without files read: %q", out)
	}
	pr, pw := io.Pipe()
	defer pw.Close()
	for _, tt := range [][]string{{"loop"}, {"sleep"}, {"cat"}} {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, _, err := m.Run(ctx, Command{Args: append([]string{"cmd"}, tt...), Stdin: pr})
		cancel()
		wantCode(t, err, fault.Timeout)
	}
	_, err := m.Call(context.Background(), Invocation{Export: "handle"})
	wantCode(t, err, fault.ToolBroken, "WASI command")
}

// TestCaller reads what answerer's modules answer.
func answered(t testing.TB, m *Module, export string) uint32 {
	t.Helper()
	r, err := m.Call(context.Background(), Invocation{Export: export})
	if err != nil {
		t.Fatalf("%s: %v", export, err)
	}
	if len(r.Output) != 4 {
		t.Fatalf("%s answered %d bytes", export, len(r.Output))
	}
	return binary.LittleEndian.Uint32(r.Output)
}

func TestFiles(t *testing.T) {
	m := load(t, newEngine(t), Spec{Name: "cmd.wasm", Wasm: built["command"]})
	host := t.TempDir()
	outside := filepath.Join(host, "outside")
	for _, d := range []string{"rw/sub", "ro"} {
		if err := os.MkdirAll(filepath.Join(host, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"rw/a": "alpha", "ro/b": "beta", "secret": "s3cret"} {
		if err := os.WriteFile(filepath.Join(host, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{"../secret": "rw/up", filepath.Join(host, "secret"): "rw/abs", "..": "rw/dir", "a": "rw/good"} {
		if err := os.Symlink(from, filepath.Join(host, to)); err != nil {
			t.Fatal(err)
		}
	}
	if err := exec.Command("mkfifo", filepath.Join(host, "rw/fifo")).Run(); err != nil {
		t.Skipf("no mkfifo: %v", err)
	}
	run := func(args ...string) string {
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _, err := m.Run(ctx, Command{Args: append([]string{"cmd"}, args...), Stdout: &out, Stderr: &out, Dirs: []Mount{
			{Guest: "/w", Host: filepath.Join(host, "rw")}, {Guest: "/r", Host: filepath.Join(host, "ro"), ReadOnly: true},
		}})
		if err != nil {
			t.Errorf("%v: %v", args, err)
		}
		return strings.TrimSpace(out.String())
	}
	no := "peration not permitted"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"read", "/w/a"}, "alpha <nil>"},
		{[]string{"read", "/w/good"}, "alpha <nil>"},
		{[]string{"read", "/r/b"}, "beta <nil>"},
		{[]string{"write", "/w/new", "text"}, "<nil>"},
		{[]string{"append", "/w/new", " more"}, "<nil>"},
		{[]string{"read", "/w/new"}, "text more <nil>"},
		{[]string{"mkdir", "/w/d"}, "<nil>"},
		{[]string{"mv", "/w/new", "/w/d/n"}, "<nil>"},
		{[]string{"ls", "/w/d"}, "n false\n<nil>"},
		{[]string{"stat", "/w/d/n"}, "9 false"},
		{[]string{"rm", "/w/d/n"}, "<nil>"},
		{[]string{"rm", "/w/d"}, "<nil>"},
		{[]string{"ln", "a", "/w/l"}, "<nil>"},
		{[]string{"readlink", "/w/l"}, "a <nil>"},
		// Ways out.
		{[]string{"read", "/w/up"}, no}, {[]string{"read", "/w/abs"}, no}, {[]string{"read", "/w/dir/secret"}, no},
		{[]string{"read", "/w/../secret"}, "Bad file number"}, {[]string{"read", "/w/../../../../../../etc/passwd"}, "Bad file number"},
		{[]string{"write", "/w/up", "x"}, no}, {[]string{"write", "/w/dir/outside", "x"}, no},
		{[]string{"ln", "../../secret", "/w/sub/x"}, no}, {[]string{"ln", "/etc/passwd", "/w/x"}, no},
		{[]string{"mv", "/w/a", "/w/dir/outside"}, no},
		{[]string{"mkdir", "/w/dir/outside"}, no},
		// Read-only.
		{[]string{"write", "/r/b", "x"}, "only file system"}, {[]string{"append", "/r/b", "x"}, "only file system"}, {[]string{"write", "/r/new", "x"}, "only file system"},
		{[]string{"rm", "/r/b"}, "only file system"}, {[]string{"mkdir", "/r/d"}, "only file system"}, {[]string{"mv", "/r/b", "/r/c"}, "only file system"}, {[]string{"ln", "b", "/r/l"}, "only file system"},
		// What might never end.
		{[]string{"read", "/w/fifo"}, no},
	} {
		if got := run(tt.args...); got != tt.want && !(len(tt.want) > 8 && strings.Contains(got, tt.want)) {
			t.Errorf("%v: %q, want %q", tt.args, got, tt.want)
		}
	}
	if _, err := os.Lstat(outside); err == nil {
		t.Error("something was made outside")
	}
	for name, want := range map[string]string{"rw/a": "alpha", "ro/b": "beta", "secret": "s3cret"} {
		if got, _ := os.ReadFile(filepath.Join(host, name)); string(got) != want {
			t.Errorf("%s holds %q", name, got)
		}
	}
	before, _ := os.ReadDir("/proc/self/fd")
	for range 20 {
		run("read", "/w/a")
	}
	if after, _ := os.ReadDir("/proc/self/fd"); len(after) > len(before)+2 {
		t.Errorf("%d descriptors became %d", len(before), len(after))
	}
}
