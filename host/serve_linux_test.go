package host_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// A daemon of which one part cannot go on ends whole, and says why.
func TestServeEndsWithAnyPart(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"tools.d", "root"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := config.Config{
		Tools: filepath.Join(dir, "tools.d"), State: filepath.Join(dir, "state"), Roots: []string{filepath.Join(dir, "root")},
		Socket: filepath.Join(dir, "tool.sock"), ShutdownGrace: 1, Metrics: freePort(t),
	}
	if err := c.Complete(func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	h, err := host.New(t.Context(), c, &strings.Builder{})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ended, ready := make(chan error, 1), make(chan struct{})
	go func() { ended <- h.Serve(t.Context(), func() error { close(ready); return nil }) }()
	<-ready
	breakListener(t, c.Metrics)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended without a reason")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it goes on without its metrics")
	}
}

// freePort is a TCP address that nobody listens at.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// breakListener makes the listener at a TCP address, which is in this process,
// fail.
func breakListener(t *testing.T, address string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		fd, _ := strconv.Atoi(e.Name())
		addr, err := unix.Getsockname(fd)
		tcp, ok := addr.(*unix.SockaddrInet4)
		if err != nil || !ok || !strings.HasSuffix(address, ":"+strconv.Itoa(tcp.Port)) {
			continue
		}
		if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && listens == 1 {
			if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no descriptor listens at %s", address)
}

// A daemon that lets its last calls finish is alive and not ready.
func TestNotReadyWhileStopping(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "sleep", M{"binary": "/bin/sleep"}, nil)
	get := func(path string) int {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialUnix(d.Admin)}}
		resp, err := c.Get("http://toold" + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if code := get("/readyz"); code != http.StatusOK {
		t.Errorf("ready: %d", code)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ask(t, d.Socket, M{"tool": "sleep", "args": []string{"2"}, "cwd": d.Root})
	}()
	until(t, "the call runs", func() bool { return strings.Contains(adminText(t, d.Admin, "/status"), `"running":1`) })
	stopped := make(chan struct{})
	go func() { defer close(stopped); d.Stop(t) }()
	until(t, "it is not ready", func() bool { return get("/readyz") == http.StatusServiceUnavailable })
	if code := get("/healthz"); code != http.StatusOK {
		t.Errorf("healthy: %d", code)
	}
	<-ended
	<-stopped
}
