package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
)

func dashboardVerb(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Print the address of the daemon's page, with its token",
		Long: `Print the address of the page that shows what the daemon does: what is wrong, what
runs, sessions, tools, identities and the last hour. The daemon has one when it is
started with --dashboard.

The address holds the token without which the page shows nothing. It is of the
daemon that runs now: after a restart or an upgrade there is another.`,
		Example: `  toolctl dashboard
  ssh -L 8418:127.0.0.1:8418 HOST toolctl dashboard   # and the page opens here`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			admin := client.NewAdmin(s.places().Admin)
			page, err := admin.Dashboard(cmd.Context())
			if err != nil {
				return daemonError(err)
			}
			if asJSON {
				return s.printJSON(page)
			}
			at := page.URL()
			if at == "" {
				at = fmt.Sprintf("the page is %s of the socket %s", page.Path, admin.Path())
			}
			_, err = fmt.Fprintln(s.out, at)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
