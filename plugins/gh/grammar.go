package main

import (
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// style is that of Go's pflag, with which gh reads its arguments.
var style = argv.Style{ShortEquals: true}

// operand says what a command takes besides its flags.
type operand int

const (
	nothing     operand = iota
	pullNumber          // one: a number, #number, URL or branch
	pullMaybe           // the same, or none
	issueNumber         // one: a number, #number or URL
	runID               // one number, where the command needs one
	word                // at most one: a tag, a workflow
	name                // exactly one name
	repository          // at most one OWNER/NAME; the call's own otherwise
	owner               // one owner
	query               // any number of words to look for
	endpoint            // the endpoint of gh api
)

// command is one that gh may be asked.
type command struct {
	flags    *argv.Grammar
	takes    operand
	mutating bool
	// repo: -R names the repository. Commands without it name none, or name
	// it as an operand.
	repo bool
	// needs are flags without one of which gh would ask questions, start an
	// editor or look at the working directory.
	needs []string
}

// boolean is a flag that may be switched off by "=false", as pflag reads it.
func boolean(names string) argv.Flag {
	return argv.Flag{Names: names, Value: argv.Bool, Optional: true}
}

func booleans(names ...string) []argv.Flag {
	var out []argv.Flag
	for _, n := range names {
		out = append(out, boolean(n))
	}
	return out
}

func texts(names ...string) []argv.Flag {
	var out []argv.Flag
	for _, n := range names {
		out = append(out, argv.Flag{Names: n, Value: argv.OneLine})
	}
	return out
}

func refuse(names, why, instead string) argv.Flag {
	return argv.Flag{Names: names, Refuse: why, Instead: instead}
}

const (
	opensBrowser = "opens a browser"
	opensEditor  = "starts an editor"
	asksGit      = "runs git in the working directory"
)

var (
	help    = []argv.Flag{boolean("--help")}
	inRepo  = []argv.Flag{{Names: "-R --repo", Value: argv.OneLine}}
	noWeb   = []argv.Flag{refuse("-w --web", opensBrowser, "leave it out; --json gives what the page shows")}
	limit   = []argv.Flag{{Names: "-L --limit", Value: argv.Int(1, 1000)}}
	formats = []argv.Flag{
		{Names: "--json", Value: argv.Match("a list of fields", fieldList)},
		{Names: "-q --jq", Value: jq},
		{Names: "-t --template", Value: argv.Text},
	}
	bodies = []argv.Flag{
		{Names: "-b --body", Value: argv.Text},
		{Names: "-F --body-file", Value: argv.Text}, // checked with the files of the policy
	}
)

func list(lists ...[]argv.Flag) *argv.Grammar {
	return argv.New(style, append(lists, help)...)
}

func fieldList(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_,") == ""
}

// jq is an expression of gh's jq, in which "env" and "$ENV" are the variables
// of gh, its token among them.
func jq(v string, _ argv.Scope) (string, error) {
	for w := range strings.FieldsFuncSeq(v, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_')
	}) {
		switch w {
		case "env", "ENV", "input", "inputs", "input_filename", "import", "include", "debug", "stderr", "halt_error":
			return "", &argv.Refusal{Rule: "jq", Reason: "the word " + argv.Quote(w) + " of jq reaches the variables and files of the host", Instead: "leave --jq out, and let a jq of your own read the output"}
		}
	}
	return v, nil
}

var searchFormats = append(append([]argv.Flag{}, formats...), limit...)

