package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// TestReconcileVerdicts is the table of verdicts.
func TestReconcileVerdicts(t *testing.T) {
	p := testPolicy(t, map[string]string{"host": "github.com"})
	create := call("pr", "create", "-R", "o/r", "--head", "b", "--base", "main", "--title", "T", "--body", "x")
	before := `[{"number":1,"title":"T","url":"u1","headRefName":"b","baseRefName":"main","state":"CLOSED"}]`
	one := func(n int, title, base string) string {
		return fmt.Sprintf(`{"number":%d,"title":%q,"url":"u%d","headRefName":"b","baseRefName":%q,"state":"OPEN"}`, n, title, n, base)
	}
	list := func(items ...string) string {
		return "[" + strings.Join(append(items, before[1:len(before)-1]), ",") + "]"
	}
	facts := func(c *abi.Call, stdout string) *abi.Reconciliation {
		a, err := p.reconcile(&abi.Reconcile{Call: *c, Before: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Run) == 0 {
			return a
		}
		if a, err = p.reconcile(&abi.Reconcile{Call: *c, Before: true, Ran: []abi.ReconcileRan{{Args: a.Run[0], Stdout: stdout}}}); err != nil {
			t.Fatal(err)
		}
		return a
	}
	f := facts(create, before).Facts
	if f == nil {
		t.Fatal("no facts")
	}
	const late = 3 * 60_000
	for _, tt := range []struct {
		name, stdout string
		exit         int
		since        int64
		want         string
	}{
		{"a new one", list(one(2, "T", "main")), 0, 0, abi.VerdictDone},
		{"none, long after", before, 0, late, abi.VerdictNotDone},
		{"none, too early", before, 0, 1000, abi.VerdictUnknown},
		{"two new ones", list(one(2, "T", "main"), one(3, "T", "main")), 0, late, abi.VerdictUnknown},
		{"another title", list(one(2, "other", "main")), 0, late, abi.VerdictUnknown},
		{"another base", list(one(2, "T", "next")), 0, late, abi.VerdictUnknown},
		{"GitHub does not answer", "", 1, late, abi.VerdictUnknown},
		{"no list", "x", 0, late, abi.VerdictUnknown},
		{"as many as are asked for", "[" + strings.Repeat(one(1, "T", "main")+",", maxPulls-1) + one(1, "T", "main") + "]", 0, late, abi.VerdictUnknown},
	} {
		a, err := p.reconcile(&abi.Reconcile{Call: *create, Gone: true, Facts: f, EndedMS: 1_000_000, NowMS: 1_000_000 + tt.since, Ran: []abi.ReconcileRan{{Stdout: tt.stdout, ExitCode: tt.exit}}})
		if err != nil || a.Verdict != tt.want {
			t.Errorf("%s: %+v, %v, want %s", tt.name, a, err, tt.want)
		}
	}
	for _, c := range []*abi.Call{call("pr", "comment", "1", "-R", "o/r", "--body", "x"), call("pr", "create", "-R", "o/r", "--head", "b", "--title", "T", "--body", "x", "--label", "l"), call("pr", "list", "-R", "o/r")} {
		if a := facts(c, before); a.Facts != nil || len(a.Run) > 0 {
			t.Errorf("%q: %+v", c.Args, a)
		}
	}
	if a, err := p.reconcile(&abi.Reconcile{Call: *create}); err != nil || a.Verdict != abi.VerdictUnknown {
		t.Errorf("without facts: %+v, %v", a, err)
	}
}

// TestPullResolves ends gh while GitHub has opened the pull request and has not yet
// said so: its key then answers with that pull request, and none is opened twice.
func TestPullResolves(t *testing.T) {
	p := newPlace(t)
	def := p.resolvable(t)
	d := p.Daemon(def)
	var opened atomic.Int32
	created := make(chan struct{}, 1)
	p.hub.site.Answer(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(b))
		w.Header().Set("X-Oauth-Scopes", "repo, read:org, workflow")
		switch {
		case bytes.Contains(b, []byte("createPullRequest")):
			opened.Add(1)
			created <- struct{}{}
			<-r.Context().Done() // it never answers
		case bytes.Contains(b, []byte("PullRequestList")):
			nodes := ""
			for n := range opened.Load() {
				if n > 0 {
					nodes += ","
				}
				nodes += fmt.Sprintf(`{"number":%d,"title":"T%d","state":"OPEN","url":"https://github.com/o/r/pull/%d","headRefName":"b","baseRefName":"main"}`, n+1, n+1, n+1)
			}
			fmt.Fprintf(w, `{"data":{"repository":{"pullRequests":{"nodes":[%s],"totalCount":%d,"pageInfo":{}}}}}`, nodes, opened.Load())
		default:
			answer(w, r)
		}
	})
	const total = 4
	for n := 1; n <= total; n++ {
		q := func() *wire.Call {
			return &wire.Call{Tool: "gh", Args: []string{"pr", "create", "-R", "o/r", "--head", "b", "--base", "main", "--title", fmt.Sprint("T", n), "--body", "x"}, Cwd: p.Cwd, IdempotencyKey: fmt.Sprint("key", n)}
		}
		signals := make(chan os.Signal, 1)
		go func() {
			<-created
			signals <- syscall.SIGTERM
		}()
		res, err := client.Stream(t.Context(), d.Socket, q(), wire.Local{Stdout: io.Discard, Stderr: io.Discard, Signals: signals})
		if err != nil || res.Err == nil && res.ExitCode == 0 {
			t.Fatalf("it was not cut off: %+v, %v", res, err)
		}
		res, out, errs := d.Stream(t, q(), "")
		if want := fmt.Sprintf("https://github.com/o/r/pull/%d\n", n); res.Err != nil || !res.FromCache || out != want {
			t.Errorf("%d: %+v, %v: %s%s, want %s", n, res, res.Err, out, errs, want)
		}
		if opened.Load() != int32(n) {
			t.Errorf("%d were opened, want %d", opened.Load(), n)
		}
	}
}

