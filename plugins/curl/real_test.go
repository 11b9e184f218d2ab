package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/pdk/abi"
)

// place is a place with two servers: one that the policy names, at 127.0.0.1,
// and one that it does not, at 127.0.0.2; and with configurations of curl that
// lead to the latter.
type place struct {
	*hosttest.Place
	allowed, forbidden *hosttest.Site
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{Place: hosttest.NewPlace(t, "curl")}
	p.forbidden = hosttest.NewSite(t, "127.0.0.2:0", nil, func(http.ResponseWriter, *http.Request) {})
	p.allowed = hosttest.NewSite(t, "127.0.0.1:0", nil, func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		w.Header().Set("Set-Cookie", "c=1")
		w.Header().Set("Date", "Thu, 01 Jan 2026 00:00:00 GMT") // the same natively and through the wrapper
		w.Header().Set("ETag", `"e1"`)
		w.Header().Set("Content-Disposition", `attachment; filename=".npmrc"`)
		io.WriteString(w, "hello from "+r.URL.Path+"\n")
	})
	p.Words = []string{"ALLOWED", p.allowed.URL, "FORBIDDEN", p.forbidden.URL, "PORT", p.allowed.Port(), "OTHER", p.forbidden.Port()}
	p.Decide = testPolicy(t, p.conf("roots")).decide
	p.Write("home/.curlrc", "output = \""+p.Marker+"\"\n", 0o600)
	p.Write("home/.netrc", "default login me password "+hosttest.Sesame+"\n", 0o600)
	p.Write("root/work/body.json", `{"a":1}`, 0o600)
	p.Write("root/work/curlrc", "output = \""+p.Marker+"\"\nurl = "+p.forbidden.URL+"\n", 0o600)
	return p
}

// conf is the configuration that allows one server.
func (p *place) conf(files string) map[string]string {
	return map[string]string{"hosts": "127.0.0.1:" + p.allowed.Port(), "files": files}
}

// harm says what came of a hostile call, or "".
func (p *place) harm() string {
	if asked := p.forbidden.Asked(); len(asked) > 0 {
		return fmt.Sprintf("the forbidden host was asked: %q", asked)
	}
	for _, a := range p.allowed.Asked() {
		if strings.Contains(a.URI+a.Authorization+a.Body, hosttest.Sesame) {
			return "the secret was sent: " + a.String()
		}
	}
	for _, name := range []string{".npmrc", "x.c"} {
		if _, err := os.Lstat(filepath.Join(p.Cwd, name)); err == nil {
			return name + " was written"
		}
	}
	return p.Harm()
}

