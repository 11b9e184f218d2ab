package wasm

// Typed function references are written as references to functions of any type, whose type is looked at when they are
// called. wazero 1.12 runs them as they are, but takes a reference to a function of one type for one of any other
// (isRefSubtypeOf in its internal/wasm/module.go): a guest could hand a number over as an address, and be out of its
// memory.
//
// So (ref null $t) and (ref $t) become funcref, (ref extern) externref, and call_ref a call through a table of one entry
// that is out of the guest's reach: wazero compares types there, and its comparison is of what was written here. Two
// function types that differ in nothing but the types of such references are therefore one to call_indirect. A module
// that is invalid for the type or nullness of a reference alone becomes valid; where it matters, it traps.
//
// ref.as_non_null, br_on_null and br_on_non_null need no types and stay.

// callRef appends a call of the reference on top of the stack.
func (w *writer) callRef(b []byte, op byte, typ uint32) []byte {
	b = w.call(b, w.helpHold())
	b = appendU32(append(b, opI32Const, 0, op), typ)
	return appendU32(b, uint32(len(w.src.tables)))
}

// helpHold is (funcref) -> (): it puts what is called next into the table after the guest's.
func (w *writer) helpHold() uint32 {
	return w.once(&w.hold, typeHold, func() []byte {
		b := []byte{opI32Const, 0, opLocalGet, 0, opRefAsNonNull, opTableSet}
		return appendU32(b, uint32(len(w.src.tables)))
	})
}
