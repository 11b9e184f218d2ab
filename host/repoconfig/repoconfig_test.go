package repoconfig

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/pdk/abi"
)

// git runs the real git in dir, with no configuration but the repository's.
func git(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=A", "GIT_COMMITTER_EMAIL=a@example.com",
		"GIT_CEILING_DIRECTORIES=" + os.TempDir(),
	}
	out, err := cmd.Output()
	return string(out), err
}

func mustGit(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := git(t, dir, args...)
	if err != nil {
		t.Fatalf("git %q: %v", args, err)
	}
	return out
}

// parseList reads the output of git config --list -z.
func parseList(out string) []abi.ConfigEntry {
	var entries []abi.ConfigEntry
	for _, item := range strings.Split(strings.TrimSuffix(out, "\x00"), "\x00") {
		if item == "" {
			continue
		}
		key, value, ok := strings.Cut(item, "\n")
		if !ok {
			value = "true"
		}
		entries = append(entries, abi.ConfigEntry{Key: key, Value: strings.ToValidUTF8(value, "\uFFFD")})
	}
	return entries
}

func text(entries []abi.ConfigEntry) string {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%q=%q\n", e.Key, e.Value)
	}
	return b.String()
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func resolved(t testing.TB, dir string) string {
	t.Helper()
	p, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The same entries, in the same order, as git itself reads, wherever in a
// repository one stands.
func TestReadRepoConfigAsGit(t *testing.T) {
	tests := []struct {
		name  string
		setup func(t *testing.T, dir string) (cwd string)
	}{
		{"plain", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			mustGit(t, dir, "config", "remote.origin.url", "https://example.com/x.git")
			return dir
		}},
		{"folder beneath", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			os.MkdirAll(dir+"/a/b", 0o755)
			return dir + "/a/b"
		}},
		{"inside .git", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			return dir + "/.git/objects"
		}},
		{"bare", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q", "--bare", "x.git")
			return dir + "/x.git"
		}},
		{"separate git dir", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q", "--separate-git-dir", dir+"/meta", "tree")
			return dir + "/tree"
		}},
		{"worktree with its own config", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q", "main")
			mustGit(t, dir+"/main", "commit", "-q", "--allow-empty", "-m", "x")
			mustGit(t, dir+"/main", "worktree", "add", "-q", "../other")
			mustGit(t, dir+"/main", "config", "extensions.worktreeConfig", "true")
			mustGit(t, dir+"/other", "config", "--worktree", "core.editor", "x")
			return dir + "/other"
		}},
		{"submodule", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q", "sub")
			mustGit(t, dir+"/sub", "commit", "-q", "--allow-empty", "-m", "x")
			mustGit(t, dir, "init", "-q", "top")
			mustGit(t, dir+"/top", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", dir+"/sub", "s")
			mustGit(t, dir+"/top/s", "config", "user.name", "sub")
			return dir + "/top/s"
		}},
		{"includes", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			write(t, dir+"/.git/more", "[a]\n\tb = 1\n[include]\n\tpath = deep/one\n[a]\n\tb = 3\n")
			write(t, dir+"/.git/deep/one", "[a]\n\tb = 2\n[include]\n\tpath = ../last\n")
			write(t, dir+"/.git/last", "[a]\n\tc\n")
			mustGit(t, dir, "config", "include.path", "more")
			mustGit(t, dir, "config", "--add", "include.path", "missing")
			mustGit(t, dir, "config", "z.z", "after")
			return dir
		}},
		{"absolute include through a link", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			write(t, dir+"/conf/real", "[include]\n\tpath = beside\n")
			write(t, dir+"/links/beside", "[a]\n\tb = link\n")
			write(t, dir+"/conf/beside", "[a]\n\tb = real\n")
			os.Symlink("../conf/real", dir+"/links/file")
			mustGit(t, dir, "config", "include.path", dir+"/links/file")
			return dir
		}},
		{"include whose condition holds", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			write(t, dir+"/.git/more", "[a]\n\tb = 1\n")
			mustGit(t, dir, "config", "includeIf.gitdir:"+dir+"/.path", "more")
			return dir
		}},
		{"empty .git folder", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			os.MkdirAll(dir+"/a/.git", 0o755)
			return dir + "/a"
		}},
		{"unusable .git folder beneath another", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			mustGit(t, dir, "config", "is.outer", "yes")
			mustGit(t, dir, "init", "-q", "a")
			os.RemoveAll(dir + "/a/.git/refs")
			return dir + "/a"
		}},
		{"no repository", func(t *testing.T, dir string) string {
			os.Mkdir(dir+"/a", 0o755)
			return dir + "/a"
		}},
		{"HEAD that is a link", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			os.Remove(dir + "/.git/HEAD")
			os.Symlink("refs/heads/main", dir+"/.git/HEAD")
			return dir
		}},
		{"links within", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			os.Rename(dir+"/.git/hooks", dir+"/hooks")
			os.Symlink(dir+"/hooks", dir+"/.git/hooks")
			return dir
		}},
		{"no config file", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			os.Remove(dir + "/.git/config")
			return dir
		}},
		{"values of all kinds", func(t *testing.T, dir string) string {
			mustGit(t, dir, "init", "-q")
			f, err := os.OpenFile(dir+"/.git/config", os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			f.WriteString("[A \"S\\\"ub\\\\.x\"]b=1;c\n C = \" x # y \" z  # w\n[q.R]s\t=\\t\\b\\n\\\\\\\"\\\n more \r\n  t  \n[e]x=\n[v]u = \"\"  a\xff\n")
			return dir
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := resolved(t, t.TempDir())
			dir := root + "/ws"
			os.Mkdir(dir, 0o755)
			cwd := tt.setup(t, dir)
			got := Read(cwd, []string{dir}, nil)
			if got.Error != "" {
				t.Fatalf("error %q", got.Error)
			}
			out, err := git(t, cwd, "-c", "safe.bareRepository=all", "-c", "safe.directory=*", "config", "--list", "-z", "--includes")
			if err != nil {
				t.Fatal(err)
			}
			want := parseList(out)
			want = want[:len(want)-2] // What -c added comes last.
			if text(got.Entries) != text(want) {
				t.Errorf("got\n%swant\n%s", text(got.Entries), text(want))
			}
		})
	}
}

