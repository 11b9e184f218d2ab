package main

import (
	"path"
	"slices"
	"strings"

	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// entry is one variable of the repository's configuration. section and name
// are in lower case, sub is as written.
type entry struct {
	section, sub, name string
	key, value         string
}

type repoConfig struct {
	entries     []entry
	submodules  []entry
	modules     []entry // of .gitmodules
	others      []entry // of repositories that are remotes
	othersErr   string
	state       []abi.ConfigEntry
	remotes     map[string]*remoteConfig
	remoteNames []string
	err         string

	// Where the call works, where its arguments say so.
	dir, gitDir, workTree string
	hooks, remoteHooks    []string
	hooksDir              string
	bare                  string
}

type remoteConfig struct{ url, pushurl, push, fetch []string }

func newRepoConfig(c *abi.RepoConfig) *repoConfig {
	rc := &repoConfig{remotes: make(map[string]*remoteConfig)}
	if c == nil {
		rc.err = "the host has not read it"
		return rc
	}
	rc.err = c.Error
	rc.entries = make([]entry, 0, len(c.Entries))
	rc.state, rc.othersErr = c.State, c.RemoteError
	rc.dir, rc.gitDir, rc.workTree = c.Dir, c.GitDir, c.WorkTree
	rc.bare = c.Bare
	rc.hooks, rc.remoteHooks, rc.hooksDir = c.Hooks, c.RemoteHooks, c.HooksDir
	for _, e := range c.Submodules {
		en := splitKey(e.Key)
		en.value = e.Value
		rc.submodules = append(rc.submodules, en)
	}
	for _, e := range c.Modules {
		en := splitKey(e.Key)
		en.value = e.Value
		rc.modules = append(rc.modules, en)
	}
	for _, e := range c.Remotes {
		en := splitKey(e.Key)
		en.value = e.Value
		rc.others = append(rc.others, en)
	}
	for _, e := range c.Entries {
		en := splitKey(e.Key)
		en.value = e.Value
		rc.entries = append(rc.entries, en)
		if en.section != "remote" || en.sub == "" {
			continue
		}
		m := rc.remotes[en.sub]
		if m == nil {
			m = &remoteConfig{}
			rc.remotes[en.sub] = m
			rc.remoteNames = append(rc.remoteNames, en.sub)
		}
		switch en.name {
		case "url":
			m.url = append(m.url, e.Value)
		case "pushurl":
			m.pushurl = append(m.pushurl, e.Value)
		case "push":
			m.push = append(m.push, e.Value)
		case "fetch":
			m.fetch = append(m.fetch, e.Value)
		}
	}
	return rc
}

func splitKey(key string) entry {
	e := entry{key: key}
	rest := key
	if i := strings.IndexByte(rest, '.'); i >= 0 {
		e.section, rest = rest[:i], rest[i+1:]
	}
	if i := strings.LastIndexByte(rest, '.'); i >= 0 {
		e.sub, rest = rest[:i], rest[i+1:]
	}
	e.section, e.name = strings.ToLower(e.section), strings.ToLower(rest)
	return e
}

// pattern is the key with "*" for the subsection.
func (e entry) pattern() string {
	if e.sub != "" {
		return e.section + ".*." + e.name
	}
	return e.section + "." + e.name
}

// get answers the last value of key.
func (c *repoConfig) get(key string) (string, bool) {
	for _, e := range slices.Backward(c.entries) {
		if e.key == key {
			return e.value, true
		}
	}
	return "", false
}

// checkRepo refuses a repository whose configuration would make this call
// run a program or leave the roots, and no -c could keep it from that.
func (r *request) checkRepo() error {
	switch r.cmd.name {
	case "version", "init":
		return nil
	}
	if r.repo.err != "" {
		return refusal("repo-config", "", "the repository's configuration cannot be trusted: "+r.repo.err, "fix it in an editor")
	}
	// To look at the configuration and to mend it must stay possible.
	first, _, _ := strings.Cut(r.cmd.name, " ")
	network := len(r.remotes) > 0 || r.lfsFolder != "" && r.keepsLFS() && slices.Contains(filtering, first)
	if first == "config" {
		return r.hides()
	}
	if first == "remote" && !network {
		return nil
	}
	for _, e := range r.repo.entries {
		why := r.hostile(e, first, network)
		if why == "" {
			continue
		}
		return refusal("repo-config", e.key, "the repository's configuration sets "+quote(e.key)+", which "+why, "remove it: git config --unset-all "+e.key)
	}
	for _, e := range r.repo.submodules {
		if why := r.hostile(e, first, network && first == "submodule"); why != "" {
			return refusal("repo-config", e.key, "the configuration of a submodule sets "+quote(e.key)+", which "+why, "remove it: git config --unset-all "+e.key+", in the submodule")
		}
	}
	if err := r.checkState(first); err != nil {
		return err
	}
	if r.needsShell() {
		if r.repo.othersErr != "" {
			return refusal("repo-config", "", "a remote of this call cannot be trusted: "+r.repo.othersErr, "fix it, or name another")
		}
		for _, e := range r.repo.others {
			if why := r.hostile(e, first, false); why != "" {
				return refusal("repo-config", e.key, "the configuration of a remote sets "+quote(e.key)+", which "+why, "remove it: git config --unset-all "+e.key+", in the remote")
			}
		}
	}
	for _, name := range r.repo.remoteNames {
		if network && !plainName(name, "./") {
			return refusal("repo-config", "remote."+name, "the repository has a remote of the name "+quote(name), "give it a name of letters, digits, '.', '-' and '_'")
		}
	}
	return nil
}

// hides refuses to set an alias in the place of a subcommand, which the repository
// could then not be used with.
func (r *request) hides() error {
	key := nth(r.line.Operands(), 0)
	if e := splitKey(key); r.mutating && e.section == "alias" && commands[e.name] != nil && !anyOf(r.line, "--unset", "--unset-all", "--edit") {
		return refusal("config.key", key, "there is a subcommand "+quote(e.name)+", which git does not let an alias replace", "give the alias another name")
	}
	return nil
}

// hostile says what is wrong with a variable for this call, whose subcommand
// begins with first and which may go to a remote, or "". It sees thousands of variables of branches in a
// large repository, so it looks for those that are known first.
func (r *request) hostile(e entry, first string, network bool) string {
	names, isKnown := known[e.section]
	if e.section == "submodule" && e.name == "update" && first == "submodule" && strings.HasPrefix(e.value, "!") {
		return "runs a program"
	}
	if e.section == "tar" && first == "archive" && e.name != "umask" {
		return "runs a program"
	}
	if isKnown && names[e.name] && !special[e.name] {
		return ""
	}
	if e.section == "alias" {
		if e.name == first || strings.HasPrefix(e.key, "alias."+first+".") {
			return "gives the subcommand another meaning"
		}
		return ""
	}
	if e.section == "remotes" {
		if network {
			return "stands for several remotes"
		}
		return ""
	}
	if e.section == "lfs" && r.lfsFolder != "" {
		return hostileLFS(e)
	}
	if ownFilter(e) {
		return ""
	}
	pattern := e.pattern()
	if why, ok := always[pattern]; ok {
		return why
	}
	if why, ok := onNetwork[pattern]; ok {
		if network {
			return why
		}
		return ""
	}
	if slices.Contains(pathKeys, pattern) {
		return r.leads(e, pattern)
	}
	switch pattern {
	case "pull.twohead", "pull.octopus":
		for _, s := range strings.Fields(e.value) {
			if _, err := strategy(s, argv.Scope{}); err != nil {
				return "names a program for merging"
			}
		}
		return ""
	case "url.*.insteadof", "url.*.pushinsteadof":
		if !network {
			return ""
		}
		// What begins so is reached over https or ssh, whatever follows.
		if m, err := r.parse(e.sub+"x", "/"); err != nil || m.kind == kindFile || m.kind == kindHTTPS && !strings.Contains(strings.TrimPrefix(e.sub, "https://"), "/") {
			return "leads remotes elsewhere"
		}
		return ""
	}
	if !isKnown {
		if slices.Contains(unused, e.section) || !slices.Contains(sections, e.section) {
			return "" // Not git's, or of commands that are refused anyway.
		}
		return "this policy does not know"
	}
	if names["*"] || names[e.name] {
		return ""
	}
	if network || !strings.Contains(" http remote credential ", " "+e.section+" ") {
		return "this policy does not know"
	}
	return ""
}

// leads says where the path of an entry leads, or "" where a call may read it.
func (r *request) leads(e entry, pattern string) string {
	if e.value == "" || e.value == "true" {
		return ""
	}
	if v := e.value; v[0] == '~' || strings.HasPrefix(v, "%(") {
		return "leads out of the folders of this call"
	}
	// A relative core.worktree counts from the git directory, which the
	// host knows: it has refused one that leaves the roots.
	if path.IsAbs(e.value) {
		if _, err := r.scope.Path(e.value); err != nil {
			return "leads out of the folders of this call"
		}
	} else if pattern != "core.worktree" && slices.Contains(strings.Split(e.value, "/"), "..") {
		return "may lead out of the folders of this call"
	}
	return ""
}

// always are variables that run a program, or read a file of any name, in
// ways that forced configuration does not override. "*" stands for any
// subsection, and a variable without one is listed by itself.
var always = map[string]string{
	"filter.*.clean":             "runs a program on every file",
	"filter.*.smudge":            "runs a program on every file",
	"filter.*.process":           "runs a program on every file",
	"diff.external":              "runs a program for every difference",
	"diff.*.command":             "runs a program for every difference",
	"diff.*.textconv":            "runs a program for every difference",
	"merge.*.driver":             "runs a program for every merge",
	"merge.default":              "chooses a program for every merge",
	"core.alternaterefscommand":  "runs a program",
	"core.gitproxy":              "runs a program",
	"gpg.ssh.defaultkeycommand":  "runs a program",
	"gpg.*.defaultkeycommand":    "runs a program",
	"trailer.*.command":          "runs a program for every commit message",
	"trailer.*.cmd":              "runs a program for every commit message",
	"interactive.difffilter":     "runs a program",
	"gc.recentobjectshook":       "runs a program",
	"branch.*.mergeoptions":      "adds flags to each merge",
	"merge.*.recursive":          "chooses a program for every merge",
	"fsck.skiplist":              "reads a file of any name, and shows what it holds",
	"fetch.fsck.skiplist":        "reads a file of any name, and shows what it holds",
	"receive.fsck.skiplist":      "reads a file of any name, and shows what it holds",
	"fetch.*.skiplist":           "reads a file of any name, and shows what it holds",
	"receive.*.skiplist":         "reads a file of any name, and shows what it holds",
	"uploadpack.packobjectshook": "runs a program",
	"hook.*.command":             "runs a program",
}

// onNetwork are variables that matter only to a call that goes to a remote.
var onNetwork = map[string]string{
	"remote.*.uploadpack":       "names the program that runs on the other side",
	"remote.*.receivepack":      "names the program that runs on the other side",
	"remote.*.vcs":              "names the program that speaks to the other side",
	"remote.*.proxy":            "leads the connection elsewhere",
	"remote.*.proxyauthmethod":  "is about a proxy",
	"remote.*.serveroption":     "sends a string of any kind to the server",
	"core.askpass":              "runs a program that asks for a password",
	"fetch.bundleuri":           "fetches from elsewhere",
	"fetch.bundlecreationtoken": "fetches from elsewhere",
	"clone.bundleuri":           "fetches from elsewhere",
}

// pathKeys name files and folders.
var pathKeys = []string{
	"core.worktree", "core.attributesfile", "core.excludesfile", "diff.orderfile", "mailmap.file", "blame.ignorerevsfile", "commit.template",
	"format.outputdirectory", "format.signaturefile", "gpg.ssh.allowedsignersfile", "gpg.ssh.revocationfile", "gpg.*.allowedsignersfile", "gpg.*.revocationfile",
}

// known are the variables that are understood, by section; "*" is all of
// them. They are harmless, or forced (core.hooksPath), or of no use to the
// subcommands that are allowed (core.editor).
var known = sets(map[string]string{
	"core": "abbrev autocrlf bare bigfilethreshold checkroundtripencoding checkstat commentchar commentstring commitgraph compression createobject deltabasecachelimit " +
		"disambiguate editor eol filemode filesreflocktimeout fscache fsmonitor fsmonitorhookversion fsync fsyncmethod fsyncobjectfiles hidedotfiles hookspath ignorecase ignorestat logallrefupdates " +
		"longpaths loosecompression multipackindex notesref packedgitlimit packedgitwindowsize packedrefstimeout pager precomposeunicode preferredsymlinkrefs prefersymlinkrefs preloadindex " +
		"protecthfs protectntfs quotepath repositoryformatversion restrictinheritedhandles safecrlf sharedrepository sparsecheckout sparsecheckoutcone splitindex sshcommand symlinks trustctime unsetenvvars " +
		"untrackedcache usereplacerefs warnambiguousrefs whitespace maxtreedepth alternaterefsprefixes lockfilepid",
	"remote":     "url pushurl fetch push mirror prune prunetags tagopt skipdefaultupdate skipfetchall promisor partialclonefilter pushdefault gh-resolved glab-resolved followremotehead lfsurl lfspushurl",
	"branch":     "remote pushremote merge rebase description autosetuprebase autosetupmerge sort vscode-merge-base gh-merge-base github-pr-owner-number github-pr-base-branch",
	"http":       "postbuffer version lowspeedlimit lowspeedtime maxrequests minsessions useragent",
	"diff":       "algorithm autorefreshindex colormoved colormovedws context dirstat ignoresubmodules indentheuristic interhunkcontext mnemonicprefix noprefix dstprefix srcprefix relative renamelimit renames statgraphwidth statnamewidth submodule suppressblankempty tool guitool wordregex wserrorhighlight trustexitcode nopretty binary cachetextconv xfuncname funcname",
	"merge":      "autostash branchdesc conflictstyle defaulttoupstream directoryrenames ff guitool log name renamelimit renames renormalize stat suppressdest tool verbosity verifysignatures",
	"fetch":      "prune prunetags all output parallel writecommitgraph showforcedupdates negotiationalgorithm recursesubmodules unpacklimit fsckobjects",
	"pull":       "ff rebase",
	"push":       "default autosetupremote followtags gpgsign negotiate recursesubmodules useforceifincludes pushoption usebitmaps",
	"rebase":     "*",
	"commit":     "cleanup gpgsign status verbose",
	"tag":        "forcesignannotated gpgsign sort",
	"gpg":        "format program mintrustlevel",
	"submodule":  "active alternateerrorstrategy alternatelocation branch fetchjobs fetchrecursesubmodules ignore propagatebranches recurse update url",
	"extensions": "noop objectformat worktreeconfig refstorage preciousobjects partialclone compatobjectformat relativeworktrees",
	"advice":     "*", "apply": "*", "author": "*", "blame": "*", "checkout": "*", "clean": "*", "color": "*", "column": "*", "commitgraph": "*", "committer": "*",
	"feature": "*", "format": "pretty notes attach cc coverfromdescription coverletter encodeemailheaders filenamemaxlength forceinbodyfrom from headers mboxrd noprefix numbered signature signoff subjectprefix thread to useautobase", "gc": "*", "grep": "*", "gui": "*", "i18n": "*", "include": "*", "includeif": "*", "index": "*", "init": "defaultbranch defaultobjectformat defaultrefformat",
	"log": "*", "lsrefs": "*", "maintenance": "*", "mailmap": "blob", "notes": "*", "pack": "*", "pretty": "*", "receive": "*", "repack": "*", "rerere": "*", "reset": "*",
	"revert": "*", "sequence": "editor", "showbranch": "*", "sparse": "*", "splitindex": "*", "stash": "*", "status": "*", "transfer": "*", "user": "*",
	"trailer": "ifexists ifmissing key separators where", "uploadpack": "*", "url": "insteadof pushinsteadof", "versionsort": "*", "worktree": "*", "fsck": "*",
	"filter": "required", "interactive": "singlekey", "ssh": "variant", "pager": "*", "am": "*", "attr": "tree",
	"credential": "username usehttppath", "protocol": "version", "promisor": "quiet", "clone": "defaultremotename rejectshallow",
})

// special are names that some rule is about, in whatever section: they are
// never waved through as known.
var special = func() map[string]bool {
	m := map[string]bool{"twohead": true, "octopus": true, "insteadof": true, "pushinsteadof": true}
	name := func(pattern string) string { return pattern[strings.LastIndexByte(pattern, '.')+1:] }
	for pattern := range always {
		m[name(pattern)] = true
	}
	for pattern := range onNetwork {
		m[name(pattern)] = true
	}
	for _, pattern := range pathKeys {
		m[name(pattern)] = true
	}
	return m
}()

func sets(lists map[string]string) map[string]map[string]bool {
	m := make(map[string]map[string]bool)
	for section, list := range lists {
		m[section] = make(map[string]bool)
		for name := range strings.FieldsSeq(list) {
			m[section][name] = true
		}
	}
	return m
}

// unused are sections of commands that are refused, or that count only
// where a repository cannot set them.
var unused = []string{"browser", "completion", "credentialcache", "credentialstore", "difftool", "fastimport", "gitcvs", "gitweb", "guitool", "help", "imap", "instaweb",
	"man", "mergetool", "safe", "sendemail", "svn", "svn-remote", "tar", "trace2", "web", "alias", "uploadarchive", "bitmappseudomerge", "mailinfo", "windows"}

// sections are those that git itself reads. A variable of any other section
// is some program's own, and nothing to git.
var sections = []string{"add", "bundle", "core", "daemon", "fsmonitor", "hook", "http", "remote", "url", "sendpack", ""}

// neutralise empties, for this call, each program that the repository's
// configuration names. With the check of that configuration in place there
// is none; it is a second fence for a call that gets a shell.
func (r *request) neutralise() []string {
	var out []string
	for _, e := range r.repo.entries {
		if e.section == "filter" && (e.name == "clean" || e.name == "smudge" || e.name == "process") && !strings.ContainsAny(e.sub, "=\n") {
			out = append(out, e.key+"=", "filter."+e.sub+".required=false")
		}
	}
	return out
}

// settable are the variables that a call may set with -c, and in the repository with
// git config: who commits, how things look, and how git goes about what it was told. None
// of them names a program, a file, or another place.
var settable = []string{"user.name", "user.email", "user.useConfigOnly", "author.name", "author.email", "committer.name", "committer.email", "init.defaultBranch",
	"core.quotePath", "core.abbrev", "core.autocrlf", "core.safecrlf", "core.eol", "core.whitespace", "core.commentChar", "core.ignoreCase", "core.fileMode", "core.symlinks", "core.trustctime", "core.checkStat", "core.ignoreStat",
	"core.preloadIndex", "core.untrackedCache", "core.splitIndex", "core.bigFileThreshold", "core.logAllRefUpdates", "core.compression", "core.looseCompression", "core.sparseCheckout", "core.sparseCheckoutCone", "core.warnAmbiguousRefs",
	"core.commitGraph", "core.multiPackIndex", "core.precomposeUnicode", "core.longpaths",
	"color.ui", "column.ui", "column.branch", "column.status", "column.tag", "i18n.commitEncoding", "i18n.logOutputEncoding",
	"log.date", "log.decorate", "log.abbrevCommit", "log.follow", "log.mailmap", "log.graphColors", "log.showRoot", "log.excludeDecoration", "log.initialDecorationSet", "log.diffMerges",
	"diff.noprefix", "diff.mnemonicPrefix", "diff.renames", "diff.renameLimit", "diff.algorithm", "diff.context", "diff.interHunkContext", "diff.indentHeuristic", "diff.colorMoved", "diff.colorMovedWS", "diff.dirstat", "diff.relative", "diff.statGraphWidth", "diff.statNameWidth",
	"diff.suppressBlankEmpty", "diff.wordRegex", "diff.wsErrorHighlight", "diff.srcPrefix", "diff.dstPrefix",
	"merge.ff", "merge.conflictStyle", "merge.renames", "merge.renameLimit", "merge.directoryRenames", "merge.renormalize", "merge.stat", "merge.log", "merge.branchdesc", "merge.suppressDest", "merge.autoStash", "merge.verbosity", "merge.defaultToUpstream",
	"pull.rebase", "pull.ff", "push.default", "push.autoSetupRemote", "push.useForceIfIncludes", "fetch.prune", "fetch.pruneTags", "fetch.parallel", "fetch.output", "fetch.writeCommitGraph", "fetch.showForcedUpdates", "fetch.unpackLimit", "fetch.fsckObjects", "transfer.fsckObjects", "transfer.unpackLimit",
	"rebase.autoStash", "rebase.autoSquash", "rebase.updateRefs", "rebase.missingCommitsCheck", "rebase.abbreviateCommands", "rebase.stat", "rebase.forkPoint", "rebase.backend", "rebase.rebaseMerges",
	"commit.verbose", "commit.status", "commit.cleanup", "tag.sort", "branch.sort", "branch.autoSetupMerge", "branch.autoSetupRebase", "versionsort.suffix", "versionsort.prereleaseSuffix", "checkout.guess", "checkout.defaultRemote", "checkout.workers", "checkout.thresholdForParallelism", "clean.requireForce",
	"status.short", "status.branch", "status.showUntrackedFiles", "status.relativePaths", "status.showStash", "status.aheadBehind", "status.displayCommentPrefix", "status.renames", "status.renameLimit",
	"stash.showPatch", "stash.showStat", "stash.showIncludeUntracked", "apply.whitespace", "apply.ignoreWhitespace", "am.keepcr", "am.threeWay", "blame.blankBoundary", "blame.coloring", "blame.date", "blame.showEmail", "blame.showRoot",
	"grep.lineNumber", "grep.column", "grep.fullName", "grep.patternType", "grep.extendedRegexp", "grep.threads", "notes.rewriteMode", "notes.mergeStrategy", "notes.rewriteRef", "notes.displayRef", "rerere.enabled", "rerere.autoUpdate", "reset.quiet", "revert.reference",
	"format.numbered", "format.signOff", "format.subjectPrefix", "format.coverLetter", "format.useAutoBase", "format.noprefix", "format.mboxrd", "format.encodeEmailHeaders", "showBranch.default", "sparse.expectFilesOutsideOfPatterns", "worktree.guessRemote",
	"gc.auto", "gc.autoPackLimit", "gc.packRefs", "gc.writeCommitGraph", "index.threads", "index.version", "index.recordEndOfIndexEntries", "index.recordOffsetTable", "index.sparse", "pack.threads", "pack.window", "pack.depth", "pack.compression", "pack.writeBitmaps", "protocol.version", "feature.manyFiles"}

// settableSections are the sections of which every variable may be set so: colours and
// advice.
var settableSections = []string{"advice", "color"}

// forcedSettings are variables that a call may set with -c to a value which is forced
// anyway, or comes to the same: scripts say so to be asked nothing.
var forcedSettings = map[string][]string{
	"core.editor": idleEditors, "sequence.editor": idleEditors, "core.pager": {"cat", ""}, "pager.log": {"false"}, "pager.diff": {"false"}, "pager.show": {"false"}, "pager.branch": {"false"}, "pager.tag": {"false"},
	"core.hookspath": {"/dev/null"}, "core.fsmonitor": {"false", "", "0"}, "core.sshcommand": {"ssh"}, "core.askpass": {"", "true", "echo"}, "credential.helper": {""}, "credential.interactive": {"false", "never"},
	"commit.gpgsign": nos, "tag.gpgsign": nos, "tag.forcesignannotated": nos, "push.gpgsign": nos, "merge.verifysignatures": nos, "log.showsignature": nos,
	"submodule.recurse": nos, "fetch.recursesubmodules": nos, "push.recursesubmodules": {"no"}, "diff.ignoresubmodules": {"dirty"}, "diff.submodule": {"short"}, "status.submodulesummary": nos,
	"gc.autodetach": nos, "maintenance.autodetach": nos, "maintenance.auto": nos, "init.templatedir": {""}, "diff.external": {""}, "core.usebuiltinfsmonitor": nos, "protocol.file.allow": {"always", "user"},
}

var (
	nos = []string{"false", "no", "off", "0"}
	// idleEditors change nothing.
	idleEditors = []string{":", "true", "/bin/true", "/usr/bin/true"}
)

// set takes a value of -c that checkSetting has admitted.
func (r *request) set(setting string) {
	key, _, _ := strings.Cut(setting, "=")
	key = strings.ToLower(key)
	if _, forced := forcedSettings[key]; !forced && key != "safe.directory" {
		r.config = append(r.config, setting)
		return
	}
	r.asides = append(r.asides, setting) // what is forced comes behind it
	switch {
	case key == "core.pager":
		r.noPager = true
	case strings.HasPrefix(key, "pager."), key == "maintenance.auto":
		r.config = append(r.config, setting)
	}
}

// says reports whether the call itself sets the variable, to what is forced.
func (r *request) says(key string) bool {
	return slices.ContainsFunc(r.asides, func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return strings.EqualFold(k, key)
	})
}

