//go:build unix && !linux

package beneath

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const OpenFolder = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK | unix.O_CLOEXEC

// pathOf is where the open folder f was when it was opened by its name.
func pathOf(f *os.File) (string, error) {
	return filepath.EvalSymlinks(f.Name())
}

// RealPath is filepath.EvalSymlinks here.
func RealPath(path string) (string, error) { return filepath.EvalSymlinks(path) }

func OpenResolved(string) (int, error) { return -1, unix.ENOSYS }
