package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
)

func approvalsVerb(s *state) *cobra.Command {
	var mine bool
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "List, show, approve and deny the calls that a policy has approved first",
		Long: `A policy may answer a call with ask: it runs only once somebody has approved it.
An approval is for exactly what show prints, and for one run; it ends when its time
is over, and when the tool, a policy, the folder or the call itself is another.

The operator decides every request, over the admin socket. With --mine the caller
of the tool socket sees its own, and those that it may decide; whose $TOOL_TOKEN is
set decides as that identity.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().BoolVar(&mine, "mine", false, "ask as a caller of the tool socket, and not as the operator")
	cmd.AddCommand(approvalsList(s, &mine), approvalsShow(s, &mine), approvalsDecide(s, &mine, true), approvalsDecide(s, &mine, false))
	return cmd
}

func (s *state) approvals(mine bool) (*client.Approvals, error) {
	as, err := s.sessions(!mine)
	if err != nil {
		return nil, err
	}
	return &client.Approvals{Operator: as.Operator, Socket: as.Socket, Token: as.Token}, nil
}

func approvalsList(s *state, mine *bool) *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the requests that are open",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			as, err := s.approvals(*mine)
			if err != nil {
				return err
			}
			list, err := as.List(cmd.Context())
			if err != nil {
				return daemonError(err)
			}
			if !all {
				list = slices.DeleteFunc(list, func(a adminapi.Approval) bool { return a.State != "pending" && a.State != "approved" })
			}
			if asJSON {
				return s.printJSON(list)
			}
			if len(list) == 0 {
				_, err := fmt.Fprintln(s.out, "no requests")
				return err
			}
			w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "REQUEST\tSTATE\tTOOL\tASKED BY\tRULE\tUNTIL")
			for i := range list {
				a := &list[i]
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", a.ID, a.State, toolsOf(a), plainly(first(a.AskerName, a.Asker)), plainly(first(a.Rule, "-")), when(a.Expires))
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&all, "closed", false, "list those that were denied, used, expired or lapsed, too")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func toolsOf(a *adminapi.Approval) string {
	if len(a.Steps) == 0 {
		return "-"
	}
	name := plainly(a.Steps[0].Tool)
	if n := len(a.Steps) - 1; n > 0 {
		name += fmt.Sprintf(" and %d more", n)
	}
	return name
}

func approvalsShow(s *state, mine *bool) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show REQUEST",
		Short: "Show exactly what would run",
		Long: `Show exactly what would run. Every word is on a line of its own, in quotes where it
has anything but plain characters in it, with control characters and those that
cannot be seen written as Go does. Secrets are masked. What the policy says of the
call is marked as its word.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			as, err := s.approvals(*mine)
			if err != nil {
				return err
			}
			a, err := as.Show(cmd.Context(), ids[0])
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(a)
			}
			return showApproval(s.out, a)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func approvalsDecide(s *state, mine *bool, approve bool) *cobra.Command {
	var asJSON bool
	var reason string
	cmd := &cobra.Command{
		Use:   "approve REQUEST",
		Short: "Let the call of a request run, once",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			as, err := s.approvals(*mine)
			if err != nil {
				return err
			}
			a, err := as.Decide(cmd.Context(), ids[0], approve, reason)
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(a)
			}
			_, err = fmt.Fprintf(s.out, "%s: %s, %s\n", a.ID, a.State, toolsOf(a))
			return err
		},
	}
	if !approve {
		cmd.Use, cmd.Short = "deny REQUEST", "Refuse the call of a request, and the same call until its time is over"
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what to tell the caller, and the audit log")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// plainly is a text as it stands where it has plain characters only, and else in
// quotes, with all that is not printed, or is a space in other scripts, escaped.
func plainly(t string) string {
	plain := func(r rune) bool {
		return r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:=@%+,", r))
	}
	if t != "" && strings.IndexFunc(t, func(r rune) bool { return !plain(r) }) < 0 {
		return t
	}
	return strconv.QuoteToASCII(t)
}

// showApproval prints a request for who decides.
func showApproval(out io.Writer, a *adminapi.Approval) error {
	var err error
	row := func(name, value string) {
		if value != "" && err == nil {
			_, err = fmt.Fprintf(out, "%-12s %s\n", name, value)
		}
	}
	row("request", a.ID)
	row("state", a.State)
	row("asked by", plainly(first(a.AskerName, a.Asker))+" ("+a.Asker+")")
	row("asked", when(a.Made))
	row("until", when(a.Expires))
	who := "the operator"
	if len(a.By) > 0 {
		names := make([]string, len(a.By))
		for i, name := range a.By {
			names[i] = plainly(name)
		}
		who += ", " + strings.Join(names, ", ")
	}
	if a.Self {
		who += ", and the asker"
	}
	row("decided by", who)
	if a.Rule != "" {
		row("rule", plainly(a.Rule))
	}
	for line := range strings.Lines(a.Text) {
		row("policy says", strconv.QuoteToASCII(strings.TrimSuffix(line, "\n")))
	}
	if a.Decider != "" {
		row("was decided", when(a.Decided)+" by "+plainly(first(a.DeciderName, a.Decider)))
	}
	if a.Reason != "" {
		row("reason", plainly(a.Reason))
	}
	if a.UsedBy != "" {
		row("used by", plainly(a.UsedBy)+" "+when(a.Used))
		row("began", fmt.Sprintf("%d of %d", a.Began, len(a.Steps)))
		row("outcome", first(a.Outcome, "unknown"))
	}
	for i := range a.Steps {
		step := &a.Steps[i]
		if err == nil {
			_, err = fmt.Fprintln(out)
		}
		if len(a.Steps) > 1 {
			row("call", fmt.Sprintf("%d of %d", i+1, len(a.Steps)))
		}
		row("tool", plainly(step.Tool))
		row("version", step.Version)
		row("digest", step.Digest)
		var p adminapi.ApprovalPlan
		if e := json.Unmarshal(step.Plan, &p); e != nil {
			return errors.Join(err, fmt.Errorf("read what would run: %w", e))
		}
		row("binary", p.Binary)
		for _, word := range p.Args {
			row("argument", plainly(word))
		}
		if len(p.Payload) > 0 {
			row("payload", strings.Trim(strconv.QuoteToASCII(string(p.Payload)), `"`))
		}
		if p.Cwd != "" {
			row("folder", plainly(p.Cwd)+" ("+p.Folder+")")
		}
		for _, name := range slices.Sorted(maps.Keys(p.Env)) {
			row("variable", plainly(name)+" = "+plainly(p.Env[name]))
		}
		switch {
		case len(p.StdinB64) > 0:
			row("input", strconv.QuoteToASCII(string(p.StdinB64)))
		case p.Stdin != "":
			row("input", strconv.QuoteToASCII(p.Stdin))
		default:
			row("input", "none")
		}
		if p.Shell {
			row("shell", "yes")
			for _, line := range p.Lines {
				row("shell line", strconv.QuoteToASCII(line))
			}
		}
		for _, c := range p.Callbacks {
			row("the caller's", plainly(strings.TrimSpace(c.Kind+" "+c.Path)))
		}
		row("changes", map[bool]string{true: "something", false: "nothing"}[p.Mutating])
		if p.Timeout > 0 {
			row("time", (time.Duration(p.Timeout) * time.Millisecond).String())
		}
		for _, file := range p.Policies {
			row("policy", plainly(file))
		}
	}
	return err
}
