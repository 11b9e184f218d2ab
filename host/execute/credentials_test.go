package execute

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/tools"
)

// Programs are told to trust what they would trust anyway and the call's authority,
// and of a file that the operator names they get the certificates only.
func TestTrust(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "own.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("mine")})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("key")})
	if err := os.WriteFile(own, append(key, cert...), 0o600); err != nil {
		t.Fatal(err)
	}
	trust := func(env map[string]string) (map[string]string, error) {
		r := &running{Attempt: call.Attempt{Run: &call.Run{Decided: call.Decided{Pinned: call.Pinned{Tool: &tools.Tool{Name: "git", Def: &tools.Definition{Environment: env}}}}}}}
		list, err := r.trust([]byte("the call's"))
		m := map[string]string{}
		for _, f := range list {
			for _, name := range f.variables {
				m[name] = string(f.content)
			}
		}
		return m, err
	}
	system, err := systemAuthorities()
	if err != nil {
		t.Fatal(err)
	}
	m, err := trust(map[string]string{"GIT_SSL_CAINFO": own})
	if err != nil || m["GIT_SSL_CAINFO"] != string(cert)+"the call's" || m["SSL_CERT_FILE"] != string(system)+"the call's" || m["NODE_EXTRA_CA_CERTS"] != "the call's" {
		t.Errorf("%v: %.100q", err, m)
	}
	if len(m) != len(trustVariables)+len(extraVariables) {
		t.Errorf("%d variables", len(m))
	}
	if _, err := trust(map[string]string{"SSL_CERT_FILE": filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "SSL_CERT_FILE") {
		t.Errorf("%v", err)
	}
}
