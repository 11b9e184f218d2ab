package session

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/arguments"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/journal"
	"github.com/toold/toold/host/strictjson"
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
	// Caller is the identity whose sessions are there. With Operator it is empty:
	// the call came over the admin socket and may access every session.
	Caller   string
	Operator bool
	// Bound is the only session of Caller that is there, to use and not to change,
	// for a caller that is bound to it; empty: all are.
	Bound string
	// Explicit says that the default session cannot be used.
	Explicit bool
	// Focus is the default session of the connection's calls; nil if there is
	// no connection.
	Focus *atomic.Pointer[string]
	// NoWait has a turn that would wait for another refused: that one may wait for
	// who asks.
	NoWait bool
	// Cwd is the folder of a session without its own.
	Cwd string
	// Run runs a turn's call through the whole pipeline. It begins an Execution
	// of KindTurn in the session that the call names.
	Run func(ctx context.Context, c *wire.Call) *wire.Result
	// Tell sends events to who watches, as JSON, and does not keep the list. TakeBy ends the connection
	// of one that has not read by then what was sent. Sees reports whether the
	// caller sees a tool. They are for Watch; Tell is nil where nothing is streamed.
	Tell   func([]json.RawMessage) error
	TakeBy func(time.Time)
	Sees   func(tool string) bool
}

// The payloads of the six calls. ID is the session; if it is empty, the session
// of the request itself.
type (
	queryPayload struct {
		ID       string `json:"id"`
		Selector string `json:"selector"`
	}
	mutatePayload struct {
		ID     string `json:"id"`
		Op     string `json:"op"`
		Params params `json:"params"`
	}
	promptPayload struct {
		ID       string          `json:"id"`
		Text     string          `json:"text"`
		Envelope json.RawMessage `json:"envelope"`
		Queue    bool            `json:"queue"`
	}
	abortPayload struct {
		ID        string `json:"id"`
		Execution string `json:"execution"`
	}
	steerPayload struct {
		ID        string `json:"id"`
		Text      string `json:"text"`
		Execution string `json:"execution"`
		EOF       bool   `json:"eof"`
	}
)

// params are the parameters of all operations of mutate; each uses some.
type params struct {
	Cwd    string            `json:"cwd,omitempty"`
	Parent string            `json:"parent,omitempty"`
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Tools  *[]string         `json:"tools,omitempty"`
	Job    string            `json:"job,omitempty"`
	// Persist false keeps a created session in memory only.
	Persist *bool `json:"persist,omitempty"`
}

// asked is one of the six calls to the sessions of a table.
type asked struct {
	*Table
	*Request
}

// Serve runs one of the six calls. Err of the result is nil if it succeeded.
func (t *Table) Serve(ctx context.Context, r *Request) (*wire.Result, error) {
	if r.Form != wire.Envelope {
		return nil, fault.Errorf(fault.InvalidEnvelope, "%s is called with an envelope: {toolId, executionId, payload}", r.Tool)
	}
	if !slices.Contains(boundCalls, r.Tool) && r.Bound != "" {
		return nil, fault.Errorf(fault.Denied, "denied by rule session.bound: this caller is bound to its session, and %s is not for such; have the session's owner do it", r.Tool)
	}
	a := &asked{t, r}
	switch r.Tool {
	case Query:
		return serve(r, func(p *queryPayload) (json.RawMessage, error) { return a.query(ctx, p) })
	case Mutate:
		return serve(r, func(p *mutatePayload) (json.RawMessage, error) { return a.mutate(p) })
	case Abort:
		return serve(r, func(p *abortPayload) (json.RawMessage, error) { return a.abort(p) })
	case Steer:
		return serve(r, func(p *steerPayload) (json.RawMessage, error) { return a.steer(ctx, p) })
	case Prompt:
		var p promptPayload
		if err := strictjson.Unmarshal(r.Payload, &p); err != nil {
			return nil, invalid(err)
		}
		return a.prompt(ctx, &p)
	case Watch:
		return serve(r, func(p *watchPayload) (json.RawMessage, error) { return a.watch(ctx, p) })
	}
	return nil, fault.Errorf(fault.UnknownTool, "unknown session call %q; valid: session.query, session.mutate, session.prompt, session.abort, session.steer, session.watch", r.Tool)
}

