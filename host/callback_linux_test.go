package host_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// caller is somebody with a repository who calls git through the wrapper.
type caller struct {
	t       *testing.T
	d       *hosttest.Daemon
	program string
	dir     string // the repository
	home    string // where only the caller's own programs write
}

// newCaller makes a repository of three commits beneath the root of a new daemon.
func newCaller(t *testing.T) *caller {
	d := hosttest.Start(t, config.Config{})
	d.Ready(t, "git")
	c := &caller{t: t, d: d, program: wrapperProgram(t), dir: filepath.Join(d.Root, "repo"), home: t.TempDir()}
	c.native("init", "-q", "-b", "main", c.dir)
	c.native("-C", c.dir, "config", "user.name", "A")
	c.native("-C", c.dir, "config", "user.email", "a@b")
	for _, name := range []string{"one", "two", "three"} {
		c.write(name, name+"\n", 0o644)
		c.native("-C", c.dir, "add", name)
		c.native("-C", c.dir, "commit", "-q", "-m", name)
	}
	return c
}

func (c *caller) native(args ...string) string {
	c.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = c.d.Root
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (c *caller) write(name, text string, mode os.FileMode) {
	c.t.Helper()
	file := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		c.t.Fatal(err)
	}
}

// command is a call of git that is about to be made, with variables of the caller.
func (c *caller) command(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(c.program)
	cmd.Args = append([]string{"git"}, args...)
	cmd.Dir = c.dir
	cmd.Env = append([]string{"TOOL_SOCKET=" + c.d.Socket, "PATH=/usr/bin:/bin", "MARKER=" + c.home + "/marker", "HOME=" + c.home}, env...)
	return cmd
}

