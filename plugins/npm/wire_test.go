package main

import (
	"testing"

	"github.com/toold/toold/pdk/abi"
)

func TestWire(t *testing.T) {
	p, err := newPolicy(func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ method, host, path, rule string }{
		{"GET", "registry.npmjs.org", "/@scope%2fname?write=true", "npm.wire"},
		{"POST", "registry.npmjs.org", "/-/npm/v1/security/advisories/bulk", "npm.wire"},
		{"PUT", "registry.npmjs.org", "/name", "npm.publish"},
		{"DELETE", "registry.npmjs.org", "/name/-rev/1", "npm.wire.method"},
		{"POST", "registry.npmjs.org", "/-/npm/v1/tokens", "npm.wire.method"},
		{"GET", "elsewhere.example", "/name", "npm.wire.registry"},
	} {
		d := p.wire(&abi.Wire{On: abi.WireHTTP, Method: tt.method, Host: tt.host, Port: 443, Path: tt.path})
		if d.Rule != tt.rule || d.Effect == abi.Allow != (tt.rule == "npm.wire") {
			t.Errorf("%+v: %+v", tt, d)
		}
	}
	if d := p.wire(&abi.Wire{On: abi.WirePush, Host: "registry.npmjs.org"}); d.Effect == abi.Allow {
		t.Errorf("a push: %+v", d)
	}
}
