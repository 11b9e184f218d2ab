package events

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/fault"
)

const (
	// maxText bounds the texts of an event that callers choose, in bytes.
	maxText = 256
	// MaxData is the most output in one event, in bytes.
	MaxData = 32 << 10
	// outputCost is the overhead of an output event beyond its bytes. It counts towards Limits.Output; otherwise
	// single bytes would take far more memory than that.
	outputCost = 256
	// maxUnwatched is how many streams of one identity are kept for watchers that may return.
	maxUnwatched = 16
)

// Hub accepts events and holds the streams that are watched. It is safe for concurrent use; a nil Hub drops what is
// published.
type Hub struct {
	limits Limits
	// some counts streams. Publish checks it first.
	some atomic.Int32

	mu      sync.Mutex // guards the fields below, and all of every stream
	streams map[scope]*stream
	held    map[string]int // watchers by owner, or owner/session of bound ones; "" are the operators'
	watched int            // watchers of identities
	closed  bool
}

// scope is what a stream covers. The zero owner is everybody.
type scope struct{ owner, session string }

// NewHub returns a Hub. Limits that are 0 get their defaults.
func NewHub(l Limits) *Hub {
	l.setDefaults()
	return &Hub{limits: l, streams: map[scope]*stream{}, held: map[string]int{}}
}

// Watched reports whether anybody may receive an event, so that a caller need not create one for nobody.
func (h *Hub) Watched() bool { return h != nil && h.some.Load() > 0 }

// Publish sends e to watchers. Its Owner and Session determine its streams; an event without an owner goes to all. At
// is set. Publish never blocks, and keeps nothing of e if nobody watches.
func (h *Hub) Publish(e Event) {
	if !h.Watched() {
		return
	}
	e.At = time.Now().UTC()
	for _, s := range [...]*string{&e.Execution, &e.Tool, &e.Name} {
		if len(*s) > maxText {
			*s = strings.ToValidUTF8((*s)[:maxText], "")
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Owner == "" {
		for _, s := range h.streams {
			s.addLocked(e)
		}
		return
	}
	if s := h.streams[scope{}]; s != nil {
		all := e
		all.Data = nil
		s.addLocked(all)
	}
	own := e
	own.Owner = ""
	if s := h.streams[scope{e.Owner, ""}]; s != nil {
		s.addLocked(own)
	}
	if s := h.streams[scope{e.Owner, e.Session}]; s != nil && e.Session != "" {
		s.addLocked(own)
	}
}

// Watch starts watching what f selects, from now on, or after a cursor. The first event is Ready. Errors are
// INVALID_PAYLOAD for an invalid cursor, and LIMIT_EXCEEDED if there are too many watchers.
func (h *Hub) Watch(f Filter, after string) (*Watcher, error) {
	from, err := parseCursor(after)
	if err != nil {
		return nil, err
	}
	key, who := scope{f.Owner, f.Session}, f.Owner
	switch {
	case f.Operator:
		who = ""
	case f.Owner == "":
		return nil, fault.Errorf(fault.Internal, "a watcher has no owner")
	case f.Bound:
		who += "/" + f.Session
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, errStopping
	case h.held[who] >= h.limits.Watchers:
		return nil, fault.Errorf(fault.LimitExceeded, "%d watchers are there, and that is the limit; end one, or raise sessions.watchers in toold.json", h.held[who])
	case who != "" && h.watched >= h.limits.AllWatchers:
		return nil, fault.Errorf(fault.LimitExceeded, "all callers together have %d watchers, and that is the limit; try again later, or raise sessions.watchers_all in toold.json", h.watched)
	}
	s := h.streams[key]
	if s == nil {
		s = newStream(h, key)
		s.ended = f.Ended
		h.streams[key] = s
		h.some.Add(1)
	}
	if s.expiry != nil {
		s.expiry.Stop()
		s.expiry = nil
	}
	w := &Watcher{hub: h, stream: s, who: who, filter: f, at: s.end, over: make(chan struct{})}
	ready := Event{Kind: Ready, At: time.Now().UTC(), Session: f.Session}
	if after != "" && (from.stream != s.id || from.n > s.end.n || from.m > s.end.m || from.bytes > s.end.bytes) {
		ready.Cursor = s.cursor(s.end)
		w.batch = []Event{ready, {Kind: Lost, At: ready.At, Cursor: ready.Cursor, Lost: &Loss{Reset: true},
			Reason: "the cursor is of a stream that is not kept any more, or of another run of the daemon; query the session to see how things stand"}}
	} else {
		if after != "" {
			w.at = from.place
		}
		ready.Cursor = s.cursor(w.at)
		w.batch = []Event{ready}
		if first := s.firstLocked(); w.at.n < first.n {
			lost := first.since(w.at)
			w.at = first
			w.batch = append(w.batch, Event{Kind: Lost, At: ready.At, Cursor: s.cursor(first), Lost: &lost})
		}
	}
	s.watchers[w] = struct{}{}
	h.held[who]++
	if who != "" {
		h.watched++
	}
	return w, nil
}

var errStopping = fault.Errorf(fault.Overloaded, "the daemon is stopping; watch again, after the last cursor, when it is back")

// Close ends all watchers, each after its pending events.
func (h *Hub) Close() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	for _, s := range h.streams {
		if s.expiry != nil {
			s.expiry.Stop()
		}
		for w := range s.watchers {
			w.endLocked()
		}
		s.wakeLocked()
	}
}

// leaveLocked removes a watcher.
func (h *Hub) leaveLocked(w *Watcher) {
	s := w.stream
	if _, there := s.watchers[w]; !there {
		return
	}
	delete(s.watchers, w)
	if h.held[w.who]--; h.held[w.who] == 0 {
		delete(h.held, w.who)
	}
	if w.who != "" {
		h.watched--
	}
	if len(s.watchers) > 0 {
		return
	}
	if h.closed {
		h.dropLocked(s)
		return
	}
	s.left = time.Now()
	s.expiry = time.AfterFunc(h.limits.Keep, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(s.watchers) == 0 && time.Since(s.left) >= h.limits.Keep {
			h.dropLocked(s)
		}
	})
	// Of an identity's unwatched streams the oldest is removed, never another identity's.
	var oldest *stream
	unwatched := 0
	for key, other := range h.streams {
		if key.owner == s.owner && len(other.watchers) == 0 {
			unwatched++
			if oldest == nil || other.left.Before(oldest.left) {
				oldest = other
			}
		}
	}
	if unwatched > maxUnwatched {
		h.dropLocked(oldest)
	}
}

func (h *Hub) dropLocked(s *stream) {
	if h.streams[s.scope] != s {
		return
	}
	if s.expiry != nil {
		s.expiry.Stop()
	}
	delete(h.streams, s.scope)
	h.some.Add(-1)
}

// newStreamID returns an id that distinguishes the cursors of a stream from all others.
func newStreamID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
