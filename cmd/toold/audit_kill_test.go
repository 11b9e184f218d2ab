package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// TestAuditKill kills the daemon at random moments while callers change something
// and read, and holds the audit log to what it promises: whatever ran had its begin
// on record before, the chain holds after each kill, and what a kill tore is cut
// off and noted.
func TestAuditKill(t *testing.T) {
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
	}, nil)
	hosttest.WriteTool(t, tools, "look", map[string]any{"binary": "/bin/echo", "mutating": false, "stdin": false}, nil)
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

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	acked := map[string]bool{} // guarded by mu
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				mark := fmt.Sprintf("mark-%d-%d", i, n)
				c := &wire.Call{Tool: "append", Args: []string{"-c", `echo "$1" >> ledger`, "sh", mark}, Cwd: root}
				if i%4 == 3 {
					c = &wire.Call{Tool: "look", Args: []string{mark}, Cwd: root}
				}
				res, err := client.Stream(ctx, socket, c, wire.Local{Stdout: io.Discard, Stderr: io.Discard})
				if err == nil && res.Err == nil && res.ExitCode == 0 && c.Tool == "append" {
					mu.Lock()
					acked[mark] = true
					mu.Unlock()
				}
			}
		})
	}
	folder := filepath.Join(state, "audit")
	count := kills(t)
	for range count {
		<-time.After(time.Duration(20+rand.IntN(150)) * time.Millisecond) // any moment under load
		daemon.kill()
		daemon.start()
		if _, err := audit.Verify(folder, nil); err != nil {
			t.Fatalf("after a kill: %v", err)
		}
	}
	stop()
	callers.Wait()
	daemon.kill()
	daemon.start()
	report, err := audit.Verify(folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	begun := map[string]bool{}
	cut := 0
	list, err := audit.Calls(folder, audit.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Call.Tool == "append" && e.Call.Effect == audit.EffectAllow {
			begun[e.Call.Args[len(e.Call.Args)-1]] = true
			if e.End == nil {
				cut++
			}
		}
	}
	for mark := range acked {
		if !begun[mark] {
			t.Errorf("%s was acknowledged, and has no begin", mark)
		}
	}
	ledger, err := os.ReadFile(filepath.Join(root, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for mark := range strings.Lines(string(ledger)) {
		ran++
		if mark = strings.TrimSuffix(mark, "\n"); !begun[mark] {
			t.Errorf("%s ran, and has no begin", mark)
		}
	}
	t.Logf("%d kills: %d calls ran, %d acknowledged, %d begun, %d of these without an end; %d records in %d segments",
		count, ran, len(acked), len(begun), cut, report.Records, report.Segments)
	if len(acked) == 0 || len(begun) == 0 {
		t.Error("no call was made: nothing was tested")
	}
}
