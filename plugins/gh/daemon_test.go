package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

// TestThroughDaemon runs the ready tool as it is shipped, but for the way to
// GitHub: policy in WebAssembly, gh confined by the host, so that the git that
// gh pr create looks for cannot be executed at all.
func TestThroughDaemon(t *testing.T) {
	p := newPlace(t)
	def := hosttest.ReadyJSON(t, "gh")
	p.Write("token", "gho_"+hosttest.Sesame, 0o600)
	def["binary"] = program(t, p.Program)
	def["secrets"] = map[string]any{"gh-token": map[string]string{"from": "file:" + filepath.Join(p.Dir, "token"), "env": "GH_TOKEN"}}
	env := def["environment"].(map[string]any)
	env["HTTPS_PROXY"], env["SSL_CERT_FILE"] = p.hub.proxy.URL, p.hub.ca
	def["capabilities"].(map[string]any)["network"] = []string{strings.TrimPrefix(p.hub.proxy.URL, "http://")}
	def["capabilities"].(map[string]any)["unread"] = []string{strings.TrimPrefix(p.hub.proxy.URL, "http://")}
	d := p.Daemon(def)
	var wrote strings.Builder
	run := func(args ...string) *wire.Result {
		t.Helper()
		res := p.Call(d, "gh", args...)
		wrote.WriteString(p.Stdout + p.Stderr)
		return res
	}
	for _, tt := range []struct {
		stdin string
		args  []string
		asked string
	}{
		{"", []string{"pr", "list", "-R", "o/r"}, `"owner":"o"`},
		{"", []string{"api", "repos/o/r/pulls"}, "GET api.github.com/repos/o/r/pulls"},
		{"the body\n", []string{"pr", "create", "-R", "o/r", "--head", "b", "--base", "main", "--title", "T", "--body-file", "-"}, "the body"},
	} {
		p.Stdin = tt.stdin
		if res := run(tt.args...); res.Err != nil || res.ExitCode != 0 {
			t.Errorf("gh %q: %v, exit %d: %s%s", tt.args, res.Err, res.ExitCode, p.Stdout, p.Stderr)
		}
		if !p.hub.asked(tt.asked) {
			t.Errorf("gh %q: asked %q, want %q", tt.args, p.hub.requests(), tt.asked)
		}
	}
	p.Stdin = ""
	for _, args := range [][]string{{"auth", "token"}, {"pwn"}, {"pr", "list"}, {"api", "rate_limit", "-q", "env"}, {"issue", "create", "-R", "o/r", "-t", "T", "-F", "body.md"}} {
		if res := run(args...); res.Err == nil || res.Err.Code != fault.Denied || res.ExitCode != 126 {
			t.Errorf("gh %q: %v, exit %d", args, res.Err, res.ExitCode)
		}
	}
	// The repository of the working directory, as the host read it.
	p.Write("root/work/.git/HEAD", "ref: refs/heads/main\n", 0o644)
	p.Write("root/work/.git/config", "[core]\n\trepositoryformatversion = 0\n[remote \"origin\"]\n\turl = git@github.com:mine/here.git\n", 0o644)
	for _, dir := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(p.Cwd, ".git", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if res := run("issue", "list"); res.Err != nil || res.ExitCode != 0 {
		t.Errorf("gh issue list: %v, exit %d: %s%s", res.Err, res.ExitCode, p.Stdout, p.Stderr)
	}
	if !p.hub.asked(`"owner":"mine"`) {
		t.Errorf("gh issue list: asked %q", p.hub.requests())
	}
	p.Stdout = wrote.String()
	if h := p.harm(); h != "" {
		t.Error(h)
	}
}

// program is what path runs: where make test fetched gh, path is a script that
// a confined tool has no shell for.
func program(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(b, []byte("#!")) {
		return path
	}
	_, after, _ := strings.Cut(string(b), " exec ")
	return strings.Fields(after)[0]
}
