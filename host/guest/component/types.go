package component

import "strings"

// Kind is the kind of a Type.
type Kind uint8

const (
	Bool Kind = iota
	S8
	U8
	S16
	U16
	S32
	U32
	S64
	U64
	F32
	F64
	Char
	String
	List
	Record
	Tuple
	Variant
	Enum
	Option
	Result
	Flags
	Own
	Borrow
)

var kindNames = [...]string{
	"bool", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f32", "f64", "char", "string",
	"list", "record", "tuple", "variant", "enum", "option", "result", "flags", "own", "borrow",
}

// Field is a field of a record, an item of a tuple (without a name), a case of
// a variant, an enum, an option or a result (whose Type may be nil), or a flag.
type Field struct {
	Name string
	Type *Type
}

// Type is a value type. A type only refers to earlier types: there are no cycles.
type Type struct {
	Kind Kind
	// Fields are the fields of a record or tuple, the cases of a variant, an enum, an
	// option ("none", "some") or a result ("ok", "error"), or flags.
	Fields   []Field
	Elem     *Type     // of a list
	Resource *Resource // of an own or a borrow

	Size  uint32 // bytes in memory
	Align uint32 // in bytes
	Flat  []Core // the core values that it flattens to, limited to mostFlat+1

	payload uint32 // offset of a variant's payload
	nodes   int    // types that make it up, each counted as often as it occurs
	local   int    // how many of them are handles to the component's own resources
	borrows bool   // one of them is a borrow
	depth   int
}

// Core is a core value type.
type Core byte

const (
	I32  Core = 0x7f
	I64  Core = 0x7e
	CF32 Core = 0x7d
	CF64 Core = 0x7c
)

// Resource is a resource type, opaque to all but its implementer.
type Resource struct {
	Interface string // "wasi:io/streams", without a version; empty when the component makes it
	Name      string

	// Local means that the component implements the resource: a handle to it stands for
	// a number chosen by the component, its representation.
	Local bool
	// Destructor is the export of the main module that is called with the
	// representation of a resource that ends, or empty.
	Destructor string
	// Constructor is the exported function that makes a resource from plain values, or
	// nil.
	Constructor *Export

	maker *scope    // nil once linked
	dtor  *coreItem // nil once linked
}

func (r *Resource) String() string {
	if r.Interface == "" {
		return r.Name
	}
	return r.Interface + "/" + r.Name
}

// FuncType is the type of a function.
type FuncType struct {
	Params []Field
	Result *Type // nil for none

	nodes int // types that make it up
	local int // handles to the component's own resources in its parameters
}

// TakesLocal reports whether the function takes resources of the component itself.
func (f *FuncType) TakesLocal() bool { return f.local > 0 }

var primitives = func() (ts [String + 1]*Type) {
	for k := range ts {
		t := &Type{Kind: Kind(k), nodes: 1, depth: 1}
		t.Layout()
		ts[k] = t
	}
	return ts
}()

// Primitive returns the type for a kind up to String.
func Primitive(k Kind) *Type { return primitives[k] }

func alignTo(n, align uint32) uint32 { return (n + align - 1) &^ (align - 1) }

// Discriminant returns the size of a variant's discriminant in bytes.
func (t *Type) Discriminant() uint32 {
	switch n := len(t.Fields); {
	case n <= 1<<8:
		return 1
	case n <= 1<<16:
		return 2
	}
	return 4
}

// Payload returns the offset of a variant's payload.
func (t *Type) Payload() uint32 { return t.payload }

// Layout computes size, alignment and the other derived fields. nodes limits the number
// of parts, so sizes stay far below 32 bits.
func (t *Type) Layout() {
	switch t.Kind {
	case Bool, S8, U8:
		t.Size, t.Flat = 1, []Core{I32}
	case S16, U16:
		t.Size, t.Flat = 2, []Core{I32}
	case S32, U32, Char, Own, Borrow:
		t.Size, t.Flat = 4, []Core{I32}
	case S64, U64:
		t.Size, t.Flat = 8, []Core{I64}
	case F32:
		t.Size, t.Flat = 4, []Core{CF32}
	case F64:
		t.Size, t.Flat = 8, []Core{CF64}
	case String, List:
		t.Size, t.Align, t.Flat = 8, 4, []Core{I32, I32}
	case Record, Tuple:
		t.Align = 1
		for _, f := range t.Fields {
			t.Size = alignTo(t.Size, f.Type.Align) + f.Type.Size
			t.Align = max(t.Align, f.Type.Align)
			if len(t.Flat) <= mostFlat {
				t.Flat = append(t.Flat, f.Type.Flat...)
			}
		}
		t.Size = alignTo(t.Size, t.Align)
	case Flags:
		switch n := len(t.Fields); {
		case n <= 8:
			t.Size = 1
		case n <= 16:
			t.Size = 2
		default:
			t.Size = 4
		}
		t.Flat = []Core{I32}
	default:
		t.Align = t.Discriminant()
		var size uint32
		flat := []Core{I32}
		for _, c := range t.Fields {
			if c.Type == nil {
				continue
			}
			size, t.Align = max(size, c.Type.Size), max(t.Align, c.Type.Align)
			for i, f := range c.Type.Flat {
				if i+1 < len(flat) {
					flat[i+1] = join(flat[i+1], f)
				} else {
					flat = append(flat, f)
				}
			}
		}
		t.payload = t.Discriminant()
		for _, c := range t.Fields {
			if c.Type != nil {
				t.payload = max(t.payload, alignTo(t.Discriminant(), c.Type.Align))
			}
		}
		t.Size, t.Flat = alignTo(t.payload+size, t.Align), flat
	}
	if t.Align == 0 {
		t.Align = t.Size
	}
}