// What git might read otherwise, or must not read at all, is an error.
func TestReadRepoConfigDoubts(t *testing.T) {
	tests := []struct {
		name  string
		setup func(t *testing.T, dir string)
		want  string
	}{
		{"syntax", func(t *testing.T, dir string) { write(t, dir+"/.git/config", "[core\n") }, "bad section in line"},
		{"NUL", func(t *testing.T, dir string) { write(t, dir+"/.git/config", "[a]b=\x00\n") }, "NUL"},
		{"key not UTF-8", func(t *testing.T, dir string) { write(t, dir+"/.git/config", "[a \"\xff\"]b\n") }, "bad section"},
		{"include outside", func(t *testing.T, dir string) {
			write(t, dir+"/../secret", "[a]\n\tb = secret\n")
			mustGit(t, dir, "config", "include.path", "../../secret")
		}, "out of the roots"},
		{"include outside of what is not there", func(t *testing.T, dir string) {
			mustGit(t, dir, "config", "include.path", "../../nothing")
		}, "out of the roots"},
		{"config is a link into nothing", func(t *testing.T, dir string) {
			os.Remove(dir + "/.git/config")
			os.Symlink("later", dir+"/.git/config")
		}, "leads nowhere"},
		{"include of home", func(t *testing.T, dir string) {
			mustGit(t, dir, "config", "include.path", "~/x")
		}, "out of the roots"},
		{"include of the prefix", func(t *testing.T, dir string) {
			mustGit(t, dir, "config", "include.path", "%(prefix)/x")
		}, "out of the roots"},
		{"include of nothing", func(t *testing.T, dir string) {
			write(t, dir+"/.git/config", "[include]\n\tpath\n")
		}, "names no file"},
		{"include of a folder", func(t *testing.T, dir string) {
			mustGit(t, dir, "config", "include.path", "hooks")
		}, "not a regular file"},
		{"include of itself", func(t *testing.T, dir string) {
			mustGit(t, dir, "config", "include.path", "config")
		}, "nested too deeply"},
		{"condition that does not hold leads outside", func(t *testing.T, dir string) {
			write(t, dir+"/../secret", "[a]\n\tb = secret\n")
			mustGit(t, dir, "config", "includeIf.gitdir:/nowhere/.path", "../../secret")
		}, "out of the roots"},
		{"config is a link outside", func(t *testing.T, dir string) {
			write(t, dir+"/../secret", "[a]\n\tb = secret\n")
			os.Remove(dir + "/.git/config")
			os.Symlink("../../secret", dir+"/.git/config")
		}, "out of the roots"},
		{"config is a FIFO", func(t *testing.T, dir string) {
			os.Remove(dir + "/.git/config")
			if err := syscall.Mkfifo(dir+"/.git/config", 0o644); err != nil {
				t.Skip(err)
			}
		}, "not a regular file"},
		{".git is a link outside", func(t *testing.T, dir string) {
			os.Rename(dir+"/.git", dir+"/../elsewhere")
			os.Symlink("../elsewhere", dir+"/.git")
		}, "out of the roots"},
		{".git is a file that leads outside", func(t *testing.T, dir string) {
			os.Rename(dir+"/.git", dir+"/../elsewhere")
			write(t, dir+"/.git", "gitdir: ../elsewhere\n")
		}, "out of the roots"},
		{".git is a file that leads nowhere", func(t *testing.T, dir string) {
			os.RemoveAll(dir + "/.git")
			write(t, dir+"/.git", "gitdir: nowhere\n")
		}, "not a git directory"},
		{".git is a file of something else", func(t *testing.T, dir string) {
			os.RemoveAll(dir + "/.git")
			write(t, dir+"/.git", "hello\n")
		}, "has not the form"},
		{".git is a link into nothing", func(t *testing.T, dir string) {
			os.RemoveAll(dir + "/.git")
			os.Symlink("later", dir+"/.git")
		}, "leads nowhere"},
		{"commondir outside", func(t *testing.T, dir string) {
			os.Rename(dir+"/.git", dir+"/../elsewhere")
			write(t, dir+"/.git/HEAD", "ref: refs/heads/x\n")
			write(t, dir+"/.git/commondir", "../../elsewhere\n")
		}, "out of the roots"},
		{"HEAD in doubt", func(t *testing.T, dir string) {
			write(t, dir+"/.git/HEAD", "what\n")
		}, "not a valid HEAD"},
		{"too large", func(t *testing.T, dir string) {
			write(t, dir+"/.git/config", "#"+strings.Repeat("x", maxConfigBytes))
		}, "too large"},
		{"too large together", func(t *testing.T, dir string) {
			write(t, dir+"/.git/more", "#"+strings.Repeat("x", maxConfigBytes/2))
			write(t, dir+"/.git/config", strings.Repeat("[include]path=more\n", 3))
		}, "too large"},
		{"too many entries", func(t *testing.T, dir string) {
			write(t, dir+"/.git/config", "[a]\n"+strings.Repeat("b\n", maxConfigEntries+1))
		}, "more than 10000 entries"},
		{"objects borrowed from outside", func(t *testing.T, dir string) {
			os.MkdirAll(dir+"/../elsewhere/objects", 0o755)
			write(t, dir+"/.git/objects/info/alternates", dir+"/../elsewhere/objects\n")
		}, "out of the roots"},
		{"objects borrowed from outside at second hand", func(t *testing.T, dir string) {
			os.MkdirAll(dir+"/../elsewhere/objects", 0o755)
			write(t, dir+"/.git/objects/info/alternates", "../../second\n")
			write(t, dir+"/second/info/alternates", dir+"/../elsewhere/objects\n")
		}, "out of the roots"},
		{"worktree outside", func(t *testing.T, dir string) {
			os.Mkdir(dir+"/../tree", 0o755)
			mustGit(t, dir, "config", "core.worktree", "../../tree")
		}, "core.worktree"},
		{"worktree behind a link outside", func(t *testing.T, dir string) {
			os.Mkdir(dir+"/../tree", 0o755)
			os.Symlink("../tree", dir+"/link")
			mustGit(t, dir, "config", "core.worktree", dir+"/link")
		}, "core.worktree"},
		{"message that is a link outside", func(t *testing.T, dir string) {
			write(t, dir+"/../secret", "secret\n")
			os.Symlink("../../secret", dir+"/.git/MERGE_MSG")
		}, "MERGE_MSG leads out of the roots"},
		{"reflog that is a link to what is not there yet, outside", func(t *testing.T, dir string) {
			os.MkdirAll(dir+"/.git/logs", 0o755)
			os.Symlink("../../../new", dir+"/.git/logs/HEAD")
		}, "logs/HEAD leads nowhere"},
		{"branches behind a link outside", func(t *testing.T, dir string) {
			os.Rename(dir+"/.git/refs/heads", dir+"/../heads")
			os.Symlink(dir+"/../heads", dir+"/.git/refs/heads")
		}, "refs/heads leads out of the roots"},
		{"objects are a link outside", func(t *testing.T, dir string) {
			os.Rename(dir+"/.git/objects", dir+"/../objects")
			os.Symlink("../../objects", dir+"/.git/objects")
		}, "out of the roots"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := resolved(t, t.TempDir()) + "/ws/repo"
			os.MkdirAll(dir, 0o755)
			mustGit(t, dir, "init", "-q")
			if got := Read(dir, []string{filepath.Dir(dir)}, nil); got.Error != "" {
				t.Fatalf("error before: %q", got.Error)
			}
			tt.setup(t, dir)
			got := Read(dir, []string{dir, dir + "/../missing"}, nil)
			if !strings.Contains(got.Error, tt.want) || len(got.Entries) != 0 {
				t.Errorf("error %q, entries\n%swant error with %q", got.Error, text(got.Entries), tt.want)
			}
		})
	}
	t.Run("cwd outside", func(t *testing.T) {
		if got := Read(t.TempDir(), []string{t.TempDir()}, nil); got.Error == "" {
			t.Error("no error")
		}
		if got := Read("/nonexistent/x", []string{"/"}, nil); got.Error == "" {
			t.Error("no error for a folder that is not there")
		}
	})
}

