package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
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

	"github.com/toold/toold/pdk/abi"
)

// registry is a registry of packages, any name at version 1.0.0, whose
// scripts leave a marker. It remembers what it was asked.
type registry struct {
	*httptest.Server
	marker string
	mu     sync.Mutex
	seen   []string // "METHOD path authorization"
}

func newRegistry(t *testing.T, addr, marker string) *registry {
	t.Helper()
	r := &registry{marker: marker}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(r.answer))
	r.Listener.Close()
	r.Listener = l
	r.Start()
	t.Cleanup(r.Close)
	return r
}

func (r *registry) answer(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	r.seen = append(r.seen, q.Method+" "+q.URL.Path+" "+q.Header.Get("Authorization"))
	r.mu.Unlock()
	name := strings.TrimPrefix(q.URL.Path, "/")
	switch {
	case q.Method != http.MethodGet, strings.HasPrefix(name, "-/"):
		w.WriteHeader(http.StatusNotFound)
	case strings.HasSuffix(name, ".tgz"):
		name, _, _ = strings.Cut(name, "/-/")
		w.Write(archiveOf(name, r.marker))
	default:
		json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": map[string]any{"name": name, "version": "1.0.0", "homepage": "https://example.com", "hasInstallScript": true,
				"dist": map[string]string{"tarball": r.URL + "/" + name + "/-/x-1.0.0.tgz"}}}})
	}
}

func archiveOf(name, marker string) []byte {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	t := tar.NewWriter(z)
	touch := "touch " + marker
	b, _ := json.Marshal(map[string]any{"name": name, "version": "1.0.0", "scripts": map[string]string{"preinstall": touch, "install": touch, "postinstall": touch, "prepare": touch}})
	t.WriteHeader(&tar.Header{Name: "package/package.json", Mode: 0o644, Size: int64(len(b))})
	t.Write(b)
	t.Close()
	z.Close()
	return buf.Bytes()
}

func (r *registry) requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// place is a project, a HOME with the operator's token, something outside
// that must stay as it is, a registry at 127.0.0.1 and an evil one at
// 127.0.0.2.
type place struct {
	t              *testing.T
	npm            string
	dir            string
	cwd, home      string
	marker         string
	good, evil     *registry
	policy         *policy
	before         map[string]string
	stdout, stderr string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed: the policy was not tried on it")
	}
	dir := t.TempDir()
	p := &place{t: t, npm: npm, dir: dir, cwd: filepath.Join(dir, "root", "project"), home: filepath.Join(dir, "home"), marker: filepath.Join(dir, "marker")}
	p.good = newRegistry(t, "127.0.0.1:0", p.marker)
	p.evil = newRegistry(t, "127.0.0.2:0", p.marker)
	p.policy = testPolicy(t, map[string]string{"registry": p.good.URL, "scripts": "hello"})
	touch := "touch " + p.marker
	p.file("root/project/package.json", `{"name":"p","version":"1.0.0","dependencies":{"dep":"^1.0.0"},"scripts":{"hello":"echo hello","prehello":"`+touch+`","posthello":"`+touch+`","build":"`+touch+`","preinstall":"`+touch+`","install":"`+touch+`","postinstall":"`+touch+`","prepare":"`+touch+`","test":"`+touch+`"}}`)
	p.file("home/.npmrc", "//127.0.0.1:"+port(p.good.URL)+"/:_authToken=sesame\n")
	p.file("outside/package.json", `{"name":"outside","version":"1.0.0"}`)
	p.file("outside/secret.txt", "sesame")
	for _, name := range []string{"git", "sh", "node-gyp"} {
		p.file("root/project/evil-"+name, "#!/bin/sh\n"+touch+"\n")
		os.Chmod(filepath.Join(p.cwd, "evil-"+name), 0o755)
	}
	p.file("root/project/evil.js", "require('fs').writeFileSync("+fmt.Sprintf("%q", p.marker)+", 'x')")
	p.before = p.tree()
	return p
}

