package main

import (
	"slices"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// file answers what the repository keeps in the file of that name.
func (c *repoConfig) file(name string) (string, bool) {
	for _, e := range c.state {
		if e.Key == name {
			return e.Value, true
		}
	}
	return "", false
}

// branch is the branch that is checked out, or "".
func (c *repoConfig) branch() string {
	head, _ := c.file("HEAD")
	ref, ok := strings.CutPrefix(head, "ref:")
	name, isBranch := strings.CutPrefix(strings.TrimSpace(ref), "refs/heads/")
	if !ok || !isBranch {
		return ""
	}
	return name
}

// checkState refuses what git would read from the repository beside its
// configuration, and that would make it run a program.
func (r *request) checkState(first string) error {
	if first == "diff" {
		if _, ok := r.repo.file("HEAD"); !ok {
			// It would compare any two files instead.
			return refusal("repository", "", "there is no repository around the working directory, and git diff would read files of any name", "run it in a working tree")
		}
	}
	proceeds := slices.Contains([]string{"am", "rebase", "cherry-pick", "revert"}, first) && !anyOf(r.line, "--abort", "--quit")
	for _, e := range r.repo.state {
		dir, _, _ := strings.Cut(e.Key, "/")
		switch dir {
		case "BISECT_START":
			if name := strings.TrimSpace(e.Value); first == "bisect" && !validRef(strings.TrimPrefix(name, "refs/heads/")) && !isObject(name) {
				return refusal("repo-state", e.Key, "the bisection cannot go on: "+quote(".git/"+e.Key)+" names no branch and no commit", "delete that file")
			}
		case "remotes", "branches":
			if len(r.remotes) > 0 {
				return refusal("repo-state", e.Key, "the repository keeps a remote in "+quote(".git/"+e.Key)+", which says more than this policy knows", "delete that file, and git remote add the remote")
			}
		case "rebase-merge", "rebase-apply", "sequencer":
			if !proceeds {
				continue
			}
			if strings.HasSuffix(e.Key, "/gpg_sign_opt") && r.signs && strings.TrimSpace(e.Value) == "-S" {
				continue
			}
			if why := hostileState(e.Key, e.Value); why != "" {
				return refusal("repo-state", e.Key, "what was begun here cannot go on: "+quote(".git/"+e.Key)+" "+why, "git "+first+" --abort, and start over")
			}
		}
	}
	return nil
}

// isObject reports whether name is that of an object, written in full.
func isObject(name string) bool {
	return (len(name) == 40 || len(name) == 64) && strings.Trim(name, "0123456789abcdef") == ""
}

// hostileState says what is wrong with a file that tells git how to go on
// with a rebase, a cherry-pick or a revert, or "".
func hostileState(name, content string) string {
	dir, file, _ := strings.Cut(name, "/")
	value := strings.TrimSpace(content)
	switch file {
	case "strategy":
		return unknownStrategy(value)
	case "strategy_opts":
		for _, opt := range strings.Fields(value) {
			if why := unknownStrategyOption(strings.TrimPrefix(unquote(opt), "--")); why != "" {
				return why
			}
		}
	case "gpg_sign_opt":
		if value != "" {
			return "has a program sign commits"
		}
	case "git-rebase-todo", "todo":
		for line := range strings.SplitSeq(content, "\n") {
			line = strings.TrimLeft(line, " \t")
			if strings.HasPrefix(line, "exec") || line == "x" || len(line) > 1 && line[0] == 'x' && strings.IndexByte(" \t\r\x00", line[1]) >= 0 {
				return "runs a program: " + quote(line)
			}
		}
	case "apply-opt":
		for _, opt := range strings.Fields(value) {
			opt = unquote(opt)
			digits, short := strings.CutPrefix(opt, "-C")
			if !short {
				digits, short = strings.CutPrefix(opt, "-p")
			}
			space, isSpace := strings.CutPrefix(opt, "--whitespace=")
			filter, isFilter := strings.CutPrefix(opt, "--exclude=")
			if !isFilter {
				filter, isFilter = strings.CutPrefix(opt, "--include=")
			}
			dir, isDir := strings.CutPrefix(opt, "--directory=")
			if isDir {
				if _, err := below(dir, argv.Scope{}); err != nil {
					return "leads out of the working tree: " + quote(opt)
				}
			}
			if opt != "--ignore-whitespace" && opt != "--ignore-space-change" && opt != "--reject" && !isDir && !(isFilter && !strings.ContainsAny(filter, `'\"`)) && !(short && isNumber(digits)) && !(isSpace && plainName(space, "")) {
				return "has an option that this policy does not know: " + quote(opt)
			}
		}
	case "opts":
		if dir == "sequencer" {
			return hostileOpts(content)
		}
	default:
		return "is not a file that this policy knows"
	}
	return ""
}

// hostileOpts judges sequencer/opts, which has git's syntax of configuration,
// in the form in which git writes it.
func hostileOpts(content string) string {
	plain := []string{"no-commit", "edit", "allow-empty", "allow-empty-message", "drop-redundant-commits", "keep-redundant-commits", "signoff", "record-origin", "allow-ff", "mainline",
		"allow-rerere-auto", "default-msg-cleanup"}
	for line := range strings.SplitSeq(content, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line == "[options]" {
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		value = strings.TrimSpace(value)
		switch key = strings.ToLower(strings.TrimSpace(key)); {
		case key == "strategy":
			if why := unknownStrategy(value); why != "" {
				return why
			}
		case key == "strategy-option":
			if why := unknownStrategyOption(value); why != "" {
				return why
			}
		case !slices.Contains(plain, key) || strings.HasSuffix(line, `\`):
			return "has an option that this policy does not know: " + quote(line)
		}
	}
	return ""
}

func unknownStrategy(name string) string {
	if _, err := strategy(name, argv.Scope{}); err != nil {
		return "names a program for merging: " + quote(name)
	}
	return ""
}

func unknownStrategyOption(opt string) string {
	if _, err := strategyOption(opt, argv.Scope{}); err != nil || strings.ContainsAny(opt, `'"\`) {
		return "has an option for merging that this policy does not know: " + quote(opt)
	}
	return ""
}

// unquote takes one pair of quotes from a word.
func unquote(word string) string {
	if n := len(word); n >= 2 && word[0] == word[n-1] && (word[0] == '\'' || word[0] == '"') {
		return word[1 : n-1]
	}
	return word
}
