package session

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/journal"
	"github.com/toold/toold/host/wire"
)

// The kinds of an execution.
const (
	KindCall = "call"   // an ordinary call: many at a time in one session
	KindTurn = "turn"   // a prompt: one at a time
	KindJob  = job.Kind // a call that was answered before it ran
	// KindReconcile is a look into how another call ended, which was cut off.
	KindReconcile = "reconcile"
)

// Spec describes an execution that is about to begin.
type Spec struct {
	ID   string // the execution id: chosen by a caller, not necessarily unique
	Tool string // as the caller wrote it
	Kind string
	// Parent is the id of the execution in which a module asked for this one.
	Parent string
	// Listing marks a listing, not a tool call: the session's tool limit does
	// not apply.
	Listing bool
	Job     *job.Job // of a background call
	From    Peer
}

// Peer is where a call came from. PID and Container are 0 and empty where that is not
// known.
type Peer struct {
	PID       int
	Container string
	Socket    string // the path of the daemon's socket
}

// maxPeers is how many peers a session remembers: the last ones, one for each
// container, or for each socket where there is none.
const maxPeers = 4

func (s *Session) usedByLocked(p Peer) {
	s.peers = slices.DeleteFunc(s.peers, func(o Peer) bool { return o.Container == p.Container && o.Socket == p.Socket })
	s.peers = append([]Peer{p}, s.peers[:min(len(s.peers), maxPeers-1)]...)
}

// What journals keep of executions.
type (
	Outcome    = journal.Outcome
	HTTP       = journal.HTTP
	Program    = journal.Program
	Connection = journal.Connection
	Found      = journal.Found
	Counters   = journal.Counters
)

// AddHTTP counts HTTP requests of guests and their replies. x may be nil.
func (x *Execution) AddHTTP(h HTTP) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.http.Add(h)
}

// maxPrograms bounds the programs of one execution, its connections, and what was to
// be sent on these, each; maxProgramPath each path.
const (
	maxPrograms    = 64
	maxProgramPath = 256
)

// Others stands for what is counted together where there is more than is kept apart:
// as a path of a Program, as the host of a Connection, and as what it was about to
// send. None of these is written so, since paths are absolute and hosts have a port.
const Others = "others"

const apart = "why, is kept for the first ones only"

// AddProgram records that x executed the program at path, or was refused it.
func (x *Execution) AddProgram(path, refused string) {
	p := Program{Path: strings.ToValidUTF8(path[:min(len(path), maxProgramPath)], "\uFFFD"), Refused: refused, Times: 1}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, q := range x.programs {
		if q.Path == p.Path && q.Refused == p.Refused {
			x.programs[i].Times++
			return
		}
	}
	if len(x.programs) < maxPrograms {
		x.programs = append(x.programs, p)
		return
	}
	further := Program{Path: Others, Times: 1}
	if p.Refused != "" {
		further.Refused = apart
	}
	for i := range x.programs[maxPrograms:] {
		if q := &x.programs[maxPrograms+i]; q.Refused == further.Refused {
			q.Times++
			return
		}
	}
	x.programs = append(x.programs, further)
}

// AddConnection records that x connected to c, or was refused it, c.Times times; 0 is
// once. Those beyond the ones that are kept apart are counted as Others.
func (x *Execution) AddConnection(c Connection) {
	c.Host, c.Times = strings.ToValidUTF8(c.Host[:min(len(c.Host), maxProgramPath)], "\uFFFD"), max(c.Times, 1)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.addLocked(c) {
		return
	}
	// What one could have made so many of does not take the place of the other.
	like := func(k Connection) bool { return (k.On != "") == (c.On != "") && k.Host != Others }
	kept := 0
	for _, k := range x.connections {
		if like(k) {
			kept++
		}
	}
	if kept >= maxPrograms {
		further := Connection{Host: Others, Sent: c.Sent, Received: c.Received, Times: c.Times}
		if c.On != "" {
			further.On = Others
		}
		if c.Refused != "" {
			further.Refused = apart
		}
		if c.Failed != "" {
			further.Failed = apart
		}
		if c = further; x.addLocked(c) {
			return
		}
	}
	x.connections = append(x.connections, c)
}

