package host_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// many is how often a measurement is made: fewer times unless variable says.
func many(t testing.TB, variable string, few int) int {
	t.Helper()
	if v := os.Getenv(variable); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
		return n
	}
	return few
}

func medianOf(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// TestSessionsDoNotWaitForOneAnother compares how long calls take in one session
// while another is left alone and while it is blocked, aborted, closed, or has a
// disk that does not answer. TOOLD_LATENCY is how many calls are timed for each.
func TestSessionsDoNotWaitForOneAnother(t *testing.T) {
	d := sessionDaemon(t, config.Config{Sessions: config.SessionsConfig{Limit: 100000}})
	n := many(t, "TOOLD_LATENCY", 300)
	mine := newSession(t, d.Socket)
	c := talk(t, d.Socket)
	one := func() time.Duration {
		start := time.Now()
		if a := c.ask(M{"tool": "handler", "args": []string{"x"}, "cwd": d.Root, "session": mine}); a.Stdout != "x" {
			t.Fatalf("%s", a.raw)
		}
		return time.Since(start)
	}
	for range 50 {
		one() // warm
	}
	other := talk(t, d.Socket)
	theirs := newSession(t, d.Socket)
	call := func(tool string, args ...string) M {
		return M{"tool": tool, "args": args, "cwd": d.Root, "session": theirs}
	}
	var disk *os.File
	for _, tt := range []struct {
		name  string
		begin func()      // once, before
		each  func(i int) // before each call that is timed
		end   func()      // once, after
	}{
		{"blocked", func() {
			other.send(M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"id": theirs, "text": "cat"}})
		}, nil, func() { session(t, d.Socket, "abort", M{"id": theirs}); other.answer() }},
		{"aborted", nil, func(i int) {
			if i%10 == 0 {
				session(t, d.Socket, "abort", M{"id": theirs})
			}
		}, nil},
		{"closed", nil, func(i int) {
			if i%10 == 0 {
				session(t, d.Socket, "mutate", M{"op": "close", "id": newSession(t, d.Socket)})
			}
		}, nil},
		{"on a disk that does not answer", func() {
			// A pipe that is full: writing a record waits until somebody reads.
			path := filepath.Join(d.State, "sessions", theirs+".jsonl")
			session(t, d.Socket, "mutate", M{"op": "suspend", "id": theirs})
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
			var err error
			if disk, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
				t.Fatal(err)
			}
			fill := make([]byte, 1<<16)
			disk.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			disk.Write(fill)
			disk.Write(fill)
			other.send(call("handler", "y"))
			until(t, "it waits for its disk", func() bool {
				return value[int](t, d.Socket, theirs, "session.running.size()") == 1
			})
		}, nil, func() {
			go func() {
				buf := make([]byte, 1<<16)
				for {
					if _, err := disk.Read(buf); err != nil {
						return
					}
				}
			}()
			other.answer()
			disk.Close()
		}},
	} {
		// Alone before and after, so that a machine that changes its speed does so
		// for both.
		var alone []time.Duration
		for range n {
			alone = append(alone, one())
		}
		if tt.begin != nil {
			tt.begin()
		}
		var beside []time.Duration
		for i := range n {
			if tt.each != nil {
				tt.each(i)
			}
			beside = append(beside, one())
		}
		if tt.end != nil {
			tt.end()
		}
		for range n {
			alone = append(alone, one())
		}
		a, b := medianOf(alone), medianOf(beside)
		t.Logf("while the other session is %s: %v at the median, alone %v: ratio %.2f", tt.name, b, a, float64(b)/float64(a))
		if float64(b) > 2*float64(a) { // the machine has other work, too
			t.Errorf("a session that is %s slows another from %v to %v", tt.name, a, b)
		}
	}
}

