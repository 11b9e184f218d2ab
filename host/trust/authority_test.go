package trust

import (
	"crypto/x509"
	"fmt"
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

// The certificates of the hosts that are named are there before a call asks for them, and
// others are made for each that asks: neither tells one call of another.
func TestLeavesAreMadeAhead(t *testing.T) {
	hosts := []string{"git.example", "git.example:444", "10.0.0.1:1", "*.x.example"}
	for i := range 2 * maxLeaves {
		hosts = append(hosts, fmt.Sprintf("h%d.example", i))
	}
	a, err := NewAuthority(hosts)
	if err != nil {
		t.Fatal(err)
	}
	for host, ahead := range map[string]bool{"git.example": true, "10.0.0.1": true, "a.x.example": false, "h0.example": true, hosts[len(hosts)-1]: false} {
		one, err1 := a.Leaf(host)
		two, err2 := a.Leaf(host)
		if err1 != nil || err2 != nil || (one == two) != ahead {
			t.Errorf("%s: %v, %v, the same %v", host, err1, err2, one == two)
		}
	}
	if len(a.leaves) != maxLeaves {
		t.Errorf("%d were made", len(a.leaves))
	}
}
