package main

import (
	"encoding/json"
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

// What is wrong with a socket is said, with what to do, and nothing of it is taken for an
// answer of MCP.
func TestMCPSockets(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	file := filepath.Join(t.TempDir(), "no")
	in, keep := io.Pipe()
	defer keep.Close()
	for socket, want := range map[string]string{
		"":       "TOOL_MCP_SOCKET",
		file:     `no daemon answers at ` + file + `; start toold with {"path": `,
		d.Socket: d.Socket + ` is no socket for MCP; name the one with "protocol": "mcp"`,
	} {
		var out, errs strings.Builder
		if code := run(t.Context(), []string{"mcp", "--socket", socket}, in, &out, &errs); code == 0 || out.Len() > 0 || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: %d, %q, %q", socket, code, out.String(), errs.String())
		}
	}
}

func TestMCPConfig(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	var relative strings.Builder
	if code := run(t.Context(), []string{"mcp", "config", "--client", "codex", "--socket", "a.sock"}, nil, &relative, io.Discard); code != 0 || !strings.Contains(relative.String(), `"`+filepath.Join(dir, "a.sock")+`"`) {
		t.Errorf("a socket of this folder: %d, %s", code, relative.String())
	}
	for client := range mcpClients {
		var out, errs strings.Builder
		if code := run(t.Context(), []string{"mcp", "config", "--client", client, "--socket", "/run/a b.sock"}, nil, &out, &errs); code != 0 || !strings.Contains(out.String(), `"/run/a b.sock"`) {
			t.Errorf("%s: %d, %s%s", client, code, out.String(), errs.String())
		}
	}
}

// What --write does to a client's file: the server is in it, all else stays as it was and
// where it was, and a file that cannot be changed so is left alone.
func TestMCPConfigWrite(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Chdir(t.TempDir())
	write := func(want int, client string, more ...string) string {
		t.Helper()
		var out, errs strings.Builder
		if code := run(t.Context(), append([]string{"mcp", "config", "--client", client, "--socket", "/run/a b.sock", "--write"}, more...), nil, &out, &errs); code != want {
			t.Errorf("%s: %d, %s%s", client, code, out.String(), errs.String())
		}
		return out.String() + errs.String()
	}
	read := func(file string) string {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	put := func(file, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	for client, file := range map[string]string{
		"claude-code": ".mcp.json", "cursor": ".cursor/mcp.json", "vscode": ".vscode/mcp.json",
		"windsurf": filepath.Join(home, ".codeium/windsurf/mcp_config.json"), "codex": filepath.Join(home, ".codex/config.toml"),
	} {
		write(0, client)
		if first := read(file); !strings.Contains(first, `"/run/a b.sock"`) || write(0, client) != "nothing to change in "+file+"\n" || read(file) != first {
			t.Errorf("%s: %s", client, first)
		}
	}
	// What is there stays.
	servers := map[string]string{"claude-code": "mcpServers", "vscode": "servers"}
	for client, member := range servers {
		file := "own-" + client
		put(file, `{"z": 1e400, "`+member+`": {"other": {"url": "x", "n": 12345678901234567890}, "toold": {"command": "old"}, "last": {}}, "a": [1, 2]}`, 0o600)
		write(0, client, "--file", file)
		var got struct {
			Z json.RawMessage
		}
		text := read(file)
		if err := json.Unmarshal([]byte(text), &got); err != nil || string(got.Z) != "1e400" || !strings.Contains(text, "12345678901234567890") || strings.Contains(text, `"old"`) {
			t.Errorf("%s: %v, %s", client, err, text)
		}
		order := []string{`"z"`, member, `"other"`, `"toold"`, `"last"`, `"a"`}
		for i := 1; i < len(order); i++ {
			if strings.Index(text, order[i-1]) > strings.Index(text, order[i]) {
				t.Errorf("%s is not before %s: %s", order[i-1], order[i], text)
			}
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info.Mode(), err)
		}
	}
	put("config.toml", "model = \"x\" # mine\n[mcp_servers.other]\ncommand = \"y\"\n", 0o600)
	write(0, "codex", "--file", "config.toml")
	if text := read("config.toml"); !strings.HasPrefix(text, "model = \"x\" # mine\n[mcp_servers.other]\ncommand = \"y\"\n\n[mcp_servers.toold]\ncommand = ") {
		t.Errorf("codex: %s", text)
	}
	// A file that is a link stays one.
	put("real.json", "{}", 0o644)
	if err := os.Symlink("real.json", "link.json"); err != nil {
		t.Fatal(err)
	}
	write(0, "cursor", "--file", "link.json")
	if to, err := os.Readlink("link.json"); err != nil || to != "real.json" || !strings.Contains(read("real.json"), "toold") {
		t.Errorf("%q, %v, %s", to, err, read("real.json"))
	}
	for text, client := range map[string]string{
		"{ // a comment\n}": "vscode", `{"servers": []}`: "vscode", `{"a": 1, "a": 2}`: "cursor", `[]`: "windsurf", `{"mcpServers": {}`: "claude-code",
		"mcp_servers = {}\n": "codex", "[mcp_servers.toold]\ncommand = \"mine\"\n": "codex", "[mcp_servers]\ntoold.command = 1\n": "codex", "mcp_servers.\"toold\".command = \"x\"\n": "codex",
	} {
		put("broken", text, 0o644)
		if said := write(1, client, "--file", "broken"); !strings.Contains(said, "it is as it was") || read("broken") != text {
			t.Errorf("%s: %s: %s", client, said, read("broken"))
		}
	}
}
