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

// wire decides about a request. Packages are read, and a call of npm publish adds a
// version to one that the operator lists. What changes anything else, or the account of
// the credential, is nothing that this tool does, whatever npm or a program that it runs
// sends.
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
	case w.Method == "PUT" && p.publishes(w):
	case w.Method == "PUT" && len(p.publish) > 0:
		return pdk.Deny("npm.publish", "the request PUT "+argv.Quote(path)+" changes what is published, and is not that of npm publish for a package that config.publish of the tool lists", "publish a package that it lists, or have the operator add this one in tools.d/npm/tool.json")
	case w.Method == "PUT":
		return pdk.Deny("npm.publish", "the request PUT "+argv.Quote(path)+" publishes, or changes what is published", "publish where the release is made")
	default:
		return pdk.Deny("npm.wire.method", w.Method+" of "+argv.Quote(path)+" changes something in the registry, and this tool looks and installs", "")
	}
	d := pdk.Allow()
	d.Rule = "npm.wire"
	return d
}

// publishes reports whether w is the request with which npm publish adds a version to a
// package that the operator lists.
func (p *policy) publishes(w *abi.Wire) bool {
	i := slices.IndexFunc(w.Call.Args, func(a string) bool { return !strings.HasPrefix(a, "-") })
	if i < 0 || w.Call.Args[i] != "publish" || w.Call.ReadOnly {
		return false
	}
	// A rehearsal asks, and sends nothing; it is allowed to who may only read.
	if slices.ContainsFunc(w.Call.Args[i:], func(a string) bool {
		return a == "--help" || strings.HasPrefix(a, "--dry-run") && a != "--dry-run=false"
	}) {
		return false
	}
	for _, at := range p.places() {
		host, under, _ := strings.Cut(strings.TrimPrefix(at, "//"), "/")
		name, _, _ := strings.Cut(host, ":")
		escaped, ok := strings.CutPrefix(w.Path, "/"+under)
		if !ok || strings.ToLower(name) != w.Host {
			continue
		}
		pkg := strings.Replace(escaped, "%2f", "/", 1)
		scope, _, scoped := strings.Cut(pkg, "/")
		if packageName(pkg) && scoped == strings.Contains(escaped, "%2f") && (slices.Contains(p.publish, pkg) || scoped && slices.Contains(p.publish, scope+"/*")) {
			return true
		}
	}
	return false
}
