// Package client is the Go client of a daemon: calls over its tool socket, and
// operations over its admin socket. toolctl and tests use it.
package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/toold/toold/host/places"
	"github.com/toold/toold/host/wire"
)

// ErrNoDaemon is returned if no daemon listens at a socket's path.
var ErrNoDaemon = errors.New("no daemon answers")

// Conn is a connection to a tool socket. Its calls run one at a time. It is closed after an error that is not a call's
// response.
type Conn struct {
	nc *net.UnixConn
	in *bufio.Reader

	mu sync.Mutex // held by the running call
}

// Dial connects to the tool socket at path. The error is ErrNoDaemon if there is no
// socket, or no daemon listens on it.
func Dial(ctx context.Context, path string) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w at %s; start toold, or set TOOL_SOCKET to where it listens", ErrNoDaemon, path)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("connect to the daemon: %w; %s", err, places.Denied(path))
	case err != nil:
		return nil, fmt.Errorf("connect to the daemon: %w", err)
	}
	return &Conn{nc: nc.(*net.UnixConn), in: bufio.NewReader(nc)}, nil
}

// Close closes the connection, which aborts a running call.
func (c *Conn) Close() error { return c.nc.Close() }

// Call makes a call that is not streamed, in its form, and returns the daemon's response; a refusal is in Result.Err.
// If ctx ends, the connection is closed, which aborts the call, and the error is that of ctx.
func (c *Conn) Call(ctx context.Context, call *wire.Call) (*wire.Result, error) {
	q := *call
	q.Stream = false
	frames, err := wire.EncodeRequest(&q)
	if err != nil {
		return nil, err
	}
	var result *wire.Result
	err = c.with(ctx, func() error {
		writeErr := wire.WriteFrame(c.nc, frames[0])
		// A daemon that rejects the connection sends the reason before it closes.
		frame, err := wire.ReadFrame(c.in)
		if err != nil {
			return fmt.Errorf("the daemon ended the connection before it answered: %w", errors.Join(writeErr, err))
		}
		p, err := wire.ParseResponse(frame)
		if err != nil {
			return err
		}
		if p.Result == nil {
			return fmt.Errorf("the daemon answered a call that is not streamed with a %q frame", p.Type)
		}
		result = p.Result
		return nil
	})
	return result, err
}

// Stream makes a streamed call; see wire.Stream. If ctx ends, the connection is
// closed, which aborts the call, and the error is that of ctx.
func (c *Conn) Stream(ctx context.Context, call *wire.Call, l wire.Local) (*wire.Result, error) {
	q := *call
	var result *wire.Result
	err := c.with(ctx, func() (err error) {
		result, err = wire.Stream(struct {
			io.Reader
			io.Writer
		}{c.in, c.nc}, &q, l)
		return err
	})
	return result, err
}

// with runs f with exclusive use of the connection, and closes the connection if
// ctx ends.
func (c *Conn) with(ctx context.Context, f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		c.nc.SetDeadline(time.Unix(1, 0))
		c.nc.Close()
	})
	err := f()
	if !stop() && err != nil {
		return ctx.Err()
	}
	if err != nil {
		c.nc.Close()
	}
	return err
}

// Call makes one call over a new connection.
func Call(ctx context.Context, path string, call *wire.Call) (*wire.Result, error) {
	c, err := Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Call(ctx, call)
}

// Stream makes one streamed call over a new connection.
func Stream(ctx context.Context, path string, call *wire.Call, l wire.Local) (*wire.Result, error) {
	c, err := Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Stream(ctx, call, l)
}
