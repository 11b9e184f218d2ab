package tools

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/toold/toold/host/hostrule"
)

func (c *checker) secrets(d *Definition) {
	places := secretPlaces{checker: c, definition: d, variables: map[string]string{}, keys: map[string]string{}}
	for _, name := range sortedKeys(d.Secrets) {
		s, at := d.Secrets[name], "/secrets/"+escapePointer(name)
		if !secretRule.MatchString(name) {
			c.fault(at, "has a name that does not match %s", secretRule)
		}
		c.secretSource(at, s)
		if s.Content != "" && (s.File == "" && s.Header == "" || len(secretMark.FindAllString(s.Content, -1)) != 1) {
			c.fault(at+"/content", "is what is in file or header: it needs one of them, and {secret} or {basic:USER} once, where the value goes")
		}
		if s.Header != "" && strings.ContainsFunc(s.Content, unicode.IsControl) {
			c.fault(at+"/content", "holds a line break or another control character, and cannot stand in a header")
		}
		if s.InsecureHTTP && (s.Header == "" && s.SigV4 == nil || d.WASI != "" || d.Handler != "") {
			c.fault(at+"/insecure_http", "is for the header or signature of a binary's requests; name the port in host to have a handler send it without TLS, and remove this otherwise")
		}
		places.check(name, at, s)
	}
	c.tls(d)
	c.unread(d)
}

// secretSource checks where a secret comes from.
func (c *checker) secretSource(at string, s Secret) {
	kind, source, _ := strings.Cut(s.From, ":")
	switch {
	case kind == "env" && variableRule.MatchString(source):
	case kind == "file" && path.IsAbs(source) && path.Clean(source) == source && !strings.ContainsRune(source, 0):
	case kind == "claim" && validClaim(source):
	case kind == "agent" && s.SSHKey && agentRule.MatchString(source):
	case kind == "agent":
		c.fault(at+"/from", `is for a secret with ssh_key, and needs a key: "agent:SHA256:FINGERPRINT" as ssh-add -l shows it, or "agent:" and a line of ssh-add -L`)
	case s.From == "":
		c.fault(at, `needs from: "env:NAME", "file:/PATH" or "claim:NAME"`)
	default:
		// The value is not repeated: it may be the secret itself, pasted here
		// by mistake, which must not appear in a log.
		c.fault(at+"/from", `must be "env:NAME", "file:/PATH" (clean and absolute) or "claim:NAME", never the secret itself`)
	}
}

// secretPlaces checks where the secrets of one definition go: each to one place,
// which no other has.
type secretPlaces struct {
	*checker
	definition *Definition
	// The names of the secrets that have it already, by variable and by host.
	variables, keys map[string]string
	signer          string
}

func (c *secretPlaces) check(name, at string, s Secret) {
	d := c.definition
	switch {
	case s.SigV4 != nil && (s.Env != "" || s.Header != "" || s.File != "" || s.TLS != "" || s.SSHKey || s.SSHSign):
		c.fault(at, "has sigv4 beside env, header, file, tls or ssh_key; a secret goes to one place, use two secrets for two")
	case s.SigV4 != nil:
		c.sigV4(d, at, name, s)
	case s.SSHSign && (s.Env != "" || s.Header != "" || s.File != "" || s.TLS != "" || s.SSHKey || s.Host != ""):
		c.fault(at, "has ssh_sign beside env, header, file, tls, ssh_key or host; a secret goes to one place, use two secrets for two")
	case s.SSHSign:
		c.sshSign(name, at)
	case s.SSHKey && (s.Env != "" || s.Header != "" || s.File != "" || s.TLS != ""):
		c.fault(at, "has ssh_key beside env, header, file or tls; a secret goes to one place, use two secrets for two")
	case s.SSHKey:
		c.sshKey(name, at, s)
	case s.TLS != "" && (s.Env != "" || s.Header != "" || s.File != ""):
		c.fault(at, "has tls beside env, header or file; a secret goes to one place, use two secrets for two")
	case s.TLS != "":
		c.oneOf(at+"/tls", s.TLS, TLSCA, TLSCert, TLSKey)
		c.oneHost(at, s)
		if d.WASI != "" {
			c.fault(at+"/tls", "is for requests, and a wasi program makes none")
		}
	case s.File != "" && (s.Env != "" || s.Header != "" || s.Host != ""):
		c.fault(at, "has file beside env, header or host; a secret goes to one place, use two secrets for two")
	case s.Env != "" && (s.Header != "" || s.Host != ""):
		c.fault(at, "has env beside header or host; a secret goes to one place, use two secrets for two")
	case s.Env != "":
		c.variable(name, at+"/env", s.Env)
	case s.File != "":
		c.variable(name, at+"/file", s.File)
	case s.Header != "" && s.Host != "":
		if !headerRule.MatchString(s.Header) {
			c.fault(at+"/header", "is %q; it must be the name of a header", s.Header)
		}
		c.oneHost(at, s)
	default:
		c.fault(at, "needs a place to go: env (a variable of the binary), file (a variable that names a file with it), or header and host together, or tls and host, or ssh_key and host, or sigv4 and host, or ssh_sign")
	}
}

