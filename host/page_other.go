//go:build !linux

package host

import (
	"errors"
	"net"
)

// page refuses all: who connected cannot be told from a tool.
func (admission) page(net.Conn) error {
	return errors.New(`on this system nobody can tell who connects to a port; use "dashboard": "admin"`)
}
