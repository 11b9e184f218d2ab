package main

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// command is a subcommand that is understood, or known and refused.
type command struct {
	// name is what comes after "git": "commit", "stash pop".
	name string
	// reads: it changes nothing. again: it changes something, and once more
	// changes nothing further.
	reads, again bool
	// plain: it reads no configuration and looks for no repository, so that none of
	// either has to be kept from it.
	plain bool
	// refuse says why it is refused, instead what to do instead.
	refuse, instead string

	grammar *argv.Grammar
	// operand checks each operand that stands before "--", in its place; nil
	// takes any. It answers what is written.
	operand func(v string, in argv.Scope) (string, error)
	// most is how many operands there may be; 0 is any number, -1 none.
	most int
	// paths: all operands are paths, so "--" is written before them.
	paths bool
	// force are flags in front of all that were asked for.
	force []string
	// tail rewrites what git reads in a way of its own before it is parsed.
	tail func(args []string) []string
	// then decides what the grammar alone cannot.
	then func(r *request) error

	// sub are the second words: stash pop, remote add. Without one of them
	// the command itself counts, and operands says that it may have some.
	sub      map[string]*command
	operands bool
	// lead takes what may stand before the second word.
	lead func(r *request, args []string) ([]string, error)
}

// words is how the command is written.
func (c *command) words(asked string) []string {
	if c.name == "" {
		return []string{asked}
	}
	return strings.Fields(c.name)
}

func (c *command) checkOperands(l *argv.Line) error {
	n := 0
	for i, it := range l.Items {
		if it.Flag != nil {
			continue
		}
		n++
		if c.most < 0 || c.most > 0 && n > c.most {
			return refusal("operand", it.Value, "git "+c.name+" takes no further argument "+quote(it.Value), "leave it out")
		}
		if it.Dashed && !c.paths && c.operand != nil && strings.HasPrefix(it.Value, "-") {
			return refusal("operand", it.Value, "argument "+quote(it.Value)+" looks like a flag", "")
		}
		if c.operand != nil {
			v, err := c.operand(it.Value, argv.Scope{})
			if err != nil {
				return refusal("operand", it.Value, "argument "+quote(it.Value)+": "+err.Error(), "")
			}
			l.Items[i].Value = v
		}
	}
	return nil
}

// write answers the line anew. Flags and operands keep their order, which
// means something to git (--not, --and, -e). No operand before "--" begins
// with "-": the parser took those for flags.
func (c *command) write(l *argv.Line) []string {
	var out, dashed []string
	for _, it := range l.Items {
		switch {
		case it.Name == textconv[0].Names:
		case it.Flag == nil && (it.Dashed || c.paths):
			dashed = append(dashed, it.Value)
		default:
			out = append(out, l.Write(it)...)
		}
	}
	if l.Dashes || len(dashed) > 0 {
		out = append(append(out, "--"), dashed...)
	}
	return out
}

// Values.

func rev(v string, in argv.Scope) (string, error) {
	if v == "" || v[0] == '-' && v != "-" {
		return "", errors.New("the value " + quote(v) + " is not a revision")
	}
	return argv.OneLine(v, in)
}

var (
	count   = argv.Int(0, 1<<31-1)
	text    = argv.Text
	word    = argv.OneLine
	when    = argv.OneOf("always", "never", "auto")
	input   = argv.PathOr("-")
	percent = argv.Match("a number or a percentage", func(v string) bool {
		v = strings.TrimSuffix(v, "%")
		n, m, two := strings.Cut(v, "/")
		return isNumber(n) && (!two || isNumber(strings.TrimSuffix(m, "%")))
	})
	letters = argv.Match("a list of letters", func(v string) bool {
		return v != "" && strings.Trim(v, "ACDMRTUXBacdmrtuxb*") == ""
	})
	// Names of strategies are names of programs, git-merge-NAME. Two of git's
	// own are shell scripts: resolve and octopus.
	strategy       = argv.OneOf("ort", "recursive", "ours", "subtree")
	strategyOption = argv.Match("an option of the strategy ort", func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"ours", "theirs", "ignore-space-change", "ignore-all-space", "ignore-space-at-eol", "ignore-cr-at-eol",
			"renormalize", "no-renormalize", "find-renames", "rename-threshold", "no-renames", "subtree", "histogram", "patience", "diff-algorithm"}, name)
	})
)

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 31)
	return err == nil
}

// Short forms for tables. Names are as in argv.Flag; a "~" before the long one
// makes the flag negatable.

func bare(names ...string) []argv.Flag { return flagList(argv.Flag{}, names) }

func with(v argv.Value, names ...string) []argv.Flag { return flagList(argv.Flag{Value: v}, names) }

func may(v argv.Value, names ...string) []argv.Flag {
	return flagList(argv.Flag{Value: v, Optional: true}, names)
}

func never(why, instead string, names ...string) []argv.Flag {
	return flagList(argv.Flag{Refuse: why, Instead: instead}, names)
}

// edits is a flag with which git opens an editor: it is refused, with this advice,
// where the caller has none that can be run.
func edits(instead string, names ...string) []argv.Flag {
	return flagList(argv.Flag{Instead: instead}, names)
}

// editing reports whether the flag is one of edits.
func editing(f *argv.Flag) bool { return f != nil && f.Refuse == "" && f.Instead != "" }

func flagList(f argv.Flag, names []string) []argv.Flag {
	var out []argv.Flag
	for _, n := range names {
		g := f
		g.Names = strings.ReplaceAll(n, "~", "")
		g.Negatable = g.Names != n
		out = append(out, g)
	}
	return out
}

