package catalog

import (
	"maps"
	"slices"
	"time"
)

// everything stands for all tools in a schedule. It is not a valid name.
const everything = ""

// schedule decides when which tool is loaded: when no change was reported for a while
// after one, and every tool at an interval. It has no clock: its owner, the goroutine
// that watches, passes the time.
type schedule struct {
	// settle is how long no change must have been reported for a tool, restat the
	// interval at which all tools are checked.
	settle, restat time.Duration
	waiting        map[string]wait
	restatAt       time.Time
}

// wait is a tool for which a change was reported.
type wait struct{ first, due time.Time }

// patience limits the wait for a tool that keeps changing, as a multiple of settle: a
// file beside it that is written all the time must not hide a new version.
const patience = 10

func newSchedule(settle, restat time.Duration, now time.Time) *schedule {
	return &schedule{settle: settle, restat: restat, waiting: map[string]wait{}, restatAt: now.Add(restat)}
}

// touch records a change of a tool, or of everything.
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

// next returns the time at which take will return something.
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
