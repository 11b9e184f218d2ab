// Package canon moves values between a host and the memory of a guest according to the
// canonical ABI of the component model: lifting reads a guest's value, lowering writes
// one.
//
// Data from a guest is never trusted: pointers, lengths, cases and characters are
// checked where they are read, and the guest's allocator may return any pointer.
// Invalid ones are a component.Trap. Host memory for lifting is reserved through
// Guest.Hold first. Handles to resources of the host are passed through as numbers;
// whoever created them must check them. Handles to the guest's own resources are
// created by Guest.Give and removed by Guest.Take.
//
// The engine uses it for calls of exports and of imports.
package canon

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/toold/toold/host/guest/component"
)

// Guest is the guest's side of one function call.
type Guest struct {
	// Memory returns the guest's current memory: it may have grown.
	Memory func() []byte
	// Realloc allocates guest memory. It is not called if the guest has no allocator.
	Realloc func(old, oldSize, align, size uint32) (uint32, error)
	// Charge charges for moving n bytes. It may panic to end the call.
	Charge   func(n uint64)
	Encoding component.Encoding
	// Hold reserves n bytes of host memory for lifted values. It may panic to end the
	// call.
	Hold func(n uint64)
	// Give creates a handle in the guest to one of its own resources that the host
	// held. Take removes one of the guest's handles and returns its representation.
	// Either may panic to end the call.
	Give func(r *component.Resource, rep uint32) uint32
	Take func(r *component.Resource, handle uint32) uint32
}

// failure carries an error up to the exported method.
type failure struct{ err error }

func trap(format string, args ...any) {
	panic(failure{&component.Trap{Reason: fmt.Sprintf(format, args...)}})
}

func catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.err
	default:
		panic(r)
	}
}

// LowerParams lowers args, which must match the export's parameter types, to core
// parameters.
func (g *Guest) LowerParams(ft *component.FuncType, args []any) (flat []uint64, err error) {
	defer catch(&err)
	if _, byMemory := ft.FlatParams(); !byMemory {
		for i, p := range ft.Params {
			flat = g.lower(flat, p.Type, args[i])
		}
		return flat, nil
	}
	t := tuple(ft.Params)
	ptr := g.room(t.Align, t.Size)
	g.storeFields(t, args, ptr)
	return []uint64{uint64(ptr)}, nil
}

// LiftResult lifts the result of an export.
func (g *Guest) LiftResult(ft *component.FuncType, flat []uint64) (v any, err error) {
	defer catch(&err)
	if ft.Result == nil {
		return nil, nil
	}
	if _, byMemory := ft.FlatResults(); !byMemory {
		v, _ = g.lift(ft.Result, flat)
		return v, nil
	}
	return g.load(ft.Result, g.pointer(uint32(flat[0]), ft.Result)), nil
}

// LiftParams lifts the arguments that a guest passes to an import.
func (g *Guest) LiftParams(ft *component.FuncType, flat []uint64) (args []any, err error) {
	defer catch(&err)
	args = make([]any, len(ft.Params))
	if _, byMemory := ft.FlatParams(); byMemory {
		t := tuple(ft.Params)
		return g.loadFields(t, g.pointer(uint32(flat[0]), t)), nil
	}
	for i, p := range ft.Params {
		args[i], flat = g.lift(p.Type, flat)
	}
	return args, nil
}

// LowerResult lowers the result of an import. flat holds the core values of the call:
// the first is replaced by the result, or the last is the pointer to where the result
// goes.
func (g *Guest) LowerResult(ft *component.FuncType, v any, flat []uint64) (err error) {
	defer catch(&err)
	if ft.Result == nil {
		return nil
	}
	if _, byMemory := ft.FlatResults(); !byMemory {
		copy(flat, g.lower(nil, ft.Result, v))
		return nil
	}
	params, _ := ft.FlatParams()
	ptr := g.pointer(uint32(flat[len(params)]), ft.Result)
	g.store(ft.Result, v, ptr)
	return nil
}

// tuple returns the memory layout of parameters that are too many to be passed flat.
func tuple(fs []component.Field) *component.Type {
	t := &component.Type{Kind: component.Tuple, Fields: fs}
	t.Layout()
	return t
}

// pointer checks the address of a value of type t.
func (g *Guest) pointer(ptr uint32, t *component.Type) uint32 {
	if ptr%t.Align != 0 {
		trap("a pointer, %d, is not aligned to %d", ptr, t.Align)
	}
	g.bytes(ptr, uint64(t.Size))
	return ptr
}

