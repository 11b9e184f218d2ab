// Package events tells watchers what happens in sessions: calls that begin and
// end, their output, steering, jobs, states, and tools that change.
//
// A Hub has a stream for each thing that is watched: a session, an identity, or
// everything. Publish puts an event into the streams that it belongs to, and
// watchers read from there, each at its own place. So a publisher never waits
// for a watcher, a watcher has no buffer of its own, and what nobody watches
// costs a publisher one atomic load.
//
// A stream keeps its last events, and separately the last output, both within
// Limits. A watcher that is slower than that loses output, and is told how much.
// It never loses another event without a word: it is cut, and a watcher that
// resumes at its cursor is told what was lost. A stream is kept for Limits.Keep
// after its last watcher has left, so that one which was cut can resume. A
// cursor of a stream that is no longer kept, or of another run of the daemon, is
// answered with a reset.
//
// The package knows nothing of rights. Its callers name the identity and the
// session in a Filter; package session does so for session.watch.
package events

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/toold/toold/host/fault"
)

// Kind says what happened.
type Kind string

// Of these a stream consists. Only Output is ever lost by a watcher that goes on.
const (
	Begin     Kind = "begin"     // an execution began: Execution, Tool, Type, Job
	Attempt   Kind = "attempt"   // its tool is about to run: Execution, Attempt, Mutating
	Output    Kind = "output"    // it wrote: Execution, Stream, Data, LastLine
	Steer     Kind = "steer"     // somebody wrote to it: Execution, Bytes, EOF
	End       Kind = "end"       // it ended: all of Begin, Status, Code and what it took
	Queue     Kind = "queue"     // the turns that wait are Queued now
	Job       Kind = "job"       // a job is State accepted or done: Execution, Tool, Status, Code
	State     Kind = "state"     // the session's State
	Settings  Kind = "settings"  // the session's name, labels or tools: Name
	Tool      Kind = "tool"      // a tool changed: Tool, Change. It is of no session
	Discovery Kind = "discovery" // a module was asked for its tools: Tool, Code
	Approval  Kind = "approval"  // a request for an approval is State now: Approval, Execution, Tool
)

// These are a watcher's own.
const (
	// Ready is the first: what happens after it is told.
	Ready Kind = "ready"
	// Lost says what this watcher was not told, in Lost.
	Lost Kind = "lost"
	// Cut is the last before the end, and Reason why.
	Cut Kind = "cut"
)

// Event is one thing that happened. It is not changed once it was published. What
// is zero is left out of its JSON.
type Event struct {
	Kind   Kind      `json:"event"`
	Cursor string    `json:"cursor,omitempty"`
	At     time.Time `json:"at,omitzero"`
	// Owner is the identity. It is told only to who watches everything.
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

	// Stream is stdout or stderr. Data is left out for an operator: output is its
	// owner's. LastLine is what a snapshot would show.
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

	// text is shared by all that are told the event in one stream; nil for others.
	text *text
}

// text is the JSON of an event, made once.
type text struct {
	once sync.Once
	json []byte
}

// maxShared is the most output of an event whose JSON is kept, in bytes.
const maxShared = 4 << 10

// JSON is e as JSON. It is not to be changed.
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

// Loss is what a watcher was not told.
type Loss struct {
	// Reset says that nobody knows how much: the cursor is of a stream that is
	// not kept any more.
	Reset bool `json:"reset,omitempty"`
	// State counts events other than output, Output those of output, and Bytes
	// what was in these.
	State  int64 `json:"state,omitempty"`
	Output int64 `json:"output,omitempty"`
	Bytes  int64 `json:"bytes,omitempty"`
}

// Filter says what a watcher is told.
type Filter struct {
	// Owner is the identity whose events are told: those of one session, or of
	// all where Session is empty.
	Owner, Session string
	// Operator is told no output but its last line. Without an Owner it is told
	// of everybody.
	Operator bool
	// Bound is of a watcher that can watch Session only. Those of a session are
	// counted by themselves: they would else use up the watchers of its owner.
	Bound bool
	// Ended says that the session was closed before: what is kept of it is told,
	// and then the end.
	Ended bool
	// Kinds are those that are told, beside a watcher's own; nil is all.
	Kinds []Kind
	// Sees, if it is not nil, says which tools' changes are told. It is called
	// by Next, with no lock held.
	Sees func(tool string) bool
}

// Limits bound watchers and what is kept for them.
type Limits struct {
	// Watchers is how many one identity has at a time, and how many operators
	// do. AllWatchers is how many all identities have.
	Watchers, AllWatchers int
	// Events is how many events other than output a stream keeps, and Output
	// how many bytes of output.
	Events, Output int
	// Keep is how long a stream is kept that nobody watches.
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
