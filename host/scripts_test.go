package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/hosttest"
)

// writeScript puts an executable file in place, as an installation does.
func writeScript(t testing.TB, file, text string) string {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	return file
}

// A script is a tool as it is: what runs it comes with it.
func TestScripts(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	bin := t.TempDir()
	policy := map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)}
	for name, text := range map[string]string{
		"plain":  "#!/bin/sh\necho \"$0: $*\"",
		"env":    "#!/usr/bin/env bash\necho \"$0: $*\"",
		"split":  "#!/usr/bin/env -S bash -e\nfalse\necho not reached",
		"nested": "#!" + bin + "/env\n",
		"line":   "#!/bin/sh\n/bin/sh -c 'echo line'",
		"id":     "#!/bin/sh\n/usr/bin/id -un >/dev/null && echo id ran",
	} {
		writeScript(t, bin+"/"+name, text)
	}
	shell := M{"exec": []string{"/bin/sh"}}
	status, err := client.NewAdmin(d.Admin).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	level, _ := confine.ParseLevel(status.Confinement)
	judged := level >= confine.Seccomp
	for _, tt := range []struct {
		name, binary string
		capabilities M
		modules      map[string]string
		stdout       string
		fails        bool
		unless       bool // passed over
	}{
		{name: "plain", binary: "plain", stdout: bin + "/plain: a b\n"},
		{name: "env", binary: "env", stdout: bin + "/env: a b\n"},
		{name: "split", binary: "split", fails: true},
		{name: "nested", binary: "nested", stdout: bin + "/env: " + bin + "/nested a b\n"},
		{name: "with-policy", binary: "plain", modules: policy, stdout: bin + "/plain: a b\n"},
		{name: "shell", binary: "line", fails: true, unless: !judged},
		{name: "shell-listed", binary: "line", capabilities: shell, stdout: "line\n"},
		{name: "shell-listed-with-policy", binary: "line", capabilities: shell, modules: policy, fails: true, unless: !judged},
		{name: "program", binary: "id", fails: true},
		{name: "program-of-folder", binary: "id", capabilities: M{"exec": []string{"/usr/bin"}}, stdout: "id ran\n"},
	} {
		if tt.unless {
			continue
		}
		def := M{"binary": bin + "/" + tt.binary}
		if tt.capabilities != nil {
			def["capabilities"] = tt.capabilities
		}
		d.Tool(t, tt.name, def, tt.modules)
		a := ask(t, d.Socket, M{"tool": tt.name, "cwd": d.Root, "args": []string{"a", "b"}})
		if a.Stdout != tt.stdout || (a.ExitCode != 0) != tt.fails || a.Code != "" && a.Code != "TOOL_FAILED" {
			t.Errorf("%s: %s", tt.name, a.raw)
		}
	}
	// A module executes one as well.
	d.Tool(t, "module", M{"capabilities": M{"exec": []string{bin + "/env"}, "state": 1024, "http": M{"hosts": []string{"nowhere.example"}}}},
		map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	if a := ask(t, d.Socket, M{"tool": "module", "cwd": d.Root, "args": []string{"exec", bin + "/env", "a"}}); a.Stdout != bin+"/env: a\n" {
		t.Errorf("module: %s", a.raw)
	}
}

// npm is a script of node's, which it finds by env.
func TestNpmWithoutMore(t *testing.T) {
	if _, err := os.Stat("/usr/bin/npm"); err != nil {
		t.Skip("there is no npm here")
	}
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "npm", M{"binary": "/usr/bin/npm", "timeout": 600}, nil)
	if a := ask(t, d.Socket, M{"tool": "npm", "cwd": d.Root, "args": []string{"--version"}}); a.ExitCode != 0 || !strings.Contains(a.Stdout, ".") {
		t.Errorf("%s", a.raw)
	}
}

