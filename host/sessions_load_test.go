package host_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// disturbances are what one session may be in while another calls.
var disturbances = []struct {
	name  string
	begin func(l *load)        // once, before
	each  func(l *load, i int) // before each call of the other session
	end   func(l *load)        // once, after
}{
	{"blocked", func(l *load) {
		l.theirCalls.send(M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"id": l.theirs, "text": "cat"}})
		l.untilTheirsRuns("its turn waits for input")
	}, nil, func(l *load) {
		session(l.t, l.d.Socket, "abort", M{"id": l.theirs})
		l.theirCalls.answer()
	}},
	{"aborted", nil, func(l *load, i int) {
		if i%10 == 0 {
			session(l.t, l.d.Socket, "abort", M{"id": l.theirs})
		}
	}, nil},
	{"closed", nil, func(l *load, i int) {
		if i%10 == 0 {
			session(l.t, l.d.Socket, "mutate", M{"op": "close", "id": newSession(l.t, l.d.Socket)})
		}
	}, nil},
	{"on a disk that does not answer", func(l *load) {
		l.stopDisk()
	}, nil, func(l *load) {
		l.disk()
		l.theirCalls.answer()
	}},
}

// load is a daemon with two sessions, and a connection for the calls of each.
type load struct {
	t                 testing.TB
	d                 *hosttest.Daemon
	mine, theirs      string
	calls, theirCalls *dialogue
	disk              func() // has theirs answer again
}

func newLoad(t testing.TB) *load {
	t.Helper()
	d := sessionDaemon(t, config.Config{Sessions: config.SessionsConfig{Limit: 100000}})
	return &load{t: t, d: d, mine: newSession(t, d.Socket), theirs: newSession(t, d.Socket), calls: talk(t, d.Socket), theirCalls: talk(t, d.Socket)}
}

func (l *load) call() {
	l.t.Helper()
	if a := l.calls.ask(M{"tool": "handler", "args": []string{"x"}, "cwd": l.d.Root, "session": l.mine}); a.Stdout != "x" {
		l.t.Fatalf("%s", a.raw)
	}
}

// untilTheirsRuns polls: no event tells that a call has begun which has written
// nothing yet.
func (l *load) untilTheirsRuns(what string) {
	l.t.Helper()
	until(l.t, what, func() bool {
		return value[int](l.t, l.d.Socket, l.theirs, "session.running.size()") == 1
	})
}

// stopDisk has their next call wait where its journal is written. What cannot be written
// is logged there, and that is what it waits for.
func (l *load) stopDisk() {
	l.t.Helper()
	path := filepath.Join(l.d.State, "sessions", l.theirs+".jsonl")
	session(l.t, l.d.Socket, "mutate", M{"op": "suspend", "id": l.theirs})
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		l.t.Fatal(err)
	}
	var stopped <-chan struct{}
	stopped, l.disk = l.d.HoldLog("the journal of a session cannot be written")
	l.t.Cleanup(l.disk)
	l.theirCalls.send(M{"tool": "handler", "args": []string{"y"}, "cwd": l.d.Root, "session": l.theirs})
	<-stopped
}

// TestSessionsDoNotWaitForOneAnother: while one session is blocked, aborted,
// closed, or has a disk that does not answer, the calls of another are answered.
// One that waited would have no answer at all: what holds the first session ends
// only after.
func TestSessionsDoNotWaitForOneAnother(t *testing.T) {
	l := newLoad(t)
	for _, tt := range disturbances {
		if tt.begin != nil {
			tt.begin(l)
		}
		for i := range 30 {
			if tt.each != nil {
				tt.each(l, i)
			}
			l.call()
		}
		if tt.end != nil {
			tt.end(l)
		}
	}
	if n := value[int](t, l.d.Socket, l.mine, "session.telemetry.calls"); n != 30*len(disturbances) {
		t.Errorf("the session counts %d calls, must be %d", n, 30*len(disturbances))
	}
}

