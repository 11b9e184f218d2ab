package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/pdk/abi"
)

// What repositories of FuzzRepository are made of. {RUN} is a script, a line of
// shell or a program of git's.
var (
	fuzzKeys = []string{
		"core.fsmonitor", "core.hooksPath", "core.editor", "core.pager", "core.sshCommand", "core.askPass", "core.gitProxy", "core.alternateRefsCommand", "core.worktree", "core.attributesFile", "core.excludesFile",
		"core.commentChar", "core.bare", "sequence.editor", "filter.N.clean", "filter.N.smudge", "filter.N.process", "filter.N.required", "diff.external", "diff.N.command", "diff.N.textconv", "merge.N.driver", "merge.default",
		"trailer.N.cmd", "trailer.N.command", "trailer.N.key", "gpg.program", "gpg.format", "gpg.ssh.defaultKeyCommand", "gpg.ssh.program", "commit.gpgSign", "alias.status", "alias.N", "pager.log", "interactive.diffFilter",
		"remote.origin.uploadpack", "remote.origin.receivepack", "remote.origin.vcs", "remote.origin.push", "remote.origin.mirror", "remote.origin.pushurl", "remote.origin.url", "remote.N.url", "remote.N.fetch",
		"remotes.origin", "remote.pushDefault", "branch.main.remote", "branch.main.merge", "branch.main.mergeOptions", "branch.main.pushRemote", "url.N.insteadOf", "push.default", "pull.twohead", "pull.octopus", "pull.rebase",
		"include.path", "includeIf.onbranch:main.path", "protocol.allow", "protocol.ext.allow", "credential.helper", "http.proxy", "submodule.N.update", "submodule.recurse", "diff.submodule", "status.submoduleSummary",
		"fetch.fsck.skipList", "fetch.fsckObjects", "receive.fsck.skipList", "blame.ignoreRevsFile", "mailmap.file", "commit.template", "extensions.partialClone", "extensions.worktreeConfig", "rerere.enabled", "log.showSignature",
		"tar.tgz.command", "tar.N.command", "format.outputDirectory", "format.signatureFile", "submodule.N.url", "add.interactive.useBuiltin", "man.N.cmd", "core.notesRef", "notes.mergeStrategy", "color.ui",
		"format.pretty", "gc.recentObjectsHook", "hook.N.command", "hook.N.event", "uploadpack.packObjectsHook", "maintenance.auto", "init.templateDir", "notes.rewriteRef", "rebase.autoSquash", "merge.verifySignatures",
	}
	fuzzValues = []string{"{RUN}", "{RUN}", "{RUN}", "{RUN}", "true", "false", "x", "N", "origin", "main", "{OUT}", "{OUT}/secret.txt", "{OUT}/victim", "{WS}/remote.git", "{WS}/lead", "../lead", "ext::{RUN}", "+refs/heads/*:refs/heads/*",
		":refs/heads/feature", "--strategy=x/git", "x/git", "refs/heads/main", "-S", "%G?", "ssh", "inside", "!{RUN}", "~/x", "\x01", ""}
	fuzzNames = []string{"x", "y", "a.b", "-x", "x y", "ü", "x/git", "ext::x", "{WS}/remote.git", "..", "N", "origin"}
	fuzzFiles = []string{
		".git/config", ".git/config", ".git/config.worktree", ".git/inside", ".git/info/attributes", ".git/info/exclude", ".git/info/sparse-checkout", ".git/info/grafts", ".git/hooks/pre-commit", ".git/hooks/post-checkout",
		".git/hooks/pre-push", ".git/hooks/reference-transaction", ".git/rebase-merge/strategy", ".git/rebase-merge/strategy_opts", ".git/rebase-merge/git-rebase-todo", ".git/rebase-merge/gpg_sign_opt", ".git/rebase-merge/done",
		".git/rebase-apply/apply-opt", ".git/rebase-apply/strategy", ".git/rebase-apply/0001", ".git/sequencer/opts", ".git/sequencer/todo", ".git/remotes/origin", ".git/remotes/x", ".git/branches/x", ".git/MERGE_MSG", ".git/MERGE_HEAD",
		".git/MERGE_RR", ".git/BISECT_START", ".git/BISECT_TERMS", ".git/BISECT_NAMES", ".git/BISECT_LOG", ".gitmodules", "../p", "../m", ".git/HEAD", ".git/commondir", ".git/packed-refs", ".git/shallow", ".git/objects/info/alternates", ".git/refs/heads/x", ".git/worktrees/w/gitdir", ".git/modules/m/config", ".git/modules/m/HEAD",
		".gitattributes", ".gitattributes", ".gitmodules", "sub/.git", "HEAD", "config", "a.txt", "new.txt", "../lead/config", "../lead/HEAD", "../lead/.git", "../remote.git/config", "../remote.git/hooks/update", "../remote.git/objects/info/alternates",
	}
	fuzzTexts = []string{
		"{CONFIG}", "{CONFIG}", "* filter=x diff=x merge=x\n", "* filter=y diff=y merge=y text eol=crlf\n", "#!/bin/sh\n{SH}\n", "x {RUN}\nexec {RUN}\n", "pick feature\nx {RUN}\n", "merge -C feature feature conflict\n", "x/git\n", " --git-dir={WS}/evil.git\n",
		"ort\n", "[options]\n\tstrategy = x/git\n", "URL: ext::{RUN}\nPush: +refs/heads/main\n", "URL: {WS}/remote.git\nPush: :refs/heads/feature\n", "{OUT}/victim/.git\n", "gitdir: {OUT}/victim/.git\n", "gitdir: ../.git\n",
		"{OUT}/victim/.git/objects\n", "ref: refs/heads/main\n", "ref: refs/heads/x\n", "{VICTIM}\n", "'--directory=../../out' '--unsafe-paths'\n", patchOfA, mailOfA, "--- /dev/null\n+++ b/link/new\n@@ -0,0 +1 @@\n+x\n", "[submodule \"sub\"]\npath=sub\nurl=ext::{RUN}\nupdate=!{RUN}\n", "--template={OUT}\n", "0123456789012345678901234567890123456789\t../../out/secret.txt\x00", "changed\n", "",
	}
	fuzzLinks = []string{".git/MERGE_MSG", ".git/objects/ab", ".git/objects/pack/p", ".git/refs/heads/l", ".git/logs/HEAD", ".git/info", ".git/config", ".git/index", ".git/rebase-merge", ".git/rr-cache", "link", "sub", "../lead", "../remote.git/refs/heads/l", "git-merge-x"}
	fuzzTo    = []string{"{OUT}", "{OUT}/secret.txt", "{OUT}/victim", "{OUT}/victim/.git", "{OUT}/new", "/usr/bin", "../remote.git", "nowhere"}
	fuzzLines = append([]string{
		"rebase --continue", "rebase --skip", "rebase --abort", "rebase -i HEAD~1", "cherry-pick --continue", "cherry-pick -s conflict", "revert --no-edit HEAD", "revert --continue", "merge --continue", "merge --abort", "stash push -u", "stash pop",
		"commit -a -v -m x --trailer x=y", "commit --amend --no-edit", "status -v -v", "diff link/secret.txt a.txt", "diff HEAD~1 feature", "log --all -p --format=%H%n%B", "show {VICTIM}", "blame -w a.txt", "grep one", "describe --all", "shortlog -sn", "reflog",
		"push", "push --all", "push --tags origin", "push origin HEAD", "push x main", "fetch --all", "fetch x", "fetch {WS}/lead main", "fetch --multiple origin x", "pull", "pull --rebase", "ls-remote", "ls-remote {WS}/lead", "clone {WS}/lead {WS}/n1", "clone . {WS}/n2",
		"checkout -b y", "switch -", "checkout -f HEAD~1", "restore .", "reset --hard", "clean -fdx", "rm -r .", "mv a.txt b.txt", "add -A", "branch -vv", "branch -d x", "tag -a -m x v1", "worktree add ../w", "worktree prune", "worktree list", "remote -v", "remote show -n x",
		"config --list", "rev-parse HEAD", "rev-list --all", "ls-files -s", "ls-tree HEAD", "cat-file -p HEAD", "for-each-ref", "symbolic-ref HEAD", "count-objects -v", "init", "init {WS}/n3", "x",
		"-C .. status", "-C sub status", "-C ../lead log", "-C link log", "-C .git log", "--git-dir=.git status", "--git-dir=../remote.git log", "--git-dir=../lead --work-tree=. add .", "--work-tree=link checkout -f", "--work-tree=.. status",
		"add -p", "checkout -p", "commit -p -m x", "apply ../p", "apply --cached ../p", "apply -3 ../p", "apply --index --reject ../p", "am ../m", "am -3 ../m", "am --continue", "am --abort", "am --show-current-patch", "format-patch -2", "format-patch --stdout --cover-letter -1",
		"bisect start HEAD HEAD~2", "bisect good", "bisect bad", "bisect skip", "bisect reset", "bisect log", "notes add -f -m x", "notes append -m y", "notes show", "notes --ref=x list", "notes merge x", "notes remove", "archive HEAD", "archive -o ../a.tgz HEAD", "archive -o ../a.x HEAD",
		"archive --worktree-attributes --format=zip HEAD", "fsck", "fsck --lost-found", "hash-object -w a.txt", "hash-object --stdin", "sparse-checkout set sub", "sparse-checkout add x", "sparse-checkout disable", "sparse-checkout list",
		"submodule status", "submodule init", "submodule update", "submodule update --init -N", "submodule sync", "submodule deinit -f --all", "submodule add https://127.0.0.1:1/x n", "help", "help commit", "rebase --help", "push --force-with-lease origin main",
		"diff-tree -p HEAD", "diff-files -p", "range-diff main~1..main main~1..conflict", "whatchanged -p", "annotate a.txt", "show-branch --all", "check-attr -a a.txt", "verify-pack -v .git/objects/pack/p", "patch-id", "interpret-trailers --trailer t=v a.txt", "interpret-trailers --in-place --trailer x=y a.txt", "merge-file a.txt one.txt two.txt", "merge-tree main conflict",
		"write-tree", "read-tree -m -u HEAD~1", "read-tree --reset -u feature", "commit-tree HEAD^{tree} -m x", "update-index --add a.txt", "update-index --really-refresh", "checkout-index -f -a", "update-ref refs/heads/new HEAD", "update-ref -d refs/heads/new", "symbolic-ref HEAD refs/heads/feature", "pack-refs --all", "gc -q", "gc --auto",
		"bundle create ../b --all", "bundle list-heads ../b", "bundle unbundle ../b", "fast-export --all", "remote show x", "remote show origin", "remote update", "remote prune origin", "remote set-head origin -a", "config -f link --list", "config -f .gitmodules submodule.sub.url x", "worktree move ../w ../w2", "worktree lock ../w", "stash create", "add -i", "clean -i", "commit --interactive -m x",
		"submodule set-url sub https://127.0.0.1:1/y", "submodule set-branch -b x sub", "mailinfo ../m1 ../m2", "fmt-merge-msg -F .git/FETCH_HEAD", "cat-file --batch-check --batch-all-objects", "rev-list --objects --all --missing=print", "var GIT_COMMITTER_IDENT",
	}, wholeDay...)
)

