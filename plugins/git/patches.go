package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// Patches, archives and single objects: commands that read files which a call
// names, or write some.

// below is a folder that patches are applied in: beneath the top of the working
// tree, whichever that is.
func below(v string, _ argv.Scope) (string, error) {
	if v == "" || v[0] == '/' || v[0] == '-' || slices.Contains(strings.Split(v, "/"), "..") {
		return "", errors.New("the value " + quote(v) + " is not a folder of the working tree")
	}
	return argv.OneLine(v, argv.Scope{})
}

var patchFlags = join(
	with(word, "--exclude", "--include"), with(below, "--directory"), with(argv.Int(0, 1000), "-C", "-p"),
	with(argv.OneOf("nowarn", "warn", "fix", "error", "error-all", "strip"), "--whitespace"),
	bare("--ignore-space-change", "--ignore-whitespace", "--reject"))

var applyCommand = &command{name: "apply", then: apply, grammar: grammar(patchFlags,
	bare("--no-add", "--stat", "--numstat", "--summary", "--check", "--index", "-N --intent-to-add", "--cached", "--apply", "-3 --3way", "-z", "-R --reverse", "--unidiff-zero", "--allow-overlap",
		"-v --verbose", "-q --quiet", "--inaccurate-eof", "--recount", "--allow-empty", "--ours", "--theirs", "--union"),
	never("writes outside of the working tree", "leave it out", "--unsafe-paths"), never("writes a file of any name", "leave it out", "--build-fake-ancestor"))}

// patchFiles checks the files of patches that the call names; without any, and
// for "-", git reads its input.
func patchFiles(r *request) error {
	n := 0
	for i, it := range r.line.Items {
		if it.Flag != nil {
			continue
		}
		n++
		v, err := input(it.Value, r.scope)
		if err != nil {
			return err
		}
		r.line.Items[i].Value = v
		r.stdin = r.stdin || v == "-"
	}
	r.stdin = r.stdin || n == 0
	return nil
}

func apply(r *request) error {
	if _, ok := r.repo.file("HEAD"); !ok {
		return refusal("repository", "", "there is no repository around the working directory, and git apply would write wherever it is", "run it in a working tree")
	}
	if !r.line.Has("--apply") && anyOf(r.line, "--stat", "--numstat", "--summary", "--check") {
		r.mutating, r.idempotent = false, true
	}
	return patchFiles(r)
}

var amCommand = &command{name: "am", then: am, grammar: grammar(patchFlags,
	bare("-3 ~--3way", "-q --quiet", "-s --signoff", "-u ~--utf8", "-k --keep", "--keep-non-patch", "-m ~--message-id", "~--keep-cr", "-c ~--scissors", "-n --no-verify", "--verify", "--continue", "-r --resolved",
		"--retry", "--skip", "--abort", "--quit", "--allow-empty", "--committer-date-is-author-date", "--ignore-date", "~--rerere-autoupdate"),
	with(argv.OneOf("nowarn", "warn", "strip"), "--quoted-cr"), with(argv.OneOf("mbox", "stgit", "stgit-series", "hg", "mboxrd"), "--patch-format"),
	with(argv.OneOf("stop", "drop", "keep"), "--empty"), with(text, "--resolvemsg"), may(argv.OneOf("diff", "raw"), "--show-current-patch"), signing, asks)}

func am(r *request) error {
	if anyOf(r.line, "--continue", "--resolved", "--retry", "--skip", "--abort", "--quit", "--show-current-patch", "--allow-empty") && len(r.line.Operands()) == 0 {
		if r.line.Has("--show-current-patch") {
			r.mutating, r.idempotent = false, true
		}
		return nil
	}
	return patchFiles(r)
}

var formatPatchCommand = &command{name: "format-patch", force: plainDiff, then: formatPatch, grammar: numbered(
	without(revFlags, "-n", "-i", "-E", "-F", "-P", "-g", "--notes", "--format", "--pretty", "--stdin"), without(diffFlags, "-s", "-p", "-u", "--relative", "--no-relative", "-q"),
	bare("-n --numbered", "-N --no-numbered", "-s ~--signoff", "--stdout", "~--cover-letter", "--numbered-files", "--rfc", "-k --keep-subject", "--no-binary", "--zero-commit", "--ignore-if-in-upstream",
		"-p --no-stat", "-q", "--no-signature", "~--progress", "--no-to", "--no-cc", "--no-attach", "--no-from", "--no-thread"),
	with(argv.Int(0, 1<<31-1), "--start-number", "--filename-max-length"), with(word, "-v --reroll-count", "--subject-prefix", "--add-header", "--to", "--cc", "--in-reply-to", "--signature", "--base"),
	with(argv.OneOf("message", "default", "subject", "auto", "none"), "--cover-from-description"), may(word, "--from", "--attach", "--inline", "--notes"),
	may(argv.OneOf("shallow", "deep"), "--thread"), with(argv.Match("the end of a file's name", func(v string) bool { return v != "" && !strings.ContainsAny(v, "/\x00") }), "--suffix"),
	with(argv.Path, "-o --output-directory"),
	never("reads a file of any name", "give the text with --signature", "--signature-file"), never("starts another git whose flags cannot be fixed", "leave it out", "--interdiff", "--range-diff", "--creation-factor"))}

