package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// allCommands are all commands with a grammar, those of two words too.
func allCommands() []*command {
	var out []*command
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		c := commands[name]
		if c.grammar != nil {
			out = append(out, c)
		}
		for _, sub := range slices.Sorted(maps.Keys(c.sub)) {
			if c.sub[sub].grammar != nil {
				out = append(out, c.sub[sub])
			}
		}
	}
	return out
}

// TestFlagsAsGit compares with what git itself says of its flags: one that
// takes a value in git and none here would take the next argument unseen.
func TestFlagsAsGit(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), nil)
	compared := 0
	for _, c := range allCommands() {
		helper := append(strings.Fields(c.name), "--git-completion-helper-all")
		out, err := b.plain("repo", nil, "", helper...)
		if err != nil || !strings.Contains(out, "--") {
			continue // Not one that parses its flags with git's parser.
		}
		for word := range strings.FieldsSeq(out) {
			name, needs := strings.CutSuffix(word, "=")
			f := c.grammar.Lookup(name)
			if f == nil || f.Refuse != "" {
				continue
			}
			compared++
			// Flags whose value git supplies when they come last say no "=".
			late := slices.Contains([]string{"--contains", "--no-contains", "--merged", "--no-merged", "--points-at"}, name) ||
				c.name == "update-index" && name == "--cacheinfo" || c.name == "merge" && name == "--file" || c.name == "pull" && name == "--jobs" // Passed on, or of a kind that says nothing.
			if takes := f.Value != nil && !f.Optional; takes != needs && !late {
				t.Errorf("git %s %s: takes a value here: %v, in git: %v", c.name, name, takes, needs)
			}
		}
	}
	if compared < 200 {
		t.Errorf("only %d flags compared", compared)
	}
	t.Logf("%d flags compared", compared)
}

// TestShortFlagsAsGit makes git parse each short flag without a value: it
// says so when one is missing.
func TestShortFlagsAsGit(t *testing.T) {
	needGit(t)
	if testing.Short() {
		t.Skip("runs git for each short flag")
	}
	b := newBox(t, model(t), nil)
	for _, c := range allCommands() {
		if c.name == "grep" || c.name == "cat-file" {
			continue // They go on to say other things.
		}
		for _, f := range c.grammar.All() {
			for name := range strings.FieldsSeq(f.Names) {
				if f.Refuse != "" || editing(f) && f.Value == nil || len(name) != 2 || '0' <= name[1] && name[1] <= '9' {
					continue
				}
				out, _ := b.plain("repo", nil, "", append(strings.Fields(c.name), name)...)
				wants := strings.Contains(out, "requires a value") || strings.Contains(out, "requires an argument")
				if takes := f.Value != nil && !f.Optional; wants && !takes {
					t.Errorf("git %s %s takes a value in git and none here", c.name, name)
				}
				if strings.Contains(out, "unknown switch") {
					t.Logf("git %s %s: this git does not know it", c.name, name)
				}
			}
		}
	}
}

