// Package execute runs decided calls: a binary, a module's handler or a WASI program,
// with the environment, the secrets and the host functions that the tool grants, and
// nothing else.
//
// Executor.Run makes one attempt at a call; Executor.Ask calls a module of its tool
// once, which is how policies, discoveries and classifications are run too. Secrets
// are masked in everything that leaves the package.
package execute

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// Run executes a once, as its tool defines. Output goes to the caller's streams as it
// is written, or into the result. Result.Err has a code; if ctx ended the attempt, it
// is the cause of ctx.
func (e *Executor) Run(ctx context.Context, a call.Attempt) call.Outcome {
	// The intent is in the journal before anything runs.
	if _, err := a.Execution.Attempt(a.Class.Mutating); err != nil {
		return call.Failed(ctx, err)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r := &running{Executor: e, Attempt: a, end: end}
	var err error
	if a.Tool.Kind == tools.Binary {
		err = r.binary(ctx)
	} else {
		err = r.module(ctx)
	}
	if context.Cause(ctx) == errOverLimit {
		// Whatever it returned when it was ended.
		err = fault.Errorf(fault.LimitExceeded, "%w", errOverLimit)
		r.res.Ran, r.res.MayRetry, r.ExitFailed = false, false, false
	}
	r.Outcome.Result = &r.res
	r.res.Err = call.AsError(ctx, err)
	return r.Outcome
}

// running is a running attempt. It is used by one goroutine.
type running struct {
	*Executor
	call.Attempt
	call.Outcome
	res      wire.Result
	upstream Upstream
	end      context.CancelCauseFunc
}

// begin records that the tool itself is about to start, unless ctx has ended.
func (r *running) begin(ctx context.Context) error {
	if err := r.Progress.Begin(ctx); err != nil {
		return err
	}
	r.Began = true
	return nil
}

// notStarted undoes begin if err has one of codes: the tool was not started after
// all.
func (r *running) notStarted(err error, codes ...fault.Code) {
	if e, ok := errors.AsType[*fault.Error](err); ok && slices.Contains(codes, e.Code) {
		r.Progress.TakeBack(r.Number)
		r.Began = false
	}
}

// credentials prepares the secrets that the daemon adds to connections, and puts the
// others into env or into files in the folder private, which the caller removes, even
// after an error.
func (r *running) credentials(secrets []secret, env map[string]string) (of links, private string, err error) {
	if r.Shell.Allowed { // a shell could print them
		secrets = nil
	}
	if of.http, err = r.readHTTP(r.Tool, secrets); err != nil {
		return of, "", err
	}
	if private, err = r.handOver(r.Tool, secrets, env); err != nil {
		return of, private, err
	}
	if !r.Class.Mutating { // it makes no commit to sign
		secrets = slices.DeleteFunc(slices.Clone(secrets), func(s secret) bool { return s.SSHSign })
	}
	of.keys, err = r.sshKeys(secrets, env)
	return of, private, err
}

// programs returns the programs that the binary may execute, including itself, and
// the lines to which a shell is limited; nil means no limit. If there is a policy,
// only a call whose policy asks for a shell gets one, limited to the lines that the
// policy names, if any.
func (r *running) programs() (exec, lines []string) {
	withheld := len(r.Tool.Policies) > 0 && !r.Shell.Allowed
	exec, lines = []string{r.Tool.Binary}, r.Shell.Lines
	for _, p := range r.Tool.Def.Capabilities.Exec {
		if !withheld || !confine.IsShell(p) {
			exec = append(exec, p)
		}
	}
	if withheld {
		lines = []string{}
	}
	return exec, lines
}

// binary runs the tool's program.
func (r *running) binary(ctx context.Context) error {
	home, err := makeHome(r.Executor.Config.Config().State, &r.Pinned)
	if err != nil {
		return err
	}
	env := environment(&r.Pinned, home, r.Trace, r.Runner.Confinement())
	maps.Copy(env, r.Env)
	secrets, err := r.secrets(&r.Pinned)
	if err != nil {
		return err
	}
	links, private, err := r.credentials(secrets, env)
	if private != "" {
		defer disk.RemoveTree(private)
	}
	if err != nil {
		return err
	}
	read, release, err := r.trust(links, env)
	if err != nil {
		return err
	}
	defer release()
	exec, lines := r.programs()
	if links.keys.Program != "" {
		exec = append(exec, links.keys.Program)
	}
	if folder, err := r.lfs(&r.Pinned, env); err != nil {
		return err
	} else if folder != "" {
		exec = append(exec, folder)
	}
	masked, terminal := values(secrets), offeredTerminal(&r.Attempt, r.Runner.Confinement().Terminals())
	if terminal != nil {
		masked = onTerminal(masked)
		describe(terminal, env)
	}
	out := newOutput(&r.Attempt, masked, terminal, r.end)
	if err := r.hiddenWhole(); err != nil {
		return err
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	confine := r.confine(&r.Pinned, home, exec)
	confine.ShellLines, confine.Interpreters, confine.Read = lines, r.Tool.Interpreters[r.Tool.Binary], read
	if private != "" {
		confine.Write = append(confine.Write, private)
	}
	if terminal != nil {
		terminal.Open() // before anything else asks for input
	}
	command := process.Command{
		Path:    r.Tool.Binary,
		Args:    r.Args,
		Dir:     r.Cwd,
		Roots:   r.Roots,
		Folder:  folderOf(&r.Decided),
		Env:     environ(env),
		Stdin:   openInput(&r.Attempt),
		Stdout:  out.stdout,
		Stderr:  out.stderr,
		Signals: r.Streams.Signals,
		Confine: confine,
	}
	if terminal != nil {
		defer attach(ctx, &r.Attempt, &command, terminal)()
	}
	if len(r.Callbacks.Allowed) > 0 {
		relay, err := r.relay(ctx, &r.Attempt, &command, values(secrets))
		if err != nil {
			return err
		}
		defer relay.Close()
		links.relayed = relay.Socket()
	}
	exit, err := r.run(ctx, &r.Decided, r.Number, r.Trace, links, command)
	return r.ended(ctx, exit, err, out)
}

// ended records how the program of a call ended, and its output.
func (r *running) ended(ctx context.Context, exit process.Exit, err error, out *output) error {
	err = tools.Explain(err)
	r.Killed = exit.Signal != 0
	r.notStarted(err, fault.ToolNotInstalled, fault.ToolBroken, fault.InvalidPayload, fault.Overloaded)
	r.res.ExitCode, r.res.Ran = exitCode(exit), err == nil
	// Output is kept however the program ended.
	err = errors.Join(err, out.finish(&r.res, &r.Outcome))
	if err == nil && r.Mode != call.Off {
		r.classify(ctx)
	}
	return err
}

// trust makes the programs of a call trust the authority of its session, if its
// requests are read, and sets the variables for that in env. read are the files that
// they need to read.
func (r *running) trust(links links, env map[string]string) (read []string, release func(), err error) {
	if links.http == nil {
		return nil, func() {}, nil
	}
	trusted, release, err := r.trusts.Take(r.Executor.Config.Config().State, r.Tool.Name, r.Tool.Def.Environment, links.http.Hosts)
	if err != nil {
		return nil, nil, err
	}
	links.http.Authority = trusted.Authority
	maps.Copy(env, trusted.Env)
	return trusted.Files, release, nil
}

// module runs a handler or a WASI program. A guest has no signals: the first one
// ends it.
func (r *running) module(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if r.Streams.Signals != nil {
		done := make(chan struct{})
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case sig := <-r.Streams.Signals:
					if sig == syscall.SIGTSTP || sig == syscall.SIGCONT {
						continue // these do not end it
					}
					end(signalled{sig})
				case <-done:
				}
				return
			}
		}()
		defer func() { close(done); <-stopped }()
	}
	var err error
	if r.Tool.Kind == tools.WASI {
		err = r.wasi(ctx)
	} else {
		err = r.handler(ctx)
	}
	var s signalled
	if err != nil && errors.As(context.Cause(ctx), &s) {
		r.res.Ran, r.res.ExitCode = true, 128+s.number()
		return fault.Errorf(fault.Aborted, "%w", s)
	}
	if err != nil {
		return call.AsError(ctx, err) // while ctx can tell why
	}
	return nil
}

