//go:build linux

package process_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/tools"
)

func TestMain(m *testing.M) {
	if process.IsSupervisor() {
		os.Exit(process.Supervise())
	}
	if len(os.Args) == 4 && os.Args[1] == daemonArg {
		os.Exit(runDaemon(os.Args[2:]))
	}
	if len(os.Args) > 2 && os.Args[1] == probeArg {
		os.Exit(runProbe(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// The test binary is also the daemon that some tests kill: with this argument
// it runs the shell script that follows, beneath the folder that follows
// that, and prints how it ended.
const daemonArg = "test-daemon"

func runDaemon(args []string) int {
	script, dir := args[0], args[1]
	if os.Getenv("WITHOUT") != "" {
		if err := withoutLandlock(); err != nil {
			fmt.Println("cannot do without Landlock:", err)
			return 1
		}
	}
	most, _ := confine.ParseLevel(os.Getenv("MOST"))
	r, err := process.New(process.Config{Most: most})
	if err != nil {
		fmt.Println("cannot begin:", err)
		return 1
	}
	defer r.Close()
	c := shell(dir, script)
	c.Env = append(c.Env, "MARK="+os.Getenv("MARK"))
	c.Confine.Off = os.Getenv("OFF") != ""
	if os.Getenv("REQUIRED") != "" {
		c.Confine.Least = confine.Landlock
	}
	c.Stdout, c.Stderr = os.Stdout, os.Stdout
	exit, err := r.Run(context.Background(), c)
	fmt.Printf("ended %d %v %v\n", exit.Code, exit.Signal, err)
	return 0
}

// withoutLandlock makes this process and all it starts believe that the
// kernel has no Landlock.
func withoutLandlock() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_LANDLOCK_CREATE_RULESET, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}

// most is the level at which the tests run: all there is, or what
// TOOLD_TEST_CONFINE names.
func most(t testing.TB) confine.Level {
	name := os.Getenv("TOOLD_TEST_CONFINE")
	level, ok := confine.ParseLevel(name)
	if !ok && name != "" {
		t.Fatalf("TOOLD_TEST_CONFINE=%s is not a level", name)
	}
	return level
}

// newRunner makes a Runner that ends with the test.
func newRunner(t testing.TB, config process.Config) *process.Runner {
	t.Helper()
	if config.Most == 0 {
		config.Most = most(t)
	}
	r, err := process.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// shell is a command that runs script with sh in dir, which is also its root
// and what it may write.
func shell(dir, script string) process.Command {
	return process.Command{
		Path: "/bin/sh", Args: []string{"-c", script},
		Dir: dir, Roots: []string{dir},
		Env:     []string{"PATH=/usr/bin:/bin"},
		Confine: process.Confine{Write: []string{dir}, Exec: []string{"/usr", "/bin", "/lib", "/lib64"}},
	}
}

// codeOf is the wire code of err.
func codeOf(err error) fault.Code {
	var e *fault.Error
	if !errors.As(tools.Explain(err), &e) {
		return ""
	}
	return e.Code
}

func TestRun(t *testing.T) {
	r := newRunner(t, process.Config{})
	dir := t.TempDir()
	c := shell(dir, `pwd; cat; echo oops >&2; printf '<%s>' "$0" "$@"; exit 3`)
	c.Args = append(c.Args, "a b", "", "$x", "\xff\n")
	c.Stdin = strings.NewReader("input\n")
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	exit, err := r.Run(patient(t), c)
	if err != nil {
		t.Fatal(err)
	}
	if exit.Code != 3 || exit.Signal != 0 {
		t.Errorf("exit %+v, want code 3", exit)
	}
	if want := dir + "\ninput\n<a b><><$x><\xff\n>"; stdout.String() != want {
		t.Errorf("stdout %q, want %q", stdout.String(), want)
	}
	if stderr.String() != "oops\n" {
		t.Errorf("stderr %q", stderr.String())
	}
}

// The child's arguments and environment are those of the Command, to the
// byte, and nothing else.
func TestExactly(t *testing.T) {
	t.Setenv("TOOLD_TEST_SECRET", "of the daemon")
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	for _, env := range [][]string{nil, {"A=1"}, {"B=\xfe two", "", "A=", "no equals sign", "A=again"}} {
		c := process.Command{
			Path: "/bin/cat", Args: []string{"/proc/self/environ", "--", "/proc/self/cmdline"},
			Dir: dir, Roots: []string{dir}, Env: env,
		}
		want := "/bin/cat\x00/proc/self/environ\x00--\x00/proc/self/cmdline\x00"
		for i := range env {
			want = env[len(env)-1-i] + "\x00" + want
		}
		if got := say(t, r, c); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, pid := range childrenOf(t, os.Getpid()) {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err == nil && strings.Contains(string(b), "SECRET") {
			t.Errorf("the supervisor has %q", b)
		}
	}
}

func TestNotInstalled(t *testing.T) {
	r := newRunner(t, process.Config{})
	dir := t.TempDir()
	c := shell(dir, "")
	c.Path = dir + "/nothing"
	if _, err := r.Run(patient(t), c); codeOf(err) != fault.ToolNotInstalled {
		t.Errorf("error %v, want TOOL_NOT_INSTALLED", err)
	}
}
