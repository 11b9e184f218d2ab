// Command toolctl is the command line for operators and tool authors. It talks to a running daemon over its two
// sockets and never does a daemon's work itself.
//
// Each verb is a file with one function that returns its command; verbs lists them all. Output for programs (--json)
// is stable, output for people is not.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/places"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// verbs lists every subcommand, in the order of the help.
var verbs = []func(*state) *cobra.Command{
	callVerb,
	mcpVerb,
	toolsVerb,
	resultVerb,
	sessionVerb,
	jobsVerb,
	approvalsVerb,
	topVerb,
	dashboardVerb,
	breakerVerb,
	idempotencyVerb,
	reliabilityVerb,
	auditVerb,
	identityVerb,
	tokenVerb,
	installVerb,
	setupVerb,
	schemaVerb,
	manVerb,
	instancesVerb,
	checkInstancesVerb,
	socketsVerb,
	doctorVerb,
	upgradeVerb,
	demoVerb,
	pluginVerb,
}

// state holds what the verbs share: the streams and the daemon's location.
type state struct {
	in       io.Reader
	out, err io.Writer

	flags places.Places // as set by flags
	found places.Places // where the daemon is, set before a verb runs
}

// run runs the program and returns the exit code.
func run(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s := &state{in: stdin, out: stdout, err: stderr}
	root := &cobra.Command{
		Use:     "toolctl",
		Version: version(),
		Short:   "Call, list, check and install the tools of a toold daemon",
		Long: `toolctl is the client of a toold daemon: it calls tools, lists them with their
problems, and installs the wrappers with which containers call them.

It finds the daemon by the rules by which toold decides where to listen: --socket,
--admin, --state and --instance, the variables TOOL_SOCKET, TOOLD_ADMIN,
TOOLD_STATE_DIR and INSTANCE_ID, the toold.json that TOOLD_CONFIG names, or the
defaults of the current user.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          args(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		PersistentPreRunE: s.find,
	}
	root.SetArgs(argv)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetVersionTemplate("toolctl {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	flags := root.PersistentFlags()
	flags.StringVar(&s.flags.Socket, "socket", "", "the tool socket (default $TOOL_SOCKET, else where toold puts it)")
	flags.StringVar(&s.flags.Admin, "admin", "", "the admin socket (default $TOOLD_ADMIN, else admin.sock in the state folder)")
	flags.StringVar(&s.flags.State, "state", "", "the daemon's state folder (default $TOOLD_STATE_DIR)")
	flags.StringVar(&s.flags.Instance, "instance", "", "the daemon's instance name (default $INSTANCE_ID, else 0)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	})
	for _, verb := range verbs {
		root.AddCommand(verb(s))
	}

	err := root.ExecuteContext(ctx)
	if err != nil && err.Error() != "" {
		fmt.Fprintf(stderr, "toolctl: %v\n", err)
	}
	return exitCode(err)
}

// usageError is an error in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitStatus exits the program with a code and no further message: the verb has printed everything.
type exitStatus int

func (e exitStatus) Error() string { return "" }

// exitCode is the one place that maps an error to an exit code: a tool's own, that of its error code, 64 for a usage
// error, 127 if no daemon responds, and 1 otherwise.
func exitCode(err error) int {
	var status exitStatus
	var usage usageError
	var werr *fault.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		return 64
	case errors.As(err, &werr):
		return werr.Code.ExitCode()
	case errors.Is(err, client.ErrNoDaemon):
		return 127
	}
	return 1
}

// args wraps cobra's check of the number of arguments so that it returns a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
		}
		return nil
	}
}

// places returns where the daemon is.
func (s *state) places() places.Places { return s.found }

// find locates the daemon before a verb runs. Verbs that need no daemon go on without one: toolctl schema config
// reports what is wrong with a toold.json.
func (s *state) find(cmd *cobra.Command, _ []string) error {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	var err error
	s.found, err = config.LookPlaces(s.flags, os.LookupEnv)
	switch cmd.Name() {
	case "schema", "plugin", "demo", "help", "completion":
		return nil
	}
	return err
}

// printJSON writes v as JSON for a program.
func (s *state) printJSON(v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range text.String() { // invisible characters and those that move a cursor are escaped
		switch {
		case r < 0x7f || unicode.IsGraphic(r):
			out.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	_, err := io.WriteString(s.out, out.String())
	return err
}

// first returns the first value that is not empty.
func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
