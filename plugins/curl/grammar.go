package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/toold/toold/pdk/argv"
)

// style: curl reads "--name value" only, and "-nvalue" or "-n value".
var style = argv.Style{NoEquals: true}

const (
	other    = "reaches other hosts or sockets than the URL names"
	reads    = "reads a file of the host"
	provider = "is the host's to decide"
)

// file is a file to write. "-" is standard output; /dev/null is everybody's.
var file = argv.PathOr("-", "/dev/null")

// grammar is what curl may be asked. A value that can name a file in a way of
// its own (-d, -F, -H, -w, ...) is argv.Text here and read in body.flag.
var grammar = argv.New(style, []argv.Flag{
	// Where to, and how the answer is shown.
	{Names: "--url", Value: argv.NonEmpty},
	{Names: "-X --request", Value: argv.Text},
	{Names: "-I --head"},
	{Names: "-G --get"},
	{Names: "-L --location"},
	{Names: "--max-redirs", Value: argv.Int(0, 50)},
	{Names: "--post301"}, {Names: "--post302"}, {Names: "--post303"},
	{Names: "-i --include"},
	{Names: "-s --silent"},
	{Names: "-S --show-error"},
	{Names: "-v --verbose"},
	{Names: "-# --progress-bar"},
	{Names: "--no-progress-meter"},
	{Names: "-N --no-buffer"},
	{Names: "-f --fail"},
	{Names: "--fail-with-body"},
	{Names: "--fail-early"},
	{Names: "-w --write-out", Value: argv.Text},
	{Names: "--styled-output"}, {Names: "--no-styled-output"},
	{Names: "-V --version"},
	{Names: "-h --help"},
	{Names: "-q --disable"},
	{Names: "-g --globoff"},

	// What is sent.
	{Names: "-H --header", Value: argv.Text},
	{Names: "-A --user-agent", Value: argv.OneLine},
	{Names: "-e --referer", Value: argv.OneLine},
	{Names: "-b --cookie", Value: argv.Text},
	{Names: "-j --junk-session-cookies"},
	{Names: "-d --data", Value: argv.Text},
	{Names: "--data-ascii", Value: argv.Text},
	{Names: "--data-binary", Value: argv.Text},
	{Names: "--data-raw", Value: argv.Text},
	{Names: "--data-urlencode", Value: argv.Text},
	{Names: "--url-query", Value: argv.Text},
	{Names: "--json", Value: argv.Text},
	{Names: "-F --form", Value: argv.Text},
	{Names: "--form-string", Value: argv.Text},
	{Names: "-T --upload-file", Value: argv.Text},
	{Names: "-u --user", Value: user},
	{Names: "--oauth2-bearer", Value: secretLine},
	{Names: "--basic"}, {Names: "--digest"}, {Names: "--anyauth"},
	{Names: "--aws-sigv4", Value: argv.OneLine},
	{Names: "-r --range", Value: argv.Match("a range of bytes", func(v string) bool { return v != "" && strings.Trim(v, "0123456789-,") == "" })},
	{Names: "-C --continue-at", Value: argv.Match("- or a number of bytes", func(v string) bool { return v == "-" || digits(v) })},
	{Names: "--compressed"}, {Names: "--tr-encoding"}, {Names: "--raw"},
	{Names: "--etag-compare", Value: argv.Text},
	{Names: "--expect100-timeout", Value: argv.Seconds(3600)},
	{Names: "--ignore-content-length"},
	{Names: "--path-as-is"},

	// What is written.
	{Names: "-o --output", Value: file},
	{Names: "-O --remote-name"},
	{Names: "--remote-name-all"},
	{Names: "--output-dir", Value: argv.Path},
	{Names: "--create-dirs"},
	{Names: "--no-clobber"},
	{Names: "--remove-on-error"},
	{Names: "-R --remote-time"},
	{Names: "-D --dump-header", Value: file},
	{Names: "-c --cookie-jar", Value: file},
	{Names: "--etag-save", Value: file},
	{Names: "--stderr", Value: file},
	{Names: "--trace", Value: file},
	{Names: "--trace-ascii", Value: file},
	{Names: "--trace-time"},

	// Bounds and transport.
	{Names: "-m --max-time", Value: argv.Seconds(86400)},
	{Names: "--connect-timeout", Value: argv.Seconds(86400)},
	{Names: "--max-filesize", Value: argv.Match("a number of bytes, with k, M or G", size)},
	{Names: "--limit-rate", Value: argv.Match("a number of bytes, with k, M or G", size)},
	{Names: "-y --speed-time", Value: argv.Int(0, 86400)},
	{Names: "-Y --speed-limit", Value: argv.Int(0, 1<<40)},
	{Names: "--retry", Value: argv.Int(0, 10)},
	{Names: "--retry-delay", Value: argv.Int(0, 600)},
	{Names: "--retry-max-time", Value: argv.Int(0, 3600)},
	{Names: "--retry-connrefused"},
	{Names: "--retry-all-errors"},
	{Names: "--keepalive-time", Value: argv.Int(1, 86400)},
	{Names: "--no-keepalive"},
	{Names: "-Z --parallel"},
	{Names: "--parallel-immediate"},
	{Names: "--parallel-max", Value: argv.Int(1, 50)},
	{Names: "--rate", Value: argv.Match("a rate like 10/m", func(v string) bool { return v != "" && strings.Trim(v, "0123456789/smhd") == "" })},
	{Names: "-4 --ipv4"}, {Names: "-6 --ipv6"},
	{Names: "-0 --http1.0"}, {Names: "--http1.1"}, {Names: "--http2"}, {Names: "--http2-prior-knowledge"},
	{Names: "--http3"},
	{Names: "--no-alpn"}, {Names: "--no-sessionid"},
	{Names: "--tcp-nodelay"}, {Names: "--tcp-fastopen"},
	{Names: "-1 --tlsv1"}, {Names: "--tlsv1.0"}, {Names: "--tlsv1.1"}, {Names: "--tlsv1.2"}, {Names: "--tlsv1.3"},
	{Names: "--tls-max", Value: argv.OneOf("default", "1.0", "1.1", "1.2", "1.3")},
	{Names: "-k --insecure"},
	{Names: "--cacert", Value: argv.Path}, // read, but neither sent nor shown
	{Names: "--pinnedpubkey", Value: argv.Match("a list of sha256//HASH", func(v string) bool {
		return !slices.ContainsFunc(strings.Split(v, ";"), func(s string) bool { return !strings.HasPrefix(s, "sha256//") })
	})},

	// Known, and refused.
	{Names: "-K --config", Refuse: "reads further arguments from a file, past this policy", Instead: "give the arguments themselves"},
	{Names: "-: --next", Refuse: "begins a request without this policy's pins", Instead: "make a call of its own"},
	{Names: "--libcurl", Refuse: "writes a program", Instead: "leave it out"},
	{Names: "-J --remote-header-name", Refuse: "lets the server choose the name of a file", Instead: "use -o NAME"},
	{Names: "--location-trusted", Refuse: "sends credentials to whatever host a redirect names", Instead: "use --location"},
	{Names: "--proto", Refuse: provider + ": http and https", Instead: "leave it out"},
	{Names: "--proto-redir", Refuse: provider + ": http and https", Instead: "leave it out"},
	{Names: "--proto-default", Refuse: provider, Instead: "write the protocol in the URL"},
	{Names: "--unix-socket", Refuse: other, Instead: "leave it out"},
	{Names: "--abstract-unix-socket", Refuse: other, Instead: "leave it out"},
	{Names: "--connect-to", Refuse: other, Instead: "name the host in the URL"},
	{Names: "--resolve", Refuse: other, Instead: "name the host in the URL"},
	{Names: "--request-target", Refuse: other, Instead: "write the path in the URL"},
	{Names: "--haproxy-protocol", Refuse: "tells the server another origin", Instead: "leave it out"},
	{Names: "--doh-url", Refuse: other, Instead: "leave it out"},
	{Names: "--doh-insecure", Refuse: other, Instead: "leave it out"}, {Names: "--doh-cert-status", Refuse: other, Instead: "leave it out"},
	{Names: "--dns-interface", Refuse: provider, Instead: "leave it out"}, {Names: "--dns-ipv4-addr", Refuse: provider, Instead: "leave it out"},
	{Names: "--dns-ipv6-addr", Refuse: provider, Instead: "leave it out"}, {Names: "--dns-servers", Refuse: provider, Instead: "leave it out"},
	{Names: "--interface", Refuse: provider, Instead: "leave it out"},
	{Names: "--local-port", Refuse: provider, Instead: "leave it out"},
	{Names: "-x --proxy", Refuse: provider, Instead: "leave it out; the operator sets config.proxy"},
	{Names: "--preproxy", Refuse: provider, Instead: "leave it out"}, {Names: "--proxy1.0", Refuse: provider, Instead: "leave it out"},
	{Names: "--socks4", Refuse: provider, Instead: "leave it out"}, {Names: "--socks4a", Refuse: provider, Instead: "leave it out"},
	{Names: "--socks5", Refuse: provider, Instead: "leave it out"}, {Names: "--socks5-hostname", Refuse: provider, Instead: "leave it out"},
	{Names: "-p --proxytunnel", Refuse: provider, Instead: "leave it out"}, {Names: "--noproxy", Refuse: provider, Instead: "leave it out"},
	{Names: "-U --proxy-user", Refuse: provider, Instead: "leave it out"}, {Names: "--proxy-header", Refuse: provider, Instead: "leave it out"},
	{Names: "-n --netrc", Refuse: "reads passwords of the host", Instead: "leave it out"},
	{Names: "--netrc-file", Refuse: "reads passwords from a file", Instead: "use --user"},
	{Names: "--netrc-optional", Refuse: "reads passwords of the host", Instead: "leave it out"},
	{Names: "--negotiate", Refuse: "uses the Kerberos tickets of the host", Instead: "leave it out"},
	{Names: "--ntlm", Refuse: "uses NTLM", Instead: "use --basic or --digest"},
	{Names: "--ntlm-wb", Refuse: "runs a program", Instead: "use --basic or --digest"},
	{Names: "--delegation", Refuse: "uses the Kerberos tickets of the host", Instead: "leave it out"},
	{Names: "--engine", Refuse: "loads code", Instead: "leave it out"},
	{Names: "-E --cert", Refuse: "may load code (pkcs11:) or read a key of the host", Instead: "leave it out"},
	{Names: "--key", Refuse: "may load code (pkcs11:) or read a key of the host", Instead: "leave it out"},
	{Names: "--capath", Refuse: reads, Instead: "use --cacert"},
	{Names: "--crlfile", Refuse: reads, Instead: "leave it out"}, {Names: "--egd-file", Refuse: other, Instead: "leave it out"}, {Names: "--random-file", Refuse: reads, Instead: "leave it out"},
	{Names: "--pubkey", Refuse: reads, Instead: "leave it out"}, {Names: "-z --time-cond", Refuse: "may read a file", Instead: "use -H 'If-Modified-Since: ...'"},
	{Names: "--alt-svc", Refuse: other, Instead: "leave it out"},
	{Names: "--hsts", Refuse: "keeps a file between calls", Instead: "write https in the URL"},
	{Names: "-M --manual", Refuse: "starts a pager", Instead: "read curl.se/docs"},
})

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func size(s string) bool {
	return digits(strings.TrimRight(s, "kKmMgG")) && len(strings.TrimLeft(s, "0123456789")) <= 1
}

