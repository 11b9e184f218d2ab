package wasm

// event is a place in a function's code that matters to metering: straight-line code of some cost, or a place where
// control arrives from or leaves to elsewhere.
type event struct {
	kind uint8
	cost uint16 // of the instruction, or of the straight code
	// pos is where a check for the following code would be inserted: after straight-line code, and before everything
	// else. A backward branch extends from pos to end.
	pos, end int32
	carries  bool // values, to where it branches
	lands    bool // exceptions lead to here: the begin of a loop or the end of a block
	// a is the label of a branch, or the first one in scan.labels, and n their number. At the end of a block, a is its
	// kind and n the event of its begin. Of a branch backward, n is the event of where it leads to: the begin of a loop,
	// or of a block after whose end it goes on. Of evAhead, n is the label of that block.
	a, n uint32
}

const (
	evStraight = iota
	evBlock
	evLoop
	evIf
	evElse
	evEnd
	evBr
	evBrIf
	evAhead // br to a loop whose dispatch leads to the end of a block that is still open
	evBrTable
	evBack    // br to a loop
	evBackIf  // br_if to a loop
	evCarry   // br to a loop that takes values
	evCarryIf // br_if to a loop that takes values
	evLeave   // return, unreachable, or a call instead of a return
)

// edit is an instruction that is rewritten.
type edit struct {
	kind       uint8
	start, end int32
	arg        uint32
	landings   span // in scan.landings, of what may throw
}

const (
	editCall           = iota // call arg, an index that was moved
	editReturnCall            // return_call arg
	editRefFunc               // a reference to function arg
	editFill                  // memory.fill
	editCopy                  // memory.copy
	editGrow                  // memory.grow
	editInit                  // memory.init of segment arg
	editDrop                  // data.drop of segment arg
	editDirty                 // sets the flag, then does what it did
	editTable                 // sets the flag and pays for the number on top of the stack, then does what it did
	editCallThrough           // call arg, and looks for an exception
	editThrough               // does what it did, and looks for an exception
	editThrow                 // throw of tag arg
	editThrowRef              // throw_ref
	editTry                   // try_table, whose block type has arg bytes
	editType                  // a type, which is arg
	editCallRef               // call_ref of type arg
	editCallRefThrough        // call_ref of type arg, and looks for an exception
	editReturnCallRef         // return_call_ref of type arg
)

// frame is a block that is open while code is read forward.
type frame struct {
	kind    uint8
	start   int  // its event
	arity   int  // values that a branch to it carries
	lands   bool // exceptions lead to its end
	clauses span // of a try_table, in scan.clauses

	// A loop that begins with a dispatch, "block … block local.get br_table", as Go's compiler makes one of each
	// function: a branch to it after "i32.const local.set" leads to a block that is known.
	dispatch bool
	local    uint32
	targets  span // labels of the br_table in scan.labels
	height   int  // blocks that were open at the br_table
}

// next describes the last instructions, as far as needed to recognize a dispatch.
type next struct {
	// A loop at this height of frames was begun, and after that only blocks, or also a local.get. 0: no such loop.
	loop   int
	loaded bool
	local  uint32
	// A constant was the last instruction, or it was stored to a local.
	constant bool
	stored   bool
	value    uint32
	to       uint32
}

// scan is the working state for reading functions one at a time.
type scan struct {
	src    *source
	leaf   []uint8 // by function: 0, or one more than the cost of a function without checks of its own
	indir  int     // additional cost of a call through a table, for the leaves that it may reach
	events []event
	labels []uint32
	edits  []edit
	frames []frame

	body   span
	code   int // where the instructions begin
	locals int
	calls  bool  // it calls others
	grows  bool  // this or another function grows a table
	rate   int64 // Module.StackRate for the functions until now

	checks  []check
	back    []backFrame
	waiting []waiting
	waits   []int32
	open    []backward

	total int // locals of all functions

	results  []ValueType // of the function
	clauses  []clause
	landings []landing
	thrower  *thrower // of the function, while that is looked for

	refs  []uint32       // functions that code takes references to, in the order of their globals
	refAt map[uint32]int // position in refs
}

