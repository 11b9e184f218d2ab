package catalog

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

func TestMain(m *testing.M) {
	if process.IsSupervisor() {
		os.Exit(process.Supervise())
	}
	os.Exit(m.Run())
}

func (b *fixture) withRunner() *fixture {
	b.t.Helper()
	r, err := process.New(process.Config{Ready: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := r.Close(); err != nil {
			b.t.Error(err)
		}
	})
	b.cfg.Runner = r
	return b
}

// ran is how many lines the file has that a setup.sh appends to.
func (b *fixture) ran(name string) int {
	data, _ := os.ReadFile(b.path(name))
	return strings.Count(string(data), "\n")
}

func TestSetup(t *testing.T) {
	b := newFixture(t).withRunner()
	const script = "#!/bin/sh -e\nread line && exit 9\necho \"$FROM $PWD $# ${HOME##*/setup/}\" >> ran\n"
	b.write(map[string]string{
		"t/handler.wasm":      string(handler("h")),
		"t/setup.sh":          script,
		"t/tool.json":         `{"environment": {"FROM": "tool.json"}}`,
		"plain/handler.wasm":  string(handler("p")),
		"plain/setup.sh":      "echo \"$0\" > ran", // neither a first line nor an x bit
		"fails/handler.wasm":  string(handler("f")),
		"fails/setup.sh":      "echo some of it\necho no mirror >&2\nexit 3",
		"none/setup.sh":       "touch ran",
		"binary/setup.sh":     "printf '#!/bin/sh\\n' > prog; chmod 755 prog",
		"folder/setup.sh/x":   "",
		"folder/handler.wasm": string(handler("x")),
	})
	b.write(map[string]string{"binary/tool.json": `{"binary": "` + b.path("binary/prog") + `"}`})
	b.open()
	b.is("t", "| h")
	b.is("plain", "| p")
	b.refused("fails", fault.ToolBroken, "fails/setup.sh ended with exit code 3, after it said: some of it no mirror", "touch it to run it again")
	b.refused("folder", fault.ToolBroken, "setup.sh is not a regular file")
	b.refused("none", fault.UnknownTool)
	if b.ran("none/ran") != 0 {
		t.Error("the setup.sh of a folder that is no tool ran")
	}
	// What it installs is there for the first call.
	if tool, release, err := b.c.Acquire(t.Context(), "binary"); err != nil || tool.Binary != b.path("binary/prog") {
		t.Errorf("binary: %v", err)
	} else {
		release()
	}
	if got, _ := os.ReadFile(b.path("t/ran")); string(got) != fmt.Sprintf("tool.json %s 0 t\n", b.path("t")) {
		t.Errorf("it said %q", got)
	}

	// Once for each content: not for a new handler, and not after a restart.
	b.write(map[string]string{"t/handler.wasm": string(handler("h2"))})
	b.look("t")
	b.is("t", "| h2")
	b.restart()
	b.is("t", "| h2")
	if n := b.ran("t/ran"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
	b.write(map[string]string{"t/setup.sh": script + "# changed\n"})
	b.look("t")
	b.is("t", "| h2")
	if n := b.ran("t/ran"); n != 2 {
		t.Errorf("after a change it ran %d times in all", n)
	}

	// One that fails leaves what served, and runs again when it is touched.
	b.write(map[string]string{"t/setup.sh": "echo >> ran; exit 1", "t/handler.wasm": string(handler("h3"))})
	b.look("t")
	b.is("t", "| h2")
	b.write(map[string]string{"t/.setup.sh.swp": "of an editor"})
	b.look("t")
	if n := b.ran("t/ran"); n != 3 {
		t.Errorf("looked at twice, it ran %d times in all", n)
	}
	if s := b.status("t"); s.State != StateStale || !strings.Contains(s.Reason, "exit code 1") {
		t.Errorf("status %+v", s)
	}
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(b.path("t/setup.sh"), later, later); err != nil {
		t.Fatal(err)
	}
	b.look("t")
	if n := b.ran("t/ran"); n != 4 {
		t.Errorf("after a touch it ran %d times in all", n)
	}
	// A failed run is not remembered.
	b.restart()
	b.refused("t", fault.ToolBroken, "exit code 1")
}

func TestSetupWithoutRunner(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("h")), "t/setup.sh": "exit 0"})
	b.open()
	b.refused("t", fault.ToolBroken, "starts no processes")
}

// TestSetupTimeout: a setup.sh that does not end is killed with all that it
// started, also what left its session.
func TestSetupTimeout(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes as long as a setup.sh may run")
	}
	t.Parallel()
	b := newFixture(t).withRunner()
	b.open()
	b.write(map[string]string{
		"t/handler.wasm": string(handler("h")),
		"t/setup.sh":     "echo begun\necho $$ > pids\nsetsid sh -c 'echo $$ >> pids; exec sleep 300' &\nsleep 300 &\necho $! >> pids\nwait",
	})
	b.refused("t", fault.ToolBroken, "did not end within 30s and was killed, after it said: begun")
	data, err := os.ReadFile(b.path("t/pids"))
	if err != nil {
		t.Fatal(err)
	}
	pids := strings.Fields(string(data))
	if len(pids) != 3 {
		t.Errorf("it wrote %q", data)
	}
	for _, p := range pids {
		pid, err := strconv.Atoi(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, 0); err == nil {
			stat, _ := os.ReadFile(filepath.Join("/proc", p, "stat"))
			if f := strings.Fields(string(stat)); len(f) > 2 && f[2] != "Z" {
				t.Errorf("process %d is alive: %s", pid, stat)
			}
		}
	}
}