// within reports what in args is not the policy's: a flag outside of the
// grammar, or anything but the forced line before the subcommand.
func within(d *abi.Decision) string {
	args := d.Args
	i := 0
	for ; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-c" && i+1 < len(args):
			i++
			continue
		case a == "-C" && i+1 < len(args):
			i++
			continue
		case strings.HasPrefix(a, "--git-dir=/ws") || strings.HasPrefix(a, "--work-tree=/ws"):
			continue
		case a == "--no-pager" || a == "--no-optional-locks" || a == "--no-replace-objects" || strings.HasSuffix(a, "-pathspecs"):
			continue
		}
		break
	}
	if i == len(args) {
		return "no subcommand"
	}
	if len(args) == i+2 && args[i+1] == "-h" && commands[args[i]] != nil {
		return ""
	}
	name, helper := strings.CutSuffix(args[i], "--helper")
	c := commands[name]
	if c == nil || helper && c != submoduleCommand && c != bisectCommand {
		return "subcommand " + args[i]
	}
	i++
	if c.sub != nil && i < len(args) && c.sub[args[i]] != nil {
		c = c.sub[args[i]]
		i++
	}
	if c.grammar == nil {
		return "refused subcommand " + c.name
	}
	rest := args[i:]
	for j := 0; j < len(rest); j++ {
		a := rest[j]
		if a == "--" {
			break
		}
		if !strings.HasPrefix(a, "-") || a == "-" {
			continue
		}
		name, _, joined := strings.Cut(a, "=")
		if slices.Contains(c.force, a) || strings.HasPrefix(a, "--upload-pack=git") || strings.HasPrefix(a, "--receive-pack=git") || name == "--local" || name == "--stat" || a == "--checkout" || a == "--output-directory=." || a == "--format=tar" {
			continue
		}
		f := c.grammar.Lookup(name)
		switch {
		case f == nil && !strings.HasPrefix(a, "--") && len(a) > 2 && c.grammar.Lookup(a[:2]) != nil && c.grammar.Lookup(a[:2]).Optional:
			f = c.grammar.Lookup(a[:2])
		case f == nil && strings.Trim(a[1:], "0123456789") == "":
			f = c.grammar.Lookup(argv.Number)
		case f == nil:
			f = c.grammar.Lookup(strings.Replace(name, "--no-", "--", 1))
			if f != nil && !f.Negatable {
				f = nil
			}
		}
		if f == nil {
			return "flag " + a
		}
		if f.Refuse != "" {
			return "refused flag " + a
		}
		if f.Value != nil && !f.Optional && !joined && strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") {
			j++ // its value
		}
	}
	return ""
}

// FuzzArguments shows that no arguments make the policy panic, and that what
// it allows holds no flag outside of the grammar, no program, no path
// outside.
func FuzzArguments(f *testing.F) {
	for _, line := range everyday {
		f.Add(strings.Join(split(line), "\x00"))
	}
	for _, h := range hostiles {
		for _, line := range h.args {
			f.Add(strings.ReplaceAll(line, " ", "\x00"))
		}
	}
	p := testPolicy(map[string]string{"protected": "main release/*"})
	f.Fuzz(func(t *testing.T, joined string) {
		args := strings.Split(joined, "\x00")
		d := ask(p, args, abi.ConfigEntry{Key: "alias.co", Value: "checkout"})
		switch d.Effect {
		case abi.Deny:
			if d.Reason == "" || d.Rule == "" || d.Args != nil {
				t.Errorf("git %q: refused with %+v", args, d)
			}
			return
		case abi.Allow:
		default:
			t.Fatalf("git %q: effect %q", args, d.Effect)
		}
		if what := within(d); what != "" {
			t.Errorf("git %q runs as %q, with %s", args, d.Args, what)
		}
		for _, name := range []string{"GIT_ALLOW_PROTOCOL", "GIT_CEILING_DIRECTORIES", "GIT_EDITOR", "GIT_SSH_COMMAND"} {
			if d.Env[name] == "" {
				t.Errorf("git %q runs without %s", args, name)
			}
		}
		if strings.Contains(d.Env["GIT_ALLOW_PROTOCOL"], "ext") {
			t.Errorf("git %q may use %s", args, d.Env["GIT_ALLOW_PROTOCOL"])
		}
		// The same line once more says the same: what was understood is
		// what was written.
		again := slices.Clone(d.Args)
		for len(again) > 0 && strings.HasPrefix(again[0], "-") {
			if again[0] == "-c" {
				again = again[1:]
			}
			again = again[1:]
		}
		if len(again) > 0 {
			again[0] = strings.TrimSuffix(again[0], "--helper")
		}
		again = slices.DeleteFunc(again, func(a string) bool {
			return strings.HasPrefix(a, "--upload-pack=") || strings.HasPrefix(a, "--receive-pack=") || a == templates
		})
		if e := ask(p, again); e.Effect != abi.Allow {
			t.Errorf("git %q runs as %q, which is refused: %s", args, again, e.Reason)
		}
	})
}
