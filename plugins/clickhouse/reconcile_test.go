package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
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

// What becomes of an insert on its way.
const (
	passed  = iota
	dropped // the server has answered, and the connection is cut off
	held    // the server has answered, and nothing comes of the answer
	lost    // it does not reach the server
)

// way is the way to a server, on which inserts are cut off.
type way struct {
	port string
	// next is what becomes of the next insert; those after it pass.
	next atomic.Int32
	// arrived has a value for each insert that was held or lost, once nothing more
	// becomes of it.
	arrived chan struct{}
}

func newWay(t *testing.T, c *clickHouse) *way {
	v := &way{arrived: make(chan struct{}, 1000)}
	to, err := url.Parse("http://127.0.0.1:" + c.port)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host, out.RequestURI, out.Body = to.Scheme, to.Host, "", io.NopCloser(bytes.NewReader(body))
		how := int32(passed)
		if r.Method == http.MethodPost && strings.Contains(r.URL.Query().Get("query"), "INSERT") {
			how = v.next.Swap(passed)
		}
		if how == lost {
			v.arrived <- struct{}{}
			<-r.Context().Done()
			return
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
			v.arrived <- struct{}{}
			<-r.Context().Done()
			return
		}
		for name, v := range resp.Header {
			w.Header()[name] = v
		}
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body)
	}))
	t.Cleanup(proxy.Close)
	_, v.port, _ = strings.Cut(strings.TrimPrefix(proxy.URL, "http://"), ":")
	return v
}

// install writes the ready tool, at the end of this way, to a folder.
func (w *way) install(t *testing.T, tools string) {
	def := hosttest.ReadyJSON(t, "clickhouse")
	at := def["config"].(map[string]any)
	at["host"], at["port"] = "127.0.0.1", w.port
	def["capabilities"].(map[string]any)["http"].(map[string]any)["hosts"] = []string{"127.0.0.1:" + w.port}
	def["reliability"] = map[string]any{"breaker": map[string]any{"failures": 100_000, "window": 1000, "ratio": 1}}
	hosttest.WriteTool(t, tools, "clickhouse", def, map[string]string{"handler.wasm": hosttest.Guest(t, "plugins/clickhouse")})
}

// insertOf is the insert of row n, with a key of its own.
func insertOf(n int, token string, timeout time.Duration) *wire.Call {
	payload := fmt.Sprintf(`{"id":%d,"region":"north","amount":2.5,"day":"2024-05-06","at":"2024-05-06T07:08:09Z","u":"61f0c404-5cb3-11e7-907b-a6006ad3dba0","tags":["x"],"e":"a","f":"abc","small":-1}`, n)
	return &wire.Call{Form: wire.Envelope, Tool: "sales_orders", ExecutionID: wire.NewExecutionID(), Payload: []byte(payload), Token: token, IdempotencyKey: fmt.Sprint("key-", n), Timeout: timeout}
}

