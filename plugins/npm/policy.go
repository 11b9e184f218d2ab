package main

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// policy is what tool.json's config makes of the rules.
type policy struct {
	registry string
	// scopes maps "@scope" to the registry of its packages.
	scopes [][2]string
	// hosts are those of the registries.
	hosts []string
	// proxy is the operator's proxy, which sees all requests.
	proxy   string
	scripts []string
	// userconfig: NPM_CONFIG_USERCONFIG names the file with the registry's
	// credentials.
	userconfig bool
	// byHost: the host adds the credentials to npm's requests.
	byHost bool
	// publish are the names of packages that may be published; @SCOPE/* is all of a
	// scope.
	publish []string
	// files: folders and archives beneath the roots may be installed.
	files bool
}

const defaultRegistry = "https://registry.npmjs.org/"

func newPolicy(config func(string) string) (*policy, error) {
	p := &policy{registry: config("registry"), proxy: config("proxy")}
	if p.registry == "" {
		p.registry = defaultRegistry
	}
	var err error
	if p.registry, err = p.addRegistry(p.registry); err != nil {
		return nil, errors.New("registry: " + err.Error())
	}
	for _, s := range list(config("scopes")) {
		scope, url, ok := strings.Cut(s, "=")
		if !ok || !strings.HasPrefix(scope, "@") || !word(scope[1:]) {
			return nil, errors.New("scopes: " + strconv.Quote(s) + " is not @SCOPE=URL")
		}
		if url, err = p.addRegistry(url); err != nil {
			return nil, errors.New("scopes: " + err.Error())
		}
		p.scopes = append(p.scopes, [2]string{scope, url})
	}
	if p.proxy != "" {
		if _, err := hostOf(p.proxy); err != nil {
			return nil, errors.New("proxy: " + err.Error())
		}
	}
	for _, s := range list(config("scripts")) {
		if s[0] == '-' || strings.Trim(s, alnum+"-._:") != "" {
			return nil, errors.New("scripts: " + strconv.Quote(s) + " is not the name of a script")
		}
		p.scripts = append(p.scripts, s)
	}
	switch v := config("userconfig"); v {
	case "", "home":
	case "variable":
		p.userconfig = true
	case "host":
		p.byHost = true
	default:
		return nil, errors.New("userconfig: " + strconv.Quote(v) + " is not one of home, variable and host")
	}
	for _, s := range list(config("publish")) {
		scope, all := strings.CutSuffix(s, "/*")
		if !packageName(s) && (!all || !strings.HasPrefix(scope, "@") || !word(scope[1:])) {
			return nil, errors.New("publish: " + strconv.Quote(s) + " is neither the name of a package nor @SCOPE/*")
		}
		p.publish = append(p.publish, s)
	}
	if len(p.publish) > 0 && !p.byHost {
		return nil, errors.New("publish: which package npm publishes is seen in its requests, and only where the host adds the credential; set userconfig to host, and give the token as a secret with header and host")
	}
	switch v := config("files"); v {
	case "", "none":
	case "roots":
		p.files = true
	default:
		return nil, errors.New("files: " + strconv.Quote(v) + " is neither roots nor none")
	}
	return p, nil
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

func (p *policy) addRegistry(url string) (string, error) {
	h, err := hostOf(url)
	if err != nil {
		return "", err
	}
	if !slices.Contains(p.hosts, h) {
		p.hosts = append(p.hosts, h)
	}
	if !strings.HasSuffix(url, "/") {
		url += "/"
	}
	return url, nil
}

// hostOf is the host of an http or https URL of plain characters.
func hostOf(url string) (string, error) {
	bad := errors.New(strconv.Quote(url) + " is not a plain http:// or https:// URL")
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok || scheme != "http" && scheme != "https" || strings.Trim(rest, alnum+"-._~:/") != "" {
		return "", bad
	}
	authority, _, _ := strings.Cut(rest, "/")
	name, port, _ := strings.Cut(authority, ":")
	if name == "" || strings.Trim(port, "0123456789") != "" {
		return "", bad
	}
	return strings.ToLower(name), nil
}

func (p *policy) file(path string, in argv.Scope) (string, error) {
	clean, err := in.Path(path)
	if err == nil && !p.files {
		err = &argv.Refusal{Rule: "path.file", Arg: path, Reason: "file " + argv.Quote(path) + " would be opened by the host, where it may be a symlink to another", Instead: "use a package of the registry, or have the operator set config.files to roots"}
	}
	return clean, err
}

// nowhere is the proxy that npm needs for every host that is not a
// registry's. No program can listen there: the port is 0. It must be a URL
// that npm accepts: one with an unknown protocol is ignored, and npm then
// asks the host itself.
const nowhere = "http://127.0.0.1:0/"

// userAgent is npm's own, as a template. It is told to registries and scripts, and a
// project could have any variable of this host expanded in it.
const userAgent = "npm/{npm-version} node/{node-version} {platform} {arch} workspaces/{workspaces} {ci}"

// noShell is the shell of calls that run no script.
const noShell = "/nonexistent/no-script-is-run-here"

// pins are the flags in front of all others. npm ranks the command line above
// the project's .npmrc. Scripts run by shell: "" is none, and then no script runs but
// the one that "npm run" names. onHost says that npm is to run one here, which has no
// secrets.
//
// The credentials are in a file of the call and not in a variable: what npm reads
// in the project's .npmrc it expands, with ${NAME} for any name that a variable
// can usefully have, and some of it it writes into package.json. A variable that
// names the file is above the project's .npmrc, too.
func (p *policy) pins(shell string, onHost bool) []string {
	pins := []string{
		"--registry=" + p.registry,
		"--replace-registry-host=npmjs",
		"--git=/nonexistent/git-is-not-run-by-this-tool",
		"--node-gyp=/nonexistent/node-gyp",
		"--node-options=",
		"--init-module=/nonexistent/init.js",
		"--cache=~/.npm",
		"--logs-max=0",
		"--logs-dir=~/.npm/_logs", // npm 9 makes the folder all the same
		"--timing=false",
		"--global=false",
		"--location=user",
		"--install-links=false",
		"--strict-ssl=true",
		"--save-prefix=^", // the caller's, if any, comes later
		"--update-notifier=false",
		"--user-agent=" + userAgent,
		"--yes=false",
		"--browser=false",
		"--color=false",
		"--progress=false",
		// What is refused by the pin of the hosts is tried again like any
		// failure; npm's own pauses are ten seconds and a minute.
		"--fetch-retry-mintimeout=200",
		"--fetch-retry-maxtimeout=2000",
	}
	switch {
	case shell != "":
		// Whether scripts run the project and the caller say, as natively.
		pins = append(pins, "--script-shell="+shell)
	case onHost:
		pins = append(pins, "--ignore-scripts=true", "--script-shell=/bin/sh")
	default:
		pins = append(pins, "--ignore-scripts=true", "--script-shell="+noShell)
	}
	if p.byHost {
		for _, at := range p.places() {
			// npm asks for nothing without something to send, which the host replaces.
			pins = append(pins, "--"+at+":_authToken=unused")
		}
	}
	if !p.userconfig || onHost {
		pins = append(pins, "--userconfig=~/.npmrc")
	}
	for _, s := range p.scopes {
		pins = append(pins, "--"+s[0]+":registry="+s[1])
	}
	if p.proxy != "" {
		return append(pins, "--proxy="+p.proxy, "--https-proxy="+p.proxy, "--noproxy=")
	}
	return append(pins, "--proxy="+nowhere, "--https-proxy="+nowhere, "--noproxy="+strings.Join(p.hosts, ","))
}

// places are the registries as npm names them with their credentials: without the
// protocol.
func (p *policy) places() []string {
	var at []string
	for _, url := range append([]string{p.registry}, scopeURLs(p.scopes)...) {
		_, rest, _ := strings.Cut(url, ":")
		if !slices.Contains(at, rest) {
			at = append(at, rest)
		}
	}
	return at
}

func scopeURLs(scopes [][2]string) (urls []string) {
	for _, s := range scopes {
		urls = append(urls, s[1])
	}
	return urls
}

func deny(err error) *abi.Decision {
	var r *argv.Refusal
	if !errors.As(err, &r) {
		r = &argv.Refusal{Rule: "refused", Reason: err.Error()}
	}
	return pdk.Deny("npm."+r.Rule, r.Reason, r.Instead)
}

// decide answers a call. It never panics and reads nothing but c and p.
func (p *policy) decide(c *abi.Call) *abi.Decision {
	if err := argv.CheckEnv(c.Env, "NODE_ENV"); err != nil {
		return deny(err)
	}
	scope := argv.Scope{Cwd: c.Cwd, Roots: c.Roots}
	line, err := grammar.Parse(c.Args, scope)
	if err != nil {
		return deny(err)
	}
	no := false
	if len(line.Items) == 1 && line.Has("--version") {
		d := pdk.Allow()
		d.Rule, d.Args, d.Mutating, d.Stdin = "npm.version", append(p.pins("", false), "--version"), &no, &no
		return d
	}
	name, cmd, ops, err := p.command(line)
	if err != nil {
		return deny(err)
	}
	if ops, err = p.operands(name, cmd, ops, scope); err != nil {
		return deny(err)
	}
	lists := name == "run" && len(ops) == 0
	rehearsal := rehearses(line) && !slices.Contains(running, name) // a script knows of none
	mutating := cmd.mutating && !lists && !rehearsal || name == "audit" && len(ops) > 0
	packs := name == "pack" || name == "publish"
	if packs {
		// Scripts run in a rehearsal, too.
		mutating = !rehearses(line) || !ignoresScripts(line)
	}
	if line.Has("--help") {
		// Printed, not shown in a viewer, when it is a flag.
		ops, mutating = nil, false
	}
	if c.ReadOnly && mutating {
		return pdk.Deny("npm.read_only", "this call may only read, and "+argv.Quote("npm "+name)+" changes the project", "make the call where writing is allowed")
	}
	d := pdk.Allow()
	d.Rule = "npm." + name
	if packs && !line.Has("--help") {
		if err := p.publishing(name, line); err != nil {
			return deny(err)
		}
	}
	if mutating {
		if err := p.scripting(d, c, line, name, ops); err != nil {
			return deny(err)
		}
	}
	shell := ""
	if len(d.Callbacks) > 0 {
		shell = c.Callbacks.Folder + "/" + kindScripts
	} else if cmd.mutating && !mutating && offered(c) && !ignoresScripts(line) {
		shell = noShell // a rehearsal says of scripts what natively it would, and runs none
	}
	written := name
	if first := line.Operands()[0]; first == "ll" || first == "la" {
		written = "ll" // which is ls with more of each
	}
	if s := scripts[line.Operands()[0]]; s != "" { // npm tells the script which of the two was meant
		if written = s; len(ops) > 0 {
			ops = ops[1:]
		}
	}
	d.Args = append(p.pins(shell, d.Shell), written)
	if name == "publish" {
		// A request that was cut off may have published. npm would make it again, be told
		// that the version is there, and say that it could not publish.
		d.Args = append(d.Args, "--fetch-retries=0", "--provenance=false", "--force=false")
	}
	d.Args = append(d.Args, line.Flags()...)
	if len(ops) > 0 {
		d.Args = append(append(d.Args, "--"), ops...)
	}
	d.Mutating, d.Stdin = &mutating, &no
	return d
}

// rehearses reports whether npm is only to say what it would do. The last of several
// flags counts, and "--dry-run=false" is one.
func rehearses(line *argv.Line) (is bool) {
	for _, it := range line.Items {
		if it.Flag != nil && it.Name == "--dry-run" {
			is = !it.Negated && (it.Value == "" || it.Value == "true")
		}
	}
	return is
}

// offered reports whether the caller would run scripts for the call.
func offered(c *abi.Call) bool {
	return c.Callbacks != nil && slices.Contains(c.Callbacks.Kinds, kindScripts)
}

// publishing refuses what publishes without the operator's rule. Which package it is,
// npm reads in package.json when it does: wire looks at that.
func (p *policy) publishing(name string, line *argv.Line) error {
	switch {
	case name == "pack" && !rehearses(line):
		return &argv.Refusal{Rule: "command.refused", Arg: "pack", Reason: `command "npm pack" writes an archive of whatever the project's files lead to`, Instead: "look with --dry-run"}
	case name != "publish":
	case len(p.publish) == 0:
		return &argv.Refusal{Rule: "command.refused", Arg: "publish", Reason: `command "npm publish" publishes, and the operator allows it for no package`, Instead: "publish where the release is made, or have the operator list the package in config.publish in tools.d/npm/tool.json"}
	case line.Has("--force"):
		return &argv.Refusal{Rule: "flag.refused", Arg: "--force", Reason: `flag "--force" leaves out npm's look at what is published`, Instead: "leave it out"}
	}
	return nil
}

// kindScripts is the kind of the programs of a caller that are scripts of packages.
const kindScripts = "scripts"

// scripting says where the scripts of an allowed call run: with the caller, which is
// where natively they would; on this host, where the operator lists the one script that
// is asked for and there is no such caller; or nowhere, which is said, or refused where
// nothing but a script was asked for.
func (p *policy) scripting(d *abi.Decision, c *abi.Call, line *argv.Line, name string, ops []string) error {
	const instead = "call npm through the wrapper, where node is, without an idempotency key and not in the background"
	ignored := ignoresScripts(line)
	given := slices.ContainsFunc(line.Items, func(it argv.Item) bool { return it.Name == "--ignore-scripts" })
	needed := slices.Contains(running, name)
	switch {
	case ignored && !needed:
	case offered(c):
		d.Callbacks = []abi.Callback{{Kind: kindScripts, Name: kindScripts}}
	case given && !ignored:
		return &argv.Refusal{Rule: "script", Arg: "--ignore-scripts=false", Reason: "scripts run with their caller, and this call has none that would run them", Instead: instead}
	case name == "run" && slices.Contains(p.scripts, ops[0]):
		d.Shell = true
	case name == "pack" || name == "publish":
		return &argv.Refusal{Rule: "script", Arg: name, Reason: argv.Quote("npm "+name) + " without the scripts that prepare the package would make another one, and this call has no caller that would run them", Instead: "call npm through the wrapper, where node is, without an idempotency key and not in the background; or, if the package needs none, with --ignore-scripts"}
	case needed && name == "run":
		return &argv.Refusal{Rule: "script", Arg: ops[0], Reason: "script " + argv.Quote(ops[0]) + " of the project runs with its caller, and this call has none that would run it", Instead: instead + "; or have the operator add the script to config.scripts in tools.d/npm/tool.json, which runs it on this host"}
	case needed:
		return &argv.Refusal{Rule: "script", Arg: name, Reason: argv.Quote("npm "+name) + " runs scripts, which run with their caller, and this call has none that would run them", Instead: instead}
	default:
		d.Notes = append(d.Notes, "no script of the project or its packages is run: this call has no caller that would run them (a wrapper, where node is); npm rebuild there runs those of packages later")
	}
	return nil
}

// ignoresScripts reports whether the caller wants no scripts.
func ignoresScripts(line *argv.Line) (ignored bool) {
	for _, it := range line.Items {
		if it.Name == "--ignore-scripts" {
			ignored = !it.Negated && it.Value != "false"
		}
	}
	return ignored
}

// command finds the command, which is the first operand.
func (p *policy) command(line *argv.Line) (string, *command, []string, error) {
	ops := line.Operands()
	if len(ops) == 0 {
		return "", nil, nil, &argv.Refusal{Rule: "command", Reason: "there is no command", Instead: "write npm view, ls, outdated, install or ci"}
	}
	name := ops[0]
	if s, ok := scripts[name]; ok {
		return "run", commands["run"], append([]string{s}, ops[1:]...), nil
	}
	if a, ok := aliases[name]; ok {
		name = a
	}
	if cmd := commands[name]; cmd != nil {
		return name, cmd, ops[1:], nil
	}
	if why, ok := closed[name]; ok {
		return "", nil, nil, &argv.Refusal{Rule: "command.refused", Arg: name, Reason: "command " + argv.Quote("npm "+name) + " " + why[0], Instead: why[1]}
	}
	return "", nil, nil, &argv.Refusal{Rule: "command", Arg: name, Reason: "command " + argv.Quote("npm "+name) + " is not one that this policy knows, and abbreviations are refused", Instead: "use npm view, ls, outdated, install, ci, uninstall, update, audit, explain or search"}
}
