package main

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// policy is what tool.json's config makes of the rules.
type policy struct {
	host string
	// repo is the repository of a call that names none, or "".
	repo string
	// repos are OWNER/NAME and OWNER/*; none is every repository.
	repos []string
	api   []rule
	// files: --body-file and the like read beneath the roots. Without it a
	// caller's shell opens the file instead.
	files bool
}

func newPolicy(config func(string) string) (*policy, error) {
	p := &policy{host: config("host"), repo: config("repo"), api: everydayAPI}
	if p.host == "" {
		p.host = "github.com"
	}
	if !hostname(p.host) {
		return nil, errors.New("host: " + strconv.Quote(p.host) + " is not a host")
	}
	if p.repo != "" && !ownerName(p.repo) {
		return nil, errors.New("repo: " + strconv.Quote(p.repo) + " is not OWNER/NAME")
	}
	for _, r := range strings.FieldsFunc(config("repos"), func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' }) {
		if o, ok := strings.CutSuffix(r, "/*"); !ownerName(r) && !(ok && nameWord(o)) {
			return nil, errors.New("repos: " + strconv.Quote(r) + " is neither OWNER/NAME nor OWNER/*")
		}
		p.repos = append(p.repos, strings.ToLower(r))
	}
	if v := config("api"); v != "" {
		rules, err := parseRules(v)
		if err != nil {
			return nil, err
		}
		p.api = rules
	}
	switch v := config("files"); v {
	case "", "stdin":
	case "roots":
		p.files = true
	default:
		return nil, errors.New("files: " + strconv.Quote(v) + " is neither roots nor stdin")
	}
	return p, nil
}

func hostname(s string) bool {
	return len(s) < 254 && strings.Contains(s, ".") && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" && !strings.Contains(s, "..") && !strings.HasPrefix(s, "-") && !strings.HasPrefix(s, ".")
}

