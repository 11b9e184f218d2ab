package mcp_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/mcp"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

type object = map[string]any

// daemon starts a daemon with these tools and a socket for MCP, and returns the
// socket's path.
func daemon(t *testing.T, c config.Config, tools map[string]object) (*hosttest.Daemon, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mcp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "mcp.sock")
	c.Tools = filepath.Join(dir, "tools.d")
	if err := os.Mkdir(c.Tools, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, def := range tools {
		hosttest.WriteTool(t, c.Tools, name, def, nil)
	}
	c.Sockets = append(c.Sockets, config.Socket{Path: path, Protocol: config.ProtocolMCP})
	return hosttest.Start(t, c), path
}

// bound ends what takes longer than any test should.
func bound(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// connect connects the SDK's own client to the socket, as who.
func connect(t testing.TB, path string, who mcp.Caller, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(bound(t), dial(t, path, who), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

// dial connects to the socket, and says who calls.
func dial(t testing.TB, path string, who mcp.Caller) *sdk.IOTransport {
	t.Helper()
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	hello, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": mcp.MethodCaller, "params": who})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Write(append(hello, '\n')); err != nil {
		t.Fatal(err)
	}
	return &sdk.IOTransport{Reader: nc, Writer: nc}
}

func names(t testing.TB, s *sdk.ClientSession) []string {
	t.Helper()
	var list []string
	for tool, err := range s.Tools(bound(t), nil) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, tool.Name)
	}
	return list
}

// text is all text of a result.
func text(r *sdk.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		b.WriteString(c.(*sdk.TextContent).Text)
	}
	return b.String()
}

func invoke(t testing.TB, s *sdk.ClientSession, tool string, args any) *sdk.CallToolResult {
	t.Helper()
	r, err := s.CallTool(bound(t), &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestListAndCall(t *testing.T) {
	d, path := daemon(t, config.Config{}, map[string]object{
		"echo":  {"binary": "echo", "description": "says it again"},
		"false": {"binary": "false"},
		"cat": {"binary": "cat", "schema": object{
			"type": "object", "required": []string{"args"}, "additionalProperties": false,
			"properties": object{"args": object{"type": "array", "items": object{"type": "string"}, "maxItems": 1}},
		}},
	})
	s := connect(t, path, mcp.Caller{Cwd: d.Root}, nil)
	if got, want := names(t, s), []string{"cat", "echo", "false"}; !slices.Equal(got, want) {
		t.Fatalf("tools: %q, want %q", got, want)
	}
	if r := invoke(t, s, "echo", object{"args": []string{"hello", "you"}}); r.IsError || text(r) != "hello you\n" {
		t.Errorf("echo: %q, error %v", text(r), r.IsError)
	}
	if r := invoke(t, s, "false", object{"args": []string{}}); !r.IsError || !strings.Contains(text(r), "exit code 1") {
		t.Errorf("false: %q, error %v", text(r), r.IsError)
	}
	if r := invoke(t, s, "cat", object{"args": []string{"a", "b"}}); !r.IsError || !strings.Contains(text(r), "INVALID_PAYLOAD") {
		t.Errorf("a payload against the schema: %q, error %v", text(r), r.IsError)
	}
	if r := invoke(t, s, "nothere", object{}); !r.IsError || !strings.Contains(text(r), "UNKNOWN_TOOL") {
		t.Errorf("no such tool: %q, error %v", text(r), r.IsError)
	}
	if r := invoke(t, s, "tools.list", object{}); !r.IsError || !strings.Contains(text(r), "UNKNOWN_TOOL") {
		t.Errorf("an operation that is no tool: %q, error %v", text(r), r.IsError)
	}
}

var _ = client.ErrNoDaemon
