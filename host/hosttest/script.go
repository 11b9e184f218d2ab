package hosttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// Scripts runs the txtar scripts that the patterns match (in the manner of
// filepath.Glob), each against programs as make build makes them: real toold,
// toolctl, tool-client and the modules of tools.d.
//
// Beside the commands of testscript a script has
//
//	daemon [flags]        start toold and wait until it accepts calls. The flags
//	                      --tools, --root, --socket and --state have defaults
//	                      beneath $WORK (tools.d, work, tool.sock, state);
//	                      TOOL_SOCKET and TOOLD_STATE_DIR are set to match
//	shutdown [SIGNAL]     end it, with SIGTERM unless told otherwise, and wait
//	reload                send SIGHUP
//	tool NAME...          copy ready tools from the repository's tools.d
//	until PROGRAM ARGS... run a program again and again until it exits 0
//
// and the variables BIN (the folder of the programs), TOOLD (the checkout) and
// WORK. When a script ends, its daemon is stopped and must end well, and
// nothing of it may be left running.
func Scripts(t *testing.T, patterns ...string) {
	t.Helper()
	Params(t, testscript.Params{Files: glob(t, patterns)})
}

// Params does what Scripts does with parameters of the test's own.
func Params(t *testing.T, p testscript.Params) {
	t.Helper()
	top := build(t)
	// Sockets have short names only: $TMPDIR can be too deep for them.
	work, err := os.MkdirTemp("/tmp", "toold-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	p.WorkdirRoot = work
	p.RequireExplicitExec = true
	p.RequireUniqueNames = true
	p.Setup = func(env *testscript.Env) error {
		for _, dir := range []string{"home", "tools.d", "work"} {
			if err := os.MkdirAll(filepath.Join(env.WorkDir, dir), 0o755); err != nil {
				return err
			}
		}
		if err := ShareCompiled(top, filepath.Join(env.WorkDir, "state")); err != nil {
			return err
		}
		s := &scriptState{top: top, work: env.WorkDir}
		env.Values[scriptKey{}] = s
		env.Defer(s.end)
		env.Setenv("TOOLD", top)
		env.Setenv("BIN", filepath.Join(top, "bin"))
		env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
		env.Setenv("PATH", filepath.Join(top, "bin")+string(filepath.ListSeparator)+os.Getenv("PATH"))
		env.Setenv("TOOL_SOCKET", filepath.Join(env.WorkDir, "tool.sock"))
		env.Setenv("TOOLD_STATE_DIR", filepath.Join(env.WorkDir, "state"))
		return nil
	}
	cmds := map[string]func(*testscript.TestScript, bool, []string){
		"daemon":   cmdDaemon,
		"shutdown": cmdStop,
		"reload":   cmdReload,
		"tool":     cmdTool,
		"until":    cmdUntil,
	}
	maps.Copy(cmds, p.Cmds)
	p.Cmds = cmds
	testscript.Run(t, p)
}

// ShareCompiled has the daemon of a state folder that is not there yet use the
// compiled modules of the checkout at top, which take longer to make than most
// tests to run.
func ShareCompiled(top, state string) error {
	cache := compiled(top)
	for _, dir := range []string{cache, state} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return os.Symlink(cache, filepath.Join(state, "cache"))
}

// compiled is the folder of the compiled modules of the checkout at top.
func compiled(top string) string { return filepath.Join(top, ".cache", "compiled") }

func glob(t *testing.T, patterns []string) []string {
	t.Helper()
	var files []string
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			t.Fatalf("no script matches %s", p)
		}
		files = append(files, found...)
	}
	return files
}

// makeBuild runs make build, once for this test process, and returns the
// checkout.
var makeBuild = sync.OnceValues(func() (string, error) {
	top := ModuleRoot()
	// Packages are tested side by side; one of them builds.
	if err := os.MkdirAll(filepath.Join(top, ".cache"), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(top, ".cache", "build.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	cmd := exec.Command("make", "-s", "build")
	cmd.Dir = top
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		// Those of a make that runs the tests, and what make demo sets.
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") ||
			strings.HasPrefix(v, "GOOS=") || strings.HasPrefix(v, "GOARCH=")
	})
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build: %w\n%s", err, out)
	}
	return top, nil
})

// build makes the programs and has the go command note that the test depends
// on them, so that a cached result is not one of other programs.
func build(t *testing.T) string {
	t.Helper()
	top, err := makeBuild()
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"bin/*", "tools.d/*/*"} {
		files, _ := filepath.Glob(filepath.Join(top, pattern))
		for _, name := range files {
			if f, err := os.Open(name); err == nil {
				f.Close()
			}
		}
	}
	return top
}

// Programs makes the programs as make build does and returns their folder, for
// tests that run them without a script.
func Programs(t *testing.T) string {
	t.Helper()
	return filepath.Join(build(t), "bin")
}

type scriptKey struct{}