func TestCurlEverydayUse(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		stdin  string
		stdout string
		asked  string // what the server saw last
		file   string // a file made, with its text
		text   string
	}{
		{args: []string{"-sS", "ALLOWED/a"}, stdout: "hello from /a\n", asked: "GET /a "},
		{args: []string{"-s", "127.0.0.1:PORT/b"}, stdout: "hello from /b\n", asked: "GET /b "},
		{args: []string{"-sS", "-o", "out.txt", "ALLOWED/a"}, asked: "GET /a ", file: "out.txt", text: "hello from /a\n"},
		{args: []string{"-sSO", "ALLOWED/a.txt"}, asked: "GET /a.txt ", file: "a.txt", text: "hello from /a.txt\n"},
		{args: []string{"-sS", "--create-dirs", "--output-dir", "d/e", "-o", "f", "ALLOWED/a"}, asked: "GET /a ", file: "d/e/f", text: "hello from /a\n"},
		{args: []string{"-s", "-o", "/dev/null", "-w", "%{http_code}\n", "ALLOWED/a"}, stdout: "200\n", asked: "GET /a "},
		{args: []string{"-s", "-d", "x=1", "-d", "y=2", "ALLOWED/p"}, stdout: "hello from /p\n", asked: "POST /p x=1&y=2"},
		{args: []string{"-s", "-d", "@body.json", "ALLOWED/p"}, stdout: "hello from /p\n", asked: `POST /p {"a":1}`},
		{args: []string{"-s", "--json", "@ROOT/work/../work/body.json", "ALLOWED/p"}, stdout: "hello from /p\n", asked: `POST /p {"a":1}`},
		{args: []string{"-s", "--data-binary", "@-", "ALLOWED/p"}, stdin: "in\n", stdout: "hello from /p\n", asked: "POST /p in\n"},
		{args: []string{"-s", "-T", "-", "ALLOWED/u"}, stdin: "in\n", stdout: "hello from /u\n", asked: "PUT /u in\n"},
		{args: []string{"-s", "-T", "body.json", "ALLOWED/u"}, stdout: "hello from /u\n", asked: `PUT /u {"a":1}`},
		{args: []string{"-s", "-G", "-d", "q=1", "--data-urlencode", "r=a b", "ALLOWED/g"}, stdout: "hello from /g\n"},
		{args: []string{"-s", "-X", "DELETE", "ALLOWED/d"}, stdout: "hello from /d\n", asked: "DELETE /d "},
		{args: []string{"-sL", "ALLOWED/r?to=/next"}, stdout: "hello from /next\n", asked: "GET /next "},
		{args: []string{"-sL", "ALLOWED/r?to=ALLOWED/abs"}, stdout: "hello from /abs\n", asked: "GET /abs "},
		{args: []string{"-sg", "ALLOWED/{a}[1]"}, stdout: "hello from /{a}[1]\n"},
		{args: []string{"-s", "ALLOWED/1", "ALLOWED/2", "-o", "1", "-o", "2"}, asked: "GET /2 ", file: "2", text: "hello from /2\n"},
		{args: []string{"-s", "-c", "-", "-D", "h.txt", "-o", "/dev/null", "ALLOWED/1"}, asked: "GET /1 "},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			p := newPlace(t)
			p.Stdin = tt.stdin
			d, code := p.Run(tt.args...)
			if d.Effect != abi.Allow || code != 0 {
				t.Fatalf("%s %s %s, exit %d: %s", d.Effect, d.Rule, d.Reason, code, p.Stderr)
			}
			if tt.stdout != "" && p.Stdout != tt.stdout {
				t.Errorf("stdout %q, want %q", p.Stdout, tt.stdout)
			}
			asked := p.allowed.Asked()
			if tt.asked != "" && (len(asked) == 0 || asked[len(asked)-1].String() != tt.asked) {
				t.Errorf("asked %q, want %q", asked, tt.asked)
			}
			if tt.file != "" {
				if b, err := os.ReadFile(filepath.Join(p.Cwd, tt.file)); err != nil || string(b) != tt.text {
					t.Errorf("file %s: %q, %v", tt.file, b, err)
				}
			}
			if h := p.harm(); h != "" {
				t.Error(h)
			}
		})
	}
}

