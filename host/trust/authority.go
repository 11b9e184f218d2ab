// Package trust has the programs of a tool trust the daemon, where that reads the
// requests which they make: an authority for each tool, and the files by which the
// tool's programs trust it beside what they would trust anyway.
//
//   - An authority is limited to the hosts whose requests are read. Its key is in the
//     daemon's memory alone.
//   - No tool can change what another, or a later call of its own, is to trust.
//   - Of a file that an operator names, programs get the certificates and nothing
//     else.
//
// It does not read requests, which host/egress does, and it does not make programs
// look at the files: some have certificates of their own.
package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/toold/toold/host/hostrule"
)

const (
	// authorityLife is how long an authority and what it issues are valid: longer
	// than calls take, and no longer than a day.
	authorityLife = 24 * time.Hour
	// authorityUse is how long calls begin with the same authority.
	authorityUse = time.Hour
)

// Authority issues certificates for the hosts of one tool; the tool's programs trust it. Its
// key is in this process's memory and nowhere else, and its certificate is limited to these
// hosts. It does not change, so calls may share it: it enables none of them to do anything that
// it could not do without it.
type Authority struct {
	key, leafKey *ecdsa.PrivateKey
	cert         *x509.Certificate
	// leaves are those of the hosts that are named, made at once: a call does not wait for
	// one, and its time says nothing of where others have connected to.
	leaves map[string]*tls.Certificate
}

// maxLeaves is how many certificates are made at once.
const maxLeaves = 32

// NewAuthority makes an authority for hosts, which are as in hostrule.Match.
func NewAuthority(hosts []string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of an authority: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of a certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:                serial(),
		Subject:                     pkix.Name{CommonName: "toold, for one tool"},
		NotBefore:                   now.Add(-time.Hour),
		NotAfter:                    now.Add(authorityLife),
		IsCA:                        true,
		BasicConstraintsValid:       true,
		MaxPathLenZero:              true,
		KeyUsage:                    x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true,
	}
	all := false
	for _, h := range hosts {
		name, _ := hostrule.Split(h)
		all = all || name == "*"
		name = strings.TrimPrefix(name, "*.")
		if a, err := netip.ParseAddr(name); err == nil {
			bits := a.BitLen()
			template.PermittedIPRanges = append(template.PermittedIPRanges, &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, bits)})
		} else {
			template.PermittedDNSDomains = append(template.PermittedDNSDomains, name)
		}
	}
	// A kind of name of which none is listed would not be limited.
	switch {
	case all:
		template.PermittedDNSDomains, template.PermittedIPRanges = nil, nil
	case len(template.PermittedDNSDomains) == 0:
		template.PermittedDNSDomains = []string{"invalid"}
	case len(template.PermittedIPRanges) == 0:
		template.ExcludedIPRanges = []*net.IPNet{
			{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
			{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of an authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &Authority{key: key, leafKey: leafKey, cert: cert, leaves: map[string]*tls.Certificate{}}
	for _, h := range hosts {
		name, _ := hostrule.Split(h)
		if strings.Contains(name, "*") || a.leaves[name] != nil || len(a.leaves) == maxLeaves {
			continue
		}
		if a.leaves[name], err = a.issue(name); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// PEM returns the certificate for programs to trust.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Leaf returns a certificate for host, a name or an address. It is shared, and must not be
// changed.
func (a *Authority) Leaf(host string) (*tls.Certificate, error) {
	if made := a.leaves[host]; made != nil {
		return made, nil
	}
	return a.issue(host)
}

func (a *Authority) issue(host string) (*tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: serial(),
		// No common name: GnuTLS takes one for a name of a host.
		Subject:     pkix.Name{Organization: []string{"toold, for one host of one tool"}},
		NotBefore:   a.cert.NotBefore,
		NotAfter:    a.cert.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &a.leafKey.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for %s: %w", host, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey}, nil
}

func serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b)
	b[0] &= 0x7f
	b[15] |= 1
	return new(big.Int).SetBytes(b)
}
