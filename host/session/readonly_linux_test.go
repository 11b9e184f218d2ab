package session

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// readOnly removes write permission from this thread, even for root: file access
// is checked against the thread's fsuid.
func readOnly(t *testing.T, paths ...string) {
	t.Helper()
	for i, p := range paths {
		if err := os.Chmod(p, []os.FileMode{0o555, 0o444}[min(i, 1)]); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getuid() == 0 {
		unix.SetfsuidRetUid(65534)
		if uid, _ := unix.SetfsuidRetUid(-1); uid != 65534 {
			t.Fatalf("the fsuid is %d", uid)
		}
	}
	t.Cleanup(func() { writable(t, paths[0]) })
}

func writable(t *testing.T, dir string) {
	t.Helper()
	unix.SetfsuidRetUid(os.Getuid())
	os.Chmod(dir, 0o700)
}
