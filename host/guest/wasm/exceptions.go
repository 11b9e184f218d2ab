package wasm

import "slices"

// Exceptions are rewritten to code that every engine runs well: a global for the pending exception, globals for its
// values, and a check after each call that may throw. A try_table becomes a block; a throw becomes a branch to its
// handler or a return. Engines with native exceptions copy the stack at each try_table and keep exceptions where their
// garbage collector does not look, which an untrusted module must not be able to trigger.
//
// An exnref is a number assigned by the host (see ImportCaught); its type becomes externref.

// Imports from ImportModule of a module with tags, in addition to ImportRefill.
const (
	// ImportCaught is (tag i32) -> (externref): it makes an exnref from the tag and the values passed to ImportValue
	// since the last call, low half first, and clears these values. The number of values depends only on the tag.
	ImportCaught = "caught"
	// ImportValue is (i64) -> ().
	ImportValue = "value"
	// ImportTag is (externref) -> (i32): the tag that was passed to ImportCaught. It must end the call if the
	// reference is null, as throw_ref does.
	ImportTag = "tag"
	// ImportValueOf is (externref, position i32) -> (i64): a value stored by ImportCaught.
	ImportValueOf = "value_of"
	// ImportUncaught is () -> (): it must end the call. An exception left an exported function.
	ImportUncaught = "uncaught"
)

// Their positions after ImportRefill.
const (
	addRefill = iota
	addCaught
	addValue
	addTag
	addValueOf
	addUncaught
	addedWithTags // number of added imports of a module with tags
)

// exnRef is the binary encoding of exnref. Once read it is ExternRef.
const exnRef = 0x69

// clause is a catch clause of a try_table.
type clause struct {
	tag   int32 // anyTag for all
	ref   bool  // the exception itself is passed too
	frame int32 // target block, by height
}

const anyTag = -1

// landing is a clause as seen from an instruction.
type landing struct {
	tag   int32
	ref   bool
	label uint32
}

// thrower lists the sources of exceptions in a function: itself, functions that it calls, and tables.
type thrower struct {
	throws, indirect bool
	calls            []uint32
}

// findThrowers reads all code to find the functions that an exception may leave. It stores them in src.mayThrow, with
// an additional last entry for functions that code has references to.
func (s *scan) findThrowers() *Error {
	src := s.src
	if len(src.tags) == 0 {
		return nil
	}
	callers := make([][]uint32, len(src.funcs)+1)
	indirect := uint32(len(src.funcs)) // stands for all functions behind references
	src.mayThrow = make([]bool, len(src.funcs)+1)
	var queue []uint32
	reach := func(f uint32) {
		if !src.mayThrow[f] {
			src.mayThrow[f] = true
			queue = append(queue, f)
		}
	}
	s.thrower = &thrower{}
	for n := range src.code {
		*s.thrower = thrower{calls: s.thrower.calls[:0]}
		if err := s.read(n); err != nil {
			return err
		}
		f := uint32(src.importedFuncs + n)
		for _, c := range s.thrower.calls {
			callers[c] = append(callers[c], f)
		}
		if s.thrower.indirect {
			callers[indirect] = append(callers[indirect], f)
		}
		if src.declared != nil && src.declared[f] {
			callers[f] = append(callers[f], indirect)
		}
		if s.thrower.throws {
			reach(f)
		}
	}
	for len(queue) > 0 {
		f := queue[0]
		queue = queue[1:]
		for _, c := range callers[f] {
			reach(c)
		}
	}
	s.thrower = nil
	s.total = 0
	return nil
}

// throwsFrom reports whether a call of f may end with an exception.
func (s *source) throwsFrom(f uint32) bool { return s.mayThrow != nil && s.mayThrow[f] }

// tablesThrow reports whether a call through a reference may end with an exception.
func (s *source) tablesThrow() bool { return s.throwsFrom(uint32(len(s.funcs))) }

// tag reads the index of a tag.
func (s *scan) tag(r *reader) uint32 {
	at := r.p
	t := r.u32("tag")
	if r.err == nil && int64(t) >= int64(len(s.src.tags)) {
		r.fail(at, Malformed, "use unknown tag %d", t)
		return 0
	}
	return t
}

