package main

import "golang.org/x/sys/unix"

// renameNew gives the folder from the name to, which nothing has.
func renameNew(from, to string) error { return unix.RenamexNp(from, to, unix.RENAME_EXCL) }

// exchange swaps two folders: at no moment is one of them not there.
func exchange(a, b string) error { return unix.RenamexNp(a, b, unix.RENAME_SWAP) }
