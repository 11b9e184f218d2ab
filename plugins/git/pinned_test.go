package main

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toold/toold/pdk/abi"
)

// TestPinned changes the configuration after the policy has looked. What it
// says then is of no consequence.
func TestPinned(t *testing.T) {
	needGit(t)
	m, runner := model(t), newRunner(t)
	for _, tt := range []struct{ name, config, line, want string }{
		{"mergeOptions", "[branch \"main\"]mergeOptions=--squash", "merge --no-edit feature", "Merge branch 'feature'\n"},
		{"pull.twohead", "[pull]twohead=ours", "merge --no-edit conflict", "three\n"}, // ours would merge it
		{"merge.default", "[merge]default=union", "merge --no-edit conflict", "three\n"},
		{"push.default", "[push]default=matching", "push --dry-run {WS}/remote.git HEAD", "three\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBox(t, m, runner)
			d := b.ask(testPolicy(nil), "repo", nil, b.line(tt.line)...)
			if d.Effect != abi.Allow {
				t.Fatal(d.Reason)
			}
			b.prepare(&hostile{config: tt.config})
			out, _, _ := b.run(d, true, "repo", "", time.Minute)
			if got := b.git("log", "-1", "--format=%s"); got != tt.want {
				t.Errorf("HEAD is %q, want %q\n%s", got, tt.want, out)
			}
		})
	}
	t.Run("proxy", func(t *testing.T) {
		var asked atomic.Int32
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.WriteHeader(http.StatusBadGateway)
		}))
		defer proxy.Close()
		for _, config := range []string{"[http]proxy={P}", "[http \"{U}\"]proxy={P}", "[http \"{U}/\"]proxy={P}", "[http \"{U}/remote.git\"]proxy={P}", "[remote \"origin\"]proxy={P}"} {
			b := newBox(t, m, runner)
			server := httptest.NewServer(&cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + b.ws, "GIT_HTTP_EXPORT_ALL=1"}})
			b.git("config", "remote.origin.url", server.URL+"/remote.git")
			d := b.ask(testPolicy(map[string]string{"allow_http": "true"}), "repo", nil, "fetch", "origin")
			loose := b.ask(testPolicy(map[string]string{"allow_http": "true", "proxy": "host"}), "repo", nil, "fetch", "origin")
			b.prepare(&hostile{config: strings.NewReplacer("{P}", proxy.URL, "{U}", server.URL).Replace(config)})
			asked.Store(0)
			if out, code, _ := b.run(d, true, "repo", "", time.Minute); code != 0 || asked.Load() != 0 {
				t.Errorf("%s: exit code %d, the proxy was asked %d times\n%s", config, code, asked.Load(), out)
			}
			if b.run(loose, true, "repo", "", time.Minute); asked.Load() == 0 {
				t.Errorf("%s: the proxy is not asked where it is left to the host", config)
			}
			server.Close()
		}
	})
}

// TestPinnedArchive names programs for git's own formats, and a format by the
// end of the file's name, after the policy has looked.
func TestPinnedArchive(t *testing.T) {
	needGit(t)
	m, runner := model(t), newRunner(t)
	for _, line := range []string{"archive --format=tgz HEAD", "archive -o x.tgz HEAD", "archive -o x.tar.gz HEAD", "archive -o x.y HEAD"} {
		b := newBox(t, m, runner)
		d := b.ask(testPolicy(nil), "repo", nil, b.line(line)...)
		if d.Effect != abi.Allow {
			t.Fatal(d.Reason)
		}
		b.prepare(&hostile{config: "[tar \"tgz\"]command={EVIL}\n[tar \"tar.gz\"]command={EVIL}\n[tar \"y\"]command={EVIL}"})
		if out, code, err := b.run(d, false, "repo", "", time.Minute); code != 0 || err != nil || b.exists(b.ws+"/marker") {
			t.Errorf("git %s: exit code %d, %v, it ran a program: %v\n%.200q", line, code, err, b.exists(b.ws+"/marker"), out)
		}
	}
}