// readTry reads a try_table, whose clauses refer to the blocks around it.
func (s *scan) readTry(r *reader, at int) {
	_, results := s.blockType(r)
	typ := r.p - at - 1
	first, landings := len(s.clauses), len(s.landings)
	for range r.count(len(s.src.in), "catch clauses") {
		at := r.p
		kind := r.u8("catch clause")
		if kind > 3 {
			r.fail(at, Malformed, "read try_table: unknown kind of clause 0x%02x", kind)
		}
		c, values := clause{tag: anyTag, ref: kind&1 != 0}, int(kind&1)
		if kind < 2 {
			if c.tag = int32(s.tag(r)); r.err == nil {
				values += len(s.src.types[s.src.tags[c.tag]].Params)
			}
		}
		l := r.u32("label")
		if r.err != nil {
			break
		}
		if int64(l) >= int64(len(s.frames)) {
			r.fail(at, Malformed, "branch to unknown label %d", l)
			break
		}
		c.frame = int32(len(s.frames) - 1 - int(l))
		// A branch may leave values behind, but a clause has none to leave.
		if n := s.frames[c.frame].arity; n != values {
			r.fail(at, Malformed, "catch %d values where %d are expected", values, n)
			break
		}
		s.clauses = append(s.clauses, c)
		s.landings = append(s.landings, landing{c.tag, c.ref, l})
		if len(s.src.tags) > 0 {
			s.land(int(c.frame))
		}
	}
	s.edits = append(s.edits, edit{
		kind: editTry, start: int32(at), end: int32(r.p), arg: uint32(typ), landings: span{landings, len(s.landings)},
	})
	s.block(r, event{kind: evBlock, pos: int32(at), end: int32(r.p)},
		frame{kind: evBlock, arity: results, start: len(s.events), clauses: span{first, len(s.clauses)}})
}

// block opens a block.
func (s *scan) block(r *reader, e event, f frame) {
	s.events = append(s.events, e)
	if len(s.frames) > s.src.lim.Nesting {
		r.fail(int(e.pos), TooLarge, "nest more than %d blocks", s.src.lim.Nesting)
	}
	s.frames = append(s.frames, f)
}

// land records that exceptions lead to a block. It is not known who paid for the code there, so that code has to be
// paid for there. Exceptions that leave the function lead to no block of it.
func (s *scan) land(height int) {
	switch f := &s.frames[height]; {
	case height == 0:
	case f.kind == evLoop:
		s.events[f.start].lands = true
	default:
		f.lands = true
	}
}

// landingsOf returns the clauses that may catch an exception of a tag, or of any tag, here: each tag once, and none
// after a clause for all.
func (s *scan) landingsOf(tag int32) span {
	first := len(s.landings)
	for h := len(s.frames) - 1; h > 0; h-- {
		f := &s.frames[h]
		for _, c := range s.clauses[f.clauses.start:f.clauses.end] {
			if tag != anyTag && c.tag != anyTag && c.tag != tag ||
				slices.ContainsFunc(s.landings[first:], func(l landing) bool { return l.tag == c.tag }) {
				continue
			}
			s.landings = append(s.landings, landing{c.tag, c.ref, uint32(len(s.frames) - 1 - int(c.frame))})
			if c.tag == anyTag || c.tag == tag {
				return span{first, len(s.landings)}
			}
		}
	}
	return span{first, len(s.landings)}
}

// throwing records an instruction after which an exception may be pending.
func (s *scan) throwing(kind uint8, at, end int, arg uint32) {
	tag := int32(anyTag)
	if kind == editThrow {
		tag = int32(arg)
	}
	if s.thrower == nil { // handlers do not matter then
		s.edits = append(s.edits, edit{kind: kind, start: int32(at), end: int32(end), arg: arg, landings: s.landingsOf(tag)})
	}
}

// readThrow reads throw and throw_ref.
func (s *scan) readThrow(r *reader, op byte, at int) (cost int) {
	if t := s.thrower; t != nil {
		t.throws = true
	}
	if op == opThrowRef {
		s.throwing(editThrowRef, at, r.p, 0)
		return hostCost
	}
	t := s.tag(r)
	if r.err != nil {
		return 0
	}
	s.throwing(editThrow, at, r.p, t)
	return 4 + carry(len(s.src.types[s.src.tags[t]].Params))
}

// hostCost is the cost of a short host call.
const hostCost = 20

// tagSection reads the tags.
func (s *source) tagSection(r *reader) {
	n := r.count(s.lim.Tags, "tags")
	for range n {
		at := r.p
		if r.u8("attribute of tag") != 0 {
			r.fail(at, Malformed, "read tag: unknown attribute")
		}
		t := s.typeIndex(r)
		if r.err != nil {
			return
		}
		switch typ := s.types[t]; {
		case len(typ.Results) > 0:
			r.fail(at, Malformed, "have a tag with results")
		case len(typ.Params) > s.lim.TagParams:
			r.fail(at, TooLarge, "have an exception of %d values, over the limit of %d,", len(typ.Params), s.lim.TagParams)
		}
		s.tags = append(s.tags, t)
	}
}

