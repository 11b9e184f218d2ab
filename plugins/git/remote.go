package main

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// kind is how a remote is reached, by the name that git gives the protocol.
type kind string

const (
	kindHTTPS kind = "https"
	kindHTTP  kind = "http"
	kindSSH   kind = "ssh"
	kindFile  kind = "file"
)

// remote is one place that a call goes to.
type remote struct {
	kind kind
	url  string
	name string // in the configuration, or the URL on the command line
	path string // of kindFile: absolute
}

func badRemote(url, why, instead string) error {
	return refusal("remote", url, "remote "+quote(url)+" "+why, instead)
}

// parse reads one URL as git does (connect.c, url_is_local_not_ssh and
// transport.c), and allows what lies beneath the roots or is reached over
// https or ssh. base is where a relative path counts from; "" is the top of
// the working tree, which the policy does not know.
func (r *request) parse(url, base string) (remote, error) {
	const use = "use https, ssh, or a folder beneath the roots of the call"
	if url == "" || strings.ContainsFunc(url, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\uFFFD' }) {
		return remote{}, badRemote(url, "is not a URL", use)
	}
	if helper, _, ok := strings.Cut(url, "::"); ok && !strings.ContainsAny(helper, "/@[") {
		return remote{}, badRemote(url, "is reached through a program of that name", use)
	}
	if scheme, rest, ok := strings.Cut(url, "://"); ok && !strings.Contains(scheme, "/") {
		switch scheme {
		case "https", "http", "ssh":
			if scheme == "http" && !r.allowHTTP {
				return remote{}, badRemote(url, "is reached without TLS", "use https")
			}
			authority, _, _ := strings.Cut(rest, "/")
			return remote{kind: kind(scheme)}, r.host(url, authority, scheme != "ssh")
		case "file":
			// Git decodes the path, and "%2e%2e" is "..".
			if !strings.HasPrefix(rest, "/") || strings.Contains(rest, "%") {
				return remote{}, badRemote(url, "is not the URL of a folder on this host", "write its path")
			}
			return r.folder(url, rest, base)
		}
		return remote{}, badRemote(url, "is reached over "+quote(scheme), use)
	}
	if host, _, ok := strings.Cut(url, ":"); ok && !strings.Contains(host, "/") {
		return remote{kind: kindSSH}, r.host(url, host, false)
	}
	return r.folder(url, url, base)
}

// host checks [user[:password]@]host[:port].
func (r *request) host(url, authority string, password bool) error {
	user, host, ok := cutLast(authority, "@")
	if !ok {
		user, host = "", authority
	}
	user, pass, hasPass := strings.Cut(user, ":")
	if ok && (!plainName(user, "._~+%") && !(user == "" && hasPass) || hasPass && (!password || strings.ContainsAny(pass, "@ \t\"'`$\\"))) {
		return badRemote(url, "names a user in a way that this policy does not know", "leave the user out")
	}
	name, port, hasPort := cutLast(host, ":")
	if strings.HasPrefix(host, "[") {
		// An IPv6 address.
		name, port, hasPort = host, "", false
		if i := strings.LastIndex(host, "]:"); i > 0 {
			name, port, hasPort = host[:i+1], host[i+2:], true
		}
		if !strings.HasSuffix(name, "]") || strings.Trim(name[1:len(name)-1], "0123456789abcdefABCDEF:.") != "" {
			return badRemote(url, "does not name a host", "")
		}
	} else {
		if !hasPort {
			name = host
		}
		if !plainName(name, ".") {
			return badRemote(url, "does not name a host", "")
		}
	}
	if hasPort && port != "" && !isNumber(port) {
		return badRemote(url, "has a port that is not a number", "")
	}
	if len(r.hosts) > 0 && !slices.Contains(r.hosts, strings.ToLower(name)) {
		return badRemote(url, "is on a host that this tool does not talk to", "use one of: "+strings.Join(r.hosts, ", "))
	}
	return nil
}