// setting is KEY=VALUE of a variable that a call may set.
func setting(v string, _ argv.Scope) (string, error) {
	key, value, _ := strings.Cut(v, "=")
	if !mayset(key, value) {
		return "", refusal("flag.value", key, "flag \"--config\" sets "+quote(key)+", which this policy does not let a call set", "set it with git config afterwards, where it may be set, or in an editor")
	}
	return v, nil
}

func mayset(key, value string) bool {
	if strings.ContainsAny(value, "\x00\n") {
		return false
	}
	e := splitKey(key)
	return maySet[strings.ToLower(key)] || e.sub == "" && slices.Contains(settableSections, e.section) && plainName(e.name, "") || e.section == "color" && plainName(e.sub, "") && plainName(e.name, "")
}

// maySet has settable in lower case.
var maySet = func() map[string]bool {
	m := map[string]bool{}
	for _, key := range settable {
		m[strings.ToLower(key)] = true
	}
	return m
}()

// writable are the variables that git config may set in the repository: those
// above, and those that tie branches to remotes.
func (r *request) writable(key, value string) bool {
	if mayset(key, value) {
		return true
	}
	e := splitKey(key)
	e.value = value
	if e.name != "hookspath" && known[e.section] != nil && known[e.section][e.name] && slices.Contains(forcedSettings[strings.ToLower(key)], strings.ToLower(value)) {
		return true
	}
	switch e.section {
	case "branch":
		return slices.Contains([]string{"remote", "pushremote", "merge", "rebase", "description"}, e.name) && (e.name != "remote" && e.name != "pushremote" || plainName(value, "./") || value == ".")
	case "remote":
		return e.sub != "" && slices.Contains([]string{"fetch", "prune", "prunetags", "tagopt"}, e.name) && plainName(e.sub, "./")
	case "alias":
		_, why := splitAlias(value)
		return e.sub == "" && plainName(e.name, "") && why == "" && !strings.HasPrefix(strings.TrimLeft(value, " \t\n"), "!")
	case "lfs":
		return hostileLFS(e) == ""
	case "remotes", "url", "http", "credential":
		return false
	}
	return !slices.Contains(sections, e.section) && known[e.section] == nil && !slices.Contains(unused, e.section) && plainName(e.section, "")
}