// read reads the code of the function at that position of the code section, checks every index and the nesting of
// blocks, and notes events and edits.
func (s *scan) read(n int) *Error {
	src := s.src
	s.body = src.code[n]
	s.events, s.labels, s.edits, s.frames = s.events[:0], s.labels[:0], s.edits[:0], s.frames[:0]
	s.calls = false
	s.clauses, s.landings = s.clauses[:0], s.landings[:0]
	r := &reader{b: src.in, p: s.body.start, end: s.body.end}
	typ := src.types[src.funcs[src.importedFuncs+n]]

	s.locals = 0
	for range r.count(len(src.in), "kinds of locals") {
		at := r.p
		n := r.u32("number of locals")
		s.valueType(r)
		if int64(n) > int64(src.lim.Locals-s.locals) {
			r.fail(at, TooLarge, "have more than %d locals", src.lim.Locals)
			break
		}
		s.locals += int(n)
	}
	s.total += s.locals
	if s.total > src.lim.AllLocals {
		r.fail(r.p, TooLarge, "have more than %d locals in all functions", src.lim.AllLocals)
	}
	known := s.locals + len(typ.Params)
	s.results = typ.Results
	s.code = r.p
	s.frames = append(s.frames, frame{kind: evBlock, arity: len(typ.Results)})

	straight := 0 // cost of straight code that is no event yet
	flush := func(pos int) {
		if straight > 0 {
			s.events = append(s.events, event{kind: evStraight, cost: uint16(straight), pos: int32(pos)})
			straight = 0
		}
	}
	// jump records an event other than straight-line code.
	jump := func(e event) {
		flush(int(e.pos))
		s.events = append(s.events, e)
	}
	label := func() uint32 {
		at := r.p
		l := r.u32("label")
		if int64(l) >= int64(len(s.frames)) {
			r.fail(at, Malformed, "branch to unknown label %d", l)
			return 0
		}
		return l
	}
	arity := func(l uint32) int { return s.frames[len(s.frames)-1-int(l)].arity }

	var last next
	for len(s.frames) > 0 {
		at := r.p
		was := last
		last = next{}
		if !r.more() {
			r.fail(at, Malformed, "read function: its end is missing")
			break
		}
		op := r.b[r.p]
		r.p++
		in := instructions[op]
		cost := int(in.cost)
		switch in.imm {
		case immUnknown:
			if f := unsupported(op); f != "" {
				r.fail(at, Unsupported, "use %s (instruction 0x%02x)", f, op)
			} else {
				r.fail(at, Unsupported, "use unknown instruction 0x%02x", op)
			}

		case immNone:
			switch op {
			case opElse:
				f := &s.frames[len(s.frames)-1]
				if f.kind != evIf {
					r.fail(at, Malformed, "read function: else without an if")
					break
				}
				f.kind = evElse
				jump(event{kind: evElse, pos: int32(at)})
			case opEnd:
				flush(at)
				f := s.frames[len(s.frames)-1]
				s.frames = s.frames[:len(s.frames)-1]
				if len(s.frames) > 0 {
					s.events = append(s.events, event{kind: evEnd, pos: int32(at), a: uint32(f.kind), n: uint32(f.start), lands: f.lands})
				}
			case opReturn:
				jump(event{kind: evLeave, cost: uint16(cost + carry(len(typ.Results))), pos: int32(at)})
			case opUnreachable:
				jump(event{kind: evLeave, cost: uint16(cost), pos: int32(at)})
			default:
				straight += cost
			}

		case immBlock:
			params, results := s.blockType(r)
			flush(at)
			f := frame{kind: evBlock, arity: results, start: len(s.events)}
			switch op {
			case opBlock:
				if !was.loaded {
					last.loop = was.loop
				}
			case opLoop:
				f.kind, f.arity = evLoop, params
				last.loop = len(s.frames)
			case opIf:
				f.kind = evIf
			}
			s.block(r, event{kind: f.kind, cost: uint16(cost), pos: int32(at), end: int32(r.p)}, f)

		case immLabel:
			l := label()
			if r.err != nil {
				break
			}
			n := arity(l)
			e := event{kind: evBr, cost: uint16(cost + carry(n)), pos: int32(at), end: int32(r.p), carries: n > 0, a: l}
			if op != opBr {
				e.kind = evBrIf
			}
			f := &s.frames[len(s.frames)-1-int(l)]
			switch loop := f.kind == evLoop; {
			case op == opBrOnNull || op == opBrOnNonNull:
				// No check stands for it: what it looks at is no i32.
				if e.carries = true; loop {
					e.kind, e.n = evCarryIf, uint32(f.start)
				}
			case loop:
				s.backward(&e, f, was)
			}
			jump(e)

		case immFunc:
			f := src.funcIndex(r)
			if r.err != nil {
				break
			}
			moved := f
			if int(f) >= src.importedFuncs {
				moved += src.addedImports()
			}
			if s.thrower != nil && op != opRefFunc {
				s.thrower.calls = append(s.thrower.calls, f)
			}
			if op == opRefFunc {
				if src.declared == nil || !src.declared[f] {
					r.fail(at, Malformed, "refer to function %d, which nothing outside of code names", f)
					break
				}
				s.reference(r, at, f)
				s.edits = append(s.edits, edit{kind: editRefFunc, start: int32(at), end: int32(r.p), arg: f})
				straight += cost
				break
			}
			t := src.typeOf(f)
			// A function that calls is no leaf, whatever it calls: which ones are
			// was settled when no leaf was known yet.
			s.calls = true
			if leaf := int(s.leaf[f]); leaf > 0 {
				cost += leaf - 1
			}
			cost += carry(len(t.Params) + len(t.Results))
			if op == opCall {
				switch {
				case src.throwsFrom(f):
					straight += cost + lookCost
					s.throwing(editCallThrough, at, r.p, moved)
				case moved != f:
					straight += cost
					s.edits = append(s.edits, edit{kind: editCall, start: int32(at), end: int32(r.p), arg: moved})
				default:
					straight += cost
				}
			} else {
				jump(event{kind: evLeave, cost: uint16(cost), pos: int32(at)})
				if moved != f {
					s.edits = append(s.edits, edit{kind: editReturnCall, start: int32(at), end: int32(r.p), arg: moved})
				}
			}

		case immTable:
			s.table(r)
			straight += cost
			if op == opTableSet {
				s.edits = append(s.edits, edit{kind: editDirty, start: int32(at), end: int32(r.p)})
			}

		case immLocal:
			l := r.u32("local")
			if int64(l) >= int64(known) {
				r.fail(at, Malformed, "use unknown local %d", l)
			}
			straight += cost
			switch {
			case op == opLocalGet && was.loop > 0 && !was.loaded:
				last = next{loop: was.loop, loaded: true, local: l}
			case op == opLocalSet && was.constant:
				last = next{stored: true, value: was.value, to: l}
			}

		case immGlobal:
			g := r.u32("global")
			if int64(g) >= int64(len(src.globals)) {
				r.fail(at, Malformed, "use unknown global %d", g)
				break
			}
			if op == opGlobalSet {
				if !src.globals[g].mutable {
					r.fail(at, Malformed, "set global %d, which is not mutable", g)
				}
				if src.globals[g].typ.isRef() {
					s.edits = append(s.edits, edit{kind: editDirty, start: int32(at), end: int32(r.p)})
				}
			}
			straight += cost

		case immMemArg:
			s.memArg(r, at)
			straight += cost

		case immMemory:
			s.memory(r, at)
			straight += cost
			if op == opMemoryGrow {
				s.edits = append(s.edits, edit{kind: editGrow, start: int32(at), end: int32(r.p)})
			}

		case immI32:
			last = next{constant: true, value: uint32(r.signed(32, "constant"))}
			straight += cost
		case immI64:
			r.signed(64, "constant")
			straight += cost
		case immF32:
			r.skip(4, "constant")
			straight += cost
		case immF64:
			r.skip(8, "constant")
			straight += cost

		case immOther:
			switch op {
			case opBrTable:
				n := r.count(len(src.in), "labels")
				e := event{kind: evBrTable, pos: int32(at), a: uint32(len(s.labels)), n: uint32(n) + 1}
				most := 0
				for range n + 1 {
					l := label()
					if r.err != nil {
						break
					}
					s.labels = append(s.labels, l)
					most = max(most, arity(l))
				}
				e.cost = uint16(cost + carry(most))
				jump(e)
				if was.loaded {
					f := &s.frames[was.loop]
					f.dispatch, f.local, f.height = true, was.local, len(s.frames)
					f.targets = span{int(e.a), int(e.a + e.n)}
				}
			case opCallIndirect, opReturnCallIndirect, opCallRef, opReturnCallRef:
				i := src.typeIndex(r)
				if op == opCallIndirect || op == opReturnCallIndirect {
					s.table(r)
				}
				if r.err != nil {
					break
				}
				t := src.types[i]
				cost += s.indir + carry(len(t.Params)+len(t.Results))
				s.calls = true
				if s.thrower != nil {
					s.thrower.indirect = true
				}
				returns, look := op == opReturnCallIndirect || op == opReturnCallRef, src.tablesThrow()
				switch {
				case returns:
					jump(event{kind: evLeave, cost: uint16(cost), pos: int32(at)})
				case look:
					straight += cost + lookCost
				default:
					straight += cost
				}
				switch {
				case op == opReturnCallRef:
					s.edits = append(s.edits, edit{kind: editReturnCallRef, start: int32(at), end: int32(r.p), arg: i})
				case op == opCallRef && look:
					s.throwing(editCallRefThrough, at, r.p, i)
				case op == opCallRef:
					s.edits = append(s.edits, edit{kind: editCallRef, start: int32(at), end: int32(r.p), arg: i})
				case !returns && look:
					s.throwing(editThrough, at, r.p, 0)
				}
			case opSelectTyped:
				if n := r.u8("number of types"); n != 1 {
					r.fail(at, Malformed, "select between %d types", n)
				}
				s.valueType(r)
				straight += cost
			case opRefNull:
				start := r.p
				s.retype(start, src.heapType(r), r)
				straight += cost
			case opThrow, opThrowRef:
				jump(event{kind: evLeave, cost: uint16(s.readThrow(r, op, at)), pos: int32(at)})
			case opTryTable:
				flush(at)
				s.readTry(r, at)
			case opMisc:
				straight += s.misc(r, at)
			case opVector:
				s.vector(r, at)
				straight += vectorCost
			case opAtomic:
				s.atomic(r, at)
				straight += atomicCost
			}
		}
		if r.err != nil {
			return r.err
		}
		if straight >= straightMost {
			flush(r.p)
		}
	}
	if r.err == nil && r.more() {
		r.fail(r.p, Malformed, "read function: code follows its end")
	}
	if s.calls {
		s.rate = max(s.rate, stackRate(typ))
	}
	return r.err
}

