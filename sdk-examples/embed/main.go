// Embed is another program that has toold in it as a library: it serves a folder
// of tools on a socket of its own, makes one call, prints the answer and stops.
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
	"github.com/toold/toold/host/client"
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
		code = 1
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
	serving, stop := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- h.Serve(serving, func() error { close(ready); return nil }) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
	}()
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		return 1, err
	}

	res, err := client.Call(ctx, c.Socket, &wire.Call{Form: wire.Plain, Tool: args[1], Args: args[2:]})
	if err != nil {
		return 1, err
	}
	stdout.Write(res.Stdout)
	stderr.Write(res.Stderr)
	if res.Err != nil {
		return 1, res.Err
	}
	return res.ExitCode, nil
}
