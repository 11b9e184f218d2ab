package hosttest

import (
	"bytes"
	"crypto/tls"
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

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// Sesame is what no program may show, write or send to anybody but its
// destination: the content of a Place's secret, and of the credentials that tests give.
const Sesame = "sesame"

// Place is where a real program is tried, with the policy of its tool in front
// of it and without: a root with a working directory, a HOME, and outside of
// the root a secret that must not be read and a marker that must not be made.
// The test of each tool adds what makes the place hostile.
type Place struct {
	// Program is the path of the real program.
	Program string
	// Dir holds all the rest.
	Dir, Root, Cwd, Home string
	// Secret is a file; Marker does not exist yet.
	Secret, Marker string
	// Words are replaced by Expand, beside SECRET, MARKER, ROOT and CWD.
	Words []string
	// Decide is the policy.
	Decide func(*abi.Call) *abi.Decision
	// Env are variables of the program, beside PATH, HOME and LANG; the last
	// of a name counts.
	Env []string
	// Stdin is what the program reads.
	Stdin string
	// Stdout and Stderr are what it wrote when it ran last.
	Stdout, Stderr string

	t    testing.TB
	tool string
}

// NewPlace makes a place for a tool whose program has its name, on PATH or at
// TOOLD_TEST_<NAME>. It skips the test if there is no such program.
func NewPlace(t testing.TB, tool string) *Place {
	t.Helper()
	variable := "TOOLD_TEST_" + strings.ToUpper(tool)
	program := os.Getenv(variable)
	if program == "" {
		var err error
		if program, err = exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed: the policy was not tried on it; install it, or set %s to its path", tool, variable)
		}
	}
	dir := t.TempDir()
	p := &Place{
		Program: program, Dir: dir, Root: filepath.Join(dir, "root"), Cwd: filepath.Join(dir, "root", "work"), Home: filepath.Join(dir, "home"),
		Secret: filepath.Join(dir, "secret"), Marker: filepath.Join(dir, "marker"), t: t, tool: tool,
	}
	for _, d := range []string{p.Cwd, p.Home} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.Write("secret", Sesame+"\n", 0o600)
	return p
}

// Write writes a file, with the folders above it. A relative name is one in
// Dir.
func (p *Place) Write(name, text string, mode os.FileMode) {
	p.t.Helper()
	if !filepath.IsAbs(name) {
		name = filepath.Join(p.Dir, name)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		p.t.Fatal(err)
	}
}

// Expand puts the place's own names into a text.
func (p *Place) Expand(text string) string {
	words := append(slices.Clone(p.Words), "SECRET", p.Secret, "MARKER", p.Marker, "ROOT", p.Root, "CWD", p.Cwd)
	return strings.NewReplacer(words...).Replace(text)
}

// ExpandAll is Expand for arguments.
func (p *Place) ExpandAll(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = p.Expand(a)
	}
	return out
}

// Exec runs the program as it is, with no policy, and returns its exit code.
func (p *Place) Exec(args []string, env ...string) int {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), p.Program, args...)
	cmd.Dir = p.Cwd
	cmd.Env = slices.Concat([]string{"PATH=/usr/bin:/bin", "HOME=" + p.Home, "LANG=C.UTF-8"}, p.Env, env)
	cmd.Stdin = strings.NewReader(p.Stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	p.Stdout, p.Stderr = out.String(), errs.String()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		p.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// Run asks the policy about expanded arguments and runs what it decides. The
// exit code of a refusal is 126.
func (p *Place) Run(args ...string) (*abi.Decision, int) {
	p.t.Helper()
	d := p.Decide(&abi.Call{Tool: p.tool, Args: p.ExpandAll(args), Cwd: p.Cwd, Roots: []string{p.Root}})
	if d.Effect != abi.Allow {
		return d, 126
	}
	var env []string
	for k, v := range d.Env {
		env = append(env, k+"="+v)
	}
	return d, p.Exec(d.Args, env...)
}

// Harm returns which harm a call has done, or "": the marker was made, or the
// secret shown.
func (p *Place) Harm() string {
	if _, err := os.Lstat(p.Marker); err == nil {
		b, _ := os.ReadFile(p.Marker)
		return "the marker was made: " + string(b)
	}
	if strings.Contains(p.Stdout+p.Stderr, Sesame) {
		return "the secret was shown"
	}
	return ""
}

// Daemon starts a daemon over the place's root, with the place's tool in it:
// def, and the plugin of that name as its policy.
func (p *Place) Daemon(def map[string]any) *Daemon {
	p.t.Helper()
	d := Start(p.t, config.Config{Roots: []string{p.Root}})
	p.Tool(d, p.tool, def)
	return d
}

// Tool adds a tool with the same policy to a daemon.
func (p *Place) Tool(d *Daemon, name string, def map[string]any) {
	p.t.Helper()
	d.Tool(p.t, name, def, map[string]string{"restricted.wasm": Guest(p.t, "plugins/"+p.tool)})
}

// Call calls a tool of a daemon from the working directory, with Stdin, as the
// wrapper does.
func (p *Place) Call(d *Daemon, tool string, args ...string) *wire.Result {
	p.t.Helper()
	var res *wire.Result
	res, p.Stdout, p.Stderr = d.Stream(p.t, &wire.Call{Tool: tool, Args: p.ExpandAll(args), Cwd: p.Cwd}, p.Stdin)
	return res
}

// Stream makes a call as the wrapper does, and returns what the tool wrote.
func (d *Daemon) Stream(t testing.TB, c *wire.Call, stdin string) (res *wire.Result, stdout, stderr string) {
	t.Helper()
	c.Stream = true
	var out, errs bytes.Buffer
	res, err := client.Stream(t.Context(), d.Socket, c, wire.Local{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs})
	if err != nil {
		t.Fatal(err)
	}
	return res, out.String(), errs.String()
}

// Site is a server that remembers what it was asked.
type Site struct {
	*httptest.Server

	mu      sync.Mutex
	asked   []Asked          // guarded by mu
	handler http.HandlerFunc // guarded by mu
}

// Asked is one request to a Site.
type Asked struct {
	Method, Host, URI, Authorization, Body string
}

// String is the request as tests look for it.
func (a Asked) String() string { return a.Method + " " + a.URI + " " + a.Body }

// NewSite starts a server at addr ("127.0.0.2:0") that serves until the test
// ends; with secure it speaks TLS.
func NewSite(t testing.TB, addr string, secure *tls.Config, h http.HandlerFunc) *Site {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &Site{handler: h}
	s.Server = &httptest.Server{Listener: l, TLS: secure, Config: &http.Server{Handler: http.HandlerFunc(s.serve)}}
	if secure != nil {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func (s *Site) serve(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(b))
	s.mu.Lock()
	s.asked = append(s.asked, Asked{r.Method, r.Host, r.URL.RequestURI(), r.Header.Get("Authorization"), string(b)})
	h := s.handler
	s.mu.Unlock()
	h(w, r)
}

// Answer has another handler answer from now on.
func (s *Site) Answer(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = h
}

// Asked is what the server was asked so far, in order.
func (s *Site) Asked() []Asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// Port is the server's.
func (s *Site) Port() string {
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	return port
}
