package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ended is how a process may end a connection after what it sent.
var ended = map[string]func(*net.TCPConn){
	"half": func(c *net.TCPConn) { c.CloseWrite() },
	"exit": func(c *net.TCPConn) { c.Close() },
}

// A request that was sent whole reaches its host whole, though the process has ended
// its side, has gone, or the run is over by then.
func TestSentBeforeTheEnd(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 1<<15) // more than any buffer has at once
	for _, secure := range []bool{true, false} {
		for how, end := range ended {
			for _, over := range []bool{false, true} {
				t.Run(fmt.Sprintf("TLS %v, %s, over %v", secure, how, over), func(t *testing.T) {
					const times = 10
					arrived := make(chan struct{}, times)
					u := newUpstream(t, secure, func(w http.ResponseWriter, r *http.Request) {
						arrived <- struct{}{}
						io.WriteString(w, "done")
					})
					for i := range times {
						s, _, connect, roots := reading(t, u, func(r *Rules) {
							for i := range r.HTTP.Credentials {
								r.HTTP.Credentials[i].Plain = true
							}
						})
						raw, errno := connect(u.address())
						if errno != 0 {
							t.Fatal(errno)
						}
						raw.SetDeadline(time.Now().Add(time.Minute))
						c := raw
						if secure {
							c = tls.Client(raw, &tls.Config{ServerName: "localhost", RootCAs: roots})
						}
						if _, err := fmt.Fprintf(c, "POST /%d HTTP/1.1\r\nHost: localhost:%d\r\nContent-Length: %d\r\n\r\n%s", i, u.address().Port(), len(body), body); err != nil {
							t.Fatal(err)
						}
						end(raw.(*net.TCPConn))
						switch {
						case how == "half" && !over:
							resp, err := http.ReadResponse(bufio.NewReader(c), nil)
							if err != nil {
								t.Fatalf("no answer: %v", err)
							}
							if b, err := io.ReadAll(resp.Body); string(b) != "done" || err != nil {
								t.Errorf("answered %q, %v", b, err)
							}
						case how == "half":
							raw.Close() // as the kernel does
						}
						if over {
							s.Close()
						}
					}
					for i := range times {
						select {
						case <-arrived:
						case <-time.After(20 * time.Second):
							t.Fatalf("the host was asked %d times of %d", i, times)
						}
					}
					for _, line := range u.all() {
						if !strings.HasSuffix(line, fmt.Sprintf("%q", body)) {
							t.Errorf("the host was asked %.80q ... %q", line, line[max(0, len(line)-80):])
						}
					}
				})
			}
		}
	}
}

// Half a request is not sent as a whole one.
func TestHalfARequest(t *testing.T) {
	u := newUpstream(t, true, nil)
	s, _, connect, roots := reading(t, u, nil)
	c := dial(t, u, connect, roots)
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: localhost:%d\r\nContent-Length: 10\r\n\r\nhalf", u.address().Port())
	c.NetConn().(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, c)
	s.Close()
	u.Close() // which waits for what is asked
	for _, line := range u.all() {
		if !strings.Contains(line, "EOF") {
			t.Errorf("it was taken for a whole one: %s", line)
		}
	}
}

// What is passed through arrives whole as well, also where the host talks while nobody
// listens any more.
func TestPassedBeforeTheEnd(t *testing.T) {
	const size = 4 << 20
	for how, end := range ended {
		for _, over := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, over %v", how, over), func(t *testing.T) {
				got, begin := make(chan int, 1), make(chan struct{})
				to := listen(t, func(c *net.TCPConn) {
					io.WriteString(c, "220 hello\r\n") // which is never read
					<-begin
					n := 0
					for b := make([]byte, 64<<10); ; {
						k, err := c.Read(b)
						n += k
						if err != nil {
							break
						}
						c.Write([]byte("more of it\r\n"))
					}
					got <- n
				})
				s, connect := start(t, nil, to.String())
				c, errno := connect(to)
				if errno != 0 {
					t.Fatal(errno)
				}
				c.SetDeadline(time.Now().Add(time.Minute))
				c.(*net.TCPConn).SetWriteBuffer(size)
				go close(begin)
				if _, err := c.Write(bytes.Repeat([]byte("0123456789abcdef"), size/16)); err != nil {
					t.Fatal(err)
				}
				// Its own kernel would throw away what is unsent, were something unread.
				deliver(t.Context(), c.(*net.TCPConn), true)
				end(c.(*net.TCPConn))
				if how == "half" && over {
					c.Close()
				}
				if over {
					s.Close()
				}
				if n := <-got; n != size {
					t.Errorf("%d bytes arrived of %d", n, size)
				}
				c.Close()
			})
		}
	}
}

// What has left a process before it breaks its connection off arrives, also if the
// host was slow and nobody reads what it says.
func TestBrokenOff(t *testing.T) {
	for how, end := range map[string]func(*net.TCPConn){"reset": reset, "exit": func(c *net.TCPConn) { c.Close() }} {
		t.Run(how, func(t *testing.T) {
			got, begin := make(chan int, 1), make(chan struct{})
			to := listen(t, func(c *net.TCPConn) {
				<-begin
				n := 0
				for b := make([]byte, 256<<10); ; {
					k, err := c.Read(b)
					if n += k; err != nil {
						break
					}
					c.Write([]byte("more of it\r\n"))
				}
				got <- n
			})
			_, connect := start(t, nil, to.String())
			conn, errno := connect(to)
			if errno != 0 {
				t.Fatal(errno)
			}
			c := conn.(*net.TCPConn)
			raw, err := c.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			written, left := 0, -1
			for again := time.NewTicker(20 * time.Millisecond); ; <-again.C { // until nothing moves any more
				before, unsent := written, 0
				raw.Control(func(fd uintptr) {
					for b := make([]byte, 64<<10); ; {
						n, err := unix.Write(int(fd), b)
						if err != nil {
							break
						}
						written += n
					}
					unsent, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
				})
				if err != nil {
					t.Fatal(err)
				}
				if unsent == left && written == before {
					break
				}
				left = unsent
			}
			end(c)
			close(begin)
			if n := <-got; n < written-left {
				t.Errorf("%d bytes arrived of %d", n, written-left)
			}
		})
	}
}

// What goes over a counted connection is counted also where io.Copy could go around it,
// as net/http does with the body of a request.
func TestCountedCopies(t *testing.T) {
	one, other := connected(t)
	defer one.Close()
	defer other.Close()
	c := &counted{one, new(traffic)}
	text := strings.Repeat("x", 10000)
	if _, err := io.Copy(c, struct{ io.Reader }{strings.NewReader(text)}); err != nil {
		t.Fatal(err)
	}
	if n := c.sent.Load(); n != int64(len(text)) {
		t.Errorf("%d bytes of %d are counted as sent", n, len(text))
	}
	io.WriteString(other, text)
	other.CloseWrite()
	if _, err := io.Copy(struct{ io.Writer }{io.Discard}, c); err != nil {
		t.Fatal(err)
	}
	if n := c.received.Load(); n != int64(len(text)) {
		t.Errorf("%d bytes of %d are counted as received", n, len(text))
	}
}
