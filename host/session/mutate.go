package session

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/journal"
)

// operations are all operations of mutate.
var operations = []string{"create", "rename", "label", "focus", "set-tools", "suspend", "resume", "close", "cancel-job", "flush"}

// boundOperations are the operations of a bound caller. None of them changes the
// settings of the session or reaches another one.
var boundOperations = []string{"focus", "suspend", "resume", "cancel-job", "flush"}

// mutate runs one operation. With an idempotency key it runs once: a repeated
// call gets the same answer.
func (h *handler) mutate(p *mutatePayload) (json.RawMessage, error) {
	if !slices.Contains(operations, p.Op) {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/op: unknown operation %q; valid: %s", p.Op, strings.Join(operations, ", "))
	}
	if err := p.Params.validate(); err != nil {
		return nil, err
	}
	if h.Bound != "" {
		if _, err := h.session(p.ID); err != nil {
			return nil, err
		}
		if !slices.Contains(boundOperations, p.Op) {
			return nil, fault.Errorf(fault.Denied, "denied by rule session.bound: this caller is bound to its session and cannot %s one; have the session's owner do it", p.Op)
		}
		// All of these may be repeated, and keys are the owner's, in all of its sessions.
		return h.runOperation(p, "", "")
	}
	if h.IdempotencyKey == "" {
		return h.runOperation(p, "", "")
	}
	if len(h.IdempotencyKey) > maxText {
		return nil, fault.Errorf(fault.InvalidEnvelope, "/idempotencyKey: has %d bytes, and %d are the limit", len(h.IdempotencyKey), maxText)
	}
	what, _ := json.Marshal(p) // cannot fail: Unmarshal made it
	sum := sha256.Sum256(what)
	digest := hex.EncodeToString(sum[:16])
	return h.ownerOf(h.Caller).keyed.run(h.IdempotencyKey, digest, func() (json.RawMessage, error) {
		return h.runOperation(p, h.IdempotencyKey, digest)
	})
}

// runOperation runs a validated operation. A created session keeps key and
// digest.
func (h *handler) runOperation(p *mutatePayload, key, digest string) (json.RawMessage, error) {
	q := &p.Params
	switch p.Op {
	case "create":
		return h.createOp(q, key, digest)
	case "cancel-job":
		for _, j := range h.jobsOf() {
			if j.ID == q.Job {
				running := !j.Done()
				j.Stop(fault.Errorf(fault.Aborted, "the job was cancelled"))
				return marshal(map[string]any{"job": j.ID, "cancelled": running}), nil
			}
		}
		return nil, fault.Errorf(fault.NotRunning, "there is no job %q; toolctl jobs list shows all jobs", q.Job)
	case "close":
		return h.closeOp(p.ID)
	}
	s, err := h.session(p.ID)
	if err != nil {
		return nil, err
	}
	switch p.Op {
	case "rename":
		err = s.update(func() error { s.name = q.Name; return nil })
	case "label":
		err = s.update(func() error { return s.setLabels(q.Labels) })
	case "set-tools":
		var tools []string
		if q.Tools != nil {
			tools = append([]string{}, *q.Tools...)
		}
		tools = narrow(tools, s.above.allowedTools())
		err = s.update(func() error { s.tools = tools; return nil })
	case "focus":
		if h.Focus == nil {
			return nil, fault.Errorf(fault.InvalidPayload, "/payload/op: focus belongs to a connection, and this call has none; name the session in each call")
		}
		id := s.id
		h.Focus.Store(&id)
	case "suspend":
		err = s.suspend()
	case "resume":
		err = s.resume()
	case "flush":
		err = s.flush()
	}
	if err != nil {
		return nil, err
	}
	return object("id", s.id), nil
}

// createOp creates a session, which keeps key and digest.
func (h *handler) createOp(q *params, key, digest string) (json.RawMessage, error) {
	if h.Operator {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/op: a session belongs to the identity that creates it; create it over the tool socket")
	}
	var parent *Session
	if q.Parent != "" {
		var err error
		if parent, err = h.Find(h.Caller, q.Parent); err != nil {
			return nil, err
		}
	}
	if q.Cwd == "" {
		q.Cwd = h.Cwd
	}
	if !filepath.IsAbs(q.Cwd) {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/params/cwd: %q is not an absolute path", q.Cwd)
	}
	q.Cwd = filepath.Clean(q.Cwd)
	s, err := h.create(h.Caller, parent, q, key, digest)
	if err != nil {
		return nil, err
	}
	return object("id", s.id), nil
}

// closeOp closes a session. Closing a closed one again is not an error.
func (h *handler) closeOp(id string) (json.RawMessage, error) {
	s, err := h.session(id)
	if err != nil {
		was, ok := h.closed.Load(key{h.Caller, id})
		if !ok {
			return nil, err
		}
		s = was.(*Session)
	}
	s.close()
	running := []string{}
	for _, x := range s.executions(true) {
		running = append(running, x.ID)
	}
	slices.Sort(running)
	return marshal(map[string]any{"id": s.id, "running": running, "grace_ms": h.config.Grace.Milliseconds()}), nil
}

// update changes the settings of s and writes them to the journal.
func (s *Session) update(change func() error) error {
	s.mu.Lock()
	if s.state == Closing || s.state == Closed {
		s.mu.Unlock()
		return notFound(s.id)
	}
	if err := change(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.publish(events.Event{Kind: events.Settings, Name: s.name})
	s.mu.Unlock()
	err := s.appendFunc(func() *journal.Record { // the latest settings, even if another update came first
		s.mu.Lock()
		defer s.mu.Unlock()
		r := s.settings.record(time.Now())
		return &r
	})
	s.releaseIfIdle()
	if err != nil {
		return fault.Errorf(fault.StoreUnavailable, "the change is in effect, but the journal of the session cannot be written, so a restart loses it: %w; check the sessions folder in the daemon's state", err)
	}
	return nil
}
