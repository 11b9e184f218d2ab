package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/process"
)

// sshTool is a daemon whose tool git logs in at s with the daemon's key, at a level
// of confinement.
func sshTool(t *testing.T, s *hosttest.SSHD, most string, policy bool, more M) *hosttest.Daemon {
	t.Helper()
	if !process.Confinement().Filter || os.Getenv("TOOLD_TEST_CONFINE") == "landlock" {
		t.Skip("connections are not judged here")
	}
	d := hosttest.Start(t, config.Config{ConfineMost: most, LogLevel: "info"})
	if err := os.WriteFile(d.KnownHosts(), []byte(s.Known), 0o600); err != nil {
		t.Fatal(err)
	}
	def := M{
		"binary": "/usr/bin/git", "mutating": true, "stdin": false, "timeout": 60,
		"environment":  M{"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_NOSYSTEM": "1"},
		"capabilities": M{"exec": []string{"/usr/bin", "/usr/lib/git-core"}, "network": []string{"localhost:" + s.Port}},
		"secrets":      M{"deploy": M{"from": "file:" + s.Key, "ssh_key": true, "host": "localhost:" + s.Port}},
	}
	for k, v := range more {
		def[k] = v
	}
	modules := map[string]string{}
	if policy {
		modules["restricted.wasm"] = hosttest.Guest(t, "host/testdata/guests/wirer")
	}
	d.Tool(t, "git", def, modules)
	return d
}

// Git clones, fetches and pushes with a key that only the daemon has.
func TestSSHKey(t *testing.T) {
	s := hosttest.NewSSHD(t)
	s.Git(t, "init", "-q", "--bare", "-b", "main", "allow.git")
	s.Git(t, "init", "-q", "--bare", "-b", "main", "other.git")
	for _, most := range []string{"", "seccomp"} {
		d := sshTool(t, s, most, true, nil)
		git := func(dir string, args ...string) *answer {
			t.Helper()
			return ask(t, d.Socket, M{"tool": "git", "cwd": filepath.Join(d.Root, dir), "args": args})
		}
		good := func(dir string, args ...string) string {
			t.Helper()
			a := git(dir, args...)
			if a.ExitCode != 0 {
				t.Fatalf("git %s: %s\n%s", strings.Join(args, " "), a.raw, d.Logs())
			}
			return a.Stdout + a.Stderr
		}
		branch := "b-" + most
		good("", "clone", "-q", s.URL("allow.git"), "copy")
		good("copy", "commit", "-q", "--allow-empty", "-m", "first")
		good("copy", "push", "origin", "HEAD:refs/heads/"+branch)
		if got := s.Git(t, "-C", "allow.git", "log", "-1", "--format=%s", branch); got != "first" {
			t.Errorf("the server has %q", got)
		}
		good("copy", "fetch", "-q", "origin")
		if got := good("copy", "ls-remote", "origin", branch); !strings.Contains(got, "refs/heads/"+branch) {
			t.Errorf("ls-remote: %s", got)
		}
		a := git("copy", "push", s.URL("other.git"), "HEAD:refs/heads/x")
		if a.ExitCode == 0 || !strings.Contains(a.Stderr, "toold: denied by rule wirer.denied: the push to localhost:"+s.Port+filepath.Join(s.Dir, "other.git")+" of refs/heads/x: ") {
			t.Errorf("%s", a.raw)
		}
	}
}
