package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func testPolicy(config map[string]string) *policy {
	return newPolicy(func(key string) (string, bool) { v, ok := config[key]; return v, ok })
}

// ask is what most tests ask with: a repository beneath /ws with remotes of
// all kinds.
func ask(p *policy, args []string, more ...abi.ConfigEntry) *abi.Decision {
	return p.decide(callOf(args, append([]abi.ConfigEntry{
		{Key: "core.bare", Value: "false"},
		{Key: "remote.origin.url", Value: "https://example.com/x.git"},
		{Key: "remote.origin.fetch", Value: "+refs/heads/*:refs/remotes/origin/*"},
		{Key: "remote.shell.url", Value: "git@example.com:x.git"},
		{Key: "remote.disk.url", Value: "/ws/remote.git"},
		{Key: "branch.main.remote", Value: "origin"},
		{Key: "branch.main.merge", Value: "refs/heads/main"},
	}, more...)...))
}

func callOf(args []string, config ...abi.ConfigEntry) *abi.Call {
	return &abi.Call{Tool: "git", Args: args, Cwd: "/ws/repo/sub", Roots: []string{"/ws"}, RepoConfig: &abi.RepoConfig{Entries: config, State: []abi.ConfigEntry{{Key: "HEAD", Value: "ref: refs/heads/main\n"}}}}
}

var originOnly = []abi.ConfigEntry{{Key: "remote.origin.url", Value: "https://example.com/x.git"}, {Key: "branch.main.remote", Value: "origin"}, {Key: "branch.main.merge", Value: "refs/heads/main"}}

