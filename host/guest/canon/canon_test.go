package canon

import (
	"errors"
	"math"
	"reflect"
	"strconv"
	"testing"
	"unicode/utf8"

	"github.com/toold/toold/host/guest/component"
)

// memory is a guest of nothing but bytes, whose realloc never frees.
type memory struct {
	b    []byte
	next uint32
	held uint64
}

const memorySize = 1 << 16

func (m *memory) guest(encoding component.Encoding) *Guest {
	return &Guest{
		Memory: func() []byte { return m.b },
		Realloc: func(_, _, align, size uint32) (uint32, error) {
			m.next = (m.next + align - 1) &^ (align - 1)
			ptr := m.next
			if uint64(ptr)+uint64(size) > memorySize {
				return 0, errors.New("full")
			}
			m.next += size
			return ptr, nil
		},
		Charge: func(uint64) {},
		Hold: func(n uint64) {
			if m.held += n; m.held > 1<<20 {
				panic(failure{&component.Trap{Reason: "held"}})
			}
		},
		Encoding: encoding,
	}
}

// dice are the bytes that a fuzzer throws.
type dice struct{ b []byte }

func (d *dice) n(sides int) int {
	if len(d.b) == 0 {
		return 0
	}
	v := int(d.b[0])
	d.b = d.b[1:]
	return v % sides
}

func (d *dice) u64() (v uint64) {
	for range 8 {
		v = v<<8 | uint64(d.n(256))
	}
	return v
}

// typ makes a type.
func (d *dice) typ(depth int) *component.Type {
	k := component.Kind(d.n(int(component.Flags) + 1))
	if k <= component.String || depth > 4 {
		return component.Primitive(min(k, component.String))
	}
	t := &component.Type{Kind: k}
	inner := func() *component.Type { return d.typ(depth + 1) }
	maybe := func() *component.Type {
		if d.n(3) == 0 {
			return nil
		}
		return inner()
	}
	n := 1 + d.n(6)
	switch k {
	case component.List:
		t.Elem = inner()
	case component.Option:
		t.Fields = []component.Field{{Name: "none"}, {Name: "some", Type: inner()}}
	case component.Result:
		t.Fields = []component.Field{{Name: "ok", Type: maybe()}, {Name: "error", Type: maybe()}}
	default:
		if k == component.Enum && d.n(8) == 0 {
			n = 300
		}
		if k == component.Flags {
			n = 1 + d.n(32)
		}
		for i := range n {
			f := component.Field{Name: strconv.Itoa(i)}
			switch k {
			case component.Record, component.Tuple:
				f.Type = inner()
			case component.Variant:
				f.Type = maybe()
			}
			t.Fields = append(t.Fields, f)
		}
	}
	t.Layout()
	return t
}

// value makes a value of a type.
func (d *dice) value(t *component.Type) any {
	switch t.Kind {
	case component.Bool:
		return d.n(2) == 1
	case component.S8, component.S16, component.S32, component.S64:
		return int64(d.u64()) >> (64 - 8*t.Size)
	case component.U8, component.U16, component.U32, component.U64:
		return d.u64() >> (64 - 8*t.Size)
	case component.F32:
		if f := math.Float32frombits(uint32(d.u64())); f == f {
			return f
		}
		return float32(1)
	case component.F64:
		if f := math.Float64frombits(d.u64()); f == f {
			return f
		}
		return 1.0
	case component.Char:
		if c := rune(d.u64() % (utf8.MaxRune + 1)); utf8.ValidRune(c) {
			return c
		}
		return 'x'
	case component.String:
		out := ""
		for range d.n(6) {
			out += string([]rune{'a', 'ü', '€', '𝄞', 0, 0xff}[d.n(6)])
		}
		return out
	case component.List:
		n := d.n(5)
		if t.Elem.Kind == component.U8 {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(d.n(256))
			}
			return p
		}
		vs := make([]any, n)
		for i := range vs {
			vs[i] = d.value(t.Elem)
		}
		return vs
	case component.Record, component.Tuple:
		vs := make([]any, len(t.Fields))
		for i, f := range t.Fields {
			vs[i] = d.value(f.Type)
		}
		return vs
	case component.Flags:
		return uint32(d.u64()) & uint32(1<<len(t.Fields)-1)
	}
	c := component.Case{Index: d.n(len(t.Fields))}
	if of := t.Fields[c.Index].Type; of != nil {
		c.Value = d.value(of)
	}
	return c
}

