package wasm

// Code of the added functions. Each is written for its added type; parameters are its first locals.

// piece is the number of bytes of memory filled or copied between two checks.
const piece = 256 << 10

// pay appends code that takes the i64 left on the stack by amount from the fuel.
func (w *writer) pay(b []byte, amount ...byte) []byte {
	b = appendU32(append(b, opGlobalGet), w.fuel)
	b = append(b, amount...)
	return w.take(b)
}

// payCode is (n i32) -> (n i32): it takes cost(min(n, most)) and a little more.
func (w *writer) payCode(most uint32, cost func([]byte) []byte) []byte {
	limit := appendSigned([]byte{opI64Const}, int64(most))
	n := []byte{opLocalGet, 0, 0xad} // i64.extend_i32_u
	amount := append([]byte{}, n...)
	amount = append(amount, limit...)
	amount = append(amount, n...)
	amount = append(amount, limit...)
	amount = append(amount, 0x54, 0x1b) // i64.lt_u, select
	amount = cost(amount)
	amount = append(amount, opI64Const, 4, 0x7c) // i64.add
	return append(w.pay(nil, amount...), opLocalGet, 0)
}

// growCode is memory.grow, paid per page, that stops at the rewritten module's own limit.
func (w *writer) growCode() []byte {
	var b []byte
	if !w.src.memoryImported {
		// if pages > max - size: return -1
		b = append(b, opLocalGet, 0, opI32Const)
		b = appendSigned(b, int64(w.maxPages))
		b = append(b, opMemorySize, 0, 0x6b, 0x4b) // i32.sub, i32.gt_u
		b = append(b, opIf, 0x40, opI32Const, 0x7f, opReturn, opEnd)
	}
	// Growing is a system call, and possibly a copy, in the engine; pages cost again when touched.
	amount := []byte{opLocalGet, 0, 0xad, opI64Const}
	amount = appendSigned(amount, 64)
	amount = append(amount, 0x7e, opI64Const)
	amount = appendSigned(amount, 1000)
	amount = append(amount, 0x7c)
	b = w.pay(b, amount...)
	return append(b, opLocalGet, 0, opMemoryGrow, 0)
}

// piecewise is memory.fill, memory.copy or memory.init as a function of its three operands. A long operation is done
// in pieces, each paid in advance, and only after the bounds of all of it were checked: an instruction that traps must
// have written nothing.
func (w *writer) piecewise(op byte, segment uint32) []byte {
	do := func(b []byte) []byte {
		b = append(b, opMisc, op)
		switch op {
		case miscMemoryInit:
			return append(appendU32(b, segment), 0)
		case miscMemoryCopy:
			return append(b, 0, 0)
		default:
			return append(b, 0)
		}
	}
	const (
		dst, src, n = 0, 1, 2
	)
	get := func(b []byte, l byte) []byte { return append(b, opLocalGet, l) }
	size := appendSigned([]byte{opI32Const}, piece)
	half := func(b []byte, l ...byte) []byte { // pay for bytes
		amount := append([]byte{}, l...)
		amount = append(amount, 0xad, opI64Const, 1, 0x88, opI64Const, 4, 0x7c) // extend, shr_u, add
		return w.pay(b, amount...)
	}
	all := func(b []byte) []byte { return get(get(get(b, dst), src), n) }
	// outside appends a comparison that tells whether the end of the range at l is beyond the memory's end.
	outside := func(b []byte, l byte) []byte {
		b = append(get(b, l), 0xad)
		b = append(get(b, n), 0xad, 0x7c)
		return append(b, opMemorySize, 0, 0xad, opI64Const, 16, 0x86, 0x56) // i64.shl, i64.gt_u
	}

	var b []byte
	// Short operations are done at once.
	b = append(get(b, n), size...)
	b = append(b, 0x4d, opIf, 0x40) // i32.le_u
	b = half(b, opLocalGet, n)
	b = do(all(b))
	b = append(b, opReturn, opEnd)

	// Out-of-bounds operations trap at once.
	b = outside(b, dst)
	b = append(b, opIf, 0x40)
	b = do(all(b))
	b = append(b, opEnd)
	switch op {
	case miscMemoryCopy:
		b = outside(b, src)
		b = append(b, opIf, 0x40)
		b = do(all(b))
		b = append(b, opEnd)
	case miscMemoryInit:
		// Only the instruction knows the segment's length, which is zero once it was dropped. An end that does not fit
		// in 32 bits is out of bounds for certain; any other is tested by copying nothing.
		b = append(get(b, src), 0xad)
		b = append(get(b, n), 0xad, 0x7c, opI64Const)
		b = appendSigned(b, 1<<32-1)
		b = append(b, 0x56, opIf, 0x40)
		b = do(all(b))
		b = append(b, opEnd)
		b = append(b, opI32Const, 0)
		b = append(get(get(b, src), n), 0x6a, opI32Const, 0)
		b = do(b)
	}

	// forward: handle a piece at the front while more than that is left
	forward := func(b []byte) []byte {
		b = append(b, opLoop, 0x40)
		b = half(b, size...)
		b = append(get(get(b, dst), src), size...)
		b = do(b)
		b = append(get(b, dst), size...)
		b = append(b, 0x6a, 0x21, dst) // i32.add, local.set
		if op != miscMemoryFill {
			b = append(get(b, src), size...)
			b = append(b, 0x6a, 0x21, src)
		}
		b = append(get(b, n), size...)
		b = append(b, 0x6b, 0x22, n) // i32.sub, local.tee
		b = append(b, size...)
		b = append(b, 0x4b, opBrIf, 0) // i32.gt_u
		b = append(b, opEnd)
		b = half(b, opLocalGet, n)
		return do(all(b))
	}
	if op != miscMemoryCopy {
		return forward(b)
	}
	// A copy to higher addresses starts from the back, since the ranges may overlap.
	b = append(get(get(b, dst), src), 0x4d, opIf, 0x40) // i32.le_u
	b = forward(b)
	b = append(b, opReturn, opEnd)
	b = append(b, opLoop, 0x40)
	b = half(b, size...)
	b = append(get(b, n), size...)
	b = append(b, 0x6b, 0x21, n)
	b = append(get(get(b, dst), n), 0x6a)
	b = append(get(get(b, src), n), 0x6a)
	b = append(b, size...)
	b = do(b)
	b = append(get(b, n), size...)
	b = append(b, 0x4b, opBrIf, 0, opEnd)
	b = half(b, opLocalGet, n)
	return do(all(b))
}