// without takes spellings that another flag of the same command has.
func without(list []argv.Flag, spellings ...string) []argv.Flag {
	var out []argv.Flag
	for _, f := range list {
		names := slices.DeleteFunc(strings.Fields(f.Names), func(n string) bool { return slices.Contains(spellings, n) })
		if f.Names = strings.Join(names, " "); f.Names != "" {
			out = append(out, f)
		}
	}
	return out
}

// style is how git reads its command line.
var style = argv.Style{EndOfFlags: "--end-of-options"}

// operandsEndFlags is that of git submodule foreach, whose operands are another command.
var operandsEndFlags = argv.Style{OperandsEndFlags: true}

func grammar(lists ...[]argv.Flag) *argv.Grammar { return argv.New(style, lists...) }

// numbered is for commands that read -5 as a number.
func numbered(lists ...[]argv.Flag) *argv.Grammar {
	lists = append(lists, with(count, argv.Number))
	numbers := style
	numbers.Numbers = true
	return argv.New(numbers, lists...)
}

func join(lists ...[]argv.Flag) []argv.Flag { return slices.Concat(lists...) }

// Flags that several commands share.

const (
	noEditor = "opens an editor, and there is none here"
	runs     = "runs a program"
	signs    = "runs a program that signs or verifies"
)