// user does not show its value, which is a password.
func user(v string, in argv.Scope) (string, error) {
	if !strings.Contains(v, ":") {
		return "", errors.New("without a password curl would ask for one; write NAME:PASSWORD")
	}
	return secretLine(v, in)
}

func secretLine(v string, _ argv.Scope) (string, error) {
	if v == "" || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", errors.New("the value is empty or holds a control character")
	}
	return v, nil
}

// body reads the flags whose value may name a file, and remembers what they
// make of the request.
type body struct {
	policy *policy
	scope  argv.Scope
	stdin  bool
	// data, form, upload: what is sent as the body.
	data, form, upload bool
	output             int
}

// flag answers how one flag is written for curl.
func (b *body) flag(line *argv.Line, it argv.Item) ([]string, error) {
	fail := func(err error) ([]string, error) {
		r, ok := err.(*argv.Refusal)
		if !ok {
			r = &argv.Refusal{Rule: "flag.value", Reason: err.Error()}
		}
		return nil, &argv.Refusal{Rule: r.Rule, Arg: it.Name, Reason: "flag " + argv.Quote(it.Name) + ": " + r.Reason, Instead: r.Instead}
	}
	v, err := it.Value, error(nil)
	switch it.Name {
	case "--globoff", "--disable":
		return nil, nil // among the pins

	case "--output", "--remote-name":
		b.output++
	case "--data", "--data-ascii", "--data-binary", "--json":
		b.data = true
		if after, ok := strings.CutPrefix(v, "@"); ok {
			v, err = b.read(after)
			v = "@" + v
		}
	case "--data-raw":
		b.data = true
	case "--data-urlencode", "--url-query":
		b.data = b.data || it.Name == "--data-urlencode"
		// curl looks for "=" first; only without one "@" means a file. In
		// --url-query a "+" in front takes the rest as it is.
		if !strings.Contains(v, "=") && !(it.Name == "--url-query" && strings.HasPrefix(v, "+")) {
			if name, path, ok := strings.Cut(v, "@"); ok {
				path, err = b.read(path)
				v = name + "@" + path
			}
		}
	case "--form":
		b.form = true
		return b.formPart(it, fail)
	case "--form-string":
		b.form = true
		if name, _, ok := strings.Cut(v, "="); !ok || !formName(name) {
			return fail(errors.New("write NAME=TEXT"))
		}
	case "--upload-file":
		b.upload = true
		if v == "." {
			b.stdin = true
		} else {
			v, err = b.read(v)
		}
	case "--cookie":
		// Without "=" it is the name of a file; an empty one only turns
		// cookies on.
		if v != "" && !strings.Contains(v, "=") {
			v, err = b.read(v)
		} else if v != "" {
			_, err = secretLine(v, b.scope)
		}
	case "--header":
		if after, ok := strings.CutPrefix(v, "@"); ok {
			// Headers are checked one by one; those of a file are not seen.
			err = &argv.Refusal{Rule: "flag.value", Reason: "headers from " + argv.Quote(after) + " are not seen by this policy", Instead: "write each header with a -H of its own"}
		} else {
			err = checkHeader(v)
		}
	case "--write-out":
		if after, ok := strings.CutPrefix(v, "@"); ok {
			// What a file says is not seen here, and %output{FILE} writes.
			err = &argv.Refusal{Rule: "flag.value", Reason: "a format from " + argv.Quote(after) + " is not seen by this policy", Instead: "write the format itself"}
		} else if strings.Contains(strings.ToLower(v), "%output{") {
			err = &argv.Refusal{Rule: "flag.value", Reason: "%output{} writes a file", Instead: "use -o, or redirect the output"}
		}
	case "--etag-compare":
		v, err = b.read(v)
	}
	if err != nil {
		return fail(err)
	}
	if it.HasValue {
		return []string{it.Name, v}, nil
	}
	return []string{it.Name}, nil
}

