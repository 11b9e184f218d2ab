package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// TestVariables holds what becomes of each variable that git honours: passed on,
// written as a flag, refused for its value, or refused because it does not reach git
// and the result would be another one.
func TestVariables(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	p := testPolicy(nil)
	for _, tt := range []struct {
		line, name, value string
		is                string // "env", "flag FLAG", "refused RULE"
	}{
		{"commit --allow-empty -m x", "GIT_AUTHOR_NAME", "A", "env"},
		{"commit --allow-empty -m x", "GIT_AUTHOR_DATE", "2026-01-05T09:00:00Z", "env"},
		{"commit --allow-empty -m x", "GIT_COMMITTER_EMAIL", "a@b", "env"},
		{"commit --allow-empty -m x", "GIT_REFLOG_ACTION", "mine", "env"},
		{"commit --allow-empty -m x", "GIT_REFLOG_ACTION", "a\nb", "refused env"},
		{"merge feature", "GIT_MERGE_AUTOEDIT", "no", "env"},
		{"log", "TZ", "Asia/Tokyo", "env"},
		{"log", "TZ", ":/etc/passwd", "refused env"},
		{"log", "COLUMNS", "40", "env"},
		{"log", "NO_COLOR", "1", "env"},
		{"log", "TERM", "dumb", "env"},
		{"log", "GIT_DIR", "{WS}/remote.git", "flag --git-dir={WS}/remote.git"},
		{"log", "GIT_DIR", "../remote.git", "flag --git-dir={WS}/remote.git"},
		{"log", "GIT_DIR", "/etc", "refused path.outside"},
		{"status", "GIT_WORK_TREE", "{WS}/repo", "flag --work-tree={WS}/repo"},
		{"status", "GIT_WORK_TREE", "/", "refused path.outside"},
		{"status", "GIT_INDEX_FILE", "{WS}/repo/.git/index.lock", "env"},
		{"status", "GIT_INDEX_FILE", "/tmp/x", "refused env"},
		{"status", "GIT_INDEX_FILE", "a/../b", "refused env"},
		{"add *", "GIT_LITERAL_PATHSPECS", "1", "flag --literal-pathspecs"},
		{"add *", "GIT_LITERAL_PATHSPECS", "0", "no flag --literal-pathspecs"},
		{"add *", "GIT_GLOB_PATHSPECS", "true", "flag --glob-pathspecs"},
		{"add *", "GIT_NOGLOB_PATHSPECS", "true", "flag --noglob-pathspecs"},
		{"add *", "GIT_ICASE_PATHSPECS", "maybe", "refused env"},
		{"status", "GIT_OPTIONAL_LOCKS", "0", "flag --no-optional-locks"},
		{"status", "GIT_OPTIONAL_LOCKS", "1", "no flag --no-optional-locks"},
		{"log", "GIT_NO_REPLACE_OBJECTS", "0", "flag --no-replace-objects"},
		{"init x", "GIT_DEFAULT_HASH", "sha256", "env"},
		{"init x", "GIT_DEFAULT_HASH", "md5", "refused env"},
		{"status", "GIT_OBJECT_DIRECTORY", "{WS}/o", "refused env"},
		{"status", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "{WS}/o", "refused env"},
		{"log", "GIT_DIFF_OPTS", "-u1", "env"},
		{"log", "GIT_DIFF_OPTS", "--unified=0", "env"},
		{"log", "GIT_DIFF_OPTS", "--ext-diff", "refused env"},
		{"merge feature", "GIT_MERGE_VERBOSITY", "5", "env"},
		{"merge feature", "GIT_MERGE_VERBOSITY", "-1", "refused env"},
		{"log", "GIT_PRINT_SHA1_ELLIPSIS", "yes", "env"},
		{"diff a/b:c d", "GIT_CEILING_DIRECTORIES", "{WS}", "refused env"},
		{"diff a/b d", "GIT_CEILING_DIRECTORIES", "{WS}", "env ending"},
		{"status", "GIT_CEILING_DIRECTORIES", "{WS}/x", "env ending"},
		{"ls-remote", "GIT_CEILING_DIRECTORIES", "{WS}", "refused env"},
		{"apply x", "GIT_CEILING_DIRECTORIES", "{WS}", "refused env"},
		{"status", "GIT_NAMESPACE", "x", "refused env"},
		{"status", "GIT_COMMON_DIR", "{WS}/remote.git", "refused env"},
		{"status", "GIT_CONFIG_COUNT", "1", "refused env"},
		{"status", "GIT_CONFIG_PARAMETERS", "'a.b=c'", "refused env"},
		{"status", "GIT_CONFIG_GLOBAL", "{WS}/c", "refused env"},
		{"status", "GIT_TRACE", "1", "refused env"},
		{"status", "GIT_TRACE2_EVENT", "{WS}/t", "refused env"},
		{"fetch", "GIT_SSH_COMMAND", "ssh -i x", "refused env"},
		{"fetch", "GIT_SSH", "x", "refused env"},
		{"fetch", "GIT_ASKPASS", "x", "refused env"},
		{"fetch", "GIT_PROXY_COMMAND", "x", "refused env"},
		{"log", "GIT_PAGER", "less", "refused env"},
		{"log", "PAGER", "less", "refused env"},
		{"log", "LESS", "R", "refused env"},
		{"log", "LANG", "de_DE.UTF-8", "refused env"},
		{"commit --allow-empty -m x", "EMAIL", "a@b", "refused env"},
		{"init x", "GIT_TEMPLATE_DIR", "{WS}/t", "refused env"},
		{"diff", "GIT_EXTERNAL_DIFF", "x", "refused env"},
		{"status", "GIT_EXEC_PATH", "{WS}", "refused env"},
		{"status", "GIT_ALLOW_PROTOCOL", "ext", "refused env"},
	} {
		value := b.words.Replace(tt.value)
		d := b.ask(p, "repo", map[string]string{tt.name: value}, b.line(tt.line)...)
		rule, refused := strings.CutPrefix(tt.is, "refused ")
		flag, flagged := strings.CutPrefix(tt.is, "flag ")
		none, off := strings.CutPrefix(tt.is, "no flag ")
		_, passed := d.Env[tt.name]
		switch {
		case refused && (d.Effect != abi.Deny || d.Rule != rule || d.Reason == ""):
			t.Errorf("%s=%s git %s: %s by %q, want refused by %q", tt.name, tt.value, tt.line, d.Effect, d.Rule, rule)
		case !refused && d.Effect != abi.Allow:
			t.Errorf("%s=%s git %s: refused by %s: %s", tt.name, tt.value, tt.line, d.Rule, d.Reason)
		case tt.is == "env ending" && !strings.HasSuffix(d.Env[tt.name], ":"+value):
			t.Errorf("%s=%s git %s: git gets %q", tt.name, tt.value, tt.line, d.Env[tt.name])
		case tt.is == "env" && d.Env[tt.name] != value:
			t.Errorf("%s=%s git %s: git gets %q", tt.name, tt.value, tt.line, d.Env[tt.name])
		case flagged && (!slices.Contains(d.Args, b.words.Replace(flag)) || passed), off && (slices.Contains(d.Args, none) || passed):
			t.Errorf("%s=%s git %s: %q, %v", tt.name, tt.value, tt.line, d.Args, d.Env)
		}
	}

	// A variable whose name alone is known.
	for _, tt := range []struct{ line, name, rule string }{
		{"log", "GIT_DIR", "env"}, {"status", "GIT_WORK_TREE", "env"}, {"add .", "GIT_INDEX_FILE", "env"}, {"log", "GIT_NAMESPACE", "env"}, {"log", "GIT_OBJECT_DIRECTORY", "env"},
		{"log", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "env"}, {"add x", "GIT_LITERAL_PATHSPECS", "env"}, {"log", "GIT_NO_REPLACE_OBJECTS", "env"}, {"log", "GIT_CONFIG_COUNT", "env"},
		{"init x", "GIT_DEFAULT_HASH", "env"}, {"log", "GIT_DEFAULT_HASH", ""}, {"diff", "GIT_EXTERNAL_DIFF", "env"}, {"diff --no-ext-diff", "GIT_EXTERNAL_DIFF", ""}, {"status", "GIT_EXTERNAL_DIFF", ""},
		{"log", "GIT_TRACE", ""}, {"log", "GIT_PAGER", ""}, {"log", "EMAIL", ""}, {"log", "GIT_SSH_COMMAND", ""}, {"--version", "GIT_DIR", ""}, {"commit -h", "GIT_DIR", ""},
	} {
		c := callOf(split(tt.line), originOnly...)
		c.EnvSeen = []string{tt.name}
		d := p.decide(c)
		switch {
		case tt.rule == "" && d.Effect != abi.Allow:
			t.Errorf("%s, git %s: refused by %s: %s", tt.name, tt.line, d.Rule, d.Reason)
		case tt.rule != "" && (d.Rule != tt.rule || d.Instead == ""):
			t.Errorf("%s, git %s: %s by %q (%s)", tt.name, tt.line, d.Effect, d.Rule, d.Instead)
		}
	}
}

