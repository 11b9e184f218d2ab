package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/pdk/abi"
)

// TestNotes: what git would have done and does not do here is said.
func TestNotes(t *testing.T) {
	hooks := []string{"commit-msg", "post-commit", "pre-commit", "pre-push", "reference-transaction"}
	for _, tt := range []struct {
		args   string
		env    map[string]string
		hooks  []string
		remote []string
		config map[string]string
		rule   string   // by which it is refused, or "" where it is not
		want   []string // what the notes begin with
	}{
		{args: "commit -m x"},
		{args: "commit -m x", hooks: hooks, want: []string{"hook pre-commit was not run", "hook commit-msg was not run", "hook post-commit was not run", "hook reference-transaction was not run"}},
		{args: "commit -n -m x", hooks: hooks, want: []string{"hook post-commit", "hook reference-transaction"}},
		{args: "commit --no-verify --verify -m x", hooks: []string{"pre-commit"}, want: []string{"hook pre-commit"}},
		{args: "status", hooks: hooks},
		{args: "push disk main", hooks: hooks, remote: []string{"update", "post-receive"}, want: []string{"hook update of the remote", "hook post-receive of the remote", "hook pre-push", "hook reference-transaction"}},
		{args: "push --no-verify shell main", hooks: []string{"pre-push"}},
		{args: "rebase main", hooks: []string{"pre-rebase", "post-rewrite"}, want: []string{"hook pre-rebase", "hook post-rewrite"}},
		{args: "am x", hooks: []string{"applypatch-msg"}, want: []string{"hook applypatch-msg"}},
		{args: "checkout x", hooks: []string{"post-checkout"}, want: []string{"hook post-checkout"}},
		{args: "commit --amend --no-edit", hooks: []string{"post-rewrite"}, want: []string{"hook post-rewrite"}},
		{args: "commit -m x", hooks: []string{"pre-commit"}, config: map[string]string{"hooks": "refuse"}, rule: "hook"},
		{args: "push shell main", hooks: []string{"pre-push"}, config: map[string]string{"hooks": "refuse"}, rule: "hook"},
		{args: "commit -m x", hooks: []string{"commit-msg"}, config: map[string]string{"hooks": "refuse"}, rule: "hook"},
		{args: "commit -m x", hooks: []string{"post-commit"}, config: map[string]string{"hooks": "refuse"}, want: []string{"hook post-commit"}},
		{args: "status", hooks: hooks, config: map[string]string{"hooks": "refuse"}},
		{args: "bisect start", hooks: hooks, rule: "hook"},
		{args: "bisect start", hooks: []string{"hooks/reference-transaction"}, rule: "hook"},

		{args: "commit --amend", want: []string{"no editor runs here: the message is kept"}},
		{args: "commit --amend", env: map[string]string{"GIT_EDITOR": "vim"}, rule: "editor"},
		{args: "commit --amend", env: map[string]string{"EDITOR": "sed -i s/a/b/"}, rule: "editor"},
		{args: "commit --amend", env: map[string]string{"GIT_EDITOR": "true", "EDITOR": "vim"}},
		{args: "commit --amend -m x", env: map[string]string{"GIT_EDITOR": "vim"}},
		{args: "commit", env: map[string]string{"GIT_EDITOR": "true"}},
		{args: "status", env: map[string]string{"GIT_EDITOR": "vim", "GIT_SEQUENCE_EDITOR": "x"}},
		{args: "rebase -i --autosquash HEAD~3", want: []string{"no editor runs here: the list of commits"}},
		{args: "rebase -i --autosquash HEAD~3", env: map[string]string{"GIT_SEQUENCE_EDITOR": ":"}},
		{args: "rebase -i HEAD~3", env: map[string]string{"GIT_SEQUENCE_EDITOR": "true"}},
		{args: "rebase -i --autosquash HEAD~3", env: map[string]string{"GIT_SEQUENCE_EDITOR": "sed -i 1d"}, rule: "editor"},
		{args: "rebase -i --autosquash HEAD~3", env: map[string]string{"EDITOR": "vim"}, rule: "editor"},
		{args: "rebase --continue", want: []string{"no editor runs here: messages are kept"}},
	} {
		c := callOf(split(tt.args), abi.ConfigEntry{Key: "remote.disk.url", Value: "/ws/remote.git"}, abi.ConfigEntry{Key: "remote.shell.url", Value: "git@example.com:x"})
		c.Env, c.RepoConfig.Hooks, c.RepoConfig.RemoteHooks = tt.env, tt.hooks, tt.remote
		d := testPolicy(tt.config).decide(c)
		if tt.rule != "" && d.Rule != tt.rule || tt.rule == "" && d.Effect != abi.Allow {
			t.Errorf("git %s with %v and hooks %q: %s by %s: %s", tt.args, tt.env, tt.hooks, d.Effect, d.Rule, d.Reason)
			continue
		}
		ok := tt.rule != "" || len(d.Notes) == len(tt.want)
		for i := range tt.want {
			ok = ok && strings.HasPrefix(d.Notes[i], tt.want[i])
		}
		if !ok {
			t.Errorf("git %s with %v and hooks %q says %q, want %q", tt.args, tt.env, tt.hooks, d.Notes, tt.want)
		}
		for _, name := range sequenceEditors {
			if v := tt.env[name]; v != "" && d.Env[name] == v && v != ":" {
				t.Errorf("git %s runs with %s=%s", tt.args, name, v)
			}
		}
	}
}