// TestInsertResolves cuts the connections of inserts into a real server: after the
// server has answered, while the answer is awaited until the call's time is over, and
// after the server has refused the insert. Each key is used again until there is an
// answer, and then each row is there exactly once.
func TestInsertResolves(t *testing.T) {
	c := startClickHouse(t)
	w := newWay(t, c)
	issuer := hosttest.NewIssuer(t)
	d := &desk{issuer: issuer, port: w.port, tools: t.TempDir() + "/tools.d"}
	if err := os.Mkdir(d.tools, 0o755); err != nil {
		t.Fatal(err)
	}
	w.install(t, d.tools)
	d.Daemon = hosttest.Start(t, config.Config{Tools: d.tools, LogLevel: "info", Reliability: "all", Identity: config.IdentityConfig{JWKS: issuer.JWKS}})
	alice := d.token(t, firstUsers[1], nil)
	wantNames(t, "alice", d.names(t, alice), "sales_by_region", "sales_orders")
	ask := func(n int, timeout time.Duration) *wire.Result {
		res, err := client.Call(t.Context(), d.Socket, insertOf(n, alice, timeout))
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	const total = 12
	resolved := 0
	for n := range total {
		how := int32(dropped + n%2)
		w.next.Store(how)
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

// TestInsertNotDone kills the daemon while an insert is on its way: before it comes to
// the server, and after the server has refused it. Once that is certain, the key runs
// again, and the row is there once. What the server had done is not done again.
func TestInsertNotDone(t *testing.T) {
	c := startClickHouse(t)
	w := newWay(t, c)
	issuer := hosttest.NewIssuer(t)
	tools := t.TempDir()
	w.install(t, tools)
	d := hosttest.StartProcess(t, config.Config{Tools: tools, LogLevel: "info", Reliability: "all", Identity: config.IdentityConfig{JWKS: issuer.JWKS}})
	alice := (&desk{issuer: issuer}).token(t, firstUsers[1], nil)
	ask := func(n int) *wire.Result {
		res, err := client.Call(t.Context(), d.Socket, insertOf(n, alice, time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	// cutOff kills the daemon when that has become of the insert.
	cutOff := func(n int, how int32) {
		t.Helper()
		w.next.Store(how)
		ended := make(chan *wire.Result, 1)
		go func() {
			res, _ := client.Call(t.Context(), d.Socket, insertOf(n, alice, time.Minute))
			ended <- res
		}()
		select {
		case <-w.arrived:
		case res := <-ended:
			t.Fatalf("insert %d ended before it was cut off: %+v", n, res)
		}
		d.Kill()
		<-ended
		d.Start()
	}
	// becomes uses the key until the outcome is known.
	becomes := func(n int, cached bool) {
		t.Helper()
		for end := time.Now().Add(40 * time.Second); ; {
			res := ask(n)
			if res.Err != nil && res.Err.Code == fault.OutcomeUnknown && time.Now().Before(end) {
				<-time.After(200 * time.Millisecond) // the server writes its log every half second
				continue
			}
			if res.Err != nil || res.FromCache != cached || string(res.Data) != `{"inserted":1}` {
				t.Errorf("insert %d, to be from the record %v: %+v, %v", n, cached, res, res.Err)
			}
			return
		}
	}
	const before, refused, done = 1, 2, 3
	cutOff(before, lost)
	if res := ask(before); res.Err == nil || res.Err.Code != fault.OutcomeUnknown {
		t.Errorf("while the server may still get it: %+v", res)
	}
	d.Kill()
	d.AgeRecords(serverTime + 3*time.Second)
	d.Start()
	becomes(before, false)
	becomes(before, true)

	c.admin("RENAME TABLE sales.orders TO sales.away") // the server has no such table meanwhile
	cutOff(refused, held)
	c.admin("RENAME TABLE sales.away TO sales.orders")
	becomes(refused, false)
	becomes(refused, true)

	cutOff(done, held)
	becomes(done, true)
	if got := strings.TrimSpace(c.admin("SELECT groupArray(id) FROM (SELECT id FROM sales.orders ORDER BY id) FORMAT TSV")); got != fmt.Sprintf("[%d,%d,%d]", before, refused, done) {
		t.Errorf("the rows are %s", got)
	}
	if n := strings.Count(d.Logs(), `"not_done"`); n != 2 {
		t.Errorf("%d verdicts are not_done", n)
	}
}

// TestInsertsCutOff cuts inserts into a real server off in every way, at every point of
// their requests: what is cut off in a request comes to the server torn. The server's
// own rows are what the answers are held against. TOOLD_KILLS is how many.
func TestInsertsCutOff(t *testing.T) {
	c := startClickHouse(t)
	issuer := hosttest.NewIssuer(t)
	tools := t.TempDir()
	alice := (&desk{issuer: issuer}).token(t, firstUsers[1], nil)
	count := func(condition string) int {
		n, err := strconv.Atoi(strings.TrimSpace(c.admin("SELECT count() FROM sales.orders WHERE " + condition + " FORMAT TSV")))
		if err != nil {
			t.Error(err)
		}
		return n
	}
	cuts := &hosttest.Cuts{
		Total: hosttest.Kills(t, 8), Wave: 10, Patience: serverTime,
		Ways:   []string{hosttest.CutConnection, hosttest.CutCaller, hosttest.CutTime, hosttest.CutDaemon},
		Call:   func(n int) *wire.Call { return insertOf(n, alice, time.Minute) },
		Want:   func(int) string { return insertedData },
		Times:  func(n int) int { return count(fmt.Sprint("id = ", n)) },
		Settle: func() { c.admin("SYSTEM FLUSH LOGS") },
	}
	to, err := url.Parse("http://127.0.0.1:" + c.port)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		length := r.ContentLength
		r.Body = io.NopCloser(bytes.NewReader(all))
		// To the server goes what came, as far as it came, over a connection of its own.
		onward := func(body io.Reader) (int, []byte, error) {
			out := r.Clone(context.WithoutCancel(r.Context()))
			out.URL.Scheme, out.URL.Host, out.RequestURI, out.ContentLength, out.Body, out.Close = to.Scheme, to.Host, "", length, io.NopCloser(body), true
			resp, err := http.DefaultTransport.RoundTrip(out)
			if err != nil {
				return 0, nil, err
			}
			defer resp.Body.Close()
			answer, err := io.ReadAll(resp.Body)
			for name, v := range resp.Header {
				if name != "Transfer-Encoding" && name != "Connection" {
					w.Header()[name] = v
				}
			}
			return resp.StatusCode, answer, err
		}
		if r.Method == http.MethodPost && strings.Contains(r.URL.Query().Get("query"), "INSERT") {
			var row struct{ ID int }
			if err := json.Unmarshal(all, &row); err != nil {
				t.Errorf("an insert of no row: %s", all)
			}
			cuts.Serve(w, r, row.ID, onward)
			return
		}
		status, answer, err := onward(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		w.Write(answer)
	}))
	t.Cleanup(proxy.Close)
	v := &way{}
	_, v.port, _ = strings.Cut(strings.TrimPrefix(proxy.URL, "http://"), ":")
	v.install(t, tools)
	cuts.Process = hosttest.StartProcess(t, config.Config{Tools: tools, LogLevel: "info", Reliability: "all", Identity: config.IdentityConfig{JWKS: issuer.JWKS}})
	if res, err := client.Call(t.Context(), cuts.Socket, insertOf(1_000_000, alice, time.Minute)); err != nil || res.Err != nil {
		t.Fatalf("one that is not cut off: %+v, %v", res, err)
	}
	cuts.Run(t)
}
