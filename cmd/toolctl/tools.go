package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
)

func toolsVerb(s *state) *cobra.Command {
	var asJSON, refresh bool
	var as string
	cmd := &cobra.Command{
		Use:   "tools [NAME]",
		Short: "List the tools and their problems, or describe one",
		Long: `List every tool of the daemon with its state:

  ok       the version on disk serves
  stale    the version on disk does not load; an older one still serves
  broken   nothing loads; every call is refused
  absent   defined, but its binary is not on this host
  loading  being read for the first time; calls wait for it

With a NAME, say all there is to know of that one.

With --as, list what the bearer of a token can call, the tools that modules bring for
it among them, or describe one of those. With --refresh, modules list them anew for the
bearer, which a caller may ask for now and then (discovery.refresh_every in toold.json).

The exit code is 1 when the tool that was named is not ok, else 0.`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, names []string) error {
			if as != "" {
				return s.toolsAs(cmd.Context(), as, names, refresh, asJSON)
			}
			if refresh {
				return usageError{errors.New("--refresh is of the tools of one caller: give --as, or see toolctl identity refresh")}
			}
			admin := client.NewAdmin(s.places().Admin)
			if len(names) == 1 {
				return s.describeTool(cmd, admin, names[0], asJSON)
			}
			tools, err := admin.Tools(cmd.Context())
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(tools)
			}
			return s.listTools(tools)
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&as, "as", "", "a file with a token: what its bearer can call (- reads it from standard input)")
	cmd.Flags().BoolVar(&refresh, "refresh", false, "with --as: have modules list the bearer's tools anew")
	return cmd
}

func (s *state) listTools(tools []adminapi.ToolStatus) error {
	if len(tools) == 0 {
		_, err := fmt.Fprintln(s.out, "no tools; make a folder with a tool.json or a handler.wasm in the daemon's tools folder")
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "TOOL\tSTATE\tKIND\tPOLICY\tDESCRIPTION")
	for _, t := range tools {
		policy := "-"
		if n := len(t.Policies); n > 0 {
			policy = fmt.Sprint(n)
			if n == 1 {
				policy = "yes"
			}
		}
		text := t.Description
		if t.Reason != "" {
			text = t.Reason
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.Name, t.State, first(t.Kind, "-"), policy, oneLine(text))
	}
	return w.Flush()
}

func (s *state) describeTool(cmd *cobra.Command, admin *client.Admin, name string, asJSON bool) error {
	t, err := admin.Tool(cmd.Context(), name)
	if errors.Is(err, adminapi.ErrNotFound) {
		return fmt.Errorf("no tool %q; toolctl tools lists all", name)
	}
	if err != nil {
		return daemonError(err)
	}
	if asJSON {
		err = s.printJSON(t)
	} else {
		w, row := s.rows()
		row("tool", t.Name)
		row("state", t.State)
		row("reason", t.Reason)
		row("description", t.Description)
		row("kind", t.Kind)
		row("runs", t.Path)
		row("policies", strings.Join(t.Policies, ", "))
		row("category", t.Category)
		row("version", t.Version)
		row("loaded", when(t.Loaded))
		row("mutating", map[bool]string{true: "yes, where the policy does not say"}[t.Mutating])
		row("schema", string(t.Schema))
		err = w.Flush()
	}
	if err == nil && t.State != adminapi.ToolOK {
		err = exitStatus(1)
	}
	return err
}

// rows prints a name and its value a line; one without a value is left out. The
// writer is flushed at the end.
func (s *state) rows() (*tabwriter.Writer, func(name, value string)) {
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	return w, func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, oneLine(value))
		}
	}
}

// when is a moment for people; "" for none.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

// oneLine keeps what a tool says of itself on its line and its control
// characters off the terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, text)
}

// daemonError adds what to do next to an error of the admin socket.
func daemonError(err error) error {
	var answered *adminapi.Error
	if errors.As(err, &answered) {
		return err
	}
	return fmt.Errorf("%w; is toold running? toolctl doctor finds out", err)
}