// maxEntryInput bounds the caller's input for a module that takes it all at once, in
// bytes.
const maxEntryInput = 16 << 20

func (r *running) handler(ctx context.Context) error {
	secrets, err := r.secrets(&r.Pinned)
	if err != nil {
		return err
	}
	in, stdin, err := r.handlerInput(ctx)
	if err != nil {
		return err
	}
	if stdin != nil {
		defer stdin.Close()
	}
	out := newOutput(&r.Attempt, values(secrets), nil, r.end)
	q := Question{Call: &r.Pinned, Module: r.Tool.Handler, Export: r.Tool.Entry.Export, Input: in, Trace: r.Trace, Upstream: &r.upstream, decided: &r.Decided, changes: r.Class.Mutating}
	q.services.Emit = func(stream string, p []byte) error {
		var err error
		switch stream {
		case "stderr":
			_, err = out.stderr.Write(p)
		case "progress":
			if r.Streams.Progress != nil {
				err = r.Streams.Progress(mask.JSON(p, values(secrets)))
			}
		default:
			_, err = out.stdout.Write(p)
		}
		return err
	}
	if q.services.Recv = receiver(ctx, stdin); stdin == nil && r.Streams.Receive != nil {
		q.services.Recv = func(context.Context) ([]byte, error) {
			defer r.Clock.Pause()() // the time of the caller's answer does not count as the tool's
			return r.Streams.Receive(ctx)
		}
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	r.upstream.answered = true
	reply, err := r.Ask(ctx, q)
	if reply.Stats.Fuel == 0 {
		r.notStarted(err, fault.ToolBroken, fault.Overloaded)
	}
	if err == nil {
		err = r.answer(out, reply.Output)
	} else {
		err = r.upstream.blame(err)
	}
	r.RetryAfter = r.upstream.retryAfter
	r.Outcome.Unanswered = err != nil && r.upstream.lost
	ferr := out.finish(&r.res, &r.Outcome)
	r.res.Data = mask.JSON(r.res.Data, values(secrets))
	var e *fault.Error
	if errors.As(err, &e) {
		if masked := mask.Text(e.Message, values(secrets)); masked != e.Message {
			e.Message, e.Cause = masked, nil
		}
		e.ToolCode = toolCode(e.ToolCode, values(secrets))
	}
	if r.Answer != nil && r.Answer.Error != nil {
		said := *r.Answer.Error
		said.Message = mask.Text(said.Message, values(secrets))
		r.Answer.Error = &said
	}
	return errors.Join(err, ferr)
}

// handlerInput returns the argument of the export of a handler, and the input that it
// can read besides.
func (r *running) handlerInput(ctx context.Context) (in []byte, stdin io.ReadCloser, err error) {
	if r.Tool.MCP != nil {
		in, err = mcpInput(&r.Decided)
		if err != nil {
			err = fault.Errorf(fault.Internal, "write the request for %s: %w", r.Tool.Name, err)
		}
		return in, openInput(&r.Attempt), err
	}
	switch r.Tool.Entry.Input {
	case tools.EntryCall:
		in, err = json.Marshal(ABICall(ctx, &r.Decided, r.Number))
		stdin = openInput(&r.Attempt)
	case tools.EntryPayload:
		in, stdin = r.Payload, openInput(&r.Attempt)
	case tools.EntryStdin: // the input of the export is the input of the call
		s := openInput(&r.Attempt)
		if s == nil {
			break
		}
		stop := context.AfterFunc(ctx, func() { s.Close() }) // interrupts Read
		in, err = io.ReadAll(io.LimitReader(s, maxEntryInput+1))
		stop()
		s.Close()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if len(in) > maxEntryInput {
			return nil, nil, fault.Errorf(fault.LimitExceeded, "the input is over the %d bytes that a module takes at once", maxEntryInput)
		}
	}
	if err != nil {
		return nil, nil, fault.Errorf(fault.Internal, "read the input of %s: %w", r.Tool.Name, err)
	}
	return in, stdin, nil
}

// mcpInput returns the request to a plugin of a host of MCP tools, with the name that
// the plugin gave the tool.
func mcpInput(d *call.Decided) ([]byte, error) {
	name := d.Tool.MCPName
	if d.Discovered != nil {
		if err := json.Unmarshal([]byte(d.Discovered.Binding), &name); err != nil {
			return nil, err
		}
	}
	return d.Tool.MCP.Input(name, d.Payload)
}

// answer reads what a handler returned into the result and writes its text out.
func (r *running) answer(out *output, reply []byte) error {
	if r.Tool.Entry.Output == tools.EntryStdout {
		r.res.Ran = true
		_, err := out.stdout.Write(reply)
		return err
	}
	var said abi.Result
	if r.Tool.MCP != nil {
		result, err := r.Tool.MCP.Result(reply)
		if err != nil {
			return fault.Errorf(fault.ToolBroken, "%s: %w", r.Tool.Name, err)
		}
		said = *result
	} else if err := strictjson.Unmarshal(reply, &said); err != nil {
		return fault.Errorf(fault.ToolBroken, "%s answered no result: %w", r.Tool.Name, err)
	}
	r.Answer = &said
	if said.Gone && r.Discovered != nil {
		return tools.Unknown(r.Call.Tool)
	}
	stdout, err := text(said.Stdout, said.StdoutBase64)
	if err != nil {
		return fault.Errorf(fault.ToolBroken, "%s answered a malformed stdout_base64: %w", r.Tool.Name, err)
	}
	stderr, err := text(said.Stderr, said.StderrBase64)
	if err != nil {
		return fault.Errorf(fault.ToolBroken, "%s answered a malformed stderr_base64: %w", r.Tool.Name, err)
	}
	r.res.Ran, r.res.ExitCode, r.res.Data = true, exitByte(said.ExitCode), said.Data
	if _, err := out.stdout.Write(stdout); err != nil {
		return err
	}
	if _, err := out.stderr.Write(stderr); err != nil {
		return err
	}
	if said.Error != nil {
		if r.res.ExitCode == 0 {
			r.res.ExitCode = 1
		}
		msg := said.Error.Message
		if said.Error.Code != "" {
			msg = said.Error.Code + ": " + msg
		}
		return &fault.Error{Code: fault.ToolFailed, Message: msg, MayRetry: said.Error.Retriable && !r.upstream.refused, ToolCode: said.Error.Code}
	}
	if said.ExitCode == 0 {
		if err := r.CheckOutput(said.Data); err != nil {
			r.res.Data = nil // it does not match the schema
			return err
		}
	}
	return nil
}

// maxToolCode bounds a tool's own error code, in bytes.
const maxToolCode = 64

// toolCode returns a tool's own error code as callers see it: without control
// characters, which a terminal would interpret and which could hide a secret from
// masking, and cut between characters.
func toolCode(code string, secrets [][]byte) string {
	code = printable(code)
	if code = mask.Text(code, secrets); len(code) > maxToolCode {
		code = strings.ToValidUTF8(code[:maxToolCode], "")
	}
	return code
}

func text(s, b64 string) ([]byte, error) {
	if b64 == "" {
		return []byte(s), nil
	}
	return base64.StdEncoding.DecodeString(b64)
}

func (r *running) wasi(ctx context.Context) error {
	secrets, err := r.secrets(&r.Pinned)
	if err != nil {
		return err
	}
	stdin := openInput(&r.Attempt)
	if stdin != nil {
		defer stdin.Close()
	}
	env := maps.Clone(r.Tool.Def.Environment)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, r.Env)
	out := newOutput(&r.Attempt, values(secrets), nil, r.end)
	cmd := guest.Command{
		Args:   append([]string{r.Tool.Name}, r.Args...),
		Env:    environ(env),
		Stdout: out.stdout,
		Stderr: out.stderr,
	}
	if stdin != nil {
		cmd.Stdin = stdin
	}
	if cmd.Fuel, err = fuelOf(&r.Pinned); err != nil {
		return err
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	code, stats, err := r.Tool.Handler.Run(ctx, cmd)
	err = tools.Explain(err)
	r.spent(&r.Pinned, stats)
	if stats.Fuel == 0 {
		r.notStarted(err, fault.ToolBroken, fault.Overloaded)
	}
	r.res.ExitCode, r.res.Ran = exitByte(code), err == nil
	return errors.Join(err, out.finish(&r.res, &r.Outcome))
}

// classify decides whether the exit of a binary is a failure, and one to retry: by
// reliability.retriable_exits, else by the classify export of the innermost policy
// that has one.
func (r *running) classify(ctx context.Context) {
	if !r.res.Ran {
		return
	}
	if slices.Contains(r.Tool.Def.Reliability.RetriableExits, r.res.ExitCode) {
		r.ExitFailed, r.res.MayRetry = true, true
		return
	}
	for i := len(r.Tool.Policies) - 1; i >= 0; i-- {
		policy := r.Tool.Policies[i]
		if !policy.Has("classify") {
			continue
		}
		c, err := r.askClassify(ctx, policy, r.Tool.PolicyFiles[i])
		if err != nil {
			// The tool ran: an exit that cannot be classified is neither retried nor
			// counted.
			r.Log.Error("exit not classified", "tool", r.Tool.Name, "execution_id", r.ExecutionID, "error", call.AsError(ctx, err).Message)
			return
		}
		r.ExitFailed, r.res.MayRetry = c.Failure, c.Failure && c.Retriable
		return
	}
}

// maxClassified is how many bytes from the end of each output a classify export gets:
// programs report there why they failed.
const maxClassified = 16 << 10

func (r *running) askClassify(ctx context.Context, policy *guest.Module, file string) (*abi.Classification, error) {
	tail := func(b []byte) string {
		return strings.ToValidUTF8(string(b[max(0, len(b)-maxClassified):]), "\uFFFD")
	}
	stdout, stderr := r.res.Stdout, r.res.Stderr
	if r.Streamed != nil {
		stdout, stderr = r.Streamed[0], r.Streamed[1]
	}
	in, err := json.Marshal(abi.Classify{
		Call:   *ABICall(ctx, &r.Decided, r.Number),
		Result: abi.Result{ExitCode: r.res.ExitCode, Stdout: tail(stdout), Stderr: tail(stderr)},
	})
	if err != nil {
		return nil, err
	}
	reply, err := r.Ask(ctx, Question{Call: &r.Pinned, Module: policy, Export: "classify", Input: in, Trace: r.Trace})
	if err != nil {
		return nil, err
	}
	var c abi.Classification
	if err := strictjson.Unmarshal(reply.Output, &c); err != nil {
		return nil, fmt.Errorf("%s answered no classification: %w", ShortName(file), err)
	}
	return &c, nil
}

// folderOf returns the folder that an approved call must run in, or an empty path.
func folderOf(d *call.Decided) string {
	if d.Ask == nil && d.Take == nil {
		return ""
	}
	return d.Folder
}