// TestAbortIsQuick times the end of what is aborted, from the request to abort to
// the answer of what it ended. TOOLD_ABORTS is how often each.
func TestAbortIsQuick(t *testing.T) {
	d := sessionDaemon(t, config.Config{Reliability: "all"})
	arrived := make(chan struct{}, 1)
	hang := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	defer hang.Close()
	d.Tool(t, "flaky", M{"limits": M{"fuel": 1e12}, "capabilities": M{"state": 1000, "http": M{"hosts": []string{"127.0.0.1"}}, "exec": []string{"/usr/bin/sleep"}},
		"timeout": 120, "reliability": M{"breaker": M{"failures": 1000}, "retry": M{"max": 10, "initial_ms": 20000, "cap_ms": 20000}}}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	d.Tool(t, "slow", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, nil)
	id, beside := newSession(t, d.Socket), newSession(t, d.Socket)
	other := talk(t, d.Socket)
	other.send(M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"id": beside, "text": "cat"}})

	for _, tt := range []struct {
		name  string
		req   M
		ready func(execution string)
		code  string // of the call
		kept  string // of the session
	}{
		{"guest loop", M{"tool": "handler", "args": []string{"up-and-loop"}}, nil, "ABORTED", "ABORTED"},
		{"host call", M{"tool": "handler", "args": []string{"http", hang.URL}}, func(string) { <-arrived }, "ABORTED", "ABORTED"},
		{"process tree", M{"tool": "sh", "args": []string{"-c", "echo up; sh -c 'sleep 1000 & sleep 1000' & wait"}}, nil, "ABORTED", "ABORTED"},
		{"process tree that changes something", M{"tool": "slow", "args": []string{"-c", "echo up; sleep 1000"}}, nil, "ABORTED", "OUTCOME_UNKNOWN"},
		{"backoff", M{"tool": "flaky", "args": []string{"fail"}}, func(execution string) {
			until(t, "it waits to try again", func() bool {
				return value[bool](t, d.Socket, id, fmt.Sprintf("session.running.exists(x, x.execution == %q && x.attempts >= 1 && x.fuel > 0)", execution))
			})
		}, "TOOL_FAILED", "TOOL_FAILED"}, // what its last attempt came to
	} {
		var took []time.Duration
		times := many(t, "TOOLD_ABORTS", 5)
		if tt.name == "backoff" {
			times = min(times, 8) // the budget of retries does not last for more
		}
		for range times {
			c, execution := talk(t, d.Socket), newExecution()
			c.send(M{"toolId": tt.req["tool"], "executionId": execution, "session": id, "payload": M{"args": tt.req["args"], "cwd": d.Root}})
			if tt.ready != nil {
				tt.ready(execution)
			} else {
				until(t, "it runs", func() bool { return isRunning(t, d.Socket, id, execution, "up") })
			}
			start := time.Now()
			session(t, d.Socket, "abort", M{"id": id, "execution": execution})
			a := c.answer()
			took = append(took, time.Since(start))
			if !strings.Contains(string(a.raw), `"`+tt.code+`"`) {
				t.Errorf("%s: %s", tt.name, a.raw)
			}
			if kept := value[string](t, d.Socket, id, "session.recent.filter(o, o.execution == '"+execution+"')[0].code"); kept != tt.kept {
				t.Errorf("%s: the session says %s, must say %s", tt.name, kept, tt.kept)
			}
		}
		report(t, tt.name, took)
	}

	// A duplicate that waits for the first call with its key: it alone is ended.
	var took []time.Duration
	for i := range many(t, "TOOLD_ABORTS", 5) {
		first, second, e1, e2 := talk(t, d.Socket), talk(t, d.Socket), newExecution(), newExecution()
		gate := filepath.Join(d.Root, fmt.Sprint("gate", i))
		req := M{"toolId": "slow", "executionId": e1, "idempotencyKey": fmt.Sprint("key", i), "session": id, "payload": M{"args": []string{"-c", "echo up; until test -e " + gate + "; do sleep 0.01; done"}, "cwd": d.Root}}
		first.send(req)
		until(t, "the first runs", func() bool { return isRunning(t, d.Socket, id, e1, "up") })
		req["executionId"] = e2
		second.send(req)
		until(t, "the second waits", func() bool { return isRunning(t, d.Socket, id, e2, "") })
		start := time.Now()
		session(t, d.Socket, "abort", M{"id": id, "execution": e2})
		a := second.answer()
		took = append(took, time.Since(start))
		if !strings.Contains(string(a.raw), `"ABORTED"`) {
			t.Errorf("a duplicate that waits: %s", a.raw)
		}
		if kept := value[string](t, d.Socket, id, "session.recent.filter(o, o.execution == '"+e2+"')[0].code"); kept != "ABORTED" {
			t.Errorf("a duplicate that waits has not begun, and the session says %s", kept)
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if a := first.answer(); a.Status != "success" {
			t.Errorf("the first: %s", a.raw)
		}
	}
	report(t, "waiting duplicate", took)

	if n := value[int](t, d.Socket, beside, "session.running.size()"); n != 1 {
		t.Errorf("in the other session %d calls run, must be 1", n)
	}
}

