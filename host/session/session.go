// Package session keeps what belongs to one working session and to no other:
// which calls run in it, its turn, its counters, its journal and its jobs.
//
// Many sessions run at once and none waits for another: each has a mutex of its
// own, is found without any lock, and writes a file of its own. Nobody outside
// this package holds a session by more than its id, apart from the pipeline,
// which begins an Execution in one for the time of a call. All else is asked
// for with the five calls that Table.Serve answers: query, mutate, prompt, abort
// and steer.
//
// An id is bound to the identity that made it. For every other identity there is
// no such session, in the same words and by the same steps as for an id that
// never was.
//
// The package knows nothing of tools: a prompt is run by a func that its caller
// brings.
package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/fault"
)

// The states of a session, as snapshots and journals say them.
const (
	Active    = "active"
	Suspended = "suspended" // its journal is on disk; its next call resumes it
	Closing   = "closing"   // takes no more calls; its jobs have some time left
	Closed    = "closed"
)

// DefaultName stands, in place of an id, for the identity's own session, which
// is made on first use and does not count towards the limit.
const DefaultName = "default"

// Config is fixed once the table is open.
type Config struct {
	// Dir is the folder of the journals. It is made when it is not there.
	Dir string
	// Limit is how many explicit sessions one identity has at most. Default
	// 256.
	Limit int
	// Idle is how long a session may do nothing before it is suspended, and
	// Keep how long it stays suspended before it is closed. Default 30 minutes
	// and 24 hours.
	Idle, Keep time.Duration
	// Grace is how long the jobs of a session that is closed may go on. Default
	// 5 seconds.
	Grace time.Duration
	// Logger gets what no caller can be told. Default: slog.Default().
	Logger *slog.Logger
}

const (
	defaultLimit = 256
	defaultIdle  = 30 * time.Minute
	defaultKeep  = 24 * time.Hour
	defaultGrace = 5 * time.Second
)

// Table is all sessions of one daemon. It is safe for concurrent use.
type Table struct {
	config Config
	log    *slog.Logger

	// sessions and owners are read on the way of every call, without a lock.
	// closed are those that were closed and whose journals are still there.
	sessions, closed sync.Map // of key to *Session
	owners           sync.Map // of an identity to *owner

	kept      atomic.Int32 // journals that are open without need
	jobs      jobTable
	selectors selectors

	stop    context.CancelFunc // of the goroutine that suspends and closes
	working sync.WaitGroup     // that one, and those that finish closing

	mu   sync.Mutex
	gone Counters // of sessions that were forgotten; guarded by mu
}

// key finds a session. The identity is a part of it, so that another identity's
// session is not found in just the way in which one is not found that never was.
type key struct{ owner, id string }

func keyOf(s *Session) key { return key{s.owner, s.id} }

// owner is what one identity's sessions share. It is not on the way of a call.
type owner struct {
	id  string
	def atomic.Pointer[Session] // the default session; nil until its first use

	mu       sync.Mutex // guards what follows
	explicit int        // how many of the limit are in use
	closed   []*Session // oldest first, at most keptClosed
	made     []*made    // by keys, oldest first, at most keptKeys
}

// made is the answer that a mutate with an idempotency key got.
type made struct {
	key, digest string
	data        json.RawMessage
}

const (
	// keptClosed is how many closed sessions of one identity are remembered.
	keptClosed = 256
	// keptKeys is how many idempotency keys of one identity are remembered.
	keptKeys = 1000
)

// Session is one session.
type Session struct {
	t       *Table
	id      string
	owner   string
	isDef   bool
	parent  string // the id of its parent, or empty
	cwd     string
	created time.Time
	key     string // the idempotency key that made it, and the digest of what it asked
	digest  string
	journal journal
	over    chan struct{} // closed when it is Closed

	mu       sync.Mutex // guards what follows
	state    string
	name     string
	labels   map[string]string
	tools    []string // nil for all
	used     time.Time
	running  map[*Execution]struct{}
	turn     *Execution    // the one turn
	inTurn   bool          // a turn is running, or about to
	waiting  []*turnWait   // for their turn, oldest first
	drained  chan struct{} // closed with the end of the next execution
	children map[*Session]struct{}
	recent   []Outcome // the last maxRecent, oldest first
	count    Counters
}

// maxRecent is how many outcomes a snapshot shows.
const maxRecent = 20

// Find is the session that a call of owner belongs to: the one of that id, or
// the owner's default one, which is made when it is not there, when id is empty
// or DefaultName.
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
	o, _ := t.owners.LoadOrStore(id, &owner{id: id})
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
	s.note(nil)
	s.releaseIfIdle()
	return s
}

func (t *Table) newSession(owner string) *Session {
	now := time.Now()
	s := &Session{t: t, id: newID(), owner: owner, created: now, used: now, state: Active, over: make(chan struct{})}
	s.journal.path, s.journal.kept = t.path(s.id), &t.kept
	s.count.event(Active)
	return s
}

func (t *Table) path(id string) string { return filepath.Join(t.config.Dir, id+suffix) }

const suffix = ".jsonl"

