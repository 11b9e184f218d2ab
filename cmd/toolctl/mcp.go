package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/strictjson"
)

func mcpVerb(s *state) *cobra.Command {
	var o mcpOptions
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Connect a client of the Model Context Protocol over standard input and output",
		Long: `Connect a client of the Model Context Protocol (MCP), which starts this command and
speaks over its standard input and output, with a running daemon. The daemon serves
MCP on a socket that toold.json names with "protocol": "mcp"; give its path with
--socket or TOOL_MCP_SOCKET.

Who calls is the user of this process, or the token. Tools work in the current
folder where a call names no other. The command ends with its client.`,
		Example: `  toolctl mcp --socket /run/toold/mcp.sock
  toolctl mcp config --client claude-code --socket /run/toold/mcp.sock`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			socket, err := o.socket(s)
			if err != nil {
				return err
			}
			caller := client.MCPCaller{Session: first(o.session, os.Getenv("TOOL_SESSION")), Token: os.Getenv("TOOL_TOKEN"), Cwd: o.cwd}
			if file := first(o.tokenFile, os.Getenv("TOOL_TOKEN_FILE")); file != "" && (caller.Token == "" || o.tokenFile != "") {
				if caller.Token, err = s.readToken(file); err != nil {
					return err
				}
			}
			if caller.Cwd == "" {
				if caller.Cwd, err = os.Getwd(); err != nil {
					return fmt.Errorf("find the current folder: %w; change to one that exists, or name one with --cwd", err)
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return client.MCP(ctx, socket, caller, s.in, s.out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.session, "session", "", "the session that calls belong to (default $TOOL_SESSION)")
	f.StringVar(&o.tokenFile, "token-file", "", "a file with the caller's token (default $TOOL_TOKEN, $TOOL_TOKEN_FILE)")
	f.StringVar(&o.cwd, "cwd", "", "the folder to call from (default this one)")
	cmd.AddCommand(o.configVerb(s))
	return cmd
}

type mcpOptions struct{ session, tokenFile, cwd string }

func (o *mcpOptions) socket(s *state) (string, error) {
	socket := first(s.flags.Socket, os.Getenv("TOOL_MCP_SOCKET"))
	if socket == "" {
		return "", usageError{errors.New(`which socket? name the one with "protocol": "mcp" in toold.json with --socket or TOOL_MCP_SOCKET`)}
	}
	return socket, nil
}

// mcpServer is the command with which a client starts toolctl mcp.
type mcpServer struct {
	Type    string   `json:"type,omitempty"`
	Command string   `json:"command"`
	Args    []string `json:"args"`
}

// mcpName is the name of the server in configuration files.
const mcpName = "toold"

// mcpClients lists how clients configure a server, according to their documentation.
var mcpClients = map[string]struct {
	where string
	// file is the file to write, relative to the current folder, or with ~ to the home folder.
	file string
	// servers is the member of the file that holds the servers; empty for TOML.
	servers, kind string
}{
	"claude-code": {".mcp.json of a project", ".mcp.json", "mcpServers", "stdio"},
	"cursor":      {".cursor/mcp.json of a project, or ~/.cursor/mcp.json", ".cursor/mcp.json", "mcpServers", "stdio"},
	"vscode":      {".vscode/mcp.json of a workspace", ".vscode/mcp.json", "servers", "stdio"},
	"windsurf":    {"~/.codeium/windsurf/mcp_config.json", "~/.codeium/windsurf/mcp_config.json", "mcpServers", ""},
	"codex":       {"~/.codex/config.toml, or .codex/config.toml of a trusted project", "~/.codex/config.toml", "", ""},
}

// tomlServer returns the table of the server for a TOML configuration.
func tomlServer(m mcpServer) string {
	list := make([]string, len(m.Args))
	for i, a := range m.Args {
		list[i] = tomlText(a)
	}
	return fmt.Sprintf("[mcp_servers.%s]\ncommand = %s\nargs = [%s]\n", mcpName, tomlText(m.Command), strings.Join(list, ", "))
}

// tomlText returns a TOML basic string: JSON's escapes are a subset of its own.
func tomlText(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// inTOML returns text with the server added. An existing entry is not changed: TOML has many ways to write the same
// thing, and comments.
func inTOML(text []byte, m mcpServer) ([]byte, error) {
	table := tomlServer(m)
	if bytes.Contains(append([]byte("\n"), text...), []byte("\n"+table)) {
		return text, nil
	}
	if mcpInTOML.Match(text) {
		return nil, errors.New("it has servers in another form already; put this there by hand:\n" + table)
	}
	if len(text) > 0 {
		text = append(bytes.TrimRight(text, "\n"), "\n\n"...)
	}
	return append(text, table...), nil
}

// mcpInTOML matches a server of that name, or servers that are not tables of their own.
var mcpInTOML = regexp.MustCompile(`(?m)^\s*(\[\s*)?["']?mcp_servers["']?\s*(=|\]|\.\s*["']?` + mcpName + `\b)`)

// inJSON returns text with the server added to its servers, and everything else unchanged and in order.
func inJSON(text []byte, servers string, m mcpServer) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}")
	}
	one, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	there := []byte("{}")
	if err := strictjson.Members(text, func(name, value []byte) {
		if string(name) == servers {
			there = bytes.Clone(value)
		}
	}); err != nil {
		return nil, err
	}
	if there, err = withMember(there, mcpName, one); err != nil {
		return nil, fmt.Errorf("/%s: %w", servers, err)
	}
	if text, err = withMember(text, servers, there); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, err
	}
	return append(out.Bytes(), '\n'), nil
}