// secret are sections that may hold passwords, of the host's own
// configuration too: those values are the repository's only.
var secret = []string{"http", "credential", "url", "remote", "sendemail", "imap"}

// configFile is for variables in a file that the call names. Of .gitmodules it may
// set what git submodule sets too, each judged when it counts.
func (r *request) configFile(key, value, file string) error {
	l, e := r.line, splitKey(key)
	if l.Has("--global") {
		return refusal("operand", "--global", "flags \"--global\" and \"--file\" name two files", "leave one of them out")
	}
	if anyOf(l, "--list", "--get", "--get-all", "--get-regexp") || value == "" && !anyOf(l, "--add", "--replace-all", "--unset", "--unset-all", "--edit") {
		r.mutating, r.idempotent = false, true
		r.stdin = r.stdin || file == "-"
		return nil
	}
	module := path.Base(file) == ".gitmodules" && e.section == "submodule" && (e.name != "update" || !strings.HasPrefix(value, "!"))
	if !anyOf(l, "--unset", "--unset-all", "--edit") && !module && !r.writable(key, value) {
		return refusal("config.key", key, "variable "+quote(key)+" is not one that a call may set", "who commits and how things look may be set (user.name, color.ui); the rest in an editor")
	}
	return nil
}

var configCommand = &command{name: "config", then: config, most: 3, grammar: grammar(
	bare("--get", "--get-all", "--get-regexp", "-l --list", "--local", "--global", "--worktree", "--add", "--replace-all", "--unset", "--unset-all", "-z --null", "--name-only",
		"--bool", "--int", "--bool-or-int", "--bool-or-str", "~--includes", "--show-origin", "--show-scope", "--fixed-value"),
	with(argv.OneOf("bool", "int", "bool-or-int", "bool-or-str", "color", "expiry-date"), "--type"), with(text, "--default"),
	edits("set one variable at a time", "-e --edit"), with(input, "-f --file"), with(rev, "--blob"),
	never("is about the host", "leave it out", "--system"), never("changes several variables at once", "set them one by one", "--rename-section", "--remove-section"),
	bare("--get-color", "--get-colorbool"), never("shows values that may be secret", "use --get", "--get-urlmatch"))}

