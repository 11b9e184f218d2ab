package host_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// gitCompletion is where git's own completion for bash is, as Debian installs it.
const gitCompletion = "/usr/share/bash-completion/completions/git"

// completions prints, for each line of its input, what bash offers at its end.
const completions = `. ` + gitCompletion + `
while IFS= read -r line; do
	COMP_LINE=$line COMP_POINT=${#line}
	read -ra COMP_WORDS <<< "$line"
	case $line in *' ') COMP_WORDS+=('') ;; esac
	COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=() COMP_TYPE=9
	__git_wrap__git_main 2> /dev/null
	echo "> $line"
	[ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}" | sort
done`

// completed are lines at whose ends Tab is pressed.
var completed = []string{
	"git ", "git che", "git st", "git ci", "git --", "git help ", "git help re",
	"git checkout ", "git checkout fe", "git switch ", "git switch -c new ma", "git merge ", "git merge -s ", "git merge --str",
	"git branch -d ", "git log ", "git log main..", "git log --pre", "git log --format=", "git show HEAD:", "git show v",
	"git add ", "git add --", "git add sub/", "git commit --", "git commit ", "git commit --fixup ", "git rebase --onto ",
	"git diff --", "git restore ", "git reset ", "git rm ", "git stash ", "git stash push --", "git stash show ",
	"git remote ", "git remote set-url ", "git remote add --", "git push ", "git push origin ", "git push origin HEAD:", "git fetch ", "git fetch origin ",
	"git pull origin ", "git config ", "git config us", "git config branch.", "git config --get ", "git tag -d ", "git worktree ", "git worktree remove ",
	"git bisect ", "git cherry-pick ", "git -C sub log ", "git --git-dir=.git branch ", "git -c co", "git ls-files ", "git archive --format=",
}

// completingRepo makes a repository with something of everything that is completed.
func completingRepo(t testing.TB, root string) string {
	t.Helper()
	dir := filepath.Join(root, "repo")
	cmd := exec.Command("/bin/sh", "-c", `set -e
		git init -q -b main repo; git init -q --bare origin.git; cd repo
		git config user.name A; git config user.email a@example.com; git config alias.ci commit
		mkdir sub; for f in a.txt b.txt sub/c.txt 'with space'; do echo 1 > "$f"; done
		git add .; git commit -q -m one; git tag v1.0; git branch feature; git branch fix/two
		git remote add origin ../origin.git; git push -q origin main feature
		git fetch -q; echo 2 >> a.txt; git stash -q; echo 3 >> b.txt; echo new > new.txt; echo new > sub/new.txt
		git worktree add -q ../other feature`)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "HOME="+root, "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// completer has bash complete lines of git, in dir, with the git of the folder bin.
func completer(t testing.TB, socket, dir, bin string) func(lines ...string) map[string]string {
	return func(lines ...string) map[string]string {
		t.Helper()
		cmd := exec.Command("bash", "--norc", "--noprofile", "-c", completions)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + filepath.Dir(dir), "TOOL_SOCKET=" + socket, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1"}
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("complete: %v: %s", err, out)
		}
		return offers(lines, string(out))
	}
}

// fishCompletions prints what fish offers, as completions does.
const fishCompletions = `
set -g fish_complete_path $argv[1]/completions
set -g fish_function_path $argv[1]/functions
while read -l line
	echo "> $line"
	complete -C $line | sort
end`

// fishCompleter is completer for fish; nil: there is none.
func fishCompleter(t testing.TB, socket, dir, bin string) func(lines ...string) map[string]string {
	fish, err := exec.LookPath("fish")
	if err != nil {
		return nil
	}
	data := fishData(fish)
	if !exists(filepath.Join(data, "completions", "git.fish")) {
		return nil
	}
	home := t.TempDir()
	return func(lines ...string) map[string]string {
		t.Helper()
		cmd := exec.Command(fish, "--no-config", "-c", fishCompletions, data)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + home, "TOOL_SOCKET=" + socket, "LC_ALL=C.UTF-8", "GIT_CONFIG_NOSYSTEM=1"}
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("complete: %v: %s", err, out)
		}
		return offers(lines, string(out))
	}
}