// lookCost is the cost of checking for an exception after a call.
const lookCost = 1

// valueType reads a value type.
func (s *scan) valueType(r *reader) {
	start := r.p
	s.retype(start, s.src.valueType(r), r)
}

// retype records a type, from start on, that is written differently.
func (s *scan) retype(start int, t ValueType, r *reader) {
	if r.err == nil && (r.p > start+1 || ValueType(r.b[start]) != t) {
		s.edits = append(s.edits, edit{kind: editType, start: int32(start), end: int32(r.p), arg: uint32(t)})
	}
}

// dispatchCost is the cost of a dispatch, from the start of its loop.
const dispatchCost = 3

// backward makes the event of a branch to a loop the right one.
func (s *scan) backward(e *event, f *frame, was next) {
	if f.arity > 0 {
		e.kind += evCarry - evBr
		e.n = uint32(f.start)
		return
	}
	if e.kind == evBr && f.dispatch && was.stored && was.to == f.local {
		n := f.targets.end - f.targets.start
		l := int(s.labels[f.targets.start+min(int(was.value), n-1)])
		// The loop is at height h, and only blocks follow it up to the dispatch.
		h := len(s.frames) - 1 - int(e.a)
		if target := f.height - 1 - l; target > h {
			block := f.start + target - h
			e.cost += dispatchCost
			if target < len(s.frames) && s.frames[target].start == block {
				e.kind, e.n = evAhead, uint32(len(s.frames)-1-target)
			} else {
				e.kind, e.n = evBack, uint32(block)
			}
			return
		}
	}
	e.kind += evBack - evBr
	e.n = uint32(f.start)
}

