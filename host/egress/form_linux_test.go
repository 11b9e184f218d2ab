package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/form"
	"github.com/toold/toold/host/trust"
	"github.com/toold/toold/pdk/abi"
)

// Where a policy judges requests, a form with another method in it does not arrive
// whole.
func TestFormsAreJudged(t *testing.T) {
	u := newUpstream(t, true, nil)
	_, _, connect, roots := reading(t, u, func(r *Rules) { r.Ask = func(context.Context, *abi.Wire) error { return nil } })
	for body, want := range map[string]int{"a=b": 200, "a=b&_method=DELETE": 400, strings.Repeat("a=b&", 1<<18) + "_method=DELETE": 400} {
		c := dial(t, u, connect, roots)
		go fmt.Fprintf(c, "POST /form HTTP/1.1\r\nHost: localhost:%d\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s", u.address().Port(), len(body), body)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%.20q: %v, %v", body, resp, err)
		}
		c.Close()
	}
	for _, line := range u.all() {
		if strings.Contains(line, form.Overridden) || !strings.HasSuffix(line, `"a=b"`) && !strings.Contains(line, "EOF") {
			t.Errorf("the host was asked %.200s", line)
		}
	}
}

// A host that gets a credential is reached by its name only: by an address of it, or by
// another name, requests get none, and where a policy judges they do not arrive.
func TestCredentialByAnotherName(t *testing.T) {
	const secret = "secret.example"
	for _, judged := range []bool{false, true} {
		for _, sni := range []string{secret, "", "localhost"} {
			for _, by := range []string{"address", "name"} {
				t.Run(fmt.Sprintf("judged %v, %q by %s", judged, sni, by), func(t *testing.T) {
					u := newUpstream(t, true, nil)
					port := u.address().Port()
					at := fmt.Sprintf("%s:%d", secret, port)
					s, _, connect, roots := reading(t, u, func(r *Rules) {
						r.Hosts = []string{"*", at, fmt.Sprintf("127.0.0.1:%d", port)}
						if by == "name" {
							r.Hosts[2] = fmt.Sprintf("localhost:%d", port)
						}
						r.HTTP.Hosts = []string{at}
						r.HTTP.Credentials = []Credential{{Host: at, Header: "Authorization", Value: token}}
						r.HTTP.Authority, _ = trust.NewAuthority([]string{"*"})
						if judged {
							r.HTTP.Hosts = r.Hosts
							r.Ask = func(context.Context, *abi.Wire) error { return nil }
						}
					})
					roots.AppendCertsFromPEM(s.rules.HTTP.Authority.PEM())
					raw, errno := connect(u.address())
					if errno != 0 {
						t.Fatal(errno)
					}
					defer raw.Close()
					c := tls.Client(raw, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
					fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", at)
					answer, _ := io.ReadAll(c)
					for _, line := range u.all() {
						if strings.Contains(line, "sesame") || judged {
							t.Errorf("the host was asked %s", line)
						}
					}
					if judged && len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 421 ") {
						t.Errorf("%.100s", answer)
					}
				})
			}
		}
	}
}

// Who sends a head, or a handshake, a byte at a time is heard for headTime at most.
func TestSlowHeads(t *testing.T) {
	for name, begin := range map[string]string{"head": "GET / HTTP/1.1\r\nX: ", "handshake": "\x16\x03\x01\x02\x00"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				r := &run{rules: Rules{HTTP: &HTTP{}}, ctx: t.Context(), rest: t.Context()}
				x := &requests{hostSide: &hostSide{pair: &pair{run: r, connection: &Connection{Host: "h", Port: 443}}, ctx: t.Context()}}
				done, start := make(chan struct{}), time.Now()
				go func() {
					defer close(done)
					if name == "handshake" {
						if x.greet(ours) != nil {
							t.Error("it is taken for a handshake")
						}
						ours.Close()
						return
					}
					serve(ours, x)
				}()
				var process sync.WaitGroup
				process.Go(func() { io.Copy(io.Discard, theirs) })
				process.Go(func() {
					_, err := io.WriteString(theirs, begin)
					for err == nil {
						time.Sleep(5 * time.Second)
						_, err = theirs.Write([]byte("a"))
					}
				})
				<-done
				if took := time.Since(start); took > headTime {
					t.Errorf("it was heard for %v", took)
				}
				theirs.Close()
				process.Wait()
			})
		})
	}
}
