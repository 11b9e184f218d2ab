//go:build !linux

package session

import (
	"os"
	"testing"
)

// readOnly takes the right to write away.
func readOnly(t *testing.T, paths ...string) {
	t.Helper()
	if os.Getuid() == 0 {
		t.Skip("root may write everything")
	}
	for i, p := range paths {
		if err := os.Chmod(p, []os.FileMode{0o555, 0o444}[min(i, 1)]); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { writable(t, paths[0]) })
}

func writable(t *testing.T, dir string) {
	t.Helper()
	os.Chmod(dir, 0o700)
}
