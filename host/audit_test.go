package host_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// auditCalls are the calls in the log of a daemon that was stopped, or is about to
// write them: it waits for as many as are wanted.
func auditCalls(t testing.TB, d *hosttest.Daemon, want int) []*audit.Entry {
	t.Helper()
	for {
		list, err := audit.Calls(filepath.Join(d.State, "audit"), audit.Query{Whole: true})
		if err != nil {
			t.Fatal(err)
		}
		ended := 0
		for _, e := range list {
			if e.End != nil {
				ended++
			}
		}
		if ended >= want {
			return list
		}
		if t.Context().Err() != nil {
			t.Fatal("the records do not come")
		}
	}
}

func TestAuditWalk(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "echo", M{"binary": "/bin/echo", "mutating": true}, nil)
	d.Tool(t, "open", granted, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg), "restricted.wasm": hosttest.Guest(t, policyPkg)})
	for _, tool := range []string{"echo", "open"} {
		a := ask(t, d.Socket, M{"tool": tool, "args": []string{"some", "words"}, "cwd": d.Root})
		t.Logf("%+v", a)
	}
	for _, e := range auditCalls(t, d, 2) {
		b, _ := json.MarshalIndent(e, "", "  ")
		t.Logf("%s", b)
	}
	d.Stop(t)
	r, err := audit.Verify(filepath.Join(d.State, "audit"), nil)
	t.Logf("%+v %v", r, err)
	_ = strings.Contains
}
