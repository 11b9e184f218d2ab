package host

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// apply makes the call what a policy decided.
func (k *call) apply(d *abi.Decision) error {
	k.rule = d.Rule
	if k.sent == nil {
		k.sent = &sent{k.Env, k.Stdin}
	}
	if d.Args != nil {
		if k.offered != nil && !slices.Equal(d.Args, k.Args) {
			return fmt.Errorf("args: %s takes its payload, and other arguments change nothing in that", k.Tool)
		}
		k.Args = d.Args
	}
	if d.Env != nil {
		k.Env = d.Env
	}
	if d.StdinBase64 != nil {
		b, err := base64.StdEncoding.DecodeString(*d.StdinBase64)
		if err != nil {
			return fmt.Errorf("stdin_base64: %w", err)
		}
		k.Stdin, k.rewroteStdin = b, true
	}
	if k.command && (d.Args != nil || d.StdinBase64 != nil) {
		var err error
		if k.rewritten, err = json.Marshal(struct {
			Args  []string `json:"args"`
			Cwd   string   `json:"cwd"`
			Stdin []byte   `json:"stdin,omitempty"`
		}{append([]string{}, k.Args...), k.Cwd, k.Stdin}); err != nil {
			return err
		}
	}
	if d.Stdin != nil {
		k.wantStdin = *d.Stdin
	}
	if d.Mutating != nil {
		k.mutating = *d.Mutating
	}
	if d.Idempotent != nil {
		k.idempotent = *d.Idempotent
	}
	if d.IdempotencyKey != "" {
		k.IdempotencyKey = d.IdempotencyKey
	}
	if d.Shell {
		k.allowShell(d.ShellLines)
	}
	return nil
}

// allowShell lets the call have a shell for lines; none is any. Where two policies
// name some, those that both name remain.
func (k *call) allowShell(lines []string) {
	k.shell = true
	switch {
	case len(lines) == 0:
	case k.shellLines == nil:
		k.shellLines = lines
	default:
		k.shellLines = slices.DeleteFunc(slices.Clone(k.shellLines), func(line string) bool { return !slices.Contains(lines, line) })
	}
}

// payload is what a module finds there: as it came, but with what the policies
// made of the arguments and the input.
func (k *call) payload() json.RawMessage {
	if k.rewritten != nil {
		return k.rewritten
	}
	return k.Payload
}

// input is what the execution reads: what a policy put there or the request
// brought, else what the caller streams, when the call wants any.
//
// What steers the call is read there too: it is all that a turn reads, and comes
// in between what a caller streams. A guest that has no input else is given it
// by receiver.
func (k *call) input() io.ReadCloser {
	guest := k.tool.Kind == tools.Handler
	switch {
	case k.rewroteStdin || len(k.Stdin) > 0:
		if !guest {
			k.running.NoInput("the input of the call came with it")
		}
		return io.NopCloser(bytes.NewReader(k.Stdin))
	case k.running.Kind == session.KindTurn && (k.wantStdin || guest):
		return k.running.Input(true)
	case k.wantStdin && k.streams.Stdin != nil:
		in := k.streams.Stdin()
		k.running.PassInput(k.streams.Steer)
		return countedInput{in, k.running}
	case !guest:
		k.running.NoInput("the tool takes no input in this call")
	}
	return nil
}

// countedInput is what a caller streams, counted for its session.
type countedInput struct {
	io.ReadCloser
	x *session.Execution
}

func (c countedInput) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.x.AddInput(n)
	return n, err
}

// output is where one call's output goes: to the caller as it comes, or into
// the result, in either case without secrets.
type output struct {
	stdout, stderr io.WriteCloser
	kept           [2]capture
}

func (h *Host) newOutput(k *call, secrets [][]byte) *output {
	o := &output{}
	if k.streams.Stdout != nil && k.stance != absent {
		k.teeStreams()
	}
	var out, errw io.Writer = k.streams.Stdout, k.streams.Stderr
	if k.streams.Stdout == nil {
		most := int64(k.tool.Def.Limits.Output)
		o.kept[0].max, o.kept[1].max = most, most
		out, errw = &o.kept[0], &o.kept[1]
	} else if most := int64(k.tool.Def.Limits.Stream); most > 0 {
		left := &atomic.Int64{}
		left.Store(most)
		out, errw = &limitWriter{out, left}, &limitWriter{errw, left}
	}
	out, errw = k.running.Watch(out), k.running.Watch(errw)
	o.stdout, o.stderr = maskOutput(out, errw, secrets)
	return o
}

