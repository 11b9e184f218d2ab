package tools

import (
	"strings"

	"github.com/toold/toold/host/hostrule"
)

// CheckUse returns a Faults error if a definition contains something that has no effect
// on a tool of this kind: a secret that is not passed to anything, or a capability that
// neither grants nor restricts anything. Its author relies on it. setup reports whether
// the tool has a setup.sh. data is the tool.json, named file in errors.
func CheckUse(file string, data []byte, d *Definition, kind Kind, setup bool) error {
	c := &checker{file: file, data: data}
	c.secretsOf(d, kind)
	what, pass := map[Kind]string{Binary: "binary", Handler: "handler", WASI: "WASI command"}[kind], map[string]string{}
	switch kind {
	case Binary:
		pass["http"] = "what it connects to is not confined (docs/security.md), so that this limits nothing: narrow it with its policy, and remove this"
		pass["files"] = "it reads and writes files by itself: name folders in roots, and remove this"
		pass["tool_call"] = "only modules call tools: remove this"
	case WASI:
		for _, name := range []string{"exec", "http", "tool_call"} {
			pass[name] = "it imports WASI and nothing else: write the tool as a handler, or remove this"
		}
	}
	k := &d.Capabilities
	asked := map[string]bool{"exec": len(k.Exec) > 0, "http": k.HTTP != nil, "files": len(k.Files) > 0, "tool_call": len(k.ToolCall) > 0}
	for _, name := range sortedKeys(pass) {
		if asked[name] {
			c.fault("/capabilities/"+name, "has no effect on a %s: %s", what, pass[name])
		}
	}
	if kind != Handler && len(d.On) > 0 {
		c.fault("/on", "has no effect on a %s, which is not run with events: write the tool as a handler, or remove this", what)
	}
	if kind == Handler && len(d.Environment) > 0 && len(d.Capabilities.Exec) == 0 && !setup {
		c.fault("/environment", `has no effect on a handler that executes no programs: write what it is to read into config, or name programs in capabilities.exec`)
	}
	if len(c.faults) > 0 {
		return c.faults
	}
	return nil
}

// secretsOf checks that each secret is passed in a way that a tool of this kind can
// use.
func (c *checker) secretsOf(d *Definition, kind Kind) {
	for _, name := range sortedKeys(d.Secrets) {
		s, at := d.Secrets[name], "/secrets/"+escapePointer(name)
		field, variable := "header", s.Env
		switch {
		case s.Env != "":
			field = "env"
		case s.File != "":
			field, variable = "file", s.File
		case s.TLS != "":
			field = "tls"
		case s.SigV4 != nil:
			field = "sigv4"
		}
		at += "/" + field
		switch {
		case kind == WASI:
			c.fault(at, "reaches nobody: a WASI command is given no secrets; write the tool as a handler with capabilities.http, to whose requests toold adds them, or as a binary")
		case kind == Binary && s.Host != "" && !s.SSHKey && !grantsHost(d.Capabilities.Network, s.Host):
			c.fault(at, `has no effect: capabilities.network does not grant the host %s; add %q to it`, s.Host, s.Host)
		case kind == Handler && variable != "":
			c.fault(at, `reaches nobody: a handler sees no secret, and what it executes is given none; have toold add it to requests: {"from": %q, "header": "Authorization", "host": "HOST"}`, s.From)
		case kind == Handler && d.Capabilities.HTTP == nil:
			c.fault(at, `has no effect: the tool may make no requests; write "capabilities": {"http": {"hosts": [%q]}}`, s.Host)
		case kind == Handler && !grantsHost(d.Capabilities.HTTP.Hosts, s.Host):
			c.fault(at, `has no effect: capabilities.http does not grant the host %s; add %q to its hosts`, s.Host, s.Host)
		}
	}
}

// grantsHost reports whether hosts allow requests to host. Ports are compared if both
// have one.
func grantsHost(hosts []string, host string) bool {
	name, port := hostrule.Split(host)
	for _, h := range hosts {
		granted, grantedPort := hostrule.Split(h)
		if port != "" && grantedPort != "" && port != grantedPort {
			continue
		}
		sub, wild := strings.CutPrefix(granted, "*.")
		if granted == "*" || granted == name || wild && strings.HasSuffix(name, "."+sub) {
			return true
		}
	}
	return false
}
