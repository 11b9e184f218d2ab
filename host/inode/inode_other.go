//go:build !linux

package inode

import "io/fs"

// Of returns the time of the modification alone, and false.
func Of(fi fs.FileInfo) (f File, ok bool) { return File{Changed: fi.ModTime()}, false }
