package egress

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// copySize is how much of a body is in memory, in bytes.
const copySize = 64 << 10

var bodies = sync.Pool{New: func() any { return new([copySize]byte) }}

// bulkFrom is how much of a connection is read as TLS asks for it, in bytes. The rest
// is read in large pieces, so that short connections need no memory for these.
const bulkFrom = 64 << 10

// bulk is a connection beneath TLS, which reads and writes records of 16 KiB one by one. It
// reads more at a time, and writes at once what was written while it was held: besides its
// arithmetic, TLS spends most of its time in the kernel.
type bulk struct {
	net.Conn

	// in is what was read and not asked for yet, of buf; one at a time reads.
	in, buf []byte
	read    int
	left    atomic.Int64 // the length of in

	mu    sync.Mutex
	holds int
	out   []byte
	err   error // of a write, which TLS did not get: nothing may follow it
}

func (b *bulk) Read(p []byte) (int, error) {
	if len(b.in) == 0 {
		if b.read < bulkFrom || len(p) >= copySize {
			n, err := b.Conn.Read(p)
			b.read += n
			return n, err
		}
		if b.buf == nil {
			b.buf = make([]byte, copySize)
		}
		n, err := b.Conn.Read(b.buf)
		if b.in = b.buf[:n]; err != nil && n == 0 {
			return 0, err
		}
		// An error beside bytes recurs.
	}
	n := copy(p, b.in)
	b.in = b.in[n:]
	b.left.Store(int64(len(b.in)))
	return n, nil
}

// more reports whether there is more than was asked for.
func (b *bulk) more() bool { return b != nil && b.left.Load() > 0 }

// readAll reads of body, which comes over b, as much as has arrived, and waits only for
// the end of a record.
func (b *bulk) readAll(body io.Reader, p []byte) (n int, err error) {
	n, err = body.Read(p)
	for n < len(p) && err == nil && b.more() {
		var k int
		if k, err = body.Read(p[n:]); k == 0 {
			break
		}
		n += k
	}
	return n, err
}

// gathered is a body of unknown length that arrives on the connection from. net/http makes a
// chunk of each piece that it gets and sends it at once; gathered makes one piece of several
// records.
type gathered struct {
	io.ReadCloser
	from *bulk
}

func (b *gathered) WriteTo(w io.Writer) (sent int64, err error) {
	buf := bodies.Get().(*[copySize]byte)
	defer bodies.Put(buf)
	for {
		n, err := b.from.readAll(b.ReadCloser, buf[:])
		if n > 0 {
			k, lost := w.Write(buf[:n])
			if sent += int64(k); lost != nil {
				return sent, lost
			}
		}
		if err == io.EOF {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
	}
}

func (b *bulk) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	if b.holds == 0 {
		return b.Conn.Write(p)
	}
	b.out = append(b.out, p...)
	return len(p), nil
}

// hold keeps written data back until release has been called as often.
func (b *bulk) hold() {
	if b != nil {
		b.mu.Lock()
		b.holds++
		b.mu.Unlock()
	}
}

func (b *bulk) release() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds--; b.holds > 0 || len(b.out) == 0 || b.err != nil {
		return b.err
	}
	_, b.err = b.Conn.Write(b.out)
	b.out = b.out[:0]
	return b.err
}

// bulkTLS is TLS on a bulk.
type bulkTLS struct {
	*tls.Conn
	raw *bulk
}

func (c *bulkTLS) Write(p []byte) (int, error) {
	c.raw.hold()
	n, err := c.Conn.Write(p)
	if late := c.raw.release(); err == nil && late != nil {
		return 0, late
	}
	return n, err
}