// addLocked adds c to one that is the same, where there is one.
func (x *Execution) addLocked(c Connection) bool {
	for i := range x.connections {
		if k := &x.connections[i]; k.Host == c.Host && k.On == c.On && k.Rule == c.Rule && k.Refused == c.Refused && k.Failed == c.Failed {
			k.Times += c.Times
			k.Sent += c.Sent
			k.Received += c.Received
			return true
		}
	}
	return false
}

// Connections are those of AddConnection so far. x may be nil.
func (x *Execution) Connections() []Connection {
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.connections)
}

// Execution is one running call of a session. The pipeline holds it from Begin
// to End.
type Execution struct {
	Spec
	Session string // the session's id
	s       *Session
	ctx     context.Context
	started time.Time
	inbox   *inbox

	attempts atomic.Int32
	mutating atomic.Bool
	bytesIn  atomic.Int64
	bytesOut atomic.Int64
	fuel     atomic.Int64

	mu      sync.Mutex                // guards what follows
	aborted *fault.Error              // why it was aborted, or nil
	cancels []context.CancelCauseFunc // called by an abort
	// programs are those of AddProgram.
	programs []Program
	// connections are those of AddConnection.
	connections []Connection
	http        HTTP
	line        []byte // the last output line, at most maxLastLine bytes
	found       *Found // of KindReconcile
}

// Conclude records what x, of KindReconcile, found out. Secrets must be masked
// before it.
func (x *Execution) Conclude(f Found) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.found = &f
}

// maxLastLine is how much of an execution's last line a snapshot shows, in
// bytes.
const maxLastLine = 200

// Begin registers a call that runs in s until End. It resumes a suspended
// session. From here on the call uses x.Context, which an abort ends.
func (s *Session) Begin(ctx context.Context, spec Spec) (*Execution, error) {
	x := &Execution{Spec: spec, Session: s.id, s: s, started: time.Now(), inbox: newInbox()}
	if tools := s.allowedTools(); tools != nil && !spec.Listing && !slices.Contains(tools, spec.Tool) {
		return nil, fault.Errorf(fault.Denied, "denied by rule session.tools: this session is limited to other tools than %s; use one of %q, or call in another session", spec.Tool, tools)
	}
	resumed, err := s.admit(ctx, x)
	if err != nil {
		return nil, err
	}
	if resumed {
		s.append(&journal.Record{Type: journal.TypeState, State: Active})
	}
	return x, nil
}

func (s *Session) admit(ctx context.Context, x *Execution) (resumed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Closing || s.state == Closed {
		return false, notFound(s.id)
	}
	var cancel context.CancelCauseFunc
	x.ctx, cancel = context.WithCancelCause(ctx)
	x.cancels = []context.CancelCauseFunc{cancel}
	if resumed = s.state == Suspended; resumed {
		s.state = Active
		s.count.CountEvent(Active)
	}
	s.used = x.started
	if len(s.peers) == 0 || s.peers[0] != x.From {
		s.usedByLocked(x.From)
	}
	if x.Job != nil {
		x.Job.Begin(&job.Running{
			Abort:    func(reason *fault.Error) { x.abort(reason) },
			LastLine: x.lastLineText,
			Attempts: func() int { return int(x.attempts.Load()) },
		})
	}
	if x.Kind == KindTurn {
		s.turn = x
	}
	if s.running == nil {
		s.running = map[*Execution]struct{}{}
	}
	s.running[x] = struct{}{}
	if resumed {
		s.publishState(Active)
	}
	s.publish(events.Event{Kind: events.Begin, Execution: x.ID, Tool: x.Tool, Type: x.Kind, Job: x.Job != nil})
	return resumed, nil
}

// Context returns the call's context: that of Begin, also ended by an abort.
func (x *Execution) Context() context.Context { return x.ctx }

// Admits reports whether the session of x may call tool.
func (x *Execution) Admits(tool string) bool {
	return x.s.allows(tool)
}

// OnAbort registers cancel to be called by an abort of x, for a context that
// outlives the caller's and so is not derived from x.Context. x may be nil.
func (x *Execution) OnAbort(cancel context.CancelCauseFunc) {
	if x == nil {
		return
	}
	x.mu.Lock()
	aborted := x.aborted
	x.cancels = append(x.cancels, cancel)
	x.mu.Unlock()
	if aborted != nil {
		cancel(aborted)
	}
}