var (
	pathspecFlags = join(with(input, "--pathspec-from-file"), bare("--pathspec-file-nul"))

	// signing is -S, where the operator has a key: see sign.
	signing = join(may(word, "-S --gpg-sign"), bare("--no-gpg-sign"))

	diffFlags = join(
		bare("-u -p --patch", "-s --no-patch", "--raw", "--patch-with-raw", "--patch-with-stat", "--minimal", "--patience", "--histogram",
			"--numstat", "--shortstat", "--summary", "--compact-summary", "--name-only", "--name-status", "--no-renames", "--find-copies-harder",
			"--pickaxe-all", "--pickaxe-regex", "-R", "-a --text", "--ignore-cr-at-eol", "--ignore-space-at-eol",
			"-b --ignore-space-change", "-w --ignore-all-space", "--ignore-blank-lines", "-W --function-context", "--exit-code", "-q --quiet",
			"--no-prefix", "--default-prefix", "--full-index", "--binary", "--check", "-z", "-D --irreversible-delete",
			"~--indent-heuristic", "--ita-invisible-in-index", "--ita-visible-in-index", "--cumulative", "--no-ext-diff", "--no-textconv", "--no-relative", "~--rename-empty"),
		with(count, "-l", "--inter-hunk-context"),
		may(count, "-U --unified"),
		with(argv.OneOf("default", "myers", "minimal", "patience", "histogram"), "--diff-algorithm"),
		with(text, "--anchored", "-S", "-G", "-I --ignore-matching-lines", "--word-diff-regex", "--src-prefix", "--dst-prefix", "--line-prefix", "--ws-error-highlight", "--output-indicator-new", "--output-indicator-old", "--output-indicator-context"),
		with(rev, "--find-object"),
		with(argv.Path, "--skip-to", "--rotate-to"),
		with(letters, "--diff-filter"),
		may(percent, "-M --find-renames", "-C --find-copies", "-B --break-rewrites"),
		may(word, "--stat", "-X --dirstat", "--dirstat-by-file", "--relative"),
		may(count, "~--abbrev"),
		may(when, "~--color"),
		may(word, "~--color-moved"),
		with(word, "~--color-moved-ws"),
		may(text, "--color-words"),
		may(argv.OneOf("color", "plain", "porcelain", "none"), "--word-diff"),
		may(argv.OneOf("short", "log"), "--submodule"),
		may(argv.OneOf("all", "dirty"), "--ignore-submodules"),
		never("runs a program that the repository names", "leave it out", "--ext-diff"), textconv,
		never("writes a file of any name", "redirect the output instead", "--output"),
		never("reads files outside of the repository", "leave it out", "--no-index"),
		never("reads a file of any name", "leave it out", "-O"),
	)

	// textconv is left out of the line: where the repository names a program for it, every
	// call is refused, and elsewhere it changes nothing. Editors always give it.
	textconv = bare("--textconv")

	// revFlags choose and show commits.
	revFlags = join(
		with(argv.Int(-1, 1<<31-1), "-n --max-count"), with(count, "--skip", "--min-parents", "--max-parents", "--min-age", "--max-age"),
		with(text, "--since", "--after", "--until", "--before", "--since-as-filter", "--author", "--committer", "--grep", "--grep-reflog"),
		bare("--all-match", "--invert-grep", "-i --regexp-ignore-case", "--basic-regexp", "-E --extended-regexp", "-F --fixed-strings",
			"-P --perl-regexp", "--remove-empty", "--merges", "--no-merges", "--no-min-parents", "--no-max-parents", "--first-parent",
			"--exclude-first-parent-only", "--not", "--all", "--reflog", "--alternate-refs", "--ignore-missing", "--stdin", "--cherry-mark", "--cherry-pick",
			"--left-only", "--right-only", "--cherry", "-g --walk-reflogs", "--merge", "--boundary", "--simplify-by-decoration",
			"--full-history", "--dense", "--sparse", "--simplify-merges", "--show-pulls", "--date-order", "--author-date-order", "--topo-order",
			"--reverse", "--do-walk", "--count", "--abbrev-commit", "--no-abbrev-commit", "--oneline", "--relative-date", "--parents",
			"--children", "--left-right", "~--graph", "--show-linear-break", "--timestamp", "--no-commit-id", "--standard-notes", "--no-standard-notes"),
		may(word, "--branches", "--tags", "--remotes", "--no-walk", "--ancestry-path"),
		with(word, "--glob", "--exclude", "--exclude-hidden", "--encoding", "--date"),
		may(text, "--pretty"),
		with(text, "--format"),
		may(count, "~--expand-tabs"),
		may(word, "~--notes", "--show-notes"),
		bare("--no-show-signature"), bare(showSignature),
	)

	// logFlags are further flags of log, show and reflog.
	logFlags = join(
		bare("-c", "--cc", "--combined-all-paths", "-m", "-r", "-t", "--follow", "--source", "~--mailmap", "~--use-mailmap", "--full-diff",
			"--log-size", "--clear-decorations", "--root", "--dd", "--remerge-diff"),
		with(word, "--diff-merges", "--decorate-refs", "--decorate-refs-exclude"),
		may(argv.OneOf("short", "full", "auto", "no"), "~--decorate"),
		with(word, "-L"),
	)

	// ours: no program of the repository's choice, no look into submodules.
	plainDiff = []string{"--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty"}

	networkFlags = join(
		bare("-q --quiet", "-v --verbose", "~--progress", "-4 --ipv4", "-6 --ipv6"),
		never("names the program that runs on the other side", "leave it out", "--upload-pack", "--receive-pack", "--exec"),
	)

	fetchFlags = join(
		bare("-a --append", "--atomic", "--unshallow", "--update-shallow", "--dry-run", "--porcelain", "~--write-fetch-head", "-f --force", "-k --keep",
			"~--auto-maintenance", "~--auto-gc", "-p --prune", "-P --prune-tags", "-t --tags", "-n --no-tags", "--set-upstream", "~--show-forced-updates"),
		with(count, "--depth", "--deepen", "-j --jobs"),
		with(text, "--shallow-since"),
		with(rev, "--shallow-exclude", "--negotiation-tip"),
		with(word, "--refmap"),
		never("sends a string of any kind to the server", "leave it out", "-o --server-option"),
		never("leaves objects out that later calls would have to fetch", "use --depth", "--filter"),
		recursing,
		bare("--no-recurse-submodules"),
	)

	mergeFlags = join(
		bare("--commit", "--no-commit", "--no-edit", "--ff", "--no-ff", "--ff-only", "--signoff", "--no-signoff", "--stat", "-n --no-stat", "--squash", "--no-squash",
			"~--verify", "~--autostash", "--allow-unrelated-histories"),
		may(count, "~--log"),
		with(word, "--cleanup"),
		with(strategy, "-s --strategy"),
		with(strategyOption, "-X --strategy-option"),
		edits("leave it out: the message is taken as it is, or give one with -m", "-e --edit"),
		bare(verifySignatures), bare("--no-verify-signatures"),
		signing,
	)

	listFlags = join(
		with(rev, "--contains", "--no-contains", "--merged", "--no-merged", "--points-at"),
		with(word, "--sort"),
		with(text, "--format"),
		bare("-i --ignore-case"),
		may(when, "~--color"),
		may(word, "~--column"),
	)

	sequencerFlags = join(
		bare("-n --no-commit", "-s --signoff", "--no-edit", "--continue", "--abort", "--skip", "--quit", "--ff", "~--rerere-autoupdate"),
		with(argv.Int(1, 100), "-m --mainline"),
		with(word, "--cleanup"),
		with(strategy, "--strategy"),
		with(strategyOption, "-X --strategy-option"),
		edits("leave it out", "-e --edit"),
		signing,
	)

	blameFlags = grammar(
		bare("~--minimal", "-l", "-t", "-s", "-w", "-c", "-b", "-f --show-name", "-n --show-number", "-e --show-email", "--root", "--incremental", "-p --porcelain", "--line-porcelain",
			"--first-parent", "--color-lines", "--color-by-age", "~--progress", "--score-debug", "--show-stats", "--no-textconv"),
		with(word, "-L", "--date", "--since"), may(count, "-M", "-C", "--abbrev"), with(rev, "--ignore-rev", "--reverse"), with(argv.Path, "--ignore-revs-file"),
		never("reads a file of any name", "leave it out", "--contents", "-S"), textconv)

	templateFlag = func() []argv.Flag {
		f := edits("give the message with -m or -F", "-t --template")
		f[0].Value = argv.Path
		return f
	}()

	conflictFlag = with(argv.OneOf("merge", "diff3", "zdiff3"), "--conflict")

	// answers is -p, whose answers are read from input, a line each; asks is -i,
	// with a menu.
	answers = bare("-p --patch")
	asks    = bare("-i --interactive")
	// recursing is left out of the line, and refused where that would matter: see recurse.
	recursing = may(word, recurseFlag)
)

// answered reports whether the flag is that of answers.
func answered(f *argv.Flag) bool { return f != nil && f.Names == answers[0].Names }

// lastIsHead adds the HEAD that git itself supplies when one of these flags
// comes last: "branch --merged" is "branch --merged HEAD".
func lastIsHead(args []string) []string {
	if n := len(args); n > 0 && slices.Contains([]string{"--contains", "--no-contains", "--merged", "--no-merged", "--points-at"}, args[n-1]) {
		return append(slices.Clip(args), "HEAD")
	}
	return args
}

