package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toold/toold/host/client"
	hostconfig "github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// credentials are what a server was sent, by path.
type credentials struct {
	mu   sync.Mutex
	sent []string
}

func (c *credentials) add(r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range r.Header.Values("Authorization") {
		c.sent = append(c.sent, r.URL.Path+" "+v)
	}
}

func (c *credentials) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string{}, c.sent...)
}

// TestHTTPSWithToken is the manual's ways to give git a token for https: a server
// that asks for Basic gets it, no other one does, and nobody sees it.
func TestHTTPSWithToken(t *testing.T) {
	needGit(t)
	for name, block := range map[string]int{"by the daemon": 1, "in a file": 2} {
		t.Run(name, func(t *testing.T) {
			if block == 1 && !hosttest.Judged() {
				t.Skip("connections are not judged here")
			}
			httpsWithToken(t, block)
		})
	}
}

func httpsWithToken(t *testing.T, block int) {
	const token = "ghp_sesame0123456789abcdefghijklmnop"
	roots := tempDir(t)
	box := newBox(t, model(t), newRunner(t))
	if out, err := box.plain("remote.git", nil, "", "config", "http.receivepack", "true"); err != nil {
		t.Fatal(out)
	}
	backend := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + box.ws, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x-access-token"}}
	var elsewhere credentials
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.add(r)
		backend.ServeHTTP(w, r)
	}))
	defer other.Close()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch user, password, _ := r.BasicAuth(); {
		case user != "x-access-token" || password != token:
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasPrefix(r.URL.Path, "/repeats/"):
			w.WriteHeader(http.StatusForbidden)
			w.Write([]byte(r.Header.Get("Authorization") + " " + password))
		default:
			backend.ServeHTTP(w, r)
		}
	}))
	defer server.Close()

	conf := tempDir(t)
	ca := filepath.Join(conf, "ca.pem")
	for name, text := range map[string]string{
		ca:                   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
		conf + "/.env":       "GITHUB_TOKEN=" + token + "\n",
		conf + "/toold.json": "{}",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := hostconfig.Load(conf+"/toold.json", func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	c.Roots = []string{roots}
	d := hosttest.Start(t, c)
	b, err := os.ReadFile("../../tools.d/git/tool.json")
	if err != nil {
		t.Fatal(err)
	}
	tool := func(name string, secrets map[string]any) {
		var def map[string]any
		if err := json.Unmarshal(b, &def); err != nil {
			t.Fatal(err)
		}
		def["environment"] = map[string]any{"GIT_SSL_CAINFO": ca}
		def["secrets"] = secrets
		def["capabilities"].(map[string]any)["network"] = []string{"*", "127.0.0.1"}
		d.Tool(t, name, def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/git")})
	}
	tool("git", documented(t, server.URL, block))
	tool("bare", map[string]any{})

	said := ""
	call := func(tool, cwd string, args ...string) (string, *wire.Result) {
		t.Helper()
		var out bytes.Buffer
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: tool, Args: args, Cwd: filepath.Join(roots, cwd), Stream: true}, wire.Local{Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatal(err)
		}
		said += out.String()
		return out.String(), res
	}
	must := func(cwd string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if out, res := call("git", cwd, strings.Fields(line)...); res.Err != nil || res.ExitCode != 0 {
				t.Fatalf("git %s: %v, exit code %d: %s", line, res.Err, res.ExitCode, out)
			}
		}
	}
	must(".", "clone "+server.URL+"/remote.git new")
	if err := os.WriteFile(roots+"/new/https.txt", []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	must("new", "add .", "-c user.name=A -c user.email=a@example.com commit -m https", "push origin main", "fetch --prune", "pull --ff-only", "ls-remote origin", "remote -v", "config --list", "log -1")
	if out, err := box.plain("remote.git", nil, "", "log", "-1", "--format=%s", "main"); err != nil || strings.TrimSpace(out) != "https" {
		t.Errorf("the push did not arrive: %s %v", out, err)
	}
	// Without it the server refuses, and nobody is asked.
	if out, res := call("bare", ".", "ls-remote", server.URL+"/remote.git"); res.ExitCode == 0 || !strings.Contains(out, "could not read Username") {
		t.Errorf("without a token: exit code %d: %s", res.ExitCode, out)
	}
	// No other server gets it, and a server that repeats it does not show it.
	must(".", "ls-remote "+other.URL+"/remote.git")
	call("git", ".", "ls-remote", server.URL+"/repeats/remote.git")
	if sent := elsewhere.all(); len(sent) > 0 {
		t.Errorf("another server was sent %q", sent)
	}
	basic := strings.TrimPrefix(authorization(token), "Basic ")
	for _, secret := range []string{token, basic} {
		if strings.Contains(said, secret) || strings.Contains(d.Logs(), secret) {
			t.Errorf("it was shown: %s", said)
		}
		err := filepath.WalkDir(roots, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			if text, err := os.ReadFile(path); err != nil || bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s holds it: %v", path, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func authorization(token string) string {
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth("x-access-token", token)
	return r.Header.Get("Authorization")
}

// documented are the secrets of the manual's tool.json of that number for git, for
// the server at url in the place of GitHub.
func documented(t *testing.T, url string, block int) map[string]any {
	t.Helper()
	page, err := os.ReadFile("../../docs/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "### git over https\n")
	if !ok {
		t.Fatal("the manual says nothing of git over https")
	}
	for range block {
		_, text, _ = strings.Cut(text, "```json tool.json\n")
	}
	text, _, _ = strings.Cut(text, "```")
	if !strings.Contains(text, "github.com") {
		t.Fatalf("no definition for GitHub: %s", text)
	}
	text = strings.ReplaceAll(text, "https://github.com", url)
	var def struct {
		Secrets map[string]any `json:"secrets"`
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(text, "github.com", strings.TrimPrefix(url, "https://"))), &def); err != nil {
		t.Fatal(err)
	}
	return def.Secrets
}
