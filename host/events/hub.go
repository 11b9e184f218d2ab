package events

import (
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
		s.expiry.stop()
		for r := range s.readers {
			r.endLocked()
		}
		s.wakeLocked()
	}
}

// leaveLocked removes a reader.
func (h *Hub) leaveLocked(r *reader) {
	s := r.stream
	if _, there := s.readers[r]; !there {
		return
	}
	delete(s.readers, r)
	if h.held[r.who]--; h.held[r.who] == 0 {
		delete(h.held, r.who)
	}
	if r.who != "" {
		h.watched--
	}
	if len(s.readers) > 0 {
		return
	}
	if h.closed {
		h.dropLocked(s)
		return
	}
	s.expiry.left = time.Now()
	s.expiry.timer = time.AfterFunc(h.limits.Keep, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(s.readers) == 0 && time.Since(s.expiry.left) >= h.limits.Keep {
			h.dropLocked(s)
		}
	})
	// Of an identity's unwatched streams the oldest is removed, never another identity's.
	var oldest *stream
	unwatched := 0
	for key, other := range h.streams {
		if key.owner == s.owner && len(other.readers) == 0 {
			unwatched++
			if oldest == nil || other.expiry.left.Before(oldest.expiry.left) {
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
	s.expiry.stop()
	delete(h.streams, s.scope)
	h.some.Add(-1)
}