// commands is everything that gh may be asked.
var commands = map[string]*command{
	"pr list": {repo: true, flags: list(inRepo, noWeb, limit, formats, booleans("-d --draft"),
		texts("--app", "-a --assignee", "-A --author", "-B --base", "-H --head", "-l --label", "-S --search"),
		[]argv.Flag{{Names: "-s --state", Value: argv.OneOf("open", "closed", "merged", "all")}})},
	"pr view":   {repo: true, takes: pullNumber, flags: list(inRepo, noWeb, formats, booleans("-c --comments"))},
	"pr status": {repo: true, flags: list(inRepo, formats, booleans("-c --conflict-status"))},
	"pr diff":   {repo: true, takes: pullNumber, flags: list(inRepo, noWeb, booleans("--name-only", "--patch"), []argv.Flag{{Names: "--color", Value: argv.OneOf("always", "never", "auto")}})},
	"pr checks": {repo: true, takes: pullNumber, flags: list(inRepo, noWeb, booleans("--required", "--watch"), []argv.Flag{{Names: "-i --interval", Value: argv.Int(1, 3600)}})},
	"pr create": {repo: true, mutating: true, needs: []string{"--head", "--title", "--body|--body-file"}, flags: list(inRepo, noWeb, bodies, booleans("-d --draft", "--no-maintainer-edit"),
		texts("-a --assignee", "-B --base", "-H --head", "-l --label", "-m --milestone", "-p --project", "-r --reviewer", "-t --title"),
		[]argv.Flag{refuse("-f --fill", asksGit, "write --title and --body"), refuse("--recover", "reads a file of the host", "write --title and --body")})},
	"pr edit": {repo: true, mutating: true, takes: pullNumber, flags: list(inRepo, bodies,
		texts("--add-assignee", "--add-label", "--add-project", "--add-reviewer", "-B --base", "-m --milestone", "--remove-assignee", "--remove-label", "--remove-project", "--remove-reviewer", "-t --title"))},
	"pr comment": {repo: true, mutating: true, takes: pullNumber, needs: []string{"--body|--body-file"}, flags: list(inRepo, noWeb, bodies, booleans("--edit-last"), []argv.Flag{refuse("-e --editor", opensEditor, "write --body")})},
	"pr close": {repo: true, mutating: true, takes: pullNumber, flags: list(inRepo, texts("-c --comment"), []argv.Flag{
		refuse("-d --delete-branch", "deletes a branch, here and there", "close without it")})},
	"pr reopen": {repo: true, mutating: true, takes: pullNumber, flags: list(inRepo, texts("-c --comment"))},
	"pr ready":  {repo: true, mutating: true, takes: pullNumber, flags: list(inRepo, booleans("--undo"))},
	"pr merge": {repo: true, mutating: true, takes: pullNumber, needs: []string{"--merge|--rebase|--squash|--disable-auto"}, flags: list(inRepo, bodies,
		booleans("--auto", "--disable-auto", "-m --merge", "-r --rebase", "-s --squash"),
		texts("-A --author-email", "-t --subject"),
		[]argv.Flag{{Names: "--match-head-commit", Value: argv.Match("a commit", hex)},
			refuse("--admin", "merges what its requirements do not let pass", "merge without it"),
			refuse("-d --delete-branch", "deletes a branch, here and there", "merge without it")})},
	"pr review": {repo: true, mutating: true, takes: pullNumber, needs: []string{"--approve|--comment|--request-changes"}, flags: list(inRepo, bodies, booleans("-a --approve", "-c --comment", "-r --request-changes"))},

	"issue list": {repo: true, flags: list(inRepo, noWeb, limit, formats,
		texts("--app", "-a --assignee", "-A --author", "-l --label", "--mention", "-m --milestone", "-S --search"),
		[]argv.Flag{{Names: "-s --state", Value: argv.OneOf("open", "closed", "all")}})},
	"issue view":   {repo: true, takes: issueNumber, flags: list(inRepo, noWeb, formats, booleans("-c --comments"))},
	"issue status": {repo: true, flags: list(inRepo, formats)},
	"issue create": {repo: true, mutating: true, needs: []string{"--title", "--body|--body-file"}, flags: list(inRepo, noWeb, bodies,
		texts("-a --assignee", "-l --label", "-m --milestone", "-p --project", "-t --title"),
		[]argv.Flag{refuse("--recover", "reads a file of the host", "write --title and --body")})},
	"issue edit": {repo: true, mutating: true, takes: issueNumber, flags: list(inRepo, bodies,
		texts("--add-assignee", "--add-label", "--add-project", "-m --milestone", "--remove-assignee", "--remove-label", "--remove-project", "-t --title"))},
	"issue comment": {repo: true, mutating: true, takes: issueNumber, needs: []string{"--body|--body-file"}, flags: list(inRepo, noWeb, bodies, booleans("--edit-last"), []argv.Flag{refuse("-e --editor", opensEditor, "write --body")})},
	"issue close":   {repo: true, mutating: true, takes: issueNumber, flags: list(inRepo, texts("-c --comment"), []argv.Flag{{Names: "-r --reason", Value: argv.OneOf("completed", "not planned")}})},
	"issue reopen":  {repo: true, mutating: true, takes: issueNumber, flags: list(inRepo, texts("-c --comment"))},

	"repo view": {takes: repository, flags: list(noWeb, formats, texts("-b --branch"))},
	"repo list": {takes: owner, flags: list(limit, formats, booleans("--archived", "--no-archived", "--fork", "--source"), texts("-l --language", "--topic"),
		[]argv.Flag{{Names: "--visibility", Value: argv.OneOf("public", "private", "internal")}})},

	"release list": {repo: true, flags: list(inRepo, limit, booleans("--exclude-drafts", "--exclude-pre-releases"))},
	"release view": {repo: true, takes: word, flags: list(inRepo, noWeb, formats)},
	"release download": {repo: true, takes: word, flags: list(inRepo, booleans("--clobber", "--skip-existing"), texts("-p --pattern"), []argv.Flag{
		{Names: "-A --archive", Value: argv.OneOf("zip", "tar.gz")},
		{Names: "-D --dir", Value: argv.Path},
		{Names: "-O --output", Value: argv.PathOr("-")}})},

	"run list":     {repo: true, flags: list(inRepo, limit, formats, texts("-b --branch", "-u --user", "-w --workflow"))},
	"run view":     {repo: true, takes: runID, flags: list(inRepo, noWeb, formats, booleans("--exit-status", "--log", "--log-failed", "-v --verbose"), []argv.Flag{{Names: "-j --job", Value: argv.Match("a number", digits)}})},
	"run watch":    {repo: true, takes: runID, flags: list(inRepo, booleans("--exit-status"), []argv.Flag{{Names: "-i --interval", Value: argv.Int(1, 3600)}})},
	"run download": {repo: true, takes: runID, flags: list(inRepo, texts("-n --name", "-p --pattern"), []argv.Flag{{Names: "-D --dir", Value: argv.Path}})},
	"run rerun":    {repo: true, mutating: true, takes: runID, flags: list(inRepo, booleans("-d --debug", "--failed"), []argv.Flag{{Names: "-j --job", Value: argv.Match("a number", digits)}})},
	"run cancel":   {repo: true, mutating: true, takes: runID, flags: list(inRepo)},

	"workflow list": {repo: true, flags: list(inRepo, limit, booleans("-a --all"))},
	"workflow view": {repo: true, takes: name, flags: list(inRepo, noWeb, booleans("-y --yaml"), texts("-r --ref"))},
	"workflow run": {repo: true, mutating: true, takes: name, needs: []string{"--ref"}, flags: list(inRepo, booleans("--json"), texts("-r --ref"), []argv.Flag{
		{Names: "-f --raw-field", Value: field},
		{Names: "-F --field", Value: field}})},

	"label list": {repo: true, flags: list(inRepo, noWeb, limit, formats, texts("-S --search"), []argv.Flag{
		{Names: "--order", Value: argv.OneOf("asc", "desc")}, {Names: "--sort", Value: argv.OneOf("created", "name")}})},
	"label create": {repo: true, mutating: true, takes: name, flags: list(inRepo, texts("-c --color", "-d --description"), booleans("-f --force"))},

	"search repos": {takes: query, flags: list(searchFormats, noWeb, booleans("--archived"),
		texts("--created", "--followers", "--forks", "--good-first-issues", "--help-wanted-issues", "--include-forks", "--language", "--license", "--match", "--number-topics", "--order", "--owner", "--size", "--sort", "--stars", "--topic", "--updated", "--visibility"))},
	"search issues": {takes: query, flags: list(searchFormats, noWeb, booleans("--archived", "--include-prs", "--locked", "--no-assignee", "--no-label", "--no-milestone", "--no-project"),
		texts("--app", "--assignee", "--author", "--closed", "--commenter", "--comments", "--created", "--interactions", "--involves", "--label", "--language", "--match", "--mentions", "--milestone", "--order", "--owner", "--project", "--reactions", "--repo", "--sort", "--state", "--team-mentions", "--updated", "--visibility"))},
	"search prs": {takes: query, flags: list(searchFormats, noWeb, booleans("--archived", "--draft", "--locked", "--merged", "--no-assignee", "--no-label", "--no-milestone", "--no-project"),
		texts("--app", "--assignee", "--author", "-B --base", "--checks", "--closed", "--commenter", "--comments", "--created", "-H --head", "--interactions", "--involves", "--label", "--language", "--match", "--mentions", "--merged-at", "--milestone", "--order", "--owner", "--project", "--reactions", "--repo", "--review", "--review-requested", "--reviewed-by", "--sort", "--state", "--team-mentions", "--updated", "--visibility"))},
	"search commits": {takes: query, flags: list(searchFormats, noWeb, booleans("--merge"),
		texts("--author", "--author-date", "--author-email", "--author-name", "--committer", "--committer-date", "--committer-email", "--committer-name", "--hash", "--order", "--owner", "--parent", "--repo", "--sort", "--tree", "--visibility"))},

	"api": {takes: endpoint, flags: list(booleans("-i --include", "--paginate", "--silent"), []argv.Flag{
		{Names: "-X --method", Value: argv.OneOf("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")},
		{Names: "-f --raw-field", Value: field},
		{Names: "-F --field", Value: typedField},
		{Names: "-H --header", Value: header},
		{Names: "--hostname", Value: argv.OneLine},
		{Names: "--input", Value: argv.Text}, // checked with the files of the policy
		{Names: "-p --preview", Value: argv.Match("a list of previews", fieldListDashed)},
		{Names: "--cache", Value: argv.Match("a duration like 60m", duration)},
		{Names: "-q --jq", Value: jq},
		{Names: "-t --template", Value: argv.Text},
	})},
}