// limitWriter passes on what is left of a call's limits.stream, which its two
// outputs share; the write that goes past it ends the call.
type limitWriter struct {
	w    io.Writer
	left *atomic.Int64
}

func (l *limitWriter) Write(p []byte) (int, error) {
	over := -l.left.Add(int64(-len(p)))
	if over <= 0 {
		return l.w.Write(p)
	}
	n, err := l.w.Write(p[:max(int64(len(p))-over, 0)])
	if err == nil {
		err = fault.Errorf(fault.LimitExceeded, "the output is over the limits.stream of tool.json; ask for less of it")
	}
	return n, err
}

// finish puts what was kept into res.
func (o *output) finish(res *wire.Result) error {
	err := errors.Join(o.stdout.Close(), o.stderr.Close())
	res.Stdout, res.Stderr = o.kept[0].buf.Bytes(), o.kept[1].buf.Bytes()
	res.Truncated = o.kept[0].cut || o.kept[1].cut
	return err
}

// execute runs what was decided, as the tool says it is run.
func (h *Host) execute(ctx context.Context, k *call) (*wire.Result, error) {
	// The journal has the intent before anything runs.
	if _, err := k.running.Attempt(k.mutating); err != nil {
		return nil, err
	}
	if k.tool.Kind == tools.Binary {
		return h.executeBinary(ctx, k)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// A guest has no signals: the first one ends it.
	if k.streams.Signals != nil {
		done := make(chan struct{})
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			select {
			case sig := <-k.streams.Signals:
				end(signalled{sig})
			case <-done:
			}
		}()
		defer func() { close(done); <-stopped }()
	}
	var res *wire.Result
	var err error
	if k.tool.Kind == tools.WASI {
		res, err = h.executeWASI(ctx, k)
	} else if k.offered != nil {
		res, err = h.executeOffered(ctx, k)
	} else {
		res, err = h.executeHandler(ctx, k)
	}
	var s signalled
	if err != nil && errors.As(context.Cause(ctx), &s) {
		if res == nil {
			res = &wire.Result{}
		}
		res.Ran, res.ExitCode = true, 128+s.number()
		return res, fault.Errorf(fault.Aborted, "%w", s)
	}
	return res, err
}

// signalled is why a guest ended that the caller sent a signal.
type signalled struct{ sig os.Signal }

func (s signalled) Error() string { return "ended by " + s.sig.String() }

func (s signalled) number() int {
	if n, ok := s.sig.(syscall.Signal); ok {
		return int(n)
	}
	return int(syscall.SIGTERM)
}

func (h *Host) executeBinary(ctx context.Context, k *call) (*wire.Result, error) {
	home, err := h.home(k)
	if err != nil {
		return nil, err
	}
	env := h.environment(k, home)
	maps.Copy(env, k.Env)
	secrets, err := h.secrets(k)
	if err != nil {
		return nil, err
	}
	private := ""
	if !k.shell {
		if private, err = h.handOver(secrets, env); err != nil {
			return nil, err
		}
		if private != "" {
			defer os.RemoveAll(private)
		}
	}
	// A shell is for a call whose policy asks for it, and is then given nothing
	// but the lines that the policy names, where it names any.
	exec, lines := []string{k.tool.Binary}, k.shellLines
	for _, p := range k.tool.Def.Capabilities.Exec {
		if k.shell || !process.IsShell(p) {
			exec = append(exec, p)
		}
	}
	if !k.shell {
		lines = []string{}
	}
	out := h.newOutput(k, values(secrets))
	if err := h.hiddenWhole(); err != nil {
		return nil, err
	}
	if err := k.begin(ctx); err != nil {
		return nil, err
	}
	confine := h.confine(k, home, exec)
	confine.ShellLines = lines
	if private != "" {
		confine.Write = append(confine.Write, private)
	}
	exit, err := h.runner.Run(ctx, process.Command{
		Path:    k.tool.Binary,
		Args:    k.Args,
		Dir:     k.Cwd,
		Roots:   k.roots,
		Env:     environ(env),
		Stdin:   k.input(),
		Stdout:  out.stdout,
		Stderr:  out.stderr,
		Signals: k.streams.Signals,
		Confine: confine,
	})
	h.executed(k, exit)
	k.killed = exit.Signal != 0
	k.notStarted(err, fault.ToolNotInstalled, fault.ToolBroken, fault.InvalidPayload, fault.Overloaded)
	res := &wire.Result{ExitCode: exitCode(exit), Ran: err == nil}
	// What was written before the end is kept, however it ended.
	err = errors.Join(err, out.finish(res))
	if err == nil {
		h.classify(ctx, k, res)
	}
	return res, err
}

