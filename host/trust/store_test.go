package trust

import (
	"bytes"
	"crypto/x509"
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

// The authorities that a tool's environment names are read once, and again when their
// file is another one, even of the same size and time.
func TestRootsFollowTheirFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "own.pem")
	write := func(file string, hosts ...string) {
		t.Helper()
		a, err := NewAuthority(hosts)
		if err != nil {
			t.Fatal(err)
		}
		// The same size, whatever the certificate's.
		text := append(a.PEM(), bytes.Repeat([]byte("\n"), 4096)...)[:4096]
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
	}
	var shared Store
	environment := map[string]string{"CURL_CA_BUNDLE": file}
	roots := func() *x509.CertPool {
		t.Helper()
		pool, err := shared.Roots("curl", environment)
		if err != nil {
			t.Fatal(err)
		}
		return pool
	}
	write(file, "a.example")
	// What was changed just now could be once more without showing.
	if first := roots(); first == roots() {
		t.Error("a file that was changed just now is kept")
	}
	of, _, err := own("curl", environment)
	if err != nil {
		t.Fatal(err)
	}
	first := roots()
	shared.pools = map[string]pool{"curl": {first, of}} // as it is two seconds later
	if roots() != first {
		t.Error("it is read again")
	}
	write(filepath.Join(dir, "other.pem"), "b.example")
	if err := os.Rename(filepath.Join(dir, "other.pem"), file); err != nil {
		t.Fatal(err)
	}
	if second := roots(); second.Equal(first) {
		t.Error("it is not read again")
	}
	if none, err := shared.Roots("curl", nil); none != nil || err != nil {
		t.Errorf("%v, %v", none, err)
	}
	os.Remove(file)
	if _, err := shared.Roots("curl", environment); err == nil || !strings.Contains(err.Error(), "CURL_CA_BUNDLE") {
		t.Errorf("%v", err)
	}
}