func (c *secretPlaces) variable(name, at, v string) {
	if !variableRule.MatchString(v) {
		c.fault(at, "is %q; it must be the name of a variable", v)
	}
	if _, fixed := c.definition.Environment[v]; fixed {
		c.fault(at, "is %s, which environment sets too; keep one", v)
	}
	if slices.Contains(c.definition.Capabilities.Env, v) {
		c.fault(at, "is %s, which capabilities.env lets callers set; remove it there", v)
	}
	if other, double := c.variables[v]; double {
		c.fault(at, "is %s, which the secret %s sets too", v, other)
	}
	c.variables[v] = name
}

func (c *secretPlaces) oneHost(at string, s Secret) {
	if !validHost(s.Host, false) {
		c.fault(at+"/host", "is %q; it must be one host, with a port where it is not the usual one", s.Host)
	}
}

func (c *secretPlaces) sshSign(name, at string) {
	if c.definition.Handler != "" || c.definition.WASI != "" {
		c.fault(at+"/ssh_sign", "is for the git of a binary; a handler or wasi program has none")
	}
	if c.signer != "" {
		c.fault(at+"/ssh_sign", "is true for the secret %s already; keep one", c.signer)
	}
	c.signer = name
}

func (c *secretPlaces) sshKey(name, at string, s Secret) {
	if !validHost(s.Host, false) {
		c.fault(at+"/host", "is %q; it must be one host, with a port unless that is 22", s.Host)
	}
	if c.definition.Handler != "" || c.definition.WASI != "" {
		c.fault(at+"/ssh_key", "is for the git of a binary; a handler or wasi program has no ssh")
	}
	key := strings.ToLower(s.Host)
	if n, port := hostrule.Split(key); port == "22" {
		key = n
	}
	if other, double := c.keys[key]; double {
		c.fault(at+"/host", "is %s, for which the secret %s is a key already; keep one", s.Host, other)
	}
	c.keys[key] = name
}

// sigV4 checks the secret s, whose name is name, that signs requests.
func (c *checker) sigV4(d *Definition, at, name string, s Secret) {
	if !scopeRule.MatchString(s.SigV4.Service) {
		c.fault(at+"/sigv4/service", "is %q; it must be the name of a service as it is in signatures, such as s3 or sts", s.SigV4.Service)
	}
	if !scopeRule.MatchString(s.SigV4.Region) {
		c.fault(at+"/sigv4/region", "is %q; it must be a region, such as us-east-1", s.SigV4.Region)
	}
	if !validHost(s.Host, false) {
		c.fault(at+"/host", "is %q; it must be one host, with a port where it is not the usual one", s.Host)
	}
	if d.Handler != "" || d.WASI != "" {
		c.fault(at+"/sigv4", "is for the requests of a binary; those of a handler or wasi program are not signed")
	}
	// Which of the two would be used is undefined.
	host, port := hostrule.Split(s.Host)
	for _, other := range sortedKeys(d.Secrets) {
		o := d.Secrets[other]
		if other == name || o.SigV4 == nil && !strings.EqualFold(o.Header, "Authorization") {
			continue
		}
		if h, p := hostrule.Split(o.Host); h == host && (p == port || p == "" || port == "") {
			c.fault(at+"/host", "is %s, whose requests the secret %s authorizes already; keep one", s.Host, other)
		}
	}
}

