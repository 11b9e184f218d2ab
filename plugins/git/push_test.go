package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/pdk/abi"
)

// overSSH makes origin a remote that is reached over ssh, where nothing but
// the policy keeps a push from forcing: a script stands for ssh.
func overSSH(t *testing.T, b *box) *policy {
	ssh := filepath.Join(b.dir, "ssh")
	script := "#!/bin/sh\nfor last; do :; done\nunset GIT_ALLOW_PROTOCOL\nexec /bin/sh -c \"$last\"\n"
	if err := os.WriteFile(ssh, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	b.exec = []string{ssh, "/bin/sh"}
	return testPolicy(map[string]string{"ssh": ssh})
}

func (b *box) git(args ...string) string {
	b.t.Helper()
	out, err := b.plain("repo", nil, "", args...)
	if err != nil {
		b.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return out
}

func (b *box) remoteRefs() string { return b.git("ls-remote", b.ws+"/remote.git") }

// TestPushOnlyWhatIsNamed: a repository that forces or deletes, before the
// policy looks or after it, changes nothing on the other side but what the
// call names, and that only forward.
func TestPushOnlyWhatIsNamed(t *testing.T) {
	needGit(t)
	m, runner := model(t), newRunner(t)
	for _, tt := range []struct {
		name, config string
		files        map[string]string
		prepare      []string
		lines        []string
	}{
		{name: "a forced refspec of the same name", config: "[remote \"origin\"]push=+refs/heads/main:refs/heads/main"},
		{name: "a forced refspec of another name", config: "[remote \"origin\"]push=+main:feature"},
		{name: "a deletion", config: "[remote \"origin\"]push=:refs/heads/feature"},
		{name: "all that matches", config: "[remote \"origin\"]push=+:"},
		{name: "all that matches, by default", config: "[push]default=matching\n[remote \"origin\"]push=+:"},
		{name: "a mirror", config: "[remote \"origin\"]mirror=true"},
		{name: "a mirror that is given with no value", config: "[remote \"origin\"]\nmirror"},
		{name: "an upstream of another name", config: "[push]default=upstream\n[branch \"main\"]remote=origin\nmerge=refs/heads/feature"},
		{name: "a remote of old", prepare: []string{"config --unset-all remote.origin.url", "config remote.origin.pushurl user@example.com:{WS}/remote.git"},
			files: map[string]string{"repo/.git/remotes/origin": "URL: user@example.com:{WS}/remote.git\nPush: +refs/heads/main:refs/heads/main\nPush: :refs/heads/feature\n"}},
		{name: "a branch that is a link to another", prepare: []string{"symbolic-ref refs/heads/alias refs/heads/feature"}, lines: []string{"push origin alias"}},
		{name: "a branch of a misleading name", prepare: []string{"update-ref refs/heads/refs/heads/main HEAD~1", "update-ref refs/heads/heads/main HEAD~1", "update-ref refs/tags/refs/heads/main HEAD~1", "update-ref refs/heads/HEAD HEAD~1"},
			lines: []string{"push --all origin", "push --tags origin", "push --all --tags origin", "push origin refs/heads/main", "push origin heads/main:heads/main"}},
		{name: "misleading destinations", lines: []string{"push origin HEAD:refs/refs/heads/main", "push origin HEAD:refs/heads/refs/heads/main", "push origin HEAD:refs/remotes/x", "push origin HEAD:refs/notes/x", "push origin HEAD:HEAD",
			"push origin refs/*:refs/*", "push origin HEAD~1:refs/pull/1/head"}},
	} {
		lines := tt.lines
		if lines == nil {
			lines = []string{"push origin main", "push origin main:main", "push origin HEAD", "push", "push origin", "push --follow-tags origin", "push --all", "push -u origin main"}
		}
		for _, race := range []bool{false, true} {
			name := tt.name
			if race {
				name += ", by race"
			}
			t.Run(name, func(t *testing.T) {
				for _, line := range lines {
					b := newBox(t, m, runner)
					p := overSSH(t, b)
					b.git("config", "remote.origin.url", "user@example.com:"+b.ws+"/remote.git")
					b.git("config", "branch.main.remote", "origin")
					b.git("config", "branch.main.merge", "refs/heads/main")
					// Main was rewritten here, so that it goes there by force only.
					b.git("reset", "-q", "--hard", "HEAD~1")
					b.git("commit", "-q", "--allow-empty", "-m", "rewritten")
					b.git("config", "advice.pushNonFastForward", "false")
					before := b.remoteRefs()
					h := &hostile{config: tt.config, files: tt.files, prepare: tt.prepare}
					if !race {
						b.prepare(h)
					}
					d := b.ask(p, "repo", nil, b.line(line)...)
					if race {
						b.prepare(h)
					}
					if d.Effect != abi.Allow {
						continue
					}
					out, _, err := b.run(d, true, "repo", "", time.Minute)
					if err != nil {
						t.Errorf("git %s: %v", line, err)
					}
					after := b.remoteRefs()
					for ref := range strings.Lines(before) {
						if !strings.Contains(after, ref) {
							t.Errorf("git %s changed %s%s", line, ref, out)
						}
					}
					for ref := range strings.Lines(after) {
						_, ref, _ = strings.Cut(strings.TrimSpace(ref), "\t")
						if !slices.Contains([]string{"HEAD", "refs/heads/main", "refs/heads/feature", "refs/heads/conflict", "refs/heads/alias"}, ref) {
							t.Errorf("git %s made %s", line, ref)
						}
					}
				}
			})
		}
	}
}

// TestPushAsUsual: what people type without naming all of it is written out,
// or refused with the line to type.
func TestPushAsUsual(t *testing.T) {
	repo := func(head string, config ...abi.ConfigEntry) *abi.Call {
		c := callOf(nil, append([]abi.ConfigEntry{{Key: "remote.origin.url", Value: "https://example.com/x.git"}, {Key: "remote.fork.url", Value: "https://example.com/y.git"}}, config...)...)
		c.RepoConfig.State[0].Value = head
		return c
	}
	set := func(kv ...string) (out []abi.ConfigEntry) {
		for _, kv := range kv {
			k, v, _ := strings.Cut(kv, "=")
			out = append(out, abi.ConfigEntry{Key: k, Value: v})
		}
		return out
	}
	const onTopic = "ref: refs/heads/topic\n"
	tracked := set("branch.topic.remote=origin", "branch.topic.merge=refs/heads/topic")
	other := set("branch.topic.remote=origin", "branch.topic.merge=refs/heads/other")
	for _, tt := range []struct {
		args   string
		head   string
		config []abi.ConfigEntry
		want   string // the end of what runs, or the start of what to do instead
	}{
		{"push", onTopic, tracked, "push origin refs/heads/topic:refs/heads/topic"},
		{"push", onTopic, nil, "write git push --set-upstream origin topic"},
		{"push", onTopic, set("push.autosetupremote=true"), "--set-upstream origin refs/heads/topic:refs/heads/topic"},
		{"push -u origin topic", onTopic, nil, "push --set-upstream origin topic:topic"},
		{"push -u origin HEAD", onTopic, nil, "push --set-upstream origin refs/heads/topic:refs/heads/topic"},
		{"push -u", onTopic, tracked, "push --set-upstream origin refs/heads/topic:refs/heads/topic"},
		{"push origin", onTopic, tracked, "push origin refs/heads/topic:refs/heads/topic"},
		{"push fork", onTopic, tracked, "push fork refs/heads/topic:refs/heads/topic"},
		{"push", onTopic, append(set("branch.topic.pushremote=fork"), tracked...), "push fork refs/heads/topic:refs/heads/topic"},
		{"push", onTopic, append(set("remote.pushdefault=fork"), tracked...), "push fork refs/heads/topic:refs/heads/topic"},
		{"push", onTopic, other, "write git push origin topic:BRANCH"},
		{"push", onTopic, append(set("push.default=upstream"), other...), "push origin refs/heads/topic:refs/heads/other"},
		{"-c push.default=current push", onTopic, other, "push origin refs/heads/topic:refs/heads/topic"},
		{"push", onTopic, set("push.default=current"), "push origin refs/heads/topic:refs/heads/topic"},
		{"push", onTopic, append(set("push.default=matching"), tracked...), "name the branch: git push origin topic"},
		{"push", onTopic, append(set("push.default=nothing"), tracked...), "name the branch: git push origin topic"},
		{"push", "0123456789012345678901234567890123456789\n", tracked, "write git push origin HEAD:BRANCH"},
		{"push origin HEAD", "0123456789012345678901234567890123456789\n", tracked, "write HEAD:BRANCH"},
		{"push origin HEAD:topic", "0123456789012345678901234567890123456789\n", tracked, "push origin HEAD:topic"},
		{"push", onTopic, append(set("remote.origin.push=refs/heads/topic:refs/heads/review/topic"), tracked...), "push origin refs/heads/topic:refs/heads/review/topic"},
		{"push origin topic", onTopic, append(set("remote.origin.push=refs/heads/topic:refs/heads/review/topic"), tracked...), "write git push origin BRANCH:BRANCH"},
		{"push origin topic:topic", onTopic, append(set("remote.origin.push=+refs/heads/topic"), tracked...), "push origin topic:topic"},
		{"push --follow-tags", onTopic, tracked, "push --follow-tags origin refs/heads/topic:refs/heads/topic"},
		{"push --all", onTopic, nil, "push origin refs/heads/*:refs/heads/* ^refs/heads/HEAD ^refs/heads/refs/* ^refs/heads/heads/* ^refs/heads/tags/* ^refs/heads/remotes/*"},
		{"push --tags origin topic", onTopic, nil, "push origin refs/tags/*:refs/tags/* ^refs/tags/HEAD ^refs/tags/refs/* ^refs/tags/heads/* ^refs/tags/tags/* ^refs/tags/remotes/* topic:topic"},
		{"push --all origin topic", onTopic, nil, "leave one of them out"},
		{"push origin größe#1", onTopic, nil, "push origin größe#1:größe#1"},
		{"push", onTopic, set("remote.fork.pushurl=https://example.com/z", "branch.topic.remote=nowhere"), "git remote add nowhere URL"},
	} {
		c := repo(tt.head, tt.config...)
		c.Args = split(tt.args)
		d := testPolicy(nil).decide(c)
		if got := strings.Join(d.Args, " "); d.Effect == abi.Allow && !strings.HasSuffix(got, tt.want) || d.Effect == abi.Deny && !strings.HasPrefix(d.Instead, tt.want) {
			t.Errorf("git %s: %s %s; %s %s", tt.args, d.Effect, d.Reason, d.Instead, got)
		}
	}
}

// TestShellLines holds that git hands the shell the very line that the
// decision names, and the path of the remote in single quotes.
func TestShellLines(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	b.git("clone", "-q", "--bare", b.ws+"/remote.git", b.ws+"/a b.git")
	b.git("config", "remote.second.url", b.ws+"/a b.git")
	b.git("config", "remote.second.fetch", "+refs/heads/*:refs/remotes/second/*")
	b.write("repo/.git/objects/info/alternates", b.ws+"/remote.git/objects\n")
	b.write("a b.git/objects/info/alternates", b.ws+"/remote.git/objects\n")
	for _, line := range []string{"fetch origin", "fetch --all", "fetch second", "ls-remote second", "pull --no-rebase origin main", "push second HEAD:refs/heads/new", "clone {WS}/remote.git {WS}/new", "fetch --multiple origin second", "push --all second"} {
		d := b.ask(testPolicy(nil), "repo", nil, b.line(line)...)
		if !d.Shell || len(d.ShellLines) == 0 {
			t.Errorf("git %s: shell %v, lines %q", line, d.Shell, d.ShellLines)
			continue
		}
		trace := filepath.Join(b.dir, "trace")
		os.Remove(trace)
		env := map[string]string{"GIT_TRACE2_EVENT": trace}
		for k, v := range d.Env {
			env[k] = v
		}
		if out, err := b.plain("repo", env, "", d.Args...); err != nil {
			t.Errorf("git %s: %v\n%s", line, err, out)
		}
		f, err := os.Open(trace)
		if err != nil {
			t.Fatal(err)
		}
		shells := 0
		for scan := bufio.NewScanner(f); scan.Scan(); {
			var event struct {
				Event    string
				UseShell bool `json:"use_shell"`
				Argv     []string
			}
			if json.Unmarshal(scan.Bytes(), &event) != nil || event.Event != "child_start" || !event.UseShell || !strings.ContainsAny(event.Argv[0], " '") {
				continue // One word is run without a shell.
			}
			shells++
			if !slices.ContainsFunc(d.ShellLines, func(l string) bool {
				path, ok := strings.CutPrefix(event.Argv[0], l+" '")
				return ok && len(event.Argv) == 1 && strings.Count(path, "'") == 1 && strings.HasSuffix(path, "'")
			}) {
				t.Errorf("git %s gives a shell %q, and the lines are %q", line, event.Argv, d.ShellLines)
			}
		}
		f.Close()
		if shells == 0 {
			t.Errorf("git %s ran no shell", line)
		}
	}
	for _, line := range []string{"status", "commit -m x", "fetch https://example.com/x", "push git@example.com:x main"} {
		if d := b.ask(testPolicy(nil), "repo", nil, b.line(line)...); d.Shell || d.ShellLines != nil {
			t.Errorf("git %s: shell %v, lines %q", line, d.Shell, d.ShellLines)
		}
	}
	for _, name := range []string{"a'b", "a!b"} {
		if d := b.ask(testPolicy(nil), "repo", nil, "fetch", b.ws+"/"+name); d.Effect != abi.Deny {
			t.Errorf("%s, which git quotes in another way, is allowed", name)
		}
	}
}

// TestTrailersAsGit: a trailer comes out as git itself would write it.
func TestTrailersAsGit(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	for _, tt := range []struct {
		args []string
		rule string
	}{
		{args: []string{"-m", "title", "--trailer", "Fixes: 12"}},
		{args: []string{"-m", "title", "--trailer", "Fixes=12", "--trailer", "Seen-by : Ada <a@example.com>"}},
		{args: []string{"-m", "title: with a colon", "-m", "body", "--trailer=Fixes:12", "--trailer=Fixes:12", "--trailer=Fixes:13"}},
		{args: []string{"-m", "title\n\nbody\n\nOne: 1\n", "--trailer", "Two: 2"}},
		{args: []string{"-m", "title", "-m", "One: 1", "--trailer", "Two: 2"}},
		{args: []string{"-mtitle", "-m", "One: 1\nnot one", "--trailer", "Two: 2"}},
		{args: []string{"--amend", "-m", "anew", "--trailer", "Two:2"}},
		{args: []string{"--trailer", "Two: 2", "-m", "late"}},
		{args: []string{"--amend", "--no-edit", "--trailer", "Two: 2"}, rule: "flag.value"},
		{args: []string{"-F", "a.txt", "--trailer", "Two: 2"}, rule: "flag.value"},
		{args: []string{"-m", "x", "--trailer", "a\nb: 2"}, rule: "flag.value"},
		{args: []string{"-m", "x", "--trailer", ": 2"}, rule: "flag.value"},
	} {
		args := append([]string{"commit", "-q", "--allow-empty"}, tt.args...)
		_, code, d := b.call(testPolicy(nil), true, "repo", nil, "", args...)
		if d.Rule != "git.commit" && d.Rule != tt.rule || code != 0 && tt.rule == "" {
			t.Errorf("git %q: %s %s, exit code %d", args, d.Rule, d.Reason, code)
		}
		if tt.rule != "" {
			continue
		}
		got := b.git("log", "-1", "--format=%B")
		b.git(append([]string{"commit", "-q", "--allow-empty"}, tt.args...)...)
		if want := b.git("log", "-1", "--format=%B"); got != want {
			t.Errorf("%q: got %q, git alone %q", tt.args, got, want)
		}
	}
	b.git("config", "trailer.fix.key", "Fixes: ")
	if d := b.ask(testPolicy(nil), "repo", nil, "commit", "-m", "x", "--trailer", "fix=1"); d.Rule != "flag.value" {
		t.Errorf("with trailers of the repository's making: %s", d.Rule)
	}
}

// TestDiffWithoutRepository: a repository that is gone when git looks does not
// make git diff compare any two files.
func TestDiffWithoutRepository(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	if err := os.Symlink(b.out, b.ws+"/repo/link"); err != nil {
		t.Fatal(err)
	}
	d := b.ask(testPolicy(nil), "repo", nil, "diff", "link/secret.txt", "one.txt")
	dashed := b.ask(testPolicy(nil), "repo", nil, "diff", "--", "link/secret.txt", "one.txt")
	if err := os.Rename(b.ws+"/repo/.git", b.ws+"/repo/gone"); err != nil {
		t.Fatal(err)
	}
	if out, _ := b.plain("repo", nil, "", "diff", "link/secret.txt", "one.txt"); !strings.Contains(out, "TOPSECRET") {
		t.Errorf("git alone does not show it:\n%s", out)
	}
	for _, d := range []*abi.Decision{d, dashed} {
		if out, _, _ := b.run(d, true, "repo", "", time.Minute); strings.Contains(out, "TOPSECRET") {
			t.Errorf("shown:\n%s", out)
		}
	}
	os.Rename(b.ws+"/repo/gone", b.ws+"/repo/.git")
	b.write("repo/d/x.txt", "1\n")
	b.git("add", ".")
	b.git("commit", "-q", "-m", "d")
	b.write("repo/d/x.txt", "2\n")
	b.git("branch", "team/x", "HEAD~1")
	for _, line := range []string{"diff d/x.txt one.txt", "diff main team/x", "diff HEAD d/x.txt", "diff -- d/x.txt a.txt", "diff --stat team/x main", "diff HEAD:a.txt team/x:a.txt"} {
		want, _ := b.plain("repo", nil, "", strings.Fields(line)...)
		if got := b.calls(testPolicy(nil), "repo", line); got != want || got == "" && !strings.Contains(line, "a.txt team") {
			t.Errorf("git %s: got\n%swant\n%s", line, got, want)
		}
	}
}