// git calls git, and returns what it said and its exit code.
func (c *caller) git(env []string, args ...string) (string, int) {
	c.t.Helper()
	cmd := c.command(env, args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func (c *caller) subjects() string {
	return strings.ReplaceAll(c.native("-C", c.dir, "log", "--format=%s"), "\n", " ")
}

// TestEditorsOfTheCaller: what the caller's editors do is done, and by the caller.
func TestEditorsOfTheCaller(t *testing.T) {
	c := newCaller(t)
	if out, code := c.git([]string{`GIT_SEQUENCE_EDITOR=sed -i 1s/pick/drop/`}, "rebase", "-i", "HEAD~2"); code != 0 || c.subjects() != "three one" {
		t.Fatalf("rebase -i: %d, %s, %s", code, c.subjects(), out)
	}
	if out, code := c.git([]string{`GIT_SEQUENCE_EDITOR=sed -i 1aexec\ true`, "GIT_EDITOR=:"}, "rebase", "-i", "HEAD~1"); code != 1 || !strings.Contains(out, "git: note: git runs no program of the list here: it stops at each exec; run the command then, and git rebase --continue\n") {
		t.Errorf("rebase -i with exec: %d, %s", code, out)
	} else if out, code := c.git([]string{"GIT_EDITOR=:"}, "rebase", "--continue"); code != 0 || c.subjects() != "three one" {
		t.Errorf("rebase --continue after exec: %d, %s, %s", code, c.subjects(), out)
	}
	if out, code := c.git([]string{`EDITOR=false`}, "commit", "--allow-empty"); code != 1 || !strings.Contains(out, "git: note: the editor is \"false\", and ended with exit code 1\n") {
		t.Errorf("commit with an editor that fails: %d, %s", code, out)
	}
	if out, code := c.git([]string{`EDITOR=echo edited >`}, "commit", "--allow-empty"); code != 0 || c.subjects() != "edited three one" {
		t.Errorf("commit: %d, %s, %s", code, c.subjects(), out)
	}
	if out, code := c.git([]string{`GIT_EDITOR=f() { echo amended > "$1"; echo here > "$MARKER"; }; f`}, "commit", "--amend", "--allow-empty"); code != 0 || c.subjects() != "amended three one" {
		t.Errorf("commit --amend: %d, %s, %s", code, c.subjects(), out)
	}
	if _, err := os.Stat(c.home + "/marker"); err != nil {
		t.Error(err)
	}
	// An editor that fails stops the commit, as natively.
	if out, code := c.git([]string{`EDITOR=false`}, "commit", "--allow-empty"); code != 1 || !strings.Contains(out, "problem with the editor") {
		t.Errorf("with an editor that fails: %d, %s", code, out)
	}
	// Without an editor it is said what to do.
	if out, code := c.git(nil, "commit", "--allow-empty"); code != 126 || !strings.Contains(out, "-m MESSAGE") {
		t.Errorf("without an editor: %d, %s", code, out)
	}
}

// hook is a hook that says where it runs, as what its marker shows, and then does
// more.
func (c *caller) hook(name, more string) {
	c.write(".git/hooks/"+name, "#!/bin/sh\necho \"$0\" >> \"$MARKER\"\n"+more+"\n", 0o755)
}

func (c *caller) marks() string {
	b, _ := os.ReadFile(c.home + "/marker")
	os.Remove(c.home + "/marker")
	names := strings.Fields(string(b))
	for i, name := range names {
		names[i] = filepath.Base(name)
	}
	return strings.Join(names, " ")
}

// TestHooksOfTheCaller: hooks run where the caller is, see what git tells them, and
// decide as natively.
func TestHooksOfTheCaller(t *testing.T) {
	c := newCaller(t)
	c.hook("pre-commit", `echo "no tabs, please" >&2; exit 3`)
	if out, code := c.git(nil, "commit", "--allow-empty", "-m", "x"); code != 1 || !strings.Contains(out, "no tabs, please") || c.subjects() != "three two one" {
		t.Errorf("a pre-commit hook that fails: %d, %s, %s", code, c.subjects(), out)
	}
	if got := c.marks(); got != "pre-commit" {
		t.Errorf("hooks that ran: %q", got)
	}
	if out, code := c.git(nil, "commit", "--allow-empty", "--no-verify", "-m", "unverified"); code != 0 || strings.Contains(out, "no tabs") {
		t.Errorf("--no-verify: %d, %s", code, out)
	}
	c.hook("pre-commit", `test "$(pwd)" = "`+c.dir+`" && test "$GIT_EDITOR" = ":" || { env; exit 1; }`)
	c.hook("commit-msg", `sed -i "s/subject/of the hook/" "$1"; test "$(cat | wc -c)" = 0`)
	c.hook("post-commit", `exit 1`) // nobody asks
	if out, code := c.git(nil, "commit", "--allow-empty", "-m", "subject"); code != 0 || !strings.HasPrefix(c.subjects(), "of the hook ") {
		t.Errorf("commit-msg: %d, %s, %s", code, c.subjects(), out)
	}
	if got := c.marks(); got != "pre-commit commit-msg post-commit" {
		t.Errorf("hooks that ran: %q", got)
	}
	// pre-push reads what is pushed.
	c.native("init", "-q", "--bare", c.d.Root+"/remote.git")
	c.native("-C", c.dir, "remote", "add", "origin", c.d.Root+"/remote.git")
	c.hook("pre-push", `echo "remote $1"; cat >&2; exit 0`)
	head := c.native("-C", c.dir, "rev-parse", "HEAD")
	out, code := c.git(nil, "push", "origin", "main:other")
	if code != 0 || !strings.Contains(out, "remote origin") || !strings.Contains(out, "refs/heads/main "+head+" refs/heads/other 0000") {
		t.Errorf("pre-push: %d, %s", code, out)
	}
	c.hook("pre-push", `exit 1`)
	if out, code := c.git(nil, "push", "origin", "main:third"); code != 1 || strings.Contains(c.native("-C", c.d.Root+"/remote.git", "branch"), "third") {
		t.Errorf("a pre-push that fails: %d, %s", code, out)
	}
	// A hook whose file cannot be run where the caller is stops what it would check.
	c.write(".git/hooks/pre-commit", "#!/missing/interpreter\n", 0o755)
	if out, code := c.git(nil, "commit", "--allow-empty", "-m", "x"); code != 1 || !strings.Contains(out, "pre-commit") {
		t.Errorf("a hook without its interpreter: %d, %s", code, out)
	}
	// What is no first line is for a shell, as natively.
	c.write(".git/hooks/pre-commit", "echo by a shell; exit 0\n", 0o755)
	if out, code := c.git(nil, "commit", "--allow-empty", "-m", "x"); code != 0 || !strings.Contains(out, "by a shell") {
		t.Errorf("a hook without a first line: %d, %s", code, out)
	}
	left, _ := os.ReadDir(filepath.Join(c.d.State, "callbacks"))
	if len(left) > 0 {
		t.Errorf("folders were left: %v", left)
	}
}

// TestTerminalOfTheCaller: an editor and a pager have the caller's terminal, whole,
// and leave it as it was.
func TestTerminalOfTheCaller(t *testing.T) {
	needsTerminals(t)
	c := newCaller(t)
	start := func(env []string, args ...string) *screen {
		s := openScreen(t)
		s.env = append([]string{"PATH=/usr/bin:/bin", "MARKER=" + c.home + "/marker", "HOME=" + c.home}, env...)
		s.start(c.d.Socket, c.dir, c.program, "git", args...)
		return s
	}
	t.Run("less", func(t *testing.T) {
		if _, err := exec.LookPath("less"); err != nil {
			t.Skip("there is no less here")
		}
		s := start([]string{"LESS=X"}, "log")
		s.expect(`(?s)three.*\(END\)`)
		s.typed("q")
		if code := s.ended(); code != 0 {
			t.Errorf("exit code %d: %q", code, s.expect(""))
		}
	})
	t.Run("a pager that leaves early", func(t *testing.T) {
		for i := range 40 {
			c.native("-C", c.dir, "branch", "branch-"+strings.Repeat("x", i+1))
		}
		s := start([]string{`GIT_PAGER=head -n 1; test -t 1 && echo a terminal`}, "log", "-p", "--all")
		s.expect(`commit [0-9a-f]+.*\r\na terminal`)
		if code := s.ended(); code != 0 && code != 141 {
			t.Errorf("exit code %d: %q", code, s.expect(""))
		}
	})
	t.Run("vim", func(t *testing.T) {
		if _, err := exec.LookPath("vim"); err != nil {
			t.Skip("there is no vim here")
		}
		s := start([]string{"EDITOR=vim -u NONE"}, "commit", "--allow-empty")
		s.expect(`Please enter the commit message`)
		s.typed("iby vim\x1b:wq\r")
		if code := s.ended(); code != 0 || !strings.HasPrefix(c.subjects(), "by vim ") {
			t.Errorf("exit code %d, %s: %q", code, c.subjects(), s.expect(""))
		}
	})
	t.Run("a hook has no terminal", func(t *testing.T) {
		c.write(".git/hooks/pre-commit", "#!/bin/sh\n(exec 3<>/dev/tty) 2>/dev/null && echo a terminal || echo none\nexit 1\n", 0o755)
		defer os.Remove(c.dir + "/.git/hooks/pre-commit")
		s := start(nil, "commit", "--allow-empty", "-m", "x")
		s.expect(`none`)
		if code := s.ended(); code != 1 {
			t.Errorf("exit code %d: %q", code, s.expect(""))
		}
	})
	t.Run("nothing typed is lost", func(t *testing.T) {
		s := start([]string{`EDITOR=f() { echo which; read line && echo "$line" > "$1"; }; f`}, "commit", "--allow-empty")
		s.expect(`which`)
		s.typed("typed by hand\r")
		if code := s.ended(); code != 0 || !strings.HasPrefix(c.subjects(), "typed by hand ") {
			t.Errorf("exit code %d, %s: %q", code, c.subjects(), s.expect(""))
		}
	})
	t.Run("stopped", func(t *testing.T) {
		s := start([]string{`EDITOR=f() { kill -STOP $$; echo on; read line && echo "$line" > "$1"; }; f`}, "commit", "--allow-empty")
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(s.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatalf("%v, %v", status, err)
		}
		if m := s.mode(); m != s.before {
			t.Errorf("the terminal is %+v, and was %+v", m, s.before)
		}
		if err := syscall.Kill(-s.cmd.Process.Pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		s.expect(`on\r\n`)
		s.typed("after a stop\r")
		if code := s.ended(); code != 0 || !strings.HasPrefix(c.subjects(), "after a stop ") {
			t.Errorf("exit code %d, %s: %q", code, c.subjects(), s.expect(""))
		}
	})
	// Ctrl-C is the editor's, as natively: git is still there.
	t.Run("interrupted", func(t *testing.T) {
		s := start([]string{`EDITOR=f() { trap 'echo caught; echo "kept" > "$1"; exit 0' INT; echo ready; read line; }; f`}, "commit", "--allow-empty")
		s.expect(`ready`)
		s.typed("\x03")
		s.expect(`caught`)
		if code := s.ended(); code != 0 || !strings.HasPrefix(c.subjects(), "kept ") {
			t.Errorf("exit code %d, %s: %q", code, c.subjects(), s.expect(""))
		}
	})
}

// await opens a pipe that a program is to open as well, and returns what it wrote.
func await(t *testing.T, fifo string) string {
	t.Helper()
	b, err := os.ReadFile(fifo)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// awaitEnd waits until the process has ended.
func awaitEnd(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(n, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000); ready != 1 {
		t.Errorf("process %s still runs: %v", pid, err)
	}
}

// TestEndOfCallbacks: whoever ends, what runs for the call ends with it, on both
// sides.
func TestEndOfCallbacks(t *testing.T) {
	c := newCaller(t)
	fifo := filepath.Join(c.home, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c.write(".git/hooks/pre-commit", "#!/bin/sh\nsleep 1000 & echo $! $$ > "+fifo+"\nwait\n", 0o755)
	started := func() (*exec.Cmd, []string) {
		cmd := c.command(nil, "commit", "--allow-empty", "-m", "x")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, strings.Fields(await(t, fifo))
	}
	t.Run("interrupted", func(t *testing.T) {
		cmd, pids := started()
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		for _, pid := range pids {
			awaitEnd(t, pid)
		}
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGINT {
			t.Errorf("%v", cmd.ProcessState)
		}
	})
	t.Run("wrapper killed", func(t *testing.T) {
		cmd, pids := started()
		cmd.Process.Kill()
		cmd.Wait()
		awaitEnd(t, pids[1])
		n, _ := strconv.Atoi(pids[0])
		syscall.Kill(n, syscall.SIGKILL) // of nobody any more, as natively
		// The next call waits for nothing of it.
		c.native("-C", c.dir, "status")
		if out, code := c.git(nil, "commit", "--allow-empty", "--no-verify", "-m", "after"); code != 0 {
			t.Errorf("%d, %s", code, out)
		}
	})
	t.Run("time is over", func(t *testing.T) {
		cmd := c.command([]string{"TOOL_TIMEOUT=1"}, "commit", "--allow-empty", "-m", "x")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pids := strings.Fields(await(t, fifo))
		cmd.Wait()
		for _, pid := range pids {
			awaitEnd(t, pid)
		}
		if code := cmd.ProcessState.ExitCode(); code != 124 {
			t.Errorf("exit code %d", code)
		}
	})
}

// TestClockOfCallbacks: the tool's time limit does not count the time of the caller's
// programs.
func TestClockOfCallbacks(t *testing.T) {
	c := newCaller(t)
	def := hosttest.ReadyJSON(t, "git")
	def["timeout"] = 2
	c.d.Tool(t, "git", def, map[string]string{"restricted.wasm": filepath.Join(hosttest.ModuleRoot(), "tools.d/git/restricted.wasm")})
	if out, code := c.git([]string{`EDITOR=f() { sleep 3; echo late > "$1"; }; f`}, "commit", "--allow-empty"); code != 0 || !strings.HasPrefix(c.subjects(), "late ") {
		t.Errorf("%d, %s", code, out)
	}
}
