// Package session holds the state of sessions: the running calls, turn, counters,
// journal and jobs of each.
//
// Sessions do not block each other: each has its own mutex, is found without a
// lock, and writes its own file. Other packages refer to a session by its id,
// except for the pipeline, which runs an Execution in one during a call. All
// other access is through the six calls that Table.Serve handles: query, mutate,
// prompt, abort, steer and watch.
//
// An id is bound to the identity that created it. For another identity the
// session does not exist: the lookup and its error are the same as for an id that
// was never issued.
//
// The package is independent of tools: the caller supplies the func that runs a
// prompt.
package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base32"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/journal"
	"github.com/toold/toold/host/selector"
)

// The states of a session, as in snapshots and journals.
const (
	Active    = "active"
	Suspended = "suspended" // its journal is synced; its next call resumes it
	Closing   = "closing"   // accepts no calls; its jobs may finish within the grace
	Closed    = events.Closed
)

// DefaultName is the id of the identity's default session, which is created on
// first use and does not count towards the limit.
const DefaultName = "default"

// Config is fixed once the table is open.
type Config struct {
	// Dir is the folder of the journals. It is created if missing.
	Dir string
	// InMemory keeps all sessions in memory only: no journal is read or written.
	InMemory bool
	// Limit is how many explicit sessions one identity may have. Default 256.
	Limit int
	// Idle is how long a session may be idle before it is suspended, and Keep
	// how long it stays suspended before it is closed. Default 30 minutes and
	// 24 hours.
	Idle, Keep time.Duration
	// Grace is how long the jobs of a closed session may continue. Default 5
	// seconds.
	Grace time.Duration
	// Events, if not nil, gets every event. Watch reads from it.
	Events *events.Hub
	// JobOutput is how many bytes of finished jobs' outputs are kept over a restart,
	// for each identity. Default 4 MiB; negative keeps none.
	JobOutput int64
	// Logger gets errors that no caller sees. Default: slog.Default().
	Logger *slog.Logger
}

const (
	defaultLimit = 256
	defaultIdle  = 30 * time.Minute
	defaultKeep  = 24 * time.Hour
	defaultGrace = 5 * time.Second
	// defaultJobOutput is the default of Config.JobOutput.
	defaultJobOutput = 4 << 20
)

// Table holds all sessions of one daemon. It is safe for concurrent use.
type Table struct {
	config Config

	// sessions and owners are read by every call, without a lock. closed are
	// the closed ones whose journals still exist.
	sessions, closed sync.Map // of key to *Session
	owners           sync.Map // of an identity to *owner

	openIdle  atomic.Int32 // open journals of idle sessions
	jobs      *job.Table
	selectors selector.Evaluator

	stop       context.CancelFunc // stops sweep
	background sync.WaitGroup     // sweep, and goroutines that finish closing

	mu        sync.Mutex
	forgotten Counters // of forgotten sessions; guarded by mu
	// unread has the ids of the journals that exist and could not be read; guarded by
	// mu.
	unread map[string]bool
}

// key identifies a session. It includes the identity, so that looking up another
// identity's session fails just like looking up one that never existed.
type key struct{ owner, id string }

func keyOf(s *Session) key { return key{s.owner, s.id} }

// owner is the shared state of one identity's sessions. Calls do not lock it.
type owner struct {
	id  string
	def atomic.Pointer[Session] // the default session; nil until its first use
	// selects has a place for the one selector that is evaluated at a time: each may take
	// hundreds of MiB, and an identity has any number of connections.
	selects chan struct{}

	mu       sync.Mutex // guards what follows
	explicit int        // how many of the limit are in use
	closed   []*Session // oldest first, at most maxClosed

	keyed keyedResults // has a lock of its own
}

// maxClosed is how many closed sessions of one identity are remembered.
const maxClosed = 256

