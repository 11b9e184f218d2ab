package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// What completions ask runs, and is read only: in a repository that can be read.
func TestCompletion(t *testing.T) {
	p := testPolicy(nil)
	for line, want := range map[string]string{
		"--list-cmds=main,others,alias,nohelpers": "--list-cmds=main,alias,nohelpers",
		"--list-cmds=parseopt":                    "",
		"--list-cmds=list-mainporcelain,config":   "",
		"commit --git-completion-helper":          "",
		"commit --git-completion-helper-all":      "",
		"remote add --git-completion-helper":      "",
		"push --git-completion-helper":            "",
		"merge -s help":                           "",
		"help -a":                                 "",
		"help --config-for-completion":            "",
		"-c core.quotePath=false diff-index --name-only --relative HEAD -- ?*": "--name-only --relative HEAD -- ?*",
	} {
		c := callOf(strings.Fields(line))
		c.ReadOnly = true
		d := p.decide(c)
		if d.Effect != abi.Allow || *d.Mutating || *d.Stdin || d.Shell {
			t.Errorf("git %s: %+v", line, d)
			continue
		}
		if want == "" {
			want = line
		}
		if got := strings.Join(d.Args, " "); !strings.HasSuffix(got, " "+want) || !slices.Contains(d.Args, "core.fsmonitor=false") {
			t.Errorf("git %s runs %s", line, got)
		}
	}
	for line, rule := range map[string]string{
		"--list-cmds=others":                   "global-flag", // programs on the host
		"--list-cmds=":                         "global-flag",
		"--list-cmds=-h":                       "global-flag",
		"--list-cmds main":                     "global-flag",
		"--list-cmds=main log":                 "global-flag",
		"--list-cmds=list-../x":                "global-flag",
		"commit -m x --git-completion-helper":  "flag.unknown",
		"repack --git-completion-helper":       "subcommand",
		"submodule --git-completion-helper":    "flag.unknown",
		"bisect start --git-completion-helper": "flag.unknown",
		"stash create --git-completion-helper": "flag.unknown",
		"diff-tree --git-completion-helper":    "flag.unknown",
		"push origin --git-completion-helper":  "flag.unknown",
		"merge -s help x":                      "flag.value",
		"merge -s resolve":                     "flag.value",
		"help --man":                           "operand",
		"help -w":                              "operand",
		"--git-completion-helper":              "global-flag",
		"diff-index -- HEAD":                   "operand",
		"diff-index --ext-diff HEAD":           "flag.refused",
		"diff-index":                           "operand",
	} {
		d := ask(p, strings.Fields(line))
		if d.Effect == abi.Allow || !strings.HasPrefix(d.Rule, rule) {
			t.Errorf("git %s: %+v, want refused by %s", line, d, rule)
		}
	}
	// A repository that would run a program completes nothing.
	for _, line := range []string{"--list-cmds=alias", "commit --git-completion-helper", "diff-index HEAD"} {
		if d := ask(p, strings.Fields(line), abi.ConfigEntry{Key: "core.gitProxy", Value: "/evil"}); d.Effect == abi.Allow {
			t.Errorf("git %s: %+v", line, d)
		}
	}
}
