package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
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
	b, err := os.ReadFile("../../tools.d/gh/tool.json")
	if err != nil {
		t.Fatal(err)
	}
	var def map[string]any
	if err := json.Unmarshal(b, &def); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	p.write(token, "gho_sesame", 0o600)
	def["binary"] = program(t, p.gh)
	def["secrets"] = map[string]any{"gh-token": map[string]string{"from": "file:" + token, "env": "GH_TOKEN"}}
	env := def["environment"].(map[string]any)
	env["HTTPS_PROXY"], env["SSL_CERT_FILE"] = p.hub.proxy.URL, p.hub.ca
	d := hosttest.Start(t, config.Config{Roots: []string{filepath.Dir(p.cwd)}})
	d.Tool(t, "gh", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/gh")})
	run := func(stdin string, args ...string) (*wire.Result, string) {
		t.Helper()
		var out bytes.Buffer
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "gh", Args: args, Cwd: p.cwd, Stream: true}, wire.Local{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatal(err)
		}
		p.stdout += out.String()
		return res, out.String()
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
		if res, out := run(tt.stdin, tt.args...); res.Err != nil || res.ExitCode != 0 {
			t.Errorf("gh %q: %v, exit %d: %s", tt.args, res.Err, res.ExitCode, out)
		}
		seen, _ := p.hub.requests()
		if !slices.ContainsFunc(seen, func(r string) bool { return strings.Contains(r, tt.asked) }) {
			t.Errorf("gh %q: asked %q, want %q", tt.args, seen, tt.asked)
		}
	}
	for _, args := range [][]string{{"auth", "token"}, {"pwn"}, {"pr", "list"}, {"api", "rate_limit", "-q", "env"}, {"issue", "create", "-R", "o/r", "-t", "T", "-F", "body.md"}} {
		if res, _ := run("", args...); res.Err == nil || res.Err.Code != fault.Denied || res.ExitCode != 126 {
			t.Errorf("gh %q: %v, exit %d", args, res.Err, res.ExitCode)
		}
	}
	// The repository of the working directory, as the host read it.
	p.write(filepath.Join(p.cwd, ".git", "HEAD"), "ref: refs/heads/main\n", 0o644)
	p.write(filepath.Join(p.cwd, ".git", "config"), "[core]\n\trepositoryformatversion = 0\n[remote \"origin\"]\n\turl = git@github.com:mine/here.git\n", 0o644)
	for _, dir := range []string{"objects", "refs"} {
		if err := os.MkdirAll(filepath.Join(p.cwd, ".git", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if res, out := run("", "issue", "list"); res.Err != nil || res.ExitCode != 0 {
		t.Errorf("gh issue list: %v, exit %d: %s", res.Err, res.ExitCode, out)
	}
	if seen, _ := p.hub.requests(); !slices.ContainsFunc(seen, func(r string) bool { return strings.Contains(r, `"owner":"mine"`) }) {
		t.Errorf("gh issue list: asked %q", seen[len(seen)-1])
	}
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
