package main

import "golang.org/x/sys/unix"

// renameNew renames the folder from to a name that must not exist.
func renameNew(from, to string) error { return unix.RenamexNp(from, to, unix.RENAME_EXCL) }

// exchange swaps two folders atomically: both exist at every moment.
func exchange(a, b string) error { return unix.RenamexNp(a, b, unix.RENAME_SWAP) }
