package wasm

// Typed function references are rewritten as references to functions of any type, with a type check at the call.
// wazero 1.12 runs them unchanged, but accepts a reference to a function of one type for any other type
// (isRefSubtypeOf in its internal/wasm/module.go): a guest could pass a number as an address and escape its memory.
//
// So (ref null $t) and (ref $t) become funcref, (ref extern) becomes externref, and call_ref becomes a call through a
// one-entry table that the guest cannot reach: wazero compares types there, as rewritten. Two function types that
// differ only in the types of such references are therefore the same to call_indirect. A module that is invalid only
// for the type or nullness of a reference becomes valid; where it matters, it traps.
//
// ref.as_non_null, br_on_null and br_on_non_null need no types and are unchanged.

// callRef appends a call of the reference on top of the stack.
func (w *writer) callRef(b []byte, op byte, typ uint32) []byte {
	b = w.call(b, w.helpHold())
	b = appendU32(append(b, opI32Const, 0, op), typ)
	return appendU32(b, uint32(len(w.src.tables)))
}

// helpHold is (funcref) -> (): it stores the next callee in the table after the guest's.
func (w *writer) helpHold() uint32 {
	return w.once(&w.hold, typeHold, func() []byte {
		b := []byte{opI32Const, 0, opLocalGet, 0, opRefAsNonNull, opTableSet}
		return appendU32(b, uint32(len(w.src.tables)))
	})
}