func config(r *request) error {
	l, ops := r.line, r.line.Operands()
	key := nth(ops, 0)
	if file, ok := l.Get("--file"); ok || l.Has("--blob") {
		return r.configFile(key, nth(ops, 1), file)
	}
	switch {
	case anyOf(l, "--get-color", "--get-colorbool"):
		if section := splitKey(key).section; key != "" && section != "color" {
			return refusal("flag.refused", "--get-color", "flag \"--get-color\" shows values that may be secret", "name a variable of color, or use --get")
		}
		r.mutating, r.idempotent = false, true
		return nil
	case l.Has("--edit"):
		if l.Has("--global") {
			return refusal("config.host", "--global", "the host's own configuration is not changed by a call", "use --local")
		}
	case l.Has("--list"), l.Has("--get-regexp"):
		if l.Has("--global") {
			return refusal("config.host", "--global", "the host's own configuration may hold secrets", "use --local")
		}
		if !l.Has("--worktree") && !l.Has("--local") {
			// What is forced for this call and what the host adds is not the
			// repository's.
			r.flags = append(r.flags, "--local")
		}
		r.mutating, r.idempotent = false, true
		return nil
	case anyOf(l, "--get", "--get-all"), len(ops) == 1 && !anyOf(l, "--add", "--replace-all", "--unset", "--unset-all"):
		r.mutating, r.idempotent = false, true
		if slices.Contains(secret, splitKey(key).section) {
			if l.Has("--global") {
				return refusal("config.host", key, "the host's own configuration may hold secrets", "use --local")
			}
			if !l.Has("--worktree") && !l.Has("--local") {
				r.flags = append(r.flags, "--local")
			}
		}
		if len(ops) == 0 {
			return refusal("operand", "", "git config needs the name of a variable", "name one")
		}
		return nil
	case l.Has("--global"):
		return refusal("config.host", "--global", "the host's own configuration is not changed by a call", "use --local")
	case len(ops) == 0:
		return refusal("operand", "", "git config needs the name of a variable", "name one")
	case anyOf(l, "--unset", "--unset-all"):
		r.idempotent = true
	case !r.writable(key, nth(ops, 1)):
		return refusal("config.key", key, "variable "+quote(key)+" is not one that a call may set", "who commits and how things look may be set (user.name, color.ui), and branch.NAME.remote and merge; the rest in an editor")
	}
	if !l.Has("--local") && !l.Has("--worktree") {
		r.flags = append(r.flags, "--local")
	}
	return nil
}
