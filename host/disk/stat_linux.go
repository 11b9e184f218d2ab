package disk

import (
	"io/fs"
	"syscall"
	"time"
)

// inode returns what identifies a file, and its change time, which unlike the
// modification time cannot be set by programs.
func inode(fi fs.FileInfo) (dev, ino uint64, changed time.Time) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, fi.ModTime()
	}
	return uint64(st.Dev), st.Ino, time.Unix(st.Ctim.Unix())
}