// header is the part of a session that does not change.
type header struct {
	id      string
	owner   string
	isDef   bool
	parent  string // the id of its parent, or empty
	cwd     string
	created time.Time
	key     string // the idempotency key of its create, and the digest of that request
	digest  string
}

// settings are what the owner of a session can change.
type settings struct {
	name   string
	labels map[string]string
	tools  []string // nil for all; limited further by those of its parent
}

// setLabels sets the labels that change names; an empty text removes one.
func (s *settings) setLabels(change map[string]string) error {
	labels := map[string]string{}
	maps.Copy(labels, s.labels)
	for k, v := range change {
		if labels[k] = v; v == "" {
			delete(labels, k)
		}
	}
	if len(labels) > maxLabels {
		return fault.Errorf(fault.LimitExceeded, "/payload/params/labels: the session would have %d labels, and %d are the limit; remove others by setting them to an empty text", len(labels), maxLabels)
	}
	s.labels = labels
	return nil
}

// turns are the turns of a session.
type turns struct {
	turn      *runState     // the running turn
	turnTaken bool          // a turn is running, or about to
	waiting   []*turnWaiter // queued turns, oldest first
}

// turnWaiter is a prompt that waits for its turn.
type turnWaiter struct {
	id      string // of its execution
	tool    string
	granted chan struct{} // closed when it gets the turn
	cancel  context.CancelCauseFunc
}

// runs holds the running executions of a session.
type runs struct {
	running map[*runState]struct{}
	drained chan struct{} // closed when the next execution ends
}

// list returns the running executions, with detached jobs if detached is true.
func (r *runs) list(detached bool) []*runState {
	var list []*runState
	for x := range r.running {
		if detached || x.Job == nil || !x.Job.Detach {
			list = append(list, x)
		}
	}
	return list
}

// history is the record of a session's past calls.
type history struct {
	used   time.Time
	peers  []Peer    // who called in it, the last one first
	recent []Outcome // the last maxRecent, oldest first
	count  Counters
}

// record returns s as a journal record.
func (s *settings) record(now time.Time) journal.Record {
	r := journal.Record{Type: journal.TypeSet, At: now, Name: s.name, Labels: maps.Clone(s.labels)}
	if s.tools != nil {
		tools := slices.Clone(s.tools)
		r.Tools = &tools
	}
	return r
}

// maxPeers is how many peers a session remembers: the last ones, one per container
// and socket.
const maxPeers = 4

func (h *history) usedBy(p Peer) {
	h.peers = slices.DeleteFunc(h.peers, func(o Peer) bool { return o.Container == p.Container && o.Socket == p.Socket })
	h.peers = append([]Peer{p}, h.peers[:min(len(h.peers), maxPeers-1)]...)
}

// Session is one session.
type Session struct {
	t *Table
	header
	above   *Session // its parent; set before the session can be found
	journal journal.Journal
	done    chan struct{} // closed when it is Closed

	mu    sync.Mutex // guards what follows
	state string
	settings
	turns
	runs
	history
	children map[*Session]struct{}
}

// maxRecent is how many outcomes a snapshot shows.
const maxRecent = 20

// errExplicit is the error of a call without a session on a socket that requires one.
var errExplicit = fault.Errorf(fault.Denied, "denied by rule session.explicit: this socket takes no calls in the default session; make a session with toolctl session new, and name it: in TOOL_SESSION, or with --session")

// Choose returns the id of the session that a call belongs to, empty for the default
// one: the one that the call names, else the focus of its connection. bound, if not
// empty, is the only session that the caller may use; explicit rules out the default
// session.
func Choose(named string, focus *atomic.Pointer[string], bound string, explicit bool) (string, error) {
	if bound != "" {
		if named != "" && named != bound {
			return "", notFound(named)
		}
		return bound, nil
	}
	if named == "" && focus != nil {
		if f := focus.Load(); f != nil {
			named = *f
		}
	}
	if explicit && (named == "" || named == DefaultName) {
		return "", errExplicit
	}
	return named, nil
}

