package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

// TestThroughDaemon runs the ready tool as it is shipped, but for the hosts:
// policy in WebAssembly, curl confined by the host.
func TestThroughDaemon(t *testing.T) {
	p := newPlace(t)
	def := hosttest.ReadyJSON(t, "curl")
	d := p.Daemon(def)

	// As it comes, it asks nobody and says what to do.
	res := p.Call(d, "curl", "-s", "ALLOWED/a")
	if res.Err == nil || res.Err.Code != fault.Denied || !strings.Contains(res.Err.Message, `"hosts": "127.0.0.1:`+p.allowed.Port()+`"`) {
		t.Errorf("without hosts: %v", res.Err)
	}

	def["config"] = map[string]any{"hosts": "127.0.0.1:" + p.allowed.Port()}
	def["capabilities"] = map[string]any{"network": []string{"*", "127.0.0.1"}}
	def["binary"] = p.Program
	p.Tool(d, "curl2", def)
	if res := p.Call(d, "curl2", "-sS", "ALLOWED/a"); res.Err != nil || p.Stdout != "hello from /a\n" {
		t.Fatalf("%v: %q %q", res.Err, p.Stdout, p.Stderr)
	}
	p.Stdin = "in\n"
	if res := p.Call(d, "curl2", "-sS", "--data-binary", "@-", "-o", "/dev/null", "ALLOWED/post"); res.Err != nil || res.ExitCode != 0 {
		t.Errorf("%v: %q", res.Err, p.Stderr)
	}
	if asked := p.allowed.Asked(); asked[len(asked)-1].String() != "POST /post in\n" {
		t.Errorf("asked %q", asked)
	}
	p.Stdin = ""
	if res := p.Call(d, "curl2", "-sS", "-O", "ALLOWED/file"); res.Err != nil || res.ExitCode != 0 {
		t.Errorf("%v: %q", res.Err, p.Stderr)
	}
	if b, err := os.ReadFile(filepath.Join(p.Cwd, "file")); err != nil || string(b) != "hello from /file\n" {
		t.Errorf("%q, %v", b, err)
	}
	res = p.Call(d, "curl2", "-sSL", "ALLOWED/r?to=FORBIDDEN/x")
	if res.ExitCode != 5 || !strings.Contains(p.Stderr, offHost) {
		t.Errorf("a redirect to elsewhere: exit %d, %v: %q", res.ExitCode, res.Err, p.Stderr)
	}
	res = p.Call(d, "curl2", "-sS", "-K", "x", "ALLOWED/a")
	if res.Err == nil || res.Err.Code != fault.Denied || res.ExitCode != 126 || !strings.Contains(res.Err.Message, "curl.flag.refused") {
		t.Errorf("-K: exit %d, %v", res.ExitCode, res.Err)
	}

	// Bytes pass as they are.
	p.allowed.Answer(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	var all [256 << 10]byte
	for i := range all {
		all[i] = byte(i * 7)
	}
	p.Stdin = string(all[:])
	if res := p.Call(d, "curl2", "-sS", "--data-binary", "@-", "ALLOWED/echo"); res.Err != nil || p.Stdout != p.Stdin {
		t.Errorf("%v: %d bytes came back: %q", res.Err, len(p.Stdout), p.Stderr)
	}

	// A name beneath the root that leads out of it: writing is the host's to
	// refuse.
	if confine.Confinement().ABI == 0 {
		t.Log("this kernel confines nothing: writing through a symlink was not tried")
		return
	}
	p.Stdin = ""
	if err := os.Symlink(p.Marker, filepath.Join(p.Cwd, "link")); err != nil {
		t.Fatal(err)
	}
	res = p.Call(d, "curl2", "-sS", "-o", "link", "ALLOWED/a")
	if h := p.harm(); h != "" || res.ExitCode != 23 {
		t.Errorf("%s: exit %d: %q", h, res.ExitCode, p.Stderr)
	}
}