func TestCurlForms(t *testing.T) {
	type part struct{ Name, File, Type, Text string }
	form := make(chan []part, 1)
	p := newPlace(t)
	p.allowed.Answer(func(w http.ResponseWriter, r *http.Request) {
		var got []part
		defer func() { form <- got }()
		m, err := r.MultipartReader()
		if err != nil {
			return
		}
		for {
			f, err := m.NextPart()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(f)
			got = append(got, part{f.FormName(), f.FileName(), f.Header.Get("Content-Type"), string(b)})
		}
	})
	d, code := p.Run("-s", "-F", "a=x=y, @z", "-F", `m={"k":1};type=application/json`, "-F", "f=@body.json;type=text/plain;filename=n.txt", "-F", "g=<body.json", "--form-string", "h=@SECRET;headers=@SECRET", "ALLOWED/f")
	if code != 0 {
		t.Fatalf("%s %s, exit %d: %s", d.Effect, d.Reason, code, p.Stderr)
	}
	want := []part{
		{"a", "", "", "x=y, @z"},
		{"m", "", "application/json", `{"k":1}`},
		{"f", "n.txt", "text/plain", `{"a":1}`},
		{"g", "", "", `{"a":1}`},
		{"h", "", "", "@" + p.Secret + ";headers=@" + p.Secret},
	}
	if got := <-form; !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// hostile are command lines that do harm when curl runs them as they are.
// plain says so, and TestHostileWithoutPolicy shows it: else a marker that is
// not made would prove nothing.
var hostile = []struct {
	args  []string
	plain bool
}{
	{[]string{"FORBIDDEN/x"}, true},
	{[]string{"-s", "ALLOWED/a"}, true}, // through the hostile ~/.curlrc
	{[]string{"-L", "ALLOWED/r?to=FORBIDDEN/x"}, true},
	{[]string{"-L", "-X", "POST", "ALLOWED/r?to=FORBIDDEN/x"}, true},
	{[]string{"-L", "ALLOWED/r?to=http://2130706434:OTHER/x"}, true},
	{[]string{"-L", "ALLOWED/r?to=http://127.2:OTHER/x"}, false},
	{[]string{"-L", "ALLOWED/r?to=ALLOWED/r?to%3DFORBIDDEN/x"}, true},
	{[]string{"-L", "ALLOWED/r?to=file://SECRET"}, false},
	{[]string{"-L", "ALLOWED/r?to=ftp://127.0.0.2:OTHER/x"}, false},
	{[]string{"-L", "ALLOWED/r?to=gopher://127.0.0.2:OTHER/_GET%2520/x"}, false},
	{[]string{"file://SECRET"}, true},
	{[]string{"FILE://SECRET"}, true},
	{[]string{"--proto-default", "file", "SECRET"}, true},
	{[]string{"--next", "FORBIDDEN/x"}, false},
	{[]string{"ALLOWED/a", "--next", "FORBIDDEN/x"}, true},
	{[]string{"ALLOWED/a", "-:", "FORBIDDEN/x"}, true},
	{[]string{"http://127.0.0.1:PORT@127.0.0.2:OTHER/"}, true},
	{[]string{"http://127.0.0.1:PORT\\@127.0.0.2:OTHER/"}, false},
	{[]string{"http://127.0.0.2:OTHER#@127.0.0.1:PORT/"}, true},
	{[]string{"http://127.0.0.2:OTHER?@127.0.0.1:PORT/"}, true},
	{[]string{"http://2130706434:OTHER/"}, true},
	{[]string{"http://0x7f.2:OTHER/"}, true},
	{[]string{"http://127.0.0.{1,2}:OTHER/"}, true},
	{[]string{"http://127.0.0.[1-2]:OTHER/"}, true},
	{[]string{"http://127.0.0.1:PORT/", "-x", "FORBIDDEN"}, true},
	{[]string{"-xFORBIDDEN", "http://127.0.0.1:PORT/"}, true},
	{[]string{"--preproxy", "FORBIDDEN", "http://127.0.0.1:PORT/"}, false},
	{[]string{"--connect-to", "127.0.0.1:PORT:127.0.0.2:OTHER", "ALLOWED/a"}, true},
	{[]string{"--resolve", "ok.test:OTHER:127.0.0.2", "http://ok.test:OTHER/"}, true},
	{[]string{"--doh-url", "FORBIDDEN/dns", "http://name.test:PORT/"}, false},
	{[]string{"-K", "curlrc"}, true},
	{[]string{"-Kcurlrc"}, true},
	{[]string{"-sKcurlrc"}, true},
	{[]string{"--config", "curlrc", "ALLOWED/a"}, true},
	{[]string{"--conf", "curlrc", "ALLOWED/a"}, true},
	{[]string{"-o", "MARKER", "ALLOWED/a"}, true},
	{[]string{"-oMARKER", "ALLOWED/a"}, true},
	{[]string{"-so", "../../marker", "ALLOWED/a"}, true},
	{[]string{"-q", "--dump-head", "MARKER", "ALLOWED/a"}, true},
	{[]string{"-q", "--output-dir", "../..", "-o", "marker", "ALLOWED/a"}, true},
	{[]string{"-q", "--output-dir", "ROOT", "-o", "../marker", "ALLOWED/a"}, true},
	{[]string{"-q", "--output-dir", "../..", "-O", "ALLOWED/marker"}, true},
	{[]string{"-q", "-OJ", "ALLOWED/x"}, true},
	{[]string{"-q", "--libcurl", "x.c", "ALLOWED/x"}, true},
	{[]string{"-q", "-D", "MARKER", "ALLOWED/a"}, true},
	{[]string{"-q", "-c", "MARKER", "ALLOWED/a"}, true},
	{[]string{"-q", "--trace", "MARKER", "ALLOWED/a"}, true},
	{[]string{"-q", "--trace-ascii", "MARKER", "ALLOWED/a"}, true},
	{[]string{"-q", "--stderr", "MARKER", "ALLOWED/a"}, true},
	{[]string{"-q", "--etag-save", "MARKER", "ALLOWED/a"}, true},
	{[]string{"-q", "--hsts", "MARKER", "ALLOWED/a"}, false},
	{[]string{"-q", "--alt-svc", "MARKER", "ALLOWED/a"}, false},
	{[]string{"-q", "-d", "@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "-d@../../secret", "ALLOWED/a"}, true},
	{[]string{"-q", "--data-ascii", "@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "--data-binary", "@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "--data-urlencode", "@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "--data-urlencode", "x@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "--url-query", "x@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "--json", "@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "-F", "x=@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "-F", "x=<SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "-F", "x=@body.json,SECRET", "ALLOWED/a"}, false},
	{[]string{"-q", "-F", "x=@\"SECRET\"", "ALLOWED/a"}, true},
	{[]string{"-q", "-F", "x=y;headers=@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "-F", "x= @SECRET", "ALLOWED/a"}, false},
	{[]string{"-q", "-F", "x=(", "-F", "=<SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "-T", "SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "-T", "../../secret", "ALLOWED/a"}, true},
	{[]string{"-q", "-H", "@SECRET", "ALLOWED/a"}, false},
	{[]string{"-q", "-w", "@SECRET", "ALLOWED/a"}, true},
	{[]string{"-q", "-b", "SECRET", "ALLOWED/a"}, false},
	{[]string{"-q", "-nv", "ALLOWED/a"}, false},
}

func TestHostileThroughPolicy(t *testing.T) {
	for _, tt := range hostile {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			p := newPlace(t)
			p.Run(tt.args...)
			if h := p.harm(); h != "" {
				t.Error(h)
			}
		})
	}
}

func TestHostileWithoutPolicy(t *testing.T) {
	if testing.Short() {
		t.Skip("shows the harm that the policy keeps away")
	}
	for _, tt := range hostile {
		if !tt.plain {
			continue
		}
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			p := newPlace(t)
			p.Exec(p.ExpandAll(tt.args))
			if p.harm() == "" {
				t.Errorf("no harm without the policy either (%s): the case shows nothing", p.Stderr)
			}
		})
	}
}

// TestPinsHoldAlone: what the pins forbid, curl itself refuses, should the
// policy ever read a URL differently.
func TestPinsHoldAlone(t *testing.T) {
	for _, args := range [][]string{
		{"FORBIDDEN/x"},
		{"-L", "ALLOWED/r?to=FORBIDDEN/x"},
		{"http://2130706434:OTHER/"},
		{"http://127.0.0.1:PORT@127.0.0.2:OTHER/"},
		{"http://127.0.0.[2-2]:OTHER/"},
		{"file://SECRET"},
		{"-L", "ALLOWED/r?to=file://SECRET"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			p := newPlace(t)
			d, _ := p.Run("-s", "ALLOWED/a")
			i := slices.Index(d.Args, "--noproxy")
			p.Exec(append(slices.Clone(d.Args[:i+2]), p.ExpandAll(args)...))
			if h := p.harm(); h != "" {
				t.Error(h)
			}
		})
	}
}