// TestMeant: what was mistyped is answered with what may have been meant.
func TestMeant(t *testing.T) {
	for args, want := range map[string]string{
		"stauts":                  "did you mean status?",
		"comit -m x":              "did you mean commit?",
		"chekcout main":           "did you mean checkout?",
		"stash psuh":              "did you mean push?",
		"commit --amned":          "did you mean --amend?",
		"log --onelin --oneine":   "write the flag in full: --oneline",
		"log --oenline":           "did you mean --oneline?",
		"rebase --no-autosqash":   "did you mean --no-autostash, or --no-autosquash",
		"--no-pagre log":          "did you mean --no-pager?",
		"lgg":                     "did you mean log, or lg?",
		"xyzzyxyzzy":              "use one of: ",
		"commit --xyzzyxyzzy":     "leave it out",
		"submodule upadte":        "did you mean update?",
		"help stauts":             "did you mean status?",
		"frobnicate-the-whatsits": "use one of: ",
	} {
		d := testPolicy(nil).decide(callOf(split(args), abi.ConfigEntry{Key: "alias.lg", Value: "log --graph"}))
		if d.Effect != abi.Deny || !strings.HasPrefix(d.Instead, want) {
			t.Errorf("git %s: %s %q, want %q", args, d.Effect, d.Instead, want)
		}
	}
}

// TestAliases: an alias runs as what it stands for.
func TestAliases(t *testing.T) {
	aliases := []abi.ConfigEntry{
		{Key: "alias.co", Value: "checkout"}, {Key: "alias.lg", Value: "log --graph --format='%h %s'"}, {Key: "alias.up", Value: "-c color.ui=never pull --ff-only"}, {Key: "alias.last", Value: "lg -1"},
		{Key: "alias.q", Value: `commit -m "it's \"so\"" -m a\ b`}, {Key: "alias.p", Value: "push"}, {Key: "alias.log", Value: "!false"},
	}
	for args, want := range map[string]string{
		"co main":     "checkout main",
		"CO main":     "checkout main",
		"lg -3":       "log --no-ext-diff --no-textconv --ignore-submodules=dirty --graph --format=%h %s -3",
		"last --stat": "log --no-ext-diff --no-textconv --ignore-submodules=dirty --graph --format=%h %s -1 --stat",
		"up":          "pull --ff-only",
		"q":           `commit --message=it's "so" --message=a b`,
		"p origin x":  "push origin x:x",
	} {
		d := testPolicy(nil).decide(callOf(split(args), append(slices.Clone(originOnly), aliases[:6]...)...))
		if got := strings.Join(d.Args, " "); d.Effect != abi.Allow || !strings.HasSuffix(got, " "+want) {
			t.Errorf("git %s: %s by %s: %s, runs %s", args, d.Effect, d.Rule, d.Reason, got)
		}
	}
	protected := testPolicy(map[string]string{"protected": "main"})
	if d := protected.decide(callOf(split("p origin main"), append(slices.Clone(originOnly), aliases...)...)); d.Rule != "push.protected" {
		t.Errorf("an alias of push: %s by %s", d.Effect, d.Rule)
	}
	c := callOf(split("co main"), aliases...)
	c.ReadOnly = true
	if d := testPolicy(nil).decide(c); d.Rule != "read-only" {
		t.Errorf("an alias for a caller that may only read: %s by %s", d.Effect, d.Rule)
	}
}

