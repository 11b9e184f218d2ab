package tools

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

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

func TestMain(m *testing.M) {
	if process.IsSupervisor() {
		os.Exit(process.Supervise())
	}
	os.Exit(m.Run())
}

func (b *bench) withRunner() *bench {
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
func (b *bench) ran(name string) int {
	data, _ := os.ReadFile(b.path(name))
	return strings.Count(string(data), "\n")
}

func TestSetup(t *testing.T) {
	b := newBench(t).withRunner()
	const script = "#!/bin/sh -e\nread line && exit 9\necho \"$FROM $PWD $# ${HOME-no home}\" >> ran\n"
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
	if got, _ := os.ReadFile(b.path("t/ran")); string(got) != fmt.Sprintf("tool.json %s 0 no home\n", b.path("t")) {
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
	b := newBench(t)
	b.write(map[string]string{"t/handler.wasm": string(handler("h")), "t/setup.sh": "exit 0"})
	b.open()
	b.refused("t", fault.ToolBroken, "starts no processes")
}

// TestSetupTimeout: a setup.sh that does not end is killed with all that it
// started, also what left its session.
func TestSetupTimeout(t *testing.T) {
	b := newBench(t).withRunner()
	b.open()
	b.c.setupTimeout = 500 * time.Millisecond
	b.write(map[string]string{
		"t/handler.wasm": string(handler("h")),
		"t/setup.sh":     "echo begun\necho $$ > pids\nsetsid sh -c 'echo $$ >> pids; exec sleep 300' &\nsleep 300 &\necho $! >> pids\nwait",
	})
	b.refused("t", fault.ToolBroken, "did not end within 500ms and was killed, after it said: begun")
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
