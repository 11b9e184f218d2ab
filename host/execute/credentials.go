package execute

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/fetch"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/pdk/abi"
)

// readHTTP says which of the requests of r's binary are read, and what is added to
// them: those to the hosts of secrets, and all where a policy asks for that. It is
// nil where none are.
func (r *running) readHTTP(secrets []secret) (*egress.HTTP, error) {
	h := &egress.HTTP{}
	if slices.Contains(r.Tool.Wants, abi.WantHTTP) && slices.ContainsFunc(r.Tool.Policies, func(m *guest.Module) bool { return m.Has("wire") }) {
		h.Hosts = egress.ParseRules(r.Tool.Def.Capabilities.Network).Hosts
	}
	var used []secret
	for _, s := range secrets {
		if s.Header == "" && s.TLS == "" {
			continue
		}
		used = append(used, s)
		h.Hosts = append(h.Hosts, s.Host)
		if s.Header == "" {
			continue
		}
		value := s.Fill(s.value)
		if strings.ContainsFunc(value, unicode.IsControl) {
			return nil, fault.Errorf(fault.ToolBroken, "secret %s of tool %s: it holds a line break or another control character, and cannot stand in the header %s", s.name, r.Tool.Name, s.Header)
		}
		h.Credentials = append(h.Credentials, egress.Credential{Host: s.Host, Header: s.Header, Value: value, Plain: s.InsecureHTTP})
	}
	if len(h.Hosts) == 0 {
		return nil, nil
	}
	if c := r.Runner.Confinement(); !c.Filter {
		if len(used) == 0 { // its other connections are not judged either
			return nil, nil
		}
		return nil, fault.Errorf(fault.ToolBroken, "%s has credentials or rules for its requests, which toold adds and judges on its connections, and these cannot be taken over on this host: %s; see toolctl doctor", r.Tool.Name, c.FilterReason)
	}
	var err error
	if h.Authority, err = egress.NewAuthority(h.Hosts); err != nil {
		return nil, fault.Errorf(fault.Internal, "make a certificate authority for the call: %w", err)
	}
	grant := &fetch.Grant{TLS: tlsOf(nil, used)}
	roots, err := r.roots()
	if err != nil {
		return nil, err
	}
	h.TLS = func(host string, port uint16) (*tls.Config, error) {
		config, err := grant.TLSFor(&url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))})
		if err != nil {
			return nil, err
		}
		if config == nil {
			config = &tls.Config{}
		}
		if config.RootCAs == nil {
			config.RootCAs = roots
		}
		return config, nil
	}
	if m := mask.New(values(used)); m != nil {
		h.MaskText = func(text string) string { return string(m.Bytes([]byte(text))) }
		h.MaskBody = mask.Covering(values(used))
	}
	return h, nil
}

// Variables with the file of the authorities that programs trust. Those of extra are
// in addition to what the program trusts anyway.
var (
	trustVariables = []string{"GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "NPM_CONFIG_CAFILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"}
	extraVariables = []string{"NODE_EXTRA_CA_CERTS"}
)

// systemTrust are the files in which systems have their authorities, as crypto/x509
// looks for them.
var systemTrust = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
}

// trusted is a file for programs, and the variables that name it to them.
type trusted struct {
	variables []string
	content   []byte
}

// trust is what the programs of r are to trust: what they would anyway, by the
// system or by the tool's environment, and the authority of the call.
func (r *running) trust(authority []byte) ([]trusted, error) {
	var list []trusted
	byBase := map[string]int{}
	add := func(variable, base string, read func() ([]byte, error)) error {
		i, known := byBase[base]
		if !known {
			content, err := read()
			if err != nil {
				return fault.Errorf(fault.ToolBroken, "environment of tool %s, %s: read the authorities to trust: %w", r.Tool.Name, variable, err)
			}
			i = len(list)
			byBase[base] = i
			list = append(list, trusted{content: append(content, authority...)})
		}
		list[i].variables = append(list[i].variables, variable)
		return nil
	}
	for _, name := range trustVariables {
		file, read := r.Tool.Def.Environment[name], systemAuthorities
		if file != "" {
			read = func() ([]byte, error) { return certificates(file) }
		}
		if err := add(name, file, read); err != nil {
			return nil, err
		}
	}
	for _, name := range extraVariables {
		file := r.Tool.Def.Environment[name]
		read := func() ([]byte, error) { return nil, nil }
		if file != "" {
			read = func() ([]byte, error) { return certificates(file) }
		}
		if err := add(name, "extra "+file, read); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// roots are the authorities by which hosts are verified: the system's and those that
// the tool's environment has its programs trust; nil: the system's alone.
func (r *running) roots() (*x509.CertPool, error) {
	var pool *x509.CertPool
	for _, name := range slices.Concat(trustVariables, extraVariables) {
		file := r.Tool.Def.Environment[name]
		if file == "" {
			continue
		}
		b, err := certificates(file)
		if err == nil && pool == nil {
			pool, err = x509.SystemCertPool()
		}
		if err != nil {
			return nil, fault.Errorf(fault.ToolBroken, "environment of tool %s, %s: read the authorities to trust: %w", r.Tool.Name, name, err)
		}
		pool.AppendCertsFromPEM(b)
	}
	return pool, nil
}

// systemAuthorities are the certificates of the system's authorities, in PEM.
func systemAuthorities() ([]byte, error) {
	files := systemTrust
	if own := os.Getenv("SSL_CERT_FILE"); own != "" {
		files = []string{own}
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err == nil {
			return append(bytes.TrimRight(b, "\n"), '\n'), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return nil, nil
}

// certificates are the certificates in a file, in PEM, and nothing else that is in
// it.
func certificates(file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes})
		}
	}
	return out.Bytes(), nil
}
