// Package inode says which file one is, and when it was changed: what tells a file from
// another one that took its place. It does not read the file. Packages disk and trust
// compare the files of tools and of authorities by it.
package inode

import "time"

// File is which file one is on this host.
type File struct {
	Dev, Ino uint64
	// Changed is when it was changed, which unlike the time of its modification no
	// program can set.
	Changed time.Time
}
