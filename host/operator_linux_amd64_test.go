package host_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/hosttest"
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
