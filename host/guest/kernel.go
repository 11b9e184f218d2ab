package guest

import (
	"encoding/binary"
	"sort"
)

// Layout of the Extism kernel's memory, which guests can observe through the offsets
// that alloc returns: an unused zero byte, a root of 64 bytes, then blocks, each after
// a 12-byte header.
const (
	kernelFirst  = 65         // offset of the first block's header
	kernelHeader = 12         // bytes before a block's data
	kernelStart  = 65472      // initial result of memory_bytes
	kernelPage   = 65536      // unit of growth
	kernelSplit  = 128        // a free block is split if at least this much would be left
	kernelPages  = 16         // initial pages
	kernelLeast  = 512        // initial backing
	kernelKeep   = 256 << 10  // backing kept between calls
	kernelMax    = 1<<32 - 64 // offsets are 32 bits wide
)

// kernel is the memory that the Extism functions work on: one call's input, output,
// error and blocks. It is Go memory, so that a load or a store is a slice access and
// not a call into a second module. It returns the same results as Extism's own kernel.
// Nothing in it outlives a call.
//
// Guest writes cannot corrupt it: the positions of blocks are kept outside of the
// memory.
type kernel struct {
	name string  // of the module, for messages
	held holding // for mem and blocks

	mem    []byte // backing of [0, len); the rest, up to size, is zero
	size   uint64 // bytes that loads and stores may access
	length uint64 // result of memory_bytes
	limit  uint64 // maximum of size
	next   uint64 // offset of the next block's header

	blocks []block // ascending by offset
	free   int     // number of free blocks

	inOff, inLen   uint64
	outOff, outLen uint64
	errOff         uint64
}

type block struct {
	off        uint64 // of the data
	size, used uint64
	active     bool
}

// reset discards everything and stores input for the guest. It reports false if there
// is no memory for it.
func (k *kernel) reset(input []byte, limit uint64) bool {
	if cap(k.mem) > kernelKeep {
		k.mem = discard(&k.held, k.mem)
	}
	clear(k.mem)
	k.mem = k.mem[:0]
	if cap(k.blocks) > 1024 {
		k.blocks = discard(&k.held, k.blocks)
	}
	k.blocks = k.blocks[:0]
	k.free = 0
	k.size, k.length = kernelPages*kernelPage, kernelStart
	k.limit = min(max(limit, k.size), kernelMax)
	k.next = kernelFirst
	k.inOff, k.inLen, k.outOff, k.outLen, k.errOff = 0, 0, 0, 0, 0
	if len(input) > 0 {
		// The input is the host's: it counts toward the limit, but is never refused
		// here.
		k.limit = max(k.limit, uint64(len(input))+k.size)
		var ok bool
		if k.mem, ok = enlarge(&k.held, k.mem, kernelFirst+kernelHeader+len(input), kernelLeast); !ok {
			return false
		}
		k.inOff = k.write(input)
		k.inLen = uint64(len(input))
	}
	return true
}

// drop releases everything.
func (k *kernel) drop() {
	k.mem = discard(&k.held, k.mem)
	k.blocks = discard(&k.held, k.blocks)
}

// clear is the reset that a guest can call: it discards everything, including the
// input.
func (k *kernel) clear() {
	n := min(k.next, uint64(len(k.mem)))
	clear(k.mem[:n])
	k.blocks = k.blocks[:0]
	k.free = 0
	k.next = kernelFirst
	k.inOff, k.inLen, k.outOff, k.outLen, k.errOff = 0, 0, 0, 0, 0
}

// back makes mem at least n bytes long. It panics with OVERLOADED if there is no
// memory.
func (k *kernel) back(n uint64) {
	if have := uint64(len(k.mem)); n > have {
		var ok bool
		if k.mem, ok = enlarge(&k.held, k.mem, int(n-have), kernelLeast); !ok {
			panic(k.held.m.overloaded())
		}
		k.mem = k.mem[:n] // cleared by reset, or by clear
	}
}

// add makes room for one more block, with the same panic as back.
func (k *kernel) add(b block) {
	var ok bool
	if k.blocks, ok = enlarge(&k.held, k.blocks, 1, 8); !ok {
		panic(k.held.m.overloaded())
	}
	k.blocks = append(k.blocks, b)
}

// alloc returns the offset of a block of n bytes, or 0 if n is 0. It panics with
// LIMIT_EXCEEDED if the limit is reached.
func (k *kernel) alloc(n uint64) uint64 {
	if n == 0 {
		return 0
	}
	if n > k.limit {
		panic(k.full())
	}
	need, left := n+kernelHeader, k.length-(k.next-kernelFirst)-64
	if need >= left {
		// Freed blocks are reused only when the memory would otherwise have to grow.
		if off := k.reuse(n, need); off != 0 {
			return off
		}
		grow := (need - left + kernelPage - 1) / kernelPage * kernelPage
		// The table of blocks counts as memory too.
		if k.size+grow+uint64(len(k.blocks))*32 > k.limit {
			panic(k.full())
		}
		k.size += grow
		k.length += grow
	}
	off := k.next + kernelHeader
	k.next = off + n
	k.back(k.next)
	k.add(block{off: off, size: n, used: n, active: true})
	return off
}

