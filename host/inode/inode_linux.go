package inode

import (
	"io/fs"
	"syscall"
	"time"
)

// Of returns the identity of the file of fi. ok is false if the system does not provide it:
// then only the modification time is known, and the replacement of a file by one of the same
// size and time goes unnoticed.
func Of(fi fs.FileInfo) (f File, ok bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return File{Changed: fi.ModTime()}, false
	}
	return File{uint64(st.Dev), st.Ino, time.Unix(st.Ctim.Unix())}, true
}
