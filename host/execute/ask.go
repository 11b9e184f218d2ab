package execute

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/fetch"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/repoconfig"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

// Question is one call of a module of a tool.
type Question struct {
	// Call is the call that the question is part of: it has the tool's grants and the
	// caller's configuration. Without an Execution it is a discovery, which no caller
	// made.
	Call   *call.Pinned
	Module *guest.Module
	Export string
	Input  []byte
	// Trace is the W3C traceparent of what the module asks, or empty.
	Trace string

	// Vars, if set, is called with what var_get returns.
	Vars func(name string, value []byte)

	// Upstream, if set, collects what the answers to HTTP requests mean for a retry.
	Upstream *Upstream

	// Looks restricts the module to reading: it runs no binaries, calls no tools,
	// sets no variables, and its requests are GET and HEAD.
	Looks bool

	services guest.Services // those of a handler only
	decided  *call.Decided  // what a handler runs for; nil: nothing is decided yet
	changes  bool           // the call was decided to change something
}

// Ask calls a module with what its tool grants: state, HTTP, binaries and calls of
// tools. Errors of the engine have codes.
func (e *Executor) Ask(ctx context.Context, q Question) (guest.Reply, error) {
	inv, err := e.invocation(&q), error(nil)
	if inv.Fuel, err = fuelOf(q.Call); err != nil {
		return guest.Reply{}, err
	}
	reply, err := q.Module.Call(ctx, inv)
	e.spent(q.Call, reply.Stats)
	return reply, tools.Explain(err)
}

// fuelOf returns the fuel that is left of the call that asked for p; 0 means no
// bound.
func fuelOf(p *call.Pinned) (int64, error) {
	fuel := p.By.Budget()
	if fuel == nil {
		return 0, nil
	}
	if fuel.Left() == 0 {
		return 0, fault.Errorf(fault.LimitExceeded, "the call that made this one has no fuel left; raise limits.fuel in its tool.json, or have it do less")
	}
	return fuel.Left(), nil
}

// spent adds the cost of one call of a module to that of the call p.
func (e *Executor) spent(p *call.Pinned, s guest.Stats) {
	p.By.Budget().Take(s.Fuel + s.Called)
	p.Meter.Add(s.Fuel, s.PeakMemory, s.PagesRestored)
	p.Execution.AddFuel(s.Fuel)
	e.Metrics.Spent(p.Tool.Name, s.Fuel, s.PeakMemory, s.PagesRestored)
}

// ABICall returns d as modules receive it, in the attempt with that number.
func ABICall(ctx context.Context, d *call.Decided, attempt int) *abi.Call {
	c := abiCall(ctx, d, attempt)
	if slices.Contains(d.Tool.Wants, abi.WantRepoConfig) && d.Cwd != "" {
		read := repoconfig.Read
		if grantedLFS(d.Tool) != "" {
			read = repoconfig.ReadLFS
		}
		c.RepoConfig = read(d.Cwd, d.Roots, repoconfig.Args(d.Env, d.Args))
	}
	return c
}

// abiCall is ABICall without the parts that are read from the disk.
func abiCall(ctx context.Context, d *call.Decided, attempt int) *abi.Call {
	c := &abi.Call{
		Tool:        d.Call.Tool,
		Args:        d.Args,
		Cwd:         d.Cwd,
		Roots:       d.Roots,
		Env:         d.Env,
		EnvSeen:     d.Unpassed(),
		ExecutionID: d.ExecutionID,
		Attempt:     max(attempt, 1),
		Caller:      d.Caller.ID,
		ReadOnly:    d.ReadOnly(),
		Session:     d.Session,
		Callbacks:   d.Callbacks.Offered,
	}
	if d.HasPayload() {
		c.Payload = d.Payload
	}
	if d.Discovered != nil && d.Discovered.Binding != "" {
		c.Binding = json.RawMessage(d.Discovered.Binding)
	}
	if len(d.Input.Bytes) > 0 {
		c.StdinBase64 = base64.StdEncoding.EncodeToString(d.Input.Bytes)
	}
	if deadline, ok := ctx.Deadline(); ok {
		c.DeadlineMS = max(time.Until(deadline).Milliseconds(), 1)
	}
	return c
}

