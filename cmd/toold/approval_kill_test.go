package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// TestApprovalKill kills the daemon at random moments while callers ask, in calls and
// in jobs, and an operator approves each thing once at most: nothing runs that was not
// approved, and nothing runs twice, however often it is asked for again.
func TestApprovalKill(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	root, tools, state := filepath.Join(dir, "work"), filepath.Join(dir, "tools.d"), filepath.Join(dir, "state")
	for _, d := range []string{root, tools} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	hosttest.WriteTool(t, tools, "append", map[string]any{
		"binary": "/bin/sh", "mutating": true, "stdin": false, "capabilities": map[string]any{"exec": []string{"/usr/bin", "/bin"}},
	}, map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/policy")})
	if err := hosttest.ShareCompiled(hosttest.ModuleRoot(), state); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "toold.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	socket := filepath.Join(dir, "tool.sock")
	daemon := &victim{t: t, name: daemonProgram(t), until: "ready", log: log, args: []string{
		"--tools", tools, "--root", root, "--socket", socket, "--state", state, "--log-level", "warn",
	}}
	daemon.start()
	t.Cleanup(func() { daemon.kill() })

	// Its policy is compiled once at most, which takes longer than a daemon lives here.
	if res, err := client.Call(t.Context(), socket, &wire.Call{Tool: "append", Args: []string{"-c", ":"}, Cwd: root}); err != nil || res.Err != nil {
		t.Fatal(res, err)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				mark := fmt.Sprintf("mark-%d-%d", i, n)
				// As often as it takes, and once more: what ran must not run again.
				for range 12 {
					c := &wire.Call{Tool: "append", Args: []string{"ask", "{}", "-c", `echo "$1" >> ledger`, "sh", mark}, Cwd: root, Background: i%2 == 1}
					res, err := client.Call(ctx, socket, c)
					if ctx.Err() != nil || err == nil && res.Err != nil && res.Err.Code == fault.Denied {
						break
					}
					if err != nil || res.Err != nil || c.Background {
						<-time.After(10 * time.Millisecond)
					}
				}
			}
		})
	}
	var mu sync.Mutex
	approved, decided := map[string]bool{}, 0 // by mark; guarded by mu
	taken := make(chan struct{}, 1)           // a decision was
	all.Go(func() {
		operator := &client.Approvals{Operator: client.NewAdmin(filepath.Join(state, "admin.sock"))}
		for ctx.Err() == nil {
			list, err := operator.List(ctx)
			if err != nil {
				<-time.After(5 * time.Millisecond)
				continue
			}
			for _, a := range list {
				if a.State != "pending" {
					continue
				}
				shown, err := operator.Show(ctx, a.ID)
				if err != nil {
					break
				}
				mark := markOf(t, shown)
				mu.Lock()
				first := !approved[mark] && rand.IntN(4) > 0
				if first { // also where the answer is lost
					approved[mark] = true
				}
				decided++
				mu.Unlock()
				var said *adminapi.Error
				_, err = operator.Decide(ctx, a.ID, first, "")
				if errors.As(err, &said) && said.Status != 409 && said.Status != 404 {
					t.Errorf("decide: %v", err)
				}
				if err == nil {
					select {
					case taken <- struct{}{}:
					default:
					}
				}
			}
			<-time.After(2 * time.Millisecond)
		}
	})
	late := time.After(time.Minute)
	for range kills(t) {
		// Any moment from when it is at work, which a busy machine delays.
		select {
		case <-taken:
		case <-late:
			t.Fatal("nothing is decided")
		}
		<-time.After(time.Duration(rand.IntN(200)) * time.Millisecond)
		daemon.kill()
		select {
		case <-taken: // of before
		default:
		}
		daemon.start()
	}
	for again := time.NewTicker(5 * time.Millisecond); ; {
		if _, err := os.Stat(filepath.Join(root, "ledger")); err == nil {
			again.Stop()
			break
		}
		select {
		case <-again.C:
		case <-late:
			t.Fatal("nothing ran")
		}
	}
	stop()
	all.Wait()
	daemon.kill()
	ledger, err := os.ReadFile(filepath.Join(root, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]int{}
	for mark := range strings.Lines(string(ledger)) {
		lines[strings.TrimSpace(mark)]++
	}
	for mark, n := range lines {
		if n > 1 {
			t.Errorf("%s ran %d times by one approval", mark, n)
		}
		if !approved[mark] {
			t.Errorf("%s ran, and nobody approved it", mark)
		}
	}
	t.Logf("%d decided, %d approved, %d ran", decided, len(approved), len(lines))
	if len(lines) == 0 {
		t.Error("nothing ran")
	}
	if _, err := os.Stat(filepath.Join(state, "approvals", "approvals.log.damaged")); err == nil {
		t.Error("a kill has damaged the store")
	}
}

// markOf is the last argument of what a request is for.
func markOf(t *testing.T, a *adminapi.Approval) string {
	var plan struct {
		Args []string `json:"args"`
	}
	if err := json.Unmarshal(a.Steps[0].Plan, &plan); err != nil || len(plan.Args) == 0 {
		t.Errorf("a plan: %s, %v", a.Steps[0].Plan, err)
		return ""
	}
	return plan.Args[len(plan.Args)-1]
}
