package canon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toold/toold/host/guest/component"
)

// Made is an argument that is a resource of the component: before the call,
// Resource.Constructor creates it from Args and returns Rep.
type Made struct {
	Resource *component.Resource
	Args     []any
	Rep      uint32
}

// EachMade calls do for each resource that must be created for the arguments.
func EachMade(v any, do func(*Made)) {
	switch v := v.(type) {
	case *Made:
		do(v)
	case component.Case:
		EachMade(v.Value, do)
	case []any:
		for _, v := range v {
			EachMade(v, do)
		}
	}
}

// Arguments reads the arguments of a function from a JSON object with one member for
// each parameter. A parameter that is an option may be missing. A parameter that is a
// resource of the component is an object with the arguments of its constructor, since
// no call can use another call's resource. The caller must already have rejected
// duplicate members.
func Arguments(ft *component.FuncType, source []byte) (args []any, err error) {
	if len(bytes.TrimSpace(source)) == 0 {
		source = []byte("{}")
	}
	dec := json.NewDecoder(bytes.NewReader(source))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("read the arguments: %w", err)
	}
	o, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("read the arguments: they are %s, not an object", jsonKind(v))
	}
	defer catch(&err)
	return members(ft.Params, o, ""), nil
}

func wrong(at, format string, args ...any) {
	if at == "" {
		at = "/"
	}
	panic(failure{fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...))})
}

func jsonKind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "an array"
	}
	return "an object"
}

func members(fs []component.Field, o map[string]any, at string) []any {
	for _, name := range sortedKeys(o) {
		if !slices.ContainsFunc(fs, func(f component.Field) bool { return f.Name == name }) {
			wrong(at+"/"+name, "there is no such member")
		}
	}
	out := make([]any, len(fs))
	for i, f := range fs {
		v, ok := o[f.Name]
		if !ok && f.Type.Kind != component.Option {
			wrong(at+"/"+f.Name, "it is missing")
		}
		out[i] = fromJSON(f.Type, v, at+"/"+f.Name)
	}
	return out
}

