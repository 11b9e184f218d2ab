package strictjson

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Unmarshal parses one JSON text into the value that v points to.
//
// It rejects everything that encoding/json rejects, and returns the same value
// otherwise, but also rejects, with a *Fault:
//
//   - invalid UTF-8, and halves of surrogate pairs;
//   - a duplicate name in an object;
//   - a member that the struct has no field for; names are case-sensitive, and
//     the fault suggests the nearest one;
//   - null for anything but a pointer, a slice, a map or an interface;
//   - anything after the value, and nesting deeper than 64.
//
// Fields are those of encoding/json, by their json tags; the options "string" and
// "inline" are not supported. json.Unmarshaler and encoding.TextUnmarshaler are
// called, and their errors become a Fault of that value. After a fault, v is
// partly filled. Unmarshal panics on a type that JSON cannot be read into (a
// channel, a map whose keys are not strings).
func Unmarshal(data []byte, v any) error {
	d := decoder{reader: reader{data: data}}
	return d.unmarshal(v)
}

// UnmarshalLenient is Unmarshal, except that it ignores members that the struct
// has no field for, such as those that a newer server sends.
func UnmarshalLenient(data []byte, v any) error {
	d := decoder{reader: reader{data: data}, lenient: true}
	return d.unmarshal(v)
}

// Check returns the *Fault of a text that Unmarshal rejects for any type, or nil.
func Check(data []byte) error {
	r := reader{data: data}
	if f := r.whole(r.skip); f != nil {
		return f
	}
	return nil
}

// Members reads an object and calls member with the name and the text of each
// member, in order, also of those before a fault. Both slices are valid until
// member returns. The error is a *Fault.
func Members(data []byte, member func(name, value []byte)) error {
	r := reader{data: data}
	f := r.whole(func() *Fault {
		return r.object(func(name []byte) *Fault {
			at := r.pos
			if f := r.skip(); f != nil {
				return f
			}
			member(name, r.data[at:r.pos])
			return nil
		})
	})
	if f != nil {
		return f
	}
	return nil
}

// Judge calls judge with each string, number (a float64) and boolean of a text, and with its
// pointer. If judge returns a text, Judge returns a *Fault at that value with that text as the
// reason.
func Judge(data []byte, judge func(pointer string, value any) string) error {
	d := decoder{reader: reader{data: data}}
	var walk func() *Fault
	walk = func() *Fault {
		switch d.kind() {
		case "an object":
			return d.object(func([]byte) *Fault { return walk() })
		case "an array":
			return d.array(func(int) *Fault { return walk() })
		}
		at := d.pos
		v, f := d.any()
		if f != nil || v == nil {
			return f
		}
		f = d.faultAt(at, "")
		if f.Reason = judge(f.Pointer, v); f.Reason != "" {
			return f
		}
		return nil
	}
	if f := d.whole(walk); f != nil {
		return f
	}
	return nil
}

type decoder struct {
	reader
	lenient bool
}

// structFields caches the fields of struct types, as encoding/json does. Its size
// is bounded by the number of types in the program.
var structFields sync.Map // of reflect.Type to []field

// field is the struct field for one member of an object.
type field struct {
	name  string
	index []int
}

func (d *decoder) unmarshal(v any) error {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		panic(fmt.Sprintf("strictjson: Unmarshal into %T, which is not a pointer to a value", v))
	}
	if err := d.whole(func() *Fault { return d.value(rv.Elem()) }); err != nil {
		return err
	}
	return nil
}

