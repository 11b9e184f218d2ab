package main

import (
	"slices"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// npm reads --name value, --name=value, --no-name; a boolean may be joined to
// true or false. Its single-dash flags are words of their own, not clusters.
var style = argv.Style{NoCluster: true}

// operand says what a command takes besides its flags.
type operand int

const (
	nothing operand = iota
	packages
	viewed // one package, then fields of it
	installed
	words
	fix // nothing, or "fix"
	script
)

// command is one that npm may be asked.
type command struct {
	takes    operand
	mutating bool
	// least is how many operands there must be.
	least int
}

var commands = map[string]*command{
	"view":      {takes: viewed},
	"ls":        {takes: packages},
	"outdated":  {takes: packages},
	"explain":   {takes: packages, least: 1},
	"search":    {takes: words, least: 1},
	"ping":      {},
	"root":      {},
	"prefix":    {},
	"audit":     {takes: fix},
	"install":   {takes: installed, mutating: true},
	"ci":        {mutating: true},
	"uninstall": {takes: packages, mutating: true, least: 1},
	"update":    {takes: packages, mutating: true},
	"prune":     {takes: packages, mutating: true},
	"dedupe":    {mutating: true},
	"run":       {takes: script, mutating: true},
	"rebuild":   {takes: packages, mutating: true},
	"pack":      {mutating: true},
	"publish":   {mutating: true},

	"install-test":    {takes: installed, mutating: true},
	"install-ci-test": {mutating: true},
}

// aliases are npm's own other names of these commands. Abbreviations, which
// npm accepts too, are refused.
var aliases = map[string]string{
	"info": "view", "show": "view", "v": "view",
	"list": "ls", "ll": "ls", "la": "ls",
	"why": "explain",
	"s":   "search", "se": "search", "find": "search",
	"i": "install", "in": "install", "add": "install",
	"clean-install": "ci", "ic": "ci", "install-clean": "ci",
	"remove": "uninstall", "rm": "uninstall", "r": "uninstall", "un": "uninstall", "unlink": "uninstall",
	"up": "update", "upgrade": "update", "udpate": "update",
	"ddp":        "dedupe",
	"run-script": "run", "rum": "run", "urn": "run",
	"rb": "rebuild",
	"it": "install-test", "cit": "install-ci-test", "clean-install-test": "install-ci-test", "sit": "install-ci-test",
}

// running are the commands that come to nothing without scripts: they are refused
// where none can run. All others that change the project run what scripts there are.
var running = []string{"run", "rebuild", "install-test", "install-ci-test"}

// scripts are commands that are "run" with that name.
var scripts = map[string]string{"test": "test", "t": "test", "tst": "test", "start": "start", "stop": "stop", "restart": "restart"}

// closed are the commands that are refused whatever their flags, and why.
var closed = map[string][2]string{
	"exec": {"runs a program from the registry", "install it, and run it where you are"}, "x": {"runs a program from the registry", "install it, and run it where you are"},
	"init": {"runs a program from the registry or the project", "write package.json"}, "create": {"runs a program from the registry", "write package.json"}, "innit": {"runs a program from the registry", "write package.json"},
	"config": {"shows and sets what npm runs and where it looks", "give flags"}, "c": {"shows and sets what npm runs and where it looks", "give flags"},
	"get": {"shows configuration, credentials among it", "look at package.json and .npmrc"}, "set": {"sets what npm runs and where it looks", "give flags"},
	"explore": {"starts a shell", "change to the folder in node_modules"}, "edit": {"starts an editor", "edit the file in node_modules"},
	"help": {"starts a viewer", "write npm COMMAND --help"}, "help-search": {"starts a viewer", "leave it out"},
	"docs": {"opens a browser", "use npm view NAME homepage"}, "home": {"opens a browser", "use npm view NAME homepage"}, "bugs": {"opens a browser", "use npm view NAME bugs.url"}, "issues": {"opens a browser", "use npm view NAME bugs.url"}, "repo": {"opens a browser", "use npm view NAME repository.url"}, "fund": {"opens a browser", "use npm view NAME funding"},
	"unpublish": {"takes back what is published", "do it where the release is made"}, "deprecate": {"changes what is published", "do it where the release is made"}, "undeprecate": {"changes what is published", "do it where the release is made"}, "dist-tag": {"changes what is published", "use npm view NAME dist-tags"}, "stage": {"publishes", "do it where the release is made"},
	"access": {"changes who may publish", "do it where the release is made"}, "owner": {"changes who may publish", "use npm view NAME maintainers"}, "team": {"changes who may publish", "do it where the release is made"}, "org": {"changes who may publish", "do it where the release is made"}, "trust": {"changes who may publish", "do it where the release is made"},
	"login": {"handles credentials", "the operator gives npm its token"}, "adduser": {"handles credentials", "the operator gives npm its token"}, "add-user": {"handles credentials", "the operator gives npm its token"}, "logout": {"handles credentials", "the operator gives npm its token"}, "token": {"handles credentials", "the operator gives npm its token"}, "profile": {"handles credentials", "the operator gives npm its token"}, "whoami": {"handles credentials", "the operator gives npm its token"}, "hook": {"handles credentials", "the operator gives npm its token"},
	"pkg": {"changes package.json, and all that it says runs", "read and edit package.json"}, "query": {"is not an everyday command", "use npm ls --all --json"},
	"version": {"runs git and scripts", "edit package.json; npm --version shows npm's own"}, "link": {"works outside the project", "npm install ./FOLDER"}, "ln": {"works outside the project", "npm install ./FOLDER"},
	"cache": {"works on the cache of this host", "leave it to the operator"}, "doctor": {"looks at this host", "toolctl doctor looks at toold"}, "completion": {"is not a request", "leave it out"},
	"shrinkwrap": {"is not an everyday command", "npm install writes package-lock.json"},
	"star":       {"changes what others see", "leave it out"}, "unstar": {"changes what others see", "leave it out"}, "stars": {"is not an everyday command", "leave it out"},
}

func boolean(names string) argv.Flag {
	return argv.Flag{Names: names, Value: argv.Bool, Optional: true, Negatable: true}
}

const (
	pinned = "is the operator's to decide"
	global = "works outside the project"
	runs   = "decides what npm runs"
)

func refuse(names, why, instead string) argv.Flag {
	return argv.Flag{Names: names, Refuse: why, Instead: instead}
}

// grammar is one for all commands, as npm has it: a flag that means nothing
// to a command does nothing.
var grammar = argv.New(style, []argv.Flag{
	boolean("--json"), boolean("-l --long"), boolean("-p --parseable"), boolean("-a --all"),
	boolean("--unicode"), boolean("--color"), boolean("--progress"), boolean("--description"),
	{Names: "--depth", Value: argv.Int(0, 1000)},
	{Names: "-s --silent"}, {Names: "-d --verbose"}, {Names: "-q --quiet"},
	{Names: "--loglevel", Value: argv.OneOf("silent", "error", "warn", "notice", "http", "info", "verbose", "silly")},
	{Names: "-h --help"}, {Names: "-v --version"},

	boolean("-S --save"), boolean("-D --save-dev"), boolean("-O --save-optional"), boolean("-P --save-prod"), boolean("--save-peer"),
	boolean("-E --save-exact"), boolean("-B --save-bundle"),
	{Names: "--save-prefix", Value: argv.OneOf("", "^", "~")},
	{Names: "--tag", Value: argv.Match("a tag", tag)},
	{Names: "--omit", Value: argv.OneOf("dev", "optional", "peer")},
	{Names: "--include", Value: argv.OneOf("prod", "dev", "optional", "peer")},
	boolean("--production"), {Names: "--only", Value: argv.OneOf("prod", "production", "dev", "development")},
	boolean("--package-lock"), boolean("--package-lock-only"), boolean("--dry-run"),
	boolean("-f --force"), boolean("--legacy-peer-deps"), boolean("--strict-peer-deps"), boolean("--prefer-dedupe"), boolean("--engine-strict"),
	boolean("--prefer-offline"), boolean("--prefer-online"), boolean("--offline"),
	boolean("--audit"), boolean("--fund"), boolean("--bin-links"), boolean("--if-present"),
	{Names: "--audit-level", Value: argv.OneOf("info", "low", "moderate", "high", "critical", "none")},
	{Names: "--install-strategy", Value: argv.OneOf("hoisted", "nested", "shallow")},
	{Names: "--before", Value: argv.Match("a date", date)},
	{Names: "-w --workspace", Value: workspace},
	boolean("--workspaces"), boolean("--include-workspace-root"),
	{Names: "--searchlimit", Value: argv.Int(1, 250)},
	{Names: "--fetch-timeout", Value: argv.Int(1, 600_000)},
	{Names: "--access", Value: argv.OneOf("public", "restricted")},
	boolean("--ignore-scripts"), boolean("--foreground-scripts"),

	refuse("--registry", pinned, "leave it out"),
	refuse("--replace-registry-host", pinned, "leave it out"),
	refuse("--userconfig", pinned, "leave it out"), refuse("--globalconfig", pinned, "leave it out"),
	refuse("-C --prefix", global, "call npm in the project's folder"),
	refuse("-g --global", global, "install into the project"), refuse("-L --location", global, "install into the project"),
	refuse("--global-style", "is an old flag", "use --install-strategy=shallow"),
	refuse("--cache", pinned, "leave it out"), refuse("--logs-dir", pinned, "leave it out"), refuse("--logs-max", pinned, "leave it out"), refuse("--timing", pinned, "leave it out"),
	refuse("--proxy", pinned, "leave it out"), refuse("--https-proxy", pinned, "leave it out"), refuse("--noproxy", pinned, "leave it out"), refuse("--local-address", pinned, "leave it out"),
	refuse("--cafile", pinned, "leave it out"), refuse("--ca", pinned, "leave it out"), refuse("--cert", pinned, "leave it out"), refuse("--key", pinned, "leave it out"),
	refuse("--strict-ssl", pinned, "leave it out"), refuse("--no-strict-ssl", "accepts any server", "leave it out"),
	refuse("--script-shell", runs, "leave it out"), refuse("--shell", runs, "leave it out"),
	refuse("--node-options", runs, "leave it out"), refuse("--node-gyp", runs, "leave it out"), refuse("--git", runs, "leave it out"), refuse("--init-module", runs, "leave it out"),
	refuse("--call", runs, "leave it out"), refuse("-c", runs, "leave it out"), refuse("--package", runs, "leave it out"), refuse("--editor", runs, "leave it out"), refuse("--viewer", runs, "leave it out"), refuse("--browser", runs, "leave it out"),
	refuse("--install-links", "copies folders of this host", "leave it out"),
	refuse("--otp", "handles credentials", "leave it out"), refuse("--auth-type", "handles credentials", "leave it out"), refuse("--scope", pinned, "write @SCOPE/NAME"),
	refuse("--pack-destination", global, "leave it out"), refuse("--provenance", "publishes", "leave it out"),
	refuse("-y --yes", "answers what npm would ask", "leave it out"),
})

const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

func tag(s string) bool { return s != "" && s[0] != '-' && strings.Trim(s, alnum+"-._") == "" }

func date(s string) bool { return s != "" && strings.Trim(s, "0123456789-:.TZ+") == "" && s[0] != '-' }

// workspace is a name, or a folder beneath the roots.
func workspace(v string, in argv.Scope) (string, error) {
	if packageName(v) {
		return v, nil
	}
	return in.Path(v)
}

// packageName is NAME or @SCOPE/NAME. What npm would take for a file or a
// folder is none.
func packageName(s string) bool {
	if rest, ok := strings.CutPrefix(s, "@"); ok {
		scope, name, ok := strings.Cut(rest, "/")
		return ok && word(scope) && word(name)
	}
	return word(s) && !archive(s)
}

func word(s string) bool {
	return s != "" && len(s) <= 214 && !strings.ContainsRune("._-~", rune(s[0])) && strings.Trim(s, alnum+"-._~") == ""
}

// archive is what npm takes for the name of a file.
func archive(s string) bool {
	s = strings.ToLower(s)
	return strings.HasSuffix(s, ".tgz") || strings.HasSuffix(s, ".tar") || strings.HasSuffix(s, ".tar.gz")
}

// version is a version, a range or a tag: nothing that could be a path, a URL
// or a repository, all of which have a slash or a colon, begin with a dot or
// end like an archive.
func version(s string) bool {
	return s == "" || !strings.ContainsRune(".-", rune(s[0])) && !strings.HasPrefix(s, "~/") && !archive(s) && strings.Trim(s, alnum+"-._~^<>=|*+ ") == ""
}

// spec is NAME, NAME@VERSION or ALIAS@npm:NAME@VERSION.
func spec(s string) bool {
	name, ver, ok := cutVersion(s)
	if !packageName(name) {
		return false
	}
	if !ok {
		return true
	}
	if other, ok := strings.CutPrefix(ver, "npm:"); ok {
		n, v, _ := cutVersion(other)
		return packageName(n) && version(v)
	}
	return ver != "" && version(ver)
}

// cutVersion cuts at the "@" that is not a scope's.
func cutVersion(s string) (name, ver string, ok bool) {
	if len(s) < 2 {
		return s, "", false
	}
	i := strings.IndexByte(s[1:], '@')
	if i < 0 {
		return s, "", false
	}
	return s[:i+1], s[i+2:], true
}

// operands answers what stands after "--".
func (p *policy) operands(name string, cmd *command, ops []string, in argv.Scope) ([]string, error) {
	if len(ops) < cmd.least {
		return nil, &argv.Refusal{Rule: "operand", Reason: argv.Quote("npm "+name) + " needs to be told which one", Instead: "add a name"}
	}
	bad := func(o, what string) error {
		return &argv.Refusal{Rule: "operand", Arg: o, Reason: "argument " + argv.Quote(o) + " is not " + what, Instead: "write NAME, NAME@VERSION or @SCOPE/NAME@VERSION"}
	}
	out := slices.Clone(ops)
	switch cmd.takes {
	case nothing:
		if len(ops) > 0 {
			return nil, &argv.Refusal{Rule: "operand", Arg: ops[0], Reason: argv.Quote("npm "+name) + " takes no argument " + argv.Quote(ops[0]), Instead: "leave it out"}
		}
	case fix:
		if len(ops) > 1 || len(ops) == 1 && ops[0] != "fix" {
			return nil, &argv.Refusal{Rule: "operand", Arg: ops[0], Reason: `"npm audit" takes nothing or "fix", not ` + argv.Quote(ops[0]), Instead: "leave it out"}
		}
	case packages:
		for _, o := range ops {
			if !spec(o) {
				return nil, bad(o, "a package of the registry")
			}
		}
	case viewed:
		for i, o := range ops {
			if i == 0 && !spec(o) {
				return nil, bad(o, "a package of the registry")
			}
			if i > 0 && (o == "" || o[0] == '-' || strings.Trim(o, alnum+"-._[]@/:*") != "") {
				return nil, &argv.Refusal{Rule: "operand", Arg: o, Reason: "argument " + argv.Quote(o) + " is not a field", Instead: "write one like dist-tags.latest"}
			}
		}
	case words:
		for _, o := range ops {
			if _, err := argv.OneLine(o, in); err != nil || o == "" {
				return nil, bad(o, "a word to look for")
			}
		}
	case installed:
		for i, o := range ops {
			if spec(o) {
				continue
			}
			path, isFile := strings.CutPrefix(o, "file:")
			if !isFile && !strings.HasPrefix(o, "./") && !strings.HasPrefix(o, "../") && !strings.HasPrefix(o, "/") {
				return nil, bad(o, "a package of the registry, nor a path that begins with ./; git and other URLs are refused")
			}
			if strings.ContainsAny(path, "%?#@:\\") {
				return nil, bad(o, "a plain path")
			}
			clean, err := p.file(path, in)
			if err != nil {
				return nil, err
			}
			if !strings.HasPrefix(clean, "/") && !strings.HasPrefix(clean, "./") && !strings.HasPrefix(clean, "../") && clean != ".." {
				clean = "./" + clean
			}
			out[i] = clean
		}
	case script:
		if len(ops) == 0 {
			break // lists them
		}
		if ops[0] == "" || ops[0][0] == '-' {
			return nil, bad(ops[0], "the name of a script")
		}
		for _, o := range ops {
			if _, err := argv.OneLine(o, in); err != nil {
				return nil, bad(o, "an argument of one line")
			}
		}
	}
	return out, nil
}
