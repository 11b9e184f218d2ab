package host_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// reliableDaemon has every call go through the reliability layer: a handler
// whose upstream is down, and a shell that writes ledgers.
func reliableDaemon(t testing.TB, c config.Config) *hosttest.Daemon {
	c.Reliability = "all"
	d := hosttest.Start(t, c)
	def := M{"reliability": M{"retry": M{"max": 0}, "breaker": M{"reset_ms": 500}}}
	for k, v := range granted {
		def[k] = v
	}
	d.Tool(t, "down", def, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	d.Tool(t, "ledger", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, nil)
	return d
}

// lines is how many lines a ledger has; 0 when it is not there.
func lines(t testing.TB, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

func dialUnix(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

func metrics(t testing.TB, d *hosttest.Daemon) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialUnix(d.Admin)}}
	resp, err := c.Get("http://toold/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if err := resp.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The breaker's rows of the matrix, with real time.
func TestBreakerOverTheSocket(t *testing.T) {
	d := reliableDaemon(t, config.Config{})
	fail := func() *answer { return ask(t, d.Socket, M{"tool": "down", "args": []string{"fail"}, "cwd": d.Root}) }
	for i := range 5 {
		if a := fail(); a.Code != "TOOL_FAILED" || !a.Retriable {
			t.Fatalf("failure %d: %s", i, a.raw)
		}
	}
	start := time.Now()
	a := fail()
	refused := time.Since(start)
	if a.Code != "CIRCUIT_OPEN" || a.Status != "circuit_open" || a.ExitCode != 75 || !a.Retriable {
		t.Errorf("the sixth: %s", a.raw)
	}
	for range 5 { // on a busy machine the quickest counts
		start = time.Now()
		fail()
		refused = min(refused, time.Since(start))
	}
	if refused >= 10*time.Millisecond {
		t.Errorf("refusing took %v", refused)
	}
	t.Logf("the refusal took %v over the socket", refused)
	if text := metrics(t, d); !strings.Contains(text, `circuit_breaker_state{state="open",tool="down"} 1`) ||
		!strings.Contains(text, `tool_execution_total{status="circuit_open",tool="down"}`) {
		t.Errorf("the metrics do not tell:\n%s", text)
	}
	// Half open, of many callers exactly one runs.
	awaitBreaker(t, d, "half_open")
	var ran, open atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			switch a := ask(t, d.Socket, M{"tool": "down", "args": []string{"pause"}, "cwd": d.Root}); a.Code {
			case "":
				ran.Add(1)
			case "CIRCUIT_OPEN":
				open.Add(1)
			default:
				t.Errorf("%s", a.raw)
			}
		})
	}
	wg.Wait()
	// Whoever came after the trial had ended found the breaker closed.
	if ran.Load() < 1 || ran.Load()+open.Load() != 20 {
		t.Errorf("%d ran, %d were refused", ran.Load(), open.Load())
	}
	awaitBreaker(t, d, "closed")

	for range 5 {
		fail()
	}
	if r, err := client.NewAdmin(d.Admin).ResetBreakers(t.Context(), "down"); err != nil || r.Reset != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if a := ask(t, d.Socket, M{"tool": "down", "args": []string{"calls"}, "cwd": d.Root}); a.Code != "" {
		t.Errorf("after a reset: %s", a.raw)
	}
}

func awaitBreaker(t *testing.T, d *hosttest.Daemon, state string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		list, err := client.NewAdmin(d.Admin).Breakers(t.Context())
		if err == nil && len(list) == 1 && list[0].State == state {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("breakers %+v, %v; want one that is %s", list, err, state)
		}
		runtime.Gosched()
	}
}