// withMember returns an object with the member replaced in place, or appended if it is new.
func withMember(object []byte, name string, value []byte) ([]byte, error) {
	var out bytes.Buffer
	found := false
	add := func(name string, value []byte) {
		if out.Len() > 0 {
			out.WriteByte(',')
		}
		key, _ := json.Marshal(name)
		out.Write(key)
		out.WriteByte(':')
		out.Write(value)
	}
	err := strictjson.Members(object, func(n, v []byte) {
		if string(n) == name {
			found, v = true, value
		}
		add(string(n), v)
	})
	if err != nil {
		return nil, err
	}
	if !found {
		add(name, value)
	}
	return fmt.Appendf(nil, "{%s}", out.Bytes()), nil
}

// writeMCP adds the server to a client's file, which is replaced atomically.
func writeMCP(file, servers string, m mcpServer) (changed bool, err error) {
	mode := os.FileMode(0o644)
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	was, err := os.ReadFile(file)
	if info, e := os.Stat(file); e == nil {
		mode = info.Mode().Perm()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read the client's configuration: %w", err)
	}
	var now []byte
	if servers == "" {
		now, err = inTOML(bytes.Clone(was), m)
	} else {
		now, err = inJSON(was, servers, m)
	}
	if err != nil {
		return false, fmt.Errorf("change %s: %w; it is as it was: leave --write out, and put in what is printed", file, err)
	}
	if bytes.Equal(was, now) {
		return false, nil
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("make the folder of the client's configuration: %w", err)
	}
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(file)+"-*")
	if err != nil {
		return false, fmt.Errorf("write the client's configuration: %w", err)
	}
	defer os.Remove(tmp.Name()) // if it was not renamed
	_, err = tmp.Write(now)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return false, fmt.Errorf("write the client's configuration: %w", err)
	}
	return true, nil
}

func (o *mcpOptions) configVerb(s *state) *cobra.Command {
	var name, file string
	var write bool
	known := strings.Join(slices.Sorted(maps.Keys(mcpClients)), ", ")
	cmd := &cobra.Command{
		Use:   "config --client CLIENT",
		Short: "Print or write what a client's configuration needs to start toolctl mcp",
		Long: `Print what the configuration of a client needs to start toolctl mcp, and on standard
error which file it belongs in. With --write it is put into that file, beneath the
current folder or the home folder; all else in the file stays. Clients: ` + known + `.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			to, ok := mcpClients[name]
			if !ok {
				return usageError{fmt.Errorf("--client %q is not known; use one of %s", name, known)}
			}
			socket, err := o.socket(s)
			if err != nil {
				return err
			}
			// The client starts it in a folder of its own.
			if socket, err = filepath.Abs(socket); err != nil {
				return fmt.Errorf("find the socket: %w; name it with its whole path", err)
			}
			program, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			server := mcpServer{Type: to.kind, Command: program, Args: []string{"mcp", "--socket", socket}}
			if write || file != "" {
				if rest, home := strings.CutPrefix(to.file, "~/"); file == "" && home {
					dir, err := os.UserHomeDir()
					if err != nil {
						return fmt.Errorf("find the home folder: %w; name the file with --file", err)
					}
					file = filepath.Join(dir, rest)
				}
				file = first(file, to.file)
				changed, err := writeMCP(file, to.servers, server)
				if err != nil {
					return err
				}
				verb := map[bool]string{true: "wrote", false: "nothing to change in"}[changed]
				_, err = fmt.Fprintf(s.out, "%s %s\n", verb, file)
				return err
			}
			text := []byte(tomlServer(server))
			if to.servers != "" {
				if text, err = inJSON(nil, to.servers, server); err != nil {
					return err
				}
			}
			fmt.Fprintf(s.err, "for %s:\n", to.where)
			_, err = s.out.Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&name, "client", "", "whose form: "+known)
	cmd.Flags().BoolVar(&write, "write", false, "put it into the client's file")
	cmd.Flags().StringVar(&file, "file", "", "put it into this file instead")
	return cmd
}
