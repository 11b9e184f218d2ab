//go:build linux

package process_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

func TestCannotRun(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), mode))
		return path
	}
	must(t, os.Symlink("loop", dir+"/loop"))
	for _, tt := range []struct {
		name string
		path string
		args []string
		want fault.Code
		says string
	}{
		{"missing", dir + "/nothing", nil, fault.ToolNotInstalled, "install it"},
		{"in what is no folder", "/bin/true/x", nil, fault.ToolNotInstalled, "install it"},
		{"relative", "bin/true", nil, fault.ToolBroken, "absolute"},
		{"empty", "", nil, fault.ToolBroken, "absolute"},
		{"not executable", file("data", "", 0o644), nil, fault.ToolBroken, "executable"},
		{"a folder", dir, nil, fault.ToolBroken, "executable"},
		{"not a program", file("empty", "\x00\x01", 0o755), nil, fault.ToolBroken, "not a program"},
		{"a loop", dir + "/loop", nil, fault.ToolBroken, "not a program"},
		{"interpreter missing", file("script", "#!/nothing/here\n", 0o755), nil, fault.ToolNotInstalled, "interpreter"},
		{"interpreter not allowed", file("sh", "#!/bin/sh\n", 0o755), nil, fault.ToolBroken, "interpreter"},
		{"argument too long", "/bin/true", []string{strings.Repeat("x", 200<<10)}, fault.InvalidPayload, "fewer"},
		{"arguments too long", "/bin/true", strings.Fields(strings.Repeat("xxxxxxxx ", 400_000)), fault.InvalidPayload, "fewer"},
		{"NUL", "/bin/true", []string{"a\x00b"}, fault.InvalidPayload, "NUL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := process.Command{Path: tt.path, Args: tt.args, Dir: dir, Roots: []string{dir}}
			_, err := r.Run(patient(t), c)
			if codeOf(err) != tt.want || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %s and %q", err, tt.want, tt.says)
			}
		})
	}
	// What xargs makes of 20,000 names passes.
	c := process.Command{Path: "/bin/true", Args: strings.Fields(strings.Repeat("some/longer/name.go ", 20_000)), Dir: dir, Roots: []string{dir}}
	if exit, err := r.Run(patient(t), c); err != nil || exit.Code != 0 {
		t.Errorf("long arguments: %+v, %v", exit, err)
	}
}

func TestLimitOfRuns(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1, Max: 2})
	dir := t.TempDir()
	a := begin(t, r, shell(dir, "echo; exec sleep 1000"))
	b := begin(t, r, shell(dir, "echo; exec sleep 1000"))
	a.next()
	b.next()
	if _, err := r.Run(patient(t), shell(dir, "")); codeOf(err) != fault.Overloaded {
		t.Errorf("error %v, want OVERLOADED", err)
	}
	a.cancel()
	a.wait()
	if got := say(t, r, shell(dir, "echo again")); got != "again" {
		t.Errorf("got %q", got)
	}
}

// More runs at once than supervisors that are ready, again and again.
func TestManyRuns(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 2})
	dir := t.TempDir()
	var runs sync.WaitGroup
	for i := range 16 {
		runs.Go(func() {
			for j := range 10 {
				var out bytes.Buffer
				c := shell(dir, fmt.Sprintf("echo %d %d; exit %d", i, j, i))
				c.Stdout = &out
				exit, err := r.Run(patient(t), c)
				if want := fmt.Sprintf("%d %d\n", i, j); err != nil || exit.Code != i || out.String() != want {
					t.Errorf("%q, exit %+v, error %v", out.String(), exit, err)
				}
			}
		})
	}
	runs.Wait()
}

// Close ends what runs, says so, and leaves nothing.
func TestClose(t *testing.T) {
	before := count(t)
	mark := newMark()
	r, err := process.New(process.Config{Ready: 2})
	must(t, err)
	dir := t.TempDir()
	var running []*underway
	for range 3 {
		c := shell(dir, stubbornTree+"wait; sleep 1000")
		c.Env = append(c.Env, "MARK="+mark)
		u := begin(t, r, c)
		u.next()
		running = append(running, u)
	}
	must(t, r.Close())
	for _, u := range running {
		if _, err := u.wait(); codeOf(err) != fault.Aborted {
			t.Errorf("error %v, want ABORTED", err)
		}
	}
	if _, err := r.Run(patient(t), shell(dir, "")); codeOf(err) != fault.Aborted {
		t.Errorf("after Close: error %v, want ABORTED", err)
	}
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %q", left)
	}
	if after := count(t); after.fds > before.fds || after.goroutines > before.goroutines || after.children != before.children {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestEndedBeforeItBegan(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := r.Run(gone, shell(dir, "echo > made")); codeOf(err) != fault.Aborted {
		t.Errorf("error %v, want ABORTED", err)
	}
	// Not even its folder is looked at.
	if _, err := r.Run(gone, shell("/nothing", "")); codeOf(err) != fault.Aborted {
		t.Errorf("error %v, want ABORTED", err)
	}
	late, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer cancel()
	if _, err := r.Run(late, shell(dir, "echo > made")); codeOf(err) != fault.Timeout {
		t.Errorf("error %v, want TIMEOUT", err)
	}
	if _, err := os.Stat(dir + "/made"); err == nil {
		t.Error("it ran")
	}
}

// An unconfined tool can stop its supervisor, but not what ends it.
func TestSupervisorStopped(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	for _, tt := range []struct {
		name   string
		c      process.Command
		within time.Duration
	}{
		{"once", shell(t.TempDir(), "kill -STOP $PPID; echo stopped; sleep 1000"), 2 * time.Second},
		{"again and again", shell(t.TempDir(), "echo; trap '' TERM; while :; do kill -STOP $PPID; done"), 10 * time.Second},
		{"traced", probing(t, t.TempDir(), "hold", "parent"), 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "traced" && os.Getuid() != 0 {
				t.Skip("only root may trace a supervisor")
			}
			mark := newMark()
			tt.c.Confine.Off = true
			tt.c.Env = append(tt.c.Env, "MARK="+mark)
			u := begin(t, r, tt.c)
			u.next()
			start := time.Now()
			u.cancel()
			if _, err := u.wait(); codeOf(err) != fault.Aborted {
				t.Errorf("error %v, want ABORTED", err)
			}
			if took := time.Since(start); took > tt.within {
				t.Errorf("it took %v", took)
			}
			if left := alive(t, mark); len(left) > 0 {
				t.Errorf("still alive: %q", left)
			}
		})
	}
}