// formatPatch says where the files go: format.outputDirectory of the repository
// would otherwise, by the time that git reads it.
func formatPatch(r *request) error {
	if r.line.Has("--stdout") {
		r.mutating, r.idempotent = false, true
		return nil
	}
	if !r.line.Has("--output-directory") {
		r.flags = append(r.flags, "--output-directory=.")
	}
	r.idempotent = true
	return nil
}

// archiveFormats are git's own. Further ones are programs that a repository
// names with tar.NAME.command.
var archiveFormats = []string{"tar", "zip", "tgz", "tar.gz"}

var archiveCommand = &command{name: "archive", then: archive, grammar: numbered(
	with(argv.OneOf(archiveFormats...), "--format"), with(text, "--prefix", "--add-virtual-file", "--mtime"), with(argv.Path, "--add-file", "-o --output"), bare("--worktree-attributes", "-v --verbose", "-l --list"),
	never("asks another repository, through a program that cannot be pinned", "clone it, or git fetch, then git archive", "--remote"), never("names the program that runs on the other side", "leave it out", "--exec"))}

// archive writes the format out, and what compresses it: git's own.
func archive(r *request) error {
	out, ok := r.line.Get("--output")
	if !ok || r.line.Has("--list") {
		r.mutating, r.idempotent = false, true
	}
	r.config = append(r.config, "tar.tgz.command=git archive gzip", "tar.tar.gz.command=git archive gzip")
	if !r.line.Has("--list") && !r.line.Has("--format") {
		format := "tar"
		for _, f := range archiveFormats {
			if strings.HasSuffix(out, "."+f) {
				format = f
			}
		}
		r.flags = append(r.flags, "--format="+format)
	}
	return nil
}

var hashObjectCommand = &command{name: "hash-object", reads: true, paths: true, grammar: grammar(
	with(argv.OneOf("blob", "tree", "commit", "tag"), "-t"), bare("-w", "--stdin", "--no-filters", "--literally"), with(argv.Path, "--path"),
	never("reads the names of files from input", "name them", "--stdin-paths")),
	then: func(r *request) error {
		if r.line.Has("-w") {
			r.mutating = true
		}
		return pathOperands(r)
	}}

var fsckCommand = &command{name: "fsck", reads: true, grammar: grammar(bare("-v --verbose", "--unreachable", "~--dangling", "--tags", "--root", "--cache", "~--reflogs", "~--full", "--connectivity-only", "~--strict",
	"--lost-found", "~--progress", "~--name-objects", "~--references")), operand: rev,
	then: func(r *request) error {
		if r.line.Has("--lost-found") {
			r.mutating = true
		}
		return nil
	}}

var notesCommand = func() *command {
	noteEdits := edits("give the note with -m or -F", "-c --reedit-message", "-e --edit")
	noteEdits[0].Value = rev
	message := join(with(text, "-m --message"), with(input, "-F --file"), with(rev, "-C --reuse-message"), bare("--allow-empty"),
		noteEdits)
	given := func(r *request) error {
		if _, idle := r.editor(messageEditors); !idle && !r.callback(kindEditor) && !anyOf(r.line, "--message", "--file", "--reuse-message") {
			return refusal("editor", "", "git notes without a text opens an editor, and there is none here", "give the note with -m TEXT or -F FILE")
		}
		return nil
	}
	return &command{name: "notes", reads: true, most: -1, lead: notesRef, grammar: grammar(), sub: byName(
		&command{name: "notes list", reads: true, most: 1, operand: rev, grammar: grammar()},
		&command{name: "notes show", reads: true, most: 1, operand: rev, grammar: grammar()},
		&command{name: "notes get-ref", reads: true, most: -1, grammar: grammar()},
		&command{name: "notes add", most: 1, operand: rev, then: given, grammar: grammar(message, bare("-f --force"))},
		&command{name: "notes append", most: 1, operand: rev, then: given, grammar: grammar(message)},
		&command{name: "notes copy", most: 2, operand: rev, grammar: grammar(bare("-f --force", "--stdin"))},
		&command{name: "notes remove", operand: rev, grammar: grammar(bare("--ignore-missing", "--stdin"))},
		&command{name: "notes prune", again: true, most: -1, grammar: grammar(bare("-n --dry-run", "-v --verbose"))},
		&command{name: "notes merge", most: 1, operand: rev, grammar: grammar(bare("-v --verbose", "-q --quiet", "--commit", "--abort"),
			with(argv.OneOf("manual", "ours", "theirs", "union", "cat_sort_uniq"), "-s --strategy"))},
		&command{name: "notes edit", most: 1, operand: rev, then: given, grammar: grammar(message)})}
}()