// An upstream answers 503 at first: a handler that only reads is run again,
// and is told which attempt it is; 400 is final.
func TestRetryOverTheSocket(t *testing.T) {
	d := hosttest.Start(t, config.Config{Reliability: "all"})
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n := asked.Add(1); r.URL.Path == "/400" {
			w.WriteHeader(400)
		} else if n < 3 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(503)
		}
	}))
	defer srv.Close()
	at := strings.TrimPrefix(srv.URL, "http://")
	for name, mutating := range map[string]bool{"reads": false, "writes": true} {
		d.Tool(t, name, M{
			"mutating":     mutating,
			"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{at}}},
			"reliability":  M{"retry": M{"initial_ms": 20}},
		}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	}
	for _, tt := range []struct {
		tool, path string
		want       int64
		code, out  string
	}{
		{"reads", "/503", 3, "", "200 on attempt 3"},
		{"reads", "/400", 1, "TOOL_FAILED", ""},
		{"writes", "/503", 1, "TOOL_FAILED", ""},
	} {
		asked.Store(0)
		a := ask(t, d.Socket, M{"tool": tt.tool, "args": []string{"must", srv.URL + tt.path}, "cwd": d.Root})
		if asked.Load() != tt.want || a.Code != tt.code || a.Stdout != tt.out {
			t.Errorf("%s %s: asked %d times: %s", tt.tool, tt.path, asked.Load(), a.raw)
		}
	}
	if text := metrics(t, d); !strings.Contains(text, `toold_retries_total{tool="reads"} 2`) {
		t.Error("two retries are not counted")
	}
}

