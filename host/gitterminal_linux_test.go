package host_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// git has colours and progress on a terminal, and neither a pager nor an editor.
func TestGitOnATerminal(t *testing.T) {
	needsTerminals(t)
	d := hosttest.Start(t, config.Config{})
	d.Ready(t, "git")
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", "from"},
		{"-C", "from", "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "the first"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = d.Root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	program := wrapperProgram(t)
	s := openScreen(t)
	s.start(d.Socket, d.Root+"/from", program, "git", "log")
	got := s.expect(`the first`)
	if code := s.ended(); code != 0 || !strings.Contains(got, "\x1b[33mcommit") {
		t.Errorf("exit code %d, %q", code, got)
	}
	s = openScreen(t)
	s.start(d.Socket, d.Root, program, "git", "clone", "--no-local", "from", "to")
	got = s.expect(`Receiving objects: 100%`)
	if code := s.ended(); code != 0 || !strings.Contains(got, "\r") {
		t.Errorf("exit code %d, %q", code, got)
	}
}
