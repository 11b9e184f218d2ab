package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
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
	return &abi.Call{Tool: "npm", Args: args, Cwd: "/w/a", Roots: []string{"/w"}}
}

func TestAllowed(t *testing.T) {
	p := testPolicy(t, map[string]string{"scripts": "test, build", "files": "roots"})
	for _, tt := range []struct {
		args     string
		want     string // after the pins
		mutating bool
	}{
		{"--version", "--version", false},
		{"-v", "--version", false},
		{"view dep", "view -- dep", false},
		{"info @s/dep@^1.2 versions --json", "view --json -- @s/dep@^1.2 versions", false},
		{"--json view dep dist-tags.latest", "view --json -- dep dist-tags.latest", false},
		{"ls", "ls", false},
		{"ls --all --depth 3 dep", "ls --all --depth=3 -- dep", false},
		{"list -l --parseable", "ls --long --parseable", false},
		{"ll", "ll", false},
		{"la dep", "ll -- dep", false},
		{"outdated --json", "outdated --json", false},
		{"explain dep", "explain -- dep", false},
		{"search two words --searchlimit=5", "search --searchlimit=5 -- two words", false},
		{"install", "install", true},
		{"i", "install", true},
		{"install dep -D", "install --save-dev -- dep", true},
		{"install dep@latest @s/x@1.0.0 --save-exact", "install --save-exact -- dep@latest @s/x@1.0.0", true},
		{"install alias@npm:dep@1", "install -- alias@npm:dep@1", true},
		{"install --omit=dev --no-audit --no-fund", "install --omit=dev --no-audit --no-fund", true},
		{"install --omit dev --omit optional", "install --omit=dev --omit=optional", true},
		{"install --ignore-scripts", "install --ignore-scripts", true},
		{"install ./pkg", "install -- ./pkg", true},
		{"install file:../b/x.tgz", "install -- ../b/x.tgz", true},
		{"install --dry-run dep", "install --dry-run -- dep", false},
		{"ci", "ci", true},
		{"clean-install --no-audit", "ci --no-audit", true},
		{"rm dep", "uninstall -- dep", true},
		{"update", "update", true},
		{"audit", "audit", false},
		{"audit fix", "audit -- fix", true},
		{"run test", "run -- test", true},
		{"test", "test", true},
		{"t -- --x", "test -- --x", true},
		{"run-script build -- --flag x", "run -- build --flag x", true},
		{"run", "run", false},
		{"test --help", "test --help", false},
		{"run --json", "run --json", false},
		{"install --foreground-scripts", "install --foreground-scripts", true},
		{"install -w packages/a", "install --workspace=packages/a", true},
		{"view --help", "view --help", false},
	} {
		t.Run(tt.args, func(t *testing.T) {
			d := p.decide(call(strings.Fields(tt.args)...))
			if d.Effect != abi.Allow {
				t.Fatalf("refused by %s: %s", d.Rule, d.Reason)
			}
			pins := p.pins("", d.Shell)
			if !slices.Equal(d.Args[:len(pins)], pins) {
				t.Fatalf("the pins are not in front of %q", d.Args)
			}
			if got := strings.Join(d.Args[len(pins):], " "); got != tt.want {
				t.Errorf("runs %q, want %q", got, tt.want)
			}
			if *d.Mutating != tt.mutating || *d.Stdin || d.Shell != (d.Rule == "npm.run" && tt.mutating) {
				t.Errorf("mutating %v, stdin %v, shell %v", *d.Mutating, *d.Stdin, d.Shell)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct{ args, rule, says string }{
		{"", "npm.command", "no command"},
		{"--json", "npm.command", "no command"},
		{"frobnicate", "npm.command", "frobnicate"},
		{"ins dep", "npm.command", "ins"},
		{"exec evil", "npm.command.refused", "exec"},
		{"x evil", "npm.command.refused", "npm x"},
		{"init evil", "npm.command.refused", "init"},
		{"create evil", "npm.command.refused", "create"},
		{"run build", "npm.script", "build"},
		{"run-script build", "npm.script", "build"},
		{"test", "npm.script", "test"},
		{"start", "npm.script", "start"},
		{"run -- --x", "npm.operand", "--x"},
		{"rebuild", "npm.script", "rebuild"},
		{"it", "npm.script", "install-test"},
		{"cit", "npm.script", "install-ci-test"},
		{"config set registry http://evil", "npm.command.refused", "config"},
		{"config get //registry.npmjs.org/:_authToken", "npm.command.refused", "config"},
		{"c set x y", "npm.command.refused", "npm c"},
		{"set script-shell=/bin/x", "npm.command.refused", "set"},
		{"get x", "npm.command.refused", "get"},
		{"publish", "npm.command.refused", "publish"},
		{"login", "npm.command.refused", "login"},
		{"token list", "npm.command.refused", "token"},
		{"whoami", "npm.command.refused", "whoami"},
		{"edit dep", "npm.command.refused", "edit"},
		{"explore dep", "npm.command.refused", "explore"},
		{"docs dep", "npm.command.refused", "docs"},
		{"help install", "npm.command.refused", "help"},
		{"link", "npm.command.refused", "link"},
		{"pack", "npm.command.refused", "pack"},
		{"version patch", "npm.command.refused", "version"},

		{"install --registry=http://evil", "npm.flag.refused", "--registry"},
		{"install --registry http://evil", "npm.flag.refused", "--registry"},
		{"install --reg http://evil", "npm.flag.unknown", "--reg"},
		{"install --@s:registry=http://evil", "npm.flag.unknown", "--@s:registry"},
		{"install --//evil/:_authToken=x", "npm.flag.unknown", "_authToken"},
		{"install -g dep", "npm.flag.refused", "-g"},
		{"install --global dep", "npm.flag.refused", "--global"},
		{"install --location=global dep", "npm.flag.refused", "--location"},
		{"install --prefix /etc dep", "npm.flag.refused", "--prefix"},
		{"install -C /etc dep", "npm.flag.refused", "-C"},
		{"install --userconfig=x", "npm.flag.refused", "--userconfig"},
		{"install --globalconfig=x", "npm.flag.refused", "--globalconfig"},
		{"install --script-shell=/w/a/sh", "npm.flag.refused", "--script-shell"},
		{"install --node-options=--require=/w/a/x.js", "npm.flag.refused", "--node-options"},
		{"install --git=/w/a/git", "npm.flag.refused", "--git"},
		{"install --cache=/etc", "npm.flag.refused", "--cache"},
		{"install --logs-dir=/etc", "npm.flag.refused", "--logs-dir"},
		{"install --ignore-scripts=false", "npm.script", "scripts run with their caller"},
		{"install --no-ignore-scripts", "npm.script", "scripts run with their caller"},
		{"install --ignore-scripts --no-ignore-scripts", "npm.script", "scripts run with their caller"},
		{"install --install-links", "npm.flag.refused", "--install-links"},
		{"install --no-strict-ssl", "npm.flag.refused", "--no-strict-ssl"},
		{"install --proxy=http://evil", "npm.flag.refused", "--proxy"},
		{"install -global dep", "npm.flag.unknown", "-global"},
		{"install ---registry=x dep", "npm.flag.unknown", "---registry"},
		{"install -SE dep", "npm.flag.unknown", "-SE"},
		{"view dep --viewer=sh", "npm.flag.refused", "--viewer"},
		{"install -c sh", "npm.flag.refused", "-c"},
		{"install --call=sh", "npm.flag.refused", "--call"},

		{"install git+ssh://git@evil/x", "npm.operand", "git+ssh"},
		{"install git+file:///w/a/x", "npm.operand", "git+file"},
		{"install git://evil/x", "npm.operand", "git://"},
		{"install github:o/r", "npm.operand", "github:"},
		{"install o/r", "npm.operand", "o/r"},
		{"install o/r#branch", "npm.operand", "o/r"},
		{"install git@evil:o/r", "npm.operand", "git@evil"},
		{"install http://evil/x.tgz", "npm.operand", "http://evil"},
		{"install https://evil/x.tgz", "npm.operand", "https://evil"},
		{"install dep@http://evil/x.tgz", "npm.operand", "dep@http"},
		{"install dep@git+ssh://evil/x", "npm.operand", "dep@git"},
		{"install dep@o/r", "npm.operand", "dep@o/r"},
		{"install dep@file:/etc", "npm.operand", "dep@file"},
		{"install dep@..", "npm.operand", "dep@.."},
		{"install dep@x.tgz", "npm.operand", "x.tgz"},
		{"install x.tgz", "npm.operand", "x.tgz"},
		{"install ..", "npm.operand", ".."},
		{"install .", "npm.operand", "."},
		{"install ~/x", "npm.operand", "~/x"},
		{"install a@npm:../x", "npm.operand", "a@npm"},
		{"install /etc/secret.tgz", "npm.path.outside", "/etc"},
		{"install ../../etc", "npm.path.outside", "etc"},
		{"install file:/etc", "npm.path.outside", "/etc"},
		{"install file:///etc", "npm.path.outside", "/etc"},
		{"install file:%2e%2e/x", "npm.operand", "%2e"},
		{"install -- --registry=http://evil", "npm.operand", "--registry"},
		{"view ./x", "npm.operand", "./x"},
		{"view http://evil/x", "npm.operand", "http"},
		{"view dep --json -- --registry=x", "npm.operand", "--registry"},
		{"ls /etc", "npm.operand", "/etc"},
		{"ci dep", "npm.operand", "dep"},
		{"audit signatures", "npm.operand", "signatures"},
		{"install -w ../../etc", "npm.path.outside", "etc"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			d := testPolicy(t, nil).decide(call(strings.Fields(tt.args)...))
			if d.Effect != abi.Deny {
				t.Fatalf("allowed as %q", d.Args)
			}
			if strings.ReplaceAll(d.Rule, "abbreviated", "unknown") != tt.rule || !strings.Contains(d.Reason, tt.says) {
				t.Errorf("refused by %s: %s; want %s with %q", d.Rule, d.Reason, tt.rule, tt.says)
			}
		})
	}
}

// TestPins: what a project could do without each of them is in README.md;
// TestHostileThroughPolicy does it where it can be done.
func TestPins(t *testing.T) {
	d := testPolicy(t, map[string]string{"scopes": "@a=https://npm.a.example"}).decide(call("ci"))
	for _, pin := range []string{
		"--registry=https://registry.npmjs.org/", "--@a:registry=https://npm.a.example/", "--replace-registry-host=npmjs",
		"--proxy=http://127.0.0.1:0/", "--https-proxy=http://127.0.0.1:0/", "--noproxy=registry.npmjs.org,npm.a.example",
		"--ignore-scripts=true", "--script-shell=" + noShell, "--git=/nonexistent/git-is-not-run-by-this-tool", "--node-gyp=/nonexistent/node-gyp",
		"--node-options=", "--init-module=/nonexistent/init.js", "--userconfig=~/.npmrc", "--cache=~/.npm", "--logs-max=0", "--logs-dir=~/.npm/_logs", "--timing=false",
		"--save-prefix=^", "--global=false", "--location=user", "--install-links=false", "--strict-ssl=true", "--yes=false", "--browser=false", "--user-agent=" + userAgent,
	} {
		if i := slices.Index(d.Args, pin); i < 0 || i > slices.Index(d.Args, "ci") {
			t.Errorf("%s is not among the pins: %q", pin, d.Args)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		name string
		conf map[string]string
		args string
		rule string
		pin  string
	}{
		{"the default registry", nil, "ci", "npm.ci", "--noproxy=registry.npmjs.org"},
		{"a file with credentials", map[string]string{"userconfig": "variable"}, "ci", "npm.ci", "--save-prefix=^"},
		{"none for a script", map[string]string{"userconfig": "variable", "scripts": "test"}, "test", "npm.run", "--userconfig=~/.npmrc"},
		{"another userconfig", map[string]string{"userconfig": "/etc/npmrc"}, "ci", "npm.config", ""},
		{"a registry", map[string]string{"registry": "https://npm.corp.example/npm"}, "ci", "npm.ci", "--registry=https://npm.corp.example/npm/"},
		{"is the one host", map[string]string{"registry": "https://npm.corp.example/npm"}, "ci", "npm.ci", "--noproxy=npm.corp.example"},
		{"scopes", map[string]string{"scopes": "@corp=https://npm.corp.example"}, "ci", "npm.ci", "--@corp:registry=https://npm.corp.example/"},
		{"and their hosts", map[string]string{"scopes": "@corp=https://npm.corp.example"}, "ci", "npm.ci", "--noproxy=registry.npmjs.org,npm.corp.example"},
		{"a proxy", map[string]string{"proxy": "http://proxy.corp.example:3128"}, "ci", "npm.ci", "--https-proxy=http://proxy.corp.example:3128"},
		{"scripts", map[string]string{"scripts": "test"}, "test", "npm.run", "--script-shell=/bin/sh"},
		{"scripts before and after it", map[string]string{"scripts": "test"}, "test", "npm.run", "--ignore-scripts=true"},
		{"scripts before and after it, by a flag", map[string]string{"scripts": "test"}, "test --ignore-scripts=false", "npm.script", ""},
		{"scripts not listed", map[string]string{"scripts": "test"}, "run build", "npm.script", ""},
		{"no files", nil, "install ./x", "npm.path.file", ""},
		{"files, if the operator says so", map[string]string{"files": "roots"}, "install ./x", "npm.install", ""},
		{"a registry that is none", map[string]string{"registry": "file:///etc"}, "ci", "npm.config", ""},
		{"a registry with flags in it", map[string]string{"registry": "https://x/ --git=y"}, "ci", "npm.config", ""},
		{"a registry with a user", map[string]string{"registry": "https://a@x/"}, "ci", "npm.config", ""},
		{"scopes that are none", map[string]string{"scopes": "corp=https://x/"}, "ci", "npm.config", ""},
		{"a script that is none", map[string]string{"scripts": "--x"}, "ci", "npm.config", ""},
		{"a proxy that is none", map[string]string{"proxy": "x"}, "ci", "npm.config", ""},
		{"a switch that is none", map[string]string{"files": "all"}, "ci", "npm.config", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := (&pdk.Fake{Config: tt.conf}).Restrict(restrict, call(strings.Fields(tt.args)...))
			if err != nil {
				t.Fatal(err)
			}
			if d.Rule != tt.rule || tt.pin != "" && !slices.Contains(d.Args, tt.pin) {
				t.Errorf("%s by %s (%s) as %q, want %s with %s", d.Effect, d.Rule, d.Reason, d.Args, tt.rule, tt.pin)
			}
		})
	}
}

func TestReadOnlyAndVariables(t *testing.T) {
	p := testPolicy(t, map[string]string{"scripts": "test"})
	for args, effect := range map[string]string{
		"view dep": abi.Allow, "ls": abi.Allow, "audit": abi.Allow, "install --dry-run": abi.Allow, "install --help": abi.Allow,
		"install": abi.Deny, "ci": abi.Deny, "audit fix": abi.Deny, "test": abi.Deny, "install --no-dry-run": abi.Deny,
		"install --dry-run=false": abi.Deny, "install --dry-run --dry-run=false": abi.Deny, "publish --ignore-scripts --dry-run=false": abi.Deny, "pack --dry-run=false": abi.Deny,
	} {
		c := call(strings.Fields(args)...)
		c.ReadOnly = true
		if d := p.decide(c); d.Effect != effect {
			t.Errorf("%s: %s by %s", args, d.Effect, d.Rule)
		}
	}
	for _, name := range []string{"NODE_OPTIONS", "npm_config_registry", "NPM_TOKEN", "PATH", "HOME", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "https_proxy", "PREFIX", "SHELL"} {
		c := call("ci")
		c.Env = map[string]string{name: "x"}
		if d := p.decide(c); d.Rule != "npm.env" {
			t.Errorf("%s: %s by %s", name, d.Effect, d.Rule)
		}
	}
	c := call("ci")
	c.Env = map[string]string{"NODE_ENV": "production"}
	if d := p.decide(c); d.Effect != abi.Allow {
		t.Errorf("NODE_ENV: %s", d.Reason)
	}
}

func TestToolJSON(t *testing.T) {
	testPolicy(t, hosttest.ReadyDefinition(t, "npm").Config)
}

// FuzzPolicy: the policy ends with a decision; a denial says why; what is
// allowed is the pins, a known command, flags of the grammar and operands
// that are no flags, URLs or paths outside.
func FuzzPolicy(f *testing.F) {
	for _, s := range []string{
		"view dep", "install dep@^1 --save-dev", "install ./x", "install file:../b", "ls --all --depth=3", "run test -- -x", "test", "ci --no-audit",
		"install a@npm:b@1", "install -w x --json", "search a b", "view @a/b c.d", "exec x", "install --registry=x", "audit fix", "--version",
	} {
		f.Add(strings.ReplaceAll(s, " ", "\x1f"))
	}
	p := testPolicy(f, map[string]string{"scripts": "test", "files": "roots"})
	f.Fuzz(func(t *testing.T, joined string) {
		args := strings.Split(joined, "\x1f")
		d := p.decide(call(args...))
		switch d.Effect {
		case abi.Allow:
			pins := p.pins("", d.Shell)
			if len(d.Args) <= len(pins) || !slices.Equal(d.Args[:len(pins)], pins) {
				t.Fatalf("%q: no pins in %q", args, d.Args)
			}
			if fault := checkAllowed(d, d.Args[len(pins):]); fault != "" {
				t.Fatalf("%q is allowed as %q: %s", args, d.Args[len(pins):], fault)
			}
		case abi.Deny:
			if d.Rule == "" || d.Reason == "" || d.Args != nil || d.Shell {
				t.Fatalf("%q: %+v", args, d)
			}
		default:
			t.Fatalf("%q: effect %q", args, d.Effect)
		}
	})
}

// checkAllowed reads an allowed line as npm would and says what is wrong.
func checkAllowed(d *abi.Decision, args []string) string {
	if d.Mutating == nil || d.Stdin == nil || d.Callbacks != nil {
		return "the class or stdin is open"
	}
	if slices.Equal(args, []string{"--version"}) {
		return ""
	}
	name, args := args[0], args[1:]
	isTest := name == "test"
	if !isTest && name != "ll" && commands[name] == nil {
		return "the command " + name
	}
	for len(args) > 0 && args[0] != "--" {
		flag, value, joined := strings.Cut(args[0], "=")
		f := grammar.Lookup(flag)
		if f == nil {
			if f = grammar.Lookup("--" + strings.TrimPrefix(flag, "--no-")); f == nil || !f.Negatable || joined {
				return "the flag " + args[0]
			}
		}
		if f.Refuse != "" || !strings.HasPrefix(flag, "--") || joined && f.Value == nil || strings.IndexByte(value, 0) >= 0 {
			return "the flag " + args[0]
		}
		args = args[1:]
	}
	if len(args) == 0 {
		return ""
	}
	scope := argv.Scope{Cwd: "/w/a", Roots: []string{"/w"}}
	for i, o := range args[1:] {
		if strings.IndexByte(o, 0) >= 0 {
			return "a NUL byte"
		}
		switch {
		case isTest, name == "search", name == "run" && i > 0, name == "view" && i > 0:
		case name == "run" && o != "test":
			return "the script " + o
		case strings.HasPrefix(o, "-"):
			return "the operand " + o
		case name == "install" && (strings.HasPrefix(o, "./") || strings.HasPrefix(o, "/") || strings.HasPrefix(o, "..")):
			if _, err := scope.Path(o); err != nil {
				return "the path " + o
			}
		case strings.Contains(strings.Replace(o, "@npm:", "@", 1), ":"), strings.Count(o, "/") > 2, strings.Contains(o, "#"):
			return "the operand " + o
		}
	}
	return ""
}
