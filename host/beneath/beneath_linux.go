package beneath

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenFolder needs no right to read the folder, only to pass through it.
const OpenFolder = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC

// pathOf is where the open folder f is now.
func pathOf(f *os.File) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// RealPath returns where path leads, without links, as filepath.EvalSymlinks does. The kernel
// resolves it, within its limit of forty links whatever their length. To follow links made by
// somebody who wants that to take long costs it milliseconds, and other code minutes.
func RealPath(path string) (string, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	fd, err := RetryEINTR(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, how) })
	if err == unix.ENOSYS || err == unix.EPERM { // an older kernel, a sandbox around toold
		fd, err = RetryEINTR(func() (int, error) { return unix.Open(path, int(how.Flags), 0) })
	}
	if err != nil {
		return "", &os.PathError{Op: "resolve", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	return pathOf(f)
}

// OpenResolved opens the folder path unless a component of it is a symbolic
// link. It needs Linux 5.6, and a seccomp filter that knows openat2.
func OpenResolved(path string) (int, error) {
	return RetryEINTR(func() (int, error) {
		return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: OpenFolder, Resolve: unix.RESOLVE_NO_SYMLINKS})
	})
}
