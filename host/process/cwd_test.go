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

	"github.com/toold/toold/host/confine"
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

// A folder that was named as an object is that one: another in its place is refused,
// with its inode number or without, and so is one that is swapped in while runs begin.
func TestFolderAsAnObject(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	base := t.TempDir()
	dir, other := filepath.Join(base, "dir"), filepath.Join(base, "other")
	for _, d := range []string{dir, other} {
		must(t, os.Mkdir(d, 0o755))
		must(t, os.WriteFile(filepath.Join(d, "name"), []byte(filepath.Base(d)), 0o644))
	}
	f, err := os.Open(dir)
	must(t, err)
	object, err := confine.ObjectOf(f)
	must(t, err)
	must(t, f.Close())
	run := func() (string, error) {
		var out bytes.Buffer
		_, err := r.Run(t.Context(), process.Command{
			Path: "/bin/cat", Args: []string{"name"}, Dir: dir, Roots: []string{base}, Folder: object, Stdout: &out,
		})
		return out.String(), err
	}
	if out, err := run(); out != "dir" || err != nil {
		t.Fatalf("%q, %v", out, err)
	}
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				if n%2 == 0 {
					return
				}
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE); err != nil {
				t.Errorf("swap: %v", err)
				return
			}
		}
	})
	ran, refused := 0, 0
	for range 60 {
		out, err := run()
		switch {
		case err == nil && out == "dir":
			ran++
		case err != nil && out == "":
			refused++
		default:
			t.Errorf("%q, %v", out, err)
		}
	}
	close(stop)
	swapping.Wait()
	t.Logf("%d ran, %d were refused", ran, refused)
	must(t, os.RemoveAll(dir))
	must(t, os.Mkdir(dir, 0o755))
	if out, err := run(); codeOf(err) != fault.InvalidPayload {
		t.Errorf("a new folder of that name: %q, %v", out, err)
	}
}
