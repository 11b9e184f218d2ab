package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// lfsCall is a call in a repository with files in LFS, whose remote is at url.
func lfsCall(line, url string, more ...abi.ConfigEntry) *abi.Call {
	c := callOf(split(line), append([]abi.ConfigEntry{{Key: "remote.origin.url", Value: url}}, more...)...)
	c.RepoConfig.State = append(c.RepoConfig.State, abi.ConfigEntry{Key: "lfs", Value: "objects"})
	return c
}

// TestLFSServer: which server git-lfs is given, and whether it fetches what is missing.
func TestLFSServer(t *testing.T) {
	const https = "https://example.com/a/b.git"
	entry := func(key, value string) abi.ConfigEntry { return abi.ConfigEntry{Key: key, Value: value} }
	for _, tt := range []struct {
		line, url string
		more      []abi.ConfigEntry
		want      string // of lfs.url; "": none is asked
	}{
		{"push origin main", https, nil, https + "/info/lfs"},
		{"push origin main", "https://u:p@example.com/a/b/", nil, "https://example.com/a/b.git/info/lfs"},
		{"push origin main", "git@example.com:a/b.git", nil, https + "/info/lfs"},
		{"push origin main", "ssh://git@example.com:2222/a/b", nil, https + "/info/lfs"},
		{"push origin main", "/ws/remote.git", nil, ""},
		{"checkout main", https, nil, https + "/info/lfs"},
		{"checkout main", "/ws/remote.git", nil, ""},
		{"status", https, nil, ""},
		{"add .", https, nil, ""},
		{"lfs pull", https, nil, https + "/info/lfs"},
		{"lfs fetch origin main", https, nil, https + "/info/lfs"},
		{"lfs ls-files", https, nil, ""},
		{"clone " + https, https, nil, https + "/info/lfs"},
		{"pull", https, []abi.ConfigEntry{entry("lfs.url", "https://lfs.example.com/x")}, "https://lfs.example.com/x"},
		{"push origin main", https, []abi.ConfigEntry{entry("remote.origin.pushurl", "https://example.com/one"), entry("remote.origin.pushurl", "https://example.com/two")}, ""},
		{"pull origin main", https, []abi.ConfigEntry{entry("url.https://other.example.com/.insteadof", "https://example.com/a/b.git/info")}, ""},
	} {
		d := testPolicy(map[string]string{lfsConfig: "/lfs"}).decide(lfsCall(tt.line, tt.url, tt.more...))
		if d.Effect != abi.Allow {
			t.Errorf("git %s: %s", tt.line, d.Reason)
			continue
		}
		want := tt.want
		if want == "" {
			want = noServer
		}
		for _, kv := range []string{"lfs.url=" + want, "lfs.pushUrl=" + want, "filter.lfs.process=/lfs/" + lfsProgram, "lfs.basicTransfersOnly=true", "lfs.standaloneTransferAgent=", "lfs.storage=", "lfs.sshTransfer=never"} {
			if !slices.Contains(d.Args, kv) {
				t.Errorf("git %s at %s lacks %s: %q", tt.line, tt.url, kv, d.Args)
			}
		}
		if skip := d.Env["GIT_LFS_SKIP_SMUDGE"]; (skip == "1") != (tt.want == "") {
			t.Errorf("git %s at %s: GIT_LFS_SKIP_SMUDGE=%q", tt.line, tt.url, skip)
		}
		if hook := slices.Contains(d.Args, "core.hooksPath=/lfs"); hook != (strings.HasPrefix(tt.line, "push") && tt.want != "") {
			t.Errorf("git %s at %s: the hook of git-lfs runs: %v", tt.line, tt.url, hook)
		}
	}
}