// planExceptions allocates the globals: the pending exception, as its tag plus one, and the values of each tag.
func (w *writer) planExceptions(next uint32) uint32 {
	if len(w.src.tags) == 0 {
		return next
	}
	w.exception = next
	next++
	for _, t := range w.src.tags {
		w.values = append(w.values, next)
		next += uint32(len(w.src.types[t].Params))
	}
	return next
}

func (w *writer) exceptionGlobals() {
	if len(w.src.tags) == 0 {
		return
	}
	w.u8(byte(I32), 1)
	w.u8(zero(I32)...)
	for _, t := range w.src.tags {
		for _, p := range w.src.types[t].Params {
			w.u8(byte(p), 1)
			w.u8(zero(p)...)
		}
	}
}

func (w *writer) get(b []byte, global uint32) []byte {
	return appendU32(append(b, opGlobalGet), global)
}
func (w *writer) set(b []byte, global uint32) []byte {
	return appendU32(append(b, opGlobalSet), global)
}
func (w *writer) call(b []byte, f uint32) []byte { return appendU32(append(b, opCall), f) }

// is appends a test whether the pending exception has a tag.
func (w *writer) is(b []byte, tag int32) []byte {
	b = append(w.get(b, w.exception), opI32Const)
	b = appendSigned(b, int64(tag)+1)
	return append(b, 0x46) // i32.eq
}

// arrive appends the branch to a handler from inside that many additional blocks.
func (w *writer) arrive(b []byte, l landing, inside uint32) []byte {
	if l.tag != anyTag {
		for i := range w.src.types[w.src.tags[l.tag]].Params {
			b = w.get(b, w.values[l.tag]+uint32(i))
		}
	}
	if l.ref {
		b = w.call(b, w.helpCapture())
	} else {
		b = w.set(append(b, opI32Const, 0), w.exception)
	}
	return appendU32(append(b, opBr), l.label+inside)
}

// dispatch appends code that passes the pending exception to the first matching landing, or out of the function. Code
// after it is unreachable.
func (w *writer) dispatch(b []byte, landings []landing, inside uint32) []byte {
	for _, l := range landings {
		if l.tag == anyTag {
			return w.arrive(b, l, inside)
		}
		b = append(w.is(b, l.tag), opIf, 0x40)
		b = w.arrive(b, l, inside+1)
		b = append(b, opEnd)
	}
	return w.leave(b)
}

// leave appends a return with arbitrary results.
func (w *writer) leave(b []byte) []byte {
	for _, t := range w.scan.results {
		z := zero(t)
		b = append(b, z[:len(z)-1]...)
	}
	return append(b, opReturn)
}

// pending appends a check for an exception after a call.
func (w *writer) pending(b []byte, landings []landing) []byte {
	b = append(w.get(b, w.exception), opIf, 0x40)
	b = w.dispatch(b, landings, 1)
	return append(b, opEnd)
}

// try appends the block that a try_table becomes. Each clause's branch comes first, in unreachable code: an engine
// checks its types there, whether or not anything in the block throws.
func (w *writer) try(b []byte, typ []byte, landings []landing) []byte {
	for _, l := range landings {
		b = append(b, opI32Const, 0, opIf, 0x40)
		if len(w.src.tags) > 0 {
			b = w.arrive(b, l, 1)
		} else {
			if l.ref {
				b = append(b, opRefNull, byte(ExternRef))
			}
			b = appendU32(append(b, opBr), l.label+1)
		}
		b = append(b, opEnd)
	}
	b = append(b, opBlock)
	if t := ValueType(typ[0]); t == exnRef || t == refNullable || t == refNonNull {
		return append(b, byte(w.src.valueType(&reader{b: typ, end: len(typ)})))
	}
	return append(b, typ...)
}

// throw appends code that throws an exception of a tag, whose values are on the stack.
func (w *writer) throw(b []byte, tag uint32, landings []landing) []byte {
	for i := len(w.src.types[w.src.tags[tag]].Params) - 1; i >= 0; i-- {
		b = w.set(b, w.values[tag]+uint32(i))
	}
	b = appendSigned(append(b, opI32Const), int64(tag)+1)
	b = w.set(b, w.exception)
	if len(landings) > 0 {
		return w.arrive(b, landings[0], 0)
	}
	return w.leave(b)
}