// aliases are gh's own other names of subcommands.
var aliases = map[string]string{"ls": "list", "new": "create"}

// closed are the commands of gh that are refused whatever their flags, and
// why.
var closed = map[string][2]string{
	"alias":         {"makes of a name any command, shells among them", "write the command itself"},
	"auth":          {"handles the credentials of this host", "the operator gives gh its token"},
	"browse":        {opensBrowser, "use gh repo view or gh pr view"},
	"codespace":     {"opens shells on other machines", "do it on the site"},
	"completion":    {"prints a script for a shell", "take it from a gh of your own"},
	"config":        {"sets programs that gh runs", "the operator configures gh"},
	"extension":     {"installs and runs programs", "use gh api"},
	"gist":          {"publishes what it is given", "do it on the site"},
	"gpg-key":       {"handles keys", "do it on the site"},
	"org":           {"is not understood by this policy", "do it on the site"},
	"project":       {"is not understood by this policy", "do it on the site"},
	"secret":        {"handles secrets", "do it on the site"},
	"ssh-key":       {"handles keys", "do it on the site"},
	"variable":      {"changes what runs in GitHub Actions", "do it on the site"},
	"status":        {"looks into all repositories at once", "use gh pr status and gh issue status"},
	"pr checkout":   {"runs git, with the hooks of the working directory", "use git fetch origin pull/NUMBER/head, then git checkout"},
	"pr lock":       {"is not an everyday command", "do it on the site"},
	"pr unlock":     {"is not an everyday command", "do it on the site"},
	"issue delete":  {"destroys what others wrote", "use gh issue close"},
	"issue develop": {asksGit, "use git branch"},
	"issue transfer": {
		"moves what others wrote", "do it on the site"},
	"repo archive":     {"changes the repository itself", "do it on the site"},
	"repo clone":       {"runs git", "use git clone"},
	"repo create":      {"makes repositories", "do it on the site"},
	"repo delete":      {"destroys a repository", "do it on the site"},
	"repo deploy-key":  {"handles keys", "do it on the site"},
	"repo edit":        {"changes the repository itself", "do it on the site"},
	"repo fork":        {"makes repositories and runs git", "do it on the site"},
	"repo rename":      {"changes the repository itself", "do it on the site"},
	"repo set-default": {"changes the configuration of the working directory", "use -R OWNER/NAME"},
	"repo sync":        {"runs git", "use git pull and git push"},
	"release create":   {"publishes", "the operator may list POST repos/*/*/releases in config.api"},
	"release delete":   {"destroys what is published", "do it on the site"},
	"release edit":     {"changes what is published", "do it on the site"},
	"release upload":   {"publishes files", "do it on the site"},
	"run delete":       {"destroys a record", "do it on the site"},
	"workflow disable": {"changes what runs in GitHub Actions", "do it on the site"},
	"workflow enable":  {"changes what runs in GitHub Actions", "do it on the site"},
	"label clone":      {"is not an everyday command", "do it on the site"},
	"label delete":     {"destroys what others use", "do it on the site"},
	"label edit":       {"is not an everyday command", "use gh label create --force"},
}

