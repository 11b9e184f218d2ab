package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/wire"
)

func identityVerb(s *state) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "identity",
		Short: "List and refresh the tools that modules list for identities",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(identityList(s), identityShow(s), identityRefresh(s))
	return cmd
}

func identityList(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the identities that tools have been discovered for",
		Long: `List every identity that tools were discovered for, with its state:

  fresh    its tools are in use
  old      its tools are refreshed at the next use
  stale    a refresh failed, the old tools stay in use for a while
  refused  the server refused the identity; retried after a minute
  empty    discovered at the next use

An identity is shown as a fingerprint, which does not reveal tokens, users or
passwords, with the claims that the tool declares and that are not secret.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := client.NewAdmin(s.places().Admin).Identities(cmd.Context())
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(list)
			}
			if len(list) == 0 {
				_, err := fmt.Fprintln(s.out, "no identities; one is made when somebody lists or calls the tools of a module with discover")
				return err
			}
			w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "IDENTITY\tTOOL\tSTATE\tTOOLS\tUSED\tCLAIMS")
			for _, e := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s ago\t%s\n", e.Fingerprint, e.Tool, e.State, e.Tools, time.Since(e.Used).Round(time.Second), oneLine(strings.Join(pairs(e.Claims), " ")))
			}
			return w.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func identityShow(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show IDENTITY",
		Short: "Show one identity and the names of its tools",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			e, err := client.NewAdmin(s.places().Admin).Identity(cmd.Context(), words[0])
			if errors.Is(err, adminapi.ErrNotFound) {
				return fmt.Errorf("no identity %q; toolctl identity list shows all", words[0])
			}
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(e)
			}
			w, row := s.rows()
			row("identity", e.Fingerprint)
			row("tool", e.Tool+" "+e.Version)
			row("claims", strings.Join(pairs(e.Claims), " "))
			row("state", e.State)
			row("reason", e.Reason)
			row("read-only", map[bool]string{true: "yes"}[e.ReadOnly])
			row("made", when(e.Made))
			row("until", when(e.Until))
			row("used", when(e.Used))
			row("tools", strings.Join(e.Names, ", "))
			return w.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func identityRefresh(s *state) *cobra.Command {
	var tool string
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "refresh [IDENTITY]",
		Short: "Discover the tools of an identity again at their next use",
		Long: `Drop the tools that were discovered for an identity, for all identities of a tool,
or for all. The next use discovers them again. Results of running discoveries are
dropped too.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			chosen, fingerprint := len(words), first(words...)
			if tool != "" {
				chosen++
			}
			if all {
				chosen++
			}
			if chosen != 1 {
				return usageError{errors.New("name one identity, or give --tool NAME, or --all")}
			}
			r, err := client.NewAdmin(s.places().Admin).Refresh(cmd.Context(), fingerprint, tool)
			if errors.Is(err, adminapi.ErrNotFound) {
				return fmt.Errorf("no identity %q; toolctl identity list shows all", fingerprint)
			}
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(r)
			}
			_, err = fmt.Fprintf(s.out, "refreshed  %d\n", r.Identities)
			return err
		},
	}
	cmd.Flags().StringVar(&tool, "tool", "", "all identities of this tool")
	cmd.Flags().BoolVar(&all, "all", false, "all identities")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// pairs returns name=value for each entry, sorted by name.
func pairs(m map[string]string) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, name+"="+m[name])
	}
	return list
}

func tokenVerb(s *state) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Inspect tokens",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var asJSON bool
	inspect := &cobra.Command{
		Use:   "inspect [FILE]",
		Short: "Describe a token, and why the daemon accepts or refuses it",
		Long: `Read a token from FILE, from standard input for -, else from $TOOL_TOKEN or
$TOOL_TOKEN_FILE like a call, and describe it: its algorithm and key, its validity,
the names of its claims, and the reason for a refusal.

The token itself and the values of private claims are not shown. It cannot be a
command-line argument, since others can read those.

The exit code is 77 if the daemon would refuse it.`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			token, file := os.Getenv("TOOL_TOKEN"), os.Getenv("TOOL_TOKEN_FILE")
			if len(words) == 1 {
				token, file = "", words[0]
			}
			if token == "" {
				if file == "" {
					return usageError{errors.New("name the file of a token, or set TOOL_TOKEN_FILE")}
				}
				var err error
				if token, err = s.readToken(file); err != nil {
					return err
				}
			}
			var in identity.Inspection
			if err := client.NewAdmin(s.places().Admin).InspectToken(cmd.Context(), token, &in); err != nil {
				return daemonError(err)
			}
			if err := s.showToken(&in, asJSON); err != nil {
				return err
			}
			if in.Error != "" {
				return exitStatus(fault.Unauthenticated.ExitCode())
			}
			return nil
		},
	}
	jsonFlag(inspect, &asJSON)
	cmd.AddCommand(inspect)
	return cmd
}

