package host

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/repoconfig"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// abiCall is what a module is asked.
func (h *Host) abiCall(ctx context.Context, k *call) *abi.Call {
	c := &abi.Call{
		Tool:        k.Tool,
		Args:        k.Args,
		Cwd:         k.Cwd,
		Roots:       k.roots,
		Env:         k.Env,
		ExecutionID: k.ExecutionID,
		Attempt:     max(k.attempt, 1),
		Caller:      k.caller.ID,
		ReadOnly:    k.readOnly,
		Session:     k.Session,
	}
	if k.Form == wire.Envelope || k.offered != nil {
		c.Payload = k.payload()
	}
	if k.offered != nil {
		c.Binding = raw(k.offered.Binding)
	}
	if len(k.Stdin) > 0 {
		c.StdinBase64 = base64.StdEncoding.EncodeToString(k.Stdin)
	}
	if d, ok := ctx.Deadline(); ok {
		c.DeadlineMS = max(time.Until(d).Milliseconds(), 1)
	}
	if slices.Contains(k.tool.Wants, abi.WantRepoConfig) && k.Cwd != "" {
		c.RepoConfig = repoconfig.Read(k.Cwd, k.roots, k.Args)
	}
	return c
}

// invocation is one call of a module of k's tool with what it is granted.
func (h *Host) invocation(k *call, export string, in []byte) guest.Invocation {
	caps := &k.tool.Def.Capabilities
	inv := guest.Invocation{Export: export, Input: in, Config: k.effective.Config}
	inv.Identity = k.caller.ID
	hidden := sync.OnceValue(func() [][]byte { return h.hidden(k) }) // a secret may be a file: not once a line
	inv.Log = func(ctx context.Context, level slog.Level, msg string) {
		h.log.Log(ctx, level, "guest", "tool", k.Tool, "export", export, "execution_id", k.ExecutionID, "message", maskText(msg, hidden()))
	}
	if caps.State > 0 {
		scope := varScope{k.caller.ID, k.Session, k.tool.Name}
		inv.VarGet = func(key string) []byte { return h.vars.get(scope, key) }
		inv.VarSet = func(key string, value []byte) error { return h.vars.set(scope, key, value, int64(caps.State)) }
	}
	if caps.ToolCall {
		inv.ToolCall = func(ctx context.Context, envelope []byte) ([]byte, error) { return h.guestCall(ctx, k, envelope), nil }
	}
	if caps.HTTP != nil {
		inv.HTTP = func(ctx context.Context, r *guest.HTTPRequest) (*guest.HTTPResponse, error) {
			return h.guestHTTP(ctx, k, r)
		}
	}
	if len(caps.Exec) > 0 && (k.offered == nil || k.offered.Mutating) {
		inv.Exec = func(ctx context.Context, r *abi.ExecRequest) *abi.ExecResult { return h.guestExec(ctx, k, r) }
	}
	return inv
}

// guestHTTP makes a request for a guest, with the secrets of its tool.
func (h *Host) guestHTTP(ctx context.Context, k *call, r *guest.HTTPRequest) (*guest.HTTPResponse, error) {
	secrets, err := h.secrets(k)
	if err != nil {
		return nil, err
	}
	g := fetchGrant{Hosts: k.tool.Def.Capabilities.HTTP.Hosts, Methods: k.tool.Def.Capabilities.HTTP.Methods}
	if k.onlyReads() {
		g.Methods = readingMethods(g.Methods)
	}
	for _, s := range secrets {
		switch {
		case s.Header != "":
			g.Secrets = append(g.Secrets, fetchSecret{Host: s.Host, Header: s.Header, Value: s.value})
		case s.handle != "":
			g.Handles = append(g.Handles, fetchHandle{Handle: s.handle, Value: s.value, NamedOnly: !s.own})
		}
	}
	k.answered, k.retryAfter = false, 0
	resp, err := h.fetch.do(ctx, &g, &fetchRequest{Method: r.Method, URL: r.URL, Headers: r.Headers, Body: r.Body, Trace: k.Trace})
	if err != nil {
		k.answered = !unanswered(err)
		hidden := values(secrets)
		if resp != nil {
			hidden = append(hidden, resp.sent...)
		}
		return nil, errors.New(maskFolded(err.Error(), hidden))
	}
	k.upstreamAnswered(resp.Status, resp.Headers["retry-after"])
	if hidden := append(values(secrets), resp.sent...); len(hidden) > 0 {
		// A server may answer with what it was sent.
		headers := make(map[string]string, len(resp.Headers))
		for name, v := range resp.Headers {
			headers[maskFolded(name, hidden)] = maskText(v, hidden)
		}
		resp.Headers, resp.Body = headers, maskBody(resp.Body, hidden)
	}
	return &guest.HTTPResponse{Status: resp.Status, Headers: resp.Headers, Body: resp.Body}, nil
}

// readingMethods are those of granted that change nothing.
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

// maxGuestExecOutput is how much of each output of a binary that a guest ran
// is given to it, in bytes.
const maxGuestExecOutput = 4 << 20

// guestExec runs one of the binaries that capabilities.exec names for a guest.
func (h *Host) guestExec(ctx context.Context, k *call, r *abi.ExecRequest) *abi.ExecResult {
	fail := func(err error) *abi.ExecResult {
		e := asError(ctx, err)
		return &abi.ExecResult{Error: &abi.Error{Code: string(e.Code), Message: e.Message, Retriable: e.Retriable()}}
	}
	caps := &k.tool.Def.Capabilities
	if !slices.Contains(caps.Exec, r.Path) {
		return fail(fault.Errorf(fault.Denied, "%s is not in capabilities.exec of tool.json", r.Path))
	}
	stdin, err := base64.StdEncoding.DecodeString(r.StdinBase64)
	if err != nil {
		return fail(fault.Errorf(fault.InvalidPayload, "stdin_base64: %w", err))
	}
	home, err := h.home(k)
	if err != nil {
		return fail(err)
	}
	if err := h.hiddenWhole(); err != nil {
		return fail(err)
	}
	env := h.environment(k, home)
	maps.Copy(env, r.Env)
	dir := r.Cwd
	if dir == "" {
		dir = k.Cwd
	}
	stdout, stderr := capture{max: maxGuestExecOutput}, capture{max: maxGuestExecOutput}
	exit, err := h.runner.Run(ctx, process.Command{
		Path: r.Path, Args: r.Args, Dir: dir, Roots: k.roots, Env: environ(env),
		Stdin: io.NopCloser(bytes.NewReader(stdin)), Stdout: &stdout, Stderr: &stderr,
		Confine: h.confine(k, home, caps.Exec),
	})
	h.executed(k, exit)
	if err != nil {
		return fail(err)
	}
	return &abi.ExecResult{
		ExitCode:     exitCode(exit),
		StdoutBase64: base64.StdEncoding.EncodeToString(stdout.buf.Bytes()),
		StderrBase64: base64.StdEncoding.EncodeToString(stderr.buf.Bytes()),
		Truncated:    stdout.cut || stderr.cut,
	}
}
