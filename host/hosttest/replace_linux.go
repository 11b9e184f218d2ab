package hosttest

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// replace exchanges the folders from and to; there is no moment at which to does not
// exist.
func replace(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	if errors.Is(err, fs.ErrNotExist) {
		return os.Rename(from, to)
	}
	return err
}