// read answers the path of a file that is read and sent, or "-".
func (b *body) read(path string) (string, error) {
	if path == "-" {
		b.stdin = true
		return path, nil
	}
	clean, err := b.scope.Path(path)
	if err == nil && !b.policy.files {
		err = &argv.Refusal{Rule: "path.file", Reason: "file " + argv.Quote(path) + " would be opened by the host, where it may be a symlink to another", Instead: "let your own shell open it: write - for the name, and < FILE after the command; or the operator sets config.files to roots"}
	}
	return clean, err
}

// checkHeader admits "Name: value", "Name:" and "Name;".
func checkHeader(v string) error {
	i := strings.IndexAny(v, ":;")
	if i <= 0 {
		return errors.New("a header is written NAME: VALUE")
	}
	if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return errors.New("a header holds a control character")
	}
	if v[i] == ';' && i != len(v)-1 {
		return errors.New("a header is written NAME: VALUE")
	}
	name := strings.ToLower(v[:i])
	if strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	}) {
		return errors.New("the name of a header holds other characters than letters, digits and hyphens")
	}
	switch name {
	case "host":
		return &argv.Refusal{Rule: "header.host", Reason: "header Host asks for another host than the URL names", Instead: "name the host in the URL"}
	case "connection":
		if v := strings.ToLower(strings.TrimSpace(v[i+1:])); v != "close" && v != "keep-alive" {
			return &argv.Refusal{Rule: "header.framing", Reason: "header Connection may only say close or keep-alive", Instead: "leave it out"}
		}
	case "content-length", "upgrade", "te", "trailer", "proxy-connection":
		return &argv.Refusal{Rule: "header.framing", Reason: "header " + argv.Quote(name) + " changes how the request is framed", Instead: "leave it out; curl sets it"}
	case "transfer-encoding":
		if strings.ToLower(strings.TrimSpace(v[i+1:])) != "chunked" {
			return &argv.Refusal{Rule: "header.framing", Reason: "header Transfer-Encoding may only say chunked", Instead: "leave it out"}
		}
	case "x-http-method", "x-http-method-override", "x-method-override":
		return &argv.Refusal{Rule: "header.method", Reason: "header " + argv.Quote(name) + " hides the method", Instead: "use -X"}
	}
	if strings.HasPrefix(name, "proxy-") {
		return &argv.Refusal{Rule: "header.proxy", Reason: "header " + argv.Quote(name) + " speaks to a proxy", Instead: "leave it out"}
	}
	return nil
}

