package host

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/toold/toold/host/procfs"
)

// page refuses connections to the page's port that are, or may be, of what a
// tool runs, as operator does on the operator's socket. Of a connection over TCP
// the kernel does not say whose it is: it is whose process holds the other end.
//
// A process that hides what it holds may be the one, where no other holds the end and
// its user is the one that made it. A module has the daemon itself connect.
func (a admission) page(nc net.Conn) error {
	local, ok := nc.LocalAddr().(*net.TCPAddr)
	remote, ok2 := nc.RemoteAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return errors.New("the page is served over TCP")
	}
	owners, err := procfs.OwnersOf(remote.AddrPort(), local.AddrPort())
	if err != nil {
		return fmt.Errorf("find out who connected: %w; keep the connection open until it is answered", err)
	}
	for _, pid := range owners {
		if pid == os.Getpid() || a.runner.Runs(pid) {
			return fmt.Errorf("the dashboard is the operator's, and process %d, which connected or may have, is, or may be, one that a tool runs", pid)
		}
	}
	return nil
}