// TestRedirectsAreBounded: curl's own bound is fifty.
func TestRedirectsAreBounded(t *testing.T) {
	p := newPlace(t)
	p.allowed.Answer(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
	})
	if _, code := p.Run("-sSL", "ALLOWED/"); code != 47 || len(p.allowed.Asked()) != maxRedirects+1 {
		t.Errorf("exit %d after %d requests: %s", code, len(p.allowed.Asked()), p.Stderr)
	}
}

// TestSymlink: a name beneath the roots may lead out of them, which no policy
// can see; so without config.files no name is opened. With it the host's
// confinement is what holds.
func TestSymlink(t *testing.T) {
	for _, files := range []string{"", "roots"} {
		p := newPlace(t)
		p.Decide = testPolicy(t, p.conf(files)).decide
		if err := os.Symlink(p.Secret, filepath.Join(p.Cwd, "link")); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"-d", "@link"}, {"-T", "link"}, {"-F", "a=@link"}, {"-b", "link"}, {"--data-urlencode", "x@link"}, {"--etag-compare", "link"}} {
			p.Run(append(args, "ALLOWED/a")...)
		}
		if h := p.harm(); (h == "") != (files == "") {
			t.Errorf("files %q: %q", files, h)
		}
	}
}

// TestRedirectIsExplained: who follows a redirect to elsewhere is told.
func TestRedirectIsExplained(t *testing.T) {
	p := newPlace(t)
	_, code := p.Run("-sSL", "ALLOWED/r?to=FORBIDDEN/x")
	if code != 5 || !strings.Contains(p.Stderr, offHost) {
		t.Errorf("exit %d: %s", code, p.Stderr)
	}
	if _, code := p.Run("-sL", "--max-redirs", "2", "ALLOWED/loop?to=/loop?to=/loop"); code != 0 {
		t.Errorf("two redirects: exit %d: %s", code, p.Stderr)
	}
	if _, code := p.Run("-sL", "--max-redirs", "1", "ALLOWED/a?to=/b%3Fto%3D/c"); code != 47 {
		t.Errorf("one redirect too many: exit %d: %s", code, p.Stderr)
	}
}