// tls checks that what counts for TLS with a host is whole, and said once.
func (c *checker) tls(d *Definition) {
	kinds := map[string]map[string]string{} // host, kind -> pointer of the secret
	hosts := map[string]string{}            // host -> pointer of what names it
	name := func(at, host string) {
		host = strings.ToLower(host)
		if _, known := hosts[host]; known || !validHost(host, false) {
			return
		}
		n, port := hostrule.Split(host)
		for _, other := range sortedKeys(hosts) {
			if m, p := hostrule.Split(other); m == n && (p == port || p == "" || port == "") {
				c.fault(at, "is for %s, and %s is for %s: connections to it would have both; write the host in one way", host, hosts[other], other)
			}
		}
		hosts[host] = at
	}
	for _, secret := range sortedKeys(d.Secrets) {
		s, at := d.Secrets[secret], "/secrets/"+escapePointer(secret)
		if s.TLS == "" {
			continue
		}
		name(at+"/host", s.Host)
		of := kinds[strings.ToLower(s.Host)]
		if of == nil {
			of = map[string]string{}
			kinds[strings.ToLower(s.Host)] = of
		}
		if other, double := of[s.TLS]; double {
			c.fault(at+"/tls", "is the %s of %s, which %s is already; put several certificates into one file", s.TLS, s.Host, other)
		}
		of[s.TLS] = at
	}
	for _, host := range sortedKeys(kinds) {
		cert, key := kinds[host][TLSCert], kinds[host][TLSKey]
		switch {
		case cert != "" && key == "":
			c.fault(cert+"/tls", `is a certificate for %s without its key; add a secret with "tls": "key"`, host)
		case key != "" && cert == "":
			c.fault(key+"/tls", `is a key for %s without its certificate; add a secret with "tls": "cert"`, host)
		}
	}
	if d.Capabilities.HTTP == nil {
		return
	}
	for _, host := range sortedKeys(d.Capabilities.HTTP.TLS) {
		t, at := d.Capabilities.HTTP.TLS[host], "/capabilities/http/tls/"+escapePointer(host)
		if !validHost(host, false) {
			c.fault(at, "is for %q; it must be one host, with a port where it is not the usual one", host)
		}
		name(at, host)
		if t.ServerName != "" && (strings.Contains(t.ServerName, ":") || !validHost(t.ServerName, false)) {
			c.fault(at+"/server_name", "is %q; it must be the name of a host", t.ServerName)
		}
		if ca := kinds[strings.ToLower(host)][TLSCA]; t.InsecureSkipVerify && (ca != "" || t.ServerName != "") {
			c.fault(at+"/insecure_skip_verify", "takes any certificate, so that a ca and server_name count for nothing; keep one")
		}
	}
}

// unread checks the hosts whose requests are not read.
func (c *checker) unread(d *Definition) {
	for i, host := range d.Capabilities.Unread {
		at := fmt.Sprintf("/capabilities/unread/%d", i)
		name, port := hostrule.Split(host)
		if !validHost(host, true) {
			c.fault(at, `is %q; it must be a host, a host:port, an address, "*.example.com" or "*"`, host)
		} else if d.Handler != "" || d.WASI != "" {
			c.fault(at, "is for the connections of a binary; a handler or wasi program has none")
		} else if !grantsHost(d.Capabilities.Network, host) {
			c.fault(at, "has no effect: capabilities.network does not grant %s", host)
		}
		for _, secret := range sortedKeys(d.Secrets) {
			s := d.Secrets[secret]
			if n, p := hostrule.Split(s.Host); s.Host != "" && !s.SSHKey && (grantsHost([]string{host}, s.Host) || n == name && (p == "" || port == "" || p == port)) {
				c.fault(at, "is %s, and the secret %s is for requests to %s, which have to be read; name other hosts", host, secret, s.Host)
			}
		}
	}
}

// agentRule matches the name of a key in an agent.
var agentRule = regexp.MustCompile(`^(SHA256:[A-Za-z0-9+/]{43}|(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}( [ -~]*)?)$`)

// scopeRule matches services and regions.
var scopeRule = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
