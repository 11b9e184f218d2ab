//go:build !linux

package server

import (
	"fmt"
	"os"
)

// maxPath is what fits in the sockaddr_un of a BSD, with its zero byte.
const maxPath = 103

// inside is a name for a folder under which a socket can be bound.
type inside struct{ name string }

func shortPath(dir string) (inside, error) {
	if len(dir)+len("/s") > maxPath {
		return inside{}, fmt.Errorf("the path of the folder beside it, %s, is too long for a socket; choose a shorter one", dir)
	}
	return inside{name: dir}, nil
}

func (inside) close() {}

// place renames a file to a name that nothing has; the error is else fs.ErrExist.
func place(from, to string) error {
	err := os.Link(from, to)
	if err == nil {
		os.Remove(from)
	}
	return err
}
