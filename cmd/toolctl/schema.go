package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

func schemaVerb(s *state) *cobra.Command {
	return &cobra.Command{
		Use:   "schema [tool|config|abi]",
		Short: "Print the JSON Schema of tool.json, toold.json or the guest interface",
		Long: `Print a JSON Schema: of tool.json (tool, the default), of toold.json (config) or
of what guests are asked and answer (abi). Point an editor at it:

  toolctl schema tool > ~/.cache/tool.schema.json`,
		Args:      args(cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs)),
		ValidArgs: []string{"tool", "config", "abi"},
		RunE: func(_ *cobra.Command, names []string) error {
			var text []byte
			switch first(append(names, "tool")...) {
			case "tool":
				text = tools.Schema()
			case "config":
				text = config.Schema
			case "abi":
				text = abi.Schema()
			}
			_, err := fmt.Fprintf(s.out, "%s\n", strings.TrimSpace(string(text)))
			return err
		},
	}
}