func report(t *testing.T, name string, took []time.Duration) {
	t.Helper()
	m := medianOf(took)
	t.Logf("%s: ended %v after the abort at the median, %v at the most, of %d", name, m, slices.Max(took), len(took))
	if m > 50*time.Millisecond {
		t.Errorf("%s took %v to end, and 50 ms are the most", name, m)
	}
}

// TestAThousandSessionsSurviveAKill: all are there again, what ran has an unknown
// outcome, and the start waits hardly for them. TOOLD_JOURNALS is how many.
func TestAThousandSessionsSurviveAKill(t *testing.T) {
	n := many(t, "TOOLD_JOURNALS", 1000)
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "toold")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", bin, "./cmd/toold")
	build.Dir = hosttest.ModuleRoot()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range []struct{ path, text string }{
		{"tools.d/sh/tool.json", `{"binary": "/bin/sh", "capabilities": {"exec": ["/usr/bin", "/bin"]}}`},
		{"toold.json", fmt.Sprintf(`{"sessions": {"limit": %d}, "roots": [%q]}`, n+1, dir)},
	} {
		path := filepath.Join(dir, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "tool.sock")
	start := func() (*exec.Cmd, time.Duration) {
		t.Helper()
		cmd := exec.Command(bin, "--config", filepath.Join(dir, "toold.json"), "--tools", filepath.Join(dir, "tools.d"), "--socket", socket, "--state", filepath.Join(dir, "state"))
		cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "ready") {
			t.Fatalf("%q, %v", line, err)
		}
		return cmd, time.Since(began)
	}
	end := func(cmd *exec.Cmd, sig syscall.Signal) {
		t.Helper()
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
	}
	cmd, empty := start()
	c := talk(t, socket)
	ids := make([]string, n)
	for i := range ids {
		a := c.ask(M{"toolId": "session.mutate", "executionId": newExecution(), "payload": M{"op": "create", "params": M{"name": fmt.Sprint("s", i)}}})
		var data struct{ ID string }
		if err := json.Unmarshal(a.Data, &data); err != nil || data.ID == "" {
			t.Fatalf("%s", a.raw)
		}
		ids[i] = data.ID
		if i%10 == 0 {
			c.ask(M{"tool": "sh", "args": []string{"-c", ":"}, "cwd": dir, "session": data.ID})
		}
	}
	job := c.ask(M{"tool": "sh", "args": []string{"-c", "echo up; exec sleep 1000"}, "cwd": dir, "session": ids[0], "background": true})
	until(t, "the job runs", func() bool {
		return value[bool](t, socket, "", "jobs.exists(j, j.state == 'running' && j.last_line == 'up')")
	})
	end(cmd, syscall.SIGKILL)

	cmd, took := start()
	defer end(cmd, syscall.SIGTERM)
	t.Logf("start with %d journals: %v, without: %v", n, took, empty)
	if took > empty+2*time.Second {
		t.Errorf("the start took %v", took)
	}
	found := value[int](t, socket, "", "sessions.filter(s, s.name != '').size()")
	if found != n {
		t.Errorf("%d sessions are there, must be %d", found, n)
	}
	calls := 0
	for _, n := range value[[]int](t, socket, "", "sessions.map(s, s.telemetry.calls)") {
		calls += n
	}
	if calls != (n+9)/10+1 {
		t.Errorf("they count %d calls, must be %d", calls, (n+9)/10+1)
	}
	if code := value[string](t, socket, "", "jobs.filter(j, j.id == '"+job.ID+"')[0].code"); code != "OUTCOME_UNKNOWN" {
		t.Errorf("the job that ran is %s", code)
	}
}
