package main

import (
	"slices"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// Commands that scripts and editors use: they show what git keeps, change single
// parts of it, or work on a text that is given to them.

var plumbing = []*command{
	{name: "diff-tree", reads: true, force: plainDiff, grammar: numbered(diffFlags, formats, bare("-r", "-t", "-c", "--cc", "-m", "-v", "--combined-all-paths", "--root", "--stdin", "--no-commit-id",
		"--merge-base", "--always", "--abbrev-commit", "--no-abbrev-commit", "--oneline", "--remerge-diff"), with(word, "--diff-merges", "--encoding", "--date"), may(word, "~--notes"))},
	{name: "diff-files", reads: true, force: plainDiff, grammar: grammar(diffFlags, bare("-0", "-1 --base", "-2 --ours", "-3 --theirs", "-c", "--cc", "-m", "-r", "-t", "--combined-all-paths"))},
	{name: "range-diff", reads: true, force: plainDiff, grammar: grammar(diffFlags, bare("--no-dual-color", "--dual-color", "--left-only", "--right-only"), with(count, "--creation-factor"), may(word, "~--notes"))},
	{name: "whatchanged", reads: true, force: plainDiff, grammar: numbered(revFlags, logFlags, diffFlags)},
	{name: "show-branch", reads: true, grammar: grammar(bare("-a --all", "-r --remotes", "--no-name", "--list", "--current", "--topo-order", "--date-order", "--sparse", "--independent", "--merge-base", "--topics", "--sha1-name"),
		may(count, "--more"), may(when, "~--color"), may(word, "-g --reflog"))},
	{name: "check-attr", reads: true, grammar: grammar(bare("-a --all", "--cached", "--stdin", "-z"), with(rev, "--source"))},
	{name: "check-mailmap", reads: true, grammar: grammar(bare("--stdin"))},
	{name: "check-ref-format", reads: true, most: 1, grammar: grammar(bare("--branch", "--normalize", "--print", "--allow-onelevel", "--no-allow-onelevel", "--refspec-pattern"))},
	{name: "verify-pack", reads: true, then: pathOperands, grammar: grammar(bare("-v --verbose", "-s --stat-only"))},
	{name: "var", reads: true, most: 1, operand: variable, grammar: grammar(never("shows the host's own configuration, which may hold secrets", "git config --list", "-l")), then: oneOperand},

	// A text in, a text out.
	{name: "patch-id", reads: true, most: -1, then: takesInput, grammar: grammar(bare("--stable", "--unstable", "--verbatim"))},
	{name: "stripspace", reads: true, most: -1, then: takesInput, grammar: grammar(bare("-s --strip-comments", "-c --comment-lines"))},
	{name: "column", reads: true, most: -1, then: takesInput, grammar: grammar(may(word, "--mode"), with(word, "--command", "--indent", "--nl"), with(count, "--raw-mode", "--width", "--padding"))},
	{name: "get-tar-commit-id", reads: true, most: -1, then: takesInput, grammar: grammar()},
	{name: "fmt-merge-msg", reads: true, most: -1, grammar: grammar(may(count, "~--log"), with(text, "-m --message", "--into-name"), with(input, "-F --file")),
		then: func(r *request) error { r.stdin = r.stdin || !r.line.Has("--file"); return nil }},
	{name: "mailinfo", most: 2, then: both(pathOperands, takesInput), grammar: grammar(bare("-k", "-b", "-u", "-n", "-m --message-id", "~--scissors"), with(word, "--encoding"), with(argv.OneOf("nowarn", "warn", "strip"), "--quoted-cr"))},
	{name: "interpret-trailers", reads: true, then: interpretTrailers, grammar: grammar(bare("--in-place", "--trim-empty", "--only-trailers", "--only-input", "--unfold", "--parse", "--no-divider"),
		with(word, "--trailer"), with(argv.OneOf("after", "before", "end", "start"), "--where"), with(argv.OneOf("addIfDifferentNeighbor", "addIfDifferent", "add", "replace", "doNothing"), "--if-exists"),
		with(argv.OneOf("add", "doNothing"), "--if-missing"))},
	{name: "merge-file", most: 3, then: func(r *request) error {
		if r.line.Has("--stdout") {
			r.mutating, r.idempotent = false, true
		}
		return pathOperands(r)
	}, grammar: grammar(bare("-p --stdout", "-q --quiet", "--diff3", "--zdiff3", "--ours", "--theirs", "--union"), with(count, "--marker-size"), with(text, "-L"))},

	// Parts of a repository.
	{name: "merge-tree", again: true, operand: rev, most: 3, grammar: grammar(bare("--write-tree", "--trivial-merge", "~--messages", "-z", "--name-only", "--allow-unrelated-histories"))},
	{name: "write-tree", again: true, most: -1, grammar: grammar(bare("--missing-ok"), with(below, "--prefix"))},
	{name: "read-tree", operand: rev, most: 8, grammar: grammar(bare("-m", "--reset", "-u", "-i", "-n --dry-run", "-v", "-q --quiet", "--trivial", "--aggressive", "--empty", "--no-sparse-checkout", "--no-recurse-submodules"),
		with(below, "--prefix"), never("writes a file of any name", "git read-tree, then copy the index", "--index-output"), never("reads a file of any name", "leave it out", "--exclude-per-directory"), recursing)},
	{name: "commit-tree", operand: rev, most: 1, then: commitTree, grammar: grammar(with(rev, "-p"), with(text, "-m"), with(input, "-F"), signing)},
	{name: "mktree", again: true, most: -1, then: takesInput, grammar: grammar(bare("-z", "--missing", "--batch"))},
	{name: "mktag", again: true, most: -1, then: takesInput, grammar: grammar(bare("~--strict"))},
	{name: "update-index", tail: cacheInfoOfThree, then: updateIndex, grammar: grammar(
		bare("--add", "--remove", "--force-remove", "--replace", "--refresh", "--really-refresh", "-q", "-g --again", "--ignore-missing", "--ignore-submodules", "--unmerged", "--unresolve", "--verbose", "-z",
			"~--assume-unchanged", "~--skip-worktree", "~--ignore-skip-worktree-entries", "--info-only", "--index-info", "--stdin", "~--split-index", "~--untracked-cache", "--clear-resolve-undo"),
		with(argv.OneOf("+x", "-x"), "--chmod"), with(cacheInfo, "--cacheinfo"), with(argv.Int(2, 4), "--index-version"),
		never("starts a program", "leave it out", "--fsmonitor", "--fsmonitor-valid", "--no-fsmonitor-valid"), bare("--no-fsmonitor"))},
	{name: "checkout-index", paths: true, grammar: grammar(bare("-u --index", "-q --quiet", "-f --force", "-a --all", "-n --no-create", "-z", "--stdin"), with(argv.OneOf("1", "2", "3"), "--stage"),
		never("writes outside of the working tree", "use git worktree add, or git archive", "--prefix"), never("writes files of other names", "use git show :NAME", "--temp"))},
	{name: "update-ref", operand: rev, most: 3, then: updateRef, grammar: grammar(with(word, "-m"), bare("-d", "--no-deref", "--create-reflog", "--stdin", "-z"))},
	{name: "pack-refs", again: true, most: -1, grammar: grammar(bare("--all", "~--prune"))},
	{name: "gc", again: true, most: -1, grammar: grammar(bare("-q --quiet", "--aggressive", "--auto", "--keep-largest-pack", "~--cruft", "--no-prune"),
		never("can throw away what could still be recovered", "leave it out: what nothing has referred to for two weeks goes by itself", "--prune"), never("runs beside another one", "leave it out", "--force"))},
	{name: "bundle", reads: true, most: -1, grammar: grammar(), then: needsSecond, sub: byName(
		&command{name: "bundle create", then: bundle, grammar: numbered(without(revFlags, "--stdin"), bare("-q --quiet", "--progress", "--all-progress", "--all-progress-implied"), with(argv.OneOf("2", "3"), "--version"))},
		&command{name: "bundle verify", reads: true, most: 1, then: pathOperands, grammar: grammar(bare("-q --quiet"))},
		&command{name: "bundle list-heads", reads: true, then: bundle, grammar: grammar()},
		&command{name: "bundle unbundle", again: true, then: bundle, grammar: grammar(bare("--progress"))})},
	{name: "fast-export", reads: true, grammar: numbered(revFlags, bare("--no-data", "--use-done-feature", "--full-tree", "--mark-tags", "--fake-missing-tagger", "--reference-excluded-parents", "--show-original-ids", "--anonymize", "-M", "-C"),
		with(count, "--progress"), with(argv.OneOf("verbatim", "warn", "warn-strip", "strip", "abort"), "--signed-tags"), with(argv.OneOf("abort", "drop", "rewrite"), "--tag-of-filtered-object"),
		with(argv.OneOf("abort", "yes", "no"), "--reencode"), with(text, "--refspec", "--anonymize-map"), with(argv.Path, "--export-marks", "--import-marks", "--import-marks-if-exists")),
		then: func(r *request) error { r.mutating = r.line.Has("--export-marks"); return nil }},
}

// formats show commits as a format has it.
var formats = join(may(text, "--pretty"), with(text, "--format"))

func takesInput(r *request) error {
	r.stdin = true
	return nil
}

func oneOperand(r *request) error {
	if len(r.line.Operands()) == 0 {
		return refusal("operand", "", "git "+r.cmd.name+" needs to be told of what", "name one")
	}
	return nil
}

func needsSecond(r *request) error {
	return refusal("operand", "", "git "+r.cmd.name+" needs to be told what to do", "use one of: "+strings.Join(sortedNames(r.cmd.sub), ", "))
}

// variable is one whose value does not tell about the host.
var variable = func(v string, _ argv.Scope) (string, error) {
	if !slices.Contains([]string{"GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT", "GIT_DEFAULT_BRANCH"}, v) {
		return "", refusal("operand", v, "variable "+quote(v)+" says what runs on the host", "use GIT_AUTHOR_IDENT, GIT_COMMITTER_IDENT or GIT_DEFAULT_BRANCH; an editor and a pager are the caller's own")
	}
	return v, nil
}

// cacheInfo is MODE,OBJECT,PATH in one argument: of three, the last two would be
// taken for paths.
var cacheInfo = argv.Match("MODE,OBJECT,PATH in one argument", func(v string) bool {
	mode, rest, _ := strings.Cut(v, ",")
	object, path, ok := strings.Cut(rest, ",")
	return ok && isNumber(mode) && isObject(object) && path != ""
})

// cacheInfoOfThree joins the three arguments that --cacheinfo may have.
func cacheInfoOfThree(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		out = append(out, args[i])
		if args[i] == "--" {
			return append(out, args[i+1:]...)
		}
		if args[i] == "--cacheinfo" && i+3 < len(args) && !strings.Contains(args[i+1], ",") {
			out = append(out, strings.Join(args[i+1:i+4], ","))
			i += 3
		}
	}
	return out
}

