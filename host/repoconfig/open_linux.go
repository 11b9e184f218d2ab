package repoconfig

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// tree opens what lies beneath a folder, in one call of the kernel if it can
// (openat2, from Linux 5.6 on), which takes a third of what os.Root needs for a
// path of three names. If the call is missing, or refuses, os.Root decides.
type tree struct {
	fd   int
	root *os.Root // opened when it is needed
	dir  string
}

func openTree(dir string) (*tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &tree{fd: fd, dir: dir}, nil
}

func (t *tree) close() {
	unix.Close(t.fd)
	if t.root != nil {
		t.root.Close()
	}
}

// open opens rel to be read. Links are followed as far as they stay beneath the
// folder; a FIFO stops nobody.
func (t *tree) open(rel string) (*os.File, error) {
	return t.openAs(rel, unix.O_RDONLY|unix.O_NONBLOCK)
}

// openDir opens the folder rel. What is none is ENOTDIR.
func (t *tree) openDir(rel string) (*os.File, error) {
	return t.openAs(rel, unix.O_RDONLY|unix.O_DIRECTORY)
}

func (t *tree) openAs(rel string, flags int) (*os.File, error) {
	fd, err := unix.Openat2(t.fd, rel, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
	if err == nil {
		return os.NewFile(uintptr(fd), rel), nil
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, err
	}
	if t.root == nil {
		// By its descriptor, since the name may be another folder's by now.
		if t.root, err = os.OpenRoot("/proc/self/fd/" + strconv.Itoa(t.fd)); err != nil {
			return nil, err
		}
	}
	return t.root.OpenFile(rel, flags, 0)
}

// linkFree reports whether path leads through no link. If the kernel cannot tell
// in one call, it returns false.
func linkFree(path string) bool {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}
