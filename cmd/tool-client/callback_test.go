//go:build linux

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/host/wire/callbacks"
)

// asks is a daemon whose calls have their caller run q, with input, and answer with
// what that wrote.
func asks(t *testing.T, q callbacks.Request, input string) string {
	return serve(t, func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		if s.Callback == nil {
			return &wire.Result{Ran: true, Stdout: []byte("no callbacks")}
		}
		if q.Cwd == "" {
			q.Cwd = c.Cwd
		}
		var stdout, stderr bytes.Buffer
		exit, err := s.Callback(ctx, q, strings.NewReader(input), &stdout, &stderr)
		text := stdout.String() + "|" + stderr.String()
		if err != nil {
			text += "|" + err.Error()
		}
		return &wire.Result{Ran: true, ExitCode: exit, Stdout: []byte(text)}
	})
}

// calledWith makes a call from dir with the variables, and returns what it wrote and
// its exit code.
func calledWith(t *testing.T, socket, dir string, env ...string) (string, int) {
	t.Helper()
	cmd := wrapper(t, socket, "git")
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestHook: a hook has the streams, the arguments, the folder and the variables of
// the request, the wrapper's own environment, and no terminal.
func TestHook(t *testing.T) {
	dir := t.TempDir()
	hook := script(t, dir, "pre-push", `#!/bin/sh
echo "$# $1 $GIT_DIR $OWN $(pwd)"; cat; echo err >&2; (exec 3<>/dev/tty) 2>/dev/null && echo a terminal; exit 7
`)
	big := strings.Repeat("0123456789abcde\n", 100_000)
	socket := asks(t, callbacks.Request{Kind: callbacks.Hooks, Path: hook, Args: []string{"a b"}, Env: map[string]string{"GIT_DIR": "x"}}, big)
	out, code := calledWith(t, socket, dir, "OWN=own")
	if want := "1 a b x own " + dir + "\n" + big + "|err\n"; code != 7 || out != want {
		t.Errorf("exit code %d, %d bytes, not %d: %.300s", code, len(out), len(want), out)
	}
}

// TestEditorOfInterruptedTool: a tool that is being ended is not told that its editor has
// ended, and does not go on with what that wrote.
func TestEditorOfInterruptedTool(t *testing.T) {
	dir := t.TempDir()
	file, fifo := script(t, dir, "file", "text\n"), filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := serve(t, func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		ended := make(chan struct{})
		go func() {
			s.Callback(ctx, callbacks.Request{Kind: callbacks.Editor, Args: []string{file}, Cwd: c.Cwd}, strings.NewReader(""), io.Discard, io.Discard)
			close(ended)
		}()
		sig := <-s.Signals
		os.WriteFile(fifo, []byte("end\n"), 0)
		select {
		case <-ended:
			return &wire.Result{Ran: true}
		case <-time.After(keptOpen / 4):
			return &wire.Result{Ran: true, ExitCode: 128 + int(sig.(syscall.Signal))}
		}
	})
	cmd := wrapper(t, socket, "git")
	cmd.Dir = dir
	cmd.Env = append(cmd.Env, "PATH=/usr/bin:/bin", "EDITOR=kill -TERM $PPID; read line < "+fifo+"; :")
	cmd.Run()
	if !endedBy(cmd, syscall.SIGTERM) {
		t.Errorf("%v", cmd.ProcessState)
	}
}

// TestHookCallsItsTool: the tool in a hook gets what the one that runs the hook set for it,
// and another tool does not.
func TestHookCallsItsTool(t *testing.T) {
	t.Setenv(hookOf, "git")
	for _, name := range ofHooks {
		t.Setenv(name, "x")
	}
	for tool, want := range map[string]int{"git": len(ofHooks), "gh": 0} {
		c, err := newCall([]string{tool})
		if err != nil || len(c.Env) != want {
			t.Errorf("%s: %v, %v", tool, c.Env, err)
		}
		for _, name := range c.EnvSeen {
			if want > 0 && slices.Contains(ofHooks, name) {
				t.Errorf("%s says that %s is not passed on", tool, name)
			}
		}
	}
}