func exitCode(e process.Exit) int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// exitByte is the exit code of a module as a wrapper can end with it. What is no
// byte is 255: cut off, 256 would be a success.
func exitByte(code int) int {
	if code < 0 || code > 255 {
		return 255
	}
	return code
}

// executed journals the programs that a binary executed, and logs those that it
// was refused.
func (h *Host) executed(k *call, exit process.Exit) {
	for _, p := range exit.Programs {
		k.running.AddProgram(p.Path, p.Refused)
		if p.Refused != "" {
			h.log.Warn("program refused", "tool", k.tool.Name, "execution_id", k.ExecutionID, "path", p.Path, "reason", p.Refused)
		}
	}
}

func (h *Host) executeHandler(ctx context.Context, k *call) (*wire.Result, error) {
	secrets, err := h.secrets(k)
	if err != nil {
		return nil, err
	}
	var in []byte
	var stdin io.ReadCloser
	switch k.tool.Entry.Input {
	case tools.EntryCall:
		in, err = json.Marshal(h.abiCall(ctx, k))
		stdin = k.input()
	case tools.EntryPayload:
		in = k.payload()
		stdin = k.input()
	case tools.EntryStdin: // the input of the export is the input of the call
		if r := k.input(); r != nil {
			stop := context.AfterFunc(ctx, func() { r.Close() }) // which ends a Read
			in, err = io.ReadAll(io.LimitReader(r, maxEntryInput+1))
			stop()
			r.Close()
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if len(in) > maxEntryInput {
				return nil, fault.Errorf(fault.LimitExceeded, "the input is over the %d bytes that a module takes at once", maxEntryInput)
			}
		}
	}
	if err != nil {
		return nil, fault.Errorf(fault.Internal, "read the input of %s: %w", k.tool.Name, err)
	}
	if stdin != nil {
		defer stdin.Close()
	}
	out := h.newOutput(k, values(secrets))
	inv := h.invocation(k, k.tool.Entry.Export, in)
	inv.Emit = func(stream string, p []byte) error {
		var err error
		switch stream {
		case "stderr":
			_, err = out.stderr.Write(p)
		case "progress":
			if k.streams.Progress != nil {
				err = k.streams.Progress(maskJSON(p, values(secrets)))
			}
		default:
			_, err = out.stdout.Write(p)
		}
		return err
	}
	inv.Recv = receiver(ctx, stdin)
	if err := k.begin(ctx); err != nil {
		return nil, err
	}
	k.answered = true
	reply, err := k.tool.Handler.Call(ctx, inv)
	h.spent(k, reply.Stats)
	if reply.Stats.Fuel == 0 {
		k.notStarted(err, fault.ToolBroken, fault.Overloaded)
	}
	res := &wire.Result{}
	if err == nil {
		err = k.answer(res, out, reply.Output)
	} else {
		err = k.blameUpstream(err)
	}
	ferr := out.finish(res)
	res.Data = maskJSON(res.Data, values(secrets))
	var e *fault.Error
	if errors.As(err, &e) {
		if masked := maskText(e.Message, values(secrets)); masked != e.Message {
			e.Message, e.Cause = masked, nil
		}
	}
	return res, errors.Join(err, ferr)
}

