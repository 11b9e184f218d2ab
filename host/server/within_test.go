package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// TestWithin: a call whose time is over ends although nobody reads its output;
// who reads later still gets what was written, and the result.
func TestWithin(t *testing.T) {
	returned := make(chan int)
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s Streams) *wire.Result {
		limit, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		out := withinWriter{&within{ctx: limit, grace: time.Millisecond}, s.Stdout}
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

func TestWithinTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var got bytes.Buffer
		r, w := io.Pipe()
		s := Streams{Stdout: w, Stderr: &got}.Within(ctx)
		why := errors.New("over")
		began := time.Now()
		time.AfterFunc(5*time.Second, func() { cancel(why) })
		if n, err := s.Stdout.Write([]byte("nobody reads")); n != 0 || err != why {
			t.Errorf("%d, %v", n, err)
		}
		if took := time.Since(began); took != 5*time.Second+writeGrace {
			t.Errorf("a write that nobody reads took %v", took)
		}
		if n, err := s.Stderr.Write([]byte("late")); n != 0 || err != why || got.Len() > 0 {
			t.Errorf("after the grace: %d, %v", n, err)
		}
		if took := time.Since(began); took != 5*time.Second+writeGrace {
			t.Errorf("the grace was given twice: %v", took)
		}
		r.Close()

		// Within the grace, what is left to say can be said.
		s = Streams{Stdout: &got, Stderr: &got}.Within(ctx)
		if n, err := s.Stdout.Write([]byte("last words")); n != 10 || err != nil || got.String() != "last words" {
			t.Errorf("%d, %v, %q", n, err, &got)
		}
	})
}
