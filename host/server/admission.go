package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/toold/toold/host/fault"
)

const (
	defaultMaxConns = 1024
	// lingerTime and lingerBytes bound how long the server listens to a
	// client that it has turned away, so that the client can read the reason.
	lingerTime  = 2 * time.Second
	lingerBytes = 16 << 20
	// minIdle is how long a connection is idle before its place may be
	// given away: a client that has just connected is about to ask.
	minIdle = time.Second
	// endGrace is how long handlers have to return once their calls were
	// ended.
	endGrace = 5 * time.Second
)

// identify asks the kernel who connected.
func identify(nc *net.UnixConn) (syscall.RawConn, Peer, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, Peer{}, err
	}
	p, err := peerOf(raw)
	if err != nil {
		return nil, Peer{}, err
	}
	p.Focus = new(atomic.Pointer[string])
	p.Container = sync.OnceValue(func() string { return containerOf(p) })
	return raw, p, nil
}

// refusal returns why admits does not let p in, or nil.
func refusal(admits func(Peer) error, p Peer) *fault.Error {
	if admits == nil {
		return nil
	}
	err := admits(p)
	if err == nil {
		return nil
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		e = fault.Errorf(fault.Denied, "%w", err)
	}
	return e
}

// share returns how many of most connections there may be for a further one of a uid
// that holds so many to get a place. A uid that holds more than half is greedy: it leaves
// one place in 64 to others, and has to give up places of its own.
func share(most, held int) (places int, greedy bool) {
	if held > most/2 {
		return most - most/64, true
	}
	return most, false
}

// linger ends our half of a connection and lets the client finish what it is
// sending, within bounds. Closing at once would reset the connection, and take
// the answer away from a client that is still writing.
func linger(nc *net.UnixConn) {
	nc.CloseWrite()
	nc.SetReadDeadline(time.Now().Add(lingerTime))
	io.CopyN(io.Discard, nc, lingerBytes)
}

// drain waits for the connections of running. When ctx ends first, it ends their calls
// with end, and after endGrace it closes those that are still there with closeLeft, which
// is an error.
func drain(ctx context.Context, running *sync.WaitGroup, end func(why *fault.Error), closeLeft func() int) error {
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	end(fault.Errorf(fault.Aborted, "the daemon was stopped while the call ran; call again when it is back, if that is safe"))
	timer := time.NewTimer(endGrace)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	return fmt.Errorf("stop the server: %d connections had calls that did not end", closeLeft())
}
