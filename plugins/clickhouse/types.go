package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// parameter is one {name: Type} of a view.
type parameter struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// parameters finds the {name: Type} of a statement, in order, each once.
// What looks like one within a string, a quoted name or a comment is none.
func parameters(statement string) []parameter {
	var list []parameter
	for i := 0; i < len(statement); {
		switch c := statement[i]; {
		case c == '\'' || c == '"' || c == '`':
			i = endOfQuote(statement, i)
		case strings.HasPrefix(statement[i:], "--"):
			n := strings.IndexByte(statement[i:], '\n')
			if n < 0 {
				return list
			}
			i += n + 1
		case strings.HasPrefix(statement[i:], "/*"):
			n := strings.Index(statement[i+2:], "*/")
			if n < 0 {
				return list
			}
			i += n + 4
		case c == '{':
			n := strings.IndexByte(statement[i:], '}')
			if n < 0 {
				return list
			}
			name, typ, ok := strings.Cut(statement[i+1:i+n], ":")
			name, typ = strings.TrimSpace(name), strings.TrimSpace(typ)
			if ok && isName(name) && typ != "" && typ != "Identifier" {
				known := false
				for _, p := range list {
					known = known || p.Name == name
				}
				if !known {
					list = append(list, parameter{name, typ})
				}
			}
			i += n + 1
		default:
			i++
		}
	}
	return list
}

// endOfQuote is the index after the quote that begins at i. A backslash
// escapes, and so does a doubled quote.
func endOfQuote(s string, i int) int {
	q := s[i]
	for i++; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case q:
			if i+1 < len(s) && s[i+1] == q {
				i++
				continue
			}
			return i + 1
		}
	}
	return len(s)
}

func isName(s string) bool {
	for i, r := range s {
		if !(r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || i > 0 && r >= '0' && r <= '9') {
			return false
		}
	}
	return s != ""
}

// inner is what stands in the parentheses of a type such as Nullable(Int32).
func inner(typ, of string) (string, bool) {
	rest, ok := strings.CutPrefix(typ, of+"(")
	if !ok || !strings.HasSuffix(rest, ")") {
		return "", false
	}
	return strings.TrimSpace(rest[:len(rest)-1]), true
}

// base is a type without LowCardinality and Nullable around it.
func base(typ string) (plain string, null bool) {
	for {
		if t, ok := inner(typ, "LowCardinality"); ok {
			typ = t
		} else if t, ok := inner(typ, "Nullable"); ok {
			typ, null = t, true
		} else {
			return typ, null
		}
	}
}

// schemaOf is the JSON Schema of the values of a type; ok is false for one
// that no argument is taken for.
func schemaOf(typ string) (schema map[string]any, ok bool) {
	typ, null := base(strings.TrimSpace(typ))
	schema = map[string]any{}
	kind := ""
	integer := func(min, max string) {
		kind = "integer"
		schema["minimum"], schema["maximum"] = json.RawMessage(min), json.RawMessage(max)
	}
	head, _, _ := strings.Cut(typ, "(")
	switch head {
	case "UInt8":
		integer("0", "255")
	case "UInt16":
		integer("0", "65535")
	case "UInt32":
		integer("0", "4294967295")
	case "UInt64":
		integer("0", "18446744073709551615")
	case "Int8":
		integer("-128", "127")
	case "Int16":
		integer("-32768", "32767")
	case "Int32":
		integer("-2147483648", "2147483647")
	case "Int64":
		integer("-9223372036854775808", "9223372036854775807")
	case "Int128", "Int256", "UInt128", "UInt256":
		kind, schema["pattern"] = "string", "^-?[0-9]{1,78}$"
	case "Decimal", "Decimal32", "Decimal64", "Decimal128", "Decimal256":
		kind, schema["pattern"] = "string", `^-?[0-9]{1,76}(\.[0-9]{1,76})?$`
	case "Float32", "Float64", "BFloat16":
		kind = "number"
	case "Bool":
		kind = "boolean"
	case "String":
		kind = "string"
	case "FixedString":
		n, _ := inner(typ, "FixedString")
		size, err := strconv.Atoi(n)
		if err != nil {
			return nil, false
		}
		kind, schema["maxLength"] = "string", size
	case "Date", "Date32":
		kind, schema["format"] = "string", "date"
	case "DateTime", "DateTime32", "DateTime64":
		kind, schema["format"] = "string", "date-time"
	case "UUID":
		kind, schema["format"] = "string", "uuid"
	case "IPv4":
		kind, schema["format"] = "string", "ipv4"
	case "IPv6":
		kind, schema["format"] = "string", "ipv6"
	case "Enum", "Enum8", "Enum16":
		names := enumNames(typ)
		if len(names) == 0 {
			return nil, false
		}
		if null {
			names = append(names, nil)
		}
		kind, schema["enum"] = "string", names
	case "Array":
		t, _ := inner(typ, "Array")
		items, ok := schemaOf(t)
		if !ok {
			return nil, false
		}
		kind, schema["items"] = "array", items
	default:
		return nil, false
	}
	schema["type"] = kind
	if null {
		schema["type"] = []string{kind, "null"}
	}
	return schema, true
}

