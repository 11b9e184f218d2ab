package component

import (
	"fmt"
	"unicode/utf8"
)

// reader reads a part of a component. The first error is kept: it ends the input, so
// that loops over the input end too, and all further reads return zero.
type reader struct {
	b    []byte // the whole file, so that p is the offset for errors
	p    int
	end  int
	err  *Error
	work *budget
}

// budget limits the work that one component can cause, whatever its lengths claim. A
// definition that is evaluated twice counts twice.
type budget struct {
	left int
	// modules caches the modules by start offset: a component that is instantiated
	// twice reads its modules once.
	modules map[int]*coreModule
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = &Error{Offset: r.p, Reason: fmt.Sprintf(format, args...)}
	}
	r.p = r.end
}

// refuse is fail for input that is well-formed but not supported by this host.
func (r *reader) refuse(format string, args ...any) {
	if r.err == nil {
		r.err = &Error{Offset: r.p, Reason: fmt.Sprintf(format, args...), Unsupported: true}
	}
	r.p = r.end
}

func (r *reader) more() bool { return r.p < r.end }

// spend takes one unit of the budget.
func (r *reader) spend() {
	if r.work.left--; r.work.left < 0 {
		r.refuse("has more than %d definitions", mostDefinitions)
	}
}

func (r *reader) u8(what string) byte {
	if r.p >= r.end {
		r.fail("read %s: it is cut off", what)
		return 0
	}
	r.p++
	return r.b[r.p-1]
}

func (r *reader) u32(what string) uint32 {
	var v uint32
	for shift := 0; shift < 35; shift += 7 {
		c := r.u8(what)
		if r.err != nil {
			return 0
		}
		if shift == 28 && c > 0x0f {
			break
		}
		v |= uint32(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
	r.fail("read %s: the number has more than 32 bits", what)
	return 0
}

// s33 reads a signed 33-bit number.
func (r *reader) s33(what string) int64 {
	var v int64
	for shift := 0; shift < 35; shift += 7 {
		c := r.u8(what)
		if r.err != nil {
			return 0
		}
		v |= int64(c&0x7f) << shift
		if c < 0x80 {
			if shift == 28 {
				if top := c & 0x70; top != 0 && top != 0x70 {
					break
				}
			}
			if c&0x40 != 0 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
	r.fail("read %s: the number has more than 33 bits", what)
	return 0
}

// count reads the number of items that follow; each takes at least one byte.
func (r *reader) count(what string) int {
	n := r.u32(what)
	if int64(n) > int64(r.end-r.p) {
		r.fail("read %s: %d of them do not fit in what follows", what, n)
		return 0
	}
	return int(n)
}

func (r *reader) name(what string) string {
	n := r.count(what)
	if n > mostName {
		r.fail("read %s: it has %d bytes, more than %d", what, n, mostName)
		return ""
	}
	s := string(r.b[r.p : r.p+n])
	r.p += n
	if !utf8.ValidString(s) {
		r.fail("read %s: it is not UTF-8", what)
		return ""
	}
	return s
}

// section returns a reader for the next n bytes.
func (r *reader) section(n int) *reader {
	s := &reader{b: r.b, p: r.p, end: r.p + n, work: r.work, err: r.err}
	r.p += n
	return s
}

// done takes over the error of a part's reader and requires that the part was read
// completely.
func (r *reader) done(part *reader, what string) {
	if part.err == nil && part.p != part.end {
		part.fail("%s has %d bytes more than it needs", what, part.end-part.p)
	}
	if r.err == nil && part.err != nil {
		r.err = part.err
		r.p = r.end
	}
}

// at returns item i of an index space.
func at[T any](r *reader, space []T, i uint32, what string) (v T) {
	if r.err != nil {
		return v
	}
	if uint64(i) >= uint64(len(space)) {
		r.fail("names %s %d of %d", what, i, len(space))
		return v
	}
	return space[i]
}