// everyday is what must work.
var everyday = []string{
	"--version", "version", "status", "status -sb", "status --porcelain=v2 --branch", "status -uno --ignored", "--no-pager status", "--no-optional-locks status",
	"diff", "diff --cached --stat", "diff HEAD~3..HEAD -- a b", "diff main...feature", "diff -U5 -w --name-only -M90% @{u}", "diff --word-diff=color --color=always HEAD:a HEAD:b", "diff --exit-code --quiet", "diff --diff-filter=ACM --numstat -z",
	"log", "log -1", "log -n 5 --oneline --graph --decorate --all", "log --pretty=format:%h%x09%an%x09%s --date=short", "log --format=%H -n1 -- a/b", "log -p -S foo --since=2.weeks --author=me", "log main..feature", "log -L1,5:a.go", "log --no-merges --first-parent -5 --stat", "log --follow -- x", "log --grep=fix -i",
	"show", "show HEAD", "show --stat HEAD~1", "show HEAD:a/b.txt", "show --format=%B -s HEAD", "show -w --color-words main",
	"reflog", "reflog -5", "reflog show main", "shortlog -sn", "shortlog -sne HEAD", "rev-list --count HEAD", "rev-list --left-right --count main...feature",
	"blame a", "blame -L 10,20 -w -C -- a", "blame -e --date=short HEAD -- a", "grep foo", "grep -n -i -e foo --and -e bar -- src", "grep -l foo HEAD~3", "grep -C3 foo", "grep -3 foo",
	"rev-parse HEAD", "rev-parse --abbrev-ref HEAD", "rev-parse --short=8 HEAD", "rev-parse --show-toplevel", "rev-parse --is-inside-work-tree", "rev-parse --verify -q main^{commit}", "rev-parse --git-dir",
	"ls-files", "ls-files -m -o --exclude-standard", "ls-files -s -- a", "ls-tree -r --name-only HEAD", "describe --tags --always --dirty", "describe --abbrev=0", "cat-file -p HEAD", "cat-file -t HEAD", "merge-base main feature", "merge-base --is-ancestor a b", "for-each-ref --format=%(refname:short) refs/heads", "show-ref --heads", "symbolic-ref --short HEAD", "check-ignore -v a", "count-objects -vH", "name-rev HEAD",
	"add .", "add -A", "add -u", "add -N a", "add --all -- a b", "add -f a", "rm a", "rm -r --cached a", "mv a b", "restore a", "restore --staged a", "restore --source=HEAD~1 -SW a", "reset", "reset --hard HEAD~1", "reset -q HEAD -- a", "reset --soft HEAD^", "clean -fd", "clean -ndx",
	"checkout main", "checkout -b feature", "checkout -b feature origin/main", "checkout -- a", "checkout HEAD~1 -- a", "checkout -", "checkout --detach", "checkout -B x --track origin/x", "checkout --theirs a", "switch main", "switch -c x", "switch -", "switch --detach HEAD~1",
	"stash", "stash -u", "stash push -m wip", "stash push -- a", "stash list", "stash show", "stash show -p stash@{1}", "stash pop", "stash apply --index", "stash drop stash@{0}", "stash clear", "stash branch x",
	"commit -m x", "commit -am x", "commit -F -", "commit -F msg.txt", "commit --amend --no-edit", "commit --amend -m x", "commit --allow-empty -m x -s", "commit -m x -- a b", "commit --fixup HEAD~1", "commit --author=A\u00a0<a@b> -m x", "commit -C HEAD", "commit -q -n -m x", "commit --no-edit", "commit --amend", "commit --squash HEAD~1",
	"branch", "branch -a", "branch -vv", "branch x", "branch x main", "branch -d x", "branch -D x", "branch -m x y", "branch --show-current", "branch --merged", "branch --merged main", "branch --contains HEAD", "branch -u origin/main", "branch --set-upstream-to=origin/main x", "branch -r --sort=-committerdate --format=%(refname)", "branch --list feat*", "branch -f x HEAD~1",
	"tag", "tag v1", "tag -a v1 -m x", "tag -l v*", "tag -n1", "tag -d v1", "tag -f v1 HEAD~1", "tag --contains HEAD", "tag --sort=-v:refname", "tag -F - v1",
	"merge x", "merge --no-ff -m x y", "merge --ff-only origin/main", "merge --abort", "merge --continue", "merge --squash x", "merge -X theirs x", "merge -s ours x",
	"rebase main", "rebase --onto a b c", "rebase --continue", "rebase --abort", "rebase -i --autosquash HEAD~3", "rebase --autostash origin/main", "rebase --skip", "rebase -r main",
	"cherry-pick a", "cherry-pick -x a..b", "cherry-pick --continue", "cherry-pick -n a", "revert HEAD", "revert --no-edit -m 1 HEAD", "revert --abort",
	"init", "init -q x", "init --bare x.git", "init -b main",
	"clone https://example.com/x.git", "clone --depth 1 -b main https://example.com/x.git y", "clone git@example.com:a/b.git", "clone ssh://git@example.com:22/a/b", "clone /ws/remote.git x", "clone ../../remote.git", "clone file:///ws/remote.git", "clone -q --bare /ws/x.git y.git",
	"fetch", "fetch origin", "fetch --all --prune", "fetch -p origin main", "fetch origin main:tmp", "fetch --tags -q shell", "fetch --depth=1 disk", "fetch https://example.com/y.git main", "ls-remote", "ls-remote --heads origin", "ls-remote --tags https://example.com/y.git",
	"pull", "pull --rebase", "pull --ff-only origin main", "pull -q --no-rebase --no-edit shell main", "pull --rebase=merges disk main",
	"push", "push origin main", "push -u origin HEAD", "push origin HEAD:refs/heads/x", "push --tags origin", "push --follow-tags disk main", "push origin a:b c", "push -n origin main", "push origin tag v1", "push shell --set-upstream main",
	"remote", "remote -v", "remote add up https://example.com/u.git", "remote get-url origin", "remote set-url origin git@example.com:z.git", "remote rename a b", "remote remove a", "remote show -n origin",
	"config --get user.name", "config user.name", "config user.name A", "config --local user.email a@b", "config --list", "config --get-regexp remote", "config --unset user.name", "config branch.main.remote origin", "config pull.rebase true", "config lfs.locksverify false",
	"worktree list", "worktree add ../wt main", "worktree remove ../wt", "worktree prune",
	"remote show origin", "remote prune -n origin", "remote update", "remote set-head origin -a", "config alias.lg log\u00a0--graph", "config -f .gitmodules --get-regexp path", "config --blob HEAD:.gitmodules -l", "config -f .gitmodules submodule.x.branch main",
	"diff-tree -r --no-commit-id --name-only HEAD", "diff-tree -p main feature -- a", "diff-files --quiet", "range-diff main feature@{1} feature", "range-diff main~3..main b~3..b", "whatchanged -3", "show-branch main feature", "check-attr -a a", "check-attr text eol -- a b", "check-mailmap A\u00a0<a@b>",
	"check-ref-format --branch x", "verify-pack -v .git/objects/pack/a.idx", "var GIT_AUTHOR_IDENT", "patch-id --stable", "stripspace -s", "column --mode=column --width 80", "fmt-merge-msg -F .git/FETCH_HEAD", "mailinfo m p", "interpret-trailers --parse", "interpret-trailers --trailer a=b m", "merge-file -p a b c",
	"merge-tree --write-tree main feature", "write-tree", "read-tree -m -u HEAD", "commit-tree HEAD^{tree} -p HEAD -m x", "mktree", "update-index --assume-unchanged a", "update-index --chmod=+x a", "update-index --add --cacheinfo 100644 0123456789012345678901234567890123456789 a", "checkout-index -f -- a",
	"update-ref refs/heads/x HEAD", "update-ref -d refs/heads/x HEAD", "update-ref --stdin", "symbolic-ref HEAD refs/heads/x", "pack-refs --all", "gc", "gc --auto", "bundle create ../b main", "bundle verify ../b", "bundle list-heads ../b", "fast-export --all", "annotate a", "worktree lock ../wt", "worktree move ../wt ../wu",
	"rev-list --objects --filter=blob:none --all", "cat-file --batch-check --batch-all-objects", "stash create", "-p log", "add -i", "clean -i", "am -i x", "commit --interactive -m x", "clone -c core.autocrlf=input https://example.com/x.git", "submodule set-url x https://example.com/y", "submodule set-branch -b x y", "notes edit -m x",
	"ls-remote -q --end-of-options origin", "fetch -f --end-of-options origin refs/heads/*:refs/heads/*", "log --no-decorate -n1 --end-of-options v1 --", "cat-file --end-of-options blob v1:go.mod", "tag --end-of-options v1 main", "archive --format=zip --end-of-options v1",
	"show --textconv :a", "diff --textconv", "blame --textconv a", "branch --list --remote origin/main", "init --template= x", "clone --filter=blob:none -q https://example.com/x.git y",
	"fetch --force --update-head-ok https://example.com/x.git +HEAD:refs/remotes/origin/HEAD", "fetch -u origin refs/heads/*:refs/remotes/origin/* +refs/tags/*:refs/tags/*", "submodule update --init --recursive --depth=1", "submodule status --recursive",
	"config --get-color color.diff.new green", "config --get-colorbool color.ui", "-c diff.external= diff", "-c core.useBuiltinFSMonitor=false init x",
	"-c user.name=A -c user.email=a@b commit -m x", "-c color.ui=never log -1", "-C . status", "-C /ws/repo/sub log -1", "-C .. -C sub status",
}

