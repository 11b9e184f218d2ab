package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/wire"
)

func callVerb(s *state) *cobra.Command {
	var o callOptions
	cmd := &cobra.Command{
		Use:   "call TOOL [flags] -- ARGS...",
		Short: "Call a tool",
		Long: `Call a tool as its wrapper would, or as a program does.

Without further flags it behaves like the wrapper: output is passed on unchanged as
it arrives, and the exit code is the tool's. Unlike a wrapper it passes no input
without --stdin.

With --envelope the call has the envelope form, with a JSON object as its payload
instead of arguments; the tool's data is printed.`,
		Example: `  toolctl call git -- log -1
  echo hello | toolctl call hash --stdin -- -a sha256
  toolctl call git --json -- status
  toolctl call query --envelope '{"table": "users"}'`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, words []string) error {
			call, err := o.call(s, cmd, words)
			if err != nil {
				return err
			}
			return s.call(cmd.Context(), call, &o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.json, "json", false, "print the whole answer as JSON; text over 64 KiB is truncated")
	f.StringVar(&o.payload, "envelope", "", "a JSON object: the payload of an envelope call (- reads it from standard input)")
	f.BoolVar(&o.stdin, "stdin", false, "pass standard input to the tool when it reads input")
	f.StringVar(&o.cwd, "cwd", "", "the folder to call from (default this one)")
	f.StringVar(&o.key, "key", "", "idempotency key: a repeated call with it is not run again (default $TOOL_IDEMPOTENCY_KEY)")
	f.BoolVar(&o.retry, "retry", false, "rerun a stored failure of that key")
	f.StringVar(&o.session, "session", "", "the session the call belongs to (default $TOOL_SESSION)")
	f.BoolVar(&o.background, "background", false, "print the id of a job and let it run; see toolctl jobs")
	f.BoolVar(&o.detach, "detach", false, "let the job outlive its session")
	f.StringVar(&o.timeout, "timeout", "", "time limit: seconds, or with a unit, such as 1m30s (default $TOOL_TIMEOUT)")
	f.StringVar(&o.tokenFile, "token-file", "", "a file with the caller's token (default $TOOL_TOKEN, $TOOL_TOKEN_FILE)")
	f.StringArrayVar(&o.env, "env", nil, "NAME or NAME=VALUE: a variable for the tool, if it admits it")
	return cmd
}

type callOptions struct {
	json, stdin, retry bool
	background, detach bool
	payload, cwd, key  string
	session, timeout   string
	tokenFile          string
	env                []string
}

// call builds the call from the flags and variables.
func (o *callOptions) call(s *state, cmd *cobra.Command, words []string) (*wire.Call, error) {
	c := &wire.Call{
		Tool:           words[0],
		Args:           words[1:],
		Cwd:            o.cwd,
		Session:        first(o.session, os.Getenv("TOOL_SESSION")),
		IdempotencyKey: first(o.key, os.Getenv("TOOL_IDEMPOTENCY_KEY")),
		Retry:          o.retry,
		Background:     o.background,
		Detach:         o.detach,
	}
	var err error
	if c.Cwd == "" {
		if c.Cwd, err = os.Getwd(); err != nil {
			return nil, fmt.Errorf("find the current folder: %w; change to one that exists, or name one with --cwd", err)
		}
	}
	if t := first(o.timeout, os.Getenv("TOOL_TIMEOUT")); t != "" {
		if c.Timeout, err = parseTimeout(t); err != nil {
			return nil, usageError{err}
		}
	}
	c.Token = os.Getenv("TOOL_TOKEN")
	if file := first(o.tokenFile, os.Getenv("TOOL_TOKEN_FILE")); file != "" && (c.Token == "" || o.tokenFile != "") {
		if c.Token, err = s.readToken(file); err != nil {
			return nil, err
		}
	}
	for _, v := range o.env {
		name, value, ok := strings.Cut(v, "=")
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				return nil, usageError{fmt.Errorf("--env %s: this program has no such variable; write %s=VALUE", name, name)}
			}
		}
		if c.Env == nil {
			c.Env = map[string]string{}
		}
		c.Env[name] = value
	}

	if !cmd.Flags().Changed("envelope") {
		return c, nil
	}
	if len(c.Args) > 0 {
		return nil, usageError{fmt.Errorf("an envelope call has a payload instead of arguments; leave %q out", c.Args)}
	}
	payload := []byte(o.payload)
	if o.payload == "-" {
		if o.stdin {
			return nil, usageError{fmt.Errorf("--envelope - and --stdin both want the standard input; give the payload as text")}
		}
		if payload, err = io.ReadAll(io.LimitReader(s.in, wire.MaxFrame+1)); err != nil {
			return nil, fmt.Errorf("read the payload: %w", err)
		}
	}
	if c.Payload, err = jsonObject("the payload", payload); err != nil {
		return nil, err
	}
	c.Form, c.Args = wire.Envelope, nil
	c.ExecutionID = wire.NewExecutionID()
	return c, nil
}

