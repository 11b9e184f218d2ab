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

// RealPath returns where path leads, without links, as filepath.EvalSymlinks does. The
// kernel finds it, with its bounds: forty links, whatever they hold. To follow those of
// somebody who wants that to last takes it milliseconds, and other code minutes.
func RealPath(path string) (string, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	fd, err := ignoringEINTR(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, how) })
	if err == unix.ENOSYS || err == unix.EPERM { // an older kernel, a sandbox around toold
		fd, err = ignoringEINTR(func() (int, error) { return unix.Open(path, int(how.Flags), 0) })
	}
	if err != nil {
		return "", &os.PathError{Op: "resolve", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	return pathOf(f)
}

// openResolved opens the folder path unless a component of it is a symbolic
// link. It needs Linux 5.6, and a seccomp filter that knows openat2.
func openResolved(path string) (int, error) {
	return ignoringEINTR(func() (int, error) {
		return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: openFolder, Resolve: unix.RESOLVE_NO_SYMLINKS})
	})
}