func split(line string) []string {
	if line == "" {
		return nil
	}
	args := strings.Split(line, " ")
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "\u00a0", " ")
	}
	return args
}

func TestEveryday(t *testing.T) {
	p := testPolicy(nil)
	for _, line := range everyday {
		// Without a name any remote may be meant, so there is only one.
		d := p.decide(callOf(split(line), originOnly...))
		if strings.Contains(line, "disk") || strings.Contains(line, "shell") {
			d = ask(p, split(line))
		}
		if d.Effect != abi.Allow {
			t.Errorf("git %s: %s: %s; %s", line, d.Rule, d.Reason, d.Instead)
		}
	}
}

// TestRefused holds what is refused beside the cases of hostiles.
func TestRefused(t *testing.T) {
	protected := map[string]string{"protected": "main, release/*"}
	tests := []struct {
		args   string
		rule   string
		config map[string]string
		repo   []abi.ConfigEntry
	}{
		{args: "push --force origin main", rule: "flag.refused"},
		{args: "push -f", rule: "flag.refused"},
		{args: "push -uf origin main", rule: "flag.refused"},
		{args: "push --force-with-lease=main origin main", rule: "flag.refused"},
		{args: "push --forc origin main", rule: "flag.abbreviated"},
		{args: "push --mirror origin", rule: "flag.refused"},
		{args: "push --delete origin x", rule: "flag.refused"},
		{args: "push -d origin x", rule: "flag.refused"},
		{args: "push --prune origin", rule: "flag.refused"},
		{args: "push origin +main", rule: "push.force"},
		{args: "push origin +main:main", rule: "push.force"},
		{args: "push origin main +HEAD:x", rule: "push.force"},
		{args: "push origin -- +main", rule: "push.force"},
		{args: "push origin :main", rule: "push.delete"},
		{args: "push origin :", rule: "push.refspec"},
		{args: "push origin main:", rule: "push.refspec"},
		{args: "push origin ^main", rule: "push.refspec"},
		{args: "push origin tag +v1", rule: "push.force"},
		{args: "push", rule: "push.force", repo: []abi.ConfigEntry{{Key: "remote.origin.push", Value: "+refs/heads/*"}}},
		{args: "push origin", rule: "push.force", repo: []abi.ConfigEntry{{Key: "remote.origin.push", Value: ":refs/heads/x"}}},
		{args: "push origin", rule: "push.force", repo: []abi.ConfigEntry{{Key: "remote.origin.mirror", Value: "true"}}},
		{args: "log --end-of-options --all", rule: "arg.dash"},
		{args: "push --end-of-options --force origin main", rule: "arg.dash"},
		{args: "fetch -u", rule: "flag.refused"},
		{args: "fetch -u origin main", rule: "flag.refused"},
		{args: "fetch --update-head-ok origin main:refs/heads/main", rule: "flag.refused"},
		{args: "fetch --update-head-ok origin +refs/*:refs/*", rule: "flag.refused"},
		{args: "fetch --update-head-ok origin a:refs/remotes/a b:b", rule: "flag.refused"},
		{args: "config --get-color user.password", rule: "flag.refused"},
		{args: "config --get-colorbool http.extraheader", rule: "flag.refused"},
		{args: "-c diff.external=x diff", rule: "global-flag"},
		{args: "push nowhere main", rule: "remote"},

		{args: "push", rule: "push.protected", config: protected},
		{args: "push origin", rule: "push.protected", config: protected},
		{args: "push --all origin", rule: "push.protected", config: protected},
		{args: "push --follow-tags --tags origin", rule: "push.protected", config: protected},
		{args: "push origin HEAD", rule: "push.protected", config: protected},
		{args: "push origin @", rule: "push.protected", config: protected},
		{args: "push origin main", rule: "push.protected", config: protected},
		{args: "push origin x:main", rule: "push.protected", config: protected},
		{args: "push origin x:refs/heads/main", rule: "push.protected", config: protected},
		{args: "push origin x:heads/main", rule: "push.protected", config: protected},
		{args: "push origin refs/heads/main", rule: "push.protected", config: protected},
		{args: "push origin x:release/1", rule: "push.protected", config: protected},
		{args: "push origin refs/heads/*:refs/heads/*", rule: "push.protected", config: protected},
		{args: "push origin a b main", rule: "push.protected", config: protected},
		{args: "push origin x:", rule: "push.refspec", config: protected},

		{args: "fetch file:///ws/x", rule: "remote", config: map[string]string{"allow_file_remotes": "false"}},
		{args: "clone /ws/x y", rule: "remote", config: map[string]string{"allow_file_remotes": "false"}},
		{args: "fetch https://example.org/x", rule: "remote", config: map[string]string{"hosts": "example.com"}},
		{args: "fetch git@example.org:x", rule: "remote", config: map[string]string{"hosts": "example.com"}},
		{args: "fetch http://example.com/x", rule: "remote"},
		{args: "fetch git://example.com/x", rule: "remote"},
		{args: "fetch ftp://example.com/x", rule: "remote"},
		{args: "fetch git+ssh://example.com/x", rule: "remote"},
		{args: "fetch foo::bar", rule: "remote"},
		{args: "fetch https::x", rule: "remote"},
		{args: "fetch -oProxyCommand=x:y", rule: "flag.refused"},
		{args: "fetch -- -oProxyCommand=x:y", rule: "remote"},
		{args: "fetch ssh://-x/y", rule: "remote"},
		{args: "fetch user@-x:y", rule: "remote"},
		{args: "fetch ~root/x", rule: "remote"},
		{args: "fetch ~/x", rule: "remote"},
		{args: "fetch", rule: "remote", repo: []abi.ConfigEntry{{Key: "remote.disk.url", Value: "/ws/x"}}},
		{args: "fetch", rule: "remote", repo: []abi.ConfigEntry{{Key: "branch.x.remote", Value: "/ws/x"}}},
		{args: "fetch", rule: "remote.outside", repo: []abi.ConfigEntry{{Key: "branch.x.remote", Value: "/etc"}}},
		{args: "fetch origin", rule: "remote", repo: []abi.ConfigEntry{{Key: "url.http://x/.insteadof", Value: "https://example.com/"}}},
		{args: "fetch origin", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "url./ws/.insteadof", Value: "https://elsewhere/"}}},
		{args: "fetch origin", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "http.sslverify", Value: "false"}}},
		{args: "fetch origin", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "http.https://example.com.proxy", Value: "x"}}},
		{args: "fetch origin", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "credential.https://example.com.helper", Value: "x"}}},
		{args: "fetch a b", rule: "remote", repo: nil},
		{args: "pull --all", rule: "flag.refused"},
		{args: "pull origin a b", rule: "operand"},
		{args: "remote show nowhere", rule: "remote"},
		{args: "remote update nowhere", rule: "remote"},
		{args: "remote frob", rule: "subcommand"},
		{args: "remote add x ext::sh", rule: "remote"},
		{args: "remote add x /etc", rule: "remote.outside"},
		{args: "remote add x ../../x", rule: "remote.outside"},
		{args: "remote add --mirror=push x https://example.com/x", rule: "flag.refused"},
		{args: "remote add a=b https://example.com/x", rule: "operand"},
		{args: "remote set-url origin ext::sh", rule: "remote"},

		{args: "", rule: "subcommand"},
		{args: "frobnicate", rule: "subcommand"},
		{args: "co main", rule: "subcommand", repo: []abi.ConfigEntry{{Key: "alias.com", Value: "checkout"}}},
		{args: "stash frob", rule: "subcommand"},
		{args: "stash -i", rule: "flag.unknown"},
		{args: "log -1 --help", rule: "flag.unknown"},
		{args: "commit", rule: "editor"},
		{args: "commit -a", rule: "editor"},
		{args: "commit -m x --edit", rule: "flag.refused"},
		{args: "tag -a v1", rule: "editor"},
		{args: "rebase -i HEAD~3", rule: "editor"},
		{args: "rebase -i --no-autosquash HEAD~3", rule: "editor", repo: []abi.ConfigEntry{{Key: "rebase.autosquash", Value: "true"}}},
		{args: "rebase -i HEAD~3", repo: []abi.ConfigEntry{{Key: "rebase.autosquash", Value: "true"}}},
		{args: "-c rebase.autoSquash=true rebase -i HEAD~3"},
		{args: "pull origin main", rule: "editor", repo: []abi.ConfigEntry{{Key: "pull.rebase", Value: "interactive"}}},
		{args: "pull --rebase origin main", repo: []abi.ConfigEntry{{Key: "pull.rebase", Value: "interactive"}}},
		{args: "notes add HEAD", rule: "editor"},
		{args: "notes --ref=a..b list", rule: "flag.value"},
		{args: "notes --reflog", rule: "flag.unknown"},
		{args: "apply --unsafe-paths x", rule: "flag.refused"},
		{args: "apply --directory=../x y", rule: "flag.value"},
		{args: "apply ../../../etc/passwd", rule: "path.outside"},
		{args: "am ../../../etc/passwd", rule: "path.outside"},
		{args: "commit -e -m x", rule: "flag.refused"},
		{args: "rebase --edit-todo", rule: "flag.refused"},
		{args: "config -e", rule: "flag.refused"},
		{args: "branch --edit-description", rule: "flag.refused"},
		{args: "symbolic-ref refs/heads/x refs/heads/main", rule: "operand"},
		{args: "symbolic-ref HEAD refs/tags/x", rule: "operand"},
		{args: "symbolic-ref -d HEAD", rule: "flag.refused"},
		{args: "update-ref config HEAD", rule: "operand"},
		{args: "var -l", rule: "flag.refused"},
		{args: "var GIT_EDITOR", rule: "operand"},
		{args: "gc --prune=now", rule: "flag.refused"},
		{args: "config alias.x !sh", rule: "config.key"},
		{args: "config alias.x \u00a0!sh", rule: "config.key"},
		{args: "config alias.commit status", rule: "config.key"},
		{args: "config -f .git/config core.pager x", rule: "config.key"},
		{args: "config -f /etc/x --list", rule: "path.outside"},
		{args: "config -f .gitmodules submodule.x.update !sh", rule: "config.key"},
		{args: "config -f a submodule.x.url y", rule: "config.key"},
		{args: "clone -c core.pager=x https://example.com/x", rule: "flag.value"},
		{args: "update-index --cacheinfo 100644 x y", rule: "flag.value"},
		{args: "interpret-trailers /etc/passwd", rule: "path.outside"},
		{args: "submodule set-url x ext::sh", rule: "remote"},
		{args: "format-patch -o /tmp -1", rule: "path.outside"},
		{args: "format-patch --suffix=/x -1", rule: "flag.value"},
		{args: "format-patch --range-diff=x -1", rule: "flag.refused"},
		{args: "format-patch -1", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "format.outputdirectory", Value: "/tmp"}}},
		{args: "format-patch -1", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "format.suffix", Value: "/x"}}},
		{args: "archive --remote=origin HEAD", rule: "flag.refused"},
		{args: "archive --format=x HEAD", rule: "flag.value"},
		{args: "archive HEAD", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "tar.x.command", Value: "x"}}},
		{args: "hash-object --stdin-paths", rule: "flag.refused"},
		{args: "hash-object /etc/passwd", rule: "path.outside"},
		{args: "bisect", rule: "operand"},
		{args: "bisect run make", rule: "subcommand"},
		{args: "bisect start --term-old=x", rule: "flag.refused"},
		{args: "bisect --help", rule: "help"},
		{args: "submodule add ext::sh", rule: "remote"},
		{args: "submodule add /ws/x.git", rule: "remote"},
		{args: "submodule add --name=../x https://example.com/x", rule: "flag.value"},
		{args: "submodule update", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "submodule.x.update", Value: "!x"}}},
		{args: "submodule update", rule: "remote", repo: []abi.ConfigEntry{{Key: "submodule.x.url", Value: "ext::sh"}}},
		{args: "submodule update", rule: "remote", repo: []abi.ConfigEntry{{Key: "submodule.x.url", Value: "/ws/x.git"}}},
		{args: "submodule update", repo: []abi.ConfigEntry{{Key: "submodule.x.url", Value: "git@example.com:x.git"}}},
		{args: "help frob", rule: "subcommand"},
		{args: "help -m commit", rule: "operand"},
		{args: "help filter-branch", rule: "subcommand"},
		{args: "--exec-path", rule: "global-flag"},
		{args: "--git-dir= log", rule: "global-flag"},
		{args: "--git-dir=x log", rule: "repo-config"},
		{args: "-C x status", rule: "repo-config"},
		{args: "x", rule: "alias", repo: []abi.ConfigEntry{{Key: "alias.x", Value: "!ls"}}},
		{args: "x", rule: "alias", repo: []abi.ConfigEntry{{Key: "alias.x", Value: "y"}, {Key: "alias.y", Value: "X"}}},
		{args: "x", rule: "alias", repo: []abi.ConfigEntry{{Key: "alias.x", Value: "log 'a"}}},
		{args: "x", rule: "alias", repo: []abi.ConfigEntry{{Key: "alias.x", Value: "-C . log"}}},
		{args: "x", rule: "alias", repo: []abi.ConfigEntry{{Key: "alias.x", Value: "fetch /ws/x"}}},
		{args: "x", rule: "global-flag", repo: []abi.ConfigEntry{{Key: "alias.x", Value: "-c core.pager=x log"}}},
		{args: "x origin", rule: "flag.refused", repo: []abi.ConfigEntry{{Key: "alias.x", Value: "push --force"}}},
		{args: "-c", rule: "global-flag"},
		{args: "-c user.name=x\u00a0y -c http.proxy=x status", rule: "global-flag"},
		{args: "merge a b", rule: "operand"},
		{args: "merge -s resolve x", rule: "flag.value"},
		{args: "merge -s ../../x x", rule: "flag.value"},
		{args: "merge -X x=../../y z", rule: "flag.value"},
		{args: "rebase --edit-todo", rule: "flag.refused"},
		{args: "branch -- -D", rule: "", repo: nil},
		{args: "log --format=%G?", rule: "flag.value"},
		{args: "log --pretty=format:%GK", rule: "flag.value"},
		{args: "branch --format=%(signature)", rule: "flag.value"},
		{args: "config --list --global", rule: "config.host"},
		{args: "config --global --get http.x.extraHeader", rule: "config.host"},
		{args: "config core.worktree /", rule: "config.key"},
		{args: "config include.path x", rule: "config.key"},
		{args: "config remote.origin.uploadpack x", rule: "config.key"},
		{args: "config branch.x.remote ext::x", rule: "config.key"},
		{args: "config branch.x.mergeoptions x", rule: "config.key"},
		{args: "config hook.x.command y", rule: "config.key"},
		{args: "config safe.directory *", rule: "config.key"},
		{args: "config --add credential.helper x", rule: "config.key"},
		{args: "config a", rule: "", repo: nil},
		{args: "config", rule: "operand"},
		{args: "config edit", rule: ""},
		{args: "status", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "core.frobnicate", Value: "x"}}},
		{args: "status", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "hook.x.command", Value: "x"}}},
		{args: "status", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "frobnicate", Value: "x"}}},
		{args: "status", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "core.excludesfile", Value: "~/x"}}},
		{args: "status", rule: "repo-config", repo: []abi.ConfigEntry{{Key: "core.excludesfile", Value: "../../../etc/x"}}},
	}
	for _, tt := range tests {
		repo := append(slices.Clone(originOnly), tt.repo...)
		d := testPolicy(tt.config).decide(callOf(split(tt.args), repo...))
		switch {
		case tt.rule == "" && d.Effect != abi.Allow:
			t.Errorf("git %s: refused by %s: %s", tt.args, d.Rule, d.Reason)
		case tt.rule != "" && (d.Effect != abi.Deny || d.Rule != tt.rule):
			t.Errorf("git %s: %s by %q (%s), want refused by %q", tt.args, d.Effect, d.Rule, d.Reason, tt.rule)
		case tt.rule != "" && (d.Reason == "" || d.Instead == "" && !slices.Contains([]string{"operand", "flag.value", "global-flag", "remote"}, d.Rule)):
			t.Errorf("git %s: refused without reason or advice: %+v", tt.args, d)
		}
	}
}

