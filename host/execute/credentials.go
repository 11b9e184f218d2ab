package execute

import (
	"crypto/tls"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/fetch"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/sigv4"
	"github.com/toold/toold/host/tools"
)

// readHTTP returns which requests of t's binary are read, and what is added to them:
// those to the hosts of secrets and, if a policy judges what goes over the network,
// all but those that tool.json excepts. It is nil if none are.
func (e *Executor) readHTTP(t *tools.Tool, secrets []secret) (*egress.HTTP, error) {
	h := &egress.HTTP{}
	if slices.ContainsFunc(t.Policies, func(m *guest.Module) bool { return m.Has("wire") }) {
		h.Hosts = egress.ParseRules(t.Def.Capabilities.Network).Hosts
		h.Unread = t.Def.Capabilities.Unread
	}
	var used []secret
	for _, s := range secrets {
		if s.Header == "" && s.TLS == "" && s.SigV4 == nil {
			continue
		}
		used = append(used, s)
		h.Hosts = append(h.Hosts, s.Host)
		if s.SigV4 != nil {
			sign, err := sigv4.New(s.SigV4.Service, s.SigV4.Region, s.value)
			if err != nil {
				return nil, fault.Errorf(fault.ToolBroken, "secret %s of tool %s: %w", s.name, t.Name, err)
			}
			h.Credentials = append(h.Credentials, egress.Credential{Host: s.Host, Sign: sign, Plain: s.InsecureHTTP})
		}
		if s.Header == "" {
			continue
		}
		value := s.Fill(s.value)
		if strings.ContainsFunc(value, unicode.IsControl) {
			return nil, fault.Errorf(fault.ToolBroken, "secret %s of tool %s: it holds a line break or another control character, and cannot stand in the header %s", s.name, t.Name, s.Header)
		}
		h.Credentials = append(h.Credentials, egress.Credential{Host: s.Host, Header: s.Header, Value: value, Plain: s.InsecureHTTP})
	}
	if len(h.Hosts) == 0 {
		return nil, nil
	}
	if c := e.Runner.Confinement(); !c.Filter {
		if len(used) == 0 { // its other connections are not judged either
			return nil, nil
		}
		return nil, fault.Errorf(fault.ToolBroken, "%s has credentials or rules for its requests, which toold adds and judges on its connections, and these cannot be taken over on this host: %s; see toolctl doctor", t.Name, c.FilterReason)
	}
	grant := &fetch.Grant{TLS: tlsOf(nil, used)}
	roots, err := e.trusts.Roots(t.Name, t.Def.Environment)
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
		h.Masks = func(further string) (func(string) string, func(io.Reader) io.Reader) {
			all := append(values(used), []byte(further))
			m := mask.New(all)
			return func(text string) string { return string(m.Bytes([]byte(text))) }, mask.Covering(all)
		}
	}
	return h, nil
}
