package inode

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// A file is another one once it was replaced or written to, also where its size and the
// time of its modification are set to what they were.
func TestOf(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system does not say which file one is")
	}
	path, when := filepath.Join(t.TempDir(), "f"), time.Unix(1_000_000_000, 0)
	look := func() File {
		t.Helper()
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		f, ok := Of(fi)
		if !ok || f.Changed.Equal(when) {
			t.Fatalf("%+v, %v", f, ok)
		}
		return f
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "one")
	first := look()
	// The clock of a file system counts in ticks.
	for second := first; second.Changed.Equal(first.Changed); second = look() {
		write(path, "two")
	}
	write(path+"2", "one")
	if err := os.Rename(path+"2", path); err != nil {
		t.Fatal(err)
	}
	if third := look(); third.Ino == first.Ino {
		t.Errorf("%+v is %+v", third, first)
	}
}

func TestOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	owners := map[int]bool{os.Geteuid(): false}
	if os.Geteuid() == 0 {
		owners[65532] = true
	}
	for uid, want := range owners {
		if err := os.Chown(path, uid, -1); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, other := Owner(fi); got != uid || other != want {
			t.Errorf("of user %d: %d, %v", uid, got, other)
		}
	}
}
