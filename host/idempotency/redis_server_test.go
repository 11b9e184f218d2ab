package idempotency

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a real redis-server on a port of its own, gone with the test.
type server struct {
	addr string
	port int
	dir  string
	cmd  *exec.Cmd
	*redis.Client
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

// durable is how a Redis has to be configured.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", "--save", ""}

// startRedis starts a redis-server and waits until it says that it serves.
func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed; make test fetches it")
	}
	s := &server{port: freePort(t), dir: t.TempDir()}
	s.addr = fmt.Sprintf("127.0.0.1:%d", s.port)
	s.run(t, program, append([]string{"--port", fmt.Sprint(s.port), "--bind", "127.0.0.1", "--dir", s.dir}, args...), "Ready to accept connections")
	s.Client = redis.NewClient(&redis.Options{Addr: s.addr})
	t.Cleanup(func() { _ = s.Client.Close() })
	return s
}

func (s *server) run(t testing.TB, program string, args []string, until string) {
	t.Helper()
	s.cmd = exec.Command(program, args...)
	s.cmd.Env = append(os.Environ(), "TZ=UTC")
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = s.cmd.Stdout
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.kill() })
	said := make(chan string, 1)
	go func() {
		var all strings.Builder
		told := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !told {
				fmt.Fprintln(&all, lines.Text())
			}
			if !told && strings.Contains(lines.Text(), until) {
				told = true
				said <- ""
			}
		}
		if !told {
			said <- all.String()
		}
	}()
	select {
	case text := <-said:
		if text != "" {
			t.Fatalf("%s ended:\n%s", program, text)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("%s did not say %q", program, until)
	}
}

// kill is kill -9.
func (s *server) kill() {
	if s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

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
