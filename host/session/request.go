package session

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/wire"
)

// The tool ids of the six calls.
const (
	Query  = "session.query"
	Mutate = "session.mutate"
	Prompt = "session.prompt"
	Abort  = "session.abort"
	Steer  = "session.steer"
	Watch  = "session.watch"
)

// IsCall reports whether a tool id is one of the six.
func IsCall(tool string) bool {
	switch tool {
	case Query, Mutate, Prompt, Abort, Steer, Watch:
		return true
	}
	return false
}

// Request is one of the six calls.
type Request struct {
	*wire.Call
	// Caller is the identity whose sessions the call can access. With Operator it is
	// empty: the call came over the admin socket and can access every session.
	Caller   string
	Operator bool
	// Bound, if not empty, is the only session of Caller that the call can access:
	// the caller is bound to it, and can use but not change it.
	Bound string
	// Explicit says that the default session cannot be used.
	Explicit bool
	// Focus is the default session of the connection's calls; nil if there is
	// no connection.
	Focus *atomic.Pointer[string]
	// NoWait refuses a turn that would have to wait for another one, which may itself
	// wait for this request.
	NoWait bool
	// Cwd is the folder of a session without its own.
	Cwd string
	// Run runs a turn's call through the whole pipeline. It begins an Execution
	// of KindTurn in the session that the call names.
	Run func(ctx context.Context, c *wire.Call) *wire.Result
	// Tell sends events to the watcher, as JSON, and does not keep the list. TakeBy
	// ends the connection of a watcher that has not read what was sent by then. Sees
	// reports whether the caller can see a tool. They are for Watch; Tell is nil if
	// the caller does not stream.
	Tell   func([]json.RawMessage) error
	TakeBy func(time.Time)
	Sees   func(tool string) bool
}

// handler serves one of the six calls on the sessions of a table.
type handler struct {
	*Table
	*Request
}

// session returns the session that a request names: in its payload, else in its
// envelope, else the connection's focus, else the default one.
func (h *handler) session(id string) (*Session, error) {
	id, err := Choose(cmp.Or(id, h.Session), h.Focus, h.Bound, h.Explicit)
	if err != nil {
		return nil, err
	}
	if !h.Operator {
		return h.Find(h.Caller, id)
	}
	for _, s := range h.list("", true) {
		if s.id == id {
			return s, nil
		}
	}
	return nil, notFound(id)
}

// sessionsOf returns the sessions that the caller may see, oldest first.
func (h *handler) sessionsOf() []*Session {
	list := h.list(h.Caller, h.Operator)
	return slices.DeleteFunc(list, func(s *Session) bool { return h.Bound != "" && s.id != h.Bound })
}

// jobsOf returns the jobs that the caller may see, oldest first.
func (h *handler) jobsOf() []*job.Job {
	list := h.jobs.List(h.Caller, h.Operator)
	return slices.DeleteFunc(list, func(j *job.Job) bool { return h.Bound != "" && j.Session != h.Bound })
}