func TestScriptCommand(t *testing.T) {
	for script, want := range map[string][]string{
		"":                           {"/bin/sh", "f"},
		"echo":                       {"/bin/sh", "f"},
		"#!/bin/bash":                {"/bin/bash", "f"},
		"#! /usr/bin/env python3 \n": {"/usr/bin/env", "python3", "f"},
		"#!/bin/sh -e x\nfoo":        {"/bin/sh", "-e x", "f"},
		"#!\n":                       {"/bin/sh", "f"},
		"#!sh\n":                     {"/bin/sh", "f"},
		"#!/bin/sh\r\n":              {"/bin/sh", "f"},
	} {
		interpreter, args := scriptCommand([]byte(script), "f")
		if got := append([]string{interpreter}, args...); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", script, got, want)
		}
	}
}

// A binary that setup.sh brought and that is gone is brought once more, and not
// with every call.
func TestSetupAgain(t *testing.T) {
	b := newFixture(t).withRunner()
	prog := b.path("t/prog")
	b.write(map[string]string{
		"t/setup.sh":  "echo >> ran; [ -e empty ] && exit; [ -e broken ] && exit 3; printf '#!/bin/sh\\n' > prog; chmod 755 prog",
		"t/tool.json": `{"binary": "` + prog + `"}`,
	})
	b.open()
	acquire := func(want string, runs int) {
		t.Helper()
		_, release, err := b.c.Acquire(t.Context(), "t")
		if err == nil {
			release()
		}
		if got := fmt.Sprint(err); !strings.Contains(got, want) || b.ran("t/ran") != runs {
			t.Errorf("%s, ran %d times, want %s, %d times", got, b.ran("t/ran"), want, runs)
		}
	}
	remove := func() {
		t.Helper()
		if err := os.Remove(prog); err != nil {
			t.Fatal(err)
		}
	}
	minuteAgo := func() {
		b.c.mu.Lock()
		defer b.c.mu.Unlock()
		run := b.c.loader.compiler.setups.runs["t"]
		run.at = run.at.Add(-setupEach)
		b.c.loader.compiler.setups.runs["t"] = run
	}
	acquire("nil", 1)
	remove()
	acquire("no such program", 1) // it ran a moment ago
	minuteAgo()
	acquire("nil", 2)
	remove()
	acquire("no such program", 2)
	minuteAgo()
	<-b.c.reconcile("t") // as without calls
	acquire("nil", 3)
	// After a restart it is not known when it ran.
	remove()
	b.restart()
	acquire("nil", 4)
	// One that fails is tried again; one that brings nothing is not.
	remove()
	b.write(map[string]string{"t/broken": ""})
	minuteAgo()
	acquire("no such program", 5)
	if s := b.status("t"); s.State != StateStale || !strings.Contains(s.Reason, "exit code 3") {
		t.Errorf("%+v", s)
	}
	acquire("no such program", 5)
	b.write(map[string]string{"t/empty": ""})
	minuteAgo()
	acquire("no such program", 6)
	minuteAgo()
	acquire("no such program", 6)
}

// What setup.sh configures with git config --global is in a file that all calls
// of the tool have.
func TestSetupGitConfig(t *testing.T) {
	git, ok := disk.LookBinary("git")
	if !ok {
		t.Skip("there is no git here")
	}
	b := newFixture(t).withRunner()
	const script = "git config --global user.name Ada && printf '%s' \"$HOME\" > home"
	variable := func(name string) string {
		t.Helper()
		tool, release, err := b.c.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		return tool.Def.Environment["GIT_CONFIG_GLOBAL"]
	}
	b.write(map[string]string{
		"t/setup.sh": script, "t/tool.json": `{"binary": "` + git + `"}`,
		"own/setup.sh": script, "own/tool.json": `{"binary": "` + git + `", "environment": {"GIT_CONFIG_GLOBAL": "` + b.path("own/mine") + `"}}`,
		"secret/setup.sh": script, "secret/tool.json": `{"binary": "` + git + `", "secrets": {"s": {"from": "env:S", "file": "GIT_CONFIG_GLOBAL"}}}`,
		"own/gitconfig": "", "none/setup.sh": "exit 0", "none/tool.json": `{"binary": "` + git + `"}`,
	})
	b.open()
	for name, want := range map[string]string{"t": b.path("t/gitconfig"), "own": b.path("own/mine"), "secret": "", "none": ""} {
		if got := variable(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, file := range []string{"t/gitconfig", "own/mine", "secret/gitconfig"} {
		if data, _ := os.ReadFile(b.path(file)); !strings.Contains(string(data), "name = Ada") {
			t.Errorf("%s: %q", file, data)
		}
	}
	home, _ := os.ReadFile(b.path("t/home"))
	if fi, err := os.Stat(string(home)); err != nil || fi.Mode().Perm() != 0o700 || !strings.HasPrefix(string(home), b.cfg.StateDir) {
		t.Errorf("HOME is %q: %v", home, err)
	}
	// The same version as long as it is there, and after a restart.
	version := b.status("t").Version
	b.look("t")
	if s := b.status("t"); s.Version != version || s.State != StateOK {
		t.Errorf("looked at again: %+v", s)
	}
	b.restart()
	if s := b.status("t"); s.Version != version || variable("t") != b.path("t/gitconfig") {
		t.Errorf("after a restart: %+v", s)
	}
	// Who could write it could have every call run a program.
	if err := os.Chmod(b.path("t/gitconfig"), 0o666); err != nil {
		t.Fatal(err)
	}
	b.look("t")
	if s := b.status("t"); s.State != StateStale || !strings.Contains(s.Reason, "t/gitconfig can be written by others") {
		t.Errorf("%+v", s)
	}
	b.remove("t/gitconfig")
	b.look("t")
	if got := variable("t"); got != "" {
		t.Errorf("it is gone, and calls have %q", got)
	}
}
