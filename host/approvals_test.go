package host_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// asking is a daemon with a ledger whose policy asks where it is told to.
type asking struct {
	*hosttest.Daemon
	t testing.TB
}

func newAsking(t testing.TB, c config.Config) *asking {
	d := hosttest.Start(t, c)
	d.Tool(t, "ledger", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}, "env": []string{"MARK"}}},
		map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	return &asking{d, t}
}

func (d *asking) operator() *client.Approvals {
	return &client.Approvals{Operator: client.NewAdmin(d.Config.Admin)}
}

func (d *asking) caller() *client.Approvals { return &client.Approvals{Socket: d.Config.Socket} }

// write is a call that appends a line to the ledger, once it is approved.
func (d *asking) write(line string, a abi.Approval) *wire.Call {
	d.t.Helper()
	how, err := json.Marshal(a)
	if err != nil {
		d.t.Fatal(err)
	}
	return &wire.Call{Tool: "ledger", Args: []string{"ask", string(how), "-c", `echo "$1" >> ledger`, "sh", line}, Cwd: d.Root}
}

func (d *asking) make(c *wire.Call) *wire.Result {
	d.t.Helper()
	r, err := client.Call(d.t.Context(), d.Config.Socket, c)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

// refused makes c, which must be refused with that code, and not run.
func (d *asking) refused(c *wire.Call, code fault.Code, words ...string) {
	d.t.Helper()
	before := d.ledger()
	r := d.make(c)
	if r.Err == nil || r.Err.Code != code {
		d.t.Errorf("%q: %+v, and not %s", c.Args, r, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(r.Err.Message, w) {
			d.t.Errorf("%q is refused with %q, without %q", c.Args, r.Err.Message, w)
		}
	}
	if d.ledger() != before {
		d.t.Errorf("%q is refused and ran", c.Args)
	}
}

// runs makes c, which must run.
func (d *asking) runs(c *wire.Call) {
	d.t.Helper()
	if r := d.make(c); r.Err != nil || r.ExitCode != 0 {
		d.t.Fatalf("%q: %+v", c.Args, r)
	}
}

func (d *asking) ledger() string {
	b, err := os.ReadFile(filepath.Join(d.Root, "ledger"))
	if err != nil && !os.IsNotExist(err) {
		d.t.Fatal(err)
	}
	return string(b)
}

// open are the requests that are open.
func (d *asking) open() (list []adminapi.Approval) {
	d.t.Helper()
	all, err := d.operator().List(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	for _, a := range all {
		if a.State == "pending" || a.State == "approved" {
			list = append(list, a)
		}
	}
	return list
}

// one is the one request that is open.
func (d *asking) one() adminapi.Approval {
	d.t.Helper()
	list := d.open()
	if len(list) != 1 {
		d.t.Fatalf("%d requests are open, not 1: %+v", len(list), list)
	}
	return list[0]
}

func (d *asking) approve(id string) {
	d.t.Helper()
	if _, err := d.operator().Decide(d.t.Context(), id, true, "fine"); err != nil {
		d.t.Fatal(err)
	}
}

// wrapperProgram builds the wrapper.
func wrapperProgram(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tool-client")
	if out, err := exec.Command("go", "build", "-o", file, "../cmd/tool-client").CombinedOutput(); err != nil {
		t.Fatalf("build the wrapper: %v\n%s", err, out)
	}
	return file
}

// TestApprovalShowsCallbacks: who approves is shown that the caller's programs have a
// part in the call.
func TestApprovalShowsCallbacks(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	d.Tool(t, "ledger", M{"binary": "/bin/sh", "mutating": true, "stdin": false, "callbacks": []string{"editor"}, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}},
		map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	c := d.write("one", abi.Approval{})
	wrapper := exec.Command(wrapperProgram(t))
	wrapper.Args, wrapper.Dir = append([]string{"ledger"}, c.Args...), d.Root
	wrapper.Env = []string{"TOOL_SOCKET=" + d.Config.Socket, "EDITOR=true"}
	if out, _ := wrapper.CombinedOutput(); wrapper.ProcessState.ExitCode() != fault.ApprovalRequired.ExitCode() {
		t.Fatalf("%v: %s", wrapper.ProcessState, out)
	}
	a, err := d.operator().Show(t.Context(), d.one().ID)
	if err != nil || len(a.Steps) != 1 || !strings.Contains(string(a.Steps[0].Plan), `"callbacks":[{"kind":"editor","name":"editor"}]`) {
		t.Errorf("%+v, %v", a.Steps, err)
	}
	d.approve(a.ID)
	d.refused(c, fault.ApprovalRequired) // without an editor it is another call
}

func TestApprovalOnce(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	c := d.write("one", abi.Approval{})
	d.refused(c, fault.ApprovalRequired, "toolctl approvals approve")
	d.refused(c, fault.ApprovalRequired) // and asks for nothing new
	a := d.one()
	d.approve(a.ID)
	d.runs(c)
	if got := d.ledger(); got != "one\n" {
		t.Fatalf("the ledger has %q", got)
	}
	d.refused(c, fault.ApprovalRequired)
	if b := d.one(); b.ID == a.ID {
		t.Error("the request that was used is open again")
	}
}

// An approval is for exactly what was asked: whatever of it is another is asked for
// by itself, and does not run by it.
func TestApprovalBindsAll(t *testing.T) {
	t.Parallel()
	issuer, yes := hosttest.NewIssuer(t), true
	d := newAsking(t, config.Config{Identity: config.IdentityConfig{JWKS: issuer.JWKS, AllowUID: &yes}, Reliability: "all"})
	other := filepath.Join(d.Root, "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	base := func() *wire.Call {
		c := d.write("one", abi.Approval{Text: "one line"})
		c.Stdin, c.Env = []byte("in"), map[string]string{"MARK": "a"}
		return c
	}
	d.refused(base(), fault.ApprovalRequired)
	a := d.one()
	d.approve(a.ID)
	session := newSession(t, d.Socket)
	for name, change := range map[string]func(*wire.Call){
		"an argument":      func(c *wire.Call) { c.Args[len(c.Args)-1] = "two" },
		"one more":         func(c *wire.Call) { c.Args = append(c.Args, "") },
		"joined":           func(c *wire.Call) { n := len(c.Args); c.Args = append(c.Args[:n-2], "sh one") },
		"the value of env": func(c *wire.Call) { c.Env["MARK"] = "b" },
		"no env":           func(c *wire.Call) { c.Env = nil },
		"the input":        func(c *wire.Call) { c.Stdin = []byte("In") },
		"no input":         func(c *wire.Call) { c.Stdin = nil },
		"the folder":       func(c *wire.Call) { c.Cwd = other },
		"the session":      func(c *wire.Call) { c.Session = session },
		"the identity":     func(c *wire.Call) { c.Token = issuer.Token(t, M{"sub": "alice"}) },
		"the text":         func(c *wire.Call) { c.Args[1] = strings.Replace(c.Args[1], "one line", "a line", 1) },
		"who may":          func(c *wire.Call) { c.Args[1] = strings.Replace(c.Args[1], "{", `{"by":["sub:bob"],`, 1) },
		"the asker may":    func(c *wire.Call) { c.Args[1] = strings.Replace(c.Args[1], "{", `{"self":true,`, 1) },
	} {
		c := base()
		change(c)
		d.refused(c, fault.ApprovalRequired)
		if t.Failed() {
			t.Fatalf("%s is another", name)
		}
	}
	d.runs(base())
	if got := d.ledger(); got != "one\n" {
		t.Errorf("the ledger has %q", got)
	}
}

// Another folder in the place of the approved one is not that one, whether it comes
// before the call is made or between that and its start.
func TestApprovalOfAFolder(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	dir := filepath.Join(d.Root, "repo")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := d.write("one", abi.Approval{})
	c.Cwd = dir
	d.refused(c, fault.ApprovalRequired)
	d.approve(d.one().ID)
	waiting := *c
	waiting.Background, waiting.Args = true, d.write("waiting", abi.Approval{}).Args
	job := d.make(&waiting)
	if job.Err != nil {
		t.Fatal(job.Err)
	}
	// The same inode number, as the next folder often has, is not the same folder.
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.refused(c, fault.ApprovalRequired)
	if b, err := os.ReadFile(filepath.Join(dir, "ledger")); err == nil {
		t.Errorf("it ran in another folder: %q", b)
	}
	for _, a := range d.open() {
		if a.Execution == strings.TrimSpace(string(job.Stdout)) {
			d.approve(a.ID)
		}
	}
	if end := d.jobEnd(string(job.Stdout)); end.Code != fault.ApprovalRequired || !strings.Contains(end.Message, "has changed") {
		t.Errorf("a call that waited: %+v", end)
	}
	// Nor does it run once the folder is there again that it was approved for.
	for _, a := range d.open() {
		if a.State == "approved" && a.Execution == strings.TrimSpace(string(job.Stdout)) {
			t.Errorf("what was approved for another folder is still: %+v", a)
		}
	}
}

// Who called has to count when the call runs, however long it waited for its approval or
// for a place: also where its policy does not ask any more by then.
func TestApprovalOfWhoIsNotAdmittedAnyMore(t *testing.T) {
	t.Parallel()
	issuer, yes, no := hosttest.NewIssuer(t), true, false
	d := &asking{hosttest.Start(t, config.Config{Identity: config.IdentityConfig{JWKS: issuer.JWKS, AllowUID: &yes}}), t}
	d.Tool(t, "ledger", M{"binary": "/bin/sh", "mutating": true, "limits": M{"concurrency": 1}, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}},
		map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	for _, dir := range []string{"asked", "free"} {
		if err := os.Mkdir(filepath.Join(d.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link, gate := filepath.Join(d.Root, "link"), filepath.Join(d.Root, "gate")
	if err := errors.Join(os.Symlink("asked", link), syscall.Mkfifo(gate, 0o600)); err != nil {
		t.Fatal(err)
	}

	// A job waits until its caller's token has expired.
	waits := &wire.Call{Tool: "ledger", Args: []string{"ask-in", "asked", "-c", `echo waited >> "$0"`, filepath.Join(d.Root, "ledger")}, Cwd: link, Background: true}
	var until time.Time
	var job string
	for life := 2 * time.Second; job == ""; life *= 2 {
		until = time.Now().Add(life).Truncate(time.Second)
		waits.Token = issuer.Token(t, M{"sub": "alice", "exp": until.Unix()})
		if r := d.make(waits); r.Err == nil {
			job = strings.TrimSpace(string(r.Stdout))
		} else if r.Err.Code != fault.Unauthenticated {
			t.Fatal(r.Err)
		}
	}
	a := d.one()
	if err := errors.Join(os.Remove(link), os.Symlink("free", link)); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Until(until))
	d.approve(a.ID)
	alice := client.Sessions{Socket: d.Config.Socket, Token: issuer.Token(t, M{"sub": "alice"})}
	for {
		var list []client.JobInfo
		if err := alice.Query(t.Context(), "", `jobs.filter(j, j.id == "`+job+`")`, &list); err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		if list[0].State == "done" {
			if list[0].Code != fault.Unauthenticated {
				t.Errorf("a job of a token that has expired: %+v", list[0])
			}
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	if d.ledger() != "" {
		t.Errorf("the ledger has %q", d.ledger())
	}

	// A call that is approved waits for a place, until its user is not admitted.
	c := d.write("one", abi.Approval{})
	d.refused(c, fault.ApprovalRequired)
	for _, open := range d.open() {
		if open.State == "pending" {
			d.approve(open.ID)
		}
	}
	call := func(c *wire.Call, answer chan<- *wire.Result) {
		r, err := client.Call(t.Context(), d.Config.Socket, c)
		if err != nil {
			r = &wire.Result{Err: fault.Errorf(fault.Internal, "%w", err)}
		}
		answer <- r
	}
	runs, queued := make(chan *wire.Result, 1), make(chan *wire.Result, 1)
	go call(&wire.Call{Tool: "ledger", Args: []string{"-c", "read x < gate"}, Cwd: d.Root}, runs)
	held, err := os.OpenFile(gate, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	go call(c, queued)
	for value[int](t, d.Config.Socket, "", `session.running.filter(x, x.tool == "ledger").size()`) < 2 {
		<-time.After(time.Millisecond)
	}
	next := d.Config
	next.Identity.AllowUID = &no
	if err := d.Reload(next, nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(func() error { _, err := held.WriteString("x\n"); return err }(), held.Close()); err != nil {
		t.Fatal(err)
	}
	if r := <-runs; r.Err != nil {
		t.Errorf("what ran: %+v", r)
	}
	if r := <-queued; r.Err == nil || r.Err.Code != fault.Unauthenticated {
		t.Errorf("a call of a user who is not admitted any more: %+v", r)
	}
	if d.ledger() != "" {
		t.Errorf("the ledger has %q", d.ledger())
	}
}

// A tool or policy that was replaced is not what was approved, also for a call that
// waits.
func TestApprovalLapsesWithTheTool(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	c := d.write("one", abi.Approval{})
	waiting := *c
	waiting.Background, waiting.Args = true, d.write("waiting", abi.Approval{}).Args
	job := d.make(&waiting)
	if job.Err != nil {
		t.Fatal(job.Err)
	}
	d.refused(c, fault.ApprovalRequired)
	for _, a := range d.open() {
		if a.Execution != strings.TrimSpace(string(job.Stdout)) {
			d.approve(a.ID)
		}
	}
	after := len(d.Logs())
	d.Tool(t, "ledger", M{"binary": "/bin/sh", "mutating": true, "description": "another", "capabilities": M{"exec": []string{"/usr/bin", "/bin"}, "env": []string{"MARK"}}},
		map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	d.AwaitLog(t, after, "tool swapped", "ledger")
	d.refused(c, fault.ApprovalRequired)
	if end := d.jobEnd(string(job.Stdout)); end.Code != fault.ApprovalRequired {
		t.Errorf("a call that waited: %+v", end)
	}
	list, err := d.operator().List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]int{}
	for _, a := range list {
		states[a.State]++
	}
	if states["lapsed"] != 2 || states["pending"] != 1 {
		t.Errorf("states %v", states)
	}
	if d.ledger() != "" {
		t.Errorf("the ledger has %q", d.ledger())
	}
}

// jobEnd waits for the end of a job.
func (d *asking) jobEnd(id string) client.JobInfo {
	d.t.Helper()
	id = strings.TrimSpace(id)
	s := client.Sessions{Socket: d.Config.Socket}
	var list []client.JobInfo
	for {
		if err := s.Query(d.t.Context(), "", `jobs.filter(j, j.id == "`+id+`" && j.stdout != null)`, &list); err != nil {
			d.t.Fatal(err)
		}
		if len(list) == 0 || list[0].State == "done" {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
	if len(list) != 1 {
		d.t.Fatalf("there is no job %s", id)
	}
	return list[0]
}

// A job waits, and goes on once it is approved; what is denied does not run, nor does
// the same call made anew.
func TestApprovalOfJobs(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	background := func(line string) (id string, a adminapi.Approval) {
		t.Helper()
		c := d.write(line, abi.Approval{})
		c.Background = true
		r := d.make(c)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return string(r.Stdout), d.one()
	}
	w := watch(t, client.Sessions{Socket: d.Config.Socket}, "", "")
	job, a := background("one")
	if a.Execution != strings.TrimSpace(job) {
		t.Errorf("the request is of %s, the job is %s", a.Execution, job)
	}
	d.approve(a.ID)
	if end := d.jobEnd(job); end.ExitCode != 0 || end.Code != "" || !strings.Contains(end.Stderr, "toolctl approvals approve "+a.ID) {
		t.Errorf("%+v", end)
	}
	var told []string
	for len(told) < 3 {
		if e := w.next(); e.Kind == events.Approval {
			told = append(told, e.State)
			if e.Approval != a.ID || e.Execution != a.Execution || e.Tool != "ledger" {
				t.Errorf("%+v", e)
			}
		}
	}
	if fmt.Sprint(told) != "[pending approved used]" {
		t.Errorf("watchers are told %q", told)
	}
	job, a = background("two")
	if _, err := d.operator().Decide(t.Context(), a.ID, false, "not today"); err != nil {
		t.Fatal(err)
	}
	if end := d.jobEnd(job); end.Code != fault.Denied || !strings.Contains(end.Message, "not today") {
		t.Errorf("%+v", end)
	}
	d.refused(d.write("two", abi.Approval{}), fault.Denied, "not today", "test.ask")
	if d.ledger() != "one\n" {
		t.Errorf("the ledger has %q", d.ledger())
	}
	// Nobody has time for ever, nor does a caller wait longer than it says.
	short, brief := d.write("short", abi.Approval{TTLMS: 1000}), d.write("brief", abi.Approval{})
	short.Background, brief.Background, brief.Timeout = true, true, 100*time.Millisecond
	for c, code := range map[*wire.Call]fault.Code{short: fault.ApprovalRequired, brief: fault.Timeout} {
		r := d.make(c)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		if end := d.jobEnd(string(r.Stdout)); end.Code != code || code == fault.ApprovalRequired && !strings.Contains(end.Message, "in time") {
			t.Errorf("%q: %+v", c.Args, end)
		}
	}
	left := d.one() // of brief; for short nobody is asked again
	if _, err := d.operator().Decide(t.Context(), left.ID, false, ""); err != nil || !strings.Contains(left.Rule, "test.ask") {
		t.Fatalf("%+v, %v", left, err)
	}
	// Nothing is added to what waits.
	job, a = background("steered")
	if a := session(t, d.Config.Socket, "steer", M{"text": "more", "execution": strings.TrimSpace(job)}); !strings.Contains(string(a.raw), "approved as it is") {
		t.Errorf("a call that waits is steered: %s", a.raw)
	}
	if _, err := d.operator().Decide(t.Context(), a.ID, false, ""); err != nil {
		t.Fatal(err)
	}
	// One that is cancelled leaves its request: whoever asks again finds it.
	job, a = background("three")
	if _, err := (&client.Sessions{Socket: d.Config.Socket}).Do(t.Context(), client.SessionCall{Name: "mutate", Payload: M{"op": "cancel-job", "params": M{"job": strings.TrimSpace(job)}}}); err != nil {
		t.Fatal(err)
	}
	if end := d.jobEnd(job); end.Code != fault.Aborted {
		t.Errorf("%+v", end)
	}
	d.approve(a.ID)
	d.runs(d.write("three", abi.Approval{}))
}

// Who may not decide cannot: the asker, others, callers that are bound to a session
// of the asker, modules, tokens that may only read.
// One identity, by however many sessions, has so many requests open and no more; what it
// asks beyond is refused with what to do, and others are kept from nothing.
func TestApprovalsOfOneIdentity(t *testing.T) {
	t.Parallel()
	d0, _, token := boundDaemon(t)
	d := &asking{d0, t}
	d.Tool(t, "ledger", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	mallory := party{t, d.Socket, token(nil)}
	ask := func(line, token, session string) *wire.Call {
		c := d.write(line, abi.Approval{})
		c.Token, c.Session = token, session
		return c
	}
	for n := range approval.MaxOpenOf {
		id := ""
		if n%2 == 1 {
			id = mallory.data("id", "mutate", M{"op": "create"})
		}
		d.refused(ask(fmt.Sprint("line ", n), mallory.token, id), fault.ApprovalRequired)
	}
	bound := mallory.data("id", "mutate", M{"op": "create"})
	bind(t, d0, bound)
	for name, token := range map[string]string{"another session": mallory.token, "a token of its own": token(M{"jti": "x"}), "one bound to a session": token(M{"toold_session": bound})} {
		d.refused(ask(name, token, ""), fault.Overloaded, fmt.Sprint(approval.MaxOpenOf, " of this identity"), "have them decided, or wait until they expire")
	}
	one := d.open()[0]
	d.refused(ask("of another", token(M{"sub": "bob"}), ""), fault.ApprovalRequired)
	if _, err := d.operator().Decide(t.Context(), one.ID, false, "no"); err != nil {
		t.Fatal(err)
	}
	d.refused(ask("after one was decided", mallory.token, ""), fault.ApprovalRequired)
}

func TestApprovalRights(t *testing.T) {
	t.Parallel()
	d0, further, token := boundDaemon(t)
	d := &asking{d0, t}
	d.Tool(t, "ledger", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	as := func(claims M) *client.Approvals {
		return &client.Approvals{Socket: d.Config.Socket, Token: token(claims)}
	}
	alice, bob, carol := as(nil), as(M{"sub": "bob"}), as(M{"sub": "carol"})
	c := d.write("one", abi.Approval{By: []string{"sub:bob", "sub:alice"}})
	c.Token = token(nil)
	d.refused(c, fault.ApprovalRequired, "sub:bob")
	a := d.one()
	id := party{t, d.Socket, c.Token}.data("id", "mutate", M{"op": "create"})
	bind(t, d0, id)
	for name, who := range map[string]*client.Approvals{
		"the asker": alice, "another": carol, "nobody's token": d.caller(), "one bound by its socket": {Socket: further, Token: token(nil)},
		"one bound by its token": as(M{"sub": "bob", "toold_session": id}), "one that may only read": as(M{"sub": "bob", "read_only": true}),
	} {
		if got, err := who.Decide(t.Context(), a.ID, true, ""); err == nil {
			t.Errorf("%s has approved it: %+v", name, got)
		}
	}
	request, err := json.Marshal(M{"toolId": "approval.approve", "executionId": newExecution(), "payload": M{"id": a.ID}})
	if err != nil {
		t.Fatal(err)
	}
	module := &wire.Call{Tool: "caller", Args: []string{string(request)}, Cwd: d.Root, Token: token(M{"sub": "bob"})}
	if r := d.make(module); !strings.Contains(string(r.Stdout), `"status":"error"`) {
		t.Errorf("a module that bob calls: %s", r.Stdout)
	}
	turn := client.Sessions{Socket: d.Config.Socket, Token: token(M{"sub": "bob"})}
	if data, err := turn.Do(t.Context(), client.SessionCall{Name: "prompt", Payload: M{"envelope": json.RawMessage(request)}}); err == nil && !strings.Contains(string(data), string(fault.Denied)) {
		t.Errorf("a turn of bob's: %s", data)
	}
	inJob := &wire.Call{Form: wire.Envelope, Tool: "approval.approve", ExecutionID: newExecution(), Payload: json.RawMessage(`{"id":"` + a.ID + `"}`), Token: token(M{"sub": "bob"}), Background: true}
	if r := d.make(inJob); r.Err == nil || r.Err.Code != fault.Denied {
		t.Errorf("in the background: %+v", r)
	}
	if a = d.one(); a.State != "pending" {
		t.Fatalf("it is %s", a.State)
	}
	for who, sees := range map[*client.Approvals]bool{alice: true, bob: true, carol: false, d.caller(): false} {
		list, err := who.List(t.Context())
		if err != nil || (len(list) == 1) != sees {
			t.Errorf("%d are seen, %v", len(list), err)
		}
		if _, err := who.Show(t.Context(), a.ID); (err == nil) != sees {
			t.Errorf("shown: %v", err)
		}
	}
	if _, err := bob.Decide(t.Context(), a.ID, true, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := d.operator().Decide(t.Context(), a.ID, false, ""); err == nil {
		t.Error("it is decided a second time")
	}
	d.runs(c)
	// The asker, where the policy says so.
	c = d.write("two", abi.Approval{Self: true})
	c.Token = token(nil)
	d.refused(c, fault.ApprovalRequired, "you")
	if _, err := bob.Decide(t.Context(), d.one().ID, true, ""); err == nil {
		t.Error("bob decides what is alice's own")
	}
	if _, err := alice.Decide(t.Context(), d.one().ID, true, ""); err != nil {
		t.Error(err)
	}
	d.runs(c)
}

// What nobody could review is not asked for: an input that is still to come, more
// than can be shown, a decision that says nothing of who may.
func TestApprovalRefusesWhatCannotBeShown(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer in.Close()
	r, err := client.Stream(t.Context(), d.Config.Socket, d.write("one", abi.Approval{}), wire.Local{Stdin: in, Stdout: io.Discard, Stderr: io.Discard})
	if err != nil || r.Err == nil || r.Err.Code != fault.Denied || !strings.Contains(r.Err.Message, "approval.input") {
		t.Errorf("a stream: %+v, %v", r, err)
	}
	c := d.write("one", abi.Approval{})
	c.Stdin = make([]byte, 40<<10) // six bytes each, where it is shown
	d.refused(c, fault.LimitExceeded)
	d.refused(&wire.Call{Tool: "ledger", Args: []string{"ask-nobody"}, Cwd: d.Root}, fault.ToolBroken)
	d.refused(d.write("one", abi.Approval{TTLMS: 1}), fault.ToolBroken, "ttl_ms")
	if n := len(d.open()); n != 0 {
		t.Errorf("%d requests are open", n)
	}
	for n := range 20 {
		if r := d.make(d.write(fmt.Sprint("flood ", n), abi.Approval{})); r.Err == nil || n >= 16 && r.Err.Code != fault.Overloaded {
			t.Errorf("request %d: %+v", n, r)
		}
	}
}

// A call that is made again with its key is answered by it, and asks for nothing.
func TestApprovalAndKeys(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{Reliability: "all"})
	c := d.write("one", abi.Approval{})
	c.IdempotencyKey = "k"
	d.refused(c, fault.ApprovalRequired)
	d.approve(d.one().ID)
	d.runs(c)
	d.runs(c)
	job := *c
	job.Background = true
	r := d.make(&job)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if end := d.jobEnd(string(r.Stdout)); end.Code != "" || end.ExitCode != 0 {
		t.Errorf("the same in the background: %+v", end)
	}
	if d.ledger() != "one\n" || len(d.open()) != 0 {
		t.Errorf("the ledger has %q, and %d requests are open", d.ledger(), len(d.open()))
	}
}

// Of calls that are the same and made at the same time, one runs for each approval.
func TestApprovalRace(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	c := d.write("one", abi.Approval{})
	for round := 1; round <= 5; round++ {
		d.refused(c, fault.ApprovalRequired)
		d.approve(d.one().ID)
		var all sync.WaitGroup
		var ran atomic.Int32
		for range 8 {
			all.Go(func() {
				r, err := client.Call(t.Context(), d.Config.Socket, c)
				if err != nil {
					t.Error(err)
				} else if r.Err == nil {
					ran.Add(1)
				}
			})
		}
		all.Wait()
		if got := strings.Count(d.ledger(), "one\n"); ran.Load() != 1 || got != round {
			t.Fatalf("round %d: %d calls ran, %d lines", round, ran.Load(), got)
		}
	}
}

// The audit log says who asked, who approved what, and by which approval a call ran.
func TestApprovalIsAudited(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	c := d.write("one", abi.Approval{})
	d.refused(c, fault.ApprovalRequired)
	a := d.one()
	d.approve(a.ID)
	d.runs(c)
	d.Stop(t)
	var states, effects []string
	err := audit.Read(filepath.Join(d.State, "audit"), time.Time{}, func(_ audit.Position, r *audit.Record, _ []byte) bool {
		if p := r.Approval; p != nil {
			if p.ID != a.ID || p.Digests[0] != a.Steps[0].Digest || p.Asker == "" || p.State != "pending" && p.Decider != "operator" {
				t.Errorf("%+v", p)
			}
			states = append(states, p.State)
		}
		if r.Call != nil && r.Call.Tool == "ledger" {
			effects = append(effects, r.Call.Effect)
			if runs := r.Call.Runs; runs != nil && runs.Approval != a.ID {
				t.Errorf("it runs by approval %q", runs.Approval)
			}
		}
		return true
	})
	if got, want := fmt.Sprint(states, effects), "[pending approved used used] [ask allow]"; err != nil || got != want {
		t.Errorf("%s, not %s; %v", got, want, err)
	}
}

// batchAnswer is what approval.plan and approval.run answer.
type batchAnswer struct {
	Approval struct {
		ID    string   `json:"id"`
		By    []string `json:"by"`
		Steps []struct {
			Tool string `json:"tool"`
		} `json:"steps"`
	} `json:"approval"`
	Calls []struct {
		Asks bool `json:"asks"`
	} `json:"calls"`
	Results []struct {
		Status string     `json:"status"`
		Code   fault.Code `json:"code"`
		Stdout string     `json:"stdout"`
	} `json:"results"`
	Done bool `json:"done"`
}

// A list of calls is planned without running, approved once, and runs in order up to
// the first call that fails or is another than was planned.
func TestApprovalOfAList(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	made := func(args ...string) M {
		return M{"toolId": "ledger", "payload": M{"args": args, "cwd": d.Root}}
	}
	asks := func(how, script string) M { return made("ask", how, "-c", script) }
	list := func(verb, id string, calls ...M) (out batchAnswer, err *fault.Error) {
		t.Helper()
		payload := M{"calls": calls}
		if id != "" {
			payload["id"] = id
		}
		b, e := json.Marshal(payload)
		if e != nil {
			t.Fatal(e)
		}
		r := d.make(&wire.Call{Form: wire.Envelope, Tool: "approval." + verb, ExecutionID: newExecution(), Payload: b})
		if r.Err == nil {
			if e := json.Unmarshal(r.Data, &out); e != nil {
				t.Fatal(e)
			}
		}
		return out, r.Err
	}
	add := func(line string) string { return "echo " + line + " >> ledger" }
	calls := []M{asks(`{"by":["sub:bob","sub:carol"]}`, add("one")), made("-c", add("two")), asks(`{"by":["sub:carol"]}`, add("three"))}
	plan, refused := list("plan", "", calls...)
	if refused != nil || len(plan.Calls) != 3 || !plan.Calls[0].Asks || plan.Calls[1].Asks || fmt.Sprint(plan.Approval.By) != "[sub:carol]" || len(plan.Approval.Steps) != 3 {
		t.Fatalf("%+v %v", plan, refused)
	}
	id := plan.Approval.ID
	if _, err := list("run", id, calls...); err == nil || err.Code != fault.ApprovalRequired || d.ledger() != "" {
		t.Fatalf("not approved: %v, %q", err, d.ledger())
	}
	d.approve(id)
	if _, err := list("run", id, calls[1], calls[0], calls[2]); err == nil || d.ledger() != "" {
		t.Fatalf("in another order: %v, %q", err, d.ledger())
	}
	run, refused := list("run", id, calls...)
	if refused != nil || !run.Done || d.ledger() != "one\ntwo\nthree\n" {
		t.Fatalf("%+v %v, %q", run, refused, d.ledger())
	}
	if _, err := list("run", id, calls...); err == nil || err.Code != fault.ApprovalRequired {
		t.Errorf("twice: %v", err)
	}
	// None of its calls runs alone.
	plan, _ = list("plan", "", calls...)
	d.approve(plan.Approval.ID)
	alone := &wire.Call{Tool: "ledger", Args: []string{"ask", `{"by":["sub:bob","sub:carol"]}`, "-c", add("one")}, Cwd: d.Root}
	d.refused(alone, fault.ApprovalRequired)
	// It stops where a call is another, and nothing after it runs.
	before := d.ledger()
	run, refused = list("run", plan.Approval.ID, calls[0], made("-c", add("other")), calls[2])
	if refused != nil || run.Done || len(run.Results) != 2 || run.Results[1].Code != fault.ApprovalRequired || d.ledger() != before+"one\n" {
		t.Errorf("another call: %+v %v, %q", run, refused, d.ledger())
	}
	if _, err := list("run", plan.Approval.ID, calls...); err == nil {
		t.Error("a list that was stopped is begun again")
	}
	// It stops where one fails.
	failing := []M{asks(`{}`, "exit 3"), made("-c", add("after"))}
	plan, _ = list("plan", "", failing...)
	d.approve(plan.Approval.ID)
	before = d.ledger()
	if run, refused = list("run", plan.Approval.ID, failing...); refused != nil || run.Done || len(run.Results) != 1 || d.ledger() != before {
		t.Errorf("a call that fails: %+v %v, %q", run, refused, d.ledger())
	}
	// What is denied is not planned, nor is what runs no tool.
	for _, c := range []M{made("deny"), {"toolId": "session.query", "payload": M{}}, {"toolId": "approval.approve", "payload": M{"id": id}}} {
		if _, err := list("plan", "", calls[0], c); err == nil {
			t.Errorf("%v is planned", c)
		}
	}
}

// What is no list of calls of tools, made whole by who asks, is neither planned nor run,
// and what a list is answered is bounded and says where it stopped.
func TestApprovalOfAListIsOfCalls(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	call := func(more M, args ...string) M {
		c := M{"toolId": "ledger", "payload": M{"args": args, "cwd": d.Root}}
		for k, v := range more {
			c[k] = v
		}
		return c
	}
	ask := func(tool string, payload any) *wire.Result {
		t.Helper()
		b, err := json.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		return d.make(&wire.Call{Form: wire.Envelope, Tool: tool, ExecutionID: newExecution(), Payload: b})
	}
	fine := call(nil, "ask", `{}`, "-c", "yes | head -c 4096; echo ran >> ledger")
	many := make([]M, 33)
	for i := range many {
		many[i] = fine
	}
	plan := ask("approval.plan", M{"calls": []M{fine}})
	var planned batchAnswer
	if err := json.Unmarshal(plan.Data, &planned); err != nil || plan.Err != nil {
		t.Fatal(plan.Err, err)
	}
	id := planned.Approval.ID
	d.approve(id)
	for what, payload := range map[string]any{
		"no calls":                     M{"calls": []M{}},
		"too many":                     M{"calls": many},
		"a call in the plain form":     M{"calls": []M{{"tool": "ledger", "args": []string{"-c", "true"}}}},
		"a call that is none":          M{"calls": []any{"ledger"}},
		"a call without a tool":        M{"calls": []M{{}}},
		"another member":               M{"calls": []M{fine}, "more": 1},
		"a list of tools":              M{"calls": []M{{"toolId": "tools.list", "payload": M{}}}},
		"a question about the session": M{"calls": []M{{"toolId": "session.query", "payload": M{"selector": "session"}}}},
		"a decision":                   M{"calls": []M{{"toolId": "approval.approve", "payload": M{"id": id}}}},
		"a list of lists":              M{"calls": []M{{"toolId": "approval.run", "payload": M{"id": id, "calls": []M{fine}}}}},
		"a call of another":            M{"calls": []M{call(M{"token": "x.y.z"}, "-c", "true")}},
		"a stream":                     M{"calls": []M{call(M{"stream": true}, "-c", "true")}},
		"a job":                        M{"calls": []M{call(M{"background": true}, "-c", "true")}},
		"one that goes on":             M{"calls": []M{call(M{"detach": true}, "-c", "true")}},
	} {
		for _, tool := range []string{"approval.plan", "approval.run"} {
			if tool == "approval.run" {
				if m, ok := payload.(M); ok {
					m["id"] = id
				}
			}
			if r := ask(tool, payload); r.Err == nil || r.Err.Code != fault.InvalidPayload {
				t.Errorf("%s: %s: %+v", tool, what, r)
			}
		}
	}
	if r := ask("approval.plan", M{"id": id, "calls": []M{fine}}); r.Err == nil || r.Err.Code != fault.InvalidPayload {
		t.Errorf("a plan with an id: %+v", r)
	}
	if r := d.make(&wire.Call{Tool: "approval.plan", Args: []string{"x"}, Cwd: d.Root}); r.Err == nil {
		t.Errorf("a plan in the plain form: %+v", r)
	}
	if d.ledger() != "" {
		t.Fatalf("the ledger has %q", d.ledger())
	}
	var run struct {
		Results []struct {
			Stdout    string
			Truncated bool
		}
		Done bool
	}
	if r := ask("approval.run", M{"id": id, "calls": []M{fine}}); r.Err != nil || json.Unmarshal(r.Data, &run) != nil || !run.Done || d.ledger() != "ran\n" {
		t.Fatalf("%+v", r)
	}
	if got := run.Results[0]; len(got.Stdout) != 1<<10 || !got.Truncated {
		t.Errorf("%d bytes of its output, truncated %v", len(got.Stdout), got.Truncated)
	}
	// A list that was denied is denied again, and one that needs nobody has no request.
	plan = ask("approval.plan", M{"calls": []M{fine}})
	if err := json.Unmarshal(plan.Data, &planned); err != nil {
		t.Fatal(err)
	}
	if _, err := d.operator().Decide(t.Context(), planned.Approval.ID, false, "no"); err != nil {
		t.Fatal(err)
	}
	if r := ask("approval.plan", M{"calls": []M{fine}}); r.Err == nil || r.Err.Code != fault.Denied {
		t.Errorf("what was denied: %+v", r)
	}
	if r := ask("approval.plan", M{"calls": []M{call(nil, "-c", "true")}}); r.Err != nil || strings.Contains(string(r.Data), `"approval"`) {
		t.Errorf("a list that needs no approval: %+v", r)
	}
}

// A call that waits ends with its daemon, and its request does not: the next daemon
// has it, and what was approved before or after runs when the call is made again.
func TestApprovalSurvivesARestart(t *testing.T) {
	t.Parallel()
	d := newAsking(t, config.Config{})
	waits, asked := d.write("one", abi.Approval{}), d.write("two", abi.Approval{})
	job := *waits
	job.Background = true
	if r := d.make(&job); r.Err != nil {
		t.Fatal(r.Err)
	}
	one := d.one()
	d.refused(asked, fault.ApprovalRequired)
	for _, a := range d.open() {
		if a.ID != one.ID {
			d.approve(a.ID)
		}
	}
	d.Stop(t)
	d = &asking{hosttest.Start(t, config.Config{State: d.State, Tools: d.Config.Tools, Roots: d.Roots, Socket: d.Config.Socket}), t}
	if n := len(d.open()); n != 2 {
		t.Fatalf("%d requests are open", n)
	}
	d.approve(one.ID)
	d.runs(waits)
	d.runs(asked)
	d.refused(waits, fault.ApprovalRequired)
	if d.ledger() != "one\ntwo\n" {
		t.Errorf("the ledger has %q", d.ledger())
	}
}

// A tool decides nothing, by whatever door it knocks at: native code of a call that is
// allowed connects neither to the socket where its user may decide nor to the operator's,
// and what it has running at its caller's side is a call like any other.
func TestApprovalNotByATool(t *testing.T) {
	t.Parallel()
	issuer, yes := hosttest.NewIssuer(t), true
	d := &asking{hosttest.Start(t, config.Config{Identity: config.IdentityConfig{JWKS: issuer.JWKS, AllowUID: &yes}}), t}
	programs := hosttest.Programs(t)
	d.Tool(t, "ledger", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin", programs}}},
		map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	c := d.write("one", abi.Approval{By: []string{fmt.Sprintf("uid:%d", os.Getuid())}})
	c.Token = issuer.Token(t, M{"sub": "alice"})
	d.refused(c, fault.ApprovalRequired)
	a := d.one()
	toolctl := filepath.Join(programs, "toolctl")
	for door, argv := range map[string]string{
		"the operator's socket": "approve " + a.ID + " --admin " + d.Config.Admin,
		"the tool socket":       "approve " + a.ID + " --mine --socket " + d.Config.Socket,
	} {
		for _, token := range []string{"", c.Token} {
			r := d.make(&wire.Call{Tool: "ledger", Args: []string{"-c", toolctl + " approvals " + argv}, Cwd: d.Root, Token: token})
			if r.Err == nil && r.ExitCode == 0 || !regexp.MustCompile("no daemon answers|onnect|one that a tool runs").Match(r.Stderr) {
				t.Errorf("a tool that knocks at %s: %+v, %s%s", door, r.Err, r.Stdout, r.Stderr)
			}
		}
	}
	if a = d.one(); a.State != "pending" {
		t.Fatalf("it is %s", a.State)
	}
	d.refused(c, fault.ApprovalRequired)
	// The same user outside of a tool may.
	if _, err := d.caller().Decide(t.Context(), a.ID, true, ""); err != nil {
		t.Fatal(err)
	}
	d.runs(c)
}
