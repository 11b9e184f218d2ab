package execute

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/tools"
)

// A secret in the body of an answer is covered wherever it stands and however the
// body is cut, and the rest stays where it is.
func TestBodyMask(t *testing.T) {
	const token = "sesame-0123456789-abcdef"
	secrets := values([]secret{{Secret: tools.Secret{Header: "Authorization"}, value: "Bearer " + token}})
	m, exact := newMasker(secrets), exactMasker(secrets)
	for name, text := range map[string]string{
		"at the beginning": token + " and more",
		"at the end":       "it is " + token,
		"in base64":        "it is " + base64.StdEncoding.EncodeToString([]byte("user:"+token)) + ".",
		"twice":            `{"a":"` + token + `","b":"Bearer ` + token + `"}`,
		"far behind":       strings.Repeat("x", 2*wholeMask) + token + strings.Repeat("y", 100),
		"on the border":    strings.Repeat("x", wholeMask-7) + token + strings.Repeat("y", wholeMask),
		"nowhere":          strings.Repeat("nothing of it\n", 10_000),
	} {
		for cut, r := range map[string]io.Reader{
			"whole":        strings.NewReader(text),
			"byte by byte": iotest.OneByteReader(strings.NewReader(text[max(0, len(text)-2000):])),
			"with its end": iotest.DataErrReader(strings.NewReader(text)),
		} {
			want := len(text)
			if cut == "byte by byte" {
				want = min(want, 2000)
			}
			got, err := io.ReadAll(newBodyMask(r, m, exact))
			if err != nil || len(got) != want || bytes.Contains(got, []byte(token)) || bytes.Contains(got, []byte("c2VzYW1l")) || strings.Contains(text, "esa") && cut == "whole" && !bytes.Contains(got, []byte("****")) {
				t.Errorf("%s, %s: %d bytes of %d, %v: %.200q", name, cut, len(got), want, err, got)
			}
			if name == "nowhere" && !strings.HasSuffix(text, string(got)) {
				t.Errorf("%s is changed", cut)
			}
		}
	}
}

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
