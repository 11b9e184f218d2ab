package main

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// rule admits a method on the endpoints of a pattern.
type rule struct {
	method string
	// parts: "*" is any one part; "**", at the end, one or more.
	parts []string
}

// everydayAPI is what may be asked where config.api says nothing: reading
// what a repository holds, without its settings, keys, hooks and secrets.
var everydayAPI = mustRules(`
	GET rate_limit, GET user,
	GET repos/*/*,
	GET repos/*/*/actions/artifacts, GET repos/*/*/actions/jobs/**, GET repos/*/*/actions/runs, GET repos/*/*/actions/runs/**,
	GET repos/*/*/actions/workflows, GET repos/*/*/actions/workflows/**,
	GET repos/*/*/branches, GET repos/*/*/branches/*,
	GET repos/*/*/check-runs/**, GET repos/*/*/check-suites/**,
	GET repos/*/*/commits, GET repos/*/*/commits/**, GET repos/*/*/compare/*,
	GET repos/*/*/contents, GET repos/*/*/contents/**, GET repos/*/*/contributors,
	GET repos/*/*/git/**, GET repos/*/*/issues, GET repos/*/*/issues/**,
	GET repos/*/*/labels, GET repos/*/*/labels/*, GET repos/*/*/languages, GET repos/*/*/license,
	GET repos/*/*/milestones, GET repos/*/*/milestones/**, GET repos/*/*/pulls, GET repos/*/*/pulls/**,
	GET repos/*/*/readme, GET repos/*/*/releases, GET repos/*/*/releases/**, GET repos/*/*/statuses/*,
	GET repos/*/*/tags, GET repos/*/*/topics`)

func mustRules(s string) []rule {
	r, err := parseRules(s)
	if err != nil {
		panic(err)
	}
	return r
}

// parseRules reads "METHOD pattern", separated by commas or lines. "none" is
// no rule at all.
func parseRules(s string) ([]rule, error) {
	rules := []rule{}
	if strings.TrimSpace(s) == "none" {
		return rules, nil
	}
	for entry := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ',' || r == '\n' }) {
		words := strings.Fields(entry)
		if len(words) == 0 {
			continue
		}
		if len(words) != 2 || !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}, words[0]) {
			return nil, errors.New("api: " + strconv.Quote(strings.TrimSpace(entry)) + " is not METHOD ENDPOINT")
		}
		parts := strings.Split(strings.Trim(words[1], "/"), "/")
		for i, p := range parts {
			if p == "**" && i < len(parts)-1 || p == "" || strings.Contains(p, "*") && p != "*" && p != "**" {
				return nil, errors.New("api: " + strconv.Quote(words[1]) + ": * stands for a whole part, ** for all at the end")
			}
		}
		if parts[0] == "graphql" {
			return nil, errors.New("api: graphql cannot be allowed: one endpoint for reading and writing everything")
		}
		rules = append(rules, rule{words[0], parts})
	}
	return rules, nil
}

func (r rule) admits(method string, parts []string) bool {
	if r.method != method && !(method == "HEAD" && r.method == "GET") {
		return false
	}
	for i, p := range r.parts {
		if p == "**" {
			return len(parts) > i
		}
		if i >= len(parts) || p != "*" && p != parts[i] {
			return false
		}
	}
	return len(parts) == len(r.parts)
}