// TestScript: a script of a package has the caller's environment, the daemon's word on
// the package, programs of the project first in PATH, and each variable once. One that
// npm was told to run reads what the caller reads; one of an install reads nothing.
func TestScript(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	script(t, dir, "own", "#!/bin/sh\necho own\n")
	for _, name := range []string{"npm", "node"} {
		script(t, bin, name, "#!/bin/sh\n")
	}
	text := `grep -zc ^npm_package_name= /proc/$$/environ; own; env | sort | grep -E '^(npm_|NODE|OWN|PATH)'; cat; (exec 3<>/dev/tty) 2>/dev/null && echo a terminal; exit 7`
	for _, tt := range []struct{ command, input string }{{"run", "the caller's"}, {"install", ""}} {
		socket := asks(t, callbacks.Request{Kind: callbacks.Scripts, Args: []string{text}, Env: map[string]string{"npm_command": tt.command, "PATH": dir, "npm_package_name": "p"}}, "")
		cmd := wrapper(t, socket, "npm")
		cmd.Dir = dir
		path := bin + ":/usr/bin:/bin"
		cmd.Env = append(cmd.Env, "OWN=own", "PATH="+path, "npm_package_name=outer", "npm_execpath=/outer", "NODE=/outer")
		cmd.Stdin = strings.NewReader("the caller's")
		out, _ := cmd.CombinedOutput()
		want := "1\nown\nNODE=" + bin + "/node\nOWN=own\nPATH=" + dir + ":" + path + "\nnpm_command=" + tt.command + "\nnpm_execpath=" + bin + "/npm\nnpm_node_execpath=" + bin + "/node\nnpm_package_name=p\n" + tt.input + "|"
		if code := cmd.ProcessState.ExitCode(); code != 7 || string(out) != want {
			t.Errorf("%s: exit code %d: %q, not %q", tt.command, code, out, want)
		}
	}
}

// TestScriptsOffered: scripts are offered where there is a node.
func TestScriptsOffered(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	script(t, bin, "sh", "")
	if kinds := offered(nil); slices.Contains(kinds, callbacks.Scripts) {
		t.Errorf("without node: %q", kinds)
	}
	script(t, bin, "node", "")
	if kinds := offered(nil); !slices.Contains(kinds, callbacks.Scripts) {
		t.Errorf("with node: %q", kinds)
	}
}

// TestProgramsRefused: what a request names that the caller did not mean is not run.
func TestProgramsRefused(t *testing.T) {
	dir := t.TempDir()
	file := script(t, dir, "file", "text\n")
	os.Symlink(file, dir+"/link")
	os.Symlink(".", dir+"/around")
	for name, test := range map[string]struct {
		q    callbacks.Request
		env  []string
		want string
	}{
		"another kind":               {callbacks.Request{Kind: "shell", Path: "/bin/sh"}, nil, "not run here"},
		"no editor":                  {callbacks.Request{Kind: callbacks.Editor, Args: []string{file}}, nil, "no editor is named"},
		"flags for an editor":        {callbacks.Request{Kind: callbacks.Editor, Args: []string{"-c", file}}, []string{"EDITOR=touch ran"}, "one file"},
		"a command for an editor":    {callbacks.Request{Kind: callbacks.Editor, Args: []string{"+!touch ran"}}, []string{"EDITOR=touch ran"}, "one file"},
		"a link for an editor":       {callbacks.Request{Kind: callbacks.Editor, Args: []string{dir + "/link"}}, []string{"EDITOR=touch ran"}, "not a regular file"},
		"a link on the way":          {callbacks.Request{Kind: callbacks.Editor, Args: []string{dir + "/around/file"}}, []string{"EDITOR=touch ran"}, "a link leads"},
		"a folder behind a link":     {callbacks.Request{Kind: callbacks.Hooks, Path: file, Cwd: dir + "/around"}, nil, "a link leads"},
		"a pager without a terminal": {callbacks.Request{Kind: callbacks.Pager, Args: []string{"x"}}, []string{"PAGER=touch ran"}, "no pager"},
		"a relative hook":            {callbacks.Request{Kind: callbacks.Hooks, Path: "file"}, nil, "not absolute"},
		"no hook":                    {callbacks.Request{Kind: callbacks.Hooks, Path: dir + "/none"}, nil, "no such file"},
		"two scripts":                {callbacks.Request{Kind: callbacks.Scripts, Args: []string{"touch ran", "x"}}, nil, "one text"},
		"a script behind a link":     {callbacks.Request{Kind: callbacks.Scripts, Args: []string{"touch ran"}, Cwd: dir + "/around"}, nil, "a link leads"},
		"a relative folder":          {callbacks.Request{Kind: callbacks.Hooks, Path: file, Cwd: "."}, nil, "not absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			out, _ := calledWith(t, asks(t, test.q, ""), dir, test.env...)
			if !strings.Contains(out, test.want) {
				t.Errorf("%q, not with %q", out, test.want)
			}
			if _, err := os.Stat(dir + "/ran"); err == nil {
				t.Error("it ran")
			}
		})
	}
}

