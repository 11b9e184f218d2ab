package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
)

func upgradeVerb(s *state) *cobra.Command {
	var binary string
	var within time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Replace the running daemon by a new one, without a failed call",
		Long: `Have the running daemon start a new one, with its own flags and environment, and
give its place to it: sockets, idle connections and the state folder.

The new one first loads every tool, while the old one serves. Then calls wait, for
at most 3 seconds, until those that run have ended; where these take longer, calls
are taken again until they have ended. No call fails, and none runs twice.

Where the new daemon does not start, does not load a tool that the old one serves,
or ends before it serves, and where calls still run after --within, the old one goes
on, the reason is printed, and the exit code is not 0.`,
		Example: "  toolctl upgrade --binary /usr/bin/toold",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if within <= 0 {
				return usageError{fmt.Errorf("--within %v: use a positive duration", within)}
			}
			if binary != "" {
				var err error
				if binary, err = filepath.Abs(binary); err != nil {
					return err
				}
			}
			st, err := client.NewAdmin(s.places().Admin).Upgrade(cmd.Context(), binary, within)
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(st)
			}
			_, err = fmt.Fprintf(s.out, "toold %s serves now, process %d\n", st.Version, st.PID)
			return err
		},
	}
	cmd.Flags().StringVar(&binary, "binary", "", "the new toold (default the program that the daemon was started from)")
	cmd.Flags().DurationVar(&within, "within", 10*time.Minute, "how long calls that run may take to end")
	jsonFlag(cmd, &asJSON)
	return cmd
}
