package wasm

import (
	"fmt"
	"unicode/utf8"
)

// reader reads a part of a module. The first error is kept: it ends the input, so that loops over the input end too,
// and all further reads return zero. Callers check err where the values must be valid, and at the end.
type reader struct {
	b   []byte // the whole module, so that p is the offset for errors
	p   int
	end int
	err *Error
}

func (r *reader) fail(at int, kind Kind, format string, args ...any) {
	if r.err == nil {
		r.err = &Error{Offset: at, Kind: kind, Reason: fmt.Sprintf(format, args...)}
	}
	r.p = r.end
}

func (r *reader) more() bool { return r.p < r.end }

func (r *reader) u8(what string) byte {
	if r.p >= r.end {
		r.fail(r.p, Malformed, "read %s: it is cut off", what)
		return 0
	}
	c := r.b[r.p]
	r.p++
	return c
}

// u32 reads an unsigned LEB128 number of at most 32 bits in at most 5 bytes.
func (r *reader) u32(what string) uint32 {
	if r.p < r.end && r.b[r.p] < 0x80 {
		r.p++
		return uint32(r.b[r.p-1])
	}
	start := r.p
	var v uint32
	for shift := 0; shift < 35; shift += 7 {
		if r.p >= r.end {
			r.fail(r.p, Malformed, "read %s: it is cut off", what)
			return 0
		}
		c := r.b[r.p]
		r.p++
		v |= uint32(c&0x7f) << shift
		if c < 0x80 {
			if shift == 28 && c > 0x0f {
				break
			}
			return v
		}
	}
	r.fail(start, Malformed, "read %s: the number has more than 32 bits", what)
	return 0
}

// signed reads a signed LEB128 number of at most the given bits (32, 33 or 64).
func (r *reader) signed(bits int, what string) int64 {
	start := r.p
	var v int64
	for shift := 0; shift < bits; shift += 7 {
		if r.p >= r.end {
			r.fail(r.p, Malformed, "read %s: it is cut off", what)
			return 0
		}
		c := r.b[r.p]
		r.p++
		v |= int64(c&0x7f) << shift
		if c >= 0x80 {
			continue
		}
		if left := bits - shift; left < 7 {
			// The last byte: the bits above the sign bit must repeat it.
			if top := int8(c<<1) >> left; top != 0 && top != -1 {
				break
			}
		}
		if shift+7 < 64 && c&0x40 != 0 {
			v |= -1 << (shift + 7)
		}
		return v
	}
	r.fail(start, Malformed, "read %s: the number has more than %d bits", what, bits)
	return 0
}

// count reads the length of a vector whose entries take at least one byte each.
func (r *reader) count(limit int, what string) int {
	start := r.p
	n := r.u32("number of " + what)
	if int64(n) > int64(r.end-r.p) {
		r.fail(start, Malformed, "read %s: %d are announced in %d bytes", what, n, r.end-r.p)
		return 0
	}
	if int64(n) > int64(limit) {
		r.fail(start, TooLarge, "have %d %s, over the limit of %d,", n, what, limit)
		return 0
	}
	return int(n)
}

func (r *reader) skip(n int, what string) {
	if n > r.end-r.p {
		r.fail(r.p, Malformed, "read %s: it is cut off", what)
		return
	}
	r.p += n
}

// name reads a name in UTF-8.
func (r *reader) name(what string) []byte {
	start := r.p
	n := r.u32("length of " + what)
	if int64(n) > int64(r.end-r.p) {
		r.fail(start, Malformed, "read %s: it is cut off", what)
		return nil
	}
	s := r.b[r.p : r.p+int(n)]
	if !utf8.Valid(s) {
		r.fail(r.p, Malformed, "read %s: it is not UTF-8", what)
		return nil
	}
	r.p += int(n)
	return s
}

// part returns a reader for the next n bytes, which must exist, and skips them.
func (r *reader) part(n int) reader {
	sub := reader{b: r.b, p: r.p, end: r.p + n, err: r.err}
	r.p += n
	return sub
}

// appendU32 appends v in unsigned LEB128.
func appendU32(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

// appendSigned appends v in signed LEB128.
func appendSigned(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func appendName[S string | []byte](b []byte, s S) []byte {
	b = appendU32(b, uint32(len(s)))
	return append(b, s...)
}
