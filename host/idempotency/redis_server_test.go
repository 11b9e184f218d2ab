package idempotency

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a real redis-server on its own port, stopped at the end of the test.
type server struct {
	addr string
	port int
	cmd  *exec.Cmd
	*redis.Client

	mu    sync.Mutex
	lines []string      // what it has said; guarded by mu
	more  chan struct{} // closed when there is another line; guarded by mu
	ended bool          // guarded by mu
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// durable is the configuration that a Redis needs.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", "--save", ""}

// startRedis starts a redis-server and waits until it says that it serves.
func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed; make test fetches it")
	}
	s := &server{port: freePort(t), more: make(chan struct{})}
	s.addr = fmt.Sprintf("127.0.0.1:%d", s.port)
	s.cmd = exec.Command(program, append([]string{"--port", fmt.Sprint(s.port), "--bind", "127.0.0.1", "--dir", t.TempDir(), "--repl-diskless-sync-delay", "0"}, args...)...)
	s.start(t)
	s.waitForOutput(t, "Ready to accept connections")
	s.Client = redis.NewClient(&redis.Options{Addr: s.addr})
	t.Cleanup(func() { _ = s.Client.Close() })
	return s
}

func (s *server) start(t testing.TB) {
	t.Helper()
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = s.cmd.Stdout
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.mu.Lock()
			s.lines = append(s.lines, lines.Text())
			close(s.more)
			s.more = make(chan struct{})
			s.mu.Unlock()
		}
		s.mu.Lock()
		s.ended = true
		close(s.more)
		s.mu.Unlock()
	}()
	t.Cleanup(func() {
		s.kill()
		<-read
		_ = s.cmd.Wait()
	})
}

// waitForOutput waits until the server has printed text.
func (s *server) waitForOutput(t testing.TB, text string) {
	t.Helper()
	late := time.After(40 * time.Second)
	for {
		s.mu.Lock()
		all, more, ended := strings.Join(s.lines, "\n"), s.more, s.ended
		s.mu.Unlock()
		if strings.Contains(all, text) {
			return
		}
		if ended {
			t.Fatalf("redis-server ended without saying %q:\n%s", text, all)
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("redis-server did not say %q:\n%s", text, all)
		}
	}
}

// kill sends SIGKILL.
func (s *server) kill() { _ = s.cmd.Process.Kill() }

func (s *server) url(params string) string { return "redis://" + s.addr + "/0" + params }

// openRedisAt makes a store on a server that is closed with the test.
func openRedisAt(t testing.TB, url string) *redisStore {
	t.Helper()
	s, err := openRedis(context.Background(), url, func(id) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