// jsonObject returns text if it is a JSON object. what names the text in the error.
func jsonObject(what string, text []byte) (json.RawMessage, error) {
	text = bytes.TrimSpace(text)
	if !json.Valid(text) || text[0] != '{' {
		return nil, usageError{fmt.Errorf("%s is not a JSON object; write it as '{\"name\": \"value\"}'", what)}
	}
	return text, nil
}

// call makes the call and prints its result.
func (s *state) call(ctx context.Context, call *wire.Call, o *callOptions) error {
	// A call that is not streamed has its whole response in one frame, as --json and the data of an envelope need.
	// Standard input requires a stream.
	if (o.json || call.Form == wire.Envelope || call.Background) && !o.stdin {
		r, err := client.Call(ctx, s.places().Socket, call)
		if err != nil {
			return err
		}
		return s.answer(r, call.Form, o.json)
	}

	signals, stop := forwarded()
	defer stop()
	l := wire.Local{Stdout: s.out, Stderr: s.err, Signals: signals}
	var stdout, stderr bytes.Buffer
	if o.json || call.Form == wire.Envelope {
		l.Stdout, l.Stderr = &stdout, &stderr
	}
	if o.stdin {
		l.Stdin = s.in
	}
	r, err := client.Stream(ctx, s.places().Socket, call, l)
	if err != nil {
		return err
	}
	r.Stdout, r.Stderr = stdout.Bytes(), stderr.Bytes()
	return s.answer(r, call.Form, o.json)
}

// forwarded returns the signals to pass to the tool, until stop: the first is for the tool to handle; the second
// terminates this program.
func forwarded() (signals <-chan os.Signal, stop func()) {
	forward := make(chan os.Signal, 1)
	sent := make(chan os.Signal, 2)
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		// A process that a shell starts in the background ignores Ctrl-C, and must go on ignoring it.
		if !signal.Ignored(sig) {
			signal.Notify(sent, sig)
		}
	}
	over := make(chan struct{})
	go func() {
		select {
		case sig := <-sent:
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			forward <- sig
		case <-over:
		}
	}()
	return forward, func() {
		signal.Stop(sent)
		close(over)
	}
}

// answer prints a result whose text has not been printed yet, and converts it to a wrapper's exit code.
func (s *state) answer(r *wire.Result, form wire.Form, asJSON bool) error {
	if asJSON {
		var out bytes.Buffer
		if err := json.Indent(&out, wire.EncodeResult(form, r), "", "  "); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		fmt.Fprintln(s.out, out.String())
	} else {
		s.out.Write(r.Stdout)
		s.err.Write(r.Stderr)
		if len(r.Data) > 0 {
			fmt.Fprintf(s.out, "%s\n", r.Data)
		}
		if r.Truncated {
			fmt.Fprintf(s.err, "toolctl: the answer was cut; toolctl result %s prints all of it\n", r.ExecutionID)
		}
	}
	switch {
	case r.Err != nil && asJSON:
		return exitStatus(max(1, r.Exit()))
	case r.Err != nil:
		fmt.Fprintf(s.err, "toolctl: %s: %s\n", r.Err.Code, r.Err.Message)
		return exitStatus(max(1, r.Exit()))
	case r.ExitCode != 0:
		return exitStatus(r.ExitCode)
	}
	return nil
}

// parseTimeout parses a number of seconds, or a duration with a unit.
func parseTimeout(s string) (time.Duration, error) {
	text := s
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		text += "s"
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a timeout; write seconds, such as 30, or a duration with a unit, such as 1m30s", s)
	}
	return d, nil
}