// updateIndex keeps flags and paths in their order: each flag counts for the paths
// behind it. The value of --cacheinfo is an argument of its own.
func updateIndex(r *request) error {
	r.stdin = r.stdin || r.line.Has("--index-info")
	return apart("--cacheinfo")(r)
}

// apart writes the values of these flags as arguments of their own: git does not
// take them joined.
func apart(flags ...string) func(*request) error {
	return func(r *request) error {
		var items []argv.Item
		for _, it := range r.line.Items {
			if it.Flag != nil && slices.Contains(flags, it.Name) {
				items = append(items, argv.Item{Value: it.Name}, argv.Item{Value: it.Value})
				continue
			}
			items = append(items, it)
		}
		r.line.Items = items
		return nil
	}
}

// commitTree reads the message from input where it is not given.
func commitTree(r *request) error {
	r.stdin = !anyOf(r.line, "-m", "-F")
	for _, it := range r.line.Items {
		r.stdin = r.stdin || it.Flag != nil && it.Name == "-F" && it.Value == "-"
	}
	return oneOperand(r)
}

// updateRef changes references by their full names: one of another name is a file
// of the repository, which might be any.
func updateRef(r *request) error {
	if r.line.Has("--stdin") {
		return nil
	}
	for _, op := range r.line.Operands()[:min(1, len(r.line.Operands()))] {
		name, ok := strings.CutPrefix(op, "refs/")
		if op == "HEAD" || ok && strings.Contains(name, "/") && !strings.Contains(op, "..") {
			continue
		}
		return refusal("operand", op, "reference "+quote(op)+" is not HEAD or one that is written out in full", "write refs/heads/NAME")
	}
	return nil
}