// TestCommitter: the operator says who commits, where nobody else does.
func TestCommitter(t *testing.T) {
	p := testPolicy(map[string]string{"user_name": "Agent", "user_email": "agent@example.com"})
	for _, tt := range []struct {
		args string
		repo []abi.ConfigEntry
		want string
	}{
		{"commit -m x", nil, "user.name=Agent user.email=agent@example.com"},
		{"commit -m x", []abi.ConfigEntry{{Key: "user.name", Value: "Ada"}}, "user.email=agent@example.com"},
		{"-c user.email=a@b commit -m x", nil, "user.name=Agent"},
		{"status", nil, ""},
	} {
		var got []string
		d := p.decide(callOf(split(tt.args), tt.repo...))
		for _, a := range d.Args {
			if strings.HasPrefix(a, "user.") && a != "user.email=a@b" {
				got = append(got, a)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("git %s in %v: %q, want %q", tt.args, tt.repo, got, tt.want)
		}
	}
	for key, value := range map[string]string{"user_name": "a<b", "user_email": "<>", "force": "[", "hooks": "run", "bisect": "yes"} {
		if d := testPolicy(map[string]string{key: value}).decide(callOf(split("status"))); d.Rule != "config" {
			t.Errorf("%s=%q: %s by %s", key, value, d.Effect, d.Rule)
		}
	}
}

// TestNewCommands runs the rarer commands on a real repository, confined.
func TestNewCommands(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	p := testPolicy(map[string]string{"bisect": "helper", "user_name": "Agent", "user_email": "agent@example.com"})
	for _, step := range []struct {
		line, stdin string
		code        int
		want        string // is in the output
	}{
		{line: "-C {WS}/repo log -1 --format=%s", want: "three"},
		{line: "-C .. -C repo rev-parse --show-toplevel", want: "/repo"},
		{line: "--git-dir={WS}/repo/.git --work-tree={WS}/repo status -s"},
		{line: "--git-dir=../remote.git log -1 --format=%s main", want: "three"},
		{line: "-C ../new init -q", code: 126},
		{line: "help", want: "usage: git"},
		{line: "help commit", code: 129, want: "usage: git commit"},
		{line: "stash --help", code: 129, want: "usage: git stash"},
		{line: "grep -h", code: 129, want: "usage: git grep"},
		{line: "hash-object -w a.txt", want: "4cb29ea"},
		{line: "hash-object --stdin", stdin: "x\n", want: "587be6b"},
		{line: "fsck --no-dangling"},
		{line: "notes add -m remark HEAD"},
		{line: "notes show", want: "remark"},
		{line: "notes --ref=review add -m seen HEAD"},
		{line: "notes --ref review list", want: " "},
		{line: "notes --ref=review get-ref", want: "refs/notes/review"},
		{line: "format-patch -1 feature", want: "0001-feature.patch"},
		{line: "format-patch --stdout -1 HEAD", want: "Subject: [PATCH] three"},
		{line: "apply --check 0001-feature.patch"},
		{line: "apply --cached 0001-feature.patch"},
		{line: "diff --cached --name-only", want: "f.txt"},
		{line: "reset -q --hard"},
		{line: "am 0001-feature.patch", want: "Applying: feature"},
		{line: "log -1 --format=%cn", want: "Agent"},
		{line: "archive -o ../a.tgz HEAD"},
		{line: "archive --list", want: "tgz"},
		{line: "archive HEAD a.txt", want: "one\ntwo"},
		{line: "sparse-checkout set --no-cone /a.txt"},
		{line: "sparse-checkout list", want: "/a.txt"},
		{line: "sparse-checkout disable"},
		{line: "bisect start HEAD HEAD~2", want: "revision"},
		{line: "bisect good", want: "first bad commit"},
		{line: "bisect log", want: "git bisect start"},
		{line: "bisect reset", want: "Switched to branch 'main'"},
		{line: "submodule status"},
		{line: "submodule init"},
		{line: "submodule update"},
		{line: "commit -q -m x", code: 1, want: "0001-feature.patch"},
	} {
		out, code, d := b.call(p, true, "repo", nil, step.stdin, b.line(step.line)...)
		if code != step.code || !strings.Contains(out, step.want) {
			t.Errorf("git %s: exit code %d, %s %s; %s\n%s", step.line, code, d.Rule, d.Reason, d.Instead, out)
		}
	}
	// Hunk by hunk, with answers from input.
	b.write("repo/a.txt", "zero\none\ntwo\nthree\n4\n5\n6\n7\n8\n9\nten\n")
	b.calls(p, "repo", "add a.txt")
	b.calls(p, "repo", "commit -q -m ten")
	b.write("repo/a.txt", "0\none\ntwo\nthree\n4\n5\n6\n7\n8\n9\n10\n")
	if out, code, _ := b.call(p, true, "repo", nil, "y\nn\n", "add", "-p"); code != 0 || !strings.Contains(out, "Stage this hunk") {
		t.Errorf("add -p: exit code %d\n%s", code, out)
	}
	if staged := b.git("diff", "--cached"); !strings.Contains(staged, "+0\n") || strings.Contains(staged, "+10\n") {
		t.Errorf("add -p has staged\n%s", staged)
	}
	// An edit that no editor made is none.
	if out, _, _ := b.call(p, true, "repo", nil, "e\n", "add", "-p"); strings.Contains(b.git("diff", "--cached"), "+10\n") {
		t.Errorf("an edit without an editor was staged\n%s", out)
	}
}

// TestForce rewrites what the operator says may be, over ssh, where nothing but
// the policy keeps a push from forcing, and to a folder.
func TestForce(t *testing.T) {
	needGit(t)
	m, runner := model(t), newRunner(t)
	for _, tt := range []struct {
		line  string
		force string
		rule  string // by which it is refused
		fails bool   // git refuses it
	}{
		{line: "push origin agent/x", force: "agent/*", fails: true},
		{line: "push --force-with-lease origin agent/x", force: "agent/*"},
		{line: "push --force-with-lease=agent/x origin agent/x", force: "agent/*"},
		{line: "push --force-with-lease=agent/x:{OLD} origin agent/x", force: "agent/*"},
		{line: "push --force-with-lease=agent/x:{NEW} origin agent/x", force: "agent/*", fails: true},
		{line: "push --force-with-lease=agent/x:{OLD} {URL} agent/x", force: "agent/*"},
		{line: "push --force-with-lease --force-if-includes origin agent/x", force: "agent/*"},
		{line: "push -f origin agent/x", force: "+agent/*"},
		{line: "push origin +agent/x", force: "+agent/*"},
		{line: "push origin +HEAD:refs/heads/agent/x", force: "main +agent/*"},
		{line: "push -f --no-force origin agent/x", force: "+agent/*", fails: true},
		{line: "push --force-with-lease {URL} agent/x", force: "agent/*", rule: "push.force"},
		{line: "push --force-with-lease=other origin agent/x", force: "agent/*", rule: "push.force"},
		{line: "push --force-with-lease=agent/x:{OLD} origin agent/x main", force: "agent/*"},
		{line: "push --force-with-lease origin agent/x main", force: "agent/*", rule: "push.force"},
		{line: "push --force-with-lease origin main", force: "agent/*", rule: "push.force"},
		{line: "push -f origin agent/x", force: "agent/*", rule: "push.force"},
		{line: "push origin +agent/x", force: "agent/*", rule: "push.force"},
		{line: "push -f origin agent/x:main", force: "+agent/*", rule: "push.force"},
		{line: "push -f origin agent/x:refs/tags/agent/x", force: "+agent/*", rule: "push.force"},
		{line: "push -f --all origin", force: "+*", rule: "push.force"},
		{line: "push -f --tags origin agent/x", force: "+agent/*", rule: "push.force"},
		{line: "push origin :agent/x", force: "+agent/*", rule: "push.delete"},
		{line: "push --mirror origin", force: "+*", rule: "flag.refused"},
		{line: "push -f origin agent/x", rule: "flag.refused"},
		{line: "push --force-with-lease origin agent/x", rule: "flag.refused"},
		{line: "push --force-if-includes origin agent/x", rule: "flag.refused"},
		{line: "push origin +agent/x", rule: "push.force"},
	} {
		for _, ssh := range []bool{true, false} {
			b := newBox(t, m, runner)
			p := testPolicy(map[string]string{"force": tt.force})
			url := b.ws + "/remote.git"
			if ssh {
				program := overSSH(t, b).ssh
				p = testPolicy(map[string]string{"force": tt.force, "ssh": program})
				url = "user@example.com:" + url
				b.git("config", "remote.origin.url", url)
			}
			b.git("checkout", "-q", "-b", "agent/x", "feature")
			b.git("push", "-q", b.ws+"/remote.git", "agent/x")
			b.git("update-ref", "refs/remotes/origin/agent/x", "HEAD")
			old := strings.TrimSpace(b.git("rev-parse", "HEAD"))
			b.git("reset", "-q", "--hard", "HEAD~1")
			b.git("commit", "-q", "--allow-empty", "-m", "rewritten")
			now := strings.TrimSpace(b.git("rev-parse", "HEAD"))
			before := b.remoteRefs()
			line := strings.NewReplacer("{OLD}", old, "{NEW}", now, "{URL}", url).Replace(tt.line)
			d := b.ask(p, "repo", nil, b.line(line)...)
			if d.Effect != abi.Allow {
				if tt.rule != d.Rule {
					t.Errorf("git %s with force=%q: refused by %s: %s; %s", tt.line, tt.force, d.Rule, d.Reason, d.Instead)
				}
				continue
			}
			if tt.rule != "" {
				t.Errorf("git %s with force=%q: allowed as %q", tt.line, tt.force, d.Args[len(d.Args)-4:])
				continue
			}
			out, code, err := b.run(d, true, "repo", "", time.Minute)
			if err != nil || (code != 0) != tt.fails {
				t.Errorf("git %s with force=%q, ssh %v: exit code %d, %v\n%s", tt.line, tt.force, ssh, code, err, out)
			}
			after := b.remoteRefs()
			if want := strings.Replace(before, old+"\trefs/heads/agent/x", now+"\trefs/heads/agent/x", 1); !tt.fails && after != want || tt.fails && after != before {
				t.Errorf("git %s with force=%q, ssh %v: the remote has\n%s", tt.line, tt.force, ssh, after)
			}
		}
	}
}

// TestForceByRace: a call that may rewrite one branch rewrites no other, whatever
// the repository says by then.
func TestForceByRace(t *testing.T) {
	needGit(t)
	m, runner := model(t), newRunner(t)
	for _, config := range []string{"[remote \"origin\"]push=+main:feature", "[remote \"origin\"]mirror=true", "[push]default=matching\n[remote \"origin\"]push=+:", "[remote \"origin\"]push=:refs/heads/feature"} {
		for _, line := range []string{"push -f origin agent/x", "push --force-with-lease origin agent/x"} {
			b := newBox(t, m, runner)
			program := overSSH(t, b).ssh
			p := testPolicy(map[string]string{"force": "+agent/*", "ssh": program})
			b.git("config", "remote.origin.url", "user@example.com:"+b.ws+"/remote.git")
			b.git("checkout", "-q", "-b", "agent/x")
			b.git("push", "-q", b.ws+"/remote.git", "agent/x")
			b.git("update-ref", "refs/remotes/origin/agent/x", "HEAD")
			b.git("commit", "-q", "--amend", "--allow-empty", "-m", "rewritten")
			b.git("branch", "-f", "main", "HEAD~1")
			before := b.remoteRefs()
			d := b.ask(p, "repo", nil, b.line(line)...)
			if d.Effect != abi.Allow {
				t.Fatalf("git %s: %s", line, d.Reason)
			}
			b.prepare(&hostile{config: config})
			b.run(d, true, "repo", "", time.Minute)
			after := b.remoteRefs()
			for ref := range strings.Lines(before) {
				if !strings.Contains(ref, "agent/x") && !strings.Contains(after, ref) {
					t.Errorf("%s: git %s changed %s", config, line, ref)
				}
			}
		}
	}
}

// TestLFS: that git-lfs does not run is said where it would have.
func TestLFS(t *testing.T) {
	for args, want := range map[string]string{
		"add .": "stored whole", "commit -am x": "stored whole", "checkout main": "pointer", "stash": "pointer", "merge main": "pointer", "submodule update": "pointer",
		"status": "", "log": "", "stash list": "", "push disk main": "", "checkout -h": "",
	} {
		for _, filters := range []string{"lfs", "crypt\nlfs", "crypt", "lfsx"} {
			c := callOf(split(args), abi.ConfigEntry{Key: "remote.disk.url", Value: "/ws/remote.git"})
			c.RepoConfig.State = append(c.RepoConfig.State, abi.ConfigEntry{Key: "filters", Value: filters})
			d := testPolicy(nil).decide(c)
			notes := strings.Join(d.Notes, "\n")
			if said := strings.Contains(notes, "LFS"); d.Effect != abi.Allow || said != (want != "" && strings.HasSuffix(filters, "lfs")) || said && !strings.Contains(notes, want) {
				t.Errorf("git %s with %q: %s %s, %q", args, filters, d.Effect, d.Reason, notes)
			}
		}
	}
}

// TestRemovedSubmodule: git rm says in advance that it takes every submodule for changed.
func TestRemovedSubmodule(t *testing.T) {
	for args, want := range map[string]bool{"rm sub": true, "rm -n sub": true, "rm -r .": true, "rm --cached sub": false, "rm -f sub": false, "mv sub x": false} {
		for _, has := range []bool{true, false} {
			c := callOf(split(args))
			if has {
				c.RepoConfig.Submodules = []abi.ConfigEntry{{Key: "core.worktree", Value: "../../../sub"}}
			}
			if d := testPolicy(nil).decide(c); d.Effect != abi.Allow || (len(d.Notes) > 0) != (want && has) {
				t.Errorf("git %s, with submodules: %v: %s %s, %q", args, has, d.Effect, d.Reason, d.Notes)
			}
		}
	}
}

// TestSetAside: what the repository, the call or its caller asks for and does not count is
// said, where it would have mattered.
func TestSetAside(t *testing.T) {
	sub := []abi.ConfigEntry{{Key: "core.bare", Value: "false"}}
	for _, tt := range []struct {
		args  string
		repo  string // KEY=VALUE
		sub   bool
		seen  string
		kinds []string
		rule  string
		want  []string
	}{
		{args: "checkout x", repo: "submodule.recurse=true", want: []string{"submodule.recurse is set"}},
		{args: "checkout x", repo: "submodule.recurse=false"},
		{args: "-c submodule.recurse=false checkout x", repo: "submodule.recurse=true"},
		{args: "log", repo: "submodule.recurse=true"},
		{args: "branch x", repo: "submodule.propagatebranches=true", want: []string{"submodule.propagateBranches is set"}},
		{args: "push origin main", repo: "push.recursesubmodules=check", want: []string{"push.recurseSubmodules is set"}},
		{args: "diff", repo: "diff.submodule=log", want: []string{"diff.submodule is set"}},
		{args: "diff --submodule=log", repo: "diff.submodule=log"},
		{args: "status", repo: "status.submodulesummary=true", want: []string{"status.submoduleSummary is set"}},
		{args: "status"},
		{args: "status", sub: true, want: []string{"what has changed within submodules"}},
		{args: "status --ignore-submodules=all", sub: true},
		{args: "diff", sub: true, want: []string{"what has changed within submodules"}},
		{args: "diff HEAD -- sub", sub: true, want: []string{"what has changed within submodules"}},
		{args: "diff HEAD~1..HEAD", sub: true},
		{args: "diff --cached", sub: true},
		{args: "diff-index HEAD", sub: true, want: []string{"what has changed within submodules"}},
		{args: "describe --dirty", sub: true, want: []string{"what has changed within submodules"}},
		{args: "fetch", sub: true, want: []string{"submodules are not fetched"}},
		{args: "fetch --no-recurse-submodules", sub: true},
		{args: "commit", repo: "core.editor=vim", kinds: []string{kindEditor}, want: []string{"core.editor is set"}},
		{args: "commit", repo: "core.editor=vim", kinds: []string{kindEditor}, seen: "GIT_EDITOR"},
		{args: "commit -m x", repo: "core.editor=vim", kinds: []string{kindEditor}},
		{args: "rebase -i HEAD~2", repo: "sequence.editor=vim", kinds: []string{kindEditor, kindSequenceEditor}, rule: "editor"},
		{args: "rebase -i HEAD~2", repo: "sequence.editor=vim", kinds: []string{kindEditor, kindSequenceEditor}, seen: "GIT_SEQUENCE_EDITOR"},
		{args: "status", seen: "GIT_CEILING_DIRECTORIES", want: []string{"GIT_CEILING_DIRECTORIES of your environment"}},
		{args: "version", seen: "GIT_CEILING_DIRECTORIES"},
		{args: "fetch git@example.com:x main", seen: "GIT_SSH_COMMAND", want: []string{"GIT_SSH_COMMAND of your environment"}},
		{args: "fetch origin", seen: "GIT_SSH_COMMAND"},
		{args: "rebase main", want: nil},
	} {
		c := callOf(split(tt.args), originOnly...)
		if key, value, ok := strings.Cut(tt.repo, "="); ok {
			c.RepoConfig.Entries = append(c.RepoConfig.Entries, abi.ConfigEntry{Key: key, Value: value})
		}
		if tt.sub {
			c.RepoConfig.Submodules = sub
		}
		if tt.seen != "" {
			c.EnvSeen = []string{tt.seen}
		}
		if tt.kinds != nil {
			c.Callbacks = &abi.Callbacks{Kinds: tt.kinds, Folder: "/state/callbacks-1"}
		}
		d := testPolicy(nil).decide(c)
		ok := tt.rule == "" && d.Effect == abi.Allow && len(d.Notes) == len(tt.want) || tt.rule != "" && d.Rule == tt.rule
		for i, want := range tt.want {
			ok = ok && strings.HasPrefix(d.Notes[i], want)
		}
		if !ok {
			t.Errorf("git %s with %s, %s: %s by %s, says %q, want %q", tt.args, tt.repo, tt.seen, d.Effect, d.Rule, d.Notes, tt.want)
		}
	}
}

// TestSettable: what may be set in a repository refuses no call there, and what may be set
// to what is forced anyway counts for no more than that.
func TestSettable(t *testing.T) {
	p := testPolicy(nil)
	for _, key := range settable {
		if d := p.decide(callOf([]string{"config", key, "1"}, originOnly...)); d.Effect != abi.Allow {
			t.Errorf("git config %s: %s", key, d.Reason)
		}
		for _, line := range []string{"status", "fetch", "commit -m x", "push origin main"} {
			if d := p.decide(callOf(split(line), append(slices.Clone(originOnly), abi.ConfigEntry{Key: strings.ToLower(key), Value: "1"})...)); d.Effect != abi.Allow {
				t.Errorf("git %s where %s is set: %s", line, key, d.Reason)
			}
		}
	}
	plain := p.decide(callOf(split("commit -m x"), originOnly...))
	for key, values := range forcedSettings {
		for _, v := range values {
			d := p.decide(callOf([]string{"-c", key + "=" + v, "commit", "-m", "x"}, originOnly...))
			kept := strings.HasPrefix(key, "pager.") || key == "maintenance.auto"
			if d.Effect != abi.Allow || slices.Equal(d.Args, plain.Args) == kept {
				t.Errorf("-c %s=%s: %s %s, runs %q", key, v, d.Effect, d.Reason, d.Args)
			}
		}
		if d := p.decide(callOf([]string{"-c", key + "=!evil", "commit", "-m", "x"}, originOnly...)); d.Effect == abi.Allow {
			t.Errorf("-c %s=!evil is allowed", key)
		}
		if d := p.decide(callOf([]string{"config", key, "!evil"}, originOnly...)); d.Effect == abi.Allow {
			t.Errorf("git config %s '!evil' is allowed", key)
		}
	}
	for _, kv := range []string{"safe.directory=*", "commit.gpgSign=false"} {
		d := p.decide(callOf([]string{"-c", kv, "commit", "-m", "x"}, append(slices.Clone(originOnly), abi.ConfigEntry{Key: "commit.gpgsign", Value: "true"})...))
		if d.Effect != abi.Allow || kv == "safe.directory=*" && slices.Contains(d.Args, kv) || kv == "commit.gpgSign=false" && len(d.Notes) > 0 {
			t.Errorf("-c %s: %s %s, says %q, runs %q", kv, d.Effect, d.Reason, d.Notes, d.Args)
		}
	}
	for _, key := range []string{"alias.x", "core.gitProxy", "diff.external", "pager.log", "core.worktree", "rebase.instructionFormat", "format.suffix", "gc.pruneExpire", "gc.recentObjectsHook", "color.ui/../x", "grep.fallbackToNoIndex", "include.path"} {
		if d := p.decide(callOf([]string{"-c", key + "=x", "status"}, originOnly...)); d.Effect == abi.Allow {
			t.Errorf("-c %s=x is allowed", key)
		}
	}
}

// TestLeftOut: a flag that could do harm elsewhere and changes nothing in this call is taken
// and left out, and one that would have changed something is refused, or it is said.
func TestLeftOut(t *testing.T) {
	there := []abi.ConfigEntry{{Key: "submodule.x.path", Value: "x"}}
	out := []abi.ConfigEntry{{Key: "core.worktree", Value: "../../../sub"}}
	const clones = "submodules are not cloned with it: where there is a .gitmodules, git -C "
	for _, tt := range []struct {
		args    string
		modules []abi.ConfigEntry // of .gitmodules
		sub     []abi.ConfigEntry // of submodules that are checked out
		flag    string            // which git does not get
		note    string
		rule    string
	}{
		{args: "show --textconv :a", flag: "--textconv"},
		{args: "log --end-of-options main", flag: "--end-of-options"},
		{args: "fetch --update-head-ok https://example.com/x.git +HEAD:refs/remotes/origin/HEAD", flag: "--update-head-ok"},
		{args: "clone --filter=blob:none https://example.com/x.git", flag: "--filter", note: "--filter is left out"},
		{args: "submodule update --init --recursive", flag: "--recursive"},
		{args: "submodule update --init --recursive", modules: there, flag: "--recursive", note: "--recursive is left out: in each submodule that has a .gitmodules of its own, git -C SUBMODULE submodule update --init"},
		{args: "submodule status --recursive", sub: out, flag: "--recursive", note: "--recursive is left out: in each submodule that has a .gitmodules of its own, git -C SUBMODULE submodule status"},
		{args: "submodule foreach --recursive ls -l", flag: "ls"},
		{args: "submodule foreach ls", modules: there, rule: "subcommand"},
		{args: "submodule foreach ls", sub: out, rule: "subcommand"},
		{args: "clone --recurse-submodules https://example.com/a/x.git", flag: "--recurse", note: clones + "x submodule update --init clones them"},
		{args: "clone --recursive -j8 git@example.com:x.git", flag: "--recurs", note: clones + "x submodule update --init clones them"},
		{args: "clone --recurse-submodules=lib --shallow-submodules --remote-submodules https://example.com/x/ y", flag: "--recurse", note: clones + "y submodule update --init --remote --depth 1 lib clones them"},
		{args: "clone --recurse-submodules https://example.com/x y", flag: "--recurse", note: clones + "FOLDER submodule update --init clones them"},
		{args: "clone --shallow-submodules https://example.com/x", flag: "--shallow"},
		{args: "clone --remote-submodules https://example.com/x", flag: "--remote"},
		{args: "clone --bare --recurse-submodules https://example.com/x", flag: "--recurse"},
		{args: "clone -n --recurse-submodules https://example.com/x", flag: "--recurse"},
		{args: "clone --recurse-submodules --no-recurse-submodules https://example.com/x", flag: "--recurse"},
		{args: "fetch --recurse-submodules=on-demand https://example.com/x.git", flag: "--recurse"},
		{args: "fetch --recurse-submodules https://example.com/x.git", sub: out, flag: "--recurse", note: "submodules are not fetched with it"},
		{args: "fetch --recurse-submodules=no https://example.com/x.git", sub: out, flag: "--recurse"},
		{args: "pull --recurse-submodules https://example.com/x.git main", sub: out, flag: "--recurse", note: "submodules are not fetched with it"},
		{args: "checkout --recurse-submodules main", flag: "--recurse"},
		{args: "checkout --recurse-submodules main", sub: out, flag: "--recurse", note: "--recurse-submodules is left out, and submodules stay as they are"},
		{args: "reset --hard --recurse-submodules", sub: out, flag: "--recurse", note: "--recurse-submodules is left out, and submodules stay as they are"},
		{args: "reset --hard --recurse-submodules --no-recurse-submodules", sub: out, flag: "--recurse"},
		{args: "grep --recurse-submodules x", flag: "--recurse"},
		{args: "grep --recurse-submodules x", sub: out, rule: "flag.refused"},
		{args: "ls-files --recurse-submodules", sub: out, rule: "flag.refused"},
		{args: "push --recurse-submodules=on-demand origin main", rule: "flag.value"},
	} {
		c := callOf(split(tt.args))
		c.RepoConfig.Modules, c.RepoConfig.Submodules = tt.modules, tt.sub
		d := testPolicy(nil).decide(c)
		if tt.rule != "" {
			if d.Effect != abi.Deny || d.Rule != tt.rule {
				t.Errorf("git %s: %s by %s, want it refused by %s", tt.args, d.Effect, d.Rule, tt.rule)
			}
			continue
		}
		if d.Effect != abi.Allow || slices.ContainsFunc(d.Args, func(a string) bool { return strings.HasPrefix(a, tt.flag) }) {
			t.Errorf("git %s: %s by %s, as %q", tt.args, d.Effect, d.Rule, d.Args)
		}
		if tt.note != "" != (len(d.Notes) == 1 && strings.HasPrefix(d.Notes[0], tt.note)) {
			t.Errorf("git %s says %q", tt.args, d.Notes)
		}
	}
}
