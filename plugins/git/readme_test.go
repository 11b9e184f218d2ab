package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated part of README.md")

const generated = "<!-- What follows is written by: go test ./plugins/git -run TestReadme -update -->\n"

// TestReadme keeps the tables of README.md those of the code.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	head, tail, ok := strings.Cut(string(b), generated)
	if !ok {
		t.Fatalf("README.md has lost the line %q", generated)
	}
	want := tables()
	if *update {
		if err := os.WriteFile("README.md", []byte(head+generated+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if tail != want {
		t.Error("the tables of README.md are not those of the code: go test ./plugins/git -run TestReadme -update")
	}
}

func tables() string {
	var b strings.Builder
	cell := func(s string) string {
		return strings.NewReplacer("|", `\|`, "\n", " ", "\u00a0", " ").Replace(s)
	}
	b.WriteString("\n## What is allowed\n\nAbbreviated flags are refused. Before the subcommand: `--version`, `--no-pager`, `--no-optional-locks`, `--literal-pathspecs` and its kin, `-C`, `--git-dir` and `--work-tree` beneath the roots, and `-c` of: ")
	for i, s := range settable {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("`" + s + "`")
	}
	b.WriteString(".\n\n| `git` | flags | refused flags, and why |\n| --- | --- | --- |\n")
	for _, c := range allCommands() {
		var flags []string
		refused := make(map[string][]string)
		for _, f := range c.grammar.All() {
			names := strings.Fields(f.Names)
			for i, n := range names {
				names[i] = "`" + n + "`"
			}
			list := strings.Join(names, " ")
			if editing(f) {
				list += " (an editor)"
			}
			if f.Refuse != "" {
				refused[f.Refuse] = append(refused[f.Refuse], list)
			} else if f.Names != "-NUM" {
				flags = append(flags, list)
			} else {
				flags = append(flags, "`-5`")
			}
		}
		var why []string
		for _, reason := range slices.Sorted(maps.Keys(refused)) {
			why = append(why, strings.Join(refused[reason], ", ")+" "+reason)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", c.name, cell(strings.Join(flags, ", ")), cell(strings.Join(why, "; ")))
	}
	b.WriteString("\nPushes with a `+` refspec, deletions (`:branch`), `:` and negative refspecs are refused whatever the flags.\n\n## Known and refused\n\n| `git` | why | instead |\n| --- | --- | --- |\n")
	refuse := func(c *command) {
		if c.refuse != "" {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", c.name, cell(c.refuse), cell(c.instead))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(commands)) {
		refuse(commands[name])
		for _, sub := range slices.Sorted(maps.Keys(commands[name].sub)) {
			refuse(commands[name].sub[sub])
		}
	}
	fmt.Fprintf(&b, "\n## Hostile cases\n\nThe %d cases that the tests run against real git: alone, where they do harm (or it says why not), with the policy, with the policy and the confinement, with the confinement and each check of the policy switched off in turn, and by race: the repository becomes that of the case between the policy's look and git's. What then needs another guard is marked: execution, which judges what is executed, and reading, which keeps from toold's user what callers may not see.\n\n| case | for example | held by |\n| --- | --- | --- |\n", len(hostiles))
	for _, h := range hostiles {
		example := h.args[0]
		switch {
		case h.config != "":
			example = strings.ReplaceAll(h.config, "\n", " ")
		case len(h.env) > 0:
			name := slices.Sorted(maps.Keys(h.env))[0]
			example = name + "=" + h.env[name]
		}
		by := "what is forced"
		switch {
		case h.confined:
			by = "confinement"
		case h.rule != "":
			by = "rule `" + h.rule + "`"
		}
		if h.race != "" {
			by += "; by race: " + string(h.race)
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", cell(h.name), cell(example), by)
	}
	return b.String()
}