// TestHarmlessConfig holds what repositories of all days have in them.
func TestHarmlessConfig(t *testing.T) {
	for _, e := range []abi.ConfigEntry{
		{Key: "core.hooksPath", Value: ".husky"}, {Key: "core.editor", Value: "vim"}, {Key: "core.sshcommand", Value: "ssh -i x"}, {Key: "core.fsmonitor", Value: "true"},
		{Key: "branch.main.merge", Value: "refs/heads/main"}, {Key: "branch.main.vscode-merge-base", Value: "origin/main"}, {Key: "lfs.repositoryformatversion", Value: "0"},
		{Key: "gitflow.branch.master", Value: "main"}, {Key: "user.signingkey", Value: "x"}, {Key: "commit.gpgsign", Value: "true"}, {Key: "gpg.format", Value: "ssh"},
		{Key: "alias.st", Value: "status"}, {Key: "pull.rebase", Value: "true"}, {Key: "submodule.x.url", Value: "https://example.com/y"}, {Key: "submodule.x.active", Value: "true"},
		{Key: "remote.origin.gh-resolved", Value: "base"}, {Key: "extensions.worktreeconfig", Value: "true"}, {Key: "diff.x.xfuncname", Value: "^func"}, {Key: "mergetool.x.cmd", Value: "x"},
		{Key: "pull.twohead", Value: "ort"}, {Key: "core.excludesfile", Value: ".gitignore2"}, {Key: "core.excludesfile", Value: "/ws/x"}, {Key: "url.git@example.com:.insteadof", Value: "https://example.com/"},
		{Key: "url.https://example.com/.insteadof", Value: "gh:"}, {Key: "http.postbuffer", Value: "1"}, {Key: "credential.username", Value: "x"}, {Key: "sendemail.smtpserver", Value: "x"}, {Key: "tar.x.command", Value: "x"},
	} {
		for _, line := range []string{"status", "fetch origin", "push origin main", "commit -m x"} {
			if d := testPolicy(nil).decide(callOf(split(line), append(slices.Clone(originOnly), e)...)); d.Effect != abi.Allow {
				t.Errorf("%s=%s: git %s: %s: %s", e.Key, e.Value, line, d.Rule, d.Reason)
			}
		}
	}
}