func (s *state) showToken(in *identity.Inspection, asJSON bool) error {
	if asJSON {
		return s.printJSON(in)
	}
	w, row := s.rows()
	row("form", map[bool]string{true: "encrypted (JWE)", false: "signed (JWT)"}[in.Encrypted])
	row("algorithm", strings.TrimSpace(in.Alg+" "+in.Enc))
	row("key", in.Kid)
	row("verified", map[bool]string{true: "yes", false: "no: what follows is only what the token says of itself"}[in.Verified])
	for _, name := range slices.Sorted(maps.Keys(in.Claims)) {
		row("claim "+name, in.Claims[name])
	}
	row("caller", in.Caller)
	row("read-only", map[bool]string{true: "yes"}[in.ReadOnly])
	row("refused", in.Error)
	return w.Flush()
}

// readToken reads a token from a file, or from standard input for "-".
func (s *state) readToken(file string) (string, error) {
	var b []byte
	var err error
	if file == "-" {
		b, err = io.ReadAll(io.LimitReader(s.in, 64<<10))
	} else {
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// callable is one tool as returned by tools.list.
type callable struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Category    string          `json:"category,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Annotations json.RawMessage `json:"annotations,omitempty"`
	Mutating    bool            `json:"mutating,omitempty"`
	Source      string          `json:"source,omitempty"`
}

// toolsAs lists the tools that the bearer of a token can call, page by page.
func (s *state) toolsAs(ctx context.Context, file string, names []string, refresh, asJSON bool) error {
	token, err := s.readToken(file)
	if err != nil {
		return err
	}
	conn, err := client.Dial(ctx, s.places().Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	type missing struct {
		Source    string `json:"source"`
		Code      string `json:"code,omitempty"`
		Message   string `json:"message"`
		Retriable bool   `json:"retriable"`
	}
	var all struct {
		Tools   []callable `json:"tools"`
		Missing []missing  `json:"missing,omitempty"`
		// RefreshAfter is the time, in milliseconds, until tools that could not be listed can be listed again.
		RefreshAfter int64 `json:"refresh_after_ms,omitempty"`
	}
	all.Tools = []callable{}
	for after := ""; ; {
		payload, err := json.Marshal(map[string]any{"after": after, "refresh": refresh && after == ""})
		if err != nil {
			return err
		}
		res, err := conn.Call(ctx, &wire.Call{Form: wire.Envelope, Tool: "tools.list", ExecutionID: wire.NewExecutionID(), Payload: payload, Token: token})
		if err != nil {
			return err
		}
		if res.Err != nil {
			return res.Err
		}
		var page struct {
			Tools   []callable
			Next    string
			Missing []missing

			RefreshAfter int64 `json:"refresh_after_ms"`
		}
		if err := json.Unmarshal(res.Data, &page); err != nil {
			return fmt.Errorf("read the list of tools: %w", err)
		}
		all.Tools, all.Missing = append(all.Tools, page.Tools...), page.Missing
		all.RefreshAfter = max(all.RefreshAfter, page.RefreshAfter)
		if page.Next == "" || page.Next <= after {
			break
		}
		after = page.Next
	}
	for _, m := range all.Missing {
		fmt.Fprintf(s.err, "toolctl: %s: %s\n", m.Source, oneLine(m.Message))
	}
	if all.RefreshAfter > 0 {
		fmt.Fprintf(s.err, "toolctl: some tools were not listed again; try again in %s\n", short(time.Duration(all.RefreshAfter)*time.Millisecond))
	}
	if len(names) == 1 {
		i := slices.IndexFunc(all.Tools, func(t callable) bool { return t.Name == names[0] })
		if i < 0 {
			return fmt.Errorf("this caller sees no tool %q", names[0])
		}
		return s.printJSON(all.Tools[i])
	}
	if asJSON {
		return s.printJSON(all)
	}
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "TOOL\tFROM\tCLASS\tDESCRIPTION")
	for _, t := range all.Tools {
		class := map[bool]string{true: "writes", false: "reads"}[t.Mutating]
		if t.Source == "" && !t.Mutating {
			class = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", t.Name, first(t.Source, "-"), class, oneLine(first(t.Title, t.Description)))
	}
	return w.Flush()
}