// value reads the next value into v, which is addressable.
func (d *decoder) value(v reflect.Value) *Fault {
	if v.Kind() == reflect.Pointer {
		if d.kind() == "null" {
			v.SetZero()
			_, err := d.literal()
			return err
		}
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return d.value(v.Elem())
	}
	switch u := v.Addr().Interface().(type) {
	case json.Unmarshaler:
		return d.custom(u)
	case encoding.TextUnmarshaler:
		at := d.pos
		s, err := d.string()
		if err != nil {
			return err
		}
		if err := u.UnmarshalText(s); err != nil {
			return d.faultAt(at, "%v", err)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.structure(v)
	case reflect.String:
		s, err := d.string()
		if err != nil {
			return err
		}
		v.SetString(string(s))
		return nil
	case reflect.Bool:
		if d.kind() != "a boolean" {
			return d.wrongKind("true or false")
		}
		word, err := d.literal()
		if err != nil {
			return err
		}
		v.SetBool(word == "true")
		return nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64:
		return d.numeric(v)
	case reflect.Slice:
		if d.kind() == "null" {
			v.SetZero()
			_, err := d.literal()
			return err
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return d.bytes(v)
		}
		return d.slice(v)
	case reflect.Map:
		if d.kind() == "null" {
			v.SetZero()
			_, err := d.literal()
			return err
		}
		return d.mapping(v)
	case reflect.Interface:
		if v.NumMethod() == 0 {
			x, err := d.any()
			if err != nil {
				return err
			}
			if x == nil {
				v.SetZero()
			} else {
				v.Set(reflect.ValueOf(x))
			}
			return nil
		}
	}
	panic(fmt.Sprintf("strictjson: Unmarshal into a %s, which JSON cannot be read into", v.Type()))
}

// custom checks the next value and passes its text to u.
func (d *decoder) custom(u json.Unmarshaler) *Fault {
	at := d.pos
	if err := d.skip(); err != nil {
		return err
	}
	err := u.UnmarshalJSON(d.data[at:d.pos])
	if err == nil {
		return nil
	}
	// An UnmarshalJSON that uses Unmarshal returns a position within this
	// value.
	if inner := (*Fault)(nil); errors.As(err, &inner) && inner.Offset <= d.pos-at {
		f := d.faultAt(at+inner.Offset, "%s", inner.Reason)
		f.Pointer += inner.Pointer
		return f
	}
	return d.faultAt(at, "%v", err)
}

func (d *decoder) structure(v reflect.Value) *Fault {
	fields := d.fieldsOf(v.Type())
	return d.object(func(name []byte) *Fault {
		for i := range fields {
			if fields[i].name == string(name) {
				return d.value(fieldAt(v, fields[i].index))
			}
		}
		if d.lenient {
			return d.skip()
		}
		known := make([]string, len(fields))
		for i := range fields {
			known[i] = fields[i].name
		}
		if near := Nearest(string(name), known); near != "" {
			return d.faultAt(d.nameAt, "is not a known name; did you mean %q?", near)
		}
		return d.faultAt(d.nameAt, "is not a known name; valid: %s", strings.Join(known, ", "))
	})
}

// fieldAt returns v's field at index, and allocates embedded struct pointers on
// the way.
func fieldAt(v reflect.Value, index []int) reflect.Value {
	for i, n := range index {
		if i > 0 && v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(n)
	}
	return v
}

func (d *decoder) fieldsOf(t reflect.Type) []field {
	if fields, ok := structFields.Load(t); ok {
		return fields.([]field)
	}
	fields, _ := structFields.LoadOrStore(t, appendFields(nil, t, nil))
	return fields.([]field)
}

// appendFields appends the JSON fields of t. Fields of an embedded struct are
// promoted, and those of the outer one take precedence.
func appendFields(fields []field, t reflect.Type, outer []int) []field {
	var embedded []reflect.StructField
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" && f.Tag.Get("json") == "-" {
			continue
		}
		if f.Anonymous && name == "" {
			if et := f.Type; et.Kind() == reflect.Struct || et.Kind() == reflect.Pointer && et.Elem().Kind() == reflect.Struct && f.IsExported() {
				embedded = append(embedded, f)
				continue
			}
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if !hasField(fields, name) {
			fields = append(fields, field{name: name, index: append(outer[:len(outer):len(outer)], i)})
		}
	}
	for _, f := range embedded {
		et := f.Type
		if et.Kind() == reflect.Pointer {
			et = et.Elem()
		}
		fields = appendFields(fields, et, append(outer[:len(outer):len(outer)], f.Index[0]))
	}
	return fields
}

func hasField(fields []field, name string) bool {
	for i := range fields {
		if fields[i].name == name {
			return true
		}
	}
	return false
}