// A tool that cannot start is broken, and its reason says what to write.
func TestScriptsThatCannotStart(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	bin := t.TempDir()
	inside, err := filepath.EvalSymlinks(d.Root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/sh", inside+"/link"); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ file, text, says string }{
		// Absent, as a binary that is missing.
		"no-interpreter": {bin + "/a", "#!/nowhere/perl\n", "/nowhere/perl, which is not on this host; install it"},
		"no-program":     {bin + "/b", "#!/usr/bin/env no-such-program\n", "no-such-program, which is not in /usr/local/bin:/usr/bin:/bin; install it"},
		"no-first-line":  {bin + "/c", "echo hello\n", `such as "#!/bin/sh"`},
		"windows":        {bin + "/d", "#!/bin/sh\r\necho hello\r\n", "dos2unix"},
		"relative":       {bin + "/e", "#!sh\n", "write the whole path"},
		"env-words":      {bin + "/f", "#!/usr/bin/env bash -e\n", "env -S PROGRAM ARGUMENTS"},
		"env-variables":  {bin + "/g", "#!/usr/bin/env -S PATH=/tmp bash\n", "or the interpreter's whole path"},
		"loop":           {bin + "/h", "#!" + bin + "/h\n", "name the last one"},
		"in-root":        {inside + "/script", "#!/bin/sh\necho", "beneath the root"},
		"link-in-root":   {bin + "/i", "#!" + inside + "/link\n", "beneath the root"},
	} {
		writeScript(t, tt.file, tt.text)
		d.Tool(t, name, M{"binary": tt.file}, nil)
		state, exit := "broken", 70
		if strings.Contains(tt.says, "install it") {
			state, exit = "absent", 127
		}
		waitState(t, d, name, state)
		s, err := client.NewAdmin(d.Admin).Tool(t.Context(), name)
		if err != nil || !strings.Contains(s.Reason, tt.says) {
			t.Errorf("%s: %v, %+v, want %q", name, err, s, tt.says)
		}
		if a := ask(t, d.Socket, M{"tool": name, "cwd": d.Root}); !strings.Contains(a.message(), tt.says) || a.ExitCode != exit {
			t.Errorf("%s: %s", name, a.raw)
		}
	}
	// It is looked at again when it is called.
	writeScript(t, bin+"/a", "#!/bin/sh\necho mended")
	if a := ask(t, d.Socket, M{"tool": "no-interpreter", "cwd": d.Root}); a.Stdout != "mended\n" {
		t.Errorf("mended: %s", a.raw)
	}
}

// What runs a script is a part of the tool: another one is another version, from
// the next call on.
func TestChangedInterpreter(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	bin := t.TempDir()
	program := func(name, from string) {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		writeScript(t, bin+"/"+name, string(b))
	}
	call := func(want string) (version string) {
		t.Helper()
		if a := ask(t, d.Socket, M{"tool": "tool", "cwd": d.Root}); a.Stdout != want {
			t.Errorf("%s, want %q", a.raw, want)
		}
		s, err := client.NewAdmin(d.Admin).Tool(t.Context(), "tool")
		if err != nil {
			t.Fatal(err)
		}
		return s.Version
	}
	d.Tool(t, "tool", M{"binary": bin + "/tool"}, nil)
	waitState(t, d, "tool", "absent")
	program("sh", "/bin/dash")
	writeScript(t, bin+"/tool", "#!"+bin+"/sh\necho ${BASH_VERSION:+bash} one")
	one := call("one\n") // installed a moment ago
	program("sh", "/bin/bash")
	two := call("bash one\n")
	writeScript(t, bin+"/tool", "#!"+bin+"/sh\necho two")
	three := call("two\n")
	writeScript(t, bin+"/tool", "#!/bin/sh\necho three")
	four := call("three\n")
	program("tool", "/bin/pwd")
	five := call(d.Root + "\n")
	writeScript(t, bin+"/tool", "#!/bin/sh\necho three")
	six := call("three\n")
	if one == two || two == three || three == four || four == five || four != six {
		t.Errorf("versions %s %s %s %s %s %s", one, two, three, four, five, six)
	}
}

// What setup.sh configures with git config --global reaches every call, and no
// call changes it. What setup.sh installed comes back when it is gone.
func TestSetupReachesCalls(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	dir := t.TempDir()
	setup := writeScript(t, dir+"/setup", "git config --global user.name Ada\n")
	d.Tool(t, "vcs", M{"binary": "git"}, map[string]string{"setup.sh": setup})
	call := func(args ...string) *answer {
		return ask(t, d.Socket, M{"tool": "vcs", "cwd": d.Root, "args": args})
	}
	if a := call("config", "user.name"); a.Stdout != "Ada\n" {
		t.Errorf("%s", a.raw)
	}
	if confine.Confinement().ABI > 0 {
		if a := call("config", "--global", "user.name", "Eve"); a.ExitCode == 0 {
			t.Errorf("a call changed it: %s", a.raw)
		}
		if a := call("config", "user.name"); a.Stdout != "Ada\n" {
			t.Errorf("after that: %s", a.raw)
		}
	}

	// Its state is kept, and its container was made anew.
	file := dir + "/installed"
	setup = writeScript(t, dir+"/setup", "printf '#!/bin/sh\\necho ran\\n' > "+file+" && chmod 755 "+file)
	d.Tool(t, "installed", M{"binary": file}, map[string]string{"setup.sh": setup})
	if a := ask(t, d.Socket, M{"tool": "installed", "cwd": d.Root}); a.Stdout != "ran\n" {
		t.Errorf("%s", a.raw)
	}
	d.Stop(t)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	again := hosttest.Start(t, config.Config{Tools: d.Config.Tools, State: d.Config.State, Roots: d.Config.Roots})
	if a := ask(t, again.Socket, M{"tool": "installed", "cwd": again.Root}); a.Stdout != "ran\n" {
		t.Errorf("after a restart: %s", a.raw)
	}
	if !strings.Contains(again.Logs(), "setting it up again") {
		t.Error("it is not in the log")
	}
}