// Find returns the session of owner with that id. If id is empty or DefaultName,
// it returns the default session, and creates it if needed.
func (t *Table) Find(owner, id string) (*Session, error) {
	if id == "" || id == DefaultName {
		return t.defaultOf(owner), nil
	}
	s, ok := t.sessions.Load(key{owner, id})
	if !ok {
		return nil, notFound(id)
	}
	return s.(*Session), nil
}

func notFound(id string) *fault.Error {
	return fault.Errorf(fault.SessionNotFound, "there is no session %q for this caller; unset TOOL_SESSION, or make one with toolctl session new", id)
}

func (t *Table) ownerOf(id string) *owner {
	if o, ok := t.owners.Load(id); ok {
		return o.(*owner)
	}
	o, _ := t.owners.LoadOrStore(id, &owner{id: id, selects: make(chan struct{}, 1)})
	return o.(*owner)
}

func (t *Table) defaultOf(id string) *Session {
	o := t.ownerOf(id)
	if s := o.def.Load(); s != nil {
		return s
	}
	o.mu.Lock()
	s := o.def.Load()
	if s != nil {
		o.mu.Unlock()
		return s
	}
	s = t.newSession(id)
	s.isDef = true
	o.def.Store(s)
	t.sessions.Store(keyOf(s), s)
	o.mu.Unlock()
	s.publish(inState(Active))
	s.append(nil)
	s.releaseIfIdle()
	return s
}

func (t *Table) newSession(owner string) *Session {
	now := time.Now()
	s := &Session{t: t, header: header{id: newID(), owner: owner, created: now}, history: history{used: now}, state: Active, done: make(chan struct{})}
	s.journal.Path, s.journal.OpenIdle, s.journal.Off = t.path(s.id), &t.openIdle, t.config.InMemory
	s.count.CountEvent(Active)
	return s
}

func (t *Table) path(id string) string { return filepath.Join(t.config.Dir, id+suffix) }

const suffix = ".jsonl"

// allowedTools returns the tools that can be called in s: its own as far as its
// parents have them, as they are now. nil means all.
func (s *Session) allowedTools() []string {
	var list []string
	for ; s != nil; s = s.above {
		s.mu.Lock()
		own := s.tools
		s.mu.Unlock()
		if own != nil {
			list = narrow(list, own)
		}
	}
	return list
}

// allows reports whether the tool can be called in s.
func (s *Session) allows(tool string) bool {
	list := s.allowedTools()
	return list == nil || slices.Contains(list, tool)
}

// addChild makes s a child.
func (p *Session) addChild(s *Session) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == Closing || p.state == Closed {
		return notFound(p.id)
	}
	if p.children == nil {
		p.children = map[*Session]struct{}{}
	}
	p.children[s] = struct{}{}
	return nil
}

func (p *Session) removeChild(s *Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.children, s)
}

// list returns the open sessions of one identity, or of all, oldest first.
func (t *Table) list(owner string, all bool) []*Session {
	var list []*Session
	t.sessions.Range(func(k, s any) bool {
		if all || k.(key).owner == owner {
			list = append(list, s.(*Session))
		}
		return true
	})
	slices.SortFunc(list, func(a, b *Session) int {
		return cmp.Or(a.created.Compare(b.created), strings.Compare(a.id, b.id))
	})
	return list
}

// Totals returns the summed counters of all sessions that the daemon had journals
// of, and the number of sessions in each state.
func (t *Table) Totals() (Counters, map[string]int) {
	t.mu.Lock()
	sum := t.forgotten.Clone()
	t.mu.Unlock()
	states := map[string]int{Active: 0, Suspended: 0, Closing: 0}
	count := func(_, v any) bool {
		s := v.(*Session)
		s.mu.Lock()
		defer s.mu.Unlock()
		sum.Merge(&s.count)
		if s.state != Closed {
			states[s.state]++
		}
		return true
	}
	t.sessions.Range(count)
	t.closed.Range(count)
	return sum, states
}

