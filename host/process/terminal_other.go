//go:build unix && !linux

package process

import (
	"errors"
	"os"
)

func openTerminal(Size) (master, slave *os.File, err error) {
	return nil, nil, errors.ErrUnsupported
}

func setSize(*os.File, Size) error { return errors.ErrUnsupported }

func suspendKey(*os.File) (byte, bool) { return 0, false }
