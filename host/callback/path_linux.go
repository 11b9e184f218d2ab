package callback

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

func openFolder(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// shortPath returns a path of the folder f that fits into the address of a socket, however long its own is.
func shortPath(f *os.File) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(f.Fd())))
}
