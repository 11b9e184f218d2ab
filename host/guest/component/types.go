package component

import "strings"

// Kind is what a Type is.
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

// Type is a type of values. A part of it is always older than itself: there
// are no cycles.
type Type struct {
	Kind Kind
	// Fields are those of a record or tuple, the cases of a variant, an enum, an
	// option ("none", "some") or a result ("ok", "error"), or flags.
	Fields   []Field
	Elem     *Type     // of a list
	Resource *Resource // of an own or a borrow

	Size  uint32 // bytes in memory
	Align uint32 // of them
	Flat  []Core // the core values that it is flattened to, as far as they matter: at most mostFlat+1

	payload uint32 // where a variant's payload begins
	nodes   int    // types of which it is made, each counted as often as it occurs
	local   int    // of them, handles to what the component makes
	borrows bool   // one of them is a borrow
	depth   int
}

// Core is a type of core values.
type Core byte

const (
	I32  Core = 0x7f
	I64  Core = 0x7e
	CF32 Core = 0x7d
	CF64 Core = 0x7c
)

// Resource is a type of things that only their maker knows.
type Resource struct {
	Interface string // "wasi:io/streams", without a version; empty when the component makes it
	Name      string

	// Local: the component itself makes it, and a handle to it stands for a number
	// of the component's, its representation.
	Local bool
	// Destructor is the export of the main module that is given the
	// representation of a resource that ends; it may be empty.
	Destructor string
	// Constructor is the exported function that makes one of plain values, or nil.
	Constructor *Export

	maker *scope    // until it is linked
	dtor  *coreItem // likewise
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
	Result *Type // nil where there is none

	nodes int // types of which it is made
	local int // of its parameters', handles to what the component makes
}

// TakesLocal reports whether the function is given resources of the component.
func (f *FuncType) TakesLocal() bool { return f.local > 0 }

var primitives = func() (ts [String + 1]*Type) {
	for k := range ts {
		t := &Type{Kind: Kind(k), nodes: 1, depth: 1}
		t.Layout()
		ts[k] = t
	}
	return ts
}()

// Primitive returns the type of a kind up to String.
func Primitive(k Kind) *Type { return primitives[k] }

func alignTo(n, align uint32) uint32 { return (n + align - 1) &^ (align - 1) }

// Discriminant is how many bytes say which case a variant has.
func (t *Type) Discriminant() uint32 {
	switch n := len(t.Fields); {
	case n <= 1<<8:
		return 1
	case n <= 1<<16:
		return 2
	}
	return 4
}

// Payload is where the payload of a variant begins.
func (t *Type) Payload() uint32 { return t.payload }

// Layout fills in what follows from the parts. Their number is bounded by
// nodes, so sizes stay far below 32 bits.
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

// String writes the type as WIT would, with all of its parts.
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

// String writes the type as WIT would: "func(path: string) -> u32".
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

// The most core values that parameters and results are flattened to.
const (
	MostParams  = 16
	MostResults = 1
	mostFlat    = MostParams
)

// FlatParams are the core parameters of the function; byMemory reports that they
// are one pointer, since there are too many.
func (f *FuncType) FlatParams() (flat []Core, byMemory bool) {
	for _, p := range f.Params {
		if flat = append(flat, p.Type.Flat...); len(flat) > MostParams {
			return []Core{I32}, true
		}
	}
	return flat, false
}

// FlatResults are its core results; byMemory reports that the result is in
// memory.
func (f *FuncType) FlatResults() (flat []Core, byMemory bool) {
	if f.Result == nil {
		return nil, false
	}
	if len(f.Result.Flat) > MostResults {
		return []Core{I32}, true
	}
	return f.Result.Flat, false
}

// Lowered is the core type that the function has when a guest imports it: a
// result that is in memory is where the guest says.
func (f *FuncType) Lowered() (params, results []Core) {
	params, _ = f.FlatParams()
	results, byMemory := f.FlatResults()
	if byMemory {
		return append(params, I32), nil
	}
	return params, results
}

// Lifted is the core type that the function has when a guest exports it.
func (f *FuncType) Lifted() (params, results []Core) {
	params, _ = f.FlatParams()
	results, _ = f.FlatResults()
	return params, results
}
