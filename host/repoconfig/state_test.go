package repoconfig

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

func value(list []abi.ConfigEntry, key string) (string, bool) {
	i := slices.IndexFunc(list, func(e abi.ConfigEntry) bool { return e.Key == key })
	if i < 0 {
		return "", false
	}
	return list[i].Value, true
}

func symlink(t *testing.T, target, name string) {
	t.Helper()
	os.RemoveAll(name)
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

// repository makes root/repo with a commit, and root's sibling out with a
// repository of somebody else.
func repository(t *testing.T) (root, repo, out string) {
	dir := resolved(t, t.TempDir())
	root, repo, out = dir+"/root", dir+"/root/repo", dir+"/out"
	for _, d := range []string{repo, out + "/repo"} {
		os.MkdirAll(d, 0o755)
		mustGit(t, d, "init", "-q", "-b", "main")
		mustGit(t, d, "commit", "-q", "--allow-empty", "-m", "x")
	}
	return root, repo, out
}

func TestStateOfRepository(t *testing.T) {
	root, repo, _ := repository(t)
	want := map[string]string{
		"HEAD": "ref: refs/heads/main\n", "rebase-merge/strategy": "x/git\n", "rebase-merge/strategy_opts": " --a\n", "rebase-merge/gpg_sign_opt": "-S\n",
		"rebase-merge/git-rebase-todo": "x true\n", "rebase-apply/apply-opt": "'-p2'\n", "rebase-apply/strategy": "y", "rebase-apply/strategy_opts": "z",
		"rebase-apply/gpg_sign_opt": "-S", "sequencer/opts": "[options]\n", "sequencer/todo": "pick x\n", "remotes/old": "URL: /x\n", "branches/older": "/y\n",
	}
	got := Read(repo, []string{root}, nil)
	if got.Error != "" || len(got.State) != 1 {
		t.Fatalf("an idle repository: %+v", got)
	}
	for name, content := range want {
		write(t, repo+"/.git/"+name, content)
	}
	write(t, repo+"/.git/rebase-merge/message", "not asked for")
	os.MkdirAll(repo+"/.git/remotes/folder", 0o755)
	got = Read(repo, []string{root}, nil)
	if got.Error != "" || len(got.State) != len(want) {
		t.Errorf("%+v", got)
	}
	for name, content := range want {
		if v, _ := value(got.State, name); v != content {
			t.Errorf("%s is %q, want %q", name, v, content)
		}
	}
	// In a worktree, what was begun is the worktree's, and remotes are shared.
	mustGit(t, repo, "worktree", "add", "-q", "../tree")
	got = Read(root+"/tree", []string{root}, nil)
	if v, _ := value(got.State, "HEAD"); got.Error != "" || v != "ref: refs/heads/tree\n" || len(got.State) != 3 {
		t.Errorf("worktree: %+v", got)
	}
	write(t, repo+"/.git/sequencer/todo", strings.Repeat("pick x\n", maxConfigBytes/6))
	if got = Read(repo, []string{root}, nil); !strings.Contains(got.Error, "too large") {
		t.Errorf("error %q", got.Error)
	}
	if got := Read(root, []string{root}, nil); got.Error != "" || len(got.State) != 0 {
		t.Errorf("no repository: %+v", got)
	}
}

// TestLinksInRepository puts a link to the outside in each place of a
// repository that git reads: in its own, in a submodule's and in a remote's.
func TestLinksInRepository(t *testing.T) {
	places := []string{"config", "HEAD", "index", "packed-refs", "MERGE_MSG", "SQUASH_MSG", "COMMIT_EDITMSG", "shallow", "info/attributes", "info/exclude", "logs/HEAD", "logs/refs/heads/main",
		"refs/heads/x", "refs/heads/deep/er", "refs/remotes/origin/x", "refs/tags", "objects", "objects/ab", "objects/pack", "objects/pack/pack-x.pack", "objects/info", "objects/info/commit-graph",
		"objects/info/commit-graphs", "objects/info/commit-graphs/commit-graph-chain", "objects/info/alternates", "rebase-merge/message", "rebase-merge", "rebase-apply/patch", "sequencer/todo", "sequencer", "worktrees/w/gitdir", "rr-cache/x/postimage", "remotes/x", "branches/x", "modules", "modules/x"}
	model, _, _ := repository(t)
	mustGit(t, model, "init", "-q", "--bare", "repo/.git/modules/a/b")
	mustGit(t, model, "init", "-q", "--bare", "remote.git")
	for _, place := range places {
		t.Run(place, func(t *testing.T) {
			for _, kind := range []string{"its own", "submodule", "remote"} {
				out := resolved(t, t.TempDir())
				root := resolved(t, t.TempDir())
				repo := root + "/repo"
				if err := os.CopyFS(root, os.DirFS(model)); err != nil {
					t.Fatal(err)
				}
				dir, args := repo+"/.git", []string(nil)
				switch kind {
				case "submodule":
					if strings.HasPrefix(place, "modules") || place == "HEAD" {
						continue
					}
					dir = repo + "/.git/modules/a/b"
				case "remote":
					if strings.HasPrefix(place, "modules") {
						continue
					}
					dir = root + "/remote.git"
					args = []string{"-c", "a=b", "fetch", "-q", "../remote"}
				}
				if c := Read(repo, []string{root}, args); c.Error != "" || c.RemoteError != "" {
					t.Fatalf("%s, before: %s%s", kind, c.Error, c.RemoteError)
				}
				os.MkdirAll(dir+"/"+place, 0o755)
				os.MkdirAll(out+"/folder", 0o755)
				symlink(t, out+"/folder", dir+"/"+place)
				c := Read(repo, []string{root}, args)
				if got := c.Error + c.RemoteError; !strings.Contains(got, "roots") && !strings.Contains(got, "link") {
					t.Errorf("%s: error %q", kind, got)
				}
				if kind == "remote" && c.Error != "" {
					t.Errorf("a remote spoils what stays here: %s", c.Error)
				}
			}
		})
	}
}

// TestRemotesOfRepository: whatever way a folder is named, it is read when it
// is beneath the roots, and what leads out of them is an error.
func TestRemotesOfRepository(t *testing.T) {
	for _, tt := range []struct {
		name string
		// prepare makes root/remote, a bare repository with a variable of its
		// own, what it likes.
		prepare func(t *testing.T, root, repo, out string)
		args    []string
		read    bool
		err     string
	}{
		{"none", nil, []string{"status"}, false, ""},
		{"url", func(t *testing.T, root, repo, out string) {
			mustGit(t, repo, "config", "remote.o.url", root+"/remote")
		}, nil, true, ""},
		{"pushurl of a name with dots", func(t *testing.T, root, repo, out string) {
			mustGit(t, repo, "config", "remote.o.x.pushurl", "file://"+root+"/remote")
		}, nil, true, ""},
		{"relative url", func(t *testing.T, root, repo, out string) {
			mustGit(t, repo, "config", "remote.o.url", "../remote")
		}, nil, true, ""},
		{"remote of a branch", func(t *testing.T, root, repo, out string) {
			mustGit(t, repo, "config", "branch.main.remote", "../remote")
		}, nil, true, ""},
		{"insteadOf", func(t *testing.T, root, repo, out string) {
			mustGit(t, repo, "config", "remote.o.url", "short:mote")
			mustGit(t, repo, "config", "url."+root+"/re.insteadOf", "short:")
		}, nil, true, ""},
		{"argument", nil, []string{"fetch", "../remote"}, true, ""},
		{"argument, as a URL", nil, []string{"clone", "-q", "file://ROOT/remote", "x"}, true, ""},
		{"argument of what goes nowhere", nil, []string{"log", "../remote"}, false, ""},
		{"ssh", nil, []string{"fetch", "host:../remote"}, false, ""},
		{"suffix", func(t *testing.T, root, repo, out string) {
			os.Rename(root+"/remote", root+"/other.git")
		}, []string{"fetch", "../other"}, true, ""},
		{"working tree", func(t *testing.T, root, repo, out string) {
			os.Mkdir(root+"/tree", 0o755)
			os.Rename(root+"/remote", root+"/tree/.git")
		}, []string{"fetch", "../tree"}, true, ""},
		{"gitfile", func(t *testing.T, root, repo, out string) {
			write(t, root+"/tree/.git", "gitdir: "+root+"/remote\n")
		}, []string{"fetch", "../tree"}, true, ""},
		{"file that is none", func(t *testing.T, root, repo, out string) {
			write(t, root+"/bundle", "# v2 git bundle\n")
		}, []string{"fetch", "../bundle"}, false, ""},
		{"link", func(t *testing.T, root, repo, out string) {
			symlink(t, out+"/repo", root+"/remote")
		}, []string{"fetch", "../remote"}, false, "out of the roots"},
		{"gitfile to the outside", func(t *testing.T, root, repo, out string) {
			write(t, root+"/tree/.git", "gitdir: "+out+"/repo/.git\n")
		}, []string{"fetch", "../tree"}, false, "out of the roots"},
		{"gitfile by any name, padded", func(t *testing.T, root, repo, out string) {
			write(t, root+"/file", "gitdir: "+out+"/repo/.git"+strings.Repeat("\n", maxGitFile))
		}, []string{"fetch", "../file"}, false, "too large"},
		{"commondir", func(t *testing.T, root, repo, out string) {
			write(t, root+"/remote/commondir", out+"/repo/.git\n")
		}, []string{"fetch", "../remote"}, false, "out of the roots"},
		{"alternates", func(t *testing.T, root, repo, out string) {
			write(t, root+"/remote/objects/info/alternates", out+"/repo/.git/objects\n")
		}, []string{"fetch", "../remote"}, false, "out of the roots"},
		{"alternates whose folders are links", func(t *testing.T, root, repo, out string) {
			write(t, root+"/remote/objects/info/alternates", root+"/pool\n")
			os.Mkdir(root+"/pool", 0o755)
			symlink(t, out+"/repo/.git/objects/pack", root+"/pool/pack")
		}, []string{"fetch", "../remote"}, false, "out of the roots"},
		{"working tree outside", func(t *testing.T, root, repo, out string) {
			mustGit(t, root+"/remote", "config", "core.bare", "false")
			mustGit(t, root+"/remote", "config", "core.worktree", out)
		}, []string{"fetch", "../remote"}, false, "core.worktree"},
		{"configuration that git refuses", func(t *testing.T, root, repo, out string) {
			write(t, root+"/remote/config", "[core\n")
		}, []string{"fetch", "../remote"}, false, "bad section"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, repo, out := repository(t)
			mustGit(t, root, "init", "-q", "--bare", "remote")
			mustGit(t, root+"/remote", "config", "its.own", "yes")
			if tt.prepare != nil {
				tt.prepare(t, root, repo, out)
			}
			for i := range tt.args {
				tt.args[i] = strings.ReplaceAll(tt.args[i], "ROOT", root)
			}
			c := Read(repo, []string{root}, tt.args)
			_, read := value(c.Remotes, "its.own")
			if c.Error != "" || tt.err == "" && (c.RemoteError != "" || read != tt.read) || tt.err != "" && !strings.Contains(c.RemoteError, tt.err) {
				t.Errorf("%+v", c)
			}
		})
	}
	// Where there is no repository yet, as for clone.
	root, _, out := repository(t)
	symlink(t, out+"/repo", root+"/remote")
	if c := Read(root, []string{root}, []string{"clone", "remote"}); !strings.Contains(c.RemoteError, "out of the roots") {
		t.Errorf("%+v", c)
	}
	var many []string
	for range maxRemotes + 2 {
		many = append(many, strings.Repeat("x", len(many)+1))
	}
	if c := Read(root, []string{root}, append([]string{"fetch"}, many...)); c.RemoteError == "" {
		t.Error("any number of folders is looked at")
	}
}

