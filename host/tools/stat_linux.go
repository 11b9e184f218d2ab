package tools

import (
	"io/fs"
	"syscall"
	"time"
)

// inode is what tells one file from another, and one state of it from the
// next, beyond what fs.FileInfo says. The change time is the kernel's: unlike
// the modification time no program can set it.
func inode(fi fs.FileInfo) (dev, ino uint64, changed time.Time) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, fi.ModTime()
	}
	return uint64(st.Dev), st.Ino, time.Unix(st.Ctim.Unix())
}