// resolvable is the ready tool with its way to the place's GitHub, under the whole
// reliability layer.
func (p *place) resolvable(t *testing.T) map[string]any {
	def := hosttest.ReadyJSON(t, "gh")
	p.Write("token", "gho_"+hosttest.Sesame, 0o600)
	def["binary"] = program(t, p.Program)
	def["secrets"] = map[string]any{"gh-token": map[string]string{"from": "file:" + filepath.Join(p.Dir, "token"), "env": "GH_TOKEN"}}
	def["reliability"] = map[string]any{"mode": "all"}
	env := def["environment"].(map[string]any)
	env["HTTPS_PROXY"], env["SSL_CERT_FILE"] = p.hub.proxy.URL, p.hub.ca
	def["capabilities"].(map[string]any)["network"] = []string{strings.TrimPrefix(p.hub.proxy.URL, "http://")}
	def["capabilities"].(map[string]any)["unread"] = []string{strings.TrimPrefix(p.hub.proxy.URL, "http://")}
	return def
}

// TestPullNotDone kills the daemon when GitHub has been asked to open a pull request
// and has not done so. While GitHub could still do it nobody knows; afterwards the
// call was not done, runs again, and opens one pull request.
func TestPullNotDone(t *testing.T) {
	p := newPlace(t)
	d := hosttest.StartProcess(t, config.Config{Roots: []string{p.Root}, LogLevel: "info"})
	hosttest.WriteTool(t, d.Tools, "gh", p.resolvable(t), map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/gh")})
	var opened, asked atomic.Int32
	arrived := make(chan struct{})
	p.hub.site.Answer(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(b))
		w.Header().Set("X-Oauth-Scopes", "repo, read:org, workflow")
		switch {
		case bytes.Contains(b, []byte("createPullRequest")):
			if asked.Add(1) == 1 {
				close(arrived)
				<-r.Context().Done() // it was cut off, and GitHub forgets it
				return
			}
			opened.Add(1)
			answer(w, r)
		case bytes.Contains(b, []byte("PullRequestList")):
			nodes := ""
			if opened.Load() > 0 {
				nodes = `{"number":1,"title":"T","state":"OPEN","url":"https://github.com/o/r/pull/1","headRefName":"b","baseRefName":"main"}`
			}
			fmt.Fprintf(w, `{"data":{"repository":{"pullRequests":{"nodes":[%s],"totalCount":%d,"pageInfo":{}}}}}`, nodes, opened.Load())
		default:
			answer(w, r)
		}
	})
	create := func() (*wire.Result, string, error) {
		var out strings.Builder
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{
			Tool: "gh", Args: []string{"pr", "create", "-R", "o/r", "--head", "b", "--base", "main", "--title", "T", "--body", "x"}, Cwd: p.Cwd, IdempotencyKey: "key",
		}, wire.Local{Stdout: &out, Stderr: io.Discard})
		return res, out.String(), err
	}
	cut := make(chan error, 1)
	go func() {
		res, out, err := create()
		if err == nil && res.ExitCode == 0 {
			err = fmt.Errorf("it was not cut off: %+v: %s", res, out)
		} else {
			err = nil
		}
		cut <- err
	}()
	select {
	case <-arrived:
	case err := <-cut:
		t.Fatalf("it ended before it asked GitHub: %v", err)
	}
	d.Kill()
	if err := <-cut; err != nil {
		t.Fatal(err)
	}
	d.Start()
	if res, _, err := create(); err != nil || res.Err == nil || res.Err.Code != fault.OutcomeUnknown || asked.Load() != 1 {
		t.Errorf("while GitHub may still work on it: %+v, %v; it was asked %d times", res, err, asked.Load())
	}
	d.Kill()
	d.AgeRecords(serverTime + time.Second)
	d.Start()
	for _, cached := range []bool{false, true} {
		if res, out, err := create(); err != nil || res.Err != nil || res.ExitCode != 0 || res.FromCache != cached || out != "https://github.com/o/r/pull/1\n" {
			t.Errorf("afterwards, to be from the record %v: %+v, %v: %s", cached, res, err, out)
		}
	}
	if opened.Load() != 1 || asked.Load() != 2 {
		t.Errorf("%d were opened, and GitHub was asked %d times", opened.Load(), asked.Load())
	}
	if !strings.Contains(d.Logs(), `"not_done"`) {
		t.Error("the log has no verdict")
	}
}

