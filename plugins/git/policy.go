// Command git is the policy of the tool git: a guest that is asked before
// every call and answers what shall run instead of what was asked.
//
// It allows by grammar. Each subcommand that a developer uses has a table of
// the flags that are understood, with the type of each value (commands.go);
// what is in no table is refused, and the refusal names it. What runs is the
// line as it was understood, written anew, behind forced configuration: no
// hooks, no editor, no pager, no fsmonitor, no helper programs, no transport
// but the one that this call needs. The repository's own configuration is
// refused where it would run a program or lead out of the roots and -c cannot
// override it (repoconfig.go); so are remotes that are not reached over https
// or ssh or that lie outside the roots (remote.go).
//
// A repository can be changed while git runs, and some of its files (a
// prepared rebase, info/attributes) are not seen here at all. Keeping git
// from executing anything but itself, and from touching anything beyond the
// roots, is then the confinement's part; see README.md.
package main

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// check names one of the policy's own checks, for guards.
type check string

const (
	checkGlobal   check = "global"        // flags before the subcommand
	checkGrammar  check = "grammar"       // the subcommand and its flags
	checkEnv      check = "env"           // variables that the caller set
	checkConfig   check = "forced-config" // -c in front of the subcommand
	checkFlags    check = "forced-flags"  // flags added behind the subcommand
	checkVars     check = "forced-env"    // variables that git runs with
	checkRepo     check = "repo-config"   // what the repository brings along
	checkRemote   check = "remote"        // where a remote is, how it is reached
	checkPush     check = "push"          // forced, deleting, protected
	checkReadOnly check = "read-only"     // a caller that may not change anything
)

var checks = []check{checkGlobal, checkGrammar, checkEnv, checkConfig, checkFlags, checkVars, checkRepo, checkRemote, checkPush, checkReadOnly}

// policy is what one instance decides by. It is fixed once it is made.
type policy struct {
	// protected are branches, or patterns as of path.Match, that are not
	// pushed to.
	protected []string
	// allowFile admits remotes that are folders beneath the roots.
	allowFile bool
	// allowHTTP admits remotes without TLS, for a registry on a private
	// network.
	allowHTTP bool
	// hosts, when there are any, are the only hosts of remotes.
	hosts []string
	// ssh is the program for ssh remotes: one word, no arguments.
	ssh string
	// proxy is that of https remotes, "" for none, or "host" for what the
	// host's own configuration and environment say.
	proxy string
	// force are branches, or patterns, that may be rewritten by a push with a
	// lease; those of forcePlain by any push.
	force, forcePlain []string
	// userName and userEmail are who commits where neither the call nor the
	// repository says so.
	userName, userEmail string
	// signingKey is the public key, as in a file of ssh-keygen, of which the daemon
	// has the private one and signs commits and tags; "": they are not signed.
	// signAlways signs without being asked.
	signingKey string
	signAlways bool
	// allowedSigners is the operator's file of the keys whose signatures are good;
	// "": signatures are not verified.
	allowedSigners string
	// lfsFolder has the programs by which git starts git-lfs; "": it is not granted.
	lfsFolder string
	// refuseHooks refuses calls that git would have had a hook check.
	refuseHooks bool
	// bisectHelper: git is older than 2.40, and its bisect is a shell script.
	// bisectUnsaid: nobody has said which.
	bisectHelper, bisectUnsaid bool
	// fault refuses every call: a configuration that was not understood.
	fault  string
	guards guards
}

// newPolicy reads the tool's configuration with lookup.
func newPolicy(lookup func(string) (string, bool)) *policy {
	p := &policy{allowFile: true, ssh: "ssh"}
	c := settings{p, lookup}
	for _, w := range c.words("protected") {
		if _, err := path.Match(w, ""); err != nil {
			p.fault = "config protected of tool git has a bad pattern: " + w
		}
		p.protected = append(p.protected, shortRef(w))
	}
	for _, w := range c.words("force") {
		w, plain := strings.CutPrefix(w, "+")
		if _, err := path.Match(w, ""); err != nil || w == "" {
			p.fault = "config force of tool git has a bad pattern: " + w
		}
		p.force = append(p.force, shortRef(w))
		if plain {
			p.forcePlain = append(p.forcePlain, shortRef(w))
		}
	}
	for _, u := range []struct {
		key string
		to  *string
	}{{"user_name", &p.userName}, {"user_email", &p.userEmail}} {
		if v, ok := lookup(u.key); ok {
			*u.to = v
			if strings.Trim(v, " .,:;<>\"\\'") == "" && v != "" || strings.ContainsAny(v, "<>\x00\n\r") {
				p.fault = "config " + u.key + " of tool git is not a name or an address"
			}
		}
	}
	p.refuseHooks = c.choice("hooks", "note", "refuse")
	if v, ok := lookup("signing_key"); ok {
		words := strings.Fields(v)
		if len(words) < 2 || !plainName(words[0], ".@") || strings.Trim(words[1], "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") != "" || strings.ContainsAny(v, "\n\r\x00") {
			p.fault = "config signing_key of tool git is not a public key of one line, as ssh-keygen writes it"
		} else {
			p.signingKey = words[0] + " " + words[1]
		}
	}
	p.signAlways = c.choice("signing", "asked", "always")
	if p.signAlways && p.signingKey == "" {
		p.fault = "config signing of tool git is always, and there is no signing_key"
	}
	if v, ok := lookup("allowed_signers"); ok && v != "" {
		if p.allowedSigners = v; !path.IsAbs(v) || strings.ContainsAny(v, "\n\r\x00") {
			p.fault = "config allowed_signers of tool git is not the absolute path of a file"
		}
	}
	p.lfsFolder, _ = lookup(lfsConfig)
	_, said := lookup("bisect")
	p.bisectUnsaid = !said
	p.bisectHelper = c.choice("bisect", "builtin", "helper")
	c.boolean("allow_file_remotes", &p.allowFile)
	c.boolean("allow_http", &p.allowHTTP)
	p.hosts = c.words("hosts")
	if v, ok := lookup("proxy"); ok {
		p.proxy = v
		if v != "" && v != "host" && (!strings.Contains(v, "://") || strings.ContainsFunc(v, func(c rune) bool { return c <= ' ' || c == 0x7f })) {
			p.fault = "config proxy of tool git is neither a URL nor \"host\""
		}
	}
	if v, ok := lookup("ssh"); ok {
		p.ssh = v
		if v == "" || strings.ContainsAny(v, "|&;<>()$`\\\"' \t\r\n*?[#~=%") || v[0] == '-' {
			p.fault = "config ssh of tool git is not the name or path of one program"
		}
	}
	return p
}

