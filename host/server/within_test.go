package server

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// TestWithin: a call whose time is over ends although nobody reads its output;
// who reads later still gets what was written, and the result.
func TestWithin(t *testing.T) {
	returned := make(chan int)
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		limit, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		out := s.Within(limit).Stdout
		p := bytes.Repeat([]byte("x"), 32<<10)
		wrote := 0
		for {
			n, err := out.Write(p)
			if wrote += n; err != nil {
				returned <- wrote
				return &wire.Result{Err: fault.Errorf(fault.Timeout, "time is over")}
			}
			if wrote > 8<<10 {
				cancel(errors.New("time is over"))
			}
		}
	}})
	c := dial(t, s)
	c.send(`{"tool":"yes","stream":true}`)
	wrote := <-returned
	r, out := c.result()
	if r.Err == nil || r.Err.Code != fault.Timeout {
		t.Errorf("got %+v", r)
	}
	// What was under way when the call ended may have come through as well.
	if len(out) < wrote || len(out) > wrote+32<<10 {
		t.Errorf("%d bytes were written, %d came", wrote, len(out))
	}
}