// readAPI reads "gh api".
func (q *request) readAPI() (string, []string, bool, error) {
	fail := func(err error) (string, []string, bool, error) { return "", nil, false, err }
	ops := q.line.Operands()
	if len(ops) != 1 {
		return fail(&argv.Refusal{Rule: "api.endpoint", Reason: `"gh api" takes one endpoint`, Instead: "write gh api repos/OWNER/NAME/..."})
	}
	out := []string{"api"}
	fields := false
	for _, it := range q.line.Items {
		if it.Flag == nil || it.Name == "--method" {
			continue
		}
		switch it.Name {
		case "--field", "--raw-field", "--input":
			fields = true
		case "--hostname":
			if it.Value != q.policy.host {
				return fail(&argv.Refusal{Rule: "host", Arg: it.Value, Reason: "host " + argv.Quote(it.Value) + " is not " + q.policy.host, Instead: "leave --hostname out"})
			}
			continue
		}
		it, err := q.flag("api", it)
		if err != nil {
			return fail(err)
		}
		out = append(out, q.line.Write(it)...)
	}
	method, given := q.line.Get("--method")
	if !given {
		method = "GET"
		if fields {
			method = "POST"
		}
	}
	path, err := q.endpoint(ops[0])
	if err != nil {
		return fail(err)
	}
	bare, _, _ := strings.Cut(path, "?")
	parts := strings.Split(bare, "/")
	if parts[0] == "graphql" {
		return fail(&argv.Refusal{Rule: "api.graphql", Arg: bare, Reason: "endpoint graphql reads and writes everything, and a policy by endpoints cannot tell which", Instead: "use gh pr, gh issue or an endpoint beneath repos/"})
	}
	if !slices.ContainsFunc(q.policy.api, func(r rule) bool { return r.admits(method, parts) }) {
		return fail(&argv.Refusal{Rule: "api.endpoint", Arg: bare, Reason: method + " of endpoint " + argv.Quote(bare) + " is not on this tool's list", Instead: "use gh pr or gh issue, or have the operator add it to config.api in tools.d/gh/tool.json"})
	}
	if parts[0] == "repos" && len(parts) >= 3 {
		if !ownerName(parts[1] + "/" + parts[2]) {
			return fail(&argv.Refusal{Rule: "repo", Arg: bare, Reason: "endpoint " + argv.Quote(bare) + " does not name a repository", Instead: "write repos/OWNER/NAME/..."})
		}
		if err := q.setRepo(parts[1] + "/" + parts[2]); err != nil {
			return fail(err)
		}
	}
	out = append(out, "--method="+method, "--hostname="+q.policy.host, "--", path)
	return "api", out, method != "GET" && method != "HEAD", nil
}

// endpoint answers the path in the one form that this policy and GitHub read
// alike, with {owner} and {repo} filled in.
func (q *request) endpoint(s string) (string, error) {
	bad := func(why string) error {
		return &argv.Refusal{Rule: "api.endpoint", Arg: s, Reason: "endpoint " + argv.Quote(s) + " " + why, Instead: "write it as in GitHub's documentation: repos/OWNER/NAME/..."}
	}
	if strings.Contains(s, "://") {
		return "", bad("is a URL")
	}
	path, query, _ := strings.Cut(s, "?")
	path = strings.TrimPrefix(path, "/")
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if part != "{owner}" && part != "{repo}" && part != ":owner" && part != ":repo" {
			continue
		}
		if q.repo == "" && q.nameRepo() != nil {
			return "", bad("leaves open which repository is meant")
		}
		o, n, _ := strings.Cut(q.repo, "/")
		if parts[i] = o; strings.Contains(part, "repo") {
			parts[i] = n
		}
	}
	path = strings.Join(parts, "/")
	for _, part := range parts {
		if part == "" || part == "." || part == ".." {
			return "", bad("has an empty part, . or ..")
		}
		// No percent signs: an encoded slash or dot is one again elsewhere.
		// ":" is gh's placeholder, but for owner:branch in a comparison.
		if strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~+@=:") != "" || part[0] == ':' {
			return "", bad("holds other characters than letters, digits and -_.~+@=")
		}
		for _, w := range []string{":owner", ":repo", ":branch"} {
			if strings.Contains(part, w) {
				return "", bad("holds " + w)
			}
		}
	}
	if query != "" {
		if strings.Trim(query, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~+@=:&%,/*!$'();?[]") != "" || strings.Contains(query, ":owner") || strings.Contains(query, ":repo") || strings.Contains(query, ":branch") {
			return "", bad("has a query with characters that must be encoded")
		}
		path += "?" + query
	}
	return path, nil
}
