package main

import (
	"slices"
	"strings"

	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// Files in LFS. Where the operator grants git-lfs, the daemon names a folder with a
// program of one word that is git's filter, and the hook of a push; both execute the
// operator's git-lfs with arguments of their own. What a repository says of the filter
// counts nowhere, and of all else that git-lfs reads there, what would have it execute
// something or lead it elsewhere is overridden or refused.

const (
	// lfsProgram is that filter, and lfsConfig the value that names its folder.
	lfsProgram = "toold-lfs"
	lfsConfig  = "git_lfs"
	// noLFS stands for the filter where git-lfs is not granted. It is one word, and no
	// program: git says for each file that it cannot run it, and goes on without.
	noLFS = "git-lfs,\u00a0which\u00a0does\u00a0not\u00a0run\u00a0here:\u00a0this\u00a0file\u00a0is\u00a0in\u00a0LFS\u00a0and\u00a0stays\u00a0as\u00a0it\u00a0is"
	// noServer is where git-lfs looks for objects that it must not look for.
	noServer = "https://lfs.invalid/"
)

// filtering are the subcommands that have files checked out: git-lfs fetches what is
// missing of these.
var filtering = []string{"am", "archive", "checkout", "cherry-pick", "clone", "merge", "pull", "rebase", "reset", "restore", "revert", "sparse-checkout", "stash", "switch", "worktree"}

// keepsLFS reports whether the repository is known to have files in LFS.
func (r *request) keepsLFS() bool {
	filters, _ := r.repo.file("filters")
	has, _ := r.repo.file("lfs")
	return slices.Contains(strings.Split(filters, "\n"), "lfs") || strings.HasPrefix(has, "objects")
}

// lfs decides what becomes of files in LFS in this call.
func (r *request) lfs() error {
	first, _, _ := strings.Cut(r.cmd.name, " ")
	switch {
	case r.helps, r.lists:
		return nil
	case r.lfsFolder == "":
		r.lfsNotes(first)
		return nil
	case first == "lfs":
	case first != "push" && !slices.Contains(filtering, first), first != "clone" && !r.keepsLFS():
		return nil
	}
	to := r.remotes
	if len(to) == 0 && first != "lfs" {
		// A checkout: what is missing comes from where the branch comes from.
		if m := r.repo.remotes[r.fetchRemote()]; m != nil && len(m.url) > 0 {
			if to, _ = r.urls(r.fetchRemote(), m.url[0], ""); to == nil {
				return nil // which is said where the remote itself is used
			}
		}
	}
	server, err := r.lfsServer(to)
	if err != nil {
		return err
	}
	if r.lfsURL = server; server == "" {
		if first == "push" && r.keepsLFS() {
			r.note("files in LFS are not sent to a folder: the other side gets their pointers")
		}
		return nil
	}
	if has, _ := r.repo.file("lfs"); strings.HasSuffix(has, "lfsconfig") {
		r.note(".lfsconfig is not read here: the server of files in LFS is that of the remote, or lfs.url of .git/config")
	}
	return nil
}

// lfsServer is where files in LFS are kept for one of the remotes, as git-lfs finds it,
// or what the repository's lfs.url says; "": they are kept nowhere.
func (r *request) lfsServer(to []remote) (string, error) {
	for _, e := range r.repo.entries {
		named := e.section == "lfs" && e.sub == "" && (e.name == "url" || e.name == "pushurl") || e.section == "remote" && (e.name == "lfsurl" || e.name == "lfspushurl")
		if !named || e.value == "" {
			continue
		}
		if m, err := r.parse(e.value, "/"); err != nil || m.kind != kindHTTPS && m.kind != kindHTTP {
			return "", r.checked(refusal("remote", e.key, "the repository's configuration keeps files in LFS at "+quote(e.value)+", which is not a server that this tool talks to over https", "git config --unset "+e.key))
		}
	}
	found := ""
	for _, m := range to {
		server := ""
		switch m.kind {
		case kindHTTPS, kindHTTP:
			scheme, rest, _ := strings.Cut(m.url, "://")
			host, where, _ := strings.Cut(rest, "/")
			if _, name, ok := cutLast(host, "@"); ok {
				host = name
			}
			server = scheme + "://" + host + "/" + where
		case kindSSH:
			server = overHTTPS(m.url)
		}
		if server == "" || found != "" && found != server {
			return "", nil
		}
		found = server
	}
	if v, ok := r.repo.get("lfs.url"); ok && v != "" {
		return v, nil
	}
	if found == "" {
		return "", nil
	}
	if found = strings.TrimRight(found, "/"); !strings.HasSuffix(found, ".git") {
		found += ".git"
	}
	found += "/info/lfs"
	for _, e := range r.repo.entries {
		// git-lfs would apply it, once more.
		if e.section == "url" && (e.name == "insteadof" || e.name == "pushinsteadof") && strings.HasPrefix(found, e.value) && !strings.HasPrefix(found, e.sub) {
			return "", nil
		}
	}
	return found, nil
}

// overHTTPS is the URL over https of what is reached over ssh, or "".
func overHTTPS(url string) string {
	rest, isURL := strings.CutPrefix(url, "ssh://")
	host, where, ok := strings.Cut(rest, "/")
	if !isURL {
		host, where, ok = strings.Cut(rest, ":")
	}
	if _, name, user := cutLast(host, "@"); user {
		host = name
	}
	if isURL && !strings.HasPrefix(host, "[") {
		host, _, _ = strings.Cut(host, ":")
	}
	if !ok || !plainName(host, ".") || strings.ContainsAny(where, "?#%") {
		return ""
	}
	return "https://" + host + "/" + strings.TrimLeft(where, "/")
}

// filter is the configuration of LFS.
func (r *request) filter() []string {
	if r.lfsFolder == "" {
		return notGranted
	}
	server := r.lfsURL
	if server == "" {
		server = noServer
	}
	return []string{
		// git uses process and neither of the others, for which it would take a shell;
		// git-lfs does nothing without.
		"filter.lfs.process=" + r.lfsFolder + "/" + lfsProgram, "filter.lfs.clean=git-lfs clean -- %f", "filter.lfs.smudge=git-lfs smudge -- %f", "filter.lfs.required=true",
		"lfs.url=" + server, "lfs.pushUrl=" + server, "lfs.storage=", "lfs.concurrentTransfers=8", "lfs.locksVerify=false", "lfs.cacheCredentials=false",
		// Of ways to transfer, the one that starts no program.
		"lfs.basicTransfersOnly=true", "lfs.standaloneTransferAgent=", "lfs.sshTransfer=never", "lfs.tusTransfers=false",
	}
}

var notGranted = []string{"filter.lfs.process=" + noLFS, "filter.lfs.clean=", "filter.lfs.smudge=", "filter.lfs.required=false"}

// pushesLFS reports whether the hook of git-lfs runs in this push.
func (r *request) pushesLFS() bool {
	return r.cmd.name == "push" && r.lfsURL != "" && !r.leavesOut("push", "--no-verify") && !r.line.Has("--dry-run")
}

// lfsValues are variables of section lfs that are understood, beside those that are
// forced: sizes, times, and which files are fetched.
var lfsValues = strings.Fields("url pushurl locksverify access repositoryformatversion fetchinclude fetchexclude fetchrecentalways fetchrecentrefsdays fetchrecentremoterefs fetchrecentcommitsdays " +
	"pruneoffsetdays pruneremotetocheck pruneverifyremotealways concurrenttransfers basictransfersonly tustransfers activitytimeout dialtimeout tlstimeout keepalive maxretries maxverifies maxretrydelay " +
	"batch contenttype skipdownloaderrors allowincompletepush setlockablereadonly lockignoredfiles forceprogress storage sshtransfer cachecredentials defaulttokenttl")

// hostileLFS says what is wrong with a variable of section lfs, or "".
func hostileLFS(e entry) string {
	switch {
	case e.name == "standalonetransferagent", strings.HasPrefix(strings.ToLower(e.sub), "customtransfer."), strings.HasPrefix(strings.ToLower(e.sub), "extension."):
		return "runs a program on files in LFS"
	case e.sub != "" && (e.name == "access" || e.name == "locksverify" || e.name == "contenttype"):
		return ""
	case e.sub == "transfer" && (strings.HasPrefix(e.name, "max") || e.name == "enablehrefrewrite" && !isTrue(e.value)):
		return ""
	case e.sub == "" && slices.Contains(lfsValues, e.name):
		return ""
	}
	return "this policy does not know"
}

// ownFilter reports whether e is what git lfs install writes: it is overridden.
func ownFilter(e entry) bool {
	return e.section == "filter" && e.sub == "lfs" && slices.Contains([]string{"git-lfs clean -- %f", "git-lfs smudge -- %f", "git-lfs smudge --skip -- %f", "git-lfs filter-process", "git-lfs filter-process --skip"}, e.value)
}

// lfsNotes say that files of LFS are not what they would be on a developer's machine,
// whose own configuration has git-lfs run for them.
func (r *request) lfsNotes(first string) {
	filters, _ := r.repo.file("filters")
	if !slices.Contains(strings.Split(filters, "\n"), "lfs") {
		return
	}
	switch first {
	case "add", "commit", "update-index", "hash-object":
		r.note("this repository keeps files in LFS, and git-lfs is not run here: such a file is stored whole, not as a pointer; restore it before you commit, and have its change made where git-lfs is (git check-attr filter FILE tells which are)")
	case "am", "checkout", "cherry-pick", "merge", "pull", "rebase", "reset", "restore", "revert", "sparse-checkout", "stash", "submodule", "switch", "worktree":
		if r.mutating {
			r.note("this repository keeps files in LFS, and git-lfs is not run here: such a file is checked out as its pointer, of three lines (git check-attr filter FILE tells which are); git lfs pull gets them where git-lfs is")
		}
	}
}

// lfsTransfers is for lfs fetch, pull and push, whose first operand is a remote.
func lfsTransfers(r *request) error {
	ops, push := r.line.Operands(), r.cmd.name == "lfs push"
	name := nth(ops, 0)
	switch {
	case name == "" && push:
		return refusal("operand", "", "git lfs push needs a remote and a reference", "git lfs push origin BRANCH")
	case name == "":
		name = r.fetchRemote()
	}
	to, err := r.target(name, push)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(to, func(m remote) bool { return m.kind == kindFile }) {
		return r.checked(refusal("remote", name, "files in LFS are not brought to or from a folder of this host", "use a remote over https or ssh"))
	}
	r.remotes = to
	r.pinByConfig("upload-pack")
	return nil
}

// pattern is a pattern of files for .gitattributes.
func lfsPattern(v string, in argv.Scope) (string, error) { return argv.OneLine(v, in) }

const ownsHost = "writes configuration, which this policy sets by itself"

var lfsSelect = join(with(text, "-I --include", "-X --exclude"))

var lfsCommand = &command{name: "lfs", grammar: grammar(), most: -1, reads: true, then: func(r *request) error {
	return refusal("operand", "", "git lfs was called without a subcommand", "use one of: "+strings.Join(sortedNames(r.cmd.sub), ", "))
}, sub: byName(
	&command{name: "lfs version", reads: true, most: -1, grammar: grammar()},
	&command{name: "lfs env", reads: true, most: -1, grammar: grammar()},
	&command{name: "lfs track", again: true, operand: lfsPattern, grammar: grammar(bare("-v --verbose", "-d --dry-run", "--filename", "-l --lockable", "--not-lockable", "--no-excluded", "--no-modify-attrs"))},
	&command{name: "lfs untrack", again: true, operand: lfsPattern, grammar: grammar()},
	&command{name: "lfs ls-files", reads: true, operand: rev, most: 2, grammar: grammar(lfsSelect, bare("-l --long", "-s --size", "-d --debug", "-a --all", "--deleted", "-n --name-only"))},
	&command{name: "lfs status", reads: true, most: -1, grammar: grammar(bare("-p --porcelain", "-j --json"))},
	&command{name: "lfs fetch", again: true, operand: rev, then: lfsTransfers, grammar: grammar(lfsSelect, bare("-r --recent", "-a --all"), never("throws files away", "leave it out", "-p --prune"))},
	&command{name: "lfs pull", again: true, operand: rev, most: 1, then: lfsTransfers, grammar: grammar(lfsSelect)},
	&command{name: "lfs push", again: true, operand: rev, then: lfsTransfers, grammar: grammar(bare("-d --dry-run", "-a --all"), never("names objects in the place of references", "name a branch", "-o --object-id", "--stdin"))},
	&command{name: "lfs checkout", again: true, paths: true, grammar: grammar()},
	&command{name: "lfs install", refuse: ownsHost, instead: "leave it out: files in LFS are filtered without it"},
	&command{name: "lfs uninstall", refuse: ownsHost, instead: "leave it out"},
	&command{name: "lfs update", refuse: "writes hooks, which are not run here", instead: "leave it out: git push sends files in LFS without it"},
	&command{name: "lfs prune", refuse: "throws files away", instead: "leave it out"},
	&command{name: "lfs migrate", refuse: "rewrites all of history", instead: "migrate where git-lfs is"},
	&command{name: "lfs lock", refuse: "takes a file from everybody at the server", instead: "lock it where git-lfs is"},
	&command{name: "lfs unlock", refuse: "takes a lock from whoever has it", instead: "unlock it where git-lfs is"})}

// namesObject reports whether a part of the path where is the digest of a file in LFS. Each
// server names a file so in where it is sent to; other files of the server, as of a folder
// that a git without references to ask about would push to, are nobody's to write.
func namesObject(where string) bool {
	return slices.ContainsFunc(strings.Split(where, "/"), func(part string) bool {
		return len(part) == 64 && strings.Trim(part, "0123456789abcdef") == ""
	})
}

// checkLFSWire decides about a request that is not git's own: what git-lfs sends.
// It reports false where it is none of that.
func (p *policy) checkLFSWire(w *abi.Wire) (bool, *argv.Refusal) {
	where, _, _ := strings.Cut(w.Path, "?")
	if p.lfsFolder == "" {
		return false, nil
	}
	if w.Method == "POST" && strings.HasSuffix(where, "/info/lfs/objects/batch") {
		return true, nil // it asks where objects are
	}
	verifies := strings.HasSuffix(where, "/verify") && (strings.Contains(where, "/lfs/") || strings.Contains(where, "/objects/"))
	if !(w.Method == "PUT" && namesObject(where) || w.Method == "POST" && verifies) {
		return false, nil
	}
	name, args := subcommandOf(w.Call.Args), w.Call.Args
	if i := slices.Index(args, name); name == "lfs" && i+1 < len(args) {
		name += " " + args[i+1]
	}
	switch {
	case name != "push" && name != "lfs push":
		return true, refusal("push.unasked", name, "the call is git "+quote(name)+", which sends no file", "push with git push")
	case w.Call.ReadOnly:
		return true, refusal("read-only", "", "a push changes something, and this caller may only read", "")
	}
	return true, nil
}
