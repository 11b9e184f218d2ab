package hosttest

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// replace puts the folder from in the place of to, which afterwards stands at
// from; there is no moment at which to does not exist.
func replace(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	if errors.Is(err, fs.ErrNotExist) {
		return os.Rename(from, to)
	}
	return err
}