// spent adds what one call of a module took to what k took.
func (h *Host) spent(k *call, s guest.Stats) {
	if k.usage == nil {
		k.usage = &wire.Usage{}
	}
	k.usage.Fuel += s.Fuel
	k.running.AddFuel(s.Fuel)
	k.usage.Memory = max(k.usage.Memory, s.PeakMemory)
	k.usage.Pages += int64(s.PagesRestored)
	h.metrics.Spent(k.tool.Name, s.Fuel, s.PeakMemory, s.PagesRestored)
}

// maxEntryInput bounds, in bytes, what is read of a caller's input for a
// module that takes it all at once.
const maxEntryInput = 16 << 20

// answer reads what a handler returned into res and writes its text out.
func (k *call) answer(res *wire.Result, out *output, reply []byte) error {
	if k.tool.Entry.Output == tools.EntryStdout {
		res.Ran = true
		_, err := out.stdout.Write(reply)
		return err
	}
	var r abi.Result
	if err := strictjson.Unmarshal(reply, &r); err != nil {
		return fault.Errorf(fault.ToolBroken, "%s answered no result: %w", k.tool.Name, err)
	}
	k.said = r
	if r.Gone && k.offered != nil {
		return errGone
	}
	stdout, err := text(r.Stdout, r.StdoutBase64)
	if err != nil {
		return fault.Errorf(fault.ToolBroken, "%s answered a malformed stdout_base64: %w", k.tool.Name, err)
	}
	stderr, err := text(r.Stderr, r.StderrBase64)
	if err != nil {
		return fault.Errorf(fault.ToolBroken, "%s answered a malformed stderr_base64: %w", k.tool.Name, err)
	}
	res.Ran, res.ExitCode, res.Data = true, exitByte(r.ExitCode), r.Data
	if _, err := out.stdout.Write(stdout); err != nil {
		return err
	}
	if _, err := out.stderr.Write(stderr); err != nil {
		return err
	}
	if r.Error != nil {
		if res.ExitCode == 0 {
			res.ExitCode = 1
		}
		msg := r.Error.Message
		if r.Error.Code != "" {
			msg = r.Error.Code + ": " + msg
		}
		return &fault.Error{Code: fault.ToolFailed, Message: msg, MayRetry: r.Error.Retriable}
	}
	return nil
}

func text(s, b64 string) ([]byte, error) {
	if b64 == "" {
		return []byte(s), nil
	}
	return base64.StdEncoding.DecodeString(b64)
}

// receiver reads the caller's input in pieces of at most 64 KiB; the end of
// the input is io.EOF. A read ends with the call.
func receiver(ctx context.Context, r io.ReadCloser) func(context.Context) ([]byte, error) {
	var buf []byte
	return func(context.Context) ([]byte, error) {
		if r == nil {
			return nil, io.EOF
		}
		if buf == nil {
			buf = make([]byte, 64<<10)
		}
		stop := context.AfterFunc(ctx, func() { r.Close() })
		defer stop()
		n, err := r.Read(buf)
		if n > 0 {
			return buf[:n], nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
}

func (h *Host) executeWASI(ctx context.Context, k *call) (*wire.Result, error) {
	secrets, err := h.secrets(k)
	if err != nil {
		return nil, err
	}
	stdin := k.input()
	if stdin != nil {
		defer stdin.Close()
	}
	env := maps.Clone(k.tool.Def.Environment)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, k.Env)
	out := h.newOutput(k, values(secrets))
	cmd := guest.Command{
		Args:   append([]string{k.tool.Name}, k.Args...),
		Env:    environ(env),
		Stdout: out.stdout,
		Stderr: out.stderr,
	}
	if stdin != nil {
		cmd.Stdin = stdin
	}
	if err := k.begin(ctx); err != nil {
		return nil, err
	}
	code, stats, err := k.tool.Handler.Run(ctx, cmd)
	h.spent(k, stats)
	if stats.Fuel == 0 {
		k.notStarted(err, fault.ToolBroken, fault.Overloaded)
	}
	res := &wire.Result{ExitCode: exitByte(code), Ran: err == nil}
	return res, errors.Join(err, out.finish(res))
}