// Fifty callers at once with one key: one execution, fifty equal answers.
func TestFiftyCallersOneKey(t *testing.T) {
	d := reliableDaemon(t, config.Config{})
	ledger := filepath.Join(d.Root, "ledger")
	gate := filepath.Join(d.Root, "gate")
	script := fmt.Sprintf("echo ran >> %s; while [ ! -e %s ]; do sleep 0.02; done; echo the answer", ledger, gate)
	var wg sync.WaitGroup
	var cached atomic.Int64
	for range 50 {
		wg.Go(func() {
			a := ask(t, d.Socket, M{"tool": "ledger", "args": []string{"-c", script}, "cwd": d.Root, "idempotency_key": "k"})
			if a.ExitCode != 0 || a.Stdout != "the answer\n" {
				t.Errorf("%s", a.raw)
			}
			if strings.Contains(string(a.raw), `"from_cache":true`) {
				cached.Add(1)
			}
		})
	}
	// All wait before the one may end.
	deadline := time.Now().Add(60 * time.Second)
	for !strings.Contains(metrics(t, d), `toold_idempotency_events_total{event="waited",tool="ledger"} 49`) {
		if time.Now().After(deadline) {
			t.Error("49 callers do not wait after a minute")
			break
		}
		runtime.Gosched()
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := lines(t, ledger); n != 1 || cached.Load() != 49 {
		t.Errorf("ran %d times, %d answers from the cache", n, cached.Load())
	}
	if text := metrics(t, d); !strings.Contains(text, `idempotency_cache_hits_total{tool="ledger"} 49`) {
		t.Error("49 hits are not counted")
	}
}

// The spans of a call stand under its caller's trace, and what the tool starts
// and asks stands under them.
func TestTrace(t *testing.T) {
	var spans []*tracepb.Span // guarded by mu
	var mu sync.Mutex
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var sent collectorpb.ExportTraceServiceRequest
		if err := errors.Join(err, proto.Unmarshal(b, &sent)); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, r := range sent.ResourceSpans {
			for _, s := range r.ScopeSpans {
				spans = append(spans, s.Spans...)
			}
		}
	}))
	defer collector.Close()
	d := hosttest.Start(t, config.Config{Traces: collector.URL + "/v1/traces"})
	d.Tool(t, "env", M{"binary": "/usr/bin/env"}, nil)
	var header string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { header = r.Header.Get("Traceparent") }))
	defer srv.Close()
	d.Tool(t, "api", M{"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{strings.TrimPrefix(srv.URL, "http://")}}}},
		map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	a := ask(t, d.Socket, M{"tool": "env", "cwd": d.Root, "trace": "00-" + trace + "-" + parent + "-01"})
	ask(t, d.Socket, M{"tool": "api", "args": []string{"http", srv.URL}, "cwd": d.Root, "trace": "00-" + trace + "-" + parent + "-01"})
	d.Stop(t) // which sends what was not sent
	mu.Lock()
	defer mu.Unlock()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	for i, passed := range []string{a.Stdout, header} {
		s := spans[i]
		if s.Name != "tool_execution" || hex.EncodeToString(s.ParentSpanId) != parent || hex.EncodeToString(s.TraceId) != trace {
			t.Errorf("span %+v", s)
		}
		if !strings.Contains(passed, trace+"-"+hex.EncodeToString(s.SpanId)) {
			t.Errorf("passed on: %q, the span is %x", passed, s.SpanId)
		}
	}
	// Without a place to send spans to, the caller's trace is passed on as it
	// came.
	plain := hosttest.Start(t, config.Config{})
	plain.Tool(t, "env", M{"binary": "/usr/bin/env"}, nil)
	if a := ask(t, plain.Socket, M{"tool": "env", "cwd": plain.Root, "trace": "00-" + trace + "-" + parent + "-01"}); !strings.Contains(a.Stdout, "TRACEPARENT=00-"+trace+"-"+parent+"-01\n") {
		t.Errorf("%s", a.raw)
	}
}

// What all calls of a tool may retry together is a setting, and an answer says
// what it kept the call from.
func TestRetryBudget(t *testing.T) {
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer down.Close()
	d := hosttest.Start(t, config.Config{Reliability: "all"})
	tool := func(name string, retry M) {
		d.Tool(t, name, M{
			"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{strings.TrimPrefix(down.URL, "http://")}}},
			"reliability":  M{"retry": retry, "breaker": M{"failures": 1000}},
		}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	}
	tool("narrow", M{"max": 3, "initial_ms": 1, "cap_ms": 1, "budget": M{"share": 0.01, "burst": 2}})
	tool("usual", M{"max": 3, "initial_ms": 1, "cap_ms": 1})
	tool("none", M{"max": 0})
	for _, tt := range []struct {
		tool          string
		attempts, cut []int // of the calls, in order
	}{
		{"narrow", []int{3, 1, 1}, []int{1, 3, 3}},
		{"usual", []int{4, 4, 4, 2, 1}, []int{0, 0, 0, 2, 3}}, // ten, and what four calls earn
		{"none", []int{0}, []int{0}},
	} {
		for i := range tt.attempts {
			a := ask(t, d.Socket, M{"tool": tt.tool, "args": []string{"must", down.URL}})
			var usage struct{ Usage wire.Usage }
			if err := json.Unmarshal(a.raw, &usage); err != nil || a.Code != "TOOL_FAILED" {
				t.Fatalf("%s: %v: %s", tt.tool, err, a.raw)
			}
			if u := usage.Usage; u.Attempts != tt.attempts[i] || u.RetriesCut != tt.cut[i] {
				t.Errorf("%s, call %d: %d attempts, %d cut; want %d and %d", tt.tool, i, u.Attempts, u.RetriesCut, tt.attempts[i], tt.cut[i])
			}
		}
	}
	if text := metrics(t, d); !strings.Contains(text, `toold_retries_cut_total{tool="narrow"} 7`) || !strings.Contains(text, `toold_retries_cut_total{tool="usual"} 5`) {
		t.Errorf("the metrics count otherwise:\n%s", text)
	}
}

// A breaker is set by either of its names, and by no two values.
func TestNamesOfTheBreaker(t *testing.T) {
	d := hosttest.Start(t, config.Config{Reliability: "all"})
	tool := func(name string, breaker M) {
		d.Tool(t, name, M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/bin/sh"}}, "reliability": M{"retriable_exits": []int{9}, "retry": M{"max": 0}, "breaker": breaker}}, nil)
	}
	call := func(name string) *answer {
		return ask(t, d.Socket, M{"tool": name, "args": []string{"-c", "exit 9"}})
	}
	tool("other", M{"failure_threshold": 2, "reset_timeout_ms": 3_600_000, "half_open_concurrency": 1})
	tool("both", M{"failure_threshold": 2, "failures": 2, "reset_ms": 3_600_000, "reset_timeout_ms": 3_600_000})
	for _, name := range []string{"other", "both"} {
		for i, want := range []string{"TOOL_FAILED", "TOOL_FAILED", "CIRCUIT_OPEN"} {
			if a := call(name); a.Code != want && !(i < 2 && a.ExitCode == 9) {
				t.Errorf("%s, call %d: %s, want %s", name, i, a.raw, want)
			}
		}
	}
	for name, tt := range map[string]struct {
		breaker M
		want    string
	}{
		"failures": {M{"failures": 3, "failure_threshold": 2}, "has failures 3 and failure_threshold 2, which are the same setting; keep one"},
		"default":  {M{"failures": 5, "failure_threshold": 2}, "has failures 5 and failure_threshold 2"},
		"reset":    {M{"reset_ms": 3, "reset_timeout_ms": 2}, "has reset_ms 3 and reset_timeout_ms 2"},
		"trials":   {M{"half_open_concurrency": 2}, "has half_open_concurrency 2; a breaker lets one call at a time"},
		"misspelt": {M{"failure_treshold": 2}, `is not a known name; did you mean \"failure_threshold\"?`},
	} {
		tool(name, tt.breaker)
		if a := call(name); a.Code != "TOOL_BROKEN" || !strings.Contains(string(a.raw), tt.want) || !strings.Contains(string(a.raw), "tool.json:1:") {
			t.Errorf("%s: %s, want %s", name, a.raw, tt.want)
		}
	}
}

// The traceId of an envelope goes where its trace would: as the id of the trace
// where it is one, else by itself. What is too long or no plain text goes nowhere.
func TestTraceIDOfTheMetadata(t *testing.T) {
	seen := make(chan http.Header, 1) // the last request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { seen <- r.Header }))
	defer srv.Close()
	spans := make(chan *tracepb.Span, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		var sent collectorpb.ExportTraceServiceRequest
		if err := errors.Join(err, proto.Unmarshal(b, &sent)); err != nil {
			t.Error(err)
		}
		for _, r := range sent.ResourceSpans {
			for _, s := range r.ScopeSpans {
				for _, span := range s.Spans {
					spans <- span
				}
			}
		}
	}))
	defer collector.Close()
	d := hosttest.Start(t, config.Config{Traces: collector.URL + "/v1/traces"})
	d.Tool(t, "env", M{"binary": "/usr/bin/env"}, nil)
	d.Tool(t, "api", M{"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{strings.TrimPrefix(srv.URL, "http://")}}}},
		map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	call := func(tool string, args []string, metadata, more M) M {
		q := M{"toolId": tool, "executionId": newExecution(), "payload": M{"args": args}, "metadata": metadata}
		maps.Copy(q, more)
		return q
	}
	const id = "0AF7651916cd43dd8448eb211c80319c"
	const parent = "00-1111111111111111111111111111111a-b7ad6b7169203331-01"
	for _, tt := range []struct {
		name, id string
		more     M
		trace    string // the id of the trace
		passed   string // what X-Trace-Id and TOOLD_TRACE_ID are
	}{
		{"an id of W3C", id, nil, strings.ToLower(id), ""},
		{"another id", "build/71", nil, "", "build/71"},
		{"beside a trace", "build/72", M{"trace": parent}, parent[3:35], "build/72"},
		{"zeros are no id of W3C", strings.Repeat("0", 32), nil, "", strings.Repeat("0", 32)},
		{"too long", strings.Repeat("x", 129), nil, "", ""},
		{"a line break", "a\r\nX-Evil: 1", nil, "", ""},
		{"no ASCII", "é", nil, "", ""},
	} {
		a := ask(t, d.Socket, call("env", []string{}, M{"traceId": tt.id}, tt.more))
		var data struct{ Stdout string }
		json.Unmarshal(a.Data, &data)
		env := map[string]string{}
		for line := range strings.Lines(data.Stdout) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			env[name] = value
		}
		if env["TOOLD_TRACE_ID"] != tt.passed || !strings.HasPrefix(env["TRACEPARENT"], "00-"+tt.trace) {
			t.Errorf("%s: a binary is given %s", tt.name, data.Stdout)
		}
		ask(t, d.Socket, call("api", []string{"http", srv.URL}, M{"traceId": tt.id}, tt.more))
		var h http.Header
		select {
		case h = <-seen:
		default: // it was not sent
		}
		if h.Get("X-Trace-Id") != tt.passed || !strings.HasPrefix(h.Get("Traceparent"), "00-"+tt.trace) || h.Get("X-Evil") != "" {
			t.Errorf("%s: a server is sent %v", tt.name, h)
		}
	}
	// A turn belongs to the trace of its prompt.
	a := ask(t, d.Socket, M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"text": "env"}, "metadata": M{"traceId": id}})
	if !strings.Contains(string(a.Data), "TRACEPARENT=00-"+strings.ToLower(id)) {
		t.Errorf("a turn: %s", a.raw)
	}
	a = ask(t, d.Socket, M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"text": "env"}, "metadata": M{"traceId": "build/73"}})
	if !strings.Contains(string(a.Data), "TOOLD_TRACE_ID=build/73") {
		t.Errorf("a turn: %s", a.raw)
	}
	d.Stop(t)
	close(spans)
	attributes := map[string]int{}
	for s := range spans {
		for _, a := range s.Attributes {
			if a.Key == "caller.trace_id" {
				attributes[a.Value.GetStringValue()]++
			}
		}
	}
	if want := (map[string]int{"build/71": 2, "build/72": 2, strings.Repeat("0", 32): 2, "build/73": 1}); !maps.Equal(attributes, want) {
		t.Errorf("spans have %v, want %v", attributes, want)
	}
}

