package main

import (
	"slices"
	"strings"
)

// What the completion scripts of shells ask git, beside what people ask it: lists of
// its commands and of their flags, which git writes and ends.

// listCommands is git --list-cmds=LIST, which stands where a subcommand would.
var listCommands = &command{name: "--list-cmds", reads: true}

// listable are the words of such a list, but for others, the programs named git-* that
// are on the host's PATH: no call runs them.
var listable = []string{"main", "builtins", "parseopt", "alias", "config", "deprecated", "nohelpers"}

// list answers the list of --list-cmds as it is written.
func list(value string) (string, error) {
	var out []string
	for word := range strings.SplitSeq(value, ",") {
		category, ok := strings.CutPrefix(word, "list-")
		switch {
		case slices.Contains(listable, word), ok && plainName(category, ""):
			out = append(out, word)
		case word != "others":
			return "", refusal("global-flag", "--list-cmds", "flag \"--list-cmds\" lists "+quote(word)+", which this policy does not know", "use "+strings.Join(listable, ", ")+" or list-CATEGORY")
		}
	}
	if out == nil {
		return "", refusal("global-flag", "--list-cmds", "flag \"--list-cmds\" lists nothing of git itself", "use "+strings.Join(listable, ", "))
	}
	return strings.Join(out, ","), nil
}

// helpFlags are what git help lists of itself.
var helpFlags = []string{"-a", "--all", "-g", "--guides", "-c", "--config", "--config-for-completion", "--config-sections-for-completion"}

// noParser are commands whose arguments git does not parse in the common way: they
// would take the flag for something to work on.
var noParser = []string{"stash create", "stash store", "check-ref-format", "commit-tree", "diff-files", "diff-tree", "get-tar-commit-id", "mailinfo", "var"}

// completes reports whether args, which follow the subcommand name, have git list
// something for a completion, and change nothing: the flags of a command, or the
// strategies of a merge.
func completes(name string, args []string) bool {
	c, n := commands[name], len(args)
	if c == nil || c.refuse != "" || n == 0 || name == "lfs" {
		return false
	}
	if name == "merge" && slices.Equal(args, []string{"-s", "help"}) {
		return true
	}
	if args[n-1] != "--git-completion-helper" && args[n-1] != "--git-completion-helper-all" || shellScript(name) {
		return false
	}
	return n == 1 && !slices.Contains(noParser, name) || n == 2 && c.sub[args[0]] != nil && !slices.Contains(noParser, name+" "+args[0])
}

// shellScript reports whether the subcommand is one that some git has as a script.
func shellScript(name string) bool { return name == "bisect" || name == "submodule" }
