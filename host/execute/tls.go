package execute

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"strings"

	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/tools"
)

// fetchTLS is what counts for TLS with one host.
type fetchTLS struct {
	// Host is a name, with a port where only that one is meant.
	Host string
	// CA, Cert and Key are in PEM. Without CA the authorities of the system count.
	CA, Cert, Key secret
	ServerName    string
	Insecure      bool
}

// tlsOf is what a tool says of TLS, by host: its secrets and what granted has.
func tlsOf(granted *tools.HTTP, secrets []secret) []*fetchTLS {
	hosts := map[string]*fetchTLS{}
	var list []*fetchTLS
	of := func(host string) *fetchTLS {
		host = strings.ToLower(host)
		if hosts[host] == nil {
			hosts[host] = &fetchTLS{Host: host}
			list = append(list, hosts[host])
		}
		return hosts[host]
	}
	for _, s := range secrets {
		switch s.TLS {
		case tools.TLSCA:
			of(s.Host).CA = s
		case tools.TLSCert:
			of(s.Host).Cert = s
		case tools.TLSKey:
			of(s.Host).Key = s
		}
	}
	if granted == nil { // a binary's requests
		return list
	}
	for host, t := range granted.TLS {
		h := of(host)
		h.ServerName, h.Insecure = t.ServerName, t.InsecureSkipVerify
	}
	return list
}

// tlsFor is what counts for a connection to u, nil where nothing is said of it.
// The error is a refusal: what cannot be checked as tool.json says is not asked.
func (g *fetchGrant) tlsFor(u *url.URL) (*tls.Config, error) {
	for _, t := range g.TLS {
		if !t.covers(u) {
			continue
		}
		if u.Scheme != "https" {
			return nil, fmt.Errorf("%s to %s, for which tool.json has certificates: %w; use https", u.Scheme, t.Host, errRefused)
		}
		return t.config()
	}
	return nil, nil
}

// covers reports whether t is for the host of u, however that is written: unlike
// a grant, what is missed here is not refused but unchecked.
func (t *fetchTLS) covers(u *url.URL) bool {
	name, port := egress.SplitHost(t.Host)
	asked, _ := egress.SplitHost(u.Hostname())
	at := u.Port()
	if at == "" {
		at = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return asked == name && (port == "" || port == at)
}

func (t *fetchTLS) config() (*tls.Config, error) {
	c := &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: t.Insecure, MinVersion: tls.VersionTLS12}
	if t.CA.TLS != "" {
		c.RootCAs = x509.NewCertPool()
		n := 0
		for block, rest := pem.Decode([]byte(t.CA.value)); block != nil; block, rest = pem.Decode(rest) {
			if block.Type != "CERTIFICATE" {
				continue
			}
			ca, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("secret %s, the ca of %s: %w: %w", t.CA.name, t.Host, errRefused, err)
			}
			c.RootCAs.AddCert(ca)
			n++
		}
		if n == 0 {
			return nil, fmt.Errorf("secret %s, the ca of %s: %w: it has no certificate in PEM", t.CA.name, t.Host, errRefused)
		}
	}
	if t.Cert.TLS != "" {
		pair, err := tls.X509KeyPair([]byte(t.Cert.value), []byte(t.Key.value))
		if err != nil {
			return nil, fmt.Errorf("secrets %s and %s, the certificate for %s and its key: %w: %w", t.Cert.name, t.Key.name, t.Host, errRefused, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// keysIn are the private keys in a PEM text, as bytes: a text of one may be
// written in other lines, and is found by its base64 then.
func keysIn(text string) (keys [][]byte) {
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		if strings.Contains(block.Type, "PRIVATE KEY") {
			keys = append(keys, block.Bytes, pem.EncodeToMemory(block))
		}
	}
	return keys
}