func digits(s string) bool { return s != "" && len(s) < 20 && strings.Trim(s, "0123456789") == "" }

func hex(s string) bool {
	return len(s) >= 7 && len(s) <= 64 && strings.Trim(s, "0123456789abcdef") == ""
}

func fieldListDashed(s string) bool { return fieldList(strings.ReplaceAll(s, "-", "_")) }

func duration(s string) bool {
	n := strings.TrimRight(s, "smh")
	return len(s) == len(n)+1 && digits(n)
}

// field is KEY=VALUE, the value being text and nothing else.
func field(v string, _ argv.Scope) (string, error) {
	key, _, ok := strings.Cut(v, "=")
	if !ok || key == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]") != "" {
		return "", &argv.Refusal{Rule: "flag.value", Reason: "it is not KEY=VALUE", Instead: "write KEY=VALUE"}
	}
	return v, nil
}

// typedField is a field in which gh replaces {owner} and the like, for which
// it may ask git. "@file" is checked with the files of the policy.
func typedField(v string, in argv.Scope) (string, error) {
	if _, err := field(v, in); err != nil {
		return "", err
	}
	_, value, _ := strings.Cut(v, "=")
	for _, s := range []string{"{owner}", "{repo}", "{branch}", ":owner", ":repo", ":branch"} {
		if !strings.HasPrefix(value, "@") && strings.Contains(value, s) {
			return "", &argv.Refusal{Rule: "flag.value", Reason: "gh would put another value in the place of " + s, Instead: "write the value itself, or use --raw-field"}
		}
	}
	return v, nil
}

// header admits what asks for a form of the answer.
func header(v string, _ argv.Scope) (string, error) {
	key, value, ok := strings.Cut(v, ":")
	switch strings.ToLower(key) {
	case "accept", "x-github-api-version", "if-none-match", "if-modified-since", "time-zone":
	default:
		ok = false
	}
	if !ok || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", &argv.Refusal{Rule: "flag.value", Reason: "it is not one of Accept, X-GitHub-Api-Version, If-None-Match, If-Modified-Since, Time-Zone", Instead: "leave it out"}
	}
	return v, nil
}
