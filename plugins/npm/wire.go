package main

import (
	"slices"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

//lint:file-ignore U1000 the host calls the exports

//go:wasmexport wire
func onWire() int32 { return pdk.Wire(decideWire) }

func decideWire(w *abi.Wire) *abi.Decision {
	p, err := newPolicy(pdk.Config)
	if err != nil {
		return pdk.Deny("npm.config", "the configuration of this policy is broken: "+err.Error(), "the operator corrects config in tools.d/npm/tool.json")
	}
	return p.wire(w)
}

// wire decides about a request. Packages are read; what changes them, or the account
// of the credential, is nothing that this tool does, whatever npm or a program that it
// runs sends.
func (p *policy) wire(w *abi.Wire) *abi.Decision {
	path, _, _ := strings.Cut(w.Path, "?")
	switch {
	case w.On != abi.WireHTTP:
		return pdk.Deny("npm.wire", argv.Quote(w.On)+" is nothing that npm does", "")
	case !slices.Contains(p.hosts, w.Host):
		return pdk.Deny("npm.wire.registry", "host "+argv.Quote(w.Host)+" is not that of a registry of this tool", "use a package of the registry, or have the operator add its host to config in tools.d/npm/tool.json")
	case w.Method == "GET" || w.Method == "HEAD":
	case w.Method == "POST" && (strings.HasSuffix(path, "/-/npm/v1/security/advisories/bulk") || strings.HasSuffix(path, "/-/npm/v1/security/audits/quick")):
		// Which asks about versions.
	case w.Method == "PUT":
		return pdk.Deny("npm.publish", "the request PUT "+argv.Quote(path)+" publishes, or changes what is published", "publish where the release is made")
	default:
		return pdk.Deny("npm.wire.method", w.Method+" of "+argv.Quote(path)+" changes something in the registry, and this tool looks and installs", "")
	}
	d := pdk.Allow()
	d.Rule = "npm.wire"
	return d
}
