package tools

import (
	"maps"
	"slices"
	"time"
)

// everything is the name under which a schedule keeps all tools.
const everything = ""

// schedule says when which tool is to be looked at: when nothing has been
// heard of it for a while after a change, and every tool now and then. It
// keeps no clock; the goroutine that watches owns it and tells it the time.
type schedule struct {
	// settle is how long a tool must have been quiet; restat how often all
	// are looked at whatever was heard.
	settle, restat time.Duration
	waiting        map[string]wait
	restatAt       time.Time
}

// wait is a tool of which something was heard.
type wait struct{ first, due time.Time }

// patience is how many times settle a tool that is never quiet waits: a file
// that is written without end beside it must not hide a new version.
const patience = 10

func newSchedule(settle, restat time.Duration, now time.Time) *schedule {
	return &schedule{settle: settle, restat: restat, waiting: map[string]wait{}, restatAt: now.Add(restat)}
}

// touch notes that something of a tool, or of everything, changed.
func (s *schedule) touch(name string, now time.Time) {
	w, ok := s.waiting[name]
	if !ok {
		w.first = now
	}
	w.due = now.Add(s.settle)
	if last := w.first.Add(patience * s.settle); w.due.After(last) {
		w.due = last
	}
	s.waiting[name] = w
}

// next is when take has something to give.
func (s *schedule) next() time.Time {
	at := s.restatAt
	for _, w := range s.waiting {
		if w.due.Before(at) {
			at = w.due
		}
	}
	return at
}

// take returns the tools that are due, in order, and whether all of them are.
func (s *schedule) take(now time.Time) (names []string, all bool) {
	if !now.Before(s.restatAt) {
		s.restatAt = now.Add(s.restat)
		all = true
	}
	for _, name := range slices.Sorted(maps.Keys(s.waiting)) {
		if s.waiting[name].due.After(now) {
			continue
		}
		delete(s.waiting, name)
		if name == everything {
			all = true
		} else {
			names = append(names, name)
		}
	}
	return names, all
}
