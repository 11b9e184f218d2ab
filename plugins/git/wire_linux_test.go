package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	hostconfig "github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// wireOnly builds the policy with its own wire, and a restrict that lets all run.
func wireOnly(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(source), "newPolicy(pdk.LookupConfig).decide", "func(*abi.Call) *abi.Decision { return pdk.Allow() }", 1)
	text = strings.Replace(text, "Wants:       []string{abi.WantRepoConfig},", "", 1)
	if text == string(source) {
		t.Fatal("main.go has no restrict to be replaced")
	}
	if err := os.WriteFile(dir+"/main.go", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at, err := filepath.Abs("main.go")
	if err != nil {
		t.Fatal(err)
	}
	overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{at: dir + "/main.go"}})
	if err := os.WriteFile(dir+"/overlay.json", overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-overlay", dir+"/overlay.json", "-buildmode=c-shared", "-ldflags=-s -w", "-o", dir+"/restricted.wasm", ".")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir + "/restricted.wasm"
}

// wired is a daemon whose git pushes to s with the daemon's key, and the policy
// looks at the wire alone.
type wired struct {
	*hosttest.Daemon
	s     *hosttest.SSHD
	work  string
	hooks string // a folder whose programs git may execute
}

func newWired(t *testing.T, config map[string]string) *wired {
	t.Helper()
	needGit(t)
	if !hosttest.Judged() {
		t.Skip("connections are not judged here")
	}
	w := &wired{s: hosttest.NewSSHD(t), hooks: t.TempDir()}
	w.Daemon = hosttest.Start(t, hostconfig.Config{LogLevel: "info"})
	if err := os.WriteFile(w.KnownHosts(), []byte(w.s.Known), 0o600); err != nil {
		t.Fatal(err)
	}
	at := "localhost:" + w.s.Port
	w.Tool(t, "git", map[string]any{
		"binary": gitPath, "mutating": true, "stdin": false, "timeout": 60, "config": config,
		"environment":  map[string]string{"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_NOSYSTEM": "1"},
		"capabilities": map[string]any{"exec": []string{"/usr/bin", "/usr/lib/git-core", w.hooks}, "network": []string{at}},
		"secrets":      map[string]any{"deploy": map[string]any{"from": "file:" + w.s.Key, "ssh_key": true, "host": at}},
	}, map[string]string{"restricted.wasm": wireOnly(t)})

	// A history: one - two - three, and one - other beside it.
	s := w.s
	s.Git(t, "init", "-q", "-b", "main", "seed")
	commit := func(subject string) {
		s.Git(t, "-C", "seed", "commit", "-q", "--allow-empty", "-m", subject)
	}
	commit("one")
	s.Git(t, "-C", "seed", "branch", "old")
	commit("two")
	s.Git(t, "-C", "seed", "branch", "feature")
	s.Git(t, "-C", "seed", "branch", "agent/x")
	s.Git(t, "-C", "seed", "tag", "v1")
	s.Git(t, "-C", "seed", "tag", "-a", "-m", "noted", "v2")
	commit("three")
	s.Git(t, "-C", "seed", "branch", "release/1")
	s.Git(t, "clone", "-q", "--bare", "seed", "shared.git")
	s.Git(t, "-C", "shared.git", "branch", "-D", "old")
	s.Git(t, "clone", "-q", "--bare", "shared.git", "second.git")
	for _, name := range []string{"shared.git", "second.git"} {
		s.Git(t, "-C", name, "config", "receive.denyCurrentBranch", "ignore")
		s.Git(t, "-C", name, "config", "receive.advertisePushOptions", "true")
	}
	commit("four")
	s.Git(t, "-C", "seed", "branch", "ff")
	s.Git(t, "-C", "seed", "checkout", "-q", "-b", "other", "old")
	commit("other")
	s.Git(t, "-C", "seed", "checkout", "-q", "ff")
	w.work = filepath.Join(w.Root, "work")
	s.Git(t, "clone", "-q", "--mirror", "seed", w.work+"/.git")
	s.Git(t, "-C", w.work, "config", "--unset", "remote.origin.mirror")
	s.Git(t, "-C", w.work, "config", "core.bare", "false")
	s.Git(t, "-C", w.work, "config", "remote.origin.url", s.URL("shared.git"))
	s.Git(t, "-C", w.work, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
	for _, name := range []string{"feature", "main", "agent/x", "release/1"} {
		s.Git(t, "-C", w.work, "update-ref", "refs/remotes/origin/"+name, s.Git(t, "-C", "shared.git", "rev-parse", name))
	}
	s.Git(t, "-C", w.work, "reset", "-q", "--hard", "ff")
	return w
}

// refs are those of both servers.
func (w *wired) refs(t *testing.T) string {
	t.Helper()
	return w.s.Git(t, "-C", "shared.git", "for-each-ref") + "\n" + w.s.Git(t, "-C", "second.git", "for-each-ref")
}

// call makes a call of git in the working tree.
func (w *wired) call(t *testing.T, args ...string) (string, *wire.Result) {
	t.Helper()
	res, out, errs := w.Stream(t, &wire.Call{Tool: "git", Args: args, Cwd: w.work}, "")
	return out + errs, res
}

// restore takes the references and the configuration of the working tree back to what
// they were.
func (w *wired) restore(t *testing.T, saved string, config []byte) {
	t.Helper()
	dir := w.work + "/.git/"
	for _, name := range []string{"HEAD", "packed-refs"} {
		if err := copyFile(saved+"/"+name, dir+name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"refs", "info/grafts"} {
		if err := os.RemoveAll(dir + name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(dir+"refs", os.DirFS(saved+"/refs")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"config", config, 0o600); err != nil {
		t.Fatal(err)
	}
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}

var deniedRule = regexp.MustCompile(`toold: denied by rule ([a-z.]+): `)

// Whatever the arguments of a push say, and whatever git makes of them: what is
// refused is refused by what is sent.
func TestPushThatLies(t *testing.T) {
	w := newWired(t, map[string]string{"protected": "main, release/*"})
	url, second := w.s.URL("shared.git"), w.s.URL("second.git")
	two := w.s.Git(t, "-C", "shared.git", "rev-parse", "feature")
	config, err := os.ReadFile(w.work + "/.git/config")
	if err != nil {
		t.Fatal(err)
	}
	w.s.Git(t, "-C", w.work, "symbolic-ref", "refs/heads/innocent", "refs/heads/ff")
	saved := t.TempDir()
	for _, name := range []string{"HEAD", "packed-refs"} {
		if err := copyFile(w.work+"/.git/"+name, saved+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(saved+"/refs", os.DirFS(w.work+"/.git/refs")); err != nil {
		t.Fatal(err)
	}
	perl, _ := exec.LookPath("perl")
	hook := func(text string) func(*testing.T) {
		return func(t *testing.T) {
			if perl == "" {
				t.Skip("there is no perl here")
			}
			if err := os.WriteFile(w.hooks+"/pre-push", []byte("#!"+perl+"\n"+text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	git := func(args ...string) func(*testing.T) {
		return func(t *testing.T) { w.s.Git(t, append([]string{"-C", w.work}, args...)...) }
	}
	const force, remove, protected, unasked = "push.force", "push.delete", "push.protected", "push.unasked"
	for _, tt := range []struct {
		name   string
		config string // of the repository
		args   string
		rule   string
		before func(*testing.T)
	}{
		{name: "a plus", args: "push origin +other:feature", rule: force},
		{name: "a plus, over version 1", args: "-c protocol.version=1 push origin +other:feature", rule: force},
		{name: "a plus, over version 0", args: "-c protocol.version=0 push origin +other:feature", rule: force},
		{name: "a flag", args: "push -f origin old:feature", rule: force},
		{name: "a lease", args: "push --force-with-lease origin other:feature", rule: force},
		{name: "a lease of a commit", args: "push --force-with-lease=feature:" + two + " origin other:feature", rule: force},
		{name: "by URL", args: "push " + url + " +other:feature", rule: force},
		{name: "with a pattern", args: "push origin +refs/heads/o*:refs/heads/agent/*", rule: force, before: git("branch", "-f", "ox", "other")},
		{name: "a deletion", args: "push origin :feature", rule: remove},
		{name: "a deletion by flag", args: "push -d origin feature", rule: remove},
		{name: "two deletions", args: "push --delete origin feature agent/x", rule: remove},
		{name: "pruning", args: "push --prune origin refs/heads/agent/*:refs/heads/agent/*", rule: remove, before: git("branch", "-D", "agent/x")},
		{name: "a protected branch", args: "push origin ff:main", rule: protected},
		{name: "a protected branch by its whole name", args: "push origin ff:refs/heads/main", rule: protected},
		{name: "a protected pattern", args: "push origin ff:release/1", rule: protected},
		{name: "a new branch of a protected pattern", args: "push origin ff:refs/heads/release/2", rule: protected},
		{name: "a forced protected branch", args: "push origin +other:main", rule: protected},
		{name: "a deleted protected branch", args: "push origin :main", rule: protected},
		{name: "a tag that hides a branch", args: "push origin ff:refs/tags/main", rule: protected},
		{name: "a mirror", args: "push --mirror origin", rule: "push"},
		{name: "all", args: "push --all origin", rule: "push", before: git("branch", "-f", "main", "ff")},
		{name: "all, forced", args: "push --all -f origin", rule: "push"},
		{name: "a tag over a tag", args: "push -f origin ff:refs/tags/v1", rule: force},
		{name: "an annotated tag over another", args: "push origin +v1:refs/tags/v2", rule: force},
		{name: "tags, forced", args: "push --tags -f origin", rule: force, before: git("tag", "-f", "v1", "ff")},
		{name: "a deleted tag", args: "push origin :refs/tags/v1", rule: remove},
		{name: "a branch over a tag by its name", args: "push origin +refs/heads/other:refs/tags/v1", rule: force},
		{name: "a configured plus", config: "[remote \"origin\"]\npush=+refs/heads/other:refs/heads/feature", args: "push origin", rule: force},
		{name: "a configured deletion", config: "[remote \"origin\"]\npush=:refs/heads/feature", args: "push origin", rule: remove},
		{name: "a configured destination", config: "[remote \"origin\"]\npush=refs/heads/ff:refs/heads/main", args: "push origin", rule: protected},
		{name: "a branch that is configured to be another", config: "[remote \"origin\"]\npush=refs/heads/ff:refs/heads/main", args: "push origin ff", rule: protected},
		{name: "a branch that is configured to be forced", config: "[remote \"origin\"]\npush=+refs/heads/other:refs/heads/feature", args: "push origin other", rule: force},
		{name: "a configured mirror", config: "[remote \"origin\"]\nmirror=true", args: "push origin", rule: "push"},
		{name: "matching", config: "[push]\ndefault=matching", args: "push origin", rule: "push", before: git("branch", "-f", "main", "ff")},
		{name: "the upstream", config: "[push]\ndefault=upstream\n[branch \"ff\"]\nremote=origin\nmerge=refs/heads/main", args: "push", rule: protected},
		{name: "the current branch", config: "[push]\ndefault=current", args: "push origin", rule: protected, before: git("checkout", "-q", "-B", "release/9", "ff")},
		{name: "a remote for pushing", config: "[remote \"other\"]\nurl=" + second + "\npush=+refs/heads/other:refs/heads/feature\n[branch \"ff\"]\npushRemote=other", args: "push", rule: force},
		{name: "a default remote for pushing", config: "[remote]\npushDefault=other\n[remote \"other\"]\nurl=" + second + "\npush=refs/heads/ff:refs/heads/main", args: "push", rule: protected},
		{name: "another URL for pushing", config: "[remote \"origin\"]\npushurl=" + second, args: "push origin +other:feature", rule: force},
		{name: "two URLs for pushing", config: "[remote \"origin\"]\npushurl=" + url + "\npushurl=" + second, args: "push origin ff:main", rule: protected},
		{name: "insteadOf", config: "[url \"" + second + "\"]\ninsteadOf=" + url, args: "push origin +other:feature", rule: force},
		{name: "insteadOf of a word", config: "[url \"ssh://" + w.s.User + "@localhost:" + w.s.Port + "\"]\ninsteadOf=x:", args: "push x:" + w.s.Dir + "/second.git ff:main", rule: protected},
		{name: "pushInsteadOf", config: "[url \"" + second + "\"]\npushInsteadOf=" + url, args: "push origin :feature", rule: remove},
		{name: "an included file", config: "[include]\npath=more", args: "push origin", rule: force, before: func(t *testing.T) {
			if err := os.WriteFile(w.work+"/.git/more", []byte("[remote \"origin\"]\npush=+refs/heads/other:refs/heads/feature\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "an alias", config: "[alias]\nlook=push origin ff:feature", args: "look", rule: unasked},
		{name: "a subcommand beneath", args: "send-pack " + url + " ff:feature", rule: unasked},
		{name: "a branch that is a link", args: "push origin innocent", rule: protected, before: git("symbolic-ref", "refs/heads/innocent", "refs/heads/main")},
		{name: "one of several", args: "push origin ff:new ff:main", rule: protected},
		{name: "one of several, at once", args: "push --atomic origin ff:new +other:feature", rule: force},
		{name: "the last of several", args: "push origin ff:new ff:newer :agent/x", rule: remove},
		{name: "with options for hooks", args: "push -o ci.skip origin ff:main", rule: protected},
		{name: "notes", args: "push origin ff:refs/notes/commits", rule: protected},
		{name: "the review of a server", args: "push origin ff:refs/for/main", rule: protected},
		{name: "the configuration of a server", args: "push origin ff:refs/meta/config", rule: protected},
		{name: "a replacement", args: "push origin ff:refs/replace/" + two, rule: protected},
		{name: "a branch that reads as another", args: "push origin ff:refs/heads/refs/heads/main", rule: protected},
		{name: "a branch that reads as HEAD", args: "push origin ff:refs/heads/HEAD", rule: protected},
		{name: "a branch that reads as an object", args: "push origin ff:refs/heads/" + two, rule: protected},
		{name: "a history that is replaced here", args: "push origin other:feature", rule: force, before: git("replace", "--graft", "other", two)},
		{name: "a history that is grafted here", args: "push origin other:agent/x", rule: force, before: func(t *testing.T) {
			other := w.s.Git(t, "-C", w.work, "rev-parse", "other")
			if err := os.WriteFile(w.work+"/.git/info/grafts", []byte(other+" "+two+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "a hook that pushes", config: "[core]\nhooksPath=" + w.hooks, args: "push origin ff:feature", rule: force, before: hook(`exit(system("/usr/bin/git", "push", "--no-verify", "origin", "+other:agent/x") == 0 ? 0 : 1);`)},
		{name: "a hook that changes what is pushed", config: "[core]\nhooksPath=" + w.hooks, args: "push --force origin ff:feature agent/x", rule: force, before: hook(`system("/usr/bin/git", "update-ref", "refs/heads/feature", "refs/heads/other"); system("/usr/bin/git", "push", "--no-verify", "-f", "origin", "feature"); exit 1;`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Cleanup(func() { w.restore(t, saved, config) })
			if tt.before != nil {
				tt.before(t)
			}
			if err := os.WriteFile(w.work+"/.git/config", append(config, tt.config+"\n"...), 0o600); err != nil {
				t.Fatal(err)
			}
			before := w.refs(t)
			out, res := w.call(t, strings.Fields(tt.args)...)
			m := deniedRule.FindStringSubmatch(out)
			if m == nil || !strings.HasPrefix(m[1], tt.rule) || res.ExitCode == 0 || !strings.Contains(out, "localhost:"+w.s.Port) {
				t.Errorf("git %s: exit code %d\n%s", tt.args, res.ExitCode, out)
			}
			if after := w.refs(t); after != before {
				t.Errorf("git %s changed\n%s\nto\n%s\n%s", tt.args, before, after, out)
			}
		})
	}
	t.Run("a program on the other side", func(t *testing.T) {
		before := w.refs(t)
		out, res := w.call(t, "push", "--receive-pack=git-receive-pack --skip-connectivity-check", "origin", "ff:feature")
		if res.ExitCode == 0 || !strings.Contains(out, "is not quoted as git quotes") || w.refs(t) != before {
			t.Errorf("%d: %s", res.ExitCode, out)
		}
	})
	t.Run("a race", func(t *testing.T) {
		stop := make(chan struct{})
		var racer sync.WaitGroup
		defer func() {
			close(stop)
			racer.Wait()
			os.WriteFile(w.work+"/.git/config", config, 0o600)
		}()
		racer.Go(func() {
			for i := 0; ; i++ {
				push := []string{"refs/heads/ff:refs/heads/feature", "+refs/heads/other:refs/heads/agent/x", ":refs/heads/agent/x", "refs/heads/ff:refs/heads/main"}[i%4]
				os.WriteFile(w.work+"/.git/config.new", append(config, "[remote \"origin\"]\npush="+push+"\n"...), 0o600)
				os.Rename(w.work+"/.git/config.new", w.work+"/.git/config")
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		before := w.refs(t)
		for range 12 {
			w.call(t, "push", "origin")
		}
		feature := w.s.Git(t, "-C", "shared.git", "rev-parse", "feature")
		if after := w.refs(t); after != strings.Replace(before, two+" commit\trefs/heads/feature", feature+" commit\trefs/heads/feature", 1) {
			t.Errorf("changed\n%s\nto\n%s", before, after)
		}
		w.s.Git(t, "-C", "shared.git", "update-ref", "refs/heads/feature", two)
	})
	// What may be pushed is.
	for _, args := range []string{"push origin ff:feature", "push origin other:refs/heads/new", "push origin ff:refs/tags/v3", "push origin feature:feature2 ff:agent/x", "push -o ci.skip origin old:x", "push origin ff:feature"} {
		if out, res := w.call(t, strings.Fields(args)...); res.ExitCode != 0 {
			t.Errorf("git %s: %s\n%s", args, out, w.Logs())
		}
	}
	if got := w.s.Git(t, "-C", "shared.git", "log", "-1", "--format=%s", "agent/x"); got != "four" {
		t.Errorf("agent/x is at %s", got)
	}
}

// With the policy as it is shipped, git clones, fetches, pulls and pushes with the
// daemon's key, and a branch that may be rewritten is.
func TestSSHKeyWithPolicy(t *testing.T) {
	needGit(t)
	if !hosttest.Judged() {
		t.Skip("connections are not judged here")
	}
	s := hosttest.NewSSHD(t)
	s.Git(t, "init", "-q", "--bare", "-b", "main", "shared.git")
	d := hosttest.Start(t, hostconfig.Config{LogLevel: "info"})
	if err := os.WriteFile(d.KnownHosts(), []byte(s.Known), 0o600); err != nil {
		t.Fatal(err)
	}
	def := hosttest.ReadyJSON(t, "git")
	def["config"] = map[string]string{"protected": "release/*", "force": "agent/*", "user_name": "a", "user_email": "a@b"}
	def["secrets"] = map[string]any{"deploy": map[string]any{"from": "file:" + s.Key, "ssh_key": true, "host": "localhost:" + s.Port}}
	def["capabilities"].(map[string]any)["network"] = []string{"localhost:" + s.Port}
	d.Tool(t, "git", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/git")})
	call := func(dir, line string) (string, *wire.Result) {
		t.Helper()
		res, out, errs := d.Stream(t, &wire.Call{Tool: "git", Args: strings.Fields(line), Cwd: filepath.Join(d.Root, dir)}, "")
		return out + errs, res
	}
	good := func(dir string, list ...string) {
		t.Helper()
		for _, line := range list {
			if out, res := call(dir, line); res.ExitCode != 0 {
				t.Fatalf("git %s: %s\n%s", line, out, d.Logs())
			}
		}
	}
	good("", "clone -q "+s.URL("shared.git")+" a")
	good("a", "commit -q --allow-empty -m one", "push -q -u origin HEAD", "commit -q --allow-empty -m two", "push", "tag v1", "push origin v1", "push origin HEAD:agent/x")
	good("", "clone -q --depth 1 "+s.URL("shared.git")+" b")
	good("b", "fetch -q origin agent/x:refs/remotes/origin/agent/x", "pull -q --ff-only", "ls-remote --tags origin", "push origin HEAD:refs/heads/new", "commit -q --allow-empty -m three", "push")
	good("a", "pull -q", "commit -q --amend --allow-empty -m other", "fetch -q origin +agent/x:refs/remotes/origin/agent/x", "push --force-with-lease origin HEAD:agent/x", "-C . push origin main~1:refs/heads/sub")
	if got := s.Git(t, "-C", "shared.git", "log", "-1", "--format=%s", "agent/x"); got != "other" {
		t.Errorf("agent/x is at %s", got)
	}
	// The history of a shallow clone is no proof.
	before := s.Git(t, "-C", "shared.git", "for-each-ref")
	s.Git(t, "-C", filepath.Join(d.Root, "b"), "update-ref", "refs/heads/lost", s.Git(t, "-C", filepath.Join(d.Root, "b"), "commit-tree", "-m", "lost", "4b825dc642cb6eb9a060e54bf8d69288fbee4904"))
	for dir, line := range map[string]string{"a": "push origin HEAD:main", "b": "push origin lost:main"} {
		if out, res := call(dir, line); res.ExitCode == 0 || s.Git(t, "-C", "shared.git", "for-each-ref") != before {
			t.Errorf("git %s: %s", line, out)
		}
	}
}
