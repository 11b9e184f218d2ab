package host_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// TestNearNames: the refusal of a name tells those that were meant, and none that the
// socket does not serve; a tool that it does not serve is refused as one that is not
// there.
func TestNearNames(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	second := filepath.Join(dir, "vcs.sock")
	d := hosttest.Start(t, config.Config{Sockets: []config.Socket{{Path: second, Categories: []string{"vcs"}}}})
	d.Tool(t, "print", M{"binary": "/bin/pwd", "category": "vcs"}, nil)
	d.Tool(t, "prints", M{"binary": "/bin/pwd", "category": "net"}, nil)
	for _, tool := range []string{"print", "prints"} { // until they are loaded
		if a := ask(t, d.Socket, M{"tool": tool, "cwd": d.Root}); a.Code != "" {
			t.Fatalf("%s: %s", tool, a.raw)
		}
	}
	told := func(socket, tool string) string {
		a := ask(t, socket, M{"tool": tool, "cwd": d.Root})
		if a.Code != "UNKNOWN_TOOL" {
			t.Errorf("%s: %s", tool, a.raw)
		}
		var text string
		if err := json.Unmarshal(a.Error, &text); err != nil {
			t.Errorf("%s: %v", a.raw, err)
		}
		return strings.ReplaceAll(text, `"`+tool+`"`, "NAME")
	}
	if got := told(d.Socket, "pirnt"); got != "there is no tool NAME here; did you mean print? toolctl tools lists the tools" {
		t.Error(got)
	}
	if got := told(d.Socket, "print_s"); !strings.Contains(got, "did you mean prints or print?") {
		t.Error(got)
	}
	hidden, missing := told(second, "prints"), told(second, "printz")
	if hidden != missing || !strings.Contains(hidden, "did you mean print? ") {
		t.Errorf("a hidden tool: %s\none that is not there: %s", hidden, missing)
	}
	if got := told(d.Socket, `x; y`); got != "there is no tool NAME here; toolctl tools lists the tools" {
		t.Error(got)
	}
}