// plainName is letters, digits, "-" and those in more, and begins with a
// letter or a digit: nothing that a program could take for a flag.
func plainName(s, more string) bool {
	alnum := func(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' }
	for i := range len(s) {
		if !alnum(s[i]) && (i == 0 || s[i] != '-' && s[i] != '_' && strings.IndexByte(more, s[i]) < 0) {
			return false
		}
	}
	return s != ""
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

// folder is a remote that is a path.
func (r *request) folder(url, p, base string) (remote, error) {
	if !r.allowFile {
		return remote{}, badRemote(url, "is a folder of this host", "use https or ssh")
	}
	// Git quotes "'" and "!" for the shell in a way of its own.
	if p[0] == '~' || p[0] == '-' || strings.ContainsAny(p, "\n\r'!") {
		return remote{}, badRemote(url, "is not a path that this policy knows", "write the whole path")
	}
	from := []string{base}
	if base == "" && !path.IsAbs(p) {
		from = r.ancestors()
	}
	m := remote{kind: kindFile}
	for i, dir := range from {
		in := r.scope
		if dir != "" {
			in.Cwd = dir
		}
		q, err := in.Path(p)
		if err != nil {
			instead := "write the whole path of a folder beneath the roots"
			if path.IsAbs(p) {
				m.path = path.Clean(p)
			}
			return m, refusal("remote.outside", url, "remote "+quote(url)+" is, or may be, outside the folders of this call", instead)
		}
		if !path.IsAbs(q) {
			q = path.Join(in.Cwd, q)
		}
		if i == 0 {
			m.path = q
		}
	}
	return m, nil
}

// repoPaths are the folders that git may mean by the path of a repository.
func repoPaths(p string) []string {
	return []string{p, p + "/.git", p + ".git", p + ".git/.git"}
}

// urls reads url, and what insteadOf makes of it: whichever of these git
// ends up with must be allowed.
func (r *request) urls(name, url, base string) ([]remote, error) {
	all := []string{url}
	for _, e := range r.repo.entries {
		if e.section == "url" && (e.name == "insteadof" || e.name == "pushinsteadof") {
			if rest, ok := strings.CutPrefix(url, e.value); ok {
				all = append(all, e.sub+rest)
			}
		}
	}
	var out []remote
	for _, u := range all {
		m, err := r.parse(u, base)
		if err := r.checked(err); err != nil {
			return nil, err
		}
		m.name, m.url = name, u
		out = append(out, m)
	}
	return out, nil
}

// target resolves the remote that a call names, or, for "", every remote
// that git could choose by itself: which one depends on the branch.
func (r *request) target(name string, forPush bool) ([]remote, error) {
	if name != "" {
		c := r.repo.remotes[name]
		if c == nil {
			if plainName(name, ".") || name == "@" {
				// There may still be a file .git/remotes/NAME.
				return nil, r.checked(refusal("remote", name, "remote "+quote(name)+" is not configured in this repository", "git remote add "+name+" URL"))
			}
			return r.urls(name, name, "")
		}
		list := c.url
		if forPush && len(c.pushurl) > 0 {
			list = c.pushurl
		}
		if len(c.url) == 0 {
			// Git then looks for a file .git/remotes/NAME, whatever else the
			// configuration says.
			return nil, r.checked(refusal("remote", name, "remote "+quote(name)+" has no URL", "git remote set-url "+name+" URL"))
		}
		var out []remote
		for _, u := range list {
			m, err := r.urls(name, u, "")
			if err != nil {
				return nil, err
			}
			out = append(out, m...)
		}
		return out, nil
	}
	names := slices.Clone(r.repo.remoteNames)
	for _, e := range r.repo.entries {
		if e.section == "branch" && (e.name == "remote" || e.name == "pushremote") || e.section == "remote" && e.sub == "" && e.name == "pushdefault" {
			if e.value != "" && !slices.Contains(names, e.value) {
				names = append(names, e.value)
			}
		}
	}
	var out []remote
	for _, n := range names {
		m, err := r.target(n, forPush)
		if err != nil {
			return nil, err
		}
		out = append(out, m...)
	}
	return out, nil
}

// checked is err, a refusal of the check of remotes, or nil where it is left out.
func (r *request) checked(err error) error {
	if r.guards.off(checkRemote) {
		return nil
	}
	return err
}

// goes says that the call goes to these remotes, and pins the program that
// answers on the other side: by flag, which counts more than anything that
// the repository says, and by configuration, of which git takes the first
// value, so that it counts where the repository says nothing.
func (r *request) goes(to []remote, flag, service string) error {
	r.remotes = to
	files, others := 0, 0
	for _, m := range to {
		switch m.kind {
		case kindFile:
			files++
		case kindSSH:
		default:
			others++
		}
	}
	switch {
	case files > 0 && files < len(to):
		return r.checked(refusal("remote", "", "this repository has remotes on this host and elsewhere, and it depends on the branch which one is meant", "name the remote"))
	case files > 0:
		r.flags = append(r.flags, flag+"="+r.pin(service))
	case others == 0 && len(to) > 0:
		r.flags = append(r.flags, flag+"=git-"+service)
	}
	r.pinByConfig(service)
	return nil
}

// pinByConfig pins, by configuration, the program on the other side of each
// remote that is on this host.
func (r *request) pinByConfig(service string) {
	key := strings.ReplaceAll(service, "-", "")
	for _, m := range r.remotes {
		if m.kind != kindFile {
			continue
		}
		// A remote named by its path has no configuration.
		if plainName(m.name, "./") {
			r.config = append(r.config, "remote."+m.name+"."+key+"="+r.pin(service))
		}
	}
}

// needsShell reports whether git will want a shell: it hands the command line
// for a remote on this host to one.
func (r *request) needsShell() bool {
	return slices.ContainsFunc(r.remotes, func(m remote) bool { return m.kind == kindFile })
}

// pinned reports whether args say what that shell shall run. A line that does
// not gets no shell.
func (r *request) pinned(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "pack="+pinStart) })
}

