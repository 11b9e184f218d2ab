package trust

import (
	"crypto/x509"
	"testing"
)

// The authority is good for its hosts alone.
func TestAuthorityIsLimited(t *testing.T) {
	for name, hosts := range map[string][]string{
		"localhost":   {"localhost", "127.0.0.1:1"},
		"10.0.0.1":    {"10.0.0.1"},
		"a.x.example": {"*.x.example"},
	} {
		a, err := NewAuthority(hosts)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(a.PEM())
		verify := func(host string) error {
			leaf, err := a.Leaf(host)
			if err != nil {
				t.Fatal(err)
			}
			c, err := x509.ParseCertificate(leaf.Certificate[0])
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Verify(x509.VerifyOptions{Roots: roots, DNSName: host})
			return err
		}
		if err := verify(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, other := range []string{"elsewhere.example", "127.0.0.2", "::1"} {
			if verify(other) == nil {
				t.Errorf("of %v, one for %s is good", hosts, other)
			}
		}
	}
}