// insideOnly is for diff, which compares files outside of any repository
// when an operand leads there.
//
// Of exactly two operands git makes a comparison of any two files when the
// repository is gone by the time it looks. A third, which leaves nothing out,
// makes an error of that. Blobs (HEAD:a) take no third one.
func insideOnly(r *request) error {
	ops := r.line.Operands()
	for _, op := range ops {
		if _, err := r.scope.Path(op); err != nil && op != "" {
			return err
		}
	}
	literal := slices.Contains(r.call.Args, "--literal-pathspecs") || slices.Contains(r.call.Args, "--noglob-pathspecs") || r.call.Env["GIT_LITERAL_PATHSPECS"]+r.call.Env["GIT_NOGLOB_PATHSPECS"] != ""
	if len(ops) == 2 && !literal && strings.Contains(ops[0]+ops[1], "/") && !strings.Contains(ops[0]+ops[1], ":") && !r.guards.off(checkFlags) {
		r.line.Items = append(r.line.Items, argv.Item{Value: ":(top,exclude).git/none", Dashed: r.line.Items[len(r.line.Items)-1].Dashed})
	}
	return nil
}

// revFirst is for what compares with a revision, which stands first.
func revFirst(r *request) error {
	if ops := r.line.Operands(); len(ops) == 0 || r.line.Items[slices.IndexFunc(r.line.Items, func(it argv.Item) bool { return it.Flag == nil })].Dashed {
		return refusal("operand", "", "git "+r.cmd.name+" needs a revision", "use HEAD")
	}
	return nil
}

// templates are those of git itself, which nobody but the host's administrator changes.
// Without them there is no folder .git/hooks and no .git/info/exclude to write to; those that
// a repository, a variable or a flag names could bring hooks along.
const templates = "--template=/usr/share/git-core/templates"

// noTemplate is the empty value, for a repository without any.
func noTemplate(v string, _ argv.Scope) (string, error) {
	if v != "" {
		return "", refusal("flag.refused", "--template", "copies files of any folder, hooks among them", "leave it out, or give an empty one: --template=")
	}
	return v, nil
}

func pathOperands(r *request) error {
	for i, it := range r.line.Items {
		if it.Flag == nil {
			v, err := r.scope.Path(it.Value)
			if err != nil {
				return err
			}
			r.line.Items[i].Value = v
		}
	}
	return nil
}

// readsWhen makes a command that changes something into one that reads, by
// what it was asked.
func readsWhen(is func(l *argv.Line) bool) func(*request) error {
	return func(r *request) error {
		if is(r.line) {
			r.mutating, r.idempotent = false, true
		}
		return nil
	}
}

// oneBranch is for merge: git merges several branches at once with a shell script.
func oneBranch(r *request) error {
	if len(r.line.Operands()) > 1 {
		return refusal("operand", "", "git merge of several branches at once is a script, and no shell runs here", "merge one branch after the other")
	}
	return nil
}

func anyOf(l *argv.Line, names ...string) bool { return slices.ContainsFunc(names, l.Has) }

