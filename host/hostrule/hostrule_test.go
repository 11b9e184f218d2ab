package hostrule

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"slices"
	"strconv"
	"testing"
)

func TestPublic(t *testing.T) {
	for _, s := range []string{
		"127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "fe80::1", "fc00::1", "fd00::1",
		"0.0.0.0", "::", "100.64.0.1", "224.0.0.1", "239.1.1.1", "ff02::1", "ff0e::1", "255.255.255.255", "240.0.0.1",
		"192.0.0.8", "192.0.2.1", "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.175.48.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
		"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:1.1.1.1", "::7f00:1", "::101:101", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:20::1",
		"2001:db8::1", "100::1", "100:0:0:1::1", "2620:4f:8000::1", "3ffe::1", "3fff::1", "3fff:fff:ffff::1", "5f00::1", "fec0::1", "fe80::1%eth0", "4000::1",
	} {
		if Public(netip.MustParseAddr(s)) {
			t.Errorf("%s counts as public", s)
		}
	}
	for _, s := range []string{
		"1.1.1.1", "2606:4700:4700::1111", "172.15.255.255", "172.32.0.0", "192.31.195.1", "192.88.98.1", "198.17.255.255", "223.255.255.255",
		"2001:200::1", "2003::1", "3fff:1000::1", "2620:4f:8001::1", "2a00:1450::1",
	} {
		if !Public(netip.MustParseAddr(s)) {
			t.Errorf("%s does not count as public", s)
		}
	}
	if Public(netip.Addr{}) {
		t.Error("no address counts as public")
	}
}

// The policy of curl is a guest and cannot share the host's list of ranges: it has
// the same one, to the last.
func TestCurlHasTheSameRanges(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../plugins/curl/hosts.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var curl []netip.Prefix
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "special" {
			return true
		}
		ast.Inspect(spec, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok {
				s, _ := strconv.Unquote(lit.Value)
				curl = append(curl, netip.MustParsePrefix(s))
			}
			return true
		})
		return false
	})
	if !slices.Equal(curl, NotPublic()) || len(curl) == 0 {
		t.Errorf("the policy of curl has %v, and the host %v", curl, NotPublic())
	}
}
