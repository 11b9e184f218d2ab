package disk_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/disk"
)

// A tree that is deeper than a process has descriptors for is removed, and what links in
// it lead to is not.
func TestRemoveTree(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() + "/tree"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 100
	at, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range few.Cur {
		if err := at.Symlink(outside, "link"); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"file", "empty/x", "folder/x"} {
			if err := at.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := at.WriteFile(name, nil, 0o000); err != nil {
				t.Fatal(err)
			}
		}
		next, err := at.OpenRoot("folder")
		if err != nil {
			t.Fatal(err)
		}
		at.Close()
		at = next
	}
	at.Close()
	// Of this process: nothing else is opened meanwhile.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err = disk.RemoveTree(dir)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("it is there")
	}
	if _, err := os.Lstat(outside + "/file"); err != nil {
		t.Error(err)
	}
	if err := disk.RemoveTree(dir); err != nil {
		t.Errorf("what is not there: %v", err)
	}
}
