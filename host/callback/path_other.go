//go:build !linux

package callback

import (
	"errors"
	"os"
)

func openFolder(dir string) (*os.File, error) {
	return nil, errors.New("the path of " + dir + " is too long for a socket; give the daemon a state folder with a shorter one")
}

func shortPath(f *os.File) string { return f.Name() }