// bundle checks the file, which comes first; revisions or names follow.
func bundle(r *request) error {
	for i, it := range r.line.Items {
		if it.Flag == nil {
			v, err := input(it.Value, r.scope)
			if err != nil {
				return err
			}
			r.line.Items[i].Value = v
			r.stdin = v == "-" && r.cmd.name != "bundle create"
			return nil
		}
	}
	return oneOperand(r)
}

// interpretTrailers has git work as if there were no repository: it would run
// trailer.*.cmd of one, whatever the policy saw of it. What the repository says
// of trailers otherwise is said to git by configuration.
func interpretTrailers(r *request) error {
	for _, e := range r.repo.entries {
		if (e.section == "trailer" && always[e.pattern()] == "" || e.key == "core.commentchar") && !strings.ContainsAny(e.key, "=\n") {
			r.config = append(r.config, e.key+"="+e.value)
		}
	}
	r.outside = true
	if r.line.Has("--in-place") {
		r.mutating = true
	}
	r.stdin = len(r.line.Operands()) == 0
	return pathOperands(r)
}

// symbolicRef leads HEAD to a branch, and no other reference anywhere: what stands
// for another one is pushed under a name that nobody gave.
func symbolicRef(r *request) error {
	ops := r.line.Operands()
	if len(ops) < 2 {
		return nil
	}
	r.mutating = true
	if name, ok := strings.CutPrefix(ops[1], "refs/heads/"); ops[0] != "HEAD" || !ok || !validRef(name) {
		return refusal("operand", ops[0], "git symbolic-ref leads HEAD to a branch here, and nothing else anywhere", "git symbolic-ref HEAD refs/heads/NAME")
	}
	return nil
}
