package wasm

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
)

// skeletonSection is the custom section with the digest of the module that a skeleton is of.
const skeletonSection = ImportModule + ":code"

// Skeleton returns module, a result of Rewrite, with code that only traps in place of that of its functions. All that
// an engine needs to link and instantiate it is the same. A custom section has sum, the SHA-256 of module, so that
// the skeletons of modules that differ only in code differ too.
func Skeleton(module []byte, sum [sha256.Size]byte) ([]byte, error) {
	const codeSection, customSection = 10, 0
	malformed := errors.New("read the sections of a module: it ends within one")
	if len(module) < 8 {
		return nil, malformed
	}
	out, rest := slices.Clone(module[:8]), module[8:]
	section := func(id byte, content []byte) {
		out = append(binary.AppendUvarint(append(out, id), uint64(len(content))), content...)
	}
	for len(rest) > 0 {
		id := rest[0]
		size, n := binary.Uvarint(rest[1:])
		if n <= 0 || size > uint64(len(rest)-1-n) {
			return nil, malformed
		}
		content := rest[1+n : 1+n+int(size)]
		rest = rest[1+n+int(size):]
		if id == codeSection {
			functions, n := binary.Uvarint(content)
			if n <= 0 || functions > size {
				return nil, malformed
			}
			// Three bytes: no locals, unreachable, end.
			content = append(slices.Clone(content[:n]), slices.Repeat([]byte{3, 0, 0x00, 0x0b}, int(functions))...)
		}
		section(id, content)
	}
	section(customSection, append(append([]byte{byte(len(skeletonSection))}, skeletonSection...), sum[:]...))
	return out, nil
}
