package egress

import (
	"net"
	"testing"
)

// A connection that is made while its run ends is not carried: drain has set deadlines
// before there was anything to set them on.
func TestPairAfterItsRun(t *testing.T) {
	p := &pair{}
	if !p.holds(new(net.TCPConn), nil) {
		t.Error("a connection of a run that goes on is not taken")
	}
	p = &pair{}
	p.drain()
	if p.holds(new(net.TCPConn), nil) || p.local != nil {
		t.Error("a connection is taken after its run has ended")
	}
}
