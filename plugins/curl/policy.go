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
	hosts []hostRule
	// proxy is the operator's proxy, which sees all requests.
	proxy string
	// anyRedirect lets -L follow to hosts that are not listed.
	anyRedirect bool
	// methods are the methods that are allowed; none is the usual seven.
	methods []string
	// files: @FILE and the like read beneath the roots. Without it a
	// caller's shell opens the file instead.
	files    bool
	insecure bool
}

func newPolicy(config func(string) string) (*policy, error) {
	p := &policy{proxy: config("proxy")}
	for _, s := range list(config("hosts")) {
		r, err := parseHostRule(s)
		if err != nil {
			return nil, err
		}
		p.hosts = append(p.hosts, r)
	}
	if p.proxy != "" {
		if t, err := parseURL(p.proxy); err != nil || !strings.HasPrefix(p.proxy, t.scheme+"://") {
			return nil, errors.New("proxy: not an http:// or https:// URL")
		}
	}
	switch v := config("redirects"); v {
	case "", "hosts":
	case "any":
		p.anyRedirect = true
	default:
		return nil, errors.New("redirects: " + strconv.Quote(v) + " is neither hosts nor any")
	}
	switch v := config("files"); v {
	case "", "stdin":
	case "roots":
		p.files = true
	default:
		return nil, errors.New("files: " + strconv.Quote(v) + " is neither roots nor stdin")
	}
	switch v := config("insecure"); v {
	case "", "false":
	case "true":
		p.insecure = true
	default:
		return nil, errors.New("insecure: " + strconv.Quote(v) + " is neither true nor false")
	}
	for _, m := range list(config("methods")) {
		if !slices.Contains(knownMethods, m) {
			return nil, errors.New("methods: " + strconv.Quote(m) + " is none of " + strings.Join(knownMethods, ", "))
		}
		p.methods = append(p.methods, m)
	}
	if p.methods == nil {
		p.methods = knownMethods
	}
	return p, nil
}

// list splits a value of config at commas and white space.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

var knownMethods = []string{"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"}

// maxRedirects bounds -L where the caller does not, and the caller too.
const maxRedirects = 10

// offHost stands where curl expects a proxy for every host that is not
// listed. It is none, and it is what curl then complains of.
const offHost = "a redirect to a host that the policy does not allow"

func refuse(err error) *abi.Decision {
	var r *argv.Refusal
	if !errors.As(err, &r) {
		r = &argv.Refusal{Rule: "refused", Reason: err.Error()}
	}
	return pdk.Deny("curl."+r.Rule, r.Reason, r.Instead)
}

// decide answers a call. It never panics and reads nothing but c and p.
func (p *policy) decide(c *abi.Call) *abi.Decision {
	args, stdin, method, err := p.rewrite(c)
	if err != nil {
		return refuse(err)
	}
	mutating := method != "GET" && method != "HEAD" && method != "OPTIONS"
	if c.ReadOnly && mutating {
		return pdk.Deny("curl.read_only", "this call may only read, and "+method+" changes something", "use GET or HEAD, or make the call where writing is allowed")
	}
	d := pdk.Allow()
	d.Rule = "curl." + strings.ToLower(method)
	d.Args, d.Mutating, d.Stdin = args, &mutating, &stdin
	return d
}

func (p *policy) rewrite(c *abi.Call) (args []string, stdin bool, method string, err error) {
	fail := func(err error) ([]string, bool, string, error) { return nil, false, "", err }
	if err := argv.CheckEnv(c.Env); err != nil {
		return fail(err)
	}
	scope := argv.Scope{Cwd: c.Cwd, Roots: c.Roots}
	line, err := grammar.Parse(c.Args, scope)
	if err != nil {
		return fail(err)
	}
	if line.Has("--version") || line.Has("--help") {
		category := ""
		for _, it := range line.Items {
			if it.Flag == nil && category == "" && line.Has("--help") && !strings.ContainsFunc(it.Value, func(c rune) bool { return c < 'a' || c > 'z' }) {
				category = it.Value
			} else if it.Name != "--version" && it.Name != "--help" {
				return fail(&argv.Refusal{Rule: "url.none", Reason: "--version and --help stand alone", Instead: "leave the rest out"})
			}
		}
		if line.Has("--version") {
			return []string{"-q", "--version"}, false, "GET", nil
		}
		return append([]string{"-q", "--help"}, strings.Fields(category)...), false, "GET", nil
	}

	if line.Has("--insecure") && !p.insecure {
		return fail(&argv.Refusal{Rule: "flag.refused", Arg: "--insecure", Reason: `flag "--insecure" turns off the check of the server's certificate`, Instead: "use --cacert with the certificate of the server's authority, or have the operator set config.insecure"})
	}
	b := &body{policy: p, scope: scope}
	if dir, ok := line.Get("--output-dir"); ok {
		for _, name := range line.Values("--output") {
			// curl joins the two without a look at either.
			if strings.HasPrefix(name, "/") || name == ".." || strings.HasPrefix(name, "../") {
				return fail(&argv.Refusal{Rule: "path.outside", Arg: "--output", Reason: "path " + argv.Quote(name) + " leads out of --output-dir " + argv.Quote(dir), Instead: "name a file beneath it"})
			}
		}
	}
	var flags, urls []string
	for _, it := range line.Items {
		if it.Flag == nil || it.Name == "--url" {
			urls = append(urls, it.Value)
			continue
		}
		written, err := b.flag(line, it)
		if err != nil {
			return fail(err)
		}
		flags = append(flags, written...)
	}
	if b.output > len(urls) {
		return fail(&argv.Refusal{Rule: "url.few", Reason: "there are more output files than URLs", Instead: "give each URL one -o or -O"})
	}
	if method, err = b.method(line, p.methods); err != nil {
		return fail(err)
	}

	targets, err := p.targets(urls, line.Has("--globoff"))
	if err != nil {
		return fail(err)
	}
	pins, err := p.pins(line, targets)
	if err != nil {
		return fail(err)
	}
	args = append(append(pins, flags...), "--")
	for _, t := range targets {
		args = append(args, t.url)
	}
	return args, b.stdin, method, nil
}

