package sshkey

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A signature is one that ssh-keygen takes, in git's namespace alone, and of a commit
// or a tag alone.
func TestSign(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip(err)
	}
	const id = "0123456789012345678901234567890123456789"
	commit := "tree " + id + "\nauthor a <a@b> 1 +0000\n\nx\n"
	for _, kind := range [][]string{{"ed25519"}, {"rsa", "-b", "2048"}, {"ecdsa"}} {
		dir := t.TempDir()
		file := filepath.Join(dir, "key")
		if out, err := exec.Command("ssh-keygen", append([]string{"-q", "-N", "", "-f", file, "-t"}, kind...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		pem, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		k := &Key{Name: "sign", PEM: strings.TrimSpace(string(pem))}
		armored, what, err := k.Sign([]byte(commit))
		if err != nil || !strings.HasPrefix(what, "commit sha512:") {
			t.Fatal(what, err)
		}
		sig := filepath.Join(dir, "sig")
		if err := os.WriteFile(sig, armored, 0o600); err != nil {
			t.Fatal(err)
		}
		for namespace, good := range map[string]bool{"git": true, "file": false} {
			cmd := exec.Command("ssh-keygen", "-Y", "check-novalidate", "-n", namespace, "-s", sig)
			cmd.Stdin = strings.NewReader(commit)
			if out, err := cmd.CombinedOutput(); (err == nil) != good {
				t.Errorf("%s, namespace %s: %v: %s", kind[0], namespace, err, out)
			}
		}
		if _, what, err := k.Sign([]byte("object " + id + "\ntype commit\n")); err != nil || !strings.HasPrefix(what, "tag ") {
			t.Error(what, err)
		}
		for _, bad := range []string{"", "hello\n", "tree x\n", "tree " + id, "tree " + strings.ToUpper("a") + id[1:] + "\n", "SSHSIG", commit + strings.Repeat("x", maxObject)} {
			if armored, _, err := k.Sign([]byte(bad)); err == nil || armored != nil {
				t.Errorf("%.40q is signed", bad)
			}
		}
	}
}
