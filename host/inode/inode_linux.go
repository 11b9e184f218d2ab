package inode

import (
	"io/fs"
	"syscall"
	"time"
)

// Of returns which file fi is of. ok is false where the system does not say: then there
// is only the time of its modification, by which the replacement of a file by one of
// the same size and time is not noticed.
func Of(fi fs.FileInfo) (f File, ok bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return File{Changed: fi.ModTime()}, false
	}
	return File{uint64(st.Dev), st.Ino, time.Unix(st.Ctim.Unix())}, true
}