func (d *decoder) numeric(v reflect.Value) *Fault {
	if d.kind() != "a number" {
		return d.wrongKind("a number")
	}
	at := d.pos
	text, fault := d.number()
	if fault != nil {
		return fault
	}
	s := string(text)
	var err error
	switch v.Kind() {
	case reflect.Float32, reflect.Float64:
		var x float64
		if x, err = strconv.ParseFloat(s, v.Type().Bits()); err == nil {
			v.SetFloat(x)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		var x int64
		if x, err = strconv.ParseInt(s, 10, v.Type().Bits()); err == nil {
			v.SetInt(x)
		}
	default:
		var x uint64
		if x, err = strconv.ParseUint(s, 10, v.Type().Bits()); err == nil {
			v.SetUint(x)
		}
	}
	switch {
	case errors.Is(err, strconv.ErrRange):
		return d.faultAt(at, "%s is out of range", s)
	case err != nil && s[0] == '-' && v.CanUint():
		return d.faultAt(at, "must be a whole number from 0 up, not %s", s)
	case err != nil:
		return d.faultAt(at, "must be a whole number in plain digits, not %s", s)
	}
	return nil
}

// bytes reads base64 into a []byte, as encoding/json does.
func (d *decoder) bytes(v reflect.Value) *Fault {
	at := d.pos
	s, fault := d.string()
	if fault != nil {
		return fault
	}
	b := make([]byte, base64.StdEncoding.DecodedLen(len(s)))
	n, err := base64.StdEncoding.Decode(b, s)
	if err != nil {
		return d.faultAt(at, "must be base64 (RFC 4648, with padding)")
	}
	v.SetBytes(b[:n])
	return nil
}

func (d *decoder) slice(v reflect.Value) *Fault {
	if d.kind() != "an array" {
		return d.wrongKind("an array")
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	return d.array(func(i int) *Fault {
		// Grow doubles the capacity; growing by one would be quadratic.
		if i >= v.Cap() {
			v.Grow(1)
		}
		v.SetLen(i + 1)
		v.Index(i).SetZero()
		return d.value(v.Index(i))
	})
}

func (d *decoder) mapping(v reflect.Value) *Fault {
	t := v.Type()
	if t.Key().Kind() != reflect.String {
		panic(fmt.Sprintf("strictjson: Unmarshal into a %s, whose keys are not strings", t))
	}
	if d.kind() != "an object" {
		return d.wrongKind("an object")
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(t))
	}
	return d.object(func(name []byte) *Fault {
		key := reflect.ValueOf(string(name)).Convert(t.Key())
		element := reflect.New(t.Elem()).Elem()
		if err := d.value(element); err != nil {
			return err
		}
		v.SetMapIndex(key, element)
		return nil
	})
}

// any reads a value as encoding/json does into an empty interface.
func (d *decoder) any() (any, *Fault) {
	switch d.kind() {
	case "an object":
		m := make(map[string]any)
		return m, d.object(func(name []byte) *Fault {
			key := string(name)
			x, err := d.any()
			m[key] = x
			return err
		})
	case "an array":
		s := []any{}
		err := d.array(func(int) *Fault {
			x, err := d.any()
			s = append(s, x)
			return err
		})
		return s, err
	case "a string":
		s, err := d.string()
		return string(s), err
	case "a number":
		var x float64
		err := d.numeric(reflect.ValueOf(&x).Elem())
		return x, err
	case "a boolean":
		word, err := d.literal()
		return word == "true", err
	case "null":
		_, err := d.literal()
		return nil, err
	}
	return nil, d.unexpected("expected a value")
}

// Nearest returns the known name closest to a misspelled one, "" if none is close.
func Nearest(name string, known []string) string {
	if len(name) > 64 {
		return ""
	}
	best, bestDistance := "", 1+max(1, len(name)/3)
	for _, k := range known {
		if strings.EqualFold(plainName(k), plainName(name)) {
			return k
		}
		if d := editDistance(name, k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// plainName removes the separators of snake_case and kebab-case.
func plainName(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "_", ""), "-", "")
}

// editDistance returns the number of insertions, deletions, substitutions and
// swaps of neighbours between a and b.
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
