// Embed is another program that has toold in it as a library: it makes a daemon of
// a folder of tools, takes one call through it without a socket, with the output
// as it comes, and stops.
//
//	embed TOOLS TOOL [ARGS...]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/wire"
)

func main() {
	// The daemon starts this program again to compile modules and to supervise
	// processes.
	if code, ok := host.Child(); ok {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int, err error) {
	if len(args) < 2 {
		return 64, errors.New("usage: embed TOOLS TOOL [ARGS...]")
	}
	dir, err := os.MkdirTemp("", "embed")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		return 1, err
	}
	c := config.Config{Tools: args[0], Socket: filepath.Join(dir, "tool.sock"), State: filepath.Join(dir, "state"), Roots: []string{root}}
	// What is not said has its default; the environment is not asked.
	if err := c.Complete(func(string) (string, bool) { return "", false }); err != nil {
		return 1, err
	}
	h, err := host.New(ctx, c, io.Discard)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	o := h.Call(ctx, call.Request{
		Call:    &wire.Call{Tool: args[1], Args: args[2:]},
		UID:     uint32(os.Getuid()),
		Streams: wire.Streams{Stdout: stdout, Stderr: stderr},
	})
	if err := o.Err(); err != nil {
		return o.Result.Exit(), err
	}
	return o.Result.ExitCode, nil
}