// throwRef appends code that throws an exnref.
func (w *writer) throwRef(b []byte, landings []landing) []byte {
	if len(w.src.tags) == 0 { // it can only be null
		b = append(b, 0xd1, opIf, 0x40, opUnreachable, opEnd) // ref.is_null
		return append(b, opUnreachable)
	}
	return w.dispatch(w.call(b, w.helpThrow()), landings, 0)
}

// eachTag appends code for each possible tag of the pending exception, and falls through if there is none.
func (w *writer) eachTag(b []byte, code func(b []byte, tag int32, params []ValueType) []byte) []byte {
	for n, t := range w.src.tags {
		params := w.src.types[t].Params
		b = append(w.is(b, int32(n)), opIf, 0x40)
		b = append(code(b, int32(n), params), opReturn, opEnd)
	}
	return append(b, opUnreachable)
}

// helpCapture is () -> (externref): it makes an exnref of the pending exception, which is then no longer pending.
func (w *writer) helpCapture() uint32 {
	return w.once(&w.capture, typeCapture, func() []byte {
		return w.eachTag(nil, func(b []byte, tag int32, params []ValueType) []byte {
			for i, p := range params {
				get := w.get(nil, w.values[tag]+uint32(i))
				b = w.call(append(append(b, get...), low(p)...), w.refill+addValue)
				if p == V128 {
					b = w.call(append(append(b, get...), opVector, 0x1d, 1), w.refill+addValue)
				}
			}
			b = w.set(append(b, opI32Const, 0), w.exception)
			b = appendSigned(append(b, opI32Const), int64(tag))
			return w.call(b, w.refill+addCaught)
		})
	})
}

// helpThrow is (externref) -> (): it makes an exnref the pending exception.
func (w *writer) helpThrow() uint32 {
	return w.once(&w.rethrow, typeThrow, func() []byte {
		b := w.call([]byte{opLocalGet, 0}, w.refill+addTag)
		b = w.set(append(b, opI32Const, 1, 0x6a), w.exception) // i32.add
		return w.eachTag(b, func(b []byte, tag int32, params []ValueType) []byte {
			n := int64(0)
			half := func(b []byte) []byte {
				b = appendSigned(append(b, opLocalGet, 0, opI32Const), n)
				n++
				return w.call(b, w.refill+addValueOf)
			}
			for i, p := range params {
				b = append(half(b), fromLow(p)...)
				if p == V128 {
					b = append(half(b), opVector, 0x1e, 1) // i64x2.replace_lane
				}
				b = w.set(b, w.values[tag]+uint32(i))
			}
			return b
		})
	})
}

// keepsReferences reports whether an exnref would have to hold references, which the host cannot: it keeps numbers.
func (w *writer) keepsReferences() bool {
	return (w.capture != 0 || w.rethrow != 0) && slices.ContainsFunc(w.src.tags, func(t uint32) bool {
		return slices.ContainsFunc(w.src.types[t].Params, ValueType.isRef)
	})
}

// low returns code that converts the low half of a number to an i64.
func low(t ValueType) []byte {
	switch t {
	case I32:
		return []byte{0xad} // i64.extend_i32_u
	case F32:
		return []byte{0xbc, 0xad} // i32.reinterpret_f32
	case F64:
		return []byte{0xbd} // i64.reinterpret_f64
	case V128:
		return []byte{opVector, 0x1d, 0} // i64x2.extract_lane
	}
	return nil
}

// fromLow returns code that reverses low.
func fromLow(t ValueType) []byte {
	switch t {
	case I32:
		return []byte{0xa7} // i32.wrap_i64
	case F32:
		return []byte{0xa7, 0xbe} // f32.reinterpret_i32
	case F64:
		return []byte{0xbf} // f64.reinterpret_i64
	case V128:
		return []byte{opVector, 0x12} // i64x2.splat
	}
	return nil
}

// outermost returns the wrapper of an exported function for calls by the host: an uncaught exception ends the call.
func (w *writer) outermost(f uint32) uint32 {
	if !w.src.throwsFrom(f) {
		return w.moved(f)
	}
	if h, ok := w.outer[f]; ok {
		return h
	}
	var b []byte
	for i := range w.src.typeOf(f).Params {
		b = appendU32(append(b, opLocalGet), uint32(i))
	}
	b = w.call(b, w.moved(f))
	b = append(w.get(b, w.exception), opIf, 0x40)
	b = append(w.call(b, w.refill+addUncaught), opEnd)
	h := w.helpOf(w.src.funcs[f], "", nil, b)
	if w.outer == nil {
		w.outer = map[uint32]uint32{}
	}
	w.outer[f] = h
	return h
}