// TestClass holds what each call says of itself.
func TestClass(t *testing.T) {
	tests := []struct {
		args                               string
		mutating, idempotent, stdin, shell bool
	}{
		{args: "status", idempotent: true},
		{args: "log -5", idempotent: true},
		{args: "log --stdin", idempotent: true, stdin: true},
		{args: "cat-file --batch", idempotent: true, stdin: true},
		{args: "check-ignore --stdin", idempotent: true, stdin: true},
		{args: "add .", mutating: true, idempotent: true},
		{args: "add --pathspec-from-file=-", mutating: true, idempotent: true, stdin: true},
		{args: "commit -m x", mutating: true},
		{args: "commit -F -", mutating: true, stdin: true},
		{args: "commit --file=-", mutating: true, stdin: true},
		{args: "commit -F x", mutating: true},
		{args: "tag v1 -F -", mutating: true, stdin: true},
		{args: "tag", idempotent: true},
		{args: "tag -l v*", idempotent: true},
		{args: "tag v1", mutating: true},
		{args: "branch", idempotent: true},
		{args: "branch -a --merged", idempotent: true},
		{args: "branch x", mutating: true},
		{args: "branch -u origin/x", mutating: true},
		{args: "fetch origin", mutating: true, idempotent: true},
		{args: "fetch disk", mutating: true, idempotent: true, shell: true},
		{args: "fetch /ws/x.git main", mutating: true, idempotent: true, shell: true},
		{args: "fetch --all", mutating: true, idempotent: true, shell: true},
		{args: "push shell main", mutating: true},
		{args: "push disk main", mutating: true, shell: true},
		{args: "pull disk main", mutating: true, shell: true},
		{args: "clone /ws/x.git y", mutating: true, shell: true},
		{args: "clone https://example.com/x", mutating: true},
		{args: "ls-remote disk", idempotent: true, shell: true},
		{args: "remote -v", idempotent: true},
		{args: "remote add x https://example.com/x", mutating: true},
		{args: "stash list", idempotent: true},
		{args: "stash", mutating: true},
		{args: "config --get user.name", idempotent: true},
		{args: "config user.name", idempotent: true},
		{args: "config user.name x", mutating: true},
		{args: "clean -n", idempotent: true},
		{args: "clean -f", mutating: true},
		{args: "worktree list", idempotent: true},
	}
	for _, tt := range tests {
		d := ask(testPolicy(nil), split(tt.args))
		if d.Effect != abi.Allow {
			t.Errorf("git %s: %s: %s", tt.args, d.Rule, d.Reason)
			continue
		}
		if *d.Mutating != tt.mutating || *d.Idempotent != tt.idempotent || *d.Stdin != tt.stdin || d.Shell != tt.shell {
			t.Errorf("git %s: mutating %v, idempotent %v, stdin %v, shell %v; want %v", tt.args, *d.Mutating, *d.Idempotent, *d.Stdin, d.Shell, tt)
		}
		c := callOf(split(tt.args), originOnly...)
		c.ReadOnly = true
		if d := testPolicy(nil).decide(c); tt.mutating && (d.Effect != abi.Deny || d.Rule != "read-only" && d.Rule != "remote") {
			t.Errorf("git %s: %s by %s for a caller that may only read", tt.args, d.Effect, d.Rule)
		}
	}
}

