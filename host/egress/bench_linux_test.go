package egress

import (
	"bufio"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/toold/toold/host/mask"
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

// BenchmarkPack is a pack of 1 GiB (TOOLD_PACK_MIB), straight over TLS, passed through, through a hop that
// only ends TLS and begins it again, and read with a credential, as git fetches it and as
// it pushes it: all in turn, medians. The hop is what is possible where requests are
// read: two more ends of TLS on the same cores, a plain io.Copy between them.
// "grown-MB" is how much memory this process, which is all three parties, has more
// than before.
func BenchmarkPack(b *testing.B) {
	size := 1 << 30
	if s := os.Getenv("TOOLD_PACK_MIB"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			b.Fatal(err)
		}
		size = n << 20
	}
	chunk := make([]byte, 64<<10)
	rand.Read(chunk)
	u := &upstream{}
	u.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, len(chunk)))
			fmt.Fprint(w, n)
			return
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		for sent := 0; sent < size; sent += len(chunk) {
			w.Write(chunk)
		}
	}))
	b.Cleanup(u.Close)
	host := fmt.Sprintf("localhost:%d", u.address().Port())
	open := map[string]func() (io.ReadWriteCloser, func()){
		"straight": func() (io.ReadWriteCloser, func()) {
			c, err := tls.Dial("tcp", u.address().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
			if err != nil {
				b.Fatal(err)
			}
			return c, func() { c.Close() }
		},
		"passed": func() (io.ReadWriteCloser, func()) {
			s, connect := start(b, nil, host)
			raw, errno := connect(u.address())
			if errno != 0 {
				b.Fatal(errno)
			}
			c := tls.Client(raw, &tls.Config{ServerName: "localhost", InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
			return c, func() { c.Close(); s.Close() }
		},
		"read": func() (io.ReadWriteCloser, func()) {
			s, _, connect, roots := reading(b, u, func(r *Rules) {
				r.HTTP.MaskBody = mask.Covering([][]byte{[]byte(token)})
			})
			c := dial(b, u, connect, roots)
			c.SetDeadline(time.Time{})
			return c, func() { c.Close(); s.Close() }
		},
	}
	hop := plainHop(b, u)
	open["hop"] = func() (io.ReadWriteCloser, func()) {
		c, err := tls.Dial("tcp", hop, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err != nil {
			b.Fatal(err)
		}
		return c, func() { c.Close() }
	}
	once := map[string]func(c io.ReadWriteCloser){
		"fetch": func(c io.ReadWriteCloser) {
			fmt.Fprintf(c, "GET /r/git-upload-pack HTTP/1.1\r\nHost: %s\r\n\r\n", host)
			resp, err := http.ReadResponse(bufio.NewReaderSize(c, len(chunk)), nil)
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, len(chunk))); n < int64(size) || err != nil {
				b.Fatal(n, err)
			}
		},
		"push": func(c io.ReadWriteCloser) {
			fmt.Fprintf(c, "POST /r/x HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n", host)
			buffered := bufio.NewWriterSize(c, 2*len(chunk))
			body := httputil.NewChunkedWriter(buffered)
			for sent := 0; sent < size; sent += len(chunk) {
				if _, err := body.Write(chunk); err != nil {
					b.Fatal(err)
				}
				buffered.Flush()
			}
			body.Close()
			fmt.Fprint(buffered, "\r\n")
			buffered.Flush()
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				b.Fatal(err)
			}
			if n, _ := io.ReadAll(resp.Body); string(n) != fmt.Sprint(size) {
				b.Fatalf("%s", n)
			}
		},
	}
	for _, way := range []string{"fetch", "push"} {
		b.Run(way, func(b *testing.B) {
			took := map[string][]float64{}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for b.Loop() {
				for _, how := range []string{"straight", "passed", "hop", "read"} {
					c, end := open[how]()
					start := time.Now()
					once[way](c)
					took[how] = append(took[how], time.Since(start).Seconds())
					end()
				}
			}
			runtime.ReadMemStats(&after)
			median := func(how string) float64 { slices.Sort(took[how]); return took[how][len(took[how])/2] }
			for _, how := range []string{"straight", "passed", "hop", "read"} {
				b.ReportMetric(float64(size)/median(how)/1e6, how+"-MB/s")
			}
			b.ReportMetric(median("straight")/median("passed"), "passed-ratio")
			b.ReportMetric(median("straight")/median("hop"), "hop-ratio")
			b.ReportMetric(median("straight")/median("read"), "read-ratio")
			b.ReportMetric(median("hop")/median("read"), "read-of-hop")
			b.ReportMetric(float64(int64(after.Sys)-int64(before.Sys))/1e6, "grown-MB")
			b.ReportMetric(0, "ns/op") // of all together: says nothing
		})
	}
}

// plainHop ends TLS and copies what comes to u, over TLS, and back.
func plainHop(b *testing.B, u *upstream) (address string) {
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: u.TLS.Certificates, NextProtos: []string{"http/1.1"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			local, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer local.Close()
				remote, err := tls.Dial("tcp", u.address().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
				if err != nil {
					return
				}
				go func() {
					io.CopyBuffer(struct{ io.Writer }{remote}, struct{ io.Reader }{local}, make([]byte, copySize))
					remote.CloseWrite()
				}()
				io.CopyBuffer(struct{ io.Writer }{local}, struct{ io.Reader }{remote}, make([]byte, copySize))
				remote.Close()
			}()
		}
	}()
	return l.Addr().String()
}