// The repository above the root is not this caller's.
func TestReadRepoConfigStaysBeneathRoot(t *testing.T) {
	dir := resolved(t, t.TempDir())
	mustGit(t, dir, "init", "-q")
	os.MkdirAll(dir+"/root/a", 0o755)
	if got := Read(dir+"/root/a", []string{dir + "/root"}, nil); got.Error != "" || len(got.Entries) != 0 {
		t.Errorf("got %q %s", got.Error, text(got.Entries))
	}
	if got := Read(dir+"/root/a", []string{dir + "/root", dir}, nil); got.Error != "" || len(got.Entries) != 0 {
		t.Errorf("with an outer root: got %q %s", got.Error, text(got.Entries))
	}
}

// A condition that does not hold counts as if it did.
func TestReadRepoConfigIsSuperset(t *testing.T) {
	dir := resolved(t, t.TempDir())
	mustGit(t, dir, "init", "-q")
	write(t, dir+"/.git/more", "[a]\n\tb = 1\n")
	mustGit(t, dir, "config", "includeIf.onbranch:other.path", "more")
	write(t, dir+"/.git/config.worktree", "[w]\n\tt = 1\n")
	got := text(Read(dir, []string{dir}, nil).Entries)
	for _, want := range []string{`"a.b"="1"`, `"w.t"="1"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing from\n%s", want, got)
		}
	}
}

// Git looks into submodules by itself.
func TestReadRepoConfigOfSubmodules(t *testing.T) {
	dir := resolved(t, t.TempDir())
	mustGit(t, dir, "init", "-q", "inner")
	mustGit(t, dir+"/inner", "commit", "-q", "--allow-empty", "-m", "x")
	mustGit(t, dir, "clone", "-q", "inner", "sub")
	mustGit(t, dir+"/sub", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", dir+"/inner", "nested")
	mustGit(t, dir+"/sub", "commit", "-q", "-m", "x")
	mustGit(t, dir, "init", "-q", "top")
	mustGit(t, dir+"/top", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", dir+"/sub", "deep/s")
	mustGit(t, dir+"/top", "-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive")
	mustGit(t, dir+"/top/deep/s", "config", "is.outer", "1")
	mustGit(t, dir+"/top/deep/s/nested", "config", "is.nested", "1")
	c := Read(dir+"/top", []string{dir}, nil)
	if c.Error != "" {
		t.Fatal(c.Error)
	}
	for _, want := range []string{`"is.outer"="1"`, `"is.nested"="1"`} {
		if got := text(c.Submodules); !strings.Contains(got, want) {
			t.Errorf("%s is missing from\n%s", want, got)
		}
		if got := text(c.Entries); strings.Contains(got, want) {
			t.Errorf("%s of a submodule is among\n%s", want, got)
		}
	}
	os.Rename(dir+"/top/.git/modules", dir+"/elsewhere")
	os.Symlink(dir+"/elsewhere", dir+"/top/.git/modules")
	if c := Read(dir+"/top", []string{dir + "/top"}, nil); !strings.Contains(c.Error, "out of the roots") {
		t.Errorf("error %q for submodules outside the roots", c.Error)
	}
}

var configSeeds = []string{
	"", "[a]\nb=c\n", "[a \"b\"]\nc = d ; e\n", "\uFEFF[a]\nb\n", "\xef\xbb[a]b\n", "[a]b = \"x\ny\"\n", "[a]b=\\\n c\n", "[a]b=\\x\n",
	"[]b\n", "[.]b\n", "[a.B.c]D\n", "[a\"b\"]c\n", "[a \"b\" ]c\n", "[a\r\"b\"]c\r\n", "[a]\rb=\r\n", "x=1\n[a]\n", "[a]1=2\n", "[a]b_c=1\n", "[a]b # c\n",
	"[a]b= \"\" c\n", "[a]b=c\td  e  \n", "[a]b=\"c", "[a]b\\", "[a]b=\\", "[a]b=#\n", "[a]b=\"#\";\n", "[a \"\\\n\"]b\n", "[a \"\\\"\"]b=c", "[include]path=x\n",
	"[includeif]path=x\n", "[a]b=c\v\f\n", "[a]\vb\n", "[a]b\vc\n", "\r", "\r\n", "[a]b=\r", "[a]\xe4=1\n", "[a \"\xe4\"]b\n", "[a]b=\xe4\n", "#\x00\n", "[a] b = c [d] e\n",
}

// FuzzParseGitConfig compares the parser with git's own.
func FuzzParseGitConfig(f *testing.F) {
	for _, s := range configSeeds {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	file := filepath.Join(dir, "config")
	f.Fuzz(func(t *testing.T, b []byte) {
		var got []abi.ConfigEntry
		err := parseGitConfig(b, func(key, value string, hasValue bool) error {
			if !hasValue {
				value = "true"
			}
			got = append(got, abi.ConfigEntry{Key: key, Value: strings.ToValidUTF8(value, "\uFFFD")})
			return nil
		})
		if len(b) > 4096 {
			return
		}
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
		out, gitErr := git(t, dir, "config", "--file", file, "--list", "-z", "--no-includes")
		switch {
		case err != nil && gitErr != nil:
		case gitErr != nil:
			t.Errorf("git refuses %q, we read\n%s", b, text(got))
		case err != nil:
			if !bytes.ContainsFunc(b, func(r rune) bool { return r == 0 || r == '\uFFFD' }) {
				t.Errorf("git reads %q, we say %v", b, err)
			}
		case text(got) != text(parseList(out)):
			t.Errorf("%q: got\n%sgit\n%s", b, text(got), text(parseList(out)))
		}
	})
}

// Reading while somebody rewrites the repository gives one version or an
// error, and always comes back.
func TestReadRepoConfigUnderChange(t *testing.T) {
	dir := resolved(t, t.TempDir()) + "/repo"
	os.MkdirAll(dir, 0o755)
	mustGit(t, dir, "init", "-q")
	write(t, dir+"/../secret", "[secret]\n\tvalue = 1\n")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			tmp := dir + "/.git/tmp"
			switch i % 3 {
			case 0:
				os.Symlink("../../secret", tmp)
			case 1:
				syscall.Mkfifo(tmp, 0o644)
			default:
				os.WriteFile(tmp, []byte("[a]\n\tb = 1\n"), 0o644)
			}
			os.Rename(tmp, dir+"/.git/config")
		}
	}()
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		got := Read(dir, []string{dir}, nil)
		if strings.Contains(text(got.Entries), "secret") {
			t.Error("read a file outside the roots")
			break
		}
	}
	close(stop)
	<-stopped
}
