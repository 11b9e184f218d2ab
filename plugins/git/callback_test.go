package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// TestCallbacks: a call asks its caller for the programs that git may start in it,
// and for no others.
func TestCallbacks(t *testing.T) {
	all := []string{kindEditor, kindSequenceEditor, kindPager, kindHooks}
	for _, tt := range []struct {
		args  string
		kinds []string
		hooks []string
		dir   string
		rule  string
		want  string   // the names of the callbacks
		notes []string // what they begin with
	}{
		{args: "commit", kinds: all, want: "editor"},
		{args: "commit", kinds: []string{kindPager}, rule: "editor"},
		{args: "commit --amend", kinds: all, want: "editor"},
		{args: "commit --amend --no-edit", kinds: all},
		{args: "commit -m x", kinds: all},
		{args: "commit -m x", kinds: all, hooks: []string{"pre-commit", "pre-push"}, want: "pre-commit pre-push"},
		{args: "commit -m x", kinds: all, hooks: []string{"pre-commit"}, dir: "none", notes: []string{"hook pre-commit was not run"}},
		{args: "commit -m x", kinds: []string{kindEditor}, hooks: []string{"pre-commit"}, notes: []string{"hook pre-commit was not run"}},
		{args: "commit -m x", kinds: all, hooks: []string{"hooks/pre-commit"}},
		{args: "commit -m x", kinds: all, hooks: []string{"fsmonitor-watchman", "pre-push"}},
		{args: "push shell main", kinds: all, hooks: []string{"pre-commit"}},
		{args: "push shell main", kinds: all, hooks: []string{"pre-push", "update"}, want: "pre-push"},
		{args: "bisect start", kinds: all, hooks: []string{"reference-transaction"}, rule: "hook"},
		{args: "rebase -i HEAD~2", kinds: all, want: "editor sequence-editor"},
		{args: "rebase -i HEAD~2", kinds: []string{kindSequenceEditor}, want: "sequence-editor", notes: []string{"no editor for messages"}},
		{args: "-c core.editor=true rebase -i HEAD~2", kinds: all, want: "sequence-editor"},
		{args: "-c sequence.editor=: rebase -i HEAD~2", kinds: all, want: "editor"},
		{args: "-c core.editor=: commit", kinds: all},
		{args: "-c core.pager=cat log", kinds: all},
		{args: "-c core.hooksPath=/dev/null commit -m x", kinds: all, hooks: []string{"pre-commit"}},
		{args: "rebase main", kinds: all, hooks: []string{"commit-msg"}, want: "commit-msg editor sequence-editor"},
		{args: "rebase --continue", kinds: all, want: "editor sequence-editor"},
		{args: "tag -a v1", kinds: all, want: "editor"},
		{args: "tag v1", kinds: all},
		{args: "tag -l", kinds: all, want: "pager"},
		{args: "branch", kinds: all, want: "pager"},
		{args: "stash list", kinds: all, want: "pager"},
		{args: "log", kinds: all, want: "pager"},
		{args: "--no-pager log", kinds: all},
		{args: "status", kinds: all, hooks: []string{"pre-commit"}},
		{args: "fetch shell", kinds: all},
	} {
		c := callOf(split(tt.args), abi.ConfigEntry{Key: "remote.shell.url", Value: "git@example.com:x"}, abi.ConfigEntry{Key: "core.editor", Value: "evil"}, abi.ConfigEntry{Key: "core.pager", Value: "evil"})
		c.RepoConfig.Hooks, c.RepoConfig.HooksDir = tt.hooks, "/ws/repo/.git/hooks"
		if tt.dir != "" {
			c.RepoConfig.HooksDir = ""
		}
		c.EnvSeen = []string{"GIT_EDITOR", "GIT_SEQUENCE_EDITOR"}
		c.Callbacks = &abi.Callbacks{Kinds: tt.kinds, Folder: "/state/callbacks-1"}
		d := testPolicy(nil).decide(c)
		if tt.rule != "" {
			if d.Effect == abi.Allow || d.Rule != tt.rule {
				t.Errorf("git %s: %s by %s", tt.args, d.Effect, d.Rule)
			}
			continue
		}
		var names []string
		hooks := false
		for _, by := range d.Callbacks {
			names = append(names, by.Name)
			if want := map[bool]string{true: "/ws/repo/.git/hooks/" + by.Name}[by.Kind == kindHooks]; by.Path != want {
				t.Errorf("git %s: the path of %s is %q, not %q", tt.args, by.Name, by.Path, want)
			}
			hooks = hooks || by.Kind == kindHooks
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); d.Effect != abi.Allow || got != tt.want || len(d.Notes) != len(tt.notes) {
			t.Errorf("git %s with %q: %s %s, asks for %q, not %q, and says %q", tt.args, tt.kinds, d.Effect, d.Reason, got, tt.want, d.Notes)
		}
		for i, note := range tt.notes {
			if !strings.HasPrefix(d.Notes[i], note) {
				t.Errorf("git %s says %q", tt.args, d.Notes)
			}
		}
		for name, program := range map[string]string{"GIT_EDITOR": kindEditor, "GIT_SEQUENCE_EDITOR": kindSequenceEditor, "GIT_PAGER": kindPager} {
			want := map[string]string{"GIT_EDITOR": ":", "GIT_SEQUENCE_EDITOR": ":", "GIT_PAGER": "cat"}[name]
			if slices.Contains(names, program) {
				want = "/state/callbacks-1/" + program
			}
			if d.Env[name] != want {
				t.Errorf("git %s: %s=%s, not %s", tt.args, name, d.Env[name], want)
			}
		}
		line := strings.Join(d.Args, " ")
		if want := "core.hooksPath=" + map[bool]string{false: "/dev/null", true: "/state/callbacks-1"}[hooks]; !strings.Contains(line, want+" ") {
			t.Errorf("git %s runs %s, without %s", tt.args, line, want)
		}
		if strings.Contains(line, "--no-pager") == slices.Contains(names, kindPager) {
			t.Errorf("git %s runs %s", tt.args, line)
		}
	}
}
