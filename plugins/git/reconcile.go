package main

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// pushFacts are what a push is about to do: which references of which repository it
// moves, from where to where.
type pushFacts struct {
	URL  string `json:"url"`
	Kind kind   `json:"kind"`
	// Remote is the remote's name, as the call has it.
	Remote string    `json:"remote"`
	Refs   []pushRef `json:"refs"`
	// Tracks says that the push also writes configuration (--set-upstream).
	Tracks bool `json:"tracks,omitempty"`
}

// pushRef is one reference of the other side. Old is empty where there is none.
type pushRef struct {
	Src string `json:"src"`
	Dst string `json:"dst"`
	New string `json:"new"`
	Old string `json:"old,omitempty"`
}

// maxPushRefs is how many references a push may name to be looked into.
const maxPushRefs = 5

// reconcile says how a push ended that was cut off. Before the push it reads the
// objects that are pushed, and what the other side has under their names; after it,
// what the other side has then.
//
// done: every reference holds the object that was pushed. Whoever put it there, the
// same push would now answer that everything is up to date.
//
// not_done: every reference holds what it held before. The other side changes a
// reference in one step, from the old value that the push named, under a lock; a
// push that is not forced, and this policy admits no other, cannot change it from
// any other value. So it has changed nothing yet. That it never will:
//
//   - A repository that is a folder is changed by a git-receive-pack that the push
//     itself started. It is in the call's own process tree, and the host says with
//     Gone that nothing of that tree is left; without Gone it does not take
//     not_done from here.
//   - A server may still work on what it was sent. But what it then does is to
//     move the reference from old to new, and the repeated push, which pushes the
//     same object (that is looked at again), does the same: whichever is first, the
//     other finds another old value and changes nothing. The reference moves once.
//
// What differs from both, some references moved and others not, or a value that
// somebody else pushed, is unknown, as is what this cannot enumerate: patterns,
// --all, --tags, --follow-tags, a remote with several URLs or rewritten ones. A
// reference that somebody moved to the pushed object and back to exactly where it
// was looks as if it had not moved; the repeated push then moves it again, as whoever
// looked at the remote would have done.
func (p *policy) reconcile(q *abi.Reconcile) (*abi.Reconciliation, error) {
	if q.Before {
		return p.pushFacts(q)
	}
	if len(q.Facts) == 0 {
		return pdk.Unresolved("only a push of named branches or tags to one remote is looked into"), nil
	}
	var f pushFacts
	if err := json.Unmarshal(q.Facts, &f); err != nil {
		return nil, err
	}
	r := p.request(q)
	if to, err := r.urls("", f.URL, ""); err != nil || len(to) != 1 || r.repo.remotes[f.URL] != nil {
		return pdk.Unresolved("the repository's configuration now means something else by " + f.URL), nil
	}
	if len(q.Ran) == 0 {
		a := &abi.Reconciliation{Run: [][]string{lsRefs(f.URL, f.Refs)}}
		if f.Kind != kindFile {
			a.Run = append(a.Run, revParse(f.Refs))
		}
		return a, nil
	}
	for _, ran := range q.Ran[:1] {
		if why := failed(&ran); why != "" {
			return pdk.Unresolved("the remote does not say what it has: " + why), nil
		}
	}
	now := listed(q.Ran[0].Stdout)
	var at []string
	done, untouched := true, true
	for _, ref := range f.Refs {
		done = done && now[ref.Dst] == ref.New
		untouched = untouched && now[ref.Dst] == ref.Old
		at = append(at, ref.Dst+" is at "+name(now[ref.Dst])+", was to move from "+name(ref.Old)+" to "+name(ref.New))
	}
	a := &abi.Reconciliation{Verdict: abi.VerdictUnknown, Evidence: f.URL + ": " + strings.Join(at, "; ")}
	switch {
	case done && f.Tracks && !r.tracks(&f):
		a.Evidence += "; the upstream is not, or not known to be, configured"
	case done:
		a.Verdict, a.Result = abi.VerdictDone, &abi.Result{Stderr: f.text()}
	case !untouched:
	case f.Kind == kindFile:
		a.Verdict = abi.VerdictNotDone
	case len(q.Ran) < 2 || failed(&q.Ran[1]) != "" || !slices.Equal(lines(q.Ran[1].Stdout), news(f.Refs)):
		a.Evidence += "; the server may still be at it, and what would be pushed now is something else"
	default:
		a.Verdict = abi.VerdictNotDone
	}
	return a, nil
}

