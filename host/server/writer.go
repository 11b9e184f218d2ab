package server

import (
	"encoding/json"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/wire"
)

// keptBuffer is how much of its frame buffer an idle connection keeps, in bytes.
const keptBuffer = 8 << 10

// frameWriter writes whole frames to a connection, from many goroutines.
type frameWriter struct {
	nc  *net.UnixConn
	mu  sync.Mutex // guards what follows, writing to nc, and the state of outlets
	buf []byte
	err error // of the first write that failed: no further one makes sense
}

// broken reports whether a write has failed, and the rest of a frame with it.
func (w *frameWriter) broken() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

func (w *frameWriter) jsonLocked(json []byte) error {
	frame, err := wire.AppendFrame(w.buf[:0], json)
	if err != nil {
		return err
	}
	w.buf = frame
	return w.flushLocked()
}

func (w *frameWriter) flushLocked() error {
	if w.err == nil {
		_, w.err = w.nc.Write(w.buf)
	}
	return w.err
}

// outlet writes the frames of one call to its connection. Once the last frame was
// written, all others fail.
type outlet struct {
	w *frameWriter
	// timed reports whether the connection has a write deadline for this call.
	timed atomic.Bool
	// over reports whether the last frame was written, wroteStdout whether standard
	// output was. Both are guarded by w.mu.
	over, wroteStdout bool
}

var errOver = errors.New("write to a call that is over")

func (o *outlet) chunk(typ string, p []byte) error {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	if o.over {
		return errOver
	}
	o.wroteStdout = o.wroteStdout || typ == wire.TypeStdout
	o.w.buf = wire.AppendChunk(o.w.buf[:0], typ, p)
	return o.w.flushLocked()
}

// wrote reports whether the call has sent anything to standard output.
func (o *outlet) wrote() bool {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	return o.wroteStdout
}

func (o *outlet) frame(json []byte) error {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	if o.over {
		return errOver
	}
	return o.w.jsonLocked(json)
}

// events writes the frames of several events at once.
func (o *outlet) events(list []json.RawMessage) error {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	if o.over {
		return errOver
	}
	o.w.buf = o.w.buf[:0]
	for _, event := range list {
		var err error
		if o.w.buf, err = wire.AppendEvent(o.w.buf, event); err != nil {
			return err
		}
	}
	err := o.w.flushLocked()
	if cap(o.w.buf) > keptBuffer {
		o.w.buf = nil
	}
	return err
}

// takeBy limits, until the result is written, how long writing may take.
func (o *outlet) takeBy(t time.Time) {
	o.timed.Store(true)
	o.w.nc.SetWriteDeadline(t)
}

// result writes the last frame of the call.
func (o *outlet) result(json []byte) {
	o.last(json)
	if o.timed.Load() {
		o.w.nc.SetWriteDeadline(time.Time{})
	}
}

func (o *outlet) last(json []byte) {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	o.over = true
	o.w.jsonLocked(json)
	if cap(o.w.buf) > keptBuffer {
		o.w.buf = nil
	}
}

// output sends what a tool writes to one of its streams.
type output struct {
	*outlet
	typ string
}

func (o output) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		part := p[n:min(len(p), n+wire.MaxChunk)]
		if err := o.chunk(o.typ, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return len(p), nil
}
