package host_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
)

// authority issues certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t}
	a.key = newKey(t)
	a.cert, a.pem = a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, a.key)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) issue(c *x509.Certificate, key crypto.Signer) (*x509.Certificate, []byte) {
	a.t.Helper()
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := a.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatal(err)
	}
	return c, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// client is a client certificate and its key, in PEM.
func (a *authority) client(name string) (cert, key []byte) {
	a.t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		a.t.Fatal(err)
	}
	_, cert = a.issue(&x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, k)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// serve is an https server with a certificate of a for name, or for its address,
// that asks for a client certificate.
func (a *authority) serve(name string, ask tls.ClientAuthType, h http.HandlerFunc) *httptest.Server {
	a.t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: "server"}}
	if c.DNSNames = []string{name}; name == "" {
		c.DNSNames, c.IPAddresses = nil, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	key := newKey(a.t)
	cert, _ := a.issue(c, key)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}, ClientAuth: ask, ClientCAs: pool}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	a.t.Cleanup(s.Close)
	return s
}

// TestTLS: a host is reached with the authorities, the certificate and the name that
// tool.json says for it, and no other host is; the key is seen nowhere.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, text []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return "file:" + path
	}
	ours, theirs := newAuthority(t), newAuthority(t)
	cert, key := ours.client("alice")
	_, wrongKey := ours.client("bob")
	block, _ := pem.Decode(key)
	inOneLine := base64.StdEncoding.EncodeToString(block.Bytes)

	var mu sync.Mutex
	var seen []string // "server: names of clients"
	note := func(server string, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		names := server + ":"
		for _, c := range r.TLS.PeerCertificates {
			names += " " + c.Subject.CommonName
		}
		seen = append(seen, names)
	}
	away := ours.serve("", tls.RequestClientCert, func(w http.ResponseWriter, r *http.Request) { note("away", r) })
	db := ours.serve("db.internal", tls.RequireAndVerifyClientCert, func(w http.ResponseWriter, r *http.Request) {
		note("db", r)
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, away.URL+"/landed", http.StatusFound)
		case "/key":
			w.Write(append(key, inOneLine...))
		}
	})
	host := func(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "https://") }
	secret := func(from, is string, s *httptest.Server) M { return M{"from": from, "tls": is, "host": host(s)} }
	ca, client, private := file("ca.pem", ours.pem), file("client.pem", cert), file("client.key", key)
	if err := os.Link(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-again.pem")); err != nil {
		t.Fatal(err) // certificates are no secret, and may have several names
	}
	whole := M{"ca": secret(ca, "ca", db), "cert": secret(client, "cert", db), "key": secret(private, "key", db)}
	with := func(more M) M {
		m := maps.Clone(whole)
		maps.Copy(m, more)
		return m
	}
	without := func(names ...string) M {
		m := maps.Clone(whole)
		maps.DeleteFunc(m, func(name string, _ any) bool { return slices.Contains(names, name) })
		return m
	}
	named := M{host(db): M{"server_name": "db.internal"}}
	start := func(t *testing.T, secrets, settings M) *counter {
		return newCounter(t, nil, nil, func(hc *config.Config) {
			hosttest.WriteTool(t, hc.Tools, "source", M{
				"config":       M{"url": "", "surface": `raw {"tools":[{"name":"look"}]}`},
				"identity":     M{"claims": []string{"user", "url"}, "secret": []string{"password"}},
				"capabilities": M{"http": M{"hosts": []string{host(db), host(away)}, "tls": settings}},
				"secrets":      secrets, "limits": M{"fuel": 100_000_000_000}, "reliability": M{"retry": M{"initial_ms": 1, "cap_ms": 2}},
			}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/surface")})
		}, reliable)
	}
	for _, tt := range []struct {
		name              string
		secrets, settings M
		url               string
		says              string // empty: it is answered
		sees              string
	}{
		{"nothing is said", M{}, nil, db.URL, "127.0.0.1", ""},
		{"no authority", M{}, named, db.URL, "unknown authority", ""},
		{"no client certificate", without("cert", "key"), named, db.URL, "certificate required", ""},
		{"the host's own name", whole, nil, db.URL, "127.0.0.1", ""},
		{"another name", whole, M{host(db): M{"server_name": "other.internal"}}, db.URL, "not other.internal", ""},
		{"another authority", with(M{"ca": secret(file("theirs.pem", theirs.pem), "ca", db)}), named, db.URL, "unknown authority", ""},
		{"the key of another certificate", with(M{"key": secret(file("wrong.key", wrongKey), "key", db)}), named, db.URL, "not granted", ""},
		{"no certificates in the ca", with(M{"ca": secret(file("empty.pem", []byte("x")), "ca", db)}), named, db.URL, "no certificate in PEM", ""},
		{"all that it takes", whole, named, db.URL, "", "db: alice"},
		{"nobody checks", without("ca"), M{host(db): M{"insecure_skip_verify": true}}, db.URL, "", "db: alice"},
		{"nobody checks another host", whole, M{host(away): M{"insecure_skip_verify": true}}, db.URL, "127.0.0.1", ""},
		{"in the clear", whole, named, "http://" + host(db), "use https", ""},
		{"a redirect", with(M{"ca2": secret(ca, "ca", away)}), named, db.URL + "/away", "", "db: alice, away:"},
		{"a redirect to one that is not trusted", whole, named, db.URL + "/away", "unknown authority", "db: alice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := start(t, tt.secrets, tt.settings)
			seen = nil
			// The claim says where, so that listing asks nobody.
			token := c.token(t, nil)
			r := c.call(t, token, "look", M{"do": "http", "path": tt.url})
			switch {
			case tt.says == "" && r.Err != nil, tt.says != "" && (r.Err == nil || !strings.Contains(r.Err.Message, tt.says)):
				t.Errorf("%v, want %q", r.Err, tt.says)
			}
			if got := strings.Join(seen, ", "); got != tt.sees {
				t.Errorf("the servers saw %q, want %q", got, tt.sees)
			}
			if strings.Contains(c.Logs(), "PRIVATE KEY") || strings.Contains(c.Logs(), inOneLine) {
				t.Error("the key is in the log")
			}
			// What tool.json does not trust it does not trust in a second attempt.
			if tt.says != "" && tt.says != "certificate required" {
				r := c.call(t, token, "look", M{"do": "insist " + tt.url})
				if n := strings.Count(c.Logs(), `"message":"attempt `); n != 1 || resultCode(r) != fault.ToolFailed || r.Err.Retriable() {
					t.Errorf("%d attempts, %v", n, r.Err)
				}
			}
		})
	}

	t.Run("what is seen of the key", func(t *testing.T) {
		c := start(t, whole, named)
		token := c.token(t, nil)
		r := c.call(t, token, "look", M{"do": "leak", "path": db.URL + "/key"})
		all := string(r.Stdout) + string(r.Stderr) + string(r.Data) + r.Err.Error() + c.Logs()
		for _, part := range []string{inOneLine[:len(inOneLine)/2], strings.Split(string(key), "\n")[1]} {
			if strings.Contains(all, part) {
				t.Errorf("the key is seen: %s", all)
			}
		}
		if !strings.Contains(string(r.Stdout), "[secret]") {
			t.Errorf("it is not said that something was masked: %s", r.Stdout)
		}
	})

	t.Run("another certificate, other tools", func(t *testing.T) {
		c := start(t, whole, named)
		token := c.token(t, nil)
		misses := func() int {
			c.list(t, token, M{})
			return strings.Count(c.Logs(), `"surface miss"`)
		}
		misses()
		if n := misses(); n != 1 {
			t.Errorf("%d discoveries, want 1", n)
		}
		cert, key := ours.client("carol")
		file("client.pem", bytes.Clone(cert))
		file("client.key", key)
		if n := misses(); n != 2 {
			t.Errorf("%d discoveries with another certificate, want 2", n)
		}
		seen = nil
		if r := c.call(t, token, "look", M{"do": "http", "path": db.URL}); r.Err != nil || !slices.Equal(seen, []string{"db: carol"}) {
			t.Errorf("%v, the servers saw %v", r.Err, seen)
		}
	})
}
