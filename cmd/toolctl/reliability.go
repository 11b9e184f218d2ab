package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
)

func breakerVerb(s *state) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "circuit-breaker",
		Short: "List the circuit breakers, or close those of a tool",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var listJSON, resetJSON bool
	list := &cobra.Command{
		Use:   "list",
		Short: "List every circuit breaker with its state and counters",
		Long: `List every circuit breaker: one a tool, or one a tool and identity where the
tool works for identities.

  closed     calls pass; ROW failures in a row and FAILED of the last are counted
  open       calls are refused with CIRCUIT_OPEN for yet AGAIN IN
  half_open  one call finds out whether the tool works again

One that is marked shadow only watches and refuses nothing.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			breakers, err := client.NewAdmin(s.places().Admin).Breakers(cmd.Context())
			if err != nil {
				return daemonError(err)
			}
			if listJSON {
				return s.printJSON(breakers)
			}
			if len(breakers) == 0 {
				_, err := fmt.Fprintln(s.out, "no circuit breaker yet: no call has gone through the reliability layer; toolctl reliability status says why")
				return err
			}
			w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "TOOL\tSTATE\tROW\tFAILED\tAGAIN IN\tIDENTITY")
			for _, b := range breakers {
				state := b.State
				if b.Shadow {
					state += " (shadow)"
				}
				again := "-"
				if b.RetryAfterMS > 0 {
					again = (time.Duration(b.RetryAfterMS) * time.Millisecond).Round(100 * time.Millisecond).String()
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%d of %d\t%s\t%s\n", b.Tool, state, b.Row, b.Failed, b.Counted, again, first(b.Identity, "-"))
			}
			return w.Flush()
		},
	}
	jsonFlag(list, &listJSON)
	reset := &cobra.Command{
		Use:   "reset TOOL",
		Short: "Close the circuit breakers of a tool and clear their counters",
		Args:  args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, tool []string) error {
			r, err := client.NewAdmin(s.places().Admin).ResetBreakers(cmd.Context(), tool[0])
			if err != nil {
				return daemonError(err)
			}
			if resetJSON {
				return s.printJSON(r)
			}
			_, err = fmt.Fprintf(s.out, "%s closed\n", several(r.Reset, "breaker"))
			return err
		},
	}
	jsonFlag(reset, &resetJSON)
	cmd.AddCommand(list, reset)
	return cmd
}

func idempotencyVerb(s *state) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "idempotency",
		Short: "Show, reconcile or flush the records of calls with an idempotency key",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(s.showRecordsVerb(), s.flushRecordsVerb(), s.reconcileVerb())
	return cmd
}

func (s *state) showRecordsVerb() *cobra.Command {
	var asJSON bool
	var limit int
	cmd := &cobra.Command{
		Use:   "show TOOL [KEY]",
		Short: "Show the records of a tool, or those of one key with their results",
		Long: `Show the records of a tool, those claimed last first, or with a KEY, as a caller
gave it or as it is stored, those of that key with what they hold.

A tool that a module brings is named MODULE/TOOL.`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			key := first(a[1:]...)
			records, err := client.NewAdmin(s.places().Admin).Records(cmd.Context(), a[0], key, limit)
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(records)
			}
			if key != "" && len(records) == 0 {
				return fmt.Errorf("no record of key %q; toolctl idempotency show %s lists all", key, a[0])
			}
			return s.showRecords(records, key != "")
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of records; 0 shows all")
	return cmd
}

func (s *state) flushRecordsVerb() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "flush TOOL [KEY]",
		Short: "Remove the records of a key, or all of a tool, so that its calls run again",
		Long: `Remove the records of a KEY, or all of a tool. Their calls run again when they
come again: where an outcome is unknown, look first at what the call was to
change. Records of calls that run now stay.`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			key := first(a[1:]...)
			if len(a) == 2 && key == "" {
				return usageError{errors.New("KEY is empty; leave it out to flush all records of the tool")}
			}
			f, err := client.NewAdmin(s.places().Admin).FlushRecords(cmd.Context(), a[0], key)
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(f)
			}
			fmt.Fprintf(s.out, "%s flushed\n", several(f.Flushed, "record"))
			if f.Running > 0 {
				fmt.Fprintf(s.out, "%s of calls that run now kept\n", several(f.Running, "record"))
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (s *state) reconcileVerb() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reconcile TOOL KEY",
		Short: "Have the tool find out how the call of a key ended, where that is unknown",
		Long: `Have the tool find out, as the caller and without changing anything, how the
calls of a KEY ended whose outcome is unknown.

  done      the call succeeded: its result is the answer from now on
  not_done  it changed nothing and never will: the key is free, and runs again
  unknown   nothing is certain: the record stays as it is`,
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if a[1] == "" {
				return usageError{errors.New("KEY is empty; toolctl idempotency show TOOL lists the keys")}
			}
			f, err := client.NewAdmin(s.places().Admin).ReconcileRecords(cmd.Context(), a[0], a[1])
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(f)
			}
			for _, c := range f.Found {
				fmt.Fprintf(s.out, "%s: %s\n", c.Verdict, oneLine(first(c.Evidence, "no evidence")))
			}
			if len(f.Found) < f.Unknown {
				fmt.Fprintf(s.out, "unknown: %s with nothing written down before the call, or looked into by another\n", several(f.Unknown-len(f.Found), "record"))
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (s *state) showRecords(records []adminapi.IdempotencyRecord, whole bool) error {
	if len(records) == 0 {
		_, err := fmt.Fprintln(s.out, "no records")
		return err
	}
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	if !whole {
		fmt.Fprintln(w, "KEY\tSTATUS\tCLAIMED\tEXPIRES")
	}
	for _, r := range records {
		status := r.Status
		var failure struct{ Code, Message string }
		if json.Unmarshal(r.Error, &failure) == nil && failure.Code != "" {
			status += " " + failure.Code
		}
		key := oneLine(first(r.Label, r.Key))
		claimed, expires := when(r.ClaimedAt), when(r.ExpiresAt)
		if !whole {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", key, status, claimed, expires)
			continue
		}
		for _, row := range [][2]string{
			{"key", key}, {"stored as", r.Key}, {"status", status}, {"message", oneLine(failure.Message)},
			{"claimed", claimed}, {"expires", expires}, {"runs", fmt.Sprint(r.Fence)}, {"result", oneLine(string(r.Result))},
		} {
			if row[1] != "" {
				fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
			}
		}
		if r.Digest != "" {
			fmt.Fprintf(w, "result\t%d bytes, not kept, sha256 %s\n", r.Size, r.Digest)
		}
	}
	return w.Flush()
}

func reliabilityVerb(s *state) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reliability",
		Short: "Show the state of the reliability layer",
		Args:  args(cobra.NoArgs),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var asJSON bool
	status := &cobra.Command{
		Use:   "status",
		Short: "Show the mode of the daemon and of each tool, and what the store survives",
		Long: `Show what is in force. Modes:

  off        calls run as they come
  shadow     what would be done is logged and counted, and nothing else
  read-only  calls that change nothing are de-duplicated, retried and broken off;
             those that are mutating are as in shadow
  all        every call is

The exit code is 1 when the store does not answer.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := client.NewAdmin(s.places().Admin).Reliability(cmd.Context())
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				err = s.printJSON(r)
			} else {
				err = s.printReliability(r)
			}
			if err == nil && r.StoreError != "" {
				err = exitStatus(1)
			}
			return err
		},
	}
	jsonFlag(status, &asJSON)
	cmd.AddCommand(status)
	return cmd
}

func (s *state) printReliability(r *adminapi.ReliabilityStatus) error {
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "mode\t%s\nstore\t%s\nsurvives\t%s\n", r.Mode, r.Store, oneLine(r.Survives))
	if r.StoreError != "" {
		fmt.Fprintf(w, "store fails\t%s\n", oneLine(r.StoreError))
	}
	for _, e := range slices.Sorted(maps.Keys(r.Events)) {
		if n := r.Events[e]; n > 0 {
			fmt.Fprintf(w, "%s\t%d\n", e, n)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(r.Tools) == 0 {
		return nil
	}
	fmt.Fprintln(s.out)
	w = tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "TOOL\tMODE\tCLASS\tBREAKERS OPEN")
	for _, t := range r.Tools {
		mode := t.Mode
		if t.Own {
			mode += " (its own)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", t.Tool, mode, map[bool]string{true: "mutating", false: "read-only"}[t.Mutating], t.Open)
	}
	return w.Flush()
}

// several formats a count with its noun.
func several(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