// FuzzValues lowers values of random types and lifts them again, as parameters and
// as a result, in each encoding; and lifts values from memory that is noise.
func FuzzValues(f *testing.F) {
	f.Add([]byte{}, byte(0))
	for i := range 64 {
		p := make([]byte, 200)
		x := uint32(i + 1)
		for j := range p {
			x = x*1664525 + 1013904223
			p[j] = byte(x >> 24)
		}
		f.Add(p, byte(i))
	}
	f.Fuzz(func(t *testing.T, p []byte, encoding byte) {
		d := &dice{p}
		ft := &component.FuncType{}
		var args []any
		for i := range 1 + d.n(5) {
			of := d.typ(0)
			if of.Size > 4096 {
				return
			}
			ft.Params = append(ft.Params, component.Field{Name: strconv.Itoa(i), Type: of})
			args = append(args, d.value(of))
		}
		ft.Result = ft.Params[0].Type
		m := &memory{b: make([]byte, memorySize), next: 1024}
		g := m.guest(component.Encoding(encoding % 3))
		flat, err := g.LowerParams(ft, args)
		if err != nil {
			if _, ok := errors.AsType[*component.Trap](err); ok {
				t.Fatalf("lowering trapped: %v", err)
			}
			return // it is full
		}
		if want, _ := ft.FlatParams(); len(want) != len(flat) {
			t.Fatalf("%s: %d core values, want %d", ft, len(flat), len(want))
		}
		if got, err := g.LiftParams(ft, flat); err == nil && !reflect.DeepEqual(got, args) || err != nil && m.held <= 1<<20 {
			t.Fatalf("%s\nlowered %v\nlifted  %v, %v", ft, args, got, err)
		}
		// A result is where the caller says, or in the first core value.
		params, _ := ft.FlatParams()
		call := append(make([]uint64, len(params)), 0)
		if err := g.LowerResult(ft, args[0], call); err != nil {
			return
		}
		result := call[:1]
		if _, byMemory := ft.FlatResults(); byMemory {
			result = []uint64{0}
		}
		m.held = 0
		if got, err := g.LiftResult(ft, result); err == nil && !reflect.DeepEqual(got, args[0]) || err != nil && m.held <= 1<<20 {
			t.Fatalf("%s\nlowered %v\nlifted  %v, %v", ft.Result, args[0], got, err)
		}
		JSON(ft.Result, args[0], 1<<20)
		schema(ft.Result, true)

		// Noise.
		noise := &memory{b: make([]byte, memorySize)}
		for i := range noise.b {
			if len(p) > 0 {
				noise.b[i] = p[i%len(p)]
			}
		}
		g = noise.guest(component.Encoding(encoding % 3))
		for i := range flat {
			flat[i] = d.u64()
		}
		for _, err := range []error{
			second(g.LiftParams(ft, flat)),
			second(g.LiftResult(ft, []uint64{uint64(encoding)})),
		} {
			if err == nil {
				continue
			}
			if _, ok := errors.AsType[*component.Trap](err); !ok {
				t.Fatalf("noise: %v", err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// Sixteen core parameters are passed as they are, seventeen in memory.
func TestFlatteningLimits(t *testing.T) {
	u32 := component.Primitive(component.U32)
	for n, byMemory := range map[int]bool{1: false, 16: false, 17: true} {
		ft := &component.FuncType{}
		for i := range n {
			ft.Params = append(ft.Params, component.Field{Name: strconv.Itoa(i), Type: u32})
		}
		flat, got := ft.FlatParams()
		if got != byMemory || byMemory && len(flat) != 1 || !byMemory && len(flat) != n {
			t.Errorf("%d parameters: %v, %v", n, flat, got)
		}
	}
	pair := &component.Type{Kind: component.Tuple, Fields: []component.Field{{Type: u32}, {Type: u32}}}
	pair.Layout()
	if params, results := (&component.FuncType{Result: pair}).Lowered(); len(params) != 1 || len(results) != 0 {
		t.Errorf("a result of two is lowered to %v, %v", params, results)
	}
	if params, results := (&component.FuncType{Result: pair}).Lifted(); len(params) != 0 || len(results) != 1 {
		t.Errorf("a result of two is lifted from %v, %v", params, results)
	}
}

// A NaN is one NaN, whatever bits a guest gives it.
func TestNaN(t *testing.T) {
	g := (&memory{b: make([]byte, 16)}).guest(component.UTF8)
	for _, k := range []component.Kind{component.F32, component.F64} {
		ft := &component.FuncType{Result: component.Primitive(k)}
		v, err := g.LiftResult(ft, []uint64{0x7fffffffffffffff})
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := JSON(ft.Result, v, 100); string(p) != "null" || !ok {
			t.Errorf("%v is %s", v, p)
		}
		if got := (&Guest{}).bits(ft.Result, v); got != map[component.Kind]uint64{component.F32: 0x7fc00000, component.F64: 0x7ff8000000000000}[k] {
			t.Errorf("%v has the bits %#x", v, got)
		}
	}
}
