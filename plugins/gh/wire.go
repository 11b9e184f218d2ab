package main

import (
	"net/url"
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
		return pdk.Deny("gh.config", "the configuration of this policy is broken: "+err.Error(), "the operator corrects config in tools.d/gh/tool.json")
	}
	return p.wire(w)
}

// wire decides about a request, by method and path. What gh asks of the endpoint
// graphql is not seen: there the arguments decide, which name the repository.
func (p *policy) wire(w *abi.Wire) *abi.Decision {
	deny := func(rule, reason, instead string) *abi.Decision {
		return pdk.Deny("gh.wire."+rule, reason, instead)
	}
	if w.On != abi.WireHTTP {
		return deny("on", argv.Quote(w.On)+" is nothing that gh does", "")
	}
	path, _, _ := strings.Cut(w.Path, "?")
	reads := w.Method == "GET" || w.Method == "HEAD"
	parts, isAPI, ok := p.endpointOf(w.Host, path)
	switch {
	case !ok:
		return deny("path", "path "+argv.Quote(path)+" is not one of GitHub's", "")
	case !isAPI && !reads:
		return deny("method", w.Method+" to "+argv.Quote(w.Host)+", which is not GitHub's API", "")
	case !isAPI:
	case len(parts) == 1 && parts[0] == "graphql":
		if len(w.Call.Args) > 0 && w.Call.Args[0] == "api" {
			return deny("graphql", "endpoint graphql reads and writes everything", "use gh pr, gh issue or an endpoint beneath repos/")
		}
	case len(w.Call.Args) > 0 && w.Call.Args[0] == "api":
		if !slices.ContainsFunc(p.api, func(r rule) bool { return r.admits(w.Method, parts) }) {
			return deny("endpoint", w.Method+" of endpoint "+argv.Quote(strings.Join(parts, "/"))+" is not on this tool's list", "have the operator add it to config.api in tools.d/gh/tool.json")
		}
	case w.Call.ReadOnly && !reads:
		return deny("read-only", w.Method+" of "+argv.Quote(path)+" changes something, and this caller may only read", "")
	case !reads && !(len(parts) > 3 && parts[0] == "repos" && everyday(w.Method, parts[3:])):
		// Repositories, their settings, keys, hooks and secrets, and accounts.
		return deny("endpoint", w.Method+" of endpoint "+argv.Quote(strings.Join(parts, "/"))+" is nothing that this tool's commands do", "")
	}
	if isAPI && len(parts) > 2 && parts[0] == "repos" && !p.allowsRepo(parts[1]+"/"+parts[2]) {
		return deny("repo", "repository "+argv.Quote(parts[1]+"/"+parts[2])+" is not one of this tool's", "use one of: "+strings.Join(p.repos, ", "))
	}
	d := pdk.Allow()
	d.Rule = "gh.wire"
	return d
}

// everyday reports whether commands on pull requests, issues and runs change, by
// method, what is at these parts of a repository.
func everyday(method string, parts []string) bool {
	switch parts[0] {
	case "pulls", "issues":
		return true
	case "labels":
		return method != "DELETE"
	case "actions":
		return method != "DELETE" && len(parts) > 1 && (parts[1] == "runs" || parts[1] == "jobs" || parts[1] == "workflows")
	}
	return false
}

// endpointOf is the endpoint of GitHub's API at a path of host, in its parts.
func (p *policy) endpointOf(host, path string) (parts []string, isAPI, ok bool) {
	switch {
	case host == "api."+p.host:
	case p.host != "github.com" && host == p.host:
		rest, found := strings.CutPrefix(path, "/api/v3/")
		if !found {
			if rest, found = strings.CutPrefix(path, "/api/"); !found {
				return nil, false, true
			}
		}
		path = rest
	default:
		return nil, false, true
	}
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		plain, err := url.PathUnescape(part)
		if err != nil || part != "" && plain == "" || strings.Contains(path, "//") {
			return nil, true, false
		}
		parts = append(parts, plain)
	}
	return parts, true, true
}
