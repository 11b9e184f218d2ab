package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// TestScriptsOfTheCaller: where the caller runs scripts, all of them are its, and none
// is this host's, whatever the operator lists; where it runs none, that is said.
func TestScriptsOfTheCaller(t *testing.T) {
	const shim = "--script-shell=/state/callbacks-1/scripts"
	for _, tt := range []struct {
		args           string
		kinds          []string
		shell          bool // on this host
		pins, without  string
		rule, note     string
		asksTheCaller  bool
		scriptsAllowed string
	}{
		{args: "install", kinds: []string{"scripts"}, pins: shim, without: "--ignore-scripts=true", asksTheCaller: true},
		{args: "ci", kinds: []string{"hooks", "scripts"}, pins: shim, without: "--ignore-scripts=true", asksTheCaller: true},
		{args: "update", kinds: []string{"scripts"}, pins: shim, asksTheCaller: true},
		{args: "rebuild dep", kinds: []string{"scripts"}, pins: shim, asksTheCaller: true},
		{args: "it", kinds: []string{"scripts"}, pins: shim, asksTheCaller: true},
		{args: "cit", kinds: []string{"scripts"}, pins: shim, asksTheCaller: true},
		{args: "test", kinds: []string{"scripts"}, pins: shim, without: "--ignore-scripts=true", asksTheCaller: true},
		{args: "run anything --dry-run", kinds: []string{"scripts"}, pins: shim, asksTheCaller: true},
		{args: "run anything -- -x", kinds: []string{"scripts"}, pins: shim, asksTheCaller: true},
		{args: "run listed", kinds: []string{"scripts"}, pins: shim, asksTheCaller: true, scriptsAllowed: "listed"},
		{args: "run listed --ignore-scripts", kinds: []string{"scripts"}, pins: shim, asksTheCaller: true},
		{args: "install --ignore-scripts", kinds: []string{"scripts"}, pins: "--ignore-scripts=true"},
		{args: "install --no-ignore-scripts", kinds: []string{"scripts"}, pins: shim, asksTheCaller: true},
		{args: "install --dry-run", kinds: []string{"scripts"}, pins: "--script-shell=" + noShell, without: "--ignore-scripts=true"},
		{args: "install --dry-run", pins: "--ignore-scripts=true"},
		{args: "install --dry-run --ignore-scripts", kinds: []string{"scripts"}, pins: "--ignore-scripts=true"},
		{args: "ls", kinds: []string{"scripts"}, pins: "--ignore-scripts=true"},
		{args: "run", kinds: []string{"scripts"}, pins: "--script-shell=" + noShell},
		{args: "ll", kinds: []string{"scripts"}, pins: "--ignore-scripts=true"},

		{args: "install", kinds: nil, pins: "--script-shell=" + noShell, note: "no script"},
		{args: "install", kinds: []string{"hooks"}, pins: "--ignore-scripts=true", note: "no script"},
		{args: "install --ignore-scripts", pins: "--ignore-scripts=true"},
		{args: "install --ignore-scripts=false", rule: "npm.script"},
		{args: "test", rule: "npm.script"},
		{args: "test --dry-run", rule: "npm.script"},
		{args: "it --dry-run", rule: "npm.script"},
		{args: "rebuild", rule: "npm.script"},
		{args: "rebuild --ignore-scripts", rule: "npm.script"},
		{args: "run listed", pins: "--script-shell=/bin/sh", scriptsAllowed: "listed", shell: true},
		{args: "run other", scriptsAllowed: "listed", rule: "npm.script"},
	} {
		c := call(strings.Fields(tt.args)...)
		if tt.kinds != nil {
			c.Callbacks = &abi.Callbacks{Kinds: tt.kinds, Folder: "/state/callbacks-1"}
		}
		d := testPolicy(t, map[string]string{"scripts": tt.scriptsAllowed}).decide(c)
		name := "npm " + tt.args + " with " + strings.Join(tt.kinds, " ")
		if tt.rule != "" {
			if d.Effect != abi.Deny || d.Rule != tt.rule || !strings.Contains(d.Instead, "wrapper") {
				t.Errorf("%s: %s by %s, instead: %s", name, d.Effect, d.Rule, d.Instead)
			}
			continue
		}
		end := slices.IndexFunc(d.Args, func(a string) bool { return !strings.HasPrefix(a, "-") })
		if d.Effect != abi.Allow || end < 0 || !slices.Contains(d.Args[:end], tt.pins) || tt.without != "" && slices.Contains(d.Args, tt.without) {
			t.Errorf("%s: %s by %s, %s: %q", name, d.Effect, d.Rule, d.Reason, d.Args)
		}
		if asks := len(d.Callbacks) == 1 && d.Callbacks[0] == (abi.Callback{Kind: "scripts", Name: "scripts"}); asks != tt.asksTheCaller || d.Shell != tt.shell {
			t.Errorf("%s: callbacks %v, a shell %v", name, d.Callbacks, d.Shell)
		}
		if said := strings.Join(d.Notes, "; "); strings.HasPrefix(said, tt.note) != true || (tt.note == "") != (said == "") {
			t.Errorf("%s: notes %q", name, said)
		}
	}
}
