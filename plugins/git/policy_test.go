package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

func testPolicy(config map[string]string) *policy {
	return newPolicy(func(key string) (string, bool) { v, ok := config[key]; return v, ok })
}

// ask is what most tests ask with: a repository beneath /ws with three
// remotes.
func ask(p *policy, args []string, more ...abi.ConfigEntry) *abi.Decision {
	return p.decide(&abi.Call{Tool: "git", Args: args, Cwd: "/ws/repo/sub", Roots: []string{"/ws"}, RepoConfig: &abi.RepoConfig{Entries: append([]abi.ConfigEntry{
		{Key: "core.bare", Value: "false"},
		{Key: "remote.origin.url", Value: "https://example.com/x.git"},
		{Key: "remote.origin.fetch", Value: "+refs/heads/*:refs/remotes/origin/*"},
		{Key: "remote.shell.url", Value: "git@example.com:x.git"},
		{Key: "remote.disk.url", Value: "/ws/remote.git"},
	}, more...)}})
}

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
	"commit -m x", "commit -am x", "commit -F -", "commit -F msg.txt", "commit --amend --no-edit", "commit --amend -m x", "commit --allow-empty -m x -s", "commit -m x -- a b", "commit --fixup HEAD~1", "commit --author=A\u00a0<a@b> -m x", "commit -C HEAD", "commit -q -n -m x", "commit",
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
	"-c user.name=A -c user.email=a@b commit -m x", "-c color.ui=never log -1", "-C . status", "-C /ws/repo/sub log -1",
}

func split(line string) []string {
	args := strings.Fields(line)
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "\u00a0", " ")
	}
	return args
}

func TestEveryday(t *testing.T) {
	p := testPolicy(nil)
	for _, line := range everyday {
		args := split(line)
		var more []abi.ConfigEntry
		if words := strings.Fields(line); len(words) == 1 || !slices.Contains(words, "--all") {
			// Without a name, any remote may be meant: here they are alike.
			if slices.Contains([]string{"fetch", "pull", "push", "ls-remote"}, words[0]) && !strings.Contains(line, "disk") {
				more = append(more, abi.ConfigEntry{Key: "remote.disk.url", Value: "x"})
				d := p.decide(&abi.Call{Tool: "git", Args: args, Cwd: "/ws/repo/sub", Roots: []string{"/ws"}, RepoConfig: &abi.RepoConfig{Entries: []abi.ConfigEntry{
					{Key: "remote.origin.url", Value: "https://example.com/x.git"}, {Key: "remote.shell.url", Value: "git@example.com:x.git"}}}})
				if d.Effect != abi.Allow {
					t.Errorf("git %s: %s: %s; %s", line, d.Rule, d.Reason, d.Instead)
				}
				continue
			}
		}
		if d := ask(p, args); d.Effect != abi.Allow {
			t.Errorf("git %s: %s: %s; %s", line, d.Rule, d.Reason, d.Instead)
		}
	}
}
