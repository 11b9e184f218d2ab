// Package hostrule compares hosts: it says which grant of a host covers one that
// somebody wants to reach, and which addresses are public. All that connects for
// a tool, and all that reads what it is granted, asks here, so that a host means
// the same everywhere. It looks no name up and connects to nothing.
package hostrule

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Match finds the pattern in hosts that covers name and port: a name, an address,
// "*.example.com" for any name beneath it, or "*"; all but the last may end in ":port". named
// reports that the pattern names the host itself. rule is empty if no pattern matches.
func Match(hosts []string, name, port string) (rule string, named bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	addr, _ := netip.ParseAddr(name)
	for _, h := range hosts {
		want, wantPort := Split(h)
		if wantPort != "" && wantPort != port {
			continue
		}
		if want == name {
			return h, true
		}
		if a, err := netip.ParseAddr(want); err == nil && addr.IsValid() && a == addr {
			return h, true
		}
		sub, found := strings.CutPrefix(want, "*.")
		if rule == "" && (want == "*" || found && !addr.IsValid() && strings.HasSuffix(name, "."+sub)) {
			rule = h
		}
	}
	return rule, false
}

// Split returns a host, or a pattern of hosts, in the form in which hosts are compared, and its
// port if it has one.
func Split(h string) (name, port string) {
	if n, p, err := net.SplitHostPort(h); err == nil {
		h, port = n, p
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(h, "[]"), ".")), port
}

// Exact returns those of hosts that are names with this port: not addresses, and not wildcards.
func Exact(hosts []string, port string) (names []string) {
	for _, h := range hosts {
		name, p := Split(h)
		if _, err := netip.ParseAddr(name); err == nil || strings.HasPrefix(name, "*") || p != "" && p != port {
			continue
		}
		names = append(names, name)
	}
	return names
}

// Public reports whether ip is a public address of the internet. An IPv4 address that is
// written as an IPv6 one is not.
func Public(ip netip.Addr) bool {
	return ip.IsValid() && !slices.ContainsFunc(NotPublic(), func(p netip.Prefix) bool { return p.Contains(ip.WithZone("")) })
}

// NotPublic returns the ranges that contain no public server: those of the IANA special-purpose
// registries, multicast, and all of IPv6 outside of 2000::/3, the only part that is assigned.
// So no IPv6 address remains that embeds an unchecked IPv4 address (mapped, compatible, NAT64,
// 6to4, Teredo). The policy of curl has the same list, and a test compares them.
func NotPublic() []netip.Prefix { return notPublic[:] }

var notPublic = [...]netip.Prefix{
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