// TestDescriptionIsWritten: an editor is no reason to take a command for one that reads.
func TestDescriptionIsWritten(t *testing.T) {
	c := callOf(split("branch --edit-description"), originOnly...)
	c.Callbacks = &abi.Callbacks{Kinds: []string{"editor"}, Folder: "/state/callbacks-1"}
	if d := testPolicy(nil).decide(c); d.Effect != abi.Allow || !*d.Mutating {
		t.Errorf("%s by %s: %+v", d.Effect, d.Rule, d.Mutating)
	}
	c.ReadOnly = true
	if d := testPolicy(nil).decide(c); d.Effect != abi.Deny {
		t.Errorf("a caller that may only read: %s by %s", d.Effect, d.Rule)
	}
}

// TestProtected shows what may be pushed beside protected branches, and that
// the destination is written out.
func TestProtected(t *testing.T) {
	p := testPolicy(map[string]string{"protected": "main,release/*"})
	for args, want := range map[string]string{
		"push origin x":                  "origin x:x",
		"push origin HEAD:x":             "origin HEAD:x",
		"push origin HEAD:heads/x":       "origin HEAD:refs/heads/x",
		"push origin main:maintenance":   "origin main:maintenance",
		"push origin x:release/1/2":      "origin x:release/1/2",
		"push --tags origin":             "origin refs/tags/*:refs/tags/* ^refs/tags/HEAD ^refs/tags/refs/* ^refs/tags/heads/* ^refs/tags/tags/* ^refs/tags/remotes/* ^refs/tags/main ^refs/tags/release/*",
		"push origin tag v1":             "origin refs/tags/v1:refs/tags/v1",
		"push origin a refs/heads/b c:d": "origin a:a refs/heads/b:refs/heads/b c:d",
	} {
		d := ask(p, split(args))
		if got := strings.Join(d.Args, " "); d.Effect != abi.Allow || !strings.HasSuffix(got, " push "+want) {
			t.Errorf("git %s: %s by %s, runs %s", args, d.Effect, d.Rule, got)
		}
	}
}

