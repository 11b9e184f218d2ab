package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// The SDK's client calls a tool over the standard streams of toolctl mcp, which ends
// with it.
func TestMCP(t *testing.T) {
	dir, err := os.MkdirTemp("", "mcp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "mcp.sock")
	d := hosttest.Start(t, config.Config{Sockets: []config.Socket{{Path: path, Protocol: config.ProtocolMCP}}})
	d.Tool(t, "echo", map[string]any{"binary": "echo"}, nil)
	in, toIn := io.Pipe()
	fromOut, out := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(t.Context(), []string{"mcp", "--socket", path, "--cwd", d.Root}, in, out, io.Discard)
		out.Close()
	}()
	s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &sdk.IOTransport{Reader: fromOut, Writer: toIn}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "echo", Arguments: map[string]any{"args": []string{"hello"}}})
	if err != nil || r.IsError || r.Content[0].(*sdk.TextContent).Text != "hello\n" {
		t.Errorf("echo: %v, %v", r, err)
	}
	toIn.Close()
	if got := <-code; got != 0 {
		t.Errorf("toolctl mcp ended with %d", got)
	}
}

func TestMCPConfig(t *testing.T) {
	for client := range mcpClients {
		var out, errs strings.Builder
		if code := run(t.Context(), []string{"mcp", "config", "--client", client, "--socket", "/run/a b.sock"}, nil, &out, &errs); code != 0 || !strings.Contains(out.String(), `"/run/a b.sock"`) {
			t.Errorf("%s: %d, %s%s", client, code, out.String(), errs.String())
		}
	}
}
