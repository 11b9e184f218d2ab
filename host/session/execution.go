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

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// The kinds of an execution.
const (
	KindCall = "call" // an ordinary call: many at a time in one session
	KindTurn = "turn" // a prompt: one at a time
	KindJob  = "job"  // a call that was answered before it ran
)

// Spec says what is about to run.
type Spec struct {
	ID   string // the execution id: chosen by a caller, unique to nobody
	Tool string // as the caller wrote it
	Kind string
	// Listing says that it is no call of a tool: what the session is limited to
	// does not count.
	Listing bool
	Job     *Job // of a call that was made in the background
}

// Outcome is what came of an execution.
type Outcome struct {
	ID          string
	Tool        string
	Kind        string
	Status      string // as wire.Result.Status says it
	Code        fault.Code
	ExitCode    int
	Attempts    int
	Started     time.Time
	Duration    time.Duration
	BytesIn     int64
	BytesOut    int64
	Fuel        int64
	Undelivered int // bytes of steering text that nobody read
	// Programs are what a binary executed, or was refused, beside itself.
	Programs []Program
}

// Program is a program that an execution executed Times times, or was refused.
// Its arguments are not kept: secrets may be in them.
type Program struct {
	Path    string `json:"path"`
	Refused string `json:"refused,omitempty"` // why
	Times   int    `json:"times"`
}

// maxPrograms bounds the programs of one execution, maxProgramPath each path.
const (
	maxPrograms    = 64
	maxProgramPath = 256
)

// AddProgram notes that x executed the program at path, or was refused it.
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
	}
}

// Counters are what the executions of one session came to. They are JSON in
// journals.
type Counters struct {
	Calls    int64            `json:"calls"`
	Attempts int64            `json:"attempts"`
	Outcomes map[string]int64 `json:"outcomes,omitempty"` // by code; "ok" for none
	BytesIn  int64            `json:"bytes_in"`
	BytesOut int64            `json:"bytes_out"`
	Fuel     int64            `json:"fuel"`
	Duration time.Duration    `json:"duration"`
	Events   map[string]int64 `json:"events,omitempty"` // of the session's life, by the state that it came to
}

func (c *Counters) add(o *Outcome) {
	c.Calls++
	c.Attempts += int64(o.Attempts)
	if c.Outcomes == nil {
		c.Outcomes = map[string]int64{}
	}
	code := string(o.Code)
	switch {
	case code != "":
	case o.ExitCode != 0:
		code = string(fault.ToolFailed)
	default:
		code = "ok"
	}
	c.Outcomes[code]++
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.Fuel += o.Fuel
	c.Duration += o.Duration
}

func (c *Counters) event(name string) {
	if c.Events == nil {
		c.Events = map[string]int64{}
	}
	c.Events[name]++
}

// plus adds the counters of another session.
func (c *Counters) plus(d *Counters) {
	sum := func(to *map[string]int64, from map[string]int64) {
		for k, n := range from {
			if *to == nil {
				*to = map[string]int64{}
			}
			(*to)[k] += n
		}
	}
	c.Calls += d.Calls
	c.Attempts += d.Attempts
	c.BytesIn += d.BytesIn
	c.BytesOut += d.BytesOut
	c.Fuel += d.Fuel
	c.Duration += d.Duration
	sum(&c.Outcomes, d.Outcomes)
	sum(&c.Events, d.Events)
}

// clone is c with maps of its own.
func (c *Counters) clone() Counters {
	var d Counters
	d.plus(c)
	return d
}

// Execution is one call under way in a session. The pipeline holds it from
// Begin to End.
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
	aborted *fault.Error              // why it was ended, or nil
	cancels []context.CancelCauseFunc // what an abort ends
	// programs are those of AddProgram.
	programs []Program
	line     []byte // the end of what was written last, at most maxLastLine bytes
}

// maxLastLine is how much of an execution's last line a snapshot shows, in
// bytes.
const maxLastLine = 200

