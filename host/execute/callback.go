package execute

import (
	"context"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/callback"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire/callbacks"
	"github.com/toold/toold/pdk/abi"
)

// MayCallBack reports whether the call p may ask its caller to run something, if a
// policy says so.
//
// A job, a turn and a call by a module have no waiting caller, a call with a key may
// outlive its caller, and a planned call is made by another caller.
func (e *Executor) MayCallBack(p *call.Pinned) bool {
	return len(p.Call.Callbacks) > 0 && len(p.Tool.Def.Callbacks) > 0 && len(p.Tool.Policies) > 0 && p.Streams.Callback != nil &&
		p.By == nil && p.Plan == nil && p.Take == nil && p.Execution.Kind == session.KindCall && p.Tool.Kind == tools.Binary && p.IdempotencyKey == ""
}

// OfferedCallbacks returns what a policy may let the call p ask its caller to run, or
// nil.
func (e *Executor) OfferedCallbacks(p *call.Pinned) *abi.Callbacks {
	if !e.MayCallBack(p) {
		return nil
	}
	var kinds []string
	for _, kind := range p.Tool.Def.Callbacks {
		if slices.Contains(p.Call.Callbacks, kind) {
			kinds = append(kinds, kind)
		}
	}
	if kinds == nil {
		return nil
	}
	return &abi.Callbacks{Kinds: kinds, Folder: callback.NewFolder(filepath.Join(e.Config.Config().State, callbacksFolder))}
}

// relay opens the relay for the callbacks of a and lets c connect to it. Secrets are
// masked in what the caller's programs are sent.
func (e *Executor) relay(ctx context.Context, a *call.Attempt, c *process.Command, secrets [][]byte) (*callback.Relay, error) {
	if a.Streams.Callback == nil || a.Callbacks.Offered == nil {
		return nil, fault.Errorf(fault.Internal, "the call asks its caller to run programs, and the caller has left; make the call again")
	}
	program, err := e.shims.program(filepath.Join(e.Config.Config().State, "shims", callback.ShimName))
	if err != nil {
		return nil, fault.Errorf(fault.Internal, "provide the run with shims: %w; see the daemon's state folder", err)
	}
	config := callback.Config{
		Folder:  a.Callbacks.Offered.Folder,
		Program: program,
		Roots:   a.Roots,
		Ask:     masking(a.Streams.Callback, secrets),
		Begin: func(s callback.Shim) func(int, error) {
			resume, answered := a.Clock.Pause(), a.Asking()
			return func(exit int, err error) {
				answered()
				resume()
				attrs := []any{"tool", a.Tool.Name, "execution_id", a.ExecutionID, "kind", s.Kind, "name", s.Name, "exit_code", exit}
				if err != nil {
					attrs = append(attrs, "error", err.Error())
				}
				e.Log.Debug("callback", attrs...)
			}
		},
	}
	for _, by := range a.Callbacks.Allowed {
		config.Shims = append(config.Shims, callback.Shim{Name: by.Name, Kind: by.Kind, Path: by.Path})
	}
	relay, err := callback.Open(ctx, config)
	if err != nil {
		return nil, fault.Errorf(fault.Internal, "%w; see the daemon's state folder", err)
	}
	c.Confine.Exec = append(slices.Clip(c.Confine.Exec), relay.Program())
	c.Confine.Show = append(slices.Clip(c.Confine.Show), config.Folder)
	return relay, nil
}

// asking is wire.Streams.Callback.
type asking = func(ctx context.Context, q callbacks.Request, stdin io.Reader, stdout, stderr io.Writer) (int, error)

// masking returns ask with secrets masked in what is sent to the caller's programs:
// what a pager shows is output of the run like any other. Paths are unchanged: they
// name files that the caller can see.
func masking(ask asking, secrets [][]byte) asking {
	m := mask.New(secrets)
	if m == nil {
		return ask
	}
	hide := func(s string) string { return string(m.Bytes([]byte(s))) }
	return func(ctx context.Context, q callbacks.Request, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
		if q.Kind == callbacks.Hooks || q.Kind == callbacks.Scripts {
			q.Args = slices.Clone(q.Args)
			for i, a := range q.Args {
				q.Args[i] = hide(a)
			}
			q.Env = maps.Clone(q.Env)
			for name, value := range q.Env {
				q.Env[name] = hide(value)
			}
		}
		return ask(ctx, q, m.Reader(stdin), stdout, stderr)
	}
}