// TestGrammarKnowsCurl: every flag of the installed curl is either allowed or
// refused by the grammar's own choice, so that a new version's flags are
// looked at; and none that is written in the grammar is misspelt.
func TestGrammarKnowsCurl(t *testing.T) {
	p := newPlace(t)
	if p.Exec([]string{"-q", "--help", "all"}) != 0 {
		t.Fatal(p.Stderr)
	}
	have := map[string]bool{}
	for line := range strings.Lines(p.Stdout) {
		for _, w := range strings.Fields(line)[:2] {
			if w = strings.TrimSuffix(w, ","); strings.HasPrefix(w, "-") {
				have[w] = true
			}
		}
	}
	if len(have) < 200 {
		t.Fatalf("only %d flags found", len(have))
	}
	// These are in newer versions, or have other names for --no-.
	newer := []string{"--no-styled-output", "--http3", "--tcp-fastopen", "--help"}
	for _, f := range grammar.All() {
		for _, n := range strings.Fields(f.Names) {
			if !have[n] && !slices.Contains(newer, n) {
				t.Errorf("curl knows no %s", n)
			}
		}
	}
}

func TestToolJSON(t *testing.T) {
	def := hosttest.ReadyDefinition(t, "curl")
	testPolicy(t, def.Config)
	if !slices.Equal(def.Reliability.RetriableExits, []int{6, 7, 28, 35, 52, 56}) {
		t.Errorf("retriable_exits %v", def.Reliability.RetriableExits)
	}
}
