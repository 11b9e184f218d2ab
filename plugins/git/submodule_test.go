package main

import (
	"net/http/cgi"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// TestSubmodulesAfterClone: what the notes of a clone with submodules, and of an update of
// submodules with submodules, name leads to what git alone makes of --recurse-submodules.
func TestSubmodulesAfterClone(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	server := httptest.NewServer(&cgi.Handler{
		Path: "/usr/lib/git-core/git-http-backend",
		Env:  []string{"GIT_PROJECT_ROOT=" + b.ws, "GIT_HTTP_EXPORT_ALL=1"},
	})
	defer server.Close()
	if out, err := b.plain(".", nil, "", "!"+b.words.Replace(`set -e
make() { # NAME, a submodule and its repository
	git clone -q {WS}/remote.git work; cd work
	printf '[submodule "%s"]\n\tpath = %s\n\turl = ../%s\n' $2 $2 $3 >.gitmodules
	git add .gitmodules; git update-index --add --cacheinfo 160000,$(git ls-remote {WS}/$3 HEAD | cut -f1),$2
	git commit -q -m sub; git clone -q --bare . {WS}/$1; cd ..; rm -rf work
}
make middle.git deep remote.git
make top.git mid middle.git
git clone -q --recurse-submodules `+server.URL+`/top.git alone`)); err != nil {
		t.Fatal(out)
	}
	p := testPolicy(map[string]string{"allow_http": "true"})
	// noted makes a call, and the one that its note names.
	noted := func(cwd, line string, names *strings.Replacer) {
		t.Helper()
		out, code, d := b.call(p, true, cwd, nil, "", b.line(line)...)
		if d.Effect != abi.Allow || code != 0 || len(d.Notes) != 1 {
			t.Fatalf("git %s: %s, exit code %d, notes %q\n%s", line, d.Reason, code, d.Notes, out)
		}
		_, next, _ := strings.Cut(d.Notes[0], "git ")
		next, _, _ = strings.Cut(next, " clones them")
		b.calls(p, cwd, names.Replace(next))
	}
	noted(".", "clone -q --recurse-submodules "+server.URL+"/top.git", strings.NewReplacer())
	noted("top", "submodule update --init --recursive", strings.NewReplacer("SUBMODULE", "mid"))
	list := func(dir string) string {
		t.Helper()
		out, err := b.plain(dir, nil, "", "ls-files", "--recurse-submodules", "-s")
		if err != nil {
			t.Fatal(out)
		}
		return out
	}
	if got, want := list("top"), list("alone"); got != want || !strings.Contains(got, "mid/deep/a.txt") || !b.exists(filepath.Join(b.ws, "top/mid/deep/a.txt")) {
		t.Errorf("there is\n%swant\n%s", got, want)
	}

	// The command of foreach is the caller's to run. One that is not checked out is left out,
	// as git does: the command would run in the repository around it.
	if out, err := b.plain("top", nil, "", "!"+`printf '[submodule "not"]\n\tpath = not\n\turl = ../remote.git\n' >>.gitmodules; mkdir not; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),not`); err != nil {
		t.Fatal(out)
	}
	d := b.ask(p, "top", nil, "submodule", "foreach", "pwd")
	if d.Effect != abi.Deny || d.Rule != "subcommand" {
		t.Fatalf("submodule foreach: %s by %s", d.Effect, d.Rule)
	}
	out, err := b.plain("top", nil, "", "!"+strings.ReplaceAll(d.Instead, "COMMAND", "pwd"))
	if err != nil || strings.TrimSpace(out) != filepath.Join(b.ws, "top/mid") {
		t.Errorf("%s: %q, %v", d.Instead, out, err)
	}
}
