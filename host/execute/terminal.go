package execute

import (
	"bytes"
	"context"
	"io"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/display"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// offeredTerminal returns the terminal that the caller offers if the tool is given
// one and this system can isolate it (isolated). Otherwise it returns nil, and the
// tool has pipes.
//
// A job, a turn and a call that a module makes have no one who types.
func offeredTerminal(a *call.Attempt, isolated bool) *wire.Terminal {
	if a.Streams.Stdin == nil || !a.Tool.Def.Terminal || a.By != nil || a.Execution.Kind != session.KindCall || !isolated {
		return nil
	}
	return a.Streams.Terminal
}

// describe sets the type of the terminal t in env, unless the tool pins it.
func describe(t *wire.Terminal, env map[string]string) {
	for name, value := range map[string]string{"TERM": t.Term, "COLORTERM": t.ColorTerm} {
		if _, set := env[name]; !set && value != "" {
			env[name] = value
		}
	}
}

// attach makes t, which is open, the terminal of c, which has the streams of a,
// until the caller leaves. end must be called when c has ended.
func attach(ctx context.Context, a *call.Attempt, c *process.Command, t *wire.Terminal) (end func() bool) {
	gone := make(chan struct{})
	end = context.AfterFunc(ctx, func() {
		if context.Cause(ctx) == wire.ErrLeft {
			close(gone)
		}
	})
	c.Terminal = &process.Terminal{Size: process.Size{Rows: t.Rows, Cols: t.Cols}, Sizes: t.Sizes, Gone: gone, Stopped: t.Stopped, Stderr: t.Stderr}
	if t.Stderr { // the daemon's own messages
		c.Stderr = lineWriter{c.Stderr}
	}
	if a.Input.Wanted && !a.Input.Fixed && len(a.Input.Bytes) == 0 {
		c.Terminal.Input, c.Terminal.Stdin = c.Stdin, true
	} else {
		// Standard input stays what the policy set, or empty.
		c.Terminal.Input = countedInput{a.Streams.Stdin(), a.Execution}
	}
	return end
}

// lineWriter writes lines to a terminal in raw mode, which needs a carriage return
// too.
type lineWriter struct{ w io.Writer }

func (l lineWriter) Write(p []byte) (int, error) {
	if _, err := l.w.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// onTerminal adds to secrets of several lines the form that a terminal writes.
func onTerminal(secrets [][]byte) [][]byte {
	for _, s := range secrets {
		if bytes.IndexByte(s, '\n') >= 0 {
			secrets = append(secrets, bytes.ReplaceAll(s, []byte("\n"), []byte("\r\n")))
		}
	}
	return secrets
}

// displayed returns the two outputs of a call, filtering what its tool writes to the
// terminal t. Without a terminal, or if the tool's definition allows all output, it
// returns them unchanged.
func displayed(a *call.Attempt, t *wire.Terminal, stdout, stderr io.Writer) (_, _ io.Writer) {
	if t == nil || a.Tool.Def.TerminalOutput == tools.TerminalAll {
		return stdout, stderr
	}
	stdout = display.New(stdout)
	if t.Stderr {
		stderr = display.New(stderr)
	}
	return stdout, stderr
}
