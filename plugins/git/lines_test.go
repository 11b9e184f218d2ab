package main

import (
	"os/exec"
	"strings"
	"testing"

	hostconfig "github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// TestLines: command lines of git's own documentation come out the same through
// the wrapper as natively, or it is said why not.
func TestLines(t *testing.T) {
	needGit(t)
	program, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	root := tempDir(t)
	d := hosttest.Start(t, hostconfig.Config{Roots: []string{root}})
	def := hosttest.ReadyJSON(t, "git")
	if out, _ := exec.Command(program, "version").Output(); len(out) > 0 && strings.Compare(string(out), "git version 2.4") < 0 {
		def["config"] = map[string]any{"bisect": "helper"}
	}
	d.Tool(t, "git", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/git")})
	l := &hosttest.Lines{
		Tool: "git", Program: program, Daemon: d, Root: root,
		Env: []string{
			"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_AUTHOR_DATE=2026-01-05T09:00:00Z",
			"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com", "GIT_COMMITTER_DATE=2026-01-05T09:00:00Z",
		},
		Native:  []string{"GIT_CEILING_DIRECTORIES=" + root},
		Through: []string{"TOOL_ENV=GIT_AUTHOR_NAME,GIT_AUTHOR_EMAIL,GIT_AUTHOR_DATE,GIT_COMMITTER_NAME,GIT_COMMITTER_EMAIL,GIT_COMMITTER_DATE"},
		// Objects are named by what is in them, a rebase names the strategy that
		// git takes anyway, and a new repository has none of git's
		// examples, which do nothing.
		Ignore: func(name string) bool {
			return strings.Contains(name, "/objects/") || strings.HasSuffix(name, "rebase-merge/strategy") || strings.HasSuffix(name, ".sample") || strings.HasSuffix(name, ".git/description") || strings.HasSuffix(name, ".git/info/exclude")
		},
	}
	l.Run(t, "testdata/lines.txt", 150)
}
