// Command toold is the daemon: flags and signals over host.Run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/config"
)

func main() {
	if code, ok := host.Child(); ok {
		os.Exit(code)
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	load, err := parse(args, stdout, stderr)
	if errors.Is(err, flag.ErrHelp) || errors.Is(err, errVersion) {
		return 0
	}
	if err != nil {
		return 64
	}
	c, err := load()
	if err != nil {
		fmt.Fprintf(stderr, "toold: %v\n", err)
		return 64
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	// A second signal exits the daemon at once and aborts its calls.
	context.AfterFunc(ctx, stop)
	defer stop()
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	if err := host.Run(ctx, c, reload, load, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "toold: %v\n", err)
		return 70
	}
	return 0
}

// errVersion reports that the version was requested and printed.
var errVersion = errors.New("version")

// parse parses the flags and returns a function that loads the configuration and applies them on top, at start and at
// each reload.
func parse(args []string, stdout, stderr io.Writer) (func() (config.Config, error), error) {
	fs := flag.NewFlagSet("toold", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintf(stderr, "usage: toold [flags]\n\nServes the tools of a folder over a Unix socket. See docs/operating.md.\n\n")
		fs.VisitAll(func(f *flag.Flag) {
			value, text := flag.UnquoteUsage(f)
			fmt.Fprintf(stderr, "  --%-18s %s\n", f.Name+" "+value, text)
		})
	}
	var (
		version = fs.Bool("version", false, "print the version and end")
		file    = fs.String("config", "", "read the configuration from `FILE` (TOOLD_CONFIG)")
		flags   config.Config
		roots   []string
	)
	fs.StringVar(&flags.Tools, "tools", "", "`DIR` of tool definitions (TOOLD_TOOLS; tools.d)")
	fs.StringVar(&flags.Restricted, "restricted", "", "`DIR` of policies for tools that have none of their own (TOOLD_RESTRICTED; none)")
	fs.StringVar(&flags.Socket, "socket", "", "`PATH` where wrappers call (TOOL_SOCKET; $XDG_RUNTIME_DIR/toold/tool-INSTANCE.sock)")
	fs.StringVar(&flags.Admin, "admin", "", "`PATH` of the operator's socket (TOOLD_ADMIN; STATE/admin.sock)")
	fs.StringVar(&flags.Instance, "instance", "", "`NAME` that tells daemons on one host apart (INSTANCE_ID; 0)")
	fs.StringVar(&flags.State, "state", "", "`DIR` that this daemon owns (TOOLD_STATE_DIR; $XDG_STATE_HOME/toold/INSTANCE)")
	fs.StringVar(&flags.Metrics, "metrics", "", "TCP `ADDR` for /metrics beside the admin socket (TOOLD_METRICS; none)")
	fs.StringVar(&flags.MCP, "mcp", "", "TCP `ADDR` for the Model Context Protocol over HTTP (TOOLD_MCP; none)")
	fs.StringVar(&flags.Dashboard, "dashboard", "", "loopback `ADDR`, or admin, for a page that shows what the daemon does (TOOLD_DASHBOARD; none)")
	fs.StringVar(&flags.Store, "store", "", "`WHERE` calls with a key are remembered: memory, file or redis://… (TOOLD_STORE; file)")
	fs.StringVar(&flags.Reliability, "reliability", "", "`MODE` of idempotency, breaker and retry: off, shadow, read-only or all (TOOL_RELIABILITY_ENABLED; off)")
	fs.StringVar(&flags.LogLevel, "log-level", "", "`LEVEL`: debug, info, warn or error (TOOLD_LOG_LEVEL; info)")
	fs.Func("root", "`DIR` beneath which calls may work; again for more (TOOLD_ROOTS; /workspace)", func(s string) error {
		// As with every path on a command line, relative to the current folder.
		s, err := filepath.Abs(s)
		roots = append(roots, s)
		return err
	})
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if *version {
		fmt.Fprintln(stdout, "toold "+host.Version())
		return nil, errVersion
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "toold: unexpected argument %q; flags begin with --\n", fs.Arg(0))
		return nil, errors.New("unexpected argument")
	}
	return func() (config.Config, error) {
		c, err := config.Load(*file, os.LookupEnv)
		if err != nil {
			return c, err
		}
		c.Override(flags)
		if roots != nil {
			c.Roots = append([]string(nil), roots...)
		}
		return c, c.Complete(os.LookupEnv)
	}, nil
}