// A mode is switched by a reload, and a call that holds a record then
// completes it.
func TestReloadStrandsNoRecord(t *testing.T) {
	d := reliableDaemon(t, config.Config{})
	gate, up := filepath.Join(d.Root, "gate"), filepath.Join(d.Root, "up")
	script := fmt.Sprintf("touch %s; while [ ! -e %s ]; do sleep 0.02; done; echo once", up, gate)
	call := M{"tool": "ledger", "args": []string{"-c", script}, "cwd": d.Root, "idempotency_key": "k"}
	done := make(chan *answer, 1)
	go func() { done <- ask(t, d.Socket, call) }()
	deadline := time.Now().Add(30 * time.Second)
	for _, err := os.Stat(up); err != nil; _, err = os.Stat(up) {
		if time.Now().After(deadline) {
			t.Fatal("it does not start")
		}
		runtime.Gosched()
	}
	mode := func(m string) {
		next := d.Config
		next.Reliability = m
		if err := d.Reload(next, nil); err != nil {
			t.Fatal(err)
		}
	}
	mode("off")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.Stdout != "once\n" {
		t.Errorf("%s", a.raw)
	}
	records, err := client.NewAdmin(d.Admin).Records(t.Context(), "ledger", "k", 0)
	if err != nil || len(records) != 1 || records[0].Status != "COMPLETED" {
		t.Errorf("%+v, %v", records, err)
	}
	if a := ask(t, d.Socket, call); strings.Contains(string(a.raw), "from_cache") {
		t.Errorf("answered from the record when it is off: %s", a.raw)
	}
	mode("all")
	if a := ask(t, d.Socket, call); !strings.Contains(string(a.raw), `"from_cache":true`) {
		t.Errorf("not answered from the record when it is on again: %s", a.raw)
	}
}