// bytes returns a range of the memory.
func (g *Guest) bytes(ptr uint32, n uint64) []byte {
	mem := g.Memory()
	if uint64(ptr)+n > uint64(len(mem)) {
		trap("%d bytes at %d are outside of its memory of %d", n, ptr, len(mem))
	}
	return mem[ptr : uint64(ptr)+n]
}

// room allocates size bytes in the guest.
func (g *Guest) room(align, size uint32) uint32 {
	g.Charge(uint64(size))
	ptr, err := g.Realloc(0, 0, align, size)
	if err != nil {
		panic(failure{err})
	}
	if ptr%align != 0 {
		trap("its realloc answered the pointer %d, which is not aligned to %d", ptr, align)
	}
	if mem := g.Memory(); uint64(ptr)+uint64(size) > uint64(len(mem)) {
		trap("its realloc answered %d bytes at %d, outside of its memory of %d", size, ptr, len(mem))
	}
	return ptr
}

// hold reserves n bytes of host memory for lifted values.
func (g *Guest) hold(n uint64) {
	g.Charge(n)
	g.Hold(n)
}

// valueBytes is the minimum size of a value as an element of a Go slice.
const valueBytes = 16

func (g *Guest) uint(ptr, size uint32) uint64 {
	p := g.bytes(ptr, uint64(size))
	switch size {
	case 1:
		return uint64(p[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(p))
	case 4:
		return uint64(binary.LittleEndian.Uint32(p))
	}
	return binary.LittleEndian.Uint64(p)
}

func (g *Guest) putUint(ptr, size uint32, v uint64) {
	p := g.bytes(ptr, uint64(size))
	switch size {
	case 1:
		p[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(p, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(p, uint32(v))
	default:
		binary.LittleEndian.PutUint64(p, v)
	}
}

// scalar converts a core value to a value of type t.
func (g *Guest) scalar(t *component.Type, v uint64) any {
	switch t.Kind {
	case component.Bool:
		return uint32(v) != 0
	case component.S8:
		return int64(int8(v))
	case component.S16:
		return int64(int16(v))
	case component.S32:
		return int64(int32(v))
	case component.S64:
		return int64(v)
	case component.U8:
		return uint64(uint8(v))
	case component.U16:
		return uint64(uint16(v))
	case component.U32:
		return uint64(uint32(v))
	case component.U64:
		return v
	case component.F32:
		if f := math.Float32frombits(uint32(v)); f == f {
			return f
		}
		return math.Float32frombits(0x7fc00000)
	case component.F64:
		if f := math.Float64frombits(v); f == f {
			return f
		}
		return math.Float64frombits(0x7ff8000000000000)
	case component.Char:
		if c := uint32(v); c > utf8.MaxRune || c >= 0xd800 && c < 0xe000 {
			trap("%#x is not a character", c)
		}
		return rune(v)
	case component.Flags:
		return uint32(v) & uint32(1<<len(t.Fields)-1)
	}
	if t.Kind == component.Own && t.Resource.Local {
		return g.Take(t.Resource, uint32(v))
	}
	return uint32(v) // handles
}

// handle gives the guest one of its own resources. A borrow by the component that
// implements the resource is passed as the representation, without a handle.
func (g *Guest) handle(t *component.Type, m *Made) uint64 {
	if t.Kind == component.Borrow {
		return uint64(m.Rep)
	}
	return uint64(g.Give(t.Resource, m.Rep))
}

// bits converts a value to a core value.
func (g *Guest) bits(t *component.Type, v any) uint64 {
	switch v := v.(type) {
	case *Made:
		return g.handle(t, v)
	case bool:
		if v {
			return 1
		}
		return 0
	case int64:
		if t.Kind == component.S64 {
			return uint64(v)
		}
		return uint64(uint32(int32(v)))
	case uint64:
		return v
	case float32:
		if v != v {
			return 0x7fc00000
		}
		return uint64(math.Float32bits(v))
	case float64:
		if v != v {
			return 0x7ff8000000000000
		}
		return math.Float64bits(v)
	case rune:
		return uint64(uint32(v))
	}
	return uint64(v.(uint32))
}

func (g *Guest) lift(t *component.Type, flat []uint64) (any, []uint64) {
	switch t.Kind {
	case component.String:
		return g.text(uint32(flat[0]), uint32(flat[1])), flat[2:]
	case component.List:
		return g.list(t, uint32(flat[0]), uint32(flat[1])), flat[2:]
	case component.Record, component.Tuple:
		g.hold(valueBytes * uint64(len(t.Fields)))
		vs := make([]any, len(t.Fields))
		for i, f := range t.Fields {
			vs[i], flat = g.lift(f.Type, flat)
		}
		return vs, flat
	case component.Variant, component.Enum, component.Option, component.Result:
		g.hold(valueBytes)
		i := uint32(flat[0])
		of := g.caseType(t, i)
		c := component.Case{Index: int(i)}
		if of != nil {
			c.Value, _ = g.lift(of, flat[1:])
		}
		return c, flat[len(t.Flat):]
	}
	return g.scalar(t, flat[0]), flat[1:]
}

func (g *Guest) caseType(t *component.Type, i uint32) *component.Type {
	if uint64(i) >= uint64(len(t.Fields)) {
		trap("case %d of %d does not exist", i, len(t.Fields))
	}
	return t.Fields[i].Type
}

func (g *Guest) lower(flat []uint64, t *component.Type, v any) []uint64 {
	switch t.Kind {
	case component.String:
		ptr, n := g.storeText(v.(string))
		return append(flat, uint64(ptr), uint64(n))
	case component.List:
		ptr, n := g.storeList(t, v)
		return append(flat, uint64(ptr), uint64(n))
	case component.Record, component.Tuple:
		for i, f := range t.Fields {
			flat = g.lower(flat, f.Type, v.([]any)[i])
		}
		return flat
	case component.Variant, component.Enum, component.Option, component.Result:
		c := v.(component.Case)
		end := len(flat) + len(t.Flat)
		flat = append(flat, uint64(c.Index))
		if of := t.Fields[c.Index].Type; of != nil {
			flat = g.lower(flat, of, c.Value)
		}
		for len(flat) < end {
			flat = append(flat, 0)
		}
		return flat
	}
	return append(flat, g.bits(t, v))
}

func (g *Guest) load(t *component.Type, ptr uint32) any {
	switch t.Kind {
	case component.String:
		return g.text(uint32(g.uint(ptr, 4)), uint32(g.uint(ptr+4, 4)))
	case component.List:
		return g.list(t, uint32(g.uint(ptr, 4)), uint32(g.uint(ptr+4, 4)))
	case component.Record, component.Tuple:
		return g.loadFields(t, ptr)
	case component.Variant, component.Enum, component.Option, component.Result:
		g.hold(valueBytes)
		i := uint32(g.uint(ptr, t.Discriminant()))
		of := g.caseType(t, i)
		c := component.Case{Index: int(i)}
		if of != nil {
			c.Value = g.load(of, ptr+t.Payload())
		}
		return c
	}
	return g.scalar(t, g.uint(ptr, t.Size))
}

func align(n, to uint32) uint32 { return (n + to - 1) &^ (to - 1) }

func (g *Guest) loadFields(t *component.Type, ptr uint32) []any {
	g.hold(valueBytes * uint64(len(t.Fields)))
	vs := make([]any, len(t.Fields))
	for i, f := range t.Fields {
		ptr = align(ptr, f.Type.Align)
		vs[i] = g.load(f.Type, ptr)
		ptr += f.Type.Size
	}
	return vs
}

func (g *Guest) storeFields(t *component.Type, vs []any, ptr uint32) {
	for i, f := range t.Fields {
		ptr = align(ptr, f.Type.Align)
		g.store(f.Type, vs[i], ptr)
		ptr += f.Type.Size
	}
}

func (g *Guest) store(t *component.Type, v any, ptr uint32) {
	switch t.Kind {
	case component.String:
		p, n := g.storeText(v.(string))
		g.putUint(ptr, 4, uint64(p))
		g.putUint(ptr+4, 4, uint64(n))
	case component.List:
		p, n := g.storeList(t, v)
		g.putUint(ptr, 4, uint64(p))
		g.putUint(ptr+4, 4, uint64(n))
	case component.Record, component.Tuple:
		g.storeFields(t, v.([]any), ptr)
	case component.Variant, component.Enum, component.Option, component.Result:
		c := v.(component.Case)
		g.putUint(ptr, t.Discriminant(), uint64(c.Index))
		if of := t.Fields[c.Index].Type; of != nil {
			g.store(of, c.Value, ptr+t.Payload())
		}
	default:
		g.putUint(ptr, t.Size, g.bits(t, v))
	}
}

func (g *Guest) list(t *component.Type, ptr, n uint32) any {
	e := t.Elem
	if ptr%e.Align != 0 {
		trap("a list at %d is not aligned to %d", ptr, e.Align)
	}
	p := g.bytes(ptr, uint64(n)*uint64(e.Size))
	if e.Kind == component.U8 {
		g.hold(uint64(n))
		return append([]byte{}, p...)
	}
	g.hold(valueBytes * uint64(n))
	vs := make([]any, n)
	for i := range vs {
		vs[i] = g.load(e, ptr)
		ptr += e.Size
	}
	return vs
}

// mostBytes is the maximum size of a string or list in a guest's memory.
const mostBytes = 1<<31 - 1

func (g *Guest) storeList(t *component.Type, v any) (ptr, n uint32) {
	if p, ok := v.([]byte); ok {
		if len(p) > mostBytes {
			trap("a list of %d bytes is longer than any can be", len(p))
		}
		ptr = g.room(1, uint32(len(p)))
		copy(g.bytes(ptr, uint64(len(p))), p)
		return ptr, uint32(len(p))
	}
	vs, e := v.([]any), t.Elem
	size := uint64(len(vs)) * uint64(e.Size)
	if size > mostBytes {
		trap("a list of %d bytes is longer than any can be", size)
	}
	ptr = g.room(e.Align, uint32(size))
	for i, v := range vs {
		g.store(e, v, ptr+uint32(i)*e.Size)
	}
	return ptr, uint32(len(vs))
}

const utf16Tag = 1 << 31

func (g *Guest) text(ptr, n uint32) string {
	wide := g.Encoding == component.UTF16
	if g.Encoding == component.Latin1OrUTF16 {
		wide, n = n&utf16Tag != 0, n&^utf16Tag
	}
	if g.Encoding != component.UTF8 && ptr%2 != 0 {
		trap("a string at %d is not aligned to 2", ptr)
	}
	switch {
	case wide:
		p := g.bytes(ptr, 2*uint64(n))
		g.hold(3 * uint64(n))
		units := make([]uint16, n)
		for i := range units {
			units[i] = binary.LittleEndian.Uint16(p[2*i:])
		}
		for i := 0; i < len(units); i++ {
			switch u := units[i]; {
			case u < 0xd800 || u >= 0xe000:
			case u < 0xdc00 && i+1 < len(units) && units[i+1] >= 0xdc00 && units[i+1] < 0xe000:
				i++
			default:
				trap("a string is not UTF-16")
			}
		}
		return string(utf16.Decode(units))
	case g.Encoding == component.Latin1OrUTF16:
		p := g.bytes(ptr, uint64(n))
		g.hold(2 * uint64(n))
		var b strings.Builder
		for _, c := range p {
			b.WriteRune(rune(c))
		}
		return b.String()
	}
	p := g.bytes(ptr, uint64(n))
	g.hold(uint64(n))
	if !utf8.Valid(p) {
		trap("a string is not UTF-8")
	}
	return string(p)
}

func (g *Guest) storeText(s string) (ptr, n uint32) {
	if len(s) > mostBytes/2 {
		trap("a string of %d bytes is longer than any can be", len(s))
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	if g.Encoding == component.UTF8 {
		ptr = g.room(1, uint32(len(s)))
		copy(g.bytes(ptr, uint64(len(s))), s)
		return ptr, uint32(len(s))
	}
	if g.Encoding == component.Latin1OrUTF16 && !strings.ContainsFunc(s, func(c rune) bool { return c > 0xff }) {
		n = uint32(utf8.RuneCountInString(s))
		ptr = g.room(2, n)
		p := g.bytes(ptr, uint64(n))
		i := 0
		for _, c := range s {
			p[i] = byte(c)
			i++
		}
		return ptr, n
	}
	units := utf16.Encode([]rune(s))
	n = uint32(len(units))
	ptr = g.room(2, 2*n)
	p := g.bytes(ptr, 2*uint64(n))
	for i, u := range units {
		binary.LittleEndian.PutUint16(p[2*i:], u)
	}
	if g.Encoding == component.Latin1OrUTF16 {
		n |= utf16Tag
	}
	return ptr, n
}
