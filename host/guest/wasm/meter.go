package wasm

import "slices"

const (
	// straightMost is the cost at which straight-line code is split, so that a check can be inserted.
	straightMost = 64
	// pathMost is the maximum cost of a path before a check is inserted. A branch adds at most 64, so no check costs
	// more than 256.
	pathMost = 192
	// exitMost is the maximum cost of the path after a loop for which the loop pays in every iteration. A longer path
	// is paid for at the loop's exit.
	exitMost = 100
	// leafMost is the maximum cost of a function without loops and calls that has no check and is paid for by its
	// callers.
	leafMost = 48
	// localsUnit is the number of locals that cost one unit on entry to a function.
	localsUnit = 16
	// leafLocals is the maximum number of locals of a leaf.
	leafLocals = 64
	// leafBytes is the maximum size of a leaf's body: longer ones are read only once.
	leafBytes = 512
)

// check is a place where fuel is taken.
type check struct {
	kind     uint8
	pos, end int32 // end of the branch that it stands for
	label    uint32
	cost     uint32
}

const (
	checkHere   = iota
	checkBr     // with a br
	checkBranch // with a br_if, when it branches
)

// waiting is a check whose cost is not known yet: at least that of the path from another event, plus extra.
type waiting struct {
	check int
	extra uint32
	next  int32 // in s.waiting, and one more than that; 0 is the end
}

// done marks an event in s.waits that the walk has reached.
const done = -1

// backward is a backward branch whose target the walk has not reached.
type backward struct {
	from   int
	target uint32
}

// backFrame is a block that is open while events are read backward.
type backFrame struct {
	kind  uint8
	after uint32 // the longest path from where a branch to it leads
	other uint32 // the longest path from its else
	start uint32 // the event of its begin
	loops int    // that it is in, or is
	end   int    // the event of its end
}

// meter determines the positions and costs of checks, so that every path from one check to the next, or to the
// function's end, is paid for by the first. It stores them in s.checks, sorted. It returns the cost to callers if the
// function has no check at all, and -1 otherwise.
//
// A function has a check at its start and at each backward branch: there it costs nothing until it is needed, while
// wazero's compiler generates worse code for a check at the start of a loop.
//
// meter walks backward over the events with the cost of the longest path from there to the next check. The cost of a
// backward branch is known only when the walk reaches its target.
func (s *scan) meter() int {
	s.checks, s.back, s.waiting, s.open = s.checks[:0], s.back[:0], s.waiting[:0], s.open[:0]
	s.waits = slices.Grow(s.waits[:0], len(s.events))[:len(s.events)]
	clear(s.waits)
	s.back = append(s.back, backFrame{kind: evBlock})
	var path uint32
	at := func(l uint32) *backFrame { return &s.back[len(s.back)-1-int(l)] }
	put := func(pos int32, cost uint32) {
		s.checks = append(s.checks, check{kind: checkHere, pos: pos, cost: cost})
		path = 0
	}
	// wait makes the last check wait for the path from an event.
	wait := func(event, extra uint32) {
		s.waiting = append(s.waiting, waiting{len(s.checks) - 1, extra, s.waits[event]})
		s.waits[event] = int32(len(s.waiting))
	}
	// arrive resolves checks that wait for the path from an event.
	arrive := func(event uint32) {
		for i := s.waits[event]; i != 0; i = s.waiting[i-1].next {
			w := &s.waiting[i-1]
			c := &s.checks[w.check]
			c.cost = max(c.cost, path+w.extra)
		}
		s.waits[event] = done
	}
	// bounded inserts a check before a branch if its path has become too long.
	bounded := func(e *event) {
		if path > pathMost {
			put(e.pos, path)
		}
	}
	for i := len(s.events) - 1; i >= 0; i-- {
		e := &s.events[i]
		cost := uint32(e.cost)
		switch e.kind {
		case evStraight:
			if path+cost > pathMost && path > 0 {
				put(e.pos, path)
			}
			path += cost
		case evLeave:
			path = cost
			bounded(e)
		case evBr:
			f := at(e.a)
			path = f.after
			if path > exitMost && f.loops < at(0).loops && !e.carries {
				s.checks = append(s.checks, check{checkBr, e.pos, e.end, e.a, path})
				path = 0
			}
			path += cost
			bounded(e)
		case evAhead:
			f := at(e.n)
			path = f.after
			for n := len(s.open); n > 0 && s.waits[s.open[n-1].target] == done; n-- {
				s.open = s.open[:n-1]
			}
			if n := len(s.open); n > 0 && s.open[n-1].from < f.end && path > exitMost {
				s.checks = append(s.checks, check{checkBr, e.pos, e.end, e.a, path})
				path = 0
			}
			path += cost
			bounded(e)
		case evBrIf:
			f := at(e.a)
			taken := f.after
			if taken > exitMost && f.loops < at(0).loops && !e.carries {
				s.checks = append(s.checks, check{checkBranch, e.pos, e.end, e.a, taken})
				taken = 0
			}
			path = cost + max(path, taken)
			bounded(e)
		case evBack:
			s.open = append(s.open, backward{i, e.n})
			s.checks = append(s.checks, check{checkBr, e.pos, e.end, e.a, 1})
			wait(e.n, cost)
			path = 0
		case evBackIf:
			if path > exitMost && s.waits[e.n] == 0 {
				put(e.end, path)
			}
			s.checks = append(s.checks, check{checkBranch, e.pos, e.end, e.a, 1})
			wait(e.n, cost)
			path += cost
			bounded(e)
		case evCarry:
			put(e.pos, 1)
			wait(e.n, cost)
		case evCarryIf:
			put(e.pos, path+cost)
			wait(e.n, cost)
		case evBrTable:
			path = 0
			loops := false
			labels := s.labels[e.a : e.a+e.n]
			for _, l := range labels {
				f := at(l)
				path = max(path, f.after)
				loops = loops || f.kind == evLoop
			}
			path += cost
			if !loops {
				bounded(e)
				break
			}
			put(e.pos, path)
			last := uint32(0)
			for _, l := range labels {
				if f := at(l); f.kind == evLoop && f.start+1 != last {
					wait(f.start, cost)
					last = f.start + 1
				}
			}
		case evEnd:
			if e.lands && path > 0 {
				put(e.pos+1, path)
			}
			if e.a != evLoop {
				arrive(e.n)
			}
			if path > exitMost && e.a == evIf && s.events[i-1].kind == evBack && s.waits[s.events[i-1].n] == 0 {
				put(e.pos+1, path)
			}
			f := backFrame{kind: uint8(e.a), after: path, start: e.n, end: i, loops: at(0).loops}
			if f.kind == evLoop {
				f.after = 0 // branches to it have checks
				f.loops++
			}
			s.back = append(s.back, f)
		case evElse:
			f := at(0)
			f.other = path
			path = f.after
		case evIf:
			f := at(0)
			other := f.after
			if f.kind == evElse {
				other = f.other
			}
			path = cost + max(path, other)
			s.back = s.back[:len(s.back)-1]
			bounded(e)
		case evBlock:
			s.back = s.back[:len(s.back)-1]
		case evLoop:
			if e.lands {
				put(e.end, max(path, 1))
			}
			arrive(uint32(i))
			s.back = s.back[:len(s.back)-1]
		}
	}
	if !s.calls && len(s.checks) == 0 && path <= leafMost && s.locals <= leafLocals {
		return int(path)
	}
	put(int32(s.code), max(path, 1)+uint32(s.locals/localsUnit))
	slices.Reverse(s.checks)
	return -1
}
