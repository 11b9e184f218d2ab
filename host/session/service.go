package session

import (
	"context"
	"encoding/json"
	"path/filepath"
	"sync/atomic"

	"github.com/toold/toold/host/wire"
)

// The tool ids of the five calls.
const (
	Query  = "session.query"
	Mutate = "session.mutate"
	Prompt = "session.prompt"
	Abort  = "session.abort"
	Steer  = "session.steer"
)

// IsCall reports whether a tool id is one of the five.
func IsCall(tool string) bool {
	switch tool {
	case Query, Mutate, Prompt, Abort, Steer:
		return true
	}
	return false
}

// Request is one of the five calls.
type Request struct {
	*wire.Call
	// Caller is the identity that asks.
	Caller string
	// Focus is the session that the connection's calls belong to unless they
	// name one; nil where there is no connection.
	Focus *atomic.Pointer[string]
	// Cwd is the folder of a new session that names none.
	Cwd string
}

// payload holds the arguments of all five; each call takes its own.
type payload struct {
	ID       string `json:"id"`
	Selector string `json:"selector"`
	Op       string `json:"op"`
	Params   params `json:"params"`
}

// params are those of all operations of mutate; each takes its own.
type params struct {
	Cwd    string            `json:"cwd"`
	Parent string            `json:"parent"`
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

// Serve answers one of the five calls. The error is a *wire.Error.
func (t *Table) Serve(ctx context.Context, r *Request) (json.RawMessage, error) {
	if r.Form != wire.Envelope {
		return nil, wire.Errorf(wire.InvalidEnvelope, "%s is called with an envelope: {toolId, executionId, payload}", r.Tool)
	}
	var p payload
	if err := wire.Unmarshal(r.Payload, &p); err != nil {
		return nil, wire.Errorf(wire.InvalidPayload, "%w", err)
	}
	switch r.Tool {
	case Query:
		return t.query(ctx, r, &p)
	case Mutate:
		return t.mutate(ctx, r, &p)
	}
	return nil, wire.Errorf(wire.UnknownTool, "%s is not there yet", r.Tool)
}

// session is the one that a request is about: that of its payload, else that of
// its envelope, else the connection's, else the default one.
func (t *Table) session(r *Request, id string) (*Session, error) {
	if id == "" {
		id = r.Session
	}
	if id == "" && r.Focus != nil {
		if f := r.Focus.Load(); f != nil {
			id = *f
		}
	}
	return t.Find(r.Caller, id)
}

func (t *Table) query(ctx context.Context, r *Request, p *payload) (json.RawMessage, error) {
	s, err := t.session(r, p.ID)
	if err != nil {
		return nil, err
	}
	all := []any{}
	for _, s := range t.ofOwner(r.Caller) {
		all = append(all, s.snapshot())
	}
	value, err := t.selectors.query(ctx, p.Selector, map[string]any{
		"session": s.snapshot(), "sessions": all, "jobs": []any{},
	})
	if err != nil {
		return nil, err
	}
	return object("value", value), nil
}

func (t *Table) mutate(ctx context.Context, r *Request, p *payload) (json.RawMessage, error) {
	switch p.Op {
	case "create":
		var parent *Session
		if p.Params.Parent != "" {
			var err error
			if parent, err = t.Find(r.Caller, p.Params.Parent); err != nil {
				return nil, err
			}
		}
		cwd := p.Params.Cwd
		if cwd == "" {
			cwd = r.Cwd
		}
		if !filepath.IsAbs(cwd) {
			return nil, wire.Errorf(wire.InvalidPayload, "/params/cwd: %q is no absolute path", cwd)
		}
		s, err := t.create(r.Caller, parent, filepath.Clean(cwd), p.Params.Name, p.Params.Labels)
		if err != nil {
			return nil, err
		}
		return object("id", s.id), nil
	}
	return nil, wire.Errorf(wire.InvalidPayload, "/op: %q is none; there is create", p.Op)
}

// object is {name: value}.
func object(name string, value any) json.RawMessage {
	data, err := json.Marshal(map[string]any{name: value})
	if err != nil {
		panic(err) // it is made of what was JSON, and of strings
	}
	return data
}