func serve[P any](r *Request, f func(*P) (json.RawMessage, error)) (*wire.Result, error) {
	p := new(P)
	if err := strictjson.Unmarshal(r.Payload, p); err != nil {
		return nil, invalid(err)
	}
	data, err := f(p)
	if err != nil {
		return nil, err
	}
	return &wire.Result{Ran: true, Data: data}, nil
}

func invalid(err error) *fault.Error {
	return fault.Errorf(fault.InvalidPayload, "/payload%w", err)
}

// session returns the session that a request names: in its payload, else in its
// envelope, else the connection's focus, else the default one.
func (a *asked) session(id string) (*Session, error) {
	id, err := Choose(cmp.Or(id, a.Session), a.Focus, a.Bound, a.Explicit)
	if err != nil {
		return nil, err
	}
	if !a.Operator {
		return a.Find(a.Caller, id)
	}
	for _, s := range a.list("", true) {
		if s.id == id {
			return s, nil
		}
	}
	return nil, notFound(id)
}

// sessionsOf and jobsOf return what who asks may see, oldest first.
func (a *asked) sessionsOf() []*Session {
	list := a.list(a.Caller, a.Operator)
	return slices.DeleteFunc(list, func(s *Session) bool { return a.Bound != "" && s.id != a.Bound })
}

func (a *asked) jobsOf() []*job.Job {
	list := a.jobs.List(a.Caller, a.Operator)
	return slices.DeleteFunc(list, func(j *job.Job) bool { return a.Bound != "" && j.Session != a.Bound })
}

func (a *asked) query(ctx context.Context, p *queryPayload) (json.RawMessage, error) {
	vars := map[string]any{"session": map[string]any{}}
	uses := func(name string) bool { return strings.Contains(p.Selector, name) }
	if !a.Operator || p.ID != "" {
		s, err := a.session(p.ID)
		switch {
		case err == nil:
			one := sessionSnapshot(s)
			if uses("journal") {
				one["journal"], _ = s.journal.AllRecords()
			}
			vars["session"] = one
		case errors.Is(err, errExplicit) && p.ID == "" && p.Selector != "": // which may be about sessions and jobs
		default:
			return nil, err
		}
	}
	// Build only what the selector uses.
	sessions, jobs := []any{}, []any{}
	if uses("sessions") {
		for _, s := range a.sessionsOf() {
			sessions = append(sessions, sessionSnapshot(s))
		}
	}
	if uses("jobs") {
		now, output := time.Now(), uses("stdout") || uses("stderr")
		for _, j := range a.jobsOf() {
			jobs = append(jobs, j.Snapshot(now, output))
		}
	}
	vars["sessions"], vars["jobs"] = sessions, jobs
	value, err := a.selectors.query(ctx, p.Selector, vars)
	if err != nil {
		return nil, err
	}
	return object("value", value), nil
}

// operations are all operations of mutate.
var operations = []string{"create", "rename", "label", "focus", "set-tools", "suspend", "resume", "close", "cancel-job", "flush"}

// boundCalls are the calls of a caller that is bound to its session: those that keep to
// Request.Bound.
var boundCalls = []string{Query, Mutate, Prompt, Abort, Steer, Watch}

// boundOperations are those of a caller that is bound to its session. None of them
// changes what the session is, or reaches another one.
var boundOperations = []string{"focus", "suspend", "resume", "cancel-job", "flush"}

