package main

import (
	"path"
	"slices"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// wire decides about what goes over the network, by the rules that the arguments of a
// push are judged by. The arguments say what git was asked to do; this is what it
// does, whatever a configuration, a hook or a change in between made of them.
func (p *policy) wire(w *abi.Wire) *abi.Decision {
	if err := p.checkWire(w); err != nil {
		return pdk.Deny(err.Rule, err.Reason, err.Instead)
	}
	d := pdk.Allow()
	d.Rule = "git." + w.On
	return d
}

func (p *policy) checkWire(w *abi.Wire) *argv.Refusal {
	if p.fault != "" {
		return refusal("config", "", p.fault, "ask the operator to fix tools.d/git/tool.json")
	}
	if len(p.hosts) > 0 && !slices.Contains(p.hosts, w.Host) {
		return refusal("remote", w.Host, quote(w.Host)+" is a host that this tool does not talk to", "use one of: "+strings.Join(p.hosts, ", "))
	}
	switch w.On {
	case abi.WirePush:
		return p.checkPushed(w)
	case abi.WireHTTP:
		if ours, err := p.checkLFSWire(w); ours {
			return err
		}
		where, _, _ := strings.Cut(w.Path, "?")
		posts := w.Method == "POST" && (strings.HasSuffix(where, "/git-upload-pack") || strings.HasSuffix(where, "/git-receive-pack"))
		if w.Method != "GET" && !posts {
			// A server for files would take a push that nobody can read here.
			return refusal("wire.method", w.Method, "git fetches with GET, and with POST to git-upload-pack, and pushes with POST to git-receive-pack", "push to a server that speaks git's own protocol")
		}
		return nil
	}
	return refusal("wire", w.On, quote(w.On)+" is nothing that this policy knows", "ask the operator to update the policy of git")
}

// checkPushed decides about what becomes of each reference.
func (p *policy) checkPushed(w *abi.Wire) *argv.Refusal {
	if w.Call.ReadOnly {
		return refusal("read-only", "", "a push changes something, and this caller may only read", "")
	}
	if name := subcommandOf(w.Call.Args); name != "push" {
		return refusal("push.unasked", name, "the call is git "+quote(name)+", which does not push", "push with git push")
	}
	for _, ref := range w.Refs {
		if err := p.checkPushedRef(w, &ref); err != nil {
			return err
		}
	}
	return nil
}

func (p *policy) checkPushedRef(w *abi.Wire, ref *abi.WireRef) *argv.Refusal {
	name, isHead := strings.CutPrefix(ref.Name, "refs/heads/")
	isTag := false
	if !isHead {
		name, isTag = strings.CutPrefix(ref.Name, "refs/tags/")
	}
	if !isHead && !isTag || !validRef(name) {
		rule := "push.refspec"
		if len(p.protected) > 0 {
			rule = "push.protected"
		}
		return refusal(rule, ref.Name, quote(ref.Name)+" is not a branch or a tag of a name that stands for nothing else", "push to a branch of another name")
	}
	for _, pattern := range p.protected {
		if ok, err := path.Match(pattern, name); ok || err != nil {
			what := "branch "
			if isTag {
				what = "a tag hides the branch of the same name, and branch "
			}
			return refusal("push.protected", ref.Name, what+quote(name)+" is protected", "push to another branch, and open a pull request")
		}
	}
	if strings.Trim(ref.New, "0") == "" {
		return refusal("push.delete", ref.Name, "the push deletes "+quote(ref.Name)+" on the other side", "leave it out")
	}
	if strings.Trim(ref.Old, "0") == "" {
		return nil // nothing of that name is there
	}
	if ref.Force != nil && !*ref.Force && !isTag {
		return nil
	}
	const instead = "push without force, or to a branch of another name"
	why := rewrites
	if ref.Force == nil && !isTag {
		why = "may rewrite what others have: the commits in between are not here to be looked at"
	}
	if isTag || len(p.force) == 0 {
		return refusal("push.force", ref.Name, "the push to "+quote(ref.Name)+" "+why, instead)
	}
	if !matches(p.force, name) {
		return refusal("push.force", ref.Name, "the push to "+quote(ref.Name)+" "+why+", and it is not one of the branches that may be rewritten: "+strings.Join(p.force, ", "), instead)
	}
	if !matches(p.forcePlain, name) && !leased(w.Call.Args, ref.Name) {
		return refusal("push.force", ref.Name, "branch "+quote(name)+" may be rewritten with a lease only", "git push --force-with-lease REMOTE "+name)
	}
	return nil
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// leased reports whether the arguments, which this policy wrote, have a lease of the
// reference. What the lease expects, git itself compares.
func leased(args []string, ref string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		lease, ok := strings.CutPrefix(a, "--force-with-lease=")
		name, _, _ := strings.Cut(lease, ":")
		return ok && name == ref
	})
}

// subcommandOf is the first of the arguments that is neither a flag of git itself nor
// the value of one.
func subcommandOf(args []string) string {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-c" || a == "-C" || a == "--git-dir" || a == "--work-tree" || a == "--namespace" || a == "--config-env" || a == "--exec-path":
			i++
		case !strings.HasPrefix(a, "-"):
			return a
		}
	}
	return ""
}
