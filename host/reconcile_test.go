package host_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
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

// interrupted is a script that waits to be ended when it runs for the first time.
const interrupted = `test -e "went-$2" || { touch "went-$2"; echo began; sleep 60; }; echo "$2" >> ledger; echo did`

// onBegan sends a signal when the script has begun.
type onBegan chan os.Signal

func (s onBegan) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "began") {
		s <- syscall.SIGTERM
	}
	return len(p), nil
}

// TestReconcile: what a policy's export says of a call that was cut off counts only
// where it is certain, and it changes nothing on its way.
func TestReconcile(t *testing.T) {
	root := t.TempDir()
	d := hosttest.Start(t, config.Config{Roots: []string{root}, Reliability: "all", LogLevel: "info"})
	def := M{"binary": "/bin/sh", "mutating": true, "stdin": false, "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}
	d.Tool(t, "looked", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/reconciler")})
	declared := M{"reconcile": M{"args": []string{"-c", `grep -qx "$0" ledger || exit 3; echo found`, "{key}"}, "done": []int{0}, "not_done": []int{3}}}
	for k, v := range def {
		declared[k] = v
	}
	d.Tool(t, "declared", declared, nil)
	ask := func(tool, mode, key string, out io.Writer, signals chan os.Signal) *wire.Result {
		t.Helper()
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: tool, Args: []string{"-c", interrupted, "sh", mode, key}, Cwd: root, IdempotencyKey: key},
			wire.Local{Stdout: out, Stderr: io.Discard, Signals: signals})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for _, tt := range []struct{ tool, mode, want, evidence string }{
		{"looked", "done", "found\n", "it says so"},
		{"looked", "looks", "ledger\n", "ls answers"},
		{"looked", "not-done", "did\n", "nothing is there"},
		{"looked", "mutates", "", "refused: denied by rule read-only"},
		{"looked", "never-enough", "", "asks for more commands"},
		{"looked", "nonsense", "", "perhaps"},
		{"looked", "failed", "", "result of a call that failed"},
		{"looked", "trap", "", "could not be looked into"},
		{"declared", "not-done", "did\n", "exited with 3"},
		{"declared", "-dash", "", "begins with a dash"},
	} {
		t.Run(tt.tool+", "+tt.mode, func(t *testing.T) {
			key := tt.tool + "-" + strings.TrimPrefix(tt.mode, "-")
			if tt.mode == "-dash" {
				key = "-dash"
			}
			if tt.mode == "looks" {
				if err := os.WriteFile(filepath.Join(root, "ledger"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			began := make(onBegan, 1)
			if res := ask(tt.tool, tt.mode, key, began, began); res.Err == nil && res.ExitCode == 0 {
				t.Fatalf("it was not cut off: %+v", res)
			}
			before := lines(t, filepath.Join(root, "ledger"))
			var wg sync.WaitGroup
			ran := make(chan bool, 5)
			for range 5 {
				wg.Go(func() {
					var out strings.Builder
					res := ask(tt.tool, tt.mode, key, &out, nil)
					switch {
					case tt.want == "" && (res.Err == nil || res.Err.Code != fault.OutcomeUnknown):
						t.Errorf("%+v, %v: %s", res, res.Err, out.String())
					case tt.want != "" && (res.Err != nil || !strings.Contains(out.String(), tt.want)):
						t.Errorf("%+v, %v: %s", res, res.Err, out.String())
					}
					ran <- res.Err == nil && !res.FromCache
				})
			}
			wg.Wait()
			close(ran)
			times := 0
			for r := range ran {
				if r {
					times++
				}
			}
			if n, want := lines(t, filepath.Join(root, "ledger"))-before, strings.Count(tt.want, "did"); n != want || times != want {
				t.Errorf("%d lines were written and %d callers ran, want %d", n, times, want)
			}
			if _, err := os.Stat(filepath.Join(root, "escaped")); err == nil {
				t.Error("the look changed something")
			}
			d.AwaitLog(t, 0, "looked into", tt.evidence)
		})
	}
	journal := ""
	filepath.WalkDir(filepath.Join(d.Config.State, "sessions"), func(path string, e os.DirEntry, err error) error {
		if b, err := os.ReadFile(path); err == nil {
			journal += string(b)
		}
		return nil
	})
	if !strings.Contains(journal, `"found":{"of":`) || !strings.Contains(journal, `"evidence":"it says so"`) {
		t.Error("the journal of the session has no evidence")
	}
	m := metrics(t, d)
	for _, event := range []string{"found_done", "found_not_done", "found_nothing"} {
		if !strings.Contains(m, fmt.Sprintf("event=%q", event)) {
			t.Errorf("%s is not counted", event)
		}
	}
	of := map[string]bool{}
	for _, e := range auditLog(t, d) {
		if e.End == nil || e.End.Found == nil {
			continue
		}
		f := e.End.Found
		of[f.Verdict+": "+f.Evidence] = true
		if f.Of == "" || f.Of == e.End.Execution {
			t.Errorf("the audit log has a look into %q: %+v", f.Of, e.End)
		}
	}
	for _, found := range []string{"done: it says so", "not_done: nothing is there", "unknown: refused: denied by rule read-only"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(of)), func(s string) bool { return strings.HasPrefix(s, found) }) {
			t.Errorf("the audit log does not say %s: %v", found, of)
		}
	}
}