// Where the store does not answer, what changes something is refused before it
// runs, and what changes nothing runs.
func TestStoreAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // nobody listens there
	d := reliableDaemon(t, config.Config{Store: "redis://" + l.Addr().String() + "/0"})
	d.Tool(t, "look", M{"binary": "/bin/echo"}, nil)
	ledger := filepath.Join(d.Root, "ledger")
	a := ask(t, d.Socket, M{"tool": "ledger", "args": []string{"-c", "echo ran >> " + ledger}, "cwd": d.Root, "idempotency_key": "k"})
	if a.Code != "STORE_UNAVAILABLE" || a.ExitCode != 75 || !a.Retriable || lines(t, ledger) != 0 {
		t.Errorf("mutating: %s; ran %d times", a.raw, lines(t, ledger))
	}
	if a := ask(t, d.Socket, M{"tool": "look", "args": []string{"yes"}, "cwd": d.Root, "idempotency_key": "k"}); a.Stdout != "yes\n" {
		t.Errorf("reading: %s", a.raw)
	}
	s, err := client.NewAdmin(d.Admin).Reliability(t.Context())
	if err != nil || s.StoreError == "" || s.Store != "redis" || strings.Contains(s.Store, "127.0.0.1") {
		t.Errorf("%+v, %v", s, err)
	}
	if text := metrics(t, d); !strings.Contains(text, `toold_store_errors_total{operation="claim"}`) {
		t.Error("the failure of the store is not counted")
	}
}

