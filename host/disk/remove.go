package disk

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// removeAtOnce is how many entries of a folder RemoveTree keeps at a time.
const removeAtOnce = 1024

// RemoveTree removes dir and all that is in it, and removes nothing elsewhere. A hostile
// program may have left its contents: folders that are closed to their owner, and nested
// folders of any depth, which need no more descriptors. A dir that does not exist is not
// an error; the folder it is in must be the caller's.
func RemoveTree(dir string) error {
	if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	// Folders that are not empty are moved here, so that none is deep.
	heap := rand.Text()
	if err := root.Mkdir(heap, 0o700); err != nil {
		return err
	}
	var failed error
	remove := func(path string) (moved string, err error) {
		if err = root.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if info, failed := root.Lstat(path); failed != nil || !info.IsDir() {
			return "", err
		}
		moved = filepath.Join(heap, rand.Text())
		return moved, errors.Join(root.Chmod(path, 0o700), root.Rename(path, moved))
	}
	for left := []string{"."}; len(left) > 0; {
		folder := left[len(left)-1]
		left = left[:len(left)-1]
		for again := true; again; {
			again = false
			for _, name := range names(root, folder) {
				if folder == "." && name == heap {
					continue
				}
				moved, err := remove(filepath.Join(folder, name))
				if err != nil {
					failed = err // one of them is enough
					continue
				}
				again = true
				if moved != "" {
					left = append(left, moved)
				}
			}
		}
		if folder != "." {
			root.Remove(folder)
		}
	}
	root.Remove(heap)
	return errors.Join(failed, os.Remove(dir))
}

// names returns the first names in the folder of root.
func names(root *os.Root, folder string) []string {
	f, err := root.Open(folder)
	if err != nil {
		return nil // removing it fails as well, and reports the error
	}
	defer f.Close()
	list, _ := f.Readdirnames(removeAtOnce)
	return list
}