// TestConflictsOutside: a prepared list of conflicts does not lead git out of
// the working tree.
func TestConflictsOutside(t *testing.T) {
	root, repo, _ := repository(t)
	const id = "0123456789012345678901234567890123456789\t"
	write(t, repo+"/.git/MERGE_RR", id+"a/b\x00"+id+"c\x00")
	if c := Read(repo, []string{root}, nil); c.Error != "" {
		t.Error(c.Error)
	}
	for _, path := range []string{"/etc/x", "../x", "a/../../x"} {
		write(t, repo+"/.git/MERGE_RR", id+"a\x00"+id+path+"\x00")
		if c := Read(repo, []string{root}, nil); !strings.Contains(c.Error, "outside of the working tree") {
			t.Errorf("%s: error %q", path, c.Error)
		}
	}
}

// Filters that attributes ask for are told, where git reads attributes; those of a link it does not.
func TestFiltersOfAttributes(t *testing.T) {
	root, repo, out := repository(t)
	filters := func() string {
		got := Read(repo, []string{root}, nil)
		if got.Error != "" {
			t.Fatal(got.Error)
		}
		names, _ := value(got.State, "filters")
		return names
	}
	write(t, repo+"/.gitattributes", "# *.c filter=none\n*.bin filter=lfs diff=lfs -text\n*.iso filter=lfs\n*.x -filter\n")
	if got := filters(); got != "lfs" {
		t.Errorf("%q", got)
	}
	write(t, repo+"/.git/info/attributes", "* text filter=crypt")
	if got := filters(); got != "lfs\ncrypt" {
		t.Errorf("%q", got)
	}
	write(t, out+"/attributes", "* filter=outside\n")
	symlink(t, out+"/attributes", repo+"/.gitattributes")
	if got := filters(); got != "crypt" {
		t.Errorf("%q", got)
	}
}

