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

	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/wire"
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
	r, err := process.New(process.Config{})
	if err != nil {
		fmt.Println("cannot begin:", err)
		return 1
	}
	defer r.Close()
	c := shell(dir, script)
	c.Env = append(c.Env, "MARK="+os.Getenv("MARK"))
	c.Stdout, c.Stderr = os.Stdout, os.Stdout
	exit, err := r.Run(context.Background(), c)
	fmt.Printf("ended %d %v %v\n", exit.Code, exit.Signal, err)
	return 0
}

// newRunner makes a Runner that ends with the test.
func newRunner(t testing.TB, config process.Config) *process.Runner {
	t.Helper()
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
func codeOf(err error) wire.Code {
	var e *wire.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Code
}

func TestRun(t *testing.T) {
	r := newRunner(t, process.Config{})
	dir := t.TempDir()
	c := shell(dir, `pwd; cat; echo oops >&2; printf '<%s>' "$0" "$@"; env; exit 3`)
	c.Args = append(c.Args, "a b", "", "$x", "\xff\n")
	c.Env = []string{"A=1", "B=\xfe two", "PATH=/usr/bin:/bin"}
	c.Stdin = strings.NewReader("input\n")
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	exit, err := r.Run(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if exit.Code != 3 || exit.Signal != 0 {
		t.Errorf("exit %+v, want code 3", exit)
	}
	want := dir + "\ninput\n<a b><><$x><\xff\n>"
	if got, ok := strings.CutPrefix(stdout.String(), want); !ok {
		t.Errorf("stdout %q, want it to begin with %q", stdout.String(), want)
	} else if got != "PWD="+dir+"\nA=1\nB=\xfe two\nPATH=/usr/bin:/bin\n" && len(got) != len("PWD="+dir+"\nA=1\nB=\xfe two\nPATH=/usr/bin:/bin\n") {
		t.Errorf("environment %q", got)
	}
	if stderr.String() != "oops\n" {
		t.Errorf("stderr %q", stderr.String())
	}
}

func TestNotInstalled(t *testing.T) {
	r := newRunner(t, process.Config{})
	dir := t.TempDir()
	c := shell(dir, "")
	c.Path = dir + "/nothing"
	if _, err := r.Run(context.Background(), c); codeOf(err) != wire.ToolNotInstalled {
		t.Errorf("error %v, want TOOL_NOT_INSTALLED", err)
	}
}