// TestLFSRefused: what a repository or a call says of LFS that is not taken.
func TestLFSRefused(t *testing.T) {
	const url = "https://example.com/a/b.git"
	for _, tt := range []struct{ line, key, value, rule string }{
		{"add .", "lfs.extension.x.clean", "/evil", "repo-config"},
		{"add .", "lfs.extension.x.priority", "0", "repo-config"},
		{"status", "lfs.customtransfer.x.path", "/evil", "repo-config"},
		{"status", "lfs.standalonetransferagent", "x", "repo-config"},
		{"status", "lfs.https://example.com/.standalonetransferagent", "x", "repo-config"},
		{"status", "lfs.whatever", "x", "repo-config"},
		{"add .", "filter.lfs.clean", "/evil", "repo-config"},
		{"add .", "filter.lfs.process", "git-lfs filter-process;/evil", "repo-config"},
		{"add .", "filter.other.clean", "git-lfs clean -- %f", "repo-config"},
		{"checkout main", "credential.helper", "/evil", "repo-config"},
		{"checkout main", "http.proxy", "http://evil", "repo-config"},
		{"checkout main", "lfs.url", "file:///out", "remote"},
		{"checkout main", "lfs.url", "ssh://example.com/x", "remote"},
		{"checkout main", "lfs.url", "https://other.example.org/x", "remote"},
		{"push origin main", "remote.origin.lfsurl", "https://other.example.org/x", "remote"},
		{"lfs push origin main", "lfs.pushurl", "git@example.com:x", "remote"},
		{"lfs install", "", "", "subcommand"}, {"lfs update", "", "", "subcommand"}, {"lfs prune", "", "", "subcommand"}, {"lfs migrate import", "", "", "subcommand"}, {"lfs lock a", "", "", "subcommand"},
		{"lfs smudge", "", "", "subcommand"}, {"lfs filter-process", "", "", "subcommand"}, {"lfs standalone-file", "", "", "subcommand"}, {"lfs", "", "", "operand"},
		{"lfs push origin main --object-id", "", "", "flag.refused"}, {"lfs fetch --prune", "", "", "flag.refused"}, {"lfs push", "", "", "operand"}, {"lfs fetch ext::evil", "", "", "remote"},
		{"lfs track --unknown", "", "", "flag.unknown"}, {"lfs pull /ws/remote.git", "", "", "remote"}, {"lfs pull https://other.example.org/x", "", "", "remote"},
		{"-c lfs.url=https://x ls-files", "", "", "global-flag"}, {"config lfs.standalonetransferagent x", "", "", "config.key"},
	} {
		var more []abi.ConfigEntry
		if tt.key != "" {
			more = append(more, abi.ConfigEntry{Key: tt.key, Value: tt.value})
		}
		d := testPolicy(map[string]string{lfsConfig: "/lfs", "hosts": "example.com"}).decide(lfsCall(tt.line, url, more...))
		if d.Effect == abi.Allow || d.Rule != tt.rule {
			t.Errorf("git %s with %s=%s: %s by %q: %s; want %s", tt.line, tt.key, tt.value, d.Effect, d.Rule, d.Reason, tt.rule)
		}
	}
	// What git lfs install writes is overridden.
	for _, more := range [][]abi.ConfigEntry{{{Key: "filter.lfs.clean", Value: "git-lfs clean -- %f"}, {Key: "filter.lfs.process", Value: "git-lfs filter-process"}}, {{Key: "lfs.repositoryformatversion", Value: "0"}, {Key: "lfs.https://example.com/.access", Value: "basic"}, {Key: "lfs.transfer.maxretries", Value: "3"}}} {
		if d := testPolicy(map[string]string{lfsConfig: "/lfs"}).decide(lfsCall("add .", url, more...)); d.Effect != abi.Allow {
			t.Errorf("%v: %s", more, d.Reason)
		}
	}
	if d := testPolicy(nil).decide(lfsCall("lfs pull", url)); d.Effect == abi.Allow || !strings.Contains(d.Instead, "capabilities.exec") {
		t.Errorf("git lfs where it is not granted: %s %s %s", d.Effect, d.Reason, d.Instead)
	}
	if d := testPolicy(map[string]string{lfsConfig: "/lfs"}).decide(func() *abi.Call { c := lfsCall("lfs push origin main", url); c.ReadOnly = true; return c }()); d.Rule != "read-only" {
		t.Errorf("lfs push of a caller that may only read: %s by %q", d.Effect, d.Rule)
	}
}

