package main

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

// prFacts are what gh pr create is about to open, and which pull requests of the same
// head there were before.
type prFacts struct {
	Repo   string `json:"repo"`
	Head   string `json:"head"`
	Base   string `json:"base,omitempty"`
	Title  string `json:"title"`
	Before []int  `json:"before"`
}

// pull is what gh pr list --json says of a pull request.
type pull struct {
	Number int    `json:"number"`
	Title  string `json:"title"`
	URL    string `json:"url"`
	Head   string `json:"headRefName"`
	Base   string `json:"baseRefName"`
	State  string `json:"state"`
}

const (
	pullFields = "number,title,url,headRefName,baseRefName,state"
	// maxPulls is how many pull requests of one head are looked through. Where
	// there are as many, some may not be in the list.
	maxPulls = 100
	// serverTime is how long GitHub may still work on a request that it got: far
	// longer than the ten seconds after which it gives one up.
	serverTime = 2 * time.Minute
)

// reconcile says how gh pr create ended that was cut off. Before the call it reads the
// numbers of the pull requests from the same head, in any state; after it, those that
// there are then.
//
// done: one number is new, with the title and base of the call. GitHub gives each pull
// request a number of its own, once, so that it is none of those before. The flags
// for labels, reviewers, assignees, milestones and projects are further requests, which
// the call may not have come to: with one of them it is unknown.
//
// not_done: no number is new. GitHub gives up on a request after ten seconds, and the
// call, of which the host says with Gone that nothing runs any longer, sends no further
// one, so that after serverTime none will appear. Should one appear all the same, the
// repeated call opens no second one: GitHub admits one open pull request for a head
// and base, and refuses the other.
//
// Anything else, several new ones, another title, is unknown: somebody else was there.
func (p *policy) reconcile(q *abi.Reconcile) (*abi.Reconciliation, error) {
	if q.Before {
		return p.prFacts(q)
	}
	if len(q.Facts) == 0 {
		return pdk.Unresolved("only gh pr create, with nothing but a head, base, title and body, is looked into"), nil
	}
	var f prFacts
	if err := json.Unmarshal(q.Facts, &f); err != nil {
		return nil, err
	}
	if len(q.Ran) == 0 {
		return &abi.Reconciliation{Run: [][]string{f.list()}}, nil
	}
	pulls, why := listed(&q.Ran[0])
	if why != "" {
		return pdk.Unresolved(why), nil
	}
	pulls = slices.DeleteFunc(pulls, func(x pull) bool { return slices.Contains(f.Before, x.Number) })
	where := f.Repo + ", head " + f.Head + ": "
	switch {
	case len(pulls) > 1:
		return pdk.Unresolved(where + strconv.Itoa(len(pulls)) + " pull requests are new"), nil
	case len(pulls) == 1:
		x := pulls[0]
		if x.Title != f.Title || x.Head != f.branch() || f.Base != "" && x.Base != f.Base {
			return pdk.Unresolved(where + x.URL + " is new, and is another one"), nil
		}
		return &abi.Reconciliation{Verdict: abi.VerdictDone, Evidence: where + x.URL + " is new, with the title and base of the call", Result: &abi.Result{Stdout: x.URL + "\n"}}, nil
	}
	if q.NowMS-q.EndedMS < serverTime.Milliseconds() {
		return pdk.Unresolved(where + "no pull request is new, and one may still come until " + time.UnixMilli(q.EndedMS).Add(serverTime).UTC().Format(time.RFC3339)), nil
	}
	return &abi.Reconciliation{Verdict: abi.VerdictNotDone, Evidence: where + "no pull request is new"}, nil
}

// prFacts reads what gh pr create is about to do. Of other commands there are none.
func (p *policy) prFacts(q *abi.Reconcile) (*abi.Reconciliation, error) {
	none := &abi.Reconciliation{}
	r := &request{policy: p, call: &q.Call}
	r.scope.Cwd, r.scope.Roots = q.Call.Cwd, q.Call.Roots
	name, _, _, err := r.read(q.Call.Args)
	if err != nil || name != "pr create" || r.repo == "" {
		return none, nil
	}
	for _, flag := range []string{"--assignee", "--label", "--milestone", "--project", "--reviewer"} {
		if r.line.Has(flag) {
			return none, nil
		}
	}
	f := prFacts{Repo: r.repo, Before: []int{}}
	f.Head, _ = r.line.Get("--head")
	f.Base, _ = r.line.Get("--base")
	f.Title, _ = r.line.Get("--title")
	if f.Head == "" || f.Title == "" {
		return none, nil
	}
	if len(q.Ran) == 0 {
		return &abi.Reconciliation{Run: [][]string{f.list()}}, nil
	}
	pulls, why := listed(&q.Ran[0])
	if why != "" {
		return none, nil
	}
	for _, x := range pulls {
		f.Before = append(f.Before, x.Number)
	}
	b, err := json.Marshal(&f)
	return &abi.Reconciliation{Facts: b}, err
}

// branch is the head without the owner of a fork.
func (f *prFacts) branch() string {
	if _, branch, ok := strings.Cut(f.Head, ":"); ok {
		return branch
	}
	return f.Head
}

func (f *prFacts) list() []string {
	return []string{"pr", "list", "--repo", f.Repo, "--head", f.branch(), "--state", "all", "--limit", strconv.Itoa(maxPulls), "--json", pullFields}
}

// listed reads the pull requests that gh pr list answered, or says why not.
func listed(ran *abi.ReconcileRan) ([]pull, string) {
	switch {
	case ran.Error != nil:
		return nil, "gh pr list: " + ran.Error.Message
	case ran.ExitCode != 0:
		return nil, "gh pr list failed: " + strings.TrimSpace(ran.Stderr)
	case ran.Truncated:
		return nil, "gh pr list answers too much"
	}
	var pulls []pull
	if err := json.Unmarshal([]byte(ran.Stdout), &pulls); err != nil {
		return nil, "gh pr list answers no list: " + err.Error()
	}
	if len(pulls) >= maxPulls {
		return nil, "there are too many pull requests of this head to tell"
	}
	return pulls, ""
}