// copyGlobals is () -> (): it sets the kept globals from their shadows, or the reverse.
func (w *writer) copyGlobals(restore bool) []byte {
	var b []byte
	for i, g := range w.kept {
		from, to := g, w.shadows+uint32(i)
		if restore {
			from, to = to, from
		}
		b = appendU32(append(b, opGlobalGet), from)
		b = appendU32(append(b, opGlobalSet), to)
	}
	return b
}

// choose appends code that executes leaf(i) for the number i in local 0, for all i in [from, to), and falls through
// for any other number.
func choose(b []byte, from, to int, leaf func([]byte, int) []byte) []byte {
	switch to - from {
	case 0:
		return b
	case 1:
		b = append(b, opLocalGet, 0, opI32Const)
		b = appendSigned(b, int64(from))
		b = append(b, 0x46, opIf, 0x40) // i32.eq
		b = leaf(b, from)
		return append(b, opReturn, opEnd)
	}
	mid := (from + to) / 2
	b = append(b, opLocalGet, 0, opI32Const)
	b = appendSigned(b, int64(mid))
	b = append(b, 0x49, opIf, 0x40) // i32.lt_u
	b = choose(b, from, mid, leaf)
	b = append(b, opElse)
	b = choose(b, mid, to, leaf)
	return append(b, opEnd)
}

func (w *writer) globalGet() []byte {
	b := choose(nil, 0, len(w.kept), func(b []byte, i int) []byte {
		g := w.kept[i]
		get := appendU32([]byte{opGlobalGet}, g)
		b = append(b, get...)
		switch w.src.globals[g].typ {
		case I32:
			b = append(b, 0xad)
		case F32:
			b = append(b, 0xbc, 0xad) // i32.reinterpret_f32
		case F64:
			b = append(b, 0xbd) // i64.reinterpret_f64
		case V128:
			b = append(b, opVector, 0x1d, 0) // i64x2.extract_lane
			b = append(b, get...)
			return append(b, opVector, 0x1d, 1)
		}
		return append(b, opI64Const, 0)
	})
	return append(b, opUnreachable)
}

func (w *writer) globalSet() []byte {
	const low, high = 1, 2
	b := choose(nil, 0, len(w.kept), func(b []byte, i int) []byte {
		g := w.kept[i]
		b = append(b, opLocalGet, low)
		switch w.src.globals[g].typ {
		case I32:
			b = append(b, 0xa7) // i32.wrap_i64
		case F32:
			b = append(b, 0xa7, 0xbe) // f32.reinterpret_i32
		case F64:
			b = append(b, 0xbf) // f64.reinterpret_i64
		case V128:
			b = append(b, opVector, 0x12, opLocalGet, high, opVector, 0x1e, 1) // i64x2.splat, replace_lane
		}
		return appendU32(append(b, opGlobalSet), g)
	})
	return append(b, opUnreachable)
}
