//go:build unix && !linux

package process

import (
	"errors"
	"os"
)

func openTerminal(rows, cols uint16) (master, slave *os.File, err error) {
	return nil, nil, errors.ErrUnsupported
}

func setSize(_ *os.File, rows, cols uint16) error { return errors.ErrUnsupported }

func suspendKey(*os.File) (byte, bool) { return 0, false }
