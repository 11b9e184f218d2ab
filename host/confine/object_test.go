//go:build linux

package confine_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/toold/toold/host/confine"
)

// A folder that was made in the place of another is another one, also where it has
// its inode number, which file systems give anew.
func TestObjectOfANewFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	made := func() (object string, inode uint64) {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if object, err = confine.ObjectOf(f); err != nil {
			t.Fatal(err)
		}
		if again, err := confine.ObjectOf(f); err != nil || again != object {
			t.Fatalf("%q and %q, %v", object, again, err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return object, info.Sys().(*syscall.Stat_t).Ino
	}
	was, inode := made()
	for range 100 {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		is, now := made()
		if is == was {
			t.Fatalf("both are %q", is)
		}
		if now == inode {
			return
		}
		was, inode = is, now
	}
	t.Log("this file system gives no inode number anew")
}
