package examples_test

import (
	"os/exec"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// TestNotes runs the example that calls git, with the git of tools.d and its
// policy, in a repository.
func TestNotes(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Ready(t, "git")
	d.Tool(t, "notes", map[string]any{"capabilities": map[string]any{"tool_call": []string{"git"}}}, map[string]string{"handler.wasm": hosttest.Guest(t, "sdk-examples/go/notes")})
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"},
		{"commit", "-q", "--allow-empty", "-m", "Begin"}, {"tag", "v1"},
		{"commit", "-q", "--allow-empty", "-m", "Add a"}, {"commit", "-q", "--allow-empty", "-m", "Add b"},
	} {
		cmd := exec.Command("git", append([]string{"-C", d.Root, "-c", "user.name=Ada", "-c", "user.email=ada@example.com"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	call := func(from string) *wire.Result {
		t.Helper()
		res, err := client.Call(t.Context(), d.Socket, &wire.Call{Tool: "notes", Args: []string{from}, Cwd: d.Root})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := call("v1"); res.Err != nil || string(res.Stdout) != "Since v1:\n- Add b\n- Add a\n" {
		t.Errorf("%v: %s%s", res.Err, res.Stdout, res.Stderr)
	}
	if res := call("v2"); res.Err == nil || res.Err.Code != fault.ToolFailed || res.Err.ToolCode != string(fault.ToolFailed) {
		t.Errorf("from what is not there: %v", res.Err)
	}
}