// invocation returns the invocation of q, with the services that the tool grants.
func (e *Executor) invocation(q *Question) guest.Invocation {
	p := q.Call
	caps := &p.Tool.Def.Capabilities
	inv := guest.Invocation{Export: q.Export, Input: q.Input, Config: e.withLFS(p), Identity: p.Caller.ID, Services: q.services}
	hidden := sync.OnceValue(func() [][]byte { return e.hidden(p) }) // a secret may be in a file: read it once, not for each line
	inv.Log = func(ctx context.Context, level slog.Level, msg string) {
		e.Log.Log(ctx, level, "guest", "tool", p.Call.Tool, "export", q.Export, "execution_id", p.ExecutionID, "message", mask.Text(msg, hidden()))
	}
	if caps.State > 0 {
		scope := varScope{p.Caller.Owner(), p.Session, p.Tool.Name}
		inv.VarGet = func(key string) []byte {
			value := e.vars.get(scope, key)
			if q.Vars != nil {
				q.Vars(key, value)
			}
			return value
		}
		inv.VarSet = func(key string, value []byte) error { return e.vars.set(scope, key, value, int64(caps.State)) }
	}
	if len(caps.ToolCall) > 0 {
		inv.ToolCall = func(ctx context.Context, fuel int64, envelope []byte) ([]byte, int64, error) {
			parent := p.AsParent(q.changes, fuel)
			answer := e.ToolCall(ctx, p, parent, envelope)
			return answer, fuel - parent.Fuel.Left(), nil
		}
	}
	if caps.HTTP != nil {
		inv.HTTP = func(ctx context.Context, r *guest.HTTPRequest) (*guest.HTTPResponse, error) {
			return e.guestHTTP(ctx, q, r)
		}
	}
	if len(caps.Exec) > 0 && (p.Discovered == nil || p.Discovered.Mutating) {
		inv.Exec = func(ctx context.Context, r *abi.ExecRequest) *abi.ExecResult { return e.guestExec(ctx, q, r) }
	}
	if q.Looks {
		lookOnly(&inv)
	}
	return inv
}

// lookOnly removes from inv the services that could change something.
func lookOnly(inv *guest.Invocation) {
	refused := fault.Errorf(fault.Denied, "an export that decides how a call ended, or what may be sent, cannot change anything")
	if inv.VarSet != nil {
		inv.VarSet = func(string, []byte) error { return refused }
	}
	inv.ToolCall = nil
	if inv.Exec != nil {
		inv.Exec = func(context.Context, *abi.ExecRequest) *abi.ExecResult {
			return &abi.ExecResult{Error: &abi.Error{Code: string(refused.Code), Message: refused.Message}}
		}
	}
}

// guestHTTP makes a request for a guest, with the secrets of its tool.
func (e *Executor) guestHTTP(ctx context.Context, q *Question, r *guest.HTTPRequest) (*guest.HTTPResponse, error) {
	secrets, err := e.secrets(q.Call)
	if err != nil {
		return nil, err
	}
	granted := q.Call.Tool.Def.Capabilities.HTTP
	g := fetch.Grant{Hosts: granted.Hosts, Methods: granted.Methods, TraceID: q.Call.PassedTraceID()}
	if q.Call.OnlyReads() || q.Looks {
		g.Methods = readingMethods(g.Methods)
	}
	for _, s := range secrets {
		switch {
		case s.TLS != "", s.SSHKey, s.SSHSign, s.SigV4 != nil:
		case s.Header != "":
			g.Secrets = append(g.Secrets, fetch.Secret{Host: s.Host, Header: s.Header, Value: s.Fill(s.value)})
		case s.handle != "":
			g.Handles = append(g.Handles, fetch.Handle{Handle: s.handle, Value: s.value, NamedOnly: !s.own})
		}
	}
	g.TLS = tlsOf(granted, secrets)
	up := q.Upstream
	if up == nil {
		up = &Upstream{}
	}
	up.next()
	resp, sent, err := fetch.Do(ctx, &g, r, q.Trace)
	hidden := append(values(secrets), sent...)
	if !errors.Is(err, fetch.ErrRefused) {
		n := session.HTTP{Requests: 1, BytesSent: int64(len(r.Body))}
		if err == nil {
			n.Replies, n.BytesReceived = 1, int64(len(resp.Body))
		}
		q.Call.Execution.AddHTTP(n)
	}
	if err != nil {
		up.answered = !fetch.Unanswered(err)
		up.lost = up.lost || !up.answered && !fetch.NeverSent(err) && r.Method != http.MethodGet && r.Method != http.MethodHead
		up.refused = up.refused || fetch.Refused(err)
		return nil, &guest.HTTPError{Kind: fetch.Kind(err), Text: mask.Folded(err.Error(), hidden)}
	}
	up.note(resp.Status, resp.Headers["retry-after"])
	if len(hidden) > 0 {
		// A server may answer with what it was sent.
		headers := make(map[string]string, len(resp.Headers))
		for name, v := range resp.Headers {
			headers[mask.Folded(name, hidden)] = mask.Text(v, hidden)
		}
		resp.Headers, resp.Body = headers, mask.Body(resp.Body, hidden)
	}
	return resp, nil
}

