package main

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// calls makes calls in b, which must all be allowed and succeed.
func (b *box) calls(p *policy, cwd string, lines ...string) string {
	b.t.Helper()
	var all strings.Builder
	for _, line := range lines {
		out, code, d := b.call(p, true, cwd, nil, "", b.line(line)...)
		if d.Effect != abi.Allow {
			b.t.Fatalf("git %s is refused by %s: %s", line, d.Rule, d.Reason)
		}
		if code != 0 {
			b.t.Fatalf("git %s: exit code %d\n%s", line, code, out)
		}
		all.WriteString(out)
	}
	return all.String()
}

// TestHTTP talks to git's own server program over HTTP, under confinement.
func TestHTTP(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	if out, err := b.plain("remote.git", nil, "", "config", "http.receivepack", "true"); err != nil {
		t.Fatal(out)
	}
	server := httptest.NewServer(&cgi.Handler{
		Path: "/usr/lib/git-core/git-http-backend",
		Env:  []string{"GIT_PROJECT_ROOT=" + b.ws, "GIT_HTTP_EXPORT_ALL=1"},
	})
	defer server.Close()
	p := testPolicy(map[string]string{"allow_http": "true"})
	url := server.URL + "/remote.git"
	b.calls(p, ".", "clone "+url+" new")
	b.write("new/http.txt", "x\n")
	out := b.calls(p, "new", "add .", "commit -m http", "push origin main", "fetch --prune", "pull --ff-only", "ls-remote --heads origin", "checkout feature", "pull "+url+" feature")
	if !strings.Contains(out, "main -> main") {
		t.Error(out)
	}
	if d := b.ask(testPolicy(nil), "new", nil, "fetch"); d.Effect != abi.Deny || d.Rule != "remote" {
		t.Errorf("without TLS: %s by %s", d.Effect, d.Rule)
	}
	// A redirect to another protocol is not followed.
	elsewhere := httptest.NewServer(http.RedirectHandler("file://"+b.ws+"/remote.git", http.StatusFound))
	defer elsewhere.Close()
	if out, code, _ := b.call(p, true, ".", nil, "", "ls-remote", elsewhere.URL+"/x"); code == 0 {
		t.Errorf("a redirect to a file was followed:\n%s", out)
	}
}

// TestHTTPRedirect: what git has for a server does not go where that server redirects
// it, which is another server's choice.
func TestHTTPRedirect(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	var mu sync.Mutex
	var thief []string // what it was sent
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		thief = append(thief, r.URL.Path+" "+r.Header.Get("Authorization"))
		http.NotFound(w, r)
	}))
	defer other.Close()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; r.Header.Get("Authorization") != "Basic canary" {
			t.Errorf("the server itself was sent %q", r.Header.Get("Authorization"))
		}
		http.Redirect(w, r, other.URL+r.URL.RequestURI(), http.StatusFound)
	}))
	defer server.Close()
	b.calls(testPolicy(nil), ".", "init -q here")
	// As the operator has it.
	if err := os.WriteFile(filepath.Join(b.home, ".gitconfig"), []byte("[http \""+server.URL+"/\"]\n\textraHeader = Authorization: Basic canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := testPolicy(map[string]string{"allow_http": "true"})
	for _, line := range []string{"ls-remote " + server.URL + "/x", "fetch " + server.URL + "/x", "ls-remote " + server.URL + "/x=y", "push " + server.URL + "/x HEAD:refs/heads/x"} {
		if out, code, d := b.call(p, true, "here", nil, "", b.line(line)...); code == 0 || d.Effect != abi.Allow {
			t.Errorf("git %s: exit code %d, %s\n%s", line, code, d.Reason, out)
		}
	}
	if asked == 0 || len(thief) > 0 {
		t.Errorf("the server was asked %d times; the other one was sent %q", asked, thief)
	}
}

// TestSSH puts a script in the place of ssh: it shows what ssh is asked, and
// does it here.
func TestSSH(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	ssh := filepath.Join(b.dir, "ssh")
	script := "#!/bin/sh\nprintf '<%s>' \"$@\" >> " + b.ws + "/asked\nfor last; do :; done\nunset GIT_ALLOW_PROTOCOL\nexec /bin/sh -c \"$last\"\n"
	if err := os.WriteFile(ssh, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	p := testPolicy(map[string]string{"ssh": ssh})
	// The script stands for a program that the operator chose: it may run a
	// shell, which git itself may not.
	b.exec = []string{ssh, "/bin/sh"}
	b.calls(p, ".", "clone user@example.com:{WS}/remote.git new")
	b.write("new/ssh.txt", "x\n")
	b.calls(p, "new", "add .", "commit -m ssh", "push origin main", "fetch", "pull --ff-only", "ls-remote --heads ssh://user@example.com:22{WS}/remote.git")
	asked, err := os.ReadFile(b.ws + "/asked")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<user@example.com><git-upload-pack '" + b.ws + "/remote.git'>", "<-p><22><user@example.com>", "<git-receive-pack '" + b.ws + "/remote.git'>"} {
		if !strings.Contains(string(asked), want) {
			t.Errorf("%s is missing from %s", want, asked)
		}
	}
	for _, line := range []string{"fetch", "clone user@example.com:x"} {
		if d := b.ask(p, "new", nil, strings.Fields(line)...); d.Shell {
			t.Errorf("git %s gets a shell", line)
		}
	}
}

// TestOtherOwner works in repositories that belong to another user, as those
// of a container do.
func TestOtherOwner(t *testing.T) {
	needGit(t)
	if os.Getuid() != 0 {
		t.Skip("only root can give files away")
	}
	b := newBox(t, model(t), newRunner(t))
	err := filepath.WalkDir(b.ws, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, 12345, 12345)
	})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := b.plain("repo", nil, "", "status"); err == nil {
		t.Fatalf("git alone works in another user's repository:\n%s", out)
	}
	b.write("repo/other.txt", "x\n")
	b.calls(testPolicy(nil), "repo", "status", "add .", "commit -m x", "fetch origin", "push origin main", "pull --no-rebase origin main", "ls-remote origin", "fetch --all", "clone ../remote.git ../new")
	b.calls(testPolicy(nil), "new", "log -1", "push origin main:y")
}
