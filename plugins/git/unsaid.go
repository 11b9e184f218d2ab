package main

import (
	"slices"
	"strings"

	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// What git would do on a developer's machine and does not do here is said, or
// refused where the result would be another one: nothing is skipped in silence.

// note has a line said on the standard error before git runs.
func (r *request) note(line string) { r.notes = append(r.notes, line) }

// callback reports whether the caller runs its own programs of a kind.
func (r *request) callback(kind string) bool {
	switch {
	case kind == kindEditor && r.says("core.editor"), kind == kindSequenceEditor && r.says("sequence.editor"), kind == kindHooks && r.says("core.hooksPath"):
		return false // The call itself says that none shall run.
	}
	return r.call.Callbacks != nil && slices.Contains(r.call.Callbacks.Kinds, kind)
}

// shim has the caller run the program of a kind where git starts the file that it
// answers.
func (r *request) shim(kind string) string {
	c := abi.Callback{Kind: kind, Name: kind}
	if !slices.Contains(r.callbacks, c) {
		r.callbacks = append(r.callbacks, c)
	}
	return r.call.Callbacks.Folder + "/" + kind
}

// The kinds of programs of a caller.
const (
	kindEditor         = "editor"
	kindSequenceEditor = "sequence-editor"
	kindPager          = "pager"
	kindHooks          = "hooks"
)

// edits reports whether git may open an editor for a text in this call.
func (r *request) edits() bool {
	first, _, _ := strings.Cut(r.cmd.name, " ")
	l := r.line
	switch first {
	case "commit":
		return l.Has("--edit") || l.Has("--patch") || l.Has("--interactive") || !anyOf(l, "--message", "--file", "--reuse-message", "--no-edit", "--dry-run")
	case "config":
		return l.Has("--edit")
	case "tag":
		return l.Has("--edit") || l.Has("--annotate") && !anyOf(l, "--message", "--file", "--delete", "--list")
	case "add", "am", "branch", "checkout", "cherry-pick", "merge", "notes", "pull", "rebase", "reset", "restore", "revert", "stash":
		return r.mutating
	}
	return false
}

// paged are the subcommands whose output git gives to a pager.
var paged = []string{"blame", "branch", "config", "diff", "grep", "help", "log", "range-diff", "reflog", "shortlog", "show", "stash", "tag", "whatchanged"}

// paging reports whether git may open a pager in this call.
func (r *request) paging() bool {
	first, _, _ := strings.Cut(r.cmd.name, " ")
	return r.callback(kindPager) && !r.noPager && !r.mutating && (r.paginate || slices.Contains(paged, first))
}

// opens refuses a flag that has git open an editor where there is none.
func (r *request) opens() error {
	for _, it := range r.line.Items {
		if !editing(it.Flag) || it.Negated {
			continue
		}
		names, kind := messageEditors, kindEditor
		if it.Name == "--edit-todo" {
			names, kind = sequenceEditors, kindSequenceEditor
		}
		if _, idle := r.editor(names); !idle && !r.callback(kind) {
			return refusal("flag.refused", it.Name, "flag "+quote(it.Name)+" "+noEditor, it.Flag.Instead)
		}
	}
	return nil
}

// editors are the variables by which a caller names an editor, those of the
// list of a rebase and those of messages. git reads the first that is set.
var (
	messageEditors  = []string{"GIT_EDITOR", "VISUAL", "EDITOR"}
	sequenceEditors = append([]string{"GIT_SEQUENCE_EDITOR"}, messageEditors...)
)

// editor answers which of the variables names an editor for this call, and
// whether that editor is one that changes nothing, which is what runs here.
//
// It sees the variables that tool.json admits and the wrapper sends. Names that
// a wrapper merely reports as set (environment_seen) belong here too.
func (r *request) editor(names []string) (name string, idle bool) {
	for _, name := range names {
		if v := r.call.Env[name]; v != "" {
			return name, slices.Contains(idleEditors, v)
		}
		if name == "GIT_SEQUENCE_EDITOR" && r.says("sequence.editor") || name == "GIT_EDITOR" && r.says("core.editor") {
			return "", true
		}
	}
	return "", false
}

// has reports whether the caller has the variable, passed on or not.
func (r *request) has(name string) bool {
	return r.call.Env[name] != "" || slices.Contains(r.call.EnvSeen, name)
}

// kept refuses a call whose caller names an editor that would have changed the
// message, and says otherwise that the message is kept.
func (r *request) kept(what string) error {
	name, idle := r.editor(messageEditors)
	switch {
	case r.callback(kindEditor):
	case idle:
	case name != "":
		return refusal("editor", name, "variable "+name+" names an editor, and none runs here, so that "+what+" would stay as it is", "give the message with -m or -F, or keep it with --no-edit")
	default:
		r.note("no editor runs here: " + what + " is kept; to change it, give it with -m or -F")
	}
	return nil
}

// commitMessage is for commit, which opens an editor where nothing says what
// the message is.
func commitMessage(r *request) error {
	l := r.line
	if anyOf(l, "--dry-run", "--short", "--porcelain", "--long", "--null") {
		return nil
	}
	given := l.Has("--message") || l.Has("--file") || l.Has("--reuse-message") || slices.ContainsFunc(l.Items, func(it argv.Item) bool { return it.Name == "--no-edit" })
	fixup, isFixup := l.Get("--fixup")
	amends := strings.HasPrefix(fixup, "amend:") || strings.HasPrefix(fixup, "reword:")
	switch {
	case given || isFixup && !amends:
		return nil
	case l.Has("--amend"), l.Has("--reedit-message"), l.Has("--squash"), amends:
		return r.kept("the message")
	}
	if _, idle := r.editor(messageEditors); idle || r.callback(kindEditor) {
		return nil
	}
	return refusal("editor", "", "git commit without a message opens an editor, and there is none here", "give the message with -m MESSAGE or -F FILE (-F - reads it from input), or take the one that a merge prepared with --no-edit")
}

func tagMessage(r *request) error {
	l := r.line
	if !r.callback(kindEditor) && l.Has("--annotate") && !anyOf(l, "--message", "--file", "--delete", "--list") {
		if _, idle := r.editor(messageEditors); !idle {
			return refusal("editor", "", "git tag -a without a message opens an editor, and there is none here", "give the message with -m MESSAGE or -F FILE")
		}
	}
	return nil
}

// goesOn is for operations that were stopped by a conflict: git opens an editor
// for the message of the commit that they then make.
func goesOn(r *request) error {
	if r.line.Has("--continue") && !r.callback(kindEditor) {
		r.note("no editor runs here: messages are kept; git commit --amend -m changes the last one")
	}
	return nil
}

// sequence is for rebase -i, whose list of commits somebody is to edit. A list
// that nobody edits makes a rebase that says it succeeded, and did nothing of
// what was meant.
func sequence(r *request) error {
	if !r.line.Has("--interactive") {
		return nil
	}
	if v, ok := r.setting("sequence.editor"); ok && !slices.Contains(idleEditors, v) && !r.has("GIT_SEQUENCE_EDITOR") {
		return refusal("editor", "sequence.editor", "sequence.editor of the repository names an editor for the list of commits, which does not run here, so that nothing of what it does would be done", "name it with GIT_SEQUENCE_EDITOR, in your environment")
	}
	if r.callback(kindSequenceEditor) {
		if _, idle := r.editor(messageEditors); !idle && !r.callback(kindEditor) {
			r.note("no editor for messages is named (GIT_EDITOR): messages are kept")
		}
		return nil
	}
	name, idle := r.editor(sequenceEditors)
	if idle {
		return nil
	}
	const instead = "mark commits with git commit --fixup COMMIT or --squash COMMIT, then git rebase -i --autosquash; or git reset --soft and commit again"
	if name != "" {
		return refusal("editor", name, "variable "+name+" names an editor for the list of commits, and none runs here, so that nothing of what it does would be done", instead)
	}
	squash := r.line.Has("--autosquash")
	if !slices.ContainsFunc(r.line.Items, func(it argv.Item) bool { return it.Name == "--autosquash" }) {
		v, _ := r.setting("rebase.autosquash")
		squash = isTrue(v)
	}
	if !squash {
		return refusal("editor", "--interactive", `flag "--interactive" opens an editor for the list of commits, and there is none here`, instead)
	}
	r.note("no editor runs here: the list of commits is as --autosquash makes it, and messages are kept")
	return nil
}

func isTrue(v string) bool {
	return slices.Contains([]string{"true", "yes", "on", "1"}, strings.ToLower(v))
}

// hooksOf are the hooks that git would run in the repository for a subcommand.
// A flag after a colon is one that has git leave the hook out as well.
var hooksOf = map[string]string{
	"am":          "applypatch-msg:no-verify pre-applypatch:no-verify post-applypatch",
	"checkout":    "post-checkout",
	"cherry-pick": "prepare-commit-msg post-commit",
	"clone":       "",
	"commit":      "pre-commit:no-verify prepare-commit-msg commit-msg:no-verify post-commit",
	"merge":       "pre-merge-commit:no-verify prepare-commit-msg commit-msg:no-verify post-merge",
	"pull":        "pre-merge-commit:no-verify prepare-commit-msg commit-msg:no-verify post-merge pre-rebase:no-verify",
	"push":        "pre-push:no-verify",
	"rebase":      "pre-rebase:no-verify post-checkout prepare-commit-msg post-commit post-rewrite",
	"revert":      "prepare-commit-msg post-commit",
	"switch":      "post-checkout",
	"worktree":    "post-checkout",
}

// checking are the hooks that can refuse what git is about to do.
var checking = []string{"applypatch-msg", "commit-msg", "pre-applypatch", "pre-commit", "pre-merge-commit", "pre-push", "pre-rebase", "prepare-commit-msg"}

// receiving are those that a repository runs when it is pushed to.
var receiving = []string{"pre-receive", "update", "proc-receive", "push-to-checkout", "reference-transaction", "post-receive", "post-update"}

// checkHooks says which hooks git would have run, and refuses where the operator
// wants no call that goes past one that checks.
func (r *request) checkHooks() error {
	if len(r.repo.hooks)+len(r.repo.remoteHooks) == 0 || !r.mutating {
		return nil
	}
	// git-lfs has the hook of a push, and with it the folder of them all.
	byCaller := r.callback(kindHooks) && r.repo.hooksDir != "" && !r.pushesLFS()
	first, _, _ := strings.Cut(r.cmd.name, " ")
	if first == "bisect" && (slices.Contains(r.repo.hooks, "reference-transaction") || slices.Contains(r.repo.hooks, "hooks/reference-transaction")) && !r.guards.off(checkRepo) {
		// It does not read core.hooksPath, and would run this one.
		return refusal("hook", "reference-transaction", "the repository has a hook reference-transaction, which git bisect runs whatever it is told, and toold runs no program of a repository", "move that hook out of .git/hooks")
	}
	if r.says("core.hooksPath") {
		return nil // The call itself says that none shall run.
	}
	var skipped []string
	expect := strings.Fields(hooksOf[first])
	if r.line.Has("--amend") {
		expect = append(expect, "post-rewrite")
	}
	if first != "config" && first != "remote" {
		expect = append(expect, "reference-transaction")
		if byCaller {
			expect = append(expect, "post-index-change")
			if first == "rebase" {
				// A commit whose message is edited is made as by git commit.
				expect = append(expect, "pre-commit", "commit-msg")
			}
		}
	}
	for _, hook := range expect {
		name, flag, optional := strings.Cut(hook, ":")
		if optional && r.leavesOut(first, "--"+flag) {
			continue
		}
		if slices.Contains(r.repo.hooks, name) {
			skipped = append(skipped, name)
		}
	}
	if first == "push" && r.needsShell() {
		for _, name := range receiving {
			if slices.Contains(r.repo.remoteHooks, name) {
				r.note("hook " + name + " of the remote was not run: toold runs no program of a repository")
			}
		}
	}
	if byCaller {
		if len(skipped) == 0 {
			return nil
		}
		for _, name := range r.repo.hooks {
			if !strings.Contains(name, "/") && !slices.Contains(receiving, name) || name == "reference-transaction" {
				r.callbacks = append(r.callbacks, abi.Callback{Kind: kindHooks, Name: name, Path: r.repo.hooksDir + "/" + name})
			}
		}
		return nil
	}
	for _, name := range skipped {
		if r.refuseHooks && slices.Contains(checking, name) {
			return refusal("hook", name, "the repository has a hook "+name+", and toold runs no program of a repository", "do what the hook checks by other means, and ask the operator (config hooks of the tool git)")
		}
		r.note("hook " + name + " was not run: toold runs no program of a repository")
	}
	return nil
}

// leavesOut reports whether the call has git leave hooks out by itself, by
// --no-verify in any of its spellings.
func (r *request) leavesOut(first, flag string) bool {
	out := false
	for _, it := range r.line.Items {
		switch {
		case it.Flag == nil:
		case it.Name == flag:
			out = true
		case it.Name == "--verify":
			out = it.Negated
		}
	}
	return out
}

// setAside says what the repository's own configuration asks for and does not get in this
// call: what is forced counts more than it.
func (r *request) setAside() {
	if r.helps || r.lists || r.repo.err != "" {
		return
	}
	first, _, _ := strings.Cut(r.cmd.name, " ")
	for _, a := range asides {
		if !slices.Contains(a.commands, first) || r.says(a.key) || slices.ContainsFunc(r.line.Items, func(it argv.Item) bool { return it.Flag != nil && it.Name == a.flag }) {
			continue
		}
		if a.key == "core.editor" && (!r.callback(kindEditor) || !r.edits() || r.has("GIT_EDITOR")) {
			continue // No editor is opened, it was said that there is none, or git asks the variable first.
		}
		if v, ok := r.repo.get(a.key); ok && !slices.Contains(a.same, strings.ToLower(v)) {
			r.note(a.name + " is set, and " + a.text)
		}
	}
	if len(r.repo.submodules) == 0 {
		return
	}
	switch {
	case first == "fetch" || first == "pull":
		if v, _ := r.setting("fetch.recursesubmodules"); r.recurses || !slices.Contains(nos, v) && !r.line.Has(noRecurse) {
			r.note("submodules are not fetched with it: git submodule update fetches what they need")
		}
	case r.looksIntoSubmodules(first):
		r.note("what has changed within submodules is not looked into: git -C SUBMODULE status shows it")
	}
}

// looksIntoSubmodules reports whether git would look into submodules for what has changed
// there and is not committed.
func (r *request) looksIntoSubmodules(first string) bool {
	l := r.line
	if l.Has("--ignore-submodules") || r.says("diff.ignoreSubmodules") {
		return false
	}
	switch first {
	case "status", "diff-files":
		return true
	case "diff":
		// Two revisions are compared with one another, and the index with one.
		ops := 0
		for _, it := range l.Items {
			if it.Flag == nil && !it.Dashed {
				if strings.Contains(it.Value, "..") && !strings.Contains(it.Value, "/..") && !strings.HasPrefix(it.Value, "../") {
					return false
				}
				ops++
			}
		}
		return ops < 2 && !anyOf(l, "--cached", "--staged", "--merge-base")
	case "diff-index":
		return !l.Has("--cached")
	case "describe":
		return anyOf(l, "--dirty", "--broken")
	}
	return false
}

// asides are variables of a repository that are forced to something else, for the
// subcommands that would have honoured them.
var asides = []struct {
	key, name string
	same      []string // values that are as good as what is forced
	flag      string   // by which the call says itself what it wants
	commands  []string
	text      string
}{
	{"submodule.recurse", "submodule.recurse", nos, "--recurse-submodules", []string{"checkout", "switch", "reset", "restore", "read-tree", "grep", "pull", "branch"}, "this call leaves submodules as they are: git submodule update, or git -C SUBMODULE"},
	{"submodule.propagatebranches", "submodule.propagateBranches", nos, "", []string{"branch"}, "no branches are made in submodules: git -C SUBMODULE branch"},
	{"push.recursesubmodules", "push.recurseSubmodules", []string{"no"}, "--recurse-submodules", []string{"push"}, "submodules are neither looked at nor pushed: git -C SUBMODULE push first"},
	{"diff.submodule", "diff.submodule", []string{"short"}, "--submodule", []string{"diff", "show", "log", "diff-tree", "diff-index", "diff-files", "stash"}, "submodules are shown as with short: --submodule=log shows their commits"},
	{"diff.ignoresubmodules", "diff.ignoreSubmodules", []string{"dirty"}, "--ignore-submodules", []string{"status", "diff", "diff-files", "diff-index", "log", "show"}, "dirty counts: give --ignore-submodules=all for that"},
	{"status.submodulesummary", "status.submoduleSummary", nos, "", []string{"status"}, "there is no summary of submodules: git diff --submodule=log"},
	{"push.gpgsign", "push.gpgSign", nos, "", []string{"push"}, "nothing is signed in a push"},
	{"core.editor", "core.editor", idleEditors, "", []string{"commit", "merge", "rebase", "cherry-pick", "revert", "tag", "notes"}, "it is not followed: GIT_EDITOR is"},
}
