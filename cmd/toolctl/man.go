package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func manVerb(s *state) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write a manual page for each command",
		Long: `Write the manual pages of toolctl and its commands into DIR, in the form that man
reads, from the text that --help prints. SOURCE_DATE_EPOCH is their date, where it is set.`,
		Example: `  toolctl man ~/.local/share/man/man1
  toolctl completion bash    # completions: bash, zsh, fish`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			date, err := manDate(os.Getenv("SOURCE_DATE_EPOCH"))
			if err != nil {
				return err
			}
			if err := os.MkdirAll(dirs[0], 0o755); err != nil {
				return fmt.Errorf("make the folder of manual pages: %w", err)
			}
			cmd.Root().InitDefaultHelpCmd()
			return writeManPages(dirs[0], cmd.Root(), date)
		},
	}
}

// manDate is the date of manual pages: epoch, which is seconds, or today.
func manDate(epoch string) (string, error) {
	if epoch == "" {
		return time.Now().UTC().Format(time.DateOnly), nil
	}
	var seconds int64
	if _, err := fmt.Sscanf(epoch, "%d", &seconds); err != nil || fmt.Sprint(seconds) != epoch {
		return "", usageError{fmt.Errorf("SOURCE_DATE_EPOCH is %q, which is not a number of seconds; unset it", epoch)}
	}
	return time.Unix(seconds, 0).UTC().Format(time.DateOnly), nil
}

// writeManPages writes the page of cmd and of each command of it that help shows.
func writeManPages(dir string, cmd *cobra.Command, date string) error {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	if err := os.WriteFile(filepath.Join(dir, name+".1"), manPage(cmd, name, date), 0o644); err != nil {
		return fmt.Errorf("write a manual page: %w", err)
	}
	for _, c := range cmd.Commands() {
		if !c.IsAvailableCommand() || c.Name() == "help" {
			continue
		}
		if err := writeManPages(dir, c, date); err != nil {
			return err
		}
	}
	return nil
}

// manPage is the page of one command. Its text is not filled: it is laid out for
// terminals already.
func manPage(cmd *cobra.Command, name, date string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %q 1 %q \"toold\" \"Tools for containers\"\n", strings.ToUpper(name), date)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(cmd.Short))
	plain := func(title, text string) {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", title, roff(text))
		}
	}
	plain("SYNOPSIS", cmd.UseLine())
	if cmd.Long != "" {
		plain("DESCRIPTION", cmd.Long)
	}
	options := func(title string, flags *pflag.FlagSet) {
		if flags.HasAvailableFlags() {
			plain(title, flags.FlagUsages())
		}
	}
	options("OPTIONS", cmd.NonInheritedFlags())
	options("OPTIONS OF ALL COMMANDS", cmd.InheritedFlags())
	plain("EXAMPLES", cmd.Example)
	var also []string
	if cmd.HasParent() {
		also = append(also, strings.ReplaceAll(cmd.Parent().CommandPath(), " ", "-")+"(1)")
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			also = append(also, strings.ReplaceAll(c.CommandPath(), " ", "-")+"(1)")
		}
	}
	if also != nil {
		fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", roff(strings.Join(also, ", ")))
	}
	return b.Bytes()
}

// roff has text mean itself in a manual page: a line that begins with a dot or a
// quote would be a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "^", `\(ha`, "`", `\(ga`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