// Begin notes that a call runs in s until End. A suspended session is resumed.
// The context of the call is x.Context from here on: an abort ends it.
func (s *Session) Begin(ctx context.Context, spec Spec) (*Execution, error) {
	x := &Execution{Spec: spec, Session: s.id, s: s, started: time.Now(), inbox: newInbox()}
	resumed, err := s.admit(ctx, x)
	if err != nil {
		return nil, err
	}
	if resumed {
		s.note(&record{Type: recState, State: Active})
	}
	return x, nil
}

func (s *Session) admit(ctx context.Context, x *Execution) (resumed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Closing || s.state == Closed {
		return false, notFound(s.id)
	}
	if !x.Listing && s.tools != nil && !slices.Contains(s.tools, x.Tool) {
		return false, fault.Errorf(fault.Denied, "denied by rule session.tools: this session is limited to other tools than %s; use one of %q, or call in another session", x.Tool, s.tools)
	}
	var cancel context.CancelCauseFunc
	x.ctx, cancel = context.WithCancelCause(ctx)
	x.cancels = []context.CancelCauseFunc{cancel}
	if resumed = s.state == Suspended; resumed {
		s.state = Active
		s.count.event(Active)
	}
	s.used = x.started
	if x.Job != nil {
		x.Job.run(x)
	}
	if x.Kind == KindTurn {
		s.turn = x
	}
	if s.running == nil {
		s.running = map[*Execution]struct{}{}
	}
	s.running[x] = struct{}{}
	return resumed, nil
}

// Context is the call's: that of Begin, ended by an abort too.
func (x *Execution) Context() context.Context { return x.ctx }

// Admits reports whether the session of x may call tool.
func (x *Execution) Admits(tool string) bool {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	return x.s.tools == nil || slices.Contains(x.s.tools, tool)
}

// OnAbort has an abort of x end what cancel ends, too: a context that outlives
// the caller is not ended by x.Context. Nothing aborts a nil execution.
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

// abort ends whatever x waits for or runs. It reports whether x had begun to
// change something, so that nobody knows how far it came.
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
	return x.unknown()
}

func (x *Execution) unknown() bool { return x.attempts.Load() > 0 && x.mutating.Load() }

// Attempt notes that the tool is about to run, for the first time or again, and
// returns which time that is, from 1. The first one writes the intent into the
// journal: where that cannot be done, a call that changes something is refused
// with STORE_UNAVAILABLE, and any other runs.
func (x *Execution) Attempt(mutating bool) (int, error) {
	n := int(x.attempts.Add(1))
	if n > 1 {
		return n, nil
	}
	x.mutating.Store(mutating)
	err := x.s.note(x.begin())
	if err != nil && mutating {
		x.attempts.Store(0)
		return n, fault.Errorf(fault.StoreUnavailable, "the journal of the session cannot be written, so a call that changes something is not begun: %w; see the sessions folder in the daemon's state", err)
	}
	return n, nil
}

func (x *Execution) begin() *record {
	r := &record{Type: recBegin, Execution: x.ID, Tool: x.Tool, Kind: x.Kind, Mutating: x.mutating.Load()}
	if x.Job != nil {
		r.Job, r.Detach = true, x.Job.Detach
	}
	return r
}

// AddFuel counts metered instructions of guests. A nil execution counts nothing.
func (x *Execution) AddFuel(n int64) {
	if x != nil {
		x.fuel.Add(n)
	}
}

// AddInput counts bytes that came with the request, or were read of its stream.
func (x *Execution) AddInput(n int) { x.bytesIn.Add(int64(n)) }

// Watch is w, with what passes counted and its last line kept for snapshots.
// Secrets must be masked before it.
func (x *Execution) Watch(w io.Writer) io.Writer { return watched{x, w} }

type watched struct {
	x *Execution
	w io.Writer
}