// When the one that runs is killed, those that wait for it are told at once,
// and not when their own time is over.
func TestFiftyCallersAndTheOwnerKilled(t *testing.T) {
	d := reliableDaemon(t, config.Config{ConfineMost: "seccomp"}) // whose processes have the numbers that they say
	pidFile := filepath.Join(d.Root, "pid")
	script := fmt.Sprintf("echo $$ > %s.new && mv %s.new %s; exec sleep 250", pidFile, pidFile, pidFile)
	var wg sync.WaitGroup
	var unknown, killed atomic.Int64
	for range 50 {
		wg.Go(func() {
			switch a := ask(t, d.Socket, M{"tool": "ledger", "args": []string{"-c", script}, "cwd": d.Root, "idempotency_key": "k"}); {
			case a.Code == "OUTCOME_UNKNOWN":
				unknown.Add(1)
			case a.ExitCode == 137:
				killed.Add(1)
			default:
				t.Errorf("%s", a.raw)
			}
		})
	}
	deadline := time.Now().Add(60 * time.Second)
	for !strings.Contains(metrics(t, d), `toold_idempotency_events_total{event="waited",tool="ledger"} 49`) {
		if time.Now().After(deadline) {
			t.Error("49 callers do not wait after a minute")
			break
		}
		runtime.Gosched()
	}
	var pid int
	for time.Now().Before(deadline) && pid == 0 {
		if b, err := os.ReadFile(pidFile); err == nil {
			fmt.Sscan(string(b), &pid)
		}
	}
	if pid < 2 {
		t.Fatal("the tool does not say its process id")
	}
	start := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	wg.Wait()
	took := time.Since(start)
	t.Logf("all 50 were told after %v", took)
	if unknown.Load() != 49 || killed.Load() != 1 || took > 10*time.Second {
		t.Errorf("%d were told that nobody knows and %d that it was killed, after %v", unknown.Load(), killed.Load(), took)
	}
}

// BenchmarkHit is a call that is answered from its record, by the whole way
// over the socket, beside the same call without the layer and without a key.
func BenchmarkHit(b *testing.B) {
	for _, store := range []string{"memory", "file"} {
		d := hosttest.Start(b, config.Config{Reliability: "all", Store: store})
		d.Tool(b, "keyed", granted, map[string]string{"handler.wasm": hosttest.Guest(b, handlerPkg)})
		off := M{"reliability": M{"mode": "off"}}
		for k, v := range granted {
			off[k] = v
		}
		d.Tool(b, "plain", off, map[string]string{"handler.wasm": hosttest.Guest(b, handlerPkg)})
		c, err := client.Dial(b.Context(), d.Socket)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		run := func(tool, key string) time.Duration {
			start := time.Now()
			res, err := c.Call(b.Context(), &wire.Call{Tool: tool, Args: []string{"calls"}, Cwd: d.Root, IdempotencyKey: key})
			if err != nil || res.Err != nil {
				b.Fatalf("%+v, %v", res, err)
			}
			return time.Since(start)
		}
		run("keyed", "k")
		run("keyed", "")
		run("plain", "")
		b.Run(store, func(b *testing.B) {
			var hit, layer, without time.Duration
			for b.Loop() { // in turns, so that all meet the same machine
				hit += run("keyed", "k")
				layer += run("keyed", "")
				without += run("plain", "")
			}
			b.ReportMetric(float64(hit)/float64(without), "hit/without")
			b.ReportMetric(float64(layer)/float64(without), "layer/without")
			b.ReportMetric(float64(without.Microseconds())/float64(b.N), "us-without")
		})
	}
}

// What could not be started at all leaves no record, whatever its class.
func TestWhatCannotStartLeavesNoRecord(t *testing.T) {
	d := reliableDaemon(t, config.Config{})
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.Tool(t, "unstartable", M{"binary": script, "mutating": true}, nil)
	for range 2 {
		if a := ask(t, d.Socket, M{"tool": "unstartable", "cwd": d.Root, "idempotency_key": "k"}); a.Code != "TOOL_NOT_INSTALLED" {
			t.Errorf("%s", a.raw)
		}
	}
	records, err := client.NewAdmin(d.Admin).Records(t.Context(), "unstartable", "", 0)
	if err != nil || len(records) != 0 {
		t.Errorf("%+v, %v", records, err)
	}
}