// fishData is the folder of the functions and completions of that fish. One that is
// unpacked elsewhere than it was made for has them beside it.
func fishData(fish string) string {
	const data = "/usr/share/fish"
	if unpacked := filepath.Join(filepath.Dir(fish), "..", "root", data); exists(unpacked) {
		return unpacked
	}
	return data
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// offers are the answers to lines, of which out has one after the other.
func offers(lines []string, out string) map[string]string {
	got := make(map[string]string)
	for i, part := range strings.Split("\n"+out, "\n> ")[1:] {
		_, answer, _ := strings.Cut(part, "\n")
		got[lines[i]] = strings.TrimSpace(answer)
	}
	return got
}

// Tab offers the same through a wrapper as with git itself.
func TestCompletionOfGit(t *testing.T) {
	if _, err := os.Stat(gitCompletion); err != nil {
		t.Skip("git's completion for bash is not installed here")
	}
	d := hosttest.Start(t, config.Config{})
	d.Ready(t, "git")
	dir := completingRepo(t, d.Root)
	bin := t.TempDir()
	if err := os.Symlink(wrapperProgram(t), filepath.Join(bin, "git")); err != nil {
		t.Fatal(err)
	}
	others, err := exec.Command("git", "--list-cmds=others").Output()
	if err != nil {
		t.Fatal(err)
	}
	// Programs named git-* on the host's PATH are nothing that a wrapper runs.
	absent := strings.Fields(string(others))
	for name, complete := range map[string]func(testing.TB, string, string, string) func(...string) map[string]string{"bash": completer, "fish": fishCompleter} {
		t.Run(name, func(t *testing.T) {
			native := complete(t, d.Socket, dir, "/usr/bin")
			if native == nil {
				t.Skip("there is no " + name + " with a completion of git here")
			}
			compareOffers(t, absent, native(completed...), complete(t, d.Socket, dir, bin)(completed...))
		})
	}
}

// compareOffers compares what is offered natively with what is offered through a wrapper.
func compareOffers(t *testing.T, absent []string, want, got map[string]string) {
	t.Helper()
	offered, none := 0, 0
	for _, line := range completed {
		w, g := strings.Split(want[line], "\n"), strings.Split(got[line], "\n")
		w = slices.DeleteFunc(w, func(s string) bool { return slices.Contains(absent, strings.TrimSpace(s)) })
		if want[line] == "" {
			none++
		}
		offered += len(w)
		if slices.Equal(w, g) {
			continue
		}
		less := slices.DeleteFunc(slices.Clone(w), func(s string) bool { return slices.Contains(g, s) })
		more := slices.DeleteFunc(slices.Clone(g), func(s string) bool { return slices.Contains(w, s) })
		t.Errorf("%q lacks %q, and has besides %q", line, less, more)
	}
	t.Logf("%d lines, %d words offered", len(completed), offered)
	if offered < 500 || none > 3 {
		t.Errorf("native git offers next to nothing, and nothing at all for %d lines; the test is wrong", none)
	}
}

// BenchmarkCompletionOfGit is the time of a Tab, in a shell that runs: with git itself,
// and with a wrapper in its place.
func BenchmarkCompletionOfGit(b *testing.B) {
	d := hosttest.Start(b, config.Config{})
	d.Ready(b, "git")
	dir := completingRepo(b, d.Root)
	bin := b.TempDir()
	if err := os.Symlink(wrapperProgram(b), filepath.Join(bin, "git")); err != nil {
		b.Fatal(err)
	}
	shells := map[string]func(testing.TB, string, string, string) func(...string) map[string]string{"fish": fishCompleter}
	if exists(gitCompletion) {
		shells["bash"] = completer
	}
	for _, line := range []string{"git che", "git checkout ", "git add ", "git commit --", "git log main.."} {
		for shell, complete := range shells {
			for name, folder := range map[string]string{"native": "/usr/bin", "wrapper": bin} {
				offers := complete(b, d.Socket, dir, folder)
				if offers == nil {
					continue
				}
				b.Run(shell+"/"+strings.ReplaceAll(line, " ", "_")+"/"+name, func(b *testing.B) {
					offers(line) // the shell's start, and what it loads for git, is not a Tab's
					start := time.Now()
					offers(line)
					once := time.Since(start)
					start = time.Now()
					offers(slices.Repeat([]string{line}, 1+b.N)...)
					b.ReportMetric(float64(time.Since(start)-once)/float64(b.N)/1e6, "ms/tab")
				})
			}
		}
	}
}