// TestObjectsOfLFS: that there are files in LFS is told, and nothing stands for one that
// lies elsewhere.
func TestObjectsOfLFS(t *testing.T) {
	root, repo, out := repository(t)
	read := func() (string, string) {
		got := ReadLFS(repo, []string{root}, []string{"checkout"})
		has, _ := value(got.State, "lfs")
		return has, got.Error
	}
	if has, err := read(); has != "" || err != "" {
		t.Errorf("%q, %s", has, err)
	}
	write(t, repo+"/.lfsconfig", "[lfs]\n")
	object := repo + "/.git/lfs/objects/ab/cd/abcd"
	write(t, object, "large\n")
	write(t, repo+"/.git/lfs/tmp/x", "")
	if has, err := read(); has != "objects\nlfsconfig" || err != "" {
		t.Errorf("%q, %s", has, err)
	}
	write(t, out+"/cd/abcd", "outside\n")
	for _, link := range [][2]string{{out + "/cd/abcd", object}, {out + "/cd", repo + "/.git/lfs/objects/ab/cd"}, {out, repo + "/.git/lfs/objects/ab"}, {out, repo + "/.git/lfs/objects"}, {out, repo + "/.git/lfs"}, {"objects/ab", repo + "/.git/lfs/more"}} {
		if err := os.RemoveAll(repo + "/.git/lfs"); err != nil {
			t.Fatal(err)
		}
		write(t, object, "large\n")
		symlink(t, link[0], link[1])
		if has, err := read(); err == "" {
			t.Errorf("with a link %s: %q", link[1], has)
		}
		// Without git-lfs nobody reads what is in it.
		if got := Read(repo, []string{root}, []string{"checkout"}); got.Error != "" && link[1] != repo+"/.git/lfs" {
			t.Errorf("with a link %s, and no git-lfs: %s", link[1], got.Error)
		}
	}
}
