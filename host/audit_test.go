package host_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

func auditFolder(d *hosttest.Daemon) string { return filepath.Join(d.State, "audit") }

// auditLog stops the daemon, which writes what is to be written, and is its calls.
func auditLog(t testing.TB, d *hosttest.Daemon) []*audit.CallEntry {
	t.Helper()
	d.Stop(t)
	if _, err := audit.Verify(auditFolder(d), nil); err != nil {
		t.Errorf("the audit log does not hold: %v", err)
	}
	list, err := audit.Calls(auditFolder(d), audit.Query{Whole: true})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// auditText is all that the log of d holds.
func auditText(t testing.TB, d *hosttest.Daemon) string {
	t.Helper()
	var b strings.Builder
	if err := audit.Read(auditFolder(d), time.Time{}, func(_ audit.Position, _ *audit.Record, line []byte) bool {
		b.Write(line)
		b.WriteByte('\n')
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Who pushed what, under which policy, and why it was allowed.
func TestAuditTells(t *testing.T) {
	issuer := hosttest.NewIssuer(t)
	yes := true
	d := hosttest.Start(t, config.Config{Identity: config.IdentityConfig{JWKS: issuer.JWKS, Issuer: "https://issuer.test", AllowUID: &yes}})
	policy := hosttest.Guest(t, policyPkg)
	d.Tool(t, "push", M{"binary": "/bin/echo", "mutating": true, "identity": M{"claims": []string{"email"}}}, map[string]string{"restricted.wasm": policy})
	d.Tool(t, "look", M{"binary": "/bin/echo", "mutating": false}, map[string]string{"restricted.wasm": policy})
	token := issuer.Token(t, M{"sub": "alice", "iss": "https://issuer.test", "email": "alice@example.com"})
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	pushed := ask(t, d.Socket, M{"tool": "push", "args": []string{"rewrite", "origin", "main"}, "cwd": d.Root, "token": token, "trace": trace, "idempotency_key": "key-1"})
	if pushed.ExitCode != 0 {
		t.Fatalf("%s", pushed.raw)
	}
	ask(t, d.Socket, M{"tool": "push", "args": []string{"deny", "it"}, "cwd": d.Root, "token": token})
	ask(t, d.Socket, M{"tool": "look", "args": []string{"at"}, "cwd": d.Root})
	ask(t, d.Socket, M{"tool": "nothing", "args": []string{"here"}, "cwd": d.Root, "token": token})
	ask(t, d.Socket, M{"tool": "push", "args": []string{"as", "nobody"}, "cwd": d.Root, "token": token + "x"})
	ask(t, d.Socket, M{"tool": "push", "args": []string{"x"}, "cwd": d.Root, "env": M{"LD_PRELOAD": "x"}})

	list := auditLog(t, d)
	if len(list) != 6 {
		t.Fatalf("%d calls are in the log:\n%s", len(list), auditText(t, d))
	}
	e := list[0]
	c := e.Call
	switch {
	case c.Execution != pushed.ID, c.Session == "", c.Trace != trace, c.Key != "key-1":
		t.Errorf("its ids: %+v", c)
	case c.Identity.Subject != "alice", c.Identity.Issuer != "https://issuer.test", c.Identity.UID != uint32(os.Getuid()),
		c.Identity.PID != os.Getpid(), c.Identity.Claims["email"] != "alice@example.com", len(c.Identity.ID) != 32:
		t.Errorf("its caller: %+v", c.Identity)
	case c.Tool != "push", len(c.Version) != 32, len(c.Policies) != 1, len(c.Policies[0].SHA256) != 64, c.Runner.File != "/bin/echo", len(c.Config) != 64:
		t.Errorf("its tool: %+v, %+v", c, c.Policies)
	case !slices.Equal(c.Args, []string{"rewrite", "origin", "main"}), c.Cwd != d.Root:
		t.Errorf("what was asked: %+v", c)
	case c.Effect != audit.EffectAllow, !c.Runs.Mutating, !slices.Equal(c.Runs.Changed, []string{"args"}), len(c.Runs.Args) != 4 || c.Runs.Args[1] != "rewritten":
		t.Errorf("what ran: %+v, %+v", c, c.Runs)
	case e.N == e.EndN, e.End == nil, e.End.Status != "success", e.End.BytesOut == 0, e.End.Attempts != 1:
		t.Errorf("its end: %+v", e.End)
	}
	if len(c.Asked) != 1 {
		t.Fatalf("the policy was asked %+v", c.Asked)
	}
	a := c.Asked[0]
	var in struct{ Args []string }
	if err := json.Unmarshal(a.Input, &in); err != nil || !slices.Equal(in.Args, c.Args) || a.SHA256 != c.Policies[0].SHA256 || len(a.InputSHA256) != 64 || !strings.Contains(string(a.Decision), "rewritten") {
		t.Errorf("the policy was asked %+v, %v", a, err)
	}
	for i, want := range []struct{ tool, effect, rule, code string }{
		{"push", audit.EffectAllow, "", ""},
		{"push", audit.EffectDeny, "test.deny", "DENIED"},
		{"look", audit.EffectAllow, "", ""},
		{"nothing", audit.EffectError, "", "UNKNOWN_TOOL"},
		{"push", audit.EffectDeny, "", "UNAUTHENTICATED"},
		{"push", audit.EffectDeny, "env", "DENIED"},
	} {
		e := list[i]
		if c := e.Call; e.End == nil || c.Tool != want.tool || c.Effect != want.effect || c.Rule != want.rule || e.End.Code != want.code || (e.N != e.EndN) != (i == 0) {
			t.Errorf("call %d: %+v, %+v; want %+v", i, c, e.End, want)
		}
	}
	if id := list[3].Call.Identity; id.Subject != "alice" {
		t.Errorf("who called a tool that is not there: %+v", id)
	}
	// Of a tool that nobody knows, and of a caller that nobody knows, the arguments
	// are not kept: nothing says what is secret in them.
	for _, i := range []int{3, 4} {
		if c := list[i].Call; len(c.Args) != 0 || c.Withheld == "" || c.ArgCount == 0 {
			t.Errorf("call %d: %+v", i, c)
		}
	}
	if text := auditText(t, d); strings.Contains(text, token[:40]) || !strings.Contains(text, `"type":"config"`) {
		t.Error("the log has a token, or has not the configuration")
	}
	// The daemon's own log is as it was.
	if strings.Contains(d.Logs(), "rewrite") {
		t.Errorf("the daemon's log has arguments:\n%s", d.Logs())
	}
}

// After a policy was swapped the log says which one decided each call, and after a
// reload which configuration was in force.
func TestAuditFollowsChanges(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	policy := hosttest.Guest(t, policyPkg)
	d.Tool(t, "push", M{"binary": "/bin/echo", "mutating": true}, map[string]string{"restricted.wasm": policy})
	run := func() {
		t.Helper()
		if a := ask(t, d.Socket, M{"tool": "push", "args": []string{"policy-version"}, "cwd": d.Root}); a.ExitCode != 0 {
			t.Fatalf("%s", a.raw)
		}
	}
	run()
	b, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(t.TempDir(), "next.wasm")
	if err := os.WriteFile(next, []byte(strings.ReplaceAll(string(b), "version-000000", "version-000001")), 0o644); err != nil {
		t.Fatal(err)
	}
	d.Tool(t, "push", M{"binary": "/bin/echo", "mutating": true}, map[string]string{"restricted.wasm": next})
	for {
		a := ask(t, d.Socket, M{"tool": "push", "args": []string{"policy-version"}, "cwd": d.Root})
		if strings.Contains(a.Stdout, "version-000001") {
			break
		}
	}
	c := d.Config
	c.ShutdownGrace++
	if err := d.Reload(c, nil); err != nil {
		t.Fatal(err)
	}
	run()
	list := auditLog(t, d)
	first, last := list[0].Call, list[len(list)-1].Call
	before := list[len(list)-2].Call
	if first.Version == last.Version || first.Policies[0].SHA256 == last.Policies[0].SHA256 || first.Policies[0].File != last.Policies[0].File {
		t.Errorf("the policy was swapped: %+v, %+v", first, last)
	}
	if before.Version != last.Version || before.Config == last.Config || first.Config != before.Config {
		t.Errorf("the configuration was reloaded: %+v, %+v", before, last)
	}
	for _, e := range list {
		if !strings.Contains(string(e.Call.Asked[0].Decision), "version-00000") {
			t.Errorf("%+v", e.Call.Asked)
		}
	}
}

// No secret comes into the log: none of the tool's, none of the caller's token, and
// none that looks like one.
func TestAuditMasks(t *testing.T) {
	const secret = "t0p/s3cr3t+value=of the tool"
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	issuer := hosttest.NewIssuer(t)
	d := hosttest.Start(t, config.Config{Identity: config.IdentityConfig{JWKS: issuer.JWKS}})
	def := M{"binary": "/bin/echo", "mutating": true, "stdin": true, "secrets": M{"pass": M{"from": "file:" + file, "env": "PASS"}}}
	def["capabilities"] = M{"env": []string{"API_TOKEN", "PLAIN"}}
	d.Tool(t, "push", def, map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	d.Tool(t, "broken", M{"binary": "/bin/echo", "secrets": M{"pass": M{"from": "env:NOT_SET", "env": "PASS"}}}, map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	token := issuer.Token(t, M{"sub": "alice"})
	pat := "ghp_" + strings.Repeat("Ab3", 12)
	args := []string{
		"policy-version", "x" + secret + "y", "--url=https://alice:hunter2-hunter2@example.com/x", "https://" + pat + "@example.com/y", "ssh://git:hunter2-hunter2@example.com/z",
		"Authorization: Bearer opaque-opaque-1", token, "--password", "hunter2-hunter2",
	}
	stdin := []byte("first " + secret)
	for _, req := range []M{
		{"tool": "push", "args": args, "cwd": d.Root, "token": token, "env": M{"API_TOKEN": "hunter2-hunter2", "PLAIN": secret}, "stdin": stdin, "idempotency_key": "key " + secret},
		{"tool": "push", "args": append([]string{"deny"}, args...), "cwd": d.Root, "token": token},
		{"toolId": "push", "executionId": newExecution(), "payload": M{"args": args, "cwd": d.Root, "stdin": stdin}, "metadata": M{"token": token}},
		{"tool": "broken", "args": []string{secret}, "cwd": d.Root, "token": token},
		{"tool": "unknown", "args": []string{secret, token}, "cwd": d.Root, "token": token},
	} {
		a := ask(t, d.Socket, req)
		t.Logf("%.200s", a.raw)
	}
	list := auditLog(t, d)
	if len(list) < 4 {
		t.Errorf("%d calls", len(list))
	}
	text := auditText(t, d)
	for _, hidden := range []string{secret, "s3cr3t", "hunter2", pat, "opaque-opaque", token, token[:24], token[len(token)-24:], "dDBwL3MzY3IzdC"} {
		if strings.Contains(text, hidden) {
			at := strings.Index(text, hidden)
			t.Errorf("%q is in the log: …%s…", hidden, text[max(0, at-200):min(len(text), at+200)])
		}
	}
	for _, shown := range []string{`"PLAIN"`, "x[secret]y", `--url=https://[secret]@example.com/x`, "ssh://git:[secret]@example.com/z", "Authorization: [secret]", `"masked":true`} {
		if !strings.Contains(text, shown) {
			t.Errorf("%s is not in the log", shown)
		}
	}
	for _, e := range list {
		if e.Call.Tool == "broken" && len(e.Call.Asked) != 1 {
			t.Errorf("its policy was asked %+v", e.Call.Asked)
		}
		if e.Call.Tool == "broken" && (len(e.Call.Args) > 0 || e.Call.Withheld == "") {
			t.Errorf("a call whose secrets are not known has its arguments in the log: %+v", e.Call)
		}
	}
}

// A secret that is replaced after a call is masked in its record as it was.
func TestAuditMasksWhatWas(t *testing.T) {
	const was, is = "the-secret-that-was", "the-secret-that-is"
	file := filepath.Join(t.TempDir(), "secret")
	write := func(secret string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(was)
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "look", M{"binary": "/bin/echo", "mutating": false, "secrets": M{"pass": M{"from": "file:" + file, "env": "PASS"}}}, nil)
	if a := ask(t, d.Socket, M{"tool": "look", "args": []string{"at", was}, "cwd": d.Root}); a.ExitCode != 0 {
		t.Fatalf("%s", a.raw)
	}
	write(is) // before the record is made, which takes some milliseconds
	if list := auditLog(t, d); len(list) != 1 || !slices.Equal(list[0].Call.Args, []string{"at", "[secret]"}) {
		t.Errorf("%s", auditText(t, d))
	}
}

// What may change something does not run where that cannot be logged; what reads
// does, and all does again when the log can be written.
func TestAuditCannotBeWritten(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "make", M{"binary": "/usr/bin/touch", "mutating": true}, nil)
	d.Tool(t, "look", M{"binary": "/bin/echo", "mutating": false}, nil)
	run := func(tool, arg string) *answer {
		t.Helper()
		return ask(t, d.Socket, M{"tool": tool, "args": []string{arg}, "cwd": d.Root})
	}
	if a := run("make", "one"); a.ExitCode != 0 {
		t.Fatalf("%s", a.raw)
	}
	folder := auditFolder(d)
	aside := folder + ".aside"
	if err := os.Rename(folder, aside); err != nil {
		t.Fatal(err)
	}
	// The folder may have been made again at this moment.
	for os.WriteFile(folder, nil, 0o600) != nil {
		os.RemoveAll(folder)
	}
	a := run("make", "two")
	if a.Code != "STORE_UNAVAILABLE" || !a.Retriable || !strings.Contains(a.message(), "audit") || strings.Contains(a.message(), d.State) {
		t.Errorf("%s", a.raw)
	}
	if _, err := os.Stat(filepath.Join(d.Root, "two")); err == nil {
		t.Error("it ran, and could not be logged")
	}
	if a := run("look", "at"); a.ExitCode != 0 {
		t.Errorf("%s", a.raw)
	}
	if !strings.Contains(d.Logs(), "the audit log cannot be written") {
		t.Error("the daemon's log does not tell")
	}
	off := d.Config
	off.Audit.Mode = "off" // a way out, with the log as it is
	if err := d.Reload(off, nil); err != nil {
		t.Fatal(err)
	}
	if a := run("make", "three"); a.ExitCode != 0 {
		t.Errorf("%s", a.raw)
	}
	if err := d.Reload(d.Config, nil); err == nil {
		t.Error("a reload turns a log on that cannot be opened")
	}
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(aside, folder); err != nil {
		t.Fatal(err)
	}
	if err := d.Reload(d.Config, nil); err != nil {
		t.Fatal(err)
	}
	if a := run("make", "four"); a.ExitCode != 0 {
		t.Errorf("%s", a.raw)
	}
	list := auditLog(t, d)
	var made []string
	for _, e := range list {
		if e.Call.Tool == "make" {
			made = append(made, e.Call.Args[0])
		}
	}
	if !slices.Equal(made, []string{"one", "four"}) {
		t.Errorf("the log has %v", made)
	}
}

// A call that its record answers does not run, and has no begin. The calls that
// make jobs and turns are in the log as what runs.
func TestAuditOtherWays(t *testing.T) {
	d := hosttest.Start(t, config.Config{Reliability: config.ReliabilityAll})
	d.Tool(t, "make", M{"binary": "/bin/echo", "mutating": true}, nil)
	for range 2 {
		ask(t, d.Socket, M{"tool": "make", "args": []string{"x"}, "cwd": d.Root, "idempotency_key": "k"})
	}
	ask(t, d.Socket, M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"id": "default", "text": "make turn"}})
	ask(t, d.Socket, M{"toolId": "session.mutate", "executionId": newExecution(), "payload": M{"id": "default", "op": "rename", "params": M{"name": "not-in-the-log"}}})
	o := d.Call(t.Context(), call.Request{Call: &wire.Call{
		Tool: "make", Args: []string{"embedded"}, Payload: []byte(`{}`), Cwd: d.Root, ExecutionID: wire.NewExecutionID(),
	}, UID: uint32(os.Getuid())})
	if o.Err() != nil {
		t.Fatal(o.Err())
	}
	var got []string
	for _, e := range auditLog(t, d) {
		s := e.Call.Tool + " " + e.Call.Kind + " " + strings.Join(e.Call.Args, " ")
		if e.N != e.EndN {
			s += " begun"
		}
		if e.End != nil && e.End.FromCache {
			s += " from its record"
		}
		if e.Call.Tool == "session.mutate" && string(e.Call.Payload) != `{"id":"default","op":"rename"}` {
			t.Errorf("its object is %s", e.Call.Payload)
		}
		got = append(got, s)
	}
	want := []string{"make call x begun", "make call x from its record", "make turn turn begun", "session.prompt call ", "session.mutate call ", "make call embedded begun"}
	if !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q", got, want)
	}
	if strings.Contains(auditText(t, d), "not-in-the-log") {
		t.Error("the input of a session call is in the log")
	}
}

// What a caller sends is in the log up to a bound, and what is cut is said.
func TestAuditBounds(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "many", M{"binary": "/bin/true", "mutating": true}, map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	long := make([]string, 0, 3000)
	for range cap(long) {
		long = append(long, strings.Repeat("\x01\"", 8))
	}
	for range 11 {
		long = append(long, strings.Repeat("y", 100<<10))
	}
	o := d.Call(t.Context(), call.Request{Call: &wire.Call{
		Tool: "many", Args: long, Payload: []byte(`{}`), Cwd: d.Root, ExecutionID: wire.NewExecutionID(),
	}, UID: uint32(os.Getuid())})
	if o.Err() != nil {
		t.Fatal(o.Err())
	}
	list := auditLog(t, d)
	c := list[len(list)-1].Call
	if !slices.Contains(c.Reduced, "args") || len(c.Args) == 0 || len(c.Asked) != 1 || c.Asked[0].InputBytes < 1<<20 || len(c.Asked[0].Reduced) == 0 {
		t.Errorf("%v, %d arguments, %+v", c.Reduced, len(c.Args), c.Asked)
	}
	if text := auditText(t, d); len(text) > 300<<10 {
		t.Errorf("the log has %d bytes", len(text))
	}
}
