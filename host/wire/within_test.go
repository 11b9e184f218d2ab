package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

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