// BenchmarkBesideAnotherSession compares how long calls take in a session while
// another is disturbed and, in a daemon of its own, while it is left alone.
func BenchmarkBesideAnotherSession(b *testing.B) {
	for _, tt := range disturbances {
		b.Run(tt.name, func(b *testing.B) {
			disturbed, alone := newLoad(b), newLoad(b)
			if tt.begin != nil {
				tt.begin(disturbed)
			}
			i := 0
			compare(b, &side{name: "beside", run: func(*testing.B) {
				if tt.each != nil {
					tt.each(disturbed, i) // one in ten, which the median does not see
					i++
				}
				disturbed.call()
			}}, &side{name: "alone", run: func(*testing.B) { alone.call() }})
			if tt.end != nil {
				tt.end(disturbed)
			}
		})
	}
}

// abortable is a call that goes on for longer than any test unless it is
// aborted.
type abortable struct {
	name string
	tool string
	args []string
	// ready returns when the call is where it is to be aborted. Without one
	// that is when it has written something.
	ready func(execution string)
	code  fault.Code // of the call
	kept  string     // of the session
}

// aborts are a daemon, and what is aborted in it.
type aborts struct {
	t       testing.TB
	d       *hosttest.Daemon
	session string
	cases   []abortable
}

func newAborts(t testing.TB) *aborts {
	t.Helper()
	l := &aborts{t: t, d: sessionDaemon(t, config.Config{Reliability: "all"})}
	arrived := make(chan struct{}, 1)
	hang := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(hang.Close)
	l.d.Tool(t, "flaky", M{"limits": M{"fuel": 1e12}, "capabilities": M{"state": 1000, "http": M{"hosts": []string{"127.0.0.1"}}, "exec": []string{"/usr/bin/sleep"}},
		"timeout": 120, "reliability": M{"breaker": M{"failures": 1000}, "retry": M{"max": 10, "initial_ms": 20000, "cap_ms": 20000}}}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	l.d.Tool(t, "slow", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, nil)
	l.session = newSession(t, l.d.Socket)
	l.cases = []abortable{
		{"guest loop", "handler", []string{"up-and-loop"}, nil, "ABORTED", "ABORTED"},
		{"host call", "handler", []string{"http", hang.URL}, func(string) { <-arrived }, "ABORTED", "ABORTED"},
		{"process tree", "sh", []string{"-c", "echo up; sh -c 'sleep 1000 & sleep 1000' & wait"}, nil, "ABORTED", "ABORTED"},
		{"process tree that changes something", "slow", []string{"-c", "echo up; sleep 1000"}, nil, "ABORTED", "OUTCOME_UNKNOWN"},
		{"backoff", "flaky", []string{"fail"}, func(execution string) {
			// No event tells of it: a call that will be tried again says nothing.
			until(t, "it waits to try again", func() bool {
				return value[bool](t, l.d.Socket, l.session, fmt.Sprintf("session.running.exists(x, x.execution == %q && x.attempts >= 1 && x.fuel > 0)", execution))
			})
		}, "TOOL_FAILED", "TOOL_FAILED"}, // what its last attempt came to
	}
	return l
}

// running is a call that runs.
type running struct {
	execution string
	res       *wire.Result // when ended is closed
	err       error
	ended     chan struct{}
	wrote     chan struct{} // closed when it has written something
	once      sync.Once
}

func (r *running) Write(p []byte) (int, error) {
	r.once.Do(func() { close(r.wrote) })
	return len(p), nil
}

// start begins a call of the session; key is its idempotency key, or empty. A
// call that streams is not tried again.
func (l *aborts) start(stream bool, tool, key string, args ...string) *running {
	l.t.Helper()
	payload, err := json.Marshal(M{"args": args, "cwd": l.d.Root})
	if err != nil {
		l.t.Fatal(err)
	}
	r := &running{execution: newExecution(), ended: make(chan struct{}), wrote: make(chan struct{})}
	go func() {
		defer close(r.ended)
		c := &wire.Call{Form: wire.Envelope, Tool: tool, ExecutionID: r.execution, IdempotencyKey: key, Session: l.session, Payload: payload, Stream: stream}
		if stream {
			r.res, r.err = client.Stream(l.t.Context(), l.d.Socket, c, wire.Local{Stdout: r, Stderr: r})
		} else {
			r.res, r.err = client.Call(l.t.Context(), l.d.Socket, c)
		}
	}()
	return r
}

// untilItWrites waits for the first output of a call.
func (l *aborts) untilItWrites(r *running) {
	l.t.Helper()
	select {
	case <-r.wrote:
	case <-r.ended:
		l.t.Fatalf("the call ended before it was aborted: %+v, %v", r.res, r.err)
	}
}

// begin starts the call of a case and waits until it is where it is to be
// aborted.
func (l *aborts) begin(tt *abortable) *running {
	l.t.Helper()
	r := l.start(tt.ready == nil, tt.tool, "", tt.args...)
	if tt.ready != nil {
		tt.ready(r.execution)
	} else {
		l.untilItWrites(r)
	}
	return r
}

// abort ends a call and waits for its end.
func (l *aborts) abort(r *running) {
	l.t.Helper()
	session(l.t, l.d.Socket, "abort", M{"id": l.session, "execution": r.execution})
	<-r.ended
	if r.err != nil {
		l.t.Fatal(r.err)
	}
}

// kept is what the session says of a call that is over.
func kept[T any](l *aborts, r *running, field string) T {
	l.t.Helper()
	return value[T](l.t, l.d.Socket, l.session, "session.recent.filter(o, o.execution == '"+r.execution+"')[0]."+field)
}

// TestAbortEnds: what is aborted ends, wherever it is, with its code, after the
// attempt that it was at, and nothing else of any session ends with it.
func TestAbortEnds(t *testing.T) {
	l := newAborts(t)
	beside := newSession(t, l.d.Socket)
	talk(t, l.d.Socket).send(M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"id": beside, "text": "cat"}})

	for _, tt := range l.cases {
		for range 3 {
			r := l.begin(&tt)
			l.abort(r)
			if r.res.Err == nil || r.res.Err.Code != tt.code {
				t.Errorf("%s: %v, must be %s", tt.name, r.res.Err, tt.code)
			}
			if code := kept[string](l, r, "code"); code != tt.kept {
				t.Errorf("%s: the session says %s, must say %s", tt.name, code, tt.kept)
			}
			if n := kept[int](l, r, "attempts"); n != 1 {
				t.Errorf("%s: %d attempts, must be 1", tt.name, n)
			}
		}
	}

	// A duplicate that waits for the first call with its key: it alone is ended.
	gate := filepath.Join(l.d.Root, "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-c", "echo up; cat " + gate}
	first := l.start(true, "slow", "key", args...)
	l.untilItWrites(first)
	for range 3 {
		second := l.start(true, "slow", "key", args...)
		// No event tells of it: what waits for another's result says nothing.
		until(t, "the second waits", func() bool { return isRunning(t, l.d.Socket, l.session, second.execution, "") })
		l.abort(second)
		if second.res.Err == nil || second.res.Err.Code != "ABORTED" {
			t.Errorf("a duplicate that waits: %v", second.res.Err)
		}
		if code := kept[string](l, second, "code"); code != "ABORTED" {
			t.Errorf("a duplicate that waits has not begun, and the session says %s", code)
		}
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if <-first.ended; first.err != nil || first.res.Err != nil || first.res.ExitCode != 0 {
		t.Errorf("the first: %+v, %v", first.res, first.err)
	}

	if n := value[int](t, l.d.Socket, beside, "session.running.size()"); n != 1 {
		t.Errorf("in the other session %d calls run, must be 1", n)
	}
}

