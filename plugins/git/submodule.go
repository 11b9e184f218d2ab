package main

import (
	"slices"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// submoduleCommand: git submodule is a shell script around git
// submodule--helper, which is what runs here.
var submoduleCommand = func() *command {
	quiet := bare("-q --quiet")
	nested := bare("--recursive")
	borrows := never("borrows the objects of another repository", "leave it out", "--reference", "--dissociate")
	written := func(then func(*request) error) func(*request) error {
		return func(r *request) error {
			r.written = append([]string{"submodule--helper"}, strings.TrimPrefix(r.cmd.name, "submodule "))
			if r.leaveOut("--recursive") && len(r.repo.modules)+len(r.repo.submodules) > 0 {
				again := "git -C SUBMODULE " + r.cmd.name
				if r.line.Has("--init") {
					again += " --init"
				}
				r.note("--recursive is left out: in each submodule that has a .gitmodules of its own, " + again)
			}
			if then == nil {
				return nil
			}
			return then(r)
		}
	}
	return &command{name: "submodule", most: -1, reads: true, grammar: grammar(), then: written(func(r *request) error {
		r.written = []string{"submodule--helper", "status"}
		return nil
	}), sub: byName(
		&command{name: "submodule status", reads: true, paths: true, then: written(nil), grammar: grammar(quiet, bare("--cached"), nested)},
		&command{name: "submodule init", again: true, paths: true, then: written(nil), grammar: grammar(quiet)},
		&command{name: "submodule sync", again: true, paths: true, then: written(nil), grammar: grammar(quiet, nested)},
		&command{name: "submodule deinit", again: true, paths: true, then: written(nil), grammar: grammar(quiet, bare("-f --force", "--all"))},
		&command{name: "submodule update", again: true, paths: true, then: written(submoduleUpdate), grammar: grammar(quiet, nested, borrows,
			bare("--init", "--remote", "-N --no-fetch", "-f --force", "--checkout", "--merge", "--rebase", "--recommend-shallow", "--no-recommend-shallow", "--progress", "--single-branch", "--no-single-branch"),
			with(argv.Int(1, 1<<31-1), "--depth", "-j --jobs"), never("leaves objects out that later calls would have to fetch", "use --depth", "--filter"))},
		&command{name: "submodule add", most: 2, then: written(submoduleAdd), grammar: grammar(quiet, borrows, bare("-f --force", "--progress"), with(rev, "-b --branch"),
			with(argv.Match("the name of a submodule", func(v string) bool { return plainName(v, "./") && !strings.Contains(v, "..") }), "--name"), with(argv.Int(1, 1<<31-1), "--depth"))},
		&command{name: "submodule foreach", reads: true, then: written(submoduleForeach), grammar: argv.New(operandsEndFlags, quiet, nested)},
		&command{name: "submodule summary", refuse: "is not one that this policy knows", instead: "git diff --submodule=log"},
		&command{name: "submodule set-url", most: 2, then: written(submoduleSetURL), grammar: grammar(quiet)},
		&command{name: "submodule set-branch", most: 1, then: written(pathOperands), grammar: grammar(quiet, bare("-d --default"), with(rev, "-b --branch"))},
		&command{name: "submodule absorbgitdirs", refuse: "moves repositories that nobody has looked at", instead: "git submodule add it again"})}
}()

// submoduleForeach refuses to run the caller's command where there is a submodule to
// run it in. Elsewhere git looks whether there is one, as it would, without the command.
func submoduleForeach(r *request) error {
	if len(r.repo.modules)+len(r.repo.submodules) > 0 {
		return refusal("subcommand", r.cmd.name, "git submodule foreach runs a program in each submodule, and none of yours runs on this host",
			`git submodule status | grep -v '^-' | while read -r _ path _; do (cd "$path" && COMMAND); done`)
	}
	r.line.Items = slices.DeleteFunc(r.line.Items, func(it argv.Item) bool { return it.Flag == nil })
	r.line.Dashes = false
	return nil
}

const recurseFlag = "--recurse-submodules"

// recurse leaves recurseFlag out: without submodules that are checked out it changes
// nothing. Where there are some, a line says that they stay as they are, or the call is
// refused if it prints what is in them, since nobody would see that something is missing.
func (r *request) recurse() error {
	off := false
	for _, it := range r.line.Items {
		if it.Name == recurseFlag {
			off = slices.Contains(nos, strings.ToLower(it.Value))
			r.recurses = !off
		} else if it.Name == noRecurse {
			r.recurses = false
		}
	}
	r.leaveOut(recurseFlag)
	if f := r.cmd.grammar.Lookup(noRecurse); off && f != nil {
		r.line.Items = append([]argv.Item{{Flag: f, Name: noRecurse}}, r.line.Items...)
	}
	if !r.recurses || len(r.repo.submodules) == 0 {
		return nil
	}
	switch r.cmd.name {
	case "fetch", "pull": // setAside says so, with or without the flag.
	case "checkout", "reset", "restore", "switch":
		if v, _ := r.setting("submodule.recurse"); !isTrue(v) { // that is said, too
			r.note(recurseFlag + " is left out, and submodules stay as they are: git submodule update, or git -C SUBMODULE")
		}
	default:
		return refusal("flag.refused", recurseFlag, "flag "+quote(recurseFlag)+" works in submodules, which are repositories that this policy has not seen", "run git in the submodule, with -C")
	}
	return nil
}

const noRecurse = "--no-recurse-submodules"

// cloned leaves out the flags by which a clone fetches submodules, whose places nobody
// knows before it has run, and says what fetches them then: they are judged there.
func (r *request) cloned(url, dir string) {
	recurses := false
	var only []string
	for _, it := range r.line.Items {
		switch {
		case it.Name == recurseFlag:
			recurses = true
			if it.HasValue {
				only = append(only, it.Value)
			}
		case it.Name == noRecurse:
			recurses, only = false, nil
		}
	}
	update := "submodule update --init"
	if r.leaveOut("--remote-submodules") {
		update += " --remote"
	}
	if r.leaveOut("--shallow-submodules") {
		update += " --depth 1"
	}
	r.leaveOut(recurseFlag)
	if !recurses || anyOf(r.line, "--bare", "--mirror", "--no-checkout") {
		return
	}
	if dir == "" {
		_, dir, _ = cutLast("/"+strings.TrimSuffix(strings.TrimRight(url, "/"), ".git"), "/")
		_, dir, _ = cutLast(":"+dir, ":")
	}
	if !plainName(dir, "./") {
		dir = "FOLDER"
	}
	if len(only) > 0 {
		update += " " + shellQuote(strings.Join(only, " "))
	}
	r.note("submodules are not cloned with it: where there is a .gitmodules, git -C " + dir + " " + update + " clones them")
}

// submoduleUpdate judges where each submodule comes from. Git starts another git
// for each, to which this side's flags do not get: so all that they say is said
// by configuration, which does.
func submoduleUpdate(r *request) error {
	if !anyOf(r.line, "--checkout", "--merge", "--rebase") {
		// What the repository asks for may be a program (update = !command).
		r.flags = append(r.flags, "--checkout")
	}
	seen := make(map[string]bool)
	for _, e := range r.repo.entries {
		if e.section == "submodule" && e.name == "url" && e.sub != "" {
			seen[e.sub] = true
			if err := r.submoduleURL(e.value, false); err != nil {
				return err
			}
		}
	}
	for _, e := range r.repo.modules {
		if r.line.Has("--init") && e.section == "submodule" && e.name == "url" && !seen[e.sub] {
			if err := r.submoduleURL(e.value, true); err != nil {
				return err
			}
		}
	}
	for _, e := range r.repo.submodules {
		if e.section == "remote" && e.sub != "" && (e.name == "url" || e.name == "pushurl") {
			if err := r.submoduleURL(e.value, false); err != nil {
				return err
			}
		}
	}
	r.config = append(r.config, "init.templateDir=")
	return nil
}

func submoduleAdd(r *request) error {
	n := 0
	for i, it := range r.line.Items {
		if it.Flag != nil {
			continue
		}
		if n++; n == 1 {
			if err := r.submoduleURL(it.Value, true); err != nil {
				return err
			}
			continue
		}
		v, err := r.scope.Path(it.Value)
		if err != nil {
			return err
		}
		r.line.Items[i].Value = v
	}
	if n == 0 {
		return refusal("operand", "", "git submodule add needs a URL", "name one")
	}
	r.config = append(r.config, "init.templateDir=")
	return nil
}

// submoduleSetURL judges the new URL, though nothing goes there yet: git writes it
// into the configuration of this repository and of the submodule.
func submoduleSetURL(r *request) error {
	n := 0
	for i, it := range r.line.Items {
		if it.Flag != nil {
			continue
		}
		if n++; n == 2 {
			err := r.submoduleURL(it.Value, true)
			r.remotes = nil
			return err
		}
		v, err := r.scope.Path(it.Value)
		if err != nil {
			return err
		}
		r.line.Items[i].Value = v
	}
	return refusal("operand", "", "git submodule set-url needs the submodule and its new URL", "git submodule set-url PATH URL")
}

// submoduleURL adds the place of a submodule to those that the call goes to. A
// folder is none: git hands the command line for one to a shell, and the git
// that does it cannot be told which.
func (r *request) submoduleURL(url string, mayBeRelative bool) error {
	if mayBeRelative && (strings.HasPrefix(url, "./") || strings.HasPrefix(url, "../")) {
		// It counts from one of the remotes, by the branch that is checked out.
		if len(r.repo.remoteNames) == 0 {
			return r.checked(refusal("remote", url, "the submodule's URL "+quote(url)+" counts from the remote of this repository, which has none", "git remote add origin URL, or write the whole URL"))
		}
		for _, c := range r.repo.remotes {
			for _, base := range c.url {
				if err := r.submoduleURL(relativeURL(base, url), false); err != nil {
					return err
				}
			}
		}
		return nil
	}
	to, err := r.urls("", url, "")
	if err != nil {
		return err
	}
	for _, m := range to {
		if m.kind == kindFile {
			if err := r.checked(refusal("remote", url, "the submodule's URL "+quote(url)+" is a folder of this host", "use https or ssh")); err != nil {
				return err
			}
		}
	}
	r.remotes = append(r.remotes, to...)
	return nil
}

// relativeURL is where a relative URL leads from that of the remote
// (relative_url in git's remote.c).
func relativeURL(remote, url string) string {
	remote = strings.TrimSuffix(remote, "/")
	colon := false
	for {
		if rest, ok := strings.CutPrefix(url, "../"); ok {
			url = rest
			if i := strings.LastIndexByte(remote, '/'); i >= 0 {
				remote = remote[:i]
			} else if i := strings.LastIndexByte(remote, ':'); i >= 0 {
				remote, colon = remote[:i], true
			} else {
				remote = "."
			}
		} else if rest, ok := strings.CutPrefix(url, "./"); ok {
			url = rest
		} else {
			break
		}
	}
	sep := "/"
	if colon {
		sep = ":"
	}
	return strings.TrimSuffix(remote+sep+url, "/")
}

// removes says why git rm takes a submodule for one with local changes: it looks with
// git submodule foreach, which is a shell script.
func removes(r *request) error {
	if len(r.repo.submodules) > 0 && !anyOf(r.line, "--cached", "--force") {
		r.note("git rm takes each submodule that is checked out for one with local modifications, since no shell runs here to look; where there are none, git submodule deinit PATH, then git rm PATH")
	}
	return nil
}