// stackRate is how many bytes of stack a function of a type may take for each unit of fuel that calling it costs, when
// it does nothing but call: each parameter and result is handed over, and kept.
func stackRate(t FuncType) int64 {
	var bytes int64 = 64
	for _, ts := range [][]ValueType{t.Params, t.Results} {
		for _, v := range ts {
			if v == V128 {
				bytes += 32
			} else {
				bytes += 16
			}
		}
	}
	fuel := int64(instructions[opCall].cost) + int64(carry(len(t.Params)+len(t.Results))) + 1
	return bytes / fuel
}

// carry is the cost of carrying values to elsewhere. It is bounded, since no cost of one event may exceed what meter
// leaves room for.
func carry(values int) int { return min(values/16, 60) }

// blockType reads a block's type and returns the numbers of its parameters and results.
func (s *scan) blockType(r *reader) (params, results int) {
	at := r.p
	if r.more() {
		switch c := r.b[r.p]; {
		case c == 0x40:
			r.p++
			return 0, 0
		case ValueType(c).valid() || c == exnRef || ValueType(c) == refNullable || ValueType(c) == refNonNull:
			if r.b[at-1] == opTryTable { // which is written as a whole
				s.src.valueType(r)
			} else {
				s.valueType(r)
			}
			return 0, 1
		case c >= 0x40 && c < 0x80:
			unknownType(r, at, c)
			return 0, 0
		}
	}
	t := r.signed(33, "block type")
	if t < 0 || t >= int64(len(s.src.types)) {
		r.fail(at, Malformed, "use unknown type %d", t)
		return 0, 0
	}
	typ := s.src.types[t]
	return len(typ.Params), len(typ.Results)
}

