package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
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

// mcpClients are the forms in which clients are told of a server, given the program
// and its arguments.
var mcpClients = map[string]struct {
	where string
	form  func(program string, args []string) string
}{
	"claude-code": {".mcp.json of a project", jsonForm("mcpServers", "stdio")},
	"cursor":      {".cursor/mcp.json of a project, or ~/.cursor/mcp.json", jsonForm("mcpServers", "")},
	"vscode":      {".vscode/mcp.json of a workspace", jsonForm("servers", "stdio")},
	"windsurf":    {"~/.codeium/windsurf/mcp_config.json", jsonForm("mcpServers", "")},
	"codex": {"~/.codex/config.toml", func(program string, args []string) string {
		list := make([]string, len(args))
		for i, a := range args {
			list[i] = tomlText(a)
		}
		return fmt.Sprintf("[mcp_servers.toold]\ncommand = %s\nargs = [%s]\n", tomlText(program), strings.Join(list, ", "))
	}},
}

// tomlText is a basic string of TOML: JSON's escapes are among its own.
func tomlText(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func jsonForm(servers, kind string) func(string, []string) string {
	type server struct {
		Type    string   `json:"type,omitempty"`
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}
	return func(program string, args []string) string {
		b, _ := json.MarshalIndent(map[string]map[string]server{servers: {"toold": {kind, program, args}}}, "", "  ")
		return string(b) + "\n"
	}
}

func (o *mcpOptions) configVerb(s *state) *cobra.Command {
	var name string
	known := strings.Join(slices.Sorted(maps.Keys(mcpClients)), ", ")
	cmd := &cobra.Command{
		Use:   "config --client CLIENT",
		Short: "Print what a client's configuration needs to start toolctl mcp",
		Long: `Print what the configuration of a client needs to start toolctl mcp, and on standard
error which file it belongs in. Nothing is written. Clients: ` + known + `.`,
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
			program, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			fmt.Fprintf(s.err, "for %s:\n", to.where)
			_, err = fmt.Fprint(s.out, to.form(program, []string{"mcp", "--socket", socket}))
			return err
		},
	}
	cmd.Flags().StringVar(&name, "client", "", "whose form: "+known)
	return cmd
}
