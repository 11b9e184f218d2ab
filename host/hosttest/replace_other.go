//go:build !linux

package hosttest

import (
	"errors"
	"io/fs"
	"os"
)

// replace puts the folder from in the place of to, which for a moment does not
// exist.
func replace(from, to string) error {
	if err := os.Rename(to, from+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.Rename(from, to), os.RemoveAll(from+".old"))
}