// formPart reads the part of -F that this policy understands:
//
//	name=text            written anew as --form-string, which reads nothing into it
//	name=text;type=T
//	name=@file  name=<file  with ;type=T and ;filename=F after it
func (b *body) formPart(it argv.Item, fail func(error) ([]string, error)) ([]string, error) {
	name, content, ok := strings.Cut(it.Value, "=")
	if !ok || !formName(name) {
		return fail(errors.New("write NAME=CONTENT"))
	}
	unclear := &argv.Refusal{Rule: "flag.value", Reason: "content " + argv.Quote(content) + " is not understood", Instead: "use --form-string for text, or NAME=@FILE;type=TYPE;filename=NAME"}
	if content == "" || content[0] != '@' && content[0] != '<' {
		text, typ, hasType := strings.Cut(content, ";type=")
		if hasType && mediaType(typ) && !strings.Contains(text, ";") && text != "" && !strings.ContainsAny(text[:1], "\"() \t") {
			return []string{"--form", name + "=" + text + ";type=" + typ}, nil
		}
		if strings.Contains(content, ";") || strings.HasPrefix(content, "(") || strings.HasPrefix(content, ")") {
			return fail(unclear)
		}
		if strings.HasPrefix(content, `"`) {
			return fail(unclear)
		}
		return []string{"--form-string", name + "=" + content}, nil
	}
	parts := strings.Split(content[1:], ";")
	if strings.ContainsAny(parts[0], ",\"\\\r\n") || strings.TrimSpace(parts[0]) != parts[0] {
		return fail(unclear)
	}
	path, err := b.read(parts[0])
	if err != nil {
		return fail(err)
	}
	out := name + "=" + content[:1] + path
	for _, p := range parts[1:] {
		k, v, _ := strings.Cut(p, "=")
		switch {
		case k == "type" && mediaType(v):
		case k == "filename" && v != "" && !strings.ContainsAny(v, ",\"\\\r\n") && strings.TrimSpace(v) == v:
		default:
			return fail(unclear)
		}
		out += ";" + k + "=" + v
	}
	return []string{"--form", out}, nil
}

