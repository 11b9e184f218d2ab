package fetch

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"

	"github.com/toold/toold/host/hostrule"
)

// ErrRefused is in errors of requests that are not granted, or not trusted.
var ErrRefused = errors.New("not granted")

// PEM is a text in PEM and the name of the secret that contains it; without a Name there is
// none.
type PEM struct{ Name, Text string }

// TLS are the TLS settings for one host.
type TLS struct {
	// Host is a name, with a port where only that one is meant.
	Host string
	// CA, Cert and Key are in PEM. Without CA the authorities of the system count.
	CA, Cert, Key PEM
	ServerName    string
	Insecure      bool
}

// covers reports whether t is for the host of u, however that is written: unlike with a grant,
// a miss here would mean no check instead of a refusal.
func (t *TLS) covers(u *url.URL) bool {
	name, port := hostrule.Split(t.Host)
	asked, _ := hostrule.Split(u.Hostname())
	at := u.Port()
	if at == "" {
		at = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return asked == name && (port == "" || port == at)
}

func (t *TLS) config() (*tls.Config, error) {
	c := &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: t.Insecure, MinVersion: tls.VersionTLS12}
	if t.CA.Name != "" {
		c.RootCAs = x509.NewCertPool()
		n := 0
		for block, rest := pem.Decode([]byte(t.CA.Text)); block != nil; block, rest = pem.Decode(rest) {
			if block.Type != "CERTIFICATE" {
				continue
			}
			ca, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("secret %s, the ca of %s: %w: %w", t.CA.Name, t.Host, ErrRefused, err)
			}
			c.RootCAs.AddCert(ca)
			n++
		}
		if n == 0 {
			return nil, fmt.Errorf("secret %s, the ca of %s: %w: it has no certificate in PEM", t.CA.Name, t.Host, ErrRefused)
		}
	}
	if t.Cert.Name != "" {
		pair, err := tls.X509KeyPair([]byte(t.Cert.Text), []byte(t.Key.Text))
		if err != nil {
			return nil, fmt.Errorf("secrets %s and %s, the certificate for %s and its key: %w: %w", t.Cert.Name, t.Key.Name, t.Host, ErrRefused, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