// notesRef takes "--ref NAME" from before the second word and says it by
// configuration.
func notesRef(r *request, args []string) ([]string, error) {
	for len(args) > 0 && strings.HasPrefix(args[0], "--ref") {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if name != "--ref" {
			return nil, refusal("flag.unknown", name, "flag "+quote(name)+" is not one that this policy knows", "did you mean --ref?")
		}
		if !joined {
			if len(args) == 0 {
				return nil, refusal("flag.value", name, `flag "--ref" needs a value`, "name a reference of notes")
			}
			value, args = args[0], args[1:]
		}
		short := strings.TrimPrefix(strings.TrimPrefix(value, "refs/"), "notes/")
		if !validRef(short) {
			return nil, refusal("flag.value", name, "the value "+quote(value)+" is not the name of notes", "use a name like commits")
		}
		r.config = append(r.config, "core.notesRef=refs/notes/"+short)
	}
	return args, nil
}

var sparseCommand = func() *command {
	cone := bare("~--cone", "~--sparse-index")
	patterns := bare("--stdin", "--skip-checks")
	return &command{name: "sparse-checkout", most: -1, reads: true, grammar: grammar(), sub: byName(
		&command{name: "sparse-checkout list", reads: true, most: -1, grammar: grammar()},
		&command{name: "sparse-checkout init", again: true, most: -1, grammar: grammar(cone)},
		&command{name: "sparse-checkout set", again: true, grammar: grammar(cone, patterns)},
		&command{name: "sparse-checkout add", again: true, grammar: grammar(patterns)},
		&command{name: "sparse-checkout reapply", again: true, most: -1, grammar: grammar(cone)},
		&command{name: "sparse-checkout disable", again: true, most: -1, grammar: grammar()})}
}()

// bisectCommand: until 2.40 git bisect was a shell script around a program, and
// a shell runs nothing here; config bisect says which one there is.
var bisectCommand = func() *command {
	one := func(name string, reads bool, most int, flags ...[]argv.Flag) *command {
		return &command{name: "bisect " + name, reads: reads, most: most, operand: rev, then: bisect, grammar: grammar(flags...)}
	}
	return &command{name: "bisect", most: -1, reads: true, grammar: grammar(), then: func(r *request) error {
		return refusal("operand", "", "git bisect needs to be told what to do", "use one of: "+strings.Join(sortedNames(r.cmd.sub), ", "))
	}, sub: byName(
		one("start", false, 0, bare("--no-checkout", "--first-parent"), never("gives good and bad other names", "leave it out; use good and bad, or old and new", "--term-good", "--term-bad", "--term-old", "--term-new")),
		one("good", false, 0), one("bad", false, 1), one("old", false, 0), one("new", false, 1), one("skip", false, 0), one("next", false, -1), one("reset", false, 1), one("log", true, -1), one("terms", true, -1, bare("--term-good", "--term-bad", "--term-old", "--term-new")),
		&command{name: "bisect run", refuse: runs, instead: "run the test yourself, then git bisect good or git bisect bad"},
		&command{name: "bisect replay", refuse: "reads what to do from a file of any name", instead: "make its calls one by one"},
		&command{name: "bisect visualize", refuse: runs, instead: "git log --oneline refs/bisect/bad"},
		&command{name: "bisect view", refuse: runs, instead: "git log --oneline refs/bisect/bad"})}
}()

func bisect(r *request) error {
	if r.bisectUnsaid {
		r.note("a git before 2.40 cannot do this here: its bisect is a script, and no shell runs; the operator then sets \"bisect\": \"helper\" in config of tools.d/git/tool.json, and \"builtin\" otherwise, which ends this line")
	}
	if r.bisectHelper {
		name := strings.TrimPrefix(r.cmd.name, "bisect ")
		r.written = []string{"bisect--helper", name}
		if slices.Contains([]string{"good", "bad", "old", "new"}, name) {
			r.written = []string{"bisect--helper", "state", name}
		}
	}
	return nil
}