// mutate runs one operation. With an idempotency key it runs once: a repeated
// call gets the same answer.
func (a *asked) mutate(p *mutatePayload) (json.RawMessage, error) {
	if !slices.Contains(operations, p.Op) {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/op: unknown operation %q; valid: %s", p.Op, strings.Join(operations, ", "))
	}
	if err := p.Params.validate(); err != nil {
		return nil, err
	}
	if a.Bound != "" {
		if _, err := a.session(p.ID); err != nil {
			return nil, err
		}
		if !slices.Contains(boundOperations, p.Op) {
			return nil, fault.Errorf(fault.Denied, "denied by rule session.bound: this caller is bound to its session and cannot %s one; have the session's owner do it", p.Op)
		}
		// All of these may be repeated, and keys are the owner's, in all of its sessions.
		return a.runOperation(p, "", "")
	}
	if a.IdempotencyKey == "" {
		return a.runOperation(p, "", "")
	}
	if len(a.IdempotencyKey) > maxText {
		return nil, fault.Errorf(fault.InvalidEnvelope, "/idempotencyKey: has %d bytes, and %d are the limit", len(a.IdempotencyKey), maxText)
	}
	what, _ := json.Marshal(p) // cannot fail: Unmarshal made it
	sum := sha256.Sum256(what)
	digest := hex.EncodeToString(sum[:16])
	o := a.ownerOf(a.Caller)
	o.mu.Lock()
	for _, m := range o.keyed {
		if m.key != a.IdempotencyKey {
			continue
		}
		o.mu.Unlock()
		switch {
		case m.digest != digest:
			return nil, fault.Errorf(fault.IdempotencyKeyReused, "the key was used for another operation; make a new one for each")
		case m.data == nil:
			return nil, fault.Errorf(fault.IdempotencyPending, "the operation with this key is still running; ask again")
		}
		return m.data, nil
	}
	m := &keyedResult{key: a.IdempotencyKey, digest: digest}
	o.keyed = append(o.keyed, m)
	if len(o.keyed) > maxKeys {
		o.keyed = o.keyed[1:]
	}
	o.mu.Unlock()
	data, err := a.runOperation(p, m.key, digest)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil { // the operation had no effect: free the key
		o.keyed = slices.DeleteFunc(o.keyed, func(other *keyedResult) bool { return other == m })
		return nil, err
	}
	// Entries are immutable, since readers hold them without the lock.
	if i := slices.Index(o.keyed, m); i >= 0 {
		o.keyed[i] = &keyedResult{key: m.key, digest: m.digest, data: data}
	}
	return data, nil
}

// Limits on what a caller may store.
const (
	maxText   = 256 // bytes of a name, a label or a key
	maxLabels = 64
	maxTools  = 256
)

func (p *params) validate() error {
	long := func(where, s string) error {
		if len(s) > maxText {
			return fault.Errorf(fault.InvalidPayload, "/payload/params/%s: has %d bytes, and %d are the limit", where, len(s), maxText)
		}
		return nil
	}
	if err := long("name", p.Name); err != nil {
		return err
	}
	if len(p.Cwd) > 4096 || strings.IndexByte(p.Cwd, 0) >= 0 {
		return fault.Errorf(fault.InvalidPayload, "/payload/params/cwd: not a path")
	}
	if len(p.Labels) > maxLabels {
		return fault.Errorf(fault.InvalidPayload, "/payload/params/labels: has %d entries, and %d are the limit", len(p.Labels), maxLabels)
	}
	for k, v := range p.Labels {
		if k == "" {
			return fault.Errorf(fault.InvalidPayload, "/payload/params/labels: a label has no name")
		}
		if err := cmp.Or(long("labels", k), long("labels/"+k, v)); err != nil {
			return err
		}
	}
	if p.Tools != nil {
		if len(*p.Tools) > maxTools {
			return fault.Errorf(fault.InvalidPayload, "/payload/params/tools: has %d entries, and %d are the limit", len(*p.Tools), maxTools)
		}
		for _, name := range *p.Tools {
			if err := long("tools", name); err != nil {
				return err
			}
		}
	}
	return nil
}

