package server_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/wire"
)

func TestSmoke(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	if p := os.Getenv("SMOKE"); p != "" {
		path = p
	}
	s, err := server.Listen(server.Config{Path: path, Handler: func(ctx context.Context, c *wire.Call, p server.Peer, s server.Streams) *wire.Result {
		if c.Stream {
			n, err := io.Copy(s.Stdout, s.Stdin())
			t.Log(n, err)
			return &wire.Result{Ran: true, ExitCode: 3, Stdout: []byte("rest")}
		}
		return &wire.Result{Ran: true, Stdout: []byte(strings.Join(c.Args, " "))}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	if os.Getenv("SMOKE") != "" {
		<-done
	}
	r, err := client.Call(ctx, path, &wire.Call{Tool: "x", Args: []string{"a", "b"}})
	if err != nil || string(r.Stdout) != "a b" {
		t.Fatal(r, err)
	}
	var out bytes.Buffer
	in := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	r, err = client.Stream(ctx, path, &wire.Call{Tool: "x", Args: []string{"a", strings.Repeat("b", 200000)}}, wire.Local{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: io.Discard})
	if err != nil || r.ExitCode != 3 {
		t.Fatal(r, err)
	}
	if out.String() != string(in)+"rest" {
		t.Fatal(out.Len())
	}
	cancel()
	if err := s.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	es, _ := os.ReadDir(filepath.Dir(path))
	if len(es) > 0 {
		t.Fatal(es)
	}
}
