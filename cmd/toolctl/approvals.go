package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/display"
	"github.com/toold/toold/host/wire"
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
	cmd.AddCommand(approvalsList(s, &mine), approvalsShow(s, &mine), approvalsDecide(s, &mine, true), approvalsDecide(s, &mine, false), approvalsPlan(s), approvalsRun(s))
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

// readCalls reads a list of calls: a sequence of envelopes, or one array of them.
func readCalls(s *state, file string) ([]json.RawMessage, error) {
	text, err := func() ([]byte, error) {
		in := s.in
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			in = f
		}
		text, err := io.ReadAll(io.LimitReader(in, wire.MaxFrame+1))
		if err == nil && len(text) > wire.MaxFrame {
			err = fmt.Errorf("it has over %d bytes; make two lists of it", wire.MaxFrame)
		}
		return text, err
	}()
	if err != nil {
		return nil, fmt.Errorf("read the list of calls: %w", err)
	}
	var calls []json.RawMessage
	if json.Unmarshal(text, &calls) == nil {
		return calls, nil
	}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var one json.RawMessage
		switch err := d.Decode(&one); {
		case err == io.EOF:
			return calls, nil
		case err != nil:
			return nil, usageError{fmt.Errorf("read call %d of %s: %w; write {\"toolId\": \"NAME\", \"payload\": {...}}, one after another", len(calls)+1, file, err)}
		}
		calls = append(calls, one)
	}
}

func approvalsPlan(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "plan FILE",
		Short: "Plan a list of calls, to be approved once",
		Long: `Have the calls of FILE (- is standard input) decided, each as it would be made, and
run none. FILE has envelopes, one after another or as one array:

  {"toolId": "git", "payload": {"args": ["push", "origin", "main"], "cwd": "/workspace/app"}}

If a policy asks for one of them there is one request for all, which show prints and
approve decides; run runs them by it. Planned and run are the caller's own calls, over
the tool socket.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, files []string) error {
			calls, err := readCalls(s, files[0])
			if err != nil {
				return err
			}
			as, err := s.approvals(true)
			if err != nil {
				return err
			}
			plan, err := as.Plan(cmd.Context(), calls)
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(plan)
			}
			w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "CALL\tTOOL\tASKS\tDIGEST")
			for i, c := range plan.Calls {
				fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", i+1, plainly(c.Tool), map[bool]string{true: "yes", false: "no"}[c.Asks], c.Digest)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if plan.Approval == nil {
				_, err = fmt.Fprintln(s.out, "none of them has to be approved: make them as they are")
				return err
			}
			_, err = fmt.Fprintf(s.out, "%s: %s until %s; once it is approved: toolctl approvals run %s %s\n",
				plan.Approval.ID, plan.Approval.State, when(plan.Approval.Expires), plan.Approval.ID, plainly(files[0]))
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func approvalsRun(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "run REQUEST FILE",
		Short: "Run a list of calls that was approved, in order",
		Long: `Run the calls of FILE (- is standard input) by the request for all of them. It stops at
the first that fails, or is not what was planned, and then exits with 1. An approved list
runs once; what is left is planned anew.`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			calls, err := readCalls(s, argv[1])
			if err != nil {
				return err
			}
			as, err := s.approvals(true)
			if err != nil {
				return err
			}
			ran, err := as.Run(cmd.Context(), argv[0], calls)
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				err = s.printJSON(ran)
			} else {
				for i, r := range ran.Results {
					fmt.Fprintf(s.out, "%d of %d: %s, exit code %d\n", i+1, len(calls), r.Status, r.ExitCode)
					shown := display.New(s.out) // a tool's output is plain text, without control sequences
					for _, text := range []string{r.Stdout, r.Stderr} {
						for line := range strings.Lines(text) {
							fmt.Fprintln(shown, "  "+strings.TrimRight(line, "\n"))
						}
					}
					if r.Truncated {
						fmt.Fprintln(s.out, "  (there was more)")
					}
					if r.Message != "" {
						fmt.Fprintf(s.out, "  %s: %s\n", r.Code, plainly(r.Message))
					}
				}
			}
			if err == nil && !ran.Done {
				err = fmt.Errorf("%d of %d calls ran well; plan what is left again", max(len(ran.Results)-1, 0), len(calls))
			}
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// plainly returns a text unchanged if it has plain characters only. Otherwise it is quoted, with characters escaped
// that do not print or that are spaces in other scripts.
func plainly(t string) string {
	plain := func(r rune) bool {
		return r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:=@%+,", r))
	}
	if t != "" && strings.IndexFunc(t, func(r rune) bool { return !plain(r) }) < 0 {
		return t
	}
	return strconv.QuoteToASCII(t)
}

// showApproval prints a request for the person who decides on it.
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
		if err == nil {
			_, err = fmt.Fprintln(out)
		}
		if len(a.Steps) > 1 {
			row("call", fmt.Sprintf("%d of %d", i+1, len(a.Steps)))
		}
		if e := showStep(row, &a.Steps[i]); e != nil {
			return errors.Join(err, e)
		}
	}
	return err
}

// showStep prints what one call of an approval would run.
func showStep(row func(name, value string), step *adminapi.ApprovalStep) error {
	row("tool", plainly(step.Tool))
	row("version", step.Version)
	row("digest", step.Digest)
	var p adminapi.ApprovalPlan
	if e := json.Unmarshal(step.Plan, &p); e != nil {
		return fmt.Errorf("read what would run: %w", e)
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
	return nil
}