// targets reads the URLs and checks their hosts.
func (p *policy) targets(urls []string, globoff bool) ([]*target, error) {
	if len(urls) == 0 {
		return nil, &argv.Refusal{Rule: "url.none", Reason: "there is no URL", Instead: "give one"}
	}
	var out []*target
	for _, u := range urls {
		t, err := parseURL(u)
		if err != nil {
			return nil, &argv.Refusal{Rule: "url", Arg: u, Reason: "URL " + argv.Quote(u) + " is not understood: " + err.Error(), Instead: "write http://HOST/PATH or https://HOST/PATH"}
		}
		// The pins turn globbing off; who meant it must be told.
		if !globoff && strings.ContainsAny(t.tail, "{}[]") {
			return nil, &argv.Refusal{Rule: "url.glob", Arg: u, Reason: "URL " + argv.Quote(u) + " is a pattern for several", Instead: "write one URL for each, or --globoff if the brackets are meant as they are"}
		}
		if !slices.ContainsFunc(p.hosts, func(r hostRule) bool { return r.allows(t) }) {
			return nil, p.refuseHost(t)
		}
		out = append(out, t)
	}
	return out, nil
}

func (p *policy) refuseHost(t *target) error {
	where := t.host
	if t.addr.Is6() {
		where = "[" + where + "]"
	}
	if t.port != defaultPort(t.scheme) {
		where += ":" + strconv.Itoa(t.port)
	}
	r := &argv.Refusal{Rule: "host", Arg: t.url, Reason: "host " + argv.Quote(where) + " is not one that this tool may ask",
		Instead: `the operator adds it to config.hosts in tools.d/curl/tool.json: "hosts": "` + where + `"`}
	switch {
	case len(p.hosts) == 0:
		r.Reason = "no host is allowed yet, and so neither is " + argv.Quote(where)
	case !t.public():
		r.Rule = "host.private"
		r.Reason = "host " + argv.Quote(where) + " is not a public one and is not named in config.hosts"
	}
	return r
}

// pins are the arguments in front of all others.
func (p *policy) pins(line *argv.Line, targets []*target) ([]string, error) {
	protocols := "=https"
	for _, t := range targets {
		if t.scheme == "http" {
			protocols = "=http,https"
		}
	}
	// -q counts only as the very first argument. --globoff makes of each URL
	// one URL.
	pins := []string{"-q", "--globoff", "--proto", "=http,https", "--proto-redir", protocols}
	if line.Has("--location") && !hasValue(line, "--max-redirs") {
		pins = append(pins, "--max-redirs", strconv.Itoa(maxRedirects))
	}
	switch {
	case p.proxy != "":
		// All requests pass the operator's proxy; the list of hosts that
		// need none cannot be used up for the pin below.
		if line.Has("--location") && !p.anyRedirect {
			return nil, &argv.Refusal{Rule: "redirect.proxy", Arg: "--location", Reason: `flag "--location" may lead to any host, and behind a proxy curl cannot be held to the hosts of this tool`,
				Instead: "ask without it and follow the Location header by a call of its own, or have the operator set config.redirects to any"}
		}
		pins = append(pins, "--proxy", p.proxy, "--noproxy", "")
	case !p.anyRedirect:
		// For a host that is not in the list curl now needs a proxy, whose
		// address is not one: it sends nothing.
		pins = append(pins, "--proxy", offHost, "--noproxy", strings.Join(p.direct(targets), ","))
	}
	return pins, nil
}

// direct are the hosts that curl may connect to: those that are named, and
// where all public ones are allowed, those of this very call, since by
// redirect "all public" would lead to names that resolve to private addresses.
func (p *policy) direct(targets []*target) []string {
	var out []string
	add := func(h string) {
		if !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	for _, t := range targets {
		add(t.host)
	}
	for _, r := range p.hosts {
		switch {
		case r.suffix != "":
			add(r.suffix)
		case r.host != "":
			add(r.host)
		}
	}
	return out
}

func hasValue(line *argv.Line, name string) bool {
	_, ok := line.Get(name)
	return ok
}
