package main

import (
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// TestState: what git would go on with is judged as what it is told.
func TestState(t *testing.T) {
	const opts = "[options]\n\tedit = false\n\tmainline = 1\n\tstrategy = ort\n\tstrategy-option = theirs\n"
	for _, tt := range []struct {
		file, content string
		args          string
		rule          string
	}{
		{"rebase-merge/strategy", "ort\n", "rebase --continue", ""},
		{"rebase-merge/strategy", "recursive", "rebase --skip", ""},
		{"rebase-merge/strategy", "", "rebase --continue", "repo-state"},
		{"rebase-merge/strategy", "octopus\n", "rebase --continue", "repo-state"},
		{"rebase-merge/strategy", "x/git\n", "rebase --continue", "repo-state"},
		{"rebase-merge/strategy", "x/git\n", "rebase --abort", ""},
		{"rebase-merge/strategy", "x/git\n", "rebase --quit", ""},
		{"rebase-merge/strategy", "x/git\n", "rebase main", "repo-state"},
		{"rebase-merge/strategy", "x/git\n", "cherry-pick --continue", "repo-state"},
		{"rebase-merge/strategy", "x/git\n", "revert --skip", "repo-state"},
		{"rebase-merge/strategy", "x/git\n", "status", ""},
		{"rebase-merge/strategy", "x/git\n", "add .", ""},
		{"rebase-apply/strategy", "x/git\n", "rebase --continue", "repo-state"},
		{"rebase-merge/strategy_opts", " --ours --find-renames=50\n", "rebase --continue", ""},
		{"rebase-merge/strategy_opts", ` "--ours" '--subtree=a'`, "rebase --continue", ""},
		{"rebase-merge/strategy_opts", " --git-dir=/x\n", "rebase --continue", "repo-state"},
		{"rebase-merge/strategy_opts", ` --ours\ --git-dir=x`, "rebase --continue", "repo-state"},
		{"rebase-merge/strategy_opts", ` --subtree="a" --b"`, "rebase --continue", "repo-state"},
		{"rebase-merge/gpg_sign_opt", "", "rebase --continue", ""},
		{"rebase-merge/gpg_sign_opt", "-Skey\n", "rebase --continue", "repo-state"},
		{"rebase-merge/git-rebase-todo", "pick a b\n# exec x\nfixup -C a\nlabel x\nexample\nmerge -C a b\nupdate-ref refs/heads/x\n\nxyz\n", "rebase --continue", ""},
		{"rebase-merge/git-rebase-todo", "pick a\nexec make\n", "rebase --continue", "repo-state"},
		{"rebase-merge/git-rebase-todo", "pick a\n \tx\tmake", "rebase --continue", "repo-state"},
		{"rebase-merge/git-rebase-todo", "execmake\n", "rebase --continue", "repo-state"},
		{"rebase-merge/git-rebase-todo", "x\r\n", "rebase --continue", "repo-state"},
		{"rebase-merge/unknown", "", "rebase --continue", "repo-state"},
		{"rebase-apply/apply-opt", "'--whitespace=fix' '-C2' -p1 '--ignore-whitespace'\n", "rebase --continue", ""},
		{"rebase-apply/apply-opt", "'--directory=../x'\n", "rebase --continue", "repo-state"},
		{"rebase-apply/apply-opt", "'--unsafe-paths'", "rebase --continue", "repo-state"},
		{"rebase-apply/apply-opt", "'-p2 --unsafe-paths'", "rebase --continue", "repo-state"},
		{"sequencer/opts", opts, "cherry-pick --continue", ""},
		{"sequencer/opts", opts + "\tgpg-sign = x\n", "cherry-pick --continue", "repo-state"},
		{"sequencer/opts", "[options]\n\tSTRATEGY = x/git\n", "revert --continue", "repo-state"},
		{"sequencer/opts", "[options]\n\tstrategy-option = git-dir=x\n", "cherry-pick --continue", "repo-state"},
		{"sequencer/opts", "[options] strategy = x/git\n", "cherry-pick --continue", "repo-state"},
		{"sequencer/opts", "[options]\n\tedit = \\\n\tfalse\n", "cherry-pick --continue", "repo-state"},
		{"sequencer/todo", "pick a\n", "cherry-pick --continue", ""},
		{"sequencer/todo", "exec a\n", "cherry-pick --continue", "repo-state"},
		{"remotes/old", "URL: /x\n", "fetch origin", "repo-state"},
		{"branches/old", "/x\n", "push origin main", "repo-state"},
		{"remotes/old", "URL: /x\n", "status", ""},
	} {
		c := callOf(split(tt.args), originOnly...)
		c.RepoConfig.State = append(c.RepoConfig.State, abi.ConfigEntry{Key: tt.file, Value: tt.content})
		d := testPolicy(nil).decide(c)
		if tt.rule == "" && d.Effect != abi.Allow || tt.rule != "" && d.Rule != tt.rule || tt.rule != "" && !strings.Contains(d.Reason, tt.file) {
			t.Errorf("%s of %q: git %s: %s by %s: %s", tt.file, tt.content, tt.args, d.Effect, d.Rule, d.Reason)
		}
	}
}
