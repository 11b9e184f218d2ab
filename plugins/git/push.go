package main

import (
	"path"
	"slices"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// push writes out what is pushed where: git is given the name of the remote
// and each refspec as SRC:DST, so that nothing in the repository (remote.*.push,
// remote.*.mirror, push.default, a branch that is a link to another) has a say
// in it, not even when it changes while git runs.
func push(r *request) error {
	ops := r.line.Operands()
	force, err := r.forcing(ops)
	if err != nil {
		return err
	}
	name := nth(ops, 0)
	if name == "" {
		name = r.pushRemote()
	}
	if strings.HasPrefix(name, "-") {
		return r.checked(refusal("remote", name, "remote "+quote(name)+" looks like a flag", "git remote rename it"))
	}
	to, err := r.target(name, true)
	if err != nil {
		return err
	}
	for _, m := range to {
		if plainName(m.name, "./") {
			r.config = append(r.config, "remote."+m.name+".mirror=false")
		}
	}
	if err := r.goes(to, "--receive-pack", "receive-pack"); err != nil {
		return err
	}
	if r.guards.off(checkPush) {
		return nil
	}
	specs, err := r.refspecs(name, ops, force)
	if err != nil {
		return err
	}
	// The flags stay; those that stand for refspecs are written as such, and so
	// is what each refspec is forced by.
	items := slices.DeleteFunc(r.line.Items, func(it argv.Item) bool {
		return it.Flag == nil || it.Name == "--all" || it.Name == "--branches" || it.Name == "--tags" || it.Name == "--force" || it.Name == "--force-with-lease"
	})
	for _, lease := range force.written {
		items = append(items, argv.Item{Flag: leaseFlag, Name: "--force-with-lease", Value: lease, HasValue: true})
	}
	for _, op := range append([]string{name}, specs...) {
		items = append(items, argv.Item{Value: op})
	}
	r.line.Items, r.line.Dashes = items, false
	return nil
}

// everything is what a flag stands for, without names that git and others
// would take for those of other references.
func everything(dir string) []string {
	all := dir + "*"
	out := []string{all + ":" + all, "^" + dir + "HEAD"}
	for _, prefix := range misleading {
		out = append(out, "^"+dir+prefix+"*")
	}
	return out
}

// misleading are beginnings of branches and tags that can be taken for other
// references: refs/heads/refs/heads/main is one meaning of refs/heads/main.
var misleading = []string{"refs/", "heads/", "tags/", "remotes/"}

// forcing is what a push says of forcing. written are the leases of its
// refspecs as they are written out.
type forcing struct {
	plain   bool // --force
	lease   bool // --force-with-lease, of all that is pushed
	leases  []string
	used    []string // those of leases that a refspec was for
	written []string
}

var leaseFlag = &argv.Flag{Names: "--force-with-lease", Value: argv.Text, Optional: true}

const rewrites = "rewrites what others have"

// forcing reads the flags that force, and refuses them where the operator names
// no branch that may be rewritten.
func (r *request) forcing(ops []string) (*forcing, error) {
	f := &forcing{}
	for _, it := range r.line.Items {
		switch {
		case it.Flag == nil:
			r.forces = r.forces || strings.HasPrefix(it.Value, "+")
		case it.Name == "--force":
			f.plain = !it.Negated
		case it.Name == "--force-with-lease" && it.Negated:
			f.lease, f.leases = false, nil
		case it.Name == "--force-with-lease" && it.Value == "":
			f.lease = true
		case it.Name == "--force-with-lease":
			f.leases = append(f.leases, it.Value)
		}
	}
	flag := ""
	switch {
	case f.plain:
		flag = "--force"
	case f.lease || len(f.leases) > 0:
		flag = "--force-with-lease"
	case r.line.Has("--force-if-includes") && len(r.policy.force) == 0:
		flag = "--force-if-includes"
	}
	r.forces = (r.forces || flag != "") && len(r.policy.force) > 0
	if r.guards.off(checkPush) || flag == "" {
		return f, nil
	}
	if len(r.policy.force) == 0 {
		return nil, refusal("flag.refused", flag, "flag "+quote(flag)+" "+rewrites, "push without it, or to a branch of another name")
	}
	if anyOf(r.line, "--all", "--branches", "--tags") {
		return nil, refusal("push.force", flag, "flag "+quote(flag)+" would rewrite more than one branch", "name the branch")
	}
	return f, nil
}

// forceRefspec decides whether the push may rewrite the branch of that name at
// the remote, and answers what stands before its refspec: "+" or nothing.
func (r *request) forceRefspec(f *forcing, remote, spec, name string, isTag, plus bool) (string, error) {
	lease, leased := "", false
	full := "refs/heads/" + name
	for _, l := range f.leases {
		if ref, _, _ := strings.Cut(l, ":"); shortRef(ref) == name && !isTag {
			f.used = append(f.used, l)
			lease, leased = l[len(ref):], true
		}
	}
	if !f.plain && !plus && !f.lease && !leased {
		return "", nil
	}
	allowed := func(patterns []string) bool {
		return !isTag && slices.ContainsFunc(patterns, func(p string) bool {
			ok, err := path.Match(p, name)
			return ok && err == nil
		})
	}
	const instead = "push without force, or to a branch of another name"
	if !allowed(r.policy.force) {
		if len(r.policy.force) == 0 {
			return "", forced(spec)
		}
		return "", refusal("push.force", spec, quote(name)+" is not one of the branches that may be rewritten: "+strings.Join(r.policy.force, ", "), instead)
	}
	switch {
	case leased && lease != "":
	case f.lease || leased:
		if !r.tracked(remote, full) {
			return "", refusal("push.force", spec, "nothing here follows branch "+quote(name)+" of "+quote(remote)+", so that a lease has nothing to compare with", "name what is expected there: --force-with-lease="+name+":COMMIT")
		}
	case !allowed(r.policy.forcePlain):
		return "", refusal("push.force", spec, "branch "+quote(name)+" may be rewritten with a lease only", "git push --force-with-lease "+remote+" "+name)
	default:
		return "+", nil
	}
	f.written = append(f.written, full+lease)
	return "", nil
}

// tracked reports whether the remote's configuration keeps a copy of the
// reference.
func (r *request) tracked(remote, ref string) bool {
	c := r.repo.remotes[remote]
	return c != nil && slices.ContainsFunc(c.fetch, func(spec string) bool {
		src, dst, ok := strings.Cut(strings.TrimPrefix(spec, "+"), ":")
		if !ok || dst == "" {
			return false
		}
		before, after, star := strings.Cut(src, "*")
		if !star {
			return src == ref
		}
		return strings.HasPrefix(ref, before) && strings.HasSuffix(ref, after) && len(ref) >= len(before)+len(after)
	})
}

// refspecs answers what a push to the remote of that name pushes.
func (r *request) refspecs(name string, ops []string, force *forcing) ([]string, error) {
	all, tags := anyOf(r.line, "--all", "--branches"), r.line.Has("--tags")
	if all && len(ops) > 1 {
		return nil, refusal("operand", ops[1], `flag "--all" takes no branch`, "leave one of them out")
	}
	// The patterns that the flags stand for can be written as well.
	var specs, not []string
	for _, spec := range ops[min(len(ops), 1):] {
		switch {
		case spec == "refs/heads/*" || spec == "refs/heads/*:refs/heads/*":
			all = true
		case spec == "refs/tags/*" || spec == "refs/tags/*:refs/tags/*":
			tags = true
		case strings.HasPrefix(spec, "^refs/heads/") || strings.HasPrefix(spec, "^refs/tags/"):
			not = append(not, spec)
		default:
			specs = append(specs, spec)
		}
	}
	var out []string
	if all {
		if len(r.protected) > 0 {
			return nil, refusal("push.protected", "--all", "some branches are protected, and a push of all branches pushes them too", "name the branch: git push "+name+" BRANCH")
		}
		out = append(out, everything("refs/heads/")...)
	}
	if tags {
		out = append(out, everything("refs/tags/")...)
		for _, p := range r.protected {
			if i := strings.IndexAny(p, `*?[\`); i >= 0 {
				p = p[:i] + "*"
			}
			out = append(out, "^refs/tags/"+p)
		}
	}
	for _, spec := range not {
		if !slices.Contains(out, spec) {
			out = append(out, spec)
		}
	}
	if len(specs) == 0 && (all || tags && !r.line.Has("--follow-tags")) {
		return out, nil
	}
	if len(specs) == 0 && len(not) > 0 {
		return nil, refusal("push.refspec", not[0], "refspec "+quote(not[0])+" says what is not pushed, and none says what is", "name a branch")
	}
	if len(specs) == 0 {
		spec, err := r.usual(name)
		if err != nil {
			return nil, err
		}
		specs = spec
	} else if err := r.mapped(name, specs); err != nil {
		return nil, err
	}
	for i := 0; i < len(specs); i++ {
		spec := specs[i]
		if spec == "tag" && i+1 < len(specs) {
			// "tag NAME" is refs/tags/NAME; "tag" alone is a branch of that name.
			i++
			if strings.HasPrefix(specs[i], "+") {
				return nil, forced(specs[i])
			}
			tag, _, _ := strings.Cut(specs[i], ":")
			spec = "refs/tags/" + tag
		}
		v, err := r.refspec(name, spec, force)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	for _, l := range force.leases {
		if !slices.Contains(force.used, l) {
			return nil, refusal("push.force", l, "flag \"--force-with-lease\" names "+quote(l)+", which is not pushed", "leave it out, or name what is pushed")
		}
	}
	return out, nil
}

func forced(spec string) error {
	return refusal("push.force", spec, "refspec "+quote(spec)+" is forced by its \"+\"", "push without it, or to a branch of another name")
}

// mapped refuses a refspec without a destination where the configuration of
// the remote gives it one.
func (r *request) mapped(name string, specs []string) error {
	c := r.repo.remotes[name]
	if c == nil || !slices.ContainsFunc(specs, func(s string) bool { return !strings.Contains(s, ":") }) {
		return nil
	}
	for _, v := range c.push {
		src, dst, colon := strings.Cut(v, ":")
		why := ""
		switch {
		case strings.HasPrefix(v, "+"):
			why = "forces pushes"
		case v == "" || colon && src == "":
			why = "pushes or deletes what was not named"
		case colon && src != dst:
			why = "pushes to another name"
		default:
			continue
		}
		return refusal("push.force", "remote."+name+".push", "the repository's configuration "+why+": remote."+name+".push="+quote(v), "write git push "+name+" BRANCH:BRANCH")
	}
	return nil
}

// setting answers a variable of the repository, or what the call set it to.
func (r *request) setting(key string) (string, bool) {
	for _, list := range [][]string{r.config, r.asides} {
		for _, kv := range slices.Backward(list) {
			if k, v, _ := strings.Cut(kv, "="); strings.EqualFold(k, key) {
				return v, true
			}
		}
	}
	return r.repo.get(key)
}

// pushRemote is the remote that git pushes to when none is named.
func (r *request) pushRemote() string {
	branch := r.repo.branch()
	for _, key := range []string{"branch." + branch + ".pushremote", "remote.pushdefault"} {
		if v, ok := r.repo.get(key); ok && v != "" {
			return v
		}
	}
	return r.fetchRemote()
}

// fetchRemote is the remote of the branch that is checked out.
func (r *request) fetchRemote() string {
	if v, ok := r.repo.get("branch." + r.repo.branch() + ".remote"); ok && v != "" {
		return v
	}
	if len(r.repo.remoteNames) == 1 {
		return r.repo.remoteNames[0]
	}
	return "origin"
}

// usual is what is pushed to the remote when nothing is named, as of
// remote.NAME.push and push.default.
func (r *request) usual(name string) ([]string, error) {
	if c := r.repo.remotes[name]; c != nil && len(c.push) > 0 {
		for _, v := range c.push {
			if src, _, _ := strings.Cut(v, ":"); v == "" || src == "" || v[0] == '+' {
				return nil, refusal("push.force", "remote."+name+".push", "the repository's configuration forces pushes, or deletes: remote."+name+".push="+quote(v), "name the branch: git push "+name+" BRANCH")
			}
		}
		return c.push, nil
	}
	if v, ok := r.repo.get("remote." + name + ".mirror"); ok && v != "false" {
		return nil, refusal("push.force", "remote."+name+".mirror", "the repository's configuration makes each push to "+quote(name)+" a mirror, which forces and deletes", "name the branch: git push "+name+" BRANCH")
	}
	branch := r.repo.branch()
	if branch == "" {
		return nil, refusal("push.refspec", "", "no branch is checked out, so that there is none to push", "write git push "+name+" HEAD:BRANCH")
	}
	full := "refs/heads/" + branch
	upstream, tracks := r.repo.get("branch." + branch + ".merge")
	remote, _ := r.repo.get("branch." + branch + ".remote")
	triangular := name != r.fetchRemote()
	mode, ok := r.setting("push.default")
	if !ok {
		mode = "simple"
	}
	none := refusal("push.refspec", "", "branch "+quote(branch)+" has no upstream at "+quote(name), "write git push --set-upstream "+name+" "+branch)
	switch {
	case mode == "current", mode == "simple" && triangular:
		return []string{full + ":" + full}, nil
	case (mode == "simple" || mode == "upstream" || mode == "tracking") && !triangular && !tracks:
		if v, _ := r.setting("push.autosetupremote"); v == "true" {
			r.flags = append(r.flags, "--set-upstream")
			return []string{full + ":" + full}, nil
		}
		return nil, none
	case mode == "simple" && remote == name && upstream == full:
		return []string{full + ":" + full}, nil
	case (mode == "upstream" || mode == "tracking") && remote == name:
		return []string{full + ":" + upstream}, nil
	case mode == "simple":
		return nil, refusal("push.refspec", "", "the upstream of branch "+quote(branch)+" has another name", "write git push "+name+" "+branch+":BRANCH")
	case mode == "matching":
		return nil, refusal("push.refspec", "push.default", "push.default=matching pushes what was not named", "name the branch: git push "+name+" "+branch)
	}
	return nil, refusal("push.refspec", "push.default", "what to push is not known: push.default="+quote(mode), "name the branch: git push "+name+" "+branch)
}

// refspec checks one refspec of a push to the remote and answers it as SRC:DST,
// or +SRC:DST.
func (r *request) refspec(remote, spec string, force *forcing) (string, error) {
	bare, plus := strings.CutPrefix(spec, "+")
	if plus && len(r.policy.force) == 0 {
		return "", forced(spec)
	}
	src, dst, colon := strings.Cut(bare, ":")
	switch spec = bare; {
	case strings.HasPrefix(spec, "+") || strings.HasPrefix(spec, "^") || spec == "" || strings.HasPrefix(spec, "-"):
		return "", refusal("push.refspec", spec, "refspec "+quote(spec)+" is not one that this policy knows", "name a branch")
	case colon && src == "" && dst != "":
		return "", refusal("push.delete", spec, "refspec "+quote(spec)+" deletes "+quote(dst)+" on the other side", "leave it out")
	case colon && (dst == "" || src == ""):
		return "", refusal("push.refspec", spec, "refspec "+quote(spec)+" does not say what is pushed where", "write SRC:DST")
	}
	if !colon {
		// A source that is itself a symbolic reference would otherwise choose
		// the destination.
		dst = src
		if src == "HEAD" || src == "@" {
			branch := r.repo.branch()
			if branch == "" {
				return "", refusal("push.refspec", spec, "no branch is checked out, so that "+quote(spec)+" has no name on the other side", "write HEAD:BRANCH")
			}
			dst = "refs/heads/" + branch
			src = dst
		}
	}
	dst = fullRef(dst)
	name, isHead := strings.CutPrefix(dst, "refs/heads/")
	name, isTag := strings.CutPrefix(name, "refs/tags/")
	if !validRef(name) || !isHead && !isTag && strings.HasPrefix(dst, "refs/") {
		rule := "push.refspec"
		if len(r.protected) > 0 {
			rule = "push.protected"
		}
		return "", refusal(rule, spec, "refspec "+quote(spec)+" does not name a branch or a tag that it pushes to, of a name that stands for nothing else", "write SRC:BRANCH")
	}
	for _, p := range r.protected {
		if ok, err := path.Match(p, name); ok || err != nil {
			what := "branch "
			if isTag {
				what = "a tag hides the branch of the same name, and branch "
			}
			return "", refusal("push.protected", spec, what+quote(name)+" is protected", "push to another branch, and open a pull request")
		}
	}
	if !colon && dst != src {
		src = dst // heads/x is refs/heads/x on both sides
	}
	sign, err := r.forceRefspec(force, remote, spec, name, isTag, plus)
	if err != nil {
		return "", err
	}
	if (sign != "" || slices.ContainsFunc(force.written, func(l string) bool { return strings.HasPrefix(l+":", "refs/heads/"+name+":") })) && !isHead {
		dst = "refs/heads/" + name // a name alone may be that of a tag on the other side
	}
	return sign + src + ":" + dst, nil
}

// fullRef writes out what git supplies by itself where the kind is named.
func fullRef(ref string) string {
	if strings.HasPrefix(ref, "heads/") || strings.HasPrefix(ref, "tags/") {
		return "refs/" + ref
	}
	return ref
}

// shortRef takes from a reference what git supplies by itself.
func shortRef(ref string) string {
	ref = strings.TrimPrefix(ref, "refs/")
	return strings.TrimPrefix(ref, "heads/")
}

// validRef reports whether git takes name for a branch or tag, and for nothing
// else: not for another reference, and not for the name of an object.
func validRef(name string) bool {
	for _, prefix := range misleading {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	if name == "HEAD" || name == "@" || strings.HasSuffix(name, "_HEAD") || strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.ContainsAny(name, " ~^:?*[\\\x7f\uFFFD") ||
		(len(name) == 40 || len(name) == 64) && strings.Trim(name, "0123456789abcdefABCDEF") == "" {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || part[0] == '-' || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") || strings.ContainsFunc(part, func(c rune) bool { return c < ' ' }) {
			return false
		}
	}
	return true
}