// The policy's classify export says which exits are failures: those are tried
// again, and count.
func TestClassify(t *testing.T) {
	d := reliableDaemon(t, config.Config{})
	d.Tool(t, "classified", M{
		"binary": "/bin/sh", "capabilities": M{"exec": []string{"/usr/bin", "/bin"}},
		"reliability": M{"retry": M{"max": 2, "initial_ms": 1}, "breaker": M{"failures": 2}},
	}, map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	run := func(exit int) *answer {
		return ask(t, d.Socket, M{"tool": "classified", "args": []string{"-c", fmt.Sprintf("echo x >> ledger; echo said-%d >&2; exit %d", exit, exit)}, "cwd": d.Root})
	}
	ledger := filepath.Join(d.Root, "ledger")
	for _, tt := range []struct {
		exit, runs int
		retriable  bool
	}{{3, 1, false}, {91, 1, false}, {0, 1, false}, {90, 3, true}} {
		before := lines(t, ledger)
		if a := run(tt.exit); a.ExitCode != tt.exit || a.Retriable != tt.retriable || lines(t, ledger)-before != tt.runs {
			t.Errorf("exit %d ran %d times: %s", tt.exit, lines(t, ledger)-before, a.raw)
		}
	}
	run(90)
	if a := run(0); a.Code != "CIRCUIT_OPEN" {
		t.Errorf("after two failures: %s", a.raw)
	}
}

// Spans reach a collector over HTTP, at the latest when the daemon ends.
func TestSpansReachACollector(t *testing.T) {
	got := make(chan string, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- r.URL.Path + " " + string(b)
	}))
	defer srv.Close()
	d := hosttest.Start(t, config.Config{Traces: srv.URL + "/v1/traces"})
	d.Tool(t, "env", M{"binary": "/usr/bin/env"}, nil)
	ask(t, d.Socket, M{"tool": "env", "cwd": d.Root})
	d.Stop(t)
	select {
	case b := <-got:
		if !strings.HasPrefix(b, "/v1/traces ") || !strings.Contains(b, "tool_execution") {
			t.Errorf("the collector got %q", b)
		}
	default:
		t.Error("the collector got nothing")
	}
}

// A record is of the request as the caller sent it: a policy that is swapped
// between two equal calls, and writes other arguments, variables and input than
// the one before it, changes nothing for the second.
func TestSameRequestUnderAnotherPolicy(t *testing.T) {
	policy, err := os.ReadFile(hosttest.Guest(t, policyPkg))
	if err != nil {
		t.Fatal(err)
	}
	d := reliableDaemon(t, config.Config{})
	module := filepath.Join(t.TempDir(), "restricted.wasm")
	loaded := ""
	drop := func(n int) {
		t.Helper()
		if err := os.WriteFile(module, stamp(t, policy, n), 0o644); err != nil {
			t.Fatal(err)
		}
		d.Tool(t, "written", M{
			"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}, "env": []string{"SENT"}},
			"reliability": M{"auto_key": true},
		}, map[string]string{"restricted.wasm": module})
		for deadline := time.Now().Add(60 * time.Second); ; {
			tool, err := client.NewAdmin(d.Config.Admin).Tool(t.Context(), "written")
			if err == nil && tool.State == adminapi.ToolOK && tool.Version != loaded {
				loaded = tool.Version
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the tool does not load: %+v, %v", tool, err)
			}
			runtime.Gosched()
		}
	}
	call := func(key, ledger string) *answer {
		req := M{"tool": "written", "cwd": d.Root, "env": M{"SENT": "yes"}, "stdin": "sent",
			"args": []string{"policy-writes", "-c", `echo "$SENT $POLICY_VERSION $0 $(cat)" | tee -a ` + ledger}}
		if key != "" {
			req["idempotency_key"] = key
		}
		return ask(t, d.Socket, req)
	}
	for i, key := range []string{"k", ""} {
		ledger := fmt.Sprintf("ledger-%d", i)
		drop(10*i + 1)
		first := call(key, ledger)
		drop(10*i + 2)
		second := call(key, ledger)
		if first.ExitCode != 0 || first.Stdout == "" || second.Stdout != first.Stdout || second.Code != "" {
			t.Errorf("key %q: %s, then %s", key, first.raw, second.raw)
		}
		if n := lines(t, filepath.Join(d.Root, ledger)); n != 1 {
			t.Errorf("key %q: it ran %d times", key, n)
		}
	}
}
