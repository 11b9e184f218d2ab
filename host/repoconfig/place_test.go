package repoconfig

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPlace follows the flags before the subcommand.
func TestPlace(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := dir + "/ws"
	for name, text := range map[string]string{
		"ws/a/.git/HEAD": "ref: refs/heads/main\n", "ws/a/.git/config": "[x]y=a\n", "ws/a/.git/objects/x": "", "ws/a/.git/refs/x": "", "ws/a/sub/x": "",
		"ws/b/.git/HEAD": "ref: refs/heads/main\n", "ws/b/.git/config": "[x]y=b\n", "ws/b/.git/objects/x": "", "ws/b/.git/refs/x": "",
		"ws/w/.git": "gitdir: ../b/.git\n", "ws/deep/er/x": "",
		"out/.git/HEAD": "ref: refs/heads/main\n", "out/.git/config": "[x]y=out\n", "out/.git/objects/x": "", "out/.git/refs/x": "",
	} {
		if err := os.MkdirAll(filepath.Dir(dir+"/"+name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"ws/link": "deep/er", "ws/a/lead": dir + "/out"} {
		if err := os.Symlink(to, dir+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args                  string
		dir, gitDir, workTree string
		value                 string // of x.y
		fault                 string
	}{
		{args: "status -C ../b", value: "a"},
		{args: "-c a.b=c --no-pager status", value: "a"},
		{args: "-C ../b status", dir: "b", value: "b"},
		{args: "-C .. -C b status", dir: "b", value: "b"},
		{args: "-C {W}/b status", dir: "b", value: "b"},
		{args: "-c -C -C sub log", dir: "a/sub", value: "a"},
		{args: "-C  -C ../b status", dir: "b", value: "b"},
		{args: "-C ../link/.. status", dir: "deep"},
		{args: "-C ../w status", dir: "w", value: "b"},
		{args: "-C ../a log --git-dir=../b/.git", dir: "a", value: "a"},
		{args: "--git-dir=../b/.git log", dir: "a", gitDir: "b/.git", value: "b"},
		{args: "--git-dir ../b/.git -C sub -C .. log", dir: "a", gitDir: "b/.git", value: "b"},
		{args: "--git-dir=b/.git -C .. log", dir: ".", gitDir: "b/.git", value: "b"},
		{args: "--git-dir=../w/.git log", dir: "a", gitDir: "b/.git", value: "b"},
		{args: "--git-dir=x --git-dir=../b/.git log", dir: "a", gitDir: "b/.git", value: "b"},
		{args: "--work-tree=sub log", dir: "a", workTree: "a/sub", value: "a"},
		{args: "--git-dir={W}/b/.git --work-tree . log", dir: "a", gitDir: "b/.git", workTree: "a", value: "b"},

		{args: "-C ../../out log", fault: "leads out of the roots"},
		{args: "-C ../../nothing log", fault: "leads out of the roots"},
		{args: "-C lead log", fault: "leads out of the roots"},
		{args: "-C missing log", fault: "/missing: no such file"},
		{args: "-C .git/config log", fault: "not a folder"},
		{args: "-C", fault: "has no value"},
		{args: "--git-dir", fault: "has no value"},
		{args: "--git-dir=../../out/.git log", fault: "leads out of the roots"},
		{args: "--git-dir=lead/.git log", fault: "leads out of the roots"},
		{args: "--git-dir=sub log", fault: "not a git directory"},
		{args: "--work-tree=../.. log", fault: "leads out of the roots"},
		{args: "--work-tree=.git/HEAD log", fault: "not a folder"},
	} {
		args := strings.Split(strings.ReplaceAll(tt.args, "{W}", root), " ")
		got := Read(root+"/a", []string{root}, args)
		if tt.fault != "" {
			if !strings.Contains(got.Error, tt.fault) || len(got.Entries) > 0 || got.Dir != "" {
				t.Errorf("%s: %+v, want %q", tt.args, got, tt.fault)
			}
			continue
		}
		value := ""
		for _, e := range got.Entries {
			value = e.Value
		}
		for _, p := range []*string{&tt.dir, &tt.gitDir, &tt.workTree} {
			if *p != "" {
				*p = filepath.Join(root, *p)
			}
		}
		if got.Error != "" || got.Dir != tt.dir || got.GitDir != tt.gitDir || got.WorkTree != tt.workTree || value != tt.value {
			t.Errorf("%s: %+v, want %+v", tt.args, got, tt)
		}
	}
}

// TestHooks finds the hooks that git would run, and does not tell what lies
// outside of the roots.
func TestHooks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := dir + "/ws"
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(dir+"/"+name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"HEAD", "objects/x", "refs/x"} {
		write("ws/a/.git/"+name, "ref: refs/heads/main\n", 0o644)
		write("ws/r.git/"+name, "ref: refs/heads/main\n", 0o644)
	}
	write("ws/a/sub/x", "", 0o644)
	write("ws/a/.git/hooks/pre-commit", "#!/bin/sh\n", 0o755)
	write("ws/a/.git/hooks/pre-push", "#!/bin/sh\n", 0o644)
	write("ws/a/.git/hooks/commit-msg.sample", "#!/bin/sh\n", 0o755)
	write("ws/a/.git/hooks/anything", "#!/bin/sh\n", 0o755)
	write("ws/a/.husky/_/commit-msg", "#!/bin/sh\n", 0o755)
	write("ws/r.git/hooks/update", "#!/bin/sh\n", 0o755)
	write("out/hooks/pre-commit", "#!/bin/sh\n", 0o755)
	for link, to := range map[string]string{"post-commit": dir + "/out/hooks/pre-commit", "post-merge": dir + "/out/missing", "pre-rebase": "../../sub", "post-rewrite": "nowhere"} {
		if err := os.Symlink(to, root+"/a/.git/hooks/"+link); err != nil {
			t.Fatal(err)
		}
	}
	own := []string{"post-commit", "post-merge", "post-rewrite", "pre-commit"}
	for config, want := range map[string][]string{
		"":                           own,
		"[core]hooksPath=.husky/_\n": {"commit-msg"},
		"[core]hooksPath=" + root + "/a/.husky/_": {"commit-msg"},
		"[core]hooksPath=missing\n":               nil,
		"[core]hooksPath=/dev/null\n":             nil,
		"[core]hooksPath=\n":                      nil,
		"[core]hooksPath=" + dir + "/out/hooks":   hookNames,
		"[core]hooksPath=" + dir + "/out/missing": hookNames,
		"[core]hooksPath=~/hooks\n":               hookNames,
	} {
		write("ws/a/.git/config", config, 0o644)
		if config != "" {
			want = slices.Clone(want)
			for _, name := range own {
				want = append(want, "hooks/"+name)
			}
		}
		if got := Read(root+"/a/sub", []string{root}, nil); got.Error != "" || !slices.Equal(got.Hooks, want) {
			t.Errorf("%q: %s%q, want %q", config, got.Error, got.Hooks, want)
		}
	}
	if got := Read(root+"/a", []string{root}, []string{"push", root + "/r.git"}); !slices.Equal(got.RemoteHooks, []string{"update"}) {
		t.Errorf("of the remote: %q", got.RemoteHooks)
	}
}
