package main

import (
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// TestWire is the policy's second look, natively.
func TestWire(t *testing.T) {
	zeros, old, id := strings.Repeat("0", 40), strings.Repeat("1", 40), strings.Repeat("2", 40)
	yes, no := true, false
	ref := func(name, from, to string, force *bool) []abi.WireRef {
		return []abi.WireRef{{Name: name, Old: from, New: to, Force: force}}
	}
	forcing := map[string]string{"force": "agent/*, +wip/*", "protected": "main, agent/main"}
	for _, tt := range []struct {
		name   string
		config map[string]string
		refs   []abi.WireRef
		args   string
		rule   string // "": allowed
	}{
		{"a fast-forward", nil, ref("refs/heads/main", old, id, &no), "push", ""},
		{"a new branch", nil, ref("refs/heads/x", zeros, id, &no), "push", ""},
		{"a new tag", nil, ref("refs/tags/v1", zeros, id, &no), "push", ""},
		{"a rewrite", nil, ref("refs/heads/main", old, id, &yes), "push", "push.force"},
		{"what is not known", nil, ref("refs/heads/main", old, id, nil), "push", "push.force"},
		{"a tag that moves", forcing, ref("refs/tags/wip/1", old, id, &yes), "push", "push.force"},
		{"a tag that is said not to", nil, ref("refs/tags/v1", old, id, nil), "push", "push.force"},
		{"a tag that is said not to be one", nil, ref("refs/tags/v1", old, id, &no), "push", "push.force"},
		{"a deletion", nil, ref("refs/heads/x", old, zeros, &yes), "push", "push.delete"},
		{"a deletion where force is allowed", forcing, ref("refs/heads/wip/x", old, zeros, &yes), "push", "push.delete"},
		{"a protected one", forcing, ref("refs/heads/main", old, id, &no), "push", "push.protected"},
		{"a protected one that is new", forcing, ref("refs/heads/main", zeros, id, &no), "push", "push.protected"},
		{"a tag over a protected one", forcing, ref("refs/tags/main", zeros, id, &no), "push", "push.protected"},
		{"a protected one that may be rewritten", forcing, ref("refs/heads/agent/main", old, id, &yes), "push --force-with-lease=refs/heads/agent/main", "push.protected"},
		{"forced where it may be", forcing, ref("refs/heads/wip/x", old, id, &yes), "push", ""},
		{"forced elsewhere", forcing, ref("refs/heads/x", old, id, &yes), "push", "push.force"},
		{"without the lease", forcing, ref("refs/heads/agent/x", old, id, &yes), "push", "push.force"},
		{"with the lease of another", forcing, ref("refs/heads/agent/x", old, id, &yes), "push --force-with-lease=refs/heads/agent/y:" + old, "push.force"},
		{"with the lease", forcing, ref("refs/heads/agent/x", old, id, &yes), "--no-pager -c push.x=y push --force-with-lease=refs/heads/agent/x:" + old, ""},
		{"notes", nil, ref("refs/notes/x", zeros, id, &no), "push", "push.refspec"},
		{"two meanings", nil, ref("refs/heads/refs/heads/x", zeros, id, &no), "push", "push.refspec"},
		{"the second of two", nil, append(ref("refs/heads/x", zeros, id, &no), ref("refs/heads/y", old, id, &yes)...), "push", "push.force"},
		{"in a fetch", nil, ref("refs/heads/x", zeros, id, &no), "-C push --no-pager fetch", "push.unasked"},
		{"in nothing", nil, ref("refs/heads/x", zeros, id, &no), "", "push.unasked"},
		{"another host", map[string]string{"hosts": "example.com"}, ref("refs/heads/x", zeros, id, &no), "push", "remote"},
		{"a configuration that is none", map[string]string{"hooks": "perhaps"}, ref("refs/heads/x", zeros, id, &no), "push", "config"},
	} {
		d := testPolicy(tt.config).wire(&abi.Wire{On: abi.WirePush, Host: "git.example", Port: 22, Refs: tt.refs, Call: abi.Call{Args: strings.Fields(tt.args)}})
		if (d.Effect == abi.Allow) != (tt.rule == "") || tt.rule != "" && d.Rule != tt.rule {
			t.Errorf("%s: %s by %s: %s", tt.name, d.Effect, d.Rule, d.Reason)
		}
	}
	readOnly := &abi.Wire{On: abi.WirePush, Refs: ref("refs/heads/x", zeros, id, &no), Call: abi.Call{Args: []string{"push"}, ReadOnly: true}}
	if d := testPolicy(nil).wire(readOnly); d.Rule != "read-only" {
		t.Errorf("a caller that may only read: %+v", d)
	}
	for _, tt := range []struct {
		on, method, path string
		ok               bool
	}{
		{abi.WireHTTP, "GET", "/x/info/refs?service=git-upload-pack", true}, {abi.WireHTTP, "POST", "/x/git-upload-pack", true}, {abi.WireHTTP, "POST", "/x/git-receive-pack", true},
		{abi.WireHTTP, "POST", "/api/v1/keys", false}, {abi.WireHTTP, "PUT", "/x/objects/00/11", false}, {abi.WireHTTP, "PROPFIND", "/x/", false}, {abi.WireHTTP, "POST", "/api?/git-upload-pack", false}, {"else", "GET", "/", false}, {"", "", "", false},
	} {
		if d := testPolicy(nil).wire(&abi.Wire{On: tt.on, Host: "h", Method: tt.method, Path: tt.path}); (d.Effect == abi.Allow) != tt.ok {
			t.Errorf("%s %s %s: %s by %s", tt.on, tt.method, tt.path, d.Effect, d.Rule)
		}
	}
}

// TestWireOfLFS has git-lfs send what it does, in a push, and nothing to other places.
func TestWireOfLFS(t *testing.T) {
	oid := strings.Repeat("0f", 32)
	for _, tt := range []struct {
		args, method, path string
		ok                 bool
	}{
		{"push origin main", "POST", "/x.git/info/lfs/objects/batch", true}, {"checkout main", "POST", "/x.git/info/lfs/objects/batch", true},
		{"push origin main", "PUT", "/x.git/info/lfs/objects/" + oid, true}, {"lfs push origin main", "PUT", "/x.git/gitlab-lfs/objects/" + oid + "/12", true},
		{"push origin main", "POST", "/x.git/info/lfs/verify", true}, {"push origin main", "POST", "/objects/" + oid + "/verify", true},
		{"fetch", "PUT", "/x.git/info/lfs/objects/" + oid, false}, {"lfs pull", "POST", "/x.git/info/lfs/verify", false},
		{"push origin main", "PUT", "/x/objects/00/" + oid[:38], false}, {"push origin main", "PUT", "/api/v1/repos/o/r/contents/f", false},
		{"push origin main", "PUT", "/api/v1/keys?/" + oid, false}, {"push origin main", "PUT", "/x/" + strings.ToUpper(oid), false},
		{"push origin main", "POST", "/api/v1/domains/verify", false}, {"push origin main", "DELETE", "/x.git/info/lfs/objects/" + oid, false},
	} {
		w := &abi.Wire{On: abi.WireHTTP, Host: "h", Method: tt.method, Path: tt.path, Call: abi.Call{Args: strings.Fields(tt.args)}}
		if d := testPolicy(map[string]string{lfsConfig: "/state/lfs"}).wire(w); (d.Effect == abi.Allow) != tt.ok {
			t.Errorf("%s: %s %s: %s by %s", tt.args, tt.method, tt.path, d.Effect, d.Rule)
		}
		if d := testPolicy(nil).wire(w); d.Effect == abi.Allow {
			t.Errorf("%s: %s %s is allowed without git-lfs", tt.args, tt.method, tt.path)
		}
	}
}
