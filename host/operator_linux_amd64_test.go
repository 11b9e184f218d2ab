package host_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/pdk/abi"
)

// TestClockIsSetBack sets the clock of a running daemon back by an hour, and then ahead:
// nothing runs twice, what waits for time to pass waits as long as ever, and the audit
// log is whole.
func TestClockIsSetBack(t *testing.T) {
	p, clock := hosttest.StartProcessWithClock(t, config.Config{Reliability: "all", Sessions: config.SessionsConfig{Idle: 1, Keep: 1}})
	hosttest.WriteTool(t, p.Tools, "writes", M{"binary": "/bin/sh", "mutating": true}, nil)
	hosttest.WriteTool(t, p.Tools, "hangs", M{"binary": "/bin/sh", "mutating": false, "timeout": 1}, nil)
	call := func(key string) *answer {
		t.Helper()
		return ask(t, p.Socket, M{"tool": "writes", "args": []string{"-c", "echo ran >>ledger; echo x"}, "cwd": p.Root, "idempotency_key": key})
	}
	watched := watchAll(t, &hosttest.Daemon{Config: p.Config})
	if err := unix.Mkfifo(filepath.Join(p.Root, "gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := []string{"before"}
	call(keys[0])
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		// A call and a session that begin before.
		data, err := (&client.Sessions{Socket: p.Socket}).Do(t.Context(), client.SessionCall{Name: "mutate", Payload: map[string]any{"op": "create"}})
		var made struct{ ID string }
		if err == nil {
			err = json.Unmarshal(data, &made)
		}
		if err != nil {
			t.Fatal(err)
		}
		hanging := make(chan *answer, 1)
		go func() {
			hanging <- ask(t, p.Socket, M{"tool": "hangs", "args": []string{"-c", "read x <gate"}, "cwd": p.Root})
		}()
		watched(events.Attempt)
		clock.Set(by)
		// What ran before is answered from its record, and what is new runs.
		keys = append(keys, by.String(), by.String())
		for _, key := range keys {
			if a := call(key); a.Stdout != "x\n" {
				t.Errorf("%v: %s: %s", by, key, a.raw)
			}
		}
		if a := <-hanging; a.Code != "TIMEOUT" {
			t.Errorf("%v: a call that has a second: %s", by, a.raw)
		}
		for _, want := range []string{"suspended", "closed"} {
			e := watched(events.State)
			for e.Session != made.ID || e.State != want {
				e = watched(events.State)
			}
			if off := time.Since(e.At) + by; off.Abs() > 10*time.Minute {
				t.Fatalf("%v: the daemon has the time %v: its clock was not set", by, e.At)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(p.Root, "ledger"))
	if err != nil || strings.Count(string(text), "ran\n") != 3 {
		t.Errorf("the tool ran: %q, %v", text, err)
	}
	p.Kill()
	if _, err := audit.Verify(filepath.Join(p.State, "audit"), nil); err != nil {
		t.Errorf("the audit log: %v", err)
	}
}

// TestClockAndLeases sets the clock of a daemon back, and ahead, by more than any lease
// while a call with a key runs: the same call waits for it, and nothing runs twice.
func TestClockAndLeases(t *testing.T) {
	t.Parallel()
	stores := map[string]string{"memory": "memory", "file": "file"}
	if program, err := exec.LookPath("redis-server"); err == nil {
		stores["redis"], _ = startRecords(t, program)
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			p, clock := hosttest.StartProcessWithClock(t, config.Config{Reliability: "all", Store: store})
			hosttest.WriteTool(t, p.Tools, "writes", M{"binary": "/bin/sh", "mutating": true, "limits": M{"concurrency": 4}}, nil)
			if err := unix.Mkfifo(filepath.Join(p.Root, "gate"), 0o600); err != nil {
				t.Fatal(err)
			}
			watched := watchAll(t, &hosttest.Daemon{Config: p.Config})
			for _, by := range []time.Duration{-time.Hour, time.Hour} {
				answers := make(chan *answer, 2)
				call := func() {
					answers <- ask(t, p.Socket, M{"tool": "writes", "args": []string{"-c", "read x <gate; echo ran >>ledger; echo $x"}, "cwd": p.Root, "idempotency_key": by.String()})
				}
				go call()
				watched(events.Attempt)
				clock.Set(by)
				go call()
				for watched(events.Begin).Tool != "writes" { // the second has come
				}
				// For reading too: a second reader would have its line, and not wait for ever.
				gate, err := os.OpenFile(filepath.Join(p.Root, "gate"), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				gate.WriteString("x\n")
				for range 2 {
					if a := <-answers; a.Stdout != "x\n" {
						t.Errorf("%v: %s", by, a.raw)
					}
				}
				gate.Close()
			}
			if text, err := os.ReadFile(filepath.Join(p.Root, "ledger")); err != nil || string(text) != "ran\nran\n" {
				t.Errorf("the tool ran: %q, %v", text, err)
			}
		})
	}
}

// TestClockAndJobs sets the clock of a daemon while a job runs that has a time limit:
// it has that time, and what it wrote is kept.
func TestClockAndJobs(t *testing.T) {
	t.Parallel()
	p, clock := hosttest.StartProcessWithClock(t, config.Config{})
	hosttest.WriteTool(t, p.Tools, "sh", M{"binary": "/bin/sh", "timeout": 1}, nil)
	if err := unix.Mkfifo(filepath.Join(p.Root, "gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	watched := watchAll(t, &hosttest.Daemon{Config: p.Config})
	var ids []string
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		a := ask(t, p.Socket, M{"tool": "sh", "args": []string{"-c", "echo begun; read x <gate"}, "cwd": p.Root, "background": true})
		if a.Status != "success" {
			t.Fatalf("%v: %s", by, a.raw)
		}
		watched(events.Attempt)
		clock.Set(by)
		if e := watched(events.End); e.Code != fault.Timeout {
			t.Errorf("%v: the job ends with %q", by, e.Code)
		}
		ids = append(ids, strings.TrimSpace(a.Stdout))
	}
	for _, id := range ids {
		until(t, "the job is listed as done", func() bool { return jobOf(t, p.Socket, id).State == "done" })
		if j := jobOf(t, p.Socket, id); j.Stdout != "begun\n" || j.Code != string(fault.Timeout) {
			t.Errorf("%+v", j)
		}
	}
}

// TestClockAndApprovals: a request for approval, and an approval, end when their time is
// over, also where they are of the daemon before and the clock is set back then.
func TestClockAndApprovals(t *testing.T) {
	t.Parallel()
	p, clock := hosttest.StartProcessWithClock(t, config.Config{})
	hosttest.WriteTool(t, p.Tools, "ledger", M{"binary": "/bin/sh", "mutating": true, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}},
		map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	d := &asking{&hosttest.Daemon{Config: p.Config, Root: p.Root}, t}
	state := func(id string) string {
		t.Helper()
		a, err := d.operator().Show(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return a.State
	}
	// One that is asked and approved in this process has its time, whatever the clock.
	d.refused(d.write("ahead", abi.Approval{}), fault.ApprovalRequired)
	d.approve(d.one().ID)
	clock.Set(time.Hour)
	d.runs(d.write("ahead", abi.Approval{}))
	clock.Set(0)

	// As long as it takes to start the daemon again, and then some.
	for ttl := 2 * time.Second; ; ttl *= 2 {
		c := d.write(fmt.Sprint(ttl), abi.Approval{TTLMS: ttl.Milliseconds()})
		d.refused(c, fault.ApprovalRequired)
		id := d.one().ID
		d.approve(id)
		p.Kill()
		p.Start()
		clock.Set(-time.Hour)
		if state(id) != "approved" {
			if ttl > 10*time.Second {
				t.Fatalf("an approval for %v has ended before the daemon serves", ttl)
			}
			continue
		}
		until(t, "the approval ends", func() bool { return state(id) == "expired" })
		d.refused(c, fault.ApprovalRequired)
		break
	}
	if got := d.ledger(); got != "ahead\n" {
		t.Errorf("what ran: %q", got)
	}
}

// TestClockAndTokens: whether a token counts is asked of the clock as it is now. The
// refusal says which time the token has.
func TestClockAndTokens(t *testing.T) {
	t.Parallel()
	issuer, no := hosttest.NewIssuer(t), false
	p, clock := hosttest.StartProcessWithClock(t, config.Config{Identity: config.IdentityConfig{JWKS: issuer.JWKS, AllowUID: &no}})
	hosttest.WriteTool(t, p.Tools, "echo", M{"binary": "/bin/echo"}, nil)
	now := time.Now()
	exp, nbf := now.Add(30*time.Minute), now.Add(-30*time.Minute)
	token := issuer.Token(t, M{"sub": "alice", "exp": exp.Unix(), "nbf": nbf.Unix()})
	for _, tt := range []struct {
		by   time.Duration
		want string
	}{
		{0, ""},
		{time.Hour, "it expired at " + exp.UTC().Format(time.RFC3339)},
		{-time.Hour, "it is not valid before " + nbf.UTC().Format(time.RFC3339) + "; check the clocks"},
		{0, ""},
	} {
		clock.Set(tt.by)
		a := ask(t, p.Socket, M{"tool": "echo", "args": []string{"x"}, "cwd": p.Root, "token": token})
		switch {
		case tt.want == "" && a.Stdout != "x\n":
			t.Errorf("%v: %s", tt.by, a.raw)
		case tt.want != "" && (a.Code != string(fault.Unauthenticated) || !strings.Contains(a.message(), tt.want)):
			t.Errorf("%v: %s", tt.by, a.raw)
		}
	}
}