func sortedKeys(o map[string]any) []string {
	var names []string
	for name := range o {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func expect[T any](v any, at, what string) T {
	t, ok := v.(T)
	if !ok {
		wrong(at, "it is %s, not %s", jsonKind(v), what)
	}
	return t
}

func fromJSON(t *component.Type, v any, at string) any {
	switch t.Kind {
	case component.Bool:
		return expect[bool](v, at, "a boolean")
	case component.S8, component.S16, component.S32, component.S64:
		n, err := strconv.ParseInt(string(expect[json.Number](v, at, "a number")), 10, int(t.Size)*8)
		if err != nil {
			wrong(at, "%v is not a valid %s", v, t)
		}
		return n
	case component.U8, component.U16, component.U32, component.U64:
		n, err := strconv.ParseUint(string(expect[json.Number](v, at, "a number")), 10, int(t.Size)*8)
		if err != nil {
			wrong(at, "%v is not a valid %s", v, t)
		}
		return n
	case component.F32, component.F64:
		f, err := strconv.ParseFloat(string(expect[json.Number](v, at, "a number")), 64)
		if err != nil {
			wrong(at, "%v is not a valid %s", v, t)
		}
		if t.Kind == component.F32 {
			return float32(f)
		}
		return f
	case component.Char:
		s := expect[string](v, at, "a string")
		c, n := utf8.DecodeRuneInString(s)
		if n == 0 || n != len(s) {
			wrong(at, "it is %d characters, not 1", utf8.RuneCountInString(s))
		}
		return c
	case component.String:
		return expect[string](v, at, "a string")
	case component.List:
		vs := expect[[]any](v, at, "an array")
		if t.Elem.Kind == component.U8 {
			out := make([]byte, len(vs))
			for i, v := range vs {
				out[i] = byte(fromJSON(t.Elem, v, at+"/"+strconv.Itoa(i)).(uint64))
			}
			return out
		}
		out := make([]any, len(vs))
		for i, v := range vs {
			out[i] = fromJSON(t.Elem, v, at+"/"+strconv.Itoa(i))
		}
		return out
	case component.Record:
		return members(t.Fields, expect[map[string]any](v, at, "an object"), at)
	case component.Tuple:
		vs := expect[[]any](v, at, "an array")
		if len(vs) != len(t.Fields) {
			wrong(at, "it has %d items, not %d", len(vs), len(t.Fields))
		}
		out := make([]any, len(vs))
		for i, f := range t.Fields {
			out[i] = fromJSON(f.Type, vs[i], at+"/"+strconv.Itoa(i))
		}
		return out
	case component.Variant:
		o := expect[map[string]any](v, at, "an object")
		i := caseNamed(t, expect[string](o["tag"], at+"/tag", "a string"), at+"/tag")
		c := component.Case{Index: i}
		of := t.Fields[i].Type
		for _, name := range sortedKeys(o) {
			if name != "tag" && (name != "val" || of == nil) {
				wrong(at+"/"+name, "there is no such member")
			}
		}
		if of != nil {
			val, ok := o["val"]
			if !ok && of.Kind != component.Option {
				wrong(at+"/val", "it is missing")
			}
			c.Value = fromJSON(of, val, at+"/val")
		}
		return c
	case component.Enum:
		return component.Case{Index: caseNamed(t, expect[string](v, at, "a string"), at)}
	case component.Option:
		if v == nil {
			return component.None
		}
		return component.Some(fromJSON(t.Fields[1].Type, v, at))
	case component.Result:
		o := expect[map[string]any](v, at, "an object")
		for i, name := range resultNames {
			if val, ok := o[name]; ok && len(o) == 1 {
				c := component.Case{Index: i}
				if of := t.Fields[i].Type; of != nil {
					c.Value = fromJSON(of, val, at+"/"+name)
				} else if val != nil {
					wrong(at+"/"+name, "it is %s, not null", jsonKind(val))
				}
				return c
			}
		}
		wrong(at, `it has neither "ok" nor "err", or more than one of them`)
	case component.Flags:
		return flagsFrom(t, v, at)
	case component.Own, component.Borrow:
		if of := t.Resource.Constructor; of != nil {
			return &Made{Resource: t.Resource, Args: members(of.Type.Params, expect[map[string]any](v, at, "an object"), at)}
		}
	}
	wrong(at, "a value of %s cannot be given as JSON", t)
	return nil
}

var resultNames = [...]string{"ok", "err"}

func caseNamed(t *component.Type, name, at string) int {
	i := slices.IndexFunc(t.Fields, func(f component.Field) bool { return f.Name == name })
	if i < 0 {
		wrong(at, "%q is not a case of %s", name, t)
	}
	return i
}

// flagsFrom reads flags, either as an array of those that are set or as an object with
// a boolean for each.
func flagsFrom(t *component.Type, v any, at string) any {
	var set uint32
	switch v := v.(type) {
	case []any:
		for i, name := range v {
			at := at + "/" + strconv.Itoa(i)
			set |= 1 << caseNamed(t, expect[string](name, at, "a string"), at)
		}
	case map[string]any:
		for _, name := range sortedKeys(v) {
			if expect[bool](v[name], at+"/"+name, "a boolean") {
				set |= 1 << caseNamed(t, name, at+"/"+name)
			} else {
				caseNamed(t, name, at+"/"+name)
			}
		}
	default:
		wrong(at, "it is %s, not an array or object", jsonKind(v))
	}
	return set
}

// JSON encodes a value. It reports false if the encoding would exceed most bytes.
// Numbers that JSON cannot represent are encoded as null.
func JSON(t *component.Type, v any, most int) ([]byte, bool) {
	b := &text{most: most}
	writeJSON(b, t, v)
	return b.Bytes(), b.Len() <= most
}

// text is a buffer that stops writing once it is longer than most; the rest is dropped.
type text struct {
	bytes.Buffer
	most int
}

func (b *text) full() bool { return b.Len() > b.most }

func writeText(b *text, s string) {
	if len(s) > b.most-b.Len() {
		s = s[:max(b.most-b.Len(), 0)] + "  "
	}
	enc := json.NewEncoder(&b.Buffer)
	enc.SetEscapeHTML(false)
	enc.Encode(s)
	b.Truncate(b.Len() - 1) // trailing newline
}

func writeFloat(b *text, f float64) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		b.WriteString("null")
		return
	}
	p, err := json.Marshal(f)
	if err != nil {
		p = []byte("null")
	}
	b.Write(p)
}

func writeJSON(b *text, t *component.Type, v any) {
	if t == nil {
		b.WriteString("null")
		return
	}
	each := func(open, end byte, n int, item func(i int)) {
		b.WriteByte(open)
		for i := range n {
			if b.full() {
				return
			}
			if i > 0 {
				b.WriteByte(',')
			}
			item(i)
		}
		b.WriteByte(end)
	}
	switch t.Kind {
	case component.Bool:
		b.WriteString(strconv.FormatBool(v.(bool)))
	case component.S8, component.S16, component.S32, component.S64:
		b.WriteString(strconv.FormatInt(v.(int64), 10))
	case component.U8, component.U16, component.U32, component.U64:
		b.WriteString(strconv.FormatUint(v.(uint64), 10))
	case component.F32:
		writeFloat(b, float64(v.(float32)))
	case component.F64:
		writeFloat(b, v.(float64))
	case component.Char:
		writeText(b, string(v.(rune)))
	case component.String:
		writeText(b, v.(string))
	case component.List:
		if p, ok := v.([]byte); ok {
			each('[', ']', len(p), func(i int) { b.WriteString(strconv.Itoa(int(p[i]))) })
			return
		}
		vs := v.([]any)
		each('[', ']', len(vs), func(i int) { writeJSON(b, t.Elem, vs[i]) })
	case component.Tuple:
		each('[', ']', len(t.Fields), func(i int) { writeJSON(b, t.Fields[i].Type, v.([]any)[i]) })
	case component.Record:
		each('{', '}', len(t.Fields), func(i int) {
			writeText(b, t.Fields[i].Name)
			b.WriteByte(':')
			writeJSON(b, t.Fields[i].Type, v.([]any)[i])
		})
	case component.Variant:
		c := v.(component.Case)
		b.WriteString(`{"tag":`)
		writeText(b, t.Fields[c.Index].Name)
		if of := t.Fields[c.Index].Type; of != nil {
			b.WriteString(`,"val":`)
			writeJSON(b, of, c.Value)
		}
		b.WriteByte('}')
	case component.Enum:
		writeText(b, t.Fields[v.(component.Case).Index].Name)
	case component.Option:
		c := v.(component.Case)
		if c.Index == 0 {
			b.WriteString("null")
			return
		}
		writeJSON(b, t.Fields[1].Type, c.Value)
	case component.Result:
		c := v.(component.Case)
		b.WriteString(`{"` + resultNames[c.Index] + `":`)
		writeJSON(b, t.Fields[c.Index].Type, c.Value)
		b.WriteByte('}')
	case component.Flags:
		var set []string
		for i, f := range t.Fields {
			if v.(uint32)&(1<<i) != 0 {
				set = append(set, f.Name)
			}
		}
		each('[', ']', len(set), func(i int) { writeText(b, set[i]) })
	default:
		// The resource ends with the call.
		writeText(b, t.String())
	}
}