// reuse returns the offset of a freed block, or of a part of one, or 0.
func (k *kernel) reuse(n, need uint64) uint64 {
	if k.free == 0 || need > k.next-kernelFirst {
		return 0
	}
	for i := range k.blocks {
		b := &k.blocks[i]
		if b.active || b.size < n {
			continue
		}
		rest := b.size - n
		if rest < kernelSplit {
			b.active, b.used = true, n
			k.free--
			return b.off
		}
		nb := block{off: b.off + rest, size: n, used: n, active: true}
		b.used, b.size = 0, rest-kernelHeader
		k.add(block{})
		copy(k.blocks[i+2:], k.blocks[i+1:])
		k.blocks[i+1] = nb
		return nb.off
	}
	return 0
}

func (k *kernel) full() error {
	return errorf(BlocksUsed, k.name, "", "it exchanges more than %d bytes with the host", k.limit)
}

// find returns the block whose data begins at off, or nil.
func (k *kernel) find(off uint64) *block {
	n := len(k.blocks)
	if n > 0 && k.blocks[n-1].off == off { // the usual case
		return &k.blocks[n-1]
	}
	i := sort.Search(n, func(i int) bool { return k.blocks[i].off >= off })
	if i < n && k.blocks[i].off == off {
		return &k.blocks[i]
	}
	return nil
}

// blockLen returns the length of the active block at off, or 0.
func (k *kernel) blockLen(off uint64) uint64 {
	if b := k.find(off); b != nil && b.active {
		return b.used
	}
	return 0
}

func (k *kernel) release(off uint64) {
	if b := k.find(off); b != nil && b.active {
		b.active = false
		k.free++
		if off == k.inOff {
			k.inLen = 0
		}
	}
}

// bytes returns the content of the block at off, or nil if off is 0 or not a block. The
// result aliases the memory.
func (k *kernel) bytes(off uint64) []byte {
	n := k.blockLen(off)
	if n == 0 {
		return nil
	}
	return k.mem[off : off+n : off+n]
}

// write copies p into a new block and returns its offset, 0 for an empty p.
func (k *kernel) write(p []byte) uint64 {
	off := k.alloc(uint64(len(p)))
	if off != 0 {
		copy(k.mem[off:], p)
	}
	return off
}

func (k *kernel) load8(off uint64) byte {
	if off < 64 || off >= uint64(len(k.mem)) {
		return 0
	}
	return k.mem[off]
}

func (k *kernel) load64(off uint64) uint64 {
	if off < 64 || off > k.size-8 {
		return 0
	}
	if off+8 <= uint64(len(k.mem)) {
		return binary.LittleEndian.Uint64(k.mem[off:])
	}
	var b [8]byte
	if off < uint64(len(k.mem)) {
		copy(b[:], k.mem[off:])
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (k *kernel) store8(off uint64, v byte) {
	if off < 64 || off >= k.size {
		return
	}
	if off >= uint64(len(k.mem)) {
		k.back(off + 1)
	}
	k.mem[off] = v
}

func (k *kernel) store64(off, v uint64) {
	if off < 64 || off > k.size-8 {
		return
	}
	if off+8 > uint64(len(k.mem)) {
		k.back(off + 8)
	}
	binary.LittleEndian.PutUint64(k.mem[off:], v)
}

func (k *kernel) inputLoad8(off uint64) byte {
	if off >= k.inLen {
		return 0
	}
	return k.load8(k.inOff + off)
}

func (k *kernel) inputLoad64(off uint64) uint64 {
	if k.inLen < 8 || off > k.inLen-8 {
		return 0
	}
	return k.load64(k.inOff + off)
}

// spans reports whether [off, off+n) is allocated or could be without growing; the
// kernel ignores requests for anything else.
func (k *kernel) spans(off, n uint64) bool {
	end := k.length + kernelFirst
	if off < kernelFirst || off >= end {
		return false
	}
	last := off + n - 1
	return last >= kernelFirst && last < end
}

func (k *kernel) setInput(off, n uint64) {
	if k.spans(off, n) {
		k.inOff, k.inLen = off, n
	}
}

func (k *kernel) setOutput(off, n uint64) {
	if k.spans(off, n) {
		k.outOff, k.outLen = off, n
	}
}

func (k *kernel) setError(off uint64) {
	if off == 0 || off > 64 && off < k.length+kernelFirst {
		k.errOff = off
	}
}

// output returns a copy of what output_set designated, at most limit bytes. It reports
// false if there is more.
func (k *kernel) output(limit uint64) ([]byte, bool) {
	if k.outLen > limit {
		return nil, false
	}
	if k.outLen == 0 {
		return nil, true
	}
	out := make([]byte, k.outLen)
	if k.outOff < uint64(len(k.mem)) {
		copy(out, k.mem[k.outOff:])
	}
	return out, true
}

// errorText returns what error_set designated, or "".
func (k *kernel) errorText() string { return string(k.bytes(k.errOff)) }
