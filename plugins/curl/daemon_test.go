package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	hostconfig "github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

// TestThroughDaemon runs the ready tool as it is shipped, but for the hosts:
// policy in WebAssembly, curl confined by the host.
func TestThroughDaemon(t *testing.T) {
	p := newPlace(t) // for its servers, and the check for curl
	b, err := os.ReadFile("../../tools.d/curl/tool.json")
	if err != nil {
		t.Fatal(err)
	}
	var def map[string]any
	if err := json.Unmarshal(b, &def); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, hostconfig.Config{})
	policy := map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/curl")}
	d.Tool(t, "curl", def, policy)

	call := func(tool, stdin string, args ...string) (*wire.Result, string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: tool, Args: p.expand(args), Cwd: d.Root, Stream: true},
			wire.Local{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs})
		if err != nil {
			t.Fatal(err)
		}
		return res, out.String(), errs.String()
	}

	// As it comes, it asks nobody and says what to do.
	res, _, _ := call("curl", "", "-s", "ALLOWED/a")
	if res.Err == nil || res.Err.Code != fault.Denied || !strings.Contains(res.Err.Message, `"hosts": "127.0.0.1:`+p.allowed.port()+`"`) {
		t.Errorf("without hosts: %v", res.Err)
	}

	def["config"] = map[string]any{"hosts": "127.0.0.1:" + p.allowed.port()}
	def["binary"] = p.curl
	d.Tool(t, "curl2", def, policy)
	run := func(stdin string, args ...string) (*wire.Result, string, string) {
		t.Helper()
		return call("curl2", stdin, args...)
	}
	if res, out, errs := run("", "-sS", "ALLOWED/a"); res.Err != nil || out != "hello from /a\n" {
		t.Fatalf("%v: %q %q", res.Err, out, errs)
	}
	if res, _, errs := run("in\n", "-sS", "--data-binary", "@-", "-o", "/dev/null", "ALLOWED/post"); res.Err != nil || res.ExitCode != 0 {
		t.Errorf("%v: %q", res.Err, errs)
	}
	if seen := p.allowed.requests(); seen[len(seen)-1] != "POST /post in\n" {
		t.Errorf("asked %q", seen)
	}
	if res, _, errs := run("", "-sS", "-O", "ALLOWED/file"); res.Err != nil || res.ExitCode != 0 {
		t.Errorf("%v: %q", res.Err, errs)
	}
	if b, err := os.ReadFile(filepath.Join(d.Root, "file")); err != nil || string(b) != "hello from /file\n" {
		t.Errorf("%q, %v", b, err)
	}
	res, _, errs := run("", "-sSL", "ALLOWED/r?to=FORBIDDEN/x")
	if res.ExitCode != 5 || !strings.Contains(errs, offHost) {
		t.Errorf("a redirect to elsewhere: exit %d, %v: %q", res.ExitCode, res.Err, errs)
	}
	res, _, _ = run("", "-sS", "-K", "x", "ALLOWED/a")
	if res.Err == nil || res.Err.Code != fault.Denied || res.ExitCode != 126 || !strings.Contains(res.Err.Message, "curl.flag.refused") {
		t.Errorf("-K: exit %d, %v", res.ExitCode, res.Err)
	}

	// Bytes pass as they are.
	p.allowed.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
	})
	var all [256 << 10]byte
	for i := range all {
		all[i] = byte(i * 7)
	}
	if res, out, errs := run(string(all[:]), "-sS", "--data-binary", "@-", "ALLOWED/echo"); res.Err != nil || out != string(all[:]) {
		t.Errorf("%v: %d bytes came back: %q", res.Err, len(out), errs)
	}

	// A name beneath the root that leads out of it: writing is the host's to
	// refuse.
	if process.Confinement().ABI == 0 {
		t.Log("this kernel confines nothing: writing through a symlink was not tried")
		return
	}
	if err := os.Symlink(p.marker, filepath.Join(d.Root, "link")); err != nil {
		t.Fatal(err)
	}
	res, _, errs = run("", "-sS", "-o", "link", "ALLOWED/a")
	if h := p.harm(); h != "" || res.ExitCode != 23 {
		t.Errorf("%s: exit %d: %q", h, res.ExitCode, errs)
	}
}