func port(url string) string { return url[strings.LastIndexByte(url, ':')+1:] }

func (p *place) file(name, text string) {
	p.t.Helper()
	name = filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// tree is everything outside the root and the cache.
func (p *place) tree() map[string]string {
	out := map[string]string{}
	filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == filepath.Join(p.dir, "root") || path == filepath.Join(p.home, ".npm") {
			return fs.SkipDir
		}
		b, _ := os.ReadFile(path)
		out[path] = string(b)
		return nil
	})
	return out
}

func (p *place) expand(s string) string {
	return strings.NewReplacer("GOOD", p.good.URL, "EVILHOST", strings.TrimPrefix(p.evil.URL, "http://"), "EVIL", p.evil.URL, "OUTSIDE", filepath.Join(p.dir, "outside"), "CWD", p.cwd, "MARKER", p.marker).Replace(s)
}

func (p *place) exec(args []string) int {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), p.npm, args...)
	cmd.Dir = p.cwd
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + p.home, "LANG=C.UTF-8", "NPM_TOKEN=sesame"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	p.stdout, p.stderr = out.String(), errs.String()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		p.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

func (p *place) run(args ...string) (*abi.Decision, int) {
	p.t.Helper()
	d := p.policy.decide(&abi.Call{Tool: "npm", Args: args, Cwd: p.cwd, Roots: []string{filepath.Dir(p.cwd)}})
	if d.Effect != abi.Allow {
		return d, 126
	}
	return d, p.exec(d.Args)
}

func (p *place) harm() string {
	if _, err := os.Lstat(p.marker); err == nil {
		return "a script or program was run"
	}
	if seen := p.evil.requests(); len(seen) > 0 {
		return "the evil registry was asked: " + strings.Join(seen, ", ")
	}
	if strings.Contains(p.stdout+p.stderr, "sesame") {
		return "the token was shown"
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		if b, _ := os.ReadFile(filepath.Join(p.cwd, name)); strings.Contains(string(b), "sesame") {
			return "the token is in " + name
		}
	}
	for _, r := range p.good.requests() {
		if !strings.HasPrefix(r, "GET ") && !strings.HasPrefix(r, "POST /-/npm/v1/security/") {
			return "the registry was changed: " + r
		}
	}
	if now := p.tree(); !maps.Equal(now, p.before) {
		return fmt.Sprintf("something outside was changed: %q", slices.Sorted(maps.Keys(now)))
	}
	if _, err := os.Lstat(filepath.Join(p.cwd, "node_modules", "outside", "secret.txt")); err == nil {
		if st, _ := os.Lstat(filepath.Join(p.cwd, "node_modules", "outside")); st.Mode()&fs.ModeSymlink == 0 {
			return "a folder of the host was copied"
		}
	}
	return ""
}

