package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/display"
	"github.com/toold/toold/host/fault"
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
  updating the version on disk is being compiled; an older one serves until then
  refusing it loads, and calls are refused: a secret is missing, or the store of
           idempotency records does not answer
  absent   defined, but its binary is not on this host
  loading  being read for the first time; calls wait for it

With a NAME, say all there is to know of that one: also since when each of its
policies is asked in every call that begins. Where --socket or TOOL_SOCKET is a
socket with categories, only the tools that it serves are listed.

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
				return usageError{errors.New("--refresh is for the tools of one caller: give --as, or see toolctl identity refresh")}
			}
			admin := client.NewAdmin(s.places().Admin)
			if len(names) == 1 {
				return s.describeTool(cmd, admin, names[0], asJSON)
			}
			tools, err := admin.Tools(cmd.Context())
			if err == nil {
				tools, err = s.served(cmd.Context(), admin, tools)
			}
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(tools)
			}
			return s.listTools(tools)
		},
	}
	cmd.AddCommand(waitVerb(s), addVerb(s), updateVerb(s), removeVerb(s), catalogueVerb(s))
	jsonFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&as, "as", "", "a file with a token: what its bearer can call (- reads it from standard input)")
	cmd.Flags().BoolVar(&refresh, "refresh", false, "with --as: have modules list the bearer's tools again")
	return cmd
}

// served returns the tools that the tool socket serves.
func (s *state) served(ctx context.Context, admin *client.Admin, tools []adminapi.ToolStatus) ([]adminapi.ToolStatus, error) {
	status, err := admin.Status(ctx)
	if err != nil {
		return nil, err
	}
	at := s.places().Socket
	if sameFile(at, status.Socket) {
		return tools, nil
	}
	for _, k := range status.Sockets {
		if sameFile(at, k.Path) {
			return slices.DeleteFunc(tools, func(t adminapi.ToolStatus) bool { return !k.Serves(t.Category) }), nil
		}
	}
	return tools, nil
}

func waitVerb(s *state) *cobra.Command {
	var timeout string
	cmd := &cobra.Command{
		Use:   "wait NAME DIGEST",
		Short: "Wait until a version of a tool or policy is in force",
		Long: `Wait until every call of the tool NAME that begins is one of the version with
DIGEST: 8 characters or more of its version, or of the sha256 of a policy or module,
as toolctl tools NAME and sha256sum print them. Calls that began before finish on
the version with which they began. NAME _all waits for every tool, as after a change
of the policy for all of them.

The exit code is 0 when it is in force, 124 when it is not in time, 70 when what is
on disk does not load (the older version goes on, or every call is refused), and 127
when there is no such tool.`,
		Example: `  mv new.wasm policies/_all.wasm
  toolctl tools wait _all $(sha256sum < policies/_all.wasm) --timeout 30`,
		Args: args(cobra.RangeArgs(2, 3)), // sha256sum appends a dash
		RunE: func(cmd *cobra.Command, words []string) error {
			limit, err := parseTimeout(timeout)
			if err != nil {
				return usageError{err}
			}
			if len(words[1]) < 8 || len(words) == 3 && words[2] != "-" {
				return usageError{fmt.Errorf("the digest is %q; give 8 characters of it or more, and nothing after it", words[1:])}
			}
			return daemonErrorOf(client.NewAdmin(s.places().Admin).Wait(cmd.Context(), words[0], words[1], limit))
		},
	}
	cmd.Flags().StringVar(&timeout, "timeout", "60", "how long to wait: seconds, or with a unit, at most 10m")
	return cmd
}

// daemonErrorOf is daemonError for an error that may have its own code.
func daemonErrorOf(err error) error {
	var said *fault.Error
	if err == nil || errors.As(err, &said) {
		return err
	}
	return daemonError(err)
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
		for i, file := range t.Policies {
			if i < len(t.PolicyDigests) && i < len(t.PolicySince) {
				row("policy", fmt.Sprintf("%s, sha256 %s, in force in every call begun since %s", file, t.PolicyDigests[i], when(t.PolicySince[i])))
			} else {
				row("policy", file)
			}
		}
		row("category", t.Category)
		row("version", t.Version)
		row("module", t.HandlerDigest)
		for _, missing := range t.Missing {
			row("missing", missing)
		}
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

// rows prints one name and value per line, and omits those without a value. The caller flushes the writer at the end.
func (s *state) rows() (*tabwriter.Writer, func(name, value string)) {
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	return w, func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, oneLine(value))
		}
	}
}

// when formats a time for people; "" if there is none.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

// oneLine keeps a tool's description on one line, and removes characters that move the cursor, are invisible, or
// reorder what follows.
func oneLine(text string) string {
	return strings.TrimRight(strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return ' '
		}
		return r
	}, text), " ")
}

// shown wraps w for the output of any caller's tool: on a terminal it becomes plain text, to a file or pipe it goes
// unchanged.
func shown(w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok {
		return w
	}
	if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice == 0 {
		return w
	}
	return display.New(w)
}

// daemonError adds to an error of the admin socket what to do next.
func daemonError(err error) error {
	var answered *adminapi.Error
	if errors.As(err, &answered) {
		return err
	}
	return fmt.Errorf("%w; is toold running? toolctl doctor finds out", err)
}
