package repoconfig

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// BenchmarkRead reads a repository of one commit, as every call of git in it does.
func BenchmarkRead(b *testing.B) {
	root, err := filepath.EvalSymlinks(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	repo := filepath.Join(root, "repo")
	for _, args := range [][]string{{"init", "-q", repo}, {"-C", repo, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
	for b.Loop() {
		if c := Read(repo, []string{root}, []string{"--version"}); c == nil || c.Error != "" {
			b.Fatal(c)
		}
	}
}
