package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func testPolicy(t testing.TB, conf map[string]string) *policy {
	t.Helper()
	p, err := newPolicy(func(k string) string { return conf[k] })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func call(args ...string) *abi.Call {
	return &abi.Call{Tool: "gh", Args: args, Cwd: "/w/a", Roots: []string{"/w"}}
}

func split1(args string) []string {
	if args == "" {
		return nil
	}
	return strings.Split(args, "|")
}

const inOR = "--repo=github.com/o/r"

func TestAllowed(t *testing.T) {
	for _, tt := range []struct {
		args     string // separated by |
		want     string
		mutating bool
		stdin    bool
	}{
		{"--version", "--version", false, false},
		{"version", "--version", false, false},
		{"pr|list|-R|o/r", "pr|list|" + inOR, false, false},
		{"pr|ls|-Ro/r", "pr|list|" + inOR, false, false},
		{"pr|list|-R=github.com/o/r", "pr|list|" + inOR, false, false},
		{"pr|list|--repo=https://github.com/o/r.git", "pr|list|" + inOR, false, false},
		{"pr|list|-R|o/r|--json|number,title|-q|.[].title|-L5|-s|all", "pr|list|--json=number,title|--jq=.[].title|--limit=5|--state=all|" + inOR, false, false},
		{"pr|list|-R|o/r|-S|is:open label:\"x y\"", "pr|list|--search=is:open label:\"x y\"|" + inOR, false, false},
		{"pr|view|12|-R|o/r|-c", "pr|view|--comments|" + inOR + "|--|12", false, false},
		{"pr|view|https://github.com/o/r/pull/12", "pr|view|" + inOR + "|--|12", false, false},
		{"pr|view|https://github.com/o/r/pull/12|-R|O/R", "pr|view|" + inOR + "|--|12", false, false},
		{"pr|view|feature/x|-R|o/r", "pr|view|" + inOR + "|--|feature/x", false, false},
		{"pr|diff|#12|-R|o/r", "pr|diff|" + inOR + "|--|12", false, false},
		{"pr|checks|12|-R|o/r|--watch|-i|30", "pr|checks|--watch|--interval=30|" + inOR + "|--|12", false, false},
		{"pr|create|-R|o/r|-H|b|-t|T|-b|line\nline|-d", "pr|create|--head=b|--title=T|--body=line\nline|--draft|" + inOR, true, false},
		{"pr|create|-R|o/r|-H|b|-t|T|-F|-", "pr|create|--head=b|--title=T|--body-file=-|" + inOR, true, true},
		{"pr|create|-R|o/r|-H|b|-t|T|-F|x/../body.md", "pr|create|--head=b|--title=T|--body-file=body.md|" + inOR, true, false},
		{"pr|create|-R|o/r|-H|b|-t|--web|-b|--web", "pr|create|--head=b|--title=--web|--body=--web|" + inOR, true, false},
		{"pr|comment|12|-R|o/r|-b|hi", "pr|comment|--body=hi|" + inOR + "|--|12", true, false},
		{"pr|merge|12|-R|o/r|-s|--auto", "pr|merge|--squash|--auto|" + inOR + "|--|12", true, false},
		{"pr|review|12|-R|o/r|--approve", "pr|review|--approve|" + inOR + "|--|12", true, false},
		{"issue|list|-R|o/r|--label|bug", "issue|list|--label=bug|" + inOR, false, false},
		{"issue|view|https://github.com/o/r/issues/3", "issue|view|" + inOR + "|--|3", false, false},
		{"issue|create|-R|o/r|-t|T|-b|B", "issue|create|--title=T|--body=B|" + inOR, true, false},
		{"issue|close|3|-R|o/r|-r|not planned", "issue|close|--reason=not planned|" + inOR + "|--|3", true, false},
		{"repo|view|o/r|--json|name", "repo|view|--json=name|--|github.com/o/r", false, false},
		{"repo|list|o|-L|3", "repo|list|--limit=3|--|o", false, false},
		{"release|download|v1|-R|o/r|-p|*.tgz|-D|dist", "release|download|--pattern=*.tgz|--dir=dist|" + inOR + "|--|v1", false, false},
		{"run|view|77|-R|o/r|--log-failed", "run|view|--log-failed|" + inOR + "|--|77", false, false},
		{"workflow|run|ci.yml|-R|o/r|-r|main|-f|a=b|-F|c=@in.txt", "workflow|run|--ref=main|--raw-field=a=b|--field=c=@in.txt|" + inOR + "|--|ci.yml", true, false},
		{"search|issues|--|-label:bug|x", "search|issues|--|-label:bug|x", false, false},
		{"search|prs|--repo|o/r|x", "search|prs|--repo=o/r|--|x", false, false},
		{"api|repos/o/r/pulls", "api|--method=GET|--hostname=github.com|--|repos/o/r/pulls", false, false},
		{"api|/repos/o/r/pulls/1/files?per_page=5|--paginate|-q|.[].filename", "api|--paginate|--jq=.[].filename|--method=GET|--hostname=github.com|--|repos/o/r/pulls/1/files?per_page=5", false, false},
		{"api|-X|GET|repos/o/r/issues|-f|state=open", "api|--raw-field=state=open|--method=GET|--hostname=github.com|--|repos/o/r/issues", false, false},
		{"api|repos/o/r/compare/main...o:b", "api|--method=GET|--hostname=github.com|--|repos/o/r/compare/main...o:b", false, false},
		{"api|repos/o/r/contents/a/b.txt|-H|Accept: application/vnd.github.raw", "api|--header=Accept: application/vnd.github.raw|--method=GET|--hostname=github.com|--|repos/o/r/contents/a/b.txt", false, false},
		{"pr|view|--help", "pr|view|--help", false, false},
	} {
		t.Run(tt.args, func(t *testing.T) {
			d := testPolicy(t, map[string]string{"files": "roots"}).decide(call(split1(tt.args)...))
			if d.Effect != abi.Allow {
				t.Fatalf("refused by %s: %s", d.Rule, d.Reason)
			}
			if got := strings.Join(d.Args, "|"); got != tt.want {
				t.Errorf("runs\n %s, want\n %s", got, tt.want)
			}
			if *d.Mutating != tt.mutating || *d.Stdin != tt.stdin {
				t.Errorf("mutating %v, stdin %v", *d.Mutating, *d.Stdin)
			}
			for k, v := range map[string]string{"GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1", "GH_PAGER": "cat", "GH_HOST": "github.com", "GH_DEBUG": "", "GH_EDITOR": "false", "GH_BROWSER": "false", "GH_FORCE_TTY": "", "GIT_DIR": "/dev/null"} {
				if got, ok := d.Env[k]; !ok || got != v {
					t.Errorf("%s=%q", k, got)
				}
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct{ args, rule, says string }{
		{"--nothing", "gh.command", "before the command"},
		{"-R|o/r|pr|list", "gh.command", "-R"},
		{"pr|frobnicate", "gh.command", "frobnicate"},
		{"p|list", "gh.command", "gh p"},
		{"alias|set|x|!sh", "gh.command.refused", "alias"},
		{"alias|set|--shell|x|touch marker", "gh.command.refused", "alias"},
		{"auth|token", "gh.command.refused", "auth"},
		{"auth|status|--show-token", "gh.command.refused", "auth"},
		{"auth|setup-git", "gh.command.refused", "auth"},
		{"browse", "gh.command.refused", "browse"},
		{"codespace|ssh", "gh.command.refused", "codespace"},
		{"config|set|editor|sh", "gh.command.refused", "config"},
		{"config|set|pager|sh -c x", "gh.command.refused", "config"},
		{"extension|install|o/gh-x", "gh.command.refused", "extension"},
		{"extension|exec|x", "gh.command.refused", "extension"},
		{"ext|install|o/x", "gh.command", "ext"},
		{"gist|create|-", "gh.command.refused", "gist"},
		{"secret|set|X", "gh.command.refused", "secret"},
		{"secret|list|-R|o/r", "gh.command.refused", "secret"},
		{"ssh-key|add|k", "gh.command.refused", "ssh-key"},
		{"variable|set|X", "gh.command.refused", "variable"},
		{"pr|checkout|1", "gh.command.refused", "checkout"},
		{"repo|clone|o/r", "gh.command.refused", "clone"},
		{"repo|delete|o/r|--yes", "gh.command.refused", "delete"},
		{"repo|create|x", "gh.command.refused", "create"},
		{"release|create|v1", "gh.command.refused", "release create"},
		{"release|upload|v1|/etc/passwd", "gh.command.refused", "upload"},
		{"x", "gh.command", "gh x"}, // an alias or an extension of the host's user
		{"my-alias|foo", "gh.command", "my-alias"},

		{"pr|list", "gh.repo.none", "which repository"},
		{"pr|list|-R|o", "gh.repo", `"o"`},
		{"pr|list|-R|o/r/x/y", "gh.repo", "o/r/x/y"},
		{"pr|list|-R|evil.com/o/r", "gh.repo", "evil.com"},
		{"pr|list|-R|https://evil.com/o/r", "gh.repo", "evil.com"},
		{"pr|list|-R|../x", "gh.repo", "../x"},
		{"pr|list|-R|o/r|-R|o/s", "gh.flag.twice", "--repo"},
		{"pr|list|-R|o/r|x", "gh.operand", `"x"`},
		{"pr|view|-R|o/r", "gh.operand", "which one"},
		{"pr|view|https://evil.com/o/r/pull/1", "gh.operand", "evil.com"},
		{"pr|view|https://github.com/o/r/pull/1|-R|o/s", "gh.repo.two", "o/s"},
		{"pr|view|https://github.com/o/r/pull/1/../../x/pull/2", "gh.operand", "neither"},
		{"pr|view|a..b|-R|o/r", "gh.operand", "a..b"},
		{"pr|view|1|2|-R|o/r", "gh.operand", `"2"`},
		{"issue|view|branch|-R|o/r", "gh.operand", "branch"},
		{"run|view|--|-x|-R|o/r", "gh.operand", "-R"},
		{"run|view|--|-x", "gh.operand", "-x"},
		{"repo|view|https://evil.com/o/r", "gh.repo", "evil.com"},
		{"repo|list|-", "gh.operand", `"-"`},

		{"pr|view|1|-R|o/r|--web", "gh.flag.refused", "--web"},
		{"pr|view|1|-R|o/r|-cw", "gh.flag.refused", "-w"},
		{"pr|view|1|-R|o/r|--web=true", "gh.flag.refused", "--web"},
		{"pr|view|1|-R|o/r|--we", "gh.flag.unknown", "--we"},
		{"pr|comment|1|-R|o/r|-e", "gh.flag.refused", "-e"},
		{"pr|comment|1|-R|o/r", "gh.flag.missing", "--body"},
		{"pr|create|-R|o/r|-t|T|-b|B", "gh.flag.missing", "--head"},
		{"pr|create|-R|o/r|--fill", "gh.flag.refused", "--fill"},
		{"pr|create|-R|o/r|--recover|/etc/passwd", "gh.flag.refused", "--recover"},
		{"pr|create|-R|o/r|-H|b|-t|T|-F|/etc/passwd", "gh.path.outside", "/etc/passwd"},
		{"pr|create|-R|o/r|-H|b|-t|T|-F../../../etc/passwd", "gh.path.outside", "etc/passwd"},
		{"issue|create|-R|o/r|-t|T|--body-file=/proc/self/environ", "gh.path.outside", "environ"},
		{"pr|merge|1|-R|o/r", "gh.flag.missing", "--merge"},
		{"pr|merge|1|-R|o/r|-m|--admin", "gh.flag.refused", "--admin"},
		{"pr|merge|1|-R|o/r|-md", "gh.flag.refused", "-d"},
		{"pr|close|1|-R|o/r|-d", "gh.flag.refused", "-d"},
		{"release|download|v1|-R|o/r|-D|/etc", "gh.path.outside", "/etc"},
		{"release|download|v1|-R|o/r|-O|../../x", "gh.path.outside", "../../x"},
		{"run|download|1|-R|o/r|--dir=/", "gh.path.outside", "/"},
		{"workflow|run|ci.yml|-R|o/r", "gh.flag.missing", "--ref"},
		{"workflow|run|ci.yml|-R|o/r|-r|m|-F|k=@/etc/passwd", "gh.path.outside", "/etc/passwd"},
		{"pr|list|-R|o/r|--json|title|-q|env.GH_TOKEN", "gh.jq", "env"},
		{"pr|list|-R|o/r|--json|title|-q|$ENV.GH_TOKEN", "gh.jq", "ENV"},
		{"pr|list|-R|o/r|--json|title|-q|\"\\(env|tojson)\"", "gh.jq", "env"},
		{"pr|list|-R|o/r|--json|title|-q|def f: env; f", "gh.jq", "env"},
		{"api|rate_limit|-q|env|@base64", "gh.jq", "env"},

		{"api|graphql|-f|query={viewer{login}}", "gh.api.graphql", "graphql"},
		{"api|/graphql", "gh.api.graphql", "graphql"},
		{"api|https://evil.com/x", "gh.api.endpoint", "URL"},
		{"api|https://api.github.com/user", "gh.api.endpoint", "URL"},
		{"api|user/keys", "gh.api.endpoint", "user/keys"},
		{"api|repos/o/r/hooks", "gh.api.endpoint", "hooks"},
		{"api|repos/o/r/actions/secrets", "gh.api.endpoint", "secrets"},
		{"api|repos/o/r/pulls/../hooks", "gh.api.endpoint", ".."},
		{"api|repos/o/r/pulls/%2e%2e/hooks", "gh.api.endpoint", "characters"},
		{"api|repos/o/r//hooks", "gh.api.endpoint", "empty"},
		{"api|repos/o/r/pulls\\..\\hooks", "gh.api.endpoint", "characters"},
		{"api|repos/o/r/issues#x", "gh.api.endpoint", "characters"},
		{"api|repos/{owner}/{repo}/pulls", "gh.api.endpoint", "which repository"},
		{"api|repos/o/r/branches/{branch}", "gh.api.endpoint", "characters"},
		{"api|repos/o/r/issues|-f|title=x", "gh.api.endpoint", "POST"},
		{"api|repos/o/r/issues/1|-X|DELETE", "gh.api.endpoint", "DELETE"},
		{"api|repos/o/r|-X|PATCH|-f|private=false", "gh.api.endpoint", "PATCH"},
		{"api|repos/o/r/issues|-X|BREW", "gh.flag.value", "BREW"},
		{"api|rate_limit|--hostname|evil.com", "gh.host", "evil.com"},
		{"api|rate_limit|-H|Authorization: x", "gh.flag.value", "-H"},
		{"api|rate_limit|-H|Accept: x\r\nHost: y", "gh.flag.value", "-H"},
		{"api|rate_limit|--input|/etc/passwd", "gh.path.outside", "/etc/passwd"},
		{"api|rate_limit|-F|x=@/etc/passwd", "gh.path.outside", "/etc/passwd"},
		{"api|rate_limit|-F|x={branch}", "gh.flag.value", "{branch}"},
		{"api|rate_limit|-f|=x", "gh.flag.value", "KEY=VALUE"},
		{"api|--method|GET", "gh.api.endpoint", "one endpoint"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			args := split1(tt.args)
			if strings.Contains(tt.args, "tojson") {
				args = []string{"pr", "list", "-R", "o/r", "--json", "title", "-q", `"\(env|tojson)"`}
			}
			if strings.Contains(tt.args, "@base64") {
				args = []string{"api", "rate_limit", "-q", "env|@base64"}
			}
			d := testPolicy(t, nil).decide(call(args...))
			if d.Effect != abi.Deny {
				t.Fatalf("allowed as %q", d.Args)
			}
			if strings.ReplaceAll(d.Rule, "abbreviated", "unknown") != tt.rule || !strings.Contains(d.Reason, tt.says) {
				t.Errorf("refused by %s: %s; want %s with %q", d.Rule, d.Reason, tt.rule, tt.says)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		name string
		conf map[string]string
		args string
		rule string
	}{
		{"the operator's repository", map[string]string{"repo": "o/r"}, "pr|list", "gh.pr_list"},
		{"and its placeholders", map[string]string{"repo": "o/r"}, "api|repos/{owner}/{repo}/pulls", "gh.api"},
		{"in gh's older form", map[string]string{"repo": "o/r"}, "api|repos/:owner/:repo/pulls", "gh.api"},
		{"repos", map[string]string{"repos": "o/r, p/*"}, "pr|list|-R|O/R", "gh.pr_list"},
		{"repos by owner", map[string]string{"repos": "o/r p/*"}, "pr|list|-R|p/x", "gh.pr_list"},
		{"another repository", map[string]string{"repos": "o/r p/*"}, "pr|list|-R|o/s", "gh.repo"},
		{"another one by URL", map[string]string{"repos": "o/r"}, "pr|view|https://github.com/o/s/pull/1", "gh.repo"},
		{"another one by operand", map[string]string{"repos": "o/r"}, "repo|view|o/s", "gh.repo"},
		{"another one by endpoint", map[string]string{"repos": "o/r"}, "api|repos/o/s/pulls", "gh.repo"},
		{"a search", map[string]string{"repos": "o/r"}, "search|issues|x", "gh.search"},
		{"an owner", map[string]string{"repos": "o/r"}, "repo|list|o", "gh.repo"},
		{"an owner that is listed", map[string]string{"repos": "o/*"}, "repo|list|o", "gh.repo_list"},
		{"endpoints", map[string]string{"api": "POST repos/*/*/issues"}, "api|repos/o/r/issues|-f|title=x", "gh.api"},
		{"only those", map[string]string{"api": "POST repos/*/*/issues"}, "api|repos/o/r/pulls", "gh.api.endpoint"},
		{"no endpoint", map[string]string{"api": "none"}, "api|rate_limit", "gh.api.endpoint"},
		{"graphql", map[string]string{"api": "POST graphql"}, "api|rate_limit", "gh.config"},
		{"a pattern that is none", map[string]string{"api": "GET repos/o*/r"}, "api|rate_limit", "gh.config"},
		{"an enterprise host", map[string]string{"host": "git.corp.example"}, "pr|list|-R|git.corp.example/o/r", "gh.pr_list"},
		{"which is then the only one", map[string]string{"host": "git.corp.example"}, "pr|list|-R|github.com/o/r", "gh.repo"},
		{"no files", nil, "issue|create|-R|o/r|-t|T|-F|x", "gh.path.file"},
		{"what is outside is outside", nil, "issue|create|-R|o/r|-t|T|-F|/x", "gh.path.outside"},
		{"no files, input", map[string]string{"files": "stdin"}, "issue|create|-R|o/r|-t|T|-F|-", "gh.issue_create"},
		{"files, if the operator says so", map[string]string{"files": "roots"}, "issue|create|-R|o/r|-t|T|-F|x", "gh.issue_create"},
		{"a host that is none", map[string]string{"host": "x/y"}, "version", "gh.config"},
		{"a repository that is none", map[string]string{"repo": "x"}, "version", "gh.config"},
		{"repositories that are none", map[string]string{"repos": "x/*/y"}, "version", "gh.config"},
		{"a switch that is none", map[string]string{"files": "all"}, "version", "gh.config"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := (&pdk.Fake{Config: tt.conf}).Restrict(restrict, call(split1(tt.args)...))
			if err != nil {
				t.Fatal(err)
			}
			if d.Rule != tt.rule {
				t.Errorf("%s by %s (%s), want %s", d.Effect, d.Rule, d.Reason, tt.rule)
			}
		})
	}
}

func TestRepositoryOfTheWorkingDirectory(t *testing.T) {
	entries := func(kv ...string) *abi.RepoConfig {
		r := &abi.RepoConfig{}
		for i := 0; i < len(kv); i += 2 {
			r.Entries = append(r.Entries, abi.ConfigEntry{Key: kv[i], Value: kv[i+1]})
		}
		return r
	}
	for _, tt := range []struct {
		name string
		conf *abi.RepoConfig
		want string
	}{
		{"https", entries("remote.origin.url", "https://github.com/o/r.git"), "o/r"},
		{"ssh", entries("remote.origin.url", "git@github.com:o/r.git"), "o/r"},
		{"ssh as a URL", entries("remote.origin.url", "ssh://git@github.com/o/r"), "o/r"},
		{"upstream comes first", entries("remote.origin.url", "git@github.com:me/r", "remote.upstream.url", "git@github.com:o/r"), "o/r"},
		{"the marked one before it", entries("remote.origin.url", "git@github.com:me/r", "remote.upstream.url", "git@github.com:o/r", "remote.origin.gh-resolved", "base"), "me/r"},
		{"by name", entries("remote.origin.url", "git@github.com:me/r", "remote.origin.gh-resolved", "x/y"), "x/y"},
		{"elsewhere", entries("remote.origin.url", "https://gitlab.com/o/r.git"), ""},
		{"a path", entries("remote.origin.url", "/srv/r.git"), ""},
		{"flags in a URL", entries("remote.origin.url", "git@github.com:-o/r"), ""},
		{"not readable", &abi.RepoConfig{Error: "broken", Entries: entries("remote.origin.url", "git@github.com:o/r").Entries}, ""},
		{"no repository", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := call("pr", "list")
			c.RepoConfig = tt.conf
			d := testPolicy(t, nil).decide(c)
			if tt.want == "" {
				if d.Rule != "gh.repo.none" {
					t.Errorf("%s by %s: %q", d.Effect, d.Rule, d.Args)
				}
				return
			}
			if want := []string{"pr", "list", "--repo=github.com/" + tt.want}; !slices.Equal(d.Args, want) {
				t.Errorf("runs %q, want %q", d.Args, want)
			}
		})
	}
}

func TestReadOnlyAndVariables(t *testing.T) {
	for args, effect := range map[string]string{
		"pr|list|-R|o/r":               abi.Allow,
		"api|repos/o/r/pulls":          abi.Allow,
		"pr|comment|1|-R|o/r|-b|x":     abi.Deny,
		"issue|create|-R|o/r|-tT|-bB":  abi.Deny,
		"api|repos/o/r/issues|-ft=x":   abi.Deny,
		"run|cancel|1|-R|o/r":          abi.Deny,
		"workflow|run|x|-R|o/r|-rmain": abi.Deny,
	} {
		c := call(split1(args)...)
		c.ReadOnly = true
		if d := testPolicy(t, map[string]string{"api": "GET repos/**, POST repos/**"}).decide(c); d.Effect != effect {
			t.Errorf("%s: %s by %s", args, d.Effect, d.Rule)
		}
	}
	for _, name := range []string{"GH_TOKEN", "GH_HOST", "GH_CONFIG_DIR", "GH_DEBUG", "GH_PAGER", "GH_REPO", "BROWSER", "EDITOR", "PATH", "HTTPS_PROXY", "GIT_DIR", "GLAMOUR_STYLE"} {
		c := call("pr", "list", "-R", "o/r")
		c.Env = map[string]string{name: "x"}
		if d := testPolicy(t, nil).decide(c); d.Rule != "gh.env" {
			t.Errorf("%s: %s by %s", name, d.Effect, d.Rule)
		}
	}
}

// FuzzPolicy: the policy ends with a decision; a denial says why; what is
// allowed is a known command with flags of its grammar, a repository that is
// named, and operands after "--".
func FuzzPolicy(f *testing.F) {
	for _, s := range []string{
		"pr|view|12|-R|o/r", "pr|list|-R|o/r|--json|title|-q|.x", "pr|create|-R|o/r|-H|b|-t|T|-F|x", "api|repos/o/r/pulls?x=y|-f|a=b|-X|GET",
		"api|repos/{owner}/{repo}/pulls", "search|issues|--|-x", "repo|view|o/r", "run|download|1|-R|o/r|-D|x", "workflow|run|x|-r|m|-F|a=@b|-R|o/r",
		"pr|view|https://github.com/o/r/pull/1", "repo|list|o", "version", "alias|set|x|!sh", "pr|list|-R=x/y|-dL3",
	} {
		f.Add(strings.ReplaceAll(s, "|", "\x1f"))
	}
	p := testPolicy(f, map[string]string{"repos": "o/r, p/*", "repo": "o/r"})
	f.Fuzz(func(t *testing.T, joined string) {
		args := strings.Split(joined, "\x1f")
		d := p.decide(call(args...))
		switch d.Effect {
		case abi.Allow:
			if fault := checkAllowed(p, d); fault != "" {
				t.Fatalf("%q is allowed as %q: %s", args, d.Args, fault)
			}
		case abi.Deny:
			if d.Rule == "" || d.Reason == "" || d.Args != nil || d.Env != nil {
				t.Fatalf("%q: %+v", args, d)
			}
		default:
			t.Fatalf("%q: effect %q", args, d.Effect)
		}
	})
}

// checkAllowed reads an allowed line as gh would and says what is wrong.
func checkAllowed(p *policy, d *abi.Decision) string {
	args := d.Args
	if d.Mutating == nil || d.Stdin == nil || d.Env["GH_PROMPT_DISABLED"] != "1" {
		return "the class, stdin or the variables are open"
	}
	if slices.Equal(args, []string{"--version"}) {
		return ""
	}
	name, rest, err := split(args)
	if err != nil {
		return err.Error()
	}
	if slices.Equal(rest, []string{"--help"}) {
		return ""
	}
	cmd := commands[name]
	repo := ""
	for len(rest) > 0 && rest[0] != "--" {
		flag, value, joined := strings.Cut(rest[0], "=")
		f := cmd.flags.Lookup(flag)
		if f == nil || f.Refuse != "" || !strings.HasPrefix(flag, "--") || f.Canonical() != flag || joined && f.Value == nil || !joined && !f.Optional {
			return "the flag " + rest[0]
		}
		if strings.IndexByte(value, 0) >= 0 {
			return "a NUL byte"
		}
		switch flag {
		case "--body-file", "--input", "--dir", "--output":
			if strings.HasPrefix(value, "/") && !strings.HasPrefix(value+"/", "/w/") || strings.HasPrefix(value, "../..") {
				return "the path " + value
			}
		case "--repo":
			repo = value
		}
		rest = rest[1:]
	}
	if cmd.repo {
		r, ok := strings.CutPrefix(repo, "github.com/")
		if !ok || !ownerName(r) || !p.allowsRepo(r) {
			return "the repository " + repo
		}
	}
	if len(rest) == 1 {
		return "-- without operands"
	}
	if len(rest) > 0 && cmd.takes == endpoint {
		parts := strings.Split(rest[1], "/")
		if strings.ContainsAny(rest[1], "{}\\#\x00 ") || parts[0] != "repos" && parts[0] != "rate_limit" && parts[0] != "user" && !strings.HasPrefix(parts[0], "rate_limit?") && !strings.HasPrefix(parts[0], "user?") {
			return "the endpoint " + rest[1]
		}
		if *d.Mutating {
			return "a mutating endpoint"
		}
	}
	return ""
}

// TestHelp: gh's help is printed of what the policy knows, and of nothing that a user of gh
// may have added.
func TestHelp(t *testing.T) {
	p := testPolicy(t, nil)
	for args, want := range map[string]string{
		"": "--help", "help": "--help", "--help": "--help", "pr": "pr --help", "pr --help": "pr --help", "help pr list": "pr list --help", "help auth": "auth --help", "repo delete --help": "repo delete --help",
		"help pwn": "", "pwn --help": "", "pwn": "", "browse": "", "auth": "", "help --web": "", "help pr list -- x": "",
	} {
		d := p.decide(&abi.Call{Args: strings.Fields(args), Cwd: "/w", Roots: []string{"/w"}})
		if got := strings.Join(d.Args, " "); got != want || (want != "") != (d.Effect == abi.Allow) || d.Effect == abi.Allow && *d.Mutating {
			t.Errorf("gh %s: %s as %q, not %q", args, d.Effect, got, want)
		}
	}
}

// TestVariablesSeen: a repository or host that the caller's environment names is no other
// one in silence.
func TestVariablesSeen(t *testing.T) {
	p := testPolicy(t, nil)
	for _, tt := range []struct{ args, seen, rule, note string }{
		{"pr list", "GH_REPO", "gh.repository.variable", ""},
		{"pr list -R o/r", "GH_REPO", "gh.pr_list", ""},
		{"pr list -R o/r", "GH_HOST", "gh.pr_list", "GH_HOST of your environment is not passed on: this tool asks github.com"},
		{"pr list -R o/r", "", "gh.pr_list", ""},
	} {
		c := &abi.Call{Args: strings.Fields(tt.args), Cwd: "/w", Roots: []string{"/w"}, EnvSeen: strings.Fields(tt.seen)}
		if d := p.decide(c); d.Rule != tt.rule || strings.Join(d.Notes, ";") != tt.note {
			t.Errorf("gh %s with %s: %s, notes %q", tt.args, tt.seen, d.Rule, d.Notes)
		}
	}
}