func (w watched) Write(p []byte) (int, error) {
	w.x.bytesOut.Add(int64(len(p)))
	w.x.mu.Lock()
	w.x.line = lastLine(w.x.line, p)
	w.x.mu.Unlock()
	return w.w.Write(p)
}

// lastLine is the beginning of the last line with anything in it of what was
// written: line so far, and then p.
func lastLine(line, p []byte) []byte {
	// A line that ended stays until the next one has something in it.
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

// lastText is the last line, as text.
func (x *Execution) lastText() string {
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

// Input is the standard input of a turn: what steers it, open until it ends or
// is ended by eof. With wait false it is what has come so far, and no more: the
// input of a guest that nobody else gives any. Each attempt has one of its own,
// and what it did not read the next one does.
func (x *Execution) Input(wait bool) io.ReadCloser { return &reader{b: x.inbox, wait: wait} }

// PassInput hands what steers x to f, since its caller streams the input. f is
// false when the input has ended; taken is to be called when the text was read.
func (x *Execution) PassInput(f func(text []byte, taken func()) bool) { x.inbox.pass(f) }

// Steered reports whether an attempt has read what steered it: the next one would
// lack that. Nothing steers a nil execution.
func (x *Execution) Steered() bool { return x != nil && x.inbox.wasRead() }

// NoInput says that nobody will read what steers x, and why.
func (x *Execution) NoInput(why string) { x.inbox.refuse(why) }

// End says what came of the execution.
func (x *Execution) End(r *wire.Result) {
	undelivered := x.inbox.end()
	x.mu.Lock()
	cancels := x.cancels
	x.cancels = nil
	aborted, programs := x.aborted, x.programs
	x.mu.Unlock()
	for _, cancel := range cancels {
		cancel(nil)
	}
	o := Outcome{
		ID: x.ID, Tool: x.Tool, Kind: x.Kind, Status: r.Status(), ExitCode: r.ExitCode, Started: x.started,
		Attempts: int(x.attempts.Load()), Duration: time.Since(x.started),
		BytesIn: x.bytesIn.Load(), BytesOut: x.bytesOut.Load(), Fuel: x.fuel.Load(), Undelivered: undelivered,
		Programs: programs,
	}
	if r.Err != nil {
		o.Code = r.Err.Code
		// Whoever called is told that it was ended. What it had done by then
		// nobody knows, and that is what is kept.
		if ended := aborted != nil || o.Code == fault.Aborted || o.Code == fault.Timeout; ended && x.unknown() {
			o.Code = fault.OutcomeUnknown
		}
	}
	rec := &record{
		Type: recEnd, Execution: o.ID, Tool: o.Tool, Kind: o.Kind, Status: o.Status, Code: o.Code, ExitCode: o.ExitCode,
		Attempts: o.Attempts, DurationMS: o.Duration.Milliseconds(), BytesIn: o.BytesIn, BytesOut: o.BytesOut, Fuel: o.Fuel,
		Undelivered: o.Undelivered, Mutating: x.mutating.Load(), Programs: o.Programs,
	}
	if x.Job != nil {
		rec.Job, rec.Detach = true, x.Job.Detach
	}
	if o.Attempts == 0 {
		rec.Type = recRefused
	}
	if undelivered > 0 {
		x.s.t.log.Info("a call ended without reading what steered it", "session", x.Session, "execution_id", x.ID, "bytes", undelivered)
	}
	s := x.s
	idle := false
	s.noteAs(func() *record {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, x)
		if s.turn == x {
			s.turn = nil
		}
		idle = len(s.running) == 0
		s.used = time.Now()
		s.count.add(&o)
		if len(s.recent) == maxRecent {
			s.recent = slices.Delete(s.recent, 0, 1)
		}
		s.recent = append(s.recent, o)
		return rec
	})
	if x.Job != nil {
		x.Job.finish(&o, r)
	}
	s.mu.Lock()
	if s.drained != nil {
		close(s.drained)
		s.drained = nil
	}
	s.mu.Unlock()
	if idle {
		s.journal.rest()
	}
}