// pulls are the pull requests of a false GitHub, which opens as many as it is asked to:
// the real one would hide a second one for the same head.
type pulls struct {
	mu    sync.Mutex
	heads []string // guarded by mu; number n is heads[n-1]
}

func (p *pulls) of(head string) (numbers []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, h := range p.heads {
		if h == head {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

func (p *pulls) open(head string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heads = append(p.heads, head)
	return len(p.heads)
}

// TestPullsCutOff cuts gh pr create off in every way, at every point of its request.
// TOOLD_KILLS is how many.
func TestPullsCutOff(t *testing.T) {
	p := newPlace(t)
	hub := &pulls{}
	head := func(n int) string { return fmt.Sprintf("b%d", n) }
	d := hosttest.StartProcess(t, config.Config{Roots: []string{p.Root}, LogLevel: "info"})
	def := p.resolvable(t)
	def["reliability"].(map[string]any)["breaker"] = map[string]any{"failures": 100_000, "window": 1000, "ratio": 1}
	hosttest.WriteTool(t, d.Tools, "gh", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/gh")})
	program := filepath.Base(def["binary"].(string))
	cuts := &hosttest.Cuts{
		Process: d, Total: hosttest.Kills(t, 10), Wave: 10, Patience: serverTime,
		Ways: []string{hosttest.CutConnection, hosttest.CutCaller, hosttest.CutSignal, hosttest.CutProcess, hosttest.CutTime, hosttest.CutDaemon, hosttest.CutDaemon},
		Call: func(n int) *wire.Call {
			return &wire.Call{Tool: "gh", Args: []string{"pr", "create", "-R", "o/r", "--head", head(n), "--base", "main", "--title", "T-" + head(n), "--body", strings.Repeat("x", 200)}, Cwd: p.Cwd, IdempotencyKey: fmt.Sprint("key", n)}
		},
		Want: func(n int) string {
			numbers := hub.of(head(n))
			if len(numbers) == 0 {
				return ""
			}
			return fmt.Sprintf("https://github.com/o/r/pull/%d\n", numbers[0])
		},
		Times: func(n int) int { return len(hub.of(head(n))) },
		Kill: func(n int) {
			err := hosttest.KillProcesses(program, func(line, _ string) bool { return strings.Contains(line, "T-"+head(n)+" ") })
			if err != nil {
				t.Error(err)
			}
		},
	}
	p.hub.site.Answer(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Query     string
			Variables struct {
				HeadBranch string
				Input      struct{ HeadRefName string }
			}
		}
		b, _ := io.ReadAll(r.Body)
		json.Unmarshal(b, &q)
		r.Body = io.NopCloser(bytes.NewReader(b))
		w.Header().Set("X-Oauth-Scopes", "repo, read:org, workflow")
		switch {
		case strings.Contains(q.Query, "createPullRequest"):
			var n int
			if _, err := fmt.Sscanf(q.Variables.Input.HeadRefName, "b%d", &n); err != nil {
				t.Errorf("a pull request of no head: %s", b)
			}
			cuts.Serve(w, r, n, func(body io.Reader) (int, []byte, error) {
				if _, err := io.ReadAll(body); err != nil {
					return 0, nil, err
				}
				return http.StatusOK, fmt.Appendf(nil, `{"data":{"createPullRequest":{"pullRequest":{"id":"P1","url":"https://github.com/o/r/pull/%d"}}}}`, hub.open(head(n))), nil
			})
		case strings.Contains(q.Query, "PullRequestList"):
			var nodes []string
			h := q.Variables.HeadBranch
			for _, k := range hub.of(h) {
				nodes = append(nodes, fmt.Sprintf(`{"number":%d,"title":"T-%s","state":"OPEN","url":"https://github.com/o/r/pull/%d","headRefName":%q,"baseRefName":"main"}`, k, h, k, h))
			}
			fmt.Fprintf(w, `{"data":{"repository":{"pullRequests":{"nodes":[%s],"totalCount":%d,"pageInfo":{}}}}}`, strings.Join(nodes, ","), len(nodes))
		default:
			answer(w, r)
		}
	})
	cuts.Run(t)
}
