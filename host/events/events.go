// Package events distributes to watchers what happens in sessions: calls that begin and end, their output, steering,
// jobs, states, and tools that change.
//
// A Hub has a stream for each thing that is watched: a session, an identity, or everything. Publish adds an event to
// the streams that it belongs to, and each watcher reads from there at its own position. So a publisher never waits
// for a watcher, a watcher has no buffer of its own, and an event that nobody watches costs its publisher one atomic
// load.
//
// A stream keeps its last events, and separately the last output, both within Limits. A watcher that is slower than
// that loses output, and is told how much. It never silently loses other events: it is disconnected, and a watcher
// that resumes at its cursor is told what was lost. A stream is kept for Limits.Keep after its last watcher has left,
// so that a disconnected one can resume. A cursor of a stream that is no longer kept, or of another run of the daemon,
// results in a reset.
//
// The package checks no permissions. Its callers name the identity and the session in a Filter; package session does
// so for session.watch.
package events

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/toold/toold/host/fault"
)

// Kind is the kind of an event.
type Kind string

// The kinds of events in a stream. A watcher that is not disconnected only ever loses Output.
const (
	Begin     Kind = "begin"     // an execution began: Execution, Tool, Type, Job
	Attempt   Kind = "attempt"   // its tool is about to run: Execution, Attempt, Mutating
	Output    Kind = "output"    // it wrote: Execution, Stream, Data, LastLine
	Steer     Kind = "steer"     // something was written to its input: Execution, Bytes, EOF
	End       Kind = "end"       // it ended: all of Begin, Status, Code and its resource usage
	Queue     Kind = "queue"     // the number of waiting turns is now Queued
	Job       Kind = "job"       // a job is State accepted or done: Execution, Tool, Status, Code
	State     Kind = "state"     // the session's State
	Settings  Kind = "settings"  // the session's name, labels or tools: Name
	Tool      Kind = "tool"      // a tool changed: Tool, Change. It belongs to no session
	Discovery Kind = "discovery" // a module was asked for its tools: Tool, Code
	Approval  Kind = "approval"  // a request for approval is now State: Approval, Execution, Tool
)

// Events that concern only one watcher.
const (
	// Ready is the first: events after it are delivered.
	Ready Kind = "ready"
	// Lost describes in Lost what this watcher missed.
	Lost Kind = "lost"
	// Cut is the last before the end; Reason is why.
	Cut Kind = "cut"
)

// Event is one event. It must not be changed after it was published. Zero fields are omitted from its JSON.
type Event struct {
	Kind   Kind      `json:"event"`
	Cursor string    `json:"cursor,omitempty"`
	At     time.Time `json:"at,omitzero"`
	// Owner is the identity. Only those who watch everything receive it.
	Owner   string `json:"owner,omitempty"`
	Session string `json:"session,omitempty"`

	Execution string `json:"execution,omitempty"`
	Tool      string `json:"tool,omitempty"`
	Type      string `json:"kind,omitempty"` // call, turn or job, as in snapshots
	Job       bool   `json:"job,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Mutating  bool   `json:"mutating,omitempty"`

	Status      string     `json:"status,omitempty"`
	Code        fault.Code `json:"code,omitempty"`
	ExitCode    int        `json:"exit_code,omitempty"`
	Attempts    int        `json:"attempts,omitempty"`
	DurationMS  int64      `json:"duration_ms,omitempty"`
	BytesIn     int64      `json:"bytes_in,omitempty"`
	BytesOut    int64      `json:"bytes_out,omitempty"`
	Fuel        int64      `json:"fuel,omitempty"`
	Undelivered int        `json:"undelivered,omitempty"`

	// Stream is stdout or stderr. Data is omitted for an operator: output belongs to its owner. LastLine is what a
	// snapshot would show.
	Stream   string `json:"stream,omitempty"`
	Data     []byte `json:"data,omitempty"`
	Bytes    int    `json:"bytes,omitempty"`
	LastLine string `json:"last_line,omitempty"`
	EOF      bool   `json:"eof,omitempty"`

	Queued int `json:"queued,omitempty"`
	// Approval is the id of a request.
	Approval string `json:"approval,omitempty"`

	State  string `json:"state,omitempty"`
	Name   string `json:"name,omitempty"`
	Change string `json:"change,omitempty"`

	Lost   *Loss  `json:"lost,omitempty"`
	Reason string `json:"reason,omitempty"`

	// text is shared by all watchers of the event in one stream; nil for others.
	text *text
}

// text is the JSON of an event, encoded once.
type text struct {
	once sync.Once
	json []byte
}

// maxShared is the largest output of an event whose JSON is cached, in bytes.
const maxShared = 4 << 10

// JSON returns e as JSON. It must not be changed.
func (e *Event) JSON() []byte {
	if e.text == nil || len(e.Data) > maxShared {
		return encode(e)
	}
	e.text.once.Do(func() { e.text.json = encode(e) })
	return e.text.json
}

func encode(e *Event) []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // cannot fail: texts, numbers and bytes
	}
	return b
}

// Loss describes what a watcher missed.
type Loss struct {
	// Reset means that the loss is unknown: the cursor is of a stream that is no longer kept.
	Reset bool `json:"reset,omitempty"`
	// State counts events other than output, Output those of output, and Bytes the bytes in these.
	State  int64 `json:"state,omitempty"`
	Output int64 `json:"output,omitempty"`
	Bytes  int64 `json:"bytes,omitempty"`
}

// Filter selects what a watcher receives.
type Filter struct {
	// Owner is the identity whose events are selected: those of one session, or of all if Session is empty.
	Owner, Session string
	// Operator receives no output except its last line. Without an Owner it receives the events of everybody.
	Operator bool
	// Bound is set for a watcher that can watch only Session. Those of a session are counted separately: they could
	// otherwise use up the watchers of its owner.
	Bound bool
	// Ended means that the session was closed earlier: the watcher receives what is kept of it, and then the end.
	Ended bool
	// Kinds are the selected kinds, in addition to a watcher's own; nil is all.
	Kinds []Kind
	// Sees, if not nil, selects the tools whose changes are delivered. It is called by Next, with no lock held.
	Sees func(tool string) bool
}

// Limits bound the watchers and what is buffered for them.
type Limits struct {
	// Watchers limits the watchers of one identity at a time, and those of operators. AllWatchers limits those of all
	// identities.
	Watchers, AllWatchers int
	// Events is how many events other than output a stream keeps, and Output
	// how many bytes of output.
	Events, Output int
	// Keep is how long a stream without watchers is kept.
	Keep time.Duration
}

// Defaults of Limits.
const (
	DefaultWatchers    = 256
	DefaultAllWatchers = 1024
	DefaultEvents      = 512
	DefaultOutput      = 256 << 10
	DefaultKeep        = 5 * time.Minute
)

func (l *Limits) setDefaults() {
	def := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	def(&l.Watchers, DefaultWatchers)
	def(&l.AllWatchers, DefaultAllWatchers)
	def(&l.Events, DefaultEvents)
	def(&l.Output, DefaultOutput)
	if l.Keep <= 0 {
		l.Keep = DefaultKeep
	}
}
