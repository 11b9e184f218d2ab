package host_test

import (
	"bytes"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// A call whose output goes past limits.stream fails and says so, also where its tool
// did not notice: the write that went past was its last, or it takes no notice of a
// reader who has left. What was within the limit arrives.
func TestStreamLimit(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	def := maps.Clone(shell)
	def["limits"] = M{"stream": 1000}
	d.Tool(t, "sh", def, nil)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("abcdef-canary-of-the-limit"), 0o600); err != nil {
		t.Fatal(err)
	}
	masked := maps.Clone(def)
	masked["secrets"] = M{"one": M{"from": "file:" + secret, "env": "ONE"}}
	d.Tool(t, "masked", masked, nil)
	program := wrapperProgram(t)
	for name, test := range map[string]struct{ tool, script string }{
		"the last write":     {"sh", `printf '%01001d' 0`},
		"of standard error":  {"sh", `printf '%01001d' 0 >&2`},
		"of both together":   {"sh", `printf '%0600d' 0 >&2; printf '%0600d' 0`},
		"it goes on":         {"sh", `trap '' PIPE HUP TERM; printf '%02000d' 0; exec >/dev/null 2>&1; while :; do sleep 1; done`},
		"held by masking":    {"masked", `printf '%0998d' 0; printf abc`},
		"its exit code is 3": {"sh", `trap '' PIPE; printf '%01001d' 0; exit 3`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			both := writer(func(p []byte) { out.Write(p) })
			res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: test.tool, Args: []string{"-c", test.script}, Cwd: d.Root}, wire.Local{Stdout: both, Stderr: both})
			if err != nil {
				t.Fatal(err)
			}
			if res.Err == nil || res.Err.Code != fault.LimitExceeded || res.ExitCode != fault.LimitExceeded.ExitCode() {
				t.Errorf("%+v, %+v", res, res.Err)
			}
			if got := out.Len(); got != 1000 {
				t.Errorf("%d bytes arrived", got)
			}
			needsTerminals(t)
			s := openScreen(t)
			s.start(d.Socket, d.Root, program, test.tool, "-c", test.script)
			s.expect(`over the limits\.stream`)
			if code := s.ended(); code != fault.LimitExceeded.ExitCode() {
				t.Errorf("on a terminal: exit code %d", code)
			}
		})
	}
	// All that is allowed is no error.
	cmd := exec.Command(program)
	cmd.Args, cmd.Dir, cmd.Env = []string{"sh", "-c", `printf '%0400d' 0 >&2; printf '%0600d' 0`}, d.Root, []string{"TOOL_SOCKET=" + d.Socket}
	cmd.Stderr = io.Discard
	if out, err := cmd.Output(); err != nil || string(out) != strings.Repeat("0", 600) {
		t.Errorf("%q, %v", out, err)
	}
}
