//go:build unix

package process

import (
	"os"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
)

// sameFolder reports why dir is not the folder that c is to run in.
func (c *Command) sameFolder(dir *os.File) error {
	if c.Folder == "" {
		return nil
	}
	is, err := confine.ObjectOf(dir)
	if err == nil && is == c.Folder {
		return nil
	}
	return fault.Errorf(fault.InvalidPayload, "cwd %q is another folder than the one that the call was approved for; make the call again", c.Dir)
}
