//go:build linux

package process_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

// A folder that becomes a link and a folder again while runs begin in it is
// one of the two things that it is, and a link out is never followed.
func TestSwappedFolder(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	base := t.TempDir()
	for _, dir := range []string{"root/dir", "root/elsewhere", "out"} {
		must(t, os.MkdirAll(filepath.Join(base, dir), 0o755))
	}
	must(t, os.Symlink(base+"/out", base+"/root/link"))
	root, dir := base+"/root", base+"/root/dir"

	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, root+"/link", unix.RENAME_EXCHANGE); err != nil {
				t.Errorf("swap: %v", err)
				return
			}
		}
	})
	ran, refused := 0, 0
	for ran+refused < 200 || (ran == 0 || refused == 0) && ran+refused < 10_000 {
		c := shell(dir, "pwd -P; echo > marker")
		c.Roots = []string{root}
		c.Confine.Off = true // the working folder must hold without it
		var out bytes.Buffer
		c.Stdout = &out
		_, err := r.Run(patient(t), c)
		switch {
		case codeOf(err) == fault.InvalidPayload:
			refused++
		case err != nil:
			t.Fatal(err)
		default:
			ran++
			if got := strings.TrimSpace(out.String()); got != dir && got != root+"/link" {
				t.Fatalf("ran in %s", got)
			}
		}
	}
	close(stop)
	swapping.Wait()
	t.Logf("%d ran, %d refused", ran, refused)
	if ran == 0 || refused == 0 {
		t.Errorf("%d ran, %d refused: the swap was not seen both ways", ran, refused)
	}
	if entries, err := os.ReadDir(base + "/out"); err != nil || len(entries) > 0 {
		t.Errorf("outside: %v, %v", entries, err)
	}
}

// A root that was swapped for a link to anywhere is no root any more.
func TestSwappedRoot(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	base := t.TempDir()
	must(t, os.Symlink("/", base+"/root"))
	c := shell("/etc", "pwd")
	c.Roots = []string{base + "/root"}
	_, err := r.Run(patient(t), c)
	if codeOf(err) != fault.InvalidPayload || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("error %v", err)
	}
}