func (s *scan) table(r *reader) uint32 {
	at := r.p
	t := r.u32("table")
	if int64(t) >= int64(len(s.src.tables)) {
		r.fail(at, Malformed, "use unknown table %d", t)
	}
	return t
}

func (s *scan) memArg(r *reader, at int) {
	align := r.u32("alignment")
	if align > 4 {
		if align&0x40 != 0 {
			r.fail(at, Unsupported, "use multi-memory (several memories)")
		}
		r.fail(at, Malformed, "read instruction: the alignment 2^%d is more than natural", align)
	}
	r.u32("offset")
	if s.src.memory == nil {
		r.fail(at, Malformed, "use a memory that is not there")
	}
}

// memory reads the number of the memory, which has to be 0 in one byte.
func (s *scan) memory(r *reader, at int) {
	if r.u8("memory index") != 0 {
		r.fail(at, Unsupported, "use multi-memory (several memories)")
	}
	if s.src.memory == nil {
		r.fail(at, Malformed, "use a memory that is not there")
	}
}

// reference records that code refers to function f.
func (s *scan) reference(r *reader, at int, f uint32) {
	if _, ok := s.refAt[f]; ok {
		return
	}
	if len(s.refs) >= s.src.lim.RefFuncs {
		r.fail(at, TooLarge, "refer to more than %d functions", s.src.lim.RefFuncs)
		return
	}
	if s.refAt == nil {
		s.refAt = make(map[uint32]int)
	}
	s.refAt[f] = len(s.refs)
	s.refs = append(s.refs, f)
}