// noAlternateRefs has git run, in the place of a command that lists what other
// object stores have, one of its own that lists nothing. It is one word, so
// that it takes no shell.
const noAlternateRefs = "core.alternateRefsCommand=git-check-ref-format"

const pinStart = "git -c core.hooksPath=/dev/null "

// pin is the command line that git hands to the shell for a remote on this
// host. The other side would otherwise believe all that its own repository
// says: git gives it none of this side's configuration.
func (r *request) pin(service string) string {
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(pinStart, " "))
	for _, kv := range []string{
		"core.fsmonitor=false", "gc.autoDetach=false", "receive.autogc=false", "receive.denyNonFastForwards=" + strconv.FormatBool(!r.forces),
		"receive.denyDeletes=true", "receive.denyCurrentBranch=refuse", noAlternateRefs,
	} {
		b.WriteString(" -c " + shellQuote(kv))
	}
	dirs := r.ancestors()
	for _, m := range r.remotes {
		if m.kind == kindFile && m.path != "" {
			dirs = append(dirs, repoPaths(m.path)...)
		}
	}
	for i, dir := range dirs {
		if !slices.Contains(dirs[:i], dir) {
			b.WriteString(" -c " + shellQuote("safe.directory="+dir))
		}
	}
	line := b.String() + " " + service
	if !slices.Contains(r.lines, line) {
		r.lines = append(r.lines, line)
	}
	return line
}

// pinHTTP fixes how the remotes of this call are reached over https, for the
// very URL, so that nothing in a file is more specific: who answers is to be
// who the URL names. Redirects are not followed: git sends all that it has for the
// URL, an extraHeader with a token among it, to where a first request is redirected.
func (r *request) pinHTTP() []string {
	var out []string
	to := r.remotes
	if r.lfsURL != "" {
		to = append(to[:len(to):len(to)], remote{kind: kindHTTPS, url: r.lfsURL})
	}
	for _, m := range to {
		if m.kind != kindHTTPS && m.kind != kindHTTP {
			continue
		}
		scheme, rest, _ := strings.Cut(m.url, "://")
		host, where, _ := strings.Cut(rest, "/")
		if user, name, ok := cutLast(host, "@"); ok {
			user, _, _ = strings.Cut(user, ":")
			host = user + "@" + name
		}
		if len(out) == 0 { // for URLs that cannot be keys, too
			out = append(out, "http.followRedirects=false")
		}
		key := "http." + scheme + "://" + host + "/" + where
		if strings.Contains(key, "=") {
			continue // -c would end the key there
		}
		out = append(out, key+".sslVerify=true", key+".curloptResolve=", key+".followRedirects=false")
		if r.proxy != "host" {
			out = append(out, key+".proxy="+r.proxy)
			if plainName(m.name, "./") {
				out = append(out, "remote."+m.name+".proxy="+r.proxy)
			}
		}
	}
	return out
}