// scriptState is what one script has running. Scripts run one command at a
// time, so nothing guards it.
type scriptState struct {
	top, work string
	daemon    *exec.Cmd
	log       *logBuffer
	done      chan error
}

func scriptOf(ts *testscript.TestScript) *scriptState {
	return ts.Value(scriptKey{}).(*scriptState)
}

// isReady reports whether the daemon has logged that it accepts calls.
func (s *scriptState) isReady() bool {
	for line := range strings.Lines(s.log.String()) {
		if strings.HasPrefix(line, "ready") && strings.HasSuffix(line, "\n") {
			return true
		}
	}
	return false
}

func cmdDaemon(ts *testscript.TestScript, neg bool, args []string) {
	s := scriptOf(ts)
	if s.daemon != nil {
		ts.Fatalf("a daemon runs already")
	}
	for _, d := range [][2]string{{"--tools", "tools.d"}, {"--root", "work"}, {"--socket", "tool.sock"}, {"--state", "state"}} {
		given := slices.ContainsFunc(args, func(a string) bool { return a == d[0] || strings.HasPrefix(a, d[0]+"=") })
		if !given {
			args = append(args, d[0], filepath.Join(s.work, d[1]))
		}
	}
	cmd := exec.Command(filepath.Join(s.top, "bin", "toold"), args...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = []string{}
	for _, name := range []string{"HOME", "PATH", "WORK", "TMPDIR", "TOOLD_CONFIG", "TOOLD_RESTRICTED", "TOOLD_LOG_LEVEL", "TOOL_RELIABILITY_ENABLED", "INSTANCE_ID"} {
		if v := ts.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	s.log = newLogBuffer()
	cmd.Stdout, cmd.Stderr = s.log, s.log
	// A group of its own, so that what it leaves running can be found.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	ts.Check(cmd.Start())
	s.daemon = cmd
	s.done = make(chan error, 1)
	go func() { s.done <- cmd.Wait() }()

	if err := s.log.wait(patience, s.isReady, s.done); err != nil {
		ts.Logf("%s", s.log)
		if len(s.done) > 0 { // it has ended
			s.daemon = nil
			if neg {
				return
			}
		}
		ts.Fatalf("the daemon does not say ready: %v", err)
	}
	if neg {
		ts.Fatalf("the daemon started")
	}
}

func cmdStop(ts *testscript.TestScript, neg bool, args []string) {
	s := scriptOf(ts)
	sig := syscall.SIGTERM
	if len(args) > 0 {
		var ok bool
		if sig, ok = map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "KILL": syscall.SIGKILL}[args[0]]; !ok {
			ts.Fatalf("usage: shutdown [TERM|INT|KILL]")
		}
	}
	if s.daemon == nil {
		ts.Fatalf("no daemon runs")
	}
	err := s.stop(sig)
	ts.Logf("%s", s.log)
	if err != nil && !neg && sig != syscall.SIGKILL {
		ts.Fatalf("%v", err)
	}
}

func cmdReload(ts *testscript.TestScript, _ bool, _ []string) {
	s := scriptOf(ts)
	if s.daemon == nil {
		ts.Fatalf("no daemon runs")
	}
	ts.Check(s.daemon.Process.Signal(syscall.SIGHUP))
}

func cmdTool(ts *testscript.TestScript, _ bool, names []string) {
	s := scriptOf(ts)
	for _, name := range names {
		to := ts.MkAbs(filepath.Join(s.work, "tools.d", name))
		ts.Check(os.CopyFS(to, os.DirFS(filepath.Join(s.top, "tools.d", name))))
	}
}

// cmdUntil polls. What a program looks at can be anything, such as an answer of the
// daemon without a line in its log, so there is no event to wait for.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 {
		ts.Fatalf("usage: until PROGRAM ARGS...")
	}
	const most = 2 * time.Minute // a first module takes long under the race detector, on a machine with other work
	deadline := time.Now().Add(most)
	for {
		err := ts.Exec(args[0], args[1:]...)
		if (err != nil) == neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("still so after %v: %v", most, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// stop ends the daemon and looks whether all of it has ended.
func (s *scriptState) stop(sig syscall.Signal) error {
	pid := s.daemon.Process.Pid
	defer syscall.Kill(-pid, syscall.SIGKILL)
	if err := s.daemon.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	s.daemon = nil
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	select {
	case err := <-s.done:
		if err != nil {
			return fmt.Errorf("the daemon ended with %w", err)
		}
	case <-ctx.Done():
		return fmt.Errorf("the daemon does not end after %v", sig)
	}
	if err := syscall.Kill(-pid, 0); !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("the daemon left processes of its group %d running (%v)", pid, err)
	}
	return nil
}

// end stops what a script left running. It cannot fail the test by itself any
// more, so it makes itself heard by a panic.
func (s *scriptState) end() {
	if s.daemon == nil {
		return
	}
	if err := s.stop(syscall.SIGTERM); err != nil {
		io.WriteString(os.Stderr, s.log.String())
		panic(err)
	}
}
