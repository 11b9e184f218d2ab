package egress

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// BenchmarkThroughput is the bytes that a host sends, straight, passed through, and
// read, with TLS in the last.
func BenchmarkThroughput(b *testing.B) {
	const size = 200 << 20
	chunk := make([]byte, 1<<20)
	send := func(w io.Writer) {
		for sent := 0; sent < size; sent += len(chunk) {
			w.Write(chunk)
		}
	}
	receive := func(b *testing.B, c io.Reader) {
		buf := make([]byte, 64<<10)
		n := 0
		for n < size {
			k, err := c.Read(buf)
			if n += k; err != nil {
				b.Fatal(n, err)
			}
		}
	}
	b.Run("straight", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			to := listen(b, func(c *net.TCPConn) { send(c) })
			c, err := net.Dial("tcp", to.String())
			if err != nil {
				b.Fatal(err)
			}
			receive(b, c)
			c.Close()
		}
	})
	b.Run("passed", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			to := listen(b, func(c *net.TCPConn) { send(c) })
			_, connect := start(b, nil, to.String())
			c, errno := connect(to)
			if errno != 0 {
				b.Fatal(errno)
			}
			receive(b, c)
			c.Close()
		}
	})
	u := newUpstream(b, true, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(size))
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		send(w)
	})
	request := func() string { return fmt.Sprintf("GET / HTTP/1.1\r\nHost: localhost:%d\r\n\r\n", u.address().Port()) }
	b.Run("straight TLS", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			c, err := tls.Dial("tcp", u.address().String(), &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				b.Fatal(err)
			}
			io.WriteString(c, request())
			receive(b, c)
			c.Close()
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			_, _, connect, roots := reading(b, u, nil)
			c := dial(b, u, connect, roots)
			io.WriteString(c, request())
			receive(b, c)
			c.Close()
		}
	})
}
