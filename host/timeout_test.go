package host_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// processesWith are the processes that have text in their command line.
func processesWith(t *testing.T, text string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && bytes.Contains(b, []byte(text)) && !strings.HasPrefix(f, fmt.Sprintf("/proc/%d/", os.Getpid())) {
			found = append(found, f+": "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// A call that takes too long ends at its limit with all that it started, and
// what it wrote before is kept.
func TestTimeoutLeavesNothing(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("looks at processes through /proc, which is not here")
	}
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "sh", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}}, nil)
	mark := fmt.Sprintf("86%d", 1000000+os.Getpid()) // seconds that only this test sleeps
	run := func(limit time.Duration) (*answer, time.Duration) {
		start := time.Now()
		a := ask(t, d.Socket, M{
			"tool": "sh", "cwd": d.Root, "timeout_ms": limit.Milliseconds(),
			"args": []string{"-c", "echo partial; (setsid sleep " + mark + " &) ; sleep " + mark},
		})
		took := time.Since(start)
		if a.Code != "TIMEOUT" || a.ExitCode != 124 {
			t.Errorf("%s", a.raw)
		}
		return a, took
	}
	// Long enough for a busy machine to come as far as the first words.
	if a, _ := run(3 * time.Second); a.Stdout != "partial\n" {
		t.Errorf("what was written before the end is not kept: %s", a.raw)
	}
	const limit = 300 * time.Millisecond
	if left := processesWith(t, mark); left != nil {
		t.Errorf("left running: %v", left)
	}
	files := openFiles(t)
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 25 {
				_, d := run(limit)
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	if left := processesWith(t, mark); left != nil {
		t.Errorf("left running: %v", left)
	}
	// A few supervisors more are kept ready after four calls at a time.
	if now := openFiles(t); now > files+16 {
		t.Errorf("%d files are open after 100 calls, %d were before", now, files)
	}
	slices.Sort(took)
	t.Logf("100 calls with a limit of %v ended after %v at the median, %v at the most", limit, took[50], took[len(took)-1])
}