// TestForced holds the line that every call runs behind.
func TestForced(t *testing.T) {
	d := ask(testPolicy(nil), split("-c user.name=A status"))
	line := strings.Join(d.Args, " ")
	for _, want := range []string{"-c core.hooksPath=/dev/null", "-c core.fsmonitor=false", "-c safe.bareRepository=explicit", "-c safe.directory=/ws/repo/sub -c safe.directory=/ws/repo -c safe.directory=/ws",
		"-c protocol.allow=never", "-c protocol.file.allow=never", "-c protocol.ext.allow=never", "-c credential.helper= ", "-c core.sshCommand=ssh ", "-c gpg.program=/dev/null"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is missing from %s", want, line)
		}
	}
	if strings.Contains(line, "safe.directory=/ ") || strings.Index(line, "user.name") > strings.Index(line, "core.hooksPath") {
		t.Errorf("runs %s", line)
	}
	for name, want := range map[string]string{"GIT_ALLOW_PROTOCOL": "none", "GIT_CEILING_DIRECTORIES": "/", "GIT_EDITOR": ":", "GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh"} {
		if d.Env[name] != want {
			t.Errorf("%s=%s, want %s", name, d.Env[name], want)
		}
	}
	for args, want := range map[string]string{"fetch origin": "https", "fetch shell": "ssh", "fetch disk": "file", "fetch --all": "file:https:ssh", "log": "none"} {
		if got := ask(testPolicy(nil), split(args)).Env["GIT_ALLOW_PROTOCOL"]; got != want {
			t.Errorf("git %s may use %s, want %s", args, got, want)
		}
	}
	if d := ask(testPolicy(nil), split("fetch shell")); !slices.Contains(d.Args, "--upload-pack=git-upload-pack") {
		t.Errorf("the program on the other side of ssh is not pinned: %q", d.Args)
	}
}