// runOperation runs a validated operation. A created session keeps key and
// digest.
func (a *asked) runOperation(p *mutatePayload, key, digest string) (json.RawMessage, error) {
	q := &p.Params
	switch p.Op {
	case "create":
		return a.createOp(q, key, digest)
	case "cancel-job":
		for _, j := range a.jobsOf() {
			if j.ID == q.Job {
				running := !j.Done()
				j.Stop(fault.Errorf(fault.Aborted, "the job was cancelled"))
				return marshal(map[string]any{"job": j.ID, "cancelled": running}), nil
			}
		}
		return nil, fault.Errorf(fault.NotRunning, "there is no job %q; toolctl jobs list shows all jobs", q.Job)
	case "close":
		return a.closeOp(p.ID)
	}
	s, err := a.session(p.ID)
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
		if a.Focus == nil {
			return nil, fault.Errorf(fault.InvalidPayload, "/payload/op: focus belongs to a connection, and this call has none; name the session in each call")
		}
		id := s.id
		a.Focus.Store(&id)
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
func (a *asked) createOp(q *params, key, digest string) (json.RawMessage, error) {
	if a.Operator {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/op: a session belongs to the identity that creates it; create it over the tool socket")
	}
	var parent *Session
	if q.Parent != "" {
		var err error
		if parent, err = a.Find(a.Caller, q.Parent); err != nil {
			return nil, err
		}
	}
	if q.Cwd == "" {
		q.Cwd = a.Cwd
	}
	if !filepath.IsAbs(q.Cwd) {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/params/cwd: %q is not an absolute path", q.Cwd)
	}
	q.Cwd = filepath.Clean(q.Cwd)
	s, err := a.create(a.Caller, parent, q, key, digest)
	if err != nil {
		return nil, err
	}
	return object("id", s.id), nil
}

// closeOp closes a session. Closing a closed one again is not an error.
func (a *asked) closeOp(id string) (json.RawMessage, error) {
	s, err := a.session(id)
	if err != nil {
		was, ok := a.closed.Load(key{a.Caller, id})
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
	return marshal(map[string]any{"id": s.id, "running": running, "grace_ms": a.config.Grace.Milliseconds()}), nil
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

// abort ends the named execution, running or queued, or without a name all turns
// and ordinary calls. Other jobs are ended only by name, here or with cancel-job.
func (a *asked) abort(p *abortPayload) (json.RawMessage, error) {
	s, err := a.session(p.ID)
	if err != nil {
		return nil, err
	}
	reason := fault.Errorf(fault.Aborted, "ended by session.abort")
	named := func(id string) bool { return p.Execution == "" || p.Execution == id }
	var ended []any
	s.mu.Lock()
	var list []*Execution
	for x := range s.running {
		if named(x.ID) && (p.Execution != "" || x.Job == nil || x.Kind == KindTurn) {
			list = append(list, x)
		}
	}
	var waiting, others []*turnWaiter
	for _, w := range s.waiting {
		if named(w.id) {
			waiting = append(waiting, w)
		} else {
			others = append(others, w)
		}
	}
	s.waiting = others
	if len(waiting) > 0 {
		s.publish(s.queued())
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b *Execution) int { return a.started.Compare(b.started) })
	for _, x := range list {
		outcome := fault.Aborted
		if x.abort(reason) {
			outcome = fault.OutcomeUnknown
		}
		ended = append(ended, map[string]any{"execution": x.ID, "tool": x.Tool, "kind": x.Kind, "outcome": outcome})
	}
	for _, w := range waiting {
		w.cancel(reason)
		ended = append(ended, map[string]any{"execution": w.id, "tool": w.tool, "kind": KindTurn, "outcome": fault.Aborted})
	}
	if ended == nil {
		ended = []any{}
	}
	return marshal(map[string]any{"aborted": ended}), nil
}

// defaultSteerWait is how long a steer waits for its text to be read, unless it
// has a timeout. After that the text stays queued.
const defaultSteerWait = time.Second

// steer sends text to the named execution, or to the running turn.
func (a *asked) steer(ctx context.Context, p *steerPayload) (json.RawMessage, error) {
	s, err := a.session(p.ID)
	if err != nil {
		return nil, err
	}
	if p.Text == "" && !p.EOF {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/text: is missing; it is the input for the call, including its line break")
	}
	s.mu.Lock()
	x := s.turn
	if p.Execution != "" {
		x = nil
		for other := range s.running {
			if other.ID == p.Execution {
				x = other
			}
		}
	}
	s.mu.Unlock()
	if x == nil {
		what := "no turn runs in this session; name a call with execution"
		if p.Execution != "" {
			what = "no execution " + p.Execution + " runs in this session"
		}
		return nil, fault.Errorf(fault.NotRunning, "%s; %d bytes were not delivered", what, len(p.Text))
	}
	m, err := x.inbox.put([]byte(p.Text), p.EOF)
	if err != nil {
		return nil, err
	}
	s.publish(events.Event{Kind: events.Steer, Execution: x.ID, Tool: x.Tool, Bytes: len(p.Text), EOF: p.EOF})
	wait := defaultSteerWait
	if a.Timeout > 0 {
		wait = a.Timeout
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	delivered := true
	select {
	case <-m.consumed:
	case <-x.inbox.done:
		if !m.wasConsumed() {
			return nil, fault.Errorf(fault.NotRunning, "the call ended without reading it; %d bytes were not delivered", len(p.Text))
		}
	case <-timer.C:
		delivered = false
	case <-ctx.Done():
		delivered = false
	}
	return marshal(map[string]any{"execution": x.ID, "delivered": delivered, "queued": !delivered}), nil
}

// turnWaiter is a prompt that waits for its turn.
type turnWaiter struct {
	id      string // of its execution
	tool    string
	granted chan struct{} // closed when it gets the turn
	cancel  context.CancelCauseFunc
}

// maxTurns is how many turns may wait in one session.
const maxTurns = 16

// takeTurn takes the turn of s, and waits for it if queue is true. passTurn gives
// it back.
func (s *Session) takeTurn(ctx context.Context, call *wire.Call, queue bool, queued func()) error {
	s.mu.Lock()
	switch {
	case s.state == Closing || s.state == Closed:
		s.mu.Unlock()
		return notFound(s.id)
	case !s.turnTaken:
		s.turnTaken = true
		s.mu.Unlock()
		return nil
	case !queue:
		s.mu.Unlock()
		return fault.Errorf(fault.SessionBusy, `a turn is running in this session; wait for it, steer or abort it, or ask with "queue": true`)
	case len(s.waiting) >= maxTurns:
		s.mu.Unlock()
		return fault.Errorf(fault.SessionBusy, "%d turns wait in this session already; try again later", maxTurns)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &turnWaiter{id: call.ExecutionID, tool: call.Tool, granted: make(chan struct{}), cancel: cancel}
	s.waiting = append(s.waiting, w)
	s.publish(s.queued())
	s.mu.Unlock()
	queued()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	i := slices.Index(s.waiting, w)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.publish(s.queued())
	}
	s.mu.Unlock()
	select {
	case <-w.granted: // granted concurrently: pass it on
		s.passTurn()
	default:
	}
	return context.Cause(ctx)
}

// passTurn gives the turn to the next waiter, if any.
func (s *Session) passTurn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 {
		close(s.waiting[0].granted)
		s.waiting = s.waiting[1:]
		s.publish(s.queued())
		return
	}
	s.turnTaken = false
}

// prompt runs one turn.
func (a *asked) prompt(ctx context.Context, p *promptPayload) (*wire.Result, error) {
	if a.Operator {
		return nil, fault.Errorf(fault.InvalidPayload, "a turn runs as the session's own identity; prompt it over the tool socket")
	}
	s, err := a.session(p.ID)
	if err != nil {
		return nil, err
	}
	call, err := turnCall(a.Request, s, p)
	if err != nil {
		return nil, err
	}
	if err := s.takeTurn(ctx, call, p.Queue && !a.NoWait, job.FromContext(ctx).Admit); err != nil {
		return nil, err
	}
	defer s.passTurn()
	return a.Run(ctx, call), nil
}

// turnCall returns the call that a turn makes.
func turnCall(r *Request, s *Session, p *promptPayload) (*wire.Call, error) {
	cwd := s.cwd
	if cwd == "" {
		cwd = r.Cwd
	}
	var request map[string]json.RawMessage // raw, so that numbers keep all digits
	switch {
	case (p.Text == "") == (p.Envelope == nil):
		return nil, fault.Errorf(fault.InvalidPayload, "/payload: a turn is a text or an envelope; give one of them")
	case p.Text != "":
		words, err := arguments.SplitWords(p.Text)
		if err != nil {
			return nil, fault.Errorf(fault.InvalidPayload, "/payload/text: %w", err)
		}
		if len(words) == 0 {
			return nil, fault.Errorf(fault.InvalidPayload, "/payload/text: names no tool")
		}
		request = map[string]json.RawMessage{"tool": marshal(words[0]), "args": marshal(words[1:]), "cwd": marshal(cwd)}
	default:
		if err := json.Unmarshal(p.Envelope, &request); err != nil || request == nil {
			return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope: not an object")
		}
		for _, name := range []string{"token", "session", "stream", "more", "background", "detach", "metadata"} {
			if _, ok := request[name]; ok {
				return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope/%s: belongs to the prompt itself", name)
			}
		}
		if _, ok := request["executionId"]; !ok {
			request["executionId"] = marshal(r.ExecutionID)
		}
	}
	frame, err := json.Marshal(request)
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope: %w", err)
	}
	m, err := wire.Parse(frame)
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope: %w", err)
	}
	call, ok := m.(*wire.Call)
	if !ok {
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/envelope: not a tool call")
	}
	if IsCall(call.Tool) {
		return nil, fault.Errorf(fault.InvalidPayload, "a turn cannot be a session call; call %s directly", call.Tool)
	}
	if call.ExecutionID == "" {
		call.ExecutionID = r.ExecutionID
	}
	if call.Cwd == "" {
		call.Cwd = cwd
	}
	call.Session, call.Stream = s.id, r.Stream
	if call.Timeout == 0 {
		call.Timeout = r.Timeout
	}
	if call.IdempotencyKey == "" {
		call.IdempotencyKey, call.Retry = r.IdempotencyKey, call.Retry || r.Retry
	}
	if call.Trace == "" {
		call.Trace = r.Trace
	}
	call.TraceID = r.TraceID
	return call, nil
}

// NewJob registers a background call of owner in a session, as job.Table.New does.
// bound says that its caller is bound to the session.
func (t *Table) NewJob(owner, session string, bound bool, call *wire.Call, cancel context.CancelCauseFunc) (*job.Job, error) {
	spec := job.Spec{ID: call.ExecutionID, Owner: owner, Session: session, Bound: bound, Tool: call.Tool, Detach: call.Detach}
	if s, ok := t.sessions.Load(key{owner, session}); ok {
		spec.Persist = !s.(*Session).journal.Off
	}
	return t.jobs.New(spec, cancel)
}

// object returns {name: value}.
func object(name string, value any) json.RawMessage { return marshal(map[string]any{name: value}) }

func marshal(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot fail: raw JSON, strings and numbers only
	}
	return data
}

// Value returns the value in the answer of a query.
func Value(data json.RawMessage) []byte {
	var answer struct {
		Value json.RawMessage `json:"value"`
	}
	json.Unmarshal(data, &answer) // it was made by object
	return append(answer.Value, '\n')
}

// ID returns the session's id.
func (s *Session) ID() string { return s.id }
