// Package hello reads how a TLS client begins, without answering it: the server's name
// is judged before anything is sent on.
package hello

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"
)

// ErrNone is returned by Read for what begins as TLS and is no ClientHello.
var ErrNone = errors.New("no ClientHello can be read")

var errRead = errors.New("read")

// Max bounds a ClientHello, in bytes. Those with a post-quantum key have two kilobytes.
const Max = 64 << 10

// Names is what a ClientHello names.
type Names struct {
	Server string // as it was sent; "" without
}

// Read reads the beginning of what comes from r. Where that is TLS, it reads
// a whole ClientHello, and names is what it names; otherwise names is nil. begin is
// what was read. The error is ErrNone, or that of r.
func Read(r io.Reader) (begin []byte, names *Names, err error) {
	buf := make([]byte, 4<<10)
	n, err := r.Read(buf)
	begin = buf[:n]
	if n == 0 {
		if err == io.EOF {
			return nil, nil, nil
		}
		return nil, nil, err
	}
	// A TLS record: a type from 20 on, of which 22 is a handshake, version 3.x. One
	// byte is enough to wait for more: a client may send them one by one.
	const first, handshake, last, major = 20, 22, 24, 3
	if begin[0] < first || begin[0] > last {
		return begin, nil, nil
	}
	for len(begin) < 2 && err == nil {
		n, err = r.Read(buf[len(begin):])
		begin = buf[:len(begin)+n]
	}
	if len(begin) < 2 || begin[1] != major {
		return begin, nil, nil
	}
	if begin[0] != handshake {
		return nil, nil, ErrNone
	}
	rec := &recorder{from: io.LimitReader(io.MultiReader(bytes.NewReader(begin), r), Max)}
	tls.Server(rec, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		names = &Names{h.ServerName}
		return nil, errRead
	}}).Handshake()
	if names == nil {
		return nil, nil, ErrNone
	}
	// What was read of begin beyond the ClientHello is in it too.
	all := rec.got.Bytes()
	if len(all) < len(begin) {
		all = begin
	}
	return all, names, nil
}

// recorder is a connection that records what is read, and discards what is written.
type recorder struct {
	net.Conn
	from io.Reader
	got  bytes.Buffer
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.got.Write(p[:n])
	return n, err
}

func (r *recorder) Write(p []byte) (int, error)    { return len(p), nil }
func (*recorder) SetDeadline(time.Time) error      { return nil }
func (*recorder) SetReadDeadline(time.Time) error  { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }
func (*recorder) Close() error                     { return nil }