// readingMethods returns the methods in granted that change nothing.
func readingMethods(granted []string) []string {
	reads := []string{http.MethodGet, http.MethodHead}
	if len(granted) == 0 || slices.Contains(granted, "*") {
		return reads
	}
	reads = slices.DeleteFunc(reads, func(m string) bool { return !slices.Contains(granted, m) })
	if len(reads) == 0 {
		return []string{"none"}
	}
	return reads
}

// maxGuestExecOutput bounds each output of a binary that is returned to the guest
// that ran it, in bytes.
const maxGuestExecOutput = 4 << 20

// guestExec runs one of the binaries that capabilities.exec names for a guest.
func (e *Executor) guestExec(ctx context.Context, q *Question, r *abi.ExecRequest) *abi.ExecResult {
	fail := func(err error) *abi.ExecResult {
		e := call.AsError(ctx, err)
		return &abi.ExecResult{Error: &abi.Error{Code: string(e.Code), Message: e.Message, Retriable: e.Retriable()}}
	}
	p := q.Call
	caps := &p.Tool.Def.Capabilities
	if !slices.Contains(caps.Exec, r.Path) {
		return fail(fault.Errorf(fault.Denied, "%s is not in capabilities.exec of tool.json", r.Path))
	}
	stdin, err := base64.StdEncoding.DecodeString(r.StdinBase64)
	if err != nil {
		return fail(fault.Errorf(fault.InvalidPayload, "stdin_base64: %w", err))
	}
	home, err := makeHome(e.Config.Config().State, p)
	if err != nil {
		return fail(err)
	}
	if err := e.hiddenWhole(); err != nil {
		return fail(err)
	}
	env := environment(p, home, q.Trace, e.Runner.Confinement())
	maps.Copy(env, r.Env)
	dir := r.Cwd
	if dir == "" {
		dir = p.Cwd
	}
	confine := e.confine(p, home, caps.Exec)
	confine.Interpreters = p.Tool.Interpreters[r.Path]
	stdout, stderr := capture{max: maxGuestExecOutput}, capture{max: maxGuestExecOutput}
	d := q.decided
	if d == nil {
		undecided := call.Undecided(*p)
		d = &undecided
	}
	exit, err := e.run(ctx, d, 1, q.Trace, links{}, process.Command{
		Path: r.Path, Args: r.Args, Dir: dir, Roots: p.Roots, Env: environ(env),
		Stdin: io.NopCloser(bytes.NewReader(stdin)), Stdout: &stdout, Stderr: &stderr,
		Confine: confine,
	})
	if err != nil {
		return fail(tools.Explain(err))
	}
	return &abi.ExecResult{
		ExitCode:     exitCode(exit),
		StdoutBase64: base64.StdEncoding.EncodeToString(stdout.buf.Bytes()),
		StderrBase64: base64.StdEncoding.EncodeToString(stderr.buf.Bytes()),
		Truncated:    stdout.cut || stderr.cut,
	}
}

// Upstream is what the answers to a guest's HTTP requests mean for a retry. A guest
// that fails without saying whether to retry is judged by its last request: one that
// had no answer, or whose answer asks to try again, may be retried.
type Upstream struct {
	answered   bool // the last request has an answer that is final
	refused    bool // some request was refused here, as it would be again
	lost       bool // some request that may change something was sent, and has no answer
	retryAfter time.Duration
}

// Refused reports whether the host refused a request of the guest, because tool.json
// does not grant it. A further attempt cannot succeed, whatever the guest reports.
func (u *Upstream) Refused() bool { return u.refused }

// next resets u for the next request.
func (u *Upstream) next() { *u = Upstream{refused: u.refused, lost: u.lost} }

// note records the answer to a request.
func (u *Upstream) note(status int, retryAfter string) {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	default:
		u.answered = true
		return
	}
	if s, err := strconv.Atoi(retryAfter); err == nil && s >= 0 {
		u.retryAfter = time.Duration(min(s, 24*3600)) * time.Second
	} else if at, err := http.ParseTime(retryAfter); err == nil {
		u.retryAfter = max(time.Until(at), 0)
	}
}

// blame makes the failure of a guest that did not classify it retriable if its last
// HTTP request has no final answer.
func (u *Upstream) blame(err error) error {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Code == fault.ToolFailed && !u.answered && !u.refused {
		again := *e
		again.MayRetry = true
		return &again
	}
	return err
}

// ShortName returns the name of a policy's file for callers: without the host's
// folders.
func ShortName(file string) string {
	return filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file))
}
