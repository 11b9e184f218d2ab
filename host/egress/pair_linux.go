package egress

import (
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// pair is a connection of a run, and that to its host.
type pair struct {
	session    *Session
	connection *Connection
	// local is the run's, upstream the host's; set by holds. upstream is nil where
	// the connection is answered here.
	local, upstream *net.TCPConn
	// over is set when the run has ended.
	over atomic.Bool
}

// holds begins p, unless the run has ended.
func (p *pair) holds(local, upstream *net.TCPConn) bool {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	if p.session.ending {
		return false
	}
	p.local, p.upstream = local, upstream
	return true
}

// drain has p end when what the run has written is delivered, or cannot be. It is
// called under session.mu.
func (p *pair) drain() {
	p.over.Store(true)
	deadline := time.Now().Add(drain)
	if p.local != nil {
		p.local.SetDeadline(deadline)
	}
	if p.upstream != nil {
		p.upstream.SetWriteDeadline(deadline)
		p.upstream.SetReadDeadline(time.Now())
	}
}

// copy copies both ways until both sides have ended.
func (p *pair) copy() {
	down := make(chan struct{})
	p.session.work.Go(func() {
		defer close(down)
		n, err := io.Copy(p.local, p.upstream)
		p.session.mu.Lock()
		p.connection.Received = n
		p.session.mu.Unlock()
		if err == nil {
			p.local.CloseWrite()
		} else if !p.over.Load() {
			reset(p.local)
		}
	})
	n, err := p.up()
	p.session.mu.Lock()
	p.connection.Sent = n
	p.session.mu.Unlock()
	if err == nil {
		p.upstream.CloseWrite()
	} else {
		reset(p.local)
		reset(p.upstream)
	}
	<-down
	p.local.Close()
	p.upstream.Close()
}

// up copies what the run sends.
func (p *pair) up() (int64, error) {
	hello, names, err := readHello(p.local)
	if err == nil && names != nil {
		if why := p.mismatch(names.serverName); why != "" {
			p.session.refuse(p.connection, why)
			return 0, errRefused
		}
	}
	if err != nil {
		if err == errNoHello {
			p.session.refuse(p.connection, "it begins as TLS, and no server name can be read in it")
		}
		return 0, err
	}
	sent := int64(0)
	if len(hello) > 0 {
		n, err := p.upstream.Write(hello)
		if sent = int64(n); err != nil {
			return sent, err
		}
	}
	n, err := io.Copy(p.upstream, p.local)
	return sent + n, err
}

// mismatch says why TLS with the server name sni is not what was connected to.
func (p *pair) mismatch(sni string) string {
	wanted := p.connection.Host
	if _, err := netip.ParseAddr(wanted); err == nil {
		return "" // it was allowed by its address
	}
	switch {
	case sni == "":
		return "it begins TLS without a server name, which would have to be " + wanted
	case !sameName(sni, wanted):
		return "it begins TLS with " + quote(sni) + ", and was made to " + wanted
	}
	return ""
}
