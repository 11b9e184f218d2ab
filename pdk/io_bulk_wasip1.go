//go:build toold_bulk

package pdk

import "unsafe"

// tool_read copies the input's bytes from off on into the guest's memory and
// answers how many it copied; tool_write appends to the output.

//go:wasmimport extism:host/user tool_read
func userToolRead(dst unsafe.Pointer, off uint64, n uint32) uint32

//go:wasmimport extism:host/user tool_write
func userToolWrite(src unsafe.Pointer, n uint32)

func readInput() []byte {
	b := make([]byte, inputLength())
	if len(b) == 0 {
		return b
	}
	n := userToolRead(unsafe.Pointer(&b[0]), 0, uint32(len(b)))
	return b[:n]
}

func writeOutput(b []byte) {
	if len(b) > 0 {
		userToolWrite(unsafe.Pointer(&b[0]), uint32(len(b)))
	}
}