// Running returns the ids of all running executions and of jobs that have not ended.
func (t *Table) Running() []string {
	var ids []string
	t.sessions.Range(func(_, v any) bool {
		for _, x := range v.(*Session).executions(true) {
			ids = append(ids, x.ID)
		}
		return true
	})
	for _, id := range t.jobs.Running() {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// append writes a record to the journal; nil only creates the file. A failure is
// logged once, counted, and shown in snapshots.
func (s *Session) append(r *journal.Record) error {
	return s.appendFunc(func() *journal.Record { return r })
}

// appendFunc is like append, and makes the record under the journal's lock, so that
// the session and its journal change together.
func (s *Session) appendFunc(makeRecord func() *journal.Record) error {
	first, err := s.journal.Append(func() *journal.Record {
		r := makeRecord()
		if r != nil {
			r.At = time.Now().UTC()
			if r.Type == journal.TypeState {
				r.ID, r.Owner, r.Default, r.Created = s.id, s.owner, s.isDef, s.created
			}
		}
		return r
	}, func() []journal.Record { return firstRecords(s) })
	if err != nil && first {
		s.t.config.Logger.Warn("the journal of a session cannot be written; calls that change something are refused", "session", s.id, "error", err)
	}
	return err
}

// firstRecords returns the records that a new journal of s begins with: the
// session's present state.
func firstRecords(s *Session) []journal.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UTC()
	header := journal.Record{
		Type: journal.TypeSession, At: now, Version: journal.Version, ID: s.id, Owner: s.owner, Default: s.isDef, Parent: s.parent,
		Cwd: s.cwd, Created: s.created, Key: s.key, Digest: s.digest,
	}
	// The second record repeats id and owner: the first may be damaged.
	state := journal.Record{Type: journal.TypeState, At: now, State: s.state, ID: s.id, Owner: s.owner, Default: s.isDef, Created: s.created}
	count := s.count.Clone()
	snapshot := journal.Record{Type: journal.TypeSnapshot, At: now, Counters: &count}
	for x := range s.running {
		if x.attempts.Load() > 0 {
			snapshot.Pending = append(snapshot.Pending, *x.beginRecord())
		}
	}
	return []journal.Record{header, state, s.settings.record(now), snapshot}
}

var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID returns a random id of 120 bits.
func newID() string {
	var b [15]byte
	rand.Read(b[:]) // never fails
	return idText.EncodeToString(b[:])
}

// publish publishes an event of s.
func (s *Session) publish(e events.Event) {
	if h := s.t.config.Events; h.Watched() {
		e.Owner, e.Session = s.owner, s.id
		h.Publish(e)
	}
}

// inState returns the event of a session that has changed to state.
func inState(state string) events.Event { return events.Event{Kind: events.State, State: state} }

// queued returns the event of a change of the waiting turns. The session is locked.
func (t *turns) queued() events.Event {
	return events.Event{Kind: events.Queue, Queued: len(t.waiting)}
}

func (s *Session) releaseIfIdle() {
	s.mu.Lock()
	idle := len(s.running) == 0
	s.mu.Unlock()
	if idle {
		s.journal.Release()
	}
}

// executions returns the running executions of s, with detached jobs if detached is
// true.
func (s *Session) executions(detached bool) []*runState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs.list(detached)
}

// ID returns the session's id.
func (s *Session) ID() string { return s.id }

// narrow returns the tools that are in both lists; nil stands for all tools.
func narrow(a, b []string) []string {
	switch {
	case a == nil:
		return slices.Clone(b)
	case b == nil:
		return a
	}
	both := []string{}
	for _, name := range a {
		if slices.Contains(b, name) {
			both = append(both, name)
		}
	}
	return both
}