// abort cancels x. It reports whether the outcome is unknown: x had begun and is
// mutating.
func (x *Execution) abort(reason *fault.Error) (unknown bool) {
	x.mu.Lock()
	if x.aborted == nil {
		x.aborted = reason
	}
	cancels := x.cancels
	x.mu.Unlock()
	for _, cancel := range cancels {
		cancel(reason)
	}
	return x.outcomeUnknown()
}

func (x *Execution) outcomeUnknown() bool { return x.attempts.Load() > 0 && x.mutating.Load() }

// Attempt records that the tool is about to run, and returns the number of the
// attempt, from 1. The first one writes the intent to the journal: if that fails,
// a mutating call is refused with STORE_UNAVAILABLE, and any other runs.
func (x *Execution) Attempt(mutating bool) (int, error) {
	n := int(x.attempts.Add(1))
	x.s.publish(events.Event{Kind: events.Attempt, Execution: x.ID, Tool: x.Tool, Attempt: n, Mutating: mutating})
	if n > 1 {
		return n, nil
	}
	x.mutating.Store(mutating)
	err := x.s.append(x.beginRecord())
	if err != nil && mutating {
		x.attempts.Store(0)
		return n, fault.Errorf(fault.StoreUnavailable, "the journal of the session cannot be written, so a mutating call is not begun: %w; check the sessions folder in the daemon's state", err)
	}
	return n, nil
}

func (x *Execution) beginRecord() *journal.Record {
	r := &journal.Record{Type: journal.TypeBegin, Execution: x.ID, Tool: x.Tool, Kind: x.Kind, Parent: x.Parent, Mutating: x.mutating.Load()}
	if x.Job != nil {
		r.Job, r.Detach, r.Bound = true, x.Job.Detach, x.Job.Bound
	}
	return r
}

// AddFuel counts metered instructions of guests. x may be nil.
func (x *Execution) AddFuel(n int64) {
	if x != nil {
		x.fuel.Add(n)
	}
}

// AddInput counts input bytes, from the request or its stream.
func (x *Execution) AddInput(n int) { x.bytesIn.Add(int64(n)) }

// Spent returns what x has used so far: bytes in and out, attempts, and the programs
// that a binary executed. x may be nil.
func (x *Execution) Spent() (in, out int64, attempts int, programs []Program) {
	if x == nil {
		return 0, 0, 0, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bytesIn.Load(), x.bytesOut.Load(), int(x.attempts.Load()), slices.Clone(x.programs)
}

// CountOutput returns a writer to w that counts bytes, keeps the last line for
// snapshots, and tells watchers of the stream, which is stdout or stderr. Secrets
// must be masked before it.
func (x *Execution) CountOutput(stream string, w io.Writer) io.Writer {
	return countingWriter{x, stream, w}
}

type countingWriter struct {
	x      *Execution
	stream string
	w      io.Writer
}

func (w countingWriter) Write(p []byte) (int, error) {
	w.x.bytesOut.Add(int64(len(p)))
	w.x.mu.Lock()
	w.x.line = lastLine(w.x.line, p)
	w.x.mu.Unlock()
	w.x.publishOutput(w.stream, p)
	return w.w.Write(p)
}

// lastLine returns the beginning of the last non-empty line after p was written,
// given the last line so far.
func lastLine(line, p []byte) []byte {
	// A complete line stays until the next non-empty one begins.
	text := bytes.TrimRight(p, "\r\n")
	if len(text) == 0 {
		if len(p) > 0 && (len(line) == 0 || line[len(line)-1] != '\n') {
			line = append(line, '\n')
		}
		return line
	}
	if i := bytes.LastIndexAny(text, "\r\n"); i >= 0 {
		line, text = line[:0], text[i+1:]
	} else if n := len(line); n > 0 && line[n-1] == '\n' {
		line = line[:0]
	}
	line = append(line, text[:min(len(text), max(maxLastLine-len(line), 0))]...)
	if len(text) < len(p) && bytes.ContainsAny(p[len(p)-1:], "\r\n") {
		line = append(line, '\n')
	}
	return line
}

// lastLineText returns the last line as valid UTF-8.
func (x *Execution) lastLineText() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	line := bytes.TrimRight(x.line, "\n")
	for len(line) > 0 && !utf8.Valid(line) { // cut within a character
		r, n := utf8.DecodeLastRune(line)
		if r != utf8.RuneError || n > 1 {
			break
		}
		line = line[:len(line)-1]
	}
	return string(bytes.ToValidUTF8(line, []byte("\uFFFD")))
}

