//go:build !linux

package repoconfig

import (
	"os"
	"syscall"
)

// tree opens what lies beneath a folder.
type tree struct{ root *os.Root }

func openTree(dir string) (*tree, error) {
	root, err := os.OpenRoot(dir)
	return &tree{root}, err
}

func (t *tree) close() { t.root.Close() }

// open opens rel to be read. Links are followed as far as they stay beneath the
// folder; a FIFO stops nobody.
func (t *tree) open(rel string) (*os.File, error) {
	return t.root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// openDir opens the folder rel. What is none is ENOTDIR.
func (t *tree) openDir(rel string) (*os.File, error) {
	return t.root.OpenFile(rel, os.O_RDONLY|syscall.O_DIRECTORY, 0)
}

// linkFree returns false: it would need a look at each name of path here.
func linkFree(string) bool { return false }