// nameWord is the form of GitHub's owners and repositories.
func nameWord(s string) bool {
	return s != "" && len(s) <= 100 && s != "." && s != ".." && s[0] != '-' &&
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

func ownerName(s string) bool {
	o, n, ok := strings.Cut(s, "/")
	return ok && nameWord(o) && nameWord(n)
}

func (p *policy) allowsRepo(r string) bool {
	r = strings.ToLower(r)
	o, _, _ := strings.Cut(r, "/")
	return len(p.repos) == 0 || slices.Contains(p.repos, r) || slices.Contains(p.repos, o+"/*")
}

// request is one call on its way to a Decision.
type request struct {
	policy *policy
	call   *abi.Call
	scope  argv.Scope
	line   *argv.Line
	repo   string // OWNER/NAME
	stdin  bool
}

func deny(err error) *abi.Decision {
	var r *argv.Refusal
	if !errors.As(err, &r) {
		r = &argv.Refusal{Rule: "refused", Reason: err.Error()}
	}
	return pdk.Deny("gh."+r.Rule, r.Reason, r.Instead)
}

// decide answers a call. It never panics and reads nothing but c and p.
func (p *policy) decide(c *abi.Call) *abi.Decision {
	if err := argv.CheckEnv(c.Env); err != nil {
		return deny(err)
	}
	q := &request{policy: p, call: c, scope: argv.Scope{Cwd: c.Cwd, Roots: c.Roots}}
	name, args, mutating, err := q.read(c.Args)
	if err != nil {
		return deny(err)
	}
	if c.ReadOnly && mutating {
		return pdk.Deny("gh.read_only", "this call may only read, and "+argv.Quote("gh "+name)+" changes something", "make the call where writing is allowed")
	}
	d := pdk.Allow()
	d.Rule = "gh." + strings.ReplaceAll(name, " ", "_")
	d.Args, d.Mutating, d.Stdin = args, &mutating, &q.stdin
	d.Env = q.env()
	if slices.Contains(c.EnvSeen, "GH_HOST") {
		d.Notes = append(d.Notes, "GH_HOST of your environment is not passed on: this tool asks "+p.host)
	}
	return d
}

// env is the whole environment that the policy asks for: what the caller may
// choose, and the variables that keep gh from asking, paging, opening and
// looking around.
func (q *request) env() map[string]string {
	env := map[string]string{
		"GH_HOST":               q.policy.host,
		"GH_PROMPT_DISABLED":    "1",
		"GH_NO_UPDATE_NOTIFIER": "1",
		"GH_PAGER":              "cat",
		"GH_EDITOR":             "false",
		"GH_BROWSER":            "false",
		"GH_FORCE_TTY":          "",
		"GH_DEBUG":              "",
		"GH_REPO":               "",
		"GIT_DIR":               "/dev/null", // there is no repository here
	}
	if q.repo != "" {
		env["GH_REPO"] = q.policy.host + "/" + q.repo
	}
	for k, v := range q.call.Env {
		env[k] = v
	}
	return env
}

func (q *request) read(args []string) (name string, out []string, mutating bool, err error) {
	fail := func(err error) (string, []string, bool, error) { return "", nil, false, err }
	if len(args) == 1 && (args[0] == "--version" || args[0] == "version") {
		return "version", []string{"--version"}, false, nil
	}
	if topic, ok := helpTopic(args); ok {
		return "help", append(topic, "--help"), false, nil
	}
	name, rest, err := split(args)
	if err != nil {
		return fail(err)
	}
	cmd := commands[name]
	if q.line, err = cmd.flags.Parse(rest, q.scope); err != nil {
		return fail(err)
	}
	out = strings.Fields(name)
	if q.line.Has("--help") {
		return name, append(out, "--help"), false, nil
	}
	for _, need := range cmd.needs {
		if !slices.ContainsFunc(strings.Split(need, "|"), q.line.Has) {
			return fail(&argv.Refusal{Rule: "flag.missing", Arg: need, Reason: argv.Quote("gh "+name) + " without " + strings.ReplaceAll(need, "|", " or ") + " would ask, or look at the working directory", Instead: "add it"})
		}
	}
	if cmd.takes == endpoint {
		return q.readAPI()
	}
	operands, err := q.operands(name, cmd)
	if err != nil {
		return fail(err)
	}
	if cmd.repo && q.repo == "" {
		if slices.Contains(q.call.EnvSeen, "GH_REPO") && !q.line.Has("--repo") {
			return fail(&argv.Refusal{Rule: "repository.variable", Arg: "GH_REPO", Reason: "variable GH_REPO of your environment names a repository and is not passed on, so that another one would be meant", Instead: "name the repository with --repo OWNER/REPO, or unset GH_REPO"})
		}
		if err := q.nameRepo(); err != nil {
			return fail(err)
		}
	}
	for _, it := range q.line.Items {
		if it.Flag == nil || it.Name == "--repo" && cmd.repo {
			continue
		}
		if it, err = q.flag(name, it); err != nil {
			return fail(err)
		}
		out = append(out, q.line.Write(it)...)
	}
	if cmd.repo {
		out = append(out, "--repo="+q.policy.host+"/"+q.repo)
	}
	if len(operands) > 0 {
		out = append(append(out, "--"), operands...)
	}
	return name, out, cmd.mutating, nil
}

// helpTopic reports whether args ask for nothing but gh's help, as a group of commands
// without one of them does, and about which command.
func helpTopic(args []string) (topic []string, ok bool) {
	group := func(name string) bool {
		for k := range commands {
			if strings.HasPrefix(k, name+" ") {
				return true
			}
		}
		return false
	}
	switch n := len(args); {
	case n == 0:
	case args[0] == "help":
		topic = args[1:]
	case args[n-1] == "--help":
		topic = args[:n-1]
	case n == 1 && group(args[0]):
		topic = args
	default:
		return nil, false
	}
	name := strings.Join(topic, " ")
	return slices.Clone(topic), name == "" || group(name) || commands[name] != nil || closed[name] != [2]string{}
}

// split finds the command at the beginning of args.
func split(args []string) (string, []string, error) {
	if len(args) == 0 {
		return "", nil, &argv.Refusal{Rule: "command", Reason: "there is no command", Instead: "write gh COMMAND SUBCOMMAND, for example gh pr list"}
	}
	if strings.HasPrefix(args[0], "-") {
		return "", nil, &argv.Refusal{Rule: "command", Arg: args[0], Reason: "flag " + argv.Quote(args[0]) + " stands before the command", Instead: "put it after the command"}
	}
	name, n := args[0], 1
	if commands[name] == nil && len(args) > 1 {
		sub := args[1]
		if a, ok := aliases[sub]; ok {
			sub = a
		}
		name, n = name+" "+sub, 2
	}
	if commands[name] != nil {
		return name, args[n:], nil
	}
	for _, k := range []string{args[0], name} {
		if why, ok := closed[k]; ok {
			return "", nil, &argv.Refusal{Rule: "command.refused", Arg: k, Reason: "command " + argv.Quote("gh "+k) + " " + why[0], Instead: why[1]}
		}
	}
	var known []string
	for k := range commands {
		if strings.HasPrefix(k, args[0]+" ") {
			known = append(known, "gh "+k)
		}
	}
	slices.Sort(known)
	instead := "use gh pr, issue, repo, release, run, workflow, label, search or api"
	if known != nil {
		instead = "use " + strings.Join(known, ", ")
	}
	return "", nil, &argv.Refusal{Rule: "command", Arg: name, Reason: "command " + argv.Quote("gh "+name) + " is not one that this policy knows", Instead: instead}
}

// flag reads the flags whose meaning depends on the policy.
func (q *request) flag(name string, it argv.Item) (argv.Item, error) {
	path := func(v string) (string, error) {
		if v == "-" {
			q.stdin = true
			return v, nil
		}
		clean, err := q.scope.Path(v)
		if err == nil && !q.policy.files {
			err = &argv.Refusal{Rule: "path.file", Reason: "file " + argv.Quote(v) + " would be opened by the host, where it may be a symlink to another", Instead: "let your own shell open it: write - for the name, and < FILE after the command; or the operator sets config.files to roots"}
		}
		return clean, err
	}
	var err error
	switch {
	case it.Name == "--body-file", it.Name == "--input":
		it.Value, err = path(it.Value)
	case it.Name == "--field":
		if key, file, ok := strings.Cut(it.Value, "=@"); ok && !strings.Contains(key, "=") {
			file, err = path(file)
			it.Value = key + "=@" + file
		}
	case name == "workflow run" && it.Name == "--json":
		q.stdin = true
	case it.Name == "--repo":
		// Of a search, where it filters.
		for r := range strings.SplitSeq(it.Value, ",") {
			if err == nil && (!ownerName(r) || !q.policy.allowsRepo(r)) {
				err = &argv.Refusal{Rule: "repo", Reason: "repository " + argv.Quote(r) + " is not OWNER/NAME, or not one that this tool may use"}
			}
		}
	}
	if err != nil {
		var r *argv.Refusal
		if errors.As(err, &r) {
			return it, &argv.Refusal{Rule: r.Rule, Arg: it.Name, Reason: "flag " + argv.Quote(it.Name) + ": " + r.Reason, Instead: r.Instead}
		}
		return it, err
	}
	return it, nil
}

// nameRepo finds the repository of the call: -R, else the operator's, else
// what the configuration of the working directory's repository says.
func (q *request) nameRepo() error {
	given := q.line.Values("--repo")
	switch {
	case len(given) > 1:
		return &argv.Refusal{Rule: "flag.twice", Arg: "--repo", Reason: `flag "--repo" is given twice`, Instead: "give it once"}
	case len(given) == 1:
		r, err := q.policy.parseRepo(given[0])
		if err != nil {
			return err
		}
		return q.setRepo(r)
	case q.policy.repo != "":
		return q.setRepo(q.policy.repo)
	}
	if r := q.policy.remote(q.call.RepoConfig); r != "" {
		return q.setRepo(r)
	}
	return &argv.Refusal{Rule: "repo.none", Reason: "it is not clear which repository is meant", Instead: "add -R OWNER/NAME"}
}

func (q *request) setRepo(r string) error {
	if !q.policy.allowsRepo(r) {
		return &argv.Refusal{Rule: "repo", Arg: r, Reason: "repository " + argv.Quote(r) + " is not one that this tool may use", Instead: "the operator adds it to config.repos in tools.d/gh/tool.json"}
	}
	if q.repo != "" && !strings.EqualFold(q.repo, r) {
		return &argv.Refusal{Rule: "repo.two", Arg: r, Reason: "both " + argv.Quote(q.repo) + " and " + argv.Quote(r) + " are named", Instead: "name one repository"}
	}
	q.repo = r
	return nil
}

// parseRepo reads [HOST/]OWNER/NAME or the URL of a repository.
func (p *policy) parseRepo(s string) (string, error) {
	bad := &argv.Refusal{Rule: "repo", Arg: s, Reason: "repository " + argv.Quote(s) + " is not OWNER/NAME on " + p.host, Instead: "write OWNER/NAME"}
	t := strings.TrimPrefix(s, "https://")
	if t != s {
		t = strings.TrimSuffix(strings.TrimSuffix(t, "/"), ".git")
	}
	if t != s || strings.Count(t, "/") == 2 {
		host, rest, _ := strings.Cut(t, "/")
		if !strings.EqualFold(host, p.host) {
			return "", bad
		}
		t = rest
	}
	if !ownerName(t) {
		return "", bad
	}
	return t, nil
}

// remote is the repository of the working directory, by the rule of gh: the
// remote that an earlier "gh repo set-default" marked, else upstream, github,
// origin, else the first by name.
func (p *policy) remote(conf *abi.RepoConfig) string {
	if conf == nil || conf.Error != "" {
		return ""
	}
	urls, marked := map[string]string{}, ""
	for _, e := range conf.Entries {
		rest, ok := strings.CutPrefix(e.Key, "remote.")
		if !ok {
			continue
		}
		if name, ok := strings.CutSuffix(rest, ".url"); ok && urls[name] == "" {
			urls[name] = p.remoteRepo(e.Value)
		}
		if name, ok := strings.CutSuffix(rest, ".gh-resolved"); ok {
			if e.Value == "base" {
				marked = name
			} else if ownerName(e.Value) {
				return e.Value
			}
		}
	}
	names := []string{marked, "upstream", "github", "origin"}
	var others []string
	for n := range urls {
		others = append(others, n)
	}
	slices.Sort(others)
	for _, n := range append(names, others...) {
		if urls[n] != "" {
			return urls[n]
		}
	}
	return ""
}

func (p *policy) remoteRepo(url string) string {
	for _, prefix := range []string{"https://" + p.host + "/", "http://" + p.host + "/", "git@" + p.host + ":", "ssh://git@" + p.host + "/", "ssh://git@" + p.host + ":22/", "git://" + p.host + "/"} {
		if rest, ok := strings.CutPrefix(url, prefix); ok {
			rest = strings.TrimSuffix(strings.TrimSuffix(rest, "/"), ".git")
			if ownerName(rest) {
				return rest
			}
		}
	}
	return ""
}

// operands reads what is not a flag, and may find the repository in it.
func (q *request) operands(name string, cmd *command) ([]string, error) {
	ops := q.line.Operands()
	least, most := 0, 1
	switch cmd.takes {
	case nothing:
		most = 0
	case query:
		most = 50
	case repository, word, pullMaybe:
	default:
		least = 1
	}
	if len(ops) > most {
		return nil, &argv.Refusal{Rule: "operand", Arg: ops[most], Reason: argv.Quote(ops[most]) + " is one argument more than " + argv.Quote("gh "+name) + " takes", Instead: "leave it out"}
	}
	if len(ops) < least {
		if cmd.takes == owner && q.policy.repo != "" {
			o, _, _ := strings.Cut(q.policy.repo, "/")
			ops = []string{o}
		} else {
			return nil, &argv.Refusal{Rule: "operand", Reason: argv.Quote("gh "+name) + " needs to be told which one", Instead: "add its number or name"}
		}
	}
	for _, o := range ops {
		if _, err := argv.OneLine(o, q.scope); err != nil || o == "" {
			return nil, &argv.Refusal{Rule: "operand", Arg: o, Reason: "argument " + argv.Quote(o) + " is empty or holds a control character", Instead: "leave it out"}
		}
	}
	switch cmd.takes {
	case pullNumber, pullMaybe, issueNumber:
		for i, o := range ops {
			n, err := q.number(o, cmd.takes == issueNumber)
			if err != nil {
				return nil, err
			}
			ops[i] = n
		}
	case runID:
		if !digits(ops[0]) {
			return nil, &argv.Refusal{Rule: "operand", Arg: ops[0], Reason: "run " + argv.Quote(ops[0]) + " is not a number", Instead: "take the number from gh run list"}
		}
	case repository:
		if len(ops) == 1 {
			r, err := q.policy.parseRepo(ops[0])
			if err != nil {
				return nil, err
			}
			if err := q.setRepo(r); err != nil {
				return nil, err
			}
		} else if err := q.nameRepo(); err != nil {
			return nil, err
		}
		return []string{q.policy.host + "/" + q.repo}, nil
	case owner:
		if !nameWord(ops[0]) {
			return nil, &argv.Refusal{Rule: "operand", Arg: ops[0], Reason: "owner " + argv.Quote(ops[0]) + " is not a name", Instead: "write the name of a user or organisation"}
		}
		if len(q.policy.repos) > 0 && !slices.Contains(q.policy.repos, strings.ToLower(ops[0])+"/*") {
			return nil, &argv.Refusal{Rule: "repo", Arg: ops[0], Reason: "not all repositories of " + argv.Quote(ops[0]) + " are this tool's to use", Instead: "the operator adds OWNER/* to config.repos in tools.d/gh/tool.json"}
		}
	case query:
		if len(q.policy.repos) > 0 {
			return nil, &argv.Refusal{Rule: "search", Reason: "a search looks into all repositories, and config.repos names some", Instead: "use gh issue list --search or gh pr list --search with -R"}
		}
	}
	return ops, nil
}

// number reads the pull request or issue that a command is about. A URL names
// its repository, which then is that of the call.
func (q *request) number(o string, issue bool) (string, error) {
	bad := &argv.Refusal{Rule: "operand", Arg: o, Reason: "argument " + argv.Quote(o) + " is neither a number nor a URL on " + q.policy.host, Instead: "write the number"}
	if n := strings.TrimPrefix(o, "#"); digits(n) {
		return n, nil
	}
	if strings.Contains(o, "://") {
		rest, ok := strings.CutPrefix(o, "https://"+q.policy.host+"/")
		parts := strings.Split(strings.TrimSuffix(rest, "/"), "/")
		if !ok || len(parts) != 4 || !digits(parts[3]) || parts[2] != "pull" && !(issue && parts[2] == "issues") {
			return "", bad
		}
		// -R may be there as well; then both must be the same.
		if given, ok := q.line.Get("--repo"); ok {
			r, err := q.policy.parseRepo(given)
			if err != nil {
				return "", err
			}
			q.repo = r
		}
		if !ownerName(parts[0] + "/" + parts[1]) {
			return "", bad
		}
		if err := q.setRepo(parts[0] + "/" + parts[1]); err != nil {
			return "", err
		}
		return parts[3], nil
	}
	if issue || !branch(o) {
		return "", bad
	}
	return o, nil
}

// branch is a branch or OWNER:BRANCH, in the plain forms.
func branch(s string) bool {
	return len(s) <= 250 && !strings.HasPrefix(s, "-") && !strings.HasPrefix(s, "/") && !strings.Contains(s, "..") && !strings.Contains(s, "//") &&
		strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:+") == ""
}