// Input returns a turn's standard input: its steering text, until the turn ends
// or a steer has eof. With wait false it ends after the text so far, for a guest
// without other input. Each attempt opens its own; unread text stays for the next
// one.
func (x *Execution) Input(wait bool) io.ReadCloser { return &reader{b: x.inbox, wait: wait} }

// ForwardSteering forwards steering text to f, since x's caller streams the input. f
// returns false if the input has ended, and calls taken once the text was read.
func (x *Execution) ForwardSteering(f func(text []byte, taken func()) bool) { x.inbox.forwardTo(f) }

// Steered reports whether an attempt has read steering text, which a further
// attempt would lack. x may be nil.
func (x *Execution) Steered() bool { return x != nil && x.inbox.wasRead() }

// RejectSteering makes further steers of x fail with this reason.
func (x *Execution) RejectSteering(why string) { x.inbox.reject(why) }

// End records the outcome of the execution.
func (x *Execution) End(r *wire.Result) {
	undelivered := x.inbox.close()
	x.mu.Lock()
	cancels := x.cancels
	x.cancels = nil
	aborted, programs, connections, http, found := x.aborted, x.programs, x.connections, x.http, x.found
	x.mu.Unlock()
	for _, cancel := range cancels {
		cancel(nil)
	}
	o := Outcome{
		ID: x.ID, Tool: x.Tool, Kind: x.Kind, Parent: x.Parent, Status: r.Status(), ExitCode: r.ExitCode, Started: x.started,
		Attempts: int(x.attempts.Load()), Duration: time.Since(x.started),
		BytesIn: x.bytesIn.Load(), BytesOut: x.bytesOut.Load(), Fuel: x.fuel.Load(), Undelivered: undelivered,
		Programs: programs, Connections: connections, HTTP: http,
	}
	if r.Err != nil {
		o.Code = r.Err.Code
		// The caller gets the abort's error; the journal keeps that the
		// outcome is unknown.
		if ended := aborted != nil || o.Code == fault.Aborted || o.Code == fault.Timeout; ended && x.outcomeUnknown() {
			o.Code = fault.OutcomeUnknown
		}
	}
	rec := &journal.Record{
		Type: journal.TypeEnd, Execution: o.ID, Tool: o.Tool, Kind: o.Kind, Parent: o.Parent, Status: o.Status, Code: o.Code, ExitCode: o.ExitCode,
		Attempts: o.Attempts, DurationMS: o.Duration.Milliseconds(), BytesIn: o.BytesIn, BytesOut: o.BytesOut, Fuel: o.Fuel,
		Undelivered: o.Undelivered, Mutating: x.mutating.Load(), Programs: o.Programs, Connections: o.Connections, HTTP: o.HTTP, Found: found,
	}
	if x.Job != nil {
		rec.Job, rec.Detach, rec.Bound = x.Job.Settle(), x.Job.Detach, x.Job.Bound
	}
	if o.Attempts == 0 {
		rec.Type = journal.TypeRefused
	}
	if undelivered > 0 {
		x.s.t.log.Info("a call ended without reading what steered it", "session", x.Session, "execution_id", x.ID, "bytes", undelivered)
	}
	s := x.s
	idle := false
	s.appendFunc(func() *journal.Record {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, x)
		if s.turn == x {
			s.turn = nil
		}
		idle = len(s.running) == 0
		s.used = time.Now()
		s.count.Add(&o)
		if len(s.recent) == maxRecent {
			s.recent = slices.Delete(s.recent, 0, 1)
		}
		s.recent = append(s.recent, o)
		s.publish(events.Event{
			Kind: events.End, Execution: o.ID, Tool: o.Tool, Type: o.Kind, Job: x.Job != nil, Mutating: x.mutating.Load(),
			Status: o.Status, Code: o.Code, ExitCode: o.ExitCode, Attempts: o.Attempts, DurationMS: o.Duration.Milliseconds(),
			BytesIn: o.BytesIn, BytesOut: o.BytesOut, Fuel: o.Fuel, Undelivered: o.Undelivered,
		})
		return rec
	})
	if x.Job != nil {
		x.Job.Finish(&o, r)
	}
	s.mu.Lock()
	if s.drained != nil {
		close(s.drained)
		s.drained = nil
	}
	s.mu.Unlock()
	if idle {
		s.journal.ReleaseIdle()
	}
}