// schema returns the JSON schema of a type, as wassette's component2json derives it,
// except for an input that is a resource of the component: see Arguments.
func schema(t *component.Type, input bool) map[string]any {
	list := func(fs []component.Field) []any {
		out := []any{}
		for _, f := range fs {
			out = append(out, schema(f.Type, input))
		}
		return out
	}
	switch t.Kind {
	case component.Bool:
		return map[string]any{"type": "boolean"}
	case component.Char:
		return map[string]any{"type": "string", "description": "1 unicode codepoint"}
	case component.String:
		return map[string]any{"type": "string"}
	case component.List:
		return map[string]any{"type": "array", "items": schema(t.Elem, input)}
	case component.Record:
		return object(t.Fields, input)
	case component.Tuple:
		n := len(t.Fields)
		return map[string]any{"type": "array", "prefixItems": list(t.Fields), "minItems": n, "maxItems": n}
	case component.Variant:
		cases := []any{}
		for _, f := range t.Fields {
			props := map[string]any{"tag": map[string]any{"const": f.Name}}
			required := []string{"tag"}
			if f.Type != nil {
				props["val"] = schema(f.Type, input)
				required = append(required, "val")
			}
			cases = append(cases, map[string]any{"type": "object", "properties": props, "required": required})
		}
		return map[string]any{"oneOf": cases}
	case component.Enum:
		return map[string]any{"type": "string", "enum": names(t.Fields)}
	case component.Option:
		return map[string]any{"anyOf": []any{map[string]any{"type": "null"}, schema(t.Fields[1].Type, input)}}
	case component.Result:
		cases := []any{}
		for i, f := range t.Fields {
			of := map[string]any{"type": "null"}
			if f.Type != nil {
				of = schema(f.Type, input)
			}
			cases = append(cases, map[string]any{"type": "object", "properties": map[string]any{resultNames[i]: of}, "required": []string{resultNames[i]}})
		}
		return map[string]any{"oneOf": cases}
	case component.Flags:
		props := map[string]any{}
		for _, f := range t.Fields {
			props[f.Name] = map[string]any{"type": "boolean"}
		}
		return map[string]any{"type": "object", "properties": props}
	case component.Own, component.Borrow:
		if of := t.Resource.Constructor; of != nil && input {
			s := object(of.Type.Params, true)
			s["description"] = t.String() + ": what makes one"
			return s
		}
		return map[string]any{"type": "string", "description": string(t.String())}
	}
	return map[string]any{"type": "number"}
}

func names(fs []component.Field) []string {
	out := []string{}
	for _, f := range fs {
		out = append(out, f.Name)
	}
	return out
}

func object(fs []component.Field, input bool) map[string]any {
	props := map[string]any{}
	for _, f := range fs {
		props[f.Name] = schema(f.Type, input)
	}
	return map[string]any{"type": "object", "properties": props, "required": names(fs)}
}

// Input returns the JSON schema of a function's arguments.
func Input(ft *component.FuncType) map[string]any { return object(ft.Params, true) }

// Output returns the JSON schema of a function's result, or nil if it has none.
func Output(ft *component.FuncType) map[string]any {
	if ft.Result == nil {
		return nil
	}
	return schema(ft.Result, false)
}

// ToolName returns the name that wassette gives the tool of an exported function.
func ToolName(x *component.Export) string {
	// wassette treats "local:time/time@1.0.0" as one part.
	parts := []string{x.Name}
	if x.Interface != "" {
		parts = []string{x.Interface, x.Name}
	}
	return strings.Map(func(c rune) rune {
		switch {
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-':
			return c
		}
		return '_'
	}, strings.Join(parts, "_"))
}
