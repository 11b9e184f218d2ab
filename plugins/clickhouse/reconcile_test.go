package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// inserts is how many inserts TestInsertResolves cuts off; TOOLD_KILLS is how many.
func inserts(t *testing.T) int {
	n := 12
	if s := os.Getenv("TOOLD_KILLS"); s != "" {
		if _, err := fmt.Sscan(s, &n); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestInsertResolves cuts the connections of inserts into a real server: after the
// server has answered, while the answer is awaited until the call's time is over, and
// after the server has refused the insert. Each key is used again until there is an
// answer, and then each row is there exactly once.
func TestInsertResolves(t *testing.T) {
	c := startClickHouse(t)
	var cut atomic.Int32 // what becomes of the next insert
	const passed, dropped, held = 0, 1, 2
	to, _ := url.Parse("http://127.0.0.1:" + c.port)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host, out.RequestURI = to.Scheme, to.Host, ""
		how := int32(passed)
		if r.Method == http.MethodPost && strings.Contains(r.URL.Query().Get("query"), "INSERT") {
			how = cut.Swap(passed)
		}
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		switch how {
		case dropped:
			io.Copy(io.Discard, resp.Body)
			panic(http.ErrAbortHandler)
		case held:
			io.Copy(io.Discard, resp.Body)
			<-r.Context().Done()
			return
		}
		for name, v := range resp.Header {
			w.Header()[name] = v
		}
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body)
	}))
	defer proxy.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(proxy.URL, "http://"), ":")
	issuer := hosttest.NewIssuer(t)
	d := &desk{issuer: issuer, port: port, tools: t.TempDir() + "/tools.d"}
	if err := os.Mkdir(d.tools, 0o755); err != nil {
		t.Fatal(err)
	}
	def := hosttest.ReadyJSON(t, "clickhouse")
	at := def["config"].(map[string]any)
	at["host"], at["port"] = "127.0.0.1", port
	def["capabilities"].(map[string]any)["http"].(map[string]any)["hosts"] = []string{"127.0.0.1:" + port}
	def["reliability"] = map[string]any{"breaker": map[string]any{"failures": 100_000, "window": 1000, "ratio": 1}}
	hosttest.WriteTool(t, d.tools, "clickhouse", def, map[string]string{"handler.wasm": hosttest.Guest(t, "plugins/clickhouse")})
	d.Daemon = hosttest.Start(t, config.Config{Tools: d.tools, LogLevel: "info", Reliability: "all", Identity: config.IdentityConfig{JWKS: issuer.JWKS}})
	alice := d.token(t, firstUsers[1], nil)
	wantNames(t, "alice", d.names(t, alice), "sales_by_region", "sales_orders")
	ask := func(n int, timeout time.Duration) *wire.Result {
		payload := fmt.Sprintf(`{"id":%d,"region":"north","amount":2.5,"day":"2024-05-06","at":"2024-05-06T07:08:09Z","u":"61f0c404-5cb3-11e7-907b-a6006ad3dba0","tags":["x"],"e":"a","f":"abc","small":-1}`, n)
		res, err := client.Call(t.Context(), d.Socket, &wire.Call{Form: wire.Envelope, Tool: "sales_orders", ExecutionID: wire.NewExecutionID(), Payload: []byte(payload), Token: alice, IdempotencyKey: fmt.Sprint("key-", n), Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	total, resolved := inserts(t), 0
	for n := range total {
		how := int32(1 + n%2)
		cut.Store(how)
		timeout := time.Minute
		if how == held {
			timeout = 3 * time.Second
		}
		if res := ask(n, timeout); res.Err == nil {
			t.Fatalf("insert %d was not cut off: %+v", n, res)
		}
		for end := time.Now().Add(40 * time.Second); ; {
			res := ask(n, time.Minute)
			if res.Err == nil {
				if !res.FromCache || string(res.Data) != `{"inserted":1}` {
					t.Errorf("insert %d ran again, and its row was there: %+v", n, res)
				}
				resolved++
				break
			}
			if res.Err.Code != fault.OutcomeUnknown {
				t.Fatalf("insert %d: %v", n, res.Err)
			}
			if time.Now().After(end) {
				t.Logf("insert %d stays unknown", n)
				break
			}
			<-time.After(200 * time.Millisecond) // the server writes its log every half second
		}
	}
	if got := strings.TrimSpace(c.admin("SELECT count(), uniq(id) FROM sales.orders FORMAT CSV")); got != fmt.Sprintf("%d,%d", total, total) {
		t.Errorf("rows and keys: %s, want %d of each", got, total)
	}
	t.Logf("%d of %d inserts that were cut off resolved themselves", resolved, total)
	if 20*resolved < 19*total {
		t.Errorf("%d of %d stayed unknown", total-resolved, total)
		for line := range strings.Lines(d.Logs()) {
			if strings.Contains(line, "looked into") {
				t.Log(line)
			}
		}
	}
}