func formName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '"' || r == '\\' })
}

// mediaType is "text/plain" and the like, without parameters.
func mediaType(s string) bool {
	a, b, ok := strings.Cut(s, "/")
	word := func(s string) bool {
		return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("+-._", r))
		})
	}
	return ok && word(a) && word(b)
}

// method is the method that curl will use, or a worse one: a GET that carries
// a body counts as POST.
func (b *body) method(line *argv.Line, allowed []string) (string, error) {
	get := line.Has("--get")
	method := "GET"
	switch {
	case line.Has("--head"):
		method = "HEAD"
	case b.upload:
		method = "PUT"
	case b.form, b.data && !get:
		method = "POST"
	}
	if m, ok := line.Get("--request"); ok {
		if !slices.Contains(knownMethods, m) {
			return "", &argv.Refusal{Rule: "method", Arg: "--request", Reason: "method " + argv.Quote(m) + " is not known", Instead: "use one of " + strings.Join(knownMethods, ", ") + ", in capitals"}
		}
		if !slices.Contains(allowed, m) {
			return "", refuseMethod(m, allowed)
		}
		safe := m == "GET" || m == "HEAD" || m == "OPTIONS"
		if !safe || method == "GET" || method == "HEAD" {
			method = m
		}
	}
	if !slices.Contains(allowed, method) {
		return "", refuseMethod(method, allowed)
	}
	return method, nil
}

func refuseMethod(m string, allowed []string) error {
	return &argv.Refusal{Rule: "method", Arg: "--request", Reason: "method " + m + " is not allowed here", Instead: "use one of " + strings.Join(allowed, ", ")}
}
