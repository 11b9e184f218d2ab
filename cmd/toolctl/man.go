package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
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
		Long: `Write the manual pages of toolctl, its commands, toold and tool-client into DIR, in the
form that man reads, from the text that --help prints. SOURCE_DATE_EPOCH is their date,
where it is set. toold and tool-client are those beside toolctl, else on PATH; the page
of one that is not there is left out.`,
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
			if err := writeManPages(dirs[0], cmd.Root(), date); err != nil {
				return err
			}
			for _, p := range []struct{ name, section, short string }{
				{"toold", "8", "the daemon that runs tools for containers"},
				{wrapper, "1", "have toold run a tool"},
			} {
				program, err := beside(p.name)
				if err != nil {
					fmt.Fprintf(s.err, "toolctl: no page of %s: %v\n", p.name, err)
					continue
				}
				page, err := programPage(cmd.Context(), program, p.name, p.section, p.short, date)
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(dirs[0], p.name+"."+p.section), page, 0o644); err != nil {
					return fmt.Errorf("write a manual page: %w", err)
				}
			}
			return nil
		},
	}
}

// manDate returns the date of the manual pages: that of epoch, in seconds, or today if it is empty.
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

// writeManPages writes the page of cmd and of each of its commands that the help lists.
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

// programPage makes a program's page from its --help: the usage, an empty line, and the rest.
func programPage(ctx context.Context, program, name, section, short, date string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// A wrapper prints its help as a usage error, with an exit code.
	text, err := exec.CommandContext(ctx, program, "--help").CombinedOutput()
	use, rest, ok := strings.Cut(string(text), "\n\n")
	if use, found := strings.CutPrefix(use, "usage: "); ok && found {
		var b bytes.Buffer
		fmt.Fprintf(&b, ".TH %q %s %q \"toold\" \"Tools for containers\"\n", strings.ToUpper(name), section, date)
		fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(short))
		fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n.fi\n.SH DESCRIPTION\n.nf\n%s\n.fi\n", roff(use), roff(strings.Trim(rest, "\n")))
		b.WriteString(".SH SEE ALSO\ntoolctl(1)\n")
		return b.Bytes(), nil
	}
	return nil, fmt.Errorf("write the page of %s: %s --help prints no usage: %v; it is another version, put toolctl's own beside it", name, program, err)
}

// manPage returns the page of one command. Its text is not filled: it is already laid out for terminals.
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

// roff escapes text for a manual page: a line that begins with a dot or a quote would be a request.
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
