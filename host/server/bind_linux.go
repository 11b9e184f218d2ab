package server

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// maxPath is what fits in a sockaddr_un, with its zero byte.
const maxPath = 107

// inside is a name for a folder under which a socket can be bound.
type inside struct {
	name string
	dir  *os.File
}

// shortPath names dir in few bytes whatever its path is, so that a socket whose
// own path just fits can be bound in a folder beside it, whose path does not.
func shortPath(dir string) (inside, error) {
	if len(dir)+len("/s") <= maxPath {
		return inside{name: dir}, nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return inside{}, err
	}
	return inside{name: fmt.Sprintf("/proc/self/fd/%d", f.Fd()), dir: f}, nil
}

func (i inside) close() {
	if i.dir != nil {
		i.dir.Close()
	}
}

// place renames a file to a name that nothing has; the error is else fs.ErrExist.
func place(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // not on this file system
		if err = os.Link(from, to); err == nil {
			os.Remove(from)
		}
	}
	return err
}