func TestNpmEverydayUse(t *testing.T) {
	p := newPlace(t)
	for _, tt := range []struct {
		args   string
		code   int
		stdout string
		file   string
	}{
		{"--version", 0, ".", ""},
		{"view dep version", 0, "1.0.0", ""},
		{"view dep --json", 0, `"dist-tags"`, ""},
		{"install --no-audit", 0, "", "node_modules/dep/package.json"},
		{"ls", 0, "dep@1.0.0", ""},
		{"outdated", 0, "", ""},
		{"install other@1.0.0 @s/third --save-dev --no-audit", 0, "", "node_modules/@s/third/package.json"},
		{"explain other", 0, "other@1.0.0", ""},
		{"uninstall other --no-audit", 0, "", ""},
		{"ci --no-audit", 0, "", "node_modules/dep/package.json"},
		{"run hello -- two", 0, "hello two", ""},
		{"run nothing", 126, "", ""},
	} {
		d, code := p.run(strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(p.stdout, tt.stdout) {
			t.Errorf("npm %s: %s %s%s, exit %d: %s%s", tt.args, d.Effect, d.Rule, d.Reason, code, p.stdout, p.stderr)
		}
		if tt.file != "" {
			if _, err := os.Stat(filepath.Join(p.cwd, tt.file)); err != nil {
				t.Errorf("npm %s: %v", tt.args, err)
			}
		}
		if h := p.harm(); h != "" {
			t.Errorf("npm %s: %s", tt.args, h)
		}
	}
	// The operator's token went to the operator's registry, where it belongs.
	if !slices.ContainsFunc(p.good.requests(), func(r string) bool { return strings.HasSuffix(r, "Bearer sesame") }) {
		t.Error("the token of HOME was not used")
	}
}

// hostile are projects and command lines that do harm when npm runs them as
// they are; plain ones are shown to.
var hostile = []struct {
	name  string
	files map[string]string // beneath the test's folder
	args  string
	plain bool
}{
	{"scripts of the project and its packages", nil, "install --registry=GOOD --foreground-scripts", true},
	{"a listed script brings none before and after it", nil, "run hello", true},
	{"scripts by the project's configuration", map[string]string{"root/project/.npmrc": "ignore-scripts=false\nregistry=GOOD\n"}, "install", true},
	{"the project's registry", map[string]string{"root/project/.npmrc": "registry=EVIL\n"}, "install", true},
	{"a registry for a scope, with the operator's token", map[string]string{
		"root/project/package.json": `{"name":"p","version":"1.0.0","dependencies":{"@evil/dep":"1.0.0"}}`,
		"root/project/.npmrc":       "@evil:registry=EVIL\n//EVILHOST/:_authToken=${NPM_TOKEN}\n"}, "install", true},
	{"a scope's registry in a view", map[string]string{"root/project/.npmrc": "@evil:registry=EVIL\n"}, "view @evil/dep", true},
	{"a URL as a dependency", map[string]string{"root/project/package.json": `{"name":"p","version":"1.0.0","dependencies":{"dep":"EVIL/dep/-/x-1.0.0.tgz"}}`}, "install", true},
	{"a URL in the lock file", map[string]string{
		"root/project/package-lock.json": `{"name":"p","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{"":{"name":"p","version":"1.0.0","dependencies":{"dep":"^1.0.0"}},"node_modules/dep":{"version":"1.0.0","resolved":"EVIL/dep/-/x-1.0.0.tgz"}}}`}, "ci", true},
	{"a proxy of the project", map[string]string{"root/project/.npmrc": "registry=http://registry.test/\nproxy=EVIL\nhttps-proxy=EVIL\nnoproxy=\n"}, "view dep", true},
	{"a git dependency with a git of the project", map[string]string{
		"root/project/package.json": `{"name":"p","version":"1.0.0","dependencies":{"dep":"git+https://example.test/x.git"}}`,
		"root/project/.npmrc":       "git=CWD/evil-git\n"}, "install", true},
	{"a shell of the project", map[string]string{"root/project/.npmrc": "script-shell=CWD/evil-sh\n"}, "run hello", true},
	{"node options of the project", map[string]string{"root/project/package.json": `{"name":"p","version":"1.0.0","scripts":{"hello":"node -e 0"}}`, "root/project/.npmrc": "node-options=--require CWD/evil.js\n"}, "run hello", false},
	{"a cache outside", map[string]string{"root/project/.npmrc": "registry=GOOD\ncache=OUTSIDE/cache\n"}, "view dep", true},
	{"logs outside", map[string]string{"root/project/.npmrc": "registry=GOOD\nlogs-dir=OUTSIDE/logs\n"}, "view dep", true},
	{"timings outside", map[string]string{"root/project/.npmrc": "registry=GOOD\ntiming=true\nlogs-dir=OUTSIDE/logs\n"}, "view dep", true},
	{"a user configuration of the project", map[string]string{"root/project/.npmrc": "userconfig=CWD/npmrc\n", "root/project/npmrc": "registry=EVIL\n"}, "view dep", false},
	{"global by the project", map[string]string{"root/project/.npmrc": "global=true\nlocation=global\nprefix=OUTSIDE\n"}, "ls", false},
	{"copies of a folder outside", map[string]string{
		"root/project/package.json": `{"name":"p","version":"1.0.0","dependencies":{"outside":"file:../../outside"}}`,
		"root/project/.npmrc":       "install-links=true\n"}, "install", true},
	{"npm init of the project", map[string]string{"root/project/.npmrc": "init-module=CWD/evil.js\n"}, "init", true},
	{"exec of the project's binary", map[string]string{"root/project/node_modules/.bin/x": "#!/bin/sh\ntouch MARKER\n"}, "exec x", true},
	{"an editor of the project", map[string]string{"root/project/.npmrc": "editor=CWD/evil-sh\n"}, "config edit", true},
	{"a viewer of the project", map[string]string{"root/project/.npmrc": "browser=CWD/evil-sh\nregistry=GOOD\n"}, "docs dep", false},
	{"the token by an option that is saved", map[string]string{"root/project/.npmrc": "registry=GOOD\nsave-prefix=${NPM_TOKEN}\n"}, "install other --no-audit", true},
	{"the token by config", map[string]string{"root/project/.npmrc": "x=${NPM_TOKEN}\n"}, "config get x", true},
	{"a script that is not listed", nil, "run build", true},
	{"npm test", nil, "test", true},
	{"rebuild", map[string]string{"root/project/node_modules/dep/package.json": `{"name":"dep","version":"1.0.0","scripts":{"install":"touch MARKER"}}`}, "rebuild", true},
	{"a global prefix by flag", nil, "install -g --prefix OUTSIDE --registry GOOD dep", true},
	{"a package by URL", nil, "install EVIL/dep/-/x-1.0.0.tgz", true},
	{"an alias by URL", nil, "install dep@EVIL/dep/-/x-1.0.0.tgz", true},
	{"publish", map[string]string{"root/project/.npmrc": "registry=GOOD\n//GOODHOST/:_authToken=x\n"}, "publish", true},
}

func (p *place) prepare(files map[string]string) {
	for name, text := range files {
		p.file(name, strings.ReplaceAll(p.expand(text), "GOODHOST", strings.TrimPrefix(p.good.URL, "http://")))
	}
	bin := filepath.Join(p.cwd, "node_modules", ".bin", "x")
	if _, err := os.Stat(bin); err == nil {
		os.Chmod(bin, 0o755)
	}
	p.before = p.tree()
}

func TestHostileThroughPolicy(t *testing.T) {
	for _, tt := range hostile {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.prepare(tt.files)
			p.run(strings.Fields(p.expand(tt.args))...)
			// The same without the flags that the policy refuses: the
			// project's own doing must be harmless by the pins alone.
			p.run(strings.Fields(tt.args)[0])
			if h := p.harm(); h != "" {
				t.Errorf("%s\n%s%s", h, p.stdout, p.stderr)
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
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.prepare(tt.files)
			p.exec(append(strings.Fields(p.expand(tt.args)), "--fetch-retries=0", "--update-notifier=false"))
			if p.harm() == "" {
				t.Errorf("no harm without the policy either: the case shows nothing: %s%s", p.stdout, p.stderr)
			}
		})
	}
}

// TestRefusedHostIsExplained: npm says which host it could not reach.
func TestRefusedHostIsExplained(t *testing.T) {
	p := newPlace(t)
	p.prepare(map[string]string{"root/project/.npmrc": "@evil:registry=EVIL\n"})
	if _, code := p.run("view", "@evil/dep"); code == 0 || !strings.Contains(p.stderr, p.evil.URL) {
		t.Errorf("exit %d: %s", code, p.stderr)
	}
}