// BenchmarkAbort times the end of what is aborted, from the request to abort to
// the answer of what it ended.
func BenchmarkAbort(b *testing.B) {
	l := newAborts(b)
	for _, tt := range l.cases {
		if tt.name == "backoff" {
			continue // the budget of retries lasts for a few
		}
		b.Run(tt.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := l.begin(&tt)
				b.StartTimer()
				l.abort(r)
			}
		})
	}
}

// journals is a toold with a configuration that holds many sessions.
type journals struct {
	bin, dir, socket string
}

func newJournals(t testing.TB, limit int) *journals {
	t.Helper()
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	j := &journals{bin: filepath.Join(dir, "toold"), dir: dir, socket: filepath.Join(dir, "tool.sock")}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", j.bin, "./cmd/toold")
	build.Dir = hosttest.ModuleRoot()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range []struct{ path, text string }{
		{"tools.d/sh/tool.json", `{"binary": "/bin/sh", "capabilities": {"exec": ["/usr/bin", "/bin"]}}`},
		{"toold.json", fmt.Sprintf(`{"sessions": {"limit": %d}, "roots": [%q]}`, limit, dir)},
	} {
		path := filepath.Join(dir, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return j
}

// start starts toold and returns when it says ready. The function that it
// answers ends it by a signal.
func (j *journals) start(t testing.TB) func(syscall.Signal) {
	t.Helper()
	cmd := exec.Command(j.bin, "--config", filepath.Join(j.dir, "toold.json"), "--tools", filepath.Join(j.dir, "tools.d"), "--socket", j.socket, "--state", filepath.Join(j.dir, "state"))
	cmd.Env = []string{"HOME=" + j.dir, "PATH=" + os.Getenv("PATH")}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "ready") {
		t.Fatalf("%q, %v", line, err)
	}
	return func(sig syscall.Signal) {
		t.Helper()
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
	}
}

// fill makes n sessions, and a call in each tenth.
func (j *journals) fill(t testing.TB, n int) (ids []string) {
	t.Helper()
	c := talk(t, j.socket)
	for i := range n {
		a := c.ask(M{"toolId": "session.mutate", "executionId": newExecution(), "payload": M{"op": "create", "params": M{"name": fmt.Sprint("s", i)}}})
		var data struct{ ID string }
		if err := json.Unmarshal(a.Data, &data); err != nil || data.ID == "" {
			t.Fatalf("%s", a.raw)
		}
		ids = append(ids, data.ID)
		if i%10 == 0 {
			c.ask(M{"tool": "sh", "args": []string{"-c", ":"}, "cwd": j.dir, "session": data.ID})
		}
	}
	return ids
}

// TestAThousandSessionsSurviveAKill: all are there again, and what ran has an
// unknown outcome.
func TestAThousandSessionsSurviveAKill(t *testing.T) {
	const n = 1000
	j := newJournals(t, n+1)
	end := j.start(t)
	ids := j.fill(t, n)
	job := talk(t, j.socket).ask(M{"tool": "sh", "args": []string{"-c", "echo up; exec sleep 1000"}, "cwd": j.dir, "session": ids[0], "background": true})
	// A job has nobody to tell of its output: it is looked at.
	until(t, "the job runs", func() bool {
		return value[bool](t, j.socket, "", "jobs.exists(j, j.state == 'running' && j.last_line == 'up')")
	})
	end(syscall.SIGKILL)

	end = j.start(t)
	defer end(syscall.SIGTERM)
	found := value[int](t, j.socket, "", "sessions.filter(s, s.name != '').size()")
	if found != n {
		t.Errorf("%d sessions are there, must be %d", found, n)
	}
	calls := 0
	for _, n := range value[[]int](t, j.socket, "", "sessions.map(s, s.telemetry.calls)") {
		calls += n
	}
	if calls != (n+9)/10+1 {
		t.Errorf("they count %d calls, must be %d", calls, (n+9)/10+1)
	}
	if code := value[string](t, j.socket, "", "jobs.filter(j, j.id == '"+job.ID+"')[0].code"); code != "OUTCOME_UNKNOWN" {
		t.Errorf("the job that ran is %s", code)
	}
}

// BenchmarkStartWithJournals times a start, from the start of the process to
// "ready", without sessions and with those that a daemon before it had.
func BenchmarkStartWithJournals(b *testing.B) {
	for _, n := range []int{0, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			j := newJournals(b, n+1)
			end := j.start(b)
			j.fill(b, n)
			end(syscall.SIGKILL)
			for b.Loop() {
				end := j.start(b)
				b.StopTimer()
				end(syscall.SIGKILL)
				b.StartTimer()
			}
		})
	}
}