// pushFacts reads what a push is about to do. Of what cannot be looked into later
// there are none.
func (p *policy) pushFacts(q *abi.Reconcile) (*abi.Reconciliation, error) {
	none := &abi.Reconciliation{}
	r := p.request(q)
	if _, err := r.run(); err != nil || r.cmd == nil || r.cmd.name != "push" {
		return none, nil
	}
	ops := r.line.Operands()
	if len(r.remotes) != 1 || len(ops) < 2 || len(ops) > 1+maxPushRefs || anyOf(r.line, "--dry-run", "--follow-tags") || slices.Contains(r.config, "push.followTags=true") {
		return none, nil
	}
	if v, ok := r.repo.get("push.followtags"); ok && v != "false" {
		return none, nil
	}
	to := r.remotes[0]
	f := pushFacts{URL: to.url, Kind: to.kind, Remote: ops[0], Tracks: r.line.Has("--set-upstream") || slices.Contains(r.flags, "--set-upstream")}
	if to.kind == kindFile {
		f.URL = to.path
	}
	authority, _, _ := strings.Cut(strings.TrimPrefix(f.URL, string(to.kind)+"://"), "/")
	user, _, _ := cutLast(authority, "@")
	switch {
	case r.repo.remotes[f.URL] != nil:
		return none, nil
	case to.kind == kindFile && !path.IsAbs(strings.TrimPrefix(to.url, "file://")):
		return none, nil // git counts it from the top of the working tree, wherever that is
	case to.kind != kindFile && to.kind != kindSSH && strings.Contains(user, ":"):
		return none, nil // facts are kept, and this is a password
	}
	for _, spec := range ops[1:] {
		src, dst, ok := strings.Cut(spec, ":")
		if !ok || strings.ContainsAny(spec, "*^") {
			return none, nil
		}
		f.Refs = append(f.Refs, pushRef{Src: src, Dst: dst})
	}
	if len(q.Ran) == 0 {
		a := &abi.Reconciliation{Run: [][]string{revParse(f.Refs), lsRefs(f.URL, f.Refs)}}
		for _, ref := range f.Refs {
			if !strings.HasPrefix(ref.Dst, "refs/") {
				a.Run = append(a.Run, []string{"rev-parse", "--symbolic-full-name", ref.Src})
			}
		}
		return a, nil
	}
	for _, ran := range q.Ran {
		if failed(&ran) != "" {
			return none, nil
		}
	}
	objects, before, named := lines(q.Ran[0].Stdout), listed(q.Ran[1].Stdout), q.Ran[2:]
	if len(objects) != len(f.Refs) {
		return none, nil
	}
	for i := range f.Refs {
		ref := &f.Refs[i]
		if !strings.HasPrefix(ref.Dst, "refs/") {
			full := ""
			if len(named) > 0 {
				full, named = strings.TrimSpace(named[0].Stdout), named[1:]
			}
			if ref.Dst = qualify(ref.Dst, full, before); ref.Dst == "" {
				return none, nil
			}
		}
		ref.New, ref.Old = objects[i], before[ref.Dst]
	}
	b, err := json.Marshal(&f)
	return &abi.Reconciliation{Facts: b}, err
}

// request is the call of q as one that may change something: it is only looked at.
func (p *policy) request(q *abi.Reconcile) *request {
	c := q.Call
	c.ReadOnly = false
	return &request{policy: p, call: &c, scope: argv.Scope{Cwd: c.Cwd, Roots: c.Roots}, repo: newRepoConfig(c.RepoConfig)}
}

// qualify writes out the name of a destination as git push does: what the other side
// has under that name, else a name of the source's kind. It is empty where git would
// not know either.
func qualify(dst, src string, has map[string]string) string {
	var found []string
	for _, dir := range []string{"refs/", "refs/tags/", "refs/heads/", "refs/remotes/"} {
		if has[dir+dst] != "" {
			found = append(found, dir+dst)
		}
	}
	switch {
	case len(found) == 1:
		return found[0]
	case len(found) > 1:
	case strings.HasPrefix(src, "refs/heads/"):
		return "refs/heads/" + dst
	case strings.HasPrefix(src, "refs/tags/"):
		return "refs/tags/" + dst
	}
	return ""
}

// tracks reports whether the branches of f have the upstream that the push gives them.
func (r *request) tracks(f *pushFacts) bool {
	for _, ref := range f.Refs {
		branch := strings.TrimPrefix(ref.Src, "refs/heads/")
		remote, _ := r.repo.get("branch." + branch + ".remote")
		merge, _ := r.repo.get("branch." + branch + ".merge")
		if remote != f.Remote || merge != ref.Dst {
			return false
		}
	}
	return true
}

func revParse(refs []pushRef) []string {
	args := []string{"rev-parse"}
	for _, ref := range refs {
		args = append(args, ref.Src)
	}
	return args
}

func lsRefs(url string, refs []pushRef) []string {
	args := []string{"ls-remote", url}
	for _, ref := range refs {
		args = append(args, ref.Dst)
	}
	return args
}

func news(refs []pushRef) (out []string) {
	for _, ref := range refs {
		out = append(out, ref.New)
	}
	return out
}

func lines(text string) []string { return strings.Fields(text) }

// listed are the objects of references that git ls-remote names.
func listed(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		object, ref, _ := strings.Cut(strings.TrimSpace(line), "\t")
		m[ref] = object
	}
	return m
}

// failed says why a command has no answer; empty where it has one.
func failed(ran *abi.ReconcileRan) string {
	switch {
	case ran.Error != nil:
		return ran.Error.Message
	case ran.ExitCode != 0:
		return "git " + ran.Args[0] + " failed: " + strings.TrimSpace(ran.Stderr)
	case ran.Truncated:
		return "git " + ran.Args[0] + " answers too much"
	}
	return ""
}

func name(object string) string {
	if object == "" {
		return "nothing"
	}
	return object
}

// text is what git push says of f.
func (f *pushFacts) text() string {
	short := func(object string) string { return object[:min(len(object), 7)] }
	out := "To " + f.URL + "\n"
	for _, ref := range f.Refs {
		what := "   " + short(ref.Old) + ".." + short(ref.New) + "  "
		switch {
		case ref.Old == ref.New:
			what = " = [up to date]      "
		case ref.Old == "" && strings.HasPrefix(ref.Dst, "refs/tags/"):
			what = " * [new tag]         "
		case ref.Old == "":
			what = " * [new branch]      "
		}
		out += what + path.Base(ref.Src) + " -> " + shortName(ref.Dst) + "\n"
	}
	return out
}

func shortName(ref string) string {
	return strings.TrimPrefix(strings.TrimPrefix(ref, "refs/heads/"), "refs/tags/")
}
