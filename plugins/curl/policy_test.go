package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func config(m map[string]string) func(string) string {
	return func(k string) string { return m[k] }
}

func testPolicy(t testing.TB, conf map[string]string) *policy {
	t.Helper()
	p, err := newPolicy(config(conf))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func call(args ...string) *abi.Call {
	return &abi.Call{Tool: "curl", Args: args, Cwd: "/w/a", Roots: []string{"/w"}}
}

var named = map[string]string{"hosts": "example.com, *.example.org, 127.0.0.1:8080, [::1]:8080, api.test:*", "files": "roots"}

// after is what follows the pins.
func after(t testing.TB, d *abi.Decision) []string {
	t.Helper()
	i := slices.Index(d.Args, "--noproxy")
	if i < 0 || d.Args[0] != "-q" {
		t.Fatalf("no pins in %q", d.Args)
	}
	return d.Args[i+2:]
}

func TestAllowed(t *testing.T) {
	tests := []struct {
		args  string // separated by |
		want  string // what follows the pins
		rule  string
		stdin bool
	}{
		{"https://example.com", "--|https://example.com/", "curl.get", false},
		{"example.com/x?y#z", "--|http://example.com/x?y#z", "curl.get", false},
		{"HTTPS://Example.COM./a", "--|https://example.com/a", "curl.get", false},
		{"https://example.com?q=1", "--|https://example.com/?q=1", "curl.get", false},
		{"https://a.b.example.org:443/", "--|https://a.b.example.org:443/", "curl.get", false},
		{"http://127.0.0.1:8080/", "--|http://127.0.0.1:8080/", "curl.get", false},
		{"http://[::1]:8080/", "--|http://[::1]:8080/", "curl.get", false},
		{"http://[0:0::1]:8080/", "--|http://[::1]:8080/", "curl.get", false},
		{"http://api.test:1234/", "--|http://api.test:1234/", "curl.get", false},
		{"-sSLo|out|https://example.com/x", "--silent|--show-error|--location|--output|out|--|https://example.com/x", "curl.get", false},
		{"-fsS|-o|/dev/null|-w|%{http_code}\\n|https://example.com", "--fail|--silent|--show-error|--output|/dev/null|--write-out|%{http_code}\\n|--|https://example.com/", "curl.get", false},
		{"-O|https://example.com/a.tgz", "--remote-name|--|https://example.com/a.tgz", "curl.get", false},
		{"-I|https://example.com", "--head|--|https://example.com/", "curl.head", false},
		{"-d|a=b|https://example.com", "--data|a=b|--|https://example.com/", "curl.post", false},
		{"-d|@body.json|https://example.com", "--data|@body.json|--|https://example.com/", "curl.post", false},
		{"-d|@-|https://example.com", "--data|@-|--|https://example.com/", "curl.post", true},
		{"--data-binary|@/w/b/x/../y|https://example.com", "--data-binary|@/w/b/y|--|https://example.com/", "curl.post", false},
		{"--data-raw|@/etc/passwd|https://example.com", "--data-raw|@/etc/passwd|--|https://example.com/", "curl.post", false},
		{"--json|{\"a\":1}|https://example.com", "--json|{\"a\":1}|--|https://example.com/", "curl.post", false},
		{"--data-urlencode|a=@/etc/passwd|https://example.com", "--data-urlencode|a=@/etc/passwd|--|https://example.com/", "curl.post", false},
		{"--data-urlencode|a@f|https://example.com", "--data-urlencode|a@f|--|https://example.com/", "curl.post", false},
		{"-G|-d|q=1|https://example.com", "--get|--data|q=1|--|https://example.com/", "curl.get", false},
		{"-T|f|https://example.com/f", "--upload-file|f|--|https://example.com/f", "curl.put", false},
		{"-T|-|https://example.com/f", "--upload-file|-|--|https://example.com/f", "curl.put", true},
		{"-X|DELETE|https://example.com/f", "--request|DELETE|--|https://example.com/f", "curl.delete", false},
		{"-X|GET|-d|x|https://example.com/f", "--request|GET|--data|x|--|https://example.com/f", "curl.post", false},
		{"-F|a=b|https://example.com", "--form-string|a=b|--|https://example.com/", "curl.post", false},
		{"-F|a=b @c, d|https://example.com", "--form-string|a=b @c, d|--|https://example.com/", "curl.post", false},
		{"-F|a={\"x\":1};type=application/json|https://example.com", "--form|a={\"x\":1};type=application/json|--|https://example.com/", "curl.post", false},
		{"-F|f=@x.png;type=image/png;filename=y.png|https://example.com", "--form|f=@x.png;type=image/png;filename=y.png|--|https://example.com/", "curl.post", false},
		{"-F|f=<-|https://example.com", "--form|f=<-|--|https://example.com/", "curl.post", true},
		{"--form-string|a=@x;headers=@y|https://example.com", "--form-string|a=@x;headers=@y|--|https://example.com/", "curl.post", false},
		{"-H|X-A: b|-H|X-B:|-H|X-C;|https://example.com", "--header|X-A: b|--header|X-B:|--header|X-C;|--|https://example.com/", "curl.get", false},
		{"-b|a=b|-c|jar|https://example.com", "--cookie|a=b|--cookie-jar|jar|--|https://example.com/", "curl.get", false},
		{"-u|me:secret|https://example.com", "--user|me:secret|--|https://example.com/", "curl.get", false},
		{"https://example.com/1|-o|1|https://example.com/2|-o|2", "--output|1|--output|2|--|https://example.com/1|https://example.com/2", "curl.get", false},
		{"--url|https://example.com/1|https://example.com/2", "--|https://example.com/1|https://example.com/2", "curl.get", false},
		{"-g|https://example.com/{a}", "--|https://example.com/{a}", "curl.get", false},
		{"-q|https://example.com", "--|https://example.com/", "curl.get", false},
		{"-o|-x|https://example.com", "--output|./-x|--|https://example.com/", "curl.get", false},
		{"--output-dir|d|-o|x|https://example.com", "--output-dir|d|--output|x|--|https://example.com/", "curl.get", false},
	}
	p := testPolicy(t, named)
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			d := p.decide(call(strings.Split(tt.args, "|")...))
			if d.Effect != abi.Allow {
				t.Fatalf("refused by %s: %s", d.Rule, d.Reason)
			}
			if got := strings.Join(after(t, d), "|"); got != tt.want {
				t.Errorf("runs\n %s, want\n %s", got, tt.want)
			}
			if d.Rule != tt.rule {
				t.Errorf("rule %s, want %s", d.Rule, tt.rule)
			}
			if *d.Stdin != tt.stdin {
				t.Errorf("stdin %v", *d.Stdin)
			}
			safe := tt.rule == "curl.get" || tt.rule == "curl.head"
			if *d.Mutating == safe {
				t.Errorf("mutating %v for %s", *d.Mutating, tt.rule)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	tests := []struct {
		args string
		rule string
		says string // in the reason: what is at fault
	}{
		{"", "curl.url.none", "no URL"},
		{"-s", "curl.url.none", "no URL"},

		// Hosts.
		{"https://other.com", "curl.host", "other.com"},
		{"https://example.com.evil.net", "curl.host", "evil.net"},
		{"https://notexample.org", "curl.host", "notexample.org"},
		{"https://example.org", "curl.host", "example.org"},
		{"https://example.com:8443", "curl.host", "8443"},
		{"http://127.0.0.1/", "curl.host.private", "127.0.0.1"},
		{"http://127.0.0.1:8081/", "curl.host.private", "8081"},
		{"http://localhost:8080/", "curl.host.private", "localhost"},
		{"http://169.254.169.254/latest", "curl.host.private", "169.254"},
		{"http://[::ffff:127.0.0.1]:8080/", "curl.host.private", "::ffff"},
		{"http://2130706433:8080/", "curl.url", "unusual form"},
		{"http://0x7f000001:8080/", "curl.url", "unusual form"},
		{"http://127.1:8080/", "curl.url", "unusual form"},
		{"http://0177.0.0.1:8080/", "curl.url", "unusual form"},
		{"http://127.0.0.1.:8081/", "curl.host.private", "127.0.0.1"},
		{"http://example.com@other.com/", "curl.url", "user"},
		{"http://me:pw@example.com/", "curl.url", "user"},
		{"http://example.com\\@other.com/", "curl.url", "backslash"},
		{"http://example.com#@other.com:80/|http://other.com", "curl.host", "other.com"},
		{"http://other.com?x=http://example.com", "curl.host", "other.com"},
		{"http://other.com#example.com", "curl.host", "other.com"},
		{"http://example.com%2eevil.net/", "curl.url", "characters"},
		{"http://exämple.com/", "curl.url", "punycode"},
		{"http://example.com:80:90/", "curl.url", "port"},
		{"http://example.com:/", "curl.url", "port"},
		{"http://example.com:080/", "curl.url", "port"},
		{"http://[::1%25eth0]:8080/", "curl.url", "IPv6"},
		{"http://[::1]x:8080/", "curl.url", "stands between"},
		{"http:///example.com/", "curl.url", "no host"},
		{"http:/example.com", "curl.url", "port"},
		{"http://exa mple.com", "curl.url", "space"},
		{"http://example.com/\r\nHost: x", "curl.url", "control"},

		// Protocols.
		{"file:///etc/passwd", "curl.url", "protocol"},
		{"FILE:///etc/passwd", "curl.url", "protocol"},
		{"ftp://example.com/", "curl.url", "protocol"},
		{"gopher://example.com/_x", "curl.url", "protocol"},
		{"scp://example.com/x", "curl.url", "protocol"},
		{"dict://example.com/x", "curl.url", "protocol"},
		{"https://example.com/{a,b}", "curl.url.glob", "pattern"},
		{"https://example.com/[1-9]", "curl.url.glob", "pattern"},
		{"--proto|=file|https://example.com", "curl.flag.refused", "--proto"},
		{"--proto-redir|=file|https://example.com", "curl.flag.refused", "--proto-redir"},
		{"--proto-default|file|https://example.com", "curl.flag.refused", "--proto-default"},

		// Other ways to other hosts.
		{"-x|http://other.com|https://example.com", "curl.flag.refused", "-x"},
		{"--proxy|http://other.com|https://example.com", "curl.flag.refused", "--proxy"},
		{"-sx|http://other.com|https://example.com", "curl.flag.refused", "-x"},
		{"--preproxy|socks5://o|https://example.com", "curl.flag.refused", "--preproxy"},
		{"--socks5-hostname|o|https://example.com", "curl.flag.refused", "--socks5"},
		{"--noproxy|*|https://example.com", "curl.flag.refused", "--noproxy"},
		{"--resolve|example.com:443:127.0.0.1|https://example.com", "curl.flag.refused", "--resolve"},
		{"--connect-to|::127.0.0.1:22|https://example.com", "curl.flag.refused", "--connect-to"},
		{"--unix-socket|/run/docker.sock|http://example.com", "curl.flag.refused", "--unix-socket"},
		{"--abstract-unix-socket|x|http://example.com", "curl.flag.refused", "--abstract-unix-socket"},
		{"--interface|eth0|https://example.com", "curl.flag.refused", "--interface"},
		{"--dns-servers|1.2.3.4|https://example.com", "curl.flag.refused", "--dns-servers"},
		{"--doh-url|https://other.com|https://example.com", "curl.flag.refused", "--doh-url"},
		{"--request-target|http://other.com/|https://example.com", "curl.flag.refused", "--request-target"},
		{"--location-trusted|https://example.com", "curl.flag.refused", "--location-trusted"},
		{"-H|Host: other.com|https://example.com", "curl.header.host", "Host"},
		{"-H|hOsT:other.com|https://example.com", "curl.header.host", "Host"},
		{"-H|X: a\r\nHost: other.com|https://example.com", "curl.flag.value", "control"},
		{"-A|x\r\nHost: o|https://example.com", "curl.flag.value", "control"},
		{"-X|GET / HTTP/1.1\r\nHost: o|https://example.com", "curl.method", "not known"},
		{"-X|get|https://example.com", "curl.method", "not known"},
		{"-X|CONNECT|https://example.com", "curl.method", "CONNECT"},
		{"-H|Content-Length: 5|https://example.com", "curl.header.framing", "content-length"},
		{"-H|X-HTTP-Method-Override: DELETE|https://example.com", "curl.header.method", "method"},

		// Files.
		{"-d|@/etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"-d@../../etc/passwd|https://example.com", "curl.path.outside", "etc/passwd"},
		{"--data-binary|@/proc/self/environ|https://example.com", "curl.path.outside", "environ"},
		{"--data-ascii|@/etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"--data-urlencode|@/etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"--data-urlencode|x@/etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"--url-query|x@/etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"--json|@/etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"-F|x=@/etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"-F|x=</etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"-F|x=@a,/etc/passwd|https://example.com", "curl.flag.value", "not understood"},
		{"-F|x=@\"/etc/passwd\"|https://example.com", "curl.flag.value", "not understood"},
		{"-F|x=@ /etc/passwd|https://example.com", "curl.flag.value", "not understood"},
		{"-F|x=y;headers=@/etc/passwd|https://example.com", "curl.flag.value", "not understood"},
		{"-F|x=@a;headers=@/etc/passwd|https://example.com", "curl.flag.value", "not understood"},
		{"-F|x=y;type=text/plain;headers=@/etc/passwd|https://example.com", "curl.flag.value", "not understood"},
		{"-F|=(;type=multipart/mixed|https://example.com", "curl.flag.value", "NAME"},
		{"-F|x=(;type=a/b|https://example.com", "curl.flag.value", "not understood"},
		{"-T|/etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"-b|/etc/passwd|https://example.com", "curl.path.outside", "/etc/passwd"},
		{"-H|@/etc/passwd|https://example.com", "curl.flag.value", "/etc/passwd"},
		{"-w|@/etc/passwd|https://example.com", "curl.flag.value", "/etc/passwd"},
		{"-w|%output{/tmp/x}|https://example.com", "curl.flag.value", "output"},
		{"-K|/w/a/c|https://example.com", "curl.flag.refused", "-K"},
		{"-sK/w/a/c|https://example.com", "curl.flag.refused", "-K"},
		{"--config|-|https://example.com", "curl.flag.refused", "--config"},
		{"--variable|%TOKEN|https://example.com", "curl.flag.unknown", "--variable"},
		{"--variable|x@/etc/passwd|--expand-data|{{x}}|https://example.com", "curl.flag.unknown", "--variable"},
		{"--expand-url|https://example.com/{{TOKEN}}", "curl.flag.unknown", "--expand-url"},
		{"-o|/etc/cron.d/x|https://example.com", "curl.path.outside", "/etc/cron.d"},
		{"-o../../x|https://example.com", "curl.path.outside", "../../x"},
		{"--output-dir|/etc|-O|https://example.com/passwd", "curl.path.outside", "/etc"},
		{"--output-dir|/w|-o|../x|https://example.com/passwd", "curl.path.outside", "../x"},
		{"-OJ|https://example.com/x", "curl.flag.refused", "-J"},
		{"-D|/tmp/x|https://example.com", "curl.path.outside", "/tmp/x"},
		{"-c|/tmp/x|https://example.com", "curl.path.outside", "/tmp/x"},
		{"--etag-save|/tmp/x|https://example.com", "curl.path.outside", "/tmp/x"},
		{"--stderr|/tmp/x|https://example.com", "curl.path.outside", "/tmp/x"},
		{"--trace|/tmp/x|https://example.com", "curl.path.outside", "/tmp/x"},
		{"--trace-ascii|/tmp/x|https://example.com", "curl.path.outside", "/tmp/x"},
		{"--libcurl|x.c|https://example.com", "curl.flag.refused", "--libcurl"},
		{"--hsts|x|https://example.com", "curl.flag.refused", "--hsts"},
		{"--alt-svc|x|https://example.com", "curl.flag.refused", "--alt-svc"},
		{"--netrc|https://example.com", "curl.flag.refused", "--netrc"},
		{"-n|https://example.com", "curl.flag.refused", "-n"},
		{"--cacert|/etc/ssl/x|https://example.com", "curl.path.outside", "/etc/ssl/x"},
		{"--cert|x|https://example.com", "curl.flag.refused", "--cert"},
		{"--key|pkcs11:x|https://example.com", "curl.flag.refused", "--key"},

		// Programs and credentials of the host.
		{"--engine|x|https://example.com", "curl.flag.refused", "--engine"},
		{"--ntlm-wb|https://example.com", "curl.flag.refused", "--ntlm-wb"},
		{"--negotiate|https://example.com", "curl.flag.refused", "--negotiate"},
		{"-u|me|https://example.com", "curl.flag.value", "password"},
		{"-M", "curl.flag.refused", "-M"},

		// Past the pins.
		{"https://example.com|--next|https://other.com", "curl.flag.refused", "--next"},
		{"https://example.com|-:|https://other.com", "curl.flag.refused", "-:"},
		{"--insecure|https://example.com", "curl.flag.refused", "--insecure"},
		{"-k|https://example.com", "curl.flag.refused", "--insecure"},
		{"-L|--max-redirs|-1|https://example.com", "curl.flag.value", "--max-redirs"},
		{"--retry|1000|https://example.com", "curl.flag.value", "--retry"},
		{"--version|https://example.com", "curl.url.none", "alone"},

		// The grammar.
		{"--outp|x|https://example.com", "curl.flag.abbreviated", "--outp"},
		{"--output=x|https://example.com", "curl.flag.unknown", "--output=x"},
		{"--frobnicate|https://example.com", "curl.flag.unknown", "--frobnicate"},
		{"-sZz|x|https://example.com", "curl.flag.refused", "-z"},
		{"-o|1|-o|2|https://example.com", "curl.url.few", "more output"},
		{"-o", "curl.flag.value", "needs a value"},
		{"--|-o|x", "curl.url", "-o"},
	}
	p := testPolicy(t, named)
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			var args []string
			if tt.args != "" {
				args = strings.Split(tt.args, "|")
			}
			d := p.decide(call(args...))
			if d.Effect != abi.Deny {
				t.Fatalf("allowed as %q", d.Args)
			}
			if d.Rule != tt.rule {
				t.Errorf("refused by %s (%s), want %s", d.Rule, d.Reason, tt.rule)
			}
			if !strings.Contains(d.Reason, tt.says) {
				t.Errorf("reason %q does not name %q", d.Reason, tt.says)
			}
			if d.Instead == "" && d.Rule != "curl.flag.value" {
				t.Errorf("no advice with %q", d.Reason)
			}
		})
	}
}

// Every flag that is refused says what to do instead.
func TestRefusedFlags(t *testing.T) {
	for _, f := range grammar.All() {
		if f.Refuse != "" && f.Instead == "" {
			t.Errorf("%s %s, and then?", f.Names, f.Refuse)
		}
	}
}

func TestConfig(t *testing.T) {
	tests := []struct {
		name string
		conf map[string]string
		args string
		rule string
	}{
		{"no hosts, no request", nil, "https://example.com", "curl.host"},
		{"all public", map[string]string{"hosts": "*"}, "https://example.com", "curl.get"},
		{"all public, but not loopback", map[string]string{"hosts": "*"}, "http://127.0.0.1", "curl.host.private"},
		{"all public, but not AS112", map[string]string{"hosts": "*"}, "http://192.175.48.1", "curl.host.private"},
		{"all public, but not what IPv6 reserves", map[string]string{"hosts": "*"}, "http://[5f00::1]", "curl.host.private"},
		{"all public, but not localhost", map[string]string{"hosts": "*"}, "http://localhost", "curl.host.private"},
		{"nor what ends so", map[string]string{"hosts": "*"}, "http://a.localhost", "curl.host.private"},
		{"nor a name without a dot", map[string]string{"hosts": "*"}, "http://intranet", "curl.host.private"},
		{"nor an internal name", map[string]string{"hosts": "*"}, "http://metadata.google.internal", "curl.host.private"},
		{"nor private networks", map[string]string{"hosts": "*"}, "http://10.1.2.3", "curl.host.private"},
		{"nor carrier networks", map[string]string{"hosts": "*"}, "http://100.64.0.1", "curl.host.private"},
		{"nor mapped addresses", map[string]string{"hosts": "*"}, "http://[::ffff:10.0.0.1]", "curl.host.private"},
		{"nor embedded addresses", map[string]string{"hosts": "*"}, "http://[64:ff9b::a00:1]", "curl.host.private"},
		{"nor unique local ones", map[string]string{"hosts": "*"}, "http://[fd00::1]", "curl.host.private"},
		{"nor the zero address", map[string]string{"hosts": "*"}, "http://0.0.0.0", "curl.host.private"},
		{"nor another port", map[string]string{"hosts": "*"}, "http://example.com:25", "curl.host"},
		{"another port by name", map[string]string{"hosts": "*:*"}, "http://example.com:8080", "curl.get"},
		{"private, named", map[string]string{"hosts": "10.1.2.3 localhost:3000"}, "http://localhost:3000", "curl.get"},
		{"a host that is none", map[string]string{"hosts": "exa mple.com/x"}, "https://example.com", "config"},
		{"a port that is none", map[string]string{"hosts": "example.com:http"}, "https://example.com", "config"},
		{"methods", map[string]string{"hosts": "*", "methods": "GET,HEAD"}, "-d|x|https://example.com", "curl.method"},
		{"methods by -X", map[string]string{"hosts": "*", "methods": "GET,HEAD"}, "-X|DELETE|https://example.com", "curl.method"},
		{"methods that are none", map[string]string{"methods": "FETCH"}, "https://example.com", "config"},
		{"no files", map[string]string{"hosts": "*"}, "-d|@x|https://example.com", "curl.path.file"},
		{"no upload", map[string]string{"hosts": "*"}, "-T|x|https://example.com", "curl.path.file"},
		{"no form's file", map[string]string{"hosts": "*", "files": "stdin"}, "-F|a=@x|https://example.com", "curl.path.file"},
		{"what is outside is outside", map[string]string{"hosts": "*"}, "-d|@/etc/passwd|https://example.com", "curl.path.outside"},
		{"no files, stdin", map[string]string{"hosts": "*"}, "-d|@-|https://example.com", "curl.post"},
		{"an authority is not sent", map[string]string{"hosts": "*"}, "--cacert|ca.pem|https://example.com", "curl.get"},
		{"files, if the operator says so", map[string]string{"hosts": "*", "files": "roots"}, "-d|@x|https://example.com", "curl.post"},
		{"files that are none", map[string]string{"files": "all"}, "https://example.com", "config"},
		{"insecure", map[string]string{"hosts": "*", "insecure": "true"}, "-k|https://example.com", "curl.get"},
		{"redirects behind a proxy", map[string]string{"hosts": "*", "proxy": "http://proxy.corp:3128"}, "-L|https://example.com", "curl.redirect.proxy"},
		{"which the operator may want", map[string]string{"hosts": "*", "proxy": "http://proxy.corp:3128", "redirects": "any"}, "-L|https://example.com", "curl.get"},
		{"a switch that is none", map[string]string{"redirects": "yes"}, "https://example.com", "config"},
		{"a proxy that is none", map[string]string{"proxy": "proxy.corp"}, "https://example.com", "config"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Through the export, as the host asks.
			d, err := (&pdk.Fake{Config: tt.conf}).Restrict(restrict, call(strings.Split(tt.args, "|")...))
			if err != nil {
				t.Fatal(err)
			}
			want := tt.rule
			if want == "config" {
				want = "curl.config"
			}
			if d.Rule != want {
				t.Errorf("%s by %s (%s), want %s", d.Effect, d.Rule, d.Reason, want)
			}
		})
	}
}

func TestPins(t *testing.T) {
	hosts := "example.com,.example.org,127.0.0.1,::1,api.test"
	for _, tt := range []struct {
		name string
		conf map[string]string
		args string
		want string
	}{
		{"https stays https", named, "https://example.com", "-q|--globoff|--proto|=http,https|--proto-redir|=https|--proxy|" + offHost + "|--noproxy|" + hosts},
		{"http may become https", named, "http://example.com", "-q|--globoff|--proto|=http,https|--proto-redir|=http,https|--proxy|" + offHost + "|--noproxy|" + hosts},
		{"redirects are bounded", named, "-L|https://example.com", "-q|--globoff|--proto|=http,https|--proto-redir|=https|--max-redirs|10|--proxy|" + offHost + "|--noproxy|" + hosts},
		{"by the caller too", named, "-L|--max-redirs|3|https://example.com", "-q|--globoff|--proto|=http,https|--proto-redir|=https|--proxy|" + offHost + "|--noproxy|" + hosts},
		{"all public hosts are the call's own", map[string]string{"hosts": "*"}, "https://a.example|https://b.example", "-q|--globoff|--proto|=http,https|--proto-redir|=https|--proxy|" + offHost + "|--noproxy|a.example,b.example"},
		{"a proxy takes everything", map[string]string{"hosts": "*", "proxy": "http://proxy.corp:3128"}, "https://a.example", "-q|--globoff|--proto|=http,https|--proto-redir|=https|--proxy|http://proxy.corp:3128|--noproxy|"},
		{"any redirect", map[string]string{"hosts": "*", "redirects": "any"}, "-L|https://a.example", "-q|--globoff|--proto|=http,https|--proto-redir|=https|--max-redirs|10"},
	} {
		d := testPolicy(t, tt.conf).decide(call(strings.Split(tt.args, "|")...))
		got := strings.Join(d.Args, "|")
		if !strings.HasPrefix(got, tt.want+"|-") {
			t.Errorf("%s: begins\n %s, must be\n %s", tt.name, got, tt.want)
		}
	}
}

func TestReadOnly(t *testing.T) {
	p := testPolicy(t, named)
	for args, effect := range map[string]string{
		"https://example.com":              abi.Allow,
		"-I|https://example.com":           abi.Allow,
		"-G|-d|x|https://example.com":      abi.Allow,
		"-d|x|https://example.com":         abi.Deny,
		"-XGET|-d|x|https://example.com":   abi.Deny,
		"-T|x|https://example.com":         abi.Deny,
		"-X|DELETE|https://example.com":    abi.Deny,
		"-F|a=b|https://example.com":       abi.Deny,
		"-I|-X|POST|https://example.com":   abi.Deny,
		"--json|{}|https://example.com":    abi.Deny,
		"-XPOST|-G|https://example.com/?x": abi.Deny,
	} {
		c := call(strings.Split(args, "|")...)
		c.ReadOnly = true
		if d := p.decide(c); d.Effect != effect {
			t.Errorf("%s: %s by %s", args, d.Effect, d.Rule)
		}
	}
}

func TestVariables(t *testing.T) {
	p := testPolicy(t, named)
	for name, effect := range map[string]string{
		"LANG": abi.Allow, "LC_ALL": abi.Allow, "NO_COLOR": abi.Allow,
		"https_proxy": abi.Deny, "ALL_PROXY": abi.Deny, "CURL_HOME": abi.Deny, "SSLKEYLOGFILE": abi.Deny,
		"OPENSSL_CONF": abi.Deny, "LD_PRELOAD": abi.Deny, "HOME": abi.Deny, "CURL_CA_BUNDLE": abi.Deny,
	} {
		c := call("https://example.com")
		c.Env = map[string]string{name: "C.UTF-8"}
		if d := p.decide(c); d.Effect != effect {
			t.Errorf("%s: %s by %s", name, d.Effect, d.Rule)
		}
	}
	c := call("https://example.com")
	c.Env = map[string]string{"TZ": ":/etc/passwd"}
	if d := p.decide(c); d.Rule != "curl.env" {
		t.Errorf("a time zone from a file: %s", d.Rule)
	}
}

// A refusal goes into logs; what a flag says is a secret there.
func TestRefusalsHideCredentials(t *testing.T) {
	p := testPolicy(t, named)
	for _, args := range []string{
		"-u|hunter2|https://example.com",
		"-u|a:hunter2\n|https://example.com",
		"--oauth2-bearer|hunter2\n|https://example.com",
		"-H|Authorization: hunter2\n|https://example.com",
		"-H|hunter2|https://example.com",
		"-b|a=hunter2\n|https://example.com",
	} {
		d := p.decide(call(strings.Split(args, "|")...))
		if d.Effect != abi.Deny || strings.Contains(d.Reason+d.Instead, "hunter2") {
			t.Errorf("%q: %s: %s; %s", args, d.Effect, d.Reason, d.Instead)
		}
	}
}