// FuzzRepository makes a repository of what the seed chooses, and tries calls
// on it under the policy and the real confinement. With late, the repository
// becomes so after the policy has looked. Nothing of the repository's is
// executed, and nothing is written outside.
func FuzzRepository(f *testing.F) {
	needGit(f)
	if s := confine.Confinement(); s.ABI == 0 {
		f.Skipf("no confinement here: %s", s.Reason)
	}
	for seed := range uint64(4) {
		f.Add(seed, seed%2 == 1)
	}
	m, runner := model(f), newRunner(f)
	f.Fuzz(func(t *testing.T, seed uint64, late bool) {
		b := newBox(t, m, runner)
		random := rand.New(rand.NewPCG(seed, 0))
		pick := func(list []string) string { return list[random.IntN(len(list))] }
		run := pick([]string{"{EVIL}", "{SH}", "{SH}", "git-init"})
		name := func(s string) string { return strings.ReplaceAll(s, "N", pick(fuzzNames)) }
		config := func() string {
			var text strings.Builder
			for range 1 + random.IntN(8) {
				section, rest, _ := strings.Cut(name(pick(fuzzKeys)), ".")
				value := strings.ReplaceAll(name(pick(fuzzValues)), "{RUN}", run)
				if i := strings.LastIndexByte(rest, '.'); i >= 0 {
					section, rest = fmt.Sprintf("%s %q", section, rest[:i]), rest[i+1:]
				}
				fmt.Fprintf(&text, "[%s]\n\t%s = \"%s\"\n", section, rest, value)
			}
			return text.String()
		}
		prepare := func() {
			for range 1 + random.IntN(6) {
				file, text := filepath.Join(b.ws, "repo", pick(fuzzFiles)), pick(fuzzTexts)
				text = b.words.Replace(strings.ReplaceAll(strings.ReplaceAll(text, "{CONFIG}", config()), "{RUN}", run))
				os.MkdirAll(filepath.Dir(file), 0o755)
				flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
				if strings.HasSuffix(file, "config") {
					flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
				}
				if f, err := os.OpenFile(file, flags, 0o755); err == nil {
					f.WriteString(text)
					f.Close()
				}
			}
			for range random.IntN(3) {
				file := filepath.Join(b.ws, "repo", pick(fuzzLinks))
				os.MkdirAll(filepath.Dir(file), 0o755)
				os.Remove(file)
				os.Symlink(b.words.Replace(pick(fuzzTo)), file)
			}
		}
		var lines []string
		for range 12 {
			lines = append(lines, pick(fuzzLines))
		}
		if random.IntN(3) == 0 {
			b.plain("repo", nil, "", "rebase", "-q", pick([]string{"conflict", "feature"}))
		}
		p := testPolicy(nil)
		decide := func(line string) *abi.Decision { return b.ask(p, "repo", nil, b.line(line)...) }
		if !late {
			prepare()
		}
		before, decided := tree(t, b.out), make(map[string]*abi.Decision)
		for _, line := range lines {
			if late {
				decided[line] = decide(line)
			}
		}
		if late {
			prepare()
			// What was written above may have gone through a link.
			before = tree(t, b.out)
		}
		for _, line := range lines {
			d := decided[line]
			if !late {
				d = decide(line)
			}
			if d.Effect != abi.Allow || late && d.Shell && !judges(b.runner) {
				continue
			}
			out, _, err := b.run(d, true, "repo", "", 3*time.Second)
			if harm := b.harm(before, out, !late); harm != "" {
				t.Fatalf("git %s: %s\n%s", line, harm, out)
			}
			if err != nil {
				return // Git can wait for ever for a filter that could not be started.
			}
		}
	})
}