// settings reads what the operator configures; what is wrong of it is the policy's
// fault, which refuses every call.
type settings struct {
	policy *policy
	lookup func(string) (string, bool)
}

func (c settings) words(key string) []string {
	v, _ := c.lookup(key)
	return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

func (c settings) boolean(key string, b *bool) {
	switch v, ok := c.lookup(key); {
	case !ok:
	case v == "true":
		*b = true
	case v == "false":
		*b = false
	default:
		c.policy.fault = "config " + key + " of tool git is neither true nor false"
	}
}

// choice reports whether second is set, and not first, which is the default.
func (c settings) choice(key, first, second string) bool {
	switch v, ok := c.lookup(key); {
	case !ok, v == first:
	case v == second:
		return true
	default:
		c.policy.fault = "config " + key + " of tool git is neither " + first + " nor " + second
	}
	return false
}

// request is one call on its way through the policy.
type request struct {
	*policy
	call  *abi.Call
	scope argv.Scope // Cwd is where -C leads
	repo  *repoConfig
	// What the flags before the subcommand say of the place.
	moved            bool
	gitDir, workTree string

	cmd  *command
	line *argv.Line
	// asked is what stood behind the subcommand.
	asked []string

	// What becomes of it, beside cmd's own class.
	mutating, idempotent bool
	stdin                bool
	noPager, pages       bool
	paginate             bool           // --paginate was given
	config               []string       // further -c values
	asides               []string       // keys that the call set to what is forced anyway
	flags                []string       // further flags, before the line's own
	remotes              []remote       // where this call goes; none: it stays here
	lines                []string       // what a shell may run
	written              []string       // the subcommand, where it is not cmd's name
	notes                []string       // said on the standard error
	callbacks            []abi.Callback // programs that the caller runs
	alias                string         // the last alias that was written out
	patch                bool           // answers of -p come from input
	helps                bool           // the call asks how a command is used
	lists                bool           // ... or which commands there are: listCommands
	outside              bool           // git shall not see the repository
	bare                 bool           // the call is within a git directory
	forces               bool           // a push may rewrite a branch
	recurses             bool           // the call asks for submodules as well: recurse
	signs, signsAll      bool           // commits and tags are signed: where asked, or all
	lfsURL               string         // where files in LFS are kept; "": nowhere that is asked
	verifies, shows      bool           // signatures are verified; log shows that unasked
}

func refusal(rule, arg, reason, instead string) *argv.Refusal {
	return &argv.Refusal{Rule: rule, Arg: arg, Reason: reason, Instead: instead}
}

// decide is the policy.
func (p *policy) decide(c *abi.Call) *abi.Decision {
	r := &request{policy: p, call: c, scope: argv.Scope{Cwd: c.Cwd, Roots: c.Roots}, repo: newRepoConfig(c.RepoConfig)}
	args, err := r.run()
	if err != nil {
		var f *argv.Refusal
		if !errors.As(err, &f) {
			f = &argv.Refusal{Rule: "policy", Reason: err.Error()}
		}
		return pdk.Deny(f.Rule, f.Reason, f.Instead)
	}
	d := pdk.Allow()
	d.Rule = "git." + r.cmd.name
	d.Args = args
	d.Env = r.env()
	d.Mutating, d.Idempotent, d.Stdin = &r.mutating, &r.idempotent, &r.stdin
	if d.Shell = r.needsShell() && r.pinned(args); d.Shell {
		d.ShellLines = r.lines
	}
	d.Notes, d.Callbacks = r.notes, r.callbacks
	return d
}

// run answers the arguments that git shall run with.
func (r *request) run() ([]string, error) {
	if r.fault != "" {
		return nil, refusal("config", "", r.fault, "ask the operator to fix tools.d/git/tool.json")
	}
	if !path.IsAbs(r.call.Cwd) || len(r.call.Roots) == 0 {
		return nil, refusal("cwd", "", "the call has no working directory beneath its roots", "set cwd")
	}
	if !r.guards.off(checkEnv) {
		if err := r.checkEnv(); err != nil {
			return nil, err
		}
	}
	args, err := r.placed()
	if err != nil {
		return nil, err
	}
	globals, rest, err := r.global(args)
	if err != nil {
		return nil, err
	}
	if globals, rest, err = r.expand(globals, rest); err != nil {
		return nil, err
	}
	name := rest[0]
	args = rest[1:]
	if err := r.inside(args); err != nil {
		return nil, err
	}
	if name, args, err = r.help(name, args); err != nil {
		return nil, err
	}
	if r.cmd = commands[name]; r.lists {
		r.cmd = listCommands
	}
	if r.cmd == nil && r.guards.off(checkGrammar) {
		r.cmd = &command{name: name, reads: true}
	}
	switch {
	case r.cmd.refuse != "":
		return nil, refusal("subcommand", name, "git "+name+" "+r.cmd.refuse, r.cmd.instead)
	case name == "lfs" && r.lfsFolder == "":
		return nil, refusal("subcommand", name, "git lfs is a program of its own, git-lfs, which this tool is not granted", "work on files that are not in LFS; the operator adds /usr/bin/git-lfs to capabilities.exec in tools.d/git/tool.json")
	}
	r.mutating, r.idempotent = !r.cmd.reads, r.cmd.reads || r.cmd.again
	if args, err = r.understand(args); err != nil {
		return nil, err
	}
	if err := r.aliased(); err != nil {
		return nil, err
	}
	if r.mutating && r.call.ReadOnly && !r.guards.off(checkReadOnly) {
		return nil, refusal("read-only", name, "git "+name+" changes something, and this caller may only read", "")
	}
	if !r.guards.off(checkRepo) {
		if err := r.checkRepo(); err != nil {
			return nil, err
		}
	}
	if err := r.lfs(); err != nil {
		return nil, err
	}
	if err := r.checkHooks(); err != nil {
		return nil, err
	}
	if err := r.signedRemote(); err != nil {
		return nil, err
	}
	if err := r.checkSeen(); err != nil && !r.guards.off(checkEnv) {
		return nil, err
	}
	if err := r.ceiling(); err != nil && !r.guards.off(checkEnv) {
		return nil, err
	}
	r.overridden()
	r.setAside()
	return r.argv(name, globals, args), nil
}

// argv returns the command line of a request that was judged, with what is forced.
func (r *request) argv(name string, globals, args []string) []string {
	if r.bare = r.repo.bare != "" && r.gitDir == "" && !r.outside && !r.helps && !slices.Contains([]string{"init", "clone", "version"}, name); r.bare {
		// git takes none by itself that may be part of what somebody else tracks;
		// this one was judged.
		dir := r.repo.bare
		if dir == r.scope.Cwd && !r.line.Has("--is-inside-git-dir") {
			dir = "." // as git then says in what it prints
		}
		globals = append(globals, "--git-dir="+dir)
	}
	var out []string
	if !r.guards.off(checkConfig) && !r.cmd.plain {
		out = r.forced()
	}
	out = append(out, globals...)
	if r.written == nil {
		r.written = r.cmd.words(name)
	}
	out = append(out, r.written...)
	if !r.guards.off(checkFlags) {
		out = append(out, r.flags...)
	}
	return append(out, args...)
}

// understand reads what follows the subcommand and answers it written anew.
func (r *request) understand(args []string) ([]string, error) {
	if r.helps {
		r.mutating, r.idempotent = false, true
		r.line = &argv.Line{}
		return args, nil
	}
	if r.lists {
		r.written = []string{"--list-cmds=" + args[0]}
		r.line = &argv.Line{}
		return nil, nil
	}
	if r.cmd.sub != nil && !r.guards.off(checkGrammar) {
		var err error
		if r.cmd.lead != nil {
			if args, err = r.cmd.lead(r, args); err != nil {
				return nil, err
			}
		}
		if args, err = r.subcommand(args); err != nil {
			return nil, err
		}
	}
	if r.cmd.tail != nil {
		args = r.cmd.tail(args)
	}
	if r.cmd.grammar == nil {
		r.line = &argv.Line{}
		return args, nil // The grammar is left out.
	}
	r.asked = args
	line, err := r.cmd.grammar.Parse(args, r.scope)
	if err != nil {
		if r.guards.off(checkGrammar) {
			r.line = &argv.Line{}
			return args, nil
		}
		return nil, r.hinted(err)
	}
	r.line = line
	if err := r.cmd.checkOperands(line); err != nil && !r.guards.off(checkGrammar) {
		return nil, err
	}
	r.flags = append(r.flags, r.cmd.force...)
	if r.cmd.name != "clone" && r.cmd.name != "push" {
		if err := r.recurse(); err != nil && !r.guards.off(checkGrammar) {
			return nil, err
		}
	}
	if r.cmd.then != nil {
		if err := r.cmd.then(r); err != nil {
			return nil, err
		}
	}
	if err := r.opens(); err != nil && !r.guards.off(checkGrammar) {
		return nil, err
	}
	if err := r.sign(); err != nil && !r.guards.off(checkGrammar) {
		return nil, err
	}
	if err := r.verify(); err != nil && !r.guards.off(checkGrammar) {
		return nil, err
	}
	menu := slices.Contains([]string{"add", "am", "clean", "commit"}, r.cmd.name) && line.Has("--interactive")
	if menu || answered(r.cmd.grammar.Lookup("--patch")) && line.Has("--patch") {
		r.patch, r.stdin, r.mutating, r.idempotent = true, true, true, false
	}
	for _, it := range line.Items {
		if it.HasValue && it.Value == "-" && (it.Name == "--file" || it.Name == "--pathspec-from-file") || it.Name == "--stdin" || it.Name == "--annotate-stdin" || strings.HasPrefix(it.Name, "--batch") {
			r.stdin = true
		}
	}
	if r.guards.off(checkGrammar) {
		return args, nil
	}
	return r.cmd.write(line), nil
}

// subcommand resolves "stash push", "remote add" and the like.
func (r *request) subcommand(args []string) ([]string, error) {
	parent := r.cmd
	if len(args) > 0 && parent.sub[args[0]] != nil {
		r.cmd, args = parent.sub[args[0]], args[1:]
	} else if len(args) > 0 && !strings.HasPrefix(args[0], "-") && !parent.operands {
		return nil, refusal("subcommand", args[0], "git "+parent.name+" "+quote(args[0])+" is not one that this policy knows",
			meant(args[0], sortedNames(parent.sub), "use one of: "+strings.Join(sortedNames(parent.sub), ", ")))
	}
	if r.cmd.refuse != "" {
		return nil, refusal("subcommand", r.cmd.name, "git "+r.cmd.name+" "+r.cmd.refuse, r.cmd.instead)
	}
	r.mutating, r.idempotent = !r.cmd.reads, r.cmd.reads || r.cmd.again
	return args, nil
}

func (r *request) unknown(name string) error {
	known := sortedNames(commands)
	near := slices.Clone(known)
	for _, e := range r.repo.entries {
		if e.section == "alias" && e.sub == "" {
			near = append(near, e.name)
		}
	}
	return refusal("subcommand", name, "git "+quote(name)+" is not one of the subcommands that this policy allows",
		meant(name, near, "use one of: "+strings.Join(known, ", ")))
}

// hinted adds what may have been meant to the refusal of an unknown flag.
func (r *request) hinted(err error) error {
	f, ok := err.(*argv.Refusal)
	if !ok || f.Rule != "flag.unknown" || !strings.HasPrefix(f.Arg, "--") {
		return err
	}
	var known []string
	for _, flag := range r.cmd.grammar.All() {
		for n := range strings.FieldsSeq(flag.Names) {
			if flag.Refuse == "" && strings.HasPrefix(n, "--") {
				known = append(known, n)
				if flag.Negatable {
					known = append(known, "--no-"+n[2:])
				}
			}
		}
	}
	f.Instead = meant(f.Arg, known, f.Instead)
	return f
}

// help has a subcommand say how it is used: manual pages are on the host, and
// there is no pager.
func (r *request) help(name string, args []string) (string, []string, error) {
	if r.lists {
		return name, args, nil
	}
	if completes(name, args) {
		r.helps = true
		return name, args, nil
	}
	asked := len(args) == 1 && (args[0] == "-h" || args[0] == "--help")
	if name == "help" && !asked {
		if len(args) == 0 {
			r.helps = true
			return name, nil, nil
		}
		if len(args) == 1 && slices.Contains(helpFlags, args[0]) {
			r.helps = true
			return name, args, nil
		}
		if len(args) > 1 || strings.HasPrefix(args[0], "-") {
			return "", nil, refusal("operand", args[0], "git help takes one subcommand here", "git help COMMAND")
		}
		asked, name = true, args[0]
		if commands[name] == nil && !r.guards.off(checkGrammar) {
			return "", nil, r.unknown(name)
		}
	}
	c := commands[name]
	if c == nil {
		return name, args, nil
	}
	if len(args) == 2 && c.sub != nil && c.sub[args[0]] != nil && (args[1] == "-h" || args[1] == "--help") {
		asked = true
	}
	if !asked {
		return name, args, nil
	}
	if shellScript(name) {
		return "", nil, refusal("help", name, "git "+name+" is one of: "+strings.Join(sortedNames(c.sub), ", "), "git "+name+" "+sortedNames(c.sub)[0])
	}
	if args[len(args)-1] != "-h" {
		r.note("this is git " + name + " -h, with its exit code; the manual page is at https://git-scm.com/docs/git-" + name)
	}
	r.helps = true
	return name, []string{"-h"}, nil
}

// aliased refuses an alias of a call that goes to a folder by its path: the host
// looks for such paths in what was typed.
func (r *request) aliased() error {
	if r.alias == "" || !r.needsShell() {
		return nil
	}
	for _, m := range r.remotes {
		if m.kind == kindFile && r.repo.remotes[m.name] == nil {
			return refusal("alias", r.alias, "the alias "+quote(r.alias)+" goes to "+quote(m.url)+", a folder that nobody has looked at", "write it out: git "+r.cmd.name+" ...")
		}
	}
	return nil
}

// global reads the flags before the subcommand. It answers those that stay,
// and the rest with the subcommand first.
func (r *request) global(args []string) (keep, rest []string, err error) {
	for i := 0; i < len(args) && rest == nil; i++ {
		a := args[i]
		if a == "--version" || a == "-v" {
			return nil, []string{"version"}, nil
		}
		if (a == "--help" || a == "-h") && !r.guards.off(checkGlobal) {
			return nil, append([]string{"help"}, args[i+1:]...), nil
		}
		if !strings.HasPrefix(a, "-") {
			rest = args[i:]
			continue
		}
		if r.guards.off(checkGlobal) {
			keep = append(keep, a)
			if (a == "-c" || a == "-C" || a == "--git-dir" || a == "--work-tree" || a == "--namespace" || a == "--config-env") && i+1 < len(args) {
				i++
				keep = append(keep, args[i])
			}
			continue
		}
		switch a {
		case "--no-pager", "-P":
			r.noPager = true
		case "--paginate", "-p":
			r.paginate = true
		case "--no-optional-locks", "--literal-pathspecs", "--glob-pathspecs", "--noglob-pathspecs", "--icase-pathspecs", "--no-replace-objects":
			keep = append(keep, a)
		case "-c":
			if i++; i == len(args) {
				return nil, nil, refusal("global-flag", a, `flag "-c" needs a value`, "")
			}
			if err := checkSetting(args[i]); err != nil {
				return nil, nil, err
			}
			r.set(args[i])
		case "-C":
			if i++; i == len(args) {
				return nil, nil, refusal("global-flag", a, `flag "-C" needs a value`, "")
			}
			if err := r.enter(args[i]); err != nil {
				return nil, nil, err
			}
		default:
			name, value, joined := strings.Cut(a, "=")
			if name == "--list-cmds" && joined && i == len(args)-1 {
				value, err := list(value)
				if err != nil {
					return nil, nil, err
				}
				r.lists, rest = true, []string{name, value}
				continue
			}
			if name == "--git-dir" || name == "--work-tree" {
				if !joined && i+1 < len(args) {
					i++
					value = args[i]
				}
				if err := r.place(name, value); err != nil {
					return nil, nil, err
				}
				continue
			}
			return nil, nil, refusedGlobal(a, name)
		}
	}
	if rest == nil {
		return nil, nil, refusal("subcommand", "", "git was called without a subcommand", "name one")
	}
	if r.moved {
		where, err := r.move()
		if err != nil {
			return nil, nil, err
		}
		keep = append(where, keep...)
	}
	return keep, rest, nil
}

// enter changes the folder of the call, as -C does; an empty one changes nothing.
func (r *request) enter(dir string) error {
	r.moved = true
	if dir == "" {
		return nil
	}
	dir, err := r.scope.Path(dir)
	if err != nil {
		return err
	}
	r.scope.Cwd = r.abs(dir)
	return nil
}

// place sets the folder of --git-dir or --work-tree, which name is.
func (r *request) place(name, dir string) error {
	if dir == "" {
		return refusal("global-flag", name, "flag "+quote(name)+" needs a value", "name a folder")
	}
	r.moved = true
	if name == "--git-dir" {
		r.gitDir = dir
	} else {
		r.workTree = dir
	}
	return nil
}

// checkSetting refuses what a call may not set by -c.
func checkSetting(setting string) error {
	key, value, _ := strings.Cut(setting, "=")
	lower := strings.ToLower(key)
	if allowed := forcedSettings[lower]; mayset(key, value) || lower == "safe.directory" || slices.Contains(allowed, strings.ToLower(value)) {
		return nil
	} else if len(allowed) > 0 {
		return refusal("global-flag", "-c", "flag \"-c\" sets "+quote(key)+", which this policy sets itself", "leave it out, or set it to "+quote(allowed[0]))
	}
	return refusal("global-flag", "-c", "flag \"-c\" sets "+quote(key)+", which this policy does not let a call set",
		"leave it out; who commits and how things look may be set (user.name, color.ui)")
}

// refusedGlobal says why the flag a, of this name, does not stand before a subcommand.
func refusedGlobal(a, name string) error {
	why, instead := "is not one that this policy knows", "leave it out"
	if g, ok := refusedGlobals[name]; ok {
		why, instead = g[0], g[1]
	} else if strings.HasPrefix(a, "-c") || strings.HasPrefix(a, "-C") {
		instead = "write the value as an argument of its own"
	} else if strings.HasPrefix(a, "--") {
		instead = meant(name, knownGlobals, instead)
	}
	return refusal("global-flag", name, "flag "+quote(name)+" "+why, instead)
}

// move answers the flags that lead git to the folder and the repository of the
// call. The host has followed the links on the way there and read what it found,
// and what it found is what is written.
func (r *request) move() ([]string, error) {
	for _, p := range [][2]string{{r.gitDir, r.repo.gitDir}, {r.workTree, r.repo.workTree}} {
		if p[0] == "" {
			continue
		}
		if _, err := r.scope.Path(p[0]); err != nil {
			return nil, err
		}
		if p[1] == "" {
			return nil, r.unread()
		}
	}
	if r.repo.dir == "" {
		if r.repo.err == "" && r.gitDir == "" && r.workTree == "" && r.scope.Cwd == path.Clean(r.call.Cwd) {
			return nil, nil
		}
		return nil, r.unread()
	}
	var out []string
	if r.scope.Cwd = r.repo.dir; r.scope.Cwd != path.Clean(r.call.Cwd) {
		out = append(out, "-C", r.scope.Cwd)
	}
	if r.gitDir != "" {
		out = append(out, "--git-dir="+r.repo.gitDir)
	}
	if r.workTree != "" {
		out = append(out, "--work-tree="+r.repo.workTree)
	}
	return out, nil
}

// inside refuses ".." in a call that works outside of its working tree: git
// then counts relative paths from the top of that, wherever the call is.
func (r *request) inside(args []string) error {
	tree := r.repo.workTree
	if tree == "" || r.scope.Cwd == tree || strings.HasPrefix(r.scope.Cwd, strings.TrimSuffix(tree, "/")+"/") {
		return nil
	}
	for _, a := range args {
		if a == ".." || strings.Contains(a, "../") || strings.Contains(a, "/..") {
			return refusal("cwd", a, "argument "+quote(a)+" has \"..\", and the call is outside of its working tree, from which git would count", "run git with -C "+tree)
		}
	}
	return nil
}

// unread refuses a call whose flags lead to what the host has not read.
func (r *request) unread() error {
	why := r.repo.err
	if why == "" {
		why = "the host has not read it"
	}
	return refusal("repo-config", "", "the flags lead to a folder that cannot be used: "+why, "name a folder or a repository beneath "+strings.Join(r.call.Roots, " or "))
}

var knownGlobals = []string{"--version", "--help", "--no-pager", "--git-dir", "--work-tree", "--no-optional-locks", "--literal-pathspecs", "--glob-pathspecs", "--noglob-pathspecs", "--icase-pathspecs", "--no-replace-objects"}

var refusedGlobals = map[string][2]string{
	"--exec-path":     {"chooses the programs that git runs", "leave it out"},
	"--config-env":    {"sets configuration", "leave it out"},
	"--namespace":     {"changes what references mean", "leave it out"},
	"--super-prefix":  {"is for git's own use", "leave it out"},
	"--bare":          {"takes the working directory for a repository", "leave it out"},
	"--html-path":     {"is about the host's installation", "leave it out"},
	"--man-path":      {"is about the host's installation", "leave it out"},
	"--info-path":     {"is about the host's installation", "leave it out"},
	"--list-cmds":     {"is for git's own use", "leave it out"},
	"--no-lazy-fetch": {"is forced anyway", "leave it out"},
}

// callerEnv are the variables that a caller may set, where tool.json admits
// them: who committed, when, and how text looks.
var callerEnv = []string{
	"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS", "GIT_NO_REPLACE_OBJECTS", "GIT_DEFAULT_HASH",
	"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE",
	"GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "GIT_COMMITTER_DATE",
	"GIT_MERGE_AUTOEDIT", "GIT_OPTIONAL_LOCKS", "GIT_REFLOG_ACTION",
	"GIT_CEILING_DIRECTORIES", "GIT_DIFF_OPTS", "GIT_MERGE_VERBOSITY", "GIT_PRINT_SHA1_ELLIPSIS",
	"TZ", "COLUMNS", "NO_COLOR", "TERM",
}

// flagOf are variables that are written as flags before the subcommand.
var flagOf = map[string]string{
	"GIT_DIR": "--git-dir", "GIT_WORK_TREE": "--work-tree", "GIT_LITERAL_PATHSPECS": "--literal-pathspecs", "GIT_GLOB_PATHSPECS": "--glob-pathspecs", "GIT_NOGLOB_PATHSPECS": "--noglob-pathspecs",
	"GIT_ICASE_PATHSPECS": "--icase-pathspecs", "GIT_NO_REPLACE_OBJECTS": "--no-replace-objects", "GIT_OPTIONAL_LOCKS": "--no-optional-locks",
}

// flagged are the names of flagOf, sorted once a version and not once a call.
var flagged = slices.Sorted(maps.Keys(flagOf))

// placed answers the arguments of the call behind the flags that its variables stand
// for, in the order in which the host takes them.
func (r *request) placed() ([]string, error) {
	var out []string
	if r.guards.off(checkEnv) {
		return r.call.Args, nil
	}
	for _, name := range []string{"GIT_DIR", "GIT_WORK_TREE"} {
		if v := r.call.Env[name]; v != "" {
			out = append(out, flagOf[name]+"="+v)
		}
	}
	for _, name := range flagged {
		v, ok := r.call.Env[name]
		if !ok || name == "GIT_DIR" || name == "GIT_WORK_TREE" {
			continue
		}
		yes := isTrue(v)
		no := v == "" || slices.Contains([]string{"false", "no", "off", "0"}, strings.ToLower(v))
		switch {
		case name == "GIT_NO_REPLACE_OBJECTS":
			yes, no = true, false // whatever it is set to
		case name == "GIT_OPTIONAL_LOCKS":
			yes, no = no, yes
		}
		if !yes && !no {
			return nil, refusal("env", name, "variable "+name+" is neither true nor false", "set it to 1, or unset it")
		}
		if yes {
			out = append(out, flagOf[name])
		}
	}
	return append(out, r.call.Args...), nil
}

// decisive are variables without which a call comes out wrong, with what says the
// same. A caller that has one and does not pass it on is told, and nothing runs.
var decisive = map[string]string{
	"GIT_DIR": "give it with --git-dir", "GIT_WORK_TREE": "give it with --work-tree", "GIT_INDEX_FILE": "", "GIT_LITERAL_PATHSPECS": "use --literal-pathspecs", "GIT_GLOB_PATHSPECS": "use --glob-pathspecs",
	"GIT_NOGLOB_PATHSPECS": "use --noglob-pathspecs", "GIT_ICASE_PATHSPECS": "use --icase-pathspecs", "GIT_NO_REPLACE_OBJECTS": "use --no-replace-objects", "GIT_DEFAULT_HASH": "use --object-format",
	"GIT_OBJECT_DIRECTORY": "unset it", "GIT_ALTERNATE_OBJECT_DIRECTORIES": "unset it", "GIT_NAMESPACE": "unset it", "GIT_CONFIG": "use git config --file", "GIT_COMMON_DIR": "unset it", "GIT_NOTES_REF": "use --notes, or git notes --ref",
	"GIT_CONFIG_COUNT": "use -c", "GIT_CONFIG_PARAMETERS": "use -c", "GIT_ATTR_SOURCE": "unset it", "GIT_SHALLOW_FILE": "unset it", "GIT_GRAFT_FILE": "unset it", "GIT_REPLACE_REF_BASE": "unset it", "GIT_EXTERNAL_DIFF": "use --no-ext-diff",
}

// checkSeen refuses a call whose caller has a variable of decisive that is not
// passed on.
func (r *request) checkSeen() error {
	for _, name := range r.call.EnvSeen {
		instead, ok := decisive[name]
		switch {
		case !ok, name == "GIT_EXTERNAL_DIFF" && !slices.Contains([]string{"diff", "log", "show"}, r.cmd.name), name == "GIT_EXTERNAL_DIFF" && slices.Contains(r.call.Args, "--no-ext-diff"),
			name == "GIT_DEFAULT_HASH" && r.cmd.name != "init", name == "GIT_CONFIG" && r.cmd.name != "config", r.helps, r.lists, r.cmd.name == "version":
			continue
		}
		if slices.Contains(callerEnv, name) {
			passed := "name it in TOOL_ENV to have it passed on"
			if instead != "" {
				passed += ", or " + instead
			}
			instead = passed
		}
		return refusal("env", name, "variable "+name+" of your environment does not reach git, and the result would be another one", instead)
	}
	return nil
}

func (r *request) checkEnv() error {
	for name, value := range r.call.Env {
		if name == "TZ" && value != "" && !plainName(value, "/+") {
			// It can name a file.
			return refusal("env", name, "variable TZ is not the name of a time zone", "use one like Europe/Berlin")
		}
		if name == "GIT_INDEX_FILE" {
			// A relative one counts from the top of the working tree, wherever that is.
			if _, err := r.scope.Path(value); err != nil || !path.IsAbs(value) && slices.Contains(strings.Split(value, "/"), "..") {
				return refusal("env", name, "variable GIT_INDEX_FILE leads, or may lead, out of the folders of this call", "write the whole path of a file beneath "+strings.Join(r.call.Roots, " or "))
			}
		}
		if name == "GIT_DEFAULT_HASH" && value != "sha1" && value != "sha256" || name == "GIT_REFLOG_ACTION" && strings.ContainsFunc(value, func(c rune) bool { return c < ' ' }) {
			return refusal("env", name, "variable "+name+" has the value "+quote(value)+", which this policy does not know", "unset it")
		}
		if name == "GIT_DIFF_OPTS" && !diffOpts(value) || name == "GIT_MERGE_VERBOSITY" && !isNumber(value) || name == "GIT_PRINT_SHA1_ELLIPSIS" && !plainName(value, "") {
			return refusal("env", name, "variable "+name+" has the value "+quote(value)+", which this policy does not know", "unset it")
		}
		if slices.Contains(sequenceEditors, name) {
			continue // For commands that open one; none is run, and none is passed on.
		}
		if !slices.Contains(callerEnv, name) {
			return refusal("env", name, "variable "+quote(name)+" is not one that a call of git may set",
				"unset it; what may be set: "+strings.Join(callerEnv, ", "))
		}
	}
	return nil
}

// diffOpts reports whether v is what git reads of GIT_DIFF_OPTS: how many lines
// stand around a change.
func diffOpts(v string) bool {
	n, ok := strings.CutPrefix(v, "--unified=")
	if !ok {
		n, ok = strings.CutPrefix(v, "-u")
	}
	return v == "" || ok && (n == "" || isNumber(n))
}

// ceiling refuses a call that would do something else where git finds no repository,
// and whose caller keeps git from looking for one in the folders above.
func (r *request) ceiling() error {
	if r.call.Env["GIT_CEILING_DIRECTORIES"] == "" || r.helps || r.lists {
		return nil
	}
	alone := false // whether it works without a repository
	switch r.cmd.name {
	case "apply", "ls-remote":
		alone = true
	case "diff":
		// Two files are compared then, where insideOnly has put no third operand.
		ops := r.line.Operands()
		alone = len(ops) == 2 && strings.Contains(ops[0]+ops[1], "/")
	}
	if alone {
		return refusal("env", "GIT_CEILING_DIRECTORIES", "variable GIT_CEILING_DIRECTORIES may keep git from the repository that was judged, and git "+r.cmd.name+" then works on something else", "unset it, or leave it out of TOOL_ENV")
	}
	return nil
}

// overridden says which variables of the caller's, set to something else by this policy,
// do not count.
func (r *request) overridden() {
	ssh := slices.ContainsFunc(r.remotes, func(m remote) bool { return m.kind == kindSSH })
	for _, name := range r.call.EnvSeen {
		switch {
		case name == "GIT_CEILING_DIRECTORIES" && !r.cmd.plain && !r.helps && !r.lists:
			r.note(name + " of your environment is not passed on; name it in TOOL_ENV to have it passed on")
		case (name == "GIT_SSH_COMMAND" || name == "GIT_SSH") && ssh:
			r.note(name + " of your environment is not passed on; the program for ssh is the operator's")
		case name == "GIT_ALLOW_PROTOCOL" && len(r.remotes) > 0:
			r.note(name + " of your environment is not passed on; the operator says where remotes may be")
		case name == "GIT_REFLOG_ACTION" && (r.cmd.name == "fetch" || r.cmd.name == "pull"):
			r.note(name + " of your environment is not passed on; name it in TOOL_ENV to have it passed on")
		}
	}
}

// action is what git notes in the reflog: what was asked for, as natively, and
// not what the written line says of the other side and of the host.
func (r *request) action() string {
	action := strings.Join(append([]string{r.cmd.name}, r.asked...), " ")
	if len(action) > 1000 || strings.Contains(action, "://") {
		return r.cmd.name // A URL may hold a password.
	}
	return action
}

// env is what the call runs with: the caller's variables, and those that
// bind git more firmly than configuration can, since a repository cannot
// answer them.
func (r *request) env() map[string]string {
	env := make(map[string]string)
	for name, v := range r.call.Env {
		if !slices.Contains(sequenceEditors, name) && flagOf[name] == "" {
			env[name] = v
		}
	}
	if r.guards.off(checkVars) {
		return env
	}
	env["GIT_ALLOW_PROTOCOL"] = strings.Join(r.protocols(), ":")
	ceilings := r.ceilings()
	if v := r.call.Env["GIT_CEILING_DIRECTORIES"]; v != "" {
		ceilings = append(ceilings, v)
	}
	env["GIT_CEILING_DIRECTORIES"] = strings.Join(ceilings, ":")
	if _, given := env["GIT_REFLOG_ACTION"]; !given && (r.cmd.name == "fetch" || r.cmd.name == "pull") {
		env["GIT_REFLOG_ACTION"] = r.action()
	}
	env["GIT_EDITOR"] = ":"
	env["GIT_SEQUENCE_EDITOR"] = ":"
	switch {
	case r.callback(kindEditor) && r.edits():
		env["GIT_EDITOR"] = r.shim(kindEditor)
	case r.patch:
		// Of the answer "e" nothing else shall become than of an editor that
		// fails; an edit that is none would be taken for one.
		env["GIT_EDITOR"] = "false"
	}
	if r.callback(kindSequenceEditor) && r.cmd.name == "rebase" {
		env["GIT_SEQUENCE_EDITOR"] = r.shim(kindSequenceEditor)
	}
	if r.outside {
		env["GIT_DIR"] = "/dev/null"
	}
	if r.bare && r.workTree == "" {
		env["GIT_IMPLICIT_WORK_TREE"] = "0"
	}
	env["GIT_NO_LAZY_FETCH"] = "1"
	if len(r.remotes) == 0 {
		// What says how a remote is reached is of no consequence to this call, and
		// nothing has to be said of it.
		for _, name := range r.call.EnvSeen {
			if strings.HasPrefix(name, "GIT_SSL_") || strings.HasPrefix(name, "GIT_HTTP_") || name == "GIT_SSH" || name == "GIT_PROXY_COMMAND" {
				env[name] = ""
			}
		}
	}
	if r.lfsFolder != "" && r.lfsURL == "" {
		env["GIT_LFS_SKIP_SMUDGE"] = "1" // what is there is checked out; the rest stays a pointer
	}
	env["GIT_PAGER"] = "cat"
	if r.pages {
		env["GIT_PAGER"] = r.shim(kindPager)
	}
	env["GIT_SSH_COMMAND"] = r.ssh
	env["GIT_SSH_VARIANT"] = "ssh"
	env["GIT_TERMINAL_PROMPT"] = "0"
	return env
}

// protocols are those that this call may use: none for most.
func (r *request) protocols() []string {
	var out []string
	for _, m := range r.remotes {
		if m.kind != "" && !slices.Contains(out, string(m.kind)) {
			out = append(out, string(m.kind))
		}
	}
	if out == nil {
		return []string{"none"}
	}
	slices.Sort(out)
	return out
}

// ceilings are the folders above the roots: git looks for a repository up to
// a root and no further.
func (r *request) ceilings() []string {
	var out []string
	for _, root := range r.call.Roots {
		if root = path.Clean(root); root != "/" && !strings.Contains(root, ":") {
			out = append(out, path.Dir(root))
		}
	}
	return out
}

// ancestors are the folders in which the repository of this call may begin:
// the working directory and those above it, up to the root that holds it.
func (r *request) ancestors() []string {
	dir, out := path.Clean(r.scope.Cwd), []string(nil)
	for _, err := r.scope.Path(dir); err == nil; _, err = r.scope.Path(dir) {
		out = append(out, dir)
		if dir == "/" {
			break
		}
		dir = path.Dir(dir)
	}
	return out
}

// alwaysForced is what every call is forced to, as arguments. A call appends it as it
// is: joining them anew took a tenth of the policy's time.
var alwaysForced = func() (args []string) {
	for _, kv := range []string{
		// Programs of the repository's choice.
		"core.fsmonitor=false", "core.editor=:", "sequence.editor=:", "core.pager=cat",
		"core.askPass=" + nobodyAsks, "ssh.variant=ssh", "credential.helper=", "credential.interactive=false",
		"gpg.program=/dev/null", "gpg.openpgp.program=/dev/null", "gpg.x509.program=/dev/null", "gpg.ssh.program=/dev/null",
		// Signing and verifying run a program as well.
		"commit.gpgSign=false", "tag.gpgSign=false", "tag.forceSignAnnotated=false", "push.gpgSign=false",
		"merge.verifySignatures=false", "log.showSignature=false",
		// A submodule is a repository that nobody has looked at.
		"submodule.recurse=false", "fetch.recurseSubmodules=false", "push.recurseSubmodules=no",
		"diff.ignoreSubmodules=dirty", "diff.submodule=short", "status.submoduleSummary=false",
		// Whatever a call starts ends with it.
		"gc.autoDetach=false", "maintenance.autoDetach=false",
		"grep.fallbackToNoIndex=false", "http.saveCookies=false",
		"safe.bareRepository=explicit",
	} {
		args = append(args, "-c", kv)
	}
	return args
}()

// transport is what git may go by, with what allows and refuses it.
type transport struct{ name, allow, deny string }

var transports = func() (list []transport) {
	for _, name := range []string{"ext", "file", "ftp", "ftps", "git", "http", "https", "ssh"} {
		list = append(list, transport{name, "protocol." + name + ".allow=always", "protocol." + name + ".allow=never"})
	}
	return list
}()

// noOctopus stands for the merge of several branches at once. Git says that there is no
// strategy of that name, and so what to do.
const noOctopus = "octopus-is-a-script-and-no-shell-runs-here:-merge-one-branch-after-the-other"

// forced is the configuration that no call runs without. The last value
// counts in git, and -c comes after every file; where that is not so (the
// first remote.*.uploadpack counts, the most specific http.<url>), the
// repository is refused instead.
func (r *request) forced() []string {
	out := make([]string, 0, 160) // a call's, with what is appended; growing takes longer than the rest
	switch r.pages = r.paging(); {
	case !r.pages:
		out = append(out, "--no-pager")
	case r.paginate:
		out = append(out, "--paginate")
	}
	hooks := "/dev/null"
	if slices.ContainsFunc(r.callbacks, func(c abi.Callback) bool { return c.Kind == kindHooks }) {
		hooks = r.call.Callbacks.Folder
	} else if r.pushesLFS() {
		hooks = r.lfsFolder
	}
	set := func(kv ...string) {
		for _, kv := range kv {
			out = append(out, "-c", kv)
		}
	}
	set(r.config...)
	if r.cmd.name == "config" {
		// It runs nothing but an editor, which GIT_EDITOR names, and would answer
		// what is forced as if somebody had set it.
		set("safe.bareRepository=explicit")
		for _, dir := range r.ancestors() {
			set("safe.directory=" + dir)
		}
		return out
	}
	if r.cmd.name != "rev-parse" { // which runs no hook, and says where they are
		set("core.hooksPath=" + hooks)
	}
	out = append(append(out, alwaysForced...), "-c", "core.sshCommand="+r.ssh)
	for _, dir := range r.ancestors() {
		set("safe.directory=" + dir)
	}
	set("protocol.allow=never")
	allowed := r.protocols()
	for _, p := range transports {
		if slices.Contains(allowed, p.name) {
			set(p.allow)
		} else {
			set(p.deny)
		}
	}
	// Programs that merge. What the repository says of them was judged.
	twohead, ok := r.repo.get("pull.twohead")
	if !ok {
		twohead = "ort"
	}
	set("merge.default=text", "pull.twohead="+twohead, "pull.octopus="+noOctopus)
	if branch := r.repo.branch(); branch != "" && !strings.ContainsAny(branch, "=\n") {
		set("branch." + branch + ".mergeOptions=")
	}
	if len(r.remotes) > 0 {
		set(noAlternateRefs)
	}
	if r.patch {
		// interactive.diffFilter is run for colours only.
		set("color.ui=false", "color.diff=false", "color.interactive=false", "interactive.singleKey=false", "add.interactive.useBuiltin=true")
	}
	set(r.filter()...)
	set(r.committer()...)
	set(r.signing()...)
	set(r.pinHTTP()...)
	set(r.neutralise()...)
	for _, m := range r.remotes {
		if m.kind == kindFile && m.path != "" {
			for _, dir := range repoPaths(m.path) {
				set("safe.directory=" + dir)
			}
		}
	}
	return out
}

// signing is the configuration of signatures that are made or verified, where they are.
func (r *request) signing() (out []string) {
	if r.signs {
		// The program is found in PATH where the daemon has the key, and nowhere else.
		out = append(out, "gpg.format=ssh", "gpg.ssh.program=toold-ssh", "user.signingKey=key::"+r.signingKey)
		if r.signsAll {
			out = append(out, "commit.gpgSign=true", "tag.gpgSign=true")
		}
	}
	if r.verifies {
		out = append(out, "gpg.program="+noVerifier, "gpg.openpgp.program="+noVerifier, "gpg.x509.program="+noVerifier,
			"gpg.ssh.program="+sshVerifier, "gpg.ssh.allowedSignersFile="+r.allowedSigners, "gpg.ssh.revocationFile=/dev/null", "gpg.minTrustLevel=undefined")
		if r.shows {
			out = append(out, "log.showSignature=true")
		}
	}
	return out
}

// nobodyAsks is the program that would ask for a user name or a password. There is none: git
// says that it cannot run it, and so what to do. Without a slash it is no file of the repository.
const nobodyAsks = "git-askpass (passwords are not asked for here, and are not the caller's: the operator gives this tool a secret with header and host, or ssh_key and host)"

// committer is who commits as the operator says, where neither the call nor the
// repository does.
func (r *request) committer() []string {
	var out []string
	for _, u := range [][2]string{{"user.name", r.userName}, {"user.email", r.userEmail}} {
		if u[1] == "" || !r.mutating && r.cmd.name != "var" {
			continue
		}
		if _, ok := r.setting(u[0]); !ok {
			out = append(out, u[0]+"="+u[1])
		}
	}
	return out
}

// abs makes a path that scope.Path answered absolute.
func (r *request) abs(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(r.scope.Cwd, p)
}