// TestFailsClosed: what is missing or not understood refuses.
func TestFailsClosed(t *testing.T) {
	good := callOf([]string{"status"})
	for name, tt := range map[string]struct {
		config map[string]string
		call   func(c *abi.Call)
		rule   string
	}{
		"all is well":                  {nil, func(*abi.Call) {}, "git.status"},
		"no configuration was read":    {nil, func(c *abi.Call) { c.RepoConfig = nil }, "repo-config"},
		"it could not be read":         {nil, func(c *abi.Call) { c.RepoConfig = &abi.RepoConfig{Error: "x"} }, "repo-config"},
		"no working directory":         {nil, func(c *abi.Call) { c.Cwd = "" }, "cwd"},
		"no roots":                     {nil, func(c *abi.Call) { c.Roots = nil }, "cwd"},
		"a bad pattern":                {map[string]string{"protected": "["}, func(*abi.Call) {}, "config"},
		"a boolean that is none":       {map[string]string{"allow_http": "yes"}, func(*abi.Call) {}, "config"},
		"an ssh with arguments":        {map[string]string{"ssh": "ssh -i x"}, func(*abi.Call) {}, "config"},
		"a variable that may not be":   {nil, func(c *abi.Call) { c.Env = map[string]string{"GIT_EXEC_PATH": "x"} }, "env"},
		"a time zone that is a file":   {nil, func(c *abi.Call) { c.Env = map[string]string{"TZ": ":/etc/x"} }, "env"},
		"a time zone":                  {nil, func(c *abi.Call) { c.Env = map[string]string{"TZ": "Europe/Berlin"} }, "git.status"},
		"a variable that may be":       {nil, func(c *abi.Call) { c.Env = map[string]string{"GIT_AUTHOR_NAME": "x"} }, "git.status"},
		"a submodule with a filter":    {nil, func(c *abi.Call) { c.RepoConfig.Submodules = []abi.ConfigEntry{{Key: "filter.x.clean", Value: "x"}} }, "repo-config"},
		"a submodule without a filter": {nil, func(c *abi.Call) { c.RepoConfig.Submodules = []abi.ConfigEntry{{Key: "core.worktree", Value: "../x"}} }, "git.status"},
	} {
		c := *good
		c.RepoConfig = &abi.RepoConfig{}
		tt.call(&c)
		if d := testPolicy(tt.config).decide(&c); d.Rule != tt.rule {
			t.Errorf("%s: %s by %s, want %s", name, d.Effect, d.Rule, tt.rule)
		}
	}
}

// TestExports asks as the host does, with JSON.
func TestExports(t *testing.T) {
	f := &pdk.Fake{Config: map[string]string{"protected": "main"}}
	d, err := f.Restrict(restrict, callOf(split("push origin main"), originOnly...))
	if err != nil || d.Effect != abi.Deny || d.Rule != "push.protected" {
		t.Errorf("%+v, %v", d, err)
	}
	out, err := f.Run(describe, nil)
	if err != nil || !strings.Contains(string(out), `"wants":["repo_config"]`) {
		t.Errorf("%s, %v", out, err)
	}
}

// TestRemotesAsGit compares what the policy takes a URL for with what git
// does.
func TestRemotesAsGit(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), nil)
	p := testPolicy(nil)
	for _, url := range []string{"/ws/x", "/ws/a:b", "./x", "./a:b", "x/y:z", "host:path", "user@host:path", "user@host:/path", "host.example:~x/y", "ssh://host/x", "ssh://user@host:22/x", "ssh://[::1]:22/x",
		"file:///ws/x", "[host]:path", "[host:22]:path", "host:22:path", "a-b:c", "user@host:pa:th", "/ws/x?y", "ws/x"} {
		r := &request{policy: p, call: callOf(nil), repo: newRepoConfig(nil)}
		r.scope.Cwd, r.scope.Roots = r.call.Cwd, r.call.Roots
		m, err := r.parse(url, "/ws")
		if err != nil {
			continue
		}
		out, gitErr := b.plain("repo", nil, "", "fetch-pack", "--diag-url", url)
		kind := m.kind
		if want := "Diag: protocol=" + string(kind) + "\n"; gitErr != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %s here, in git %v %s", url, m.kind, gitErr, out)
		}
	}
}

// TestPlain: what no configuration is forced on reads none, of the real git.
func TestPlain(t *testing.T) {
	for name, c := range commands {
		if !c.plain {
			continue
		}
		d := testPolicy(nil).decide(callOf([]string{name}))
		if d.Effect != abi.Allow || slices.Contains(d.Args, "-c") || d.Env["GIT_PAGER"] != "cat" {
			t.Errorf("git %s: %+v", name, d)
		}
		repo := t.TempDir()
		if out, err := exec.Command(gitPath, "init", "-q", repo).CombinedOutput(); err != nil {
			t.Fatalf("%v, %s", err, out)
		}
		// Whoever reads it fails.
		if err := os.WriteFile(filepath.Join(repo, ".git", "config"), []byte("[broken"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{append([]string{"-C", repo}, d.Args...), {"-C", repo, name, "--build-options"}, {"--git-dir=" + repo + "/.git", name}} {
			if out, err := exec.Command(gitPath, args...).CombinedOutput(); err != nil {
				t.Errorf("git %q reads the configuration: %v, %s", args, err, out)
			}
		}
		if out, err := exec.Command(gitPath, "-C", repo, "status").CombinedOutput(); err == nil {
			t.Errorf("git status does not read it: %s", out)
		}
	}
}
