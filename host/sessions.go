package host

import (
	"context"

	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/wire"
)

// enter finds the session that k belongs to and begins its execution there: the
// one that the call names, else the one that its connection has in focus, else
// the caller's default one. The context that it returns ends with an abort, too.
func (h *Host) enter(ctx context.Context, k *call, from server.Peer) (context.Context, error) {
	id := k.Session
	if id == "" && from.Focus != nil {
		if focus := from.Focus.Load(); focus != nil {
			id = *focus
		}
	}
	s, err := h.sessions.Find(k.caller.ID, id)
	if err != nil {
		return ctx, err
	}
	x, err := s.Begin(ctx, session.Spec{ID: k.ExecutionID, Tool: k.Tool, Kind: session.KindCall})
	if err != nil {
		return ctx, err
	}
	k.running = x
	k.Session = x.Session
	return x.Context(), nil
}

// serveSessions answers the five calls of sessions.
func (h *Host) serveSessions(ctx context.Context, on *listener, k *call, from server.Peer) (*wire.Result, error) {
	r := &session.Request{Call: k.Call, Caller: k.caller.ID, Focus: from.Focus}
	if roots := on.roots(); len(roots) > 0 {
		r.Cwd = roots[0]
	}
	data, err := h.sessions.Serve(ctx, r)
	if err != nil {
		return nil, err
	}
	return &wire.Result{Ran: true, Data: data}, nil
}
