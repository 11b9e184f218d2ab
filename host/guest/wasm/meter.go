package wasm

import "slices"

const (
	// straightMost is where straight code is divided, so that a check can be put in between.
	straightMost = 64
	// pathMost is how long a path without a check may get before one is put in. A branch adds at most 64 to that, and
	// so no check costs more than 256.
	pathMost = 192
	// leafMost is the cost up to which a function without loops and calls has no check, but is paid for by its callers.
	leafMost = 48
	// prefixMost is the cost of straight code at a function's begin that the check of the loop after it may pay for.
	prefixMost = 32
	// localsUnit is how many locals cost one unit at the entry of a function.
	localsUnit = 16
	// leafLocals is how many locals a leaf may have.
	leafLocals = 64
)

// check is a place where fuel is taken.
type check struct {
	pos  int32
	cost uint32
}

// backFrame is a block that is open while events are read backward.
type backFrame struct {
	kind    uint8
	branch  bool   // something branches to it
	after   uint32 // the longest path from where a branch to it leads
	elsePos uint32 // the longest path from its else
}

// meter finds where checks have to be and what each costs, so that every path from one to the next, or to the
// function's end, was paid for by the first one, and leaves them in s.checks, sorted. The function's own begin is the
// first when it has one. It returns what a caller has to pay when the function has no check at all, and -1 otherwise.
//
// It walks backward over the events with the cost of the longest path from there to the next check.
func (s *scan) meter(leaf bool) int {
	s.checks, s.back = s.checks[:0], s.back[:0]
	s.back = append(s.back, backFrame{kind: evBlock})
	var path uint32
	prefixed := false
	at := func(l uint32) *backFrame { return &s.back[len(s.back)-1-int(l)] }
	put := func(pos int32, cost uint32) {
		s.checks = append(s.checks, check{pos, cost})
		path = 0
	}
	// bounded puts a check before a branch when it has become too far.
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
			f.branch = true
			path = cost + f.after
			bounded(e)
		case evBrIf:
			f := at(e.a)
			f.branch = true
			path = cost + max(path, f.after)
			bounded(e)
		case evBrTable:
			path = 0
			for _, l := range s.labels[e.a : e.a+e.n] {
				f := at(l)
				f.branch = true
				path = max(path, f.after)
			}
			path += cost
			bounded(e)
		case evEnd:
			f := backFrame{kind: uint8(e.a), after: path}
			if f.kind == evLoop {
				f.after = 0 // there is a check, if anything branches there
			}
			s.back = append(s.back, f)
		case evElse:
			f := at(0)
			f.elsePos = path
			path = f.after
		case evIf:
			f := at(0)
			other := f.after
			if f.kind == evElse {
				other = f.elsePos
			}
			path = cost + max(path, other)
			s.back = s.back[:len(s.back)-1]
			bounded(e)
		case evBlock:
			s.back = s.back[:len(s.back)-1]
		case evLoop:
			f := at(0)
			if f.branch {
				path = max(path, 1)
				if i == s.prefix && s.prefixC <= prefixMost && s.locals <= leafLocals && path+uint32(s.prefixC) <= 256 {
					prefixed = true
					path += uint32(s.prefixC)
				}
				put(e.pos, path)
			}
			s.back = s.back[:len(s.back)-1]
		}
	}
	if leaf && !s.calls && len(s.checks) == 0 && path <= leafMost && s.locals <= leafLocals {
		return int(path)
	}
	if !prefixed {
		put(int32(s.code), max(path, 1)+uint32(s.locals/localsUnit))
	}
	slices.Reverse(s.checks)
	return -1
}
