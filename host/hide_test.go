package host_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/process"
)

// A binary reads nothing of what is the daemon's own, of another caller, or of
// any tool's secrets, but what it was given.
func TestBinariesDoNotReadTheDaemons(t *testing.T) {
	if process.Confinement().ABI == 0 {
		t.Skip("there is no Landlock here")
	}
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	for name, text := range map[string]string{"secret": "secret-canary-71\n", "other": "other", "toold.json": `{"confine": "required"}`, ".env": "TOKEN=env-canary-72\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := host.Load(filepath.Join(dir, "toold.json"), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, c)
	d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/bin/cat", "/bin/ls"}}}, nil)
	d.Tool(t, "other", M{"binary": "/bin/true", "secrets": M{"X": M{"from": "file:" + secret, "env": "X"}}}, nil)
	waitState(t, d, "other", "ok") // whose secret is known by then
	own := filepath.Join(d.Config.State, "home", "another")
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "hosts.yml"), []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	sh := func(script string) *answer {
		return ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", script}})
	}
	for _, path := range []string{
		secret, filepath.Join(dir, "toold.json"), filepath.Join(dir, ".env"),
		filepath.Join(d.Config.State, "host.key"), filepath.Join(own, "hosts.yml"),
	} {
		if _, err := os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		if a := sh("cat '" + path + "'"); a.ExitCode == 0 || !strings.Contains(a.Stderr, "Permission denied") {
			t.Errorf("%s: %+v", path, a)
		}
	}
	if a := sh("ls '" + d.Config.State + "'"); a.ExitCode == 0 {
		t.Errorf("the state folder: %+v", a)
	}
	if a := sh("cat '" + filepath.Join(dir, "other") + "' && echo mine > \"$HOME/file\" && cat \"$HOME/file\" /etc/hostname > \"$TMPDIR/x\" && ls \"$HOME\""); a.ExitCode != 0 || a.Stdout != "otherfile\ntmp\n" {
		t.Errorf("what is no secret: %+v", a)
	}
}

// What a tool runs has the daemon's user, and is not the operator for it.
func TestToolsDoNotReachTheAdminSocket(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl here")
	}
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("there is no /proc here")
	}
	d := hosttest.Start(t, host.Config{})
	d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{curl, "/bin", "/usr/bin"}}}, nil)
	ask := func(script string) *answer {
		return ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", script}})
	}
	get := curl + " -s --max-time 20 --unix-socket '" + d.Config.Admin + "' http://admin/status"
	if out, err := exec.Command("/bin/sh", "-c", get).Output(); err != nil || !strings.Contains(string(out), `"pid"`) {
		t.Errorf("the operator is told %q, %v", out, err)
	}
	for _, script := range []string{get, "setsid " + get, "(" + get + " > out &); until test -s out; do sleep 0.02; done; cat out"} {
		if a := ask(script); !strings.Contains(a.Stdout, "is the operator's") {
			t.Errorf("%s: %+v", script, a)
		}
	}
}
