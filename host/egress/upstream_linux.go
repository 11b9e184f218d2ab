package egress

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// handshakeTime is how long a host may take over a handshake.
const handshakeTime = 30 * time.Second

// hostSide makes the connections to a host for requests, one after the other, and first uses
// the existing one.
type hostSide struct {
	*pair
	ctx    context.Context
	cancel context.CancelCauseFunc
	config *tls.Config // nil: without TLS
	// first is the connection that there is already; taken means that it is used.
	first chan opened
	taken atomic.Bool

	current atomic.Pointer[net.TCPConn]
	above   atomic.Pointer[bulk] // as current, beneath TLS
	traffic traffic
}

// opened is a connection for requests, or why there is none.
type opened struct {
	conn net.Conn
	err  error
}

// next returns a connection to the host: the one that exists, or, if that has been
// used and ended, another one.
func (u *hostSide) next(ctx context.Context) (net.Conn, error) {
	if !u.taken.Swap(true) {
		select {
		case d := <-u.first:
			return d.conn, d.err
		case <-u.ctx.Done():
			u.taken.Store(false)
			return nil, context.Cause(u.ctx)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := u.dial(ctx)
	if err != nil {
		return nil, err
	}
	return u.open(ctx, conn)
}

// open returns conn, with TLS if there is any, for requests to be written to.
func (u *hostSide) open(ctx context.Context, conn *net.TCPConn) (net.Conn, error) {
	u.current.Store(conn)
	counted := &counted{conn, &u.traffic}
	if u.config == nil {
		return counted, nil
	}
	config := u.config.Clone()
	if config.ServerName == "" {
		config.ServerName = u.connection.Host
	}
	config.NextProtos = []string{"http/1.1"}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	config.DynamicRecordSizingDisabled = true
	raw := &bulk{Conn: counted}
	upstream := tls.Client(raw, config)
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := upstream.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	u.above.Store(raw)
	return &bulkTLS{upstream, raw}, nil
}

// close ends the connection to the host if nothing has used it.
func (u *hostSide) close() {
	u.cancel(nil)
	if !u.taken.Swap(true) {
		if d := <-u.first; d.conn != nil {
			d.conn.Close()
		}
	}
	u.run.ledger.mu.Lock()
	u.connection.Sent, u.connection.Received = u.traffic.sent.Load(), u.traffic.received.Load()
	u.run.ledger.mu.Unlock()
}

// asking returns the context of one request to the host, which ends with the run and at end,
// and a channel that is closed once the request was written. It is not the context of the
// process's request, which ends when the process sends no more: that may have closed only its
// sending side, or have gone, and what it sent before counts.
func (u *hostSide) asking() (ctx context.Context, wrote chan struct{}, end func()) {
	ctx, cancel := context.WithCancel(u.ctx)
	wrote = make(chan struct{})
	var once sync.Once
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { once.Do(func() { close(wrote) }) }})
	// When the run is over, the answer is not needed.
	stop := context.AfterFunc(u.run.ctx, func() {
		u.delivered(ctx, wrote)
		cancel()
	})
	return ctx, wrote, func() { stop(); cancel() }
}

// delivered waits until the host has a request, after wrote was closed, or for
// drain at most.
func (u *hostSide) delivered(ctx context.Context, wrote chan struct{}) {
	over := time.NewTimer(drain)
	defer over.Stop()
	select {
	case <-wrote:
		if conn := u.current.Load(); conn != nil {
			deliver(ctx, conn, false)
		}
	case <-over.C:
	case <-ctx.Done():
	}
}
