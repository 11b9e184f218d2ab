package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

var (
	errRefused = errors.New("refused")
	errNoHello = errors.New("no ClientHello can be read")
	errRead    = errors.New("read")
)

// maxHello bounds a ClientHello. Those with a post-quantum key have two kilobytes.
const maxHello = 64 << 10

type helloNames struct{ serverName string }

// readHello reads the beginning of what comes from r. Where that is TLS, it reads
// a whole ClientHello, and names is what it names; otherwise names is nil. begin is
// what was read. errNoHello is for what begins as TLS and is none.
func readHello(r io.Reader) (begin []byte, names *helloNames, err error) {
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
		return nil, nil, errNoHello
	}
	rec := &recorder{from: io.LimitReader(io.MultiReader(bytes.NewReader(begin), r), maxHello)}
	tls.Server(rec, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		names = &helloNames{h.ServerName}
		return nil, errRead
	}}).Handshake()
	if names == nil {
		return nil, nil, errNoHello
	}
	// What was read of begin beyond the ClientHello is in it too.
	all := rec.got.Bytes()
	if len(all) < len(begin) {
		all = begin
	}
	return all, names, nil
}

// recorder is a connection that keeps what is read, and writes nothing.
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

func sameName(a, b string) bool {
	return strings.EqualFold(strings.TrimSuffix(a, "."), strings.TrimSuffix(b, "."))
}

func quote(s string) string { return strconv.Quote(s) }
