package host_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// TestReaderLeaves: where whoever reads a tool's output has seen enough, the tool is
// told as natively, and its wrapper ends after it: the next command of a script finds
// nothing of a tool that still cleans up.
func TestReaderLeaves(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	def := maps.Clone(shell)
	def["capabilities"] = M{"exec": []string{"/bin/sh", "/bin/dash", "/usr/bin/rm", "/bin/rm"}}
	d.Tool(t, "job", def, nil)
	bin := t.TempDir()
	if err := os.Symlink(wrapperProgram(t), filepath.Join(bin, "job")); err != nil {
		t.Fatal(err)
	}
	// Cleaning up takes longer than it takes to start the next command.
	job := `: >lock
trap 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; rm lock; exit 1' PIPE TERM
while :; do echo line; done`
	cmd := exec.Command("sh", "-c", `for i in 1 2 3; do
	{ job -c "$0"; echo "exit $?" >&2; if [ -e lock ]; then echo it still runs >&2; fi; } | head -n 1
done`, job)
	cmd.Dir = d.Root
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "TOOL_SOCKET=" + d.Socket}
	out, err := cmd.CombinedOutput()
	if want := strings.Repeat("line\nexit 141\n", 3); err != nil || string(out) != want {
		t.Errorf("%v: %s", err, out)
	}
}
