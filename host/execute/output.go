package execute

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/wire"
)

// capture keeps up to max bytes and drops the rest: a tool that writes more is not
// ended.
type capture struct {
	buf bytes.Buffer
	max int64
	cut bool
}

func (c *capture) Write(p []byte) (int, error) {
	room := c.max - int64(c.buf.Len())
	if int64(len(p)) > room {
		c.cut = true
		c.buf.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return c.buf.Write(p)
}

// maxTee bounds each streamed output that is kept for a record, in bytes: one more
// than a record may hold, so that too long an output is detected.
const maxTee = idempotency.MaxResult + 1

// output is where one attempt's output goes: to the caller as it comes, or into
// the result, in either case without secrets.
type output struct {
	stdout, stderr io.WriteCloser
	streamed       bool
	recorded       bool // streamed output is kept too
	kept           [2]capture
}

// newOutput returns the outputs of a. On the terminal t, unless it is nil, all output
// is filtered as the tool's definition says. end is called with errOverLimit when the
// output exceeds limits.stream.
func newOutput(a *call.Attempt, secrets [][]byte, t *wire.Terminal, end context.CancelCauseFunc) *output {
	o := &output{streamed: a.Streams.Stdout != nil, recorded: a.Mode != call.Off}
	var out, errw io.Writer = &o.kept[0], &o.kept[1]
	if !o.streamed {
		most := int64(a.Tool.Def.Limits.Output)
		o.kept[0].max, o.kept[1].max = most, most
	} else {
		out, errw = displayed(a, t, a.Streams.Stdout, a.Streams.Stderr)
		if o.recorded { // for the record, and to classify the exit
			o.kept[0].max, o.kept[1].max = maxTee, maxTee
			gone := new(atomic.Bool)
			out, errw = tee{out, &o.kept[0], a.Progress, gone}, tee{errw, &o.kept[1], a.Progress, gone}
		}
		if most := int64(a.Tool.Def.Limits.Stream); most > 0 {
			left := &atomic.Int64{}
			left.Store(most)
			out, errw = &limitWriter{out, left, end}, &limitWriter{errw, left, end}
		}
	}
	out, errw = a.Execution.CountOutput("stdout", out), a.Execution.CountOutput("stderr", errw)
	o.stdout, o.stderr = mask.Output(out, errw, secrets)
	// Also before masking: what the filter drops must not split a secret.
	out, errw = displayed(a, t, o.stdout, o.stderr)
	o.stdout, o.stderr = writeCloser{out, o.stdout}, writeCloser{errw, o.stderr}
	for _, note := range a.Notes {
		// A caller that no longer reads is detected by the tool's own output.
		fmt.Fprintf(o.stderr, "%s: note: %s\n", a.Tool.Name, strings.Join(strings.Fields(note), " "))
	}
	return o
}

// writeCloser closes what is behind its writer.
type writeCloser struct {
	io.Writer
	io.Closer
}

// finish closes the outputs and puts what was kept into res, or for streamed output
// into of.
func (o *output) finish(res *wire.Result, of *call.Outcome) error {
	err := errors.Join(o.stdout.Close(), o.stderr.Close())
	stdout, stderr := o.kept[0].buf.Bytes(), o.kept[1].buf.Bytes()
	switch {
	case !o.streamed:
		res.Stdout, res.Stderr = stdout, stderr
		res.Truncated = o.kept[0].cut || o.kept[1].cut
	case o.recorded:
		of.Streamed = &[2][]byte{stdout, stderr}
	}
	return err
}

// tee passes output on and keeps it. A call that outlives its caller keeps writing
// when nobody reads.
type tee struct {
	w        io.Writer
	kept     *capture
	progress *call.Progress
	gone     *atomic.Bool
}

func (t tee) Write(p []byte) (int, error) {
	t.kept.Write(p)
	if t.gone.Load() {
		return len(p), nil
	}
	n, err := t.w.Write(p)
	if err != nil && t.progress.GoesOn() {
		t.gone.Store(true)
		return len(p), nil
	}
	return n, err
}

// errOverLimit is the cause of the end of a call whose output is over limits.stream.
var errOverLimit = errors.New("the output is over the limits.stream of tool.json; ask for less of it")

// limitWriter passes on what is left of a call's limits.stream, which its two outputs
// share. The write that exceeds it ends the call, since the tool may ignore a failed
// write.
type limitWriter struct {
	w    io.Writer
	left *atomic.Int64
	end  context.CancelCauseFunc
}

func (l *limitWriter) Write(p []byte) (int, error) {
	over := -l.left.Add(int64(-len(p)))
	if over <= 0 {
		return l.w.Write(p)
	}
	l.end(errOverLimit)
	n, err := l.w.Write(p[:max(int64(len(p))-over, 0)])
	if err == nil {
		err = fault.Errorf(fault.LimitExceeded, "%w", errOverLimit)
	}
	return n, err
}
