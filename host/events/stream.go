package events

import (
	"crypto/rand"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/host/fault"
)

// outputCost is the overhead of an output event beyond its bytes. It counts towards Limits.Output; otherwise
// single bytes would take far more memory than that.
const outputCost = 256

// place is a position in a stream: the number of events other than output before it, the number of output events, and
// the bytes in these.
type place struct{ n, m, bytes int64 }

// seq returns the number of the event before p.
func (p place) seq() int64 { return p.n + p.m }

// since returns what lies between an earlier place and p. A made-up cursor may be at a place that never existed: no
// count is less than zero.
func (p place) since(q place) Loss {
	return Loss{State: max(p.n-q.n, 0), Output: max(p.m-q.m, 0), Bytes: max(p.bytes-q.bytes, 0)}
}

// kept is an event that a stream keeps, and the place after it. Its cursor is computed when the first watcher takes
// it, so that this does not slow down calls.
type kept struct {
	event *Event
	place
}

// scope is what a stream covers. The zero owner is everybody.
type scope struct{ owner, session string }

// reader is the position of one watcher in a stream. Hub.mu guards at, cut and ended.
type reader struct {
	stream *stream
	who    string // the identity or bound session it counts for; of an operator ""
	over   chan struct{}
	at     place // what the watcher has taken included
	cut    bool  // it was too slow
	ended  bool  // over is closed
}

func (r *reader) endLocked() {
	if !r.ended {
		r.ended = true
		close(r.over)
	}
}

// stream holds what is kept of one scope. Hub.mu guards all of it.
type stream struct {
	scope
	id      string
	limits  *Limits
	end     place
	state   []kept // other than output, without gaps, the last one at end.n
	output  []kept // without gaps, the last one at end.m
	size    int    // the cost of output
	readers map[*reader]struct{}
	// changed is closed by the next event; nil while nobody waits.
	changed chan struct{}
	fresh   fresh
	// ended means that the session was closed: no more events will come.
	ended  bool
	expiry expiry
}

// fresh counts what arrived in a stream since a watcher began to gather events.
type fresh struct {
	// pressing is closed when a quarter of what is kept has arrived; nil while nobody gathers.
	pressing chan struct{}
	events   int // other than output
	size     int // the cost of output
}

// expiry is the time until a stream without readers is dropped.
type expiry struct {
	left  time.Time   // when the last reader left
	timer *time.Timer // nil while it is watched
}

func (e *expiry) stop() {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
}

// newStreamID returns an id that distinguishes the cursors of a stream from all others.
func newStreamID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func newStream(limits *Limits, key scope) *stream {
	return &stream{scope: key, id: newStreamID(), limits: limits, readers: map[*reader]struct{}{}}
}

func (s *stream) addLocked(e Event) {
	p := &struct { // one allocation: this is on the path of calls
		Event
		text
	}{Event: e}
	p.Event.text = &p.text
	if e.Kind == Output {
		s.end.m++
		s.end.bytes += int64(e.Bytes)
		s.output = append(s.output, kept{&p.Event, s.end})
		s.size += outputCost + len(e.Data)
		s.fresh.size += outputCost + len(e.Data)
		n := 0
		for s.size > s.limits.Output {
			s.size -= outputCost + len(s.output[n].event.Data)
			n++
		}
		s.output = dropFirst(s.output, n)
	} else {
		s.fresh.events++
		s.end.n++
		s.state = append(s.state, kept{&p.Event, s.end})
		if len(s.state) > s.limits.Events {
			s.state = dropFirst(s.state, 1)
			for r := range s.readers {
				if r.at.n < s.firstLocked().n {
					r.cut = true
					r.endLocked()
				}
			}
		}
		if e.Kind == State && e.State == Closed && e.Session == s.session {
			s.ended = true
		}
	}
	if s.fresh.pressing != nil && (s.fresh.events >= s.limits.Events/4 || s.fresh.size >= s.limits.Output/4 || s.ended) {
		close(s.fresh.pressing)
		s.fresh.pressing = nil
	}
	s.wakeLocked()
}

// Closed is the last State of a session; no events follow it.
const Closed = "closed"

// dropFirst drops the first n. Their memory is released at the next growth.
func dropFirst(list []kept, n int) []kept {
	clear(list[:n])
	return list[n:]
}

func (s *stream) wakeLocked() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// firstLocked returns the place from which every event but output is kept.
func (s *stream) firstLocked() place {
	if len(s.state) == 0 {
		return place{}
	}
	return s.state[0].before()
}

// nextLocked returns the first kept event after p, and what was lost in between; nil if there is none.
func (s *stream) nextLocked(p place) (*kept, Loss) {
	var next *kept
	// Both lists have no gaps, so the index follows from the numbers.
	for _, list := range [...]struct {
		of   []kept
		last int64 // the number of the last one
		seen int64
	}{{s.state, s.end.n, p.n}, {s.output, s.end.m, p.m}} {
		first := list.last - int64(len(list.of)) // number of events before the first
		if i := max(list.seen-first, 0); i < int64(len(list.of)) {
			if k := &list.of[i]; next == nil || k.seq() < next.seq() {
				next = k
			}
		}
	}
	if next == nil {
		// Everything after p may be lost.
		return nil, s.end.since(p)
	}
	return next, next.before().since(p)
}

// before returns the place before k.
func (k *kept) before() place {
	p := k.place
	if k.event.Kind == Output {
		p.m, p.bytes = p.m-1, p.bytes-int64(k.event.Bytes)
	} else {
		p.n--
	}
	return p
}

// cursor returns p as text: ID.N.M.BYTES.
func (s *stream) cursor(p place) string {
	b := make([]byte, 0, 48)
	b = append(b, s.id...)
	for _, n := range [...]int64{p.n, p.m, p.bytes} {
		b = strconv.AppendInt(append(b, '.'), n, 10)
	}
	return string(b)
}

// position is a parsed cursor.
type position struct {
	stream string
	place
}

// parseCursor parses a cursor; an empty one is the zero position. The error is INVALID_PAYLOAD.
func parseCursor(text string) (position, error) {
	if text == "" {
		return position{}, nil
	}
	bad := fault.Errorf(fault.InvalidPayload, "/payload/after: not a cursor; use the cursor of an event, unchanged")
	parts := strings.Split(text, ".")
	if len(text) > 128 || len(parts) != 4 || len(parts[0]) != 16 || strings.Trim(parts[0], "0123456789abcdef") != "" {
		return position{}, bad
	}
	p := position{stream: parts[0]}
	for i, to := range [...]*int64{&p.n, &p.m, &p.bytes} {
		digits := parts[i+1]
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || strconv.FormatInt(n, 10) != digits || n < 0 || n > math.MaxInt64/4 {
			return position{}, bad
		}
		*to = n
	}
	return p, nil
}