// TestBare: a repository without a working tree is used as one from within, and so is
// a .git folder.
func TestBare(t *testing.T) {
	needGit(t)
	m, runner := model(t), newRunner(t)
	for _, dir := range []string{"remote.git", "remote.git/refs", "repo/.git", "repo/.git/refs"} {
		for _, line := range []string{"log --oneline -1 main", "rev-parse --git-dir --is-bare-repository --is-inside-work-tree", "rev-parse --is-inside-git-dir --show-prefix", "branch", "status", "config core.bare", "ls-tree main", "branch new main", "-C . log -1 main", "gc -q", "worktree add {WS}/tree main",
			"init -q {WS}/inner", "clone -q {WS}/remote.git {WS}/copy", "fetch -q {WS}/repo main"} {
			b, c := newBox(t, m, runner), newBox(t, m, runner)
			c.ws, c.words = b.ws, b.words
			want, code := b.plainCode(dir, nil, "", b.line(line)...)
			b = newBox(t, m, runner)
			got, through, d := b.call(testPolicy(nil), true, dir, nil, "", b.line(line)...)
			got = strings.ReplaceAll(got, b.dir, c.ws[:len(c.ws)-3])
			if d.Effect != abi.Allow || through != code || got != want {
				t.Errorf("in %s, git %s: %s %s, exit code %d\n%swant exit code %d\n%s", dir, line, d.Effect, d.Reason, through, got, code, want)
			}
		}
	}
}
