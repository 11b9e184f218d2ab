package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
)

func resultVerb(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "result EXECUTION_ID",
		Short: "Print the whole result of a call whose answer was truncated",
		Long: `Print what a finished call wrote, whole: standard output and standard error go
where the tool's would have gone, and the exit code is the tool's own. A terminal is shown text, without the sequences
that would have it do something else; a file or a pipe gets every byte. An answer
that did not fit into one message says truncated and has the id.

The daemon keeps the latest results, each up to its tool's limit on output.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			r, err := client.NewAdmin(s.places().Admin).Result(cmd.Context(), ids[0])
			if errors.Is(err, adminapi.ErrNotFound) {
				return fmt.Errorf("no result of execution %q; the daemon keeps only the latest", ids[0])
			}
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(r)
			}
			out := shown(s.out)
			out.Write(r.Stdout)
			shown(s.err).Write(r.Stderr)
			if len(r.Data) > 0 && len(r.Stdout) == 0 {
				fmt.Fprintf(out, "%s\n", r.Data)
			}
			if r.Truncated {
				fmt.Fprintln(s.err, "toolctl: this is not all: the limit on kept output was reached (limits.output in tool.json)")
			}
			if r.Error != "" {
				fmt.Fprintf(s.err, "toolctl: %s: %s\n", r.Code, oneLine(r.Error))
			}
			if r.ExitCode != 0 {
				return exitStatus(r.ExitCode)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with stdout and stderr in base64")
	return cmd
}
