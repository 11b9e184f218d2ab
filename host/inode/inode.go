// Package inode says which file one is, and when it was changed: what tells a file from
// another one that took its place; and whether somebody else owns it. It does not read
// the file. Packages disk and trust compare the files of tools and of authorities by it.
package inode

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// File identifies a file on this host.
type File struct {
	Dev, Ino uint64
	// Changed is when it was changed, which unlike the time of its modification no
	// program can set.
	Changed time.Time
}

// Owner returns the user that owns the file of fi, and whether that is neither this user nor
// root, who could do anything anyway.
func Owner(fi fs.FileInfo) (uid int, other bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	uid = int(st.Uid)
	return uid, uid != 0 && uid != os.Geteuid()
}
