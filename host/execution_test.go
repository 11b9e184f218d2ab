package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// The id of an execution that runs is of no further one, whatever that calls; one
// that has ended may be used again, which the log tells. A turn and a job have the
// id of what asked for them.
func TestExecutionIDThatRuns(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, nil)
	d.Tool(t, "echo", M{}, nil)
	gate, up := filepath.Join(d.Root, "gate"), filepath.Join(d.Root, "up")
	id := newExecution()
	held := M{"toolId": "sh", "executionId": id, "payload": M{"args": []string{"-c", "touch " + up + "; until test -e " + gate + "; do sleep 0.01; done; echo first"}}}
	done := make(chan *answer, 1)
	go func() { done <- ask(t, d.Socket, held) }()
	until(t, "the first call runs", func() bool { _, err := os.Stat(up); return err == nil })
	for name, q := range map[string]M{
		"the same":     {"toolId": "sh", "executionId": id, "payload": M{"args": []string{"-c", "true"}}},
		"another tool": {"toolId": "echo", "executionId": id, "payload": M{"args": []string{"second"}}},
		"a prompt":     {"toolId": "session.prompt", "executionId": id, "payload": M{"text": "echo second", "queue": true}},
		"a turn":       {"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"envelope": M{"toolId": "echo", "executionId": id, "payload": M{"args": []string{"second"}}}}},
		"a job":        {"toolId": "echo", "executionId": id, "background": true, "payload": M{"args": []string{"second"}}},
	} {
		if a := ask(t, d.Socket, q); !strings.Contains(string(a.Error), "INVALID_ENVELOPE") || !strings.Contains(string(a.Error), id+" is running, as a call of") || !strings.Contains(string(a.Error), "sh") {
			t.Errorf("%s: %s", name, a.raw)
		}
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a := <-done; !strings.Contains(string(a.Data), "first") {
		t.Errorf("the first: %s", a.raw)
	}
	const note = "an execution id was used again"
	if strings.Contains(d.Logs(), note) {
		t.Error("noted before")
	}
	if a := ask(t, d.Socket, held); !strings.Contains(string(a.Data), "first") || !strings.Contains(d.Logs(), note) {
		t.Errorf("afterwards: %s", a.raw)
	}
	// What is a part of an execution has its id.
	for name, q := range map[string]M{
		"a prompt":                   {"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"text": "echo second", "queue": true}},
		"a job":                      {"toolId": "echo", "executionId": newExecution(), "background": true, "payload": M{"args": []string{"second"}}},
		"a prompt in the background": {"toolId": "session.prompt", "executionId": newExecution(), "background": true, "payload": M{"text": "echo second", "queue": true}},
	} {
		if a := ask(t, d.Socket, q); a.Status != "success" {
			t.Errorf("%s: %s", name, a.raw)
		}
	}
}
