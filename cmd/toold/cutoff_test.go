package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// TestJobOutputAfterAKill kills the daemon while jobs write and end. Of each job that
// had begun the output is there then, whole, or it is said that it is not.
func TestJobOutputAfterAKill(t *testing.T) {
	t.Parallel()
	l := newLedger(t, daemonProgram(t), "file")
	const size = 60_000
	whole := map[bool]int{}
	for round := range kills(t) {
		var jobs []string
		for n := range 6 {
			res, err := client.Call(t.Context(), l.socket, &wire.Call{
				Tool: "append", Cwd: l.root, Background: true,
				Args: []string{"-c", fmt.Sprintf(`touch began-%d-%d; sleep 0.0%d; head -c %d /dev/zero | tr '\0' x; echo err >&2`, round, n, n, size)},
			})
			if err != nil || res.Err != nil {
				t.Fatalf("%+v, %v", res, err)
			}
			jobs = append(jobs, strings.TrimSpace(string(res.Stdout)))
		}
		// A random moment: nothing that happens is waited for.
		<-time.After(time.Duration(rand.IntN(120)) * time.Millisecond)
		l.daemon.kill()
		l.daemon.start()
		for n, id := range jobs {
			res, err := client.Call(t.Context(), l.socket, &wire.Call{
				Form: wire.Envelope, Tool: "session.query", ExecutionID: wire.NewExecutionID(),
				Payload: json.RawMessage(fmt.Sprintf(`{"selector":"jobs.filter(j, j.id == '%s').map(j, [j.state, j.code, string(j.stdout.size()), j.stderr, j.output_note])"}`, id)),
			})
			if err != nil || res.Err != nil {
				t.Fatalf("%+v, %v", res, err)
			}
			var found struct{ Value [][]string }
			if err := json.Unmarshal(res.Data, &found); err != nil {
				t.Fatalf("%v: %s", err, res.Data)
			}
			if len(found.Value) != 1 {
				if _, err := os.Stat(filepath.Join(l.root, fmt.Sprintf("began-%d-%d", round, n))); err == nil {
					t.Errorf("round %d: job %s began and is not there: %s", round, id, res.Data)
				}
				continue
			}
			state, stdout, stderr, note := found.Value[0][0], found.Value[0][2], found.Value[0][3], found.Value[0][4]
			is := stdout == fmt.Sprint(size) && stderr == "err\n" && note == ""
			none := stdout == "0" && stderr == "" && note != ""
			// A job whose end is in the journal may have been killed before its output
			// was kept, but nobody had heard of its end then.
			if state != "done" || !is && !none {
				t.Errorf("round %d: job %s is %q", round, id, found.Value[0])
			}
			whole[is]++
		}
		entries, err := os.ReadDir(filepath.Join(l.daemon.flag("--state"), "sessions", "output"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".new") {
				t.Errorf("round %d: %s was left", round, e.Name())
			}
		}
	}
	t.Logf("%d outputs were whole after a kill, %d were not there, and it was said", whole[true], whole[false])
}

// TestNotDoneNeedsTheEnd: what looks as if it were not done runs again only once nothing
// of the call that was cut off can run any more, as on the state folder of its own daemon.
func TestNotDoneNeedsTheEnd(t *testing.T) {
	t.Parallel()
	l := newLedger(t, daemonProgram(t), "file")
	hosttest.WriteTool(t, l.daemon.flag("--tools"), "asked", map[string]any{
		"binary": "/bin/sh", "mutating": true, "stdin": false, "capabilities": map[string]any{"exec": []string{"/usr/bin", "/bin"}},
		"reconcile": map[string]any{"args": []string{"-c", "exit 3"}, "not_done": []int{3}},
	}, nil)
	q := &wire.Call{Tool: "asked", Cwd: l.root, IdempotencyKey: "k", Args: []string{"-c", "test ! -e began || { echo again; exit 0; }; touch began; sleep 60"}}
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		for { // until the tool is there
			res, err := client.Call(t.Context(), l.socket, q)
			if err != nil || res.Err == nil || res.Err.Code != fault.UnknownTool {
				return
			}
		}
	}()
	for end := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(l.root, "began")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not begin")
		}
	}
	l.daemon.kill()
	<-cut
	place := filepath.Join(l.daemon.flag("--state"), "place")
	was, err := os.ReadFile(place)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(place, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.daemon.start()
	res, err := client.Call(t.Context(), l.socket, q)
	if err != nil || res.Err == nil || res.Err.Code != fault.OutcomeUnknown {
		t.Errorf("where nobody knows whether it still runs: %+v, %v", res, err)
	}
	l.daemon.kill()
	if err := os.WriteFile(place, was, 0o600); err != nil {
		t.Fatal(err)
	}
	l.daemon.start()
	res, err = client.Call(t.Context(), l.socket, q)
	if err != nil || res.Err != nil || string(res.Stdout) != "again\n" {
		t.Errorf("on its own state folder: %+v, %v", res, err)
	}
}
