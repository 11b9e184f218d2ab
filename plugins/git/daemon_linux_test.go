package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	hostconfig "github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// swap replaces the file name by text as soon as somebody has read it, once.
// It is an adversary's way to learn when the policy's look is over. The
// function that it answers ends it, and reports whether it replaced anything.
func swap(t *testing.T, name, text string) func() bool {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.InotifyAddWatch(fd, name, syscall.IN_CLOSE_NOWRITE); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	done := make(chan bool)
	go func() {
		var event [4096]byte
		_, err := f.Read(event[:])
		done <- err == nil && os.Rename(name+".new", name) == nil
	}()
	return func() bool {
		f.Close()
		return <-done
	}
}

// TestThroughDaemon attacks the tool as it is shipped: the policy in
// WebAssembly, a repository of somebody else's making, git confined by the
// host.
func TestThroughDaemon(t *testing.T) {
	needGit(t)
	m, runner := model(t), newRunner(t)
	roots := tempDir(t)
	d := hosttest.Start(t, hostconfig.Config{Roots: []string{roots}})
	d.Ready(t, "git")

	// place is a box whose workspace is beneath the daemon's root, and the rest
	// of it outside.
	place := func(t *testing.T) (*box, func(line string) (string, *wire.Result)) {
		b := newBox(t, m, runner)
		ws := filepath.Join(roots, filepath.Base(b.dir))
		if err := os.Rename(b.ws, ws); err != nil {
			t.Fatal(err)
		}
		old := b.ws
		b.ws = ws
		b.words = strings.NewReplacer("{WS}", ws, "{OUT}", b.out, "{VICTIM}", victim(t, b))
		config, err := os.ReadFile(ws + "/repo/.git/config")
		if err != nil {
			t.Fatal(err)
		}
		b.write("repo/.git/config", strings.ReplaceAll(string(config), old, ws)+"[user]\nname=A\nemail=a@example.com\n")
		return b, func(line string) (string, *wire.Result) {
			t.Helper()
			cwd := "repo"
			if rest, ok := strings.CutPrefix(line, "in "); ok {
				cwd, line, _ = strings.Cut(rest, ": ")
			}
			res, out, errs := d.Stream(t, &wire.Call{Tool: "git", Args: b.line(line), Cwd: filepath.Join(ws, cwd)}, "")
			return out + errs, res
		}
	}
	for _, tt := range []struct {
		name string
		h    hostile
		rule string
	}{
		{"a strategy that was prepared", hostile{args: []string{"rebase --continue"}, prepare: []string{"-c sequence.editor=true rebase -q -i --exec=false HEAD~1", alien,
			"!echo\u00a0pick\u00a0picked>.git/rebase-merge/git-rebase-todo;echo\u00a0x/git>.git/rebase-merge/strategy;echo\u00a0'\u00a0--git-dir={WS}/evil.git'>.git/rebase-merge/strategy_opts"}}, "git.repo-state"},
		{"a forced push of what was named", hostile{args: []string{"push origin main"}, config: "[remote \"origin\"]push=+refs/heads/main:refs/heads/main"}, "push.force"},
		{"a deletion by a remote of old", hostile{args: []string{"push origin main"}, prepare: []string{"config --unset-all remote.origin.url"}, config: "[remote \"origin\"]pushurl={WS}/remote.git",
			files: map[string]string{"repo/.git/remotes/origin": "URL: {WS}/remote.git\nPush: :refs/heads/feature\n"}}, "remote"},
		{"objects that are a link", hostile{args: []string{"show {VICTIM}"}, prepare: []string{"!mv\u00a0.git/objects/pack\u00a0.git/p;ln\u00a0-s\u00a0{OUT}/victim/.git/objects/pack\u00a0.git/objects/pack"}}, "repo-config"},
		{"a remote that is a link", hostile{args: []string{"fetch {WS}/lead main", "log FETCH_HEAD"}, links: map[string]string{"lead": "{OUT}/victim"}}, "repo-config"},
		{"fsck.skipList of the remote", hostile{args: []string{"push origin main:new"}, prepare: []string{"--git-dir={WS}/remote.git config receive.fsckObjects true", "--git-dir={WS}/remote.git config receive.fsck.skipList {OUT}/secret.txt"}}, "repo-config"},
		{"diff outside of a repository", hostile{args: []string{"in bare: diff link/secret.txt x"}, files: map[string]string{"bare/x": "x\n"}, links: map[string]string{"bare/link": "{OUT}"}}, "repository"},
		{"a name that hides a branch", hostile{args: []string{"push origin HEAD:refs/refs/heads/main"}}, "push.refspec"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, call := place(t)
			b.prepare(&tt.h)
			before, refs := tree(t, b.out), b.remoteRefs()
			for i, line := range tt.h.args {
				out, res := call(line)
				if i == 0 && (res.Err == nil || res.Err.Code != fault.Denied || !strings.Contains(res.Err.Message, strings.TrimPrefix(tt.rule, "git."))) {
					t.Errorf("git %s: %v, want refused by %s\n%s", line, res.Err, tt.rule, out)
				}
				if harm := b.harm(before, out, true); harm != "" {
					t.Errorf("%s\n%s", harm, out)
				}
			}
			if after := b.remoteRefs(); after != refs {
				t.Errorf("the remote has changed:\n%s%s", refs, after)
			}
		})
	}
	for _, tt := range []struct{ name, config, line string }{
		{"a trailer's program", "[trailer \"t\"]\ncmd=git-init\n", "commit -q --allow-empty -m x --trailer t={WS}/marker"},
		{"a forced push to another name", "[remote \"origin\"]\npush=+refs/heads/main:refs/heads/other\n", "push -q origin main"},
		{"a mirror", "[remote \"origin\"]\nmirror=true\n", "push -q origin main"},
	} {
		t.Run(tt.name+", by race", func(t *testing.T) {
			won := 0
			for range 10 {
				b, call := place(t)
				name := b.ws + "/repo/.git/config"
				config, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				before, refs := tree(t, b.out), b.remoteRefs()
				end := swap(t, name, string(config)+tt.config)
				out, _ := call(tt.line)
				if end() {
					won++
				}
				if harm := b.harm(before, out, true); harm != "" {
					t.Fatalf("%s\n%s", harm, out)
				}
				if after := b.remoteRefs(); after != refs {
					t.Fatalf("the remote has changed:\n%s%s", refs, after)
				}
			}
			if won == 0 {
				t.Error("the configuration was never replaced")
			}
		})
	}
	t.Run("said", func(t *testing.T) {
		b, call := place(t)
		b.prepare(&hostile{files: allHooks("repo/.git/hooks/")})
		before := tree(t, b.out)
		out, res := call("commit -q --allow-empty -m x")
		if res.Err != nil || res.ExitCode != 0 || !strings.HasPrefix(out, "git: note: hook pre-commit was not run: ") || strings.Count(out, "git: note: ") != 5 {
			t.Errorf("%v, exit code %d\n%s", res.Err, res.ExitCode, out)
		}
		if harm := b.harm(before, out, true); harm != "" {
			t.Error(harm)
		}
		for line, code := range map[string]int{"-C .. -C repo log -1 --format=%s": 0, "--git-dir={WS}/remote.git log -1 --format=%s main": 0, "help commit": 129, "archive -o ../x.tgz HEAD": 0, "format-patch -q -1 feature": 0} {
			if out, res := call(line); res.Err != nil || res.ExitCode != code {
				t.Errorf("git %s: %v, exit code %d\n%s", line, res.Err, res.ExitCode, out)
			}
		}
	})
	t.Run("a day's work", func(t *testing.T) {
		b, call := place(t)
		for _, line := range []string{"status -s", "diff --stat HEAD~1", "commit -q --allow-empty -m x", "push -q origin main", "fetch -q origin", "pull -q --no-rebase origin main", "clone -q {WS}/remote.git {WS}/new", "in new: log -1 --oneline", "checkout -q -b topic", "push -q -u origin topic", "push -q", "push -q --all", "push -q --tags"} {
			if out, res := call(line); res.Err != nil || res.ExitCode != 0 {
				t.Errorf("git %s: %v, exit code %d\n%s", line, res.Err, res.ExitCode, out)
			}
		}
		if refs := b.remoteRefs(); !strings.Contains(refs, "refs/heads/topic") {
			t.Error(refs)
		}
	})
}

// What a hostile repository or a race does not get through holds for a daemon
// without any privilege, whose namespaces are those of a user namespace.
func TestUnprivileged(t *testing.T) {
	needGit(t)
	hosttest.Unprivileged(t, "^(TestThroughDaemon|TestConfigChangedUnderCalls|TestHostile|TestPushOnlyWhatIsNamed|TestPinned|TestState)$",
		[]string{"tools.d/git", "plugins/git"}, []string{"plugins/git"})
}

// The same of files in LFS.
func TestUnprivilegedLFS(t *testing.T) {
	needGit(t)
	if !hosttest.Judged() {
		t.Skip("connections are not judged here")
	}
	cmd := exec.Command(lfsPath(t), "version")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1, Gid: 1}}
	if out, err := cmd.CombinedOutput(); os.Getuid() == 0 && err != nil {
		t.Skipf("an ordinary user cannot run the git-lfs that is here: %v: %s", err, out)
	}
	hosttest.Unprivileged(t, "^(TestHostileLFS|TestLFSShim)$", []string{"tools.d/git", "plugins/git", "docs/tools.md"}, []string{"plugins/git"})
}