// TestLFSHook: the hook of git-lfs has the place of the repository's own, which is said.
func TestLFSHook(t *testing.T) {
	c := lfsCall("push origin main", "https://example.com/a/b.git")
	c.RepoConfig.Hooks, c.RepoConfig.HooksDir = []string{"pre-push"}, "/ws/.git/hooks"
	c.Callbacks = &abi.Callbacks{Kinds: []string{kindHooks}, Folder: "/shims"}
	d := testPolicy(map[string]string{lfsConfig: "/lfs"}).decide(c)
	if d.Effect != abi.Allow || len(d.Callbacks) > 0 || !slices.Contains(d.Args, "core.hooksPath=/lfs") || !strings.Contains(strings.Join(d.Notes, "\n"), "hook pre-push was not run") {
		t.Errorf("%s %s: %q, %q, %q", d.Effect, d.Reason, d.Args, d.Notes, d.Callbacks)
	}
	if d := testPolicy(map[string]string{lfsConfig: "/lfs", "hooks": "refuse"}).decide(c); d.Rule != "hook" {
		t.Errorf("with hooks that are to run: %s by %q", d.Effect, d.Rule)
	}
	if d := testPolicy(map[string]string{lfsConfig: "/lfs"}).decide(lfsCall("push --no-verify origin main", "https://example.com/a/b.git")); slices.Contains(d.Args, "core.hooksPath=/lfs") {
		t.Errorf("with --no-verify: %q", d.Args)
	}
}

// TestLFSWire: what git-lfs may send where the daemon adds its credential.
func TestLFSWire(t *testing.T) {
	object := "/store/" + strings.Repeat("0a", 32)
	for _, tt := range []struct {
		method, path, args string
		reads, granted     bool
		rule               string
	}{
		{"POST", "/a/b.git/info/lfs/objects/batch", "checkout main", false, true, ""},
		{"POST", "/a/b.git/info/lfs/objects/batch", "checkout main", true, true, ""},
		{"POST", "/a/b.git/info/lfs/objects/batch", "checkout main", false, false, "wire.method"},
		{"GET", "/store/1", "checkout main", true, true, ""},
		{"PUT", object, "push origin main", false, true, ""},
		{"PUT", object, "-c a=b lfs push origin main", false, true, ""},
		{"PUT", object, "push origin main", true, true, "read-only"},
		{"PUT", object, "checkout main", false, true, "push.unasked"},
		{"PUT", object, "lfs pull", false, true, "push.unasked"},
		{"PUT", object, "push origin main", false, false, "wire.method"},
		{"POST", "/a/lfs/verify", "push origin main", false, true, ""},
		{"POST", "/a/lfs/verify", "fetch origin", false, true, "push.unasked"},
		{"PUT", "/store/1", "push origin main", false, true, "wire.method"},
		{"POST", "/api/v3/repos", "push origin main", false, true, "wire.method"},
		{"DELETE", object, "push origin main", false, true, "wire.method"},
	} {
		config := map[string]string{}
		if tt.granted {
			config[lfsConfig] = "/lfs"
		}
		d := testPolicy(config).wire(&abi.Wire{On: abi.WireHTTP, Host: "example.com", Port: 443, Method: tt.method, Path: tt.path, Call: abi.Call{Args: split(tt.args), ReadOnly: tt.reads}})
		if got := d.Rule; (d.Effect == abi.Allow) != (tt.rule == "") || tt.rule != "" && got != tt.rule {
			t.Errorf("%s %s of git %s: %s by %q, want %q", tt.method, tt.path, tt.args, d.Effect, got, tt.rule)
		}
	}
}
