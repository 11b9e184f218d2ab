//go:build !toold_bulk

package pdk

import "encoding/binary"

// readInput reads the input eight bytes a call: a call out of the guest
// costs more than what it carries.
func readInput() []byte {
	n := inputLength()
	b := make([]byte, n)
	i := uint64(0)
	for ; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], inputLoadU64(i))
	}
	for ; i < n; i++ {
		b[i] = byte(inputLoadU8(i))
	}
	return b
}

func writeOutput(b []byte) {
	kernelOutputSet(put(b), uint64(len(b)))
}
