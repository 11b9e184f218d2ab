package canon

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/toold/toold/host/guest/component"
)

// vector is a value that the reference definition of the canonical ABI lowered or
// lifted: see testdata/vectors.py.
type vector struct {
	Do       string
	Type     any
	Encoding string
	Flat     []string
	Memory   string
	Value    any
	Trap     bool
	Moved    bool
}

var kinds = map[string]component.Kind{
	"bool": component.Bool, "s8": component.S8, "u8": component.U8, "s16": component.S16, "u16": component.U16, "s32": component.S32,
	"u32": component.U32, "s64": component.S64, "u64": component.U64, "f32": component.F32, "f64": component.F64, "char": component.Char,
	"string": component.String, "list": component.List, "record": component.Record, "tuple": component.Tuple, "variant": component.Variant,
	"enum": component.Enum, "option": component.Option, "result": component.Result, "flags": component.Flags,
}

// vectorType makes a type of what the file has.
func vectorType(t *testing.T, v any) *component.Type {
	t.Helper()
	if s, ok := v.(string); ok {
		return component.Primitive(kinds[s])
	}
	for name, of := range v.(map[string]any) {
		out := &component.Type{Kind: kinds[name]}
		field := func(name string, of any) {
			f := component.Field{Name: name}
			if of != nil {
				f.Type = vectorType(t, of)
			}
			out.Fields = append(out.Fields, f)
		}
		switch of := of.(type) {
		case float64:
			for i := range int(of) {
				field(strconv.Itoa(i), nil)
			}
		case []any:
			for i, x := range of {
				field(strconv.Itoa(i), x)
			}
		default:
			if out.Kind == component.List {
				out.Elem = vectorType(t, of)
			} else {
				field("none", nil)
				field("some", of)
			}
		}
		out.Layout()
		return out
	}
	t.Fatalf("no type: %v", v)
	return nil
}

// vectorValue makes a value of what the file has.
func vectorValue(t *testing.T, typ *component.Type, v any) any {
	t.Helper()
	number := func() uint64 {
		n, err := strconv.ParseUint(v.(string), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	switch typ.Kind {
	case component.Bool, component.String:
		return v
	case component.S8, component.S16, component.S32, component.S64:
		n, err := strconv.ParseInt(v.(string), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	case component.U8, component.U16, component.U32, component.U64:
		return number()
	case component.F32:
		return math.Float32frombits(uint32(number()))
	case component.F64:
		return math.Float64frombits(number())
	case component.Char:
		return rune(number())
	case component.Flags:
		return uint32(number())
	case component.List:
		list := v.([]any)
		if typ.Elem.Kind == component.U8 {
			p := make([]byte, len(list))
			for i, x := range list {
				p[i] = byte(vectorValue(t, typ.Elem, x).(uint64))
			}
			return p
		}
		vs := make([]any, len(list))
		for i, x := range list {
			vs[i] = vectorValue(t, typ.Elem, x)
		}
		return vs
	case component.Record, component.Tuple:
		vs := make([]any, len(typ.Fields))
		for i, x := range v.([]any) {
			vs[i] = vectorValue(t, typ.Fields[i].Type, x)
		}
		return vs
	}
	m := v.(map[string]any)
	c := component.Case{Index: int(m["case"].(float64))}
	if of := typ.Fields[c.Index].Type; of != nil {
		c.Value = vectorValue(t, of, m["value"])
	}
	return c
}

// canonical has a number for each float, so that those which are none are equal.
func canonical(v any) any {
	switch v := v.(type) {
	case float32:
		return math.Float32bits(v)
	case float64:
		return math.Float64bits(v)
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = canonical(x)
		}
		return out
	case component.Case:
		return component.Case{Index: v.Index, Value: canonical(v.Value)}
	}
	return v
}

// TestVectors holds values of every type, in every encoding of strings, to what the
// reference definition makes of them: what it lowers is lowered to the same bytes, and
// lifted to the same value, and what it lifts from noise is lifted or a trap.
func TestVectors(t *testing.T) {
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(b, &vectors); err != nil {
		t.Fatal(err)
	}
	encodings := map[string]component.Encoding{"utf8": component.UTF8, "utf16": component.UTF16, "latin1": component.Latin1OrUTF16}
	did := map[string]int{}
	for i, v := range vectors {
		typ := vectorType(t, v.Type)
		want, err := hex.DecodeString(v.Memory)
		if err != nil {
			t.Fatal(err)
		}
		var flat []uint64
		for _, s := range v.Flat {
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			flat = append(flat, n)
		}
		var value any
		if !v.Trap {
			value = vectorValue(t, typ, v.Value)
		}
		m := &memory{b: make([]byte, memorySize), next: 8}
		g := m.guest(encodings[v.Encoding])
		params, result := &component.FuncType{Params: []component.Field{{Name: "v", Type: typ}}}, &component.FuncType{Result: typ}
		_, byMemory := result.FlatResults()
		lift := func(flat []uint64) (any, error) {
			if v.Do == "lift params" || v.Do == "lower params" {
				vs, err := g.LiftParams(params, flat)
				if err != nil {
					return nil, err
				}
				return vs[0], nil
			}
			return g.LiftResult(result, flat)
		}
		did[v.Do]++
		switch v.Do {
		case "lower params":
			got, err := g.LowerParams(params, []any{value})
			if err != nil || !v.Moved && (!slices.Equal(got, flat) || !bytes.Equal(m.b[:m.next], want)) {
				t.Errorf("%d: %s in %s: %v is lowered to %v and %x, %v; want %v and %x", i, v.Type, v.Encoding, v.Value, got, m.b[:m.next], err, flat, want)
			}
		case "lower result":
			// Where it goes, if it goes to memory; the reference answers nothing then.
			ptr, err := g.Realloc(0, 0, 8, typ.Size)
			if err != nil {
				t.Fatal(err)
			}
			got := []uint64{uint64(ptr)}
			if byMemory {
				flat = slices.Clone(got)
			}
			err = g.LowerResult(result, value, got)
			if err != nil || !v.Moved && (!slices.Equal(got, flat) || !bytes.Equal(m.b[:m.next], want)) {
				t.Errorf("%d: %s in %s: %v is lowered to %v and %x, %v; want %v and %x", i, v.Type, v.Encoding, v.Value, got, m.b[:m.next], err, flat, want)
			}
		}
		// What the reference lowered, and what it lifted.
		m.b = want
		got, err := lift(flat)
		if v.Trap {
			if trap, ok := errors.AsType[*component.Trap](err); !ok {
				t.Errorf("%d: %s in %s: %v and %x are lifted to %v, %v; want a trap", i, v.Type, v.Encoding, flat, want, got, trap)
			}
		} else if err != nil || !reflect.DeepEqual(canonical(got), canonical(value)) {
			t.Errorf("%d: %s in %s: %v and %x are lifted to %v, %v; want %v", i, v.Type, v.Encoding, flat, want, got, err, value)
		}
	}
	for _, do := range []string{"lower params", "lower result", "lift params", "lift result"} {
		if did[do] < 100 {
			t.Errorf("%d vectors of %q", did[do], do)
		}
	}
}