// create makes an explicit session. parent may be nil.
func (t *Table) create(caller string, parent *Session, p *params, key, digest string) (*Session, error) {
	o := t.ownerOf(caller)
	s := t.newSession(caller)
	s.cwd, s.name, s.labels, s.key, s.digest = p.Cwd, p.Name, maps.Clone(p.Labels), key, digest
	if p.Tools != nil {
		s.tools = slices.Clone(*p.Tools)
	}
	o.mu.Lock()
	if o.explicit >= t.config.Limit {
		n := o.explicit
		o.mu.Unlock()
		return nil, fault.Errorf(fault.SessionLimit, "there are %d sessions, and the limit is %d; close one with toolctl session close", n, t.config.Limit)
	}
	o.explicit++
	o.mu.Unlock()
	giveUp := func(err error) (*Session, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.explicit--
		return nil, err
	}
	if parent != nil {
		s.parent = parent.id
		if err := parent.adopt(s); err != nil {
			return giveUp(err)
		}
	}
	if err := s.note(nil); err != nil {
		if parent != nil {
			parent.disown(s)
		}
		s.journal.remove()
		return giveUp(fault.Errorf(fault.StoreUnavailable, "the journal of a new session cannot be written: %w; see the sessions folder in the daemon's state", err))
	}
	s.journal.release()
	t.sessions.Store(keyOf(s), s)
	s.mu.Lock()
	closed := s.state == Closing || s.state == Closed
	s.mu.Unlock()
	if closed { // with its parent, before it could be found
		t.sessions.Delete(keyOf(s))
		return nil, notFound(s.parent)
	}
	return s, nil
}

// adopt makes s a child. It inherits the tools that its parent is limited to.
func (p *Session) adopt(s *Session) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == Closing || p.state == Closed {
		return notFound(p.id)
	}
	if p.children == nil {
		p.children = map[*Session]struct{}{}
	}
	p.children[s] = struct{}{}
	if s.tools == nil {
		s.tools = slices.Clone(p.tools)
	}
	return nil
}

func (p *Session) disown(s *Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.children, s)
}

// of is all open sessions of one identity, or of all, oldest first.
func (t *Table) of(owner string, all bool) []*Session {
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

// Totals is what all sessions came to since the daemon has their journals, and
// how many there are in each state. It is summed up when it is asked for.
func (t *Table) Totals() (Counters, map[string]int) {
	t.mu.Lock()
	sum := t.gone.clone()
	t.mu.Unlock()
	states := map[string]int{Active: 0, Suspended: 0, Closing: 0}
	count := func(_, v any) bool {
		s := v.(*Session)
		s.mu.Lock()
		defer s.mu.Unlock()
		sum.plus(&s.count)
		if s.state != Closed {
			states[s.state]++
		}
		return true
	}
	t.sessions.Range(count)
	t.closed.Range(count)
	return sum, states
}

// note writes a record into the journal; nil only begins the file. What cannot
// be written is said once, counted, and told to whoever asks.
func (s *Session) note(r *record) error { return s.noteAs(func() *record { return r }) }

// noteAs is note of a record that is made when it is about to be written, so that
// what it says of the session and what the journal says are changed together.
func (s *Session) noteAs(what func() *record) error {
	first, err := s.journal.append(func() *record {
		r := what()
		if r != nil {
			r.At = time.Now().UTC()
			if r.Type == recState {
				r.ID, r.Owner, r.Default, r.Created = s.id, s.owner, s.isDef, s.created
			}
		}
		return r
	}, s.fresh)
	if err != nil && first {
		s.t.log.Warn("the journal of a session cannot be written; calls that change something are refused", "session", s.id, "error", err)
	}
	return err
}

// fresh is what a journal begins with: all that is known at this moment.
func (s *Session) fresh() []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UTC()
	header := record{
		Type: recSession, At: now, Version: journalVersion, ID: s.id, Owner: s.owner, Default: s.isDef, Parent: s.parent,
		Cwd: s.cwd, Created: s.created, Key: s.key, Digest: s.digest,
	}
	// The second record says whose it is once more: the first may be damaged.
	state := record{Type: recState, At: now, State: s.state, ID: s.id, Owner: s.owner, Default: s.isDef, Created: s.created}
	count := s.count.clone()
	snapshot := record{Type: recSnapshot, At: now, Counters: &count}
	for x := range s.running {
		if x.attempts.Load() > 0 {
			snapshot.Pending = append(snapshot.Pending, *x.begin())
		}
	}
	return []record{header, state, s.settingsLocked(now), snapshot}
}

// settingsLocked is what can be changed of s, as a record.
func (s *Session) settingsLocked(now time.Time) record {
	r := record{Type: recSet, At: now, Name: s.name, Labels: maps.Clone(s.labels)}
	if s.tools != nil {
		tools := slices.Clone(s.tools)
		r.Tools = &tools
	}
	return r
}

var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID makes an id that nobody guesses: 120 bits.
func newID() string {
	var b [15]byte
	rand.Read(b[:]) // never fails
	return idText.EncodeToString(b[:])
}