func join(a, b Core) Core {
	switch {
	case a == b:
		return a
	case a == I32 && b == CF32 || a == CF32 && b == I32:
		return I32
	}
	return I64
}

// String formats the type as WIT, with all of its parts.
func (t *Type) String() string {
	var b strings.Builder
	t.write(&b)
	return b.String()
}

func (t *Type) write(b *strings.Builder) {
	b.WriteString(kindNames[t.Kind])
	switch t.Kind {
	case List:
		b.WriteByte('<')
		t.Elem.write(b)
		b.WriteByte('>')
	case Own, Borrow:
		b.WriteString("<" + t.Resource.String() + ">")
	case Option:
		b.WriteByte('<')
		t.Fields[1].Type.write(b)
		b.WriteByte('>')
	case Tuple:
		b.WriteByte('<')
		for i, f := range t.Fields {
			if i > 0 {
				b.WriteString(", ")
			}
			f.Type.write(b)
		}
		b.WriteByte('>')
	case Result:
		ok, bad := t.Fields[0].Type, t.Fields[1].Type
		if ok == nil && bad == nil {
			return
		}
		b.WriteByte('<')
		if ok == nil {
			b.WriteByte('_')
		} else {
			ok.write(b)
		}
		if bad != nil {
			b.WriteString(", ")
			bad.write(b)
		}
		b.WriteByte('>')
	case Record, Variant, Enum, Flags:
		b.WriteByte('{')
		for i, f := range t.Fields {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(f.Name)
			switch {
			case f.Type == nil:
			case t.Kind == Record:
				b.WriteString(": ")
				f.Type.write(b)
			default:
				b.WriteByte('(')
				f.Type.write(b)
				b.WriteByte(')')
			}
		}
		b.WriteByte('}')
	}
}

// String formats the type as WIT: "func(path: string) -> u32".
func (f *FuncType) String() string {
	var b strings.Builder
	b.WriteString("func(")
	for i, p := range f.Params {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.Name + ": ")
		p.Type.write(&b)
	}
	b.WriteByte(')')
	if f.Result != nil {
		b.WriteString(" -> ")
		f.Result.write(&b)
	}
	return b.String()
}

// The maximum number of core values that parameters and results are flattened to.
const (
	MostParams  = 16
	MostResults = 1
	mostFlat    = MostParams
)

// FlatParams returns the core parameters of the function; byMemory reports that there
// are too many and that they are passed by one pointer.
func (f *FuncType) FlatParams() (flat []Core, byMemory bool) {
	for _, p := range f.Params {
		if flat = append(flat, p.Type.Flat...); len(flat) > MostParams {
			return []Core{I32}, true
		}
	}
	return flat, false
}

// FlatResults returns the core results; byMemory reports that the result is in memory.
func (f *FuncType) FlatResults() (flat []Core, byMemory bool) {
	if f.Result == nil {
		return nil, false
	}
	if len(f.Result.Flat) > MostResults {
		return []Core{I32}, true
	}
	return f.Result.Flat, false
}

// Lowered returns the function's core type when a guest imports it: the guest passes a
// pointer for a result in memory.
func (f *FuncType) Lowered() (params, results []Core) {
	params, _ = f.FlatParams()
	results, byMemory := f.FlatResults()
	if byMemory {
		return append(params, I32), nil
	}
	return params, results
}

// Lifted returns the function's core type when a guest exports it.
func (f *FuncType) Lifted() (params, results []Core) {
	params, _ = f.FlatParams()
	results, _ = f.FlatResults()
	return params, results
}