// enumNames are those of Enum8('a' = 1, 'b' = 2).
func enumNames(typ string) []any {
	var names []any
	for i := 0; i < len(typ); {
		if typ[i] != '\'' {
			i++
			continue
		}
		end := endOfQuote(typ, i)
		if end <= i+1 || typ[end-1] != '\'' {
			return nil
		}
		name := strings.NewReplacer(`\\`, `\`, `\'`, `'`, `''`, `'`).Replace(typ[i+1 : end-1])
		names = append(names, name)
		i = end
	}
	return names
}

// value is one argument as the server reads it.
type value struct {
	raw  json.RawMessage
	kind string // the base type's name
	typ  string
	null bool
}

func newValue(typ string, raw json.RawMessage) value {
	t, _ := base(strings.TrimSpace(typ))
	head, _, _ := strings.Cut(t, "(")
	return value{raw: raw, kind: head, typ: t, null: string(raw) == "null"}
}

// moment is a date-time as the seconds since 1970 that every version reads,
// whatever the time zone of the server or the column.
func moment(text string) (string, error) {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return "", fmt.Errorf("%q is not a date-time such as 2024-01-31T09:30:00Z", text)
	}
	seconds := strconv.FormatInt(t.Unix(), 10)
	if t.Unix() < 0 || t.Year() > 9999 {
		return "", errors.New("a date-time is before 1970, or after 9999")
	}
	if n := t.Nanosecond(); n != 0 {
		return seconds + "." + strings.TrimRight(fmt.Sprintf("%09d", n), "0"), nil
	}
	// The server takes ten digits for a time, fewer for a date.
	return strings.Repeat("0", max(0, 10-len(seconds))) + seconds, nil
}

// text is the plain text of a value that is no array.
func (v value) text() (string, error) {
	var s string
	if len(v.raw) > 0 && v.raw[0] == '"' {
		if err := json.Unmarshal(v.raw, &s); err != nil {
			return "", err
		}
	} else {
		s = string(v.raw)
	}
	if strings.HasPrefix(v.kind, "DateTime") {
		t, err := moment(s)
		if err == nil && v.kind != "DateTime64" && strings.ContainsRune(t, '.') {
			return "", fmt.Errorf("%q has a fraction of a second, and %s has none", s, v.typ)
		}
		return t, err
	}
	return s, nil
}

// row is the value within a JSONEachRow row.
func (v value) row() (json.RawMessage, error) {
	switch {
	case v.null:
		return v.raw, nil
	case v.kind == "Array":
		t, _ := inner(v.typ, "Array")
		var items []json.RawMessage
		if err := json.Unmarshal(v.raw, &items); err != nil {
			return nil, err
		}
		for i := range items {
			b, err := newValue(t, items[i]).row()
			if err != nil {
				return nil, err
			}
			items[i] = b
		}
		return encode(items)
	case v.kind == "Bool":
		return v.raw, nil
	case len(v.raw) > 0 && v.raw[0] == '"':
		s, err := v.text()
		if err != nil {
			return nil, err
		}
		// Old servers want a decimal without quotes. What is none keeps them,
		// for the server to refuse.
		if strings.HasPrefix(v.kind, "Decimal") && isDecimal(s) {
			return json.RawMessage(s), nil
		}
		return encode(s)
	}
	return v.raw, nil
}

// isDecimal: digits, with a sign before and a point within.
func isDecimal(s string) bool {
	whole, fraction, point := strings.Cut(strings.TrimPrefix(s, "-"), ".")
	digits := func(s string) bool {
		return s != "" && strings.Trim(s, "0123456789") == ""
	}
	return digits(whole) && (!point || digits(fraction))
}

// encode writes plain UTF-8: old servers read few escapes.
func encode(v any) (json.RawMessage, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return json.RawMessage(strings.TrimSuffix(b.String(), "\n")), nil
}

// escapes are those of the text formats of ClickHouse.
var escapes = strings.NewReplacer(`\`, `\\`, "'", `\'`, "\t", `\t`, "\n", `\n`, "\r", `\r`, "\b", `\b`, "\f", `\f`, "\x00", `\0`)

// parameter is the value as param_NAME has it: the text of the type, escaped
// as in TSV. The server reads it as that type and as nothing else.
func (v value) parameter() (string, error) {
	if v.null {
		return `\N`, nil
	}
	if v.kind == "Array" {
		return v.literal()
	}
	s, err := v.text()
	return escapes.Replace(s), err
}

// literal is an element of an array parameter.
func (v value) literal() (string, error) {
	if v.null {
		return "NULL", nil
	}
	if v.kind == "Array" {
		t, _ := inner(v.typ, "Array")
		var items []json.RawMessage
		if err := json.Unmarshal(v.raw, &items); err != nil {
			return "", err
		}
		texts := make([]string, len(items))
		for i := range items {
			s, err := newValue(t, items[i]).literal()
			if err != nil {
				return "", err
			}
			texts[i] = s
		}
		return "[" + strings.Join(texts, ",") + "]", nil
	}
	s, err := v.text()
	if err != nil {
		return "", err
	}
	switch {
	case strings.Contains(v.kind, "Int") || strings.Contains(v.kind, "Float") || v.kind == "Bool" || strings.HasPrefix(v.kind, "Decimal"):
		return s, nil
	}
	return "'" + escapes.Replace(s) + "'", nil
}
