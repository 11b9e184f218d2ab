package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	hostconfig "github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// TestSigning: git signs with a key that only the daemon has, and git itself finds
// the signature good.
func TestSigning(t *testing.T) {
	needGit(t)
	if !hosttest.Judged() {
		t.Skip("connections are not judged here")
	}
	key := filepath.Join(t.TempDir(), "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "daemon", "-f", key).CombinedOutput(); err != nil {
		t.Skipf("%v: %s", err, out)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	// Not in /tmp, of which a confined git has one of its own.
	operators, err := os.MkdirTemp("testdata", "operators")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(operators) })
	signers, err := filepath.Abs(filepath.Join(operators, "signers"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(signers, []byte("a@example.com "+string(public)), 0o644); err != nil {
		t.Fatal(err)
	}
	root := tempDir(t)
	d := hosttest.Start(t, hostconfig.Config{Roots: []string{root}, LogLevel: "info"})
	def := hosttest.ReadyJSON(t, "git")
	def["secrets"] = map[string]any{"signer": map[string]any{"from": "file:" + key, "ssh_sign": true}}
	def["config"] = map[string]any{"signing_key": strings.TrimSpace(string(public)), "user_name": "A", "user_email": "a@example.com", "allowed_signers": signers}
	granted := def["capabilities"].(map[string]any)
	granted["exec"] = append(slices.Clone(granted["exec"].([]any)), sshVerifier)
	d.Tool(t, "git", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/git")})
	repo := filepath.Join(root, "repo")
	if err := os.Mkdir(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) (string, int) {
		t.Helper()
		res, out, errs := d.Stream(t, &wire.Call{Tool: "git", Args: args, Cwd: repo}, "")
		if res.Err != nil {
			return res.Err.Error(), 126
		}
		return out + errs, res.ExitCode
	}
	good := func(args ...string) string {
		t.Helper()
		out, code := git(args...)
		if code != 0 {
			t.Fatalf("git %q: exit code %d: %s\n%s", args, code, out, d.Logs())
		}
		return out
	}
	verify := func(what, name string) bool {
		cmd := exec.Command(gitPath, "-c", "gpg.format=ssh", "-c", "gpg.ssh.allowedSignersFile="+signers, what, name)
		cmd.Dir = repo
		out, err := cmd.CombinedOutput()
		return err == nil && strings.Contains(string(out), `Good "git" signature for a@example.com`)
	}
	good("init", "-q", "-b", "main")
	good("commit", "-q", "--allow-empty", "-S", "-m", "signed")
	good("tag", "-s", "-m", "signed", "v1")
	good("commit", "-q", "--allow-empty", "-m", "plain")
	if !verify("verify-commit", "HEAD~1") || !verify("verify-tag", "v1") {
		t.Error("what was to be signed is not")
	}
	if verify("verify-commit", "HEAD") {
		t.Error("what nobody asked to be signed is")
	}
	// Nor is it to the policy's git, whose list of keys is the operator's: the repository's admits none.
	other := filepath.Join(root, "others")
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gitPath, "-C", repo, "config", "gpg.ssh.allowedSignersFile", other).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const said = `Good "git" signature for a@example.com`
	for _, args := range [][]string{{"verify-commit", "HEAD~1"}, {"verify-tag", "v1"}, {"tag", "-v", "v1"}, {"log", "--show-signature", "-1", "HEAD~1"}} {
		if out := good(args...); !strings.Contains(out, said) {
			t.Errorf("git %q: %s", args, out)
		}
	}
	if out := good("log", "--format=%G?"); out != "N\nG\n" {
		t.Errorf("%%G? answers %q", out)
	}
	if out, code := git("verify-commit", "HEAD"); code != 1 || strings.Contains(out, "Good") {
		t.Errorf("a commit that is not signed: exit code %d: %s", code, out)
	}
	// What the repository says of programs and keys has no say.
	for _, kv := range []string{"gpg.format openpgp", "gpg.program /bin/false", "user.signingkey other"} {
		name, value, _ := strings.Cut(kv, " ")
		if out, err := exec.Command(gitPath, "-C", repo, "config", name, value).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	good("commit", "-q", "--allow-empty", "-S", "-m", "again")
	good("rebase", "-q", "-S", "--force-rebase", "HEAD~1")
	if !verify("verify-commit", "HEAD") {
		t.Error("a repository chooses the key or the program")
	}
	if out, code := git("commit", "--allow-empty", "-Sother", "-m", "x"); code != 126 {
		t.Errorf("another key: exit code %d: %s", code, out)
	}
	// As natively, a repository may want all of its commits signed.
	if out, err := exec.Command(gitPath, "-C", repo, "config", "commit.gpgSign", "true").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	good("commit", "-q", "--allow-empty", "-m", "always")
	good("commit", "-q", "--allow-empty", "--no-gpg-sign", "-m", "but not this")
	if !verify("verify-commit", "HEAD~1") || verify("verify-commit", "HEAD") {
		t.Error("commit.gpgSign of the repository")
	}
	text, _ := os.ReadFile(key)
	secret := strings.Split(string(text), "\n")[2]
	if strings.Contains(d.Logs(), secret) {
		t.Error("the log has the key")
	}

	// A tool that asks by itself gets nothing signed but commits and tags.
	shell := map[string]any{"binary": "/bin/sh", "description": "x", "policy": "none", "mutating": true, "secrets": def["secrets"],
		"capabilities": map[string]any{"exec": []string{"/usr/bin"}, "network": []string{"example.com"}}}
	d.Tool(t, "hostile", shell, nil)
	script := `printf hello >f; toold-ssh -Y sign -n git -f k f; echo $?; ls f.sig; printf 'tree 0123456789012345678901234567890123456789\n' >g; toold-ssh -Y sign -n file -f k g; ls g.sig; toold-ssh -Y sign -n git -f k g && cat g.sig; env`
	res, out, errs := d.Stream(t, &wire.Call{Tool: "hostile", Args: []string{"-c", script}, Cwd: repo}, "")
	if res.Err != nil || strings.Contains(out, "f.sig\n") || strings.Count(out, "BEGIN SSH SIGNATURE") != 1 || strings.Contains(out+errs, secret) || !strings.Contains(errs, "neither a commit nor a tag") {
		t.Errorf("%v\n%s%s", res.Err, out, errs)
	}

	// Nor does a call that only reads: it makes no commit.
	reads := maps.Clone(shell)
	reads["mutating"] = false
	d.Tool(t, "reads", reads, nil)
	res, out, errs = d.Stream(t, &wire.Call{Tool: "reads", Args: []string{"-c", script}, Cwd: repo}, "")
	if strings.Contains(out, "BEGIN SSH SIGNATURE") || strings.Contains(out+errs, secret) {
		t.Errorf("%v\n%s%s", res.Err, out, errs)
	}
}

// TestSignPolicy holds what the policy says of signing.
func TestSignPolicy(t *testing.T) {
	key := map[string]string{"signing_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ comment"}
	keys := map[string]string{"allowed_signers": "/etc/keys"}
	shows := abi.ConfigEntry{Key: "log.showsignature", Value: "true"}
	wants := abi.ConfigEntry{Key: "commit.gpgsign", Value: "true"}
	for _, tt := range []struct {
		line   string
		config map[string]string
		repo   []abi.ConfigEntry
		rule   string
		signs  bool
		note   bool

		verifies bool
	}{
		{line: "commit -S -m x", rule: "flag.refused"},
		{line: "tag -s -m x v1", rule: "flag.refused"},
		{line: "commit -m x", repo: []abi.ConfigEntry{wants}, note: true},
		{line: "commit --no-gpg-sign -m x", repo: []abi.ConfigEntry{wants}},
		{line: "log", repo: []abi.ConfigEntry{wants}},
		{line: "commit -S -m x", config: key, signs: true},
		{line: "commit -m x", config: map[string]string{"signing_key": key["signing_key"], "signing": "always"}, signs: true},
		{line: "commit -Skey -m x", config: key, rule: "flag.value"},
		{line: "commit --gpg-sign=key -m x", config: key, rule: "flag.value"},
		{line: "tag -s -m x v1", config: key, signs: true},
		{line: "tag -u key -m x v1", config: key, rule: "flag.refused"},
		{line: "log --show-signature", config: key, rule: "flag.refused"},
		{line: "tag -v v1", rule: "flag.refused"},
		{line: "verify-commit HEAD", rule: "subcommand"},
		{line: "verify-tag --format=%(refname) v1", rule: "subcommand"},
		{line: "merge --verify-signatures x", rule: "flag.refused"},
		{line: "log --format=%G?", rule: "flag.value"},
		{line: "log", repo: []abi.ConfigEntry{shows}, note: true},
		{line: "log --no-show-signature", repo: []abi.ConfigEntry{shows}},
		{line: "merge x", repo: []abi.ConfigEntry{{Key: "merge.verifysignatures", Value: "true"}}, rule: "repo-config"},
		{line: "log --show-signature", config: keys, verifies: true},
		{line: "log", config: keys, repo: []abi.ConfigEntry{shows}, verifies: true},
		{line: "log", config: keys},
		{line: "verify-commit HEAD", config: keys, verifies: true},
		{line: "merge --verify-signatures x", config: keys, verifies: true},
		{line: "log", config: map[string]string{"allowed_signers": "keys"}, rule: "config"},
		{line: "commit -m x", config: map[string]string{"signing_key": "x\ny z"}, rule: "config"},
		{line: "commit -m x", config: map[string]string{"signing": "always"}, rule: "config"},
		{line: "pull -S disk main", config: key, rule: "remote"},
	} {
		d := testPolicy(tt.config).decide(callOf(split(tt.line), append([]abi.ConfigEntry{{Key: "remote.disk.url", Value: "/ws/remote.git"}}, tt.repo...)...))
		signs := strings.Contains(strings.Join(d.Args, " "), "gpg.ssh.program=toold-ssh")
		switch {
		case tt.rule != "" && d.Rule != tt.rule, tt.rule == "" && d.Effect != abi.Allow:
			t.Errorf("git %s: %s by %q: %s", tt.line, d.Effect, d.Rule, d.Reason)
		case tt.rule == "" && strings.Contains(strings.Join(d.Args, " "), "gpg.ssh.program=/usr/bin/ssh-keygen -c gpg.ssh.allowedSignersFile=/etc/keys") == !tt.verifies:
			t.Errorf("git %s: %q", tt.line, d.Args)
		case signs != tt.signs, tt.note != (len(d.Notes) > 0):
			t.Errorf("git %s: signs %v, notes %q", tt.line, signs, d.Notes)
		}
	}
}
