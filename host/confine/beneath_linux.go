package confine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openFolder needs no right to read the folder, only to pass through it.
const openFolder = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC

// pathOf is where the open folder f is now.
func pathOf(f *os.File) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// openResolved opens the folder path unless a component of it is a symbolic
// link. It needs Linux 5.6, and a seccomp filter that knows openat2.
func openResolved(path string) (int, error) {
	return ignoringEINTR(func() (int, error) {
		return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: openFolder, Resolve: unix.RESOLVE_NO_SYMLINKS})
	})
}
