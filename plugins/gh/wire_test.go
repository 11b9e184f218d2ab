package main

import (
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

func TestWire(t *testing.T) {
	for _, tt := range []struct{ config, args, request, rule string }{
		{"", "pr list", "POST api.github.com/graphql", "gh.wire"},
		{"", "api repos/a/b", "GET api.github.com/repos/a/b?x=y", "gh.wire"},
		{"", "api repos/a/b", "DELETE api.github.com/repos/a/b", "gh.wire.endpoint"},
		{"", "api user", "POST api.github.com/graphql", "gh.wire.graphql"},
		{"", "api user", "GET api.github.com/user/keys", "gh.wire.endpoint"},
		{"", "pr close 1", "PATCH api.github.com/repos/a/b/pulls/1", "gh.wire"},
		{"", "pr edit 1", "DELETE api.github.com/repos/a/b/pulls/1/requested_reviewers", "gh.wire"},
		{"", "pr list", "DELETE api.github.com/repos/a/b/git/refs/heads/x", "gh.wire.endpoint"},
		{"", "pr list", "DELETE api.github.com/repos/a/b/actions/runs/1", "gh.wire.endpoint"},
		{"", "run rerun", "POST api.github.com/repos/a/b/actions/runs/1/rerun", "gh.wire"},
		{"", "pr list", "POST api.github.com/repos/a/b/releases", "gh.wire.endpoint"},
		{"", "pr list", "PUT api.github.com/repos/a/b/collaborators/me", "gh.wire.endpoint"},
		{"", "pr list", "POST api.github.com/repos/a/b/hooks", "gh.wire.endpoint"},
		{"", "pr list", "PUT api.github.com/repos/a/b/actions/secrets/x", "gh.wire.endpoint"},
		{"", "pr list", "DELETE api.github.com/repos/a/b", "gh.wire.endpoint"},
		{"", "pr list", "POST api.github.com/user/keys", "gh.wire.endpoint"},
		{"", "pr list", "POST api.github.com/repos//a/b/pulls", "gh.wire.path"},
		{"", "pr list", "POST github.com/a/b", "gh.wire.method"},
		{"", "run view", "GET x.blob.core.windows.net/log", "gh.wire"},
		{"repos=a/b o/*", "pr view", "GET api.github.com/repos/A/b/pulls/1", "gh.wire"},
		{"repos=a/b o/*", "pr view", "GET api.github.com/repos/o/any/pulls/1", "gh.wire"},
		{"repos=a/b o/*", "pr view", "GET api.github.com/repos/a/c/pulls/1", "gh.wire.repo"},
		{"repos=a/b o/*", "pr view", "GET api.github.com/repos/a%2fb/c/pulls/1", "gh.wire.repo"},
		{"host=git.example", "pr list", "POST git.example/api/graphql", "gh.wire"},
		{"host=git.example", "pr list", "DELETE git.example/api/v3/repos/a/b", "gh.wire.endpoint"},
		{"host=git.example", "pr list", "DELETE git.example/a/b", "gh.wire.method"},
	} {
		p, err := newPolicy(func(name string) string {
			if k, v, _ := strings.Cut(tt.config, "="); k == name {
				return v
			}
			return ""
		})
		if err != nil {
			t.Fatal(err)
		}
		method, rest, _ := strings.Cut(tt.request, " ")
		host, path, _ := strings.Cut(rest, "/")
		d := p.wire(&abi.Wire{On: abi.WireHTTP, Method: method, Host: host, Port: 443, Path: "/" + path, Call: abi.Call{Args: strings.Fields(tt.args)}})
		if d.Rule != tt.rule || d.Effect == abi.Allow != (tt.rule == "gh.wire") {
			t.Errorf("%+v: %+v", tt, d)
		}
	}
	p, _ := newPolicy(func(string) string { return "" })
	if d := p.wire(&abi.Wire{On: abi.WireHTTP, Method: "PATCH", Host: "api.github.com", Path: "/repos/a/b/pulls/1", Call: abi.Call{ReadOnly: true, Args: []string{"pr", "list"}}}); d.Rule != "gh.wire.read-only" {
		t.Errorf("%+v", d)
	}
	if d := p.wire(&abi.Wire{On: abi.WirePush, Host: "github.com"}); d.Effect == abi.Allow {
		t.Errorf("%+v", d)
	}
}