// TestWorkingFolderBehindLink: where the caller itself went by a link, its programs go
// too.
func TestWorkingFolderBehindLink(t *testing.T) {
	dir := t.TempDir()
	os.Mkdir(dir+"/real", 0o755)
	os.Symlink("real", dir+"/link")
	file := script(t, dir+"/real", "file", "text\n")
	socket := asks(t, callbacks.Request{Kind: callbacks.Editor, Args: []string{dir + "/link/file"}}, "")
	out, code := calledWith(t, socket, dir+"/link", "PWD="+dir+"/link", "PATH=/usr/bin:/bin", "EDITOR=echo edited >")
	if b, err := os.ReadFile(file); code != 0 || err != nil || string(b) != "edited\n" {
		t.Errorf("%d, %s: %q, %v", code, out, b, err)
	}
}

// TestEditorNames: of the variables the first counts that git would take.
func TestEditorNames(t *testing.T) {
	for _, name := range append(sequenceEditors, "TERM", "GIT_PAGER", "PAGER") {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	for _, step := range []struct{ set, value, sequence, message string }{
		{"EDITOR", "e", "e", "e"},
		{"VISUAL", "v", "e", "e"},
		{"TERM", "xterm", "v", "v"},
		{"GIT_EDITOR", "g", "g", "g"},
		{"GIT_SEQUENCE_EDITOR", "s", "s", "g"},
	} {
		os.Setenv(step.set, step.value)
		if s, m := editor(sequenceEditors, false), editor(messageEditors, false); s != step.sequence || m != step.message {
			t.Errorf("with %s: %q and %q", step.set, s, m)
		}
	}
	os.Setenv("PAGER", "p")
	if pager() != "p" {
		t.Error(pager())
	}
	os.Setenv("GIT_PAGER", "cat")
	if pager() != "" {
		t.Error(pager())
	}
}

// TestMuchOlderDaemon: a daemon that knows none of the newer fields gets the call
// without them, one after the other.
func TestMuchOlderDaemon(t *testing.T) {
	c := &wire.Call{TTY: &wire.TTY{}, EnvSeen: []string{"A"}, Callbacks: []string{"hooks"}}
	for _, message := range []string{
		`/callbacks: is not a known name; valid: tool, env_seen, tty (byte 3)`,
		`/env_seen: is not a known name; valid: tool (byte 3)`,
		`/tty: is not a known name; valid: tool (byte 3)`,
	} {
		if !without(c, fault.Errorf(fault.InvalidEnvelope, "%s", message)) {
			t.Errorf("%s: not tried again", message)
		}
	}
	if c.TTY != nil || c.EnvSeen != nil || c.Callbacks != nil || without(c, fault.Errorf(fault.InvalidEnvelope, "/callbacks: x")) {
		t.Errorf("%+v", c)
	}
}

// TestDaemonGone: what runs for a call ends when the daemon does.
func TestDaemonGone(t *testing.T) {
	dir := t.TempDir()
	fifo := dir + "/fifo"
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	hook := script(t, dir, "hook", "#!/bin/sh\nsleep 1000 & echo $! > "+fifo+"\ntrap '' TERM\nwait; wait\n")
	s, err := server.Listen(server.Config{Path: dir + "/tool.sock", Handler: func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		_, err := s.Callback(ctx, callbacks.Request{Kind: callbacks.Hooks, Path: hook, Cwd: dir}, nil, io.Discard, io.Discard)
		return &wire.Result{Err: fault.Errorf(fault.Aborted, "the program of the caller: %w", err)}
	}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	cmd := wrapper(t, dir+"/tool.sock", "git")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(fifo)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	s.Shutdown(gone)
	<-served
	cmd.Wait()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000); n != 1 {
		t.Errorf("what the hook started still runs: %v", err)
	}
	if cmd.ProcessState.ExitCode() == 0 {
		t.Error("a call that was cut off succeeded")
	}
}