// misc reads the rest of an instruction that begins with opMisc and returns its cost.
func (s *scan) misc(r *reader, at int) int {
	op := r.u32("instruction")
	if r.err != nil {
		return 0
	}
	change := func(kind uint8, arg uint32) {
		s.edits = append(s.edits, edit{kind: kind, start: int32(at), end: int32(r.p), arg: arg})
	}
	switch {
	case op <= 7:
		return 3
	case op == miscMemoryInit || op == miscDataDrop:
		seg := r.u32("data segment")
		if s.src.dataCount < 0 {
			r.fail(at, Malformed, "use a data segment without a data count section")
		} else if int64(seg) >= int64(s.src.dataCount) {
			r.fail(at, Malformed, "use unknown data segment %d", seg)
		}
		if op == miscDataDrop {
			change(editDrop, seg)
			return 2
		}
		s.memory(r, at)
		change(editInit, seg)
	case op == miscMemoryCopy:
		s.memory(r, at)
		s.memory(r, at)
		change(editCopy, 0)
	case op == miscMemoryFill:
		s.memory(r, at)
		change(editFill, 0)
	case op == miscTableInit || op == miscElemDrop:
		seg := r.u32("element segment")
		if int64(seg) >= int64(len(s.src.elements)) {
			r.fail(at, Malformed, "use unknown element segment %d", seg)
		}
		if op == miscElemDrop {
			change(editDirty, 0)
			return 2
		}
		s.table(r)
		change(editTable, 0)
	case op == miscTableCopy:
		s.table(r)
		s.table(r)
		change(editTable, 0)
	case op == miscTableGrow || op == miscTableFill:
		s.grows = s.grows || op == miscTableGrow
		s.table(r)
		change(editTable, 0)
	case op == miscTableSize:
		s.table(r)
		return 1
	default:
		r.fail(at, Unsupported, "use unknown instruction 0xfc %d", op)
	}
	return 6
}

// atomic reads the rest of an instruction of threads. A guest has one thread, for which they are what they are for any:
// the memory that it may call shared is its own, where waiting is a trap and waking wakes nobody.
func (s *scan) atomic(r *reader, at int) {
	switch op := r.u32("instruction"); {
	case r.err != nil:
	case op == atomicFence:
		if r.u8("fence") != 0 {
			r.fail(at, Malformed, "read fence: unknown order")
		}
	case op >= atomicNotify && op <= atomicWait64, op >= atomicFirst && op <= atomicLast:
		s.memArg(r, at)
	default:
		r.fail(at, Unsupported, "use unknown instruction 0xfe %d", op)
	}
}

// vector reads the rest of a vector instruction. Engines disagree on numbers that are not as short as they can be, so
// those are refused.
func (s *scan) vector(r *reader, at int) {
	start := r.p
	op := r.u32("instruction")
	if r.err != nil {
		return
	}
	if op >= 0x100 && op <= 0x113 {
		r.fail(at, Unsupported, "use relaxed SIMD (instruction 0xfd %d)", op)
		return
	}
	if op > 0xff || vectors[op] == vecUnknown {
		r.fail(at, Unsupported, "use unknown instruction 0xfd %d", op)
		return
	}
	if short := 1 + int(op>>7); r.p-start != short {
		r.fail(at, Malformed, "read instruction: the number of a vector instruction is longer than it must be")
		return
	}
	switch vectors[op] {
	case vecMemArg:
		s.memArg(r, at)
	case vecMemArgLane:
		s.memArg(r, at)
		r.u8("lane")
	case vecLane:
		r.u8("lane")
	case vec16:
		r.skip(16, "constant")
	}
}
