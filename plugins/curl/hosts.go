package main

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// target is the part of a URL that decides who is asked.
type target struct {
	scheme string // "http" or "https"
	host   string // lower case; an address in its canonical form, without brackets
	port   int    // the scheme's own where the URL names none
	addr   netip.Addr
	tail   string // what follows the authority
	url    string // the whole, as curl shall see it
}

// parseURL reads the URLs that this policy understands: http or https, a host
// of plain ASCII, no user, nothing that one parser reads so and another so.
func parseURL(s string) (*target, error) {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f || s[i] == '\\' {
			return nil, errors.New("it holds a space, a control character or a backslash; percent-encode it")
		}
	}
	t := &target{scheme: "http"}
	rest := s
	if scheme, after, ok := strings.Cut(s, "://"); ok && !strings.ContainsAny(scheme, "/?#") {
		t.scheme, rest = strings.ToLower(scheme), after
		if t.scheme != "http" && t.scheme != "https" {
			return nil, errors.New("its protocol is not http or https")
		}
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	if strings.Contains(authority, "@") {
		return nil, errors.New("it holds a user; give that with --user")
	}
	host, port := authority, ""
	if strings.HasPrefix(authority, "[") {
		end := strings.IndexByte(authority, ']')
		if end < 0 {
			return nil, errors.New("its address lacks a closing bracket")
		}
		a, err := netip.ParseAddr(authority[1:end])
		if err != nil || !a.Is6() || a.Zone() != "" {
			return nil, errors.New("what is in brackets is not an IPv6 address")
		}
		t.addr, host = a, a.String()
		switch after := authority[end+1:]; {
		case after == "":
		case after[0] == ':':
			port = after[1:]
			if port == "" {
				return nil, errors.New("its port is empty")
			}
		default:
			return nil, errors.New("something stands between its address and its port")
		}
	} else {
		if i := strings.IndexByte(authority, ':'); i >= 0 {
			host, port = authority[:i], authority[i+1:]
			if port == "" {
				return nil, errors.New("its port is empty")
			}
		}
		var err error
		if host, err = hostname(host); err != nil {
			return nil, err
		}
		if a, err := netip.ParseAddr(host); err == nil {
			t.addr = a
		}
	}
	t.host = host
	t.port = defaultPort(t.scheme)
	if port != "" {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 || strconv.Itoa(n) != port {
			return nil, errors.New("its port is not a number from 1 to 65535")
		}
		t.port = n
	}
	if t.addr.Is6() {
		host = "[" + host + "]"
	}
	t.url = t.scheme + "://" + host
	if port != "" {
		t.url += ":" + port
	}
	if !strings.HasPrefix(tail, "/") {
		tail = "/" + tail
	}
	t.tail = tail
	t.url += tail
	return t, nil
}

func defaultPort(scheme string) int {
	if scheme == "https" {
		return 443
	}
	return 80
}

// hostname answers a host name or IPv4 address in lower case, without a dot
// at its end. A name that some resolver reads as an address ("127.1",
// "0x7f000001", "2130706433") is refused unless it is a plain address.
func hostname(s string) (string, error) {
	s = strings.TrimSuffix(strings.ToLower(s), ".")
	if s == "" || len(s) > 253 {
		return "", errors.New("it has no host")
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 {
			return "", errors.New("its host has an empty or overlong part")
		}
		for i := range len(label) {
			c := label[i]
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return "", errors.New("its host holds other characters than letters, digits, dots and hyphens; write it in punycode (xn--...)")
			}
		}
		if label[0] == '-' {
			return "", errors.New("a part of its host begins with a hyphen")
		}
	}
	last := s[strings.LastIndexByte(s, '.')+1:]
	if last[0] >= '0' && last[0] <= '9' {
		// No public domain begins with a digit; what does is an address.
		if a, err := netip.ParseAddr(s); err != nil || a.String() != s {
			return "", errors.New("its host is an address in an unusual form; write four decimal numbers")
		}
	}
	return s, nil
}

// special are the networks that are not public: those of IANA's special-purpose
// registries, multicast, and all of IPv6 outside of 2000::/3, the only part
// that is given to networks, the ranges that carry an IPv4 address inside an
// IPv6 one among it. The host has the same list for its modules' requests, and
// a test compares them.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.31.196.0/24"),
	netip.MustParsePrefix("192.52.193.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("192.175.48.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/3"),
	netip.MustParsePrefix("2001::/23"),
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"),
	netip.MustParsePrefix("2620:4f:8000::/48"),
	netip.MustParsePrefix("3ffe::/16"),
	netip.MustParsePrefix("3fff::/20"),
	netip.MustParsePrefix("4000::/2"),
	netip.MustParsePrefix("8000::/1"),
}

// public reports whether a host is one of the public internet, as far as its
// name tells. What a name resolves to is not known here.
func (t *target) public() bool {
	if !t.addr.IsValid() {
		if !strings.Contains(t.host, ".") {
			return false
		}
		for _, suffix := range []string{".localhost", ".local", ".internal", ".lan", ".intranet", ".corp", ".home", ".home.arpa", ".private", ".localdomain"} {
			if strings.HasSuffix(t.host, suffix) {
				return false
			}
		}
		return true
	}
	for _, p := range special {
		if p.Contains(t.addr) {
			return false
		}
	}
	return true
}

// hostRule is one entry of config.hosts.
type hostRule struct {
	any    bool   // "*": every host whose name is public
	suffix string // "*.example.com": ".example.com"
	host   string // "example.com", "10.0.0.1", "::1"
	port   int    // 0: the default port of either scheme; -1: any
}

func parseHostRule(s string) (hostRule, error) {
	var r hostRule
	name, port := s, ""
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 || s[end+1:] != "" && s[end+1] != ':' {
			return r, errors.New("hosts: " + strconv.Quote(s) + " is not an address in brackets")
		}
		name, port = s[1:end], strings.TrimPrefix(s[end+1:], ":")
	} else if i := strings.IndexByte(s, ':'); i >= 0 && strings.Count(s, ":") == 1 {
		name, port = s[:i], s[i+1:]
	}
	switch {
	case port == "":
	case port == "*":
		r.port = -1
	default:
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return r, errors.New("hosts: " + strconv.Quote(s) + ": the port is not a number from 1 to 65535 or *")
		}
		r.port = n
	}
	if name == "*" {
		r.any = true
		return r, nil
	}
	if a, err := netip.ParseAddr(name); err == nil && a.Zone() == "" {
		r.host = a.String()
		return r, nil
	}
	bare := strings.TrimPrefix(name, "*.")
	h, err := hostname(bare)
	if err != nil {
		return r, errors.New("hosts: " + strconv.Quote(s) + " is neither a host, *.host, an address nor *")
	}
	if bare != name {
		r.suffix = "." + h
	} else {
		r.host = h
	}
	return r, nil
}

func (r hostRule) allows(t *target) bool {
	if r.port == 0 && t.port != defaultPort(t.scheme) || r.port > 0 && r.port != t.port {
		return false
	}
	if r.any {
		return t.public()
	}
	if r.suffix != "" {
		return !t.addr.IsValid() && strings.HasSuffix(t.host, r.suffix)
	}
	return r.host == t.host
}
