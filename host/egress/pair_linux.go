package egress

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/hello"
)

// headTime is how long a process may take over the head of a request, or over a
// handshake.
const headTime = 30 * time.Second

// pair is a connection of a run and the one to its host.
type pair struct {
	run        *run
	connection *Connection
	// dial makes another connection to the host.
	dial func(context.Context) (*net.TCPConn, error)
	// begin is what was read of the run already.
	begin []byte
	// over is set, under mu, when the run has ended.
	over atomic.Bool

	mu sync.Mutex // guards what follows, and the deadlines of both until over
	// local is the run's, upstream the host's; set by holds and not changed after.
	// upstream is nil if the connection is answered here.
	local, upstream *net.TCPConn
	// reads is set once requests are read: they end upstream then.
	reads bool
}

// holds begins p, unless the run has ended.
func (p *pair) holds(local, upstream *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over.Load() {
		return false
	}
	p.local, p.upstream = local, upstream
	return true
}

// holdsRequests makes the end of the run leave upstream to the reading of requests.
func (p *pair) holdsRequests() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads = true
	if p.over.Load() {
		p.upstream.SetDeadline(time.Now().Add(drain))
	}
}

// readBy sets the deadline for reading from the run; zero means none but the end of the run.
func (p *pair) readBy(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over.Load() {
		p.local.SetReadDeadline(at)
	}
}

// drain ends p once what the run has written is delivered, or cannot be.
func (p *pair) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over.Store(true)
	deadline := time.Now().Add(drain)
	if p.local != nil {
		p.local.SetDeadline(deadline)
	}
	if p.upstream != nil && !p.reads {
		p.upstream.SetWriteDeadline(deadline)
		p.upstream.SetReadDeadline(time.Now())
	}
}

// errRefused ends a pair whose refusal was reported.
var errRefused = errors.New("refused")

// begins reads what the run sends first, as hello.Read does, and refuses TLS for
// another host.
func (p *pair) begins() (begin []byte, names *hello.Names, err error) {
	begin, names, err = hello.Read(p.local)
	if err == hello.ErrNone {
		p.run.ledger.refuse(p.connection, "it begins as TLS, and no server name can be read in it")
	}
	if err == nil && names != nil {
		if h, c := p.run.rules.HTTP, p.connection; !sameName(names.Server, c.Host) && h.reads(names.Server, c.Port) && !h.reads(c.Host, c.Port) {
			p.run.ledger.refuse(c, "it begins TLS with "+strconv.Quote(names.Server)+", whose requests are read, and was made to "+c.Host+"; connect to the name")
			return nil, nil, errRefused
		}
		if why := p.mismatch(names.Server); why != "" {
			p.run.ledger.refuse(p.connection, why)
			return nil, nil, errRefused
		}
	}
	return begin, names, err
}

// mismatch returns why TLS with the server name sni does not match what was connected
// to, or "".
func (p *pair) mismatch(sni string) string {
	wanted := p.connection.Host
	if _, err := netip.ParseAddr(wanted); err == nil {
		return "" // it was allowed by its address
	}
	switch {
	case sni == "":
		return "it begins TLS without a server name, which would have to be " + wanted
	case !sameName(sni, wanted):
		return "it begins TLS with " + strconv.Quote(sni) + ", and was made to " + wanted
	}
	return ""
}

func sameName(a, b string) bool {
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}

// copy copies both ways until both sides have ended. Of the host, received bytes were
// passed on before.
func (p *pair) copy(received int64) {
	down, gone := make(chan struct{}), make(chan struct{})
	p.run.work.Go(func() {
		defer close(down)
		n, err := p.pass(p.local, p.upstream)
		p.run.ledger.mu.Lock()
		p.connection.Received = received + n
		p.run.ledger.mu.Unlock()
		switch {
		case err == nil:
			p.local.CloseWrite()
		case p.over.Load():
		case isBroken(p.upstream):
			deliver(p.run.rest, p.local, false)
			reset(p.local)
		default:
			// The process has gone. What it sent is still delivered, for which a host
			// would not wait if nobody read from it.
			close(gone)
			io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{p.upstream}, make([]byte, copySize))
		}
	})
	n, err := p.up()
	p.run.ledger.mu.Lock()
	p.connection.Sent = n
	p.run.ledger.mu.Unlock()
	switch {
	case err == nil:
		p.upstream.CloseWrite()
		select {
		case <-down:
		case <-gone:
		}
	case err == errRefused || err == hello.ErrNone:
		reset(p.local)
		reset(p.upstream)
	case isBroken(p.upstream) && !p.over.Load():
		<-down // what it sent before
		deliver(p.run.rest, p.local, false)
		reset(p.local)
	default: // the process has broken it off, after what it sent
		deliver(p.run.rest, p.upstream, false)
		reset(p.upstream)
		reset(p.local)
	}
	deliver(p.run.rest, p.upstream, true)
	p.upstream.Close()
	<-down
	p.local.Close()
}

// banner passes on what the host sends first, if that is SSH, and returns its length, otherwise
// 0. An SSH server does not wait for its client, whereas an HTTP server does: to it, what only
// begins like SSH would be a request, followed by others that were not judged.
func (p *pair) banner() int64 {
	p.upstream.SetReadDeadline(time.Now().Add(headTime))
	begin := make([]byte, len(sshBegin))
	if _, err := io.ReadFull(p.upstream, begin); err != nil || !isSSH(begin) {
		return 0
	}
	p.mu.Lock()
	if !p.over.Load() {
		p.upstream.SetReadDeadline(time.Time{})
	}
	p.mu.Unlock()
	if n, err := p.local.Write(begin); err != nil {
		return int64(n)
	}
	return int64(len(begin))
}

// up copies what the run sends.
func (p *pair) up() (int64, error) {
	begin, err := p.begin, error(nil)
	if begin == nil {
		if begin, _, err = p.begins(); err != nil {
			return 0, err
		}
	}
	sent := int64(0)
	if len(begin) > 0 {
		n, err := p.upstream.Write(begin)
		if sent = int64(n); err != nil {
			return sent, err
		}
	}
	n, err := p.pass(p.upstream, p.local)
	return sent + n, err
}

const (
	// spliced is how much of a connection the kernel copies, in bytes. The rest is
	// copied here, in large pieces, which takes half the time of the kernel's small
	// ones, unless there are too many of these.
	spliced   = 1 << 20
	largeSize = 1 << 20
	maxLarge  = 32 // of all runs
)

// pass copies what src sends to dst, until that ends.
func (p *pair) pass(dst, src *net.TCPConn) (int64, error) {
	n, err := io.Copy(dst, &io.LimitedReader{R: src, N: spliced})
	if err != nil || n < spliced {
		return n, err
	}
	var more int64
	large := &p.run.gate.large
	if large.Add(1) <= maxLarge {
		// The other methods of these would let the kernel copy.
		more, err = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, largeSize))
	} else {
		more, err = io.Copy(dst, src)
	}
	large.Add(-1)
	return n + more, err
}

// sshBegin is what either side of SSH says first.
const sshBegin = "SSH-"

// isSSH reports whether a connection begins like SSH.
func isSSH(begin []byte) bool { return bytes.HasPrefix(begin, []byte(sshBegin)) }
