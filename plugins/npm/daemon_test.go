package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

// TestThroughDaemon runs the ready tool as it is shipped, but for the registry
// and the scripts: policy in WebAssembly, npm confined by the host.
func TestThroughDaemon(t *testing.T) {
	p := newPlace(t)
	b, err := os.ReadFile("../../tools.d/npm/tool.json")
	if err != nil {
		t.Fatal(err)
	}
	var def map[string]any
	if err := json.Unmarshal(b, &def); err != nil {
		t.Fatal(err)
	}
	def["binary"] = p.npm
	def["config"] = map[string]any{"registry": p.good.URL, "scripts": "hello outside"}
	d := hosttest.Start(t, host.Config{Roots: []string{filepath.Dir(p.cwd)}})
	d.Tool(t, "npm", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/npm")})
	run := func(args ...string) (*wire.Result, string) {
		t.Helper()
		var out bytes.Buffer
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "npm", Args: args, Cwd: p.cwd, Stream: true}, wire.Local{Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatal(err)
		}
		return res, out.String()
	}
	if res, out := run("install", "--no-audit"); res.Err != nil || res.ExitCode != 0 {
		t.Fatalf("install: %v, exit %d: %s", res.Err, res.ExitCode, out)
	}
	if _, err := os.Stat(filepath.Join(p.cwd, "node_modules", "dep", "package.json")); err != nil {
		t.Error(err)
	}
	if res, out := run("ls"); res.Err != nil || !strings.Contains(out, "dep@1.0.0") {
		t.Errorf("ls: %v: %s", res.Err, out)
	}
	if res, out := run("run", "hello"); res.Err != nil || res.ExitCode != 0 || !strings.Contains(out, "hello") {
		t.Errorf("run hello: %v, exit %d: %s", res.Err, res.ExitCode, out)
	}
	if res, _ := run("run", "build"); res.Err == nil || res.Err.Code != wire.Denied {
		t.Errorf("run build: %v", res.Err)
	}
	if res, _ := run("exec", "x"); res.Err == nil || res.Err.Code != wire.Denied || res.ExitCode != 126 {
		t.Errorf("exec: %v", res.Err)
	}
	if process.Confinement().ABI == 0 {
		t.Log("this kernel confines nothing: writing outside was not tried")
	} else {
		// A script that the operator lists is the caller's program; it still
		// writes nowhere else, and starts no other program.
		p.file("root/project/package.json", `{"name":"p","version":"1.0.0","scripts":{"outside":"echo x > `+p.marker+`; cp package.json `+p.marker+`"}}`)
		if res, out := run("run", "outside"); res.Err != nil || res.ExitCode == 0 {
			t.Errorf("run outside: %v, exit %d: %s", res.Err, res.ExitCode, out)
		}
	}
	if h := p.harm(); h != "" {
		t.Error(h)
	}
}
