package trust

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Programs are told to trust what they would trust anyway and the tool's authority,
// and of a file that the operator names they get the certificates only.
func TestTrust(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "own.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("mine")})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("key")})
	if err := os.WriteFile(own, append(key, cert...), 0o600); err != nil {
		t.Fatal(err)
	}
	var shared Store
	state := filepath.Join(dir, "state")
	take := func(name string, env map[string]string, hosts ...string) (*Trust, func()) {
		t.Helper()
		got, release, err := shared.Take(state, name, env, hosts)
		if err != nil {
			t.Fatal(err)
		}
		return got, release
	}
	content := func(got *Trust, variable string) string {
		b, err := os.ReadFile(got.Env[variable])
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	system, err := os.ReadFile(systemFile())
	if err != nil {
		t.Skip("this system trusts nobody")
	}
	env := map[string]string{"GIT_SSL_CAINFO": own}
	first, release := take("git", env, "a.example")
	ours := string(first.Authority.PEM())
	if content(first, "GIT_SSL_CAINFO") != string(cert)+ours || content(first, "SSL_CERT_FILE") != strings.TrimRight(string(system), "\n")+"\n"+ours || content(first, "NODE_EXTRA_CA_CERTS") != ours {
		t.Errorf("%.100q", content(first, "GIT_SSL_CAINFO"))
	}
	if len(first.Env) != len(insteadVariables)+len(extraVariables) || len(first.Files) != 3 {
		t.Errorf("%d variables, %d files", len(first.Env), len(first.Files))
	}
	if _, _, err := shared.Take(state, "git", map[string]string{"SSL_CERT_FILE": filepath.Join(dir, "none")}, nil); err == nil || !strings.Contains(err.Error(), "SSL_CERT_FILE") {
		t.Errorf("%v", err)
	}

	// Calls of one tool share it, as long as nothing has changed and for an hour; what a
	// call has stays until it is over.
	if again, over := take("git", env, "a.example"); again != first {
		t.Error("it is made anew")
	} else {
		over()
	}
	other, over := take("other", env, "a.example")
	if other.Authority == first.Authority {
		t.Error("two tools have one authority")
	}
	over()
	changed, over := take("git", env, "a.example", "b.example")
	if changed.Authority == first.Authority || content(first, "SSL_CERT_FILE") == "" {
		t.Error("it is for other hosts")
	}
	release()
	over()
	if _, err := os.Stat(first.dir); !os.IsNotExist(err) {
		t.Errorf("what nobody has is left: %v", err)
	}
	if err := os.WriteFile(own, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, over := take("git", env, "a.example", "b.example"); got == changed {
		t.Error("another file is trusted, and it is the same")
	} else {
		os.Remove(got.Env["SSL_CERT_FILE"])
		over()
		if again, over := take("git", env, "a.example", "b.example"); again == got {
			t.Error("its file is gone")
		} else {
			over()
			again.made = again.made.Add(-authorityUse - time.Second)
			if late, over := take("git", env, "a.example", "b.example"); late == again {
				t.Error("it is used for more than an hour")
			} else {
				over()
			}
		}
	}
	if left, _ := os.ReadDir(filepath.Join(state, Folder)); len(left) != 2 { // of two tools
		t.Errorf("%d are left", len(left))
	}
}
