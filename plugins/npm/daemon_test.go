package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

// TestThroughDaemon runs the ready tool as it is shipped, but for the registry
// and the scripts: policy in WebAssembly, npm confined by the host.
func TestThroughDaemon(t *testing.T) {
	p := newPlace(t)
	def := hosttest.ReadyJSON(t, "npm")
	def["binary"] = p.Program
	def["capabilities"].(map[string]any)["network"] = []string{"127.0.0.1"}
	def["config"] = map[string]any{"registry": p.good.URL, "scripts": "hello outside"}
	d := p.Daemon(def)
	run := func(args ...string) (*wire.Result, string) {
		t.Helper()
		res := p.Call(d, "npm", args...)
		return res, p.Stdout + p.Stderr
	}
	if res, out := run("install", "--no-audit"); res.Err != nil || res.ExitCode != 0 {
		t.Fatalf("install: %v, exit %d: %s", res.Err, res.ExitCode, out)
	}
	if _, err := os.Stat(filepath.Join(p.Cwd, "node_modules", "dep", "package.json")); err != nil {
		t.Error(err)
	}
	if res, out := run("ls"); res.Err != nil || !strings.Contains(out, "dep@1.0.0") {
		t.Errorf("ls: %v: %s", res.Err, out)
	}
	if res, out := run("run", "hello"); res.Err != nil || res.ExitCode != 0 || !strings.Contains(out, "hello") {
		t.Errorf("run hello: %v, exit %d: %s", res.Err, res.ExitCode, out)
	}
	if res, _ := run("run", "build"); res.Err == nil || res.Err.Code != fault.Denied {
		t.Errorf("run build: %v", res.Err)
	}
	if res, _ := run("exec", "x"); res.Err == nil || res.Err.Code != fault.Denied || res.ExitCode != 126 {
		t.Errorf("exec: %v", res.Err)
	}
	if confine.Confinement().ABI == 0 {
		t.Log("this kernel confines nothing: writing outside was not tried")
	} else {
		// A script that the operator lists is the caller's program; it still
		// writes nowhere else, and starts no other program.
		p.Write("root/work/package.json", `{"name":"p","version":"1.0.0","scripts":{"outside":"echo x > `+p.Marker+`; cp package.json `+p.Marker+`"}}`, 0o600)
		if res, out := run("run", "outside"); res.Err != nil || res.ExitCode == 0 {
			t.Errorf("run outside: %v, exit %d: %s", res.Err, res.ExitCode, out)
		}
	}
	if h := p.harm(); h != "" {
		t.Error(h)
	}
}

// TestTokenThroughDaemon: npm has the registry's token, and nothing that the
// project says makes npm write it, or where a later call could read it, into
// the project.
func TestTokenThroughDaemon(t *testing.T) {
	const token = "npm_0123456789abcdefTOKEN"
	p := newPlace(t)
	site := p.good.Listener.Addr().String()
	p.Write("token", token+"\n", 0o600)
	def := hosttest.ReadyJSON(t, "npm")
	def["binary"] = p.Program
	def["capabilities"].(map[string]any)["network"] = []string{"127.0.0.1"}
	def["config"] = map[string]any{"registry": p.good.URL, "scripts": "hello", "userconfig": "variable"}
	def["secrets"] = map[string]any{"registry": map[string]any{"from": "file:" + filepath.Join(p.Dir, "token"), "file": "NPM_CONFIG_USERCONFIG", "content": "//" + site + "/:_authToken={secret}\n"}}
	d := p.Daemon(def)
	run := func(args ...string) string {
		t.Helper()
		res := p.Call(d, "npm", args...)
		if res.Err != nil {
			t.Fatalf("npm %v: %v: %s%s", args, res.Err, p.Stdout, p.Stderr)
		}
		return p.Stdout + p.Stderr
	}
	used := func() (n int) {
		for _, a := range p.good.Asked() {
			if a.Authorization == "Bearer "+token {
				n++
			}
		}
		return n
	}
	names := []string{"NPM_TOKEN", "npm_config_//" + site + "/:_authToken", "npm_config_userconfig", "NPM_CONFIG_USERCONFIG"}
	for i, name := range names {
		p.Write("root/work/.npmrc", "userconfig="+p.Cwd+"/evil\nsave-prefix=${"+name+"}\ntag=${"+name+"}\nuser-agent=${"+name+"}\ninit-author-name=${"+name+"}\nomit=${"+name+"}\n", 0o600)
		before := used()
		out := run("install", "other"+string(rune('a'+i)), "--no-audit")
		if used() == before {
			t.Errorf("${%s}: the registry was not given the token: %q: %s", name, p.good.Asked(), out)
		}
		out += run("run", "hello") + run("ls")
		filepath.WalkDir(p.Cwd, func(path string, e fs.DirEntry, err error) error {
			if b, _ := os.ReadFile(path); bytes.Contains(b, []byte(token)) || bytes.Contains(b, []byte(d.Config.State)) {
				t.Errorf("${%s}: %s holds it: %s", name, path, b)
			}
			return nil
		})
		if strings.Contains(out, token) {
			t.Errorf("${%s}: npm shows it: %s", name, out)
		}
	}
	// Neither is it left anywhere, nor does the script of a project see it.
	if left, _ := os.ReadDir(filepath.Join(d.Config.State, "secrets")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	p.Write("root/work/package.json", `{"name":"p","version":"1.0.0","scripts":{"hello":"echo rc=$NPM_CONFIG_USERCONFIG; env"}}`, 0o600)
	if out := run("run", "hello"); strings.Contains(out, "rc=/") || strings.Contains(out, token) {
		t.Errorf("a script sees it: %s", out)
	}
}