// commands is every subcommand that is known. It is not written to.
var commands = byName(append([]*command{
	&command{name: "version", reads: true, plain: true, grammar: grammar(bare("--build-options")), most: -1},

	// Looking.
	&command{name: "status", reads: true, paths: true, force: []string{"--ignore-submodules=dirty"}, grammar: grammar(
		bare("-s --short", "-b --branch", "--show-stash", "--long", "-v --verbose", "-z --null", "~--ahead-behind", "~--renames"),
		may(argv.OneOf("v1", "v2", "1", "2"), "--porcelain"),
		may(argv.OneOf("no", "normal", "all"), "-u --untracked-files"),
		may(argv.OneOf("all", "dirty"), "--ignore-submodules"),
		may(argv.OneOf("traditional", "no", "matching"), "--ignored"),
		may(word, "~--column"), may(percent, "-M --find-renames"))},
	&command{name: "diff", reads: true, force: plainDiff, then: insideOnly, grammar: numbered(diffFlags, bare(
		"--cached", "--staged", "--merge-base", "-c", "--cc", "-m", "-0", "-1 --base", "-2 --ours", "-3 --theirs", "--combined-all-paths", "-r", "-t", "--follow"),
		with(word, "--diff-merges"))},
	&command{name: "diff-index", reads: true, force: plainDiff, then: revFirst, grammar: grammar(diffFlags, bare("--cached", "-m", "-r", "-t", "--merge-base"))},
	&command{name: "log", reads: true, force: plainDiff, grammar: numbered(revFlags, logFlags, diffFlags)},
	&command{name: "show", reads: true, force: plainDiff, grammar: numbered(revFlags, logFlags, diffFlags)},
	&command{name: "reflog", reads: true, operands: true, force: plainDiff, grammar: numbered(revFlags, logFlags, diffFlags), sub: byName(
		&command{name: "reflog show", reads: true, force: plainDiff, grammar: numbered(revFlags, logFlags, diffFlags)},
		&command{name: "reflog exists", reads: true, grammar: grammar(), operand: rev, most: 1},
		&command{name: "reflog expire", refuse: "throws away what could still be recovered", instead: "leave it to git gc"},
		&command{name: "reflog delete", refuse: "throws away what could still be recovered", instead: "leave it to git gc"})},
	&command{name: "shortlog", reads: true, grammar: numbered(without(revFlags, "-n", "--committer"),
		bare("-n --numbered", "-s --summary", "-e --email", "-c --committer"), may(word, "-w"), with(word, "--group")), then: orHead},
	&command{name: "rev-list", reads: true, grammar: numbered(revFlags, may(count, "~--abbrev"), may(word, "--disk-usage"), with(word, "--filter"), with(argv.OneOf("error", "print", "allow-any", "allow-promisor"), "--missing"),
		bare("-q --quiet", "--objects", "--objects-edge", "--objects-edge-aggressive", "--indexed-objects", "--unpacked", "--header", "--no-object-names", "--object-names", "--full-diff", "~--commit-header", "--use-bitmap-index",
			"--in-commit-order", "--bisect", "--bisect-vars", "--bisect-all", "--no-filter", "--filter-print-omitted", "--filter-provided-objects", "--exclude-promisor-objects", "~--progress"))},
	&command{name: "blame", reads: true, force: []string{"--no-textconv"}, grammar: blameFlags},
	&command{name: "annotate", reads: true, force: []string{"--no-textconv"}, grammar: blameFlags},
	&command{name: "grep", reads: true, grammar: numbered(
		bare("-i --ignore-case", "-v --invert-match", "-w --word-regexp", "-E --extended-regexp", "-F --fixed-strings", "-G --basic-regexp", "-P --perl-regexp",
			"-n --line-number", "-l --name-only --files-with-matches", "-L --files-without-match", "-c --count", "-o --only-matching", "-h", "-H", "--full-name",
			"--column", "-z --null", "-p --show-function", "-W --function-context", "--and", "--or", "--not", "--all-match", "-q --quiet", "-I", "-a --text",
			"--untracked", "~--exclude-standard", "--cached", "-r --recursive", "--no-recursive", "--break", "--heading", "--no-textconv"),
		with(count, "-A --after-context", "-B --before-context", "-C --context", "--max-depth", "--threads", "-m --max-count"), with(text, "-e"), with(argv.Path, "-f"),
		may(when, "~--color"),
		never(runs, "leave it out", "-O --open-files-in-pager"), never("reads files outside of the repository", "leave it out", "--no-index"),
		never("runs a program that the repository names", "leave it out", "--textconv", "--ext-grep"), recursing)},
	&command{name: "rev-parse", reads: true, then: apart("--git-path", "--default"), grammar: grammar(
		bare("--verify", "-q --quiet", "--show-toplevel", "--git-dir", "--absolute-git-dir", "--git-common-dir", "--is-inside-work-tree", "--is-inside-git-dir",
			"--is-bare-repository", "--is-shallow-repository", "--show-prefix", "--show-cdup", "--symbolic", "--symbolic-full-name", "--all", "--not", "--revs-only",
			"--no-revs", "--flags", "--no-flags", "--shared-index-path", "--end-of-options", "--sq", "--local-env-vars"),
		may(argv.OneOf("strict", "loose"), "--abbrev-ref"), may(count, "--short"), may(word, "--branches", "--tags", "--remotes", "--show-object-format"),
		with(word, "--git-path", "--glob", "--exclude", "--default", "--since", "--after", "--until", "--before", "--disambiguate"),
		with(argv.OneOf("absolute", "relative"), "--path-format"))},
	&command{name: "ls-files", reads: true, paths: true, grammar: grammar(
		bare("-c --cached", "-d --deleted", "-m --modified", "-o --others", "-i --ignored", "-s --stage", "-u --unmerged", "-k --killed", "-z", "-t", "-v", "-f",
			"--directory", "--no-empty-directory", "--eol", "--deduplicate", "--error-unmatch", "--full-name", "--exclude-standard", "--sparse", "--debug", "--resolve-undo"), with(argv.OneOf(".gitignore"), "--exclude-per-directory"),
		with(text, "-x --exclude"), with(rev, "--with-tree"), may(count, "--abbrev"), with(text, "--format"),
		never("reads a file of any name", "use --exclude-standard", "-X --exclude-from"), recursing)},
	&command{name: "ls-tree", reads: true, grammar: grammar(
		bare("-d", "-r", "-t", "-l --long", "-z", "--name-only", "--name-status", "--object-only", "--full-name", "--full-tree"), may(count, "--abbrev"), with(text, "--format"))},
	&command{name: "ls-remote", reads: true, then: lsRemote, grammar: grammar(networkFlags,
		bare("-h --heads", "-b --branches", "-t --tags", "--refs", "--exit-code", "--get-url", "--symref"), with(word, "--sort"),
		never("sends a string of any kind to the server", "leave it out", "-o --server-option"))},
	&command{name: "cat-file", reads: true, grammar: grammar(bare("-t", "-s", "-e", "-p", "~--buffer", "~--unordered", "-Z", "-z", "--batch-all-objects", "~--follow-symlinks", "~--allow-unknown-type", "~--mailmap", "~--use-mailmap"),
		may(text, "--batch", "--batch-check", "--batch-command"),
		never("runs a program that the repository names", "use -p", "--textconv", "--filters"))},
	&command{name: "verify-commit", reads: true, operand: rev, grammar: grammar(bare("-v --verbose", "--raw"))},
	&command{name: "verify-tag", reads: true, operand: rev, grammar: grammar(bare("-v --verbose", "--raw"), with(text, "--format"))},
	&command{name: "describe", reads: true, grammar: grammar(
		bare("--all", "--tags", "--contains", "--exact-match", "--debug", "--long", "--always", "--first-parent"), with(count, "--candidates"), may(count, "--abbrev"),
		with(word, "--match", "--exclude"), may(word, "--dirty", "--broken"))},
	&command{name: "name-rev", reads: true, grammar: grammar(bare("--tags", "--name-only", "~--undefined", "--always", "--all", "--stdin", "--annotate-stdin"), with(word, "--refs", "--exclude"))},
	&command{name: "merge-base", reads: true, operand: rev, grammar: grammar(bare("-a --all", "--octopus", "--independent", "--is-ancestor", "--fork-point"))},
	&command{name: "for-each-ref", reads: true, tail: lastIsHead, grammar: grammar(listFlags, with(count, "--count"), bare("--include-root-refs", "-s --shell", "-p --perl", "--python", "--tcl"), with(word, "--exclude"))},
	&command{name: "show-ref", reads: true, grammar: grammar(
		bare("--head", "-d --dereference", "--verify", "-q --quiet", "--tags", "--heads", "--branches", "--exists"), may(count, "-s --hash", "--abbrev"))},
	&command{name: "symbolic-ref", reads: true, most: 2, operand: rev, then: symbolicRef, grammar: grammar(bare("-q --quiet", "--short", "~--recurse"), with(word, "-m"),
		never("takes away what a reference stands for", "git switch, or git branch -d", "-d --delete"))},
	&command{name: "check-ignore", reads: true, grammar: grammar(bare("-q --quiet", "-v --verbose", "--stdin", "-z", "-n --non-matching", "--no-index"))},
	&command{name: "count-objects", reads: true, most: -1, grammar: grammar(bare("-v --verbose", "-H --human-readable"))},
	&command{name: "cherry", reads: true, operand: rev, most: 3, grammar: grammar(bare("-v"), may(count, "--abbrev"))},

	// The work tree and the index.
	&command{name: "add", again: true, paths: true, grammar: grammar(
		bare("-n --dry-run", "-v --verbose", "-f --force", "-A --all", "--no-all --ignore-removal", "-u --update", "-N --intent-to-add", "--refresh", "--ignore-errors",
			"--ignore-missing", "--renormalize", "--sparse"),
		with(argv.OneOf("+x", "-x"), "--chmod"), pathspecFlags, answers, asks, edits("name whole files", "-e --edit"))},
	&command{name: "rm", paths: true, grammar: grammar(
		bare("-f --force", "-n --dry-run", "-r", "--cached", "--ignore-unmatch", "--sparse", "-q --quiet"), pathspecFlags), then: removes},
	&command{name: "mv", paths: true, grammar: grammar(bare("-f --force", "-k", "-n --dry-run", "-v --verbose", "--sparse"))},
	&command{name: "restore", paths: true, grammar: grammar(conflictFlag, bare("-S --staged", "-W --worktree", "--ours", "--theirs", "-m --merge", "-q --quiet", "~--progress",
		"--ignore-unmerged", "--ignore-skip-worktree-bits", "~--overlay"), with(rev, "-s --source"), pathspecFlags, answers, recursing)},
	&command{name: "reset", grammar: grammar(
		bare("--soft", "--mixed", "--hard", "--merge", "--keep", "-q --quiet", "~--refresh", "-N --intent-to-add", "--no-recurse-submodules"), pathspecFlags, answers, recursing)},
	&command{name: "checkout", grammar: grammar(
		bare("-q --quiet", "~--progress", "-f --force", "-m --merge", "~--overwrite-ignore", "--ignore-other-worktrees", "~--guess", "-d --detach", "-l", "-2 --ours", "-3 --theirs",
			"~--overlay", "--ignore-skip-worktree-bits", "--no-track", "--no-recurse-submodules"),
		conflictFlag, may(argv.OneOf("direct", "inherit"), "-t --track"), with(rev, "-b", "-B", "--orphan"), pathspecFlags, answers, recursing)},
	&command{name: "switch", operand: rev, most: 2, grammar: grammar(
		bare("-q --quiet", "~--progress", "-f --force --discard-changes", "-m --merge", "~--overwrite-ignore", "--ignore-other-worktrees", "~--guess", "-d --detach", "--no-track", "--no-recurse-submodules"),
		conflictFlag, may(argv.OneOf("direct", "inherit"), "-t --track"), with(rev, "-c --create", "-C --force-create", "--orphan"), recursing)},
	&command{name: "clean", paths: true, grammar: grammar(bare("-d", "-f --force", "-n --dry-run", "-q --quiet", "-x", "-X"), with(text, "-e --exclude"), asks),
		then: readsWhen(func(l *argv.Line) bool { return l.Has("--dry-run") })},
	stashCommand,

	// History.
	&command{name: "commit", paths: true, then: both(trailers, commitMessage), grammar: grammar(
		bare("-a --all", "--reset-author", "--short", "--branch", "--porcelain", "--long", "-z --null", "-s ~--signoff", "-n --no-verify", "--verify", "--allow-empty", "--allow-empty-message",
			"--no-edit", "--amend", "--no-post-rewrite", "-i --include", "-o --only", "-v --verbose", "-q --quiet", "--dry-run", "~--status"),
		with(text, "-m --message", "--author", "--date", "--trailer"), with(input, "-F --file"), with(rev, "-C --reuse-message", "-c --reedit-message", "--fixup", "--squash"),
		with(word, "--cleanup"), may(argv.OneOf("no", "normal", "all"), "-u --untracked-files"), pathspecFlags, signing,
		edits("give the message with -m or -F", "-e --edit"), templateFlag, answers, bare("--interactive", "~--ahead-behind"))},
	&command{name: "branch", tail: lastIsHead, grammar: grammar(listFlags,
		bare("-l --list", "-a --all", "-r --remote --remotes", "-v --verbose", "-q --quiet", "--show-current", "-d --delete", "-D", "-m --move", "-M", "-c --copy", "-C", "-f --force", "--no-track",
			"--unset-upstream", "--create-reflog", "--no-abbrev", "--omit-empty"),
		may(count, "--abbrev"), may(argv.OneOf("direct", "inherit"), "-t --track"), with(rev, "-u --set-upstream-to"),
		edits("set branch.NAME.description with git config", "--edit-description"), recursing),
		then: readsWhen(func(l *argv.Line) bool {
			return len(l.Operands()) == 0 && !anyOf(l, "--set-upstream-to", "--unset-upstream", "--edit-description") || anyOf(l, "--list", "--show-current")
		})},
	&command{name: "tag", tail: lastIsHead, grammar: grammar(listFlags,
		bare("-l --list", "-a --annotate", "-f --force", "-d --delete", "--create-reflog", "--omit-empty", "--no-sign"), with(text, "-m --message", "--trailer"), with(input, "-F --file"),
		with(word, "--cleanup"), may(count, "-n"), edits("give the message with -m or -F", "-e --edit"), bare("-s --sign"), never("signs with another key than the operator's", "use -s", "-u --local-user"), bare("-v "+verifyTag)),
		then: both(both(trailers, tagMessage), readsWhen(func(l *argv.Line) bool {
			return anyOf(l, "--list", "-n", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at") || len(l.Operands()) == 0 && !l.Has("--delete")
		}))},
	&command{name: "merge", grammar: grammar(mergeFlags, bare("-q --quiet", "-v --verbose", "~--progress", "~--rerere-autoupdate", "~--overwrite-ignore", "--abort", "--continue", "--quit"),
		with(text, "-m --message", "--into-name"), with(input, "-F --file")), operand: rev, then: both(oneBranch, goesOn)},
	&command{name: "rebase", operand: rev, most: 2, then: both(sequence, goesOn), grammar: grammar(
		bare("--keep-base", "--continue", "--skip", "--abort", "--quit", "-i --interactive", "-f --force-rebase", "--no-ff", "--ff", "~--fork-point", "--ignore-whitespace",
			"--committer-date-is-author-date", "--ignore-date", "--reset-author-date", "~--signoff", "-m --merge", "--apply", "~--autostash", "~--autosquash", "--root", "--stat", "-n --no-stat",
			"~--verify", "-q --quiet", "-v --verbose", "~--keep-empty", "~--reapply-cherry-picks", "~--update-refs", "--allow-empty-message", "~--rerere-autoupdate", "--no-rebase-merges"),
		with(rev, "--onto"), may(argv.OneOf("rebase-cousins", "no-rebase-cousins"), "-r --rebase-merges"), with(argv.OneOf("nowarn", "warn", "fix"), "--whitespace"),
		with(argv.OneOf("drop", "keep", "ask", "stop"), "--empty"), with(strategy, "-s --strategy"), with(strategyOption, "-X --strategy-option"), signing,
		never(runs, "run it yourself after the rebase", "-x --exec"), never("is about --exec", "leave it out", "--reschedule-failed-exec"), bare("--no-reschedule-failed-exec"),
		edits("abort, and rebase again", "--edit-todo"), never("shows a patch of any kind", "use git show REBASE_HEAD", "--show-current-patch"))},
	&command{name: "cherry-pick", operand: rev, then: goesOn, grammar: grammar(sequencerFlags, bare("-x", "--allow-empty", "--allow-empty-message", "--keep-redundant-commits"),
		with(argv.OneOf("drop", "keep", "stop"), "--empty"))},
	&command{name: "revert", operand: rev, then: goesOn, grammar: grammar(sequencerFlags, bare("--reference"))},

	// Other repositories.
	&command{name: "init", again: true, most: 1, then: pathOperands, force: []string{templates}, grammar: grammar(bare("-q --quiet", "--bare"), with(rev, "-b --initial-branch"),
		with(argv.OneOf("sha1", "sha256"), "--object-format"),
		with(noTemplate, "--template"), never("puts the repository elsewhere", "leave it out", "--separate-git-dir"),
		never("changes who may write", "leave it out", "--shared"))},
	&command{name: "clone", most: 2, then: clone, force: []string{templates}, grammar: grammar(
		bare("-q --quiet", "-v --verbose", "~--progress", "-n --no-checkout", "--bare", "--mirror", "--single-branch", "--no-single-branch", "--no-tags", "-l --local", "--no-hardlinks", "--sparse",
			"~--reject-shallow", "-4 --ipv4", "-6 --ipv6", "--no-local", noRecurse),
		with(rev, "-o --origin", "-b --branch", "--shallow-exclude"), with(count, "--depth", "-j --jobs"), with(text, "--shallow-since"),
		with(setting, "-c --config"),
		with(noTemplate, "--template"), never("puts the repository elsewhere", "leave it out", "--separate-git-dir"),
		never("names the program that runs on the other side", "leave it out", "-u --upload-pack"),
		never("borrows the objects of another repository", "leave it out", "-s --shared", "--reference", "--reference-if-able", "--dissociate"),
		with(word, "--filter"), never("leaves objects out that later calls would have to fetch", "use --depth", "--also-filter-submodules"),
		never("fetches from a place that the server names", "leave it out", "--bundle-uri"),
		never("sends a string of any kind to the server", "leave it out", "--server-option"),
		may(text, "--recursive "+recurseFlag), bare("~--remote-submodules", "~--shallow-submodules"))},
	&command{name: "fetch", again: true, then: fetch, grammar: grammar(networkFlags, fetchFlags, bare("~--all", "-m --multiple", "-u "+updateHead),
		never("reads names from input", "name them", "--stdin"))},
	&command{name: "pull", then: pull, grammar: grammar(networkFlags, without(fetchFlags, "-n"), mergeFlags, may(argv.OneOf("true", "false", "merges"), "-r ~--rebase"), bare("~--all"))},
	&command{name: "push", then: push, grammar: grammar(networkFlags,
		bare("--all", "--branches", "--tags", "--follow-tags", "--no-follow-tags", "~--atomic", "-n --dry-run", "--porcelain", "-u --set-upstream", "~--thin", "~--verify", "--no-signed", "-f ~--force", "~--force-if-includes"),
		may(rev, "~--force-with-lease"),
		with(text, "-o --push-option"), with(argv.OneOf("no"), "--recurse-submodules"), bare("--no-recurse-submodules"),
		never("deletes branches on the other side", "leave it out", "-d --delete", "--prune", "--mirror"),
		never(signs, "leave it out", "--signed"), never("names the other side in another way", "name it as the first argument", "--repo"))},
	remoteCommand,
	lfsCommand,
	configCommand,
	&command{name: "worktree", grammar: grammar(), most: -1, reads: true, sub: byName(
		&command{name: "worktree list", reads: true, most: -1, grammar: grammar(bare("--porcelain", "-z", "-v --verbose"), with(word, "--expire"))},
		&command{name: "worktree add", most: 2, then: worktreeAdd, grammar: grammar(bare("-f --force", "-d --detach", "--checkout", "--no-checkout", "-q --quiet", "~--guess-remote", "~--track", "--lock", "--orphan"), with(rev, "-b", "-B"), with(word, "--reason"))},
		&command{name: "worktree lock", most: 1, then: pathOperands, grammar: grammar(with(word, "--reason"))},
		&command{name: "worktree unlock", most: 1, then: pathOperands, grammar: grammar()},
		&command{name: "worktree move", most: 2, then: pathOperands, grammar: grammar(bare("-f --force"))},
		&command{name: "worktree remove", most: 1, then: pathOperands, grammar: grammar(bare("-f --force"))},
		&command{name: "worktree prune", again: true, most: -1, grammar: grammar(bare("-n --dry-run", "-v --verbose"), with(word, "--expire"))})},

	// Patches, archives, single objects, and parts of repositories.
	applyCommand, amCommand, formatPatchCommand, archiveCommand, hashObjectCommand, fsckCommand, notesCommand, sparseCommand, bisectCommand, submoduleCommand,
	&command{name: "help", reads: true, most: -1, grammar: grammar()},

	// Known, and refused.
	&command{name: "filter-branch", refuse: runs, instead: "rewrite with git rebase"},
	&command{name: "difftool", refuse: runs, instead: "use git diff"},
	&command{name: "mergetool", refuse: runs, instead: "edit the files, then git add them"},
	&command{name: "send-email", refuse: runs, instead: "push the branch"},
	&command{name: "instaweb", refuse: "starts a server", instead: "use git log and git show"},
	&command{name: "daemon", refuse: "starts a server", instead: "push to a remote"},
	&command{name: "credential", refuse: "asks for passwords", instead: "the host adds credentials where they are needed"},
	&command{name: "gui", refuse: "needs a screen", instead: "use git status"},
	&command{name: "replace", refuse: "changes what objects mean", instead: "use git rebase"},
	&command{name: "hook", refuse: runs, instead: "run the hook itself"},
	&command{name: "request-pull", refuse: "is a script, and no shell runs here", instead: "git log --oneline BASE..HEAD, git diff --stat BASE...HEAD"},
	&command{name: "fast-import", refuse: "reads and writes files that its input names", instead: "use git am, or git bundle unbundle"},
	&command{name: "repack", refuse: "can throw away what could still be recovered", instead: "git gc"},
	&command{name: "prune", refuse: "can throw away what could still be recovered", instead: "git gc"},
	&command{name: "rerere", refuse: "works on files that the repository names", instead: "git -c rerere.enabled=true merge; what it recorded is used by itself"},
	&command{name: "maintenance", refuse: "can start programs at any time", instead: "leave it to git itself"},
}, plumbing...)...)

var stashCommand = func() *command {
	pushFlags := join(bare("-k ~--keep-index", "-S --staged", "-u --include-untracked", "-a --all", "-q --quiet"), answers)
	message := with(text, "-m --message")
	pick := grammar(bare("--index", "-q --quiet"))
	return &command{name: "stash", grammar: grammar(pushFlags, message), most: -1, sub: byName(
		&command{name: "stash push", paths: true, grammar: grammar(pushFlags, message, pathspecFlags)},
		&command{name: "stash save", grammar: grammar(pushFlags)},
		&command{name: "stash list", reads: true, force: plainDiff, grammar: numbered(revFlags, logFlags, diffFlags)},
		&command{name: "stash show", reads: true, force: plainDiff, most: 1, operand: rev, grammar: numbered(diffFlags, bare("--include-untracked", "--only-untracked")),
			then: func(r *request) error {
				// Any flag, ours too, turns off the --stat that git shows by itself.
				if len(r.line.Flags()) == 0 {
					r.flags = append(r.flags, "--stat")
				}
				return nil
			}},
		&command{name: "stash pop", most: 1, operand: rev, grammar: pick},
		&command{name: "stash apply", most: 1, operand: rev, grammar: pick},
		&command{name: "stash drop", most: 1, operand: rev, grammar: grammar(bare("-q --quiet"))},
		&command{name: "stash create", grammar: grammar()},
		&command{name: "stash store", most: 1, operand: rev, grammar: grammar(message, bare("-q --quiet"))},
		&command{name: "stash clear", again: true, most: -1, grammar: grammar()},
		&command{name: "stash branch", most: 2, operand: rev, grammar: grammar()})}
}()

func byName(list ...*command) map[string]*command {
	m := make(map[string]*command)
	for _, c := range list {
		words := strings.Fields(c.name)
		m[words[len(words)-1]] = c
	}
	return m
}

func sortedNames(m map[string]*command) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name].refuse == "" {
			out = append(out, name)
		}
	}
	return out
}

func quote(s string) string {
	const most = 120
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}