func shellQuote(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./=_-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func nth(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}

func clone(r *request) error {
	ops := r.line.Operands()
	if len(ops) == 0 {
		return refusal("operand", "", "clone needs a URL", "name one")
	}
	if r.leaveOut("--filter") {
		r.note("--filter is left out, and all objects are fetched: git may not fetch by itself later what it then lacks; --depth fetches less")
	}
	r.cloned(ops[0], nth(ops, 1))
	name := "origin"
	if v, ok := r.line.Get("--origin"); ok {
		name = v
	}
	to, err := r.urls(name, ops[0], path.Clean(r.scope.Cwd))
	if err != nil {
		return err
	}
	n := 0
	for i, it := range r.line.Items {
		if it.Flag != nil {
			continue
		}
		switch n++; n {
		case 1:
			if to[0].kind == kindFile && to[0].path != "" && !strings.HasPrefix(it.Value, "file:") {
				r.line.Items[i].Value = to[0].path
			}
		case 2:
			v, err := r.scope.Path(it.Value)
			if err != nil {
				return err
			}
			r.line.Items[i].Value = v
		}
	}
	return r.goes(to, "--upload-pack", "upload-pack")
}

// updateHead is a flag of fetch that changes nothing where no branch is written to, and is
// left out there.
const updateHead = "--update-head-ok"

// besidesBranches reports whether a refspec names what it writes, which is no branch.
func besidesBranches(spec string) bool {
	_, to, _ := strings.Cut(spec, ":")
	kind, _, ok := strings.Cut(strings.TrimPrefix(to, "refs/"), "/")
	return ok && strings.HasPrefix(to, "refs/") && kind != "heads" && plainName(kind, "")
}

// leaveOut takes a flag out of the line, and reports whether it was there.
func (r *request) leaveOut(name string) bool {
	there := r.line.Has(name)
	r.line.Items = slices.DeleteFunc(r.line.Items, func(it argv.Item) bool { return it.Flag != nil && it.Name == name })
	return there
}

func fetch(r *request) error {
	ops := r.line.Operands()
	if r.leaveOut(updateHead) && (len(ops) < 2 || slices.ContainsFunc(ops[1:], func(spec string) bool { return !besidesBranches(spec) })) {
		return refusal("flag.refused", updateHead, "flag "+quote(updateHead)+" writes into the branch that is checked out", "leave it out, or fetch into refs/remotes only")
	}
	if !r.line.Has("--all") && !r.line.Has("--multiple") {
		to, err := r.target(nth(ops, 0), false)
		if err != nil {
			return err
		}
		return r.goes(to, "--upload-pack", "upload-pack")
	}
	// One git for each remote, and none of them gets the flag.
	if r.line.Has("--all") {
		ops = r.repo.remoteNames
	}
	for _, name := range ops {
		to, err := r.target(name, false)
		if err != nil {
			return err
		}
		r.remotes = append(r.remotes, to...)
	}
	r.pinByConfig("upload-pack")
	return nil
}

func pull(r *request) error {
	if len(r.line.Operands()) > 2 {
		return refusal("operand", "", "pull of several branches at once is merged by a shell script", "pull one branch at a time")
	}
	if r.line.Has("--all") {
		return refusal("flag.refused", "--all", `flag "--all" fetches from several remotes for one merge`, "git fetch --all, then git merge")
	}
	if !slices.ContainsFunc(r.line.Items, func(it argv.Item) bool { return it.Name == "--rebase" }) {
		how, ok := r.setting("branch." + r.repo.branch() + ".rebase")
		if !ok {
			how, _ = r.setting("pull.rebase")
		}
		if strings.HasPrefix(how, "i") {
			return refusal("editor", "pull.rebase", "pull.rebase="+quote(how)+" opens an editor for the list of commits, and there is none here", "git pull --rebase, or git pull --no-rebase")
		}
	}
	to, err := r.target(nth(r.line.Operands(), 0), false)
	if err != nil {
		return err
	}
	return r.goes(to, "--upload-pack", "upload-pack")
}

func lsRemote(r *request) error {
	if r.line.Has("--get-url") {
		return nil
	}
	to, err := r.target(nth(r.line.Operands(), 0), false)
	if err != nil {
		return err
	}
	return r.goes(to, "--upload-pack", "upload-pack")
}

// orHead gives shortlog the revision without which it would read a log from
// its input.
func orHead(r *request) error {
	if len(r.line.Operands()) == 0 && !anyOf(r.line, "--all", "--branches", "--tags", "--remotes", "--glob", "--stdin", "--reflog") {
		r.line.Items = append([]argv.Item{{Value: "HEAD"}}, r.line.Items...)
	}
	return nil
}

// worktreeAdd checks the folder; what comes after it is a revision.
func worktreeAdd(r *request) error {
	for i, it := range r.line.Items {
		if it.Flag == nil {
			v, err := r.scope.Path(it.Value)
			if err != nil {
				return err
			}
			r.line.Items[i].Value = v
			break
		}
	}
	return nil
}

var remoteCommand = &command{name: "remote", reads: true, most: -1, grammar: grammar(bare("-v --verbose")), sub: byName(
	&command{name: "remote get-url", reads: true, most: 1, operand: rev, grammar: grammar(bare("--push", "--all"))},
	&command{name: "remote show", reads: true, operand: rev, grammar: grammar(bare("-n")), then: func(r *request) error {
		if r.line.Has("-n") {
			return nil
		}
		return r.asks(r.line.Operands())
	}},
	&command{name: "remote add", most: 2, then: remoteURL, grammar: grammar(with(rev, "-t --track", "-m --master"), bare("--tags", "--no-tags"),
		never("asks the other side", "git fetch NAME afterwards", "-f --fetch"), never("makes each push one that forces and deletes", "leave it out", "--mirror"))},
	&command{name: "remote set-url", most: 3, then: remoteURL, grammar: grammar(bare("--push", "--add", "--delete"))},
	&command{name: "remote rename", most: 2, operand: rev, grammar: grammar(bare("~--progress"))},
	&command{name: "remote remove", most: 1, operand: rev, grammar: grammar()},
	&command{name: "remote rm", most: 1, operand: rev, grammar: grammar()},
	&command{name: "remote set-head", most: 2, operand: rev, grammar: grammar(bare("-d --delete", "-a --auto")), then: func(r *request) error {
		if ops := r.line.Operands(); r.line.Has("--auto") && len(ops) == 1 {
			return r.asks(ops)
		}
		return nil
	}},
	&command{name: "remote set-branches", operand: rev, grammar: grammar(bare("--add"))},
	&command{name: "remote update", again: true, operand: rev, grammar: grammar(bare("-p --prune")), then: func(r *request) error {
		if ops := r.line.Operands(); len(ops) > 0 {
			return r.asks(ops)
		}
		return r.asks(r.repo.remoteNames)
	}},
	&command{name: "remote prune", again: true, operand: rev, grammar: grammar(bare("-n --dry-run")), then: func(r *request) error { return r.asks(r.line.Operands()) }})}

// asks says that the call goes to the remotes of these names. None of the programs
// that do so take a flag for the other side, which is pinned by configuration.
func (r *request) asks(names []string) error {
	for _, name := range names {
		to, err := r.target(name, false)
		if err != nil {
			return err
		}
		r.remotes = append(r.remotes, to...)
	}
	r.pinByConfig("upload-pack")
	return nil
}

// remoteURL checks the name and URLs that remote add and set-url write. A
// relative path would count from the top of the working tree, wherever that
// is, so it must lie beneath the roots from each folder it could be.
func remoteURL(r *request) error {
	for i, op := range r.line.Operands() {
		if i == 0 {
			if !plainName(op, "./") {
				return refusal("operand", op, "remote name "+quote(op)+" is not one that this policy knows", "use letters, digits, '.', '-' and '_'")
			}
			continue
		}
		if r.line.Has("--delete") {
			continue
		}
		if _, err := r.urls(op, op, ""); err != nil {
			return err
		}
	}
	return nil
}
